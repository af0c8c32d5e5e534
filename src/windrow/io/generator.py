"""Events that are made up: a stream for each node, for demonstrations and benchmarks.

The events of a node are a pure function of the seed, the node and the position in its stream, so that any part of
it can be made again, anywhere. Event time goes on in ticks of a second; with a `rate_change` the number of events in
a tick wanders around the rate, each node's on its own.

    ts TIMESTAMP, key INT, value DOUBLE
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from windrow.core.arrays.hashing import GOLDEN, mix
from windrow.core.arrays.range_queries import ramp
from windrow.core.expressions.border import border
from windrow.core.expressions.errors import QueryError
from windrow.core.plan.watermark import plain
from windrow.core.windows.fixed import Duration, duration, since_1970
from windrow.io import EVENTS_AT_ONCE

TICK = 1_000_000  # microseconds
_BLOCK = 1 << 15  # events that are mixed at a time, which stay in the cache
_MASK = 2**64 - 1

COLUMNS: dict[str, pl.DataType] = {"ts": pl.Datetime("us", "UTC"), "key": pl.Int32(), "value": pl.Float64()}


@border
@dataclass(frozen=True)
class Generator:
    """Made-up events of several nodes: `ts TIMESTAMP, key INT, value DOUBLE`, the same for the same seed.

    nodes:        how many
    rate:         events per second of event time and node, at least 1
    rate_change:  by how much of itself the rate of a second may differ, from 0 to 1
    disorder:     by how much an event in four may come too late, at most; a duration, or microseconds
    keys:         how many different keys
    seed:         other events with another one
    start:        event time of the first event, ISO 8601
    step:         how much event time a micro-batch has; whole seconds, rounded up
    length:       how much event time there is in all, in whole seconds; None for an endless stream
    """

    nodes: int = 2
    rate: int = 1000
    rate_change: float = 0.0
    disorder: Duration = 0
    keys: int = 10
    seed: int = 0
    start: str = "2026-01-01T00:00:00Z"
    step: Duration = "1 second"
    length: Duration | None = None

    def __post_init__(self) -> None:
        for name, least in {"nodes": 1, "rate": 1, "keys": 1, "seed": 0}.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise QueryError(f"generator: {name} must be a whole number from {least}, not {value!r}")
        if type(self.rate_change) not in (int, float) or not 0 <= self.rate_change <= 1:
            raise QueryError(f"generator: rate_change must be a number from 0 to 1, not {self.rate_change!r}")
        if self.keys > 2**24:
            raise QueryError(f"generator: keys must be at most {2**24}, not {self.keys!r}")
        _ = self._late, self.first, self.ticks_a_step, self.ticks  # refuses what cannot be read

    @staticmethod
    def from_json(text: str) -> Generator:
        """The generator that `to_json` described; what is left out has its default."""
        words = {field.name for field in fields(Generator)}
        try:
            given = json.loads(text)
        except ValueError as error:
            raise QueryError(f"option generator is not JSON: {error}") from error
        if not isinstance(given, dict):
            raise QueryError('option generator must be a JSON object such as {"nodes": 2, "rate": 1000}')
        for name in given:
            if name not in words:
                raise QueryError(f"generator: there is no {name!r}; there are {', '.join(sorted(words))}")
        return Generator(**given)

    def to_json(self) -> str:
        """A description for `option("generator", …)`."""
        return json.dumps({name: plain(value) for name, value in asdict(self).items()})

    @cached_property
    def _late(self) -> int:
        return _length("disorder", self.disorder, 0)

    @cached_property
    def first(self) -> int:
        """When it begins, in microseconds since 1970."""
        try:
            moment = datetime.fromisoformat(self.start)
        except (TypeError, ValueError):
            raise QueryError(
                f"generator: start must be a time such as 2026-01-01T00:00:00Z, not {self.start!r}"
            ) from None
        return since_1970(moment)

    @cached_property
    def ticks_a_step(self) -> int:
        """How many a micro-batch has."""
        return -(-_length("step", self.step, 1) // TICK)

    @cached_property
    def ticks(self) -> int | None:
        """How many there are in all."""
        return None if self.length is None else -(-_length("length", self.length, 1) // TICK)

    # --- its events ---------------------------------------------------------------------------------------------

    @property
    def columns(self) -> dict[str, pl.DataType]:
        """What events have, with Polars' types."""
        return dict(COLUMNS)

    @property
    def names(self) -> list[str]:
        """What the nodes are called."""
        width = len(str(self.nodes - 1))
        return [f"node-{number:0{width}}" for number in range(self.nodes)]

    def frames(
        self, node: str, new: Any, first: int, needed: Mapping[str, pl.DataType]
    ) -> Iterator[tuple[pl.DataFrame, str]]:
        """The events of a node's ticks, of which the first has this position, and what to call them."""
        begin, end = new
        for frame in self.events(self.names.index(node), begin, end, first):
            yield frame, f"node {node!r}"

    def events(
        self, number: int, begin: int, end: int, first: int, skip: int = 0, most: int = EVENTS_AT_ONCE
    ) -> Iterator[pl.DataFrame]:
        """The events of a node from one tick, whose first has this position, to another; the first few are skipped."""
        counts = self.counts(number, begin, end)
        ends = first + np.cumsum(counts)
        starts = ends - counts
        for low in range(first + skip, int(ends[-1]), most):
            high = min(low + most, int(ends[-1]))
            one, other = np.searchsorted(ends, low, "right"), np.searchsorted(starts, high, "left")
            sizes = np.minimum(ends[one:other], high) - np.maximum(starts[one:other], low)
            within = ramp(sizes)
            within[: sizes[0]] += max(low - int(starts[one]), 0)
            of = np.repeat(counts[one:other], sizes)
            tick = np.repeat(self.first + np.arange(begin + one, begin + other) * TICK, sizes)
            yield self._events(number, low, tick, within, of)

    def counts(self, number: int, begin: int, end: int) -> npt.NDArray[np.int64]:
        """How many events each tick of a node has."""
        if not self.rate_change:
            return np.full(end - begin, self.rate, np.int64)
        drawn = _mixed(begin, end, self._base(number) ^ 0xD1B54A32D192ED03) >> np.uint64(40)
        factor = 1 + self.rate_change * (drawn.astype(np.float64) / 2**23 - 1)
        return np.maximum(np.rint(self.rate * factor), 1).astype(np.int64)

    def _events(
        self,
        number: int,
        position: int,
        tick: npt.NDArray[np.int64],
        within: npt.NDArray[np.int64],
        of: npt.NDArray[np.int64],
    ) -> pl.DataFrame:
        drawn = _mixed(position, position + len(tick), self._base(number))
        time = tick + spread(within, of)
        if self._late:
            # the last event of a tick is in time, so that the greatest time of a part is known without making it
            is_late = ((drawn & np.uint64(3)) == 0) & (within < of - 1)
            by = (drawn >> np.uint64(2) & np.uint64(0xFFFF)).astype(np.float64) * (self._late / 2**16)
            time -= np.where(is_late, by.astype(np.int64), 0)
        key = (drawn >> np.uint64(40)) * np.uint64(self.keys) >> np.uint64(24)
        value = (drawn >> np.uint64(18) & np.uint64(0x3FFFFF)).astype(np.float64) * (100 / 2**22)
        return pl.DataFrame(
            {"ts": pl.Series(time).cast(COLUMNS["ts"]), "key": key.astype(np.int32), "value": value}, schema=COLUMNS
        )

    def _base(self, number: int) -> int:
        return int(_mixed(number, number + 1, self.seed * 0x2545F4914F6CDD1D & _MASK)[0])


def spread(within: npt.NDArray[np.int64], of: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Events evenly over a tick."""
    return (within * (TICK / of)).astype(np.int64)


def _mixed(begin: int, end: int, base: int) -> npt.NDArray[np.uint64]:
    """Random bits for each of some numbers (splitmix64)."""
    found = np.empty(end - begin, np.uint64)
    ramped = np.arange(min(_BLOCK, len(found)), dtype=np.uint64) * np.uint64(GOLDEN)
    scratch = np.empty_like(ramped)
    for at in range(0, len(found), _BLOCK):
        z = found[at : at + _BLOCK]
        np.add(ramped[: len(z)], np.uint64((base + (begin + at + 1) * GOLDEN) & _MASK), out=z)
        mix(z, scratch[: len(z)])
    return found


def _length(name: str, given: Duration, least: int) -> int:
    """Microseconds; whole numbers are microseconds too."""
    try:
        units = duration(given, name).units
    except (TypeError, ValueError) as error:
        raise QueryError(f"generator: {error}") from error
    if units < least:
        raise QueryError(f"generator: {name} must be at least {least} microseconds, not {given!r}")
    return units
