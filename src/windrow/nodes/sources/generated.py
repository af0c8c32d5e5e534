"""Made-up events as a source: one node of a `Generator`, at a chosen speed or as fast as it goes."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl

from windrow.core.expressions.types import spark_type
from windrow.core.query.query import QueryError
from windrow.io.generator import TICK, Generator
from windrow.nodes.sources.base import GATHER, Mark, Read, SourceError, Types, checked_mark, nothing, wanted

MADE_AT_ONCE = 100_000  # events that are made at a time
_MARK = {"tick": int, "first": int, "rows": int}


class Made:
    """The events of one node of a generator.

    A mark is a tick, the position of its first event, and how many of its events are before the mark.
    """

    replayable = True

    def __init__(
        self,
        node: str,
        *,
        rate: int = 1000,
        rate_change: float = 0.0,
        disorder: str | int = 0,
        keys: int = 10,
        seed: int = 0,
        start: str = "2026-01-01T00:00:00Z",
        length: str | int | None = None,
        number: int | None = None,
        speed: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        try:
            self._made = Generator(1, rate, rate_change, disorder, keys, seed, start, length=length)
        except QueryError as error:
            raise SourceError(str(error)) from error
        if speed is not None and (isinstance(speed, bool) or not isinstance(speed, int | float) or not speed > 0):
            raise SourceError(f"generator: speed must be a number above 0, not {speed!r}")
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
            raise SourceError(f"generator: number must be a whole number from 0, not {number!r}")
        self._number = zlib.crc32(node.encode()) if number is None else number  # other nodes have other events
        self._speed, self._clock = speed, clock
        self._pace: tuple[float, int] | None = None  # a moment of the clock, and the event time of then
        self._tick, self._first, self._rows = 0, 0, 0
        self.notes: list[str] = []

    @property
    def columns(self) -> dict[str, pl.DataType]:
        return self._made.columns

    def resume(self, mark: Mark) -> None:
        given = checked_mark(mark, _MARK, "a generator") if mark else dict.fromkeys(_MARK, 0)
        self._tick, self._first, self._rows = given["tick"], given["first"], given["rows"]
        self._pace = None

    def read(self, needed: Types, wait: float) -> Read | None:
        for name, dtype in wanted(needed).items():
            if self.columns.get(name) != dtype:
                has = ", ".join(f"{one} {spark_type(kind)}" for one, kind in self.columns.items())
                raise SourceError(f"there is no column {name} {spark_type(dtype)} in a generator; there are {has}")
        ticks = self._made.ticks
        until = self._tick + MADE_AT_ONCE // self._made.rate + 2
        until = until if ticks is None else min(until, ticks)
        if until <= self._tick:
            return Read(nothing(needed), self._mark(), True)
        counts = self._made.counts(self._number, self._tick, until)
        ends = np.cumsum(counts)
        most = min(int(ends[-1]) - self._rows, MADE_AT_ONCE, self._due(counts, ends, wait) - self._rows)
        if most <= 0:
            return None
        made = self._made.events(self._number, self._tick, until, self._first, self._rows, most)
        events = next(made).select(list(wanted(needed)))
        done = self._rows + most
        past = int(np.searchsorted(ends, done, "right"))  # ticks that are over
        over = int(ends[past - 1]) if past else 0
        self._tick, self._first, self._rows = self._tick + past, self._first + over, done - over
        return Read(events, self._mark(), self._tick == ticks)

    def _due(self, counts: np.ndarray[Any, Any], ends: np.ndarray[Any, Any], wait: float) -> int:
        """How many events of the ticks are due by now; waits for a while until there are some."""
        if self._speed is None:
            return int(ends[-1])
        here = self._tick * TICK + self._rows * TICK // int(counts[0])
        if self._pace is None:
            self._pace = self._clock(), here
        began, then = self._pace
        for pause in (0.0, min(wait, GATHER), wait - min(wait, GATHER)):
            if pause:
                time.sleep(pause)
            now = then + (self._clock() - began) * self._speed * TICK - self._tick * TICK
            tick = min(int(now // TICK), len(counts))
            due = int(ends[tick - 1]) if tick else 0
            if tick < len(counts):
                due += int((now - tick * TICK) * int(counts[tick]) / TICK)
            if due > self._rows:
                return due
        return 0

    def _mark(self) -> dict[str, Any]:
        return {"tick": self._tick, "first": self._first, "rows": self._rows}

    def confirm(self, mark: Mark) -> None:
        """Everything can be made again."""

    def close(self) -> None:
        """There is nothing to let go of."""
