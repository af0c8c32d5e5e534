"""Windows of one's own: whoever writes a `ContextFreeWindow` gets all that a built-in window has.

A window that says the same as `tumbling`, `sliding` or `cumulating` gives the same, step by step; windows that no
lattice can express are held against the oracle, which asks them about one time after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import windrow as wr
from test_examples import load
from test_properties import Running, disagreements
from windrow.core.plan.groups import Timeline
from windrow.core.slices.kernel import Edges
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN, WINDOWS, FixedWindow, Window
from windrow.testing import differences
from windrow.testing.strategies import KINDS, ORDERED, SCHEMA, Row, Stream, frame, query_sets, streams, tables
from windrow.testing.transcripts import Step, run_step


@dataclass(frozen=True)
class Imitation(wr.ContextFreeWindow):
    """The windows of lattices (period, phase, length), said by hand."""

    lattices: tuple[tuple[int, int, int], ...]
    temporal: bool = False

    def windows(self, lo: int, hi: int) -> Any:
        starts, ends = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for period, phase, length in self.lattices:
            first, last = (lo - length - phase) // period + 1, (hi - 1 - phase) // period
            starts.append(phase + np.arange(first, last + 1) * period)
            ends.append(starts[-1] + length)
        return np.concatenate(starts), np.concatenate(ends)


@dataclass(frozen=True)
class ImitationWithEdges(Imitation):
    def edges(self, lo: int, hi: int) -> Any:
        found = [np.empty(0, np.int64)]
        for period, phase, length in self.lattices:
            for begin in (phase, phase + length):
                found.append(begin + np.arange(-((begin - lo) // period), (hi - 1 - begin) // period + 1) * period)
        return np.concatenate(found)  # neither sorted nor each once: that is put right


@dataclass(frozen=True)
class Listed(wr.ContextFreeWindow):
    """These windows and no others."""

    bounds: tuple[tuple[int, int], ...]
    temporal = False

    def windows(self, lo: int, hi: int) -> Any:
        starts, ends = np.array(self.bounds, np.int64).reshape(-1, 2).T
        inside = (starts < hi) & (ends > lo)
        return starts[inside], ends[inside]


def with_window(query: wr.Query, window: Window) -> wr.Query:
    """The same query over another window."""
    return wr.Query(**{one.name: getattr(query, one.name) for one in fields(query)} | {"window": window})


def imitated(query: wr.Query, with_edges: bool) -> wr.Query:
    """The same query, its window said by hand."""
    if not isinstance(query.window, FixedWindow):
        return query
    kind = ImitationWithEdges if with_edges else Imitation
    lattices = tuple(tuple(lattice) for lattice in query.window.lattices())
    return with_window(query, kind(lattices))


def with_windows(stream: Stream, change: Any) -> Stream:
    """A run whose queries, those that are added too, are changed."""
    steps = [replace(step, value=change(step.value)) if step.action == "add" else step for step in stream.steps]
    return Stream(tuple(map(change, stream.queries)), stream.options, tuple(steps))


# --- a window that says the same as a built-in one ------------------------------------------------------------------


def deviations(stream: Stream, chosen: set[str], with_edges: bool, restored_at: list[int]) -> list[str]:
    """Where the run goes otherwise when the windows of some queries are said by hand."""
    own = with_windows(stream, lambda query: imitated(query, with_edges) if query.name in chosen else query)
    built_in, mine = Running(stream.queries, **stream.options), Running(own.queries, restored_at, **own.options)
    counted = ["late", "dropped", "overflows", "results", "events"]
    if any(step.details.get("when") == "windows_closed" for step in stream.steps):
        counted.remove("dropped")  # a query that is leaving counts drops for as long as it is there
    for number, (step, same) in enumerate(zip(stream.steps, own.steps, strict=True)):
        told, found = run_step(built_in, step), run_step(mine, same)
        if step.action in ("add", "remove"):
            wrong = [] if told == found else [f"{found}, not {told}"]
        else:
            wrong = differences(found, told, own.all_queries, ordered=True)
        wrong += [
            f"{name}: {getattr(mine, name)}, not {getattr(built_in, name)}"
            for name in counted
            if getattr(mine, name) != getattr(built_in, name)
        ]
        if wrong:
            return [f"step {number} ({step.action}): {line}" for line in wrong]
    return []


TIMED = tuple(kind for kind in KINDS if kind not in ORDERED)
names = st.sets(st.sampled_from(("m", "c", "x", "a", "q10", "q9")), min_size=1).map(lambda some: some | {"m"})
restores = st.lists(st.integers(0, 12), max_size=3)


@given(stream=streams(watermarks=True, beyond=True, kinds=TIMED), chosen=names, with_edges=st.booleans(), at=restores)
@settings(max_examples=12)
def test_with_disorder_and_late_events(stream: Stream, chosen: set[str], with_edges: bool, at: list[int]) -> None:
    assert deviations(stream, chosen, with_edges, at) == []


@given(stream=streams(updates=True, beyond=True, kinds=TIMED), chosen=names, with_edges=st.booleans(), at=restores)
@settings(max_examples=12)
def test_with_updates(stream: Stream, chosen: set[str], with_edges: bool, at: list[int]) -> None:
    assert deviations(stream, chosen, with_edges, at) == []


@given(
    stream=streams(changes=True, beyond=True, updates=True, kinds=TIMED),
    chosen=names,
    with_edges=st.booleans(),
    at=restores,
)
@settings(max_examples=12)
def test_with_queries_that_come_and_go(stream: Stream, chosen: set[str], with_edges: bool, at: list[int]) -> None:
    assert deviations(stream, chosen, with_edges, at) == []


@given(rows=tables(), queries=query_sets(time_columns=(None, None, "o")), with_edges=st.booleans())
@settings(max_examples=15)
def test_over_whole_tables(rows: list[Row], queries: tuple[wr.Query, ...], with_edges: bool) -> None:
    queries = tuple(query for query in queries if "z" not in str(query.computed))  # a sum that does not fit raises
    own = [imitated(query, with_edges) for query in queries]
    found, told = (wr.windows(frame(rows), some, "t").to_dicts() for some in (own, queries))
    assert differences(found, told, own, ordered=True) == []


def test_the_check_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(
        (wr.Query("m", wr.tumbling(10), "count()"),),
        {"time": "t"},
        tuple(run for t in (1, 5, 12, 31) for run in [_input(t)]),
    )
    assert deviations(stream, {"m"}, True, []) == []
    monkeypatch.setattr(ImitationWithEdges, "windows", lambda self, lo, hi: Imitation.windows(self, lo + 10, hi))
    assert deviations(stream, {"m"}, True, []) != []


def _input(*times: int) -> Any:
    return Step("input", [{**dict.fromkeys(SCHEMA), "t": t, "o": 0} for t in times], {})


# --- windows that no lattice can express ----------------------------------------------------------------------------

bound = st.integers(-60, 160)
pairs = st.tuples(bound, st.sampled_from((1, 2, 5, 9, 40, 150))).map(lambda one: (one[0], one[0] + one[1]))
listed = st.lists(pairs, max_size=6).map(lambda bounds: Listed(tuple(bounds)))
ragged = st.lists(pairs, min_size=1, max_size=5).map(
    lambda bounds: Imitation(tuple((97, start, end - start) for start, end in bounds))
)


def own_windows(query: wr.Query, chosen: dict[str, Any]) -> wr.Query:
    if query.name not in chosen or not isinstance(query.window, FixedWindow):
        return query
    window = chosen[query.name]
    return with_window(query, window)


chosen_windows = st.fixed_dictionaries({"m": listed | ragged}, optional={"c": ragged, "x": listed, "q10": ragged})


@given(stream=streams(watermarks=True, beyond=True), chosen=chosen_windows)
@settings(max_examples=12)
def test_overlaps_gaps_and_lengths_of_all_kinds(stream: Stream, chosen: dict[str, Any]) -> None:
    assert disagreements(with_windows(stream, lambda query: own_windows(query, chosen))) == []


@given(stream=streams(changes=True, updates=True, beyond=True), chosen=chosen_windows, at=restores)
@settings(max_examples=12)
def test_all_kinds_with_updates_and_changes(stream: Stream, chosen: dict[str, Any], at: list[int]) -> None:
    own = with_windows(stream, lambda query: own_windows(query, chosen))
    assert disagreements(own, restored_at=at) == []


@given(stream=streams(beyond=True, most=16), chosen=chosen_windows)
@settings(max_examples=15)
def test_rolled_up_or_not(stream: Stream, chosen: dict[str, Any]) -> None:
    own = with_windows(stream, lambda query: own_windows(query, chosen))
    keys = {"k": 4.0, "j": 3.0, "g": 4.0}
    assert disagreements(own, rates=wr.Rates(1e12, keys)) == []
    assert disagreements(own, rates=wr.Rates(1e-12, keys)) == []


@given(
    window=listed | ragged,
    since=st.just(INT64_MIN) | st.integers(-50, 50),
    batches=st.lists(st.lists(st.integers(-150, 300), min_size=1, max_size=30), min_size=1, max_size=4),
    cell=st.none() | st.integers(1, 9),
    in_order=st.booleans(),
)
@example(window=Listed(((0, 10),)), since=INT64_MIN, batches=[[-150], [200], [5]], cell=None, in_order=True)
def test_every_lookup_finds_the_last_edge(
    window: Any, since: int, batches: list[list[int]], cell: int | None, in_order: bool
) -> None:
    edges = Edges.of(
        [Timeline(wr.tumbling(35), INT64_MIN, INT64_MAX, False), Timeline(window, since, INT64_MAX, False)]
    )
    bounds = np.unique(np.concatenate(window.windows(-10_000, 10_000)))
    for batch in batches:  # what one batch has shown is remembered for the next
        times = np.array(sorted(batch) if in_order else batch, np.int64)
        cuts = np.concatenate((bounds[bounds >= since], np.arange(-350, 350, 35), [since] if since > INT64_MIN else []))
        expected = [int(cuts[cuts <= time].max()) for time in times]
        assert edges.floor(times).tolist() == expected
        own = edges.irregular.edges(times)
        for numbers, before in (edges.index(times, in_order, cell), edges._index_by_grid(times, cell, own)):
            assert before[numbers].tolist() == expected


def test_several_windows_of_very_different_lengths() -> None:
    window = Listed(((0, 10**12), (5, 6), (5, 100), (7, 8), (10**11, 10**11 + 3)))
    events = pl.DataFrame({"t": [4, 5, 6, 7, 10**11 + 2, 10**13]})
    found = wr.windows(events, wr.Query("m", window, "count()"), "t")
    assert found.select("window_start", "window_end", "count()").rows() == [
        (5, 6, 1),
        (7, 8, 1),
        (5, 100, 3),
        (10**11, 10**11 + 3, 1),
        (0, 10**12, 5),
    ]


def test_closing_keeps_what_has_begun_and_nothing_later() -> None:
    engine = wr.Engine(wr.Query("m", Listed(((0, 10), (3, 40), (12, 20))), "count()"), "t")
    engine.push(pl.DataFrame({"t": [4]}))
    engine.remove("m", when="windows_closed")
    told = engine.push(pl.DataFrame({"t": [13, 30]}))
    assert told.select("window_start", "window_end", "count()").rows() == [(0, 10, 1)]
    assert len(engine.queries) == 1
    told = engine.push(pl.DataFrame({"t": [50]}))
    assert told.select("window_start", "window_end", "count()").rows() == [(3, 40, 3)]
    assert engine.queries == []


# --- what it costs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Watched(wr.ContextFreeWindow):
    """Every second, and it is written down what is asked."""

    calls: list[tuple[int, int]] = field(default_factory=list, compare=False)
    temporal = False

    def windows(self, lo: int, hi: int) -> Any:
        self.calls.append((lo, hi))
        assert hi - lo < 10**12, "a pause was listed"
        starts = np.arange(lo // 10**6, (hi - 1) // 10**6 + 1) * 10**6
        return starts, starts + 10**6


YEAR = 365 * 86_400 * 10**6


@pytest.mark.parametrize("in_one_batch", [True, False])
def test_a_pause_is_not_listed(in_one_batch: bool) -> None:
    window = Watched()
    engine = wr.Engine(wr.Query("m", window, "count()", by="k"), "t", lateness=10**6)
    keys = np.arange(1000)
    batches = [pl.DataFrame({"t": keys * 5000 + year * YEAR, "k": keys}) for year in range(4)]
    parts = [pl.concat(batches)] if in_one_batch else batches
    told = [engine.push(part) for part in parts] + [engine.finish()]
    assert sum(part["count()"].sum() for part in told if part.height) == 4000
    assert len(window.calls) < 100


def test_questions_do_not_grow_with_events_keys_or_windows() -> None:
    counts = []
    for size in (1000, 100_000):
        window = Watched()
        engine = wr.Engine(wr.Query("m", window, "count()", by="k"), "t", lateness=10**6)
        for batch in range(10):
            times = np.linspace(batch * 10**8, (batch + 1) * 10**8, size).astype(np.int64)
            engine.push(pl.DataFrame({"t": times, "k": np.arange(size) % (size // 10)}))
        counts.append(len(window.calls))
    assert max(counts) < 10 * 12


def test_a_stream_within_one_window_asks_little() -> None:
    window = Watched()
    engine = wr.Engine(wr.Query("m", window, "count()"), "t")
    for t in range(500):
        engine.push(pl.DataFrame({"t": [t]}))
    assert len(window.calls) <= 2 * 500 + 10


# --- what is said about it ------------------------------------------------------------------------------------------


def test_the_plan_shows_it() -> None:
    window = Listed(((0, 10),))
    text = wr.plan([wr.Query("m", window, "count()"), wr.Query("c", wr.tumbling(5), "count()")], "t").explain()
    assert "1 slice group\n" in text
    assert f"0.2 per unit, those of {window} as they say" in text


def test_the_planner_reads_how_many_edges_there_are() -> None:
    class Dense(Listed):
        edges_per_unit = 1.0

    for window, apart in ((Listed(()), False), (Dense(()), True)):
        queries = [wr.Query("m", window, "count()"), wr.Query("c", wr.session(50), "count()")]
        assert bool(wr.plan(queries, "t", wr.Rates(2.0, {})).apart) == apart


def test_a_window_for_timestamps_does_not_fit_numbers_nor_the_other_way_round() -> None:
    engine = wr.Engine(wr.Query("m", months().CalendarMonths(), "count()"), "t")
    with pytest.raises(wr.QueryError, match=r"query 'm': CalendarMonths\(months=1\) does not fit 't'"):
        engine.push(pl.DataFrame({"t": [1]}))
    with pytest.raises(wr.QueryError, match=r"does not fit 't', which is a timestamp"):
        wr.Engine(wr.Query("m", Listed(()), "count()"), "t").push(pl.DataFrame({"t": [datetime(2024, 1, 1)]}))


def test_a_snapshot_needs_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = wr.Engine(wr.Query("m", Listed(((0, 10), (5, 7))), "count()"), "t")
    engine.push(pl.DataFrame({"t": [6]}))
    snapshot = engine.snapshot()
    assert wr.Engine.restore(snapshot).finish()["count()"].to_list() == [1, 1]
    monkeypatch.delitem(WINDOWS, "listed")
    with pytest.raises(ValueError, match="there is no window called 'listed' here: import the module that defines it"):
        wr.Engine.restore(snapshot)


# --- what goes wrong ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wrong(wr.ContextFreeWindow):
    """Answers what it is told to."""

    answer: Any = field(compare=False)
    temporal = False

    def windows(self, lo: int, hi: int) -> Any:
        return self.answer(lo, hi) if callable(self.answer) else self.answer


@dataclass(frozen=True)
class WrongEdges(Wrong):
    cuts: Any = field(default=None, compare=False)

    def edges(self, lo: int, hi: int) -> Any:
        return self.cuts


HUGE = 2**62


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (None, r"must give two arrays, starts and ends, not None"),
        (([0],), r"must give two arrays, starts and ends, not \(\[0\],\)"),
        (([0, 5], [10]), r"must give as many ends as starts, not 1 and 2"),
        (([0.5], [10.5]), r"must give times as int64, not \[0.5\]"),
        ((np.array([0.0]), np.array([1.0])), r"must give times as int64, not an array of float64 with 1 dimensions"),
        ((["a"], ["b"]), r"must give times as int64, not \['a'\]"),
        (([[0]], [[10]]), r"must give times as int64, not \[\[0\]\]"),
        (([[0], [1, 2]], [[10]]), r"must give times as int64"),
        ((0, 10), r"must give times as int64, not 0"),
        (([10], [0]), r"must give ends later than their starts, not 10 to 0"),
        (([4], [4]), r"must give ends later than their starts, not 4 to 4"),
        (([0], [HUGE]), rf"gives {HUGE}, so far out that it cannot be written in 64 bits"),
        (([-HUGE], [10]), rf"gives -{HUGE}, so far out"),
        (([0], [2**70]), r"must give times as int64"),
    ],
)
def test_a_wrong_answer_is_refused_and_nothing_has_changed(answer: Any, complaint: str) -> None:
    queries = [wr.Query("m", Wrong(answer), "count()"), wr.Query("c", wr.tumbling(10), "count()")]
    engine = wr.Engine(queries, "t")
    with pytest.raises(wr.QueryError, match=rf"^Wrong\.windows\(-?\d+, \d+\) {complaint}"):
        engine.push(pl.DataFrame({"t": [3]}))
    assert engine.metrics.events == 0
    engine.remove("m")
    engine.push(pl.DataFrame({"t": [4]}))
    assert engine.finish()["count()"].to_list() == [1]


@pytest.mark.parametrize(
    ("cuts", "complaint"),
    [
        (3, "must give times as int64, not 3"),
        ([1.5], r"must give times as int64, not \[1.5\]"),
        ([0], "must give 10, where a window starts or ends"),
    ],
)
def test_wrong_edges_are_refused(cuts: Any, complaint: str) -> None:
    window = WrongEdges(([0, 10], [10, 20]), cuts)
    engine = wr.Engine(wr.Query("m", window, "count()"), "t")
    with pytest.raises(wr.QueryError, match=rf"^WrongEdges\.edges\(-?\d+, \d+\) {complaint}"):
        engine.push(pl.DataFrame({"t": [3, 12]}))


def test_more_than_was_asked_for_does_no_harm() -> None:
    many = np.arange(-100, 100, 10)
    twice = np.append(many, many)[::-1]
    window = WrongEdges((twice, twice + 10), [*range(-100, 100), 7])
    found = wr.windows(pl.DataFrame({"t": [3, 12, 14]}), wr.Query("m", window, "count()"), "t")
    assert found.select("window_start", "count()").rows() == [(0, 1), (10, 2)]


def test_nothing_may_be_an_empty_list() -> None:
    found = wr.windows(pl.DataFrame({"t": [3]}), wr.Query("m", Wrong(([], [])), "count()"), "t")
    assert found.height == 0


def test_an_error_in_it_says_where_it_happened() -> None:
    def fail(lo: int, hi: int) -> Any:
        raise OverflowError("date value out of range")

    with pytest.raises(OverflowError, match="date value out of range") as raised:
        wr.Engine(wr.Query("m", Wrong(fail), "count()"), "t").push(pl.DataFrame({"t": [3]}))
    assert raised.value.__notes__[0].startswith("in Wrong.windows(")


def test_events_whose_windows_cross_the_end_of_time_are_refused_or_answered() -> None:
    window = Imitation(((100, 0, 100),))
    query = wr.Query("m", window, "count()")
    for far in (HUGE - 150, -HUGE + 150):
        assert wr.windows(pl.DataFrame({"t": [far]}), query, "t")["count()"].to_list() == [1]
    for far in (HUGE - 2, -HUGE + 2, HUGE, -HUGE):
        with pytest.raises(ValueError, match="so far out that"):
            wr.windows(pl.DataFrame({"t": [far]}), query, "t")


def test_fields_that_are_no_plain_data_are_refused() -> None:
    with pytest.raises(wr.QueryError, match="query 'm': the fields of Listed must be plain data: unhashable"):
        wr.Query("m", Listed([(0, 10)]), "count()")  # type: ignore[arg-type]


# --- the examples ---------------------------------------------------------------------------------------------------


def months() -> Any:
    return load("calendar_months")


@pytest.mark.parametrize("length", [1, 3, 12])
def test_calendar_months_are_those_of_the_calendar(length: int, seed: int) -> None:
    """Against a truncation of dates by Polars, with disorder, over leap years and both sides of 1970."""
    rng = np.random.default_rng(seed)
    start = datetime(1899, 12, 30, tzinfo=UTC)
    days = np.sort(rng.integers(0, 200 * 365, 3000)) + rng.integers(-20, 20, 3000)
    at = [start + timedelta(days=int(day), seconds=int(rng.integers(0, 86_400))) for day in days]
    events = pl.DataFrame({"at": at, "k": rng.integers(0, 3, 3000), "x": rng.integers(0, 100, 3000)})
    query = wr.Query("m", months().CalendarMonths(length), ["count()", "sum(x)"], by="k")
    engine = wr.Engine(query, "at", lateness="45 days")
    found = pl.concat([*(engine.push(part) for part in events.iter_slices(700)), engine.finish()])
    wanted = (
        events.group_by("k", window_start=pl.col("at").dt.truncate(f"{length}mo"))
        .agg(pl.len().cast(pl.Int64).alias("count()"), pl.sum("x").alias("sum(x)"))
        .with_columns(window_end=pl.col("window_start").dt.offset_by(f"{length}mo"))
    )
    columns = ["window_start", "window_end", "k", "count()", "sum(x)"]
    assert engine.metrics.dropped == 0
    assert found.select(columns).sort(columns).rows() == wanted.select(columns).sort(columns).rows()


def budget_cuts(window: Any, rows: list[tuple[int, int | None]], parts: list[int]) -> list[tuple[int, list[Any]]]:
    """The windows of each key, as lists of amounts, from batches that end at some places: as an engine would do it."""
    carried = {0: {"total": 0, "open": False}, 1: {"total": 0, "open": False}, 2: {"total": 0, "open": False}}
    windows: dict[int, list[list[Any]]] = {key: [] for key in carried}
    for begin, end in zip([0, *parts], [*parts, len(rows)], strict=True):
        batch = sorted(rows[begin:end], key=lambda row: row[0])
        there = sorted({key for key, _ in batch})
        key = np.array([there.index(key) for key, _ in batch], np.int64)
        events = wr.OrderedEvents(key, {window.amount: pl.Series([amount for _, amount in batch], dtype=pl.Int64)})
        state = {
            "total": np.array([carried[one]["total"] for one in there], np.int64),
            "open": np.array([carried[one]["open"] for one in there], np.bool_),
        }
        cuts = window.cuts(events, state)
        assert set(cuts.state) == set(window.initial)
        for number, (whose, amount) in enumerate(batch):
            is_open = carried[whose]["open"]
            assert bool(cuts.breaks[number]) == bool(is_open and cuts.starts[number])
            if cuts.starts[number]:
                windows[whose].append([])
            windows[whose][-1].append(amount)
            carried[whose]["open"] = not cuts.ends[number]
        for number, whose in enumerate(there):
            carried[whose]["total"] = int(cuts.state["total"][number])
    return [(key, one) for key, several in windows.items() for one in several]


payments = st.lists(st.tuples(st.integers(0, 2), st.none() | st.integers(0, 60)), max_size=30)


@given(rows=payments, budget=st.integers(1, 100), parts=st.lists(st.integers(0, 30), max_size=4))
def test_a_budget_is_cut_where_its_total_crosses_a_multiple_in_whatever_batches(
    rows: list[tuple[int, int | None]], budget: int, parts: list[int]
) -> None:
    window = load("running_total").Budget("amount", budget)
    wanted: dict[int, list[list[Any]]] = {0: [], 1: [], 2: []}
    totals = dict.fromkeys(wanted, 0)
    for key, amount in rows:
        before, totals[key] = totals[key], totals[key] + (amount or 0)
        if not wanted[key] or totals[key] // budget > before // budget:
            wanted[key].append([])
        wanted[key][-1].append(amount)
    places = sorted(min(part, len(rows)) for part in parts)
    assert budget_cuts(window, rows, places) == [(key, one) for key, several in wanted.items() for one in several]


def test_a_budget_in_the_engine() -> None:
    """A window is emitted once the event that ends it is final; the open ones are not, as with punctuated windows."""
    window = load("running_total").Budget("amount", 100)
    query = wr.Query("m", window, ["count()", "sum(amount)"], by="who")
    events = pl.DataFrame(
        {
            "t": [0, 1, 2, 3, 4, 5, 6, 7, 8],
            "who": ["ann", "ann", "bob", "ann", "ann", "ann", "bob", "ann", "ann"],
            "amount": [30, 50, 100, 40, 10, 70, 5, 90, 20],
        }
    )
    wanted = [("ann", 0, 1, 2, 80), ("ann", 3, 4, 2, 50), ("ann", 5, 7, 2, 160)]
    for size, lateness in ((9, 0), (1, 0), (2, 0), (4, 3)):
        engine = wr.Engine(query, "t", lateness=lateness)
        parts = []
        for number, part in enumerate(events.iter_slices(size)):
            parts.append(engine.push(part.reverse() if lateness else part))  # out of order within the lateness
            if number == 1:
                engine = wr.Engine.restore(engine.snapshot())
        found = pl.concat([part for part in (*parts, engine.finish()) if part.height])
        columns = ["who", "window_start", "window_end", "count()", "sum(amount)"]
        assert found.select(columns).rows() == wanted
