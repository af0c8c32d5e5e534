"""Expressions and predicates: SQL text with one meaning in Polars, in Spark and in plain Python.

`parse("speed * 3.6")` reads Spark SQL, refuses whatever is not known to mean the same everywhere, and returns an
`Expression`, which is equal and hashes by its canonical text. Given the types of the columns it becomes a Polars
expression or Spark SQL text; the two are built side by side, node by node, so that they can be compared by eye.
`windrow.testing.expressions` is the third reading: a plain evaluator of one row.

What an expression means (where engines differ by default, this is what they are made to do):
- A column alone is itself, of any type. Elsewhere integer columns count as int64 (a value beyond raises), Float32 as
  Float64, Categorical and Enum as strings. Numbers, strings and booleans are never converted silently.
- `3.6` and `1e3` are doubles, never decimals. A decimal column stays decimal under `+ - *` with decimals and integers
  (refused where Spark would drop digits) and becomes a double beside a double.
- `/` divides doubles; division and remainder by zero are null. `%` is for integers and has the dividend's sign.
- Logic has three values. NaN equals NaN and is greater than every number; -0.0 equals 0.0. `isnan(NULL)` is false.
- `greatest` and `least` skip nulls, `concat` and `||` do not. Strings compare by code point; `trim` takes spaces only.
- `sqrt` of a negative number is NaN, `ln` of zero or less is null; `log(b, x)`, and so `log10` and `log2`, is
  ln(x) / ln(b). `power` is Java's: 1 to the power of NaN or infinity is NaN. The last bit of exp, ln, power and the
  trigonometric functions is the machine's own.
- `ceil` and `floor` give BIGINT. They and CAST give null where the number does not fit or the text is not a number
  (digits with a sign, for DOUBLE also fraction and exponent, spaces around them). CAST cuts toward zero.
- A timestamp compares with a timestamp or an ISO literal, which is UTC unless it names a zone; `hour`, `minute` and
  `dayofweek` (Sunday is 1) are those of UTC. A Datetime with a zone is Spark's TIMESTAMP, without one TIMESTAMP_NTZ.

Limits: results of `+ - *`, minus and abs must fit int64 or 38 digits (beyond, Polars wraps; Spark and the evaluator
raise); column names match exactly, though Spark ignores case; `upper` and `lower` follow each engine's Unicode version.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache, partial, reduce
from typing import NoReturn

import polars as pl
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError

Schema = Mapping[str, pl.DataType]
_Rule = Callable[..., "_Term"]
INT64, FLOAT64, STRING, BOOLEAN, NULL = pl.Int64(), pl.Float64(), pl.String(), pl.Boolean(), pl.Null()


class ExpressionError(ValueError):
    """An expression that cannot be read, or cannot mean the same everywhere; names the text and the reason."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text, reason)
        self.text, self.reason = text, reason

    def __str__(self) -> str:
        return f"expression {self.text!r}: {self.reason}"


class _Refusal(Exception):
    """A reason, before it knows its text."""


def _refuse(reason: str) -> NoReturn:
    raise _Refusal(reason)


@contextmanager
def _naming(text: str) -> Iterator[None]:
    try:
        yield
    except _Refusal as refusal:
        raise ExpressionError(text, str(refusal)) from None
    except RecursionError:
        raise ExpressionError(text, "it is nested too deeply") from None


@dataclass(frozen=True)
class Expression:
    """A checked expression; make it with `parse`. Do not change `node`."""

    text: str
    columns: tuple[str, ...] = field(compare=False)
    node: exp.Expr = field(compare=False, repr=False)

    @property
    def is_column(self) -> bool:
        return isinstance(self.node, exp.Column)

    def polars(self, schema: Schema) -> pl.Expr:
        """The same meaning as a Polars expression, one value per row even for a constant."""
        term = self._bind(schema)
        if not self.columns:  # a literal alone would be one value, and sum(1) of a group 1
            return pl.repeat(term.polars, pl.len())
        # Polars computes decimals in 38 digits; Spark's narrower type is the declared one
        return term.polars.cast(term.dtype) if term.dtype.is_decimal() and not self.is_column else term.polars

    def spark(self, schema: Schema) -> str:
        """The same meaning as Spark SQL text."""
        return self._bind(schema).spark

    def dtype(self, schema: Schema) -> pl.DataType:
        """The type of the result; raises ExpressionError where the column types do not fit."""
        return self._bind(schema).dtype

    def _bind(self, schema: Schema) -> _Term:
        with _naming(self.text):
            term = _column(self.node.name, schema) if self.is_column else _bind(self.node, schema)
            if term.dtype == NULL and not self.is_column:
                _refuse("it is always NULL and has no type; CAST the NULL")
            return term

    def __reduce__(self) -> tuple[Callable[[str], Expression], tuple[str]]:
        return parse, (self.text,)


