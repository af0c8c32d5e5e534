"""Local nodes as a data source: every partition is one node's stream, sliced where it is read.

    node's events ── read, prepared and sliced in the reader ──▶ one row per bucket of keys ──▶ Spark

Raw events never enter the JVM, but for those of windows that need the order, and then only the columns that they read.
`spark.readStream.format("windrow")` gives the rows that `slice_rows` describes; `windows(slices, queries)` goes on.

An offset says how far every node has been read, which files or seconds the micro-batch that ends there reads, and its
watermark: the least of the greatest times of all live nodes. So a micro-batch that is read again, in whatever
process, has the same rows. A node is live from when it is first seen; with `idle`, until it has brought nothing for
that long.
"""

from __future__ import annotations

import json
import os
import time as clock
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from windrow.core.arrays.dataframes import InputError
from windrow.core.expressions.border import border
from windrow.core.expressions.errors import QueryError
from windrow.core.plan.watermark import Lengths, plain
from windrow.core.query.given import Queries, some_queries
from windrow.core.query.query import time_of
from windrow.core.stream.ingest import admit
from windrow.core.stream.job import Job
from windrow.core.stream.job_slicer import Gathered, Slicer, Tables, Unordered
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN, Duration, duration
from windrow.core.windows.ordered import NODE
from windrow.io.generator import Generator
from windrow.io.tables import pack
from windrow.spark.payloads import split
from windrow.spark.pickling import Travels
from windrow.spark.pickling import source as shipped
from windrow.spark.slice_rows import Limit, Marks, fingerprint, row_schema, spark_time, time_before
from windrow.spark.source.files import Files, is_beyond
from windrow.spark.source.generated import Generated
from windrow.spark.source.options import Settings, options_of, origin_in
from windrow.spark.source.tree_root import Root
from windrow.spark.types import arrow_schema

TASK_BYTES = 1 << 26  # of batches of a root, that one task of a batch reads
MOST_BYTES = 1 << 28  # of events for windows that need the order, beyond which a node sends them in several rows


@dataclass
class Part(InputPartition):
    """What one task reads: something new of one node or of a root, or only a watermark that has moved on."""

    node: str | None
    new: Any  # of a root the first batch, the last one, none if it is before the first, and how many events they have
    first: int = 0  # the position of its first event
    streams: bool = False
    watermark: int | None = None  # in Spark's microseconds
    to_all: bool = False  # it sends a row to every bucket, also where it has nothing for it
    newest: int | None = None  # the greatest time that any node had before


