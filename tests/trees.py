"""A tree in one process whose root leaves its slices in an outlet, fed by hand."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

import windrow as wr
from windrow.nodes.process.slice_sink import SliceSink
from windrow.nodes.protocol.journal import MemoryStore
from windrow.nodes.protocol.messages import Ack, Batch, Message, Out
from windrow.nodes.protocol.node import SINK, Node
from windrow.nodes.queries import QuerySet
from windrow.testing import recompute
from windrow.testing.tree_simulation import Simulation

COLUMNS = {"t": pl.Int64(), "k": pl.String(), "x": pl.Int64()}
LATENESS = 3
QUERIES = [
    wr.Query("tumbling", wr.tumbling(10), ["count()", "sum(x)", "median(x)"], by="k"),
    wr.Query("sliding", wr.sliding(20, 5), ["mean(x)", "last(x)"]),
    wr.Query("session", wr.session(6), ["count()", "max(x)"], by="k"),
    wr.Query("counting", wr.counting(5), ["sum(x)"]),
    wr.Query("frames", wr.frames(when="x > 3"), ["collect(x)"], by="k"),
    wr.Query("latest", wr.latest(3, every=10), ["sum(x)"], by="node"),
]


def asking(queries: Sequence[wr.Query] = QUERIES) -> QuerySet:
    """What a root is asked that feeds slices."""
    return QuerySet.of(queries, "t", COLUMNS, lateness=LATENESS).as_events()


def events_of(seed: int, most: int = 60, nodes: Iterable[str] = "abc") -> dict[str, pl.DataFrame]:
    """Events of each node, out of order by as much as the lateness allows."""
    several = {}
    for node in nodes:
        dice, time, rows = random.Random(f"{seed}{node}"), 0, []
        for _ in range(most):
            time += dice.randint(0, 4)
            rows.append({"t": time - dice.randint(0, LATENESS), "k": dice.choice("pq"), "x": dice.randint(0, 6)})
        several[node] = pl.DataFrame(rows, schema=COLUMNS)
    return several


def told(several: Mapping[str, pl.DataFrame], queries: Sequence[wr.Query] = QUERIES) -> list[Any]:
    """What the oracle says of all events."""
    rows = [{**row, "node": node} for node, events in sorted(several.items()) for row in events.to_dicts()]
    rows.sort(key=lambda row: (row["t"], row["node"]))
    return recompute(rows, queries, time="t", order_by=("node",))


@dataclass
class Faulty(Simulation):
    """A tree of any shape that feeds an outlet, and breaks in every way that a seed can think of."""

    path: Path = Path()

    def __post_init__(self) -> None:
        self.settings = {**self.settings, "feeds": "slices"}
        self.outlet, self.query_set = SliceSink(self.path), self.query_set.as_events()
        self.outlet.set_queries(self.query_set)
        super().__post_init__()

    def _take_results(self, batch: Message) -> None:
        assert isinstance(batch, Batch)
        self.outlet.put(batch)
        if not self._happens(self.faults.crash):
            self.machines["root"].receive(SINK, Ack(batch.life, batch.number), self.now)


class Tree:
    """Nodes a and b below an intermediate one, c below the root, which leaves its batches in an outlet."""

    def __init__(self, path: Path, asked: QuerySet | None = None) -> None:
        self.outlet = SliceSink(path)
        self.asked = (asked or asking()).as_events()
        self.outlet.set_queries(self.asked)
        self.machines = {
            "root": Node("root", None, ("middle", "c"), 1, MemoryStore(), self.asked, feeds="slices"),
            "middle": Node("middle", "root", ("a", "b"), 1, MemoryStore()),
            "a": Node("a", "middle", life=1),
            "b": Node("b", "middle", life=1),
            "c": Node("c", "root", life=1),
        }
        for name, machine in self.machines.items():
            self.deliver(name, machine.start(0))

    def deliver(self, sender: str, out: Out) -> None:
        """Let messages arrive, and what they are answered with."""
        for to, message in out:
            if to == SINK:
                assert isinstance(message, Batch)
                self.outlet.put(message)
                self.deliver(SINK, [(sender, Ack(message.life, message.number))])
            else:
                self.deliver(to, self.machines[to].receive(sender, message, 0))

    def remove(self, name: str) -> None:
        """The root is asked a query less: what was made for it before goes first."""
        root = self.machines["root"]
        out = root.remove(name, 0)
        self.deliver("root", [(to, message) for to, message in out if to == SINK])
        assert root.query_set is not None
        self.outlet.set_queries(root.query_set)
        self.deliver("root", [(to, message) for to, message in out if to != SINK])

    def read(self, node: str, events: pl.DataFrame, last: bool = False) -> None:
        """A node reads what is new."""
        machine = self.machines[node]
        assert machine.mark is not None
        self.deliver(node, machine.read(events, {"rows": machine.mark.get("rows", 0) + events.height}, 0, last))

    def run(self, several: Mapping[str, pl.DataFrame], step: int = 7, end: bool = True) -> None:
        """All nodes read what they have in turn, a few events at a time; and that was all, with `end`."""
        for at in range(0, max(events.height for events in several.values()), step):
            for node, events in several.items():
                self.read(node, events[at : at + step], end and at + step >= events.height)