# --- reading ------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def parse(text: str) -> Expression:
    """Read and check one expression. Needs no schema; types are checked by `dtype`, `polars` and `spark`."""
    with _naming(text):
        node = _read(text)
        for part in node.walk():
            _check(part)
        columns = dict.fromkeys(column.name for column in node.find_all(exp.Column, bfs=False))
        return Expression(node.sql(dialect="spark", comments=False), tuple(columns), node)


def _read(text: str) -> exp.Expr:
    dialect = Spark()
    try:
        # as a condition, not as a statement: `load > 0.8` is a comparison, not LOAD DATA
        nodes = dialect.parser().parse_into(exp.Condition, dialect.tokenize(text), text)
    except SqlglotError as error:
        if re.match(r"\s*(SELECT|WITH)\b", text, re.IGNORECASE):
            _refuse("it is a query; write an expression over columns, such as speed * 3.6")
        detail = (getattr(error, "errors", None) or [{}])[0]
        where = f" at {detail['highlight']!r}, column {detail['col']}" if detail.get("highlight") else ""
        _refuse(f"it is not a complete SQL expression{where}")
    if len(nodes) > 1:
        _refuse("it holds several statements")
    return nodes[0].unnest() if nodes[0] is not None else _refuse("it is empty")


def _check(node: exp.Expr) -> None:
    """Refuse what has no rule, or uses more of its node than the rule knows; write one meaning in one way."""
    if isinstance(node.parent, exp.DataType) or isinstance(node, (exp.Identifier, exp.DataType)):
        return
    if isinstance(node, exp.TsOrDsToDate) and isinstance(node.parent, exp.DayOfWeek):
        return  # sqlglot's own addition
    if type(node) not in _FORMS:
        _refuse(_reason(node))
    if isinstance(node, exp.Concat) and "safe" not in node.args:
        _refuse("two strings stand side by side; write \\' for a quote inside a string, || to join")
    # `safe` only tells TRY_CAST from CAST, which are the same here; the other three are set by the dialect
    known = {*_FORMS[type(node)].split(), "negate", "safe", "typed", "coalesce", "ignore_nulls"}
    if any(value and name not in known for name, value in node.args.items()):
        _refuse("subqueries are not allowed" if node.find(exp.Query) else f"{node.sql('spark')} is not supported")
    if isinstance(node, exp.Is) and not isinstance(node.expression, (exp.Null, exp.Boolean)):
        _refuse(f"{node.sql('spark')} is not supported")
    if isinstance(node, (exp.Cast, exp.TryCast)):
        node.set("safe", None)
        if node.args["to"].this.name not in _CASTS and not (_is_moment(node) and node.this.is_string):
            _refuse(f"there is no CAST to {node.args['to'].sql('spark')}, only to {', '.join(_CASTS)}")
    if isinstance(node, exp.Column):
        if node.name == "*" or re.fullmatch(r"\^.*\$", node.name, re.DOTALL):
            _refuse(f"Polars reads the column name {node.name!r} as a pattern; rename the column")
        node.this.set("quoted", not _is_plain(node.name))
    elif isinstance(node, exp.Literal) and not node.is_string:
        number = _number(node.name)
        if number == math.inf or (isinstance(number, int) and number >= 2**63):
            _refuse(f"the number {node.name} is out of range")
        node.set("this", repr(number))


def _is_moment(node: exp.Expr) -> bool:
    """TIMESTAMP '…', which sqlglot reads as a cast."""
    return node.args["to"].this.name in ("TIMESTAMPTZ", "TIMESTAMP")


def _reason(node: exp.Expr) -> str:
    if isinstance(node, exp.Window):
        return "window functions are not allowed"
    if isinstance(node, exp.AggFunc):
        return f"{node.sql_name()} is an aggregate function; an expression sees one event"
    if isinstance(node, (exp.Query, exp.SubqueryPredicate)):
        return "subqueries are not allowed"
    if isinstance(node, exp.Func):
        name = node.name if isinstance(node, exp.Anonymous) else node.sql_name()
        near = difflib.get_close_matches(name.upper(), FUNCTIONS, cutoff=0.5)
        return f"there is no function {name}" + (f"; did you mean {' or '.join(near)}?" if near else "")
    return f"{node.sql('spark')} is not supported"


