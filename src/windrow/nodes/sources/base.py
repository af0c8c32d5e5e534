"""What a source of a local node is: events that follow on, and marks to go on from.

    resume(mark) ──▶ read ──▶ events, mark ──▶ … ──▶ confirm(mark)

A mark is plain data of the source's own, which the parent keeps with the events before it: a node that was restarted
gets the last one back, and no event is read twice or left out. `confirm` says that the parent has everything up
to a mark on disk, so that the source may let go of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import polars as pl

from windrow.core.arrays.dataframes import empty_frame
from windrow.core.windows.ordered import NODE
from windrow.io.text_times import time_format
from windrow.io.yaml_files import must

GATHER = 0.05  # seconds in which what comes is gathered, once something has come
POLL = 0.05  # seconds between two looks at files
FLAG = must("be true or false, not {!r}", lambda value: isinstance(value, bool))
TIME_FORMAT = time_format  # of times in text

Types = Mapping[str, pl.DataType]
Mark = Mapping[str, Any]


class SourceError(ValueError):
    """A source that is described wrongly, or cannot go on: what is wrong, and what to do."""


class Read(NamedTuple):
    """Events that follow on, the mark after them, and whether they are the last."""

    events: pl.DataFrame
    mark: dict[str, Any]
    last: bool


@dataclass
class Source:
    """Where the events of a local node come from. Its fields are its options, each with the check of what is given."""

    replayable = True  # whether `resume` can go back as far as one likes; if not, a node sends on at once what it read
    notes: list[str] = field(default_factory=list, init=False)  # what is to be logged, once each; the caller clears it

    def resume(self, mark: Mark) -> None:
        """Go on from a mark; {} is the beginning."""
        raise NotImplementedError

    def read(self, needed: Types, wait: float) -> Read | None:
        """What is new, in the columns that are needed; None if nothing came within so many seconds."""
        raise NotImplementedError

    def confirm(self, mark: Mark) -> None:
        """The parent has everything up to this mark on disk."""

    def close(self) -> None:
        """Let go of everything."""


def waited_for(look: Callable[[], Read | None], wait: float) -> Read | None:
    """Look for new events until there are some, for so many seconds; the longer a look takes, the fewer there are."""
    until = time.monotonic() + wait
    while True:
        began = time.monotonic()
        read = look()
        now = time.monotonic()
        if read is not None or now >= until:
            return read
        time.sleep(min(max(POLL, 10 * (now - began)), until - now))


def wanted(needed: Types) -> dict[str, pl.DataType]:
    """The columns that a source has to give: the node itself is not among them."""
    return {name: dtype for name, dtype in needed.items() if name != NODE}


def nothing(needed: Types) -> pl.DataFrame:
    return empty_frame(wanted(needed))


def place_of(mark: Mark, fields: Mapping[str, type], what: str) -> SimpleNamespace:
    """The place that a mark of this source means; refuses one that another kind of source has made."""
    mark = mark or {name: kind() for name, kind in fields.items()}
    if set(mark) != set(fields) or any(type(mark[name]) is not kind for name, kind in fields.items()):
        raise SourceError(
            f"the parent knows this node by another source than {what}: its mark is {dict(mark)!r}; "
            "give the node a new name, or the source that it had"
        )
    return SimpleNamespace(**mark)
