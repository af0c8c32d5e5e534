"""DuckDB as people use it: a SQL statement for each query over a table in memory, on one thread.

Tumbling windows are a GROUP BY of the bucket of a time, sliding ones unnest an event's windows, sessions and counting
windows number events with window functions first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb
import polars as pl

import windrow as wr
from bench.baselines.common import END, START, System, Whole, is_known, results, together
from windrow.core.windows.fixed import Session
from windrow.core.windows.ordered import Counting

MOST_QUERIES = 100  # beyond which a run takes minutes


class Duck(Whole):
    def __init__(self, queries: Sequence[wr.Query], lateness: int) -> None:
        super().__init__()
        self._statements = [(query, _sql(query)) for query in queries]

    def answer(self, events: pl.DataFrame) -> pl.DataFrame:
        with duckdb.connect() as connection:
            connection.execute("SET threads = 1")
            connection.register("arrow", events.with_columns(us=pl.col("ts").to_physical()).to_arrow())
            connection.execute("CREATE TABLE events AS SELECT *, row_number() OVER () AS arrived FROM arrow")
            return together(
                results(query, pl.DataFrame(connection.sql(statement).to_arrow_table()))
                for query, statement in self._statements
            )


def _function(asked: wr.Aggregate) -> str:
    column = asked.inputs[0].text if asked.inputs else "*"
    written = {
        "mean": f"avg({column})",
        "stddev": f"stddev_samp({column})",
        "range": f"max({column}) - min({column})",
        "median": f"quantile_cont({column}, 0.5)",
    }
    if asked.function == "quantile":
        return f"quantile_cont({column}, {asked.param('q')})"
    return written.get(asked.function, f"{asked.function}({column})")


def _sql(query: wr.Query) -> str:
    window: Any = query.window
    asked = ", ".join(f'{_function(one)} AS "{one.name}"' for one in query.aggregates)
    keys = "".join(f"{key}, " for key in query.by)
    partition = f"PARTITION BY {', '.join(query.by)} " if query.by else ""
    in_order = f"OVER ({partition}ORDER BY us, arrived)"
    if isinstance(window, Counting):
        return f"""
            SELECT {keys}min(us) AS {START}, max(us) AS {END}, number * {window.n} AS position, {asked}
            FROM (SELECT *, (row_number() {in_order} - 1) // {window.n} AS number FROM events)
            GROUP BY {keys}number HAVING count(*) = {window.n}"""
    if isinstance(window, Session):
        return f"""
            SELECT {keys}min(us) AS {START}, max(us) + {window.gap} AS {END}, {asked}
            FROM (SELECT *, sum(begins) {in_order} AS run
                  FROM (SELECT *, coalesce(us - lag(us) {in_order} > {window.gap}, true)::INT AS begins FROM events))
            GROUP BY {keys}run"""
    slide = getattr(window, "slide", window.length)
    newest = f"us - us % {slide}"
    if slide == window.length:
        source = f"(SELECT *, {newest} AS {START} FROM events)"
    else:
        copies = -(-window.length // slide)
        source = f"""(SELECT * FROM (SELECT *, {newest} - unnest(range({copies})) * {slide} AS {START} FROM events)
                      WHERE {START} + {window.length} > us)"""
    return f"""
        SELECT {keys}{START}, {START} + {window.length} AS {END}, {asked} FROM {source} GROUP BY {keys}{START}"""


SYSTEM = System("duckdb", lambda queries: len(queries) <= MOST_QUERIES and all(map(is_known, queries)), Duck, batches=1)