@lru_cache(maxsize=4096)
def _is_plain(name: str) -> bool:
    """Whether a name reads as a column without backticks: `interval` does not, before a minus."""
    probe = f"{name} - 1 = {name}"
    try:
        node = _read(probe)
    except _Refusal:
        return False
    names = [column.name for column in node.find_all(exp.Column)]
    return bool(re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII)) and names == [name, name] and node.sql("spark") == probe


def _number(text: str) -> int | float:
    return int(text) if text.isdigit() else float(text)


# --- terms: one node in Polars and in Spark, side by side ---------------------------------------------------------


@dataclass(frozen=True)
class _Term:
    dtype: pl.DataType
    polars: pl.Expr
    spark: str
    is_literal: bool = False
    value: object = None  # of a literal


def _bind(node: exp.Expr, schema: Schema) -> _Term:
    if isinstance(node, exp.Column):
        term = _column(node.name, schema)
        if isinstance(term.dtype, (pl.Categorical, pl.Enum)):
            return replace(term, dtype=STRING, polars=term.polars.cast(STRING))
        beyond = term.dtype in (pl.UInt64, pl.UInt128, pl.Int128)  # Spark has no such integers
        return replace(term, dtype=INT64, polars=term.polars.cast(INT64)) if beyond else term
    if isinstance(node, (exp.Literal, exp.Boolean, exp.Null)):
        return _literal(_number(node.name) if node.is_number else node.args.get("this"))
    if isinstance(node, (exp.Cast, exp.TryCast)):
        if _is_moment(node):
            return _literal(_moment(node.this.name), pl.Datetime("us", "UTC"))
        return _cast(_bind(node.this, schema), _CASTS[node.args["to"].this.name])
    if isinstance(node, exp.Case):
        subject = _bind(node.this, schema) if node.this else None
        ifs = [(_bind(part.this, schema), _bind(part.args["true"], schema)) for part in node.args["ifs"]]
        choices = [(_compare("=", subject, when) if subject else when, then) for when, then in ifs]
        default = node.args.get("default")
        return _choose("CASE", choices, _bind(default, schema) if default else _literal(None))
    if isinstance(node, exp.Connector):  # a long chain is one level deep
        parts = list(node.flatten())
    else:
        values = [node.args[name] for name in _FORMS[type(node)].split() if node.args.get(name)]
        parts = [part for value in values for part in (value if isinstance(value, list) else [value])]
    parts = [part.this if isinstance(part, exp.TsOrDsToDate) else part for part in parts]
    term = _RULES[type(node)][1](*(_bind(part, schema) for part in parts))
    return _not(term) if node.args.get("negate") else term


def _column(name: str, schema: Schema) -> _Term:
    if name not in schema:
        near = difflib.get_close_matches(name, schema) or list(schema)[:8]
        _refuse(f"there is no column {name!r}; there are {', '.join(near)}")
    quoted = name.replace("`", "``")
    return _Term(schema[name], pl.col(name), f"`{quoted}`")


def _spark_type(dtype: pl.DataType) -> str:
    if isinstance(dtype, pl.Decimal):
        return f"DECIMAL({dtype.precision}, {dtype.scale})"
    if isinstance(dtype, pl.Datetime):
        return "TIMESTAMP" if dtype.time_zone else "TIMESTAMP_NTZ"
    names = {"Int32": "INT", "Int64": "BIGINT", "Float32": "FLOAT", "Float64": "DOUBLE"}
    return names.get(str(dtype), str(dtype).upper())


