"""Buckets: every window of every query has a partial aggregate of its own, to which each of its events is added.

    event ──▶ all windows that it is in, of all queries ──▶ one bucket each

It is Flink's way (DataStream) and Desis's DeBucket. An event of a sliding window is added `length / slide` times, and
nothing is shared between queries. Sessions are buckets that are merged when they meet; counting and punctuated windows
wait until the order of events is final.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

import windrow as wr
from bench.baselines.common import (
    END,
    POSITION,
    START,
    TIME,
    Order,
    Run,
    System,
    Watermark,
    asked_of,
    is_plain,
    needed,
    results,
    together,
)
from windrow.core.windows.fixed import Session
from windrow.core.windows.ordered import Counting, OrderedWindow


class Query:
    """The buckets of one query, in a table: keys, bounds, partial aggregates."""

    def __init__(self, query: wr.Query) -> None:
        self.query, self.window = query, query.window
        asked = asked_of(query)
        self.lifted = [one for part in asked for one in part.lifted()]
        self.merged = [one for part in asked for one in part.merged()]
        self.lowered = [part.lowered() for part in asked]
        self.by = list(query.by)
        self.buckets: pl.DataFrame | None = None
        self.calculations = self.closed_buckets = 0

    def add(self, events: pl.DataFrame) -> None:
        raise NotImplementedError

    def closed(self, watermark: float) -> pl.Expr:
        raise NotImplementedError

    def bounds(self) -> list[pl.Expr]:
        raise NotImplementedError

    def due(self, watermark: float) -> pl.DataFrame | None:
        """The results of the buckets that are complete, which are forgotten."""
        if self.buckets is None or not self.buckets.height:
            return None
        closed = self.buckets.select(self.closed(watermark)).to_series()
        if not closed.any():
            return None
        done, self.buckets = self.buckets.filter(closed), self.buckets.filter(~closed)
        self.closed_buckets += done.height
        return results(self.query, done.select(*self.by, *self.bounds(), *self.lowered))

    def _merge(self, new: pl.DataFrame, identity: list[str], *more: pl.Expr) -> None:
        both = new if self.buckets is None else pl.concat([self.buckets, new])
        self.buckets = both.group_by(self.by + identity).agg(*more, *self.merged) if self.buckets is not None else new


class Timed(Query):
    """Tumbling and sliding windows."""

    def __init__(self, query: wr.Query) -> None:
        super().__init__(query)
        window: Any = self.window
        self.length, self.offset = window.length, window.offset
        self.slide = getattr(window, "slide", self.length)

    def add(self, events: pl.DataFrame) -> None:
        times = events[TIME].to_physical().to_numpy()
        newest = (times - self.offset) // self.slide * self.slide + self.offset
        for copy in range(-(-self.length // self.slide)):
            start = newest - copy * self.slide
            inside = start + self.length > times
            part = events.with_columns(pl.Series(START, start))
            part = part if inside.all() else part.filter(pl.Series(inside))
            if part.height:
                self._merge(part.group_by(*self.by, START).agg(self.lifted), [START])
                self.calculations += part.height * len(self.lifted)

    def closed(self, watermark: float) -> pl.Expr:
        return pl.col(START) + self.length <= watermark

    def bounds(self) -> list[pl.Expr]:
        return [pl.col(START), (pl.col(START) + self.length).alias(END)]


class Sessions(Query):
    """A bucket reaches from its first event to its last, and those that a gap does not part are one."""

    def __init__(self, query: wr.Query) -> None:
        super().__init__(query)
        window: Any = self.window
        self.gap = window.gap

    def add(self, events: pl.DataFrame) -> None:
        times = pl.col(TIME).to_physical()
        alone = events.with_columns(times.alias(START), times.alias(END))
        new = alone.group_by(self._runs(alone)).agg(
            *(pl.col(key).first() for key in self.by), pl.col(START).min(), pl.col(END).max(), *self.lifted
        )
        self.calculations += events.height * len(self.lifted)
        new = new.drop("run")
        if self.buckets is None:
            self.buckets = new
            return
        both = pl.concat([self.buckets, new])
        self.buckets = (
            both.group_by(self._runs(both))
            .agg(*(pl.col(key).first() for key in self.by), pl.col(START).min(), pl.col(END).max(), *self.merged)
            .drop("run")
        )

    def _runs(self, rows: pl.DataFrame) -> pl.Series:
        """For each row the number of the session that it is in."""
        order = rows.select(pl.arg_sort_by(*self.by, START)).to_series()
        placed = rows[order]
        reached = pl.col(END).cum_max().shift()
        reached = reached.over(self.by) if self.by else reached
        begins = placed.select((pl.col(START) - reached > self.gap).fill_null(True)).to_series()
        runs = np.empty(rows.height, np.int64)
        runs[order.to_numpy()] = begins.to_numpy().cumsum()
        return pl.Series("run", runs)

    def closed(self, watermark: float) -> pl.Expr:
        return pl.col(END) + self.gap < watermark

    def bounds(self) -> list[pl.Expr]:
        return [pl.col(START), pl.col(END) + self.gap]


class Ordered(Query):
    """Counting and punctuated windows of one key, over events whose order is final; each has its window's number."""

    def __init__(self, query: wr.Query) -> None:
        super().__init__(query)
        self.seen = 0  # events, or windows that have ended

    def add(self, events: pl.DataFrame) -> None:
        times = pl.col(TIME).to_physical()
        rows = (
            events.with_columns(self._numbered(events))
            .group_by("number")
            .agg(
                times.first().alias(START),
                times.last().alias(END),
                pl.len().alias("size"),
                self._ended().alias("ended"),
                *self.lifted,
            )
        )
        self.calculations += events.height * len(self.lifted)
        merged = [pl.col(START).min(), pl.col(END).max(), pl.col("size").sum(), pl.col("ended").any()]
        self._merge(rows, ["number"], *merged)

    def _numbered(self, events: pl.DataFrame) -> pl.Series:
        if isinstance(self.window, Counting):
            number = (np.arange(events.height) + self.seen) // self.window.n
            self.seen += events.height
        else:
            ends = events[self._mark].to_numpy()
            number = ends.cumsum() - ends + self.seen
            self.seen += int(ends.sum())
        return pl.Series("number", number.astype(np.int64))

    @property
    def _mark(self) -> str:
        window: Any = self.window
        return str(window.end)

    def _ended(self) -> pl.Expr:
        return pl.lit(False) if isinstance(self.window, Counting) else pl.col(self._mark).any()

    def closed(self, watermark: float) -> pl.Expr:
        return pl.col("size") == self.window.n if isinstance(self.window, Counting) else pl.col("ended")

    def bounds(self) -> list[pl.Expr]:
        position = [(pl.col("number") * self.window.n).alias(POSITION)] if isinstance(self.window, Counting) else []
        return [pl.col(START), pl.col(END), *position]


