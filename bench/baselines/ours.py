"""windrow itself."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

import windrow as wr
from bench.baselines.common import TIME, Run, System


class Engine(Run):
    """Its engine, in one process."""

    def __init__(self, queries: Sequence[wr.Query], lateness: int) -> None:
        self.engine = wr.Engine(queries, TIME, lateness=f"{lateness} us")
        self._queries = list(queries)

    def push(self, events: pl.DataFrame) -> pl.DataFrame:
        return self.engine.push(events)

    def finish(self) -> pl.DataFrame:
        return self.engine.finish()

    @property
    def calculations(self) -> int:  # type: ignore[override]
        """Each operator of a group that is sliced from the events, once for each event."""
        plan = wr.plan(self._queries, TIME).to_dict()
        sliced = [group for group in plan["groups"] if not group["sliced"].startswith("rolled up")]
        return self.engine.metrics.events * sum(len(group["operators"]) for group in sliced)

    @property
    def state_bytes(self) -> int:
        return self.engine.metrics.state_bytes

    @property
    def slices(self) -> int:
        return self.engine.metrics.slices


SYSTEM = System("windrow", lambda queries: True, Engine)
