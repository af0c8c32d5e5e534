"""Tables at the border: Arrow, Polars, pandas and lists of dicts in, and tables out."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl


class InputError(ValueError):
    """A batch that cannot be taken: which column, and why. The engine is as it was before."""


class ChangedType(InputError):
    """A column whose values the type that it had does not hold."""


def to_polars(data: Any, time: str | None = None) -> pl.DataFrame:
    """A Polars frame of a Polars, Arrow or pandas table or a list of dicts, without a copy where there need be none.

    time:  what the times in the index of a pandas frame are called, where that has no name
    """
    if isinstance(data, pl.DataFrame):
        return data
    if isinstance(data, pl.LazyFrame):
        return data.collect()
    if _is_pandas(data):
        return _of_pandas(data, time)
    if isinstance(data, list | tuple) and all(isinstance(row, Mapping) for row in data):
        return _of_dicts(data)
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        frame = pl.from_arrow(data)
        return frame if isinstance(frame, pl.DataFrame) else frame.struct.unnest()
    raise TypeError(
        "expected an Arrow table, a Polars frame, a pandas frame or a list of dicts, not "
        f"{type(data).__module__}.{type(data).__name__}"
    )


def _of_pandas(data: Any, time: str | None) -> pl.DataFrame:
    """A pandas frame with its index, where that has a name or times: these are columns in all but name."""
    columns = {str(name): data[name] for name in data.columns}
    if len(columns) < len(data.columns):
        twice = next(name for name in columns if list(map(str, data.columns)).count(name) > 1)
        raise InputError(f"two columns are called {twice!r}; rename one")
    index = {}
    for number, name in enumerate(data.index.names):
        values = data.index.get_level_values(number)
        if name is None and values.dtype.kind == "M":
            name = "index" if time is None else time
        if name is not None and str(name) not in columns:
            index[str(name)] = values
    return pl.DataFrame([_series(name, values) for name, values in (index | columns).items()])


def _series(name: str, values: Any) -> pl.Series:
    """A column or an index of pandas."""
    try:
        return pl.Series(name, pl.from_pandas(values))
    except (TypeError, ValueError) as error:  # also what Arrow raises
        raise _mixed(name, values) from error


def _of_dicts(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows as dicts; a column that not all have is null in the others."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pl.DataFrame([_of_values(str(name), [row.get(name) for row in rows]) for name in names])


def _of_values(name: str, values: list[Any]) -> pl.Series:
    """A column of Python's values; whole numbers among others are such."""
    kinds = set(map(type, values))
    is_float = float in kinds and kinds <= {int, float, type(None)}
    try:
        return pl.Series(name, values, dtype=pl.Float64() if is_float else None)
    except (TypeError, OverflowError, pl.exceptions.PolarsError) as error:
        raise _mixed(name, values) from error


def _mixed(name: str, values: Iterable[Any]) -> InputError:
    """The refusal of a column whose values have no type in common."""
    example_of: dict[str, Any] = {}
    for value in values:
        if value is not None and value == value:  # NaN is none
            example_of.setdefault(type(value).__name__, value)
    examples = " and ".join(f"{kind} such as {value!r}" for kind, value in list(example_of.items())[:2])
    return InputError(f"column {name!r} has no one type: it holds {examples}; convert it, or leave it out")


def fitted(column: pl.Series, dtype: pl.DataType) -> pl.Series | None:
    """A column in another type that holds all of its values, such as whole numbers as floats; else None."""
    now = column.dtype
    if now == pl.Null():
        return column.cast(dtype)
    is_wider = (
        (now.is_integer() and dtype.is_numeric())
        or (now == pl.Float32() and dtype == pl.Float64())
        or (now.is_decimal() and dtype.is_decimal())
        or (now == pl.Date() and isinstance(dtype, pl.Datetime) and dtype.time_zone is None)
        or (isinstance(now, pl.Datetime) and isinstance(dtype, pl.Datetime) and _alike(now.time_zone, dtype.time_zone))
        or (isinstance(now, pl.Categorical | pl.Enum) and dtype == pl.String())
    )
    wide = column.cast(dtype, strict=False) if is_wider else column
    return wide if is_wider and wide.cast(now, strict=False).equals(column) else None


def _alike(zone: str | None, other: str | None) -> bool:
    """Whether times of two zones are both moments, or both what a clock shows."""
    return (zone is None) == (other is None)


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
    """The frame as what `like` is; rows of a list stay a frame."""
    if isinstance(like, pl.DataFrame | list | tuple):
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
