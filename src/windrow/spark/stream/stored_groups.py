"""The groups of a bucket in a step: each reads what the step needs of its state, and puts away what it then holds.

    state store ── what this step needs ──▶ state of the group ── advance ──▶ windows that the watermark passes
    payloads ── new slices, new events ───▶                    ── advance ──▶ windows that late events change
    state store ◀── what it now holds ─────

A step reads as little as it can: of slices the chunks that ending windows span (`slice_store`), of sessions and ordered
groups the keys in which something may end or be late (`key_partitions`). So a micro-batch costs what it brings and what
ends in it, not what is held.

**Why a step advances twice.** The watermark of a micro-batch is that of the events before it. So windows that end at or
before it are complete with what is stored: they are emitted first, without the new slices. Events of the micro-batch
that are behind the watermark are late for these windows, as they would be in an engine that had moved its watermark
after the last batch. Then the new slices are taken in, and a second `advance`, to the same watermark, emits what they
change within `updates`. Other windows wait for a later step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from windrow.core.assemble.emitted import Emitted
from windrow.core.assemble.group_state import CompiledGroup, GroupState
from windrow.core.ordered.state import OrderedState
from windrow.core.plan.groups import Group
from windrow.core.plan.plan import fingerprint_of
from windrow.core.plan.watermark import WatermarkStep
from windrow.core.slices.table import merge
from windrow.core.stream.group_states import GroupStates
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN, Session
from windrow.core.windows.ordered import Counting, DataDrivenWindow
from windrow.spark.stream.key_partitions import KeyPartitions, PartitionedState, closings
from windrow.spark.stream.slice_store import Chunks, StateError, StoredTables, chunks_of, needed_from, next_end


class StoredGroup:
    """A group for the length of a micro-batch: `take` once, and then what it emits, leaves out and has `saved`."""

    def __init__(
        self, states: GroupStates, step: WatermarkStep, tables: StoredTables, buckets: int, saved: Mapping[str, Any]
    ) -> None:
        """With an empty state, and what the index of the bucket says of the group."""
        (self.state,), (self._time_column,) = states.states.values(), states.time_columns.values()
        self.step, self._states, self._tables, self._buckets, self._saved = step, states, tables, buckets, saved
        self._types = _checked_types(self.state.compiled, saved.get("types", {}))
        if "exclusions" in saved:
            self.state.restore(saved)
        self.emitted: list[Emitted] = []
        self.dropped = 0  # events that some of its windows leave out
        self.slices = self.held_events = 0
        self.next_due = INT64_MAX
        self.over: set[int] = set()  # numbers of queries that were being removed and have emitted their last window

    def take(self, new: list[pl.DataFrame]) -> None:
        """Step, and take in the tables of payloads."""
        raise NotImplementedError

    def saved(self) -> dict[str, Any]:
        """What the index is to say of the group."""
        return {"types": self._types, **self.state.header()}

    def _advance(self) -> None:
        """Emit what is due at the watermark, and what late slices have changed since the last time."""
        watermarks = dict.fromkeys(self._states.time_columns, self.step.now)
        self.emitted += self._states.advance(watermarks).get(self.state.group.name, [])

    def _note_over(self, unread_from: int = INT64_MAX) -> None:
        """Note the queries that were being removed and are over; slices from some time on may not have been read."""
        for timeline, number in self.state.group.timelines.items():
            may_be_open = isinstance(timeline.window, Session) and unread_from < timeline.until
            if timeline.closing and not may_be_open and self.state.is_over(number, self.step.final_before):
                self.over |= set(self.state.assembler.queries_of(number).tolist())


def forget(tables: StoredTables, buckets: int, saved: Mapping[str, Any]) -> None:
    """Drop the state of a group that has no query any more."""
    Chunks.read(tables, saved.get("chunks")).forget(INT64_MAX)
    PartitionedState(tables, buckets, saved.get("partitioned")).forget()
    if tables.find("revisions") is not None:
        tables.delete("revisions")


def _checked_types(compiled: CompiledGroup, before: Mapping[str, str]) -> dict[str, str]:
    """The types of a group's columns; refuses state whose columns have others."""
    types = {name: str(dtype) for name, dtype in {**compiled.schema.columns, **compiled.travels}.items()}
    for name, dtype in types.items():
        if before.get(name, dtype) != dtype:
            raise StateError(
                f"this checkpoint holds {name.partition(':')[2] or name!r} of group {compiled.group.name} as "
                f"{before[name]}, and here it is {dtype}: go on with the types as they were, or start with a new "
                "checkpoint"
            )
    return types


