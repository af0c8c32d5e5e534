"""A journal: what a node with children keeps in its spool, a checkpoint and the batches that it has accepted since.

    checkpoint   the state, what is asked, and all counters
    log 17       a batch that was accepted after it
    out 8        a batch of its own that was not acknowledged when the checkpoint was made

A checkpoint is made once the log has become larger than the one before, so that its cost is a share of what comes in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import polars as pl

from windrow.io.tables import pack, unpack
from windrow.nodes.protocol.messages import Batch, from_bytes, to_bytes

LOG = 1 << 20  # bytes of the log that are never worth a checkpoint


class Spool(Protocol):
    """Bytes by name that outlive the process; what one `commit` says happens wholly or not at all."""

    def get(self, name: str) -> bytes | None: ...
    def names(self) -> Iterable[str]: ...
    def commit(self, put: dict[str, bytes], delete: Iterable[str]) -> None: ...


class Kept(NamedTuple):
    """What a journal holds."""

    header: dict[str, Any]
    tables: dict[str, pl.DataFrame]
    log: list[Batch]
    out: list[Batch]


class Journal:
    def __init__(self, spool: Spool, most: int) -> None:
        """A checkpoint is due after `most` batches at the latest."""
        self._spool, self._most = spool, most
        self._entry, self._entries, self._bytes, self._size = 0, 0, 0, 0

    def read(self) -> Kept | None:
        """What was kept; None if nothing was."""
        saved = self._spool.get("checkpoint")
        if saved is None:
            return None
        header, tables = unpack(saved)
        self._size = len(saved)
        log, out = self._numbered("log"), self._numbered("out")
        self._entry = max(log, default=header["entry"])
        self._entries, self._bytes = len(log), sum(map(len, log.values()))
        return Kept(header, tables, [_batch(data) for data in log.values()], [_batch(data) for data in out.values()])

    def _numbered(self, kind: str) -> dict[int, bytes]:
        names = [name for name in self._spool.names() if name.startswith(f"{kind} ")]
        numbers = sorted(int(name.rpartition(" ")[2]) for name in names)
        return {number: self._spool.get(f"{kind} {number}") or b"" for number in numbers}

    def add(self, batch: Batch, gone: Iterable[int]) -> bool:
        """Keep a batch; false if it is time for a checkpoint instead."""
        data = to_bytes(batch)
        if self._bytes + len(data) > max(LOG, self._size) or self._entries + 1 >= self._most:
            return False
        self._entry, self._entries, self._bytes = self._entry + 1, self._entries + 1, self._bytes + len(data)
        self._spool.commit({f"log {self._entry}": data}, [f"out {number}" for number in gone])
        return True

    def checkpoint(self, header: Mapping[str, Any], tables: Mapping[str, pl.DataFrame], out: Iterable[Batch]) -> None:
        """Keep the state itself, instead of the batches that it came from."""
        data = pack({**header, "entry": self._entry}, tables)
        put = {"checkpoint": data} | {f"out {batch.number}": to_bytes(batch) for batch in out}
        gone = [name for name in self._spool.names() if name.startswith(("log ", "out ")) and name not in put]
        self._spool.commit(put, gone)
        self._entries, self._bytes, self._size = 0, 0, len(data)


def _batch(data: bytes) -> Batch:
    found = from_bytes(data)
    assert isinstance(found, Batch)
    return found
