"""Batch on Spark: the same results as in one process and as Spark's own windows, sliced where the plan says."""

import re
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import windrow as wr
from windrow.core.plan.options import StreamOptions
from windrow.core.stream.job import job_of
from windrow.io.tables import unpack
from windrow.spark.batch import jvm_slicing, positions, quantiles
from windrow.spark.batch import run as batch
from windrow.spark.batch.time_cells import Cells
from windrow.spark.settings import stages
from windrow.spark.types import polars_columns
from windrow.testing.compare import differences

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning"),
]
SIZE = 6000


def some_events(seed: int, size: int = SIZE) -> pl.DataFrame:
    """Events with nulls, NaN, infinities and duplicates, out of order."""
    rng = np.random.default_rng(seed)

    def holes(values: Any, share: float = 0.1) -> pl.Series:
        return pl.Series(values).set(pl.Series(rng.random(size) < share), None)

    x = rng.normal(size=size)
    x[rng.random(size) < 0.001] = np.nan
    x[rng.random(size) < 0.001] = np.inf
    cents = pl.Series(rng.integers(-10_000, 10_000, size)).cast(pl.Decimal(20, 0))
    return pl.DataFrame(
        {
            "ts": pl.Series(rng.integers(0, 60_000_000, size)).cast(pl.Datetime("us", "UTC")),
            "km": rng.integers(-500, 1000, size),
            "k": holes(rng.integers(0, 5, size)),
            "c": holes(rng.integers(0, 3, size)).cast(pl.String),
            "x": holes(x),
            "i": holes(rng.integers(-5, 5, size)),
            "big": rng.integers(-(2**62), 2**62, size) // 2000,
            "s": holes(rng.integers(0, 99, size)).cast(pl.Int32),
            "f": holes(rng.random(size)).cast(pl.Float32),
            "d": holes(cents * pl.Series([Decimal("0.01")], dtype=pl.Decimal(20, 2))),
            "b": rng.random(size) < 0.3,
            "dotted.name": rng.random(size),
        }
    )


@pytest.fixture(scope="module")
def events(seed: int) -> pl.DataFrame:
    return some_events(seed)


@pytest.fixture(scope="module")
def frame(spark: Any, events: pl.DataFrame) -> Any:
    return spark.createDataFrame(events.to_arrow()).repartition(3).cache()


def check(frame: Any, events: pl.DataFrame, *queries: wr.Query, time: str = "ts", **options: Any) -> pl.DataFrame:
    """The results on Spark, once they are known to be those in one process."""
    found = pl.from_arrow(wr.windows(frame, queries, time, **options).toArrow())
    expected = wr.windows(events, queries, time, **options)
    assert found.schema == expected.schema
    assert differences(found.to_dicts(), expected.to_dicts(), queries) == []
    return found


def how(frame: Any, *queries: wr.Query, time: str = "ts") -> str:
    return batch.describe(job_of(queries, StreamOptions(time), polars_columns(frame.schema)))


def physical(df: Any) -> str:
    return df._jdf.queryExecution().executedPlan().toString()


MERGEABLE = (
    *(wr.count(), wr.count("x"), wr.sum("i"), wr.sum("x"), wr.mean("f"), wr.sum("big"), wr.sum("s"), wr.sum("d")),
    *(wr.mean("d"), wr.min("x"), wr.max("x"), wr.max("c"), wr.min("ts"), wr.max("d"), wr.min("b"), wr.product("f")),
    *(wr.geometric_mean("i * i"), wr.geometric_mean("f"), wr.stddev("x"), wr.variance("i"), wr.sum("x * 0.5")),
)


