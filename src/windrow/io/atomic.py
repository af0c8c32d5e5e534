"""Files that are there whole or not at all, whatever happens while they are written.

what is written ──▶ .name ──▶ flushed to the disk ──▶ renamed to name ──▶ the folder flushed
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from windrow.io.private import naming, open_private


@contextmanager
def replacing(path: Path, *, durable: bool = True, contended: bool = False, shared: bool = False) -> Iterator[BinaryIO]:
    """Open a draft that takes the place of a file once it is written: a reader sees the old file or all of the new one.

    durable:    the new file also survives a loss of power, for which the disk is waited for
    contended:  other processes may write the same file now, so that each needs a draft of its own
    shared:     whoever may read the folder may read the file, which otherwise is its user's alone
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}" if contended else f".{path.name}")
    with naming(path):
        try:
            draft.unlink(missing_ok=True)  # of a process that was killed
            with open_private(draft, "xb", shared) as file:
                yield file
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            with suppress(OSError):
                draft.unlink()  # where the disk is full, it is to have its room back
            raise
    if durable:
        _flush(path.parent)


def _flush(folder: Path) -> None:
    """Flush the names in a folder to the disk."""
    try:
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
    except OSError as error:  # some mounted file systems cannot open a folder, or flush one
        if error.errno == errno.EIO:
            raise
