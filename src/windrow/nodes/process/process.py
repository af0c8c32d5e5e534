"""A node as a process: one thread owns the machine; streams, the source and the clock bring it what it works on.

    source ──┐                                   ┌──▶ parent
    children ┼──▶ inbox ──▶ machine ──▶ messages ┼──▶ children
    parent   ┤   (bounded)                       └──▶ outlet of the root
    operator ┘

It ends by itself once all sources below have ended and everything is acknowledged, and in order when it is told to.
Its directory (`spool`) holds what must not be lost, a lock, so that no second process uses it, and `status.json`.
"""

from __future__ import annotations

import fcntl
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from windrow.io import query_files
from windrow.io.atomic import replacing
from windrow.nodes.process.config import ConfigError, NodeConfig
from windrow.nodes.process.log_store import FileSpool
from windrow.nodes.process.result_sink import Outlet, ResultFiles, ResultLines
from windrow.nodes.process.slice_sink import SliceOutlet
from windrow.nodes.process.source_thread import Feed
from windrow.nodes.protocol.messages import Ack, Batch, Leave, Message, Refused
from windrow.nodes.protocol.node import OUTLET, Machine
from windrow.nodes.protocol.parent import Out
from windrow.nodes.sources import source_of
from windrow.nodes.transport.client import Link
from windrow.nodes.transport.security import Address, Tokens, pem
from windrow.nodes.transport.server import Server

TICK = 0.1  # seconds
SHARE = 8  # messages of one stream that wait for the machine
STATUS = 0.5  # seconds between two looks at what has changed
PATIENCE = 5.0  # seconds that it waits for others when it ends
RETURN = 12.0  # seconds from its start in which a child that looks for it comes: longer than between two attempts


class NodeRefused(Exception):
    """The parent does not take this node, and why."""


