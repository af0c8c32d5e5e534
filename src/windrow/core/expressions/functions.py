"""What each node of the syntax tree of an expression is in Polars and in Spark, side by side."""

from __future__ import annotations

import inspect
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial

import polars as pl
from sqlglot import exp

from windrow.core.expressions.patterns import regular_expression
from windrow.core.expressions.terms import (
    BOOLEAN,
    FLOAT64,
    INT64,
    NULL,
    STRING,
    Arithmetic,
    Overflow,
    Term,
    any_overflow,
    common,
    convert,
    decimal,
    digits,
    literal,
    need,
    operand,
    refuse,
    step,
    whole,
)
from windrow.core.expressions.types import spark_type

_Rule = Callable[..., Term]


def _function(name: str, needs: pl.DataType, gives: pl.DataType, polars: Callable[..., pl.Expr]) -> _Rule:
    def rule(*terms: Term) -> Term:
        terms = tuple(need(needs, t, name) for t in terms)
        return Term(gives, polars(*(t.polars for t in terms)), f"{name}({', '.join(t.spark for t in terms)})")

    return rule


_real, _text = partial(_function, needs=FLOAT64), partial(_function, needs=STRING)


def _connect(name: str, *terms: Term) -> Term:
    terms = tuple(need(BOOLEAN, t, name) for t in terms)
    horizontal = pl.all_horizontal if name == "AND" else pl.any_horizontal
    expr = horizontal([t.polars for t in terms])  # unlike nested & and |, linear in a long chain
    overflow = _in_turn(terms, _all_may_hold if name == "AND" else _none_holds)
    return Term(BOOLEAN, expr, f"({f' {name} '.join(t.spark for t in terms)})", overflow=overflow)


_Goes = Callable[[Sequence[Term]], tuple[pl.Expr, str]]  # whether what follows on some terms is computed; never null


