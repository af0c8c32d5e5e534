"""Exactly once: a streaming query that is killed again and again ends with the result of the whole table."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import windrow as wr
from spark_cases import Source, results
from spark_stream import LATENESS, ORDER, QUERIES, stream
from windrow.testing import differences

pytestmark = pytest.mark.spark

FOLDERS = ("source", "checkpoint", "sink")
SCRIPT = Path(__file__).parent / "spark_stream.py"
FILES = 8  # enough that each time there is something left to do
PATIENCE = 240  # seconds that a run may take on a machine that does other things
BEGIN = datetime(2024, 5, 31, 12, tzinfo=UTC)
END = BEGIN + timedelta(days=1)


def batches(draw: random.Random) -> list[pl.DataFrame]:
    """Events that are at most as late as allowed; the last one, a day later, closes all windows of the others."""
    at, rows = BEGIN, []
    for _ in range(FILES * 100):
        at += timedelta(milliseconds=draw.choice((10, 50, 100, 1500)))
        back = timedelta(milliseconds=draw.randrange(1900)) if draw.random() < 0.3 else timedelta()
        rows.append({"ts": at - back, "k": draw.choice("aabc"), "i": draw.randrange(-3, 100), "x": draw.gauss(0, 1)})
    schema = {"ts": pl.Datetime("us", "UTC"), "k": pl.String(), "i": pl.Int64(), "x": pl.Float64()}
    parts = [pl.DataFrame(rows[n * 100 : n * 100 + 100], schema=schema) for n in range(FILES)]
    return [*parts, pl.DataFrame([{"ts": END, "k": "end", "i": 1, "x": 0.0}], schema=schema)]


class Running:
    """The script, with everything that it starts."""

    def __init__(self, folder: Path) -> None:
        self._sink, self._log = folder / "sink", (folder / "log").open("ab")
        command = [sys.executable, SCRIPT, *(folder / name for name in FOLDERS)]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, start_new_session=True)

    @property
    def commits(self) -> int:
        """How many micro-batches the sink has taken."""
        return len([path for path in self._sink.glob("_spark_metadata/*") if path.name.split(".")[0].isdigit()])

    def wait_for(self, commits: int) -> None:
        until = time.monotonic() + PATIENCE
        while self.commits < commits and self._process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        assert self._process.poll() is None, Path(self._log.name).read_text()[-3000:]  # it should have gone on
        assert self.commits >= commits, "it takes too long"

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)  # the JVM too; its workers end when it is gone
        self._process.wait()
        self._log.close()


def test_killed_two_or_three_times(spark: Any, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    Source(tmp_path / "source", batches(draw))
    told = []
    committed = 0
    for _ in range(2 + seed % 2):
        running = Running(tmp_path)
        committed, delay = committed + 1, draw.uniform(0, 0.5)
        try:
            running.wait_for(committed)
            time.sleep(delay)
        finally:
            running.kill()
        told.append(f"killed {delay:.3f} s after commit {committed}, at {running.commits}")
        committed = running.commits
    print(*told, f"seed {seed}", sep="\n")
    assert committed < FILES
    stream(spark, *(str(tmp_path / name) for name in FOLDERS))  # in this process, so that it ends in yet another one
    found = results(spark.read.parquet(str(tmp_path / "sink")))
    whole = wr.windows(spark.read.parquet(str(tmp_path / "source")), QUERIES, "ts", lateness=LATENESS, order_by=ORDER)
    want = results(whole.where(whole["window_end"] < END))
    assert {row["query"] for row in want} == {query.name for query in QUERIES}
    assert differences(found, want, QUERIES) == []
