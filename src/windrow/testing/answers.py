"""What each aggregate means, over the rows of one window in their order: the arithmetic of the oracle.

One function per aggregate, from its definition, over the values that are not null. Whatever a double could get
wrong is done in fractions and rounded once at the end. Sketches are answered exactly: `compare` allows for their
error.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from statistics import mean, pvariance, variance
from typing import Any

import polars as pl

from windrow.core.aggregates.functions import Aggregate
from windrow.core.operators.custom import MONOIDS
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.testing.expressions import evaluate

Row = Mapping[str, Any]
Values = list[Any]

_NAN = math.nan  # one object, so that it equals itself inside tuples and dicts


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def canonical(value: Any) -> Any:
    """One form for values that are equal as keys: NaN is one value, and so are 0.0 and -0.0."""
    return _NAN if is_nan(value) else value + 0.0 if isinstance(value, float) else value


def rank(value: Any) -> tuple[Any, ...]:
    """The order of values: nulls first, NaN above every number."""
    return (0,) if value is None else (2,) if is_nan(value) else (1, value)


def fits(value: int) -> bool:
    return INT64_MIN <= value <= INT64_MAX


def answer(aggregate: Aggregate, rows: Sequence[Row]) -> Any:
    """The aggregate over a window's rows. An integer sum may be larger than int64: what then is for others to say."""
    if aggregate.parts:
        parts = {f"p{number}": _in_int64(answer(part, rows)) for number, part in enumerate(aggregate.parts)}
        return evaluate(aggregate.inputs[0], parts)
    rows = filtered(aggregate, rows)
    if (monoid := monoid_of(aggregate)) is not None:
        return _lowered(monoid(**dict(aggregate.params)), aggregate, rows)
    if aggregate.function in _OF_ROWS:
        return _OF_ROWS[aggregate.function](aggregate, rows)
    values = values_of(aggregate, rows) if aggregate.inputs else rows
    if not values:
        return _OF_NOTHING.get(aggregate.function)
    return _OF_VALUES[aggregate.function](values, **dict(aggregate.params))


def monoid_of(aggregate: Aggregate) -> type[Any] | None:
    """The class of a user's own aggregate; None where it is one of ours."""
    return MONOIDS.get(aggregate.function)


def values_of(aggregate: Aggregate, rows: Sequence[Row]) -> Values:
    """The values of an aggregate's first input that are not null, in the order of the rows."""
    found = [evaluate(aggregate.inputs[0], row) for row in filtered(aggregate, rows)]
    return [value for value in found if value is not None]


def filtered(aggregate: Aggregate, rows: Sequence[Row]) -> Sequence[Row]:
    """The rows that count for an aggregate."""
    return rows if aggregate.where is None else [row for row in rows if evaluate(aggregate.where, row) is True]


def _in_int64(value: Any) -> Any:
    return None if isinstance(value, int) and not fits(value) else value


def _to_float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _finite(values: Values) -> bool:
    return all(math.isfinite(value) for value in values)


# --- of the rows ----------------------------------------------------------------------------------------------------


def _collect(aggregate: Aggregate, rows: Sequence[Row]) -> Values:
    """All values, with `nulls=True` the null ones too."""
    found = [evaluate(aggregate.inputs[0], row) for row in rows]
    return found if aggregate.param("nulls") else [value for value in found if value is not None]


def _arg(aggregate: Aggregate, rows: Sequence[Row], choose: Callable[..., Any]) -> Any:
    """x of the row that min or max chooses by y among those with a y: both take the earliest of equals."""
    x, y = aggregate.inputs
    pairs = [(evaluate(x, row), evaluate(y, row)) for row in rows]
    valued = [pair for pair in pairs if pair[1] is not None]
    return choose(valued, key=lambda pair: rank(pair[1]))[0] if valued else None


# --- of values, of which there is at least one ----------------------------------------------------------------------


def _sum(values: Values) -> Any:
    if not any(isinstance(value, float) for value in values):
        return _exact_sum(values)
    if not _finite(values):
        return sum(float(value) for value in values if not math.isfinite(value))  # inf, -inf, or NaN
    return _to_float(sum(map(Fraction, values), Fraction()))


def _exact_sum(values: Values) -> int | Decimal:
    """Of integers or decimals, to the last digit."""
    if not any(isinstance(value, Decimal) for value in values):
        return sum(values)
    total = sum(map(Fraction, values), Fraction())
    scale = max(-int(value.as_tuple().exponent) for value in values if isinstance(value, Decimal))
    return Decimal(f"{int(total * 10**scale)}E-{scale}") if scale > 0 else Decimal(int(total))


def _mean(values: Values) -> float:
    return _to_float(mean(map(Fraction, values))) if _finite(values) else float(_sum(values))


