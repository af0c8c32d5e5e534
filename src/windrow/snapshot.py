"""Snapshots: queries over a stream and all their state as bytes that outlive the process.

A JSON header (queries with their times, options, watermarks, counts, the plan's fingerprint) and the slice tables as
Arrow IPC. A snapshot depends on slices, not on events.
"""

from __future__ import annotations

import polars as pl

from windrow.core.stream.live import Live
from windrow.io.tables import pack, unpack


def write(live: Live, late: pl.DataFrame, keep_late: int) -> bytes:
    """A snapshot; with the late events that are set aside, and how many of them are kept."""
    header, tables = live.saved()
    return pack(header | {"keep_late": keep_late}, tables | ({"late": late} if late.height else {}))


def read(data: bytes) -> tuple[Live, pl.DataFrame, int]:
    """What was written, or an error that says what is wrong with it."""
    header, tables = unpack(data)
    try:
        return Live.load(header, tables), tables.get("late", pl.DataFrame()), header["keep_late"]
    except (KeyError, TypeError, pl.exceptions.PolarsError) as error:
        raise ValueError(f"this snapshot is damaged: {type(error).__name__}: {error}") from error
