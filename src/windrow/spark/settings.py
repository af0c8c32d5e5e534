"""A Spark session that is set up for windrow, and what is checked of any other."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

from pyspark.sql import SparkSession

from windrow.core.expressions.border import border
from windrow.spark.source.reader import register

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
PARTITIONS = "spark.sql.shuffle.partitions"
SETTINGS = {
    PROVIDER: ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.sql.ui.retainedExecutions": "20",  # their plans stay in memory, for a page that is not there
    "spark.ui.showConsoleProgress": "false",
}


def shuffle_partitions(spark: SparkSession) -> int:
    return int(spark.conf.get(PARTITIONS, "200") or 200)


def check_streaming(spark: SparkSession) -> None:
    """Refuse a session in which a stream could not run, before it is started."""
    provider = spark.conf.get(PROVIDER, "")
    if "RocksDB" not in (provider or ""):
        raise ValueError(
            f"a stream of windows keeps its state with transformWithState, which needs RocksDB: set {PROVIDER} to "
            f"{ROCKSDB} (windrow.spark.session() does)"
        )
    partitions, cores = shuffle_partitions(spark), spark.sparkContext.defaultParallelism
    if partitions > max(64, 4 * cores):
        warnings.warn(
            f"{PARTITIONS} is {partitions}, and there are {cores} cores: every micro-batch starts so many tasks, and a "
            "checkpoint keeps the number for ever; set it to about the number of cores",
            stacklevel=5,  # of the call of `windrow.windows`, behind its border
        )


def stages(spark: SparkSession) -> list[Any]:
    """What Spark has measured of every stage so far, as its own `StageData`."""
    context: Any = spark.sparkContext
    nothing = context._gateway.new_array(context._jvm.double, 0)
    listed = context._jsc.sc().statusStore().stageList(None, False, False, nothing, context._jvm.java.util.ArrayList())
    return [listed.apply(at) for at in range(listed.size())]


@border
def session(master: str | None = None, **settings: Any) -> SparkSession:
    """A session with the settings that windrow runs best with: RocksDB for state, a shuffle partition per core, UTC.

    master:    as Spark's own; by default what `spark-submit` or Spark's own files say, else "local[*]" with all cores
    settings:  come on top, with `__` for the dots of their names: `session("local[2]", spark__driver__memory="2g")`

    It knows `format("windrow")`, and its workers run this Python, or what PYSPARK_PYTHON says. The shuffle partitions
    of a cluster are left alone, because its cores come and go. Nothing else in windrow makes a session.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers run the python3 of the PATH
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("windrow")
    chosen = SETTINGS | {name.replace("__", "."): str(value) for name, value in settings.items()}
    for name, value in chosen.items():
        builder = builder.config(name, value)
    made = (builder if master is None else builder.master(master)).getOrCreate()
    context = made.sparkContext
    is_local = str(context.master).split("[")[0] == "local"  # and not local-cluster
    if is_local and not context.getConf().contains(PARTITIONS) and PARTITIONS not in chosen:
        made.conf.set(PARTITIONS, context.defaultParallelism)
    register(made)
    return made
