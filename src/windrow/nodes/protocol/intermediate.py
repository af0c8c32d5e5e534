"""An intermediate node's work: it merges the slices of its children, and sends a slice once no child adds to it.

batches ── merged by (key, slice) ──▶ open slices ── the children's least watermark passes ──▶ sent, once
        ── runs of sessions, and events of groups that need the order ───────────────────────▶ sent with the next batch
        ── what only the root reads: windows, segments, block summaries of local nodes ──────▶ likewise
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from windrow.core.slices.table import SliceBuffer
from windrow.core.stream.job import Job
from windrow.core.stream.job_slicer import Tables
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.nodes.counting.tables import tables_of as counting_tables
from windrow.nodes.protocol.local import Closing, split_at
from windrow.nodes.pushdown import tables_of as window_tables
from windrow.nodes.quantiles.tables import tables_of as quantile_tables


class Merger:
    """What the children have sent, and this node has not."""

    def __init__(self, job: Job) -> None:
        self._use(job)
        self._open: dict[str, SliceBuffer] = {}  # slices of each group
        # events of groups whose windows need their order, and tables that only the root reads
        self._passing: dict[str, list[pl.DataFrame]] = {}
        self._sent: dict[str, int] = {}  # of each group: all slices that start before this time were sent
        self._unsent: list[
            tuple[dict[str, int], dict[str, int]]
        ] = []  # of a batch: its events, its last slices' starts
        self.events: dict[str, int] = {}  # of each local node, how many were sent completely

    def _use(self, job: Job) -> None:
        of_quantiles, urgent_of_quantiles = quantile_tables(job)
        self._closing = Closing(job)
        self._passed = window_tables(job) | counting_tables(job) | of_quantiles
        self._urgent = counting_tables(job) | urgent_of_quantiles
        self._groups = {
            compiled.group.name: compiled for compiled in job.compiled.groups if not compiled.group.is_apart
        }

    def absorb(self, tables: Mapping[str, pl.DataFrame], events: Mapping[str, int]) -> None:
        """Take the tables of a batch in, and of each local node how many events are complete with it.

        Tables of groups that no query needs any more are dropped.
        """
        last: dict[str, int] = {}
        for name, table in tables.items():
            if name in self._passed:
                self._passing.setdefault(name, []).append(table)
            if name not in self._groups or not table.height:
                continue
            self._take(name, self._groups[name].conform(table))
            if name not in self._closing.at_once:
                last[name] = int(table["slice_start"].max())  # type: ignore[arg-type]
        self._unsent.append((dict(events), last))

    def _take(self, name: str, table: pl.DataFrame) -> None:
        if self._groups[name].group.ordered:
            self._passing.setdefault(name, []).append(table)
            return
        if name not in self._open:
            self._open[name] = SliceBuffer(self._groups[name].schema)
        self._open[name].add(table)

    @property
    def is_urgent(self) -> bool:
        """Whether the root waits for tables that have come, so that they are sent before the watermark moves."""
        return not self._urgent.isdisjoint(self._passing)

    def due(self, watermark: int, everything: bool = False) -> Tables | None:
        """The tables that are to be sent at a watermark; None while nothing is."""
        bounds = self._closing.bounds(INT64_MAX if everything else watermark)
        moved = any(bound > self._sent.get(name, INT64_MIN) for name, bound in bounds.items())
        if not (moved or everything or self._closing.at_once or self._open or self._passing):
            return None
        tables = self._passed_on()
        self._passing = {}
        for name, buffer in self._open.items():
            tables[name], rest = split_at(buffer.merged(), bounds.get(name, INT64_MAX))
            buffer.replace(rest)
        self._open = {name: buffer for name, buffer in self._open.items() if len(buffer)}
        self._sent = self._closing.bounds(watermark)
        # A batch of a child is sent completely once all slices are that its newest events are in.
        while self._unsent and all(last < bounds[name] for name, last in self._unsent[0][1].items()):
            self.events |= self._unsent.pop(0)[0]
        return {name: table for name, table in tables.items() if table.height}

    def _passed_on(self) -> Tables:
        return {name: _together(parts) for name, parts in self._passing.items()}

    def switch(self, job: Job, watermark: int) -> Tables:
        """Go on with another plan; returns everything that was cut by the one before."""
        tables = self.due(watermark, everything=True) or {}
        self._use(job)
        self._sent = self._closing.bounds(watermark)
        return tables

    def saved(self) -> tuple[dict[str, Any], Tables]:
        """Everything as plain data and tables; `restore` goes on with them."""
        tables = self._passed_on() | {name: buffer.merged() for name, buffer in self._open.items()}
        return {"sent": self._sent, "events": self.events, "unsent": self._unsent}, tables

    def restore(self, header: Mapping[str, Any], tables: Mapping[str, pl.DataFrame]) -> None:
        self._sent, self.events = dict(header["sent"]), dict(header["events"])
        self._unsent = [(events, last) for events, last in header["unsent"]]
        for name, table in tables.items():
            if name in self._passed:
                self._passing[name] = [table]
            else:
                self._take(name, table)


def _together(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """Tables of one name as one; a column that no plan knows any more may have several types, and is left out."""
    if len(parts) > 1:
        types: dict[str, set[pl.DataType]] = {}
        for part in parts:
            for name, dtype in part.schema.items():
                types.setdefault(name, set()).add(dtype)
        unknown = [name for name, several in types.items() if len(several) > 1]
        parts = [part.drop(unknown, strict=False) for part in parts] if unknown else parts
    return pl.concat(parts, how="diagonal_relaxed")
