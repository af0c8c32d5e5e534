"""`windrow run`: what is request, over which events, answered by which engine, and where the results go."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from windrow.api import Table
from windrow.cli import local
from windrow.cli.engines import Engine
from windrow.cli.failures import Interrupted, Refused
from windrow.cli.options import Request
from windrow.cli.progress import Shown
from windrow.cli.results import Parts, check_out, complete, show
from windrow.core.expressions.types import types_of
from windrow.core.plan.options import StreamOptions
from windrow.core.plan.watermark import plain
from windrow.io.event_files import USUAL, EventFiles, TextForm
from windrow.io.text_times import EPOCHS, is_time
from windrow.report.runs import Figure, Run
from windrow.report.words import count


@dataclass(frozen=True)
class Where:
    """Where events come from and results go."""

    events: str
    events_format: str | None = None
    types: str | None = None  # of columns, in SQL's words
    of_text: TextForm = USUAL
    out: Path | None = None
    form: str | None = None  # console, csv, json, parquet; None: parquet for a directory, else as it fits
    overwrite: bool = False
    rows: int | None = None
    checkpoint: Path | None = None
    follow: bool = False
    files_per_batch: int | None = None

    def checked(self, request: Request, stream: bool = False) -> EventFiles | None:
        """The files; refuses what does not go together, and a place that is taken, which a stream may go on in."""
        if self.out is None and self.form == "parquet":
            raise Refused("--format parquet needs --out, a directory to write into")
        if self.out is not None and self.form == "console":
            raise Refused("--format console is for the terminal; leave --out or --format out")
        if self.out is not None and not stream:
            check_out(self.out, self.overwrite)
        return self.files(request)

    @property
    def written(self) -> str:
        """The format of files."""
        return self.form or "parquet"

    def files(self, request: Request) -> EventFiles | None:
        """The files that can be looked at from here, with their times; None where only Spark can look at them."""
        named = types_of(self.types) if self.types else {}
        if "://" in self.events.removeprefix("file://"):
            if request.time_format or self.of_text.header:
                raise Refused(f"--time-format and --header are for files of this machine, not for {self.events!r}")
            return None
        path = self.events.removeprefix("file://")
        files = EventFiles.of(path, self.events_format, named, self.of_text, request.time_format)
        return with_numbers_as_times(files, request)


def of_text(separator: str | None, header: str | None) -> TextForm:
    """What the command line says of CSV."""
    sign = {"tab": "\t", "\\t": "\t"}.get(separator or "", separator)
    if sign is not None and len(sign.encode()) != 1:
        raise Refused(f"--separator is one sign such as ';', or tab, not {separator!r}")
    names = None if header is None else tuple(name.strip() for name in header.split(","))
    if names is not None and ("" in names or len(set(names)) < len(names)):
        raise Refused(f"--header is names of columns, each once, with commas between them, not {header!r}")
    return TextForm(sign, names)


def with_numbers_as_times(files: EventFiles, request: Request) -> EventFiles:
    """The files with columns of numbers as times, where they are since 1970: as it is said, or certain.

    It is certain where a window of a duration is asked for, so that a number cannot be meant, and the first times lie
    between 2001 and 2286 in one unit and in no other.
    """
    unit = request.time_format if request.time_format in EPOCHS else None
    names = [] if request.time is None else [request.time]
    for name in dict.fromkeys([*names, *(query.time for query in request.queries if query.time)]):
        dtype = files.columns.get(name)
        windows = [query.window for query in request.queries if (query.time or request.time) == name]
        if dtype is None or (is_time(dtype) and files.form in ("parquet", "arrow")):
            continue
        if unit is not None:
            files = files.since_1970(name, unit)
        elif dtype.is_numeric() and any(window.is_temporal for window in windows):
            files = files.since_1970(name, None)
            if not is_time(files.columns[name]):
                raise Refused(
                    f"the time {name!r} is a number and windows have durations: say --time-format s, ms, us or ns "
                    "if it counts them since 1970, or write plain numbers in windows"
                )
    return files


def checked(request: Request, files: EventFiles) -> tuple[StreamOptions, list[str]]:
    """As `checked_columns`; columns that are needed, and that can be read in two ways, are refused."""
    options, needed = checked_columns(request, files.columns)
    files.check(needed)
    return options, needed


def checked_columns(request: Request, columns: Mapping[str, pl.DataType]) -> tuple[StreamOptions, list[str]]:
    """Options, and the columns that are needed; queries that do not fit them are refused before any work is done."""
    options = request.options(columns)
    time = options.time
    if columns.get(time) == pl.String():
        reason = f"the time {time!r} is text; write it like 2024-05-01 08:05:00"
        raise Refused(f"{reason}, or say --types '{time} TIMESTAMP' if the first rows of CSV or JSON do not show it")
    return options, list(Table(request.queries, options.whole).binding(columns).needed)


def _options_on_spark(request: Request, events: Any) -> StreamOptions:
    """The options over events that only Spark could look at."""
    from windrow.spark.types import polars_columns

    return checked_columns(request, polars_columns(events.schema))[0]


def run_local(files: EventFiles | None, request: Request, where: Where, why: str, shown: Shown) -> None:
    """A run in this process."""
    if files is None:
        raise Refused(f"--engine local reads files of this machine, not {where.events!r}; take --engine spark")
    options, _ = checked(request, files)
    kept: list[pl.DataFrame] = []
    with complete(where.out) as folder:
        shown.say(why)
        parts = None if folder is None else Parts(folder, where.written)
        with shown:
            local.run(files, request, options, parts.write if parts else kept.append, shown)
        if folder is not None and parts is not None:
            parts.close()
            run_of("local", request, options, shown).write(folder)
    _print_figures("local", request, shown, where.out)
    if where.out is None:
        show(pl.concat(kept), request.queries, where.form, where.rows)


def run_spark(
    files: EventFiles | None, request: Request, where: Where, master: str, why: str, shown: Shown, debug: bool
) -> None:
    """A batch on Spark."""
    options, needed = checked(request, files) if files is not None else (None, None)

    from windrow.cli import spark as on_spark
    from windrow.cli.session import shuffled, started

    source = on_spark.Source.of(where.events, files, where.events_format, where.of_text)
    with complete(where.out) as folder:
        shown.say(why)
        shown.say(f"starting Spark on {master}")
        with started(master, debug) as session, shown:
            events = source.batch(session, needed)
            options = options or _options_on_spark(request, events)
            rows = on_spark.run(session, events, request, options, folder, where.written, shown)
            shown.at(events=files.count() if files is not None else events.count(), late=0, dropped=0)
            if folder is not None:
                run_of("spark", request, options, shown, _network(files, shuffled(session))).write(folder)
    _print_figures("spark", request, shown, where.out)
    if rows is not None:
        show(rows, request.queries, where.form, where.rows)


def run_stream(
    files: EventFiles | None, request: Request, where: Where, master: str, why: str, shown: Shown, debug: bool
) -> None:
    """A stream of files on Spark."""
    options, needed = checked(request, files) if files is not None else (None, [])
    if files is not None and (unlike := [name for name in needed if name in files.text.time_formats]):
        raise Refused(f"Spark reads the files of a stream, and {unlike[0]!r} is not ISO 8601; leave --stream out")
    checkpoint = where.checkpoint or (where.out / "_checkpoint" if where.out else None)
    if where.out is not None:
        _check_stream(where.out, checkpoint, where.overwrite)

    from windrow.cli import spark as on_spark
    from windrow.cli.session import started

    source = on_spark.Source.of(where.events, files, where.events_format, where.of_text)
    with ExitStack() as stack:
        if checkpoint is None:
            checkpoint = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="windrow-", ignore_cleanup_errors=True))
            )
        shown.say(why)
        shown.say(f"starting Spark on {master}")
        session = stack.enter_context(started(master, debug))
        stack.enter_context(shown)
        events = source.stream(session, where.files_per_batch)
        options = options or _options_on_spark(request, events)
        try:
            on_spark.stream(session, events, request, options, where, checkpoint, shown)
        except KeyboardInterrupt as error:
            if where.out is None and where.checkpoint is None:
                raise
            raise Interrupted("the same command goes on from the checkpoint") from error
        finally:
            if where.out is not None and where.out.is_dir():
                _with_before(where.out, run_of("spark", request, options, shown)).write(where.out)
    _print_figures("spark", request, shown, where.out)


def _check_stream(out: Path, checkpoint: Path | None, overwrite: bool) -> None:
    """A stream goes on where its checkpoint ends; results without one are those of something else."""
    going_on = checkpoint is not None and checkpoint.is_dir() and any(checkpoint.iterdir())
    if overwrite or not going_on:
        check_out(out, overwrite)
    if overwrite:
        for gone in (out, checkpoint):
            if gone is not None and gone.exists():
                shutil.rmtree(gone)


# --- what is left behind --------------------------------------------------------------------------------------------


def run_of(
    engine: Engine, request: Request, options: StreamOptions, shown: Shown, network: tuple[Figure, ...] = ()
) -> Run:
    """How results came about, for whoever reads them."""
    counts = shown.counts
    return Run(
        request.queries,
        engine=engine,
        time=options.time,
        lateness=plain(options.lateness),
        seconds=round(shown.seconds, 3),
        events=counts.events,
        results=counts.results,
        late=counts.late,
        dropped=counts.dropped,
        network=network,
    )


def _with_before(out: Path, run: Run) -> Run:
    """The run of a stream that went on, with what it had counted before."""
    before = Run.read(out)
    counted = ("events", "results", "dropped", "seconds")
    sums: dict[str, Any] = {name: (getattr(before, name) or 0) + (getattr(run, name) or 0) for name in counted}
    return replace(run, **sums)


def _network(files: EventFiles | None, shuffled: int) -> tuple[Figure, ...]:
    events = (Figure("events as they are", files.size),) if files is not None else ()
    return (Figure("slices that were shuffled", shuffled), *events)


def _print_figures(engine: Engine, request: Request, shown: Shown, out: Path | None) -> None:
    """Print the last line."""
    counts = shown.counts
    parts = [
        count(counts.events or 0, "event"),
        count(len(request.queries), "query"),
        count(counts.results or 0, "result"),
        *([f"{counts.dropped:,} left out"] if counts.dropped else []),
    ]
    place = f", in {os.path.relpath(out) if out.is_relative_to(Path.cwd()) else out}" if out is not None else ""
    shown.say(f"{', '.join(parts)} in {shown.seconds:.1f} s ({engine}){place}")
