"""The journal of a node with children: in its log store, a checkpoint and the batches that it has accepted since.

    epoch        of a root, how many lives it has begun
    checkpoint   the state, the query set, and all counters
    log 17       a batch that was accepted after the checkpoint
    out 8        a batch of the node's own that was not acknowledged when the checkpoint was made

A checkpoint is due once the log is larger than the last one, so that it costs at most a fixed share of what comes in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol, cast

import polars as pl

from windrow.io.tables import pack, unpack
from windrow.nodes.protocol.messages import Batch, from_bytes, to_bytes

LOG = 1 << 20  # bytes of the log that are never worth a checkpoint


class LogStore(Protocol):
    """Bytes by name that outlive the process; a `commit` happens completely or not at all."""

    def get(self, name: str) -> bytes | None: ...
    def names(self) -> Iterable[str]: ...
    def commit(self, put: dict[str, bytes], delete: Iterable[str]) -> None: ...


class Kept(NamedTuple):
    """What the journal of an earlier life holds."""

    header: dict[str, Any]
    tables: dict[str, pl.DataFrame]
    log: list[Batch]
    out: list[Batch]


class Journal:
    """Writes what a node must not lose into a log store; a checkpoint is due after `most` batches at the latest."""

    def __init__(self, store: LogStore, most: int) -> None:
        self._store, self._most = store, most
        self._entry = 0  # number of the last entry of the log
        self._entries, self._bytes = 0, 0  # of the log since the checkpoint
        self._size = 0  # bytes of the checkpoint

    def begin_life(self) -> int:
        """Count the lives of the node, this one among them."""
        epoch = int(self._store.get("epoch") or 0) + 1
        self._store.commit({"epoch": b"%d" % epoch}, [])
        return epoch

    def read(self) -> Kept | None:
        """Read what an earlier life has kept; None if there was none."""
        saved = self._store.get("checkpoint")
        if saved is None:
            return None
        header, tables = unpack(saved)
        self._size = len(saved)
        log, out = self._numbered("log"), self._numbered("out")
        self._entry = max(log, default=header["entry"])
        self._entries, self._bytes = len(log), sum(map(len, log.values()))
        batches = ([cast(Batch, from_bytes(data)) for data in kept.values()] for kept in (log, out))
        return Kept(header, tables, *batches)

    def _numbered(self, kind: str) -> dict[int, bytes]:
        names = [name for name in self._store.names() if name.startswith(f"{kind} ")]
        numbers = sorted(int(name.rpartition(" ")[2]) for name in names)
        return {number: self._store.get(f"{kind} {number}") or b"" for number in numbers}

    def add(self, batch: Batch, acknowledged: Iterable[int]) -> bool:
        """Keep a batch, and drop own ones that are acknowledged; false if a checkpoint is due instead."""
        data = to_bytes(batch)
        if self._bytes + len(data) > max(LOG, self._size) or self._entries + 1 >= self._most:
            return False
        self._entry, self._entries, self._bytes = self._entry + 1, self._entries + 1, self._bytes + len(data)
        self._store.commit({f"log {self._entry}": data}, [f"out {number}" for number in acknowledged])
        return True

    def checkpoint(self, header: Mapping[str, Any], tables: Mapping[str, pl.DataFrame], out: Iterable[Batch]) -> None:
        """Keep the state itself instead of the batches that it follows from, and all own unacknowledged batches."""
        data = pack({**header, "entry": self._entry}, tables)
        put = {"checkpoint": data} | {f"out {batch.number}": to_bytes(batch) for batch in out}
        old = [name for name in self._store.names() if name.startswith(("log ", "out ")) and name not in put]
        self._store.commit(put, old)
        self._entries, self._bytes, self._size = 0, 0, len(data)
