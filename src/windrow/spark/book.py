"""A query book: queries that come and go while a stream runs.

    path/HEAD              the number of the newest version, which Spark reads once for every micro-batch
    path/versions/7.json   all queries of a version; never changed

A stream's columns are fixed when it starts, so a book names them: `QueryBook(path, columns={"mean(x)": "double"},
keys=["car"])`. A later query fits into them or is refused. Any file system that Arrow reaches will do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal

import polars as pl
import pyarrow.fs as fs
from pyspark.sql import types as t

from windrow.query import Query, QueryError
from windrow.results import RESULT_COLUMNS
from windrow.spark.buckets import Asked
from windrow.spark.types import polars_type, spark_data_type
from windrow.sqltypes import type_of
from windrow.windows import since_1970

FORMAT = 1
WIDTH = 20  # digits in HEAD


@dataclass(frozen=True)
class Version:
    """One version of a book."""

    number: int
    columns: Mapping[str, str]
    keys: Sequence[str]
    asked: Sequence[Asked]
    events: Mapping[str, Any] | None = None  # what is known of the stream that it is used by


class QueryBook:
    """Queries in a versioned file; made anew, or opened as it is.

    path:     a directory, on any file system that Arrow and Spark reach
    columns:  the aggregates' columns that results have, each with its type in Spark's words ("double"); needed for a
              new book
    keys:     the key columns that results have; none by default
    """

    def __init__(
        self, path: str, columns: Mapping[str, str] | None = None, keys: str | Sequence[str] | None = None
    ) -> None:
        self.path = str(path)
        named = None if keys is None else ([keys] if isinstance(keys, str) else list(keys))
        kinds = None if columns is None else {name: _plain(type_of(kind)) for name, kind in columns.items()}
        if not _exists(self.path):
            if not kinds:
                raise ValueError(f"there is no query book at {self.path!r}; to make one, say its columns and keys")
            _write(self.path, Version(0, kinds, named or [], []))
            return
        found = self.read()
        for what, given, known in (("columns", kinds, dict(found.columns)), ("keys", named, list(found.keys))):
            if given is not None and given != known:
                raise ValueError(f"the query book at {self.path!r} has the {what} {known}, not {given}")

    def read(self, number: int | None = None) -> Version:
        """A version, by default the newest."""
        return read(self.path, head(self.path) if number is None else number)

    @property
    def version(self) -> int:
        """The number of the newest version, from 0."""
        return head(self.path)

    @property
    def queries(self) -> list[Query]:
        """The queries that are asked for, without those that are being removed."""
        return [one.query for one in self.read().asked if not one.closing]

    def add(self, *queries: Query, since: int | datetime | None = None) -> int:
        """Ask more queries, from an event time on if one is given; returns the new version.

        A `since` that is not later than what the stream has seen is moved to the first time that is.
        """
        now = self.read()
        asked = list(now.asked)
        moment = since_1970(since) if isinstance(since, datetime) else since
        for query in queries:
            if not isinstance(query, Query):
                raise QueryError(f"expected a Query, not {query!r}")
            if any(one.query.name == query.name and not one.closing for one in asked):
                raise QueryError(f"there already is a query called {query.name!r}; remove it first, or choose a name")
            self._fits(query, now)
            asked = [one for one in asked if one.query.name != query.name]
            asked.append(Asked(query, moment))
        return self._write(now, asked)

    def remove(self, name: str, when: Literal["now", "windows_closed"] = "now") -> int:
        """Stop a query; with `windows_closed`, windows that hold an event already seen are still emitted."""
        if when not in ("now", "windows_closed"):
            raise ValueError(f"when must be 'now' or 'windows_closed', not {when!r}")
        now = self.read()
        found = [one for one in now.asked if one.query.name == name and not one.closing]
        if not found:
            raise QueryError(
                f"there is no query called {name!r}; there are {', '.join(map(repr, _names(now))) or 'none'}"
            )
        asked = [one for one in now.asked if one.query.name != name]
        if when == "windows_closed":
            asked.append(Asked(found[0].query, found[0].since, closing=True))
        return self._write(now, asked)

    def bind(self, events: Mapping[str, Any]) -> Version:
        """Note what is known of the stream, and check that all queries fit it; returns the newest version."""
        now = self.read()
        if now.events != events:
            for one in now.asked:
                self._fits(one.query, Version(now.number, now.columns, now.keys, now.asked, events))
            _write(self.path, Version(now.number + 1, now.columns, now.keys, now.asked, events))
        return self.read()

    def _write(self, now: Version, asked: Sequence[Asked]) -> int:
        _write(self.path, Version(now.number + 1, now.columns, now.keys, asked, now.events))
        return now.number + 1

    def _fits(self, query: Query, version: Version) -> None:
        """Refuse a query whose results have no place in the columns."""
        for key in query.by:
            if key not in version.keys:
                raise QueryError(f"query {query.name!r}: {key!r} is none of the book's keys {list(version.keys)}")
        for asked in query.aggregates:
            if asked.name not in version.columns:
                raise QueryError(
                    f"query {query.name!r}: {asked.name!r} is none of the book's columns {list(version.columns)}; "
                    "give it the alias of one"
                )
        if version.events is not None:
            found = _results(query, version.events)
            for asked in query.aggregates:
                kind = _plain(found[asked.name])
                if kind != version.columns[asked.name]:
                    raise QueryError(
                        f"query {query.name!r}: {asked.name!r} would be {kind.upper()}, and the book's column is "
                        f"{version.columns[asked.name].upper()}"
                    )

    def __repr__(self) -> str:
        return f"QueryBook({self.path!r})"


def result_columns(
    version: Version, keys: Mapping[str, pl.DataType], bound: pl.DataType, retractions: bool
) -> dict[str, pl.DataType]:
    """The columns of a stream's results."""
    fixed: dict[str, pl.DataType] = {"query": pl.String()}
    fixed |= {key: keys[key] for key in version.keys}
    fixed |= {"window_start": bound, "window_end": bound, "position": pl.Int64(), "revision": pl.Int32()}
    if retractions:
        fixed["retracted"] = pl.Boolean()
    for name, kind in version.columns.items():
        if name in fixed or name in RESULT_COLUMNS:
            raise QueryError(f"the book's column {name!r} is a column of every result; choose another name")
        fixed[name] = type_of(kind)
    return fixed


