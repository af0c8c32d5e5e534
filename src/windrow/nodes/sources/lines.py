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

from windrow.core.arrays.dataframes import InputError
from windrow.core.expressions.errors import hint
from windrow.io.event_files import TextForm, from_text, is_text_in_json, separator_of
from windrow.io.event_files import shown as shown_text
from windrow.io.yaml_files import one_of
from windrow.nodes.sources.base import Types, nothing, wanted

READ_BYTES = 1 << 24  # bytes of lines that are read at a time
LONGEST_LINE = 1 << 26  # bytes of a line
BAD_LINES = one_of("raise", "drop")

Found = Iterator[tuple[int, int, pl.DataFrame | Exception]]
_FAILURES = (pl.exceptions.PolarsError, InputError, UnicodeDecodeError)

_FEWER = "it has fewer values than there are columns, and no line break can be in one"
_OURS = {  # what Polars says in terms of its own options
    "CSV file contained column names": "it has more values than there are columns",
    "column names specified in schema": _FEWER,
}


def line_format(value: Any, _: str) -> Any:
    if value not in ("json", "csv"):
        raise ValueError(f"lines are json or csv, not {value!r}")
    return value


class Lines:
    """A parser of whole lines that counts them, and those that it leaves out."""

    def __init__(self, what: str, form: str, bad: str, time_format: str | None) -> None:
        self._what, self._form, self._bad, self._time_format = what, form, bad, time_format
        self.number = 0  # lines that there were
        self.dropped = 0  # of which so many were left out
        self.header: list[str] | None = None  # of CSV: the first line, unless it is given
        self._separator: str | None = None

    def parse(self, data: bytes, needed: Types) -> pl.DataFrame:
        """The events of some whole lines, of which the last may have no end."""
        types = wanted(needed)
        if self._form == "csv" and self.header is None:
            first, _, data = data.partition(b"\n")
            self.number += 1
            self.begin(first)
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

    def begin(self, first: bytes) -> None:
        """Take the names of the columns of CSV from its first line, and what separates them."""
        line = first.removeprefix(b"\xef\xbb\xbf")
        self._separator = separator_of(line.decode(errors="replace"))
        try:
            self.header = pl.read_csv(io.BytesIO(line), n_rows=0, separator=self._separator).columns
        except _FAILURES:
            self.header = None
        if not self.header:
            raise InputError(f"the first line of {self._what} must be the names of its columns, not {shown(first)}")

    def too_long(self) -> InputError:
        return InputError(f"line {self.number + 1:,} of {self._what} is longer than {LONGEST_LINE:,} bytes")

    def _parsed(self, lines: Sequence[bytes], types: Types) -> pl.DataFrame:
        if self._form == "json":
            return json_events(lines, types, self._time_format)
        return self._csv_events(lines, types)

    def _csv_events(self, lines: Sequence[bytes], types: Types) -> pl.DataFrame:
        assert self.header is not None
        lines = [line for line in lines if line.strip()]  # Polars makes nulls of them
        if not lines:
            return pl.DataFrame(schema=dict(types))
        separator = self._separator = self._separator or separator_of(lines[0].decode(errors="replace"))
        as_text = [name for name in self.header if name not in types or is_text_in_json(types[name])]
        schema = {name: pl.String() if name in as_text else types[name] for name in self.header}
        data = b"\n".join((*lines, b""))  # without an end, a quotation mark that is not closed would pass
        frame = pl.read_csv(io.BytesIO(data), has_header=False, schema=schema, separator=separator)
        if frame.height != len(lines):
            raise InputError("a quotation mark without another one on its line")
        for index in frame[self.header[-1]].is_null().arg_true():  # Polars fills short lines, but the first
            if len(next(csv.reader([lines[index].decode()], delimiter=separator))) < len(self.header):
                raise InputError(_FEWER)
        return _as_events(frame, types, self._time_format)


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


def json_events(lines: Sequence[bytes], types: Types, time_format: str | None = None) -> pl.DataFrame:
    """Lines with a JSON object each; blank ones are passed over."""
    as_text = {name: pl.String() if is_text_in_json(dtype) else dtype for name, dtype in types.items()}
    data = b"\n".join(lines)
    if not data.strip():
        return pl.DataFrame(schema=dict(types))
    frame = pl.read_ndjson(io.BytesIO(data), schema=as_text)
    return _as_events(frame, types, time_format)


def _as_events(frame: pl.DataFrame, types: Types, time_format: str | None) -> pl.DataFrame:
    """The columns that are needed, with what their text stands for."""
    formats = TextForm.of_times(types, time_format).time_formats
    return frame.select(
        from_text(frame[name], dtype, formats.get(name)) if is_text_in_json(dtype) else frame[name]
        for name, dtype in types.items()
    )


def shown(data: bytes) -> str:
    return shown_text(data.decode(errors="replace"))


def _reason(error: Exception) -> str:
    problem = (str(error).splitlines() or [type(error).__name__])[0].rstrip(" .")
    return next((ours for theirs, ours in _OURS.items() if problem.startswith(theirs)), problem)
