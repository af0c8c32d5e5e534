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
        self._messages: deque[Message] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def put(self, message: Message) -> None:
        """Let it wait to be sent; never blocks."""
        with self._lock:
            if isinstance(message, Ack) and self._messages and isinstance(self._messages[-1], Ack):
                self._messages[-1] = message  # it says more
            elif isinstance(message, Batch) and message in self._messages:
                return
            elif len(self._messages) < self._room and not self._closed:
                self._messages.append(message)

    def take(self) -> Message | None:
        """The next one, if there is one."""
        with self._lock:
            return self._messages.popleft() if self._messages else None

    def close(self) -> None:
        """Nothing more comes; what waits is still given."""
        with self._lock:
            self._closed = True

    @property
    def has_work(self) -> bool:
        """Whether there is something to send, or to be ended."""
        with self._lock:
            return bool(self._messages) or self._closed

    @property
    def is_over(self) -> bool:
        with self._lock:
            return self._closed and not self._messages


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
