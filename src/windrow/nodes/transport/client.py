"""A child's end of Flight: one stream to its parent, opened again whenever it breaks; and an operator's questions.

`server`, the parent's end, describes what the stream carries and who is let in.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from windrow.nodes.protocol.messages import Down, Message, MessageError
from windrow.nodes.transport.security import OPERATOR, Address
from windrow.nodes.transport.server import call_options, reason_of
from windrow.nodes.transport.streams import TIMING, StreamEnd, Timing
from windrow.nodes.transport.traffic import Meter, Traffic, connections, shut

FIRST_DELAY, LONGEST_DELAY = 0.05, 10.0  # seconds between attempts to connect
_LOCAL = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own, which is counted on its own


class Client:
    """A child's way to its parent, which is opened again whenever it breaks."""

    def __init__(
        self,
        name: str,
        parent: Address,
        take: Callable[[Message], None],
        opened: Callable[[], None],
        refused: Callable[[str], None],
        note: Callable[[str], None],
        ca: bytes | None = None,
        token: str | None = None,
        timing: Timing = TIMING,
    ) -> None:
        """`take` gets the parent's messages and may block; `opened` is called for every new stream.

        `refused` gets the reason of a parent that has never let this node in; any other is noted, and it tries again.
        """
        self.parent = parent
        self._take, self._opened, self._refused, self._note = take, opened, refused, note
        self._options, self._timing = call_options(name, token), timing
        self._ca = ca
        self._stream: StreamEnd | None = None
        self._meter = Meter()
        self._before = Traffic()
        self._was_in, self.is_connected = False, False
        self._noted = ""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"client of {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, message: Message) -> None:
        """Send it, if there is a stream; never blocks."""
        stream = self._stream
        if stream is not None and self.is_connected:
            stream.put(message)

    def traffic(self) -> Traffic:
        return self._before + self._meter.read(connections())

    def close(self, wait: float = 2.0) -> None:
        """Send what waits, and end the stream."""
        self._closing.set()
        stream = self._stream
        if stream is not None and self.is_connected:
            stream.finish()
            self._thread.join(wait)
        stream = self._stream
        if self._thread.is_alive() and stream is not None:
            stream.abort()
        self._thread.join(wait)

    def _run(self) -> None:
        delay = FIRST_DELAY
        while not self._closing.is_set():
            try:
                self._connect()
            except (pa.ArrowException, OSError) as error:
                self._failed(error)
            if self.is_connected:
                delay, self.is_connected = FIRST_DELAY, False
            self._closing.wait(delay * random.uniform(0.5, 1))
            delay = min(2 * delay, LONGEST_DELAY)

    def _connect(self) -> None:
        """Be connected until the stream ends."""
        before = set(connections())
        with contextlib.closing(
            fl.FlightClient(str(self.parent), tls_root_certs=self._ca, generic_options=_LOCAL)
        ) as client:
            writer, reader = client.do_exchange(fl.FlightDescriptor.for_command(b"windrow"), self._options)
            meter = self._meter
            self._stream = stream = StreamEnd(
                writer, lambda: _abort(reader, meter), writer.done_writing, self._timing, meter
            )
            stream.open()
            try:
                self._read(stream, reader, before)
            except pa.ArrowException:
                if not stream.is_lost:
                    raise
            finally:
                self._stream = None
                self._before, self._meter = self.traffic(), Meter()
                stream.abort()
                if stream.close(self._timing.beat):
                    with contextlib.suppress(pa.ArrowException):
                        writer.close()
            if stream.is_lost:
                raise OSError(f"it has sent nothing for {self._timing.lost:g} seconds")
            if isinstance(stream.error, MessageError):
                self._refused(str(stream.error))

    def _read(self, stream: StreamEnd, reader: Any, before: set[Any]) -> None:
        while True:
            try:
                chunk = stream.next_chunk(reader)
            except StopIteration:
                return
            if not self.is_connected:
                self._let_in(before)
            try:
                message = stream.receive(chunk)
            except MessageError as error:
                raise OSError(f"{self.parent} sends what is no message: {error}") from error
            if isinstance(message, Down):
                self._take(message)

    def _let_in(self, before: set[Any]) -> None:
        new = (ends for ends in connections() if ends not in before and ends[1][1] == self.parent.port)
        self._meter.watch(next(new, None))
        self.is_connected = self._was_in = True
        if self._noted:
            self._note(f"connected to {self.parent} again")
            self._noted = ""
        self._opened()

    def _failed(self, error: BaseException) -> None:
        if self._closing.is_set():
            return
        reason = reason_of(error)
        if isinstance(error, fl.FlightUnauthenticatedError | fl.FlightUnauthorizedError) and not self._was_in:
            self._closing.set()
            self._refused(reason)
        elif reason != self._noted:
            self._noted = reason
            self._note(f"no stream to {self.parent}: {reason}; it is tried again")


def _abort(reader: Any, meter: Meter) -> None:
    """End a stream, from any thread.

    A cancelled call ends at once for who reads. A write that has filled the buffers of the system comes back only with
    the end of the connection. Where a process cannot find that (other systems than Linux), the thread in this write
    stays until the system gives the connection up; nobody waits for it.
    """
    reader.cancel()
    if meter.ends is not None:
        shut(meter.ends)


def ask(node: Address, kind: str, body: Mapping[str, Any], ca: bytes | None = None, token: str | None = None) -> Any:
    """Ask a node as its operator; raises ValueError with its reason, or OSError if it cannot be reached."""
    options = call_options(OPERATOR, token)
    client = fl.FlightClient(str(node), tls_root_certs=ca)
    try:
        action = fl.Action(kind, json.dumps(body).encode())
        return json.loads(next(iter(client.do_action(action, options))).body.to_pybytes())
    except fl.FlightUnavailableError as error:
        raise OSError(f"{node}: {reason_of(error)}") from error
    except pa.ArrowException as error:
        raise ValueError(reason_of(error)) from error
    finally:
        client.close()
