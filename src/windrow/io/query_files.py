"""Queries in a file: SQL, or YAML with the options that go with them.

    time: ts                             # options, all of them optional: time, lateness, updates, order_by, bad_events
    lateness: 10 seconds
    queries:
    - name: speed                        # q1, q2, … where there is none
      window: tumbling(1 minute)         # as in a program, with or without quotes
      aggregates: [mean(speed), max(speed)]        # one, a list, or {name: aggregate}
      by: car
      where: moving                      # also having, time, distinct_on, as of a Query

A path in, a `QueryFile` out. Whatever is wrong is said with file, line and query, and an unknown word is refused, so
that no option is silently left out. Nothing in a file is evaluated as Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windrow.core.query.query import Query, QueryError
from windrow.core.query.sql.statements import sql
from windrow.core.windows.fixed import duration
from windrow.io.yaml_files import Fields, Wrong, load, placed

OPTIONS = ("time", "lateness", "updates", "order_by", "bad_events")
_QUERY = ("name", "window", "aggregates", "by", "where", "time", "distinct_on", "having")


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
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise QueryError(f"there is no file {str(path)!r} of queries") from None
    except (OSError, UnicodeDecodeError) as error:
        raise QueryError(f"{path} cannot be read: {error}") from error
    return of_sql(text, str(path)) if suffix == ".sql" else of_yaml(text, str(path))


def of_sql(text: str, name: str) -> QueryFile:
    """The queries of an SQL text; `name` is what errors call it."""
    try:
        return QueryFile(tuple(sql(text)))
    except ValueError as error:
        raise QueryError(f"{name}: {error}") from error


def of_yaml(text: str, name: str) -> QueryFile:
    """The queries and options of a YAML text; `name` is what errors call it."""
    with placed(name, QueryError):
        return described(load(text))


def described(given: Any) -> QueryFile:
    """The queries and options that a file has been read to; what is wrong with them is `Wrong`."""
    if not isinstance(given, Fields) or "queries" not in given:
        raise Wrong("it has no queries; write queries: and a list of them")
    given.check(("queries", *OPTIONS))
    return QueryFile(listed(given), _options(given))


def listed(given: Fields) -> tuple[Query, ...]:
    """The queries of a list under `queries`."""
    several = given["queries"]
    if not isinstance(several, list) or not several:
        raise Wrong("queries must be a list: - name: …", given.lines["queries"])
    return tuple(_query(one, number) for number, one in enumerate(several, 1))


def _query(given: Any, number: int) -> Query:
    if not isinstance(given, Fields):
        raise Wrong(f"query {number} must have the fields {', '.join(_QUERY)}, not be {given!r}")
    named = given.setdefault("name", f"q{number}")
    try:
        given.check(_QUERY)
        for wanted in ("window", "aggregates"):
            if wanted not in given:
                raise Wrong(f"it has no {wanted}", given.line)
        for text in ("name", "window", "where", "time", "having"):
            if text in given and not isinstance(given[text], str):
                raise Wrong(f"{text} must be text, not {given[text]!r}", given.lines.get(text, given.line))
        return Query(**{str(name): value for name, value in given.items()})
    except Wrong as error:
        raise Wrong(f"query {named!r}: {error}", error.line) from error
    except (ValueError, TypeError) as error:
        blamed = next((word for word in ("where", "by", "distinct_on", "having") if f": {word}" in str(error)), None)
        if "is not a window" in str(error):
            blamed = "window"
        raise Wrong(str(error), given.lines.get(blamed or "aggregates", given.line)) from error


def _options(given: Fields) -> dict[str, Any]:
    options = {name: given[name] for name in OPTIONS if name in given}
    for name, value in options.items():
        try:
            _check(name, value)
        except (TypeError, ValueError) as error:
            raise Wrong(str(error), given.lines[name]) from error
    return options


def _check(name: str, value: Any) -> None:
    if name in ("lateness", "updates"):
        for one in value.values() if isinstance(value, dict) else [value]:
            duration(one, name)
    elif name == "bad_events" and value not in ("raise", "drop"):
        raise ValueError(f"bad_events must be 'raise' or 'drop', not {value!r}")
    elif name == "time" and not isinstance(value, str):
        raise ValueError(f"time must be the name of a column, not {value!r}")
    elif name == "order_by" and not all(
        isinstance(one, str) for one in (value if isinstance(value, list) else [value])
    ):
        raise ValueError(f"order_by must be names of columns, not {value!r}")
