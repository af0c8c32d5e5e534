"""Sessions, from the runs in a slice table.

A run is a row whose events are connected under the group's smallest gap; a session of a larger gap is a row of runs,
each at most that gap after the one before. So all gaps are answered from the same rows, from the smallest gap to the
largest, each looking only at the breaks that the one before it has left:

    runs        ▂▂  ▂ ▂▂    ▂▂        ▂▂▂ ▂
    gap 2       └┘  └──┘    └┘        └───┘
    gap 4       └──────────────┘      └───┘
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from windrow.core.arrays.range_queries import Ints, covered, running_max
from windrow.core.plan.groups import Timeline
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN, Session


@dataclass(frozen=True)
class Runs:
    """Rows sorted by (key, first): the number of the key, the slice, and the run's first and last time."""

    key: Ints
    slice_start: Ints
    first: Ints
    last: Ints

    @property
    def in_order(self) -> bool:
        """Whether the runs of each key come one after the other."""
        return bool(((self.key[1:] != self.key[:-1]) | (self.first[1:] >= self.last[:-1])).all())

    def reached(self) -> Ints:
        """The latest time of the key so far; runs of late events may lie within others."""
        return running_max(self.last, self.key)


@dataclass(frozen=True)
class Sessions:
    """The sessions of one gap, as ranges [lo, hi) of runs."""

    timeline: Timeline
    gap: int
    lo: Ints
    hi: Ints
    key: Ints
    first: Ints
    last: Ints

    def take(self, chosen: npt.NDArray[np.generic]) -> Sessions:
        columns = (self.lo, self.hi, self.key, self.first, self.last)
        return Sessions(self.timeline, self.gap, *(column[chosen] for column in columns))


def sessions(runs: Runs, timelines: Sequence[Timeline]) -> Iterator[Sessions]:
    """All sessions of each timeline, by gap; those of one gap in the order of the runs."""
    reached = runs.reached()
    apart = np.full(len(runs.key), INT64_MAX)
    if len(apart) > 1:
        same = runs.key[1:] == runs.key[:-1]
        apart[1:][same] = runs.first[1:][same] - reached[:-1][same]
    breaks = np.arange(len(apart))
    for timeline in sorted(timelines, key=gap_of):
        gap = gap_of(timeline)
        if timeline.since == INT64_MIN:
            breaks = lo = breaks[apart[breaks] > gap]
            hi = np.append(lo[1:], len(apart))[: len(lo)]
        else:  # a query that came later sees the runs from its time on, which are the last ones of each key
            seen = runs.slice_start >= timeline.since
            begins = seen & ((apart > gap) | ~np.append(False, seen[:-1]))
            ends = np.append(begins[1:] | ~seen[1:] | (apart[1:] > gap), True)[: len(seen)]
            lo, hi = np.flatnonzero(begins), np.flatnonzero(ends & seen) + 1
        found = Sessions(timeline, gap, lo, hi, runs.key[lo], runs.first[lo], reached[hi - 1])
        yield found.take(found.first < timeline.until) if timeline.closing else found


def needed(runs: Runs, timelines: Sequence[Timeline], final_before: int) -> npt.NDArray[np.bool_]:
    """Which runs may still matter: those of open sessions, and of the final ones that a late event might touch.

    The largest gap decides for all: its sessions hold those of every smaller gap, and close later. A final session
    matters for two more gaps (`left_out` looks no further back), and its end while the key's next session is open.
    """
    keep = np.zeros(len(runs.key), np.bool_)
    largest = max(timelines, key=gap_of)
    for found in sessions(runs, [largest._replace(since=INT64_MIN, until=INT64_MAX, closing=False)]):
        keep = _covered_by(found.take(found.last + 3 * found.gap >= final_before), len(keep))
        is_open = found.last + found.gap >= final_before
        follows = np.append((found.key[1:] == found.key[:-1]) & is_open[1:], False)[: len(is_open)]
        before_open = found.take(follows & ~is_open)
        ends = np.full(len(keep), INT64_MIN)
        ends[_covered_by(before_open, len(keep))] = np.repeat(before_open.last, before_open.hi - before_open.lo)
        keep |= (ends > INT64_MIN) & (runs.last == ends)
    return keep


def left_out(
    runs: Runs, timeline: Timeline, final_before: int, key: Ints, first: Ints, last: Ints
) -> tuple[npt.NDArray[np.bool_], Ints]:
    """Which new runs, given by key number, first and last time, a session query leaves out because they are late.

    A late run at most a gap after a final session would change it, and is left out. The others join what is open;
    one whose session would be final at once is left out too, and where nothing is open, one two gaps behind. An
    event is a run by itself. The second array says for each run up to when its key's final sessions reach.
    """
    gap = gap_of(timeline)
    always = timeline._replace(since=INT64_MIN, until=INT64_MAX, closing=False)
    final_until = np.full(int(max(key.max(initial=-1), runs.key.max(initial=-1))) + 1, INT64_MIN)
    is_open = np.zeros(len(runs.key), np.bool_)
    for found in sessions(runs, [always._replace(since=timeline.since)]):
        ended = found.last + gap < final_before
        np.maximum.at(final_until, found.key[ended], found.last[ended] + gap)
        is_open = _covered_by(found.take(~ended), len(runs.key))
    has_open = np.zeros(len(final_until), np.bool_)
    has_open[runs.key[is_open]] = True
    reach = final_until[key]
    out = (last < final_before) & (first <= reach) | (last < final_before - 2 * gap) & ~has_open[key]
    seen = first >= timeline.since
    out &= seen
    joins = np.flatnonzero(~out & seen)
    begin = np.maximum(first[joins], reach[joins] + 1)  # a run with late and timely events begins after what is final
    union = Runs(
        np.concatenate((runs.key[is_open], key[joins])),
        np.zeros(int(is_open.sum()) + len(joins), np.int64),
        np.concatenate((runs.first[is_open], begin)),
        np.concatenate((runs.last[is_open], last[joins])),
    )
    order = np.lexsort((union.last, union.first, union.key))
    ended = np.zeros(len(order), np.bool_)
    in_order = Runs(union.key[order], union.slice_start, union.first[order], union.last[order])
    for found in sessions(in_order, [always]):
        ended[order] = np.repeat(found.last + gap < final_before, found.hi - found.lo)
    out[joins] = ended[int(is_open.sum()) :]
    return out, reach


def _covered_by(found: Sessions, size: int) -> npt.NDArray[np.bool_]:
    """Which runs lie in one of the sessions."""
    return covered(found.lo, found.hi, size)


def gap_of(timeline: Timeline) -> int:
    assert isinstance(timeline.window, Session)
    return timeline.window.gap
