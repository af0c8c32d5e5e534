"""What columns of strangers hold, looked at before they are used: bounds, and lists that belong together.

Every check answers in a few reads of a column, because tables of nodes have few rows and come often.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from windrow.core.arrays.range_queries import Ints

MOST = 2**48  # events that a table can speak of: sums over some thousand tables fit into 64 bits


def outside(column: pl.Series, low: int, high: int) -> int | float | None:
    """A number of a column that is not from `low` to `high`; None if there is none. A null is no number."""
    numbers = (column.drop_nulls() if column.null_count() else column).to_numpy()
    inside = (numbers >= low) & (numbers <= high)  # which NaN is not
    return None if inside.all() else numbers[~inside][0].item()


def wrong_numbers(columns: Mapping[str, pl.Series], low: int, high: int) -> str | None:
    """The first of some columns with a number that is not from `low` to `high`, as part of a sentence."""
    for name, column in columns.items():
        if (number := outside(column, low, high)) is not None:
            return f"{name!r} is {number:,}"
    return None


def wrong_counts(columns: Mapping[str, pl.Series]) -> str | None:
    """Likewise with a number of events that cannot be, or more than `MOST` in all rows."""
    if reason := wrong_numbers(columns, 0, MOST):
        return reason
    totals = ((name, column.sum()) for name, column in columns.items())  # of few enough rows for 64 bits to hold it
    return next((f"{name!r} is {total:,} in all" for name, total in totals if not 0 <= total <= MOST), None)


def lacking(columns: Mapping[str, pl.Series]) -> str | None:
    """The first of some columns in which a value is missing, as part of a sentence."""
    return next(
        (f"{name!r} has no value where one is needed" for name, one in columns.items() if one.null_count()), None
    )


def laid_out(column: pl.Series) -> tuple[pl.Series, Ints]:
    """The entries of lists end to end, and how many each list has, 0 for null: read off Arrow's offsets."""
    if column.null_count():
        column = column.fill_null(pl.Series([[]], dtype=column.dtype))
    array = column.to_arrow()
    offsets = array.offsets.to_numpy()
    entries = pl.Series(array.values.slice(offsets[0], offsets[-1] - offsets[0]))
    return entries, np.diff(offsets)


def wrong_lengths(columns: Mapping[str, pl.Series]) -> str | None:
    """The first list column whose lists are not as long as those of the column before it, as part of a sentence."""
    before: Ints | None = None
    for name, column in columns.items():
        _, sizes = laid_out(column)
        if before is not None and not np.array_equal(before, sizes):
            return f"the lists of {name!r} are not as long as those beside them"
        before = sizes
    return None


def ascends(entries: pl.Series, starts: Ints) -> bool:
    """Whether lists of values without null, laid end to end, ascend strictly, each from where it starts."""
    if len(entries) < 2:
        return True
    numbers = entries.to_numpy() if entries.dtype.is_numeric() and not entries.dtype.is_decimal() else None
    if numbers is not None:
        follows = numbers[1:] > numbers[:-1]
        if numbers.dtype.kind == "f":  # NaN is last, and once
            follows |= np.isnan(numbers[1:]) & ~np.isnan(numbers[:-1])
    else:
        follows = (entries[1:] > entries[:-1]).fill_null(False).to_numpy().copy()
    follows[starts[(starts > 0) & (starts < len(entries))] - 1] = True
    return bool(follows.all())
