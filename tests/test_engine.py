"""The engine at its borders: tables, times and values of every type, what it says of itself, how much it takes."""

from __future__ import annotations

import time as clocks
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

import windrow as wr

NOON = datetime(2024, 3, 31, 12, 0, tzinfo=UTC)
INT64_MAX = 2**63 - 1


def rides(hours: int = 3) -> pl.DataFrame:
    at = [NOON + timedelta(minutes=20 * n) for n in range(3 * hours)]
    return pl.DataFrame({"at": at, "car": ["a", "b", None] * hours, "km": [float(n) for n in range(3 * hours)]})


HOURLY = wr.Query("hourly", wr.tumbling("1 hour"), ["count()", "sum(km)"], by="car")


# --- tables in and out ------------------------------------------------------------------------------------------------


def test_a_whole_table_comes_back_as_what_it_was() -> None:
    frame = rides()
    found = wr.windows(frame, HOURLY, "at")
    assert isinstance(found, pl.DataFrame)
    arrow = wr.windows(frame.to_arrow(), HOURLY, "at")
    assert isinstance(arrow, pa.Table)
    assert pl.DataFrame(arrow).equals(found)
    pandas = wr.windows(frame.to_pandas(), HOURLY, "at")
    assert isinstance(pandas, pd.DataFrame)
    assert pandas["sum(km)"].tolist() == found["sum(km)"].to_list()
    assert isinstance(wr.windows(frame.lazy(), HOURLY, "at"), pl.LazyFrame | pl.DataFrame)


def test_batches_may_be_of_any_kind_with_columns_in_any_order_and_more_of_them() -> None:
    frame = rides()
    want = wr.windows(frame, HOURLY, "at")
    engine = wr.Engine(HOURLY, "at")
    found = [
        engine.push(frame[:2]),
        engine.push(frame[2:4].select("km", "car", "at").to_arrow()),
        engine.push(frame[4:5].with_columns(extra=pl.lit([1])).to_arrow().to_batches()[0]),
        engine.push(frame[5:7].with_columns(colour=pl.lit("red")).lazy()),
        engine.push(frame[7:].to_arrow().to_reader()),
        engine.finish(),
    ]
    assert pl.concat(found).equals(want)


def test_pandas_batches_without_nulls() -> None:
    frame = rides().drop_nulls()
    engine = wr.Engine(HOURLY, "at")
    found = [engine.push(frame[:3].to_pandas()), engine.push(frame[3:].to_pandas()), engine.finish()]
    want = wr.windows(frame, HOURLY, "at")
    assert [part.height for part in found]
    assert pl.concat(found)["sum(km)"].to_list() == want["sum(km)"].to_list()
    assert pl.concat(found)["window_end"].dt.epoch("us").to_list() == want["window_end"].dt.epoch("us").to_list()


def test_an_empty_table_still_has_columns_and_types() -> None:
    frame = rides()
    empty = wr.windows(frame.clear(), HOURLY, "at")
    assert empty.schema == wr.windows(frame, HOURLY, "at").schema
    assert empty.height == 0
    engine = wr.Engine(HOURLY, "at")
    assert engine.push(frame.clear()).height == 0
    assert engine.finish().height == 0


def test_a_column_of_nulls_takes_the_type_that_it_had() -> None:
    engine = wr.Engine(HOURLY, "at")
    engine.push(rides())
    engine.push(rides()[-1:].select(pl.col("at") + timedelta(hours=1), car=pl.lit(None), km=pl.lit(None)))
    assert engine.finish().rows()[-1][1:] == (None, NOON + timedelta(hours=3), NOON + timedelta(hours=4), 0, 1, None)


