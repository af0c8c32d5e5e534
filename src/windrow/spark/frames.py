"""`windows` on a Spark DataFrame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pyspark.sql import DataFrame

from windrow.binding import ARRIVAL
from windrow.measures import Lengths
from windrow.plan import Rates
from windrow.query import Query, QueryError
from windrow.spark import batch, streaming
from windrow.spark.jobs import Job, job_of
from windrow.spark.types import in_spark_words, polars_columns


def windows(
    df: DataFrame,
    queries: Query | Iterable[Query],
    time: str,
    *,
    lateness: Lengths = 0,
    updates: Lengths = None,
    order_by: str | Sequence[str] = (),
    bad_events: Literal["raise", "drop"] = "raise",
    partial: bool = False,
    rates: Rates | None = None,
    buckets: int = 16,
    metrics: str = "windrow",
) -> DataFrame:
    """Answer queries over a Spark DataFrame, batch or streaming, with a DataFrame."""
    asked = [queries] if isinstance(queries, Query) else list(queries)
    if not df.isStreaming and any((query.time or time) == ARRIVAL for query in asked):
        raise QueryError("a whole table has no arrival times; name a time column")
    ordering = (order_by,) if isinstance(order_by, str) else tuple(order_by)
    job: Job
    try:
        job = job_of(
            asked,
            time,
            polars_columns(df.schema),
            lateness=lateness,
            updates=updates,
            order_by=ordering,
            bad_events=bad_events,
            rates=rates,
        )
    except QueryError as error:
        raise in_spark_words(error, df.schema) from error
    if df.isStreaming:
        return streaming.windows(df, job, buckets, metrics)
    return batch.windows(df, job, partial)


def is_spark(data: Any) -> bool:
    return isinstance(data, DataFrame)
