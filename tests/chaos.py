"""Storms: random trees of real processes, random queries, and whatever breaks on an operator's bad day.

    python tests/chaos.py --minutes 60 --kills 500      storm after storm, until the time is up and so many were killed
    python tests/chaos.py --storms 1 --seed 7           one of them again

A storm's seed says which tree it is, what is asked of it, which events come in, and what breaks when; how the
processes take turns it cannot say. In the end all windows must be there, once, as DuckDB has them over the events that
were written (`chaos_queries`, `chaos_sources`), and every process must have ended by itself with code 0. The first
storm of which that does not hold ends the run with code 1: it prints the seed, and leaves the storm's directory with
the logs of all nodes and its own, `storm.log`.

Faults, which `--faults` chooses:

    kill      SIGKILL of any process, which is started again after a while
    stop      SIGSTOP for a while
    cut       the connection of a node to its parent, or to its broker, ends
    delay     it is slow for a while
    queries   queries come and go by the operator's command
    half      a connection is half-open for good: somebody has to notice, and to connect anew
    damage    the spool of a node is damaged while the node is down. What goes on from it must be right; what refuses it
              must name it, and gets the right file back
    move      a local node gets another parent, which must refuse it by name, and goes back

Some trees have a node that reads from a broker, where Mosquitto is installed; every so-manieth feeds Spark (`--spark`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import yaml

import chaos_queries
from chaos_queries import Asked, Verdict
from chaos_sources import BEGIN, Growing, Published, Rotating, Source, Whole, events_of, loaded
from mosquitto import Mosquitto, binary
from proxy import WAYS, Proxy
from windrow.nodes.process.tree import Member, read
from windrow.nodes.transport.client import ask
from windrow.nodes.transport.security import Address

# How many seconds lie between two faults of a kind, on average.
FAULTS = {"kill": 3.0, "stop": 8.0, "cut": 6.0, "delay": 10.0, "queries": 5.0}
FAULTS |= {"half": 8.0, "damage": 4.0, "move": 6.0}
RATE = 40  # events in a second at a node
END = 2**63 - 1  # of all times
LOOK = 0.03  # seconds between two looks at the processes
NOTICED = 30.0  # seconds in which a half-open connection has to be noticed
ENDING = 120.0  # seconds in which all processes have to end, once their sources have
STREAMED = 300.0  # and in which Spark has to
SETTLED = 4.0  # seconds after which a node that is connected to all its neighbours will not be refused any more
SMALL = 500  # bytes of a spool in which there is nothing to be damaged
FAILED = re.compile(r"Traceback|panicked|Error:")
Fault = Iterator[float]  # what breaks, and then how many seconds it waits until it goes on


class Failure(Exception):
    """A storm that the tree did not bear, and what was seen of it."""


class Node:
    """A node's process, and its way to its parent."""

    def __init__(self, member: Member, parents: Mapping[str, Node], storm_log: Callable[[str], None]) -> None:
        self.member, self.name, self.role = member, member.name, str(member.role)
        self.parent = parents.get(member.parent or "")
        self._log = storm_log
        self.proxy = Proxy(lambda: self.parent.port if self.parent else None) if member.parent else None
        self.process: subprocess.Popen[bytes] | None = None
        self.is_busy = False  # some fault has to do with it
        self.is_stopped = False
        self._said = 0  # bytes of its log, of earlier lives
        self.older: Path | None = None  # its spool at an earlier time
        self.spool = member.folder / "spool"

    @property
    def status(self) -> dict[str, Any]:
        """What its process has written; nothing of an earlier life."""
        status = self.member.status
        return status if self.process is not None and status.get("pid") == self.process.pid else {}

    @property
    def port(self) -> int | None:
        address = self.status.get("address")
        return int(address.rpartition(":")[2]) if address and self.is_up else None

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def is_let_in(self) -> bool:
        """Whether it runs, and its parent knows it."""
        status = self.status if self.is_up else {}
        return bool(status) and (self.proxy is None or bool(status.get("link", {}).get("connected")))

    @property
    def words(self) -> str:
        """What its last life has said."""
        return self._log_path.read_bytes()[self._said :].decode(errors="replace") if self._log_path.exists() else ""

    @property
    def _log_path(self) -> Path:
        return self.member.folder / "log"

    def start(self) -> None:
        self.member.write(f"grpc://127.0.0.1:{self.proxy.port}" if self.proxy else None)
        self._said = self._log_path.stat().st_size if self._log_path.exists() else 0
        command = [sys.executable, "-m", "windrow", "node", self.role, "--config", str(self.member.config)]
        more = {"POLARS_MAX_THREADS": "1", "WINDROW_TREE_UP": str(os.getpid())}  # it ends when this process does
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, env=os.environ | more, start_new_session=True)
        self._log(f"start {self.name}")

    def kill(self) -> bool:
        """End it at once, and keep its spool as it is then; whether it was running."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        was_running = self.process.wait() == -signal.SIGKILL
        self.is_stopped = False
        self._log(f"kill {self.name}")
        return was_running

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        self.is_stopped = True

    def go_on(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.is_stopped = False

    def end(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self.proxy is not None:
            self.proxy.close()


class Stream:
    """A Spark stream that answers the queries of a tree, in a group of processes: Python, the JVM, its workers."""

    def __init__(self, root: Path, folder: Path, storm_log: Callable[[str], None]) -> None:
        folder.mkdir()
        self._command = [sys.executable, str(Path(__file__).with_name("chaos_stream.py")), str(root), str(folder)]
        self._log_path, self._storm_log = folder / "log", storm_log
        self.results = folder / "results"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}  # for what forks Spark's workers
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self._storm_log("start spark")

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self._storm_log("kill spark")

    @property
    def words(self) -> str:
        return self._log_path.read_text()[-1500:]


# --- a tree, and what is asked of it --------------------------------------------------------------------------------


class Shape:
    """What a seed makes of a tree: its nodes, their sources, its queries."""

    def __init__(self, dice: random.Random, for_spark: bool) -> None:
        self.for_spark = for_spark
        count, inner = dice.randint(2, 4), dice.randint(0, 2)
        self.parents = dict.fromkeys(("plant", "hall")[:inner], "root")
        if inner == 2 and dice.random() < 0.4:
            self.parents["hall"] = "plant"
        places = [*self.parents, "root"]
        self.locals = ("north", "south", "west", "east")[:count]
        first = list(self.parents)[::-1]  # every intermediate node gets a child
        for number, name in enumerate(self.locals):
            self.parents[name] = first[number] if number < len(first) else dice.choice(places)
        self.kinds = {name: dice.choice([Growing, Growing, Rotating, Whole]) for name in self.locals}
        self.queries = chaos_queries.drawn(dice, of_nodes=not for_spark)
        self.push_down = not for_spark and dice.random() < 0.7
        # Of a node that reads from a broker nobody knows when it ends, so it leaves: others, at whose end all is final,
        # must be there, and the windows that it finds itself would stay open.
        self.published = self.locals[-1] if count > len(first) + 1 and dice.random() < 0.4 and binary() else None
        if self.published:
            self.parents[self.published], self.push_down = "root", False

    def tree(self, folder: Path, sources: Mapping[str, Source]) -> list[Member]:
        schemes = {query.name: query.scheme for query in self.queries if query.scheme}
        nodes = {name: {"parent": parent} for name, parent in self.parents.items()}
        for name, source in sources.items():
            nodes[name] |= {"source": source.described}
        described = {
            "queries": [query.described for query in self.queries],
            "time": "ts",
            "columns": "ts TIMESTAMP, key BIGINT, value BIGINT",
            "lateness": "400 ms",
            "nodes": nodes,
            "feeds": "slices" if self.for_spark else "results",
            **({} if self.for_spark else {"counting": schemes, "push_down": self.push_down}),
        }
        (folder / "tree.yaml").write_text(yaml.safe_dump(described, sort_keys=False))
        return list(read(folder / "tree.yaml"))


# --- a storm --------------------------------------------------------------------------------------------------------


class Storm:
    """One tree, from its start to the comparison of its windows; `done` counts what was done to it."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        seconds: float = 30.0,
        faults: Sequence[str] = tuple(FAULTS),
        for_spark: bool = False,
    ) -> None:
        self.folder, self.seed, self.seconds = folder, seed, seconds
        self.done = Counter[str]()
        self.refusals = Counter[str]()
        self.dice = random.Random(f"{seed}: {for_spark}")
        self.shape = Shape(self.dice, for_spark)
        self.faults = [fault for fault in faults if not (for_spark and fault == "queries")]  # which Spark refuses
        self._began = self._now = time.monotonic()
        self._agenda: list[tuple[float, Fault]] = []
        self._ended: set[str] = set()
        self._is_ending = False
        self._suspects: set[str] = set()  # nodes with a damaged spool or another parent: somebody may refuse it
        self._refused: dict[str, str] = {}  # nodes that have ended with a sentence, and which
        self.later: dict[str, Asked] = {}  # queries that came while it ran
        self.since: dict[str, int] = {}  # from which event time on those are answered
        self.removed: set[str] = set()
        self._operator = ThreadPoolExecutor(1)
        self._stack = contextlib.ExitStack()
        self.nodes: dict[str, Node] = {}
        self.stream: Stream | None = None
        self.sources: dict[str, Source] = {}

    def log(self, text: str) -> None:
        with (self.folder / "storm.log").open("a") as file:
            file.write(f"{time.monotonic() - self._began:8.3f} {text}\n")

    def run(self) -> Verdict:
        """Let it storm, and compare; raises `Failure`."""
        try:
            self._prepare()
            self._let_it_storm()
            self._finish()
            return self.verdict()
        except Failure as failure:
            self.log(f"failed: {failure}")
            raise
        finally:
            for node in self.nodes.values():
                node.end()
            if self.stream is not None:
                self.stream.kill()
            self._operator.shutdown(wait=True)
            self._stack.close()

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log(f"seed {self.seed}, faults {' '.join(self.faults)}, {self.shape.parents}")
        events = self.folder / "events"
        events.mkdir()
        count = int(RATE * self.seconds)
        self._events = {name: events_of(self.dice, count, int(self.seconds * 1e6)) for name in self.shape.locals}
        self._given = dict.fromkeys(self.shape.locals, 0)
        for name in self.shape.locals:
            if name == self.shape.published:
                self.sources[name] = self._published(events / name, name)
            else:
                self.sources[name] = self.shape.kinds[name](events / name, name, self.dice)
        for member in self.shape.tree(self.folder, self.sources):
            described = dict(member.described)
            if "move" in self.faults and member.role != "local":
                described["joins"] = True
            if member.name == self.shape.published:
                described["at_stop"] = "leave"
            self.nodes[member.name] = Node(replace(member, described=described), self.nodes, self.log)
        for node in self.nodes.values():
            node.member.folder.mkdir(parents=True, exist_ok=True)
            node.start()
        if self.shape.for_spark:
            self.stream = Stream(self.nodes["root"].member.folder, self.folder / "spark", self.log)
            self.stream.start()
            if "kill" in self.faults:
                self._begin(self._kill_stream(self.stream))

    def _published(self, folder: Path, name: str) -> Published:
        (self.folder / "broker").mkdir()
        broker = self._stack.enter_context(Mosquitto(self.folder / "broker"))
        self._broker = self._stack.enter_context(Proxy(lambda: broker.port))
        source = Published(folder, name, broker, self._broker.port)
        self._stack.callback(source.finish)
        return source

    # --- time goes on -------------------------------------------------------------------------------------------------

    def _let_it_storm(self) -> None:
        if self.dice.random() < 0.7:  # otherwise it breaks while it starts
            self._wait("the start of all nodes", lambda: all(node.is_let_in for node in self.nodes.values()))
        kinds = {kind: getattr(self, f"_{kind}") for kind in self.faults}
        for kind, fault in kinds.items():
            self._begin(self._again_and_again(kind, fault))
        until = self._now + self.seconds
        while self._now < until:
            self._write((self.seconds - (until - self._now)) / self.seconds)
            self._step()
        self._is_ending = True
        self._write(1.0)
        end = self._now + ENDING
        while self._agenda:
            self._step()
            if self._now > end:
                raise Failure(f"after {ENDING:.0f} seconds there are faults that are not over")

    def _again_and_again(self, kind: str, fault: Callable[[random.Random], Fault]) -> Fault:
        dice = random.Random(f"{self.seed}: {kind}")
        while True:
            due = self._now + min(dice.expovariate(1 / FAULTS[kind]), 2 * FAULTS[kind])
            while self._now < due:
                yield min(0.2, due - self._now)
                if self._is_ending:
                    return
            self._begin(fault(dice))

    def _begin(self, fault: Fault) -> None:
        self._agenda.append((self._now, fault))

    def _step(self) -> None:
        """Do what is due, and look at all processes."""
        self._now = time.monotonic()
        due = [entry for entry in self._agenda if entry[0] <= self._now]
        for entry in due:
            self._agenda.remove(entry)
            wait = next(entry[1], None)
            if wait is not None:
                self._agenda.append((self._now + wait, entry[1]))
        self._look()
        time.sleep(LOOK)

    def _write(self, share: float) -> None:
        for name, rows in self._events.items():
            end = int(share * len(rows))
            if end > self._given[name]:
                self.sources[name].write(rows[self._given[name] : end])
                self._given[name] = end

    @property
    def _newest(self) -> int:
        """The greatest time of an event that was written."""
        return max(
            (row["ts"] for name, rows in self._events.items() for row in rows[: self._given[name]]), default=BEGIN
        )

    def _look(self) -> None:
        """What has become of the processes, and of queries that came later."""
        for node in self.nodes.values():
            if node.process is None or node.is_busy or node.name in self._ended or node.name in self._refused:
                continue
            code = node.process.poll()
            if code == 0 and self._is_ending:
                self._ended.add(node.name)
                self.log(f"{node.name} has ended")
            elif code is not None:
                self._take_refusal(node, code)
        for name, since in self.nodes["root"].status.get("since", {}).items():
            if since is not None and self.since.get(name) != since:
                self.log(f"{name} is answered from {since} on")
                self.since[name] = since
                is_over = self._is_ending and since == END  # the sources have ended before all cut by it
                if since > self._newest + 1_000_000 and not is_over:
                    raise Failure(f"{name} is to be answered from {since} on, and the newest event is {self._newest}")

    def _take_refusal(self, node: Node, code: int) -> None:
        """A process that has ended: by name, after what was done to it, or for no good reason."""
        words = node.words.strip()
        sentence = words.splitlines()[-1] if words else ""
        self.log(f"{node.name} has ended with {code}: {sentence}")
        if not self._suspects or code in (0, -signal.SIGABRT, -signal.SIGSEGV) or FAILED.search(words) or not sentence:
            raise Failure(f"{node.name} has ended with {code}, and nobody wanted it to: {words[-1500:] or 'no word'}")
        if not any(name in sentence for name in self._suspects) and "spool" not in sentence:
            raise Failure(f"{node.name} has ended without naming what is wrong with {self._suspects}: {sentence}")
        self._refused[node.name] = sentence
        self.done["refused by name"] += 1
        general = re.sub(r"'/[^']*/(\w+)/(\w+)'", r"'…/\2'", sentence.removeprefix(f"windrow {node.name}: "))
        general = re.sub(r"grpc://[\d.:]+", "grpc://…", re.sub(rf"\b({'|'.join(self.nodes)})\b", "NODE", general))
        self.refusals[re.sub(r"\d+", "N", general)] += 1

    # --- faults -------------------------------------------------------------------------------------------------------

    def _free(self, dice: random.Random, fits: Callable[[Node], bool] = lambda node: True) -> Node | None:
        """A node with which nothing else is the matter."""
        nodes = (node for node in self.nodes.values() if not node.is_busy and node.is_up)
        free = [node for node in nodes if node.name not in self._refused and fits(node)]
        return dice.choice(free) if free else None

    def _soon(self, dice: random.Random, fits: Callable[[Node], bool]) -> Generator[float, None, Node | None]:
        """The same, but wait for one."""
        while not self._is_ending:
            node = self._free(dice, fits)
            if node is not None and not self._suspects:
                return node
            yield 0.2
        return None

    @contextlib.contextmanager
    def _with(self, node: Node) -> Iterator[None]:
        node.is_busy = True
        try:
            yield
        finally:
            node.is_busy = False

    def _kill_now(self, node: Node) -> None:
        """Kill it; should it have ended just before, that has to be a refusal."""
        assert node.process is not None
        if node.kill():
            self.done[f"kill {node.role}"] += 1
        else:
            self._take_refusal(node, node.process.returncode)

    def _kill(self, dice: random.Random) -> Fault:
        node = self._free(dice)
        if node is None:
            return
        with self._with(node):
            for _ in range(dice.choice([1, 1, 1, 2])):  # twice: while it starts
                self._kill_now(node)
                if node.name in self._refused:
                    return
                yield dice.uniform(0, 1.5)
                node.start()
                yield dice.uniform(0.3, 1.5)

    def _kill_stream(self, stream: Stream) -> Fault:
        """Once in a storm: a JVM takes long to start."""
        yield self.dice.uniform(0.2, 0.9) * self.seconds
        stream.kill()
        self.done["kill spark"] += 1
        yield 0.5
        stream.start()

    def _stop(self, dice: random.Random) -> Fault:
        node = self._free(dice)
        if node is None:
            return
        with self._with(node):
            seconds = dice.choice([dice.uniform(0.2, 2), dice.uniform(1, 7), dice.uniform(9, 14)])
            seconds = min(seconds, 1 + self.seconds / 6)
            self.log(f"stop {node.name} for {seconds:.1f} s")
            self.done["stop"] += 1
            node.pause()
            yield seconds
            node.go_on()

    def _cut(self, dice: random.Random) -> Fault:
        proxy, name = self._way(dice)
        self.log(f"cut {name}")
        self.done["cut"] += 1
        proxy.cut()
        yield 0

    def _delay(self, dice: random.Random) -> Fault:
        proxy, name = self._way(dice)
        seconds = dice.uniform(0.05, 0.6)
        self.log(f"delay {name} by {seconds:.2f} s")
        self.done["delay"] += 1
        proxy.delay = seconds
        yield dice.uniform(1, 5)
        proxy.delay = 0.0

    def _way(self, dice: random.Random) -> tuple[Proxy, str]:
        """Some connection: of a node to its parent, or to its broker."""
        ways = [(node.proxy, f"{node.name} and its parent") for node in self.nodes.values() if node.proxy]
        if self.shape.published:
            ways.append((self._broker, f"{self.shape.published} and its broker"))
        return dice.choice(ways)

    def _half(self, dice: random.Random) -> Fault:
        node = self._free(dice)
        if node is None or node.proxy is None:
            return
        opened, process = node.proxy.opened, node.process
        ways, swallow = dice.choice([WAYS, WAYS[:1], WAYS[1:]]), dice.random() < 0.5
        if not node.proxy.half_open(ways, swallow):
            return
        self.log(f"half-open {node.name} {' and '.join(ways)}{', swallowed' if swallow else ''}")
        self.done["half-open"] += 1
        left = NOTICED
        while node.proxy.opened == opened and node.process is process and node.is_up:
            yield 0.5
            there = [one for one in (node, node.parent) if one and one.is_up and not one.is_stopped and one.status]
            left -= 0.5 if len(there) == 2 else 0  # nobody can notice anything while a side is away
            if left < 0:
                raise Failure(f"{node.name} has a half-open connection, and has not noticed for {NOTICED:.0f} seconds")

    # --- queries ------------------------------------------------------------------------------------------------------

    def _queries(self, dice: random.Random) -> Fault:
        """One more query, or one less: of those of the beginning, or of those that are answered by now."""
        known = {query.name for query in self.shape.queries} | set(self.since)
        names = sorted(known - self.removed)
        if dice.random() < 0.6 or len(names) < 3:
            make = dice.choice(chaos_queries.LATER)
            query = make(dice, f"later{len(self.later)}")
            self.later[query.name] = query
            self.done["query added"] += 1
            self.log(f"add {query}")
            text = yaml.safe_dump({"queries": [query.described]})
            yield from self._ask("add", query.name, {"text": text, "format": "yaml", "name": "later"}, "already")
        else:
            name = dice.choice(names)
            self.removed.add(name)
            self.done["query removed"] += 1
            yield from self._ask("remove", name, {"text": name}, "no query called")

    def _ask(self, kind: str, name: str, given: Mapping[str, str], done: str) -> Fault:
        """Ask the root until it has done it; it may be killed just then, having done it or not."""
        while True:
            port = self.nodes["root"].port
            if port is None:
                yield 0.2
                continue
            answer: Future[Any] = self._operator.submit(ask, Address("127.0.0.1", port), kind, given)
            while not answer.done():
                yield 0.05
            error = answer.exception()
            if error is None or done in str(error):
                self.log(f"{kind} {name}")
                return
            self.log(f"{kind} {name}: {error}")
            if isinstance(error, ValueError) and self.nodes["root"].is_up and "query" in str(error):
                raise Failure(f"the root refuses to {kind} {name}: {error}")
            yield 0.2

    # --- what may be refused ------------------------------------------------------------------------------------------

    def _damage(self, dice: random.Random) -> Fault:
        node = yield from self._soon(dice, lambda node: node.spool.exists() and node.spool.stat().st_size > SMALL)
        if node is None:
            return
        right, older = node.spool.with_name("right"), node.spool.with_name("older")
        with self._with(node):
            self._kill_now(node)
            shutil.copyfile(node.spool, right)
            how = dice.choice(list(DAMAGES) + (["older"] if older.exists() else []))
            self.log(f"damage {node.name}: {how}")
            self.done[f"damage {how}"] += 1
            if how == "older":
                shutil.copyfile(older, node.spool)
            else:
                DAMAGES[how](node.spool, dice)
            self._suspects.add(node.name)
            yield dice.uniform(0, 1)
            node.start()
        yield from self._until_refused_or_let_in(node)
        if self._refused:
            while node.is_busy:  # somebody kills it, and starts it again
                yield 0.1
            with self._with(node):
                if node.name not in self._refused:
                    self._kill_now(node)
                shutil.copyfile(right, node.spool)
                self.log(f"the right spool of {node.name} is back")
                yield 0.1
                self._start_again(node)
        shutil.copyfile(right, older)
        self._suspects.clear()

    def _move(self, dice: random.Random) -> Fault:
        node = yield from self._soon(dice, lambda node: node.role == "local" and node.status.get("plan"))
        parents = [one for one in self.nodes.values() if one.role != "local" and node and one is not node.parent]
        if node is None or not parents or node.name == self.shape.published:
            return
        before, node.parent = node.parent, dice.choice(parents)
        assert node.parent is not None
        self.log(f"move {node.name} to {node.parent.name}")
        self.done["move"] += 1
        with self._with(node):
            self._kill_now(node)
            self._suspects.add(node.name)
            yield dice.uniform(0, 1)
            node.start()
        yield from self._until_refused_or_let_in(node)
        with self._with(node):
            if node.name not in self._refused:  # the root was away, and could not be asked
                self._kill_now(node)
            node.parent = before
            self.log(f"move {node.name} back")
            yield 0.1
            self._start_again(node)
        self._suspects.clear()

    def _until_refused_or_let_in(self, node: Node) -> Fault:
        """Wait for what the node, its parent and its children make of it; those may try to connect for long."""
        below = [one.name for one in self.nodes.values() if one.parent is node]
        left, end = SETTLED, self._now + NOTICED
        while not self._refused and left > 0 and self._now < end:
            yield 0.2
            children = node.status.get("children", {})
            if node.is_let_in and all(children.get(name, {}).get("connected") for name in below):
                left -= 0.2

    def _start_again(self, node: Node) -> None:
        """Start those that have refused, and the node because of which."""
        again, self._refused = {node.name, *self._refused}, {}
        for name in self.nodes:
            if name in again:
                self.nodes[name].start()

    # --- the end ------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Let the sources come to their end, and all processes with them."""
        locals_ = [self.nodes[name] for name in self.shape.locals]
        self._wait("all events of the broker", self._has_read_what_was_published)
        for node in locals_:
            self._until_stopped(node)
            if node.name != self.shape.published:
                source = self.sources[node.name].finish()
                node.member = replace(node.member, described={**node.member.described, "source": source})
                node.start()
        if "kill" in self.faults and self.dice.random() < 0.5:
            self._begin(self._kill_root())
        self._wait("the end of all processes", lambda: len(self._ended) == len(self.nodes) and not self._agenda)
        if self.stream is not None:
            stream = self.stream
            self._wait("the end of the stream", lambda: not stream.is_up, STREAMED)
            if stream.process is None or stream.process.poll() != 0:
                raise Failure(f"the stream has failed: {stream.words}")

    def _kill_root(self) -> Fault:
        yield self.dice.uniform(0, 3)
        root = self.nodes["root"]
        if root.is_up and not root.status.get("done"):
            with self._with(root):
                if root.kill():
                    self.done["kill root"] += 1
                    yield 0.1
                    root.start()

    def _has_read_what_was_published(self) -> bool:
        name = self.shape.published
        if name is None:
            return True
        source = self.sources[name]
        assert isinstance(source, Published)
        return self.nodes[name].status.get("events", {}).get("acknowledged") == source.count

    def _until_stopped(self, node: Node) -> None:
        """Have it end in order, as an operator does."""
        assert node.process is not None
        self._wait(f"the start of {node.name}", lambda: node.status.get("state") == "running")
        self.log(f"end {node.name}")
        node.process.terminate()
        with self._with(node):
            self._wait(f"the end of {node.name}", lambda: not node.is_up)
        if node.process.poll() != 0:
            raise Failure(f"{node.name} was to end in order, and has with {node.process.poll()}: {node.words[-1500:]}")

    def _wait(self, what: str, holds: Callable[[], bool], seconds: float = ENDING) -> None:
        end = time.monotonic() + seconds
        while not holds():
            self._step()
            if self._now > end:
                left = {name: node.status for name, node in self.nodes.items() if node.is_up}
                raise Failure(f"{what} has not come within {seconds:.0f} seconds; there are {json.dumps(left)[:3000]}")

    def verdict(self) -> Verdict:
        """Compare what the root has written with what DuckDB says."""
        children = self.nodes["root"].member.status["children"]
        late = {name: child["late"] for name, child in children.items() if child["late"]}
        if late:  # no event is; whether a window lacks one is seen below
            self.log(f"counted as late: {late}")
            self.done["counted as late"] = sum(late.values())
        results = self.results()
        queries = [*self.shape.queries, *self.later.values()]
        with loaded([self.sources[name] for name in self.shape.locals]) as database:
            return chaos_queries.merged(self._of_query(database, results, query) for query in queries)

    def _of_query(self, database: Any, results: pl.DataFrame, query: Asked) -> Verdict:
        since, was_removed = self.since.get(query.name), query.name in self.removed
        if query.name in self.later and since is None:
            raise Failure(f"{query.name} was added, and is not answered from any time on")
        want = chaos_queries.expected(database, query, since)
        return chaos_queries.judge(query, want, chaos_queries.found_in(results, query), was_removed)

    def results(self) -> pl.DataFrame:
        folder = self.stream.results if self.stream is not None else self.folder / "results"
        files = sorted(folder.glob("*.parquet"))
        if not files:
            raise Failure("there are no results")
        return pl.concat([pl.read_parquet(file) for file in files], how="diagonal_relaxed")


