"""The windows of an ordered group that lie in the order of events, as ranges of its slices.

`counting`, data-driven windows and `latest` are found in ordered slices (`core/ordered/slicing.py`) as time windows are
found in any: by their first and last slice. A counting window begins at the slice of its first position, a data-driven
one is a run of slices with the same number, and `latest` ends where a cell of time ends and begins n positions before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from windrow.core.arrays.range_queries import CHUNK, Array, Ints, covered, ramp, run_begins
from windrow.core.assemble.due import Lattices, Rows, Windows, due
from windrow.core.ordered.slicing import origin_column
from windrow.core.plan.groups import ROWS, Group, Partial, Timeline
from windrow.core.plan.watermark import WatermarkStep
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN, Grid
from windrow.core.windows.ordered import Counting, DataDrivenWindow, Latest


class OrderedRows(Rows):
    """The slices that stand in the order, key by key."""

    @cached_property
    def first(self) -> Ints:
        return self.table["first"].to_numpy()

    @cached_property
    def last(self) -> Ints:
        return self.table["last"].to_numpy()

    @cached_property
    def position(self) -> Ints:
        return self.table["position"].to_numpy()

    @cached_property
    def count(self) -> Ints:
        """How many events each slice holds."""
        return self.schema.state(self.table, Partial(ROWS, None))["count"].to_numpy()

    @cached_property
    def stop(self) -> Ints:
        """The position after the last event of each slice."""
        return self.position + self.count

    @cached_property
    def _ranks(self) -> tuple[Ints, Ints]:
        distinct = np.unique(self.position)
        return distinct, self.key * (len(distinct) + 1) + np.searchsorted(distinct, self.position)

    def first_position(self, key: Ints, position: Ints) -> Ints:
        """The first slice of each key at or after a position."""
        distinct, ranks = self._ranks
        return np.searchsorted(ranks, key * (len(distinct) + 1) + np.searchsorted(distinct, position))


@dataclass(frozen=True)
class Progress:
    """What a step has changed for each key: the carry before and after it."""

    before: Mapping[str, Array]
    now: Mapping[str, Array]
    changed: Ints  # the position of the first late event, INT64_MAX where none is

    def take(self, keys: Ints) -> Progress:
        """For these keys."""
        before, now = ({name: values[keys] for name, values in carry.items()} for carry in (self.before, self.now))
        return Progress(before, now, self.changed[keys])


@dataclass(frozen=True)
class WindowsInOrder:
    """Windows in the order of events, what identifies each beside its timeline and key, and where it ends."""

    windows: Windows
    at: Ints  # the time that identifies it, 0 where none does
    nth: Ints  # the position of a counting window; else how many of the same time there are before it
    stop: Ints
    number: Ints  # of its key's windows, from 0; 0 where they are not numbered
    is_open: bool = False

    def take(self, chosen: Array) -> WindowsInOrder:
        at, nth, stop, number = (values[chosen] for values in (self.at, self.nth, self.stop, self.number))
        return WindowsInOrder(self.windows.take(chosen), at, nth, stop, number, self.is_open)


class OrderedWindowFinder:
    """The windows of a group that lie in the order of events; prepared once per plan."""

    def __init__(self, group: Group) -> None:
        timelines = list(group.timelines.items())
        if group.kind == "joined":  # windows that are merged over nodes are judged by `until` only once they are one
            once = {timeline.line: (timeline._replace(until=INT64_MAX), index) for timeline, index in timelines}
            timelines = list(once.values())
        self.lines = [(line, index) for line, index in timelines if isinstance(line.window, DataDrivenWindow)]
        self.counting = [line for line, _ in timelines if isinstance(line.window, Counting)]
        by_since: dict[int, list[tuple[int, int, int, int]]] = {}
        for line, index in timelines:
            if isinstance(line.window, Counting):
                row = line.window.n, line.window.step, line.until, index
                by_since.setdefault(line.since, []).append(row)
        # since → n, step, until, timeline of its counting windows
        self.by_since: dict[int, Ints] = {since: np.array(rows, np.int64).T for since, rows in by_since.items()}
        self.latest = [(line, index) for line, index in timelines if isinstance(line.window, Latest)]
        cells = [
            (line.window.every, 0, line.window.every, INT64_MIN, INT64_MAX, number)
            for number, (line, _) in enumerate(self.latest)
            if isinstance(line.window, Latest)
        ]
        self.cells = Lattices(*np.array(cells, np.int64).reshape(-1, 6).T)

    def __bool__(self) -> bool:
        return bool(self.lines or self.by_since or self.latest)

    def ends(self, step: WatermarkStep) -> bool:
        """Whether a step passes a boundary in time, or the end of the stream."""
        return step.now == INT64_MAX or (bool(self.latest) and self.cells.any_end(step.before, step.now))

    def any_complete(self, progress: Progress) -> bool:
        """Whether some key has completed a window; cheap, before slices are merged."""
        for timeline, _ in self.lines:
            if bool((_complete(timeline, progress.now) > _complete(timeline, progress.before)).any()):
                return True
        for since, windows in self.by_since.items():
            origin = _origin(progress.now, since)
            for _, _, count in _numbers(windows, progress, origin, partial=False):
                if bool(count.any()):
                    return True
        return False

    def windows(
        self, rows: OrderedRows, progress: Progress, step: WatermarkStep, partial: bool
    ) -> Iterator[WindowsInOrder]:
        """The windows that a step completes, or that a late event may have changed; and those that are open."""
        for since, windows in self.by_since.items():
            yield from self._counting(rows, progress, since, windows, partial and step.now == INT64_MAX)
        for timeline, index in self.lines:
            yield from self._custom(rows, progress, timeline, index, step, partial)
        if self.latest:
            yield self._latest(rows, progress, step)

    def _counting(
        self, rows: OrderedRows, progress: Progress, since: int, windows: Ints, partial: bool
    ) -> Iterator[WindowsInOrder]:
        """Counting windows since a time: window k of a key has the positions from k·step to k·step + n."""
        origin = _origin(progress.now, since)
        for (n, step, until, index), first, count in _numbers(windows, progress, origin, partial):
            each = count.ravel()
            line = np.repeat(np.repeat(np.arange(len(n)), len(origin)), each)
            key = np.repeat(np.tile(np.arange(len(origin)), len(n)), each)
            number = np.repeat(first.ravel(), each) + ramp(each)
            position = number * step[line]
            begin = position + origin[key]
            stop = np.minimum(begin + n[line], progress.now["count"][key])
            lo, hi = rows.first_position(key, begin), rows.first_position(key, stop)
            start, end = rows.first[lo], rows.last[hi - 1]
            ranges = Windows(index[line], key, start, end, lo, hi, hi, position)
            every = WindowsInOrder(ranges, np.zeros(len(lo), np.int64), position, stop, number)
            yield every.take(start < until[line])

    def _custom(
        self, rows: OrderedRows, progress: Progress, timeline: Timeline, index: int, step: WatermarkStep, partial: bool
    ) -> Iterator[WindowsInOrder]:
        """Data-driven windows: of a key with a late event all that end after it, of others those that are new."""
        assert isinstance(timeline.window, DataDrivenWindow)
        runs = self.runs(rows, timeline, index)
        key, number = runs.windows.key, runs.number
        complete, emitted = _complete(timeline, progress.now)[key], _complete(timeline, progress.before)[key]
        changed = progress.changed[key]
        wanted = np.where(changed < INT64_MAX, runs.stop >= changed, number >= emitted)
        wanted &= runs.windows.start < timeline.until
        is_open = number >= complete
        if step.now == INT64_MAX and (partial or timeline.window.closes_at_end):
            is_open[:] = False
        yield runs.take(wanted & ~is_open)
        if bool((wanted & is_open).any()):
            yield replace(runs.take(wanted & is_open), is_open=True)

    def runs(self, rows: OrderedRows, timeline: Timeline, index: int) -> WindowsInOrder:
        """All windows of a data-driven kind whose beginning is here."""
        mark = rows.table[timeline.line].to_numpy()
        number = mark >> 1
        lo = np.flatnonzero(run_begins(number, rows.key))
        hi = np.append(lo[1:], len(mark))[: len(lo)]
        whole = (mark[lo] >= 0) & (mark[lo] & 1 == 1)  # what is left of a window whose first slice was dropped is none
        lo, hi = lo[whole], hi[whole]
        key, start = rows.key[lo], rows.first[lo]
        since = np.maximum.accumulate(np.where(run_begins(key, start), np.arange(len(lo)), 0))
        windows = Windows(np.full(len(lo), index), key, start, rows.last[hi - 1], lo, hi, hi)
        return WindowsInOrder(windows, start, np.arange(len(lo)) - since, rows.stop[hi - 1], number[lo])

    def open(self, rows: OrderedRows, carry: Mapping[str, Array]) -> Iterator[WindowsInOrder]:
        """The windows that have begun and are not complete; of counting windows, those that do not overlap."""
        for timeline, index in self.lines:
            runs = self.runs(rows, timeline, index)
            yield runs.take(runs.number >= _complete(timeline, carry)[runs.windows.key])
        for since, counting in self.by_since.items():
            origin = _origin(carry, since)
            for n, step, _, index in counting.T:
                starts, count = Grid(step, 0), np.maximum(carry["count"] - origin, 0)
                size = count - starts.at_or_before(count)  # of each key's last window so far
                key = np.flatnonzero((size > 0) & (size < n))
                number = starts.number(count[key])
                lo = rows.first_position(key, number * step + origin[key])
                hi = rows.first_position(key, carry["count"][key])
                at = np.full(len(key), index)
                windows = Windows(at, key, rows.first[lo], carry["last"][key], lo, hi, hi, number * step)
                yield WindowsInOrder(
                    windows, np.zeros_like(lo), number * step, carry["count"][key], number, is_open=True
                )

    def complete(self, carry: Mapping[str, Array]) -> Iterator[tuple[Timeline, Ints]]:
        """For each kind of window how many each key has that are complete."""
        for timeline, _ in self.lines:
            yield timeline, _complete(timeline, carry)
        for timeline in self.counting:
            assert isinstance(timeline.window, Counting)
            count = carry["count"] - _origin(carry, timeline.since)
            yield timeline, np.maximum(Grid(timeline.window.step, timeline.window.n).number(count) + 1, 0)

    def _latest(self, rows: OrderedRows, progress: Progress, step: WatermarkStep) -> WindowsInOrder:
        """Find the `latest` windows whose boundary the step passes and, of keys with late events, those emitted before
        that may change.

        A window ends after the last event before its boundary (`stop`) and begins n positions earlier, but not before
        the query's first event.
        """
        late = bool((progress.changed < INT64_MAX).any())
        cells = due(rows, self.cells, step.was_final_before if late else step.before, step.now)
        n = np.array([line.window.n for line, _ in self.latest if isinstance(line.window, Latest)])
        index = np.array([index for _, index in self.latest])
        since, until = (np.array([getattr(line, name) for line, _ in self.latest]) for name in ("since", "until"))
        origins = np.stack([_origin(progress.now, line.since) for line, _ in self.latest])
        stop = rows.stop[cells.hi - 1]
        begin = np.maximum(stop - n[cells.timeline], origins[cells.timeline, cells.key])
        lo = rows.first_position(cells.key, begin)
        start = rows.first[np.minimum(lo, len(rows) - 1)]
        wanted = (rows.last[cells.hi - 1] >= since[cells.timeline]) & (start < until[cells.timeline])
        changed = progress.changed[cells.key]
        wanted &= np.where(changed < INT64_MAX, stop >= changed, cells.end > step.before)
        windows = Windows(index[cells.timeline], cells.key, start, cells.end, lo, cells.hi, cells.hi)
        nothing = np.zeros(len(lo), np.int64)
        return WindowsInOrder(windows, cells.end, nothing, stop, nothing).take(wanted)

    def counting_needs(self, rows: OrderedRows, carry: Mapping[str, Array], keep_emitted: bool) -> Array:
        """Mark the rows that counting windows which are not final may need; `carry` is that of all keys of the rows.

        The first such window of a query is the one after the last that ends at or before the final events; it begins
        `number · step` positions after the query's first event, and rows before the least of these are not needed. With
        `keep_emitted`, a late event may still come in right at the end of a window, so that this one is not final
        either.
        """
        keep = np.zeros(len(rows), np.bool_)
        final_before = carry["final"] - (1 if keep_emitted else 0)
        for since, (n, step, _, _) in self.by_since.items():
            origin = _origin(carry, since)
            oldest = np.full(len(origin), INT64_MAX)
            size = max(1, CHUNK // max(1, len(origin)))
            for begin in range(0, len(n), size):
                length, every = n[begin : begin + size, None], step[begin : begin + size, None]
                first = np.maximum(Grid(every, length).number(final_before - origin) + 1, 0) * every
                oldest = np.minimum(oldest, first.min(axis=0))
            keep |= rows.position >= (oldest + origin)[rows.key]
        return keep

    def custom_needs(self, rows: OrderedRows, carry: Mapping[str, Array], keep_emitted: bool) -> Array:
        """Which rows a data-driven window may still need: an open one; with `keep_emitted`, one that may change."""
        keep = np.zeros(len(rows), np.bool_)
        final_before = carry["final"] - (1 if keep_emitted else 0)
        for timeline, index in self.lines:
            runs = self.runs(rows, timeline, index)
            key = runs.windows.key
            live = runs.number >= _complete(timeline, carry)[key]
            live |= keep_emitted & (runs.stop > final_before[key])
            oldest = np.full(rows.key_count, INT64_MAX)
            np.minimum.at(oldest, key[live], runs.windows.start[live])
            keep |= covered(runs.windows.lo[live], runs.windows.hi[live], len(rows))
            if keep_emitted:  # windows of the same time are identified by their number among them
                keep |= rows.last >= oldest[rows.key]
        return keep

    def is_open(
        self, rows: OrderedRows, carry: Mapping[str, Array], timeline: Timeline, index: int, final_before: int
    ) -> bool:
        """Say whether a timeline that is being removed may still emit a window: one that is not final and whose first
        event is older than `until`.

        Of counting windows and `latest`, the first that is not final begins at `position`; later ones begin later.
        """
        window = timeline.window
        if isinstance(window, DataDrivenWindow):
            runs = self.runs(rows, timeline, index)
            key = runs.windows.key
            waits = (runs.number >= _complete(timeline, carry)[key]) | (runs.stop > carry["final"][key])
            return bool((waits & (runs.windows.start < timeline.until)).any())
        if isinstance(window, Counting):
            origin = _origin(carry, timeline.since)
            number = Grid(window.step, window.n).number(carry["final"] - origin) + 1
            position = np.maximum(number, 0) * window.step
        else:
            assert isinstance(window, Latest)
            origin = _origin(carry, timeline.since)
            comes = Grid(window.every, 0).after(carry["last"]) > final_before  # a boundary after the last event
            position = np.maximum(carry["count"] - origin - window.n + np.where(comes, 0, 1), 0)
        key = np.flatnonzero(position + origin < carry["count"])
        at = rows.first_position(key, (position + origin + 1)[key]) - 1  # the slice that holds it
        return bool((rows.first[at] < timeline.until).any())


def _complete(timeline: Timeline, carry: Mapping[str, Array]) -> Ints:
    """How many windows of a data-driven kind each key has that are complete."""
    complete: Ints = carry[f"{timeline.line}.started"] - carry[f"{timeline.line}.open"]
    return complete


def _origin(carry: Mapping[str, Array], since: int) -> Ints:
    """For each key how many of its events are older than a query."""
    origin: Ints = np.zeros(len(carry["count"]), np.int64) if since == INT64_MIN else carry[origin_column(since)]
    return origin


def _numbers(windows: Ints, progress: Progress, origin: Ints, partial: bool) -> Iterator[tuple[Ints, Ints, Ints]]:
    """Some counting windows at a time: for each and each key the first number k to emit, and how many.

    The ends of windows n, n + step, … are a grid over positions, so that the k of an end is the number of its window.
    Those after what was emitted, or after a key's first late event, up to now are to be emitted; at the end of a whole
    table with `partial`, all that have begun.
    """
    now = np.maximum(progress.now["count"] - origin, 0)
    emitted = np.maximum(np.minimum(progress.before["count"], progress.changed - 1) - origin, 0)
    size = max(1, CHUNK // max(1, len(now)))
    for begin in range(0, windows.shape[1], size):
        part = windows[:, begin : begin + size]
        n, step = part[0][:, None], part[1][:, None]
        first = np.maximum(Grid(step, n).number(emitted) + 1, 0)
        last = Grid(step, 1).number(now) if partial else Grid(step, n).number(now)
        yield part, first, np.maximum(last - first + 1, 0)
