"""Files of events: which there are, what columns they have, and their events, so many at a time.

    a file, a directory, a pattern ──▶ files ──▶ columns ──▶ frames of the columns that are needed

Parquet, Arrow, CSV with a header, and JSON lines; the last two may be compressed with gzip. CSV and JSON do not say of
what types they are: the first rows tell, timestamps included, and what does not fit later is an error, never a null.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from windrow.binding import InputError
from windrow.frames import in_parts

CHUNK = 1_000_000  # events that are read at a time, about
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
TELLING = 10_000  # rows of a file that tell its types, and files that are asked, where they do not say themselves
TELLING_FILES = 10


# --- which files there are ------------------------------------------------------------------------------------------


def files_of(path: str) -> list[str]:
    """The files of a path, in the order of their names: a file, all files below a directory, or all that fit a pattern.

    Names that begin with `_` or `.`, and those that end with `.tmp`, are left alone.
    """
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        found = _below(path)
        if not found:
            raise InputError(f"the directory {path!r} has no files of events")
        return found
    if glob.escape(path) == path:
        raise InputError(f"there is no file or directory {path!r}")
    found = []
    for one in sorted(glob.glob(path, recursive=True)):
        if not is_hidden(os.path.basename(one.rstrip("/"))):
            found += _below(one) if os.path.isdir(one) else [one]
    if not found:
        raise InputError(f"nothing fits {path!r}")
    return list(dict.fromkeys(found))


def _below(top: str) -> list[str]:
    found = []
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if not is_hidden(name)]
        found += [os.path.join(folder, name) for name in names if not is_hidden(name)]
    return sorted(found)


def is_hidden(name: str) -> bool:
    return name.startswith(("_", ".")) or name.endswith(".tmp")


def form_of(path: str) -> str | None:
    """The format that a file's name says."""
    root, suffix = os.path.splitext(path.lower())
    found = SUFFIXES.get(os.path.splitext(root)[1] if suffix == ".gz" else suffix)
    return None if suffix == ".gz" and found not in ("csv", "json") else found


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
        forms = {one: form or form_of(one) for one in paths}
        for one, known in forms.items():
            if known is None:
                raise InputError(
                    f"file {one!r}: its name does not say whether it is {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
                )
            if known != forms[paths[0]]:
                raise InputError(f"file {one!r} is {known}, and {paths[0]!r} is {forms[paths[0]]}; take one format")
        known = forms[paths[0]]
        assert known is not None
        columns = columns_of(paths, known)
        if not columns:
            raise InputError(f"file {paths[0]!r} is empty, and so has no columns; CSV needs a header, JSON an event")
        for name in types or {}:
            if name not in columns:
                raise InputError(f"there is no column {name!r} in {paths[0]!r}; there are {', '.join(columns)}")
        if types and known in ("parquet", "arrow"):
            raise InputError(f"files of {known} say their types themselves")
        return EventFiles(paths, known, columns | dict(types or {}))

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
                frame = pl.from_arrow(schema.empty_table())
                assert isinstance(frame, pl.DataFrame)
                return dict(frame.schema)
    heads = []
    for path in paths[:TELLING_FILES]:
        with named(path):
            heads.append(_head(path, form))
    try:
        told = pl.concat([head for head in heads if head.height] or heads[:1], how="diagonal_relaxed")
    except pl.exceptions.PolarsError as error:
        raise InputError(f"the files {paths[0]!r} and others have different types: {_first_line(error)}") from error
    return {name: pl.String() if dtype == pl.Null() else dtype for name, dtype in told.schema.items()}


def _head(path: str, form: str) -> pl.DataFrame:
    """The first rows, with types that hold them all."""
    if form == "csv":
        few = {"n_rows": TELLING, "infer_schema_length": TELLING, "raise_if_empty": False}
        # rows behind the first are parsed too, by the way; those that do not fit are none of theirs
        return pl.read_csv(path, try_parse_dates=True, ignore_errors=True, **few)  # type: ignore[arg-type]
    if not os.path.getsize(path):
        return pl.DataFrame()
    head = pl.scan_ndjson(path, infer_schema_length=TELLING).head(TELLING).collect()
    times = {}
    for name, dtype in head.schema.items():
        if dtype == pl.String() and head[name].null_count() < head.height:
            try:
                times[name] = head[name].str.to_datetime(time_unit="us")
            except pl.exceptions.PolarsError:
                continue
    return head.with_columns(**times)


# --- events ---------------------------------------------------------------------------------------------------------


def read(path: str, form: str, needed: Mapping[str, pl.DataType]) -> Iterator[pl.DataFrame]:
    """The columns of a file that are needed, so many rows at a time; those that it does not have are left out."""
    if form == "parquet":
        there = [name for name in pl.read_parquet_schema(path) if name in needed]
        parquet = pq.ParquetFile(path).metadata
        sizes = [parquet.row_group(number).num_rows for number in range(parquet.num_row_groups)]
        begin, end = 0, 0
        for number, size in enumerate(sizes):
            end += size
            if end - begin >= CHUNK or number == len(sizes) - 1:
                whole = pl.scan_parquet(path, glob=False).slice(begin, end - begin).select(there).collect()
                for at in range(0, whole.height, CHUNK):
                    yield whole[at : at + CHUNK]
                begin = end
    elif form == "csv":
        header = pl.read_csv(path, n_rows=0, raise_if_empty=False).columns
        types = {name: needed[name] for name in header if name in needed}
        if header:
            scan = pl.scan_csv(path, schema_overrides=types, glob=False).select(list(types) or header[:1])
            yield from scan.collect_batches(chunk_size=CHUNK, maintain_order=True)
    elif form == "json":
        if os.path.getsize(path):
            yield from _json_lines(path, needed)
    else:
        with open_arrow(path) as (_, batches):
            for several in in_parts(batches, CHUNK):
                table = pa.Table.from_batches(several)
                frame = pl.from_arrow(table.select([name for name in table.column_names if name in needed]))
                assert isinstance(frame, pl.DataFrame)
                yield frame


def _json_lines(path: str, needed: Mapping[str, pl.DataType]) -> Iterator[pl.DataFrame]:
    """Times are text in JSON."""
    times = {name: dtype for name, dtype in needed.items() if isinstance(dtype, pl.Datetime | pl.Date)}
    schema = {name: pl.String() if name in times else dtype for name, dtype in needed.items()}
    for frame in pl.scan_ndjson(path, schema=schema).collect_batches(chunk_size=CHUNK, maintain_order=True):
        parsed = []
        for name, dtype in times.items():
            if isinstance(dtype, pl.Datetime):
                parsed.append(pl.col(name).str.to_datetime(time_unit="us", time_zone=dtype.time_zone))
            else:
                parsed.append(pl.col(name).str.to_date())
        yield frame.with_columns(parsed)


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
