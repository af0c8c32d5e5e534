"""collect: the values of a window in the order of its events, however they came."""

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow as wr
from windrow.core.expressions.parse import parse
from windrow.core.operators.base import Fields
from windrow.core.operators.collect import Collect

X = (parse("x"),)
PLACE = {"at": pl.Int64(), "0": pl.Int64(), "nth": pl.Int64()}


def collected(events: pl.DataFrame, asked: str, **options: Any) -> list[Any]:
    query = wr.Query("q", wr.tumbling(100), wr.aggregate(asked).alias("found"))
    return wr.windows(events, [query], "t", **options)["found"].to_list()


# --- what it means --------------------------------------------------------------------------------------------------


def test_values_come_in_the_order_of_events() -> None:
    assert collected(pl.DataFrame({"t": [3, 1, 2], "x": [30, 10, 20]}), "collect(x)") == [[10, 20, 30]]


def test_equal_times_are_ordered_by_order_by_then_arrival() -> None:
    events = pl.DataFrame({"t": [1, 1, 1, 1], "o": [2, None, 1, 2], "x": ["c", "a", "b", "d"]})
    assert collected(events, "collect(x)", order_by=["o"]) == [["a", "b", "c", "d"]]
    assert collected(events, "collect(x)") == [["c", "a", "b", "d"]]


def test_nulls_are_skipped_unless_asked_for() -> None:
    events = pl.DataFrame({"t": [1, 2, 3, 101], "x": [1, None, 3, None]})
    assert collected(events, "collect(x)") == [[1, 3], []]
    assert collected(events, "collect(x, true)") == [[1, None, 3], [None]]


def test_it_is_written_in_python_or_in_sql() -> None:
    assert wr.aggregate("collect(x)") == wr.aggregate("COLLECT_LIST(x)") == wr.collect("x")
    assert wr.aggregate("collect_list(x, nulls=true)") == wr.collect("x", nulls=True)
    asked = wr.collect("x + 1", nulls=True)
    assert wr.aggregate(asked.text) == wr.Aggregate.from_dict(asked.to_dict()) == asked
    assert not asked.needs_order  # its states carry their places, and merge in any order


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (["a", "", "ä"], pl.String()),
        ([b"a", b"", b"c"], pl.Binary()),
        ([True, False, True], pl.Boolean()),
        ([1.5, float("inf"), -0.0], pl.Float32()),
        ([datetime(2024, 1, 1), datetime(2023, 1, 1), datetime(2025, 1, 1)], pl.Datetime("us", "UTC")),
        ([date(2024, 1, 1), date(2023, 1, 1), date(2025, 1, 1)], pl.Date()),
        ([Decimal("1.50"), Decimal("0.25"), Decimal("9.00")], pl.Decimal(10, 2)),
        ([[1, 2], [], [3]], pl.List(pl.Int64())),
        ([{"a": 1}, {"a": 2}, {"a": None}], pl.Struct({"a": pl.Int64()})),
    ],
    ids=lambda value: str(value) if isinstance(value, pl.DataType) else "",
)
def test_values_of_any_type(values: list[Any], dtype: pl.DataType) -> None:
    events = pl.DataFrame({"t": [2, 1, 110], "x": pl.Series(values, dtype=dtype)})
    queries = [wr.Query("q", wr.tumbling(100), "collect(x)"), wr.Query("r", wr.tumbling(300), "collect(x)")]
    engine = wr.Engine(queries, "t", lateness=None)
    for part in range(3):
        engine.push(events[part : part + 1])
    found = wr.Engine.restore(engine.snapshot()).finish()
    assert found.schema["collect(x)"] == pl.List(dtype)
    held = events["x"]
    expected = [held.gather([1, 0]), held.gather([2]), held.gather([1, 0, 2])]
    assert found["collect(x)"].to_list() == [one.to_list() for one in expected]


# --- through the engine ---------------------------------------------------------------------------------------------


def test_late_events_fall_into_their_place_and_change_what_was_told() -> None:
    engine = wr.Engine([wr.Query("q", wr.tumbling(10), "collect(x)")], "t", updates=100)
    engine.push(pl.DataFrame({"t": [1, 5, 9], "x": [1, 5, 9]}))
    told = [engine.push(pl.DataFrame({"t": times, "x": times})) for times in ([20], [4, 6, 1], [40])]
    found = pl.concat(told).select("window_start", "revision", "collect(x)").rows()
    assert found == [(0, 0, [1, 5, 9]), (0, 1, [1, 1, 4, 5, 6, 9]), (20, 0, [20])]


