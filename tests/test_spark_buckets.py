"""The state of a stream on Spark, without Spark: buckets over a plain dictionary, step by step against the oracle.

Micro-batches are sliced and split as Spark's tasks do it, and the watermark moves as Spark moves it: in one
micro-batch to where the events before it have brought it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings

import windrow as wr
from windrow.core.plan.groups import Entry
from windrow.core.plan.options import StreamOptions
from windrow.core.stream.job import job_of
from windrow.core.windows.fixed import INT64_MIN
from windrow.io.tables import pack, unpack
from windrow.spark import payloads
from windrow.spark.stream import key_partitions
from windrow.spark.stream import query as streaming
from windrow.spark.stream.bucket import INDEX, Bucket, RequestedQuery
from windrow.spark.stream.slice_store import StateError
from windrow.testing import Oracle, differences
from windrow.testing.oracle import microseconds
from windrow.testing.strategies import ORDERED, SCHEMA, Row, Stream, frame, streams
from windrow.testing.transcripts import Transcript, read

pytestmark = pytest.mark.spark
BUCKETS = 3
TIMED = ("tumbling", "sliding", "cumulating", "session")


@pytest.fixture(scope="module", autouse=True)
def small_partitions() -> Iterator[None]:
    """Partitions so small that a few keys fill several, and a few more make them twice as many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_partitions, "PARTITION_ROWS", 2)
        yield


class Memory(dict[str, bytes]):
    """A store that counts what is read."""

    read = 0  # bytes

    def get(self, name: str) -> bytes | None:  # type: ignore[override]
        found = dict.get(self, name)
        self.read += len(found or b"")
        return found

    def put(self, name: str, value: bytes) -> None:
        self[name] = value

    def delete(self, name: str) -> None:
        del self[name]


