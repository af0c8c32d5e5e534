"""Slicers: prepared events as the tables of every group, one per group.

    events ── Slicer ──▶ slices of every group ── Gathered ──▶ merged, once they have become many
           ── Unordered ──▶ the events of groups that need the order

An engine slices its batches with it; a task of Spark or a node slices where the events are, and elsewhere the tables of
many are put together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from windrow.core.plan.groups import Group, Source
from windrow.core.slices.kernel import filter_name
from windrow.core.slices.table import SliceBuffer
from windrow.core.stream.compiled import CompiledPlan

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


@dataclass(frozen=True)
class Slicer:
    """Turns prepared events into the slices of every group that is not ordered.

    With `at_gaps`, slices end at every multiple of a session's gap too, where sessions can come to be cut.
    """

    plan: CompiledPlan
    at_gaps: bool = False

    def slice(self, events: pl.DataFrame) -> Tables:
        """One table per group, by the group's name."""
        sources = dict.fromkeys(compiled.group.source for compiled in self.plan.sliced.values())
        return self.slice_by_source({source: seen_by(source, events) for source in sources})

    def slice_by_source(self, events: Mapping[Source, pl.DataFrame]) -> Tables:
        """The same where each source sees events of its own."""
        tables: Tables = {}
        for name, compiled in self.plan.sliced.items():
            group = compiled.group
            if group.parent is None:
                table = compiled.slice_shared(events[group.source], self.at_gaps)
                tables |= self.spread(group, table) if group.children else {name: table}
        return tables

    def spread(self, group: Group, shared: pl.DataFrame) -> Tables:
        """A group's own slices, and those of the groups that are rolled up from it, of slices that they share."""
        names = [member.name for member in (group, *group.children)]
        return {name: self.plan.sliced[name].roll_up(shared, self.at_gaps) for name in names}


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
        return {
            name: buffer.merged() if buffer.table.height or len(buffer.pending) > 1 else buffer.pending[0]
            for name, buffer in self._buffers.items()
        }

    def merged(self) -> Tables:
        """One table per group, with each slice once, in order."""
        return {name: buffer.merged() for name, buffer in self._buffers.items()}


class Unordered:
    """The events of groups that need the order, as they wait for it."""

    def __init__(self, plan: CompiledPlan) -> None:
        groups = [compiled for compiled in plan.groups if compiled.group.ordered and not compiled.group.is_apart]
        self._sources = {compiled.group.name: compiled.group.source for compiled in groups}
        self._columns = {compiled.group.name: list(dict.fromkeys((*compiled.travels, "nth"))) for compiled in groups}
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
