"""Selections: operators whose state is one event's value with its place in the order.

first, last, arg_min and arg_max all choose one event: the one that comes first when events are sorted by some
columns. They differ in those columns alone. So events, states of one slice and states of a range are all chosen from
in the same way: rank the rows once, take the smallest rank of each group, and look the row up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import polars as pl

from windrow.core.arrays import range_queries
from windrow.core.arrays.range_queries import Ints
from windrow.core.operators.base import Fields, Operator


@dataclass(frozen=True)
class Selection(Operator):
    """The value of the row that comes first by (`by` if there is one, then place), each ascending or descending."""

    ordered: ClassVar[bool] = True
    by_greatest: ClassVar[bool] = False
    latest: ClassVar[bool] = False

    def fields(self, types: Sequence[pl.DataType], place: Mapping[str, pl.DataType]) -> dict[str, pl.DataType]:
        by = {"by": types[1]} if len(types) > 1 else {}
        return {"value": types[0], **by, **place}

    def valid(self, state: Fields) -> pl.Series:
        """Which rows may be chosen."""
        return state["nth"].is_not_null()

    def ranked(self, state: Fields, in_order: bool = False) -> Ints:
        """The rows that may be chosen, the first choice first; rows `in_order` are known to be sorted by place."""
        valid = self.valid(state)
        if in_order and "by" not in state:
            rows = np.arange(len(valid)) if valid.all() else np.flatnonzero(valid.to_numpy())
            return rows[::-1] if self.latest else rows
        columns = [] if in_order else [name for name in state if name not in ("value", "by")]
        by = ["by"] if "by" in state else []
        descending = [self.by_greatest] * len(by) + [self.latest] * len(columns)
        table = pl.DataFrame([state[name].alias(name) for name in by + columns]).with_row_index("_row").filter(valid)
        chosen = table.sort(by + columns, descending=descending, nulls_last=descending, maintain_order=True)
        return chosen["_row"].cast(pl.Int64).to_numpy()

    def ranks(self, ranked: Ints, size: int) -> pl.Series:
        """The rank of each row, null for those that may not be chosen."""
        ranks = np.full(size, -1)
        ranks[ranked] = np.arange(len(ranked))
        column = pl.Series(ranks)
        return column if len(ranked) == size else column.set(column < 0, None)

    def chosen(self, state: Fields, ranked: Ints, rank: pl.Series) -> Fields:
        """The rows of the given ranks, null where there is none."""
        if not len(ranked):
            return Fields({name: column.clear(len(rank)) for name, column in state.items()})
        row = pl.Series(ranked).gather(rank.cast(pl.Int64))
        return Fields({name: column.gather(row) for name, column in state.items()})

    def combine(self, state: Fields, lo: Ints, hi: Ints) -> Fields:
        ranked = self.ranked(state)
        codes = self.ranks(ranked, len(state["nth"])).fill_null(int(range_queries.NOTHING)).to_numpy()
        best = pl.Series(range_queries.smallest(codes, lo, hi))
        return self.chosen(Fields(value=state["value"]), ranked, best.set(best == int(range_queries.NOTHING), None))


class Choices:
    """Selections within the groups of a `group_by`: a column of ranks each, whose smallest says which row to take."""

    def __init__(self, states: Mapping[str, tuple[Selection, Fields]], size: int, in_order: bool = False) -> None:
        self._states = states
        self._ranked = {name: selection.ranked(state, in_order) for name, (selection, state) in states.items()}
        self.columns = [
            selection.ranks(self._ranked[name], size).alias(name) for name, (selection, _) in states.items()
        ]

    def lifts(self) -> list[pl.Expr]:
        return [pl.col(name).min() for name in self._states]

    def chosen(self, grouped: pl.DataFrame) -> dict[str, Fields]:
        """The rows that were chosen, for each selection."""
        return {
            name: selection.chosen(state, self._ranked[name], grouped[name])
            for name, (selection, state) in self._states.items()
        }


@dataclass(frozen=True)
class First(Selection):
    kind: ClassVar[str] = "first"
    nulls: bool = False

    def valid(self, state: Fields) -> pl.Series:
        has_event = super().valid(state)
        return has_event if self.nulls else has_event & state["value"].is_not_null()


@dataclass(frozen=True)
class Last(First):
    kind: ClassVar[str] = "last"
    latest: ClassVar[bool] = True


@dataclass(frozen=True)
class ArgMin(Selection):
    """The first input at the smallest second input; ties go to the earliest event."""

    kind: ClassVar[str] = "arg_min"

    def refusal(self, types: Sequence[pl.DataType]) -> str | None:
        return f"{self.kind} needs values with an order, and this is {types[1]}" if types[1].is_nested() else None

    def valid(self, state: Fields) -> pl.Series:
        return super().valid(state) & state["by"].is_not_null()


@dataclass(frozen=True)
class ArgMax(ArgMin):
    kind: ClassVar[str] = "arg_max"
    by_greatest: ClassVar[bool] = True
