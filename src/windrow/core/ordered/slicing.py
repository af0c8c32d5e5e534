"""Ordering: events whose order is final become ordered slices.

    final events ── by key, in order ──▶ positions ──▶ cuts ──▶ runs of events ──▶ slices with a position

A slice is a run of consecutive events of one key, so nothing is hashed but the keys: each cut is an index, and a run
is aggregated where it lies. What cuts: the edges of time windows, pauses longer than the smallest session gap, the
edges of counting windows, which are grids over positions as time windows are grids over time, and the bounds that
data-driven windows find. Two more cuts end with the step that makes them: where a `latest` window begins, and
between the events that are done with and those that are still held.

What a key's next events need of those before them stands in a **ledger**, a row per key: how many there were, the
time of the last, and what each data-driven window carries.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from windrow.core.arrays.dataframes import join_keys
from windrow.core.arrays.hashing import GOLDEN, mix
from windrow.core.arrays.range_queries import CHUNK, Ints, ramp
from windrow.core.operators.choose import Choices
from windrow.core.ordered.custom_bounds import Driven, Line
from windrow.core.plan.groups import Group, Timeline
from windrow.core.plan.watermark import WatermarkStep
from windrow.core.slices.kernel import Edges, filter_name, input_name, lifts, places, time_name, window_columns
from windrow.core.slices.table import SliceSchema, finish
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.core.windows.ordered import Array, Counting, Latest, Mask


class Carry:
    """A row per key, with columns of plain values; a key that is not there has the initial ones."""

    def __init__(self, keys: Mapping[str, pl.DataType], initial: Mapping[str, Any]) -> None:
        self.keys, self.initial = list(keys), dict(initial)
        self._types = {name: _TYPES[type(value)] for name, value in self.initial.items()}
        self.table = pl.DataFrame(schema={**keys, **self._types})

    def at(self, keys: pl.DataFrame) -> dict[str, Array]:
        """The values of these keys."""
        if not self.keys:
            found = self.table if self.table.height else pl.DataFrame([{**self.initial}], schema=self.table.schema)
        else:
            found = join_keys(keys, self.table, self.keys, "left")
        return {name: _filled(found[name], value) for name, value in self.initial.items()}

    def copy(self) -> Carry:
        """As it is now; a ledger's table is never changed, only replaced."""
        return copy.copy(self)

    def set(self, keys: pl.DataFrame, values: Mapping[str, Array]) -> None:
        """Put down the values of these keys."""
        columns = [pl.Series(name, values[name], dtype=self._types[name]) for name in self.initial]
        fresh = pl.DataFrame([*keys.get_columns(), *columns]) if self.keys else pl.DataFrame(columns)
        if self.keys and self.table.height:
            rest = join_keys(self.table, keys, self.keys, "anti")
            fresh = pl.concat([rest[fresh.columns], fresh])
        self.table = fresh

    def load(self, table: pl.DataFrame) -> None:
        """Go on with the values of another ledger; to a query that it does not know, all that it has seen is old."""
        new = {name: value for name, value in self.initial.items() if name not in table.columns}
        missing = [
            (pl.col("count") if name.startswith("origin ") else pl.lit(value)).alias(name)
            for name, value in new.items()
        ]
        self.table = table.with_columns(missing).select(self.table.columns).cast(dict(self.table.schema))  # type: ignore[arg-type]


def _filled(column: pl.Series, value: Any) -> Array:
    """An array of its own, with a value where there is none."""
    return (column.fill_null(value) if column.null_count() else column).to_numpy().copy()


_TYPES: dict[type, pl.DataType] = {bool: pl.Boolean(), int: pl.Int64(), float: pl.Float64()}


@dataclass(frozen=True)
class Sliced:
    """Ordered events as slices, and what they have changed for each of their keys."""

    table: pl.DataFrame
    is_done: Mask  # for each slice: its events are no longer held
    held: pl.DataFrame | None  # the events that still are, in order
    keys: pl.DataFrame
    known: dict[str, Array]  # the ledger before them
    settled: dict[str, Array]  # the ledger up to the events that are held
    now: dict[str, Array]  # the ledger after all events
    changed: Ints  # the position of the key's first late event, INT64_MAX where none is


