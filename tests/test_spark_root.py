"""The root of a tree as a source on Spark: whatever is read together, the rows are those of the oracle.

First without a JVM: the reader as plain Python, and buckets over dictionaries that see what Spark's would. Then once
through Spark, with a checkpoint in the middle.
"""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import windrow as wr
from trees import COLUMNS, LATENESS, QUERIES, Faulty, Tree, asking, events_of, told
from windrow.nodes.process.slice_sink import SliceSinkError
from windrow.nodes.protocol.root import RootState
from windrow.nodes.queries import QuerySet
from windrow.testing import differences, tree_simulation

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
)

from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.io.tables import unpack
from windrow.spark import Root, nodes
from windrow.spark.slice_rows import delay_of, row_schema
from windrow.spark.source.options import Settings, options_of
from windrow.spark.source.reader import BatchReader, StreamReader
from windrow.spark.stream.bucket import Bucket, RequestedQuery
from windrow.spark.stream.query import watermark_of

pytestmark = pytest.mark.spark
ALL = ReadAllAvailable()


class Store(dict[str, bytes]):
    def put(self, name: str, value: bytes) -> None:
        self[name] = value

    def delete(self, name: str) -> None:
        del self[name]


def reader(path: Path, **options: Any) -> StreamReader:
    settings = Settings.of({"root": str(path), "buckets": "3", **{name: str(one) for name, one in options.items()}})
    return StreamReader(settings, row_schema(settings.origin))


