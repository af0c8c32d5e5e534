"""Schemes: how nodes and the root agree on where counting windows end, without sending all events.

Every node has its final events in order; the order of all is (time, node, rank at the node). A **boundary** lies before
the event at a position at which some counting window begins or ends, and cuts the ordered log of every node at one
rank. Nodes send their logs as **segments**, each a run of events: as they are, as a slice (count, first and last time,
and the states of the aggregates), or as a mere count. The root finds a boundary once no segment that is not events
reaches across it and everything before it is known (`boundaries`), so that it does not matter by which scheme segments
were cut: a scheme decides how much is sent, and how often the root has to request more.

    scheme        flows per window            what a node sends without a request
    central       1 up                        events
    monitoring    up, down, up                counts of sub-slices
    sync          up, down                    a slice and the events around one predicted end of a window; then it waits
    async         1 up (and 1 down meanwhile) the same, window after window, without waiting
    refine        up, down, up                sub-slices
    approximate   1 up                        a slice of as many events as it had in the windows before; not exact

The first two windows are cut by `refine`, whatever the scheme, because nothing is known of the nodes before. After Deco
(Yue et al., EDBT 2024), where `monitoring`, `sync` and `async` come from; `refine` is our own. For it and `monitoring`
the root makes the requests of several boundaries at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from windrow.core.windows.fixed import Grid
from windrow.nodes.refine import block_size

Kind = Literal["events", "slice", "count"]
CERTAIN = 4.0  # c: the events that are sent around a predicted boundary are c·Δ on both sides
REMEMBERED = 8  # m: Δ is the mean of so many of the last differences
LEAST = 2  # events that are sent on both sides at least: how streams interleave changes by as much
RAW_UP_TO = 8  # so many events are fewer bytes than a slice of them
SMALL = 10_000  # `auto` leaves windows alone that are smaller: agreeing on them costs more than it saves
PAYS = 0.8  # `auto` sends events unless another scheme sends less than so much of them
MESSAGE = 3_000.0  # bytes of a message that asks, with the answer's headers: an estimate
STATE = 16.0  # bytes of each column of a slice: an estimate


class Boundaries:
    """The positions at which some counting window of a group begins or ends."""

    def __init__(self, grids: Grid) -> None:
        self._grids = grids

    def after(self, position: int) -> int:
        """The next one."""
        return int(self._grids.after(position).min())

    @property
    def widest(self) -> int:
        """No two that follow each other are further apart."""
        return int(np.min(self._grids.period))


class Directive(NamedTuple):
    """What the root lets a node know of a key: which events lie before the last boundary, and what to expect."""

    scheme: str = "central"
    cut: int = 0  # events of the node before the last boundary
    kept: int = 0  # of these, those before this rank are not needed any more; values of others may be requested
    position: int = 0  # of that boundary, among the events of all nodes
    share: float = 0.0  # how much of the events after it will be the node's, as it seems
    margin: float = 0.0  # by how much of them that may be wrong: c·Δ
    sub_slice: int = 1  # how many events it has
    patience: int = 0  # how old an event may be that was not sent
    rewind: int = 0  # the number of the last time that the node is to cut again what it has cut since the boundary

    def predicted(self, boundary: int) -> tuple[int, int]:
        """The rank at which a boundary is expected, and by how much that may be wrong."""
        ahead = boundary - self.position
        return self.cut + int(self.share * ahead), LEAST + int(np.ceil(self.margin * ahead))


class Cut(NamedTuple):
    """A segment that a node sends: the ranks of its first event and of the one after its last."""

    lo: int
    hi: int
    kind: Kind


class Scheme:
    """How a node cuts what it has of a key."""

    name: ClassVar[str]
    is_exact: ClassVar[bool] = True
    waits: ClassVar[bool] = False  # whether a node holds events back that the root has to request
    corrects: ClassVar[bool] = False  # whether a request means that a prediction was wrong

    def cuts(self, directive: Directive, boundaries: Boundaries, covered: int, top: int, flush: bool) -> Iterator[Cut]:
        """The segments to send now of the events with ranks from `covered` to `top`, with `flush` as many as can be."""
        raise NotImplementedError


class Central(Scheme):
    """Deco's Central: the root has all events."""

    name = "central"

    def cuts(self, directive: Directive, boundaries: Boundaries, covered: int, top: int, flush: bool) -> Iterator[Cut]:
        if top > covered:
            yield Cut(covered, top, "events")


class Monitoring(Scheme):
    """Deco_mon, by counts instead of rates.

    Counts of sub-slices with their first and last times leave no doubt but in the few that may hold the end of the
    window. The root requests the slice before that, and the events of those one or two.
    """

    name = "monitoring"
    kind: Kind = "count"

    def cuts(self, directive: Directive, boundaries: Boundaries, covered: int, top: int, flush: bool) -> Iterator[Cut]:
        while top - covered >= directive.sub_slice:
            yield Cut(covered, covered + directive.sub_slice, self.kind)
            covered += directive.sub_slice
        if flush and top > covered:
            yield Cut(covered, top, self.kind if top - covered > RAW_UP_TO else "events")


class Refine(Monitoring):
    """The same with states, so that only events are requested: about as many bytes as the slices (`block_size`)."""

    name = "refine"
    kind = "slice"


