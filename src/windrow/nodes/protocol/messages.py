"""Messages: what nodes send to each other, and how it is written.

    up      Hello    a node starts (again)                Batch    slices, or raw events where the order counts
            Alive    nothing new, but the node is there   Leave    the node goes
            Claim    to the root: may a node come here?
    down    Welcome  the query set, where to go on from   Ack      batches up to here are safely stored
            Offer    say Hello with this epoch            Left     the node may go
            Queries  the query set has changed            Request  from the root to one local node
            Refused  and why                              Claimed  the root's answer to a claim

Bytes are a JSON line and Arrow IPC streams with checksums (`io.tables.pack`). They are compressed as a whole, because
the description of a table is often larger than its rows, and in nothing that is inside them, so that the size that a
message says bounds the memory that it takes. Nothing is ever unpickled: what cannot be read is a `MessageError`,
whatever the bytes are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa

from windrow.core.windows.fixed import FURTHEST, INT64_MAX, INT64_MIN
from windrow.io.tables import pack, unpack

LARGEST = 256 * 2**20  # bytes of a message
_SMALL = 256  # bytes that are not worth compressing
_COMPRESSED = b"Z"  # then the size before compression, in eight bytes; an uncompressed message begins with a brace

Position = Mapping[str, Any]  # in a node's source: plain data of the node's own


class MessageError(ValueError):
    """Bytes that are no message, or a message that cannot be: what is wrong."""


class Announced(NamedTuple):
    """What a node announces to its parent with every batch: how it cuts events, and whether it is idle."""

    version: int = 0  # of the query set by which it cuts
    since: int = INT64_MIN  # all its events from this time on are cut by that version
    idle: int = 0  # 1 while it has nothing to send and does not hold the watermark back


class Report(NamedTuple):
    """What a node has for its parent, before `SendWindow` numbers it as a `Batch`."""

    watermark: int
    announced: Announced
    events: Mapping[str, int]
    newest: int
    tables: Mapping[str, pl.DataFrame]
    position: Position


class Notes(list[str]):
    """Sentences of a node for its log."""

    def __init__(self) -> None:
        super().__init__()
        self._noted: set[str] = set()

    def once(self, key: str, text: str) -> None:
        """Note a text, unless that was done for the same key before."""
        if key not in self._noted:
            self._noted.add(key)
            self.append(text)


@dataclass(frozen=True)
class Up:
    """A message of a child: which one, and in which of its lives."""

    node: str
    life: int  # drawn at random when the node started, so that no two of its lives have the same


@dataclass(frozen=True)
class Hello(Up):
    """A node starts, or its connection was opened again."""

    epoch: int = 1  # how many lives of the node its parent has welcomed with this one, as far as the node knows


@dataclass(frozen=True)
class Claim(Up):
    """A node wants to come in for the first time; every parent on the way to the root passes this on as its own."""

    child: str
    parent: str  # below which it wants to come in


@dataclass(frozen=True)
class Batch(Up):
    """What a node sends after its batch `number - 1`, and how far the watermark has come with it."""

    number: int
    position: Position  # from where a node goes on that has lost everything after this batch
    watermark: int
    version: int  # these three: see `Announced`
    since: int
    idle: int
    events: Mapping[str, int]  # of each local node, how many are complete in this batch and those before it
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict, compare=False)
    newest: int = INT64_MIN  # no event in this batch and those before it is later

    @property
    def announced(self) -> Announced:
        return Announced(self.version, self.since, self.idle)


@dataclass(frozen=True)
class Alive(Up):
    """A node has nothing new."""

    version: int  # of the query set that it knows


class Leave(Up):
    """A node goes; all its batches are acknowledged."""


@dataclass(frozen=True)
class Down:
    """A message of a parent to one life of a child."""

    life: int


@dataclass(frozen=True)
class Offer(Down):
    """The parent's answer to a Hello of another life than the last; it becomes the last with a Hello of this epoch."""

    epoch: int


@dataclass(frozen=True)
class Claimed(Down):
    """The root's answer to a Claim."""

    child: str
    parent: str
    refusal: str  # why the node may not come in below that parent; nothing if it may


@dataclass(frozen=True)
class Welcome(Down):
    """The parent's answer to a Hello: the query set, and the node's last batch that the parent has stored."""

    accepted: int
    position: Position
    query_set: Mapping[str, Any]  # as `queries.py` writes it
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict, compare=False)  # one without events: the columns
    sent_in: int = 0  # the life of the node in which it sent that batch; 0 if there is none


