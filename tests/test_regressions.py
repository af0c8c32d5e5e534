"""Cases that were once wrong, each in its smallest form."""

from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pytest

import windrow as wr

LETTERS = pl.DataFrame({"t": [1, 2, 11, 12, 25], "x": [1, 2, 3, 4, None], "k": ["a", "b", "a", "c", "a"]})


def whole(events: pl.DataFrame, *queries: wr.Query) -> list[Any]:
    return wr.windows(events, queries, time="t").rows()


def test_queries_with_other_windows_share_a_bag_of_strings() -> None:
    found = whole(
        LETTERS, wr.Query("a", wr.tumbling(30), "distinct(k)"), wr.Query("b", wr.tumbling(15), ["mode(k)", "count()"])
    )
    assert found == [("b", 0, 15, 0, None, "a", 4), ("a", 0, 30, 0, 3, None, None), ("b", 15, 30, 0, None, "a", 1)]


@pytest.mark.parametrize(
    "asked",
    [
        wr.count("x = 1"),
        wr.count("k = 'it\\'s'"),
        wr.formula("max(k) || '\\\\'"),
        wr.formula("if(sum(x) > 0, 'p0', ')')"),
        wr.first("x", nulls=True),
        wr.arg_max("k", of="x").alias("of"),
    ],
    ids=lambda asked: asked.text,
)
def test_every_aggregate_survives_a_snapshot(asked: wr.Aggregate) -> None:
    engine = wr.Engine(wr.Query("q", wr.tumbling(100), asked), "t")
    engine.push(LETTERS)
    assert wr.Engine.restore(engine.snapshot()).finish().equals(engine.finish())


def test_an_equality_is_no_named_argument() -> None:
    assert whole(LETTERS, wr.Query("q", wr.tumbling(100), "count(x = 1)")) == [("q", 0, 100, 0, 4)]


def test_a_formula_cannot_name_what_stands_for_its_parts() -> None:
    with pytest.raises(wr.QueryError, match="p0 is outside of every aggregate"):
        wr.Query("q", wr.tumbling(10), "sum(x) + p0")


@pytest.mark.parametrize("name", ["line", "where", "start", "first", "last", "excluded", "slice_start", "rows", "nth"])
def test_a_key_may_have_any_name(name: str) -> None:
    queries = [
        wr.Query("w", wr.tumbling(10), "last(x)", by=name),
        wr.Query("s", wr.session(3), "count()", by=name),
    ]
    engine = wr.Engine(queries, "t", updates=100)
    engine.push(pl.DataFrame({"t": [1, 30], name: ["a", "b"], "x": [1, 2]}))
    revised = engine.push(pl.DataFrame({"t": [8], name: ["a"], "x": [3]}))
    assert revised.select("query", name, "revision").rows() == [("w", "a", 1), ("s", "a", 0)]


def test_sums_of_decimals_are_decimals_and_exact() -> None:
    values = pl.Series([Decimal(10**20), Decimal(1)], dtype=pl.Decimal(30, 0))
    events = pl.DataFrame({"t": [1, 2], "x": values})
    assert whole(events, wr.Query("q", wr.tumbling(10), "sum(x)"))[0][-1] == Decimal(10**20 + 1)


def test_decimal_windows_that_fit_beside_a_total_that_does_not() -> None:
    large = pl.Series(["9" + "0" * 35]).cast(pl.Decimal(38, 2))
    engine = wr.Engine([wr.Query("all", wr.tumbling(10), "sum(x)"), wr.Query("each", wr.tumbling(1), "sum(x)")], "t")
    told = [engine.push(pl.DataFrame({"t": [at], "x": large})) for at in range(3)]
    found = pl.concat([*told, engine.finish()])
    assert found.filter(pl.col("query") == "each")["sum(x)"].to_list() == large.to_list() * 3
    assert found.filter(pl.col("query") == "all")["sum(x)"].to_list() == [None]
    assert engine.metrics.overflows == 1


def test_a_late_repeat_within_updates_is_a_repeat() -> None:
    engine = wr.Engine(wr.Query("q", wr.tumbling(10), "count()", distinct_on="x"), "t", updates=1000)
    engine.push(pl.DataFrame({"t": [5, 100], "x": [1, 2]}))
    assert engine.push(pl.DataFrame({"t": [5], "x": [1]})).is_empty()


