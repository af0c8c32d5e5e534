"""Drawers: the keys of a bucket in several parts, so that a step opens only those in which something happens.

    bucket ── by the key ──▶ │ drawer 0 │ drawer 1 │ … │
                               tables     tables            what is known of its keys, while nothing happens unread
                               waits      waits             its events that the watermark has not passed, by time

There are as many as make one hold a few thousand rows: so a session that ends, or an event whose order is final, costs
a look at a few thousand others, however many keys there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from windrow.core.arrays.range_queries import Ints
from windrow.core.assemble.due import Rows
from windrow.core.assemble.group_state import GroupState
from windrow.core.assemble.sessions import gap_of, sessions
from windrow.core.ordered.state import OrderedState
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.spark.payloads import hashed
from windrow.spark.stream.slice_store import Store, from_bytes, to_bytes

SIZE = 4096  # rows of a drawer, and events of a wait, about
WAITS = 64  # of a drawer, before small ones are put together


@dataclass(frozen=True)
class Drawers:
    """How many there are, in one of so many buckets."""

    buckets: int
    count: int = 1

    def of(self, table: pl.DataFrame) -> Ints:
        """The drawer of each row."""
        keys = [name for name in table.columns if name.startswith("key:")]
        if self.count == 1 or not keys:
            return np.zeros(table.height, np.int64)
        found = hashed(table.select(keys)) // np.uint64(self.buckets) % np.uint64(self.count)
        return found.astype(np.int64)

    def of_keys(self, rows: Rows) -> Ints:
        """The drawer of each key."""
        return self.of(rows.keys) if rows.keys.width else np.zeros(1, np.int64)

    def fitting(self, rows: int) -> Drawers:
        """As many as so many rows need: twice or half as many as long as they are too full or too empty."""
        count = self.count
        while rows > 2 * SIZE * count:
            count *= 2
        while count > 1 and rows < SIZE * count // 4:
            count //= 2
        return self if count == self.count else Drawers(self.buckets, count)

    def split(self, table: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
        """The rows of each drawer that has some."""
        at = self.of(table)
        for number in np.unique(at).tolist():
            yield number, table if (at == number).all() else table.filter(pl.Series(at == number))


def closings(state: GroupState, drawers: Drawers, now: int, updates: int) -> dict[int, int]:
    """For each drawer whose sessions a state holds, a time before which none ends, and none can be forgotten."""
    found = np.full(drawers.count, INT64_MAX)
    rows = state.rows
    for view, timelines in state.session_views(rows):
        drawer = drawers.of_keys(view)
        for one in sessions(view.runs, timelines):
            ends = one.last + one.gap
            np.minimum.at(found, drawer[one.key[ends >= now]], ends[ends >= now])
    if len(rows) and state.compiled.session_timelines:
        largest = max(state.compiled.session_timelines, key=gap_of)._replace(
            since=INT64_MIN, until=INT64_MAX, closing=False
        )
        ordered = rows if rows.runs.in_order else rows.by_first()
        drawer = drawers.of_keys(ordered)
        for one in sessions(ordered.runs, [largest]):
            is_last = np.append(one.key[1:] != one.key[:-1], True)[: len(one.key)]
            done = is_last & (one.last + one.gap < now)
            np.minimum.at(found, drawer[one.key[done]], one.last[done] + 3 * one.gap + updates)
    return {number: int(time) for number, time in enumerate(found) if time < INT64_MAX}


class Wait(NamedTuple):
    """Some events that wait: the number of their table, the time of the first, and how many."""

    number: int
    first: int
    rows: int


@dataclass
class Drawer:
    """What a drawer holds: tables with so many slices and events, and events that wait."""

    tables: list[str] = field(default_factory=list)
    slices: int = 0
    held: int = 0
    waits: list[Wait] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return self.slices + self.held + sum(wait.rows for wait in self.waits)


class Ordered:
    """The state of an ordered group, in drawers."""

    def __init__(self, name: str, store: Store, buckets: int, saved: Mapping[str, Any] | None) -> None:
        self.name, self._store = name, store
        self.drawers = Drawers(buckets, saved["drawers"] if saved else 1)
        self._count: int = saved["count"] if saved else 0
        self._held: dict[int, Drawer] = {}
        for number, (tables, slices, held, waits) in (saved["held"] if saved else {}).items():
            self._held[int(number)] = Drawer(tables, slices, held, [Wait(*wait) for wait in waits])

    def saved(self) -> dict[str, Any]:
        held = {number: [one.tables, one.slices, one.held, one.waits] for number, one in self._held.items()}
        return {"drawers": self.drawers.count, "count": self._count, "held": held}

    @property
    def numbers(self) -> set[int]:
        return set(self._held)

    @property
    def first(self) -> int:
        """The time of the first event that waits."""
        return min((wait.first for one in self._held.values() for wait in one.waits), default=INT64_MAX)

    @property
    def slices(self) -> int:
        return sum(one.slices for one in self._held.values())

    @property
    def events(self) -> int:
        return sum(one.rows - one.slices for one in self._held.values())

    @property
    def has_tables(self) -> bool:
        return any(one.tables for one in self._held.values())

    def due(self, now: int) -> set[int]:
        """The drawers with events that a watermark passes."""
        return {number for number, one in self._held.items() if any(wait.first < now for wait in one.waits)}

    def wait(self, events: pl.DataFrame, time: str) -> None:
        """Let events wait, in tables that hold a stretch of time each."""
        for number, mine in self.drawers.split(events):
            one = self._held.setdefault(number, Drawer())
            self._put_waits(one, mine, time)
            if len(one.waits) > WAITS:
                few = sorted(one.waits, key=lambda wait: wait.rows)[: WAITS // 2]
                self._put_waits(one, pl.concat(self._take_waits(one, few)), time)

    def _put_waits(self, one: Drawer, events: pl.DataFrame, time: str) -> None:
        by_time = events.sort(time, maintain_order=True)
        for part in by_time.iter_slices(SIZE):
            wait = Wait(self._count, int(part[time][0]), part.height)
            self._count += 1
            one.waits.append(wait)
            self._store.put(f"{self.name}|wait {wait.number}", to_bytes(part))

    def _take_waits(self, one: Drawer, chosen: Iterable[Wait]) -> list[pl.DataFrame]:
        taken = []
        for wait in chosen:
            taken.append(self._get(f"wait {wait.number}"))
            self._store.delete(f"{self.name}|wait {wait.number}")
            one.waits.remove(wait)
        return taken

    def load(self, state: OrderedState, opened: Iterable[int], upto: int) -> None:
        """Fill a state with what some drawers hold, and with the events before a time that wait there."""
        several: dict[str, list[pl.DataFrame]] = {}
        waiting: list[pl.DataFrame] = []
        for number in sorted(set(opened) & self.numbers):
            one = self._held[number]
            tables = {name: self._get(f"{number} {name}") for name in one.tables}
            for name, table in ({"now": tables["base"]} | tables if tables else {}).items():
                several.setdefault(name, []).append(table)
            waiting += self._take_waits(one, [wait for wait in one.waits if wait.first < upto])
        if several:
            found = {name: pl.concat(parts) for name, parts in several.items()}
            if len(several["slices"]) > 1:
                found["slices"] = state.schema.conform(found["slices"]).sort(state.schema.order)
            state.load(found)
        if waiting:
            events = pl.concat(waiting, how="diagonal").sort("nth")  # as they came
            is_due = events[state.ordering.time] < upto
            state.hold(state.ordering.conform(events.filter(is_due)))
            self.wait(events.filter(~is_due), state.ordering.time)

    def replace(self, state: OrderedState, opened: Iterable[int]) -> None:
        """Hold what a state does, in the drawers that it was filled from."""
        tables = dict(state.tables())
        assert "waiting" not in tables  # a step leaves none of the events that it was given
        for number in opened:
            one = self._held.setdefault(number, Drawer())
            for name in one.tables:
                self._store.delete(f"{self.name}|{number} {name}")
            one.tables, one.slices, one.held = [], 0, 0
        for name, table in tables.items():
            for number, mine in self.drawers.split(table) if table.height else []:
                self._put(number, name, mine)
        for number in [number for number, one in self._held.items() if one.tables]:  # the ones that state.load needs
            for name in {"slices", "recent", "base"} - set(self._held[number].tables):
                self._put(number, name, tables[name].clear())
        self._held = {number: one for number, one in self._held.items() if one.tables or one.waits}

    def _put(self, number: int, name: str, table: pl.DataFrame) -> None:
        one = self._held.setdefault(number, Drawer())
        self._store.put(f"{self.name}|{number} {name}", to_bytes(table))
        one.tables.append(name)
        one.slices += table.height if name in ("slices", "recent") else 0
        one.held += table.height if name == "held" else 0

    def forget(self) -> None:
        """Drop everything."""
        for number, one in self._held.items():
            for name in one.tables:
                self._store.delete(f"{self.name}|{number} {name}")
            for wait in one.waits:
                self._store.delete(f"{self.name}|wait {wait.number}")
        self._held = {}

    def fit(self, state: OrderedState, drawers: Drawers) -> None:
        """Be in another number of drawers from now on; the state is an empty one."""
        waiting = [table for one in self._held.values() for table in self._take_waits(one, list(one.waits))]
        self.load(state, self.numbers, INT64_MAX)
        self.forget()
        self.drawers = drawers
        self.replace(state, ())
        for events in waiting:
            self.wait(events, state.ordering.time)

    def _get(self, name: str) -> pl.DataFrame:
        found = self._store.get(f"{self.name}|{name}")
        if found is None:
            raise ValueError(f"the state of group {self.name!r} is damaged: {name} is missing")
        return from_bytes(found)
