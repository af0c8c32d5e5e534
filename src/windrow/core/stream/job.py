"""Jobs: what another process has to know of a plan, plain enough to be sent to it, and compiled there once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any

import polars as pl

from windrow.core.aggregates.functions import Aggregate
from windrow.core.operators.custom import MONOIDS
from windrow.core.plan.groups import Entry, Rates
from windrow.core.plan.plan import plan
from windrow.core.plan.watermark import Lengths, TimeColumn, time_columns_of
from windrow.core.query.query import Query, QueryError
from windrow.core.slices.kernel import time_name
from windrow.core.stream.compiled import CompiledPlan, compile_plan
from windrow.core.windows.ordered import JOINED, scope_of


@dataclass(frozen=True)
class Job:
    """Queries over events with these columns; equal jobs are compiled once in a process."""

    entries: tuple[Entry, ...]
    time: str
    columns: tuple[tuple[str, pl.DataType], ...]
    order_by: tuple[str, ...] = ()
    lengths: tuple[tuple[str, int | None, int, bool | None], ...] = ()  # time column, lateness, updates, are they times
    bad_events: str = "raise"
    rates: tuple[float, tuple[tuple[str, float], ...]] | None = None
    pushed: tuple[str, ...] = ()  # queries whose windows are found at the nodes
    counted: tuple[tuple[str, str], ...] = ()  # queries on the ends of whose windows nodes agree, by which scheme
    refined: tuple[str, ...] = ()  # queries whose bags do not travel whole
    own: tuple[type, ...] = ()  # windows and monoids of the user's own: known to a worker once they are unpickled

    @property
    def time_columns(self) -> dict[str, TimeColumn]:
        """Fresh time columns, at the beginning."""
        return {name: TimeColumn(late, updates, temporal) for name, late, updates, temporal in self.lengths}

    @cached_property
    def compiled(self) -> CompiledPlan:
        """Its plan, compiled for its columns; once in a process for equal jobs."""
        return _compiled(self)

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to a worker, which binds it itself."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @property
    def is_integer(self) -> bool:
        """Whether its time is a number, and not a timestamp."""
        return self.compiled.binding.time_columns[self.time].is_integer()

    @property
    def prepared(self) -> dict[str, pl.DataType]:
        """The columns that kernels read, with their types; `compiled.binding.sql` says how Spark makes them."""
        binding = self.compiled.binding
        types: dict[str, pl.DataType] = {}
        for name in binding.sql:
            kind, _, rest = name.partition(":")
            if kind == "time":
                types[name] = pl.Int64()
            elif kind == "filter":
                types[name] = pl.Boolean()
            elif kind == "input":
                types[name] = binding.inputs[rest]
            elif kind == "key":
                types[name] = binding.keys[rest]
            elif kind == "order":
                types[name] = binding.place[rest]
            else:
                types[name] = binding.needed[rest]
        return types


@lru_cache(maxsize=64)
def _compiled(job: Job) -> CompiledPlan:
    rates = Rates(job.rates[0], dict(job.rates[1])) if job.rates else None
    apart: dict[str, Any] = {"pushed": job.pushed, "counted": dict(job.counted), "refined": job.refined}
    planned = plan(job.entries, job.time, rates, kinds_apart=True, **apart)
    return compile_plan(planned, dict(job.columns), job.order_by, job.time_columns)


def job_of(
    queries: Iterable[Query | Entry],
    time: str,
    columns: Mapping[str, pl.DataType],
    *,
    lateness: Lengths = 0,
    updates: Lengths = None,
    order_by: Sequence[str] = (),
    bad_events: str = "raise",
    rates: Rates | None = None,
    ties: bool = True,
    joins: bool = False,
    pushed: Iterable[str] = (),
    counted: Mapping[str, str] | None = None,
    refined: Iterable[str] = (),
) -> Job:
    """A job over events that have no arrival: with `ties`, those in time are broken by every column that is read.

    Without `joins`, windows that are joined from those of several nodes are refused: events of one key are then in
    several places.
    """
    entries = tuple(one if isinstance(one, Entry) else Entry(one) for one in queries)
    for query in () if joins else [entry.query for entry in entries]:
        if scope_of(query.window) in JOINED:
            raise QueryError(
                f"query {query.name!r}: {query.window} is not answered on Spark, where no place sees the windows of "
                "all nodes; ask with scope='node' and put its rows together, or use an engine or a tree of nodes"
            )
    planned = plan(entries, time, rates, kinds_apart=True)
    time_columns = time_columns_of(planned.time_columns, time, lateness, updates)
    job = Job(
        entries,
        time,
        tuple(columns.items()),
        tuple(order_by),
        tuple((name, one.lateness, one.updates, one.temporal) for name, one in time_columns.items()),
        bad_events,
        (rates.events, tuple(rates.keys.items())) if rates else None,
        tuple(pushed),
        tuple((counted or {}).items()),
        tuple(refined),
        own_classes(entry.query for entry in entries),
    )
    if not ties:
        return job
    needed = job.compiled.binding.needed
    known = {*order_by, *([time] if planned.time_columns == [time] else [])}
    others = sorted(name for name, dtype in needed.items() if not dtype.is_nested() and name not in known)
    return replace(job, order_by=(*order_by, *others))


def own_classes(queries: Iterable[Query]) -> tuple[type, ...]:
    """The classes of windows and monoids that are not ours."""
    found: dict[type, None] = {}
    for query in queries:
        found[type(query.window)] = None
        for asked in query.computed:
            for one in _parts(asked):
                if one.function in MONOIDS:
                    found[MONOIDS[one.function]] = None
    return tuple(
        kind for kind in found if kind.__module__ not in ("windrow.core.windows.fixed", "windrow.core.windows.ordered")
    )


def _parts(asked: Aggregate) -> Iterable[Aggregate]:
    yield asked
    for part in asked.parts:
        yield from _parts(part)


def time_names(job: Job) -> list[str]:
    return [time_name(name) for name in job.compiled.binding.time_columns]
