"""The command line, in this process: what it prints where, its exit codes, and that its rows are those of `windows`."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import windrow as wr
from windrow.cli import main
from windrow.cli.progress import LINE_EVERY, Shown
from windrow.cli.results import complete, in_order
from windrow.io import event_files

YAML = """\
queries:
- name: mean
  window: tumbling('1 minute')
  aggregates: {v: mean(x), n: count()}
  by: k
- {name: trip, window: session(20 seconds), aggregates: [count(), collect(x)], by: k}
- {name: four, window: counting(4), aggregates: sum(x)}
- {name: last, window: "latest(3, every='5 minutes')", aggregates: "quantile(x, 0.9)", where: x > 10}
"""


def events(size: int = 2000, seed: int = 1) -> pl.DataFrame:
    """An hour of events, mixed up as no lateness would allow."""
    draw = random.Random(seed)
    began = datetime(2024, 5, 1, 8, tzinfo=UTC)
    rows = [
        {
            "ts": began + timedelta(microseconds=draw.randrange(3_600_000_000)),
            "k": draw.choice("abc"),
            "x": draw.randrange(100),
        }
        for _ in range(size)
    ]
    return pl.DataFrame(rows, schema={"ts": pl.Datetime("us", "UTC"), "k": pl.String, "x": pl.Int64})


QUERIES = [
    wr.Query("mean", wr.tumbling("1 minute"), {"v": "mean(x)", "n": "count()"}, by="k"),
    wr.Query("trip", wr.session("20 seconds"), ["count()", "collect(x)"], by="k"),
    wr.Query("four", wr.counting(4), "sum(x)"),
    wr.Query("last", wr.latest(3, every="5 minutes"), "quantile(x, 0.9)", where="x > 10"),
]


def expected(frame: pl.DataFrame, **options: object) -> pl.DataFrame:
    return in_order(wr.windows(frame, QUERIES, "ts", **options), QUERIES)


class Done(NamedTuple):
    code: int
    out: str
    err: str


Windrow = Callable[..., Done]


def command(capsys: pytest.CaptureFixture[str], *before: str) -> Windrow:
    """The command, with these arguments before others."""

    def run(*arguments: str) -> Done:
        with pytest.raises(SystemExit) as ended:
            main([*before, *arguments])
        printed = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, printed.out, printed.err)

    return run


@pytest.fixture
def windrow(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Windrow:
    """The command, in a folder with queries.yaml."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queries.yaml").write_text(YAML)
    return command(capsys)


def in_process(windrow: Windrow, *arguments: str) -> Done:
    """A run that must go well."""
    done = windrow("run", "queries.yaml", "--engine", "local", *arguments)
    assert done.code == 0, done.err
    return done


