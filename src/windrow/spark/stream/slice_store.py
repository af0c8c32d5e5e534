"""The slice store: the live slices of a group in Spark's state store, in chunks, so that a step reads what it needs.

    chunk 0      chunk 1      chunk 2            by the start of the slice, or for sessions by the key
    ┌────────┐   ┌────────┐   ┌────────┐
    │ run 1  │   │ run 4  │   │ run 5  │         new slices are put as a run of their own, without reading others;
    │ run 3  │   └────────┘   │ run 6  │         runs that are not larger than the new one are merged with it
    └────────┘                └────────┘

So a micro-batch costs what it brings: a slice is merged a logarithmic number of times, as in a log-structured merge
tree. A window that ends costs the chunks that it spans, and a chunk that no window needs any more is dropped unread.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import polars as pl

from windrow.core.arrays.range_queries import Ints
from windrow.core.assemble.group_state import GroupState
from windrow.core.slices.table import SliceSchema, merge
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.io.tables import from_bytes, to_bytes
from windrow.spark.payloads import parts_by

CHUNKS = 64  # that the longest window spans, at most
CHUNK_ROWS = 512  # that a table brings to each of its chunks, about: fewer are not worth a chunk


class Store(Protocol):
    """Bytes by name: the state store of one bucket."""

    def get(self, name: str) -> bytes | None: ...
    def put(self, name: str, value: bytes) -> None: ...
    def delete(self, name: str) -> None: ...


class Run(NamedTuple):
    """A table of slices of one chunk: between which times they begin, and before which time none of their sessions
    ends; all that a step must know to leave it unread."""

    number: int
    chunk: int
    rows: int
    first: int  # slice start
    last: int  # slice start
    closes: int
    level: int = 0  # how often the length of a chunk was doubled, so that it is not too small


class StateError(ValueError):
    """A checkpoint that this query cannot go on with: why, and what to do."""


@dataclass(frozen=True)
class Summed:
    """A store in which each value has a sum over itself and its name, so that a checkpoint that was changed, or whose
    values were exchanged, is refused instead of counted."""

    store: Store

    def get(self, name: str) -> bytes | None:
        data = self.store.get(name)
        if data is None or data.startswith(_WITHOUT_SUM):
            return data
        if int.from_bytes(data[:_SUM], "little") != _sum_of(name, data[_SUM:]):
            raise StateError(
                f"the checkpoint is damaged: {name!r} is not what was written; put back the whole checkpoint from "
                "before, or start with a new one"
            )
        return data[_SUM:]

    def put(self, name: str, value: bytes) -> None:
        self.store.put(name, _sum_of(name, value).to_bytes(_SUM, "little") + value)

    def delete(self, name: str) -> None:
        self.store.delete(name)


_SUM = 4  # bytes
_WITHOUT_SUM = b'{"windrow": '  # the index of an older version, which says so


def _sum_of(name: str, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(name.encode()))


@dataclass(frozen=True)
class StoredTables:
    """The tables of a group in a state store, by name."""

    group: str
    store: Store

    def find(self, name: str) -> pl.DataFrame | None:
        data = self.store.get(f"{self.group}|{name}")
        return None if data is None else from_bytes(data)

    def get(self, name: str, what: str = "") -> pl.DataFrame:
        """A table that is there; `what` it is called otherwise."""
        table = self.find(name)
        if table is None:
            raise ValueError(f"the state of group {self.group!r} is damaged: {what or name} is missing")
        return table

    def put(self, name: str, table: pl.DataFrame) -> None:
        self.store.put(f"{self.group}|{name}", to_bytes(table, "lz4"))

    def delete(self, name: str) -> None:
        self.store.delete(f"{self.group}|{name}")


@dataclass
class Chunks:
    """The slices of one group, as runs; the index has them, the tables stay in the store until they are read."""

    tables: StoredTables
    runs: list[Run] = field(default_factory=list)
    count: int = 0  # runs so far

    @staticmethod
    def read(tables: StoredTables, saved: Any) -> Chunks:
        return Chunks(tables, [Run(*run) for run in saved["runs"]], saved["count"]) if saved else Chunks(tables)

    def saved(self) -> dict[str, Any]:
        return {"runs": self.runs, "count": self.count}

    def add(self, table: pl.DataFrame, schema: SliceSchema, number: Ints, level: int = 0) -> None:
        """Take slices in, which are sorted and each there once, and put each into the chunk of its number.

        A run of at most twice the size is merged with the new one, so that the runs of a chunk are few.
        """
        for chunk, part in parts_by(table, number):
            there = [run for run in self.runs if run.chunk == chunk and run.level == level]
            joined: list[Run] = []
            size = part.height
            for run in sorted(there, key=lambda run: run.rows):
                if run.rows > 2 * size:
                    break
                joined.append(run)
                size += run.rows
            closes = min((run.closes for run in joined), default=INT64_MAX)
            if schema.gap is not None:
                closes = min(closes, int(part["last"].min()) + schema.gap)  # type: ignore[arg-type]
            if joined:
                part = merge([part, *(schema.conform(self._get(run)) for run in joined)], schema)
                self._drop(joined)
            self._put(chunk, part, closes, level)

    def replace(self, chunks: set[int], table: pl.DataFrame, number: Ints, closes: Mapping[int, int]) -> None:
        """Replace all slices of some chunks by these."""
        self._drop([run for run in self.runs if run.chunk in chunks])
        for chunk, part in parts_by(table, number):
            self._put(chunk, part, closes.get(chunk, INT64_MAX))

    def load(self, since: int = INT64_MIN) -> list[pl.DataFrame]:
        """The tables that have slices from a time on."""
        return [self._get(run) for run in self.runs if run.last >= since]

    def load_only(self, chunks: set[int]) -> list[pl.DataFrame]:
        """The tables of some chunks."""
        return [self._get(run) for run in self.runs if run.chunk in chunks]

    def closing(self, now: int) -> set[int]:
        """The chunks in which sessions may end before a time."""
        return {run.chunk for run in self.runs if run.closes < now}

    def forget(self, before: int) -> None:
        """Drop the runs all of whose slices begin before a time."""
        self._drop([run for run in self.runs if run.last < before])

    @property
    def oldest(self) -> int:
        """The earliest start of a slice."""
        return min((run.first for run in self.runs), default=INT64_MAX)

    @property
    def closes(self) -> int:
        """No session ends before this."""
        return min((run.closes for run in self.runs), default=INT64_MAX)

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.runs)

    def _put(self, chunk: int, table: pl.DataFrame, closes: int, level: int = 0) -> None:
        start = table["slice_start"]
        run = Run(self.count, chunk, table.height, int(start.min()), int(start.max()), closes, level)  # type: ignore[arg-type]
        self.count += 1
        self.runs.append(run)
        self.tables.put(str(run.number), table)

    def _get(self, run: Run) -> pl.DataFrame:
        return self.tables.get(str(run.number), f"run {run.number}")

    def _drop(self, runs: Iterable[Run]) -> None:
        gone = set(runs)
        for run in gone:
            self.tables.delete(str(run.number))
        self.runs = [run for run in self.runs if run not in gone]


def chunks_of(state: GroupState, table: pl.DataFrame) -> tuple[Ints, int]:
    """The chunk of each slice, and the level of these chunks.

    A chunk is as long as the shortest window, but no shorter than a 64th of the longest one, so that no window spans
    too many. Where the slices would be few in each, its length is doubled until they are not.
    """
    length = state.assembler.lattices.length
    width = max(int(length.min()), -(-int(length.max()) // CHUNKS)) if len(length) else INT64_MAX
    start = table["slice_start"].to_numpy()
    times = start[start > INT64_MIN]
    count = (int(times.max()) - int(times.min())) // width + 1 if len(times) else 1
    level = max(0, (count * CHUNK_ROWS // max(1, len(times))).bit_length() - 1) if count > 1 else 0
    wide = min(width << level, INT64_MAX)
    return np.where(start == INT64_MIN, INT64_MIN, start // wide), level


def needed_from(state: GroupState, before: int, now: int) -> int:
    """The start of the earliest window that ends after one time and at or before another; INT64_MAX if none does."""
    if state.assembler.irregular:
        return INT64_MIN
    if before == INT64_MIN or now == INT64_MAX:
        return INT64_MIN
    lattices = state.assembler.lattices
    first = lattices.ends.after(before)
    return int((first - lattices.length)[first <= now].min(initial=INT64_MAX))


def next_end(state: GroupState, after: int) -> int:
    """The first time after another at which a window with fixed bounds ends; INT64_MAX if there are none."""
    if state.assembler.irregular:
        return after + 1
    return int(state.assembler.lattices.ends.after(after).min(initial=INT64_MAX))
