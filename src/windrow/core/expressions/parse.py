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
- Integers are computed in 64 bits. Where a step of `+ - *`, minus or abs leaves them, the event is refused, or left out
  with `bad_events="drop"`: never another number. What CASE, IF, COALESCE, AND and OR do not come to is not looked at,
  nor what has a null operand, nor an event that the query's filters leave out.
- `/` divides doubles; division and remainder by zero are null. `%` is for integers and has the dividend's sign.
- Logic has three values. NaN equals NaN and is greater than every number; -0.0 equals 0.0. `isnan(NULL)` is false.
- `greatest` and `least` skip nulls, `concat` and `||` do not. Strings compare by code point.
- `sqrt` of a negative number is NaN, `ln` of zero or less is null; `log(b, x)`, and so `log10` and `log2`, is ln(x) /
  ln(b). `power` is Java's: 1 to the power of NaN or infinity is NaN. The last bit of exp, ln, power and the
  trigonometric functions is the machine's own.
- `round(x, n)` rounds a half away from zero, of a double as it is written (1.005 to 1.01); from 10^14 / 10^n on it
  stays as it is. Integers stay, decimals get n digits, null where a 39th could be needed. `sign` of NaN is NaN.
- `ceil` and `floor` give BIGINT. They and CAST give null where the number does not fit or the text is not a number
  (digits with a sign, for DOUBLE also fraction and exponent, spaces around them). CAST cuts toward zero.
- `trim`, `ltrim` and `rtrim` take spaces only; `left`, `right` and `substring` count code points. `replace` takes
  literals. `RLIKE` looks anywhere for a literal pattern in signs that Java and Rust read alike (`patterns`): classes
  are those of ASCII, `.` is all but ends of lines, `$` the very end of the text.
- A timestamp compares with a timestamp or an ISO literal, which is UTC unless it names a zone; `year` to `second`,
  `extract`, `date_trunc` and CAST to DATE are those of UTC (`dayofweek`: Sunday is 1; weeks are those of ISO and
  begin on Monday). A Datetime with a zone is Spark's TIMESTAMP, without one TIMESTAMP_NTZ. A date compares with a
  date or a literal such as DATE '2024-05-31', which beside a timestamp is its midnight.

Limits: decimals under `+ - *` must fit 38 digits (beyond, Polars and the evaluator raise; so does Spark, or with ANSI
off it gives null); column names match exactly, because events can have `Speed` and `speed`, and Spark's rule depends on
a setting of its session: another case is refused with "did you mean"; `upper` and `lower` follow each engine's Unicode
version.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, repeat

import polars as pl
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, SqlglotError

from windrow.core.expressions.errors import hint
from windrow.core.expressions.functions import CASTS, COPIES, LAZY, RULES, STEPS, cast, choose, compare, least, negate
from windrow.core.expressions.instead import COLUMN, INSTEAD
from windrow.core.expressions.limits import (
    DEPTH,
    DIGITS,
    KEPT,
    LENGTH,
    LEVELS,
    SIZE,
    TOKENS,
    beyond,
    not_text,
    shown,
    too_deep,
    too_long,
)
from windrow.core.expressions.terms import (
    INT64,
    NULL,
    STRING,
    Overflow,
    Refusal,
    Term,
    any_overflow,
    day,
    instant,
    literal,
    refuse,
    whole,
)

Schema = Mapping[str, pl.DataType]


class ExpressionError(ValueError):
    """An expression that cannot be read, or cannot mean the same everywhere; names the text and the reason."""

    unread: int | None = None  # where what cannot be read ends

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text, reason)
        self.text, self.reason = text, reason

    def __str__(self) -> str:
        return f"expression {shown(repr(self.text))}: {shown(self.reason)}"


@contextmanager
def _naming(text: str) -> Iterator[None]:
    try:
        yield
    except Refusal as refusal:
        error = ExpressionError(text, str(refusal))
        error.unread = refusal.unread
        raise error from None
    except RecursionError:
        raise ExpressionError(text, "it is nested too deeply") from None
    except SqlglotError as error:  # in how it writes what is refused
        raise ExpressionError(text, f"it is not a complete SQL expression: {error}") from None


