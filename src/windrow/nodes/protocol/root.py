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
from windrow.core.assemble.group_state import GroupState
from windrow.core.ordered.state import OrderedState
from windrow.core.plan.watermark import TimeColumn
from windrow.core.slices.table import merge
from windrow.core.stream.compiled import state_of
from windrow.core.stream.ingest import hold
from windrow.core.stream.job import Job
from windrow.core.stream.job_slicer import joined, parts_of
from windrow.core.stream.late import slices_behind
from windrow.core.windows.fixed import INT64_MAX
from windrow.nodes.counting.coordinator import Agreement
from windrow.nodes.pushdown import Reported
from windrow.nodes.quantiles.coordinator import Refining
from windrow.nodes.quantiles.state import RefinedState
from windrow.nodes.quantiles.tables import forms_of


class Assembly:
    def __init__(self, job: Job, epoch: int = 0) -> None:
        self.job, self._epoch = job, epoch
        self.overflows = 0  # results that did not fit into 64 bits, and are null
        self._time_column: TimeColumn = job.time_columns[job.time]
        bound = job.bound
        groups = [group for group in bound.plan.groups if not group.is_apart]
        forms = forms_of(job)
        refined = {name: RefinedState(form.group, form, job.time_columns[job.time]) for name, form in forms.items()}
        self._states: dict[str, GroupState] = {
            group.name: refined.get(group.name) or state_of(group, bound.binding, job.time_columns) for group in groups
        }
        self.refining = Refining(refined)
        self._reported = Reported(job)
        self.agreement = Agreement(job, epoch)

    @property
    def watermark(self) -> int:
        return self._time_column.watermark

    @property
    def slices(self) -> int:
        """How many slices and events it holds."""
        held = sum(len(state.rows) + state.held_events for state in self._states.values())
        return held + self._reported.size + self.agreement.size

    def absorb(self, tables: Mapping[str, pl.DataFrame], now: int = 0) -> int:
        """Take the tables of a batch in, by the names of their groups; returns how many events came too late for some
        window."""
        late = self._reported.absorb(tables) + self.agreement.absorb(tables, now)
        self.refining.absorb(tables)
        for name, table in tables.items():
            state = self._states.get(name)
            if isinstance(state, OrderedState):
                late += hold(state, state.ordering.conform(table), self._time_column).finish()
            elif state is not None:  # else no query asks for it any more
                made = merge([state.schema.conform(table)], state.schema)
                time_column = self._time_column
                if isinstance(state, RefinedState):
                    state.see(made)
                    time_column = state.time_column
                made, dropped = slices_behind(state, made, time_column.final_before)
                late += dropped
                state.absorb(made)
        return late

    def advance(self, watermark: int) -> pl.DataFrame:
        """Move the watermark, and say what is due: windows that it passes, and those that nodes have found."""
        step, moved = self._time_column.step_to(watermark), watermark > self._time_column.watermark
        emitted: list[Emitted] = []
        if moved:
            self._time_column.watermark = watermark
            for state in self._states.values():
                if isinstance(state, RefinedState):
                    continue
                if state.may_be_due(step) or watermark == INT64_MAX:
                    emitted += state.step(step)
        if moved or watermark == INT64_MAX:
            emitted += self._reported.step(step)
        emitted += self.refining.advance(watermark)
        if self.agreement:
            emitted += self.agreement.advance(watermark, step)
        found, overflows = self.job.bound.results.build(emitted)
        self.overflows += overflows.total()
        return self._reported.told(found)

    def switched(self, job: Job) -> Assembly:
        """The same with another plan: what that does not know is dropped."""
        other = Assembly(job, self._epoch)
        other._time_column.watermark, other.overflows = self.watermark, self.overflows
        for name, state in other._states.items():
            if name in self._states:
                state.take_over(self._states[name])
        other._reported = self._reported.switched(job)
        other.agreement = self.agreement.switched(job)
        other.refining.take_over(self.refining)
        return other

    def saved(self) -> tuple[dict[str, Any], dict[str, pl.DataFrame]]:
        """Everything that it knows, as plain data and tables; `restore` goes on with them."""
        tables = joined({name: state.tables() for name, state in self._states.items()})
        exclusions = {
            name: [sorted(exclusion) for exclusion in state.exclusions] for name, state in self._states.items()
        }
        agreed, more = self.agreement.saved()
        header = {"watermark": self.watermark, "overflows": self.overflows, "bars": exclusions, "agreement": agreed}
        header["refining"] = self.refining.saved()
        return header, tables | self._reported.saved() | more

    def restore(self, header: Mapping[str, Any], tables: Mapping[str, pl.DataFrame]) -> None:
        self._time_column.watermark, self.overflows = header["watermark"], header["overflows"]
        for name, state in self._states.items():
            state.exclusions = [frozenset((a, b) for a, b in exclusion) for exclusion in header["bars"][name]]
            if mine := parts_of(name, tables):
                state.load(mine)
        self._reported.restore(tables)
        self.agreement.restore(header["agreement"], tables)
        self.refining.restore(header["refining"])
