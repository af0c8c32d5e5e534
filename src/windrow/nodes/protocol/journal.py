"""The journal of a node with children: in its log store, a checkpoint and the batches that it has accepted since.

    epoch        of a root, how many lives it has begun
    checkpoint   the state, the query set, and all counters
    log 17       a batch that was accepted after the checkpoint
    out 8        a batch of the node's own that was not acknowledged when the checkpoint was made
    lives        the lives of the node

A checkpoint is due once the log is larger than the last one, so that it costs at most a fixed share of what comes in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol, cast

import polars as pl

from windrow.io.tables import pack, unpack
from windrow.nodes.protocol.messages import Batch, from_bytes, to_bytes

LOG = 1 << 20  # bytes of the log that are never worth a checkpoint
# with a spool that is not what it was
WHAT_TO_DO = "put back what it was when the node ran last, or begin the whole tree anew: new spools, and new results"


class LogStore(Protocol):
    """Bytes by name that outlive the process; a `commit` happens completely or not at all."""

    def get(self, name: str) -> bytes | None: ...
    def names(self) -> Iterable[str]: ...
    def commit(self, put: dict[str, bytes], delete: Iterable[str]) -> None: ...


class MemoryStore:
    """A log store in memory: the disk of a simulated node, or a copy on which something is tried."""

    def __init__(self, kept: Mapping[str, bytes] | None = None) -> None:
        self.kept = dict(kept or {})

    def get(self, name: str) -> bytes | None:
        return self.kept.get(name)

    def names(self) -> Iterable[str]:
        return list(self.kept)

    def commit(self, put: dict[str, bytes], delete: Iterable[str]) -> None:
        for name in delete:
            self.kept.pop(name, None)
        self.kept |= put


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
        names = _numbered(self._store, "log")
        self._entry = max(names, default=header["entry"])
        self._entries, self._bytes = len(names), sum(len(self._store.get(name) or b"") for name in names.values())
        log, out = (list(logged(self._store, kind).values()) for kind in ("log", "out"))
        return Kept(header, tables, log, out)

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


def logged(store: LogStore, kind: str = "log") -> dict[str, Batch]:
    """The batches that a journal has since its last checkpoint, in their order, by their names."""
    names = _numbered(store, kind).values()
    return {name: cast(Batch, from_bytes(store.get(name) or b"")) for name in names}


def _numbered(store: LogStore, kind: str) -> dict[int, str]:
    """The names of a kind by their numbers, in their order."""
    names = [name for name in store.names() if name.startswith(f"{kind} ")]
    return dict(sorted((int(name.rpartition(" ")[2]), name) for name in names))


class Lives:
    """The lives of a node, by which an older copy of its log store is told from the newest.

    Whoever takes the node's batches knows in which of its lives the last one was sent. A log store has all lives since
    then, each from before its first message, so one that does not have that life is not the one of that life.
    """

    def __init__(self, store: LogStore, life: int) -> None:
        self._store = store
        self._lives: list[int] = [*json.loads(store.get("lives") or b"[]"), life]
        self._write()

    def has(self, life: int) -> bool:
        return life in self._lives

    def forget_before(self, life: int) -> None:
        """Nobody will ask for lives before this one any more."""
        if self._lives[0] != life:
            self._lives = self._lives[self._lives.index(life) :]
            self._write()

    def _write(self) -> None:
        self._store.commit({"lives": json.dumps(self._lives).encode()}, [])
