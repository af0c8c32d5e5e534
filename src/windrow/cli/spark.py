"""A run on Spark: a batch of files, or files that come as a stream.

Spark's own reader reads Parquet, and all files of a stream. The other files of a batch are read by workers, as they are
read in this process, so that both engines see the same events.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t

from windrow.api import windows
from windrow.cli.failures import Refused
from windrow.cli.options import Request
from windrow.cli.progress import Shown
from windrow.cli.results import show
from windrow.cli.run_command import Where
from windrow.core.arrays.dataframes import InputError
from windrow.core.plan.options import StreamOptions
from windrow.core.slices.binding import quoted
from windrow.io.event_files import EventFiles, TextForm, csv_columns, form_of
from windrow.spark.types import mapped_to_frames, struct

TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
T = TypeVar("T")
METRICS, RESULTS = "windrow", "windrow_results"  # the names of observed metrics


# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """Events that Spark reads: files that are there now, or a path that only Spark can look at."""

    path: str
    files: EventFiles | None
    form: str
    text: TextForm

    @staticmethod
    def of(path: str, files: EventFiles | None, form: str | None, text: TextForm) -> Source:
        return Source(path, files, files.form if files else form or form_of(path.rstrip("/*")) or "parquet", text)

    def batch(self, spark: SparkSession, needed: Sequence[str] | None = None) -> DataFrame:
        columns = self.files.columns if self.files else {}
        nanoseconds = any(isinstance(dtype, pl.Datetime) and dtype.time_unit == "ns" for dtype in columns.values())
        since_1970 = self.files is not None and self.files.text.time_formats
        if self.files and (nanoseconds or since_1970 or self.form != "parquet"):  # Spark has no reader for them
            return _by_workers(spark, self.files, needed)
        reader = _reading(spark.read, self.form, self._separator)
        if self.form == "csv":
            reader = reader.option("inferSchema", True)
        return reader.load([os.path.abspath(path) for path in self.files.paths] if self.files else [self.path])  # type: ignore[no-any-return]

    @property
    def _separator(self) -> str:
        if self.files is None or self.form != "csv":
            return self.text.separator or ","
        return csv_columns(self.files.paths[0], self.text)[1]

    def stream(self, spark: SparkSession, most: int | None) -> DataFrame:
        """The files that are there, and those that come."""
        if self.form == "arrow":
            raise Refused("Spark does not read Arrow files as a stream; write Parquet, or leave --stream out")
        if self.files is not None and self.files.paths == [self.path]:
            raise Refused(f"a stream reads a directory or a pattern, to which files come, and {self.path!r} is a file")
        if self.files is not None and self.form != "parquet":
            schema = struct(_known(self.files.columns))
        else:
            schema = self.batch(spark).schema
        reader = _reading(spark.readStream, self.form, self._separator, self.text.header is None).schema(schema)
        if most is not None:
            reader = reader.option("maxFilesPerTrigger", most)
        if os.path.isdir(self.path):
            reader = reader.option("recursiveFileLookup", True)
        return reader.load(self.path if self.files is None else os.path.abspath(self.path))  # type: ignore[no-any-return]


def _by_workers(spark: SparkSession, files: EventFiles, needed: Sequence[str] | None) -> DataFrame:
    """Files that Python reads where Spark's tasks run, each of them one task."""
    wanted = {name: dtype for name, dtype in files.columns.items() if needed is None or name in needed}
    types = _known(wanted)

    def events(batches: Iterator[pa.RecordBatch]) -> Iterator[pl.DataFrame]:
        for batch in batches:
            for path in batch.column(0).to_pylist():
                for frame in files.frames(path, wanted):
                    if lacking := [name for name in types if name not in frame.columns]:
                        raise InputError(f"file {path!r}: column {lacking[0]!r} is missing")
                    yield frame.cast(pl.Schema(types))

    paths = [(os.path.abspath(path),) for path in files.paths]
    listed = spark.createDataFrame(paths, "path STRING").repartition(min(len(paths), 1000))
    return mapped_to_frames(listed, events, types)


def _known(columns: Mapping[str, pl.DataType]) -> dict[str, pl.DataType]:
    """Types that Spark has: times in microseconds, categories as text."""
    known_types = dict(columns)
    for name, dtype in columns.items():
        if isinstance(dtype, pl.Datetime):
            known_types[name] = pl.Datetime("us", dtype.time_zone)
        elif isinstance(dtype, pl.Categorical | pl.Enum):
            known_types[name] = pl.String()
    return known_types


def _reading(reader: Any, form: str, separator: str, has_header: bool = True) -> Any:
    """Spark's reader, which reads CSV as everybody else does, and fails where something does not fit the types."""
    configured = reader.format(form)
    if form in ("csv", "json"):
        configured = configured.option("mode", "FAILFAST")
    if form == "csv":
        configured = configured.option("header", has_header).option("enforceSchema", False).option("escape", '"')
        configured = configured.option("sep", separator)
    return configured


# --- a batch --------------------------------------------------------------------------------------------------------


