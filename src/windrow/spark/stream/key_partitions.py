"""The keys of a bucket in several partitions, so that a step reads only those in which something happens.

    bucket ── by the key ──▶ │ partition 0 │ partition 1 │ … │
                               tables        tables            the state of its keys
                               buffered      buffered          its events ahead of the watermark, by time

There are as many as make one hold a few thousand rows: so a session that ends, or an event whose order is final, costs
a look at a few thousand others, however many keys there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from windrow.core.arrays.range_queries import Ints
from windrow.core.assemble.due import Rows
from windrow.core.assemble.group_state import GroupState
from windrow.core.assemble.sessions import gap_of, sessions
from windrow.core.ordered.state import OrderedState
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.spark.payloads import hashed, parts_by
from windrow.spark.stream.slice_store import StoredTables

PARTITION_ROWS = 4096  # rows of a partition, and of a table of buffered events, about
MOST_TABLES = 64  # of buffered events in a partition, before small ones are put together


@dataclass(frozen=True)
class KeyPartitions:
    """In how many partitions the keys of one of so many buckets lie."""

    buckets: int
    count: int = 1

    def of(self, table: pl.DataFrame) -> Ints:
        """The partition of each row."""
        keys = [name for name in table.columns if name.startswith("key:")]
        if self.count == 1 or not keys:
            return np.zeros(table.height, np.int64)
        numbers = hashed(table.select(keys)) // np.uint64(self.buckets) % np.uint64(self.count)
        return numbers.astype(np.int64)

    def of_keys(self, rows: Rows) -> Ints:
        """The partition of each key."""
        return self.of(rows.keys) if rows.keys.width else np.zeros(1, np.int64)

    def fitting(self, rows: int) -> KeyPartitions:
        """As many as so many rows need: twice or half as many as long as they are too full or too empty."""
        count = self.count
        while rows > 2 * PARTITION_ROWS * count:
            count *= 2
        while count > 1 and rows < PARTITION_ROWS * count // 4:
            count //= 2
        return self if count == self.count else KeyPartitions(self.buckets, count)

    def split(self, table: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
        """The rows of each partition that has some."""
        return parts_by(table, self.of(table))


def closings(state: GroupState, partitions: KeyPartitions, now: int, updates: int) -> dict[int, int]:
    """For each partition whose sessions a state holds, a time before which none ends, and none can be forgotten."""
    closes = np.full(partitions.count, INT64_MAX)
    rows = state.rows
    for view, of_gap in state.all_sessions(rows):
        live = of_gap.take(of_gap.end >= now)
        np.minimum.at(closes, partitions.of_keys(view)[live.key], live.end)
    if len(rows) and state.compiled.session_timelines:
        largest = max(state.compiled.session_timelines, key=gap_of)._replace(
            since=INT64_MIN, until=INT64_MAX, closing=False
        )
        ordered = rows if rows.runs.in_order else rows.by_first()
        partition = partitions.of_keys(ordered)
        for of_gap in sessions(ordered.runs, [largest]):
            is_last = np.append(of_gap.key[1:] != of_gap.key[:-1], True)[: len(of_gap.key)]
            done = of_gap.take(is_last & (of_gap.end < now))
            np.minimum.at(closes, partition[done.key], done.end + 2 * done.gap + updates)
    return {number: int(time) for number, time in enumerate(closes) if time < INT64_MAX}


class Buffered(NamedTuple):
    """A table of buffered events: its number, the time of the first event, and how many they are."""

    number: int
    first: int
    rows: int


@dataclass
class Partition:
    """The names of a partition's tables, with so many slices and final events, and its buffered events."""

    tables: list[str] = field(default_factory=list)
    slices: int = 0
    final: int = 0
    buffered: list[Buffered] = field(default_factory=list)


