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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache, reduce
from typing import NoReturn

import polars as pl
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError

Schema = Mapping[str, pl.DataType]
INT64, FLOAT64, STRING, BOOLEAN, NULL = pl.Int64(), pl.Float64(), pl.String(), pl.Boolean(), pl.Null()


class ExpressionError(ValueError):
    """An expression that cannot be read, or cannot mean the same everywhere; names the text and the reason."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text, reason)
        self.text, self.reason = text, reason

    def __str__(self) -> str:
        return f"expression {self.text!r}: {self.reason}"


class _Refusal(Exception):
    """A reason that does not know its text yet."""


def _refuse(reason: str) -> NoReturn:
    raise _Refusal(reason)


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
        try:
            if self.is_column:
                return _column(self.node.name, schema)
            term = _bind(self.node, schema)
            return term if term.dtype != NULL else _refuse("it is always NULL and has no type; CAST the NULL")
        except _Refusal as refusal:
            raise ExpressionError(self.text, str(refusal)) from None
        except RecursionError:
            raise ExpressionError(self.text, "it is nested too deeply") from None

    def __reduce__(self) -> tuple[Callable[[str], Expression], tuple[str]]:
        return parse, (self.text,)


# --- reading ------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def parse(text: str) -> Expression:
    """Read and check one expression. Needs no schema; types are checked by `dtype`, `polars` and `spark`."""
    try:
        node = _read(text)
        for part in node.walk():
            _check(part)
        columns = dict.fromkeys(column.name for column in node.find_all(exp.Column, bfs=False))
        return Expression(node.sql(dialect="spark", comments=False), tuple(columns), node)
    except _Refusal as refusal:
        raise ExpressionError(text, str(refusal)) from None
    except RecursionError:
        raise ExpressionError(text, "it is nested too deeply") from None


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
    if nodes[0] is None:
        _refuse("it is empty")
    return nodes[0].unnest()


# Set by the dialect or without influence on the meaning fixed here; CAST and TRY_CAST are one thing.
_FLAGS = {"safe", "typed", "coalesce", "ignore_nulls"}


def _check(node: exp.Expr) -> None:
    """Refuse what is not known; bring one meaning into one form."""
    kind = type(node)
    if kind is exp.Concat and "safe" not in node.args:
        _refuse("strings stand side by side; write \\' for a quote inside a string, || to join")
    if kind not in _READERS and not _is_inner(node):
        _refuse(_reason(node))
    for name, value in node.args.items():
        if value and name not in _FLAGS and kind in _READERS and name not in _READERS[kind][1]:
            inner = value if isinstance(value, exp.Expr) else node
            _refuse("subqueries are not allowed" if inner.find(exp.Query) else f"{node.sql('spark')} is not supported")
    node.args.pop("safe", None) if kind is exp.TryCast else None
    if isinstance(node, exp.Column):
        if node.name == "*" or re.fullmatch(r"\^.*\$", node.name, re.DOTALL):
            _refuse(f"Polars reads the column name {node.name!r} as a pattern; rename the column")
        node.this.set("quoted", not _is_plain(node.name))
    elif isinstance(node, exp.Literal) and not node.is_string:
        value = _number(node.name)
        if abs(value) > (2**63 - 1 if isinstance(value, int) else math.nextafter(math.inf, 0)):
            _refuse(f"the number {node.name} is out of range")
        node.set("this", repr(value))


def _is_inner(node: exp.Expr) -> bool:
    """Nodes that mean something only in their place."""
    if isinstance(node, exp.TsOrDsToDate):
        return isinstance(node.parent, exp.DayOfWeek)
    return isinstance(node, (exp.Identifier, exp.DataType)) or isinstance(node.parent, exp.DataType)


def _reason(node: exp.Expr) -> str:
    if isinstance(node, exp.Window):
        return "window functions are not allowed"
    if isinstance(node, exp.AggFunc):
        return f"{node.sql_name()} is an aggregate function; expressions work on one event at a time"
    if isinstance(node, (exp.Query, exp.Exists, exp.SubqueryPredicate)):
        return "subqueries are not allowed"
    if isinstance(node, (exp.Func, exp.Anonymous)) and not isinstance(node, exp.Connector):
        name = node.name if isinstance(node, exp.Anonymous) else node.sql_name()
        near = difflib.get_close_matches(name.upper(), FUNCTIONS, cutoff=0.5)
        return f"there is no function {name}" + (f"; did you mean {' or '.join(near)}?" if near else "")
    return f"{node.sql('spark')} is not supported"


@lru_cache(maxsize=4096)
def _is_plain(name: str) -> bool:
    """Whether a name reads as a column without backticks, in every place: `interval` does not."""
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        return False
    probe = f"{name} - 1 = {name}"
    try:
        node = _read(probe)
    except _Refusal:
        return False
    return node.sql(dialect="spark") == probe and [c.name for c in node.find_all(exp.Column)] == [name, name]


def _number(text: str) -> int | float:
    return int(text) if text.isdigit() else float(text)


# --- terms: one node in Polars and in Spark, side by side ---------------------------------------------------------

_NOT_LITERAL = object()


@dataclass(frozen=True)
class _Term:
    dtype: pl.DataType
    polars: pl.Expr
    spark: str
    value: object = _NOT_LITERAL

    @property
    def is_literal(self) -> bool:
        return self.value is not _NOT_LITERAL


_Reader = Callable[[exp.Expr, Schema], _Term]
_READERS: dict[type[exp.Expr], tuple[_Reader, frozenset[str]]] = {}


def _reads(*kinds: type[exp.Expr], args: str = "this expression") -> Callable[[_Reader], _Reader]:
    """Register the reader of some node classes, and the arguments that it understands: the rest is refused."""

    def register(reader: _Reader) -> _Reader:
        _READERS.update(dict.fromkeys(kinds, (reader, frozenset(args.split()))))
        return reader

    return register


def _bind(node: exp.Expr, schema: Schema) -> _Term:
    return _READERS[type(node)][0](node, schema)


def _spark_type(dtype: pl.DataType) -> str:
    if isinstance(dtype, pl.Decimal):
        return f"DECIMAL({dtype.precision}, {dtype.scale})"
    if isinstance(dtype, pl.Datetime):
        return "TIMESTAMP" if dtype.time_zone else "TIMESTAMP_NTZ"
    names = {"Int32": "INT", "Int64": "BIGINT", "Float32": "FLOAT", "Float64": "DOUBLE"}
    return names.get(str(dtype), str(dtype).upper())


def _literal(value: object, dtype: pl.DataType) -> _Term:
    polars = pl.lit(value, dtype=dtype) if not isinstance(value, datetime) else _instant(value, dtype)
    if value is None:
        spark = "NULL" if dtype == NULL else f"CAST(NULL AS {_spark_type(dtype)})"
    elif isinstance(value, bool):
        spark = str(value).upper()
    elif isinstance(value, (int, float)):
        spark = f"{value!r}{'D' if isinstance(value, float) else 'L'}"
    elif isinstance(value, str):
        spark = "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    elif isinstance(value, datetime):  # the Z makes it independent of the session's time zone
        iso = value.replace(tzinfo=None).isoformat() + ("Z" if _spark_type(dtype) == "TIMESTAMP" else "")
        spark = f"{_spark_type(dtype)} '{iso}'"
    else:
        spark = f"CAST({value} AS {_spark_type(dtype)})"
    return _Term(dtype, polars, f"({spark})" if spark.startswith("-") else spark, value)


def _instant(value: datetime, dtype: pl.DataType) -> pl.Expr:
    assert isinstance(dtype, pl.Datetime)
    if dtype.time_unit == "ms" and value.microsecond % 1000:
        _refuse(f"{value} is finer than the column's milliseconds")
    expr = pl.lit(value.replace(tzinfo=None), dtype=pl.Datetime(dtype.time_unit))
    zone = dtype.time_zone
    return expr.dt.replace_time_zone("UTC").dt.convert_time_zone(zone) if zone else expr


def _moment(text: str) -> datetime:
    iso = r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?)?"
    try:
        moment = datetime.fromisoformat(text if re.fullmatch(iso, text, re.ASCII) else "")
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        _refuse(f"{text!r} is not an ISO timestamp such as 2024-05-31 12:00:00")


def _to(term: _Term, dtype: pl.DataType) -> _Term:
    """Convert to a type that `_common` has found: nothing is lost but a large integer's last bits in a double."""
    if term.dtype == dtype:
        return term
    if not term.is_literal:
        return _Term(dtype, term.polars.cast(dtype), f"CAST({term.spark} AS {_spark_type(dtype)})")
    value = term.value
    if isinstance(value, int) and dtype == FLOAT64:
        value = float(value)
    elif isinstance(value, int) and dtype.is_decimal():
        value = Decimal(value)
    elif isinstance(value, str) and isinstance(dtype, pl.Datetime):
        value = _moment(value)
    return _literal(value, dtype)


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


