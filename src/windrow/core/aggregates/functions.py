"""Aggregates: what a query computes of a window, as formulas over operators.

An aggregate names a function and its inputs. Its **function** says which operators it reads and how their combined
states become a result column; nothing else in windrow knows an aggregate by its name. Aggregates that need the same
operator over the same expression share it, so mean, sum and count of x keep two numbers per slice.

    wr.mean("speed * 3.6")                       an expression is SQL text
    wr.quantile("speed", 0.95).alias("p95")      its column is called by its text or by an alias
    wr.mean("speed").filter("lane = 1")          over the events of a window that satisfy a predicate
    wr.formula("sum(fare) / sum(distance)")      a formula shares the operators that it names
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import polars as pl

from windrow.core.expressions.border import border
from windrow.core.expressions.parse import Expression, both, parse
from windrow.core.operators.base import Count, Logs, Max, Min, Moments, Multiset, Operator, Product, Sum
from windrow.core.operators.choose import ArgMax, ArgMin, First, Last
from windrow.core.operators.collect import Collect
from windrow.core.operators.sketches import Frequent, Hll, Kll

Make = TypeVar("Make", bound=Callable[..., "Aggregate"])
States = Sequence[Any]  # the combined states of an aggregate's operators, in their order


@border
@dataclass(frozen=True, repr=False)
class Aggregate:
    """One result column: a function over SQL expressions. Made by `mean("speed")` and its like, or by `aggregate`.

    function:  what it is called in SQL
    inputs:    the expressions that it reads
    params:    its parameters, such as the q of a quantile
    parts:     of a formula, the aggregates that its expression names p0, p1, …
    name:      of its column: its text, or an alias
    where:     which events count, as `filter` says; all of them by default
    """

    function: str
    inputs: tuple[Expression, ...] = ()
    params: tuple[tuple[str, Any], ...] = ()
    parts: tuple[Aggregate, ...] = ()
    name: str = ""
    where: Expression | None = None  # which events count; a formula has it in its parts
    operators: tuple[Operator, ...] = field(init=False, repr=False, compare=False)
    filters: tuple[Expression | None, ...] = field(init=False, repr=False, compare=False)  # one for each operator
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.text)
        # equal operators are one object, so that a plan of thousands of aggregates need not compare them
        operators = tuple(_OPERATORS.setdefault(one, one) for one in FUNCTIONS[self.function].operators(self))
        filters = tuple(one for part in self.parts for one in part.filters) or (self.where,) * len(operators)
        # hashed once per aggregate: plans of a million queries look aggregates up a million times
        hashed = hash((self.function, self.inputs, self.params, self.parts, self.name, self.where))
        vars(self).update(operators=operators, filters=filters, _hash=hashed)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return self.text if self.name == self.text else f"{self.text} AS {self.name}"

    def alias(self, name: str) -> Aggregate:
        """The same aggregate under another column name."""
        if not isinstance(name, str) or not name:
            raise ValueError(f"an alias must be a name, not {name!r}")
        return replace(self, name=name)

    def filter(self, predicate: str | Expression) -> Aggregate:
        """The same aggregate over those events of a window alone that satisfy a predicate in SQL."""
        where = parse(predicate) if isinstance(predicate, str) else predicate
        name = "" if self.name == self.text else self.name
        if self.parts:
            return replace(self, parts=tuple(part.filter(where) for part in self.parts), name=name)
        return replace(self, where=both(self.where, where), name=name)

    def param(self, name: str) -> Any:
        """The value of a parameter, such as the q of a quantile."""
        return dict(self.params)[name]

    @cached_property
    def text(self) -> str:
        """The aggregate as it is written in SQL; `aggregate` reads it back."""
        if self.parts:
            return _PART.sub(lambda it: self.parts[int(it[1])].text if it[1] else it[0], self.inputs[0].text)
        defaults = FUNCTIONS[self.function].defaults
        shown = [f"{name}={expression.text}" for name, expression in zip(defaults, self.inputs, strict=False)]
        shown[:1] = [expression.text for expression in self.inputs[:1]]
        for name, value in self.params:
            if value != defaults[name]:
                written = _quoted(value) if isinstance(value, str) else f"{value}"
                in_place = len(self.inputs) < 2 and list(defaults)[len(shown)] == name
                shown.append(written if in_place else f"{name}={written}")
        filtered = f" FILTER (WHERE {self.where.text})" if self.where else ""
        return f"{self.function}({', '.join(shown)}){filtered}"

    @property
    def needs_order(self) -> bool:
        """Whether a window's slices must come in the order of their events."""
        return any(operator.needs_order for operator in self.operators)

    def lower(self, states: States) -> pl.Series:
        """The result column, from the combined states of `operators`."""
        return FUNCTIONS[self.function].lower(self, states)

    def to_dict(self) -> dict[str, Any]:
        """A description in plain data, from which `from_dict` makes the same aggregate."""
        described = {
            "function": self.function,
            "inputs": [expression.text for expression in self.inputs],
            "params": dict(self.params),
            "parts": [part.to_dict() for part in self.parts],
            "name": self.name,
        }
        return described | {"where": self.where.text} if self.where else described

    @staticmethod
    def from_dict(described: dict[str, Any]) -> Aggregate:
        """The aggregate that `to_dict` described; a monoid of one's own must have been imported."""
        function = described["function"]
        if function not in FUNCTIONS:
            raise ValueError(f"there is no aggregate called {function!r} here: import the module that defines it")
        inputs = tuple(map(parse, described["inputs"]))
        parts = tuple(map(Aggregate.from_dict, described["parts"]))
        where = parse(described["where"]) if "where" in described else None
        return Aggregate(function, inputs, tuple(described["params"].items()), parts, described["name"], where)


