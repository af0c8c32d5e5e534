"""What can be measured of a system at a point of an experiment, and how one sample is taken.

| measure | what |
| --- | --- |
| throughput | events a second, from the first batch to the last result |
| latency | milliseconds from the event that ends a window to its result, with everything before it taken in |
| memory | bytes kept once all events are in, with nothing answered yet |
| slices | partial aggregates made of a minute of events |
| calculations | how often a function is applied, for each event |
| tree_… | throughput, latency and bytes of a tree of nodes; correctness, the share of events in their right window |

A measure that is `once` gives the same on every run, and is taken once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import polars as pl

from bench import trees
from bench.baselines import system
from bench.baselines.common import TIME, together
from bench.cases import Work
from windrow.core.windows.fixed import Session


class Sample(NamedTuple):
    """A value, and the results that were given for it; None where there are none to compare."""

    value: float
    results: pl.DataFrame | None = None


@dataclass(frozen=True)
class Measure:
    """Its unit, whether more of it is better, and how a sample is taken: from a system's name, a load, and its data."""

    unit: str
    more_is_better: bool
    sample: Callable[[str, Any, Any], Sample]
    once: bool = False
    timed: bool = True  # whether a load that takes long may be cut short


def parts_of(frame: pl.DataFrame, count: int) -> list[pl.DataFrame]:
    """A table in so many batches."""
    size = max(1, -(-frame.height // count))
    return [frame[at : at + size] for at in range(0, frame.height, size)]


def throughput(name: str, work: Work, parts: Sequence[pl.DataFrame]) -> Sample:
    chosen = system(name)
    begin = time.perf_counter()
    run = chosen.start(work.queries, work.allowed)
    found = [run.push(part) for part in parts]
    found.append(run.finish())
    took = time.perf_counter() - begin
    return Sample(sum(part.height for part in parts) / took, together(found))


def latency(name: str, work: Work, parts: Sequence[pl.DataFrame]) -> Sample:
    """The last batch has one event, long after the others."""
    run = system(name).start(work.queries, work.allowed)
    found = [run.push(part) for part in parts]
    last = parts[-1][-1:].with_columns(pl.col(TIME) + _beyond(work))
    begin = time.perf_counter()
    found.append(run.push(last))
    took = time.perf_counter() - begin
    return Sample(1000 * took, together([*found, run.finish()]))


def _beyond(work: Work) -> timedelta:
    """So long that every window has ended."""
    windows = [query.window for query in work.queries]
    lengths = [one.gap if isinstance(one, Session) else int(getattr(one, "length", 0)) for one in windows]
    return timedelta(microseconds=2 * max(lengths) + work.allowed + 1_000_000)


def _held(of: Callable[[Any], float]) -> Callable[[str, Work, Sequence[pl.DataFrame]], Sample]:
    def sample(name: str, work: Work, parts: Sequence[pl.DataFrame]) -> Sample:
        run = system(name).start(work.queries, work.allowed)
        found = [run.push(part) for part in parts]
        value = of(run)
        return Sample(value, together([*found, run.finish()]))

    return sample


def calculations(name: str, work: Work, parts: Sequence[pl.DataFrame]) -> Sample:
    run = system(name).start(work.queries, work.allowed)
    found = together([*(run.push(part) for part in parts), run.finish()])
    return Sample(run.calculations / sum(part.height for part in parts), found)


def _tree(of: Callable[[trees.Grown], float]) -> Callable[[str, trees.Load, Any], Sample]:
    def sample(name: str, load: trees.Load, frames: Any) -> Sample:
        grown = trees.SCHEMES[name](load, frames)
        return Sample(of(grown), grown.results if name in trees.EXACT else None)

    return sample


def _corrections(grown: trees.Grown) -> float:
    return 100 * grown.corrections / max(1, grown.boundaries)


def correctness(name: str, load: trees.Load, frames: Any) -> Sample:
    grown = trees.SCHEMES[name](load, frames)
    return Sample(100 * trees.correctness(load, frames, grown), grown.results if name in trees.EXACT else None)


MEASURES: dict[str, Measure] = {
    "throughput": Measure("events/s", True, throughput),
    "latency": Measure("ms", False, latency, timed=False),
    "memory": Measure("bytes", False, _held(lambda run: float(run.state_bytes)), once=True, timed=False),
    "slices": Measure("slices", False, _held(lambda run: float(run.slices)), once=True, timed=False),
    "calculations": Measure("calculations/event", False, calculations, once=True, timed=False),
    "tree_throughput": Measure("events/s", True, _tree(lambda grown: grown.throughput)),
    "tree_latency": Measure("ms", False, _tree(lambda grown: 1000 * statistics.median(grown.latencies))),
    "tree_bytes": Measure("bytes", False, _tree(lambda grown: float(grown.bytes)), once=True),
    "corrections": Measure("of 100 windows", False, _tree(_corrections), once=True),
    "correctness": Measure("% of events", True, correctness, once=True),
}