def _need(term: _Term, dtype: pl.DataType, what: str) -> _Term:
    if term.dtype not in (dtype, NULL) and not (dtype == FLOAT64 and term.dtype.is_numeric()):
        _refuse(f"{what} needs {'numbers' if dtype == FLOAT64 else dtype}, not {term.dtype} {term.spark}")
    return _to(term, dtype)


# --- columns, literals, logic, comparisons ------------------------------------------------------------------------


def _column(name: str, schema: Schema) -> _Term:
    if name not in schema:
        near = difflib.get_close_matches(name, schema) or list(schema)[:8]
        _refuse(f"there is no column {name!r}; there are {', '.join(near)}")
    quoted = name.replace("`", "``")
    return _Term(schema[name], pl.col(name), f"`{quoted}`")


@_reads(exp.Column, args="this")
def _inner_column(node: exp.Expr, schema: Schema) -> _Term:
    term = _column(node.name, schema)
    if isinstance(term.dtype, (pl.Categorical, pl.Enum)):
        return replace(term, dtype=STRING, polars=term.polars.cast(STRING))
    if term.dtype in (pl.UInt64, pl.UInt128, pl.Int128):  # beyond Spark's integers
        return replace(term, dtype=INT64, polars=term.polars.cast(INT64))
    return term


