"""Intake: a batch becomes slices for every group, without touching any state.

events ──▶ sources (without repeats, filtered for sessions) ──▶ ahead of the watermark: sliced, or rolled up
                                                          └──▶ behind it: see `late`
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from windrow.core.assemble.group_state import Change, ExclusionSet, GroupState
from windrow.core.ordered.state import OrderedState
from windrow.core.plan.groups import Rates, Source
from windrow.core.plan.watermark import TimeColumn
from windrow.core.query.query import Query
from windrow.core.slices.binding import ARRIVAL, Binding, InputError
from windrow.core.slices.kernel import filter_name, roll_up, slice, time_name
from windrow.core.slices.table import merge
from windrow.core.stream import deduplicate
from windrow.core.stream.late import Behind, slice_behind
from windrow.core.windows.fixed import FURTHEST
from windrow.core.windows.ordered import Mask

ENOUGH = 1000  # events in a first batch from which rates can be told
Repeats = tuple[str, tuple[str, ...], int]  # of a time column, on columns, since a time
Kept = dict[Repeats, pl.DataFrame]  # what was kept


@dataclass
class Taken:
    """A batch, sliced."""

    dropped: Mask | None = None  # None when no event is behind the watermark
    late: int = 0
    repeats: int = 0
    slices: list[tuple[GroupState, pl.DataFrame]] = field(default_factory=list)
    exclusions: list[tuple[GroupState, list[ExclusionSet]]] = field(default_factory=list)  # that slices refer to
    held: list[tuple[OrderedState, pl.DataFrame]] = field(default_factory=list)  # until their order is final
    changes: dict[Any, Change] = field(default_factory=dict)
    fresh: dict[Repeats, pl.Series] = field(default_factory=dict)
    kept: Kept = field(default_factory=dict)

    def drop(self, events: Mask, place: Any) -> None:
        """Some window leaves these events out, given by their places in the batch (None for all)."""
        assert self.dropped is not None
        self.dropped[events if place is None else place[events]] = True

    def take_behind(self, state: GroupState, behind: Behind, place: Any) -> None:
        """Slices of a group's events behind the watermark, which are given by their places as for `drop`."""
        self.slices.append((state, behind.table))
        self.exclusions.append((state, behind.exclusions))
        self.drop(behind.left_out > 0, place)

    def finish(self) -> int:
        """Let the states have what is theirs; returns how many events some window leaves out."""
        for state, exclusions in self.exclusions:
            state.exclusions = exclusions
        for state, table in self.slices:
            state.absorb(table)
        for waiting, events in self.held:
            waiting.hold(events)
        return 0 if self.dropped is None else int(self.dropped.sum())


def take(
    events: pl.DataFrame,
    states: Iterable[GroupState],
    time_columns: Mapping[str, TimeColumn],
    kept: Kept,
    spans: Mapping[str, tuple[int, int]],
) -> Taken:
    """Slice a prepared batch for every group."""
    taken = Taken()
    behind: dict[str, Mask] = {}
    for name, (oldest, _) in spans.items():
        mark = time_columns[name].watermark
        if oldest < mark:
            behind[name] = events[time_name(name)].to_numpy() < mark
    if behind:
        taken.dropped = np.zeros(events.height, np.bool_)
        taken.late = int(np.logical_or.reduce(list(behind.values())).sum())
    sources: dict[Source, list[GroupState]] = {}
    for state in states:
        sources.setdefault(state.group.source, []).append(state)
    for source, several in sources.items():
        chosen, place = _seen(events, source, time_columns[source.time], kept, taken)
        mask = behind.get(source.time)
        if mask is not None and place is not None:
            mask = mask[place]
        _slice(several, chosen, time_columns[source.time], mask, place, taken)
    return taken


def repeats_of(source: Source) -> Repeats:
    return source.time, source.distinct_on, source.since


