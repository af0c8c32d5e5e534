"""Types in SQL's words: read as Polars has them, written as Spark does."""

import polars as pl
import pytest

from windrow.core.expressions.types import SIMPLE, spark_type, type_of, types_of


@pytest.mark.parametrize("name", SIMPLE)
def test_what_is_written_is_read_again(name: str) -> None:
    assert spark_type(type_of(name)) == name
    assert types_of(f"a {name}, b INT") == {"a": SIMPLE[name], "b": pl.Int32()}


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("decimal(12, 2)", pl.Decimal(12, 2)),
        ("decimal(5)", pl.Decimal(5, 0)),
        ("decimal", pl.Decimal(10, 0)),
        ("varchar(3)", pl.String()),
        ("long", pl.Int64()),
        ("timestamp_ltz", pl.Datetime("us", "UTC")),
        ("array<decimal(3, 1)>", pl.List(pl.Decimal(3, 1))),
        ("struct<a: int, b: array<string>>", pl.Struct({"a": pl.Int32(), "b": pl.List(pl.String())})),
    ],
)
def test_types_in_other_words(text: str, dtype: pl.DataType) -> None:
    assert type_of(text) == dtype


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nonsense", "'nonsense' is not a type of Spark, such as 'double'"),
        ("map<int, int>", r"MAP<INT, INT> is none of BOOLEAN, TINYINT, .* and DECIMAL"),
        ("array<interval day>", "INTERVAL DAY is none of BOOLEAN"),
        ("array", "ARRAY is none of BOOLEAN"),
    ],
)
def test_what_is_no_type_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        type_of(text)


def test_columns_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(ValueError, match="'a b c d' is not a list such as 'ts TIMESTAMP, speed DOUBLE'"):
        types_of("a b c d")
    with pytest.raises(ValueError, match="ARRAY<INT> is none of BOOLEAN"):
        types_of("ts TIMESTAMP, a ARRAY<INT>")
