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

**Queries come and go.** A node that hears of another plan sends what it has cut so far, cuts by the new one from then
on, and says so with the first event time for which that is true of all its events. A query that has come begins at the
greatest of these times, once all nodes have said theirs that are waited for, and after all events of the others. Until
then the watermark cannot have passed it. If one of the others comes back with events that were cut without the query,
it begins again after them, because they cannot be put into its windows.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

import polars as pl

from windrow.core.query.query import Query, QueryError
from windrow.core.slices.binding import InputError
from windrow.core.stream.job_slicer import Tables
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.nodes.counting.tables import groups_of
from windrow.nodes.protocol.children import Children, after
from windrow.nodes.protocol.intermediate import Merger
from windrow.nodes.protocol.journal import Journal, Spool
from windrow.nodes.protocol.local import Mark, Reader
from windrow.nodes.protocol.messages import Ack, Alive, Batch, Hello, Leave, Left, Message, Plan, Request, Welcome
from windrow.nodes.protocol.parent import Out, Parent
from windrow.nodes.protocol.root import Assembly
from windrow.nodes.protocol.send_window import AGAIN, Uplink
from windrow.nodes.queries import Asked

OUTLET = ""  # whom the root speaks to: whoever takes its batches, once each by their number
AHEAD = 86_400_000_000  # microseconds that event time may be ahead of the clock


