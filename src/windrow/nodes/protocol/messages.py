"""Messages: what nodes say to each other, and how it is written.

    up      Hello    a node has come (again)              Batch  slices, raw events where the order counts
            Alive    nothing new, but it is still there   Leave  nothing comes any more
    down    Welcome  what is asked, where to go on from   Ack    up to here everything is safely held
            Plan     what is asked now                    Left   it may go
            Refused  why not                              Request  what the root tells and asks a local node

Bytes are a JSON line and Arrow IPC streams with a checksum (`slices.pack`), compressed as a whole, because what is
said of a table is often more than what is in it; nothing is ever unpickled. What cannot be read is a `MessageError`,
whatever the bytes are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import polars as pl
import pyarrow as pa

from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.io.tables import pack, unpack

LARGEST = 256 * 2**20  # bytes of a message
_SMALL = 256  # bytes that are not worth compressing
_COMPRESSED = b"Z"  # then eight bytes that say how many they were; what is not compressed begins with a brace

Position = Mapping[str, Any]  # in a node's source: plain data of the node's own


class MessageError(ValueError):
    """Bytes that are no message, or one that cannot be: what is wrong."""


@dataclass(frozen=True)
class Hello:
    """A node has come, or has come again: a later start has a greater epoch."""

    node: str
    epoch: int


@dataclass(frozen=True)
class Batch:
    """What a node has for its parent since the batch before: numbered, and after it the watermark has come so far."""

    node: str
    epoch: int
    number: int
    position: Position  # from where a node goes on that has lost everything after this batch
    watermark: int
    plan: int  # the version of what is asked by which its events are cut
    since: int  # all events from this time on are cut by that version
    idle: int  # 1 while it has nothing to say and does not hold the watermark back
    events: Mapping[str, int]  # of each local node, how many are wholly in this batch and those before it
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict, compare=False)
    newest: int = INT64_MIN  # no event in this batch and those before it is later


@dataclass(frozen=True)
class Alive:
    """A node has nothing new."""

    node: str
    epoch: int
    plan: int


@dataclass(frozen=True)
class Leave:
    """A node goes; everything that it had is acknowledged."""

    node: str
    epoch: int


@dataclass(frozen=True)
class Welcome:
    """The parent's answer: what is asked, and the last batch of the node that it holds."""

    epoch: int
    accepted: int
    position: Position
    asked: Mapping[str, Any]  # as `Asked.to_dict` writes it
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict, compare=False)  # an empty one with its columns


@dataclass(frozen=True)
class Plan:
    """What is asked has changed."""

    epoch: int
    asked: Mapping[str, Any]
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Ack:
    """Batches up to this one are safely held."""

    epoch: int
    number: int


@dataclass(frozen=True)
class Left:
    """The parent waits for the node no more."""

    epoch: int


@dataclass(frozen=True)
class Refused:
    """The parent does not take a node or a message, and why."""

    epoch: int
    reason: str


@dataclass(frozen=True)
class Request:
    """What the root tells a local node and asks of it, passed on by the nodes between them (see `forms`)."""

    epoch: int
    node: str
    number: int  # the node says in its batches which it has heard
    over: int  # 1 if it will be asked nothing more
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict, compare=False)


Up = Hello | Batch | Alive | Leave
Down = Welcome | Plan | Ack | Left | Refused | Request
Message = Up | Down
_ALL: tuple[type[Any], ...] = (Hello, Batch, Alive, Leave, Welcome, Plan, Ack, Left, Refused, Request)
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in _ALL}
_FIELDS = {kind: {one.name: str(one.type) for one in fields(kind) if one.name != "tables"} for kind in _ALL}
_WITH_TABLES = {kind for kind in _ALL if any(one.name == "tables" for one in fields(kind))}
_TYPES: dict[str, type[Any]] = {
    "str": str,
    "int": int,
    "Position": dict,
    "Mapping[str, Any]": dict,
    "Mapping[str, int]": dict,
}


def to_bytes(message: Message, compress: bool = True) -> bytes:
    """A message as bytes; without `compress`, its first line can be read alone."""
    header = {name: getattr(message, name) for name in _FIELDS[type(message)]}
    data = pack({"message": type(message).__name__, "fields": header}, getattr(message, "tables", {}))
    if len(data) > LARGEST:
        raise MessageError(f"a message of {len(data):,} bytes is larger than {LARGEST:,}")
    return compressed(data) if compress and len(data) >= _SMALL else data


def compressed(data: bytes) -> bytes:
    """The bytes of a message, compressed if that makes them fewer."""
    fewer = _COMPRESSED + len(data).to_bytes(8, "big") + pa.compress(data, codec="zstd", asbytes=True)
    return fewer if len(fewer) < len(data) else data


def from_bytes(data: bytes) -> Message:
    if len(data) > LARGEST:
        raise MessageError(f"a message of {len(data):,} bytes is larger than {LARGEST:,}")
    try:
        header, tables = unpack(_expanded(data))
    except Exception as error:  # whatever Arrow makes of bytes that are not its own
        raise MessageError(f"these bytes cannot be read: {error}") from error
    kind = _KINDS.get(header.get("message", ""))
    given = header.get("fields")
    if kind is None or not isinstance(given, dict):
        raise MessageError(f"there is no message {header.get('message')!r}")
    wanted = _FIELDS[kind]
    if given.keys() != wanted.keys():
        raise MessageError(f"{kind.__name__} has {', '.join(wanted)}, not {', '.join(map(str, given))}")
    for name, expected in wanted.items():
        is_wrong = type(given[name]) is not _TYPES[expected]
        numbers = given[name].values() if expected == "Mapping[str, int]" and not is_wrong else [given[name]]
        if is_wrong or ("int" in expected and not all(type(one) is int and _fits(one) for one in numbers)):
            raise MessageError(f"{kind.__name__}.{name} is {given[name]!r}")
    if kind not in _WITH_TABLES:
        if tables:
            raise MessageError(f"{kind.__name__} has no tables")
        return kind(**given)  # type: ignore[no-any-return]
    return kind(**given, tables=tables)  # type: ignore[no-any-return]


def _expanded(data: bytes) -> bytes:
    if not data.startswith(_COMPRESSED):
        return data
    size = int.from_bytes(data[1:9], "big")
    if size > LARGEST:
        raise MessageError(f"a message of {size:,} bytes is larger than {LARGEST:,}")
    return bytes(pa.decompress(data[9:], decompressed_size=size, codec="zstd", asbytes=True))


def _fits(number: int) -> bool:
    return INT64_MIN <= number <= INT64_MAX