class Buckets:
    """A stream's buckets, each with its store."""

    def __init__(self, queries: Any, time: str = "t", *, buckets: int = BUCKETS, schema: Any = None, **options: Any):
        self.job = job_of(queries, StreamOptions.of(queries, time, **options), schema or SCHEMA, ties=False)
        self.stores = [Memory() for _ in range(buckets)]
        self.asked = [RequestedQuery(query) for query in queries]
        self.seen: int | None = None
        self._moved = INT64_MIN
        self.arrived = self.dropped = self.slices = 0
        self.timers: list[int | None] = [None] * buckets
        self.since: dict[str, int] = {}
        self.waiting: list[wr.Query] = []  # those that buckets have not heard of

    def ask(self, query: wr.Query, since: int | None = None) -> None:
        self.asked = [one for one in self.asked if one.query.name != query.name] + [RequestedQuery(query, since)]
        self.waiting.append(query)

    @property
    def watermark(self) -> int:
        lateness = self.job.time_columns[self.job.time].lateness
        return self._moved if self.seen is None or lateness is None else max(self._moved, self.seen - lateness)

    def advance(self, watermark: Any) -> list[Row]:
        """Move the watermark, as an event of another partition would."""
        self._moved = max(self._moved, microseconds(watermark) if isinstance(watermark, datetime) else watermark)
        return self.idle()

    def push(self, events: pl.DataFrame, parts: int = 2) -> list[Row]:
        """A micro-batch of several partitions."""
        job = replace(self.job, entries=tuple(Entry(one.query) for one in self.asked))
        prepared = job.compiled.binding.prepare(events, self.arrived, lambda: 0)
        if "nth" not in prepared.columns:
            prepared = prepared.with_columns(nth=pl.int_range(self.arrived, self.arrived + pl.len(), dtype=pl.Int64))
        self.arrived += events.height
        size = -(-events.height // parts) or 1
        split = [
            {bucket: pack({}, tables) for bucket, tables in streaming.sliced([part], job, len(self.stores)).items()}
            for at in range(0, events.height, size)
            if (part := prepared[at : at + size]).height
        ]
        found: list[Row] = []
        for number in range(len(self.stores)):
            tables = [unpack(part[number])[1] for part in split]
            found += self._step(number, tables, self.asked if split else None)
        if events.height:
            newest = int(prepared[f"time:{job.time}"].max())  # type: ignore[arg-type]
            self.seen = newest if self.seen is None else max(self.seen, newest)
        return found

    def idle(self) -> list[Row]:
        """A micro-batch without events: only buckets whose timer has come are called."""
        return [
            row
            for number, timer in enumerate(self.timers)
            if timer is not None and timer <= self.watermark
            for row in self._step(number, [], None)
        ]

    def _step(self, number: int, tables: Any, asked: Any) -> list[Row]:
        bucket = Bucket(self.stores[number], self.job, len(self.stores))
        output = bucket.step(tables, self.watermark, asked)
        self.timers[number] = bucket.next_due
        bucket.save(None)
        self.dropped += output.dropped
        self.since |= output.since
        rows: list[Row] = output.results.to_dicts()
        return rows


def disagreements(stream: Stream, dropped: bool = True) -> list[str]:
    """What the buckets say otherwise than the oracle, in all micro-batches together."""
    queries = [query for query in stream.queries if not query.distinct_on]
    if not queries:
        return []
    oracle = Oracle(queries, **stream.options)
    buckets = Buckets(queries, **stream.options)
    told, found = [], []
    for step in stream.steps:
        if step.action == "input":
            told += oracle.push(step.value)
            found += buckets.push(frame(step.value))
    found += buckets.idle()
    wrong = differences(found, told, queries)
    if dropped and not wrong and oracle.dropped != buckets.dropped:
        wrong = [f"dropped is {buckets.dropped}, not {oracle.dropped}"]
    return wrong


@given(stream=streams(time_columns=False))
@settings(max_examples=15)
def test_buckets_give_what_the_oracle_gives(stream: Stream) -> None:
    assert disagreements(stream) == []


@given(stream=streams(time_columns=False, kinds=ORDERED))
@settings(max_examples=10)
def test_ordered_windows_in_buckets(stream: Stream) -> None:
    assert disagreements(stream) == []


@given(stream=streams(time_columns=False, beyond=True, kinds=(*TIMED, *ORDERED)))
@settings(max_examples=10)
def test_late_slices_are_left_out_of_what_was_emitted_and_of_nothing_else(stream: Stream) -> None:
    assert disagreements(stream, dropped=False) == []


@given(stream=streams(time_columns=False, beyond=True, updates=True, kinds=(*TIMED, *ORDERED)))
@settings(max_examples=10)
def test_late_slices_within_updates_revise(stream: Stream) -> None:
    assert disagreements(stream, dropped=False) == []


# --- transcripts ------------------------------------------------------------------------------------------------------

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.yaml"))


def streamed(transcript: Transcript) -> bool:
    """Whether a transcript is a stream that Spark can have: one time column, and nothing but events."""
    actions = {step.action for step in transcript.steps}
    details = {name for step in transcript.steps for name in step.details}
    plain = actions <= {"input", "watermark", "finish"} and not details & {"error", "measure"}
    options = {"time", "lateness", "order_by", "updates"} >= transcript.options.keys()
    one = not isinstance(transcript.options.get("lateness"), dict) and transcript.options["time"] != "arrival"
    queries = (
        not any(query.distinct_on or query.time for query in transcript.queries) and "joins" not in transcript.needs
    )
    times = [
        row[transcript.options["time"]] for step in transcript.steps if step.action == "input" for row in step.value
    ]
    since_1970 = not any(isinstance(time, datetime) and time.year < 1970 for time in times)
    return plain and options and one and queries and since_1970


@pytest.mark.parametrize("path", [path for path in TRANSCRIPTS if streamed(read(path))], ids=lambda path: path.stem)
def test_transcripts_in_buckets(path: Path) -> None:
    transcript = read(path)
    oracle = Oracle(transcript.queries, **transcript.options)
    buckets = Buckets(transcript.queries, schema=transcript.schema, **transcript.options)
    told: list[Row] = []
    found: list[Row] = []
    for step in transcript.steps:
        if step.action == "input" and step.value:
            told += oracle.push(step.value)
            found += buckets.push(pl.DataFrame(step.value, schema=transcript.schema))
        elif step.action == "watermark":
            told += oracle.advance(step.value)
            found += buckets.advance(step.value)
    found += buckets.idle()
    assert differences(found, told, transcript.queries) == []


# --- queries that come and go -----------------------------------------------------------------------------------------


@given(stream=streams(time_columns=False, changes=True, beyond=True, kinds=(*TIMED, *ORDERED)))
@settings(max_examples=15)
def test_queries_come_and_go(stream: Stream) -> None:
    """Each later query is the same as one that an oracle is asked from where its state says that it begins."""
    queries = [query for query in stream.all_queries if not query.distinct_on]
    names = {query.name for query in queries}
    oracle = Oracle([one for one in stream.queries if one.name in names], **stream.options)
    buckets = Buckets([one for one in stream.queries if one.name in names], **stream.options)
    told: list[Row] = []
    found: list[Row] = []
    for step in stream.steps:
        if step.action == "input":
            if not step.value:
                continue
            found += buckets.push(frame(step.value))
            for query in buckets.waiting:  # the oracle is asked where the buckets say that they begin
                oracle.add(query, since=buckets.since.get(query.name))
            buckets.waiting = []
            told += oracle.push(step.value)
        elif step.action == "add" and step.value.name in names:
            buckets.ask(step.value, step.details.get("since"))
        elif step.action == "remove" and step.value in {one.query.name for one in buckets.asked}:
            break
    found += buckets.idle()
    assert differences(found, told, queries) == []


@pytest.mark.parametrize("window", [wr.tumbling(10), wr.session(5), wr.counting(2)], ids=lambda window: window.kind)
def test_a_query_that_is_removed_emits_the_windows_that_have_begun_and_leaves(window: Any) -> None:
    query = wr.Query("q", window, wr.count(), by="k")
    buckets = of_one_bucket([query], lateness=0)
    found = buckets.push(readings([11, 12, 12, 12], [1, 2, 1, 2]))
    buckets.asked = [RequestedQuery(query, closing=True)]
    found += buckets.push(readings([13, 14, 40], [1, 1, 3]))
    found += buckets.push(readings([80], [3]))
    removed = Oracle([query], time="t", lateness=0)
    told = removed.push(readings([11, 12, 12, 12], [1, 2, 1, 2]).to_dicts())
    removed.remove("q", when="windows_closed")
    told += removed.push(readings([13, 14, 40], [1, 1, 3]).to_dicts())
    assert differences(found, told, [query]) == []
    index = json.loads(buckets.stores[0][INDEX][4:])
    assert index["entries"] == []


READINGS = {"t": pl.Int64(), "k": pl.Int64(), "x": pl.Float64()}


def readings(time: Any, keys: Any) -> pl.DataFrame:
    values = np.random.default_rng(int(time[0])).random(len(time))  # that no compression makes small
    return pl.DataFrame({"t": time, "k": list(keys), "x": values}, schema=READINGS)


def of_one_bucket(queries: list[wr.Query], **options: Any) -> Buckets:
    return Buckets(queries, buckets=1, schema=READINGS, **options)


TEN, COUNTS = wr.Query("ten", wr.tumbling(10), wr.count()), wr.Query("two", wr.counting(2), wr.sum("x"), by="k")


def test_a_query_that_comes_begins_after_all_events_also_if_they_were_allowed_to_be_later_before() -> None:
    """With a lateness of 100 the watermark is 0 when 100 was seen; a restart with 10 must not take that for 10."""
    before = of_one_bucket([COUNTS], lateness=100)
    before.push(readings([100], [1]))
    after = of_one_bucket([COUNTS], lateness=10)
    after.stores, after.seen = before.stores, 0 + 10
    after.ask(TEN)
    after.push(readings([101], [1]))
    assert after.since == {"ten": 101}


def test_a_query_that_comes_begins_after_what_any_node_has_brought() -> None:
    """The watermark of several nodes is that of the last one; there is none while one of them has brought nothing."""
    store, job = Memory(), job_of([TEN, COUNTS], StreamOptions("t"), READINGS)
    first = Bucket(store, job, 1)
    first.step([], INT64_MIN, [RequestedQuery(COUNTS)])
    first.save(None)
    again = Bucket(store, job, 1)
    assert again.step([], INT64_MIN, [RequestedQuery(COUNTS), RequestedQuery(TEN)], newest=100).since == {"ten": 101}


def test_a_late_event_beside_a_query_that_comes_finds_all_partitions_in_one_form() -> None:
    """It is the only thing that happens in its micro-batch, and opens one partition of several."""
    buckets, oracle = of_one_bucket([COUNTS], lateness=0), Oracle([COUNTS], time="t", lateness=0)
    everyone = [readings([time] * 40, range(40)) for time in (0, 5, 20, 21)]
    steps = [
        *everyone[:2],
        readings([6], [1]),
        readings([6], [1]),
        readings([1], [2]),
        *everyone[2:],
        readings([30], [3]),
    ]
    found: list[Row] = []
    told: list[Row] = []
    for number, events in enumerate([*steps, readings([31], [3])]):
        if number == 4:
            buckets.ask(wr.Query("more", wr.counting(3), [wr.sum("x"), wr.max("x")], by="k"))
        found += buckets.push(events)
        told += oracle.push(events.to_dicts())
    assert buckets.dropped == oracle.dropped == 1
    assert differences([row for row in found if row["query"] == "two"], told, [COUNTS]) == []


@pytest.mark.parametrize("query", [TEN, COUNTS], ids=["slices", "events"])
def test_types_that_have_changed_are_refused_by_name_before_any_window_ends(query: wr.Query) -> None:
    asked = wr.Query(query.name, query.window, wr.max("x"), by="k")
    buckets = of_one_bucket([asked], lateness=100)
    buckets.push(readings([1, 2], [1, 2]))
    changed = Buckets([asked], buckets=1, schema=READINGS | {"x": pl.Int64()}, lateness=100)
    changed.stores = buckets.stores
    with pytest.raises(StateError, match=r"this checkpoint holds .*x.* as Float64, and here it is Int64: go on with"):
        changed.push(readings([3], [1]).with_columns(pl.col("x").cast(pl.Int64)))


def test_what_a_checkpoint_was_written_with_stays() -> None:
    first = of_one_bucket([TEN], lateness=1)
    first.push(readings([1], [1]))
    with pytest.raises(StateError, match="was written with buckets=1 and this query has buckets=2: go on as it was"):
        Bucket(first.stores[0], first.job, 2)
    with pytest.raises(StateError, match="was written with updates=False and this query has updates=True"):
        Bucket(first.stores[0], of_one_bucket([TEN], lateness=1, updates=5).job, 1)


def test_integers_further_out_than_the_watermark_reaches_are_refused() -> None:
    job = job_of([TEN], StreamOptions("t"), READINGS)
    far = job.compiled.binding.prepare(readings([5, 2**52], [1, 1]), 0, lambda: 0)
    with pytest.raises(wr.InputError, match=r"'t' is 4503599627370496, further out than Spark's watermark reaches"):
        streaming.sliced([far], job, 1)


# --- what a step reads ------------------------------------------------------------------------------------------------


def bytes_read(buckets: Buckets, events: pl.DataFrame) -> tuple[int, list[Row]]:
    for store in buckets.stores:
        store.read = 0
    found = buckets.push(events)
    return sum(store.read for store in buckets.stores), found


def test_a_micro_batch_reads_what_its_windows_need_and_not_all_that_is_live() -> None:
    queries = [
        wr.Query("day", wr.tumbling(86_400), [wr.sum("x")], by="k"),
        wr.Query("minute", wr.tumbling(60), [wr.sum("x")], by="k"),
    ]
    buckets = Buckets(queries, lateness=10, schema=READINGS)
    for minute in range(0, 3600, 60):  # an hour of five hundred keys
        buckets.push(readings([minute] * 500, range(500)))
    buckets.push(readings([3541], [1]))
    live = sum(len(value) for store in buckets.stores for value in store.values())
    nothing, found = bytes_read(buckets, readings([3542], [1]))
    assert found == []
    assert nothing < live / 20  # the index
    one, found = bytes_read(buckets, readings([3700], [1]))
    assert found == []  # the watermark follows in the next micro-batch
    one, found = bytes_read(buckets, readings([3701], [1]))
    assert len(found) == 1000  # the last two minutes of all keys
    assert one < live / 4
    assert max(len(store) for store in buckets.stores) < 200  # runs are merged, chunks are few


def test_a_session_that_ends_is_read_without_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_partitions, "PARTITION_ROWS", 64)
    queries = [
        wr.Query("visit", wr.session(1000), [wr.sum("x")], by="k"),
        wr.Query("minute", wr.tumbling(600), [wr.sum("x")], by="k"),  # from the same slices, in chunks of its own
    ]
    buckets = Buckets(queries, lateness=0, schema=READINGS)
    buckets.push(readings([0], [0]))
    buckets.push(readings([700] * 10_000, range(1, 10_001)))
    live = sum(len(value) for store in buckets.stores for value in store.values())
    buckets.push(readings([1100], [1]))  # the watermark is still 700
    buckets.push(readings([1101], [1]))
    one, found = bytes_read(buckets, readings([1102], [1]))
    assert found == []  # key 0 was told when the watermark came to 1100
    assert one < live / 20
    buckets = Buckets(queries[:1], lateness=0, schema=READINGS)
    buckets.push(readings([0, *[700] * 10_000], range(10_001)))
    live = sum(len(value) for store in buckets.stores for value in store.values())
    buckets.push(readings([1100], [1]))
    one, found = bytes_read(buckets, readings([1101], [1]))
    assert [row["k"] for row in found] == [0]
    assert one < live / 20
    _, found = bytes_read(buckets, readings([1800, 1800], [2, 3]))
    one, found = bytes_read(buckets, readings([1801], [1]))
    assert len(found) == 9999  # all but 1, which goes on


