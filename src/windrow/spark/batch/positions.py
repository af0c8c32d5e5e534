"""Counting windows over all events, without a shuffle of the events.

The position of an event among all is computed only where it matters: in the few cells of time that hold a cut.

    events ── aggregate by cell of time ──▶ running totals ──▶ cells without a cut: each lies in one slice ──┐
    events in the cells that a window's edge cuts ── numbered within the cell, in order ────────────────────┴──▶ slices

Then positions are a time column like any other: counting(n, step) is sliding(n, step) over it, sliced and assembled as
that, and the first and the last time of a window's events are two more aggregates. What the JVM cannot aggregate by
cell, such as quantiles, is answered from the events: those of a cell without a cut all get the position of its first,
which lies in the same slice as theirs.

Cells lie around the time of whichever event Spark reads first, so that no pass has to find the bounds. If a cell holds
many of the events, that event was far from them; then finer ones are laid around the first event in it, in a second
pass. Cells are computed at once, when `windows` is called; what is left, the events around the cuts, is a plan like any
other. If windows are so short that most cells hold a cut, most events are shuffled, by cell.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from windrow.core.aggregates.functions import count, max, min
from windrow.core.arrays.dataframes import InputError
from windrow.core.arrays.range_queries import Ints
from windrow.core.plan.groups import ROWS, Entry
from windrow.core.plan.options import StreamOptions
from windrow.core.query.query import Query
from windrow.core.slices.binding import no_time, quoted
from windrow.core.slices.kernel import filter_name, time_name
from windrow.core.slices.table import SliceSchema, merge
from windrow.core.stream.job import Job
from windrow.core.windows.fixed import FURTHEST, INT64_MIN, Grid, Sliding
from windrow.core.windows.ordered import Counting
from windrow.spark import payloads
from windrow.spark.batch.jvm_slicing import (
    POSITION,
    Cut,
    cut_of,
    jvm_types,
    lifted,
    prepared,
    slice_table,
    slices,
    without_contained,
)
from windrow.spark.batch.time_cells import NOWHERE, Cells
from windrow.spark.types import struct, typed

MILLISECOND = 10  # bits: 1,024 microseconds
NAMED_CELLS = 64  # cells that are named one by one
CROWD, SHARE = 100_000, 8  # so many events in a cell, and one in so many of all, are worth another pass
TIME, FIRST, LAST, SIZE = (f"windrow {name}" for name in ("time", "first", "last", "size"))
_CELL, _BEFORE = "windrow cell", "windrow before"


def in_positions(job: Job, bare: bool = False) -> Job:
    """The job with positions for times; its results also have how many events a window holds, and their first and last.

    bare:  they have nothing else
    """
    entries = []
    for entry in job.entries:
        window = entry.query.window
        assert isinstance(window, Counting)
        bounds = (count().alias(SIZE), min(quoted(TIME)).alias(FIRST), max(quoted(TIME)).alias(LAST))
        slides = Sliding(window.n, window.step, 0, False)
        query = Query(entry.query.name, slides, bounds)
        if not bare:
            query = Query(query.name, slides, (*entry.query.aggregates, *bounds), having=entry.query.having)
        entries.append(Entry(query))
    columns = (*job.columns, (POSITION, pl.Int64()), (TIME, pl.Int64()))
    options = StreamOptions(POSITION, order_by=(TIME, *job.options.order_by), bad_events=job.options.bad_events)
    return replace(job, entries=tuple(entries), options=options, columns=columns)


def cut_in_positions(job: Job) -> Cut | str:
    """How positions are cut, for a job in positions."""
    (group,) = job.compiled.plan.groups
    return cut_of(group.timelines, None, time_name(POSITION))


def counted(df: DataFrame, job: Job, buckets: int) -> tuple[DataFrame, Job]:
    """Payloads of slices between positions, and the job that they belong to; the JVM aggregates events by cell."""
    inner = in_positions(job)
    (group,) = inner.compiled.plan.groups
    cut = cut_in_positions(inner)
    assert isinstance(cut, Cut)

    def sliced(events: DataFrame) -> DataFrame:
        return slices(prepared(events, inner), inner, group, cut, group.needs(shared=True)[1], buckets)

    events = _seen(df, job)
    cells = _cell_table(events, job, inner)
    schema = inner.compiled.by_name[group.name].shared_schema
    whole = cells.table.with_columns(pl.Series("slice_start", cells.start)).filter(pl.Series(~cells.is_cut))
    ready = payloads.packed({group.name: merge([whole], schema)}, inner.compiled, buckets)
    rows = df.sparkSession.createDataFrame(pa.Table.from_batches(ready, payloads.SCHEMA), payloads.COLUMNS)
    near = _near(events, job, cells)
    return rows if near is None else rows.union(sliced(near)), inner


def numbered(df: DataFrame, job: Job) -> tuple[DataFrame, Job]:
    """Events with positions, which lie in the same slices as their own, and the job over them."""
    inner, events = in_positions(job), _seen(df, job)
    columns = [quoted(name) for name, _ in inner.columns]
    cells = _cell_table(events, job, in_positions(job, bare=True))
    uncut = pa.table({_CELL: cells.table["slice_start"].to_numpy(), POSITION: cells.before}).filter(~cells.is_cut)
    first_positions = F.broadcast(df.sparkSession.createDataFrame(uncut))
    far = cells.layout.placed(events, TIME, _CELL).join(first_positions, _CELL).select(*columns)
    near = _near(events, job, cells)
    return far if near is None else far.union(near.select(*columns)), inner


def _cell_table(events: DataFrame, job: Job, inner: Job) -> CellTable:
    """The cells of all events with the states of a job in positions."""
    (group,) = inner.compiled.plan.groups
    dtype = dict(job.columns)[job.compiled.plan.groups[0].source.time]
    schema = inner.compiled.by_name[group.name].shared_schema
    grids = without_contained(
        grid for window, *_ in group.timelines if isinstance(window, Sliding) for grid in window.grids()
    )

    def laid_out(layout: Cells) -> CellTable:
        table = _in_cells(prepared(layout.placed(events, TIME, POSITION), inner), job, schema)
        return CellTable.of(layout, table, schema, grids)

    cells = laid_out(Cells(_origin(events, job), MILLISECOND if isinstance(dtype, pl.Datetime) else 0))
    crowd = cells.crowd()
    return cells if crowd is None else laid_out(Cells(crowd, 0))


def _near(events: DataFrame, job: Job, cells: CellTable) -> DataFrame | None:
    """The events of the cells that hold a cut, with their positions; None if no cell does."""
    if not cells.is_cut.any():
        return None
    number = cells.table["slice_start"].to_numpy()
    near = _within(events, job, cells.layout, number[cells.is_cut], cells.before[cells.is_cut])
    order = [F.col(quoted(name)).asc_nulls_first() for name in (TIME, *job.options.order_by)]
    within = F.row_number().over(Window.partitionBy(quoted(_BEFORE)).orderBy(*order))
    return near.withColumn(POSITION, F.col(quoted(_BEFORE)) + within - 1)


@dataclass(frozen=True)
class CellTable:
    """Cells in the order of time, and where they lie among all events."""

    layout: Cells
    table: pl.DataFrame  # of slices that are cells
    size: Ints  # how many events each cell has
    first: Ints  # the time of its first event
    last: Ints
    before: Ints  # how many events lie before it: the position of its first one
    start: Ints  # of the slice that its first event lies in
    is_cut: npt.NDArray[np.bool_]  # whether its last event lies in another slice

    @staticmethod
    def of(layout: Cells, table: pl.DataFrame, schema: SliceSchema, grids: list[Grid]) -> CellTable:
        size, first, last = (table[name].to_numpy() for name in _sizes_and_times(schema))
        before = np.cumsum(size) - size
        start, end = (_edge(at, grids) for at in (before, before + size - 1))
        return CellTable(layout, table, size, first, last, before, start, start != end)

    def crowd(self) -> int | None:
        """The first time in a cell that holds a cut and many of the events, at several times; None if none does."""
        size = np.where(self.is_cut & (self.last > self.first), self.size, 0)
        at = int(np.argmax(size)) if len(size) else 0
        many = len(size) and size[at] >= CROWD and size[at] * SHARE >= self.size.sum()
        return int(self.first[at]) if many else None


def _sizes_and_times(schema: SliceSchema) -> list[str]:
    """The columns of a slice table that say how many events there are, and the least and greatest of their times."""
    texts = (ROWS.text, f"min({quoted(TIME)})", f"max({quoted(TIME)})")
    partials = {partial.text: partial for partial in schema.partials}
    return [next(iter(schema.names[partials[text]].values())) for text in texts]


def _in_cells(placed: DataFrame, job: Job, schema: SliceSchema) -> pl.DataFrame:
    """The states of cells, whose number is the position of their events, as a slice table."""
    lifts = lifted(schema.partials, schema)
    columns = [make().alias(name) for made in lifts.values() for name, make in made.columns.items()]
    aggregated = placed.groupBy(F.col(quoted(time_name(POSITION))).alias("slice_start")).agg(*columns).toArrow()
    frame = typed(aggregated, jvm_types(schema, lifts))
    has_time = frame["slice_start"] != NOWHERE
    table = slice_table(frame.filter(has_time), schema, lifts).sort("slice_start")
    rows, first, last = _sizes_and_times(schema)
    time_column = job.compiled.plan.groups[0].source.time
    if not has_time.all():
        total = int(frame[rows].sum())
        raise no_time(total - int(table[rows].sum()), total, time_column)
    for time in (*table[first].bottom_k(1), *table[last].top_k(1)):
        _refuse_far(time, time_column)
    return table


def _edge(position: Ints, grids: list[Grid]) -> Ints:
    """The last edge at or before each position."""
    edge = np.full(len(position), INT64_MIN)
    for grid in grids:
        np.maximum(edge, grid.at_or_before(position), out=edge)
    return edge


def _seen(df: DataFrame, job: Job) -> DataFrame:
    """The events that the windows see, with their time in whole units; those without one too, unless dropped."""
    (group,) = job.compiled.plan.groups
    sql = job.compiled.binding.sql
    events = df.withColumn(TIME, F.expr(sql[time_name(group.source.time)]))
    if job.options.bad_events == "drop":
        events = events.where(f"{quoted(TIME)} IS NOT NULL")
    if group.source.where is None:
        return events
    return events.where(f"({sql[filter_name(group.source.where.text)]}) OR {quoted(TIME)} IS NULL")


def _origin(events: DataFrame, job: Job) -> int:
    """The time of any event."""
    row = events.select(quoted(TIME)).where(f"{quoted(TIME)} IS NOT NULL").head()
    time = 0 if row is None else int(row[0])
    _refuse_far(time, job.compiled.plan.groups[0].source.time)
    return time


def _refuse_far(time: int, time_column: str) -> None:
    if not -FURTHEST < time < FURTHEST:
        raise InputError(f"{time_column!r} is {time} in an event, too far out for any window")


def _within(events: DataFrame, job: Job, cells: Cells, cut: Ints, before: Ints) -> DataFrame:
    """The events of the cells that hold a cut, with how many events lie before their cell.

    Where cells are few they are named, so that files without any of their events are not read.
    """
    if len(cut) > NAMED_CELLS:
        cut_cells = events.sparkSession.createDataFrame(pa.table({_CELL: cut, _BEFORE: before}))
        return cells.placed(events, TIME, _CELL).join(F.broadcast(cut_cells), _CELL)
    time_column = job.compiled.plan.groups[0].source.time
    dtype = dict(job.columns)[time_column]
    zoned = isinstance(dtype, pl.Datetime) and dtype.time_zone is not None
    column, moment = (quoted(time_column), "TIMESTAMP_MICROS({}L)") if zoned else (quoted(TIME), "{}L")
    ranges, numbers = [], []
    for cell, position in zip(cut.tolist(), before.tolist(), strict=True):
        begin, end = cells.bounds(cell)
        ranges.append(f"({column} >= {moment.format(begin)} AND {column} < {moment.format(end)})")
        numbers.append(f"WHEN {quoted(TIME)} < {end}L THEN {position}L")
    named = events.where(" OR ".join(ranges))
    return named.withColumn(_BEFORE, F.expr(f"CASE {' '.join(numbers)} END"))


def with_bounds(results: DataFrame, job: Job, partial: bool) -> DataFrame:
    """Results in positions as those of counting windows: bounds are times of events, windows begin at an event."""
    types = struct(job.compiled.results.empty.schema)
    lengths = {
        entry.query.name: entry.query.window.n for entry in job.entries if isinstance(entry.query.window, Counting)
    }
    kept = results.where("window_start >= 0")
    if not partial:
        full = F.element_at(F.create_map(*(F.lit(value) for pair in lengths.items() for value in pair)), F.col("query"))
        kept = kept.where(F.col(quoted(SIZE)) == full)
    kind = types["window_start"].dataType.typeName()
    columns = {name: F.col(quoted(name)) for name in results.columns if name in types.names}
    columns["position"] = F.col("window_start").cast(types["position"].dataType)
    columns["window_start"], columns["window_end"] = _bound(FIRST, kind), _bound(LAST, kind)
    for (name, column), numbers in job.compiled.results.named.items():
        is_so = F.col("query").isin([job.entries[number].query.name for number in numbers])
        columns[name] = F.when(is_so, columns[column]).otherwise(columns.get(name, F.lit(None)))
    return kept.select(*(columns[name].alias(name) for name in types.names))


def _bound(name: str, kind: str) -> Column:
    column = quoted(name)
    if kind == "timestamp":
        return F.expr(f"TIMESTAMP_MICROS({column})")
    if kind == "timestamp_ntz":
        seconds = f"CAST(CAST({column} AS DECIMAL(20, 0)) * 0.000001BD AS DECIMAL(18, 6))"
        return F.expr(f"TIMESTAMP_NTZ'1970-01-01 00:00:00' + MAKE_DT_INTERVAL(0, 0, 0, {seconds})")
    return F.expr(column)
