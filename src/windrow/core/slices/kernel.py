"""Slicing: events become slices.

    times ──▶ Edges.index ──▶ slice of each event ──▶ group_by(keys, slice).agg(lifts) ──▶ slice table

A slice is the events of a key between two neighbouring edges. Which one an event falls into depends on its time alone,
so that late events, and events out of order, fall into theirs like any other, and no slice is ever cut again. There
are four ways to find it, and the cheapest is taken:

    events in order                  cut at indices: a binary search for each edge instead of each event
    edges on one grid, not too fine  a table from each step of the grid to its slice
    other edges                      a binary search for each event
    more edges than events           the last edge of each grid by arithmetic, and the latest of them

Sessions need no sort: two events in one cell [k·gap, (k+1)·gap) are never more than a gap apart, so cells cut like
edges, and `merge` of slice tables joins neighbouring cells into runs, on the small table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from windrow.core.arrays.range_queries import Ints, ramp
from windrow.core.operators.base import Fields, Inputs
from windrow.core.operators.choose import Choices, Selection
from windrow.core.plan.groups import Partial, Timeline
from windrow.core.slices.custom_edges import NO_EDGES, Irregular
from windrow.core.slices.table import SliceSchema, finish, merge
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN, FixedWindow, Grid
from windrow.core.windows.ordered import DataDrivenWindow, Frames, Latest, Punctuated

TABLE_LIMIT = 1 << 22  # entries of a lookup table
SLICED_AT_ONCE = 1 << 20  # events out of order are grouped so many at a time, which is faster than all at once
IN_CACHE = 1 << 16  # events that are looked up at a time
EDGES_PER_EVENT = 4  # more edges than that, and events are looked up grid by grid


@dataclass(frozen=True)
class Edges:
    """All edges of a group: grids, each between two event times; points where queries come or go; irregular ones."""

    period: Ints
    phase: Ints
    since: Ints
    until: Ints
    points: Ints
    irregular: Irregular

    @staticmethod
    def of(timelines: Iterable[Timeline]) -> Edges:
        grids, points, every = set(), set(), list(timelines)
        for timeline in every:
            points |= {timeline.since, timeline.until} - {INT64_MIN, INT64_MAX}
            if isinstance(timeline.window, FixedWindow):
                stop = timeline.until if timeline.until == INT64_MAX else timeline.until + timeline.window.reach
                grids |= {(*grid, timeline.since, stop) for grid in timeline.window.grids()}
            elif isinstance(timeline.window, Latest):
                grids.add((timeline.window.every, 0, INT64_MIN, INT64_MAX))
        period, phase, since, until = np.array(sorted(grids), np.int64).reshape(-1, 4).T
        return Edges(period, phase, since, until, np.array(sorted(points), np.int64), Irregular(every))

    def floor(self, times: Ints) -> Ints:
        """The last edge at or before each time; INT64_MIN where there is none."""
        if not len(times):
            return times
        lo, hi = int(times.min()), int(times.max())
        own = self.irregular.edges(times)
        if self._count(lo, hi) > max(EDGES_PER_EVENT * len(times), 4096) * max(1, len(self.period)):
            return self._floor_by_grid(times, own)
        edges = self._between(lo, hi, own)
        return edges[np.searchsorted(edges, times, "right") - 1]

    def index(self, times: Ints, in_order: bool, cell: int | None) -> tuple[npt.NDArray[np.uint32], Ints]:
        """For each event the number of its range between two cuts, and for each range the edge before it.

        With a `cell`, the multiples of it cut too, so that a slice can come in several ranges.
        """
        lo, hi = (int(times[0]), int(times[-1])) if in_order else (int(times.min()), int(times.max()))
        cells = (hi - lo) // cell + 2 if cell else 0
        own = self.irregular.edges(times)
        if self._count(lo, hi) + cells > max(EDGES_PER_EVENT * len(times), 4096):
            return self._index_by_grid(times, cell, own)
        edges = self._between(lo, hi, own)
        cuts = edges
        if cell:
            first = lo // cell * cell
            cuts = np.unique(np.concatenate((edges, np.arange(first, hi + 1, cell))))
            cuts = cuts[np.searchsorted(cuts, lo, "right") - 1 :]
        before = edges[np.searchsorted(edges, cuts, "right") - 1]
        if in_order:
            ends = np.append(np.searchsorted(times, cuts[1:], "left"), len(times))
            return np.repeat(np.arange(len(cuts), dtype=np.uint32), np.diff(ends, prepend=0)), before
        inner = cuts[1:]
        step = int(np.gcd.reduce(inner - inner[0])) if len(inner) > 1 else 0
        base = int(Grid(step, int(inner[0])).at_or_before(lo)) if step else 0
        if step and (hi - base) // step < TABLE_LIMIT:
            ends = np.append(inner, Grid(step, base).after(hi))
            sizes = np.diff((ends - base) // step, prepend=0)
            table = np.repeat(np.arange(len(cuts), dtype=np.uint32), sizes)
            numbers = np.empty(len(times), np.uint32)
            for at in range(0, len(times), IN_CACHE):
                numbers[at : at + IN_CACHE] = table[(times[at : at + IN_CACHE] - base) // step]
            return numbers, before
        return np.searchsorted(inner, times, "right").astype(np.uint32), before

    def _count(self, lo: int, hi: int) -> float:
        """About how many edges there are between two times."""
        return float(((hi - lo) / self.period).sum()) + len(self.points)

    def _between(self, lo: int, hi: int, own: Ints) -> Ints:
        """The last edge at or before `lo` (INT64_MIN without one), and all edges up to `hi`, sorted."""
        grids = Grid(self.period, self.phase)
        # a period before `lo`, or before a grid has ended, there is an edge: the last one before `lo` is found, too
        first = grids.number_from(np.maximum(self.since, np.minimum(self.until, lo) - self.period))
        count = np.maximum(grids.number(np.minimum(self.until, hi)) - first + 1, 0)
        edges = np.repeat(grids.time(first), count) + ramp(count) * np.repeat(self.period, count)
        edges = np.unique(np.concatenate((edges, self.points, own)))
        from_ = np.searchsorted(edges, lo, "right") - 1
        edges = edges[max(from_, 0) : np.searchsorted(edges, hi, "right")]
        return edges if from_ >= 0 else np.append(np.int64(INT64_MIN), edges)

    def _floor_by_grid(self, times: Ints, own: Ints = NO_EDGES) -> Ints:
        floor = np.full(len(times), INT64_MIN)
        points = np.union1d(self.points, own)
        if len(points):
            at = np.searchsorted(points, times, "right") - 1
            floor = np.where(at >= 0, points[at], floor)
        for period, phase, since, until in zip(self.period, self.phase, self.since, self.until, strict=True):
            edge = Grid(period, phase).at_or_before(np.minimum(times, until))
            np.maximum(floor, edge, out=floor, where=edge >= since)
        return floor

    def _index_by_grid(
        self, times: Ints, cell: int | None, own: Ints = NO_EDGES
    ) -> tuple[npt.NDArray[np.uint32], Ints]:
        starts = self._floor_by_grid(times, own)
        if cell:
            cuts = np.maximum(starts, times - times % cell)
            cuts, numbers = np.unique(cuts, return_inverse=True)
            return numbers.astype(np.uint32), self._floor_by_grid(cuts, own)
        starts, numbers = np.unique(starts, return_inverse=True)
        return numbers.astype(np.uint32), starts


def slice(batch: pl.DataFrame, time_column: str, edges: Edges, schema: SliceSchema) -> pl.DataFrame:
    """Slice a prepared batch (`Binding.prepare`): a row for each keys and range between two edges.

    Operators that read events in their order get them sorted. With sessions, cells become runs at the end.
    """
    if not batch.height:
        return schema.empty()
    time, order = time_name(time_column), [name for name in batch.columns if name.startswith("order:")]
    in_order = batch[time].is_sorted()
    if any(partial.operator.ordered for partial in schema.partials) and not (in_order and not order):
        batch, in_order = batch.sort([time, *order], maintain_order=True), True
    if not in_order and batch.height > SLICED_AT_ONCE:
        parts = [batch[at : at + SLICED_AT_ONCE] for at in range(0, batch.height, SLICED_AT_ONCE)]
        return merge([slice(part, time_column, edges, schema) for part in parts], schema)
    numbers, before = edges.index(batch[time].to_numpy(), in_order, schema.gap)
    excluded = ["excluded"] if "excluded" in batch.columns else []
    lifted = list(lifts(batch, time, schema))
    if schema.has_runs:
        lifted += [pl.col(time).min().alias("first"), pl.col(time).max().alias("last")]
    choices = Choices(
        schema.selections(lambda partial: places(batch, partial, time, schema)), batch.height, in_order=True
    )
    keys = list(schema.keys)
    coded = None if in_order else _with_key(batch, schema, numbers, len(before))
    if coded is not None:
        keys, numbers = [], coded.numbers
    numbered = batch.with_columns(pl.Series("slice_start", numbers), *choices.columns)
    table = numbered.group_by(*keys, "slice_start", *excluded).agg(*lifted, *choices.lifts())
    number = table["slice_start"].to_numpy()
    columns = {} if coded is None else {coded.name: pl.Series(number.astype(np.int64) // len(before) + coded.least)}
    columns["slice_start"] = pl.Series(before[number % len(before)])
    if schema.has_runs and not excluded:
        columns["excluded"] = pl.zeros(table.height, pl.Int32, eager=True)
    columns |= {
        name: pl.Series([value], dtype=schema.columns[name]).new_from_index(0, table.height)
        for name, value in {**schema.unordered, **dict.fromkeys(schema.lists)}.items()
    }
    table = finish(table, schema, choices, columns, lifted=True)
    return merge([table], schema) if schema.has_runs else table


class _Coded(NamedTuple):
    name: str  # of the key
    least: int
    numbers: npt.NDArray[np.uint32]


def _with_key(batch: pl.DataFrame, schema: SliceSchema, numbers: npt.NDArray[np.uint32], size: int) -> _Coded | None:
    """One number for key and range together, where there is one key, of integers that are close together.

    Polars groups events that are out of order twice as fast by one column as by two.
    """
    if len(schema.keys) != 1:
        return None
    ((name, dtype),) = schema.keys.items()
    column = batch[name]
    if not dtype.is_integer() or dtype in (pl.UInt64(), pl.Int128()) or column.null_count():
        return None
    least, most = int(column.min()), int(column.max())  # type: ignore[arg-type]
    if (most - least + 1) * size >= 2**32:
        return None
    values, codes = column.cast(pl.Int64).to_numpy(), np.empty(batch.height, np.uint32)
    for at in range(0, batch.height, IN_CACHE):
        codes[at : at + IN_CACHE] = (values[at : at + IN_CACHE] - least) * size + numbers[at : at + IN_CACHE]
    return _Coded(name, least, codes)


def key_name(name: str) -> str:
    return f"key:{name}"


def time_name(name: str) -> str:
    return f"time:{name}"


def input_name(text: str) -> str:
    return f"input:{text}"


def filter_name(text: str) -> str:
    return f"filter:{text}"


def window_columns(window: DataDrivenWindow) -> dict[str, str]:
    """The prepared columns that a data-driven window reads, by its expressions."""
    name = filter_name if isinstance(window, Punctuated | Frames) else input_name
    return {text: name(text) for text in window.inputs}


def places(batch: pl.DataFrame, partial: Partial, time: str, schema: SliceSchema) -> Fields:
    """The events as states of a selection: its value, what it is chosen by, and its place in the order.

    An event that the filter leaves out has no place, so that it is never chosen.
    """
    inputs = [batch[input_name(expression.text)] for expression in partial.operator.inputs]
    columns = {"at": batch[time]}
    columns |= {name: batch[f"order:{name}"] for name in schema.place if name not in ("at", "nth")}
    nth = batch["nth"]
    if partial.where:
        nth = nth.set(~batch[filter_name(partial.where.text)], None)
    return Fields({**dict(zip(("value", "by"), inputs, strict=False)), **columns, "nth": nth})


def lifts(batch: pl.DataFrame, time: str, schema: SliceSchema) -> Iterable[pl.Expr]:
    """The expressions that lift every partial of the schema, but for selections: `Choices` does these together."""
    places = {name: pl.col(name if name == "nth" else f"order:{name}") for name in schema.place}
    places["at"] = pl.col(time)
    for partial in schema.partials:
        if isinstance(partial.operator, Selection):
            continue
        columns = [input_name(expression.text) for expression in partial.operator.inputs]
        keep = pl.col(filter_name(partial.where.text)) if partial.where else None
        chosen = [pl.col(column) for column in columns] or ([keep] if keep is not None else [])
        of = Inputs(
            columns=[column if keep is None else column.filter(keep) for column in chosen],
            types=schema.input_types(partial),
            dense=keep is None and not any(batch[column].null_count() for column in columns),
            place={name: place if keep is None else place.filter(keep) for name, place in places.items()}
            if partial.operator.ordered
            else {},
        )
        for name, lifted in partial.operator.lift(of).items():
            yield lifted.alias(schema.names[partial][name])


def roll_up(table: pl.DataFrame, edges: Edges, schema: SliceSchema) -> pl.DataFrame:
    """Make the slices of fewer keys from those of more keys, whose edges are among theirs; no event is looked at."""
    if not table.height:
        return schema.empty()
    starts = table["slice_start"].to_numpy().copy()
    has_edge = starts != INT64_MIN
    starts[has_edge] = edges.floor(starts[has_edge])
    return merge([schema.conform(table.with_columns(pl.Series("slice_start", starts)))], schema)
