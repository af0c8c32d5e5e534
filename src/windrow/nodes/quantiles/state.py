"""The root's state of a group whose bags stay at nodes: slices, and windows once all of their ranks are known.

The group has a watermark of its own, which waits for answers while other groups go on. What is not known of a bag whose
node has gone is left out of it; its events count as late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from windrow.core.assemble.due import Rows, session_windows
from windrow.core.assemble.emitted import Emitted
from windrow.core.assemble.group_state import Change, CompiledGroup, GroupState
from windrow.core.assemble.sessions import sessions
from windrow.core.plan.watermark import TimeColumn, WatermarkStep
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.nodes.quantiles.root import Due, Ranks, placed
from windrow.nodes.quantiles.tables import TimeForm


class RefinedState(GroupState):
    """The state of a refined group."""

    def __init__(self, compiled: CompiledGroup, form: TimeForm, time_column: TimeColumn) -> None:
        self.form, self.time_column = form, time_column
        self.ranks = Ranks(form)
        self.sends: dict[str, int] = {}  # of each node, the last of which units have come
        self.settled: dict[str, tuple[int, int]] = {}  # what nodes need not keep
        self.late: Counter[str] = Counter()  # events of bags that are left out, by node, until somebody asks
        self._checked = INT64_MIN  # up to here it is known what has to be asked
        self._next_found = INT64_MAX  # when the first session closes after what was looked at last
        super().__init__(compiled)

    # --- what comes in --------------------------------------------------------------------------------------------

    def hear(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """Units and values of a batch."""
        self._leave_out(self.ranks.lose(self.ranks.hear(tables)))
        for bag in self.form.bags:
            units = tables.get(f"{self.form.name}|units {bag}")
            sends = units.group_by("node").agg(pl.col("send").max()).iter_rows() if units is not None else ()
            for node, send in sends:
                self.sends[node] = max(self.sends.get(node, 0), send)

    def see(self, table: pl.DataFrame) -> None:
        """Slices have come."""
        self.ranks.see(table)
        first = table["first" if self.schema.has_runs else "slice_start"].min()
        self.ranks.is_news |= first is not None and int(first) < self._checked  # type: ignore[arg-type]

    def check_again(self) -> None:
        """Nodes have come or gone."""
        self.ranks.is_news = True

    def _leave_out(self, lost: pl.DataFrame) -> None:
        """Count the events of bags that are left out."""
        for node, send, row in lost.iter_rows():
            of = (pl.col("node") == node) & (pl.col("send") == send) & (pl.col("row") == row)
            stores = self.ranks.stores.values()
            self.late[node] += max(int(store.units.filter(of)["count"].explode().sum()) for store in stores)

    # --- windows --------------------------------------------------------------------------------------------------

    def finish(self, watermark: int, gone: set[str]) -> Iterator[Emitted]:
        """The windows before a watermark whose ranks are known; `asks` is what is missing of the others."""
        before, ranks = self.time_column.watermark, self.ranks
        if watermark <= before:
            return
        since = max(self._checked, before)
        is_due = self.may_be_due(WatermarkStep(since, watermark, since, watermark)) or watermark == INT64_MAX > since
        if not (is_due or ranks.is_news):
            if not ranks.asks:
                self.time_column.watermark = watermark
            return
        self._checked = watermark
        due = self._due(self.rows, self.time_column.step_to(watermark))
        waits, lost = ranks.find(due, gone)
        self._leave_out(lost)
        ends = [int(one.windows.end[mine].min()) for one, mine in zip(due, waits, strict=True) if mine.any()]
        next_close = self._next_found
        upto = min(ends, default=watermark + 1) - 1
        if upto > before:
            step = self.time_column.step_to(upto)
            self.time_column.watermark = upto
            yield from list(self.step(step))
        if ranks.asks:
            self._next_close = next_close  # of sessions that are not waiting

    def _due(self, rows: Rows, step: WatermarkStep) -> list[Due]:
        """What a step would tell."""
        self._next_found = INT64_MAX
        rows = Rows(placed(rows.table), self.schema)
        found = [Due(rows, self.assembler.due(rows, step.before, step.now))]
        for view, timelines in self.session_views(rows):
            for one in sessions(view.runs, timelines):
                ends = one.last + one.gap
                self._next_found = min(self._next_found, int(ends[ends >= step.now].min(initial=INT64_MAX)))
                closes = one.take((ends >= step.before) & (ends < step.now))
                found.append(Due(view, session_windows(self.group.timelines[one.timeline], closes)))
        return [one for one in found if len(one.windows.lo)]

    def _measured(
        self, rows: Rows, step: WatermarkStep, change: Change | None, ordered: bool | None = None
    ) -> Iterator[Emitted]:
        due = self._due(rows, step)
        filled = Rows(self.ranks.filled(rows.table, due), self.schema) if due else rows
        yield from super()._measured(filled, step, change, ordered)

    def prune(self, final_before: int) -> None:
        super().prune(final_before)
        self.ranks.forget(self.rows.table)
        stores = self.ranks.stores.values()
        held = pl.concat([store.units.select("node", "start") for store in stores])
        starts = dict(held.group_by("node").agg(pl.col("start").min()).iter_rows())
        self.settled = {node: (send, starts.get(node, INT64_MAX)) for node, send in self.sends.items()}

    # --- what is kept ---------------------------------------------------------------------------------------------

    def take_over(self, other: GroupState) -> None:
        super().take_over(other)
        assert isinstance(other, RefinedState)
        self.time_column.watermark = other.time_column.watermark
        self.sends, self.settled, self.late = other.sends, other.settled, other.late
        self.ranks.take_over(other.ranks)

    def tables(self) -> dict[str, pl.DataFrame]:
        return super().tables() | self.ranks.tables()

    def load(self, tables: Mapping[str, pl.DataFrame]) -> None:
        super().load(tables)
        self.ranks.load(tables)

    def header(self) -> dict[str, Any]:
        """What it knows beside its tables."""
        known = {"watermark": self.time_column.watermark, "sends": self.sends, "settled": self.settled}
        return super().header() | {**known, "checked": self._checked, "ranks": self.ranks.header()}

    def restore(self, header: Mapping[str, Any]) -> None:
        super().restore(header)
        self.time_column.watermark = header["watermark"]
        self.sends, self._checked = dict(header["sends"]), header["checked"]
        self.ranks.restore(header["ranks"])
        self.settled = {node: (send, start) for node, (send, start) in header["settled"].items()}