def _seen(
    events: pl.DataFrame, source: Source, time_column: TimeColumn, kept: Kept, taken: Taken
) -> tuple[pl.DataFrame, Any]:
    """The events that a source sees, and their places in the batch (None for all)."""
    keep: pl.Series | None = None
    if source.distinct_on:
        known = repeats_of(source)
        if known not in taken.fresh:
            before = kept.get(known)
            if before is not None:
                before = deduplicate.forget(before, time_column.lateness, time_column.final_before)
            taken.fresh[known], taken.kept[known] = deduplicate.fresh(
                events, source.distinct_on, time_name(source.time), source.since, time_column.lateness, before
            )
            taken.repeats += int((~taken.fresh[known]).sum())
        keep = taken.fresh[known]
    if source.where:
        satisfied = events[filter_name(source.where.text)]
        keep = satisfied if keep is None else keep & satisfied
    if keep is None or keep.all():
        return events, None
    return events.filter(keep), keep.arg_true().to_numpy()


def _slice(
    states: list[GroupState],
    events: pl.DataFrame,
    time_column: TimeColumn,
    behind: Mask | None,
    place: Any,
    taken: Taken,
) -> None:
    """Slices for the groups of one source: from the events, or rolled up from those of a finer group."""
    ahead = events if behind is None else events.filter(pl.Series(~behind))
    made: dict[Any, pl.DataFrame] = {}
    for state in states:
        name, parent = state.group.source.time, state.group.parent
        if isinstance(state, OrderedState):
            _hold(state, events, time_column, behind, place, taken)
            continue
        if parent is not None and parent.identity in made:
            table = roll_up(made[parent.identity], state.edges, state.schema)
        elif state.group.children:
            shared = made[state.group.identity] = slice(ahead, name, state.shared_edges, state.shared_schema)
            table = roll_up(shared, state.edges, state.schema)
        else:
            table = slice(ahead, name, state.edges, state.schema)
        taken.slices.append((state, table))
        if behind is None:
            continue
        late = slice_behind(state, events, behind, time_column.final_before)
        taken.take_behind(state, late, place)
        if time_column.updates and late.table.height:
            taken.changes[state.group.identity] = _change(state, late.table, time_column)


def hold(state: OrderedState, events: pl.DataFrame, time_column: TimeColumn) -> Taken:
    """Events of one ordered group's source, for that group alone."""
    taken = Taken()
    behind = events[time_name(state.group.source.time)].to_numpy() < time_column.watermark
    if behind.any():
        taken.dropped, taken.late = np.zeros(events.height, np.bool_), int(behind.sum())
    _hold(state, events, time_column, behind if behind.any() else None, None, taken)
    return taken


def _hold(
    state: OrderedState, events: pl.DataFrame, time_column: TimeColumn, behind: Mask | None, place: Any, taken: Taken
) -> None:
    """Events wait for their order to be final; those that come too late for that go into slices outside of it."""
    if behind is None:
        taken.held.append((state, events))
        return
    too_late = events[time_name(state.group.source.time)].to_numpy() < time_column.final_before
    taken.held.append((state, events.filter(pl.Series(~too_late))))
    if too_late.any():
        taken.take_behind(state, slice_behind(state, events, too_late, time_column.final_before), place)
    if time_column.updates:
        # of the same late events as above, so that it has the same exclusion sets
        table = slice_behind(state, events, behind, time_column.final_before).table
        if table.height:
            taken.changes[state.group.identity] = _change(state, table, time_column)


def _change(state: GroupState, table: pl.DataFrame, time_column: TimeColumn) -> Change:
    return Change(merge([table], state.schema), time_column.final_before, state.told(time_column.watermark))


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
        found = sample[key].n_unique()
        # a sample that hardly repeats itself says that there are more where it came from
        keys[key] = found * (frame.height / sample.height if found > sample.height / 2 else 1.0)
    return Rates(frame.height / step, keys) if step > 0 else None