class Ordering:
    """What cuts the ordered events of a group; prepared once per plan."""

    def __init__(self, group: Group, schema: SliceSchema, edges: Edges) -> None:
        self.schema, self.edges = schema, edges
        self.time = time_name(group.source.time)
        timelines = list(group.timelines)
        self.lines = [Line.of(timeline) for timeline in group.lines.values()]
        self.latest = [line for line in timelines if isinstance(line.window, Latest)]
        self.most = max((line.window.n for line in self.latest if isinstance(line.window, Latest)), default=0)
        counted = [line for line in timelines if isinstance(line.window, Counting)]
        self.origins = sorted({line.since for line in (*counted, *self.latest)} - {INT64_MIN})
        grids: dict[int, set[tuple[int, int]]] = {}
        for line in counted:
            assert isinstance(line.window, Counting)
            n, step = line.window.n, line.window.step
            grids.setdefault(line.since, set()).update({(step, 0), (step, n % step)})
        self.grids = {since: np.array(sorted(several), np.int64).T for since, several in grids.items()}
        self.needed = _columns(schema, self.time, self.lines)  # of the events that wait …
        placed = schema.digests or any(one.operator.ordered for one in schema.held)
        if not placed:
            del self.needed["nth"]
        keep_order = [name for name in self.needed if placed or not name.startswith("order:")]
        self.read = [name for name in keep_order if name not in schema.keys]  # … and once they are in order

    def conform(self, events: pl.DataFrame) -> pl.DataFrame:
        """Events that were held under an older plan; what a new query reads they need not have, being older than it."""
        missing = [pl.lit(None, dtype).alias(name) for name, dtype in self.needed.items() if name not in events.columns]
        return events.with_columns(missing).select(*self.needed)

    @property
    def initial(self) -> dict[str, Any]:
        """A key's row in the ledger before its first event; `frozen` are the events that no late one comes before."""
        found: dict[str, Any] = {"count": 0, "last": INT64_MIN, "start": INT64_MIN, "frozen": 0}
        found |= {origin_column(since): 0 for since in self.origins}
        return found | {f"{line.name}.{name}": value for line in self.lines for name, value in line.carried.items()}

    @property
    def at_rest(self) -> pl.Expr:
        """Which keys carry nothing on: no window of theirs is open."""
        carried = {
            f"{line.name}.{name}": value
            for line in self.lines
            for name, value in line.carried.items()
            if name not in ("number", "started")
        }
        return pl.all_horizontal(pl.lit(True), *(pl.col(name) == value for name, value in carried.items()))

    def sorted(self, events: pl.DataFrame) -> tuple[pl.Series | None, Ints, pl.DataFrame]:
        """The order of events by key and place (None where they stand in it), how many each key has, and the keys."""
        order = [name for name in events.columns if name.startswith("order:")]
        place: Ints | None = None
        if order:
            place = events.select(pl.arg_sort_by(self.time, *order, maintain_order=True)).to_series().to_numpy()
        elif not events[self.time].is_sorted():
            place = np.argsort(events[self.time].to_numpy(), kind="stable")
        in_time = None if place is None else pl.Series(place)
        if not self.schema.keys:
            return in_time, np.array([events.height]), pl.DataFrame()
        named = events[list(self.schema.keys)]
        named = (named if in_time is None else named[in_time]).with_row_index("_place")
        grouped = named.group_by(*self.schema.keys, maintain_order=True).agg("_place")
        sizes = grouped["_place"].list.len().cast(pl.Int64).to_numpy()
        keys = grouped[list(self.schema.keys)]
        if len(sizes) == 1:
            return in_time, sizes, keys
        by_key = grouped["_place"].explode()
        return by_key if in_time is None else in_time.gather(by_key), sizes, keys

    def slice(self, events: pl.DataFrame, late: Mask | None, base: Carry, step: WatermarkStep) -> Sliced:
        """Put events in order, key by key, and slice them; each key's follow those that the ledger knows."""
        place, sizes, keys = self.sorted(events)
        read = events[self.read]
        read = read if place is None else read[place]
        batch = _Batch(read, read[self.time].to_numpy(), sizes, keys, base.at(keys))
        known, time, first = batch.known, batch.time, batch.first
        number, before = self.edges.index(time, len(sizes) == 1, None)
        cut = np.zeros(len(time), np.bool_)  # whether an edge lies between an event and the one before it
        opens = (known["count"] == 0) | (before[number[first]] > known["last"])  # the same for each key's first event
        if len(before) > 1:
            np.not_equal(number[1:], number[:-1], out=cut[1:])
        if self.schema.gap is not None:
            cut[1:] |= time[1:] - time[:-1] > self.schema.gap
            opens |= time[first] - self.schema.gap > known["last"]
        done = batch.older(step.final_before)
        final_before = known["count"] + done
        if self.most:
            done = np.maximum(done - self.most, 0)
        driven = [Driven.of(line, read, time, first, batch.key, known) for line in self.lines]
        for one in driven:
            one.cut(cut)
            opens |= one.number(first, np.arange(len(first))) != known[f"{one.line.name}.number"]
        cut[first] = opens
        for since, grids in self.grids.items():
            cut[batch.on_grids(grids, self._origin(batch, since))] = True
        # where queries have gone and edges with them, a slice may begin before the one before it: then as that one
        last = batch.ends - 1
        start = np.maximum(before[number[last]], known["start"])
        now = {"count": known["count"] + sizes, "last": time[last], "start": start, "frozen": final_before}
        last = np.maximum(first + done, 1) - 1
        start = np.maximum(before[number[last]], known["start"])
        settled = {"count": known["count"] + done, "frozen": final_before}
        settled["last"] = np.where(done > 0, time[last], known["last"])
        settled["start"] = np.where(done > 0, start, known["start"])
        for one in driven:
            now |= one.after(sizes)
            settled |= self._carried(one, batch, done)
        for since in self.origins:
            name, older = origin_column(since), batch.older(since)
            now[name], settled[name] = known[name] + older, known[name] + np.minimum(older, done)

        begins = cut.copy()
        begins[first] = True
        begins[(first + done)[done < sizes]] = True
        if self.latest:
            last = np.concatenate((np.flatnonzero(number[1:] != number[:-1]), batch.ends - 1))
            for timeline in self.latest:
                begins[_latest(timeline, batch, last, self._origin(batch, timeline.since), step)] = True
        at = np.flatnonzero(begins)
        key = batch.key_of(at)
        columns = {name: batch.keys[name].gather(key) for name in self.schema.keys}
        columns |= {
            "slice_start": pl.Series(np.maximum(before[number[at]], known["start"][key])),
            "excluded": pl.zeros(len(at), pl.Int32, eager=True),
            "first": pl.Series(time[at]),
            "last": pl.Series(time[np.append(at[1:], len(time)) - 1]),
            "position": pl.Series(batch.position(at)),
            "fresh": pl.Series(cut[at]),
        }
        columns |= {one.line.name: pl.Series(one.mark(at, key)) for one in driven}
        if self.schema.digests:
            columns["digest"] = pl.Series(np.add.reduceat(_mixed(read["nth"].to_numpy()), at))
        table = self.lifted(read, at, columns)
        changed = np.full(len(sizes), INT64_MAX)
        if late is not None:
            places = np.flatnonzero(late if place is None else late[place.to_numpy()])[::-1]
            changed[batch.key_of(places)] = batch.position(places)
        rest = ramp(sizes - done) + np.repeat(first + done, sizes - done)
        held = events[rest if place is None else place.gather(rest)] if len(rest) else None
        return Sliced(table, at < (first + done)[key], held, batch.keys, known, settled, now, changed)

    def _origin(self, batch: _Batch, since: int) -> Ints:
        """For each key how many of its events are older than a query."""
        if since == INT64_MIN:
            return np.zeros(len(batch.sizes), np.int64)
        return batch.known[origin_column(since)] + batch.older(since)

    def _carried(self, driven: Driven, batch: _Batch, done: Ints) -> dict[str, Array]:
        """What the ledger has of a data-driven window after the events that are done with."""
        if driven.line.window.initial and (done < batch.sizes).any():  # what it carries it must say itself
            chosen = np.repeat(batch.first, done) + ramp(done)
            part = batch.events[chosen], batch.time[chosen], np.cumsum(done) - done, batch.key[chosen]
            driven = Driven.of(driven.line, *part, batch.known)
        return driven.after(done)

    def lifted(self, events: pl.DataFrame, at: Ints, columns: dict[str, pl.Series]) -> pl.DataFrame:
        """The states of runs of events that begin at these places."""
        schema = self.schema
        choices = Choices(
            schema.selections(lambda one: places(events, one, self.time, schema)), events.height, in_order=True
        )
        runs = np.repeat(np.arange(len(at), dtype=np.uint32), np.diff(np.append(at, events.height)))
        numbered = events.hstack([pl.Series("_run", runs).set_sorted(), *choices.columns])
        grouped = numbered.group_by("_run", maintain_order=True).agg(
            *lifts(events, self.time, schema), *choices.lifts()
        )
        return finish(grouped, schema, choices, columns, lifted=True)


