"""A child's end of Flight: one stream to its parent, opened again whenever it breaks; and an operator's questions.

`server`, the parent's end, describes what the stream carries and who is let in.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from windrow.nodes.protocol.messages import Down, Message, MessageError
from windrow.nodes.transport.queues import Outgoing
from windrow.nodes.transport.security import OPERATOR, Address
from windrow.nodes.transport.server import BEAT, BEAT_EVERY, call_options, reason_of
from windrow.nodes.transport.traffic import Meter, Traffic, connections
from windrow.nodes.transport.wire import Reader, Writer

LOST = 10.0  # seconds after which a child gives its parent up, and connects anew
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
    ) -> None:
        """`take` gets the parent's messages and may block; `opened` is called for every new stream.

        `refused` gets the reason of a parent that has never let this node in; any other is noted, and it tries again.
        """
        self.parent = parent
        self._take, self._opened, self._refused, self._note = take, opened, refused, note
        self._options = call_options(name, token)
        self._ca = ca
        self._outgoing: Outgoing | None = None
        self._reader: Any = None
        self._meter = Meter()
        self._before = Traffic()
        self._received_at = 0.0
        self._was_in, self._is_in = False, False
        self._noted = ""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"client of {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, message: Message) -> None:
        """Send it, if there is a stream; never blocks."""
        outgoing = self._outgoing
        if outgoing is not None:
            outgoing.put(message)

    @property
    def is_connected(self) -> bool:
        return self._is_in

    def traffic(self) -> Traffic:
        return self._before + self._meter.read(connections())

    def close(self, wait: float = 2.0) -> None:
        """Send what waits, and end the stream."""
        self._closing.set()
        outgoing = self._outgoing
        if outgoing is not None:
            outgoing.close()
            self._thread.join(wait)
        reader = self._reader
        if self._thread.is_alive() and reader is not None:
            reader.cancel()
        self._thread.join(wait)

    def _run(self) -> None:
        delay = FIRST_DELAY
        while not self._closing.is_set():
            try:
                self._connect()
            except (pa.ArrowException, OSError) as error:
                self._failed(error)
            if self._is_in:
                delay, self._is_in = FIRST_DELAY, False
            self._closing.wait(delay * random.uniform(0.5, 1))
            delay = min(2 * delay, LONGEST_DELAY)

    def _connect(self) -> None:
        """Be connected until the stream ends."""
        before = set(connections())
        with contextlib.closing(
            fl.FlightClient(str(self.parent), tls_root_certs=self._ca, generic_options=_LOCAL)
        ) as client:
            writer, reader = client.do_exchange(fl.FlightDescriptor.for_command(b"windrow"), self._options)
            self._reader, outgoing = reader, Outgoing()
            self._received_at = time.monotonic()
            writing = threading.Thread(target=self._write, args=(outgoing, writer, reader), daemon=True)
            writing.start()
            try:
                self._read(reader, outgoing, before)
            finally:
                self._outgoing, self._reader = None, None
                outgoing.close()
                reader.cancel()
                writing.join()
                self._before, self._meter = self.traffic(), Meter()
                with contextlib.suppress(pa.ArrowException):
                    writer.close()

    def _read(self, reader: Any, outgoing: Outgoing, before: set[Any]) -> None:
        wire = Reader()
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            if not self._is_in:
                self._let_in(outgoing, before)
            self._receive(chunk.app_metadata, wire)

    def _let_in(self, outgoing: Outgoing, before: set[Any]) -> None:
        new = (ends for ends in connections() if ends not in before and ends[1][1] == self.parent.port)
        self._meter.watch(next(new, None))
        self._is_in = self._was_in = True
        self._outgoing = outgoing
        if self._noted:
            self._note(f"connected to {self.parent} again")
            self._noted = ""
        self._opened()

    def _receive(self, buffer: Any, wire: Reader) -> None:
        data = b"" if buffer is None else buffer.to_pybytes()
        self._received_at = time.monotonic()
        self._meter.received(0 if data == BEAT else len(data))
        if data == BEAT:
            return
        try:
            message = wire.read(data)
        except MessageError as error:
            raise OSError(f"{self.parent} sends what is no message: {error}") from error
        if isinstance(message, Down):
            self._take(message)
            self._received_at = time.monotonic()

    def _write(self, outgoing: Outgoing, writer: Any, reader: Any) -> None:
        wire = Writer()
        try:
            while not outgoing.is_over:
                message = outgoing.get(BEAT_EVERY)
                data = BEAT if message is None else wire.write(message)
                writer.write_metadata(data)
                self._meter.sent(0 if message is None else len(data))
                if time.monotonic() - self._received_at > LOST:
                    reader.cancel()
            writer.done_writing()
        except pa.ArrowException:
            reader.cancel()
        except MessageError as error:
            self._refused(str(error))
            reader.cancel()

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
