"""`wr.sql` without a JVM: what statements mean, what is refused and where, and answers that DuckDB gives too.

`test_spark_sql` runs the same text by Spark and by windrow.
"""

from __future__ import annotations

import pickle
import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import polars as pl
import pytest

import windrow as wr
import windrow.testing.own
from windrow.core.expressions.parse import FUNCTIONS
from windrow.core.windows.fixed import Window
from windrow.testing import recompute, same

ANY = "FROM events GROUP BY window(ts, '1 minute')"


def one(text: str) -> wr.Query:
    (query,) = wr.sql(text)
    return query


def column(item: str, rest: str = ANY) -> wr.Aggregate:
    (found,) = one(f"SELECT {item} {rest}").aggregates
    return found


# --- statements -----------------------------------------------------------------------------------------------------


def test_a_statement_is_the_query_that_it_says() -> None:
    text = """
    -- name: slow
    SELECT car, avg(speed) AS v, count(*)
    FROM events WHERE moving AND lane = 2
    GROUP BY car, window(ts, '1 hour', '5 minutes')
    HAVING count(*) > 10 AND v < 30
    """
    assert wr.sql(text) == [
        wr.Query(
            "slow",
            wr.sliding("1 hour", "5 minutes"),
            [wr.mean("speed").alias("v"), wr.count().alias("count(*)")],
            by="car",
            where="moving AND lane = 2",
            time="ts",
            having="count() > 10 AND mean(speed) < 30",
        )
    ]


WINDOWS = {
    "window(ts, '10 minutes')": (wr.tumbling("10 minutes"), "ts"),
    "window(ts, '10 minutes', '1 minute')": (wr.sliding("10 minutes", "1 minute"), "ts"),
    "window(ts, '10 minutes', '10 minutes', '3 minutes')": (wr.tumbling("10 minutes", "3 minutes"), "ts"),
    "window(ts, '10 minutes', '1 minute', '-10 seconds')": (wr.sliding("10 minutes", "1 minute", "-10 seconds"), "ts"),
    "WINDOW(`event time`, 'interval 1 hour 30 minutes')": (wr.tumbling("90 minutes"), "event time"),
    "window(ts, '10 minutes', offset => '3 minutes')": (wr.tumbling("10 minutes", "3 minutes"), "ts"),
    "window(odometer, 20, 5)": (wr.sliding(20, 5), "odometer"),
    "session_window(ts, '5 minutes')": (wr.session("5 minutes"), "ts"),
    "session_window(ts, INTERVAL 5 MINUTES)": (wr.session("5 minutes"), "ts"),
    "session_window(ts, INTERVAL '5' MINUTE)": (wr.session("5 minutes"), "ts"),
    "cumulate(ts, '1 day', '1 hour')": (wr.cumulating("1 day", "1 hour"), "ts"),
    "cumulate('1 day', step => '1 hour', offset => '6 hours')": (wr.cumulating("1 day", "1 hour", "6 hours"), None),
    "count_window(100)": (wr.counting(100), None),
    "count_window(100, 10)": (wr.counting(100, 10), None),
    "count_window(n => 100, step => 10, time => ts)": (wr.counting(100, 10), "ts"),
    "count_window(100, scope => 'overlap')": (wr.counting(100, scope="overlap"), None),
    "punctuated(end => speed = 0, scope => bounds)": (wr.punctuated(end="speed = 0", scope="bounds"), None),
    "punctuated(end => speed = 0)": (wr.punctuated(end="speed = 0"), None),
    "punctuated(start => doors = 'shut', end => speed = 0 AND NOT moving)": (
        wr.punctuated(start="doors = 'shut'", end="speed = 0 AND NOT moving"),
        None,
    ),
    "punctuated(end => 'speed = 0')": (wr.punctuated(end="speed = 0"), None),
    "punctuated(speed = 0)": (wr.punctuated(start="speed = 0"), None),
    "frames(when => speed > 0)": (wr.frames("speed > 0"), None),
    "frames(moving)": (wr.frames("moving"), None),
    "latest(50, '1 hour')": (wr.latest(50, "1 hour"), None),
    "latest(50, every => 20)": (wr.latest(50, 20), None),
}


@pytest.mark.parametrize("text", WINDOWS)
def test_windows(text: str) -> None:
    query = one(f"SELECT count(*) FROM events GROUP BY {text}")
    assert (query.window, query.time) == WINDOWS[text]


