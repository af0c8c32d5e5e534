"""A Spark stream over the root of a storm's tree, in a process of its own, which the storm kills.

It reads until the root has ended and everything is answered. Only then it writes what its sink holds, as Spark reads
that, into one place: files that a kill has left in the sink, and that Spark's log does not know, are not results.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import windrow as wr
from conftest import SPARK  # settings with which short jobs take less than half the time
from windrow.spark import Root, nodes, session


def has_ended(root: Path) -> bool:
    try:
        return bool(json.loads((root / "status.json").read_text())["state"] == "ended")
    except (OSError, ValueError):
        return False


def stream(spark: Any, root: Path, folder: Path) -> None:
    sink = str(folder / "sink")
    results = wr.windows(nodes(spark, Root(root), buckets=2))
    writer = results.writeStream.format("parquet").option("path", sink)
    live = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    while not has_ended(root):
        if live.awaitTermination(0.5):
            raise RuntimeError("the stream has ended before the tree")
    live.processAllAvailable()
    live.stop()
    spark.read.parquet(sink).coalesce(1).write.mode("overwrite").parquet(str(folder / "results"))


if __name__ == "__main__":
    while not (Path(sys.argv[1]) / "slices/asked").exists():
        time.sleep(0.1)
    stream(session("local[2]", **SPARK), Path(sys.argv[1]), Path(sys.argv[2]))
