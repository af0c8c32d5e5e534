"""Queries as users give them: one or several, made in Python or written as SQL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from windrow.core.expressions.errors import QueryError
from windrow.core.query.query import Query
from windrow.core.query.sql.statements import statements

Queries = Query | str | Iterable[Query | str]


def queries_from(given: Queries) -> list[Query]:
    """The queries that are given, in their order; a text is read as `sql` reads it.

    A statement without a name is called q1, q2, … by its place among all, so that two texts do not have the same.
    """
    queries: list[Query] = []
    for part in [given] if isinstance(given, Query | str) else _several(given):
        if isinstance(part, str):
            queries += statements(part, len(queries) + 1)
        elif isinstance(part, Query):
            queries.append(part)
        else:
            raise QueryError(f"expected a Query or SQL text, not {part!r}")
    return queries


def some_queries(given: Queries) -> list[Query]:
    """The queries that are given, at least one."""
    queries = queries_from(given)
    if not queries:
        raise QueryError("there are no queries; give one or several: wr.Query(…), or SQL text")
    return queries


def _several(given: Any) -> Iterable[Any]:
    if not isinstance(given, Iterable):
        raise TypeError(f"expected queries, wr.Query(…) or SQL text, one or several, not {given!r}")
    return given