def _product(values: Values) -> float:
    if not _finite(values):
        return math.prod(float(value) for value in values)
    return _to_float(math.prod(map(Fraction, values), start=Fraction(1)))


def _geometric_mean(values: Values) -> float | None:
    if any(value < 0 for value in values):
        return None
    if any(value == 0 for value in values):
        return 0.0
    if not _finite(values):
        return float(_sum(values))
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))


def _variance(values: Values, sample: bool) -> float | None:
    if len(values) <= sample:
        return None
    if not _finite(values):
        return math.nan
    return _to_float((variance if sample else pvariance)(list(map(Fraction, values))))


def _root(value: float | None) -> float | None:
    return None if value is None else math.sqrt(value)


def _m4(values: Values) -> dict[str, Any]:
    return {"min": min(values, key=rank), "max": max(values, key=rank), "first": values[0], "last": values[-1]}


def neighbours(values: Values, q: float) -> tuple[float, float, float]:
    """The sorted values around the place q·(n - 1), and how far the place lies from the lower to the upper one."""
    ordered = sorted(values, key=rank)
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low]), float(ordered[high]), place - low


def _quantile(values: Values, q: float) -> float:
    """Linear interpolation between the two values around it."""
    low, high, share = neighbours(values, q)
    return low if share == 0 or low == high else low * (1 - share) + high * share


def counts(values: Iterable[Any]) -> list[tuple[Any, int]]:
    """Each value with its count, the most frequent first and the smallest of equally frequent ones first."""
    found = Counter(canonical(value) for value in values)
    return sorted(found.items(), key=lambda one: (-one[1], rank(one[0])))


# Sketches, as exactly as their definition allows: KLL leaves NaN out, HLL and the frequent items take it for a value,
# and HLL does not count empty strings.


def numbers_of(values: Values) -> list[float]:
    return sorted(float(value) for value in values if not is_nan(value))


def _approx_quantile(values: Values, q: float, k: int) -> float | None:
    """The smallest value with at least the share q of all values at or below it."""
    ordered = numbers_of(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else None


def _approx_distinct(values: Values, lg_k: int) -> int:
    return len(counts(value for value in values if value not in ("", b"")))


def _top_k(values: Values, k: int) -> list[dict[str, Any]]:
    return [{"value": value, "count": count} for value, count in counts(values)[:k]]


def _lowered(monoid: Any, aggregate: Aggregate, rows: Sequence[Row]) -> Any:
    """A user's own aggregate: all values of the window lifted at once, in their order, and lowered; nothing merged."""
    inputs = [[evaluate(expression, row) for expression in aggregate.inputs] for row in rows]
    columns = [
        pl.Series(values, strict=False) for values in zip(*(row for row in inputs if None not in row), strict=True)
    ]
    state = monoid.lift(*columns) if columns else None
    if state is None:
        return None
    whole = isinstance(monoid.state, Mapping)
    fields = {
        name: pl.Series([one.to_list() if isinstance(one, pl.Series) else one], dtype=monoid.columns[name])
        for name, one in (state if whole else {"state": state}).items()
    }
    return monoid.lower(fields if whole else fields["state"]).to_list()[0]


_OF_ROWS: dict[str, Callable[[Aggregate, Sequence[Row]], Any]] = {
    "first": lambda aggregate, rows: next(iter(_collect(aggregate, rows)), None),
    "last": lambda aggregate, rows: next(reversed(_collect(aggregate, rows)), None),
    "collect": _collect,
    "arg_min": lambda aggregate, rows: _arg(aggregate, rows, min),
    "arg_max": lambda aggregate, rows: _arg(aggregate, rows, max),
}
_OF_VALUES: dict[str, Callable[..., Any]] = {  # and the aggregate's parameters
    "count": len,
    "sum": _sum,
    "min": lambda values: min(values, key=rank),
    "max": lambda values: max(values, key=rank),
    "mean": _mean,
    "product": _product,
    "geometric_mean": _geometric_mean,
    "variance": lambda values: _variance(values, sample=True),
    "variance_pop": lambda values: _variance(values, sample=False),
    "stddev": lambda values: _root(_variance(values, sample=True)),
    "stddev_pop": lambda values: _root(_variance(values, sample=False)),
    "range": lambda values: max(values, key=rank) - min(values, key=rank),
    "m4": _m4,
    "median": lambda values: _quantile(values, 0.5),
    "quantile": _quantile,
    "mode": lambda values: counts(values)[0][0],
    "distinct": lambda values: len(counts(values)),
    "approx_quantile": _approx_quantile,
    "approx_distinct": _approx_distinct,
    "top_k": _top_k,
}
_OF_NOTHING = {"count": 0, "distinct": 0, "approx_distinct": 0, "m4": dict.fromkeys(("min", "max", "first", "last"))}
