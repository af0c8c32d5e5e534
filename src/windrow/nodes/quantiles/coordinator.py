"""What the root asks local nodes of their bags, and tells them.

    windows that wait (`ranks`) ──▶ which units, of which node ──▶ requests, again if no answer comes
    what was settled ──▶ likewise, once

All of it follows from the state, so that a root that was restarted asks again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from windrow.core.assemble.emitted import Emitted
from windrow.core.stream.job_slicer import Tables
from windrow.core.windows.fixed import INT64_MAX
from windrow.nodes.counting.tables import GONE
from windrow.nodes.protocol.send_window import AGAIN
from windrow.nodes.quantiles.state import RefinedState
from windrow.nodes.quantiles.tables import OVER, REFINING, SETTLED

Unit = tuple[str, str, int, int, int]  # group, bag, send, row, and where in it the unit begins


class Asking:
    """What a node was asked and told last, and when."""

    def __init__(self) -> None:
        self.at = 0
        self.units: set[Unit] = set()
        self.settled: dict[str, tuple[int, int]] = {}


class Refining:
    """All refined groups of a root."""

    def __init__(self, states: Mapping[str, RefinedState]) -> None:
        self._states = states
        self._over: dict[str, bool] = {}  # of each node that keeps bags, whether it knows that it need not any more
        self._gone: set[str] = set()
        self._asked: dict[str, Asking] = {}
        self._is_over = False

    def __bool__(self) -> bool:
        return bool(self._states)

    def absorb(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """Take the tables of a batch in."""
        for state in self._states.values():
            state.hear(tables)
        for node, gone in tables[GONE].iter_rows() if GONE in tables and self else ():
            self.has_gone([node], gone)
        for node, over in tables[REFINING].iter_rows() if REFINING in tables and self else ():
            self._over[node] = over
            self._check_again()
            self._asked.pop(node, None)  # it may be another life, which has heard nothing

    def has_gone(self, names: list[str], gone: bool) -> None:
        """Nodes are waited for no more, or again."""
        self._gone = self._gone | set(names) if gone else self._gone - set(names)
        self._check_again()

    def _check_again(self) -> None:
        for state in self._states.values():
            state.check_again()

    def advance(self, watermark: int) -> Iterator[Emitted]:
        """The windows whose ranks are known; a node that has gone cannot tell more, whether it said so or not."""
        gone = self._gone | {node for node, over in self._over.items() if over}
        for state in self._states.values():
            yield from state.finish(watermark, gone)
        self._is_over = watermark == INT64_MAX and not any(state.ranks.asks for state in self._states.values())

    def late(self) -> Counter[str]:
        """The events of each node that were left out since this was asked last."""
        found: Counter[str] = Counter()
        for state in self._states.values():
            found += state.late
            state.late.clear()
        return found

    def requests(self, now: int) -> Iterator[tuple[str, Tables]]:
        """What nodes are to be told and asked now."""
        for node, over in self._over.items():
            if over or node in self._gone:
                continue
            asking = self._asked.setdefault(node, Asking())
            wanted = {
                (name, bag): mine
                for name, state in self._states.items()
                for bag, table in state.ranks.asks.items()
                if (mine := table.filter(pl.col("node") == node)).height
            }
            units = {
                (name, bag, *unit)
                for (name, bag), table in wanted.items()
                for unit in table.select("send", "row", "lo").iter_rows()
            }
            settled = {name: state.settled[node] for name, state in self._states.items() if node in state.settled}
            is_news = not units <= asking.units or _is_more(settled, asking.settled)
            if not is_news and not ((units or self._is_over) and now - asking.at >= AGAIN):
                continue
            tables: Tables = {
                f"{name}|wanted {bag}": table.select(*self._states[name].form.wanted)
                for (name, bag), table in wanted.items()
            }
            for name, one in settled.items():
                tables[f"{name}|settled"] = pl.DataFrame([one], schema=SETTLED, orient="row")
            if self._is_over:
                tables[REFINING] = pl.DataFrame({"over": [True]}, schema=OVER)
            asking.at, asking.units, asking.settled = now, units, settled
            yield node, tables

    def status(self) -> dict[str, Any]:
        """Of each group: how many units have come, how many of them were asked for, and how many it waits for."""
        return {
            name: {**state.ranks.counts, "waiting": sum(table.height for table in state.ranks.asks.values())}
            for name, state in self._states.items()
        }

    # --- what is kept ---------------------------------------------------------------------------------------------

    def take_over(self, other: Refining) -> None:
        """Go on where that of an earlier plan stands."""
        self._over, self._gone, self._asked = other._over, other._gone, other._asked

    def saved(self) -> dict[str, Any]:
        states = {name: state.header() for name, state in self._states.items()}
        return {"states": states, "over": self._over, "gone": sorted(self._gone)}

    def restore(self, header: Mapping[str, Any]) -> None:
        self._over, self._gone = dict(header["over"]), set(header["gone"])
        for name, one in header["states"].items():
            self._states[name].restore(one)


def _is_more(settled: Mapping[str, tuple[int, int]], told: Mapping[str, tuple[int, int]]) -> bool:
    """Whether nodes need keep less than they were told."""
    for name, (send, start) in settled.items():
        before = told.get(name, (0, start if start < INT64_MAX else 0))
        if start > before[1] or (start == INT64_MAX and send > before[0]):
            return True
    return False
