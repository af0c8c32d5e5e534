"""Slicers: prepared events as the tables that travel, one per group.

    events ── Slicer ──▶ slices of every group ── Gathered ──▶ merged, once they have become many
           ── Unordered ──▶ the events of groups that need the order

What is made where the events are, in a task of Spark or at a node, and put together elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from windrow.core.ordered.state import OrderedState
from windrow.core.plan.groups import Group, Source, Timeline
from windrow.core.slices.kernel import Edges, filter_name, roll_up, slice
from windrow.core.slices.table import SliceSchema, merge
from windrow.core.stream.job import Job
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN, Session, Tumbling

Tables = dict[str, pl.DataFrame]  # by the name of their group; or `<group>|<part>`, if it has several


def joined(groups: Mapping[str, Mapping[str, pl.DataFrame]]) -> Tables:
    """Name the tables of several groups by group and part."""
    return {f"{name}|{part}": table for name, tables in groups.items() for part, table in tables.items()}


def parts_of(name: str, tables: Mapping[str, pl.DataFrame]) -> Tables:
    """The tables of one group, by their part."""
    named = ((key.rpartition("|"), table) for key, table in tables.items())
    return {part: table for (group, _, part), table in named if group == name}


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
                seen[group.source] = events.filter(pl.col(filter_name(where.text))) if where else events
            if group.parent is not None and group.parent.name in made:
                found[group.name] = self.rolled_up(group, made[group.parent.name])
                continue
            edges, schema = self._edges[group.name][1], self._schemas[group.name][1]
            table = slice(seen[group.source], group.source.time, edges, schema)
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
            state = job.bound.states[group.identity]
            if isinstance(state, OrderedState) and not group.is_apart:
                needed = list(dict.fromkeys((*state.ordering.needed, "nth")))
                self._kept[group.name] = group.source.where, needed, []

    def add(self, events: pl.DataFrame) -> int:
        size = 0
        for where, needed, several in self._kept.values():
            chosen = events if where is None else events.filter(pl.col(filter_name(where.text)))
            several.append(chosen[needed])
            size += int(several[-1].estimated_size())
        return size

    def tables(self) -> Tables:
        return {name: pl.concat(several) for name, (_, _, several) in self._kept.items() if several}
