"""Query books as files: what a stream cannot do is refused, and no change is lost, whoever is killed meanwhile."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.fs as fs
import pytest

import windrow as wr
from windrow.spark.stream import query_book_files
from windrow.spark.types import struct

pytestmark = pytest.mark.spark  # what PySpark itself does here needs no JVM
COUNT = [wr.count().alias("n")]


def asking(name: str, **others: Any) -> wr.Query:
    return wr.Query(name, wr.tumbling(10), COUNT, **others)


def book_at(path: Path | str, keys: list[str] | None = None) -> wr.QueryBook:
    return wr.QueryBook(path, columns={"n": "bigint"}, keys=keys)


def stream(time: str = "t", order_by: tuple[str, ...] = ()) -> dict[str, Any]:
    """What is known of a stream once it is made."""
    columns: Mapping[str, pl.DataType] = {
        "t": pl.Int64(),
        "o": pl.Int64(),
        "k": pl.String(),
        "many": pl.List(pl.Int64()),
    }
    return {"schema": struct(columns).jsonValue(), "columns": list(columns), "time": time, "order_by": order_by}


def names(path: Path) -> list[str]:
    return [query.name for query in wr.QueryBook(path).queries]


# --- what a stream cannot do ----------------------------------------------------------------------------------------

REFUSED = [
    (asking("q", distinct_on=["k"]), "query 'q': distinct_on needs all events with the same values in one place"),
    (
        asking("q", time="o"),
        "query 'q': Spark has one watermark for a query, so all windows must be on 't'",
    ),
    (asking("q", time="arrival"), "all windows must be on 't', not on 'arrival'"),
]


@pytest.mark.parametrize(("query", "why"), REFUSED)
def test_a_query_that_the_stream_cannot_do_is_refused_when_it_is_added(
    tmp_path: Path, query: wr.Query, why: str
) -> None:
    book = book_at(tmp_path / "book")
    book.bind(stream())
    with pytest.raises(wr.QueryError, match=why):
        book.add(query)
    assert names(tmp_path / "book") == []


@pytest.mark.parametrize(("query", "why"), REFUSED)
def test_a_stream_is_refused_a_book_with_a_query_that_it_cannot_do(tmp_path: Path, query: wr.Query, why: str) -> None:
    book = book_at(tmp_path / "book")
    before = book.add(query)  # no stream is known yet
    for _ in range(2):
        with pytest.raises(wr.QueryError, match=why):
            book.bind(stream())
    assert book.version == before


def test_keys_that_the_stream_has_not_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        wr.QueryError, match="the book's keys: there is no column 'typo' in the events; there are t, o, k, many"
    ):
        book_at(tmp_path / "one", ["typo"]).bind(stream())
    with pytest.raises(wr.QueryError, match="the book's keys: column 'many' is ARRAY<BIGINT>, which cannot be a key"):
        book_at(tmp_path / "two", ["many"]).bind(stream())


def test_a_stream_that_starts_again_as_it_was_writes_no_version(tmp_path: Path) -> None:
    book = book_at(tmp_path / "book")
    versions = [book.bind(stream(order_by=("o",))).number for _ in range(3)]
    assert versions == [1, 1, 1]
    assert book.bind(stream(order_by=("k",))).number == 2


# --- who is killed, and who comes at the same time ------------------------------------------------------------------

KILLED = """
import os, signal, sys
import windrow as wr

replace, calls = os.replace, []

def killed(draft, place):
    calls.append(place)
    point = sys.argv[2]
    if point == "before the version" or (point == "before HEAD" and len(calls) == 2):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(draft, place)
    if point == "after HEAD" and len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

