"""Slicing in the JVM: `groupBy(keys, slice).agg(lifts)`, so that no event reaches Python.

    events ── slice start, cell ──▶ groupBy … agg ── shuffled by (key, slice) ──▶ pack ──▶ payloads
                                    combined where events are read            tables, rolled up

The slice start of an event is the greatest of its windows' own last edges at or before it, each `t - pmod(t - phase,
period)`. Sessions group by cells as wide as their smallest gap too, and `merge` joins neighbouring cells. The pack step
sees slices alone: it gives them the columns of a slice table, rolls them up for groups with fewer keys, and puts the
tables of each bucket into a row. A key that has all events is no trouble, because they are shuffled by (key, slice).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

import polars as pl
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from windrow.core.arrays.dataframes import InputError, in_parts
from windrow.core.plan.groups import Group, Partial, Timeline
from windrow.core.slices.binding import no_time, quoted
from windrow.core.slices.kernel import filter_name, time_name
from windrow.core.slices.table import SliceSchema, merge
from windrow.core.stream.job import Job, time_names
from windrow.core.stream.job_slicer import SLICES_AT_ONCE, Gathered, Slicer
from windrow.core.windows.fixed import FURTHEST, INT64_MAX, INT64_MIN, FixedWindow, Grid, Session
from windrow.spark import payloads
from windrow.spark.batch.jvm_operators import Lifted, lift
from windrow.spark.pickling import mapped
from windrow.spark.types import from_arrow

MOST_GRIDS = 32  # whose last edges are computed for every event
FINER = 8  # so many times the edges that are needed are no trouble
POSITION = "windrow position"  # the time column of counting windows, once events are numbered

Batches = Iterator[pa.RecordBatch]


def prepared(df: DataFrame, job: Job) -> DataFrame:
    """The columns that kernels read, made by Spark; with `bad_events="drop"` bad events are left out."""
    binding = job.compiled.binding
    drops = job.options.bad_events == "drop"
    if drops and binding.bad_sql:
        df = df.where(f"NOT ({' OR '.join(binding.bad_sql)})")
    chosen = df.selectExpr(*(f"{text} AS {quoted(name)}" for name, text in binding.sql.items()))
    have_times = " AND ".join(f"{quoted(name)} IS NOT NULL" for name in time_names(job))
    return chosen.where(have_times) if drops else chosen


@dataclass(frozen=True)
class Cut:
    """How events are cut, as SQL: the slice start, null for an event that has no place; the cell, for sessions."""

    start: str
    cell: str | None
    exact: bool  # whether slices are cut at edges alone
    why: str


def cut_of(timelines: Iterable[Timeline], gap: int | None, time: str) -> Cut | str:
    """How the events of a group are cut, or why Catalyst cannot."""
    grids: set[Grid] = set()
    for timeline in timelines:
        if timeline.since != INT64_MIN or timeline.until != INT64_MAX:
            return "queries that come and go cut where they do"
        if isinstance(timeline.window, FixedWindow):
            grids |= timeline.window.grids()
        elif not isinstance(timeline.window, Session):
            return f"the edges of {timeline.window} lie on no grid"
    t = quoted(time)
    cell = f"{t} - PMOD({t}, {gap}L)" if gap else None
    kept = without_contained(grids)
    if not kept:
        never = f"CAST('{INT64_MIN}' AS BIGINT)"
        return Cut(f"CASE WHEN {t} IS NOT NULL THEN {never} END", cell, True, "cells of the smallest session gap")
    shown, exact = f"{len(kept)} grid{'s' if len(kept) > 1 else ''} of edges", True
    if len(kept) > MOST_GRIDS:
        common = gcd(*(period for period, _ in kept), *(phase - kept[0].phase for _, phase in kept))
        if 1 / common > FINER * sum(1 / period for period, _ in kept):
            return f"its edges lie on {len(kept)} grids, too many to compute for every event"
        shown, exact = f"a grid of {common} that holds all edges of {len(kept)} grids", False
        kept = [Grid(common, kept[0].phase % common)]
    starts = [f"{t} - PMOD({t}{f' - {phase}L' if phase else ''}, {period}L)" for period, phase in kept]
    return Cut(starts[0] if len(starts) == 1 else f"GREATEST({', '.join(starts)})", cell, exact, shown)


def without_contained(grids: Iterable[Grid]) -> list[Grid]:
    """Grids without those whose edges another one has too."""
    kept: list[Grid] = []
    for grid in sorted(set(grids)):
        if not any(grid.period % fine.period == 0 and (grid.phase - fine.phase) % fine.period == 0 for fine in kept):
            kept.append(grid)
    return kept


def lifted(partials: Iterable[Partial], schema: SliceSchema) -> dict[Partial, Lifted]:
    """The lifts of operators that can be lifted."""
    lifts = {partial: lift(partial, schema) for partial in partials}
    return {partial: made for partial, made in lifts.items() if isinstance(made, Lifted)}


def reach_of(job: Job, time_column: str) -> int | None:
    """How far out a time may be so that every window around it can be written.

    None for timestamps and positions, which are never so far out.
    """
    furthest = job.compiled.plan.furthest.get(time_column)
    if furthest is None or time_column == POSITION or not job.compiled.binding.time_columns[time_column].is_integer():
        return None
    column = job.time_columns[time_column]
    return max(0, FURTHEST - furthest.window.reach - (column.lateness or 0) - column.updates)


def placed(events: DataFrame, job: Job, group: Group, cut: Cut) -> DataFrame:
    """The events that a group sees with their slice start and cell; those without a place have no slice start."""
    time = time_name(group.source.time)
    start = cut.start
    if (reach := reach_of(job, group.source.time)) is not None:
        start = f"CASE WHEN {quoted(time)} BETWEEN -{reach}L AND {reach}L THEN {start} END"
    bad = " OR ".join(f"{quoted(name)} IS NULL" for name in time_names(job))
    if len(time_names(job)) > 1:
        start = f"CASE WHEN NOT ({bad}) THEN {start} END"
    columns = [F.expr(start).alias("slice_start")]
    if cut.cell is not None:
        # a time without a place has no cell either: beyond every window, its cell could not be written
        columns.append(F.expr(f"CASE WHEN {start} IS NOT NULL THEN {cut.cell} END").alias("cell"))
    in_slices = events.select("*", *columns)
    if group.source.where is None:
        return in_slices
    return in_slices.where(f"{quoted(filter_name(group.source.where.text))} OR slice_start IS NULL")


def slices(events: DataFrame, job: Job, group: Group, cut: Cut, partials: Sequence[Partial], buckets: int) -> DataFrame:
    """Payloads of a group's slices, and of those that are rolled up from it, with the states of these operators."""
    schema = job.compiled.by_name[group.name].shared_schema
    grouped = placed(events, job, group, cut).groupBy(*by_slice(schema, cut)).agg(*aggregates(job, group, partials))
    name, states = group.name, tuple(partials)

    def pack(batches: Batches) -> Batches:
        packing = Packing(job, name, states, cut.exact)
        for part in in_parts(batches, SLICES_AT_ONCE):
            packing.add(part)
        yield from packing.rows(buckets)

    return mapped(grouped, pack, payloads.COLUMNS)