@_reads(exp.Paren, args="this")
def _paren(node: exp.Expr, schema: Schema) -> _Term:
    return _bind(node.this, schema)


@_reads(exp.Literal, exp.Boolean, exp.Null, args="this is_string")
def _constant(node: exp.Expr, schema: Schema) -> _Term:
    if isinstance(node, exp.Literal):
        value = node.name if node.is_string else _number(node.name)
        return _literal(value, STRING if node.is_string else INT64 if isinstance(value, int) else FLOAT64)
    return _literal(node.this, BOOLEAN) if isinstance(node, exp.Boolean) else _literal(None, NULL)


@_reads(exp.And, exp.Or)
def _connect(node: exp.Expr, schema: Schema) -> _Term:
    name, combine = ("AND", operator.and_) if isinstance(node, exp.And) else ("OR", operator.or_)
    terms = [_need(_bind(part, schema), BOOLEAN, name) for part in node.flatten()]
    return _Term(BOOLEAN, reduce(combine, [t.polars for t in terms]), f"({f' {name} '.join(t.spark for t in terms)})")


@_reads(exp.Not, args="this")
def _not(node: exp.Expr, schema: Schema) -> _Term:
    return _negate(_need(_bind(node.this, schema), BOOLEAN, "NOT"))


def _negate(term: _Term) -> _Term:
    return _Term(BOOLEAN, ~term.polars, f"(NOT {term.spark})")


_Comparison = tuple[str, Callable[[pl.Expr, pl.Expr], pl.Expr]]
_COMPARISONS: dict[type[exp.Expr], _Comparison] = {
    exp.EQ: ("=", operator.eq),
    exp.NEQ: ("<>", operator.ne),
    exp.LT: ("<", operator.lt),
    exp.LTE: ("<=", operator.le),
    exp.GT: (">", operator.gt),
    exp.GTE: (">=", operator.ge),
    exp.NullSafeEQ: ("<=>", pl.Expr.eq_missing),
}


def _compare(kind: type[exp.Expr], left: _Term, right: _Term) -> _Term:
    sign, function = _COMPARISONS[kind]
    dtype = _common((left, right), sign, mixed=True)
    if not (dtype.is_numeric() or isinstance(dtype, (pl.String, pl.Boolean, pl.Datetime, pl.Date, pl.Null))):
        _refuse(f"{sign} cannot compare {dtype}")
    if dtype.is_integer():  # both engines widen integers themselves, and Polars fits the literal to the column
        sides = [pl.lit(t.value) if t.is_literal else t.polars for t in (left, right)]
    else:
        left, right = (_to(t, BOOLEAN if dtype == NULL else dtype) for t in (left, right))
        sides = [left.polars, right.polars]
    return _Term(BOOLEAN, function(*sides), f"({left.spark} {sign} {right.spark})")


