"""Segments of the ordered events of nodes, as the root has them, and where each lies in the order of all."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np
import polars as pl

from windrow.core.arrays.range_queries import Ints, Mask, ramp
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.nodes.counting.tables import Key


@dataclass(frozen=True)
class Segment:
    """A run of a node's events of one key: as events, as a slice, or as a mere count."""

    lo: int  # the ranks of its first event, and after its last
    hi: int
    first: int  # their times
    last: int
    kind: str
    row: int = 0  # of `table`, which has the states
    table: pl.DataFrame | None = None
    events: pl.DataFrame | None = None

    @property
    def size(self) -> int:
        return self.hi - self.lo

    def after(self, rank: int, time: str) -> Segment:
        """Its events from a rank on."""
        assert self.events is not None
        events = self.events.slice(rank - self.lo)
        return replace(self, lo=rank, first=int(events[time][0]), events=events)


@dataclass
class Line:
    """A node's segments of a key after the last boundary."""

    cut: int = 0  # the rank of that boundary
    covered: int = 0  # the rank after the last segment
    next: int | None = None  # the time of the first event that the node holds back
    rewind: int = 0  # it has to cut again what it has cut since; until it has, no boundary is found
    # events before this rank that are missing here were left out because their node was lost; they stay left out
    gone: int = 0
    segments: list[Segment] = field(default_factory=list)  # in order; many thousands, so none is passed in vain

    def before(self, rank: int) -> int:
        """How many segments end before a rank, or at it."""
        return bisect_right(self.segments, rank, key=attrgetter("hi"))

    def beginning_before(self, rank: int) -> int:
        """How many segments begin before a rank."""
        return bisect_left(self.segments, rank, key=attrgetter("lo"))

    def older_than(self, time: int) -> int:
        """How many segments begin before a time."""
        return bisect_left(self.segments, time, key=attrgetter("first"))

    def since(self, lo: int, hi: int) -> int:
        """The first rank of a segment that counts: what is before it lies before the boundary, or was left out."""
        return max(self.cut, self.gone if lo < self.gone < hi else 0)

    def trim(self, time: str) -> None:
        """Keep what comes after the boundary; a slice that reaches across it is left to be requested."""
        del self.segments[: self.before(self.cut)]
        for rank in (self.cut, self.gone):  # no other segment has events that do not count
            index = self.before(rank)
            segment = self.segments[index] if index < len(self.segments) else None
            if segment is not None and segment.lo < rank and segment.events is not None:
                self.segments[index] = segment.after(self.since(segment.lo, segment.hi), time)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)


@dataclass
class Interval:
    """What all nodes have of a key between two boundaries: events, slices, and which multisets are still at nodes."""

    key: Key
    position: int
    first: int = INT64_MAX
    last: int = INT64_MIN
    raw: list[tuple[str, pl.DataFrame]] = field(default_factory=list)  # nodes, and events of theirs
    slices: list[tuple[pl.DataFrame, int]] = field(default_factory=list)  # tables, and the row in them
    multisets: list[tuple[str, int, int]] = field(default_factory=list)  # of nodes: ranks of slices in a row

    def add(self, node: str, segment: Segment, cut: int, time: str) -> None:
        """Take the part of a segment before a rank."""
        last = segment.last
        if segment.events is not None:
            inside = segment.events.head(cut - segment.lo)
            self.raw.append((node, inside))
            last = int(inside[time][-1])
        else:
            assert segment.table is not None
            self.slices.append((segment.table, segment.row))
            follows = bool(self.multisets) and (self.multisets[-1][0], self.multisets[-1][2]) == (node, segment.lo)
            self.multisets.append((node, self.multisets.pop()[1] if follows else segment.lo, segment.hi))
        self.first, self.last = min(self.first, segment.first), max(self.last, last)


@dataclass(frozen=True)
class Runs:
    """Segments of all nodes, and events one by one where they are here: where each begins and ends in the order.

    The order of all events is (time, node, rank); `first` and `last` are numbers that compare as the first and the last
    event of a run do.
    """

    names: list[str]
    node: Ints  # the index of its name
    lo: Ints
    hi: Ints
    since: Ints  # the first rank that counts, if it is in there
    is_count: Mask  # without states
    first_time: Ints
    last_time: Ints
    first: Ints
    last: Ints

    @staticmethod
    def of(lines: Mapping[str, Line], time: str, most: int) -> Runs:
        """Those that can hold one of the first `most` events of all: of each node those with its first `most`."""
        names = sorted(lines)
        rows: list[tuple[int, ...]] = []
        times = [np.empty(0, np.int64)]
        for node, name in enumerate(names):
            line, left = lines[name], most
            for segment in line.segments:
                if left <= 0:
                    break
                hi, since = segment.hi, line.since(segment.lo, segment.hi)
                if segment.events is not None:
                    hi, since = min(hi, segment.lo + left), line.cut
                    times.append(segment.events[time].head(left).to_numpy())
                is_event, is_count = segment.kind == "events", segment.kind == "count"
                rows.append((node, segment.lo, hi, since, segment.first, segment.last, is_count, is_event))
                left -= segment.size
        table = np.array(rows, np.int64).T
        sizes = np.where(table[-1] == 1, table[2] - table[1], 1)
        nodes, lo, hi, starts, first, last, is_count, is_event = np.repeat(table, sizes, axis=1)
        lo, is_event = lo + ramp(sizes), is_event == 1
        hi[is_event] = lo[is_event] + 1
        first[is_event] = last[is_event] = np.concatenate(times)
        ranks = _ranks(np.append(first, last), np.append(nodes, nodes), np.append(lo, hi - 1))
        return Runs(names, nodes, lo, hi, starts, is_count == 1, first, last, ranks[: len(lo)], ranks[len(lo) :])

    @property
    def keys(self) -> tuple[Ints, Ints]:
        return self.first, self.last

    @property
    def count(self) -> Ints:
        return self.hi - self.lo

    @property
    def is_slice(self) -> Mask:
        """Of more than one event, so that it is not known what is in them; events stand one by one."""
        return np.asarray(self.hi - self.lo > 1)

    def at(self, rank: int) -> tuple[int, str]:
        """The time and the node of the event that is last in a run."""
        index = int(np.flatnonzero(self.last == rank)[0])
        return int(self.last_time[index]), self.names[self.node[index]]


def _ranks(*keys: Ints) -> Ints:
    """Numbers that compare as the tuples of these keys do, from 0; equal tuples have equal numbers."""
    order = np.lexsort(keys[::-1])
    ranks, rows = np.empty(len(order), np.int64), np.stack(keys)[:, order]
    ranks[order] = np.append(0, np.cumsum((rows[:, 1:] != rows[:, :-1]).any(axis=0)))[: len(order)]
    return ranks
