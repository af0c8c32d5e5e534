"""Whole tables: the same queries over events that are all there, in one process or on Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from windrow.core.arrays.dataframes import as_given, flag_sorted, to_polars
from windrow.core.assemble.results import label_of, labelled, own_columns_of, too_large
from windrow.core.expressions.border import border
from windrow.core.expressions.errors import QueryError
from windrow.core.plan.options import StreamOptions
from windrow.core.plan.watermark import Lengths
from windrow.core.query.given import Queries, some_queries
from windrow.core.query.query import Query, named_time
from windrow.core.slices.binding import ARRIVAL, Binding
from windrow.core.stream.compiled import compile_plan
from windrow.core.stream.live import Live, Metrics

if TYPE_CHECKING:
    from windrow.spark.stream.query_book import QueryBook


@border
def windows(
    data: Any,
    queries: Queries | QueryBook | None = None,
    time: str | None = None,
    *,
    lateness: Lengths = 0,
    order_by: str | Sequence[str] = (),
    bad_events: Literal["raise", "drop"] = "raise",
    partial: bool = False,
    **options: Any,
) -> Any:
    """Answer queries; takes and returns a Polars frame, an Arrow table, a pandas frame or a Spark DataFrame.

    data:        events, or on Spark also slices of nodes; a list of dicts is answered with a Polars frame. The index of
                 a pandas frame is a column, too, where it has a name or is of times
    queries:     one or several, with names that differ, or the text of `sql`; for a streaming DataFrame also a
                 `QueryBook`; can be left out for slices, which know what they were cut for
    time:        the column that windows are measured on, a timestamp, a date or an integer; can be left out
                 where the queries name it, as those of `sql` do, where it is the only timestamp, and for slices
    lateness:    how far the events of a stream may be out of order, 0 by default; a whole table has no late events, and
                 there it only says how far apart repeats may be for `distinct_on`
    order_by:    columns that order events of the same time
    bad_events:  "raise" refuses events without a time, or for which an integer of an expression leaves 64 bits;
                 "drop" leaves them out
    partial:     of a whole table, answer also counting and punctuated windows that its end leaves open
    options:     for Spark: `rates`; for a streaming DataFrame also `updates`, how long emitted windows are kept to be
                 emitted again when late events change them, `buckets`, into how many parts keys are put, and `metrics`,
                 the name of what is observed

    The result has a row for each (query, key, window): `query`, the keys, `window_start`, `window_end`, `revision`, a
    column for every aggregate, and `position` and `retracted` where they apply. See `results_of`.
    """
    if _is_spark(data):
        from windrow.spark import api

        return api.windows(
            data, queries, time, lateness=lateness, order_by=order_by, bad_events=bad_events, partial=partial, **options
        )
    if options:
        raise TypeError(f"{next(iter(options))!r} is for a Spark DataFrame, and this is {type(data).__name__}")
    if queries is None:
        raise TypeError("say which queries: only slices on Spark know theirs")
    listed = some_queries(queries)  # type: ignore[arg-type]  # a query book says itself that it is for Spark
    frame = to_polars(data, named_time(listed, time))
    table = Table(listed, StreamOptions.of(listed, time, lateness, None, order_by, bad_events, frame.schema))
    table.push(frame)
    return labelled(as_given(table.finish(partial), data), listed)


class Table:
    """A whole table that comes in parts, so that it need not be in memory at once.

    Parts may overlap in time and come in any order, and no event is late: `push` is told the least time of all that is
    still to come, and answers what lies before it. So what is held is what parts have in common, whatever they hold.
    """

    def __init__(self, queries: Sequence[Query], options: StreamOptions) -> None:
        if any((query.time or options.time) == ARRIVAL for query in queries):
            raise QueryError("a whole table has no arrival times; name a time column")
        self._live = Live.of(queries, options, still=True)
        self._like = pl.DataFrame()

    def push(self, part: pl.DataFrame, rest: Mapping[str, int] | None = None) -> pl.DataFrame:
        """Take a part; `rest` says for each time column, in its units, the least time of the parts that follow."""
        live, self._like = self._live, part.clear()
        results = [live.push(flag_sorted(part, live.time_columns)).results]
        if live.states is not None:
            moves = {name: max(live.time_columns[name].watermark, least) for name, least in (rest or {}).items()}
            results += [live.advance({name: least}) for name, least in moves.items()]
        return self._checked(results)

    def finish(self, partial: bool = False) -> pl.DataFrame:
        if self._live.states is None:  # an empty table still has columns and types
            self._live.use(*self._live.begin(self._like))
        return self._checked([self._live.finish(partial)])

    def binding(self, columns: Mapping[str, pl.DataType]) -> Binding:
        """The queries over events with these columns, if they fit: what is needed of them, and their time columns."""
        live = self._live
        return compile_plan(live.plan, columns, live.options.order_by, live.time_columns).binding

    @property
    def metrics(self) -> Metrics:
        return self._live.metrics

    def _checked(self, results: list[pl.DataFrame]) -> pl.DataFrame:
        states = self._live.states
        if states is not None and states.overflowed:
            raise too_large(states.overflowed)
        return pl.concat(results) if len(results) > 1 else results[0]


@border
def results_of(results: Any, query: str | Query, queries: Queries | None = None) -> Any:
    """One query's rows and its own columns, of a Polars, Arrow, pandas or Spark result, whatever its rows are.

    results:  what `windows` or an engine has returned
    query:    the `Query`, or its name
    queries:  those that were answered, for a name in results that do not know them any more. What `windows` and an
              engine return knows them, but Polars forgets it in whatever is made of that, as by `pl.concat`
    """
    if _is_spark(results):
        from windrow.spark import api

        return api.results_of(results, query, queries)
    name = query.name if isinstance(query, Query) else query
    frame = to_polars(results)
    own = own_columns_of(query, queries, frame.columns, label_of(results))
    rows = frame.filter(pl.col("query") == name).select(column for column in own if column in frame.columns)
    return as_given(rows, results)


def _is_spark(data: Any) -> bool:
    return type(data).__module__.startswith("pyspark.")
