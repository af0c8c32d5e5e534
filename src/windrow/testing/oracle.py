"""The oracle: every window computed again from all events, at every step, straight from the definitions.

It is what every runtime is judged by, so it is written to be read and not to be fast. It keeps all events for ever,
shares nothing between queries, knows no slices, and has its own arithmetic (`answers`: fractions, where a double
could err). Which windows there are stands in `definitions`, what one query saw and emitted in `standing`. A step is

    push(rows) ──▶ which events does each query see, and of which windows are the late ones left out
               ──▶ move the watermark ──▶ form all windows anew
               ──▶ emit the closed ones that differ from their last emission

Rows go in and come out as dicts. Times are integers, or datetimes that count as microseconds UTC. A result row
carries its events (`Result.events`), from which `compare` works out how exact a runtime's answer must be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from windrow.core.aggregates.functions import Aggregate
from windrow.core.query.query import Query
from windrow.core.windows.fixed import INT64_MIN, Duration, Session, duration
from windrow.core.windows.ordered import Latest, OrderedWindow
from windrow.testing.answers import answer, canonical, fits, rank
from windrow.testing.definitions import boundary, windows_at
from windrow.testing.expressions import evaluate
from windrow.testing.standing import Emission, Event, Point, Row, Standing

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Result(dict[str, Any]):
    """A result row, with the rows of its events in their order."""

    events: tuple[Row, ...] = ()


class Oracle:
    """The engine's interface on rows; see the module's head.

    lateness: how far behind the greatest time the watermark stays, one for all time columns or {time column: …};
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
        self._standing: dict[str, Standing] = {}
        self._watermarks: dict[str, Point] = {}
        self._greatest: dict[str, int] = {}
        self._zones: dict[str, tzinfo | None] = {}  # of time columns whose times are datetimes
        self._arrived = 0
        self._refuse_overflow = False
        for query in queries:
            self._stand(query, -math.inf)

    # --- steps

    def push(self, rows: Iterable[Row]) -> list[Result]:
        """Take a batch in, move the watermark, emit."""
        self._take(list(rows))
        for time_column in self._time_columns():
            lateness = self._lateness_of(time_column)
            if lateness is not None and time_column in self._greatest:
                self._raise_watermark(time_column, self._greatest[time_column] - lateness)
        return self._emit()

    def advance(self, watermark: int | datetime, time: str | None = None) -> list[Result]:
        """No event before the watermark is to be waited for any longer."""
        time_column = time or self.time
        self._raise_watermark(time_column, self._units(watermark, time_column))
        return self._emit()

    def finish(self, partial: bool = False) -> list[Result]:
        """Nothing comes any more: emit whatever holds an event and was not emitted.

        partial: also counting and punctuated windows that are not whole
        """
        for time_column in self._time_columns():
            self._raise_watermark(time_column, math.inf)
        return self._emit(partial)

    def add(self, query: Query, since: int | datetime | None = None) -> int:
        """From now on answer this query too; returns the first time that it sees."""
        time_column = query.time or self.time
        start = -math.inf if since is None else self._units(since, time_column)
        if time_column in self._greatest:
            start = max(start, self._greatest[time_column] + 1)
        self._stand(query, start)
        return INT64_MIN if start == -math.inf else int(start)

    def remove(self, name: str, when: str = "now") -> None:
        """Answer it no longer: at once, or once the windows that hold an event until now are closed."""
        if when not in ("now", "windows_closed"):
            raise ValueError(f'when is "now" or "windows_closed", not {when!r}')
        standing = self._standing[name]
        seen = self._greatest.get(standing.time_column)
        if when == "now" or seen is None:
            del self._standing[name]
        else:
            standing.until = min(standing.until, seen + 1)

    # --- events

    def _take(self, rows: list[Row]) -> None:
        timed = self._timed(rows)
        before = {time_column: self._watermarks.get(time_column, -math.inf) for time_column in self._time_columns()}
        batches: list[tuple[Standing, list[Event]]] = []
        for standing in self._standing.values():
            time_column, query = standing.time_column, standing.query
            lateness, final_before = self._lateness_of(time_column), before[time_column] - (self._updates or 0)
            if lateness is not None:  # only what is still within reach is remembered
                standing.kept = [one for one in standing.kept if one[1] + lateness >= final_before]
            batch = []
            for arrival, (row, times) in enumerate(timed, self._arrived):
                if standing.sees(row, times[time_column], lateness) and _holds(query, row):
                    order = (times[time_column], *(rank(row[column]) for column in self.order_by), arrival)
                    key = tuple(canonical(row[column]) for column in query.by)
                    batch.append(Event(row, times[time_column], order, key, final_before))
            batches.append((standing, batch))
        dropped = set()
        for standing, batch in batches:
            final_before = before[standing.time_column] - (self._updates or 0)
            dropped |= {event.order[-1] for event in standing.leave_out(batch, final_before)}
            standing.events += batch
        for row, times in timed:
            self.late += any(times[time_column] < before[time_column] for time_column in times)
            for time_column, t in times.items():
                self._greatest[time_column] = max(t, self._greatest.get(time_column, t))
            if self._arrived in dropped:
                self.dropped += 1
                self.late_rows.append(row)
            self._arrived += 1

    def _timed(self, rows: list[Row]) -> list[tuple[Row, dict[str, int]]]:
        """The rows with their times on every time column of a query; those that lack one are bad."""
        timed: list[tuple[Row, dict[str, int]]] = []
        bad = 0
        for row in rows:
            if missing := [time_column for time_column in self._time_columns() if row[time_column] is None]:
                bad += 1
                if self.bad_events == "raise":
                    count = sum(row[missing[0]] is None for row in rows)
                    raise ValueError(f"column {missing[0]!r}: {count} of {len(rows)} events have a null time")
                continue
            times = {time_column: self._units(row[time_column], time_column) for time_column in self._time_columns()}
            for standing in self._standing.values():
                self._check_bounds(standing, times[standing.time_column])
            timed.append((row, times))
        self.bad += bad
        return timed

    def _check_bounds(self, standing: Standing, t: int) -> None:
        window = standing.query.window
        edges: Iterable[tuple[int, int]] = [(t, t)]
        if isinstance(window, Session):
            edges = [(t, t + window.gap)]
        elif isinstance(window, Latest):
            edges = [(t, boundary(window, t))]
        elif not isinstance(window, OrderedWindow):
            edges = windows_at(window, t)
        if any(not fits(bound) for edge in edges for bound in edge):
            raise ValueError(
                f"query {standing.query.name!r}: column {standing.time_column!r}: "
                f"the time {t} has a window beyond int64"
            )

    # --- emission

    def _emit(self, partial: bool = False) -> list[Result]:
        """The rows of this step, by (end, query, key with nulls first, start, position), retractions first."""
        rows: list[tuple[tuple[Any, ...], Result]] = []
        for name, standing in self._standing.items():
            for change in standing.changes(self._watermarks.get(standing.time_column, -math.inf), partial):
                emission = self._having(standing.query, change)
                if emission is None:
                    continue
                window = emission.content
                key = tuple(rank(value) for value in window.key)
                order = (window.end, name, key, window.start, window.position or 0, not emission.retracted, window.nth)
                rows.append((order, self._result(standing, emission)))
        return [result for _, result in sorted(rows, key=lambda row: row[0])]

    def _result(self, standing: Standing, emission: Emission) -> Result:
        query, content = standing.query, emission.content
        result = Result(query=query.name)
        result.update(zip(query.by, content.key, strict=True))
        result["window_start"] = self._time(content.start, standing.time_column)
        result["window_end"] = self._time(content.end, standing.time_column)
        if content.position is not None:
            result["position"] = content.position
        result.update({name: result[column] for name, column in query.names})
        result["revision"] = emission.revision
        if self._updates is not None:
            result["retracted"] = emission.retracted
        result.events = () if emission.retracted else tuple(event.row for event in content.events)
        for aggregate in query.aggregates:
            result[aggregate.name] = None if emission.retracted else self._value(aggregate, result.events)
        return result

    def _having(self, query: Query, emission: Emission) -> Emission | None:
        """A window that does not satisfy HAVING is not emitted, or, where it replaces another, taken back."""
        if query.having is None or emission.retracted:
            return emission
        if self._value(query.having, [event.row for event in emission.content.events]) is True:
            return emission
        return emission._replace(retracted=True) if emission.revision else None

    def _value(self, aggregate: Aggregate, rows: Sequence[Row]) -> Any:
        """An aggregate's value; a formula over an integer that does not fit is such an integer itself."""
        for part in aggregate.parts:
            whole = answer(part, rows)
            if isinstance(whole, int) and not fits(whole):
                return self._fitting(whole)
        return self._fitting(answer(aggregate, rows))

    def _fitting(self, value: Any) -> Any:
        """Integers leave as int64: one that does not fit is an error in a whole table, and null in a stream."""
        if not isinstance(value, int) or fits(value):
            return value
        if self._refuse_overflow:
            raise OverflowError(f"the sum {value} does not fit into 64 bits")
        self.overflows += 1
        return None

    # --- time columns

    def _stand(self, query: Query, since: Point) -> None:
        if query.name in self._standing:
            raise ValueError(f"there is already a query {query.name!r}")
        self._standing[query.name] = Standing(query, query.time or self.time, since)

    def _time_columns(self) -> list[str]:
        """The time columns that the queries ask for."""
        return list(dict.fromkeys(standing.time_column for standing in self._standing.values())) or [self.time]

    def _lateness_of(self, time_column: str) -> int | None:
        lateness = self._lateness.get(time_column, 0) if isinstance(self._lateness, Mapping) else self._lateness
        return None if lateness is None else duration(lateness, "lateness").units

    def _raise_watermark(self, time_column: str, to: Point) -> None:
        self._watermarks[time_column] = max(to, self._watermarks.get(time_column, -math.inf))

    def _units(self, value: Any, time_column: str) -> int:
        """A time as an integer."""
        if isinstance(value, datetime):
            self._zones.setdefault(time_column, value.tzinfo)
            return microseconds(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise TypeError(f"column {time_column!r}: a time is an integer or a datetime, not {value!r}")

    def _time(self, units: int, time_column: str) -> int | datetime:
        """The inverse of `_units`."""
        if time_column not in self._zones:
            return units
        moment, zone = _EPOCH + timedelta(microseconds=units), self._zones[time_column]
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
    partial: bool = False,
) -> list[Result]:
    """The results of a whole table, which has no late events; the lateness only says how far apart repeats may be."""
    oracle = Oracle(queries, time=time, lateness=lateness, updates=updates, order_by=order_by, bad_events=bad_events)
    oracle._refuse_overflow = True
    oracle._take(list(rows))
    return oracle.finish(partial)
