"""The sources of a storm's local nodes, which the storm writes itself: its events are known without asking windrow.

Lines of a file that grows, sometimes cut in the middle; several such files; a folder of whole Parquet files; messages
of a broker. `table` gives back what was written, read by DuckDB from the very files (of messages, from a list of them).
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from mosquitto import Mosquitto

Row = dict[str, Any]
BEGIN = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000_000)
LATENESS = 400_000  # microseconds
_JSON = (
    "columns = {'ts': 'VARCHAR', 'key': 'BIGINT', 'value': 'BIGINT', 'place': 'BIGINT'}, format = 'newline_delimited'"
)
_ORDERED = "SELECT epoch_us(ts::TIMESTAMP) AS ts, '{node}' AS node, place, key, value FROM {files}"


def events_of(dice: random.Random, count: int, length: int) -> list[Row]:
    """Events in a time of so many microseconds, none more than the lateness older than the newest before it.

    There are pauses, for sessions, and times that several events have, here and at other nodes.
    """
    steps = [dice.choice([0, 1, 1, 2, 3]) + (20 if dice.random() < 0.03 else 0) for _ in range(count)]
    scale, at, rows = length / max(1, sum(steps)), 0.0, list[Row]()
    for place, step in enumerate(steps):
        at += step * scale
        back = dice.randint(0, LATENESS) if dice.random() < 0.2 else 0
        ts = BEGIN + max(0, int(at) - back) // 1000 * 1000
        rows.append({"ts": ts, "key": dice.randrange(3), "value": dice.randrange(60), "place": place})
    return rows


def _line(row: Row) -> bytes:
    ts = datetime.fromtimestamp(row["ts"] // 1_000_000, UTC).replace(microsecond=row["ts"] % 1_000_000)
    return json.dumps({**row, "ts": ts.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}).encode() + b"\n"


class Growing:
    """A file that grows; its last line may not be complete for a while."""

    def __init__(self, folder: Path, node: str, dice: random.Random) -> None:
        self._node, self._dice, self._rest = node, dice, b""
        self._path = self._begin(folder)

    def _begin(self, folder: Path) -> Path:
        folder.mkdir()
        path = folder / "events.jsonl"
        path.touch()
        return path

    @property
    def described(self) -> dict[str, Any]:
        return {"files": str(self._path), "growing": True}

    def write(self, rows: Sequence[Row]) -> None:
        data = self._rest + b"".join(map(_line, rows))
        cut = self._dice.randrange(len(data) + 1) if self._dice.random() < 0.2 else len(data)
        self._rest = data[cut:]
        with self._path.open("ab") as file:
            file.write(data[:cut])

    def finish(self) -> dict[str, Any]:
        """Write what was left over; returns the source that comes to an end."""
        with self._path.open("ab") as file:
            file.write(self._rest)
        self._rest = b""
        return {**self.described, "until_end": True}

    @property
    def table(self) -> str:
        return _ORDERED.format(node=self._node, files=f"read_json('{self._path.parent}/*.jsonl', {_JSON})")


class Rotating(Growing):
    """A folder of files that grow one after the other."""

    def _begin(self, folder: Path) -> Path:
        folder.mkdir()
        self._number = 0
        return folder / "0000.jsonl"

    @property
    def described(self) -> dict[str, Any]:
        return {"files": str(self._path.parent), "growing": True}

    def write(self, rows: Sequence[Row]) -> None:
        super().write(rows)
        if not self._rest and self._path.exists() and self._path.stat().st_size > 20_000:
            self._number += 1
            self._path = self._path.with_name(f"{self._number:04}.jsonl")


class Whole:
    """A folder of Parquet files that appear whole."""

    def __init__(self, folder: Path, node: str, dice: random.Random) -> None:
        folder.mkdir()
        self._node, self._folder, self._number, self._rows = node, folder, 0, list[Row]()

    @property
    def described(self) -> dict[str, Any]:
        return {"files": str(self._folder)}

    def write(self, rows: Sequence[Row], least: int = 20) -> None:
        self._rows += rows
        if len(self._rows) < max(1, least):
            return
        hidden = self._folder / f"{self._number:06}.parquet.tmp"
        frame = pl.DataFrame(self._rows, schema=dict.fromkeys(("ts", "key", "value", "place"), pl.Int64))
        frame.with_columns(pl.col("ts").cast(pl.Datetime("us", "UTC"))).write_parquet(hidden)
        hidden.rename(hidden.with_suffix(""))
        self._rows, self._number = [], self._number + 1

    def finish(self) -> dict[str, Any]:
        self.write([], least=0)
        return {**self.described, "until_end": True}

    @property
    def table(self) -> str:
        return _ORDERED.format(node=self._node, files=f"read_parquet('{self._folder}/*.parquet')")


class Published:
    """Messages of a broker, which the node reads by way of `port`. Nobody can say that these have ended."""

    def __init__(self, folder: Path, node: str, broker: Mosquitto, port: int) -> None:
        import paho.mqtt.client as paho

        from windrow.nodes.sources import source_of

        folder.mkdir()
        self._node, self._list, self._topic, self._port = node, folder / "published.jsonl", f"plant/{node}", port
        self.count = 0
        session: Any = source_of({**self.described, "kind": "mqtt", "port": broker.port}, node)
        session.resume({})  # from now on the broker keeps what is published
        assert session._client.subscribed.wait(30)
        session.close()
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, f"publisher-{node}", protocol=paho.MQTTv5)
        self._client.max_inflight_messages_set(1000)
        self._client.connect("127.0.0.1", broker.port)
        self._client.loop_start()

    @property
    def described(self) -> dict[str, Any]:
        return {"kind": "mqtt", "topic": self._topic, "host": "127.0.0.1", "port": self._port}

    def write(self, rows: Sequence[Row]) -> None:
        lines = [_line(row) for row in rows]
        with self._list.open("ab") as file:
            file.write(b"".join(lines))
        for sent in [self._client.publish(self._topic, line, qos=1) for line in lines]:
            sent.wait_for_publish(30)
        self.count += len(rows)

    def finish(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    @property
    def table(self) -> str:
        return _ORDERED.format(node=self._node, files=f"read_json('{self._list}', {_JSON})")


Source = Growing | Whole | Published


def loaded(sources: Sequence[Source]) -> duckdb.DuckDBPyConnection:
    """A database with the table `events`, of all that was written."""
    database = duckdb.connect()
    database.execute("SET threads TO 1")
    database.execute("SET TimeZone = 'UTC'")
    database.execute("CREATE TABLE events AS " + " UNION ALL ".join(source.table for source in sources))
    return database