def test_results_of_one_query_have_its_own_columns() -> None:
    queries = [HOURLY, wr.Query("all", wr.tumbling("2 hours"), wr.max("km").alias("longest"))]
    found = wr.windows(rides(), queries, "at")
    assert wr.results_of(found, "all").columns == ["query", "window_start", "window_end", "revision", "longest"]
    hourly = wr.results_of(found, HOURLY)
    assert hourly.columns == ["query", "car", "window_start", "window_end", "revision", "count()", "sum(km)"]
    assert hourly.height == 9
    assert isinstance(wr.results_of(found.to_arrow(), HOURLY), pa.Table)
    with pytest.raises(KeyError, match="nobody"):
        wr.results_of(found, "nobody")


# --- times ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin", "Asia/Kathmandu"])
def test_times_of_any_unit_and_zone(unit: Any, zone: str | None) -> None:
    """Windows are aligned in UTC whatever the zone; bounds come back in it."""
    frame = rides().with_columns(pl.col("at").cast(pl.Datetime(unit, "UTC")))
    column = pl.col("at").dt.convert_time_zone(zone) if zone else pl.col("at").dt.replace_time_zone(None)
    found = wr.windows(frame.with_columns(column), wr.Query("q", wr.tumbling("1 hour"), "count()"), "at")
    assert found.schema["window_start"] == pl.Datetime("us", zone)
    starts = [NOON + timedelta(hours=n) for n in range(3)]
    shown = [start.astimezone(ZoneInfo(zone)) if zone else start.replace(tzinfo=None) for start in starts]
    assert found["window_start"].to_list() == shown
    assert found["count()"].to_list() == [3, 3, 3]


def test_nanoseconds_before_1970_are_rounded_down() -> None:
    frame = pl.DataFrame({"at": pl.Series([-1, 0, 999, 1000]).cast(pl.Datetime("ns"))})
    found = wr.windows(frame, wr.Query("q", wr.tumbling("1 us"), "count()"), "at")
    assert found["window_start"].dt.epoch("us").to_list() == [-1, 0, 1]
    assert found["count()"].to_list() == [1, 2, 1]


def test_dates_are_times() -> None:
    frame = pl.DataFrame({"day": [date(2024, 1, 1), date(2024, 1, 2), date(2024, 1, 9)]})
    found = wr.windows(frame, wr.Query("weekly", wr.tumbling("1 week", offset="4 days"), "count()"), "day")
    assert found["window_start"].to_list() == [datetime(2024, 1, 1), datetime(2024, 1, 8)]


def test_watermarks_may_be_given_in_any_zone() -> None:
    engine = wr.Engine(wr.Query("q", wr.tumbling("1 hour"), "count()"), "at", lateness=None)
    engine.push(rides())
    assert engine.watermark is None
    found = engine.advance((NOON + timedelta(hours=1)).astimezone(timezone(timedelta(hours=5))))
    assert found["window_start"].to_list() == [NOON]
    assert engine.watermark == NOON + timedelta(hours=1)
    assert engine.advance(NOON).height == 0  # it never moves back
    assert engine.watermark == NOON + timedelta(hours=1)


def test_arrival_is_the_clock_s_time() -> None:
    now = [1_000_000]
    engine = wr.Engine(wr.Query("q", wr.tumbling("1 second"), "sum(x)"), "arrival", clock=lambda: now[0])
    engine.push(pl.DataFrame({"x": [1, 2]}))
    now[0] = 1_999_999
    engine.push(pl.DataFrame({"x": [3]}))
    engine = wr.Engine.restore(engine.snapshot(), clock=lambda: now[0])
    now[0] = 2_000_000
    found = engine.push(pl.DataFrame({"x": [4]}))
    assert found.select("window_start", "sum(x)").rows() == [(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 6)]


def test_several_measures_have_a_watermark_each() -> None:
    queries = [
        wr.Query("time", wr.tumbling("1 hour"), "count()"),
        wr.Query("way", wr.tumbling(4), "count()", time="km"),
    ]
    frame = rides().with_columns(pl.col("km").cast(pl.Int64))
    engine = wr.Engine(queries, "at", lateness={"at": "30 minutes", "km": 2})
    found = engine.push(frame)
    assert found["query"].to_list() == ["way", "time", "time"]
    assert engine.metrics.watermarks == {"at": NOON + timedelta(hours=2, minutes=10), "km": 6}


