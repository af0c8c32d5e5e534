"""Counting windows over all events, without a shuffle of the events.

Where an event stands among all is only asked where it matters: in the few cells of time that hold a cut.

    events ── aggregate by cell of time ──▶ running totals ──▶ cells without a cut: each lies in one slice ──┐
    events in the cells that a window's edge cuts ── numbered within the cell, in order ────────────────────┴──▶ slices

Then positions are a measure like any other: counting(n, step) is sliding(n, step) over it, sliced and assembled as
that, and the first and the last time of a window's events are two more aggregates. A cell is a 16,384th of the time
between the first and the last event. The least and the greatest time and the cells are computed at once, when `windows`
is called, in two passes; what is left, the events around the cuts, is a plan like any other. If windows are so short
that most cells hold a cut, most events are shuffled, by cell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from windrow.aggregates import count, max, min
from windrow.binding import InputError, no_time, quoted
from windrow.groups import ROWS, Entry, Held
from windrow.jobs import Job
from windrow.ordered import Counting
from windrow.query import Query
from windrow.ranges import Ints
from windrow.slices import SliceSchema, merge
from windrow.slicing import filter_column, time_column
from windrow.spark import payloads
from windrow.spark.slicing import POSITION, Cut, cut_of, jvm_types, lifted, settled, slices, without_contained
from windrow.spark.types import from_arrow, struct
from windrow.windows import FURTHEST, INT64_MIN, Grid, Sliding

CELLS = 16_384
FEW = 64  # stretches of time that are named one by one
TIME, FIRST, LAST, SIZE = (f"windrow {name}" for name in ("time", "first", "last", "size"))
_CELL, _BEFORE = "windrow cell", "windrow before"

Prepare = Callable[[DataFrame, Job], DataFrame]


def in_positions(job: Job) -> Job:
    """The job with positions for times; its results say how many events a window holds, and their first and last."""
    entries = []
    for entry in job.entries:
        window = entry.query.window
        assert isinstance(window, Counting)
        asked = (*entry.query.aggregates, count().alias(SIZE), min(quoted(TIME)).alias(FIRST))
        asked = (*asked, max(quoted(TIME)).alias(LAST))
        slides = Sliding(window.n, window.step, 0, False)
        entries.append(Entry(Query(entry.query.name, slides, asked, having=entry.query.having)))
    columns = (*job.columns, (POSITION, pl.Int64()), (TIME, pl.Int64()))
    lengths = ((POSITION, 0, 0, None),)
    return replace(job, entries=tuple(entries), time=POSITION, columns=columns, lengths=lengths, own=())


def cut_in_positions(job: Job) -> Cut | str:
    """How positions are cut, for a job in positions."""
    (group,) = job.bound.plan.groups
    return cut_of(group.timelines, None, time_column(POSITION))


def counted(df: DataFrame, job: Job, buckets: int, prepare: Prepare) -> tuple[DataFrame, Job]:
    """Payloads of slices between positions, and the job that they belong to."""
    inner = in_positions(job)
    (group,) = inner.bound.plan.groups
    cut = cut_in_positions(inner)
    assert isinstance(cut, Cut)

    def sliced(events: DataFrame) -> DataFrame:
        return slices(prepare(events, inner), inner, group, cut, group.needs(shared=True)[1], buckets)

    events = _seen(df, job)
    bounds = _bounds(events, job)
    if bounds is None:
        return sliced(events.where("FALSE").withColumn(POSITION, F.lit(0))), inner
    low, width = bounds
    cell = F.expr(f"CAST(({quoted(TIME)} - {low}L) DIV {width}L AS INT)")
    schema = inner.bound.binding.schema(group, shared=True)
    placed = prepare(events.where(f"{quoted(TIME)} IS NOT NULL").withColumn(POSITION, cell), inner)
    table = _in_cells(placed, schema)
    sizes = table[schema.names[Held(ROWS, None)]["count"]].to_numpy()
    cells, before = table["slice_start"].to_numpy(), np.cumsum(sizes) - sizes
    grids = [grid for window, *_ in group.timelines if isinstance(window, Sliding) for grid in window.grids()]
    start, end = (_edge(at, without_contained(grids)) for at in (before, before + sizes - 1))
    is_cut = start != end
    whole = table.with_columns(pl.Series("slice_start", start)).filter(pl.Series(~is_cut))
    ready = payloads.rows(payloads.split({group.name: merge([whole], schema)}, inner.bound, buckets), {})
    rows = df.sparkSession.createDataFrame(pa.Table.from_batches(ready, payloads.SCHEMA), payloads.ROW)
    if not is_cut.any():
        return rows, inner
    known = pa.table({_CELL: cells[is_cut].astype(np.int32), _BEFORE: before[is_cut]})
    near = _within(events, job, low + cells[is_cut] * width, width).withColumn(_CELL, cell)
    split = near.join(F.broadcast(df.sparkSession.createDataFrame(known)), _CELL)
    order = [F.col(quoted(name)).asc_nulls_first() for name in (TIME, *job.order_by)]
    number = F.row_number().over(Window.partitionBy(quoted(_BEFORE)).orderBy(*order))
    return rows.union(sliced(split.withColumn(POSITION, F.col(quoted(_BEFORE)) + number - 1))), inner


def _in_cells(placed: DataFrame, schema: SliceSchema) -> pl.DataFrame:
    """The states of cells, whose number is the position of their events, as a slice table."""
    position = time_column(POSITION)
    lifts = lifted(schema.held, schema, position)
    columns = [make().alias(name) for one in lifts.values() for name, make in one.columns.items()]
    found = placed.groupBy(F.col(quoted(position)).cast("bigint").alias("slice_start")).agg(*columns).toArrow()
    return settled(from_arrow(found.to_batches(), jvm_types(schema, lifts)), schema, lifts).sort("slice_start")


def _edge(position: Ints, grids: list[Grid]) -> Ints:
    """The last edge at or before each position."""
    found = np.full(len(position), INT64_MIN)
    for period, phase in grids:
        np.maximum(found, position - (position - phase) % period, out=found)
    return found


def _seen(df: DataFrame, job: Job) -> DataFrame:
    """The events that the windows see, with their time in whole units; those without a time too."""
    (group,) = job.bound.plan.groups
    sql = job.bound.binding.sql
    events = df.withColumn(TIME, F.expr(sql[time_column(group.source.measure)]))
    if group.source.where is None:
        return events
    return events.where(f"({sql[filter_column(group.source.where.text)]}) OR {quoted(TIME)} IS NULL")


def _bounds(events: DataFrame, job: Job) -> tuple[int, int] | None:
    """The least time, and the width of a cell; None if there are no events. Reads times alone."""
    measure = job.bound.plan.groups[0].source.measure
    t = quoted(TIME)
    said = events.agg(*(F.expr(text) for text in (f"MIN({t})", f"MAX({t})", f"COUNT({t})", "COUNT(1)"))).collect()
    low, high, size, total = said[0]
    if size < total and job.bad_events == "raise":
        raise no_time(total - size, total, measure)
    if not size:
        return None
    if low <= -FURTHEST or high >= FURTHEST:
        raise InputError(f"{measure!r} is {low if low <= -FURTHEST else high} in an event, too far out for any window")
    return low, (high - low) // CELLS + 1


def _within(events: DataFrame, job: Job, begin: Ints, width: int) -> DataFrame:
    """The events around cells that hold a cut: where they are few, said so that files without any are not read."""
    apart = np.append(True, np.diff(begin) > width)
    first, last = begin[apart], begin[np.append(apart[1:], True)]
    if len(first) > FEW:
        return events
    measure = job.bound.plan.groups[0].source.measure
    dtype = dict(job.columns)[measure]
    zoned = isinstance(dtype, pl.Datetime) and dtype.time_zone is not None
    column, moment = (quoted(measure), "TIMESTAMP_MICROS({}L)") if zoned else (quoted(TIME), "{}L")
    ranges = [
        f"({column} >= {moment.format(a)} AND {column} < {moment.format(b + width)})"
        for a, b in zip(first.tolist(), last.tolist(), strict=True)
    ]
    return events.where(" OR ".join(ranges))


def with_bounds(results: DataFrame, job: Job, partial: bool) -> DataFrame:
    """Results in positions as those of counting windows: bounds are times of events, windows begin at an event."""
    types = struct(job.bound.results.empty.schema)
    lengths = {
        entry.query.name: entry.query.window.n for entry in job.entries if isinstance(entry.query.window, Counting)
    }
    kept = results.where("window_start >= 0")
    if not partial:
        full = F.element_at(F.create_map(*(F.lit(one) for pair in lengths.items() for one in pair)), F.col("query"))
        kept = kept.where(F.col(quoted(SIZE)) == full)
    columns = []
    for name in types.names:
        kind = types[name].dataType
        if name == "position":
            column = F.col("window_start").cast(kind)
        elif name in ("window_start", "window_end"):
            column = _bound(FIRST if name == "window_start" else LAST, kind.typeName())
        else:
            column = F.col(quoted(name))
        columns.append(column.alias(name))
    return kept.select(*columns)


def _bound(name: str, kind: str) -> Column:
    column = quoted(name)
    if kind == "timestamp":
        return F.expr(f"TIMESTAMP_MICROS({column})")
    if kind == "timestamp_ntz":
        seconds = f"CAST(CAST({column} AS DECIMAL(20, 0)) * 0.000001BD AS DECIMAL(18, 6))"
        return F.expr(f"TIMESTAMP_NTZ'1970-01-01 00:00:00' + MAKE_DT_INTERVAL(0, 0, 0, {seconds})")
    return F.expr(column)
