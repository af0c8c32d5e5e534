"""Answers: partials combined over windows become the values of aggregates, once for all queries that ask the same.

    combined partials ── lower ──▶ columns: a row for each window, a column for each aggregate
    windows × queries ───────────▶ answers: a window, a query, a row of the columns, a signature

Signatures over the same timelines and the same filter share a **projection**, which lowers each aggregate once. So the
work grows with windows and different aggregates, and an answer, which is four numbers, is all that a query costs. Two
signatures may give the same column different names: `Names` says which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from operator import or_
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from windrow.core.aggregates.formula import overflowed
from windrow.core.aggregates.functions import FUNCTIONS, Aggregate
from windrow.core.arrays.range_queries import Ints, ramp
from windrow.core.expressions.parse import Expression
from windrow.core.operators.base import Combined, Fields
from windrow.core.plan.groups import Group, Partial, Signature, partials_of


class Names:
    """The names that each signature of a projection gives to its columns."""

    def __init__(self, signatures: Sequence[Sequence[tuple[str, str]]]) -> None:
        """With the results of each signature, as pairs: the name of the result, and that of its column."""
        names: dict[str, int] = {}
        columns: dict[str, int] = {}
        pairs = [
            (names.setdefault(name, len(names)), columns.setdefault(column, len(columns)))
            for results in signatures
            for name, column in results
        ]
        self.names, self.columns, self.signatures = list(names), list(columns), len(signatures)
        self._name, self._column = np.array(pairs, np.int64).reshape(-1, 2).T
        self._count = np.array([len(results) for results in signatures], np.int64)
        self._first = np.cumsum(self._count) - self._count

    def cells(self, signature: Ints) -> tuple[Ints, Ints, Ints]:
        """List the results of answers, given by their signatures: for each result its answer, name and column.

        All three are indices: into `signature`, `names` and `columns`.
        """
        count = self._count[signature]
        pair = np.repeat(self._first[signature], count) + ramp(count)  # the pairs of a signature stand together
        return np.repeat(np.arange(len(signature)), count), self._name[pair], self._column[pair]


NAMELESS = Names([()])


@dataclass(frozen=True)
class Answers:
    """The answers of a projection: arrays with an entry for each pair of a window and a query that asks about it."""

    where: Expression | None
    window: Ints  # index of the window
    query: Ints  # number of the query
    columns: pl.DataFrame  # a row for each window that is answered
    row: Ints  # of the columns
    names: Names
    signature: Ints  # in the order of `names`
    having: pl.DataFrame | None = None  # one column: whether each row of the columns satisfies HAVING

    def take(self, chosen: Ints) -> Answers:
        places = {name: getattr(self, name)[chosen] for name in ("window", "query", "row", "signature")}
        return replace(self, **places)

    def without_results(self) -> Answers:
        """The same windows and queries, without a column."""
        return replace(self, columns=pl.DataFrame(), names=NAMELESS, signature=np.zeros_like(self.row))


class SharedProjection:
    """Signatures over the same windows and the same filter, compiled once per plan: what is lowered for which query."""

    def __init__(
        self, signatures: Sequence[Signature], members: Sequence[dict[int, list[int]]], timelines: int
    ) -> None:
        """With the queries of each signature, by the index of their timeline."""
        first, *_ = signatures
        self.where, self.having, self.needs_order = first.where, first.having, first.needs_order
        self.partials = list(dict.fromkeys(partial for signature in signatures for partial in signature.partials))
        columns = {aggregate: aggregate for signature in signatures for aggregate in signature.aggregates}
        if len({aggregate.name for aggregate in columns}) < len(columns):  # two share a name: columns have numbers
            columns = {aggregate: aggregate.alias(str(number)) for number, aggregate in enumerate(columns)}
        self._names = Names(
            [[(one.name, columns[one].name) for one in signature.aggregates] for signature in signatures]
        )
        self._lowered = [(alike, partials_of(alike[0], first.where)) for alike in _alike(list(columns.values()))]
        pairs = [(timeline, number) for number, queries in enumerate(members) for timeline in queries]
        sizes = [len(numbers) for queries in members for numbers in queries.values()]
        timeline_of, signature_of = np.repeat(np.array(pairs, np.int64), sizes, axis=0).T
        order = np.argsort(timeline_of, kind="stable")
        numbers = chain.from_iterable(chain.from_iterable(queries.values() for queries in members))
        self._query, self._signature = np.fromiter(numbers, np.int64)[order], signature_of[order]
        self._count = np.bincount(timeline_of, minlength=timelines)
        self._first = np.cumsum(self._count) - self._count
        self.wanted: npt.NDArray[np.bool_] = self._count > 0

    def queries_of(self, timeline: int) -> Ints:
        return self._query[self._first[timeline] :][: self._count[timeline]]

    def answers(self, index: Ints, timeline: Ints, state: Callable[[Partial], Combined]) -> Answers:
        """Answer windows, given by their indices and timelines; `state` combines a partial over each of them."""
        columns = [lower(alike, [state(partial) for partial in read]) for alike, read in self._lowered]
        read = [state(partial) for partial in partials_of(self.having, self.where)] if self.having else []
        having = lower([self.having], read) if self.having else None
        count = self._count[timeline]
        entry = np.repeat(self._first[timeline], count) + ramp(count)  # the queries of a timeline stand together
        return Answers(
            self.where,
            np.repeat(index, count),
            self._query[entry],
            pl.concat(columns, how="horizontal"),
            np.repeat(np.arange(len(index)), count),
            self._names,
            self._signature[entry],
            having,
        )


def projections_of(group: Group) -> list[SharedProjection]:
    """The projections of a group; a signature with a HAVING has one of its own, because HAVING drops whole rows."""
    members: list[dict[int, list[int]]] = [{} for _ in group.signatures]
    for (timeline, number), queries in group.members.items():
        members[number][timeline] = queries
    by_identity: dict[Any, list[Signature]] = {}
    for signature, number in group.signatures.items():
        alone = number if signature.having else None
        identity = signature.where, signature.needs_order, frozenset(members[number]), alone
        by_identity.setdefault(identity, []).append(signature)
    return [
        SharedProjection(
            signatures, [members[group.signatures[signature]] for signature in signatures], len(group.timelines)
        )
        for signatures in by_identity.values()
    ]


def _alike(aggregates: Sequence[Aggregate]) -> list[list[Aggregate]]:
    """Put aggregates together that one call can lower: by a function that takes many, over the same operators."""
    alike: dict[object, list[Aggregate]] = {}
    for number, aggregate in enumerate(aggregates):
        lower_many = FUNCTIONS[aggregate.function].lower_many
        identity = (lower_many, aggregate.operators, aggregate.filters) if lower_many else number
        alike.setdefault(identity, []).append(aggregate)
    return list(alike.values())


def lower(alike: Sequence[Aggregate], states: Sequence[Combined]) -> pl.DataFrame:
    """The columns of aggregates that are alike; a `lost_column` beside one says where its value did not fit."""
    lower_many = FUNCTIONS[alike[0].function].lower_many
    if lower_many:
        return lower_many(alike, states)
    (aggregate,) = alike
    columns = [aggregate.lower(states).alias(aggregate.name)]
    lost = [state["lost"] for state in states if isinstance(state, Fields) and "lost" in state]
    lost += overflowed(aggregate, states)
    if lost:
        columns.append(reduce(or_, lost).alias(lost_column(aggregate.name)))
    return pl.DataFrame(columns)


def lost_column(name: str) -> str:
    """The name of the column that says where a result could not be written."""
    return f"lost:{name}"
