"""The engine: many window queries over a live stream, in one process.

    push(batch) ──▶ slices of every group ──▶ the watermark moves ──▶ results
    advance(watermark), finish()              ──────────────────────▶ results

A batch either is taken whole or changes nothing: columns, types and times are checked before any state is touched, and
whatever fails later, such as an aggregate of the user's own, leaves the engine as it was. The watermark of each time
column is the greatest time seen minus the lateness, or what `advance` says; it never moves back.
"""

from __future__ import annotations

import time as clocks
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np
import polars as pl

from windrow import snapshot
from windrow.core.arrays.dataframes import flag_sorted, to_polars
from windrow.core.assemble.emitted import Emitted
from windrow.core.assemble.group_state import Change, GroupState
from windrow.core.plan.groups import Entry, Rates
from windrow.core.plan.plan import Plan, plan
from windrow.core.plan.watermark import Lengths, TimeColumn, time_columns_of
from windrow.core.query.query import Query, QueryError, time_of
from windrow.core.slices.binding import ARRIVAL, Binding, InputError, no_time
from windrow.core.stream.compiled import Bound, bind
from windrow.core.stream.ingest import Kept, measured, repeats_of, take, time_range
from windrow.core.windows.fixed import EPOCH, FURTHEST, INT64_MAX, INT64_MIN, since_1970


@dataclass(frozen=True)
class Metrics:
    """Counts since the engine was made, and what it holds now.

    events:       taken in
    late:         behind the watermark when they came
    dropped:      left out of at least one window
    bad:          without a time, left out with bad_events="drop"
    repeats:      dropped by distinct_on, once for each set of columns
    results:      rows emitted
    overflows:    integer sums that did not fit into int64, emitted as null
    slices:       live now
    held_events:  not in slices yet: their order is not final, or `latest` may still need them
    state_bytes:  in memory
    watermarks:   of each time column; None before its first event
    """

    events: int = 0
    late: int = 0
    dropped: int = 0
    bad: int = 0
    repeats: int = 0
    results: int = 0
    overflows: int = 0
    slices: int = 0
    held_events: int = 0
    state_bytes: int = 0
    watermarks: Mapping[str, int | datetime | None] = field(default_factory=dict)


P = ParamSpec("P")
R = TypeVar("R")


def _whole_or_not_at_all(method: Callable[Concatenate[Engine, P], R]) -> Callable[Concatenate[Engine, P], R]:
    """A method that leaves the engine as it was if it fails."""

    @wraps(method)
    def careful(engine: Engine, /, *args: P.args, **kwargs: P.kwargs) -> R:
        saved, states = engine._saved()
        try:
            return method(engine, *args, **kwargs)
        except BaseException:
            engine.__dict__ = saved
            for state, before in states:
                state.put_back(before)
            raise

    return careful


