"""Streaming: micro-batches are sliced where they are read, and buckets of keys keep their slices in Spark's state.

    events ── withWatermark ── mapInArrow: slices ──▶ (bucket, payload) ── transformWithState ──▶ results

A partition sends one row to every bucket, also where it has no slices for it, so that all buckets learn in the same
micro-batch which queries there are. What a bucket does with its rows is in `bucket`; here is how Spark carries it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import polars as pl
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as t
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from windrow.core.arrays.dataframes import InputError, in_parts
from windrow.core.expressions.errors import QueryError
from windrow.core.plan.groups import Entry
from windrow.core.plan.watermark import shown_time
from windrow.core.slices.binding import ARRIVAL, quoted
from windrow.core.slices.kernel import time_name
from windrow.core.stream.ingest import admit
from windrow.core.stream.job import Job
from windrow.core.stream.job_slicer import Gathered, Slicer, Tables, Unordered
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.io import EVENTS_AT_ONCE
from windrow.io.tables import from_bytes, to_bytes, unpack
from windrow.spark import payloads
from windrow.spark.batch.jvm_slicing import prepared
from windrow.spark.batch.run import events_of
from windrow.spark.pickling import Travels, mapped
from windrow.spark.slice_rows import check as check_plan
from windrow.spark.slice_rows import (
    delay_of,
    fingerprint,
    from_text,
    origin_of_slices,
    spark_time,
    text_of,
    watermarked,
)
from windrow.spark.stream import query_book_files
from windrow.spark.stream.bucket import INDEX, Bucket, RequestedQuery, StepOutput
from windrow.spark.stream.query_book import QueryBook, refuse_unstreamable, result_columns
from windrow.spark.types import END_MS, SHIFT_MS, from_arrow, mapped_to_frames, polars_type

MARK = "windrow_watermark"
BOOK = "windrow_book"
CLOCK = "windrow_clock"  # of a micro-batch, for events whose time is their arrival
TIE = "windrow_tie"
OUTPUT = "results BINARY, dropped BIGINT, overflows BIGINT, slices BIGINT, held_events BIGINT, since STRING"
METRICS = ("dropped", "overflows", "slices", "held_events")


def windows(df: DataFrame, job: Job, buckets: int, name: str) -> DataFrame:
    """The results of a streaming DataFrame, as a streaming DataFrame."""
    refuse_unstreamable([entry.query for entry in job.entries], job.time)
    marked, job = with_watermark(df, job)
    events = prepared(marked, job)

    def slices(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from payloads.rows(sliced(events_of(batches, job), job, buckets), {})

    columns = dict(job.compiled.results.empty.schema)
    return answered(mapped(events, slices, payloads.COLUMNS), job, columns, buckets, name)


def windows_of_book(df: DataFrame, job: Job, book: QueryBook, buckets: int, name: str) -> DataFrame:
    """The same for the queries of a book; the job has none itself, and every micro-batch reads the newest version."""
    marked, job = with_watermark(df, job)
    path, types = book.path, dict(job.columns)
    newest = df.sparkSession.read.text(f"{query_book_files.for_spark(path)}/HEAD").select(F.first("value")).scalar()
    clock = F.expr(job.compiled.binding.sql[time_name(job.time)]) if job.time == ARRIVAL else F.lit(0)
    events = marked.select(*(F.col(quoted(column)) for column in types), newest.alias(BOOK), clock.alias(CLOCK))

    def slices(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        version = query_book_files.read(path, first.column(BOOK)[0].as_py())
        refuse_unstreamable((entry.query for entry in version.requested), job.time)  # another stream may have let it in
        current = replace(job, entries=tuple(Entry(entry.query) for entry in version.requested))
        frames = raw_events_of(chain([first], batches), current, types, first.column(CLOCK)[0].as_py())
        header = {"version": version.number, "queries": text_of([entry.to_dict() for entry in version.requested])}
        yield from payloads.rows(sliced(frames, current, buckets), header)

    keys = {key: types[key] for key in book.read().keys}
    retractions = job.time_columns[job.time].updates > 0
    columns = result_columns(book.read(), keys, job.compiled.binding.time_columns[job.time], retractions)
    return answered(mapped(events, slices, payloads.COLUMNS), job, columns, buckets, name)


def windows_of_slices(df: DataFrame, job: Job, buckets: int | None, name: str) -> DataFrame:
    """The same for slices that were made where the events are."""
    origin = origin_of_slices(df)
    if buckets not in (None, origin.buckets):
        raise ValueError(f"these slices are in {origin.buckets} buckets, not in {buckets}; say so where they are made")
    refuse_unstreamable([entry.query for entry in job.entries], job.time)
    columns = dict(job.compiled.results.empty.schema)
    return answered(watermarked(df, job), job, columns, origin.buckets, name, fingerprint(job))


def with_ties(df: DataFrame) -> DataFrame:
    """Events with a hash of all their values, which breaks ties in time the same way in every micro-batch."""
    hashed: list[Column] = []
    for field in df.schema.fields:
        column = F.col(quoted(field.name))
        if polars_type(field.dataType) is None:
            continue
        if isinstance(field.dataType, t.ArrayType | t.StructType):  # a hash passes nulls over, also those inside
            column = F.to_json(F.struct(column), {"ignoreNullFields": "false"})
        hashed += [column, column.isNull()] if field.nullable else [column]
    return df.withColumn(TIE, F.xxhash64(*hashed))


def raw_events_of(
    batches: Iterable[pa.RecordBatch], job: Job, types: Mapping[str, pl.DataType], now: int
) -> Iterator[pl.DataFrame]:
    """Events as they come, prepared by Polars, because Spark's plan does not know the queries; they arrive `now`."""
    arrived = 0
    for part in in_parts(batches, EVENTS_AT_ONCE):
        frame = from_arrow([batch.select(list(types)) for batch in part], types)
        events = admit(frame, job.compiled, job.time_columns, job.options.bad_events, arrived, lambda: now).events
        if events.height:
            yield events
        arrived += frame.height


