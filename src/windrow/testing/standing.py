"""A query at work in the oracle: the events that it saw, its windows formed anew from all, and what it emitted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from windrow.core.query.query import Query
from windrow.core.windows.fixed import Session
from windrow.core.windows.ordered import JOINED, NODE, Counting, DataDrivenWindow, Latest, OrderedWindow, Scoped
from windrow.testing import scopes
from windrow.testing.answers import canonical, monoid_of
from windrow.testing.definitions import latest, sessions, window_ranges, windows_at

Row = Mapping[str, Any]
Point = int | float  # a time; a watermark is minus infinity before the first event, and infinity after finish()


@dataclass(eq=False)
class Event:
    """One row as one query sees it."""

    row: Row
    time: int
    order: tuple[Any, ...]  # (time, order_by columns with nulls first, arrival)
    key: tuple[Any, ...]
    cut: Point  # windows that end here or earlier were closed for good when it came
    left_out: bool = False  # of its session, which was closed for good, or of everything: the order was final


class Content(NamedTuple):
    """A window and the events in it."""

    identity: tuple[Any, ...]
    key: tuple[Any, ...]
    start: int
    end: int
    closes: Point  # the smallest watermark at which it is closed
    events: tuple[Event, ...]
    is_open: bool = False  # it is not whole, and emitted only at the end, with `partial`
    position: int | None = None  # of its first event, where events are counted
    nth: int = 0  # of the windows of its key that start at the same time, where the events decide

    def is_closed(self, watermark: Point, partial: bool) -> bool:
        return self.closes <= watermark and (partial or not self.is_open)


class Emission(NamedTuple):
    """What was last emitted of a window."""

    revision: int
    content: Content
    retracted: bool = False


@dataclass
class Standing:
    """A query at work: since when, until when, what it saw and what it emitted."""

    query: Query
    time_column: str
    since: Point = -math.inf
    until: Point = math.inf  # removed: windows that hold no event before this are no longer emitted
    events: list[Event] = field(default_factory=list)  # that it sees and that satisfy its where
    kept: list[tuple[tuple[Any, ...], int]] = field(default_factory=list)  # distinct_on: values and times
    emitted: dict[tuple[Any, ...], Emission] = field(default_factory=dict)
    joined: set[tuple[Any, ...]] = field(default_factory=set)  # the windows of nodes that were emitted

    def sees(self, row: Row, time: int, lateness: int | None) -> bool:
        """Whether an event is there at all for this query: not before `since`, and no repeat."""
        if time < self.since:
            return False
        if not self.query.distinct_on:
            return True
        values = tuple(canonical(row[column]) for column in self.query.distinct_on)
        reach = math.inf if lateness is None else lateness
        if any(values == others and abs(time - other) <= reach for others, other in self.kept):
            return False
        self.kept.append((values, time))
        return True

    def bounds(self, time: int) -> list[tuple[int, int]]:
        """The fixed windows of a time that this query may ever emit."""
        found = windows_at(self.query.window, time)
        return [(start, end) for start, end in found if self.since <= start < self.until]

    def leave_out(self, batch: list[Event], final_before: Point) -> list[Event]:
        """Those of the new events that come too late for one of their windows."""
        if needs_order(self.query):  # the order of events is final up to there
            for event in batch:
                event.left_out = event.time < final_before
        elif isinstance(self.query.window, Session):
            self._leave_out_of_sessions(batch, final_before, self.query.window.gap)
        else:
            return [event for event in batch if any(end <= final_before for _, end in self.bounds(event.time))]
        return [event for event in batch if event.left_out]

    def _leave_out_of_sessions(self, batch: list[Event], final_before: Point, gap: int) -> None:
        there = self._grouped(attrgetter("key"))
        for key in {event.key for event in batch}:
            coming = [event for event in batch if event.key == key]
            runs = _runs(there.get(key, ()), gap)
            live = [event for run in runs if run[-1].time + gap >= final_before for event in run]
            ended = max((run[-1].time for run in runs if run[-1].time + gap < final_before), default=-math.inf)
            for event in coming:
                touches = event.time <= ended + gap
                too_old = not live and event.time < final_before - 2 * gap  # memory ends somewhere
                event.left_out = event.time < final_before and (touches or too_old)
            for run in _runs(live + [event for event in coming if not event.left_out], gap):
                if run[-1].time + gap < final_before:
                    for event in run:
                        event.left_out = True

    def _grouped(self, group_of: Callable[[Event], Any], before: Point = math.inf) -> dict[Any, list[Event]]:
        """The events that count, each group's in their order."""
        found: dict[Any, list[Event]] = {}
        for event in sorted(self.events, key=lambda event: event.order):
            if not event.left_out and event.time < before:
                found.setdefault(group_of(event), []).append(event)
        return found

    def contents(self) -> list[Content]:
        """All windows that hold an event, from all events."""
        window = self.query.window
        found: list[Content] = []
        for key, events in self._grouped(attrgetter("key")).items():
            if isinstance(window, Session):
                found += self._sessions(key, events, window.gap)
            elif isinstance(window, Latest):
                found += self._latest(key, events, window)
            elif isinstance(window, OrderedWindow):
                found += self._event_ranges(key, events, window)
            else:
                found += self._fixed(key, events)
        return [one for one in found if one.events[0].time < self.until]

    def _fixed(self, key: tuple[Any, ...], events: list[Event]) -> Iterator[Content]:
        holds: dict[tuple[int, int], list[Event]] = {}
        for event in events:
            for start, end in self.bounds(event.time):
                if end > event.cut:
                    holds.setdefault((start, end), []).append(event)
        for (start, end), several in holds.items():
            yield Content((key, start, end), key, start, end, end, tuple(several))

    def _sessions(self, key: tuple[Any, ...], events: list[Event], gap: int) -> Iterator[Content]:
        for run in _runs(events, gap):
            start, last = run[0].time, run[-1].time
            yield Content((key, start), key, start, last + gap, last + gap + 1, tuple(run))

    def _latest(self, key: tuple[Any, ...], events: list[Event], window: Latest) -> Iterator[Content]:
        for end, places in latest([event.time for event in events], window):
            several = tuple(events[at] for at in places)
            yield Content((key, end), key, several[0].time, end, end, several)

    def _event_ranges(self, key: tuple[Any, ...], events: list[Event], window: OrderedWindow) -> Iterator[Content]:
        starts: Counter[int] = Counter()
        ends_with_stream = isinstance(window, DataDrivenWindow) and window.closes_at_end
        for places, completed_by in window_ranges(window, [event.row for event in events]):
            several = tuple(events[at] for at in places)
            start, end = several[0].time, several[-1].time
            closes = math.inf if completed_by is None else events[completed_by].time + 1  # then that event is final
            is_open = completed_by is None and not ends_with_stream
            position = places.start if isinstance(window, Counting) else None
            identity = (key, start, starts[start]) if position is None else (key, position)
            yield Content(identity, key, start, end, closes, several, is_open, position, starts[start])
            starts[start] += 1

    def changes(self, watermark: Point, partial: bool) -> Iterator[Emission]:
        """What to emit now: retractions of windows that exist no longer, and closed windows that have changed."""
        window = self.query.window
        if isinstance(window, Scoped) and window.scope in JOINED:
            yield from self._joined(window, watermark, partial)
            return
        there = {content.identity: content for content in self.contents()}
        for identity, before in list(self.emitted.items()):
            if identity not in there and not before.retracted:
                self.emitted[identity] = Emission(before.revision + 1, before.content, retracted=True)
                yield self.emitted[identity]
        for identity, content in there.items():
            last = self.emitted.get(identity)
            if not content.is_closed(watermark, partial):
                continue
            if last and not last.retracted and last.content.events == content.events:
                continue
            self.emitted[identity] = Emission(last.revision + 1 if last else 0, content)
            yield self.emitted[identity]

    def _joined(self, window: Scoped, watermark: Point, partial: bool) -> Iterator[Emission]:
        """Windows of several nodes that are one, and final."""
        final = self._grouped(lambda event: (event.key, canonical(event.row[NODE])), before=watermark)
        nodes = {node for _, node in final}
        every = [
            scopes.Part(key, node, number, content.events, content.is_closed(watermark, partial))
            for (key, node), events in final.items()
            for number, content in enumerate(self._event_ranges(key, events, window))
        ]
        fresh = [part for part in every if part.is_whole and (part.key, part.node, part.number) not in self.joined]
        for several in scopes.joined(window.scope, fresh):
            if not scopes.is_final(window.scope, several, every, nodes, watermark):
                continue
            self.joined |= {(part.key, part.node, part.number) for part in several}
            of_all = tuple(sorted((one for part in several for one in part.events), key=lambda event: event.order))
            start, end = scopes.bounds(several)
            position = scopes.position(window, several)
            if start < self.until:
                yield Emission(0, Content((), several[0].key, start, end, end, of_all, position=position))


def _runs(events: Iterable[Event], gap: int) -> list[list[Event]]:
    """The sessions of events of one key."""
    ordered = sorted(events, key=lambda event: event.order)
    return [[ordered[at] for at in places] for places in sessions([event.time for event in ordered], gap)]


def needs_order(query: Query) -> bool:
    """Whether a query is answered from events in their final order only, so that it can take none in after that."""
    aggregates = [part for whole in query.computed for part in (whole, *whole.parts)]
    monoids = [monoid for monoid in map(monoid_of, aggregates) if monoid is not None]
    return isinstance(query.window, OrderedWindow) or not all(monoid.commutative for monoid in monoids)