COLUMNS = {
    # Spark's names
    "avg(x)": "mean(x)",
    "mean(x)": "mean(x)",
    "count(*)": "count()",
    "count(1)": "count()",
    "count()": "count()",
    "count(x)": "count(x)",
    "count(ALL x)": "count(x)",
    "count(DISTINCT x)": "distinct(x)",
    "count(x, y)": "count() FILTER (WHERE NOT x IS NULL AND NOT y IS NULL)",
    "count_if(x > 1)": "count() FILTER (WHERE x > 1)",
    "SUM(x * 2)": "sum(x * 2)",
    "percentile(x, 0.9)": "quantile(x, 0.9)",
    "percentile_cont(0.9) WITHIN GROUP (ORDER BY x)": "quantile(x, 0.9)",
    "median(x)": "median(x)",
    "mode(x)": "mode(x)",
    "mode(x, true)": "mode(x)",
    "mode() WITHIN GROUP (ORDER BY x)": "mode(x)",
    "first(x)": "first(x, true)",
    "first(x, false)": "first(x, true)",
    "first(x) RESPECT NULLS": "first(x, true)",
    "first(x) IGNORE NULLS": "first(x)",
    "first_value(x, true)": "first(x)",
    "any_value(x)": "first(x, true)",
    "last(x)": "last(x, true)",
    "last_value(x) ignore nulls": "last(x)",
    "max_by(x, y + 1)": "arg_max(x, of=y + 1)",
    "min_by(x, y)": "arg_min(x, of=y)",
    "stddev_samp(x)": "stddev(x)",
    "std(x)": "stddev(x)",
    "stddev_pop(x)": "stddev_pop(x)",
    "variance(x)": "variance(x)",
    "var_samp(x)": "variance(x)",
    "var_pop(x)": "variance_pop(x)",
    "collect_list(x)": "collect(x)",
    "array_agg(x)": "collect(x)",
    "bool_and(x)": "min(x AND TRUE)",
    "every(x > 1)": "min((x > 1) AND TRUE)",
    "some(x)": "max(x AND TRUE)",
    "approx_count_distinct(x)": "approx_distinct(x)",
    "approx_count_distinct(x, 0.01)": "approx_distinct(x, 14)",
    "approx_percentile(x, 0.5)": "approx_quantile(x, 0.5, 30565)",
    "percentile_approx(x, 0.5, 100)": "approx_quantile(x, 0.5, 269)",
    # our own
    "quantile(x, 0.9)": "quantile(x, 0.9)",
    "quantile(x, q => 0.9)": "quantile(x, 0.9)",
    "quantile(x => x, q => 0.9)": "quantile(x, 0.9)",
    "arg_max(x, of => y)": "arg_max(x, of=y)",
    "collect(x, nulls => true)": "collect(x, true)",
    "geometric_mean(x)": "geometric_mean(x)",
    "m4(x)": "m4(x)",
    "range(x)": "range(x)",
    "top_k(x, 3)": "top_k(x, 3)",
    "approx_quantile(x, 0.5)": "approx_quantile(x, 0.5)",
    "sum_of_products(x, y)": "sum_of_products(x, y)",
    # filtered, and formulas
    "avg(x) FILTER (WHERE y > 0)": "mean(x) FILTER (WHERE y > 0)",
    "first(x) FILTER (WHERE b) IGNORE NULLS": "first(x) FILTER (WHERE b)",
    "first(x) IGNORE NULLS FILTER (WHERE b)": "first(x) FILTER (WHERE b)",
    "sum(a) / sum(b)": "sum(a) / sum(b)",
    "100 * count_if(b) / count(*)": "100 * count() FILTER (WHERE b) / count()",
    "coalesce(sum(a), 0)": "coalesce(sum(a), 0)",
    "CAST(avg(x) AS BIGINT)": "CAST(mean(x) AS BIGINT)",
    "CASE WHEN count(*) > 1 THEN 'many' END": "CASE WHEN count() > 1 THEN 'many' END",
    "max(p0) - min(p0)": "max(p0) - min(p0)",
}


@pytest.mark.parametrize("text", COLUMNS)
def test_columns_are_called_as_they_are_written(text: str) -> None:
    assert column(text) == wr.aggregate(COLUMNS[text]).alias(text)


def test_the_name_of_a_column_is_its_text_with_single_blanks_and_without_comments_and_tables() -> None:
    item = "sum( e.a )  /\n  /* of all */ count(*) -- events\n"
    assert column(item, "FROM events e GROUP BY window(ts, '1 minute')").name == "sum( a ) / count(*)"


@pytest.mark.parametrize("item", ["avg(x) AS v", "avg(x) v", "avg(x) as `v`", "avg(x)AS v"])
def test_aliases(item: str) -> None:
    assert column(item) == wr.mean("x").alias("v")
    assert column("CASE WHEN max(b) THEN 1 END AS label").name == "label"
    assert column("avg(x) `two words`").name == "two words"
    assert column("avg(x) AS first").name == "first"


def test_keys_and_the_window_may_be_selected_or_not() -> None:
    rest = "count(*) AS n FROM events GROUP BY car, lane, window(ts, '1 minute')"
    plain = one(f"SELECT {rest}")
    assert plain.by == ("car", "lane")
    for more in (
        "car, lane",
        "lane, window",
        "window.start, window.end",
        "window.start AS window_start, car AS car",
        "window(ts, '1 minute'), window(ts, '1 minute').end",
        "window_start, window_end",
    ):
        assert one(f"SELECT {more}, {rest}") == plain, more
    sessions = "session_window.start, session_window, count(*) FROM events GROUP BY session_window(ts, '1 minute')"
    assert one(f"SELECT {sessions}").window == wr.session("1 minute")


