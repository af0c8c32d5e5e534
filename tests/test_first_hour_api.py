"""What a new user writes first: SQL as queries, the only timestamp as the time, frames as they are at hand."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import windrow as wr

MINUTES = [1, 3, 8, 12, 14, 19, 45]
EVENTS = pl.DataFrame(
    {
        "ts": [datetime(2026, 1, 1, 8, minute) for minute in MINUTES],
        "car": list("abaabab"),
        "speed": [42, 55, 48, 0, 61, 50, 58],
    }
)
MEAN = "SELECT car, avg(speed) AS v FROM events GROUP BY car, window(ts, '20 minutes')"
HOURLY = wr.Query("hourly", wr.tumbling("1 hour"), "count()")


# --- SQL text as queries ------------------------------------------------------------------------------------


def test_text_is_taken_as_queries() -> None:
    assert wr.windows(EVENTS, MEAN).equals(wr.windows(EVENTS, wr.sql(MEAN)))
    assert wr.plan(MEAN).explain() == wr.plan(wr.sql(MEAN)).explain()
    engine = wr.Engine(MEAN)
    got = pl.concat([engine.push(EVENTS), engine.finish()])
    assert got.equals(wr.windows(EVENTS, MEAN))


def test_several_texts_and_queries_go_together() -> None:
    got = wr.windows(EVENTS, [MEAN, HOURLY, f"{MEAN};\n-- name: last\n{MEAN}"])
    assert sorted(got["query"].unique()) == ["hourly", "last", "q1", "q3"]


def test_more_are_added_while_an_engine_runs() -> None:
    engine = wr.Engine([])
    assert engine.add(MEAN) is None
    assert engine.add([HOURLY, wr.Query("day", wr.tumbling("1 day"), "count()")]) is None
    engine.push(EVENTS)
    assert engine.add("-- name: later\n" + MEAN) == datetime(2026, 1, 1, 8, 45, 0, 1)
    assert [query.name for query in engine.queries] == ["q1", "hourly", "day", "later"]
    with pytest.raises(wr.QueryError, match="queries on several times, 'other', 'ts'; add them one by one"):
        engine.add([wr.Query("other", wr.tumbling(3), "count()", time="other"), HOURLY])
    with pytest.raises(wr.QueryError, match="two queries are called 'hourly'"):
        engine.add([wr.Query("new", wr.tumbling("1 hour"), "count()"), HOURLY])
    assert [query.name for query in engine.queries] == ["q1", "hourly", "day", "later"]  # all or none


def test_what_is_no_query_is_refused() -> None:
    with pytest.raises(wr.QueryError, match="there are no queries; give one or several"):
        wr.windows(EVENTS, [])
    with pytest.raises(wr.QueryError, match="expected a Query or SQL text, not 3"):
        wr.windows(EVENTS, [HOURLY, 3])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"expected queries, .* not 3"):
        wr.windows(EVENTS, 3)  # type: ignore[arg-type]
    with pytest.raises(wr.SqlError, match="line 1, column 1"):
        wr.windows(EVENTS, "speed")


# --- the only timestamp -------------------------------------------------------------------------------------


def test_the_only_timestamp_is_the_time() -> None:
    assert wr.windows(EVENTS, HOURLY).equals(wr.windows(EVENTS, HOURLY, time="ts"))
    engine = wr.Engine(HOURLY, lateness="5 minutes")
    assert engine.watermark is None
    assert engine.push(EVENTS).is_empty()
    assert engine.watermark == datetime(2026, 1, 1, 8, 40)
    assert engine.metrics.watermarks == {"ts": datetime(2026, 1, 1, 8, 40)}
    assert engine.finish().equals(wr.windows(EVENTS, HOURLY))


def test_a_date_is_the_time_where_there_is_no_timestamp() -> None:
    days = EVENTS.select(pl.col("ts").dt.date().alias("day"), "speed")
    daily = wr.Query("daily", wr.tumbling("1 day"), "sum(speed)")
    assert wr.windows(days, daily).equals(wr.windows(days, daily, time="day"))


def test_an_engine_that_knows_its_time_later_keeps_what_came_before() -> None:
    engine = wr.Engine(HOURLY)
    engine.advance(datetime(2026, 1, 1, 8, 10))
    again = wr.Engine.restore(engine.snapshot())
    again.push(EVENTS)
    assert again.metrics.late == 3
    with pytest.raises(ValueError, match="there is no time column 'when'; there are 'ts'"):
        again.advance(datetime(2026, 1, 1, 9), time="when")


def test_a_batch_that_does_not_show_the_time_changes_nothing() -> None:
    engine = wr.Engine(HOURLY)
    with pytest.raises(wr.QueryError, match="the events have several timestamps, 'ts', 'seen'; say which is the time"):
        engine.push(EVENTS.with_columns(seen="ts"))
    engine.push(EVENTS)
    assert engine.metrics.events == len(MINUTES)


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        (EVENTS.with_columns(seen="ts"), "the events have several timestamps, 'ts', 'seen'; .*: time='ts'"),
        (EVENTS.drop("ts"), "the events have no timestamp; .* 'car', 'speed'; if it is a whole number, .*time='speed'"),
        (EVENTS.select("car"), "the events have no timestamp; there are 'car'$"),
    ],
)
def test_a_time_that_cannot_be_known_is_asked_for(events: pl.DataFrame, reason: str) -> None:
    with pytest.raises(wr.QueryError, match=reason):
        wr.windows(events, HOURLY)


# --- pandas -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ts", None])
def test_the_index_of_a_pandas_frame_is_its_time(name: str | None) -> None:
    frame = EVENTS.to_pandas().set_index("ts").rename_axis(name)
    expected = wr.windows(EVENTS, MEAN)
    got = wr.windows(frame, MEAN)
    assert isinstance(got, pd.DataFrame)
    assert pl.from_pandas(got).select(expected.columns).rows() == expected.rows()
    assert len(wr.windows(frame, HOURLY)) == 1
    assert len(wr.windows(frame, HOURLY, time="ts")) == 1
    engine = wr.Engine(HOURLY)
    engine.push(frame)
    assert engine.finish().height == 1


def test_an_index_of_several_levels_has_columns_and_a_plain_one_has_none() -> None:
    frame = EVENTS.to_pandas()
    expected = wr.windows(EVENTS, MEAN)
    assert pl.from_pandas(wr.windows(frame.set_index(["car", "ts"]), MEAN)).rows() == expected.rows()
    assert pl.from_pandas(wr.windows(frame[frame["speed"] > -1], MEAN)).rows() == expected.rows()
    seconds = pd.DataFrame({"speed": [1.0, 2.0]}, index=pd.RangeIndex(2, name="second"))
    assert len(wr.windows(seconds, wr.Query("q", wr.tumbling(1), "max(speed)"), time="second")) == 2


def test_a_column_of_pandas_without_one_type_is_named() -> None:
    frame = EVENTS.to_pandas().assign(note=[1, "two", None, 4, 5, 6, 7])
    reason = "column 'note' has no one type: it holds int such as 1 and str such as 'two'; convert it, or leave it out"
    with pytest.raises(wr.InputError, match=reason):
        wr.windows(frame, HOURLY)
    with pytest.raises(wr.InputError, match="two columns are called 'speed'"):
        wr.windows(frame[["ts", "speed", "speed"]], HOURLY)


# --- an engine's columns ------------------------------------------------------------------------------------


def test_an_engine_takes_dicts() -> None:
    engine = wr.Engine(MEAN)
    got = [engine.push([]), engine.push(EVENTS.to_dicts()), engine.push([]), engine.finish()]
    assert pl.concat(got[1:]).equals(wr.windows(EVENTS, MEAN))
    assert wr.windows(EVENTS.to_dicts(), MEAN).equals(wr.windows(EVENTS, MEAN))


def test_dicts_lack_values_and_mix_numbers() -> None:
    rows = [{"t": 1, "x": 1}, {"t": 2, "x": 2.5}, {"t": 3, "y": True}]
    got = wr.windows(rows, wr.Query("q", wr.tumbling(10), {"x": "sum(x)", "n": "count(y)"}), time="t")
    assert got.select("x", "n").rows() == [(3.5, 1)]
    with pytest.raises(wr.InputError, match="column 'x' has no one type: it holds int such as 1 and str such as 'a'"):
        wr.Engine(HOURLY, time="t").push([{"t": 1, "x": 1}, {"t": 2, "x": "a"}])
    with pytest.raises(TypeError, match=r"a pandas frame or a list of dicts, not builtins\.list"):
        wr.Engine(HOURLY, time="t").push([1, 2])


def test_columns_fix_types_before_the_first_batch() -> None:
    query = wr.Query("q", wr.tumbling("1 hour"), {"v": "max(speed)"}, by="car")
    types = {"ts": pl.Datetime("us"), "car": str, "speed": "double"}
    engine = wr.Engine(query, columns=types)
    empty = engine.advance(datetime(2026, 1, 1))
    assert empty.schema["v"] == pl.Float64()
    whole = engine.push(EVENTS)  # whole numbers, the first time
    parts = engine.push(EVENTS.select(pl.col("ts") + timedelta(hours=1), "car", pl.col("speed") + 0.5))
    late = engine.push([{"ts": datetime(2026, 1, 1, 11), "car": "a", "speed": None}])
    assert all(results.schema == empty.schema for results in (whole, parts, late))
    assert pl.concat([empty, whole, parts, late])["v"].to_list() == [50.0, 61.0, 50.5, 61.5]  # of a and b


def test_columns_outlive_a_snapshot() -> None:
    query = wr.Query("q", wr.tumbling(10), {"v": "max(speed)"})
    engine = wr.Engine.restore(wr.Engine(query, "t", columns={"t": "bigint", "speed": "double"}).snapshot())
    engine.push([{"t": 1, "speed": 3}])
    engine.push([{"t": 2, "speed": 3.5}])
    assert engine.finish()["v"].to_list() == [3.5]


def test_columns_leave_the_plan_to_what_the_first_batch_shows() -> None:
    queries = [wr.Query("a", wr.tumbling(1), "count()", by="k"), wr.Query("b", wr.tumbling(1), "count()")]
    events = pl.DataFrame({"t": range(2000), "k": range(2000)})
    plain, typed = wr.Engine(queries, "t"), wr.Engine(queries, "t", columns=events.schema)
    for engine in (plain, typed):
        engine.push(events)
    assert typed.explain() == plain.explain()
    assert "not rolled up" in typed.explain()


def test_a_type_widens_only_where_it_holds_every_value() -> None:
    query = wr.Query("q", wr.tumbling(10), {"v": "max(x)"})
    engine = wr.Engine(query, "t", columns={"t": int, "x": float})
    with pytest.raises(wr.InputError, match="column 'x' is Int64 in this batch, and was Float64 before"):
        engine.push([{"t": 1, "x": 2**53 + 1}])
    engine.push([{"t": 1, "x": float("nan")}, {"t": 2, "x": None}])
    with pytest.raises(wr.InputError, match="column 'x' is Float64 in this batch, and was Float32 before"):
        wr.Engine(query, "t", columns={"t": int, "x": "float"}).push([{"t": 1, "x": 0.5}])  # even if this one fits
    engine = wr.Engine(query, "t")
    engine.push([{"t": 1, "x": 1}])
    with pytest.raises(wr.InputError, match=r"was Int64 before; Engine\(columns=…\) fixes types before"):
        engine.push([{"t": 1, "x": 1.5}])
    assert engine.metrics.events == 1


def test_columns_that_do_not_fit_are_refused() -> None:
    with pytest.raises(wr.QueryError, match="columns: 'flot' is not a type of Spark"):
        wr.Engine(HOURLY, columns={"ts": "flot"})
    with pytest.raises(wr.QueryError, match="there is no column 'speed' in the events; there are ts, car"):
        wr.Engine(MEAN, columns={"ts": pl.Datetime("us"), "car": pl.String})
    with pytest.raises(wr.QueryError, match="the events have several timestamps, 'a', 'b'"):
        wr.Engine(HOURLY, columns={"a": "timestamp", "b": "timestamp"})


def test_moments_of_other_zones_and_units_are_the_same_moments() -> None:
    query = wr.Query("q", wr.tumbling("1 hour"), "count()")
    moments = pa.array([datetime(2026, 1, 1, 8, tzinfo=UTC)], pa.timestamp("ms", "Europe/Berlin"))
    engine = wr.Engine(query, columns={"ts": "timestamp"})
    engine.push(pa.table({"ts": moments}))
    assert engine.finish()["window_start"].to_list() == [datetime(2026, 1, 1, 8, tzinfo=UTC)]


# --- what things say of themselves --------------------------------------------------------------------------


def test_queries_are_shown_as_they_are_written() -> None:
    mean = wr.Query("mean", wr.sliding("1 hour", "5 minutes"), wr.mean("speed"), by="car")
    assert repr(mean) == 'Query("mean", sliding("1 hour", "5 minutes"), [mean(speed)], by=car)'
    (read,) = wr.sql(
        "SELECT car, city, count(*) AS n FROM e WHERE speed > 0 "
        "GROUP BY car, city, session_window(ts, '90 seconds') HAVING count(*) > 1"
    )
    assert repr(read) == (
        'Query("q1", session("1 minute 30 seconds"), [count() AS n], by=[car, city], '
        "where='speed > 0', having='count() > 1', time=ts)"
    )
    first = wr.Query("first", wr.counting(3), "min(x)", where="x > 1", distinct_on=["id", "day"])
    assert repr(first) == "Query(\"first\", counting(3), [min(x)], distinct_on=[id, day], where='x > 1')"


@pytest.mark.parametrize(
    ("window", "shown"),
    [
        (wr.tumbling(20, offset=3), "tumbling(20, offset=3)"),
        (wr.tumbling("1 day", offset="1 hour"), 'tumbling("1 day", offset="1 hour")'),
        (wr.cumulating("1 day", "1 hour"), 'cumulating("1 day", "1 hour")'),
        (wr.session(5), "session(5)"),
        (wr.counting(10, 5, scope="node"), "counting(10, 5, scope='node')"),
        (wr.latest(5, every="1 minute"), 'latest(5, every="1 minute")'),
        (wr.frames(when="x > 1"), "frames(when='x > 1')"),
        (wr.punctuated(end="x = 0"), "punctuated(end='x = 0')"),
    ],
)
def test_a_window_is_shown_as_it_is_written(window: object, shown: str) -> None:
    assert repr(window) == shown
    assert eval(shown, vars(wr)) == window


def test_an_engine_and_a_plan_say_what_they_do() -> None:
    engine = wr.Engine(MEAN, lateness="5 minutes")
    assert repr(engine) == "Engine(q1; watermark None; 0 events, 0 late, 0 results)"
    engine.push(EVENTS)
    assert repr(engine) == "Engine(q1; watermark 2026-01-01 08:40:00; 7 events, 0 late, 2 results)"
    assert repr(engine.plan) == "Plan(1 query in 1 slice group)"
    engine.finish()
    assert repr(engine) == "Engine(q1; finished; 7 events, 0 late, 3 results)"
    many = wr.Engine([wr.Query(f"q{n}", wr.tumbling(n), "count()") for n in range(1, 201)], "t")
    assert repr(many).startswith("Engine(q1, q2, q3, q4, q5, q6, and 194 more; ")


# --- results of one query -----------------------------------------------------------------------------------

TRIP = wr.Query("trip", wr.session("15 minutes"), ["count()", "max(fuel)"], by="car")
OWN = ["query", "car", "window_start", "window_end", "revision", "count()", "max(fuel)"]


def columns_of(results: Any) -> list[str]:
    if isinstance(results, pl.LazyFrame):
        return results.collect_schema().names()
    return results.column_names if isinstance(results, pa.Table) else list(results.columns)


@pytest.mark.parametrize("fuel", [1.5, None])
@pytest.mark.parametrize("rows", [7, 0])
def test_results_of_a_name_have_the_same_columns_whatever_the_data(fuel: float | None, rows: int) -> None:
    events = EVENTS.with_columns(fuel=pl.lit(fuel, pl.Float64))[:rows]
    queries = [HOURLY, TRIP]
    for given in (events, events.to_arrow(), events.to_pandas(), events.lazy()):
        results = wr.windows(given, queries)
        own = wr.results_of(results, "trip")
        assert type(own) is type(results)
        assert columns_of(own) == OWN
        with pytest.raises(KeyError, match="no results of a query called 'tripp'; there are 'hourly', 'trip'"):
            wr.results_of(results, "tripp")


def test_every_result_of_an_engine_knows_its_queries() -> None:
    engine = wr.Engine([HOURLY, TRIP], columns={"ts": pl.Datetime("us"), "car": str, "fuel": float})
    events = EVENTS.with_columns(fuel=pl.lit(None, pl.Float64))
    emitted = [engine.push(events[:0]), engine.push(events), engine.advance(datetime(2026, 1, 1, 9)), engine.finish()]
    assert [wr.results_of(results, "trip").columns for results in emitted] == [OWN] * 4
    assert wr.results_of(wr.Engine(TRIP).advance(0), "trip").columns == ["query"]  # types are not known yet


def test_results_that_were_made_of_others_are_asked_with_their_queries() -> None:
    engine = wr.Engine([HOURLY, TRIP], columns={"ts": pl.Datetime("us"), "car": str, "fuel": float})
    results = pl.concat([engine.push(EVENTS.with_columns(fuel=pl.lit(None, pl.Float64))), engine.finish()])
    assert wr.results_of(results, "trip", [HOURLY, TRIP]).columns == OWN
    assert wr.results_of(results, TRIP).columns == OWN
    assert wr.results_of(wr.windows(EVENTS, MEAN).clone(), "q1", MEAN).height == 3
    with pytest.raises(wr.QueryError, match=r"name the queries: results_of\(results, 'trip', queries\)"):
        wr.results_of(results, "trip")
    with pytest.raises(KeyError, match="no results of a query called 'trap'"):
        wr.results_of(results, "trap", [HOURLY, TRIP])
    assert wr.results_of(results.drop("max(fuel)"), TRIP).columns == OWN[:-1]


# --- what a user sees of a refusal --------------------------------------------------------------------------

MISTAKES = {
    "wr.windows(events, [])": "windrow.core.expressions.errors.QueryError: there are no queries",
    "wr.windows(events, 'SELECT car count(*) n')": "windrow.core.expressions.errors.SqlError: line 1, column",
    "wr.windows(events, wr.Query('q', wr.tumbling(5), 'count()'))": "QueryError: query 'q': tumbling(5) does not fit",
    "wr.tumbling('1 hou')": "ValueError: ",
    "wr.Query('q', 'tumbling(1 hou)', 'count()')": "QueryError: query 'q': ",
    "wr.Query('q', wr.tumbling('1 hour'), 'sum(speed')": "QueryError: query 'q': ",
    "wr.quantile('speed', 3)": "ValueError: ",
    "wr.Engine('SELECT count(*) FROM e GROUP BY window(t, 5)').push(events)": "QueryError: query 'q1': time: there is",
    "wr.Engine([], columns={'ts': 'flot'})": "QueryError: columns: 'flot' is not a type",
    "wr.Engine.restore(b'nothing')": "ValueError: ",
    "wr.results_of(wr.windows(events, wr.Query('q', wr.session('1 h'), 'count()')), 'p')": "KeyError: ",
}


def seen_of(program: str, tmp_path: Path, **variables: str) -> list[str]:
    """What Python prints where a program ends with an error."""
    path = tmp_path / "program.py"
    path.write_text(program)
    given = {name: value for name, value in os.environ.items() if name != "WINDROW_TRACEBACK"} | variables
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False, env=given)
    return done.stderr.rstrip("\n").split("\n")


def test_a_refusal_is_the_users_line_and_a_sentence(tmp_path: Path) -> None:
    begin = "import traceback\nfrom datetime import datetime\nimport polars as pl\nimport windrow as wr\n"
    begin += "events = pl.DataFrame({'ts': [datetime(2026, 1, 1)], 'speed': [1]})\n"
    tries = [f"try:\n    {mistake}\nexcept Exception:\n    traceback.print_exc()\n" for mistake in MISTAKES]
    printed = "\n".join(seen_of(begin + "".join(tries), tmp_path)).split("Traceback (most recent call last):\n")[1:]
    assert len(printed) == len(MISTAKES)
    for (mistake, sentence), text in zip(MISTAKES.items(), printed, strict=True):
        lines = text.rstrip("\n").split("\n")
        assert lines[1].strip() == mistake
        assert sentence in lines[-1], text
        assert len([line for line in lines if line.startswith("  File")]) == 2, text  # and the border
        assert len(lines) <= 6, text


def test_the_whole_way_is_there_for_who_asks(tmp_path: Path) -> None:
    program = "import windrow as wr\nwr.Query('q', wr.tumbling('1 hour'), 'sum(speed')"
    assert len(seen_of(program, tmp_path)) <= 6
    whole = seen_of(program, tmp_path, WINDROW_TRACEBACK="full")
    assert len(whole) > 20
    assert any("direct cause" in line for line in whole)


class Broken(wr.Monoid):
    state = pl.Float64

    def lift(self, speed: pl.Series) -> float:
        raise ValueError("of the user's own")

    def merge(self, left: pl.Series, right: pl.Series) -> pl.Series:
        return left + right

    def lower(self, state: pl.Series) -> pl.Series:
        return state


def test_an_error_of_the_users_own_code_shows_where_it_was() -> None:
    with pytest.raises(ValueError, match="of the user's own") as caught:
        wr.windows(EVENTS, wr.Query("q", wr.tumbling("1 hour"), Broken.of("speed")))
    assert caught.traceback[-1].path == Path(__file__)
