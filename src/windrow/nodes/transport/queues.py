"""The queue of what a connection has to send, and the pace at which one is read: both bounded, so that no peer can fill
the memory. A message that finds no room is left out: a node sends again whatever is not answered.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from windrow.nodes.protocol.messages import Ack, Batch, Message

ROOM = 256  # messages that wait, at most


class Outgoing:
    """Messages in their order. A newer acknowledgement replaces the one before it, and a batch waits only once."""

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._waiting: deque[Message] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, message: Message) -> None:
        """Let it wait to be sent; never blocks."""
        with self._changed:
            if isinstance(message, Ack) and self._waiting and isinstance(self._waiting[-1], Ack):
                self._waiting[-1] = message  # it says more
            elif isinstance(message, Batch) and message in self._waiting:
                return
            elif len(self._waiting) < self._room and not self._closed:
                self._waiting.append(message)
            self._changed.notify_all()

    def get(self, wait: float) -> Message | None:
        """The next one; None if there is none within `wait` seconds, or never any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed, wait)
            return self._waiting.popleft() if self._waiting else None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def is_over(self) -> bool:
        with self._changed:
            return self._closed and not self._waiting


class Pace:
    """Lets so many pass in a second, after a second's worth at once."""

    def __init__(self, rate: float) -> None:
        self._step = 1 / rate
        self._due = 0.0

    def wait(self) -> None:
        """Come back when the next one may pass."""
        now = time.monotonic()
        self._due = max(self._due, now - 1) + self._step
        if self._due > now:
            time.sleep(self._due - now)
