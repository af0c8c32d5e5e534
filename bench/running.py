"""The runner: every system of a case at every of its points, warmed up, in turns, and checked.

    point ──▶ warm-up and checks ──▶ five rounds, in each of which every system runs once ──▶ best and median

What is compared runs alternately, so that a noisy machine disturbs all alike. A system that would take too long for a
whole stream gets the beginning of it, in batches as large as the others': two short runs say how much. How many events
it had stands in its cell, and its results are compared with windrow's over just those.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import polars as pl

from bench import checking, trees
from bench.baselines import is_there, system
from bench.cases import Case, Mark, Point, Size, Work, smaller
from bench.measuring import MEASURES, Measure, Sample, parts_of, throughput

OURS = "windrow"
TINY = 5000  # events at most, where a run is only to see that everything works
Say = Callable[[str], None]


@dataclass
class Cell:
    """What one system showed at one point."""

    point: Point
    system: str
    best: float
    median: float
    values: list[float]
    events: int
    results: int
    ratio: float | None = None  # of windrow's best to its best, or the other way round where less is better


@dataclass
class Outcome:
    """What a case showed."""

    case: Case
    cells: list[Cell] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # checks that failed
    checks: int = 0
    marks: list[tuple[Mark, float, bool]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # systems that could not be measured, and why
    seconds: float = 0.0
    cpu: float = 0.0  # processor seconds of this process, which a busy machine does not change much

    @property
    def good(self) -> bool:
        return not self.wrong and all(holds for *_, holds in self.marks)

    def cell(self, point: Point, name: str) -> Cell | None:
        return next((one for one in self.cells if (one.point, one.system) == (point, name)), None)


def run(case: Case, size: Size, say: Say = lambda text: None) -> Outcome:
    """Measure a case."""
    begin, busy = time.perf_counter(), time.process_time()
    outcome, measure = Outcome(case), MEASURES[case.measure]
    for name in case.systems:
        if isinstance(case.load(case.points_of(size)[0]), Work) and not is_there(name):
            outcome.left_out.append(f"{name} is not installed")
    for point in case.points_of(size):
        say(f"{case.name} {case.varies} {point}")
        at = case.load(point)
        cells = _of_work(at, outcome, size, measure) if isinstance(at, Work) else _of_tree(at, outcome, size, measure)
        outcome.cells += [replace(cell, point=point) for cell in cells]
    _compare(outcome, measure)
    if size.name != "tiny":
        counts = [mark for mark in case.marks if size.name == "full" or not mark.full_only]
        outcome.marks = list(_marks(counts, outcome, case.points_of(size)))
    outcome.seconds, outcome.cpu = time.perf_counter() - begin, time.process_time() - busy
    return outcome


# --- in one process -------------------------------------------------------------------------------------------------


def _of_work(work: Work, outcome: Outcome, size: Size, measure: Measure) -> Iterator[Cell]:
    case = outcome.case
    events = max(200, int(work.stream.events * size.share)) if measure.timed else work.stream.events
    work = work.of(min(events, TINY) if size.name == "tiny" else events)
    frame = work.stream.frame()
    there = [name for name in case.systems if name not in size.without and is_there(name)]
    there = [name for name in there if system(name).claims(work.queries)]
    for name in there:
        _by_oracle(name, work, outcome)
    given: dict[str, list[pl.DataFrame]] = {}
    for name in there:
        given[name] = _given(name, work, frame, size) if measure.timed else parts_of(frame, system(name).batches)
    expected: dict[int, pl.DataFrame | None] = {}
    results: dict[str, int] = {}
    first: dict[str, float] = {}
    for name in there:  # the first run warms up, and is checked
        first[name], found = measure.sample(name, work, given[name])
        events = sum(part.height for part in given[name])
        if name == OURS:
            expected[events] = found
        elif events not in expected:
            ours = parts_of(frame[:events], system(OURS).batches)
            expected[events] = measure.sample(OURS, work, ours).results
        results[name] = _same(name, found, expected[events], outcome)
    for name, values in _rounds(measure, size, first, lambda name: measure.sample(name, work, given[name])).items():
        yield _cell(name, values, measure, sum(part.height for part in given[name]), results[name])


def _given(name: str, work: Work, frame: pl.DataFrame, size: Size) -> list[pl.DataFrame]:
    """The batches that a system gets: all, or as many as it can take in the time that there is.

    One that takes a whole table pays once to begin, so that only what more events cost it counts; of the others each
    gets a whole batch at least. Neither is made to look slower than it is by having few events.
    """
    chosen = system(name)
    batches = parts_of(frame[: min(frame.height, chosen.most_events or frame.height)], chosen.batches)
    if name == OURS:
        return batches

    def took(parts: list[pl.DataFrame]) -> float:
        return sum(part.height for part in parts) / throughput(name, work, parts).value

    if chosen.batches > 1:
        one = took(batches[:1])
        two = took(batches[:2]) if one < size.seconds else one
        return batches[: 1 + int(max(0.0, size.seconds - one) / max(two - one, 1e-9))]
    few = max(200, batches[0].height // 20)
    slope = max(took([batches[0][: 2 * few]]) - took([batches[0][:few]]), 1e-9) / few
    return [batches[0][: max(2 * few, int(size.seconds / slope))]]


def _by_oracle(name: str, work: Work, outcome: Outcome) -> None:
    events = work.stream.thinned(checking.FEW_EVENTS)
    queries = smaller(checking.few(work.queries), events.height / work.stream.events)
    found = throughput(name, replace(work, queries=queries), parts_of(events, min(4, system(name).batches)))
    outcome.checks += 1
    assert found.results is not None
    wrong = checking.by_oracle(found.results, events, queries)
    outcome.wrong += [f"{outcome.case.name}: {name}, by the oracle: {line}" for line in wrong[:3]]


def _same(name: str, found: pl.DataFrame | None, expected: pl.DataFrame | None, outcome: Outcome) -> int:
    """Whether it says what windrow says; returns how many results there are."""
    if found is None or expected is None:
        return 0
    if name != OURS:
        outcome.checks += 1
        wrong = checking.apart(found, expected)
        outcome.wrong += [f"{outcome.case.name}: {name}, beside {OURS}: {line}" for line in wrong]
    return found.height


# --- trees of nodes -------------------------------------------------------------------------------------------------


def _of_tree(load: trees.Load, outcome: Outcome, size: Size, measure: Measure) -> Iterator[Cell]:
    case = outcome.case
    _tree_by_oracle(load, outcome)
    rate = max(100, int(load.rate * size.share))
    load = replace(load, rate=rate, queries=smaller(load.queries, rate / load.rate))
    frames = load.frames()
    expected: pl.DataFrame | None = None
    results: dict[str, int] = {}
    first: dict[str, float] = {}
    for name in case.systems:
        first[name], found = measure.sample(name, load, frames)
        found = None if found is None else zoneless(found)
        expected = found if expected is None else expected
        results[name] = _same(name, found, expected, outcome)
    sampled = _rounds(measure, size, first, lambda name: measure.sample(name, load, frames))
    events = sum(part.height for several in frames for part in several)
    for name, values in sampled.items():
        yield _cell(name, values, measure, events, results[name])


def zoneless(results: pl.DataFrame) -> pl.DataFrame:
    """Times of a tree are UTC."""
    return results.with_columns(pl.col(pl.Datetime("us", "UTC")).dt.replace_time_zone(None))


def _tree_by_oracle(load: trees.Load, outcome: Outcome) -> None:
    """The same tree and queries, with few events."""
    rate, seconds = max(3, 120 // load.nodes), min(load.seconds, 3)
    queries = smaller(checking.few(load.queries), rate * seconds / (load.rate * load.seconds))
    few = replace(load, queries=queries, rate=rate, seconds=seconds, chunks=1, keys=min(load.keys, 5))
    frames = few.frames()
    events = zoneless(pl.concat([part for several in frames for part in several]))
    for name in outcome.case.systems:
        if name in trees.EXACT:
            outcome.checks += 1
            found = zoneless(trees.SCHEMES[name](few, frames).results)
            wrong = checking.by_oracle(found, events, queries)
            outcome.wrong += [f"{outcome.case.name}: {name}, by the oracle: {line}" for line in wrong[:3]]


# --- what they have in common ---------------------------------------------------------------------------------------


def _rounds(
    measure: Measure, size: Size, first: dict[str, float], sample: Callable[[str], Sample]
) -> dict[str, list[float]]:
    """What all systems show, by turns; where every run shows the same, or one is enough, the first one has."""
    if measure.once or size.runs == 1:
        return {name: [value] for name, value in first.items()}
    values: dict[str, list[float]] = {name: [] for name in first}
    for _ in range(size.runs):
        for name in values:
            values[name].append(sample(name).value)
    return values


def _cell(name: str, values: list[float], measure: Measure, events: int, results: int) -> Cell:
    best = max(values) if measure.more_is_better else min(values)
    return Cell(0, name, best, statistics.median(values), values, events, results)


def _compare(outcome: Outcome, measure: Measure) -> None:
    for cell in outcome.cells:
        ours = outcome.cell(cell.point, OURS)
        if ours is not None and ours.best and cell.best:
            cell.ratio = ours.best / cell.best if measure.more_is_better else cell.best / ours.best


def _marks(marks: list[Mark], outcome: Outcome, points: tuple[Point, ...]) -> Iterator[tuple[Mark, float, bool]]:
    for mark in marks:
        if mark.absolute:
            values = [cell.best for cell in outcome.cells if cell.system == mark.system]
            worst = min(values) if mark.least is not None else max(values)
            yield mark, worst, mark.holds(worst)
            continue
        last = outcome.cell(points[-1], mark.system)
        other = outcome.cell(points[-1], mark.beside) if mark.beside else outcome.cell(points[0], mark.system)
        if last is not None and other is not None and other.best:
            ratio = last.best / other.best
            yield mark, ratio, mark.holds(ratio)
