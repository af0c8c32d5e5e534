"""The log store of a node: bytes by name that outlive the process, in one file that only grows at its end.

    ┌ commit ────────────────────────────────┐┌ commit ┐┌ comm…    a commit is there completely or not at all: one that
    │ length, checksum, what is put, deleted ││   …    ││          a crash cut short is dropped when the file is opened

Every commit is one write and one flush to the disk. Once more than half of the file is of no use any more, it is
written anew beside the old one, and renamed.
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
from windrow.io.private import make_folder, naming, open_private

_HEAD = struct.Struct("<QI")  # the length of a commit, and its checksum
_MAGIC = b"windrow spool 3\n"
SMALL = 1 << 20  # bytes of a file that is not worth writing anew


class LogStoreError(ValueError):
    """A file that is not a log store."""


class LogFile:
    """A log store in a file, which is made if it is not there; one process at a time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        make_folder(self._path.parent)
        self._kept: dict[str, bytes] = {}
        end = self._read()
        self._file: BinaryIO = open_private(self._path, "r+b" if self._path.exists() else "w+b")
        if end:
            self._file.truncate(end)  # a commit that was cut short
            self._file.seek(end)
        else:
            self._write(_MAGIC)

    def get(self, name: str) -> bytes | None:
        return self._kept.get(name)

    def names(self) -> Iterable[str]:
        return list(self._kept)

    def commit(self, put: dict[str, bytes], delete: Iterable[str]) -> None:
        deleted = [name for name in delete if name in self._kept and name not in put]
        self._write(_record(put, deleted))
        for name in deleted:
            del self._kept[name]
        self._kept.update(put)
        live = sum(map(len, self._kept.values()))
        if self._file.tell() > max(SMALL, 2 * live):
            self._compact()

    def close(self) -> None:
        with naming(self._path):  # what a full disk has not taken is tried once more
            self._file.close()

    def _write(self, data: bytes) -> None:
        with naming(self._path):
            self._file.write(data)
            self._file.flush()
            os.fsync(self._file.fileno())

    def _read(self) -> int:
        """Read what the file holds; returns where its last complete commit ends."""
        if not self._path.exists():
            return 0
        data = self._path.read_bytes()
        if not data.startswith(_MAGIC):
            if _MAGIC.startswith(data):
                return 0  # cut short at its very beginning
            raise LogStoreError(f"{str(self._path)!r} is not a spool of this version of windrow; name another file")
        at = len(_MAGIC)
        while at + _HEAD.size <= len(data):
            length, checksum = _HEAD.unpack_from(data, at)
            body = data[at + _HEAD.size : at + _HEAD.size + length]
            if len(body) < length or zlib.crc32(body) != checksum:
                break
            line, _, values = body.partition(b"\n")
            header = json.loads(line)
            for name in header["delete"]:
                self._kept.pop(name, None)
            begin = 0
            for name, size in header["put"]:
                self._kept[name] = values[begin : begin + size]
                begin += size
            at += _HEAD.size + length
        return at

    def _compact(self) -> None:
        """Write what is kept into a file of its own, and put it in the place of this one."""
        with replacing(self._path) as file:
            file.write(_MAGIC + _record(self._kept, []))
        self._file.close()
        self._file = self._path.open("r+b")
        self._file.seek(0, os.SEEK_END)


def _record(put: dict[str, bytes], delete: Iterable[str]) -> bytes:
    header = {"put": [[name, len(data)] for name, data in put.items()], "delete": list(delete)}
    body = b"\n".join((json.dumps(header).encode(), b"".join(put.values())))
    return _HEAD.pack(len(body), zlib.crc32(body)) + body
