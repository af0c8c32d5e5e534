"""The root's state: slices of all nodes, and the windows that the tree's watermark has passed.

    tables of a batch ── absorb ──▶ the state of each group ── advance(watermark) ──▶ results

The same states and the same assembly as in one process; slices come instead of events. What comes behind the watermark
is judged as in a stream on Spark, a slice at a time (`late.slices_behind`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from windrow.core.assemble.emitted import Emitted
from windrow.core.slices.table import merge
from windrow.core.stream.group_states import GroupStates, parts_of
from windrow.core.stream.job import Job
from windrow.core.windows.fixed import INT64_MAX
from windrow.nodes.counting.coordinator import Agreement
from windrow.nodes.pushdown import Reported
from windrow.nodes.quantiles.coordinator import Refining
from windrow.nodes.quantiles.state import RefinedState
from windrow.nodes.quantiles.tables import forms_of


class Assembly:
    def __init__(self, job: Job, epoch: int = 0) -> None:
        self.job, self._epoch = job, epoch
        self._time_column = job.time_columns[job.time]
        bound, forms = job.bound, forms_of(job)
        here = [one for one in bound.groups if not one.group.is_apart and one.group.name not in forms]
        self._states = GroupStates(bound, {job.time: self._time_column}, [one.state() for one in here])
        # windows of a refined group wait for values: each has a time column of its own
        refined = {
            name: RefinedState(bound.by_name[name], form, job.time_columns[job.time]) for name, form in forms.items()
        }
        self._refined = [GroupStates(bound, {job.time: one.time_column}, [one]) for one in refined.values()]
        self.refining = Refining(refined)
        self._reported = Reported(job)
        self.agreement = Agreement(job, epoch)

    @property
    def watermark(self) -> int:
        return self._time_column.watermark

    @property
    def overflows(self) -> int:
        """Results that did not fit into 64 bits, and are null."""
        return self._states.overflowed.total()

    @property
    def slices(self) -> int:
        """How many slices and events it holds."""
        held = sum(states.slices + states.held_events for states in (self._states, *self._refined))
        return held + self._reported.size + self.agreement.size

    def absorb(self, tables: Mapping[str, pl.DataFrame], now: int = 0) -> int:
        """Take the tables of a batch in, by the names of their groups; returns how many events came too late for some
        window."""
        late = self._reported.absorb(tables) + self.agreement.absorb(tables, now)
        self.refining.absorb(tables)
        for states in self._refined:
            for name, state in states.states.items():
                if name in tables and isinstance(state, RefinedState):
                    state.see(merge([state.compiled.conform(tables[name])], state.schema))
        return late + sum(states.absorb(tables) for states in (self._states, *self._refined))

    def advance(self, watermark: int) -> pl.DataFrame:
        """Move the watermark, and give what is due: windows that it passes, and those that nodes have found."""
        step, moved = self._time_column.step_to(watermark), watermark > self._time_column.watermark
        emitted: dict[str, list[Emitted]] = {}
        if moved:
            emitted = self._states.advance({self.job.time: watermark})
        at_nodes: list[Emitted] = []
        if moved or watermark == INT64_MAX:
            at_nodes += self._reported.step(step)
        at_nodes += self.refining.advance(watermark)
        if self.agreement:
            at_nodes += self.agreement.advance(watermark, step)
        return self._reported.told(self._states.results(emitted | {"": at_nodes}))

    def switched(self, job: Job) -> Assembly:
        """The same with another plan: what that does not know is dropped."""
        other = Assembly(job, self._epoch)
        other._time_column.watermark = self.watermark
        other._states.overflowed = self._states.overflowed
        other._states.take_over(self._states)
        before = {name: states for states in self._refined for name in states.states}
        for states in other._refined:
            for name in states.states:
                if name in before:
                    states.take_over(before[name])
        other._reported = self._reported.switched(job)
        other.agreement = self.agreement.switched(job)
        other.refining.take_over(self.refining)
        return other

    def saved(self) -> tuple[dict[str, Any], dict[str, pl.DataFrame]]:
        """Everything that it knows, as plain data and tables; `restore` goes on with them."""
        tables = {name: table for states in (self._states, *self._refined) for name, table in states.tables().items()}
        agreed, more = self.agreement.saved()
        header = {"watermark": self.watermark, "overflowed": dict(self._states.overflowed), "agreement": agreed}
        header |= {"states": self._states.header(), "refining": self.refining.saved()}
        return header, tables | self._reported.saved() | more

    def restore(self, header: Mapping[str, Any], tables: Mapping[str, pl.DataFrame]) -> None:
        self._time_column.watermark = header["watermark"]
        self._states.overflowed.update(header["overflowed"])
        self._states.load(header["states"], tables)
        for states in self._refined:
            for name, state in states.states.items():
                if mine := parts_of(name, tables):
                    state.load(mine)
        self._reported.restore(tables)
        self.agreement.restore(header["agreement"], tables)
        self.refining.restore(header["refining"])
