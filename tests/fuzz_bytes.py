"""Bytes that are not what was written: every border refuses them with its own error, and nothing else happens.

    python tests/fuzz_bytes.py messages snapshots --count 250000 --seed 7

Each border is tried in a process of its own, whose memory is limited, so that an abort, a crash and a message that
takes gigabytes are found like any other failure. An input follows from seed, border and number alone, so that what is
printed repeats it.

    messages     what a child with a right token may send: the sums are made to fit what was changed
    streams      the same on their way, several in one deflate stream
    snapshots    of an engine: any change at all is refused
    batches      that a root leaves for Spark, and what it says of its queries: likewise
    spools       a commit that is cut short is dropped; any other change is refused
    books        a version of a query book: likewise
    checkpoints  the state of a bucket of a stream on Spark: a change is refused by the step that reads it
    texts        that people write, from SQL to YAML: read within a second, or refused in words (`fuzz_texts`)
    values       other ones in well-formed batches of a child: refused, or taken and no other child notices
                 (`fuzz_values`)
"""

from __future__ import annotations

import argparse
import json
import mmap
import random
import resource
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

MEMORY = 6 << 30  # of addresses, most of which Arrow and Polars set aside and do not use
RESIDENT = 400 << 20  # bytes that trying may add to what a process has at its beginning
EXTREMES = (0, 1, 2**31 - 1, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


@dataclass(frozen=True)
class Border:
    """Bytes that are right, how they are changed, and how they are read; `read` raises `error` for what it refuses."""

    samples: list[bytes]
    read: Callable[[bytes, bytes], None]  # gets what was changed, and what it was before
    error: tuple[type[Exception], ...]
    change: Callable[[bytes, random.Random], bytes]


def changed(data: bytes, dice: random.Random) -> bytes:
    """The bytes with a few changes."""
    result = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 3, 8))):
        at, size = dice.randrange(len(result) + 1), min(8, len(result))
        match dice.randrange(7):
            case 0 | 1 if result:
                result[at % len(result)] ^= 1 << dice.randrange(8)
            case 2 if size:
                begin = at % (len(result) - size + 1)
                result[begin : begin + size] = dice.choice(EXTREMES).to_bytes(8, "little")[:size]
            case 3:
                del result[at : at + dice.randint(1, 40)]
            case 4:
                result[at:at] = dice.randbytes(dice.randint(1, 40))
            case 5:
                del result[at:]
            case _:
                other = dice.randrange(len(result) + 1)
                result[at:at] = result[other : other + dice.randint(1, 200)]
    return bytes(result)


def resummed(data: bytes, dice: random.Random) -> bytes:
    """A message that was changed in its header or its tables, and whose sums fit again, as a hostile child sends it."""
    from windrow.io import tables

    if dice.random() < 0.1:
        return changed(data, dice)
    length = int.from_bytes(data[12:16], "little")
    line, body = data[16 : 16 + length], data[16 + length :]
    if dice.random() < 0.4 or not body:
        line = changed(line, dice)
    else:
        header = json.loads(line)
        name = dice.choice(list(header["tables"]))
        begin = sum(list(header["tables"].values())[: list(header["tables"]).index(name)])
        end = begin + header["tables"][name]
        part = changed(body[begin:end], dice)
        body = body[:begin] + part + body[end:]
        header |= {"crc32": zlib.crc32(body), "tables": header["tables"] | {name: len(part)}}
        line = json.dumps(header).encode()
    return tables._HEAD.pack(tables._MAGIC, zlib.crc32(line), len(line)) + line + body


# --- the borders ------------------------------------------------------------------------------------------------------


def _messages() -> list[Any]:
    import polars as pl

    from test_nodes import MESSAGES
    from windrow.nodes.protocol.messages import Batch

    rows = pl.DataFrame(
        {
            "key:k": ["a", None, "a longer key than fits into a view"],
            "slice_start": [0, 10, 20],
            "sum(x).sum": pl.Series([1, 2, None], dtype=pl.Decimal(38, 0)),
            "bag(x).values": [[1.5, 2.5], [], None],
            "arg(x).both": [{"x": 1, "y": "b"}] * 3,
            "min(x).min": [b"\x00", None, b"bytes"],
            "n": pl.Series([None] * 3),
            "t": pl.Series([1, 2, 3]).cast(pl.Datetime("us", "Europe/Berlin")),
        }
    )
    counts = {"by (k) on t": rows, "none": rows[:0], "many": pl.DataFrame({"slice_start": range(500)})}
    return [*MESSAGES, Batch("a", 3, 9, {"mark": {"at": [80, "x"]}}, 75, 1, -5, 0, {"a": 80, "b": 1}, counts)]


