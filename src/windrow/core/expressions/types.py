"""Types in SQL's words, as Spark has them: read from text, and written.

"ts TIMESTAMP, fare DECIMAL(10, 2)"  ── types_of ──▶  columns, each with its type in Polars
"array<double>"                      ── type_of  ──▶  a type  ── spark_type ──▶  text again
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import polars as pl
import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark

from windrow.core.expressions.limits import LENGTH, not_text, shown, too_long

SIMPLE: dict[str, pl.DataType] = {
    "BOOLEAN": pl.Boolean(),
    "TINYINT": pl.Int8(),
    "SMALLINT": pl.Int16(),
    "INT": pl.Int32(),
    "BIGINT": pl.Int64(),
    "FLOAT": pl.Float32(),
    "DOUBLE": pl.Float64(),
    "STRING": pl.String(),
    "BINARY": pl.Binary(),
    "DATE": pl.Date(),
    "TIMESTAMP": pl.Datetime("us", "UTC"),
    "TIMESTAMP_NTZ": pl.Datetime("us"),
}
_NAMES = {dtype: name for name, dtype in SIMPLE.items()} | {pl.Null(): "VOID"}
_ALSO = {"VARCHAR": "STRING", "CHAR": "STRING", "TIMESTAMP_LTZ": "TIMESTAMP"}


def types_of(text: str) -> dict[str, pl.DataType]:
    """Columns and their types; lists and structs, which a text file cannot hold, are refused."""
    with _refusing(text, "a list such as 'ts TIMESTAMP, speed DOUBLE'"):
        dialect, written = Spark(), f"CREATE TABLE events ({text})"
        parser = dialect.parser()
        vars(parser)["_warn_unsupported"] = lambda: None  # which would go to a log
        (table,) = parser.parse(dialect.tokenize(written), written)
        parsed = {one.name: one.args["kind"] for one in table.this.expressions} if table else {}
        types = {name: _type(node) for name, node in parsed.items()}
    for name, dtype in types.items():
        if dtype.is_nested():
            raise _unknown(parsed[name])
    return types


def type_of(text: str) -> pl.DataType:
    """One type; lists and structs as `array<double>` and `struct<a: int, b: string>`."""
    with _refusing(text, "a type of Spark, such as 'double'"):
        return _type(exp.DataType.build(text, dialect="spark"))


class UnknownType(ValueError):
    """A type that there is not."""


@contextmanager
def _refusing(text: str, what: str) -> Iterator[None]:
    """Whatever the SQL reader makes of a text that it does not understand, one error says so."""
    try:
        if reason := too_long(text, LENGTH):
            raise UnknownType(f"columns have {reason}")
        if not_text(text) is not None:
            raise UnknownType(f"{shown(repr(text))} has half of a character")
        yield
    except UnknownType:
        raise
    except (sqlglot.errors.SqlglotError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(f"{shown(repr(text))} is not {what}") from error


def _type(node: exp.Expression) -> pl.DataType:
    name, inner = node.sql("spark").partition("(")[0], node.expressions
    if name == "DECIMAL":
        precision, scale, *_ = [*(int(one.name) for one in inner), 0] if inner else (10, 0)
        if not 0 <= scale <= precision <= 38:
            raise UnknownType(
                f"{shown(node.sql('spark'))} has more than 38 digits, or more behind the point than in all"
            )
        return pl.Decimal(precision, scale)
    if isinstance(node, exp.DataType) and inner and node.this == exp.DType.ARRAY:
        return pl.List(_type(inner[0]))
    if isinstance(node, exp.DataType) and inner and node.this == exp.DType.STRUCT:
        return pl.Struct({one.name: _type(one.args["kind"]) for one in inner})
    if _ALSO.get(name, name) not in SIMPLE:
        raise _unknown(node)
    return SIMPLE[_ALSO.get(name, name)]


def _unknown(node: exp.Expression) -> UnknownType:
    return UnknownType(f"{shown(node.sql('spark'))} is none of {', '.join(SIMPLE)} and DECIMAL")


def spark_type(dtype: pl.DataType) -> str:
    """A type in Spark's words; what Spark does not have keeps Polars' name."""
    if isinstance(dtype, pl.Decimal):
        return f"DECIMAL({dtype.precision}, {dtype.scale})"
    if isinstance(dtype, pl.Datetime):
        return "TIMESTAMP" if dtype.time_zone else "TIMESTAMP_NTZ"
    return _NAMES.get(dtype, str(dtype).upper())
