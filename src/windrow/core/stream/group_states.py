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
from typing import Any

import numpy as np
import polars as pl

from windrow.core.assemble.emitted import Emitted
from windrow.core.assemble.group_state import Change, GroupState
from windrow.core.ordered.state import OrderedState
from windrow.core.plan.watermark import TimeColumn
from windrow.core.slices.kernel import time_name
from windrow.core.slices.table import merge
from windrow.core.stream.compiled import CompiledPlan
from windrow.core.stream.ingest import Taken, buffer, change_of
from windrow.core.stream.job_slicer import Tables, named_tables, parts_of
from windrow.core.stream.late import slices_behind


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

    def take(self, taken: Taken) -> int:
        """Take in what a batch brings; returns how many of its events some window leaves out."""
        self._changes |= taken.changes
        return taken.hand_over()

    def absorb(self, tables: Mapping[str, pl.DataFrame]) -> int:
        """Take in slices, and events of ordered groups, that were made elsewhere, by the names of their groups.

        Returns how many events some window leaves out. Tables of groups that are not here are passed over: no query
        asks for them any more.
        """
        dropped = 0
        for name, table in tables.items():
            state = self.states.get(name)
            if state is None:
                continue
            table = state.compiled.conform(table)
            if isinstance(state, OrderedState):
                dropped += self._buffer(state, table)
                continue
            if self._is_behind(state, table):
                table, out = self.without_late(state, merge([table], state.schema))
                dropped += out
            state.absorb(table)
        return dropped

    def without_late(self, state: GroupState, table: pl.DataFrame) -> tuple[pl.DataFrame, int]:
        """Merged slices without those that come too late for every window, and how many events some window leaves out.

        What the others change of windows that were emitted is noted, and emitted by the next `advance`.
        """
        time_column = self._time_column(state)
        behind = slices_behind(state, table, time_column.final_before)
        table, state.exclusions = behind.table, behind.exclusions
        if time_column.updates:
            late = table.filter(_begins(state, table) < time_column.watermark)
            if late.height:
                self._changes[state.group.name] = change_of(state, late, time_column)
        return table, int(behind.left_out.sum())

    def _is_behind(self, state: GroupState, table: pl.DataFrame) -> bool:
        watermark = self._time_column(state).watermark
        return table.height > 0 and bool((_begins(state, table) < watermark).any())

    def _buffer(self, state: OrderedState, events: pl.DataFrame) -> int:
        """Buffer events of one ordered group until their order is final."""
        taken, time_column = Taken(), self._time_column(state)
        behind = events[time_name(state.group.source.time)].to_numpy() < time_column.watermark
        if behind.any():
            taken.dropped = np.zeros_like(behind)
        buffer(state, events, time_column, behind if behind.any() else None, None, taken)
        return self.take(taken)

    def _time_column(self, state: GroupState) -> TimeColumn:
        return self.time_columns[state.group.source.time]

    # --- windows out ----------------------------------------------------------------------------------------------

    def advance(self, watermarks: Mapping[str, int], partial: bool = False) -> dict[str, list[Emitted]]:
        """Move the watermarks of time columns, and give what each group emits: windows that are due, and those that
        late events have changed. A group for which nothing can be due is not touched."""
        emitted: dict[str, list[Emitted]] = {}
        for name, state in self.states.items():
            time_column = self._time_column(state)
            step = time_column.step_to(watermarks.get(state.group.source.time, time_column.watermark))
            change = self._changes.get(name)
            if change is not None or (step.now != step.before and state.may_be_due(step)):
                emitted[name] = list(state.step(step, change, partial))
        for name, watermark in watermarks.items():
            self.time_columns[name].watermark = watermark
        self._changes = {}
        return emitted

    def results(self, emitted: Mapping[str, Iterable[Emitted]]) -> pl.DataFrame:
        """The rows of emitted windows; what does not fit into 64 bits is null in them, and counted in `overflowed`."""
        table, overflowed = self.plan.results.build([one for several in emitted.values() for one in several])
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
        """Go on from what `header` and `tables` have given."""
        for name, state in self.states.items():
            if name in header:
                state.restore(header[name])
                state.load(parts_of(name, tables))


def _begins(state: GroupState, table: pl.DataFrame) -> pl.Series:
    """When each slice begins: at its first event, where slices are runs of events."""
    return table["first" if state.schema.has_runs else "slice_start"]
