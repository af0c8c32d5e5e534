"""Lines of text as events: JSON objects or CSV, parsed in bulk, and one by one only where something is wrong.

whole lines ──▶ Polars ──▶ events            a line that cannot be read is found by halving, and then
                  └──▶ halves ──▶ …          refused with its number and text, or counted and left out
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import polars as pl

from windrow.core.expressions.errors import hint
from windrow.core.slices.binding import InputError
from windrow.io.event_files import from_text, is_text_in_json
from windrow.io.yaml_files import must, one_of
from windrow.nodes.sources.base import Types, nothing, wanted

READ_BYTES = 1 << 24  # bytes of lines that are read at a time
LONGEST_LINE = 1 << 26  # bytes of a line
SHOWN_CHARACTERS = 120  # of a line, in an error
EPOCHS = {"s": 1_000_000.0, "ms": 1_000.0, "us": 1, "ns": 0.001}  # microseconds
EPOCH = must(f"be one of {', '.join(EPOCHS)}, not {{!r}}", list(EPOCHS).__contains__)
BAD_LINES = one_of("raise", "drop")

Found = Iterator[tuple[int, int, pl.DataFrame | Exception]]
_FAILURES = (pl.exceptions.PolarsError, InputError, UnicodeDecodeError)

_FEWER = "it has fewer values than there are columns, and no line break can be in one"
_OURS = {  # what Polars says in terms of its own options
    "CSV file contained column names": "it has more values than there are columns",
    "column names specified in schema": _FEWER,
    "could not find an appropriate format": "a time is ISO 8601, or a number with the option epoch",
}


def line_format(value: Any, _: str) -> Any:
    if value not in ("json", "csv"):
        raise ValueError(f"lines are json or csv, not {value!r}")
    return value


class Lines:
    """A parser of whole lines that counts them, and those that it leaves out."""

    def __init__(self, what: str, form: str, bad: str, epoch: str | None) -> None:
        self._what, self._form, self._bad, self._epoch = what, form, bad, epoch
        self.number = 0  # lines that there were
        self.dropped = 0  # of which so many were left out
        self.header: list[str] | None = None  # of CSV: the first line, unless it is given

    def parse(self, data: bytes, needed: Types) -> pl.DataFrame:
        """The events of some whole lines, of which the last may have no end."""
        types = wanted(needed)
        if self._form == "csv" and self.header is None:
            first, _, data = data.partition(b"\n")
            self.number += 1
            self.header = header_of(first, self._what)
        if self.header is not None:
            for name in types:
                if name not in self.header:
                    raise InputError(f"{self._what} has no column {name!r}; {hint(name, self.header)}")
        lines = data.removesuffix(b"\n").split(b"\n") if data else []
        frames = [nothing(needed)]
        for begin, end, parsed in bisected(lines, lambda part: self._parsed(part, types)):
            if isinstance(parsed, pl.DataFrame):
                frames.append(parsed)
            elif lines[begin].strip():
                if self._bad == "raise":
                    raise InputError(
                        f"line {self.number + begin + 1:,} of {self._what} cannot be read: {_reason(parsed)}: "
                        f"{shown(lines[begin])}; bad_lines: drop counts such lines and leaves them out"
                    )
                self.dropped += end - begin
        self.number += len(lines)
        return pl.concat(frames)

    def too_long(self) -> InputError:
        return InputError(f"line {self.number + 1:,} of {self._what} is longer than {LONGEST_LINE:,} bytes")

    def _parsed(self, lines: Sequence[bytes], types: Types) -> pl.DataFrame:
        if self._form == "json":
            return json_events(lines, types, self._epoch)
        assert self.header is not None
        return _csv_events(lines, self.header, types, self._epoch)


def bisected(lines: Sequence[bytes], parse: Callable[[Sequence[bytes]], pl.DataFrame]) -> Found:
    """Frames of as many at a time as can be parsed together, and the errors of those that cannot, in their order."""
    waiting = [(0, len(lines))] if lines else []
    while waiting:
        begin, end = waiting.pop()
        try:
            yield begin, end, parse(lines[begin:end])
        except _FAILURES as error:
            if end - begin == 1:
                yield begin, end, error
            else:
                middle = (begin + end) // 2
                waiting += [(middle, end), (begin, middle)]


def json_events(lines: Sequence[bytes], types: Types, epoch: str | None = None) -> pl.DataFrame:
    """Lines with a JSON object each; blank ones are passed over."""
    as_text = {name: pl.String() if is_text_in_json(dtype) else dtype for name, dtype in types.items()}
    data = b"\n".join(lines)
    if not data.strip():
        return pl.DataFrame(schema=dict(types))
    frame = pl.read_ndjson(io.BytesIO(data), schema=as_text)
    return frame.with_columns(_from_text(name, types[name], epoch) for name in as_text if is_text_in_json(types[name]))


def _csv_events(lines: Sequence[bytes], header: Sequence[str], types: Types, epoch: str | None) -> pl.DataFrame:
    lines = [line for line in lines if line.strip()]  # Polars makes nulls of them
    if not lines:
        return pl.DataFrame(schema=dict(types))
    as_text = [name for name in header if name not in types or is_text_in_json(types[name])]
    schema = {name: pl.String() if name in as_text else types[name] for name in header}
    data = b"\n".join((*lines, b""))  # without an end, a quotation mark that is not closed would pass
    frame = pl.read_csv(io.BytesIO(data), has_header=False, schema=schema)
    if frame.height != len(lines):
        raise InputError("a quotation mark without another one on its line")
    for index in frame[header[-1]].is_null().arg_true():  # Polars fills lines that are too short, but the first
        if len(next(csv.reader([lines[index].decode()]))) < len(header):
            raise InputError(_FEWER)
    return frame.select(_from_text(name, dtype, epoch) if name in as_text else name for name, dtype in types.items())


def header_of(line: bytes, what: str) -> list[str]:
    """The names in the first line of CSV."""
    try:
        names = pl.read_csv(io.BytesIO(line.removeprefix(b"\xef\xbb\xbf")), n_rows=0).columns
    except _FAILURES:
        names = []
    if not names:
        raise InputError(f"the first line of {what} must be the names of its columns, not {shown(line)}")
    return names


def _from_text(name: str, dtype: pl.DataType, epoch: str | None) -> pl.Expr:
    """What text stands for: times are ISO 8601, or numbers since 1970 with an `epoch`."""
    if epoch is None or not isinstance(dtype, pl.Datetime):
        return from_text(name, dtype)
    factor = EPOCHS[epoch]
    if epoch == "ns":
        micros = pl.col(name).cast(pl.Int64) // 1000
    elif epoch == "us":
        micros = pl.col(name).cast(pl.Int64)
    else:
        micros = (pl.col(name).cast(pl.Float64) * factor).round().cast(pl.Int64)
    return micros.cast(pl.Datetime("us", dtype.time_zone)).dt.cast_time_unit(dtype.time_unit)


def shown(data: bytes) -> str:
    text = data.decode(errors="replace")
    return repr(text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…")


def _reason(error: Exception) -> str:
    problem = (str(error).splitlines() or [type(error).__name__])[0].rstrip(" .")
    return next((ours for theirs, ours in _OURS.items() if problem.startswith(theirs)), problem)
