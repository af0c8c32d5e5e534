"""Queries over a stream, as far as it has come: everything that an engine knows, and every step that it makes.

A step may fail halfway. Whoever makes one keeps a `copy`, which costs nothing, as tables never change, and goes back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from windrow.core.arrays.dataframes import InputError
from windrow.core.assemble.emitted import Emitted
from windrow.core.assemble.results import labelled
from windrow.core.plan.groups import Entry, Rates
from windrow.core.plan.options import ONLY_TIMESTAMP, StreamOptions
from windrow.core.plan.plan import Plan, plan
from windrow.core.plan.watermark import TimeColumn, shown_time
from windrow.core.query.query import Query, time_of
from windrow.core.slices.binding import Binding
from windrow.core.stream.compiled import CompiledPlan, compile_plan
from windrow.core.stream.deduplicate import Kept, repeats_of
from windrow.core.stream.group_states import GroupStates
from windrow.core.stream.ingest import admit, rates_of
from windrow.core.windows.fixed import FURTHEST, INT64_MAX, INT64_MIN, since_1970


@dataclass(frozen=True)
class Metrics:
    """Counts since the engine was made, and what it holds now.

    events:       taken in
    late:         behind the watermark when they came
    dropped:      left out of at least one window
    bad:          without a time, or beyond 64 bits in an expression; left out with bad_events="drop"
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


class PushResult(NamedTuple):
    """What a batch has brought: results, and its events that some window has left out (None if there are none)."""

    results: pl.DataFrame
    left_out: pl.DataFrame | None


