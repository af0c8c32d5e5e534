"""Experiments as data: what is varied, what is measured, on which systems, what the paper found, and what must hold.

    Case("scotty-13", "Scotty, Fig. 13", …, points=(1, 10, 100, 1000), load=…, systems=("windrow", "buckets", …))

The papers' experiments stand in `bench/papers`, one module for each paper. A case says its sizes itself: `points` for a
full run, `quick` and `tiny` for the others, and its load says for each point how many events there are, of which a run
takes a share (`SIZES`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import windrow as wr
from bench.data import Stream
from bench.trees import Load
from windrow.core.windows.ordered import Counting

Point = int | float | str


@dataclass(frozen=True)
class Size:
    """How much a run takes: a share of the events, for how long one measurement may go on, and how many there are."""

    name: str
    share: float
    seconds: float
    runs: int = 5
    without: tuple[str, ...] = ()  # systems that take longer to start than all the rest


SIZES = {
    "full": Size("full", 1.0, 3.0),
    "quick": Size("quick", 0.1, 0.1),
    "tiny": Size("tiny", 0.002, 0.02, runs=1, without=("spark", "flink")),
}


@dataclass(frozen=True)
class Work:
    """What a system in one process is given: events and queries."""

    stream: Stream
    queries: tuple[wr.Query, ...]
    lateness: int | None = None  # microseconds; that of the stream if None

    @property
    def allowed(self) -> int:
        return self.stream.lateness if self.lateness is None else self.lateness

    def of(self, events: int) -> Work:
        """The same with so many events."""
        share = events / self.stream.events
        return replace(self, stream=replace(self.stream, events=events), queries=smaller(self.queries, share))


def smaller(queries: Iterable[wr.Query], share: float) -> tuple[wr.Query, ...]:
    """For a share of the events: a counting window holds the same share of them at any size."""
    return tuple(
        wr.Query(one.name, wr.counting(max(5, round(one.window.n * share))), one.aggregates, one.by)
        if isinstance(one.window, Counting)
        else one
        for one in queries
    )


@dataclass(frozen=True)
class Mark:
    """What must hold: a ratio of one system to another at the last point, or of its last point to its first.

    absolute:   what is held against the limit is the value itself, at the worst point
    full_only:  it says nothing of a quick run, in which beginning costs more than the events do
    """

    system: str
    beside: str | None = None  # None: beside its own first point
    least: float | None = None
    most: float | None = None
    absolute: bool = False
    full_only: bool = False

    def __str__(self) -> str:
        what = f"{self.system} / {self.beside}, last point" if self.beside else f"{self.system}, last point / first"
        limit = f"≥ {self.least:g}" if self.least is not None else f"≤ {self.most:g}"
        return f"{f'{self.system}, every point' if self.absolute else what} {limit}"

    def holds(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


@dataclass(frozen=True)
class Case:
    """One experiment; see the module's head."""

    name: str
    figure: str
    title: str
    varies: str
    measure: str
    systems: tuple[str, ...]
    load: Callable[[Any], Work | Load]  # at a point, at full size
    points: tuple[Point, ...]
    quick: tuple[Point, ...]
    paper_shape: str
    tiny: tuple[Point, ...] = ()  # the second of `quick` if empty
    marks: tuple[Mark, ...] = ()
    note: str = ""  # where it is not what the paper did

    def points_of(self, size: Size) -> tuple[Point, ...]:
        if size.name == "tiny":
            return self.tiny or self.quick[1:2] or self.quick
        return self.quick if size.name == "quick" else self.points


def all_cases() -> dict[str, Case]:
    """The cases of all papers by their name, in the papers' order."""
    from bench.papers import deco, desis, disco, scotty

    found = [*scotty.CASES, *desis.CASES, *disco.CASES, *deco.CASES]
    assert len({case.name for case in found}) == len(found)
    return {case.name: case for case in found}
