"""Files: directories that grow, one for each node.

    path/                  a directory with one for each node, or with files: then it is the only node, or a pattern
      north/               a node; what lies in directories of its own belongs to it too
        0001.parquet       read in the order of the names, each once and whole
        0002.parquet
        _0003.parquet      not yet: rename a file when it is complete

A file must appear whole, with a name that sorts after those that its node has had. What is read may be deleted. So that
a file that comes too late is not taken for one that was read, an offset has the names of the last ones that were read
and are still there, and how many there are before them.
"""

from __future__ import annotations

import glob
import heapq
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl
import pyarrow.parquet as pq

from windrow.core.arrays.dataframes import InputError
from windrow.core.expressions.errors import QueryError
from windrow.core.stream.job import Job
from windrow.io.event_files import (
    FORMATS,
    AscendingFiles,
    TextForm,
    below,
    columns_of,
    files_now,
    is_hidden,
    is_pattern,
    named,
    read,
    root_of,
)
from windrow.io.text_times import time_format
from windrow.spark.slice_rows import Limit, Marks

RECENT = 256  # files of a node whose names stand in an offset


class Facts(NamedTuple):
    """What is known of a file before it is read."""

    rows: int
    seen: int | None  # the greatest time
    size: int  # bytes


class Files:
    """The files of all nodes under a path."""

    def __init__(self, path: str, form: str | None = None, times: str | None = None) -> None:
        if form is not None and form not in FORMATS:
            raise QueryError(f"option format must be one of {', '.join(FORMATS)}, not {form!r}")
        try:
            self._time_format = None if times is None else time_format(times, "option time_format")
        except ValueError as error:
            raise QueryError(str(error)) from error
        self.path = local_path(path, "nodes are read from directories that are")
        self._files = AscendingFiles(root_of(self.path), form)
        self._facts: dict[str, tuple[tuple[int, int], Facts]] = {}  # of files to come, with their size and time
        self._stopped: dict[str, list[str]] | None = None
        self._listed: dict[str, list[str]] | None = None

    # --- which files there are ----------------------------------------------------------------------------------

    def nodes(self) -> dict[str, list[str]]:
        """The files of each node, in their order, from the root on."""
        if self._stopped is not None:
            return self._stopped
        root = self._files.root
        if not os.path.isdir(root):
            raise InputError(f"there is no directory {root!r}")
        if is_pattern(self.path):
            paths = sorted(path for path in glob.glob(self.path) if not is_hidden(os.path.basename(path)))
            if not paths:
                raise InputError(f"nothing fits {self.path!r}")
            nodes: dict[str, list[str]] = {}
            for path in paths:
                node = self._named(path if os.path.isdir(path) else os.path.dirname(path))
                nodes.setdefault(node, []).extend(self._files.names(files_now(path)))
            return nodes
        entries = [entry for entry in os.scandir(root) if not is_hidden(entry.name)]
        files = [entry.name for entry in entries if entry.is_file()]
        folders = sorted(entry.name for entry in entries if entry.is_dir())
        if files and folders:
            raise InputError(
                f"{root!r} has the file {min(files)!r} beside the directory {folders[0]!r}; "
                "give each node a directory, or all files to one"
            )
        if files:
            return {self._named(root): self._files.names(below(root))}
        return {name: self._files.names(below(os.path.join(root, name))) for name in folders}

    def _named(self, top: str) -> str:
        name = os.path.relpath(top, self._files.root)
        return os.path.basename(os.path.abspath(self._files.root)) if name == "." else name

    # --- a source of nodes --------------------------------------------------------------------------------------

    @property
    def columns(self) -> dict[str, pl.DataType]:
        """The columns of the first file."""
        names = [name for files in self.nodes().values() for name in files]
        if not names:
            raise InputError(f"{self.path!r} has no files yet, so that their columns are not known; give columns")
        return columns_of([self._files.path_of(names[0])], self._files.form_of(names[0]))

    def pause(self) -> Files:
        """What there is now, and no more."""
        stopped = Files(self.path, self._files.form, self._time_format)
        stopped._stopped = self.nodes()
        return stopped

    def take(self, before: Marks, limit: Limit, job: Job) -> Marks:
        """The next files within a limit, at least one, of the nodes that are furthest behind first."""
        queue: list[tuple[bool, int, str]] = []
        pending: dict[str, Iterator[str]] = {}
        taken: Marks = {}
        facts_ahead: dict[str, tuple[tuple[int, int], Facts]] = {}
        self._listed = self.nodes()
        for node, files in self._listed.items():
            mark = before.get(node)
            done = 0 if mark is None else bisect_right(files, mark["place"])
            if mark is not None:
                self._check(node, files[:done], mark)
            pending[node] = iter(files[done:])
            facts_ahead |= {name: self._facts[name] for name in files[done:] if name in self._facts}
            seen = None if mark is None else mark["seen"]
            queue.append((seen is not None, seen or 0, node))
        self._facts = facts_ahead
        heapq.heapify(queue)
        rows = files_taken = size = 0
        while queue:
            _, _, node = heapq.heappop(queue)
            name = next(pending[node], None)
            if name is None:
                continue
            facts = self.facts(name, job)
            if files_taken and is_beyond(limit, files_taken + 1, rows + facts.rows, size + facts.size):
                break
            rows, files_taken, size = rows + facts.rows, files_taken + 1, size + facts.size
            old = taken.get(node) or before.get(node) or {"rows": 0, "seen": None, "files": 0}
            new = taken[node]["new"] if node in taken else []
            seen = max((time for time in (old["seen"], facts.seen) if time is not None), default=None)
            taken[node] = {
                "place": name,
                "files": old["files"] + 1,
                "rows": old["rows"] + facts.rows,
                "seen": seen,
                "size": facts.size,
                "new": [*new, [name, facts.rows, facts.size]],
            }
            heapq.heappush(queue, (seen is not None, seen or 0, node))
        for node, mark in taken.items():
            done = bisect_right(self._listed[node], mark["place"])
            mark["before"] = max(0, done - RECENT)
            mark["recent"] = self._listed[node][mark["before"] : done]
        return {} if limit.least is not None and rows < limit.least else taken

    def _check(self, node: str, files: Sequence[str], mark: Mapping[str, Any]) -> None:
        """Refuse files up to a mark that were not there when it was made, and a last one that was not whole then."""
        recent = mark.get("recent", [])
        older = bisect_left(files, recent[0]) if recent else len(files)
        late = sorted(set(files[older:]).difference(recent))
        if late or older > mark.get("before", mark["files"]):
            raise self._files.came_late(late[0] if late else None, mark["place"], f"node {node!r}")
        if files and files[-1] == mark["place"] and "size" in mark:
            path = self._files.path_of(mark["place"])
            if os.path.isfile(path) and os.path.getsize(path) != mark["size"]:
                raise _changed(path, "read")

    @property
    def names(self) -> list[str]:
        """The nodes that there are, as of the last time that something was taken."""
        return list(self.nodes() if self._listed is None else self._listed)

    def everything(self) -> dict[str, Any]:
        """All files of each node, which need not be looked into before they are read."""
        return {node: [[name, None, None] for name in files] for node, files in self.nodes().items() if files}

    def frames(
        self, node: str, new: Any, first: int, needed: Mapping[str, pl.DataType]
    ) -> Iterator[tuple[pl.DataFrame, str]]:
        """The events of some files of a node, and what to call them."""
        for name, rows, size in new:
            path, count = self._files.path_of(name), 0
            if not os.path.isfile(path):
                raise InputError(f"file {path!r} is gone, and the micro-batch that it belongs to is not done yet")
            if size not in (None, os.path.getsize(path)):
                raise _changed(path, "first seen")
            with named(path):
                for frame in read(path, self._files.form_of(name), needed, text=self._text(needed)):
                    count += frame.height
                    yield frame, f"file {path!r}"
            if rows not in (None, count):
                raise _changed(path, "first seen")

    def _text(self, needed: Mapping[str, pl.DataType]) -> TextForm:
        return TextForm.of_times(needed, self._time_format)

    # --- what is known before reading ---------------------------------------------------------------------------

    def facts(self, name: str, job: Job) -> Facts:
        """How many events a file has, and their greatest time; only its footer or the time column is read."""
        path = self._files.path_of(name)
        with named(path):
            status = os.stat(path)
            state = status.st_size, status.st_mtime_ns
            if name not in self._facts or self._facts[name][0] != state:
                self._facts[name] = state, self._look(path, self._files.form_of(name), status.st_size, job)
        return self._facts[name][1]

    def _look(self, path: str, form: str, size: int, job: Job) -> Facts:
        time, binding = job.time, job.compiled.binding
        wanted = {time: binding.needed[time]}
        if form == "parquet":
            parquet = pq.ParquetFile(path)
            greatest = _greatest(parquet, time)
            if greatest is not None and pl.read_parquet_schema(path)[time] == wanted[time]:
                values = pl.DataFrame({time: [greatest]}).cast(wanted)  # type: ignore[arg-type]
                return Facts(parquet.metadata.num_rows, binding.times(values, time)[0], size)
        rows, seen = 0, None
        for frame in read(path, form, wanted, text=self._text(wanted)):
            rows += frame.height
            if time not in frame.columns:
                raise InputError(f"there is no column {time!r} in it")
            if frame.schema[time] not in (wanted[time], pl.Null()):
                raise InputError(f"column {time!r} is {frame.schema[time]} in it, and {wanted[time]} in others")
            if frame[time].null_count() < frame.height:
                latest = binding.times(frame.select(pl.col(time).max()), time)[0]
                seen = latest if seen is None else max(seen, latest)
        return Facts(rows, seen, size)