@_reads(*_COMPARISONS)
def _comparison(node: exp.Expr, schema: Schema) -> _Term:
    return _compare(type(node), _bind(node.this, schema), _bind(node.expression, schema))


@_reads(exp.NullSafeNEQ)
def _distinct_from(node: exp.Expr, schema: Schema) -> _Term:
    return _negate(_compare(exp.NullSafeEQ, _bind(node.this, schema), _bind(node.expression, schema)))


@_reads(exp.Is)
def _is(node: exp.Expr, schema: Schema) -> _Term:
    term, what = _bind(node.this, schema), _bind(node.expression, schema)
    if what.dtype == NULL and what.is_literal:
        return _Term(BOOLEAN, term.polars.is_null(), f"({term.spark} IS NULL)")
    return _compare(exp.NullSafeEQ, _need(term, BOOLEAN, "IS TRUE or FALSE"), what)


@_reads(exp.Between, args="this low high")
def _between(node: exp.Expr, schema: Schema) -> _Term:
    term, low, high = (_bind(node.args[name], schema) for name in ("this", "low", "high"))
    above, below = _compare(exp.GTE, term, low), _compare(exp.LTE, term, high)
    return _Term(BOOLEAN, above.polars & below.polars, f"({above.spark} AND {below.spark})")


@_reads(exp.In, args="this expressions")
def _in(node: exp.Expr, schema: Schema) -> _Term:
    term, items = _bind(node.this, schema), [_bind(item, schema) for item in node.expressions]
    if not items or not all(item.is_literal for item in items):
        _refuse("IN takes a list of literals")
    dtype = _common([term, *items], "IN", mixed=True)
    term, *items = (_to(t, BOOLEAN if dtype == NULL else dtype) for t in (term, *items))
    spark = f"({term.spark} IN ({', '.join(t.spark for t in items)}))"
    if dtype.is_numeric() and not dtype.is_decimal() or dtype == STRING:
        values = [t.value for t in items if t.value is not None]
        found = term.polars.is_in(pl.Series(values, dtype=dtype).implode())
        if len(values) < len(items):  # SQL: not found among unknowns is unknown
            found = pl.when(found).then(True)
        return _Term(BOOLEAN, found, spark)
    return _Term(BOOLEAN, reduce(operator.or_, [term.polars == t.polars for t in items]), spark)


# --- conditionals -------------------------------------------------------------------------------------------------


def _choose(choices: list[tuple[_Term, _Term]], default: _Term, what: str) -> _Term:
    dtype = _common([*(value for _, value in choices), default], what)
    chosen = _to(default, dtype)
    expr, whens = chosen.polars, ""
    for condition, value in reversed(choices):
        condition, value = _need(condition, BOOLEAN, what), _to(value, dtype)
        expr = pl.when(condition.polars).then(value.polars).otherwise(expr)
        whens = f" WHEN {condition.spark} THEN {value.spark}{whens}"
    return _Term(dtype, expr, f"CASE{whens} ELSE {chosen.spark} END")


@_reads(exp.Case, args="this ifs default")
def _case(node: exp.Expr, schema: Schema) -> _Term:
    subject = _bind(node.this, schema) if node.this else None
    choices = []
    for branch in node.args["ifs"]:
        condition = _bind(branch.this, schema)
        if subject:
            condition = _compare(exp.EQ, subject, condition)
        choices.append((condition, _bind(branch.args["true"], schema)))
    default = node.args.get("default")
    return _choose(choices, _bind(default, schema) if default else _literal(None, NULL), "CASE")


@_reads(exp.If, args="this true false")
def _if(node: exp.Expr, schema: Schema) -> _Term:
    default = node.args.get("false")
    choice = _bind(node.this, schema), _bind(node.args["true"], schema)
    return _choose([choice], _bind(default, schema) if default else _literal(None, NULL), "IF")


