"""Streams as each of their ends has them, and one watch over all streams of a process.

    put ──▶ outgoing ──▶ Watch: a turn for whoever has something ──▶ a few threads ──▶ the other end
                         Watch: ten looks a second at every stream ──▶ a beat, or the end of a stream that is lost

**When a stream is lost.** Each end sends a beat at least every second, whatever else it does. A stream is silent for as
long as a thread of ours waits to read it and nothing comes: no message, no beat, and no part of a long message that is
on its way over a slow line, where the kernel counts bytes. Time in which nobody reads does not count: messages that
we have not taken yet lie between us and the beats behind them. So an end that is busy for minutes never takes the other
one for dead, and neither is it taken for dead itself, because its beats go out meanwhile. Time in which this whole
process stood still does not count either. A stream that has been silent for `Timing.lost` is ended from outside, so
that all threads that are blocked in it come back, the one that writes into a full HTTP/2 window among them.

**Threads.** A stream costs its owner's thread, which is blocked in reading. To write, it takes a turn of one message on
a thread that all streams share. A write that blocks keeps its thread; once others have waited for a tenth of a second,
the watch starts another thread for them. So there are as many as writes that block, and a few more.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from windrow.nodes.protocol.messages import Message
from windrow.nodes.transport.queues import Outgoing
from windrow.nodes.transport.traffic import Ends, Meter, payloads
from windrow.nodes.transport.wire import BEAT, Reader, Writer

TRICKLE = 1024  # bytes: what HTTP/2 of the other end answers by itself between two beats is less, a message more
LOOK = 0.1  # seconds between two looks of the watch
KEPT = 4  # threads that write are kept; only more than those wait to be started
STARTED = 8  # threads that one look starts, at most


@dataclass(frozen=True)
class Timing:
    """When an end of a stream does something by itself, in seconds."""

    beat: float = 1.0  # it has sent something, at least
    silent: float = 5.0  # the other end has been silent: its name may open another stream
    lost: float = 10.0  # the other end has been silent: the stream is ended


TIMING = Timing()


class StreamEnd:
    """An end of an open stream. One thread, its owner's, reads it and closes it in the end; any may `put`."""

    def __init__(
        self,
        writer: Any,
        abort: Callable[[], None],
        last: Callable[[], None] = lambda: None,
        timing: Timing = TIMING,
        meter: Meter | None = None,
    ) -> None:
        """`abort` ends the stream from any thread and does not block; `last` is called after the last message."""
        self.outgoing, self.meter, self.timing = Outgoing(), meter or Meter(), timing
        self.abort = abort
        self.error: Exception | None = None  # why it can send nothing more
        self.is_lost = False
        self.silence = 0.0  # seconds in which the owner has waited for what did not come
        self._writer, self._last = writer, last
        self._written, self._read = Writer(), Reader()
        self._sent_at = 0.0
        self._is_reading = False
        self._reads = self._seen = 0  # how often something has come, and at the last look
        self._payload: int | None = None  # bytes received, once there is reason to look
        self._is_closing = False
        self.is_in_turn = False  # waits for a thread or has one; the watch's own
        self.sending_over = threading.Event()

    # --- the owner's thread -------------------------------------------------------------------------------------------

    def next_chunk(self, reader: Any) -> Any:
        """The next bytes that come; StopIteration at the end. The other end can only be silent meanwhile."""
        self._is_reading = True
        try:
            return reader.read_chunk().app_metadata
        finally:
            self._reads += 1
            self._is_reading = False

    def receive(self, buffer: Any) -> Message | None:
        """Read what has come; None if it is a beat."""
        data = b"" if buffer is None else buffer.to_pybytes()
        self.meter.received(0 if data == BEAT else len(data))
        return None if data == BEAT else self._read.read(data)

    def open(self) -> None:
        """Be watched from now on; the first beat goes out."""
        WATCH.add(self)

    def put(self, message: Message) -> None:
        """Let a message wait to be sent; never blocks."""
        self.outgoing.put(message)
        WATCH.give_turn(self)

    def finish(self) -> None:
        """Send what waits, and then nothing more; never blocks."""
        self.outgoing.close()
        WATCH.give_turn(self)

    def close(self, wait: float | None = None) -> bool:
        """Come back when what waits was sent, or cannot be: an end that takes nothing has until it is lost.

        Returns whether no thread is in the stream any more; only with `wait` can it be otherwise.
        """
        self._is_reading = self._is_closing = True  # nothing that comes counts any more
        self.finish()
        is_over = self.sending_over.wait(wait)
        WATCH.remove(self)
        return is_over

    # --- the watch's threads ------------------------------------------------------------------------------------------

    def send_next(self) -> None:
        """Send the next message, or a beat if there is none; blocks while the other end takes nothing."""
        try:
            message = self.outgoing.take()
            if message is None and self.outgoing.is_over:
                self._last()
                self.sending_over.set()
                return
            data = BEAT if message is None else self._written.write(message)
            self._writer.write_metadata(data)
            self.meter.sent(0 if message is None else len(data))
        except Exception as error:  # the owner gets to know it
            self.error = error
            self.sending_over.set()
            with contextlib.suppress(Exception):  # it is over already
                self.abort()
        finally:
            self._sent_at = time.monotonic()

    def needs_beat(self, now: float) -> bool:
        return now - self._sent_at >= self.timing.beat

    def look(self, passed: float) -> None:
        """Count the time since the last look as silence if nothing has come, and somebody has waited for it."""
        if self._reads != self._seen or not self._is_reading:
            self._seen, self.silence, self._payload = self._reads, 0.0, None
        else:
            self.silence += min(passed, self.timing.beat)

    @property
    def is_suspect(self) -> bool:
        return self.silence > 2 * self.timing.beat or self._payload is not None

    def compare(self, counted: dict[Ends, int]) -> None:
        """Break the silence of a suspect from which a part of a message has come since the last time."""
        payload = None if self.meter.ends is None or self._is_closing else counted.get(self.meter.ends)
        if self._payload is not None and payload is not None and payload > self._payload + TRICKLE:
            self.silence = 0.0
        self._payload = payload

    def lose(self) -> None:
        """End a stream that is lost; again after as long, should that not have helped."""
        self.is_lost, self.silence = True, 0.0
        self.abort()


