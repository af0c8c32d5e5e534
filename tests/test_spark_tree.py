"""From the edge to Spark: processes that slice, one that merges, a root that leaves slices, and a stream over them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import windrow as wr
from test_tree import QUERIES, Processes, events_of, started, tree_of  # noqa: F401
from windrow.nodes.process.tree import Tree
from windrow.testing import differences, recompute

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from windrow.spark import Root, nodes

pytestmark = pytest.mark.spark


def test_a_tree_of_processes_feeds_a_stream_with_the_oracles_rows(
    spark: SparkSession,
    tmp_path: Path,
    started: Callable[[Tree], Processes],  # noqa: F811
) -> None:
    source = {
        "source": {"generator": {"rate": 20, "length": "10 seconds", "disorder": "400 ms", "keys": 2, "speed": 8}}
    }
    below = {"parent": "plant", **source}
    tree = tree_of(tmp_path, {"plant": {}, "north": below, "south": below, "west": source}, feeds="slices")
    rows = [row for member in tree if member.role == "local" for row in events_of(member)]
    processes = started(tree)
    processes.start("root")
    slices = nodes(spark, Root(tree.root.folder), buckets=2)
    writer = wr.windows(slices).writeStream.format("parquet").option("path", str(tmp_path / "out"))
    live = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    processes.start("plant", "west")
    processes.start("north", "south")
    processes.wait()
    live.processAllAvailable()
    live.stop()
    found = pl.DataFrame(pl.from_arrow(spark.read.parquet(str(tmp_path / "out")).toArrow()))
    rows.sort(key=lambda row: (row["ts"], row["node"]))
    assert differences(found.to_dicts(), recompute(rows, QUERIES, time="ts", order_by=("node",)), QUERIES) == []
