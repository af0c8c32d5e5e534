"""What tables of every mechanism share: those that say how far local nodes are, and which are gone; and checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import polars as pl

from windrow.core.windows.fixed import INT64_MIN

GONE = "gone"  # from a node about local nodes below it: nobody waits for them any more, or again
GONE_COLUMNS: dict[str, pl.DataType] = {"node": pl.String(), "gone": pl.Boolean()}

PROGRESS = "progress"  # from local nodes


class NodeProgress(NamedTuple):
    """How far a local node is, as it reports it to the root."""

    node: str
    final: int = INT64_MIN  # what it has not sent is not older; not reported before the end where no window counts
    idle: bool = False
    received: int = 0  # the number of the last request that has come
    over: bool = False  # nothing can be requested of it any more
    rewound: int = 0  # the number of the last rewind of a directive that it has followed
    late: int = 0  # events that came too late for counting windows since the last report


PROGRESS_COLUMNS: dict[str, pl.DataType] = dict(pl.DataFrame([NodeProgress("")]).schema)


def progress_table(progress: NodeProgress) -> pl.DataFrame:
    return pl.DataFrame([progress], schema=PROGRESS_COLUMNS, orient="row")


def gone_table(names: Iterable[str], gone: bool) -> pl.DataFrame:
    """That nobody waits for these nodes, or everybody again."""
    return pl.DataFrame([(name, gone) for name in names], schema=GONE_COLUMNS, orient="row")


def lacks(table: pl.DataFrame, columns: Iterable[str]) -> bool:
    """Whether a value is missing in one of these columns."""
    return any(table[column].null_count() for column in columns)


def impossible(name: str, reason: str | None) -> str | None:
    """That a table cannot be in a batch, as a whole sentence; None if there is no reason."""
    return reason and f"{name} cannot be in a batch: {reason}"


def differs(name: str, table: pl.DataFrame, wanted: Mapping[str, pl.DataType], needed: Iterable[str]) -> str | None:
    """What columns of a table are of another type or not there."""
    for column, dtype in table.schema.items():
        if wanted.get(column, dtype) != dtype:
            return f"{column!r} of {name} is {dtype} in its batch, not {wanted[column]}"
    missing = [column for column in needed if column not in table.columns]
    return f"{name} has no {missing[0]!r} in its batch" if missing else None
