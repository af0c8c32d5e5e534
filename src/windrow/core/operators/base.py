"""Operators: the partial states that slices keep, each declared once.

An operator turns the events of a slice into a state of a few columns (`lift`), brings the states of the same slice
together (`merge`), and combines the states of a range of slices for many windows at once (`combine`). Several
aggregates read one operator: sum, mean and a formula over `sum(fare)` share `Sum(fare)`.

    events ── lift, finish ──▶ state ── merge, finish_merged ──▶ state ── combine ──▶ one state per window

`lift` and `merge` are Polars expressions for a `group_by`; what an expression cannot say (counting sorted values,
building sketches) is done once per table in `finish` and `finish_merged`. A null state is the identity: a slice in
which the operator saw nothing, or that was made before the operator existed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, ClassVar, Protocol

import numpy as np
import polars as pl

from windrow.core.arrays import range_queries
from windrow.core.arrays.checks import MOST, wrong_counts
from windrow.core.arrays.range_queries import Arrays, Ints
from windrow.core.expressions.parse import Expression
from windrow.core.operators import multiset

_DIGITS = Context(prec=80)
EXACT_SUM = pl.Decimal(38, 0)  # 128 bits that Arrow, Polars and Spark all know


class Fields(dict[str, pl.Series]):
    """The columns of a state, one row per slice or, combined, per window; `types` are those of the inputs.

    Combined states may have a column `lost`: where a result could not be written.
    """

    types: Sequence[pl.DataType] = ()

    def take(self, index: Ints) -> Fields:
        return Fields({name: column.gather(index) for name, column in self.items()})


class Combined(Protocol):
    """Combined states, one per window, of which windows can be chosen."""

    def take(self, index: Ints) -> Combined: ...


@dataclass(frozen=True)
class Inputs:
    """What a lift may look at: its input columns and the places of the events, already filtered."""

    columns: Sequence[pl.Expr]
    types: Sequence[pl.DataType]
    dense: bool  # no filter and no null: every group has a value
    place: Mapping[str, pl.Expr]  # for operators that are `ordered`


@dataclass(frozen=True)
class Operator:
    kind: ClassVar[str]
    ordered: ClassVar[bool] = False  # events are lifted in order, with their place in it
    needs_order: ClassVar[bool] = False  # states merge only in the order of their events
    counts: ClassVar[tuple[str, ...]] = ()  # the fields that count events
    inputs: tuple[Expression, ...]

    @property
    def text(self) -> str:
        params = {name: value for name, value in vars(self).items() if name != "inputs" and value is not False}
        shown = [name if value is True else f"{value}" for name, value in params.items()]
        return f"{self.kind}({', '.join([*(expression.text for expression in self.inputs), *shown])})"

    @property
    def form(self) -> str:
        """What its state looks like, where that can differ under one text."""
        return ""

    def refusal(self, types: Sequence[pl.DataType]) -> str | None:
        """Why inputs of these types cannot be taken, or None."""
        return None

    def fields(self, types: Sequence[pl.DataType], place: Mapping[str, pl.DataType]) -> dict[str, pl.DataType]:
        """The columns of the state."""
        raise NotImplementedError

    def wrong_with(self, state: Fields) -> str | None:
        """Why states that a stranger sends cannot be, as part of a sentence; None if they can.

        Whatever `merge` and `combine` take for granted is looked at here, and nothing else: that a sum is not the one
        of the events, nobody can see.
        """
        return wrong_counts({name: state[name] for name in self.counts}) if self.counts else None

    def lift(self, of: Inputs) -> dict[str, pl.Expr]:
        raise NotImplementedError

    def finish(self, state: Fields) -> Fields:
        return state

    def merge(self, names: Mapping[str, str]) -> dict[str, pl.Expr]:
        """Expressions over the state columns, which are called by `names`; sums of each, if nothing else is said."""
        return {field: pl.col(name).sum() for field, name in names.items()}

    def finish_merged(self, state: Fields) -> Fields:
        return state

    def combine(self, state: Fields, lo: Ints, hi: Ints) -> Combined:
        raise NotImplementedError


def _valid(column: pl.Series, lo: Ints, hi: Ints) -> pl.Series | None:
    """Which ranges hold a state at all; None when all do."""
    if not column.null_count():
        return None
    return pl.Series(range_queries.differences(column.is_not_null().to_numpy().astype(np.int64), lo, hi) > 0)


def _filled(column: pl.Series, identity: float) -> pl.Series:
    return column.fill_null(identity) if column.null_count() else column


def _masked(values: pl.Series, valid: pl.Series | None) -> pl.Series:
    return values if valid is None else values.set(~valid, None)


def _totals(column: pl.Series, lo: Ints, hi: Ints) -> pl.Series:
    """Sums of whole numbers, null being 0."""
    return pl.Series(range_queries.differences(_filled(column, 0).to_numpy(), lo, hi))


def _folded(column: pl.Series, step: np.ufunc, identity: float, lo: Ints, hi: Ints) -> pl.Series:
    """Doubles brought together two by two, null being the identity."""

    def merge(a: Arrays, b: Arrays) -> Arrays:
        with np.errstate(invalid="ignore", over="ignore"):  # inf - inf is NaN, as it should be
            return (step(a[0], b[0]),)

    (values,) = range_queries.fold((_filled(column, identity).to_numpy(),), merge, (identity,), lo, hi)
    return pl.Series(values)


@dataclass(frozen=True)
class Count(Operator):
    """How many events (no input), or how many with a value."""

    kind: ClassVar[str] = "count"
    counts: ClassVar[tuple[str, ...]] = ("count",)

    def fields(self, types: Sequence[pl.DataType], place: Mapping[str, pl.DataType]) -> dict[str, pl.DataType]:
        return {"count": pl.Int64()}

    def lift(self, of: Inputs) -> dict[str, pl.Expr]:
        if of.dense or not self.inputs:
            return {"count": of.columns[0].len() if of.columns else pl.len()}
        return {"count": of.columns[0].is_not_null().sum()}

    def combine(self, state: Fields, lo: Ints, hi: Ints) -> Fields:
        return Fields(count=_totals(state["count"], lo, hi))


@dataclass(frozen=True)
class Sum(Operator):
    """Integers in 128 bits, decimals exactly in 38 digits, floats as doubles; null where there was no value.

    Polars wraps sums of decimals around, so they are kept with the sum of their sizes as a double: where that has more
    than 38 digits the sum is lost, and elsewhere it is exact.
    """

    kind: ClassVar[str] = "sum"

    def fields(self, types: Sequence[pl.DataType], place: Mapping[str, pl.DataType]) -> dict[str, pl.DataType]:
        (dtype,) = types
        if isinstance(dtype, pl.Decimal):
            return {"sum": pl.Decimal(38, dtype.scale), "size": pl.Float64()}
        return {"sum": EXACT_SUM if dtype.is_integer() else pl.Float64()}

    def wrong_with(self, state: Fields) -> str | None:
        column = state["sum"]
        if "size" in state:
            size = state["size"].fill_null(0.0).to_numpy()
            least = column.cast(pl.Float64).abs().fill_null(0.0).to_numpy() * (1 - 1e-9)  # sizes are rounded
            return None if (size >= least).all() else "'size' is less than the sum that it is the size of"
        if column.dtype.is_float():
            return None
        furthest = max((abs(int(one)) for one in (column.min(), column.max()) if isinstance(one, Decimal)), default=0)
        return f"'sum' is {furthest:,} in size" if furthest > MOST * 2**63 else None

    def lift(self, of: Inputs) -> dict[str, pl.Expr]:
        (x,), (dtype,) = of.columns, of.types
        if dtype.is_integer():
            x = x.cast(pl.Int128)
        elif dtype == pl.Float32():
            x = x.cast(pl.Float64)
        total = {"sum": x.sum() if of.dense else pl.when(x.count() > 0).then(x.sum())}
        return total | {"size": x.cast(pl.Float64).abs().sum()} if isinstance(dtype, pl.Decimal) else total

    def merge(self, names: Mapping[str, str]) -> dict[str, pl.Expr]:
        total = pl.col(names["sum"])
        return super().merge(names) | {"sum": pl.when(total.count() > 0).then(total.sum())}

    def combine(self, state: Fields, lo: Ints, hi: Ints) -> Fields:
        column = state["sum"]
        valid = _valid(column, lo, hi)
        if column.dtype == pl.Float64():
            return Fields(sum=_masked(_folded(column, np.add, 0.0, lo, hi), valid))
        column = _filled(column, 0)
        if "size" in state:
            return self._decimals(column, state["size"], valid, lo, hi)
        if float(column.cast(pl.Float64).abs().sum()) < 2**62:
            return Fields(sum=_masked(_totals(column.cast(pl.Int64), lo, hi), valid))
        return Fields(sum=_masked(_prefix_sums(column.cast(pl.Int128), lo, hi), valid))

    def _decimals(self, column: pl.Series, size: pl.Series, valid: pl.Series | None, lo: Ints, hi: Ints) -> Fields:
        scale: int = column.dtype.scale  # type: ignore[attr-defined]
        most = 10.0 ** (38 - scale) * (1 - 1e-9)  # a hair less, because sizes are rounded
        if float(size.sum()) < most:
            return Fields(sum=_masked(_prefix_sums(column, lo, hi), valid))
        lost = _folded(size, np.add, 0.0, lo, hi) >= most
        return Fields(sum=_masked(_wide_sums(column, scale, lo, hi), valid).set(lost, None), lost=lost)


def _prefix_sums(column: pl.Series, lo: Ints, hi: Ints) -> pl.Series:
    prefix = pl.concat([column.clear(1).fill_null(0), column.cum_sum()])
    return prefix.gather(hi) - prefix.gather(lo)


def _wide_sums(column: pl.Series, scale: int, lo: Ints, hi: Ints) -> pl.Series:
    """Sums of decimals whose prefix sums have more than 38 digits; null where a sum itself has."""
    units = [int(value.scaleb(scale, _DIGITS)) for value in column.to_list()]
    prefix = np.append(0, np.cumsum(np.array(units, object)))
    sums = (prefix[hi] - prefix[lo]).tolist()
    exact = [Decimal(total).scaleb(-scale, _DIGITS) if abs(total) < 10**38 else None for total in sums]
    return pl.Series(exact, dtype=column.dtype)


@dataclass(frozen=True)
class _Extreme(Operator):
    """The smallest or greatest value, of any type that has an order; NaN is greater than every number."""

    sign: ClassVar[int]

    def refusal(self, types: Sequence[pl.DataType]) -> str | None:
        return f"{self.kind} needs values with an order, and this is {types[0]}" if types[0].is_nested() else None

    def fields(self, types: Sequence[pl.DataType], place: Mapping[str, pl.DataType]) -> dict[str, pl.DataType]:
        return {"value": types[0]}

    def lift(self, of: Inputs) -> dict[str, pl.Expr]:
        return {"value": self._extreme(of.columns[0])}

    def merge(self, names: Mapping[str, str]) -> dict[str, pl.Expr]:
        return {"value": self._extreme(pl.col(names["value"]))}

    def _extreme(self, x: pl.Expr) -> pl.Expr:
        return x.min() if self.sign > 0 else x.nan_max()

    def combine(self, state: Fields, lo: Ints, hi: Ints) -> Fields:
        column = state["value"]
        valid = _valid(column, lo, hi)
        codes, back = _codes(column)
        codes = codes if self.sign > 0 else ~codes
        if valid is not None:
            codes = np.where(column.is_null().to_numpy(), range_queries.NOTHING, codes)
        least = range_queries.smallest(codes, lo, hi)
        return Fields(value=back(least if self.sign > 0 else ~least, valid))


@dataclass(frozen=True)
class Min(_Extreme):
    kind: ClassVar[str] = "min"
    sign: ClassVar[int] = 1


@dataclass(frozen=True)
class Max(_Extreme):
    kind: ClassVar[str] = "max"
    sign: ClassVar[int] = -1


def _codes(column: pl.Series) -> tuple[Ints, Any]:
    """64-bit codes in the order of the values, and the way back from codes to values."""
    dtype = column.dtype
    physical = column.to_physical()
    if dtype.is_float():
        doubles = _filled(physical, 0.0).cast(pl.Float64).to_numpy().copy()
        doubles[np.isnan(doubles)] = np.nan  # one bit pattern for every NaN
        return _mirrored(doubles.view(np.int64)), lambda codes, valid: _masked(
            pl.Series(_mirrored(codes).view(np.float64)), valid
        ).cast(dtype)
    if physical.dtype.is_integer() and physical.dtype not in (pl.UInt64(), pl.Int128()):
        return _filled(physical, 0).cast(
            pl.Int64
        ).to_numpy(), lambda codes, valid: _masked(pl.Series(codes), valid).cast(physical.dtype).cast(dtype)
    distinct = column.drop_nulls().unique().sort()
    ranks = (column.rank("dense").cast(pl.Int64) - 1).fill_null(0).to_numpy()
    return ranks, lambda codes, valid: distinct.gather(_masked(pl.Series(codes), valid))


def _mirrored(bits: Ints) -> Ints:
    """The bits of doubles as integers in the order of the doubles, and back again."""
    return bits ^ ((bits >> 63) & np.int64(2**63 - 1))


@dataclass(frozen=True)
class Product(Operator):
    kind: ClassVar[str] = "product"

    def fields(self, types: Sequence[pl.DataType], place: Mapping[str, pl.DataType]) -> dict[str, pl.DataType]:
        return {"product": pl.Float64()}

    def lift(self, of: Inputs) -> dict[str, pl.Expr]:
        x = of.columns[0].cast(pl.Float64)
        return {"product": pl.when(x.count() > 0).then(x.product())}

    def merge(self, names: Mapping[str, str]) -> dict[str, pl.Expr]:
        x = pl.col(names["product"])
        return {"product": pl.when(x.count() > 0).then(x.product())}

    def combine(self, state: Fields, lo: Ints, hi: Ints) -> Fields:
        column = state["product"]
        return Fields(product=_masked(_folded(column, np.multiply, 1.0, lo, hi), _valid(column, lo, hi)))


@dataclass(frozen=True)
class Logs(Operator):
    """For the geometric mean: the sum of the logarithms of positive values, and how many were zero or negative."""

    kind: ClassVar[str] = "logs"
    counts: ClassVar[tuple[str, ...]] = ("zeros", "negatives")

    def fields(self, types: Sequence[pl.DataType], place: Mapping[str, pl.DataType]) -> dict[str, pl.DataType]:
        return {"logs": pl.Float64(), "zeros": pl.Int64(), "negatives": pl.Int64()}

    def lift(self, of: Inputs) -> dict[str, pl.Expr]:
        x = of.columns[0].cast(pl.Float64)
        return {
            "logs": pl.when(x > 0).then(x).otherwise(1.0).log().sum(),
            "zeros": (x == 0).sum(),
            "negatives": (x < 0).sum(),
        }

    def combine(self, state: Fields, lo: Ints, hi: Ints) -> Fields:
        logs = _folded(state["logs"], np.add, 0.0, lo, hi)
        return Fields(logs=logs, **{name: _totals(state[name], lo, hi) for name in ("zeros", "negatives")})


SMALL, LARGE = 2.0**-64, 2.0**64  # exact factors: sums of doubles made small do not overflow


@dataclass(frozen=True)
class Moments(Operator):
    """Count, mean and M2 (the sum of squared distances from the mean), merged by the formula of Chan et al.

    M2 is infinite where it is too large for a double. Means are brought together made small, which cannot overflow; of
    the events of one slice, whose sum can, that would double the time of a lift.
    """

    kind: ClassVar[str] = "moments"
    counts: ClassVar[tuple[str, ...]] = ("n",)

    def fields(self, types: Sequence[pl.DataType], place: Mapping[str, pl.DataType]) -> dict[str, pl.DataType]:
        return {"n": pl.Float64(), "mean": pl.Float64(), "m2": pl.Float64()}

    def lift(self, of: Inputs) -> dict[str, pl.Expr]:
        x = of.columns[0].cast(pl.Float64)
        return {"n": x.is_not_null().sum(), "mean": x.mean(), "m2": x.var(ddof=0) * x.count()}

    def finish(self, state: Fields) -> Fields:
        m2 = pl.DataFrame(state).select(squares(pl.col("mean"), pl.col("m2"))).to_series()
        return Fields(n=state["n"], mean=state["mean"], m2=m2)

    def merge(self, names: Mapping[str, str]) -> dict[str, pl.Expr]:
        n, mean, m2 = (pl.col(names[field]) for field in ("n", "mean", "m2"))
        # means are averaged as distances from one of them, so that large ones do not cancel
        pivot = pl.coalesce(mean.filter(mean.is_finite()).first(), pl.when(mean.count() > 0).then(0.0)) * SMALL
        whole = (pivot + (n * (mean * SMALL - pivot)).sum() / n.sum()) * LARGE
        return {"n": n.sum(), "mean": whole, "m2": (m2 + n * (mean - whole).pow(2)).sum()}

    def combine(self, state: Fields, lo: Ints, hi: Ints) -> Fields:
        leaves = tuple(_filled(state[field], 0.0).to_numpy() for field in ("n", "mean", "m2"))
        n, mean, m2 = range_queries.fold(leaves, _chan, (0.0, 0.0, 0.0), lo, hi)
        return Fields(n=pl.Series(n), mean=pl.Series(mean), m2=pl.Series(m2))


def squares(mean: pl.Expr, m2: pl.Expr) -> pl.Expr:
    """M2 as it is meant: infinite where it is too large, NaN where the mean is none, also of one value."""
    # what overflows can come out as less than zero, or NaN
    kept = pl.when(m2.is_nan() | (m2 < 0)).then(math.inf).otherwise(m2)
    return (kept + mean * 0.0).fill_null(0.0)


def _chan(a: Arrays, b: Arrays) -> Arrays:
    (na, mean_a, m2_a), (nb, mean_b, m2_b) = a, b
    n = na + nb
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        share = nb / n
        apart = mean_b * SMALL - mean_a * SMALL
        mean = (mean_a * SMALL + apart * share) * LARGE
        distance = apart * LARGE
        m2 = m2_a + m2_b + distance * distance * (na * share)
    mean = np.where(na == 0, mean_b, np.where(nb == 0, mean_a, mean))
    m2 = np.where(na == 0, m2_b, np.where(nb == 0, m2_a, m2))
    return n, mean, m2


@dataclass(frozen=True)
class Multiset(Operator):
    """Every value with its count, sorted: exact quantiles, mode and distinct."""

    kind: ClassVar[str] = "bag"

    def refusal(self, types: Sequence[pl.DataType]) -> str | None:
        return f"needs values with an order, and this is {types[0]}" if types[0].is_nested() else None

    def fields(self, types: Sequence[pl.DataType], place: Mapping[str, pl.DataType]) -> dict[str, pl.DataType]:
        return {"values": pl.List(types[0]), "counts": pl.List(pl.Int64())}

    def wrong_with(self, state: Fields) -> str | None:
        return multiset.wrong_with(state["values"], state["counts"])

    def lift(self, of: Inputs) -> dict[str, pl.Expr]:
        (x,) = of.columns
        return {"values": (x if of.dense else x.drop_nulls()).sort()}

    def finish(self, state: Fields) -> Fields:
        values, counts = multiset.counted(state["values"])
        return Fields(values=values, counts=counts)

    def merge(self, names: Mapping[str, str]) -> dict[str, pl.Expr]:
        return {field: pl.col(name).list.explode() for field, name in names.items()}

    def finish_merged(self, state: Fields) -> Fields:
        values, counts = multiset.merged(state["values"], state["counts"])
        return Fields(values=values, counts=counts)

    def combine(self, state: Fields, lo: Ints, hi: Ints) -> multiset.MultisetRanges:
        return multiset.MultisetRanges(state["values"], state["counts"], lo, hi)
