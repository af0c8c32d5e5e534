"""The outlet of a root: batches without a gap, each written once, and never half."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import windrow as wr
from trees import COLUMNS, QUERIES, Tree, asking, events_of
from windrow.io.tables import VERSION, pack, unpack
from windrow.nodes.process.slice_sink import Head, SliceSink, SliceSinkError
from windrow.nodes.protocol.messages import Batch
from windrow.nodes.queries import QuerySet

TABLE = pl.DataFrame({"slice_start": [0, 10], "count().count": [3, 4]})


def batch(number: int, each: int = 7) -> Batch:
    events = {"a": each * number, "b": 0}
    return Batch("root", 1, number, {}, 10 * number, 1, 0, 0, events, {"by () on t": TABLE})


def filled(path: Path, upto: int = 3) -> SliceSink:
    outlet = SliceSink(path)
    outlet.set_queries(asking())
    for number in range(1, upto + 1):
        outlet.put(batch(number))
    return outlet


def names(outlet: SliceSink) -> list[str]:
    return sorted(path.name for path in (Path(outlet.path) / "slices").iterdir())


def test_what_is_put_is_read_again(tmp_path: Path) -> None:
    filled(tmp_path)
    outlet = SliceSink(tmp_path)  # in another process
    assert outlet.query_set == asking()
    assert names(outlet) == [f"{number:020}.batch" for number in (1, 2, 3)] + ["asked"]
    assert list(outlet.after(0)) == [1, 2, 3]
    assert list(outlet.after(2)) == [3]
    assert list(outlet.after(3)) == []
    found = outlet.read(2)
    assert found == batch(2)
    assert found.tables["by () on t"].equals(TABLE)
    size = (tmp_path / "slices" / f"{2:020}.batch").stat().st_size
    assert outlet.head(2) == Head(events=14, watermark=20, size=size)


def test_a_batch_that_comes_again_is_not_written_twice(tmp_path: Path) -> None:
    filled(tmp_path).put(batch(2, each=99))
    again = SliceSink(tmp_path)  # a root that was restarted
    again.put(batch(3, each=99))
    again.put(batch(4))
    assert [again.head(number).events for number in again.numbers] == [7, 14, 21, 28]


def test_a_gap_is_refused(tmp_path: Path) -> None:
    outlet = filled(tmp_path / "one")
    with pytest.raises(SliceSinkError, match="ends with batch 3, and batch 5 was to follow; give the root the outlet"):
        outlet.put(batch(5))
    with pytest.raises(SliceSinkError, match="is empty, and batch 2 was to follow"):
        SliceSink(tmp_path / "two").put(batch(2))


def test_an_outlet_says_which_batch_came_last_and_in_which_life_of_the_root(tmp_path: Path) -> None:
    outlet = SliceSink(tmp_path)
    assert outlet.last == (0, 0)
    outlet.put(replace(batch(1), life=7))
    outlet.put(replace(batch(2), life=9))
    assert SliceSink(tmp_path).last == (2, 9)


def test_what_is_half_written_is_not_there(tmp_path: Path) -> None:
    outlet = filled(tmp_path)
    (tmp_path / "slices" / f".{4:020}.batch").write_bytes(b"half")
    (tmp_path / "slices" / "notes.txt").write_text("not a batch")
    assert outlet.numbers == [1, 2, 3]
    SliceSink(tmp_path).put(batch(4))
    assert outlet.read(4) == batch(4)


def test_what_is_done_with_is_deleted_but_the_newest_stays(tmp_path: Path) -> None:
    outlet = filled(tmp_path, 5)
    outlet.forget(2)
    assert outlet.numbers == [3, 4, 5]
    outlet.forget(9)
    assert outlet.numbers == [5]
    again = SliceSink(tmp_path)
    again.put(batch(5, each=99))  # it still knows what it has had
    again.put(batch(6))
    assert [again.head(number).events for number in again.numbers] == [35, 42]
    assert list(again.after(4)) == [5, 6]


def test_who_cannot_go_on_is_told_why(tmp_path: Path) -> None:
    outlet = filled(tmp_path, 5)
    outlet.forget(3)
    for before in (0, 2):
        with pytest.raises(
            SliceSinkError, match=rf"batch {before + 1} is gone from '.*', which begins with 4: another"
        ):
            outlet.after(before)
    assert list(outlet.after(3)) == [4, 5]
    with pytest.raises(
        SliceSinkError, match="ends with batch 5, and 8 was read from it before: it is that of another tree"
    ):
        outlet.after(8)
    with pytest.raises(SliceSinkError, match=r"batch 3 is gone from '.*', and who reads it is not done with it"):
        outlet.read(3)


def test_a_damaged_batch_is_named(tmp_path: Path) -> None:
    outlet = filled(tmp_path)
    path = tmp_path / "slices" / f"{2:020}.batch"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 255]))
    with pytest.raises(SliceSinkError, match=r"00002\.batch' is no batch: these bytes cannot be read: .* is damaged"):
        outlet.read(2)
    path.write_bytes((tmp_path / "slices" / f"{3:020}.batch").read_bytes())
    with pytest.raises(SliceSinkError, match=r"00002\.batch' is no batch with the number 2"):
        outlet.read(2)
    path.write_bytes(b"nothing")
    with pytest.raises(SliceSinkError, match=r"00002\.batch' is no batch"):
        outlet.head(2)


def test_what_is_asked_holds_from_the_next_batch_on(tmp_path: Path) -> None:
    outlet = filled(tmp_path)
    assert outlet.declared.since == 1
    SliceSink(tmp_path).set_queries(asking())  # the same again, after a restart
    assert outlet.declared.since == 1
    other = QuerySet.of([wr.Query("one", wr.tumbling(5), "count()")], "t", COLUMNS)
    SliceSink(tmp_path).set_queries(other)
    assert (outlet.query_set, outlet.declared.since, outlet.declared.changes) == (other, 4, [4])


def test_batches_that_have_more_than_is_asked_serve_as_well(tmp_path: Path) -> None:
    outlet = filled(tmp_path)
    outlet.set_queries(asking(QUERIES[1:]))
    assert (outlet.declared.since, outlet.declared.changes) == (1, [4])
    outlet.set_queries(asking())
    assert (outlet.declared.since, outlet.declared.changes) == (4, [4, 4])


def test_windows_that_spark_could_not_answer_are_refused_at_the_root(tmp_path: Path) -> None:
    joined = wr.Query("q", wr.frames("x > 3", scope="bounds"), "count()")
    with pytest.raises(wr.QueryError, match=r"query 'q': frames\(.*\) is not answered on Spark, where no place sees"):
        SliceSink(tmp_path).set_queries(asking([joined]))


def test_another_place_and_another_version_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SliceSinkError, match=r"is not the directory of a root that feeds slices: there is no 'asked' in"
    ):
        _ = SliceSink(tmp_path).query_set
    assert SliceSink(tmp_path).numbers == []
    outlet = filled(tmp_path)
    path = tmp_path / "slices" / "asked"
    header, tables = unpack(path.read_bytes())
    path.write_bytes(pack({"queries": header["queries"], "since": 1, "changes": [], "plan": "f00"}, tables))
    with pytest.raises(
        SliceSinkError, match="another version of windrow, whose plan for these queries is f00; here it is"
    ):
        _ = outlet.query_set
    path.write_bytes(path.read_bytes().replace(b"windrow" + bytes([VERSION]), b"windrow\x09"))
    with pytest.raises(SliceSinkError, match=r"asked' cannot be read: this snapshot has version 9; this windrow reads"):
        _ = outlet.query_set


def test_a_tree_fills_it_with_all_events(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    several = events_of(0)
    tree.run(several)
    numbers = tree.outlet.numbers
    assert numbers == list(range(1, len(numbers) + 1))
    assert tree.outlet.head(numbers[-1]).events == sum(map(len, several.values()))
