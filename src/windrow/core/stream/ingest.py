"""Ingest: a batch is checked and prepared, before any state is touched.

batch ── admit ──▶ prepared events, and between which times they lie
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import polars as pl

from windrow.core.arrays.dataframes import InputError
from windrow.core.plan.groups import Rates
from windrow.core.plan.watermark import TimeColumn
from windrow.core.query.query import Query
from windrow.core.slices.binding import ARRIVAL, Binding, no_time
from windrow.core.slices.kernel import time_name
from windrow.core.stream.compiled import CompiledPlan
from windrow.core.windows.fixed import FURTHEST

ENOUGH = 1000  # events in a first batch from which rates can be estimated


@dataclass(frozen=True)
class Admitted:
    """The events of a batch, prepared; between which times they lie, by time column; which were left out."""

    events: pl.DataFrame
    ranges: dict[str, tuple[int, int]]
    left_out: pl.Series | None  # over the whole batch; None if all are taken

    @property
    def bad(self) -> int:
        """How many events were left out, because they have no time or an expression leaves 64 bits."""
        return 0 if self.left_out is None else int(self.left_out.sum())


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

    A bad event has no time, or an expression of a query leaves 64 bits for it. It is refused, or left out with
    `bad_events="drop"`; it keeps its number, so that an event's number, which all have if they are `numbered`, says
    where in the source it stands.
    """
    binding = plan.binding
    events = binding.checked(batch)
    missing, beyond = binding.without_time(events), binding.beyond(events)
    if bad_events == "raise" and missing is not None:
        raise no_time(int(missing.sum()), batch.height, *binding.time_columns)
    if bad_events == "raise" and beyond is not None:
        raise beyond[1]
    left_out = missing
    if beyond is not None:
        left_out = beyond[0] if missing is None else missing | beyond[0]
    numbers: pl.Series | None = None
    if left_out is not None:
        events = events.filter(~left_out)
        numbers = (~left_out).arg_true().cast(pl.Int64) + arrived
    events = binding.prepare(events, arrived if numbers is None else numbers, clock, numbered)
    ranges = {
        name: time_range(events, name, plan.plan.furthest.get(name), time_columns[name])
        for name in binding.time_columns
    }
    return Admitted(events, ranges, left_out)


def time_range(events: pl.DataFrame, name: str, furthest: Query | None, time_column: TimeColumn) -> tuple[int, int]:
    """The least and the greatest time of a batch, if every window around them can be written."""
    column = events[time_name(name)]
    if not len(column):
        return 0, 0
    low, high = int(column.min()), int(column.max())  # type: ignore[arg-type]
    if furthest is None:
        return low, high
    room = room_of(furthest, time_column)
    if low < -room or high > room:
        raise InputError(
            f"query {furthest.name!r}: {name!r} is {low if low < -room else high} in this batch, "
            f"so far out that {furthest.window} around it cannot be written in 64 bits"
        )
    return low, high


def room_of(furthest: Query, time_column: TimeColumn) -> int:
    """How far times may be from 0, so that every window around them can be written."""
    return FURTHEST - furthest.window.reach - (time_column.lateness or 0) - time_column.updates


def rates_of(frame: pl.DataFrame, binding: Binding, time: str) -> Rates | None:
    """Events per unit of the time column, and distinct values per key, as seen in a first batch."""
    if (
        frame.height < ENOUGH
        or time == ARRIVAL
        or time not in binding.time_columns
        or frame[time].null_count() == frame.height
    ):
        return None
    times = binding.times(frame, time)
    step = int(times.max()) - int(times.min())  # type: ignore[arg-type]
    sample = frame.select(*binding.keys).gather_every(max(1, frame.height // 50_000)) if binding.keys else frame.clear()
    keys = {}
    for key in binding.keys:
        distinct = sample[key].n_unique()
        # a sample that hardly repeats itself says that there are more where it came from
        keys[key] = distinct * (frame.height / sample.height if distinct > sample.height / 2 else 1.0)
    return Rates(frame.height / step, keys) if step > 0 else None
