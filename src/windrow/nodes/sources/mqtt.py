"""MQTT as a source: messages of some topics, each acknowledged to the broker once the parent holds its events.

    broker ──▶ received ──▶ read, in a batch ──▶ the parent holds it ──▶ confirmed ──▶ acknowledged to the broker

The node has a session at the broker (protocol 5, quality of service 1) that outlives it: what is published while it is
away waits there. When a connection comes back, the broker first sends again what was not acknowledged, in the same
order and under the same packet numbers. So that a message is known by its number alone, **the last message that the
parent holds is acknowledged only after a later one**: while it waits, its number belongs to no other message. A mark is
that number. What the broker sends again up to that message the parent holds already, and everything after it is new:

    the parent holds  1 2 3 4 5       the mark is 5; the broker has seen the acknowledgements of 1 and 2
    it sends again        3 4 5 6     6 is new

That is exactly once, as long as the broker keeps the session. Where it says that it has none any more, or does not send
that message again, this is noted, and what it sends is taken as new.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import polars as pl

from windrow.core.arrays.dataframes import InputError
from windrow.nodes.sources.base import GATHER, TIME_FORMAT, Mark, Read, SourceError, Types, nothing, place_of, wanted
from windrow.nodes.sources.broker import BrokerSource, Client, Message
from windrow.nodes.sources.json_messages import events_of
from windrow.nodes.sources.lines import BAD_LINES, shown

MESSAGES_AT_ONCE = 50_000  # messages in a batch
AGAIN_WITHIN = 5.0  # seconds after which a message that the broker should send again is given up
_MARK = {"messages": int, "packet": int, "checksum": int, "topics": list}


class _Received(NamedTuple):
    """A message that was received: its number over all lives of the node, and its packet number at the broker."""

    number: int
    session: int
    packet: int
    checksum: int


@dataclass
class Mqtt(BrokerSource):
    """Messages of some topics."""

    replayable = False  # a broker sends no more once so many messages are not acknowledged
    topic_column: str | None = None
    arrival_column: str | None = None
    bad_messages: Annotated[str, BAD_LINES] = "raise"
    time_format: Annotated[str | None, TIME_FORMAT] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._client: Client | None = None
        self._lock = threading.Lock()
        self._arrived, self._drained = threading.Event(), threading.Event()
        self.dropped = 0  # messages that were left out
        self._reset(0)

    def _reset(self, number: int) -> None:
        self._number = number  # of the last message that was received
        self._session = 0  # how often the broker has begun a new one
        self._queue: deque[tuple[_Received, Message]] = deque()  # not read yet
        self._unacknowledged: deque[_Received] = deque()  # for their acknowledgement to the broker, in their order
        self._last: tuple[int, int] | None = None  # packet and checksum of the last message
        self._awaited: tuple[int, int] | None = None  # that message, while the broker sends again
        self._again: list[Message] = []  # what it has sent again so far
        self._since = 0.0  # when the last of them came

    def resume(self, mark: Mark) -> None:
        """Go on after the last message that a mark knows.

        What the broker sends again before the parent has it, unless this life has read it and waits for that.
        """
        self.close()
        before = self._unacknowledged
        at = place_of(mark, _MARK, "MQTT")
        self._reset(at.messages)
        self._unacknowledged.extend(
            received._replace(session=0) for received in before if received.number <= self._number
        )
        if at.packet:
            self._last = at.packet, at.checksum
        gone = [topic for topic in at.topics if topic not in self.topics]
        self._client = Client(self, self._connected, self._receive, self.notes.append, gone)
        self._client.start()

    # --- what the broker sends, in a thread of its own ----------------------------------------------------------------

    def _connected(self, has_session: bool) -> None:
        """A connection is there; the broker has kept the session or begun a new one."""
        with self._lock:
            self._again = []
            if has_session:
                self._awaited = self._last
                return
            if self._number:
                self.notes.append(
                    f"{self.name} has kept no session for {self.client!r}: what was published "
                    "while this node was away is lost"
                )
            self._session += 1
            self._unacknowledged.clear()  # it knows nothing of them
            self._last = self._awaited = None

    def _receive(self, message: Message) -> None:
        # Mosquitto 2.0.11 does not keep to what may be unacknowledged: then its connection is read no further
        while len(self._queue) >= 2 * self.unconfirmed and self._client is not None:
            self._drained.clear()
            self._drained.wait(0.1)
        with self._lock:
            if self._awaited is None:
                self._take(message)
            elif _identity(message) == self._awaited:
                self._again.append(message)
                self._pass_over()
            elif message.again:
                self._again.append(message)
                self._since = time.monotonic()
            else:
                self._give_up()
                self._take(message)

    def _take(self, message: Message) -> None:
        self._number += 1
        self._last = _identity(message)
        received = _Received(self._number, self._session, *self._last)
        self._queue.append((received, message))
        self._unacknowledged.append(received)
        self._arrived.set()

    def _pass_over(self) -> None:
        """What was sent again has been received before; what no longer waits here is acknowledged again."""
        waiting = {received.packet for received in self._unacknowledged}
        for message in self._again[:-1]:
            if message.packet not in waiting:
                self._acknowledge(message.packet)
        last = self._again[-1]
        if last.packet not in waiting:  # of an earlier life: acknowledged after a later one
            self._unacknowledged.append(_Received(self._number, self._session, *_identity(last)))
        self._awaited, self._again = None, []

    def _give_up(self) -> None:
        """The message that the broker should have sent again has not come: what came is new, unless it waits here."""
        self._awaited = None
        waiting = {(received.packet, received.checksum) for received in self._unacknowledged}
        fresh = [message for message in self._again if _identity(message) not in waiting]
        self._again = []
        if fresh:
            self.notes.append(
                f"{self.name} has not sent again the last message that is held here; it may have lost its "
                f"state, and {len(fresh):,} messages that it sent again are taken as new"
            )
        for message in fresh:
            self._take(message)

    def _acknowledge(self, packet: int) -> None:
        if self._client is not None:
            self._client.acknowledge(packet)

    # --- what the node reads ------------------------------------------------------------------------------------------

    def read(self, needed: Types, wait: float) -> Read | None:
        if self._client is None:
            raise SourceError("mqtt: say first from where to go on")
        until = time.monotonic() + wait
        while not self._queue:
            if self._client.failure:
                raise SourceError(self._client.failure)
            with self._lock:
                if self._again and time.monotonic() - self._since > AGAIN_WITHIN:
                    self._give_up()
            left = until - time.monotonic()
            if left <= 0:
                return None
            self._arrived.wait(min(left, 0.5))
        if len(self._queue) < MESSAGES_AT_ONCE:
            time.sleep(min(GATHER, max(0.0, until - time.monotonic())))
        with self._lock:
            taken = [self._queue.popleft() for _ in range(min(MESSAGES_AT_ONCE, len(self._queue)))]
            if not self._queue:
                self._arrived.clear()
            self._drained.set()
            last = taken[-1][0]
            is_acknowledgeable = last.session == self._session
        events = self._events([message for _, message in taken], needed)
        mark = {"messages": last.number, "packet": last.packet if is_acknowledgeable else 0, "checksum": last.checksum}
        return Read(events, {**mark, "topics": list(self.topics)}, False)

    def _events(self, messages: Sequence[Message], needed: Types) -> pl.DataFrame:
        types = wanted(needed)
        own = [name for name in (self.topic_column, self.arrival_column) if name in types]
        inner = {name: dtype for name, dtype in types.items() if name not in own}
        frames = [nothing(needed)]
        for parsed, indexes in events_of([message.payload for message in messages], inner, self.time_format):
            if isinstance(parsed, pl.DataFrame):
                frames.append(parsed.with_columns(self._own(name, messages, indexes, types[name]) for name in own))
                continue
            bad = messages[int(indexes[0])]
            if self.bad_messages == "raise":
                raise InputError(
                    f"a message of topic {bad.topic!r} cannot be read: {str(parsed).splitlines()[0]}: "
                    f"{shown(bad.payload)}; bad_messages: drop counts such messages and leaves them out"
                )
            self.dropped += 1
        return pl.concat([frame.select(list(types)) for frame in frames])

    def _own(
        self, name: str, messages: Sequence[Message], indexes: np.ndarray[Any, Any], dtype: pl.DataType
    ) -> pl.Series:
        if name == self.topic_column:
            values = pl.Series(name, [message.topic for message in messages], pl.String)
        else:
            values = pl.Series(name, [message.arrived for message in messages], pl.Datetime("us", "UTC"))
        return values.gather(indexes).cast(dtype)

    def confirm(self, mark: Mark) -> None:
        """Acknowledge to the broker what the parent has on disk, but for the last message."""
        if not mark:
            return
        with self._lock:
            while self._unacknowledged and self._unacknowledged[0].number < mark["messages"]:
                self._acknowledge(self._unacknowledged.popleft().packet)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def _identity(message: Message) -> tuple[int, int]:
    return message.packet, zlib.crc32(message.payload)
