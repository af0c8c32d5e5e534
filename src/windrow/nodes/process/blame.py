"""Whose batch it is that a node cannot work on: found by trying without those of each child.

Batches are checked before they are taken. Should one pass all checks and still break its node, then perhaps not at
once, but when another child moves the watermark, or after a restart, while the journal is folded in. So what a node
does next is tried on copies of its log store, each without the tables of one child.

What is found guilty is **set aside**: its batches stay in the journal without their tables, so that numbers and
watermarks are what they were, and the batches themselves are files in the spool, where somebody can look at them.

    spool/aside/north.txt         why north is refused; it is refused as long as this file is there
    spool/aside/north-17.batch    a batch of it, the 17th of the journal
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from windrow.io.atomic import replacing
from windrow.io.private import make_folder
from windrow.nodes.protocol.journal import LogStore, MemoryStore, logged
from windrow.nodes.protocol.messages import to_bytes
from windrow.nodes.protocol.node import Node

New = Callable[[LogStore], Node]  # a node in its next life, as a log store has it
Step = Callable[[Node], object]  # what it was about to do


def breaks(store: LogStore, new: New, step: Step) -> bool:
    """Whether a node breaks when it begins with this log store, or with what it does then."""
    return _tried(store, {}, new, step) is None


def blamed(store: LogStore, new: New, step: Step) -> str | None:
    """The child without whose batches nothing breaks; None if there is none, or nothing breaks in a copy.

    The node's own batches must keep their numbers, since others have them: else nobody can be left out.
    """
    if not breaks(store, new, step):
        return None
    before = _tried(store, {}, new, lambda _: None)
    for child in dict.fromkeys(batch.node for batch in reversed(logged(store).values())):
        after = _tried(store, _without(store, child), new, step)
        if after is not None and (before is None or before == after):
            return child
    return None


def set_aside(store: LogStore, folder: Path, child: str, reason: str) -> None:
    """Take the tables of a child's batches out of the journal, and put the batches into files."""
    make_folder(folder)
    for name in _without(store, child):
        with replacing(folder / f"{child}-{name.rpartition(' ')[2]}.batch") as file:
            file.write(store.get(name) or b"")
    with replacing(folder / f"{child}.txt") as file:
        file.write(f"{reason}\n".encode())
    store.commit(_without(store, child), [])


def banned(folder: Path) -> dict[str, str]:
    """The children whose batches were set aside, and why."""
    return {path.stem: path.read_text().strip() for path in folder.glob("*.txt")}


def _without(store: LogStore, child: str) -> dict[str, bytes]:
    """The batches of a child that the journal has, without their tables."""
    return {name: to_bytes(replace(batch, tables={})) for name, batch in logged(store).items() if batch.node == child}


def _tried(store: LogStore, other: Mapping[str, bytes], new: New, step: Step) -> int | None:
    """How many batches a node has made when it begins with a copy of a log store; None if it breaks then or after."""
    try:
        node = new(MemoryStore({name: store.get(name) or b"" for name in store.names()} | dict(other)))
        made: int = node.status()["batches"]["made"]
        step(node)
    except (OSError, MemoryError):
        raise
    except Exception:  # whatever it is, it breaks the node
        return None
    return made
