"""Transcripts: what goes in, what must come out, step by step, in a file that every runtime runs.

    queries:
    - {name: q, window: "tumbling(10)", aggregates: ["count()"], by: [k], where: x > 1}
    time: t                           # unless it is t; also lateness, updates, order_by, bad_events, as of the engine
    types: {fare: "decimal(10, 2)"}   # of columns whose values do not say it themselves
    steps:
    - input: [{t: 1, k: a, x: 2}]      # columns that a row leaves out are null
      expect: []                       # all rows of this step, in their order; no `expect`: not looked at
    - watermark: 10                    # with `measure: odometer` where it is not the engine's own
      expect: [{query: q, k: a, window_start: 0, window_end: 10, count(): 1}]
    - add: {name: r, …}                # with `since`, and `becomes`: where it really begins
    - remove: q                        # with `when: windows_closed`
    - finish: true                     # or `finish: partial`, with windows that are not whole

A row of `expect` leaves out `revision` when it is 0 and `retracted` when it is false. A step may also say `error`, a
piece of the message that it must fail with, and `counted`, the numbers of late and dropped events up to then. Windows
and aggregates are text, and an aggregate may have a name: `aggregates: {total: sum(x)}`. `!decimal 1.20` is a decimal.
Nothing in a file is evaluated as Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import polars as pl
import yaml

from windrow.core.expressions.types import type_of
from windrow.core.query.query import Query
from windrow.core.windows.ordered import JOINED, scope_of
from windrow.testing.compare import differences
from windrow.testing.oracle import Oracle, microseconds
from windrow.testing.standing import Row

_OPTIONS = ("time", "lateness", "updates", "order_by", "bad_events")
_ACTIONS = ("input", "watermark", "add", "remove", "finish")
_DETAILS = ("expect", "error", "counted", "measure", "since", "becomes", "when")
_QUERY = {"name", "window", "aggregates", "by", "where", "time", "distinct_on", "having", "names"}


class Runtime(Protocol):
    """What runs a transcript. Results are rows; `Oracle` is one."""

    def push(self, rows: list[Row], /) -> Any: ...
    def advance(self, watermark: Any, /, time: str | None = None) -> Any: ...
    def finish(self, partial: bool = False) -> Any: ...
    def add(self, query: Query, /, since: Any = None) -> Any: ...
    def remove(self, name: str, /, when: str = "now") -> Any: ...


@dataclass(frozen=True)
class Step:
    action: str
    value: Any
    details: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.action} {self.value}"


@dataclass(frozen=True)
class Stream:
    """A whole run: queries, the engine's options, and what happens."""

    queries: tuple[Query, ...]
    options: Mapping[str, Any]
    steps: tuple[Step, ...]

    @property
    def rows(self) -> list[Row]:
        """All events, in the order in which they come."""
        return [row for step in self.steps if step.action == "input" for row in step.value]

    @property
    def all_queries(self) -> tuple[Query, ...]:
        """Those of the beginning and those that are added; of two with one name the later one."""
        added = [step.value for step in self.steps if step.action == "add"]
        return tuple({query.name: query for query in [*self.queries, *added]}.values())


@dataclass(frozen=True)
class Transcript(Stream):
    """The run of a file, by its name, with the types of its columns in a frame."""

    name: str
    schema: dict[str, pl.DataType]

    @property
    def needs(self) -> frozenset[str]:
        """What not every runtime can do: `updates`, `add`, `remove`, `bad_events`, `late` (drops), `partial`, `joins`
        (windows of several nodes)."""
        found = {step.action for step in self.steps} & {"add", "remove"}
        if any(step.details.get("counted", {}).get("dropped") for step in self.steps):
            found.add("late")
        if any(step.action == "finish" and step.value == "partial" for step in self.steps):
            found.add("partial")
        if any(scope_of(query.window) in JOINED for query in self.all_queries):
            found.add("joins")
        found |= {name for name in ("updates", "bad_events") if self.options.get(name) is not None}
        return frozenset(found)

    def check(self, runtime: Runtime) -> Iterator[str]:
        """Run all steps; yields a line for everything that is not as expected.

        The oracle runs beside the runtime: the file must be right about it, and it knows how exact a float must be.
        """
        oracle = Oracle(self.queries, **self.options)
        for number, step in enumerate(self.steps, 1):
            place = f"{self.name}, step {number} ({step.action})"
            if "error" in step.details:
                yield from (f"{place}: {line}" for line in _failure(runtime, step))
                continue
            right, found = run_step(oracle, step), run_step(runtime, step)
            if "expect" in step.details:
                for line in differences(right, step.details["expect"], self.all_queries, ordered=True):
                    yield f"{place}: the file and the oracle disagree: {line}"
                for line in differences(found, right, self.all_queries, ordered=True):
                    yield f"{place}: {line}"
            for name, value in step.details.get("counted", {}).items():
                for who in (oracle, runtime):
                    if getattr(who, name) != value:
                        yield f"{place}: {name} is {getattr(who, name)}, not {value}"
            if "becomes" in step.details and _time(found) != _time(step.details["becomes"]):
                yield f"{place}: begins at {found}, not {step.details['becomes']}"


