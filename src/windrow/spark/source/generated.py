"""The nodes of a generator as Spark reads them: a step of event time at each micro-batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from windrow.core.query.query import QueryError
from windrow.core.stream.job import Job
from windrow.io.generator import TICK, Generator, spread
from windrow.spark.slice_rows import Limit, Marks


@dataclass(frozen=True)
class Generated:
    """The made-up events of all nodes."""

    generator: Generator

    @property
    def columns(self) -> dict[str, pl.DataType]:
        return self.generator.columns

    @property
    def names(self) -> list[str]:
        return self.generator.names

    def pause(self, before: Marks) -> Generated:
        """What there is now, and no more: all of a finite stream, one step of an endless one."""
        if self.generator.ticks is not None:
            return self
        done = max((int(mark["place"]) for mark in before.values()), default=0)
        return Generated(replace(self.generator, length=(done + self.generator.ticks_a_step) * TICK))

    def take(self, before: Marks, limit: Limit, job: Job) -> Marks:
        """The next step of every node; at least a tick."""
        made = self.generator
        done = max((int(mark["place"]) for mark in before.values()), default=0)
        until = done + made.ticks_a_step if made.ticks is None else min(done + made.ticks_a_step, made.ticks)
        if until <= done:
            return {}
        counts = {name: made.counts(number, done, until) for number, name in enumerate(self.names)}
        total = np.cumsum(sum(counts.values()))
        if limit.least is not None and total[-1] < limit.least:
            return {}
        if limit.rows is not None:
            until = done + max(1, int(np.searchsorted(total, limit.rows, "right")))
        taken: Marks = {}
        for name, several in counts.items():
            rows = int(before.get(name, {"rows": 0})["rows"])
            more = int(several[: until - done].sum())
            size = int(several[until - done - 1])
            last = made.first + (until - 1) * TICK + int(spread(np.array([size - 1]), np.array([size]))[0])
            taken[name] = {"place": until, "rows": rows + more, "seen": last, "new": [done, until]}
        return taken

    def everything(self) -> Marks:
        """The whole of a finite stream."""
        ticks = self.generator.ticks
        if ticks is None:
            raise QueryError("generator: a batch needs an end; give it a length such as '60 seconds'")
        rows = {name: int(self.generator.counts(number, 0, ticks).sum()) for number, name in enumerate(self.names)}
        return {name: {"place": ticks, "rows": rows[name], "new": [0, ticks]} for name in self.names}

    def frames(
        self, node: str, new: Any, first: int, needed: Mapping[str, pl.DataType]
    ) -> Iterator[tuple[pl.DataFrame, str]]:
        """The events of a node's ticks, of which the first has this position, and what to call them."""
        return self.generator.frames(node, new, first, needed)
