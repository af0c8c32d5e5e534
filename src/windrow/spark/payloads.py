"""Payloads: the slices of a bucket of keys as one row, which is what is shuffled.

    events ── slice ──▶ tables, one per group ── split ──▶ one row (bucket, payload) per bucket

A key always falls into the same bucket, in every process and version, because state is kept by bucket. A payload is
`slices.pack` of one table per group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from windrow.bound import Bound, state_of
from windrow.groups import Group, Source, Timeline
from windrow.mixing import GOLDEN, mix
from windrow.ordered_state import OrderedState
from windrow.slices import SliceSchema, merge, pack
from windrow.slicing import Edges, filter_column, roll_up, slice
from windrow.spark.jobs import Job
from windrow.windows import INT64_MAX, INT64_MIN, Session, Tumbling

SCHEMA = pa.schema([("bucket", pa.int32()), ("payload", pa.binary())])
ROW = "bucket INT, payload BINARY"
Tables = dict[str, pl.DataFrame]  # by the name of their group


class Slicer:
    """Turns prepared events into the slices of every group that is not ordered."""

    def __init__(self, job: Job, cut: bool = False) -> None:
        """With `cut`, slices end at every multiple of a session's gap too, where sessions can come to be cut."""
        self.bound = job.bound
        self._groups = [group for group in self.bound.plan.groups if not group.ordered]
        self._edges: dict[str, tuple[Edges, Edges]] = {}
        self._schemas: dict[str, tuple[SliceSchema, SliceSchema]] = {}
        for group in self._groups:
            self._edges[group.name] = edges_of(group, False, cut), edges_of(group, True, cut)
            own, shared = (self.bound.binding.schema(group, shared) for shared in (False, True))
            self._schemas[group.name] = own, shared

    def slice(self, events: pl.DataFrame) -> Tables:
        """One table per group, by the group's name."""
        seen: dict[Source, pl.DataFrame] = {}
        found: Tables = {}
        made: Tables = {}
        for group in self._groups:
            if group.source not in seen:
                where = group.source.where
                seen[group.source] = events.filter(pl.col(filter_column(where.text))) if where else events
            if group.parent is not None and group.parent.name in made:
                found[group.name] = self.rolled_up(group, made[group.parent.name])
                continue
            edges, schema = self._edges[group.name][1], self._schemas[group.name][1]
            table = slice(seen[group.source], group.source.measure, edges, schema)
            if group.children:
                made[group.name] = table
                table = self.rolled_up(group, table)
            found[group.name] = table
        return found

    def rolled_up(self, group: Group, shared: pl.DataFrame) -> pl.DataFrame:
        """A group's own slices from those that it shares with others, or from those of its parent."""
        return roll_up(shared, self._edges[group.name][0], self._schemas[group.name][0])

    def shared_schema(self, group: Group) -> SliceSchema:
        """Of the slices that a group shares with those that are rolled up from it."""
        return self._schemas[group.name][1]

    def spread(self, group: Group, shared: pl.DataFrame) -> Tables:
        """A group's own slices, and those of the groups that are rolled up from it."""
        return {one.name: self.rolled_up(one, shared) for one in (group, *group.children)}

    def merge(self, name: str, tables: list[pl.DataFrame]) -> pl.DataFrame:
        return merge(tables, self._schemas[name][0])


def edges_of(group: Group, shared: bool, cut: bool) -> Edges:
    timelines = group.needs(shared)[0]
    gaps = {timeline.window.gap for timeline in timelines if isinstance(timeline.window, Session)} if cut else set()
    cells = [Timeline(Tumbling(gap, 0, True), INT64_MIN, INT64_MAX, False) for gap in gaps]
    return Edges.of([*timelines, *cells])


class Gathered:
    """Tables of several batches, merged once they have become many."""

    def __init__(self, slicer: Slicer, most: int = 500_000) -> None:
        self._slicer, self._most = slicer, most
        self._tables: dict[str, list[pl.DataFrame]] = {}
        self._rows: dict[str, int] = {}

    def add(self, tables: Tables) -> None:
        for name, table in tables.items():
            if table.height:
                self._tables.setdefault(name, []).append(table)
                self._rows[name] = self._rows.get(name, 0) + table.height
                if self._rows[name] > self._most and len(self._tables[name]) > 1:
                    merged = self._slicer.merge(name, self._tables[name])
                    self._tables[name], self._rows[name] = [merged], 0

    def tables(self) -> Tables:
        return {
            name: self._slicer.merge(name, several) if len(several) > 1 else several[0]
            for name, several in self._tables.items()
        }