def test_coarser_keys_are_rolled_up_in_the_order_of_events(seed: int) -> None:
    rng = np.random.default_rng(seed)
    events = pl.DataFrame({"t": rng.integers(0, 60, 300), "k": rng.integers(0, 5, 300), "x": np.arange(300)})
    windows = {"w": wr.sliding(20, 7), "s": wr.session(2)}
    by: dict[str, tuple[str, ...]] = {"all": (), "each": ("k",)}
    queries = [
        wr.Query(f"{name} {of}", window, "collect(x)", by=keys, where="x % 3 > 0")
        for name, window in windows.items()
        for of, keys in by.items()
    ]
    engine = wr.Engine(queries, "t", lateness=None)
    for at in range(0, 300, 25):
        engine.push(events[at : at + 25])
    found = engine.finish()
    kept = events.filter(pl.col("x") % 3 > 0).sort("t", maintain_order=True)
    for row in found.filter(pl.col("query").str.starts_with("w")).iter_rows(named=True):
        inside = kept.filter(pl.col("t").is_between(row["window_start"], row["window_end"], "left"))
        if row["k"] is not None:
            inside = inside.filter(pl.col("k") == row["k"])
        assert row["collect(x)"] == inside["x"].to_list()
    whole = found.filter(pl.col("query") == "s all")["collect(x)"].explode()
    assert whole.to_list() == kept["x"].to_list()


# --- its states -----------------------------------------------------------------------------------------------------

entries = st.tuples(st.integers(0, 4), st.sampled_from([None, 0, 1]))


def state_of(slices: list[list[tuple[Any, ...]]]) -> Fields:
    """Entries (at, order, nth); the value is the place's number."""
    columns = {"values": pl.Int64(), **PLACE}
    listed = [{"values": [one[2] for one in part]} for part in slices]
    for row, part in zip(listed, slices, strict=True):
        row |= {name: [one[number] for one in part] for number, name in enumerate(PLACE)}
    return Fields(
        {name: pl.Series([row[name] for row in listed], dtype=pl.List(dtype)) for name, dtype in columns.items()}
    )


def by_place(one: tuple[Any, ...]) -> tuple[Any, ...]:
    at, order, nth = one
    return at, order is not None, order or 0, nth


@settings(max_examples=30)
@given(st.lists(st.lists(entries, max_size=5), min_size=1, max_size=6), st.data())
def test_states_merge_in_any_order_and_combine_over_any_range(drawn: list[list[Any]], data: st.DataObject) -> None:
    numbers = iter(data.draw(st.permutations(range(sum(map(len, drawn))))))
    slices = [sorted(((*one, next(numbers)) for one in part), key=by_place) for part in drawn]
    whole = [one[2] for one in sorted((one for part in slices for one in part), key=by_place)]
    collect, state = Collect(X), state_of(slices)
    names = {name: name for name in state}

    def merged(order: list[int]) -> list[Any]:
        table = pl.DataFrame({**state}).with_columns(group=pl.lit(0))[order]
        grouped = table.group_by("group").agg(**collect.merge(names))
        return collect.finish_merged(Fields({name: grouped[name] for name in state}))["values"].to_list()

    assert merged(data.draw(st.permutations(range(len(slices))))) == [whole]
    bounds = data.draw(st.lists(st.tuples(st.integers(0, len(slices) - 1), st.integers(1, 6)), max_size=5))
    lo = np.array([a for a, _ in bounds], np.int64)
    hi = np.minimum(lo + np.array([size for _, size in bounds], np.int64), len(slices))
    found = collect.combine(state, lo, hi)["values"]
    assert found.dtype == pl.List(pl.Int64())
    for place, (a, b) in enumerate(zip(lo, hi, strict=True)):
        inside = sorted((one for part in slices[a:b] for one in part), key=by_place)
        assert found[place].to_list() == [one[2] for one in inside]


def test_a_slice_from_before_the_query_holds_nothing() -> None:
    state = state_of([[(1, 0, 0)], [(2, 0, 1)]])
    missing = Fields({name: column.gather([0, None, 1]) for name, column in state.items()})
    found = Collect(X).combine(missing, np.array([0, 1, 0]), np.array([3, 2, 1]))
    assert found["values"].to_list() == [[0, 1], [], [0]]
