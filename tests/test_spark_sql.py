"""The same SQL text by Spark itself and by windrow on Spark: the same rows, but for Spark's `window` struct, which is
flattened here.

Both are compared with the oracle, as the semantics say results are compared. The events lie in one partition in their
order and no two have the same time, so that first, last and collect_list have one answer in Spark too.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import windrow as wr
from spark_cases import Source, closed, results, run, table, told
from windrow.testing import differences

pytestmark = pytest.mark.spark

SCHEMA = {
    "ts": pl.Datetime("us", "UTC"),
    "k": pl.String(),
    "j": pl.Int64(),
    "i": pl.Int64(),
    "n": pl.Int32(),
    "x": pl.Float64(),
    "u": pl.Float64(),
    "b": pl.Boolean(),
    "s": pl.String(),
    "d": pl.Decimal(10, 2),
}


def events(seed: int, count: int = 500) -> pl.DataFrame:
    """About ten minutes with pauses: nulls, NaN, negative numbers and duplicates; `u` is another in every event."""
    draw = random.Random(seed)
    at = datetime(2024, 2, 29, 23, 55, tzinfo=UTC)
    rows: list[dict[str, Any]] = []
    for nth in range(count):
        at += timedelta(milliseconds=draw.choice((1, 100, 500, 999, 1000, 2000, 2001, 4500)))
        rows.append(
            {
                "ts": at,
                "k": draw.choice(("a", "a", "a", "b", "b", None)),
                "j": draw.choice((1, 1, 2, None)),
                "i": draw.choice((None, 1, 1, -5, 7, 10**12)),
                "n": draw.choice((None, 3, -4, 2**31 - 1)),
                "x": draw.choice((None, draw.gauss(0, 1), draw.gauss(0, 1), 1e6, 0.5, -0.5, -0.0, float("nan"))),
                "u": draw.random() + nth % 7,
                "b": draw.choice((True, True, False, None)),
                "s": draw.choice(("u", "v", "v", "", "ä", None)),
                "d": draw.choice((None, "1.20", "-7.05", "99999999.99")),
            }
        )
    return pl.DataFrame(rows, schema={**SCHEMA, "d": pl.String()}).with_columns(pl.col("d").cast(SCHEMA["d"]))


# keys come first, then the window, so that what is left are the aggregates in their order
STATEMENTS = """
-- name: everyday
SELECT k, window, count(*), count(1), COUNT(x), count(distinct i), count(DISTINCT s), count(i, s), sum(i), sum(x),
       sum(d), sum(n), avg(x), mean(i), min(x), max(x), min(s), max(d), min(b)
FROM events GROUP BY k, window(ts, '10 seconds');

-- name: spreads
SELECT k, window, stddev(u), std(u), stddev_samp(i), stddev_pop(u), variance(u), var_samp(n), var_pop(i), stddev(x)
FROM events GROUP BY window(ts, '30 seconds', '7 seconds'), k;

-- name: ranks
SELECT k, window, percentile(u, 0.9), percentile(x, 0.25), percentile(i, 0), median(u), median(n), mode(i, true),
       percentile_cont(0.3) WITHIN GROUP (ORDER BY u) AS third
FROM events GROUP BY k, window(ts, '1 minute');

-- name: ranks of sessions
SELECT k, session_window, percentile(u, 0.9) AS p, median(x), mode(s, true)
FROM events WHERE b GROUP BY k, session_window(ts, '3 seconds');

-- name: in order
SELECT k, window, first(x), first(x) IGNORE NULLS, first(x, true), first(x) RESPECT NULLS, last(i), last(i, true),
       first_value(s), last_value(s) IGNORE NULLS, any_value(j), collect_list(i), array_agg(s)
FROM events GROUP BY k, window(ts, '20 seconds');

-- name: in order, filtered
SELECT k, window, first(x) FILTER (WHERE x < 0), last(s) FILTER (WHERE s > 'a'), collect_list(i) FILTER (WHERE NOT b),
       max_by(s, u) FILTER (WHERE i = 1), last(i) FILTER (WHERE j = 2) IGNORE NULLS
FROM events GROUP BY k, window(ts, '20 seconds');

-- name: chosen
SELECT j, window, max_by(s, u), min_by(i, u), max_by(u, ts), min_by(x, ts)
FROM events GROUP BY j, window(ts, '25 seconds', '10 seconds', '3 seconds');

-- name: truth
SELECT k, window, bool_and(b), every(b), bool_or(b), some(b), any(i > 1), count_if(b), count_if(x > 0), bool_and(i = 1)
FROM events GROUP BY k, window(ts, '15 seconds');

