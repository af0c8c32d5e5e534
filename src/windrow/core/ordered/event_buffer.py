"""Buffered events: those that the watermark has not passed, chunk by chunk as they came.

A chunk is sorted once, by an index, and then given out from its front: an event that is buffered for long costs nothing
meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from windrow.core.arrays.range_queries import Ints, Mask, sorted_places
from windrow.core.windows.fixed import INT64_MAX

MOST_CHUNKS = 64  # chunks that are kept apart


@dataclass(frozen=True)
class _Chunk:
    """Events that came together; those from `at` on, in the order of time, are still buffered.

    Events that do not stand in order have lost their column of times: that is in order, and they are found by `index`.
    """

    events: pl.DataFrame
    index: Ints | None  # None where they stand in order
    time: Ints  # in order
    name: str  # of its column
    at: int = 0

    @staticmethod
    def of(events: pl.DataFrame, time: str) -> _Chunk:
        column = events[time]
        if column.is_sorted():
            return _Chunk(events, None, column.to_numpy(), time)
        return _Chunk(events.drop(time), *sorted_places(column.to_numpy()), time)

    def __len__(self) -> int:
        return len(self.time) - self.at

    def part(self, stop: int) -> pl.DataFrame:
        """The events in order from the front up to the n-th."""
        if self.index is None:
            return self.events[self.at : stop]
        time = pl.Series(self.name, self.time[self.at : stop])
        return self.events[self.index[self.at : stop]].hstack([time]) if self.events.width else time.to_frame()

    def after(self, stop: int) -> _Chunk:
        """The chunk from the n-th event on; the others are dropped once they are the greater part."""
        later = replace(self, at=stop)
        if stop < len(self.time) // 2:
            return later
        return _Chunk(later.part(len(self.time)), None, self.time[stop:], self.name)


class EventBuffer:
    """Buffered events in the order in which they came; never changed, only replaced."""

    def __init__(self, time: str, chunks: Sequence[_Chunk] = ()) -> None:
        self._time, self._chunks = time, tuple(chunks)

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    @property
    def oldest(self) -> int:
        """The time of the earliest event."""
        return min((int(chunk.time[chunk.at]) for chunk in self._chunks), default=INT64_MAX)

    def with_more(self, events: pl.DataFrame) -> EventBuffer:
        """These events and later ones. Once chunks are many, the last of them become one, if they are small: the work
        follows what has come.
        """
        if not events.height:
            return self
        chunks = (*self._chunks, _Chunk.of(events, self._time))
        if len(chunks) > MOST_CHUNKS and sum(map(len, chunks[-MOST_CHUNKS // 2 :])) <= max(1024, len(self) // 4):
            small = EventBuffer(self._time, chunks[-MOST_CHUNKS // 2 :]).frame()
            assert small is not None
            chunks = (*chunks[: -MOST_CHUNKS // 2], _Chunk.of(small, self._time))
        return EventBuffer(self._time, chunks)

    def older(self, than: int, late: int) -> tuple[pl.DataFrame | None, Mask | None, EventBuffer]:
        """The events before a time, which of them are before `late` (None if none is), and the others."""
        parts, times, left = [], [], []
        for chunk in self._chunks:
            stop = int(np.searchsorted(chunk.time, than))
            if stop > chunk.at:
                parts.append(chunk.part(stop))
                times.append(chunk.time[chunk.at : stop] < late)
                chunk = chunk.after(stop)
            if len(chunk):
                left.append(chunk)
        if not parts:
            return None, None, self
        is_late = np.concatenate(times)
        return joined(parts), is_late if is_late.any() else None, EventBuffer(self._time, left)

    def frame(self) -> pl.DataFrame | None:
        """All events; None if there are none."""
        return joined([chunk.part(len(chunk.time)) for chunk in self._chunks])


def joined(parts: Sequence[pl.DataFrame]) -> pl.DataFrame | None:
    """Parts with the same columns in any order; `[…]` picks columns without a plan, unlike `select`."""
    return pl.concat([part[parts[0].columns] for part in parts]) if parts else None
