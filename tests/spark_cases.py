"""What the tests on Spark share: tables that are given to it, and what the oracle says about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

import windrow as wr
from windrow.aggregates import Aggregate
from windrow.expressions import parse
from windrow.testing import recompute
from windrow.testing.answers import rank

Row = Mapping[str, Any]


def reads(queries: Iterable[wr.Query], time: str) -> list[str]:
    """The columns that queries read, by name: ties are broken by them where events have no arrival."""
    found: set[str] = set()
    for query in queries:
        found |= {query.time or time, *query.by, *query.distinct_on}
        found |= set(query.where.columns) if query.where else set()
        found |= {name for text in getattr(query.window, "inputs", ()) for name in parse(text).columns}
        found |= {name for asked in query.aggregates for name in _columns(asked)}
    return sorted(found)


def _columns(asked: Aggregate) -> Iterator[str]:
    for part in asked.parts:
        yield from _columns(part)
    if not asked.parts:
        for expression in asked.inputs:
            yield from expression.columns


def told(rows: Sequence[Row], queries: Sequence[wr.Query], time: str = "t", **options: Any) -> list[Any]:
    """What a whole DataFrame gives, according to the oracle: its events come in order, ties broken by their values."""
    given = options.pop("order_by", ())
    order_by = ((given,) if isinstance(given, str) else tuple(given)) + tuple(reads(queries, time))
    found: list[Any] = []
    for query in queries:
        measure = query.time or time

        def place(row: Row, measure: str = measure) -> tuple[Any, ...]:
            return tuple(rank(row[column]) for column in (measure, *order_by))

        bad = [row for row in rows if row[measure] is None]
        good = sorted((row for row in rows if row[measure] is not None), key=place)
        found += recompute([*bad, *good], [query], time=time, order_by=order_by, **options)
    return found


def results(frame: Any) -> list[dict[str, Any]]:
    """The rows of a result on Spark; their times are in the session's time zone, which is UTC."""
    return pl.DataFrame(pl.from_arrow(frame.toArrow())).to_dicts()