def write(frame: pl.DataFrame, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = path.suffix
    if kind == ".parquet":
        frame.write_parquet(path, row_group_size=100)
    elif kind == ".arrow":
        frame.write_ipc(path)
    elif kind == ".csv":
        frame.write_csv(path)
    else:
        frame.with_columns(pl.col("ts").dt.strftime("%Y-%m-%dT%H:%M:%S%.fZ")).write_ndjson(path)


def spread(frame: pl.DataFrame, folder: Path, suffix: str, files: int = 3) -> None:
    """The events over some files, all of which reach over the whole hour."""
    for number in range(files):
        write(frame.gather_every(files, number), folder / f"{number}.{suffix}")


# --- results --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv", "jsonl"])
def test_a_run_over_files_of_every_format_gives_what_windows_gives(windrow: Windrow, suffix: str) -> None:
    frame = events(500)
    spread(frame, Path("data"), suffix)
    in_process(windrow, "--events", "data", "--out", "out", "--order-by", "k", "--order-by", "x")
    told = expected(frame, order_by=["k", "x"])
    assert_frame_equal(in_order(pl.read_parquet("out/*.parquet"), QUERIES), told)


@pytest.mark.parametrize("mixed_up", [0, 300, 3600], ids=["in order", "minutes", "altogether"])
def test_parts_of_files_give_what_the_whole_gives(
    windrow: Windrow, monkeypatch: pytest.MonkeyPatch, mixed_up: int
) -> None:
    monkeypatch.setattr(event_files, "EVENTS_AT_ONCE", 100)  # so that there are many parts
    frame, draw = events(), random.Random(2)
    arrival = [at.timestamp() + draw.uniform(0, mixed_up) for at in frame["ts"]]
    frame = frame[sorted(range(frame.height), key=arrival.__getitem__)]
    for number in range(4):
        write(frame[number * 500 : (number + 1) * 500], Path(f"data/{number}.parquet"))
    in_process(windrow, "--events", "data/*.parquet", "--out", "out", "--partial")
    assert_frame_equal(in_order(pl.read_parquet("out/*.parquet"), QUERIES), expected(frame, partial=True))


def test_repeats_in_other_parts_are_the_same_repeats(windrow: Windrow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_files, "EVENTS_AT_ONCE", 10)
    frame = events(60)
    write(pl.concat([frame, frame.with_columns(pl.col("ts") - pl.duration(seconds=1))]), Path("data.csv"))
    text = "queries: [{name: q, window: tumbling(1 hour), aggregates: [count(), min(ts)], distinct_on: [k, x]}]"
    Path("queries.yaml").write_text(text)
    in_process(windrow, "--events", "data.csv", "--lateness", "1 hour", "--out", "out")
    query = wr.Query("q", wr.tumbling("1 hour"), ["count()", "min(ts)"], distinct_on=["k", "x"])
    told = wr.windows(pl.read_csv("data.csv", try_parse_dates=True), query, "ts", lateness="1 hour")
    assert_frame_equal(pl.read_parquet("out/*.parquet"), told)


def test_a_pipe_gets_csv_and_progress_stays_apart(windrow: Windrow) -> None:
    frame = events(300)
    write(frame, Path("e.parquet"))
    done = in_process(windrow, "--events", "e.parquet")
    told = expected(frame)
    read = pl.read_csv(io.StringIO(done.out), try_parse_dates=True)
    assert_frame_equal(read.drop("collect(x)"), told.drop("collect(x)"), check_dtypes=False)
    lists = [None if text is None else json.loads(text) for text in read["collect(x)"]]
    assert lists == told["collect(x)"].to_list()
    assert done.err == f"300 events, 4 queries, {told.height:,} results in {done.err.split(' in ')[1]}"
    assert in_process(windrow, "--events", "e.parquet", "--quiet").err == ""


def test_tables_show_the_first_rows_of_each_query(windrow: Windrow) -> None:
    write(events(300), Path("e.parquet"))
    done = in_process(windrow, "--events", "e.parquet", "--format", "console", "--only", "four", "--rows", "2")
    lines = [line.strip() for line in done.out.splitlines() if line.strip()]
    assert lines[0] == "four: counting(4)"
    assert lines[1].split() == ["window_start", "window_end", "position", "sum(x)"]
    assert lines[-1] == "… and 73 more rows; --rows shows more, --out keeps all"


@pytest.mark.parametrize("form", ["csv", "json"])
def test_text_files_of_results_can_be_read_back(windrow: Windrow, form: str) -> None:
    frame = events(300)
    write(frame, Path("e.parquet"))
    in_process(windrow, "--events", "e.parquet", "--out", "out", "--format", form)
    if form == "csv":
        read = pl.read_csv("out/part-00000.csv", try_parse_dates=True)
        assert read["collect(x)"].drop_nulls()[0].startswith("[")
    else:
        read = pl.read_ndjson("out/part-00000.json").with_columns(
            pl.col("^window_.*$").str.to_datetime(time_zone="UTC")
        )
    same = [name for name in read.columns if name != "collect(x)"]
    assert_frame_equal(in_order(read, QUERIES).select(same), expected(frame).select(same), check_dtypes=False)


def test_what_a_run_leaves_behind_tells_of_it(windrow: Windrow) -> None:
    write(events(300), Path("e.parquet"))
    in_process(windrow, "--events", "e.parquet", "--out", "out")
    facts = json.loads(Path("out/_windrow.json").read_text())
    assert [wr.Query.from_dict(one) for one in facts["queries"]] == QUERIES
    told = {name: facts[name] for name in ("windrow", "engine", "time", "events", "dropped")}
    assert told == {"windrow": wr.__version__, "engine": "local", "time": "ts", "events": 300, "dropped": 0}
    assert facts["results"] == pl.read_parquet("out/*.parquet").height


def test_no_events_are_no_error_and_have_columns(windrow: Windrow) -> None:
    write(events(0), Path("e.parquet"))
    done = in_process(windrow, "--events", "e.parquet")
    assert pl.read_csv(io.StringIO(done.out)).columns == expected(events(0)).columns
    in_process(windrow, "--events", "e.parquet", "--out", "out")
    assert pl.read_parquet("out/*.parquet").schema == expected(events(0)).schema


# --- nothing is lost ------------------------------------------------------------------------------------------------


def test_what_is_there_is_replaced_only_where_it_is_said_and_only_by_what_is_whole(windrow: Windrow) -> None:
    write(events(300), Path("e.parquet"))
    in_process(windrow, "--events", "e.parquet", "--out", "out")
    before = Path("out/_windrow.json").read_text()
    again = ("run", "queries.yaml", "--engine", "local", "--events", "e.parquet", "--out")
    assert windrow(*again, "out") == (2, "", "windrow: --out out is not empty: choose another, or say --overwrite\n")
    Path("other").mkdir()
    Path("other/letters.txt").write_text("dear")
    done = windrow(*again, "other", "--overwrite")
    assert (done.code, Path("other/letters.txt").read_text()) == (2, "dear")
    assert "does not hold results of windrow" in done.err
    write(events(10).with_columns(ts=None), Path("bad.parquet"))
    write(events(300).with_columns(ts=pl.when(pl.col("x") < 5).then("ts")), Path("bad.parquet"))
    done = windrow("run", "queries.yaml", "--engine", "local", "--events", "bad.parquet", "--out", "out", "--overwrite")
    assert done.code == 2
    assert Path("out/_windrow.json").read_text() == before
    assert windrow(*again, "out", "--overwrite", "--only", "four").code == 0
    assert len(json.loads(Path("out/_windrow.json").read_text())["queries"]) == 1
    assert [path.name for path in Path().iterdir() if path.name.startswith(".")] == []


def test_a_run_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with complete(tmp_path / "out") as folder:
            folder.mkdir()
            raise KeyError("half")

    with pytest.raises(KeyError, match="half"):
        fail()
    assert list(tmp_path.iterdir()) == []


# --- what is refused ------------------------------------------------------------------------------------------------


def test_the_time_is_found_or_asked_for(windrow: Windrow) -> None:
    frame = events(50)
    write(frame.with_columns(sent=pl.col("ts")), Path("two.parquet"))
    done = windrow("run", "queries.yaml", "--engine", "local", "--events", "two.parquet")
    assert done[::2] == (2, "windrow: the events have several timestamps: say which one with --time: ts, sent\n")
    assert "mean" in in_process(windrow, "--events", "two.parquet", "--time", "sent").out
    write(frame.drop("ts"), Path("none.parquet"))
    done = windrow("run", "queries.yaml", "--engine", "local", "--events", "none.parquet")
    assert done.err == "windrow: the events have no timestamp; if it is a whole number, say --time: x\n"
    Path("queries.yaml").write_text("time: sent\n" + YAML)
    assert (
        in_process(windrow, "--events", "two.parquet").out
        == in_process(windrow, "--events", "two.parquet", "--time", "ts").out
    )
    Path("queries.yaml").write_text("queries: [{window: tumbling(1 hour), aggregates: count(), time: sent}]")
    assert "q1" in in_process(windrow, "--events", "two.parquet").out
    done = windrow("run", "queries.yaml", "--engine", "local", "--events", "two.parquet", "--time", "ts")
    assert "every query names its own time, 'sent', so that --time ts has no use" in done.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("run", "missing argument 'QUERIES'; see windrow run --help"),
        ("run queries.yaml", "missing option '--events'; see windrow run --help"),
        ("run queries.yaml --events e.csv --evnts", "no such option: --evnts"),
        ("runn", "no such command 'runn'. Did you mean 'run'? see windrow --help"),
        ("run nope.yaml --events e.csv", "there is no file 'nope.yaml' of queries"),
        ("run e.csv --events e.csv", "e.csv: queries are SQL or YAML: call the file .sql or .yaml"),
        ("run . --events e.csv", ". is a directory; name a file of queries, .sql or .yaml"),
        ("run queries.yaml --events nope.csv", "there is no file or directory 'nope.csv'"),
        ("run queries.yaml --events no*.csv", "nothing fits 'no*.csv'"),
        ("run queries.yaml --events queries.yaml", "file 'queries.yaml': its name does not say whether it is parquet"),
        ("run queries.yaml --events e.csv f.csv", "a pattern must be quoted: --events 'data/*.csv'"),
        ("run queries.yaml --events e.csv --time t", "time: there is no column 't' in the events; did you mean 'ts'"),
        ("run queries.yaml --events e.csv --only men", "there is no query 'men'; did you mean 'mean'?"),
        ("run queries.yaml --events e.csv --lateness soon", "lateness 'soon' is not a duration"),
        ("run queries.yaml --events e.csv --lateness 5", "lateness and updates do not fit 'ts', which is a timestamp"),
        ("run queries.yaml --events e.csv --format parquet", "--format parquet needs --out, a directory"),
        ("run queries.yaml --events e.csv --format console --out o", "--format console is for the terminal"),
        ("run queries.yaml --events e.csv --out e.csv", "--out e.csv is a file; results are a directory"),
        ("run queries.yaml --events e.csv --engine local --follow", "a stream runs on Spark: take --engine spark"),
        ("run queries.yaml --events e.csv --updates 5", "--updates is for a stream"),
        ("run queries.yaml --events e.csv --checkpoint c", "--checkpoint is for a stream: say --stream"),
        ("run queries.yaml --events e.csv --engine flink", "invalid value for '--engine': 'flink' is not one of"),
        ("run queries.yaml --events e.csv --types x=INT", "'x=INT' is not a list such as 'ts TIMESTAMP, speed DOUBLE'"),
        ("run queries.yaml --events e.csv --types y~INT", "there is no column 'y' in 'e.csv'; there are ts, k, x"),
        ("run queries.yaml --events e.csv --types x~BINARY", "mean(x) needs a number, and x is Binary"),
        ("run queries.yaml --events e.csv --types k~INT", "file 'e.csv' cannot be read: could not parse `"),
        ("run queries.yaml --events s3://bucket/e.csv", "--engine local reads files of this machine"),
        ("report nope", "there are no results at 'nope'; windrow run … --out nope writes some"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(windrow: Windrow, arguments: str, sentence: str) -> None:
    write(events(50), Path("e.csv"))
    words = [word.replace("~", " ") for word in arguments.split()]
    if words[:2] == ["run", "queries.yaml"] and "--engine" not in words and len(words) > 2:
        words += ["--engine", "local"]
    done = windrow(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("windrow: ")
    assert sentence in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        (
            "q.sql",
            "SELECT key,\ncount(*)oops n FROM e GROUP BY key, window(ts, '1 hour')",
            "q.sql: line 2, column 9: a comma is missing before oops",
        ),
        ("q.sql", f"SELECT sum({'(' * 500}x{')' * 500}) FROM e", "q.sql: line 1, column 51: it is nested too deeply"),
        ("q.sql", "SELECT count(*) FROM e GROUP BY count_window(" + "9" * 5000 + ")", "5,000 digits, and the limit"),
        ("q.sql", "SELECT x\u202e FROM e GROUP BY k, window(ts, '1 hour')", "x\\u202e: there is no aggregate"),
        ("q.yaml", "queries: " + "[" * 5000, "q.yaml, line 1: it is nested too deeply, and the limit is 40 levels"),
        ("q.yaml", "queries:\n- !!timestamp x", "q.yaml, line 2: 'x' is no timestamp"),
        ("q.yaml", "queries:\n- " + "9" * 5000, "q.yaml, line 2: '9999"),
        (
            "q.yaml",
            "queries:\n- {window: 'cumulating(1000 days, 1 us)', aggregates: count()}",
            "steps, and the limit is 100,000",
        ),
    ],
)
@pytest.mark.parametrize("command", ["explain", "run --engine local --events e.csv"])
def test_whatever_stands_in_a_file_of_queries_one_sentence_says_what_is_wrong(
    windrow: Windrow, command: str, name: str, text: str, sentence: str
) -> None:
    write(events(5), Path("e.csv"))
    Path(name).write_text(text)
    done = windrow(*command.split(), name)
    assert (done.code, done.out) == (2, ""), done.err
    assert sentence in done.err
    assert done.err.count("\n") == 1
    assert len(done.err) < 3000


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "file 'e.csv' is empty, and so has no columns; CSV needs a header"),
        (
            "ts,k,x\n",
            "file 'e.csv': its first line are names of columns, and no events follow; --types 'ts TIMESTAMP, …'",
        ),
        ("ts,k,x\nyesterday,a,1\n", "the time 'ts' is text; write it like 2024-05-01 08:05:00"),
    ],
)
def test_events_that_do_not_show_their_time_are_told_how_to(windrow: Windrow, text: str, sentence: str) -> None:
    Path("e.csv").write_text(text)
    asked = ("run", "queries.yaml", "--events", "e.csv", "--engine", "local", "--time", "ts")
    done = windrow(*asked)
    assert done.code == 2
    assert sentence in done.err
    if text == "ts,k,x\n":
        assert windrow(*asked, "--types", "ts TIMESTAMP, x DOUBLE").code == 0


