"""Edge to Spark: three nodes write what their sensors see, each slices its own, and Spark assembles.

    north/*.parquet ── sliced in the reader ──┐
    south/*.parquet ── sliced in the reader ──┼──▶ slices, by bucket of keys ──▶ Spark ──▶ windows over all nodes
    west/*.parquet  ── sliced in the reader ──┘

No event enters the JVM: a node's thousands of events are a few slices before Spark sees them. The watermark is the
least of all nodes', so that a node that lags behind holds windows back instead of losing events from them. Exact
quantiles would need every value at the end; where bytes count, a sketch of them is small and its error is known.

    python examples/edge_to_spark.py [folder]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
from pyspark.sql import SparkSession

import windrow as wr
from windrow.spark import nodes, session

QUERIES = [
    wr.Query("load", wr.tumbling("1 minute"), [wr.mean("watts").alias("watts"), wr.count().alias("n")], by="line"),
    wr.Query("peak", wr.sliding("5 minutes", "1 minute"), [wr.approx_quantile("watts", 0.99).alias("watts")]),
    wr.Query("node", wr.tumbling("5 minutes"), [wr.count().alias("n")], by="node"),  # a column like any other
]


def record(folder: Path, minutes: int = 10, rate: int = 20_000) -> int:
    """A file of each node for every minute, and how many events there are; the west is a little slower."""
    events = 0
    for number, (node, each) in enumerate({"north": rate, "south": rate, "west": rate // 2}.items()):
        (folder / node).mkdir(parents=True, exist_ok=True)
        for minute in range(minutes):
            draw = np.random.default_rng([number, minute])
            ts = 1_772_323_200_000_000 + minute * 60_000_000 + np.sort(draw.integers(0, 60_000_000, each))
            columns = {"line": draw.integers(0, 4, each), "watts": draw.gamma(9, 100, each)}
            frame = pl.DataFrame({"ts": pl.Series(ts).cast(pl.Datetime("us", "UTC")), **columns})
            hidden = folder / node / f".{minute:04}.parquet"  # a file must appear whole: rename it when it is complete
            frame.write_parquet(hidden)
            hidden.rename(folder / node / f"{minute:04}.parquet")
            events += each
    return events


def main(spark: SparkSession, folder: Path) -> None:
    events = record(folder / "events")
    slices = nodes(spark, folder / "events", QUERIES, time="ts", lateness="1 second")
    writer = wr.windows(slices, QUERIES).writeStream.format("parquet").option("path", str(folder / "windows"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()

    results = spark.read.parquet(str(folder / "windows"))
    results.where("query = 'load' AND line = 0").select("window_start", "watts", "n").orderBy("window_start").show(3)
    results.where("query = 'node'").select("node", "window_start", "n").orderBy("window_start", "node").show()

    sent = nodes(spark, folder / "events", QUERIES, time="ts", streaming=False)  # the same as one batch, to look at
    rows, size = sent.selectExpr("count(*)", "sum(length(payload))").first()
    print(f"{events:,} events of 24 bytes are {rows} rows of slices, {size / (24 * events):.1%} of the bytes")


if __name__ == "__main__":
    spark = session("local[2]")
    spark.sparkContext.setLogLevel("ERROR")
    main(spark, Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()))