@pytest.mark.parametrize("table", ["events", "events e", "events AS e", "db.events e", "`events` `e`", "EVENTS as E"])
def test_the_table_and_its_alias_are_left_out(table: str) -> None:
    name = "events" if table == "events" else "e"
    text = f"SELECT {name}.car, sum({name}.a + b) AS s FROM {table} WHERE {name}.b > 1 GROUP BY {name}.car, "
    query = one(text + f"window({name}.ts, '1 minute') HAVING max({name}.a) > 3")
    expected = wr.Query("q1", wr.tumbling("1 minute"), wr.sum("a + b").alias("s"), "car", "b > 1", "ts")
    assert query == wr.Query(**{**vars(expected), "having": "max(a) > 3"})


def test_having_knows_aliases_and_aggregates_that_are_not_selected() -> None:
    rest = "FROM events GROUP BY window(ts, '1 minute') HAVING"
    text = f"SELECT sum(a) / sum(b) AS share, avg(x) AS v {rest} share > 0.5 AND v < 3 AND max(v) > 1 OR min(y) IS NULL"
    expected = "(sum(a) / sum(b)) > 0.5 AND mean(x) < 3 AND max(v) > 1 OR min(y) IS NULL"
    assert one(text).having == wr.formula(expected)
    assert one(f"SELECT avg(x) AS v {rest} coalesce(v, 0) > 1").having == wr.formula("coalesce(mean(x), 0) > 1")
    same_name = f"SELECT max(v) AS v {rest} max(v) FILTER (WHERE v > 1) < v"
    assert one(same_name).having == wr.formula("max(v) FILTER (WHERE v > 1) < max(v)")
    assert one(f"SELECT count(*) {rest} bool_or(b)").having == wr.formula("max(b AND TRUE)")


def test_statements_have_the_name_of_the_line_before_them_or_of_their_place() -> None:
    text = f"""-- all of them
    SELECT count(*) {ANY};
    -- name: fast cars
    /* -- name: not this */
    SELECT max(speed) {ANY}; -- name: nor this
    ;
    --name:third
    -- with a remark
    SELECT 'a;b' || max(s) {ANY};
    SELECT count(*) {ANY}"""
    assert [query.name for query in wr.sql(text)] == ["q1", "fast cars", "third", "q4"]


def test_a_query_of_sql_is_plain_data() -> None:
    query = one(
        "SELECT car, avg(x) FILTER (WHERE b) / count(*) AS v FROM events GROUP BY car, frames(x > 0, time => ts) "
        "HAVING count(*) FILTER (WHERE b) > 1"
    )
    assert wr.Query.from_dict(query.to_dict()) == query
    assert pickle.loads(pickle.dumps(query)) == query


@pytest.mark.parametrize(
    "text",
    [
        "SELECT car, window(ts, '1 m'), count(*) AS n FROM events GROUP BY 1, 2",
        "SELECT window(ts, '1 m') AS w, count(*) AS n, car FROM events GROUP BY 3, w",
        "SELECT window(ts, '1 m') AS w, w.start, count(*) AS n FROM events GROUP BY w, car",
        "SELECT car, window(ts, '1 m'), count(*) AS n FROM events GROUP BY ALL",
        "SELECT car, window.*, count(*) AS n FROM events GROUP BY car, window(ts, '1 m')",
        "SELECT window w, count(*) AS n FROM events GROUP BY car, window(ts, '1 m')",
        "SELECT /*+ REPARTITION(3) */ car, count(*) AS n FROM events GROUP BY car, window(ts, '1 m')",
    ],
)
def test_group_by_and_the_window_may_be_written_in_every_way_of_spark(text: str) -> None:
    assert one(text) == one("SELECT count(*) AS n FROM events GROUP BY car, window(ts, '1 m')")


def test_the_page_lists_every_function_of_expressions() -> None:
    page = (Path(__file__).parents[1] / "docs" / "sql.md").read_text(encoding="utf-8")
    section = page.split("## Expressions\n")[1].split("\n## ")[0]
    listed = {
        word.upper() for word in re.findall(r"\b[a-z][a-z_0-9]+\b", "".join(re.findall(r"(?m)^    .*$", section)))
    }
    assert listed == set(FUNCTIONS)


# --- what is refused ------------------------------------------------------------------------------------------------

