"""Requests of the root: what each local node was requested, what is due again, and which nodes cannot be asked.

    content for a node ── has something new, or was not answered for a while ──▶ a request
                       ── else ──▶ nothing

The content follows from the state of whoever asks, so that a root that was restarted requests it again. A request has
a number. The root's epoch is in it, because a later life does not know how many there were: no two lives have one in
common.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from windrow.core.stream.job_slicer import Tables
from windrow.nodes.tables import GONE

AGAIN = 1_000_000  # microseconds after which what is not answered is said again, at first
EPOCH = 20  # bits of the number of a request, before which the epoch stands


@dataclass
class Recipient:
    """A local node, as far as something is requested of it."""

    number: int  # of the last request
    over: bool = False  # it has said that nothing is to be requested of it any more
    gone: bool = False  # nobody waits for it: it is silent, or has left
    at: int = -AGAIN  # when the last request was made
    content: set[Any] = field(default_factory=set)  # of that request, and of those shortly before it


class Requests:
    """All local nodes that have spoken, and the last request to each."""

    def __init__(self, epoch: int = 0) -> None:
        self._first = epoch << EPOCH
        self._recipients: dict[str, Recipient] = {}

    def absorb(self, said: Mapping[str, bool], tables: Mapping[str, pl.DataFrame]) -> None:
        """Note of nodes that have spoken whether they are over, and which nodes are gone or back."""
        for node, over in said.items():
            self._recipients.setdefault(node, Recipient(self._first)).over = over
        for node, gone in tables[GONE].select("node", "gone").iter_rows() if GONE in tables else ():
            if node in self._recipients:
                self._recipients[node].gone = gone

    def last(self, node: str) -> Recipient:
        """The last request to a node."""
        return self._recipients.get(node) or Recipient(self._first)

    @property
    def lost(self) -> set[str]:
        """The nodes that nothing can be requested of."""
        return {node for node, recipient in self._recipients.items() if recipient.gone or recipient.over}

    def due(self, wanted: Tables, more: Callable[[str], set[Any]], now: int) -> Iterator[tuple[str, Tables]]:
        """The nodes of which something is to be requested now, which then counts as done, and the tables for each.

        wanted:  the rows that are requested, of all nodes
        more:    what else a node is told, as long as it does not know it
        """
        of_nodes: dict[str, Tables] = {}
        for name, table in wanted.items():
            for (node,), rows in table.partition_by("node", as_dict=True, include_key=False).items():
                of_nodes.setdefault(node, {})[name] = rows
        lost = self.lost
        for node, recipient in self._recipients.items():
            if node in lost:
                continue
            tables = of_nodes.get(node, {})
            content = {(name, row) for name, rows in tables.items() for row in rows.hash_rows()} | more(node)
            is_recent = now - recipient.at < AGAIN
            if content <= recipient.content and (is_recent or not content):
                continue
            recipient.number, recipient.at = recipient.number + 1, now
            recipient.content = content | (recipient.content if is_recent else set())
            yield node, tables

    def forget(self, node: str) -> None:
        """Nothing counts as requested: another life of the node has not heard it."""
        if node in self._recipients:
            self._recipients[node].content = set()

    # --- what is kept ---------------------------------------------------------------------------------------------

    def saved(self) -> dict[str, tuple[bool, bool]]:
        return {node: (recipient.over, recipient.gone) for node, recipient in self._recipients.items()}

    def restore(self, saved: Mapping[str, tuple[bool, bool]]) -> None:
        self._recipients = {node: Recipient(self._first, over, gone) for node, (over, gone) in saved.items()}


def drained(counters: Iterable[Counter[str]]) -> Counter[str]:
    """The sum of counters, which begin again."""
    total: Counter[str] = Counter()
    for counter in counters:
        total += counter
        counter.clear()
    return total
