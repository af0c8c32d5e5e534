"""What is refused on Spark: when `windows` is called wherever that can be, and in Spark's own words."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import windrow as wr
from windrow.cli import failures
from windrow.core.expressions.errors import QueryError
from windrow.core.plan.options import StreamOptions
from windrow.core.stream.job import job_of

pytest.importorskip("pyspark")

from pyspark import cloudpickle

from spark_cases import results
from windrow.spark import Generator, nodes
from windrow.spark.source import reader as source
from windrow.spark.source.options import options_of
from windrow.spark.stream import query as streaming
from windrow.spark.types import polars_columns

pytestmark = pytest.mark.spark

COLUMNS = """
    timestamp'2024-01-01 00:00:00' AS ts, CAST(null AS TIMESTAMP) AS never, 'a' AS name, 1L AS n,
    CAST(1 AS TINYINT) AS tiny, 1.5BD AS d, map(1, 2) AS m,
    array(1, 2) AS a, named_struct('b', 1) AS st, interval '1' day AS iv
"""


def asking(aggregate: str = "count()", window: Any = None, **options: Any) -> wr.Query:
    return wr.Query("q", window or wr.tumbling("10 seconds"), aggregate, **options)


@pytest.fixture(scope="module")
def one_row(spark: Any) -> Any:
    return spark.sql(f"SELECT {COLUMNS}")


@pytest.fixture(scope="module")
def endless(spark: Any) -> Any:
    return spark.readStream.format("rate").load()


@pytest.mark.parametrize(
    ("query", "time", "reason"),
    [
        (asking("sum(nn)"), "ts", r"sum\(nn\): there is no column 'nn' in the events; did you mean 'n'"),
        (asking(), "tss", "time: there is no column 'tss'"),
        (asking(by="nam"), "ts", "by: there is no column 'nam'"),
        (asking(where="nam = 'a'"), "ts", "where: there is no column 'nam'"),
        (asking("sum(name)"), "ts", r"sum\(name\) needs a number, and name is STRING"),
        (asking("sum(name + 1)"), "ts", r"\+ needs numbers, not STRING `name`"),
        (asking(where="n"), "ts", "where: 'n' is BIGINT, not true or false"),
        (asking(where="tiny"), "ts", "where: 'tiny' is TINYINT, not true or false"),
        (asking("max(m)"), "ts", "column 'm' is MAP<INT,INT>, which no window query can read"),
        (asking("max(iv)"), "ts", "column 'iv' is INTERVAL DAY, which no window query can read"),
        (asking(by="a"), "ts", "by: column 'a' is ARRAY<INT>, which cannot be a key"),
        (asking("sum(st)"), "ts", r"sum\(st\) needs a number, and st is STRUCT<B:INT>"),
        (asking(), "name", "column 'name' is STRING; a time must be a timestamp, a date or an integer"),
        (asking(), "d", r"column 'd' is DECIMAL\(2, 1\); a time must be"),
        (asking(), "n", r"tumbling\(10 seconds\) does not fit 'n', which is a number"),
        (asking(window=wr.tumbling(10)), "ts", r"tumbling\(10\) does not fit 'ts', which is a timestamp"),
        (asking(), "arrival", "a whole table has no arrival times"),
        ([asking(), asking()], "ts", "two queries are called 'q'"),
    ],
)
def test_refused_when_called(one_row: Any, query: Any, time: str, reason: str) -> None:
    with pytest.raises(QueryError, match=reason) as caught:
        wr.windows(one_row, query, time)
    assert not any(name in str(caught.value) for name in ("Int64", "String", "List(", "Struct("))


def test_options_that_a_whole_table_does_not_have(one_row: Any) -> None:
    with pytest.raises(ValueError, match="updates is for a streaming DataFrame"):
        wr.windows(one_row, asking(), "ts", updates="1 minute")


@pytest.mark.parametrize(
    ("window", "by"),
    [(wr.tumbling("10 seconds"), ()), (wr.counting(1), ()), (wr.counting(1), "name"), (wr.session("1 second"), "name")],
)
def test_null_times_are_refused_when_they_are_met_or_left_out(one_row: Any, window: Any, by: Any) -> None:
    query = asking(window=window, by=by)
    reason = "1 of 1 events have no time in 'never'; bad_events='drop' leaves them out"
    with pytest.raises(Exception, match=reason):
        wr.windows(one_row, query, "never").collect()
    both = one_row.union(one_row.withColumn("never", one_row["ts"])).coalesce(1)
    with pytest.raises(Exception, match=reason.replace("of 1", "of 2")):
        wr.windows(both, query, "never").collect()
    assert len(results(wr.windows(both, query, "never", bad_events="drop"))) == 1


def test_no_queries_are_refused_and_no_events_are_no_error(one_row: Any) -> None:
    with pytest.raises(QueryError, match="there are no queries"):
        wr.windows(one_row, [], "ts")
    nothing = wr.windows(one_row.where("1 = 0"), [asking(), wr.Query("o", wr.counting(2), "collect(n)")], "ts")
    assert nothing.columns == ["query", "window_start", "window_end", "position", "revision", "count()", "collect(n)"]
    assert results(nothing) == []


# --- streams ----------------------------------------------------------------------------------------------------------


def test_what_a_stream_cannot_do_is_refused_when_called(endless: Any) -> None:
    with pytest.raises(QueryError, match=r"distinct_on .* use df.dropDuplicatesWithinWatermark"):
        wr.windows(endless, asking(distinct_on="value"), "timestamp")
    with pytest.raises(QueryError, match="query 'r': Spark has one watermark for a query"):
        wr.windows(endless, [asking(), wr.Query("r", wr.tumbling(3), "count()", time="value")], "timestamp")
    with pytest.raises(ValueError, match="partial is for a whole DataFrame"):
        wr.windows(endless, asking(), "timestamp", partial=True)
    with pytest.raises(QueryError, match="lateness and updates do not fit 'timestamp'"):
        wr.windows(endless, asking(), "timestamp", lateness=5)
    with pytest.raises(QueryError, match=r"sum\(valu\): there is no column 'valu'"):
        wr.windows(endless, asking("sum(valu)"), "timestamp")


def test_a_watermark_of_the_user_is_used_or_refused(endless: Any) -> None:
    marked = endless.withWatermark("timestamp", "1 second")
    assert wr.windows(marked, asking(), "timestamp").isStreaming
    with pytest.raises(QueryError, match="already has a watermark of 1000 ms on 'timestamp', and lateness is 3000 ms"):
        wr.windows(marked, asking(), "timestamp", lateness="3 seconds")
    other = endless.selectExpr("*", "timestamp AS o").withWatermark("o", "1 second")
    with pytest.raises(QueryError, match="already has a watermark on 'o', and Spark allows no second one"):
        wr.windows(other, asking(), "timestamp")


def test_ties_tell_apart_where_nulls_stand_and_far_times_have_no_mark(spark: Any) -> None:
    rows = [(1, 1, None, [1, None]), (1, None, 1, [1, None]), (1, None, 1, [None, 1]), (2**60, 1, 1, [])]
    frame = spark.createDataFrame(rows, "t BIGINT, a BIGINT, b BIGINT, c ARRAY<BIGINT>")
    ties = [row[0] for row in streaming.with_ties(frame).select(streaming.TIE).collect()]
    assert len(set(ties)) == len(ties)
    job = job_of([asking(window=wr.tumbling(5))], StreamOptions("t"), polars_columns(frame.schema))
    marked, _ = streaming.with_watermark(frame, job)
    assert [row[0] for row in marked.selectExpr(f"{streaming.MARK} IS NULL").collect()] == [False, False, False, True]


def test_a_session_that_cannot_hold_the_state_is_refused(spark: Any, endless: Any) -> None:
    provider = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(provider)
    spark.conf.set(provider, "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")
    try:
        with pytest.raises(ValueError, match=f"needs RocksDB: set {provider} to .*RocksDBStateStoreProvider"):
            wr.windows(endless, asking(), "timestamp")
    finally:
        spark.conf.set(provider, before)


def test_many_partitions_get_a_warning(spark: Any, endless: Any) -> None:
    partitions = "spark.sql.shuffle.partitions"
    before = spark.conf.get(partitions)
    spark.conf.unset(partitions)  # as in a session that nobody has set up
    try:
        with pytest.warns(UserWarning, match=f"{partitions} is 200, and there are 2 cores") as caught:
            wr.windows(endless, asking(), "timestamp")
        assert [one.filename for one in caught] == [__file__]
    finally:
        spark.conf.set(partitions, before)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wr.windows(endless, asking(), "timestamp")


BLOCKED = """#!/bin/sh
exec {python} -c 'import runpy, sys
sys.modules["windrow"] = None  # as if it were not installed
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)' "$@"
"""


MISSING = "which cannot import windrow: install windrow there, or set PYSPARK_PYTHON"


@pytest.fixture
def without_windrow(spark: Any, tmp_path: Path) -> Iterator[None]:
    """Workers that run a Python without windrow."""
    worker = tmp_path / "python"
    worker.write_text(BLOCKED.format(python=sys.executable))
    worker.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spark.sparkContext, "pythonExec", str(worker))  # what PYSPARK_PYTHON is read into
        patch.setattr(source, "_REGISTERED", set())
        yield
    spark.dataSource.register(source.shipped(source.WindrowSource))  # with the other Python again


@pytest.mark.usefixtures("without_windrow")
def test_a_worker_without_windrow_says_so(spark: Any) -> None:
    with pytest.raises(Exception, match=MISSING):
        wr.windows(spark.range(5), wr.Query("q", wr.tumbling(2), wr.top_k("id", 2)), "id").count()


@pytest.mark.usefixtures("without_windrow")
@pytest.mark.parametrize("streaming", [False, True])
def test_so_does_one_that_is_to_plan_what_a_source_reads(spark: Any, streaming: bool) -> None:
    with pytest.raises(Exception, match=MISSING):
        nodes(spark, Generator(length="1 second"), asking(), "ts", streaming=streaming)


def test_and_one_that_is_to_read_what_was_planned_elsewhere() -> None:
    planned = source.WindrowSource(options_of(Generator(length="1 second"), [asking()], "ts"))
    for reader in (planned.reader(planned.schema()), planned.streamReader(planned.schema())):
        sent = cloudpickle.dumps(reader)
        assert type(cloudpickle.loads(sent)) is type(reader)
        code = "import pickle, sys; sys.modules['windrow'] = None; pickle.load(sys.stdin.buffer)"
        done = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, check=False)
        assert MISSING in done.stderr.decode()


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_a_product_beyond_64_bits_is_refused_with_an_example_or_left_out(spark: Any, ansi: str) -> None:
    """Whichever way a query goes, and whatever the session thinks of overflow."""
    rows = "VALUES (1L, 1L, 2L), (2L, 4000000000L, 4000000000L), (3L, 3L, NULL), (4L, 4000000000L, 1L)"
    product = "sum(a * b)"
    ways = {
        "by the JVM": wr.Query("q", wr.tumbling(10), product),
        "by the kernel": wr.Query("q", wr.tumbling(10), [product, "collect(a)"]),
        "by position": wr.Query("q", wr.counting(4), product),
        "in order": wr.Query("q", wr.frames(when="t > 0"), product),
    }
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        events = spark.sql(f"SELECT * FROM ({rows}) AS e (t, a, b)")
        for way, query in ways.items():
            reason = r"q': sum\(a \* b\): a \* b does not fit into 64 bits in an event, such as that with a = 4000"
            with pytest.raises(Exception, match=reason) as refused:
                results(wr.windows(events, query, "t"))
            code, sentence = failures.spark(str(refused.value))
            assert (code, sentence[:9]) == (failures.REFUSED, "query 'q'"), way
            assert sentence.endswith("--bad-events drop leaves them out"), sentence
            dropping = results(wr.windows(events, query, "t", bad_events="drop", partial=True))
            assert [row[product] for row in dropping] == [4000000002], way
        small = wr.Query("q", wr.tumbling(10), product, where="a < 1000")
        assert [row[product] for row in results(wr.windows(events, small, "t"))] == [2]
        filtered = wr.Query("q", wr.tumbling(10), wr.sum("a * b").filter("b < 10").alias(product))
        assert [row[product] for row in results(wr.windows(events, filtered, "t"))] == [4000000002]
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)


def test_aliases_that_differ_in_case_only_are_refused_unless_spark_tells_them_apart(spark: Any, one_row: Any) -> None:
    queries = [wr.Query("p", wr.tumbling("1 day"), wr.count().alias("n")), asking(wr.sum("n").alias("N"))]
    with pytest.raises(QueryError, match="columns 'n' and 'N' of the results differ in case only"):
        wr.windows(one_row, queries, "ts")
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        found = results(wr.windows(one_row, queries, "ts"))
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert {(row["query"], row["n"], row["N"]) for row in found} == {("p", 1, None), ("q", None, 1)}
