"""A node as a machine without a transport: messages and the clock go in, messages come out.

    local          read(events) ──▶ slices, numbered ──▶ parent          keeps a batch until it is acknowledged
    intermediate   batches of children ──▶ merged, numbered ──▶ parent   keeps what it has accepted in its spool
    root           batches of children ──▶ windows ──▶ results           likewise

One class for all three: a node that reads has a source, one without a parent assembles. There are no threads, no
sockets and no wall clock, so that many machines run in one process, with every fault that a seed can think of.

**Nothing lost, nothing twice.** A node's batches are numbered without a gap, over all its lives; a parent takes number
n + 1 after n and nothing else, and acknowledges what its spool holds. A node that has been restarted says Hello with a
greater epoch; the answer says which batch was the last and where in the source it ended, and the node reads on from
there. What an earlier life has sent is thereby overtaken: batches of an old epoch are not taken any more.

**State is a fold.** What a node with children holds follows from the batches that it has accepted, in their order:
when all children have moved their watermark, what has come is merged into one batch of its own. So the spool is a
checkpoint, the batches since then, and those that the parent has not acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

import polars as pl

from windrow.jobs import Job
from windrow.nodes.asked import Asked
from windrow.nodes.assembly import Assembly
from windrow.nodes.messages import Ack, Batch, Hello, Message, Refused, Welcome, from_bytes, to_bytes
from windrow.ordered import NODE
from windrow.slicers import Slicer, Unordered
from windrow.slices import merge, pack, unpack
from windrow.slicing import time_column
from windrow.windows import INT64_MAX, INT64_MIN

AGAIN = 1_000_000  # microseconds after which what is not answered is said again
WINDOW = 32  # batches that may be on their way without an acknowledgement
CHECKPOINT = 16  # batches that the root accepts between two checkpoints

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
    position: int = 0
    watermark: int = INT64_MIN
    events: int = 0


@dataclass
class Machine:
    """A node: its name, its parent if it has one, its children, and where it keeps what must not be lost."""

    name: str
    parent: str | None
    children: tuple[str, ...] = ()
    epoch: int = 0
    spool: Spool | None = None  # of a node with children
    asked: Asked | None = None  # of the root; the others hear it
    results: list[pl.DataFrame] = field(default_factory=list)  # of the root, since its last checkpoint
    refused: str | None = None

    def __post_init__(self) -> None:
        self._job: Job | None = None
        self._known = {name: Child() for name in self.children}
        self._sent: list[Batch] = []  # not acknowledged
        self._number = 0  # of the last batch that was made
        self._position = 0  # in the source
        self._arrived = 0  # events that were read
        self._watermark = INT64_MIN
        self._pending: list[Batch] = []  # accepted, and in no batch of its own
        self._log = 0  # names of entries in the spool
        self._said = INT64_MIN
        self._welcomed = self.parent is None
        self._assembly: Assembly | None = None
        if self.asked is not None:
            self._learn(self.asked)
        if self.spool is not None:
            self._recover()

    # --- what drives it -----------------------------------------------------------------------------------------------

    @property
    def position(self) -> int | None:
        """From where its source is to be read; None while it must not be."""
        ready = self._welcomed and self._job is not None and len(self._sent) < WINDOW
        return self._position if ready and not self.children else None

    @property
    def watermark(self) -> int:
        """How far the windows of the root have come, or what this node says to its parent."""
        return self._watermark if self._assembly is None else self._assembly.watermark

    @property
    def accepted_events(self) -> int:
        """How many events the batches hold that were accepted."""
        return sum(child.events for child in self._known.values())

    @property
    def unacknowledged(self) -> int:
        """How many events its parent has not acknowledged."""
        return sum(batch.events for batch in self._sent)

    def start(self, now: int) -> Out:
        """Say Hello."""
        if self.parent is None:
            return []
        self._said = now
        return [(self.parent, Hello(self.name, self.epoch, self.asked.fingerprint if self.asked else ""))]

    def tick(self, now: int) -> Out:
        """Say again what has not been answered for a while."""
        if self.parent is None or now - self._said < AGAIN:
            return []
        if not self._welcomed:
            return self.start(now)
        self._said = now
        return [(self.parent, batch) for batch in self._sent]

    def read(self, events: pl.DataFrame, position: int, now: int, last: bool = False) -> Out:
        """Slice events of the source, which has been read up to a position; after the last ones nothing comes."""
        assert self._job is not None
        job = self._job
        binding, time = job.bound.binding, job.time
        checked = binding.checked(events.with_columns(pl.lit(self.name).alias(NODE)))
        prepared = binding.prepare(checked, self._arrived, lambda: 0)
        if "nth" not in prepared.columns:
            prepared = prepared.with_columns(nth=pl.int_range(self._arrived, self._arrived + pl.len(), dtype=pl.Int64))
        unordered = Unordered(job)
        unordered.add(prepared)
        tables = {
            name: table for name, table in (self._slicer.slice(prepared) | unordered.tables()).items() if table.height
        }
        if events.height:
            newest = int(prepared[time_column(time)].max())  # type: ignore[arg-type]
            self._watermark = max(self._watermark, newest - (job.measures[time].lateness or 0))
        if last:
            self._watermark = INT64_MAX
        self._arrived += events.height
        self._position = position
        return self._send(tables, events.height, now)

    def receive(self, sender: str, message: Message, now: int) -> Out:
        """Take a message in."""
        if isinstance(message, Hello):
            return self._hello(sender, message)
        if isinstance(message, Batch):
            return self._batch(sender, message, now)
        if sender != self.parent or message.epoch != self.epoch:
            return []  # of an earlier life, or not for this node
        if isinstance(message, Welcome):
            return self._welcome(message, now)
        if isinstance(message, Ack):
            return self._ack(message)
        self.refused = message.reason
        return []

    # --- the child's side ---------------------------------------------------------------------------------------------

    def _learn(self, asked: Asked) -> None:
        self.asked, self._job = asked, asked.job()
        self._slicer = Slicer(self._job, cut=True)
        if self.parent is None:
            self._assembly = Assembly(self._job)
        if self.spool is not None:
            self.spool.commit({"asked": pack({"asked": asked.to_dict()}, {"columns": asked.table})}, [])

    def _welcome(self, message: Welcome, now: int) -> Out:
        if self._welcomed:
            return []
        self._welcomed = True
        if self.asked is None:
            self._learn(Asked.from_dict(message.asked, message.tables["columns"]))
        if not self.children:  # what it had is lost, and the parent knows where to go on
            self._number, self._position = message.accepted, message.position
            self._arrived = message.position
        self._sent = [batch for batch in self._sent if batch.number > message.accepted]
        self._said = now
        return [(self.parent, replace(batch, epoch=self.epoch)) for batch in self._sent] if self.parent else []

    def _ack(self, message: Ack) -> Out:
        done = [batch.number for batch in self._sent if batch.number <= message.number]
        self._sent = [batch for batch in self._sent if batch.number > message.number]
        if self.spool is not None and done:
            self.spool.commit({}, [f"out {number}" for number in done])
        return []

    def _send(self, tables: dict[str, pl.DataFrame], events: int, now: int) -> Out:
        """A batch of its own, which is kept until it is acknowledged."""
        self._number += 1
        batch = Batch(self.name, self.epoch, self._number, self._position, self._watermark, events, tables)
        self._sent.append(batch)
        self._said = now
        return [] if self.parent is None else [(self.parent, batch)]

    # --- the parent's side --------------------------------------------------------------------------------------------

    def _hello(self, sender: str, message: Hello) -> Out:
        child = self._known.get(message.node)
        if child is None or sender != message.node:
            return [(sender, Refused(message.epoch, f"{self.name} has no child {message.node!r}"))]
        if self.asked is None or message.epoch < child.epoch:
            return []  # it will say Hello again; or it is one that was overtaken
        if message.epoch > child.epoch:
            child.epoch = message.epoch
            self._keep_epochs()
        welcome = Welcome(message.epoch, child.accepted, child.position, self.asked.to_dict())
        return [(sender, replace(welcome, tables={"columns": self.asked.table}))]

    def _batch(self, sender: str, batch: Batch, now: int) -> Out:
        child = self._known.get(sender)
        if child is None or batch.node != sender or not self._is_next(child, batch):
            again = child is not None and batch.epoch == child.epoch and batch.number <= child.accepted
            return [(sender, Ack(batch.epoch, child.accepted))] if again and child is not None else []
        self._log += 1
        put: dict[str, bytes] = {}
        out = self._take(batch, now, put)
        assert self.spool is not None
        if "checkpoint" in put:
            self.spool.commit(put, [name for name in self.spool.names() if name.startswith("log ")])
        else:
            self.spool.commit({f"log {self._log}": to_bytes(batch), **put}, [])
        return [(sender, Ack(batch.epoch, child.accepted)), *out]

    @staticmethod
    def _is_next(child: Child, batch: Batch) -> bool:
        return batch.epoch == child.epoch and batch.number == child.accepted + 1

    def _take(self, batch: Batch, now: int, put: dict[str, bytes]) -> Out:
        """Fold a batch into what there is; what is to be kept is put beside it."""
        child = self._known[batch.node]
        child.accepted, child.position, child.events = batch.number, batch.position, child.events + batch.events
        child.watermark = max(child.watermark, batch.watermark)
        least = min(one.watermark for one in self._known.values())
        if self._assembly is not None:
            self._assembly.absorb(batch.tables)
            found = self._assembly.advance(least)
            if found.height:
                self.results.append(found)
            if self._log % CHECKPOINT == 0:
                self._checkpoint(put)
            return []
        self._pending.append(batch)
        if least <= self._watermark:
            return []
        self._watermark = least
        out = self._send(self._merged(), sum(one.events for one in self._pending), now)
        self._pending = []
        put[f"out {self._number}"] = to_bytes(self._sent[-1])
        self._checkpoint(put)
        return out

    def _merged(self) -> dict[str, pl.DataFrame]:
        """The tables of all pending batches, each group's in one."""
        assert self._job is not None
        several: dict[str, list[pl.DataFrame]] = {}
        for batch in self._pending:
            for name, table in batch.tables.items():
                several.setdefault(name, []).append(table)
        found: dict[str, pl.DataFrame] = {}
        for group in self._job.bound.plan.groups:
            if group.name in several:
                parts = several[group.name]
                schema = None if group.ordered else self._job.bound.states[group.identity].schema
                found[group.name] = pl.concat(parts) if schema is None else merge(parts, schema)
        return found

    # --- the spool ----------------------------------------------------------------------------------------------------

    def _keep_epochs(self) -> None:
        """An epoch that was heard of is remembered, so that an older one is not taken after a restart."""
        if self.spool is not None:
            epochs = {name: child.epoch for name, child in self._known.items()}
            self.spool.commit({"epochs": pack({"epochs": epochs}, {})}, [])

    def _checkpoint(self, put: dict[str, bytes]) -> None:
        """Keep the state itself, instead of the batches that it came from."""
        header, tables = self._assembly.saved() if self._assembly is not None else ({}, {})
        if self.results:
            put[f"results {self._log}"] = pack({}, {"results": pl.concat(self.results)})
            self.results = []
        counters = {"number": self._number, "watermark": self._watermark, "log": self._log}
        children = {name: vars(child) for name, child in self._known.items()}
        put["checkpoint"] = pack({**counters, "children": children, "state": header}, tables)

    def _recover(self) -> None:
        """Be as it was: the checkpoint, and the batches since then."""
        assert self.spool is not None
        heard = self.spool.get("asked")
        if self.asked is None and heard is not None:
            header, tables = unpack(heard)
            self._learn(Asked.from_dict(header["asked"], tables["columns"]))
        saved = self.spool.get("checkpoint")
        if saved is not None:
            header, tables = unpack(saved)
            self._known = {name: Child(**child) for name, child in header["children"].items()}
            self._number, self._watermark, self._log = header["number"], header["watermark"], header["log"]
            if self._assembly is not None:
                self._assembly.restore(header["state"], tables)
        kept = {name: self.spool.get(name) for name in self.spool.names()}
        outs = sorted((name for name in kept if name.startswith("out ")), key=_number)
        self._sent = [replace(_read(kept[name]), epoch=self.epoch) for name in outs]
        for name in sorted((name for name in kept if name.startswith("log ")), key=_number):
            self._log = max(self._log, _number(name))
            self._take(_read(kept[name]), INT64_MIN, {})
        epochs = kept.get("epochs")
        if epochs is not None:
            for name, epoch in unpack(epochs)[0]["epochs"].items():
                self._known[name].epoch = epoch

    def all_results(self) -> pl.DataFrame:
        """Everything that the root has answered, also in earlier lives."""
        assert self.spool is not None
        assert self._job is not None
        kept = sorted((name for name in self.spool.names() if name.startswith("results ")), key=_number)
        frames = [unpack(self.spool.get(name) or b"")[1]["results"] for name in kept]
        return pl.concat([self._job.bound.results.empty, *frames, *self.results])


def _number(name: str) -> int:
    return int(name.rpartition(" ")[2])


def _read(data: bytes | None) -> Batch:
    found = from_bytes(data or b"")
    assert isinstance(found, Batch)
    return found
