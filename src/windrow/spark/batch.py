"""Batch: all windows of a whole DataFrame, as a DataFrame.

    events ── slice, in the JVM or by the Polars kernel ──▶ payloads ── shuffled by bucket ──▶ assembled
    events ── shuffled by key, sorted ──▶ put through the state of their group, for what needs the order

Queries are parted by how their events become slices, because each way is a scan of its own; results are one union.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from windrow import repeats
from windrow.binding import InputError, quoted
from windrow.bound import state_of
from windrow.measures import Span
from windrow.ordered_state import OrderedState
from windrow.plan import Group
from windrow.query import Query
from windrow.revisions import Emitted
from windrow.slices import unpack
from windrow.slicing import filter_column, key_column, time_column
from windrow.spark import payloads
from windrow.spark.jobs import Job, time_columns
from windrow.spark.payloads import Gathered, Slicer, Tables
from windrow.spark.types import from_arrow, mapped, struct, to_arrow
from windrow.windows import INT64_MAX, INT64_MIN

EVENTS = 1_000_000  # that are sliced at a time
SLICES = 500_000  # that are assembled at a time, if they are of several buckets

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class Part:
    """Queries that are answered in the same way: how, and why."""

    job: Job
    how: Callable[[DataFrame, Job, bool], DataFrame]
    why: str


def parts_of(job: Job) -> list[Part]:
    """The queries of a job, parted by how they are answered."""
    ways: dict[tuple[Callable[..., DataFrame], Any], tuple[str, list[int]]] = {}
    for place, entry in enumerate(job.entries):
        way = _way(entry.query)
        ways.setdefault(way[:2], (way[2], []))[1].append(place)
    return [
        Part(replace(job, entries=tuple(job.entries[place] for place in places)), how, why)
        for (how, _), (why, places) in ways.items()
    ]


def _way(query: Query) -> tuple[Callable[..., DataFrame], Any, str]:
    if query.needs_order:
        return in_order, query.distinct_on, "events are shuffled by key and put in order, which its windows depend on"
    if query.distinct_on:
        return by_kernel, query.distinct_on, "repeats are dropped first, by the Polars kernel"
    return by_kernel, (), "sliced by the Polars kernel"


def windows(df: DataFrame, job: Job, partial: bool) -> DataFrame:
    """All results, in the columns of the whole job."""
    columns = job.bound.results.empty.columns
    types = struct(job.bound.results.empty.schema)
    whole: DataFrame | None = None
    for part in parts_of(job):
        found = part.how(df, part.job, partial)
        aligned = [
            F.col(quoted(name)) if name in found.columns else F.lit(None).cast(types[name].dataType).alias(name)
            for name in columns
        ]
        found = found.select(*aligned)
        whole = found if whole is None else whole.unionByName(found)
    assert whole is not None
    return whole


# --- events ---------------------------------------------------------------------------------------------------------


def prepared(df: DataFrame, job: Job) -> DataFrame:
    """The columns that kernels read, made by Spark; what has no time is left out if that is asked for."""
    binding = job.bound.binding
    columns: list[Column] = [F.expr(text).alias(name) for name, text in binding.sql.items()]
    chosen = df.select(*columns)
    if job.bad_events == "drop":
        for name in time_columns(job):
            chosen = chosen.where(F.col(quoted(name)).isNotNull())
    return chosen


def events_of(batches: Iterable[pa.RecordBatch], job: Job, most: int = EVENTS) -> Iterator[pl.DataFrame]:
    """Prepared events as frames of about so many rows; refuses those without a time."""
    types = job.prepared
    several: list[pa.RecordBatch] = []
    size = arrived = 0
    for batch in batches:
        several.append(batch)
        size += batch.num_rows
        if size >= most:
            yield _numbered(from_arrow(several, types), job, arrived)
            arrived += size
            several, size = [], 0
    if size:
        yield _numbered(from_arrow(several, types), job, arrived)


def _numbered(events: pl.DataFrame, job: Job, arrived: int) -> pl.DataFrame:
    for name in time_columns(job):
        if missing := events[name].null_count():
            raise InputError(
                f"{missing} of {events.height} events have no time in {name.removeprefix('time:')!r}; "
                "bad_events='drop' leaves them out"
            )
    return events.with_columns(nth=pl.int_range(arrived, arrived + pl.len(), dtype=pl.Int64))


def _sorted_by(df: DataFrame, job: Job, by: Sequence[str], time: str) -> DataFrame:
    """Events with the same values in some columns together in a partition, each partition in order."""
    together = df.repartition(*(F.col(quoted(name)) for name in by)) if by else df.repartition(1)
    order = [name for name in job.bound.binding.sql if name.startswith("order:")]
    return together.sortWithinPartitions(*(F.col(quoted(name)).asc_nulls_first() for name in (time, *order)))


def without_repeats(events: DataFrame, job: Job) -> DataFrame:
    """Events without repeats, for a job whose queries all have the same `distinct_on`."""
    source = job.bound.plan.groups[0].source
    if not source.distinct_on:
        return events
    lateness = job.measures[source.measure].lateness

    def drop(batches: Batches) -> Batches:
        kept: pl.DataFrame | None = None
        for frame in events_of(batches, job):
            time = time_column(source.measure)
            fresh, kept = repeats.fresh(frame, source.distinct_on, time, INT64_MIN, lateness, kept)
            kept = repeats.forget(kept, lateness, int(frame[time].max()))  # type: ignore[arg-type]
            yield from to_arrow(frame.filter(fresh), schema)

    spark_schema = struct(job.prepared)
    schema = payload_schema(job)
    by = [f"distinct:{name}" for name in source.distinct_on]
    return mapped(_sorted_by(events, job, by, time_column(source.measure)), drop, spark_schema)


def payload_schema(job: Job) -> pa.Schema:
    from windrow.spark.types import arrow_schema

    return arrow_schema(struct(job.prepared))


# --- slices ---------------------------------------------------------------------------------------------------------


def by_kernel(df: DataFrame, job: Job, partial: bool) -> DataFrame:
    """Slices by the Polars kernel, in `mapInArrow`."""
    buckets = buckets_of(df)

    def slices(batches: Batches) -> Batches:
        slicer = Slicer(job)
        gathered = Gathered(slicer)
        for frame in events_of(batches, job):
            gathered.add(slicer.slice(frame))
        yield from payloads.rows(payloads.split(gathered.tables(), job.bound, buckets), {})

    events = without_repeats(prepared(df, job), job)
    return assembled(mapped(events, slices, payloads.ROW), job)


def buckets_of(df: DataFrame) -> int:
    """Into how many buckets keys are put: enough for every core, and so that one bucket fits into memory."""
    return max(64, 2 * int(df.sparkSession.conf.get("spark.sql.shuffle.partitions", "200") or 200))


def assembled(rows: DataFrame, job: Job) -> DataFrame:
    """The results of payloads."""

    def assemble(batches: Batches) -> Batches:
        schema = job.result_schema
        several: dict[str, list[pl.DataFrame]] = {}
        size, last = 0, None
        for bucket, payload in payloads.read_rows(batches):
            if bucket != last and size > SLICES:
                yield from to_arrow(results_of(several, job), schema)
                several, size = {}, 0
            last = bucket
            for name, table in unpack(payload)[1].items():
                several.setdefault(name, []).append(table)
                size += table.height
        if several:
            yield from to_arrow(results_of(several, job), schema)

    shuffled = rows.repartition(F.col("bucket")).sortWithinPartitions("bucket")
    return shuffled.mapInArrow(assemble, struct(job.bound.results.empty.schema))


ALL = Span(INT64_MIN, INT64_MAX, INT64_MIN, INT64_MAX)


def results_of(tables: dict[str, list[pl.DataFrame]], job: Job) -> pl.DataFrame:
    """All windows of these slices."""
    emitted: list[Emitted] = []
    for group in job.bound.plan.groups:
        if group.name in tables:
            state = state_of(group, job.bound.binding, job.measures)
            for table in tables[group.name]:
                state.absorb(table)
            emitted.extend(state.step(ALL))
    return built(emitted, job)


def built(emitted: Iterable[Emitted], job: Job) -> pl.DataFrame:
    """Results; what does not fit into 64 bits is refused."""
    results, overflows = job.bound.results.build(emitted)
    if overflows:
        name, lost = overflows.most_common(1)[0]
        raise OverflowError(
            f"{name} does not fit into 64 bits in {lost} windows; cast its input to a double or a decimal"
        )
    return results


# --- order ----------------------------------------------------------------------------------------------------------


def in_order(df: DataFrame, job: Job, partial: bool) -> DataFrame:
    """Events shuffled by key and sorted, each group in a pass of its own."""
    events = without_repeats(prepared(df, job), job)
    whole: DataFrame | None = None
    for group in job.bound.plan.groups:
        part = _through_state(events, job, group, partial)
        whole = part if whole is None else whole.unionByName(part)
    assert whole is not None
    return whole


def _through_state(events: DataFrame, job: Job, group: Group, partial: bool) -> DataFrame:
    time, where, name = time_column(group.source.measure), group.source.where, group.name

    def answer(batches: Batches) -> Batches:
        own = next(one for one in job.bound.plan.groups if one.name == name)
        state = state_of(own, job.bound.binding, job.measures)
        assert isinstance(state, OrderedState)
        schema, mark = job.result_schema, INT64_MIN
        for frame in events_of(batches, job):
            state.hold(frame)
            now = int(frame[time].max())  # type: ignore[arg-type]
            if now > mark:
                yield from to_arrow(built(state.step(Span(mark, now, mark, now)), job), schema)
                mark = now
        yield from to_arrow(built(state.step(Span(mark, INT64_MAX, mark, INT64_MAX), partial=partial), job), schema)

    if where is not None:
        events = events.where(F.col(quoted(filter_column(where.text))))
    ordered = _sorted_by(events, job, [key_column(key) for key in group.keys], time)
    return mapped(ordered, answer, struct(job.bound.results.empty.schema))


__all__ = ["Tables", "windows"]