def test_a_place_that_cannot_be_written_is_named_before_any_work_is_done(windrow: Windrow) -> None:
    write(events(50), Path("e.csv"))
    Path("file").touch()
    done = windrow("run", "queries.yaml", "--events", "e.csv", "--engine", "local", "--out", "file/results")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("windrow: --out file/results cannot be written: ")


def test_a_master_that_is_none_is_not_taken_for_a_lack_of_java(windrow: Windrow) -> None:
    pytest.importorskip("pyspark")
    write(events(50), Path("e.csv"))
    done = windrow("run", "queries.yaml", "--events", "e.csv", "--engine", "spark", "--master", "here", "--quiet")
    assert done.code == 2
    assert done.err.startswith("windrow: --master 'here' is no place for Spark; write 'local[2]', spark://host:7077")


def test_a_flag_is_shown_without_a_value(windrow: Windrow) -> None:
    assert all("<bool>" not in line for line in windrow("run", "--help").out.splitlines() if "--help" not in line)


def test_bad_events_are_refused_with_their_file_or_left_out(windrow: Windrow) -> None:
    write(events(50).with_columns(ts=pl.when(pl.col("x") > 20).then("ts")), Path("e.parquet"))
    missing = pl.read_parquet("e.parquet")["ts"].null_count()
    done = windrow("run", "queries.yaml", "--engine", "local", "--events", "e.parquet")
    told = (
        f"windrow: file 'e.parquet': {missing} of 50 events have no time in 'ts'; --bad-events drop leaves them out\n"
    )
    assert done == (2, "", told)
    assert in_process(windrow, "--events", "e.parquet", "--bad-events", "drop").err.startswith(f"{50 - missing} events")


