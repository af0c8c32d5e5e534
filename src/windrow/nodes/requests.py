"""Requests of the root: what each local node has reported, and what it is to answer and to know.

    wanted   ── is new, or was not answered for a while  ──▶ a request, with a number ──▶ local node
    notices  ── are new, or were not received for a while ──▶

    progress of a node ──▶ up to which time it is final, and which request it has received last

What is wanted follows from the state of whoever asks, and so do notices, so that a root that was restarted makes the
same requests again. The root's epoch is in the number of a request, because a later life does not know how many there
were: no two lives have one in common.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import polars as pl

from windrow.core.stream.job_slicer import Tables
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.nodes.tables import GONE, PROGRESS, NodeProgress

AGAIN = 1_000_000  # microseconds after which what is not answered is requested again, at first
EPOCH_BITS = 20  # of the number of a request, before which the epoch stands


class Notice(NamedTuple):
    """What a node is to know: a row of a table in a request, of which the last one with an identity holds."""

    table: str
    identity: tuple[Any, ...]  # the row begins with it


@dataclass
class Recipient:
    """A local node, as far as something is requested of it."""

    number: int  # of the last request
    progress: NodeProgress  # as it has reported it last
    gone: bool = False  # nobody waits for it: it is silent, or has left
    at: int = -AGAIN  # when the last request was made
    content: set[Any] = field(default_factory=set)  # of that request, and of those shortly before it
    notices: dict[Notice, tuple[Any, ...]] = field(default_factory=dict)
    pending: dict[Notice, int] = field(default_factory=dict)  # those that it has not received: since which request

    def report(self, progress: NodeProgress) -> None:
        """Note what the node has reported; a later life of it has received nothing, and everything is news to it."""
        if progress.received < self.progress.received:
            self.content, self.pending = set(), dict.fromkeys(self.notices, self.number + 1)
        self.pending = {notice: number for notice, number in self.pending.items() if number > progress.received}
        self.progress = progress._replace(final=max(self.progress.final, progress.final))

    def has_news(self) -> bool:
        """Whether a notice was in no request yet, or was lost on the way.

        A node without counting windows reports nothing before its end: until then, what is lost is overtaken by the
        next notice.
        """
        is_reporting = self.progress.final > INT64_MIN
        return any(is_reporting or number > self.number for number in self.pending.values())


class Requests:
    """All local nodes that have reported, and the last request to each."""

    def __init__(self, epoch: int = 0) -> None:
        self._first = epoch << EPOCH_BITS
        self._recipients: dict[str, Recipient] = {}
        self.trip = 0  # microseconds from a request to its answer

    def _recipient(self, node: str) -> Recipient:
        if node not in self._recipients:
            self._recipients[node] = Recipient(self._first, NodeProgress(node))
        return self._recipients[node]

    def absorb(self, tables: Mapping[str, pl.DataFrame], now: int) -> list[NodeProgress]:
        """Take in what nodes have reported, which is returned, and which nodes are gone or back."""
        rows = tables[PROGRESS].select(*NodeProgress._fields).iter_rows() if PROGRESS in tables else ()
        reported = [NodeProgress(*row) for row in rows]
        for progress in reported:
            recipient = self._recipient(progress.node)
            trip = now - recipient.at
            if recipient.number == progress.received > recipient.progress.received and now > recipient.at > 0:
                self.trip = trip if not self.trip else (3 * self.trip + trip) // 4
            recipient.report(progress)
        for node, gone in tables[GONE].select("node", "gone").iter_rows() if GONE in tables else ():
            if node in self._recipients:
                self._recipients[node].gone = gone
        return reported

    @property
    def progress(self) -> dict[str, NodeProgress]:
        """What each node has reported last."""
        return {node: recipient.progress for node, recipient in self._recipients.items()}

    @property
    def lost(self) -> set[str]:
        """The nodes that nothing can be requested of."""
        recipients = self._recipients.items()
        return {node for node, recipient in recipients if recipient.gone or recipient.progress.over}

    def noted(self, node: str, notice: Notice) -> tuple[Any, ...] | None:
        """What a node is to know by now of something."""
        return self._recipient(node).notices.get(notice)

    def note(self, node: str, notice: Notice, row: tuple[Any, ...]) -> None:
        """Let a node know of something, until it has received it."""
        recipient = self._recipient(node)
        if recipient.notices.get(notice) != row:
            recipient.notices[notice], recipient.pending[notice] = row, recipient.number + 1

    def due(
        self, wanted: Tables, notices: Mapping[str, Mapping[str, pl.DataType]], is_over: bool, now: int
    ) -> Iterator[tuple[str, int, bool, Tables]]:
        """Make the requests that are due: for each the node, its number, whether it is the last one, and the tables.

        wanted:   the rows that are requested, of all nodes
        notices:  the tables of notices, with their columns
        is_over:  whether nothing will be requested any more, but of nodes that may have more events
        """
        of_nodes: dict[str, Tables] = {}
        for name, table in wanted.items():
            for (node,), rows in table.partition_by("node", as_dict=True, include_key=False).items():
                of_nodes.setdefault(node, {})[name] = rows
        lost = self.lost
        for node, recipient in self._recipients.items():
            if node in lost:
                continue
            is_last = is_over and recipient.progress.final == INT64_MAX
            tables = of_nodes.get(node, {})
            content: set[Any] = {(name, row) for name, rows in tables.items() for row in rows.hash_rows()}
            content |= {PROGRESS} if is_last else set()
            if recipient.has_news():
                content |= recipient.pending.items()
            is_recent = now - recipient.at < AGAIN
            if content <= recipient.content and (is_recent or not content):
                continue
            recipient.number, recipient.at = recipient.number + 1, now
            recipient.content = content | (recipient.content if is_recent else set())
            yield node, recipient.number, is_last, tables | _tables_of(recipient, notices)

    # --- what is kept ---------------------------------------------------------------------------------------------

    def saved(self) -> list[tuple[NodeProgress, bool]]:
        return [(recipient.progress, recipient.gone) for recipient in self._recipients.values()]

    def restore(self, saved: Iterable[tuple[Iterable[Any], bool]]) -> None:
        for values, gone in saved:
            progress = NodeProgress(*values)
            self._recipients[progress.node] = Recipient(self._first, progress, gone)


def _tables_of(recipient: Recipient, notices: Mapping[str, Mapping[str, pl.DataType]]) -> Tables:
    """The notices that a node has not received, as tables."""
    rows: dict[str, list[tuple[Any, ...]]] = {}
    for notice in recipient.pending:
        if notice.table in notices:  # a query still asks for it
            rows.setdefault(notice.table, []).append((*notice.identity, *recipient.notices[notice]))
    return {name: pl.DataFrame(rows[name], schema=notices[name], orient="row") for name in rows}


def drained(counters: Iterable[Counter[str]]) -> Counter[str]:
    """The sum of counters, which begin again."""
    total: Counter[str] = Counter()
    for counter in counters:
        total += counter
        counter.clear()
    return total
