"""A tree of nodes in one process, and what each of its nodes does and sends.

    local nodes ──▶ intermediate nodes ──▶ root        every message as the bytes that would travel

Nodes run one after the other, and the processor time of each is taken on its own. A tree whose nodes are machines of
their own is as fast as its busiest node: `events / busiest`. That needs no more cores than this machine has, and leaves
out the network, which is counted in bytes.

| scheme | what travels |
| --- | --- |
| `windrow` | what windrow's nodes send: slices, or events where a window needs their order; `counting: auto` |
| `monitoring`, `sync`, `async`, `refine` | the same, with count windows by this scheme |
| `central` | all events, in the columns that are needed, compressed alike; windrow's engine answers at the root |
| `buffer` | all events; the root keeps them, and computes each window from its events |
| `approx` | partial aggregates of count windows whose shares never change: not exact |
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import polars as pl
import pyarrow as pa

import windrow as wr
from bench import data
from bench.baselines import approx, system
from bench.baselines.common import needed
from windrow.core.windows.ordered import Counting
from windrow.io.generator import COLUMNS
from windrow.nodes.protocol.journal import MemoryStore
from windrow.nodes.protocol.messages import Ack, Batch, Message
from windrow.nodes.protocol.node import SINK, Node
from windrow.nodes.queries import QuerySet
from windrow.nodes.requests import AGAIN
from windrow.nodes.transport.wire import Reader, Writer

FOREVER = 10**18


@dataclass(frozen=True)
class Load:
    """What a tree is given: queries, and events of each local node, which it reads in chunks of a part of a second."""

    queries: tuple[wr.Query, ...]
    nodes: int = 1
    rate: int = 100_000  # of each node, a second
    seconds: int = 10
    keys: int = 10
    rate_change: float = 0.0
    height: int = 2  # levels: 2 is local nodes below the root, 3 has one intermediate node between
    chunks: int = 1  # that a second is read in

    def frames(self) -> list[list[pl.DataFrame]]:
        """For each local node its chunks."""
        whole = data.of_nodes(self.nodes, self.rate, self.seconds, self.keys, self.rate_change)
        return [[part for second in frames for part in _parts(second, self.chunks)] for frames in whole]


def _parts(frame: pl.DataFrame, count: int) -> list[pl.DataFrame]:
    bounds = [at * frame.height // count for at in range(count + 1)]
    return [frame[low:high] for low, high in pairwise(bounds)]


@dataclass
class Grown:
    """What a tree did."""

    events: int
    busy: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # processor seconds of each node
    sent: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # bytes of each node to its parent
    down: int = 0  # bytes to children
    latencies: list[float] = field(default_factory=list)  # seconds from reading what ends a window to its result
    said: list[pl.DataFrame] = field(default_factory=list)
    boundaries: int = 0  # of count windows that nodes have agreed on
    corrections: int = 0  # of those, for how many a prediction was wrong
    correct: float | None = None  # which share of the events is in its right window; None where nobody has looked

    @contextmanager
    def at(self, node: str) -> Iterator[None]:
        begin = time.process_time()
        try:
            yield
        finally:
            self.busy[node] += time.process_time() - begin

    @property
    def throughput(self) -> float:
        return self.events / max(self.busy.values())

    @property
    def bytes(self) -> int:
        return sum(self.sent.values()) + self.down

    @property
    def results(self) -> pl.DataFrame:
        found = [one for one in self.said if one.height]
        return pl.concat(found, how="diagonal") if found else pl.DataFrame()


def parents_of(load: Load) -> dict[str, str | None]:
    """A chain of intermediate nodes below the root, and all local nodes below the last."""
    found: dict[str, str | None] = {"root": None}
    above = "root"
    for level in range(load.height - 2):
        found[f"inner{level}"] = above
        above = f"inner{level}"
    return found | dict.fromkeys(locals_of(load), above)


def locals_of(load: Load) -> list[str]:
    return [f"local{number:03}" for number in range(load.nodes)]


# --- windrow's own nodes --------------------------------------------------------------------------------------------


class Nodes:
    """Machines, and the messages between them as bytes."""

    def __init__(self, load: Load, counting: str) -> None:
        self.parents = parents_of(load)
        children: dict[str, list[str]] = defaultdict(list)
        for name, parent in self.parents.items():
            if parent is not None:
                children[parent].append(name)
        asked = QuerySet.of(load.queries, "ts", COLUMNS, counting=counting)
        self.grown = Grown(0)
        self.machines = {
            name: Node(
                name,
                parent,
                tuple(children[name]),
                1,
                MemoryStore() if children[name] else None,
                asked if parent is None else None,
            )
            for name, parent in self.parents.items()
        }
        self._way: deque[tuple[str, str, bytes]] = deque()
        self._ends: dict[tuple[str, str], tuple[Writer, Reader]] = defaultdict(lambda: (Writer(), Reader()))
        for name, machine in self.machines.items():
            self._post(name, machine.start(0))
        self.deliver()
        now = 0
        while any(self.machines[local].mark is None for local in locals_of(load)):  # a plan goes down level by level
            now += AGAIN
            for name, machine in self.machines.items():
                self._post(name, machine.tick(now))
            self.deliver()
        self.grown = Grown(0)  # the beginning is no part of what is measured

    def _post(self, sender: str, out: Sequence[tuple[str, Message]]) -> None:
        for to, message in out:
            if to == SINK:
                assert isinstance(message, Batch)
                self.grown.said.append(message.tables["results"])
                self._post(sender, self.machines[sender].receive(SINK, Ack(message.life, message.number), 0))
                continue
            with self.grown.at(sender):
                encoded = self._ends[sender, to][0].write(message)
            if to == self.parents[sender]:
                self.grown.sent[sender] += len(encoded)
            else:
                self.grown.down += len(encoded)
            self._way.append((sender, to, encoded))

    def deliver(self) -> None:
        """Until nothing is on its way."""
        while self._way:
            sender, to, encoded = self._way.popleft()
            with self.grown.at(to):
                out = self.machines[to].receive(sender, self._ends[sender, to][1].read(encoded), FOREVER)
            self._post(to, out)

    def read(self, name: str, frame: pl.DataFrame, position: int, last: bool) -> None:
        self.grown.events += frame.height
        with self.grown.at(name):
            out = self.machines[name].read(frame, {"at": position}, FOREVER, last)
        self._post(name, out)


def _windrow(counting: str) -> Callable[[Load, Sequence[Sequence[pl.DataFrame]]], Grown]:
    def run(load: Load, frames: Sequence[Sequence[pl.DataFrame]]) -> Grown:
        nodes = Nodes(load, counting)
        position = [0] * load.nodes
        for chunk in range(len(frames[0])):
            before, said = dict(nodes.grown.busy), len(nodes.grown.said)
            for number, local in enumerate(locals_of(load)):
                frame = frames[number][chunk]
                position[number] += frame.height
                nodes.read(local, frame, position[number], chunk == len(frames[0]) - 1)
            nodes.deliver()
            if len(nodes.grown.said) > said:
                nodes.grown.latencies.append(_path(nodes.grown, before))
        root = nodes.machines["root"]
        assert root.done, "the root has not come to its end"
        agreed = root.status().get("counting", {}).values()
        nodes.grown.boundaries = sum(one["boundaries"] for one in agreed)
        nodes.grown.corrections = sum(one["corrections"] for one in agreed)
        return nodes.grown

    return run


def _path(grown: Grown, before: dict[str, float]) -> float:
    """The longest way up: the slowest local node, and every level above."""
    spent = {name: busy - before.get(name, 0.0) for name, busy in grown.busy.items()}
    locals_ = [took for name, took in spent.items() if name.startswith("local")]
    return max(locals_) + sum(took for name, took in spent.items() if not name.startswith("local"))


# --- whether count windows are right -------------------------------------------------------------------------------


def correctness(load: Load, frames: Sequence[Sequence[pl.DataFrame]], grown: Grown) -> float:
    """Which share of the events is in its right window, by a sort of all events, which knows nothing of any scheme.

    The approximation says itself which events it took for a window. The results of the others are looked at: a window
    whose position, bounds and sum are not those of the sorted events counts as wrong with all of its events.
    """
    if grown.correct is not None:
        return grown.correct
    (query,) = load.queries
    assert isinstance(query.window, Counting)
    n = query.window.n
    whole = pl.concat([part for several in frames for part in several]).sort("ts", maintain_order=True)
    right = (
        whole.with_columns(position=pl.int_range(pl.len()) // n * n)
        .group_by("position", maintain_order=True)
        .agg(pl.col("ts").first().alias("start"), pl.col("ts").last().alias("end"), pl.col("value").sum(), pl.len())
        .filter(pl.col("len") == n)
    )
    (asked,) = query.aggregates
    said = grown.results
    if not said.height or not right.height:
        return float(said.height == right.height)
    both = right.join(said.unique("position", keep="none"), on="position", how="left", validate="1:1")
    bounds = [pl.col(f"window_{side}").to_physical() == pl.col(side).to_physical() for side in ("start", "end")]
    total = (pl.col(asked.name) - pl.col("value")).abs() <= 1e-9 * pl.col("value").abs()
    held = both.select(pl.all_horizontal(*bounds, total).fill_null(False)).to_series()
    return float(held.sum()) / max(right.height, said.height)


# --- all events at the root -----------------------------------------------------------------------------------------


def _central(root: str) -> Callable[[Load, Sequence[Sequence[pl.DataFrame]]], Grown]:
    def run(load: Load, frames: Sequence[Sequence[pl.DataFrame]]) -> Grown:
        grown = Grown(0)
        at_root = system(root).start(load.queries, 0)
        inner = [f"inner{level}" for level in reversed(range(load.height - 2))]
        columns = needed(load.queries)
        for chunk in range(len(frames[0])):
            before = dict(grown.busy)
            waiting: list[bytes] = []
            for number, local in enumerate(locals_of(load)):
                grown.events += frames[number][chunk].height
                with grown.at(local):
                    waiting.append(encoded(frames[number][chunk].select(columns)))
                grown.sent[local] += len(waiting[-1])
            for name in inner:
                with grown.at(name):
                    waiting = [bytes(bytearray(one)) for one in waiting]  # read from one link, written to another
                grown.sent[name] += sum(map(len, waiting))
            with grown.at("root"):
                batch = pl.concat([decoded(one) for one in waiting]).with_columns(
                    pl.col("ts").dt.replace_time_zone(None)
                )
                said = at_root.push(batch)
            if said.height:
                grown.latencies.append(_path(grown, before))
            grown.said.append(said)
        with grown.at("root"):
            grown.said.append(at_root.finish())
        return grown

    return run


def encoded(frame: pl.DataFrame) -> bytes:
    """A table as Arrow IPC, compressed as windrow compresses its own: what is compared is what travels, not how."""
    sink = pa.BufferOutputStream()
    table = frame.to_arrow()
    packing = pa.ipc.IpcWriteOptions(compression="zstd" if frame.height > 64 else None)
    with pa.ipc.new_stream(sink, table.schema, options=packing) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def decoded(message: bytes) -> pl.DataFrame:
    with pa.ipc.open_stream(message) as reader:
        found = pl.from_arrow(reader.read_all())
    assert isinstance(found, pl.DataFrame)
    return found


# --- approximated count windows -------------------------------------------------------------------------------------


def approximated(load: Load, frames: Sequence[Sequence[pl.DataFrame]]) -> Grown:
    (query,) = load.queries
    assert isinstance(query.window, Counting)
    first = [sum(frame.height for frame in several[: load.chunks]) for several in frames]
    share = approx.shares(query.window.n, first)
    grown = Grown(0)
    nodes = [approx.Local(one) for one in share]
    root = approx.Root(query.window.n)
    for chunk in range(len(frames[0])):
        before = dict(grown.busy)
        waiting = []
        for number, local in enumerate(locals_of(load)):
            grown.events += frames[number][chunk].height
            with grown.at(local):
                waiting.append(encoded(nodes[number].push(frames[number][chunk])))
            grown.sent[local] += len(waiting[-1])
        with grown.at("root"):
            said = root.push([decoded(one) for one in waiting])
        if said.height:
            grown.latencies.append(_path(grown, before))
        grown.said.append(said)
    grown.correct = approx.correctness(query.window.n, share, [pl.concat(several) for several in frames])
    return grown


SCHEMES: dict[str, Callable[[Load, Sequence[Sequence[pl.DataFrame]]], Grown]] = {
    "windrow": _windrow("auto"),
    **{scheme: _windrow(scheme) for scheme in ("monitoring", "sync", "async", "refine")},
    "central": _central("windrow"),
    "buffer": _central("buffer"),
    "approx": approximated,
}
EXACT = ("windrow", "monitoring", "sync", "async", "refine", "central", "buffer")