@dataclass
class Live:
    """Queries, the states of their groups, and how far each time column has come."""

    options: StreamOptions
    entries: Sequence[Entry]
    rates: Rates | None
    plan: Plan
    time_columns: dict[str, TimeColumn]
    columns: dict[str, pl.DataType] = field(default_factory=dict)  # of all batches, also those that no query reads
    states: GroupStates | None = None  # of its groups; None before the first batch with events
    kept: Kept = field(default_factory=dict)
    arrived: int = 0
    finished: bool = False
    counts: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def of(queries: Sequence[Query], options: StreamOptions, rates: Rates | None = None, still: bool = False) -> Live:
        """Queries over a stream that has not begun; with `still` its watermark waits for the end, as a table's does."""
        entries = [Entry(query) for query in queries]
        planned = plan(entries, options.time, rates)
        time_columns = options.time_columns(planned.time_columns)
        for time_column in time_columns.values():
            time_column.still = still
        return Live(options, entries, rates, planned, time_columns)

    def copy(self) -> Live:
        """The same, of which either may change without the other."""
        time_columns = {name: replace(time_column) for name, time_column in self.time_columns.items()}
        states = self.states and self.states.copy(time_columns)
        return replace(
            self, time_columns=time_columns, states=states, columns=dict(self.columns), counts=Counter(self.counts)
        )

    # --- the stream -----------------------------------------------------------------------------------------------

    def push(self, batch: pl.DataFrame, clock: Callable[[], int] | None = None) -> PushResult:
        """Take a batch, move the watermarks by it, and give the results that this makes final.

        Only queries over arrival times need a clock.
        """
        states, rates = (self.states, self.rates) if self.states and self.arrived else self.begin(batch)
        admitted = admit(batch, states.plan, self.time_columns, self.options.bad_events, self.arrived, clock)
        events, ranges = admitted.events, admitted.ranges
        self.arrived += batch.height
        self.counts["bad"] += admitted.bad
        if not events.height:
            return PushResult(states.plan.results.empty, None)
        self.use(states, rates)
        taken = states.take(events, ranges, self.kept)
        self.columns |= {name: dtype for name, dtype in batch.schema.items() if name not in self.columns}
        self.kept = taken.kept
        dropped = 0 if taken.left_out is None else int(np.count_nonzero(taken.left_out))
        self.counts.update(events=events.height, late=taken.late, dropped=dropped, repeats=taken.repeats)
        left_out = None
        if dropped:
            there = batch if admitted.left_out is None else batch.filter(~admitted.left_out)
            left_out = there.filter(pl.Series(taken.left_out))
        watermarks = {}
        for name, (_, newest) in ranges.items():
            time_column = self.time_columns[name]
            time_column.seen = newest if time_column.seen is None else max(time_column.seen, newest)
            watermarks[name] = time_column.after(newest)
        return PushResult(self.advance(watermarks), left_out)

    def advance(self, watermarks: Mapping[str, int], partial: bool = False) -> pl.DataFrame:
        """Move watermarks, give what is due, and let go of queries that were being removed and are over."""
        if self.states is None:
            for name, watermark in watermarks.items():
                self.time_columns[name].watermark = watermark
            return self.nothing()
        emitted: Mapping[str, list[Emitted]] = self.states.advance(watermarks, partial)
        results = self.states.results(emitted)
        self.counts["results"] += results.height
        over = {entry.query.name for entry in self.entries if entry.closing and self._is_over(entry)}
        if over:
            self.change([entry for entry in self.entries if entry.query.name not in over])
        return results

    def finish(self, partial: bool = False) -> pl.DataFrame:
        self.finished = True
        return self.advance(dict.fromkeys(self.time_columns, INT64_MAX), partial)

    def nothing(self) -> pl.DataFrame:
        """No results, with all columns once these are known."""
        if self.states is not None:
            return self.states.plan.results.empty
        return labelled(pl.DataFrame(schema={"query": pl.String}), [entry.query for entry in self.entries])

    # --- its queries ----------------------------------------------------------------------------------------------

    def locate(self, columns: Mapping[str, pl.DataType]) -> None:
        """Find the stream's own time column among those of the first events, where nobody has named it."""
        if self.options.time != ONLY_TIMESTAMP:
            return
        self.options = replace(self.options, time=time_of((entry.query for entry in self.entries), None, columns))
        unnamed = self.time_columns.pop(ONLY_TIMESTAMP)
        self.change(self.entries)
        time_column = self.time_columns[self.options.time]
        time_column.watermark = max(time_column.watermark, unnamed.watermark)  # where `advance` has moved it

    def declare(self, columns: Mapping[str, pl.DataType]) -> None:
        """Fix the types of columns before the first events, so that results have all columns from the beginning."""
        self.locate(columns)
        self.columns = dict(columns)
        self.use(*self.begin(pl.DataFrame(schema=columns)))

    def begin(self, batch: pl.DataFrame) -> tuple[GroupStates, Rates | None]:
        """States for the types that were declared or that a first batch has, and the rates for which they are planned.

        What is not given of the rates, the batch shows.
        """
        rates, columns = self.rates, {**batch.schema, **self.columns}
        if rates is None and batch.height and self.plan.depends_on_rates:
            binding = Binding(self.plan, columns, self.options.order_by)
            rates = rates_of(binding.checked(batch), binding, self.options.time)
        planned = self.plan if rates is self.rates else plan(self.entries, self.options.time, rates)
        compiled = self._compiled(planned, columns)
        unknown = [name for name, dtype in compiled.binding.needed.items() if dtype == pl.Null()]
        if unknown and not all(time_column.still for time_column in self.time_columns.values()):
            raise InputError(
                f"column {unknown[0]!r} has no value in this first batch, so its type is not known; cast it, or fix it "
                f"before (columns={{{unknown[0]!r}: …}})"
            )
        return GroupStates(compiled, self.time_columns), rates

    def use(self, states: GroupStates, rates: Rates | None) -> None:
        self.states, self.plan, self.rates = states, states.plan.plan, rates

    def change(self, entries: Sequence[Entry]) -> None:
        """Go on with other queries; refused whole or done."""
        apart = self.states.plan.plan.apart if self.states else None
        planned = plan(entries, self.options.time, self.rates, apart)
        # a time column that no query asks for now keeps its watermark
        self.time_columns = self.options.time_columns(planned.time_columns) | self.time_columns
        if self.states is not None:
            compiled = self._compiled(planned, self.columns)
            states = GroupStates(compiled, self.time_columns)
            states.take_over(self.states)
            states.overflowed = self.states.overflowed
            self.use(states, self.rates)
        self.entries, self.plan = entries, planned
        needed = {repeats_of(group.source) for group in planned.groups}
        self.kept = {name: table for name, table in self.kept.items() if name in needed}

    def _compiled(self, planned: Plan, columns: Mapping[str, pl.DataType]) -> CompiledPlan:
        return compile_plan(planned, columns, self.options.order_by, self.time_columns)

    def _is_over(self, entry: Entry) -> bool:
        final_before = self.time_columns[entry.query.time or self.options.time].final_before
        if self.states is None or final_before <= entry.until:
            return False
        return self.states.is_over(next(number for number, other in enumerate(self.plan.entries) if other is entry))

    # --- what it says of itself -----------------------------------------------------------------------------------

    @property
    def metrics(self) -> Metrics:
        watermarks = {
            name: None if time_column.watermark == INT64_MIN else self.shown(time_column.watermark, name)
            for name, time_column in self.time_columns.items()
        }
        counts: dict[str, int] = dict(self.counts)
        size = sum(int(table.estimated_size()) for table in self.kept.values())
        if states := self.states:
            size += states.size
            counts |= {"overflows": states.overflowed.total(), "slices": states.slices}
            counts["held_events"] = states.held_events
        return Metrics(**counts, state_bytes=size, watermarks=watermarks)

    def _dtype(self, name: str) -> pl.DataType | None:
        states = self.states
        return states.plan.binding.time_columns.get(name) if states else None

    def shown(self, moment: int, name: str) -> int | datetime:
        """A time as users write it."""
        return shown_time(moment, self._dtype(name))

    def moment(self, value: int | datetime, name: str) -> int:
        """A time on a time column as a whole number, within what windows can be written for."""
        if isinstance(value, datetime):
            dtype = self._dtype(name)
            if dtype is not None and dtype.is_integer():
                raise TypeError(f"{name!r} is a number, so a time on it is an integer, not {value!r}")
            value = since_1970(value)
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise TypeError(f"a time is an integer or a datetime, not {value!r}")
        return max(-FURTHEST, min(FURTHEST, int(value)))

    # --- saved ----------------------------------------------------------------------------------------------------

    def saved(self) -> tuple[dict[str, Any], dict[str, pl.DataFrame]]:
        """Everything that it knows, as plain data and tables, from which `load` makes the same."""
        kept = list(self.kept.items())
        tables = {f"kept {number}": table for number, (_, table) in enumerate(kept)}
        if self.states is not None:
            tables |= {"columns": pl.DataFrame(schema=self.columns)} | self.states.tables()
        header = {
            "options": self.options.to_dict(),
            "plan": self.plan.fingerprint,
            "entries": [[entry.query.to_dict(), entry.since, entry.until, entry.closing] for entry in self.entries],
            "rates": [self.rates.events, dict(self.rates.keys)] if self.rates else None,
            "apart": sorted(self.states.plan.plan.apart) if self.states else None,
            "time_columns": {name: asdict(time_column) for name, time_column in self.time_columns.items()},
            "counts": dict(self.counts),
            "overflowed": dict(self.states.overflowed) if self.states else {},
            "arrived": self.arrived,
            "finished": self.finished,
            "states": self.states.header() if self.states else None,
            "kept": [name for name, _ in kept],
        }
        return header, tables

    @staticmethod
    def load(header: Mapping[str, Any], tables: Mapping[str, pl.DataFrame]) -> Live:
        options = StreamOptions.from_dict(header["options"])
        entries = [Entry(Query.from_dict(query), *rest) for query, *rest in header["entries"]]
        rates = Rates(*header["rates"]) if header["rates"] else None
        apart = None if header["apart"] is None else frozenset(header["apart"])
        planned = plan(entries, options.time, rates, apart)
        if planned.fingerprint != header["plan"]:
            raise ValueError("this snapshot was taken under another plan than its queries have here")
        time_columns = {name: TimeColumn(**described) for name, described in header["time_columns"].items()}
        live = Live(options, entries, rates, planned, time_columns)
        live.arrived, live.finished, live.counts = header["arrived"], header["finished"], Counter(header["counts"])
        live.kept = {
            (name, tuple(on), since): tables[f"kept {number}"]
            for number, (name, on, since) in enumerate(header["kept"])
        }
        if header["states"] is not None:
            live.columns = dict(tables["columns"].schema)
            compiled = live._compiled(planned, live.columns)
            states = GroupStates(compiled, time_columns)
            states.overflowed = Counter(header["overflowed"])
            states.load(header["states"], tables)
            live.use(states, rates)
        return live
