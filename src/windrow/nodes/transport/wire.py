"""A stream of messages in one direction, in which a message is compressed with those before it in mind.

Most messages are small, and the schemas of their tables are larger than the rows; but they are nearly the same every
time. So small messages are one deflate stream, flushed after each, and a message costs little more than what is new in
it. Large ones are compressed alone (`messages.to_bytes`), faster and better.

Both ends begin anew with every stream, whose messages come in order and whole.
"""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass, field
from typing import Any

from windrow.nodes.protocol.messages import Message, MessageError, compressed, from_bytes, to_bytes
from windrow.nodes.transport.queues import Outgoing
from windrow.nodes.transport.traffic import Meter

BEAT = b"\n"  # "still here", which is no message
BEAT_EVERY = 1.0  # seconds between beats

LEVEL = 4  # beyond, it takes longer and gains little
MOST_STREAMED = 65_536  # bytes of a message that goes into the stream; it remembers half as many
_STREAMED = b"S"
_FLUSHED = b"\x00\x00\xff\xff"  # ends what is flushed, every time


class Writer:
    """The end that sends."""

    def __init__(self) -> None:
        self._stream = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)

    def write(self, message: Message) -> bytes:
        data = to_bytes(message, compress=False)
        if len(data) > MOST_STREAMED:
            return compressed(data)
        flushed = self._stream.compress(data) + self._stream.flush(zlib.Z_SYNC_FLUSH)
        return _STREAMED + flushed.removesuffix(_FLUSHED)


class Reader:
    """The end that receives."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(-zlib.MAX_WBITS)

    def read(self, data: bytes) -> Message:
        """The next message; after a `MessageError` the stream cannot be read any more."""
        if not data.startswith(_STREAMED):
            return from_bytes(data)
        try:
            content = self._stream.decompress(data[1:] + _FLUSHED, MOST_STREAMED + 1)
        except zlib.error as error:
            raise MessageError(f"these bytes cannot be read: {error}") from error
        if len(content) > MOST_STREAMED:
            raise MessageError(f"a message in the stream is larger than {MOST_STREAMED:,} bytes")
        return from_bytes(content)


@dataclass
class StreamEnd:
    """An end of an open stream: what it has to send, with beats in between, and what has come over it."""

    outgoing: Outgoing = field(default_factory=Outgoing)
    meter: Meter = field(default_factory=Meter)
    received_at: float = field(default_factory=time.monotonic)
    _reader: Reader = field(default_factory=Reader)
    _writer: Writer = field(default_factory=Writer)

    def send(self, writer: Any, wait: float) -> None:
        """Send the next message, or a beat if none comes for so many seconds."""
        message = self.outgoing.get(wait)
        data = BEAT if message is None else self._writer.write(message)
        writer.write_metadata(data)
        self.meter.sent(0 if message is None else len(data))

    def receive(self, buffer: Any) -> Message | None:
        """Read what has come; None if it is a beat."""
        data = b"" if buffer is None else buffer.to_pybytes()
        self.received_at = time.monotonic()
        self.meter.received(0 if data == BEAT else len(data))
        return None if data == BEAT else self._reader.read(data)
