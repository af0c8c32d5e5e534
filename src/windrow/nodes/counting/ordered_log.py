"""The final events of a key at a local node, by their ranks: what is kept of them until the root has settled it."""

from __future__ import annotations

import polars as pl

from windrow.nodes.counting.schemes import Told


class Strand:
    """The final events of a key that are not settled, in order; each has a rank, which counts from its first."""

    def __init__(self, start: int, covered: int, told: Told) -> None:
        self.start = start  # the rank of the first that is here
        self.covered = covered  # those before this rank were sent
        self.told, self.rewound = told, 0
        self.answered: set[tuple[int, int, str]] = set()  # what was asked, and is on its way
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
        found, begin = [], self.start
        for frame in self.frames:
            end = begin + frame.height
            if begin < hi and end > lo:
                found.append(frame.slice(max(0, lo - begin), min(end, hi) - max(begin, lo)))
            begin = end
        return pl.concat(found) if len(found) > 1 else found[0]

    def forget(self, rank: int) -> None:
        """Events before this rank are not needed any more."""
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
