"""The log store of a node: bytes by name that outlive the process, in one file that only grows at its end.

    ┌ beginning ───────────┐┌ commit ───────────────────────────────────────┐┌ commit ┐┌ comm…    the last write, which
    │ windrow spool 3, end ││ length, sum of what follows, sum of both │ … ││   …    ││          a crash cut short
    └──────────────────────┘└───────────────────────────────────────────────┘└────────┘└─────
                         └─ end: up to here everything was flushed to the disk ────────┘

Every commit is one write and one flush to the disk, after which the end is noted at the beginning. So a write that was
cut short is told from damage: it lies behind the end, and nothing lies behind it. It is undone, because nobody was told
of it. Whatever else is not as it was written is refused: a changed byte, even of a length, since every length has a
sum; and a file that is shorter than its end. A file that is an older copy cannot say so itself: see `journal.Lives`.

Once more than half of the file is of no use any more, it is written anew beside the old one, and renamed.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from windrow.io.atomic import replacing
from windrow.io.private import make_folder, naming
from windrow.nodes.protocol.journal import WHAT_TO_DO

VERSION = 4
_NAME = b"windrow spool "
_MAGIC = b"%s%d\n" % (_NAME, VERSION)
_END = struct.Struct("<QI")  # up to where everything was flushed, and its sum
_HEAD = struct.Struct("<QII")  # the length of a commit, its sum, and that of the two
_BEGIN = len(_MAGIC) + _END.size
SMALL = 1 << 20  # bytes of a file that is not worth writing anew


class LogStoreError(ValueError):
    """A file that is not a log store, or a damaged one."""


class LogFile:
    """A log store in a file, which is made if it is not there; one process at a time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        make_folder(self._path.parent)
        self._kept: dict[str, bytes] = {}
        self.torn = 0  # bytes of a write that was cut short, and is undone
        if not self._path.exists():
            self._replace(b"")  # as a whole, so that an empty file is a damaged one
        data = self._path.read_bytes()
        end = self._read(data)
        self.torn = len(data) - end
        self._file: BinaryIO = self._path.open("r+b")
        self._file.truncate(end)
        self._file.seek(end)
        self._note_end()

    def get(self, name: str) -> bytes | None:
        return self._kept.get(name)

    def names(self) -> Iterable[str]:
        return list(self._kept)

    def commit(self, put: dict[str, bytes], delete: Iterable[str]) -> None:
        deleted = [name for name in delete if name in self._kept and name not in put]
        with naming(self._path):
            self._file.write(_record(put, deleted))
            self._file.flush()
            os.fsync(self._file.fileno())
            self._note_end()
        for name in deleted:
            del self._kept[name]
        self._kept.update(put)
        live = sum(map(len, self._kept.values()))
        if self._file.tell() > max(SMALL, 2 * live):
            self._compact()

    def close(self) -> None:
        with naming(self._path):  # what a full disk has not taken is tried once more
            self._file.close()

    def _note_end(self) -> None:
        """Note how far the file is on the disk; the next flush takes this along, so that it costs none of its own."""
        os.pwrite(self._file.fileno(), _end(self._file.tell()), len(_MAGIC))

    def _read(self, data: bytes) -> int:
        """Take what the file holds; returns where its last complete commit ends."""
        if not data.startswith(_MAGIC):
            raise self._not_ours(data)
        flushed = self._flushed(data)
        at = _BEGIN
        while at < len(data):
            begin = at + _HEAD.size
            length, checksum = _length(data[at:begin])
            body = data[begin : begin + length] if length is not None else b""
            if length is not None and len(body) == length and zlib.crc32(body) == checksum:
                self._apply(body)
                at = begin + length
            elif at < flushed or (length is not None and begin + length < len(data)):
                raise self._damaged(f"what was written at byte {at:,} is not there any more as it was")
            else:
                break
        return at

    def _flushed(self, data: bytes) -> int:
        """Up to where the file was flushed to the disk."""
        noted = data[len(_MAGIC) : _BEGIN]
        end = _END.unpack(noted)[0] if len(noted) == _END.size else 0
        if noted != _end(end):
            raise self._damaged("the note of its length at its beginning cannot be read")
        if end > len(data):
            raise self._damaged(f"it has {len(data):,} bytes, and had {end:,}")
        return int(end)

    def _apply(self, body: bytes) -> None:
        line, _, values = body.partition(b"\n")
        header = json.loads(line)
        for name in header["delete"]:
            self._kept.pop(name, None)
        begin = 0
        for name, size in header["put"]:
            self._kept[name] = values[begin : begin + size]
            begin += size

    def _not_ours(self, data: bytes) -> LogStoreError:
        version = data[len(_NAME) :].partition(b"\n")[0] if data.startswith(_NAME) else b""
        if version.isdigit() and len(version) < 10 and int(version) != VERSION:
            return LogStoreError(
                f"the spool {str(self._path)!r} has version {int(version)}; this windrow reads version {VERSION}: "
                "name another spool"
            )
        if data:
            return self._damaged("it does not begin as one; or another program has written it: then name another file")
        return self._damaged("it is empty")

    def _damaged(self, what: str) -> LogStoreError:
        return LogStoreError(f"the spool {str(self._path)!r} is damaged: {what}; {WHAT_TO_DO}")

    def _compact(self) -> None:
        """Write what is kept into a file of its own, and put it in the place of this one."""
        self._replace(_record(self._kept, []))
        self._file.close()
        self._file = self._path.open("r+b")
        self._file.seek(0, os.SEEK_END)

    def _replace(self, commits: bytes) -> None:
        with replacing(self._path) as file:
            file.write(_MAGIC + _end(_BEGIN + len(commits)) + commits)


def _end(at: int) -> bytes:
    return _END.pack(at, zlib.crc32(at.to_bytes(8, "little")))


def _length(head: bytes) -> tuple[int | None, int]:
    """The length and the sum of a commit; no length if its head is not whole, or was changed."""
    if len(head) < _HEAD.size:
        return None, 0
    length, checksum, own = _HEAD.unpack(head)
    return (length if own == zlib.crc32(head[:12]) else None), checksum


def _record(put: dict[str, bytes], delete: Iterable[str]) -> bytes:
    header = {"put": [[name, len(data)] for name, data in put.items()], "delete": list(delete)}
    body = b"\n".join((json.dumps(header).encode(), b"".join(put.values())))
    head = struct.pack("<QI", len(body), zlib.crc32(body))
    return head + zlib.crc32(head).to_bytes(4, "little") + body
