"""Files that grow, as a source: lines of CSV or JSON that are added at the end, as logs have them.

Only whole lines are taken. Several files follow each other in the order of their names: once one with a later name is
there, what the earlier one holds by then is all of it. A mark is a file and how many of its bytes were read, with a
checksum of the last few, by which a file is recognised that was written anew.
"""

from __future__ import annotations

import os
import zlib
from typing import Any, BinaryIO

import polars as pl

from windrow.core.slices.binding import InputError
from windrow.io.event_files import columns_in, named
from windrow.nodes.sources.base import Mark, Read, Types, checked_mark, nothing
from windrow.nodes.sources.folder import FileSource
from windrow.nodes.sources.lines import LONGEST_LINE, READ_BYTES, Lines, header_of

TAIL_BYTES = 256  # bytes by which a file is recognised
_MARK = {"file": str, "bytes": int, "lines": int, "files": int, "tail": int}


class GrowingFiles(FileSource):
    """Lines that are added to the files of one node."""

    def __init__(
        self,
        path: str,
        *,
        format: str | None = None,
        bad_lines: str = "raise",
        epoch: str | None = None,
        delete: bool = False,
        until_end: bool = False,
    ) -> None:
        super().__init__(path, format, delete, until_end, ("csv", "json"))
        self._settings = bad_lines, epoch
        Lines("files", "json", *self._settings)  # refuses what cannot be set
        self._dropped = 0  # lines of files before this one
        self.resume({})

    @property
    def columns(self) -> dict[str, pl.DataType]:
        """Those of the first file that has an event."""
        if not self._columns:
            for name in self._folder.names()[:1]:
                with named(self._folder.full(name)), open(self._folder.full(name), "rb") as file:
                    data = file.read(1 << 20)
                    self._columns = columns_in(data[: data.rfind(b"\n") + 1], self._folder.form(name))
        return self._columns

    @property
    def dropped(self) -> int:
        """Lines that were left out."""
        lines = self._lines  # which another thread may set
        return self._dropped + (lines.dropped if lines else 0)

    def resume(self, mark: Mark) -> None:
        self._file = None
        self._lines: Lines | None = None
        self._bytes = self._files = self._tail = 0
        self._ended = False
        if mark:
            given = checked_mark(mark, _MARK, "files that grow")
            self._files, self._bytes, self._tail = given["files"], given["bytes"], given["tail"]
            self._file = given["file"]
            if os.path.exists(self._folder.full(self._file)):
                self._lines = self._parser(self._file)
                self._lines.number = given["lines"]
        self._reported = self._file
        self._folder.begin(self._file, self._files)

    def _next(self, needed: Types) -> Read | None:
        while True:
            # looked for first: what comes into this file after a later one is there need not be found
            fresh = self._fresh()
            over = bool(fresh) or self._until_end
            if self._file is not None:
                data, at_end = self._more(over)
                if data:
                    assert self._lines is not None
                    events = self._lines.parse(data, needed)
                    self._reported = self._file
                    return Read(events, self._mark(), self._until_end and not fresh and at_end)
            if not fresh:
                moved = self._file != self._reported  # to a file that has no lines yet: the one before may go
                self._reported = self._file
                return Read(nothing(needed), self._mark(), self._until_end) if self._until_end or moved else None
            self._dropped, self._lines = self.dropped, None
            self._file, self._bytes, self._tail, self._files = fresh[0], 0, 0, self._files + 1
            self._folder.opened(self._file)

    def _more(self, over: bool) -> tuple[bytes, bool]:
        """Whole lines that follow on, and whether they are all that there is; with `over`, the last may have no end."""
        assert self._file is not None
        path = self._folder.full(self._file)
        size = self._folder.size(self._file)
        if size == self._bytes:
            return b"", True
        with open(path, "rb") as file:
            self._same(file, size)
            if self._lines is None:
                self._lines = self._parser(self._file)
            data = file.read(READ_BYTES)
            while b"\n" not in data and self._bytes + len(data) < size:
                if len(data) >= LONGEST_LINE:
                    raise InputError(
                        f"line {self._lines.number + 1:,} of {path!r} is longer than {LONGEST_LINE:,} bytes"
                    )
                data += file.read(READ_BYTES)
            at_end = self._bytes + len(data) >= size
            if not (over and at_end):
                data = data[: data.rfind(b"\n") + 1]
            if data:
                self._bytes += len(data)
                self._tail = _checksum(file, self._bytes)
        return data, at_end

    def _same(self, file: BinaryIO, size: int) -> None:
        """Refuse a file that is not the one that was read, and go to where it is read on."""
        if size < self._bytes or _checksum(file, self._bytes) != self._tail:
            raise InputError(
                f"file {file.name!r} is not the one of which {self._bytes:,} bytes were read: it was written anew; "
                "lines may only be added, and a new file needs a name that comes after those before it"
            )
        file.seek(self._bytes)

    def _parser(self, name: str) -> Lines:
        path, form = self._folder.full(name), self._folder.form(name)
        if path.endswith(".gz"):
            raise InputError(f"file {path!r} is compressed, and so cannot grow line by line")
        lines = Lines(f"file {path!r}", form, *self._settings)
        if form == "csv" and self._bytes:
            with open(path, "rb") as file:
                lines.header = header_of(file.readline(), f"file {path!r}")
        return lines

    def _mark(self) -> dict[str, Any]:
        if self._file is None:
            return {}
        at = {"file": self._file, "bytes": self._bytes, "lines": self._lines.number if self._lines else 0}
        return {**at, "files": self._files, "tail": self._tail}

    def confirm(self, mark: Mark) -> None:
        if self._delete and mark:
            self._folder.delete(mark["file"], False)

    def close(self) -> None:
        """Files are open only while they are read."""


def _checksum(file: BinaryIO, end: int) -> int:
    """Of the last bytes before a place."""
    begin = max(0, end - TAIL_BYTES)
    file.seek(begin)
    return zlib.crc32(file.read(end - begin))
