"""Counting windows over all events, without a shuffle of the events.

Where an event stands among all is only asked where it matters: in the few cells of time that hold a cut.

    events ── count by cell of time ──▶ running totals ──▶ cells that a window's edge cuts, and those that none does
    events in cells without a cut ── all of the cell are in one slice ──┐
    events in cells with a cut ── numbered within the cell, in order ───┴──▶ slices between positions

Then positions are a measure like any other: counting(n, step) is sliding(n, step) over it, sliced and assembled as
that, and the first and the last time of a window's events are two more aggregates. A cell is a 16,384th of the time
between the first and the last event. The least and the greatest time and the counts are found at once, when `windows`
is called, in two passes that read times alone; then the slices are a plan like any other. If windows are so short that
most cells hold a cut, most events are shuffled, by cell.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import numpy as np
import polars as pl
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from windrow.aggregates import count, max, min
from windrow.binding import InputError, no_time, quoted
from windrow.ordered import Counting
from windrow.plan import Entry
from windrow.query import Query
from windrow.slicing import filter_column, time_column
from windrow.spark.jobs import Job
from windrow.spark.slicing import POSITION, Cut, cut_of, slices, without_contained
from windrow.spark.types import struct
from windrow.windows import FURTHEST, Grid, Sliding

CELLS = 16_384
FEW = 64  # stretches of time that are named one by one
TIME, FIRST, LAST, SIZE = (f"windrow {name}" for name in ("time", "first", "last", "size"))
_CELL = "windrow cell"

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
        entries.append(Entry(Query(entry.query.name, slides, asked)))
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
    grids = [grid for window, *_ in group.timelines if isinstance(window, Sliding) for grid in window.grids()]
    events = _seen(df, job)
    cells = _cells(events, job, without_contained(grids))
    t = quoted(TIME)
    cell = f"CAST(({t} - {cells.low}L) DIV {cells.width}L AS INT) + 1"
    start, before = (F.from_json(F.lit(json.dumps(part)), "array<bigint>") for part in (cells.start, cells.before))
    whole = events.withColumn(POSITION, F.get(start, F.expr(cell) - 1)).where(F.col(quoted(POSITION)).isNotNull())
    order = [F.col(quoted(name)).asc_nulls_first() for name in (TIME, *job.order_by)]
    number = F.row_number().over(Window.partitionBy(quoted(_CELL)).orderBy(*order))
    split = (
        _within(events, job, cells)
        .withColumn(_CELL, F.expr(cell))
        .where(F.get(start, F.col(quoted(_CELL)) - 1).isNull())
    )
    split = split.withColumn(POSITION, F.get(before, F.col(quoted(_CELL)) - 1) + number - 1)
    rows = [
        slices(prepare(part, inner), inner, group, cut, group.needs(shared=True)[1], buckets) for part in (whole, split)
    ]
    return reduce(DataFrame.union, rows), inner


def _seen(df: DataFrame, job: Job) -> DataFrame:
    """The events that the windows see, with their time in whole units; those without a time too."""
    (group,) = job.bound.plan.groups
    sql = job.bound.binding.sql
    events = df.withColumn(TIME, F.expr(sql[time_column(group.source.measure)]))
    if group.source.where is None:
        return events
    return events.where(f"({sql[filter_column(group.source.where.text)]}) OR {quoted(TIME)} IS NULL")


class _Cells(NamedTuple):
    """Cells of time from the least on: the edge before each, None if it holds another, and how many events precede."""

    low: int
    width: int
    start: list[int | None]
    before: list[int]


def _cells(events: DataFrame, job: Job, grids: list[Grid]) -> _Cells:
    """The first passes: the least and the greatest time, then how many events each cell holds."""
    measure = job.bound.plan.groups[0].source.measure
    t = quoted(TIME)
    found = events.agg(*(F.expr(text) for text in (f"MIN({t})", f"MAX({t})", f"COUNT({t})", "COUNT(1)"))).first()
    low, high, size, total = found if found is not None else (None, None, 0, 0)
    if size < total and job.bad_events == "raise":
        raise no_time(total - size, total, measure)
    if low is None:
        return _Cells(0, 1, [], [])
    if low <= -FURTHEST or high >= FURTHEST:
        raise InputError(
            f"{measure!r} is {low if low <= -FURTHEST else high} in some event, too far out for any window"
        )
    width = (high - low) // CELLS + 1
    cell = f"CAST(({t} - {low}L) DIV {width}L AS INT)"
    counts = events.where(f"{t} IS NOT NULL").groupBy(F.expr(cell).alias("cell")).agg(F.expr("COUNT(1)").alias("count"))
    table = pl.DataFrame(pl.from_arrow(counts.toArrow()))
    sizes = np.zeros((high - low) // width + 1, np.int64)
    sizes[table["cell"].to_numpy()] = table["count"].to_numpy()
    before = np.cumsum(sizes) - sizes
    start, end = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)
    for period, phase in grids:
        for edge, at in ((start, before), (end, before + np.maximum(sizes, 1) - 1)):
            np.maximum(edge, at - (at - phase) % period, out=edge)
    starts = pl.Series(start)
    return _Cells(low, width, starts.set(pl.Series(start != end), None).to_list(), before.tolist())


def _within(events: DataFrame, job: Job, cells: _Cells) -> DataFrame:
    """The events around cells that hold a cut: where they are few, said so that files without any are not read."""
    cut = np.flatnonzero([start is None for start in cells.start])
    first = cut[np.append(True, np.diff(cut) > 1)[: len(cut)]]
    last = cut[np.append(np.diff(cut) > 1, True)[: len(cut)]]
    if len(first) > FEW or not len(first):
        return events
    measure = job.bound.plan.groups[0].source.measure
    dtype = dict(job.columns)[measure]
    zoned = isinstance(dtype, pl.Datetime) and dtype.time_zone is not None
    column, moment = (quoted(measure), "TIMESTAMP_MICROS({}L)") if zoned else (quoted(TIME), "{}L")
    ranges = [
        f"{column} >= {moment.format(cells.low + int(a) * cells.width)} AND "
        f"{column} < {moment.format(cells.low + (int(b) + 1) * cells.width)}"
        for a, b in zip(first, last, strict=True)
    ]
    return events.where(" OR ".join(f"({text})" for text in ranges))


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
