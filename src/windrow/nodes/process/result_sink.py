"""Sinks for the results of a root: a Parquet file for every batch of results, or lines of JSON.

    results/00000000000000000041.parquet     rows of every query that are due together

A restarted root sends again what was not acknowledged, and a number that is there already is not written twice. Lines
have no such memory: after a crash the last of them may be written again.
"""

from __future__ import annotations

import io
import os
import sys
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

    @property
    def last(self) -> tuple[int, int]:
        """The number of the last batch, and the life of the root in which it was written; zeros if there was none."""
        files = [file for file in self._folder.glob("*.parquet") if file.stem.isdecimal()]
        if not files:
            return 0, 0
        newest = max(files, key=lambda file: int(file.stem))
        try:
            life = pl.read_parquet_metadata(newest).get(LIFE, "0")
        except (pl.exceptions.PolarsError, OSError) as error:
            raise ValueError(f"results: {str(newest)!r} cannot be read: {error}; move it away") from error
        return int(newest.stem), int(life)

    def put(self, batch: Batch) -> None:
        name = f"{batch.number:0{DIGITS}}.parquet"
        if (self._folder / name).exists():
            return
        written = io.BytesIO()  # Polars would not say which file has no room
        batch.tables["results"].write_parquet(written, metadata={LIFE: str(batch.life)})
        with replacing(self._folder / name, shared=True) as file:
            file.write(written.getbuffer())


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
