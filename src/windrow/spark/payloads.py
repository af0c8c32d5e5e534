"""Payloads: the slices of a bucket of keys as one row, which is what is shuffled.

    events ── slice ──▶ tables, one per group ── split ──▶ one row (bucket, payload) per bucket

A key always falls into the same bucket, in every process and version, because state is kept by bucket. A payload is
`io.tables.pack` of one table per group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from windrow.core.arrays.hashing import GOLDEN, mix
from windrow.core.stream.compiled import CompiledPlan
from windrow.core.stream.job_slicer import Tables
from windrow.io.tables import pack

SCHEMA = pa.schema([("bucket", pa.int32()), ("payload", pa.binary())])
COLUMNS = "bucket INT, payload BINARY"


def packed(
    tables: Tables, plan: CompiledPlan, buckets: int, header: Mapping[str, Any] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of tables, one for each bucket that has something."""
    yield from rows(split(tables, plan, buckets), header or {})


def split(tables: Tables, plan: CompiledPlan, buckets: int) -> dict[int, Tables]:
    """The tables of each bucket; a group without keys lies in one."""
    by_bucket: dict[int, Tables] = {}
    for group in plan.plan.groups:
        table = tables.get(group.name)
        if table is None or not table.height:
            continue
        keys = [name for name in table.columns if name.startswith("key:")]
        hashes = hashed(table.select(keys) if group.keys else pl.DataFrame({"name": [group.name]}))
        for bucket, part in parts_by(table, np.broadcast_to(hashes % np.uint64(buckets), table.height)):
            by_bucket.setdefault(bucket, {})[group.name] = part
    return by_bucket


def parts_by(table: pl.DataFrame, number: npt.NDArray[Any]) -> Iterator[tuple[int, pl.DataFrame]]:
    """The rows of each number that stands beside some row."""
    numbered = table.with_columns(pl.Series("_number", number, pl.Int64))
    for key, part in numbered.partition_by("_number", as_dict=True, include_key=False).items():
        yield int(key[0]), part


def rows(split_tables: Mapping[int, Tables], header: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """The rows of a partition."""
    for bucket, tables in split_tables.items():
        yield row(bucket, pack(header, tables))


def row(bucket: int, payload: bytes) -> pa.RecordBatch:
    return pa.record_batch([pa.array([bucket], pa.int32()), pa.array([payload], pa.binary())], schema=SCHEMA)


def hashed(keys: pl.DataFrame) -> npt.NDArray[np.uint64]:
    """A hash of each row, the same on every machine and in every version; equal keys have equal hashes."""
    hashes = np.zeros(keys.height, np.uint64)
    with np.errstate(over="ignore"):
        for column in keys:
            hashes = mix(hashes * np.uint64(31) + _numbers(column))
    return hashes


def _numbers(column: pl.Series) -> npt.NDArray[np.uint64]:
    """A number for each value, the same for equal values; null has one of its own."""
    dtype = column.dtype
    if dtype.is_float():
        values = column.cast(pl.Float64).fill_null(0.0).to_numpy().copy()
        values[values == 0] = 0.0  # also -0.0; Polars leaves it as it is when it adds 0.0
        values[np.isnan(values)] = np.nan
        numbers = values.view(np.uint64)
    elif dtype == pl.String() or dtype == pl.Binary() or isinstance(dtype, pl.Decimal):
        numbers = _of_bytes(column)
    elif dtype == pl.Null():
        numbers = np.zeros(len(column), np.uint64)
    else:
        numbers = column.to_physical().cast(pl.Int64).fill_null(0).to_numpy().astype(np.int64).view(np.uint64)
    nulls = column.is_null().to_numpy()
    return np.where(nulls, np.uint64(GOLDEN), numbers) if nulls.any() else numbers


def _of_bytes(column: pl.Series) -> npt.NDArray[np.uint64]:
    """A polynomial of each value's bytes."""
    texts = column.cast(pl.String) if isinstance(column.dtype, pl.Decimal) else column
    array = (
        texts.fill_null("" if texts.dtype == pl.String() else b"").cast(pl.Binary).to_arrow().cast(pa.large_binary())
    )
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[array.offset : array.offset + len(array) + 1]
    polynomials = np.zeros(len(array), np.uint64)
    if not len(array) or offsets[-1] == offsets[0]:
        return polynomials
    data = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]].astype(np.uint64) + np.uint64(1)
    sizes = np.diff(offsets)
    powers = np.cumprod(np.full(int(sizes.max()), np.uint64(0x100000001B3)))
    within = np.arange(len(data)) - np.repeat(offsets[:-1] - offsets[0], sizes)
    full = np.flatnonzero(sizes)
    polynomials[full] = np.add.reduceat(data * powers[within], (offsets[:-1] - offsets[0])[full])
    return polynomials


def read_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    """The rows of batches of payloads."""
    for batch in batches:
        yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
