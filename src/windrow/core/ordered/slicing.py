"""Slicing in order: events whose order is final become ordered slices.

    final events ── by key, in order ──▶ positions ──▶ cuts ──▶ runs of events ──▶ slices with a position

A slice is a run of consecutive events of one key, so nothing is hashed but the keys: each cut is an index, and a run
is aggregated where it lies. What cuts: the edges of time windows, pauses longer than the smallest session gap, the
edges of counting windows, which are grids over positions as time windows are grids over time, and the bounds that
data-driven windows find. Two more cuts are of this step alone: where a `latest` window begins, and between the events
that are done with and those that stay buffered.

What a key's next events need of those before them stands in its **carry**, a row per key: how many there were, the
time of the last, and what each data-driven window carries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from windrow.core.arrays.checks import MOST, lacking, wrong_numbers
from windrow.core.arrays.dataframes import join_keys
from windrow.core.arrays.hashing import GOLDEN, mix
from windrow.core.arrays.range_queries import CHUNK, Array, Ints, Mask, ramp
from windrow.core.operators.choose import Choices
from windrow.core.ordered.custom_bounds import CustomBounds, CustomWindow
from windrow.core.plan.groups import Group
from windrow.core.plan.watermark import WatermarkStep
from windrow.core.slices.kernel import Edges, filter_name, input_name, lifts, places, time_name, window_columns
from windrow.core.slices.table import SliceSchema, finish
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN, Grid
from windrow.core.windows.ordered import Counting, DataDrivenWindow, Latest


class Carry:
    """A row per key, with columns of plain values; a key that is not there has the initial ones."""

    def __init__(self, keys: Mapping[str, pl.DataType], initial: Mapping[str, Any]) -> None:
        self.keys, self.initial = list(keys), dict(initial)
        self._types = {name: _TYPES[type(value)] for name, value in self.initial.items()}
        self.table = pl.DataFrame(schema={**keys, **self._types})

    def at(self, keys: pl.DataFrame) -> dict[str, Array]:
        """The values of these keys, in arrays that the caller may change."""
        if self.keys:
            rows = join_keys(keys, self.table, self.keys, "left")
        else:
            rows = self.table if self.table.height else pl.DataFrame([{**self.initial}], schema=self.table.schema)
        return {name: _filled(rows[name], value) for name, value in self.initial.items()}

    def set(self, keys: pl.DataFrame, values: Mapping[str, Array]) -> None:
        """Replace the values of these keys."""
        columns = [pl.Series(name, values[name], dtype=self._types[name]) for name in self.initial]
        table = pl.DataFrame([*keys.get_columns(), *columns]) if self.keys else pl.DataFrame(columns)
        if self.keys and self.table.height:
            others = join_keys(self.table, keys, self.keys, "anti")
            table = pl.concat([others[table.columns], table])
        self.table = table

    def forget(self, at_rest: pl.Expr, keys: pl.DataFrame) -> None:
        """Forget keys that are at rest and none of these."""
        resting = join_keys(self.table.filter(at_rest), keys, self.keys, "semi")
        self.table = pl.concat([self.table.filter(~at_rest), resting])

    def load(self, table: pl.DataFrame) -> None:
        """Go on with the table of another plan's carry; for a query that it does not know all events so far are old."""
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
    is_done: Mask  # for each slice: its events are done with, and not sliced again
    recent: pl.DataFrame | None  # the events that are sliced again, in order
    keys: pl.DataFrame
    before: dict[str, Array]  # the carry before them
    done: dict[str, Array]  # the carry after the events that are done with
    now: dict[str, Array]  # the carry after all events
    changed: Ints  # the position of the key's first late event, INT64_MAX where none is


