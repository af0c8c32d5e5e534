"""Local nodes as a data source: the readers as plain Python, and once through Spark.

What is read must not depend on how it is read: in which micro-batches, in which process, how often.
"""

import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from time import time as clock
from typing import Any

import polars as pl
import pytest

import windrow as wr
from windrow.testing.compare import differences

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
)

from windrow.io.tables import unpack
from windrow.spark import Generator
from windrow.spark.batch.run import results_of
from windrow.spark.slice_rows import row_schema
from windrow.spark.source import files
from windrow.spark.source.files import Files
from windrow.spark.source.options import Settings, options_of
from windrow.spark.source.reader import StreamReader, nodes
from windrow.spark.types import SHIFT_MS

ALL = ReadAllAvailable()
TIME = pl.Datetime("us", "UTC")
MEAN = [wr.Query("mean", wr.tumbling("10 seconds"), [wr.mean("x"), wr.count()], by="k")]
QUERIES = [
    wr.Query("sliding", wr.sliding("10 seconds", "3 seconds"), [wr.mean("x"), wr.median("x"), wr.last("x")], by="k"),
    wr.Query("all", wr.tumbling("7 seconds"), [wr.count(), wr.first("k")]),
    wr.Query("session", wr.session("200 ms"), [wr.count(), wr.max("x")], by="k", where="x > 20"),
    wr.Query("counting", wr.counting(7), [wr.sum("k"), wr.collect("k")]),
    wr.Query("frames", wr.frames("x > 50"), [wr.count(), wr.last("x")], by="k"),
    wr.Query("node", wr.tumbling("20 seconds"), [wr.count()], by="node"),
]

pytestmark = pytest.mark.spark


def events(seconds: Iterable[float], **columns: Any) -> pl.DataFrame:
    times = [round(second * 1e6) for second in seconds]
    given = {"k": [second % 3 for second in range(len(times))], "x": [float(at % 97) for at in times], **columns}
    return pl.DataFrame({"ts": pl.Series(times).cast(TIME), **given}, strict=False)


