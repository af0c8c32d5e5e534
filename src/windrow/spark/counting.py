"""Counting windows over all events, without a shuffle of the events.

Where an event stands among all is only asked where it matters: in the few cells of time that hold a cut.

    events ── count by cell of time ──▶ running totals ──▶ cells that a window's edge cuts, and those that none does
    events in cells without a cut ── all of the cell are in one slice ──┐
    events in cells with a cut ── numbered within the cell, in order ───┴──▶ slices between positions

Then positions are a measure like any other: counting(n, step) is sliding(n, step) over it, sliced and assembled as
that, and the first and the last time of a window's events are two more aggregates. A cell is a 65,536th of the time
between the first and the last event. Everything is lazy: the least and the greatest time, the counts and the slices
are parts of one plan, which reads the events four times, twice only their times. If windows are so short that most
cells hold a cut, most events are shuffled, by cell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce

import numpy as np
import polars as pl
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from windrow.aggregates import count, max, min
from windrow.binding import InputError, quoted
from windrow.ordered import Counting
from windrow.plan import Entry
from windrow.query import Query
from windrow.slicing import filter_column, time_column
from windrow.spark.jobs import Job
from windrow.spark.shipping import mapped
from windrow.spark.slicing import POSITION, Batches, Cut, cut_of, slices, without_contained
from windrow.spark.types import arrow_schema, from_arrow, struct, to_arrow
from windrow.windows import FURTHEST, Grid, Sliding

CELLS = 65_536
_NOWHERE = -FURTHEST - 1  # the cell of events that have no time, before all others
TIME, FIRST, LAST, SIZE = (f"windrow {name}" for name in ("time", "first", "last", "size"))
_CELL, _WIDTH, _BEFORE, _START = (f"windrow {name}" for name in ("cell", "width", "before", "start"))
_CELLS: dict[str, pl.DataType] = {_CELL: pl.Int64(), _BEFORE: pl.Int64(), _START: pl.Int64()}

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
    events = _in_cells(df, job)
    counts = events.groupBy(quoted(_CELL)).agg(F.expr("COUNT(1)").alias("count"))
    inner = in_positions(job)
    (group,) = inner.bound.plan.groups
    cut = cut_in_positions(inner)
    assert isinstance(cut, Cut)
    grids = [grid for window, *_ in group.timelines if isinstance(window, Sliding) for grid in window.grids()]
    measure = job.bound.plan.groups[0].source.measure
    cells = F.broadcast(mapped(counts.repartition(1), _planner(without_contained(grids), measure), struct(_CELLS)))
    placed = events.join(cells, _CELL)
    whole = placed.where(F.col(quoted(_START)).isNotNull()).withColumn(POSITION, F.col(quoted(_START)))
    order = [F.col(quoted(name)).asc_nulls_first() for name in (TIME, *job.order_by)]
    number = F.row_number().over(Window.partitionBy(quoted(_CELL)).orderBy(*order))
    split = placed.where(F.col(quoted(_START)).isNull()).withColumn(POSITION, F.col(quoted(_BEFORE)) + number - 1)
    rows = [
        slices(prepare(part, inner), inner, group, cut, group.needs(shared=True)[1], buckets) for part in (whole, split)
    ]
    return reduce(DataFrame.union, rows), inner


def _in_cells(df: DataFrame, job: Job) -> DataFrame:
    """The events that the windows see, with their time in whole units and their cell; without a time, nowhere."""
    (group,) = job.bound.plan.groups
    sql = job.bound.binding.sql
    events = df.withColumn(TIME, F.expr(sql[time_column(group.source.measure)]))
    missing = f"{quoted(TIME)} IS NULL"
    if job.bad_events == "drop":
        events = events.where(f"NOT ({missing})")
    if group.source.where is not None:
        events = events.where(f"({sql[filter_column(group.source.where.text)]}) OR {missing}")
    t = quoted(TIME)
    span = f"CAST(MAX({t}) AS DECIMAL(20, 0)) - CAST(MIN({t}) AS DECIMAL(20, 0))"
    width = events.agg(F.expr(f"CAST(FLOOR(({span}) / {CELLS}) AS BIGINT) + 1").alias(_WIDTH))
    cell = f"COALESCE({t} DIV {quoted(_WIDTH)}, {_NOWHERE}L)"  # a null would leave the join before it is counted
    return events.select("*", width.scalar().alias(_WIDTH)).withColumn(_CELL, F.expr(cell))


def _planner(grids: list[Grid], measure: str) -> Callable[[Batches], Batches]:
    """For each cell how many events come before it, and the edge before it unless it holds another."""

    def plan(batches: Batches) -> Batches:
        counts = from_arrow(batches, {_CELL: pl.Int64(), "count": pl.Int64()}).sort(_CELL)
        lost = int(counts.filter(pl.col(_CELL) == _NOWHERE)["count"].sum())
        if lost:
            raise InputError(
                f"{lost} of {counts['count'].sum()} events have no time in {measure!r}; "
                "bad_events='drop' leaves them out"
            )
        size = counts["count"].to_numpy()
        before = np.cumsum(size) - size
        start, end = np.zeros(len(size), np.int64), np.zeros(len(size), np.int64)
        for period, phase in grids:
            for edge, at in ((start, before), (end, before + size - 1)):
                np.maximum(edge, at - (at - phase) % period, out=edge)
        starts = pl.Series(start)
        table = counts.select(_CELL).with_columns(
            pl.Series(_BEFORE, before), starts.set(pl.Series(start != end), None).alias(_START)
        )
        yield from to_arrow(table, arrow_schema(struct(_CELLS)))

    return plan


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
