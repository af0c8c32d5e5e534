"""Lowering: what is asked about the same windows is answered together.

Signatures that are asked about the same timelines, over the same filter, form a **block**: each of their aggregates is
lowered once, aggregates that are alike at once, and the block has one table of columns, however many queries it is for.

    block   windows × aggregates ──▶ columns: a row for each window, a column for each aggregate
    answer  a window, a query, its row, and its signature, which says by which names it has which columns
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
from windrow.core.plan.groups import Group, Held, Signature, held_by


class Names:
    """By which names each of a block's signatures has which of its columns."""

    def __init__(self, signatures: Sequence[Sequence[tuple[str, str]]]) -> None:
        """Of each signature the names of its results, with those of their columns."""
        names: dict[str, int] = {}
        columns: dict[str, int] = {}
        pairs = [
            (names.setdefault(name, len(names)), columns.setdefault(column, len(columns)))
            for several in signatures
            for name, column in several
        ]
        self.names, self.columns, self.signatures = list(names), list(columns), len(signatures)
        self._name, self._column = np.array(pairs, np.int64).reshape(-1, 2).T
        self._count = np.array([len(several) for several in signatures], np.int64)
        self._first = np.cumsum(self._count) - self._count

    def cells(self, signature: Ints) -> tuple[Ints, Ints, Ints]:
        """For the signatures of answers every result that they have: the answer, the name, the column, as places."""
        count = self._count[signature]
        pair = np.repeat(self._first[signature], count) + ramp(count)
        return np.repeat(np.arange(len(signature)), count), self._name[pair], self._column[pair]


NAMELESS = Names([()])


@dataclass(frozen=True)
class Answers:
    """The answers to a block: which windows, of which queries, with which columns."""

    where: Expression | None
    window: Ints  # place in the windows
    query: Ints
    columns: pl.DataFrame
    row: Ints  # place in the columns
    names: Names
    signature: Ints  # place in the names
    having: pl.DataFrame | None = None  # one column: whether each row of the columns satisfies HAVING

    def take(self, chosen: Ints) -> Answers:
        places = {name: getattr(self, name)[chosen] for name in ("window", "query", "row", "signature")}
        return replace(self, **places)

    def without_results(self) -> Answers:
        """The same windows and queries, of which nothing more is said."""
        return replace(self, columns=pl.DataFrame(), names=NAMELESS, signature=np.zeros_like(self.row))


class Block:
    """Signatures that are asked about the same windows. Prepared once per plan."""

    def __init__(
        self, signatures: Sequence[Signature], members: Sequence[dict[int, list[int]]], timelines: int
    ) -> None:
        """Of each signature the queries that have it, by their timeline."""
        first, *_ = signatures
        self.where, self.having, self.needs_order = first.where, first.having, first.needs_order
        self.held = list(dict.fromkeys(one for signature in signatures for one in signature.held))
        columns = {asked: asked for signature in signatures for asked in signature.aggregates}
        if len({asked.name for asked in columns}) < len(columns):  # one name for two: columns have their number instead
            columns = {asked: asked.alias(str(number)) for number, asked in enumerate(columns)}
        self._names = Names([[(one.name, columns[one].name) for one in each.aggregates] for each in signatures])
        self._batches = [(several, first.held_by(several[0])) for several in _alike(list(columns.values()))]
        places = [(line, number) for number, queries in enumerate(members) for line in queries]
        sizes = [len(several) for queries in members for several in queries.values()]
        timeline, signature_of = np.repeat(np.array(places, np.int64), sizes, axis=0).T
        order = np.argsort(timeline, kind="stable")
        asking = np.fromiter(chain.from_iterable(chain.from_iterable(one.values() for one in members)), np.int64)
        self._query, self._signature = asking[order], signature_of[order]
        self._count = np.bincount(timeline, minlength=timelines)
        self._first = np.cumsum(self._count) - self._count
        self.wanted: npt.NDArray[np.bool_] = self._count > 0

    def queries_of(self, timeline: int) -> Ints:
        return self._query[self._first[timeline] :][: self._count[timeline]]

    def answers(self, index: Ints, timeline: Ints, state: Callable[[Held], Combined]) -> Answers:
        """The answers for some windows, given by their places and timelines, from the states of operators for them."""
        columns = [lower(several, [state(one) for one in reads]) for several, reads in self._batches]
        having = lower([self.having], [state(one) for one in held_by(self.having, self.where)]) if self.having else None
        count = self._count[timeline]
        asked = np.repeat(self._first[timeline], count) + ramp(count)
        return Answers(
            self.where,
            np.repeat(index, count),
            self._query[asked],
            pl.concat(columns, how="horizontal"),
            np.repeat(np.arange(len(index)), count),
            self._names,
            self._signature[asked],
            having,
        )


def blocks_of(group: Group) -> list[Block]:
    """All that a group's queries ask; what has a HAVING stands alone."""
    members: list[dict[int, list[int]]] = [{} for _ in group.signatures]
    for (timeline, place), queries in group.members.items():
        members[place][timeline] = queries
    together: dict[Any, list[Signature]] = {}
    for signature, place in group.signatures.items():
        alone = place if signature.having else None
        alike = signature.where, signature.needs_order, frozenset(members[place]), alone
        together.setdefault(alike, []).append(signature)
    return [
        Block(several, [members[group.signatures[one]] for one in several], len(group.timelines))
        for several in together.values()
    ]


def _alike(aggregates: Sequence[Aggregate]) -> list[list[Aggregate]]:
    """Aggregates that can be lowered together: the same operators, by a function that takes several."""
    alike: dict[object, list[Aggregate]] = {}
    for place, asked in enumerate(aggregates):
        together = FUNCTIONS[asked.function].lower_many
        alike.setdefault((together, asked.operators, asked.filters) if together else place, []).append(asked)
    return list(alike.values())


def lower(several: Sequence[Aggregate], states: Sequence[Combined]) -> pl.DataFrame:
    """The columns of aggregates that are alike."""
    together = FUNCTIONS[several[0].function].lower_many
    if together:
        return together(several, states)
    (asked,) = several
    columns = [asked.lower(states).alias(asked.name)]
    lost = [state["lost"] for state in states if isinstance(state, Fields) and "lost" in state]
    if asked.parts and (gone := overflowed(asked, states)) is not None:
        lost.append(gone)
    if lost:
        columns.append(reduce(or_, lost).alias(lost_column(asked.name)))
    return pl.DataFrame(columns)


def lost_column(name: str) -> str:
    """The name of a column that says where a result could not be written."""
    return f"lost:{name}"