def _changed(path: str, since: str) -> InputError:
    return InputError(f"file {path!r} has changed since it was {since}; files must appear whole")


def is_beyond(limit: Limit, files: int, rows: int, size: int) -> bool:
    """Whether a micro-batch of so much would be too large."""
    bounds = (limit.files, files), (limit.rows, rows), (limit.bytes, size)
    return any(most is not None and taken > most for most, taken in bounds)


def local_path(path: str, what: str) -> str:
    """A path without its scheme, which must be that of files."""
    plain = path.removeprefix("file://").removeprefix("file:")
    if "://" in plain:
        raise QueryError(f"{what} mounted where Spark runs, not from {path!r}")
    return plain


def _greatest(parquet: pq.ParquetFile, column: str) -> int | None:
    """The greatest value of a column as the footer has it; None if it does not say."""
    greatest: int | None = None
    for number in range(parquet.metadata.num_row_groups):
        group = parquet.metadata.row_group(number)
        columns = map(group.column, range(group.num_columns))
        statistics = next((chunk.statistics for chunk in columns if chunk.path_in_schema == column), None)
        if statistics is None or not statistics.has_min_max or not isinstance(statistics.max_raw, int):
            return None
        greatest = statistics.max_raw if greatest is None else max(greatest, statistics.max_raw)
    return greatest
