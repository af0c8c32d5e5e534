"""Many keys in Spark's default memory: prints, as JSON, the windows of each query, those expected, and the seconds.

    python bench/many_keys.py 1000000 100000      so many keys in a batch, so many in a stream

Each key has two events of each of two minutes, so that hardly two events share a slice: what windrow is worst at.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import windrow as wr
from windrow.spark import session

QUERIES = [
    wr.Query("mean", wr.tumbling("1 minute"), [wr.mean("x"), wr.max("x")], by="k"),
    wr.Query("median", wr.tumbling("1 minute"), [wr.median("x")], by="k"),
    wr.Query("last", wr.session("40 seconds"), [wr.count(), wr.last("x")], by="k"),
    wr.Query("two", wr.counting(2), [wr.sum("x")], by="k"),
]


def minute(spark: Any, number: int, keys: int) -> Any:
    """Two events of each key, the first and the last second of a minute."""
    at = f"CAST({number} * 60 + 1 + id DIV {keys} * 58 AS TIMESTAMP) AS ts"
    return spark.range(2 * keys).selectExpr(at, f"id % {keys} AS k", "rand(7) AS x")


def main(batch: int, stream: int) -> None:
    spark = session("local[2]")
    spark.sparkContext.setLogLevel("ERROR")
    found: dict[str, tuple[int, int, float]] = {}

    def note(name: str, expected: int, count: Callable[[], int]) -> None:
        begin = time.perf_counter()
        found[name] = count(), expected, time.perf_counter() - begin

    whole = minute(spark, 0, batch).union(minute(spark, 1, batch))
    windows_of_a_key = {"mean": 2, "median": 2, "last": 3, "two": 2}
    for query in QUERIES:
        expected = windows_of_a_key[query.name] * batch
        note(query.name, expected, wr.windows(whole, query, "ts").count)
    with tempfile.TemporaryDirectory(prefix="windrow-keys-") as folder:
        for number in range(4):  # what is whole once the watermark has passed the third minute
            minute(spark, number, stream).coalesce(1).write.mode("append").parquet(f"{folder}/in")
        files = spark.readStream.schema("ts TIMESTAMP, k BIGINT, x DOUBLE").option("maxFilesPerTrigger", 1)
        live = wr.windows(files.parquet(f"{folder}/in"), QUERIES, "ts", lateness="1 second")

        def streamed() -> int:
            writer = live.writeStream.format("parquet").option("path", f"{folder}/out")
            writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
            writer.start().awaitTermination()
            return int(spark.read.parquet(f"{folder}/out").where("window_end <= timestamp_seconds(180)").count())

        # of the first three minutes: each one's mean, median and pair; and the sessions that end before the fourth
        note("stream", (3 + 3 + 3 + 3) * stream, streamed)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*(int(given) for given in sys.argv[1:]))
