"""What the baselines have in common: their interface, functions as partial aggregates, and events put in order.

A function is lifted over events, merged over partial aggregates, and lowered to its result:

    mean(x)    lift: sum(x), count(x)    merge: sum, sum    lower: sum / count
    median(x)  lift: the values          merge: all of them lower: their median

All times are microseconds. Results have windrow's columns, so that they can be compared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

import windrow as wr
from windrow.core.windows.fixed import Session, Sliding, Tumbling
from windrow.core.windows.ordered import Counting, Punctuated

TIME = "ts"
START, END, POSITION = "window_start", "window_end", "position"
_TS = pl.Datetime("us")


class Run(ABC):
    """A system at work on a stream."""

    calculations = 0  # how often a function was applied to an event

    @abstractmethod
    def push(self, events: pl.DataFrame) -> pl.DataFrame:
        """Take a batch; returns the results that it makes final."""

    @abstractmethod
    def finish(self) -> pl.DataFrame:
        """Nothing comes any more; returns the other results."""

    @property
    def state_bytes(self) -> int:
        """What it keeps."""
        raise NotImplementedError

    @property
    def slices(self) -> int:
        """How many partial aggregates it has made; those that it has forgotten may be left out."""
        raise NotImplementedError


@dataclass(frozen=True)
class System:
    """Something that answers queries: which it claims to answer exactly, and how it begins."""

    name: str
    claims: Callable[[Sequence[wr.Query]], bool]
    start: Callable[[Sequence[wr.Query], int], Run]
    batches: int = 8  # in which it gets the events; one where it takes a whole table
    most_events: int | None = None  # that it is given; one that works event by event in Python would take hours


class Whole(Run):
    """A system that takes a whole table: it begins when all events are there."""

    def __init__(self) -> None:
        self._parts: list[pl.DataFrame] = []

    def push(self, events: pl.DataFrame) -> pl.DataFrame:
        self._parts.append(events)
        return pl.DataFrame()

    def finish(self) -> pl.DataFrame:
        return self.answer(self._parts[0] if len(self._parts) == 1 else pl.concat(self._parts))

    @abstractmethod
    def answer(self, events: pl.DataFrame) -> pl.DataFrame:
        """All results."""


# --- functions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A partial aggregate: over events, and over several of itself."""

    lift: Callable[[pl.Expr], pl.Expr]
    merge: Callable[[pl.Expr], pl.Expr]


COUNT = Part(lambda x: x.count(), lambda s: s.sum())
SUM = Part(lambda x: x.sum(), lambda s: s.sum())
SQUARES = Part(lambda x: (x * x).sum(), lambda s: s.sum())
LEAST = Part(lambda x: x.min(), lambda s: s.min())
MOST = Part(lambda x: x.max(), lambda s: s.max())
VALUES = Part(lambda x: x, lambda s: s.list.explode(keep_nulls=False, empty_as_null=False))  # a list
LENGTH = Part(lambda x: pl.len(), lambda s: s.sum())


@dataclass(frozen=True)
class Function:
    """Its partial aggregates, and its result from them."""

    parts: tuple[Part, ...]
    lower: Callable[..., pl.Expr]


def _stddev(n: pl.Expr, total: pl.Expr, squares: pl.Expr) -> pl.Expr:
    return pl.when(n > 1).then(((squares - total * total / n) / (n - 1)).clip(lower_bound=0).sqrt())


FUNCTIONS: dict[str, Function] = {
    "count": Function((LENGTH,), lambda n: n.cast(pl.Int64)),
    "sum": Function((SUM,), lambda s: s),
    "min": Function((LEAST,), lambda s: s),
    "max": Function((MOST,), lambda s: s),
    "range": Function((LEAST, MOST), lambda low, high: high - low),
    "mean": Function((SUM, COUNT), lambda total, n: total / n),
    "stddev": Function((COUNT, SUM, SQUARES), _stddev),
    "median": Function((VALUES,), lambda values: values.list.median()),
    "quantile": Function(
        (VALUES,), lambda values, q=0.5: values.list.eval(pl.element().quantile(q, "linear")).list.first()
    ),
}