def test_counts_of_other_keys_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_partitions, "PARTITION_ROWS", 64)
    buckets = Buckets([wr.Query("three", wr.counting(3), [wr.sum("x")], by="k")], lateness=0, schema=READINGS)
    buckets.push(readings([0] * 10_000, range(10_000)))
    buckets.push(readings([1] * 10_000, range(10_000)))
    buckets.push(readings([2], [7]))
    buckets.push(readings([3], [7]))
    live = sum(len(value) for store in buckets.stores for value in store.values())
    one, found = bytes_read(buckets, readings([4], [7]))
    assert [row["k"] for row in found] == [7]  # its third event is at 2, which the watermark has passed
    assert one < live / 20


def test_events_that_wait_long_are_not_read_while_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_partitions, "PARTITION_ROWS", 64)
    buckets = Buckets([wr.Query("two", wr.counting(2), [wr.sum("x")])], lateness=1000, schema=READINGS)
    for time in range(0, 1000, 10):
        buckets.push(readings(range(time, time + 10), range(10)))
    buckets.push(readings([1004], [1]))
    live = sum(len(value) for store in buckets.stores for value in store.values())
    one, found = bytes_read(buckets, readings([1005], [1]))
    assert [row["window_start"] for row in found] == [0, 2]
    assert one < live / 5


def test_what_no_window_needs_is_dropped() -> None:
    buckets = Buckets(
        [wr.Query("minute", wr.sliding(60, 20), [wr.count()], by="k")],
        lateness=0,
        schema=READINGS,
    )
    for time in range(0, 3000, 10):
        buckets.push(readings([time] * 5, range(5)))
    assert all(len(store) < 20 for store in buckets.stores)


def test_equal_keys_have_equal_hashes() -> None:
    payload_nan = np.frombuffer(np.uint64(0xFFF8000000000001).tobytes())[0]
    floats = pl.DataFrame({"g": [0.0, -0.0, float("nan"), float(payload_nan), None, 1.5]})
    zero, minus_zero, nan, other_nan, null, one = payloads.hashed(floats)
    assert (zero, nan) == (minus_zero, other_nan)
    assert len({zero, nan, null, one}) == 4
    single = floats.with_columns(pl.col("g").cast(pl.Float32))
    assert payloads.hashed(single).tolist() == payloads.hashed(floats).tolist()
