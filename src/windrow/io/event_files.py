"""Files of events: which there are, what columns they have, and their events, so many at a time.

    a file, a directory, a pattern ──▶ files ──▶ columns ──▶ frames of the columns that are needed

Parquet, Arrow, CSV and JSON lines; the last two may be compressed with gzip. CSV and JSON do not say of what types they
are: the first rows show it, timestamps included, and what does not fit later is an error, never a null. What they do
not show for certain, such as which of `01/05` is the day, a `TextForm` says.
"""

from __future__ import annotations

import csv
import glob
import gzip
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import IO

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from windrow.core.arrays.dataframes import InputError, in_parts, to_polars
from windrow.core.expressions.errors import hint
from windrow.io import EVENTS_AT_ONCE
from windrow.io.text_times import EPOCHS, Written, is_time, resolution_of, since_1970, times_of, written

SUFFIXES = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
FORMATS = ("parquet", "arrow", "csv", "json")
ROWS_THAT_TELL = 10_000  # the types of a file whose format does not have them
FILES_THAT_TELL = 10  # of several
SEPARATORS = ",;\t|"
SHOWN_CHARACTERS = 120  # of a line, in an error


@dataclass(frozen=True)
class TextForm:
    """How text files are written, as far as they do not show it themselves.

    separator:     between the values of CSV; by default what the first line shows
    header:        the names of the columns, of CSV whose first line is none
    time_formats:  of columns whose times are not ISO 8601: a pattern, or the unit of numbers since 1970
    """

    separator: str | None = None
    header: tuple[str, ...] | None = None
    time_formats: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of_times(columns: Mapping[str, pl.DataType], time_format: str | None) -> TextForm:
        """The same format for all columns of times."""
        names = [name for name, dtype in columns.items() if is_time(dtype)] if time_format else []
        return TextForm(time_formats=dict.fromkeys(names, str(time_format)))


USUAL = TextForm()


# --- which files there are ------------------------------------------------------------------------------------------


def files_of(path: str) -> list[str]:
    """The files of a path, in the order of their names: a file, all files below a directory, or all that fit a pattern.

    Names that begin with `_` or `.`, and those that end with `.tmp`, are left alone.
    """
    paths = files_now(path)
    if paths:
        return paths
    if os.path.isdir(path):
        raise InputError(f"the directory {path!r} has no files of events")
    raise InputError(f"nothing fits {path!r}" if is_pattern(path) else f"there is no file or directory {path!r}")


def files_now(path: str) -> list[str]:
    """The files of a path as `files_of` gives them, and none where nothing has come yet."""
    if os.path.exists(path):
        return below(path) if os.path.isdir(path) else [path]
    paths = [path for path in glob.glob(path, recursive=True) if not is_hidden(os.path.basename(path.rstrip("/")))]
    files = [below(path) if os.path.isdir(path) else [path] for path in sorted(paths)]
    return list(dict.fromkeys(chain.from_iterable(files)))


def is_pattern(path: str) -> bool:
    """Whether a path may fit several files, and is the name of none."""
    return glob.escape(path) != path and not os.path.exists(path)


def below(top: str) -> list[str]:
    """All files below a directory, in the order of their names."""
    paths = []
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if not is_hidden(name)]
        paths += [os.path.join(folder, name) for name in names if not is_hidden(name)]
    return sorted(paths)


def root_of(path: str) -> str:
    """The directory in which a pattern begins; what exists is its own."""
    while not os.path.exists(path) and glob.escape(path) != path:
        path = os.path.dirname(path)
    return path or "."


def is_hidden(name: str) -> bool:
    return name.startswith(("_", ".")) or name.endswith(".tmp")


def form_of(path: str) -> str | None:
    """The format that a file's name says."""
    root, suffix = os.path.splitext(path.lower())
    form = SUFFIXES.get(os.path.splitext(root)[1] if suffix == ".gz" else suffix)
    return None if suffix == ".gz" and form not in ("csv", "json") else form


