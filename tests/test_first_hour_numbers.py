"""Numbers at the edge of what 64 bits and doubles hold, as a user's program meets them."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from typing import Any

import polars as pl
import pytest

import windrow as wr
from windrow.core.assemble import due
from windrow.core.expressions.parse import parse
from windrow.testing.expressions import evaluate

BIG = 4_000_000_000
EVENTS = pl.DataFrame({"t": [1, 2, 3, 4], "a": [1, BIG, 3, BIG], "b": [2, BIG, None, 1]})
EXAMPLE = "a * b does not fit into 64 bits in 1 of 4 events, such as that with a = 4000000000, b = 4000000000"


def query(aggregate: str, **options: Any) -> wr.Query:
    return wr.Query("q", options.pop("window", wr.tumbling(10)), aggregate, **options)


def answers(events: pl.DataFrame, asked: wr.Query, **options: Any) -> list[Any]:
    return wr.windows(events, asked, "t", **options)[asked.aggregates[0].name].to_list()


# --- integers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregate", ["sum(a * b)", "max(a * b)", "count(a * b)", "sum(a * b) FILTER (WHERE a > 1)"])
def test_a_product_that_does_not_fit_is_refused_with_an_example(aggregate: str) -> None:
    with pytest.raises(wr.InputError) as refused:
        wr.windows(EVENTS, query(aggregate), "t")
    assert f"query 'q': {aggregate}: {EXAMPLE}" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "x"),
    [
        ("x + 1", 2**63 - 1),
        ("x - 1", -(2**63)),
        ("-x", -(2**63)),
        ("abs(x)", -(2**63)),
        ("x * x", 2**32),
        ("(x + 1) * 0", 2**63 - 1),
        ("x % 7 + 9223372036854775807", 1),
        ("CASE WHEN x > 0 THEN x * x ELSE 0 END", 2**32),
        ("coalesce(x * x, 0)", 2**32),
        ("x * x + 0.5", 2**32),
        ("0.5 - (- (x * x))", 2**32),
        ("x * x / 2", 2**32),
        ("x * x + d", 2**32),
        ("sqrt(x * x)", 2**32),
    ],
)
def test_no_step_of_arithmetic_wraps_around(text: str, x: int) -> None:
    events = pl.DataFrame({"t": [1], "x": [x], "d": [Decimal(1)]})
    with pytest.raises(wr.InputError, match="does not fit into 64 bits in 1 of 1 events, such as that with x = "):
        wr.windows(events, query(f"sum({text})"), "t")


@pytest.mark.parametrize(
    ("text", "values", "total"),
    [
        ("a * a", [3_037_000_499, -1], 3_037_000_499**2 + 1),
        ("a * 2 - a", [2**62 - 1], 2**62 - 1),
        ("a + 1", [2**63 - 2], 2**63 - 1),
        ("-a", [-(2**63) + 1], 2**63 - 1),
        ("CASE WHEN a < 10 THEN a * a ELSE 0 END", [BIG, 3], 9),
        ("CASE WHEN a > 10 THEN 1 WHEN a * a = 9 THEN 2 ELSE 0 END", [BIG, 3], 3),
        ("if(a < 10 AND a * a > 5, 1, 0)", [BIG, 3], 1),
        ("coalesce(a, a * 4000000000)", [BIG, 3], BIG + 3),
    ],
)
def test_what_fits_is_exact_and_what_is_not_chosen_need_not_fit(text: str, values: list[int], total: int) -> None:
    events = pl.DataFrame({"t": [1] * len(values), "a": values})
    assert answers(events, query(f"sum({text})")) == [total]


@pytest.mark.parametrize("dtype", [pl.Int8, pl.Int16, pl.Int32, pl.UInt8, pl.UInt16, pl.UInt32])
def test_small_integers_are_computed_in_64_bits(dtype: Any) -> None:
    most = dtype.max()
    greatest = pl.select(most).item()
    events = pl.DataFrame({"t": [1], "a": [greatest]}, schema_overrides={"a": dtype})
    if greatest**2 < 2**63:
        assert answers(events, query("sum(a * a)")) == [greatest**2]
    else:
        with pytest.raises(wr.InputError, match=r"a \* a does not fit"):
            wr.windows(events, query("sum(a * a)"), "t")
    assert answers(events, query("sum(a + a)")) == [2 * greatest]


def test_an_event_that_a_query_leaves_out_is_not_computed_for_it() -> None:
    assert answers(EVENTS, query("sum(a * b)", where="a < 1000")) == [2]
    assert answers(EVENTS, query("sum(a * b) FILTER (WHERE b < 10)")) == [2 + BIG]
    assert answers(EVENTS, query("count()", where="a < 1000 AND a * b > 1")) == [1]
    with pytest.raises(wr.InputError, match=r"query 'q': where: a \* b > 1 does not fit"):
        wr.windows(EVENTS, query("count()", where="a * b > 1"), "t")
    other = wr.Query("all", wr.tumbling(10), "sum(a * b)")
    with pytest.raises(wr.InputError):
        wr.windows(EVENTS, [query("sum(a * b)", where="a < 1000"), other], "t")


def test_windows_that_depend_on_such_an_expression_refuse_it_too() -> None:
    with pytest.raises(wr.InputError, match=r"query 'q': frames: a \* b > 1 does not fit"):
        wr.windows(EVENTS, query("count()", window=wr.frames(when="a * b > 1")), "t")


def test_an_integer_that_is_none_in_64_bits_is_refused_as_such() -> None:
    events = pl.DataFrame({"t": [1], "x": [2**64 - 1]}, schema={"t": pl.Int64, "x": pl.UInt64})
    with pytest.raises(wr.InputError, match="this batch cannot be read: conversion from `u64` to `i64` failed"):
        wr.windows(events, query("sum(x * 2)"), "t")


def test_a_constant_that_does_not_fit_is_a_wrong_query() -> None:
    with pytest.raises(wr.QueryError, match=r"query 'q': .*4000000000 \* 4000000000 does not fit into 64 bits"):
        wr.windows(EVENTS, query("sum(4000000000 * 4000000000)"), "t")


def test_an_engine_refuses_the_batch_whole_or_counts_the_event_and_leaves_it_out() -> None:
    engine, other = (wr.Engine(query("sum(a * b)"), "t") for _ in range(2))
    engine.push(EVENTS[:1])
    other.push(EVENTS[:1])
    with pytest.raises(wr.InputError, match="bad_events='drop' leaves them out"):
        engine.push(EVENTS[1:])
    assert engine.snapshot() == other.snapshot()
    engine = wr.Engine(query("sum(a * b)"), "t", bad_events="drop")
    engine.push(EVENTS)
    assert (engine.metrics.events, engine.metrics.bad) == (3, 1)
    assert engine.finish()["sum(a * b)"].to_list() == [2 + BIG]


def test_arithmetic_over_aggregates_is_treated_as_a_sum_that_does_not_fit() -> None:
    asked = query("sum(a) * sum(b)")
    with pytest.raises(OverflowError, match=r"sum\(a\) \* sum\(b\) does not fit into 64 bits in 1 window"):
        wr.windows(EVENTS, asked, "t")
    engine = wr.Engine(asked, "t")
    engine.push(EVENTS)
    assert engine.finish()["sum(a) * sum(b)"].to_list() == [None]
    assert engine.metrics.overflows == 1
    assert answers(EVENTS, query("sum(a) * count()")) == [4 * (2 * BIG + 4)]


NUMBERS = ["i", "j", "0", "1", "-3", "4000000000", "9223372036854775807"]
FORMS = {
    "n": [
        *("{n} + {n}", "{n} - {n}", "{n} * {n}", "- ({n})", "abs({n})", "{n} % {n}", "if({b}, {n}, {n})"),
        *("CASE WHEN {b} THEN {n} WHEN {b} THEN {n} ELSE {n} END", "coalesce({n}, {n}, {n})", "nullif({n}, {n})"),
        *("greatest({n}, {n})", "CASE {n} WHEN {n} THEN {n} END"),
    ],
    "b": [
        *("{n} > {n}", "{b} AND {b}", "{b} OR {b}", "NOT ({b})", "({n}) IS NULL", "({n}) BETWEEN {n} AND {n}"),
        *("({n}) IN (1, 2)", "{n} = {n} AND {n} > 0 AND {b}"),
    ],
}


def grown(draw: Any, kind: str, depth: int) -> str:
    """An expression of integers; a predicate has a comparison at least."""
    if depth == 0:
        return draw.choice(NUMBERS) if kind == "n" else f"{draw.choice(NUMBERS)} > {draw.choice(NUMBERS)}"
    text = draw.choice(FORMS[kind])
    while "{" in text:
        hole = text[text.index("{") + 1]
        text = text.replace(f"{{{hole}}}", f"({grown(draw, hole, depth - 1)})", 1)
    return str(text)


def test_random_arithmetic_is_beyond_64_bits_exactly_where_a_plain_evaluation_is(seed: int) -> None:
    draw = random.Random(seed)
    edges = [None, 0, 1, -1, 2, BIG, -BIG, 2**62, -(2**62), 2**63 - 1, -(2**63), 3_037_000_500, 1 << 31]
    rows = [{"i": draw.choice(edges), "j": draw.choice(edges)} for _ in range(30)]
    frame = pl.DataFrame(rows, schema={"i": pl.Int64, "j": pl.Int64})
    seen = set()
    for number in range(200):
        expression = parse(grown(draw, "nb"[number % 2], 1 + number % 3))
        try:
            overflow = expression.overflow(frame.schema)
        except ValueError:
            continue  # a NULL without a type
        beyond = [_is_beyond(expression, row) for row in rows]
        value = frame.select(x=expression.polars(frame.schema))["x"].to_list()
        does = [False] * 30
        if overflow is not None:
            does = frame.select("i", does=overflow.does)["does"].to_list()
            assert frame.select(overflow.may).item() or not any(does), expression.text
        assert does == beyond, expression.text
        seen |= set(does)
        for row, x, is_beyond in zip(rows, value, beyond, strict=True):
            assert is_beyond or x == evaluate(expression, row), f"{expression.text} of {row}"
    assert seen == {True, False}


def _is_beyond(expression: Any, row: dict[str, Any]) -> bool:
    try:
        evaluate(expression, row)
    except OverflowError:
        return True
    return False


# --- constants, lists, doubles ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("aggregate", "number"),
    [
        *(("count(NULL)", 0), ("count(1 / 0)", 0), ("count(CAST(NULL AS INT))", 0), ("count(x, NULL)", 0)),
        *(("count(1)", 2), ("count('a')", 2), ("count(1, x)", 1), ("count(1 / 2)", 2), ("count(x / 0)", 0)),
    ],
)
def test_a_constant_that_is_null_is_not_counted(aggregate: str, number: int) -> None:
    duckdb = pytest.importorskip("duckdb")
    events = pl.DataFrame({"t": [1, 2], "x": [1, None]}, schema_overrides={"x": pl.Int64})
    (asked,) = wr.sql(f"SELECT {aggregate} AS n FROM events GROUP BY window(t, 10)")
    assert wr.windows(events, asked)["n"].to_list() == [number]
    if ", " not in aggregate and "/ 0" not in aggregate:  # which DuckDB has not, or takes for infinity
        assert duckdb.sql(f"SELECT {aggregate} AS n FROM events").fetchall() == [(number,)]


@pytest.mark.parametrize("aggregate", ["approx_distinct(x)", "top_k(x, 2)", "approx_quantile(x, 0.5)"])
@pytest.mark.parametrize("value", [[1, 2], {"a": 1}])
def test_a_sketch_of_lists_is_a_wrong_query(aggregate: str, value: Any) -> None:
    pytest.importorskip("datasketches")
    events = pl.DataFrame({"t": [1], "x": [value]})
    with pytest.raises(wr.QueryError, match=r"query 'q': .*: needs single values, and x is (List|Struct)"):
        wr.windows(events, query(aggregate), "t")


GREATEST = 1.7976931348623157e308
TOO_LARGE = [[GREATEST, -GREATEST], [1e308, 5.0], [-8e307, 8e307, 8e307], [GREATEST, -GREATEST, 0.0, 1e308]]


@pytest.mark.parametrize("values", TOO_LARGE)
def test_a_variance_that_is_too_large_for_a_double_is_infinite(values: list[float]) -> None:
    assert spread(values) == [math.inf] * 4


@pytest.mark.parametrize("values", [[8e307, 8e307], [-4e307] * 4])
def test_large_values_that_are_equal_have_no_variance(values: list[float]) -> None:
    assert spread(values) == [0.0] * 4


def test_infinite_values_have_no_variance() -> None:
    assert all(math.isnan(x) for x in spread([math.inf, 1.0]) + spread([math.nan, 1.0]) + spread([math.inf, -math.inf]))


def spread(values: list[float]) -> list[float]:
    """Four measures, which do not depend on queries that cut other slices."""
    events = pl.DataFrame({"t": range(len(values)), "x": values})
    aggregates = ["variance(x)", "variance_pop(x)", "stddev(x)", "stddev_pop(x)"]
    asked = wr.Query("q", wr.tumbling(100), aggregates)
    others = [wr.Query(f"s{slide}", wr.sliding(slide + 5, slide), "variance(x)") for slide in (1, 2, 3)]
    alone = wr.results_of(wr.windows(events, asked, "t"), asked).select(aggregates).row(0)
    beside = wr.results_of(wr.windows(events, [*others, asked], "t"), asked).select(aggregates).row(0)
    assert repr(alone) == repr(beside)
    return list(alone)


# --- many steps -------------------------------------------------------------------------------------------------------


def test_cumulating_windows_of_events_far_apart_are_listed_together_and_not_step_by_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed, by_row = [0], due._by_row

    def counted(*given: Any) -> Any:
        listed[0] += 1
        return by_row(*given)

    monkeypatch.setattr(due, "_by_row", counted)
    steps = 86_400
    times = [5, 3 * steps + 70_000, 3 * steps + 80_000, 900 * steps + 86_399]
    results = wr.windows(pl.DataFrame({"t": times}), query("count()", window=wr.cumulating(steps, 1)), "t")
    assert 0 < listed[0] < 20
    ends = [range(first + 1, (first // steps + 1) * steps + 1) for first in (times[0], times[1], times[3])]
    assert results["window_end"].to_list() == [end for each in ends for end in each]
    shared = range(times[2] + 1, 4 * steps + 1)
    expected = [2 if end in shared else 1 for each in ends for end in each]
    assert results["count()"].to_list() == expected
