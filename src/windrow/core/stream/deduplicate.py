"""Dropping repeats: `Query(distinct_on=[…])`.

An event is a repeat when one with the same values in these columns was kept before it and their times differ by at
most the lateness. What was kept is remembered as long as such an event could still count in a window.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from windrow.core.arrays.dataframes import join_keys, run_numbers
from windrow.core.arrays.range_queries import run_begins, running_max
from windrow.core.plan.groups import Source
from windrow.core.plan.watermark import TimeColumn
from windrow.core.slices.kernel import time_name
from windrow.core.windows.fixed import INT64_MIN

Repeats = tuple[str, tuple[str, ...], int]  # of a time column, on columns, since a time
Kept = Mapping[Repeats, pl.DataFrame]  # the events of which repeats are dropped


def repeats_of(source: Source) -> Repeats:
    return source.time, source.distinct_on, source.since


def fresh(
    events: pl.DataFrame, repeats: Repeats, time_column: TimeColumn, kept: pl.DataFrame | None
) -> tuple[pl.Series, pl.DataFrame]:
    """Which events are no repeats, of those since a time, and what is kept of all so far."""
    (time, columns, since), lateness, final_before = repeats, time_column.lateness, time_column.final_before
    names = [f"distinct:{column}" for column in columns]
    left = events.select(*names, pl.col(time_name(time)).alias("time")).with_row_index("row")
    left = left.filter(pl.col("time") >= since) if since > INT64_MIN else left
    remembered = left.select(*names, "time").clear() if kept is None else kept
    if lateness is not None and final_before > INT64_MIN:  # no window takes repeats of what is older
        remembered = remembered.filter(pl.col("time") >= final_before - lateness)
    if lateness:
        new = _spaced(_apart(left, remembered, names, lateness), names, lateness)
    else:  # without a limit all equal events are repeats, and without lateness those of the same time
        same = names if lateness is None else [*names, "time"]
        left = join_keys(left, remembered.select(same).unique(), same, "anti")
        new = left.unique(same, keep="first", maintain_order=True)
    mask = np.zeros(events.height, np.bool_)
    mask[new["row"].to_numpy()] = True
    return pl.Series(mask), pl.concat([remembered, new.select(*names, "time")])


def _spaced(events: pl.DataFrame, names: list[str], within: int) -> pl.DataFrame:
    """The events to keep, each further than `within` from those of the same values that are kept before it.

    Where events of one value come in the order of time, the next to keep after one is the first that is further away,
    so what is kept is a chain of such steps from the value's first event, found by doubling the steps. Other values
    take turns: the first event, then the first of what is further away, and so on.
    """
    left, parts = events, [events.clear()]
    while left.height:
        table = left.sort(*names, "row")
        value, time = run_numbers(table, names), table["time"].to_numpy()
        back = np.append(False, (value[1:] == value[:-1]) & (time[1:] < time[:-1]))
        turns = np.isin(value, value[back])
        parts.append(_chained(table.filter(pl.Series(~turns)), names, within))
        left = table.filter(pl.Series(turns)).sort("row")
        first = left.unique(names, keep="first", maintain_order=True)
        parts.append(first)
        rest = left.join(first.select("row"), on="row", how="anti", maintain_order="left")
        left = _apart(rest, first.select(*names, "time"), names, within)
    return pl.concat(parts)


def _chained(table: pl.DataFrame, names: list[str], within: int) -> pl.DataFrame:
    """Keep the chain of each value, of events that are sorted by value and, within one, by arrival and time alike.

    That is its first event, the first that is more than `within` later, and so on. `step[i]` is the event after i in
    its chain, `size` if there is none. `steps` holds jumps of 1, 2, 4, … such steps; taken from the largest, each marks
    what the marked events jump to, so that all of a chain is marked in log n rounds.
    """
    size = table.height
    value, time = run_numbers(table, names), table["time"].to_numpy()
    times = np.unique(time)
    rank = value * (len(times) + 1) + np.searchsorted(times, time)
    further = value * (len(times) + 1) + np.searchsorted(times, time + within, "right")
    step = np.append(np.searchsorted(rank, further), size)
    step[:-1][np.append(value, -1)[step[:-1]] != value] = size  # a value's last step leads nowhere
    steps = []
    while (step < size).any():
        steps.append(step)
        step = step[step]
    keep = np.append(run_begins(value), False)
    for step in reversed(steps):
        keep[step[np.flatnonzero(keep)]] = True
    return table.filter(pl.Series(keep[:-1]))


def _apart(events: pl.DataFrame, remembered: pl.DataFrame, names: list[str], within: int) -> pl.DataFrame:
    """The events that are further than `within` from every remembered one with the same values."""
    if not remembered.height or not events.height:
        return events
    rows = remembered.with_columns(row=pl.lit(None, pl.UInt32)).select(events.columns)
    both = pl.concat([events, rows]).sort(*names, "time")
    value, time = run_numbers(both, names), both["time"].to_numpy()
    is_remembered = both["row"].is_null().to_numpy()
    least, most = int(time.min()) - within - 1, int(time.max()) + within + 1
    below = running_max(np.where(is_remembered, time, least), value)
    above = -running_max(-np.where(is_remembered, time, most)[::-1], -value[::-1])[::-1]
    near = ~is_remembered & ((time - below <= within) | (above - time <= within))
    return events.join(both.filter(pl.Series(near)).select("row"), on="row", how="anti", maintain_order="left")
