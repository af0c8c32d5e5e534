"""The root of a tree as a source: the batches of slices that it leaves in its sink.

    local ──┐
    local ──┴▶ intermediate ──▶ root ──▶ path/slices/…42.batch ── merged in the reader ──▶ rows of slices ──▶ Spark

A batch is the unit that is read. An offset says up to which one, and the tree's watermark after it, so that a
micro-batch that is read again has the same rows. Once the tree has come to its end, every bucket has to know: a last
micro-batch without slices follows, because what is still open ends at no time that a bucket could wait for.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import polars as pl

from windrow.core.expressions.border import border
from windrow.core.expressions.errors import QueryError
from windrow.core.windows.ordered import NODE
from windrow.nodes.process.slice_sink import SliceSink
from windrow.spark.source.files import local_path

KEEP = ("uncommitted", "all")


@border
@dataclass(frozen=True)
class Root:
    """The root of a tree of nodes that feeds slices, which says itself what it was asked.

    path:  its directory, mounted where Spark runs
    keep:  which batches stay there: "uncommitted", so that what a stream is done with is deleted, or "all"
    """

    path: str | os.PathLike[str]
    keep: str = "uncommitted"

    def __post_init__(self) -> None:
        if self.keep not in KEEP:
            raise QueryError(f"keep must be one of {', '.join(KEEP)}, not {self.keep!r}")
        _ = self.sink

    @property
    def sink(self) -> SliceSink:
        """Where its batches are."""
        return SliceSink(local_path(os.fspath(self.path), "a root is read from a directory that is"))

    @property
    def columns(self) -> dict[str, pl.DataType]:
        """Of the events, without the node."""
        return {name: dtype for name, dtype in self.sink.query_set.columns if name != NODE}
