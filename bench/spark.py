"""How fast windrow is on Spark, as ratios to Spark's own windows measured in one run, with `local[2]`.

    python bench/spark.py                  all workloads, printed and written to bench/results/spark.json
    python bench/spark.py --check          exits 1 when a line falls short of what it must reach
    python bench/spark.py --scale 0.01     a hundredth of the size, to see that it runs

Events lie in Parquet: 20M of them over 200 seconds, in order, with 10 keys. What is compared runs alternately, and
results are computed and thrown away (`noop`).
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from core import Line, Work, best, main
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import windrow as wr
from windrow.spark import session

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


def stages() -> list[Any]:
    """What Spark has measured of every stage so far."""
    context: Any = spark().sparkContext
    nothing = context._gateway.new_array(context._jvm.double, 0)
    found = context._jsc.sc().statusStore().stageList(None, False, False, nothing, context._jvm.java.util.ArrayList())
    return [found.apply(at) for at in range(found.size())]


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
    before = {stage.stageId() for stage in stages()}
    ours(df, *queries)()
    new = [stage for stage in stages() if stage.stageId() not in before]
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
    """Line 6: a counting window over all events against a global sort."""
    df = events(scale)
    n = max(1, int(1_000_000 * scale))

    def sort() -> None:
        from pyspark.sql import Window

        numbered = df.select("x", F.row_number().over(Window.orderBy("ts", "x")).alias("n"))
        computed(numbered.groupBy(F.floor((F.col("n") - 1) / n)).agg(F.avg("x")))

    found = best(min(runs, 2), windrow=ours(df, wr.Query("q", wr.counting(n), wr.mean("x"))), spark=sort)
    yield Line("counting over all events / row_number", found["spark"] / found["windrow"], 5, seconds=found)


WORKLOADS: dict[str, Work] = {work.__name__: work for work in (batch, median, counting)}

if __name__ == "__main__":
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--driver-memory 6g pyspark-shell"
    sys.exit(main(WORKLOADS, "spark", __doc__))
