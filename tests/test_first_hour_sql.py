"""The first hour with SQL: statements as people have them, and what is said where they cannot be read."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

import windrow as wr
from windrow.core.expressions.instead import INSTEAD

ROOT = Path(__file__).parents[1]

NOON = datetime(2024, 5, 31, 12, tzinfo=UTC)
EVENTS = pl.DataFrame(
    {
        "ts": [NOON + timedelta(minutes=7 * n) for n in range(30)],
        "car": ["a", "b", None] * 10,
        "Speed": [float(n * 37 % 50) for n in range(30)],
    }
)


# --- names of keys and bounds -----------------------------------------------------------------------------------------


NAMED = """
    SELECT window.start AS hour, window.end AS until, car AS vehicle, avg(Speed) AS v FROM events
    GROUP BY car, window(ts, '1 hour')
"""


def test_keys_and_bounds_are_called_as_the_statement_says() -> None:
    (query,) = wr.sql(NAMED)
    results = wr.windows(EVENTS, query)
    own = wr.results_of(results, query)
    assert own.columns == ["query", "vehicle", "hour", "until", "revision", "v"]
    events = EVENTS
    duck = duckdb.sql("""
        SELECT date_trunc('hour', ts) AS hour, hour + INTERVAL 1 HOUR AS until, car AS vehicle, avg(Speed) AS v
        FROM events GROUP BY ALL ORDER BY ALL
    """).pl()
    assert events.height == 30
    mine = own.select(pl.col("hour", "until").dt.epoch("us"), "vehicle", "v").sort(pl.all())
    assert mine.equals(duck.with_columns(pl.col("hour", "until").dt.epoch("us")).sort(pl.all()))
    # in the table of all queries they stand beside what all rows have
    assert results.columns == [
        *("query", "car", "window_start", "window_end", "revision", "hour", "until", "vehicle", "v")
    ]
    assert results["hour"].equals(results["window_start"].alias("hour"))


def test_other_queries_keep_their_names_and_their_columns() -> None:
    plain, named = wr.sql(f"SELECT car, count(*) AS n FROM events GROUP BY car, window(ts, '1 hour'); {NAMED}")
    alone, together = wr.windows(EVENTS, plain), wr.windows(EVENTS, [plain, named])
    assert wr.results_of(together, plain).equals(wr.results_of(alone, plain))
    assert wr.results_of(together, named).equals(
        wr.results_of(wr.windows(EVENTS, named), named).with_columns(query=pl.lit("q2"))
    )
    rows = together.filter(pl.col("query") == "q1")
    assert rows["hour"].null_count() == rows.height


def test_a_stream_has_the_same_names_also_of_windows_that_are_taken_back() -> None:
    (query,) = wr.sql(
        "SELECT session_window.start AS began, car AS c, count(*) n FROM e GROUP BY c, session_window(ts, 9)"
    )
    engine = wr.Engine([query], lateness=0, updates=100)
    engine.push(pl.DataFrame({"ts": [0, 20], "car": ["x", "x"]}))
    engine.advance(40)
    revised = engine.push(pl.DataFrame({"ts": [11, 41], "car": ["x", "x"]}))
    back = wr.results_of(revised, query).filter("retracted")
    assert back.select("c", "began", "n").rows() == [("x", 20, None)]


def test_python_and_yaml_name_them_too(tmp_path: Any) -> None:
    from windrow.io.query_files import of_yaml

    query = wr.Query(
        "q1",
        "tumbling(1 hour)",
        {"v": "mean(Speed)"},
        by={"vehicle": "car"},
        time="ts",
        names={"hour": "window_start", "until": "window_end"},
    )
    (said,) = of_yaml(
        """
queries:
- window: tumbling(1 hour)
  aggregates: {v: mean(Speed)}
  by: {vehicle: car}
  time: ts
  names: {hour: window_start, until: window_end}
