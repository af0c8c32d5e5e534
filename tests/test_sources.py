"""The sources of a local node: whatever mark they go on from, every event comes once, and in its order."""

import gzip
import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow as wr
from small_tree import SmallTree, rows_of
from windrow.core.arrays.dataframes import InputError
from windrow.io import event_files
from windrow.io.generator import Generator
from windrow.nodes.sources import Source, SourceError, generated, source_of, tail_files
from windrow.nodes.sources.json_messages import events_of

NEEDED: dict[str, pl.DataType] = {"ts": pl.Datetime("us", "UTC"), "key": pl.Int32(), "value": pl.Float64()}
SEEDS = st.integers(0, 2**32)
WRITERS: dict[str, Callable[[pl.DataFrame, Path], Any]] = {
    "parquet": lambda frame, path: frame.write_parquet(path, row_group_size=4),
    "arrow": lambda frame, path: frame.write_ipc(path, record_batch_size=3),
    "csv": lambda frame, path: frame.write_csv(path),
    "jsonl": lambda frame, path: frame.write_ndjson(path),
}


def some_events(size: int, begin: int = 0) -> pl.DataFrame:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    numbers = range(begin, begin + size)
    return pl.DataFrame(
        {"ts": [start + timedelta(milliseconds=7 * n) for n in numbers], "key": list(numbers), "value": list(numbers)},
        schema=NEEDED,
    )


def drained(source: Source, wait: float = 0.0) -> tuple[pl.DataFrame, dict[str, Any]]:
    """All that there is, and the mark after it."""
    frames, mark = [pl.DataFrame(schema=NEEDED)], {}
    while (found := source.read(NEEDED, wait)) is not None:
        frames.append(found.events)
        mark = found.mark
        if found.last:
            break
    return pl.concat(frames), mark


@contextmanager
def chunks_of(size: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_files, "EVENTS_AT_ONCE", size)
        patch.setattr(tail_files, "READ_BYTES", size * 40)
        patch.setattr(generated, "MADE_AT_ONCE", size)
        yield


def read_with_restarts(make: Callable[[], Source], dice: random.Random, more: Callable[[], bool]) -> pl.DataFrame:
    """What a parent holds in the end, of a node that is restarted again and again.

    It holds some of what was read, with the mark after it, and a restarted node goes on from there. `more` lets the
    source grow, and says whether that was all.
    """
    source, held = make(), [pl.DataFrame(schema=NEEDED)]
    mark: dict[str, Any] = {}
    source.resume(mark)
    complete = quiet = False
    while not quiet:
        complete = complete or more()
        ahead = []
        for _ in range(dice.randint(1, 4)):
            found = source.read(NEEDED, 0.0)
            quiet = complete and (found is None or (found.last and not found.events.height))
            if found is None or found.last:
                ahead += [] if found is None else [found]
                break
            ahead.append(found)
        safe = ahead[: len(ahead) if quiet else dice.randint(0, len(ahead))]
        held += [one.events for one in safe]
        mark = json.loads(json.dumps(safe[-1].mark)) if safe else mark
        if safe and dice.random() < 0.5:
            source.confirm(mark)
        if len(safe) < len(ahead) or dice.random() < 0.3:
            source.close()
            source = make()
            source.resume(mark)
    source.close()
    return pl.concat(held)


# --- every event once, and in order ---------------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.sampled_from(sorted(WRITERS)), st.lists(st.integers(0, 30), max_size=6), st.booleans(), SEEDS)
def test_whole_files_are_read_once_whatever_the_marks(
    tmp_path_factory: pytest.TempPathFactory, form: str, sizes: list[int], delete: bool, seed: int
) -> None:
    dice = random.Random(seed)
    folder = tmp_path_factory.mktemp("whole")
    waiting = [(f"{n:03}.{form}", some_events(size, 100 * n)) for n, size in enumerate(sizes)]
    expected = pl.concat([pl.DataFrame(schema=NEEDED), *(frame for _, frame in waiting)])

    def more() -> bool:
        if waiting:
            name, frame = waiting.pop(0)
            WRITERS[form](frame, folder / f"{name}.tmp")
            (folder / f"{name}.tmp").rename(folder / name)
        return not waiting

    with chunks_of(5):
        found = read_with_restarts(lambda: source_of({"files": str(folder), "delete": delete}, "n"), dice, more)
    assert found.equals(expected)


