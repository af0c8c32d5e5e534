"""How fast windrow is on Spark, as ratios to Spark's own windows measured in one run, with `local[2]`.

    python bench/spark.py                  all workloads, printed and written to bench/results/spark.json
    python bench/spark.py --check          exits 1 when a line falls short of what it must reach
    python bench/spark.py --scale 0.01     a hundredth of the size, to see that it runs

Events lie in Parquet: 20M or 40M of them over 200 seconds, in order, with 10 keys. What is compared runs alternately,
and results are computed and thrown away (`noop`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from core import Line, Work, best, main
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import windrow as wr
from windrow.spark import nodes, session
from windrow.spark.settings import stages

SECONDS = 200
FILES = 8


@cache
def spark() -> SparkSession:
    made = session("local[2]", spark__sql__shuffle__partitions=2, spark__driver__memory="6g")
    made.sparkContext.setLogLevel("ERROR")
    return made


@cache
def folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="windrow-bench-")


@cache
def events(scale: float) -> DataFrame:
    """The events, written once."""
    place = Path(folder().name) / f"events-{scale}"
    place.mkdir()
    size = int(20_000_000 * scale)
    rng = np.random.default_rng(7)
    times = np.sort(rng.integers(0, SECONDS * 1_000_000, size)) + 1_700_000_000_000_000
    frame = pl.DataFrame(
        {
            "ts": pl.Series(times).cast(pl.Datetime("us", "UTC")),
            "key": rng.integers(0, 10, size),
            "x": rng.random(size),
        }
    )
    for part in range(FILES):
        frame[part * size // FILES : (part + 1) * size // FILES].write_parquet(place / f"{part}.parquet")
    return spark().read.parquet(str(place))


def computed(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


def ours(df: DataFrame, *queries: wr.Query) -> Callable[[], None]:
    return lambda: computed(wr.windows(df, queries, "ts"))


def batch(scale: float, runs: int) -> Iterator[Line]:
    """Lines 1 to 4: mergeable functions against Spark's own windows."""
    df = events(scale)
    one = ours(df, wr.Query("q", wr.tumbling("1 second"), wr.mean("x"), by="key"))
    found = best(
        runs,
        spark=lambda: computed(df.groupBy("key", F.window("ts", "1 second")).agg(F.avg("x"))),
        windrow=one,
    )
    rate = f"{df.count() / found['windrow'] / 1e6:.1f}M events/s"
    yield Line("tumbling 1 s, mean / Spark's own", found["spark"] / found["windrow"], 0.9, seconds=found, note=rate)
    found = best(
        min(runs, 2),
        windrow=ours(df, wr.Query("q", wr.sliding("60 seconds", "1 second"), wr.mean("x"), by="key")),
        spark=lambda: computed(df.groupBy("key", F.window("ts", "60 seconds", "1 second")).agg(F.avg("x"))),
    )
    yield Line("sliding 60 s / 1 s, mean / Spark's own", found["spark"] / found["windrow"], 10, seconds=found)
    functions: list[tuple[wr.Aggregate, Column]] = [
        (wr.mean("x"), F.avg("x")),
        (wr.sum("x"), F.sum("x")),
        (wr.max("x"), F.max("x")),
        (wr.count(), F.count("*")),
        (wr.stddev("x"), F.stddev("x")),
    ]
    asked = [functions[n % len(functions)] for n in range(20)]
    queries = [wr.Query(f"q{n}", wr.tumbling(f"{n + 1} seconds"), asked[n][0], by="key") for n in range(20)]

    def union() -> None:
        whole: DataFrame | None = None
        for n, (_, function) in enumerate(asked):
            part = df.groupBy("key", F.window("ts", f"{n + 1} seconds")).agg(function.cast("double").alias("value"))
            whole = part if whole is None else whole.union(part)
        assert whole is not None
        computed(whole)

    found = best(min(runs, 2), windrow=ours(df, *queries), spark=union)
    yield Line(
        "20 windows of 1 to 20 s, five functions / Spark's own", found["spark"] / found["windrow"], 8, seconds=found
    )
    before = {stage.stageId() for stage in stages(spark())}
    ours(df, *queries)()
    new = [stage for stage in stages(spark()) if stage.stageId() not in before]
    shuffled = sum(int(stage.shuffleWriteBytes()) for stage in new)
    size = sum(file.stat().st_size for file in (Path(folder().name) / f"events-{scale}").glob("*.parquet"))
    note = f"{shuffled:,} bytes shuffled, {size:,} bytes of Parquet"
    yield Line("bytes shuffled / bytes of the events", shuffled / size, most=0.01, note=note)


def median(scale: float, runs: int) -> Iterator[Line]:
    """Line 5: an exact median of 1 s windows, 100,000 events each."""
    df = events(scale)
    found = best(
        min(runs, 2),
        windrow=ours(df, wr.Query("q", wr.tumbling("1 second"), wr.median("x"))),
        spark=lambda: computed(df.groupBy(F.window("ts", "1 second")).agg(F.median("x"))),
    )
    yield Line("exact median, 1 s windows / Spark's own", found["spark"] / found["windrow"], 4, seconds=found)


def counting(scale: float, runs: int) -> Iterator[Line]:
    """Line 6: a counting window over all of 40M events against a global sort."""
    df = events(2 * scale)
    n = max(1, int(1_000_000 * scale))

    def sort() -> None:
        from pyspark.sql import Window

        numbered = df.select("x", F.row_number().over(Window.orderBy("ts", "x")).alias("n"))
        computed(numbered.groupBy(F.floor((F.col("n") - 1) / n)).agg(F.avg("x")))

    found = best(min(runs, 4), windrow=ours(df, wr.Query("q", wr.counting(n), wr.mean("x"))), spark=sort)
    yield Line("counting over all events / row_number", found["spark"] / found["windrow"], 5, seconds=found)


