"""Windows and aggregates that need the order of events: what is held, what is refused, what is shared."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest

import windrow as wr


def events(times: Any, **columns: Any) -> pl.DataFrame:
    frame = pl.DataFrame({"t": pl.Series(list(times), dtype=pl.Int64)})
    return frame.with_columns(pl.Series(name, list(values)) for name, values in columns.items())


def stream(seconds: int, rate: int = 10, keys: int = 2, size: int = 100, seed: int = 1) -> Iterator[pl.DataFrame]:
    """Events out of order within 5 units, in batches."""
    rng = np.random.default_rng(seed)
    times = np.repeat(np.arange(seconds), rate) + rng.integers(-5, 1, seconds * rate)
    frame = events(times, k=rng.integers(0, keys, len(times)), x=rng.integers(0, 100, len(times)))
    return frame.iter_slices(size)


# --- what is held -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("updates", [None, 7])
@pytest.mark.parametrize(
    "window",
    [wr.counting(7), wr.counting(1000, 3), wr.punctuated(start="x < 5", end="x > 95"), wr.frames(when="x > 50")],
    ids=str,
)
def test_only_events_newer_than_the_watermark_minus_updates_are_held(window: Any, updates: int | None) -> None:
    engine = wr.Engine([wr.Query("q", window, "sum(x)", by="k")], "t", lateness=5, updates=updates)
    seen = []
    for batch in stream(60, size=40):
        engine.push(batch)
        seen += batch["t"].to_list()
        assert isinstance(engine.watermark, int)
        newer = [t for t in seen if t >= engine.watermark - (updates or 0)]
        assert engine.metrics.held_events == len(newer)
    engine.finish()
    assert engine.metrics.held_events == 0


def test_for_latest_each_key_s_last_n_events_are_held_too() -> None:
    engine = wr.Engine([wr.Query("q", wr.latest(4, every=10), "sum(x)", by="k")], "t", lateness=5)
    rows: list[tuple[int, int]] = []
    for batch in stream(60, keys=3, size=40):
        engine.push(batch)
        rows += batch.select("t", "k").rows()
        mark = engine.watermark
        assert isinstance(mark, int)
        final = [sum(t < mark and k == key for t, k in rows) for key in range(3)]
        waiting = sum(t >= mark for t, _ in rows)
        assert engine.metrics.held_events == waiting + sum(min(4, count) for count in final)


def test_state_does_not_grow_with_the_stream() -> None:
    queries = [
        wr.Query("endless", wr.session(1000), "count()", by="k"),
        wr.Query("open", wr.punctuated(start="x >= 0 AND t = 0", end="x < 0"), "sum(x)", by="k"),
        wr.Query("counted", wr.counting(5), "sum(x)", by="k"),
        wr.Query("timed", wr.tumbling(10), "sum(x)", by="k"),
    ]
    engine = wr.Engine(queries, "t", lateness=5)
    slices = []
    for batch in stream(1200, size=60):
        engine.push(batch)
        slices.append(engine.metrics.slices)
    assert max(slices[-50:]) <= max(slices[50:100]) + 300  # joined once they are some hundreds
    assert len(engine.snapshot()) < 100_000


def test_keys_that_nothing_is_left_of_are_forgotten() -> None:
    engine = wr.Engine([wr.Query("q", wr.frames(when="x > 50"), "count()", by="k")], "t")
    sizes = []
    for number in range(60):
        frame = events(np.arange(number * 100, number * 100 + 100), k=range(number * 50, number * 50 + 100))
        engine.push(frame.with_columns(x=pl.lit(0)))
        sizes.append(engine.metrics.state_bytes)
    assert max(sizes[40:]) < 1.5 * max(sizes[20:40])


# --- one pass -----------------------------------------------------------------------------------------------------


def test_time_and_session_windows_are_answered_from_the_ordered_slices() -> None:
    queries = [
        wr.Query("counted", wr.counting(10), "sum(x)", by="k"),
        wr.Query("timed", wr.sliding(20, 5), "sum(x)", by="k"),
        wr.Query("session", wr.session(3), "sum(x)", by="k"),
        wr.Query("cut", wr.punctuated(end="x = 7"), "sum(x)", by="k"),
    ]
    plan = wr.plan(queries, "t")
    assert len(plan.groups) == 1
    assert plan.groups[0].ordered
    assert [one.text for one in plan.groups[0].partials] == ["count()", "sum(x)"]
    shared = wr.windows(pl.concat(stream(200)), queries, "t")
    for query in queries:
        alone = wr.windows(pl.concat(stream(200)), query, "t")
        assert wr.results_of(shared, query).equals(wr.results_of(alone, query))


def test_thousands_of_counting_windows_share_slices() -> None:
    queries = [wr.Query(f"q{n}", wr.counting(10 * n), "sum(x)") for n in range(1, 2001)]
    engine = wr.Engine(queries, "t", lateness=5)
    for batch in stream(300, size=500):
        engine.push(batch)
    assert engine.metrics.slices <= 300  # one for every ten events, not one for every window


def test_explain_says_what_needs_the_order() -> None:
    shown = wr.plan([wr.Query("c", wr.counting(10), "sum(x)"), wr.Query("t", wr.tumbling(5), "sum(x)")], "t").explain()
    assert "needs the global order: counting(10) depends on the order of events" in shown
    shown = wr.plan([wr.Query("c", wr.frames(when="x > 1"), "sum(x)", by="k")], "t").explain()
    assert "sliceable where its key lives: frames(when='x > 1') depends" in shown


def test_an_ordered_query_can_come_to_a_group_and_go_again() -> None:
    """Time windows and sessions go on as if it had never been there."""
    stays = [
        wr.Query("timed", wr.sliding(20, 5), "sum(x)", by="k"),
        wr.Query("session", wr.session(1), "count()", by="k"),
    ]
    alone, visited = (wr.Engine(stays, "t", lateness=5, updates=10) for _ in range(2))
    for number, batch in enumerate(stream(300, size=60)):
        if number in (5, 20):
            visited.add(wr.Query("guest", wr.counting(3), "sum(x)", by="k"))
        if number in (12, 30):
            visited.remove("guest", "now" if number == 12 else "windows_closed")
        if number in (7, 15):
            visited = wr.Engine.restore(visited.snapshot())
        found, wanted = visited.push(batch), alone.push(batch)
        assert found.filter(pl.col("query") != "guest").select(wanted.columns).equals(wanted)
    found = visited.finish().filter(pl.col("query") != "guest")
    assert found.select(wanted.columns).equals(alone.finish())


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: wr.counting(0), "counting: n must be a whole number from 1 to 2\\*\\*62, not 0"),
        (lambda: wr.counting(5, step=0), "counting: step must be a whole number"),
        (lambda: wr.counting(True), "counting: n must be a whole number"),
        (lambda: wr.counting(2.5), "counting: n must be a whole number"),  # type: ignore[arg-type]
        (lambda: wr.latest(3, every="0 seconds"), "latest: every must be greater than zero"),
        (lambda: wr.latest(-1, every=10), "latest: n must be a whole number"),
        (lambda: wr.punctuated(), "punctuated: give start, end or both"),
        (lambda: wr.punctuated(end="x >"), "punctuated: end: expression 'x >'"),
        (lambda: wr.frames(when="sum(x) > 1"), "frames: when: expression"),
    ],
)
def test_windows_that_make_no_sense(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        make()


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (wr.punctuated(end="y > 1"), "query 'q': punctuated: there is no column 'y' in the events"),
        (wr.frames(when="x + 1"), "query 'q': frames: 'x \\+ 1' is Int64, not true or false"),
        (
            wr.latest(3, every="1 second"),
            "query 'q': latest\\(3, every=1 second\\) does not fit 't', which is a number",
        ),
    ],
)
def test_predicates_and_lengths_are_checked_against_the_events(window: Any, message: str) -> None:
    engine = wr.Engine(wr.Query("q", window, "count()"), "t")
    with pytest.raises(wr.QueryError, match=message):
        engine.push(events([1, 2], x=[1, 2]))
    assert engine.metrics.events == 0


class Fragile(wr.Monoid):
    """Numbers as text, one after the other; fails when told to."""

    state = pl.String
    commutative = False
    fails: ClassVar[str] = ""

    def lift(self, x: pl.Series) -> str:
        self._perhaps("lift")
        return "".join(map(str, x))

    def merge(self, a: pl.Series, b: pl.Series) -> pl.Series:
        self._perhaps("merge")
        return a + b

    def lower(self, state: pl.Series) -> pl.Series:
        self._perhaps("lower")
        return state

    def _perhaps(self, method: str) -> None:
        if Fragile.fails == method:
            raise RuntimeError(f"{method} fails")


@dataclass(frozen=True)
class Moody(wr.DataDrivenWindow):
    """Windows of two events; fails when told to."""

    kind: ClassVar[str] = "moody"
    initial: ClassVar[dict[str, int]] = {"seen": 0}

    def cuts(self, events: wr.OrderedEvents, state: Any) -> wr.Cuts:
        if Fragile.fails == "cuts":
            raise RuntimeError("cuts fails")
        seen = events.total(np.ones(len(events), np.int64), state["seen"])
        nowhere = np.zeros(len(events), np.bool_)
        return wr.Cuts(seen % 2 == 1, seen % 2 == 0, nowhere, {"seen": seen[events.last]})


@pytest.mark.parametrize("method", ["lift", "merge", "lower", "cuts"])
@pytest.mark.parametrize("updates", [None, 10])
def test_a_failure_in_users_code_leaves_the_engine_as_it_was(
    method: str, updates: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = [
        wr.Query("fragile", wr.counting(5, 2), Fragile.of("x").alias("text"), by="k"),
        wr.Query("timed", wr.tumbling(7), Fragile.of("x").alias("text"), by="k"),
        wr.Query("moody", Moody(), "sum(x)", by="k"),
        wr.Query("other", wr.tumbling(7), "sum(x)"),
    ]
    calm, shaken = (wr.Engine(queries, "t", lateness=5, updates=updates) for _ in range(2))
    failures = 0
    for batch in stream(24, size=20):
        trial = wr.Engine.restore(shaken.snapshot())
        before = trial.metrics
        monkeypatch.setattr(Fragile, "fails", method)
        try:
            trial.push(batch)
        except RuntimeError:
            assert trial.metrics == before
            shaken, failures = trial, failures + 1
        monkeypatch.setattr(Fragile, "fails", "")
        assert shaken.push(batch).equals(calm.push(batch))
    assert failures > 5
    assert shaken.finish().equals(calm.finish())


@pytest.mark.parametrize(
    ("cuts", "message"),
    [
        (lambda size: None, "must return Cuts"),
        (
            lambda size: wr.Cuts(np.ones(size, np.int64), *[np.zeros(size, bool)] * 2, {}),
            "starts must be .* not int64 of",
        ),
        (lambda size: wr.Cuts(*[np.zeros(size + 1, bool)] * 3, {}), "starts must be .* for each of 5 events"),
        (lambda size: wr.Cuts(np.ones(size, bool), *[np.zeros(size, bool)] * 2, {}), "begins where one is open"),
        (lambda size: wr.Cuts(np.zeros(size, bool), np.ones(size, bool), np.zeros(size, bool), {}), "none is open"),
    ],
)
def test_nonsense_from_a_window_of_one_s_own_is_named(cuts: Any, message: str) -> None:
    @dataclass(frozen=True)
    class Nonsense(wr.DataDrivenWindow):
        def cuts(self, events: wr.OrderedEvents, state: Any) -> Any:
            return cuts(len(events))

    with pytest.raises((TypeError, ValueError), match=message):
        wr.windows(events(range(5)), wr.Query("q", Nonsense(), "count()"), "t")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({}, "Odd must define cuts"),
        ({"cuts": lambda *_: None, "inputs": "x"}, "the inputs of Odd must be a tuple of SQL expressions, not 'x'"),
        ({"cuts": lambda *_: None, "initial": {"open": True}}, "'open' is what windrow itself carries"),
        ({"cuts": lambda *_: None, "initial": {"name": "a"}}, "'name' must be true or false, an integer or a float"),
    ],
)
def test_a_window_of_one_s_own_that_cannot_work_is_refused_with_its_query(
    members: dict[str, Any], message: str
) -> None:
    odd = type("Odd", (wr.DataDrivenWindow,), members)
    with pytest.raises(wr.QueryError, match=message):
        wr.Query("q", odd(), "count()")


def test_a_window_that_keeps_what_is_no_field_is_refused() -> None:
    """Two of them would be equal, and share their windows."""

    class Every(wr.DataDrivenWindow):
        def __init__(self, n: int) -> None:
            object.__setattr__(self, "n", n)

        def cuts(self, events: wr.OrderedEvents, state: Any) -> wr.Cuts:
            raise NotImplementedError

    with pytest.raises(wr.QueryError, match="Every keeps 'n', which is no field of it; make it a frozen dataclass"):
        wr.Query("q", Every(3), "count()")


def test_what_a_window_carries_keeps_its_type() -> None:
    @dataclass(frozen=True)
    class Rounding(wr.DataDrivenWindow):
        initial: ClassVar[dict[str, int]] = {"total": 0}

        def cuts(self, events: wr.OrderedEvents, state: Any) -> wr.Cuts:
            nowhere = np.zeros(len(events), np.bool_)
            return wr.Cuts(nowhere, nowhere, nowhere, {"total": state["total"] + 0.6})

    with pytest.raises(TypeError, match="'total' is float64, and int64 in initial"):
        wr.windows(events(range(5)), wr.Query("q", Rounding(), "count()"), "t")


# --- cost ---------------------------------------------------------------------------------------------------------


def test_events_that_wait_long_cost_nothing_while_they_wait() -> None:
    """With a great lateness a push does not touch what waits: nothing of its size is allocated."""
    engine = wr.Engine(wr.Query("q", wr.counting(10), "count()"), "t", lateness=10**9)
    engine.push(events(range(200_000)))
    engine.push(events(range(200_000, 200_010)))
    tracemalloc.start()
    engine.push(events(range(200_010, 200_020)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 400_000
    assert engine.metrics.held_events == 200_020