@settings(max_examples=25)
@given(st.sampled_from(["csv", "jsonl"]), st.lists(st.integers(0, 20), max_size=4), st.booleans(), SEEDS)
def test_growing_files_are_read_once_whatever_the_marks(
    tmp_path_factory: pytest.TempPathFactory, form: str, sizes: list[int], delete: bool, seed: int
) -> None:
    dice = random.Random(seed)
    folder = tmp_path_factory.mktemp("growing")
    pieces: list[tuple[Path, bytes]] = []
    for n, size in enumerate(sizes):
        WRITERS[form](some_events(size, 100 * n), folder / ".whole")
        data, path = (folder / ".whole").read_bytes(), folder / f"{n:03}.{form}"
        if dice.random() < 0.5:
            data = data.rstrip(b"\n")  # the last line of a file may have no end
        cuts = sorted(dice.randint(0, len(data)) for _ in range(4))
        pieces += [(path, data[a:b]) for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    if pieces:
        pieces.append((folder / f"999.{form}", b"ts,key,value\n" if form == "csv" else b""))
    expected = pl.concat([pl.DataFrame(schema=NEEDED), *(some_events(size, 100 * n) for n, size in enumerate(sizes))])

    def more() -> bool:
        if pieces:
            path, data = pieces.pop(0)
            with path.open("ab") as file:
                file.write(data)
        return not pieces

    described = {"files": str(folder), "growing": True, "delete": delete}
    with chunks_of(2):
        found = read_with_restarts(lambda: source_of(described, "n"), dice, more)
    assert found.equals(expected)


@settings(max_examples=25)
@given(st.floats(0, 1), st.sampled_from([1, 3, 40]), SEEDS)
def test_made_up_events_are_made_once_whatever_the_marks(change: float, rate: int, seed: int) -> None:
    dice = random.Random(seed)
    described = {"rate": rate, "rate_change": change, "disorder": "2 seconds", "seed": 3, "length": "9 seconds"}
    with chunks_of(7):
        found = read_with_restarts(
            lambda: source_of({"generator": {**described, "number": 1}}, "n"), dice, lambda: True
        )
    whole = Generator(nodes=2, **described)  # type: ignore[arg-type]
    assert found.equals(pl.concat([frame for frame, _ in whole.frames("node-1", (0, 9), 0, {})]))


@settings(max_examples=25)
@given(st.sampled_from(["csv", "json"]), st.integers(0, 40), st.booleans(), SEEDS)
def test_a_pipe_gives_every_line_however_it_is_cut(form: str, size: int, ended: bool, seed: int) -> None:
    dice = random.Random(seed)
    events = some_events(size)
    data = (events.write_csv() if form == "csv" else events.write_ndjson()).encode()
    data = data if ended else data.rstrip(b"\n")
    with ExitStack() as stack:
        source, write = pipe(stack, {"stdin": form})
        source.resume({})
        found, lines = [pl.DataFrame(schema=NEEDED)], 0
        while data:
            cut = dice.randint(1, len(data))
            write(data[:cut])
            data = data[cut:]
            read = source.read(NEEDED, 0.0)
            if read is not None:
                found.append(read.events)
                assert not read.last
        write(None)
        read = source.read(NEEDED, 1.0)
        assert read is not None
        assert read.last
        assert pl.concat([*found, read.events]).equals(events)
        lines = read.mark["lines"]
    assert lines == size + (form == "csv")


def pipe(stack: ExitStack, described: dict[str, Any]) -> tuple[Source, Callable[[bytes | None], None]]:
    """A source that reads from a pipe, and what writes into it; nothing is its end."""
    ends = list(os.pipe())

    def write(data: bytes | None) -> None:
        if data is None:
            os.close(ends.pop())
        else:
            os.write(ends[1], data)

    stack.callback(lambda: [os.close(one) for one in ends])
    source: Any = source_of(described, "n")
    source.file = ends[0]
    return source, write


QUERIES = [
    wr.Query("short", wr.tumbling("50 milliseconds"), ["count()", "sum(key)"]),
    wr.Query("long", wr.sliding("1 second", "200 milliseconds"), ["count()", "max(value)"], by="key"),
    wr.Query("busy", wr.session("5 milliseconds"), "count()"),
]


@pytest.mark.parametrize("kind", ["parquet", "growing", "generator"])
def test_a_tree_over_a_source_says_what_one_process_says_whatever_dies(tmp_path: Path, kind: str, seed: int) -> None:
    described: dict[str, Any] = {"files": str(tmp_path), "until_end": True, "growing": kind == "growing"}
    if kind == "generator":
        described = {"generator": 60, "length": "3 seconds", "rate_change": 0.5, "keys": 3}
        whole, _ = drained(source_of(described, "n"))
    else:
        whole = some_events(200)
        for begin in range(0, 200, 50):
            form = "jsonl" if kind == "growing" else kind
            WRITERS[form](whole[begin : begin + 50], tmp_path / f"{begin:03}.{form}")
    dice = random.Random(seed)
    with chunks_of(7):
        tree = SmallTree(QUERIES, NEEDED, lambda: source_of(described, "n"))
        for step in range(1000):
            tree.step(0.0, lost=step % 11 == 9)
            if step % 11 == 9 or (step % 5 == 4 and dice.random() < 0.3 and not tree.local.as_local.has_ended):
                tree.kill()
            if tree.root.done:
                break
    assert tree.root.done
    assert step > 30
    assert rows_of(tree.results) == rows_of(wr.windows(whole, QUERIES, time="ts"))


def test_the_check_of_marks_can_fail(tmp_path: Path) -> None:
    forgotten = []

    class Forgetful(tail_files.GrowingFiles):
        def resume(self, mark: Any) -> None:
            forget = mark and not forgotten
            forgotten.extend([mark] if forget else [])
            super().resume({**mark, "bytes": 0, "tail": 0} if forget else mark)

    some_events(20).write_ndjson(tmp_path / "a.jsonl")
    with chunks_of(2):
        found = read_with_restarts(lambda: Forgetful(str(tmp_path)), random.Random(1), lambda: True)
    assert found.height > 20


# --- files ----------------------------------------------------------------------------------------------------------


def files(path: Path, **options: Any) -> Source:
    return source_of({"files": str(path), **options}, "n")


def test_files_are_waited_for_in_the_order_of_their_names(tmp_path: Path) -> None:
    source = files(tmp_path)
    assert source.read(NEEDED, 0.0) is None
    some_events(3).write_parquet(tmp_path / "b.parquet")
    some_events(3).write_parquet(tmp_path / "_hidden.parquet")
    assert drained(source)[0].equals(some_events(3))
    some_events(2, 3).write_parquet(tmp_path / "c.parquet")
    assert drained(source)[0].equals(some_events(2, 3))
    some_events(2).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a.parquet' has come to '.*' with a name before 'c.parquet'.*must ascend"):
        source.read(NEEDED, 0.0)


def test_a_file_that_came_too_late_is_noticed_after_a_restart_too(tmp_path: Path) -> None:
    some_events(3).write_parquet(tmp_path / "b.parquet")
    _, mark = drained(files(tmp_path))
    some_events(3).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a file has come to '.*' with a name before 'b.parquet'"):
        files(tmp_path).resume(mark)


@pytest.mark.parametrize("growing", [False, True])
def test_with_an_end_what_is_there_at_the_start_is_all(tmp_path: Path, growing: bool) -> None:
    some_events(3).write_ndjson(tmp_path / "a.jsonl")
    source = files(tmp_path, until_end=True, growing=growing)
    some_events(3, 3).write_ndjson(tmp_path / "b.jsonl")
    found = source.read(NEEDED, 0.0)
    assert found is not None
    assert found.last
    assert found.events.equals(some_events(3))
    again = files(tmp_path, until_end=True, growing=growing)
    again.resume(found.mark)
    assert drained(again)[0].equals(some_events(3, 3))


def test_a_node_without_files_is_at_its_end_at_once_or_waits_and_says_so(tmp_path: Path) -> None:
    waiting, ending = files(tmp_path / "later"), files(tmp_path, until_end=True)
    assert waiting.notes == [f"there are no files at '{tmp_path}/later' yet; they are waited for"]
    assert ending.notes == [f"there are no files at '{tmp_path}'"]
    found = ending.read(NEEDED, 0.0)
    assert found is not None
    assert (found.last, found.events.height, found.mark) == (True, 0, {})


def test_a_pattern_and_a_single_file_are_files_too(tmp_path: Path) -> None:
    (tmp_path / "north").mkdir()
    for name, begin in (("north/1.csv", 0), ("north/2.csv", 3), ("north/2.txt", 6)):
        some_events(3, begin).write_csv(tmp_path / name)
    assert drained(files(tmp_path / "nor*" / "*.csv"))[0].equals(some_events(6))
    assert drained(files(tmp_path / "north" / "2.csv"))[0].equals(some_events(3, 3))
    assert drained(files(tmp_path / "north" / "2.txt", format="csv"))[0].equals(some_events(3, 6))
    assert drained(files(tmp_path / "north" / "3.csv", growing=True))[0].is_empty()  # it may come


def test_compressed_lines_are_read_whole_and_cannot_grow(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.csv.gz", "wb") as file:
        file.write(some_events(3).write_csv().encode())
    assert drained(files(tmp_path))[0].equals(some_events(3))
    with pytest.raises(InputError, match="is compressed, and so cannot grow"):
        files(tmp_path, growing=True).read(NEEDED, 0.0)


def test_parquet_is_read_on_without_the_row_groups_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    some_events(100).write_parquet(path, row_group_size=10)
    monkeypatch.setattr(event_files, "EVENTS_AT_ONCE", 10)
    source = files(tmp_path)
    mark = [source.read(NEEDED, 0.0) for _ in range(7)][-1].mark  # type: ignore[union-attr]
    data = bytearray(path.read_bytes())
    data[4 : len(data) // 3] = bytes(len(data) // 3 - 4)  # what comes before is not needed any more
    path.write_bytes(data)
    again = files(tmp_path)
    again.resume(mark)
    assert drained(again)[0].equals(some_events(30, 70))
    with pytest.raises(InputError, match=r"file '.*a.parquet' cannot be read"):
        files(tmp_path).read(NEEDED, 0.0)


def test_files_are_deleted_once_their_events_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_files, "EVENTS_AT_ONCE", 2)
    for name, begin in (("a", 0), ("b", 3)):
        some_events(3, begin).write_parquet(tmp_path / f"{name}.parquet", row_group_size=2)
    source = files(tmp_path, delete=True)
    left = []
    while (found := source.read(NEEDED, 0.0)) is not None:
        source.confirm(found.mark)
        left.append("".join(sorted(path.stem for path in tmp_path.iterdir())))
    assert left == ["ab", "b", "b", ""]
    source = files(tmp_path)
    some_events(3).write_parquet(tmp_path / "c.parquet")
    source.confirm(drained(source)[1])
    assert (tmp_path / "c.parquet").exists()  # it is off unless it is asked for


def test_a_query_that_comes_can_need_another_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_files, "EVENTS_AT_ONCE", 2)
    some_events(6).write_parquet(tmp_path / "a.parquet", row_group_size=2)
    source = files(tmp_path)
    first = source.read({"ts": NEEDED["ts"]}, 0.0)
    assert first is not None
    assert first.events.equals(some_events(2).select("ts"))
    assert drained(source)[0].equals(some_events(4, 2))


def test_columns_are_made_to_fit_where_nothing_is_lost(tmp_path: Path) -> None:
    given = some_events(2).with_columns(pl.col("ts").cast(pl.Datetime("ms", "UTC")), pl.col("key").cast(pl.Int64))
    given.with_columns(pl.col("value").cast(pl.Float32)).write_parquet(tmp_path / "a.parquet")
    assert drained(files(tmp_path))[0].equals(some_events(2).with_columns(pl.col("ts").dt.truncate("1ms")))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda frame: frame.drop("key"), r"there is no column 'key' in it"),
        (lambda frame: frame.with_columns(key=pl.lit("x")), r"column 'key' is STRING in it, and INT is needed"),
        (lambda frame: frame.with_columns(key=pl.lit(2**40)), r"cannot be read: .*conversion from `i64` to `i32`"),
        (
            lambda frame: frame.with_columns(pl.col("ts").dt.replace_time_zone(None)),
            r"column 'ts' is TIMESTAMP_NTZ in it, and TIMESTAMP",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused(tmp_path: Path, change: Any, complaint: str) -> None:
    change(some_events(2)).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=rf"file '.*a.parquet'.*{complaint}"):
        files(tmp_path).read(NEEDED, 0.0)