def offsets(one: StreamReader, limit: ReadLimit = ALL, start: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """From a start on until nothing is new."""
    found = [start or one.initialOffset()]
    while (after := json.loads(json.dumps(one.latestOffset(found[-1], limit)))) != found[-1]:
        found.append(after)
    return found


def rows_between(one: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a micro-batch; times are microseconds, because Python has no years beyond 9999."""
    found = []
    for part in one.partitions(start, end):
        for batch in one.read(part):
            columns = {name: batch.column(name) for name in batch.schema.names}
            columns["watermark"] = columns["watermark"].cast("int64")
            found += pl.DataFrame(columns).to_dicts()
    return found


class Stream:
    """Buckets that see what Spark's do, with a watermark that moves as Spark's: after each micro-batch."""

    def __init__(self, one: StreamReader) -> None:
        self.job = one.slices.job
        self.stores = [Store() for _ in range(3)]
        self.milliseconds = self.dropped = 0
        self.results: list[dict[str, Any]] = []

    @property
    def watermark(self) -> int:
        return watermark_of(self.milliseconds, self.job.is_integer)

    def step(self, rows: list[dict[str, Any]]) -> None:
        asked = [RequestedQuery(entry.query) for entry in self.job.entries]
        for number, store in enumerate(self.stores):
            tables = [unpack(row["payload"])[1] for row in rows if row["bucket"] == number]
            bucket = Bucket(store, self.job, 3)
            said = bucket.step(tables, self.watermark, asked if tables else None)
            bucket.save(None)
            self.results += said.results.to_dicts()
            self.dropped += said.dropped
        marks = [row["watermark"] for row in rows if row["watermark"] is not None]
        self.milliseconds = max(self.milliseconds, max(marks, default=0) // 1000 - delay_of(self.job))

    def run(self, one: StreamReader, several: list[dict[str, Any]]) -> None:
        for start, end in pairwise(several):
            self.step(rows_between(one, start, end))


def streamed(path: Path, limit: ReadLimit = ALL) -> list[dict[str, Any]]:
    one = reader(path)
    stream = Stream(one)
    stream.run(one, offsets(one, limit))
    return stream.results


# --- what is read ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [ALL, ReadMaxFiles(1), ReadMaxRows(40)], ids=str)
@pytest.mark.parametrize("step", [2, 9])
def test_the_batches_of_a_tree_give_the_oracles_rows_however_they_are_read(
    tmp_path: Path, seed: int, limit: ReadLimit, step: int
) -> None:
    several = events_of(seed, 30)
    Tree(tmp_path).run(several, step)
    assert differences(streamed(tmp_path, limit), told(several), QUERIES) == []


def test_whatever_breaks_in_the_tree(tmp_path: Path, seed: int) -> None:
    crashes = 0
    for number in range(seed * 100, seed * 100 + 4):
        dice, path = random.Random(number), tmp_path / str(number)
        shape = tree_simulation.Tree.random(dice.randint(3, 8), dice)
        several = events_of(number, 15, shape.leaves)
        run = Faulty(shape, asking(), several, tree_simulation.Faults(), dice, path=path)
        run.run()
        crashes += run.crashes
        assert (number, differences(streamed(path, ReadMaxFiles(3)), told(several), QUERIES)) == (number, [])
    assert crashes > 0


def test_the_comparison_can_fail(tmp_path: Path, seed: int) -> None:
    several = events_of(seed, 40)
    tree = Tree(tmp_path)
    tree.run(several)
    assert differences(streamed(tmp_path), told({**several, "c": several["c"][:-1]}), QUERIES) != []


def test_a_batch_is_all_that_is_there(tmp_path: Path, seed: int) -> None:
    several = events_of(seed)
    Tree(tmp_path).run(several, end=False)
    settings = Settings.of({"root": str(tmp_path)})
    one = BatchReader(settings, row_schema(settings.origin))
    found = [row for part in one.partitions() for batch in one.read(part) for row in batch.to_pylist()]
    held = Root(tmp_path).sink.head(Root(tmp_path).sink.newest).events
    assert sum(row["events"] for row in found) == held
    assert {row["watermark"] for row in found} == {None}


def test_windows_that_need_the_order_have_each_nodes_events_as_it_had_them(tmp_path: Path) -> None:
    query = [wr.Query("all", wr.counting(4), ["collect(x)"])]
    tied = {name: pl.DataFrame({"t": [1] * 4, "k": ["p"] * 4, "x": [n, 3, 2, 1]}) for n, name in enumerate("abc")}
    tree = Tree(tmp_path, asking(query))
    tree.run(tied, 2)
    for limit in (ALL, ReadMaxFiles(1)):
        found = [row["collect(x)"] for row in streamed(tmp_path, limit)]
        assert found == [[0, 3, 2, 1], [1, 3, 2, 1], [2, 3, 2, 1]]


def test_a_micro_batch_that_is_read_again_has_the_same_rows(tmp_path: Path, seed: int) -> None:
    several = events_of(seed)
    tree = Tree(tmp_path)
    tree.run({node: events[:30] for node, events in several.items()}, end=False)
    one = reader(tmp_path)
    marks = offsets(one, ReadMaxFiles(2))
    before = [rows_between(one, *pair) for pair in pairwise(marks)]
    tree.run({node: events[30:] for node, events in several.items()})
    again = reader(tmp_path)
    assert [rows_between(again, *pair) for pair in pairwise(marks)] == before


def test_every_bucket_hears_of_every_micro_batch_and_events_are_counted_once(tmp_path: Path, seed: int) -> None:
    several = events_of(seed)
    Tree(tmp_path).run(several)
    one = reader(tmp_path)
    marks = offsets(one, ReadMaxFiles(5))
    rows = [rows_between(one, *pair) for pair in pairwise(marks)]
    assert all(sorted(row["bucket"] for row in some) == [0, 1, 2] for some in rows)
    assert sum(row["events"] for some in rows for row in some) == sum(map(len, several.values()))


def test_limits_count_batches_events_and_bytes(tmp_path: Path, seed: int) -> None:
    Tree(tmp_path).run(events_of(seed), end=False)
    outlet, both = Root(tmp_path).sink, reader(tmp_path, maxFilesPerTrigger=3, maxRowsPerTrigger=50)
    heads = [outlet.head(number) for number in outlet.numbers]
    start = both.initialOffset()
    assert both.getDefaultReadLimit() == ReadMaxRows(50)
    assert both.latestOffset(start, ALL)["batch"] == outlet.newest
    assert both.latestOffset(start, ReadMaxRows(10**6))["batch"] == 3  # the option holds as well
    one = reader(tmp_path)
    assert one.getDefaultReadLimit() == ALL
    assert reader(tmp_path, maxFilesPerTrigger=3).getDefaultReadLimit() == ReadMaxFiles(3)
    assert one.latestOffset(start, ReadMaxFiles(2))["batch"] == 2
    for most in (1, 20, 50, 90):
        within = [number for number, head in enumerate(heads, 1) if head.events <= most] or [1]  # a batch is read whole
        assert one.latestOffset(start, ReadMaxRows(most))["batch"] == max(within)
    assert one.latestOffset(start, ReadMaxBytes(heads[0].size + heads[1].size))["batch"] == 2
    assert one.latestOffset(start, ReadMinRows(10**6)) == start
    one.prepareForTriggerAvailableNow()  # nothing more will come
    assert one.latestOffset(start, ReadMinRows(10**6))["batch"] == outlet.newest


def test_available_now_ends_with_what_was_there(tmp_path: Path, seed: int) -> None:
    several = events_of(seed)
    tree = Tree(tmp_path)
    tree.run({node: events[:30] for node, events in several.items()}, end=False)
    one, newest = reader(tmp_path), tree.outlet.newest
    one.prepareForTriggerAvailableNow()
    tree.run({node: events[30:] for node, events in several.items()})
    assert tree.outlet.newest > newest
    assert offsets(one, ReadMaxFiles(2))[-1]["batch"] == newest


# --- the watermark --------------------------------------------------------------------------------------------------


def test_spark_comes_to_the_watermark_of_the_tree(tmp_path: Path, seed: int) -> None:
    several = events_of(seed)
    tree = Tree(tmp_path)
    tree.run(several, end=False)
    one = reader(tmp_path)
    stream = Stream(one)
    for start, end in pairwise(offsets(one, ReadMaxFiles(1))):
        stream.step(rows_between(one, start, end))
        assert stream.watermark == tree.outlet.head(end["batch"]).watermark
    assert stream.watermark == min(events["t"].max() for events in several.values()) - LATENESS  # type: ignore[type-var]


def test_of_timestamps_it_is_the_whole_millisecond_at_or_before(tmp_path: Path) -> None:
    columns = {"t": pl.Datetime("us", "UTC"), "x": pl.Int64()}
    queries = [wr.Query("all", wr.tumbling("1 second"), "sum(x)")]
    tree = Tree(tmp_path, QuerySet.of(queries, "t", columns, lateness="1500 us"))
    events = pl.DataFrame({"t": pl.Series([5_000_700, 9_004_321]).cast(columns["t"]), "x": [1, 2]})
    for node in "abc":
        tree.read(node, events)
    one = reader(tmp_path)
    stream = Stream(one)
    stream.run(one, offsets(one))
    assert tree.outlet.head(tree.outlet.newest).watermark == 9_002_821
    assert stream.watermark == 9_002_000


def test_there_is_none_while_the_tree_has_none(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    one = reader(tmp_path)
    assert offsets(one) == [{"batch": 0, "watermark": None, "events": 0}]
    stream = Stream(one)
    stream.run(one, offsets(one))
    assert stream.watermark == INT64_MIN
    for node in "abc":
        tree.read(node, pl.DataFrame(schema=COLUMNS), last=True)  # a tree that ends without an event
    stream.run(one, offsets(one))
    assert stream.watermark == INT64_MAX
    assert stream.results == []


def test_late_slices_are_judged_as_at_a_root_with_windows(tmp_path: Path, seed: int) -> None:
    queries = [query for query in QUERIES if query.name != "latest"]
    several = events_of(seed)
    late = several["b"].with_columns(t=pl.when(pl.col("x") == 3).then(pl.col("t") - 40).otherwise(pl.col("t")))
    tree = Tree(tmp_path, asking(queries))
    tree.run({**several, "b": late})
    root = RootState(asking(queries).job)
    wanted, dropped = [], 0
    for number in tree.outlet.numbers:
        batch = tree.outlet.read(number)
        dropped += root.absorb(batch.tables).total()
        wanted += root.advance(batch.watermark).to_dicts()
    one = reader(tmp_path)
    stream = Stream(one)
    stream.run(one, offsets(one, ReadMaxFiles(1)))
    assert dropped > 0
    assert stream.dropped > 0
    assert differences(stream.results, wanted, queries) == []


# --- what is kept, and what is refused ------------------------------------------------------------------------------


def test_what_is_committed_is_deleted_unless_all_is_kept(tmp_path: Path, seed: int) -> None:
    tree = Tree(tmp_path)
    tree.run(events_of(seed), end=False)
    newest = tree.outlet.newest
    keeping, one = reader(tmp_path, keep="all"), reader(tmp_path)
    keeping.commit({"batch": 3, "watermark": 0})
    assert min(tree.outlet.numbers) == 1
    one.commit({"batch": 3, "watermark": 0})
    assert tree.outlet.numbers == list(range(4, newest + 1))
    with pytest.raises(SliceSinkError, match=r"batch 3 is gone from .* another query is done with it"):
        keeping.latestOffset({"batch": 2, "watermark": 0, "events": 0}, ALL)
    assert reader(tmp_path).initialOffset()["batch"] == 3  # a new stream has what is left
    one.commit({"batch": newest, "watermark": 0})
    assert tree.outlet.numbers == [newest]
    read = {"batch": newest, "watermark": 0, "events": 0}
    assert one.latestOffset(read, ALL) == read


def test_fewer_queries_at_the_root_end_a_stream_which_goes_on_once_it_is_started_again(
    tmp_path: Path, seed: int
) -> None:
    several = events_of(seed)
    tree = Tree(tmp_path)
    tree.run({node: events[:30] for node, events in several.items()}, end=False)
    one, then = reader(tmp_path), tree.outlet.newest + 1
    tree.remove("tumbling")
    tree.remove("frames")
    tree.run({node: events[30:] for node, events in several.items()})
    start, stream = one.initialOffset(), Stream(one)
    last = one.latestOffset(start, ALL)
    stream.run(one, [start, last])
    assert last["batch"] >= then - 1  # what had been cut for all of them is sent first
    refused = r"is asked other queries from batch \d+ on, and this stream .* start it again, and it goes on with those"
    with pytest.raises(wr.QueryError, match=refused):
        one.latestOffset(last, ALL)
    again = reader(tmp_path)
    stream.job = again.slices.job
    stream.run(again, offsets(again, ReadMaxFiles(3), last))
    kept = [query for query in QUERIES if query.name not in ("tumbling", "frames")]
    found = [row for row in stream.results if row["query"] not in ("tumbling", "frames")]
    assert differences(found, told(several, kept), kept) == []
    assert differences(streamed(tmp_path), told(several, kept), kept) == []  # a new stream has all batches, too


def test_more_queries_at_the_root_need_a_new_checkpoint(tmp_path: Path, seed: int) -> None:
    several = events_of(seed)
    tree = Tree(tmp_path)
    tree.run({node: events[:30] for node, events in several.items()}, end=False)
    one, since = reader(tmp_path), tree.outlet.newest + 1
    start, old = one.initialOffset(), row_schema(Settings.of({"root": str(tmp_path)}).origin)
    tree.outlet.set_queries(asking([*QUERIES, wr.Query("more", wr.tumbling(4), "count()")]))
    tree.run({node: events[30:] for node, events in several.items()}, end=False)
    assert one.latestOffset(start, ALL)["batch"] == since - 1
    again = reader(tmp_path)
    assert again.initialOffset()["batch"] == since - 1
    assert again.latestOffset(again.initialOffset(), ALL)["batch"] == tree.outlet.newest
    with pytest.raises(wr.QueryError, match=rf"is asked other queries from batch {since} on.* with a new checkpoint"):
        again.latestOffset(start, ALL)
    with pytest.raises(wr.QueryError, match="is asked other queries since this DataFrame was made; make it again"):
        StreamReader(Settings.of({"root": str(tmp_path)}), old)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"root": "nowhere"}, r"'.*nowhere' is not the directory of a root that feeds slices"),
        (
            {"root": "hdfs://there/root"},
            "a root is read from a directory that is mounted where Spark runs, not",
        ),
        ({"keep": "some"}, "keep must be one of uncommitted, all, not 'some'"),
        ({"lateness": "5"}, "the option lateness is not for the root of a tree"),
        ({"time": "x"}, "the slices of this root are cut along 't', not along 'x'"),
        ({"path": "x"}, "give a path, with a directory for each node, or a generator, or the root of a tree"),
        (
            {"queries": json.dumps([wr.Query("q", wr.tumbling(7), "count()").to_dict()])},
            "the root was asked 'tumbling', .* and these queries need other slices",
        ),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_what_does_not_fit_is_refused(tmp_path: Path, options: dict[str, str], complaint: str) -> None:
    Tree(tmp_path / "root")
    given = {"root": str(tmp_path / "root")} | options
    if options.get("root") == "nowhere":
        given["root"] = str(tmp_path / "nowhere")
    with pytest.raises((wr.QueryError, SliceSinkError), match=complaint):
        Settings.of(given)


def test_only_a_root_has_something_to_keep(tmp_path: Path) -> None:
    with pytest.raises(wr.QueryError, match="the option keep is for the root of a tree"):
        Settings.of(options_of(tmp_path, QUERIES, "t", keep="all"))


# --- through Spark --------------------------------------------------------------------------------------------------


def test_a_stream_on_spark_goes_on_where_it_was_stopped(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    several = events_of(seed)
    tree = Tree(tmp_path / "root")
    out = str(tmp_path / "out")

    def start(max_files: int, **trigger: Any) -> Any:
        slices = nodes(spark, Root(tmp_path / "root"), max_files=max_files, buckets=2)
        writer = wr.windows(slices).writeStream.format("parquet").option("path", out)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(**trigger).start()

    live = start(100, processingTime="0 seconds")  # over an outlet that is still empty
    tree.run({node: events[:20] for node, events in several.items()}, end=False)
    live.processAllAvailable()
    live.stop()
    tree.run({node: events[20:] for node, events in several.items()})
    newest = tree.outlet.newest
    start(8, availableNow=True).awaitTermination()
    results = pl.DataFrame(pl.from_arrow(spark.read.parquet(out).toArrow()))
    assert differences(results.to_dicts(), told(several), QUERIES) == []
    assert tree.outlet.numbers == [newest]  # all others are done with


def test_a_batch_on_spark_has_all_that_is_kept(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    empty = nodes(spark, Root(tmp_path), streaming=False) if Tree(tmp_path) else None
    assert empty is not None
    assert wr.windows(empty).count() == 0
    several = events_of(seed)
    Tree(tmp_path / "full").run(several)
    slices = spark.read.format("windrow").option("root", str(tmp_path / "full")).load()
    assert slices.columns == ["bucket", "payload", "watermark", "node", "events"]
    found = pl.DataFrame(pl.from_arrow(wr.windows(slices, QUERIES).toArrow()))
    assert differences(found.to_dicts(), told(several), QUERIES) == []
    with pytest.raises(wr.QueryError, match=r"these slices were cut for 'tumbling', .* and the queries here"):
        wr.windows(slices, QUERIES[0])
