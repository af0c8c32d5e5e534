"""Queries in a file: SQL, or YAML with the options that go with them.

    time: ts                             # options, all of them optional: those of OPTIONS
    lateness: 10 seconds
    queries:
    - name: speed                        # q1, q2, … where there is none
      window: tumbling(1 minute)         # as in a program, with or without quotes
      aggregates: [mean(speed), max(speed)]        # one, a list, or {name: aggregate}
      by: car
      where: moving                      # also having, time, distinct_on, names, as of a Query

A path in, a `QueryFile` out. Whatever is wrong is refused with file, line and query, and an unknown word is refused, so
that no option is silently left out. Nothing in a file is evaluated as Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windrow.core.expressions.errors import QueryError
from windrow.core.expressions.limits import QUERIES, beyond
from windrow.core.query.query import Query
from windrow.core.query.sql.statements import sql
from windrow.core.windows.fixed import duration
from windrow.io.text_times import time_format
from windrow.io.yaml_files import Check, Fields, Wrong, is_text, load, must, placed, text, text_of


def _lengths(value: Any, word: str) -> None:
    for length in value.values() if isinstance(value, dict) else [value]:
        duration(length, word)


OPTIONS: Mapping[str, Check] = {
    "time": must("be the name of a column, not {!r}", is_text),
    "lateness": _lengths,
    "updates": _lengths,
    "order_by": must(
        "be names of columns, not {!r}", lambda names: all(map(is_text, names if type(names) is list else [names]))
    ),
    "time_format": time_format,
    "bad_events": must("be 'raise' or 'drop', not {!r}", ("raise", "drop").__contains__),
}
_QUERY = ("name", "window", "aggregates", "by", "where", "time", "distinct_on", "having", "names")


@dataclass(frozen=True)
class QueryFile:
    """The queries of a file, and what it says of how they are to be run."""

    queries: tuple[Query, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


def read(path: Path) -> QueryFile:
    """Read a file by its suffix: .sql, .yaml or .yml."""
    suffix = path.suffix.lower()
    if suffix not in (".sql", ".yaml", ".yml"):
        raise QueryError(f"{path}: queries are SQL or YAML: call the file .sql or .yaml")
    content = text_of(path, QueryError, " of queries")
    return of_sql(content, str(path)) if suffix == ".sql" else of_yaml(content, str(path))


def of_sql(content: str, name: str) -> QueryFile:
    """The queries of an SQL text; `name` is what errors call it."""
    try:
        return QueryFile(tuple(sql(content)))
    except ValueError as error:
        raise QueryError(f"{name}: {error}") from error


def of_yaml(content: str, name: str) -> QueryFile:
    """The queries and options of a YAML text; `name` is what errors call it."""
    with placed(name, QueryError):
        given = load(content)
        if not isinstance(given, Fields) or "queries" not in given:
            raise Wrong("it has no queries; write queries: and a list of them")
        given.allow(("queries", *OPTIONS))
        queries = queries_in(given)
        for word, check in OPTIONS.items():
            given.read(word, check)
        return QueryFile(queries, {word: given[word] for word in OPTIONS if word in given})


def queries_in(given: Fields) -> tuple[Query, ...]:
    """The queries of a list under `queries`."""
    listed = given["queries"]
    if not isinstance(listed, list) or not listed:
        raise given.wrong("queries must be a list: - name: …", "queries")
    if len(listed) > QUERIES:
        raise given.wrong(f"there are {beyond('queries', len(listed), QUERIES)}", "queries")
    return tuple(_query(described, number) for number, described in enumerate(listed, 1))


def _query(given: Any, number: int) -> Query:
    if not isinstance(given, Fields):
        raise Wrong(f"query {number} must have the fields {', '.join(_QUERY)}, not be {given!r}")
    given = given.over({"name": f"q{number}"})
    try:
        given.allow(_QUERY)
        for needed in ("window", "aggregates"):
            if needed not in given:
                raise given.wrong(f"it has no {needed}")
        for word in ("name", "window", "where", "time", "having"):
            given.read(word, text)
        return Query(**{str(name): value for name, value in given.items()})
    except Wrong as error:
        raise Wrong(f"query {given['name']!r}: {error}", error.line) from error
    except (ValueError, TypeError) as error:
        blamed = next(
            (word for word in ("where", "by", "distinct_on", "having", "names") if f": {word}" in str(error)), None
        )
        if "is not a window" in str(error):
            blamed = "window"
        raise given.wrong(str(error), blamed or "aggregates") from error
