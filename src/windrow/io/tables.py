"""Named tables as bytes, with a header: how slice tables travel and are kept.

    windrow, version │ sum of the line, length │ {…, "tables": {name: bytes, …}, "crc32": …} │ Arrow IPC ‖ …

The first sum covers the line, and the line has the sum of all that follows. So a changed bit is noticed wherever it is,
before anything is made of it, and the header can be read without the tables.

Sums find accidents. Whoever writes such bytes on purpose can make the sums fit, so what comes from another machine is
read with `strict=True`: nothing in it is compressed, so that it takes no more memory than it has bytes, and Arrow
checks all lengths, offsets and texts before Polars sees a table.
"""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any, BinaryIO, Literal

import polars as pl
import pyarrow as pa

VERSION = 5
Compression = Literal["zstd", "lz4", "uncompressed"]
_HEAD = struct.Struct("<8sII")
_MAGIC = b"windrow" + bytes([VERSION])
_OF_POLARS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
_UNREADABLE = (*_OF_POLARS, pa.ArrowException, OSError, ValueError, struct.error)


def to_bytes(table: pl.DataFrame, compression: Compression) -> bytes:
    """A table as Arrow IPC; a small one is not compressed."""
    buffer = io.BytesIO()
    is_large = table.height > 64 or table.estimated_size() > 65536  # one row can hold all values of a slice
    # writing locks a table, and others may read it
    table.clone().write_ipc_stream(buffer, compression=compression if is_large else "uncompressed")
    return buffer.getvalue()


def from_bytes(data: bytes | memoryview) -> pl.DataFrame:
    return pl.read_ipc_stream(io.BytesIO(data))


def to_text(table: pl.DataFrame) -> str:
    """A table as text, for headers."""
    return base64.b64encode(to_bytes(table, "uncompressed")).decode()


def from_text(text: str) -> pl.DataFrame:
    return from_bytes(base64.b64decode(text))


def pack(header: Mapping[str, Any], tables: Mapping[str, pl.DataFrame], compress: bool = True) -> bytes:
    """A header and named tables as bytes; large tables are compressed, unless somebody compresses the whole."""
    parts = [to_bytes(table, "zstd" if compress else "uncompressed") for table in tables.values()]
    sizes = dict(zip(tables, map(len, parts), strict=True))
    body = b"".join(parts)
    line = json.dumps({**header, "tables": sizes, "crc32": zlib.crc32(body)}).encode()
    return b"".join((_HEAD.pack(_MAGIC, zlib.crc32(line), len(line)), line, body))


def read_header(file: BinaryIO) -> dict[str, Any]:
    """Read the header of packed bytes, and leave the tables behind it where they are."""
    head = file.read(_HEAD.size)
    if not head.startswith(_MAGIC[:-1]) or len(head) < _HEAD.size:
        older = ", or of an older version" if head.startswith(b'{"windrow": ') else ""
        raise ValueError(f"these bytes are not a snapshot of windrow{older}")
    magic, checksum, length = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise ValueError(f"this snapshot has version {magic[-1]}; this windrow reads version {VERSION}")
    line = file.read(length)
    if len(line) < length:
        raise ValueError(f"this snapshot is cut short: {len(line)} of the {length} bytes of its header are there")
    if zlib.crc32(line) != checksum:
        raise ValueError("this snapshot is damaged: the checksum of its header is not that of its content")
    try:
        header = json.loads(line)
        numbers = [header["crc32"], *header["tables"].values()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"this snapshot is damaged: {type(error).__name__}: {error}") from error
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("this snapshot is damaged: the size of a table is no size")
    return header  # type: ignore[no-any-return]


