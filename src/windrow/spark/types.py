"""Types on both sides: of Spark, and of the Polars and Arrow tables that its workers see."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from windrow.core.expressions.errors import QueryError
from windrow.core.expressions.types import spark_type
from windrow.spark.pickling import mapped

_SIMPLE: dict[type[t.DataType], pl.DataType] = {
    t.BooleanType: pl.Boolean(),
    t.ByteType: pl.Int8(),
    t.ShortType: pl.Int16(),
    t.IntegerType: pl.Int32(),
    t.LongType: pl.Int64(),
    t.FloatType: pl.Float32(),
    t.DoubleType: pl.Float64(),
    t.StringType: pl.String(),
    t.BinaryType: pl.Binary(),
    t.DateType: pl.Date(),
    t.TimestampType: pl.Datetime("us", "UTC"),
    t.TimestampNTZType: pl.Datetime("us"),
    t.NullType: pl.Null(),
}
SHIFT_MS = 2**52  # a unit of an integer time column is a millisecond of Spark's watermark, which cannot be negative
END_MS = 2**53  # Spark's watermark once nothing can come any more, later than any other
_BACK = {str(dtype): kind for kind, dtype in _SIMPLE.items()}


def polars_type(dtype: t.DataType) -> pl.DataType | None:
    """The type that a column of Spark has in Polars; None if Polars has none."""
    if isinstance(dtype, t.DecimalType):
        return pl.Decimal(dtype.precision, dtype.scale)
    if isinstance(dtype, t.ArrayType):
        inner = polars_type(dtype.elementType)
        return None if inner is None else pl.List(inner)
    if isinstance(dtype, t.StructType):
        columns = polars_columns(dtype)
        return pl.Struct(columns) if len(columns) == len(dtype.fields) else None
    return _SIMPLE.get(type(dtype))


def polars_columns(schema: t.StructType) -> dict[str, pl.DataType]:
    """The columns that queries can read."""
    types = {field.name: polars_type(field.dataType) for field in schema.fields}
    return {name: dtype for name, dtype in types.items() if dtype is not None}


def spark_data_type(dtype: pl.DataType) -> t.DataType:
    """The way back; 8- and 16-bit integers without a sign, and such, become the next larger type."""
    if isinstance(dtype, pl.Decimal):
        return t.DecimalType(dtype.precision or 38, dtype.scale)
    if isinstance(dtype, pl.List):
        return t.ArrayType(spark_data_type(dtype.inner))  # type: ignore[arg-type]
    if isinstance(dtype, pl.Struct):
        return t.StructType([t.StructField(field.name, spark_data_type(field.dtype)) for field in dtype.fields])  # type: ignore[arg-type]
    if isinstance(dtype, pl.Datetime):
        return t.TimestampType() if dtype.time_zone else t.TimestampNTZType()
    if dtype.is_unsigned_integer():
        return t.LongType()
    if str(dtype) not in _BACK:
        raise QueryError(f"a result of type {dtype} has no column type in Spark")
    return _BACK[str(dtype)]()


def struct(columns: Mapping[str, pl.DataType]) -> t.StructType:
    return t.StructType([t.StructField(name, spark_data_type(dtype)) for name, dtype in columns.items()])


def to_arrow(frame: pl.DataFrame, schema: pa.Schema, most: int = 100_000) -> Iterator[pa.RecordBatch]:
    """The frame in batches of exactly this schema: Spark reads columns by their place and casts nothing."""
    table = frame.select(schema.names).to_arrow().cast(schema)
    yield from table.to_batches(max_chunksize=most)


def mapped_to_frames(
    df: DataFrame, function: Callable[[Iterator[Any]], Iterator[pl.DataFrame]], columns: Mapping[str, pl.DataType]
) -> DataFrame:
    """`mapped` for a function that gives frames with these columns."""
    types = struct(columns)

    def batches_of(batches: Iterator[Any]) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(types)
        for frame in function(batches):
            yield from to_arrow(frame, schema)

    return mapped(df, batches_of, types)


def arrow_schema(schema: t.StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


def from_arrow(batches: Iterable[pa.RecordBatch], types: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Batches from Spark as one frame with the types that are expected; times come in the session's time zone."""
    filled = [batch for batch in batches if batch.num_rows]
    return typed(pa.Table.from_batches(filled), types) if filled else pl.DataFrame(schema=types)


def typed(table: pa.Table, types: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """A table from Spark as a frame; columns that are not mentioned stay as they are."""
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    casts = []
    for name, dtype in types.items():
        if frame.schema[name] != dtype:
            column = pl.col(name)
            zoned = isinstance(dtype, pl.Datetime) and dtype.time_zone is not None
            casts.append(column.dt.convert_time_zone("UTC") if zoned else column.cast(dtype))
    return frame.with_columns(casts) if casts else frame


def in_spark_words(error: QueryError, schema: t.StructType) -> QueryError:
    """The error with Spark's names of types, and with the type of a column that Polars does not know."""
    text = str(error)
    if missing := re.search(r"there is no column '([^']+)'", text):
        name = missing[1]
        kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
        if name in kinds:
            whose = text[: missing.start()]
            return QueryError(f"{whose}column {name!r} is {kinds[name].upper()}, which no window query can read")
    for field in schema.fields:
        dtype = polars_type(field.dataType)
        if dtype is not None and dtype.is_nested():
            text = text.replace(str(dtype), field.dataType.simpleString().upper())
    parts = re.split(r"('[^']*')", text)  # names in quotes stay as they are
    for at in range(0, len(parts), 2):
        parts[at] = _TYPE.sub(lambda type_name: _spark_name(type_name[0]), parts[at])
    return QueryError("".join(parts))


_TYPE = re.compile(
    r"\b(?:Int8|Int16|Int32|Int64|Float32|Float64|String|Binary|Boolean|Date|Null"
    r"|Decimal\(precision=\d+, scale=\d+\)|Datetime\(time_unit='us', time_zone=(?:None|'UTC')\))(?!\w)"
)


def _spark_name(text: str) -> str:
    if text.startswith("Decimal"):
        precision, scale = re.findall(r"\d+", text)
        return f"DECIMAL({precision}, {scale})"
    if text.startswith("Datetime"):
        return "TIMESTAMP" if "UTC" in text else "TIMESTAMP_NTZ"
    return spark_type(getattr(pl, text)())
