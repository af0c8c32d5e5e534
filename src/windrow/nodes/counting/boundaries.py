"""Boundary resolvers: the root finds where counting windows of one key begin and end, over all nodes.

    segments ──▶ the runs of each node ──▶ a boundary that no slice reaches across ──▶ what lies before it, of all nodes
                                       └─ else: what the root has to ask for

**When a boundary is right.** It lies after the n-th of all events after the last one. That is right if every slice ends
at that event or before, or begins after it (`_Candidate`), and if nothing that is not here can come before it
(`_is_complete`): what a node has not sent is no older than the first event that it holds back, or than the time up to
which it is final. Which scheme cut the segments does not matter.

**What is requested.** Of slices that may hold the boundary (`refine.bounds`) the root requests what is in them: first
sub-slices, then events. Of counts before it, it requests the states. Requests follow from the segments that are here,
so that a root that was restarted makes them again.

A node that is not waited for any more, because it is silent, loses what cannot be decided without it: the events of
slices that reach across a boundary. They count as late. What it brings later and lies before a boundary is late, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from windrow.core.arrays.range_queries import Ints, Mask
from windrow.core.stream.job_slicer import Tables
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.nodes.counting.runs import Interval, Line, Runs, Segment
from windrow.nodes.counting.schemes import (
    CERTAIN,
    NOTHING_KNOWN,
    SCHEMES,
    Choice,
    Directive,
    History,
    Scheme,
    choose,
    sub_slice,
)
from windrow.nodes.counting.tables import ANEW, Form, Key
from windrow.nodes.refine import Bounds, bounds, undecided

BOUNDARIES_AHEAD = 64  # boundaries for which requests are made at once, and again once half of them are found
Ask = tuple[int, int, str]  # ranks, and what is requested of them


@dataclass(frozen=True)
class Reached:
    """How far nodes have come."""

    watermark: int  # of the tree
    finals: Mapping[str, int]  # of each node: nothing that it will read is older; an idle one is not waited for
    lost: set[str]  # nodes that nobody waits for, or that know that all is over: no request reaches them


class Boundary(NamedTuple):
    """Where a boundary cuts the events of each node, and the time and node of the last event before it, if known."""

    cuts: dict[str, int]
    last: tuple[int, str] | None = None


@dataclass(frozen=True)
class _Candidate:
    """What the segments that are here say of the next boundary: it lies after the n-th of their events.

    That event is no less than `lower` and no more than `upper`, as ranks in the order of all (`refine.bounds`). Where
    `unclear` is empty both are the same: a slice with events on both sides of `lower` would be unclear, so that as many
    events end by there as begin by there, which are n or more, and `upper` is the first event of which that is true.
    """

    runs: Runs
    lower: int
    upper: int
    torn: Mask  # slices with events before the last boundary, or too late, beside others: they have to be opened
    unclear: Mask  # these, and slices that may have events before and after the boundary

    @staticmethod
    def of(runs: Runs, torn: Mask, size: int) -> _Candidate:
        """The boundary after so many events."""
        lower, upper, sure, possible = (int(bound[0]) for bound in bounds(*runs.keys, runs.count, np.array([size])))
        # where as many events surely lie up to `upper` as may, none is on the wrong side, whatever is in the slices
        is_sure = sure == possible == size and not torn.any()
        unclear = torn if is_sure else torn | (runs.is_slice & (runs.first <= upper) & (runs.last > lower))
        return _Candidate(runs, lower, upper, torn, unclear)

    @property
    def last(self) -> tuple[int, str]:
        """The time and the node of the last event before the boundary, or of one after it while that is unclear."""
        return self.runs.at(self.upper)

    @property
    def undecided(self) -> Mask:
        """Segments that only their node can complete: unclear ones, and counts without states."""
        return self.unclear | (self.runs.is_count & (self.runs.first <= self.upper))

    @property
    def counts(self) -> Mask:
        """The counts that surely lie before the boundary."""
        certain = self.lower if self.unclear.any() else self.upper
        return ~self.unclear & self.runs.is_count & (self.runs.last <= certain)

    def cuts(self, lines: Mapping[str, Line]) -> dict[str, int]:
        """The rank at which the boundary cuts each node: after its last segment before the boundary."""
        inside = self.runs.last <= self.upper
        cuts = {name: line.cut for name, line in lines.items()}
        for node, name in enumerate(self.runs.names):
            own = inside & (self.runs.node == node)
            if own.any():
                cuts[name] = int(self.runs.hi[own].max())
        return cuts


class BoundaryResolver:
    """One key of a counted group, over all nodes."""

    def __init__(self, form: Form, key: Key) -> None:
        self.form, self.key = form, key
        self.position = 0
        self.floor: tuple[int, str] | None = None  # time and node of the last event before the last boundary
        self.length = 0  # how much time there was between the last two boundaries
        self.lines: dict[str, Line] = {}
        self.history = History()
        self.choice = NOTHING_KNOWN
        self.asks: dict[str, dict[Ask, None]] = {}  # of each node: the requests that the last `finish` made
        self.directives: dict[str, Directive] = {}
        self.corrected = False  # the boundary that comes next has needed a correction
        self.boundaries = self.corrections = 0
        self.late: Counter[str] = Counter()  # events of each node that came too late, until somebody fetches it

    # --- segments in ----------------------------------------------------------------------------------------------

    def absorb(self, node: str, segments: list[tuple[Segment, int | None, int | None]]) -> None:
        """Take in the segments that a node has sent, in their order.

        Each names the rank range it is the content of: none if it follows on those before; (rank, ANEW) if it and the
        next replace all from that rank on; (lo, hi) if it answers a request, and replaces the segments between these
        ranks.
        """
        line = self.lines.setdefault(node, Line())
        answers: dict[tuple[int | None, int | None], list[Segment]] = {}
        for segment, *of in segments:
            answers.setdefault((of[0], of[1]), []).append(segment)
        for (of_lo, of_hi), group in groupby(segments, key=lambda row: row[1:]):
            content = [segment for segment, *_ in group]
            if of_hi == ANEW:
                since = max(of_lo or 0, line.gone)  # what was left out stays left out
                del line.segments[line.before(since) :]
                line.segments += [segment for segment in content if segment.hi > since]
                line.covered = content[-1].hi
            elif of_lo is None or of_hi is None:
                line.segments += content
                line.covered = content[-1].hi
            else:
                self._open(line, of_lo, of_hi, answers[of_lo, of_hi])
        line.trim(self.form.time)
        self._leave_out_late(node, line)

    @staticmethod
    def _open(line: Line, lo: int, hi: int, content: list[Segment]) -> None:
        """Put the content of segments in their place, if they are still here as they were requested."""
        inside = slice(line.beginning_before(lo), line.before(hi))
        here = line.segments[inside]
        if not here or any(segment.kind == "events" for segment in here):
            return
        if here[0].lo == lo and here[-1].hi == hi:
            is_partial = lo < line.gone < hi  # a part of it was left out
            line.segments[inside] = [segment for segment in content if not is_partial or segment.hi > line.gone]

    def _leave_out_late(self, node: str, line: Line) -> None:
        """Drop events before the last boundary: they come too late. A slice with others is left to be opened."""
        since, kept, cut = self._from(node), list[Segment](), line.cut
        older = line.older_than(since)
        for segment in line.segments[:older]:
            late = 0
            if segment.lo >= cut:
                if segment.events is not None:
                    late = int((segment.events[self.form.time] < since).sum())
                elif segment.last < since:
                    late = segment.size
            if late:
                self.late[node] += late
                line.cut = segment.lo + late
            if late < segment.size:
                kept.append(segment.after(line.cut, self.form.time) if late else segment)
        line.segments[:older] = kept

    def _from(self, node: str) -> int:
        """The first time at which an event of a node may come after the last boundary."""
        if self.floor is None:
            return INT64_MIN
        time, other = self.floor
        return time if node >= other else time + 1

    # --- boundaries -----------------------------------------------------------------------------------------------

    def finish(self, reached: Reached) -> list[Interval]:
        """Find the boundaries that can be found, and note what to request for the next one: what lies between them."""
        between: list[Interval] = []
        self.asks = {}
        scheme = SCHEMES[next((directive.scheme for directive in self.directives.values()), "refine")]
        while True:
            size = self.form.boundaries.after(self.position) - self.position
            boundary = self._exact(size, scheme, reached) if scheme.is_exact else self._expected(size, reached)
            if boundary is None:
                return between
            if boundary.last is not None:
                self.length = boundary.last[0] - self.floor[0] if self.floor is not None else 0
                self.floor = boundary.last
            between.append(self._take(boundary.cuts, size))

    def _expected(self, size: int, reached: Reached) -> Boundary | None:
        """Take the boundary to be where it was predicted, if every node has come so far."""
        cuts = {}
        for node, directive in self.directives.items():
            expected, _ = directive.predicted(self.position + size)
            line = self.lines[node]
            if line.covered < expected and reached.finals.get(node, INT64_MIN) < INT64_MAX:
                return None
            cuts[node] = min(expected, max(line.covered, line.cut))
        return Boundary(cuts) if any(cut > self.lines[node].cut for node, cut in cuts.items()) else None

    def _exact(self, size: int, scheme: Scheme, reached: Reached) -> Boundary | None:
        """Find the boundary after so many events; None while it is not certain, with requests for what is missing."""
        candidate = self._candidate(size)
        if candidate is None or not self._is_complete(*candidate.last, reached):
            self._request_more(scheme, None if candidate is None else candidate.last[0], reached)
            return None
        if reached.lost and self._drop_lost(candidate, reached.lost):
            return self._exact(size, scheme, reached)  # of what is left; each time segments are fewer
        opened, counts = candidate.unclear, candidate.counts
        if not opened.any() and not counts.any():
            return Boundary(candidate.cuts(self.lines), candidate.last)
        self._request(candidate.runs, opened, counts)
        self.corrected |= scheme.corrects
        if not (scheme.corrects or candidate.torn.any()):  # what a wrong prediction has cut will be cut again
            self._request_ahead(self.position + size, reached)
        return None

    def _size(self, most: int) -> int:
        """How many events are here after the last boundary; of more than `most`, no matter how many."""
        size = 0
        for line in self.lines.values():
            for segment in line.segments:
                if size >= most:
                    return size
                size += segment.size
        return size

    def _candidate(self, size: int) -> _Candidate | None:
        """The boundary after so many events, as far as segments say; None if there are not so many."""
        if self._size(size) < size:
            return None
        runs = Runs.of(self.lines, self.form.time, size)
        is_partly_late = runs.first_time < np.array([self._from(name) for name in runs.names])[runs.node]
        return _Candidate.of(runs, runs.is_slice & ((runs.lo < runs.since) | is_partly_late), size)

    def _is_complete(self, time: int, node: str, reached: Reached) -> bool:
        """Whether nothing that is not here can come before an event of a node.

        Events are ordered by (time, node, rank): of another node nothing may be missing that is older, or as old if
        that node stands before this one. Of the node itself what is missing has a higher rank.
        """
        if time >= reached.watermark:
            return False
        for name in {*reached.finals, *self.lines} - reached.lost:
            line = self.lines.get(name)
            if line is not None and line.rewind:
                return False
            least = self._reach(name, reached)
            if name != node and (least < time or (least == time and name < node)):
                return False
        return True

    def _reach(self, name: str, reached: Reached) -> int:
        """The time that everything reaches that a node has not sent: nothing of it is older."""
        line = self.lines.get(name)
        return reached.finals.get(name, INT64_MIN) if line is None or line.next is None else line.next

    def _drop_lost(self, candidate: _Candidate, lost: Collection[str]) -> bool:
        """Drop what only lost nodes could complete, and count it as late; returns whether there was any."""
        runs = candidate.runs
        dropped = [index for index in np.flatnonzero(candidate.undecided) if runs.names[runs.node[index]] in lost]
        for index in dropped:
            name, lo, hi = runs.names[runs.node[index]], int(runs.lo[index]), int(runs.hi[index])
            line = self.lines[name]
            line.segments = [segment for segment in line.segments if (segment.lo, segment.hi) != (lo, hi)]
            self.late[name] += hi - max(lo, line.since(lo, hi))
            line.gone = max(line.gone, hi)
        return bool(dropped)

    # --- requests -------------------------------------------------------------------------------------------------

    def _request(self, runs: Runs, opened: Mask, counts: Mask, between: Ints | None = None) -> None:
        """Request what is in some slices, and the states of some counts.

        between:  of each run, behind which boundary it lies: a slice of counts reaches across none
        """
        for index in np.flatnonzero(opened):
            self._ask(runs.names[runs.node[index]], int(runs.lo[index]), int(runs.hi[index]), "events")
        for node, name in enumerate(runs.names):  # counts that follow each other become one slice
            own = np.flatnonzero(counts & (runs.node == node))
            ends = runs.lo[own][1:] != runs.hi[own][:-1]
            if between is not None:
                ends |= between[own][1:] != between[own][:-1]
            for run in np.split(own, np.flatnonzero(ends) + 1) if len(own) else ():
                self._ask(name, int(runs.lo[run[0]]), int(runs.hi[run[-1]]), "slice")

    def _ask(self, node: str, lo: int, hi: int, what: str) -> None:
        self.asks.setdefault(node, {})[lo, hi, what] = None

    def _request_ahead(self, position: int, reached: Reached) -> None:
        """Request at once what the boundaries after a position will need, as far as segments reach."""
        nth = list[int]()
        # with each boundary that is ends one more would be requested, in a message for each
        for _ in range(BOUNDARIES_AHEAD - self.boundaries % (BOUNDARIES_AHEAD // 2)):
            position = self.form.boundaries.after(position)
            nth.append(position - self.position)
        size = self._size(nth[-1])
        nth = [one for one in nth if one <= size]
        if not nth:
            return
        runs = Runs.of(self.lines, self.form.time, nth[-1])
        limits = bounds(*runs.keys, runs.count, np.array(nth))
        complete = np.array([self._is_complete(*runs.at(int(upper)), reached) for upper in limits.upper])
        limits = Bounds(*(bound[complete] for bound in limits))
        here = np.isin(runs.node, [node for node, name in enumerate(runs.names) if name not in reached.lost])
        opened = here & undecided(*runs.keys, limits) & runs.is_slice
        counts = here & ~opened & runs.is_count
        # a slice of counts must not reach across a boundary: those between two of them go together
        between = np.searchsorted(limits.upper, runs.first) - 1
        counts &= (between >= 0) & (between < len(limits.upper) - 1)
        counts[counts] = runs.last[counts] <= limits.lower[between[counts] + 1]
        self._request(runs, opened, counts, between)

    def _request_more(self, scheme: Scheme, time: int | None, reached: Reached) -> None:
        """Request the events that waiting nodes hold back behind a predicted boundary.

        A node is asked once all others, or the time of the candidate, have reached its first such event: before that,
        the boundary may be found without it.
        """
        if not scheme.waits:
            return
        boundary = self.form.boundaries.after(self.position)
        for name, line in self.lines.items():
            directive = self.directives.get(name, Directive())
            expected, margin = directive.predicted(boundary)
            is_current = directive.scheme == scheme.name and directive.position == self.position
            if line.next is None or name in reached.lost or not is_current or line.covered < expected + margin:
                continue
            others = (self._reach(other, reached) for other in {*reached.finals, *self.lines} - reached.lost - {name})
            if line.next <= min([reached.watermark if time is None else time, *others]):
                self._ask(name, line.covered, line.covered, "more")
                self.corrected |= scheme.corrects

    def _take(self, cuts: dict[str, int], size: int) -> Interval:
        """Take everything before a boundary, which becomes the last one."""
        between, of_nodes = Interval(self.key, self.position), {}
        for name, line in self.lines.items():
            cut = cuts.get(name, line.cut)
            for segment in line.segments[: line.beginning_before(cut)]:
                between.add(name, segment, cut, self.form.time)
            of_nodes[name], line.cut = cut - line.cut, cut
            line.trim(self.form.time)
        self.position += size
        self.history.add(size, of_nodes)
        self.boundaries += 1
        self.corrections += int(self.corrected)
        return between

    # --- directives -----------------------------------------------------------------------------------------------

    def plan(self, scheme: str, trip: int, temporal: bool, rewinds: dict[str, int]) -> None:
        """After boundaries were found: what nodes are to expect, by the scheme, or by the one that `auto` chooses."""
        name = scheme
        if scheme == "auto" and self.history.is_enough:
            form = self.form
            length = self.length if temporal else 0
            self.choice = choose(self.history, form.event_bytes, len(form.segments), length, trip)
            name = self.choice.scheme
        is_approximate = name in SCHEMES and not SCHEMES[name].is_exact
        for node, line in self.lines.items():
            before = self.directives.get(node, Directive())
            if is_approximate and before.scheme == name:
                continue  # its first directive stays in force
            kept = before.kept if self.form.schema.lists else line.cut
            directive = self.form.first._replace(cut=line.cut, kept=kept, position=self.position, patience=self.length)
            if self.history.is_enough:
                size = self.history.intervals[-1][0]
                share = self.history.share(node)
                events = sub_slice(int(share * size), self.form.event_bytes, len(self.form.segments))
                margin = CERTAIN * self.history.change(node)
                directive = directive._replace(scheme=name, share=share, margin=margin, sub_slice=events)
            if self.corrected and name == "async" and any(segment.kind == "slice" for segment in line.segments):
                rewinds[node] = line.rewind = rewinds.get(node, 0) + 1
            self.directives[node] = directive._replace(rewind=max(line.rewind, before.rewind))
        self.corrected = False

    def let_go(self, needed: Mapping[str, int]) -> bool:
        """Let nodes drop what is before these ranks, or else before the last boundary; returns whether that is news."""
        before = self.directives
        self.directives = {
            node: directive._replace(kept=needed.get(node, directive.cut)) for node, directive in before.items()
        }
        return self.directives != before


# --- resolvers as tables, in which a root keeps them in its log store -------------------------------------------------

_NUMBERS = ("position", "length", "corrected", "boundaries", "corrections")  # of a resolver
_LINE = ("cut", "covered", "next", "rewind", "gone")
_SEGMENT = ("lo", "hi", "first", "last", "kind")


def to_tables(form: Form, resolvers: Mapping[Key, BoundaryResolver]) -> Tables:
    """The resolvers of a group as tables; the events and the states of segments lie one after the other."""
    rows: dict[str, list[Any]] = {name: [] for name in _schemas(form)}
    events, states = [pl.DataFrame(schema=form.sent)], [pl.DataFrame(schema=form.states)]
    for key, resolver in resolvers.items():
        numbers = (getattr(resolver, name) for name in _NUMBERS)
        rows["keys"].append((*key, *numbers, *(resolver.floor or (None, None)), *resolver.choice))
        for number, (size, of_nodes) in enumerate(resolver.history.intervals):
            rows["history"] += [(*key, number, size, node, own) for node, own in of_nodes.items()]
        rows["directives"] += [(*key, node, *directive) for node, directive in resolver.directives.items()]
        for node, line in resolver.lines.items():
            rows["lines"].append((*key, node, *(getattr(line, name) for name in _LINE)))
            for segment in line.segments:
                rows["segments"].append((*key, node, *(getattr(segment, name) for name in _SEGMENT)))
                events += [] if segment.events is None else [segment.events.select(*form.sent)]
                states += [] if segment.table is None else [segment.table.select(*form.states).slice(segment.row, 1)]
    tables = {name: pl.DataFrame(rows[name], schema=schema, orient="row") for name, schema in _schemas(form).items()}
    return tables | {"events": pl.concat(events), "states": pl.concat(states)}


def _schemas(form: Form) -> dict[str, dict[str, pl.DataType]]:
    number, text = pl.Int64(), pl.String()
    of_node = {**form.keys, "node": text}
    own = {name: pl.Boolean() if name == "corrected" else number for name in _NUMBERS}
    return {
        "keys": {**form.keys, **own, "floor_time": number, "floor_node": text, "scheme": text, "why": text},
        "lines": {**of_node, **dict.fromkeys(_LINE, number)},
        "directives": of_node | {name: dtype for name, dtype in form.directive.items() if name not in form.keys},
        "history": {**form.keys, "number": number, "size": number, "node": text, "own": number},
        "segments": {**of_node, **{name: text if name == "kind" else number for name in _SEGMENT}},
    }


def from_tables(form: Form, tables: Mapping[str, pl.DataFrame]) -> dict[Key, BoundaryResolver]:
    """The way back."""

    def rows(name: str) -> Iterator[tuple[Key, tuple[Any, ...]]]:
        return ((row[: len(form.keys)], row[len(form.keys) :]) for row in tables[name].iter_rows())

    resolvers: dict[Key, BoundaryResolver] = {}
    for key, (*numbers, time, node, scheme, why) in rows("keys"):
        resolvers[key] = resolver = BoundaryResolver(form, key)
        vars(resolver).update(zip(_NUMBERS, numbers, strict=True))
        resolver.floor, resolver.choice = None if node is None else (time, node), Choice(scheme, why)
    for key, (number, size, node, own) in rows("history"):
        intervals = resolvers[key].history.intervals
        intervals += [(size, {})] if len(intervals) <= number else []
        intervals[number][1][node] = own
    for key, (node, *values) in rows("lines"):
        resolvers[key].lines[node] = Line(*values)
    for key, (node, *values) in rows("directives"):
        resolvers[key].directives[node] = Directive(*values)
    event = state = 0
    for key, (node, *values) in rows("segments"):
        segment = Segment(*values)
        if segment.kind == "events":
            segment, event = replace(segment, events=tables["events"].slice(event, segment.size)), event + segment.size
        elif segment.kind == "slice":
            segment, state = replace(segment, row=state, table=tables["states"]), state + 1
        resolvers[key].lines[node].segments.append(segment)
    return resolvers