@dataclass
class Machine(Parent):
    """A node: its name, its parent if it has one, its children, and where it keeps what must not be lost."""

    name: str
    parent: str | None = None
    children: tuple[str, ...] = ()  # that are waited for from the beginning
    epoch: int = 0
    spool: Spool | None = None  # of a node with children, and of one that finds windows itself
    asked: Asked | None = None  # of the root; the others hear it
    _: KW_ONLY
    joins: bool = False  # whether others may come as its children
    lateness: int | None = None  # of a local node, if its own
    eager: bool = False  # of a local node: its source cannot be read again
    idle: int | None = None  # after how long without events a local node holds the watermark back no more
    timeout: int | None = None  # after how long without a word a child is silent
    ahead: int | None = AHEAD  # how far event time may be ahead of the clock
    feeds: Literal["results", "slices"] = "results"  # of the root
    unit: int | None = None  # of a local node: values of a unit of a bag; None for as many as send the fewest bytes
    log: int = 256  # batches that are accepted between two checkpoints, at most

    def __post_init__(self) -> None:
        if self.feeds == "slices" and self.asked is not None:
            self.asked = self.asked.as_events()
        inner = bool(self.children or self.joins)
        self.role = "root" if self.parent is None else "intermediate" if inner else "local"
        self.refused: str | None = None  # the parent's reason
        self.notes: list[str] = []  # what is to be said in a log, once each
        self.left = False  # it may go
        self.ended = False  # its source has come to its end
        self._link = Uplink()
        self._known = Children(self.children)
        self._noted: set[str] = set()
        self._came: dict[str, int] = {}  # of the root: queries that have come at run time, and with which version
        self._watermark = INT64_MIN
        self._withheld: set[str] = set()  # children that have to wait for an acknowledgement
        self._told: tuple[int, int, int] = (0, INT64_MIN, 0)  # plan, since and idle as the parent knows them
        self._reports = False  # it cuts by a plan of which the parent does not know it yet
        self._next: Asked | None = None  # a plan that has to wait
        self._read_at: int | None = None  # when events have come last
        self._leaving = False
        self._spoke_at: int | None = None  # when what a node holds back was looked at last
        self._welcomed = self.parent is None
        self._reader: Reader | None = None
        self._merger: Merger | None = None
        self._assembly: Assembly | None = None
        if self.role != "local":
            if self.spool is None:
                raise ValueError(f"{self.name} has children, so it needs a spool")
            self._journal = Journal(self.spool, self.log)
            self._given = self.asked.queries if self.asked is not None else ()
            self._recover()

    @property
    def _up(self) -> str:
        return OUTLET if self.parent is None else self.parent

    # --- what drives it -----------------------------------------------------------------------------------------------

    @property
    def mark(self) -> Mark | None:
        """From where its source is to be read; None while it must not be."""
        is_ready = self._welcomed and not (self.ended or self._leaving or self.refused is not None)
        if not is_ready or self._reader is None or self._link.is_full or self._reader.is_full:
            return None
        return self._reader.mark

    @property
    def confirmed(self) -> Mark | None:
        """Up to where in its source everything is safely held by the parent; None while nothing is known."""
        return self._link.confirmed.get("mark")

    @property
    def watermark(self) -> int:
        """How far the windows of the root have come, or what this node says to its parent."""
        if self._reader is not None:
            return INT64_MAX if self.ended else self._reader.watermark
        return self._watermark

    @property
    def done(self) -> bool:
        """Whether all sources below have come to their end, and everything is acknowledged."""
        return self.watermark == INT64_MAX and not self._link.sent and not self._is_needed

    @property
    def _is_needed(self) -> bool:
        """Whether the root may still ask something of it, or of a node below."""
        if self._reader is not None:
            counts = bool(self._reader.counted) and not self._reader.counted.is_over
            return counts or not self._reader.quantiles.is_over
        asked = self.asked
        if asked is None:
            return False
        counts, keeps = bool(groups_of(asked.job)), bool(asked.refined)
        return any(
            # where nothing is counted any more, those that have not heard it yet are still to be told
            (child.is_held and (counts or child.plan < asked.version)) or (keeps and child.is_kept)
            for child in self._known.counted
        )

    def start(self, now: int) -> Out:
        """Say Hello, or what the outlet may not have; also when a link has come again."""
        self._link.spoke(now)
        if self.parent is None:
            return [(OUTLET, batch) for batch in self._link.sent]
        self._welcomed = False
        return [(self.parent, Hello(self.name, self.epoch))]

    def tick(self, now: int) -> Out:
        """Say again what has not been answered for a while, and notice who has not been heard."""
        out = self._notice_silence(now)
        reader = self._reader
        if reader is not None and self._welcomed and not self.ended and not reader.is_behind:
            self._read_at = now if self._read_at is None else self._read_at
            is_idle = int(self.idle is not None and now - self._read_at >= self.idle)
            if self._reports or is_idle != self._told[2]:
                due = reader.due(everything=bool(is_idle), rests=bool(is_idle))
                out += self._send(due or {}, now, idle=is_idle)
        out += self._still(now) if self._welcomed else []
        if self.refused is not None or not self._link.is_due(now, self._welcomed and not self._link.sent):
            return out
        if not self._welcomed:
            return [*out, (self._up, Hello(self.name, self.epoch))]
        if self._link.sent:
            return [*out, *((self._up, batch) for batch in self._link.sent)]
        if self.parent is None:
            return out
        known = self.asked.version if self.asked is not None else 0
        still = Leave(self.name, self.epoch) if self._leaving else Alive(self.name, self.epoch, known)
        return [*out, (self.parent, still)]

    def _still(self, now: int) -> Out:
        """Of a local node: what it holds back goes once nothing has come for a while; of the root: what it asks."""
        if self._reader is None:
            return self._requests(now)
        if not (self._reader.counted or self._reader.quantiles) or self._reader.is_behind or self._leaving:
            return []
        self._spoke_at = now if self._spoke_at is None else self._spoke_at
        if now - self._spoke_at < AGAIN or self._link.sent:
            return []
        self._spoke_at = now
        tables = self._reader.due(flush=True, ended=self.ended)
        return self._send(tables, now) if tables else []

    def read(self, events: pl.DataFrame, mark: Mark, now: int, last: bool = False) -> Out:
        """Take events of the source, and its mark after them; after the last ones nothing comes."""
        reader = self._reader
        assert reader is not None
        temporal = not reader.job.is_integer and self.ahead is not None
        reader.read(events, mark, now + (self.ahead or 0) if temporal else INT64_MAX)
        if events.height:
            self._read_at = now
        if last and reader.is_behind:
            raise InputError(f"the source of node {self.name!r} ends before what it had; give it all events")
        self.ended = last
        out: Out = []
        if self._next is not None and not reader.is_behind:
            out += self._switch(self._next, now)
        tables = reader.due(everything=self.ended, ended=self.ended)
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
        if isinstance(message, Request):
            return self._request(message, now)
        if isinstance(message, Ack):
            return self._ack(message, now) if self._welcomed else []  # a Welcome on its way may say less
        if isinstance(message, Left):
            self.left = self._leaving
        else:
            self.refused = message.reason
        return []

    def _request(self, message: Request, now: int) -> Out:
        """The root asks: a local node answers, others pass it on."""
        if self._reader is None:
            known = self._known.items()
            found = [(name, child) for name, child in known if message.node in {*child.holding, *child.keeping}]
            return [(name, replace(message, epoch=child.epoch)) for name, child in found]
        if not self._welcomed or self._reader.is_behind or self._leaving or message.node != self.name:
            return []
        assert self.asked is not None
        reason = next((one for form in self.asked.forms if (one := form.wrong_request(message.tables))), None)
        if reason is not None:
            if reason not in self._noted:
                self._noted.add(reason)
                self.notes.append(f"not heard: {reason}")
            return []
        self._reader.hear(dict(message.tables), message.number, bool(message.over))
        tables = self._reader.due(ended=self.ended)
        return self._send(tables, now) if tables else []

    def leave(self, now: int) -> Out:
        """Send what there is, and go once it is acknowledged: see `left`."""
        out: Out = []
        if not self._leaving and self._welcomed and self.parent is not None:
            tables = None
            if self._reader is not None and (self._is_needed or not self.ended):
                tables = self._reader.due(everything=True, leaves=True, ended=self.ended)
            elif self._merger is not None:
                tables = self._merger.due(self._watermark, everything=True)
            if tables is not None:
                out = self._send(tables, now)
                self._checkpoint()
        self._leaving = True
        self.left = not self._welcomed and not self._link.sent
        if self._link.sent or self.parent is None:
            return out
        return [*out, (self.parent, Leave(self.name, self.epoch))]

    # --- what is asked ------------------------------------------------------------------------------------------------

    def add(self, query: Query, now: int) -> Out:
        """At the root: ask one more query, of all nodes, from an event time on that is known once all have heard it."""
        assert self.asked is not None
        if self.feeds == "slices":
            raise QueryError(
                "a root that feeds Spark asks what it began with; to ask more, take a new spool and checkpoint"
            )
        asked = self.asked.added(query, after(self._watermark))
        self._came[query.name] = asked.version
        return self._switch(asked, now)

    def remove(self, name: str, now: int) -> Out:
        """At the root: a query is answered no more."""
        assert self.asked is not None
        asked = self.asked.removed(name)
        self._came.pop(name, None)
        return self._switch(asked, now)

    def _hear(self, asked: Asked, now: int) -> Out:
        """A plan has come from the parent."""
        if not self._welcomed or (self.asked is not None and asked.version <= self.asked.version):
            return []  # what comes before a Welcome is in it
        if self._reader is not None and self._reader.is_behind:
            self._next = asked
            return []
        return self._switch(asked, now)

    def _begin(self, asked: Asked) -> None:
        self.asked = asked
        if asked.pushed and self.feeds == "slices":
            raise QueryError("a root that feeds Spark passes slices and events on; leave push_down out")
        if self.role == "local":
            self._reader = Reader(asked, self.name, self.lateness, self.eager, self.unit)
        elif self.role == "root" and self.feeds == "results":
            self._assembly = Assembly(asked.job, self.epoch)
        else:
            self._merger = Merger(asked.job)

    def _switch(self, asked: Asked, now: int) -> Out:
        """Go on with another plan; what was cut by the one before goes first."""
        out: Out = []
        self._next = None
        if self._reader is not None:
            tables = self._reader.switch(asked)
            self.asked = asked
            return self._send(tables, now, told=(asked.version, after(self._reader.newest)))
        if self._merger is not None:
            tables = self._merger.switch(asked.job, self._watermark)
            out = self._send(tables, now) if tables else []
        elif self._assembly is not None:
            self._assembly = self._assembly.switched(asked.job)
        else:
            self._begin(asked)
        self.asked = asked
        out += self._advance(now)  # nobody else may have to hear of it
        self._checkpoint()
        return [*out, *((name, self._plan(child)) for name, child in self._known.items() if child.state == "live")]

    # --- the child's side ---------------------------------------------------------------------------------------------

    def _welcome(self, message: Welcome, now: int) -> Out:
        if self._welcomed or self.parent is None:
            return []
        has_lost = message.accepted < self._link.acknowledged
        if has_lost and self.role != "local":
            self.refused = f"{self.parent} has lost what it had acknowledged: its spool is another one"
            return []
        self._welcomed = True
        self._link.spoke(now)
        self._link.forget(message.accepted, now)
        asked = Asked.from_dict(message.asked, message.tables["columns"])
        if self.role == "local" and (self._reader is None or has_lost):
            self._begin(asked)
            self.ended, self._next = False, None
            assert self._reader is not None
            if not self._resume_windows(message.accepted):
                return []
            self._link.restart(message.accepted, message.position)
            self._reader.resume(message.position, message.position.get("watermark", INT64_MIN))
            self._told, self._reports = (asked.version, after(self._reader.newest), 0), True
            return []
        before: Out = [(self.parent, batch) for batch in self._link.sent]
        before += self._acknowledge_withheld()
        return [*before, *(self._switch(asked, now) if self.asked is None else self._hear(asked, now))]

    def _resume_windows(self, number: int) -> bool:
        """Go on with the windows that were open after a batch; whether that can be done."""
        assert self._reader is not None
        if not self._reader.pushed:
            return True
        if self.spool is None:
            self.refused = "windows are found at the local nodes of this tree (push_down), and this one has no spool"
            return False
        kept = f"pushed {number}"
        saved = self.spool.get(kept)
        if saved is None and number:
            self.refused = f"its spool does not know batch {number}, which {self.parent} has: it is another one"
            return False
        self.spool.commit({}, [name for name in self.spool.names() if name.startswith("pushed ") and name != kept])
        if saved is not None:
            self._reader.pushed.restore(saved)
        return True

    def _ack(self, message: Ack, now: int) -> Out:
        self._link.forget(message.number, now)
        out = self._acknowledge_withheld()
        if self._leaving and not self._link.sent and not self.left and self.parent is not None:
            out.append((self.parent, Leave(self.name, self.epoch)))
        return out

    def _send(self, tables: Tables, now: int, idle: int | None = None, told: tuple[int, int] | None = None) -> Out:
        """A batch of its own, which is kept until it is acknowledged."""
        self._told = (*(told or self._told[:2]), self._told[2] if idle is None else idle)
        self._reports = False
        position: dict[str, Any] = {}
        events: dict[str, int] = {}
        newest = max((child.newest for child in self._known.values()), default=INT64_MIN)
        if self._reader is not None:
            position = {**self._reader.position, "watermark": self._reader.watermark}
            events, newest = {self.name: position["count"]}, self._reader.newest
        elif self._merger is not None:
            events = dict(self._merger.events)
        number = self._link.number + 1
        if self._reader is not None and self._reader.pushed and self.spool is not None:
            gone = [f"pushed {number - 1}" for number in self._link.gone]  # that of the last one held is still needed
            self.spool.commit({f"pushed {number}": self._reader.pushed.saved()}, gone)
        if self.role == "local":
            self._link.gone.clear()
        batch = Batch(
            self.name, self.epoch, number, position, self.watermark, *self._told, events, tables, newest=newest
        )
        self._link.add(batch, now)
        return [(self._up, batch)]

    # --- what it says of itself ---------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Plain data: how far it has come, and what it knows of its children."""
        said: dict[str, Any] = {"name": self.name, "role": self.role, "epoch": self.epoch, "watermark": self.watermark}
        said["plan"] = self.asked.version if self.asked else 0
        said["batches"] = {"made": self._link.number, "unacknowledged": len(self._link.sent)}
        if self._assembly is not None:
            said["overflows"] = self._assembly.overflows
            if self._assembly.counting:
                said["counting"] = self._assembly.counting.status()
            if self._assembly.quantiles:
                said["refining"] = self._assembly.quantiles.status()
        if self._reader is not None:
            held = self._link.confirmed.get("count", 0)
            said["events"] = {"read": self._reader.count, "acknowledged": held, "left_out": self._reader.left_out}
        return said if self.role == "local" else {**said, "children": self._known.status()}