def aggregates(job: Job, group: Group, partials: Sequence[Partial]) -> list[Column]:
    """What the JVM computes of a slice: states, the times that sessions need, and what `refuse_misplaced` looks at."""
    schema = job.compiled.by_name[group.name].shared_schema
    time = time_name(group.source.time)
    lifts = lifted(partials, schema).values()
    states = [make().alias(name) for made in lifts for name, make in made.columns.items()]
    return [*states, *_checks(job, group), *run_times(schema, time)]


def by_slice(schema: SliceSchema, cut: Cut) -> list[Column]:
    cells = ["cell"] if cut.cell is not None else []
    return [F.col(quoted(name)) for name in (*schema.keys, "slice_start", *cells)]


def run_times(schema: SliceSchema, time: str) -> list[Column]:
    """The times of the first and the last event, where sessions need them."""
    if not schema.has_runs:
        return []
    return [F.min(quoted(time)).alias("first"), F.max(quoted(time)).alias("last")]


def _checks(job: Job, group: Group) -> list[Column]:
    """What `refuse_misplaced` reports of events without a place: how many, without which time, how far out."""
    checks = [F.count("*").alias("events")]
    if len(time_names(job)) > 1:
        checks += [F.expr(f"COUNT({quoted(name)})").alias(f"has {name}") for name in time_names(job)]
    if reach_of(job, group.source.time) is not None:
        time = quoted(time_name(group.source.time))
        checks += [F.expr(f"MIN({time})").alias("low"), F.expr(f"MAX({time})").alias("high")]
    return checks


