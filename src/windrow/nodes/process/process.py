"""A node as a process: one thread owns the node; connections, the source and the clock bring it what it works on.

    source ──┐                                ┌──▶ parent
    children ┼──▶ inbox ──▶ node ──▶ messages ┼──▶ children
    parent   ┤   (bounded)                    └──▶ sink of the root
    operator ┘

It ends by itself once all sources below have ended and everything is acknowledged, and in order when it has to stop.
Its directory (`spool`) has the log store, the life that went on with it last (`life`), a lock, so that no second
process uses it, and `status.json`.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import polars as pl

from windrow.io import query_files
from windrow.io.atomic import replacing
from windrow.nodes.process import blame
from windrow.nodes.process.config import ConfigError, NodeConfig
from windrow.nodes.process.lock import locked
from windrow.nodes.process.log_store import LogFile
from windrow.nodes.process.result_sink import ResultFiles, ResultLines
from windrow.nodes.process.slice_sink import SliceSink
from windrow.nodes.process.source_thread import SourceThread
from windrow.nodes.protocol.journal import WHAT_TO_DO, LogStore
from windrow.nodes.protocol.messages import Ack, Batch, Leave, Message, Out, Refused
from windrow.nodes.protocol.node import SINK, Node
from windrow.nodes.protocol.subtree import Planned
from windrow.nodes.queries import QuerySet
from windrow.nodes.sources import source_of
from windrow.nodes.transport.client import Client
from windrow.nodes.transport.security import Address, Tokens, pem
from windrow.nodes.transport.server import Server
from windrow.nodes.transport.streams import TIMING, Timing

TICK = 0.1  # seconds
SHARE = 8  # messages of one connection that wait in the inbox
STATUS = 0.5  # seconds between two looks at whether the status has changed
PATIENCE = 5.0  # seconds that it waits for others when it ends
RETURN = 12.0  # seconds after its start in which a child comes that looks for it: more than between two attempts


T = TypeVar("T")
Sink = ResultFiles | ResultLines | SliceSink  # each takes a batch of a root once, by its number


class NodeRefused(Exception):
    """The node and its parent cannot go on together, and why."""


class NodeProcess:
    """One node; `run` returns when it is done. `say` gets the lines for its log."""

    def __init__(self, config: NodeConfig, say: Callable[[str], None] | None = None, timing: Timing = TIMING) -> None:
        self.config, self._timing = config, timing
        self._say = say or (lambda text: print(f"windrow {config.name}: {text}", file=sys.stderr, flush=True))
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._room: dict[str, threading.Semaphore] = {}
        self._stop: str | None = None  # how to end, once it has to: "stay" or "leave"
        self._ended = self._is_over = False
        self._server: Server | None = None
        self._client: Client | None = None
        self._source_thread: SourceThread | None = None
        self._sink: Sink | None = None
        self._error: Exception | None = None  # why it cannot go on
        self._banned: dict[str, str] = {}  # children whose messages are refused, and why
        self._have_left: set[str] = set()  # children that have left in this life of the node
        self._rows = 0  # of results
        self._written_status: dict[str, Any] = {}
        self._noted: int | None = None  # the life of the node that is noted in its directory
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
        store: LogFile | None = None
        if config.spool is not None:
            stack.enter_context(locked(config.spool))
            store = LogFile(config.spool / "spool")
            stack.callback(store.close)
            if store.torn:
                self._say(f"the last write to its spool was cut short, and is undone: {store.torn:,} bytes")
        source = source_of(config.source, config.name) if config.role == "local" else None
        self._is_eager = source is not None and not source.replayable
        self._store = store
        self.node = self._recovered()
        self._check_life()
        if config.role == "root":
            self._sink = self._new_sink()
        if source is not None:
            self._source = source
            self._source_thread = SourceThread(source, lambda: self._inbox.put(_nothing), self._fail)
            stack.callback(self._source_thread.close)
        if config.listen is not None:
            tokens = Tokens(config.tokens) if config.tokens else None
            self._server = Server(
                config.listen,
                self._from_child,
                self._operate,
                self._note,
                config.tls,
                tokens,
                config.limits,
                config.name,
                self._timing,
            )
            stack.callback(self._server.close)
        self._begin()
        if config.parent is not None:
            ca = pem(config.tls.ca, "ca")
            self._client = Client(
                config.name,
                config.parent,
                self._from_parent,
                self._opened,
                self._refused,
                self._note,
                ca,
                config.token,
                self._timing,
            )
            self._client.start()
            stack.callback(self._client.close)

    def _recovered(self) -> Node:
        """The node of an earlier life, without what it cannot work on."""
        if self._aside is not None:
            self._banned = blame.banned(self._aside)
        try:
            return self._new_node(self._store)
        except (OSError, MemoryError):
            raise
        except Exception as error:
            if not self._set_aside(lambda _: None, error):
                raise
            return self._recovered()

    def _new_node(self, store: LogStore | None) -> Node:
        """The node in its next life, as the log store has it."""
        config = self.config
        return Node(
            config.name,
            str(config.parent) if config.parent else None,
            config.children,
            secrets.randbits(60),
            store,
            config.query_set,
            joins=config.joins,
            lateness=config.lateness,
            eager=self._is_eager,
            idle=config.idle,
            timeout=config.timeout,
            ahead=config.max_ahead,
            feeds=config.feeds,
        )

    def _new_sink(self) -> Sink:
        if self.config.feeds == "slices":
            assert self.config.spool is not None
            assert self.node.query_set is not None
            sink = SliceSink(self.config.spool)
            self._check(sink, f"the outlet in {str(self.config.spool)!r}")
            sink.set_queries(self.node.query_set)
            return sink
        if self.config.results == "-":
            return ResultLines()
        files = ResultFiles(self.config.results)
        self._check(files, f"results: {str(self.config.results)!r}")
        return files

    def _check_life(self) -> None:
        """Refuse a log store that does not know the last life that went on here.

        Before a node has sent its first batch, neither parent nor sink can tell that it is another one.
        """
        path = self.config.spool / "life" if self.config.spool is not None else None
        last = path.read_text().strip() if path is not None and path.exists() else None
        if last is not None and not (last.isdecimal() and self.node.has_lived(int(last))):
            raise ConfigError(
                f"the spool of {self.config.name!r} in {str(self.config.spool)!r} does not know the life that went on "
                f"there last: it was deleted, or an older copy was put back; {WHAT_TO_DO}"
            )

    def _note_life(self) -> None:
        if self._noted == self.node.life or self.config.role == "local" or self.config.spool is None:
            return
        if self.node.goes_on:
            self._noted = self.node.life
            with replacing(self.config.spool / "life") as file:
                file.write(str(self._noted).encode())

    def _check(self, sink: ResultFiles | SliceSink, called: str) -> None:
        """Refuse a sink that has batches which this root has not made, or not with this spool."""
        if reason := self.node.behind(called, *sink.last):
            raise ConfigError(f"{reason}. If these are of another tree, name another directory")

    def _work(self) -> None:
        tick = status = time.monotonic()
        self._return = tick + RETURN
        until: float | None = None  # when it goes, done or not
        while True:
            now = time.monotonic()
            if now >= tick:
                tick = now + TICK
                self._tick()
            if now >= status:
                status = now + STATUS
                self._write_status()
            self._follow_source()
            if self.node.refused:
                self._fail(NodeRefused(f"no going on below {self.config.parent}: {self.node.refused}"))
            if self._error is not None:
                raise self._error
            self._note_life()
            if self._may_go() or (until is not None and now >= until):
                return
            if until is None and (self._ended or self._stop):
                until = max(now + PATIENCE, self._return if self._stop is None else 0.0)
            with suppress(queue.Empty):
                self._inbox.get(timeout=max(0.0, min(tick, status) - time.monotonic()))()

    def _may_go(self) -> bool:
        """Whether nobody needs it any more."""
        node, children = self.node, self._server.connected if self._server else set()
        if self._stop is not None:
            return self._stop == "stay" or node.left
        if not node.done or self._may_return():
            return False
        if not self._ended:
            self._ended = True
            if node.parent is not None:
                self._do(node.leave(_now()))
        return not children and (node.parent is None or node.left)

    def _may_return(self) -> bool:
        """Whether a child may look for its parent that an earlier life of this node let go, without knowing so."""
        if time.monotonic() >= self._return:
            return False
        return not self._have_left.issuperset(self.node.status().get("children", ()))

    def _begin_to_stop(self) -> None:
        if self._stop is None:
            self._stop = "stay" if self.config.role == "root" else self.config.at_stop
            if self._stop == "leave" and not self._ended:
                self._do(self.node.leave(_now()))

    # --- what comes in: on other threads, which wait here if there is no room ----------------------------------------

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
        self._inbox.put(lambda: self._do(self.node.start(_now())))

    def _refused(self, reason: str) -> None:
        self._fail(NodeRefused(f"{self.config.parent} refuses {self.config.name!r}: {reason}"))

    def _fail(self, error: Exception) -> None:
        self._error = error
        self._inbox.put(_nothing)

    def _note(self, text: str) -> None:
        self._inbox.put(lambda: self._say(text))

    # --- the node's thread --------------------------------------------------------------------------------------------

    def _receive(self, sender: str, message: Message) -> None:
        if sender in self._banned and self._server is not None:
            self._server.send(sender, Refused(message.life, self._banned[sender]))
            return
        try:
            out = self.node.receive(sender, message, _now())
        except (OSError, MemoryError):
            raise  # not because of the message
        except Exception as error:
            if sender == self.node.parent:
                what = f"sends {self.config.name!r} a {type(message).__name__} that cannot be taken"
                raise NodeRefused(f"{sender} {what}: {_named(error)}") from error
            self._break(sender, message, error)
            return
        if isinstance(message, Leave):
            self._have_left.add(sender)
        self._do(out)

    def _tick(self) -> None:
        now = _now()
        try:
            out = self.node.tick(now)
        except (OSError, MemoryError):
            raise
        except Exception as error:
            if not self._set_aside(lambda node: node.tick(now), error):
                raise
            self._begin_again()
            return
        self._do(out)

    def _break(self, child: str, message: Message, error: Exception) -> None:
        """Go on from the log store, which does not have the message that broke the node.

        If it breaks the node even without its tables, something is to blame that came earlier. Otherwise its child is.
        """
        assert self._store is not None
        now, bare = _now(), replace(message, tables={}) if isinstance(message, Batch) else message
        step: blame.Step = lambda node: node.receive(child, bare, now)  # noqa: E731
        if bare is message or not blame.breaks(self._store, self._new_node, step):
            self._banned[child] = f"its {type(message).__name__} cannot be taken: {_named(error)}"
            self._say(f"refused {child}: {self._banned[child]}")
            if self._server is not None:
                self._server.send(child, Refused(message.life, self._banned[child]))
        elif not self._set_aside(step, error):
            raise ConfigError(
                f"what its children have sent before cannot be worked on ({_named(error)}), and whose it is cannot be "
                f"told: it is in the checkpoint of {str(self.config.spool)!r}; {WHAT_TO_DO}"
            ) from error
        self._begin_again()

    def _set_aside(self, step: blame.Step, error: Exception) -> bool:
        """Set aside the batches without which a step does not break the node; false if there are none."""
        child = blame.blamed(self._store, self._new_node, step) if self._store is not None else None
        if child is None or self._store is None or self._aside is None:
            return False
        reason = f"what it has sent cannot be worked on: {_named(error)}; its batches were set aside in the spool"
        blame.set_aside(self._store, self._aside, child, reason)
        self._banned[child] = reason
        self._say(f"refused {child}: {reason}: {str(self._aside)!r}")
        return True

    def _begin_again(self) -> None:
        self.node = self._new_node(self._store)
        self._begin()

    def _begin(self) -> None:
        """Begin a life of the node, whose watermark does not wait for those that are refused."""
        self._do(self.node.start(_now()))
        for child in self._banned:
            self._do(self.node.give_up(child, _now()))

    @property
    def _aside(self) -> Path | None:
        return self.config.spool / "aside" if self.config.spool is not None else None

    def _do(self, out: Out) -> None:
        """Send the messages of the node, and log its notes."""
        for to, message in out:
            if to == SINK:
                assert isinstance(message, Batch)
                self._put_into_sink(message)
            elif to == self.node.parent:
                if self._client is not None:
                    self._client.send(message)
            elif self._server is not None:
                self._server.send(to, message)
        for note in self.node.notes:
            self._say(note)
        self.node.notes.clear()

    def _put_into_sink(self, batch: Batch) -> None:
        assert self._sink is not None
        self._sink.put(batch)
        if "results" in batch.tables:
            self._rows += batch.tables["results"].height
        self._do(self.node.receive(SINK, Ack(self.node.life, batch.number), _now()))

    def _follow_source(self) -> None:
        """Give the node what was read, while it wants events."""
        thread, node = self._source_thread, self.node
        if thread is None:
            return
        while self._source.notes:
            self._say(self._source.notes.pop(0))
        while True:
            mark = node.mark if self._stop is None else None
            columns = {} if node.query_set is None else needed_columns(node.query_set, self._source.replayable)
            thread.direct(mark, columns, node.confirmed)
            read = thread.take() if mark is not None else None
            if read is None:
                return
            self._do(node.read(read.events, read.mark, _now(), read.last))
            if not self._inbox.empty():
                return

    # --- an operator ------------------------------------------------------------------------------------------------

    def _operate(self, kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Answer an operator, on the thread that brings the request; whatever goes wrong is a ValueError."""
        try:
            return self._answer(kind, given)
        except ValueError:
            raise
        except (Exception, pl.exceptions.PanicException) as error:
            first_line = (str(error).splitlines() or [""])[0]
            raise ConfigError(f"{kind} cannot be done: {type(error).__name__}: {first_line}") from error

    def _answer(self, kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
        if kind == "status":
            return self._on_node_thread(self.status)
        if self.config.role != "root":
            raise ConfigError(f"queries are changed at the root, not at {self.config.name!r}")
        text = given.get("text", "")
        if kind == "remove" and isinstance(text, str):
            self._on_node_thread(lambda: self._remove(text))
            return {"removed": text}
        if kind == "add" and isinstance(text, str):
            read = query_files.of_yaml if given.get("format") == "yaml" else query_files.of_sql
            queries = read(text, str(given.get("name", "query"))).queries
            # planned here, while the node serves its children; again if other queries have come or gone meanwhile
            while not self._on_node_thread(partial(self._add, self.node.planned(queries))):
                pass
            return {"added": [query.name for query in queries]}
        raise ConfigError(f"nobody can be asked for {kind!r}; there are status, add and remove")

    def _add(self, planned: Planned) -> bool:
        """Answer more queries; False if they have to be planned anew."""
        out = self.node.add(planned, _now())
        self._do(out or [])
        return out is not None

    def _remove(self, name: str) -> None:
        self._do(self.node.remove(name, _now()))
        if isinstance(self._sink, SliceSink) and self.node.query_set is not None:
            self._sink.set_queries(self.node.query_set)  # slices of the queries before are in the sink

    def _on_node_thread(self, work: Callable[[], T]) -> T:
        """Let the node's thread work on something, and wait for what comes of it."""
        answer: Future[T] = Future()

        def answered() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(work())
            except (OSError, MemoryError) as error:  # not because of what was asked
                answer.set_exception(error)
                raise
            except (Exception, pl.exceptions.PanicException) as error:
                answer.set_exception(error)

        self._inbox.put(answered)
        try:
            return answer.result(timeout=30)
        except TimeoutError:
            if answer.cancel():
                raise ConfigError(f"{self.config.name!r} is busy, and nothing was done; ask again") from None
            return answer.result()

    # --- its status ---------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Plain data: the node's own, and what the process knows of its connections."""
        status = {**self.node.status(), "state": self._state, "pid": os.getpid(), "done": self.node.done}
        if self.config.role == "root":
            status["results"] = self._rows
            status["queries"] = [query.name for query in self.node.query_set.queries] if self.node.query_set else []
        if "events" in status:
            status["events"]["dropped"] = getattr(self._source, "dropped", 0)
        if self._server is not None:
            status["address"] = str(self._server.address)
            traffic = self._server.traffic()
            for name, child in status.get("children", {}).items():
                child["connected"] = name in self._server.connected
                if name in traffic:
                    child["link"] = asdict(traffic[name])
        if self._client is not None:
            status["parent"] = str(self._client.parent)
            status["link"] = {"connected": self._client.is_connected, **asdict(self._client.traffic())}
        return status

    def _write_status(self) -> None:
        if self.config.spool is None or not hasattr(self, "node"):
            return
        status = self.status()
        if status != self._written_status:
            self._written_status = status
            with replacing(self.config.spool / "status.json", durable=False) as file:
                file.write(json.dumps(status).encode())


def needed_columns(query_set: QuerySet, replayable: bool) -> Mapping[str, pl.DataType]:
    """The columns that a source has to give; all of them if it cannot be read again for a query that comes later."""
    return query_set.job.compiled.binding.needed if replayable else dict(query_set.columns)


def _now() -> int:
    return time.time_ns() // 1000


def _named(error: Exception) -> str:
    """An error in a line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _nothing() -> None:
    """Only wakes the node's thread."""