REFUSED = {  # ^ marks the place
    "": "1:1 there is no statement",
    "-- nothing": "1:1 there is no statement",
    "^SHOW TABLES": "a statement begins with SELECT",
    "^WITH a AS (SELECT 1) SELECT count(*) FROM a": "WITH is not read",
    "SELECT count(*)\n  ^FROM": "nothing follows FROM",
    "^SELECT count(*) GROUP BY window(ts, '1 m')": "FROM is missing",
    "^SELECT count(*) FROM events": "GROUP BY is missing",
    "SELECT ^DISTINCT count(*) FROM events GROUP BY window(ts, '1 m')": "leave it out",
    "SELECT ^* FROM events GROUP BY window(ts, '1 m')": "name keys and aggregates",
    "SELECT count(*), ^e.* FROM events e GROUP BY window(ts, '1 m')": "name keys and aggregates",
    "SELECT count(^e.*) FROM events e GROUP BY window(ts, '1 m')": "e.* is not read",
    "SELECT max('äöü') || max(^nope(x)) FROM a GROUP BY window(ts, '1 m')": "no function nope",
    "SELECT count(*) FROM a ^JOIN b ON a.x = b.x GROUP BY window(ts, '1 m')": "view first",
    "SELECT count(*) FROM a\n  ^LEFT JOIN b USING (x) GROUP BY window(ts, '1 m')": "LEFT is not read",
    "SELECT count(*) FROM a^, b GROUP BY window(ts, '1 m')": "several tables",
    "SELECT count(*) FROM (^SELECT * FROM a) GROUP BY window(ts, '1 m')": "subqueries",
    "SELECT count(*) FROM a WHERE x IN (^SELECT x FROM b) GROUP BY window(ts, '1 m')": "subqueries",
    "SELECT count(*) FROM ^(VALUES (1)) GROUP BY window(ts, '1 m')": "the name of a table",
    "SELECT count(*) FROM a ^TABLESAMPLE (1 ROWS) GROUP BY window(ts, '1 m')": "the name of a table",
    "SELECT count(*) FROM a b ^c GROUP BY window(ts, '1 m')": "c is not read",
    "SELECT count(*) FROM a GROUP BY window(ts, '1 m')\n\n ^ORDER BY 1": "sort them afterwards",
    "SELECT count(*) FROM a GROUP BY window(ts, '1 m') ^LIMIT 3": "LIMIT",
    "SELECT count(*) FROM a GROUP BY window(ts, '1 m') ^UNION ALL SELECT 1": "with ; between them",
    "SELECT count(*) FROM a GROUP BY window(ts, '1 m') ^SELECT 1": "a ; is missing",
    "SELECT count(*) FROM a GROUP BY window(ts, '1 m') ^WHERE x": "does not belong behind",
    "SELECT sum(x) ^OVER (PARTITION BY y) FROM a GROUP BY window(ts, '1 m')": "OVER",
    "SELECT count(*) FROM a GROUP BY ^ROLLUP (x), window(ts, '1 m')": "for each set of keys",
    "SELECT count(*) FROM a GROUP BY ^CUBE (x), window(ts, '1 m')": "for each set of keys",
    "SELECT count(*) FROM a GROUP BY ^GROUPING SETS ((x), ()), window(ts, '1 m')": "for each set of keys",
    "SELECT count(*) FROM a GROUP BY x, window(ts, '1 m') ^WITH ROLLUP": "for each set of keys",
    "SELECT count(*) FROM a GROUP BY ^ALL": "takes the window from SELECT",
    "SELECT count(*) FROM a GROUP BY ^hour(ts), window(ts, '1 m')": "make hour(ts) a column",
    "SELECT count(*) FROM a GROUP BY ^1, window(ts, '1 m')": "column 1 is count(*), an aggregate",
    "SELECT count(*) FROM a GROUP BY ^2, window(ts, '1 m')": "there is no column 2",
    "SELECT car + 1, window(ts, '1 m'), count(*) FROM a GROUP BY 2, ^hour(ts)": "make hour(ts) a column",
    "SELECT count(*) FROM a GROUP BY ^windw(ts, '1 m')": "write window(…), or make windw(ts, '1 m') a column",
    "SELECT count(*) FROM a GROUP BY ^hop(ts, '1 h', '1 m')": "write window(ts, '1 hour', '5 minutes'), or make",
    "SELECT count(*) FROM a GROUP BY ^session(ts, '1 m')": "write session_window(ts, '5 minutes'), or make",
    "SELECT count(*) FROM a GROUP BY ^date_trunc('hour', ts)": "write window(ts, '1 hour'), or make",
    "SELECT count(*) FROM a GROUP BY count_window(^ts, 100)": "write the time as time => ts",
    "SELECT count(*) FROM a GROUP BY x, ^x, window(ts, '1 m')": "a key twice",
    "SELECT count(*) FROM a GROUP BY ^car": "GROUP BY has no window",
    "SELECT count(*) FROM a GROUP BY window(ts, '1 m'), ^window(ts, '2 m')": "another statement",
    "SELECT count(*), ^speed FROM a GROUP BY car, window(ts, '1 m')": "first(speed)",
    "SELECT count(*), ^Car FROM a GROUP BY car, window(ts, '1 m')": "did you mean car?",
    "^SELECT count(*), car AS lane FROM a GROUP BY car, lane, window(ts, '1 m')": "'car' cannot be called 'lane'",
    "^SELECT count(*), window.start AS query FROM a GROUP BY window(ts, '1 m')": "is a column of every result",
    "SELECT car AS n, ^count(*) AS n FROM a GROUP BY car, window(ts, '1 m')": "two columns are called 'n'",
    "SELECT count(*) AS n, ^car AS n FROM a GROUP BY car, window(ts, '1 m')": "two columns are called 'n'",
    "SELECT window.start AS w, ^window.end AS w, count(*) FROM a GROUP BY window(ts, '1 m')": "two columns are called",
    "SELECT car AS c, count(*) FROM a GROUP BY c, window(ts, '1 m') HAVING ^c = 'a'": "on the key car into WHERE",
    "SELECT window.end e, count(*) FROM a GROUP BY window(ts, '1 m') HAVING ^e > 1": "rows of the results by",
    "SELECT count(*), ^w.start FROM a GROUP BY window(ts, '1 m')": "write window.start",
    "SELECT count(*) n FROM a GROUP BY window(ts, '1 m') HAVING n > 1 AND ^window.start > '2024'": "of the results",
    "SELECT ^count(DISTINCT x, y) FROM a GROUP BY window(ts, '1 m')": "count(DISTINCT concat(x, '/', y))",
    "SELECT max(x) + ^averge(x) FROM a GROUP BY window(ts, '1 m')": "no function averge; did you mean avg?",
    "SELECT ^stdev(x) FROM a GROUP BY window(ts, '1 m')": "no function stdev; did you mean stddev or std?",
    "SELECT ^format_number(avg(x), 2) FROM a GROUP BY window(ts, '1 m')": "format_number; compute it from the results",
    "SELECT ^count(*) DIV 2 FROM a GROUP BY window(ts, '1 m')": "DIV is not supported; write floor(a / b)",
    "SELECT ^count(*) & 2 FROM a GROUP BY window(ts, '1 m')": "not supported here; compute it from the results",
    "SELECT max(^unix_timestamp(x)) FROM a GROUP BY window(ts, '1 m')": (
        "there is no function unix_timestamp; make it a column of the events first"
    ),
    "SELECT count(*) FROM a WHERE ^x ILIKE 'a%' GROUP BY window(ts, '1 m')": "write lower(s) LIKE 'pattern'",
    "SELECT count(*) FROM a WHERE ^x & 1 GROUP BY window(ts, '1 m')": "make it a column of the events first",
    "SELECT count(*), window^.middle FROM a GROUP BY window(ts, '1 m')": "start and end",
    "SELECT count(*), ^window(ts, '2 m') FROM a GROUP BY window(ts, '1 m')": "not the window of GROUP BY",
    "SELECT ^car FROM a GROUP BY car, window(ts, '1 m')": "no aggregate is selected",
    "SELECT car, ^max(x) AS car FROM a GROUP BY car, window(ts, '1 m')": "give it another alias",
    "SELECT upper(^car), count(*) FROM a GROUP BY car, window(ts, '1 m')": "outside of every aggregate",
    "SELECT ^1 + 1 FROM a GROUP BY window(ts, '1 m')": "no aggregate in it",
    "SELECT sum(x) +\n    ^y FROM a GROUP BY window(ts, '1 m')": "y is outside of every aggregate",
    "SELECT count(*), ^count(*) FROM a GROUP BY window(ts, '1 m')": "two columns are called",
    "SELECT count(*) FROM a e WHERE ^f.x > 1 GROUP BY window(ts, '1 m')": "no table 'f'",
    "SELECT count(*) FROM a WHERE x ^> GROUP BY window(ts, '1 m')": "not a complete SQL expression",
    "SELECT count(*) FROM a WHERE x > 1 ^y GROUP BY window(ts, '1 m')": "not a complete SQL expression",
    "SELECT count(*) FROM a WHERE ^sin_of(x) > 1 GROUP BY window(ts, '1 m')": "no function sin_of",
    "SELECT count(*) FROM a WHERE x > 1 AND ^max(y) > 1 GROUP BY window(ts, '1 m')": "aggregate function",
    "SELECT sum(^avg(x)) FROM a GROUP BY window(ts, '1 m')": "aggregate function",
    "SELECT ^corr(x, y) FROM a GROUP BY window(ts, '1 m')": "Monoid",
    "SELECT count(*) + ^collect_set(x) FROM a GROUP BY window(ts, '1 m')": "collect_list",
    "SELECT ^summ(x) FROM a GROUP BY window(ts, '1 m')": "no function summ",
    "SELECT ^sum(DISTINCT x) FROM a GROUP BY window(ts, '1 m')": "DISTINCT is for count alone",
    "SELECT ^avg(x, y) FROM a GROUP BY window(ts, '1 m')": "takes 1 argument, not 2",
    "SELECT ^avg(x) IGNORE NULLS FROM a GROUP BY window(ts, '1 m')": "does not go with it",
    "SELECT ^max(x) WITHIN GROUP (ORDER BY y) FROM a GROUP BY window(ts, '1 m')": "does not go with it",
    "SELECT first(x, ^y) FROM a GROUP BY window(ts, '1 m')": "TRUE or FALSE",
    "SELECT percentile(x, ^p) FROM a GROUP BY window(ts, '1 m')": "written out",
    "SELECT percentile(x, ^array(0.1, 0.9)) FROM a GROUP BY window(ts, '1 m')": "write percentile once for each",
    "SELECT ^percentile(x, 1.5) FROM a GROUP BY window(ts, '1 m')": "between 0 and 1",
    "SELECT ^quantile(x) FROM a GROUP BY window(ts, '1 m')": "missing",
    "SELECT approx_percentile(x, 0.5, ^1000000) FROM a GROUP BY window(ts, '1 m')": "accuracy",
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY x ^DESC) FROM a GROUP BY window(ts, '1 m')": "1 - p",
    "SELECT avg(x) FILTER (WHERE y) ^FILTER (WHERE z) FROM a GROUP BY window(ts, '1 m')": "FILTER is given twice",
    "SELECT key, count(*)^oops n FROM a GROUP BY key, window(ts, '1 m')": "a comma is missing before oops",
    "SELECT count(*) ^sum(x) n FROM a GROUP BY window(ts, '1 m')": "a comma is missing before sum",
    "SELECT car ^count(*) n FROM a GROUP BY car, window(ts, '1 m')": "a comma is missing before count",
    "SELECT car ^first(x) FROM a GROUP BY car, window(ts, '1 m')": "a comma is missing before first",
    "SELECT count(*) FROM a WHERE ts > ^now() GROUP BY window(ts, '1 m')": "now; windows are on the times of events",
    "SELECT lag(x) ^OVER (PARTITION BY car ORDER BY ts) FROM a": "functions OVER a window of rows are not read",
    "SELECT ^lag(x) FROM a GROUP BY window(ts, '1 m')": "no function lag; collect_list(x) of a window has",
    "SELECT count(*) FROM a WHERE ^unix_timestamp(ts) > 1 GROUP BY window(ts, '1 m')": "a column of the events first",
    "SELECT count(*) FROM a WHERE ^isnull(x) GROUP BY window(ts, '1 m')": "write x IS NULL",
    "SELECT quantile(x, ^p => 0.5) FROM a GROUP BY window(ts, '1 m')": "quantile has no argument p; there are x, q",
    "SELECT quantile(x, ^y) FROM a GROUP BY window(ts, '1 m')": "quantile(x, y): q must be a number, not 'y'",
    "SELECT avg(x) ^FILTER (y > 1) FROM a GROUP BY window(ts, '1 m')": "(WHERE …)",
    "SELECT avg(x) FILTER (WHERE y ^>) FROM a GROUP BY window(ts, '1 m')": "not a complete SQL expression",
    "SELECT count(*) FROM a GROUP BY window(ts, '1 m') HAVING ^car = 'a'": "into WHERE",
    "SELECT count(*) FROM a GROUP BY window(ts, '1 m') HAVING count(*) ^>": "count(*) >: it is not a",
    "SELECT count(*)^) FROM a GROUP BY window(ts, '1 m')": "closes nothing",
    "SELECT count^(* FROM a GROUP BY window(ts, '1 m')": "a bracket is not closed",
    "SELECT max(s || ^'a) FROM a GROUP BY window(ts, 1)": "never closed",
    "SELECT max(^`s) FROM a GROUP BY window(ts, 1)": "never closed",
    "SELECT max(s) ^/* of FROM a GROUP BY window(ts, 1)": "never closed",
    "SELECT count(*),^ FROM a GROUP BY window(ts, '1 m')": "a column is missing",
    "SELECT count(*) FROM a GROUP BY cumulate(^, '1 hour')": "an argument is missing",
    "SELECT count(*) FROM a GROUP BY window(ts, ^'1 mile')": "not a duration",
    "SELECT count(*) FROM a GROUP BY window(ts, ^gap)": "not a length",
    "SELECT count(*) FROM a GROUP BY window(^ts + 1, '1 m')": "the time is a column",
    "SELECT count(*) FROM a GROUP BY window(^'1 m')": "the time is a column",
    "SELECT count(*) FROM a GROUP BY ^session_window(ts, '-1 m')": "greater than zero",
    "SELECT count(*) FROM a GROUP BY ^session_window(ts)": "missing",
    "SELECT count(*) FROM a GROUP BY ^count_window()": "missing",
    "SELECT count(*) FROM a GROUP BY count_window(^'ten')": "not a whole number",
    "SELECT count(*) FROM a GROUP BY count_window(^size => 10)": "there are n, step, scope, time",
    "SELECT count(*) FROM a GROUP BY ^cumulate(ts, '1 hour', '7 minutes')": "must divide",
    "SELECT count(*) FROM a GROUP BY ^count_window(10, scope => 'all')": "scope is one of 'global', 'node', 'bounds'",
    "SELECT count(*) FROM a GROUP BY latest(10, 5, ^scope => 'node')": "latest has no argument scope",
    "SELECT count(*) FROM a GROUP BY frames(when => ^speed_of(x))": "no function speed_of",
    "SELECT count(*) FROM a GROUP BY frames(^'x > ')": "not a complete SQL expression",
    "SELECT count(*) FROM a GROUP BY ^punctuated()": "give start, end or both",
    f"-- name: x\nSELECT count(*) {ANY};\n ^-- name: x\nSELECT count(*) {ANY}": "called 'x', the other on line 1",
    "-- name: q2\nSELECT count(*) FROM a GROUP BY window(ts, 1);\n^SELECT count(*) FROM a GROUP BY window(ts, 1)": (
        "two statements are called 'q2'"
    ),
    "-- name: x\n^-- name: y\nSELECT count(*) FROM a GROUP BY window(ts, 1)": "already called 'x'",
    "^-- name:\nSELECT count(*) FROM a GROUP BY window(ts, 1)": "the name is missing",
    "SELECT count(*) FROM a GROUP BY window(ts, 1);\n^-- name: y\n": "no statement follows",
    "SELECT count(*) FROM a GROUP BY window(ts, 1);\nSELECT count(*) FROM ^b GROUP BY window(ts, 1)": "one table",
    "^SELECT max(x) AS query FROM a GROUP BY window(ts, 1)": "a column of every result",
}