def messages() -> Border:
    from windrow.nodes.protocol.messages import MessageError, from_bytes, to_bytes

    samples = [to_bytes(message, compress=False) for message in _messages()]
    return Border(samples, lambda data, _: void(from_bytes(data)), (MessageError,), resummed)


def streams() -> Border:
    from windrow.nodes.protocol.messages import MessageError
    from windrow.nodes.transport.wire import Reader, Writer

    writer = Writer()
    sent = [writer.write(message) for message in _messages()]
    # the messages of a stream are laid end to end, each behind its length; the length stays as it is
    sample = b"".join(len(one).to_bytes(4, "little") + one for one in sent)

    def read(data: bytes, _: bytes) -> None:
        reader, at = Reader(), 0
        for one in sent:
            size = 4 + len(one)
            void(reader.read(data[at + 4 : at + size]))
            at += size

    return Border([sample], read, (MessageError,), changed)


def snapshots() -> Border:
    from test_errors import running
    from windrow import Engine

    def read(data: bytes, before: bytes) -> None:
        void(Engine.restore(data))
        same(data, before)

    return Border([running().snapshot(), running(updates=5).snapshot()], read, (ValueError,), changed)


def batches() -> Border:
    from trees import asking
    from windrow.nodes.process.slice_sink import SliceSink, SliceSinkError
    from windrow.nodes.protocol.messages import Batch, to_bytes

    folder = Path(tempfile.mkdtemp())
    sink = SliceSink(folder)
    sink.set_queries(asking())
    queries = folder / "slices" / "asked"
    batch = next(to_bytes(one, compress=False) for one in _messages()[::-1] if isinstance(one, Batch))
    batch = batch.replace(b'"number": 9', b'"number": 1')
    file = folder / "slices" / f"{1:020}.batch"
    from windrow.io import tables

    length = int.from_bytes(batch[12:16], "little")
    batch = tables._HEAD.pack(tables._MAGIC, zlib.crc32(batch[16 : 16 + length]), length) + batch[16:]
    declared = queries.read_bytes()

    def read(data: bytes, before: bytes) -> None:
        if before == declared:
            queries.write_bytes(data)
            void(SliceSink(folder).query_set)
        else:
            file.write_bytes(data)
            void(SliceSink(folder).head(1))
            void(SliceSink(folder).read(1))
        same(data, before)

    return Border([declared, batch], read, (SliceSinkError,), changed)


def books() -> Border:
    import windrow as wr
    from windrow.spark.stream import query_book_files

    path = str(Path(tempfile.mkdtemp()) / "book")
    book = wr.QueryBook(path, columns={"n": "bigint"}, keys=["k"])
    book.add(wr.Query("q", wr.tumbling(10), [wr.count().alias("n")], by="k"))
    name = query_book_files.head(path)
    file = Path(path) / "versions" / f"{name}.json"
    right = query_book_files.read(path, name)

    def read(data: bytes, _: bytes) -> None:
        file.write_bytes(data)
        if query_book_files.read.__wrapped__(path, name) != right:  # white space between words may change
            raise AssertionError("another version was read")

    return Border([file.read_bytes()], read, (ValueError,), changed)


def spools() -> Border:
    from windrow.nodes.process.log_store import LogFile, LogStoreError

    path = Path(tempfile.mkdtemp()) / "spool"
    store, states = LogFile(path), {}
    for number in range(8):
        states[path.stat().st_size] = {name: store.get(name) for name in store.names()}
        store.commit({f"name {number % 3}": random.Random(number).randbytes(50 * number)}, [f"name {number - 1}"])
    states[path.stat().st_size] = {name: store.get(name) for name in store.names()}
    store.close()

    def read(data: bytes, before: bytes) -> None:
        path.write_bytes(data)
        found = LogFile(path)
        try:
            end = len(data) - found.torn
            kept = {name: found.get(name) for name in found.names()}
        finally:
            found.close()
        # what is left is what was written, up to the end of a commit; and behind that there is less than a commit
        if data[:end] != before[:end] or states.get(end) != kept:
            raise AssertionError(f"a changed spool was taken, up to byte {end}")

    return Border([path.read_bytes()], read, (LogStoreError,), changed)