def test_a_file_that_has_changed_or_gone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_files, "EVENTS_AT_ONCE", 2)
    path = tmp_path / "a.parquet"
    some_events(6).write_parquet(path, row_group_size=2)
    first = files(tmp_path).read(NEEDED, 0.0)
    assert first is not None
    some_events(7).write_parquet(path, row_group_size=2)
    with pytest.raises(InputError, match=r"a.parquet' has changed since it was first read; .* \.tmp and rename it"):
        files(tmp_path).resume(first.mark)
    whole = files(tmp_path)
    drained(whole)
    some_events(8).write_parquet(path)
    with pytest.raises(InputError, match=r"a.parquet' has changed since it was first read"):
        whole.read(NEEDED, 0.0)  # nobody would read what was added to it
    path.unlink()
    assert whole.read(NEEDED, 0.0) is None  # all of it was read, and it may go
    with pytest.raises(InputError, match=r"a.parquet' is gone, and only its first 2 events were read"):
        files(tmp_path).resume(first.mark)
    files(tmp_path).resume({**first.mark, "rows": 6, "done": True})  # nothing is missing


def test_a_log_that_was_written_anew_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    some_events(6).write_ndjson(path)
    source = files(tmp_path, growing=True)
    _, mark = drained(source)
    some_events(8, 10).write_ndjson(path)
    for one in (source, files(tmp_path, growing=True)):
        one.resume(mark)
        with pytest.raises(InputError, match=r"is not the one of which \d+ bytes were read: it was written anew"):
            one.read(NEEDED, 0.0)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="it was written anew"):
        source.read(NEEDED, 0.0)
    path.unlink()
    with pytest.raises(InputError, match=r"a.jsonl' has disappeared before all of it was read"):
        source.read(NEEDED, 0.0)


