"""Whole DataFrames on Spark: the transcripts and random queries over random tables, against the oracle."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow as wr
from spark_cases import results, table, told
from test_transcripts import TRANSCRIPTS
from windrow.testing import differences
from windrow.testing.strategies import Row, query_sets, tables
from windrow.testing.strategies import frame as table_of
from windrow.testing.transcripts import Transcript, read

pytestmark = pytest.mark.spark


# --- transcripts ------------------------------------------------------------------------------------------------------


def is_for_tables(transcript: Transcript) -> bool:
    """Whether it makes sense for a whole table: queries stay, times are columns, nothing is refused."""
    refused = any("error" in step.details for step in transcript.steps)
    arrival = any((query.time or transcript.options["time"]) == "arrival" for query in transcript.queries)
    return not (transcript.needs & {"add", "remove", "joins"}) and not refused and not arrival


FOR_TABLES = [one for one in map(read, TRANSCRIPTS) if is_for_tables(one)]


def wrong_with(spark: Any, transcript: Transcript) -> list[str]:
    rows = [row for step in transcript.steps if step.action == "input" for row in step.value]
    options = {name: value for name, value in transcript.options.items() if name != "updates"}
    partial = "partial" in transcript.needs
    frame = table(spark, pl.DataFrame(rows, schema=transcript.schema))
    try:
        want = told(rows, transcript.queries, partial=partial, **options)
    except OverflowError:
        with pytest.raises(Exception, match="does not fit into 64 bits"):
            wr.windows(frame, transcript.queries, partial=partial, **options).toArrow()
        return []
    found = results(wr.windows(frame, transcript.queries, partial=partial, **options))
    return [f"{transcript.name}: {line}" for line in differences(found, want, transcript.queries)]


@pytest.mark.parametrize("part", range(4))
def test_transcripts(spark: Any, part: int) -> None:
    """All that make sense for whole tables, several at a time: a small job is mostly waiting."""
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda one: wrong_with(spark, one), FOR_TABLES[part::4]))
    assert "\n".join(line for lines in found for line in lines) == ""


def test_most_transcripts_are_run() -> None:
    assert len(FOR_TABLES) > 0.8 * len(TRANSCRIPTS)


# --- random queries over random tables --------------------------------------------------------------------------------


@given(
    rows=tables(),
    queries=query_sets(time_columns=(None, None, "o")),
    order_by=st.sampled_from(((), (), ("x",), ("s", "y"))),
    parts=st.integers(1, 3),
)
@settings(max_examples=10)
def test_random_tables(
    spark: Any, rows: list[Row], queries: tuple[wr.Query, ...], order_by: tuple[str, ...], parts: int
) -> None:
    frame = spark.createDataFrame(table_of(rows).to_arrow()).repartition(parts)
    options: dict[str, Any] = {"lateness": {"t": 5, "o": 5}, "order_by": order_by}
    try:
        want = told(rows, queries, **options)
    except OverflowError:
        with pytest.raises(Exception, match="does not fit into 64 bits"):
            wr.windows(frame, queries, "t", **options).toArrow()
        return
    assert differences(results(wr.windows(frame, queries, "t", **options)), want, queries) == []


# --- what once failed -------------------------------------------------------------------------------------------------


def test_names_with_dots_and_backticks(spark: Any) -> None:
    rows = [{"t": at, "a.b": at % 2, "x`y": 1.5 * at} for at in range(10)]
    queries = [
        wr.Query("q", wr.tumbling(5), "sum(`x``y` * 3.6)", by="a.b"),
        wr.Query("o", wr.counting(2), "collect(`a.b`)", where="`a.b` * 2.5 < 3"),
        wr.Query("d", wr.tumbling(5), "count()", distinct_on="a.b"),
    ]
    frame = spark.createDataFrame(pl.DataFrame(rows).to_arrow())
    assert differences(results(wr.windows(frame, queries, "t")), told(rows, queries), queries) == []


def test_ties_on_a_measure_of_its_own_are_broken_by_the_other_one_too(spark: Any) -> None:
    rows = [{"t": at, "o": 1} for at in (3, 1, 2, 5, 4)]
    query = wr.Query("q", wr.counting(5), "collect(t)", time="o")
    frame = spark.createDataFrame(pl.DataFrame(rows).to_arrow())
    (found,) = results(wr.windows(frame, query, "t"))
    assert found["collect(t)"] == [1, 2, 3, 4, 5]


def test_which_of_two_repeats_is_the_first_does_not_depend_on_partitions(spark: Any) -> None:
    rows = [{"t": 1, "x": x, "k": k} for x, k in itertools.product(range(3), "cab")]
    query = wr.Query("q", wr.tumbling(5), "count()", by="k", distinct_on="x")
    frame = spark.createDataFrame(pl.DataFrame(rows).to_arrow()).repartition(3)
    (found,) = results(wr.windows(frame, query, "t"))
    assert (found["k"], found["count()"]) == ("a", 3)


def test_repeats_are_looked_for_on_the_measure_of_each_query(spark: Any) -> None:
    rows = [{"t": 0, "o": 0, "x": 1}, {"t": 0, "o": 100, "x": 1}, {"t": 50, "o": 100, "x": 1}]
    queries = [
        wr.Query("t", wr.tumbling(10), "count()", distinct_on="x"),
        wr.Query("o", wr.tumbling(10), "count()", distinct_on="x", time="o"),
    ]
    frame = spark.createDataFrame(pl.DataFrame(rows).to_arrow())
    found = sorted(
        (row["query"], row["window_start"], row["count()"]) for row in results(wr.windows(frame, queries, "t"))
    )
    assert found == [("o", 0, 1), ("o", 100, 1), ("t", 0, 1), ("t", 50, 1)]
