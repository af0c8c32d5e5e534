"""Pieces of the ordered events of nodes, as the root has them: a line for each node, and where each is in the order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from windrow.core.arrays.range_queries import Ints
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.core.windows.ordered import Mask
from windrow.nodes.counting.tables import Key


@dataclass(frozen=True)
class Piece:
    """A run of a node's events of one key."""

    lo: int
    hi: int
    first: int
    last: int
    kind: str
    row: int = 0  # of `table`, which has the states
    table: pl.DataFrame | None = None
    events: pl.DataFrame | None = None

    def after(self, rank: int, time: str) -> Piece:
        """What of its events comes from a rank on."""
        assert self.events is not None
        rest = self.events.slice(rank - self.lo)
        return replace(self, lo=rank, first=int(rest[time][0]), events=rest)


@dataclass
class Line:
    """A node's pieces of a key after the last boundary."""

    cut: int = 0  # the rank of that boundary
    covered: int = 0  # the rank after the last piece
    next: int | None = None  # the time of the first event that the node holds back
    pieces: list[Piece] = field(default_factory=list)
    rewind: int = 0  # it has to cut again what it has cut since; until it has, nothing is settled
    gone: int = 0  # what is not here of the events before this rank was left out, and stays so if it comes again

    def since(self, lo: int, hi: int) -> int:
        """The first rank of a piece that counts, if it is in there: what is before it is settled, or was left out."""
        return max(self.cut, self.gone if lo < self.gone < hi else 0)

    @property
    def size(self) -> int:
        return sum(piece.hi - piece.lo for piece in self.pieces)


@dataclass
class Stretch:
    """What all nodes have of a key between two boundaries: events, slices, and which of their bags are at nodes."""

    key: Key
    position: int
    first: int = INT64_MAX
    last: int = INT64_MIN
    raw: list[tuple[str, pl.DataFrame]] = field(default_factory=list)
    slices: list[tuple[pl.DataFrame, int]] = field(default_factory=list)  # tables, and the row in them
    bags: list[tuple[str, int, int]] = field(default_factory=list)  # the ranks of slices that follow each other

    def add(self, node: str, piece: Piece, cut: int, time: str) -> None:
        """What of a piece comes before a rank."""
        first, last = piece.first, piece.last
        if piece.events is not None:
            inside = piece.events.head(cut - piece.lo)
            self.raw.append((node, inside))
            last = int(inside[time][-1])
        else:
            assert piece.table is not None
            self.slices.append((piece.table, piece.row))
            follows = bool(self.bags) and (self.bags[-1][0], self.bags[-1][2]) == (node, piece.lo)
            self.bags.append((node, self.bags.pop()[1] if follows else piece.lo, piece.hi))
        self.first, self.last = min(self.first, first), max(self.last, last)


@dataclass(frozen=True)
class Units:
    """Pieces and events of all nodes: where each begins and ends in the order, as numbers that can be compared."""

    names: list[str]
    node: Ints
    lo: Ints
    hi: Ints
    cut: Ints
    kind: Any
    first_time: Ints
    last_time: Ints
    first: Ints
    last: Ints

    @staticmethod
    def of(lines: Mapping[str, Line], time: str, most: int) -> Units:
        """Those that can hold one of the first `most` events of all, so that of each node the first as many."""
        names = sorted(lines)
        parts: list[tuple[Any, ...]] = []
        for place, name in enumerate(names):
            line, left = lines[name], most
            for piece in line.pieces:
                if left <= 0:
                    break
                if piece.events is not None:
                    times = piece.events[time].head(left).to_numpy()
                    lo = np.arange(piece.lo, piece.lo + len(times))
                    parts.append((place, lo, lo + 1, line.cut, "events", times, times))
                else:
                    one = (np.array([number]) for number in (piece.lo, piece.hi))
                    ends = (np.array([piece.first]), np.array([piece.last]))
                    parts.append((place, *one, line.since(piece.lo, piece.hi), piece.kind, *ends))
                left -= piece.hi - piece.lo
        sizes = [len(part[1]) for part in parts]
        node, cut, kind = (np.repeat(np.array([part[at] for part in parts]), sizes) for at in (0, 3, 4))
        lo, hi, first, last = (np.concatenate([part[at] for part in parts]) for at in (1, 2, 5, 6))
        keys = np.concatenate((first, last)), np.append(node, node), np.append(lo, hi - 1)
        order = np.lexsort(keys[::-1])
        other = np.zeros(len(order), np.bool_)
        for key in keys:
            other[1:] |= key[order][1:] != key[order][:-1]
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.cumsum(other)
        return Units(names, node, lo, hi, cut, kind, first, last, ranks[: len(lo)], ranks[len(lo) :])

    @property
    def keys(self) -> tuple[Ints, Ints]:
        return self.first, self.last

    @property
    def count(self) -> Ints:
        return self.hi - self.lo

    @property
    def is_slice(self) -> Mask:
        """Of more than one event, so that it is not known what is in them."""
        return np.asarray((self.kind != "events") & (self.hi - self.lo > 1))

    def at(self, rank: int) -> tuple[int, str]:
        """The time and the node of the event that is last in a unit."""
        place = int(np.flatnonzero(self.last == rank)[0])
        return int(self.last_time[place]), self.names[self.node[place]]
