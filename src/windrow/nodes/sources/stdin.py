"""Standard input, or any other pipe: lines as they come, of JSON or of CSV with its header.

A pipe cannot be read again: what was read and is not confirmed when the node ends is lost. That is at most what the
node has read and its parent has not acknowledged.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from windrow.nodes.sources.base import GATHER, TIME_FORMAT, Mark, Read, Source, SourceError, Types, nothing, place_of
from windrow.nodes.sources.lines import BAD_LINES, LONGEST_LINE, READ_BYTES, Lines, line_format


@dataclass
class Pipe(Source):
    """The lines of a file descriptor, until it ends."""

    replayable = False
    format: Annotated[str, line_format] = "json"
    header: Sequence[str] | None = None
    bad_lines: Annotated[str, BAD_LINES] = "raise"
    time_format: Annotated[str | None, TIME_FORMAT] = None
    file: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        header = self.header
        if header is not None and (
            self.format != "csv" or isinstance(header, str) or not all(isinstance(name, str) for name in header)
        ):
            raise SourceError("standard input: header is a list of names, and goes with format: csv")
        self._lines = Lines("standard input", self.format, self.bad_lines, self.time_format)
        self._lines.header = None if header is None else list(header)
        self._buffer = bytearray()
        self._whole = 0  # bytes of the buffer that are whole lines
        self._before = 0  # lines of earlier lives
        self._ended = False

    @property
    def dropped(self) -> int:
        return self._lines.dropped

    def resume(self, mark: Mark) -> None:
        if mark:
            self._before = place_of(mark, {"lines": int}, "standard input").lines - self._lines.number
            self.notes.append(
                f"standard input cannot be read again: what came after line {mark['lines']:,} and was not "
                "acknowledged when the node ended is lost"
            )

    def read(self, needed: Types, wait: float) -> Read | None:
        self._gather(wait)
        if not self._whole and not self._ended:
            return None
        take = len(self._buffer) if self._ended else self._whole
        data = bytes(self._buffer[:take])
        del self._buffer[:take]
        self._whole = 0
        events = self._lines.parse(data, needed) if data else nothing(needed)
        return Read(events, {"lines": self._before + self._lines.number}, self._ended)

    def _gather(self, wait: float) -> None:
        """Read what comes within so many seconds, and a little more once there is a line."""
        until = time.monotonic() + wait
        while not self._ended and (len(self._buffer) < READ_BYTES or not self._whole):
            left = until - time.monotonic()
            ready, _, _ = select.select([self.file], [], [], max(0.0, left))
            if not ready:
                return
            data = os.read(self.file, 1 << 20)
            self._ended = not data
            end = data.rfind(b"\n") + 1
            if end and not self._whole:
                until = min(until, time.monotonic() + GATHER)
            self._whole = len(self._buffer) + end if end else self._whole
            self._buffer += data
            if len(self._buffer) >= LONGEST_LINE and not self._whole:
                raise self._lines.too_long()