def _literal(value: object, dtype: pl.DataType | None = None) -> _Term:
    dtype = dtype or {str: STRING, bool: BOOLEAN, int: INT64, float: FLOAT64}.get(type(value), NULL)
    polars = pl.lit(value, dtype=dtype) if not isinstance(value, datetime) else pl.lit(value.replace(tzinfo=None))
    if value is None:
        spark = "NULL" if dtype == NULL else f"CAST(NULL AS {_spark_type(dtype)})"
    elif isinstance(value, bool):
        spark = str(value).upper()
    elif isinstance(value, (int, float)):
        spark = f"{value!r}{'L' if isinstance(value, int) else 'D'}"
        spark = f"({spark})" if value < 0 else spark
    elif isinstance(value, str):
        spark = "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    elif isinstance(value, datetime) and isinstance(dtype, pl.Datetime):
        if dtype.time_unit == "ms" and value.microsecond % 1000:
            _refuse(f"{value} is finer than the column's milliseconds")
        polars = polars.dt.cast_time_unit(dtype.time_unit)
        if dtype.time_zone:
            polars = polars.dt.replace_time_zone("UTC").dt.convert_time_zone(dtype.time_zone)
        # with a Z it does not depend on the session's time zone
        spark = f"{_spark_type(dtype)} '{value.replace(tzinfo=None).isoformat()}{'Z' if dtype.time_zone else ''}'"
    else:
        spark = f"CAST({value} AS {_spark_type(dtype)})"
    return _Term(dtype, polars, spark, True, value)


def _moment(text: str) -> datetime:
    iso = r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?)?"
    try:
        moment = datetime.fromisoformat(text if re.fullmatch(iso, text, re.ASCII) else "")
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        _refuse(f"{text!r} is not an ISO timestamp such as 2024-05-31 12:00:00")


def _to(term: _Term, dtype: pl.DataType) -> _Term:
    """Convert to a type that `_common` has found; only large integers lose anything, their last bits in a double."""
    if term.dtype == dtype:
        return term
    if not term.is_literal:
        return _Term(dtype, term.polars.cast(dtype), f"CAST({term.spark} AS {_spark_type(dtype)})")
    value = term.value
    if isinstance(value, int) and not dtype.is_integer():
        value = float(value) if dtype == FLOAT64 else Decimal(value)
    return _literal(_moment(value) if isinstance(value, str) and isinstance(dtype, pl.Datetime) else value, dtype)


def _common(terms: Sequence[_Term], what: str, mixed: bool = False) -> pl.DataType:
    """The type in which values meet: NULL and timestamp literals follow the others, numbers widen.

    Decimals meet doubles only where `mixed`: in a CASE the row would decide whether later arithmetic is exact.
    """
    typed = [t for t in terms if t.dtype != NULL]
    if any(isinstance(t.dtype, pl.Datetime) for t in typed):
        typed = [t for t in typed if not isinstance(t.value, (str, datetime))] or typed
    types = {t.dtype for t in typed}
    if len(types) < 2:
        return types.pop() if types else NULL
    if all(t.is_integer() for t in types):
        return INT64
    if all(t.is_numeric() for t in types):
        if not any(t.is_float() for t in types):
            held = [_digits(t) for t in typed]
            return _decimal(max(d.precision - d.scale for d in held), max(d.scale for d in held))
        if mixed or not any(t.is_decimal() for t in types):
            return FLOAT64
    _refuse(f"{what} cannot mix {' and '.join(sorted(map(str, types)))}; CAST one of them")


def _need(dtype: pl.DataType, term: _Term, what: str) -> _Term:
    if term.dtype not in (dtype, NULL) and not (dtype == FLOAT64 and term.dtype.is_numeric()):
        _refuse(f"{what} needs {'numbers' if dtype == FLOAT64 else dtype}, not {term.dtype} {term.spark}")
    return _to(term, dtype)


def _digits(term: _Term) -> pl.Decimal:
    """The decimal type that holds a decimal or integer term."""
    if isinstance(term.dtype, pl.Decimal):
        return term.dtype
    return pl.Decimal(len(str(abs(term.value))) if isinstance(term.value, int) else 20, 0)


def _decimal(whole: int, scale: int) -> pl.Decimal:
    """Where 38 digits do not suffice Spark keeps a scale of up to 6 and rounds longer ones: those are refused."""
    if whole + scale > 38 and scale > 6:
        _refuse("the decimal result needs more than 38 digits; CAST to DOUBLE")
    return pl.Decimal(min(38, whole + scale), scale)


# --- rules --------------------------------------------------------------------------------------------------------


def _function(name: str, needs: pl.DataType, gives: pl.DataType, polars: Callable[..., pl.Expr]) -> _Rule:
    def rule(*terms: _Term) -> _Term:
        terms = tuple(_need(needs, t, name) for t in terms)
        return _Term(gives, polars(*(t.polars for t in terms)), f"{name}({', '.join(t.spark for t in terms)})")

    return rule