class Async(Scheme):
    """Deco_async.

    A node sends for each window a slice, and c·Δ events before and after its predicted end (the end buffer of one
    window and the front buffer of the next). That is right if the boundary lies among these: the slice before them
    ends no later, and the slice after them begins no earlier. Where a boundary lies in a slice after all, the root
    requests sub-slices of that slice, then the events of the few that matter, and has the node cut again what it has
    cut since (`rewind`).
    """

    name = "async"
    corrects = True
    ahead: ClassVar[int | None] = None  # how many windows are cut that the root has not confirmed; None: any number

    def cuts(self, directive: Directive, boundaries: Boundaries, covered: int, top: int, flush: bool) -> Iterator[Cut]:
        boundary, number = boundaries.after(directive.position), 1
        while covered < top:
            expected, margin = directive.predicted(boundary)
            if covered >= expected + margin and directive.share > 0:
                if number == self.ahead:
                    return
                boundary, number = boundaries.after(boundary), number + 1
                continue
            is_near = covered >= expected - margin
            end = expected + margin if is_near else expected - margin
            if end > top or directive.share <= 0:
                if not flush:
                    return
                end = top
            yield Cut(covered, end, "events" if is_near else "slice")
            covered = end


class Sync(Async):
    """Deco_sync: a window is only cut once the one before it is found, so that no wrong prediction spreads."""

    name = "sync"
    waits = True
    ahead = 1


class Approximate(Async):
    """Deco's Approx: a baseline, right only as long as no rate changes."""

    name = "approximate"
    is_exact = False
    corrects = False

    def cuts(self, directive: Directive, boundaries: Boundaries, covered: int, top: int, flush: bool) -> Iterator[Cut]:
        boundary = directive.position
        while directive.share > 0:
            boundary = boundaries.after(boundary)
            expected, _ = directive.predicted(boundary)
            if expected > top:
                return
            if expected > covered:
                yield Cut(covered, expected, "slice")
                covered = expected


SCHEMES: Mapping[str, Scheme] = {one.name: one() for one in (Central, Monitoring, Sync, Async, Refine, Approximate)}
NAMES = ("auto", *SCHEMES)


class History:
    """How many events each node had between boundaries, the last few times."""

    def __init__(self) -> None:
        self.intervals: list[tuple[int, dict[str, int]]] = []  # events of all, and of each node

    def add(self, size: int, of_nodes: dict[str, int]) -> None:
        self.intervals = [*self.intervals, (size, of_nodes)][-REMEMBERED - 1 :]

    @property
    def is_enough(self) -> bool:
        return len(self.intervals) >= 2

    def share(self, node: str) -> float:
        """A node's share of the last interval: the prediction of its next ones."""
        size, of_nodes = self.intervals[-1]
        return of_nodes.get(node, 0) / size

    def change(self, node: str) -> float:
        """Δ: the mean of how much its share has changed from interval to interval, or that of all nodes if it is more.

        A node of which little is known is not taken to be steadier than the others.
        """
        shares = {one: [of_nodes.get(one, 0) / size for size, of_nodes in self.intervals] for one in self.nodes}
        changes = {one: float(np.abs(np.diff(of_one)).mean()) for one, of_one in shares.items()}
        return max(changes[node], sum(changes.values()) * self.share(node))

    @property
    def nodes(self) -> list[str]:
        return list(dict.fromkeys(node for _, of_nodes in self.intervals for node in of_nodes))


class Choice(NamedTuple):
    """A scheme, and why."""

    scheme: str
    why: str


NOTHING_KNOWN = Choice("refine", "nothing is known of the nodes yet")


def choose(history: History, event: float, columns: int, length: int, trip: int) -> Choice:
    """The scheme that sends the fewest bytes, of those that answer in time.

    event:    bytes of an event
    columns:  of a slice
    length:   how much time a window has, in microseconds of event time, 0 where that is no time
    trip:     microseconds from a request to its answer, as it was measured
    """
    size, of_nodes = history.intervals[-1]
    nodes = max(1, len(of_nodes))
    own = size / nodes
    wrong = sum(map(history.change, history.nodes))
    whole = size * event
    around = min(1.0, 2 * CERTAIN * wrong) * whole + nodes * columns * STATE
    block = sub_slice(int(own), event, columns)
    blocks = nodes * (own / block * columns * STATE + 2 * block * event + MESSAGE)
    shown = f"shares change by {wrong:.2%} from window to window"
    best, bytes_ = ("refine", blocks) if blocks < around else ("async", around)
    if length and trip > length / 2:
        best, bytes_ = "async", around
        shown += f", and an answer takes {trip / 1e6:.3g} s of the {length / 1e6:.3g} s of a window"
    if bytes_ > PAYS * whole:
        return Choice("central", f"{shown}; {best} would send {bytes_ / whole:.0%} of the events")
    return Choice(best, f"{shown}; it sends about {bytes_ / whole:.2%} of the events")


def sub_slice(own: int, event: float, columns: int) -> int:
    """How many events a sub-slice of a node has, which has so many in a window."""
    return max(8, block_size(own, columns * STATE, 2 * event))