os.replace = killed
wr.QueryBook(sys.argv[1]).add(wr.Query("lost", wr.tumbling(10), [wr.count().alias("n")]))
"""


@pytest.mark.parametrize(
    ("point", "left"),
    [("before the version", []), ("before HEAD", []), ("after HEAD", ["lost"])],
)
def test_a_book_goes_on_wherever_a_change_was_killed(tmp_path: Path, point: str, left: list[str]) -> None:
    book = book_at(tmp_path / "book")
    book.add(asking("first"))
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "book"), point], check=False)
    assert done.returncode == -9
    assert names(tmp_path / "book") == ["first", *left]
    book.add(asking("next"))
    book.remove("first")
    assert names(tmp_path / "book") == [*left, "next"]


def test_changes_at_the_same_time_are_all_made_and_readers_always_see_a_version(tmp_path: Path) -> None:
    path, seen, wrong = tmp_path / "book", [0], []
    book_at(path)
    done = threading.Event()

    def adds(who: int) -> None:
        book = wr.QueryBook(path)
        try:
            for number in range(10):
                book.add(asking(f"{who}.{number}"))
        except Exception as error:
            wrong.append(error)

    def reads() -> None:
        try:
            while not done.is_set():
                seen.append(query_book_files.number_of(str(path), query_book_files.head(str(path))))
        except Exception as error:
            wrong.append(error)

    adders = [threading.Thread(target=adds, args=(who,)) for who in range(4)]
    reader = threading.Thread(target=reads)
    for thread in (reader, *adders):
        thread.start()
    for thread in adders:
        thread.join()
    done.set()
    reader.join()
    assert wrong == []
    assert sorted(names(path)) == sorted(f"{who}.{number}" for who in range(4) for number in range(10))
    assert seen == sorted(seen)


def test_without_locks_a_change_that_comes_too_late_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    monkeypatch.setattr(query_book_files, "located", lambda path: (store, "book"))
    book, other = book_at("s3a://bucket/book"), wr.QueryBook("s3a://bucket/book")

    def looked_at(query: wr.Query, version: query_book_files.Version) -> None:
        other.add(asking("quick"))  # somebody else is quicker

    monkeypatch.setattr(book, "_fits", looked_at)
    with pytest.raises(ValueError, match="somebody else has just changed the query book at 's3a://bucket/book'"):
        book.add(asking("slow"))
    monkeypatch.undo()
    monkeypatch.setattr(query_book_files, "located", lambda path: (store, "book"))
    assert [query.name for query in book.queries] == ["quick"]
    book.add(asking("slow"))
    assert [query.name for query in book.queries] == ["quick", "slow"]


def test_a_book_that_is_made_anew_has_forgotten_the_old_one(tmp_path: Path) -> None:
    book_at(tmp_path / "book").add(asking("old"))
    shutil.rmtree(tmp_path / "book")
    book_at(tmp_path / "book").add(asking("new"))
    assert names(tmp_path / "book") == ["new"]


def test_a_version_of_which_one_digit_has_changed_is_refused(tmp_path: Path) -> None:
    book = book_at(tmp_path / "book")
    book.add(asking("q"))
    name = query_book_files.head(book.path)
    file = tmp_path / "book" / "versions" / f"{name}.json"
    text = file.read_text()
    for place in [at for at, sign in enumerate(text) if sign.isdecimal()]:
        file.write_text(text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :])
        with pytest.raises(ValueError, match=r"is damaged|has format"):
            query_book_files.read.__wrapped__(book.path, name)
    (tmp_path / "book" / "HEAD").write_text(name.replace("1-", "2-"))
    with pytest.raises(ValueError, match="which is not there"):
        _ = book.version


def test_a_head_that_names_no_version_is_said_so(tmp_path: Path) -> None:
    book_at(tmp_path / "book")
    for read in (None, ""):  # as Spark reads it where a file is not replaced in one step
        with pytest.raises(ValueError, match=r"names no version, but .*: it was read while it was written"):
            query_book_files.read(str(tmp_path / "book"), read)


# --- where a book is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/a/book", "/a/book/", "file:/a/book", "file:///a/book", "file://localhost/a/book"])
def test_a_local_book_is_the_same_however_its_path_is_written(path: str) -> None:
    assert query_book_files.absolute(path) == "/a/book"
    assert query_book_files.for_spark(query_book_files.absolute(path)) == "file:/a/book"


def test_a_local_path_may_be_relative_and_have_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    book_at("a book").add(asking("q"))
    assert names(tmp_path / "a book") == ["q"]
    assert [query.name for query in wr.QueryBook(f"file://{tmp_path}/a book").queries] == ["q"]


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("s3a://bucket/book", "s3://bucket/book"),
        ("s3n://bucket/book", "s3://bucket/book"),
        ("s3://bucket/book", "s3://bucket/book"),
        ("gs://bucket/book", "gs://bucket/book"),
        ("hdfs:///book", "hdfs:///book"),
    ],
)
def test_spark_and_arrow_each_get_their_own_word_for_a_file_system(path: str, uri: str) -> None:
    assert query_book_files.arrow_uri(path) == uri
    assert query_book_files.for_spark(path) == path


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("dbfs:/books/one", "has no file system for 'dbfs'; it has file, s3a, gs, abfss, hdfs"),
        ("wasbs://c@a.blob.core.windows.net/book", "has no file system for 'wasbs'"),
        ("file://elsewhere/book", "names the machine 'elsewhere'; a local path has none: file:///book"),
    ],
)
def test_a_file_system_that_arrow_has_not_is_refused_by_name(path: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        book_at(path)
