"""A node as a machine without a transport: messages and the clock go in, messages come out.

    local          read(events) ──▶ slices, numbered ──▶ parent          keeps a batch until it is acknowledged
    intermediate   batches of children ──▶ merged, numbered ──▶ parent   keeps what it has accepted in its spool
    root           batches of children ──▶ windows ──▶ outlet            likewise

One class for all three, which differ in what they are asked to do. There are no threads, no sockets and no wall clock,
so that many machines run in one process, with every fault that a seed can think of.

**Nothing lost, nothing twice.** A node's batches are numbered without a gap, over all its lives; a parent takes number
n + 1 after n and nothing else, and acknowledges what its spool holds. A node that has been restarted says Hello with a
greater epoch; the answer says which batch was the last and where in the source it ended, and the node reads on from
there. What an earlier life has sent is thereby overtaken: batches of an old epoch are not taken any more.

**State is a fold.** What a node with children holds follows from the batches that it has accepted, in their order, and
so do the batches that it makes itself. So the spool is a checkpoint and the batches since then. What does not follow
from batches (a child is silent, leaves, comes; other queries) makes a checkpoint.

**Queries come and go.** A node that hears of another plan sends what it has cut so far, cuts by the new one from then
on, and says so with the first event time for which that is true of all its events. A query that has come begins at the
greatest of these times, once all nodes have said theirs. Until then the watermark cannot have passed it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol

import polars as pl

from windrow.nodes.asked import Asked
from windrow.nodes.assembly import Assembly
from windrow.nodes.merging import Merger
from windrow.nodes.messages import (
    Ack,
    Alive,
    Batch,
    Hello,
    Leave,
    Left,
    Message,
    Plan,
    Position,
    Refused,
    Welcome,
    from_bytes,
    to_bytes,
)
from windrow.nodes.reading import Mark, Reader
from windrow.query import Query, QueryError
from windrow.slicers import Tables
from windrow.slices import pack, unpack
from windrow.slicing import time_column
from windrow.windows import INT64_MAX, INT64_MIN

OUTLET = ""  # whom the root speaks to: whoever takes its batches, once each by their number
AGAIN = 1_000_000  # microseconds after which what is not answered is said again, at first
SELDOM = 30 * AGAIN  # and at most
WINDOW = 32  # batches that may be on their way without an acknowledgement
WEIGHT = 64 << 20  # and bytes, after which no more is read
AHEAD = 86_400_000_000  # microseconds that event time may be ahead of the clock

Out = list[tuple[str, Message]]


class Spool(Protocol):
    """Bytes by name that outlive the process; what one `commit` says happens wholly or not at all."""

    def get(self, name: str) -> bytes | None: ...
    def names(self) -> Iterable[str]: ...
    def commit(self, put: dict[str, bytes], delete: Iterable[str]) -> None: ...


@dataclass
class Child:
    """What a parent knows of a child."""

    epoch: int = -1
    accepted: int = 0
    position: Position = field(default_factory=dict)
    watermark: int = INT64_MIN
    plan: int = 0
    since: int = INT64_MIN
    idle: int = 0
    events: dict[str, int] = field(default_factory=dict)
    late: int = 0  # events that came too late for some window; the root knows
    state: Literal["expected", "live", "silent", "left"] = "expected"

    @property
    def counts(self) -> bool:
        """Whether it is waited for."""
        return self.state in ("expected", "live")


@dataclass
class Machine:
    """A node: its name, its parent if it has one, its children, and where it keeps what must not be lost."""

    name: str
    parent: str | None = None
    children: tuple[str, ...] = ()  # that are waited for from the beginning
    epoch: int = 0
    spool: Spool | None = None  # of a node with children
    asked: Asked | None = None  # of the root; the others hear it
    joins: bool = field(default=False, kw_only=True)  # whether others may come as its children
    lateness: int | None = field(default=None, kw_only=True)  # of a local node, if its own
    eager: bool = field(default=False, kw_only=True)  # of a local node: its source cannot be read again
    idle: int | None = field(default=None, kw_only=True)  # after how long without events it holds the watermark no more
    timeout: int | None = field(default=None, kw_only=True)  # after how long without a word a child is silent
    ahead: int | None = field(default=AHEAD, kw_only=True)  # how far event time may be ahead of the clock
    feeds: Literal["results", "slices"] = field(default="results", kw_only=True)  # of the root
    log: int = field(default=256, kw_only=True)  # batches that are accepted between two checkpoints, at most

    def __post_init__(self) -> None:
        inner = bool(self.children or self.joins)
        self.role = "root" if self.parent is None else "intermediate" if inner else "local"
        self.refused: str | None = None  # the parent's reason
        self.notes: list[str] = []  # what is to be said in a log, once each
        self.left = False  # it may go
        self.ended = False  # its source has come to its end
        self._known = {name: Child() for name in self.children}
        self._heard: dict[str, int] = {}
        self._noted: set[str] = set()
        self._sent: list[Batch] = []  # not acknowledged
        self._weights: dict[int, int] = {}  # bytes of each of them
        self._gone: list[str] = []  # of the spool, with its next commit
        self._number = 0  # of the last batch that was made
        self._acknowledged = 0
        self._confirmed: Position = {}  # of the last batch that the parent holds
        self._reports = False  # it cuts by a plan of which the parent does not know it yet
        self._watermark = INT64_MIN
        self._told: tuple[int, int, int] = (0, INT64_MIN, 0)  # plan, since and idle as the parent knows them
        self._entry, self._bytes, self._size = 0, 0, 0  # of the log: its last entry, how much, and of the checkpoint
        self._said, self._wait = INT64_MIN, AGAIN
        self._read_at = INT64_MIN
        self._next: Asked | None = None  # a plan that has to wait
        self._leaving = False
        self._welcomed = self.parent is None
        self._reader: Reader | None = None
        self._merger: Merger | None = None
        self._assembly: Assembly | None = None
        if self.role != "local":
            self._recover()

    @property
    def _up(self) -> str:
        return OUTLET if self.parent is None else self.parent

    # --- what drives it -----------------------------------------------------------------------------------------------

    @property
    def mark(self) -> Mark | None:
        """From where its source is to be read; None while it must not be."""
        if self._reader is None or self.ended or self._leaving or self.refused is not None or not self._welcomed:
            return None
        is_full = len(self._sent) >= WINDOW or sum(self._weights.values()) >= WEIGHT
        return None if is_full else self._reader.mark

    @property
    def confirmed(self) -> Mark | None:
        """Up to where in its source everything is safely held by the parent; None while nothing is known."""
        return self._confirmed.get("mark")

    @property
    def watermark(self) -> int:
        """How far the windows of the root have come, or what this node says to its parent."""
        if self._reader is not None:
            return INT64_MAX if self.ended else self._reader.watermark
        return self._watermark

    @property
    def done(self) -> bool:
        """Whether all sources below have come to their end, and everything is acknowledged."""
        return self.watermark == INT64_MAX and not self._sent

    def start(self, now: int) -> Out:
        """Say Hello, or what the outlet may not have; also when a link has come again."""
        self._said, self._wait = now, AGAIN
        if self.parent is None:
            return [(OUTLET, batch) for batch in self._sent]
        self._welcomed = False
        return [(self.parent, Hello(self.name, self.epoch))]

    def tick(self, now: int) -> Out:
        """Say again what has not been answered for a while, and notice who has not been heard."""
        out = self._notice_silence(now)
        if self._reader is not None and self._welcomed and not self.ended:
            self._read_at = now if self._read_at == INT64_MIN else self._read_at
            is_idle = int(self.idle is not None and now - self._read_at >= self.idle)
            if (self._reports or is_idle != self._told[2]) and not self._reader.is_behind:
                out += self._send(self._reader.due() or {}, now, idle=is_idle)
        if self.parent is None or now - self._said < self._wait or self.refused is not None:
            return out
        if not self._welcomed:
            self._said, self._wait = now, min(2 * self._wait, SELDOM)
            return [*out, (self.parent, Hello(self.name, self.epoch))]
        self._said = now
        if self._sent:
            self._wait = min(2 * self._wait, SELDOM)
            return [*out, *((self.parent, batch) for batch in self._sent)]
        if self._leaving:
            return [*out, (self.parent, Leave(self.name, self.epoch))]
        return [*out, (self.parent, Alive(self.name, self.epoch, self._told[0]))]

    def read(self, events: pl.DataFrame, mark: Mark, now: int, last: bool = False) -> Out:
        """Take events of the source, and its mark after them; after the last ones nothing comes."""
        reader = self._reader
        assert reader is not None
        temporal = not reader.job.is_integer and self.ahead is not None
        reader.read(events, mark, now + (self.ahead or 0) if temporal else INT64_MAX)
        if events.height:
            self._read_at = now
        if last and not reader.is_behind:
            self.ended = True
        out: Out = []
        if self._next is not None and not reader.is_behind:
            out += self._switch(self._next, now)
        tables = reader.due(everything=self.ended)
        if tables is None and not reader.is_behind and (self._reports or (events.height and self._told[2])):
            tables = {}
        return out if tables is None else [*out, *self._send(tables, now, idle=0)]

    def receive(self, sender: str, message: Message, now: int) -> Out:
        """Take a message in."""
        if isinstance(message, Hello | Batch | Alive | Leave):
            return self._from_child(sender, message, now)
        if sender != self._up or message.epoch != self.epoch:
            return []  # of an earlier life, or not for this node
        if isinstance(message, Welcome):
            return self._welcome(message, now)
        if isinstance(message, Plan):
            return self._hear(Asked.from_dict(message.asked, message.tables["columns"]), now)
        if isinstance(message, Ack):
            return self._ack(message, now)
        if isinstance(message, Left):
            self.left = self._leaving
        else:
            self.refused = message.reason
        return []

    def leave(self, now: int) -> Out:
        """Send what there is, and go once it is acknowledged: see `left`."""
        out: Out = []
        if not self._leaving and self._welcomed and self.parent is not None:
            tables = None
            if self._reader is not None and not self.ended:
                tables = self._reader.due(everything=True)
            elif self._merger is not None:
                tables = self._merger.due(self._watermark, everything=True)
            if tables:
                out = self._send(tables, now)
                self._checkpoint_now()
        self._leaving = True
        self.left = not self._welcomed and not self._sent
        return out if self._sent or self.parent is None else [*out, (self.parent, Leave(self.name, self.epoch))]

    # --- what is asked ------------------------------------------------------------------------------------------------

    def add(self, query: Query, now: int) -> Out:
        """At the root: ask one more query, of all nodes, from an event time on that is known once all have heard it."""
        assert self.asked is not None
        if self.feeds == "slices":
            raise QueryError(
                "a root that feeds Spark is asked what its configuration says: change that, and start again"
            )
        return self._change(self.asked.added(query, _after(self._watermark)), now)

    def remove(self, name: str, now: int) -> Out:
        """At the root: a query is answered no more."""
        assert self.asked is not None
        return self._change(self.asked.removed(name), now)

    def _change(self, asked: Asked, now: int) -> Out:
        return [*self._switch(asked, now), *self._advance(now)]

    def _hear(self, asked: Asked, now: int) -> Out:
        """A plan has come from the parent."""
        if self.asked is not None and asked.version <= self.asked.version:
            return []
        if self._reader is not None and self._reader.is_behind:
            self._next = asked
            return []
        return self._switch(asked, now)

    def _begin(self, asked: Asked) -> None:
        self.asked = asked
        if self.role == "local":
            self._reader = Reader(asked, self.name, self.lateness, self.eager)
        elif self.role == "root" and self.feeds == "results":
            self._assembly = Assembly(asked.job)
        else:
            self._merger = Merger(asked.job)

    def _switch(self, asked: Asked, now: int) -> Out:
        """Go on with another plan; what was cut by the one before goes first."""
        out: Out = []
        self._next = None
        if self._reader is not None:
            tables = self._reader.switch(asked)
            self.asked = asked
            return self._send(tables, now, told=(asked.version, _after(self._reader.newest)))
        if self._merger is not None:
            tables = self._merger.switch(asked.job, self._watermark)
            out = self._send(tables, now) if tables else []
        elif self._assembly is not None:
            self._assembly = self._assembly.switched(asked.job)
        else:
            self._begin(asked)
        self.asked = asked
        self._checkpoint_now()
        return [*out, *((name, self._plan(child)) for name, child in self._known.items() if child.state == "live")]

    def _plan(self, child: Child) -> Plan:
        assert self.asked is not None
        return Plan(child.epoch, self.asked.to_dict(), {"columns": self.asked.table})

    # --- the child's side ---------------------------------------------------------------------------------------------

    def _welcome(self, message: Welcome, now: int) -> Out:
        if self._welcomed or self.parent is None:
            return []
        if message.accepted < self._acknowledged and self.role != "local":
            self.refused = f"{self.parent} has lost what it had acknowledged: its spool is another one"
            return []
        self._welcomed, self._said, self._wait = True, now, AGAIN
        asked = Asked.from_dict(message.asked, message.tables["columns"])
        self._forget(message.accepted)
        if self.role == "local" and (self._reader is None or message.accepted < self._acknowledged):
            # a new life, of the node or of the parent: the parent says where to go on
            self._begin(asked)
            assert self._reader is not None
            self._sent, self._number, self._confirmed = [], message.accepted, message.position
            self._acknowledged = message.accepted
            self._reader.resume(message.position, message.position.get("watermark", INT64_MIN))
            self._told, self._reports = (asked.version, _after(self._reader.newest), 0), True
            return []
        before: Out = [(self.parent, batch) for batch in self._sent]
        return [*before, *(self._switch(asked, now) if self.asked is None else self._hear(asked, now))]

    def _forget(self, number: int) -> None:
        """Batches up to this one are held by the parent."""
        done = [batch for batch in self._sent if batch.number <= number]
        if done:
            self._sent = [batch for batch in self._sent if batch.number > number]
            for batch in done:
                self._weights.pop(batch.number, None)
            self._gone += [f"out {batch.number}" for batch in done]
            self._acknowledged, self._confirmed = done[-1].number, done[-1].position

    def _ack(self, message: Ack, now: int) -> Out:
        if any(batch.number <= message.number for batch in self._sent):
            self._forget(message.number)
            self._wait, self._said = AGAIN, now
        if self._leaving and not self._sent and not self.left and self.parent is not None:
            return [(self.parent, Leave(self.name, self.epoch))]
        return []

    def _send(self, tables: Tables, now: int, idle: int | None = None, told: tuple[int, int] | None = None) -> Out:
        """A batch of its own, which is kept until it is acknowledged."""
        self._number += 1
        self._told = (*(told or self._told[:2]), self._told[2] if idle is None else idle)
        position: dict[str, Any] = {}
        events: dict[str, int] = {}
        if self._reader is not None:
            position = {**self._reader.position, "watermark": self._reader.watermark}
            events = {self.name: position["count"]}
        elif self._merger is not None:
            events = dict(self._merger.events)
        batch = Batch(
            self.name, self.epoch, self._number, position, self.watermark, *self._told, events=events, tables=tables
        )
        self._sent.append(batch)
        self._weights[batch.number] = sum(int(table.estimated_size()) for table in tables.values())
        self._said, self._reports = now, False
        return [(self._up, batch)]

    # --- the parent's side --------------------------------------------------------------------------------------------

    def _from_child(self, sender: str, message: Hello | Batch | Alive | Leave, now: int) -> Out:
        child = self._known.get(sender)
        if message.node != sender or self.role == "local" or (child is None and not self.joins):
            return self._refuse(sender, message, f"{self.name} has no child {message.node!r}")
        if isinstance(message, Hello):
            return self._hello(sender, message, now)
        if child is None or not self._is_of_this_life(child, message):
            return []  # or it has to say Hello
        self._heard[sender] = now
        if child.state == "silent":
            child.state = "live"
            self.notes.append(f"{sender} is back")
            self._checkpoint_now()
        out: Out = []
        if isinstance(message, Batch):
            out = self._batch(sender, child, message, now)
        elif isinstance(message, Leave):
            if child.state != "left":
                child.state = "left"
                self.notes.append(f"{sender} has left")
                out += self._advance(now)
                self._checkpoint_now()
            return [(sender, Left(message.epoch)), *out]
        if self.asked is not None and message.plan < self.asked.version:
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
        if message.epoch < child.epoch:
            return []  # one that was overtaken
        self._heard[sender] = now
        if message.epoch > child.epoch or child.state in ("expected", "silent"):
            if child.state in ("silent", "left"):
                self.notes.append(f"{sender} is back")
            child.epoch, child.state = message.epoch, "live"
            self._checkpoint_now()
        asked = self.asked.to_dict()
        welcome = Welcome(message.epoch, child.accepted, child.position, asked, {"columns": self.asked.table})
        return [(sender, welcome)]

    def _batch(self, sender: str, child: Child, batch: Batch, now: int) -> Out:
        if not self._is_next(child, batch):
            return [(sender, Ack(batch.epoch, child.accepted))] if batch.number <= child.accepted else []
        reason = self._wrong_with(batch, now)
        if reason is not None:
            return self._refuse(sender, batch, reason)
        self._entry += 1
        out = self._take(batch, now)
        assert self.spool is not None
        data = to_bytes(batch)
        self._bytes += len(data)
        if self._bytes > max(1 << 20, self._size) or self._entry % self.log == 0:
            self._checkpoint_now()
        else:
            self.spool.commit({f"log {self._entry}": data}, self._gone)
            self._gone = []
        return [(sender, Ack(batch.epoch, child.accepted)), *out]

    @staticmethod
    def _is_of_this_life(child: Child, message: Batch | Alive | Leave) -> bool:
        return message.epoch == child.epoch

    @staticmethod
    def _is_next(child: Child, batch: Batch) -> bool:
        return batch.number == child.accepted + 1

    def _wrong_with(self, batch: Batch, now: int) -> str | None:
        """Why a batch cannot be taken; None if it can."""
        assert self.asked is not None
        job = self.asked.job
        if not job.is_integer and self.ahead is not None and now + self.ahead < batch.watermark < INT64_MAX:
            return f"its clock is {(batch.watermark - now) // 1_000_000:,} seconds ahead; mend it, or raise max_ahead"
        for group in job.bound.plan.groups:
            table = batch.tables.get(group.name)
            if table is None:
                continue
            state: Any = job.bound.states[group.identity]
            wanted = state.ordering.needed if group.ordered else state.schema.columns
            for name, dtype in table.schema.items():
                if wanted.get(name, dtype) != dtype:
                    return f"{name!r} of {group.name} is {dtype} in its batch, not {wanted[name]}"
            for name in (*state.schema.keys, time_column(self.asked.time) if group.ordered else "slice_start"):
                if name not in table.columns:
                    return f"{group.name} has no {name!r} in its batch"
        return None

    def _take(self, batch: Batch, now: int) -> Out:
        """Fold a batch into what there is."""
        child = self._known[batch.node]
        child.accepted, child.position = batch.number, batch.position
        child.plan, child.since, child.idle = batch.plan, batch.since, batch.idle
        child.events |= batch.events
        if self.role == "root":
            self._settle()
        if self._assembly is not None:
            child.late += self._assembly.absorb(batch.tables)
        elif self._merger is not None:
            self._merger.absorb(batch.tables, batch.events)
        child.watermark = max(child.watermark, batch.watermark)
        return self._advance(now)

    def _settle(self) -> None:
        """Queries that all nodes know by now begin after everything that was cut without them."""
        assert self.asked is not None
        known = min((child.plan for child in self._known.values() if child.counts), default=0)
        done = [name for name, version in self.asked.pending if version <= known]
        if done and self._assembly is not None:
            begin = max(_after(self._watermark), *(child.since for child in self._known.values()))
            self.asked = self.asked.settled(done, begin)
            self._assembly = self._assembly.switched(self.asked.job)

    def _advance(self, now: int) -> Out:
        """Move the watermark to the least of the children's, and say what is due."""
        if self.asked is None:
            return []
        counted = [child for child in self._known.values() if child.counts]
        busy = [child.watermark for child in counted if not child.idle or child.watermark == INT64_MAX]
        least = max(self._watermark, min(busy, default=self._watermark))
        moved, self._watermark = least > self._watermark, least
        if self._assembly is not None:
            found = self._assembly.advance(least) if moved else None
            if found is not None and self.asked.pending:
                found = found.filter(~pl.col("query").is_in([name for name, _ in self.asked.pending]))
            return self._send({"results": found}, now) if found is not None and found.height else []
        if self._merger is None:
            return []
        since = max((child.since for child in self._known.values()), default=INT64_MIN)
        told = min((child.plan for child in counted), default=0), since
        idle = int(bool(counted) and not busy)
        tables = self._merger.due(least, everything=least == INT64_MAX) if moved else None
        if tables is None and (*told, idle) == self._told:
            return []
        return self._send(tables or {}, now, idle, told)

    def _notice_silence(self, now: int) -> Out:
        if self.timeout is None:
            return []
        for name, child in self._known.items():
            if child.counts and now - self._heard.setdefault(name, now) > self.timeout:
                child.state = "silent"
                self.notes.append(f"{name} is silent; the watermark does not wait for it")
                out = self._advance(now)
                self._checkpoint_now()
                return out
        return []

    # --- the spool ----------------------------------------------------------------------------------------------------

    def _checkpoint_now(self) -> None:
        """Keep the state itself, instead of the batches that it came from."""
        if self.spool is None or self.asked is None:
            return
        work = self._assembly or self._merger
        assert work is not None
        header, tables = work.saved()
        counters: dict[str, Any] = {
            "number": self._number,
            "watermark": self._watermark,
            "entry": self._entry,
            "told": self._told,
        }
        children = {name: asdict(child) for name, child in self._known.items()}
        asked, given = self.asked.to_dict(), [query.to_dict() for query in self._given]
        counters |= {"children": children, "state": header, "asked": asked, "given": given}
        put = {"checkpoint": pack(counters, tables)}
        put["columns"] = pack({}, {"columns": self.asked.table})
        put |= {f"out {batch.number}": to_bytes(batch) for batch in self._sent}
        self._bytes, self._size = 0, len(put["checkpoint"])
        gone = [name for name in self.spool.names() if name.startswith("log ")]
        self.spool.commit(put, [*gone, *(name for name in self._gone if name not in put)])
        self._gone = []

    def _recover(self) -> None:
        """Be as it was: the checkpoint, and the batches since then."""
        assert self.spool is not None
        saved, given = self.spool.get("checkpoint"), self.asked
        self._given = given.queries if given is not None else ()
        if saved is None:
            if given is not None:
                self._begin(given)
            return
        header, tables = unpack(saved)
        columns = unpack(self.spool.get("columns") or b"")[1]["columns"]
        self._begin(Asked.from_dict(header["asked"], columns))
        self._known |= {name: Child(**child) for name, child in header["children"].items()}
        self._number, self._watermark, self._entry = header["number"], header["watermark"], header["entry"]
        self._told, self._size = tuple(header["told"]), len(saved)
        work = self._assembly or self._merger
        assert work is not None
        work.restore(header["state"], tables)
        kept = {name: self.spool.get(name) or b"" for name in self.spool.names()}
        outs = sorted((name for name in kept if name.startswith("out ")), key=_number)
        self._sent = [_read(kept[name]) for name in outs]
        for name in sorted((name for name in kept if name.startswith("log ")), key=_number):
            self._entry = max(self._entry, _number(name))
            self._take(_read(kept[name]), INT64_MIN)
        self._sent = [replace(batch, epoch=self.epoch) for batch in self._sent]
        if given is not None:
            self._reconcile(given, [Query.from_dict(query) for query in header["given"]])

    def _reconcile(self, given: Asked, before: list[Query]) -> None:
        """The root was started with other queries than the last time: they come and go as at run time."""
        assert self.asked is not None
        for name in ("time", "columns", "lateness", "order_by", "bad_events"):
            if getattr(given, name) != getattr(self.asked, name):
                raise QueryError(
                    f"this spool belongs to a tree whose {name} is {getattr(self.asked, name)!r}, "
                    f"not {getattr(given, name)!r}; leave it as it was, or take another spool"
                )
        for query in before:
            if query not in given.queries and query in self.asked.queries:
                self.remove(query.name, INT64_MIN)
        for query in given.queries:
            if query not in before and query not in self.asked.queries:
                self.add(query, INT64_MIN)

    # --- what it says of itself -----------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Plain data: how far it has come, and what it knows of its children."""
        said: dict[str, Any] = {"name": self.name, "role": self.role, "epoch": self.epoch, "watermark": self.watermark}
        said["plan"] = self.asked.version if self.asked else 0
        said["batches"] = {"made": self._number, "unacknowledged": len(self._sent)}
        if self._reader is not None:
            held = self._confirmed.get("count", 0)
            said["events"] = {"read": self._reader.count, "acknowledged": held, "left_out": self._reader.left_out}
        children: dict[str, dict[str, Any]] = {}
        for name, child in self._known.items():
            children[name] = {"state": "idle" if child.counts and child.idle else child.state}
            children[name] |= {"watermark": child.watermark, "batches": child.accepted, "late": child.late}
            children[name] |= {"events": dict(child.events)}
        return said if self.role == "local" else {**said, "children": children}


def _after(time: int) -> int:
    return time if time == INT64_MIN else time + 1


def _number(name: str) -> int:
    return int(name.rpartition(" ")[2])


def _read(data: bytes) -> Batch:
    found = from_bytes(data)
    assert isinstance(found, Batch)
    return found
