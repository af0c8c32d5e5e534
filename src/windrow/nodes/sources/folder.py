"""The files of one node: a directory, a pattern or a single file, in the order of their names.

Names must ascend: a file that comes with a name before those that were read would never be read, and is refused.
"""

from __future__ import annotations

import glob
import os
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress

import polars as pl

from windrow.core.slices.binding import InputError
from windrow.io.event_files import FORMATS, below, fitting, form_of, name_below, root_of
from windrow.nodes.sources.base import Read, SourceError, Types, waited_for


class Folder:
    """The files under a path, by their names below its root."""

    def __init__(self, path: str, form: str | None, formats: Iterable[str] = FORMATS) -> None:
        formats = tuple(formats)
        if not isinstance(path, str) or not path:
            raise SourceError(f"files: path must be a directory, a pattern or a file, not {path!r}")
        if form is not None and form not in formats:
            raise SourceError(f"files: format must be one of {', '.join(formats)}, not {form!r}")
        self._path, self._form, self._formats = path, form, formats
        self._is_pattern = not os.path.exists(path) and glob.escape(path) != path
        self.root = root_of(path) if self._is_pattern else path if os.path.isdir(path) else os.path.dirname(path) or "."
        if not os.path.isdir(self.root):
            raise SourceError(f"files: there is no directory {self.root!r}")
        self._opened: set[str] = set()  # names, up to the last one

    def names(self) -> list[str]:
        """The files that there are now."""
        if self._is_pattern:
            paths = fitting(self._path)
        elif os.path.isdir(self._path):
            paths = below(self._path)
        else:
            paths = [self._path] if os.path.isfile(self._path) else []
        return sorted({name_below(self.root, path) for path in paths})

    def notes(self, until_end: bool) -> list[str]:
        """A note if there are no files, which may be a slip; a directory may well be empty at first."""
        if self.names() or (os.path.isdir(self._path) and not until_end):
            return []
        return [f"there are no files at {self._path!r}{'' if until_end else ' yet; they are waited for'}"]

    def after(self, name: str | None, only: list[str] | None = None) -> list[str]:
        """Those that are still to be read, of all that there are now or only of some."""
        if only is not None:
            return [other for other in only if name is None or other > name]
        names = self.names()
        if name is None:
            return names
        done = bisect_right(names, name)
        for other in names[:done]:
            if other not in self._opened:
                raise InputError(
                    f"file {self.full(other)!r} has come after {name!r} was read, and its name is before that; "
                    "names must ascend"
                )
        return names[done:]

    def begin(self, name: str | None, files: int = 0) -> None:
        """Take the files up to this one, which were so many, as read."""
        past = [] if name is None else [other for other in self.names() if other <= name]
        if len(past) > files:
            raise InputError(
                f"{len(past) - files} files have come to {self.root!r} with names before {name!r}, which was already "
                "read; names must ascend"
            )
        self._opened = set(past)

    def opened(self, name: str) -> None:
        self._opened.add(name)

    def delete(self, last: str, too: bool) -> None:
        """Delete what was read before a file, and if it says so that file too."""
        for name in sorted(self._opened):
            if name < last or (too and name == last):
                with suppress(FileNotFoundError):
                    os.remove(self.full(name))
                self._opened.discard(name)

    def size(self, name: str) -> int:
        """Bytes of a file; refuses one that has disappeared."""
        try:
            return os.path.getsize(self.full(name))
        except FileNotFoundError:
            raise InputError(f"file {self.full(name)!r} has disappeared before all of it was read") from None

    def full(self, name: str) -> str:
        return os.path.join(self.root, name)

    def form(self, name: str) -> str:
        form = self._form or form_of(name)
        if form is None:
            raise InputError(f"file {self.full(name)!r}: its name does not say its format; set the option format")
        if form not in self._formats:
            raise InputError(f"file {self.full(name)!r} is {form}; files that grow are {' or '.join(self._formats)}")
        return form


class FileSource:
    """What sources of files have in common: their folder, when they end, and what becomes of files that were read."""

    replayable = True

    def __init__(
        self, path: str, form: str | None, delete: bool, until_end: bool, formats: Iterable[str] = FORMATS
    ) -> None:
        self._folder = Folder(path, form, formats)
        for name, value in (("delete", delete), ("until_end", until_end)):
            if not isinstance(value, bool):
                raise SourceError(f"files: {name} must be true or false, not {value!r}")
        self._delete, self._until_end = delete, until_end
        self._end = self._folder.names() if until_end else None
        self._columns: dict[str, pl.DataType] = {}
        self._file: str | None = None  # that is read
        self.notes = self._folder.notes(until_end)

    def read(self, needed: Types, wait: float) -> Read | None:
        return waited_for(lambda: self._next(needed), wait)

    def _next(self, needed: Types) -> Read | None:
        """What is new, without waiting for it."""
        raise NotImplementedError

    def _fresh(self) -> list[str]:
        """The files that come after the one that is read."""
        return self._folder.after(self._file, self._end)