class PartitionedState:
    """The state of an ordered group, by key partition."""

    def __init__(self, stored: StoredTables, buckets: int, saved: Mapping[str, Any] | None) -> None:
        self._stored = stored
        index = saved or {"count": 1, "tables": 0, "partitions": {}}
        self.partitions = KeyPartitions(buckets, index["count"])
        self._tables: int = index["tables"]  # of buffered events so far
        self._by_number: dict[int, Partition] = {}
        for number, (tables, slices, final, buffered) in index["partitions"].items():
            self._by_number[int(number)] = Partition(tables, slices, final, [Buffered(*table) for table in buffered])

    def saved(self) -> dict[str, Any]:
        partitions = {number: astuple(partition) for number, partition in self._by_number.items()}
        return {"count": self.partitions.count, "tables": self._tables, "partitions": partitions}

    @property
    def numbers(self) -> set[int]:
        return set(self._by_number)

    @property
    def _buffered(self) -> Iterator[Buffered]:
        return (table for partition in self._by_number.values() for table in partition.buffered)

    @property
    def first(self) -> int:
        """The time of the first buffered event."""
        return min((table.first for table in self._buffered), default=INT64_MAX)

    @property
    def slices(self) -> int:
        return sum(partition.slices for partition in self._by_number.values())

    @property
    def events(self) -> int:
        final = sum(partition.final for partition in self._by_number.values())
        return final + sum(table.rows for table in self._buffered)

    @property
    def has_tables(self) -> bool:
        return any(partition.tables for partition in self._by_number.values())

    def due(self, now: int) -> set[int]:
        """The partitions with events that a watermark passes."""
        return {
            number
            for number, partition in self._by_number.items()
            if any(table.first < now for table in partition.buffered)
        }

    def buffer(self, events: pl.DataFrame, time: str) -> None:
        """Keep events until their order is final, in tables each of which covers a short span of time."""
        for number, part in self.partitions.split(events):
            partition = self._by_number.setdefault(number, Partition())
            self._put_events(partition, part, time)
            if len(partition.buffered) > MOST_TABLES:
                small = sorted(partition.buffered, key=lambda table: table.rows)[: MOST_TABLES // 2]
                self._put_events(partition, pl.concat(self._take_events(partition, small)), time)

    def _put_events(self, partition: Partition, events: pl.DataFrame, time: str) -> None:
        for part in events.sort(time, maintain_order=True).iter_slices(PARTITION_ROWS):
            table = Buffered(self._tables, int(part[time][0]), part.height)
            self._tables += 1
            partition.buffered.append(table)
            self._stored.put(f"events {table.number}", part)

    def _take_events(self, partition: Partition, tables: Iterable[Buffered]) -> list[pl.DataFrame]:
        taken = []
        for table in tables:
            taken.append(self._stored.get(f"events {table.number}"))
            self._stored.delete(f"events {table.number}")
            partition.buffered.remove(table)
        return taken

    def load(self, state: OrderedState, opened: Iterable[int], upto: int) -> None:
        """Fill a state with what some partitions hold, and with their buffered events before a time."""
        by_name: dict[str, list[pl.DataFrame]] = {}
        buffered: list[pl.DataFrame] = []
        for number in sorted(set(opened) & self.numbers):
            partition = self._by_number[number]
            tables = {name: self._stored.get(f"{number} {name}") for name in partition.tables}
            for name, table in ({"now": tables["base"]} | tables if tables else {}).items():
                by_name.setdefault(name, []).append(table)
            buffered += self._take_events(partition, [table for table in partition.buffered if table.first < upto])
        if by_name:
            whole = {name: pl.concat(parts) for name, parts in by_name.items()}
            state.load(whole | {"slices": state.schema.conform(whole["slices"]).sort(state.schema.order)})
        if buffered:
            events = pl.concat(buffered, how="diagonal").sort("nth")  # as they came
            is_due = events[state.ordering.time] < upto
            state.buffer(state.ordering.conform(events.filter(is_due)))
            self.buffer(events.filter(~is_due), state.ordering.time)

    def replace(self, state: OrderedState, opened: Iterable[int]) -> None:
        """Put the tables of a state in place of those of the partitions that it was filled from."""
        tables = state.tables()
        assert "buffered" not in tables  # a step leaves none of the events that it was given
        for number in self.numbers & set(opened):
            self._drop_tables(number)
        for name, table in tables.items():
            for number, part in self.partitions.split(table) if table.height else []:
                self._put(number, name, part)
        # `state.load` needs these of every partition that has any
        for number, partition in self._by_number.items():
            for name in {"slices", "recent_slices", "base"} - set(partition.tables) if partition.tables else ():
                self._put(number, name, tables[name].clear())
        self._by_number = {
            number: partition for number, partition in self._by_number.items() if partition.tables or partition.buffered
        }

    def _put(self, number: int, name: str, table: pl.DataFrame) -> None:
        partition = self._by_number.setdefault(number, Partition())
        self._stored.put(f"{number} {name}", table)
        partition.tables.append(name)
        partition.slices += table.height if name in ("slices", "recent_slices") else 0
        partition.final += table.height if name == "recent_events" else 0

    def _drop_tables(self, number: int) -> None:
        partition = self._by_number[number]
        for name in partition.tables:
            self._stored.delete(f"{number} {name}")
        partition.tables, partition.slices, partition.final = [], 0, 0

    def forget(self) -> None:
        """Drop everything."""
        for number in self.numbers:
            self._drop_tables(number)
        for table in self._buffered:
            self._stored.delete(f"events {table.number}")
        self._by_number = {}

    def split_anew(self, state: OrderedState, partitions: KeyPartitions) -> None:
        """Lie in another number of partitions from now on; the state is an empty one."""
        buffered = [
            table
            for partition in self._by_number.values()
            for table in self._take_events(partition, list(partition.buffered))
        ]
        self.load(state, self.numbers, INT64_MAX)
        self.forget()
        self.partitions = partitions
        self.replace(state, ())
        for events in buffered:
            self.buffer(events, state.ordering.time)