def test_columns_stand_in_the_order_of_the_queries() -> None:
    asked = ["max(x)", "count()", "mean(x)", "min(x)", "stddev(x)", "sum(x)"]
    queries = [wr.Query(text, wr.tumbling(10), text) for text in asked]
    engine = wr.Engine(queries, "t")
    engine.push(pl.DataFrame({"t": [0, 1], "x": [1, 2]}))
    assert engine.finish().columns == ["query", "window_start", "window_end", "revision", *asked]


# --- sums and decimals ------------------------------------------------------------------------------------------------

LARGE = pl.DataFrame({"t": [0, 1, 2], "x": [INT64_MAX, INT64_MAX, INT64_MAX], "k": ["a", "a", "b"]})


def test_a_sum_beyond_int64_is_null_and_counted_in_a_stream() -> None:
    query = wr.Query("q", wr.tumbling(10), ["sum(x)", "mean(x)"], by="k")
    engine = wr.Engine(query, "t")
    engine.push(LARGE)
    found = engine.finish()
    assert found["sum(x)"].to_list() == [None, INT64_MAX]
    assert found["mean(x)"].to_list() == [float(INT64_MAX)] * 2
    assert engine.metrics.overflows == 1


def test_a_sum_beyond_int64_raises_in_a_whole_table() -> None:
    with pytest.raises(OverflowError, match=r"sum\(x\) does not fit into 64 bits in 1 window"):
        wr.windows(LARGE, wr.Query("q", wr.tumbling(10), "sum(x)", by="k"), "t")
    found = wr.windows(LARGE, wr.Query("q", wr.tumbling(10), "mean(x)", by="k"), "t")
    assert found["mean(x)"].to_list() == [float(INT64_MAX)] * 2


def test_a_sum_inside_a_formula_is_checked_too() -> None:
    query = wr.Query("q", wr.tumbling(10), wr.formula("sum(x) / count()").alias("per event"), by="k")
    engine = wr.Engine(query, "t")
    engine.push(LARGE)
    assert engine.finish()["per event"].to_list() == [None, float(INT64_MAX)]
    assert engine.metrics.overflows == 1
    with pytest.raises(OverflowError, match="per event"):
        wr.windows(LARGE, query, "t")


def test_sums_are_exact_in_128_bits_on_the_way() -> None:
    frame = pl.DataFrame({"t": [0, 1, 2, 3], "x": [INT64_MAX, INT64_MAX, -INT64_MAX, -INT64_MAX + 7]})
    engine = wr.Engine(wr.Query("q", wr.sliding(4, 1), ["sum(x)", "mean(x)"]), "t")
    parts = [engine.push(frame[n : n + 1]) for n in range(4)] + [engine.finish()]
    found = pl.concat(parts)
    whole = found.filter(pl.col("window_start") == 0)
    assert whole["sum(x)"].to_list() == [7]
    assert whole["mean(x)"].to_list() == [1.75]
    assert found.filter(pl.col("window_start") == -2)["sum(x)"].to_list() == [None]
    unsigned = pl.DataFrame({"t": [0, 1], "x": [2**64 - 1, 1]}, schema={"t": pl.Int64, "x": pl.UInt64})
    assert wr.windows(unsigned, wr.Query("q", wr.tumbling(5), ["mean(x)", "max(x)"]), "t").row(0)[-2:] == (
        2.0**63,
        2**64 - 1,
    )


def test_decimals_are_summed_exactly() -> None:
    prices = [Decimal("0.10")] * 30 + [Decimal("99999999999999.99")]
    frame = pl.DataFrame({"t": list(range(31)), "x": prices}, schema={"t": pl.Int64, "x": pl.Decimal(16, 2)})
    found = wr.windows(frame, wr.Query("q", wr.tumbling(100), ["sum(x)", "max(x)", "mean(x)"]), "t")
    assert found["sum(x)"].to_list() == [Decimal("100000000000002.99")]
    assert found["max(x)"].to_list() == [Decimal("99999999999999.99")]
    assert found["mean(x)"][0] == pytest.approx(100000000000002.99 / 31)


