"""The tables in which nodes and the root speak of counting windows.

    progress, gone     see `nodes.tables`
    <group>|segments   key, node, ranks, first and last time, kind, states of slices; `of` which one it is the content
    <group>|events     the events of segments that are sent as they are, one after the other
    <group>|reach      key, node, and the time of the first event that no segment has; null if there is none

and where quantiles are asked, those of `quantiles`; and down, in a request:

    <group>            key, where the last boundary is and what to expect (`schemes.Directive`)
    <group>|ask        key, ranks, and what is asked of them: the events, their slice, or more of what comes after them
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import numpy as np
import polars as pl

from windrow.core.arrays.checks import MOST, wrong_numbers
from windrow.core.arrays.range_queries import Ints
from windrow.core.ordered.slicing import Ordering
from windrow.core.ordered.state import CompiledOrderedGroup
from windrow.core.plan.groups import ROWS, Group, Partial, Placement
from windrow.core.stream.job import Job
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.core.windows.ordered import Counting
from windrow.nodes.counting.schemes import SCHEMES, Boundaries, Directive, sub_slice
from windrow.nodes.quantiles.protocol import REFINED, MultisetSchema
from windrow.nodes.tables import GONE, GONE_COLUMNS, PROGRESS, PROGRESS_COLUMNS, differs, impossible, lacks

NODE_COLUMN = "order:0"  # of events: the node, which in a batch stands in the segments instead
ANEW = -1  # of a segment: it and those after it take the place of all that were sent from there on
FURTHEST = MOST  # no rank is as great
_1970 = date(1970, 1, 1).toordinal()
Key = tuple[Any, ...]


@dataclass(frozen=True)
class ByScheme(Placement):
    """On the ends of whose windows nodes and the root agree, by a scheme; their multisets may stay at nodes."""

    scheme: str = "auto"

    @staticmethod
    def of(scheme: str, refined: bool) -> ByScheme:
        """Of queries by a scheme, some of which ask for quantiles whose values do not travel whole if `refined`."""
        values = ", and values around the ranks that are asked for" if refined else ""
        travels = f"slices, and the events around the ends of windows{values}"
        return ByScheme(f" (counted, {scheme})", travels, True, REFINED.columns if refined else (), scheme)


def groups_of(job: Job) -> list[Group]:
    return [group for group in job.compiled.plan.groups if isinstance(group.placement, ByScheme)]


def forms_of(job: Job) -> list[Form]:
    return [Form(group, job) for group in groups_of(job)]


class Form:
    """What the tables of a counted group look like; prepared once per plan."""

    def __init__(self, group: Group, job: Job) -> None:
        compiled = job.compiled.by_name[group.name]
        assert isinstance(compiled, CompiledOrderedGroup)
        self.compiled, self.group, self.name, self.schema = compiled, group, group.name, compiled.schema
        assert isinstance(group.placement, ByScheme)
        self.scheme = group.placement.scheme
        self.ordering: Ordering = compiled.ordering
        self.time = self.ordering.time
        self.keys = {name: _plain(dtype) for name, dtype in self.schema.keys.items()}
        self.boundaries = Boundaries(self.ordering.grids[INT64_MIN])
        self.events = {name: dtype for name, dtype in self.ordering.needed.items() if name in self.ordering.read}
        self.sent = {name: dtype for name, dtype in self.events.items() if name != NODE_COLUMN}
        self.multisets = MultisetSchema(compiled)  # those that stay at nodes
        kept = set(self.multisets.multisets.values())
        partials = tuple(one for one in self.schema.partials if one not in kept)
        sliced = replace(self.schema, partials=partials)
        self._sliced = Ordering(group, sliced, self.compiled.edges) if kept else self.ordering
        names = {name for one in partials for name in self.schema.names[one].values()}
        self.states = {name: dtype for name, dtype in self.schema.columns.items() if name in names}
        windows = [line.window for line in group.timelines]
        self._windows = [(one.n, one.step) for one in windows if isinstance(one, Counting)]
        run = {"node": pl.String(), "lo": pl.Int64(), "hi": pl.Int64(), "first": pl.Int64(), "last": pl.Int64()}
        of = {"kind": pl.String(), "of_lo": pl.Int64(), "of_hi": pl.Int64()}
        self.plain: dict[str, pl.DataType] = {**self.keys, **run, **of}  # of segments, without their states
        self.segments = self.plain | self.states
        self.reach = {**self.keys, "node": pl.String(), "next": pl.Int64()}
        numbers = dict.fromkeys(Directive._fields, pl.Int64())
        floats = {"share": pl.Float64(), "margin": pl.Float64()}
        self.directive = {**self.keys, **numbers, **floats, "scheme": pl.String()}  # what the root tells a node
        self.ask = {**self.keys, "lo": pl.Int64(), "hi": pl.Int64(), "what": pl.String()}  # and asks it
        self.event_bytes = 8.0 * len(self.sent)
        # how a node begins, of which nothing is known: it may be the only one that has events
        events = sub_slice(self.boundaries.widest, self.event_bytes, len(self.segments))
        self.first = Directive("refine", sub_slice=events)
        # events before a boundary that may be needed after it: for quantiles, those of the longest window
        self.lasting = max(n for n, _ in self._windows) if self.schema.lists else 0

    def with_plain_keys(self, events: pl.DataFrame) -> pl.DataFrame:
        """Keys of which Python has no exact word, or several, as texts and numbers."""
        odd = {name: dtype for name, dtype in self.schema.keys.items() if self.keys[name] != dtype}
        return events.with_columns(
            (pl.when(pl.col(name) == 0).then(0.0).otherwise(name) if dtype.is_float() else pl.col(name).to_physical())
            .cast(self.keys[name])
            .alias(name)
            for name, dtype in odd.items()
        )

    def typed_keys(self, keys: Sequence[Key]) -> pl.DataFrame:
        """Keys as the columns that they are in the windows."""
        return pl.DataFrame(keys, schema=self.keys, orient="row").cast(dict(self.schema.keys))  # type: ignore[arg-type]

    def is_in_window(self, position: int) -> bool:
        """Whether some window has the event at a position."""
        return any(position % step < n for n, step in self._windows)

    # --- what cannot be -------------------------------------------------------------------------------------------

    def wrong_with(self, tables: Mapping[str, pl.DataFrame], times: tuple[int, int]) -> str | None:
        """Why the tables of a batch cannot be taken; None if they can."""
        mine: dict[str, pl.DataFrame] = {}
        for part, types in {"segments": self.segments, "events": self.sent, "reach": self.reach}.items():
            needed = self.plain if part == "segments" else types
            table = tables.get(f"{self.name}|{part}")
            if table is not None and (reason := differs(f"{self.name}|{part}", table, types, needed)):
                return reason
            mine[part] = pl.DataFrame(schema=needed) if table is None else table
        if mine["reach"]["node"].null_count():
            return f"{self.name}|reach has no node in its batch"
        bounds = {name: mine["segments"][name] for name in ("first", "last")} | {"next": mine["reach"]["next"]}
        reason = wrong_numbers(bounds, *times) or self._wrong_keys(mine["segments"]) or self._wrong_keys(mine["reach"])
        if reason is not None:
            return impossible(self.name, reason)
        return self.multisets.wrong_with(tables, times) or self._wrong_segments(mine["segments"], mine["events"])

    def _wrong_keys(self, table: pl.DataFrame) -> str | None:
        """Which date is none, as Python writes it: keys of counted groups are held as plain values."""
        dates = {name: table[name].to_physical() for name, dtype in self.keys.items() if dtype == pl.Date()}
        return wrong_numbers(dates, date.min.toordinal() - _1970, date.max.toordinal() - _1970)

    def _wrong_segments(self, segments: pl.DataFrame, events: pl.DataFrame) -> str | None:
        what = f"{self.name}|segments"
        certain = ("node", "lo", "hi", "first", "last", "kind")
        if lacks(segments, certain) or (segments["of_lo"].is_null() != segments["of_hi"].is_null()).any():
            return f"{what} has no value where one is needed in its batch"
        lo, hi, first, last, of_lo, of_hi = (pl.col(name) for name in ("lo", "hi", "first", "last", "of_lo", "of_hi"))
        is_inside = of_lo.is_null() | ((lo >= of_lo) & ((of_hi == ANEW) | (hi <= of_hi)) & (of_lo >= 0))
        size = hi - lo
        kinds = pl.col("kind").is_in(["events", "slice", "count"])
        wrong = segments.filter(~((lo >= 0) & (lo < hi) & (hi < FURTHEST) & (first <= last) & is_inside & kinds))
        if wrong.height:
            shown = ", ".join(f"{name} {wrong[name][0]!r}" for name in ("kind", "lo", "hi", "first", "last"))
            return f"{what} has a segment that cannot be in its batch: {shown}"
        slices = segments.filter(pl.col("kind") == "slice")
        if slices.height:
            if reason := differs(what, segments, self.segments, self.states):
                return reason
            if reason := impossible(what, self._sliced.schema.wrong_states(slices)):
                return reason
            rows = self.schema.names[Partial(ROWS, None)]["count"]
            if not slices.select((pl.col(rows) == size).fill_null(False).all()).item():
                return f"{what} has slices of other events than it says in its batch"
        raw = segments.filter(pl.col("kind") == "events")
        sizes, times = raw.select(size).to_series().to_numpy(), events[self.time]
        if sum(sizes.tolist()) != events.height or times.null_count():
            return f"{what} says {sum(sizes.tolist()):,} events, and there are {events.height:,} in its batch"
        return self._wrong_times(raw, sizes, times.to_numpy()) if raw.height else None

    def _wrong_times(self, raw: pl.DataFrame, sizes: Ints, times: Ints) -> str | None:
        ends = np.cumsum(sizes)
        falls = np.flatnonzero(times[1:] < times[:-1]) + 1
        is_right = (times[ends - sizes] == raw["first"].to_numpy()) & (times[ends - 1] == raw["last"].to_numpy())
        if is_right.all() and np.isin(falls, ends).all():
            return None
        return f"{self.name}|events are out of order in its batch, or not those of the segments"

    def wrong_request(self, tables: Mapping[str, pl.DataFrame]) -> str | None:
        """Why a request cannot be heard; None if it can."""
        is_directive = pl.col("scheme").is_in(list(SCHEMES)) & (pl.col("sub_slice") >= 1)
        is_directive &= (pl.col("cut") >= pl.col("kept")) & (pl.col("kept") >= 0)
        is_ask = pl.col("what").is_in(["events", "slice", "more"]) & (pl.col("lo") <= pl.col("hi"))
        right = {self.name: (self.directive, is_directive), f"{self.name}|ask": (self.ask, is_ask)}
        for name, (types, is_right) in right.items():
            table = tables.get(name)
            if table is None:
                continue
            if reason := differs(name, table, types, types):
                return reason.replace("batch", "request")
            certain = [column for column in types if column not in self.keys]
            if lacks(table, certain) or not table.select(is_right.all()).item():
                return f"{name} cannot be in a request"
        return self.multisets.wrong_request(tables)

    def sliced(self, events: pl.DataFrame, at: Ints) -> pl.DataFrame:
        """What travels of runs of events in order that begin at these places."""
        return self._lifted(self._sliced, events, at).select(*self.states)

    def lifted(self, events: pl.DataFrame, at: Ints) -> pl.DataFrame:
        """The states of such runs, with all multisets."""
        return self._lifted(self.ordering, events, at)

    def _lifted(self, ordering: Ordering, events: pl.DataFrame, at: Ints) -> pl.DataFrame:
        nothing = {**self.schema.keys, **self.schema.lists}
        values = {"slice_start": INT64_MIN, "excluded": 0, "first": 0, "last": 0, **self.schema.unordered}
        columns = {name: pl.Series([None] * len(at), dtype=dtype) for name, dtype in nothing.items()}
        columns |= {name: pl.Series([value] * len(at)) for name, value in values.items()}
        return ordering.lifted(events, at, columns)


def _plain(dtype: pl.DataType) -> pl.DataType:
    return pl.String() if dtype.is_float() else pl.Int64() if dtype.is_temporal() and dtype != pl.Date() else dtype


def wrong_with(forms: Iterable[Form], tables: Mapping[str, pl.DataFrame], times: tuple[int, int]) -> str | None:
    """Why the tables of counted groups cannot be taken; None if they can."""
    forms = list(forms)
    for name, types in ((PROGRESS, PROGRESS_COLUMNS), (GONE, GONE_COLUMNS)) if forms else ():
        if name not in tables:
            continue
        if reason := differs(name, tables[name], types, types):
            return reason
        if lacks(tables[name], types):
            return f"{name} has no value where one is needed in its batch"
        if tables[name].columns != list(types):
            return f"{name} has other columns in its batch than it should"
        counts = {column: tables[name][column] for column in types if column in ("received", "rewound", "late")}
        if reason := impossible(name, wrong_numbers(counts, 0, INT64_MAX)):
            return reason
    return next((reason for form in forms if (reason := form.wrong_with(tables, times))), None)


def names_in(forms: Iterable[Form], tables: Mapping[str, pl.DataFrame]) -> list[str]:
    """The nodes of which tables that were checked speak."""
    parts = _names_of(forms) - {f"{form.name}|events" for form in forms}
    return sorted({name for part in parts if part in tables for name in tables[part]["node"].to_list()})


def tables_of(job: Job) -> set[str]:
    """The names of the tables that counted groups have in a batch."""
    forms = forms_of(job)
    return _names_of(forms) if forms else set()


def _names_of(forms: Iterable[Form]) -> set[str]:
    names = {f"{form.name}|{part}" for form in forms for part in ("segments", "events", "reach")}
    return {PROGRESS, GONE, *names, *(name for form in forms for name in form.multisets.tables)}
