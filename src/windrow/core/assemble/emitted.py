"""Revisions: how often a window was told, for windows that late events change after they were emitted.

With `updates`, a late event emits every window that it changes again, one revision higher. Only windows that were
told more than once, or that a late event has opened again, are remembered here; every other window that was told has
revision 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from windrow.core.arrays.dataframes import join_keys
from windrow.core.arrays.range_queries import Ints
from windrow.core.assemble.answers import Answers
from windrow.core.assemble.due import Keys, Rows, Windows
from windrow.core.expressions.parse import Expression
from windrow.core.plan.groups import Timeline
from windrow.core.windows.fixed import Session


@dataclass(frozen=True)
class Emitted:
    """Windows with their answers, a revision for each window, and whether they are taken back."""

    keys: Keys
    windows: Windows
    answers: Answers
    revision: Ints
    retracted: bool = False


@dataclass
class Revisions:
    """The last revision of windows, and for sessions that are open again, up to when they were told (`upto`)."""

    table: pl.DataFrame | None = None

    def ids(
        self,
        rows: Rows,
        windows: Windows,
        timelines: Sequence[Timeline],
        where: Expression | None,
        ordered: bool | None = None,
    ) -> pl.DataFrame:
        """What identifies windows: timeline, filter, key, start, and the end where it is fixed.

        Aggregates that need the order leave more late events out, so that their windows count revisions of their own.
        """
        fixed = np.array([not isinstance(timeline.window, Session) for timeline in timelines])[windows.timeline]
        lines = pl.Series("line", [timeline.line for timeline in timelines])
        text = (where.text if where else "") + (" in order" if ordered else "")
        texts = pl.Series("where", [text]).new_from_index(0, len(windows.lo))
        ends = pl.Series("end", windows.end).set(pl.Series(~fixed), None)
        bounds = [pl.Series("start", windows.start), ends]
        return pl.DataFrame([*rows.keys_at(windows.key), lines.gather(windows.timeline), texts, *bounds])

    def of(self, ids: pl.DataFrame) -> Ints:
        """The last revision of each, -1 where none is known."""
        if self.table is None or not self.table.height:
            return np.full(ids.height, -1)
        found = join_keys(ids, self.table, ids.columns, "left")
        return found["revision"].fill_null(-1).to_numpy()

    def set(self, ids: pl.DataFrame, revision: Ints, upto: pl.Series | None = None) -> None:
        """Remember revisions; with `upto`, of sessions that are open again."""
        ends = pl.Series([None], dtype=pl.Int64).new_from_index(0, ids.height) if upto is None else upto
        fresh = ids.with_columns(pl.Series("revision", revision, dtype=pl.Int64), ends.alias("upto"))
        fresh = fresh.unique(ids.columns, keep="first", maintain_order=True)  # a timeline may end twice
        if self.table is not None:
            rest = join_keys(self.table, ids, ids.columns, "anti")
            fresh = pl.concat([rest.select(fresh.columns), fresh])
        self.table = fresh

    def with_reopened(
        self, told: pl.DataFrame | None, ids: pl.DataFrame, timeline: Timeline, ordered: bool | None
    ) -> pl.DataFrame:
        """The sessions that were told, those that are open again included: of these no count is the same."""
        if told is None:
            told = ids.clear().with_columns(rows=pl.lit(0, pl.Int64), upto=pl.lit(0, pl.Int64))
        if self.table is None:
            return told
        again = self.table.filter((pl.col("line") == timeline.line) & pl.col("upto").is_not_null())
        again = again.filter(pl.col("where") == (" in order" if ordered else ""))
        again = join_keys(again, told, ids.columns, "anti").with_columns(rows=pl.lit(-1, pl.Int64))
        return pl.concat([told, again.select(told.columns)])

    def forget(self, before: int) -> None:
        if self.table is not None:
            self.table = self.table.filter(pl.max_horizontal("start", "end") > before)
