"""Files as people have them: dates, separators, no header, numbers since 1970; and which engine answers."""

from __future__ import annotations

import gzip
import io
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest

import windrow as wr
from test_cli import Done, Windrow, command
from windrow.cli import engines
from windrow.cli.progress import LINE_EVERY, Shown
from windrow.core.slices.binding import InputError
from windrow.io.event_files import EventFiles
from windrow.io.text_times import times_of
from windrow.nodes.process.result_sink import ResultFiles
from windrow.nodes.protocol.messages import Batch
from windrow.nodes.sources import Source, source_of

SQL = "SELECT car, max(speed) AS fastest FROM events GROUP BY car, window(ts, '1 hour')"


@pytest.fixture
def windrow(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Windrow:
    """The command, in a folder with queries.sql."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queries.sql").write_text(SQL)
    return command(capsys, "run", "queries.sql", "--events")


def hours(done: Done) -> list[str]:
    """The beginnings of the windows of a run that went well."""
    assert done.code == 0, done.err
    return sorted(text.rstrip("Z")[:13] for text in pl.read_csv(io.StringIO(done.out))["window_start"])


def csv(*times: str, separator: str = ",", header: str = "ts,car,speed") -> str:
    lines = [header, *(f"{time},a,{number}" for number, time in enumerate(times))]
    return "".join(line.replace(",", separator) + "\n" for line in lines if line)


# --- dates ----------------------------------------------------------------------------------------------------------


def test_a_date_that_can_be_read_in_two_ways_is_refused_with_the_option_that_says_which(windrow: Windrow) -> None:
    Path("e.csv").write_text(csv("01/05/2024 08:05", "02/05/2024 09:05"))
    done = windrow("e.csv")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "windrow: file 'e.csv': '01/05/2024 08:05' in column 'ts' is 1 May or 5 January; "
        "say --time-format '%d/%m/%Y %H:%M' or '%m/%d/%Y %H:%M'\n"
    )
    assert hours(windrow("e.csv", "--time-format", "%d/%m/%Y %H:%M")) == ["2024-05-01T08", "2024-05-02T09"]
    assert hours(windrow("e.csv", "--time-format", "%m/%d/%Y %H:%M")) == ["2024-01-05T08", "2024-02-05T09"]
    Path("e.jsonl").write_text('{"ts": "01/05/2024 08:05", "car": "a", "speed": 1}\n')
    assert "is 1 May or 5 January" in windrow("e.jsonl").err
    assert hours(windrow("e.jsonl", "--time-format", "%d/%m/%Y %H:%M")) == ["2024-05-01T08"]


def test_a_file_of_queries_says_how_times_are_written(windrow: Windrow, capsys: pytest.CaptureFixture[str]) -> None:
    Path("e.csv").write_text(csv("01/05/2024 08:05"))
    text = "time: ts\ntime_format: '%d/%m/%Y %H:%M'\nqueries:\n- {window: tumbling(1 hour), aggregates: count()}\n"
    Path("queries.yaml").write_text(text)
    run = command(capsys, "run", "queries.yaml", "--events", "e.csv")
    assert hours(run()) == ["2024-05-01T08"]
    assert hours(run("--time-format", "%m/%d/%Y %H:%M")) == ["2024-01-05T08"]
    Path("queries.yaml").write_text(text.replace("%d/%m/%Y %H:%M", "european"))
    assert "queries.yaml, line 2: time_format must be one of s, ms, us, ns since 1970" in run().err


@pytest.mark.parametrize(
    ("times", "begins"),
    [
        (["01/05/2024 08:05", "25/12/2024 09:05"], ["2024-05-01T08", "2024-12-25T09"]),
        (["5/1/2024 8:05 PM", "12/25/2024 9:05 AM"], ["2024-05-01T20", "2024-12-25T09"]),
        (["01.05.2024", "25.12.2024"], ["2024-05-01T00", "2024-12-25T00"]),
        (["01-05-2024 08:05:00.5", "25-12-2024 09:05:00.25"], ["2024-05-01T08", "2024-12-25T09"]),
        (["2024-05-01 08:05", "2024-12-25 09:05"], ["2024-05-01T08", "2024-12-25T09"]),
        (["2024/05/01 08:05:00"], ["2024-05-01T08"]),
        (["2024-05-01T08:05:00+02:00"], ["2024-05-01T06"]),
        (["2024-05-01"], ["2024-05-01T00"]),
    ],
)
def test_a_date_that_decides_and_iso_are_read(windrow: Windrow, times: list[str], begins: list[str]) -> None:
    Path("e.csv").write_text(csv(*times))
    assert hours(windrow("e.csv")) == begins


@pytest.mark.parametrize(
    ("times", "sentence"),
    [
        (["13/05/2024", "12/25/2024"], "no one format fits '13/05/2024' and '12/25/2024' in column 'ts'"),
        (["01/05/24", "25/12/24"], "'01/05/24' in column 'ts' can be read in two ways; say --time-format '%d/%m/%y'"),
    ],
)
def test_dates_that_no_date_decides_are_refused(windrow: Windrow, times: list[str], sentence: str) -> None:
    Path("e.csv").write_text(csv(*times))
    done = windrow("e.csv")
    assert done.code == 2
    assert sentence in done.err


def test_only_columns_that_are_needed_are_refused_and_a_format_must_fit_one(windrow: Windrow) -> None:
    Path("e.csv").write_text("ts,car,speed,sold\n2024-05-01 08:05,a,1,01/05/2024\n")
    assert hours(windrow("e.csv", "--time", "ts")) == ["2024-05-01T08"]
    done = windrow("e.csv", "--time-format", "%d.%m.%Y")
    assert (done.code, done.err) == (2, "windrow: no column of 'e.csv' has times that are written as '%d.%m.%Y'\n")


def test_dates_of_another_kind_far_behind_the_first_rows_are_refused(windrow: Windrow) -> None:
    rows = "".join(f"2024-05-01 08:05:00,a,{number}\n" for number in range(11_000))
    Path("e.csv").write_text("ts,car,speed\n" + rows + "01/06/2024 08:05:00,a,1\n")
    done = windrow("e.csv")
    assert (done.code, done.out) == (2, "")
    assert "'01/06/2024 08:05:00' in column 'ts' can be read in two ways" in done.err


@pytest.mark.parametrize("growing", [False, True])
def test_a_node_refuses_such_dates_and_has_the_same_option(tmp_path: Path, growing: bool) -> None:
    path = tmp_path / "e.csv"
    path.write_text(csv("01/05/2024 08:05", separator=";", header="ts,car,speed"))
    needed = {"ts": pl.Datetime("us", "UTC"), "speed": pl.Int64()}

    def source(**more: str) -> Source:
        made = source_of({"files": str(path), "growing": growing, "until_end": True, **more}, node="north")
        made.resume({})
        return made

    with pytest.raises(InputError, match=r"'01/05/2024 08:05' in column 'ts' can be read in two ways; set time_format"):
        source().read(needed, 0.0)
    read = source(time_format="%d/%m/%Y %H:%M").read(needed, 0.0)
    assert read is not None
    assert read.events.rows() == [(datetime(2024, 5, 1, 8, 5, tzinfo=UTC), 0)]
    pipe = source_of({"stdin": "csv", "time_format": "%m/%d/%Y"}, node="north")
    assert pipe.time_format == "%m/%d/%Y"  # type: ignore[attr-defined]


def test_a_time_is_never_made_of_what_is_none() -> None:
    with pytest.raises(InputError, match="'31/02/2024' in column 'ts' is not a date written as '%d/%m/%Y'"):
        times_of(pl.Series("ts", ["01/02/2024", None, "31/02/2024"]), pl.Date(), "%d/%m/%Y")
    with pytest.raises(InputError, match="'2024-02-31' in column 'ts' is not a time as ISO 8601 writes it"):
        times_of(pl.Series("ts", ["2024-02-01", "2024-02-31"]), pl.Datetime("us"))


# --- separators, headers, numbers since 1970 ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("separator", "suffix"), [(";", "csv"), ("\t", "csv"), ("|", "csv"), ("\t", "tsv"), (";", "csv.gz")]
)
def test_separators_are_found_where_the_first_line_shows_them(windrow: Windrow, separator: str, suffix: str) -> None:
    text = csv("2024-05-01 08:05:00", "2024-05-01 09:05:00", separator=separator)
    path = Path(f"e.{suffix}")
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    assert hours(windrow(str(path))) == ["2024-05-01T08", "2024-05-01T09"]
    name = "tab" if separator == "\t" else separator
    assert hours(windrow(str(path), "--separator", name)) == ["2024-05-01T08", "2024-05-01T09"]


def test_a_comma_in_a_quoted_name_does_not_separate_and_one_in_values_is_kept(windrow: Windrow) -> None:
    Path("e.csv").write_text('ts;car;"speed, km/h";speed\n2024-05-01 08:05:00;"a,b";x;7\n')
    done = windrow("e.csv")
    assert pl.read_csv(io.StringIO(done.out))["car"].to_list() == ["a,b"]
    assert "--separator is one sign such as ';', or tab, not ';;'" in windrow("e.csv", "--separator", ";;").err


def test_csv_without_a_header_is_refused_or_gets_one(windrow: Windrow) -> None:
    Path("e.csv").write_text(csv("2024-05-01 08:05:00", "2024-05-01 09:05:00", header=""))
    done = windrow("e.csv")
    assert done.code == 2
    assert "its first line are values, and no names of columns: '2024-05-01 08:05:00,a,0'; say --header" in done.err
    assert hours(windrow("e.csv", "--header", "ts, car, speed")) == ["2024-05-01T08", "2024-05-01T09"]
    assert "its first line has 3 values, and the header 2 names" in windrow("e.csv", "--header", "ts, car").err


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_numbers_since_1970_are_times_where_that_is_certain(
    windrow: Windrow, suffix: str, unit: str, factor: int
) -> None:
    frame = pl.DataFrame({"ts": [1714550700 * factor, 1714554300 * factor], "car": ["a", "a"], "speed": [1, 2]})
    path = Path(f"e.{suffix}")
    getattr(frame, {"csv": "write_csv", "jsonl": "write_ndjson", "parquet": "write_parquet"}[suffix])(path)
    assert hours(windrow(str(path))) == ["2024-05-01T08", "2024-05-01T09"]
    assert hours(windrow(str(path), "--time-format", unit)) == ["2024-05-01T08", "2024-05-01T09"]


def test_other_numbers_are_asked_for_and_plain_ones_stay_numbers(windrow: Windrow) -> None:
    Path("e.csv").write_text(csv("17145", "17146"))
    done = windrow("e.csv")
    assert done.code == 2
    assert "the time 'ts' is a number and windows have durations: say --time-format s, ms, us or ns" in done.err
    assert hours(windrow("e.csv", "--time-format", "s")) == ["1970-01-01T04"]
    Path("queries.sql").write_text(SQL.replace("'1 hour'", "1000"))
    Path("e.csv").write_text(csv("1714550700", "1714554300"))
    done = windrow("e.csv")
    assert pl.read_csv(io.StringIO(done.out))["window_start"].to_list() == [1714550000, 1714554000], done.err
    Path("queries.sql").write_text(SQL)
    Path("e.csv").write_text(csv("1714550700.25"))
    assert hours(windrow("e.csv")) == ["2024-05-01T08"]


# --- files that are no more than begun ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("e.csv", "ts,car,speed\n", "its first line are names of columns, and no events follow"),
        ("e.csv", csv("2024-05-01 08:05") + "2024-05-01 08:20", "line 3 is cut off: it has 1 of 3 values: '2024-05-01"),
        ("e.jsonl", '{"ts": "2024-05-01T08:05:00"}\n{"ts": "2024', """line 2 is cut off: '{"ts": "2024'"""),
        ("e.jsonl", '{"ts": "2024-05-01T08:05:00"}\nhello\n', "line 2 is no JSON: 'hello'"),
        ("e.jsonl", '{"ts": "2024-05-01T08:05:00"}\n7\n', "line 2 is no JSON object: '7'"),
        ("e.json", '[{"ts": "2024-05-01T08:05:00"}]', "it is one JSON array; write its elements as lines"),
    ],
)
def test_what_is_cut_off_is_said_with_its_line(windrow: Windrow, name: str, text: str, sentence: str) -> None:
    Path(name).write_text(text)
    done = windrow(name)
    assert (done.code, done.out) == (2, "")
    assert f"windrow: file {name!r}: {sentence}" in done.err
    assert done.err.count("\n") == 1


# --- results of a tree ----------------------------------------------------------------------------------------------


def batch(number: int, rows: pl.DataFrame, life: int = 7) -> Batch:
    return Batch("root", life, number, {}, 0, 1, 0, 0, {}, {"results": rows})


def test_results_are_one_table_for_every_reader_after_queries_have_come(tmp_path: Path) -> None:
    first = pl.DataFrame({"query": ["a"], "n": [1]})
    second = pl.DataFrame({"query": ["b"], "v": [0.5], "n": [2]})
    third = pl.DataFrame({"query": ["a"], "n": [3.5]})
    sink = ResultFiles(tmp_path)
    for number, rows in enumerate((first, first, second), 1):
        sink.put(batch(number, rows))
    ResultFiles(tmp_path).put(batch(4, first))  # the root was started again, and the query has gone
    ResultFiles(tmp_path).put(batch(5, third, 8))
    rows = [("a", 1.0, None), ("a", 1.0, None), ("b", 2.0, 0.5), ("a", 1.0, None), ("a", 3.5, None)]
    files = str(tmp_path / "*.parquet")
    assert pl.read_parquet(files).rows() == rows
    assert sorted(duckdb.sql(f"SELECT * FROM '{files}'").fetchall(), key=str) == sorted(rows, key=str)
    assert pq.read_table(tmp_path).to_pandas().shape == (5, 3)
    assert {tuple(pl.read_parquet_schema(file).items()) for file in tmp_path.glob("*.parquet")} == {
        (("query", pl.String()), ("n", pl.Float64()), ("v", pl.Float64()))
    }
    assert ResultFiles(tmp_path).last == (5, 8)
    lives = [pl.read_parquet_metadata(file)["windrow.life"] for file in sorted(tmp_path.glob("*.parquet"))]
    assert lives == ["7", "7", "7", "7", "8"]


def test_columns_that_a_crash_has_kept_from_some_files_come_to_them_with_the_next_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, more = pl.DataFrame({"query": ["a"], "n": [1]}), pl.DataFrame({"query": ["b"], "v": [0.5]})
    for number in (1, 2, 3):
        ResultFiles(tmp_path).put(batch(number, few))
    write, written = ResultFiles._write, []

    def fail_at_the_second(self: ResultFiles, path: Path, *given: Any) -> None:
        written.append(path)
        if len(written) == 2:
            raise OSError("no power")
        write(self, path, *given)

    with monkeypatch.context() as patch:
        patch.setattr(ResultFiles, "_write", fail_at_the_second)
        with pytest.raises(OSError, match="no power"):
            ResultFiles(tmp_path).put(batch(4, more))
    assert ResultFiles(tmp_path).last == (3, 7)
    ResultFiles(tmp_path).put(batch(4, more))
    assert pl.read_parquet(tmp_path / "*.parquet")["v"].to_list() == [None, None, None, 0.5]


# --- who answers ----------------------------------------------------------------------------------------------------


@pytest.fixture
def of_two(tmp_path: Path) -> EventFiles:
    path = tmp_path / "e.csv"
    path.write_text(csv("2024-05-01 08:05:00", "2024-05-01 09:05:00"))
    return EventFiles.of(str(path))


def test_events_that_surely_fit_this_process_are_answered_in_it(windrow: Windrow) -> None:
    pytest.importorskip("pyspark")
    Path("e.csv").write_text(csv("2024-05-01 08:05:00"))
    done = windrow("e.csv")
    assert done.err.startswith("in this process: 37 bytes of events fit it (--engine spark for Spark)\n1 event")
    assert windrow("e.csv", "--quiet").err == ""
    assert windrow("e.csv", "--engine", "local").err.startswith("1 event")


def test_spark_answers_what_this_process_may_not_hold(of_two: EventFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    sums, medians = wr.sql(SQL), wr.sql(SQL.replace("max(", "median("))
    needed = engines.in_memory(of_two)
    assert needed == 3 * os.path.getsize(of_two.paths[0])
    monkeypatch.setattr(engines, "memory", lambda: 2 * needed)
    assert engines.engine_of(None, of_two, sums, False, None)[0] == "local"
    chosen, why = engines.engine_of(None, of_two, medians, False, None)
    assert chosen == "spark"
    assert why.startswith("on Spark: 61 bytes of events, all of which query 'q1' may keep, may take more than the 183 ")
    assert engines.engine_of("local", of_two, medians, False, None) == ("local", "")
    monkeypatch.setattr(engines, "memory", lambda: needed)
    assert engines.engine_of(None, of_two, sums, False, None)[0] == "spark"
    monkeypatch.undo()
    assert engines.engine_of(None, of_two, sums, True, None) == ("spark", "")
    assert engines.engine_of(None, of_two, sums, False, "local[2]") == ("spark", "")
    assert engines.engine_of(None, None, sums, False, None)[0] == "spark"


def test_the_last_line_of_progress_is_the_last_state() -> None:
    now, stream = [0.0], io.StringIO()
    with Shown(stream=stream, clock=lambda: now[0]) as shown:
        now[0] = LINE_EVERY
        shown.at(events=10)
        now[0] += 1
        shown.at(events=20, results=2)
    assert stream.getvalue().splitlines() == ["10 events, 2/s", "20 events, 3/s, 2 results"]
    stream = io.StringIO()
    with Shown(stream=stream, clock=lambda: now[0]) as shown:
        shown.at(events=20)
    assert stream.getvalue() == ""  # of a run without lines the figures are enough
