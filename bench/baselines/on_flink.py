"""Flink's own windows, in a batch with parallelism 1: SQL with a window function for each query, all in one statement.

`make flink` installs it into an environment of its own, `.venv-flink`, because it needs other versions than windrow
does; `flink_worker` runs there. Events are handed over as Arrow, and loaded before the clock starts; Flink keeps no
table between statements, so that they go with each of them to its cluster. Results come back as Arrow.

A statement takes seconds of the processor to be planned, compiled and begun, however few events there are, and more
the more queries it has: a short run shows little else. Flink's windows are made of milliseconds. Those of whole
milliseconds lose nothing by that; sessions would, and are not claimed, nor are functions whose results have not been
compared.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import polars as pl

import windrow as wr
from bench.baselines.common import END, START, TIME, System, Whole, is_known, results, together
from windrow.core.windows.fixed import Sliding, Tumbling

HOME = Path(__file__).parents[2] / ".venv-flink"
MOST_QUERIES = 10  # each makes the statement longer to begin; 20 take nine seconds of the processor
MOST_EVENTS = 1_000_000  # each statement carries its events
FUNCTIONS = {
    "count": "COUNT(*)",
    "sum": "SUM(`value`)",
    "min": "MIN(`value`)",
    "max": "MAX(`value`)",
    "mean": "AVG(`value`)",
    "median": "PERCENTILE(`value`, 0.5)",
    "quantile": "PERCENTILE(`value`, {q})",
}


def is_there() -> bool:
    """Whether there is the environment, and a Java."""
    home = os.environ.get("JAVA_HOME")
    return (HOME / ".installed").exists() and shutil.which(f"{home}/bin/java" if home else "java") is not None


def version() -> str | None:
    """Which one the environment has."""
    there = distributions(name="apache-flink", path=[str(path) for path in HOME.glob("lib/python*/site-packages")])
    return next((one.version for one in there), None) if is_there() else None


class Worker:
    """The process in Flink's environment."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)
        self._loaded: pl.DataFrame | None = None
        with (self.folder / "log").open("w") as log:
            self._process = subprocess.Popen(
                [str(HOME / "bin" / "python"), str(Path(__file__).with_name("flink_worker.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        atexit.register(self.close)

    def load(self, events: pl.DataFrame) -> None:
        """Make the table of events; the same one only once."""
        if self._loaded is not events:
            path = self.folder / "events.arrow"
            events.select(pl.col(TIME).dt.cast_time_unit("ms"), "key", "value").write_ipc(path)
            self._ask(load=str(path))
            self._loaded = events

    def rows(self, sql: str) -> pl.DataFrame:
        """What a statement gives."""
        path = self.folder / "results.arrow"
        self._ask(sql=sql, to=str(path))
        return pl.read_ipc(path.read_bytes())

    def _ask(self, **request: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended: its log says why
            print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        error = json.loads(line)["error"] if line else (self.folder / "log").read_text()
        if error is not None:
            raise RuntimeError(f"Flink could not do it: {error}")

    def close(self) -> None:
        """It ends, and its Java with it, when there is nothing more to read."""
        self._process.communicate()
        self._folder.cleanup()


@lru_cache
def worker() -> Worker:
    return Worker()


class Flink(Whole):
    def __init__(self, queries: Sequence[wr.Query], lateness: int) -> None:
        super().__init__()
        self._queries, self._sql = queries, statement(queries)
        worker()

    def push(self, events: pl.DataFrame) -> pl.DataFrame:
        worker().load(events)
        return super().push(events)

    def answer(self, events: pl.DataFrame) -> pl.DataFrame:
        parts = worker().rows(self._sql).partition_by("number", as_dict=True)
        return together(
            results(query, parts[number,].select("key", START, END, *_named(query)))
            for number, query in enumerate(self._queries)
            if (number,) in parts
        )


def _named(query: wr.Query) -> list[pl.Expr]:
    """The columns of a query's functions, by their place in the statement."""
    return [
        pl.col(f"a{place}").cast(pl.Int64 if one.function == "count" else pl.Float64).alias(one.name)
        for place, one in enumerate(query.aggregates)
    ]


def statement(queries: Sequence[wr.Query]) -> str:
    """All queries in one, so that Flink can share what it finds to share: each has its number, and as many columns."""
    width = max(len(query.aggregates) for query in queries)
    return "\nUNION ALL\n".join(_select(number, query, width) for number, query in enumerate(queries))


def _select(number: int, query: wr.Query, width: int) -> str:
    window: Any = query.window
    functions = [FUNCTIONS[one.function].format(**dict(one.params)) for one in query.aggregates]
    functions += ["NULL"] * (width - len(functions))
    asked = ", ".join(f"CAST({one} AS DOUBLE) AS a{place}" for place, one in enumerate(functions))
    if isinstance(window, Sliding):
        rows = f"HOP(TABLE events, DESCRIPTOR(ts), {_interval(window.slide)}, {_interval(window.length)})"
    else:
        rows = f"TUMBLE(TABLE events, DESCRIPTOR(ts), {_interval(window.length)})"
    key, keys = ("`key`", ", `key`") if query.by else ("CAST(NULL AS BIGINT) AS `key`", "")
    return (
        f"SELECT {number} AS `number`, {key}, {START}, {END}, {asked}\n"
        f"FROM TABLE({rows})\n"
        f"GROUP BY {START}, {END}{keys}"
    )


def _interval(microseconds: int) -> str:
    seconds, rest = divmod(microseconds // 1000, 1000)
    return f"INTERVAL '{seconds}.{rest:03}' SECOND(10, 3)"


def _is_claimed(query: wr.Query) -> bool:
    window: Any = query.window
    return (
        is_known(query, Tumbling, Sliding)
        and not getattr(window, "offset", 0)
        and all(length % 1000 == 0 for length in (window.length, getattr(window, "slide", 0)))
        and query.by in ((), ("key",))
        and all(
            one.function in FUNCTIONS and [e.text for e in one.inputs] == ([] if one.function == "count" else ["value"])
            for one in query.aggregates
        )
    )


def _claims(queries: Sequence[wr.Query]) -> bool:
    return len(queries) <= MOST_QUERIES and all(map(_is_claimed, queries))


SYSTEM = System("flink", _claims, Flink, batches=1, most_events=MOST_EVENTS)
