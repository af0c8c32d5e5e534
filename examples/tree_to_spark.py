"""Tree to Spark: three processes at the edge slice what they see, one merges, and Spark goes on from the root's slices.

    north ──┐
    south ──┴▶ plant ──┐
    west  ─────────────┴▶ root ──▶ spool/root/slices ──▶ Spark ──▶ windows over all nodes, as Parquet

Events stay where they are: what leaves a node is one row for each slice and key. The root has no windows of its own
(`feeds: slices`); Spark keeps their state, and says exactly what one process would that had all events.

    python examples/tree_to_spark.py [folder]
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import windrow as wr
from windrow.spark import Root, nodes, session

TREE = """
queries: |
  -- name: load
  SELECT key, avg(value) AS value, count(*) AS n FROM events GROUP BY key, window(ts, '1 minute');
  -- name: busy
  SELECT key, count(*) AS n FROM events WHERE value > 90 GROUP BY key, session_window(ts, '200 milliseconds')
columns: ts TIMESTAMP, key INT, value DOUBLE
lateness: 2 seconds
feeds: slices
nodes:
  plant: {}
  north: {parent: plant, source: {generator: {rate: 500, length: 3 minutes, keys: 4, disorder: 1 second}}}
  south: {parent: plant, source: {generator: {rate: 500, length: 3 minutes, keys: 4, disorder: 1 second}}}
  west: {source: {generator: {rate: 200, length: 3 minutes, keys: 4, disorder: 1 second}}}
"""


def main(spark: SparkSession, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tree.yaml").write_text(TREE)
    tree = [sys.executable, "-m", "windrow", "tree", "up", str(folder / "tree.yaml")]  # on machines: windrow node …
    subprocess.run(tree, check=True, stdout=subprocess.DEVNULL)

    slices = nodes(spark, Root(folder / "spool" / "root"))  # what is asked is written beside them
    writer = wr.windows(slices).writeStream.format("parquet").option("path", str(folder / "windows"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()

    results = spark.read.parquet(str(folder / "windows"))
    results.where("query = 'load' AND key = 0").select("window_start", "value", "n").orderBy("window_start").show(3)
    results.where("query = 'busy'").groupBy("key").sum("n").orderBy("key").show()


if __name__ == "__main__":
    spark = session("local[2]")
    spark.sparkContext.setLogLevel("ERROR")
    main(spark, Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()))
