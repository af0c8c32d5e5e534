"""The command line on Spark: batches, streams, and errors in one sentence.

Rows are compared with those of `windows` over the same events in this process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import windrow as wr
from test_cli import Windrow, command
from windrow.cli.results import in_order
from windrow.report.runs import Run

pytestmark = pytest.mark.spark

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "src")}
SQL = """\
-- name: mean
SELECT k, avg(x) AS v, count(*) AS n FROM events GROUP BY k, window(ts, '1 minute');
-- name: trip
SELECT k, count(*) AS n, collect_list(x) AS xs FROM events GROUP BY k, session_window(ts, '20 seconds')
"""
START = datetime(2024, 5, 1, 8, tzinfo=UTC)


def events(size: int, begin: int = 0) -> pl.DataFrame:
    """So many events, one each seven seconds."""
    at = range(begin, begin + size)
    return pl.DataFrame(
        {
            "ts": pl.Series([START + timedelta(seconds=7 * n) for n in at], dtype=pl.Datetime("us", "UTC")),
            "k": ["abc"[n * n % 3] for n in at],
            "x": [n * 37 % 100 for n in at],
        }
    )


@pytest.fixture
def windrow(spark: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Windrow:
    """The command on the session that is there, in a folder with queries.sql."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queries.sql").write_text(SQL)
    return command(capsys, "run", "queries.sql", "--engine", "spark")


def told(frame: pl.DataFrame) -> tuple[pl.DataFrame, list[wr.Query]]:
    queries = wr.sql(SQL)
    return in_order(wr.windows(frame, queries), queries), queries


@pytest.mark.parametrize("suffix", ["csv", "json", "arrow"])
def test_a_batch_gives_what_windows_gives(windrow: Windrow, suffix: str) -> None:
    frame = events(200)
    Path("data").mkdir()
    for number, part in enumerate((frame[:120], frame[120:])):
        path = f"data/{number}.{suffix}"
        if suffix == "json":
            part.with_columns(pl.col("ts").dt.strftime("%Y-%m-%dT%H:%M:%S%.fZ")).write_ndjson(path)
        else:
            (part.write_csv if suffix == "csv" else part.write_ipc)(path)
    done = windrow("--events", "data", "--out", "out")
    assert (done.code, done.out) == (0, ""), done.err
    expected, queries = told(frame)
    assert done.err.splitlines()[-1].startswith(f"200 events, 2 queries, {expected.height} results in ")
    assert_frame_equal(in_order(pl.read_parquet("out/*.parquet"), queries), expected)
    run = Run.read("out")
    assert (run.queries, run.engine, run.events, run.results) == (tuple(queries), "spark", 200, expected.height)
    assert [figure.what for figure in run.network] == ["slices that were shuffled", "events as they are"]
    assert all(figure.value > 0 for figure in run.network)


def test_a_batch_as_text_is_the_same_as_in_this_process(windrow: Windrow) -> None:
    events(200).write_parquet("e.parquet")
    for form in ("csv", "json"):
        assert windrow("--events", "e.parquet", "--out", form, "--format", form).code == 0
        assert (
            windrow("--events", "e.parquet", "--out", f"{form}-here", "--format", form, "--engine", "local").code == 0
        )
        lines = [
            sorted(line for path in sorted(Path(folder).glob("part-*")) for line in path.read_text().splitlines())
            for folder in (form, f"{form}-here")
        ]
        assert set(lines[0]) == set(lines[1])
    assert windrow("--events", "e.parquet").out == windrow("--events", "e.parquet", "--engine", "local").out


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (pl.when(pl.col("x") > 5).then("ts").alias("ts"), "12 of 200 events have no time in 'ts'; --bad-events drop"),
        (pl.lit(2**62).alias("x"), ""),
    ],
)
def test_an_error_of_a_worker_is_one_sentence(windrow: Windrow, change: pl.Expr, sentence: str) -> None:
    events(200).with_columns(change).write_parquet("e.parquet")
    Path("queries.sql").write_text("SELECT sum(x) FROM events GROUP BY window(ts, '1 hour')")
    done = windrow("--events", "e.parquet", "--out", "out")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1].startswith(f"windrow: {sentence}")
    assert "Traceback" not in done.err
    assert not Path("out").exists()