def run(
    spark: SparkSession,
    events: DataFrame,
    request: Request,
    options: StreamOptions,
    out: Path | None,
    form: str,
    shown: Shown,
) -> pl.DataFrame | None:
    """Answer queries over a whole DataFrame, into a directory, or into a table that is returned."""

    def answer() -> tuple[int, pl.DataFrame | None]:
        results = windows(events, request.queries, partial=request.partial, **vars(options.whole))
        if out is None:
            table = pl.DataFrame(results.toArrow())
            return table.height, table
        counted = Observation(RESULTS)
        results = results.observe(counted, F.count(F.lit(1)).alias("results"))
        _written(results, form).write.format(form).options(**_writing(form)).save(str(out.absolute()))
        return int(counted.get["results"]), None

    count, table = _watched(spark, answer, shown)
    shown.at(results=count)
    return table


def _writing(form: str) -> dict[str, Any]:
    if form == "csv":
        return {"header": True, **TIMES}
    return {"ignoreNullFields": False, **TIMES} if form == "json" else {}


def _written(results: DataFrame, form: str) -> DataFrame:
    """CSV has no lists and structs, so those are JSON."""
    if form != "csv":
        return results
    nested = (t.ArrayType, t.StructType, t.MapType)
    columns = []
    for field in results.schema.fields:
        column = F.col(quoted(field.name))
        columns.append(F.to_json(column, TIMES).alias(field.name) if isinstance(field.dataType, nested) else column)
    return results.select(*columns)


def _watched(spark: SparkSession, action: Callable[[], T], shown: Shown) -> T:
    """Tell of stages and tasks while something runs, and end it by Ctrl-C."""
    context = spark.sparkContext
    tracker = context.statusTracker()
    with ThreadPoolExecutor(1) as pool, _ctrl_c() as stop:
        running = pool.submit(action)
        while not wait([running], 0.4).done:
            if stop.is_set():
                context.cancelAllJobs()
                continue
            infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            if there := [info for info in infos if info is not None]:
                tasks, done = sum(info.numTasks for info in there), sum(info.numCompletedTasks for info in there)
                names = ", ".join(str(info.stageId) for info in there)
                shown.at(doing=f"Spark's stage {names}: {done:,} of {tasks:,} tasks", done=done / max(tasks, 1))
        if stop.is_set():
            raise KeyboardInterrupt
        shown.at(doing=None)
        return running.result()


@contextmanager
def _ctrl_c() -> Iterator[threading.Event]:
    """Ctrl-C as something to look at: in the midst of a call to the JVM it would tear the call apart."""
    pressed = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: pressed.set())
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


# --- a stream -------------------------------------------------------------------------------------------------------


def stream(
    spark: SparkSession,
    events: DataFrame,
    request: Request,
    options: StreamOptions,
    where: Where,
    checkpoint: Path,
    shown: Shown,
) -> None:
    """Answer queries over a streaming DataFrame until its files are read, or for ever; Ctrl-C ends it in between."""

    def show_new(batch: DataFrame, _: int) -> None:
        rows = pl.DataFrame(batch.toArrow())
        if rows.height:
            show(rows, request.queries, where.form, where.rows)

    results = windows(events, request.queries, **vars(options))
    results = results.observe(RESULTS, F.count(F.lit(1)).alias("results"))
    if where.out is None:
        writer = results.writeStream.outputMode("update" if options.updates else "append").foreachBatch(show_new)
    else:
        writer = _written(results, where.written).writeStream.format(where.written).options(**_writing(where.written))
        writer = writer.option("path", str(where.out.absolute()))
    writer = writer.option("checkpointLocation", str(checkpoint.absolute()))
    query = writer.start() if where.follow else writer.trigger(availableNow=True).start()
    counted = set[int]()
    try:
        with _ctrl_c() as stop:
            while query.isActive and not stop.wait(0.5):
                _count(query.recentProgress, counted, shown)
            if stop.is_set():
                shown.say("stopping the stream")
                query.stop()
                raise KeyboardInterrupt
        query.awaitTermination()  # which raises what has ended it
    finally:
        _count(query.recentProgress, counted, shown)


def _count(progress: Sequence[Any], counted: set[int], shown: Shown) -> None:
    """Add up what micro-batches say that were not counted."""
    before = shown.counts
    counts: dict[str, Any] = {name: getattr(before, name) or 0 for name in ("events", "results", "dropped")}
    watermark = None
    for batch in progress:
        observed = batch["observedMetrics"]
        if batch["batchId"] in counted or METRICS not in observed:
            continue
        counted.add(batch["batchId"])
        counts["events"] += int(batch["numInputRows"])
        counts["dropped"] += int(observed[METRICS]["dropped"])
        counts["results"] += int(observed[RESULTS]["results"])
        watermark = batch["eventTime"].get("watermark")
    if watermark is not None and not watermark.startswith(("1970-01-01T00:00:00.000", "+")):  # none yet, or a number
        counts["watermark"] = watermark.removesuffix("Z").replace("T", " ").removesuffix(".000")
    shown.at(**counts)
