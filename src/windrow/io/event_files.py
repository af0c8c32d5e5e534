"""Files of events: which there are, what columns they have, and their events, so many at a time.

    a file, a directory, a pattern ──▶ files ──▶ columns ──▶ frames of the columns that are needed

Parquet, Arrow, CSV with a header, and JSON lines; the last two may be compressed with gzip. CSV and JSON do not say of
what types they are: the first rows show it, timestamps included, and what does not fit later is an error, never a null.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from windrow.core.arrays.dataframes import in_parts, to_polars
from windrow.core.expressions.errors import hint
from windrow.core.slices.binding import InputError
from windrow.io import EVENTS_AT_ONCE

SUFFIXES = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
FORMATS = ("parquet", "arrow", "csv", "json")
ROWS_THAT_TELL = 10_000  # the types of a file whose format does not have them
FILES_THAT_TELL = 10  # of several


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

    @staticmethod
    def of(path: str, form: str | None = None, types: Mapping[str, pl.DataType] | None = None) -> EventFiles:
        """The files of a path; `types` says of what type columns of CSV and JSON are, where the first rows mislead."""
        paths = files_of(path)
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
        columns = columns_of(paths, shared_form)
        if not columns:
            raise InputError(f"file {paths[0]!r} is empty, and so has no columns; CSV needs a header, JSON an event")
        for name in types or {}:
            if name not in columns:
                raise InputError(f"there is no column {name!r} in {paths[0]!r}; {hint(name, columns)}")
        if types and shared_form in ("parquet", "arrow"):
            raise InputError(f"files of {shared_form} say their types themselves")
        return EventFiles(paths, shared_form, columns | dict(types or {}))

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(os.path.getsize(path) for path in self.paths)

    def count(self) -> int:
        """How many events there are."""
        total = 0
        for path in self.paths:
            with named(path):
                if self.form == "parquet":
                    total += pq.ParquetFile(path).metadata.num_rows
                else:
                    total += sum(frame.height for frame in read(path, self.form, dict([*self.columns.items()][:1])))
        return total

    def frames(self, path: str, needed: Mapping[str, pl.DataType]) -> Iterator[pl.DataFrame]:
        """The needed columns of one of the files."""
        with named(path):
            yield from read(path, self.form, needed)


# --- columns --------------------------------------------------------------------------------------------------------


def columns_of(paths: Sequence[str], form: str) -> dict[str, pl.DataType]:
    """The columns of files, from the first one, or where files do not say their types, from the first rows of some."""
    if form in ("parquet", "arrow"):
        with named(paths[0]):
            if form == "parquet":
                return dict(pl.read_parquet_schema(paths[0]))
            with open_arrow(paths[0]) as (schema, _):
                return dict(to_polars(schema.empty_table()).schema)
    heads = []
    for path in paths[:FILES_THAT_TELL]:
        with named(path):
            heads.append(_head(path, form))
    try:
        head = pl.concat([head for head in heads if head.height] or heads[:1], how="diagonal_relaxed")
    except pl.exceptions.PolarsError as error:
        raise InputError(f"the files {paths[0]!r} and others have different types: {_first_line(error)}") from error
    return {name: pl.String() if dtype == pl.Null() else dtype for name, dtype in head.schema.items()}


def _head(path: str, form: str) -> pl.DataFrame:
    """The first rows, with types that hold them all."""
    if form == "csv":
        few = {"n_rows": ROWS_THAT_TELL, "infer_schema_length": ROWS_THAT_TELL, "raise_if_empty": False}
        # rows behind the first are parsed too, by the way; those that do not fit are none of theirs
        return pl.read_csv(path, try_parse_dates=True, ignore_errors=True, **few)  # type: ignore[arg-type]
    if not os.path.getsize(path):
        return pl.DataFrame()
    head = pl.scan_ndjson(path, infer_schema_length=ROWS_THAT_TELL).head(ROWS_THAT_TELL).collect()
    times = {}
    for name, dtype in head.schema.items():
        if dtype == pl.String() and head[name].null_count() < head.height:
            try:
                times[name] = head[name].str.to_datetime(time_unit="us")
            except pl.exceptions.PolarsError:
                continue
    return head.with_columns(**times)


# --- events ---------------------------------------------------------------------------------------------------------


def read(path: str, form: str, needed: Mapping[str, pl.DataType], skip: int = 0) -> Iterator[pl.DataFrame]:
    """The columns of a file that are needed, so many rows at a time; those that it does not have are left out.

    skip:  rows that are passed over; Parquet and Arrow do not read them, the others do
    """
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
    parsed = []
    if form == "parquet":
        scan = pl.scan_parquet(path, glob=False).select(n for n in pl.read_parquet_schema(path) if n in needed)
    elif form == "csv":
        header = pl.read_csv(path, n_rows=0, raise_if_empty=False).columns
        if not header:
            return
        types = {name: needed[name] for name in header if name in needed}
        scan = pl.scan_csv(path, schema_overrides=types, glob=False).select(list(types) or header[:1])
    else:
        if not os.path.getsize(path):
            return
        texts = [name for name, dtype in needed.items() if is_text_in_json(dtype)]
        scan = pl.scan_ndjson(path, schema={**needed, **dict.fromkeys(texts, pl.String())})
        parsed = [from_text(name, needed[name]) for name in texts]
    rows = scan.slice(skip).with_columns(parsed)
    yield from rows.collect_batches(chunk_size=EVENTS_AT_ONCE, maintain_order=True)


_SMALL = (pl.Int8(), pl.Int16(), pl.UInt8(), pl.UInt16())


def is_text_in_json(dtype: pl.DataType) -> bool:
    """Whether values are read as text, because JSON has none of them, such as times, or Polars does not read them."""
    is_number = (dtype.is_integer() or dtype.is_float()) and dtype not in _SMALL
    return not (is_number or isinstance(dtype, pl.String | pl.Boolean | pl.Null) or dtype.is_nested())


def from_text(name: str, dtype: pl.DataType) -> pl.Expr:
    """A column of text as what it stands for; times without a zone are in UTC."""
    text = pl.col(name)
    if isinstance(dtype, pl.Datetime):
        moment = text.str.to_datetime(time_unit=dtype.time_unit, time_zone="UTC")
        return moment.dt.convert_time_zone(dtype.time_zone) if dtype.time_zone else moment.dt.replace_time_zone(None)
    if isinstance(dtype, pl.Date):
        return text.str.to_date()
    if isinstance(dtype, pl.Time):
        return text.str.to_time()
    return text.cast(dtype)


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
