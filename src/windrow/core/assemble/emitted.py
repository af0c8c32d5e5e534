"""Emitted windows: what was emitted of a window before, for those that late events change.

With `updates`, a late event emits every window that it changes again, one revision higher. `EmittedWindows` is the
table of those that were emitted, with what identifies them and their last revision. What else is known of one, and
which windows need a row, differs: of windows with fixed bounds and sessions (`Revisions`) only those that were emitted
more than once, or were opened again, because what was emitted of all others follows from their slices; of windows that
lie in the order (`core.ordered.emitted`) all that may still change, because a late event shifts every one after it.
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
from windrow.core.plan.groups import Group, Timeline
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
class EmittedWindows:
    """A row for each window that is remembered: what identifies it, its last revision, and more."""

    table: pl.DataFrame | None = None

    def of(self, ids: pl.DataFrame) -> Ints:
        """The last revision of each window, -1 where none is known."""
        if self.table is None or not self.table.height:
            return np.full(ids.height, -1)
        return join_keys(ids, self.table, ids.columns, "left")["revision"].fill_null(-1).to_numpy()

    def put(self, windows: pl.DataFrame, identity: Sequence[str]) -> None:
        """Remember windows, in the place of what was known of them; timelines that end twice have them twice."""
        windows = windows.unique(identity, keep="first", maintain_order=True)
        if self.table is not None:
            others = join_keys(self.table, windows, identity, "anti")
            windows = pl.concat([others, windows.select(others.columns)])
        self.table = windows

    def keep(self, chosen: pl.Expr | pl.Series) -> None:
        """Forget all other windows."""
        if self.table is not None:
            self.table = self.table.filter(chosen)


class Revisions(EmittedWindows):
    """Of windows with fixed bounds and sessions; `upto` is the last end of a session that was opened again."""

    def ids(
        self, rows: Rows, windows: Windows, group: Group, where: Expression | None, ordered: bool | None
    ) -> pl.DataFrame:
        """What identifies windows: timeline, filter, key, start, and the end where it is fixed.

        Aggregates that need the order leave more late events out, so that their windows count revisions of their own.
        """
        is_session = np.array([isinstance(timeline.window, Session) for timeline in group.timelines])
        ends = pl.Series("end", windows.end).set(pl.Series(is_session[windows.timeline]), None)
        where_text = pl.Series("where", [_where_text(where, ordered)]).new_from_index(0, len(windows.lo))
        start = pl.Series("start", windows.start)
        return pl.DataFrame([*rows.keys_at(windows.key), windows.lines(group), where_text, start, ends])

    def set(self, ids: pl.DataFrame, revision: Ints, upto: pl.Series | None = None) -> None:
        """Remember revisions; with `upto`, of sessions that are open again."""
        ends = pl.Series([None], dtype=pl.Int64).new_from_index(0, ids.height) if upto is None else upto
        self.put(ids.with_columns(pl.Series("revision", revision, dtype=pl.Int64), ends.alias("upto")), ids.columns)

    def reopened(self, timeline: Timeline, ordered: bool | None) -> pl.DataFrame | None:
        """The sessions of a timeline that were emitted and are open again."""
        if self.table is None:
            return None
        is_reopened = (pl.col("line") == timeline.line) & pl.col("upto").is_not_null()
        return self.table.filter(is_reopened & (pl.col("where") == _where_text(None, ordered)))

    def forget(self, before: int) -> None:
        self.keep(pl.max_horizontal("start", "end") > before)


def _where_text(where: Expression | None, ordered: bool | None) -> str:
    return (where.text if where else "") + (" in order" if ordered else "")
