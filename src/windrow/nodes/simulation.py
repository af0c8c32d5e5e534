"""A tree of machines in one process, with faults from a seed.

    seed ──▶ tree, events, faults ──▶ steps: a message arrives, a node reads, something breaks ──▶ what the root says

Every link loses, delays, doubles and reorders messages and can be cut for a while; every node can crash and start
again, with its spool as it was after the last thing that it did. After a time the faults end, the sources come to their
end, and what the root has said can be compared with one process that has all events. The same seed gives the same run.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import polars as pl

from windrow.nodes.asked import Asked
from windrow.nodes.machine import AGAIN, Machine, Out
from windrow.nodes.messages import Message, from_bytes, to_bytes
from windrow.windows import INT64_MAX


class Disk:
    """A spool that outlives a crash."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def get(self, name: str) -> bytes | None:
        return self._kept.get(name)

    def names(self) -> Iterable[str]:
        return list(self._kept)

    def commit(self, put: dict[str, bytes], delete: Iterable[str]) -> None:
        for name in delete:
            self._kept.pop(name, None)
        self._kept.update(put)


@dataclass(frozen=True)
class Faults:
    """How likely what is, at each message or step; times are in microseconds."""

    loss: float = 0.1
    double: float = 0.1
    delay: int = 2 * AGAIN
    crash: float = 0.02
    cut: float = 0.01
    until: int = 40 * AGAIN  # when the faults end

    @staticmethod
    def none() -> Faults:
        return Faults(0.0, 0.0, 1, 0.0, 0.0, 0)


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

    def children(self, name: str) -> tuple[str, ...]:
        return tuple(child for child, parent in self.parents.items() if parent == name)

    @property
    def leaves(self) -> list[str]:
        return [name for name in self.parents if not self.children(name)]


@dataclass
class Simulation:
    """Machines, what is on its way between them, and a clock."""

    tree: Tree
    asked: Asked
    events: Mapping[str, pl.DataFrame]  # of each local node, as it reads them
    faults: Faults
    dice: random.Random
    machine: type[Machine] = Machine
    now: int = 0
    messages: int = 0
    bytes: int = 0
    crashes: int = 0
    trace: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._way: list[tuple[int, int, str, str, bytes]] = []  # when, number, from, to, message
        self._disks = {name: Disk() for name in self.tree.parents if self.tree.children(name)}
        self._epochs = dict.fromkeys(self.tree.parents, 0)
        self._cuts: dict[tuple[str, str], int] = {}  # links that are cut, until when
        self._ended: set[str] = set()
        self.machines: dict[str, Machine] = {}
        for name in self.tree.parents:
            self._begin(name)

    def _begin(self, name: str) -> None:
        self._epochs[name] += 1
        self.machines[name] = self.machine(
            name,
            self.tree.parents[name],
            self.tree.children(name),
            self._epochs[name],
            self._disks.get(name),
            self.asked if self.tree.parents[name] is None else None,
        )
        self._ended.discard(name)
        self._post(name, self.machines[name].start(self.now))

    def _post(self, sender: str, out: Out) -> None:
        for to, message in out:
            self._put(sender, to, message)
            if self._happens(self.faults.double):
                self._put(sender, to, message)

    def _put(self, sender: str, to: str, message: Message) -> None:
        data = to_bytes(message)
        self.messages, self.bytes = self.messages + 1, self.bytes + len(data)
        cut = self._cuts.get((min(sender, to), max(sender, to)), 0) > self.now
        if cut or self._happens(self.faults.loss):
            return
        arrives = self.now + 1 + (self.dice.randrange(self.faults.delay) if self._faulty else 0)
        heapq.heappush(self._way, (arrives, self.messages, sender, to, data))

    @property
    def _faulty(self) -> bool:
        return self.now < self.faults.until

    def _happens(self, likely: float) -> bool:
        return self._faulty and self.dice.random() < likely

    def run(self, steps: int = 100_000) -> None:
        """Go on until the root has everything; refuses to go on for ever."""
        for _ in range(steps):
            if self.machines["root"].watermark == INT64_MAX:
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
        reads = [name for name in self.tree.leaves if self._can_read(name)]
        if reads and (not self._way or self.dice.random() < 0.3):
            self._read(self.dice.choice(reads))
        elif self._way:
            self._deliver()
        else:
            self.now += AGAIN
            for name, machine in self.machines.items():
                self._post(name, machine.tick(self.now))

    def _can_read(self, name: str) -> bool:
        return name not in self._ended and self.machines[name].position is not None

    def _read(self, name: str) -> None:
        machine, events = self.machines[name], self.events[name]
        begin = machine.position or 0
        end = min(events.height, begin + self.dice.randint(1, 8))
        last = end == events.height
        if last:
            self._ended.add(name)
        self._post(name, machine.read(events[begin:end], end, self.now, last))

    def _deliver(self) -> None:
        arrives, _, sender, to, data = heapq.heappop(self._way)
        self.now = max(self.now, arrives)
        self._post(to, self.machines[to].receive(sender, from_bytes(data), self.now))
        if self.dice.random() < 0.05:
            for name, machine in self.machines.items():
                self._post(name, machine.tick(self.now))
