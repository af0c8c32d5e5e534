"""The root of a tree as a source: the batches of slices that it leaves in its sink.

    local ──┐
    local ──┴▶ intermediate ──▶ root ──▶ path/slices/…42.batch ── merged in the reader ──▶ rows of slices ──▶ Spark

A batch is the unit that is read. An offset says up to which one, and the tree's watermark after it, so that a
micro-batch that is read again has the same rows. Once the tree has come to its end, every bucket has to know: a last
micro-batch without slices follows, because what is still open ends at no time that a bucket could wait for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import polars as pl

from windrow.core.expressions.errors import QueryError
from windrow.core.stream.job import Job
from windrow.core.stream.job_slicer import Gathered, Tables
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.core.windows.ordered import NODE
from windrow.nodes.process.slice_sink import SliceSink
from windrow.spark.slice_rows import Limit
from windrow.spark.source.files import is_beyond, local_path

KEEP = ("uncommitted", "all")
TASK_BYTES = 1 << 26  # bytes of batches that one task of a batch reads


class Known(NamedTuple):
    """What a stream knew of its root when it began: the first batch that serves it, and how many changes of queries."""

    since: int
    changes: int


@dataclass(frozen=True)
class Root:
    """The root of a tree of nodes that feeds slices, which says itself what it was asked.

    path:  its directory, mounted where Spark runs
    keep:  which batches stay there: "uncommitted", so that what a stream is done with is deleted, or "all"
    """

    path: str | os.PathLike[str]
    keep: str = "uncommitted"

    def __post_init__(self) -> None:
        if self.keep not in KEEP:
            raise QueryError(f"keep must be one of {', '.join(KEEP)}, not {self.keep!r}")
        _ = self.sink

    @property
    def sink(self) -> SliceSink:
        """Where its batches are."""
        return SliceSink(local_path(os.fspath(self.path), "a root is read from a directory that is"))

    @property
    def columns(self) -> dict[str, pl.DataType]:
        """Of the events, without the node."""
        return {name: dtype for name, dtype in self.sink.query_set.columns if name != NODE}

    # --- offsets ------------------------------------------------------------------------------------------------------

    def first(self) -> dict[str, Any]:
        """The offset before the first batch that is there and was made for the queries of now."""
        sink = self.sink
        begin = max(sink.declared.since, min(sink.numbers, default=1)) - 1
        events = sink.head(begin).events if begin in sink.numbers else 0
        return {"batch": begin, "watermark": None, "events": events}

    def after(self, before: dict[str, Any], limit: Limit, until: int | None, at_start: Known) -> dict[str, Any]:
        """The offset after the batches that come next within a limit, at least one; none later than `until`."""
        sink, last, watermark, events = self.sink, before["batch"], before["watermark"], before["events"]
        size = count = 0
        for number in self._made_for(at_start, sink.after(last)):
            if until is not None and number > until:
                break
            head = sink.head(number)
            if count and is_beyond(limit, count + 1, head.events - before["events"], size + head.size):
                break
            events, size, count, last = head.events, size + head.size, count + 1, number
            if head.watermark > INT64_MIN:
                watermark = head.watermark if watermark is None else max(watermark, head.watermark)
        if not count:
            return {**before, "ended": True} if watermark == INT64_MAX else before
        if limit.least is not None and events - before["events"] < limit.least:
            return before
        return {"batch": last, "watermark": watermark, "events": events}

    def _made_for(self, at_start: Known, numbers: range) -> range:
        """Those of the batches that follow which have what a stream's queries need; refuses to go beyond them."""
        if not numbers:
            return numbers
        then = next(iter(self.sink.declared.changes[at_start.changes :]), numbers[-1] + 1)
        if at_start.since <= numbers[0] < then:
            return range(numbers[0], min(numbers[-1] + 1, then))
        is_old = numbers[0] < at_start.since
        raise QueryError(
            f"the root {os.fspath(self.path)!r} is asked other queries from batch {at_start.since if is_old else then} "
            f"on, and this stream has read up to {numbers[0] - 1}; start it "
            + ("with a new checkpoint" if is_old else "again, and it goes on with those")
        )

    # --- batches ------------------------------------------------------------------------------------------------------

    def batch_ranges(self) -> Iterator[tuple[int, int, int]]:
        """All batches that are there, in ranges that a task reads each: the first, the last, and how many events."""
        sink, before = self.sink, self.first()
        numbers, first, size, events = sink.after(before["batch"]), before["batch"] + 1, 0, before["events"]
        for number in numbers:
            head = sink.head(number)
            size += head.size
            if size >= TASK_BYTES or number == numbers[-1]:
                yield first, number, head.events - events
                first, size, events = number + 1, 0, head.events

    def tables(self, first: int, last: int, job: Job) -> Tables:
        """The tables of some batches, each group's in one."""
        sink = self.sink
        gathered, ordered = Gathered(job.compiled), dict[str, list[pl.DataFrame]]()
        for number in range(first, last + 1):
            batch = sink.read(number)
            for group in job.compiled.plan.groups:
                table, compiled = batch.tables.get(group.name), job.compiled.by_name[group.name]
                if table is None:
                    continue
                if group.ordered:  # a node's events come in its order, in a batch and after it
                    nth = pl.int_range(number << 32, (number << 32) + pl.len(), dtype=pl.Int64)
                    table = compiled.conform(table).with_columns(nth=nth)
                    ordered.setdefault(group.name, []).append(table)
                else:
                    gathered.add({group.name: compiled.conform(table)})
        return gathered.merged() | {name: pl.concat(tables) for name, tables in ordered.items()}
