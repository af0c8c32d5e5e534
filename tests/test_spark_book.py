"""Queries that come and go while a stream runs on Spark, and from one run of it to the next."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from pyspark.errors import StreamingQueryException

import windrow as wr
from spark_cases import Source, results, run
from windrow.testing import Oracle, differences

pytestmark = pytest.mark.spark
SCHEMA = "t BIGINT, k BIGINT, x DOUBLE"
LATENESS = 20
SPEED = wr.Query("speed", wr.sliding(30, 10), [wr.mean("x")], by="k")
TRIP = wr.Query("trip", wr.session(7), [wr.count().alias("n")], by="k")
FIVE = wr.Query("five", wr.counting(5), [wr.count().alias("n")], by="k")
ALL = wr.Query("all", wr.tumbling(25), [wr.count().alias("n")])


def parts(count: int, seed: int) -> list[pl.DataFrame]:
    """Micro-batches of events that are never later than the lateness allows."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(0, 100 * count, 40 * count))
    events = pl.DataFrame({"t": times, "k": rng.integers(0, 4, len(times)), "x": rng.integers(0, 100, len(times)) / 4})
    events = events[np.argsort(times + rng.integers(0, LATENESS, len(times)), kind="stable")]
    return [events[at : at + 40] for at in range(0, events.height, 40)]