def test_a_row_that_does_not_fit_is_one_sentence(windrow: Windrow) -> None:
    frame = events(12_000)
    text = frame.write_csv() + "2024-05-02T23:00:00Z,a,many\n"
    Path("e.csv").write_text(text)
    done = windrow("--events", "e.csv")
    assert (done.code, done.out) == (2, "")
    path = Path("e.csv").absolute()
    assert done.err.splitlines()[-1].startswith(f"windrow: file '{path}' cannot be read: could not parse `many` as")
    assert "Traceback" not in done.err
    Path("in").mkdir()
    Path("e.csv").rename("in/e.csv")
    done = windrow("--events", "in", "--stream")  # which Spark reads itself
    assert done.code == 1
    assert done.err.splitlines()[-1].startswith("windrow: Spark: ")
    assert "many" in done.err.splitlines()[-1]
    assert "Traceback" not in done.err


def test_a_stream_to_the_console_and_one_that_changes_results(windrow: Windrow) -> None:
    frame = events(100)
    Path("in").mkdir()
    frame[60:].write_parquet("in/1.parquet")
    frame[:60].write_parquet("in/2.parquet")
    late = ("--events", "in", "--stream", "--files-per-batch", "1")
    done = windrow(*late)
    assert done.code == 0, done.err
    assert "60 left out" in done.err.splitlines()[-1]
    done = windrow(*late, "--updates", "1 hour", "--out", "out")
    assert done.code == 0, done.err
    assert " left out" not in done.err.splitlines()[-1]


def test_a_stream_ends_by_ctrl_c_and_goes_on_where_it_ended(windrow: Windrow, tmp_path: Path) -> None:
    frame = events(260)
    Path("in").mkdir()
    asked = ("--events", "in", "--lateness", "10 seconds", "--out", "out")
    typed = [sys.executable, "-m", "windrow", "run", "queries.sql", *asked, "--follow", "--master", "local[2]"]
    frame[:120].write_parquet("in/1.parquet")
    queries, closed = after(frame[:200])
    done, interrupted = False, False
    with subprocess.Popen(typed, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as following:
        assert following.stderr is not None
        lines = []
        for line in following.stderr:
            lines.append(line)
            if "120 events" in line and not done:
                deliver(frame[120:200], "in/2.parquet")
                done = True
            if "200 events" in line and f" {closed.height} results" in line and not interrupted:
                following.send_signal(signal.SIGINT)
                interrupted = True
    assert following.returncode == 130
    assert lines[-1] == "windrow: interrupted; the same command goes on from the checkpoint\n"
    assert lines[0] == "starting Spark on local[2]\n"
    others = [line for line in lines[1:-1] if " events" not in line and "stopping" not in line]
    assert others == []  # nothing of Spark's own
    assert_frame_equal(in_order(pl.read_parquet("out/*.parquet"), queries), closed)
    run = Run.read("out")
    assert (run.events, run.results, run.dropped) == (200, closed.height, 0)
    deliver(frame[200:], "in/3.parquet")
    went_on = windrow(*asked, "--stream")
    assert went_on.code == 0, went_on.err
    assert went_on.err.splitlines()[-1].startswith("60 events, ")
    assert_frame_equal(in_order(pl.read_parquet("out/*.parquet"), queries), after(frame)[1])


def after(frame: pl.DataFrame) -> tuple[list[wr.Query], pl.DataFrame]:
    """What a stream of these events has said, ten seconds of lateness behind the last one."""
    expected, queries = told(frame)
    return queries, expected.filter(pl.col("window_end") <= frame["ts"].max() - timedelta(seconds=10))  # type: ignore[operator]


def deliver(frame: pl.DataFrame, path: str) -> None:
    """A file that is never seen in part."""
    frame.write_parquet("part")
    Path("part").rename(path)