class Ordering:
    """What cuts the ordered events of a group; prepared once per plan."""

    def __init__(self, group: Group, schema: SliceSchema, edges: Edges) -> None:
        self.schema, self.edges = schema, edges
        self.time = time_name(group.source.time)
        timelines = list(group.timelines)
        self._custom = [
            CustomWindow(line, timeline.window, timeline.since)
            for line, timeline in group.lines.items()
            if isinstance(timeline.window, DataDrivenWindow)
        ]
        self._latest = [(line.window, line.since) for line in timelines if isinstance(line.window, Latest)]
        self.most = max((window.n for window, _ in self._latest), default=0)
        counting = [(line.window, line.since) for line in timelines if isinstance(line.window, Counting)]
        self._sinces = sorted({since for _, since in (*counting, *self._latest)} - {INT64_MIN})
        grids: dict[int, set[tuple[int, int]]] = {}
        for window, since in counting:
            grids.setdefault(since, set()).update({(window.step, 0), (window.step, window.n % window.step)})
        self.grids = {since: Grid(*np.array(sorted(edges), np.int64).T) for since, edges in grids.items()}
        self.needed = _columns(schema, self.time, self._custom)  # of the events that are buffered …
        has_places = schema.digests or any(partial.operator.ordered for partial in schema.partials)
        if not has_places:
            del self.needed["nth"]
        keep_order = [name for name in self.needed if has_places or not name.startswith("order:")]
        self.read = [name for name in keep_order if name not in schema.keys]  # … and once they are in order

    def conform(self, events: pl.DataFrame) -> pl.DataFrame:
        """Events buffered under an older plan, with null in what only a new query reads: it does not see them."""
        missing = [pl.lit(None, dtype).alias(name) for name, dtype in self.needed.items() if name not in events.columns]
        return events.with_columns(missing).select(*self.needed)

    def wrong_with(self, events: pl.DataFrame, times: tuple[int, int]) -> str | None:
        """Why events of the right types that a stranger sends cannot be, as part of a sentence; None if they can.

        All but the time may be missing, as `conform` leaves it.
        """
        times_of = {self.time: events[self.time]}
        numbers = {name: events[name] for name in ("nth",) if name in self.needed and name in events.columns}
        return lacking(times_of) or wrong_numbers(times_of, *times) or wrong_numbers(numbers, 0, MOST)

    @property
    def initial(self) -> dict[str, Any]:
        """A key's carry before its first event; `final` counts the events that no late one can come before."""
        carry: dict[str, Any] = {"count": 0, "last": INT64_MIN, "start": INT64_MIN, "final": 0}
        carry |= {origin_column(since): 0 for since in self._sinces}
        return carry | {name: value for window in self._custom for name, value in window.initial.items()}

    @property
    def at_rest(self) -> pl.Expr:
        """Which keys carry nothing on: no window of theirs is open."""
        initial = [item for window in self._custom for item in window.initial.items()]
        rests = [pl.col(name) == value for name, value in initial if not name.endswith((".number", ".started"))]
        return pl.all_horizontal(pl.lit(True), *rests)

    def sorted(self, events: pl.DataFrame) -> tuple[pl.Series | None, Ints, pl.DataFrame]:
        """The order of events by key and place (None where they stand in it), how many each key has, and the keys."""
        order_columns = [name for name in events.columns if name.startswith("order:")]
        in_time: pl.Series | None = None
        if order_columns:
            in_time = events.select(pl.arg_sort_by(self.time, *order_columns, maintain_order=True)).to_series()
        elif not events[self.time].is_sorted():
            in_time = pl.Series(np.argsort(events[self.time].to_numpy(), kind="stable"))
        if not self.schema.keys:
            return in_time, np.array([events.height]), pl.DataFrame()
        named = events[list(self.schema.keys)]
        named = (named if in_time is None else named[in_time]).with_row_index("_index")
        grouped = named.group_by(*self.schema.keys, maintain_order=True).agg("_index")
        sizes = grouped["_index"].list.len().cast(pl.Int64).to_numpy()
        keys = grouped[list(self.schema.keys)]
        if len(sizes) == 1:
            return in_time, sizes, keys
        by_key = grouped["_index"].explode()
        return by_key if in_time is None else in_time.gather(by_key), sizes, keys

    def slice(self, events: pl.DataFrame, late: Mask | None, base: Carry, step: WatermarkStep) -> Sliced:
        """Put events in order, key by key, and slice them; each key's follow those that its carry has counted.

        events: those that the step makes final, after those that are still buffered from the steps before
        late:   which of them came behind the watermark; None if none did
        base:   the carry of all keys before these events
        """
        order, sizes, keys = self.sorted(events)
        read = events[self.read]
        read = read if order is None else read[order]
        time = read[self.time].to_numpy()
        batch = _Batch(read, time, sizes, keys, base.at(keys), *self.edges.index(time, len(sizes) == 1, None))
        bounds = [CustomBounds.of(window, batch.part(), batch.first, batch.carry) for window in self._custom]
        final = batch.older(step.final_before)
        done = np.maximum(final - self.most, 0) if self.most else final  # `latest` still needs the last ones
        cuts = self._cuts(batch, bounds)
        at = np.flatnonzero(self._begins(batch, cuts, done, step))
        table = self.lifted(batch.events, at, self._columns(batch, bounds, cuts, at))
        after_done, now = self._carried(batch, bounds, final, done)
        is_done = at < (batch.first + done)[batch.key_of(at)]
        recent = _recent(events, order, batch, done)
        return Sliced(table, is_done, recent, keys, batch.carry, after_done, now, _first_late(late, order, batch))

    def _cuts(self, batch: _Batch, bounds: Sequence[CustomBounds]) -> Mask:
        """Mark each event that an edge separates from the event of its key before it.

        What is marked depends on the order of events alone, and never on how steps part it: a key's first event in the
        batch is compared with what the key carries as every other event is with the one before it. So slices of
        several steps merge into those of a single one.
        """
        time, first, carry = batch.time, batch.first, batch.carry
        cuts = np.zeros(len(time), np.bool_)
        is_cut = (carry["count"] == 0) | (batch.before[batch.edge[first]] > carry["last"])  # of each key's first event
        if len(batch.before) > 1:
            np.not_equal(batch.edge[1:], batch.edge[:-1], out=cuts[1:])
        if self.schema.gap is not None:
            cuts[1:] |= time[1:] - time[:-1] > self.schema.gap
            is_cut |= time[first] - self.schema.gap > carry["last"]
        for bound in bounds:
            bound.cut(cuts)
            is_cut |= bound.number(first, np.arange(len(first))) != carry[f"{bound.window.name}.number"]
        cuts[first] = is_cut  # what was found above compares it with another key's last event
        for since, grids in self.grids.items():
            cuts[batch.on_grids(grids, batch.origin(since))] = True
        return cuts

    def _begins(self, batch: _Batch, cuts: Mask, done: Ints, step: WatermarkStep) -> Mask:
        """Mark each event that a slice of this step begins with: where it is cut, and two more.

        A slice has events of one key alone, and none that is done with beside one that stays buffered. A `latest`
        window begins anywhere; that cut ends with the step, because the window is never asked for again.
        """
        begins = cuts.copy()
        begins[batch.first] = True
        begins[(batch.first + done)[done < batch.sizes]] = True
        if self._latest:
            # a boundary of `latest` is an edge, so that a window ends with a key's last event before some edge
            ends = np.concatenate((np.flatnonzero(batch.edge[1:] != batch.edge[:-1]), batch.ends - 1))
            for window, since in self._latest:
                begins[_latest_begins(window, since, batch, ends, step)] = True
        return begins

    def _columns(self, batch: _Batch, bounds: Sequence[CustomBounds], cuts: Mask, at: Ints) -> dict[str, pl.Series]:
        """The columns that say where slices are, which begin at these events; each ends where the next begins."""
        key, time = batch.key_of(at), batch.time
        columns = {name: batch.keys[name].gather(key) for name in self.schema.keys}
        columns |= {
            "slice_start": pl.Series(batch.edge_before(at, key)),
            "excluded": pl.zeros(len(at), pl.Int32, eager=True),
            "first": pl.Series(time[at]),
            "last": pl.Series(time[np.append(at[1:], len(time)) - 1]),
            "position": pl.Series(batch.position(at)),
            "fresh": pl.Series(cuts[at]),
        }
        columns |= {bound.window.name: pl.Series(bound.mark(at, key)) for bound in bounds}
        if self.schema.digests:
            columns["digest"] = pl.Series(np.add.reduceat(_mixed(batch.events["nth"].to_numpy()), at))
        return columns

    def _carried(
        self, batch: _Batch, bounds: Sequence[CustomBounds], final: Ints, done: Ints
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Give each key's carry after its `done` events, from which the recent ones are sliced again in the next step,
        and after all its events.
        """
        after_done, now = batch.carry_after(done), batch.carry_after(batch.sizes)
        after_done["final"] = now["final"] = batch.carry["count"] + final
        for since in self._sinces:
            older, name = batch.older(since), origin_column(since)
            after_done[name], now[name] = batch.carry[name] + np.minimum(older, done), batch.carry[name] + older
        for bound in bounds:
            now |= bound.after(batch.sizes)
            if bound.window.window.initial and (done < batch.sizes).any():
                # only the window itself knows its state in the midst of a batch: ask it again, up to there
                bound = CustomBounds.of(bound.window, batch.part(done), np.cumsum(done) - done, batch.carry)
            after_done |= bound.after(done)
        return after_done, now

    def lifted(self, events: pl.DataFrame, at: Ints, columns: dict[str, pl.Series]) -> pl.DataFrame:
        """The states of runs of events that begin at these indices, as a slice table with these columns."""
        schema = self.schema
        choices = Choices(
            schema.selections(lambda partial: places(events, partial, self.time, schema)), events.height, in_order=True
        )
        runs = np.repeat(np.arange(len(at), dtype=np.uint32), np.diff(np.append(at, events.height)))
        numbered = events.hstack([pl.Series("_run", runs).set_sorted(), *choices.columns])
        grouped = numbered.group_by("_run", maintain_order=True).agg(
            *lifts(events, self.time, schema), *choices.lifts()
        )
        return finish(grouped, schema, choices, columns, lifted=True)


@dataclass(frozen=True)
class _Batch:
    """Events key by key, those of a key in their order, with its carry and the edge before each event."""

    events: pl.DataFrame
    time: Ints
    sizes: Ints  # how many events each key has
    keys: pl.DataFrame
    carry: dict[str, Array]
    edge: npt.NDArray[np.uint32]  # for each event a number that grows with time …
    before: Ints  # … and for each number the last edge at or before its events

    @cached_property
    def ends(self) -> Ints:
        return np.cumsum(self.sizes)

    @cached_property
    def first(self) -> Ints:
        """Where each key's events begin."""
        return self.ends - self.sizes

    @cached_property
    def key(self) -> Ints:
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def key_of(self, at: Ints) -> Ints:
        """The keys of the events at these indices, which are few beside all."""
        return np.searchsorted(self.ends, at, "right")

    def part(self, counts: Ints | None = None) -> tuple[pl.DataFrame, Ints, Ints]:
        """The first so many events of each key, their times and their keys; all of them without counts."""
        if counts is None:
            return self.events, self.time, self.key
        chosen = np.repeat(self.first, counts) + ramp(counts)
        return self.events[chosen], self.time[chosen], self.key[chosen]

    def position(self, at: Ints) -> Ints:
        """The positions of the events at these indices."""
        key = self.key_of(at)
        return at - self.first[key] + self.carry["count"][key]

    def edge_before(self, at: Ints, key: Ints) -> Ints:
        """The edge that a slice begins at which holds these events.

        Where queries have gone, and edges with them, that edge can lie before the one of the key's last slice: then it
        is the same as of that slice, so that slices of a key stay sorted by their edges.
        """
        return np.maximum(self.before[self.edge[at]], self.carry["start"][key])

    def carry_after(self, counts: Ints) -> dict[str, Array]:
        """What does not depend on windows, after the first so many events of each key; as before where it has none."""
        last = np.maximum(self.first + counts, 1) - 1  # of a key without an event any index: `where` leaves it out
        some = counts > 0
        start = self.edge_before(last, np.arange(len(counts)))
        return {
            "count": self.carry["count"] + counts,
            "last": np.where(some, self.time[last], self.carry["last"]),
            "start": np.where(some, start, self.carry["start"]),
        }

    def older(self, than: int) -> Ints:
        """How many of each key's events are older; those are its first ones."""
        if than > int(self.time.max()):
            return self.sizes
        if than <= int(self.time.min()):
            return np.zeros(len(self.sizes), np.int64)
        counts = np.concatenate(([0], np.cumsum(self.time < than)))
        return counts[self.ends] - counts[self.first]

    def origin(self, since: int) -> Ints:
        """The position of each key's first event that is not older than a query: from there it counts."""
        if since == INT64_MIN:
            return np.zeros(len(self.sizes), np.int64)
        return self.carry[origin_column(since)] + self.older(since)

    def on_grids(self, grids: Grid, origin: Ints) -> Ints:
        """The indices of the events whose position, counted from an origin for each key, lies on a grid.

        Per grid and key these are the grid positions in [from, until), written down without a look at other events.
        """
        from_ = np.maximum(self.carry["count"] - origin, 0)  # the first position of the batch that counts …
        index = self.first + origin + from_ - self.carry["count"]  # … and the event that has it
        until = from_ + self.ends - index
        parts = []
        period, phase = np.atleast_1d(grids.period), np.atleast_1d(grids.phase)
        size = max(1, CHUNK // len(from_))
        for begin in range(0, len(period), size):
            grid = Grid(period[begin : begin + size, None], phase[begin : begin + size, None])
            number = grid.number_from(from_)
            count = np.maximum(grid.number_from(until) - number, 0).ravel()
            every = np.repeat(np.repeat(grid.period, len(from_)), count)
            parts.append(np.repeat((grid.time(number) - from_ + index).ravel(), count) + ramp(count) * every)
        return np.concatenate(parts)


def _latest_begins(window: Latest, since: int, batch: _Batch, ends: Ints, step: WatermarkStep) -> Ints:
    """Give the events at which `latest` windows begin whose boundary the step passes, or which a late event may change.

    `ends` has each key's last event before each edge. Two edges may lie before the same boundary: then a slice begins
    that no window needs, which costs a row and changes no answer.
    """
    boundary = Grid(window.every, 0).after(batch.time[ends])
    ends = ends[(boundary > step.was_final_before) & (boundary <= step.now) & (batch.time[ends] >= since)]
    key = batch.key_of(ends)
    oldest = np.maximum(batch.origin(since) - batch.carry["count"], 0)  # of the batch, that the query sees
    return np.maximum(ends + 1 - window.n, (batch.first + oldest)[key])


def _recent(events: pl.DataFrame, order: pl.Series | None, batch: _Batch, done: Ints) -> pl.DataFrame | None:
    """The events that are not done with, in order, with all their columns."""
    counts = batch.sizes - done
    index = ramp(counts) + np.repeat(batch.first + done, counts)
    return events[index if order is None else order.gather(index)] if len(index) else None


def _first_late(late: Mask | None, order: pl.Series | None, batch: _Batch) -> Ints:
    """The position of each key's first late event, INT64_MAX where none is."""
    position = np.full(len(batch.sizes), INT64_MAX)
    if late is not None:
        at = np.flatnonzero(late if order is None else late[order.to_numpy()])[::-1]  # the first of a key is set last
        position[batch.key_of(at)] = batch.position(at)
    return position


def _mixed(nth: Ints) -> Ints:
    """Arrival numbers as hashes: sums of them differ, but for one case in 2^64, where sets of events differ."""
    return mix(nth.astype(np.uint64) + np.uint64(GOLDEN)).view(np.int64)


def _columns(schema: SliceSchema, time: str, custom: Sequence[CustomWindow]) -> dict[str, pl.DataType]:
    """The prepared columns that an ordered group reads."""
    columns: dict[str, pl.DataType] = {**schema.keys, time: pl.Int64(), "nth": pl.Int64()}
    columns |= {f"order:{name}": dtype for name, dtype in schema.place.items() if name not in ("at", "nth")}
    for operator, where in schema.partials:
        columns |= {input_name(expression.text): schema.inputs[expression.text] for expression in operator.inputs}
        if where:
            columns[filter_name(where.text)] = pl.Boolean()
    for line in custom:
        for text, column in window_columns(line.window).items():
            columns[column] = schema.inputs[text] if column == input_name(text) else pl.Boolean()
    return columns


def origin_column(since: int) -> str:
    """The column of a carry with the number of a key's events that are older than a query."""
    return f"origin {since}"
