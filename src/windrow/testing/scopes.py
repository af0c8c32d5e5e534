"""Windows of several nodes that are one: each scope read straight from its definition.

Every node has windows of its own, found in its own events alone (`definitions`). What is final is what the events that
the watermark has passed say; everything is formed anew from them. Only which windows of nodes were emitted is
remembered: a node that comes later cannot change what was emitted, and what it brings is emitted by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from windrow.core.windows.ordered import Counting, Scoped


class Part(NamedTuple):
    """A window of one node."""

    key: tuple[Any, ...]
    node: Any
    number: int  # among those of its node and key, from 0
    events: tuple[Any, ...]
    is_whole: bool

    @property
    def start(self) -> int:
        return int(self.events[0].time)

    @property
    def end(self) -> int:
        return int(self.events[-1].time)


def joined(scope: str, whole: Sequence[Part]) -> list[list[Part]]:
    """Which windows of nodes are one."""
    found: list[list[Part]] = []
    for part in whole:
        mine = [several for several in found if any(_are_one(scope, part, other) for other in several)]
        found = [several for several in found if several not in mine]
        found.append([part, *(other for several in mine for other in several)])
    return found


def _are_one(scope: str, one: Part, other: Part) -> bool:
    if one.key != other.key:
        return False
    if scope == "bounds":
        return (one.start, one.end) == (other.start, other.end)
    if scope == "position":
        return one.number == other.number
    return one.start <= other.end and other.start <= one.end


def is_final(scope: str, several: Sequence[Part], every: Sequence[Part], nodes: set[Any], watermark: float) -> bool:
    """Whether no other window can be one with these: `every` window that there is, the `nodes` that were seen."""
    if watermark == math.inf:
        return True
    key, number = several[0].key, several[0].number
    mine = [part for part in every if part.key == key]
    if scope == "position":
        return nodes == {part.node for part in mine if part.is_whole and part.number == number}
    start, end = bounds(several)
    opened = [part for part in mine if not part.is_whole]
    if scope == "bounds":
        return end < watermark and not any((part.start, part.end) == (start, end) for part in opened)
    return end < watermark and not any(part.start <= end for part in opened)


def bounds(several: Sequence[Part]) -> tuple[int, int]:
    return min(part.start for part in several), max(part.end for part in several)


def position(window: Scoped, several: Sequence[Part]) -> int | None:
    if window.scope != "position":
        return None
    return several[0].number * (window.step if isinstance(window, Counting) else 1)