def checkpoints() -> Border:
    import copy

    import polars as pl

    import windrow as wr
    from test_spark_buckets import Buckets
    from windrow.spark.stream.slice_store import StateError

    queries = [
        wr.Query("tumbling", wr.tumbling(10), ["sum(x)", "median(x)"], by="k"),
        wr.Query("session", wr.session(3), ["count()"], by="k"),
        wr.Query("counting", wr.counting(4), ["first(x)"], by="k"),
    ]
    schema = {"t": pl.Int64(), "k": pl.Int64(), "x": pl.Float64()}
    buckets = Buckets(queries, lateness=20, buckets=1, schema=schema)
    rows = [{"t": time, "k": time % 3, "x": float(time)} for time in range(40)]
    buckets.push(pl.DataFrame(rows, schema=schema))
    names = {value: name for name, value in buckets.stores[0].items()}
    last = pl.DataFrame([{"t": 100, "k": 1, "x": 1.0}], schema=schema)
    right = copy.deepcopy(buckets).push(last)

    def read(data: bytes, before: bytes) -> None:
        again = copy.deepcopy(buckets)
        again.stores[0][names[before]] = data
        if again.push(last) != right:
            raise AssertionError("other results follow from a changed checkpoint")

    return Border(list(names), read, (StateError,), changed)


def texts() -> Border:
    import fuzz_texts

    def read(data: bytes, _: bytes) -> None:
        fuzz_texts.read(data)

    return Border(fuzz_texts.samples(), read, (fuzz_texts.Refusal,), fuzz_texts.change)


def values() -> Border:
    """Every batch that a child sends to a root, and to an intermediate node, for queries of all kinds."""
    import fuzz_values
    from windrow.nodes.protocol.messages import Batch, MessageError, from_bytes, to_bytes

    trees = [tree for kind in fuzz_values.QUERY_SETS for tree in fuzz_values.both(kind)]
    of_sample = {to_bytes(sample.batch, compress=False): sample for tree in trees for sample in tree.samples}
    tree_of = {id(sample): tree for tree in trees for sample in tree.samples}
    count = 0

    def change(data: bytes, dice: random.Random) -> bytes:
        return to_bytes(fuzz_values.changed(of_sample[data].batch, dice), compress=False)

    def read(data: bytes, before: bytes) -> None:
        nonlocal count
        count += 1
        batch, sample = from_bytes(data), of_sample[before]
        assert isinstance(batch, Batch)
        tree_of[id(sample)].give(sample, batch, to_the_end=count % 10 == 1)

    return Border(list(of_sample), read, (MessageError, fuzz_values.Refusal), change)


def void(_: object) -> None:
    """What was read is of no use."""


def same(data: bytes, before: bytes) -> None:
    if data != before:
        raise AssertionError("bytes that were changed have been taken")


BORDERS: dict[str, Callable[[], Border]] = {
    "messages": messages,
    "streams": streams,
    "snapshots": snapshots,
    "batches": batches,
    "books": books,
    "spools": spools,
    "checkpoints": checkpoints,
    "texts": texts,
    "values": values,
}


# --- trying -----------------------------------------------------------------------------------------------------------


def attempt(name: str, seed: int, first: int, count: int, progress: Path) -> None:
    """Try inputs of a border; whatever is not its own error comes out of here."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    border = BORDERS[name]()
    for sample in border.samples:
        border.read(sample, sample)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = 0
    with progress.open("r+b") as file, mmap.mmap(file.fileno(), 8) as place:
        for number in range(first, first + count):
            place[:] = number.to_bytes(8, "little")
            dice = random.Random(f"{seed} {name} {number}")
            sample = dice.choice(border.samples)
            try:
                border.read(border.change(sample, dice), sample)
            except border.error as error:
                refused += bool(str(error))  # one without a word is not counted
            added = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
            assert added < RESIDENT, f"it takes {added:,} bytes more"
    print(f"{name}: {count:,} inputs, {refused:,} refused")


def tried(name: str, seed: int, count: int, first: int = 0) -> str | None:
    """Try a border in a process of its own; returns what went wrong, with the input that repeats it."""
    with tempfile.TemporaryDirectory() as folder:
        progress = Path(folder) / "progress"
        progress.write_bytes(bytes(8))
        command = [sys.executable, __file__, name, "--seed", str(seed), "--count", str(count), "--first", str(first)]
        done = subprocess.run([*command, "--progress", str(progress)], capture_output=True, text=True, cwd=folder)
        number = int.from_bytes(progress.read_bytes(), "little")
    sys.stdout.write(done.stdout)
    if done.returncode == 0:
        return None
    again = f"python tests/fuzz_bytes.py {name} --seed {seed} --first {number} --count 1"
    return f"{name}: exit code {done.returncode}; again: {again}\n{done.stderr[-3000:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("borders", nargs="*", choices=[*BORDERS, []], metavar="BORDER")
    parser.add_argument("--count", type=int, default=10_000, help="inputs of each border")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--progress", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.progress is not None:
        attempt(given.borders[0], given.seed, given.first, given.count, given.progress)
        return 0
    run = partial(tried, seed=given.seed, count=given.count, first=given.first)
    wrong = [reason for name in given.borders or BORDERS if (reason := run(name)) is not None]
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
