"""The engine: many window queries over a live stream, in one process.

    push(batch) ──▶ slices of every group ──▶ the watermark moves ──▶ results
    advance(watermark), finish()              ──────────────────────▶ results

A batch either is taken whole or changes nothing: columns, types and times are checked before any state is touched, and
whatever fails later, such as an aggregate of the user's own, leaves the engine as it was. The watermark of each time
column is the greatest time seen minus the lateness, or what `advance` says; it never moves back.
"""

from __future__ import annotations

import time as clocks
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

import polars as pl

from windrow.core.arrays.dataframes import ChangedType, InputError, flag_sorted, to_polars
from windrow.core.expressions.border import border
from windrow.core.expressions.errors import QueryError
from windrow.core.expressions.types import type_of
from windrow.core.plan.groups import Entry, Rates
from windrow.core.plan.options import ONLY_TIMESTAMP, StreamOptions
from windrow.core.plan.plan import Plan
from windrow.core.plan.watermark import Lengths
from windrow.core.query.given import Queries, queries_from, some_queries
from windrow.core.query.query import Query
from windrow.core.slices.binding import ARRIVAL
from windrow.core.stream.live import Live, Metrics
from windrow.core.windows.fixed import INT64_MIN
from windrow.io.tables import pack, unpack

SHOWN = 6  # names of queries in a `repr`
ColumnType = pl.DataType | type | str


