"""Arrow Flight between nodes: a parent is a Flight server, a child opens one DoExchange stream to it and keeps it.

    child   Client ── Hello, Batch, Alive, Leave ───────────▶ Server   parent
                 ◀── Welcome, Plan, Ack, Left, Refused, Request

A message is the metadata of a Flight message that has no data of its own (`wire`). The caller is checked
before a stream begins, by the headers of the call: the node's name, its token, the version of this protocol. Whoever
is not let in, and whatever cannot be read, gets the reason; it is logged once, and no other stream notices.

**Nothing grows.** Each way has a bounded queue. A parent that is busy stops reading, and HTTP/2 then stops the child,
whose machine reads no more of its source once too much is unacknowledged. A child that sends more messages in a second
than is allowed is read more slowly.

**Both ends notice a dead one**, whatever is on the way; `streams` says when. A child connects anew, after delays that
grow and are never quite the same, for ever; a parent ends the connection and frees its threads.
"""

from __future__ import annotations

import errno
import json
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.flight as fl

from windrow.nodes.protocol.messages import LARGEST, Down, Hello, Message, MessageError
from windrow.nodes.transport.queues import Pace
from windrow.nodes.transport.security import NAMES, NO_TLS, OPERATOR, Address, Files, Tokens, pem
from windrow.nodes.transport.streams import TIMING, StreamEnd, Timing
from windrow.nodes.transport.traffic import Ends, Traffic, connections, shut

PROTOCOL = 4
FLOOD = 20  # streams that a name may open in a second
_NODE, _VERSION = "windrow-node", "windrow-protocol"

