"""Ingest: a batch becomes slices and buffered events of every group, without touching any state.

    batch ── admit ──▶ prepared events ──▶ sources (without repeats, filtered for sessions)
          ──▶ ahead of the watermark: sliced, or rolled up
          └─▶ behind it: see `late`

What a batch brings is first all made (`Taken`) and then all handed to the states, so that a batch that is refused
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from windrow.core.arrays.range_queries import Ints
from windrow.core.assemble.group_state import Change, ExclusionSet, GroupState
from windrow.core.ordered.state import OrderedState
from windrow.core.plan.groups import Rates, Source
from windrow.core.plan.watermark import TimeColumn
from windrow.core.query.query import Query
from windrow.core.slices.binding import ARRIVAL, Binding, InputError, no_time
from windrow.core.slices.kernel import filter_name, time_name
from windrow.core.slices.table import merge
from windrow.core.stream import deduplicate
from windrow.core.stream.compiled import CompiledPlan
from windrow.core.stream.job_slicer import Slicer
from windrow.core.stream.late import Behind, slice_behind
from windrow.core.windows.fixed import FURTHEST
from windrow.core.windows.ordered import Mask

ENOUGH = 1000  # events in a first batch from which rates can be estimated
Repeats = tuple[str, tuple[str, ...], int]  # of a time column, on columns, since a time
Kept = dict[Repeats, pl.DataFrame]  # the events of which repeats are dropped


# --- a batch is checked and prepared ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Admitted:
    """The events of a batch, prepared; between which times they lie, by time column; which had no time."""

    events: pl.DataFrame
    spans: dict[str, tuple[int, int]]
    missing: pl.Series | None  # over the whole batch; None if all have a time

    @property
    def bad(self) -> int:
        """How many events had no time."""
        return 0 if self.missing is None else int(self.missing.sum())


def admit(
    batch: pl.DataFrame,
    plan: CompiledPlan,
    time_columns: Mapping[str, TimeColumn],
    bad_events: str,
    arrived: int,
    clock: Callable[[], int] | None = None,
    numbered: bool = False,
) -> Admitted:
    """Check a batch and prepare its events, of which the first has the number `arrived`; what does not fit is refused.

    An event without a time is refused, or left out with `bad_events="drop"`; it keeps its number, so that an event's
    number, which all have if they are `numbered`, says where in the source it stands.
    """
    binding = plan.binding
    events = binding.checked(batch)
    missing = binding.without_time(events)
    numbers: pl.Series | None = None
    if missing is not None:
        if bad_events == "raise":
            raise no_time(int(missing.sum()), batch.height, *binding.time_columns)
        events = events.filter(~missing)
        numbers = (~missing).arg_true().cast(pl.Int64) + arrived
    events = binding.prepare(events, arrived if numbers is None else numbers, clock or _no_clock, numbered)
    spans = {
        name: time_range(events, name, plan.plan.furthest.get(name), time_columns[name])
        for name in binding.time_columns
    }
    return Admitted(events, spans, missing)


def _no_clock() -> int:
    raise AssertionError("only a place that puts events in order has arrival times")


def time_range(events: pl.DataFrame, name: str, furthest: Query | None, time_column: TimeColumn) -> tuple[int, int]:
    """The least and the greatest time of a batch, if every window around them can be written."""
    column = events[time_name(name)]
    if not len(column):
        return 0, 0
    low, high = int(column.min()), int(column.max())  # type: ignore[arg-type]
    if furthest is None:
        return low, high
    room = FURTHEST - furthest.window.reach - (time_column.lateness or 0) - time_column.updates
    if low < -room or high > room:
        raise InputError(
            f"query {furthest.name!r}: {name!r} is {low if low < -room else high} in this batch, "
            f"so far out that {furthest.window} around it cannot be written in 64 bits"
        )
    return low, high


# --- events are sliced, or buffered -----------------------------------------------------------------------------------


@dataclass
class Taken:
    """What a batch brings to states, which do not have it yet."""

    dropped: Mask | None = (
        None  # events of the batch that some window leaves out; None when none is behind the watermark
    )
    late: int = 0
    repeats: int = 0
    slices: list[tuple[GroupState, pl.DataFrame]] = field(default_factory=list)
    exclusions: list[tuple[GroupState, list[ExclusionSet]]] = field(default_factory=list)  # that slices refer to
    buffered: list[tuple[OrderedState, pl.DataFrame]] = field(default_factory=list)  # until their order is final
    changes: dict[str, Change] = field(default_factory=dict)  # by group
    kept: Kept = field(default_factory=dict)

    def drop(self, events: Mask, place: Ints | None) -> None:
        """Note that some window leaves these events out, given by their places in the batch (None for all)."""
        assert self.dropped is not None
        self.dropped[events if place is None else place[events]] = True

    def take_behind(self, state: GroupState, behind: Behind, place: Ints | None) -> None:
        """Take slices of a group's events behind the watermark, which are given by their places as for `drop`."""
        self.slices.append((state, behind.table))
        self.exclusions.append((state, behind.exclusions))
        self.drop(behind.left_out > 0, place)

    def hand_over(self) -> int:
        """Let the states have what is theirs; returns how many events some window leaves out."""
        for state, exclusions in self.exclusions:
            state.exclusions = exclusions
        for state, table in self.slices:
            state.absorb(table)
        for ordered, events in self.buffered:
            ordered.hold(events)
        return 0 if self.dropped is None else int(self.dropped.sum())


