"""A local node's source, read by a thread of its own while the node slices what was read before.

    source ── read ──▶ at most two reads ahead ── take ──▶ the node
           ◀── from where, which columns, up to where the parent has stored everything ── direct ──

Only that thread touches the source. It reads while the node wants events. If the node wants them from another mark than
the one that the reads lead to, they are dropped, and the source resumes from the mark.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

from windrow.io import EVENTS_AT_ONCE
from windrow.nodes.sources import Read, Source

READS_AHEAD = 2  # reads that nobody has taken yet
READ_WAIT = 0.2  # seconds that a source may wait for events


class SourceThread:
    """A source and its thread; `wake` is called when there is something to take, `failed` if it cannot go on."""

    def __init__(self, source: Source, wake: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        self._source, self._wake, self._failed = source, wake, failed
        self._changed = threading.Condition()
        self._ready: deque[Read] = deque()
        self._mark: Mapping[str, Any] | None = None  # after the reads that were taken
        self._needed: Mapping[str, pl.DataType] = {}
        self._generation = 0  # of reads: those of an earlier one are dropped
        self._resume: Mapping[str, Any] | None = None
        self._confirmed: Mapping[str, Any] | None = None  # the mark up to which the parent has stored everything
        self._passed_on: Mapping[str, Any] | None = None  # the last such mark that the source knows
        self._wanted = self._over = self._closed = False
        self._thread = threading.Thread(target=self._run, name="source", daemon=True)
        self._thread.start()

    def direct(
        self,
        mark: Mapping[str, Any] | None,
        needed: Mapping[str, pl.DataType],
        confirmed: Mapping[str, Any] | None,
    ) -> None:
        """Read from this mark on, with these columns; with no mark, read nothing for now."""
        with self._changed:
            if mark is not None and (mark != self._mark or needed != self._needed):
                self._mark, self._needed, self._resume = mark, needed, mark
                self._generation += 1
                self._ready.clear()
                self._over = False
            if (mark is not None) != self._wanted or self._resume is not None or confirmed != self._confirmed:
                self._wanted, self._confirmed = mark is not None, confirmed
                self._changed.notify_all()

    def take(self) -> Read | None:
        """Take what was read, several reads at once; None if there is nothing yet."""
        with self._changed:
            reads: list[Read] = []
            while self._ready and sum(read.events.height for read in reads) < EVENTS_AT_ONCE:
                reads.append(self._ready.popleft())
            if not reads:
                return None
            self._mark = reads[-1].mark
            self._changed.notify_all()
        events = [read.events for read in reads]
        return Read(pl.concat(events) if len(events) > 1 else events[0], reads[-1].mark, reads[-1].last)

    def close(self, wait: float = 2.0) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(wait)

    def _may_read(self) -> bool:
        return self._wanted and not self._over and len(self._ready) < READS_AHEAD

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._closed or self._may_read() or self._confirmed != self._passed_on
                    )
                    generation, needed, confirmed = self._generation, self._needed, self._confirmed
                    may_read, resume = self._may_read() and not self._closed, self._resume
                    if may_read:
                        self._resume = None
                if confirmed is not None and confirmed != self._passed_on:
                    self._source.confirm(confirmed)
                self._passed_on = confirmed
                if self._closed:
                    break
                if may_read:
                    self._read(generation, needed, resume)
            self._source.close()
        except Exception as error:
            self._failed(error)

    def _read(self, generation: int, needed: Mapping[str, pl.DataType], resume: Mapping[str, Any] | None) -> None:
        if resume is not None:
            self._source.resume(resume)
        read = self._source.read(needed, READ_WAIT)
        if read is None:
            return
        with self._changed:
            if generation != self._generation:
                return
            self._ready.append(read)
            self._over = read.last
        self._wake()