def _plain(dtype: pl.DataType) -> str:
    """A type in Spark's words, each type always in the same ones."""
    return spark_data_type(dtype).simpleString()


def _results(query: Query, events: Mapping[str, Any]) -> dict[str, pl.DataType]:
    from windrow.jobs import job_of

    columns = {name: polars_type(t.StructType.fromJson(events["schema"])[name].dataType) for name in events["columns"]}
    known = {name: dtype for name, dtype in columns.items() if dtype is not None}
    found = job_of([query], events["time"], known, order_by=events["order_by"]).bound.results
    return dict(found.columns)


def _names(version: Version) -> list[str]:
    return [one.query.name for one in version.asked if not one.closing]


# --- files ----------------------------------------------------------------------------------------------------------


def head(path: str) -> int:
    """The number of the newest version."""
    system, root = _located(path)
    try:
        with system.open_input_stream(f"{root}/HEAD") as file:
            return int(file.read())
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(f"there is no query book at {path!r}: {error}") from error


@lru_cache(maxsize=256)
def read(path: str, number: int) -> Version:
    """A version, which never changes."""
    system, root = _located(path)
    with system.open_input_stream(f"{root}/versions/{number}.json") as file:
        found = json.loads(file.read())
    if found["windrow"] != FORMAT:
        raise ValueError(f"the query book at {path!r} has format {found['windrow']}; this windrow reads {FORMAT}")
    asked = [Asked.from_dict(one) for one in found["queries"]]
    return Version(number, found["columns"], found["keys"], asked, found["events"])


def _write(path: str, version: Version) -> None:
    """A new version, refused if somebody else has written it meanwhile."""
    system, root = _located(path)
    system.create_dir(f"{root}/versions", recursive=True)
    place = f"{root}/versions/{version.number}.json"
    if system.get_file_info(place).type != fs.FileType.NotFound:
        raise ValueError(f"somebody else has just changed the query book at {path!r}; try again")
    described = {
        "windrow": FORMAT,
        "columns": dict(version.columns),
        "keys": list(version.keys),
        "queries": [one.to_dict() for one in version.asked],
        "events": version.events,
    }
    _replace(system, place, json.dumps(described))
    _replace(system, f"{root}/HEAD", f"{version.number:0{WIDTH}d}\n")


def _replace(system: Any, place: str, text: str) -> None:
    """Write a file whole: readers see what was there before, or all of it."""
    if isinstance(system, fs.LocalFileSystem):
        with system.open_output_stream(f"{place}.new") as file:
            file.write(text.encode())
        system.move(f"{place}.new", place)
    else:
        with system.open_output_stream(place) as file:
            file.write(text.encode())


def _exists(path: str) -> bool:
    system, root = _located(path)
    return bool(system.get_file_info(f"{root}/HEAD").type == fs.FileType.File)


def _located(path: str) -> tuple[Any, str]:
    if "://" in path or path.startswith("file:"):
        system, root = fs.FileSystem.from_uri(path)
        return system, root.rstrip("/")
    return fs.LocalFileSystem(), path.rstrip("/")