def test_files_that_do_not_fit_together_are_named(windrow: Windrow) -> None:
    write(events(50), Path("data/1.parquet"))
    write(events(50).with_columns(x=pl.lit(1.5)), Path("data/2.parquet"))
    done = windrow("run", "queries.yaml", "--engine", "local", "--events", "data")
    assert done.err == "windrow: file 'data/2.parquet': column 'x' is Float64 in this batch, and was Int64 before\n"
    write(events(50).drop("x"), Path("data/2.parquet"))
    done = windrow("run", "queries.yaml", "--engine", "local", "--events", "data")
    assert "file 'data/2.parquet': column 'x' is missing" in done.err
    write(events(5), Path("data/3.csv"))
    done = windrow("run", "queries.yaml", "--engine", "local", "--events", "data")
    assert done.err == "windrow: file 'data/3.csv' is csv, and 'data/1.parquet' is parquet; take one format\n"


def test_a_stack_trace_is_shown_only_where_asked_for(windrow: Windrow) -> None:
    assert "Traceback" not in windrow("run", "queries.yaml", "--events", "nope").err
    assert "Traceback" in windrow("run", "queries.yaml", "--events", "nope", "--debug").err


# --- other commands -------------------------------------------------------------------------------------------------


def test_explain_shows_the_plan_and_with_events_how_spark_would_do_it(windrow: Windrow) -> None:
    write(events(50), Path("e.csv"))
    plain = windrow("explain", "queries.yaml", "--time", "ts")
    assert (plain.code, plain.err) == (0, "")
    assert plain.out.rstrip("\n") == wr.plan(QUERIES, "ts").explain()
    local = windrow("explain", "queries.yaml", "--events", "e.csv", "--engine", "local")
    assert "group by (k) on ts" in local.out
    assert "Spark" not in local.out
    pytest.importorskip("pyspark")
    spark = windrow("explain", "queries.yaml", "--events", "e.csv", "--engine", "spark")
    assert spark.out.startswith(local.out)
    assert "sliced by Spark's own aggregates" in spark.out