-- name: arithmetic
SELECT e.k, window, sum(e.i) / count(*) AS share, max(u) - min(u), coalesce(sum(i), 0) + 1 AS more, -max(i),
       CASE WHEN count(x) > 3 THEN 'many' ELSE 'few' END AS size, CAST(avg(u) AS BIGINT), sum(e.i * 2) + sum(n),
       abs(min(u)) * 2, avg(u) > 3.5 AND count(*) > 1, coalesce(max(s), 'none') || '!', count(*) % 3, if(max(b), 1, 2)
FROM events e WHERE e.i IS NOT NULL GROUP BY e.k, window(e.ts, '15 seconds');

-- name: filtered
SELECT k, j, window.start, window.end, count(*) FILTER (WHERE x > 0), sum(i) FILTER (WHERE b),
       avg(u) FILTER (WHERE s = 'v'), count(DISTINCT i) FILTER (WHERE b),
       percentile(u, 0.5) FILTER (WHERE NOT b) AS p, stddev(u) FILTER (WHERE j = 1),
       sum(i) FILTER (WHERE b) / count(*) AS ratio, collect_list(s) FILTER (WHERE n IS NULL)
FROM events WHERE u > 1 GROUP BY k, j, window(ts, '40 seconds');

-- name: having
SELECT k, window, count(*) AS c, avg(u) AS v FROM events GROUP BY k, window(ts, '10 seconds')
HAVING count(*) > 2 AND v > 3 OR max(i) IS NULL;

-- name: having in sessions
SELECT k, session_window.start, session_window.end, sum(u) FROM events GROUP BY k, session_window(ts, '2 seconds')
HAVING sum(u) FILTER (WHERE b) > 3 AND count(DISTINCT s) >= 2;

-- name: having in order
SELECT k, window, count(*) FROM events GROUP BY k, window(ts, '10 seconds') HAVING first(b) AND last(s) = 'v';

-- name: having of ranks
SELECT k, window, max(u) FROM events GROUP BY k, window(ts, '10 seconds') HAVING median(u) > 3;

-- name: nothing but a window
SELECT session_window, count(*) AS c, sum(x) FROM events GROUP BY session_window(ts, '4 seconds 499 milliseconds');

-- name: where
SELECT k, window, count(*), min(u) FROM events WHERE s LIKE '_%' AND i BETWEEN -5 AND 7 OR b <=> NULL
GROUP BY window(ts, 'interval 12 seconds', '5 seconds'), k;

-- name: by number
SELECT k, j, window(ts, '20 seconds'), count(*) AS c FROM events
WHERE ts >= TIMESTAMP '2024-02-29 23:56:00' AND ts < DATE '2024-03-01' GROUP BY 3, 1, 2;

-- name: by alias
SELECT k, window(ts, '20 seconds', '10 seconds') AS w, sum(CASE WHEN i > 1 THEN 1 ELSE 0 END) AS c
FROM events WHERE s IN ('u', 'v') GROUP BY k, w HAVING c > 1;

-- name: by other names
SELECT k AS key, j, window.start AS begin, window.end until, avg(u) AS v FROM events
GROUP BY key, j, window(ts, '20 seconds', '10 seconds') HAVING v > 1;

-- name: by all
SELECT /*+ COALESCE(2) */ `k`, session_window(ts, '2 seconds'), count(*) AS `how many`, -- of them
       max(u) /* the greatest */ FROM events GROUP BY ALL;

-- name: in other words
SELECT k, window.start, window.end, avg(x) AS m FROM events GROUP BY k, window(ts, "1 minute")
"""


FALLBACK = "spark.sql.objectHashAggregate.sortBased.fallbackThreshold"  # sorting groups would mix up their events


@pytest.fixture(scope="module")
def view(spark: Any, seed: int) -> Iterator[pl.DataFrame]:
    found = events(seed)
    table(spark, found).coalesce(1).createOrReplaceTempView("events")
    spark.conf.set(FALLBACK, "100000")
    yield found
    spark.conf.unset(FALLBACK)


def spark_s_own(spark: Any, text: str, queries: list[wr.Query]) -> list[dict[str, Any]]:
    """What Spark answers to the same text: all statements in one job, a row's values as JSON."""
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    parts, types = [], {}
    for statement, query in zip(text.split(";"), queries, strict=True):
        answer = spark.sql(statement)
        numbered = answer.toDF(*(f"c{place}" for place in range(len(answer.columns))))
        columns = [F.col(name) for name in numbered.columns]
        at = len(query.by)
        bounds = (
            columns[at : at + 2]
            if answer.columns[at] in ("start", "begin")
            else [columns[at][name] for name in ("start", "end")]
        )
        chosen = [*columns[:at], *columns[at + (2 if answer.columns[at] in ("start", "begin") else 1) :]]
        assert {name for name, _ in query.names} <= {*answer.columns}
        types[query.name] = [field.dataType.typeName() for field in numbered.select(*chosen).schema]
        parts.append(
            numbered.select(
                F.lit(query.name).alias("query"),
                F.unix_micros(bounds[0]).alias("window_start"),
                F.unix_micros(bounds[1]).alias("window_end"),
                F.to_json(F.struct(*chosen), {"ignoreNullFields": "false"}).alias("row"),
            )
        )
    called = {query.name: query.names for query in queries}
    names = {query.name: [*query.by, *(asked.name for asked in query.aggregates)] for query in queries}
    found = []
    for row in results(reduce(DataFrame.unionAll, parts)):
        values = json.loads(row.pop("row"), parse_float=Decimal).values()
        read = [_read(value, kind) for value, kind in zip(values, types[row["query"]], strict=True)]
        found.append({**row, "revision": 0, **dict(zip(names[row["query"]], read, strict=True))})
        found[-1] |= {name: found[-1][column] for name, column in called[row["query"]]}
    return found


