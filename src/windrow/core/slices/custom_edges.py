"""Windows of the user's own, with fixed bounds that lie on no lattice: where they begin and end.

    ContextFreeWindow.windows(lo, hi) ──▶ checked ──▶ windows that are due, or that late events touch
    ContextFreeWindow.edges(lo, hi)   ──▶ checked ──▶ cuts, beside the grids of the built-in windows

Nothing can be computed about such windows, only asked, and asking runs the user's code. So questions are few, and about
ranges of time with rows in them: never about one event, key or window, and not about a pause. For an edge that may be
far away, the last one before a time or the next one after it, the question is put in strides that grow until one is
found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np

from windrow.core.arrays.range_queries import Ints, Mask, ramp, run_begins
from windrow.core.expressions.errors import QueryError
from windrow.core.plan.groups import Timeline
from windrow.core.windows.fixed import FURTHEST, INT64_MAX, INT64_MIN, ContextFreeWindow, FixedWindow, is_irregular

PAUSE_PARTS = 64  # that a span is looked at in, to find its pauses
PAUSE = 4  # so many of them without a row are one
LISTED_EDGES = 4096  # edges that may be listed at once, however few the rows
GROWTH = 16  # of strides

NO_EDGES = np.empty(0, np.int64)
Bounds = tuple[Ints, Ints]  # starts and ends


class Irregular:
    """The timelines of a group that have such windows; each window is asked once for all its timelines."""

    def __init__(self, timelines: Iterable[Timeline], numbers: Collection[int] | None = None) -> None:
        self._timelines: dict[ContextFreeWindow, list[tuple[int, int, int]]] = {}
        for number, (window, since, until, _) in enumerate(timelines):
            if is_irregular(window) and (numbers is None or number in numbers):
                self._timelines.setdefault(window, []).append((number, since, until))
        self._own = {window: _Own(window) for window in self._timelines}
        self._since = {window: min(since for _, since, _ in lines) for window, lines in self._timelines.items()}

    def __bool__(self) -> bool:
        return bool(self._timelines)

    def edges(self, times: Ints) -> Ints:
        """The edges that cut some times: those between them, and the last one before each range of them."""
        parts = [NO_EDGES]
        for window, own in self._own.items():
            since = self._since[window]
            for lo, hi in own.ranges(times[times >= since] if since > INT64_MIN else times):
                cuts = own.cuts(lo, hi)
                parts.append(cuts[cuts >= since])
        edges: Ints = np.unique(np.concatenate(parts))
        return edges

    def due(self, starts: Ints, rows: tuple[Ints, Ints], after: int, upto: int) -> tuple[Ints, ...]:
        """The windows with a row in them that end after one time and at or before another.

        Arrays: of each the timeline, the first row, start, end, and the `until` of the timeline.

        starts: the distinct starts of slices, sorted
        rows:   key and start of each row, sorted
        """
        # a window that ends later than `after` and has an earlier row has the last of the earlier rows
        first = max(0, int(np.searchsorted(starts, after, "right")) - 1)
        inside = starts[first : np.searchsorted(starts, upto, "left")]
        parts = [(NO_EDGES,) * 5]
        for window, start, end in self._listed(inside[inside > INT64_MIN]):
            chosen = (end > after) & (end <= upto)
            for number, since, until in self._timelines[window]:
                mine = chosen & (start >= since) & (start < until)
                for row, begin, stop in _first_rows(start[mine], end[mine], *rows):
                    parts.append((np.full(len(row), number), row, begin, stop, np.full(len(row), until)))
        return tuple(np.concatenate(part) for part in zip(*parts, strict=True))

    def any_end(self, after: int, upto: int) -> bool:
        """Whether a window may end after one time and at or before another."""
        if after == INT64_MIN or upto == INT64_MAX:
            return bool(self._timelines)
        return any(own.any_edge(max(after + 1, self._since[window]), upto) for window, own in self._own.items())

    def horizon(self, starts: Ints, final_before: int) -> int:
        """The start of the earliest window that is not final and has a row; no row before it is needed."""
        least = INT64_MAX
        before = starts[(starts <= final_before) & (starts > INT64_MIN)]
        for window, lines in self._timelines.items():
            start, end = NO_EDGES, NO_EDGES
            if len(before):  # the last row that is behind is in all of them that reach back
                last = int(before.max())
                start, end = self._own[window].windows(last, last + 1)
            for _, since, until in lines:
                is_open = start[(end > final_before) & (start >= since) & (start < until)]
                after = max(final_before + 1, since) if final_before < INT64_MAX else INT64_MAX
                least = min(least, int(is_open.min(initial=after if after < until else INT64_MAX)))
        return least

    def touches(self, starts: Ints, final_before: int) -> tuple[Mask, Mask]:
        """For each slice, by its start: does a final window hold it, does one that is not?"""
        out, in_ = np.zeros(len(starts), np.bool_), np.zeros(len(starts), np.bool_)
        for window, start, end in self._listed(starts[starts > INT64_MIN]):
            lives = np.zeros(len(start), np.bool_)
            for _, since, until in self._timelines[window]:
                lives |= (start >= since) & (start < until)
            for mask, chosen in ((out, lives & (end <= final_before)), (in_, lives & (end > final_before))):
                # a slice lies in a window if more windows have started up to its start than have ended
                begun = np.searchsorted(np.sort(start[chosen]), starts, "right")
                mask |= begun > np.searchsorted(np.sort(end[chosen]), starts, "right")
        return out, in_

    def _listed(self, starts: Ints) -> Iterator[tuple[ContextFreeWindow, Ints, Ints]]:
        """The windows that hold slices, by their starts, each once and sorted."""
        for window, own in self._own.items():
            parts = [own.windows(lo, hi + 1) for lo, hi in own.ranges(starts)]
            if parts:
                start, end = (np.concatenate(part) for part in zip(*parts, strict=True))
                order = np.lexsort((end, start))
                start, end = start[order], end[order]
                fresh = run_begins(start, end)
                yield window, start[fresh], end[fresh]


def last_end(window: ContextFreeWindow, until: int) -> int:
    """When the last window ends that starts before a time, or that time."""
    if isinstance(window, FixedWindow):
        return until + window.reach
    return int(_Own(window).windows(until - 1, until)[1].max(initial=until))


def _first_rows(start: Ints, end: Ints, key: Ints, at: Ints) -> Iterator[tuple[Ints, Ints, Ints]]:
    """For each key the first row in each window, the windows sorted by start, the rows by (key, start).

    Windows are taken together that are about as long: so no more than about twice as many are looked at as are found.
    """
    length = end - start
    size = np.frexp(length.astype(np.float64))[1]
    for magnitude in np.unique(size):
        begins, stops = start[size == magnitude], end[size == magnitude]
        longest = int(length[size == magnitude].max())
        recent = np.flatnonzero((at >= begins[0]) & (at < stops.max()))
        time, whose = at[recent], key[recent]
        before = np.append(INT64_MIN, time[:-1])[: len(time)]
        before[run_begins(whose)] = INT64_MIN
        if longest <= FURTHEST:
            before = np.maximum(before, time - longest)
        first = np.searchsorted(begins, before, "right")
        count = np.searchsorted(begins, time, "right") - first
        row = np.repeat(np.arange(len(recent)), count)
        window = first[row] + ramp(count)
        holds = stops[window] > time[row]
        row, window = row[holds], window[holds]
        yield recent[row], begins[window], stops[window]


class _Own:
    """One window of the user's own: its answers, checked, and what is worth knowing of those before."""

    def __init__(self, window: ContextFreeWindow) -> None:
        self.window = window
        self._derived = type(window).edges is ContextFreeWindow.edges
        self._edges_seen, self._time_seen = (
            0,
            0,
        )  # how dense edges are: so many in so much time
        self._stride = 1  # the length of time within which the last search has found an edge
        self._edge, self._upto = INT64_MIN, -FURTHEST  # an edge, and up to when no other one follows it

    def windows(self, lo: int, hi: int) -> Bounds:
        """The windows that hold a time t with lo ≤ t < hi."""
        given = self._answer("windows", lo, hi)
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise self._wrong("windows", lo, hi, f"must give two arrays, starts and ends, not {_shown(given)}")
        start, end = (self._ints("windows", lo, hi, part) for part in given)
        if len(start) != len(end):
            raise self._wrong("windows", lo, hi, f"must give as many ends as starts, not {len(end)} and {len(start)}")
        if (bad := start >= end).any():
            at = int(bad.argmax())
            raise self._wrong(
                "windows", lo, hi, f"must give ends later than their starts, not {start[at]} to {end[at]}"
            )
        inside = (start < hi) & (end > lo)
        return (start, end) if inside.all() else (start[inside], end[inside])

    def edges(self, lo: int, hi: int) -> Ints:
        """The edges t with lo ≤ t < hi, sorted."""
        if self._derived:
            edges = np.concatenate(self.windows(lo - 1, hi))
        else:
            edges = self._ints("edges", lo, hi, self._answer("edges", lo, hi))
        edges = np.unique(edges)
        return edges[np.searchsorted(edges, lo) : np.searchsorted(edges, hi)]

    def cuts(self, lo: int, hi: int) -> Ints:
        """The last edge at or before a time, where there is one, and all edges from there to another time."""
        # what will be due must be right now, while the batch can still be refused
        bounds = np.concatenate(self.windows(hi, hi + 1))
        near = self._edge <= lo <= self._upto + max(self._stride, hi - lo) + 1
        begin = min(lo, self._upto + 1) if near else lo
        edges = self.edges(begin, hi + 1)
        missing = np.setdiff1d(bounds[(bounds >= begin) & (bounds <= hi)], edges)
        if len(missing):
            raise self._wrong("edges", begin, hi + 1, f"must give {missing[0]}, where a window starts or ends")
        self._edges_seen, self._time_seen = self._edges_seen + len(edges), self._time_seen + hi - begin + 1
        if not len(edges) or edges[0] > lo:
            floor = self._edge if near else self._floor(lo)
            edges = edges if floor == INT64_MIN else np.append(floor, edges)
        self._edge, self._upto = int(edges[-1]) if len(edges) else INT64_MIN, hi
        return edges

    def any_edge(self, lo: int, hi: int) -> bool:
        """Whether there is an edge between two times, both included."""
        if self._edge < lo <= self._upto:
            lo = self._upto + 1
        begin, stride = lo, self._stride
        while begin <= hi:
            stop = min(hi, begin + stride - 1)
            if len(self.edges(begin, stop + 1)):
                self._stride = stop - lo + 1
                return True
            begin, stride = stop + 1, stride * GROWTH
        self._stride = max(1, hi - lo + 1)
        return False

    def ranges(self, times: Ints) -> list[tuple[int, int]]:
        """Between which times to ask: all at once, or without the pauses where there may be many edges in them."""
        if not len(times):
            return []
        lo, hi = int(times.min()), int(times.max())
        if hi - lo < PAUSE_PARTS or (
            self._time_seen and self._edges_seen / self._time_seen * (hi - lo) <= max(LISTED_EDGES, 4 * len(times))
        ):
            return [(lo, hi)]
        part = (times - lo) // ((hi - lo) // PAUSE_PARTS + 1)
        used = np.flatnonzero(np.bincount(part))
        ends = np.flatnonzero(np.diff(used) > PAUSE)
        if not len(ends):
            return [(lo, hi)]
        range_ = np.searchsorted(used[ends], part, "left")
        least, most = np.full(len(ends) + 1, INT64_MAX), np.full(len(ends) + 1, INT64_MIN)
        np.minimum.at(least, range_, times)
        np.maximum.at(most, range_, times)
        return list(zip(least.tolist(), most.tolist(), strict=True))

    def _floor(self, time: int) -> int:
        """The last edge at or before a time, INT64_MIN where there is none."""
        floor = int(self.windows(time, time + 1)[0].max(initial=INT64_MIN))
        stop = max(floor, -FURTHEST)
        if floor <= self._edge and self._upto < time:
            floor, stop = self._edge, self._upto
        end, stride = time, self._stride
        while end > stop:
            begin = max(stop, end - stride)
            if len(edges := self.edges(begin + 1, end + 1)):
                return int(edges[-1])
            end, stride = begin, stride * GROWTH
        return floor

    def _answer(self, method: str, lo: int, hi: int) -> Any:
        try:
            return getattr(self.window, method)(lo, hi)
        except Exception as error:
            error.add_note(f"in {self._call(method, lo, hi)}, a window of your own")
            raise

    def _ints(self, method: str, lo: int, hi: int, given: Any) -> Ints:
        try:
            times = np.asarray(given)
        except ValueError:  # rows of different lengths
            times = np.empty((0, 0))
        if times.ndim != 1 or (times.dtype.kind not in "iu" and len(times)):
            raise self._wrong(method, lo, hi, f"must give times as int64, not {_shown(given)}")
        if len(times) and not -FURTHEST < int(times.min()) <= int(times.max()) < FURTHEST:
            far = times.min() if int(times.min()) <= -FURTHEST else times.max()
            raise self._wrong(method, lo, hi, f"gives {far}, so far out that it cannot be written in 64 bits")
        return times.astype(np.int64)

    def _wrong(self, method: str, lo: int, hi: int, what: str) -> QueryError:
        return QueryError(f"{self._call(method, lo, hi)} {what}")

    def _call(self, method: str, lo: int, hi: int) -> str:
        return f"{type(self.window).__name__}.{method}({lo}, {hi})"


def _shown(given: Any) -> str:
    """What was given, in a few words."""
    if isinstance(given, np.ndarray):
        return f"an array of {given.dtype} with {given.ndim} dimensions"
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:57]}…"