class NodeSlices:
    """Reads what is new of nodes, and gives its slices as rows."""

    def __init__(self, settings: Settings, schema: t.StructType, now: Callable[[], float]) -> None:
        assert not isinstance(settings.source, Root)
        self.source, self.job = settings.source, origin_in(schema).job(settings.queries)
        self._node, self._idle, self._schema = settings.node_column, settings.idle, schema
        self._now, self._noticed, self._is_last = now, dict[str, int](), False

    def everything(self) -> list[Part]:
        """All that there is, each node in a part."""
        return [Part(node, new) for node, new in self.source.everything().items()]

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        job, slicer = self.job, Slicer(self.job.compiled, at_gaps=part.streams)
        gathered, unordered, size, count = Gathered(job.compiled), Unordered(job.compiled), 0, 0
        for events, rows in self._events(part):
            count += rows
            gathered.add(slicer.slice(events))
            size += unordered.add(events)
            if size > MOST_BYTES and not part.streams:
                yield from rows_of(unordered.tables(), job, self._schema, part, 0)
                unordered, size = Unordered(job.compiled), 0
        yield from rows_of(gathered.merged() | unordered.tables(), job, self._schema, part, count)

    def _events(self, part: Part) -> Iterator[tuple[pl.DataFrame, int]]:
        """Prepared events, and how many there were before bad ones were left out."""
        if part.node is None:
            return
        job, position = self.job, part.first
        node, time_columns = pl.lit(part.node).alias(self._node), job.time_columns
        for frame, whose in self.source.frames(part.node, part.new, part.first, job.compiled.binding.needed):
            try:
                bad_events = job.options.bad_events
                admitted = admit(frame.with_columns(node), job.compiled, time_columns, bad_events, position)
                for name, (least, _) in admitted.ranges.items():
                    if part.streams and least < 0 and not job.is_integer:
                        raise InputError(f"{name!r} lies before 1970, where Spark's watermark begins; use a number")
            except InputError as error:
                raise InputError(f"{whose}: {error}") from error
            position += frame.height
            yield admitted.events, frame.height

    # --- a stream -----------------------------------------------------------------------------------------------

    def first(self) -> dict[str, Any]:
        return {"nodes": {}, "watermark": None}

    def stop(self) -> None:
        self._is_last = True
        if isinstance(self.source, Files):
            self.source = self.source.pause()

    def after(self, start: dict[str, Any], limit: Limit) -> dict[str, Any]:
        before: Marks = start["nodes"]
        if self._is_last and isinstance(self.source, Generated):
            self.source = self.source.pause(before)  # once it has an end it stays as it is
        taken = self.source.take(before, limit, self.job)
        if not taken and self._is_last:
            return start
        now = int(self._now() * 1000)
        marks = {node: {name: mark[name] for name in mark if name != "new"} for node, mark in before.items()}
        marks |= {node: {**mark, "at": now} for node, mark in taken.items()}
        watermark = self._watermark(marks, now, start["watermark"])
        if not taken and watermark == start["watermark"]:
            return start
        return {"nodes": marks, "watermark": watermark}

    def _watermark(self, marks: Marks, now: int, before: int | None) -> int | None:
        """The least of the greatest times of live nodes; it never moves back."""
        seen = list[int]()
        for node in self.source.names:
            at = marks[node]["at"] if node in marks else self._noticed.setdefault(node, now)
            if self._idle is None or now - at <= self._idle:
                if node not in marks or marks[node]["seen"] is None:
                    return before
                seen.append(marks[node]["seen"])
        watermarks = (before, min(seen, default=None))
        return max((watermark for watermark in watermarks if watermark is not None), default=None)

    def parts(self, start: dict[str, Any], end: dict[str, Any]) -> list[Part]:
        before: Marks = start["nodes"]
        read = {node: mark["new"] for node, mark in end["nodes"].items() if "new" in mark}
        newest = max((mark["seen"] for mark in before.values() if mark["seen"] is not None), default=None)
        watermark = None if end["watermark"] is None else spark_time(end["watermark"], self.job)
        parts = [
            Part(node, new, before[node]["rows"] if node in before else 0, True, watermark, not number, newest)
            for number, (node, new) in enumerate(read.items())
        ]
        return parts or [Part(None, None, 0, True, watermark, True, newest)]

    def forget(self, end: dict[str, Any]) -> None:
        """What nodes were read from stays as it is."""


