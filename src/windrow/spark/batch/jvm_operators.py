"""Lifting in the JVM: operators as Spark's aggregates, for the slices that Catalyst makes.

    events ── groupBy(keys, slice).agg(lifts) ──▶ columns of the JVM ── fields, in Polars ──▶ states of a slice table

One small function per kind of operator, found by the operator's class, gives both halves: which aggregates Spark
computes, and how the state's fields come out of them. What Catalyst cannot compute, or computes too slowly, has a
reason instead, and its query is sliced by the Polars kernel.

Nothing raises that the semantics do not: Spark is ANSI, so sums of BIGINT are taken in two halves that cannot
overflow and put together in 128 bits, and sums of decimals are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl
from pyspark.sql import Column
from pyspark.sql import functions as F

from windrow.core.operators import sketch_formats
from windrow.core.operators.base import (
    Count,
    Logs,
    Max,
    Min,
    Moments,
    Operator,
    Product,
    Sum,
    squares,
)
from windrow.core.operators.choose import ArgMax, ArgMin, First, Last
from windrow.core.operators.collect import Collect
from windrow.core.operators.sketches import Hll, Kll
from windrow.core.plan.groups import Partial
from windrow.core.slices.binding import quoted
from windrow.core.slices.kernel import filter_name, input_name
from windrow.core.slices.table import SliceSchema


@dataclass(frozen=True)
class Lifted:
    """An operator's aggregates in the JVM, and the fields of its state in terms of their columns."""

    columns: Mapping[str, Callable[[], Column]]  # made where there is a session, which a worker has not
    fields: Mapping[str, pl.Expr]


@dataclass(frozen=True)
class Inputs:
    """What a lift may look at: the operator with its filter, and the types of its inputs."""

    partial: Partial
    types: list[pl.DataType]

    @property
    def x(self) -> str:
        """Its first input as SQL text, or 1 if it has none; null where the filter is not satisfied."""
        inputs, where = self.partial.operator.inputs, self.partial.where
        column = quoted(input_name(inputs[0].text)) if inputs else "1"
        return column if where is None else f"CASE WHEN {quoted(filter_name(where.text))} THEN {column} END"

    @property
    def double(self) -> str:
        return f"CAST({self.x} AS DOUBLE)"

    def lifted(self, fields: Mapping[str, str]) -> Lifted:
        """A state whose fields are aggregates as they are."""
        names = {field: f"{self.partial.text}.{field}" for field in fields}
        return Lifted(
            {names[field]: sql(text) for field, text in fields.items()},
            {field: pl.col(name) for field, name in names.items()},
        )


def sql(text: str) -> Callable[[], Column]:
    return lambda: F.expr(text)


Lift = Callable[[Inputs], Lifted | str]
LIFTS: dict[type[Operator], Lift] = {}


def lifts(*operators: type[Operator]) -> Callable[[Lift], Lift]:
    """Declare how operators are lifted."""

    def declare(lift: Lift) -> Lift:
        LIFTS.update(dict.fromkeys(operators, lift))
        return lift

    return declare


def lift(partial: Partial, schema: SliceSchema) -> Lifted | str:
    """What Spark computes for an operator of a schema; or why it cannot."""
    declared, text = LIFTS.get(type(partial.operator)), partial.operator.text
    if declared is None:
        return REFUSALS.get(type(partial.operator), "Spark has no aggregate for {}").format(text)
    types = schema.input_types(partial)
    return f"{text} has an input without a type" if pl.Null() in types else declared(Inputs(partial, types))


@lifts(Count)
def _count(of: Inputs) -> Lifted | str:
    return of.lifted({"count": f"COUNT({of.x})"})


@lifts(Sum)
def _sum(of: Inputs) -> Lifted | str:
    (dtype,) = of.types
    if isinstance(dtype, pl.Decimal):
        return of.lifted({"sum": f"TRY_SUM({of.x})", "size": f"SUM(ABS({of.double}))"})
    if not dtype.is_integer():
        return of.lifted({"sum": f"SUM({of.double})"})
    whole = f"CAST({of.x} AS BIGINT)"
    if dtype != pl.Int64():
        return of.lifted({"sum": f"SUM({whole})"})
    high, low = f"{of.partial.text}.high", f"{of.partial.text}.low"
    both = pl.col(high).cast(pl.Int128) * pl.lit(2**32, pl.Int128) + pl.col(low).cast(pl.Int128)
    columns = {high: sql(f"SUM(SHIFTRIGHT({whole}, 32))"), low: sql(f"SUM({whole} & 4294967295L)")}
    return Lifted(columns, {"sum": both})


@lifts(Min, Max)
def _extreme(of: Inputs) -> Lifted | str:
    return of.lifted({"value": f"{'MIN' if isinstance(of.partial.operator, Min) else 'MAX'}({of.x})"})


@lifts(Product)
def _product(of: Inputs) -> Lifted | str:
    name, x = f"{of.partial.text}.product", of.double
    return Lifted({name: lambda: F.product(F.expr(x))}, {"product": pl.col(name)})


@lifts(Logs)
def _logs(of: Inputs) -> Lifted | str:
    x = of.double
    return of.lifted(
        {
            "logs": f"SUM(CASE WHEN {x} > 0 THEN LN({x}) END)",
            "zeros": f"COUNT_IF({x} = 0)",
            "negatives": f"COUNT_IF({x} < 0)",
        }
    )


@lifts(Moments)
def _moments(of: Inputs) -> Lifted | str:
    n, mean, spread = (f"{of.partial.text}.{field}" for field in ("n", "mean", "var"))
    columns = {n: f"COUNT({of.x})", mean: f"AVG({of.double})", spread: f"VAR_POP({of.double})"}
    m2 = squares(pl.col(mean), pl.col(spread) * pl.col(n))
    fields = {"n": pl.col(n).cast(pl.Float64), "mean": pl.col(mean), "m2": m2}
    return Lifted({name: sql(text) for name, text in columns.items()}, fields)


@lifts(Hll)
def _hll(of: Inputs) -> Lifted | str:
    """Spark's sketch of integers, text and bytes is ours, but for how it is written."""
    operator: Any = of.partial.operator
    (dtype,) = of.types
    if dtype not in (pl.Int32(), pl.Int64(), pl.String(), pl.Binary()):
        return f"Spark's hll_sketch_agg does not take {dtype}"
    made, count = f"{of.partial.text}.made", f"{of.partial.text}.count"
    sketch = sketch_formats.Hll(operator.lg_k)

    def written(states: pl.Series) -> pl.Series:
        return pl.Series([None if state is None else sketch.merge([state]) for state in states], dtype=pl.Binary)

    columns = {made: sql(f"HLL_SKETCH_AGG({of.x}, {operator.lg_k})"), count: sql(f"COUNT({of.x})")}
    some = pl.when(pl.col(count) > 0).then(pl.col(made))
    return Lifted(columns, {"sketch": some.map_batches(written, return_dtype=pl.Binary)})


REFUSALS: dict[type[Operator], str] = {
    **dict.fromkeys(
        (First, Last, ArgMin, ArgMax),
        "{} compares places in the order of events, for which Spark would sort all of them",
    ),
    Kll: "Spark tosses coins for {}, so that no two runs would agree",
    Collect: "{} keeps every event's value",
}