def test_a_log_is_read_while_its_last_line_is_being_written(tmp_path: Path) -> None:
    some_events(3).write_ndjson(tmp_path / "a.jsonl")
    with (tmp_path / "a.jsonl").open("ab") as file:
        file.write(b'{"ts": "2026')
    source = files(tmp_path, growing=True)
    assert drained(source)[0].equals(some_events(3))


# --- lines ----------------------------------------------------------------------------------------------------------


def lines_of(described: dict[str, Any], data: bytes, needed: dict[str, pl.DataType] = NEEDED) -> pl.DataFrame:
    with ExitStack() as stack:
        source, write = pipe(stack, described)
        write(data)
        write(None)
        found = source.read(needed, 1.0)
        assert found is not None
        return found.events


GOOD = b'{"ts": "2026-01-01T00:00:00Z", "key": 0, "value": 0}\n'


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"nonsense", "error parsing line"),
        (b'{"ts": "2026-01-01T00:00:00Z", "key": 1', "error parsing line"),
        (b'{"key": 1.5}', r"cannot parse '1.5' \(f64\) as Int32"),
        (b'{"key": 4000000000}', r"cannot parse '4000000000' \(u64\) as Int32"),
        (b'{"value": "much"}', r"cannot parse 'much' \(string\) as Float64"),
        (b'{"ts": "yesterday"}', "'yesterday' in column 'ts' is not a time as ISO 8601 writes it"),
        (b"[1, 2]", "expected to contain JSON object"),
        (b'{"key": "\xff"}', "InvalidUtf8"),
    ],
    ids=lambda text: str(text)[:20],
)
def test_a_line_that_cannot_be_read_is_refused_with_its_number(line: bytes, why: str) -> None:
    data = 3 * GOOD + line + b"\n" + 5 * GOOD
    with pytest.raises(InputError, match=rf"(?s)line 4 of standard input cannot be read: .*({why}).*bad_lines: drop"):
        lines_of({"stdin": "json"}, data)
    with ExitStack() as stack:
        source, write = pipe(stack, {"stdin": "json", "bad_lines": "drop"})
        write(data + line + b"\n")
        found = source.read(NEEDED, 0.0)
        assert found is not None
        assert (found.events.height, source.dropped, found.mark) == (8, 2, {"lines": 10})  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"2026-01-01T00:00:00Z,x,1", "could not parse `x` as dtype `i32`"),
        (b"2026-01-01T00:00:00Z,1,1,1", "it has more values than there are columns"),
        (b"2026-01-01T00:00:00Z,1", "it has fewer values than there are columns"),
        (b'2026-01-01T00:00:00Z,1,"1', "CSV malformed"),
        (b"noon,1,1", "'noon' in column 'ts' is not a time as ISO 8601 writes it; set time_format"),
    ],
)
def test_a_line_of_csv_that_cannot_be_read_is_refused_with_its_number(line: bytes, why: str) -> None:
    good = b"2026-01-01T00:00:00Z,0,0\n"
    data = b"ts,key,value\n" + 3 * good + line + b"\n" + 2 * good
    with pytest.raises(InputError, match=rf"(?s)line 5 of standard input cannot be read: .*({why}).*bad_lines: drop"):
        lines_of({"stdin": "csv"}, data)
    assert lines_of({"stdin": "csv", "bad_lines": "drop"}, data).height == 5


