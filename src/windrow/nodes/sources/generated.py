"""Made-up events as a source: one node of a `Generator`, at a chosen speed or as fast as it goes."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import polars as pl

from windrow.core.expressions.errors import QueryError
from windrow.core.expressions.types import spark_type
from windrow.io.generator import TICK, Generator
from windrow.io.yaml_files import must
from windrow.nodes.sources.base import GATHER, Mark, Read, Source, SourceError, Types, nothing, place_of, wanted

MADE_AT_ONCE = 100_000  # events that are made at a time
_number = must("be a whole number from 0, not {!r}", lambda number: type(number) is int and number >= 0)
_speed = must("be a number above 0, not {!r}", lambda speed: type(speed) in (int, float) and speed > 0)


@dataclass
class Made(Source):
    """The events of one node of a generator.

    A mark is a tick, the position of its first event, and how many of its events are before the mark.
    """

    node: str
    rate: int = 1000
    rate_change: float = 0.0
    disorder: str | int = 0
    keys: int = 10
    seed: int = 0
    start: str = "2026-01-01T00:00:00Z"
    length: str | int | None = None
    number: Annotated[int | None, _number] = None
    speed: Annotated[float | None, _speed] = None

    def __post_init__(self) -> None:
        shape = self.rate, self.rate_change, self.disorder, self.keys, self.seed, self.start
        try:
            self._made = Generator(1, *shape, length=self.length)
        except QueryError as error:
            raise SourceError(str(error)) from error
        # other nodes have other events
        self._number = zlib.crc32(self.node.encode()) if self.number is None else self.number
        self._clock = time.monotonic
        self.resume({})

    @property
    def columns(self) -> dict[str, pl.DataType]:
        return self._made.columns

    def resume(self, mark: Mark) -> None:
        self._at = place_of(mark, {"tick": int, "first": int, "rows": int}, "a generator")
        self._pace: tuple[float, int] | None = None  # a moment of the clock, and the event time of then

    def read(self, needed: Types, wait: float) -> Read | None:
        for name, dtype in wanted(needed).items():
            if self.columns.get(name) != dtype:
                has = ", ".join(f"{one} {spark_type(kind)}" for one, kind in self.columns.items())
                raise SourceError(f"there is no column {name} {spark_type(dtype)} in a generator; there are {has}")
        ticks = self._made.ticks
        at = self._at
        until = at.tick + MADE_AT_ONCE // self._made.rate + 2
        until = until if ticks is None else min(until, ticks)
        if until <= at.tick:
            return Read(nothing(needed), dict(vars(at)), True)
        counts = self._made.counts(self._number, at.tick, until)
        ends = np.cumsum(counts)
        most = min(int(ends[-1]) - at.rows, MADE_AT_ONCE, self._due(counts, ends, wait) - at.rows)
        if most <= 0:
            return None
        made = self._made.events(self._number, at.tick, until, at.first, at.rows, most)
        events = next(made).select(list(wanted(needed)))
        done = at.rows + most
        past = int(np.searchsorted(ends, done, "right"))  # ticks that are over
        over = int(ends[past - 1]) if past else 0
        at.tick, at.first, at.rows = at.tick + past, at.first + over, done - over
        return Read(events, dict(vars(at)), at.tick == ticks)

    def _due(self, counts: np.ndarray[Any, Any], ends: np.ndarray[Any, Any], wait: float) -> int:
        """How many events of the ticks are due by now; waits for a while until there are some."""
        if self.speed is None:
            return int(ends[-1])
        at = self._at
        here = at.tick * TICK + at.rows * TICK // int(counts[0])
        if self._pace is None:
            self._pace = self._clock(), here
        began, then = self._pace
        for pause in (0.0, min(wait, GATHER), wait - min(wait, GATHER)):
            if pause:
                time.sleep(pause)
            now = then + (self._clock() - began) * self.speed * TICK - at.tick * TICK
            tick = min(int(now // TICK), len(counts))
            due = int(ends[tick - 1]) if tick else 0
            if tick < len(counts):
                due += int((now - tick * TICK) * int(counts[tick]) / TICK)
            if due > at.rows:
                return due
        return 0
