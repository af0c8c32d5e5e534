"""What an expression means for one row: the plainest reading of `windrow.core.expressions.parse`, and the oracle's own.

`evaluate(parse("speed * 3.6"), {"speed": 10.0})` walks the syntax tree with Python's numbers, strings and None. It
shares nothing with the Polars and Spark readings but that tree, and does not check types: text that those refuse may
give anything here. Python's values carry their type, so `coalesce(a_double, 0)` may give 0 where the others give 0.0.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Decimal, localcontext
from functools import cmp_to_key
from typing import Any

from sqlglot import exp

from windrow.core.expressions.parse import Expression

Row = Mapping[str, Any]


def evaluate(expression: Expression, row: Row) -> Any:
    """The value of the expression for a row; OverflowError where a whole number leaves int64."""
    with localcontext(prec=80):
        return _value(expression.node, row)


def _value(node: exp.Expr, row: Row) -> Any:
    if isinstance(node, exp.Paren):
        return _value(node.this, row)
    if isinstance(node, exp.Column):
        return row[node.name]
    if isinstance(node, exp.Null):
        return None
    if isinstance(node, exp.Boolean):
        return node.this
    if isinstance(node, exp.Var):
        return node.name.upper()
    if isinstance(node, exp.Literal):
        return node.name if node.is_string else int(node.name) if node.name.isdigit() else float(node.name)
    special = _SPECIAL.get(type(node))
    if special:
        value = special(node, row)
    else:
        # what is left is null as soon as one of its arguments is
        arguments = _arguments(node, row)
        value = None if None in arguments else _STRICT[type(node)](*arguments)
    return _not(value) if node.args.get("negate") else value


def _arguments(node: exp.Expr, row: Row) -> list[Any]:
    parts: list[exp.Expr] = []
    for name in ("unit", "this", "expression", "expressions", "start", "length", "decimals", "replacement"):
        part = node.args.get(name)
        parts += part if isinstance(part, list) else [part] if part is not None else []
    return [_value(part.this if isinstance(part, exp.TsOrDsToDate) else part, row) for part in parts]


# --- numbers ------------------------------------------------------------------------------------------------------


def _alike(a: Any, b: Any) -> tuple[Any, Any]:
    """Two values of one type: a double wins over all numbers, a decimal over integers, a timestamp over its text."""
    if isinstance(a, float) or isinstance(b, float):
        return float(a), float(b)
    if isinstance(a, Decimal) or isinstance(b, Decimal):
        return Decimal(a), Decimal(b)
    if isinstance(a, datetime) or isinstance(b, datetime):
        return _utc(a), _utc(b)
    if isinstance(a, date) or isinstance(b, date):
        return _day(a), _day(b)
    return a, b


def _day(given: date | str) -> date:
    return date.fromisoformat(given) if isinstance(given, str) else given


def _utc(moment: date | str) -> datetime:
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    if not isinstance(moment, datetime):
        moment = datetime.combine(moment, time())
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _fitting(value: Any) -> Any:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise OverflowError(f"{value} does not fit int64")
    return value


def _arithmetic(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: _fitting(function(*_alike(a, b)))


_STEPS = (exp.Paren, exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Abs)


def _operands(node: exp.Expr) -> list[exp.Expr]:
    """What is under steps of arithmetic one above another."""
    if not isinstance(node, _STEPS):
        return [node]
    return [leaf for part in (node.this, node.args.get("expression")) if part for leaf in _operands(part)]


def _steps(node: exp.Expr, row: Row) -> Any:
    """Arithmetic: where an operand is null the result is, and nothing is too large."""
    if None in [_value(part, row) for part in _operands(node)]:
        return None
    return _STRICT[type(node)](*_arguments(node, row))


def _divide(a: Any, b: Any) -> float | None:
    return None if b == 0 else float(a) / float(b)


def _remainder(a: int, b: int) -> int | None:
    if b == 0:
        return None
    rest = abs(a) % abs(b)
    return -rest if a < 0 else rest


def _real(function: Callable[[float], float]) -> Callable[[Any], float]:
    """A function of doubles; where Python raises, the others have NaN (no result) or infinity (too large)."""

    def call(x: Any) -> float:
        try:
            return function(float(x))
        except ValueError:
            return math.nan
        except OverflowError:
            return math.inf

    return call


def _ln(x: Any) -> float | None:
    return None if float(x) <= 0 else math.log(float(x))


def _log(base: Any, x: Any) -> float | None:
    logarithm = _ln(x)
    return None if logarithm is None else logarithm / math.log(base)


def _power(x: Any, y: Any) -> float:
    x, y = float(x), float(y)
    if abs(x) == 1 and not math.isfinite(y):
        return math.nan
    try:
        return math.pow(x, y)
    except ValueError:  # zero to a negative power, or a root of a negative number
        return math.nan if x else math.copysign(math.inf, x) if y % 2 == 1 else math.inf
    except OverflowError:
        return -math.inf if x < 0 and y % 2 == 1 else math.inf


def _integer(x: Any, function: Callable[[Any], int] = math.trunc, bits: int = 64) -> int | None:
    """A whole number, or null where it does not fit."""
    if isinstance(x, float) and not math.isfinite(x):
        return None
    whole = function(x)
    return whole if -(2 ** (bits - 1)) <= whole < 2 ** (bits - 1) else None


def _round(x: Any, n: int = 0) -> Any:
    """Half away from zero, of a double as Python writes it."""
    if isinstance(x, int):
        return x
    if isinstance(x, float) and not abs(x) * 10.0**n < 1e14:
        return x
    if isinstance(x, Decimal) and abs(x) > 10 ** (38 + int(x.as_tuple().exponent)) - 1:
        return None  # rounding could need a 39th digit
    rounded = Decimal(repr(x) if isinstance(x, float) else x).quantize(Decimal(1).scaleb(-n), ROUND_HALF_UP)
    return float(rounded) if isinstance(x, float) else rounded


# --- comparisons and logic ----------------------------------------------------------------------------------------


def _order(a: Any, b: Any) -> int:
    """-1, 0 or 1; NaN equals NaN and is greater than every number."""
    a, b = _alike(a, b)
    if a != a or b != b:
        return int(a != a) - int(b != b)
    return int(a > b) - int(a < b)


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _and(values: list[bool | None]) -> bool | None:
    return False if False in values else None if None in values else True


def _or(values: list[bool | None]) -> bool | None:
    return True if True in values else None if None in values else False


def _equal(a: Any, b: Any) -> bool | None:
    return None if a is None or b is None else _order(a, b) == 0


def _same(a: Any, b: Any) -> bool:
    return a is b if a is None or b is None else _order(a, b) == 0


def _at_most(a: Any, b: Any) -> bool | None:
    return None if a is None or b is None else _order(a, b) <= 0


def _between(node: exp.Expr, row: Row) -> bool | None:
    x, low = _value(node.this, row), _value(node.args["low"], row)
    is_above = _at_most(low, x)
    return False if is_above is False else _and([is_above, _at_most(x, _value(node.args["high"], row))])


def _in(node: exp.Expr, row: Row) -> bool | None:
    x, *items = _arguments(node, row)
    if any(isinstance(item, float) for item in items):  # one double makes the whole list doubles
        x, *items = (item if item is None else float(item) for item in (x, *items))
    return _or([_equal(x, item) for item in items])


def _case(node: exp.Expr, row: Row) -> Any:
    for branch in node.args["ifs"]:
        condition = _value(branch.this, row)
        if node.this:
            condition = _equal(_value(node.this, row), condition)
        if condition:
            return _value(branch.args["true"], row)
    default = node.args.get("default")
    return _value(default, row) if default else None


def _if(node: exp.Expr, row: Row) -> Any:
    chosen = node.args.get("true" if _value(node.this, row) else "false")
    return _value(chosen, row) if chosen else None


def _until(node: exp.Expr, row: Row, decides: bool, joined: Callable[[list[bool | None]], bool | None]) -> bool | None:
    """AND and OR: what stands behind a value that decides is not computed."""
    left = _value(node.this, row)
    return decides if left is decides else joined([left, _value(node.expression, row)])


def _coalesce(node: exp.Expr, row: Row) -> Any:
    for part in (node.this, *node.expressions):
        value = _value(part, row)
        if value is not None:
            return value
    return None


def _nullif(node: exp.Expr, row: Row) -> Any:
    a, b = _arguments(node, row)
    return None if _equal(a, b) else a


def _nvl2(node: exp.Expr, row: Row) -> Any:
    return _value(node.args["false" if _value(node.this, row) is None else "true"], row)


def _extreme(choose: Callable[..., Any]) -> Callable[[exp.Expr, Row], Any]:
    def call(node: exp.Expr, row: Row) -> Any:
        values = [value for value in _arguments(node, row) if value is not None]
        return choose(values, key=cmp_to_key(_order), default=None)

    return call


# --- strings, casts, timestamps -----------------------------------------------------------------------------------


def _substring(text: str, start: int, length: int | None = None) -> str:
    """Positions count from 1, negative ones from the end, where a start before the text uses up its length."""
    begin = start - 1 if start > 0 else 0 if start == 0 else len(text) + start
    end = len(text) if length is None else begin + length
    return text[max(begin, 0) : max(end, 0)]


def _like(text: str, pattern: str) -> bool:
    marks = {"%": ".*", "_": "."}
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    return bool(re.fullmatch("".join(marks.get(part) or re.escape(part[-1]) for part in parts), text, re.DOTALL))


def _rlike(text: str, pattern: str) -> bool:
    marks = {".": "[^\\n\\r\x85\u2028\u2029]", "$": r"\Z"}
    parts = re.findall(r"\\.|\[(?:\\.|[^\]])*\]|.", pattern, re.DOTALL)
    return bool(re.search("".join(marks.get(part, part) for part in parts), text, re.ASCII))


def _trim(node: exp.Expr, row: Row) -> Any:
    text = _value(node.this, row)
    strip = {"LEADING": str.lstrip, "TRAILING": str.rstrip}.get(str(node.args.get("position")), str.strip)
    return None if text is None else strip(text, " ")


def _cast(node: exp.Expr, row: Row) -> Any:
    x, target = _value(node.this, row), node.args["to"].this.name
    if x is None:
        return None
    if target.startswith("TIMESTAMP"):
        return _utc(x)
    if target == "DATE":
        return _utc(x).date() if isinstance(x, datetime) else _day(x)
    if target == "TEXT":
        return str(x).lower() if isinstance(x, bool) else str(x)
    if target == "BOOLEAN":
        return x != 0
    if isinstance(x, str):
        whole, fraction = r" *[+-]?[0-9]+ *", r" *[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)? *"
        if not re.fullmatch(whole if target in ("BIGINT", "INT") else fraction, x):
            return None
        x = int(x) if target in ("BIGINT", "INT") else float(x)
    if target in ("BIGINT", "INT"):
        return _integer(x, bits=64 if target == "BIGINT" else 32)
    if target == "DOUBLE":
        return float(x)
    try:
        return struct.unpack("f", struct.pack("f", float(x)))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


# --- parts of timestamps and dates, in UTC ----------------------------------------------------------------------------

_PARTS: dict[str, Callable[[Any], int]] = {
    "SECOND": lambda moment: _utc(moment).second,
    "MINUTE": lambda moment: _utc(moment).minute,
    "HOUR": lambda moment: _utc(moment).hour,
    "DAY": lambda moment: _utc(moment).day,
    "DAYOFWEEK": lambda moment: _utc(moment).isoweekday() % 7 + 1,
    "DOY": lambda moment: _utc(moment).timetuple().tm_yday,
    "WEEK": lambda moment: _utc(moment).isocalendar().week,
    "MONTH": lambda moment: _utc(moment).month,
    "QUARTER": lambda moment: (_utc(moment).month + 2) // 3,
    "YEAR": lambda moment: _utc(moment).year,
}


def _date_trunc(unit: str, moment: datetime) -> datetime:
    """What is smaller than the unit is as small as it can be; the zone is that of the timestamp, or none."""
    utc, zone = _utc(moment), moment.tzinfo
    unit = {"DD": "DAY", "MON": "MONTH", "MM": "MONTH", "YYYY": "YEAR", "YY": "YEAR"}.get(unit, unit)
    if unit == "WEEK":
        begun = datetime.combine(utc.date() - timedelta(utc.weekday()), time(), UTC)
    elif unit == "QUARTER":
        begun = datetime(utc.year, (utc.month - 1) // 3 * 3 + 1, 1, tzinfo=UTC)
    else:
        kept = ["YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND"].index(unit) + 1
        year, *others = utc.timetuple()[:kept]
        month, day, hour, minute, second = (*others, *[1, 1, 0, 0, 0][len(others) :])
        begun = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    return begun.astimezone(zone) if zone else begun.replace(tzinfo=None)


_SPECIAL: dict[type[exp.Expr], Callable[[exp.Expr, Row], Any]] = {
    **dict.fromkeys(_STEPS[1:], _steps),
    exp.And: lambda node, row: _until(node, row, False, _and),
    exp.Or: lambda node, row: _until(node, row, True, _or),
    exp.Is: lambda node, row: _same(*_arguments(node, row)),
    exp.NullSafeEQ: lambda node, row: _same(*_arguments(node, row)),
    exp.NullSafeNEQ: lambda node, row: not _same(*_arguments(node, row)),
    exp.In: _in,
    exp.Between: _between,
    exp.Case: _case,
    exp.If: _if,
    exp.Nullif: _nullif,
    exp.Nvl2: _nvl2,
    exp.Trim: _trim,
    exp.Coalesce: _coalesce,
    exp.Greatest: _extreme(max),
    exp.Least: _extreme(min),
    exp.IsNan: lambda node, row: _value(node.this, row) != _value(node.this, row),
    exp.Cast: _cast,
    exp.TryCast: _cast,
}

_REAL = ("sqrt", "exp", "sin", "cos", "tan", "asin", "acos", "atan", "radians", "degrees")  # named as in `math`
_STRICT: dict[type[exp.Expr], Callable[..., Any]] = {
    exp.Not: _not,
    exp.EQ: lambda a, b: _order(a, b) == 0,
    exp.NEQ: lambda a, b: _order(a, b) != 0,
    exp.LT: lambda a, b: _order(a, b) < 0,
    exp.LTE: lambda a, b: _order(a, b) <= 0,
    exp.GT: lambda a, b: _order(a, b) > 0,
    exp.GTE: lambda a, b: _order(a, b) >= 0,
    exp.Add: _arithmetic(lambda a, b: a + b),
    exp.Sub: _arithmetic(lambda a, b: a - b),
    exp.Mul: _arithmetic(lambda a, b: a * b),
    exp.Div: _divide,
    exp.Mod: _remainder,
    exp.Neg: lambda x: _fitting(-x),
    exp.Abs: lambda x: _fitting(abs(x)),
    exp.Ceil: lambda x: _integer(x, math.ceil),
    exp.Floor: lambda x: _integer(x, math.floor),
    exp.Round: _round,
    exp.Sign: lambda x: math.nan if x != x else float((x > 0) - (x < 0)),
    exp.Pi: lambda: math.pi,
    exp.Atan2: lambda y, x: math.atan2(y + 0.0, x + 0.0),
    **{getattr(exp, name.title()): _real(getattr(math, name)) for name in _REAL},
    exp.Ln: _ln,
    exp.Log: _log,
    exp.Pow: _power,
    exp.Lower: str.lower,
    exp.Upper: str.upper,
    exp.Length: len,
    exp.Concat: lambda *parts: "".join(parts),
    exp.DPipe: lambda a, b: a + b,
    exp.StartsWith: str.startswith,
    exp.EndsWith: str.endswith,
    exp.Contains: lambda text, part: part in text,
    exp.Substring: _substring,
    exp.Like: _like,
    exp.RegexpLike: _rlike,
    exp.Replace: str.replace,
    exp.Left: lambda text, count: text[:count],
    exp.Right: lambda text, count: text[max(0, len(text) - count) :],
    exp.Second: _PARTS["SECOND"],
    exp.Minute: _PARTS["MINUTE"],
    exp.Hour: _PARTS["HOUR"],
    exp.Day: _PARTS["DAY"],
    exp.DayOfMonth: _PARTS["DAY"],
    exp.DayOfWeek: _PARTS["DAYOFWEEK"],
    exp.DayOfYear: _PARTS["DOY"],
    exp.WeekOfYear: _PARTS["WEEK"],
    exp.Month: _PARTS["MONTH"],
    exp.Quarter: _PARTS["QUARTER"],
    exp.Year: _PARTS["YEAR"],
    exp.Extract: lambda part, moment: _PARTS[part](moment),
    exp.TimestampTrunc: _date_trunc,
}