_real, _text = partial(_function, needs=FLOAT64), partial(_function, needs=STRING)


def _connect(name: str, *terms: _Term) -> _Term:
    terms = tuple(_need(BOOLEAN, t, name) for t in terms)
    horizontal = pl.all_horizontal if name == "AND" else pl.any_horizontal
    expr = horizontal([t.polars for t in terms])  # unlike nested & and |, linear in a long chain
    return _Term(BOOLEAN, expr, f"({f' {name} '.join(t.spark for t in terms)})")


def _not(term: _Term) -> _Term:
    term = _need(BOOLEAN, term, "NOT")
    return _Term(BOOLEAN, ~term.polars, f"(NOT {term.spark})")


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


def _compare(sign: str, left: _Term, right: _Term) -> _Term:
    dtype = _common((left, right), sign, mixed=True)
    if not (dtype.is_numeric() or isinstance(dtype, (pl.String, pl.Boolean, pl.Datetime, pl.Date, pl.Null))):
        _refuse(f"{sign} cannot compare {dtype}")
    if dtype.is_integer():  # both engines widen integers themselves, and Polars fits the literal to the column
        sides = [pl.lit(t.value) if t.is_literal else t.polars for t in (left, right)]
    else:
        left, right = (_to(t, BOOLEAN if dtype == NULL else dtype) for t in (left, right))
        sides = [left.polars, right.polars]
    expr = _SIGNS[sign](*sides)
    if not sides[0].meta.root_names():  # Polars 2.1 takes the length of the left side, and a constant has one row
        expr = _SIGNS[_MIRRORED.get(sign, sign)](*reversed(sides))
    return _Term(BOOLEAN, expr, f"({left.spark} {sign} {right.spark})")


def _is(term: _Term, what: _Term) -> _Term:
    if what.dtype == NULL and what.is_literal:
        return _Term(BOOLEAN, term.polars.is_null(), f"({term.spark} IS NULL)")
    return _compare("<=>", _need(BOOLEAN, term, "IS TRUE"), _need(BOOLEAN, what, "IS"))


def _in(term: _Term, *items: _Term) -> _Term:
    if not items or not all(item.is_literal for item in items):
        _refuse("IN takes a list of literals")
    dtype = _common([term, *items], "IN", mixed=True)
    term, *listed = (_to(t, BOOLEAN if dtype == NULL else dtype) for t in (term, *items))
    values = [t.value for t in listed if t.value is not None]
    if values and (dtype.is_integer() or dtype.is_float() or dtype == STRING):
        found = term.polars.is_in(values)
    else:
        found = reduce(operator.or_, [term.polars == t.polars for t in listed])
    if len(values) < len(listed):  # SQL: not found among unknowns is unknown
        found = pl.when(found).then(True)
    return _Term(BOOLEAN, found, f"({term.spark} IN ({', '.join(t.spark for t in listed)}))")


def _choose(what: str, choices: Sequence[tuple[_Term, _Term]], default: _Term) -> _Term:
    dtype = _common([*(value for _, value in choices), default], what)
    expr, spark = (last := _to(default, dtype)).polars, f" ELSE {last.spark} END"
    for condition, value in reversed(choices):
        condition, value = _need(BOOLEAN, condition, what), _to(value, dtype)
        expr = pl.when(condition.polars).then(value.polars).otherwise(expr)
        spark = f" WHEN {condition.spark} THEN {value.spark}{spark}"
    return _Term(dtype, expr, f"CASE{spark}")


def _pick(name: str, *terms: _Term) -> _Term:
    """COALESCE, GREATEST or LEAST."""
    if len(terms) < 2:
        _refuse(f"{name} takes two values or more")
    dtype = _common(terms, name)
    values = [_to(t, dtype).polars for t in terms]
    if name == "COALESCE":
        expr = pl.coalesce(values)
    elif not (dtype.is_numeric() or isinstance(dtype, (pl.String, pl.Datetime, pl.Date))):
        _refuse(f"{name} cannot compare {dtype}")
    elif name == "LEAST":  # Polars leaves NaN out of both; here it is the greatest number
        bare = [v.fill_nan(None) for v in values] if dtype.is_float() else values
        expr = pl.coalesce(pl.min_horizontal(bare), *values) if dtype.is_float() else pl.min_horizontal(bare)
    else:
        expr = pl.max_horizontal(values)
        if dtype.is_float():
            expr = pl.when(pl.any_horizontal([v.is_nan() for v in values])).then(math.nan).otherwise(expr)
    return _Term(dtype, expr, f"{name}({', '.join(_to(t, dtype).spark for t in terms)})")


