"""Sessions: from the runs of a slice table, those of every gap; and which late events they leave out.

    runs of a key (rows of slices), final before ──▶ sessions as ranges of runs   `sessions`
                                                 ──▶ runs that still matter       `needed`
    runs of late events, and the above           ──▶ which of them is left out    `left_out`

A **run** is a row whose events are connected under the group's smallest gap. A session of a larger gap is a range of
runs, each at most that gap after the one before. So all gaps are answered from the same rows. A larger gap never parts
what a smaller one connects, so gaps are taken from the smallest to the largest, each looking only at the breaks that
the one before it has left:

    runs        ▂▂  ▂ ▂▂    ▂▂        ▂▂▂ ▂
    gap 2       └┘  └──┘    └┘        └───┘
    gap 4       └──────────────┘      └───┘

What is final stays as it is: no late event may extend a final session or join two of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

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

    @cached_property
    def end(self) -> Ints:
        """Where each ends: it is closed once the watermark is greater."""
        return self.last + self.gap

    def next_end(self, now: int) -> int:
        """The first end that is not before a time."""
        return int(self.end[self.end >= now].min(initial=INT64_MAX))

    def closing(self, before: int, now: int) -> Sessions:
        """Those that a move of the watermark closes."""
        return self.take((self.end >= before) & (self.end < now))

    def take(self, chosen: npt.NDArray[np.generic]) -> Sessions:
        columns = (self.lo, self.hi, self.key, self.first, self.last)
        return Sessions(self.timeline, self.gap, *(column[chosen] for column in columns))


def sessions(runs: Runs, timelines: Sequence[Timeline]) -> Iterator[Sessions]:
    """Find the sessions of each timeline, from the smallest gap to the largest; those of a timeline in run order."""
    reached = running_max(runs.last, runs.key)  # a run of late events may lie within an earlier run
    apart = np.full(len(runs.key), INT64_MAX)  # from the end of everything before of its key; a key's first run breaks
    if len(apart) > 1:
        same = runs.key[1:] == runs.key[:-1]
        apart[1:][same] = runs.first[1:][same] - reached[:-1][same]
    breaks = np.arange(len(apart))  # the runs that begin a session of the gap before
    for timeline in sorted(timelines, key=gap_of):
        gap = gap_of(timeline)
        if timeline.since == INT64_MIN:
            breaks = lo = breaks[apart[breaks] > gap]
            hi = np.append(lo[1:], len(apart))[: len(lo)]
        else:  # a query that came later sees the runs from its time on; of each key these are the last ones
            seen = runs.slice_start >= timeline.since
            begins = seen & ((apart > gap) | ~np.append(False, seen[:-1]))
            ends = np.append(begins[1:] | ~seen[1:] | (apart[1:] > gap), True)[: len(seen)]
            lo, hi = np.flatnonzero(begins), np.flatnonzero(ends & seen) + 1
        of_gap = Sessions(timeline, gap, lo, hi, runs.key[lo], runs.first[lo], reached[hi - 1])
        yield of_gap.take(of_gap.first < timeline.until) if timeline.closing else of_gap


def needed(runs: Runs, timelines: Sequence[Timeline], final_before: int) -> npt.NDArray[np.bool_]:
    """Mark the runs that may still matter.

    1. The runs of sessions that are not final.
    2. All runs of a final session that the earliest late event still admitted (`left_out`), two gaps behind
       `final_before`, may lie within a gap of: three gaps in all.
    3. The last run of a final session that an open one of its key follows, because an event between the two must not be
       connected to both.

    The largest gap decides: its sessions hold those of smaller gaps, and close later.
    """
    keep = np.zeros(len(runs.key), np.bool_)
    largest = max(timelines, key=gap_of)
    for of_gap in sessions(runs, [largest._replace(since=INT64_MIN, until=INT64_MAX, closing=False)]):
        live = of_gap.take(of_gap.last + 3 * of_gap.gap >= final_before)
        keep = covered(live.lo, live.hi, len(keep))
        is_open = of_gap.end >= final_before
        next_is_open = np.append((of_gap.key[1:] == of_gap.key[:-1]) & is_open[1:], False)[: len(is_open)]
        before_open = of_gap.take(next_is_open & ~is_open)
        ends = np.full(len(keep), INT64_MIN)
        inside = covered(before_open.lo, before_open.hi, len(keep))
        ends[inside] = np.repeat(before_open.last, before_open.hi - before_open.lo)
        keep |= (ends > INT64_MIN) & (runs.last == ends)
    return keep


def left_out(
    runs: Runs, timeline: Timeline, final_before: int, key: Ints, first: Ints, last: Ints
) -> tuple[npt.NDArray[np.bool_], Ints]:
    """Which late runs, given by key number, first and last time, a session query leaves out.

    A late event is a run of its own. Three kinds are left out, each because it would change what is final:
    1. those that begin no later than a gap after a final session of their key: they would extend it;
    2. where the key has no open session, those more than two gaps behind: what they would extend may be forgotten;
    3. those whose session would be final at once, together with whatever else joins it.
    The others join an open session, or begin one. The second array says up to when the final sessions of each run's
    key reach.
    """
    gap = gap_of(timeline)
    always = timeline._replace(since=INT64_MIN, until=INT64_MAX, closing=False)
    final_until = np.full(int(max(key.max(initial=-1), runs.key.max(initial=-1))) + 1, INT64_MIN)
    is_open = np.zeros(len(runs.key), np.bool_)
    for of_gap in sessions(runs, [always._replace(since=timeline.since)]):
        ended = of_gap.end < final_before
        np.maximum.at(final_until, of_gap.key[ended], of_gap.end[ended])
        is_open = covered(of_gap.lo[~ended], of_gap.hi[~ended], len(runs.key))
    has_open = np.zeros(len(final_until), np.bool_)
    has_open[runs.key[is_open]] = True
    reach = final_until[key]
    out = (last < final_before) & (first <= reach) | (last < final_before - 2 * gap) & ~has_open[key]
    seen = first >= timeline.since
    out &= seen
    # the third kind depends on what else joins: find the sessions of the open runs and all candidates together
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
    for of_gap in sessions(in_order, [always]):
        ended[order] = np.repeat(of_gap.end < final_before, of_gap.hi - of_gap.lo)
    out[joins] = ended[int(is_open.sum()) :]
    return out, reach


def gap_of(timeline: Timeline) -> int:
    assert isinstance(timeline.window, Session)
    return timeline.window.gap
