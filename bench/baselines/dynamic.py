"""Polars as people use it: a lazy `group_by_dynamic` for each query, over a whole table; sorted first where it is not.

All queries are collected together, so that Polars can share what it finds to share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

import windrow as wr
from bench.baselines.common import END, START, TIME, System, Whole, asked_of, is_known, results, together
from windrow.core.windows.fixed import Sliding, Tumbling

MOST_QUERIES = 100  # beyond which a run takes minutes


class Dynamic(Whole):
    def __init__(self, queries: Sequence[wr.Query], lateness: int) -> None:
        super().__init__()
        self._queries = queries

    def answer(self, events: pl.DataFrame) -> pl.DataFrame:
        ordered = events if events[TIME].is_sorted() else events.sort(TIME)
        lazy = ordered.lazy().set_sorted(TIME)
        return together(
            results(query, rows)
            for query, rows in zip(
                self._queries, pl.collect_all([_windows(lazy, query) for query in self._queries]), strict=True
            )
        )


def _windows(events: pl.LazyFrame, query: wr.Query) -> pl.LazyFrame:
    window: Any = query.window
    slide = getattr(window, "slide", window.length)
    before = -(-window.length // slide) - 1  # windows that begin before the first event, which it would leave out
    grouped = events.group_by_dynamic(
        TIME,
        every=f"{slide}us",
        period=f"{window.length}us",
        offset=f"-{before * slide}us",
        closed="left",
        group_by=list(query.by) or None,
    )
    asked = grouped.agg(one.direct() for one in asked_of(query))
    start = pl.col(TIME).to_physical()
    return asked.with_columns(start.alias(START), (start + window.length).alias(END))


def _claims(query: wr.Query) -> bool:
    return is_known(query, Tumbling, Sliding) and not getattr(query.window, "offset", 0)


SYSTEM = System(
    "polars", lambda queries: len(queries) <= MOST_QUERIES and all(map(_claims, queries)), Dynamic, batches=1
)
