"""A query book: queries that come and go while a stream runs.

A stream's columns are fixed when it starts, so a book names them: `QueryBook(path, columns={"mean(x)": "double"},
keys=["car"])`. A later query fits into them, and into what the stream can do, or is refused. How a book is kept in
files, also while several change it, is in `query_book_files`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from os import PathLike
from typing import Any, Literal

import polars as pl
from pyspark.sql import types as t

from windrow.core.assemble.results import RESULT_COLUMNS
from windrow.core.expressions.border import border
from windrow.core.expressions.errors import QueryError, hint
from windrow.core.expressions.types import type_of
from windrow.core.plan.options import StreamOptions
from windrow.core.query.given import Queries, queries_from, some_queries
from windrow.core.query.query import Query
from windrow.core.stream.job import job_of
from windrow.core.windows.fixed import since_1970
from windrow.spark.stream import query_book_files
from windrow.spark.stream.bucket import RequestedQuery
from windrow.spark.stream.query_book_files import Version
from windrow.spark.types import in_spark_words, polars_columns, spark_data_type


@border
class QueryBook:
    """Queries in a versioned file; made anew, or opened as it is.

    path:     a directory, on any file system that Arrow and Spark reach, in Spark's words (s3a://…); local without a
              scheme
    columns:  the aggregates' columns that results have, each with its type in Spark's words ("double"); needed for a
              new book
    keys:     the key columns that results have; none by default
    """

    def __init__(
        self,
        path: str | PathLike[str],
        columns: Mapping[str, str] | None = None,
        keys: str | Sequence[str] | None = None,
    ) -> None:
        self.path = query_book_files.absolute(path)
        named = None if keys is None else ([keys] if isinstance(keys, str) else list(keys))
        kinds = None if columns is None else {name: _plain(type_of(kind)) for name, kind in columns.items()}
        if not query_book_files.exists(self.path):
            if not kinds:
                raise ValueError(f"there is no query book at {self.path!r}; to make one, say its columns and keys")
            with query_book_files.changing(self.path):
                if not query_book_files.exists(self.path):  # nobody else has made it meanwhile
                    query_book_files.write(self.path, Version(0, kinds, named or [], []))
        newest = self.read()
        for what, given, there in (("columns", kinds, dict(newest.columns)), ("keys", named, list(newest.keys))):
            if given is not None and given != there:
                raise ValueError(f"the query book at {self.path!r} has the {what} {there}, not {given}")

    def read(self) -> Version:
        """The newest version."""
        return query_book_files.read(self.path, query_book_files.head(self.path))

    @property
    def version(self) -> int:
        """The number of the newest version, from 0."""
        return self.read().number

    @property
    def queries(self) -> list[Query]:
        """The queries of the book, without those that are being removed."""
        return [entry.query for entry in self.read().requested if not entry.closing]

    def add(self, *queries: Queries, since: int | datetime | None = None) -> int:
        """Add queries, also lists of them or the text of `sql`, from an event time on if one is given; all or none.

        queries:  what is added
        since:    the event time from which on they are answered; by default from the next micro-batch

        Returns the new version of the book.
        A `since` that is not later than what the stream has seen is moved to the first time that is.
        """
        added = some_queries([query for part in queries for query in queries_from(part)])
        moment = since_1970(since) if isinstance(since, datetime) else since
        with query_book_files.changing(self.path):
            now = self.read()
            entries = list(now.requested)
            for query in added:
                if any(entry.query.name == query.name and not entry.closing for entry in entries):
                    raise QueryError(
                        f"there already is a query called {query.name!r}; remove it first, or choose a name"
                    )
                self._fits(query, now)
                entries = [entry for entry in entries if entry.query.name != query.name]
                entries.append(RequestedQuery(query, moment))
            return self._write(replace(now, requested=entries))

    def remove(self, name: str, when: Literal["now", "windows_closed"] = "now") -> int:
        """Stop a query; with `windows_closed`, windows that hold an event already seen are still emitted."""
        if when not in ("now", "windows_closed"):
            raise ValueError(f"when must be 'now' or 'windows_closed', not {when!r}")
        with query_book_files.changing(self.path):
            now = self.read()
            removed = [entry for entry in now.requested if entry.query.name == name and not entry.closing]
            if not removed:
                names = ", ".join(repr(query.name) for query in self.queries)
                raise QueryError(f"there is no query called {name!r}; there are {names or 'none'}")
            entries = [entry for entry in now.requested if entry.query.name != name]
            if when == "windows_closed":
                entries.append(RequestedQuery(removed[0].query, removed[0].since, closing=True))
            return self._write(replace(now, requested=entries))

    def bind(self, events: Mapping[str, Any]) -> Version:
        """Note what is known of the stream, and check that keys and queries fit it; returns the newest version."""
        stream = json.loads(json.dumps(events))  # as a file gives it back
        with query_book_files.changing(self.path):
            now = self.read()
            bound = replace(now, events=stream)
            for key in bound.keys:
                _check_key(key, stream)
            for entry in bound.requested:
                self._fits(entry.query, bound)
            if now.events != stream:
                self._write(bound)
        return self.read()

    def _write(self, changed: Version) -> int:
        number = changed.number + 1
        query_book_files.write(self.path, replace(changed, number=number))
        return number

    def _fits(self, query: Query, version: Version) -> None:
        """Refuse a query whose results have no place in the columns, or that the stream cannot do."""
        for key in query.by:
            if key not in version.keys:
                raise QueryError(f"query {query.name!r}: {key!r} is none of the book's keys {list(version.keys)}")
        for name in query.columns:
            if name not in version.columns:
                raise QueryError(
                    f"query {query.name!r}: {name!r} is none of the book's columns {list(version.columns)}; "
                    "give it the alias of one"
                )
        if version.events is not None:
            refuse_unstreamable([query], version.events["time"])
            types = _result_types(query, version.events)
            for name in query.columns:
                kind = _plain(types[name])
                if kind != version.columns[name]:
                    raise QueryError(
                        f"query {query.name!r}: {name!r} would be {kind.upper()}, and the book's column is "
                        f"{version.columns[name].upper()}"
                    )

    def __repr__(self) -> str:
        return f"QueryBook({self.path!r})"


def refuse_unstreamable(queries: Iterable[Query], time: str) -> None:
    """Refuse queries that a stream along this time cannot answer, before it is started or when a book takes them in."""
    for query in queries:
        if query.distinct_on:
            raise QueryError(
                f"query {query.name!r}: distinct_on needs all events with the same values in one place, which a stream "
                "on Spark does not bring together; use df.dropDuplicatesWithinWatermark(…) before"
            )
        if (query.time or time) != time:
            raise QueryError(
                f"query {query.name!r}: Spark has one watermark for a query, so all windows must be on {time!r}, "
                f"not on {query.time!r}; make a second streaming query for it"
            )


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


def _result_types(query: Query, events: Mapping[str, Any]) -> dict[str, pl.DataType]:
    schema = t.StructType.fromJson(events["schema"])
    try:
        job = job_of([query], StreamOptions(events["time"], order_by=tuple(events["order_by"])), _columns(events))
        return dict(job.compiled.results.columns)
    except QueryError as error:
        raise in_spark_words(error, schema) from error


def _check_key(key: str, events: Mapping[str, Any]) -> None:
    """Refuse a key of the book that no event has."""
    columns = _columns(events)
    if key not in columns:
        raise QueryError(f"the book's keys: there is no column {key!r} in the events; {hint(key, columns)}")
    if columns[key].is_nested():
        raise QueryError(f"the book's keys: column {key!r} is {_plain(columns[key]).upper()}, which cannot be a key")


def _columns(events: Mapping[str, Any]) -> dict[str, pl.DataType]:
    """The columns of the stream that queries can read."""
    types = polars_columns(t.StructType.fromJson(events["schema"]))
    return {name: types[name] for name in events["columns"] if name in types}
