"""Local nodes as a data source: every partition is one node's stream, sliced where it is read.

    node's events ── read, prepared and sliced in the reader ──▶ one row per bucket of keys ──▶ Spark

Raw events never enter the JVM, but for those of windows that need the order, and then only the columns that they read.
`spark.readStream.format("windrow")` gives the rows that `origins` describes; `windows(slices, queries)` goes on.

An offset says how far every node has been read, which files or seconds the micro-batch that ends there reads, and its
watermark: the least of the greatest times of all live nodes. So a micro-batch that is read again, in whatever
process, has the same rows. A node is live from when it is first seen; with `idle`, until it has brought nothing for
that long.
"""

from __future__ import annotations

import json
import os
import time as clock
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from windrow.binding import InputError
from windrow.generator import Generator
from windrow.intake import span
from windrow.jobs import Job
from windrow.measures import Lengths, plain
from windrow.query import Query, QueryError, time_of
from windrow.slicers import Gathered, Slicer, Tables, Unordered
from windrow.slices import pack
from windrow.spark.files import Files
from windrow.spark.generator import Generated
from windrow.spark.origins import Limit, Marks, origin_of, row_schema
from windrow.spark.payloads import split
from windrow.spark.settings import Settings, options_of
from windrow.spark.types import SHIFT_MS, arrow_schema
from windrow.windows import Duration, duration

HELD = 1 << 28  # bytes of events for windows that need the order, beyond which a node sends them in several rows


@dataclass
class Part(InputPartition):
    """What one task reads: something new of one node, or only a watermark that has moved on."""

    node: str | None
    new: Any
    first: int = 0  # the position of its first event
    streams: bool = False
    watermark: int | None = None  # on the measure
    to_all: bool = False  # it sends a row to every bucket, also where it has nothing for it


class Slices:
    """Reads what is new of a node, and gives its slices as rows."""

    def __init__(self, settings: Settings, schema: t.StructType) -> None:
        origin = origin_of(schema)
        if origin is None:
            raise QueryError(
                "a source of windrow has columns of its own; leave schema() out, and set the option columns"
            )
        self._settings, self._feed, self._origin = settings, settings.feed, origin
        self._job = origin.job(settings.queries)
        self._schema = arrow_schema(schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Part):  # of a source without nodes
            return
        job, slicer = self._job, Slicer(self._job, cut=partition.streams)
        gathered, held, size, count = Gathered(slicer), Unordered(job), 0, 0
        for events, rows in self._events(partition):
            count += rows
            gathered.add(slicer.slice(events))
            size += held.add(events)
            if size > HELD and not partition.streams:
                yield from self._rows(held.tables(), partition, 0)
                held, size = Unordered(job), 0
        merged = {name: slicer.merge(name, [table]) for name, table in gathered.tables().items()}
        yield from self._rows(merged | held.tables(), partition, count)

    def _events(self, part: Part) -> Iterator[tuple[pl.DataFrame, int]]:
        """Prepared events, and how many there were before those without a time were left out."""
        if part.node is None:
            return
        job, position = self._job, part.first
        binding, node = job.bound.binding, pl.lit(part.node).alias(self._settings.node_column)
        measures, furthest = job.measures, job.bound.plan.furthest
        for frame, whose in self._feed.frames(part.node, part.new, part.first, binding.needed):
            try:
                events = binding.checked(frame.with_columns(node))
                missing = binding.without_time(events)
                if missing is not None and self._origin.bad_events != "drop":
                    raise InputError(
                        f"{missing.sum()} of {frame.height} events have no time; bad_events='drop' leaves them out"
                    )
                events = binding.prepare(events, position, _no_clock)
                events = events if missing is None else events.filter(~missing)
                for name in binding.measures:
                    least, _ = span(events, name, furthest.get(name), measures[name])
                    if part.streams and least < 0 and not job.is_integer:
                        raise InputError(f"{name!r} lies before 1970, where Spark's watermark begins; use a number")
            except InputError as error:
                raise InputError(f"{whose}: {error}") from error
            position += frame.height
            yield events, frame.height

    def _rows(self, tables: Tables, part: Part, count: int) -> Iterator[pa.RecordBatch]:
        """A row for each bucket, but at least one, because it carries the watermark."""
        header = {"plan": self._origin.plan}
        mark = None if part.watermark is None else _spark_time(part.watermark, self._job)
        found = split(tables, self._job.bound, self._origin.buckets)
        if part.to_all or not found:
            found |= {bucket: {} for bucket in range(self._origin.buckets if part.to_all else 1) if bucket not in found}
        for bucket, several in found.items():
            columns = [[bucket], [pack(header, several)], [mark], [part.node], [count]]
            arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
            yield pa.record_batch(arrays, schema=self._schema)
            count = 0


