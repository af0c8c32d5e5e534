"""The first hour with SQL: statements as people have them, and what is said where they cannot be read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import polars as pl
import pytest

import windrow as wr

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