# --- what it says of itself -------------------------------------------------------------------------------------------


def test_metrics_and_late_events() -> None:
    engine = wr.Engine(wr.Query("q", wr.tumbling(10), "count()", by="k", where="x > 0"), "t", lateness=5)
    engine.push(pl.DataFrame({"t": [1, 21, 16], "k": ["a", "a", "b"], "x": [1, 1, 1]}))
    engine.push(pl.DataFrame({"x": [1, 1, 0], "k": ["c", "c", "c"], "t": [9, 17, 3]}))
    metrics = engine.metrics
    assert (metrics.events, metrics.late, metrics.dropped, metrics.bad, metrics.results) == (6, 2, 1, 0, 1)
    assert metrics.slices == 3
    assert metrics.state_bytes > 0
    assert metrics.watermarks == {"t": 16}
    assert engine.late_events().rows() == [(1, "c", 9)]  # as they came: what `where` leaves out was not missed
    assert engine.late_events().height == 0
    assert engine.finish().select("window_start", "k", "count()").rows() == [(10, "b", 1), (10, "c", 1), (20, "a", 1)]
    assert engine.metrics.slices == 0


def test_late_events_are_kept_up_to_a_limit() -> None:
    engine = wr.Engine(wr.Query("q", wr.tumbling(10), "count()"), "t", keep_late=2)
    engine.push(pl.DataFrame({"t": [100]}))
    engine.push(pl.DataFrame({"t": [1, 2, 3]}))
    assert engine.metrics.dropped == 3
    assert engine.late_events()["t"].to_list() == [1, 2]


def test_explain_says_what_is_shared() -> None:
    queries = [
        wr.Query("fine", wr.tumbling(10), ["mean(x)", "sum(x)", "count(x)"], by=("car", "city")),
        wr.Query("coarse", wr.sliding(30, 10), "sum(x)", by="city", where="x > 0"),
        wr.Query("visits", wr.session(5), "count()", by="city"),
    ]
    engine = wr.Engine(queries, "t")
    text, described = engine.explain(), engine.plan.to_dict()
    assert text == wr.plan(queries, "t").explain()
    assert text.startswith("3 queries in 2 slice groups")
    assert "rolled up from the slices by (car, city)" in text
    assert "sessions from runs connected under 5" in text
    fine, coarse = described["groups"]
    assert (fine["keys"], coarse["keys"]) == (["car", "city"], ["city"])
    assert coarse["windows"] == 2
    assert {"sum(x)", "count(x)", "count()"} <= set(fine["operators"])
    assert (
        len([one for one in fine["operators"] if one.startswith("sum(x)")]) <= 2
    )  # shared by mean and sum; one filtered
    assert [one.name for one in engine.queries] == ["fine", "coarse", "visits"]


def test_a_thousand_quantiles_keep_one_state() -> None:
    queries = [wr.Query(f"p{n}", wr.tumbling(10), wr.quantile("x", n / 1000)) for n in range(1000)]
    (group,) = wr.plan(queries, "t").to_dict()["groups"]
    assert len(group["operators"]) == 2  # the values, and the number of events


# --- how much it takes ------------------------------------------------------------------------------------------------


def test_state_stays_bounded_on_a_long_stream() -> None:
    queries = [
        wr.Query("fixed", wr.sliding(50, 7), ["count()", "mean(x)"], by="k"),
        wr.Query("visits", wr.session(3), "count()", by="k"),
        wr.Query("often", wr.cumulating(20, 5), "max(x)"),
    ]
    engine = wr.Engine(queries, "t", lateness=10, updates=10)
    live, size = [], []
    for n in range(60):
        t = np.arange(n * 40, n * 40 + 30)  # then a pause, in which sessions close
        engine.push(pl.DataFrame({"t": np.append(t, t[:1] - 25), "k": ["a", "b"] * 15 + ["a"], "x": np.ones(31)}))
        live.append(engine.metrics.slices)
        size.append(len(engine.snapshot()))
    assert max(live[10:]) <= 1.2 * max(live[:10])
    assert max(size[10:]) <= 1.2 * max(size[:10])
    assert max(live) < 300


