"""A tree of machines in one process, with faults from a seed.

    seed ──▶ tree, events, faults ──▶ steps: a message arrives, a node reads, something breaks ──▶ what the root says

Every link loses, delays, doubles and reorders messages and can be cut for a while; every node can crash and start
again, with its log store as it was after the last thing that it did. Queries come and go, and come again under the same
name; nodes come later, leave and come again, and are moved to other parents, which refuse them. After a time the faults
end, the sources come to their end, and what the root has emitted can be compared with one process that has all events.
The same seed gives the same run.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import polars as pl

from windrow.core.query.query import Query
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.nodes.protocol.journal import MemoryStore
from windrow.nodes.protocol.messages import Ack, Batch, Message, Out, from_bytes, to_bytes
from windrow.nodes.protocol.node import SINK, Node
from windrow.nodes.queries import QuerySet
from windrow.nodes.requests import AGAIN


@dataclass(frozen=True)
class Faults:
    """How likely what is, at each message or step; times are in microseconds."""

    loss: float = 0.1
    double: float = 0.1
    delay: int = 2 * AGAIN
    crash: float = 0.02
    cut: float = 0.01
    leave: float = 0.0
    move: float = 0.0
    until: int = 40 * AGAIN  # when the faults end

    @staticmethod
    def none() -> Faults:
        return Faults(0.0, 0.0, 1, 0.0, 0.0, 0.0, 0.0, 0)


@dataclass(frozen=True)
class Tree:
    """The parent of each node; the root has none."""

    parents: Mapping[str, str | None]

    @staticmethod
    def random(size: int, dice: random.Random) -> Tree:
        """A root, some intermediate nodes below it, and local ones."""
        inner = ["root", *(f"inner{n}" for n in range(dice.randint(0, max(0, (size - 2) // 3))))]
        parents: dict[str, str | None] = {"root": None}
        for place, name in enumerate(inner[1:], 1):
            parents[name] = dice.choice(inner[:place])
        locals_ = [f"local{n}" for n in range(max(1, size - len(inner)))]
        for name in locals_:
            parents[name] = dice.choice(inner)
        for name in inner[1:]:  # every one has a child
            if name not in parents.values():
                parents[f"local{len(parents)}"] = name
        return Tree(parents)

    @cached_property
    def children(self) -> dict[str, tuple[str, ...]]:
        """Of each node."""
        return {name: tuple(one for one, parent in self.parents.items() if parent == name) for name in self.parents}

    @cached_property
    def leaves(self) -> list[str]:
        return [name for name in self.parents if not self.children[name]]


@dataclass(frozen=True)
class Life:
    """Of a query, from when it came until it went: what of the root's batches answers it, and from which time on."""

    query: Query
    since: int | None  # None if it had not begun when it went
    after: int  # the number of a batch
    until: int | None = None
    watermark: int = INT64_MAX  # up to which its windows were emitted when it went


