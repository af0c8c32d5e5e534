"""The slice sink: where a root that has no windows of its own leaves its slices, for Spark to go on with.

    path/slices/
      asked                          the query set of the tree, and from which batch on
      00000000000000000041.batch     a batch: slices, events of groups that need the order, a watermark
      00000000000000000042.batch     the next one; numbers have no gap

A file with a proper name is complete and does not change. A reader says up to which batch it is done, and those are
deleted. The newest batch stays, because it says how far the sink has come: a restarted root sends again what was not
acknowledged, and that is not written twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

from windrow.core.expressions.errors import QueryError
from windrow.core.windows.ordered import JOINED, scope_of
from windrow.io.atomic import replacing
from windrow.io.private import make_folder
from windrow.io.tables import pack, read_header, unpack
from windrow.nodes.process.result_sink import DIGITS
from windrow.nodes.protocol.messages import Batch, from_bytes, to_bytes
from windrow.nodes.queries import QuerySet

QUERIES = "asked"
SUFFIX = ".batch"


class SliceSinkError(ValueError):
    """A sink that is not there, or does not hold what a reader needs: which, and what to do."""


class Head(NamedTuple):
    """What a batch says before its tables are read."""

    events: int  # of all nodes, in it and in those before it
    watermark: int
    size: int  # bytes


class Declared(NamedTuple):
    """The contents of the file `asked`."""

    query_set: QuerySet
    plan: str  # its fingerprint where the root runs
    since: int  # the first batch with slices of all queries
    changes: list[int]  # the first batches after each change of the query set


class SliceSink:
    """A directory of numbered batches; one process writes, and any number may read."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._folder = Path(path) / "slices"
        self._last: int | None = None  # the newest batch, as far as this process has written it

    # --- the root's side ----------------------------------------------------------------------------------------------

    def set_queries(self, query_set: QuerySet) -> None:
        """Declare the query set of the tree, from the next batch on; the same again changes nothing."""
        for query in query_set.queries:
            if scope_of(query.window) in JOINED:
                raise QueryError(
                    f"query {query.name!r}: {query.window} is not answered on Spark, where no place sees the windows "
                    "of all nodes; ask with scope='node', or let the root answer (feeds: results)"
                )
        since, changes = self.newest + 1, list[int]()
        if (self._folder / QUERIES).exists():
            before = self.declared
            if _lasting(before.query_set) == _lasting(query_set) and before.plan == _fingerprint(query_set):
                return
            changes = [*before.changes, since]
            remaining = tuple(query for query in before.query_set.queries if query in query_set.queries)
            if _lasting(replace(before.query_set, queries=remaining)) == _lasting(query_set):
                since = before.since  # queries were only removed, so that older batches have all that is needed
        header = {"queries": query_set.to_dict(), "plan": _fingerprint(query_set), "since": since, "changes": changes}
        self._write(QUERIES, pack(header, {"columns": query_set.table}))

    def put(self, batch: Batch) -> None:
        """Write a batch, unless its number is there already."""
        newest = self.newest if self._last is None else self._last
        if batch.number <= newest:
            return
        if batch.number != newest + 1:
            holds = f"ends with batch {newest}" if newest else "is empty"
            raise SliceSinkError(
                f"the outlet {str(self._folder)!r} {holds}, and batch {batch.number} was to follow; "
                "give the root the outlet that it had, or an empty one to a root with an empty spool"
            )
        self._write(f"{batch.number:0{DIGITS}}{SUFFIX}", to_bytes(batch, compress=False))
        self._last = batch.number

    def _write(self, name: str, data: bytes) -> None:
        make_folder(self._folder)
        with replacing(self._folder / name, shared=True) as file:
            file.write(data)

    # --- the reader's side --------------------------------------------------------------------------------------------

    @property
    def query_set(self) -> QuerySet:
        declared = self.declared
        if _fingerprint(declared.query_set) != declared.plan:
            raise SliceSinkError(
                f"the root of {self.path!r} runs another version of windrow, whose plan for these queries is "
                f"{declared.plan}; here it is {_fingerprint(declared.query_set)}: use the same version for both"
            )
        return declared.query_set

    @property
    def numbers(self) -> list[int]:
        return sorted(int(path.stem) for path in self._folder.glob("[0-9]" * DIGITS + SUFFIX))

    @property
    def newest(self) -> int:
        """The number of the last batch; 0 if there was none yet."""
        return max(self.numbers, default=0)

    @property
    def last(self) -> tuple[int, int]:
        """The number of the last batch, and the life of the root in which it was written; zeros if there was none."""
        number = self.newest
        if not number:
            return 0, 0
        with self._open(number) as file:
            return number, int(read_header(file)["fields"]["life"])

    def after(self, number: int) -> range:
        """The batches after this one."""
        end = number
        while self._file(end + 1).exists():
            end += 1
        if end == number and not self._file(number).exists():
            self._missing(number)
        return range(number + 1, end + 1)

    def _missing(self, number: int) -> None:
        """Refuse to go on from a batch, if neither it nor the next one is there."""
        numbers = self.numbers
        if number in numbers or number + 1 in numbers or not (number or numbers):
            return  # written or deleted since the caller looked, or there is nothing yet
        if numbers and numbers[0] > number:
            raise SliceSinkError(
                f"batch {number + 1} is gone from {str(self._folder)!r}, which begins with {numbers[0]}: another query "
                "is done with it; where several read one root, each must leave what it has read there (keep=all)"
            )
        raise SliceSinkError(
            f"the outlet {str(self._folder)!r} ends with batch {max(numbers, default=0)}, and {number} was read from "
            "it before: it is that of another tree, or was emptied; start with a new checkpoint"
        )

    def head(self, number: int) -> Head:
        """Read a batch without its tables."""
        with self._open(number) as file:
            fields = read_header(file)["fields"]
            events = sum(fields["events"].values())
            return Head(events, int(fields["watermark"]), os.fstat(file.fileno()).st_size)

    def read(self, number: int) -> Batch:
        with self._open(number) as file:
            batch = from_bytes(file.read())
        if not isinstance(batch, Batch) or batch.number != number:
            raise SliceSinkError(f"file {file.name!r} is no batch with the number {number}")
        return batch

    def forget(self, number: int) -> None:
        """Delete the batches up to a number, but never the newest."""
        for old in self.numbers[:-1]:
            if old > number:
                return
            try:
                self._file(old).unlink(missing_ok=True)
            except PermissionError as error:
                raise SliceSinkError(
                    f"file {str(self._file(old))!r} was read and may not be deleted from here: {error.strerror}; "
                    "set keep to all, and delete what is old elsewhere"
                ) from error

    @property
    def declared(self) -> Declared:
        """The query set of the tree, and since when."""
        try:
            data = (self._folder / QUERIES).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise SliceSinkError(
                f"{self.path!r} is not the directory of a root that feeds slices: there is no {QUERIES!r} in "
                f"{str(self._folder)!r}; name the root's own directory, once it has been started"
            ) from None
        try:
            return _read_declared(data)
        except (ValueError, KeyError) as error:
            raise SliceSinkError(f"{str(self._folder / QUERIES)!r} cannot be read: {error}") from error

    @contextmanager
    def _open(self, number: int) -> Iterator[BinaryIO]:
        try:
            with self._file(number).open("rb") as file:
                yield file
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SliceSinkError(f"file {str(self._file(number))!r} is no batch: {error}") from error
        except FileNotFoundError:
            raise SliceSinkError(
                f"batch {number} is gone from {str(self._folder)!r}, and who reads it is not done with it yet"
            ) from None

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:0{DIGITS}}{SUFFIX}"


def _fingerprint(query_set: QuerySet) -> str:
    return query_set.job.compiled.plan.fingerprint


def _lasting(query_set: QuerySet) -> QuerySet:
    """The query set, without how it came to be."""
    return replace(query_set, version=1, since=(), pending=())


@lru_cache(maxsize=8)
def _read_declared(data: bytes) -> Declared:
    header, tables = unpack(data)
    query_set = QuerySet.from_dict(header["queries"], tables["columns"])
    return Declared(query_set, header["plan"], header["since"], header["changes"])
