"""The oracle: every window computed again from all events, at every step, straight from the definitions.

It is what every runtime is judged by, so it is written to be read and not to be fast. It keeps all events for ever,
shares nothing between queries, knows no slices, and has its own arithmetic (`answers`: fractions, where a double
could err). A step is

    push(rows) ──▶ which events does each query see, and of which windows are the late ones left out
               ──▶ move the watermark ──▶ form all windows anew
               ──▶ emit the closed ones that differ from their last emission

Rows go in and come out as dicts. Times are integers, or datetimes that count as microseconds UTC. A result row
carries its events (`Result.events`), from which `compare` works out how exact a runtime's answer must be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, NamedTuple

from windrow.aggregates import Aggregate
from windrow.query import Query
from windrow.testing.answers import answer, canonical, fits, rank
from windrow.testing.expressions import evaluate
from windrow.windows import (
    INT64_MIN,
    ContextFreeWindow,
    Cumulating,
    Duration,
    Session,
    Sliding,
    Tumbling,
    Window,
    duration,
)

Row = Mapping[str, Any]
Point = int | float  # a time; a watermark is minus infinity before the first event, and infinity after finish()

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Result(dict[str, Any]):
    """A result row, with the rows of its events in their order."""

    events: tuple[Row, ...] = ()


@dataclass(eq=False)
class _Event:
    """One row as one query sees it."""

    row: Row
    time: int
    order: tuple[Any, ...]  # (time, order_by columns with nulls first, arrival)
    key: tuple[Any, ...]
    cut: Point  # windows that end here or earlier were closed for good when it came
    left_out: bool = False  # of its session, which was closed for good


class _Content(NamedTuple):
    """A window and the events in it."""

    identity: tuple[Any, ...]
    key: tuple[Any, ...]
    start: int
    end: int
    closes: int  # the smallest watermark at which it is closed
    events: tuple[_Event, ...]


class _Emission(NamedTuple):
    """What was last said about a window."""

    revision: int
    content: _Content
    retracted: bool = False


def windows_at(window: Window, t: int) -> Iterator[tuple[int, int]]:
    """The bounds of all fixed windows that hold the time t."""
    if isinstance(window, Tumbling):
        start = window.offset + (t - window.offset) // window.length * window.length
        yield start, start + window.length
    elif isinstance(window, Sliding):
        start = window.offset + (t - window.offset) // window.slide * window.slide  # the last one to start by t
        while start + window.length > t:
            yield start, start + window.length
            start -= window.slide
    elif isinstance(window, Cumulating):
        start = window.offset + (t - window.offset) // window.length * window.length
        for end in range(start + window.step, start + window.length + 1, window.step):
            if t < end:
                yield start, end
    elif isinstance(window, ContextFreeWindow):
        for start, end in zip(*window.windows(t, t + 1), strict=True):
            yield int(start), int(end)
    else:
        raise TypeError(f"{window} has no fixed bounds")


def sessions(events: Iterable[_Event], gap: int) -> list[list[_Event]]:
    """Maximal runs of events of one key whose consecutive times differ by at most the gap."""
    runs: list[list[_Event]] = []
    for event in sorted(events, key=lambda event: event.order):
        if runs and event.time - runs[-1][-1].time <= gap:
            runs[-1].append(event)
        else:
            runs.append([event])
    return runs


@dataclass
class _Standing:
    """A query at work: since when, until when, what it saw and what it said."""

    query: Query
    measure: str
    since: Point = -math.inf
    until: Point = math.inf  # removed: windows that hold no event before this are no longer emitted
    events: list[_Event] = field(default_factory=list)  # that it sees and that satisfy its where
    kept: list[tuple[tuple[Any, ...], int]] = field(default_factory=list)  # distinct_on: values and times
    emitted: dict[tuple[Any, ...], _Emission] = field(default_factory=dict)

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

    def leave_out(self, batch: list[_Event], frozen: Point) -> list[_Event]:
        """Those of the new events that come too late for one of their windows."""
        window = self.query.window
        if not isinstance(window, Session):
            return [event for event in batch if any(end <= frozen for _, end in self.bounds(event.time))]
        for key in {event.key for event in batch}:
            there = [event for event in self.events if event.key == key and not event.left_out]
            coming = [event for event in batch if event.key == key]
            runs = sessions(there, window.gap)
            live = [event for run in runs if run[-1].time + window.gap >= frozen for event in run]
            ended = max((run[-1].time for run in runs if run[-1].time + window.gap < frozen), default=-math.inf)
            for event in coming:
                touches = event.time <= ended + window.gap
                too_old = not live and event.time < frozen - 2 * window.gap  # memory ends somewhere
                event.left_out = event.time < frozen and (touches or too_old)
            for run in sessions(live + [event for event in coming if not event.left_out], window.gap):
                if run[-1].time + window.gap < frozen:
                    for event in run:
                        event.left_out = True
        return [event for event in batch if event.left_out]

    def contents(self) -> list[_Content]:
        """All windows that hold an event, from all events."""
        found = list(self._sessions() if isinstance(self.query.window, Session) else self._fixed())
        return [one for one in found if one.events[0].time < self.until]

    def _fixed(self) -> Iterator[_Content]:
        holds: dict[tuple[Any, ...], list[_Event]] = {}
        for event in self.events:
            for start, end in self.bounds(event.time):
                if end > event.cut:
                    holds.setdefault((event.key, start, end), []).append(event)
        for (key, start, end), events in holds.items():
            ordered = tuple(sorted(events, key=lambda event: event.order))
            yield _Content((key, start, end), key, start, end, end, ordered)

    def _sessions(self) -> Iterator[_Content]:
        assert isinstance(self.query.window, Session)
        gap = self.query.window.gap
        for key in {event.key for event in self.events}:
            for run in sessions((e for e in self.events if e.key == key and not e.left_out), gap):
                start, last = run[0].time, run[-1].time
                yield _Content((key, start), key, start, last + gap, last + gap + 1, tuple(run))

    def changes(self, watermark: Point) -> Iterator[_Emission]:
        """What is to be said now: which windows exist no longer, which closed ones differ from what was said."""
        there = {content.identity: content for content in self.contents()}
        for identity, said in list(self.emitted.items()):
            if identity not in there and not said.retracted:
                self.emitted[identity] = _Emission(said.revision + 1, said.content, retracted=True)
                yield self.emitted[identity]
        for identity, content in there.items():
            said_before = self.emitted.get(identity)
            if content.closes > watermark or (said_before and said_before.content.events == content.events):
                continue
            self.emitted[identity] = _Emission(said_before.revision + 1 if said_before else 0, content)
            yield self.emitted[identity]


class Oracle:
    """The engine's interface on rows; see the module's head.

    lateness: how far behind the greatest time the watermark stays, one for all measures or {measure: …};
              None: only `advance` moves it
    updates:  how long windows stay open to late events after they were emitted; None: not at all
    """

    def __init__(
        self,
        queries: Iterable[Query] = (),
        *,
        time: str = "t",
        lateness: Duration | Mapping[str, Duration | None] | None = 0,
        updates: Duration | None = None,
        order_by: str | Sequence[str] = (),
        bad_events: str = "raise",
    ) -> None:
        self.time, self.bad_events = time, bad_events
        self.order_by = (order_by,) if isinstance(order_by, str) else tuple(order_by)
        self.late = self.dropped = self.bad = self.overflows = 0
        self.late_rows: list[Row] = []
        self._lateness = lateness
        self._updates = None if updates is None else duration(updates, "updates").units
        self._standing: dict[str, _Standing] = {}
        self._watermarks: dict[str, Point] = {}
        self._greatest: dict[str, int] = {}
        self._zones: dict[str, tzinfo | None] = {}  # of measures whose times are datetimes
        self._arrived = 0
        self._refuse_overflow = False
        for query in queries:
            self._stand(query, -math.inf)

    # --- steps

    def push(self, rows: Iterable[Row]) -> list[Result]:
        """Take a batch in, move the watermark, emit."""
        self._take(list(rows))
        for measure in self._measures():
            lateness = self._lateness_of(measure)
            if lateness is not None and measure in self._greatest:
                self._raise_watermark(measure, self._greatest[measure] - lateness)
        return self._emit()

    def advance(self, watermark: int | datetime, time: str | None = None) -> list[Result]:
        """No event before the watermark is to be waited for any longer."""
        measure = time or self.time
        self._raise_watermark(measure, self._units(watermark, measure))
        return self._emit()

    def finish(self) -> list[Result]:
        """Nothing comes any more: emit whatever holds an event and was not emitted."""
        for measure in self._measures():
            self._raise_watermark(measure, math.inf)
        return self._emit()

    def add(self, query: Query, since: int | datetime | None = None) -> int:
        """From now on answer this query too; returns the first time that it sees."""
        measure = query.time or self.time
        asked = -math.inf if since is None else self._units(since, measure)
        start = max(asked, self._greatest[measure] + 1) if measure in self._greatest else asked
        self._stand(query, start)
        return INT64_MIN if start == -math.inf else int(start)

    def remove(self, name: str, when: str = "now") -> None:
        """Answer it no longer: at once, or once the windows that hold an event until now are closed."""
        if when not in ("now", "windows_closed"):
            raise ValueError(f'when is "now" or "windows_closed", not {when!r}')
        standing = self._standing[name]
        seen = self._greatest.get(standing.measure)
        if when == "now" or seen is None:
            del self._standing[name]
        else:
            standing.until = min(standing.until, seen + 1)

    # --- events

    def _take(self, rows: list[Row]) -> None:
        timed = self._timed(rows)
        before = {measure: self._watermarks.get(measure, -math.inf) for measure in self._measures()}
        batches: list[tuple[_Standing, list[_Event]]] = []
        for standing in self._standing.values():
            measure, query = standing.measure, standing.query
            lateness, frozen = self._lateness_of(measure), before[measure] - (self._updates or 0)
            if lateness is not None:  # only what is still within reach is remembered
                standing.kept = [one for one in standing.kept if one[1] + lateness >= frozen]
            batch = []
            for arrival, (row, times) in enumerate(timed, self._arrived):
                if standing.sees(row, times[measure], lateness) and _holds(query, row):
                    order = (times[measure], *(rank(row[column]) for column in self.order_by), arrival)
                    key = tuple(canonical(row[column]) for column in query.by)
                    batch.append(_Event(row, times[measure], order, key, frozen))
            batches.append((standing, batch))
        dropped = set()
        for standing, batch in batches:
            frozen = before[standing.measure] - (self._updates or 0)
            dropped |= {event.order[-1] for event in standing.leave_out(batch, frozen)}
            standing.events += batch
        for row, times in timed:
            self.late += any(times[measure] < before[measure] for measure in times)
            for measure, t in times.items():
                self._greatest[measure] = max(t, self._greatest.get(measure, t))
            if self._arrived in dropped:
                self.dropped += 1
                self.late_rows.append(row)
            self._arrived += 1

    def _timed(self, rows: list[Row]) -> list[tuple[Row, dict[str, int]]]:
        """The rows with their times on every measure that a query asks for; those that lack one are bad."""
        timed: list[tuple[Row, dict[str, int]]] = []
        bad = 0
        for row in rows:
            if missing := [measure for measure in self._measures() if row[measure] is None]:
                bad += 1
                if self.bad_events == "raise":
                    count = sum(row[missing[0]] is None for row in rows)
                    raise ValueError(f"column {missing[0]!r}: {count} of {len(rows)} events have a null time")
                continue
            times = {measure: self._units(row[measure], measure) for measure in self._measures()}
            for standing in self._standing.values():
                self._check_bounds(standing, times[standing.measure])
            timed.append((row, times))
        self.bad += bad
        return timed

    def _check_bounds(self, standing: _Standing, t: int) -> None:
        window = standing.query.window
        edges = [(t, t + window.gap)] if isinstance(window, Session) else windows_at(window, t)
        if any(not fits(bound) for edge in edges for bound in edge):
            raise ValueError(
                f"query {standing.query.name!r}: column {standing.measure!r}: the time {t} has a window beyond int64"
            )

    # --- emission

    def _emit(self) -> list[Result]:
        """The rows of this step, by (end, query, key with nulls first, start)."""
        said: list[tuple[tuple[Any, ...], Result]] = []
        for name, standing in self._standing.items():
            for emission in standing.changes(self._watermarks.get(standing.measure, -math.inf)):
                _, key, start, end, _, _ = emission.content
                order = (end, name, tuple(rank(value) for value in key), start)
                said.append((order, self._result(standing, emission)))
        return [result for _, result in sorted(said, key=lambda one: one[0])]

    def _result(self, standing: _Standing, emission: _Emission) -> Result:
        query, content = standing.query, emission.content
        result = Result(query=query.name)
        result.update(zip(query.by, content.key, strict=True))
        result["window_start"] = self._time(content.start, standing.measure)
        result["window_end"] = self._time(content.end, standing.measure)
        result["revision"] = emission.revision
        if self._updates is not None:
            result["retracted"] = emission.retracted
        result.events = () if emission.retracted else tuple(event.row for event in content.events)
        for asked in query.aggregates:
            result[asked.name] = None if emission.retracted else self._value(asked, result.events)
        return result

    def _value(self, asked: Aggregate, rows: Sequence[Row]) -> Any:
        """An aggregate's value; a formula over an integer that does not fit is such an integer itself."""
        for part in asked.parts:
            whole = answer(part, rows)
            if isinstance(whole, int) and not fits(whole):
                return self._fitting(whole)
        return self._fitting(answer(asked, rows))

    def _fitting(self, value: Any) -> Any:
        """Integers leave as int64: one that does not fit is an error in a whole table, and null in a stream."""
        if not isinstance(value, int) or fits(value):
            return value
        if self._refuse_overflow:
            raise OverflowError(f"the sum {value} does not fit into 64 bits")
        self.overflows += 1
        return None

    # --- measures

    def _stand(self, query: Query, since: Point) -> None:
        if query.name in self._standing:
            raise ValueError(f"there is already a query {query.name!r}")
        self._standing[query.name] = _Standing(query, query.time or self.time, since)

    def _measures(self) -> list[str]:
        """The measures that the queries ask for."""
        return list(dict.fromkeys(standing.measure for standing in self._standing.values())) or [self.time]

    def _lateness_of(self, measure: str) -> int | None:
        asked = self._lateness.get(measure, 0) if isinstance(self._lateness, Mapping) else self._lateness
        return None if asked is None else duration(asked, "lateness").units

    def _raise_watermark(self, measure: str, to: Point) -> None:
        self._watermarks[measure] = max(to, self._watermarks.get(measure, -math.inf))

    def _units(self, value: Any, measure: str) -> int:
        """A time as an integer."""
        if isinstance(value, datetime):
            self._zones.setdefault(measure, value.tzinfo)
            return microseconds(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise TypeError(f"column {measure!r}: a time is an integer or a datetime, not {value!r}")

    def _time(self, units: int, measure: str) -> int | datetime:
        """The inverse of `_units`."""
        if measure not in self._zones:
            return units
        moment, zone = _EPOCH + timedelta(microseconds=units), self._zones[measure]
        return moment.replace(tzinfo=None) if zone is None else moment.astimezone(zone)


def microseconds(moment: datetime) -> int:
    """Since 1970 in UTC, which is also what a datetime without a zone is read as."""
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def _holds(query: Query, row: Row) -> bool:
    return query.where is None or evaluate(query.where, row) is True


def recompute(
    rows: Iterable[Row],
    queries: Iterable[Query],
    *,
    time: str = "t",
    lateness: Duration | Mapping[str, Duration | None] | None = 0,
    updates: Duration | None = None,
    order_by: str | Sequence[str] = (),
    bad_events: str = "raise",
) -> list[Result]:
    """The results of a whole table, which has no late events; the lateness only says how far apart repeats may be."""
    oracle = Oracle(queries, time=time, lateness=lateness, updates=updates, order_by=order_by, bad_events=bad_events)
    oracle._refuse_overflow = True
    oracle._take(list(rows))
    return oracle.finish()
