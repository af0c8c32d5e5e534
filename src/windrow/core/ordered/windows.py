"""Sequences: the windows of an ordered group that lie in the order of events, as ranges of its slices.

`counting`, data-driven windows and `latest` are found in ordered slices (see `ordering`) as time windows are found in
any: by their first and last slice. A counting window begins at the slice of its first position, a data-driven one is
a run of slices with the same number, and `latest` ends where a cell of time ends and begins n positions before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl

from windrow.core.arrays.range_queries import CHUNK, Ints, covered, differences, ramp
from windrow.core.assemble.due import Lattices, Rows, Windows, due
from windrow.core.ordered.slicing import origin_column
from windrow.core.plan.groups import ROWS, Group, Held, Timeline
from windrow.core.plan.watermark import WatermarkStep
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.core.windows.ordered import Array, Counting, DataDrivenWindow, Latest


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
        return self.schema.state(self.table, Held(ROWS, None))["count"].to_numpy()

    @cached_property
    def stop(self) -> Ints:
        """The position after the last event of each slice."""
        return self.position + self.count

    @cached_property
    def _places(self) -> tuple[Ints, Ints]:
        distinct = np.unique(self.position)
        return distinct, self.key * (len(distinct) + 1) + np.searchsorted(distinct, self.position)

    def first_position(self, key: Ints, position: Ints) -> Ints:
        """The first slice of each key at or after a position."""
        distinct, places = self._places
        return np.searchsorted(places, key * (len(distinct) + 1) + np.searchsorted(distinct, position))


@dataclass(frozen=True)
class Progress:
    """What a step has changed for each key: the ledger before and after it."""

    before: Mapping[str, Array]
    now: Mapping[str, Array]
    changed: Ints  # the position of the first late event, INT64_MAX where none is

    def take(self, keys: Ints) -> Progress:
        """For these keys."""
        before, now = ({name: values[keys] for name, values in one.items()} for one in (self.before, self.now))
        return Progress(before, now, self.changed[keys])


@dataclass(frozen=True)
class Found:
    """Windows in the order, what identifies each beside its timeline and key, and where it ends."""

    windows: Windows
    at: Ints  # the time that it is known by, 0 where none is
    nth: Ints  # the position of a counting window; else how many of the same time there are before it
    stop: Ints
    number: Ints  # of its key's windows, from 0; 0 where they are not numbered
    is_open: bool = False

    def take(self, chosen: Array) -> Found:
        at, nth, stop, number = (values[chosen] for values in (self.at, self.nth, self.stop, self.number))
        return Found(self.windows.take(chosen), at, nth, stop, number, self.is_open)


class Sequences:
    """The windows of a group that lie in the order of events; prepared once per plan."""

    def __init__(self, group: Group) -> None:
        timelines = list(group.timelines.items())
        if group.joined:  # when a query that is being removed ends is judged by what windows become
            once = {one.line: (one._replace(until=INT64_MAX), place) for one, place in timelines}
            timelines = list(once.values())
        self.lines = [(one, place) for one, place in timelines if isinstance(one.window, DataDrivenWindow)]
        counting = [(one, place) for one, place in timelines if isinstance(one.window, Counting)]
        self.counting = [one for one, _ in counting]
        self.by_since: dict[int, Ints] = {}  # since → n, step, until, timeline of its counting windows
        for since in dict.fromkeys(one.since for one, _ in counting):
            rows = [
                (one.window.n, one.window.step, one.until, place)
                for one, place in counting
                if isinstance(one.window, Counting) and one.since == since
            ]
            self.by_since[since] = np.array(rows, np.int64).T
        self.latest = [(one, place) for one, place in timelines if isinstance(one.window, Latest)]
        cells = [
            (one.window.every, 0, one.window.every, INT64_MIN, INT64_MAX, number)
            for number, (one, _) in enumerate(self.latest)
            if isinstance(one.window, Latest)
        ]
        self.cells = Lattices(*np.array(cells, np.int64).reshape(-1, 6).T)

    def __bool__(self) -> bool:
        return bool(self.lines or self.by_since or self.latest)

    def ends(self, step: WatermarkStep) -> bool:
        """Whether a step passes a boundary in time, or the end of the stream."""
        return step.now == INT64_MAX or (bool(self.latest) and self.cells.any_end(step.before, step.now))

    def any_complete(self, progress: Progress) -> bool:
        """Whether some key has completed a window; cheap, before slices are merged."""
        for one, _ in self.lines:
            if bool((_complete(one, progress.now) > _complete(one, progress.before)).any()):
                return True
        for since, several in self.by_since.items():
            origin = _origin(progress.now, since)
            for _, _, _, count in _counted(several, progress, origin, partial=False):
                if bool(count.any()):
                    return True
        return False

    def found(self, rows: OrderedRows, progress: Progress, step: WatermarkStep, partial: bool) -> Iterator[Found]:
        """The windows that a step completes, or that a late event may have changed; and those that are open."""
        for since, several in self.by_since.items():
            yield from self._counting(rows, progress, since, several, partial and step.now == INT64_MAX)
        for one, place in self.lines:
            yield from self._driven(rows, progress, one, place, step, partial)
        if self.latest:
            yield self._latest(rows, progress, step)

    def _counting(
        self, rows: OrderedRows, progress: Progress, since: int, several: Ints, partial: bool
    ) -> Iterator[Found]:
        origin = _origin(progress.now, since)
        for part, least, step, count in _counted(several, progress, origin, partial):
            many = count.ravel()
            line = np.repeat(np.repeat(np.arange(len(part[0])), len(origin)), many)
            key = np.repeat(np.tile(np.arange(len(origin)), len(part[0])), many)
            position = (np.repeat(least.ravel(), many) + ramp(many)) * step.ravel()[line]
            begin = position + origin[key]
            stop = np.minimum(begin + part[0][line], progress.now["count"][key])
            lo, hi = rows.first_position(key, begin), rows.first_position(key, stop)
            start, end = rows.first[lo], rows.last[hi - 1]
            windows = Windows(part[3][line], key, start, end, lo, hi, hi, position)
            found = Found(windows, np.zeros(len(lo), np.int64), position, stop, position // part[1][line])
            yield found.take(start < part[2][line])

    def _driven(
        self, rows: OrderedRows, progress: Progress, timeline: Timeline, place: int, step: WatermarkStep, partial: bool
    ) -> Iterator[Found]:
        assert isinstance(timeline.window, DataDrivenWindow)
        found = self.runs(rows, timeline, place)
        of, number = found.windows.key, found.number
        complete, told = _complete(timeline, progress.now)[of], _complete(timeline, progress.before)[of]
        changed = progress.changed[of]
        wanted = np.where(changed < INT64_MAX, found.stop >= changed, number >= told)
        wanted &= found.windows.start < timeline.until
        is_open = number >= complete
        if step.now == INT64_MAX and (partial or timeline.window.closes_at_end):
            is_open[:] = False
        yield found.take(wanted & ~is_open)
        if bool((wanted & is_open).any()):
            yield replace(found.take(wanted & is_open), is_open=True)

    def runs(self, rows: OrderedRows, timeline: Timeline, place: int) -> Found:
        """All windows of a data-driven kind."""
        mark = rows.table[timeline.line].to_numpy()
        number = mark >> 1
        begins = np.append(True, (number[1:] != number[:-1]) | (rows.key[1:] != rows.key[:-1]))[: len(mark)]
        lo = np.flatnonzero(begins)
        hi = np.append(lo[1:], len(mark))[: len(lo)]
        whole = (mark[lo] >= 0) & (mark[lo] & 1 == 1)
        lo, hi = lo[whole], hi[whole]
        key, start = rows.key[lo], rows.first[lo]
        other = np.append(True, (key[1:] != key[:-1]) | (start[1:] != start[:-1]))[: len(lo)]
        since = np.maximum.accumulate(np.where(other, np.arange(len(lo)), 0))
        windows = Windows(np.full(len(lo), place), key, start, rows.last[hi - 1], lo, hi, hi)
        return Found(windows, start, np.arange(len(lo)) - since, rows.stop[hi - 1], number[lo])

    def open(self, rows: OrderedRows, known: Mapping[str, Array]) -> Iterator[Found]:
        """The windows that have begun and are not complete; of counting windows, those that do not overlap."""
        for one, place in self.lines:
            found = self.runs(rows, one, place)
            yield found.take(found.number >= _complete(one, known)[found.windows.key])
        for since, several in self.by_since.items():
            origin = _origin(known, since)
            for n, step, _, place in several.T:
                count = np.maximum(known["count"] - origin, 0)
                key = np.flatnonzero((count % step > 0) & (count % step < n))
                number = count[key] // step
                lo = rows.first_position(key, number * step + origin[key])
                hi = rows.first_position(key, known["count"][key])
                at = np.full(len(key), place)
                windows = Windows(at, key, rows.first[lo], known["last"][key], lo, hi, hi, number * step)
                yield Found(windows, np.zeros_like(lo), number * step, known["count"][key], number, is_open=True)

    def complete(self, carry: Mapping[str, Array]) -> Iterator[tuple[Timeline, Ints]]:
        """For each kind of window how many each key has that are complete."""
        for one, _ in self.lines:
            yield one, _complete(one, carry)
        for one in self.counting:
            assert isinstance(one.window, Counting)
            count = carry["count"] - _origin(carry, one.since)
            yield one, np.maximum((count - one.window.n) // one.window.step + 1, 0)

    def _latest(self, rows: OrderedRows, progress: Progress, step: WatermarkStep) -> Found:
        late = bool((progress.changed < INT64_MAX).any())
        cells = due(rows, self.cells, step.was_final_before if late else step.before, step.now)
        n = np.array([one.window.n for one, _ in self.latest if isinstance(one.window, Latest)])
        place = np.array([place for _, place in self.latest])
        since, until = (np.array([getattr(one, name) for one, _ in self.latest]) for name in ("since", "until"))
        origins = np.stack([_origin(progress.now, one.since) for one, _ in self.latest])
        stop = rows.stop[cells.hi - 1]
        begin = np.maximum(stop - n[cells.timeline], origins[cells.timeline, cells.key])
        lo = rows.first_position(cells.key, begin)
        start = rows.first[np.minimum(lo, len(rows) - 1)]
        wanted = (rows.last[cells.hi - 1] >= since[cells.timeline]) & (start < until[cells.timeline])
        changed = progress.changed[cells.key]
        wanted &= np.where(changed < INT64_MAX, stop >= changed, cells.end > step.before)
        windows = Windows(place[cells.timeline], cells.key, start, cells.end, lo, cells.hi, cells.hi)
        nothing = np.zeros(len(lo), np.int64)
        return Found(windows, cells.end, nothing, stop, nothing).take(wanted)

    def counted(self, rows: OrderedRows, known: Mapping[str, Array], keep_told: bool) -> Array:
        """Which rows a counting window may still need; `known` is the ledger for all keys of the rows."""
        keep = np.zeros(len(rows), np.bool_)
        final_before = known["frozen"] - (1 if keep_told else 0)  # what ends right there may still be told again
        for since, several in self.by_since.items():
            origin = _origin(known, since)
            n, step, _, _ = several
            least = np.full(len(origin), INT64_MAX)
            size = max(1, CHUNK // max(1, len(origin)))
            for begin in range(0, len(n), size):
                length, every = n[begin : begin + size, None], step[begin : begin + size, None]
                first = np.maximum((final_before - origin - length) // every + 1, 0) * every
                least = np.minimum(least, first.min(axis=0))
            keep |= rows.position >= (least + origin)[rows.key]
        return keep

    def driven(self, rows: OrderedRows, known: Mapping[str, Array], keep_told: bool) -> Array:
        """Which rows a data-driven window may still need."""
        keep = np.zeros(len(rows), np.bool_)
        final_before = known["frozen"] - (1 if keep_told else 0)
        for one, place in self.lines:
            found = self.runs(rows, one, place)
            of = found.windows.key
            live = (found.number >= _complete(one, known)[of]) | (keep_told & (found.stop > final_before[of]))
            oldest = np.full(rows.key_count, INT64_MAX)
            np.minimum.at(oldest, of[live], found.windows.start[live])
            keep |= covered(found.windows.lo[live], found.windows.hi[live], len(rows))
            if keep_told:  # windows of the same time are told apart by their number
                keep |= rows.last >= oldest[rows.key]
        return keep

    def is_open(
        self, rows: OrderedRows, known: Mapping[str, Array], timeline: Timeline, place: int, final_before: int
    ) -> bool:
        """Whether a timeline that is being removed has a window that may still be told."""
        window = timeline.window
        if isinstance(window, DataDrivenWindow):
            found = self.runs(rows, timeline, place)
            of = found.windows.key
            waits = (found.number >= _complete(timeline, known)[of]) | (found.stop > known["frozen"][of])
            return bool((waits & (found.windows.start < timeline.until)).any())
        if isinstance(window, Counting):
            origin = _origin(known, timeline.since)
            position = np.maximum((known["frozen"] - origin - window.n) // window.step + 1, 0) * window.step
        else:
            assert isinstance(window, Latest)
            origin = _origin(known, timeline.since)
            comes = (known["last"] // window.every + 1) * window.every > final_before  # a boundary after the last event
            position = np.maximum(known["count"] - origin - window.n + np.where(comes, 0, 1), 0)
        key = np.flatnonzero(position + origin < known["count"])
        at = rows.first_position(key, (position + origin + 1)[key]) - 1  # the slice that holds it
        return bool((rows.first[at] < timeline.until).any())


def digests(rows: OrderedRows, windows: Windows) -> pl.Series:
    """Which events each window holds, as one number."""
    return pl.Series("digest", differences(rows.table["digest"].to_numpy(), windows.lo, windows.hi))


def _complete(timeline: Timeline, known: Mapping[str, Array]) -> Ints:
    """How many windows of a data-driven kind each key has that are complete."""
    found: Ints = known[f"{timeline.line}.started"] - known[f"{timeline.line}.open"]
    return found


def _origin(known: Mapping[str, Array], since: int) -> Ints:
    """For each key how many of its events are older than a query."""
    found: Ints = np.zeros(len(known["count"]), np.int64) if since == INT64_MIN else known[origin_column(since)]
    return found


def _counted(several: Ints, progress: Progress, origin: Ints, partial: bool) -> Iterator[tuple[Ints, Ints, Ints, Ints]]:
    """Some counting windows at a time: for each and each key the first number k to tell, the step, and how many."""
    now = np.maximum(progress.now["count"] - origin, 0)
    told = np.maximum(np.minimum(progress.before["count"], progress.changed - 1) - origin, 0)
    size = max(1, CHUNK // max(1, len(now)))
    for begin in range(0, several.shape[1], size):
        part = several[:, begin : begin + size]
        n, step = part[0][:, None], part[1][:, None]
        least = np.maximum((told - n) // step + 1, 0)
        most = (now - 1) // step if partial else (now - n) // step
        yield part, least, step, np.maximum(most - least + 1, 0)
