"""Which windows in the order of events were emitted, so that those that late events change are emitted again.

With `updates`, a late event shifts every window of its key after it. A window is as it was emitted if it holds the same
events, which a digest shows; it is emitted again, one revision higher, if it holds others, and retracted if no window
is identified any more as it was. So there is a row for every emitted window that may still change.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import polars as pl

from windrow.core.arrays.dataframes import join_keys
from windrow.core.arrays.range_queries import Ints, differences
from windrow.core.assemble.emitted import EmittedWindows
from windrow.core.ordered.windows import OrderedRows, WindowsInOrder
from windrow.core.plan.groups import Group
from windrow.core.windows.fixed import INT64_MAX


class OrderedRevisions(EmittedWindows):
    """Of windows in the order: their events and bounds, whether they are `gone` (retracted), and whether they are
    `again` open: a late event can open a window of the user's own again.
    """

    def __init__(self, keys: list[str]) -> None:
        super().__init__()
        self._keys, self._identity = keys, [*keys, "line", "at", "nth"]

    def note(
        self, rows: OrderedRows, parts: Collection[WindowsInOrder], group: Group, changed: Ints
    ) -> tuple[pl.DataFrame | None, pl.Series, Ints]:
        """Note the windows, complete ones and open ones, that a step has found for the keys of some rows.

        `changed` is the position of each key's first late event. Gives the windows that are retracted, and for each
        that was found whether it is to be emitted, and its revision.
        """
        if not parts:
            gone = None if self.table is None else self._retract(rows, None, changed)
            return gone, pl.Series([], dtype=pl.Boolean), np.empty(0, np.int64)
        windows = pl.concat([_described(rows, part, group) for part in parts]).with_columns(_NEW)
        if self.table is None:
            self.table = windows.clear().drop("is_open")
        may_differ = (self.table["gone"] | self.table["again"]).any() or (changed < INT64_MAX).any()
        if not may_differ:  # all that was found is new
            is_closed = ~windows["is_open"]
            closed = windows.filter(is_closed).drop("is_open").unique(self._identity, keep="first", maintain_order=True)
            self.table = pl.concat([self.table, closed.select(self.table.columns)])
            return None, is_closed, np.zeros(windows.height, np.int64)
        gone = self._retract(rows, windows, changed)
        before = join_keys(
            windows[self._identity], self.table[[*self._identity, "digest", "revision", "gone"]], self._identity, "left"
        )
        is_same = ((before["digest"] == windows["digest"]) & ~before["gone"]).fill_null(False)
        revision = (before["revision"] + (~is_same).cast(pl.Int64)).fill_null(0)
        is_open = windows["is_open"]
        reopened = join_keys(self.table, windows.filter(is_open), self._identity, "semi").with_columns(again=True)
        self.put(reopened, self._identity)
        self.put(windows.with_columns(revision.alias("revision")).filter(~is_open).drop("is_open"), self._identity)
        return gone, ~is_open & ~is_same, revision.to_numpy()

    def _retract(self, rows: OrderedRows, windows: pl.DataFrame | None, changed: Ints) -> pl.DataFrame | None:
        """Note that emitted windows of keys with late events are no more; gives them, with their next revision."""
        assert self.table is not None
        late = np.flatnonzero(changed < INT64_MAX)
        if not len(late):
            return None
        since = pl.Series("changed", changed[late])
        if self._keys:
            after = join_keys(self.table, rows.keys[late].with_columns(since), self._keys, "inner")
        else:
            after = self.table.with_columns(since.new_from_index(0, self.table.height))
        may_have_gone = ((pl.col("stop") >= pl.col("changed")) | pl.col("again")) & ~pl.col("gone")
        gone = after.filter(may_have_gone).drop("changed")
        if windows is not None:
            gone = join_keys(gone, windows, self._identity, "anti")
        if not gone.height:
            return None
        gone = gone.with_columns(pl.col("revision") + 1, gone=True, again=False)
        self.put(gone, self._identity)
        return gone

    def forget_ended(self, ended: Ints, final_before: int) -> None:
        """Forget windows that end before a position, given for each, unless they may come back."""
        if self.table is not None:
            may_change = self.table["stop"].to_numpy() >= ended
            may_return = (self.table["again"] | (self.table["gone"] & (self.table["start"] >= final_before))).to_numpy()
            self.keep(pl.Series(may_change | may_return))
            self.table = self.table.rechunk()

    def forget_boundaries(self, lines: Collection[str], final_before: int) -> None:
        """Forget the windows of some timelines that end in time, at or before this."""
        if lines:
            self.keep(~pl.col("line").is_in(list(lines)) | (pl.col("end") > final_before))


_NEW = [pl.lit(0, pl.Int64).alias("revision"), pl.lit(False).alias("gone"), pl.lit(False).alias("again")]


def _described(rows: OrderedRows, part: WindowsInOrder, group: Group) -> pl.DataFrame:
    """What identifies windows, which events they hold, and their bounds."""
    windows = part.windows
    columns = {
        "at": part.at,
        "nth": part.nth,
        "stop": part.stop,
        "digest": differences(rows.table["digest"].to_numpy(), windows.lo, windows.hi),  # which events it holds
        "start": windows.start,
        "end": windows.end,
        "is_open": np.full(len(windows.lo), part.is_open),
    }
    return pl.DataFrame([*rows.keys_at(windows.key), windows.lines(group), *pl.DataFrame(columns)])