@border
class Engine:
    """Answers queries over events that come in batches: `push` returns what each batch makes final.

    queries:     one or several, with names that differ, or the text of `sql`; more can be added later
    time:        the column that windows are measured on, a timestamp or an integer; "arrival" for processing time;
                 can be left out where the queries name it, or where the events have only one timestamp
    lateness:    how far events may be out of order: a duration for timestamps, a plain integer for integers, 0 by
                 default; None if only `advance` moves the watermark
    updates:     how long emitted windows are kept to be emitted again when late events change them; by default not
                 (both: one length for the engine's own time column, or a mapping from time columns to lengths)
    order_by:    columns that order events of the same time, before their arrival does
    bad_events:  "raise" refuses a batch with an event without a time, or for which an integer of an expression
                 leaves 64 bits; "drop" counts and leaves out such events
    columns:     the types of all columns that queries read, fixed before the first batch: Polars' or Python's types, or
                 text such as "double" and "timestamp"; by default those of the first batch
    rates:       what is known of the stream, for the planner; measured on the first batch otherwise
    keep_late:   how many dropped events `late_events` keeps at most
    clock:       gives microseconds since 1970, for "arrival"
    """

    def __init__(
        self,
        queries: Queries,
        time: str | None = None,
        *,
        lateness: Lengths = 0,
        updates: Lengths = None,
        order_by: str | Sequence[str] = (),
        bad_events: Literal["raise", "drop"] = "raise",
        columns: Mapping[str, ColumnType] | None = None,
        rates: Rates | None = None,
        keep_late: int = 100_000,
        clock: Callable[[], int] = lambda: clocks.time_ns() // 1000,
    ) -> None:
        given = queries_from(queries)
        options = StreamOptions.of(given, time, lateness, updates, order_by, bad_events)
        self._live = Live.of(given, options, rates)
        if columns is not None:
            self._live.declare(_types_of(columns))
        self._keep_late, self._clock = keep_late, clock
        self._late: list[pl.DataFrame] = []

    # --- the stream ---------------------------------------------------------------------------------------------

    def push(self, batch: Any) -> pl.DataFrame:
        """Take a batch (Arrow, Polars, pandas or a list of dicts) and return the results that it makes final.

        A column that had another type before is taken if that type holds all of its values, such as whole numbers as
        floats. A batch that does not fit is refused whole with an `InputError`, and the engine is as it was before.
        """
        with self._whole_or_not_at_all() as live:
            time = live.options.time
            frame = to_polars(batch, None if time == ONLY_TIMESTAMP else time)
            if not frame.width:  # a list without dicts
                return live.nothing()
            live.locate(frame.schema)
            frame = flag_sorted(frame, live.time_columns)
            try:
                pushed = live.push(frame, self._now)
            except ChangedType as error:
                raise InputError(f"{error}; Engine(columns=…) fixes types before the first batch") from error
        if pushed.left_out is not None:
            self._set_aside(pushed.left_out)
        return pushed.results

    def advance(self, watermark: int | datetime, time: str | None = None) -> pl.DataFrame:
        """Say that no more events older than this are expected, and return the results that this makes final.

        watermark:  a datetime (UTC where it has no zone), or microseconds or units of the time column as an integer
        time:       the time column; by default the engine's own
        """
        with self._whole_or_not_at_all() as live:
            name = time or live.options.time
            if name not in live.time_columns:
                there = ", ".join(map(repr, live.time_columns))
                raise ValueError(f"there is no time column {name!r}; there are {there}")
            return live.advance({name: max(live.time_columns[name].watermark, live.moment(watermark, name))})

    def finish(self, partial: bool = False) -> pl.DataFrame:
        """The end of the stream: close everything that is open; with `partial`, also what has no end by itself.

        That is counting windows with fewer than n events, and punctuated windows whose end has not come.
        """
        with self._whole_or_not_at_all() as live:
            return live.finish(partial)

    def add(self, queries: Queries, since: int | datetime | None = None) -> int | datetime | None:
        """Ask more queries from an event time on; returns that time, None for queries that see everything.

        queries:  one or several on one time column, or the text of `sql`; all are added, or none
        since:    the event time; the default is just after the greatest time seen, and an earlier one is moved there
        """
        with self._whole_or_not_at_all() as live:
            added = some_queries(queries)
            names = dict.fromkeys(query.time or live.options.time for query in added)
            if len(names) > 1:
                raise QueryError(f"queries on several times, {', '.join(map(repr, names))}; add them one by one")
            name = next(iter(names))
            time_column = live.time_columns.get(name)
            seen = INT64_MIN if time_column is None or time_column.seen is None else time_column.seen + 1
            begin = seen if since is None else max(seen, live.moment(since, name))
            live.change([*live.entries, *(Entry(query, begin) for query in added)])
        return None if begin == INT64_MIN else live.shown(begin, name)

    def remove(self, name: str, when: Literal["now", "windows_closed"] = "now") -> None:
        """Stop a query; with `windows_closed`, windows that hold an event already seen are still emitted."""
        with self._whole_or_not_at_all() as live:
            if when not in ("now", "windows_closed"):
                raise ValueError(f"when must be 'now' or 'windows_closed', not {when!r}")
            named = [entry for entry in live.entries if entry.query.name == name]
            if not named:
                raise QueryError(f"there is no query called {name!r}")
            rest = [entry for entry in live.entries if entry.query.name != name]
            seen = live.time_columns[named[0].query.time or live.options.time].seen
            if when == "windows_closed" and seen is not None:
                if named[0].closing:
                    return
                rest.append(named[0]._replace(until=seen + 1, closing=True))
            live.change(rest)

    def __repr__(self) -> str:
        names, metrics = [query.name for query in self.queries], self.metrics
        shown = ", ".join(names[:SHOWN]) + (f", and {len(names) - SHOWN:,} more" if len(names) > SHOWN else "")
        counts = f"{metrics.events:,} events, {metrics.late:,} late, {metrics.results:,} results"
        state = "finished" if self._live.finished else f"watermark {self.watermark}"
        return f"Engine({shown or 'no queries'}; {state}; {counts})"

    # --- what it says of itself ---------------------------------------------------------------------------------

    @property
    def queries(self) -> list[Query]:
        """The queries that are there now, with those that are being removed."""
        return [entry.query for entry in self._live.entries]

    @property
    def plan(self) -> Plan:
        """What the queries have become; rates of the first batch may have changed it."""
        return self._live.plan

    def explain(self) -> str:
        """The plan as text: groups, operators, edges, placement, and why."""
        return self.plan.explain()

    @property
    def watermark(self) -> int | datetime | None:
        """Of the engine's own time column, None before its first event; `metrics.watermarks` has all."""
        return self.metrics.watermarks[self._live.options.time]

    @property
    def metrics(self) -> Metrics:
        """What was counted, and what is held now."""
        metrics = self._live.metrics
        aside = sum(int(table.estimated_size()) for table in self._late)
        return replace(metrics, state_bytes=metrics.state_bytes + aside)

    def late_events(self) -> pl.DataFrame:
        """The events that some window has left out, as they came; each is handed out once."""
        taken = self._left_out()
        self._late = []
        return taken

    def _left_out(self) -> pl.DataFrame:
        """The events set aside; columns that no query reads may have changed their type."""
        states = self._live.states
        if not self._late or states is None:
            return pl.DataFrame(schema=self._live.columns if states else None)
        try:
            return pl.concat(self._late, how="diagonal_relaxed")
        except pl.exceptions.PolarsError:
            return pl.concat([part.select(*states.plan.binding.needed) for part in self._late])

    def snapshot(self) -> bytes:
        """The whole state as bytes, from which `Engine.restore` goes on, in this process or another."""
        header, tables = self._live.saved()
        late = self._left_out()
        return pack(header | {"keep_late": self._keep_late}, tables | ({"late": late} if late.height else {}))

    @staticmethod
    def restore(data: bytes, clock: Callable[[], int] | None = None) -> Engine:
        """An engine that goes on where `snapshot` was taken."""
        header, tables = unpack(data)
        try:
            live, keep_late = Live.load(header, tables), header["keep_late"]
        except (KeyError, TypeError, pl.exceptions.PolarsError) as error:
            raise ValueError(f"this snapshot is damaged: {type(error).__name__}: {error}") from error
        engine = Engine([], live.options.time, keep_late=keep_late)
        engine._live, engine._late = live, [tables["late"]] if "late" in tables else []
        engine._clock = clock or engine._clock
        return engine

    # --- how it works -------------------------------------------------------------------------------------------

    @contextmanager
    def _whole_or_not_at_all(self) -> Iterator[Live]:
        """Queries and states for a step, which are as they were before if it fails."""
        if self._live.finished:
            raise ValueError("this engine is finished; make a new one")
        before = self._live.copy()
        try:
            yield self._live
        except BaseException:
            self._live = before
            raise

    def _now(self) -> int:
        """Processing time, which does not go back when the clock does."""
        arrival = self._live.time_columns.get(ARRIVAL)
        return max(self._clock(), INT64_MIN if arrival is None or arrival.seen is None else arrival.seen)

    def _set_aside(self, events: pl.DataFrame) -> None:
        room = self._keep_late - sum(part.height for part in self._late)
        if room > 0:
            self._late.append(events.head(room))


def _types_of(columns: Mapping[str, ColumnType]) -> dict[str, pl.DataType]:
    """Columns with their types, as users write these."""
    try:
        return dict(
            pl.Schema({name: type_of(kind) if isinstance(kind, str) else kind for name, kind in columns.items()})
        )
    except (TypeError, ValueError) as error:
        raise QueryError(f"columns: {error}") from error