def write(frame: pl.DataFrame, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name("." + path.name)
    if path.suffix == ".parquet":
        frame.write_parquet(hidden, row_group_size=50)
    elif path.suffix == ".arrow":
        frame.write_ipc(hidden)
    elif path.suffix == ".arrows":
        frame.write_ipc_stream(hidden)
    else:
        frame.write_csv(hidden)
    hidden.rename(path)


def made(seed: int, *, each: int = 120) -> dict[str, pl.DataFrame]:
    """Three nodes whose times overlap and tie."""
    several = {}
    for node, offset in (("a", 0), ("b", 3), ("c", 7)):
        several[node] = events(
            [1000 + (at * 37 + offset * seed) % 400 / 10 for at in range(each)],
            k=[(at * at + offset) % 4 for at in range(each)],
            x=[float((at * 53 + offset) % 101) for at in range(each)],
        )
    return several


def spread(root: Path, several: dict[str, pl.DataFrame], suffixes: tuple[str, ...] = ("parquet",)) -> None:
    for number, (node, frame) in enumerate(several.items()):
        for at in range(0, frame.height, 40):
            write(frame[at : at + 40], root / node / f"{at:06}.{suffixes[number % len(suffixes)]}")


def together(several: dict[str, pl.DataFrame]) -> pl.DataFrame:
    return pl.concat([frame.with_columns(node=pl.lit(node)) for node, frame in several.items()])


def reader(
    source: Any, queries: list[wr.Query] = MEAN, time: str = "ts", now: Any = clock, **options: Any
) -> StreamReader:
    settings = Settings.of(options_of(source, queries, time, **options))
    return StreamReader(settings, row_schema(settings.origin), now)


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def offsets(one: StreamReader, limit: ReadLimit = ALL, start: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """From a start on until nothing is new."""
    found = [start or one.initialOffset()]
    while (after := through_json(one.latestOffset(found[-1], limit))) != found[-1]:
        found.append(after)
    return found


def rows_between(one: StreamReader, several: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for start, end in pairwise(several):
        for part in one.partitions(start, end):
            for batch in one.read(part):
                found += batch.to_pylist()
    return found


def answers(rows: Iterable[dict[str, Any]], one: StreamReader, queries: list[wr.Query]) -> pl.DataFrame:
    """The results of rows, bucket by bucket."""
    job = one.slices.job
    buckets: dict[int, dict[str, list[pl.DataFrame]]] = {}
    for row in rows:
        for name, table in unpack(row["payload"])[1].items():
            buckets.setdefault(row["bucket"], {}).setdefault(name, []).append(table)
    return pl.concat([results_of(tables, job) for tables in buckets.values()])


def same(found: pl.DataFrame, wanted: pl.DataFrame, queries: list[wr.Query]) -> None:
    order = [
        name for name in ("query", "k", "node", "window_start", "window_end", "position") if name in wanted.columns
    ]
    assert found.height == wanted.height
    assert differences(found.sort(order).to_dicts(), wanted.sort(order).to_dicts(), queries) == []


# --- what is read ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffixes", [("parquet",), ("arrow", "arrows", "csv")], ids=["parquet", "mixed"])
@pytest.mark.parametrize("limit", [ALL, ReadMaxFiles(1), ReadMaxFiles(4), ReadMaxRows(90), ReadMaxBytes(1)], ids=str)
def test_slices_of_files_answer_as_the_events_do(
    tmp_path: Path, seed: int, suffixes: tuple[str, ...], limit: ReadLimit
) -> None:
    several = made(seed)
    spread(tmp_path, several, suffixes)
    one = reader(tmp_path, QUERIES)
    found = rows_between(one, offsets(one, limit))
    assert sum(row["events"] for row in found) == 360
    same(answers(found, one, QUERIES), wr.windows(together(several), QUERIES, "ts", order_by="node"), QUERIES)


def test_the_comparison_can_fail(tmp_path: Path, seed: int) -> None:
    several = made(seed)
    spread(tmp_path, several)
    one = reader(tmp_path, QUERIES)
    found = rows_between(one, offsets(one))
    with pytest.raises(AssertionError):
        same(answers(found[1:], one, QUERIES), wr.windows(together(several), QUERIES, "ts", order_by="node"), QUERIES)


def test_a_row_per_bucket_and_node_in_a_micro_batch(tmp_path: Path, seed: int) -> None:
    spread(tmp_path, made(seed))
    one = reader(tmp_path, QUERIES, buckets=4)
    start, end = offsets(one)
    for part in one.partitions(start, end):
        buckets = [row["bucket"] for batch in one.read(part) for row in batch.to_pylist()]
        assert len(set(buckets)) == len(buckets)
        assert set(buckets) == {0, 1, 2, 3} if part.to_all else set(buckets) <= {0, 1, 2, 3}


def test_a_micro_batch_that_is_read_again_has_the_same_rows(tmp_path: Path, seed: int) -> None:
    spread(tmp_path, made(seed))
    one = reader(tmp_path, QUERIES)
    several = offsets(one, ReadMaxFiles(2))
    before = rows_between(one, several)
    write(events([5000]), tmp_path / "a" / "999999.parquet")  # what comes later is not in them
    write(events([5000]), tmp_path / "d" / "0.parquet")
    assert rows_between(reader(tmp_path, QUERIES), several) == before


def test_another_process_reads_the_same_rows(tmp_path: Path, seed: int) -> None:
    spread(tmp_path, made(seed))
    one = reader(tmp_path, QUERIES)
    several = offsets(one)
    said = json.dumps([options_of(tmp_path, QUERIES, "ts"), several])
    code = (
        "import hashlib, json, sys\n"
        "from windrow.spark.source.options import Settings\n"
        "from windrow.spark.source.reader import StreamReader, row_schema\n"
        "options, (start, end) = json.load(sys.stdin)\n"
        "settings = Settings.of(options)\n"
        "one = StreamReader(settings, row_schema(settings.origin))\n"
        "payloads = [b['payload'][0].as_py() for p in one.partitions(start, end) for b in one.read(p)]\n"
        "print(hashlib.sha256(b''.join(payloads)).hexdigest())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], input=said, capture_output=True, text=True, check=False)
    import hashlib

    payloads = [row["payload"] for row in rows_between(one, several)]
    assert done.stdout.strip() == hashlib.sha256(b"".join(payloads)).hexdigest(), done.stderr


def test_limits_take_the_nodes_that_are_furthest_behind_first(tmp_path: Path) -> None:
    for node, times in {"slow": (0, 10, 20), "fast": (0, 100, 200)}.items():
        for at in times:
            write(events([1000 + at]), tmp_path / node / f"{at:03}.csv")
    one = reader(tmp_path)
    taken = [
        (node, *(name for name, _, _ in mark["new"]))
        for offset in offsets(one, ReadMaxFiles(1))
        for node, mark in offset["nodes"].items()
        if "new" in mark
    ]
    assert [node for node, _ in taken] == ["fast", "slow", "fast", "slow", "slow", "fast"]
    assert len({name for _, name in taken}) == 6


def test_limits_of_options_hold_where_spark_gives_others(tmp_path: Path) -> None:
    for at in range(4):
        write(events([at, at]), tmp_path / "a" / f"{at}.parquet")
    both = reader(tmp_path, maxFilesPerTrigger=3, maxRowsPerTrigger=4)
    assert both.getDefaultReadLimit() == ReadMaxRows(4)
    start = both.initialOffset()
    assert both.latestOffset(start, ReadMaxRows(100))["nodes"]["a"]["files"] == 3
    assert both.latestOffset(start, ReadMaxRows(4))["nodes"]["a"]["files"] == 2
    assert both.latestOffset(start, ReadMaxRows(1))["nodes"]["a"]["files"] == 1  # a file is read whole
    assert both.latestOffset(start, ALL)["nodes"]["a"]["files"] == 4
    assert both.latestOffset(start, ReadMinRows(9)) == start
    assert reader(tmp_path, maxFilesPerTrigger=3).getDefaultReadLimit() == ReadMaxFiles(3)
    assert reader(tmp_path).getDefaultReadLimit() == ALL


def test_available_now_ends_with_what_was_there(tmp_path: Path, seed: int) -> None:
    spread(tmp_path, made(seed))
    one = reader(tmp_path)
    one.prepareForTriggerAvailableNow()
    write(events([5000]), tmp_path / "a" / "999999.parquet")
    write(events([5000]), tmp_path / "d" / "0.parquet")
    several = offsets(one, ReadMaxFiles(2))
    assert sum(row["events"] for row in rows_between(one, several)) == 360
    again = reader(tmp_path)
    again.prepareForTriggerAvailableNow()
    assert sum(row["events"] for row in rows_between(again, offsets(again, ALL, several[-1]))) == 2


def test_one_directory_is_one_node_and_a_pattern_names_several(tmp_path: Path) -> None:
    for node in ("x1", "x2", "y"):
        write(events([1, 2]), tmp_path / node / "deep" / "0.parquet")
    write(events([3]), tmp_path / "x1" / "_unfinished.parquet")
    assert reader(tmp_path).slices.source.names == ["x1", "x2", "y"]
    assert reader(tmp_path / "x1" / "deep").slices.source.names == ["deep"]
    assert reader(tmp_path / "x*").slices.source.names == ["x1", "x2"]
    files = reader(tmp_path / "x*" / "deep" / "*.parquet")
    assert files.slices.source.names == ["x1/deep", "x2/deep"]
    assert sum(row["events"] for row in rows_between(files, offsets(files))) == 4


# --- the watermark --------------------------------------------------------------------------------------------------


def marks(rows: Iterable[dict[str, Any]]) -> list[float | None]:
    return sorted({None if row["watermark"] is None else row["watermark"].timestamp() for row in rows}, key=str)


def test_the_watermark_is_the_least_of_the_nodes_greatest_times(tmp_path: Path) -> None:
    write(events([10, 30, 20]), tmp_path / "a" / "0.parquet")
    write(events([12.5]), tmp_path / "b" / "0.csv")
    (tmp_path / "c").mkdir()
    one = reader(tmp_path)
    several = offsets(one)
    assert marks(rows_between(one, several)) == [None]  # nothing has come from c yet
    write(events([5]), tmp_path / "c" / "0.arrow")
    several += offsets(one, ALL, several[-1])[1:]
    assert marks(rows_between(one, several[-2:])) == [5]
    write(events([40]), tmp_path / "c" / "1.arrow")
    several += offsets(one, ALL, several[-1])[1:]
    assert marks(rows_between(one, several[-2:])) == [12.5]
    write(events([1]), tmp_path / "d" / "0.parquet")  # a new node does not move it back
    several += offsets(one, ALL, several[-1])[1:]
    assert marks(rows_between(one, several[-2:])) == [12.5]


def test_rows_say_what_the_newest_event_before_them_was_of_whatever_node(tmp_path: Path) -> None:
    write(events([10, 30, 20]), tmp_path / "a" / "0.parquet")
    write(events([12.5]), tmp_path / "b" / "0.csv")
    one = reader(tmp_path)
    several = offsets(one)
    write(events([13]), tmp_path / "b" / "1.csv")
    several += offsets(one, ALL, several[-1])[1:]
    headers = [[unpack(row["payload"])[0] for row in rows_between(one, pair)] for pair in pairwise(several)]
    assert [{header["newest"] for header in some} for some in headers] == [{None}, {30_000_000}]


def test_an_idle_node_holds_it_back_no_more(tmp_path: Path) -> None:
    clock = [100.0]
    write(events([10]), tmp_path / "a" / "0.parquet")
    write(events([50]), tmp_path / "b" / "0.parquet")
    (tmp_path / "c").mkdir()
    one = reader(tmp_path, now=lambda: clock[0], idle="30 seconds")
    several = offsets(one)
    assert several[-1]["watermark"] is None
    clock[0] = 120
    write(events([60]), tmp_path / "b" / "1.parquet")
    several += offsets(one, ALL, several[-1])[1:]
    assert several[-1]["watermark"] is None
    clock[0] = 131  # a and c are idle, b is not: the watermark moves on without anything new
    several += offsets(one, ALL, several[-1])[1:]
    assert several[-1]["watermark"] == 60_000_000
    rows = rows_between(one, several[-2:])
    assert marks(rows) == [60]
    assert [row["events"] for row in rows] == [0] * 16
    assert rows_between(reader(tmp_path, now=lambda: 0.0, idle="30 seconds"), several[-2:]) == rows


def test_a_node_whose_directory_is_gone_is_no_longer_waited_for(tmp_path: Path) -> None:
    write(events([10]), tmp_path / "a" / "0.parquet")
    write(events([50]), tmp_path / "b" / "0.parquet")
    one = reader(tmp_path)
    several = offsets(one)
    shutil.rmtree(tmp_path / "a")
    several += offsets(one, ALL, several[-1])[1:]
    assert [offset["watermark"] for offset in several] == [None, 10_000_000, 50_000_000]
    assert marks(rows_between(one, several[-2:])) == [50]
    write(events([70]), tmp_path / "a" / "0.parquet")  # a file that it has had
    assert offsets(one, ALL, several[-1])[1:] == []


def test_an_integer_measure_is_shifted(tmp_path: Path) -> None:
    write(pl.DataFrame({"km": [-5, 3], "x": [1.0, 2.0]}), tmp_path / "0.parquet")
    one = reader(tmp_path, [wr.Query("a", wr.tumbling(10), "sum(x)")], "km")
    start, end = offsets(one)
    batches = [batch for part in one.partitions(start, end) for batch in one.read(part)]
    assert {batch["watermark"].cast("int64")[0].as_py() for batch in batches} == {(3 + SHIFT_MS) * 1000}
    write(pl.DataFrame({"km": [SHIFT_MS], "x": [1.0]}), tmp_path / "1.parquet")
    start, end = offsets(one, ALL, end)
    with pytest.raises(wr.InputError, match="'km' is 4503599627370496, further out than Spark's watermark reaches"):
        rows_between(one, [start, end])


def test_events_without_a_time_are_refused_or_left_out(tmp_path: Path) -> None:
    frame = pl.DataFrame({"ts": pl.Series([1, None, 3]).cast(TIME), "k": [1, 1, 1], "x": [1.0, 2.0, 3.0]})
    for suffix in ("parquet", "csv", "arrow"):
        write(frame, tmp_path / suffix / f"0.{suffix}")
    one = reader(tmp_path)
    with pytest.raises(wr.InputError, match=r"file '.*0.arrow': 1 of 3 events have no time in 'ts'; bad_events='drop'"):
        rows_between(one, offsets(one))
    one = reader(tmp_path, bad_events="drop")
    assert answers(rows_between(one, offsets(one)), one, MEAN)["count()"].to_list() == [6]


# --- the generator --------------------------------------------------------------------------------------------------


def generated(given: Generator, limit: ReadLimit = ALL) -> tuple[dict[str, pl.DataFrame], list[dict[str, Any]]]:
    one = reader(given, [wr.Query("a", wr.tumbling("1 second"), "count()")])
    several = offsets(one, limit)
    found: dict[str, list[pl.DataFrame]] = {}
    for start, end in pairwise(several):
        for part in one.partitions(start, end):
            frames = given.frames(str(part.node), part.new, part.first, {})
            found.setdefault(str(part.node), []).extend(frame for frame, _ in frames)
    return {node: pl.concat(frames) for node, frames in found.items()}, several


def test_made_up_events_do_not_depend_on_micro_batches() -> None:
    given = Generator(nodes=3, rate=50, rate_change=0.5, disorder="2 seconds", keys=7, seed=3, length="30 seconds")
    whole, _ = generated(Generator(**{**vars_of(given), "step": "30 seconds"}))
    for step, limit in (("1 second", ALL), ("7 seconds", ALL), ("30 seconds", ReadMaxRows(500))):
        parts, several = generated(Generator(**{**vars_of(given), "step": step}), limit)
        assert all(parts[node].equals(whole[node]) for node in whole)
        assert len(several) > 4
        for node, frame in parts.items():
            mark = several[-1]["nodes"][node]
            assert mark["rows"] == frame.height
            assert mark["seen"] == frame["ts"].to_physical().max()
    assert not whole["node-0"].equals(whole["node-1"])
    other, _ = generated(Generator(**{**vars_of(given), "seed": 4}))
    assert not other["node-0"]["value"].equals(whole["node-0"]["value"])


def vars_of(given: Generator) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(given.to_json())
    return found


def test_made_up_events_are_what_was_asked_for() -> None:
    given = Generator(nodes=1, rate=1000, rate_change=0.3, disorder="2 seconds", keys=5, length="60 seconds")
    (frame,) = generated(given)[0].values()
    assert set(frame["key"].unique()) == set(range(5))
    assert 0 <= frame["value"].min() < 1 < 99 < frame["value"].max() < 100  # type: ignore[operator]
    times = frame["ts"].to_physical()
    delay = times.cum_max() - times
    assert 1_900_000 < delay.max() <= 2_000_000  # type: ignore[operator]
    assert 0.15 < (delay > 100_000).mean() < 0.35  # type: ignore[operator]
    counts = [int(size) for size in given.counts(0, 0, 60)]
    assert min(counts) < 800
    assert max(counts) > 1200
    assert 58_000 < sum(counts) < 62_000
    assert frame["ts"].min() >= datetime(2025, 12, 31, 23, 59, 58, tzinfo=UTC)  # type: ignore[operator]
    # other events in another version would make checkpoints lie
    plain = Generator(nodes=1, rate=2, length="2 seconds")
    ((made_up, _),) = plain.frames("node-0", [0, 2], 0, {})
    assert made_up["ts"].dt.epoch("ms").to_list() == [1767225600000 + 500 * at for at in range(4)]
    assert made_up["key"].to_list() == [6, 7, 3, 6]
    assert made_up["value"].round(3).to_list() == [18.477, 2.326, 33.196, 54.893]


def test_an_endless_generator_gives_one_step_when_it_is_to_end() -> None:
    one = reader(Generator(nodes=2, rate=10, step="5 seconds"), [wr.Query("a", wr.tumbling("1 second"), "count()")])
    one.prepareForTriggerAvailableNow()
    several = offsets(one)
    assert sum(row["events"] for row in rows_between(one, several)) == 100


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"path": "nowhere"}, r"there is no directory '.*nowhere'"),
        ({"path": "empty"}, r"'.*empty' has no files yet, so that their columns are not known; give columns"),
        ({"pth": "x"}, r"windrow has no option 'pth'; did you mean path\?"),
        ({"queries": "[{"}, "option queries is not JSON"),
        ({"queries": "7"}, "option queries must be a JSON list"),
        ({"queries": '[{"name": "a"}]'}, "option queries: query 'a' cannot be read: there is no 'window'"),
        ({"time": ""}, "the option time is missing"),
        ({"time": "tss"}, "time: there is no column 'tss' in the events; did you mean 'ts'"),
        ({"time": "x"}, "column 'x' is Float64; a time must be a timestamp, a date or an integer"),
        ({"time": "arrival"}, "nodes have no arrival times"),
        ({"format": "xml"}, "option format must be one of parquet, arrow, csv, json, not 'xml'"),
        ({"time_format": "european"}, "option time_format must be one of s, ms, us, ns since 1970, or a pattern"),
        ({"idle": "soon"}, "option idle: idle 'soon' is not a duration"),
        ({"buckets": "0"}, "option buckets must be a whole number from 1"),
        ({"generator": "{}"}, "give a path, with a directory for each node, or a generator, or the root of a tree"),
        ({"node_column": "k"}, "the events have a column 'k' of their own; set the option node_column"),
        ({"bad_events": "keep"}, "option bad_events must be raise or drop"),
        ({"columns": "ts TIMESTAMP, k"}, "option columns"),
        ({"columns": "ts TIMESTAMP, k MAP<INT, INT>"}, "option columns: MAP<INT, INT> is none of"),
        ({"imports": "no.such.module"}, "the module 'no.such.module' cannot be imported"),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, options: dict[str, str], complaint: str) -> None:
    write(events([1]), tmp_path / "good" / "a" / "0.parquet")
    (tmp_path / "empty").mkdir()
    given = options_of(tmp_path / "good", MEAN, "ts") | options
    if "path" in options:
        given["path"] = str(tmp_path / options["path"])
    with pytest.raises((wr.QueryError, wr.InputError), match=complaint):
        _ = Settings.of(given).origin


def test_columns_can_be_said_before_there_are_files(tmp_path: Path) -> None:
    one = reader(tmp_path, columns="ts TIMESTAMP, k BIGINT, x DOUBLE")
    assert offsets(one) == [one.initialOffset()]
    write(events([1, 2]), tmp_path / "a" / "0.csv")
    assert sum(row["events"] for row in rows_between(one, offsets(one))) == 2


def test_a_file_that_is_not_as_it_should_be_is_named(tmp_path: Path) -> None:
    write(events([1]), tmp_path / "a" / "0.parquet")
    one = reader(tmp_path)
    good = offsets(one)
    (tmp_path / "a" / "1.parquet").write_bytes(b"no parquet")
    with pytest.raises(wr.InputError, match=r"file '.*1.parquet' cannot be read"):
        offsets(one, ALL, good[-1])
    (tmp_path / "a" / "1.parquet").unlink()
    write(events([2], x=["1"]), tmp_path / "a" / "2.parquet")
    with pytest.raises(wr.InputError, match=r"file '.*2.parquet': column 'x' is String .* and was Float64 before"):
        rows_between(one, offsets(one, ALL, good[-1]))
    write(events([2], x=[1]), tmp_path / "a" / "2.parquet")
    assert rows_between(one, offsets(one, ALL, good[-1])) != []  # whole numbers are taken as floats
    (tmp_path / "a" / "2.parquet").unlink()
    write(events([2]).drop("k"), tmp_path / "a" / "3.parquet")
    with pytest.raises(wr.InputError, match=r"file '.*3.parquet': column 'k' is missing"):
        rows_between(one, offsets(one, ALL, good[-1]))
    (tmp_path / "a" / "3.parquet").unlink()
    (tmp_path / "a" / "4.csv").write_text("ts,k,x\n2026-01-01T00:00:00Z,one,2\n")
    with pytest.raises(wr.InputError, match=r"file '.*4.csv' cannot be read: could not parse `one`"):
        rows_between(one, offsets(one, ALL, good[-1]))
    (tmp_path / "a" / "4.csv").unlink()
    write(events([2]), tmp_path / "a" / "-0.parquet")
    with pytest.raises(wr.InputError, match=r"with a name before '.*0.parquet', which is already read; names must"):
        offsets(one, ALL, good[-1])
    (tmp_path / "a" / "0.parquet").unlink()
    with pytest.raises(wr.InputError, match=r"file '.*0.parquet' is gone"):
        rows_between(one, good)
    write(events([1, 2, 3, 4]), tmp_path / "a" / "0.parquet")
    with pytest.raises(wr.InputError, match=r"file '.*0.parquet' has changed since it was first seen"):
        rows_between(one, good)
    write(events([1]), tmp_path / "beside.parquet")
    with pytest.raises(wr.InputError, match=r"has the file 'beside.parquet' beside the directory 'a'"):
        offsets(one)


@pytest.mark.parametrize("recent", [256, 2])
@pytest.mark.parametrize("again", [False, True], ids=["goes on", "started again"])
def test_a_file_that_comes_too_late_is_refused_also_when_those_after_it_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recent: int, again: bool
) -> None:
    monkeypatch.setattr(files, "RECENT", recent)
    for at in (1, 3, 5):
        write(events([at]), tmp_path / "a" / f"{at:04}.parquet")
    one = reader(tmp_path)
    *_, end = offsets(one)
    (tmp_path / "a" / "0003.parquet").unlink()
    (tmp_path / "a" / "0005.parquet").unlink()
    one = reader(tmp_path) if again else one
    assert offsets(one, ALL, end) == [end]  # what is read may be deleted
    write(events([4]), tmp_path / "a" / "0004.parquet")
    with pytest.raises(wr.InputError, match=r"file '.*0004.parquet' has come to node 'a' with a name before '.*0005"):
        offsets(one, ALL, end)
    (tmp_path / "a" / "0004.parquet").unlink()
    (tmp_path / "a" / "0001.parquet").unlink()
    write(events([6]), tmp_path / "a" / "0006.parquet")
    *_, end = offsets(one, ALL, end)
    write(events([0]), tmp_path / "a" / "0000.parquet")
    with pytest.raises(wr.InputError, match=r"a name before '.*0006.parquet', which is already read; names must"):
        offsets(reader(tmp_path) if again else one, ALL, end)