# --- slices ---------------------------------------------------------------------------------------------------------


class SlicedGroup(StoredGroup):
    """A group whose slices merge in any order: they lie in chunks, beside the revisions of its windows."""

    def take(self, new: list[pl.DataFrame]) -> None:
        schema, now = self.state.schema, self.step.now
        self._chunks = chunks = Chunks.read(self._tables, self._saved.get("chunks"))
        revisions = self._tables.find("revisions")
        if revisions is not None:
            self.state.load({"slices": schema.empty(), "revisions": revisions})
        self._take_slices(merge([schema.conform(part) for part in new], schema) if new else None)
        if self.state.revisions.table is not None and self.state.revisions.table is not revisions:
            self._tables.put("revisions", self.state.revisions.table)
        self.slices = chunks.rows
        self._note_over(chunks.oldest)
        if chunks.runs:
            ends = next_end(self.state, max(now, chunks.oldest)) if now > INT64_MIN else INT64_MIN
            self.next_due = min(ends, min(chunks.closes, INT64_MAX - 1) + 1)

    def _take_slices(self, table: pl.DataFrame | None) -> None:
        """Step, and take in slices, which are merged."""
        raise NotImplementedError

    def saved(self) -> dict[str, Any]:
        return super().saved() | {"chunks": self._chunks.saved()}

    def _load(self, runs: list[pl.DataFrame]) -> None:
        """Fill the state with slices that were stored; it keeps its revisions."""
        schema = self.state.schema
        self.state.load({"slices": merge([schema.conform(run) for run in runs], schema) if runs else schema.empty()})

    def _without_late(self, table: pl.DataFrame) -> pl.DataFrame:
        """Slices that some window still takes, of those that are behind the watermark."""
        table, left_out = self._states.admit_slices(self.state, table)
        self.dropped += left_out
        return table


class FixedGroup(SlicedGroup):
    """A group of windows with fixed bounds: those that end need the chunks that they span.

    Everything is read where late slices may change any emitted window, and for windows of one's own that end, of
    which nobody knows how far back they begin.
    """

    def _take_slices(self, table: pl.DataFrame | None) -> None:
        state, step, chunks = self.state, self.step, self._chunks
        whole = False  # whether everything is read
        if step.now > step.before:
            whole = bool(state.assembler.irregular)
            since = needed_from(state, step.before, step.now)
            if since < INT64_MAX:
                self._load(chunks.load(since))
            self._advance()
            if not whole:
                chunks.forget(state.assembler.lattices.horizon(step.final_before))
        if table is not None:
            if (table["slice_start"] < step.now).any():
                if not whole and self._time_column.updates > 0:
                    self._load(chunks.load())
                    whole = True
                table = self._without_late(table)
            if whole:
                state.absorb(table)
            else:
                chunks.add(table, state.schema, *chunks_of(state, table))
            self._advance()
        if whole:
            chunks.forget(INT64_MAX)
            chunks.add(state.rows.table, state.schema, *chunks_of(state, state.rows.table))