class NodeProcess:
    """One node; `run` returns when it is done. `say` is told what is to be logged."""

    def __init__(self, config: NodeConfig, say: Callable[[str], None] | None = None) -> None:
        self.config = config
        self._say = say or (lambda text: print(f"windrow {config.name}: {text}", file=sys.stderr, flush=True))
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._room: dict[str, threading.Semaphore] = {}
        self._stop: str | None = None  # told to, and how
        self._ended = self._is_over = False
        self._server: Server | None = None
        self._link: Link | None = None
        self._feed: Feed | None = None
        self._outlet: Outlet | None = None
        self._reason: str | None = None  # why the parent has refused it
        self._error: Exception | None = None
        self._banned: dict[str, str] = {}  # children that are not heard any more, and why
        self._have_left: set[str] = set()  # children that have said so in this life
        self._rows = 0
        self._told: dict[str, Any] = {}
        self._state = "starting"

    # --- its life -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End in order; may be called from a signal or another thread."""
        self._inbox.put(self._begin_to_stop)

    @property
    def is_running(self) -> bool:
        return self._state == "running"

    @property
    def address(self) -> Address | None:
        """Where its children find it."""
        return self._server.address if self._server is not None else None

    def run(self) -> None:
        """Work until there is nothing more to do, or `stop` is called."""
        with ExitStack() as stack:
            try:
                self._open(stack)
                self._state = "running"
                self._write_status()
                self._work()
                self._state = "stopped" if self._stop else "ended"
            except BaseException:
                self._state = "failed"
                raise
            finally:
                self._is_over = True
                with suppress(OSError):
                    self._write_status()

    def _open(self, stack: ExitStack) -> None:
        config = self.config
        spool: FileSpool | None = None
        if config.spool is not None:
            stack.enter_context(locked(config.spool))
            spool = FileSpool(config.spool / "spool")
            stack.callback(spool.close)
        source = source_of(config.source, config.name) if config.role == "local" else None
        self._is_eager = source is not None and not source.replayable
        self._spool = spool
        self.machine = self._new_machine()
        if config.role == "root":
            self._outlet = self._outlet_of()
        if source is not None:
            self._source = source
            self._feed = Feed(source, lambda: self._inbox.put(_nothing), self._fail)
            stack.callback(self._feed.close)
        if config.listen is not None:
            tokens = Tokens(config.tokens) if config.tokens else None
            self._server = Server(
                config.listen, self._from_child, self._asked, self._note, config.tls, tokens, config.limits
            )
            stack.callback(self._server.close)
        self._do(self.machine.start(_now()))
        if config.parent is not None:
            ca = pem(config.tls.ca, "ca")
            self._link = Link(
                config.name, config.parent, self._from_parent, self._opened, self._refused, self._note, ca, config.token
            )
            self._link.start()
            stack.callback(self._link.close)

    def _new_machine(self) -> Machine:
        """A machine in its next life, as the spool has it."""
        config = self.config
        return Machine(
            config.name,
            str(config.parent) if config.parent else None,
            config.children,
            time.time_ns() // 1_000_000,
            self._spool,
            config.query_set,
            joins=config.joins,
            lateness=config.lateness,
            eager=self._is_eager,
            idle=config.idle,
            timeout=config.timeout,
            ahead=config.max_ahead,
            feeds=config.feeds,
        )

    def _outlet_of(self) -> Outlet:
        if self.config.feeds == "slices":
            assert self.config.spool is not None
            assert self._spool is not None
            assert self.machine.asked is not None
            outlet = SliceOutlet(self.config.spool)
            outlet.tie(self._spool)
            outlet.ask(self.machine.asked)
            return outlet
        if self.config.results == "-":
            return ResultLines()
        return ResultFiles(self.config.results, self.machine.status()["batches"]["made"])

    def _work(self) -> None:
        tick = status = time.monotonic()
        self._return = tick + RETURN
        until: float | None = None  # when it goes, done or not
        while True:
            now = time.monotonic()
            if now >= tick:
                tick = now + TICK
                self._do(self.machine.tick(_now()))
            if now >= status:
                status = now + STATUS
                self._write_status()
            self._follow_source()
            if self._error is not None:
                raise self._error
            if self._reason or self.machine.refused:
                raise NodeRefused(
                    f"{self.config.parent} refuses {self.config.name!r}: {self._reason or self.machine.refused}"
                )
            if self._may_go() or (until is not None and now >= until):
                return
            if until is None and (self._ended or self._stop):
                until = max(now + PATIENCE, self._return if self._stop is None else 0.0)
            with suppress(queue.Empty):
                self._inbox.get(timeout=max(0.0, min(tick, status) - time.monotonic()))()

    def _may_go(self) -> bool:
        """Whether nobody needs it any more."""
        machine, children = self.machine, self._server.connected if self._server else set()
        if self._stop is not None:
            return self._stop == "stay" or machine.left
        if not machine.done or self._may_return():
            return False
        if not self._ended:
            self._ended = True
            if machine.parent is not None:
                self._do(machine.leave(_now()))
        return not children and (machine.parent is None or machine.left)

    def _may_return(self) -> bool:
        """Whether a child that an earlier life let go may not know it, and look for its parent."""
        if time.monotonic() >= self._return:
            return False
        return not self._have_left.issuperset(self.machine.status().get("children", ()))

    def _begin_to_stop(self) -> None:
        if self._stop is None:
            self._stop = "stay" if self.config.role == "root" else self.config.at_stop
            if self._stop == "leave" and not self._ended:
                self._do(self.machine.leave(_now()))

    # --- what comes in: on other threads, which wait here if there is no room ---------------------------------------

    def _from_child(self, child: str, message: Message) -> None:
        self._put(child, lambda: self._receive(child, message))

    def _from_parent(self, message: Message) -> None:
        self._put("", lambda: self._receive(str(self.config.parent), message))

    def _put(self, sender: str, work: Callable[[], None]) -> None:
        room = self._room.setdefault(sender, threading.Semaphore(SHARE))
        while not room.acquire(timeout=TICK):
            if self._is_over:
                return

        def done() -> None:
            try:
                work()
            finally:
                room.release()

        self._inbox.put(done)

    def _opened(self) -> None:
        self._inbox.put(lambda: self._do(self.machine.start(_now())))

    def _refused(self, reason: str) -> None:
        self._reason = reason
        self._inbox.put(_nothing)

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._inbox.put(_nothing)

    def _note(self, text: str) -> None:
        self._inbox.put(lambda: self._say(text))

    # --- the machine's thread -----------------------------------------------------------------------------------------

    def _receive(self, sender: str, message: Message) -> None:
        if sender in self._banned and self._server is not None:
            self._server.send(sender, Refused(message.epoch, self._banned[sender]))
            return
        try:
            out = self.machine.receive(sender, message, _now())
        except (OSError, MemoryError):
            raise  # nobody's message is to blame
        except Exception as error:
            if sender == self.machine.parent:
                raise
            self._ban(sender, message, error)
            return
        if isinstance(message, Leave):
            self._have_left.add(sender)
        self._do(out)

    def _ban(self, child: str, message: Message, error: Exception) -> None:
        """A child has sent what the machine cannot bear: go on from the spool, which does not have it, without it."""
        said = (str(error).splitlines() or [""])[0]
        reason = f"its {type(message).__name__} cannot be taken: {type(error).__name__}: {said}"
        self._banned[child] = reason
        self._say(f"refused {child}: {reason}")
        if self._server is not None:
            self._server.send(child, Refused(message.epoch, reason))
        self.machine = self._new_machine()
        self._do(self.machine.start(_now()))
        gone = self.machine.receive(child, Leave(child, message.epoch), _now())  # nobody waits for it
        self._do([(to, answer) for to, answer in gone if to != child])

    def _do(self, out: Out) -> None:
        """Send what the machine says, and log what it notes."""
        for to, message in out:
            if to == OUTLET:
                assert isinstance(message, Batch)
                self._tell(message)
            elif to == self.machine.parent:
                if self._link is not None:
                    self._link.send(message)
            elif self._server is not None:
                self._server.send(to, message)
        for note in self.machine.notes:
            self._say(note)
        self.machine.notes.clear()

    def _tell(self, batch: Batch) -> None:
        assert self._outlet is not None
        self._outlet.put(batch)
        if "results" in batch.tables:
            self._rows += batch.tables["results"].height
        self._do(self.machine.receive(OUTLET, Ack(self.machine.epoch, batch.number), _now()))

    def _follow_source(self) -> None:
        """Give the machine what was read, while it wants events."""
        if self._feed is None:
            return
        machine, asked = self.machine, self.machine.asked
        while self._source.notes:
            self._say(self._source.notes.pop(0))
        while True:
            wanted = machine.mark if self._stop is None else None
            needed = {} if asked is None else machine_needs(machine, self._source.replayable)
            self._feed.direct(wanted, needed, machine.confirmed)
            found = self._feed.take() if wanted is not None else None
            if found is None:
                return
            self._do(machine.read(found.events, found.mark, _now(), found.last))
            if not self._inbox.empty():
                return

    # --- an operator ------------------------------------------------------------------------------------------------

    def _asked(self, kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Answer on the machine's thread; refusals are ValueErrors."""
        answer: Future[dict[str, Any]] = Future()

        def work() -> None:
            try:
                answer.set_result(self._answer(kind, given))
            except ValueError as error:
                answer.set_exception(error)

        self._inbox.put(work)
        return answer.result(timeout=30)

    def _answer(self, kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
        if kind == "status":
            return self.status()
        if self.config.role != "root":
            raise ConfigError(f"queries are changed at the root, not at {self.config.name!r}")
        text = given.get("text", "")
        if kind == "remove" and isinstance(text, str):
            self._do(self.machine.remove(text, _now()))
            if isinstance(self._outlet, SliceOutlet) and self.machine.asked is not None:
                self._outlet.ask(self.machine.asked)  # what was made before has gone first
            return {"removed": text}
        if kind == "add" and isinstance(text, str):
            read = query_files.of_yaml if given.get("format") == "yaml" else query_files.of_sql
            queries = read(text, str(given.get("name", "query"))).queries
            for query in queries:
                self._do(self.machine.add(query, _now()))
            return {"added": [query.name for query in queries]}
        raise ConfigError(f"nobody can be asked for {kind!r}; there are status, add and remove")

    # --- what it says of itself -------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        said = {**self.machine.status(), "state": self._state, "pid": os.getpid(), "done": self.machine.done}
        if self.config.role == "root":
            said["results"] = self._rows
            said["queries"] = [query.name for query in self.machine.asked.queries] if self.machine.asked else []
        if "events" in said:
            said["events"]["dropped"] = getattr(self._source, "dropped", 0)
        if self._server is not None:
            said["address"] = str(self._server.address)
            traffic = self._server.traffic()
            for name, child in said.get("children", {}).items():
                child["connected"] = name in self._server.connected
                if name in traffic:
                    child["link"] = asdict(traffic[name])
        if self._link is not None:
            said["parent"] = str(self._link.parent)
            said["link"] = {"connected": self._link.is_connected, **asdict(self._link.traffic())}
        return said

    def _write_status(self) -> None:
        if self.config.spool is None or not hasattr(self, "machine"):
            return
        said = self.status()
        if said != self._told:
            self._told = said
            with replacing(self.config.spool / "status.json", durable=False) as file:
                file.write(json.dumps(said).encode())


def machine_needs(machine: Machine, replayable: bool) -> Mapping[str, Any]:
    """The columns that a source has to give; all of them if it cannot be read again for a query that comes later."""
    assert machine.asked is not None
    return machine.asked.job.bound.binding.needed if replayable else dict(machine.asked.columns)


def locked(folder: Path) -> BinaryIO:
    """Keep any other process away from a directory, while this is open."""
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / "lock").open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ConfigError(
            f"another process uses {str(folder)!r}; end it, or give this node a spool of its own"
        ) from None
    return file


def _now() -> int:
    return time.time_ns() // 1000


def _nothing() -> None:
    """Only wakes the machine's thread."""