@dataclass(frozen=True, repr=False)
class Expression:
    """A checked expression; make it with `parse`. Do not change `node`."""

    text: str
    columns: tuple[str, ...] = field(compare=False)
    node: exp.Expr = field(compare=False, repr=False)

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

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

    def overflow(self, schema: Schema) -> Overflow | None:
        """Where its integers leave 64 bits, None if they cannot; Polars wraps around there, and Spark gives null."""
        return self._bind(schema).overflow

    def _bind(self, schema: Schema) -> Term:
        with _naming(self.text):
            term = _column(self.node.name, schema) if self.is_column else whole(_bind(self.node, schema))
            if term.dtype == NULL and not self.is_column:
                refuse("it is always NULL and has no type; CAST the NULL")
            return term

    def __reduce__(self) -> tuple[Callable[[str], Expression], tuple[str]]:
        return parse, (self.text,)


# --- reading ------------------------------------------------------------------------------------------------------


def parse(text: str) -> Expression:
    """Read and check one expression. Needs no schema; types are checked by `dtype`, `polars` and `spark`."""
    return _parsed(text) if len(text) <= KEPT else _parse(text)


def _parse(text: str) -> Expression:
    with _naming(text):
        node = _read(text)
        _check_levels(node)
        for part in node.walk():
            _check(part)
        columns = dict.fromkeys(column.name for column in node.find_all(exp.Column, bfs=False))
        return Expression(node.sql(dialect="spark", comments=False), tuple(columns), node)


_parsed = lru_cache(maxsize=4096)(_parse)


def both(a: Expression | None, b: Expression | None) -> Expression | None:
    """The predicate that holds where both do; None always does."""
    if a is None or b is None or a == b:
        return a or b
    return parse(f"({a.text}) AND ({b.text})")


def _read(text: str) -> exp.Expr:
    if reason := too_long(text, LENGTH):
        raise Refusal(f"it has {reason}")
    if (at := not_text(text)) is not None:
        raise Refusal(f"it has half of a character, {text[at]!r}", at + 1)
    dialect = Spark()
    dialect.to_json_path = lambda path: path  # type: ignore[method-assign]  # it logs what it cannot read
    try:
        tokens = dialect.tokenize(text)
        if len(tokens) > TOKENS:
            raise Refusal(f"it has {beyond('words and signs', len(tokens), TOKENS)}", tokens[TOKENS].end + 1)
        if deep := too_deep([token.token_type for token in tokens]):
            raise Refusal(f"it is nested too deeply: {beyond('levels', deep[1], DEPTH)}", tokens[deep[0]].end + 1)
        # as a condition, not as a statement: `load > 0.8` is a comparison, not LOAD DATA
        nodes = dialect.parser().parse_into(exp.Condition, tokens, text)
    except SqlglotError as error:
        if re.match(r"\s*(SELECT|WITH)\b", text, re.IGNORECASE):
            refuse("it is a query; write an expression over columns, such as speed * 3.6")
        detail = (getattr(error, "errors", None) or [{}])[0]
        where = f" at {detail['highlight']!r}, column {detail['col']}" if detail.get("highlight") else ""
        raise Refusal(f"it is not a complete SQL expression{where}", detail.get("col") or 0) from None
    except _NOT_EXPECTED as error:  # of a reader that did not expect this text
        raise Refusal("it is not a complete SQL expression") from error
    if len(nodes) > 1:
        refuse("it holds several statements")
    return nodes[0].unnest() if nodes and nodes[0] is not None else refuse("it is empty, or not an expression")


_NOT_EXPECTED = (LookupError, AttributeError, TypeError, ValueError)
_OF_DAYS = (exp.Day, exp.DayOfMonth, exp.DayOfWeek, exp.DayOfYear, exp.WeekOfYear, exp.Month, exp.Year)
_CHAINS = (exp.Connector, exp.DPipe)  # of which a long one is one level


def _check_levels(node: exp.Expr) -> None:
    """Refuse an expression of more levels than all that read it after this can take."""
    deepest, waiting = 0, [(node, 1)]
    while waiting:
        inner, level = waiting.pop()
        deepest = max(deepest, level)
        for part in inner.iter_expressions():
            waiting.append((part, level + (type(part) is not type(inner) or not isinstance(inner, _CHAINS))))
    if deepest > LEVELS:
        refuse(f"it is nested too deeply: {beyond('levels', deepest, LEVELS)}; compute parts of it as columns before")