@pytest.mark.parametrize("marked", REFUSED)
def test_what_is_not_read_is_refused_with_line_and_column(marked: str) -> None:
    text, at = marked.replace("^", ""), marked.find("^")
    said = REFUSED[marked]
    line, place = (1, 1) if at < 0 else (marked.count("\n", 0, at) + 1, at - marked.rfind("\n", 0, at))
    with pytest.raises(wr.SqlError) as raised:
        wr.sql(text)
    assert (raised.value.line, raised.value.column) == (line, place), str(raised.value)
    assert said.removeprefix("1:1 ") in str(raised.value)
    assert str(raised.value).startswith(f"line {line}, column {place}: ")


def test_an_error_is_a_query_error_and_survives_pickling() -> None:
    with pytest.raises(wr.QueryError) as raised:
        wr.sql("SELECT 1")
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.line) == (str(raised.value), 1)
    with pytest.raises(TypeError, match="expected SQL text"):
        wr.sql(3)  # type: ignore[arg-type]


# --- answers --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def events() -> pl.DataFrame:
    at = datetime(2024, 5, 31, 12, tzinfo=UTC)
    rows = [
        {
            "ts": at + timedelta(seconds=7 * n + n * n % 11),
            "car": "abc"[n * n % 3],
            "speed": None if n % 7 == 3 else float(n * 37 % 50),
            "lane": n % 3,
        }
        for n in range(200)
    ]
    return pl.DataFrame(rows, schema_overrides={"ts": pl.Datetime("us", "UTC")})


