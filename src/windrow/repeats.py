"""Dropping repeats: `Query(distinct_on=[…])`.

An event is a repeat when one with the same values in these columns was kept before it and their times differ by at
most the lateness. What was kept is remembered as long as such an event could still count in a window.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from windrow.frames import join_keys, run_numbers
from windrow.windows import INT64_MIN


def fresh(
    events: pl.DataFrame, columns: Sequence[str], time: str, since: int, lateness: int | None, kept: pl.DataFrame | None
) -> tuple[pl.Series, pl.DataFrame]:
    """Which events are no repeats, of those since a time, and what has been kept so far."""
    names = [f"distinct:{column}" for column in columns]
    left = events.select(*names, pl.col(time).alias("time")).with_row_index("row")
    left = left.filter(pl.col("time") >= since) if since > INT64_MIN else left
    known = left.select(*names, "time").clear() if kept is None else kept
    if lateness:
        left = _apart(left, known, names, lateness)
        found = _in_order(left, names, lateness)
        found = _in_turns(left, names, lateness) if found is None else found
    else:  # without a limit all equal events are repeats, and without lateness those of the same time
        same = names if lateness is None else [*names, "time"]
        left = join_keys(left, known.select(same).unique(), same, "anti")
        found = left.unique(same, keep="first", maintain_order=True)
    mask = np.zeros(events.height, np.bool_)
    mask[found["row"].to_numpy()] = True
    return pl.Series(mask), pl.concat([known, found.select(*names, "time")])


def _in_order(events: pl.DataFrame, names: list[str], within: int) -> pl.DataFrame | None:
    """The events to keep, where those of equal values come in the order of time; None where they do not.

    Then the next event to keep after one is the first that is further away, so what is kept is a chain of such steps
    from each value's first event, found by doubling the steps.
    """
    table = events.sort(*names, "row")
    value, time = run_numbers(table, names), table["time"].to_numpy()
    if not ((value[1:] != value[:-1]) | (time[1:] >= time[:-1])).all():
        return None
    times = np.unique(time)
    place = value * (len(times) + 1) + np.searchsorted(times, time)
    further = value * (len(times) + 1) + np.searchsorted(times, time + within, "right")
    step = np.append(np.searchsorted(place, further), len(table))
    within_value = np.append(value, -1)
    step[:-1][within_value[step[:-1]] != value] = len(table)
    steps = []
    while (step < len(table)).any():
        steps.append(step)
        step = step[step]
    keep = np.append(True, value[1:] != value[:-1])[: len(table)]
    keep = np.append(keep, False)
    for step in reversed(steps):
        keep[step[np.flatnonzero(keep)]] = True
    return table.filter(pl.Series(keep[:-1]))


def _in_turns(events: pl.DataFrame, names: list[str], within: int) -> pl.DataFrame:
    """The events to keep: the first of each value, then the first of what is further away, and so on."""
    left, found = events, [events.clear()]
    while left.height:
        first = left.unique(names, keep="first", maintain_order=True)
        found.append(first)
        rest = left.join(first.select("row"), on="row", how="anti", maintain_order="left")
        left = _apart(rest, first.select(*names, "time"), names, within)
    return pl.concat(found)


def forget(kept: pl.DataFrame, lateness: int | None, frozen: int) -> pl.DataFrame:
    """What can still have repeats among the events that any window takes."""
    return kept if lateness is None or frozen == INT64_MIN else kept.filter(pl.col("time") >= frozen - lateness)


def _apart(events: pl.DataFrame, known: pl.DataFrame, names: list[str], within: int) -> pl.DataFrame:
    """The events that are further than `within` from every known one with the same values."""
    if not known.height or not events.height:
        return events
    pairs = join_keys(events, known.rename({"time": "time_kept"}), names, "inner")
    repeats = pairs.filter((pl.col("time") - pl.col("time_kept")).abs() <= within).select("row").unique()
    return events.join(repeats, on="row", how="anti", maintain_order="left")
