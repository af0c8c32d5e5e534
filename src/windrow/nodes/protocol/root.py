"""The root's state: slices of all nodes become results, once the tree's watermark has passed their windows.

    tables of a batch ── absorb ──▶ slices, and buffered events ──▶ states of groups, as in one process
                                    windows found at nodes ───────▶ reported groups      (`pushdown`)
                                    segments of ordered logs ─────▶ counting coordinator (`counting`)
                                    block summaries, values ──────▶ quantile coordinator (`quantiles`)
    advance(watermark) ──▶ results of all four; requests ──▶ what the root needs from local nodes

A group belongs to exactly one of the four. Late slices are judged as in a stream on Spark (`late.slices_behind`). The
state follows from the accepted batches in their order, so that a root that was restarted comes to the same one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from windrow.core.slices.table import merge
from windrow.core.stream.group_states import GroupStates
from windrow.core.stream.job import Job
from windrow.core.stream.job_slicer import Tables
from windrow.core.windows.fixed import INT64_MAX
from windrow.nodes.counting.coordinator import CountingCoordinator
from windrow.nodes.pushdown import NODES, Reported
from windrow.nodes.quantiles.coordinator import QuantileCoordinator
from windrow.nodes.quantiles.state import RefinedState
from windrow.nodes.quantiles.tables import schemas_of
from windrow.nodes.requests import Requests


class RootState:
    """Everything that a root knows of the windows of its tree."""

    def __init__(self, job: Job, epoch: int = 0, requests: Requests | None = None) -> None:
        self.job, self._requests = job, requests or Requests(epoch)
        self._time_column = job.time_columns[job.time]
        compiled, schemas = job.compiled, schemas_of(job)
        self._refined = {name: RefinedState(schema) for name, schema in schemas.items()}
        self.quantiles = QuantileCoordinator(self._refined, self._requests)
        self._reported = Reported(job)
        self.counting = CountingCoordinator(job, self._requests)
        plain = [one for one in compiled.groups if not one.group.is_apart and one.group.name not in schemas]
        sliced = [*(one.state() for one in plain), *self._refined.values()]
        self._sliced = {state.group.name for state in sliced}  # groups whose slices or events come as they are
        states = [*sliced, *self._reported.states.values(), *self.counting.states.values()]
        self._states = GroupStates(compiled, {job.time: self._time_column}, states)

    @property
    def watermark(self) -> int:
        return self._time_column.watermark

    @property
    def overflows(self) -> int:
        """Results that did not fit into 64 bits, and are null."""
        return self._states.overflowed.total()

    @property
    def slices(self) -> int:
        return self._states.slices + self._states.held_events + self._reported.size + self.counting.size

    def absorb(self, tables: Mapping[str, pl.DataFrame], now: int = 0) -> Counter[str]:
        """Take in the tables of a batch, by the names of their groups; returns how many events each leaves out."""
        late = self.counting.absorb(tables, self._requests.absorb(tables, now))
        late[NODES] += self._reported.absorb(tables)
        self.quantiles.absorb(tables)
        for name, state in self._refined.items():
            if name in tables:
                state.see(merge([state.compiled.conform(tables[name])], state.schema))
        late += self._states.absorb({name: table for name, table in tables.items() if name in self._sliced})
        return late

    def advance(self, watermark: int) -> pl.DataFrame:
        """Move the watermark, and give the results that are due: of windows that it passes, and of those of nodes."""
        step = self._time_column.step_to(max(watermark, self.watermark))
        self.quantiles.prepare()
        self.counting.prepare(step)
        emitted = self._states.advance({self.job.time: step.now})
        self.quantiles.conclude()
        self.counting.conclude(emitted.keys())
        return self._reported.joined_to(self._states.results(emitted))

    def status(self) -> dict[str, Any]:
        """Plain data: what root and local nodes agree on, and for which values windows wait."""
        status = {"counting": self.counting.status()} if self.counting else {}
        return status | ({"quantiles": self.quantiles.status()} if self.quantiles else {})

    def wrong_with(self, tables: Mapping[str, pl.DataFrame]) -> str | None:
        """Why tables do not follow on from what is here; None if they do."""
        return self.counting.wrong_with(tables)

    def late(self) -> Iterator[tuple[str, Counter[str]]]:
        """For each group, the events of each local node that some window has left out since the last call."""
        yield from self.counting.late()
        yield from self.quantiles.late()

    def requests(self, now: int) -> Iterator[tuple[str, int, bool, Tables]]:
        """The requests that are due: for each the node, its number, whether it is the last one, and the tables."""
        wanted = self.counting.wanted | self.quantiles.wanted
        has_ended = self.watermark == INT64_MAX and bool(self.counting or self.quantiles)
        is_over = has_ended and not wanted and not self.counting.awaits_events
        yield from self._requests.due(wanted, self.counting.notices | self.quantiles.notices, is_over, now)

    def switched(self, job: Job) -> RootState:
        """The state for another plan, going on from this one; what that plan does not need is dropped."""
        other = RootState(job, requests=self._requests)
        other._time_column.watermark = self.watermark
        other._states.overflowed = self._states.overflowed
        other._states.take_over(self._states)
        other._reported.take_over(self._reported)
        other.counting.take_over(self.counting)
        return other

    def saved(self) -> tuple[dict[str, Any], dict[str, pl.DataFrame]]:
        """Everything that it knows, as plain data and tables; `restore` goes on with them."""
        counting, resolvers = self.counting.saved()
        header = {"watermark": self.watermark, "overflowed": dict(self._states.overflowed)}
        header |= {"states": self._states.header(), "counting": counting, "nodes": self._requests.saved()}
        return header, self._states.tables() | self._reported.saved() | resolvers

    def restore(self, header: Mapping[str, Any], tables: Mapping[str, pl.DataFrame]) -> None:
        self._time_column.watermark = header["watermark"]
        self._states.overflowed.update(header["overflowed"])
        self._states.load(header["states"], tables)
        self._reported.restore(tables)
        self._requests.restore(header["nodes"])
        self.counting.restore(header["counting"], tables)