TEXT = """
-- name: a
SELECT car, count(*) AS n, avg(speed) FILTER (WHERE lane = 1) AS v, sum(speed) / count(*) AS per, first(speed) AS f
FROM events WHERE lane < 2 GROUP BY car, window(ts, '2 minutes') HAVING count(*) > 2 AND max(speed) > 40;
-- name: b
SELECT count(*) AS n, median(speed) AS m FROM events GROUP BY session_window(ts, '9 seconds');
-- name: c
SELECT collect_list(speed) AS l FROM events GROUP BY count_window(20);
-- name: d
SELECT car, count(*) AS n FROM events GROUP BY car, frames(when => speed > 20) HAVING count(*) > 2
"""


def test_answers_are_those_of_the_oracle_and_time_need_not_be_said_again(events: pl.DataFrame) -> None:
    queries = wr.sql(TEXT)
    expected = recompute(events.to_dicts(), queries, time="ts")
    assert {row["query"] for row in expected} == {"a", "b", "c", "d"}
    whole = wr.windows(events, queries)
    assert same(whole.to_dicts(), expected, queries, ordered=True)
    assert whole.equals(wr.windows(events, queries, time="ts"))
    engine = wr.Engine(queries, lateness="20 seconds")
    parts = [engine.push(events[at : at + 23]) for at in range(0, 200, 23)]
    assert same(pl.concat([*parts, engine.finish()]).to_dicts(), expected, queries)