@dataclass(frozen=True)
class AscendingFiles:
    """Files that come to a directory, by their names from there on: each is read once, in the order of the names.

    So a file whose name lies before one that was read would never be read, and is refused.
    """

    root: str
    form: str | None = None  # of all files; by default what the suffix of each says

    def names(self, paths: Iterable[str]) -> list[str]:
        begin = os.path.join(self.root, "")
        return sorted(
            {path.removeprefix(begin) if path.startswith(begin) else os.path.relpath(path, self.root) for path in paths}
        )

    def path_of(self, name: str) -> str:
        return os.path.join(self.root, name)

    def form_of(self, name: str) -> str:
        form = self.form or form_of(name)
        if form is None:
            raise InputError(f"file {self.path_of(name)!r}: its name does not say its format; set the option format")
        return form

    def came_late(self, name: str | None, read: str, where: str) -> InputError:
        """What is wrong where a file, if it is known which, has come after one that was read and lies before it."""
        file = "a file" if name is None else f"file {self.path_of(name)!r}"
        return InputError(
            f"{file} has come to {where} with a name before {read!r}, which is already read; names must ascend"
        )


@dataclass(frozen=True)
class EventFiles:
    """Files of one format with the same columns."""

    paths: Sequence[str]
    form: str
    columns: Mapping[str, pl.DataType]
    text: TextForm = USUAL
    doubts: Mapping[str, str] = field(default_factory=dict)  # columns of times that can be read in two ways, and which

    @staticmethod
    def of(
        path: str,
        form: str | None = None,
        types: Mapping[str, pl.DataType] | None = None,
        text: TextForm = USUAL,
        time_format: str | None = None,
    ) -> EventFiles:
        """The files of a path.

        types:        of what type columns of CSV and JSON are, where the first rows mislead
        time_format:  how some columns write times, of those that do not show it: a pattern
        """
        paths = files_of(path)
        shared_form = _shared_form(paths, form)
        if shared_form != "csv" and (text.separator or text.header):
            raise InputError(f"files of {shared_form} have neither separator nor header; leave them out")
        seen = _columns_of(paths, shared_form, text, time_format)
        columns = {name: column.dtype for name, column in seen.items()}
        if not columns:
            raise InputError(f"file {paths[0]!r} is empty, and so has no columns; CSV needs a header, JSON an event")
        for name in types or {}:
            if name not in columns:
                raise InputError(f"there is no column {name!r} in {paths[0]!r}; {hint(name, columns)}")
        if types and shared_form in ("parquet", "arrow"):
            raise InputError(f"files of {shared_form} say their types themselves")
        if shared_form == "csv" and not types and set(columns.values()) == {pl.String()} and _is_empty(paths):
            missing = "its first line are names of columns, and no events follow"
            raise InputError(f"file {paths[0]!r}: {missing}; --types 'ts TIMESTAMP, …' says what they would be")
        columns |= types or {}
        times = {name: column for name, column in seen.items() if is_time(columns[name])}
        formats = {name: column.time_format for name, column in times.items() if column.time_format is not None}
        if time_format not in (None, *EPOCHS):
            hidden = [name for name in times if name in (types or {}) and not is_time(seen[name].dtype)]
            formats |= dict.fromkeys(hidden, str(time_format))  # where the first rows show no time
            if time_format not in formats.values() and not _is_empty(paths):
                raise InputError(f"no column of {paths[0]!r} has times that are written as {time_format!r}")
        doubts = {name: f"file {paths[0]!r}: {column.doubt}" for name, column in times.items() if column.doubt}
        text = replace(text, time_formats=formats)
        return EventFiles(paths, shared_form, columns, text, doubts)

    def since_1970(self, name: str, unit: str | None) -> EventFiles:
        """The same with a column of numbers as times: in this unit, or in the one that the first of them show."""
        if unit is None:
            first = next(self.frames(self.paths[0], {name: self.columns[name]}), None)
            unit = None if first is None else resolution_of(first[name])
        if unit is None:
            return self
        formats = {**self.text.time_formats, name: unit}
        columns = {**self.columns, name: pl.Datetime("us", "UTC")}
        return replace(self, columns=columns, text=replace(self.text, time_formats=formats))

    def check(self, needed: Iterable[str]) -> None:
        """Refuse columns that are needed and can be read in two ways."""
        for name in needed:
            if name in self.doubts:
                raise InputError(self.doubts[name])

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(os.path.getsize(path) for path in self.paths)

    def count(self) -> int:
        """How many events there are."""
        total = 0
        for path in self.paths:
            if self.form == "parquet":
                with named(path):
                    total += pq.ParquetFile(path).metadata.num_rows
            else:
                total += sum(frame.height for frame in self.frames(path, dict([*self.columns.items()][:1])))
        return total

    def frames(self, path: str, needed: Mapping[str, pl.DataType]) -> Iterator[pl.DataFrame]:
        """The needed columns of one of the files."""
        with named(path):
            yield from read(path, self.form, needed, text=self.text)