class RootSlices:
    """Reads the batches of a root, one task those of a micro-batch in their order, and gives their slices as rows."""

    def __init__(self, settings: Settings, schema: t.StructType) -> None:
        assert isinstance(settings.source, Root)
        self.root, self._schema, origin = settings.source, schema, origin_in(schema)
        self.job, sink = origin.job(origin.cut_for), self.root.sink
        if fingerprint(sink.query_set.job) != origin.plan:
            raise QueryError("the root is asked other queries since this DataFrame was made; make it again")
        self._since = sink.declared.since  # the first batch that serves these queries
        self._changes = len(sink.declared.changes)  # of queries, before this began
        self._until: int | None = None  # the last batch that is read, of a stream that is to end

    def everything(self) -> list[Part]:
        """All batches that are there, so many in a part."""
        sink, before, parts = self.root.sink, self.first(), list[Part]()
        numbers, first, size, events = sink.after(before["batch"]), before["batch"] + 1, 0, before["events"]
        for number in numbers:
            head = sink.head(number)
            size += head.size
            if size >= TASK_BYTES or number == numbers[-1]:
                parts.append(Part(None, (first, number, head.events - events)))
                first, size, events = number + 1, 0, head.events
        return parts

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        first, last, events = part.new
        yield from rows_of(self._tables(first, last), self.job, self._schema, part, events)

    def _tables(self, first: int, last: int) -> Tables:
        """The tables of some batches, each group's in one."""
        plan, sink = self.job.compiled, self.root.sink
        gathered, ordered = Gathered(plan), dict[str, list[pl.DataFrame]]()
        for number in range(first, last + 1):
            batch = sink.read(number)
            for compiled in plan.groups:
                name = compiled.group.name
                if name not in batch.tables:
                    continue
                table = compiled.conform(batch.tables[name])
                if compiled.group.ordered:  # a node's events come in its order, in a batch and after it
                    nth = pl.int_range(number << 32, (number << 32) + pl.len(), dtype=pl.Int64)
                    ordered.setdefault(name, []).append(table.with_columns(nth=nth))
                else:
                    gathered.add({name: table})
        return gathered.merged() | {name: pl.concat(tables) for name, tables in ordered.items()}

    # --- a stream -----------------------------------------------------------------------------------------------

    def first(self) -> dict[str, Any]:
        """The offset before the first batch that is there and was made for the queries of now."""
        sink = self.root.sink
        begin = max(sink.declared.since, min(sink.numbers, default=1)) - 1
        events = sink.head(begin).events if begin in sink.numbers else 0
        return {"batch": begin, "watermark": None, "events": events}

    def stop(self) -> None:
        self._until = self.root.sink.newest

    def after(self, start: dict[str, Any], limit: Limit) -> dict[str, Any]:
        """The offset after the batches that come next within a limit, at least one; none later than `_until`."""
        sink, last, watermark, events = self.root.sink, start["batch"], start["watermark"], start["events"]
        size = count = 0
        for number in self._made_for_these(sink.after(last)):
            if self._until is not None and number > self._until:
                break
            head = sink.head(number)
            if count and is_beyond(limit, count + 1, head.events - start["events"], size + head.size):
                break
            events, size, count, last = head.events, size + head.size, count + 1, number
            if head.watermark > INT64_MIN:
                watermark = head.watermark if watermark is None else max(watermark, head.watermark)
        if not count:
            return {**start, "ended": True} if watermark == INT64_MAX else start
        if limit.least is not None and events - start["events"] < limit.least:
            return start
        return {"batch": last, "watermark": watermark, "events": events}

    def _made_for_these(self, numbers: range) -> range:
        """Those of the batches that follow which have what the queries need; refuses to go beyond them."""
        if not numbers:
            return numbers
        then = next(iter(self.root.sink.declared.changes[self._changes :]), numbers[-1] + 1)
        if self._since <= numbers[0] < then:
            return range(numbers[0], min(numbers[-1] + 1, then))
        is_old = numbers[0] < self._since
        raise QueryError(
            f"the root {os.fspath(self.root.path)!r} is asked other queries from batch "
            f"{self._since if is_old else then} on, and this stream has read up to {numbers[0] - 1}; start it "
            + ("with a new checkpoint" if is_old else "again, and it goes on with those")
        )

    def parts(self, start: dict[str, Any], end: dict[str, Any]) -> list[Part]:
        batches = start["batch"] + 1, end["batch"], end["events"] - start["events"]
        watermark = None if end["watermark"] is None else time_before(end["watermark"], self.job)
        return [Part(None, batches, watermark=watermark, to_all=True)]

    def forget(self, end: dict[str, Any]) -> None:
        if self.root.keep != "all":
            self.root.sink.forget(end["batch"])


def rows_of(tables: Tables, job: Job, schema: t.StructType, part: Part, events: int) -> Iterator[pa.RecordBatch]:
    """Tables as rows: one for each bucket that has something, or for each where the part goes to all.

    There is at least one row, because it carries the watermark, and the first row says how many events there were. Each
    payload has `newest`, the greatest time that any node had before this micro-batch: a query that comes takes effect
    after it.
    """
    origin, columns = origin_in(schema), arrow_schema(schema)
    by_bucket = split(tables, job.compiled, origin.buckets)
    if part.to_all or not by_bucket:
        by_bucket = {bucket: by_bucket.get(bucket, {}) for bucket in range(origin.buckets if part.to_all else 1)}
    for bucket, bucket_tables in by_bucket.items():
        payload = pack({"plan": origin.plan, "newest": part.newest}, bucket_tables)
        row = {"bucket": bucket, "payload": payload, "watermark": part.watermark, "node": part.node, "events": events}
        yield pa.RecordBatch.from_pylist([row], schema=columns)
        events = 0


class _Reader(Travels):
    """Reads the parts of what there is, in Spark's tasks."""

    def __init__(self, settings: Settings, schema: t.StructType, now: Callable[[], float] = clock.time) -> None:
        self._settings = settings
        is_root = isinstance(settings.source, Root)
        self.slices = RootSlices(settings, schema) if is_root else NodeSlices(settings, schema, now)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # where there is nothing to read, Spark makes a partition of its own
        return self.slices.read(partition) if isinstance(partition, Part) else iter(())