def test_duckdb_gives_the_same(events: pl.DataFrame) -> None:
    own = duckdb.sql("""
        SELECT car, epoch_us(time_bucket(INTERVAL '2 minutes', ts, TIMESTAMPTZ '1970-01-01 00:00:00Z')) AS start,
               count(*) AS n, avg(speed) FILTER (WHERE lane = 1) AS v, sum(speed) / count(*) AS per,
               first(speed ORDER BY ts) AS f
        FROM events WHERE lane < 2 GROUP BY ALL HAVING count(*) > 2 AND max(speed) > 40 ORDER BY start, car
    """).fetchall()
    found = wr.results_of(wr.windows(events, wr.sql(TEXT)), "a").sort("window_start", "car")
    mine = found.select("car", pl.col("window_start").to_physical(), "n", "v", "per", "f").rows()
    assert len(mine) > 10
    assert mine == own


def test_time_is_asked_for_where_the_queries_do_not_name_it_or_name_several(events: pl.DataFrame) -> None:
    counted = wr.sql("-- name: counted\nSELECT count(*) FROM events GROUP BY count_window(10)")
    with pytest.raises(wr.QueryError, match="the events have several timestamps, 'ts', 'seen'"):
        wr.windows(events.with_columns(seen="ts"), counted)
    with pytest.raises(wr.QueryError, match="name the time column"):
        wr.plan(counted)
    several = wr.sql(f"SELECT count(*) {ANY}; SELECT count(*) FROM events GROUP BY window(lane, 2)")
    with pytest.raises(wr.QueryError, match="several times, 'ts', 'lane'"):
        wr.Engine(several)
    assert wr.plan(wr.sql(f"SELECT count(*) {ANY}")).time_columns == ["ts"]
    assert wr.windows(events, [*counted, *wr.sql(f"SELECT count(*) AS c {ANY}")]).height > 20


