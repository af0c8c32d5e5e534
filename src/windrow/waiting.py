"""Waiting: events that the watermark has not passed, chunk by chunk as they came.

A chunk is sorted once, by an index, and then given out from its front: an event that waits long costs nothing while
it waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from windrow.ordered import Mask
from windrow.ranges import Ints

FEW = 64  # chunks that are kept apart


@dataclass(frozen=True)
class _Chunk:
    """Events, their places in the order of time (None where they stand in it), and those from `at` on that wait."""

    events: pl.DataFrame
    place: Ints | None
    time: Ints  # in order
    at: int = 0

    @staticmethod
    def of(events: pl.DataFrame, time: str) -> _Chunk:
        column = events[time]
        if column.is_sorted():
            return _Chunk(events, None, column.to_numpy())
        place = np.argsort(column.to_numpy(), kind="stable")
        return _Chunk(events, place, column.to_numpy()[place])

    def __len__(self) -> int:
        return len(self.time) - self.at

    def part(self, stop: int) -> pl.DataFrame:
        """The events from the front up to a place."""
        return self.events[self.at : stop] if self.place is None else self.events[self.place[self.at : stop]]

    def after(self, stop: int) -> _Chunk:
        """What is left, without the events before it once these are the more."""
        if stop < len(self.time) // 2:
            return _Chunk(self.events, self.place, self.time, stop)
        rest = self.events[stop:] if self.place is None else self.events[self.place[stop:]]
        return _Chunk(rest, None, self.time[stop:])


class Waiting:
    """Events in the order in which they came; never changed, only replaced."""

    def __init__(self, time: str, chunks: Sequence[_Chunk] = ()) -> None:
        self._time, self._chunks = time, tuple(chunks)

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def with_more(self, events: pl.DataFrame) -> Waiting:
        """These and events that have come after them."""
        if not events.height:
            return self
        chunks = (*self._chunks, _Chunk.of(events, self._time))
        if len(chunks) > FEW and sum(map(len, chunks[-FEW // 2 :])) <= max(1024, len(self) // 4):
            last = pl.concat([chunk.part(len(chunk.time)) for chunk in chunks[-FEW // 2 :]])  # many small ones
            chunks = (*chunks[: -FEW // 2], _Chunk.of(last, self._time))
        return Waiting(self._time, chunks)

    def older(self, than: int, late: int) -> tuple[pl.DataFrame | None, Mask | None, Waiting]:
        """The events before a time, which of them are before `late` (None if none is), and the others."""
        parts, times, rest = [], [], []
        for chunk in self._chunks:
            stop = int(np.searchsorted(chunk.time, than))
            if stop > chunk.at:
                parts.append(chunk.part(stop))
                times.append(chunk.time[chunk.at : stop] < late)
                chunk = chunk.after(stop)
            if len(chunk):
                rest.append(chunk)
        if not parts:
            return None, None, self
        is_late = np.concatenate(times)
        final = pl.concat(parts) if len(parts) > 1 else parts[0]
        return final, is_late if is_late.any() else None, Waiting(self._time, rest)

    def frame(self) -> pl.DataFrame | None:
        """All events; None if there are none."""
        parts = [chunk.part(len(chunk.time)) for chunk in self._chunks]
        return pl.concat(parts) if parts else None