class TestMergeable:
    def test_fixed_windows_and_sessions_of_several_keys_and_filters(self, frame: Any, events: pl.DataFrame) -> None:
        queries = [
            wr.Query("slides", wr.sliding("10 seconds", "3 seconds", "1 second"), MERGEABLE, by="k"),
            wr.Query("all", wr.tumbling("7 seconds"), MERGEABLE),
            wr.Query("text", wr.tumbling("5 seconds"), MERGEABLE, by="c", where="b"),
            wr.Query("grows", wr.cumulating("20 seconds", "5 seconds"), MERGEABLE, by=["c", "k"], where="x > 0.5"),
            wr.Query("samples", wr.sliding("1 second", "3 seconds"), MERGEABLE, by=["k", "c"]),
            wr.Query("bursts", wr.session("100 ms"), MERGEABLE, by=["k", "c"]),
            wr.Query("pauses", wr.session("1 second"), MERGEABLE, by="k", where="i > 2"),
        ]
        assert "Polars kernel" not in how(frame, *queries)
        check(frame, events, *queries)

    def test_a_measure_of_plain_numbers(self, frame: Any, events: pl.DataFrame) -> None:
        queries = [
            wr.Query("km", wr.sliding(100, 30), MERGEABLE[:8], by="k"),
            wr.Query("runs", wr.session(1), MERGEABLE[:8], by=["k", "c"]),
        ]
        check(frame, events, *queries, time="km")

    def test_two_measures(self, frame: Any, events: pl.DataFrame) -> None:
        queries = [
            wr.Query("km", wr.tumbling(100), wr.count(), time="km"),
            wr.Query("ts", wr.tumbling("9 seconds"), wr.count()),
        ]
        check(frame, events, *queries)

    def test_many_grids_become_one(self, frame: Any, events: pl.DataFrame) -> None:
        queries = [wr.Query(f"q{n}", wr.tumbling(f"{n} ms"), [wr.count(), wr.max("i")]) for n in range(51, 91)]
        assert "a grid of 1000 that holds all edges of 40 grids" in how(frame, *queries)
        check(frame, events, *queries)

    def test_grids_without_a_common_one_go_to_the_kernel(self, frame: Any, events: pl.DataFrame) -> None:
        odd = [wr.Query(f"q{n}", wr.tumbling(f"{n * 10_007} us"), wr.count()) for n in range(101, 300, 2)]
        queries = [wr.Query("one", wr.tumbling("10 seconds"), wr.count(), by="k"), *odd[:40]]
        queries += [wr.Query("fine", wr.tumbling("999983 us"), wr.count())]
        assert "too many to compute for every event" in how(frame, *queries)
        check(frame, events, *queries)

    def test_a_column_with_a_dot(self, frame: Any, events: pl.DataFrame) -> None:
        check(frame, events, wr.Query("q", wr.tumbling("9 seconds"), wr.mean("`dotted.name` * 0.5")))

    def test_distinct_values_by_sketch(self, frame: Any, events: pl.DataFrame) -> None:
        asked = [wr.approx_distinct("i"), wr.approx_distinct("c"), wr.approx_distinct("s")]
        queries = [wr.Query("q", wr.tumbling("9 seconds"), asked, by="k")]
        assert "Polars kernel" not in how(frame, *queries)
        check(frame, events, *queries)

    def test_a_sum_beyond_64_bits_is_refused(self, spark: Any) -> None:
        frame = spark.range(4).selectExpr("timestamp_micros(id) AS ts", "9223372036854775807L AS x")
        assert wr.windows(frame, wr.Query("q", wr.tumbling("1 second"), wr.mean("x")), "ts").count() == 1
        with pytest.raises(Exception, match="does not fit into 64 bits"):
            wr.windows(frame, wr.Query("q", wr.tumbling("1 second"), wr.sum("x")), "ts").toArrow()


class TestBadEvents:
    QUERIES = (
        wr.Query("q", wr.tumbling("1 second"), wr.count(), by="k"),
        wr.Query("s", wr.session("1 second"), wr.count()),
    )

    def frame(self, spark: Any) -> Any:
        times = "IF(id % 10 = 3, NULL, timestamp_micros(id * 100000))"
        return spark.range(100).selectExpr(f"{times} AS ts", "id % 2 AS k", "id AS x", "id > 50 AS late")

    def test_events_without_a_time_are_refused(self, spark: Any) -> None:
        for query in self.QUERIES:
            with pytest.raises(Exception, match=r"InputError: \d+ of \d+ events have no time in 'ts'; bad_events"):
                wr.windows(self.frame(spark), query, "ts").toArrow()
        filtered = wr.Query("s", wr.session("1 second"), wr.count(), where="late")
        with pytest.raises(Exception, match=r"InputError: \d+ of \d+ events have no time in 'ts'; bad_events"):
            wr.windows(self.frame(spark).where("x < 50"), filtered, "ts").toArrow()

    def test_or_left_out(self, spark: Any) -> None:
        found = wr.windows(self.frame(spark), self.QUERIES, "ts", bad_events="drop").toArrow()
        counts = pl.DataFrame(found).group_by("query").agg(pl.col("count()").sum())
        assert dict(counts.rows()) == {"q": 90, "s": 90}

    def test_a_number_too_far_out_is_refused(self, spark: Any) -> None:
        frame = spark.range(10).selectExpr("IF(id = 7, 9223372036854775807L, id) AS km")
        for window in (wr.tumbling(5), wr.session(5)):
            with pytest.raises(Exception, match="'km' is 9223372036854775807 in this batch, so far out"):
                wr.windows(frame, wr.Query("q", window, wr.count()), "km").toArrow()


