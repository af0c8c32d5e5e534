"""Terms: one piece of an expression as Polars expression and as Spark SQL text, with the type that both have.

What `parse` says about types is carried out here: how literals are written, in which type values meet.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import NoReturn

import polars as pl

from windrow.core.expressions.types import spark_type

INT64, FLOAT64, STRING, BOOLEAN, NULL = pl.Int64(), pl.Float64(), pl.String(), pl.Boolean(), pl.Null()


class Refusal(Exception):
    """A reason, before it knows its text; `unread`: where what cannot be read ends."""

    def __init__(self, reason: str, unread: int | None = None) -> None:
        super().__init__(reason)
        self.unread = unread


def refuse(reason: str) -> NoReturn:
    raise Refusal(reason)


@dataclass(frozen=True)
class Overflow:
    """Where integer arithmetic leaves 64 bits; `may` is one value for all events, which their extremes decide."""

    may: pl.Expr  # whether it can at all
    does: pl.Expr  # for which events it does, never null
    spark: str  # the same for Spark


@dataclass(frozen=True)
class Arithmetic:
    """Steps of integer arithmetic one above another, of which each must stay in 64 bits.

    Absolute values are bounded as doubles, by the types of the operands and by the extremes of a batch. Bounds are
    rounded, so only what is clearly below `LIMIT` is taken for safe; what is not is computed exactly.
    """

    operands: tuple[Term, ...]  # that are no steps themselves
    checked: pl.Expr  # null where a step leaves 64 bits
    spark: str  # the same for Spark
    bound: float  # of the absolute value of the last step, by types
    extreme: pl.Expr  # the same by the values of a batch
    may: tuple[pl.Expr, ...] = ()  # of each step that its types do not bound: whether the values of a batch can leave


@dataclass(frozen=True)
class Term:
    dtype: pl.DataType
    polars: pl.Expr
    spark: str
    is_literal: bool = False
    value: object = None  # of a literal
    size: int = 1  # how many terms it is made of
    arithmetic: Arithmetic | None = None  # of an integer, as long as further steps may follow
    overflow: Overflow | None = None


LIMIT = 2.0**63 * (1 - 1e-9)
_BITS: dict[pl.DataType, int] = {
    pl.Int8(): 7,
    pl.Int16(): 15,
    pl.Int32(): 31,
    pl.UInt8(): 8,
    pl.UInt16(): 16,
    pl.UInt32(): 32,
}


def operand(term: Term) -> Arithmetic:
    """An integer term, of any size, as an operand of arithmetic."""
    if term.arithmetic is not None:
        return term.arithmetic
    long = convert(term, INT64)
    wide = long.polars.cast(pl.Int128)
    if isinstance(long.value, int):
        return Arithmetic((), wide, long.spark, abs(long.value), pl.lit(float(abs(long.value))))
    extremes = (extreme.cast(FLOAT64).abs() for extreme in (long.polars.min(), long.polars.max()))
    return Arithmetic((long,), wide, long.spark, 2.0 ** _BITS.get(term.dtype, 63), pl.max_horizontal(*extremes))


def step(result: pl.Expr, spark: str, bound: float, extreme: pl.Expr, *operands: Arithmetic) -> Arithmetic:
    """A step of arithmetic: its exact result in 128 bits, its text for Spark, and bounds of its absolute value."""
    checked = result.cast(INT64, strict=False).cast(pl.Int128)
    own = [] if bound < LIMIT else [(extreme >= LIMIT).fill_null(False)]
    may = (*(one for each in operands for one in each.may), *own)
    return Arithmetic(tuple(one for each in operands for one in each.operands), checked, spark, bound, extreme, may)


def whole(term: Term) -> Term:
    """A term to which no step of arithmetic is added: what its steps cannot hold becomes its overflow."""
    steps = term.arithmetic
    if steps is None or not steps.may:
        return replace(term, arithmetic=None)
    does = pl.all_horizontal([steps.checked.is_null(), *(one.polars.is_not_null() for one in steps.operands)])
    text = " AND ".join([f"{steps.spark} IS NULL", *(f"{one.spark} IS NOT NULL" for one in steps.operands)])
    own = Overflow(pl.any_horizontal(steps.may), does, f"({text})")
    return replace(term, spark=steps.spark, arithmetic=None, overflow=any_overflow(term.overflow, own))


def any_overflow(*parts: Overflow | None) -> Overflow | None:
    """Where one of several computations leaves 64 bits."""
    distinct = list({id(one): one for one in parts if one is not None}.values())
    if len(distinct) < 2:
        return distinct[0] if distinct else None
    may, does = (pl.any_horizontal(exprs) for exprs in zip(*((one.may, one.does) for one in distinct), strict=True))
    return Overflow(may, does, f"({' OR '.join(one.spark for one in distinct)})")


def literal(value: object, dtype: pl.DataType | None = None) -> Term:
    dtype = dtype or {str: STRING, bool: BOOLEAN, int: INT64, float: FLOAT64}.get(type(value), NULL)
    polars = pl.lit(value.replace(tzinfo=None)) if isinstance(value, datetime) else pl.lit(value, dtype=dtype)
    if value is None:
        spark = "NULL" if dtype == NULL else f"CAST(NULL AS {spark_type(dtype)})"
    elif isinstance(value, bool):
        spark = str(value).upper()
    elif isinstance(value, (int, float)):
        spark = f"{value!r}{'L' if isinstance(value, int) else 'D'}"
        spark = f"({spark})" if value < 0 else spark
    elif isinstance(value, str):
        spark = "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    elif isinstance(value, datetime) and isinstance(dtype, pl.Datetime):
        if dtype.time_unit == "ms" and value.microsecond % 1000:
            refuse(f"{value} is finer than the column's milliseconds")
        polars = polars.dt.cast_time_unit(dtype.time_unit)
        if dtype.time_zone:
            polars = polars.dt.replace_time_zone("UTC").dt.convert_time_zone(dtype.time_zone)
        # with a Z it does not depend on the session's time zone
        spark = f"{spark_type(dtype)} '{value.replace(tzinfo=None).isoformat()}{'Z' if dtype.time_zone else ''}'"
    elif isinstance(value, date):
        spark = f"DATE '{value.isoformat()}'"
    else:
        spark = f"CAST({value} AS {spark_type(dtype)})"
    return Term(dtype, polars, spark, True, value)


def instant(text: str) -> datetime:
    iso = r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?)?"
    try:
        moment = datetime.fromisoformat(text if re.fullmatch(iso, text, re.ASCII) else "")
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        refuse(f"{text!r} is not an ISO timestamp such as 2024-05-31 12:00:00")


def day(text: str) -> date:
    try:
        return date.fromisoformat(text if re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII) else "")
    except ValueError:
        refuse(f"{text!r} is not an ISO date such as 2024-05-31")


def convert(term: Term, dtype: pl.DataType) -> Term:
    """Convert to a type that `common` has found; only large integers lose anything, their last bits in a double."""
    if term.dtype == dtype:
        return term
    if not term.is_literal:
        spark = f"CAST({term.spark} AS {spark_type(dtype)})"
        return replace(term, dtype=dtype, polars=term.polars.cast(dtype), spark=spark)
    value = term.value
    if isinstance(value, int) and not dtype.is_integer():
        value = float(value) if dtype == FLOAT64 else Decimal(value)
    elif isinstance(dtype, pl.Datetime) and isinstance(value, str):
        value = instant(value)
    elif isinstance(dtype, pl.Datetime) and isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time(), UTC)
    elif isinstance(dtype, pl.Date) and isinstance(value, str):
        value = day(value)
    return literal(value, dtype)


def common(terms: Sequence[Term], what: str, mixed: bool = False) -> pl.DataType:
    """The type in which values meet: NULL, literals of timestamps and of dates follow the others, numbers widen.

    Decimals meet doubles only where `mixed`: in a CASE the row would decide whether later arithmetic is exact.
    """
    typed = [t for t in terms if t.dtype != NULL]
    columns = [t.dtype for t in typed if not t.is_literal]
    if any(isinstance(dtype, pl.Datetime) for dtype in columns):
        typed = [t for t in typed if not isinstance(t.value, (str, date))]
    elif any(isinstance(dtype, pl.Date) for dtype in columns):  # whose literals have no time of day
        typed = [t for t in typed if not isinstance(t.value, (str, date)) or isinstance(t.value, datetime)]
    types = {t.dtype for t in typed}
    if len(types) < 2:
        return types.pop() if types else NULL
    if all(t.is_integer() for t in types):
        return INT64
    if all(t.is_numeric() for t in types):
        if not any(t.is_float() for t in types):
            decimals = [digits(t) for t in typed]
            return decimal(max(d.precision - d.scale for d in decimals), max(d.scale for d in decimals))
        if mixed or not any(t.is_decimal() for t in types):
            return FLOAT64
    refuse(f"{what} cannot mix {' and '.join(sorted(map(str, types)))}; CAST one of them")


def need(dtype: pl.DataType, term: Term, what: str) -> Term:
    if term.dtype not in (dtype, NULL) and not (dtype == FLOAT64 and term.dtype.is_numeric()):
        refuse(f"{what} needs {'numbers' if dtype == FLOAT64 else dtype}, not {term.dtype} {term.spark}")
    return convert(term, dtype)


def digits(term: Term) -> pl.Decimal:
    """The decimal type that holds a decimal or integer term."""
    if isinstance(term.dtype, pl.Decimal):
        return term.dtype
    return pl.Decimal(len(str(abs(term.value))) if isinstance(term.value, int) else 20, 0)


def decimal(whole: int, scale: int) -> pl.Decimal:
    """Where 38 digits do not suffice Spark keeps a scale of up to 6 and rounds longer ones: those are refused."""
    if whole + scale > 38 and scale > 6:
        refuse("the decimal result needs more than 38 digits; CAST to DOUBLE")
    return pl.Decimal(min(38, whole + scale), scale)