@_reads(exp.Nullif)
def _nullif(node: exp.Expr, schema: Schema) -> _Term:
    term = _bind(node.this, schema)
    same = _compare(exp.EQ, term, _bind(node.expression, schema))
    return _choose([(same, _literal(None, NULL))], term, "NULLIF")


@_reads(exp.Coalesce, exp.Greatest, exp.Least, args="this expressions")
def _first_or_extreme(node: exp.Expr, schema: Schema) -> _Term:
    name = node.sql_name()  # type: ignore[attr-defined]
    terms = [_bind(part, schema) for part in (node.this, *node.expressions)]
    if len(terms) < 2:
        _refuse(f"{name} takes two values or more")
    dtype = _common(terms, name)
    terms = [_to(t, dtype) for t in terms]
    values = [t.polars for t in terms]
    spark = f"{name}({', '.join(t.spark for t in terms)})"
    if name == "COALESCE":
        return _Term(dtype, pl.coalesce(values), spark)
    if not (dtype.is_numeric() or isinstance(dtype, (pl.String, pl.Datetime, pl.Date))):
        _refuse(f"{name} cannot compare {dtype}")
    expr = pl.max_horizontal(values) if name == "GREATEST" else pl.min_horizontal(values)
    if dtype.is_float():  # Polars leaves NaN out; here it is the greatest number
        if name == "GREATEST":
            expr = pl.when(pl.any_horizontal([v.is_nan() for v in values])).then(math.nan).otherwise(expr)
        else:
            expr = pl.coalesce(pl.min_horizontal([v.fill_nan(None) for v in values]), *values)
    return _Term(dtype, expr, spark)


# --- numbers ------------------------------------------------------------------------------------------------------


def _number_type(terms: Sequence[_Term], what: str) -> pl.DataType:
    for term in terms:
        _need(term, FLOAT64, what)
    dtype = _common(terms, what, mixed=True)
    return FLOAT64 if dtype.is_float() else dtype if dtype.is_decimal() else INT64


@_reads(exp.Add, exp.Sub, exp.Mul)
def _arithmetic(node: exp.Expr, schema: Schema) -> _Term:
    kinds = {exp.Add: ("+", operator.add), exp.Sub: ("-", operator.sub), exp.Mul: ("*", operator.mul)}
    sign, function = kinds[type(node)]  # type: ignore[index]
    left, right = _bind(node.this, schema), _bind(node.expression, schema)
    dtype = _number_type((left, right), sign)
    if not dtype.is_decimal():
        left, right = _to(left, dtype), _to(right, dtype)
        return _Term(dtype, function(left.polars, right.polars), f"({left.spark} {sign} {right.spark})")
    left, right = (_to(t, dtype if t.dtype == NULL else _digits(t)) for t in (left, right))
    a, b = _digits(left), _digits(right)
    first = left.polars
    if sign == "*":  # Polars keeps the larger scale of the two, so the first one gets the scale of the product
        dtype = _decimal(a.precision + b.precision + 1 - a.scale - b.scale, a.scale + b.scale)
        first = first.cast(pl.Decimal(38, dtype.scale))
    else:
        dtype = _decimal(max(a.precision - a.scale, b.precision - b.scale) + 1, max(a.scale, b.scale))
    return _Term(dtype, function(first, right.polars), f"({left.spark} {sign} {right.spark})")


@_reads(exp.Div)
def _divide(node: exp.Expr, schema: Schema) -> _Term:
    left, right = (_need(_bind(part, schema), FLOAT64, "/") for part in (node.this, node.expression))
    quotient = left.polars / right.polars
    if right.is_literal and right.value:  # only what can be zero is guarded
        return _Term(FLOAT64, quotient, f"({left.spark} / {right.spark})")
    return _Term(FLOAT64, pl.when(right.polars != 0).then(quotient), f"({left.spark} / NULLIF({right.spark}, 0.0D))")


@_reads(exp.Mod)
def _remainder(node: exp.Expr, schema: Schema) -> _Term:
    left, right = _bind(node.this, schema), _bind(node.expression, schema)
    if _number_type((left, right), "%") != INT64:
        _refuse("% is for integers, because Polars' remainder of doubles is not exact; CAST to BIGINT")
    left, right = _to(left, INT64), _to(right, INT64)
    rest = left.polars % right.polars  # has the divisor's sign, and is null for a divisor of zero
    expr = pl.when((rest != 0) & ((rest < 0) != (left.polars < 0))).then(rest - right.polars).otherwise(rest)
    divisor = right.spark if right.is_literal and right.value else f"NULLIF({right.spark}, 0L)"
    return _Term(INT64, expr, f"({left.spark} % {divisor})")


