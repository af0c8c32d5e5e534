"""Aggregates as text, and formulas: SQL expressions over aggregates.

`aggregate("quantile(speed, 0.95)")` reads one call; anything else that has calls in it is a formula: the calls, each
an aggregate like any other and so shared with everybody else, and an expression over their results. How they are read
is in `reader`.
"""

from __future__ import annotations

import difflib
import re
from functools import lru_cache

import polars as pl

from windrow.core.aggregates.functions import FUNCTIONS, Aggregate, States, function
from windrow.core.aggregates.reader import Reader, as_formula
from windrow.core.expressions.border import border
from windrow.core.expressions.parse import Expression, ExpressionError
from windrow.core.expressions.terms import Overflow
from windrow.core.expressions.tokens import phrase_of
from windrow.core.operators.base import Operator


def exact_to_int64(total: pl.Series) -> pl.Series:
    """128-bit sums as int64, null where they do not fit."""
    return total.cast(pl.Int64, strict=False) if total.dtype == pl.Int128() else total


def _formula_operators(aggregate: Aggregate) -> tuple[Operator, ...]:
    return tuple(operator for part in aggregate.parts for operator in part.operators)


def _columns(aggregate: Aggregate, states: States) -> list[pl.Series]:
    """The result of each part of a formula."""
    rest = iter(states)
    return [part.lower([next(rest) for _ in part.operators]) for part in aggregate.parts]


def overflowed(aggregate: Aggregate, states: States) -> list[pl.Series]:
    """For each part of a formula that is somewhere an integer that does not fit int64, and for itself: where."""
    if not aggregate.parts:
        return []
    columns = _columns(aggregate, states)
    wide = [column for column in columns if column.dtype == pl.Int128()]
    beyond = [exact_to_int64(column).is_null() & column.is_not_null() for column in wide]
    own = _beyond(aggregate, _frame(columns))
    return [where for where in (*beyond, own) if where is not None and where.any()]


def _frame(columns: list[pl.Series]) -> pl.DataFrame:
    """The parts of a formula by their names in its expression."""
    return pl.DataFrame({f"p{number}": exact_to_int64(column) for number, column in enumerate(columns)})


@lru_cache(maxsize=4096)
def _bound(expression: Expression, types: tuple[tuple[str, pl.DataType], ...]) -> tuple[pl.Expr, Overflow | None]:
    return expression.polars(dict(types)), expression.overflow(dict(types))


def _beyond(aggregate: Aggregate, frame: pl.DataFrame) -> pl.Series | None:
    """Where the arithmetic of a formula leaves int64; None if nowhere."""
    (expression,) = aggregate.inputs
    _, overflow = _bound(expression, tuple(frame.schema.items()))
    if overflow is None or not frame.select(overflow.may).item():
        return None
    return frame.select(overflow.does).to_series()


def _lower_formula(aggregate: Aggregate, states: States) -> pl.Series:
    """The result of a formula, null where it does not fit int64."""
    frame = _frame(_columns(aggregate, states))
    (expression,) = aggregate.inputs
    try:
        result, _ = _bound(expression, tuple(frame.schema.items()))
        beyond = _beyond(aggregate, frame)
        return frame.select(result if beyond is None else pl.when(~beyond).then(result)).to_series()
    except ExpressionError as error:  # which knows the parts as p0, p1, …
        reason = re.sub(r"`p(\d+)`", lambda it: aggregate.parts[int(it[1])].text, error.reason)
        raise ExpressionError(aggregate.text, reason) from None


_READER = Reader()


@function(_formula_operators, _lower_formula)
@border
def formula(text: str) -> Aggregate:
    """Any SQL expression over aggregates, such as `sum(fare) / sum(distance)`; it shares the operators that it names.

    text:  SQL; every column stands inside an aggregate
    """
    return as_formula(_READER.read(phrase_of(text), "a formula"))


@border
def aggregate(text: str) -> Aggregate:
    """Read an aggregate as it is written in SQL: `mean(speed)`, `quantile(speed, 0.95)`, `sum(a) / sum(b)`.

    text:  a call of an aggregate, also of one of your own, or a formula; a query takes the text as it is
    """
    phrase = phrase_of(text.strip())
    is_one_call = phrase.is_call(0) and phrase.closing(1) == len(phrase) - 1
    if is_one_call and not any(_READER.is_aggregate(phrase, index) for index in range(len(phrase))):
        name = phrase[0].name.lower()
        if near := difflib.get_close_matches(name, FUNCTIONS, 1):
            phrase.refuse(f"{phrase.source!r}: there is no aggregate {name!r}; did you mean {near[0]!r}?")
    return _READER.read(phrase, "an aggregate")
