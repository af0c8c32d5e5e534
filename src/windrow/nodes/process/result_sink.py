"""Sinks for the results of a root: a Parquet file for every batch of results, or lines of JSON.

    results/00000000000000000041.parquet     rows of every query that are due together

All files have the same columns, so that every reader takes them for one table: most look at one file, and leave out or
refuse what others have besides. A query that comes with columns of its own has the files before it written again with
them, oldest first; so the newest one has all columns that there ever were, and what a crash has interrupted begins
again with the next batch.

A restarted root sends again what was not acknowledged, and a number that is there already is not written twice. Lines
have no such memory: after a crash the last of them may be written again.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

import polars as pl

from windrow.io.atomic import replacing
from windrow.io.private import make_folder, naming
from windrow.nodes.protocol.messages import Batch

DIGITS = 20
LIFE = "windrow.life"  # of the root, in what a file says of itself


class ResultFiles:
    """A directory with a Parquet file for each batch."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._folder = Path(path)
        make_folder(self._folder)
        self._columns: dict[str, pl.DataType] | None = None  # of all results so far

    @property
    def last(self) -> tuple[int, int]:
        """The number of the last batch, and the life of the root in which it was written; zeros if there was none."""
        files = self._files
        if not files:
            return 0, 0
        try:
            life = pl.read_parquet_metadata(files[-1]).get(LIFE, "0")
        except (pl.exceptions.PolarsError, OSError) as error:
            raise ValueError(f"results: {str(files[-1])!r} cannot be read: {error}; move it away") from error
        return int(files[-1].stem), int(life)

    @property
    def _files(self) -> list[Path]:
        """The files, in the order in which they were written first."""
        files = [file for file in self._folder.glob("*.parquet") if file.stem.isdecimal()]
        return sorted(files, key=lambda file: int(file.stem))

    def put(self, batch: Batch) -> None:
        path = self._folder / f"{batch.number:0{DIGITS}}.parquet"
        if not path.exists():
            self._write(path, self._with_all_columns(batch.tables["results"]), str(batch.life))

    def _with_all_columns(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows with the columns that results had so far; the files before get those that are new."""
        if self._columns is None:
            files = self._files
            self._columns = dict(pl.read_parquet_schema(files[-1]) if files else rows.schema)
        if rows.schema == self._columns:
            return rows
        try:
            parts = [pl.DataFrame(schema=self._columns), rows.clear()]
            columns = dict(pl.concat(parts, how="diagonal_relaxed").schema)
        except pl.exceptions.PolarsError:  # a name has come again with a type that has nothing in common with before
            return rows
        if columns != self._columns:
            for path in self._files:
                if pl.read_parquet_schema(path) != columns:
                    life = pl.read_parquet_metadata(path).get(LIFE, "0")
                    self._write(path, _fitted(pl.read_parquet(path), columns), life)
            self._columns = columns
        return _fitted(rows, columns)

    def _write(self, path: Path, rows: pl.DataFrame, life: str) -> None:
        written = io.BytesIO()  # Polars would not say which file has no room
        rows.write_parquet(written, metadata={LIFE: life})
        with replacing(path, shared=True) as file:
            file.write(written.getbuffer())


def _fitted(rows: pl.DataFrame, columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Rows in these columns, with nulls in those that they have not."""
    return rows.select(
        pl.col(name).cast(dtype) if name in rows.columns else pl.lit(None, dtype).alias(name)
        for name, dtype in columns.items()
    )


class ResultLines:
    """A line of JSON for each row."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout

    def put(self, batch: Batch) -> None:
        with naming("standard output"):
            self._stream.write(batch.tables["results"].write_ndjson())
            self._stream.flush()


def read_results(path: str | os.PathLike[str]) -> pl.DataFrame:
    """All results in a directory, in the order in which they were emitted."""
    files = sorted(file for file in Path(path).glob("*.parquet") if not file.name.startswith("."))
    if not files:
        raise ValueError(f"there are no results in {str(path)!r} yet")
    return pl.concat([pl.read_parquet(file) for file in files], how="diagonal_relaxed")
