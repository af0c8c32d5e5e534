"""Spark's own windows on the same data: `groupBy(window(…))` and `session_window` give what windrow gives."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

import polars as pl
import pytest

import windrow as wr
from spark_cases import results
from windrow.testing import differences

pytestmark = pytest.mark.spark

AGGREGATES = ("count()", "count(x)", "sum(i)", "sum(x)", "mean(x)", "min(x)", "max(i)", "stddev(x)", "variance_pop(x)")
OWN = {
    "count()": "count(*)",
    "mean(x)": "avg(x)",
    "stddev(x)": "stddev_samp(x)",
    "variance_pop(x)": "var_pop(x)",
}
WINDOWS = {
    "tumbling": (wr.tumbling("10 seconds"), "window(ts, '10 seconds')"),
    "offset": (wr.tumbling("1 minute", "7 seconds"), "window(ts, '1 minute', '1 minute', '7 seconds')"),
    "sliding": (wr.sliding("30 seconds", "7 seconds"), "window(ts, '30 seconds', '7 seconds')"),
    "session": (wr.session("2 seconds"), "session_window(ts, '2 seconds')"),
}


def events(seed: int, count: int = 600) -> pl.DataFrame:
    """About ten minutes around the beginning of 1970, with pauses, in no order."""
    draw = random.Random(seed)
    at = datetime(1969, 12, 31, 23, 55, tzinfo=UTC)
    rows: list[dict[str, Any]] = []
    for _ in range(count):
        at += timedelta(milliseconds=draw.choice((0, 100, 500, 999, 1000, 2000, 2001, 4500)))
        rows.append(
            {
                "ts": at,
                "k": draw.choice(("a", "a", "b", None)),
                "i": draw.choice((None, 1, -5, 10**12)),
                "x": draw.choice((None, draw.gauss(0, 1), 1e6, 0.5)),
            }
        )
    draw.shuffle(rows)
    return pl.DataFrame(
        rows, schema={"ts": pl.Datetime("us", "UTC"), "k": pl.String(), "i": pl.Int64(), "x": pl.Float64()}
    )


def queries() -> list[wr.Query]:
    return [wr.Query(name, window, AGGREGATES, by="k") for name, (window, _) in WINDOWS.items()]


def spark_s_own(frame: Any) -> list[dict[str, Any]]:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    parts = []
    for name, (_, window) in WINDOWS.items():
        grouped = frame.groupBy("k", F.expr(window).alias("w"))
        whole = grouped.agg(*(F.expr(OWN.get(text, text)).alias(text) for text in AGGREGATES))
        bounds = [F.col("w.start").alias("window_start"), F.col("w.end").alias("window_end")]
        parts.append(whole.select("*", *bounds, F.lit(name).alias("query"), F.lit(0).alias("revision")).drop("w"))
    return results(reduce(DataFrame.unionByName, parts))


def test_whole_tables(spark: Any, seed: int) -> None:
    frame = spark.createDataFrame(events(seed).to_arrow())
    found = results(wr.windows(frame, queries(), "ts"))
    assert {row["query"] for row in found} == set(WINDOWS)
    assert differences(found, spark_s_own(frame), queries()) == []