def test_functions_lists_all_of_them_with_a_line_each(windrow: Windrow) -> None:
    done = windrow("functions")
    rows = [line.split("  ") for line in done.out.splitlines()]
    described = {row[1].split("(")[0]: row[-1].strip() or row[2].strip() for row in rows if len(row) > 2 and row[1]}
    assert {"tumbling", "latest", "count", "arg_max", "top_k", "formula"} <= described.keys()
    assert "approx_percentile, array_agg, avg, bool_and" in " ".join(done.out.split())


@pytest.mark.parametrize("arguments", [["--version"], ["version"]])
def test_version(windrow: Windrow, arguments: list[str]) -> None:
    assert windrow(*arguments) == (0, f"windrow {wr.__version__}\n", "")


@pytest.mark.parametrize("command", ["run", "explain", "report", "functions", "version", "node", "tree"])
def test_help_teaches(windrow: Windrow, command: str) -> None:
    done = windrow(command, "--help")
    assert done.code == 0
    assert (
        command in ("functions", "version") or f"windrow {command} " in done.out.split("Arguments")[0].split("\n", 3)[3]
    )


# --- progress -------------------------------------------------------------------------------------------------------


def test_plain_lines_come_at_intervals() -> None:
    now, stream = [0.0], io.StringIO()
    shown = Shown(stream=stream, clock=lambda: now[0])
    with shown:
        for second in range(12):
            now[0] = float(second)
            shown.at(events=second * 1000, results=second, dropped=0, watermark=datetime(2024, 5, 1, 8, 0, second))
        lines = stream.getvalue().splitlines()
        assert len(lines) == 11 // LINE_EVERY
    assert lines[0] == "5,000 events, 1,000/s, watermark 2024-05-01 08:00:05, 5 results, 0 left out"
    last = stream.getvalue().splitlines()[len(lines) :]
    assert last == ["11,000 events, 1,000/s, watermark 2024-05-01 08:00:11, 11 results, 0 left out"]


def test_work_without_lines_of_progress_has_none_at_its_end() -> None:
    stream = io.StringIO()
    with Shown(stream=stream, clock=lambda: 0.0) as shown:
        shown.at(events=10, results=1)
    assert stream.getvalue() == ""


# --- as a process ---------------------------------------------------------------------------------------------------

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "src")}


def test_the_import_leaves_spark_alone() -> None:
    code = "import windrow.cli, sys; sys.exit('pyspark' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, check=False).returncode == 0


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    write(events(50), tmp_path / "e.csv")
    (tmp_path / "queries.yaml").write_text(YAML)
    command = [sys.executable, "-m", "windrow", "run", "queries.yaml", "--engine", "local", "--events", "e.csv"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as piped:
        assert piped.stdout is not None
        assert piped.stderr is not None
        piped.stdout.close()  # before anything is written
        assert piped.stderr.read().startswith("50 events")
    assert piped.returncode == 0


def test_ctrl_c_is_130(windrow: Windrow, monkeypatch: pytest.MonkeyPatch) -> None:
    class Waiting(io.StringIO):
        def read(self, size: int | None = -1) -> str:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Waiting())
    assert windrow("run", "-", "--events", "e.csv") == (130, "", "windrow: interrupted\n")
