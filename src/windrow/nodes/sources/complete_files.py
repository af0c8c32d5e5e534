"""Files that appear whole, as a source: each is read once, in the order of names, about a million events at a time.

A mark is a file and how many of its rows were read. A Parquet file is read on from the row group of that row, the
others from their beginning, and what was read before is passed over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import polars as pl

from windrow.core.expressions.types import spark_type
from windrow.core.slices.binding import InputError
from windrow.io.event_files import columns_of, named, read
from windrow.nodes.sources.base import Mark, Read, Types, checked_mark, nothing, wanted
from windrow.nodes.sources.folder import FileSource

_MARK = {"file": str, "rows": int, "size": int, "files": int, "done": bool}


class WholeFiles(FileSource):
    """The files of one node."""

    def __init__(self, path: str, *, format: str | None = None, delete: bool = False, until_end: bool = False) -> None:
        super().__init__(path, format, delete, until_end)
        self.resume({})

    @property
    def columns(self) -> dict[str, pl.DataType]:
        """Those of the first file that is there."""
        if not self._columns:
            names = self._folder.names()
            if names:
                self._columns = columns_of([self._folder.full(names[0])], self._folder.form(names[0]))
        return self._columns

    def resume(self, mark: Mark) -> None:
        self._frames: Iterator[pl.DataFrame] | None = None
        self._ahead: pl.DataFrame | None = None  # the frame after the one that was read, so that the last is known
        self._needed: Types = {}
        self._file = None
        self._rows = self._size = self._files = 0
        self._done = True  # with the file
        if mark:
            given = checked_mark(mark, _MARK, "files that appear whole")
            self._file, self._rows, self._size = given["file"], given["rows"], given["size"]
            self._files, self._done = given["files"], given["done"]
            path = self._folder.full(given["file"])
            if os.path.exists(path):
                self._unchanged()
            elif not self._done:
                raise InputError(f"file {path!r} is gone, and only its first {self._rows:,} events were read")
        self._folder.begin(self._file, self._files)

    def _next(self, needed: Types) -> Read | None:
        if needed != self._needed:  # another query: what was read ahead has not its columns
            self._frames, self._needed = None, dict(needed)
        while True:
            if self._done:
                if self._file is not None and os.path.exists(self._folder.full(self._file)):
                    self._unchanged()  # what was added to it would never be read
                fresh = self._fresh()
                if not fresh:
                    return Read(nothing(needed), self._mark(), True) if self._until_end else None
                self._file, self._rows, self._done, self._files = fresh[0], 0, False, self._files + 1
                self._size = self._folder.size(self._file)
                self._folder.opened(self._file)
                self._frames = None
            if self._frames is None:
                self._frames = self._events()
                self._ahead = next(self._frames, None)
            frame, self._ahead = self._ahead, None if self._ahead is None else next(self._frames, None)
            self._done = self._ahead is None
            if self._done:
                self._unchanged()
            if frame is not None:
                self._rows += frame.height
                return Read(frame, self._mark(), self._done and self._until_end and not self._fresh())

    def _events(self) -> Iterator[pl.DataFrame]:
        """What is left of the file."""
        assert self._file is not None
        path, form, types = self._folder.full(self._file), self._folder.form(self._file), wanted(self._needed)
        with named(path):
            for frame in read(path, form, types, self._rows):
                yield fitted(frame, types)

    def _unchanged(self) -> None:
        """Refuse a file that is not what it was."""
        assert self._file is not None
        if self._folder.size(self._file) != self._size:
            raise InputError(
                f"file {self._folder.full(self._file)!r} has changed since it was first read; write it under a name "
                "that ends with .tmp and rename it when it is complete, or set growing: true for lines that are added"
            )

    def _mark(self) -> dict[str, Any]:
        if self._file is None:
            return {}
        at = {"file": self._file, "rows": self._rows, "size": self._size}
        return {**at, "files": self._files, "done": self._done}

    def confirm(self, mark: Mark) -> None:
        if self._delete and mark:
            self._folder.delete(mark["file"], mark["done"])

    def close(self) -> None:
        self._frames = None


def fitted(frame: pl.DataFrame, types: Types) -> pl.DataFrame:
    """The columns as they are needed: numbers may be narrower, and times in another unit."""
    casts = []
    for name, dtype in types.items():
        if name not in frame.columns:
            raise InputError(f"there is no column {name!r} in it")
        now = frame.schema[name]
        if now == dtype:
            casts.append(pl.col(name))
        elif now == pl.Null() or _fits(now, dtype):
            casts.append(pl.col(name).cast(dtype))
        else:
            raise InputError(f"column {name!r} is {spark_type(now)} in it, and {spark_type(dtype)} is needed")
    return frame.select(casts)


def _fits(now: pl.DataType, dtype: pl.DataType) -> bool:
    if isinstance(now, pl.Datetime) and isinstance(dtype, pl.Datetime):
        return (now.time_zone is None) == (dtype.time_zone is None)
    if isinstance(now, pl.Categorical | pl.Enum) and isinstance(dtype, pl.String):
        return True
    return (now.is_integer() and (dtype.is_integer() or dtype.is_float())) or (now.is_float() and dtype == pl.Float64())
