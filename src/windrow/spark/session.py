"""A Spark session that is set up for windrow, and what is checked of any other."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

from pyspark.sql import SparkSession

from windrow.spark.source import register

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
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
    return int(spark.conf.get("spark.sql.shuffle.partitions", "200") or 200)


def check_streaming(spark: SparkSession, buckets: int) -> None:
    """Refuse a session in which a stream could not run, before it is started."""
    provider = spark.conf.get(PROVIDER, "")
    if "RocksDB" not in (provider or ""):
        raise ValueError(
            f"a stream of windows keeps its state with transformWithState, which needs RocksDB: set {PROVIDER} to "
            f"{ROCKSDB} (windrow.spark.session() does)"
        )
    partitions = shuffle_partitions(spark)
    if partitions > max(64, 4 * buckets):
        warnings.warn(
            f"spark.sql.shuffle.partitions is {partitions}: every micro-batch starts so many tasks for {buckets} "
            "buckets of keys, and a checkpoint keeps the number for ever; set it to about the number of cores",
            stacklevel=4,
        )


def stages(spark: SparkSession) -> list[Any]:
    """What Spark has measured of every stage so far, as its own `StageData`."""
    context: Any = spark.sparkContext
    nothing = context._gateway.new_array(context._jvm.double, 0)
    found = context._jsc.sc().statusStore().stageList(None, False, False, nothing, context._jvm.java.util.ArrayList())
    return [found.apply(at) for at in range(found.size())]


def session(master: str | None = None, **settings: Any) -> SparkSession:
    """A session with the settings that windrow runs best with: RocksDB for state, a shuffle partition per core, UTC.

    master:    as Spark's own, by default "local[*]" with all cores
    settings:  come on top, with `__` for the dots of their names: `session("local[2]", spark__driver__memory="2g")`

    It knows `format("windrow")`, and its workers run this Python. Nothing else in windrow makes a session.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers run the python3 of the PATH
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("windrow")
    cores = os.cpu_count() or 1
    chosen = SETTINGS | {"spark.sql.shuffle.partitions": str(cores)}
    chosen |= {name.replace("__", "."): str(value) for name, value in settings.items()}
    if master is not None or "spark.master" not in chosen:
        builder = builder.master(master or f"local[{cores}]")
    for name, value in chosen.items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    register(found)
    return found
