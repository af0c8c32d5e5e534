"""Time columns: what windows are measured on, each with its own watermark.

There is the engine's own time column, and each that a query names (`Query(time="odometer")`). Its watermark follows
the greatest value seen by the lateness; `updates` keeps what was emitted changeable for that much longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import polars as pl

from windrow.core.expressions.errors import QueryError
from windrow.core.windows.fixed import EPOCH, FURTHEST, INT64_MIN, Duration

Lengths = Duration | Mapping[str, Duration | None] | None


@dataclass
class TimeColumn:
    lateness: int | None  # None: only `advance` moves the watermark
    updates: int
    temporal: bool | None  # what its lengths were written as; None where they say nothing
    watermark: int = INT64_MIN
    seen: int | None = None
    still: bool = False  # a whole table: the watermark does not move before the end

    def after(self, newest: int) -> int:
        """The watermark once events up to this time have been seen."""
        if self.lateness is None or self.still:
            return self.watermark
        return max(self.watermark, newest - self.lateness)

    @property
    def final_before(self) -> int:
        """Windows that end at or before this are final and forgotten."""
        return self.final_at(self.watermark)

    def final_at(self, watermark: int) -> int:
        return watermark if watermark == INT64_MIN or watermark > FURTHEST else watermark - self.updates

    def step_to(self, now: int) -> WatermarkStep:
        return WatermarkStep(self.watermark, now, self.final_before, self.final_at(now), self.still)

    def check(self, name: str, dtype: pl.DataType) -> None:
        if self.temporal is not None and self.temporal == dtype.is_integer():
            kind = (
                "a number: write plain numbers" if dtype.is_integer() else "a timestamp: write '10 seconds' or the like"
            )
            raise QueryError(f"lateness and updates do not fit {name!r}, which is {kind}")


@dataclass(frozen=True)
class WatermarkStep:
    """A step: from one watermark to the next, and before which time events were and are done with."""

    before: int
    now: int
    was_final_before: int
    final_before: int
    whole: bool = False  # of a whole table that comes in parts: more may come from anywhere


def plain(given: Lengths) -> Any:
    """Lengths as plain data, which reads back as the same lengths."""
    if isinstance(given, Mapping):
        return {name: plain(value) for name, value in given.items()}
    return f"{given // timedelta(microseconds=1)} microseconds" if isinstance(given, timedelta) else given


def shown_time(moment: int, dtype: pl.DataType | None) -> int | datetime:
    """A time on a time column of this type as users write it."""
    if dtype is None or dtype.is_integer():
        return moment
    try:
        shown = EPOCH + timedelta(microseconds=moment)
    except OverflowError:  # Python's years end before ours
        return moment
    return shown if getattr(dtype, "time_zone", None) else shown.replace(tzinfo=None)