def _is_empty(paths: Sequence[str]) -> bool:
    """Whether files of CSV have no line but the first."""
    for path in paths:
        with _opened(path) as file:
            file.readline()
            if any(line.strip() for line in file):
                return False
    return True


def _shared_form(paths: Sequence[str], form: str | None) -> str:
    """The format that all files have."""
    shared_form = ""
    for file in paths:
        own_form = form or form_of(file)
        if own_form is None:
            raise InputError(
                f"file {file!r}: its name does not say whether it is {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
            )
        shared_form = shared_form or own_form
        if own_form != shared_form:
            raise InputError(f"file {file!r} is {own_form}, and {paths[0]!r} is {shared_form}; take one format")
    return shared_form


# --- columns --------------------------------------------------------------------------------------------------------


def columns_of(paths: Sequence[str], form: str) -> dict[str, pl.DataType]:
    """The columns of files, from the first one, or where files do not say their types, from the first rows of some."""
    return {name: column.dtype for name, column in _columns_of(paths, form, USUAL, None).items()}


def _columns_of(paths: Sequence[str], form: str, text: TextForm, time_format: str | None) -> dict[str, Written]:
    """The columns, and how those of times are written."""
    if form in ("parquet", "arrow"):
        with named(paths[0]):
            if form == "parquet":
                schema: Mapping[str, pl.DataType] = pl.read_parquet_schema(paths[0])
            else:
                with open_arrow(paths[0]) as (arrow, _):
                    schema = to_polars(arrow.empty_table()).schema
        return {name: Written(dtype) for name, dtype in schema.items()}
    heads = []
    for path in paths[:FILES_THAT_TELL]:
        with named(path):
            heads.append(_head(path, form, text))
    try:
        head = pl.concat([head for head in heads if head.height] or heads[:1], how="diagonal_relaxed")
    except pl.exceptions.PolarsError as error:
        raise InputError(f"the files {paths[0]!r} and others have different types: {_first_line(error)}") from error
    return {column.name: _seen(column, form, time_format) for column in head}


def _seen(column: pl.Series, form: str, time_format: str | None) -> Written:
    """What a column is, by its first values."""
    if column.dtype == pl.Null():
        return Written(pl.String())
    if column.dtype != pl.String():
        return Written(column.dtype)
    as_time = written(column, time_format)
    if as_time is None and form == "csv" and column.null_count() < column.len():
        try:
            return Written(column.str.to_time().dtype)
        except pl.exceptions.PolarsError:
            return Written(column.dtype)
    if as_time is not None and form == "json" and as_time == Written(pl.Date()):
        return Written(pl.Datetime("us"))
    return as_time or Written(column.dtype)


def _head(path: str, form: str, text: TextForm) -> pl.DataFrame:
    """The first rows, with types that hold them all; times are text."""
    if form == "csv":
        names, separator = csv_columns(path, text)
        if not names:
            return pl.DataFrame()
        few = {"n_rows": ROWS_THAT_TELL, "infer_schema_length": ROWS_THAT_TELL}
        # rows behind the first are parsed too, by the way; those that do not fit are none of theirs
        options: dict[str, object] = {**few, "ignore_errors": True, "separator": separator}
        head = pl.read_csv(path, has_header=text.header is None, raise_if_empty=False, **options)  # type: ignore[arg-type]
        return head.rename(dict(zip(head.columns, names, strict=True)))
    if not os.path.getsize(path):
        return pl.DataFrame()
    with json_lines(path):
        return pl.scan_ndjson(path, infer_schema_length=ROWS_THAT_TELL).head(ROWS_THAT_TELL).collect()


