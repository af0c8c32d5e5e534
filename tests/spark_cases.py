"""What the tests on Spark share: tables that are given to it, and what the oracle says about them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

import windrow as wr
from windrow.core.aggregates.functions import Aggregate
from windrow.core.expressions.parse import parse
from windrow.testing import Oracle, recompute
from windrow.testing.answers import rank

Row = Mapping[str, Any]


def reads(queries: Iterable[wr.Query], time: str) -> list[str]:
    """The columns that queries read, by name: ties are broken by them where events have no arrival."""
    found: set[str] = set()
    for query in queries:
        found |= {query.time or time, *query.by, *query.distinct_on}
        found |= set(query.where.columns) if query.where else set()
        found |= {name for text in getattr(query.window, "inputs", ()) for name in parse(text).columns}
        found |= {name for aggregate in query.computed for name in _columns(aggregate)}
    return sorted(found)


def _columns(asked: Aggregate) -> Iterator[str]:
    for part in asked.parts:
        yield from _columns(part)
    if not asked.parts:
        for expression in (*asked.inputs, *([asked.where] if asked.where else [])):
            yield from expression.columns


def told(rows: Sequence[Row], queries: Sequence[wr.Query], time: str = "t", **options: Any) -> list[Any]:
    """What a whole DataFrame gives, according to the oracle: its events come in order, ties broken by their values."""
    order_by = _order(options.pop("order_by", ()), queries, time)
    found: list[Any] = []
    for query in queries:
        events = in_order(rows, (query.time or time, *order_by))
        found += recompute(events, [query], time=time, order_by=order_by, **options)
    return found


def closed(rows: Sequence[Row], queries: Sequence[wr.Query], time: str = "t", **options: Any) -> list[Any]:
    """What a stream of these events has given in the end, none of them late: all windows that its watermark passed."""
    order_by = _order(options.pop("order_by", ()), queries, time)
    oracle = Oracle(queries, time=time, order_by=order_by, **options)
    return oracle.push(in_order(rows, (time, *order_by)))


def _order(given: str | Sequence[str], queries: Sequence[wr.Query], time: str) -> tuple[str, ...]:
    return ((given,) if isinstance(given, str) else tuple(given)) + tuple(reads(queries, time))


def in_order(rows: Iterable[Row], columns: Sequence[str]) -> list[Row]:
    return sorted(rows, key=lambda row: tuple(rank(row[column]) for column in columns))


def table(spark: Any, events: pl.DataFrame) -> Any:
    """Events as a DataFrame on Spark, with exactly their types: a time without a zone is TIMESTAMP_NTZ."""
    from windrow.spark.types import struct

    return spark.createDataFrame(events.to_arrow(), struct(dict(events.schema)))


def results(frame: Any) -> list[dict[str, Any]]:
    """The rows of a result on Spark; their times are in the session's time zone, which is UTC."""
    return pl.DataFrame(pl.from_arrow(frame.toArrow())).to_dicts()


class Source:
    """A folder of Parquet files, each a micro-batch of a stream."""

    def __init__(self, folder: Path, batches: Iterable[pl.DataFrame] = ()) -> None:
        self.folder, self._count = folder, 0
        self.schema: Any = None
        folder.mkdir(parents=True)
        for batch in batches:
            self.add(batch)

    def add(self, batch: pl.DataFrame) -> None:
        """One more file; Spark takes files by the time of their last change, so each is a second younger."""
        from windrow.spark.types import struct

        self._count += 1
        self.schema = struct(dict(batch.schema))
        path = self.folder / f"{self._count:05d}.parquet"
        draft = self.folder / f".{path.name}"
        batch.write_parquet(draft)
        os.utime(draft, (10**9 + self._count, 10**9 + self._count))
        draft.rename(path)

    def read(self, spark: Any) -> Any:
        return spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1).parquet(str(self.folder))


def run(frame: Any, name: str, mode: str = "append", progress: list[Any] | None = None) -> list[dict[str, Any]]:
    """Everything that a streaming DataFrame gives until its source is read to the end, and its `progress`."""
    writer = frame.writeStream.format("memory").queryName(name).outputMode(mode)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    if progress is not None:
        progress.extend(query.recentProgress)
    return results(frame.sparkSession.table(name))
