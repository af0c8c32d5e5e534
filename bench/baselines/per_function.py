"""Slicing per function: queries with the same functions and the same measure share slices, others do not.

As Desis's authors do for DeSW, it is windrow's own slicing with the sharing between functions and measures taken away:
an engine for each. What it loses beside windrow is therefore the sharing alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

import windrow as wr
from bench.baselines.common import Run, System, together
from bench.baselines.ours import Engine
from windrow.core.windows.ordered import OrderedWindow


class PerFunction(Run):
    """An engine for each function and measure."""

    def __init__(self, queries: Sequence[wr.Query], lateness: int) -> None:
        apart: dict[tuple[object, ...], list[wr.Query]] = {}
        for query in queries:
            for aggregate in query.aggregates:
                key = (aggregate.text, isinstance(query.window, OrderedWindow), query.by)
                apart.setdefault(key, []).append(wr.Query(query.name, query.window, [aggregate], query.by))
        self._runs = [Engine(several, lateness) for several in apart.values()]
        self._split = any(len(query.aggregates) > 1 for query in queries)

    def push(self, events: pl.DataFrame) -> pl.DataFrame:
        return self._joined([run.push(events) for run in self._runs])

    def finish(self) -> pl.DataFrame:
        return self._joined([run.finish() for run in self._runs])

    def _joined(self, parts: list[pl.DataFrame]) -> pl.DataFrame:
        """A row for each window, also where its functions were computed apart."""
        whole = together(parts)
        if not self._split or not whole.height:
            return whole
        identity = [name for name in whole.columns if "(" not in name]
        others = [pl.col(name).drop_nulls().first() for name in whole.columns if "(" in name]
        return whole.group_by(identity).agg(others)

    @property
    def calculations(self) -> int:  # type: ignore[override]
        return sum(run.calculations for run in self._runs)

    @property
    def state_bytes(self) -> int:
        return sum(run.state_bytes for run in self._runs)

    @property
    def slices(self) -> int:
        return sum(run.slices for run in self._runs)


SYSTEM = System("per_function", lambda queries: True, PerFunction)