@_reads(exp.Neg, exp.Abs, args="this")
def _signed(node: exp.Expr, schema: Schema) -> _Term:
    name = "-" if isinstance(node, exp.Neg) else "ABS"
    term = _bind(node.this, schema)
    term = _to(term, _number_type([term], name))
    if name == "ABS":
        return _Term(term.dtype, term.polars.abs(), f"ABS({term.spark})")
    if isinstance(term.value, (int, float)):
        return _literal(-term.value, term.dtype)
    return _Term(term.dtype, -term.polars, f"(- {term.spark})")


_REAL_FUNCTIONS: dict[type[exp.Expr], Callable[[pl.Expr], pl.Expr]] = {
    exp.Sqrt: pl.Expr.sqrt,
    exp.Exp: pl.Expr.exp,
    exp.Sin: pl.Expr.sin,
    exp.Cos: pl.Expr.cos,
    exp.Tan: pl.Expr.tan,
    exp.Asin: pl.Expr.arcsin,
    exp.Acos: pl.Expr.arccos,
    exp.Atan: pl.Expr.arctan,
    exp.Radians: pl.Expr.radians,
    exp.Degrees: pl.Expr.degrees,
    exp.IsNan: lambda x: x.is_nan().fill_null(False),
    exp.Ln: lambda x: pl.when(x > 0).then(x.log()),
}


@_reads(*_REAL_FUNCTIONS, args="this")
def _real(node: exp.Expr, schema: Schema) -> _Term:
    name = node.sql_names()[0].replace("IS_NAN", "ISNAN")  # type: ignore[attr-defined]
    term = _need(_bind(node.this, schema), FLOAT64, name)
    dtype = BOOLEAN if name == "ISNAN" else FLOAT64
    return _Term(dtype, _REAL_FUNCTIONS[type(node)](term.polars), f"{name}({term.spark})")


@_reads(exp.Log)
def _log(node: exp.Expr, schema: Schema) -> _Term:
    base, term = (_need(_bind(part, schema), FLOAT64, "LOG") for part in (node.this, node.expression))
    if not isinstance(base.value, float) or base.value <= 0 or base.value == 1:
        _refuse("LOG takes a literal base, positive and not 1")
    unit = math.log(base.value)
    return _Term(FLOAT64, pl.when(term.polars > 0).then(term.polars.log() / unit), f"(LN({term.spark}) / {unit!r}D)")


@_reads(exp.Pow)
def _power(node: exp.Expr, schema: Schema) -> _Term:
    base, exponent = (_need(_bind(part, schema), FLOAT64, "POWER") for part in (node.this, node.expression))
    x, y = base.polars, exponent.polars
    expr = x.pow(y)
    if exponent.value == 0.5:  # Polars takes the square root, which differs in one point
        expr = pl.when(x == -math.inf).then(math.inf).otherwise(expr)
    elif not exponent.is_literal and base.value in (_NOT_LITERAL, 1.0, -1.0):  # C says 1, Java NaN
        expr = pl.when((x.abs() == 1) & ~y.is_finite()).then(math.nan).otherwise(expr)
    return _Term(FLOAT64, expr, f"POWER({base.spark}, {exponent.spark})")


@_reads(exp.Ceil, exp.Floor, args="this")
def _round(node: exp.Expr, schema: Schema) -> _Term:
    name, function = ("CEIL", pl.Expr.ceil) if isinstance(node, exp.Ceil) else ("FLOOR", pl.Expr.floor)
    term = _bind(node.this, schema)
    if term.dtype.is_integer():
        return _to(term, INT64)
    x = _need(term, FLOAT64, name).spark
    expr = function(_to(term, FLOAT64).polars).cast(INT64, strict=False)
    spark = f"CASE WHEN {x} >= -9.223372036854775808E18D AND {x} < 9.223372036854775808E18D THEN {name}({x}) END"
    return _Term(INT64, expr, spark)