def test_an_offset_has_the_names_of_few_files_and_counts_those_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "RECENT", 2)
    for at in range(1, 6):
        write(events([at]), tmp_path / "a" / f"{at}.parquet")
    one = reader(tmp_path)
    *_, end = offsets(one)
    assert (end["nodes"]["a"]["before"], end["nodes"]["a"]["recent"]) == (3, ["a/4.parquet", "a/5.parquet"])
    write(events([0]), tmp_path / "a" / "0.parquet")
    with pytest.raises(wr.InputError, match=r"a file has come to node 'a' with a name before 'a/5.parquet'"):
        offsets(one, ALL, end)


def test_a_file_that_grows_after_it_was_read_is_refused_until_the_next_one_is_read(tmp_path: Path) -> None:
    write(events([1]), tmp_path / "a" / "0.csv")
    one = reader(tmp_path)
    *_, end = offsets(one)
    with (tmp_path / "a" / "0.csv").open("a") as file:
        file.write("1970-01-01T00:00:02.000000+0000,0,1.0\n")
    for again in (one, reader(tmp_path)):
        with pytest.raises(wr.InputError, match=r"file '.*0.csv' has changed since it was read; files must"):
            offsets(again, ALL, end)
    write(events([1]), tmp_path / "a" / "0.csv")
    write(events([2]), tmp_path / "a" / "1.csv")
    *_, end = offsets(one, ALL, end)
    write(events([1, 2, 3]), tmp_path / "a" / "0.csv")  # nobody looks at it any more
    assert offsets(one, ALL, end) == [end]


