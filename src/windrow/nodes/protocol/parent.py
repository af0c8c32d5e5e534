"""A node in its role as a parent: it answers its children, and keeps on disk what it has accepted.

    message of a child ── checked ──▶ subtree.take ──▶ reports ──▶ send window ──▶ the node's own parent
                                      journal.add  ──▶ Ack to the child

What breaks the node while it is folded in never comes into the journal. An Ack says that a batch is on disk, so it
comes last. While the send window is full, Acks are withheld: a slow parent slows its children down.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from windrow.core.query.query import Query
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.nodes.protocol.children import Child
from windrow.nodes.protocol.journal import Journal
from windrow.nodes.protocol.messages import (
    Ack,
    Alive,
    Batch,
    Claim,
    Claimed,
    Hello,
    Leave,
    Left,
    Notes,
    Offer,
    Out,
    Queries,
    Refused,
    Report,
    Up,
    Welcome,
)
from windrow.nodes.protocol.send_window import SendWindow
from windrow.nodes.protocol.subtree import Subtree
from windrow.nodes.queries import QuerySet
from windrow.nodes.requests import AGAIN


def refused(sender: str, message: Up, reason: str, notes: Notes) -> Out:
    notes.once(reason, f"refused {sender}: {reason}")
    return [(sender, Refused(message.life, reason))]


class ParentRole:
    """What a node does for its children; `timeout` and `ahead` are those of `Node`."""

    def __init__(
        self, name: str, subtree: Subtree, window: SendWindow, journal: Journal, timeout: int | None, ahead: int | None
    ) -> None:
        self.subtree = subtree
        self._children, self._notes = subtree.children, subtree.notes
        self._name, self._window, self._journal, self._timeout, self._ahead = name, window, journal, timeout, ahead
        self._withheld: set[str] = set()  # children that wait for an Ack
        self._hellos: dict[str, Hello] = {}  # of children that wait until the root has answered a claim
        self._initial: tuple[Query, ...] = ()  # of the root: the queries that it was started with last

    # --- messages of children -----------------------------------------------------------------------------------------

    def receive(self, sender: str, message: Up, now: int) -> Out:
        if message.node != sender or not self._children.may_come(sender):
            return refused(sender, message, f"{self._name} has no child {message.node!r}", self._notes)
        if isinstance(message, Hello):
            return self._hello(sender, message, now)
        child = self._children.get(sender)
        if child is None or not child.is_of_this_life(message):
            return []  # it has to say Hello first
        self._children.last_contact[sender] = now
        out = self._resume(sender, child, now) if child.state == "silent" else []
        if isinstance(message, Batch):
            out += self._batch(sender, child, message, now)
        elif isinstance(message, Claim):
            return [*out, *self._claim(sender, message, now)]
        elif isinstance(message, Leave):
            if child.state != "left":
                self._notes.append(f"{sender} has left")
                out += self._suspend(child, now, "left")
            return [(sender, Left(message.life)), *out]
        assert isinstance(message, Alive | Batch)
        return [*out, *self._queries_again(sender, child, message.version, now)]

    def _hello(self, sender: str, message: Hello, now: int) -> Out:
        if self.subtree.query_set is None:
            return []  # the child repeats its Hello
        homes = self.subtree.homes
        if refusal := homes.refusal(sender, self._name):
            return refused(sender, message, refusal, self._notes)
        if sender not in homes and not self.subtree.is_root:
            self._hellos[sender] = message
            return [self._claim_for(sender, self._name)]
        child = self._children.get(sender) or Child()
        if not child.may_begin(message):
            return [(sender, Offer(message.life, child.epoch + 1))]
        homes[sender], self._children[sender] = self._name, child
        self._children.last_contact[sender] = now
        out: Out = []
        if not child.is_of_this_life(message) or child.state in ("expected", "silent"):
            child.begin(message.life, self.subtree.query_set.version)
            out = self._resume(sender, child, now)
        queries = self._queries(child)
        stored = child.accepted, child.position, queries.query_set, queries.tables, child.sent_in
        welcome = Welcome(message.life, *stored)
        return [*out, (sender, welcome)]

    def _batch(self, sender: str, child: Child, batch: Batch, now: int) -> Out:
        if not child.is_next(batch):
            return self._acknowledge(sender, child) if batch.number <= child.accepted else []
        reason = self._wrong_with(batch, now)
        if reason is not None:
            return [*refused(sender, batch, reason, self._notes), *self._suspend(child, now)]
        out = [*self._send(self.subtree.take(batch, now), now), *self.subtree.requests(now)]
        if not self._journal.add(batch, self._window.deletable):
            self.checkpoint()
        self._window.deletable.clear()
        return [*self._acknowledge(sender, child), *out]

    def _wrong_with(self, batch: Batch, now: int) -> str | None:
        query_set = self.subtree.query_set
        assert query_set is not None
        if self._ahead is not None and not query_set.job.is_integer and now + self._ahead < batch.watermark < INT64_MAX:
            return f"its clock is {(batch.watermark - now) // 1_000_000:,} seconds ahead; mend it, or raise max_ahead"
        return self.subtree.wrong_with(batch)

    def _acknowledge(self, sender: str, child: Child) -> Out:
        if self._window.is_full:
            self._withheld.add(sender)
            return []
        return [(sender, Ack(child.life, child.accepted))]

    def acknowledge_withheld(self) -> Out:
        """The send window has room again: send the Acks that were withheld."""
        names, self._withheld = sorted(self._withheld), set()
        return [message for name in names for message in self._acknowledge(name, self._children[name])]

    # --- where nodes belong -------------------------------------------------------------------------------------------

    def _claim_for(self, child: str, parent: str) -> tuple[str, Claim]:
        return self._window.receiver, Claim(self._name, self._window.life, child, parent)

    def claims(self) -> Out:
        """The claims without an answer; else one is made again when the child repeats its Hello."""
        return [self._claim_for(child, self._name) for child in self._hellos]

    def _claim(self, sender: str, claim: Claim, now: int) -> Out:
        """Answer a claim, at the root or if the home of the node is known, or pass it on."""
        homes = self.subtree.homes
        if homes.above(claim.parent) != sender:
            return refused(sender, claim, f"it claims nodes for {claim.parent!r}, which is not below it", self._notes)
        refusal = homes.refusal(claim.child, claim.parent)
        if refusal or claim.child in homes or self.subtree.is_root:
            return self.claimed(Claimed(claim.life, claim.child, claim.parent, refusal), now)
        return [self._claim_for(claim.child, claim.parent)]

    def claimed(self, answer: Claimed, now: int) -> Out:
        """Keep where a node belongs, and let the parent know that wants it: this node, or one below it."""
        homes, child, parent = self.subtree.homes, answer.child, answer.parent
        if not answer.refusal and child not in homes:
            homes[child] = parent
            self.checkpoint()
        if parent != self._name:
            through = homes.above(parent)
            return [] if through is None else [(through, replace(answer, life=self._children[through].life))]
        hello = self._hellos.pop(child, None)
        if hello is None:
            return []
        if answer.refusal:
            return refused(child, hello, answer.refusal, self._notes)
        return self._hello(child, hello, now)

    # --- children that come and go ------------------------------------------------------------------------------------

    def notice_silence(self, now: int) -> Out:
        """Stop waiting for children without a message for too long."""
        out: Out = []
        for name in self._children.unheard(now, self._timeout) if self._timeout is not None else ():
            self._notes.append(f"{name} is silent; the watermark does not wait for it")
            out += self._suspend(self._children[name], now)
        return out

    def give_up(self, name: str, now: int) -> Out:
        """Wait for a child no more whose messages nobody takes."""
        child = self._children.get(name)
        return self._suspend(child, now, "left") if child is not None and child.is_awaited else []

    def _suspend(self, child: Child, now: int, state: Literal["silent", "left"] = "silent") -> Out:
        return self._keep(self.subtree.suspend(child, state), now)

    def _resume(self, sender: str, child: Child, now: int) -> Out:
        if not child.is_awaited:
            self._notes.append(f"{sender} is back")
        return self._keep(self.subtree.resume(sender, child), now)

    # --- the query set ------------------------------------------------------------------------------------------------

    def pass_on_queries(self, reports: Iterable[Report], now: int) -> Out:
        """Send what the subtree reports of the query set before, and pass its new one on to the children."""
        out = self._keep(reports, now)
        live = [(name, child) for name, child in self._children.items() if child.state == "live"]
        return [*out, *((name, self._queries(child)) for name, child in live)]

    def _queries(self, child: Child) -> Queries:
        query_set = self.subtree.query_set
        assert query_set is not None
        return Queries(child.life, query_set.to_dict(), {"columns": query_set.table})

    def _queries_again(self, sender: str, child: Child, version: int, now: int) -> Out:
        """Send the query set again to a child that knows an older version, but not with every message."""
        query_set, last = self.subtree.query_set, self._children.last_queries
        if query_set is None or version >= query_set.version or now - last.get(sender, INT64_MIN) < AGAIN:
            return []
        last[sender] = now
        return [(sender, self._queries(child))]

    # --- reports, and what is kept on disk ----------------------------------------------------------------------------

    def _send(self, reports: Iterable[Report], now: int) -> Out:
        return [message for report in reports for message in self._window.send(report, now)]

    def _keep(self, reports: Iterable[Report], now: int) -> Out:
        """Send reports that no batch has caused: only a checkpoint can keep them."""
        out = self._send(reports, now)
        self.checkpoint()
        return out

    def leave(self, now: int) -> Out:
        reports = self.subtree.leave()
        return self._keep(reports, now) if reports else []

    def checkpoint(self) -> None:
        if self.subtree.query_set is None:
            return
        header, tables = self.subtree.saved()
        header |= {"number": self._window.number, "initial": [query.to_dict() for query in self._initial]}
        self._journal.checkpoint(header, tables, self._window.unacknowledged)

    def recover(self, given: QuerySet | None) -> None:
        """Be as it was in its earlier life: the checkpoint, and the batches since then.

        `given` is what a root is started with; where it differs from the last time, queries are removed and added.
        """
        kept = self._journal.read()
        self._initial = given.queries if given is not None else ()
        if kept is None:
            if given is not None:
                self.subtree.begin(given)
            return
        self._initial = tuple(Query.from_dict(query) for query in kept.header["initial"])
        self._restore(kept.header, kept.tables, kept.out, kept.log)
        for name, child in self._children.items():
            if child.is_awaited and not self._children.may_come(name):
                self._suspend(child, 0, "left")
                self._notes.append(f"{name} is none of its children any more; the watermark does not wait for it")
        if given is not None and self.subtree.query_set is not None:
            removed, added = self.subtree.query_set.differs(given, self._initial)
            for query in removed:
                self.pass_on_queries(self.subtree.remove(query.name), 0)
            if added:
                self.pass_on_queries(self.subtree.put_in(self.subtree.planned(added)) or [], 0)
            if self._initial != given.queries:  # noted last: after a crash before this line all is done again
                self._initial = given.queries
                self.checkpoint()

    def _restore(self, header: dict[str, Any], tables: Any, sent: list[Batch], log: list[Batch]) -> None:
        self.subtree.restore(header, tables)
        self._window.restore(sent, header["number"])
        for batch in log:
            self._send(self.subtree.take(batch, 0), 0)
        if self.subtree.assembly is not None and self.subtree.assembly.counting:
            # Requests are not kept, and a node may have nothing more to send before it gets one.
            self._send(self.subtree.advance(), 0)