class BatchReader(DataSourceReader):
    """All that there is, once."""

    def __init__(self, settings: Settings, schema: t.StructType) -> None:
        self._feed, self._slices = settings.feed, Slices(settings, schema)

    def partitions(self) -> Sequence[InputPartition]:
        return [Part(node, mark["new"]) for node, mark in self._feed.everything().items()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._slices.read(partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What is new, micro-batch by micro-batch."""

    def __init__(self, settings: Settings, schema: t.StructType, now: Callable[[], float] | None = None) -> None:
        self._settings, self._feed, self._slices = settings, settings.feed, Slices(settings, schema)
        self._job = self._slices._job
        self._now, self._noticed, self._is_last = now, dict[str, int](), False

    def initialOffset(self) -> dict[str, Any]:
        return {"nodes": {}, "watermark": None}

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._settings.rows is not None:
            return ReadMaxRows(self._settings.rows)
        return ReadAllAvailable() if self._settings.files is None else ReadMaxFiles(self._settings.files)

    def prepareForTriggerAvailableNow(self) -> None:
        self._is_last = True
        if isinstance(self._feed, Files):
            self._feed = self._feed.pause()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        before: Marks = start["nodes"]
        if self._is_last and isinstance(self._feed, Generated):
            self._feed = self._feed.pause(before)  # once it has an end it stays as it is
        taken = self._feed.take(before, self._limit(limit), self._job)
        if not taken and self._is_last:
            return start
        now = int((self._now or clock.time)() * 1000)
        marks = {node: {name: mark[name] for name in mark if name != "new"} for node, mark in before.items()}
        marks |= {node: {**mark, "at": now} for node, mark in taken.items()}
        watermark = self._watermark(marks, now, start["watermark"])
        if not taken and watermark == start["watermark"]:
            return start
        return {"nodes": marks, "watermark": watermark}

    def _limit(self, limit: ReadLimit) -> Limit:
        if isinstance(limit, ReadAllAvailable):
            return Limit()
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._settings.rows
        files = limit.max_files if isinstance(limit, ReadMaxFiles) else self._settings.files
        least = limit.min_rows if isinstance(limit, ReadMinRows) and not self._is_last else None
        return Limit(rows, files, limit.max_bytes if isinstance(limit, ReadMaxBytes) else None, least)

    def _watermark(self, marks: Marks, now: int, before: int | None) -> int | None:
        """The least of the greatest times of live nodes; it never moves back."""
        idle, seen = self._settings.idle, list[int]()
        for node in self._feed.names:
            at = marks[node]["at"] if node in marks else self._noticed.setdefault(node, now)
            if idle is None or now - at <= idle:
                if node not in marks or marks[node]["seen"] is None:
                    return before
                seen.append(marks[node]["seen"])
        return max((one for one in (before, min(seen, default=None)) if one is not None), default=None)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        before: Marks = start["nodes"]
        read = {node: mark["new"] for node, mark in end["nodes"].items() if "new" in mark}
        parts = [
            Part(node, new, before[node]["rows"] if node in before else 0, True, end["watermark"], not number)
            for number, (node, new) in enumerate(read.items())
        ]
        return parts or [Part(None, None, 0, True, end["watermark"], True)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._slices.read(partition)


class WindrowSource(DataSource):
    """The slices of nodes; see `OPTIONS`."""

    @classmethod
    def name(cls) -> str:
        return "windrow"

    def schema(self) -> t.StructType:
        return row_schema(Settings.of(self.options).origin)

    def reader(self, schema: t.StructType) -> DataSourceReader:
        return BatchReader(Settings.of(self.options), schema)

    def streamReader(self, schema: t.StructType) -> DataSourceStreamReader:
        return StreamReader(Settings.of(self.options), schema)


_KNOWING: WeakSet[SparkSession] = WeakSet()


def register(spark: SparkSession) -> None:
    """Make `format("windrow")` known to a session that `windrow.spark.session` did not make."""
    if spark not in _KNOWING:  # Spark warns of a second time
        spark.dataSource.register(WindrowSource)
        _KNOWING.add(spark)


def nodes(
    spark: SparkSession,
    source: str | os.PathLike[str] | Generator,
    queries: Query | Iterable[Query],
    time: str | None = None,
    *,
    lateness: Lengths = 0,
    order_by: str | Sequence[str] = (),
    bad_events: str = "raise",
    streaming: bool = True,
    format: str | None = None,
    columns: str | t.StructType | None = None,
    node_column: str = "node",
    buckets: int | None = None,
    idle: Duration | None = None,
    max_files: int | None = None,
    max_rows: int | None = None,
) -> DataFrame:
    """The slices of local nodes as a DataFrame, for `windows(slices, queries)`; what does not fit is refused here.

    spark:        the session, which learns `format("windrow")` by it
    source:       a directory with one for each node, or with the files of one; a pattern; or made-up events
    queries:      the ones that will be asked of the slices
    time:         the column that windows are measured on
    lateness:     how far events may be out of order; 0 by default
    order_by:     columns that order events of the same time and node
    bad_events:   "raise" refuses events without a time, "drop" leaves them out
    streaming:    a streaming DataFrame, the default, or one of what is there now
    format:       "parquet", "arrow" or "csv"; by default what the suffixes of the files say
    columns:      of the events, as DDL or a schema; needed only for a directory that has no files yet
    node_column:  what the node is called in queries
    buckets:      into how many parts keys are put, for as long as a checkpoint lives; by default as many as shuffle
                  partitions, and at least 8
    idle:         after how long without anything new a node holds the watermark back no more; by default never
    max_files:    how many files a micro-batch reads at most; by default all
    max_rows:     about how many events a micro-batch reads at most; by default all

    Classes of your own are known to Spark's workers by the modules that define them: see `docs/own.md`. The options of
    Spark's own reader are in `docs/nodes.md`.
    """
    asked = [queries] if isinstance(queries, Query) else list(queries)
    options = options_of(
        source,
        asked,
        time_of(asked, time),
        lateness=json.dumps(plain(lateness)),
        order_by=json.dumps([order_by] if isinstance(order_by, str) else list(order_by)),
        bad_events=bad_events,
        format=format,
        columns=columns.json() if isinstance(columns, t.StructType) else columns,
        node_column=node_column,
        buckets=buckets or max(8, int(spark.conf.get("spark.sql.shuffle.partitions", "200") or 200)),
        idle=None if idle is None else f"{duration(idle, 'idle').units} us",
        maxFilesPerTrigger=max_files,
        maxRowsPerTrigger=max_rows,
    )
    _ = Settings.of(options).origin
    register(spark)
    return (spark.readStream if streaming else spark.read).format("windrow").options(**options).load()


def _spark_time(units: int, job: Job) -> int:
    """A time on the measure as microseconds of Spark's watermark."""
    if not job.is_integer:
        return units
    if abs(units) >= SHIFT_MS:
        raise InputError(f"{job.time!r} is {units}, further out than Spark's watermark reaches, which is 2**52")
    return (units + SHIFT_MS) * 1000


def _no_clock() -> int:
    raise AssertionError("nodes have no arrival times")
