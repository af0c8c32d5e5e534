"""Files that grow, as a source: lines of CSV or JSON that are added at the end, as logs have them.

Only whole lines are taken. Several files follow each other in the order of their names: once one with a later name is
there, what the earlier one holds by then is all of it. A mark is a file and how many of its bytes were read, with a
checksum of the last few, by which a file is recognised that was written anew.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from typing import Annotated, BinaryIO, ClassVar

from windrow.core.arrays.dataframes import InputError
from windrow.nodes.sources.base import Mark, Read, Types, nothing
from windrow.nodes.sources.folder import FileSource, format_check
from windrow.nodes.sources.lines import BAD_LINES, LONGEST_LINE, READ_BYTES, Lines

TAIL_BYTES = 256  # bytes by which a file is recognised


@dataclass
class GrowingFiles(FileSource):
    """Lines that are added to the files of one node."""

    formats: ClassVar[tuple[str, ...]] = ("csv", "json")
    place: ClassVar[dict[str, type]] = {"file": str, "bytes": int, "lines": int, "files": int, "tail": int}
    what = "files that grow"

    format: Annotated[str | None, format_check(formats)] = None
    bad_lines: Annotated[str, BAD_LINES] = "raise"

    def __post_init__(self) -> None:
        self.dropped = 0  # lines that were left out
        super().__post_init__()

    def resume(self, mark: Mark) -> None:
        super().resume(mark)
        self._lines: Lines | None = None
        if self._at.file and os.path.exists(self.files.path_of(self._at.file)):
            self._lines = self._parser()
        self._reported = self._at.file

    def _next(self, needed: Types) -> Read | None:
        while True:
            # looked for first: what comes into this file after a later one is there need not be found
            fresh = self._fresh()
            at = self._at
            if at.file:
                data, at_end = self._more(bool(fresh) or self.until_end)
                if data:
                    assert self._lines is not None
                    before = self._lines.dropped
                    events = self._lines.parse(data, needed)
                    self.dropped += self._lines.dropped - before
                    at.lines, self._reported = self._lines.number, at.file
                    return Read(events, self._mark(), self.until_end and not fresh and at_end)
            if not fresh:
                moved = at.file != self._reported  # to a file that has no lines yet: the one before may go
                self._reported = at.file
                return Read(nothing(needed), self._mark(), self.until_end) if self.until_end or moved else None
            self._lines = None
            self._go_to(fresh[0])

    def _more(self, over: bool) -> tuple[bytes, bool]:
        """Whole lines that follow on, and whether they are all that there is; with `over`, the last may have no end."""
        at = self._at
        size = self.size(at.file)
        if size == at.bytes:
            return b"", True
        with open(self.files.path_of(at.file), "rb") as file:
            self._same(file, size)
            if self._lines is None:
                self._lines = self._parser()
            data = file.read(READ_BYTES)
            while b"\n" not in data and at.bytes + len(data) < size:
                if len(data) >= LONGEST_LINE:
                    raise self._lines.too_long()
                data += file.read(READ_BYTES)
            at_end = at.bytes + len(data) >= size
            if not (over and at_end):
                data = data[: data.rfind(b"\n") + 1]
            if data:
                at.bytes += len(data)
                at.tail = _checksum(file, at.bytes)
        return data, at_end

    def _same(self, file: BinaryIO, size: int) -> None:
        """Refuse a file that is not the one that was read, and go to where it is read on."""
        if size < self._at.bytes or _checksum(file, self._at.bytes) != self._at.tail:
            raise InputError(
                f"file {file.name!r} is not the one of which {self._at.bytes:,} bytes were read: it was written anew; "
                "lines may only be added, and a new file needs a name that comes after those before it"
            )
        file.seek(self._at.bytes)

    def _parser(self) -> Lines:
        path, form = self.files.path_of(self._at.file), self.form(self._at.file)
        if path.endswith(".gz"):
            raise InputError(f"file {path!r} is compressed, and so cannot grow line by line")
        lines = Lines(f"file {path!r}", form, self.bad_lines, self.time_format)
        lines.number = self._at.lines
        if form == "csv" and self._at.bytes:
            with open(path, "rb") as file:
                lines.begin(file.readline().rstrip(b"\r\n"))
        return lines


def _checksum(file: BinaryIO, end: int) -> int:
    """Of the last bytes before a place."""
    begin = max(0, end - TAIL_BYTES)
    file.seek(begin)
    return zlib.crc32(file.read(end - begin))
