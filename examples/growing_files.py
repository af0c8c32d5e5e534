"""Files that keep coming, to windows as Parquet: a job that starts every hour, does what is new, and ends.

    events/*.parquet ──▶ wr.windows ──▶ windows/*.parquet
                          checkpoint: which files were read, the slices of windows that are still open

`availableNow` makes a stream of it that ends when everything there has been read. The next run goes on from the
checkpoint, so that a window whose events came in two runs is still one window, and each is written once.

    python examples/growing_files.py [folder]
"""

import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
from pyspark.sql import DataFrame, SparkSession

import windrow as wr
from windrow.spark import session

SCHEMA = "ts TIMESTAMP, sensor STRING, celsius DOUBLE"
QUERIES = [
    wr.Query("hour", wr.tumbling("1 hour"), [wr.mean("celsius").alias("mean"), wr.count().alias("n")], by="sensor"),
    wr.Query("day so far", wr.cumulating("1 day", "6 hours"), [wr.max("celsius").alias("max")]),
    wr.Query("up", wr.session("30 minutes"), [wr.count().alias("n")], by="sensor"),  # ends where a sensor falls silent
]


def deliver(folder: Path, hours: range) -> None:
    """A file for each hour: four sensors, every minute; the third is silent from 7 to 9 o'clock."""
    folder.mkdir(parents=True, exist_ok=True)
    for hour in hours:
        begin = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(hours=hour)
        silent = 7 <= hour < 9
        rows = [(begin + timedelta(minutes=m), s) for m in range(60) for s in "abcd" if not (silent and s == "c")]
        celsius = 15 + 8 * np.sin(hour / 4) + np.random.default_rng(hour).normal(0, 0.5, len(rows))
        frame = pl.DataFrame(rows, schema={"ts": pl.Datetime("us", "UTC"), "sensor": pl.String}, orient="row")
        hidden = folder / f".{hour:03}.parquet"  # Spark must never see half a file: it is renamed when it is complete
        frame.with_columns(celsius=celsius).write_parquet(hidden)
        hidden.rename(folder / f"{hour:03}.parquet")


def run(spark: SparkSession, folder: Path) -> DataFrame:
    """Answer what is new, and return all results so far."""
    events = spark.readStream.schema(SCHEMA).parquet(str(folder / "events"))
    results = wr.windows(events, QUERIES, time="ts", lateness="10 minutes")
    writer = results.writeStream.format("parquet").option("path", str(folder / "windows"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    return spark.read.parquet(str(folder / "windows"))


def main(spark: SparkSession, folder: Path) -> None:
    for hours in (range(10), range(10, 24)):  # two runs, as a scheduler would start them
        deliver(folder / "events", hours)
        results = run(spark, folder)
        print(f"{len(hours)} files more:")
        results.groupBy("query").agg({"window_end": "max", "*": "count"}).orderBy("query").show(truncate=False)
    results.where("query = 'up'").select("sensor", "window_start", "window_end", "n").show()


if __name__ == "__main__":
    spark = session("local[2]")
    spark.sparkContext.setLogLevel("ERROR")
    main(spark, Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()))
