"""Approximated count windows on several nodes: Deco's Approx.

    window of n events, rates r₁, r₂ of the first second ──▶ node i always takes n·rᵢ / (r₁ + r₂) events for a window

The k-th window is the sum of what the nodes took for their k-th. Only partial aggregates travel, and it is exact only
while rates stay as they were: it is the optimum that exact schemes are measured by.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl


def shares(n: int, rates: Sequence[int]) -> list[int]:
    """How many events of a window each node takes; the first ones take what rounding leaves."""
    found = [n * rate // sum(rates) for rate in rates]
    for place in range(n - sum(found)):
        found[place % len(found)] += 1
    return found


class Local:
    """A node: the sum of its share of each window."""

    def __init__(self, share: int) -> None:
        self._share, self._seen = share, 0

    def push(self, events: pl.DataFrame) -> pl.DataFrame:
        """Partial aggregates of the windows that these events are in."""
        number = (np.arange(events.height) + self._seen) // self._share
        self._seen += events.height
        parts = events.select(pl.Series("number", number), "value")
        return parts.group_by("number", maintain_order=True).agg(pl.col("value").sum(), pl.len().alias("size"))


class Root:
    """Puts windows together; those that are not whole at the end are no windows."""

    def __init__(self, n: int) -> None:
        self._n, self._open = n, pl.DataFrame()

    def push(self, parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """The windows that became whole: position, sum."""
        several = pl.concat([*([self._open] if self._open.height else []), *parts])
        merged = several.group_by("number").agg(pl.col("value").sum(), pl.col("size").sum())
        self._open = merged.filter(pl.col("size") < self._n)
        whole = merged.filter(pl.col("size") == self._n)
        return whole.select(position=pl.col("number") * self._n, value="value")


def correctness(n: int, share: Sequence[int], events: Sequence[pl.DataFrame]) -> float:
    """Which part of the events is in the window that it would be in if all were in one order."""
    times = np.concatenate([frame["ts"].to_physical().to_numpy() for frame in events])
    position = np.empty(len(times), np.int64)
    position[np.argsort(times, kind="stable")] = np.arange(len(times))
    taken = np.concatenate([np.arange(frame.height) // part for frame, part in zip(events, share, strict=True)])
    return float(np.mean(position // n == taken))
