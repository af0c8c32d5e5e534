"""The stream of messages on a link: what is said again and again costs next to nothing, and nothing else changes."""

from __future__ import annotations

import io
import json
import random
import resource
import struct
import zlib

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from test_nodes import MESSAGES
from windrow.io import tables
from windrow.nodes.protocol.messages import Batch, Message, MessageError, from_bytes, to_bytes
from windrow.nodes.transport.wire import MOST_STREAMED, Reader, Writer


def batch(number: int, rows: int = 3) -> Batch:
    table = pl.DataFrame({"slice_start": range(number, number + rows), "sum(x).sum": [number / 7] * rows})
    return Batch("a", 3, number, {"mark": {"at": number}}, number, 1, -5, 0, {"a": number}, {"by () on t": table})


def test_messages_come_back_in_their_order_small_and_large() -> None:
    writer, reader = Writer(), Reader()
    large = [batch(1, 50_000), batch(2), batch(3, 50_000)]
    for message in [*MESSAGES, *large, *MESSAGES]:
        again = reader.read(writer.write(message))
        assert again == message
        for name, table in getattr(message, "tables", {}).items():
            assert again.tables[name].equals(table)  # type: ignore[union-attr]


def test_what_was_said_before_is_not_paid_for_again() -> None:
    writer = Writer()
    first, *rest = (len(writer.write(batch(number))) for number in range(20))
    assert first <= len(to_bytes(batch(0)))
    assert max(rest) < first / 3


def test_a_message_without_those_before_it_cannot_be_read() -> None:
    writer = Writer()
    writer.write(batch(1))
    with pytest.raises(MessageError):
        Reader().read(writer.write(batch(1)))


def test_garbled_bytes_are_refused_and_nothing_else_happens(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(300):
        writer, reader = Writer(), Reader()
        reader.read(writer.write(batch(1)))
        garbled = bytearray(writer.write(batch(2)))
        for _ in range(dice.randint(1, 4)):
            garbled[dice.randrange(len(garbled))] = dice.randrange(256)
        try:
            found = reader.read(bytes(garbled))
        except MessageError:
            continue
        assert isinstance(found, Message)  # another number in it is still a message


def test_a_few_bytes_do_not_become_many() -> None:
    bomb = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    data = bomb.compress(b"{" * 10**8) + bomb.flush(zlib.Z_SYNC_FLUSH)
    with pytest.raises(MessageError, match=f"larger than {MOST_STREAMED:,} bytes"):
        Reader().read(b"S" + data)


# --- tables that lie --------------------------------------------------------------------------------------------------


def message_with(part: bytes) -> bytes:
    """A batch with such a table, whose sums fit, as a child with a right token may send it."""
    fields = {"node": "a", "epoch": 1, "number": 1, "position": {}, "watermark": 0, "version": 1, "since": 0, "idle": 0}
    header = {"message": "Batch", "fields": {**fields, "events": {}, "newest": 0}}
    line = json.dumps({**header, "tables": {"t": len(part)}, "crc32": zlib.crc32(part)}).encode()
    return tables._HEAD.pack(tables._MAGIC, zlib.crc32(line), len(line)) + line + part


def stream_of(column: pa.Array, compression: str | None = None) -> bytes:
    buffer = io.BytesIO()
    table = pa.table({"slice_start": column})
    with pa.ipc.new_stream(buffer, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return buffer.getvalue()


def nested(depth: int) -> bytes:
    dtype: pa.DataType = pa.int64()
    for _ in range(depth):
        dtype = pa.struct([("a", dtype)])
    return pa.schema([("slice_start", dtype)]).serialize().to_pybytes()  # type: ignore[no-any-return]


def with_length(length: int) -> bytes:
    """Three numbers in 24 bytes, of which every place that says so says something else."""
    data = stream_of(pa.array([1, 2, 3], pa.int64()))
    return data.replace(struct.pack("<q", 24), struct.pack("<q", length))


LIES = {
    "a buffer that is longer than the message": lambda: message_with(with_length(2**40)),
    "a buffer of nearly all memory that there can be": lambda: message_with(with_length(2**62)),
    "a buffer of a negative length": lambda: message_with(with_length(-1)),
    "compression inside": lambda: message_with(stream_of(pa.array(np.zeros(10**7, np.int64)), "zstd")),
    "compression of the other kind inside": lambda: message_with(stream_of(pa.array(np.zeros(10**7, np.int64)), "lz4")),
    "a billion rows in no bytes": lambda: message_with(stream_of(pa.nulls(10**9))),
    "structs in structs": lambda: message_with(nested(500)),
    "a dictionary": lambda: message_with(stream_of(pa.array(["a", "b"]).dictionary_encode())),
    "lists in a header": lambda: message_with(b"").replace(b'"position": {}', b'"position": ' + b"[" * 14),
    "more than it says": lambda: (
        b"Z" + (100).to_bytes(8, "big") + pa.compress(bytes(2**28), codec="zstd", asbytes=True)
    ),
    "more than a message may have": lambda: b"Z" + (2**40).to_bytes(8, "big") + bytes(9),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_table_that_lies_is_refused_and_takes_no_memory(lie: str) -> None:
    data = LIES[lie]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(MessageError):
        from_bytes(data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kilobytes
