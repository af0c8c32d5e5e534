"""The parent's side of a node: what comes from children is checked, kept, and folded into what the node holds.

**State is a fold.** What a node with children holds follows from the batches that it has accepted, in their order, and
so do the batches that it makes itself. So the journal is a checkpoint and the batches since then. What does not follow
from batches (a child is silent, leaves, comes; other queries) makes a checkpoint.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import polars as pl

from windrow.core.query.query import Query
from windrow.core.stream.job_slicer import Tables
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.nodes.counting.tables import COUNTING, names_in
from windrow.nodes.protocol.children import Child, Children, after, cut_from
from windrow.nodes.protocol.intermediate import Merger
from windrow.nodes.protocol.journal import Journal
from windrow.nodes.protocol.messages import (
    Ack,
    Alive,
    Batch,
    Hello,
    Leave,
    Left,
    Message,
    Plan,
    Refused,
    Request,
    Welcome,
)
from windrow.nodes.protocol.root import Assembly
from windrow.nodes.protocol.send_window import AGAIN, Uplink
from windrow.nodes.pushdown import NODES, nodes_table
from windrow.nodes.quantiles.tables import QUANTILES
from windrow.nodes.queries import Asked
from windrow.nodes.tables import GONE, gone_table

Out = list[tuple[str, Message]]
_COLUMNS = "columns"  # in a checkpoint, an empty table of events


class Parent:
    """A node as its children see it; `Machine` is the whole of it."""

    name: str
    role: str
    children: tuple[str, ...]
    epoch: int
    asked: Asked | None
    joins: bool
    timeout: int | None
    ahead: int | None
    notes: list[str]
    _link: Uplink
    _known: Children
    _journal: Journal
    _given: tuple[Query, ...]
    _came: dict[str, int]
    _noted: set[str]
    _watermark: int
    _told: tuple[int, int, int]
    _withheld: set[str]
    _merger: Merger | None
    _assembly: Assembly | None

    def add(self, query: Query, now: int) -> Out:
        raise NotImplementedError

    def remove(self, name: str, now: int) -> Out:
        raise NotImplementedError

    def _begin(self, asked: Asked) -> None:
        raise NotImplementedError

    def _send(self, tables: Tables, now: int, idle: int | None = None, told: tuple[int, int] | None = None) -> Out:
        raise NotImplementedError

    # --- messages -----------------------------------------------------------------------------------------------------

    def _from_child(self, sender: str, message: Hello | Batch | Alive | Leave, now: int) -> Out:
        child = self._known.get(sender)
        if message.node != sender or self.role == "local" or not (self.joins or sender in self.children):
            return self._refuse(sender, message, f"{self.name} has no child {message.node!r}")
        if isinstance(message, Hello):
            return self._hello(sender, message, now)
        if child is None or not self._is_of_this_life(child, message):
            return []  # or it has to say Hello
        self._known.heard[sender] = now
        out = self._welcome_back(sender, child, now) if child.state == "silent" else []
        if isinstance(message, Batch):
            out += [*self._batch(sender, child, message, now), *self._requests(now)]
        elif isinstance(message, Leave):
            if child.state != "left":
                self.notes.append(f"{sender} has left")
                out += self._hush(child, now, "left")
            return [(sender, Left(message.epoch)), *out]
        is_behind = self.asked is not None and message.plan < self.asked.version
        if is_behind and now - self._known.planned.get(sender, INT64_MIN) >= AGAIN:
            self._known.planned[sender] = now
            out.append((sender, self._plan(child)))
        return out

    def _refuse(self, sender: str, message: Hello | Batch | Alive | Leave, reason: str) -> Out:
        if reason not in self._noted:
            self._noted.add(reason)
            self.notes.append(f"refused {sender}: {reason}")
        return [(sender, Refused(message.epoch, reason))]

    def _hello(self, sender: str, message: Hello, now: int) -> Out:
        if self.asked is None:
            return []  # it will say Hello again
        child = self._known.setdefault(sender, Child())
        if message.epoch < child.epoch:  # one that was overtaken, and hears nothing any more; or its clock was set back
            return self._refuse(sender, message, f"{sender} has been here with a greater epoch; mend its clock")
        self._known.heard[sender] = now
        out: Out = []
        if message.epoch > child.epoch or child.state in ("expected", "silent"):
            child.begin(message.epoch, self.asked.version)
            out = self._welcome_back(sender, child, now)
        asked = self.asked.to_dict()
        welcome = Welcome(message.epoch, child.accepted, child.position, asked, {"columns": self.asked.table})
        return [*out, (sender, welcome)]

    def _welcome_back(self, sender: str, child: Child, now: int) -> Out:
        """A child is waited for from now on; what it has sent before may be all that the others have waited for."""
        if child.state in ("silent", "left"):
            self.notes.append(f"{sender} is back")
            child.gone = [name for name in child.gone if name != sender]
            self._have_gone(child, False)
        child.state = "live"
        out = self._advance(now)
        self._checkpoint()
        return out

    def _batch(self, sender: str, child: Child, batch: Batch, now: int) -> Out:
        if not self._is_next(child, batch):
            return self._acknowledge(sender, child) if batch.number <= child.accepted else []
        reason = self._wrong_with(batch, now)
        if reason is not None:
            return [*self._refuse(sender, batch, reason), *self._hush(child, now)]
        out = self._take(batch, now)
        if not self._journal.add(batch, self._link.gone):
            self._checkpoint()
        self._link.gone.clear()
        return [*self._acknowledge(sender, child), *out]

    def _acknowledge(self, sender: str, child: Child) -> Out:
        """Later, if a slow parent has to slow its children down."""
        if self._link.is_full:
            self._withheld.add(sender)
            return []
        return [(sender, Ack(child.epoch, child.accepted))]

    def _acknowledge_withheld(self) -> Out:
        names, self._withheld = sorted(self._withheld), set()
        return [one for name in names for one in self._acknowledge(name, self._known[name])]

    @staticmethod
    def _is_of_this_life(child: Child, message: Batch | Alive | Leave) -> bool:
        return message.epoch == child.epoch

    @staticmethod
    def _is_next(child: Child, batch: Batch) -> bool:
        return batch.number == child.accepted + 1

    def _wrong_with(self, batch: Batch, now: int) -> str | None:
        """Why a batch cannot be taken; None if it can."""
        assert self.asked is not None
        is_temporal = self.ahead is not None and not self.asked.job.is_integer
        if is_temporal and now + (self.ahead or 0) < batch.watermark < INT64_MAX:
            return f"its clock is {(batch.watermark - now) // 1_000_000:,} seconds ahead; mend it, or raise max_ahead"
        reason = self.asked.wrong_with(batch.tables) or self._wrong_names(batch)
        if reason is None and self._assembly is not None:
            reason = self._assembly.wrong_with(batch.tables)
        return reason

    def _wrong_names(self, batch: Batch) -> str | None:
        """A local node counts its own events, one between others those of nodes that are nobody else's."""
        assert self.asked is not None
        forms, tables = self.asked.forms, batch.tables
        if not forms:
            return None
        for name in names_in(forms, tables):
            others = [one for one, child in self._known.items() if one != batch.node and name in child.holding]
            if others or (batch.position and name != batch.node):
                return f"it counts for {name!r}, which is {f'below {others[0]}' if others else 'another node'}"
        said = {*self._known[batch.node].holding, *(tables[COUNTING]["node"] if COUNTING in tables else ())}
        for name in names_in(forms, {part: table for part, table in tables.items() if part != GONE}):
            if name not in said:
                return f"it counts for {name!r}, which has not said a word"
        return None

    def _take(self, batch: Batch, now: int) -> Out:
        """Fold a batch into what there is."""
        child, is_late = self._known[batch.node], batch.watermark <= self._watermark
        self._begin_again(child, batch)
        child.take(batch)
        if NODES in batch.tables and self.asked is not None and self.asked.pushed:
            child.hear_of(batch.tables[NODES])
        if COUNTING in batch.tables:
            child.hold(batch.tables[COUNTING])
        if GONE in batch.tables:
            child.miss(batch.tables[GONE])
        if QUANTILES in batch.tables:
            child.keep(batch.tables[QUANTILES])
        if self._assembly is not None:
            child.late += self._assembly.absorb(batch.tables, now)
        elif self._merger is not None:
            self._merger.absorb(batch.tables, batch.events)
        return self._advance(now, is_late)

    def _finish(self) -> None:
        """Queries that all nodes know by now begin after everything that was cut without them."""
        assert self.asked is not None
        plan = self._known.plan(self.asked.version)
        done = [name for name, version in self.asked.pending if version <= plan]
        if done and self._assembly is not None:
            self.asked = self.asked.settled(done, max(after(self._watermark), self._known.since(plan)))
            self._assembly = self._assembly.switched(self.asked.job)

    def _begin_again(self, child: Child, batch: Batch) -> None:
        """Queries that have begun without a child, and find now that it has gone on without them, wait for it."""
        if self.asked is None or self._assembly is None:
            return
        since, waiting = dict(self.asked.since), dict(self.asked.pending)
        for name, version in self._came.items():
            is_behind = min(child.plan, batch.plan) < version
            if name not in waiting and is_behind and cut_from(version, batch) > since[name]:
                self.asked = replace(self.asked, pending=(*self.asked.pending, (name, version)))
                self.notes.append(f"{name} begins again: {batch.node} comes with events that were cut without it")

    def _advance(self, now: int, is_late: bool = False) -> Out:
        """Move the watermark to the least of the children's, and say what is due."""
        if self.asked is None:
            return []
        self._finish()
        least = max(self._watermark, min(self._known.busy, default=self._watermark))
        moved, self._watermark = least > self._watermark, least
        if self._assembly is not None:
            found = self._assembly.advance(least)
            for node, late in self._assembly.late().items():
                next(child for child in self._known.values() if node in {*child.holding, *child.keeping}).late += late
            if self.asked.pending:
                found = found.filter(~pl.col("query").is_in([name for name, _ in self.asked.pending]))
            return self._send({"results": found}, now) if found.height else []
        if self._merger is None:
            return []
        plan, idle = self._known.plan(self.asked.version), int(self._known.all_idle)
        told, falls_idle = (plan, self._known.since(plan)), idle > self._told[2]
        is_due = moved or is_late or falls_idle or self._merger.is_urgent
        tables = self._merger.due(least, everything=least == INT64_MAX or falls_idle) if is_due else None
        if self.role == "root" and not (tables or (moved and tables is not None)):
            return []  # whoever takes slices need not know how nodes cut
        if tables is None and (*told, idle) == self._told:
            return []
        return self._send(tables or {}, now, idle, told)

    def _requests(self, now: int) -> Out:
        """What the root tells and asks local nodes, through those between them."""
        if self._assembly is None:
            return []
        routes = {node: name for name, child in self._known.items() for node in (*child.holding, *child.keeping)}
        return [
            (routes[node], Request(self._known[routes[node]].epoch, node, number, int(over), tables))
            for node, number, over, tables in self._assembly.requests(now)
            if node in routes
        ]

    def _notice_silence(self, now: int) -> Out:
        if self.timeout is None:
            return []
        out: Out = []
        for name in self._known.unheard(now, self.timeout):
            self.notes.append(f"{name} is silent; the watermark does not wait for it")
            out += self._hush(self._known[name], now)
        return out

    def _hush(self, child: Child, now: int, state: Literal["silent", "left"] = "silent") -> Out:
        """The others do not wait for a child."""
        child.state = state
        self._have_gone(child, True)
        out = self._advance(now)
        self._checkpoint()
        return out

    def _have_gone(self, child: Child, gone: bool) -> None:
        """Windows of other nodes do not wait for those of local nodes that are not heard; those of one that has said
        itself that it goes never do."""
        tables: Tables = {}
        if names := [name for name in {**child.holding, **child.keeping} if name not in child.away]:
            tables[GONE] = gone_table(names, gone)
        names = [name for name in child.events if name not in child.gone]
        if names and self.asked is not None and self.asked.pushed:
            tables[NODES] = nodes_table(names, gone)
        if tables and self._assembly is not None:
            self._assembly.absorb(tables)
        elif tables and self._merger is not None:
            self._merger.absorb(tables, {})

    def _plan(self, child: Child) -> Plan:
        assert self.asked is not None
        return Plan(child.epoch, self.asked.to_dict(), {"columns": self.asked.table})

    # --- the journal ----------------------------------------------------------------------------------------------

    @property
    def _work(self) -> Assembly | Merger:
        work = self._assembly or self._merger
        assert work is not None
        return work

    def _checkpoint(self) -> None:
        if self.role == "local" or self.asked is None:
            return
        state, tables = self._work.saved()
        header = {
            "number": self._link.number,
            "watermark": self._watermark,
            "told": self._told,
            "children": self._known.saved(),
            "asked": self.asked.to_dict(),
            "given": [query.to_dict() for query in self._given],
            "came": self._came,
            "state": state,
        }
        self._journal.checkpoint(header, {**tables, _COLUMNS: self.asked.table}, self._link.sent)

    def _recover(self) -> None:
        """Be as it was: the checkpoint, and the batches since then."""
        kept, given = self._journal.read(), self.asked
        if kept is None:
            if given is not None:
                self._begin(given)
            return
        header, tables = kept.header, dict(kept.tables)
        self._given = tuple(Query.from_dict(query) for query in header["given"])
        self._begin(Asked.from_dict(header["asked"], tables.pop(_COLUMNS)))
        self._known.restore(header["children"])
        self._watermark, self._told, self._came = header["watermark"], tuple(header["told"]), header["came"]
        self._work.restore(header["state"], tables)
        for batch in kept.out:
            self._link.add(batch, 0)
        self._link.number = header["number"]
        for batch in kept.log:
            self._take(batch, 0)
        if self._assembly is not None and self._assembly.counting:
            self._advance(0)  # what it asks is not kept, and nobody may have more to say before it is asked
        for name, child in self._known.items():
            if child.counts and not (self.joins or name in self.children):  # it was, when this node was started before
                self._hush(child, 0, "left")
                self.notes.append(f"{name} is none of its children any more; the watermark does not wait for it")
        self._link.sent = [replace(batch, epoch=self.epoch) for batch in self._link.sent]
        if given is not None and self.asked is not None:  # what it is started with may have changed
            gone, new = self.asked.differs(given, self._given)
            for query in gone:
                self.remove(query.name, 0)
            for query in new:
                self.add(query, 0)
            if self._given != given.queries:  # it is noted last: until then all this is done again
                self._given = given.queries
                self._checkpoint()
