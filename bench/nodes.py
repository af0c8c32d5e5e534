"""How little a tree of nodes sends, and how fast it is, as ratios measured in one run.

    make bench-nodes                       all workloads, printed and written to bench/results/nodes.json
    make bench-nodes ARGS="--check"        exits 1 when a line falls short of what it must reach
    make bench-nodes ARGS="--scale 0.01"   a hundredth of the size, to see that it runs

Nodes are processes of their own, or threads of this one where a moment is to be measured, and speak Arrow Flight over
the loopback interface. Bytes are those of the transport, headers included (`windrow tree status`).
"""

from __future__ import annotations

import os

os.environ["POLARS_MAX_THREADS"] = "1"  # before Polars is imported

import json
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import yaml
from core import Line, Work, main
from counting import WORKLOADS as COUNTING
from quantiles import quantiles

import windrow as wr
from windrow.core.expressions.types import types_of
from windrow.core.windows.fixed import duration
from windrow.io.generator import Generator
from windrow.nodes.process import config as configs
from windrow.nodes.process.log_store import LogFile
from windrow.nodes.process.process import NodeProcess
from windrow.nodes.protocol.messages import Ack, Batch, from_bytes, to_bytes
from windrow.nodes.protocol.node import SINK, Node
from windrow.nodes.queries import QuerySet
from windrow.nodes.sources import Read

COLUMNS = "ts TIMESTAMP, key INT, value DOUBLE"
FIVE = ["count()", "sum(value)", "min(value)", "max(value)", "stddev(value)"]


def mean() -> list[wr.Query]:
    return [wr.Query("mean", wr.tumbling("1 second"), ["mean(value)"])]


def many(count: int) -> list[wr.Query]:
    """Queries over 10 keys whose edges are multiples of a second, with five functions in all."""
    lengths = [1 + number % 60 for number in range(count)]
    windows = [
        wr.sliding(f"{length} seconds", "1 second") if length > 1 else wr.tumbling("1 second") for length in lengths
    ]
    return [wr.Query(f"q{number}", window, FIVE, by="key") for number, window in enumerate(windows)]


# --- processes ------------------------------------------------------------------------------------------------------