@dataclass(frozen=True)
class _Batch:
    """Events key by key, with what the ledger knows of their keys."""

    events: pl.DataFrame
    time: Ints
    sizes: Ints
    keys: pl.DataFrame
    known: dict[str, Array]

    @cached_property
    def ends(self) -> Ints:
        return np.cumsum(self.sizes)

    @cached_property
    def first(self) -> Ints:
        return self.ends - self.sizes

    @cached_property
    def key(self) -> Ints:
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def key_of(self, at: Ints) -> Ints:
        """The keys of the events at these places, which are few beside all."""
        return np.searchsorted(self.ends, at, "right")

    def position(self, at: Ints) -> Ints:
        """The positions of the events at these places."""
        key = self.key_of(at)
        return at - self.first[key] + self.known["count"][key]

    def older(self, than: int) -> Ints:
        """How many of each key's events are older; those are its first ones."""
        if than > int(self.time.max()):
            return self.sizes
        if than <= int(self.time.min()):
            return np.zeros(len(self.sizes), np.int64)
        counts = np.concatenate(([0], np.cumsum(self.time < than)))
        return counts[self.ends] - counts[self.first]

    def on_grids(self, grids: Ints, origin: Ints) -> Ints:
        """The places of the events whose position, counted from an origin for each key, lies on a grid."""
        since = np.maximum(self.known["count"] - origin, 0)  # the first position that can be on a grid …
        place = self.first + origin + since - self.known["count"]  # … and where it is
        until = since + self.ends - place
        found = []
        step = max(1, CHUNK // len(since))
        for begin in range(0, grids.shape[1], step):
            period, phase = grids[:, begin : begin + step, None]
            least = -((phase - since) // period)
            count = np.maximum(-((phase - until) // period) - least, 0)
            many = count.ravel()
            on = np.repeat((phase + least * period - since + place).ravel(), many)
            every = np.repeat(np.repeat(period.ravel(), len(since)), many)
            found.append(on + ramp(many) * every)
        return np.concatenate(found)


def _latest(timeline: Timeline, batch: _Batch, last: Ints, origin: Ints, step: WatermarkStep) -> Ints:
    """Where the windows of `latest` begin whose boundary the step passes, or that a late event may change.

    `last` are each key's last events before an edge: a boundary is one, but not every edge is a boundary.
    """
    assert isinstance(timeline.window, Latest)
    n, every = timeline.window.n, timeline.window.every
    bound = (batch.time[last] // every + 1) * every
    last = last[(bound > step.was_final_before) & (bound <= step.now) & (batch.time[last] >= timeline.since)]
    key = batch.key_of(last)
    return np.maximum(last + 1 - n, batch.first[key] + np.maximum(origin - batch.known["count"], 0)[key])


def _mixed(nth: Ints) -> Ints:
    """Arrival numbers as hashes whose sums tell sets of events apart."""
    return mix(nth.astype(np.uint64) + np.uint64(GOLDEN)).view(np.int64)


def _columns(schema: SliceSchema, time: str, lines: list[Line]) -> dict[str, pl.DataType]:
    """The prepared columns that an ordered group reads."""
    found: dict[str, pl.DataType] = {**schema.keys, time: pl.Int64(), "nth": pl.Int64()}
    found |= {f"order:{name}": dtype for name, dtype in schema.place.items() if name not in ("at", "nth")}
    for one in schema.held:
        found |= {input_name(expression.text): schema.inputs[expression.text] for expression in one.operator.inputs}
        if one.where:
            found[filter_name(one.where.text)] = pl.Boolean()
    for line in lines:
        for text, column in window_columns(line.window).items():
            found[column] = schema.inputs[text] if column == input_name(text) else pl.Boolean()
    return found


def origin_column(since: int) -> str:
    return f"origin {since}"
