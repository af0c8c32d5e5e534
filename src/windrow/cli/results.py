"""Where results go: a directory in Spark's way, standard output, or tables in a terminal.

    out/part-00000.parquet   rows as `wr.windows` gives them; CSV and JSON lines likewise
    out/_windrow.json        how they came about, for `windrow report`; readers skip it by its name

A directory is written beside its place and renamed when it is complete, so that nobody ever sees half of it, and what
was there before goes only then.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from windrow.api import results_of
from windrow.cli.failures import Failed, Refused
from windrow.core.query.query import Query
from windrow.io.private import naming
from windrow.report.runs import FILE

TIME_FORMAT = "%Y-%m-%dT%H:%M:%S%.6f"
PART = 1_000_000  # rows in a file


# --- directories ----------------------------------------------------------------------------------------------------


def check_out(out: Path, overwrite: bool) -> None:
    """Refuse a place that is taken, before any work is done."""
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        raise Refused(f"--out {out} is a file; results are a directory")
    inside = os.listdir(out)
    if not inside:
        return
    if not overwrite:
        raise Refused(f"--out {out} is not empty: choose another, or say --overwrite")
    if FILE not in inside and "_spark_metadata" not in inside:
        raise Refused(f"--out {out} does not hold results of windrow, so that --overwrite leaves it alone")


@contextmanager
def complete(out: Path | None) -> Iterator[Path | None]:
    """A directory to write into, which takes its place when all went well; none where none is wanted."""
    if out is None:
        yield None
        return
    made = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()  # before any work is done
        made.rmdir()
    except OSError as error:
        raise Failed(f"--out {out} cannot be written: {error.strerror}; choose another place") from error
    try:
        yield made
        before = out.with_name(f".{out.name}.{os.getpid()}.old")
        if out.exists():
            out.rename(before)
        made.rename(out)
        shutil.rmtree(before, ignore_errors=True)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


class Parts:
    """Files of results in a directory, so many rows in each; at least one, so that columns are known."""

    def __init__(self, folder: Path, form: str) -> None:
        folder.mkdir(parents=True)
        self._folder, self._form = folder, form
        self._pending: list[pl.DataFrame] = []
        self._number = 0

    def write(self, results: pl.DataFrame) -> None:
        self._pending.append(results)
        if sum(frame.height for frame in self._pending) >= PART:
            self._flush()

    def close(self) -> None:
        if self._pending and (not self._number or any(frame.height for frame in self._pending)):
            self._flush()

    def _flush(self) -> None:
        frame, path = pl.concat(self._pending), self._folder / f"part-{self._number:05}.{self._form}"
        if self._form == "parquet":
            frame.write_parquet(written := io.BytesIO())
            data = written.getvalue()
        else:
            data = TEXTS[self._form](frame).encode()
        with naming(path):
            path.write_bytes(data)
        self._pending, self._number = [], self._number + 1


# --- text -----------------------------------------------------------------------------------------------------------


def csv_text(frame: pl.DataFrame) -> str:
    """CSV with a header; it has no lists and structs, so those are JSON."""
    nested = [_as_json(name) for name, dtype in frame.schema.items() if dtype.is_nested()]
    return _times(frame.with_columns(nested)).write_csv()


def json_text(frame: pl.DataFrame) -> str:
    return _times(frame).write_ndjson()


TEXTS = {"csv": csv_text, "json": json_text}


def _times(frame: pl.DataFrame) -> pl.DataFrame:
    """Timestamps as text, the same for both engines; those with a zone are in UTC."""
    shown = []
    for name, dtype in frame.schema.items():
        if isinstance(dtype, pl.Datetime):
            column = pl.col(name).dt.convert_time_zone("UTC") if dtype.time_zone else pl.col(name)
            shown.append(column.dt.strftime(TIME_FORMAT + ("Z" if dtype.time_zone else "")))
    return frame.with_columns(shown)


def _as_json(name: str) -> pl.Expr:
    text = pl.struct(pl.col(name).alias("v")).struct.json_encode().str.slice(5)
    return pl.when(pl.col(name).is_not_null()).then(text.str.head(-1)).alias(name)


def in_order(frame: pl.DataFrame, queries: Sequence[Query]) -> pl.DataFrame:
    """Rows in the order in which an engine emits them, whoever made them."""
    keys = list(dict.fromkeys(key for query in queries for key in query.by))
    by = ["window_end", "query", *keys, "window_start", *(["position"] if "position" in frame.columns else [])]
    return frame.sort(by, nulls_last=False, maintain_order=True)


# --- standard output ------------------------------------------------------------------------------------------------


class Output(Console):
    """Standard output as rich prints to it, wide and without blanks at the ends of lines where it is no terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, **options)
        if not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = 200

    def print(self, *objects: Any, **options: Any) -> None:
        if self.is_terminal:
            return super().print(*objects, **options)
        with self.capture() as printed:
            super().print(*objects, **options)
        self.file.writelines(f"{line.rstrip()}\n" for line in printed.get().splitlines())

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # the same as everywhere: it is the end, and no error


def show(frame: pl.DataFrame, queries: Sequence[Query], form: str | None, rows: int | None) -> None:
    """Results on standard output: tables in a terminal or with `--format console`, otherwise CSV."""
    found = in_order(frame, queries)
    with naming("standard output"):
        if (form := form or ("console" if sys.stdout.isatty() else "csv")) == "console":
            tables(found, queries, 10 if rows is None else rows)
        else:
            sys.stdout.write(TEXTS[form](_head(found, rows)))
        sys.stdout.flush()


def _head(frame: pl.DataFrame, rows: int | None) -> pl.DataFrame:
    """The first rows of each query."""
    return frame if rows is None else frame.filter(pl.int_range(pl.len()).over("query") < rows)


def tables(frame: pl.DataFrame, queries: Iterable[Query], rows: int) -> None:
    """A table for each query, with its first rows."""
    console = Output()
    for query in queries:
        own = results_of(frame, query)
        marks = [
            name for name in ("revision", "retracted") if name in own.columns and not own[name].cast(pl.Boolean).any()
        ]
        shown = own.drop("query", *marks)
        made = Table(title=Text(f"{query.name}: {query.window}"), title_justify="left", box=box.SIMPLE_HEAD)
        for name, dtype in shown.schema.items():
            made.add_column(Text(name), justify="right" if dtype.is_numeric() else "left")
        for row in shown.head(rows).iter_rows():
            made.add_row(*(Text("" if value is None else _cell(value)) for value in row))
        console.print(made)
        if shown.height > rows:
            console.print(Text(f"  … and {shown.height - rows:,} more rows; --rows shows more, --out keeps all\n"))


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, list):
        inner = [_cell(one) for one in value[:5]]
        return f"[{', '.join(inner)}{', …' if len(value) > 5 else ''}]"
    text = str(value)
    return text.removesuffix("+00:00")