def test_only_files_that_are_still_to_be_read_are_remembered(tmp_path: Path) -> None:
    one = reader(tmp_path, columns="ts TIMESTAMP, k BIGINT, x DOUBLE")
    assert isinstance(one.slices.source, Files)
    end = one.initialOffset()
    for at in range(9):
        write(events([at]), tmp_path / "a" / f"{at}.csv")
        *_, end = offsets(one, ALL, end)
        assert len(one.slices.source._facts) <= 1
    for at in (9, 10):  # one that was looked at and not taken is not looked at again
        write(events([at]), tmp_path / "b" / f"{at:02}.csv")
    end = one.latestOffset(end, ReadMaxFiles(1))
    one.latestOffset(end, ReadMinRows(9))
    assert set(one.slices.source._facts) == {"b/10.csv"}


def test_classes_of_your_own_are_found_by_their_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(events([1, 2]), tmp_path / "in" / "0.parquet")
    (tmp_path / "own_sum.py").write_text(
        "import polars as pl, windrow as wr\n"
        "class OwnSum(wr.Monoid):\n"
        "    state = pl.Float64\n"
        "    def lift(self, x): return x.sum()\n"
        "    def merge(self, a, b): return a + b\n"
        "    def lower(self, state): return state\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("own_sum")
    queries = [wr.Query("own", wr.tumbling("10 seconds"), own.OwnSum.of("x"))]
    options = options_of(tmp_path / "in", queries, "ts")
    assert options["imports"] == '["own_sum"]'
    one = reader(tmp_path / "in", queries)
    (row,) = answers(rows_between(one, offsets(one)), one, queries).to_dicts()
    assert row["own_sum(x)"] == sum(float(at % 97) for at in (1_000_000, 2_000_000))
    monkeypatch.setattr(own.OwnSum, "__module__", "__main__")
    with pytest.raises(wr.QueryError, match="OwnSum stands in the program itself, where Spark's workers do not find"):
        options_of(tmp_path / "in", queries, "ts")


def test_repeats_over_all_nodes_are_refused(tmp_path: Path) -> None:
    write(events([1]), tmp_path / "0.parquet")
    with pytest.raises(wr.QueryError, match="query 'd': distinct_on drops repeats among the events of all nodes"):
        reader(tmp_path, [wr.Query("d", wr.tumbling("1 second"), "count()", distinct_on="k")])


# --- through Spark --------------------------------------------------------------------------------------------------


def test_batch_on_spark_answers_as_the_events_do(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    several = made(seed)
    spread(tmp_path, several, ("parquet", "arrow", "csv"))
    slices = nodes(spark, tmp_path, QUERIES, "ts", streaming=False)
    assert slices.columns == ["bucket", "payload", "watermark", "node", "events"]
    found = pl.from_arrow(wr.windows(slices, QUERIES).toArrow())
    assert isinstance(found, pl.DataFrame)
    same(found, wr.windows(together(several), QUERIES, "ts", order_by="node"), QUERIES)
    with pytest.raises(
        wr.QueryError, match=r"these slices were cut for 'sliding', .* and the queries here need others"
    ):
        wr.windows(slices, MEAN)
    with pytest.raises(wr.QueryError, match="these slices were cut along 'ts', not along 'x'"):
        wr.windows(slices, QUERIES, "x")
    other = [wr.Query("as well", wr.tumbling("10 seconds"), [wr.sum("x"), wr.count("x")], by="k")]
    raw = spark.read.format("windrow").options(**options_of(tmp_path, MEAN, "ts")).load()
    assert wr.windows(raw, other).count() == wr.windows(together(several), other, "ts").height


def test_a_stream_on_spark_goes_on_from_its_checkpoint(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    several = made(seed)
    first = {node: frame[:80] for node, frame in several.items()}
    spread(tmp_path / "in", first)

    def run() -> list[dict[str, Any]]:
        slices = nodes(spark, tmp_path / "in", QUERIES, "ts", max_files=3, lateness="1 minute")
        query = (
            slices.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "out"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [row.asDict() for row in spark.read.parquet(str(tmp_path / "out")).collect()]

    rows = run()
    assert sum(row["events"] for row in rows) == 240
    assert run() == rows
    spread(tmp_path / "in", several)
    rows = run()
    assert sum(row["events"] for row in rows) == 360
    one = reader(tmp_path / "in", QUERIES)
    wanted = wr.windows(together(several), QUERIES, "ts", order_by="node")
    same(answers(rows, one, QUERIES), wanted, QUERIES)
    stored = spark.read.parquet(str(tmp_path / "out"))  # slices that were put away are slices still
    found = pl.from_arrow(wr.windows(stored, QUERIES).toArrow())
    assert isinstance(found, pl.DataFrame)
    same(found, wanted, QUERIES)


def test_a_reader_that_fails_says_which_file(spark: SparkSession, tmp_path: Path) -> None:
    write(events([1]), tmp_path / "a" / "0.parquet")
    slices = nodes(spark, tmp_path, MEAN, "ts", streaming=False)
    (tmp_path / "a" / "1.parquet").write_bytes(b"no parquet")
    with pytest.raises(Exception, match=r"file '.*1.parquet' cannot be read"):
        slices.collect()


def test_files_of_nodes_say_how_their_times_are_written(tmp_path: Path) -> None:
    (tmp_path / "north").mkdir()
    (tmp_path / "north" / "e.csv").write_text("ts,x\n01/05/2024 08:05,1\n")
    needed = {"ts": pl.Datetime("us"), "x": pl.Int64()}
    new = [["e.csv", None, None]]
    with pytest.raises(wr.InputError, match="can be read in two ways; set time_format"):
        list(Files(str(tmp_path / "north")).frames("north", new, 0, needed))
    files = Files(str(tmp_path / "north"), None, "%d/%m/%Y %H:%M")
    [(frame, _)] = files.pause().frames("north", new, 0, needed)
    assert frame.rows() == [(datetime(2024, 5, 1, 8, 5), 1)]
