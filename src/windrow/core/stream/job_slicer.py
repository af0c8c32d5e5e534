"""Slicers: prepared events as the tables of every group, one per group.

    events ── Slicer ──▶ slices of every group ── Gathered ──▶ merged, once they have become many
           ── Unordered ──▶ the events of groups that need the order

An engine slices its batches with it; a task of Spark or a node slices where the events are, and elsewhere the tables of
many are put together.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from windrow.core.assemble.group_state import CompiledGroup
from windrow.core.plan.groups import Group, Source, Timeline
from windrow.core.slices.kernel import Edges, filter_name, roll_up, slice
from windrow.core.slices.table import SliceBuffer
from windrow.core.stream.compiled import CompiledPlan
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN, Session, Tumbling

SLICES_AT_ONCE = 500_000  # slices that are kept without being merged
Tables = dict[str, pl.DataFrame]  # by the name of their group; or `<group>|<part>`, if it has several


def named_tables(groups: Mapping[str, Mapping[str, pl.DataFrame]]) -> Tables:
    """Name the tables of several groups by group and part."""
    return {f"{name}|{part}": table for name, tables in groups.items() for part, table in tables.items()}


def parts_of(name: str, tables: Mapping[str, pl.DataFrame]) -> Tables:
    named = ((key.rpartition("|"), table) for key, table in tables.items())
    return {part: table for (group, _, part), table in named if group == name}


def seen_by(source: Source, events: pl.DataFrame) -> pl.DataFrame:
    """The events that satisfy the filter of a source."""
    return events if source.where is None else events.filter(pl.col(filter_name(source.where.text)))


class Slicer:
    """Turns prepared events into the slices of every group that is not ordered."""

    def __init__(self, plan: CompiledPlan, cut: bool = False) -> None:
        """With `cut`, slices end at every multiple of a session's gap too, where sessions can come to be cut."""
        self._groups = {one.group.name: one for one in plan.groups if not one.group.ordered}
        self._edges = {name: _edges(one, cut) for name, one in self._groups.items()}
        self._sources = dict.fromkeys(one.group.source for one in self._groups.values())

    def slice(self, events: pl.DataFrame) -> Tables:
        """One table per group, by the group's name."""
        return self.slice_by_source({source: seen_by(source, events) for source in self._sources})

    def slice_by_source(self, events: Mapping[Source, pl.DataFrame]) -> Tables:
        """The same where each source sees events of its own."""
        tables: Tables = {}
        for name, compiled in self._groups.items():
            group = compiled.group
            if group.parent is None:
                shared_edges = self._edges[name][1]
                table = slice(events[group.source], group.source.time, shared_edges, compiled.shared_schema)
                tables |= self.spread(group, table) if group.children else {name: table}
        return tables

    def spread(self, group: Group, shared: pl.DataFrame) -> Tables:
        """A group's own slices, and those of the groups that are rolled up from it, of slices that they share."""
        names = [one.name for one in (group, *group.children)]
        return {name: roll_up(shared, self._edges[name][0], self._groups[name].schema) for name in names}


def _edges(compiled: CompiledGroup, cut: bool) -> tuple[Edges, Edges]:
    """The edges of a group's own slices, and of those that it shares."""
    if cut and any(isinstance(timeline.window, Session) for timeline in compiled.group.needs(shared=True)[0]):
        return cut_at_gaps(compiled.group, shared=False), cut_at_gaps(compiled.group, shared=True)
    return compiled.edges, compiled.shared_edges


def cut_at_gaps(group: Group, shared: bool) -> Edges:
    """A group's edges with every multiple of its sessions' gaps."""
    timelines = group.needs(shared)[0]
    gaps = {timeline.window.gap for timeline in timelines if isinstance(timeline.window, Session)}
    cells = [Timeline(Tumbling(gap, 0, True), INT64_MIN, INT64_MAX, False) for gap in gaps]
    return Edges.of([*timelines, *cells])


class Gathered:
    """The tables of several batches, merged once they have become many."""

    def __init__(self, plan: CompiledPlan) -> None:
        self._plan = plan
        self._buffers: dict[str, SliceBuffer] = {}

    def add(self, tables: Tables) -> None:
        for name, table in tables.items():
            if table.height:
                if name not in self._buffers:
                    self._buffers[name] = SliceBuffer(self._plan.by_name[name].schema, SLICES_AT_ONCE)
                self._buffers[name].add(table)

    def tables(self) -> Tables:
        """One table per group; what has come in a single one is as it came."""
        return {name: _in_one(buffer) for name, buffer in self._buffers.items()}

    def merged(self) -> Tables:
        """One table per group, with each slice once, in order."""
        return {name: buffer.merged() for name, buffer in self._buffers.items()}


def _in_one(buffer: SliceBuffer) -> pl.DataFrame:
    return buffer.pending[0] if not buffer.table.height and len(buffer.pending) == 1 else buffer.merged()


class Unordered:
    """The events of groups that need the order, as they wait for it."""

    def __init__(self, plan: CompiledPlan) -> None:
        groups = [one for one in plan.groups if one.group.ordered and not one.group.is_apart]
        self._sources = {one.group.name: one.group.source for one in groups}
        self._columns = {one.group.name: list(dict.fromkeys((*one.travels, "nth"))) for one in groups}
        self._events: dict[str, list[pl.DataFrame]] = {name: [] for name in self._sources}

    def add(self, events: pl.DataFrame) -> int:
        """Take events, and return how many bytes they are."""
        size = 0
        for name, source in self._sources.items():
            self._events[name].append(seen_by(source, events)[self._columns[name]])
            size += int(self._events[name][-1].estimated_size())
        return size

    def tables(self) -> Tables:
        return {name: pl.concat(parts) for name, parts in self._events.items() if parts}