def _number_type(what: str, *terms: _Term) -> pl.DataType:
    for term in terms:
        _need(FLOAT64, term, what)
    dtype = _common(terms, what, mixed=True)
    return FLOAT64 if dtype.is_float() else dtype if dtype.is_decimal() else INT64


def _arithmetic(sign: str, left: _Term, right: _Term) -> _Term:
    dtype = _number_type(sign, left, right)
    if isinstance(dtype, pl.Decimal):
        left, right = (_to(t, dtype if t.dtype == NULL else _digits(t)) for t in (left, right))
        a, b = _digits(left), _digits(right)
        if sign == "*":  # Polars keeps the larger scale of the two, so the first one gets that of the product
            dtype = _decimal(a.precision + b.precision + 1 - a.scale - b.scale, a.scale + b.scale)
            left = replace(left, polars=left.polars.cast(pl.Decimal(38, dtype.scale)))
        else:
            dtype = _decimal(max(a.precision - a.scale, b.precision - b.scale) + 1, max(a.scale, b.scale))
    else:
        left, right = _to(left, dtype), _to(right, dtype)
    return _Term(dtype, _SIGNS[sign](left.polars, right.polars), f"({left.spark} {sign} {right.spark})")


def _divide(left: _Term, right: _Term) -> _Term:
    left, right = _need(FLOAT64, left, "/"), _need(FLOAT64, right, "/")
    quotient = left.polars / right.polars
    if right.value:  # only what can be zero is guarded
        return _Term(FLOAT64, quotient, f"({left.spark} / {right.spark})")
    return _Term(FLOAT64, pl.when(right.polars != 0).then(quotient), f"({left.spark} / NULLIF({right.spark}, 0.0D))")


def _remainder(left: _Term, right: _Term) -> _Term:
    if _number_type("%", left, right) != INT64:
        _refuse("% is for integers, because Polars' remainder of doubles is not exact; CAST to BIGINT")
    left, right = _to(left, INT64), _to(right, INT64)
    rest = left.polars % right.polars  # has the divisor's sign, and is null for a divisor of zero
    expr = pl.when((rest != 0) & ((rest < 0) != (left.polars < 0))).then(rest - right.polars).otherwise(rest)
    return _Term(INT64, expr, f"({left.spark} % {right.spark if right.value else f'NULLIF({right.spark}, 0L)'})")


def _signed(name: str, term: _Term) -> _Term:
    term = _to(term, _number_type(name, term))
    if name == "ABS":
        return _Term(term.dtype, term.polars.abs(), f"ABS({term.spark})")
    if isinstance(term.value, (int, float)):
        return _literal(-term.value)
    return _Term(term.dtype, -term.polars, f"(- {term.spark})")


def _log(base: _Term, term: _Term) -> _Term:
    base, term = _need(FLOAT64, base, "LOG"), _need(FLOAT64, term, "LOG")
    if not isinstance(base.value, float) or base.value <= 0 or base.value == 1:
        _refuse("LOG takes a literal base, positive and not 1")
    unit = math.log(base.value)
    return _Term(FLOAT64, pl.when(term.polars > 0).then(term.polars.log() / unit), f"(LN({term.spark}) / ({unit!r}D))")


def _power(base: _Term, exponent: _Term) -> _Term:
    base, exponent = _need(FLOAT64, base, "POWER"), _need(FLOAT64, exponent, "POWER")
    x, y = base.polars, exponent.polars
    expr = x.pow(y)
    if exponent.value == 0.5:  # Polars takes the square root, which differs in one point
        expr = pl.when(x == -math.inf).then(math.inf).otherwise(expr)
    elif not exponent.is_literal and base.value in (None, 1.0, -1.0):  # Polars says 1, as C, and Java NaN
        expr = pl.when((x.abs() == 1) & ~y.is_finite()).then(math.nan).otherwise(expr)
    return _Term(FLOAT64, expr, f"POWER({base.spark}, {exponent.spark})")


