"""What the root requests of the multisets of time windows and sessions, and which it releases.

windows that wait (`root`) ──▶ which blocks, of which node ──▶ requests, again if no answer comes
what no window needs ──▶ likewise, once
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from windrow.core.stream.job_slicer import Tables
from windrow.core.windows.fixed import INT64_MAX
from windrow.nodes.quantiles.state import RefinedState
from windrow.nodes.quantiles.tables import OVER, QUANTILES, RELEASED
from windrow.nodes.requests import Requests, drained
from windrow.nodes.tables import GONE

Released = Mapping[str, tuple[int, int]]  # of each group: of this and earlier sends what is before a time


class QuantileCoordinator:
    """All such groups of a root."""

    def __init__(self, states: Mapping[str, RefinedState]) -> None:
        self._states = states
        self._requests = Requests()
        self._released: dict[str, Released] = {}  # as nodes know it
        self._is_over = False

    def __bool__(self) -> bool:
        return bool(self._states)

    def absorb(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """Take the tables of a batch in."""
        if not self:
            return
        for state in self._states.values():
            state.absorb_answers(tables)
        said = dict(tables[QUANTILES].iter_rows()) if QUANTILES in tables else {}
        self._requests.absorb(said, tables)
        for node in said:  # it may be another life, which has heard nothing
            self._requests.forget(node)
            self._released.pop(node, None)
        if said or GONE in tables:
            for state in self._states.values():
                state.multisets.is_news = True

    def prepare(self) -> None:
        """Before a step: nothing can be requested of nodes that have gone, whether they have said so or not."""
        for state in self._states.values():
            state.multisets.wait_without(self._requests.lost)

    def conclude(self, watermark: int) -> None:
        """After a step: at the end of time nothing will be requested once no window waits."""
        self._is_over = watermark == INT64_MAX and not any(state.multisets.wanted for state in self._states.values())

    def late(self) -> Iterator[tuple[str, Counter[str]]]:
        """For each group, the events of each node that were left out since this was called last."""
        for name, state in self._states.items():
            yield name, drained([state.late])

    def requests(self, now: int) -> Iterator[tuple[str, Tables]]:
        """The requests that are to be made now: node and tables."""
        wanted: Tables = {}
        for state in self._states.values():
            wanted |= state.multisets.requests
        over = {QUANTILES: pl.DataFrame({"over": [True]}, schema=OVER)} if self._is_over else {}
        for node, tables in self._requests.due(wanted, self._news, now):
            self._released[node] = released = self._released_of(node)
            rows = {
                self._states[name].multisets.schema.released_table: pl.DataFrame([row], schema=RELEASED, orient="row")
                for name, row in released.items()
            }
            yield node, tables | rows | over

    def _released_of(self, node: str) -> Released:
        return {name: state.released[node] for name, state in self._states.items() if node in state.released}

    def _news(self, node: str) -> set[Any]:
        """That nothing will be requested any more, and of which groups the node need keep less than it knows."""
        news: set[Any] = {QUANTILES} if self._is_over else set()
        before = self._released.get(node, {})
        for name, (send, start) in self._released_of(node).items():
            known = before.get(name, (0, start if start < INT64_MAX else 0))
            if start > known[1] or (start == INT64_MAX and send > known[0]):
                news.add((name, send, start))
        return news

    @property
    def behind(self) -> dict[str, int]:
        """The watermark of each group that waits for values: windows that end later are not emitted."""
        return {name: state.behind for name, state in self._states.items() if state.behind is not None}

    def status(self) -> dict[str, Any]:
        """Of each group: how many blocks have come, how many of them were asked for, and how many it waits for."""
        return {
            name: {**state.multisets.counts, "waiting": sum(table.height for table in state.multisets.wanted.values())}
            for name, state in self._states.items()
        }

    # --- what is kept ---------------------------------------------------------------------------------------------

    def take_over(self, other: QuantileCoordinator) -> None:
        """Go on where that of an earlier plan stands."""
        self._requests, self._released = other._requests, other._released

    def saved(self) -> dict[str, Any]:
        return {"nodes": self._requests.saved()}

    def restore(self, header: Mapping[str, Any]) -> None:
        self._requests.restore(header["nodes"])
