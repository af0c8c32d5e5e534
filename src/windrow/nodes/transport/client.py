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
from windrow.nodes.transport.security import OPERATOR, Address
from windrow.nodes.transport.server import call_options, reason_of
from windrow.nodes.transport.traffic import Traffic, connections
from windrow.nodes.transport.wire import BEAT_EVERY, StreamEnd

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
        self._end = StreamEnd()
        self._reader: Any = None
        self._before = Traffic()
        self._was_in, self.is_connected = False, False
        self._noted = ""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"client of {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, message: Message) -> None:
        """Send it, if there is a stream; never blocks."""
        if self.is_connected:
            self._end.outgoing.put(message)

    def traffic(self) -> Traffic:
        return self._before + self._end.meter.read(connections())

    def close(self, wait: float = 2.0) -> None:
        """Send what waits, and end the stream."""
        self._closing.set()
        if self.is_connected:
            self._end.outgoing.close()
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
            self._reader, self._end = reader, StreamEnd()
            writing = threading.Thread(target=self._write, args=(writer, reader), daemon=True)
            writing.start()
            try:
                self._read(reader, before)
            finally:
                self._reader = None
                self._end.outgoing.close()
                reader.cancel()
                writing.join()
                self._before, self._end = self.traffic(), StreamEnd()
                with contextlib.suppress(pa.ArrowException):
                    writer.close()

    def _read(self, reader: Any, before: set[Any]) -> None:
        while True:
            try:
                chunk = reader.read_chunk()
            except StopIteration:
                return
            if not self.is_connected:
                self._let_in(before)
            self._receive(chunk.app_metadata)

    def _let_in(self, before: set[Any]) -> None:
        new = (ends for ends in connections() if ends not in before and ends[1][1] == self.parent.port)
        self._end.meter.watch(next(new, None))
        self.is_connected = self._was_in = True
        if self._noted:
            self._note(f"connected to {self.parent} again")
            self._noted = ""
        self._opened()

    def _receive(self, buffer: Any) -> None:
        try:
            message = self._end.receive(buffer)
        except MessageError as error:
            raise OSError(f"{self.parent} sends what is no message: {error}") from error
        if isinstance(message, Down):
            self._take(message)
            self._end.received_at = time.monotonic()

    def _write(self, writer: Any, reader: Any) -> None:
        end = self._end
        try:
            while not end.outgoing.is_over:
                end.send(writer, BEAT_EVERY)
                if time.monotonic() - end.received_at > LOST:
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
