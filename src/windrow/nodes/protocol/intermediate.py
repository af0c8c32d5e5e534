"""An intermediate node's work: the slices of its children become one, and are sent once no child adds to them.

batches ── merged by (key, slice) ──▶ open slices ── the children's least watermark passes ──▶ sent, once
        ── runs of sessions, and events of groups that need the order ───────────────────────▶ sent with the next batch
        ── windows that were found at local nodes ───────────────────────────────────────────▶ likewise
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from windrow.core.slices.table import merge
from windrow.core.stream.job import Job
from windrow.core.stream.job_slicer import Tables
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.nodes.counting.tables import tables_of as counting_tables
from windrow.nodes.protocol.local import Closing, apart
from windrow.nodes.pushdown import tables_of
from windrow.nodes.quantiles.tables import tables_of as quantile_tables


class Merger:
    """What has come from children and has not been sent."""

    def __init__(self, job: Job) -> None:
        self._use(job)
        self._held: dict[str, list[pl.DataFrame]] = {}
        self._passing: dict[str, list[pl.DataFrame]] = {}  # windows of local nodes
        self._sent: dict[str, int] = {}
        self._waiting: list[tuple[dict[str, int], dict[str, int]]] = []  # events of a batch, and its last slices
        self.events: dict[str, int] = {}  # of each local node, how many were wholly sent

    def _use(self, job: Job) -> None:
        quantiles, awaited = quantile_tables(job)
        self.job, self._closing, self._passed = job, Closing(job), tables_of(job) | counting_tables(job) | quantiles
        self._urgent = counting_tables(job) | awaited
        self._groups = {one.group.name: one for one in job.bound.groups if not one.group.is_apart}

    def absorb(self, tables: Mapping[str, pl.DataFrame], events: Mapping[str, int]) -> None:
        """Take a batch in; what the plan does not know any more is left out."""
        last: dict[str, int] = {}
        for name, table in tables.items():
            if name in self._passed:
                self._passing.setdefault(name, []).append(table)
            if name not in self._groups:
                continue
            self._held.setdefault(name, []).append(self._groups[name].conform(table))
            if name not in self._closing.at_once:
                last[name] = int(table["slice_start"].max())  # type: ignore[arg-type]
        self._waiting.append((dict(events), last))

    @property
    def is_urgent(self) -> bool:
        """Whether the root waits for what has come."""
        return not self._urgent.isdisjoint(self._passing)

    def due(self, watermark: int, everything: bool = False) -> Tables | None:
        """What is to be sent at a watermark; None while nothing is."""
        bounds = self._closing.bounds(INT64_MAX if everything else watermark)
        moved = any(bound > self._sent.get(name, INT64_MIN) for name, bound in bounds.items())
        if not (moved or everything or self._closing.at_once or self._held or self._passing):
            return None
        tables = self._passed_on()
        self._passing = {}
        for name, parts in self._held.items():
            if self._groups[name].group.ordered:
                tables[name], self._held[name] = pl.concat(parts), []
            else:
                tables[name], still = apart(merge(parts, self._groups[name].schema), bounds.get(name, INT64_MAX))
                self._held[name] = [still]
        self._held = {name: parts for name, parts in self._held.items() if parts and parts[0].height}
        self._sent = self._closing.bounds(watermark)
        while self._waiting and all(last < bounds[name] for name, last in self._waiting[0][1].items()):
            self.events |= self._waiting.pop(0)[0]
        return {name: table for name, table in tables.items() if table.height}

    def _passed_on(self) -> Tables:
        return {name: pl.concat(parts, how="diagonal_relaxed") for name, parts in self._passing.items()}

    def switch(self, job: Job, watermark: int) -> Tables:
        """Go on with another plan; returns all that was cut by the one before."""
        tables = self.due(watermark, everything=True) or {}
        self._use(job)
        self._sent = self._closing.bounds(watermark)
        return tables

    def saved(self) -> tuple[dict[str, Any], Tables]:
        """Everything that it knows, as plain data and tables; `restore` goes on with them."""
        tables = self._passed_on()
        for name, parts in self._held.items():
            compiled = self._groups[name]
            tables[name] = pl.concat(parts) if compiled.group.ordered else merge(parts, compiled.schema)
        return {"sent": self._sent, "events": self.events, "waiting": self._waiting}, tables

    def restore(self, header: Mapping[str, Any], tables: Mapping[str, pl.DataFrame]) -> None:
        self._sent, self.events = dict(header["sent"]), dict(header["events"])
        self._waiting = [(events, last) for events, last in header["waiting"]]
        self._held = {name: [table] for name, table in tables.items() if name not in self._passed}
        self._passing = {name: [table] for name, table in tables.items() if name in self._passed}
