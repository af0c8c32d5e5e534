"""A query: a name, a window, aggregates, and over which events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any

import polars as pl

from windrow.core.aggregates.formula import aggregate, formula
from windrow.core.aggregates.functions import Aggregate
from windrow.core.expressions.border import border
from windrow.core.expressions.errors import QueryError
from windrow.core.expressions.limits import COLUMNS, beyond, not_text
from windrow.core.expressions.parse import Expression, parse
from windrow.core.windows.fixed import Session, Window, window_from_dict
from windrow.core.windows.ordered import JOINED, NODE, OrderedWindow, scope_of
from windrow.core.windows.parse import window as window_of

RESERVED = ("query", "window_start", "window_end", "revision", "retracted", "position")


@border
@dataclass(frozen=True, repr=False)
class Query:
    """One window query.

    name:        what its rows are called in the results; unique in an engine
    window:      made by `tumbling`, `session`, `counting` and so on, or one of your own; or text: "tumbling(1 hour)"
    aggregates:  one or several of `wr.mean("speed")`, or SQL text such as "mean(speed)", or {"v": "mean(speed)"}
    by:          key columns; () for the whole stream, the default; a window with scope="node" adds `node`. Or what they
                 are called in the results, {"vehicle": "car"}
    where:       a predicate in SQL; a window without an event that satisfies it is not emitted
    time:        the time column of its window, where it is not the engine's own; "arrival" for processing time
    distinct_on: drop events that repeat these columns, no further apart than the lateness
    having:      a predicate over aggregates, such as "count() > 10"; windows that do not satisfy it are not emitted
    names:       what keys and bounds are called in the results of this query: {"hour": "window_start"}
    """

    name: str
    window: Window
    aggregates: tuple[Aggregate, ...]
    by: tuple[str, ...] = ()
    where: Expression | None = None
    time: str | None = None
    distinct_on: tuple[str, ...] = ()
    having: Aggregate | None = None
    names: tuple[tuple[str, str], ...] = ()  # a name, and of which column

    def __init__(
        self,
        name: str,
        window: Window | str,
        aggregates: Aggregate | str | Iterable[Aggregate | str] | Mapping[str, Aggregate | str],
        by: str | Sequence[str] | Mapping[str, str] = (),
        where: str | Expression | None = None,
        time: str | None = None,
        distinct_on: str | Sequence[str] = (),
        having: str | Aggregate | None = None,
        names: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    ) -> None:
        if not isinstance(name, str) or not name:
            raise QueryError(f"a query needs a name, not {name!r}")
        window = _window(name, window)
        if not isinstance(having, str | Aggregate | None):
            raise QueryError(f"query {name!r}: having must be a predicate such as 'count() > 10', not {having!r}")
        names = _names(name, names)
        if isinstance(by, Mapping):
            names = {**{alias: key for alias, key in by.items() if alias != key}, **names}
            by = tuple(dict.fromkeys(by.values()))
        vars(self).update(
            name=name,
            window=window,
            aggregates=_aggregates(name, aggregates),
            by=_keys(name, window, _columns(name, "by", by)),
            where=_read(parse, where, name, "where"),
            time=time,
            distinct_on=_columns(name, "distinct_on", distinct_on),
            having=_read(formula, having, name, "having"),
            names=tuple(names.items()),
        )
        _check_names(self)
        scope, ordered = scope_of(window), [each for each in self.computed if each.needs_order]
        if scope in JOINED and ordered:
            raise QueryError(
                f"query {name!r}: {ordered[0].text} needs the events of all nodes in order, and scope={scope!r} "
                "joins what each node has made of its own; ask for it with scope='global' or 'node'"
            )

    def __repr__(self) -> str:
        """As it is written in Python, with columns and aggregates by their names."""
        listed = {"by": self.by, "distinct_on": self.distinct_on}
        columns = {what: ", ".join(names) for what, names in listed.items() if names}
        shown = [f"{what}=[{names}]" if ", " in names else f"{what}={names}" for what, names in columns.items()]
        predicates = {"where": self.where, "having": self.having}
        shown += [f"{what}={predicate.text!r}" for what, predicate in predicates.items() if predicate]
        shown += [f"time={self.time}"] if self.time else []
        return f'Query("{self.name}", {", ".join([repr(self.window), repr(list(self.aggregates)), *shown])})'

    def to_dict(self) -> dict[str, Any]:
        """A description in plain data, from which `from_dict` makes the same query."""
        described = {
            "name": self.name,
            "window": self.window.to_dict(),
            "aggregates": [aggregate.to_dict() for aggregate in self.aggregates],
            "by": list(self.by),
            "where": self.where and self.where.text,
            "time": self.time,
            "distinct_on": list(self.distinct_on),
            "having": self.having and self.having.to_dict(),
            "names": dict(self.names),
        }
        return {field: value for field, value in described.items() if value}

    @staticmethod
    def from_dict(described: dict[str, Any]) -> Query:
        """The query that `to_dict` described; windows and aggregates of your own must have been imported."""
        try:
            fields = dict(described, window=window_from_dict(described["window"]))
            fields["aggregates"] = [Aggregate.from_dict(part) for part in described["aggregates"]]
            if "having" in described:
                fields["having"] = Aggregate.from_dict(described["having"])
            return Query(**fields)
        except QueryError:
            raise
        except NOT_DESCRIBED as error:
            name = described.get("name") if isinstance(described, dict) else None
            query = f"query {name[:60]!r}" if isinstance(name, str) else "a query without a name"
            kind = "" if type(error) is ValueError else f"{type(error).__name__}: "  # of ours, or of Python's own
            reason = f"there is no {error}" if isinstance(error, KeyError) else f"{kind}{error}"
            raise QueryError(f"{query} cannot be read: {reason}") from error

    @property
    def computed(self) -> tuple[Aggregate, ...]:
        """All aggregates: those of its columns, and what HAVING says."""
        return (*self.aggregates, self.having) if self.having else self.aggregates

    @property
    def needs_order(self) -> bool:
        """Whether its windows or aggregates depend on the final order of events."""
        return isinstance(self.window, OrderedWindow) or any(aggregate.needs_order for aggregate in self.computed)

    @property
    def named_columns(self) -> tuple[str, ...]:
        """The columns of its results that `names` can name otherwise: keys and bounds."""
        counted = isinstance(self.window, OrderedWindow) and self.window.has_position
        return (*self.by, "window_start", "window_end", *(["position"] if counted else []))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of its results that are its own: names of keys and bounds, and aggregates."""
        names = (name for name, column in self.names if name != column)
        return (*names, *(aggregate.name for aggregate in self.aggregates))

    @property
    def filter_first(self) -> Expression | None:
        """The predicate, where it must come before the windowing because it decides the windows' bounds."""
        return self.where if isinstance(self.window, Session | OrderedWindow) else None

    @property
    def filter_inside(self) -> Expression | None:
        """The predicate, where it can be applied inside the operators so that the slices are shared."""
        return None if isinstance(self.window, Session | OrderedWindow) else self.where