def test_the_line_of_a_log_is_counted_from_its_beginning_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(3 * GOOD)
    _, mark = drained(files(path, growing=True))
    path.write_bytes(4 * GOOD + b"nonsense\n")
    source = files(path, growing=True)
    source.resume(mark)
    with pytest.raises(InputError, match=r"line 5 of file '.*a.jsonl' cannot be read: .*'nonsense'"):
        source.read(NEEDED, 0.0)
    source = files(path, growing=True, bad_lines="drop")
    assert drained(source)[0].height == 4
    assert source.dropped == 1  # type: ignore[attr-defined]


def test_blank_lines_are_no_events() -> None:
    assert lines_of({"stdin": "json"}, b"\n" + GOOD + b"\n  \r\n" + GOOD).height == 2
    assert lines_of({"stdin": "csv"}, b"ts,key,value\r\n\r\n2026-01-01T00:00:00Z,1,2\r\n\n").height == 1


def test_columns_are_told_from_each_other_by_their_names() -> None:
    rows = b"other,value,ts,key\nx,1.5,2026-01-01T00:00:00Z,7\n"
    assert lines_of({"stdin": "csv"}, rows).rows() == [(datetime(2026, 1, 1, tzinfo=UTC), 7, 1.5)]
    given = {"stdin": "csv", "header": ["other", "value", "ts", "key"]}
    assert lines_of(given, rows.partition(b"\n")[2]).rows() == [(datetime(2026, 1, 1, tzinfo=UTC), 7, 1.5)]
    with pytest.raises(InputError, match="standard input has no column 'key'; there are ts, value"):
        lines_of({"stdin": "csv"}, b"ts,value\n2026-01-01T00:00:00Z,1\n")
    with pytest.raises(InputError, match="the first line of standard input must be the names of its columns, not ''"):
        lines_of({"stdin": "csv"}, b"\n2026-01-01T00:00:00Z,1\n")