""",
        "queries.yaml",
    ).queries
    (from_sql,) = wr.sql(NAMED)
    assert said == query == wr.Query.from_dict(query.to_dict())
    for one in (query, from_sql):
        own = wr.results_of(wr.windows(EVENTS, one), one)
        assert set(own.columns) == {"query", "vehicle", "hour", "until", "revision", "v"}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"hour": "window_begin"}, "names: 'window_begin' is none of car, window_start, window_end"),
        ({"car": "window_start"}, "'window_start' cannot be called 'car', which is a key"),
        ({"v": "window_start"}, "'window_start' cannot be called 'v', which is an aggregate"),
        ({"query": "car"}, "'car' cannot be called 'query', which is a column of every result"),
        ({"": "car"}, "names must be such as {'hour': 'window_start'}"),
        ("hour", "names must be such as {'hour': 'window_start'}"),
    ],
)
def test_names_that_cannot_be(names: Any, said: str) -> None:
    with pytest.raises(wr.QueryError, match="query 'q': ") as raised:
        wr.Query("q", "tumbling(10)", {"v": "count()"}, by="car", names=names)
    assert said in str(raised.value)


def test_a_name_that_is_a_key_or_of_another_type_elsewhere_is_refused() -> None:
    named = wr.Query("a", "tumbling(1 hour)", "count()", by={"lane": "car"}, time="ts")
    with pytest.raises(wr.QueryError, match="'lane' is both a key and a name in query 'a'; give one an alias"):
        wr.windows(EVENTS.with_columns(lane=1), [named, wr.Query("b", "tumbling(1 hour)", "count()", by="lane")])
    with pytest.raises(wr.QueryError, match="query 'a': column 'lane' would be String here and Int64 in another"):
        wr.windows(EVENTS, [named, wr.Query("b", "tumbling(1 hour)", {"lane": "count()"})])


# --- columns and their case -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "SELECT avg(SPEED) FROM e GROUP BY window(ts, '1 hour')",
            "mean(SPEED): there is no column 'SPEED' in the events; ",
        ),
        ("SELECT avg(SPEED * 2) FROM e GROUP BY window(ts, '1 hour')", "there is no column 'SPEED' in the events; "),
        (
            "SELECT count(*) FROM e WHERE SPEED > 1 GROUP BY window(ts, '1 hour')",
            "where: there is no column 'SPEED' in the ",
        ),
        ("SELECT count(*) FROM e GROUP BY CAR, window(ts, '1 hour')", "by: there is no column 'CAR' in the events; "),
        ("SELECT count(*) FROM e GROUP BY window(TS, '1 hour')", "time: there is no column 'TS' in the events; "),
    ],
)
def test_a_column_in_another_case_is_asked_back(text: str, said: str) -> None:
    for run in (wr.windows, lambda events, queries: wr.Engine(queries).push(events)):
        with pytest.raises(wr.QueryError) as raised:
            run(EVENTS, wr.sql(text))
        assert said in str(raised.value)
        assert re.search(r"did you mean '(Speed|car|ts)'\?$", str(raised.value))


def test_an_alias_in_another_case_is_asked_back() -> None:
    with pytest.raises(wr.SqlError, match=r"line 1, column 73: there is no column 'v'; did you mean 'V'\?"):
        wr.sql("SELECT avg(speed) AS V FROM events GROUP BY window(ts, '1 hour') HAVING v > 1")


# --- words ----------------------------------------------------------------------------------------------------------


def test_words_that_people_use_mean_what_they_do_in_duckdb() -> None:
    (query,) = wr.sql("""
        SELECT car AS c, window.start AS hour, round(avg(Speed), 2) AS v,
               count(*) FILTER (WHERE minute(ts) < 30 AND dayofweek(ts) = 6) AS early,
               max(CASE WHEN car RLIKE '^[ab]$' THEN upper(replace(car, 'a', 'x')) ELSE ltrim('  none') END) AS name,
               max(date_trunc('hour', ts)) AS latest, sum(if(Speed BETWEEN 10 AND 20, 1, 0)) AS slow,
               count(DISTINCT coalesce(nvl2(car, left(car, 1), NULL), '?')) AS cars, max(CAST(ts AS DATE)) AS day
        FROM events WHERE car IN ('a', 'b') OR car IS NULL GROUP BY car, window(ts, '1 hour')
    """)
    events = EVENTS
    assert events.height == 30
    duck = duckdb.sql("""
        SELECT car AS c, date_trunc('hour', ts) AS hour, round(avg(Speed), 2) AS v,
               count(*) FILTER (WHERE minute(ts) < 30 AND dayofweek(ts) = 5) AS early,
               max(CASE WHEN regexp_matches(car, '^[ab]$') THEN upper(replace(car, 'a', 'x')) ELSE 'none' END) AS name,
               max(date_trunc('hour', ts)) AS latest, sum(if(Speed BETWEEN 10 AND 20, 1, 0)) AS slow,
               count(DISTINCT coalesce(car, '?')) AS cars, max(CAST(ts AS DATE)) AS day
        FROM events GROUP BY ALL
    """).pl()
    own = wr.results_of(wr.windows(EVENTS, query), query).select(duck.columns)
    shown = [pl.col("hour", "latest").dt.epoch("us"), pl.col("slow").cast(pl.Int64)]
    assert own.with_columns(shown).sort(pl.all()).rows() == duck.with_columns(shown).sort(pl.all()).rows()


def test_nvl2_looks_only_at_what_it_chooses() -> None:
    events = pl.DataFrame({"ts": [1], "a": [2**62], "b": [None]}, schema_overrides={"b": pl.Int64()})
    query = wr.Query("q", "tumbling(10)", {"v": "max(nvl2(b, a * 4, a))"}, time="ts")
    assert wr.windows(events, query)["v"].to_list() == [2**62]
    for text in ("max(nvl2(b, a, a * 4))", "max(nvl2(a * 4, 1, 2))"):
        with pytest.raises(wr.InputError, match="64 bits"):
            wr.windows(events, wr.Query("q", "tumbling(10)", {"v": text}, time="ts"))


def test_every_function_that_there_is_not_has_a_sentence() -> None:
    for name, instead in INSTEAD.items():
        with pytest.raises(wr.SqlError) as raised:
            wr.sql(f"SELECT count(*) FROM e WHERE x = {name}(x) GROUP BY window(ts, 1)")
        said = str(raised.value)
        assert f"there is no function {name}; {instead}" in said or "is not" in said or "no CAST" in said, said


def test_the_table_of_functions_is_what_the_code_says() -> None:
    ran = subprocess.run([sys.executable, "docs/sql_functions.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