def _check(node: exp.Expr) -> None:
    """Refuse what has no rule, or uses more of its node than the rule knows; write one meaning in one way."""
    if isinstance(node.parent, exp.DataType) or isinstance(node, (exp.Identifier, exp.DataType)):
        return
    if isinstance(node, exp.TsOrDsToDate) and isinstance(node.parent, _OF_DAYS):
        return  # sqlglot's own addition
    if type(node) not in _FORMS:
        refuse(_reason(node))
    if isinstance(node, exp.Concat) and "safe" not in node.args:
        refuse("two strings stand side by side; write \\' for a quote inside a string, || to join")
    # `safe` only tells TRY_CAST from CAST, which are the same here; the other three are set by the dialect
    allowed = {*_FORMS[type(node)].split(), "negate", "safe", "typed", "coalesce", "ignore_nulls"}
    if any(value and name not in allowed for name, value in node.args.items()):
        refuse("subqueries are not allowed" if node.find(exp.Query) else f"{node.sql('spark')} is not supported")
    if sum(len(one) if isinstance(one, list) else one is not None for one in node.args.values()) < _NEEDED[type(node)]:
        refuse(f"{node.sql('spark')} lacks an argument")
    if isinstance(node, exp.Is) and not isinstance(node.expression, (exp.Null, exp.Boolean)):
        refuse(f"{node.sql('spark')} is not supported")
    if isinstance(node, (exp.Cast, exp.TryCast)):
        node.set("safe", None)
        if node.args["to"].this.name not in CASTS and not (_is_moment(node) and node.this.is_string):
            others = ", ".join(CASTS).replace("TEXT", "STRING")
            refuse(f"there is no CAST to {node.args['to'].sql('spark')}, only to {others}")
    if isinstance(node, exp.Column):
        if node.name == "*" or re.fullmatch(r"\^.*\$", node.name, re.DOTALL):
            refuse(f"Polars reads the column name {node.name!r} as a pattern; rename the column")
        node.this.set("quoted", not _is_plain(node.name))
    elif isinstance(node, exp.Literal) and not node.is_string:
        number = _number(node.name)
        if number == math.inf or (isinstance(number, int) and number >= 2**63):
            refuse(f"the number {node.name} is out of range")
        node.set("this", repr(number))


def _is_moment(node: exp.Expr) -> bool:
    """TIMESTAMP '…' or DATE '…', which sqlglot reads as casts."""
    return node.args["to"].this.name in ("TIMESTAMPTZ", "TIMESTAMP", "DATE")


def _reason(node: exp.Expr) -> str:
    if isinstance(node, exp.Window):
        return "window functions are not allowed"
    if isinstance(node, exp.Func) and _name(node).lower() in INSTEAD:
        return unknown(_name(node))
    if isinstance(node, exp.AggFunc):
        return f"{node.sql_name()} is an aggregate function; an expression sees one event"
    if isinstance(node, (exp.Query, exp.SubqueryPredicate)):
        return "subqueries are not allowed"
    if isinstance(node, (exp.ILike, exp.IntDiv)):
        name = "ILIKE" if isinstance(node, exp.ILike) else "DIV"
        return f"{name} is not supported; {INSTEAD[name.lower()]}"
    if isinstance(node, exp.Func):
        return unknown(_name(node))
    return f"{node.sql('spark')} is not supported"


def _name(node: exp.Func) -> str:
    """What a function is called in Spark, where sqlglot knows it."""
    if isinstance(node, exp.Anonymous):
        return node.name
    try:
        written = re.match(r"(\w+)(?:\(|\Z)", node.sql("spark", unsupported_level=ErrorLevel.IGNORE))
    except _NOT_EXPECTED:  # of a writer that did not expect these arguments
        written = None
    return written[1] if written and written[1] not in FUNCTIONS else node.sql_name()


def unknown(name: str, also: Collection[str] = (), otherwise: str = "") -> str:
    """The refusal of a function that there is not: what to write instead, whose names are near, or what else to do."""
    if name.lower() in INSTEAD:
        instead = INSTEAD[name.lower()]
        return f"there is no function {name}; {otherwise if otherwise and instead == COLUMN else instead}"
    names = {one.lower(): one for one in (*FUNCTIONS, *also)}
    near = [names[one] for one in difflib.get_close_matches(name.lower()[:100], names, n=2, cutoff=0.65)]
    hint = f"did you mean {' or '.join(near)}?" if near else otherwise
    return f"there is no function {name}" + (f"; {hint}" if hint else "")


@lru_cache(maxsize=4096)
def _is_plain(name: str) -> bool:
    """Whether a name reads as a column without backticks: `interval` does not, before a minus."""
    probe = f"{name} - 1 = {name}"
    try:
        node = _read(probe)
    except Refusal:
        return False
    names = [column.name for column in node.find_all(exp.Column)]
    return bool(re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII)) and names == [name, name] and node.sql("spark") == probe


def _number(text: str) -> int | float:
    try:
        return int(text) if text.isdecimal() and len(text) <= DIGITS else float(text)
    except ValueError:
        refuse(f"{text!r} is not a number")