class Unordered:
    """The events of groups that need the order, as they wait for it."""

    def __init__(self, job: Job) -> None:
        self._kept: dict[str, tuple[Any, list[str], list[pl.DataFrame]]] = {}
        for group in job.bound.plan.groups:
            state = state_of(group, job.bound.binding, job.measures)
            if isinstance(state, OrderedState):
                needed = list(dict.fromkeys((*state.ordering.needed, "nth")))
                self._kept[group.name] = group.source.where, needed, []

    def add(self, events: pl.DataFrame) -> int:
        size = 0
        for where, needed, several in self._kept.values():
            chosen = events if where is None else events.filter(pl.col(filter_column(where.text)))
            several.append(chosen[needed])
            size += int(several[-1].estimated_size())
        return size

    def tables(self) -> Tables:
        return {name: pl.concat(several) for name, (_, _, several) in self._kept.items() if several}


def split(tables: Tables, bound: Bound, buckets: int) -> dict[int, Tables]:
    """The tables of each bucket; a group without keys lies in one."""
    found: dict[int, Tables] = {}
    for group in bound.plan.groups:
        table = tables.get(group.name)
        if table is None or not table.height:
            continue
        keys = [name for name in table.columns if name.startswith("key:")]
        if not group.keys:
            at = int(hashed(pl.DataFrame({"name": [group.name]}))[0] % np.uint64(buckets))
            found.setdefault(at, {})[group.name] = table
            continue
        bucket = (hashed(table.select(keys)) % np.uint64(buckets)).astype(np.int64)
        order = np.argsort(bucket, kind="stable")
        numbers, first = np.unique(bucket[order], return_index=True)
        ordered = table[order]
        for number, begin, end in zip(numbers, first, np.append(first[1:], len(order)), strict=True):
            found.setdefault(int(number), {})[group.name] = ordered[int(begin) : int(end)]
    return found


def rows(split_tables: Mapping[int, Tables], header: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """The rows of a partition."""
    for bucket, tables in split_tables.items():
        yield pa.record_batch([pa.array([bucket], pa.int32()), pa.array([pack(header, tables)])], schema=SCHEMA)


def hashed(keys: pl.DataFrame) -> npt.NDArray[np.uint64]:
    """A hash of each row, the same on every machine and in every version; equal keys have equal hashes."""
    found = np.zeros(keys.height, np.uint64)
    with np.errstate(over="ignore"):
        for column in keys:
            found = mix(found * np.uint64(31) + _numbers(column))
    return found


def _numbers(column: pl.Series) -> npt.NDArray[np.uint64]:
    """A number for each value, the same for equal ones; null has one of its own."""
    dtype = column.dtype
    if dtype.is_float():
        values = column.cast(pl.Float64).fill_null(0.0).to_numpy().copy()
        values[values == 0] = 0.0  # also -0.0; Polars leaves it as it is when it adds 0.0
        values[np.isnan(values)] = np.nan
        found = values.view(np.uint64)
    elif dtype == pl.String() or dtype == pl.Binary() or isinstance(dtype, pl.Decimal):
        found = _of_bytes(column)
    elif dtype == pl.Null():
        found = np.zeros(len(column), np.uint64)
    else:
        found = column.to_physical().cast(pl.Int64).fill_null(0).to_numpy().astype(np.int64).view(np.uint64)
    nulls = column.is_null().to_numpy()
    return np.where(nulls, np.uint64(GOLDEN), found) if nulls.any() else found


def _of_bytes(column: pl.Series) -> npt.NDArray[np.uint64]:
    """A polynomial of each value's bytes."""
    texts = column.cast(pl.String) if isinstance(column.dtype, pl.Decimal) else column
    array = (
        texts.fill_null("" if texts.dtype == pl.String() else b"").cast(pl.Binary).to_arrow().cast(pa.large_binary())
    )
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[array.offset : array.offset + len(array) + 1]
    found = np.zeros(len(array), np.uint64)
    if not len(array) or offsets[-1] == offsets[0]:
        return found
    data = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]].astype(np.uint64) + np.uint64(1)
    sizes = np.diff(offsets)
    powers = np.cumprod(np.full(int(sizes.max()), np.uint64(0x100000001B3)))
    within = np.arange(len(data)) - np.repeat(offsets[:-1] - offsets[0], sizes)
    full = np.flatnonzero(sizes)
    found[full] = np.add.reduceat(data * powers[within], (offsets[:-1] - offsets[0])[full])
    return found


def read_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    """The rows of batches of payloads."""
    for batch in batches:
        yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