class BatchReader(_Reader, DataSourceReader):
    """All that there is, once."""

    def partitions(self) -> Sequence[InputPartition]:
        return self.slices.everything()


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What is new, micro-batch by micro-batch."""

    _is_last = False  # whether only what was there when it began is read

    def initialOffset(self) -> dict[str, Any]:
        return self.slices.first()

    def getDefaultReadLimit(self) -> ReadLimit:
        return self._settings.read_limit

    def prepareForTriggerAvailableNow(self) -> None:
        self._is_last = True
        self.slices.stop()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self.slices.after(start, self._settings.limit(limit, self._is_last))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [] if start == end else self.slices.parts(start, end)

    def commit(self, end: dict[str, Any]) -> None:
        self.slices.forget(end)


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


_REGISTERED: WeakSet[SparkSession] = WeakSet()


def register(spark: SparkSession) -> None:
    """Make `format("windrow")` known to a session that `windrow.spark.session` did not make."""
    if spark not in _REGISTERED:  # Spark warns of a second time
        spark.dataSource.register(shipped(WindrowSource))
        _REGISTERED.add(spark)


@border
def nodes(
    spark: SparkSession,
    source: str | os.PathLike[str] | Generator | Root,
    queries: Queries | None = None,
    time: str | None = None,
    *,
    lateness: Lengths = 0,
    order_by: str | Sequence[str] = (),
    bad_events: str = "raise",
    streaming: bool = True,
    format: str | None = None,
    columns: str | t.StructType | None = None,
    node_column: str = NODE,
    buckets: int | None = None,
    idle: Duration | None = None,
    max_files: int | None = None,
    max_rows: int | None = None,
) -> DataFrame:
    """The slices of local nodes as a DataFrame, for `windows(slices, queries)`; what does not fit is refused here.

    spark:        the session, which learns `format("windrow")` by it
    source:       a directory with one for each node, or with the files of one; a pattern; made-up events; or the root
                  of a tree, which says queries, time, lateness, order_by and columns itself
    queries:      those that the slices will be given to `windows` with
    time:         the column that windows are measured on
    lateness:     how far events may be out of order; 0 by default
    order_by:     columns that order events of the same time and node
    bad_events:   "raise" refuses events without a time or beyond 64 bits, "drop" leaves them out
    streaming:    a streaming DataFrame, the default, or one of what is there now
    format:       "parquet", "arrow" or "csv"; by default what the suffixes of the files say
    columns:      of the events, as DDL or a schema; needed only for a directory that has no files yet
    node_column:  what the node is called in queries
    buckets:      into how many parts keys are put, for as long as a checkpoint lives; by default as many as shuffle
                  partitions, and at least 8
    idle:         after how long without anything new a node holds the watermark back no more; by default never
    max_files:    how many files, or batches of a root, a micro-batch reads at most; by default all
    max_rows:     about how many events a micro-batch reads at most; by default all

    Classes of your own are known to Spark's workers by the modules that define them: see `docs/own.md`. The options of
    Spark's own reader are in `docs/spark-nodes.md`.
    """
    if isinstance(source, Root):
        served = source.sink.query_set
        queries, time = served.queries if queries is None else queries, served.options.time if time is None else time
    if queries is None:
        raise TypeError("say for which queries slices are to be cut; only the root of a tree knows them")
    listed = some_queries(queries)
    options = options_of(
        source,
        listed,
        time_of(listed, time),
        lateness=None if lateness == 0 else json.dumps(plain(lateness)),
        order_by=json.dumps([order_by] if isinstance(order_by, str) else list(order_by)) if order_by else None,
        bad_events=None if bad_events == "raise" else bad_events,
        format=format,
        columns=columns.json() if isinstance(columns, t.StructType) else columns,
        node_column=None if node_column == NODE else node_column,
        buckets=buckets or max(8, int(spark.conf.get("spark.sql.shuffle.partitions", "200") or 200)),
        idle=None if idle is None else f"{duration(idle, 'idle').units} us",
        maxFilesPerTrigger=max_files,
        maxRowsPerTrigger=max_rows,
    )
    _ = Settings.of(options).origin
    register(spark)
    return (spark.readStream if streaming else spark.read).format("windrow").options(**options).load()
