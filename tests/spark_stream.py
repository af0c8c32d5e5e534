"""A streaming query in a process of its own, which `test_spark_kill` kills: source, checkpoint and sink are folders."""

from __future__ import annotations

import sys
from typing import Any

import windrow as wr

SCHEMA = "ts TIMESTAMP, k STRING, i BIGINT, x DOUBLE"
LATENESS = "2 seconds"
ORDER = ("i", "x")
QUERIES = [
    wr.Query("sliding", wr.sliding("10 seconds", "3 seconds"), ["count()", "mean(x)", "last(i)"], by="k"),
    wr.Query("all", wr.tumbling("5 seconds"), ["sum(i)", "median(x)"]),
    wr.Query("session", wr.session("1 second"), ["count()", "max(x)"], by="k", where="i > 0"),
    wr.Query("counting", wr.counting(7), ["sum(i)", "collect(i)"], by="k"),
    wr.Query("latest", wr.latest(5, every="4 seconds"), ["sum(i)"], by="k"),
]


def stream(spark: Any, source: str, checkpoint: str, sink: str) -> None:
    """Answer what is there, and go on from the checkpoint if there is one."""
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(source)
    results = wr.windows(frame, QUERIES, "ts", lateness=LATENESS, order_by=ORDER, buckets=4)
    writer = results.writeStream.format("parquet").option("path", sink).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    from windrow.spark import session

    stream(session("local[2]"), *sys.argv[1:])