@dataclass
class Simulation:
    """Machines, what is on its way between them, and a clock."""

    tree: Tree
    query_set: QuerySet
    events: Mapping[str, pl.DataFrame]  # of each local node, as it reads them
    faults: Faults
    dice: random.Random
    machine: type[Node] = Node
    changes: Sequence[Query | str] = ()  # queries that come at run time, and the names of those that go
    settings: Mapping[str, Any] = field(default_factory=dict)  # of all machines
    lateness: Mapping[str, int] = field(default_factory=dict)  # of local nodes that have their own
    later: Mapping[str, int] = field(default_factory=dict)  # nodes that nobody waits for before they come, and when
    exact: bool = True  # whether no event can come too late
    now: int = 0
    messages: int = 0
    bytes: int = 0
    crashes: int = 0
    moves: int = 0  # to another parent, and back
    emitted: dict[int, pl.DataFrame] = field(default_factory=dict)  # results of the root, by number of the batch
    trace: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._way: list[tuple[int, int, str, str, bytes]] = []  # when, number, from, to, message
        durable = [name for name in self.tree.parents if self.tree.children[name] or self.query_set.push_down]
        self._disks = {name: MemoryStore() for name in durable}
        self._epochs = dict.fromkeys(self.tree.parents, 0)
        self._cuts: dict[tuple[str, str], int] = {}  # links that are cut, until when
        self._away: dict[str, int] = {}  # nodes that have left, until when
        self._elsewhere: dict[str, str] = {}  # the parents of nodes that were moved
        self._changes = list(self.changes)
        self._lives: list[Life] = []  # of queries that have gone
        self._came = {query.name: 0 for query in self.query_set.queries}
        self.machines: dict[str, Node] = {}
        for name in self.tree.parents:
            if name not in self.later:
                self._begin(name)

    def _begin(self, name: str) -> None:
        self._epochs[name] += 1
        self._away.pop(name, None)
        children, parent = self.tree.children[name], self._parent(name)
        self.machines[name] = self.machine(
            name,
            parent,
            tuple(child for child in children if child not in self.later),
            (1 << 40) - self._epochs[name],  # unlike those before, and not greater
            self._disks.get(name),
            self.query_set if parent is None else None,
            joins=bool(children) and bool(self.faults.move or any(child in self.later for child in children)),
            lateness=self.lateness.get(name),
            **self.settings,
        )
        self._post(name, self.machines[name].start(self.now))

    def _post(self, sender: str, out: Out) -> None:
        for to, message in out:
            if to == SINK:
                self._take_results(message)
                continue
            self._put(sender, to, message)
            if self._happens(self.faults.double):
                self._put(sender, to, message)

    def _take_results(self, batch: Message) -> None:
        """Take a batch of the root, which may crash before it is acknowledged."""
        assert isinstance(batch, Batch)
        before = self.emitted.setdefault(batch.number, batch.tables["results"])
        if not before.equals(batch.tables["results"]):
            raise AssertionError(f"the root says {batch.number} otherwise than before")
        if not self._happens(self.faults.crash):
            self.machines["root"].receive(SINK, Ack(batch.life, batch.number), self.now)

    def _put(self, sender: str, to: str, message: Message) -> None:
        data = to_bytes(message)
        self.messages, self.bytes = self.messages + 1, self.bytes + len(data)
        cut = self._cuts.get((min(sender, to), max(sender, to)), 0) > self.now
        if cut or self._happens(self.faults.loss):
            return
        arrives = self.now + 1 + (self.dice.randrange(self.faults.delay) if self._faulty else 0)
        heapq.heappush(self._way, (arrives, self.messages, sender, to, data))

    @property
    def _root_queries(self) -> QuerySet:
        """The queries as they are at the root."""
        query_set = self.machines["root"].query_set
        assert query_set is not None
        return query_set

    @property
    def _faulty(self) -> bool:
        return self.now < self.faults.until

    def _happens(self, likely: float) -> bool:
        return self._faulty and self.dice.random() < likely

    def run(self, steps: int = 100_000) -> None:
        """Go on until the root has everything; refuses to go on for ever."""
        for _ in range(steps):
            waits = self._root_queries.pending or len(self.machines) < len(self.tree.parents)
            if not waits and all(machine.done for machine in self.machines.values()):
                return
            self._step()
        raise RuntimeError(f"not done after {steps:,} steps")

    def _step(self) -> None:
        """Something happens: a node reads, a message arrives, or time passes; and now and then something breaks."""
        if self._happens(self.faults.crash):
            name = self.dice.choice(sorted(self.machines))
            self.crashes += 1
            self.trace.append(f"{self.now}: {name} crashes")
            self._begin(name)
        if self._happens(self.faults.cut):
            name = self.dice.choice([name for name, parent in self.tree.parents.items() if parent])
            parent = self.tree.parents[name] or ""
            self._cuts[min(name, parent), max(name, parent)] = self.now + self.dice.randrange(10 * AGAIN)
            if name in self.machines and self.dice.random() < 0.5:  # it notices, and begins with another stream
                self._way = [one for one in self._way if {one[2], one[3]} != {name, parent}]
                heapq.heapify(self._way)
                self._post(name, self.machines[name].start(self.now))
        if self._happens(self.faults.leave):
            name = self.dice.choice(list(self.machines))
            if name not in self._away and name != "root":
                self._away[name] = self.now + self.dice.randrange(5 * AGAIN)
                self.trace.append(f"{self.now}: {name} leaves")
                self._post(name, self.machines[name].leave(self.now))
        if self._happens(self.faults.move):
            self._move(self.dice.choice(sorted(self.machines)))
        for name in [name for name in self._elsewhere if self.machines[name].refused]:
            self._elsewhere.pop(name)
            self.trace.append(f"{self.now}: {name} goes back, because {self.machines[name].refused}")
            self.moves += 1
            self._begin(name)
        for name, until in list(self._away.items()):
            if until < self.now and self.machines[name].left:
                self._begin(name)
        for name, moment in self.later.items():
            if moment < self.now and name not in self.machines:
                self.trace.append(f"{self.now}: {name} joins")
                self._begin(name)
        if self._changes and self._faulty and self.dice.random() < 0.02:
            self._change(self._changes.pop(0))
        waits = bool((self._changes and self._faulty) or self._root_queries.pending)  # the end comes after all changes
        reads = []
        if not self._way or self.dice.random() < 0.3:
            reads = [name for name in self.tree.leaves if name in self.machines and self._can_read(name, waits)]
        if reads:
            self._read(self.dice.choice(reads), waits)
        elif self._way:
            self._deliver()
        else:
            self.now += AGAIN
            self._tick()

    def _move(self, name: str) -> None:
        """Begin a node anew below another parent than the one that has welcomed it: none below the node itself."""
        is_welcome = self.machines[name].query_set is not None and name not in self._away
        parents = [other for other in self.machines if self.tree.children[other] and name not in self._above(other)]
        parents = [other for other in parents if other != self.tree.parents[name]]
        # Of nodes with children one at a time, so that none comes to be below itself.
        inner = [other for other in (name, *self._elsewhere) if self.tree.children[other]]
        is_free = name not in self._elsewhere and (name not in inner or len(inner) == 1)
        if parents and is_welcome and is_free:
            self._elsewhere[name] = self.dice.choice(parents)
            self.trace.append(f"{self.now}: {name} moves to {self._elsewhere[name]}")
            self._begin(name)

    def _parent(self, name: str) -> str | None:
        return self._elsewhere.get(name, self.tree.parents[name])

    def _above(self, name: str) -> list[str]:
        """A node and all above it, wherever it is now."""
        parent = self._parent(name)
        return [name, *(self._above(parent) if parent is not None else ())]

    def _tick(self) -> None:
        for name, machine in self.machines.items():
            if not machine.left:
                self._post(name, machine.tick(self.now))

    def _change(self, change: Query | str) -> None:
        root = self.machines["root"]
        self.trace.append(f"{self.now}: {change if isinstance(change, str) else change.name} changes")
        if isinstance(change, Query):
            self._came[change.name] = root.status()["batches"]["made"]
            self._post("root", root.add(root.planned([change]), self.now) or [])
        else:
            (life,) = [life for life in self._living() if life.query.name == change]
            until, watermark = root.status()["batches"]["made"], self._emitted_until(life.query)
            self._lives.append(replace(life, until=until, watermark=watermark))
            self._post("root", root.remove(change, self.now))

    def _emitted_until(self, query: Query) -> int:
        """The watermark of a query: the root's, but where its group waits for values of nodes, that of the group.

        A query that goes emits nothing more, so a window that still waits for values then is never emitted.
        """
        root, queries = self.machines["root"], self._root_queries
        assert root.as_parent is not None
        assert root.as_parent.subtree.assembly is not None
        waiting, number = root.as_parent.subtree.assembly.quantiles.behind, queries.queries.index(query)
        for group in queries.job.compiled.plan.groups:
            if group.name in waiting and any(number in numbers for numbers in group.members.values()):
                return waiting[group.name]
        return root.watermark

    def _living(self) -> list[Life]:
        now = self._root_queries
        since = dict.fromkeys(self._came, INT64_MIN) | dict(now.since) | dict.fromkeys(dict(now.pending))
        return [Life(query, since[query.name], self._came[query.name]) for query in now.queries]

    @property
    def lives(self) -> list[Life]:
        """Of all queries that the tree has had, even of those that have come and gone under the same name."""
        return [*self._lives, *self._living()]

    def _can_read(self, name: str, waits: bool) -> bool:
        mark = self.machines[name].mark
        return mark is not None and not (waits and mark.get("at", 0) == self.events[name].height)

    def _read(self, name: str, waits: bool) -> None:
        machine, events = self.machines[name], self.events[name]
        assert machine.mark is not None
        begin = machine.mark.get("at", 0)
        end = min(events.height, begin + self.dice.randint(1, 8))
        last = end == events.height and not waits
        self._post(name, machine.read(events[begin:end], {"at": end}, self.now, last))

    def _deliver(self) -> None:
        arrives, _, sender, to, data = heapq.heappop(self._way)
        self.now = max(self.now, arrives)
        if to not in self.machines or self.machines[to].left:
            return  # nobody is there
        self._post(to, self.machines[to].receive(sender, from_bytes(data), self.now))
        if self.dice.random() < min(0.05, 2 / len(self.machines)):
            self._tick()

    @property
    def results(self) -> pl.DataFrame:
        """All that the root has emitted."""
        return self.results_between(0, None)

    def results_between(self, after: int, until: int | None) -> pl.DataFrame:
        """What the root has emitted in the batches after one, up to another."""
        numbers = [number for number in sorted(self.emitted) if after < number and (until is None or number <= until)]
        if not numbers:
            return self.query_set.job.compiled.results.empty
        return pl.concat([self.emitted[number] for number in numbers], how="diagonal_relaxed")
