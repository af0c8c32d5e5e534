"""Bad input: an error that names the query, the column and the reason, and an engine that is as it was before."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import polars as pl
import pytest

import windrow as wr
from windrow.io.tables import VERSION

EVENTS = pl.DataFrame(
    {"t": [1, 2, 12], "speed": [1.0, None, 3.0], "n": [1, 2, 3], "k": ["a", "b", None], "l": [[1], [2], [3]]}
)
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def query(*aggregates: Any, name: str = "q", window: Any = None, **rest: Any) -> wr.Query:
    return wr.Query(name, window or wr.tumbling(10), aggregates or "count()", **rest)


# --- queries that cannot be written -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: wr.tumbling(0), "tumbling: length must be greater than zero, not 0"),
        (lambda: wr.tumbling("-5 seconds"), "tumbling: length must be greater than zero, not '-5 seconds'"),
        (lambda: wr.sliding(5, -1), "sliding: slide must be greater than zero, not -1"),
        (lambda: wr.session("0 seconds"), "session: gap must be greater than zero, not '0 seconds'"),
        (lambda: wr.cumulating(10, 3), "cumulating: step 3 must divide length 10"),
        (lambda: wr.tumbling("5 parsecs"), "'5 parsecs' is not a duration"),
        (lambda: wr.tumbling(""), "length is empty"),
        (lambda: wr.tumbling("0.1 us"), "not a whole number of microseconds"),
        (lambda: wr.tumbling(2**63), "longer than any time column"),
        (lambda: wr.sliding(10, "5 seconds"), "length, slide must all be durations or all be plain integers"),
        (lambda: wr.quantile("x", 1.5), "quantile: q must be between 0 and 1, not 1.5"),
        (lambda: wr.approx_quantile("x", -1), "approx_quantile: q must be between 0 and 1, not -1"),
        (lambda: query("quantile(x, -0.1)"), "query 'q': quantile: q must be between 0 and 1, not -0.1"),
        (lambda: query("mean(speed +)"), "query 'q': expression 'speed +': it is not a complete SQL expression"),
        (lambda: query(where="speed >"), "query 'q': where: expression 'speed >': it is not a complete SQL"),
        (lambda: query(where="(SELECT 1)"), "query 'q': where: expression '(SELECT 1)': subqueries are not allowed"),
        (lambda: query("meen(speed)"), "query 'q': 'meen(speed)': there is no aggregate 'meen'; did you mean 'mean'?"),
        (lambda: query("speed"), "query 'q': formula 'speed': speed is outside of every aggregate"),
        (lambda: query("sum(n)", "sum(n)"), "query 'q' has two columns called 'sum(n)'; give one an alias"),
        (lambda: query(wr.sum("n").alias("query")), "query 'q': 'query' is a column of every result"),
        (lambda: query(by="window_start"), "query 'q': 'window_start' is a column of every result"),
        (lambda: query(by=("k", "k")), "query 'q': by names a column twice"),
        (lambda: wr.Query("q", wr.tumbling(1), []), "query 'q' has no aggregates"),
        (lambda: wr.Query("q", 10, "count()"), "query 'q': window must be made by tumbling"),  # type: ignore[arg-type]
        (lambda: wr.Query("", wr.tumbling(1), "count()"), "a query needs a name, not ''"),
        (lambda: wr.Engine([query(), query()], "t"), "two queries are called 'q'"),
        (lambda: wr.Engine(query(), "t", bad_events="ignore"), "bad_events must be 'raise' or 'drop'"),  # type: ignore[arg-type]
        (lambda: wr.Engine(query(), "t", lateness=-1), "lateness must not be negative, not -1"),
        (lambda: wr.windows(EVENTS, query(window=wr.tumbling("1 s")), "arrival"), "a whole table has no arrival times"),
    ],
)
def test_what_cannot_be_asked(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_a_length_of_another_kind_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"tumbling: length must be a duration .* not 1\.5"):
        wr.tumbling(1.5)  # type: ignore[arg-type]


# --- queries that do not fit the events -------------------------------------------------------------------------------

MISFITS: list[tuple[wr.Query, str]] = [
    (query("max(k) - min(n)"), "query 'q': expression 'max(k) - min(n)': - needs numbers, not String max(k)"),
    (query("mean(sped)"), "query 'q': mean(sped): there is no column 'sped' in the events; did you mean 'speed'?"),
    (query("sum(n) / sum(m)"), "query 'q'"),
    (query(by="kk"), "query 'q': by: there is no column 'kk' in the events; did you mean 'k'?"),
    (query(where="spede > 1"), "query 'q': where: there is no column 'spede' in the events; did you mean 'speed'?"),
    (query(distinct_on="zz"), "query 'q': distinct_on: there is no column 'zz' in the events; there are t, speed"),
    (query(time="odometer"), "query 'q': time: there is no column 'odometer' in the events"),
    (
        query(time="speed"),
        "query 'q': time: column 'speed' is Float64; a time must be a timestamp, a date or an integer",
    ),
    (query("sum(k)"), "query 'q': sum(k) needs a number, and k is String"),
    (query("stddev(k)"), "query 'q': stddev(k) needs a number, and k is String"),
    (query("median(k)"), "query 'q': median(k) needs a number, and k is String"),
    (query("sum(n > 1)"), "query 'q': sum(n > 1) needs a number, and n > 1 is Boolean"),
    (query("min(l)"), "query 'q': min(l): min needs values with an order, and this is List(Int64)"),
    (query("sum(k + 1)"), "query 'q': sum(k + 1): expression 'k + 1'"),
    (query(by="l"), "query 'q': by: column 'l' is List(Int64), which cannot be a key"),
    (query(where="speed + 1"), "query 'q': where: 'speed + 1' is Float64, not true or false"),
    (query(where="k > 1"), "query 'q': where: expression 'k > 1': > cannot mix Int64 and String"),
    (query(window=wr.tumbling("10 seconds")), "query 'q': tumbling(10 seconds) does not fit 't', which is a number"),
    (query(wr.sum("n").alias("k"), by="k"), "column 'k' is both a key and an aggregate"),
]


@pytest.mark.parametrize(("misfit", "message"), MISFITS, ids=lambda one: one if isinstance(one, str) else "")
def test_a_query_that_does_not_fit_the_events(misfit: wr.Query, message: str) -> None:
    """In a first batch, in a whole table, and added to an engine that runs: which then goes on as before."""
    with pytest.raises(wr.QueryError) as caught:
        wr.Engine(misfit, "t").push(EVENTS)
    assert message in str(caught.value)
    with pytest.raises(wr.QueryError) as caught:
        wr.windows(EVENTS, misfit, "t")
    assert message in str(caught.value)
    engine = wr.Engine(query("sum(n)", name="other", by="k"), "t")
    engine.push(EVENTS)
    before = engine.snapshot()
    with pytest.raises(wr.QueryError) as caught:
        engine.add(misfit)
    assert message in str(caught.value)
    assert engine.snapshot() == before
    assert [one.name for one in engine.queries] == ["other"]


def test_time_and_order_by_must_be_there() -> None:
    with pytest.raises(wr.QueryError, match="query 'q': time: there is no column 'tt' in the events; did you mean 't'"):
        wr.Engine(query(), "tt").push(EVENTS)
    with pytest.raises(wr.QueryError, match="order_by: there is no column 'nope' in the events"):
        wr.Engine(query("first(n)"), "t", order_by="nope").push(EVENTS)


def test_windows_lateness_and_measure_must_be_of_one_kind() -> None:
    stamps = pl.DataFrame({"t": [datetime(2024, 1, 1)]})
    with pytest.raises(wr.QueryError, match=r"query 'q': tumbling\(10\) does not fit 't', which is a timestamp"):
        wr.Engine(query(), "t").push(stamps)
    with pytest.raises(wr.QueryError, match="lateness and updates do not fit 't', which is a number"):
        wr.Engine(query(), "t", lateness="5 seconds").push(EVENTS)


def test_one_column_name_has_one_type() -> None:
    both = [query(wr.sum("n").alias("v"), name="a"), query(wr.mean("n").alias("v"), name="b")]
    with pytest.raises(wr.QueryError, match="query 'b': column 'v' would be Float64 here and Int64 in another query"):
        wr.Engine(both, "t").push(EVENTS)


# --- batches and calls that a running engine refuses ------------------------------------------------------------------


def running(**options: Any) -> wr.Engine:
    engine = wr.Engine(query("mean(speed)", "first(k)", by="k"), "t", lateness=5, **options)
    engine.push(EVENTS)
    return engine


REFUSED: dict[str, tuple[Callable[[wr.Engine], Any], type[Exception], str]] = {
    "changed type": (
        lambda engine: engine.push(EVENTS.with_columns(pl.col("speed").cast(pl.String))),
        wr.InputError,
        "column 'speed' is String in this batch, and was Float64 before",
    ),
    "missing column": (lambda engine: engine.push(EVENTS.drop("speed")), wr.InputError, "column 'speed' is missing"),
    "null time": (
        lambda engine: engine.push(EVENTS.with_columns(t=pl.Series([20, None, None], dtype=pl.Int64))),
        wr.InputError,
        "2 of 3 events have no time in 't'; bad_events='drop' leaves them out",
    ),
    "greatest int64": (
        lambda engine: engine.push(EVENTS.with_columns(t=pl.Series([20, 21, INT64_MAX]))),
        wr.InputError,
        f"query 'q': 't' is {INT64_MAX} in this batch, so far out that tumbling(10) around it cannot be written",
    ),
    "least int64": (
        lambda engine: engine.push(EVENTS.with_columns(t=pl.Series([20, 21, INT64_MIN]))),
        wr.InputError,
        f"query 'q': 't' is {INT64_MIN} in this batch",
    ),
    "a list": (
        lambda engine: engine.push([1, 2]),
        TypeError,
        "expected an Arrow table, a Polars frame, a pandas frame or a list of dicts",
    ),
    "a dict": (lambda engine: engine.push({"t": [1]}), TypeError, "expected an Arrow table"),
    "nothing": (lambda engine: engine.push(None), TypeError, "expected an Arrow table"),
    "a name twice": (lambda engine: engine.add(query("count()")), wr.QueryError, "two queries are called 'q'"),
    "unknown name": (lambda engine: engine.remove("zz"), wr.QueryError, "there is no query called 'zz'"),
    "unknown when": (lambda engine: engine.remove("q", "later"), ValueError, "when must be 'now' or 'windows_closed'"),
    "not a time": (lambda engine: engine.advance("noon"), TypeError, "a time is an integer or a datetime, not 'noon'"),
    "unknown time column": (
        lambda engine: engine.advance(5, "zz"),
        ValueError,
        "there is no time column 'zz'; there are 't'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_changes_nothing(case: str) -> None:
    call, error, message = REFUSED[case]
    engine, other = running(), running()
    before = engine.snapshot()
    with pytest.raises(error) as caught:
        call(engine)
    assert message in str(caught.value)
    assert engine.snapshot() == before
    assert engine.metrics == other.metrics
    assert engine.push(EVENTS.with_columns(pl.col("t") + 20)).equals(other.push(EVENTS.with_columns(pl.col("t") + 20)))
    assert engine.finish().equals(other.finish())


def test_a_refused_first_batch_leaves_nothing_behind() -> None:
    engine = wr.Engine(query("mean(speed)"), "t")
    for bad in (EVENTS.drop("speed"), EVENTS.with_columns(t=pl.Series([None] * 3, dtype=pl.Int64))):
        with pytest.raises((wr.InputError, wr.QueryError)):
            engine.push(bad)
    engine.push(EVENTS.with_columns(pl.col("speed").cast(pl.Float32)))  # the first batch that is taken says the types
    assert engine.metrics.events == 3
    assert engine.finish()["mean(speed)"].to_list() == [3.0]


def test_events_without_a_time_can_be_counted_and_left_out() -> None:
    engine = running(bad_events="drop")
    engine.push(EVENTS.with_columns(t=pl.Series([20, None, None], dtype=pl.Int64)))
    assert (engine.metrics.events, engine.metrics.bad) == (4, 2)
    engine.push(EVENTS.with_columns(t=pl.Series([None] * 3, dtype=pl.Int64)))
    assert (engine.metrics.events, engine.metrics.bad) == (4, 5)
    table = wr.windows(EVENTS.with_columns(t=pl.Series([1, None, 2])), query(), "t", bad_events="drop")
    assert table["count()"].to_list() == [2]
    with pytest.raises(wr.InputError, match="1 of 3 events have no time in 't'"):
        wr.windows(EVENTS.with_columns(t=pl.Series([1, None, 2])), query(), "t")


def test_a_time_beyond_int64_is_refused() -> None:
    with pytest.raises(wr.InputError, match="18446744073709551615"):
        wr.Engine(query(), "t").push(pl.DataFrame({"t": [2**64 - 1]}, schema={"t": pl.UInt64}))


def test_a_finished_engine_takes_nothing_more() -> None:
    engine = running()
    engine.finish()
    calls: list[Callable[[], Any]] = [
        lambda: engine.push(EVENTS),
        lambda: engine.advance(5),
        engine.finish,
        lambda: engine.add(query(name="r")),
        lambda: engine.remove("q"),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="this engine is finished; make a new one"):
            call()


def test_queries_are_queries() -> None:
    with pytest.raises(wr.QueryError, match="expected a Query or SQL text, not count"):
        wr.Engine([wr.count()], "t")  # type: ignore[list-item]
    with pytest.raises(wr.SqlError, match="a statement begins with SELECT, not with count"):
        wr.Engine(["count()"], "t")


# --- snapshots --------------------------------------------------------------------------------------------------------


def _with_another_watermark(data: bytes) -> bytes:
    at = data.index(b'"watermark": ') + len(b'"watermark": ')
    return data[:at] + (b"8" if data[at : at + 1] != b"8" else b"9") + data[at + 1 :]


def _damaged(data: bytes) -> bytes:
    head = data.index(b"\n") + 1
    return data[:head] + bytes(len(data) - head)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda data: data.replace(b"windrow" + bytes([VERSION]), b"windrow\x63", 1),
            f"has version 99; this windrow reads version {VERSION}",
        ),
        (lambda data: data[:-10], "is cut short"),
        (lambda data: data[:50], "is cut short: 34 of the"),
        (lambda data: b"", "not a snapshot of windrow"),
        (lambda data: b"hello\nworld", "not a snapshot of windrow"),
        (lambda data: b"[1]\n", "not a snapshot of windrow"),
        (lambda data: b'{"windrow": 2}\n', "not a snapshot of windrow, or of an older version"),
        (_with_another_watermark, "the checksum of its header"),
        (_damaged, "snapshot"),
    ],
    ids=[
        "another version",
        "cut short",
        "cut in the header",
        "nothing",
        "garbage",
        "other JSON",
        "an older version",
        "another watermark",
        "damaged",
    ],
)
def test_snapshots_that_cannot_be_read(spoil: Callable[[bytes], bytes], message: str) -> None:
    data = running().snapshot()
    wr.Engine.restore(data)
    with pytest.raises(ValueError, match=message):
        wr.Engine.restore(spoil(data))