def refuse_misplaced(frame: pl.DataFrame, job: Job, time_column: str) -> None:
    """Refuse events that have no time, or one so far out that windows around it cannot be written."""
    misplaced = frame.filter(pl.col("slice_start").is_null())
    if not misplaced.height:
        return
    for name in time_names(job):
        lost = pl.col("events")
        if f"has {name}" in frame.columns:
            lost = lost - pl.col(f"has {name}")
        elif "low" in frame.columns:
            lost = lost.filter(pl.col("low").is_null())
        if missing := misplaced.select(lost.sum()).item():
            raise no_time(missing, int(frame["events"].sum()), name.removeprefix("time:"))
    furthest, reach = job.compiled.plan.furthest[time_column], reach_of(job, time_column)
    low, high = int(misplaced["low"].min()), int(misplaced["high"].max())  # type: ignore[arg-type]
    assert reach is not None
    raise InputError(
        f"query {furthest.name!r}: {time_column!r} is {low if low < -reach else high} in this batch, "
        f"so far out that {furthest.window} around it cannot be written in 64 bits"
    )


class Packing:
    """Turns rows of the JVM, a slice or a part of one each, into payloads.

    Rows are rolled up, unless they are the slices of the one group that has them: cut at its edges and nowhere else.
    """

    def __init__(self, job: Job, name: str, partials: tuple[Partial, ...], exact: bool) -> None:
        self._job, self._slicer = job, Slicer(job.compiled)
        compiled = job.compiled.by_name[name]
        self._group, self._schema = compiled.group, compiled.shared_schema
        self._lifts = lifted(partials, self._schema)
        self._types = jvm_types(self._schema, self._lifts)
        self._as_they_are = exact and not self._group.children
        self._gathered = Gathered(job.compiled)

    def add(self, batches: Iterable[pa.RecordBatch], parts: bool = False) -> None:
        """Take rows in, of which with `parts` several may be of one slice."""
        frame = from_arrow(batches, self._types)
        refuse_misplaced(frame, self._job, self._group.source.time)
        table = slice_table(frame, self._schema, self._lifts)
        table = merge([table], self._schema) if parts else table
        self._gathered.add({self._group.name: table} if self._as_they_are else self._slicer.spread(self._group, table))

    def rows(self, buckets: int) -> Batches:
        yield from payloads.packed(self._gathered.tables(), self._job.compiled, buckets)


def jvm_types(schema: SliceSchema, lifts: Mapping[Partial, Lifted]) -> dict[str, pl.DataType]:
    """The types of the JVM's columns that are already those of a slice table."""
    columns = [column for made in lifts.values() for column in made.columns if column in schema.columns]
    return {**schema.keys, **{column: schema.columns[column] for column in columns}}


def slice_table(frame: pl.DataFrame, schema: SliceSchema, lifts: dict[Partial, Lifted]) -> pl.DataFrame:
    """A slice table of the JVM's columns; states that it does not have are the identity."""
    states = [
        expression.cast(schema.columns[schema.names[partial][field]]).alias(schema.names[partial][field])
        for partial, made in lifts.items()
        for field, expression in made.fields.items()
    ]
    runs = ["first", "last"] if schema.has_runs else []
    table = schema.conform(frame.select(*schema.keys, "slice_start", *runs, *states))
    return merge([table], schema) if schema.has_runs else table
