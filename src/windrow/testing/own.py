"""Windows and aggregates as a user would write them, of each base class, for properties and the oracle's tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import polars as pl

from windrow.core.aggregates.custom import Monoid
from windrow.core.arrays.range_queries import Array
from windrow.core.windows.fixed import ContextFreeWindow, Times
from windrow.core.windows.ordered import Cuts, DataDrivenWindow, OrderedEvents


@dataclass(frozen=True)
class Uneven(ContextFreeWindow):
    """[s, s + length) for every multiple s of 7 and every one of 10: they overlap, or leave gaps, and never evenly."""

    temporal = False
    length: int

    def windows(self, lo: int, hi: int) -> tuple[Times, Times]:
        first = lo - self.length + 1  # the earliest start whose window reaches lo
        starts = [np.arange(-(-first // by) * by, hi, by, dtype=np.int64) for by in (7, 10)]
        each = np.unique(np.concatenate(starts))
        return each, each + self.length


@dataclass(frozen=True)
class Filled(DataDrivenWindow):
    """As many events as it takes for the sum of x to reach `most`."""

    initial: ClassVar[Mapping[str, bool | int | float]] = {"so_far": 0}
    most: int

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("x",)

    def cuts(self, events: OrderedEvents, state: Mapping[str, Array]) -> Cuts:
        nowhere, so_far = np.zeros(len(events), np.bool_), state["so_far"].copy()
        ends = nowhere.copy()
        for at, (key, x) in enumerate(zip(events.key, events.values("x"), strict=True)):
            so_far[key] += x or 0
            if so_far[key] >= self.most:
                ends[at], so_far[key] = True, 0
        return Cuts(events.before(ends, ~state["open"]), ends, nowhere, {"so_far": so_far})


class SumOfProducts(Monoid):
    """Σ x·y, from two inputs; the order does not matter, and what came before can be taken off."""

    state: ClassVar[Any] = {"n": pl.Int64, "total": pl.Int64}
    invertible = True

    def lift(self, x: pl.Series, w: pl.Series) -> dict[str, Any]:
        return {"n": len(x), "total": (x * w).sum()}

    def merge(self, a: dict[str, pl.Series], b: dict[str, pl.Series]) -> dict[str, pl.Series]:
        return {name: a[name] + b[name] for name in a}

    def unmerge(self, whole: dict[str, pl.Series], before: dict[str, pl.Series]) -> dict[str, pl.Series]:
        return {name: whole[name] - before[name] for name in whole}

    def lower(self, state: dict[str, pl.Series]) -> pl.Series:
        return state["total"]


class Chained(Monoid):
    """All values as text, one after the other: the order matters."""

    state: ClassVar[Any] = pl.String
    commutative = False

    def lift(self, x: pl.Series) -> str:
        return "".join(f"{value};" for value in x.to_list())

    def merge(self, a: pl.Series, b: pl.Series) -> pl.Series:
        return a + b

    def lower(self, state: pl.Series) -> pl.Series:
        return state
