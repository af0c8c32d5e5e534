"""Payloads of messages as events: a JSON object, an array of them, or lines of them, parsed in bulk.

payloads ──▶ the lines of each ──▶ Polars ──▶ events, and how many each payload has
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from windrow.core.arrays.dataframes import InputError
from windrow.nodes.sources.base import Types
from windrow.nodes.sources.lines import bisected, json_events


def events_of(
    payloads: Sequence[bytes], types: Types, time_format: str | None
) -> Iterator[tuple[pl.DataFrame | Exception, npt.NDArray[np.int64]]]:
    """Events with the index of the payload that each comes from; for a payload that cannot be read, the error."""
    for begin, end, parsed in bisected(payloads, lambda part: _parsed(part, types, time_format)):
        if isinstance(parsed, pl.DataFrame):
            yield parsed.drop("payload"), parsed["payload"].to_numpy() + begin
        else:
            yield parsed, np.arange(begin, end)


def _parsed(payloads: Sequence[bytes], types: Types, time_format: str | None) -> pl.DataFrame:
    texts = [payload.strip() for payload in payloads]
    arrays = [index for index, payload in enumerate(texts) if payload[:1] == b"["]
    for index, elements in zip(arrays, _split([texts[index] for index in arrays]), strict=True):
        texts[index] = elements
    for index, payload in enumerate(texts):
        if b"\n" in payload and not _are_lines(payload):
            texts[index] = payload.replace(b"\n", b" ").replace(b"\r", b" ")  # one object, written over several lines
    counts = [payload.count(b"\n") + 1 if payload else 0 for payload in texts]
    lines = [payload for payload in texts if payload]
    frame = json_events(lines, types, time_format) if lines else pl.DataFrame(schema=dict(types))
    if frame.height != sum(counts):
        raise InputError("a blank line among its lines")
    return frame.with_columns(pl.Series("payload", np.repeat(np.arange(len(counts)), counts), pl.Int64))


def _are_lines(payload: bytes) -> bool:
    """Whether a new line begins a new object, and does not go on with the same one."""
    return all(line.strip()[-1:] == b"}" and line.strip()[:1] == b"{" for line in payload.split(b"\n"))


def _split(arrays: list[bytes]) -> list[bytes]:
    """The elements of arrays, a line each."""
    if not arrays:
        return []
    data = b"\n".join(b'{"e":' + array.replace(b"\n", b" ").replace(b"\r", b" ") + b"}" for array in arrays)
    lists = pl.read_ndjson(io.BytesIO(data), schema={"e": pl.List(pl.String)})["e"]
    if len(lists) != len(arrays) or lists.null_count() or lists.explode(empty_as_null=False).null_count():
        raise InputError("an array that does not hold objects")
    return [text.encode() for text in lists.list.join("\n").to_list()]
