"""A node as a machine without a transport: messages and the clock go in, messages come out.

    local          read(events) ──▶ slices, numbered ──▶ parent          keeps a batch until it is acknowledged
    intermediate   batches of children ──▶ merged, numbered ──▶ parent   keeps what it has accepted in its log store
    root           batches of children ──▶ windows ──▶ sink              likewise

`Node` is what all three have in common: it is the child of its parent (Hello, send window, Leave). What it does besides
is in its role: `LocalRole` reads a source (`local.py`); `ParentRole` answers children (`parent.py`) and folds their
batches into a `Subtree` (`subtree.py`). There are no threads, no sockets and no wall clock, so that many nodes run in
one process, with every fault that a seed can think of.

**Nothing lost, nothing twice.** A node's batches are numbered without a gap, over all its lives; a parent takes number
n + 1 after n and nothing else, and acknowledges what is in its log store. A node that was restarted says Hello as
another life; the Welcome says which batch was the last and where in the source it ended, and the node reads on from
there. Whatever an earlier life had sent after that is void: batches of another life than the last are not taken.

    child                         parent
    Hello, life, epoch 1  ──────▶ welcomed, if no life of that name was before
                 epoch 6  ◀────── else an Offer: five lives were; nothing has changed yet
    Hello, life, epoch 6  ──────▶ takes it: messages of the fifth life are void from now on
                          ◀────── Welcome

Parents count lives, because clocks err; and they offer first, because a Hello may be on its way for longer than its
life lasts. A node that was welcomed before and gets an Offer of a greater epoch was overtaken by another process.

**No event by two ways.** A node that comes to a parent for the first time is welcomed once the root has given it that
home (`homes.py`): the parent claims it, and the claim travels up and its answer down.

**Queries come and go.** A node that learns of another query set sends what it has cut so far, cuts by the new set from
then on, and announces it with the first event time from which all its events are cut by it. A new query begins at the
greatest of these times, once all awaited nodes have announced theirs, and after all events of the other nodes; until
then the watermark cannot have passed that time. If another node comes back with events that were cut without the query,
the query begins again after them, because they cannot be put into its windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Literal

import polars as pl

from windrow.core.expressions.errors import QueryError
from windrow.core.query.query import Query
from windrow.core.windows.fixed import INT64_MAX
from windrow.nodes.protocol.children import Children
from windrow.nodes.protocol.homes import Homes
from windrow.nodes.protocol.journal import WHAT_TO_DO, Journal, Lives, LogStore
from windrow.nodes.protocol.local import LocalRole, Mark, Reader
from windrow.nodes.protocol.messages import (
    Ack,
    Alive,
    Claimed,
    Hello,
    Leave,
    Left,
    Message,
    Notes,
    Offer,
    Out,
    Queries,
    Refused,
    Request,
    Up,
    Welcome,
)
from windrow.nodes.protocol.parent import ParentRole, refused
from windrow.nodes.protocol.send_window import SendWindow
from windrow.nodes.protocol.subtree import Planned, Subtree
from windrow.nodes.queries import QuerySet

SINK = ""  # the root's parent: the sink takes its batches, each number once, and acknowledges them as a parent does
MAX_AHEAD = 86_400_000_000  # microseconds that event time may be ahead of the clock


@dataclass
class Node:
    """A node: its name, its parent if it has one, its children, and where it keeps what must not be lost."""

    name: str
    parent: str | None = None
    children: tuple[str, ...] = ()  # that are awaited from the beginning
    life: int = 0  # a number that no other life of the node has
    store: LogStore | None = None  # of a node with children, and of one that finds windows itself
    initial: QuerySet | None = None  # of the root: the query set to begin with; the others get it from their parents
    _: KW_ONLY
    joins: bool = False  # whether others may come as its children
    lateness: int | None = None  # of a local node, if its own
    eager: bool = False  # of a local node: its source cannot be read again
    idle: int | None = None  # after how long without events a local node holds the watermark back no more
    timeout: int | None = None  # after how long without a message a child is silent
    ahead: int | None = MAX_AHEAD  # how far event time may be ahead of the clock
    feeds: Literal["results", "slices"] = "results"  # of the root
    block_size: int | None = None  # of a local node: values of a block; None for as many as send the fewest bytes
    log: int = 256  # batches that are accepted between two checkpoints, at most

    def __post_init__(self) -> None:
        has_children = bool(self.children or self.joins)
        self.role = "root" if self.parent is None else "intermediate" if has_children else "local"
        self.notes = Notes()
        self.refused: str | None = None  # why the node cannot go on with this parent, who may have said so
        self.left = False  # the parent does not wait for it any more: it may go
        self._is_leaving = False
        self._is_welcome = self.parent is None
        self._was_welcome = False
        self.epoch = 1  # how many lives it has had, as its parent counts them; a root counts its own
        self._window = SendWindow(self.name, self.life, SINK if self.parent is None else self.parent)
        self.as_local: LocalRole | None = None
        self.as_parent: ParentRole | None = None
        self._lives: Lives | None = None  # of a node with children
        if self.role == "local":
            cut = partial(Reader, node=self.name, lateness=self.lateness, eager=self.eager, block_size=self.block_size)
            self.as_local = LocalRole(self.name, self._window, self.store, self.notes, cut, self.idle, self.ahead)
        else:
            self.as_parent = self._parent_role()

    def _parent_role(self) -> ParentRole:
        if self.store is None:
            raise ValueError(f"{self.name} has children, so it needs a spool")
        for_spark, children = self.feeds == "slices", Children(self.children, self.joins)
        self._lives = Lives(self.store, self.life)
        journal = Journal(self.store, self.log)
        if self.role == "root":
            self.epoch = journal.begin_life()
        subtree = Subtree(children, Homes(self.name), self.epoch, self.role == "root", for_spark, self.notes)
        role = ParentRole(self.name, subtree, self._window, journal, self.timeout, self.ahead)
        role.recover(self.initial.as_events() if self.initial is not None and for_spark else self.initial)
        return role

    # --- what drives it -----------------------------------------------------------------------------------------------

    @property
    def query_set(self) -> QuerySet | None:
        """The queries that it answers or cuts by; None until its parent has sent them."""
        return self._work.query_set

    @property
    def _subtree(self) -> Subtree:
        assert self.as_parent is not None
        return self.as_parent.subtree

    @property
    def _work(self) -> LocalRole | Subtree:
        return self.as_local or self._subtree

    @property
    def mark(self) -> Mark | None:
        """From where its source is to be read; None while it must not be."""
        is_ready = self._is_welcome and not self._is_leaving and self.refused is None
        return self.as_local.mark if self.as_local is not None and is_ready else None

    @property
    def confirmed(self) -> Mark | None:
        """Up to where in its source the parent has stored everything; None while that is not known."""
        return self._window.confirmed.get("mark")

    @property
    def watermark(self) -> int:
        """How far the windows of the root have come, or what this node announces to its parent."""
        return self._work.watermark

    @property
    def done(self) -> bool:
        """Whether all sources below have come to their end, and everything is acknowledged."""
        return self.watermark == INT64_MAX and not self._window.unacknowledged and not self._work.is_needed

    def start(self, now: int) -> Out:
        """Say Hello, or give the sink what it may not have; also when a connection was opened again."""
        self._window.reset_pause(now)
        self._is_welcome = self.parent is None
        return self._send_again()

    def tick(self, now: int) -> Out:
        """Do what time brings: notice silence and idleness, and send again what has no answer."""
        out: Out = []
        if self.as_parent is not None:
            out += self.as_parent.notice_silence(now)
            out += self._subtree.requests(now)
        elif self.as_local is not None and self._is_welcome:
            out += self.as_local.tick(now)
            out += self.as_local.flush(now) if not self._is_leaving else []
        is_answered = self._is_welcome and not self._window.unacknowledged
        if self.refused is not None or not self._window.is_due(now, is_answered):
            return out
        return [*out, *self._send_again()]

    def _send_again(self) -> Out:
        """What the parent has not answered, or a sign of life if there is nothing."""
        if self._window.unacknowledged and self._is_welcome:
            return self._window.send_again()
        if self.parent is None:
            return []
        if not self._is_welcome:
            return [(self.parent, Hello(self.name, self.life, self.epoch))]
        if self._is_leaving:
            return [(self.parent, Leave(self.name, self.life))]
        version = self.query_set.version if self.query_set is not None else 0
        return [(self.parent, Alive(self.name, self.life, version))]

    def read(self, events: pl.DataFrame, mark: Mark, now: int, last: bool = False) -> Out:
        """Take events of the source, and its mark after them; after the last ones nothing comes."""
        assert self.as_local is not None
        return self.as_local.read(events, mark, now, last)

    def leave(self, now: int) -> Out:
        """Send everything, and go once it is acknowledged: see `left`."""
        out: Out = []
        if not self._is_leaving and self._is_welcome and self.parent is not None:
            role = self.as_local or self.as_parent
            assert role is not None
            out = role.leave(now)
        self._is_leaving = True
        self.left = not self._is_welcome and not self._window.unacknowledged
        if self._window.unacknowledged or self.parent is None:
            return out
        return [*out, (self.parent, Leave(self.name, self.life))]

    def planned(self, queries: Sequence[Query]) -> Planned:
        """At the root: plan more queries, on any thread, while the node goes on."""
        return self._subtree.planned(queries)

    def add(self, planned: Planned, now: int) -> Out | None:
        """At the root: answer more queries, each from an event time on that is known once all nodes cut by it.

        None, and nothing has changed, if other queries have come or gone since they were planned.
        """
        assert self.as_parent is not None
        reports = self._subtree.put_in(planned)
        return None if reports is None else self.as_parent.pass_on_queries(reports, now)

    def remove(self, name: str, now: int) -> Out:
        assert self.as_parent is not None
        return self.as_parent.pass_on_queries(self._subtree.remove(name), now)

    def give_up(self, child: str, now: int) -> Out:
        """Go on without a child: its messages are not taken any more."""
        assert self.as_parent is not None
        return self.as_parent.give_up(child, now)

    # --- messages -----------------------------------------------------------------------------------------------------

    def receive(self, sender: str, message: Message, now: int) -> Out:
        if isinstance(message, Up):
            if self.as_parent is None:
                return refused(sender, message, f"{self.name} has no child {message.node!r}", self.notes)
            return self.as_parent.receive(sender, message, now)
        if sender != self._window.receiver or message.life != self.life:
            return []  # of an earlier life, or not for this node
        if isinstance(message, Welcome):
            return self._welcome(message, now)
        if isinstance(message, Offer):
            return self._offer(message)
        if isinstance(message, Queries):
            query_set = self._queries(message)
            return [] if query_set is None else self._adopt(query_set, now)
        if isinstance(message, Claimed):
            return self.as_parent.claimed(message, now) if self.as_parent is not None else []
        if isinstance(message, Request):
            return self._request(message, now)
        if isinstance(message, Ack):
            return self._ack(message, now) if self._is_welcome else []  # a Welcome on its way may name fewer batches
        if isinstance(message, Left):
            self.left = self._is_leaving
        elif isinstance(message, Refused):
            self.refused = message.reason
        return []

    def _offer(self, message: Offer) -> Out:
        """Take the epoch that the parent offers, unless another process has taken it since this one was welcomed."""
        if self._is_welcome or self.parent is None:
            return []
        if self._was_welcome and message.epoch > self.epoch:
            self.refused = f"another process called {self.name!r} has come since; give one of them another name"
            return []
        self.epoch = message.epoch
        return [(self.parent, Hello(self.name, self.life, self.epoch))]

    def _welcome(self, message: Welcome, now: int) -> Out:
        if self._is_welcome or self.parent is None:
            return []
        is_other = not self._window.has(message.accepted, message.position)
        reason = self.behind(self.parent, message.accepted, message.sent_in)
        if reason is None and is_other and self._window.number:
            other = (
                f"{self.parent} has {message.accepted} batches of {self.name!r}, other ones than it had acknowledged: "
                "its spool was emptied, or an older copy was put back, or it is another parent than before"
            )
            if self.as_local is None or self.eager:
                reason = f"{other}; {WHAT_TO_DO}"
            else:
                self.notes.append(f"{other}; the source is read again from there")
        if reason is not None:
            self.refused = reason
            return []
        query_set = self._queries(message)
        if query_set is None:
            return []
        self._is_welcome = self._was_welcome = True
        self._window.reset_pause(now)
        self._window.forget(message.accepted, now)
        if self.as_local is not None and (self.as_local.reader is None or is_other):
            self.refused = self.as_local.begin(query_set, message) or self.refused
            return []
        out = self._window.send_again()
        out += [*self.as_parent.acknowledge_withheld(), *self.as_parent.claims()] if self.as_parent is not None else []
        return [*out, *self._adopt(query_set, now)]

    @property
    def goes_on(self) -> bool:
        """Whether its parent has let it go on with what its log store has; a root has none."""
        return self._is_welcome and self.refused is None

    def has_lived(self, life: int) -> bool:
        """Whether its log store knows this life of a node with children."""
        return self._lives is None or self._lives.has(life)

    def behind(self, receiver: str, accepted: int, sent_in: int) -> str | None:
        """Why the log store is not the one that the node had last, if its parent or sink has more of it; else None.

        A node that went on from less would number other batches as those that were accepted before, and they would be
        dropped as repeats. Its children cannot give again what it lacks: slices of many of their batches were merged.
        """
        if self._lives is None:
            return None
        if self._window.number < accepted or (sent_in and not self._lives.has(sent_in)):
            return (
                f"the spool of {self.name!r} is behind {receiver}, which has {accepted} batches of it: the spool was "
                f"emptied, or an older copy was put back; {WHAT_TO_DO}"
            )
        if sent_in:
            self._lives.forget_before(sent_in)
        return None

    def _queries(self, message: Welcome | Queries) -> QuerySet | None:
        """The query set of the parent; None if it cannot be read, and then the node cannot go on with this parent."""
        try:
            return QuerySet.from_dict(message.query_set, message.tables.get("columns"))
        except QueryError as error:
            self.refused = f"it cannot read what {self.parent} asks: {error}"
            return None

    def _adopt(self, query_set: QuerySet, now: int) -> Out:
        """Go on with the parent's query set, if it is newer; what comes before a Welcome is in it as well."""
        if not self._is_welcome or (self.query_set is not None and query_set.version <= self.query_set.version):
            return []
        if self.as_local is not None:
            return self.as_local.adopt(query_set, now)
        assert self.as_parent is not None
        return self.as_parent.pass_on_queries(self._subtree.switch(query_set), now)

    def _request(self, message: Request, now: int) -> Out:
        """Answer a request of the root, or pass it on."""
        if self.as_local is None:
            return self._subtree.pass_on(message)
        return self.as_local.answer(message, now) if self._is_welcome and not self._is_leaving else []

    def _ack(self, message: Ack, now: int) -> Out:
        self._window.forget(message.number, now)
        out = self.as_parent.acknowledge_withheld() if self.as_parent is not None else []
        if self._is_leaving and not self._window.unacknowledged and not self.left and self.parent is not None:
            out.append((self.parent, Leave(self.name, self.life)))
        return out

    # --- its status ---------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Plain data: how far it has come, and what it knows of its children."""
        status: dict[str, Any] = {"name": self.name, "role": self.role, "epoch": self.epoch}
        status["watermark"] = self.watermark
        status["plan"] = self.query_set.version if self.query_set else 0
        status["batches"] = {"made": self._window.number, "unacknowledged": len(self._window.unacknowledged)}
        if self.as_local is None:
            return {**status, **self._subtree.status(), "children": self._subtree.children.status()}
        if self.as_local.reader is not None:
            reader, acknowledged = self.as_local.reader, self._window.confirmed.get("count", 0)
            status["events"] = {"read": reader.count, "acknowledged": acknowledged, "left_out": reader.left_out}
        return status