def take(
    events: pl.DataFrame,
    states: Mapping[str, GroupState],
    slicer: Slicer,
    time_columns: Mapping[str, TimeColumn],
    kept: Kept,
    spans: Mapping[str, tuple[int, int]],
) -> Taken:
    """Slice the prepared events of a batch for every group, and buffer them for those that need the order."""
    taken = Taken()
    behind: dict[str, Mask] = {}
    for name, (oldest, _) in spans.items():
        watermark = time_columns[name].watermark
        if oldest < watermark:
            behind[name] = events[time_name(name)].to_numpy() < watermark
    if behind:
        taken.dropped = np.zeros(events.height, np.bool_)
        taken.late = int(np.logical_or.reduce(list(behind.values())).sum())
    by_source: dict[Source, list[GroupState]] = {}
    for state in states.values():
        by_source.setdefault(state.group.source, []).append(state)
    ahead: dict[Source, pl.DataFrame] = {}
    repeats: dict[Repeats, pl.Series] = {}
    for source, several in by_source.items():
        seen, place = _seen(events, source, time_columns[source.time], kept, repeats, taken)
        mask = behind.get(source.time)
        if mask is not None and place is not None:
            mask = mask[place]
        ahead[source] = seen if mask is None else seen.filter(pl.Series(~mask))
        for state in several:
            if isinstance(state, OrderedState):
                buffer(state, seen, time_columns[source.time], mask, place, taken)
            elif mask is not None:
                _take_late(state, seen, time_columns[source.time], mask, place, taken)
    taken.slices += [(states[name], table) for name, table in slicer.slice_by_source(ahead).items()]
    return taken


def repeats_of(source: Source) -> Repeats:
    return source.time, source.distinct_on, source.since


def _seen(
    events: pl.DataFrame,
    source: Source,
    time_column: TimeColumn,
    kept: Kept,
    repeats: dict[Repeats, pl.Series],
    taken: Taken,
) -> tuple[pl.DataFrame, Ints | None]:
    """The events that a source sees, and their places in the batch (None for all).

    Which events are no repeats is noted in `repeats`, for sources that drop the same.
    """
    keep: pl.Series | None = None
    if source.distinct_on:
        name = repeats_of(source)
        if name not in repeats:
            before = kept.get(name)
            if before is not None:
                before = deduplicate.forget(before, time_column.lateness, time_column.final_before)
            repeats[name], taken.kept[name] = deduplicate.fresh(
                events, source.distinct_on, time_name(source.time), source.since, time_column.lateness, before
            )
            taken.repeats += int((~repeats[name]).sum())
        keep = repeats[name]
    if source.where:
        satisfied = events[filter_name(source.where.text)]
        keep = satisfied if keep is None else keep & satisfied
    if keep is None or keep.all():
        return events, None
    return events.filter(keep), keep.arg_true().to_numpy()


def _take_late(
    state: GroupState, events: pl.DataFrame, time_column: TimeColumn, behind: Mask, place: Ints | None, taken: Taken
) -> None:
    """Slice the events behind the watermark for the windows that still take them."""
    late = slice_behind(state, events, behind, time_column.final_before)
    taken.take_behind(state, late, place)
    if time_column.updates and late.table.height:
        taken.changes[state.group.name] = change_of(state, late.table, time_column)


def buffer(
    state: OrderedState,
    events: pl.DataFrame,
    time_column: TimeColumn,
    behind: Mask | None,
    place: Ints | None,
    taken: Taken,
) -> None:
    """Buffer events until their order is final; slice those that come too late for that outside of the order."""
    if behind is None:
        taken.buffered.append((state, events))
        return
    too_late = events[time_name(state.group.source.time)].to_numpy() < time_column.final_before
    taken.buffered.append((state, events.filter(pl.Series(~too_late))))
    if too_late.any():
        taken.take_behind(state, slice_behind(state, events, too_late, time_column.final_before), place)
    if time_column.updates:
        # of the same late events as above, so that it has the same exclusion sets
        table = slice_behind(state, events, behind, time_column.final_before).table
        if table.height:
            taken.changes[state.group.name] = change_of(state, table, time_column)


def change_of(state: GroupState, table: pl.DataFrame, time_column: TimeColumn) -> Change:
    """What late slices bring to a group that may still change what it has emitted."""
    return Change(merge([table], state.schema), time_column.final_before, state.closed_sessions(time_column.watermark))


# --- rates ------------------------------------------------------------------------------------------------------------


def measured(frame: pl.DataFrame, binding: Binding, time: str) -> Rates | None:
    """Events per unit of the time column, and distinct values per key, as seen in a first batch."""
    if (
        frame.height < ENOUGH
        or time == ARRIVAL
        or time not in binding.time_columns
        or frame[time].null_count() == frame.height
    ):
        return None
    ends = pl.DataFrame({time: pl.Series([frame[time].min(), frame[time].max()], dtype=frame.schema[time])})
    low, high = binding.times(ends, time).to_list()
    step = high - low
    sample = frame.select(*binding.keys).gather_every(max(1, frame.height // 50_000)) if binding.keys else frame.clear()
    keys = {}
    for key in binding.keys:
        distinct = sample[key].n_unique()
        # a sample that hardly repeats itself says that there are more where it came from
        keys[key] = distinct * (frame.height / sample.height if distinct > sample.height / 2 else 1.0)
    return Rates(frame.height / step, keys) if step > 0 else None