@dataclass(frozen=True)
class Queries(Down):
    """The query set has changed."""

    query_set: Mapping[str, Any]
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Ack(Down):
    """The parent has stored the batches up to this number."""

    number: int


class Left(Down):
    """The parent does not wait for the node any more."""


@dataclass(frozen=True)
class Refused(Down):
    """The parent does not take a node or a message, and why."""

    reason: str


@dataclass(frozen=True)
class Request(Down):
    """What the root lets one local node know and requests from it; the nodes between them pass it on."""

    node: str
    number: int  # the node's batches say up to which number it has received requests
    over: int  # 1 if the root will request nothing more
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict, compare=False)


Message = Up | Down
Out = list[tuple[str, Message]]  # messages, each with the node that it goes to
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for base in (Up, Down) for kind in base.__subclasses__()}
_FIELDS = {kind: {entry.name: str(entry.type) for entry in fields(kind)} for kind in _KINDS.values()}
_TYPES: dict[str, type[Any]] = {"str": str, "int": int}  # all others are mappings
_TIMES = ("watermark", "since", "newest")  # of the fields with numbers; the others count


def to_bytes(message: Message, compress: bool = True) -> bytes:
    """Write a message as bytes; without `compress`, its first line can be read alone."""
    header = {name: getattr(message, name) for name in _FIELDS[type(message)] if name != "tables"}
    data = pack({"message": type(message).__name__, "fields": header}, getattr(message, "tables", {}), compress=False)
    _check_size(len(data))
    return compressed(data) if compress and len(data) >= _SMALL else data


def compressed(data: bytes) -> bytes:
    """Compress the bytes of a message, if that makes them fewer."""
    smaller = _COMPRESSED + len(data).to_bytes(8, "big") + pa.compress(data, codec="zstd", asbytes=True)
    return smaller if len(smaller) < len(data) else data


def from_bytes(data: bytes) -> Message:
    """Read a message, and check every field."""
    _check_size(len(data))
    try:
        header, tables = unpack(_expanded(data), strict=True)
    except (ValueError, pa.ArrowException, OSError) as error:
        raise MessageError(f"these bytes cannot be read: {error}") from error
    kind = _KINDS.get(str(header.get("message")))
    given = header.get("fields")
    if kind is None or not isinstance(given, dict):
        raise MessageError(f"there is no message {_shown(header.get('message'))}")
    wanted = dict(_FIELDS[kind])
    has_tables = wanted.pop("tables", None)
    if given.keys() != wanted.keys():
        raise MessageError(f"{kind.__name__} has {', '.join(wanted)}, not {_shown(list(given))}")
    for name, expected in wanted.items():
        if not _is(given[name], expected, name):
            raise MessageError(f"{kind.__name__}.{name} is {_shown(given[name])}")
    if tables and not has_tables:
        raise MessageError(f"{kind.__name__} has no tables")
    return kind(**given, **({"tables": tables} if has_tables else {}))  # type: ignore[no-any-return]


def _is(value: Any, expected: str, name: str) -> bool:
    """Whether the value of a field is of its type, and a number in its bounds."""
    if type(value) is not _TYPES.get(expected, dict):
        return False
    if expected == "int":
        return _fits(value) if name in _TIMES else 0 <= value <= FURTHEST
    return expected != "Mapping[str, int]" or all(
        type(number) is int and 0 <= number <= FURTHEST for number in value.values()
    )


def _fits(time: int) -> bool:
    """Whether a time is one that windows can be written around, or stands for the beginning or end of all times."""
    return -FURTHEST <= time <= FURTHEST or time in (INT64_MIN, INT64_MAX)


def _shown(value: Any) -> str:
    """What a message has, as far as it belongs into a log."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"


def _expanded(data: bytes) -> bytes:
    if not data.startswith(_COMPRESSED):
        return data
    size = int.from_bytes(data[1:9], "big")
    _check_size(size)
    with pa.input_stream(pa.py_buffer(memoryview(data)[9:]), compression="zstd") as stream:
        content: bytes = stream.read(size + 1)
    if len(content) != size:
        raise MessageError(f"a message says that it has {size:,} bytes, and has not")
    return content


def _check_size(size: int) -> None:
    if size > LARGEST:
        raise MessageError(f"a message of {size:,} bytes is larger than {LARGEST:,}")
