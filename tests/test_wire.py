"""The stream of messages on a link: what is said again and again costs next to nothing, and nothing else changes."""

from __future__ import annotations

import random
import zlib

import polars as pl
import pytest

from test_nodes import MESSAGES
from windrow.nodes.protocol.messages import Batch, Message, MessageError, to_bytes
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
