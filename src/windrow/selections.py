"""Selections: operators whose state is one event's value with its place in the order.

first, last, arg_min and arg_max all choose one event: the one that comes first when events are sorted by some columns. They
differ in those columns alone, so one class states how to choose and the four declare by what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import polars as pl

from windrow import ranges
from windrow.operators import Fields, Inputs, Operator
from windrow.ranges import Ints


@dataclass(frozen=True)
class Selection(Operator):
    """The value of the event that comes first by (`by` if there is one, then place), each ascending or descending."""

    ordered: ClassVar[bool] = True
    by_greatest: ClassVar[bool] = False
    latest: ClassVar[bool] = False

    def fields(self, types: Sequence[pl.DataType], place: Mapping[str, pl.DataType]) -> dict[str, pl.DataType]:
        by = {"by": types[1]} if len(types) > 1 else {}
        return {"value": types[0], **by, **place}

    def _ranked(self, fields: Sequence[str]) -> tuple[list[str], list[bool]]:
        """The columns that decide, and whether each is descending."""
        place = [field for field in fields if field not in ("value", "by")]
        by = ["by"] if "by" in fields else []
        return by + place, [self.by_greatest] * len(by) + [self.latest] * len(place)

    def merge(self, names: Mapping[str, str]) -> dict[str, pl.Expr]:
        fields, descending = self._ranked(list(names))
        held = pl.col(names["nth"]).is_not_null()
        keys = [pl.col(names[field]).filter(held) for field in fields]
        return {
            field: pl.col(name).filter(held).sort_by(keys, descending=descending, nulls_last=descending).first()
            for field, name in names.items()
        }

    def combine(self, state: Fields, lo: Ints, hi: Ints) -> Fields:
        fields, descending = self._ranked(list(state))
        rows = pl.DataFrame(dict(state)).with_row_index("_row").filter(pl.col("nth").is_not_null())
        order = rows.sort(fields, descending=descending, nulls_last=descending)["_row"].to_numpy()
        codes = np.full(len(state["nth"]), ranges.NOTHING)
        codes[order] = np.arange(len(order))
        found = ranges.smallest(codes, lo, hi)
        chosen = pl.Series(np.append(order, 0)[np.minimum(found, len(order))], dtype=pl.Int64)
        return Fields(value=state["value"].gather(chosen.set(pl.Series(found == ranges.NOTHING), None)))


@dataclass(frozen=True)
class First(Selection):
    kind: ClassVar[str] = "first"
    nulls: bool = False

    @property
    def text(self) -> str:
        return super().text[:-1] + (", nulls)" if self.nulls else ")")

    def lift(self, of: Inputs) -> dict[str, pl.Expr]:
        (x,) = of.columns
        chosen = {"value": x, **of.place}
        if not (self.nulls or of.dense):
            held = x.is_not_null()
            chosen = {name: column.filter(held) for name, column in chosen.items()}
        return {name: column.last() if self.latest else column.first() for name, column in chosen.items()}


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

    def lift(self, of: Inputs) -> dict[str, pl.Expr]:
        x, by = of.columns
        chosen = {"value": x, "by": by, **of.place}
        if of.nan or not of.dense:  # a stable sort says what NaN means; without one, the first extreme is enough
            held = by.is_not_null()
            return {
                name: column.filter(held)
                .sort_by(by.filter(held), descending=self.by_greatest, maintain_order=True)
                .first()
                for name, column in chosen.items()
            }
        at = by.arg_max() if self.by_greatest else by.arg_min()
        return {name: column.get(at) for name, column in chosen.items()}


@dataclass(frozen=True)
class ArgMax(ArgMin):
    kind: ClassVar[str] = "arg_max"
    by_greatest: ClassVar[bool] = True
