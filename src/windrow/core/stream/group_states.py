"""The states of a plan's groups, and the one way to drive them.

    batch  ── take ────▶ ┌────────┐
                         │ states │ ── advance(watermarks) ──▶ emitted windows ── results ──▶ a table
    tables ── absorb ──▶ └────────┘

An engine, a task and a bucket on Spark, the root of a tree and a local node with windows of its own differ in what they
put in and when they move the watermark, and in nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from windrow.core.arrays.range_queries import Ints, Mask
from windrow.core.assemble.emitted import Emitted
from windrow.core.assemble.group_state import Change, GroupState
from windrow.core.ordered.state import OrderedState
from windrow.core.plan.groups import Source
from windrow.core.plan.watermark import TimeColumn
from windrow.core.slices.kernel import filter_name, time_name
from windrow.core.slices.table import merge
from windrow.core.stream import deduplicate
from windrow.core.stream.compiled import CompiledPlan
from windrow.core.stream.deduplicate import Kept, Repeats, repeats_of
from windrow.core.stream.job_slicer import Slicer, Tables, named_tables, parts_of
from windrow.core.stream.late import slice_behind, slices_behind


class Taken(NamedTuple):
    """What became of a batch: which events some window leaves out (None if no event was behind a watermark), how many
    were behind, how many were repeats, and the events of which repeats are dropped from now on."""

    left_out: Mask | None
    late: int
    repeats: int
    kept: Kept


class GroupStates:
    """The states of groups by name, the time columns that they are driven by, and late changes still to be emitted."""

    def __init__(
        self, plan: CompiledPlan, time_columns: Mapping[str, TimeColumn], states: Iterable[GroupState] | None = None
    ) -> None:
        """By default with an empty state for each of the plan's groups."""
        self.plan, self.time_columns = plan, time_columns
        made = (compiled.state() for compiled in plan.groups) if states is None else states
        self.states = {state.group.name: state for state in made}
        self.overflowed: Counter[str] = Counter()  # results that did not fit into 64 bits, by column
        self._changes: dict[str, Change] = {}

    # --- slices and events in -------------------------------------------------------------------------------------

    def take(self, events: pl.DataFrame, ranges: Mapping[str, tuple[int, int]], kept: Kept) -> Taken:
        """Slice the prepared events of a batch for every group, and buffer them for those that need the order."""
        behind: dict[str, Mask] = {}
        for name, (oldest, _) in ranges.items():
            if oldest < self.time_columns[name].watermark:
                behind[name] = events[time_name(name)].to_numpy() < self.time_columns[name].watermark
        late = int(np.count_nonzero(np.logical_or.reduce([*behind.values()]))) if behind else 0
        left_out = np.zeros(events.height, np.bool_) if behind else None
        by_source: dict[Source, list[GroupState]] = {}
        for state in self.states.values():
            by_source.setdefault(state.group.source, []).append(state)
        fresh, kept_now = self._without_repeats(events, by_source, kept)
        ahead: dict[Source, pl.DataFrame] = {}
        for source, states in by_source.items():
            seen, index = _seen(events, source, fresh.get(repeats_of(source)))
            mask = behind.get(source.time)
            if mask is not None and index is not None:
                mask = mask[index]
            ahead[source] = seen if mask is None else seen.filter(pl.Series(~mask))
            for state in states:
                out = self._take_in(state, seen, mask)
                if left_out is not None and out is not None:
                    left_out[out if index is None else index[out]] = True
        for name, table in Slicer(self.plan).slice_by_source(ahead).items():
            self.states[name].absorb(table)
        repeats = sum(int((~is_fresh).sum()) for is_fresh in fresh.values())
        return Taken(left_out, late, repeats, kept_now)

    def _without_repeats(
        self, events: pl.DataFrame, sources: Iterable[Source], kept: Kept
    ) -> tuple[dict[Repeats, pl.Series], Kept]:
        """For all sources that drop the same repeats, which events are none; and what is kept of all so far."""
        fresh: dict[Repeats, pl.Series] = {}
        now = dict(kept)
        for source in sources:
            repeats = repeats_of(source)
            if source.distinct_on and repeats not in fresh:
                before = kept.get(repeats)
                fresh[repeats], now[repeats] = deduplicate.fresh(
                    events, repeats, self.time_columns[source.time], before
                )
        return fresh, now

    def _take_in(self, state: GroupState, events: pl.DataFrame, behind: Mask | None) -> Mask | None:
        """Take events of one group: those behind the watermark (None if none is), and where order counts all others.

        Those that are in time wait until their order is final; those that come too late for that are sliced outside of
        the order. Gives the events that some window leaves out.
        """
        if behind is None:
            if isinstance(state, OrderedState):
                state.buffer(events)
            return None
        time_column, too_late = self._time_column(state), behind
        if isinstance(state, OrderedState):
            too_late = events[time_name(state.group.source.time)].to_numpy() < time_column.final_before
            state.buffer(events.filter(pl.Series(~too_late)))
        late = slice_behind(state, events, too_late, time_column.final_before)
        # all late events change emitted windows, also those that are still in time for the order; the slices made here
        # are only noted, and the state takes `late.table`
        changes = late.table
        if too_late is not behind and time_column.updates:  # these have the same exclusion sets
            changes = slice_behind(state, events, behind, time_column.final_before).table
        self._note_change(state, changes)
        state.exclusions = late.exclusions
        state.absorb(late.table)
        return late.left_out > 0

    def _note_change(self, state: GroupState, late: pl.DataFrame) -> None:
        """Note what late slices change of windows that were emitted; before the state takes them."""
        time_column = self._time_column(state)
        if time_column.updates and late.height:
            closed = state.closed_sessions(time_column.watermark)
            self._changes[state.group.name] = Change(merge([late], state.schema), time_column.final_before, closed)

    def absorb(self, tables: Mapping[str, pl.DataFrame]) -> Counter[str]:
        """Take in slices, and events of ordered groups, that were made elsewhere, by the names of their groups.

        Returns how many events some window leaves out, for each group. Tables of groups that are not here are passed
        over: no query asks for them any more.
        """
        dropped: Counter[str] = Counter()
        for name, table in tables.items():
            state = self.states.get(name)
            if state is None:
                continue
            table = state.compiled.conform(table)
            if isinstance(state, OrderedState):
                behind = table[time_name(state.group.source.time)].to_numpy() < self._time_column(state).watermark
                left_out = self._take_in(state, table, behind if behind.any() else None)
                dropped[name] += 0 if left_out is None else int(np.count_nonzero(left_out))
                continue
            if (_begins(state, table) < self._time_column(state).watermark).any():
                table, out = self.admit_slices(state, merge([table], state.schema))
                dropped[name] += out
            state.absorb(table)
        return dropped

    def admit_slices(self, state: GroupState, table: pl.DataFrame) -> tuple[pl.DataFrame, int]:
        """Judge merged slices before a state takes them: those that some window still takes, and how many events are
        left out of some.

        The state learns of new exclusion sets, and what the slices change of windows that were emitted is noted, and
        emitted by the next `advance`.
        """
        time_column = self._time_column(state)
        behind = slices_behind(state, table, time_column.final_before)
        table, state.exclusions = behind.table, behind.exclusions
        if time_column.updates:
            self._note_change(state, table.filter(_begins(state, table) < time_column.watermark))
        return table, int(behind.left_out.sum())

    def _time_column(self, state: GroupState) -> TimeColumn:
        time_column = self.time_columns[state.group.source.time]
        return time_column if state.behind is None else replace(time_column, watermark=state.behind)

    # --- windows out ----------------------------------------------------------------------------------------------

    def advance(self, watermarks: Mapping[str, int], partial: bool = False) -> dict[str, list[Emitted]]:
        """Move the watermarks of time columns, and give what each group emits: windows that are due, and those that
        late events have changed. A group for which nothing can be due is not touched."""
        emitted: dict[str, list[Emitted]] = {}
        for name, state in self.states.items():
            time = state.group.source.time
            time_column, now = self._time_column(state), watermarks.get(time, self.time_columns[time].watermark)
            step = time_column.step_to(now)
            reachable = state.reachable(step)
            if reachable < now:
                step = time_column.step_to(reachable)
            change = self._changes.get(name)
            if change is not None or state.may_be_due(step):
                emitted[name] = list(state.step(step, change, partial))
            state.behind = reachable if reachable < now else None
        for name, watermark in watermarks.items():
            self.time_columns[name].watermark = watermark
        self._changes = {}
        return emitted

    def results(self, emitted: Mapping[str, Iterable[Emitted]]) -> pl.DataFrame:
        """The rows of emitted windows; what does not fit into 64 bits is null in them, and counted in `overflowed`."""
        table, overflowed = self.plan.results.build([chunk for chunks in emitted.values() for chunk in chunks])
        self.overflowed += overflowed
        return table

    # --- what they hold -------------------------------------------------------------------------------------------

    @property
    def slices(self) -> int:
        return sum(len(state.rows) for state in self.states.values())

    @property
    def held_events(self) -> int:
        return sum(state.held_events for state in self.states.values())

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return sum(state.size for state in self.states.values())

    def is_over(self, number: int) -> bool:
        """Whether a query, given by its number in the plan, has emitted its last window."""
        for state in self.states.values():
            for (timeline, _), numbers in state.group.members.items():
                if number in numbers:
                    return state.is_over(timeline, self._time_column(state).final_before)
        return True

    def take_over(self, other: GroupStates) -> None:
        """Go on where the states of an earlier plan stand: what this plan does not know is dropped."""
        for name, state in self.states.items():
            if name in other.states:
                state.take_over(other.states[name])

    def copy(self, time_columns: Mapping[str, TimeColumn]) -> GroupStates:
        """The same states, of which either may change without the other, driven by these time columns."""
        other = GroupStates(self.plan, time_columns, [state.copy() for state in self.states.values()])
        other.overflowed, other._changes = Counter(self.overflowed), dict(self._changes)
        return other

    def header(self) -> dict[str, Any]:
        """What they know beside their tables, as plain data; `load` takes it back."""
        return {name: state.header() for name, state in self.states.items()}

    def tables(self) -> Tables:
        """Everything else that they know, as tables by group and part."""
        return named_tables({name: state.tables() for name, state in self.states.items()})

    def load(self, header: Mapping[str, Any], tables: Mapping[str, pl.DataFrame]) -> None:
        for name, state in self.states.items():
            if name in header:
                state.restore(header[name])
                state.load(parts_of(name, tables))


def _seen(events: pl.DataFrame, source: Source, keep: pl.Series | None) -> tuple[pl.DataFrame, Ints | None]:
    """The events that a source sees, of those to keep (None for all); and their places among all (None for all)."""
    if source.where:
        satisfied = events[filter_name(source.where.text)]
        keep = satisfied if keep is None else keep & satisfied
    if keep is None or keep.all():
        return events, None
    return events.filter(keep), keep.arg_true().to_numpy()


def _begins(state: GroupState, table: pl.DataFrame) -> pl.Series:
    """When each slice begins: at its first event, where slices are runs of events."""
    return table["first" if state.schema.has_runs else "slice_start"]
