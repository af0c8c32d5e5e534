"""Files that appear whole, as a source: each is read once, in the order of names, about a million events at a time.

A mark is a file and how many of its rows were read. A Parquet file is read on from the row group of that row, the
others from their beginning, and what was read before is passed over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from windrow.core.arrays.dataframes import InputError
from windrow.core.expressions.types import spark_type
from windrow.io.event_files import TextForm, named, read
from windrow.nodes.sources.base import Mark, Read, Types, nothing, wanted
from windrow.nodes.sources.folder import FileSource


@dataclass
class WholeFiles(FileSource):
    """The files of one node."""

    place: ClassVar[dict[str, type]] = {
        "file": str,
        "rows": int,
        "size": int,
        "files": int,
        "done": bool,
    }  # done: with the file
    what = "files that appear whole"

    def resume(self, mark: Mark) -> None:
        self._frames: Iterator[pl.DataFrame] | None = None
        self._ahead: pl.DataFrame | None = None  # the frame after the one that was read, so that the last is known
        self._needed: Types = {}
        super().resume(mark)
        path, at = self.files.path_of(self._at.file), self._at
        if at.file and os.path.exists(path):
            self._unchanged()
        elif at.file and not at.done:
            raise InputError(f"file {path!r} is gone, and only its first {at.rows:,} events were read")

    def _next(self, needed: Types) -> Read | None:
        if needed != self._needed:  # another query: what was read ahead has not its columns
            self._frames, self._needed = None, dict(needed)
        while True:
            at = self._at
            if at.done or not at.file:
                if at.file and os.path.exists(self.files.path_of(at.file)):
                    self._unchanged()  # what was added to it would never be read
                fresh = self._fresh()
                if not fresh:
                    return Read(nothing(needed), self._mark(), True) if self.until_end else None
                self._go_to(fresh[0])
                at, self._frames = self._at, None
                at.size = self.size(at.file)
            if self._frames is None:
                self._frames = self._events()
                self._ahead = next(self._frames, None)
            frame, self._ahead = self._ahead, None if self._ahead is None else next(self._frames, None)
            at.done = self._ahead is None
            if at.done:
                self._unchanged()
            if frame is not None:
                at.rows += frame.height
                return Read(frame, self._mark(), at.done and self.until_end and not self._fresh())

    def _events(self) -> Iterator[pl.DataFrame]:
        """What is left of the file."""
        path, form, types = self.files.path_of(self._at.file), self.form(self._at.file), wanted(self._needed)
        with named(path):
            text = TextForm.of_times(types, self.time_format)
            for frame in read(path, form, types, self._at.rows, text):
                yield fitted(frame, types)

    def _unchanged(self) -> None:
        path = self.files.path_of(self._at.file)
        if self.size(self._at.file) != self._at.size:
            raise InputError(
                f"file {path!r} has changed since it was first read; write it under a name "
                "that ends with .tmp and rename it when it is complete, or set growing: true for lines that are added"
            )

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