# --- the watermark --------------------------------------------------------------------------------------------------


def with_watermark(df: DataFrame, job: Job) -> tuple[DataFrame, Job]:
    """The events with Spark's watermark on their time: that of the user if there is one, else one of ours."""
    key = "spark.watermarkDelayMs"
    users = {field.name: field.metadata[key] for field in df.schema.fields if key in field.metadata}
    units, late = job.compiled.binding.sql[time_name(job.time)], job.time_columns[job.time].lateness
    if late is None:
        raise ValueError("a stream on Spark moves its watermark by the events that it sees: say a lateness, not None")
    ours = delay_of(job)
    if users:
        (name, delay), *_ = users.items()
        if name != job.time:
            raise QueryError(
                f"the DataFrame already has a watermark on {name!r}, and Spark allows no second one; "
                f"leave it off, or put it on {job.time!r}"
            )
        if late and ours != delay:
            raise QueryError(
                f"the DataFrame already has a watermark of {delay} ms on {name!r}, and lateness is {ours} ms; "
                "say one of them"
            )
        return df, replace(job, options=replace(job.options, lateness={job.time: f"{delay} milliseconds"}))
    if job.is_integer:
        within = f"{units} BETWEEN -{SHIFT_MS}L AND {SHIFT_MS}L"  # what is further out is refused once it is read
        moment = f"TIMESTAMP_MILLIS(CASE WHEN {within} THEN {units} + {SHIFT_MS}L END)"
    else:
        moment = f"TIMESTAMP_MICROS({units})"
    return df.withColumn(MARK, F.expr(moment)).withWatermark(MARK, f"{ours} milliseconds"), job


def watermark_of(milliseconds: int, is_integer: bool) -> int:
    """Spark's watermark in units of the time column; INT64_MIN while there is none, INT64_MAX once all has come."""
    if milliseconds <= 0:
        return INT64_MIN
    if milliseconds >= END_MS:
        return INT64_MAX
    return milliseconds - SHIFT_MS if is_integer else milliseconds * 1000