def test_ten_thousand_queries_are_planned_in_well_under_two_seconds() -> None:
    aggregates = [wr.count(), wr.mean("x"), wr.quantile("x", 0.9)]
    queries = [
        wr.Query(f"q{n}", wr.sliding(n % 997 + 1, n % 89 + 1), aggregates[: n % 3 + 1], by="k") for n in range(10_000)
    ]
    began = clocks.process_time()
    planned = wr.plan(queries, "t")
    assert clocks.process_time() - began < 1
    assert len(planned.groups) == 1


def test_two_hundred_thousand_queries_over_ten_thousand_windows() -> None:
    windows = [wr.tumbling(1000 + n) for n in range(10_000)]
    aggregates = (wr.count(), wr.sum("x"))
    engine = wr.Engine((wr.Query(f"q{n}", windows[n % 10_000], aggregates) for n in range(200_000)), "t")
    engine.push(pl.DataFrame({"t": np.arange(1000), "x": np.ones(1000, np.int64)}))
    found = engine.advance(1099)  # windows of 1000 to 1099, for twenty queries each
    assert found.height == 100 * 20
    assert found["count()"].unique().to_list() == [1000]
    assert found["window_end"].value_counts()["count"].unique().to_list() == [20]
    (group,) = engine.plan.to_dict()["groups"]
    assert (group["queries"], group["windows"], len(group["operators"])) == (200_000, 10_000, 2)


def test_queries_about_the_same_windows_are_answered_as_each_is_alone() -> None:
    dice = np.random.default_rng(3)
    size = 400
    events = pl.DataFrame(
        {
            "at": np.sort(dice.integers(0, 100, size)),
            "car": dice.choice(["a", "b", "c"], size),
            "x": dice.integers(-50, 50, size),
            "large": np.where(dice.random(size) < 0.05, 2**62, 1),
        }
    )
    asked: list[list[str | wr.Aggregate]] = [
        [wr.quantile("x", 0.1).alias("p")],
        [wr.quantile("x", 0.7).alias("p"), "count()"],
        ["median(x)", "mean(x)", "count()"],
        [wr.sum("large").alias("total"), "max(car)"],
        [wr.sum("x").alias("total"), "distinct(car)"],
        ["collect(x)", "m4(x)"],
    ]
    queries = [wr.Query(f"q{at}", wr.sliding(20, 10), several, by="car") for at, several in enumerate(asked)]
    queries += [wr.Query("more", wr.tumbling(10), [wr.quantile("x", 0.1).alias("p"), "mean(x)"], by="car")]
    queries += [wr.Query("some", wr.sliding(20, 10), ["mean(x)", "max(car)"], by="car", where="x > 40")]
    queries += [wr.Query("most", wr.sliding(20, 10), ["mean(x)"], by="car", having="count() > 25")]
    queries += [wr.Query("all", wr.sliding(20, 10), ["mean(x)", wr.max("x").alias("total")])]

    def answered(several: list[wr.Query]) -> tuple[pl.DataFrame, int]:
        engine = wr.Engine(several, "at", lateness=5)
        found = [engine.push(events[begin : begin + 90]) for begin in range(0, size, 90)]
        return pl.concat([*found, engine.finish()]), engine.metrics.overflows

    together, lost = answered(queries)
    alone = {query.name: answered([query]) for query in queries}
    for query in queries:
        expected = wr.results_of(alone[query.name][0], query)
        assert expected.height
        assert_frame_equal(wr.results_of(together, query), expected)
    assert lost == sum(overflows for _, overflows in alone.values()) > 0