# --- strings, casts, timestamps -----------------------------------------------------------------------------------

_TEXT_FUNCTIONS: dict[type[exp.Expr], tuple[str, pl.DataType, Callable[..., pl.Expr]]] = {
    exp.Lower: ("LOWER({})", STRING, lambda s: s.str.to_lowercase()),
    exp.Upper: ("UPPER({})", STRING, lambda s: s.str.to_uppercase()),
    exp.Trim: ("TRIM({})", STRING, lambda s: s.str.strip_chars(" ")),
    exp.Length: ("CAST(LENGTH({}) AS BIGINT)", INT64, lambda s: s.str.len_chars().cast(INT64)),
    exp.StartsWith: ("STARTSWITH({}, {})", BOOLEAN, lambda s, part: s.str.starts_with(part)),
    exp.EndsWith: ("ENDSWITH({}, {})", BOOLEAN, lambda s, part: s.str.ends_with(part)),
    exp.Contains: ("CONTAINS({}, {})", BOOLEAN, lambda s, part: s.str.contains(part, literal=True)),
    exp.DPipe: ("CONCAT({}, {})", STRING, lambda s, part: pl.concat_str(s, part)),
}


@_reads(*_TEXT_FUNCTIONS)
def _text(node: exp.Expr, schema: Schema) -> _Term:
    form, dtype, function = _TEXT_FUNCTIONS[type(node)]
    parts = [part for part in (node.this, node.args.get("expression")) if part]
    terms = [_need(_bind(part, schema), STRING, form.split("(")[0]) for part in parts]
    return _Term(dtype, function(*(t.polars for t in terms)), form.format(*(t.spark for t in terms)))


@_reads(exp.Concat, args="expressions")
def _concat(node: exp.Expr, schema: Schema) -> _Term:
    terms = [_need(_bind(part, schema), STRING, "CONCAT") for part in node.expressions]
    return _Term(STRING, pl.concat_str([t.polars for t in terms]), f"CONCAT({', '.join(t.spark for t in terms)})")


@_reads(exp.Substring, args="this start length")
def _substring(node: exp.Expr, schema: Schema) -> _Term:
    term = _need(_bind(node.this, schema), STRING, "SUBSTRING")
    bounds = [_bind(node.args[name], schema).value for name in ("start", "length") if node.args.get(name)]
    start, length = (bounds + [None])[:2]
    if not isinstance(start, int) or not (length is None or isinstance(length, int) and length >= 0):
        _refuse("SUBSTRING takes an integer literal as start, and one of zero or more as length")
    assert length is None or isinstance(length, int)
    expr = term.polars.str.slice(start - 1 if start > 0 else start, length)
    return _Term(STRING, expr, f"SUBSTRING({', '.join([term.spark, *map(str, bounds)])})")


@_reads(exp.Like, args="this expression negate")
def _like(node: exp.Expr, schema: Schema) -> _Term:
    term, pattern = _need(_bind(node.this, schema), STRING, "LIKE"), _bind(node.expression, schema)
    if not isinstance(pattern.value, str) or re.sub(r"\\[%_\\]", "", pattern.value).count("\\"):
        _refuse("LIKE takes a literal pattern, in which \\ stands only before % _ or \\")
    ends = re.fullmatch(r"(%?)([^%_\\]*)(%?)", pattern.value)
    if ends:  # without a regular expression where none is needed
        before, plain, after = ends.groups()
        text = term.polars.str
        if before and after:
            expr = text.contains(plain, literal=True)
        else:
            expr = text.ends_with(plain) if before else text.starts_with(plain) if after else term.polars == plain
    else:
        marks = {"%": ".*", "_": "."}
        tokens = re.findall(r"\\.|.", pattern.value, re.DOTALL)
        expr = term.polars.str.contains(f"(?s)^{''.join(marks.get(t) or re.escape(t[-1]) for t in tokens)}$")
    like = _Term(BOOLEAN, expr, f"({term.spark} LIKE {pattern.spark})")
    return _negate(like) if node.args.get("negate") else like