def unpack(data: bytes, strict: bool = False) -> tuple[dict[str, Any], dict[str, pl.DataFrame]]:
    """The way back; refuses what is not ours, is cut short, damaged, or of another version.

    strict:  the bytes may be made to do harm
    """
    file = io.BytesIO(data)
    header = read_header(file)
    body, sizes = memoryview(data)[file.tell() :], header["tables"]
    if sum(sizes.values()) != len(body):
        raise ValueError(f"this snapshot is cut short: {len(body)} of {sum(sizes.values())} bytes are there")
    if zlib.crc32(body) != header["crc32"]:
        raise ValueError("this snapshot is damaged: its checksum is not that of its content")
    tables, at = {}, 0
    for name, size in sizes.items():
        part = body[at : at + size]
        try:
            tables[name] = _checked(part) if strict else from_bytes(part)
        except _UNREADABLE as error:
            raise ValueError(f"this snapshot is damaged: {type(error).__name__}: {error}") from error
        at += size
    return header, tables


# --- bytes of strangers -----------------------------------------------------------------------------------------------

_RECORD_BATCH = 3  # of Arrow's message types
_HEADER_TYPE, _HEADER, _COMPRESSION = 1, 2, 3  # fields of Arrow's flatbuffers: of a message, and of a record batch
_LEAVES = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_string_view,
    pa.types.is_binary_view,
    pa.types.is_date32,
    pa.types.is_time64,
    pa.types.is_timestamp,
    pa.types.is_duration,
    pa.types.is_decimal128,
)
_LISTS = (pa.types.is_large_list, pa.types.is_fixed_size_list)


def _checked(data: memoryview) -> pl.DataFrame:
    """Read a table in which anything may be a lie.

    Arrow reads without a copy and checks what it has read; Polars gets only that, in the types that it writes itself.
    Each of them takes up bytes for every row, so a table has no more rows than its bytes can hold.
    """
    messages = list(pa.ipc.MessageReader.open_stream(pa.py_buffer(data)))
    if not messages or messages[0].type != "schema":  # pyarrow would take any message for one
        raise ValueError("a table does not begin with its columns")
    schema = pa.ipc.read_schema(messages[0])
    _check(schema)
    batches = []
    for message in messages[1:]:
        if message.type != "record batch" or _is_compressed(memoryview(message.metadata)):
            raise ValueError("a table is compressed, or has a dictionary")
        batches.append(pa.ipc.read_record_batch(message, schema))
    table = pa.Table.from_batches(batches, schema)
    table.validate(full=True)
    if table.num_rows > 8 * len(data):
        raise ValueError(f"a table says that it has {table.num_rows:,} rows in {len(data):,} bytes")
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _check(schema: pa.Schema) -> None:
    """Refuse columns that Polars would not have written; a name that is no text is a UnicodeDecodeError."""
    if len(set(schema.names)) < len(schema):
        raise ValueError("two columns of a table have one name")
    fields = list(schema)
    while fields:
        field = fields.pop()
        dtype = field.type
        if pa.types.is_struct(dtype) and dtype.num_fields:
            fields += dtype.fields
        elif any(is_list(dtype) for is_list in _LISTS):
            fields.append(dtype.value_field)
        elif not any(is_leaf(dtype) for is_leaf in _LEAVES) and not (pa.types.is_null(dtype) and field in schema):
            raise ValueError(f"a column of a table has the type {dtype}")
        if field.metadata or not field.name.isprintable():
            raise ValueError(f"the column {field.name!r} of a table has a name or metadata that nobody writes")


def _is_compressed(metadata: memoryview) -> bool:
    """Whether the buffers of a record batch are compressed, for which pyarrow has no question.

    A flatbuffer's table begins with the way back to its vtable, which has the place of each field, or zero.
    """

    def field(table: int, number: int) -> int:
        vtable = table - struct.unpack_from("<i", metadata, table)[0]
        if 4 + 2 * number >= struct.unpack_from("<H", metadata, vtable)[0]:
            return 0
        offset: int = struct.unpack_from("<H", metadata, vtable + 4 + 2 * number)[0]
        return table + offset if offset else 0

    message: int = struct.unpack_from("<I", metadata)[0]
    kind, at = field(message, _HEADER_TYPE), field(message, _HEADER)
    if not kind or not at or metadata[kind] != _RECORD_BATCH:
        raise ValueError("a message of a table has no rows")
    batch = at + struct.unpack_from("<I", metadata, at)[0]
    return field(batch, _COMPRESSION) != 0
