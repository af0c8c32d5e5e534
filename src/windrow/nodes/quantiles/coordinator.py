"""What the root requests of the multisets of time windows and sessions, and which it releases.

windows that wait (`root`) ──▶ which blocks, of which node ──▶ requests, again if no answer comes
what no window needs ──▶ notices
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from windrow.core.stream.job_slicer import Tables
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.nodes.quantiles.state import RefinedState
from windrow.nodes.quantiles.tables import RELEASED
from windrow.nodes.requests import Notice, Requests, drained
from windrow.nodes.tables import GONE, PROGRESS


class QuantileCoordinator:
    """All such groups of a root."""

    def __init__(self, states: Mapping[str, RefinedState], requests: Requests) -> None:
        self._states, self._requests = states, requests
        self.notices = {state.multisets.schema.released_table: RELEASED for state in states.values()}

    def __bool__(self) -> bool:
        return bool(self._states)

    def absorb(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """Take the tables of a batch in."""
        for state in self._states.values():
            state.absorb_answers(tables)
            state.multisets.is_news |= PROGRESS in tables or GONE in tables

    def prepare(self) -> None:
        """Before a step: nothing can be requested of nodes that have gone, whether they have said so or not."""
        lost = self._requests.lost if self else set()
        for state in self._states.values():
            state.multisets.wait_without(lost)

    def conclude(self) -> None:
        """After a step: let nodes know what they need not keep, where that is less than they know."""
        for state in self._states.values():
            notice = Notice(state.multisets.schema.released_table, ())
            for node, (send, start) in state.released.items():
                last_send, last_start = self._requests.noted(node, notice) or (0, INT64_MIN)
                if start > last_start or (start == INT64_MAX and send > last_send):
                    self._requests.note(node, notice, (send, start))

    def late(self) -> Iterator[tuple[str, Counter[str]]]:
        """For each group, the events of each node that were left out since this was called last."""
        for name, state in self._states.items():
            yield name, drained([state.late])

    @property
    def wanted(self) -> Tables:
        """What is requested of nodes, as tables of a request for all of them."""
        return {name: table for state in self._states.values() for name, table in state.multisets.requests.items()}

    @property
    def behind(self) -> dict[str, int]:
        """The watermark of each group that waits for values: windows that end later are not emitted."""
        return {name: state.behind for name, state in self._states.items() if state.behind is not None}

    def status(self) -> dict[str, Any]:
        """Of each group: how many blocks have come, how many of them were asked for, and how many it waits for."""
        return {
            name: {**state.multisets.counts, "awaited": sum(table.height for table in state.multisets.wanted.values())}
            for name, state in self._states.items()
        }
