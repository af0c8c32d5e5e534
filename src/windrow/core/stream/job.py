"""Jobs: what another process has to know of a plan, plain enough to be sent to it, and compiled there once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import Any

import polars as pl

from windrow.core.aggregates.functions import Aggregate
from windrow.core.expressions.errors import QueryError
from windrow.core.operators.custom import MONOIDS
from windrow.core.plan.groups import Entry, Placement, Rates
from windrow.core.plan.options import StreamOptions
from windrow.core.plan.plan import plan
from windrow.core.plan.watermark import TimeColumn
from windrow.core.query.query import Query
from windrow.core.slices.kernel import time_name
from windrow.core.stream.compiled import CompiledPlan, compile_plan
from windrow.core.windows.ordered import JOINED, scope_of


@dataclass(frozen=True)
class Job:
    """Queries over events with these columns; equal jobs are compiled once in a process."""

    entries: tuple[Entry, ...]
    options: StreamOptions
    columns: tuple[tuple[str, pl.DataType], ...]
    rates: Rates | None = field(default=None, hash=False)
    placements: tuple[tuple[str, Placement], ...] = ()  # of queries, by name, whose work is done elsewhere
    own: tuple[type, ...] = ()  # windows and monoids of the user's own: known to a worker once they are unpickled

    @property
    def time(self) -> str:
        """The time column that windows are measured on unless their query names another."""
        return self.options.time

    @property
    def time_columns(self) -> dict[str, TimeColumn]:
        """Fresh time columns, at the beginning."""
        return self.options.time_columns(self.compiled.plan.time_columns)

    @cached_property
    def compiled(self) -> CompiledPlan:
        """Its plan, compiled for its columns; once in a process for equal jobs."""
        return _compiled(self)

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to a worker, which compiles it itself."""
        return {field_.name: getattr(self, field_.name) for field_ in fields(self)}

    @property
    def is_integer(self) -> bool:
        """Whether its time is a number, and not a timestamp."""
        return self.compiled.binding.time_columns[self.time].is_integer()


@lru_cache(maxsize=64)
def _compiled(job: Job) -> CompiledPlan:
    planned = plan(job.entries, job.time, job.rates, kinds_apart=True, placements=dict(job.placements))
    time_columns = job.options.time_columns(planned.time_columns)
    return compile_plan(planned, dict(job.columns), job.options.order_by, time_columns)


def job_of(
    queries: Iterable[Query | Entry],
    options: StreamOptions,
    columns: Mapping[str, pl.DataType],
    *,
    rates: Rates | None = None,
    ties: bool = True,
    joins: bool = False,
    placements: Mapping[str, Placement] | None = None,
) -> Job:
    """A job over events that have no arrival: with `ties`, those in time are broken by every column that is read.

    Without `joins`, windows that are joined from those of several nodes are refused: events of one key are then in
    several places.
    """
    entries = tuple(query if isinstance(query, Entry) else Entry(query) for query in queries)
    for query in () if joins else [entry.query for entry in entries]:
        if scope_of(query.window) in JOINED:
            raise QueryError(
                f"query {query.name!r}: {query.window} is not answered on Spark, where no place sees the windows of "
                "all nodes; ask with scope='node' and put its rows together, or use an engine or a tree of nodes"
            )
    options.time_columns([options.time])  # refuses lengths that cannot be read
    job = Job(
        entries,
        options,
        tuple(columns.items()),
        rates,
        tuple((placements or {}).items()),
        own_classes(entry.query for entry in entries),
    )
    if not ties:
        return job
    compiled = job.compiled
    ordered = {*options.order_by, *([job.time] if compiled.plan.time_columns == [job.time] else [])}
    ties_of = compiled.binding.needed.items()
    others = sorted(name for name, dtype in ties_of if not dtype.is_nested() and name not in ordered)
    return replace(job, options=replace(options, order_by=(*options.order_by, *others)))


def own_classes(queries: Iterable[Query]) -> tuple[type, ...]:
    """The classes of windows and monoids that are not ours."""
    classes: dict[type, None] = {}
    for query in queries:
        classes[type(query.window)] = None
        for aggregate in query.computed:
            for part in _parts(aggregate):
                if part.function in MONOIDS:
                    classes[MONOIDS[part.function]] = None
    return tuple(
        kind
        for kind in classes
        if kind.__module__ not in ("windrow.core.windows.fixed", "windrow.core.windows.ordered")
    )


def _parts(aggregate: Aggregate) -> Iterable[Aggregate]:
    yield aggregate
    for part in aggregate.parts:
        yield from _parts(part)


def time_names(job: Job) -> list[str]:
    return [time_name(name) for name in job.compiled.binding.time_columns]
