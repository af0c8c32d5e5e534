"""The final events of a key at a local node, by their ranks, until the root has put them into windows."""

from __future__ import annotations

import polars as pl

from windrow.nodes.counting.schemes import Directive


class OrderedLog:
    """The final events of a key that lie after the last boundary, in order; ranks count from the key's first event."""

    def __init__(self, start: int, covered: int, directive: Directive) -> None:
        self.start = start  # the rank of the first that is here
        self.covered = covered  # the rank up to which they were sent
        self.directive, self.rewound = directive, 0
        self.answered: set[tuple[int, int, str]] = set()  # requests whose answers are on their way
        self.frames: list[pl.DataFrame] = []
        self.size = 0

    @property
    def top(self) -> int:
        """The rank after the last one."""
        return self.start + self.size

    def add(self, events: pl.DataFrame) -> None:
        self.frames.append(events)
        self.size += events.height

    def between(self, lo: int, hi: int) -> pl.DataFrame:
        """The events with ranks from `lo` to `hi`."""
        parts, begin = [], self.start
        for frame in self.frames:
            end = begin + frame.height
            if begin < hi and end > lo:
                parts.append(frame.slice(max(0, lo - begin), min(end, hi) - max(begin, lo)))
            begin = end
        return pl.concat(parts) if len(parts) > 1 else parts[0]

    def forget(self, rank: int) -> None:
        """Drop the events before a rank."""
        while self.frames and self.start + self.frames[0].height <= rank:
            height = self.frames.pop(0).height
            self.start, self.size = self.start + height, self.size - height
        if self.frames and rank > self.start:
            gone = rank - self.start
            self.frames[0] = self.frames[0].slice(gone)
            self.start, self.size = rank, self.size - gone

    def oldest(self, time: str, rank: int) -> int | None:
        """The time of the event at a rank; None if there is none."""
        begin = self.start
        for frame in self.frames:
            if rank < begin + frame.height:
                return int(frame[time][max(0, rank - begin)])
            begin += frame.height
        return None
