"""Collecting: the values themselves, in the order of events.

The state is a list of values and one list for each field of their places, so that states merge in any order: lists
that are laid end to end are sorted by place, and only where they are not in order already.

    values  [7, 7, 3]   ─┐
    at      [1, 4, 4]    ├─ one list each per slice, in the order of (at, order_by columns, nth)
    nth     [0, 5, 6]   ─┘

A window of slices in order is a range of the values laid end to end, so `combine` costs what it gives back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import polars as pl

from windrow.core.arrays.checks import lacking, laid_out, wrong_lengths
from windrow.core.arrays.range_queries import Ints, differences, ramp
from windrow.core.operators.base import Fields, Inputs, Operator
from windrow.core.operators.multiset import flat, lists


@dataclass(frozen=True)
class Collect(Operator):
    """Every value with its place; nulls are left out unless `nulls`."""

    kind: ClassVar[str] = "collect"
    ordered: ClassVar[bool] = True
    nulls: bool = False

    def fields(self, types: Sequence[pl.DataType], place: Mapping[str, pl.DataType]) -> dict[str, pl.DataType]:
        return {"values": pl.List(types[0]), **{name: pl.List(dtype) for name, dtype in place.items()}}

    def wrong_with(self, state: Fields) -> str | None:
        if reason := wrong_lengths(state):
            return reason
        return lacking({name: laid_out(state[name])[0] for name in ("at", "nth")})

    def lift(self, of: Inputs) -> dict[str, pl.Expr]:
        (x,) = of.columns
        lifted = {"values": x, **of.place}
        if self.nulls or of.dense:
            return lifted
        return {name: column.filter(x.is_not_null()) for name, column in lifted.items()}

    def merge(self, names: Mapping[str, str]) -> dict[str, pl.Expr]:
        """The lists laid end to end."""
        return {
            field: pl.col(name).list.explode(empty_as_null=False, keep_nulls=False) for field, name in names.items()
        }

    def finish_merged(self, state: Fields) -> Fields:
        columns, sizes = _laid_end_to_end(state)
        ends = np.cumsum(sizes)
        rows = _by_place(columns, ends - sizes, ends)
        if (rows == np.arange(len(rows))).all():
            return state
        return Fields({name: lists(column.gather(rows), sizes) for name, column in columns.items()})

    def combine(self, state: Fields, lo: Ints, hi: Ints) -> Fields:
        columns, sizes = _laid_end_to_end(state)
        offsets = np.append(0, np.cumsum(sizes))
        first, end = offsets[lo], offsets[hi]
        return Fields(values=lists(columns["values"].gather(_by_place(columns, first, end)), end - first))


def _laid_end_to_end(state: Fields) -> tuple[Fields, Ints]:
    """The entries of all lists, and how many each list has."""
    laid = {name: flat(column) for name, column in state.items()}
    return Fields({name: column for name, (column, _) in laid.items()}), laid["nth"][1]


def _steps_back(columns: Fields) -> Ints:
    """1 for each entry whose place is before that of the entry before it, else 0; nulls come first."""
    size = len(columns["nth"])
    back, tied = np.zeros(size, np.bool_), np.ones(size, np.bool_)
    tied[:1] = False
    for name, column in columns.items():
        if name != "values" and tied.any():
            before = column.shift(1)
            less = (column < before).fill_null(False) | (column.is_null() & before.is_not_null())
            back |= tied & less.to_numpy()
            tied &= column.eq_missing(before).to_numpy()
    return back.astype(np.int64)


def _by_place(columns: Fields, first: Ints, end: Ints) -> Ints:
    """The rows of each range of entries, by place: sorted alone in ranges that are not in order already."""
    sizes = end - first
    rows = np.repeat(first, sizes) + ramp(sizes)
    disordered = differences(_steps_back(columns), np.minimum(first + 1, end), end) > 0
    moved = np.flatnonzero(np.repeat(disordered, sizes))
    if len(moved):
        owner = pl.Series("owner", np.repeat(np.arange(len(sizes)), sizes)[moved])
        places = [column.gather(rows[moved]).alias(name) for name, column in columns.items() if name != "values"]
        table = pl.DataFrame([owner, *places])
        rows[moved] = rows[moved][table.select(pl.arg_sort_by(table.columns)).to_series().to_numpy()]
    return rows