def csv_columns(path: str, text: TextForm) -> tuple[list[str], str]:
    """The names of the columns of a file of CSV, and the separator between them; refuses a file that is cut off."""
    with _opened(path) as file:
        first = file.readline().decode(errors="replace").removeprefix("\ufeff").rstrip("\r\n")
    tab = "\t" if ".tsv" in os.path.basename(path).lower() else None
    separator = text.separator or tab or separator_of(first)
    names = pl.read_csv(path, n_rows=0, separator=separator, raise_if_empty=False).columns
    if not names:
        return [], separator
    if text.header is not None and len(text.header) != len(names):
        raise InputError(
            f"its first line has {len(names)} values, and the header {len(text.header)} names: {shown(first)}"
        )
    if text.header is None and _are_values(names):
        raise InputError(f"its first line are values, and no names of columns: {shown(first)}; say --header 'ts, …'")
    _check_end(path, len(names), separator)
    return list(text.header or names), separator


def separator_of(line: str) -> str:
    """What separates the values of a line: a comma, unless it has none and just one of the others."""
    bare = re.sub('"[^"]*"', "", line)
    present = [sign for sign in SEPARATORS if sign in bare]
    return present[0] if present and (len(present) == 1 or present[0] == ",") else ","


_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d.*|\d{1,2}[/.-]\d{1,2}[/.-]\d{2,4}.*")
_NUMBER = re.compile(r"[-+]?\d+([.,]\d+)?")


def _are_values(names: Sequence[str]) -> bool:
    """Whether the first line of CSV is certainly an event: it has a moment in it, or nothing but numbers."""
    return any(map(_MOMENT.fullmatch, names)) or all(map(_NUMBER.fullmatch, names))


def _check_end(path: str, width: int, separator: str) -> None:
    """Refuse CSV whose last line has no end and too few values: Polars would fill it with nulls."""
    if path.endswith(".gz"):  # which has a checksum
        return
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - (1 << 16)))
        *before, last = file.read().split(b"\n")
    if not before or not last.strip() or b'"' in last:
        return
    values = next(csv.reader([last.decode(errors="replace")], delimiter=separator))
    if len(values) < width:
        with open(path, "rb") as file:
            number = sum(1 for _ in file)
        line = shown(last.decode(errors="replace"))
        raise InputError(f"line {number:,} is cut off: it has {len(values)} of {width} values: {line}")


# --- events ---------------------------------------------------------------------------------------------------------


def read(
    path: str, form: str, needed: Mapping[str, pl.DataType], skip: int = 0, text: TextForm = USUAL
) -> Iterator[pl.DataFrame]:
    """The columns of a file that are needed, so many rows at a time; those that it does not have are left out.

    skip:  rows that are passed over; Parquet and Arrow do not read them, the others do
    """
    frames = _read_text(path, form, needed, skip, text) if form in ("csv", "json") else _read(path, form, needed, skip)
    numbers = {name: unit for name, unit in text.time_formats.items() if unit in EPOCHS and name in needed}
    for frame in frames:
        times = [
            since_1970(frame[name], needed[name], unit)
            for name, unit in numbers.items()
            if name in frame.columns and frame.schema[name].is_numeric()
        ]
        yield frame.with_columns(times)


def _read(path: str, form: str, needed: Mapping[str, pl.DataType], skip: int) -> Iterator[pl.DataFrame]:
    """The columns of Parquet or Arrow."""
    if form == "arrow":
        with open_arrow(path) as (schema, batches):
            there = [name for name in schema.names if name in needed]
            for part in in_parts(batches, EVENTS_AT_ONCE):
                table = pa.Table.from_batches(part)
                past = min(skip, table.num_rows)
                skip -= past
                if past < table.num_rows:
                    yield to_polars(table.slice(past).select(there))
        return
    scan = pl.scan_parquet(path, glob=False).select(name for name in pl.read_parquet_schema(path) if name in needed)
    yield from scan.slice(skip).collect_batches(chunk_size=EVENTS_AT_ONCE, maintain_order=True)


