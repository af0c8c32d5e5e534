"""Operators whose state is a sketch: bounded in size, with a known error.

The state is one binary column, the serialized sketch (`sketch_formats`); ranges of slices are merged in a tree, one
merge of bytes at a time, so the cost is per slice and per window, never per event.
"""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import polars as pl

from windrow.core.arrays import range_queries
from windrow.core.arrays.range_queries import Arrays, Ints
from windrow.core.operators import multiset, sketch_formats
from windrow.core.operators.base import Fields, Inputs, Operator


class SketchRanges:
    """One merged sketch per window."""

    def __init__(self, sketch: Any, states: Sequence[bytes | None]) -> None:
        self._sketch, self._states = sketch, states

    def take(self, index: Ints) -> SketchRanges:
        return SketchRanges(self._sketch, [self._states[at] for at in index])

    def quantile(self, q: float) -> pl.Series:
        values = [None if state is None else self._sketch.quantiles(state, [q])[0] for state in self._states]
        return pl.Series(values, dtype=pl.Float64)

    def estimate(self) -> pl.Series:
        values = [0 if state is None else self._sketch.estimate(state) for state in self._states]
        return pl.Series(values, dtype=pl.Int64)

    def top(self, k: int) -> pl.Series:
        rows = [None if state is None else self._sketch.top(state, k).to_struct() for state in self._states]
        inner = pl.Struct({"value": self._sketch.dtype, "count": pl.Int64})
        return pl.Series(rows, dtype=pl.List(inner))


@dataclass(frozen=True)
class _Sketched(Operator):
    def _sketch(self, types: Sequence[pl.DataType]) -> Any:
        raise NotImplementedError

    def refusal(self, types: Sequence[pl.DataType]) -> str | None:
        if types[0].is_nested():
            return f"needs single values, and {self.inputs[0].text} is {types[0]}"
        missing = importlib.util.find_spec("datasketches") is None
        return "needs Apache DataSketches: pip install 'windrow[sketches]'" if missing else None

    def fields(self, types: Sequence[pl.DataType], place: Mapping[str, pl.DataType]) -> dict[str, pl.DataType]:
        return {"sketch": pl.Binary()}

    def wrong_with(self, state: Fields) -> str | None:
        sketch = self._sketch(state.types)
        for data in state["sketch"].drop_nulls():
            try:
                sketch.check(data)
            except (ValueError, IndexError, struct.error) as error:
                return f"'sketch' is no {self.kind} sketch: {error}"
        return None

    def lift(self, of: Inputs) -> dict[str, pl.Expr]:
        return {"sketch": of.columns[0].drop_nulls()}

    def finish(self, state: Fields) -> Fields:
        values, sizes = multiset.flat(state["sketch"])
        offsets = np.append(0, np.cumsum(sizes))
        return Fields(sketch=pl.Series(self._sketch(state.types).lift(values, offsets), dtype=pl.Binary))

    def merge(self, names: Mapping[str, str]) -> dict[str, pl.Expr]:
        return {"sketch": pl.col(names["sketch"]).drop_nulls()}

    def finish_merged(self, state: Fields) -> Fields:
        sketch = self._sketch(state.types)
        merged = [sketch.merge(states) if states else None for states in state["sketch"].to_list()]
        return Fields(sketch=pl.Series(merged, dtype=pl.Binary))

    def combine(self, state: Fields, lo: Ints, hi: Ints) -> SketchRanges:
        sketch = self._sketch(state.types)

        def merge(left: Arrays, right: Arrays) -> Arrays:
            pairs = zip(left[0].tolist(), right[0].tolist(), strict=True)
            return (
                np.fromiter((b if a is None else a if b is None else sketch.merge([a, b]) for a, b in pairs), object),
            )

        (states,) = range_queries.fold((np.fromiter(state["sketch"], object),), merge, (None,), lo, hi)
        return SketchRanges(sketch, states.tolist())


@dataclass(frozen=True)
class Kll(_Sketched):
    kind: ClassVar[str] = "kll"
    k: int

    def _sketch(self, types: Sequence[pl.DataType]) -> sketch_formats.Kll:
        return sketch_formats.Kll(self.k)


@dataclass(frozen=True)
class Hll(_Sketched):
    kind: ClassVar[str] = "hll"
    lg_k: int

    def _sketch(self, types: Sequence[pl.DataType]) -> sketch_formats.Hll:
        return sketch_formats.Hll(self.lg_k)


@dataclass(frozen=True)
class Frequent(_Sketched):
    kind: ClassVar[str] = "frequent"

    def _sketch(self, types: Sequence[pl.DataType]) -> sketch_formats.Frequent:
        return sketch_formats.Frequent(types[0])