class SessionGroup(SlicedGroup):
    """A group of sessions: it reads the key partitions in which one may end, or for which a slice is late.

    The slices of all other keys are put away unread: they can only extend open sessions or begin new ones.
    """

    def _take_slices(self, table: pl.DataFrame | None) -> None:
        state, step, chunks = self.state, self.step, self._chunks
        partitions = KeyPartitions(self._buckets, self._saved.get("partitions", 1))
        opened = chunks.closing(step.now) if step.now > step.before else set()
        late = False
        if table is not None:
            behind = table["first"] < step.now
            late = bool(behind.any())
            opened |= set(partitions.of(table.filter(behind)).tolist())
        if opened:
            self._load(chunks.load_only(opened))
        self._advance()
        if table is not None:
            table = self._without_late(table) if late else table
            partition = partitions.of(table)
            is_opened = np.isin(partition, list(opened))
            state.absorb(table.filter(pl.Series(is_opened)))
            chunks.add(table.filter(pl.Series(~is_opened)), state.schema, partition[~is_opened])
            self._advance()
        self._fitting = partitions.fitting(chunks.rows)
        if self._fitting is not partitions:
            others = {run.chunk for run in chunks.runs} - opened
            for run in chunks.load_only(others):
                state.absorb(state.schema.conform(run))
            opened |= others
        if opened:
            closes = closings(state, self._fitting, step.now, self._time_column.updates)
            chunks.replace(opened, state.rows.table, self._fitting.of(state.rows.table), closes)

    def saved(self) -> dict[str, Any]:
        return super().saved() | {"partitions": self._fitting.count}


# --- order ----------------------------------------------------------------------------------------------------------


class OrderedGroup(StoredGroup):
    """A group that buffers events until their order is final: it reads the key partitions in which one becomes final or
    is late, and all of them when windows may end at a time."""

    state: OrderedState

    def take(self, new: list[pl.DataFrame]) -> None:
        state, step, time = self.state, self.step, self.state.ordering.time
        moves = step.now > step.before
        self._arrived = self._saved.get("arrived", 0)
        self._form = self._saved.get("form", "")
        self._partitioned = stored = PartitionedState(self._tables, self._buckets, self._saved.get("partitioned"))
        opened: set[int] = set()
        if moves:
            opened = stored.numbers if self._concerns_all() else stored.due(step.now)
        late = None
        if new:
            nth = pl.int_range(self._arrived, self._arrived + pl.len(), dtype=pl.Int64)
            events = pl.concat([state.ordering.conform(part) for part in new]).with_columns(nth=nth)
            self._arrived += events.height
            is_late = events[time] < step.now
            late = events.filter(is_late) if is_late.any() else None
            if late is not None:
                opened |= set(stored.partitions.of(late).tolist())
                if self._form != _form(state.group):
                    opened |= stored.numbers  # so that all partitions have the columns of one plan
            stored.buffer(events.filter(~is_late), time)
        if opened:
            stored.load(state, opened, step.now)
            self._advance()
            if late is not None:
                self.dropped += self._states.absorb({state.group.name: late}).total()
                self._advance()
            stored.replace(state, opened)
            self._form = _form(state.group)
        if moves:
            self._note_over()
        fitting = stored.partitions.fitting(stored.slices + stored.events)
        if fitting != stored.partitions:
            stored.split_anew(state.compiled.state(), fitting)
        self.slices, self.held_events = stored.slices, stored.events
        ends_at_times = any(not isinstance(line.window, Counting | DataDrivenWindow) for line in state.group.timelines)
        if ends_at_times and stored.has_tables:
            self.next_due = step.now + 1 if step.now > INT64_MIN else INT64_MIN
        elif stored.first < INT64_MAX:
            self.next_due = stored.first + 1

    def saved(self) -> dict[str, Any]:
        partitioned = {"partitioned": self._partitioned.saved(), "form": self._form, "arrived": self._arrived}
        return super().saved() | partitioned

    def _concerns_all(self) -> bool:
        """Whether windows of any key may end in a step: a time has come, or the queries have changed."""
        state, step = self.state, self.step
        ends = state.finder.ends(step) or state.assembler.any_end(step.before, step.now)
        goes = any(timeline.closing for timeline in state.group.timelines)
        # sessions end, and what `updates` keeps is let go, without an event of their key
        without_event = bool(state.compiled.session_timelines) or self._time_column.updates > 0
        return ends or goes or without_event or self._form != _form(state.group)


def _form(group: Group) -> str:
    """A fingerprint of what the tables of an ordered group depend on."""
    return fingerprint_of([group], list(map(repr, group.timelines)), [partial.text for partial in group.partials])


def kind_of(state: GroupState) -> type[StoredGroup]:
    """How a group's state is stored, which no two kinds of windows share: see `kinds_apart` of `core.plan.plan`."""
    if isinstance(state, OrderedState):
        return OrderedGroup
    return SessionGroup if state.compiled.session_timelines else FixedGroup