class Watch:
    """Looks after all streams of a process. Its threads end when there are none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._has_turns = threading.Condition(self._lock)
        self._is_idle = threading.Condition(self._lock)
        self._streams: set[StreamEnd] = set()
        self._turns: deque[tuple[float, StreamEnd]] = deque()  # since when they wait
        self._threads = self._free = 0  # that write; of these, those without work
        self._is_looking = False

    @property
    def threads(self) -> int:
        """How many threads write at present, or could."""
        with self._lock:
            return self._threads

    def add(self, stream: StreamEnd) -> None:
        with self._lock:
            self._streams.add(stream)
            if not self._is_looking:
                self._is_looking = True
                threading.Thread(target=self._look_after_all, name="watch of streams", daemon=True).start()
        self.give_turn(stream)

    def remove(self, stream: StreamEnd) -> None:
        with self._lock:
            self._streams.discard(stream)
            if not self._streams:
                self._has_turns.notify_all()
                self._is_idle.notify_all()

    def give_turn(self, stream: StreamEnd) -> None:
        """Let a stream send one message as soon as a thread is free, and again while it has more."""
        with self._lock:
            self._give_turn(stream)

    def _give_turn(self, stream: StreamEnd) -> None:
        if stream.is_in_turn or stream.sending_over.is_set() or stream not in self._streams:
            return
        stream.is_in_turn = True
        self._turns.append((time.monotonic(), stream))
        if self._free < len(self._turns) and self._threads < KEPT:
            self._start()
        self._has_turns.notify()

    # --- threads that write -------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._threads += 1
        threading.Thread(target=self._write, name="writer of streams", daemon=True).start()

    def _write(self) -> None:
        while (stream := self._next_turn()) is not None:
            stream.send_next()
            with self._lock:
                stream.is_in_turn = False
                if stream.outgoing.has_work:  # looked at under the lock: whoever puts more comes before or after
                    self._give_turn(stream)

    def _next_turn(self) -> StreamEnd | None:
        """The stream whose turn it is; None if this thread is not needed any more."""
        with self._lock:
            while not self._turns:
                if not self._streams or self._free >= KEPT:
                    self._threads -= 1
                    return None
                self._free += 1
                self._has_turns.wait()
                self._free -= 1
            return self._turns.popleft()[1]

    # --- the thread that looks ----------------------------------------------------------------------------------------

    def _look_after_all(self) -> None:
        looked = compared = time.monotonic()
        while True:
            with self._lock:
                self._is_idle.wait_for(lambda: not self._streams, LOOK)
                if not self._streams:
                    self._is_looking = False
                    return
                now = time.monotonic()
                self._keep_going(now)
                streams = list(self._streams)
            for stream in streams:
                stream.look(now - looked)
            looked = now
            suspects = [stream for stream in streams if stream.is_suspect]
            if suspects and now - compared >= min(stream.timing.beat for stream in suspects):
                compared, counted = now, payloads()
                for stream in suspects:
                    stream.compare(counted)
            for stream in suspects:
                if stream.silence >= stream.timing.lost:
                    with contextlib.suppress(Exception):  # it has just ended by itself
                        stream.lose()

    def _keep_going(self, now: float) -> None:
        """Give beats their turns, and turns that have waited for long threads of their own."""
        overdue = sum(now - since > LOOK for since, _ in self._turns)
        for _ in range(min(overdue, STARTED)):
            self._start()
        for stream in self._streams:
            if stream.needs_beat(now):
                self._give_turn(stream)


WATCH = Watch()  # of this process
