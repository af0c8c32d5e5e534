"""Named tables as bytes, with a header: how slice tables travel and are kept.

{"windrow": 3, …, "tables": {name: bytes, …}, "crc32": …} ⏎ Arrow IPC ‖ Arrow IPC ‖ …
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Mapping
from typing import Any

import polars as pl

VERSION = 3


def pack(header: Mapping[str, Any], tables: Mapping[str, pl.DataFrame]) -> bytes:
    """A header and named tables as bytes: a JSON line, then Arrow IPC streams."""
    parts = []
    for table in (shared.clone() for shared in tables.values()):  # writing locks a table, and others may read it
        buffer = io.BytesIO()
        is_large = table.height > 64 or table.estimated_size() > 65536  # one row can hold all values of a slice
        table.write_ipc_stream(buffer, compression="zstd" if is_large else "uncompressed")
        parts.append(buffer.getvalue())
    sizes = dict(zip(tables, map(len, parts), strict=True))
    body = b"".join(parts)
    first = json.dumps({"windrow": VERSION, **header, "tables": sizes, "crc32": zlib.crc32(body)}).encode()
    return b"\n".join((first, body))


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, pl.DataFrame]]:
    """The way back; refuses what is not ours, is cut short, or is of another version."""
    line, _, body = bytes(data).partition(b"\n")
    try:
        header = json.loads(line)
        version = header["windrow"]
    except (ValueError, KeyError, TypeError):
        raise ValueError("these bytes are not a snapshot of windrow") from None
    if version != VERSION:
        raise ValueError(f"this snapshot has version {version}; this windrow reads version {VERSION}")
    tables, at = {}, 0
    try:
        sizes = dict(header["tables"])
        if sum(sizes.values()) > len(body):
            raise ValueError(f"this snapshot is cut short: {len(body)} of {sum(sizes.values())} bytes are there")
        if zlib.crc32(body) != header["crc32"]:
            raise ValueError("this snapshot is damaged: its checksum is not that of its content")
        for name, size in sizes.items():
            tables[name] = pl.read_ipc_stream(io.BytesIO(body[at : at + size]))
            at += size
    except (KeyError, TypeError, pl.exceptions.PolarsError) as error:
        raise ValueError(f"this snapshot is damaged: {type(error).__name__}: {error}") from error
    return header, tables