def _round(name: str, term: _Term) -> _Term:
    if term.dtype.is_integer():
        return _to(term, INT64)
    term = _need(FLOAT64, term, name)
    x, edge = term.spark, 2.0**63
    expr = (term.polars.ceil() if name == "CEIL" else term.polars.floor()).cast(INT64, strict=False)
    return _Term(INT64, expr, f"CASE WHEN {x} >= {-edge}D AND {x} < {edge}D THEN {name}({x}) END")


def _substring(term: _Term, start: _Term, length: _Term | None = None) -> _Term:
    term, first, count = _need(STRING, term, "SUBSTRING"), start.value, length.value if length else None
    if not isinstance(first, int) or (length and not isinstance(count, int)) or (isinstance(count, int) and count < 0):
        _refuse("SUBSTRING takes an integer literal as start, and one of zero or more as length")
    expr = term.polars.str.slice(first - 1 if first > 0 else first, count if isinstance(count, int) else None)
    return _Term(STRING, expr, f"SUBSTRING({term.spark}, {first}{f', {count}' if length else ''})")


def _like(term: _Term, pattern: _Term) -> _Term:
    term, text = _need(STRING, term, "LIKE"), pattern.value
    if not isinstance(text, str) or "\\" in re.sub(r"\\[%_\\]", "", text):
        _refuse("LIKE takes a literal pattern, in which \\ stands only before % _ or \\")
    if simple := re.fullmatch(r"([^%_\\]*)%", text):  # the common case needs no regular expression
        expr = term.polars.str.starts_with(simple[1])
    else:
        marks = [{"%": ".*", "_": "."}.get(t) or re.escape(t[-1]) for t in re.findall(r"(?s)\\.|.", text)]
        expr = term.polars.str.contains(f"(?s)^{''.join(marks)}$")
    return _Term(BOOLEAN, expr, f"({term.spark} LIKE {pattern.spark})")


def _clock(name: str, from_micros: str, polars: Callable[[pl.Expr], pl.Expr], term: _Term) -> _Term:
    if not isinstance(term.dtype, pl.Datetime):
        _refuse(f"{name} needs a timestamp, not {term.dtype} {term.spark}")
    if not term.dtype.time_zone:
        return _Term(INT64, polars(term.polars).cast(INT64), f"CAST({name}({term.spark}) AS BIGINT)")
    # Spark's own functions would use the session's time zone
    expr = polars(term.polars.dt.convert_time_zone("UTC")).cast(INT64)
    return _Term(INT64, expr, from_micros.format(f"UNIX_MICROS({term.spark})"))


_CASTS = {
    "BIGINT": INT64,
    "INT": pl.Int32(),
    "DOUBLE": FLOAT64,
    "FLOAT": pl.Float32(),
    "TEXT": STRING,
    "BOOLEAN": BOOLEAN,
}
_NUMERALS = {True: r"^ *([+-]?[0-9]+) *\z", False: r"^ *([+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?) *\z"}


def _cast(term: _Term, target: pl.DataType) -> _Term:
    source = term.dtype
    if source in (target, NULL) or (target == FLOAT64 and source.is_numeric()):
        return _to(term, target)
    if target == pl.Float32() and source != BOOLEAN:  # by way of a double, so that all round alike
        term = _cast(term, FLOAT64)
    elif source == STRING and target.is_numeric():
        numeral = _NUMERALS[target.is_integer()]
        found = f"REGEXP_EXTRACT({term.spark}, {_literal(numeral).spark}, 1)"
        term = replace(term, polars=term.polars.str.extract(numeral), spark=found)
    elif source.is_numeric() and target == BOOLEAN:
        return _compare("<>", term, _literal(0))
    elif source.is_float() and target == INT64:  # Spark takes 2 to the 63rd for the largest integer
        term = _to(term, FLOAT64)
        term = replace(term, spark=f"NULLIF({term.spark}, {2.0**63}D)")
    elif not (source == BOOLEAN or source.is_integer() or (source.is_numeric() and target.is_integer())):
        _refuse(f"CAST from {source} to {target} would not be the same everywhere")
    return _Term(target, term.polars.cast(target, strict=False), f"TRY_CAST({term.spark} AS {_spark_type(target)})")


