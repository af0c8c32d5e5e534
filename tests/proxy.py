"""What lies between a node and its parent, or a broker: a TCP proxy that breaks as networks do.

    child ──▶ Proxy.port ──▶ the port that `to` names now

    cut        every connection through it ends, on both sides
    delay      what comes is passed on so many seconds later
    half_open  connections of now are kept for good and pass nothing on any more, "up", "down" or both ways, not even
               that one side has closed. What comes is left unread, so that its sender gets stuck, or with `swallow`
               read and thrown away. New connections pass: whoever notices is well again

A connection is a `Wire`, with a thread for each way.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Collection
from typing import Self

WAYS = ("up", "down")
BUFFER = 1 << 14  # bytes: small, so that a sender soon notices that nobody reads
PATIENCE = 10.0  # seconds


class Wire:
    """One connection: `near` is the child's side, `far` the parent's."""

    def __init__(self, near: socket.socket, far: socket.socket, delay: Callable[[], float]) -> None:
        self._ends, self._delay = (near, far), delay
        self._stuck: frozenset[str] = frozenset()
        self._swallows = False
        self._cut = threading.Event()
        self._threads = [
            threading.Thread(target=self._pass, args=(near, far, "up"), daemon=True),
            threading.Thread(target=self._pass, args=(far, near, "down"), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_over(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def is_half_open(self) -> bool:
        return bool(self._stuck)

    def half_open(self, ways: Collection[str], swallow: bool) -> None:
        self._swallows, self._stuck = swallow, frozenset(ways)

    def cut(self) -> None:
        self._cut.set()
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        for thread in self._threads:
            thread.join(PATIENCE)
        for end in self._ends:
            end.close()

    def _pass(self, source: socket.socket, to: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(BUFFER):
                self._cut.wait(self._delay())
                if way not in self._stuck:
                    to.sendall(data)
                elif not self._swallows:
                    self._cut.wait()
        if self._stuck:
            self._cut.wait()  # nobody gets to know that one side has closed
        with contextlib.suppress(OSError):
            to.shutdown(socket.SHUT_WR)


class Proxy:
    """A port of its own and the connections through it; `to` is None while nobody is there."""

    def __init__(self, to: Callable[[], int | None]) -> None:
        self._to = to
        self.delay = 0.0  # seconds
        self.opened = 0  # connections, over all its life
        self._wires: list[Wire] = []
        self._lock = threading.Lock()
        self._listener = _small(socket.create_server(("127.0.0.1", 0)))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """End all connections but those that are half-open, of which nobody gets to know anything."""
        for wire in self._well():
            wire.cut()

    def half_open(self, ways: Collection[str] = WAYS, swallow: bool = False) -> int:
        """Leave the connections of now half-open; returns how many those are."""
        wires = self._well()
        for wire in wires:
            wire.half_open(ways, swallow)
        return len(wires)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE)
        for wire in self._wires:
            wire.close()

    def _well(self) -> list[Wire]:
        with self._lock:
            return [wire for wire in self._wires if not wire.is_half_open and not wire.is_over]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = self._connected()
                if far is None:
                    near.close()
                    continue
                with self._lock:
                    over = [wire for wire in self._wires if wire.is_over]
                    self._wires = [wire for wire in self._wires if wire not in over]
                    self._wires.append(Wire(near, far, lambda: self.delay))
                    self.opened += 1
                for wire in over:
                    wire.close()

    def _connected(self) -> socket.socket | None:
        port = self._to()
        with contextlib.suppress(OSError):
            if port is not None:
                far = _small(socket.socket())
                far.connect(("127.0.0.1", port))
                return far
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _small(end: socket.socket) -> socket.socket:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    return end