def run_step(runtime: Runtime, step: Step) -> Any:
    """What one step gives: rows, or for `add` the time that the query begins at."""
    if step.action == "input":
        return runtime.push(step.value)
    if step.action == "watermark":
        return runtime.advance(step.value, time=step.details.get("measure"))
    if step.action == "add":
        return runtime.add(step.value, since=step.details.get("since"))
    if step.action == "remove":
        return runtime.remove(step.value, when=step.details.get("when", "now"))
    return runtime.finish(partial=True) if step.value == "partial" else runtime.finish()


def _failure(runtime: Runtime, step: Step) -> Iterator[str]:
    try:
        run_step(runtime, step)
    except (ValueError, TypeError, OverflowError) as error:
        if step.details["error"] not in str(error):
            yield f"fails with {error!s}, which does not say {step.details['error']!r}"
    else:
        yield f"does not fail, and should with {step.details['error']!r}"


# --- reading --------------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """YAML in plain values, and decimals."""


_Loader.add_constructor("!decimal", lambda loader, node: Decimal(str(node.value)))


def read(path: Path) -> Transcript:
    """Read a file; an unknown word in it is an error, so that no expectation is silently left out."""
    try:
        return _transcript(path.stem, yaml.load(path.read_text(encoding="utf-8"), _Loader))
    except (ValueError, KeyError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: {error}") from error


def _transcript(name: str, given: dict[str, Any]) -> Transcript:
    _known(given, {"queries", "types", "steps", *_OPTIONS})
    options = {"time": "t"} | {key: given[key] for key in _OPTIONS if key in given}
    rows = [row for step in given["steps"] for row in step.get("input") or []]
    schema = _schema(rows) | {column: type_of(text) for column, text in given.get("types", {}).items()}
    retracted = {"retracted": False} if options.get("updates") is not None else {}
    steps = tuple(_step(step, schema, {"revision": 0} | retracted) for step in given["steps"])
    return Transcript(tuple(map(query_of, given["queries"])), options, steps, name, schema)


def _step(given: dict[str, Any], schema: dict[str, pl.DataType], default: Row) -> Step:
    _known(given, {*_ACTIONS, *_DETAILS})
    (action,) = [key for key in _ACTIONS if key in given]
    value, details = given[action], {key: given[key] for key in _DETAILS if key in given}
    if action == "input":
        value = pl.DataFrame(value, schema=schema).to_dicts()
    if action == "finish" and value not in (True, "partial"):
        raise ValueError(f"finish is true or partial, not {value!r}")
    if action == "add":
        value = query_of(value)
    if "expect" in details:
        details["expect"] = [{**default, **row} for row in details["expect"] or []]
    return Step(action, value, details)


def query_of(given: dict[str, Any]) -> Query:
    """A query from plain data, its window and its aggregates in words."""
    _known(given, _QUERY)
    return Query(**given)


def _known(given: Mapping[str, Any], words: set[str]) -> None:
    if unknown := given.keys() - words:
        raise ValueError(f"{sorted(unknown)[0]!r} is none of {', '.join(sorted(words))}")


def _time(value: Any) -> Any:
    return microseconds(value) if isinstance(value, datetime) else value


def _schema(rows: list[dict[str, Any]]) -> dict[str, pl.DataType]:
    """The types of all columns of a file, from their values; integers where there are none."""
    found: dict[str, pl.DataType] = {}
    for column in dict.fromkeys(column for row in rows for column in row):
        values = [row[column] for row in rows if row.get(column) is not None]
        kinds = {type(value) for value in values}
        if len(kinds) > 1 and kinds != {int, float}:
            names = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise ValueError(f"column {column!r} has values of several types: {names}")
        found[column] = pl.Series(values, strict=False).dtype if values else pl.Int64()
    return found