class TestNodes:
    """Windows of several nodes; the column that says which is one of the table."""

    def test_windows_of_each_node_are_those_of_a_key(self, frame: Any, events: pl.DataFrame) -> None:
        nodes = frame.withColumnRenamed("c", "node"), events.rename({"c": "node"})
        queries = [
            wr.Query("count", wr.counting(50, scope="node"), [wr.count(), wr.sum("i")]),
            wr.Query("frame", wr.frames("i > 0", scope="node"), [wr.count(), wr.collect("i")], by="k"),
        ]
        found = check(*nodes, *queries, order_by=("km", "x", "i"))
        assert set(found["node"]) == {"0", "1", "2", None}

    def test_joined_ones_are_refused(self, frame: Any) -> None:
        query = wr.Query("q", wr.counting(5, scope="bounds"), wr.count())
        with pytest.raises(wr.QueryError, match=r"query 'q': counting\(5, scope='bounds'\) is not answered on Spark"):
            wr.windows(frame.withColumnRenamed("c", "node"), query, "ts")


class TestAgainstSpark:
    def test_sliding(self, frame: Any) -> None:
        from pyspark.sql import functions as F

        asked = [wr.count(), wr.mean("s"), wr.max("i")]
        found = wr.windows(frame, wr.Query("q", wr.sliding("10 seconds", "4 seconds"), asked, by="k"), "ts")
        own = frame.groupBy("k", F.window("ts", "10 seconds", "4 seconds")).agg(F.count("*"), F.avg("s"), F.max("i"))
        own = own.select("k", "window.start", "window.end", *own.columns[2:])
        columns = ["k", "window_start", "window_end", "count()", "mean(s)", "max(i)"]
        ours = pl.DataFrame(found.select(*(f"`{name}`" for name in columns)).toArrow())
        theirs = pl.DataFrame(own.toArrow())
        assert ours.sort(pl.all()).rows() == theirs.sort(pl.all()).rows()

    def test_sessions(self, frame: Any) -> None:
        from pyspark.sql import functions as F

        found = wr.windows(frame, wr.Query("q", wr.session("50 ms"), [wr.count(), wr.sum("i")], by="k"), "ts")
        own = frame.groupBy("k", F.session_window("ts", "50 milliseconds")).agg(F.count("*"), F.sum("i"))
        own = own.select("k", "session_window.start", "session_window.end", *own.columns[2:])
        ours = found.select("k", "window_start", "window_end", "`count()`", "`sum(i)`")
        assert pl.DataFrame(ours.toArrow()).sort(pl.all()).rows() == pl.DataFrame(own.toArrow()).sort(pl.all()).rows()


class TestPlans:
    QUERIES = (
        wr.Query("car", wr.sliding("10 seconds", "1 second"), [wr.mean("x"), wr.max("i")], by=["k", "c"]),
        wr.Query("rolled", wr.tumbling("5 seconds"), [wr.mean("x")], by="k"),
        wr.Query("all", wr.session("1 second"), [wr.count()]),
    )

    def test_one_scan_and_no_python_before_the_shuffle(self, spark: Any, events: pl.DataFrame, tmp_path: Any) -> None:
        events.write_parquet(tmp_path / "events.parquet")
        results = wr.windows(spark.read.parquet(str(tmp_path)), self.QUERIES, "ts")
        plan = physical(results)
        assert len(re.findall("FileScan|BatchScan", plan)) == 1
        steps = re.findall(r"MapInArrow|Exchange|HashAggregate|SortAggregate|FileScan", plan)
        assert steps == [
            *("MapInArrow", "Exchange", "MapInArrow"),  # assembled, by bucket of keys, of packed slices
            *("HashAggregate", "Exchange", "HashAggregate", "FileScan"),  # of which the JVM made a slice each
        ], plan
        assert re.search(r"hashpartitioning\(key:.*key:.*slice_start.*cell", plan)

    def test_nothing_runs_before_an_action(self, spark: Any, frame: Any) -> None:
        tracker = spark.sparkContext.statusTracker()
        before = set(tracker.getJobIdsForGroup(None))
        wr.windows(frame, self.QUERIES, "ts")
        assert set(tracker.getJobIdsForGroup(None)) == before

    def test_what_is_said_of_it(self, frame: Any) -> None:
        text = how(frame, *self.QUERIES, wr.Query("list", wr.tumbling("1 second"), wr.collect("x")))
        assert "sliced by Spark's own aggregates" in text
        assert "rolled up from the shuffled slices" in text
        assert "collect(x) keeps every event's value" in text


