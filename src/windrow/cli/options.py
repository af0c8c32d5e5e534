"""A request: queries from a file, and options, in which the command line goes before the file."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from windrow.cli.failures import Refused
from windrow.core.plan.options import StreamOptions
from windrow.core.query.query import Query, timestamps
from windrow.io import query_files
from windrow.io.text_times import time_format


@dataclass(frozen=True)
class Request:
    """Queries and how they are to be answered; the time may still have to be found in the events."""

    queries: tuple[Query, ...]
    time: str | None
    given: Mapping[str, Any]  # the other options of the stream
    partial: bool = False
    time_format: str | None = None  # of text: how it writes times

    def options(self, columns: Mapping[str, pl.DataType]) -> StreamOptions:
        """Its options over events with these columns."""
        return StreamOptions.of(self.queries, self.time_column(columns), **self.given)

    def time_column(self, columns: Mapping[str, pl.DataType]) -> str:
        """The time column: the one that was named, or that the queries name, or the only timestamp there is."""
        own = dict.fromkeys(query.time for query in self.queries if query.time)
        if self.time is not None:
            if own and self.time not in own and all(query.time for query in self.queries):
                names = " and ".join(map(repr, own))
                raise Refused(f"every query names its own time, {names}, so that --time {self.time} has no use")
            return self.time
        if len(own) == 1:
            return str(next(iter(own)))
        if own and all(query.time for query in self.queries):
            raise Refused(
                f"queries are measured on {', '.join(map(repr, own))}; say with --time which one lateness is for"
            )
        stamps = timestamps(columns)
        if len(stamps) == 1:
            return stamps[0]
        if stamps:
            raise Refused(f"the events have several timestamps: say which one with --time: {', '.join(stamps)}")
        numbers = [name for name, dtype in columns.items() if dtype.is_integer()]
        hint = f"; if it is a whole number, say --time: {', '.join(numbers)}" if numbers else ""
        others = f" among {', '.join(columns)}; say its type with --types 'ts TIMESTAMP'" if not numbers else ""
        raise Refused(f"the events have no timestamp{others}{hint}")


def read(source: str, only: Sequence[str] = (), partial: bool = False, **given: Any) -> Request:
    """The queries of a file, or of standard input as SQL for `-`, with options of the command line."""
    if source == "-":
        file = query_files.of_sql(sys.stdin.read(), "standard input")
    elif Path(source).is_dir():
        raise Refused(f"{source} is a directory; name a file of queries, .sql or .yaml")
    else:
        file = query_files.read(Path(source))
    options = dict(file.options) | {name: value for name, value in given.items() if value not in (None, (), [])}
    for name in ("lateness", "updates"):
        value = options.get(name)
        if isinstance(value, str) and value.strip().lstrip("-").isdecimal():  # on the command line units are text too
            options[name] = int(value)
    time, times = options.pop("time", None), options.pop("time_format", None)
    if times is not None:
        time_format(times, "--time-format")
    return Request(_only(file.queries, only), time, options, partial, times)


def _only(queries: tuple[Query, ...], names: Iterable[str]) -> tuple[Query, ...]:
    known = {query.name: query for query in queries}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(map(repr, known))}"
            raise Refused(f"there is no query {name!r}; {hint}")
    return tuple(known[name] for name in names) or queries
