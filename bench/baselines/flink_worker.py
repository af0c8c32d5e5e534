"""Flink at work, in an environment of its own: `on_flink` starts it there, and talks with it over pipes.

    {"load": "events.arrow"}  ──▶  the table `events`;   {"sql": …, "to": "results.arrow"}  ──▶  its rows in that file

Each request is a line of JSON, and so is each answer: {"error": null}, or what went wrong. It runs on a cluster in one
Java process with one slot, that is started once: left to itself, PyFlink starts one for every statement.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

import pyarrow as pa
from pyflink.common import Configuration
from pyflink.java_gateway import get_gateway
from pyflink.table import DataTypes, EnvironmentSettings, TableEnvironment

EVENTS = DataTypes.ROW(
    [
        DataTypes.FIELD("ts", DataTypes.TIMESTAMP(3)),
        DataTypes.FIELD("key", DataTypes.BIGINT()),
        DataTypes.FIELD("value", DataTypes.DOUBLE()),
    ]
)


def started() -> TableEnvironment:
    """A cluster, and an environment whose statements run there."""
    settings = Configuration().set_string("rest.bind-port", "0")
    made: Any = get_gateway().jvm.org.apache.flink.runtime.minicluster
    one = made.MiniClusterConfiguration.Builder().setConfiguration(settings._j_configuration)
    cluster = made.MiniCluster(one.setNumTaskManagers(1).setNumSlotsPerTaskManager(1).build())
    cluster.start()
    address = cluster.getRestAddress().get()
    tables = TableEnvironment.create(EnvironmentSettings.in_batch_mode())
    for name, value in {
        "execution.target": "remote",
        "rest.address": address.getHost(),
        "rest.port": str(address.getPort()),
        "parallelism.default": "1",
        "table.local-time-zone": "UTC",
    }.items():
        tables.get_config().set(name, value)
    return tables


def answer(tables: TableEnvironment, asked: dict[str, str]) -> None:
    if "load" in asked:
        with pa.ipc.open_file(asked["load"]) as file:
            events = file.read_all().to_pandas()
        tables.drop_temporary_view("events")
        tables.create_temporary_view("events", tables.from_pandas(events, EVENTS))
    else:
        found = pa.Table.from_pandas(tables.sql_query(asked["sql"]).to_pandas(), preserve_index=False)
        with pa.ipc.new_file(asked["to"], found.schema) as file:
            file.write_table(found)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever Java prints is no answer
    tables = started()
    for line in sys.stdin:
        error = None
        try:
            answer(tables, json.loads(line))
        except Exception:
            error = traceback.format_exc()
        print(json.dumps({"error": error}), file=answers, flush=True)


if __name__ == "__main__":
    main()