NOT_DESCRIBED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)  # by plain data


def _check_names(query: Query) -> None:
    """Refuse more columns than a query may have, and names that cannot be written down."""
    if len(query.aggregates) > COLUMNS:
        raise QueryError(f"query {query.name!r} has {beyond('columns', len(query.aggregates), COLUMNS)}; make several")
    aggregates = {one.name for one in query.aggregates}
    named = (query.name, query.time or "", *query.by, *query.distinct_on, *aggregates, *dict(query.names))
    for name in named:
        if not_text(name) is not None:
            raise QueryError(f"query {query.name!r}: the name {name!r} has half of a character")
    columns = query.named_columns
    for name, column in query.names:
        if column not in columns:
            raise QueryError(f"query {query.name!r}: names: {column!r} is none of {', '.join(columns)}")
        if name != column and (name in (*RESERVED, *query.by) or name in aggregates):
            what = "an aggregate" if name in aggregates else "a key" if name in query.by else "a column of every result"
            raise QueryError(
                f"query {query.name!r}: {column!r} cannot be called {name!r}, which is {what}; choose another alias"
            )


def time_of(queries: Iterable[Query], given: str | None, columns: Mapping[str, pl.DataType] | None = None) -> str:
    """The time column: the one that is given, or that the queries name, or the only timestamp among the columns."""
    time = named_time(queries, given)
    if time is not None:
        return time
    if columns is None:
        raise QueryError("name the time column, time=…: neither the queries nor the events say which it is")
    stamps = timestamps(columns)
    if len(stamps) == 1:
        return stamps[0]
    if stamps:
        named = ", ".join(map(repr, stamps))
        raise QueryError(f"the events have several timestamps, {named}; say which is the time: time={stamps[0]!r}")
    numbers = [name for name, dtype in columns.items() if dtype.is_integer()]
    hint = f"; if it is a whole number, name it: time={numbers[0]!r}" if numbers else ""
    raise QueryError(f"the events have no timestamp; there are {', '.join(map(repr, columns)) or 'no columns'}{hint}")


def named_time(queries: Iterable[Query], given: str | None) -> str | None:
    """The time column that is given, or else the one that all queries name that name one; None if none does."""
    if given is not None:
        return given
    named = list(dict.fromkeys(query.time for query in queries if query.time))
    if len(named) > 1:
        raise QueryError(
            f"queries name several times, {', '.join(map(repr, named))}; say which is the stream's: time=…"
        )
    return named[0] if named else None


