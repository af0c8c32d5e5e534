"""Whole tables: the same queries over events that are all there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from windrow.binding import ARRIVAL
from windrow.engine import Engine
from windrow.frames import as_given, to_polars
from windrow.measures import Lengths
from windrow.query import Query, QueryError


def windows(
    data: Any,
    queries: Query | Iterable[Query],
    time: str | None = None,
    *,
    lateness: Lengths = 0,
    order_by: str | Sequence[str] = (),
    bad_events: Literal["raise", "drop"] = "raise",
    partial: bool = False,
    **options: Any,
) -> Any:
    """Answer queries over a whole table; takes and returns a Polars frame, an Arrow table or a pandas frame.

    A whole table has no late events; `lateness` only says how far apart repeats may be for `distinct_on`. With
    `partial`, counting and punctuated windows that the table's end leaves open are answered too.
    """
    if type(data).__module__.startswith("pyspark."):
        from windrow.spark import frames

        return frames.windows(
            data, queries, time, lateness=lateness, order_by=order_by, bad_events=bad_events, partial=partial, **options
        )
    if options:
        raise TypeError(f"{next(iter(options))!r} is for a Spark DataFrame, and this is {type(data).__name__}")
    if time is None:
        raise TypeError("windows() needs the name of the time column; only slices on Spark know theirs")
    asked = [queries] if isinstance(queries, Query) else list(queries)
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
        name, lost = engine._overflowed.most_common(1)[0]
        raise OverflowError(
            f"{name} does not fit into 64 bits in {lost} windows; cast its input to a double or a decimal"
        )
    return as_given(results, data)
