"""Whole tables: the same queries over events that are all there, in one process or on Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from windrow.binding import ARRIVAL
from windrow.engine import Engine
from windrow.frames import as_given, to_polars
from windrow.measures import Lengths
from windrow.query import Query, QueryError, time_of
from windrow.results import RESULT_COLUMNS, own_columns, too_large

if TYPE_CHECKING:
    from windrow.spark.book import QueryBook


def windows(
    data: Any,
    queries: Query | Iterable[Query] | QueryBook,
    time: str | None = None,
    *,
    lateness: Lengths = 0,
    order_by: str | Sequence[str] = (),
    bad_events: Literal["raise", "drop"] = "raise",
    partial: bool = False,
    **options: Any,
) -> Any:
    """Answer queries; takes and returns a Polars frame, an Arrow table, a pandas frame or a Spark DataFrame.

    data:        events, or on Spark also slices of local nodes
    queries:     one or several, with names that differ; for a streaming DataFrame also a `QueryBook`
    time:        the column that windows are measured on, a timestamp, a date or an integer; can be left out
                 where the queries name it, as those of `sql` do, and for slices
    lateness:    how far the events of a stream may be out of order, 0 by default; a whole table has no late events, and
                 there it only says how far apart repeats may be for `distinct_on`
    order_by:    columns that order events of the same time
    bad_events:  "raise" refuses events without a time, "drop" leaves them out
    partial:     of a whole table, answer also counting and punctuated windows that its end leaves open
    options:     for Spark: `rates`; for a streaming DataFrame also `updates`, how long emitted windows are kept to be
                 emitted again when late events change them, `buckets`, into how many parts keys are put, and `metrics`,
                 the name of what is observed

    The result has a row for each (query, key, window): `query`, the keys, `window_start`, `window_end`, `revision`, a
    column for every aggregate, and `position` and `retracted` where they apply. See `results_of`.
    """
    if _is_spark(data):
        from windrow.spark import frames

        return frames.windows(
            data, queries, time, lateness=lateness, order_by=order_by, bad_events=bad_events, partial=partial, **options
        )
    if options:
        raise TypeError(f"{next(iter(options))!r} is for a Spark DataFrame, and this is {type(data).__name__}")
    if not isinstance(queries, Query | Iterable):
        raise TypeError(f"expected queries, not {queries!r}")
    asked = [queries] if isinstance(queries, Query) else list(queries)
    time = time_of(asked, time)
    if any((query.time or time) == ARRIVAL for query in asked):
        raise QueryError("a whole table has no arrival times; name a time column")
    engine = Engine(asked, time, lateness=lateness, order_by=order_by, bad_events=bad_events)
    for measure in engine._measures.values():
        measure.still = True
    frame = to_polars(data)
    engine.push(frame)
    if engine._bound is None:  # an empty table still has columns and types
        engine._bound, _ = engine._bind(frame)
    results = engine.finish(partial)
    if engine._overflowed:
        raise too_large(engine._overflowed)
    return as_given(results, data)


def results_of(results: Any, query: str | Query) -> Any:
    """One query's rows and its own columns, of a Polars, Arrow, pandas or Spark result.

    results:  what `windows` or an engine has returned
    query:    the name, or the `Query` itself. With the name alone, a column that is null in all of the query's rows is
              left out, but for Spark, where the result knows its columns
    """
    if _is_spark(results):
        from windrow.spark import frames

        return frames.results_of(results, query)
    frame = to_polars(results)
    name = query.name if isinstance(query, Query) else query
    rows = frame.filter(pl.col("query") == name)
    if isinstance(query, Query):
        own = own_columns(query, frame.columns)
    else:
        if not rows.height and frame.height:
            raise KeyError(f"there are no results of a query called {name!r}")
        own = [
            column for column in frame.columns if column in RESULT_COLUMNS or rows[column].null_count() < rows.height
        ]
    return as_given(rows.select(own), results)


def _is_spark(data: Any) -> bool:
    return type(data).__module__.startswith("pyspark.")