def buckets_of(query: wr.Query) -> Query:
    if isinstance(query.window, OrderedWindow):
        return Ordered(query)
    return Sessions(query) if isinstance(query.window, Session) else Timed(query)


class Buckets(Run):
    """The buckets of all queries, each on its own."""

    def __init__(self, queries: Sequence[wr.Query], lateness: int) -> None:
        several = [buckets_of(query) for query in queries]
        self._needed = needed(queries)
        self._timed = [one for one in several if not isinstance(one, Ordered)]
        self._ordered = [one for one in several if isinstance(one, Ordered)]
        self._order, self._watermark = Order(), Watermark(lateness)

    def push(self, events: pl.DataFrame) -> pl.DataFrame:
        watermark = self._watermark.see(events)
        for query in self._timed:
            query.add(events)
        if self._ordered:
            self._order.push(events.select(self._needed))
        return self._emit(watermark)

    def finish(self) -> pl.DataFrame:
        return self._emit(np.inf)

    def _emit(self, watermark: float) -> pl.DataFrame:
        final = self._order.final(watermark) if self._ordered else None
        if final is not None:
            for query in self._ordered:
                query.add(final)
        found = [query.due(watermark) for query in (*self._timed, *self._ordered)]
        return together(part for part in found if part is not None)

    @property
    def _tables(self) -> list[pl.DataFrame]:
        return [one.buckets for one in (*self._timed, *self._ordered) if one.buckets is not None]

    @property
    def calculations(self) -> int:  # type: ignore[override]
        return sum(one.calculations for one in (*self._timed, *self._ordered))

    @property
    def state_bytes(self) -> int:
        return int(sum(table.estimated_size() for table in self._tables)) + self._order.state_bytes

    @property
    def slices(self) -> int:
        closed = sum(one.closed_buckets for one in (*self._timed, *self._ordered))
        return closed + sum(table.height for table in self._tables)


SYSTEM = System("buckets", lambda queries: all(map(is_plain, queries)), Buckets)
