"""The lock of a node's directory: one process uses it at a time, and others can say which."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import BinaryIO

from windrow.io.private import make_folder, open_private
from windrow.nodes.process.config import ConfigError

LOOKING = 0.1  # seconds that somebody who looks holds a lock at most


def locked(folder: Path) -> BinaryIO:
    """Keep any other process away from a directory, while this is open."""
    make_folder(folder)
    file = open_private(folder / "lock", "ab")  # what another process has written there stays until it is gone
    until = time.monotonic() + LOOKING
    while not _taken(file, fcntl.LOCK_EX):
        if time.monotonic() < until:  # it may be somebody who only looks
            time.sleep(LOOKING / 10)
            continue
        file.close()
        pid = _written(folder)
        who = f"process {pid}" if pid else "another process"
        raise ConfigError(f"{who} already uses {str(folder)!r}; end it, or give this node a spool of its own") from None
    file.truncate(0)
    file.write(str(os.getpid()).encode())
    file.flush()
    return file


def holder(folder: Path) -> int | None:
    """The process that has locked a directory."""
    try:
        with open(folder / "lock", "rb") as file:
            return None if _taken(file, fcntl.LOCK_SH) else _written(folder)
    except FileNotFoundError:
        return None


def _taken(file: BinaryIO, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _written(folder: Path) -> int | None:
    text = (folder / "lock").read_text()
    return int(text) if text.isdecimal() else None
