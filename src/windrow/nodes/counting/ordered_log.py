"""The final events of a key at a local node, by their ranks, until the root has put them into windows."""

from __future__ import annotations

import polars as pl

from windrow.nodes.counting.schemes import Directive


class OrderedLog:
    """The final events of a key that lie after the last boundary, in order; ranks count from the key's first event."""

    def __init__(self, start: int, covered: int, directive: Directive, events: pl.DataFrame) -> None:
        """`events` are none, with their columns."""
        self.start = start  # the rank of the first that is here
        self.covered = covered  # the rank up to which they were sent
        self.directive, self.events = directive, events
        self.answered: set[tuple[int, int, str]] = set()  # requests whose answers are on their way

    @property
    def size(self) -> int:
        return self.events.height

    @property
    def top(self) -> int:
        """The rank after the last one."""
        return self.start + self.size

    def add(self, events: pl.DataFrame) -> None:
        self.events = self.events.vstack(events)

    def between(self, lo: int, hi: int) -> pl.DataFrame:
        """The events with ranks from `lo` to `hi`."""
        return self.events.slice(lo - self.start, hi - lo)

    def forget(self, rank: int) -> None:
        """Drop the events before a rank."""
        rank = min(rank, self.top)
        if rank > self.start:
            self.events, self.start = self.events.slice(rank - self.start), rank

    def oldest(self, time: str, rank: int) -> int | None:
        """The time of the event at a rank; None if there is none."""
        return int(self.events[time][rank - self.start]) if rank < self.top else None