# --- binding ------------------------------------------------------------------------------------------------------


def _bind(node: exp.Expr, schema: Schema) -> Term:
    """The term of a node, with its size: that of its operands, as often as its rule writes them down."""
    size, operands = 1, []

    def bound(part: exp.Expr, times: int = 1) -> Term:
        nonlocal size
        term = _bind(part, schema)
        if not isinstance(node, STEPS):
            term = whole(term)
        operands.append(term)
        size += term.size * times * (2 if term.overflow and isinstance(node, LAZY) else 1)
        if size > SIZE:
            refuse(f"it becomes {beyond('terms', size, SIZE)}: %, greatest and their like repeat what they are over")
        return term

    term = _term(node, schema, bound)
    if term.overflow is None and not isinstance(node, LAZY):
        term = replace(term, overflow=any_overflow(*(one.overflow for one in operands)))
    return replace(term, size=size)


def _term(node: exp.Expr, schema: Schema, bind: Callable[..., Term]) -> Term:
    if isinstance(node, exp.Column):
        term = _column(node.name, schema)
        if isinstance(term.dtype, (pl.Categorical, pl.Enum)):
            return replace(term, dtype=STRING, polars=term.polars.cast(STRING))
        beyond = term.dtype in (pl.UInt64, pl.UInt128, pl.Int128)  # Spark has no such integers
        return replace(term, dtype=INT64, polars=term.polars.cast(INT64)) if beyond else term
    if isinstance(node, exp.Var):
        return literal(node.name)
    if isinstance(node, (exp.Literal, exp.Boolean, exp.Null)):
        return literal(_number(node.name) if node.is_number else node.args.get("this"))
    if isinstance(node, (exp.Cast, exp.TryCast)):
        if _is_moment(node) and node.this.is_string:
            if node.args["to"].this.name == "DATE":
                return literal(day(node.this.name), pl.Date())
            return literal(instant(node.this.name), pl.Datetime("us", "UTC"))
        return cast(bind(node.this), CASTS[node.args["to"].this.name])
    if isinstance(node, exp.Case):
        subject = bind(node.this, len(node.args["ifs"])) if node.this else None
        ifs = [(bind(part.this), bind(part.args["true"])) for part in node.args["ifs"]]
        choices = [(compare("=", subject, when) if subject else when, then) for when, then in ifs]
        default = node.args.get("default")
        return choose("CASE", choices, bind(default) if default else literal(None))
    if isinstance(node, _CHAINS):
        parts = list(node.flatten())
    else:
        values = [node.args[name] for name in _FORMS[type(node)].split() if node.args.get(name)]
        values = [exp.Var(this=value) if isinstance(value, str) else value for value in values]
        parts = [part for value in values for part in (value if isinstance(value, list) else [value])]
    parts = [part.this if isinstance(part, exp.TsOrDsToDate) else part for part in parts]
    first, *others = (len(parts), 1) if isinstance(node, exp.In) else COPIES.get(type(node), (1,))
    times = chain([first], others, repeat((others or [first])[-1]))
    term = RULES[type(node)][1](*map(bind, parts, times))
    return negate(term) if node.args.get("negate") else term


def _column(name: str, schema: Schema) -> Term:
    if name not in schema:
        refuse(f"there is no column {name!r}; {hint(name, schema)}")
    quoted = name.replace("`", "``")
    return Term(schema[name], pl.col(name), f"`{quoted}`")


_FORMS: dict[type[exp.Expr], str] = {
    **{kind: form for kind, (form, _) in RULES.items()},
    exp.Column: "this",
    exp.Literal: "this is_string",
    exp.Boolean: "this",
    exp.Var: "this",
    exp.Null: "",
    exp.Cast: "this to",
    exp.TryCast: "this to",
    exp.Case: "this ifs default",
}
_NEEDED = dict.fromkeys(_FORMS, 0) | {kind: least(rule) for kind, (_, rule) in RULES.items()}
FUNCTIONS = sorted(
    {name for kind in RULES if issubclass(kind, exp.Func) for name in kind.sql_names()}
    - {"AND", "OR", "LIKE", "IS_NAN", "DAY_OF_WEEK", "DAY_OF_MONTH", "DAY_OF_YEAR", "WEEK_OF_YEAR", "IIF", "LEN"}
    - {"TIMESTAMP_TRUNC", "ENDS_WITH", "STARTS_WITH"}
    | {"LOG10", "LOG2", "DATE_TRUNC", "LTRIM", "RTRIM", "MOD"}
)
