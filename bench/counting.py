"""How little a tree sends for counting windows over all nodes, scheme by scheme; `bench/nodes.py` runs it.

Machines in one process, whose messages are written and read as between processes, and take a while: 20 ms of the time
that the events have. What is sent up is compared with the events themselves as Arrow IPC.
"""

from __future__ import annotations

import heapq
import io
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
from core import Line

import windrow as wr
from windrow.io.generator import COLUMNS, TICK, Generator
from windrow.nodes.protocol.journal import MemoryStore
from windrow.nodes.protocol.messages import Ack, Batch, Out
from windrow.nodes.protocol.node import SINK, Node
from windrow.nodes.queries import QuerySet
from windrow.nodes.transport.wire import Reader, Writer

DELAY = 20_000  # microseconds that a message takes
STEP = 50_000  # microseconds of events that a node reads at a time
NODES = 8


@dataclass
class Wired:
    """A root and local nodes below it; events come at the pace of their own time."""

    asked: QuerySet
    made: Generator
    up: int = 0  # bytes
    down: int = 0
    raw: int = 0  # bytes of the events as Arrow IPC
    busy: Counter[str] = field(default_factory=Counter)  # seconds that machines have worked
    results: list[pl.DataFrame] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.now = self.made.first
        self._way: list[tuple[int, int, str, str, bytes]] = []
        self._ends: dict[tuple[str, str], tuple[Writer, Reader]] = defaultdict(lambda: (Writer(), Reader()))
        self._number = 0
        names = tuple(self.made.names)
        self.machines = {"root": Node("root", None, names, 1, MemoryStore(), self.asked)}
        self.machines |= {name: Node(name, "root", life=1) for name in names}
        for name, machine in self.machines.items():
            self._post(name, machine.start(self.now))
        self._deliver(self.now + 10 * DELAY)

    def _post(self, sender: str, out: Out) -> None:
        for to, message in out:
            if to == SINK:
                assert isinstance(message, Batch)
                self.results.append(message.tables["results"])
                self._post("root", self.machines["root"].receive(SINK, Ack(1, message.number), self.now))
                continue
            data = self._ends[sender, to][0].write(message)
            if to == "root":
                self.up += len(data)
            else:
                self.down += len(data)
            self._number += 1
            heapq.heappush(self._way, (self.now + DELAY, self._number, sender, to, data))

    def _deliver(self, until: int) -> None:
        """Let messages arrive that are there by a time."""
        until = max(until, self.now)
        while self._way and self._way[0][0] <= until:
            self.now, _, sender, to, data = heapq.heappop(self._way)
            message, begin = self._ends[sender, to][1].read(data), time.process_time()
            out = self.machines[to].receive(sender, message, self.now)
            self.busy[to] += time.process_time() - begin
            self._post(to, out)
        self.now = until

    def run(self) -> None:
        """Until everything is answered."""
        position = dict.fromkeys(self.made.names, 0)
        assert self.made.ticks is not None
        for tick in range(self.made.ticks):
            parts = {}
            for number, name in enumerate(self.made.names):
                whole = pl.concat(list(self.made.events(number, tick, tick + 1, position[name])))
                self.raw += _ipc(whole)
                size = -(-whole.height * STEP // TICK)
                parts[name] = [whole[at : at + size] for at in range(0, whole.height, size)]
            for turn in range(TICK // STEP):
                for name, several in parts.items():
                    if turn < len(several):
                        position[name] += several[turn].height
                        self._read(name, several[turn], position[name])
                self._pass(self.made.first + tick * TICK + (turn + 1) * STEP)
        for name in self.made.names:
            self._read(name, parts[name][0][:0], position[name], last=True)
        while not all(machine.done for machine in self.machines.values()):
            self._pass(self.now + TICK)

    def _pass(self, until: int) -> None:
        """Let time pass."""
        self._deliver(until)
        for name, machine in self.machines.items():
            self._post(name, machine.tick(self.now))

    def _read(self, name: str, events: pl.DataFrame, position: int, last: bool = False) -> None:
        machine = self.machines[name]
        while machine.mark is None and not last:
            self._pass(self.now + DELAY)
        begin = time.process_time()
        out = machine.read(events, {"at": position}, self.now, last)
        self.busy[name] += time.process_time() - begin
        self._post(name, out)

    @property
    def told(self) -> pl.DataFrame:
        return pl.concat(self.results).sort("query", "position")

    @property
    def corrections(self) -> tuple[int, int]:
        """How many boundaries there were, and how many of them had to be corrected."""
        several = self.machines["root"].status().get("counting", {}).values()
        return sum(one["boundaries"] for one in several), sum(one["corrections"] for one in several)


def _ipc(events: pl.DataFrame) -> int:
    buffer = io.BytesIO()
    events.write_ipc_stream(buffer, compression="uncompressed")
    return buffer.tell()


def wired(queries: Sequence[wr.Query], made: Generator, **asked: Any) -> Wired:
    run = Wired(QuerySet.of(queries, "ts", COLUMNS, **asked), made)
    run.run()
    return run


def made(scale: float, change: float, seconds: int, rate: int = 125_000) -> Generator:
    return Generator(
        nodes=NODES, rate=max(500, int(rate * scale)), rate_change=change, seed=1, length=f"{seconds} seconds"
    )


def query(events: Generator) -> wr.Query:
    """Windows of as many events as all nodes have in a second."""
    return wr.Query("q", wr.counting(NODES * events.rate), ["count()", "mean(value)"])


def exact(one: Wired, central: Wired) -> float:
    """How many windows of a run are those of another, of 1."""
    if one.told.height != central.told.height:
        return 0.0
    same = sum(a == b for a, b in zip(one.told.rows(), central.told.rows(), strict=True))
    return same / max(1, central.told.height)


def counting(scale: float, runs: int) -> Iterator[Line]:
    """Bytes that counting windows of 1M events over 8 nodes send up, and whether the windows are right."""
    seconds = 16
    for change in (0.01, 0.1, 0.5, 1.0):
        events = made(scale, change, seconds)
        central = wired([query(events)], events, counting="central")
        shown = f"rate change {change:.0%}"
        schemes = {"refine": 0.02, "async": 0.05} if change == 0.01 else {}
        for scheme, most in schemes.items():
            run = wired([query(events)], events, counting=scheme)
            note = f"{run.up / central.up:.1%} of what central sends, which is compressed"
            yield Line(f"bytes up, counting 1M, {shown}, {scheme} / raw", run.up / run.raw, most=most, note=note)
            yield Line(f"windows that are exact, {shown}, {scheme}", exact(run, central), least=1.0)
        auto = wired([query(events)], events, counting="auto" if NODES * events.rate >= 10_000 else "refine")
        chose = next(iter(auto.machines["root"].status()["counting"].values()))["scheme"]
        yield Line(f"bytes up, {shown}, auto / central", auto.up / central.up, most=1.05, note=f"it chose {chose}")
        yield Line(f"windows that are exact, {shown}, auto", exact(auto, central), least=1.0)
        if change == 1.0:
            run = wired([query(events)], events, counting="approximate")
            print(f"      for information: windows that are exact, {shown}, approximate: {exact(run, central):.0%}")


def corrections(scale: float, runs: int) -> Iterator[Line]:
    """Corrections in 100 windows of 100k events, as Deco's Fig. 10 counts them."""
    for change in (0.001, 0.01, 0.1):
        events = made(scale, change, 101, rate=12_500)
        found = {}
        for scheme in ("sync", "async"):
            settled, corrected = wired([query(events)], events, counting=scheme).corrections
            found[scheme] = 100 * corrected / max(1, settled)
        for scheme, value in found.items():
            yield Line(f"corrections in 100 windows, rate change {change:.1%}, {scheme}", value, most=5.0)


def speed(scale: float, runs: int) -> Iterator[Line]:
    """Events a second of a local node that counts, beside one with time windows."""
    events = made(scale, 0.01, 8)
    by_time = wr.Query("q", wr.tumbling("1 second"), ["count()", "mean(value)"])
    found = {"time": float("inf"), "async": float("inf")}
    for _ in range(min(runs, 3)):
        for name, asked in {"time": by_time, "async": query(events)}.items():
            busy = wired([asked], events, counting="async").busy
            found[name] = min(found[name], sum(busy[node] for node in events.names))
    yield Line("events/s of a local node, counting by async / time windows", found["time"] / found["async"], least=0.5)


def ranks(scale: float, runs: int) -> Iterator[Line]:
    """Bytes that exact quantiles of counting windows of 1M events send up, with those that say where windows end."""
    events = made(scale, 0.01, 6)
    size = NODES * events.rate
    window = wr.counting(size)
    many = {f"q{n}": wr.quantile("value", n / 999) for n in range(1000)}
    queries = {
        ("exact median", 0.03): wr.Query("q", window, ["median(value)"]),
        ("1,000 quantiles at once", 0.4): wr.Query("q", window, many),
        ("exact median by steps of a fifth", 1.05): wr.Query("q", wr.counting(size, size // 5), ["median(value)"]),
    }
    for (what, most), asked in queries.items():
        refined, whole = (wired([asked], events, counting="refine", quantiles=how) for how in ("refine", "whole"))
        if not refined.told.equals(whole.told):
            raise AssertionError(f"{what}: the answers differ")
        note = f"{refined.up:,} of {refined.raw:,} bytes; whole bags {whole.up:,}"
        yield Line(f"bytes up, {what} of counting 1M / raw", refined.up / refined.raw, most=most, note=note)


WORKLOADS = (counting, corrections, speed, ranks)
