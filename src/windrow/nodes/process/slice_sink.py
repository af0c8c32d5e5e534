"""Outlets: where a root that has no windows of its own leaves its slices, for Spark to go on with.

    path/slices/
      asked                          what is asked of the tree, and from which batch on
      spool                          which spool it is filled from
      00000000000000000041.batch     a batch: slices, events of groups that need the order, a watermark
      00000000000000000042.batch     the next one; numbers have no gap
      .00000000000000000043.batch    one that is being written

A file is written under a hidden name, flushed to the disk and renamed, so that what has a name is whole and stays as it
is. Who reads says what it is done with, and that is deleted; the newest batch stays, because it says how far the
outlet has come: a root that has been restarted brings again what was not acknowledged, and it is not written twice.
Numbers are those of the root's spool, and begin anew with another one, so that an outlet is tied to its spool.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

from windrow.core.query.query import QueryError
from windrow.core.windows.ordered import JOINED, scope_of
from windrow.io.atomic import replacing
from windrow.io.tables import pack, unpack
from windrow.nodes.protocol.journal import Spool
from windrow.nodes.protocol.messages import Batch, MessageError, from_bytes, to_bytes
from windrow.nodes.queries import Asked

ASKED = "asked"
TIED = "spool"
SUFFIX = ".batch"
_DIGITS = 20


class OutletError(ValueError):
    """An outlet that is not there, or does not hold what is wanted of it: which, and what to do."""


class Head(NamedTuple):
    """What is known of a batch before its tables are read."""

    events: int  # that are in it and in those before it, of all nodes
    watermark: int
    size: int  # bytes


class Said(NamedTuple):
    """What the file `asked` says."""

    asked: Asked
    plan: str  # its fingerprint where the root runs
    since: int
    changes: list[int]


class SliceOutlet:
    """A directory of numbered batches; one process writes, and any number may read."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._folder = Path(path) / "slices"
        self._put: int | None = None  # the last one, where this is the process that writes

    # --- the root's side ----------------------------------------------------------------------------------------------

    def tie(self, spool: Spool) -> None:
        """Be filled from this spool, and from no other."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path, known = self._folder / TIED, spool.get("outlet")
        mine = path.read_bytes() if path.exists() else None
        if mine is None and self.newest == 0:  # an empty one; the spool may have been told before a crash
            known = uuid.uuid4().hex.encode() if known is None else known
            spool.commit({"outlet": known}, [])
            self._write(TIED, known)
        elif mine != known:
            raise OutletError(
                f"the outlet {str(self._folder)!r} was filled from another spool than the root's, and its numbers "
                "would be taken for those of now; give the root its spool again, or another directory"
            )

    def ask(self, asked: Asked) -> None:
        """Say what is asked of the tree, from the next batch on; the same again changes nothing."""
        for query in asked.queries:
            if scope_of(query.window) in JOINED:
                raise QueryError(
                    f"query {query.name!r}: {query.window} is not answered on Spark, where no place sees the windows "
                    "of all nodes; ask with scope='node', or let the root answer (feeds: results)"
                )
        since, changes = self.newest + 1, list[int]()
        if (self._folder / ASKED).exists():
            known = self._said()
            if _lasting(known.asked) == _lasting(asked) and known.plan == asked.job.bound.plan.fingerprint:
                return
            changes = [*known.changes, since]
            kept = tuple(query for query in known.asked.queries if query in asked.queries)
            if _lasting(replace(known.asked, queries=kept)) == _lasting(asked):
                since = known.since  # only less is asked
        said = {"asked": asked.to_dict(), "plan": asked.job.bound.plan.fingerprint, "since": since, "changes": changes}
        self._write(ASKED, pack(said, {"columns": asked.table}))

    def put(self, batch: Batch) -> None:
        """Leave a batch; one that is there already, by its number, is not written again."""
        newest = self.newest if self._put is None else self._put
        if batch.number <= newest:
            return
        if batch.number != newest + 1:
            holds = f"ends with batch {newest}" if newest else "is empty"
            raise OutletError(
                f"the outlet {str(self._folder)!r} {holds}, and batch {batch.number} was to follow; "
                "give the root the outlet that it had, or an empty one to a root with an empty spool"
            )
        self._write(_name(batch.number), to_bytes(batch, compress=False))
        self._put = batch.number

    def _write(self, name: str, data: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with replacing(self._folder / name) as file:
            file.write(data)

    # --- the reader's side --------------------------------------------------------------------------------------------

    @property
    def asked(self) -> Asked:
        """What is asked of the tree."""
        said = self._said()
        if said.asked.job.bound.plan.fingerprint != said.plan:
            raise OutletError(
                f"the root of {self.path!r} runs another version of windrow, whose plan for these queries is "
                f"{said.plan}; here it is {said.asked.job.bound.plan.fingerprint}: use the same version for both"
            )
        return said.asked

    @property
    def since(self) -> int:
        """The first batch that has everything that is asked now."""
        return self._said().since

    @property
    def changes(self) -> list[int]:
        """The batches from which on something else was asked."""
        return self._said().changes

    @property
    def numbers(self) -> list[int]:
        """The batches that there are."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        return sorted(number for name in names if (number := _number(name)) is not None)

    @property
    def newest(self) -> int:
        """The last batch; 0 if there was none yet."""
        return max(self.numbers, default=0)

    def after(self, number: int) -> range:
        """The batches that have come after one."""
        end = number
        while self._file(end + 1).exists():
            end += 1
        if end == number and number and not self._file(number).exists():
            self._missing(number)
        if end == number == 0 and self.newest:
            self._missing(number)
        return range(number + 1, end + 1)

    def _missing(self, number: int) -> None:
        """Refuse to go on from a batch, if neither it nor the next one is there."""
        there = self.numbers
        if number in there or number + 1 in there:
            return  # they have come or gone in the meantime
        if there and there[0] > number:
            raise OutletError(
                f"batch {number + 1} is gone from {str(self._folder)!r}, which begins with {there[0]}: another query "
                "is done with it; where several read one root, each must leave what it has read there (keep=all)"
            )
        raise OutletError(
            f"the outlet {str(self._folder)!r} ends with batch {max(there, default=0)}, and {number} was read from it "
            "before: it is that of another tree, or was emptied; start with a new checkpoint"
        )

    def head(self, number: int) -> Head:
        """What is known of a batch without its tables."""
        with self._open(number) as file:
            try:
                said = json.loads(file.readline())["fields"]
                events = sum(said["events"].values())
                return Head(events, int(said["watermark"]), os.fstat(file.fileno()).st_size)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise OutletError(f"file {file.name!r} is no batch: {error}") from error

    def read(self, number: int) -> Batch:
        """A batch with its tables."""
        with self._open(number) as file:
            try:
                found = from_bytes(file.read())
            except MessageError as error:
                raise OutletError(f"file {file.name!r} is no batch: {error}") from error
            if not isinstance(found, Batch) or found.number != number:
                raise OutletError(f"file {file.name!r} is no batch with the number {number}")
            return found

    def forget(self, number: int) -> None:
        """Delete the batches up to a number, but never the newest."""
        there = self.numbers
        for one in there[:-1]:
            if one > number:
                return
            try:
                self._file(one).unlink(missing_ok=True)
            except PermissionError as error:
                raise OutletError(
                    f"file {str(self._file(one))!r} was read and may not be deleted from here: {error.strerror}; "
                    "set keep to all, and delete what is old elsewhere"
                ) from error

    def _said(self) -> Said:
        try:
            data = (self._folder / ASKED).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise OutletError(
                f"{self.path!r} is not the directory of a root that feeds slices: there is no {ASKED!r} in "
                f"{str(self._folder)!r}; name the root's own directory, once it has been started"
            ) from None
        try:
            return _understood(data)
        except (ValueError, KeyError) as error:
            raise OutletError(f"{str(self._folder / ASKED)!r} cannot be read: {error}") from error

    def _open(self, number: int) -> BinaryIO:
        try:
            return self._file(number).open("rb")
        except FileNotFoundError:
            raise OutletError(
                f"batch {number} is gone from {str(self._folder)!r}, and who reads it is not done with it yet"
            ) from None

    def _file(self, number: int) -> Path:
        return self._folder / _name(number)


def _lasting(asked: Asked) -> Asked:
    """What is asked, without how it came to be."""
    return replace(asked, version=1, since=(), pending=())


def _name(number: int) -> str:
    return f"{number:0{_DIGITS}}{SUFFIX}"


def _number(name: str) -> int | None:
    """The number of a batch by the name of its file; None for any other file."""
    digits = name.removesuffix(SUFFIX)
    return int(digits) if name.endswith(SUFFIX) and len(digits) == _DIGITS and digits.isdecimal() else None


@lru_cache(maxsize=8)
def _understood(data: bytes) -> Said:
    header, tables = unpack(data)
    asked = Asked.from_dict(header["asked"], tables["columns"])
    return Said(asked, header["plan"], header["since"], header["changes"])
