"""What tables of every mechanism share: the one that says which local nodes are gone, and how columns are checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import polars as pl

GONE = "gone"  # from a node about local nodes below it: nobody waits for them any more, or again
GONE_COLUMNS: dict[str, pl.DataType] = {"node": pl.String(), "gone": pl.Boolean()}


def gone_table(names: Iterable[str], gone: bool) -> pl.DataFrame:
    """That nobody waits for these nodes, or everybody again."""
    return pl.DataFrame([(name, gone) for name in names], schema=GONE_COLUMNS, orient="row")


def lacks(table: pl.DataFrame, columns: Iterable[str]) -> bool:
    """Whether a value is missing in one of these columns."""
    return any(table[column].null_count() for column in columns)


def differs(name: str, table: pl.DataFrame, wanted: Mapping[str, pl.DataType], needed: Iterable[str]) -> str | None:
    """What columns of a table are of another type or not there."""
    for column, dtype in table.schema.items():
        if wanted.get(column, dtype) != dtype:
            return f"{column!r} of {name} is {dtype} in its batch, not {wanted[column]}"
    missing = [column for column in needed if column not in table.columns]
    return f"{name} has no {missing[0]!r} in its batch" if missing else None