@dataclass
class Function:
    """How an aggregate is made, which operators it reads, and how their states become its result."""

    make: Callable[..., Aggregate]
    operators: Callable[[Aggregate], tuple[Operator, ...]]
    lower: Callable[[Aggregate, States], pl.Series]
    lower_many: Callable[[Sequence[Aggregate], States], pl.DataFrame] | None = None  # of the same operators, at once
    needs: Callable[[pl.DataType], str | None] = lambda _: None  # what the first input must be, where it is not

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The parameters by name, with their defaults."""
        return {name: parameter.default for name, parameter in inspect.signature(self.make).parameters.items()}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


_PART = re.compile(r"'(?:[^'\\]|\\.)*'|\bp(\d+)\b")  # p0, p1, …, but not in a string
FUNCTIONS: dict[str, Function] = {}
_OPERATORS: dict[Operator, Operator] = {}


def function(
    operators: Callable[[Aggregate], tuple[Operator, ...]],
    lower: Callable[[Aggregate, States], pl.Series],
    lower_many: Callable[[Sequence[Aggregate], States], pl.DataFrame] | None = None,
    needs: Callable[[pl.DataType], str | None] = lambda _: None,
) -> Callable[[Make], Make]:
    """Declare the function of an aggregate under the name of what makes it."""

    def declare(make: Make) -> Make:
        FUNCTIONS[make.__name__.removesuffix("_")] = Function(make, operators, lower, lower_many, needs)
        return border(make)

    return declare


def _number(dtype: pl.DataType) -> str | None:
    return None if dtype.is_numeric() else "a number"


def _number_or_time(dtype: pl.DataType) -> str | None:
    return None if dtype.is_numeric() or dtype.is_temporal() else "a number or a time"


def _of(*kinds: Callable[..., Operator], params: Sequence[str] = ()) -> Callable[[Aggregate], tuple[Operator, ...]]:
    """Operators of these kinds over the inputs of an aggregate, with these of its parameters."""

    def operators(aggregate: Aggregate) -> tuple[Operator, ...]:
        given = {name: aggregate.param(name) for name in params}
        return tuple(kind(aggregate.inputs, **given) for kind in kinds)

    return operators


def _field(name: str) -> Callable[[Aggregate, States], pl.Series]:
    return lambda _, states: states[0][name]


@function(_of(Count), _field("count"))
def count(x: str | None = None) -> Aggregate:
    """How many events there are, or with an expression x how many of them have a value; an integer, never null."""
    return Aggregate("count", () if x is None or x == "*" else (parse(x),))


@function(_of(Sum), _field("sum"), needs=_number)
def sum(x: str) -> Aggregate:
    """The sum of x: integers and decimals exactly, floats as doubles; null where there is no value.

    An integer sum beyond int64 is an error in a whole table, and in a stream null and counted in `Metrics.overflows`.
    """
    return Aggregate("sum", (parse(x),))


@function(_of(Min), _field("value"))
def min(x: str) -> Aggregate:
    """The smallest value of x, of any type that has an order, NaN being greater than every number; null without any."""
    return Aggregate("min", (parse(x),))


@function(_of(Max), _field("value"))
def max(x: str) -> Aggregate:
    """The greatest value of x, of any type that has an order, NaN being greater than every number; null without any."""
    return Aggregate("max", (parse(x),))


@function(_of(Sum, Count), lambda _, states: states[0]["sum"].cast(pl.Float64) / states[1]["count"], needs=_number)
def mean(x: str) -> Aggregate:
    """The average of x as a double; it never overflows, and is null where there is no value."""
    return Aggregate("mean", (parse(x),))


@function(_of(Product), _field("product"), needs=_number)
def product(x: str) -> Aggregate:
    """The product of the values of x as a double; null where there is no value."""
    return Aggregate("product", (parse(x),))


def _lower_geometric_mean(_: Aggregate, states: States) -> pl.Series:
    frame = pl.DataFrame({**states[0], "count": states[1]["count"]})
    root = (pl.col("logs") / pl.col("count")).exp()
    mean = pl.when(pl.col("zeros") > 0).then(0.0).otherwise(root)
    return frame.select(pl.when((pl.col("count") > 0) & (pl.col("negatives") == 0)).then(mean)).to_series()


@function(_of(Logs, Count), _lower_geometric_mean, needs=_number)
def geometric_mean(x: str) -> Aggregate:
    """The n-th root of the product of n values of x, a double; null when one is negative, else 0 when one is zero."""
    return Aggregate("geometric_mean", (parse(x),))


def _spread(sample: bool, root: bool) -> Callable[[Aggregate, States], pl.Series]:
    def lower(_: Aggregate, states: States) -> pl.Series:
        n = states[0]["n"].to_numpy() - (1 if sample else 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            variance = states[0]["m2"].to_numpy() / n
            return pl.Series(np.sqrt(variance) if root else variance).set(pl.Series(n <= 0), None)

    return lower


@function(_of(Moments), _spread(sample=True, root=False), needs=_number)
def variance(x: str) -> Aggregate:
    """The variance of a sample of x, divided by n - 1, a double; null for fewer than two values."""
    return Aggregate("variance", (parse(x),))


@function(_of(Moments), _spread(sample=False, root=False), needs=_number)
def variance_pop(x: str) -> Aggregate:
    """The variance of all values of x, divided by n, a double; null where there is no value."""
    return Aggregate("variance_pop", (parse(x),))


@function(_of(Moments), _spread(sample=True, root=True), needs=_number)
def stddev(x: str) -> Aggregate:
    """The standard deviation of a sample of x, the root of `variance`; null for fewer than two values."""
    return Aggregate("stddev", (parse(x),))


@function(_of(Moments), _spread(sample=False, root=True), needs=_number)
def stddev_pop(x: str) -> Aggregate:
    """The standard deviation of all values of x, the root of `variance_pop`; null where there is no value."""
    return Aggregate("stddev_pop", (parse(x),))


def _lower_range(_: Aggregate, states: States) -> pl.Series:
    most: pl.Series = states[0]["value"]
    least: pl.Series = states[1]["value"]
    if most.dtype.is_integer():  # the range of int64 values need not be one
        most, least = most.cast(pl.Int128), least.cast(pl.Int128)
    return most - least


@function(_of(Max, Min), _lower_range, needs=_number_or_time)
def range_(x: str) -> Aggregate:
    """max(x) - min(x) of numbers or times; it shares both with `min` and `max`."""
    return Aggregate("range", (parse(x),))


@function(_of(First, params=("nulls",)), _field("value"))
def first(x: str, nulls: bool = False) -> Aggregate:
    """The first value of x in the order of events (time, `order_by`, arrival); nulls only with `nulls=True`."""
    return Aggregate("first", (parse(x),), (("nulls", bool(nulls)),))


@function(_of(Last, params=("nulls",)), _field("value"))
def last(x: str, nulls: bool = False) -> Aggregate:
    """The last value of x in the order of events (time, `order_by`, arrival); nulls only with `nulls=True`."""
    return Aggregate("last", (parse(x),), (("nulls", bool(nulls)),))


@function(_of(Collect, params=("nulls",)), _field("values"))
def collect(x: str, nulls: bool = False) -> Aggregate:
    """The values of x as a list in the order of events, empty without any; nulls are skipped unless `nulls=True`."""
    return Aggregate("collect", (parse(x),), (("nulls", bool(nulls)),))


@function(_of(ArgMin), _field("value"))
def arg_min(x: str, of: str) -> Aggregate:
    """The value of x in the event whose `of` is smallest; ties go to the earliest, events without `of` are skipped."""
    return Aggregate("arg_min", (parse(x), parse(of)))


@function(_of(ArgMax), _field("value"))
def arg_max(x: str, of: str) -> Aggregate:
    """The value of x in the event whose `of` is greatest; ties go to the earliest, events without `of` are skipped."""
    return Aggregate("arg_max", (parse(x), parse(of)))


def _lower_m4(_: Aggregate, states: States) -> pl.Series:
    names = ("min", "max", "first", "last")
    return pl.DataFrame({name: state["value"] for name, state in zip(names, states, strict=True)}).to_struct()


@function(_of(Min, Max, First, Last), _lower_m4)
def m4(x: str) -> Aggregate:
    """A struct of the min, max, first and last value of x: enough to draw a line chart without visible error."""
    return Aggregate("m4", (parse(x),))


def _lower_quantiles(aggregates: Sequence[Aggregate], states: States) -> pl.DataFrame:
    """Quantiles, or medians, which have no parameter q."""
    quantiles: pl.DataFrame = states[0].quantiles({each.name: dict(each.params).get("q", 0.5) for each in aggregates})
    return quantiles


def _lower_quantile(aggregate: Aggregate, states: States) -> pl.Series:
    return _lower_quantiles([aggregate], states).to_series()


@function(_of(Multiset), _lower_quantile, needs=_number)
def median(x: str) -> Aggregate:
    """The exact median of x, a double: `quantile(x, 0.5)`."""
    return Aggregate("median", (parse(x),))


def _share(q: float, what: str) -> float:
    if isinstance(q, bool) or not isinstance(q, int | float) or not 0 <= q <= 1:
        raise ValueError(f"{what}: q must be between 0 and 1, not {q!r}")
    return float(q)


@function(_of(Multiset), _lower_quantile, _lower_quantiles, needs=_number)
def quantile(x: str, q: float) -> Aggregate:
    """The exact quantile of x, a double; linear interpolation between the neighbouring values, as Spark's `percentile`.

    q:  from 0, the smallest value, to 1, the greatest; any number of different q share one state
    """
    return Aggregate("quantile", (parse(x),), (("q", _share(q, "quantile")),))


@function(_of(Multiset), lambda _, states: states[0].mode())
def mode(x: str) -> Aggregate:
    """The most frequent value of x; ties go to the smallest."""
    return Aggregate("mode", (parse(x),))


@function(_of(Multiset), lambda _, states: states[0].distinct())
def distinct(x: str) -> Aggregate:
    """How many different values x has, exactly; nulls do not count."""
    return Aggregate("distinct", (parse(x),))


def _positive(value: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{what} must be a whole number greater than zero, not {value!r}")
    return value


@function(_of(Kll, params=("k",)), lambda aggregate, states: states[0].quantile(aggregate.param("q")), needs=_number)
def approx_quantile(x: str, q: float, k: int = 200) -> Aggregate:
    """About the quantile of x, one of its values, from a KLL sketch of Apache DataSketches (`windrow[sketches]`).

    q:  from 0 to 1
    k:  the size of the sketch; the default of 200 is off by less than 1.4 % of the ranks, with 99 % confidence
    """
    params = (("q", _share(q, "approx_quantile")), ("k", _positive(k, "approx_quantile: k")))
    return Aggregate("approx_quantile", (parse(x),), params)


@function(_of(Hll, params=("lg_k",)), lambda _, states: states[0].estimate())
def approx_distinct(x: str, lg_k: int = 12) -> Aggregate:
    """About how many different values x has, from an HLL sketch of Apache DataSketches (`windrow[sketches]`).

    lg_k:  from 4 to 21, for 2**lg_k registers; the default of 12 is within 3.3 % at two standard deviations
    """
    if not 4 <= _positive(lg_k, "approx_distinct: lg_k") <= 21:
        raise ValueError(f"approx_distinct: lg_k must be between 4 and 21, not {lg_k!r}")
    return Aggregate("approx_distinct", (parse(x),), (("lg_k", lg_k),))


@function(_of(Frequent), lambda aggregate, states: states[0].top(aggregate.param("k")))
def top_k(x: str, k: int) -> Aggregate:
    """The k most frequent values of x as a list of (value, count), from Apache DataSketches (`windrow[sketches]`).

    A count is at most 0.14 % of the events too high, and a value that is more frequent than that is never missed.
    """
    return Aggregate("top_k", (parse(x),), (("k", _positive(k, "top_k: k")),))