def timestamps(columns: Mapping[str, pl.DataType]) -> list[str]:
    """The columns that are timestamps, or else those that are dates: what can be the time without being named."""
    stamps = [name for name, dtype in columns.items() if isinstance(dtype, pl.Datetime)]
    return stamps or [name for name, dtype in columns.items() if isinstance(dtype, pl.Date)]


def _read(read: Callable[[str], Any], given: Any, name: str, what: str) -> Any:
    """What a text says, or what is given instead of one."""
    try:
        return read(given) if isinstance(given, str) else given
    except ValueError as error:
        raise QueryError(f"query {name!r}: {what}: {error}") from error


def _window(name: str, given: Window | str) -> Window:
    """The window of a query, or of a text; refuses one that cannot be compared or does not fit itself."""
    if isinstance(given, str):
        try:
            given = window_of(given)
        except ValueError as error:
            raise QueryError(f"query {name!r}: {error}") from error
    if not isinstance(given, Window):
        raise QueryError(f"query {name!r}: window must be made by tumbling(…), session(…) and so on, not {given!r}")
    try:
        hash(given)
    except TypeError as error:
        kind = type(given).__name__
        raise QueryError(f"query {name!r}: the fields of {kind} must be plain data: {error}") from error
    if reason := _not_plain(given) or given.refusal:
        raise QueryError(f"query {name!r}: {reason}")
    return given


def _not_plain(window: Window) -> str | None:
    """Why a window is not known by its fields alone, or None."""
    kind = type(window)
    others = vars(window).keys() - kind.__dataclass_fields__.keys()
    kept = [name for name in others if not isinstance(getattr(kind, name, None), cached_property)]
    return f"{kind.__name__} keeps {min(kept)!r}, which is no field of it; make it a frozen dataclass" if kept else None


def _aggregates(
    name: str, given: Aggregate | str | Iterable[Aggregate | str] | Mapping[str, Aggregate | str]
) -> tuple[Aggregate, ...]:
    if not isinstance(given, Aggregate | str | Iterable):
        raise QueryError(f"query {name!r}: {given!r} is not an aggregate; write wr.mean('x') or 'mean(x)'")
    aliases: Iterable[str | None] = given if isinstance(given, Mapping) else repeat(None)
    listed = given.values() if isinstance(given, Mapping) else given
    texts = [listed] if isinstance(listed, Aggregate | str) else list(listed)
    try:
        aggregates = tuple(_aggregate(text, alias) for text, alias in zip(texts, aliases, strict=False))
    except ValueError as error:
        raise QueryError(f"query {name!r}: {error}") from error
    if not aggregates:
        raise QueryError(f"query {name!r} has no aggregates")
    names = [aggregate.name for aggregate in aggregates]
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise QueryError(f"query {name!r} has two columns called {twice!r}; give one an alias")
    if reserved := set(names) & set(RESERVED):
        raise QueryError(f"query {name!r}: {min(reserved)!r} is a column of every result; choose another alias")
    return aggregates


def _aggregate(given: Aggregate | str, alias: str | None) -> Aggregate:
    made = aggregate(given) if isinstance(given, str) else given
    if not isinstance(made, Aggregate):
        raise ValueError(f"{made!r} is not an aggregate; write wr.mean('x') or 'mean(x)'")
    return made if alias is None else made.alias(alias)


def _keys(name: str, window: Window, by: tuple[str, ...]) -> tuple[str, ...]:
    """The keys of a query, which a window of each node parts by the node."""
    scope = scope_of(window)
    if scope in JOINED and NODE in by:
        raise QueryError(
            f"query {name!r}: scope={scope!r} joins the windows of several nodes, and by has {NODE!r}, which parts "
            "them; leave one out"
        )
    return (*by, NODE) if scope == "node" and NODE not in by else by


def _names(name: str, given: Any) -> dict[str, str]:
    try:
        names = dict(given)
    except (TypeError, ValueError):
        names = {None: None}
    if not all(isinstance(word, str) and word for pair in names.items() for word in pair):
        raise QueryError(f"query {name!r}: names must be such as {{'hour': 'window_start'}}, not {given!r}")
    return names


def _columns(name: str, what: str, given: str | Sequence[str]) -> tuple[str, ...]:
    columns = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    for column in columns:
        if not isinstance(column, str) or not column:
            raise QueryError(f"query {name!r}: {what} must be column names, not {given!r}")
        if column in RESERVED and what == "by":
            raise QueryError(f"query {name!r}: {column!r} is a column of every result and cannot be a key")
    if len(set(columns)) < len(columns):
        raise QueryError(f"query {name!r}: {what} names a column twice: {list(columns)}")
    return columns