def timer_of(moment: int, is_integer: bool) -> int:
    """The millisecond of Spark's at which a time has come."""
    if moment == INT64_MIN:
        return 1
    return moment + SHIFT_MS - 1 if is_integer else -(-moment // 1000) - 1


# --- slices ---------------------------------------------------------------------------------------------------------


def sliced(frames: Iterable[pl.DataFrame], job: Job, buckets: int) -> dict[int, Tables]:
    """The tables of a partition for each bucket, also if there are none: slices, and events where order counts."""
    slicer = Slicer(job.compiled, at_gaps=True)
    gathered, unordered = Gathered(job.compiled), Unordered(job.compiled)
    for frame in frames:
        times = frame[time_name(job.time)]
        for time in (int(times.min()), int(times.max())):  # type: ignore[arg-type]
            if time < 0 and not job.is_integer:
                raise InputError(
                    f"an event lies before 1970 in {job.time!r}, where Spark's watermark begins; "
                    "use a number as time, such as its seconds, for which there is no such limit"
                )
            spark_time(time, job)  # refuses what is further out than the watermark reaches
        gathered.add(slicer.slice(frame))
        unordered.add(frame)
    by_bucket = payloads.split(gathered.tables() | unordered.tables(), job.compiled, buckets)
    return {bucket: by_bucket.get(bucket, {}) for bucket in range(buckets)}


# --- state ----------------------------------------------------------------------------------------------------------


class _Store:
    """A bucket's state in Spark."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._index = handle.getValueState("index", "value BINARY")
        self._tables = handle.getMapState("tables", "name STRING", "value BINARY")

    def get(self, name: str) -> bytes | None:
        row = self._index.get() if name == INDEX else self._tables.getValue((name,))
        return None if row is None else bytes(row[0])

    def put(self, name: str, value: bytes) -> None:
        if name == INDEX:
            self._index.update((value,))
        else:
            self._tables.updateValue((name,), (value,))

    def delete(self, name: str) -> None:
        self._tables.removeKey((name,))


class Processor(Travels, StatefulProcessor):
    """A bucket at work in `transformWithState`."""

    def __init__(self, job: Job, buckets: int, plan: str) -> None:
        self._job, self._buckets, self._plan = job, buckets, plan

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._store = _Store(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        tables, queries, version = [], [RequestedQuery(entry.query) for entry in self._job.entries], -1
        newest: int | None = None
        for row in rows:
            header, row_tables = unpack(row.payload)
            check_plan(header, self._plan)
            tables.append(row_tables)
            newest = header.get("newest", newest)
            if header.get("version", -1) > version:
                version = header["version"]
                queries = [RequestedQuery.from_dict(described) for described in from_text(header["queries"])]
        return self._step(tables, timerValues, queries, newest)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        return self._step([], timerValues, None, None)

    def _step(
        self, tables: Sequence[Tables], timer_values: Any, queries: list[RequestedQuery] | None, newest: int | None
    ) -> Iterator[Row]:
        is_integer = self._job.is_integer
        bucket = Bucket(self._store, self._job, self._buckets)
        watermark = watermark_of(timer_values.getCurrentWatermarkInMs(), is_integer)
        output = bucket.step(tables, watermark, queries, newest)
        before, after = bucket.timer, None
        if bucket.next_due < INT64_MAX and watermark < INT64_MAX:
            after = max(timer_of(bucket.next_due, is_integer), timer_values.getCurrentWatermarkInMs() + 1, 1)
        if after != before:
            if before is not None:
                self._handle.deleteTimer(before)
            if after is not None:
                self._handle.registerTimer(after)
        bucket.save(after)
        yield _row(output, self._job.compiled.binding.time_columns[self._job.time])


def _row(output: StepOutput, time: pl.DataType) -> Row:
    """The output of a step as one row of Spark's, with the results as bytes and times as text.

    `transformWithState` makes a Python `Row` for each row that it gives out, which for results would be work per
    result, and it gives out no Arrow. So results leave it packed, and `answered` unpacks them in a `mapInArrow`.
    """
    results = to_bytes(output.results, "lz4") if output.results.height else None
    since = {name: shown_time(moment, time) for name, moment in output.since.items()}
    return Row(**{**vars(output), "results": results, "since": json.dumps(since, default=str) if since else None})


# --- results --------------------------------------------------------------------------------------------------------


def answered(
    rows: DataFrame, job: Job, columns: Mapping[str, pl.DataType], buckets: int, name: str, plan: str = ""
) -> DataFrame:
    """The results of a stream of payloads, in these columns."""
    mode = "Update" if job.time_columns[job.time].updates else "Append"
    outputs = rows.groupBy("bucket").transformWithState(
        statefulProcessor=Processor(job, buckets, plan),
        outputStructType=OUTPUT,
        outputMode=mode,
        timeMode="EventTime",
    )
    sums: list[Column] = [F.coalesce(F.sum(column), F.lit(0)).alias(column) for column in METRICS]
    outputs = outputs.observe(name, *sums, F.max("since").alias("since"))

    def unpacked(batches: Iterator[pa.RecordBatch]) -> Iterator[pl.DataFrame]:
        for batch in batches:
            for payload in batch.column(0).drop_null().to_pylist():
                yield aligned(from_bytes(payload), columns)

    return mapped_to_frames(outputs, unpacked, columns)


def aligned(results: pl.DataFrame, columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Results in the columns that the stream has had from its start."""
    missing = [pl.lit(None, dtype).alias(name) for name, dtype in columns.items() if name not in results.columns]
    return results.with_columns(missing).select(list(columns))