_PAIR, _LIST, _DAY = "this expression", "this expressions", "86400000000L"
_WEEKDAY = f"(PMOD(({{0}} - PMOD({{0}}, {_DAY})) DIV {_DAY} + 4L, 7L) + 1L)"
# Node class: the arguments that the rule understands, in its order, and the rule. What is not here is refused.
_RULES: dict[type[exp.Expr], tuple[str, _Rule]] = {
    exp.Paren: ("this", lambda term: term),
    exp.And: (_PAIR, partial(_connect, "AND")),
    exp.Or: (_PAIR, partial(_connect, "OR")),
    exp.Not: ("this", _not),
    exp.EQ: (_PAIR, partial(_compare, "=")),
    exp.NEQ: (_PAIR, partial(_compare, "<>")),
    exp.LT: (_PAIR, partial(_compare, "<")),
    exp.LTE: (_PAIR, partial(_compare, "<=")),
    exp.GT: (_PAIR, partial(_compare, ">")),
    exp.GTE: (_PAIR, partial(_compare, ">=")),
    exp.NullSafeEQ: (_PAIR, partial(_compare, "<=>")),
    exp.NullSafeNEQ: (_PAIR, lambda left, right: _not(_compare("<=>", left, right))),
    exp.Is: (_PAIR, _is),
    exp.In: (_LIST, _in),
    exp.Between: (
        "this low high",
        lambda t, low, high: _connect("AND", _compare(">=", t, low), _compare("<=", t, high)),
    ),
    exp.If: ("this true false", lambda c, then, other=None: _choose("IF", [(c, then)], other or _literal(None))),
    exp.Nullif: (_PAIR, lambda a, b: _choose("NULLIF", [(_compare("=", a, b), _literal(None))], a)),
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
    exp.Radians: ("this", _real("RADIANS", gives=FLOAT64, polars=pl.Expr.radians)),
    exp.Degrees: ("this", _real("DEGREES", gives=FLOAT64, polars=pl.Expr.degrees)),
    exp.IsNan: ("this", _real("ISNAN", gives=BOOLEAN, polars=lambda x: x.is_nan().fill_null(False))),
    exp.Lower: ("this", _text("LOWER", gives=STRING, polars=lambda s: s.str.to_lowercase())),
    exp.Upper: ("this", _text("UPPER", gives=STRING, polars=lambda s: s.str.to_uppercase())),
    exp.Trim: ("this", _text("TRIM", gives=STRING, polars=lambda s: s.str.strip_chars(" "))),
    exp.Length: ("this", _text("LENGTH", gives=pl.Int32(), polars=lambda s: s.str.len_chars().cast(pl.Int32))),
    exp.Concat: ("expressions", _text("CONCAT", gives=STRING, polars=lambda *s: pl.concat_str(s))),
    exp.DPipe: (_PAIR, _text("CONCAT", gives=STRING, polars=lambda *s: pl.concat_str(s))),
    exp.StartsWith: (_PAIR, _text("STARTSWITH", gives=BOOLEAN, polars=lambda s, part: s.str.starts_with(part))),
    exp.EndsWith: (_PAIR, _text("ENDSWITH", gives=BOOLEAN, polars=lambda s, part: s.str.ends_with(part))),
    exp.Contains: (_PAIR, _text("CONTAINS", gives=BOOLEAN, polars=lambda s, part: s.str.contains(part, literal=True))),
    exp.Substring: ("this start length", _substring),
    exp.Like: (_PAIR, _like),
    exp.Hour: ("this", partial(_clock, "HOUR", f"(PMOD({{0}}, {_DAY}) DIV 3600000000L)", lambda t: t.dt.hour())),
    exp.Minute: ("this", partial(_clock, "MINUTE", "(PMOD({0}, 3600000000L) DIV 60000000L)", lambda t: t.dt.minute())),
    exp.DayOfWeek: ("this", partial(_clock, "DAYOFWEEK", _WEEKDAY, lambda t: t.dt.weekday() % 7 + 1)),
}
_FORMS: dict[type[exp.Expr], str] = {
    **{kind: form for kind, (form, _) in _RULES.items()},
    exp.Column: "this",
    exp.Literal: "this is_string",
    exp.Boolean: "this",
    exp.Null: "",
    exp.Cast: "this to",
    exp.TryCast: "this to",
    exp.Case: "this ifs default",
}
FUNCTIONS = sorted(
    {name for kind in _RULES if issubclass(kind, exp.Func) for name in kind.sql_names()}
    - {"AND", "OR", "LIKE", "IS_NAN", "DAY_OF_WEEK", "IIF", "LEN"}
    | {"LOG10", "LOG2", "DAYOFWEEK"}
)