# --- how a spool is damaged -----------------------------------------------------------------------------------------


def _flip(spool: Path, begin: float, end: float, dice: random.Random) -> None:
    """One bit of a part of the file is another one."""
    data = bytearray(spool.read_bytes())
    at = dice.randrange(int(begin * len(data)), max(int(begin * len(data)) + 1, int(end * len(data))))
    data[at] ^= 1 << dice.randrange(8)
    spool.write_bytes(data)


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "start": lambda spool, dice: _flip(spool, 0, min(1, 40 / spool.stat().st_size), dice),
    "middle": lambda spool, dice: _flip(spool, 0.2, 0.8, dice),
    "last commit": lambda spool, dice: _flip(spool, max(0, 1 - 200 / spool.stat().st_size), 1, dice),
    "half": lambda spool, dice: os.truncate(spool, spool.stat().st_size // 2),
    "emptied": lambda spool, dice: os.truncate(spool, 0),
    "deleted": lambda spool, dice: spool.unlink(),
}


# --- one after the other --------------------------------------------------------------------------------------------


class Run:
    """Storms until it is enough, and a table of what was done."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.done = Counter[str]()
        self.refusals = Counter[str]()
        self._began = time.monotonic()

    @property
    def kills(self) -> int:
        return sum(count for name, count in self.done.items() if name.startswith("kill "))

    def go_on(self) -> bool:
        options = self._options
        if options.storms:
            return self.done["storms"] < options.storms
        return time.monotonic() - self._began < 60 * options.minutes or self.kills < options.kills

    def storm(self, folder: Path, seed: int) -> bool:
        """One storm; whether the tree has borne it."""
        options = self._options
        for_spark = bool(options.spark) and seed % options.spark == 0
        storm = Storm(folder, seed, options.seconds, options.faults, for_spark)
        self.done["storms"] += 1
        problem = ""
        try:
            verdict = storm.run()
            problem = verdict.text
            self.done.update({"windows compared": verdict.windows, "lost": len(verdict.lost)})
            self.done.update({"twice": len(verdict.twice), "wrong": len(verdict.wrong)})
        except Failure as failure:
            problem = str(failure)
        except Exception:  # of the harness itself: no less a reason to stop, and to look
            problem = traceback.format_exc()
        self.done += storm.done
        self.refusals += storm.refusals
        if problem:
            again = f"--storms 1 --seed {seed} --seconds {options.seconds:g} --faults {','.join(options.faults)}"
            again += f" --spark {options.spark}" if options.spark else ""
            print(f"{problem}\n\nseed {seed}; its files are in {folder}\nagain: python tests/chaos.py {again}")
            return False
        kills = sum(count for name, count in storm.done.items() if name.startswith("kill "))
        minutes = (time.monotonic() - self._began) / 60
        print(f"{minutes:6.1f} min  seed {seed}: {verdict.windows:,} windows, {kills} kills", flush=True)
        return True

    def table(self) -> str:
        done = self.done
        rows = {"storms": done["storms"], "kills": self.kills}
        rows |= {f"  of {role} nodes": done[f"kill {role}"] for role in ("local", "intermediate", "root", "spark")}
        rows |= {"stops": done["stop"], "cuts": done["cut"], "delays": done["delay"]}
        rows |= {"queries added": done["query added"], "queries removed": done["query removed"]}
        rows |= {"half-open links": done["half-open"], "moves": done["move"]}
        rows |= {"damages": sum(count for name, count in done.items() if name.startswith("damage "))}
        rows |= {f"  {name}": done[f"damage {name}"] for name in (*DAMAGES, "older")}
        rows |= {"events that were counted as late, and are not": done["counted as late"]}
        rows |= {name: done[name] for name in ("windows compared", "lost", "twice", "wrong", "refused by name")}
        lines = [f"{name:45} {count:9,}" for name, count in rows.items()]
        return "\n".join([*lines, *(f"{count:7,} × {text}" for text, count in self.refusals.most_common())])


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--kills", type=int, default=0, help="go on until so many processes were killed")
    parser.add_argument("--storms", type=int, default=0, help="this many, and no more")
    parser.add_argument("--seed", type=int, help="of the first storm; the next one has the next")
    parser.add_argument("--seconds", type=float, default=40, help="how long faults last in a storm")
    parser.add_argument("--faults", default=",".join(FAULTS), help=f"of {','.join(FAULTS)}")
    parser.add_argument("--spark", type=int, default=0, help="every so-manieth tree feeds Spark; 0 for none")
    parser.add_argument("--folder", type=Path, help="where the trees are; a new one if it is not given")
    options = parser.parse_args(arguments)
    options.faults = [fault for fault in options.faults.split(",") if fault]
    if unknown := set(options.faults) - set(FAULTS):
        parser.error(f"there is no fault {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="windrow-chaos-"))
    run, seed = Run(options), secrets.randbelow(2**32) if options.seed is None else options.seed
    is_good = True
    while is_good and run.go_on():
        place = folder / str(seed)
        is_good = run.storm(place, seed)
        if is_good:
            shutil.rmtree(place)
        seed += 1
    print(f"\n{run.table()}")
    return 0 if is_good else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # whatever ends it, it ends what it has started
    sys.exit(main())