def streamed(frame: DataFrame) -> Any:
    """A streaming DataFrame read to the end; returns the finished query."""
    place = tempfile.mkdtemp(dir=folder().name)
    writer = frame.writeStream.format("noop").option("checkpointLocation", place)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def streaming(scale: float, runs: int) -> Iterator[Line]:
    """Lines 7 and 8: streams of 40M events, 10M in each micro-batch, and two nodes with half of them each."""
    df = events(2 * scale)
    place = Path(folder().name) / f"events-{2 * scale}"
    files = spark().readStream.schema(df.schema).option("maxFilesPerTrigger", 2).parquet(str(place))
    sliding = wr.Query("q", wr.sliding("60 seconds", "1 second"), wr.mean("x"), by="key")
    nodes_place = Path(folder().name) / f"nodes-{scale}"
    for part in range(FILES):
        node = nodes_place / f"node-{part % 2}"
        node.mkdir(parents=True, exist_ok=True)
        (node / f"{part}.parquet").hardlink_to(place / f"{part}.parquet")
    sources: dict[str, Callable[[], DataFrame]] = {
        "windrow": lambda: wr.windows(files, [sliding], "ts", lateness="1 second"),
        "nodes": lambda: wr.windows(
            nodes(spark(), nodes_place, [sliding], "ts", lateness="1 second", max_files=2), [sliding]
        ),
        "spark": lambda: (
            files.withWatermark("ts", "1 second")
            .groupBy("key", F.window("ts", "60 seconds", "1 second"))
            .agg(F.avg("x"))
        ),
    }
    found = {name: seconds_per_batch(streamed(frame())) for name, frame in sources.items()}
    rates = ", ".join(f"{name} {int(scale * 1e7) / seconds / 1e6:.2f}M/s" for name, seconds in found.items())
    ratio = found["spark"] / found["windrow"]
    yield Line("stream, sliding 60 s / 1 s, mean / Spark's own", ratio, 5, seconds=found, note=rates)
    ratio = found["spark"] / found["nodes"]
    yield Line("stream of nodes' slices, the same / Spark's own", ratio, 20, seconds=found, note=rates)


def seconds_per_batch(query: Any) -> float:
    """The least that a micro-batch with events took, the first one left out, in which everything is started."""
    took = [one["durationMs"]["triggerExecution"] / 1000 for one in query.recentProgress if one["durationMs"]]
    return float(min(took[1 : FILES // 2]))


def live(scale: float, runs: int) -> Iterator[Line]:
    """Line 9: micro-batches of ten events, beside a million live slices and beside none."""
    size = int(1_000_000 * scale)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    query = wr.Query("q", wr.tumbling("1 day"), [wr.mean("x"), wr.max("x")], by="key")

    def folder_of(name: str, first: int) -> str:
        place = Path(folder().name) / f"{name}-{scale}"
        place.mkdir()
        for part in range(9):
            keys = range(first if part == 0 else 10)
            times = [begin + timedelta(seconds=part)] * len(keys)
            frame = pl.DataFrame({"ts": times, "key": keys, "x": [1.0] * len(keys)})
            frame = frame.with_columns(pl.col("ts").cast(pl.Datetime("us", "UTC")), pl.col("key").cast(pl.Int64))
            frame.write_parquet(place / f"{part}.parquet")
            os.utime(place / f"{part}.parquet", (10**9 + part, 10**9 + part))
        return str(place)

    found = {}
    for name, first in (("none", 10), ("live", size)):
        files = spark().readStream.schema("ts TIMESTAMP, key BIGINT, x DOUBLE").option("maxFilesPerTrigger", 1)
        done = streamed(wr.windows(files.parquet(folder_of(name, first)), [query], "ts", lateness="1 second"))
        took = [
            one["durationMs"]["triggerExecution"] / 1000 for one in done.recentProgress if one["numInputRows"] == 10
        ]
        found[name] = sorted(took[-7:])[len(took[-7:]) // 2]
    note = f"{size:,} live slices"
    yield Line(
        "a small micro-batch beside live slices / beside none",
        found["live"] / found["none"],
        most=2,
        seconds=found,
        note=note,
    )


def keys(scale: float, runs: int) -> Iterator[Line]:
    """Line 10: a million keys in a batch, 100,000 in a stream, in a process with Spark's default memory."""
    sizes = [str(max(10, int(size * scale))) for size in (1_000_000, 100_000)]
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_SUBMIT_ARGS"}
    script = Path(__file__).parent / "many_keys.py"
    done = subprocess.run(
        [sys.executable, script, *sizes], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, tuple[int, int, float]] = json.loads(done.stdout.splitlines()[-1])
    right = sum(count == expected for count, expected, _ in found.values())
    seconds = {name: took for name, (_, _, took) in found.items()}
    note = f"{' and '.join(sizes)} keys in Spark's default memory"
    yield Line("many keys: queries with all their windows", right / len(found), 1, seconds=seconds, note=note)


WORKLOADS: dict[str, Work] = {work.__name__: work for work in (batch, median, counting, streaming, live, keys)}

if __name__ == "__main__":
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--driver-memory 6g pyspark-shell"
    sys.exit(main(WORKLOADS, "spark", __doc__))
