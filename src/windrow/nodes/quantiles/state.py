"""The root's state of a group whose multisets stay at nodes: slices, and windows once all of their ranks are known.

Such a group falls behind the watermark while its windows wait for answers (`reachable`). What is not known of a
multiset whose node is gone is left out of it; its events count as late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from windrow.core.assemble.due import Rows, session_windows
from windrow.core.assemble.emitted import Emitted
from windrow.core.assemble.group_state import Change, GroupState
from windrow.core.plan.watermark import WatermarkStep
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.nodes.quantiles.protocol import MultisetSchema
from windrow.nodes.quantiles.root import Due, RemoteMultisets, placed


class RefinedState(GroupState):
    """The state of a group of time windows or sessions."""

    def __init__(self, schema: MultisetSchema) -> None:
        self.multisets = RemoteMultisets(schema)
        self.sends: dict[str, int] = {}  # of each node, the last of which blocks have come
        self.released: dict[str, tuple[int, int]] = {}  # what nodes need not keep: sends, and before which time
        self.late: Counter[str] = Counter()  # events of multisets that are left out, by node, until somebody asks
        self._checked = INT64_MIN  # up to here it is known what has to be requested
        self._due: list[Due] | None = None  # the windows of the next step; None if none can be due
        self._next_session = INT64_MAX  # when the first session closes after `_checked`
        super().__init__(schema.compiled)

    # --- what comes in --------------------------------------------------------------------------------------------

    def absorb_answers(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """Take in the blocks and values of a batch."""
        self._count_left_out(self.multisets.leave_out(self.multisets.absorb(tables)))
        for operator in self.multisets.stores:
            blocks = tables.get(self.multisets.schema.table("blocks", operator))
            sends = blocks.group_by("node").agg(pl.col("send").max()).iter_rows() if blocks is not None else ()
            for node, send in sends:
                self.sends[node] = max(self.sends.get(node, 0), send)

    def see(self, table: pl.DataFrame) -> None:
        """Note that slices have come."""
        self.multisets.see(table)
        first = table["first" if self.schema.has_runs else "slice_start"].min()
        self.multisets.is_news |= first is not None and int(first) < self._checked  # type: ignore[arg-type]

    def _count_left_out(self, names: pl.DataFrame) -> None:
        """Count the events of multisets that are left out from now on."""
        for node, send, row in names.iter_rows():
            of = (pl.col("node") == node) & (pl.col("send") == send) & (pl.col("row") == row)
            stores = self.multisets.stores.values()
            self.late[node] += max(int(store.blocks.filter(of)["count"].explode().sum()) for store in stores)

    # --- windows --------------------------------------------------------------------------------------------------

    def reachable(self, step: WatermarkStep) -> int:
        """The watermark before which the ranks of all windows are known; `wanted` is what those after it wait for.

        The first window that waits holds back all that end at its end or later.
        """
        multisets, self._due = self.multisets, None
        since = max(self._checked, step.before)
        is_due = step.now == INT64_MAX or super().may_be_due(replace(step, before=since))
        if step.now == step.before or not (is_due or multisets.is_news):
            return step.before if multisets.wanted else step.now
        self._checked = step.now
        due = self._windows_of(step)
        waits, left_out = multisets.search(due)
        self._count_left_out(left_out)
        ends = [int(one.windows.end[waiting].min()) for one, waiting in zip(due, waits, strict=True) if waiting.any()]
        reachable = min(ends, default=step.now + 1) - 1
        self._due = [Due(rows, windows.take(windows.end <= reachable)) for rows, windows in due]
        self.next_close = self._next_session
        return max(reachable, step.before)

    def may_be_due(self, step: WatermarkStep) -> bool:
        return step.now != step.before and self._due is not None

    def step(self, step: WatermarkStep, change: Change | None = None, partial: bool = False) -> Iterator[Emitted]:
        yield from super().step(step, change, partial)
        self.next_close, self._due = self._next_session, None  # answers are news for the sessions that wait

    def _windows_of(self, step: WatermarkStep) -> list[Due]:
        """The windows of a step, whether their ranks are known or not."""
        self._next_session = INT64_MAX
        rows = Rows(placed(self.rows.table), self.schema)
        due = [Due(rows, self.assembler.due(rows, step.before, step.now))]
        for view, of_gap in self.all_sessions(rows):
            self._next_session = min(self._next_session, of_gap.next_end(step.now))
            closing = of_gap.closing(step.before, step.now)
            due.append(Due(view, session_windows(self.group.timelines[of_gap.timeline], closing)))
        return [one for one in due if len(one.windows.lo)]

    def emit_by_time(
        self, rows: Rows, step: WatermarkStep, change: Change | None, ordered: bool | None = None
    ) -> Iterator[Emitted]:
        filled = Rows(self.multisets.filled(rows.table, self._due), self.schema) if self._due else rows
        yield from super().emit_by_time(filled, step, change, ordered)

    def prune(self, final_before: int) -> None:
        super().prune(final_before)
        self.multisets.forget(self.rows.table)
        stores = self.multisets.stores.values()
        blocks = pl.concat([store.blocks.select("node", "start") for store in stores])
        starts = dict(blocks.group_by("node").agg(pl.col("start").min()).iter_rows())
        self.released = {node: (send, starts.get(node, INT64_MAX)) for node, send in self.sends.items()}

    # --- what is kept ---------------------------------------------------------------------------------------------

    def take_over(self, other: GroupState) -> None:
        super().take_over(other)
        assert isinstance(other, RefinedState)
        self.behind = other.behind
        self.sends, self.released, self.late = other.sends, other.released, other.late
        self.multisets.take_over(other.multisets)

    def tables(self) -> dict[str, pl.DataFrame]:
        return super().tables() | self.multisets.tables()

    def load(self, tables: Mapping[str, pl.DataFrame]) -> None:
        super().load(tables)
        self.multisets.load(tables)

    def header(self) -> dict[str, Any]:
        """What it knows beside its tables."""
        header = {"behind": self.behind, "sends": self.sends, "released": self.released}
        return super().header() | header | {"checked": self._checked, "multisets": self.multisets.header()}

    def restore(self, header: Mapping[str, Any]) -> None:
        super().restore(header)
        self.behind = header["behind"]
        self.sends, self._checked = dict(header["sends"]), header["checked"]
        self.multisets.restore(header["multisets"])
        self.released = {node: (send, start) for node, (send, start) in header["released"].items()}