def _read(value: Any, kind: str) -> Any:
    """A value of JSON, in which a double may be a string, NaN, or written as a decimal."""
    if value is None or kind == "array":
        return value
    return float(value) if kind == "double" else Decimal(value) if kind.startswith("decimal") else value


def compare(spark: Any, view: pl.DataFrame, text: str) -> list[dict[str, Any]]:
    """Both answers are what the oracle says; returns Spark's."""
    queries = wr.sql(text)
    expected = told(view.to_dicts(), queries, "ts")
    own = spark_s_own(spark, text, queries)
    assert differences(own, expected, queries) == []
    assert differences(results(wr.windows(spark.table("events"), queries)), expected, queries) == []
    return own


def test_statements(spark: Any, view: pl.DataFrame) -> None:
    rows = compare(spark, view, STATEMENTS)
    counts = {query.name: sum(row["query"] == query.name for row in rows) for query in wr.sql(STATEMENTS)}
    assert min(counts.values()) >= 3, counts


# --- random statements ----------------------------------------------------------------------------------------------

ITEMS = (
    *("count(*)", "count(x)", "sum(i)", "sum(x)", "sum(d)", "avg(u)", "avg(x)", "min(x)", "max(i)", "stddev(u)"),
    *("var_pop(u)", "percentile(u, 0.75)", "median(i)", "bool_or(b)", "count_if(x < 0)", "min_by(u, ts)"),
)
UNORDERED = ("count(distinct i)", "max(s)", "mode(s, true)", "max_by(s, u)")  # beside which Spark forgets the order
ORDERED = ("first(x)", "last(i, true)", "first(b)", "collect_list(i)", "last(u)")
PREDICATES = (
    "b",
    "NOT b",
    "x > 0",
    "i = 1 OR s = 'v'",
    "j IS NOT NULL",
    "u < 3.5 AND k = 'a'",
    "s IN ('u', 'v', NULL)",
)
FORMULAS = ("sum(i){0} / count(*)", "max(u) - avg(u){0}", "coalesce(sum(i){0}, -1)", "count(*){0} + count(x) * 2")
HAVINGS = (
    *("count(*) > 3", "max(u) > 5 AND count(*) > 1", "max(i) = 1", "count(*) FILTER (WHERE b) >= 2 OR min(x) IS NULL"),
    *("median(u) < 4", "NOT bool_or(b)"),
)
KEYS = ((), ("k",), ("j",), ("k", "j"), ("b", "k"), ("s",))
WINDOWS = (
    *(
        "window(ts, '10 seconds')",
        "window(ts, '30 seconds', '11 seconds')",
        "window(ts, '1 minute', '7 seconds', '2 seconds')",
    ),
    *("session_window(ts, '1 second')", "session_window(ts, '2 seconds')"),
)


def statement(draw: random.Random, name: str) -> str:
    """One statement; its columns begin with a name, because one name has one type in all results."""
    ordered = draw.random() < 0.4
    items = (*ITEMS, *(ORDERED if ordered else UNORDERED) * 3)

    def filtered(item: str) -> str:
        return f"{item} FILTER (WHERE {draw.choice(PREDICATES)})" if draw.random() < 0.3 else item

    def item() -> str:
        return draw.choice(FORMULAS).format(filtered("")) if draw.random() < 0.25 else filtered(draw.choice(items))

    keys, window = draw.choice(KEYS), draw.choice(WINDOWS)
    shown = [*keys, window.partition("(")[0], *(f"{item()} AS {name}{at}" for at in range(draw.randint(1, 4)))]
    where = f" WHERE {draw.choice(PREDICATES)}" if draw.random() < 0.4 else ""
    having = f" HAVING {draw.choice((*HAVINGS, 'first(b)') if ordered else HAVINGS)}" if draw.random() < 0.4 else ""
    return f"SELECT {', '.join(shown)} FROM events{where} GROUP BY {', '.join((*keys, window))}{having}"


