"""A local node's work: events of its source become slices, which are sent once no further event falls into them.

    events ── sliced ──▶ open slices ── the node's watermark passes their end ──▶ sent, once per slice and key
           ── runs of sessions ──────────────────────────────────────────────────▶ sent with the next batch
           ── events of groups that need the order ──────────────────────────────▶ likewise
           ── windows that the node finds itself (`pushdown.py`) ────────────────▶ sent once they are closed

Slices of sessions are not held back until a watermark, because a session may close at any time: the parent must have
all events before the watermark that a batch announces.

Open slices are not kept on disk. Instead, a batch says from where in the source a later life of the node has to read
again: the **safe** position. Of the events between there and where the node had read to, some were sent already. Which
ones follows from the time before which each group's slices were sent.

          safe                          read
    ───────┼─────────────────────────────┼─────────▶ position in the source
            sent, if before that time;    new
            else it was in an open slice
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl

from windrow.core.arrays.dataframes import InputError
from windrow.core.slices.kernel import time_name
from windrow.core.stream.ingest import admit
from windrow.core.stream.job import Job
from windrow.core.stream.job_slicer import Gathered, Slicer, Tables, Unordered
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN, Session
from windrow.core.windows.ordered import NODE
from windrow.nodes.counting.local import Counted
from windrow.nodes.occasion import Occasion, Why
from windrow.nodes.protocol.children import after
from windrow.nodes.protocol.journal import WHAT_TO_DO, LogStore
from windrow.nodes.protocol.messages import Announced, Notes, Out, Position, Report, Request, Welcome
from windrow.nodes.protocol.send_window import SendWindow
from windrow.nodes.pushdown import Pushed
from windrow.nodes.quantiles.local import LocalQuantiles
from windrow.nodes.queries import QuerySet
from windrow.nodes.requests import AGAIN
from windrow.nodes.tables import PROGRESS, NodeProgress, progress_table

_WINDOWS = "pushed "  # how names of the log store begin
Mark = dict[str, Any]  # a position in a source, in the source's own words


@dataclass
class Chunk:
    """Events that were read together, some of which may be in open slices."""

    begin: int  # number of the first event
    mark: Mark  # the source's before it
    newest: int  # the greatest time
    slices: dict[str, int]  # of each group, the start of the slice that has the newest event
    before: int = INT64_MIN  # the greatest time of the events before these
    counts: dict[str, pl.DataFrame] = field(default_factory=dict)  # events of each key, in groups that count
    is_sent: bool = False  # all its slices were sent


class Closing:
    """Which slices are closed at a watermark: those that start before the last edge at or before it."""

    def __init__(self, job: Job) -> None:
        groups = [compiled for compiled in job.compiled.groups if not compiled.group.is_apart]
        sessions = [one for one in groups if any(isinstance(line.window, Session) for line in one.group.timelines)]
        self._edges = {one.group.name: one.edges for one in groups if not (one.group.ordered or one in sessions)}
        self.at_once = {one.group.name for one in groups} - self._edges.keys()  # sent with the next batch

    def bounds(self, watermark: int) -> dict[str, int]:
        """For each group whose slices are sent once they are closed, its last edge at or before the watermark."""
        if watermark in (INT64_MIN, INT64_MAX):
            return dict.fromkeys(self._edges, watermark)
        at = np.array([watermark], np.int64)
        return {name: int(edges.floor(at)[0]) for name, edges in self._edges.items()}


class Reader:
    """What a local node has read and not sent; an `eager` one sends everything at once, and has no open slices."""

    def __init__(
        self,
        query_set: QuerySet,
        node: str,
        lateness: int | None = None,
        eager: bool = False,
        block_size: int | None = None,
    ) -> None:
        self.count = 0  # events that were read
        self.mark: Mark = {}
        self.newest = INT64_MIN
        self.watermark = INT64_MIN
        self.left_out = 0  # bad events
        self.has_ended = False  # the source has come to its end
        self.is_over = False  # nothing can be requested of it any more: it leaves, has nothing, or the root is done
        self._is_done = False  # the root has said so
        self._received = 0  # the number of the last request
        self._reported = NodeProgress("")  # what the root knows
        self._node, self._lateness, self._eager = node, lateness, eager
        self._sent: dict[str, int] = {}  # of each group: all slices that start before this time were sent
        self._reread_until = 0  # an earlier life had read the events before this position,
        self._reread_from: dict[str, int] = {}  # and had those from this time on in open slices
        self._complete = 0  # all events before this position were sent, in slices however open
        self._chunks: list[Chunk] = []
        self._is_recut = False  # its slices were cut by several query sets, and have to be sent as they are
        self.pushed = Pushed(query_set.job, node)
        late = query_set.job.time_columns[query_set.job.time].lateness if lateness is None else lateness
        self.counted = Counted(query_set.job, node, late or 0, eager, block_size)
        self.quantiles = LocalQuantiles(query_set.job, node, eager, block_size)
        self._use(query_set)

    def _use(self, query_set: QuerySet) -> None:
        self.query_set, self.job = query_set, query_set.job
        self._slicer, self._closing = Slicer(self.job.compiled, at_gaps=True), Closing(self.job)
        self._drop_open()

    def _drop_open(self) -> None:
        self._open, self._unordered, self._has_events = Gathered(self.job.compiled), Unordered(self.job.compiled), False

    # --- where it is in the source --------------------------------------------------------------------------------

    @property
    def safe(self) -> tuple[int, Mark]:
        """The position before which all events were sent: a later life reads again from there."""
        return (self._chunks[0].begin, self._chunks[0].mark) if self._chunks else (self.count, self.mark)

    @property
    def position(self) -> Position:
        count, mark = self.safe
        position: dict[str, Any] = {"mark": mark, "count": count, "newest": self.newest, "left_out": self.left_out}
        if self.counted:
            before = self._chunks[0].before if self._chunks else self.counted.newest
            position["counted"] = self.counted.saved(before, count)
        if self.quantiles:
            position["quantiles"] = self.quantiles.saved(count)
        if self.counted or self.quantiles:
            position["done"] = self._is_done
        if count == self.count:
            return position
        sent = {"read": self.count, "sent": self._sent, "complete": self._complete}
        return {**position, **sent, "version": self.query_set.version}

    @property
    def is_behind(self) -> bool:
        """Whether it still reads again what an earlier life had read."""
        return self.count < self._reread_until

    def resume(self, position: Position, watermark: int) -> None:
        """Go on from the position of the last batch that the parent has stored."""
        self._drop_open()
        self._chunks, self._reread_until, self._reread_from = [], 0, {}
        if position:
            self.mark, self.count, self.newest = dict(position["mark"]), position["count"], position["newest"]
            self.left_out = position["left_out"]
            self._reread_until, self._reread_from = position.get("read", 0), dict(position.get("sent", {}))
            self._sent, self._complete = dict(self._reread_from), position.get("complete", 0)
            self._is_recut = position.get("version", self.query_set.version) != self.query_set.version
            if "counted" in position:
                self.counted.restore(position["counted"])
            if "quantiles" in position:
                self.quantiles.restore(position["quantiles"])
            self.is_over = self._is_done = position.get("done", False)
        self.watermark = max(self.watermark, watermark)

    # --- events in ------------------------------------------------------------------------------------------------

    def read(self, events: pl.DataFrame, mark: Mark, furthest: int) -> None:
        """Slice events that follow on in the source; none may be later than `furthest`."""
        begin, mark_before = self.count, self.mark
        if events.height:
            prepared = self._prepared(events, begin, furthest)
            is_again = pl.col("nth") < self._reread_until
            again = prepared.filter(is_again) if self.is_behind else prepared[:0]
            new = prepared.filter(~is_again) if again.height else prepared
            if again.height:
                self._slice_again(again)
                self.quantiles.take_again(again)
            if new.height:
                self._open.add(self._slicer.slice(new))
                self._unordered.add(new)
                self._has_events = True
            if prepared.height:
                newest = int(prepared[time_name(self.job.time)].max())  # type: ignore[arg-type]
                before = self.counted.newest
                counts = self.counted.take(prepared, self._reread_until) if self.counted else {}
                self._add_chunk(Chunk(begin, mark_before, newest, self._closing.bounds(newest), before, counts))
                self._move_watermark(newest)
            self.pushed.take(prepared, begin + events.height)
        self.count += events.height
        self.mark = mark

    def _add_chunk(self, chunk: Chunk) -> None:
        """Remember a chunk, unless it opens no slice that the one before had not opened.

        Such a chunk is sent together with the one before, which begins earlier, so that there are never more chunks
        than open slices. Where no slices are held back, every batch has all that was read, or the log store has it.
        """
        before = self._chunks[-1].slices if self._chunks else {}
        holds = (bool(chunk.counts) and not self._eager) or bool(self.quantiles)
        if holds or any(name not in before or start > before[name] for name, start in chunk.slices.items()):
            chunk.is_sent = not chunk.slices
            self._chunks.append(chunk)

    def _move_watermark(self, newest: int) -> None:
        lateness = self.job.time_columns[self.job.time].lateness if self._lateness is None else self._lateness
        self.newest = max(self.newest, newest)
        self.watermark = max(self.watermark, self.newest - (lateness or 0))

    def _prepared(self, events: pl.DataFrame, begin: int, furthest: int) -> pl.DataFrame:
        """Check events, and evaluate what the slices need of them."""
        job, of_node = self.job, events.with_columns(pl.lit(self._node).alias(NODE))
        admitted = admit(of_node, job.compiled, job.time_columns, job.options.bad_events, begin, numbered=True)
        _, high = admitted.ranges[job.time]
        if admitted.events.height and high > furthest:
            raise InputError(
                f"an event of node {self._node!r} has the {job.time} {_shown(high)}, further ahead of the clock "
                f"than {_shown(furthest)}; mend the clock, or raise max_ahead"
            )
        if admitted.left_out is not None:
            counted = max(0, self._reread_until - begin)  # by an earlier life
            self.left_out += int(admitted.left_out[counted:].sum())
        return admitted.events

    def _slice_again(self, events: pl.DataFrame) -> None:
        """Slice events that an earlier life had read; the parent lacks only those that were in open slices."""
        time, slicer = pl.col(time_name(self.job.time)), self._slicer
        events = events.filter(pl.col("nth") >= self._complete)
        since = {name: self._reread_from.get(name, INT64_MIN) for name in self._closing.bounds(INT64_MIN)}
        # Groups have different bounds; each keeps only what was cut of the events from its own bound on.
        for bound in set(since.values()):
            tables = slicer.slice(events.filter(time >= bound))
            self._open.add({name: table for name, table in tables.items() if since.get(name) == bound})

    # --- slices out -----------------------------------------------------------------------------------------------

    def due(self, why: Why = "running") -> Tables | None:
        """The tables that are to be sent now; None while nothing is. While `resting`, it may be silent for long."""
        if self.is_behind:
            return None
        occasion = Occasion(why, self.watermark, self.count, self.has_ended)
        windows, segments = self.pushed.due(occasion), self.counted.due(occasion)
        slices = self._slices_due(occasion)
        windows |= segments | self.quantiles.due(occasion)
        self.is_over |= occasion.leaves
        self.is_over |= occasion.has_ended and not self.counted and self.quantiles.oldest == INT64_MAX
        windows |= self._progress(occasion, bool(segments))
        self._forget_chunks()
        return windows or None if slices is None else slices | windows

    def _progress(self, occasion: Occasion, has_segments: bool) -> Tables:
        """How far the node is, if the root may request something of it, and does not know.

        Each report is a message: progress of `final` alone is reported once per `patience`, and what was received when
        something else is, or nothing has come for a while.
        """
        counted, reported = self.counted, self._reported
        if not (counted or self.quantiles.has_kept):
            return {}
        final = counted.final if counted else INT64_MAX if occasion.has_ended else INT64_MIN
        progress = NodeProgress(self._node, final, counted.is_idle, self._received, self.is_over, counted.rewound)
        is_news = progress != reported._replace(final=final, received=self._received)
        if occasion.flushes or reported.final == INT64_MIN or final - reported.final >= counted.patience:
            is_news |= final != reported.final
        if occasion.flushes and final > INT64_MIN:
            is_news |= self._received != reported.received
        if not (is_news or has_segments or counted.late):
            return {}
        self._reported, late, counted.late = progress, counted.late, 0
        return {PROGRESS: progress_table(progress._replace(late=late))}

    def request(self, request: Request) -> None:
        """Take a request of the root."""
        self._received = max(self._received, request.number)
        self.counted.request(request.tables)
        self.quantiles.request(request.tables)
        if request.over:
            self.is_over = self._is_done = True
            self.counted.forget()
            self.quantiles.forget()

    @property
    def is_needed(self) -> bool:
        """Whether the root may still request something."""
        return bool(self.counted or self.quantiles) and not self.is_over

    def _slices_due(self, occasion: Occasion) -> Tables | None:
        everything = occasion.sends_open
        bounds = self._closing.bounds(self.watermark)
        moved = any(bound > self._sent.get(name, INT64_MIN) for name, bound in bounds.items())
        is_waiting = self._has_events and (self._eager or bool(self._closing.at_once))
        if not (moved or is_waiting or everything):
            return None
        everything = everything or self._eager or self._is_recut
        tables, still_open = {}, {}
        for name, table in self._open.merged().items():
            bound = INT64_MAX if everything else bounds.get(name, INT64_MAX)
            tables[name], still_open[name] = split_at(table, bound)
            if name in self.quantiles and tables[name].height:
                tables |= self.quantiles.refined(name, tables[name], self.count, bound, occasion.leaves or self.is_over)
        tables |= self._unordered.tables()
        self._drop_open()
        self._open.add(still_open)
        self._sent = bounds
        low = INT64_MAX if everything else min(bounds.values(), default=INT64_MAX)
        self._complete = self.count if everything else self._complete
        for chunk in self._chunks:
            chunk.is_sent |= chunk.newest < low
        self._is_recut = False
        return {name: table for name, table in tables.items() if table.height}

    def _forget_chunks(self) -> None:
        """Drop the first chunks as far as they were sent, and no request can be about them any more."""
        low = min(self.counted.oldest, self.quantiles.oldest)
        while self._chunks and self._chunks[0].is_sent and self._chunks[0].newest < low:
            self.counted.passed(self._chunks.pop(0).counts)

    def switch(self, query_set: QuerySet) -> Tables:
        """Cut by another query set from now on; returns everything that was cut by the one before."""
        tables = self.due("switching")
        assert tables is not None
        self._use(query_set)
        self.pushed.switch(self.job)
        self.counted.switch(self.job)
        self.quantiles.switch(self.job)
        self._sent = self._closing.bounds(self.watermark)
        self._forget_chunks()
        return tables


class LocalRole:
    """A node in its role as a reader of a source: when it reads, and when it reports what."""

    def __init__(
        self,
        name: str,
        window: SendWindow,
        store: LogStore | None,
        notes: Notes,
        new_reader: Callable[[QuerySet], Reader],
        idle: int | None,
        ahead: int | None,
    ) -> None:
        """`store` keeps the windows of a node that finds some itself (push-down)."""
        self.reader: Reader | None = None  # none before the first Welcome
        self._name, self._window, self._store, self._notes, self._new_reader = name, window, store, notes, new_reader
        self._idle, self._ahead = idle, ahead
        self._announced = Announced()
        self._must_announce = False  # the parent does not know yet by which version it cuts
        self._next: QuerySet | None = None  # a query set that waits until everything of an earlier life is read again
        self._last_events: int | None = None  # when events came in
        self._last_flush: int | None = None  # when buffered events were looked at

    @property
    def has_ended(self) -> bool:
        return self.reader is not None and self.reader.has_ended

    @property
    def query_set(self) -> QuerySet | None:
        return self.reader.query_set if self.reader is not None else None

    @property
    def mark(self) -> Mark | None:
        if self.reader is None or self.has_ended or self._window.is_full or self.reader.counted.is_full:
            return None
        return self.reader.mark

    @property
    def watermark(self) -> int:
        if self.reader is None:
            return INT64_MIN
        return INT64_MAX if self.has_ended else self.reader.watermark

    @property
    def is_needed(self) -> bool:
        """Whether the root may still request something from it."""
        return self.reader is not None and self.reader.is_needed

    # --- what drives it -----------------------------------------------------------------------------------------------

    def tick(self, now: int) -> Out:
        """Announce that no events have come for a while, or that they come again; and which version it cuts by."""
        reader = self.reader
        if reader is None or self.has_ended or reader.is_behind:
            return []
        self._last_events = now if self._last_events is None else self._last_events
        is_idle = self._idle is not None and now - self._last_events >= self._idle
        if not self._must_announce and is_idle == bool(self._announced.idle):
            return []
        tables = reader.due("resting" if is_idle else "running")
        return self._send(tables or {}, now, self._announced._replace(idle=int(is_idle)))

    def flush(self, now: int) -> Out:
        """Report the segments and values that the reader holds back for few, larger batches, once nothing has come
        for a while."""
        reader = self.reader
        if reader is None or not (reader.counted or reader.quantiles) or reader.is_behind:
            return []
        self._last_flush = now if self._last_flush is None else self._last_flush
        if now - self._last_flush < AGAIN or self._window.unacknowledged:
            return []
        self._last_flush = now
        tables = reader.due("flushing")
        return self._send(tables, now) if tables else []

    def read(self, events: pl.DataFrame, mark: Mark, now: int, last: bool) -> Out:
        reader = self.reader
        assert reader is not None
        has_clock = not reader.job.is_integer and self._ahead is not None
        reader.read(events, mark, now + (self._ahead or 0) if has_clock else INT64_MAX)
        if events.height:
            self._last_events = now
        if last and reader.is_behind:
            raise InputError(f"the source of node {self._name!r} ends before what it had; give it all events")
        out = self.switch(self._next, now) if self._next is not None and not reader.is_behind else []
        reader.has_ended = last
        tables = reader.due()
        is_news = self._must_announce or bool(events.height and self._announced.idle)
        if tables is None and not (is_news and not reader.is_behind):
            return out
        return [*out, *self._send(tables or {}, now, self._announced._replace(idle=0))]

    def answer(self, request: Request, now: int) -> Out:
        reader = self.reader
        if reader is None or reader.is_behind or request.node != self._name:
            return []
        wrong = (form.wrong_request(request.tables) for form in reader.query_set.forms)
        reason = next((reason for reason in wrong if reason is not None), None)
        if reason is not None:
            self._notes.once(reason, f"not heard: {reason}")
            return []
        reader.request(request)
        tables = reader.due()
        return self._send(tables, now) if tables else []

    def leave(self, now: int) -> Out:
        if self.reader is None or (self.has_ended and not self.is_needed):
            return []
        tables = self.reader.due("leaving")
        return [] if tables is None else self._send(tables, now)

    # --- the query set, and where it goes on --------------------------------------------------------------------------

    def begin(self, query_set: QuerySet, welcome: Welcome) -> str | None:
        """Begin after the last batch that the parent has stored; returns why that cannot be."""
        self.reader = reader = self._new_reader(query_set)
        self._next = None
        if reader.pushed and (reason := self._restore_windows(reader, welcome.accepted, welcome.position)):
            return reason
        self._window.restart(welcome.accepted, welcome.position)
        reader.resume(welcome.position, welcome.position.get("watermark", INT64_MIN))
        self._announced, self._must_announce = Announced(query_set.version, after(reader.newest)), True
        return None

    def _restore_windows(self, reader: Reader, number: int, position: Position) -> str | None:
        """Go on with the windows that were open after a batch; returns why that cannot be."""
        if self._store is None:
            return "windows are found at the local nodes of this tree (push_down), and this one has no spool"
        name = _windows_after(number, position.get("life"))
        windows = self._store.get(name)
        if windows is None and number:
            return (
                f"the spool of {self._name!r} has no windows after batch {number}, which {self._window.receiver} has: "
                f"one of the two was emptied, or an older copy of it was put back; {WHAT_TO_DO}"
            )
        others = [other for other in self._store.names() if other.startswith(_WINDOWS) and other != name]
        self._store.commit({}, others)
        if windows is not None:
            reader.pushed.restore(windows)
        return None

    def adopt(self, query_set: QuerySet, now: int) -> Out:
        """Cut by another query set, once everything that an earlier life had read is read again."""
        assert self.reader is not None
        if self.reader.is_behind:
            self._next = query_set
            return []
        return self.switch(query_set, now)

    def switch(self, query_set: QuerySet, now: int) -> Out:
        """Report everything that is cut by the query set before, and go on with another one."""
        assert self.reader is not None
        self._next = None
        tables = self.reader.switch(query_set)
        since = after(self.reader.newest)
        return self._send(tables, now, self._announced._replace(version=query_set.version, since=since))

    def _send(self, tables: Tables, now: int, announced: Announced | None = None) -> Out:
        reader = self.reader
        assert reader is not None
        self._announced, self._must_announce = announced or self._announced, False
        position = {**reader.position, "watermark": reader.watermark}
        number = self._window.number + 1
        if reader.pushed and self._store is not None:
            # The windows after the last acknowledged batch are still needed: a later life goes on with them.
            position["life"] = self._window.life
            done = {f"{_WINDOWS}{acknowledged - 1}" for acknowledged in self._window.deletable}
            old = [name for name in self._store.names() if name.rpartition(" of ")[0] in done]
            self._store.commit({_windows_after(number, self._window.life): reader.pushed.saved()}, old)
        self._window.deletable.clear()
        events = {self._name: position["count"]}
        return self._window.send(Report(self.watermark, self._announced, events, reader.newest, tables, position), now)


def _windows_after(batch: int, life: int | None) -> str:
    """Under which name the log store keeps the windows that were open after a batch.

    A batch that was not acknowledged is made anew in the next life, and after that other windows may be open.
    """
    return f"{_WINDOWS}{batch} of {life}"


def split_at(table: pl.DataFrame, bound: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The slices that start before a time, and the others."""
    closed = table["slice_start"].to_numpy() < bound
    if closed.all():
        return table, table[:0]
    return table.filter(pl.Series(closed)), table.filter(pl.Series(~closed))


def _shown(time: int) -> str:
    """Format a time for people; a time after the year 9999 is a number."""
    try:
        return f"{datetime(1970, 1, 1) + timedelta(microseconds=time):%Y-%m-%d %H:%M:%S}"
    except OverflowError:
        return f"{time:,}"