def test_values_of_every_type_come_from_text() -> None:
    needed = {
        "zoned": pl.Datetime("ms", "Europe/Berlin"),
        "plain": pl.Datetime("us"),
        "day": pl.Date(),
        "clock": pl.Time(),
        "price": pl.Decimal(10, 2),
        "on": pl.Boolean(),
        "text": pl.String(),
        "small": pl.UInt8(),
    }
    line = b'{"zoned": "2026-07-01T00:00:00+02:00", "plain": "2026-01-01T00:00:00Z", "day": "2026-01-02", '
    line += b'"clock": "12:30:00", "price": 1.25, "on": true, "text": 5, "small": 255}'
    row = (
        datetime(2026, 6, 30, 22, tzinfo=UTC),
        datetime(2026, 1, 1),
        date(2026, 1, 2),
        time(12, 30),
        *(Decimal("1.25"), True, "5", 255),
    )
    found = lines_of({"stdin": "json"}, line, needed)
    assert found.schema == needed
    assert found.row(0) == row
    csv = ",".join(needed) + "\n2026-07-01T00:00:00+02:00,2026-01-01T00:00:00,2026-01-02,12:30:00,1.25,true,5,255\n"
    assert lines_of({"stdin": "csv"}, csv.encode(), needed).equals(found)


