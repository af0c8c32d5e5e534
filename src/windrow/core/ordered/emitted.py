"""Retelling: which windows in the order of events were told, so that those that late events change are told again.

With `updates`, a late event shifts every window of its key after it. A window is then as it was told if it holds the
same events, which a digest says; it is told again, one revision higher, if it holds others, and taken back if no
window is known by what it was known by. So what was told is kept for every window that may still change.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from windrow.core.arrays.dataframes import join_keys
from windrow.core.arrays.range_queries import Ints
from windrow.core.ordered.windows import Found, OrderedRows, digests
from windrow.core.plan.groups import Timeline
from windrow.core.windows.fixed import INT64_MAX


@dataclass
class Retelling:
    """The windows that were told: what identifies them, their events and bounds, the last revision.

    They say whether they are `gone`, or `again` open: a late event can open a window of the user's own again.
    """

    keys: list[str]
    table: pl.DataFrame | None = None

    @property
    def known_by(self) -> list[str]:
        return [*self.keys, "line", "at", "nth"]

    def tell(
        self, rows: OrderedRows, found: Collection[Found], timelines: Sequence[Timeline], changed: Ints
    ) -> tuple[pl.DataFrame | None, pl.Series, Ints]:
        """Note windows, complete ones and open ones, that a step has found for the keys of some rows.

        `changed` is the position of each key's first late event. Gives the windows that are no more, and for each that
        was found whether it is to be told, and its revision.
        """
        if not found:
            gone = None if self.table is None else self._taken_back(rows, None, changed)
            return gone, pl.Series([], dtype=pl.Boolean), np.empty(0, np.int64)
        there = pl.concat([_described(rows, one, timelines) for one in found])
        if self.table is None:
            self.table = there.clear().with_columns(_NEW)
        settled = not (self.table["gone"] | self.table["again"]).any()
        if settled and not (changed < INT64_MAX).any():  # all that was found is new
            fresh = ~there["is_open"]
            self.table = pl.concat([self.table, self._once(there.filter(fresh).with_columns(_NEW))])
            return None, fresh, np.zeros(there.height, np.int64)
        gone = self._taken_back(rows, there, changed)
        known_by = self.known_by
        told = join_keys(there[known_by], self.table[[*known_by, "digest", "revision", "gone"]], known_by, "left")
        same = ((told["digest"] == there["digest"]) & ~told["gone"]).fill_null(False)
        revision = (told["revision"] + (~same).cast(pl.Int64)).fill_null(0)
        again = join_keys(self.table, there.filter(pl.col("is_open")), known_by, "semi").with_columns(
            again=pl.lit(True)
        )
        noted = there.with_columns(_NEW).with_columns(revision.alias("revision")).filter(~pl.col("is_open"))
        rest = join_keys(self.table, there, known_by, "anti")
        self.table = pl.concat([rest, again[rest.columns], self._once(noted)[rest.columns]])
        return gone, ~there["is_open"] & ~same, revision.to_numpy()

    def _once(self, windows: pl.DataFrame) -> pl.DataFrame:
        """Each window once, though timelines that differ in their end have it twice."""
        return windows.unique(self.known_by, keep="first", maintain_order=True)

    def _taken_back(self, rows: OrderedRows, there: pl.DataFrame | None, changed: Ints) -> pl.DataFrame | None:
        """The windows of keys with late events that were told and are no more, with their next revision."""
        assert self.table is not None
        late = np.flatnonzero(changed < INT64_MAX)
        if not len(late):
            return None
        since = pl.Series("changed", changed[late])
        if self.keys:
            after = join_keys(self.table, rows.keys[late].with_columns(since), self.keys, "inner")
        else:
            after = self.table.with_columns(since.new_from_index(0, self.table.height))
        may_have_gone = ((pl.col("stop") >= pl.col("changed")) | pl.col("again")) & ~pl.col("gone")
        gone = after.filter(may_have_gone).drop("changed")
        if there is not None:
            gone = join_keys(gone, there, self.known_by, "anti")
        if not gone.height:
            return None
        gone = gone.with_columns(pl.col("revision") + 1, gone=pl.lit(True), again=pl.lit(False))
        rest = join_keys(self.table, gone, self.known_by, "anti")
        self.table = pl.concat([rest, gone[rest.columns]])
        return gone

    def forget(self, ended: Ints, final_before: int) -> None:
        """Forget windows that end before a position, given for each, unless they may return."""
        if self.table is not None:
            may_change = self.table["stop"].to_numpy() >= ended
            may_return = (self.table["again"] | (self.table["gone"] & (self.table["start"] >= final_before))).to_numpy()
            self.table = self.table.filter(may_change | may_return).rechunk()

    def forget_boundaries(self, lines: Collection[str], final_before: int) -> None:
        """Forget the windows of some timelines that end in time, at or before this."""
        if self.table is not None and lines:
            self.table = self.table.filter(~pl.col("line").is_in(list(lines)) | (pl.col("end") > final_before))


_NEW = [pl.lit(0, pl.Int64).alias("revision"), pl.lit(False).alias("gone"), pl.lit(False).alias("again")]


def _described(rows: OrderedRows, found: Found, timelines: Sequence[Timeline]) -> pl.DataFrame:
    """What identifies windows, which events they hold, and their bounds."""
    windows = found.windows
    lines = pl.Series("line", [timeline.line for timeline in timelines], dtype=pl.String)
    columns = [
        lines.gather(windows.timeline),
        pl.Series("at", found.at),
        pl.Series("nth", found.nth),
        pl.Series("stop", found.stop),
        digests(rows, windows),
        pl.Series("start", windows.start),
        pl.Series("end", windows.end),
        pl.Series("is_open", np.full(len(windows.lo), found.is_open)),
    ]
    return pl.DataFrame([*rows.keys_at(windows.key), *columns])