@pytest.mark.parametrize("lateness", [0, 3, 50])
def test_repeats_of_a_frequent_value(lateness: int, seed: int) -> None:
    """Kept in order, kept in turns and the definition agree, however often a value is kept."""
    rng = np.random.default_rng(seed)
    events = pl.DataFrame({"t": np.sort(rng.integers(0, 400, 500)), "x": rng.integers(0, 3, 500)})
    query = wr.Query("q", wr.tumbling(1), "count()", distinct_on="x")
    for table in (events, events.sample(fraction=1.0, shuffle=True, seed=seed)):
        kept: dict[int, list[int]] = {0: [], 1: [], 2: []}
        for time, value in table.rows():
            if all(abs(time - other) > lateness for other in kept[value]):
                kept[value].append(time)
        found = wr.windows(table, query, time="t", lateness=lateness)
        assert found["count()"].sum() == sum(map(len, kept.values()))


def test_what_removed_queries_needed_is_forgotten() -> None:
    engine = wr.Engine(wr.Query("base", wr.session(5), "count()"), "t")
    for at in range(0, 4000, 100):
        engine.add(wr.Query("n", wr.session(20), "count()", distinct_on="t"))
        engine.add(wr.Query("m", wr.session(20), "count()"))
        engine.push(pl.DataFrame({"t": [at, at + 50]}))
        engine.push(pl.DataFrame({"t": [at + 1, at + 28]}))
        engine.remove("n")
        engine.remove("m")
    states = engine._live.states
    assert states is not None
    assert not engine._live.kept
    assert all(len(state.exclusions) < 10 for state in states.states.values())


def test_revisions_before_1970_are_forgotten_too() -> None:
    engine = wr.Engine(wr.Query("s", wr.session(5), "count()"), "t", updates=50)
    sizes = []
    for at in range(-20_000, -10_000, 100):
        engine.push(pl.DataFrame({"t": [at, at + 40]}))
        engine.push(pl.DataFrame({"t": [at + 3]}))
        sizes.append(engine.metrics.state_bytes)
    assert max(sizes[50:]) <= max(sizes[:50])


def test_a_restored_engine_knows_the_lateness_of_measures_to_come() -> None:
    told = []
    for restore in (False, True):
        engine = wr.Engine(wr.Query("q", wr.tumbling(10), "count()"), "t", lateness={"t": 0, "o": 5})
        engine.push(pl.DataFrame({"t": [1], "o": [0]}))
        engine = wr.Engine.restore(engine.snapshot()) if restore else engine
        engine.add(wr.Query("n", wr.tumbling(4), "count()", time="o"))
        told.append(engine.push(pl.DataFrame({"t": [2, 3], "o": [6, 8]})).rows())
    assert told == [[], []]


def test_processing_time_does_not_go_back() -> None:
    ticks = iter([2_500_000, 1_000_000])
    query = wr.Query("q", wr.tumbling("1 second"), "count()", time="arrival")
    engine = wr.Engine(query, "t", clock=lambda: next(ticks))
    engine.push(pl.DataFrame({"t": [1]}))
    engine.push(pl.DataFrame({"t": [1]}))
    assert engine.finish()["count()"].to_list() == [2]


def test_many_small_pushes_are_merged_as_they_come() -> None:
    engine = wr.Engine(wr.Query("q", wr.tumbling(10**9), "count()", by="k"), "t")
    for at in range(300):
        engine.push(pl.DataFrame({"t": [at], "k": [at % 3]}))
    assert engine.metrics.slices == 3
    assert engine.finish()["count()"].to_list() == [100, 100, 100]


def test_a_sketch_without_its_library_is_refused_before_any_event_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = wr.Engine(wr.Query("q", wr.tumbling(10), "approx_distinct(x)"), "t")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(wr.QueryError, match=r"query 'q': approx_distinct\(x\): needs Apache DataSketches"):
        engine.push(LETTERS)
    assert engine.metrics.events == 0


def test_queries_over_one_session_are_told_the_same_revision() -> None:
    queries = [wr.Query(name, wr.session(5), asked) for name, asked in [("a", "count()"), ("b", "sum(t)")]]
    engine = wr.Engine(queries, "t", lateness=None, updates=100)
    engine.push(pl.DataFrame({"t": [10]}))
    engine.advance(16)
    engine.push(pl.DataFrame({"t": [13]}))  # open again until 18
    assert engine.advance(19).select("query", "revision").rows() == [("a", 1), ("b", 1)]