_CASTS: dict[exp.DType, pl.DataType] = {
    exp.DType.BIGINT: INT64,
    exp.DType.INT: pl.Int32(),
    exp.DType.DOUBLE: FLOAT64,
    exp.DType.FLOAT: pl.Float32(),
    exp.DType.TEXT: STRING,
    exp.DType.BOOLEAN: BOOLEAN,
}
_NUMERALS = {True: r"^ *([+-]?[0-9]+) *\z", False: r"^ *([+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?) *\z"}


@_reads(exp.Cast, exp.TryCast, args="this to")
def _cast(node: exp.Expr, schema: Schema) -> _Term:
    term, to = _bind(node.this, schema), node.args["to"]
    if to.this in (exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMP) and isinstance(term.value, str):
        return _literal(_moment(term.value), pl.Datetime("us", "UTC"))
    target, source = _CASTS.get(to.this), term.dtype
    if target is None:
        _refuse(f"there is no CAST to {to.sql('spark')}, only to BIGINT, INT, DOUBLE, FLOAT, STRING and BOOLEAN")
    if source in (target, NULL) or target == FLOAT64 and source.is_numeric():
        return _to(term, target)
    if target == pl.Float32() and source != BOOLEAN:  # by way of a double, so that all round alike
        node = exp.Cast(this=node.this, to=exp.DataType(this=exp.DType.DOUBLE))
        term = _cast(node, schema)
        return _Term(target, term.polars.cast(target), f"CAST({term.spark} AS FLOAT)")
    if source == STRING and target.is_numeric():
        numeral = _NUMERALS[target.is_integer()]
        found = f"REGEXP_EXTRACT({term.spark}, {_literal(numeral, STRING).spark}, 1)"
        term = replace(term, polars=term.polars.str.extract(numeral), spark=found)
    elif source.is_numeric() and target == BOOLEAN:
        return _compare(exp.NEQ, term, _literal(0, INT64))
    elif source.is_float() and target == INT64:  # Spark takes 2 to the 63rd for the largest integer
        term = _to(term, FLOAT64)
        term = replace(term, spark=f"NULLIF({term.spark}, 9.223372036854775808E18D)")
    elif not (source == BOOLEAN or source.is_integer() or source.is_numeric() and target.is_integer()):
        _refuse(f"CAST from {source} to {target} would not be the same everywhere")
    return _Term(target, term.polars.cast(target, strict=False), f"TRY_CAST({term.spark} AS {_spark_type(target)})")


_CLOCK: dict[type[exp.Expr], tuple[str, Callable[[pl.Expr], pl.Expr], str]] = {
    exp.Hour: ("HOUR", lambda t: t.dt.hour(), "(PMOD({0}, 86400000000L) DIV 3600000000L)"),
    exp.Minute: ("MINUTE", lambda t: t.dt.minute(), "(PMOD({0}, 3600000000L) DIV 60000000L)"),
    exp.DayOfWeek: (
        "DAYOFWEEK",
        lambda t: t.dt.weekday() % 7 + 1,
        "(PMOD(({0} - PMOD({0}, 86400000000L)) DIV 86400000000L + 4L, 7L) + 1L)",
    ),
}


@_reads(*_CLOCK, args="this")
def _clock(node: exp.Expr, schema: Schema) -> _Term:
    name, function, from_micros = _CLOCK[type(node)]
    inner = node.this.this if isinstance(node.this, exp.TsOrDsToDate) else node.this
    term = _bind(inner, schema)
    if not isinstance(term.dtype, pl.Datetime):
        _refuse(f"{name} needs a timestamp, not {term.dtype} {term.spark}")
    if not term.dtype.time_zone:
        return _Term(INT64, function(term.polars).cast(INT64), f"CAST({name}({term.spark}) AS BIGINT)")
    # Spark's own functions would use the session's time zone
    expr = function(term.polars.dt.convert_time_zone("UTC")).cast(INT64)
    return _Term(INT64, expr, from_micros.format(f"UNIX_MICROS({term.spark})"))


FUNCTIONS: tuple[str, ...] = tuple(
    sorted(
        {name.replace("IS_NAN", "ISNAN") for kind in _READERS if issubclass(kind, exp.Func) for name in kind.sql_names()}
        - {"AND", "OR", "CASE", "CAST", "LIKE", "TRY_CAST", "DAY_OF_WEEK"}
        | {"LOG10", "LOG2", "DAYOFWEEK"}
    )
)
