"""Files that are their user's alone: how a node makes its own, how secrets are read, and errors that name their file.

What a node writes is open to nobody else (0600 in folders 0700), whatever the umask of whoever starts it. A folder that
is there already keeps its mode. A secret comes from a file that nobody else can read or write, or from an environment
variable, and is never shown.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

FILE, FOLDER = 0o600, 0o700
_READ = 0o044  # the bits by which others may read


class Secret(str):
    """Text that is not shown: not in an error, not in what a configuration looks like, and YAML refuses to write it."""

    def __repr__(self) -> str:
        return "'…'"


def secret(value: Any, word: str) -> Secret:
    """Check a password or a token; the error does not say what it is."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{word} must be text; write it in quotation marks")
    return Secret(value)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are not there, for their user alone; one that is there stays as it is."""
    for folder in reversed([folder for folder in (path, *path.parents) if not folder.is_dir()]):
        folder.mkdir(FOLDER, exist_ok=True)


def open_private(path: Path, mode: str, shared: bool = False) -> BinaryIO:
    """Open a file to write bytes; if it is made, then for its user alone.

    Where it is `shared`, others may read it who may read its folder, as far as the umask lets them.
    """
    bits = FILE | (path.parent.stat().st_mode & _READ if shared else 0)
    return cast(BinaryIO, open(path, mode, opener=lambda name, flags: os.open(name, flags, bits)))


def check_private(path: Path) -> None:
    """Refuse the file of a secret that others can read or write."""
    _check(path, path.stat())


def read_secret(path: Path) -> bytes:
    """What a file holds that nobody else can read or write; ValueError says what to do about another one."""
    with path.open("rb") as file:
        _check(path, os.fstat(file.fileno()))
        return file.read()


def _check(path: Path, stat: os.stat_result) -> None:
    """A service may get its secret from root by way of a group: that may read what belongs to another user."""
    allowed = 0o700 if stat.st_uid == os.geteuid() else 0o740
    if stat.st_mode & 0o777 & ~allowed:
        raise ValueError(
            f"{str(path)!r} holds a secret, and others can read or write it (mode {stat.st_mode & 0o777:o}): "
            f"chmod 600 {path}"
        )


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Let errors of the system say which file they are about, also where an open file is written: a disk is full."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
