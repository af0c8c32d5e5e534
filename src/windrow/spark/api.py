"""`windows` on a Spark DataFrame: of events or of slices, whole or a stream, each in a way of its own.

A stream of events may have a query book instead of queries.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from windrow.core.assemble.results import own_columns, own_columns_of
from windrow.core.expressions.border import border
from windrow.core.expressions.errors import QueryError
from windrow.core.plan.groups import Rates
from windrow.core.plan.options import StreamOptions
from windrow.core.plan.watermark import Lengths
from windrow.core.query.given import Queries, some_queries
from windrow.core.query.query import Query
from windrow.core.slices.binding import ARRIVAL, quoted
from windrow.core.stream.job import Job, job_of
from windrow.spark.batch import run as batch
from windrow.spark.settings import check_streaming, shuffle_partitions
from windrow.spark.slice_rows import META, fingerprint, is_slices, job_of_slices, origin_of, origin_of_slices
from windrow.spark.stream import query as streaming
from windrow.spark.stream.query_book import QueryBook
from windrow.spark.types import in_spark_words, polars_columns


def windows(
    df: DataFrame,
    queries: Queries | QueryBook | None = None,
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
    sliced = is_slices(df)
    _refuse(df.isStreaming, sliced, isinstance(queries, QueryBook), updates is not None, partial)
    given = queries_of(df) if queries is None else queries
    listed = given.queries if isinstance(given, QueryBook) else some_queries(given)
    if sliced and time is None:
        time = origin_of_slices(df).options.time
    columns = polars_columns(df.schema)
    options = StreamOptions.of(listed, time, lateness, updates, order_by, bad_events, columns)
    if df.isStreaming:
        check_streaming(df.sparkSession)
    if sliced:
        job = _named_apart(df, job_of_slices(df, listed, options))
        if df.isStreaming:
            results = streaming.windows_of_slices(df, job, buckets, metrics)
        else:
            results = batch.assembled(df.select("bucket", "payload"), job, partial, fingerprint(job))
    elif df.isStreaming:
        buckets = max(8, shuffle_partitions(df.sparkSession)) if buckets is None else buckets
        df = streaming.with_ties(df)
        options = replace(options, order_by=(*options.order_by, streaming.TIE))
        if isinstance(given, QueryBook):
            return _with_book(df, given, _job(df.schema, (), options, rates, ties=False), buckets, metrics)
        job = _named_apart(df, _job(df.schema, listed, options, rates, ties=False))
        results = streaming.windows(df, job, buckets, metrics)
    else:
        if any((query.time or options.time) == ARRIVAL for query in listed):
            raise QueryError("a whole table has no arrival times; name a time column")
        results = batch.windows(df, _named_apart(df, _job(df.schema, listed, options, rates)), partial)
    own = {query.name: own_columns(query, results.columns) for query in listed}  # for `results_of`
    return results.withMetadata("query", {META: json.dumps(own)})


def _refuse(streams: bool, sliced: bool, has_book: bool, updates: bool, partial: bool) -> None:
    """Refuse what does not go together."""
    if has_book and not streams:
        raise TypeError("a query book is for a streaming DataFrame; for a whole one say book.queries")
    if has_book and sliced:
        raise TypeError("slices are cut for the queries that were given where they are made, not for a query book")
    if updates and not streams:
        raise ValueError("updates is for a streaming DataFrame: a whole one has no late events")
    if partial and streams and not sliced:
        raise ValueError("partial is for a whole DataFrame: a stream has no end")


def _with_book(df: DataFrame, book: QueryBook, job: Job, buckets: int, metrics: str) -> DataFrame:
    """The queries of a book over events, of which the book learns the columns, so that it refuses what does not fit."""
    columns = [name for name, _ in job.columns if name != streaming.TIE]
    order_by = job.options.order_by[:-1]
    with _spark_words(df.schema):
        book.bind({"schema": df.schema.jsonValue(), "columns": columns, "time": job.time, "order_by": order_by})
    return streaming.windows_of_book(df, job, book, buckets, metrics)


def _job(
    schema: StructType, queries: Sequence[Query], options: StreamOptions, rates: Rates | None, ties: bool = True
) -> Job:
    with _spark_words(schema):
        return job_of(queries, options, polars_columns(schema), rates=rates, ties=ties)


def _named_apart(df: DataFrame, job: Job) -> Job:
    """The job, if Spark can tell the columns of its results apart."""
    if df.sparkSession.conf.get("spark.sql.caseSensitive") == "true":
        return job
    names: dict[str, str] = {}
    for name in job.compiled.results.empty.columns:
        other = names.setdefault(name.lower(), name)
        if other != name:
            raise QueryError(
                f"the columns {other!r} and {name!r} of the results differ in case only, and to Spark they are one; "
                "give one of them another alias, or set spark.sql.caseSensitive to true"
            )
    return job


@contextmanager
def _spark_words(schema: StructType) -> Iterator[None]:
    """Refusals name types as Spark does."""
    try:
        yield
    except QueryError as error:
        raise in_spark_words(error, schema) from error


@border
def explain(df: DataFrame, queries: Queries, time: str | None = None, **options: Any) -> str:
    """How `windows` would answer these queries: what the JVM slices, what Python does, and why; nothing is run.

    df:       events, batch or streaming
    queries:  one or several, or the text of `sql`
    time:     the column that windows are measured on; can be left out where the queries name it, or where it is the
              only timestamp
    options:  as of `windows`: `lateness`, `updates`, `order_by`, `bad_events`, `rates`
    """
    listed, rates = some_queries(queries), options.pop("rates", None)
    columns = polars_columns(df.schema)
    job = _job(df.schema, listed, StreamOptions.of(listed, time, **options, columns=columns), rates)
    return job.compiled.plan.explain() if df.isStreaming else batch.describe(job)


def queries_of(df: DataFrame) -> list[Query]:
    """The queries that a DataFrame of slices was cut for."""
    origin = origin_of(df.schema)
    if origin is None:
        raise TypeError("say which queries: only slices, as windrow.spark.nodes gives them, know theirs")
    return origin.cut_for


def results_of(results: DataFrame, query: str | Query, queries: Queries | None = None) -> DataFrame:
    """One query's rows and its own columns, of a DataFrame of results."""
    name = query.name if isinstance(query, Query) else query
    label = json.loads(results.schema["query"].metadata.get(META, "null"))
    if label is None and queries is None and isinstance(query, str):  # of a query book, which has columns for all
        own = results.columns
    else:
        own = own_columns_of(query, queries, results.columns, label)
    return results.where(F.col("query") == name).select(*(F.col(quoted(column)) for column in own))