def _in_turn(terms: Sequence[Term], goes_on: _Goes) -> Overflow | None:
    """The overflow of terms of which each is computed as far as those before it let it; by halves, as `_chosen`."""
    if not any(t.overflow for t in terms):
        return None
    if len(terms) == 1:
        return terms[0].overflow
    first, rest = terms[: len(terms) // 2], terms[len(terms) // 2 :]
    later = _in_turn(rest, goes_on)
    if later is not None:
        expr, text = goes_on(first)
        later = replace(later, does=expr & later.does, spark=f"({text} AND {later.spark})")
    return any_overflow(_in_turn(first, goes_on), later)


def _all_may_hold(terms: Sequence[Term]) -> tuple[pl.Expr, str]:
    expr = pl.all_horizontal([t.polars.fill_null(True) for t in terms])
    return expr, f"({' AND '.join(f'COALESCE({t.spark}, TRUE)' for t in terms)})"


def _none_holds(terms: Sequence[Term]) -> tuple[pl.Expr, str]:
    expr = pl.any_horizontal([t.polars.fill_null(False) for t in terms])
    return ~expr, f"(NOT ({' OR '.join(f'COALESCE({t.spark}, FALSE)' for t in terms)}))"


def _all_null(terms: Sequence[Term]) -> tuple[pl.Expr, str]:
    expr = pl.all_horizontal([t.polars.is_null() for t in terms])
    return expr, f"({' AND '.join(f'{t.spark} IS NULL' for t in terms)})"


def negate(term: Term) -> Term:
    term = need(BOOLEAN, term, "NOT")
    return Term(BOOLEAN, ~term.polars, f"(NOT {term.spark})", overflow=term.overflow)


_SIGNS: dict[str, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "<=>": lambda a, b: (a == b).fill_null(a.is_null() & b.is_null()),  # eq_missing miscounts rows
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def compare(sign: str, left: Term, right: Term) -> Term:
    dtype = common((left, right), sign, mixed=True)
    if not (dtype.is_numeric() or isinstance(dtype, (pl.String, pl.Boolean, pl.Datetime, pl.Date, pl.Null))):
        refuse(f"{sign} cannot compare {dtype}")
    if dtype.is_integer():  # both engines widen integers themselves, and Polars fits the literal to the column
        sides = [pl.lit(t.value) if t.is_literal else t.polars for t in (left, right)]
    else:
        left, right = (convert(t, BOOLEAN if dtype == NULL else dtype) for t in (left, right))
        sides = [left.polars, right.polars]
    expr = _SIGNS[sign](*sides)
    if not sides[0].meta.root_names():  # Polars 2.1 takes the length of the left side, and a constant has one row
        expr = _SIGNS[_MIRRORED.get(sign, sign)](*reversed(sides))
    return Term(
        BOOLEAN, expr, f"({left.spark} {sign} {right.spark})", overflow=any_overflow(left.overflow, right.overflow)
    )


def _is(term: Term, what: Term) -> Term:
    if what.dtype == NULL and what.is_literal:
        return Term(BOOLEAN, term.polars.is_null(), f"({term.spark} IS NULL)")
    return compare("<=>", need(BOOLEAN, term, "IS TRUE"), need(BOOLEAN, what, "IS"))


def _nvl2(term: Term, then: Term, other: Term) -> Term:
    is_there = replace(negate(_is(term, literal(None))), overflow=term.overflow)
    return choose("NVL2", [(is_there, then)], other)


def _in(term: Term, *items: Term) -> Term:
    if not items or not all(item.is_literal for item in items):
        refuse("IN takes a list of literals")
    dtype = common([term, *items], "IN", mixed=True)
    term, *listed = (convert(t, BOOLEAN if dtype == NULL else dtype) for t in (term, *items))
    values = [t.value for t in listed if t.value is not None]
    if values and (dtype.is_integer() or dtype.is_float() or dtype == STRING):
        is_in = term.polars.is_in(values)
    else:
        is_in = pl.any_horizontal([term.polars == t.polars for t in listed])
    if len(values) < len(listed):  # SQL: not found among unknowns is unknown
        is_in = pl.when(is_in).then(True)
    return Term(BOOLEAN, is_in, f"({term.spark} IN ({', '.join(t.spark for t in listed)}))")


def choose(what: str, choices: Sequence[tuple[Term, Term]], default: Term) -> Term:
    dtype = common([*(value for _, value in choices), default], what)
    choices = [(need(BOOLEAN, condition, what), convert(value, dtype)) for condition, value in choices]
    last = convert(default, dtype)
    expr = _chosen([(condition.polars, value.polars) for condition, value in choices], last.polars)
    whens = "".join(f" WHEN {condition.spark} THEN {value.spark}" for condition, value in choices)
    return Term(dtype, expr, f"CASE{whens} ELSE {last.spark} END", overflow=_overflow_of_choice(choices, last))


def _overflow_of_choice(choices: Sequence[tuple[Term, Term]], default: Term) -> Overflow | None:
    """Where a condition that is looked at leaves 64 bits, or the value that is chosen."""
    values = [value for _, value in choices]
    conditions = _in_turn([condition for condition, _ in choices], _none_holds)
    if not any(value.overflow for value in (*values, default)):
        return conditions
    never = Overflow(pl.lit(False), pl.lit(False), "FALSE")
    *flags, last = (value.overflow or never for value in (*values, default))
    pairs = [(condition, flag) for (condition, _), flag in zip(choices, flags, strict=True)]
    expr = _chosen([(condition.polars, flag.does) for condition, flag in pairs], last.does)
    whens = "".join(f" WHEN {condition.spark} THEN {flag.spark}" for condition, flag in pairs)
    may = pl.any_horizontal([one.may for one in (*flags, last)])
    return any_overflow(conditions, Overflow(may, expr, f"CASE{whens} ELSE {last.spark} END"))


def _chosen(choices: Sequence[tuple[pl.Expr, pl.Expr]], otherwise: pl.Expr) -> pl.Expr:
    """The value of the first condition that holds; of many, found by halves, because Polars nests each in the next."""
    if len(choices) > 32:
        half = len(choices) // 2
        is_before = pl.any_horizontal([condition for condition, _ in choices[:half]])
        return pl.when(is_before).then(_chosen(choices[:half], otherwise)).otherwise(_chosen(choices[half:], otherwise))
    for condition, value in reversed(choices):
        otherwise = pl.when(condition).then(value).otherwise(otherwise)
    return otherwise


def _pick(name: str, *terms: Term) -> Term:
    """COALESCE, GREATEST or LEAST."""
    if len(terms) < 2:
        refuse(f"{name} takes two values or more")
    dtype = common(terms, name)
    values = [convert(t, dtype).polars for t in terms]
    if name == "COALESCE":
        expr = pl.coalesce(values)
    elif not (dtype.is_numeric() or isinstance(dtype, (pl.String, pl.Datetime, pl.Date))):
        refuse(f"{name} cannot compare {dtype}")
    elif name == "LEAST":  # Polars leaves NaN out of both; here it is the greatest number
        bare = [v.fill_nan(None) for v in values] if dtype.is_float() else values
        expr = pl.coalesce(pl.min_horizontal(bare), *values) if dtype.is_float() else pl.min_horizontal(bare)
    else:
        expr = pl.max_horizontal(values)
        if dtype.is_float():
            expr = pl.when(pl.any_horizontal([v.is_nan() for v in values])).then(math.nan).otherwise(expr)
    text = f"{name}({', '.join(convert(t, dtype).spark for t in terms)})"
    return Term(dtype, expr, text, overflow=_in_turn(terms, _all_null) if name == "COALESCE" else None)


def _number_type(what: str, *terms: Term) -> pl.DataType:
    for term in terms:
        need(FLOAT64, term, what)
    dtype = common(terms, what, mixed=True)
    return FLOAT64 if dtype.is_float() else dtype if dtype.is_decimal() else INT64


def _arithmetic(sign: str, left: Term, right: Term) -> Term:
    dtype = _number_type(sign, left, right)
    steps = overflow = None
    if dtype == INT64:
        steps = _step(sign, left, right)
    else:  # what follows is no arithmetic of integers any more
        left, right = whole(left), whole(right)
        overflow = any_overflow(left.overflow, right.overflow)
    if isinstance(dtype, pl.Decimal):
        left, right = (convert(t, dtype if t.dtype == NULL else digits(t)) for t in (left, right))
        a, b = digits(left), digits(right)
        if sign == "*":  # Polars keeps the larger scale of the two, so the first one gets that of the product
            dtype = decimal(a.precision + b.precision + 1 - a.scale - b.scale, a.scale + b.scale)
            left = replace(left, polars=left.polars.cast(pl.Decimal(38, dtype.scale)))
        else:
            dtype = decimal(max(a.precision - a.scale, b.precision - b.scale) + 1, max(a.scale, b.scale))
    else:
        left, right = convert(left, dtype), convert(right, dtype)
    expr = _SIGNS[sign](left.polars, right.polars)
    return Term(dtype, expr, f"({left.spark} {sign} {right.spark})", arithmetic=steps, overflow=overflow)


def _step(sign: str, left: Term, right: Term) -> Arithmetic:
    """Addition, subtraction or multiplication of integers; by absolute values the first two bound alike."""
    a, b = operand(left), operand(right)
    bounded = operator.mul if sign == "*" else operator.add
    spark = f"{_TRIED[sign]}({a.spark}, {b.spark})"
    return step(
        _SIGNS[sign](a.checked, b.checked), spark, bounded(a.bound, b.bound), bounded(a.extreme, b.extreme), a, b
    )


_TRIED = {"+": "TRY_ADD", "-": "TRY_SUBTRACT", "*": "TRY_MULTIPLY"}
_LEAST = "CAST('-9223372036854775808' AS BIGINT)"


def _divide(left: Term, right: Term) -> Term:
    left, right = need(FLOAT64, left, "/"), need(FLOAT64, right, "/")
    quotient = left.polars / right.polars
    if right.value:  # only what can be zero is guarded
        return Term(FLOAT64, quotient, f"({left.spark} / {right.spark})")
    return Term(FLOAT64, pl.when(right.polars != 0).then(quotient), f"({left.spark} / NULLIF({right.spark}, 0.0D))")


def _remainder(left: Term, right: Term) -> Term:
    if _number_type("%", left, right) != INT64:
        refuse("% is for integers, because Polars' remainder of doubles is not exact; CAST to BIGINT")
    left, right = convert(left, INT64), convert(right, INT64)
    rest = left.polars % right.polars  # has the divisor's sign, and is null for a divisor of zero
    expr = pl.when((rest != 0) & ((rest < 0) != (left.polars < 0))).then(rest - right.polars).otherwise(rest)
    return Term(INT64, expr, f"({left.spark} % {right.spark if right.value else f'NULLIF({right.spark}, 0L)'})")


def _signed(name: str, term: Term) -> Term:
    dtype, steps = _number_type(name, term), None
    if dtype == INT64:
        x = operand(term)
        result, spark = pl.lit(0, pl.Int128) - x.checked, f"TRY_SUBTRACT(0L, {x.spark})"
        if name == "ABS":
            result, spark = x.checked.abs(), f"ABS(NULLIF({x.spark}, {_LEAST}))"
        steps = step(result, spark, x.bound, x.extreme, x)
    term = convert(term, dtype)
    if isinstance(term.dtype, pl.Decimal) and term.dtype.precision > 34:  # Spark rounds a minus to 34 digits
        minus = f"CAST((0BD - {term.spark}) AS {spark_type(term.dtype)})"
        if name == "ABS":
            return Term(term.dtype, term.polars.abs(), f"GREATEST({term.spark}, {minus})")
        return Term(term.dtype, -term.polars, minus)
    if name == "ABS":
        return Term(term.dtype, term.polars.abs(), f"ABS({term.spark})", arithmetic=steps)
    if isinstance(term.value, (int, float)):
        return literal(-term.value)
    return Term(term.dtype, -term.polars, f"(- {term.spark})", arithmetic=steps)


def _log(base: Term, term: Term) -> Term:
    base, term = need(FLOAT64, base, "LOG"), need(FLOAT64, term, "LOG")
    if not isinstance(base.value, float) or base.value <= 0 or base.value == 1:
        refuse("LOG takes a literal base, positive and not 1")
    unit = math.log(base.value)
    return Term(FLOAT64, pl.when(term.polars > 0).then(term.polars.log() / unit), f"(LN({term.spark}) / ({unit!r}D))")


def _power(base: Term, exponent: Term) -> Term:
    base, exponent = need(FLOAT64, base, "POWER"), need(FLOAT64, exponent, "POWER")
    x, y = base.polars, exponent.polars
    expr = x.pow(y)
    if exponent.value == 0.5:  # Polars takes the square root, which differs in one point
        expr = pl.when(x == -math.inf).then(math.inf).otherwise(expr)
    elif not exponent.is_literal and base.value in (None, 1.0, -1.0):  # Polars says 1, as C, and Java NaN
        expr = pl.when((x.abs() == 1) & ~y.is_finite()).then(math.nan).otherwise(expr)
    return Term(FLOAT64, expr, f"POWER({base.spark}, {exponent.spark})")


def _round(name: str, term: Term) -> Term:
    if term.dtype.is_integer():
        return convert(term, INT64)
    term = need(FLOAT64, term, name)
    x, edge = term.spark, 2.0**63
    expr = (term.polars.ceil() if name == "CEIL" else term.polars.floor()).cast(INT64, strict=False)
    return Term(INT64, expr, f"CASE WHEN {x} >= {-edge}D AND {x} < {edge}D THEN {name}({x}) END")


def _rounded(term: Term, digits: Term | None = None) -> Term:
    """ROUND half away from zero, of a double as it is written: 1.005 is half a hundredth, although its bits are less.

    A half is written as (k + 0.5) / 10^n, and of all doubles that division gives the nearest one to it, which is x
    if x is written so: a double holds all of 15 digits. From 10^14 / 10^n on x stays as it is: its digits end there.
    """
    n = digits.value if digits else 0
    if not isinstance(n, int) or not 0 <= n <= 15:
        refuse("ROUND takes an integer literal from 0 to 15 as the number of digits")
    dtype = _number_type("ROUND", term)
    if dtype == INT64:
        return convert(term, INT64)
    if isinstance(dtype, pl.Decimal):
        if n >= dtype.scale:
            return term
        x, text = term.polars, term.spark
        if dtype.precision == 38:  # null where a half would be rounded to a 39th digit
            most = 10 ** (38 - dtype.scale) - 1
            x, text = (
                pl.when(x.abs() <= pl.lit(Decimal(most))).then(x),
                f"CASE WHEN ABS({text}) <= {most}BD THEN {text} END",
            )
        dtype = decimal(dtype.precision - dtype.scale + 1, n)
        expr = x.round(n, mode="half_away_from_zero").cast(dtype)
        return Term(dtype, expr, f"CAST(ROUND({text}, {n}) AS {spark_type(dtype)})")
    term, factor = need(FLOAT64, term, "ROUND"), 10.0**n
    x, size = term.polars, term.polars.abs() * factor
    below, unit = size.floor(), x * 0.0 + factor  # by a constant Polars does not divide: it multiplies by its inverse
    whole = below + (x.abs() >= (below + 0.5) / unit).cast(FLOAT64)
    expr = pl.when(size < 1e14).then(x.sign() * whole / unit).otherwise(x)
    text = f"CASE WHEN ABS({term.spark}) * {factor!r}D < {1e14}D THEN ROUND({term.spark}, {n}) ELSE {term.spark} END"
    return Term(FLOAT64, expr, text)


def _trim(term: Term, side: Term | None = None) -> Term:
    term, name = (
        need(STRING, term, "TRIM"),
        {"LEADING": "LTRIM", "TRAILING": "RTRIM"}.get(str(side and side.value), "TRIM"),
    )
    strip = {"LTRIM": term.polars.str.strip_chars_start, "RTRIM": term.polars.str.strip_chars_end}
    return Term(STRING, strip.get(name, term.polars.str.strip_chars)(" "), f"{name}({term.spark})")


def _replace(term: Term, part: Term, by: Term) -> Term:
    term, part, by = (need(STRING, one, "REPLACE") for one in (term, part, by))
    if not part.is_literal or not part.value or not by.is_literal or by.value is None:
        refuse("REPLACE takes two literals, of which the first is not empty")
    expr = term.polars.str.replace_all(str(part.value), by.polars, literal=True)
    return Term(STRING, expr, f"REPLACE({term.spark}, {part.spark}, {by.spark})")


def _end(name: str, term: Term, count: Term) -> Term:
    """LEFT or RIGHT."""
    term = need(STRING, term, name)
    if not isinstance(count.value, int) or count.value < 0:
        refuse(f"{name} takes an integer literal of zero or more")
    expr = term.polars.str.head(count.value) if name == "LEFT" else term.polars.str.tail(count.value)
    return Term(STRING, expr, f"{name}({term.spark}, {count.value})")


def _rlike(term: Term, pattern: Term) -> Term:
    term, text = need(STRING, term, "RLIKE"), pattern.value
    if not isinstance(text, str):
        refuse("RLIKE takes a literal pattern")
    portable = literal(regular_expression(text))
    expr = term.polars.str.contains(str(portable.value))
    try:
        pl.select(pl.lit("").str.contains(str(portable.value)))
    except pl.exceptions.ComputeError:
        refuse(f"RLIKE: {text!r} is not a regular expression, or one too large")
    return Term(BOOLEAN, expr, f"({term.spark} RLIKE {portable.spark})")


def _arctan2(y: pl.Expr, x: pl.Expr) -> pl.Expr:
    """As Spark has it, for which zero has no sign."""
    return pl.arctan2(*(pl.when(value == 0).then(0.0).otherwise(value) for value in (y, x)))


def _substring(term: Term, start: Term, length: Term | None = None) -> Term:
    term, first, count = need(STRING, term, "SUBSTRING"), start.value, length.value if length else None
    if not isinstance(first, int) or (length and not isinstance(count, int)) or (isinstance(count, int) and count < 0):
        refuse("SUBSTRING takes an integer literal as start, and one of zero or more as length")
    expr = term.polars.str.slice(first - 1 if first > 0 else first, count if isinstance(count, int) else None)
    return Term(STRING, expr, f"SUBSTRING({term.spark}, {first}{f', {count}' if length else ''})")


def _like(term: Term, pattern: Term) -> Term:
    term, text = need(STRING, term, "LIKE"), pattern.value
    if not isinstance(text, str) or "\\" in re.sub(r"\\[%_\\]", "", text):
        refuse("LIKE takes a literal pattern, in which \\ stands only before % _ or \\")
    if simple := re.fullmatch(r"([^%_\\]*)%", text):  # the common case needs no regular expression
        expr = term.polars.str.starts_with(simple[1])
    else:
        marks = [{"%": ".*", "_": "."}.get(t) or re.escape(t[-1]) for t in re.findall(r"(?s)\\.|.", text)]
        expr = term.polars.str.contains(f"(?s)^{''.join(marks)}$")
    return Term(BOOLEAN, expr, f"({term.spark} LIKE {pattern.spark})")


_DAY = "86400000000L"


def _clock(name: str, from_micros: str, polars: Callable[[pl.Expr], pl.Expr], term: Term) -> Term:
    """HOUR, MINUTE or SECOND; Spark's own functions would use the session's time zone."""
    if not isinstance(term.dtype, pl.Datetime):
        refuse(f"{name} needs a timestamp, not {term.dtype} {term.spark}")
    if not term.dtype.time_zone:
        return Term(INT64, polars(term.polars).cast(INT64), f"CAST({name}({term.spark}) AS BIGINT)")
    expr = polars(term.polars.dt.convert_time_zone("UTC")).cast(INT64)
    return Term(INT64, expr, from_micros.format(f"UNIX_MICROS({term.spark})"))


def _day(what: str, term: Term) -> Term:
    """The day of a timestamp in UTC, or a date itself."""
    if isinstance(term.dtype, pl.Date):
        return term
    if not isinstance(term.dtype, pl.Datetime):
        refuse(f"{what} needs a timestamp or a date, not {term.dtype} {term.spark}")
    if not term.dtype.time_zone:
        return Term(pl.Date(), term.polars.dt.date(), f"CAST({term.spark} AS DATE)")
    micros = f"UNIX_MICROS({term.spark})"
    day = f"DATE_FROM_UNIX_DATE(CAST(({micros} - PMOD({micros}, {_DAY})) DIV {_DAY} AS INT))"
    return Term(pl.Date(), term.polars.dt.convert_time_zone("UTC").dt.date(), day)


def _calendar(name: str, polars: Callable[[pl.Expr], pl.Expr], term: Term) -> Term:
    """A part of the day of a timestamp, or of a date."""
    day = _day(name, term)
    return Term(INT64, polars(day.polars).cast(INT64), f"CAST({name}({day.spark}) AS BIGINT)")


_CLOCK_UNITS = {"SECOND": ("1s", 1_000_000), "MINUTE": ("1m", 60_000_000), "HOUR": ("1h", 3_600_000_000)}
_DAY_UNITS = {"DAY": "1d", "WEEK": "1w", "MONTH": "1mo", "QUARTER": "1q", "YEAR": "1y"}
_ALSO_UNITS = {"DD": "DAY", "MON": "MONTH", "MM": "MONTH", "YYYY": "YEAR", "YY": "YEAR"}


def _date_trunc(unit: Term, term: Term) -> Term:
    """The second, hour, day, … that a timestamp lies in, in UTC."""
    given = str(unit.value).upper()
    name, dtype = _ALSO_UNITS.get(given, given), term.dtype
    if name not in (*_CLOCK_UNITS, *_DAY_UNITS):
        refuse(f"DATE_TRUNC takes {', '.join((*_CLOCK_UNITS, *_DAY_UNITS))}, not {given}")
    if not isinstance(dtype, pl.Datetime):
        refuse(f"DATE_TRUNC needs a timestamp, not {dtype} {term.spark}")
    every = _DAY_UNITS[name] if name in _DAY_UNITS else _CLOCK_UNITS[name][0]
    utc = term.polars.dt.convert_time_zone("UTC") if dtype.time_zone else term.polars
    expr = utc.dt.truncate(every)
    if dtype.time_zone:
        expr = expr.dt.convert_time_zone(dtype.time_zone)
    return Term(dtype, expr, _truncated(name, term))


def _truncated(name: str, term: Term) -> str:
    """DATE_TRUNC for Spark, whose own one is in the session's time zone."""
    day, zoned = _day("DATE_TRUNC", term).spark, isinstance(term.dtype, pl.Datetime) and term.dtype.time_zone
    if name in _DAY_UNITS:
        begin = day if name == "DAY" else f"TRUNC({day}, '{name}')"
        return f"TIMESTAMP_MICROS(UNIX_DATE({begin}) * {_DAY})" if zoned else f"CAST({begin} AS TIMESTAMP_NTZ)"
    if zoned:
        micros = f"UNIX_MICROS({term.spark})"
        return f"TIMESTAMP_MICROS({micros} - PMOD({micros}, {_CLOCK_UNITS[name][1]}L))"
    parts = [f"{part}({term.spark})" for part in ("HOUR", "MINUTE", "SECOND")]
    shown = parts[: 3 - list(_CLOCK_UNITS).index(name)]
    return f"(CAST({day} AS TIMESTAMP_NTZ) + MAKE_DT_INTERVAL(0, {', '.join(shown)}))"


_PARTS: dict[str, _Rule] = {
    "SECOND": partial(_clock, "SECOND", "(PMOD({0}, 60000000L) DIV 1000000L)", lambda t: t.dt.second()),
    "MINUTE": partial(_clock, "MINUTE", "(PMOD({0}, 3600000000L) DIV 60000000L)", lambda t: t.dt.minute()),
    "HOUR": partial(_clock, "HOUR", "(PMOD({0}, 86400000000L) DIV 3600000000L)", lambda t: t.dt.hour()),
    "DAY": partial(_calendar, "DAY", lambda t: t.dt.day()),
    "DAYOFWEEK": partial(_calendar, "DAYOFWEEK", lambda t: t.dt.weekday() % 7 + 1),
    "DOY": partial(_calendar, "DAYOFYEAR", lambda t: t.dt.ordinal_day()),
    "WEEK": partial(_calendar, "WEEKOFYEAR", lambda t: t.dt.week()),
    "MONTH": partial(_calendar, "MONTH", lambda t: t.dt.month()),
    "QUARTER": partial(_calendar, "QUARTER", lambda t: t.dt.quarter()),
    "YEAR": partial(_calendar, "YEAR", lambda t: t.dt.year()),
}


def _extract(part: Term, term: Term) -> Term:
    name = str(part.value).upper()
    if name not in _PARTS:
        refuse(f"EXTRACT takes {', '.join(_PARTS)}, not {name}")
    return _PARTS[name](term)


def least(rule: _Rule) -> int:
    """How many operands a rule needs."""
    parameters = inspect.signature(rule).parameters.values()
    return sum(one.kind == one.POSITIONAL_OR_KEYWORD and one.default is one.empty for one in parameters)


CASTS = {
    "BIGINT": INT64,
    "INT": pl.Int32(),
    "DOUBLE": FLOAT64,
    "FLOAT": pl.Float32(),
    "TEXT": STRING,
    "BOOLEAN": BOOLEAN,
    "DATE": pl.Date(),
}
_NUMERALS = {True: r"^ *([+-]?[0-9]+) *\z", False: r"^ *([+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?) *\z"}


def cast(term: Term, target: pl.DataType) -> Term:
    source = term.dtype
    if source in (target, NULL) or (target == FLOAT64 and source.is_numeric()):
        return convert(term, target)
    if target == pl.Date() and isinstance(source, pl.Datetime):
        return _day("CAST", term)
    if target == pl.Float32() and source != BOOLEAN:  # by way of a double, so that all round alike
        term = cast(term, FLOAT64)
    elif source == STRING and target.is_numeric():
        numeral = _NUMERALS[target.is_integer()]
        numeral_text = f"REGEXP_EXTRACT({term.spark}, {literal(numeral).spark}, 1)"
        term = replace(term, polars=term.polars.str.extract(numeral), spark=numeral_text)
    elif source.is_numeric() and target == BOOLEAN:
        return compare("<>", term, literal(0))
    elif source.is_float() and target == INT64:  # Spark takes 2 to the 63rd for the largest integer
        term = convert(term, FLOAT64)
        term = replace(term, spark=f"NULLIF({term.spark}, {2.0**63}D)")
    elif target == pl.Date() or not (
        source == BOOLEAN or source.is_integer() or (source.is_numeric() and target.is_integer())
    ):
        refuse(f"CAST from {source} to {target} would not be the same everywhere")
    return Term(target, term.polars.cast(target, strict=False), f"TRY_CAST({term.spark} AS {spark_type(target)})")


_PAIR, _LIST = "this expression", "this expressions"
# How often a rule writes its operands down, at most, where one of them stands there more than once; the last number is
# that of all further ones. Of IN it is as often as there are values.
COPIES: dict[type[exp.Expr], tuple[int, ...]] = {
    **dict.fromkeys((exp.NullSafeEQ, exp.NullSafeNEQ, exp.Is, exp.Greatest, exp.Pow, exp.Atan2), (2,)),
    **dict.fromkeys((exp.Abs, exp.Ln, exp.Log, exp.Day, exp.DayOfMonth, exp.DayOfWeek, exp.DayOfYear), (2,)),
    **dict.fromkeys((exp.WeekOfYear, exp.Month, exp.Quarter, exp.Year), (2,)),
    **dict.fromkeys((exp.Extract, exp.Nvl2), (1, 2)),
    exp.TimestampTrunc: (1, 4),
    exp.Round: (16, 1),  # eight times, each within several signs
    **dict.fromkeys((exp.Ceil, exp.Floor), (3,)),
    **dict.fromkeys((exp.Between, exp.Nullif), (2, 1)),
    exp.Div: (1, 2),
    exp.Least: (4,),
    exp.Mod: (5,),
}
STEPS = (exp.Paren, exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Abs)  # rules that take arithmetic on
# Rules that do not compute all operands of each event, and so say themselves where these leave 64 bits, if anywhere.
LAZY = (exp.And, exp.Or, exp.If, exp.Nullif, exp.Nvl2, exp.Coalesce, exp.Case)
# Node class: the arguments that the rule understands, in its order, and the rule. What is not here is refused.
RULES: dict[type[exp.Expr], tuple[str, _Rule]] = {
    exp.Paren: ("this", lambda term: term),
    exp.And: (_PAIR, partial(_connect, "AND")),
    exp.Or: (_PAIR, partial(_connect, "OR")),
    exp.Not: ("this", negate),
    exp.EQ: (_PAIR, partial(compare, "=")),
    exp.NEQ: (_PAIR, partial(compare, "<>")),
    exp.LT: (_PAIR, partial(compare, "<")),
    exp.LTE: (_PAIR, partial(compare, "<=")),
    exp.GT: (_PAIR, partial(compare, ">")),
    exp.GTE: (_PAIR, partial(compare, ">=")),
    exp.NullSafeEQ: (_PAIR, partial(compare, "<=>")),
    exp.NullSafeNEQ: (_PAIR, lambda left, right: negate(compare("<=>", left, right))),
    exp.Is: (_PAIR, _is),
    exp.In: (_LIST, _in),
    exp.Between: (
        "this low high",
        lambda t, low, high: _connect("AND", compare(">=", t, low), compare("<=", t, high)),
    ),
    exp.If: ("this true false", lambda c, then, other=None: choose("IF", [(c, then)], other or literal(None))),
    exp.Nullif: (_PAIR, lambda a, b: choose("NULLIF", [(compare("=", a, b), literal(None))], a)),
    exp.Nvl2: ("this true false", _nvl2),
    exp.Coalesce: (_LIST, partial(_pick, "COALESCE")),
    exp.Greatest: (_LIST, partial(_pick, "GREATEST")),
    exp.Least: (_LIST, partial(_pick, "LEAST")),
    exp.Add: (_PAIR, partial(_arithmetic, "+")),
    exp.Sub: (_PAIR, partial(_arithmetic, "-")),
    exp.Mul: (_PAIR, partial(_arithmetic, "*")),
    exp.Div: (_PAIR, _divide),
    exp.Mod: (_PAIR, _remainder),
    exp.Neg: ("this", partial(_signed, "-")),
    exp.Abs: ("this", partial(_signed, "ABS")),
    exp.Ceil: ("this", partial(_round, "CEIL")),
    exp.Floor: ("this", partial(_round, "FLOOR")),
    exp.Round: ("this decimals", _rounded),
    exp.Sign: ("this", _real("SIGNUM", gives=FLOAT64, polars=pl.Expr.sign)),
    exp.Pi: ("", lambda: literal(math.pi)),
    exp.Sqrt: ("this", _real("SQRT", gives=FLOAT64, polars=pl.Expr.sqrt)),
    exp.Exp: ("this", _real("EXP", gives=FLOAT64, polars=pl.Expr.exp)),
    exp.Ln: ("this", _real("LN", gives=FLOAT64, polars=lambda x: pl.when(x > 0).then(x.log()))),
    exp.Log: (_PAIR, _log),
    exp.Pow: (_PAIR, _power),
    exp.Sin: ("this", _real("SIN", gives=FLOAT64, polars=pl.Expr.sin)),
    exp.Cos: ("this", _real("COS", gives=FLOAT64, polars=pl.Expr.cos)),
    exp.Tan: ("this", _real("TAN", gives=FLOAT64, polars=pl.Expr.tan)),
    exp.Asin: ("this", _real("ASIN", gives=FLOAT64, polars=pl.Expr.arcsin)),
    exp.Acos: ("this", _real("ACOS", gives=FLOAT64, polars=pl.Expr.arccos)),
    exp.Atan: ("this", _real("ATAN", gives=FLOAT64, polars=pl.Expr.arctan)),
    exp.Atan2: (_PAIR, _real("ATAN2", gives=FLOAT64, polars=_arctan2)),
    exp.Radians: ("this", _real("RADIANS", gives=FLOAT64, polars=pl.Expr.radians)),
    exp.Degrees: ("this", _real("DEGREES", gives=FLOAT64, polars=pl.Expr.degrees)),
    exp.IsNan: ("this", _real("ISNAN", gives=BOOLEAN, polars=lambda x: x.is_nan().fill_null(False))),
    exp.Lower: ("this", _text("LOWER", gives=STRING, polars=lambda s: s.str.to_lowercase())),
    exp.Upper: ("this", _text("UPPER", gives=STRING, polars=lambda s: s.str.to_uppercase())),
    exp.Trim: ("this position", _trim),
    exp.Replace: ("this expression replacement", _replace),
    exp.Left: (_PAIR, partial(_end, "LEFT")),
    exp.Right: (_PAIR, partial(_end, "RIGHT")),
    exp.Length: ("this", _text("LENGTH", gives=pl.Int32(), polars=lambda s: s.str.len_chars().cast(pl.Int32))),
    exp.Concat: ("expressions", _text("CONCAT", gives=STRING, polars=lambda *s: pl.concat_str(s))),
    exp.DPipe: (_PAIR, _text("CONCAT", gives=STRING, polars=lambda *s: pl.concat_str(s))),
    exp.StartsWith: (_PAIR, _text("STARTSWITH", gives=BOOLEAN, polars=lambda s, part: s.str.starts_with(part))),
    exp.EndsWith: (_PAIR, _text("ENDSWITH", gives=BOOLEAN, polars=lambda s, part: s.str.ends_with(part))),
    exp.Contains: (_PAIR, _text("CONTAINS", gives=BOOLEAN, polars=lambda s, part: s.str.contains(part, literal=True))),
    exp.Substring: ("this start length", _substring),
    exp.Like: (_PAIR, _like),
    exp.RegexpLike: (_PAIR, _rlike),
    exp.Second: ("this", _PARTS["SECOND"]),
    exp.Minute: ("this", _PARTS["MINUTE"]),
    exp.Hour: ("this", _PARTS["HOUR"]),
    exp.Day: ("this", _PARTS["DAY"]),
    exp.DayOfMonth: ("this", _PARTS["DAY"]),
    exp.DayOfWeek: ("this", _PARTS["DAYOFWEEK"]),
    exp.DayOfYear: ("this", _PARTS["DOY"]),
    exp.WeekOfYear: ("this", _PARTS["WEEK"]),
    exp.Month: ("this", _PARTS["MONTH"]),
    exp.Quarter: ("this", _PARTS["QUARTER"]),
    exp.Year: ("this", _PARTS["YEAR"]),
    exp.Extract: (_PAIR, _extract),
    exp.TimestampTrunc: ("unit this", _date_trunc),
}