@pytest.mark.parametrize(
    ("unit", "text"),
    [("s", "1767225600.5"), ("ms", "1767225600500"), ("us", "1767225600500000"), ("ns", "1767225600500000000")],
)
def test_times_can_be_numbers_since_1970(unit: str, text: str) -> None:
    needed = {"ts": NEEDED["ts"]}
    for form, data in (("json", f'{{"ts": {text}}}\n'), ("csv", f"ts\n{text}\n")):
        found = lines_of({"stdin": form, "time_format": unit}, data.encode(), needed)
        assert found["ts"].to_list() == [datetime(2026, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)]
    with pytest.raises(InputError, match="cannot be read"):
        lines_of({"stdin": "json"}, f'{{"ts": {text}}}\n'.encode(), needed)


def test_a_pipe_does_not_wait_longer_than_it_may_and_says_what_is_lost() -> None:
    with ExitStack() as stack:
        source, write = pipe(stack, {"kind": "stdin"})
        assert source.read(NEEDED, 0.0) is None
        write(GOOD[:10])
        assert source.read(NEEDED, 0.01) is None
        source.resume({"lines": 1000})
        assert not source.replayable
        (note,) = source.notes
        assert note.startswith("standard input cannot be read again: what came after line 1,000 and was not")
        write(GOOD[10:])
        found = source.read(NEEDED, 1.0)
        assert found is not None
        assert found.mark == {"lines": 1001}


# --- payloads -------------------------------------------------------------------------------------------------------


def test_payloads_are_objects_arrays_or_lines() -> None:
    needed: dict[str, pl.DataType] = {"a": pl.Int64(), "s": pl.String()}
    payloads = [
        b'{"a": 1}',
        b'[{"a": 2, "s": "x\\ny"}, {"a": 3}]',
        b'{"a": 4}\n{"a": 5}\r\n',
        b'{\n  "a": 6,\n  "s": "}"\n}',
        b"",
        b"[]",
        b'[\n{"a": 7}\n]',
    ]
    ((found, places),) = events_of(payloads, needed, None)
    assert isinstance(found, pl.DataFrame)
    assert found["a"].to_list() == [1, 2, 3, 4, 5, 6, 7]
    assert found["s"].to_list() == [None, "x\ny", None, None, None, "}", None]
    assert places.tolist() == [0, 1, 1, 2, 2, 3, 6]


@pytest.mark.parametrize(
    "bad",
    [
        b"x",
        b"5",
        b"[5]",
        b"[[]]",
        b"[null]",
        b'["a"]',
        b'{"a": 1.5}',
        b'[{"a": "x"}]',
        b'{"a": 1}{"a": 2}',
        b"[",
        b"\xff",
    ],
)
def test_a_bad_payload_is_found_among_the_others(bad: bytes) -> None:
    payloads = [b'{"a": 1}', b'[{"a": 2}, {"a": 3}]', bad, b'{"a": 4}']
    rows: dict[int, Any] = {}
    for found, places in events_of(payloads, {"a": pl.Int64()}, None):
        for row, place in zip(found["a"] if isinstance(found, pl.DataFrame) else [None], places, strict=True):
            rows.setdefault(int(place), []).append(row)
    assert rows == {0: [1], 1: [2, 3], 2: [None], 3: [4]}


# --- the generator --------------------------------------------------------------------------------------------------


def test_made_up_events_come_at_their_speed() -> None:
    now = [100.0]
    source: Any = source_of({"generator": 10, "speed": 2}, "n")
    source._clock = lambda: now[0]
    heights = []
    for moment in (100.0, 100.5, 100.5, 100.74, 103.0):
        now[0] = moment
        found = source.read(NEEDED, 0.0)
        heights.append(None if found is None else found.events.height)
    assert heights == [None, 10, None, 4, 46]
    again: Any = source_of({"generator": 10, "speed": 2}, "n")  # a restart does not make up for the time that it took
    again._clock = lambda: now[0]
    again.resume(found.mark)  # type: ignore[union-attr]
    assert again.read(NEEDED, 0.0) is None
    now[0] += 1
    assert again.read(NEEDED, 0.0).events["ts"][0] == datetime(2026, 1, 1, 0, 0, 6, tzinfo=UTC)


def test_nodes_have_events_of_their_own() -> None:
    north, south = (source_of("generator", node).read(NEEDED, 0.0) for node in ("north", "south"))
    assert north is not None
    assert south is not None
    assert not north.events["value"].equals(south.events["value"])
    with pytest.raises(SourceError, match="there is no column speed BIGINT in a generator; there are ts TIMESTAMP"):
        source_of("generator", "n").read({"speed": pl.Int64()}, 0.0)


