"""Tables at the border: Arrow, Polars and pandas in, and the same out."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl


def to_polars(data: Any) -> pl.DataFrame:
    """A Polars frame of a Polars, Arrow or pandas table, without a copy where there need be none."""
    if isinstance(data, pl.DataFrame):
        return data
    if isinstance(data, pl.LazyFrame):
        return data.collect()
    if _is_pandas(data):
        return pl.from_pandas(data)
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        frame = pl.from_arrow(data)
        return frame if isinstance(frame, pl.DataFrame) else frame.struct.unnest()
    raise TypeError(
        f"expected an Arrow table, a Polars frame or a pandas frame, not {type(data).__module__}.{type(data).__name__}"
    )


def _is_pandas(data: Any) -> bool:
    """Whether it is a frame of pandas, which is not imported for the question."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)


def in_parts(batches: Iterable[Any], most: int) -> Iterator[list[Any]]:
    """Arrow batches, about so many rows at a time."""
    part: list[Any] = []
    size = 0
    for batch in batches:
        part.append(batch)
        size += batch.num_rows
        if size >= most:
            yield part
            part, size = [], 0
    if size:
        yield part


def flag_sorted(frame: pl.DataFrame, columns: Iterable[str]) -> pl.DataFrame:
    """Tell Polars which of these columns are in order, so that this is found out once."""
    for name in columns:
        if name in frame.columns and frame[name].null_count() == 0 and frame[name].is_sorted():
            frame = frame.with_columns(pl.col(name).set_sorted())
    return frame


def as_given(frame: pl.DataFrame, like: Any) -> Any:
    """The frame as what `like` is."""
    if isinstance(like, pl.DataFrame):
        return frame
    if isinstance(like, pl.LazyFrame):
        return frame.lazy()
    if _is_pandas(like):
        return frame.to_pandas()
    return frame.to_arrow()


def empty_frame(schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """A frame without rows; Polars itself would check the type of every column, here each is checked once."""
    types = {id(dtype): dtype for dtype in schema.values()}
    nothing = {number: pl.Series([], dtype=dtype) for number, dtype in types.items()}
    return pl.DataFrame([nothing[id(dtype)].alias(name) for name, dtype in schema.items()])


def run_numbers(frame: pl.DataFrame, columns: Sequence[str]) -> npt.NDArray[np.int64]:
    """Runs of equal rows, numbered from 0; null equals null, NaN equals NaN, -0.0 equals 0.0."""
    numbered = pl.col(columns[0]).rle_id() if len(columns) == 1 else pl.struct(columns).rle_id()
    return frame.select(numbered.cast(pl.Int64)).to_series().to_numpy()


def join_keys(
    left: pl.DataFrame, right: pl.DataFrame, on: Sequence[str], how: Literal["left", "anti", "inner", "semi"]
) -> pl.DataFrame:
    """Join on key columns in the order of `left`; null equals null, NaN equals NaN, -0.0 equals 0.0.

    Polars compares NaN as unequal when one side has a single row, so floats are joined as text.
    """
    floats = [name for name in on if left.schema[name].is_float()]
    texts = [_text_of(name) for name in floats]
    names = [f"text of {name}" if name in floats else name for name in on]
    other = right.with_columns(texts).drop(floats) if floats else right
    rows = left.with_columns(texts).join(other, on=names, how=how, nulls_equal=True, maintain_order="left")
    return rows.drop(f"text of {name}" for name in floats)


def key_numbers(table: pl.DataFrame, keys: pl.DataFrame) -> npt.NDArray[np.int64]:
    """The number of each row's key among all keys, -1 where it is none of them; without key columns all are 0."""
    if not keys.width:
        return np.zeros(max(1, table.height), np.int64)
    rows = join_keys(table[keys.columns], keys.with_row_index("_number"), keys.columns, "left")
    return rows["_number"].cast(pl.Int64).fill_null(-1).to_numpy()


def _text_of(name: str) -> pl.Expr:
    value = pl.when(pl.col(name) == 0).then(0.0).otherwise(pl.col(name))
    return value.cast(pl.String).alias(f"text of {name}")
