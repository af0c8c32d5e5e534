"""Sinks for the results of a root: a Parquet file for every batch of results, or lines of JSON.

    results/00000000000000000041.parquet     rows of every query that are due together

A restarted root sends again what was not acknowledged, and a number that is there already is not written twice. Lines
have no such memory: after a crash the last of them may be written again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TextIO

import polars as pl

from windrow.io.atomic import replacing
from windrow.nodes.protocol.messages import Batch

DIGITS = 20


class ResultFiles:
    """A directory with a Parquet file for each batch."""

    def __init__(self, path: str | os.PathLike[str], made: int = 0) -> None:
        """`made` batches were sent so far: a file with a greater number is of another root, and would pass for one of
        this root's."""
        self._folder = Path(path)
        self._folder.mkdir(parents=True, exist_ok=True)
        if any(file.stem.isdecimal() and int(file.stem) > made for file in self._folder.glob("*.parquet")):
            raise ValueError(
                f"results: {str(path)!r} has results of another tree, or of this one before its spool was deleted; "
                "name another directory, or empty this one"
            )

    def put(self, batch: Batch) -> None:
        name = f"{batch.number:0{DIGITS}}.parquet"
        if (self._folder / name).exists():
            return
        with replacing(self._folder / name) as file:
            batch.tables["results"].write_parquet(file)


class ResultLines:
    """A line of JSON for each row."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout

    def put(self, batch: Batch) -> None:
        self._stream.write(batch.tables["results"].write_ndjson())
        self._stream.flush()


def read_results(path: str | os.PathLike[str]) -> pl.DataFrame:
    """All results in a directory, in the order in which they were emitted."""
    files = sorted(file for file in Path(path).glob("*.parquet") if not file.name.startswith("."))
    if not files:
        raise ValueError(f"there are no results in {str(path)!r} yet")
    return pl.concat([pl.read_parquet(file) for file in files], how="diagonal_relaxed")
