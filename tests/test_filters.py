"""FILTER of an aggregate and HAVING of a query, in the model and the plan; the transcripts say what they mean."""

from __future__ import annotations

import polars as pl
import pytest

import windrow as wr

EVENTS = pl.DataFrame(
    {"t": [1, 2, 11, 12], "k": ["a", "b", "a", "a"], "x": [1, 5, 2, None], "b": [True, False, None, True]}
)


def test_a_filter_is_part_of_an_aggregate_and_of_its_text() -> None:
    filtered = wr.mean("x").filter("y > 0")
    assert filtered.name == filtered.text == "mean(x) FILTER (WHERE y > 0)"
    assert wr.aggregate("avg(x)  filter(where y>0)") == filtered
    assert wr.mean("x").alias("m").filter("y > 0").name == "m"
    assert filtered != wr.mean("x")
    assert filtered.filter("b").text == "mean(x) FILTER (WHERE (y > 0) AND (b))"


def test_the_filter_of_a_formula_is_that_of_its_parts() -> None:
    ratio = wr.formula("sum(x) / count() FILTER (WHERE b)").filter("y > 0")
    assert ratio.text == "sum(x) FILTER (WHERE y > 0) / count() FILTER (WHERE (b) AND (y > 0))"
    assert wr.aggregate(ratio.text) == ratio


@pytest.mark.parametrize(
    "text",
    [
        "mean(x) FILTER (WHERE y > 0)",
        "quantile(x, 0.5) FILTER (WHERE s = ')') - min(x)",
        "1 + count() FILTER (WHERE x IN (1, 2))",
        "arg_max(x, of=y) FILTER (WHERE NOT b)",
    ],
)
def test_descriptions_and_text_read_back(text: str) -> None:
    asked = wr.aggregate(text)
    assert wr.aggregate(asked.text) == asked
    assert wr.Aggregate.from_dict(asked.to_dict()) == asked
    query = wr.Query("q", wr.tumbling(10), asked, having=f"{text} > 1")
    assert wr.Query.from_dict(query.to_dict()) == query
    assert hash(wr.Query.from_dict(query.to_dict())) == hash(query)
    assert query != wr.Query("q", wr.tumbling(10), asked)


def test_equal_filters_share_a_state_whoever_says_them() -> None:
    queries = [
        wr.Query("a", wr.tumbling(10), wr.sum("x").filter("b")),
        wr.Query("b", wr.tumbling(10), wr.sum("x"), where="b"),
        wr.Query("c", wr.tumbling(10), "count()", having="sum(x) FILTER (WHERE b) > 1"),
    ]
    (group,) = wr.plan(queries, "t").to_dict()["groups"]
    assert group["operators"] == ["count()", "sum(x)[b]", "count()[b]"]
    found = wr.windows(EVENTS, queries, "t").rows()
    assert found == [
        ("a", 0, 10, 0, 1, None, None),
        ("b", 0, 10, 0, None, 1, None),
        ("a", 10, 20, 0, None, None, None),
        ("b", 10, 20, 0, None, None, None),
    ]


def test_having_has_no_column() -> None:
    query = wr.Query("q", wr.tumbling(10), "count()", having="max(x) > 2")
    found = wr.windows(EVENTS, query, "t")
    assert found.columns == ["query", "window_start", "window_end", "revision", "count()"]
    assert found.rows() == [("q", 0, 10, 0, 2)]


def test_an_overflow_in_having_is_one_of_the_whole_table() -> None:
    large = pl.DataFrame({"t": [1, 2], "x": [2**63 - 1, 1]})
    query = wr.Query("q", wr.tumbling(10), "count()", having="sum(x) > 0")
    with pytest.raises(OverflowError, match="sum\\(x\\) > 0 does not fit into 64 bits in 1 windows"):
        wr.windows(large, query, "t")
    engine = wr.Engine(query, "t")
    assert engine.push(large).height + engine.finish().height == 0
    assert engine.metrics.overflows == 1


@pytest.mark.parametrize(
    ("having", "said"),
    [
        ("count() > ", "having: expression"),
        ("x > 1", "having: formula 'x > 1': x is outside of every aggregate"),
        ("1 = 1", "it names no aggregate"),
        ("count()", "having: 'count()' is Int64, not true or false"),
        ("max(k) > 1", "having: "),
        ("max(speed) > 1", "max(speed) > 1: there is no column 'speed'"),
        (3, "having must be a predicate such as 'count() > 10', not 3"),
    ],
)
def test_what_having_cannot_be(having: str, said: str) -> None:
    with pytest.raises(wr.QueryError) as raised:
        wr.windows(EVENTS, wr.Query("q", wr.tumbling(10), "count()", having=having), "t")
    assert str(raised.value).startswith("query 'q': ")
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("sum(x) FILTER (WHERE speed > 1)", "there is no column 'speed'"),
        ("sum(x) FILTER (WHERE x)", "'x' is Int64, not true or false"),
        ("sum(x) FILTER (WHERE x > )", "complete SQL expression"),
        ("sum(x) FILTER (WHERE b", "a bracket is not closed"),
    ],
)
def test_what_a_filter_cannot_be(asked: str, said: str) -> None:
    with pytest.raises(wr.QueryError) as raised:
        wr.windows(EVENTS, wr.Query("q", wr.tumbling(10), asked), "t")
    assert said in str(raised.value)