def _read_text(
    path: str, form: str, needed: Mapping[str, pl.DataType], skip: int, text: TextForm
) -> Iterator[pl.DataFrame]:
    """The columns of CSV or JSON: times are read as text, because Polars would guess how they are written."""
    if form == "csv":
        names, separator = csv_columns(path, text)
        if not names:
            return
        as_text = [name for name in names if name in needed and is_time(needed[name])]
        types = {name: pl.String() if name in as_text else needed[name] for name in names if name in needed}
        if text.header is None:
            scan = pl.scan_csv(path, schema_overrides=types, separator=separator, glob=False)
        else:
            schema = {name: types.get(name, pl.String()) for name in names}
            scan = pl.scan_csv(path, schema=schema, has_header=False, separator=separator, glob=False)
        scan = scan.select(list(types) or names[:1]).with_columns(pl.col(as_text).replace("", None))
    elif os.path.getsize(path):
        as_text = [name for name, dtype in needed.items() if is_text_in_json(dtype)]
        scan = pl.scan_ndjson(path, schema={**needed, **dict.fromkeys(as_text, pl.String())})
    else:
        return
    with json_lines(path if form == "json" else None):
        for frame in scan.slice(skip).collect_batches(chunk_size=EVENTS_AT_ONCE, maintain_order=True):
            formats = text.time_formats
            yield frame.with_columns(from_text(frame[name], needed[name], formats.get(name)) for name in as_text)


_SMALL = (pl.Int8(), pl.Int16(), pl.UInt8(), pl.UInt16())


def is_text_in_json(dtype: pl.DataType) -> bool:
    """Whether values are read as text, because JSON has none of them, such as times, or Polars does not read them."""
    is_number = (dtype.is_integer() or dtype.is_float()) and dtype not in _SMALL
    return not (is_number or isinstance(dtype, pl.String | pl.Boolean | pl.Null) or dtype.is_nested())


def from_text(strings: pl.Series, dtype: pl.DataType, time_format: str | None = None) -> pl.Series:
    """A column of text as what it stands for."""
    if is_time(dtype):
        return times_of(strings, dtype, time_format)
    return strings.str.to_time() if isinstance(dtype, pl.Time) else strings.cast(dtype)


@contextmanager
def open_arrow(path: str) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """The schema and the batches of Arrow IPC, as a file or as a stream."""
    with pa.memory_map(path) as source:
        if source.read(6) == b"ARROW1":
            file = pa.ipc.open_file(source)
            yield file.schema, (file.get_batch(number) for number in range(file.num_record_batches))
        else:
            source.seek(0)
            stream = pa.ipc.open_stream(source)
            yield stream.schema, iter(stream)


def _opened(path: str) -> IO[bytes] | gzip.GzipFile:
    return gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb")


@contextmanager
def json_lines(path: str | None) -> Iterator[None]:
    """Where Polars cannot read a file of JSON lines, find the line and say what is wrong with it."""
    try:
        yield
    except pl.exceptions.PolarsError as error:
        if path is not None:
            _blame_line(path)
        raise error


def _blame_line(path: str) -> None:
    """Refuse the first line of a file that is no JSON object."""
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            text = line.decode(errors="replace").strip()
            if not text:
                continue
            if number == 1 and text.startswith("["):
                raise InputError("it is one JSON array; write its elements as lines, an object each")
            try:
                value = json.loads(text)
            except ValueError:
                cut = "is cut off" if not line.endswith(b"\n") and text.startswith("{") else "is no JSON"
                raise InputError(f"line {number:,} {cut}: {shown(text)}") from None
            if not isinstance(value, dict):
                raise InputError(f"line {number:,} is no JSON object: {shown(text)}")


def shown(text: str) -> str:
    """A line in an error, which need not be all of it."""
    return repr(text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…")


@contextmanager
def named(path: str) -> Iterator[None]:
    """Errors in reading name the file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"file {path!r}: {error}") from error
    except (OSError, ValueError, pl.exceptions.PolarsError, pa.ArrowException) as error:
        raise InputError(f"file {path!r} cannot be read: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
