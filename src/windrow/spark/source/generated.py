"""The nodes of a generator as Spark reads them: a step of event time at each micro-batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from windrow.core.expressions.errors import QueryError
from windrow.core.stream.job import Job
from windrow.io.generator import TICK, Generator, spread
from windrow.spark.slice_rows import Limit, Marks


class Generated(Generator):
    """The made-up events of all nodes, as a source takes them."""

    def pause(self, before: Marks) -> Generated:
        """What there is now, and no more: all of a finite stream, one step of an endless one."""
        return self if self.ticks is not None else replace(self, length=(_done(before) + self.ticks_a_step) * TICK)

    def take(self, before: Marks, limit: Limit, job: Job) -> Marks:
        """The next step of every node; at least a tick."""
        done = _done(before)
        until = done + self.ticks_a_step if self.ticks is None else min(done + self.ticks_a_step, self.ticks)
        if until <= done:
            return {}
        counts = {name: self.counts(number, done, until) for number, name in enumerate(self.names)}
        total = np.cumsum(sum(counts.values()))
        if limit.least is not None and total[-1] < limit.least:
            return {}
        if limit.rows is not None:
            until = done + max(1, int(np.searchsorted(total, limit.rows, "right")))
        taken: Marks = {}
        for name, per_tick in counts.items():
            rows = int(before.get(name, {"rows": 0})["rows"])
            more = int(per_tick[: until - done].sum())
            size = int(per_tick[until - done - 1])
            last = self.first + (until - 1) * TICK + int(spread(np.array([size - 1]), np.array([size]))[0])
            taken[name] = {"place": until, "rows": rows + more, "seen": last, "new": [done, until]}
        return taken

    def everything(self) -> dict[str, Any]:
        """What there is to read of each node of a finite stream."""
        if self.ticks is None:
            raise QueryError("generator: a batch needs an end; give it a length such as '60 seconds'")
        return {name: [0, self.ticks] for name in self.names}


def _done(before: Marks) -> int:
    """How many ticks were read."""
    return max((int(mark["place"]) for mark in before.values()), default=0)