# --- descriptions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("described", "complaint"),
    [
        (7, "source: it must have a kind and its options, and is 7"),
        ({}, "source: say of which one kind it is; there are files, stdin, mqtt, generator"),
        ({"file": "x"}, "source: say of which one kind it is; did you mean 'files'?"),
        ({"files": "x", "stdin": None}, "source: say of which one kind it is"),
        ({"kind": "mqt"}, "source: there is no kind 'mqt'; did you mean 'mqtt'?"),
        ({"kind": ["x"]}, "source: there is no kind"),
        ({"kind": "files"}, "source: files needs a path"),
        ({"kind": "mqtt"}, "source: mqtt needs a topic"),
        ({"files": ".", "path": "x"}, "source: path is given twice"),
        ({"files": ".", "grow": True}, "source: files has no option 'grow'; did you mean 'growing'?"),
        ({"files": ".", "bad_lines": "drop"}, "source: bad_lines goes with growing: true"),
        ({"files": ".", "growing": 1}, "files: growing must be true or false, not 1"),
        ({"files": ".", "delete": "yes"}, "files: delete must be true or false, not 'yes'"),
        ({"files": ".", "format": "xml"}, "files: format must be one of parquet, arrow, csv, json, not 'xml'"),
        ({"files": ".", "format": "arrow", "growing": True}, "files: format must be one of csv, json, not 'arrow'"),
        ({"files": "nowhere/at/all"}, "files: there is no directory 'nowhere/at'"),
        ({"files": 7}, "files: path must be a directory, a pattern or a file, not 7"),
        ({"stdin": "xml"}, "standard input: lines are json or csv, not 'xml'"),
        ({"stdin": "json", "header": ["a"]}, "standard input: header is a list of names, and goes with format: csv"),
        ({"stdin": "json", "bad_lines": "keep"}, "standard input: bad_lines must be raise or drop, not 'keep'"),
        (
            {"stdin": "json", "time_format": "days"},
            "standard input: time_format must be one of s, ms, us, ns since 1970, or a pattern",
        ),
        ({"stdin": "json", "file": 3}, "source: stdin has no option 'file'"),
        ({"generator": 0}, "generator: rate must be a whole number from 1, not 0"),
        ({"generator": None, "speed": 0}, "generator: speed must be a number above 0, not 0"),
        ({"generator": None, "number": -1}, "generator: number must be a whole number from 0, not -1"),
        ({"generator": None, "length": "soon"}, "generator: "),
        ({"mqtt": ""}, "mqtt: topic must be a topic such as"),
        ({"mqtt": []}, "mqtt: topic must be a topic such as"),
        ({"mqtt": "a", "port": 0}, "mqtt: port must be a whole number from 1 to 65,535, not 0"),
        ({"mqtt": "a", "unconfirmed": 70000}, "mqtt: unconfirmed must be a whole number from 1 to 65,535"),
        ({"mqtt": "a", "password": "x"}, "mqtt: a password needs a username"),
        ({"mqtt": "a", "ca": "nowhere.pem"}, "mqtt: ca: there is no file 'nowhere.pem'"),
        ({"mqtt": "a", "session": "soon"}, "mqtt: "),
        ({"mqtt": "a", "bad_messages": "keep"}, "mqtt: bad_messages must be raise or drop, not 'keep'"),
        ({"mqtt": "a", "topik_column": "t"}, "source: mqtt has no option 'topik_column'; did you mean 'topic_column'?"),
    ],
    ids=str,
)
def test_a_wrong_description_is_refused_with_the_reason(described: Any, complaint: str) -> None:
    with pytest.raises(SourceError) as refused:
        source_of(described, "n")
    assert str(refused.value).startswith(complaint)


@pytest.mark.parametrize("described", ["generator", {"stdin": "json"}, {"files": "."}, {"files": ".", "growing": True}])
@pytest.mark.parametrize("mark", [{"x": 1}, {"lines": "5"}, {"file": "a", "rows": True}])
def test_the_mark_of_another_source_is_refused(described: Any, mark: Any) -> None:
    with pytest.raises(SourceError, match=r"the parent knows this node by another source than .*; give the node a new"):
        source_of(described, "n").resume(mark)
