"""Dropping repeats: `Query(distinct_on=[…])`.

An event is a repeat when one with the same values in these columns was kept before it and their times differ by at
most the lateness. What was kept is remembered until the watermark says that no such event can come any more.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from windrow.frames import join_keys
from windrow.windows import INT64_MAX, INT64_MIN


def fresh(
    events: pl.DataFrame, columns: Sequence[str], time: str, since: int, lateness: int | None, kept: pl.DataFrame | None
) -> tuple[pl.Series, pl.DataFrame]:
    """Which events are no repeats, of those since a time, and what has been kept so far."""
    within = INT64_MAX if lateness is None else lateness
    names = [f"distinct:{column}" for column in columns]
    left = events.select(*names, pl.col(time).alias("time")).with_row_index("row")
    left = left.filter(pl.col("time") >= since) if since > INT64_MIN else left
    known = left.select(*names, "time").clear() if kept is None else kept
    left = _apart(left, known, names, within)
    found = [left.clear()]
    while left.height:  # as often as one value is kept in one batch
        first = left.unique(names, keep="first", maintain_order=True)
        found.append(first)
        rest = left.join(first.select("row"), on="row", how="anti", maintain_order="left")
        left = _apart(rest, first.select(*names, "time"), names, within)
    rows = pl.concat(found)
    mask = pl.select(pl.int_range(events.height, dtype=pl.UInt32).is_in(rows["row"].implode())).to_series()
    return mask, pl.concat([known, rows.select(*names, "time")])


def forget(kept: pl.DataFrame, lateness: int | None, watermark: int) -> pl.DataFrame:
    return kept if lateness is None else kept.filter(pl.col("time") >= watermark - lateness)


def _apart(events: pl.DataFrame, known: pl.DataFrame, names: list[str], within: int) -> pl.DataFrame:
    """The events that are further than `within` from every known one with the same values."""
    if not known.height or not events.height:
        return events
    pairs = join_keys(events, known.rename({"time": "time_kept"}), names, "inner")
    repeats = pairs.filter((pl.col("time") - pl.col("time_kept")).abs() <= within).select("row").unique()
    return events.join(repeats, on="row", how="anti", maintain_order="left")
