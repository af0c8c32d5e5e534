"""The root of a tree as a source: the batches of slices that it leaves in its outlet.

    local ──┐
    local ──┴▶ intermediate ──▶ root ──▶ path/slices/…42.batch ── merged in the reader ──▶ rows of slices ──▶ Spark

A batch is the unit that is read. An offset says up to which one, and the tree's watermark after it, so that a
micro-batch that is read again has the same rows. Once the tree has come to its end, every bucket hears of it: a last
micro-batch without slices follows, because what is still open ends at no time that a bucket could wait for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import polars as pl

from windrow.jobs import Job
from windrow.nodes.asked import NODE, Asked
from windrow.nodes.outlet import SliceOutlet
from windrow.query import QueryError
from windrow.slicers import Gathered, Slicer, Tables
from windrow.spark.files import local_path
from windrow.spark.origins import Limit, fingerprint
from windrow.windows import INT64_MAX, INT64_MIN

KEEP = ("uncommitted", "all")
TOGETHER = 1 << 26  # bytes of batches that one task of a batch reads


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
        _ = self.outlet

    @property
    def outlet(self) -> SliceOutlet:
        return SliceOutlet(local_path(os.fspath(self.path), "a root is read from a directory that is"))

    @property
    def asked(self) -> Asked:
        """What it was asked."""
        return self.outlet.asked

    @property
    def columns(self) -> dict[str, pl.DataType]:
        """Of the events, without the node."""
        return {name: dtype for name, dtype in self.asked.columns if name != NODE}

    # --- offsets ------------------------------------------------------------------------------------------------------

    def first(self) -> dict[str, Any]:
        """The offset before the first batch that is there and was made for what is asked now."""
        outlet = self.outlet
        return {"batch": max(outlet.since, min(outlet.numbers, default=1)) - 1, "watermark": None}

    def after(self, before: dict[str, Any], limit: Limit, until: int | None, plan: str) -> dict[str, Any]:
        """The offset after the batches that come next within a limit, at least one; none later than `until`."""
        outlet, last, watermark = self.outlet, before["batch"], before["watermark"]
        events = size = count = 0
        for number in self._made_for(plan, outlet.after(last)):
            if until is not None and number > until:
                break
            head = outlet.head(number)
            if count and (
                (limit.files is not None and count >= limit.files)
                or (limit.rows is not None and events + head.events > limit.rows)
                or (limit.bytes is not None and size + head.size > limit.bytes)
            ):
                break
            events, size, count, last = events + head.events, size + head.size, count + 1, number
            if head.watermark > INT64_MIN:
                watermark = head.watermark if watermark is None else max(watermark, head.watermark)
        if not count:
            return {**before, "ended": True} if watermark == INT64_MAX else before
        return before if events < (limit.least or 0) else {"batch": last, "watermark": watermark}

    def _made_for(self, plan: str, numbers: range) -> range:
        """Those of the batches that follow which were made for the queries of a stream; refuses to go beyond them."""
        if not numbers:
            return numbers
        since, is_same = self.outlet.since, plan_of(self.asked) == plan
        if is_same and numbers[0] >= since:
            return numbers
        if is_same or numbers[0] >= since:
            raise QueryError(
                f"the root {os.fspath(self.path)!r} is asked other queries from batch {since} on, and this stream has "
                f"read up to {numbers[0] - 1}; start it "
                + ("with a new checkpoint" if is_same else "again, and it goes on with those queries")
            )
        return range(numbers[0], min(numbers[-1] + 1, since))

    # --- batches ------------------------------------------------------------------------------------------------------

    def together(self) -> Iterator[tuple[int, int]]:
        """All batches that are there, as stretches that a task reads each: the first and the last one's number."""
        outlet, size, first = self.outlet, 0, None
        numbers = [number for number in outlet.numbers if number >= outlet.since]
        for number in numbers:
            first = number if first is None else first
            size += outlet.head(number).size
            if size >= TOGETHER or number == numbers[-1]:
                yield first, number
                size, first = 0, None

    def tables(self, first: int, last: int, job: Job) -> tuple[Tables, int]:
        """The tables of some batches, each group's in one, and how many events are in them."""
        outlet, slicer = self.outlet, Slicer(job, cut=True)
        gathered, held, events = Gathered(slicer), dict[str, list[pl.DataFrame]](), 0
        for number in range(first, last + 1):
            batch = outlet.read(number)
            events += batch.events
            for group in job.bound.plan.groups:
                table = batch.tables.get(group.name)
                if table is None:
                    continue
                if group.ordered:
                    held.setdefault(group.name, []).append(table)
                else:
                    gathered.add({group.name: table})
        merged = {name: slicer.merge(name, [table]) for name, table in gathered.tables().items()}
        return merged | {name: pl.concat(several) for name, several in held.items()}, events


@lru_cache(maxsize=8)
def plan_of(asked: Asked) -> str:
    """How the slices are cut of a tree that is asked this."""
    return fingerprint(asked.job())