@dataclass(frozen=True)
class Asked:
    """An aggregate as partial aggregates over a column, each with a name of its own."""

    aggregate: wr.Aggregate

    @property
    def function(self) -> Function:
        return FUNCTIONS[self.aggregate.function]

    @property
    def _input(self) -> pl.Expr:
        inputs = self.aggregate.inputs
        return pl.col(inputs[0].text) if inputs else pl.lit(1)

    def _names(self) -> list[str]:
        return [f"{self.aggregate.name}/{number}" for number in range(len(self.function.parts))]

    def lifted(self) -> list[pl.Expr]:
        return [
            part.lift(self._input).alias(name) for part, name in zip(self.function.parts, self._names(), strict=True)
        ]

    def merged(self) -> list[pl.Expr]:
        return [
            part.merge(pl.col(name)).alias(name) for part, name in zip(self.function.parts, self._names(), strict=True)
        ]

    def lowered(self) -> pl.Expr:
        parts = [pl.col(name) for name in self._names()]
        return self.function.lower(*parts, **dict(self.aggregate.params)).alias(self.aggregate.name)

    def direct(self) -> pl.Expr:
        """Its result over events at once."""
        if self.aggregate.function == "median":
            return self._input.median().alias(self.aggregate.name)
        if self.aggregate.function == "quantile":
            return self._input.quantile(self.aggregate.param("q"), "linear").alias(self.aggregate.name)
        parts = [part.lift(self._input) for part in self.function.parts]
        return self.function.lower(*parts).alias(self.aggregate.name)


def asked_of(query: wr.Query) -> list[Asked]:
    return [Asked(aggregate) for aggregate in query.aggregates]


def is_known(query: wr.Query, *kinds: type) -> bool:
    """Whether a query is plain: one of these windows, functions of the table above over a column, no filter."""
    return (
        isinstance(query.window, kinds or (Tumbling, Sliding, Session, Counting))
        and query.where is None
        and all(one.function in FUNCTIONS and one.where is None for one in query.aggregates)
        and getattr(query.window, "step", None) == getattr(query.window, "n", None)
    )


def is_plain(query: wr.Query) -> bool:
    """Whether a query is plain, and has no key where its windows need the order of events."""
    if isinstance(query.window, Punctuated) and query.window.start is not None:
        return False
    ordered = isinstance(query.window, Counting | Punctuated)
    return is_known(query, Tumbling, Sliding, Session, Counting, Punctuated) and not (ordered and query.by)


def needed(queries: Iterable[wr.Query]) -> list[str]:
    """The columns that queries read: nothing else is worth keeping."""
    found = {TIME}
    for query in queries:
        found |= {*query.by, *(one.text for asked in query.aggregates for one in asked.inputs)}
        found |= {query.window.end} if isinstance(query.window, Punctuated) and query.window.end else set()
    return sorted(found)


# --- results and order ----------------------------------------------------------------------------------------------


def results(query: wr.Query, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with `window_start` and `window_end` in microseconds as windrow would give them."""
    columns = [pl.lit(query.name).alias("query"), *query.by, pl.col(START).cast(_TS), pl.col(END).cast(_TS)]
    position = [pl.col(POSITION).cast(pl.Int64)] if POSITION in rows.columns else []
    return rows.select(*columns, *position, *(one.name for one in query.aggregates))


def together(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Results of several queries as one table."""
    found = [part for part in parts if part.height]
    return pl.concat(found, how="diagonal") if found else pl.DataFrame()


class Order:
    """Holds events back until the watermark has made their order final."""

    def __init__(self) -> None:
        self._held: list[pl.DataFrame] = []

    def push(self, events: pl.DataFrame) -> None:
        self._held.append(events)

    def final(self, watermark: float) -> pl.DataFrame | None:
        """The events at or before it, in their order."""
        if not self._held:
            return None
        held = pl.concat(self._held)
        times = held[TIME].to_physical().to_numpy()
        if np.any(times[1:] < times[:-1]):
            held = held[np.argsort(times, kind="stable")]
            times = held[TIME].to_physical().to_numpy()
        cut = int(np.searchsorted(times, watermark, "left"))
        self._held = [held[cut:]] if cut < held.height else []
        return held[:cut] if cut else None

    @property
    def state_bytes(self) -> int:
        return int(sum(part.estimated_size() for part in self._held))


class Watermark:
    """The greatest time seen, minus the lateness."""

    def __init__(self, lateness: int) -> None:
        self._lateness = lateness
        self.at: float = -np.inf

    def see(self, events: pl.DataFrame) -> float:
        newest: Any = events[TIME].to_physical().max()
        self.at = max(self.at, newest - self._lateness)
        return self.at