class Running:
    """A streaming query that takes one micro-batch after the other, beside an oracle."""

    def __init__(self, spark: Any, folder: Path, events: list[pl.DataFrame]) -> None:
        self._source, self._spark, self._folder = Source(folder / "in", []), spark, folder
        self._left = list(events)
        self.pushed: list[pl.DataFrame] = []
        self._source.schema = SCHEMA
        self._stream = self._source.read(spark)

    def start(self, asked: Any) -> None:
        frame = wr.windows(self._stream, asked, "t", lateness=LATENESS, buckets=2)
        writer = frame.writeStream.format("parquet").option("path", str(self._folder / "out"))
        self.query = writer.option("checkpointLocation", str(self._folder / "checkpoint")).start()

    def push(self) -> list[dict[str, Any]]:
        """One more micro-batch; its events."""
        part = self._left.pop(0)
        self.pushed.append(part)
        self._source.add(part)
        self.query.processAllAvailable()
        self._finish()
        return part.to_dicts()

    def _finish(self) -> None:
        """Wait for the micro-batch without events in which the watermark reaches what was seen."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            read = [one["numInputRows"] > 0 for one in self.query.recentProgress]
            if any(read) and not read[-1]:
                return
            time.sleep(0.05)
        raise AssertionError(f"no micro-batch without events has come: {self.query.lastProgress}")

    def since(self) -> dict[str, int]:
        """Where the queries that came later begin, as the stream reports it."""
        said = [one["observedMetrics"].get("windrow") for one in self.query.recentProgress]
        return next((json.loads(one["since"]) for one in reversed(said) if one and one["since"]), {})

    def stop(self) -> None:
        self.query.stop()

    def found(self) -> list[dict[str, Any]]:
        return results(self._spark.read.parquet(str(self._folder / "out")))


def test_a_book_changes_while_the_stream_runs(spark: Any, tmp_path: Path, seed: int) -> None:
    book = wr.QueryBook(str(tmp_path / "book"), columns={"mean(x)": "double", "n": "bigint"}, keys=["k"])
    book.add(SPEED)
    running, oracle = Running(spark, tmp_path, parts(7, seed)), Oracle([SPEED], time="t", lateness=LATENESS)
    told: list[dict[str, Any]] = []
    running.start(book)
    try:
        for number in range(7):
            if number == 2:
                book.add([TRIP, FIVE])
            if number == 3:
                book.add(ALL, since=550)
            if number == 5:
                book.remove("five", when="windows_closed")
            rows = running.push()
            begun = running.since()
            if number == 2:
                oracle.add(TRIP, since=begun["trip"])
                oracle.add(FIVE, since=begun["five"])
            if number == 3:
                oracle.add(ALL, since=begun["all"])
            if number == 5:
                oracle.remove("five", when="windows_closed")
            told += oracle.push(rows)
        assert begun["all"] == 550  # later than what was seen: it is taken as it was said
        assert running.query.exception() is None
    finally:
        running.stop()
    assert {row["query"] for row in running.found()} == {"speed", "trip", "five", "all"}
    assert differences(running.found(), told, [SPEED, TRIP, FIVE, ALL]) == []


def test_a_restart_with_another_list_goes_on_from_the_checkpoint(spark: Any, tmp_path: Path, seed: int) -> None:
    running, oracle = Running(spark, tmp_path, parts(5, seed)), Oracle([SPEED, ALL], time="t", lateness=LATENESS)
    told: list[dict[str, Any]] = []
    running.start([SPEED, ALL])
    try:
        for number in range(5):
            if number == 2:
                running.stop()
                running.start([SPEED, TRIP])
            rows = running.push()
            if number == 2:
                oracle.add(TRIP, since=running.since()["trip"])
            told += oracle.push(rows)
            if number == 2:
                oracle.remove("all")
    finally:
        running.stop()
    found = [row for row in running.found() if row["query"] != "all"]
    told = [row for row in told if row["query"] != "all"]
    assert {row["query"] for row in found} == {"speed", "trip"}
    assert differences(found, told, [SPEED, TRIP]) == []


def test_a_query_that_does_not_fit_a_book_is_refused(spark: Any, tmp_path: Path) -> None:
    book = wr.QueryBook(str(tmp_path / "book"), columns={"n": "bigint"}, keys=["k"])
    with pytest.raises(wr.QueryError, match=r"'mean.x.' is none of the book's columns"):
        book.add(SPEED)
    with pytest.raises(wr.QueryError, match="'x' is none of the book's keys"):
        book.add(wr.Query("q", wr.tumbling(5), [wr.count().alias("n")], by="x"))
    book.add(FIVE)
    with pytest.raises(wr.QueryError, match="there already is a query called 'five'"):
        book.add(FIVE)
    with pytest.raises(wr.QueryError, match="no query called 'six'; there are 'five'"):
        book.remove("six")
    with pytest.raises(wr.QueryError, match="there are no queries"):
        book.add([])
    with pytest.raises(wr.QueryError, match="there already is a query called 'five'"):
        book.add([wr.Query("seven", wr.counting(7), {"n": "count()"}), FIVE])
    text = "SELECT k, count(*) AS n FROM events GROUP BY k, count_window({})"
    book.add(wr.sql(text.format(8)), text.format(9).replace("SELECT", "-- name: nine\nSELECT"))
    assert [query.name for query in book.queries] == ["five", "q1", "nine"]  # all or none
    book.remove("q1")
    book.remove("nine")
    source = Source(tmp_path / "in")
    source.schema = SCHEMA
    wr.windows(source.read(spark), book, "t")
    with pytest.raises(wr.QueryError, match="'n' would be DOUBLE, and the book's column is BIGINT"):
        book.add(wr.Query("q", wr.tumbling(5), [wr.sum("x").alias("n")]))
    with pytest.raises(wr.QueryError, match="there is no column 'y'"):
        book.add(wr.Query("q", wr.tumbling(5), [wr.count("y").alias("n")]))
    assert [query.name for query in wr.QueryBook(str(tmp_path / "book")).queries] == ["five"]
    with pytest.raises(ValueError, match="has the keys"):
        wr.QueryBook(str(tmp_path / "book"), keys=["x"])
    with pytest.raises(ValueError, match="there is no query book"):
        wr.QueryBook(str(tmp_path / "other"))


def test_events_of_a_stream_with_a_book_may_be_timed_by_their_arrival(spark: Any, tmp_path: Path) -> None:
    book = wr.QueryBook(tmp_path / "book", columns={"n": "bigint"}, keys=["k"])
    book.add(wr.Query("q", wr.tumbling("1 ms"), [wr.count().alias("n")], by="k"))
    source = Source(tmp_path / "in", [pl.DataFrame({"k": [1, 1, 2]}), pl.DataFrame({"k": [3]})])
    begun = datetime.now(UTC)
    found = run(wr.windows(source.read(spark), book, "arrival", buckets=2), "by_arrival")
    counted = {row["k"]: row["n"] for row in found}
    assert counted.items() >= {1: 2, 2: 1}.items()  # the second micro-batch came later, and closed the windows of these
    assert all(begun - timedelta(seconds=1) < row["window_start"] < datetime.now(UTC) for row in found)


def test_a_query_that_gets_past_the_book_ends_the_stream_with_the_reason(spark: Any, tmp_path: Path) -> None:
    book = wr.QueryBook(tmp_path / "book", columns={"n": "bigint"}, keys=["k"])
    source = Source(tmp_path / "in", [pl.DataFrame({"t": [1, 2], "o": [1, 2], "k": [1, 1]})])
    along_t = wr.windows(source.read(spark), book, "t", buckets=2)
    wr.windows(source.read(spark), book, "o", buckets=2)  # now the book knows this stream
    book.add(wr.Query("q", wr.tumbling(5), [wr.count().alias("n")], time="o"))
    with pytest.raises(StreamingQueryException, match="'q': Spark has one watermark for a query"):
        run(along_t, "along_t")


def test_a_key_that_a_stream_has_not_is_refused_by_name(spark: Any, tmp_path: Path) -> None:
    source = Source(tmp_path / "in")
    source.schema = "t BIGINT, m MAP<STRING, BIGINT>"
    with pytest.raises(wr.QueryError, match=r"keys: there is no column 'typo' in the events; there are t$"):
        wr.windows(source.read(spark), wr.QueryBook(tmp_path / "a", columns={"n": "bigint"}, keys=["typo"]), "t")
    with pytest.raises(wr.QueryError, match="the book's keys: column 'm' is MAP<STRING,BIGINT>, which no window query"):
        wr.windows(source.read(spark), wr.QueryBook(tmp_path / "b", columns={"n": "bigint"}, keys=["m"]), "t")


def test_since_when_a_query_is_answered_is_a_time() -> None:
    from windrow.spark.stream.bucket import StepOutput
    from windrow.spark.stream.query import _row

    output = StepOutput(pl.DataFrame(), 0, 0, 0, 0, {"trip": 1_767_256_200_000_000})
    since = {"trip": "2026-01-01 08:30:00"}
    assert json.loads(_row(output, pl.Datetime("us")).since) == since
    assert json.loads(_row(output, pl.Datetime("us", "UTC")).since) == {"trip": since["trip"] + "+00:00"}
    assert json.loads(_row(output, pl.Int64()).since) == output.since


def test_another_version_of_the_state_is_refused_by_name() -> None:
    from test_spark_buckets import Buckets
    from windrow.spark.stream.bucket import INDEX
    from windrow.spark.stream.slice_store import StateError

    buckets = Buckets([ALL], lateness=5, schema={"t": pl.Int64(), "x": pl.Float64()})
    buckets.push(pl.DataFrame({"t": [1, 2], "x": [1.0, 2.0]}))
    for store in buckets.stores:
        store[INDEX] = b'{"windrow": 3, "buckets": 4}'  # which had no sums
    with pytest.raises(StateError, match="written by another version of windrow, whose state is 3"):
        buckets.push(pl.DataFrame({"t": [3], "x": [1.0]}))