Answer = Callable[[str, Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Limits:
    """Of each child of a node."""

    message: int = LARGEST  # bytes
    rate: float = 1000.0  # messages in a second


LIMITS = Limits()


class Server:
    """Listens for children, and for whoever operates the tree."""

    def __init__(
        self,
        listen: Address,
        take: Callable[[str, Message], None],
        answer: Answer,
        note: Callable[[str], None],
        tls: Files = NO_TLS,
        tokens: Tokens | None = None,
        limits: Limits = LIMITS,
        name: str = "",
        timing: Timing = TIMING,
    ) -> None:
        """`take` gets a child's message, and may block; `answer` an operator's question, `note` a line of the log.

        `name` is that of the node itself, which no child may have.
        """
        self._take, self._answer, self._note = take, answer, note
        self._tokens, self._limits, self._name, self._timing = tokens, limits, name, timing
        self._lock = threading.RLock()
        self._streams: dict[str, StreamEnd] = {}
        self._before: dict[str, Traffic] = {}  # of streams that have ended
        self._opened: dict[str, deque[float]] = {}
        self._noted: set[tuple[str, str]] = set()
        cert, key = pem(tls.cert, "cert"), pem(tls.key, "key")
        location = f"grpc{'+tls' if cert else ''}://{listen.host}:{listen.port}"
        try:
            self._flight = _Flight(self, location, [(cert, key)] if cert else [])
        except pa.ArrowException as error:
            raise _why_not(listen, bool(cert)) from error
        self.address = Address(listen.host, self._flight.port, cert is not None)

    def send(self, child: str, message: Message) -> None:
        """Send it, if the child has a stream; never blocks."""
        with self._lock:
            stream = self._streams.get(child)
        if stream is not None:
            stream.put(message)

    @property
    def connected(self) -> set[str]:
        with self._lock:
            return {name for name, stream in self._streams.items() if not stream.is_lost}

    def traffic(self) -> dict[str, Traffic]:
        """What went over the link of each child since this process began."""
        sockets = connections()
        with self._lock:
            totals = dict(self._before)
            for name, stream in self._streams.items():
                totals[name] = totals.get(name, Traffic()) + stream.meter.read(sockets).turned
        return totals

    def close(self, wait: float = 1.0) -> None:
        """Send what waits, and let go of everybody; whoever does not let go has its connection ended."""
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            stream.finish()
        ending = threading.Thread(target=self._flight.shutdown, daemon=True)
        ending.start()
        ending.join(wait)
        if ending.is_alive():
            with self._lock:
                streams = list(self._streams.values())
            for stream in streams:
                stream.abort()
            ending.join(wait)

    # --- who may come in ----------------------------------------------------------------------------------------------

    def admit(self, method: Any, headers: Mapping[str, list[str]]) -> str:
        """The name of whoever calls; raises for anybody who is not to be let in."""
        fields = {name: headers.get(name, [""])[0] for name in (_NODE, _VERSION, "authorization")}
        is_name = NAMES.fullmatch(fields[_NODE]) is not None
        name = fields[_NODE] if is_name else "somebody"
        if fields[_VERSION] != str(PROTOCOL):
            spoken = f"version {fields[_VERSION]}" if fields[_VERSION] else "no version"
            raise self._refusal(
                name,
                f"speaks {spoken} of the protocol, not {PROTOCOL}: install the same windrow",
                fl.FlightUnauthorizedError,
            )
        token = fields["authorization"].removeprefix("Bearer ")
        if not is_name or (self._tokens is not None and not self._tokens.allows(name, token)):
            if self._tokens is not None and self._tokens.unread:
                self._note_once("", self._tokens.unread)
            raise self._refusal(name, "does not have the token of that name", fl.FlightUnauthenticatedError)
        if method != fl.FlightMethod.DO_EXCHANGE and name != OPERATOR:
            raise self._refusal(name, f"is not {OPERATOR!r}, who alone may ask that", fl.FlightUnauthorizedError)
        if method == fl.FlightMethod.DO_EXCHANGE and name in (OPERATOR, self._name):
            whose = "of who may ask" if name == OPERATOR else "of its parent itself"
            raise self._refusal(
                name, f"has the name {whose}, which no child has: give it another", fl.FlightUnauthorizedError
            )
        return name

    def _refusal(self, name: str, reason: str, kind: type[Exception] = fl.FlightServerError) -> Exception:
        """Say why, and log it once until that name has come in well."""
        self._note_once(name, reason)
        return kind(f"{name} {reason}")

    def _note_once(self, name: str, reason: str) -> None:
        with self._lock:
            is_new = (name, reason) not in self._noted and len(self._noted) < 1000
            self._noted.add((name, reason))
        if is_new:
            self._note(f"refused {name}: it {reason}" if name else reason)

    def _open(self, name: str, peer: str, writer: Any) -> StreamEnd:
        with self._lock:
            now = time.monotonic()
            opened = self._opened.setdefault(name, deque(maxlen=FLOOD))
            is_flood = len(opened) == FLOOD and now - opened[0] < 1
            opened.append(now)
            if is_flood:
                raise self._refusal(name, f"opens more than {FLOOD} streams in a second")
            before = self._streams.get(name)
            if before is not None:
                if not before.is_lost and before.silence < self._timing.silent:
                    reason = "is connected already: two nodes have this name, or the first one has just been lost"
                    raise self._refusal(name, reason)
                before.finish()
                self._count(name, before)
            ends = next((ends for ends in connections() if ends[1] == _address_of(peer)), None)
            stream = StreamEnd(writer, lambda: _end_connection(ends), timing=self._timing)
            stream.meter.watch(ends)
            self._streams[name] = stream
            return stream

    def _ended(self, name: str, stream: StreamEnd) -> None:
        with self._lock:
            if self._streams.get(name) is stream:
                del self._streams[name]
                self._count(name, stream)

    def _count(self, name: str, stream: StreamEnd) -> None:
        self._before[name] = self._before.get(name, Traffic()) + stream.meter.read(connections()).turned

    # --- a child's stream ---------------------------------------------------------------------------------------------

    def exchange(self, name: str, peer: str, reader: Any, writer: Any) -> None:
        """Be there for a child until its stream ends."""
        stream = self._open(name, peer, writer)
        stream.open()
        try:
            for message in self._messages(name, stream, reader):
                self._take(name, message)
        finally:
            self._ended(name, stream)
            stream.close()  # the stream is gone once this returns
            if stream.is_lost:
                self._note(f"{name} has sent nothing for {self._timing.lost:g} seconds: its stream is ended")
            elif isinstance(stream.error, MessageError):
                self._note(f"{name} cannot be sent what it has to get: {stream.error}")

    def _messages(self, name: str, stream: StreamEnd, reader: Any) -> Iterator[Message]:
        pace = Pace(self._limits.rate)
        while True:
            try:
                chunk = stream.next_chunk(reader)
            except StopIteration:
                return
            except pa.ArrowException as error:
                if stream.is_lost:
                    return
                raise self._refusal(name, f"sends what is not Flight: {reason_of(error)}") from error
            size = 0 if chunk is None else chunk.size
            if self._streams.get(name) is not stream:
                raise self._refusal(name, "has another stream by now")
            if size > self._limits.message:
                raise self._refusal(
                    name, f"sends a message of {size:,} bytes, more than {self._limits.message:,}; see limits: message"
                )
            try:
                message = stream.receive(chunk)
            except MessageError as error:
                raise self._refusal(name, f"sends what is no message: {error}") from error
            if message is None:
                continue
            if isinstance(message, Down):
                raise self._refusal(name, f"sends {type(message).__name__}, which only a parent says")
            if message.node != name:
                raise self._refusal(name, f"speaks for {message.node!r}, whose token it did not show")
            if isinstance(message, Hello):
                with self._lock:
                    self._noted = {noted for noted in self._noted if noted[0] != name}
            pace.wait()
            yield message

    def act(self, kind: str, body: bytes) -> dict[str, Any]:
        """Answer an operator."""
        try:
            given = json.loads(body or b"{}")
            return self._answer(kind, given if isinstance(given, dict) else {})
        except RecursionError:
            raise fl.FlightServerError("what is asked is nested too deeply") from None
        except ValueError as error:
            raise fl.FlightServerError(str(error)) from error


class _Caller(fl.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, name: str) -> None:
        self.name = name


class _Door(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    def __init__(self, server: Server) -> None:
        self._server = server

    def start_call(self, info: Any, headers: Mapping[str, list[str]]) -> _Caller:
        return _Caller(self._server.admit(info.method, headers))


class _Flight(fl.FlightServerBase):  # type: ignore[misc]
    def __init__(self, server: Server, location: str, certificates: list[Any]) -> None:
        self._server = server
        super().__init__(location, tls_certificates=certificates, middleware={"door": _Door(server)})

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        self._server.exchange(context.get_middleware("door").name, context.peer(), reader, writer)

    def do_action(self, context: Any, action: Any) -> list[Any]:
        return [fl.Result(json.dumps(self._server.act(action.type, action.body.to_pybytes())).encode())]


def _why_not(listen: Address, tls: bool) -> OSError:
    """Why nobody can listen there: what the system says to the same, or else it is the certificate."""
    reason = "its certificate and key do not fit each other" if tls else "the system does not let it"
    try:
        socket.create_server((listen.host, listen.port), reuse_port=False).close()
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
    return OSError(errno.EADDRNOTAVAIL, f"cannot listen on {listen.host}:{listen.port}: {reason}")


def _end_connection(ends: Ends | None) -> None:
    """End the connection of a child, by which all that are blocked in its stream come back: Flight has no other way.

    A child of ours has a connection for each stream; what a proxy has put on the same one ends too, and comes again.
    Where a process cannot find its connections (other systems than Linux), the child is gone from its parent's view,
    but the thread in its stream stays until the system gives the connection up.
    """
    if ends is not None:
        shut(ends)


def _address_of(peer: str) -> tuple[str, int]:
    """Of gRPC's `ipv4:127.0.0.1:5000` and `ipv6:%5B::1%5D:5000`."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return host.strip("[]").removeprefix("::ffff:"), int(port) if port.isdecimal() else 0


def call_options(name: str, token: str | None) -> Any:
    fields = {_NODE: name, _VERSION: str(PROTOCOL), **({"authorization": f"Bearer {token}"} if token else {})}
    return fl.FlightCallOptions(headers=[(key.encode(), value.encode()) for key, value in fields.items()])


def reason_of(error: BaseException) -> str:
    """What an error says, without what gRPC adds to it."""
    text = str(error).split(". gRPC client debug context")[0].split(". Detail: ")[0]
    text = text.removeprefix("Flight returned unavailable error, with message: ")
    if "failed to connect to all addresses" in text:
        return f"it cannot be reached ({text.rpartition(': ')[2]})"
    return text.splitlines()[0] if text else type(error).__name__