class TestBags:
    ASKED = (wr.median("x"), wr.quantile("x", 0.9), wr.count(), wr.mean("x"))

    def test_quantiles_of_every_kind_of_number(self, frame: Any, events: pl.DataFrame) -> None:
        asked = [wr.quantile(column, q) for column in ("x", "i", "big", "d", "f") for q in (0.0, 0.3, 1.0)]
        query = wr.Query("q", wr.tumbling("9 seconds"), asked, by="k")
        beside = wr.Query("beside", wr.sliding("9 seconds", "4 seconds"), [wr.median("x"), *MERGEABLE], by=["k", "c"])
        assert "Polars kernel" not in how(frame, query, beside)
        check(frame, events, query, beside)

    def test_quantiles_of_overlapping_windows_and_filters(self, frame: Any, events: pl.DataFrame) -> None:
        check(
            frame,
            events,
            wr.Query("slides", wr.sliding("10 seconds", "1 second"), self.ASKED, by="k"),
            wr.Query("filtered", wr.sliding("10 seconds", "4 seconds"), self.ASKED, by="k", where="b"),
            wr.Query("formula", wr.tumbling("10 seconds"), wr.formula("median(x) - quantile(i, 0.1)"), by="c"),
            wr.Query("sessions", wr.session("60 ms"), self.ASKED, by="k", where="i > 0"),
        )

    def test_no_row_has_all_values_of_a_window_also_beside_what_the_kernel_slices(
        self, frame: Any, events: pl.DataFrame, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        query = wr.Query("q", wr.tumbling("1 day"), [wr.median("x"), wr.last("x"), wr.collect("i")])
        job = job_of([query], StreamOptions("ts"), polars_columns(frame.schema))
        functions: list[Any] = []
        monkeypatch.setattr(batch, "EVENTS_AT_ONCE", 1000)
        monkeypatch.setattr(batch, "mapped", lambda df, function, schema: functions.append(function))
        monkeypatch.setattr(batch, "assembled", lambda rows, job: rows)
        batch.by_kernel(frame, job, False)
        batches = jvm_slicing.prepared(frame, job).toArrow().to_batches(max_chunksize=500)
        rows = [unpack(row) for made in functions[0](iter(batches)) for row in made.column(1).to_pylist()]
        assert len(rows) >= events.height // 1000
        values = [table["bag(x).values"].list.len().max() for _, tables in rows for table in tables.values()]
        assert max(values) <= 1000

    def test_mode_and_distinct(self, frame: Any, events: pl.DataFrame) -> None:
        asked = [wr.mode("i"), wr.distinct("i"), wr.distinct("c"), wr.mode("x"), wr.median("i"), wr.mode("ts")]
        check(
            frame,
            events,
            wr.Query("fixed", wr.sliding("9 seconds", "3 seconds"), asked, by="k"),
            wr.Query("sessions", wr.session("60 ms"), asked, by="c"),
        )

    def test_only_the_ranges_that_matter_are_fetched(self, spark: Any, tmp_path: Any) -> None:
        frame = spark.range(20_000).selectExpr("timestamp_micros(id) AS ts", "rand(7) AS x")
        frame.write.parquet(str(tmp_path / "events"))
        frame = spark.read.parquet(str(tmp_path / "events"))
        results = wr.windows(frame, wr.Query("q", wr.tumbling("1 second"), wr.median("x")), "ts")
        own = frame.selectExpr("median(x)").first()[0]
        (found,) = results.collect()
        assert found["median(x)"] == pytest.approx(own, rel=1e-12)
        assert "BroadcastHashJoin" in physical(results)

    def test_values_lie_in_the_bounds_of_their_range(self, spark: Any, seed: int) -> None:
        rng = np.random.default_rng(seed)
        sizes = 2.0 ** rng.uniform(-1074, 1024, 3000)
        powers = 2.0 ** np.arange(-1074, 1024)
        edges = 2.0 ** (np.arange(-500, 500) / quantiles.PER_OCTAVE)
        some = np.concatenate(
            (sizes, powers, edges, np.nextafter(edges, 0), [0.0, np.inf, 5e-324, 1.7976931348623157e308])
        )
        values = np.concatenate((some, -some, [np.nan]))
        frame = spark.createDataFrame(pa.table({"value": values}))
        found = frame.selectExpr("value", f"{quantiles.range_of('value')} AS range").toArrow()
        value, range_ = (found[name].to_numpy() for name in ("value", "range"))
        assert (np.diff(range_[np.argsort(value)]) >= 0).all(), "a greater value has no lesser range"
        low, high = quantiles.bounds_of(range_)
        is_number = ~np.isnan(value)
        assert ((low <= value) & (value <= high))[is_number].all()
        assert np.isnan(low[~is_number]).all()
        assert np.isnan(high[~is_number]).all()

    def test_quantiles_at_the_ends_of_what_doubles_can_be(self, spark: Any) -> None:
        near = [1.0 + n / 2**40 for n in range(5)]  # in one range
        ends = [*near, *(5e-324 * n for n in range(4)), *(1.7e308 + n * 1e296 for n in range(4)), float("inf")]
        values = [*ends, *(-value for value in ends), float("nan"), float("nan")]
        table = pl.DataFrame({"t": [n // 9 for n in range(len(values))], "x": values})
        asked = [wr.quantile("x", q / 20) for q in range(21)]
        queries = [wr.Query("one", wr.tumbling(100), asked), wr.Query("few", wr.sliding(3, 1), asked)]
        check(spark.createDataFrame(table.to_arrow()), table, *queries, time="t")

    def test_events_are_read_twice_whatever_else_is_asked(self, spark: Any, tmp_path: Any) -> None:
        rows = "timestamp_micros(id * 100) AS ts", "CAST(id % 3 AS STRING) AS k", "rand(7) AS x"
        spark.range(20_000).selectExpr(*rows).write.parquet(str(tmp_path / "events"))
        frame = spark.read.parquet(str(tmp_path / "events"))
        asked = [wr.median("x"), wr.quantile("x", 0.9), wr.mean("x"), wr.count(), wr.stddev("x")]
        before = {stage.stageId() for stage in stages(spark)}
        wr.windows(frame, wr.Query("q", wr.sliding("1 second", "100 ms"), asked, by="k"), "ts").collect()
        new = [stage for stage in stages(spark) if stage.stageId() not in before]
        read = sum(int(stage.inputRecords()) for stage in new)
        assert 20_000 < read <= 40_000, "once for the slices and the ranges, and again for the values in some of them"


_SPREAD = np.random.default_rng(4).integers(0, 200_000_000, 5000) + 1_700_000_000_000_000
_SORTED = np.sort(_SPREAD)
FIRST_SEEN = {  # times, and whether those of a cell differ though it holds many of them
    "the least": (_SORTED.tolist(), False),
    "the greatest": (_SORTED[::-1].tolist(), False),
    "any": (_SPREAD.tolist(), False),
    "one long before all others": ([0, *_SPREAD.tolist()], True),
    "one long after all others": ([2 * 10**17, *_SORTED.tolist()], True),
    "others are far out": ([*_SORTED.tolist(), 0, 2 * 10**17], False),
    "all at one time": ([1_700_000_000_000_000] * 5000, False),
    "all but one at one time": ([0] + [1_700_000_000_000_000] * 5000, False),
    "all within a millisecond": ([1_700_000_000_000_000 + n // 7 for n in range(5000)], True),
}


class TestCountingOverAllEvents:
    ASKED = (wr.count(), wr.sum("i"), wr.mean("x"), wr.min("ts"), wr.max("big"), wr.stddev("f"))

    @pytest.mark.parametrize("partial", [False, True])
    def test_any_length_and_step(self, frame: Any, events: pl.DataFrame, partial: bool) -> None:
        queries = [
            wr.Query("n", wr.counting(1000), self.ASKED),
            wr.Query("overlaps", wr.counting(700, 300), self.ASKED),
            wr.Query("samples", wr.counting(50, 900), self.ASKED),
            wr.Query("few", wr.counting(13), self.ASKED),
            wr.Query("more than all", wr.counting(100_000), self.ASKED),
            wr.Query("filtered", wr.counting(100), self.ASKED, where="i > 0"),
        ]
        text = how(frame, *queries)
        assert "events are put in order only in the cells that hold a cut" in text
        assert "events, by key" not in text
        check(frame, events, *queries, order_by=["k", "c", "x", "i", "big"], partial=partial)

    def test_functions_that_the_jvm_does_not_have(self, frame: Any, events: pl.DataFrame) -> None:
        chosen = (wr.first("i"), wr.last("x"), wr.arg_max("c", "f"), wr.collect("i"), wr.mode("i"))
        queries = [
            wr.Query("ranks", wr.counting(700, 300), [wr.median("x"), wr.quantile("x", 0.9), wr.mean("f")]),
            wr.Query("chosen", wr.counting(90), chosen, where="i > 0", having="count() > 1"),
        ]
        text = how(frame, *queries)
        assert text.count("events are put in order only in the cells that hold a cut; then answered by position") == 2
        assert "  queries chosen\n    how        sliced by the Polars kernel: first(i)" in text
        assert "events, by key" not in text
        check(frame, events, *queries, order_by=["k", "c", "x", "i", "big"], partial=True)

    def test_tied_times_and_plain_numbers(self, frame: Any, events: pl.DataFrame) -> None:
        query = wr.Query("q", wr.counting(90), self.ASKED)
        check(frame, events, query, time="km", order_by=["ts", "k", "c", "x", "i", "big"])

    def test_local_times(self, spark: Any, events: pl.DataFrame) -> None:
        local = events.with_columns(pl.col("ts").dt.replace_time_zone(None))
        frame = spark.createDataFrame(events.to_arrow()).selectExpr("CAST(ts AS TIMESTAMP_NTZ) AS ts", "i")
        check(frame, local, wr.Query("q", wr.counting(500), [wr.count(), wr.sum("i")]), order_by=["i"])

    def test_events_without_a_time(self, spark: Any) -> None:
        frame = spark.range(100).selectExpr("IF(id % 10 = 3, NULL, timestamp_micros(id)) AS ts", "id AS x")
        query = wr.Query("q", wr.counting(30), wr.count())
        with pytest.raises(Exception, match="10 of 100 events have no time in 'ts'"):
            wr.windows(frame, query, "ts").toArrow()
        assert wr.windows(frame, query, "ts", bad_events="drop").count() == 3

    def test_no_event_has_a_time(self, spark: Any) -> None:
        frame = spark.range(7).selectExpr("CAST(NULL AS TIMESTAMP) AS ts", "id AS x")
        query = wr.Query("q", wr.counting(3), wr.count())
        with pytest.raises(Exception, match="7 of 7 events have no time in 'ts'"):
            wr.windows(frame, query, "ts")
        assert wr.windows(frame, query, "ts", bad_events="drop", partial=True).count() == 0

    def test_no_events(self, spark: Any) -> None:
        frame = spark.range(0).selectExpr("timestamp_micros(id) AS ts", "id AS x")
        assert wr.windows(frame, wr.Query("q", wr.counting(30), wr.sum("x")), "ts", partial=True).count() == 0

    @pytest.mark.parametrize("case", FIRST_SEEN)
    def test_whichever_event_is_seen_first(self, spark: Any, monkeypatch: Any, case: str) -> None:
        """Cells are laid around it; and around another one, if many events lie in one cell."""
        monkeypatch.setattr(positions, "CROWD", 1000)
        laid = []
        monkeypatch.setattr(positions, "Cells", lambda *around: laid.append(around) or Cells(*around))
        times, twice = FIRST_SEEN[case]
        events = pl.DataFrame({"km": times, "x": np.random.default_rng(5).integers(0, 9, len(times))})
        events = events.with_columns(ts=pl.from_epoch("km", "us").dt.replace_time_zone("UTC"))
        frame = spark.createDataFrame(events.to_arrow()).coalesce(1)
        queries = [wr.Query(f"q{n}", wr.counting(n), [wr.count(), wr.sum("x")]) for n in (3, 1000)]
        check(frame, events, *queries, order_by=["x"], partial=True)
        assert [around[0] for around in laid][:1] == [times[0]]
        assert len(laid) == (2 if twice else 1)

    def test_plain_numbers_far_apart_and_too_far(self, spark: Any) -> None:
        query = wr.Query("q", wr.counting(2), [wr.count(), wr.sum("x")])
        furthest = 2**62 - 1
        events = pl.DataFrame({"km": [-furthest, furthest, 0, -furthest, 5, furthest, 1 - furthest], "x": range(7)})
        for shown in (events, events[::-1], events[2:]):
            check(
                spark.createDataFrame(shown.to_arrow()).coalesce(1), shown, query, time="km", order_by="x", partial=True
            )
        for far, at, bad in (
            (2**62, 0, "drop"),
            (-(2**62), 3, "drop"),
            (2**63 - 1, 3, "raise"),
            (-(2**63), 0, "raise"),
        ):
            km = events["km"].to_list()
            frame = spark.createDataFrame(pa.table({"km": [*km[:at], far, *km[at:]]})).coalesce(1)
            with pytest.raises(wr.InputError, match=f"'km' is {far} in an event, too far out"):
                wr.windows(frame, wr.Query("q", wr.counting(2), wr.count()), "km", bad_events=bad)

    @pytest.mark.parametrize("unit", [0, 10])
    @pytest.mark.parametrize("origin", [0, -(2**62) + 1, 2**62 - 1, 1_700_000_000_000_000, -7])
    def test_cells_lie_side_by_side(self, spark: Any, seed: int, origin: int, unit: int) -> None:
        rng = np.random.default_rng(seed)
        away = [int(rng.integers(0, 2**bits)) * sign for bits in range(1, 63) for sign in (-1, 1)]
        times = [origin + one for one in away if abs(origin + one) < 2**62]
        cells = Cells(origin, unit)

        def numbers(times: list[int]) -> list[int]:
            frame = spark.createDataFrame(pa.table({"t": times}))
            return [row["cell"] for row in cells.placed(frame, "t", "cell").select("cell").collect()]

        found = numbers(times)
        begins, ends = zip(*(cells.bounds(cell) for cell in found), strict=True)
        assert all(begin <= t < end for begin, t, end in zip(begins, times, ends, strict=True))
        assert numbers([*begins]) == found == numbers([end - 1 for end in ends])
        inside = [(cell, end) for cell, end in zip(found, ends, strict=True) if end < 2**62]
        assert numbers([end for _, end in inside]) == [cell + 1 for cell, _ in inside]

    @pytest.mark.parametrize("bad_events", ["raise", "drop"])
    def test_the_number_of_a_cell_is_computed_once(self, spark: Any, monkeypatch: Any, bad_events: str) -> None:
        """Where cells with a cut are many, they are joined, and an inner join asks for keys that are not null."""
        monkeypatch.setattr(positions, "NAMED_CELLS", 0)
        frame = spark.range(1000).selectExpr("timestamp_millis(id div 7 * 2) AS ts", "id AS x")
        results = wr.windows(frame, wr.Query("q", wr.counting(300), wr.sum("x")), "ts", bad_events=bad_events)
        assert physical(results).count("bit_count") == 1
        assert sorted(row["sum(x)"] for row in results.collect()) == [44850, 134850, 224850]

    def test_only_events_around_the_cuts_are_read_and_shuffled(self, spark: Any, tmp_path: Any) -> None:
        made = spark.range(1000).selectExpr("timestamp_millis(id div 10 * 2) AS ts", "id AS x")
        made.write.parquet(str(tmp_path / "e"))
        events = spark.read.parquet(str(tmp_path / "e"))
        results = wr.windows(events, wr.Query("q", wr.counting(301), wr.sum("x")), "ts")
        plan = physical(results)
        assert "LocalTableScan" in plan  # the slices of all other events are there already
        assert "GreaterThanOrEqual(ts" in plan  # pushed down to the files
        assert "rangepartitioning" not in plan
        assert sorted(row["sum(x)"] for row in results.collect()) == [45150, 135751, 226352]