class Engine:
    """Answers queries over events that come in batches: `push` returns what each batch makes final.

    queries:     one or several, with names that differ; more can be added later
    time:        the column that windows are measured on, a timestamp or an integer; "arrival" for processing time;
                 can be left out where the queries name it
    lateness:    how far events may be out of order: a duration for timestamps, a plain integer for integers, 0 by
                 default; None if only `advance` moves the watermark
    updates:     how long emitted windows are kept to be emitted again when late events change them; by default not
                 (both: one length for the engine's own time column, or a mapping from time columns to lengths)
    order_by:    columns that order events of the same time, before their arrival does
    bad_events:  "raise" refuses a batch with an event without a time, "drop" counts and leaves out such events
    rates:       what is known of the stream, for the planner; measured on the first batch otherwise
    keep_late:   how many dropped events `late_events` keeps at most
    clock:       gives microseconds since 1970, for "arrival"
    """

    def __init__(
        self,
        queries: Query | Iterable[Query],
        time: str | None = None,
        *,
        lateness: Lengths = 0,
        updates: Lengths = None,
        order_by: str | Sequence[str] = (),
        bad_events: Literal["raise", "drop"] = "raise",
        rates: Rates | None = None,
        keep_late: int = 100_000,
        clock: Callable[[], int] = lambda: clocks.time_ns() // 1000,
    ) -> None:
        if bad_events not in ("raise", "drop"):
            raise ValueError(f"bad_events must be 'raise' or 'drop', not {bad_events!r}")
        asked = [queries] if isinstance(queries, Query) else list(queries)
        self._time = time = time_of(asked, time)
        self._order_by = (order_by,) if isinstance(order_by, str) else tuple(order_by)
        self._bad_events, self._rates, self._keep_late, self._clock = bad_events, rates, keep_late, clock
        self._lateness, self._updates = lateness, updates
        self._entries = [Entry(query) for query in asked]
        self._plan = plan(self._entries, time, rates)
        self._time_columns: dict[str, TimeColumn] = time_columns_of(self._plan.time_columns, time, lateness, updates)
        self._closing: list[Entry] = []  # those that are being removed
        self._overflowed: Counter[str] = Counter()
        self._bound: Bound | None = None
        self._kept: Kept = {}
        self._late: list[pl.DataFrame] = []
        self._counts = Metrics()
        self._arrived = 0
        self._finished = False

    # --- the stream ---------------------------------------------------------------------------------------------

    @_whole_or_not_at_all
    def push(self, batch: Any) -> pl.DataFrame:
        """Take a batch (Arrow, Polars or pandas) and return the results that it makes final.

        A batch that does not fit is refused whole with an `InputError`, and the engine is as it was before.
        """
        self._open()
        frame = flag_sorted(to_polars(batch), self._time_columns)
        bound, rates = (self._bound, self._rates) if self._bound else self._bind(frame)
        frame = bound.binding.checked(frame)
        missing = bound.binding.without_time(frame)
        if missing is not None:
            if self._bad_events == "raise":
                raise no_time(int(missing.sum()), frame.height, *bound.binding.time_columns)
            frame = frame.filter(~missing)
        events = bound.binding.prepare(frame, self._arrived, self._now)
        spans = {
            name: time_range(events, name, bound.plan.furthest.get(name), self._time_columns[name])
            for name in bound.binding.time_columns
        }
        if not frame.height:
            self._counts = replace(self._counts, bad=self._counts.bad + (0 if missing is None else int(missing.sum())))
            return self._nothing()
        taken = take(events, bound.states.values(), self._time_columns, self._kept, spans)

        self._bound, self._plan, self._rates = bound, bound.plan, rates  # from here on nothing is refused
        bound.columns |= {name: dtype for name, dtype in frame.schema.items() if name not in bound.columns}
        self._kept = self._kept | taken.kept
        dropped = taken.finish()
        if taken.dropped is not None and taken.dropped.any():
            self._set_aside(frame.filter(pl.Series(taken.dropped)))
        self._arrived += frame.height
        self._counts = replace(
            self._counts,
            events=self._counts.events + frame.height,
            late=self._counts.late + taken.late,
            dropped=self._counts.dropped + dropped,
            repeats=self._counts.repeats + taken.repeats,
            bad=self._counts.bad + (0 if missing is None else int(missing.sum())),
        )
        moves = {}
        for name, (_, newest) in spans.items():
            time_column = self._time_columns[name]
            time_column.seen = newest if time_column.seen is None else max(time_column.seen, newest)
            moves[name] = time_column.after(newest)
        return self._step(moves, taken.changes)

    @_whole_or_not_at_all
    def advance(self, watermark: int | datetime, time: str | None = None) -> pl.DataFrame:
        """Say that no more events older than this are expected, and return the results that this makes final.

        watermark:  a datetime (UTC where it has no zone), or microseconds or units of the time column as an integer
        time:       the time column; by default the engine's own
        """
        self._open()
        name = time or self._time
        if name not in self._time_columns:
            raise ValueError(f"there is no time column {name!r}; there are {', '.join(map(repr, self._time_columns))}")
        moment = self._moment(watermark, name)
        return self._step({name: max(self._time_columns[name].watermark, moment)}, {})

    @_whole_or_not_at_all
    def finish(self, partial: bool = False) -> pl.DataFrame:
        """The end of the stream: close everything that is open; with `partial`, also what has no end by itself.

        That is counting windows with fewer than n events, and punctuated windows whose end has not come.
        """
        self._open()
        self._finished = True
        return self._step(dict.fromkeys(self._time_columns, INT64_MAX), {}, partial)

    @_whole_or_not_at_all
    def add(self, query: Query, since: int | datetime | None = None) -> int | datetime | None:
        """Ask one more query from an event time on; returns that time, None for a query that sees everything.

        The default is just after the greatest time seen; an earlier `since` is moved there.
        """
        self._open()
        name = query.time or self._time
        time_column = self._time_columns.get(name)
        seen = INT64_MIN if time_column is None or time_column.seen is None else time_column.seen + 1
        begin = seen if since is None else max(seen, self._moment(since, name))
        self._change([*self._entries, Entry(query, begin)])
        return None if begin == INT64_MIN else self._shown(begin, name)

    @_whole_or_not_at_all
    def remove(self, name: str, when: Literal["now", "windows_closed"] = "now") -> None:
        """Stop a query; with `windows_closed`, windows that hold an event already seen are still emitted."""
        self._open()
        if when not in ("now", "windows_closed"):
            raise ValueError(f"when must be 'now' or 'windows_closed', not {when!r}")
        found = [entry for entry in self._entries if entry.query.name == name]
        if not found:
            raise QueryError(f"there is no query called {name!r}")
        rest = [entry for entry in self._entries if entry.query.name != name]
        seen = self._time_columns[found[0].query.time or self._time].seen
        if when == "windows_closed" and seen is not None:
            if found[0].closing:
                return
            rest.append(found[0]._replace(until=seen + 1, closing=True))
        self._change(rest)

    # --- what it says of itself ---------------------------------------------------------------------------------

    @property
    def queries(self) -> list[Query]:
        """The queries that are there now, with those that are being removed."""
        return [entry.query for entry in self._entries]

    @property
    def plan(self) -> Plan:
        """What the queries have become; rates of the first batch may have changed it."""
        return self._plan

    def explain(self) -> str:
        """The plan as text: groups, operators, edges, placement, and why."""
        return self._plan.explain()

    @property
    def watermark(self) -> int | datetime | None:
        """Of the engine's own time column, None before its first event; `metrics.watermarks` has all."""
        return self.metrics.watermarks[self._time]

    @property
    def metrics(self) -> Metrics:
        """What was counted, and what is held now."""
        states = list(self._bound.states.values()) if self._bound else []
        marks = {
            name: None if time_column.watermark == INT64_MIN else self._shown(time_column.watermark, name)
            for name, time_column in self._time_columns.items()
        }
        return replace(
            self._counts,
            slices=sum(len(state.rows) for state in states),
            held_events=sum(state.held_events for state in states),
            state_bytes=sum(state.size for state in states)
            + sum(int(table.estimated_size()) for table in (*self._kept.values(), *self._late)),
            watermarks=marks,
        )

    def late_events(self) -> pl.DataFrame:
        """The events that some window has left out, as they came; each is handed out once."""
        taken = self._left_out()
        self._late = []
        return taken

    def _left_out(self) -> pl.DataFrame:
        """The events set aside; columns that no query reads may have changed their type."""
        if not self._late or self._bound is None:
            return pl.DataFrame(schema=self._bound.columns if self._bound else None)
        try:
            return pl.concat(self._late, how="diagonal_relaxed")
        except pl.exceptions.PolarsError:
            return pl.concat([part.select(*self._bound.binding.needed) for part in self._late])

    def snapshot(self) -> bytes:
        """The whole state as bytes, from which `Engine.restore` goes on, in this process or another."""
        return snapshot.write(self)

    @staticmethod
    def restore(data: bytes, clock: Callable[[], int] | None = None) -> Engine:
        """An engine that goes on where `snapshot` was taken."""
        return snapshot.read(data, clock)

    # --- how it works -------------------------------------------------------------------------------------------

    def _saved(self) -> tuple[dict[str, Any], list[tuple[GroupState, dict[str, Any]]]]:
        """What a failure must put back: the engine's fields, and those of its groups."""
        time_columns = {name: replace(time_column) for name, time_column in self._time_columns.items()}
        copies: dict[str, Any] = {
            "_measures": time_columns,
            "_late": list(self._late),
            "_overflowed": Counter(self._overflowed),
        }
        if self._bound is None:
            return self.__dict__ | copies, []
        copies["_bound"] = replace(self._bound, columns=dict(self._bound.columns))
        return self.__dict__ | copies, [(state, state.saved()) for state in self._bound.states.values()]

    def _open(self) -> None:
        if self._finished:
            raise ValueError("this engine is finished; make a new one")

    def _bind(self, frame: pl.DataFrame) -> tuple[Bound, Rates | None]:
        """Bind to the types of a first batch, planned for the rates that it shows, which are returned too."""
        rates = self._rates
        if rates is None and frame.height and self._plan.depends_on_rates:
            rates = measured(frame, Binding(self._plan, frame.schema, self._order_by), self._time)
        planned = self._plan if rates is self._rates else plan(self._entries, self._time, rates)
        bound = bind(planned, frame.schema, self._order_by, self._time_columns)
        unknown = [name for name, dtype in bound.binding.needed.items() if dtype == pl.Null()]
        if unknown and not all(time_column.still for time_column in self._time_columns.values()):
            raise InputError(
                f"column {unknown[0]!r} has no value in this first batch, so its type is not known; cast it"
            )
        return bound, rates

    def _change(self, entries: list[Entry]) -> None:
        """Go on with other queries; refused whole or done."""
        planned = plan(entries, self._time, self._rates, self._bound.plan.apart if self._bound else None)
        time_columns = time_columns_of(planned.time_columns, self._time, self._lateness, self._updates)
        before = self._time_columns
        self._time_columns = time_columns | before  # one that no query asks for now keeps its watermark
        if self._bound is not None:
            try:
                bound = bind(planned, self._bound.columns, self._order_by, self._time_columns)
            except ValueError:
                self._time_columns = before
                raise
            for identity, state in bound.states.items():
                if identity in self._bound.states:
                    state.take_over(self._bound.states[identity])
            self._bound = bound
        self._entries, self._plan = entries, planned
        asked = {repeats_of(group.source) for group in planned.groups}
        self._kept = {known: table for known, table in self._kept.items() if known in asked}
        self._closing = [entry for entry in entries if entry.closing]

    def _step(self, moves: Mapping[str, int], changes: Mapping[Any, Change], partial: bool = False) -> pl.DataFrame:
        """Move watermarks, emit what is due, and forget what is over."""
        bound = self._bound
        if bound is None:
            for name, mark in moves.items():
                self._time_columns[name].watermark = mark
            return self._nothing()
        emitted: list[Emitted] = []
        for identity, state in bound.states.items():
            name = state.group.source.time
            step = self._time_columns[name].step_to(moves.get(name, self._time_columns[name].watermark))
            change = changes.get(identity)
            if change is not None or (step.now != step.before and state.may_be_due(step)):
                emitted.extend(state.step(step, change, partial))
        for name, mark in moves.items():
            self._time_columns[name].watermark = mark
        results, overflows = bound.results.build(emitted)
        self._overflowed += overflows
        self._counts = replace(
            self._counts,
            results=self._counts.results + results.height,
            overflows=self._counts.overflows + overflows.total(),
        )
        self._retire()
        return results

    def _retire(self) -> None:
        """Let go of queries that were being removed and have emitted their last window."""
        done = [entry for entry in self._closing if self._is_over(entry)]
        if done:
            over = {entry.query.name for entry in done}
            self._change([entry for entry in self._entries if entry.query.name not in over])

    def _is_over(self, entry: Entry) -> bool:
        final_before = self._time_columns[entry.query.time or self._time].final_before
        if self._bound is None or final_before <= entry.until:
            return False
        number = next(number for number, other in enumerate(self._plan.entries) if other is entry)
        for state in self._bound.states.values():
            for (place, _), numbers in state.group.members.items():
                if number in numbers:
                    return state.is_over(place, final_before)
        return True

    def _nothing(self) -> pl.DataFrame:
        if self._bound is None:
            return pl.DataFrame(schema={"query": pl.String})
        return self._bound.results.empty

    def _shown(self, moment: int, name: str) -> int | datetime:
        """A time as users write it."""
        dtype = self._bound.binding.time_columns.get(name) if self._bound else None
        if dtype is None or dtype.is_integer():
            return moment
        try:
            shown = EPOCH + timedelta(microseconds=moment)
        except OverflowError:  # Python's years end before ours
            return moment
        return shown if getattr(dtype, "time_zone", None) else shown.replace(tzinfo=None)

    def _moment(self, value: int | datetime, name: str) -> int:
        """A time on a time column as a whole number, within what windows can be written for."""
        if isinstance(value, datetime):
            dtype = self._bound.binding.time_columns.get(name) if self._bound else None
            if dtype is not None and dtype.is_integer():
                raise TypeError(f"{name!r} is a number, so a time on it is an integer, not {value!r}")
            value = since_1970(value)
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise TypeError(f"a time is an integer or a datetime, not {value!r}")
        return max(-FURTHEST, min(FURTHEST, int(value)))

    def _now(self) -> int:
        """Processing time, which does not go back when the clock does."""
        arrival = self._time_columns.get(ARRIVAL)
        return max(self._clock(), INT64_MIN if arrival is None or arrival.seen is None else arrival.seen)

    def _set_aside(self, events: pl.DataFrame) -> None:
        room = self._keep_late - sum(part.height for part in self._late)
        if room > 0:
            self._late.append(events.head(room))
