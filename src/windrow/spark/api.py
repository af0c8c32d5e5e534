"""`windows` on a Spark DataFrame."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from windrow.core.assemble.results import own_columns
from windrow.core.plan.groups import Rates
from windrow.core.plan.watermark import Lengths
from windrow.core.query.query import Query, QueryError, time_of
from windrow.core.slices.binding import ARRIVAL, quoted
from windrow.core.stream.job import Job, job_of
from windrow.spark.batch import run as batch
from windrow.spark.settings import shuffle_partitions
from windrow.spark.slice_rows import META, fingerprint, is_slices, job_of_slices, origin_of
from windrow.spark.stream import query as streaming
from windrow.spark.stream.query_book import QueryBook
from windrow.spark.types import in_spark_words, polars_columns


def windows(
    df: DataFrame,
    queries: Query | Iterable[Query] | QueryBook | None = None,
    time: str | None = None,
    *,
    lateness: Lengths = 0,
    updates: Lengths = None,
    order_by: str | Sequence[str] = (),
    bad_events: Literal["raise", "drop"] = "raise",
    partial: bool = False,
    rates: Rates | None = None,
    buckets: int | None = None,
    metrics: str = "windrow",
) -> DataFrame:
    """Answer queries over a Spark DataFrame of events or of slices, batch or streaming, with a DataFrame.

    partial:  batch only: also answer counting and punctuated windows that the end leaves open
    updates:  streaming only: how long emitted windows are kept to be emitted again when late events change them
    buckets:  streaming only: into how many parts the keys are put, for as long as the checkpoint lives
    metrics:  streaming only: the name of the observed metrics, which count what was dropped
    """
    if queries is None:
        queries = queries_of(df)
    if isinstance(queries, QueryBook) and not df.isStreaming:
        raise TypeError("a query book is for a streaming DataFrame; for a whole one say book.queries")
    asked = [] if isinstance(queries, QueryBook) else [queries] if isinstance(queries, Query) else list(queries)
    if is_slices(df):
        if isinstance(queries, QueryBook):
            raise TypeError("slices are cut for the queries that were given where they are made, not for a query book")
        by = (order_by,) if isinstance(order_by, str) else tuple(order_by)
        sliced = job_of_slices(df, asked, time, lateness=lateness, updates=updates, order_by=by)
        if df.isStreaming:
            return _noted(streaming.windows_of_slices(df, sliced, buckets, metrics), asked)
        if updates is not None:
            raise ValueError("updates is for a streaming DataFrame: a whole one has no late events")
        found = batch.assembled(df.select("bucket", "payload"), sliced, partial, fingerprint(sliced))
        return _noted(found, asked)
    time = time_of(queries.queries if isinstance(queries, QueryBook) else asked, time)
    if df.isStreaming:
        df = streaming.with_ties(df)
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
            order_by=(*ordering, streaming.TIE) if df.isStreaming else ordering,
            bad_events=bad_events,
            rates=rates,
            ties=not df.isStreaming,
        )
        if isinstance(queries, QueryBook):
            columns = [name for name, _ in job.columns if name != streaming.TIE]
            queries.bind({"schema": df.schema.jsonValue(), "columns": columns, "time": time, "order_by": ordering})
    except QueryError as error:
        raise in_spark_words(error, df.schema) from error
    if df.isStreaming:
        if partial:
            raise ValueError("partial is for a whole DataFrame: a stream has no end")
        if buckets is None:
            buckets = max(8, shuffle_partitions(df.sparkSession))
        if isinstance(queries, QueryBook):
            return streaming.windows_of_book(df, job, queries, buckets, metrics)
        return _noted(streaming.windows(df, job, buckets, metrics), asked)
    if updates is not None:
        raise ValueError("updates is for a streaming DataFrame: a whole one has no late events")
    return _noted(batch.windows(df, job, partial), asked)


def explain(df: DataFrame, queries: Query | Iterable[Query], time: str | None = None, **options: Any) -> str:
    """How `windows` would answer these queries: what the JVM slices, what Python does, and why; nothing is run.

    df:       events, batch or streaming
    queries:  one or several
    time:     the column that windows are measured on; can be left out where the queries name it
    options:  as of `windows`: `lateness`, `updates`, `order_by`, `bad_events`, `rates`
    """
    asked = [queries] if isinstance(queries, Query) else list(queries)
    try:
        job = job_of(asked, time_of(asked, time), polars_columns(df.schema), **options)
    except QueryError as error:
        raise in_spark_words(error, df.schema) from error
    return job.bound.plan.explain() if df.isStreaming else batch.describe(job)


def queries_of(df: DataFrame) -> list[Query]:
    """The queries that a DataFrame of slices was cut for."""
    origin = origin_of(df.schema)
    if origin is None:
        raise TypeError("say which queries: only slices, as windrow.spark.nodes gives them, know theirs")
    return origin.cut_for


def results_of(results: DataFrame, query: str | Query) -> DataFrame:
    """One query's rows and its own columns, of a DataFrame of results."""
    name = query.name if isinstance(query, Query) else query
    known = json.loads(results.schema["query"].metadata.get(META, "{}"))
    if known and name not in known:
        raise KeyError(f"there are no results of a query called {name!r}; there are {', '.join(map(repr, known))}")
    own = own_columns(query, results.columns) if isinstance(query, Query) else known.get(name, results.columns)
    return results.where(F.col("query") == name).select(*(F.col(quoted(column)) for column in own))


def _noted(results: DataFrame, queries: Iterable[Query]) -> DataFrame:
    """Results that know which columns are whose, for `results_of`."""
    own = {query.name: own_columns(query, results.columns) for query in queries}
    return results.withMetadata("query", {META: json.dumps(own)})
