"""`windrow run`: what is asked, over which events, answered by which engine, and where the results go."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from windrow import __version__
from windrow.cli import local
from windrow.cli.asked import Asked, Engine
from windrow.cli.failures import Refused
from windrow.cli.progress import Shown, several
from windrow.cli.results import FACTS, Parts, check_out, complete, show
from windrow.eventfiles import EventFiles
from windrow.measures import plain
from windrow.tables import Table


@dataclass(frozen=True)
class Where:
    """Where events come from and results go."""

    events: str
    events_format: str | None = None
    types: Mapping[str, pl.DataType] = field(default_factory=dict)
    out: Path | None = None
    form: str | None = None  # console, csv, json, parquet; None: parquet for a directory, else as it fits
    overwrite: bool = False
    rows: int | None = None
    checkpoint: Path | None = None

    def check(self) -> None:
        if self.out is None and self.form == "parquet":
            raise Refused("--format parquet needs --out, a directory to write into")
        if self.out is not None and self.form == "console":
            raise Refused("--format console is for the terminal; leave --out or --format out")

    @property
    def written(self) -> str:
        """The format of files."""
        return self.form or "parquet"

    @property
    def files(self) -> EventFiles | None:
        """The files that can be looked at from here; None where only Spark can."""
        if "://" in self.events.removeprefix("file://"):
            return None
        return EventFiles.of(self.events.removeprefix("file://"), self.events_format, self.types)


def checked(asked: Asked, columns: Mapping[str, pl.DataType]) -> str:
    """The time column, if the queries fit the columns; whatever does not is refused before any work is done."""
    time = asked.measure(columns)
    Table(asked.queries, time, **asked.options).binding(columns)
    return time


def run_local(asked: Asked, where: Where, shown: Shown) -> None:
    """A run in this process."""
    where.check()
    if where.out is not None:
        check_out(where.out, where.overwrite)
    files = where.files
    if files is None:
        raise Refused(f"--engine local reads files of this machine, not {where.events!r}; take --engine spark")
    time = checked(asked, files.columns)
    kept: list[pl.DataFrame] = []
    with ExitStack() as stack:
        folder = None
        if where.out is not None:
            folder = stack.enter_context(complete(where.out))
            parts = Parts(folder, where.written)
        with shown:
            local.run(files, asked, time, kept.append if folder is None else parts.write, shown)
        if folder is not None:
            parts.close()
            counts = shown.counts
            facts = facts_of("local", asked, time, shown.seconds, counts.events, counts.results)
            facts |= {"late": counts.late, "dropped": counts.dropped}
            write_facts(folder, facts)
    _tell("local", asked, shown, where.out)
    if where.out is None:
        show(pl.concat(kept), asked.queries, where.form, where.rows)


def run_spark(asked: Asked, where: Where, master: str, shown: Shown, debug: bool) -> None:
    """A batch on Spark."""
    where.check()
    if where.out is not None:
        check_out(where.out, where.overwrite)
    files = where.files
    time = checked(asked, files.columns) if files is not None else None

    from windrow.cli import spark as on_spark

    source = on_spark.Source.of(where.events, files, where.events_format)
    with ExitStack() as stack:
        folder = stack.enter_context(complete(where.out)) if where.out is not None else None
        shown.say(f"starting Spark on {master}")
        session = stack.enter_context(on_spark.started(master, debug))
        stack.enter_context(shown)
        events = source.batch(session)
        if time is None:
            from windrow.spark.types import polars_columns

            time = checked(asked, polars_columns(events.schema))
        found = on_spark.run(session, events, asked, time, folder, where.written, shown)
        found.events = files.count() if files is not None else events.count()
        shown.at(events=found.events, results=found.results)
        if folder is not None:
            facts = facts_of("spark", asked, time, shown.seconds, found.events, found.results)
            facts |= {"late": 0, "dropped": 0, "network": _network(files, found.shuffled)}
            write_facts(folder, facts)
    _tell("spark", asked, shown, where.out)
    if found.rows is not None:
        show(found.rows, asked.queries, where.form, where.rows)


def run_stream(
    asked: Asked, where: Where, master: str, shown: Shown, debug: bool, follow: bool, most: int | None
) -> None:
    """A stream of files on Spark."""
    where.check()
    files = where.files
    time = checked(asked, files.columns) if files is not None else None
    checkpoint = where.checkpoint or (where.out / "_checkpoint" if where.out else None)
    if where.out is not None:
        _check_stream(where.out, checkpoint, where.overwrite)

    from windrow.cli import spark as on_spark

    on_spark.check_stream(asked)
    source = on_spark.Source.of(where.events, files, where.events_format)
    with ExitStack() as stack:
        if checkpoint is None:
            checkpoint = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="windrow-", ignore_cleanup_errors=True))
            )
        shown.say(f"starting Spark on {master}")
        session = stack.enter_context(on_spark.started(master, debug))
        stack.enter_context(shown)
        events = source.stream(session, most)
        if time is None:
            from windrow.spark.types import polars_columns

            time = checked(asked, polars_columns(events.schema))
        sink = on_spark.Sink(
            where.written,
            where.out,
            checkpoint,
            lambda rows: show(rows, asked.queries, where.form, where.rows),
            follow,
        )
        try:
            found = on_spark.stream(session, events, asked, time, sink, shown)
        finally:
            if where.out is not None and where.out.is_dir():
                counts = shown.counts
                facts = facts_of("spark", asked, time, shown.seconds, counts.events, counts.results)
                facts |= {"dropped": counts.dropped}
                write_facts(where.out, _added(where.out, facts))
        shown.at(events=found.events, results=found.results, dropped=found.dropped)
    _tell("spark", asked, shown, where.out)


def _check_stream(out: Path, checkpoint: Path | None, overwrite: bool) -> None:
    """A stream goes on where its checkpoint ends; results without one are those of something else."""
    going_on = checkpoint is not None and checkpoint.is_dir() and any(checkpoint.iterdir())
    if overwrite:
        check_out(out, overwrite)
        for gone in (out, checkpoint):
            if gone is not None and gone.exists():
                shutil.rmtree(gone)
    elif out.exists() and not going_on:
        check_out(out, overwrite)


# --- facts ----------------------------------------------------------------------------------------------------------


def facts_of(
    engine: Engine, asked: Asked, time: str, seconds: float, events: int | None, results: int | None
) -> dict[str, Any]:
    """How results came about, for whoever reads them."""
    return {
        "windrow": __version__,
        "engine": engine,
        "queries": [query.to_dict() for query in asked.queries],
        "time": time,
        "lateness": plain(asked.lateness),
        "seconds": round(seconds, 3),
        "events": events,
        "results": results,
    }


def write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    text = json.dumps({name: value for name, value in facts.items() if value is not None}, indent=1, ensure_ascii=False)
    (folder / FACTS).write_text(text + "\n", encoding="utf-8")


def _added(out: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """The facts of a stream that went on, with those of before."""
    path = out / FACTS
    if not path.is_file():
        return facts
    before = json.loads(path.read_text(encoding="utf-8"))
    counted = ("events", "results", "dropped", "seconds")
    return facts | {name: (before.get(name) or 0) + (facts.get(name) or 0) for name in counted}


def _network(files: EventFiles | None, shuffled: int) -> list[dict[str, Any]]:
    size = [{"what": "events as they are", "bytes": files.size}] if files is not None else []
    return [*size, {"what": "slices that were shuffled", "bytes": shuffled}]


def _tell(engine: Engine, asked: Asked, shown: Shown, out: Path | None) -> None:
    """The last line."""
    counts = shown.counts
    parts: Iterable[str] = (
        several(counts.events or 0, "event"),
        several(len(asked.queries), "query").replace("querys", "queries"),
        several(counts.results or 0, "result"),
        *([f"{counts.dropped:,} left out"] if counts.dropped else []),
    )
    place = f", in {os.path.relpath(out) if out.is_relative_to(Path.cwd()) else out}" if out is not None else ""
    shown.say(f"{', '.join(parts)} in {shown.seconds:.1f} s ({engine}){place}")
