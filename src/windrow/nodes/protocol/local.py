"""A local node's work: events of its source become slices, which are sent once nothing more comes into them.

    events ── sliced ──▶ open slices ── the node's watermark passes their end ──▶ sent, once per slice and key
           ── runs of sessions ──────────────────────────────────────────────────▶ sent with the next batch
           ── events of groups that need the order ──────────────────────────────▶ likewise
           ── windows of groups that are pushed down (`pushed`) ─────────────────▶ once they are closed

A session may close at any time, so the parent must know of all events before the watermark that it is told.

Open slices are not kept on any disk: a batch says from where in the source a node has to read again if it loses them.
Between that **safe** position and the one up to which it had read lie events of which some were sent. Which ones is
known from the time before which each group's slices were sent.

          safe                          read
    ───────┼─────────────────────────────┼─────────▶ position in the source
            sent, if before that time;    new
            else it was in an open slice
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl

from windrow.core.plan.groups import Group
from windrow.core.slices.binding import InputError, no_time
from windrow.core.slices.kernel import time_name
from windrow.core.stream.ingest import time_range
from windrow.core.stream.job import Job
from windrow.core.stream.job_slicer import Gathered, Slicer, Tables, Unordered
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN, Session
from windrow.core.windows.ordered import NODE
from windrow.nodes.counting.local import Counted
from windrow.nodes.protocol.messages import Position
from windrow.nodes.pushdown import Pushed
from windrow.nodes.quantiles.local import LocalQuantiles
from windrow.nodes.queries import Asked

Mark = dict[str, Any]  # a place in a source, in the source's own words


@dataclass
class Chunk:
    """Events of which some may be in open slices: where they begin, and their greatest time."""

    begin: int
    mark: Mark
    newest: int
    slices: dict[str, int]  # where those of its newest event begin
    before: int = INT64_MIN  # the greatest time before them
    counts: dict[str, pl.DataFrame] = field(default_factory=dict)  # of each key, in groups that are counted
    is_sent: bool = False  # in slices


class Closing:
    """Which slices no further event in time can reach: those that begin before the last edge at or before a time."""

    def __init__(self, job: Job) -> None:
        groups = job.bound.plan.groups
        groups = [group for group in groups if not group.is_apart]
        self.at_once = {group.name for group in groups if group.ordered or _has_sessions(group)}
        self._edges = {
            group.name: job.bound.by_name[group.name].edges for group in groups if group.name not in self.at_once
        }

    def bounds(self, watermark: int) -> dict[str, int]:
        """For each group whose slices wait, the last of its edges at or before the watermark."""
        if watermark in (INT64_MIN, INT64_MAX):
            return dict.fromkeys(self._edges, watermark)
        at = np.array([watermark], np.int64)
        return {name: int(edges.floor(at)[0]) for name, edges in self._edges.items()}


def _has_sessions(group: Group) -> bool:
    return any(isinstance(timeline.window, Session) for timeline in group.timelines)


class Reader:
    """What a local node has read and not sent; an `eager` one sends everything at once, and has no open slices."""

    def __init__(
        self, asked: Asked, node: str, lateness: int | None = None, eager: bool = False, unit: int | None = None
    ) -> None:
        self.count = 0  # events that were read
        self.mark: Mark = {}
        self.newest = INT64_MIN
        self.watermark = INT64_MIN
        self.left_out = 0  # events without a time
        self._node, self._lateness, self._eager = node, lateness, eager
        self._sent: dict[str, int] = {}  # by group: before which time everything has been sent
        self._again = 0  # events before this position had been read when a batch was sent that is known to be held
        self._again_from: dict[str, int] = {}  # and those from this time on were in open slices
        self._chunks: list[Chunk] = []
        self._recut = False  # what it has is cut by several plans, and has to be sent as it is
        self._whole = 0  # events before this position were sent in slices, however open these were
        self.pushed = Pushed(asked.job, node)
        late = asked.job.time_columns[asked.job.time].lateness if lateness is None else lateness
        self.counted = Counted(asked.job, node, late or 0, eager, unit)
        self.quantiles = LocalQuantiles(asked.job, node, eager, unit)
        self._use(asked)

    def _use(self, asked: Asked) -> None:
        self.asked, self.job = asked, asked.job
        self._slicer, self._closing = Slicer(self.job.bound, cut=True), Closing(self.job)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._open, self._unordered, self._has_events = Gathered(self._slicer), Unordered(self.job.bound), False

    # --- where it is in the source --------------------------------------------------------------------------------

    @property
    def safe(self) -> tuple[int, Mark]:
        """The position before which all events were sent."""
        return (self._chunks[0].begin, self._chunks[0].mark) if self._chunks else (self.count, self.mark)

    @property
    def position(self) -> Position:
        count, mark = self.safe
        whole = {"mark": mark, "count": count, "newest": self.newest, "left_out": self.left_out}
        if self.counted:
            before = self._chunks[0].before if self._chunks else self.counted.newest
            whole["counted"] = self.counted.saved(before, count)
        if self.quantiles:
            whole["quantiles"] = self.quantiles.saved(count)
        if count == self.count:
            return whole
        return {**whole, "read": self.count, "sent": self._sent, "whole": self._whole, "plan": self.asked.version}

    @property
    def is_behind(self) -> bool:
        """Whether it still reads again what an earlier life had read."""
        return self.count < self._again

    def resume(self, position: Position, watermark: int) -> None:
        """Go on from the position of the last batch that the parent holds."""
        self._begin_anew()
        self._chunks, self._again, self._again_from = [], 0, {}
        if position:
            self.mark, self.count, self.newest = dict(position["mark"]), position["count"], position["newest"]
            self.left_out = position["left_out"]
            self._again, self._again_from = position.get("read", 0), dict(position.get("sent", {}))
            self._sent, self._whole = dict(self._again_from), position.get("whole", 0)
            self._recut = position.get("plan", self.asked.version) != self.asked.version
            if "counted" in position:
                self.counted.restore(position["counted"])
            if "quantiles" in position:
                self.quantiles.restore(position["quantiles"])
        self.watermark = max(self.watermark, watermark)

    # --- events in ------------------------------------------------------------------------------------------------

    def read(self, events: pl.DataFrame, mark: Mark, furthest: int) -> None:
        """Slice events that follow on in the source; none may be later than `furthest`."""
        begin, before = self.count, self.mark
        if events.height:
            prepared = self._prepared(events, begin, furthest)
            again = prepared.filter(pl.col("nth") < self._again) if begin < self._again else prepared[:0]
            new = prepared.filter(pl.col("nth") >= self._again) if again.height else prepared
            if again.height:
                self._slice_again(again)
                self.quantiles.take_again(again)
            if new.height:
                self._open.add(self._slicer.slice(new))
                self._unordered.add(new)
                self._has_events = True
            if prepared.height:
                newest = int(prepared[time_name(self.job.time)].max())  # type: ignore[arg-type]
                was, counts = self.counted.newest, self.counted.take(prepared, self._again) if self.counted else {}
                self._note_chunk(Chunk(begin, before, newest, self._closing.bounds(newest), was, counts))
                self._see(newest)
            self.pushed.take(prepared, begin + events.height)
        self.count += events.height
        self.mark = mark

    def _note_chunk(self, chunk: Chunk) -> None:
        """Two whose last slices are the same are over together, so that there are not more of them than open slices.

        Where nothing waits in slices, every batch has all that was read, or the spool has it (`pushed`).
        """
        before = self._chunks[-1].slices if self._chunks else {}
        holds = (bool(chunk.counts) and not self._eager) or bool(self.quantiles)
        if holds or any(name not in before or start > before[name] for name, start in chunk.slices.items()):
            chunk.is_sent = not chunk.slices
            self._chunks.append(chunk)

    def _see(self, newest: int) -> None:
        lateness = self.job.time_columns[self.job.time].lateness if self._lateness is None else self._lateness
        self.newest = max(self.newest, newest)
        self.watermark = max(self.watermark, self.newest - (lateness or 0))

    def _prepared(self, events: pl.DataFrame, begin: int, furthest: int) -> pl.DataFrame:
        job = self.job
        binding, time_column = job.bound.binding, job.time_columns[job.time]
        checked = binding.checked(events.with_columns(pl.lit(self._node).alias(NODE)))
        missing = binding.without_time(checked)
        if missing is not None and job.bad_events != "drop":
            raise no_time(int(missing.sum()), events.height, job.time)
        prepared = binding.prepare(checked, begin, _no_clock)
        if "nth" not in prepared.columns:
            prepared = prepared.with_columns(nth=pl.int_range(begin, begin + pl.len(), dtype=pl.Int64))
        if missing is not None:
            prepared = prepared.filter(~missing)
            self.left_out += int(missing[max(0, self._again - begin) :].sum())  # the others were before
        if prepared.height:
            _, high = time_range(prepared, job.time, job.bound.plan.furthest.get(job.time), time_column)
            if high > furthest:
                raise InputError(
                    f"an event of node {self._node!r} has the {job.time} {_shown(high)}, further ahead of the clock "
                    f"than {_shown(furthest)}; mend the clock, or raise max_ahead"
                )
        return prepared

    def _slice_again(self, events: pl.DataFrame) -> None:
        """Events that an earlier life had read: only what it had in open slices is new to the parent."""
        time, slicer = pl.col(time_name(self.job.time)), self._slicer
        events = events.filter(pl.col("nth") >= self._whole)
        since = {name: self._again_from.get(name, INT64_MIN) for name in self._closing.bounds(INT64_MIN)}
        for bound in set(since.values()):
            tables = slicer.slice(events.filter(time >= bound))
            self._open.add({name: table for name, table in tables.items() if since.get(name) == bound})

    # --- slices out -----------------------------------------------------------------------------------------------

    def due(
        self,
        everything: bool = False,
        ended: bool = False,
        leaves: bool = False,
        rests: bool = False,
        flush: bool = False,
    ) -> Tables | None:
        """What is to be sent now; None while nothing is. A node that `rests` may be silent for long."""
        if self.is_behind:
            return None
        windows = self.pushed.due(INT64_MAX if ended else self.watermark, gone=ended or leaves)
        windows |= self.counted.due(self.watermark, self.count, flush, rests, leaves, ended)
        slices = self._slices_due(everything, leaves)
        windows |= self.quantiles.due(leaves, ended, flush)
        self._forget_chunks()
        return windows or None if slices is None else slices | windows

    def hear(self, tables: Tables, number: int, over: bool) -> None:
        """A request of the root."""
        self.counted.hear(tables, number, over)
        self.quantiles.request(tables)

    @property
    def is_full(self) -> bool:
        """Whether it keeps so much that the root has not settled that it reads no more."""
        return self.counted.is_full

    def _slices_due(self, everything: bool, leaves: bool) -> Tables | None:
        bounds = self._closing.bounds(self.watermark)
        moved = any(bound > self._sent.get(name, INT64_MIN) for name, bound in bounds.items())
        is_waiting = self._has_events and (self._eager or bool(self._closing.at_once))
        if not (moved or is_waiting or everything):
            return None
        everything = everything or self._eager or self._recut
        tables, kept = {}, {}
        for name, table in self._open.tables().items():
            bound = INT64_MAX if everything else bounds.get(name, INT64_MAX)
            tables[name], kept[name] = apart(self._slicer.merge(name, [table]), bound)
            if name in self.quantiles and tables[name].height:
                tables |= self.quantiles.refined(name, tables[name], self.count, bound, leaves)
        tables |= self._unordered.tables()
        self._begin_anew()
        self._open.add(kept)
        self._sent = bounds
        low = INT64_MAX if everything else min(bounds.values(), default=INT64_MAX)
        self._whole = self.count if everything else self._whole
        for chunk in self._chunks:
            chunk.is_sent |= chunk.newest < low
        self._recut = False
        return {name: table for name, table in tables.items() if table.height}

    def _forget_chunks(self) -> None:
        """Of what was sent, and is settled, nothing has to be read again."""
        low = min(self.counted.oldest, self.quantiles.oldest)
        while self._chunks and self._chunks[0].is_sent and self._chunks[0].newest < low:
            self.counted.passed(self._chunks.pop(0).counts)

    def switch(self, asked: Asked) -> Tables:
        """Cut by another plan from now on; returns all that was cut by the one before."""
        tables = self.due(everything=True)
        assert tables is not None
        self._use(asked)
        self.pushed.switch(self.job)
        self.counted.switch(self.job)
        self.quantiles.switch(self.job)
        self._forget_chunks()
        self._sent = self._closing.bounds(self.watermark)
        self._forget_chunks()
        return tables


def apart(table: pl.DataFrame, bound: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The slices that begin before a time, and the others."""
    closed = table["slice_start"].to_numpy() < bound
    if closed.all():
        return table, table[:0]
    return table.filter(pl.Series(closed)), table.filter(pl.Series(~closed))


def _shown(time: int) -> str:
    """A time as it is read by people; those after the year 9999 are numbers."""
    try:
        return f"{datetime(1970, 1, 1) + timedelta(microseconds=time):%Y-%m-%d %H:%M:%S}"
    except OverflowError:
        return f"{time:,}"


def _no_clock() -> int:
    raise AssertionError("nodes have no arrival times")
