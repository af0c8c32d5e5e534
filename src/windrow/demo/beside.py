"""Beside windrow on Spark: the same queries in one process, and by Spark's own SQL.

One process is advanced to the stream's last watermark, and so has emitted the same windows; then it is finished, as
Spark's SQL always is. Rows are compared by their values, floats to nine digits, because sums are taken in another
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import polars as pl

import windrow as wr
from windrow.core.windows.fixed import Cumulating
from windrow.core.windows.ordered import OrderedWindow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OURS = ("approx_distinct",)  # functions that Spark's SQL does not know


@dataclass(frozen=True)
class Compared:
    """How many rows there were, of how many queries, and how many of them were not the same."""

    rows: int
    queries: int
    wrong: int
    shuffled: int = 0  # bytes
    touched: int = 0  # rows that were made of the events before they were grouped

    @property
    def is_right(self) -> bool:
        return self.wrong == 0

    @property
    def verdict(self) -> str:
        return "the same" if self.is_right else f"{self.wrong:,} of them DIFFERENT"


class Beside:
    def __init__(
        self,
        spark: SparkSession,
        events: pl.DataFrame,
        text: str,
        queries: Sequence[wr.Query],
        order_by: Sequence[str],
        until: datetime,
    ) -> None:
        self._spark, self._events, self._queries = spark, events, queries
        own = [part.strip() for part in text.split(";") if part.strip()]
        self._statements = {query.name: part for query, part in zip(queries, own, strict=True)}
        engine = wr.Engine(
            queries, lateness="1000 days", order_by=order_by
        )  # its watermark is moved by `advance` alone
        self._emitted = pl.concat([engine.push(events), engine.advance(until)])
        self._answers = pl.concat([self._emitted, engine.finish()])

    def in_process(self, results: pl.DataFrame) -> Compared:
        """What the stream has written beside what one process says."""
        rows = wrong = 0
        for query in self._queries:
            found, expected = rows_of(results, query), rows_of(self._emitted, query)
            rows, wrong = rows + expected.height, wrong + different(found, expected)
        return Compared(rows, len(self._queries), wrong)

    def on_spark(self) -> Compared:
        """What Spark's own SQL says beside what one process says."""
        from windrow.cli.session import shuffled
        from windrow.spark.types import struct

        types = struct(dict(self._events.schema))
        self._spark.createDataFrame(self._events.to_arrow(), types).createOrReplaceTempView("flights")
        before, rows, wrong, count, touched = shuffled(self._spark), 0, 0, 0, 0
        for query in self._queries:
            if isinstance(query.window, OrderedWindow | Cumulating) or any(
                one.function in OURS for one in query.aggregates
            ):
                continue
            frame = self._spark.sql(_with_bounds(self._statements[query.name]))
            found = pl.DataFrame(pl.from_arrow(frame.toArrow()))
            expected = rows_of(self._answers, query)
            found = found.select(expected.columns)
            rows, wrong, count = rows + expected.height, wrong + different(found, expected), count + 1
            touched += max(self._events.height, _expanded(frame))
        return Compared(rows, count, wrong, shuffled(self._spark) - before, touched)


def rows_of(results: pl.DataFrame, query: wr.Query) -> pl.DataFrame:
    """A query's rows in their order: keys, bounds and aggregates."""
    names = [*query.by, "window_start", "window_end", *(one.name for one in query.aggregates)]
    return (
        results.filter(pl.col("query") == query.name).select(names).sort(names[: len(query.by) + 2], nulls_last=False)
    )


def different(found: pl.DataFrame, expected: pl.DataFrame) -> int:
    """How many rows one has and the other has not."""
    both = []
    for frame in (found, expected):
        floats = [pl.col(name).round_sig_figs(9) for name, dtype in frame.schema.items() if dtype.is_float()]
        times = [
            pl.col(name).dt.convert_time_zone("UTC").dt.cast_time_unit("us") for name in ("window_start", "window_end")
        ]
        both.append(frame.with_columns(*floats, *times))
    names = found.columns
    one, other = both[0], both[1].cast(dict(both[0].schema))  # type: ignore[arg-type]
    left = one.join(other, on=names, how="anti", nulls_equal=True).height
    return left + other.join(one, on=names, how="anti", nulls_equal=True).height


def _with_bounds(text: str) -> str:
    """A statement that selects its window's bounds too."""
    struct = "session_window" if "session_window(" in text else "window"
    head, rest = text.split("SELECT ", 1)
    return f"{head}SELECT {struct}.start AS window_start, {struct}.end AS window_end, {rest}"


def _expanded(frame: DataFrame) -> int:
    """The rows that Spark's plan made of the events for overlapping windows, from its own metrics."""

    def walk(node: Any) -> int:
        if node.nodeName() == "AdaptiveSparkPlan":
            return walk(node.executedPlan())
        own = int(node.metrics().apply("numOutputRows").value()) if node.nodeName() == "Expand" else 0
        if node.nodeName().endswith("QueryStage"):
            own += walk(node.plan())
        children = node.children()
        return own + sum(walk(children.apply(at)) for at in range(children.size()))

    return walk(frame._jdf.queryExecution().executedPlan())