def test_random_statements(spark: Any, view: pl.DataFrame, seed: int) -> None:
    draw = random.Random(seed)
    text = ";\n".join(statement(draw, f"c{number}_") for number in range(30))
    assert len(compare(spark, view, text)) > 1000


# --- what is not compared as it is ----------------------------------------------------------------------------------


def test_approximate_functions_are_within_the_bound_that_spark_s_arguments_say(spark: Any, view: pl.DataFrame) -> None:
    text = """
    SELECT window, approx_percentile(u, 0.9), percentile_approx(u, 0.5, 100), approx_count_distinct(u, 0.05),
           approx_count_distinct(i, 0.05) FILTER (WHERE b) FROM events GROUP BY window(ts, '1 hour');
    SELECT k, session_window, approx_percentile(u, 0.25), approx_count_distinct(s, 0.05) FROM events WHERE s <> ''
    GROUP BY k, session_window(ts, '2 seconds')
    """
    compare(spark, view, text)


def test_an_integer_sum_that_does_not_fit_is_an_error_in_both(spark: Any) -> None:
    frame = table(spark, pl.DataFrame({"t": [1, 2], "z": [2**63 - 1, 1]}))
    frame.createOrReplaceTempView("large")
    with pytest.raises(Exception, match="overflow"):
        spark.sql("SELECT sum(z) FROM large").collect()
    with pytest.raises(Exception, match="does not fit into 64 bits"):
        wr.windows(frame, wr.sql("SELECT sum(z) FROM large GROUP BY window(t, 10)")).collect()
    with pytest.raises(Exception, match="does not fit into 64 bits"):
        wr.windows(frame, wr.sql("SELECT count(*) FROM large GROUP BY window(t, 10) HAVING sum(z) > 0")).collect()


def test_a_stream_of_statements_needs_no_time_either(spark: Any, view: pl.DataFrame, tmp_path: Path) -> None:
    text = """
    SELECT k, count(*) AS n, avg(u) FILTER (WHERE b) AS v FROM events
    GROUP BY k, window(ts, '30 seconds') HAVING max(u) > 6.5;
    SELECT count(*) AS n FROM events GROUP BY count_window(40) HAVING count_if(b) > 19
    """
    queries = wr.sql(text)
    source = Source(tmp_path / "in", [view[:300], view[300:]])
    expected = closed(view.to_dicts(), queries, "ts")
    assert {row["query"] for row in expected} == {"q1", "q2"}
    found = run(wr.windows(source.read(spark), queries), "statements")
    assert differences(found, expected, queries) == []


def test_text_is_taken_as_queries_and_the_only_timestamp_as_the_time(spark: Any) -> None:
    from windrow.spark import explain

    text = "SELECT k, count(*) AS n FROM events GROUP BY k, window(ts, '1 minute')"
    counts = wr.Query("five", wr.counting(5), "count()")
    frame = table(spark, events(1, 50))
    found = wr.windows(frame, [text, counts])
    told = wr.windows(events(1, 50), [text, counts])
    assert wr.results_of(found, "q1").columns == wr.results_of(told, "q1").columns
    assert wr.results_of(found, "five").columns == wr.results_of(told, "five").columns
    assert found.count() == told.height
    assert explain(frame, [text, counts]) == explain(frame, [*wr.sql(text), counts], "ts")
    with pytest.raises(KeyError, match="no results of a query called 'six'; there are 'q1', 'five'"):
        wr.results_of(found, "six")
    with pytest.raises(wr.QueryError, match="there are no queries"):
        wr.windows(frame, [])
    with pytest.raises(wr.QueryError, match="the events have several timestamps, 'ts', 'seen'"):
        wr.windows(frame.selectExpr("*", "ts AS seen"), counts)


def test_names_of_positions_and_bounds_are_those_of_one_process(spark: Any, view: pl.DataFrame) -> None:
    """Counting windows over all events have their bounds only when they have been answered."""
    names = {"nth": "position", "begin": "window_start", "until": "window_end"}
    queries = [
        wr.Query("sliced", wr.counting(20), "count(x)", time="ts", names=names),
        wr.Query("other", wr.counting(30), "count(x)", time="ts", names={"begin": "window_end"}),
        wr.Query("in order", wr.counting(20), "collect(i)", by={"key": "k"}, time="ts", names=names),
    ]
    whole = wr.windows(spark.table("events"), queries)
    expected = wr.windows(view, queries)
    for query in queries:
        own = wr.results_of(whole, query)
        assert own.columns == wr.results_of(expected, query).columns
    assert differences(results(whole), expected.to_dicts(), queries) == []