def test_extensions_answer_as_their_windows(events: pl.DataFrame) -> None:
    events = events.with_columns(node=pl.col("lane").cast(pl.String))
    for text, (window, _) in WINDOWS.items():
        if "ts" not in text and "speed" not in text and "count_window" not in text:
            continue
        if any(word in text for word in ("moving", "INTERVAL")):
            continue
        query = one(f"SELECT car, count(*) AS n FROM events GROUP BY car, {text}")
        assert isinstance(query.window, Window)
        expected = wr.Query("q1", window, wr.count().alias("n"), by="car")
        assert wr.windows(events, query, "ts").equals(wr.windows(events, expected, "ts"))


def test_windows_of_each_node_have_the_node_as_a_key() -> None:
    query = one("SELECT node, car, count(*) AS n FROM events GROUP BY car, count_window(10, scope => 'node')")
    assert query == wr.Query("q1", wr.counting(10, scope="node"), wr.count().alias("n"), by="car")
    assert query.by == ("car", "node")


def test_whatever_is_written_is_read_or_refused_with_a_place_in_the_text(seed: int) -> None:
    draw = random.Random(seed)
    whole = [*TEXT.split(";"), *(f"SELECT {item} {ANY}" for item in COLUMNS)]
    whole += [f"SELECT car, count(*) n FROM events e GROUP BY {window}, car HAVING n > 1" for window in WINDOWS]
    parted = [re.findall(r"--[^\n]*\n|'[^']*'|\w+|\S", text) for text in whole]
    every = [word for words in parted for word in words]
    read = 0
    for number in range(1500):
        words = list(parted[number % len(parted)])
        for _ in range(draw.randint(1, 2)):
            at = draw.randrange(len(words))
            words[at : at + draw.randint(0, 2)] = draw.choices(every, k=draw.randint(0, 1))
        text = " ".join(words)
        found = refusal_of(text)
        read += found is None
        if found:
            lines = text.split("\n")
            assert 1 <= found.line <= len(lines), text
            assert 1 <= found.column <= len(lines[found.line - 1]) + 1, text
    assert 100 < read < 1000


NESTED = ["(*)", "abs(*)", "- *", "not *", "x + *", "case when x then * end", "x in (*)", "[*", "nope(*)", "formula(*)"]


@pytest.mark.parametrize("depth", [60, 600])
@pytest.mark.parametrize("around", NESTED)
def test_however_deep_it_is_read_or_refused(around: str, depth: int) -> None:
    before, behind = around.split("*")
    inner = before * depth + "x" + behind * depth
    for text in (f"sum({inner})", inner.replace("x", "sum(x)"), f"{inner} >"):
        refusal_of(f"SELECT {text} n {ANY}")
        refusal_of(f"SELECT count(*) n {ANY} HAVING {text}")
        refusal_of(f"SELECT count(*) n FROM e WHERE {text} GROUP BY frames({text})")


def refusal_of(text: str) -> wr.SqlError | None:
    """How a text is refused, None if it is read; whatever else it raises is raised."""
    try:
        wr.sql(text)
    except wr.SqlError as error:
        return error
    return None
