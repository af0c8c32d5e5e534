"""Tuple buffer: events are kept in order, and every window is computed from its events when it ends.

    events ──▶ one buffer, in the order of time ──▶ at its end each window: all of its events, once more

It is Scotty's tuple buffer, Desis's CeBuffer and what Deco's Central does at the root: nothing is computed before a
window ends, and nothing is shared between windows, so that an event is touched once for each window that it is in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

import windrow as wr
from bench.baselines.common import (
    END,
    POSITION,
    START,
    TIME,
    Run,
    System,
    Watermark,
    asked_of,
    is_plain,
    needed,
    results,
    together,
)
from windrow.core.windows.fixed import Session, Sliding, Tumbling
from windrow.core.windows.ordered import Counting

Times = npt.NDArray[np.int64]


class Query:
    """A query over the buffer: which windows end, and what of the buffer it still needs."""

    def __init__(self, query: wr.Query) -> None:
        self.query, self.window = query, query.window
        self.by = list(query.by)
        self.asked = [one.direct() for one in asked_of(query)]
        self.done: float = -np.inf  # the watermark up to which it has answered
        self.calculations = 0

    def due(self, buffer: pl.DataFrame, times: Times, base: int, watermark: float) -> Iterator[pl.DataFrame]:
        """The results of the windows that end; `base` events have left the buffer at its front."""
        raise NotImplementedError

    def needs(self, times: Times, base: int) -> int:
        """How many events at the front of the buffer it needs no longer."""
        raise NotImplementedError

    def _answer(self, events: pl.DataFrame, start: int, end: int, position: int | None = None) -> pl.DataFrame:
        self.calculations += events.height * len(self.asked)
        found = events.group_by(self.by).agg(self.asked) if self.by else events.select(self.asked)
        more = [] if position is None else [pl.lit(position, pl.Int64).alias(POSITION)]
        bounds = [pl.lit(start, pl.Int64).alias(START), pl.lit(end, pl.Int64).alias(END)]
        return results(self.query, found.with_columns(*bounds, *more))


class Timed(Query):
    """Tumbling and sliding windows, one after the other."""

    def __init__(self, query: wr.Query) -> None:
        super().__init__(query)
        window: Any = self.window
        self.length, self.offset = window.length, window.offset
        self.slide = getattr(window, "slide", self.length)
        self.next: int | None = None  # the start of the first window that has not been answered

    def due(self, buffer: pl.DataFrame, times: Times, base: int, watermark: float) -> Iterator[pl.DataFrame]:
        if not len(times):
            return
        if self.next is None:
            self.next = self._first(int(times[0]))
        upto = min(watermark, float(times[-1]) + 2 * self.length)
        while self.next + self.length <= upto:
            low, high = np.searchsorted(times, (self.next, self.next + self.length))
            if low < high:
                yield self._answer(buffer[low:high], self.next, self.next + self.length)
            self.next += self.slide

    def _first(self, time: int) -> int:
        """The start of the first window that the time is in."""
        return (time - self.length - self.offset) // self.slide * self.slide + self.slide + self.offset

    def push(self, oldest: int) -> None:
        """Before the first window ends an older event may come."""
        if self.next is not None and self.done == -np.inf:
            self.next = min(self.next, self._first(oldest))

    def needs(self, times: Times, base: int) -> int:
        return 0 if self.next is None else int(np.searchsorted(times, self.next))


class Sessions(Query):
    """Runs of events that a gap parts, found in the buffer."""

    def due(self, buffer: pl.DataFrame, times: Times, base: int, watermark: float) -> Iterator[pl.DataFrame]:
        window: Any = self.window
        if not buffer.height:
            return
        ordered = buffer.sort(self.by, maintain_order=True) if self.by else buffer
        time = pl.col(TIME).to_physical()
        begins = (time.diff() > window.gap).fill_null(True)
        begins = begins.over(self.by) if self.by else begins
        runs = ordered.with_columns(run=begins.cum_sum())
        bounds = runs.group_by("run").agg(time.min().alias(START), (time.max() + window.gap).alias(END))
        is_due = (pl.col(END) < watermark) & (pl.col(END) >= self.done)
        due = bounds.filter(is_due)
        self.open = bounds.filter(pl.col(END) >= watermark)[START].min()
        if due.height:
            events = runs.join(due, on="run", how="inner")
            self.calculations += events.height * len(self.asked)
            first = [pl.col(name).first() for name in (*self.by, START, END)]
            yield results(self.query, events.group_by("run").agg(*first, *self.asked))

    def needs(self, times: Times, base: int) -> int:
        return int(np.searchsorted(times, self.open)) if self.open is not None else len(times)


class Ordered(Query):
    """Counting and punctuated windows: positions in the buffer, behind the watermark."""

    def __init__(self, query: wr.Query) -> None:
        super().__init__(query)
        self.next = 0  # the position of the first event that has not been answered

    def due(self, buffer: pl.DataFrame, times: Times, base: int, watermark: float) -> Iterator[pl.DataFrame]:
        final = int(np.searchsorted(times, watermark))
        for end in self._ends(buffer, base, final):
            low, high = self.next - base, end - base
            position = self.next if isinstance(self.window, Counting) else None
            yield self._answer(buffer[low:high], int(times[low]), int(times[high - 1]), position)
            self.next = end

    def _ends(self, buffer: pl.DataFrame, base: int, final: int) -> list[int]:
        if isinstance(self.window, Counting):
            return list(range(self.next + self.window.n, base + final + 1, self.window.n))
        window: Any = self.window
        low = self.next - base
        return [int(at) + self.next + 1 for at in np.flatnonzero(buffer[window.end][low:final].to_numpy())]

    def needs(self, times: Times, base: int) -> int:
        return self.next - base


class Buffer(Run):
    """The buffer, and all queries over it."""

    def __init__(self, queries: Sequence[wr.Query], lateness: int) -> None:
        self._queries = [_query(query) for query in queries]
        self._needed = needed(queries)
        self._watermark = Watermark(lateness)
        self._buffer: pl.DataFrame | None = None
        self._base = 0

    def push(self, events: pl.DataFrame) -> pl.DataFrame:
        watermark = self._watermark.see(events)
        events = events.select(self._needed)
        buffer = events if self._buffer is None else pl.concat([self._buffer, events])
        times = buffer[TIME].to_physical().to_numpy()
        if np.any(times[1:] < times[:-1]):
            buffer = buffer[np.argsort(times, kind="stable")]
        self._buffer = buffer
        for query in self._queries:
            if isinstance(query, Timed):
                query.push(int(buffer[TIME].to_physical()[0]))
        return self._emit(watermark)

    def finish(self) -> pl.DataFrame:
        return self._emit(np.inf)

    def _emit(self, watermark: float) -> pl.DataFrame:
        if self._buffer is None:
            return pl.DataFrame()
        times = self._buffer[TIME].to_physical().to_numpy()
        found = []
        for query in self._queries:
            found += query.due(self._buffer, times, self._base, watermark)
            query.done = watermark
        left = min(query.needs(times, self._base) for query in self._queries)
        self._buffer = self._buffer[left:]
        self._base += left
        return together(found)

    @property
    def calculations(self) -> int:  # type: ignore[override]
        return sum(query.calculations for query in self._queries)

    @property
    def state_bytes(self) -> int:
        return 0 if self._buffer is None else int(self._buffer.estimated_size())


def _query(query: wr.Query) -> Query:
    if isinstance(query.window, Tumbling | Sliding):
        return Timed(query)
    return Sessions(query) if isinstance(query.window, Session) else Ordered(query)


SYSTEM = System("buffer", lambda queries: all(map(is_plain, queries)), Buffer)