class Tree:
    """Processes in a directory that goes away with them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, role: str, name: str, **described: Any) -> subprocess.Popen[bytes]:
        own = self.folder / name
        own.mkdir(exist_ok=True)
        if role != "local":
            described = {"spool": ".", "listen": "127.0.0.1:0", **described}
        elif "spool" not in described:
            described["spool"] = "."
        (own / "node.yaml").write_text(yaml.safe_dump({"name": name, **described}))
        command = [sys.executable, "-m", "windrow", "node", role, "--config", str(own / "node.yaml")]
        with (own / "log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log)
        return self.processes[name]

    def status(self, name: str) -> dict[str, Any]:
        try:
            return json.loads((self.folder / name / "status.json").read_text())  # type: ignore[no-any-return]
        except (OSError, ValueError):
            return {}

    def address(self, name: str) -> str:
        return str(self.wait(name, lambda status: "address" in status)["address"])

    def wait(self, name: str, until: Any, timeout: float = 120) -> dict[str, Any]:
        begin = time.monotonic()
        while time.monotonic() - begin < timeout:
            status = self.status(name)
            if status and until(status):
                return status
            if self.processes[name].poll() not in (None, 0):
                raise RuntimeError((self.folder / name / "log").read_text())
            time.sleep(0.01)
        raise TimeoutError(f"{name}: {self.status(name)}\n{(self.folder / name / 'log').read_text()}")

    def end(self, name: str) -> dict[str, Any]:
        """Wait until a node has ended by itself."""
        if self.processes[name].wait(timeout=300):
            raise RuntimeError((self.folder / name / "log").read_text())
        return self.status(name)

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()


@contextmanager
def tree() -> Iterator[Tree]:
    with tempfile.TemporaryDirectory(prefix="windrow-bench-") as folder:
        made = Tree(Path(folder))
        try:
            yield made
        finally:
            made.close()


def root_of(one: Tree, queries: list[wr.Query], **more: Any) -> str:
    """Start a root; returns its address."""
    one.start("root", "root", queries=_as_yaml(queries), time="ts", columns=COLUMNS, **more)
    return one.address("root")


def _as_yaml(queries: list[wr.Query]) -> list[dict[str, Any]]:
    found = []
    for query in queries:
        described: dict[str, Any] = {
            "name": query.name,
            "window": _window(query),
            "aggregates": [a.name for a in query.aggregates],
        }
        found.append(described | ({"by": list(query.by)} if query.by else {}))
    return found


def _window(query: wr.Query) -> str:
    window: Any = query.window
    length = f"{window.length // 1_000_000} seconds"
    return (
        f"sliding({length}, {window.slide // 1_000_000} seconds)" if hasattr(window, "slide") else f"tumbling({length})"
    )


def bytes_up(queries: list[wr.Query], source: Mapping[str, Any], height: int = 2) -> list[int]:
    """The bytes on every link of a chain of nodes, from the local one up, for a source that ends."""
    with tree() as one:
        parent = root_of(one, queries, children=["inner0" if height > 2 else "local"])
        inner = [f"inner{number}" for number in range(height - 2)]
        for number, name in enumerate(inner):
            below = inner[number + 1] if number + 1 < len(inner) else "local"
            one.start("intermediate", name, parent=parent, children=[below])
            parent = one.address(name)
        one.start("local", "local", parent=parent, source=dict(source))
        statuses = [one.end(name) for name in ("local", *reversed(inner))]
        one.end("root")
        return [status["link"]["bytes_up"] for status in statuses]


def generator(rate: int, seconds: float, keys: int) -> dict[str, Any]:
    return {"kind": "generator", "rate": rate, "length": f"{int(seconds)} seconds", "keys": keys}


def raw_bytes(rate: int, seconds: float, needed: list[str]) -> int:
    """What the columns that are needed take as they are, in Arrow IPC."""
    made = Generator(nodes=1, rate=rate, keys=1, length=f"{int(seconds)} seconds")
    size = 0
    for frame, _ in frames(made):
        size += len(frame.select(needed).to_arrow().combine_chunks().to_batches()[0].serialize())
    return size


def frames(made: Generator) -> Iterator[tuple[pl.DataFrame, str]]:
    """All events of its first node."""
    assert made.length is not None
    seconds = duration(made.length, "length").units // 1_000_000
    return made.frames(made.names[0], [0, seconds], 0, made.columns)


# --- workloads ------------------------------------------------------------------------------------------------------


def little(scale: float, runs: int) -> Iterator[Line]:
    """How little goes up: ten seconds of events in one, so that each second is sent on its own."""
    rate, seconds = max(1000, int(100_000 * scale)), 50
    (sent,) = bytes_up(mean(), generator(rate, seconds, 1) | {"speed": 10})
    raw = raw_bytes(rate, seconds, ["ts", "value"])
    note = f"{sent:,} of {raw:,} bytes, {sent // seconds:,} a window"
    yield Line("bytes up, mean over 1 s of 100k events / raw Arrow", sent / raw, most=0.005, note=note)
    (one,) = bytes_up(many(1), generator(rate, seconds, 10) | {"speed": 10})
    (thousand,) = bytes_up(many(1000 if scale >= 0.1 else 50), generator(rate, seconds, 10) | {"speed": 10})
    note = f"{one:,} and {thousand:,} bytes"
    yield Line("bytes up, 1,000 queries / one, 10 keys", thousand / one, most=1.2, note=note)
    long = generator(max(100, rate // 10), 600, 10)
    links = {height: bytes_up(many(1), long, height) for height in (2, 3, 4, 5)}
    worst = max(link / several[0] for several in links.values() for link in several)
    told = [f"height {height}: {' + '.join(f'{link:,}' for link in several)}" for height, several in links.items()]
    yield Line("bytes of any link / of the local node's own", worst, most=1.1, note="; ".join(told))


def root(scale: float, runs: int) -> Iterator[Line]:
    """What a received slice costs the root, with more and more local nodes."""
    keys, seconds = 100, max(10, int(60 * scale))
    query = [wr.Query("q", wr.tumbling("1 second"), FIVE, by="key")]
    asked = QuerySet.of(query, "ts", types_of(COLUMNS))
    cost: dict[int, float] = {}
    for nodes in (1, 2, 4, 8, 32):
        for _ in range(min(runs, 3)):
            with tempfile.TemporaryDirectory(prefix="windrow-bench-") as folder:
                cost[nodes] = min(cost.get(nodes, 1e9), _root_cost(asked, nodes, keys, seconds, Path(folder)))
    per_second = 1 / (cost[32] * keys)
    note = ", ".join(f"{nodes}: {1e6 * one:.1f} µs" for nodes, one in cost.items())
    note += f"; busy at {per_second:,.0f} nodes that each send {keys} slices a second"
    yield Line("CPU of the root per slice, 2 to 32 nodes / one node", max(cost.values()) / cost[1], most=1.2, note=note)


def _root_cost(asked: QuerySet, nodes: int, keys: int, seconds: int, folder: Path) -> float:
    """CPU seconds per slice; batches are made before, and arrive as bytes in the order of their time."""
    names = [f"n{number}" for number in range(nodes)]
    spool = LogFile(folder / "spool")
    machine = Node("root", None, tuple(names), 1, spool, asked)
    made = Generator(nodes=nodes, rate=2000, keys=keys, length=f"{seconds} seconds")
    waiting: list[list[bytes]] = [[] for _ in range(seconds)]
    slices = 0
    for name, of in zip(names, made.names, strict=True):
        local = Node(name, "root", life=1)
        for _, hello in local.start(0):
            for _, answer in machine.receive(name, hello, 0):
                local.receive("root", answer, 0)
        count = 0
        for second in range(seconds):
            for frame, _ in made.frames(of, [second, second + 1], count, made.columns):
                count += frame.height
                for _, batch in local.read(frame, {"at": second}, 10**18, second == seconds - 1):
                    assert isinstance(batch, Batch)
                    slices += sum(table.height for table in batch.tables.values())
                    waiting[second].append(to_bytes(batch))
                    local.receive("root", Ack(1, batch.number), 0)
    begin = time.process_time()
    for several in waiting:
        for data in several:
            batch = from_bytes(data)
            assert isinstance(batch, Batch)
            for to, message in machine.receive(batch.node, batch, 10**18):
                if to == SINK:
                    assert isinstance(message, Batch)
                    machine.receive(SINK, Ack(1, message.number), 0)
    took = time.process_time() - begin
    assert machine.done
    spool.close()
    return took / slices


def local(scale: float, runs: int) -> Iterator[Line]:
    """Events a second of one local node over Flight, beside the engine in one process."""
    size, files = int(20_000_000 * scale), 8
    queries = [wr.Query("q", wr.tumbling("1 second"), FIVE, by="key")]
    with tempfile.TemporaryDirectory(prefix="windrow-bench-") as folder:
        place = Path(folder) / "events"
        place.mkdir()
        made = Generator(nodes=1, rate=max(1000, size // 200), keys=10, length="200 seconds")
        whole = pl.concat([frame for frame, _ in frames(made)])
        for number in range(files):
            part = whole[number * whole.height // files : (number + 1) * whole.height // files]
            part.write_parquet(place / f"{number}.parquet", row_group_size=1_000_000)
        found = {"engine": float("inf"), "node": float("inf")}
        for _ in range(min(runs, 3)):
            found["engine"] = min(found["engine"], _by_engine(place, queries))
            found["node"] = min(found["node"], _by_node(place, queries))
    note = f"{whole.height / found['node'] / 1e6:.1f}M and {whole.height / found['engine'] / 1e6:.1f}M events/s"
    yield Line(
        "events/s of a local node over Flight / in process",
        found["engine"] / found["node"],
        least=0.7,
        seconds=found,
        note=note,
    )


def _by_engine(place: Path, queries: list[wr.Query]) -> float:
    begin = time.perf_counter()
    engine = wr.Engine(queries, time="ts", lateness="0 seconds")
    for path in sorted(place.iterdir()):
        for at in range(0, pl.scan_parquet(path).select(pl.len()).collect().item(), 1_000_000):
            engine.push(pl.scan_parquet(path).slice(at, 1_000_000).collect())
    engine.finish()
    return time.perf_counter() - begin


def _by_node(place: Path, queries: list[wr.Query]) -> float:
    """Until everything is acknowledged; the node is a thread of this process, its root a process of its own."""
    with tree() as one:
        parent = root_of(one, queries, children=["local"])
        node = _node(one.folder, "local", "local", parent=parent, source={"files": str(place), "until_end": True})
        begin = time.perf_counter()
        node.run()
        return time.perf_counter() - begin


def _node(folder: Path, role: str, name: str, **described: Any) -> NodeProcess:
    own = folder / f"{name}-here"
    own.mkdir()
    (own / "node.yaml").write_text(yaml.safe_dump({"name": name, **described}))
    return NodeProcess(configs.read(own / "node.yaml", role), lambda text: None)  # type: ignore[arg-type]


class Tapped:
    """A source that gives an event whenever it is told to, and an outlet that notes when results come."""

    replayable = True
    columns: Mapping[str, pl.DataType] = {}

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.came, self.told = threading.Semaphore(0), threading.Semaphore(0)
        self.sent: list[float] = []
        self.seen: list[float] = []

    def resume(self, mark: Mapping[str, Any]) -> None: ...
    def confirm(self, mark: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...

    def read(self, needed: Mapping[str, pl.DataType], wait: float) -> Read | None:
        if not self.came.acquire(timeout=wait):
            return None
        number = len(self.sent)
        frame = pl.DataFrame({"ts": [number * 1_000_000], "key": [1], "value": [1.0]})
        frame = frame.cast({"ts": pl.Datetime("us", "UTC"), "key": pl.Int32})
        self.sent.append(time.perf_counter())
        return Read(frame, {"at": number + 1}, False)

    def put(self, batch: Batch) -> None:
        self.seen.append(time.perf_counter())
        self.told.release()


def latency(scale: float, runs: int) -> Iterator[Line]:
    """From the event that moves the watermark to the result at the root."""
    for levels, most in ((2, 20.0), (3, None)):
        took = _latencies(levels, max(20, int(200 * scale)))
        median = statistics.median(took)
        note = f"ms; 95 of 100 within {sorted(took)[int(0.95 * len(took))]:.1f} ms"
        if most is not None:
            yield Line(f"latency from watermark to result, {levels} levels", median, most=most, note=note)
        else:
            print(f"      for information: latency with {levels} levels {median:.1f} {note}")


def _latencies(levels: int, count: int) -> list[float]:
    tap = Tapped()
    with tempfile.TemporaryDirectory(prefix="windrow-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        described = {"queries": _as_yaml(mean()), "time": "ts", "columns": COLUMNS, "listen": "127.0.0.1:0"}
        below = "inner" if levels == 3 else "local"
        nodes = [_node(folder, "root", "root", spool="s", children=[below], **described)]
        nodes[0]._new_sink = lambda: tap  # type: ignore[method-assign]
        _run(nodes[0], stack)
        if levels == 3:
            nodes.append(
                _node(
                    folder,
                    "intermediate",
                    "inner",
                    spool="s",
                    listen="127.0.0.1:0",
                    parent=str(nodes[0].address),
                    children=["local"],
                )
            )
            _run(nodes[1], stack)
        last = _node(folder, "local", "local", parent=str(nodes[-1].address), source={"files": "unused"})
        import windrow.nodes.process.process as process

        before = process.source_of
        process.source_of = lambda described, node: tap  # type: ignore[assignment]
        try:
            _run(last, stack)
        finally:
            process.source_of = before
        tap.came.release()
        for _ in range(count):
            tap.came.release()
            assert tap.told.acquire(timeout=30)
            time.sleep(0.005)
        return [1000 * (seen - sent) for seen, sent in zip(tap.seen, tap.sent[1:], strict=False)][5:]


def _run(node: NodeProcess, stack: ExitStack) -> None:
    thread = threading.Thread(target=node.run, daemon=True)
    thread.start()
    begin = time.monotonic()
    while not node.is_running:
        if time.monotonic() - begin > 30 or not thread.is_alive():
            raise RuntimeError("the node has not started")
        time.sleep(0.01)
    stack.callback(thread.join, 10)
    stack.callback(node.stop)


def memory(scale: float, runs: int) -> Iterator[Line]:
    """Of a local node whose parent is down for a minute, while events keep coming."""
    down = max(5.0, 60 * scale)
    query = [wr.Query("q", wr.tumbling("1 second"), FIVE, by="key")]
    with tree() as one:
        parent = root_of(one, query, children=["local"])
        source = {"kind": "generator", "rate": 100_000, "keys": 1000}
        one.start("local", "local", parent=parent, source=source)
        one.wait("local", lambda status: status.get("events", {}).get("read", 0) > 20_000_000)
        pid = one.processes["local"].pid
        before = _resident(pid)
        one.processes["root"].send_signal(signal.SIGKILL)
        one.processes["root"].wait()
        peak, begin = before, time.monotonic()
        while time.monotonic() - begin < down:
            peak = max(peak, _resident(pid))
            time.sleep(0.2)
        read = one.status("local")["events"]["read"]
        (one.folder / "root" / "node.yaml").write_text(
            (one.folder / "root" / "node.yaml").read_text().replace("127.0.0.1:0", parent.partition("://")[2])
        )
        command = [sys.executable, "-m", "windrow", "node", "root", "--config", str(one.folder / "root" / "node.yaml")]
        one.processes["root"] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        one.wait("local", lambda status: status["events"]["acknowledged"] > read)
    note = f"{before >> 20} MiB before, {peak >> 20} MiB at most in {down:.0f} s; it went on when the parent was back"
    yield Line("memory of a local node, parent down / before", peak / before, most=1.5, note=note)


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


WORKLOADS: dict[str, Work] = {
    work.__name__: work for work in (little, root, local, latency, memory, *COUNTING, quantiles)
}

if __name__ == "__main__":
    sys.exit(main(WORKLOADS, "nodes", __doc__))
