"""The files of one node: a directory, a pattern or a single file, in the order of their names.

Names must ascend: a file that comes with a name before those that were read would never be read, and is refused.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar

from windrow.core.arrays.dataframes import InputError
from windrow.io.event_files import FORMATS, AscendingFiles, files_now, is_pattern, root_of
from windrow.io.yaml_files import Check, is_text, must
from windrow.nodes.sources.base import FLAG, TIME_FORMAT, Mark, Read, Source, SourceError, Types, place_of, waited_for

_path = must("be a directory, a pattern or a file, not {!r}", lambda path: is_text(path) and path)


def format_check(formats: tuple[str, ...]) -> Check:
    return must(f"be one of {', '.join(formats)}, not {{!r}}", formats.__contains__)


@dataclass
class FileSource(Source):
    """What sources of files have in common: the files by their names below a root, and which of them were read."""

    formats: ClassVar[tuple[str, ...]] = FORMATS
    place: ClassVar[dict[str, type]]  # the fields of a mark; of all: the file that is read, and how many came up to it
    what: ClassVar[str]

    path: Annotated[str, _path]
    format: Annotated[str | None, format_check(FORMATS)] = None
    delete: Annotated[bool, FLAG] = False
    until_end: Annotated[bool, FLAG] = False
    time_format: Annotated[str | None, TIME_FORMAT] = None

    def __post_init__(self) -> None:
        path = self.path
        root = root_of(path) if is_pattern(path) or os.path.isdir(path) else os.path.dirname(path) or "."
        if not os.path.isdir(root):
            raise SourceError(f"files: there is no directory {root!r}")
        self.files = AscendingFiles(root, self.format)
        names = self.names()
        self._end = names if self.until_end else None
        if not names and (self.until_end or not os.path.isdir(path)):  # a directory may well be empty at first
            self.notes.append(f"there are no files at {path!r}{'' if self.until_end else ' yet; they are waited for'}")
        self.resume({})

    def names(self) -> list[str]:
        return self.files.names(files_now(self.path))

    def resume(self, mark: Mark) -> None:
        """Take the files up to that of the mark as read."""
        self._at: SimpleNamespace = place_of(mark, self.place, self.what)
        past = [name for name in self.names() if name <= self._at.file]
        if len(past) > self._at.files:
            raise self.files.came_late(None, self._at.file, repr(self.files.root))
        self._opened = set(past)

    def read(self, needed: Types, wait: float) -> Read | None:
        return waited_for(lambda: self._next(needed), wait)

    def _next(self, needed: Types) -> Read | None:
        """What is new, without waiting for it."""
        raise NotImplementedError

    def _fresh(self) -> list[str]:
        """The files that come after the one that is read."""
        file = self._at.file
        if self._end is not None:
            return [name for name in self._end if name > file]
        names = self.names()
        done = bisect_right(names, file)
        for name in names[:done]:
            if name not in self._opened:
                raise self.files.came_late(name, file, repr(self.files.root))
        return names[done:]

    def _go_to(self, name: str) -> None:
        files = self._at.files + 1
        self._at = place_of({}, self.place, self.what)
        self._at.file, self._at.files = name, files
        self._opened.add(name)

    def _mark(self) -> dict[str, Any]:
        return dict(vars(self._at)) if self._at.file else {}

    def confirm(self, mark: Mark) -> None:
        """Delete what was read before the file of the mark, and that file once it is done."""
        if not self.delete or not mark:
            return
        for name in sorted(self._opened):
            if name < mark["file"] or (name == mark["file"] and mark.get("done")):
                with suppress(FileNotFoundError):
                    os.remove(self.files.path_of(name))
                self._opened.discard(name)

    def size(self, name: str) -> int:
        """Bytes of a file; refuses one that has disappeared."""
        path = self.files.path_of(name)
        try:
            return os.path.getsize(path)
        except FileNotFoundError:
            raise InputError(f"file {path!r} has disappeared before all of it was read") from None

    def form(self, name: str) -> str:
        form, path = self.files.form_of(name), self.files.path_of(name)
        if form not in self.formats:
            raise InputError(f"file {path!r} is {form}; files that grow are {' or '.join(self.formats)}")
        return form
