"""Windows as a user would write them, one of each base class, for properties and the oracle's tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from windrow.ordered import Array, Cuts, DataDrivenWindow, OrderedEvents
from windrow.windows import ContextFreeWindow, Times


@dataclass(frozen=True)
class Uneven(ContextFreeWindow):
    """[s, s + length) for every multiple s of 7 and every one of 10: they overlap, or leave gaps, and never evenly."""

    kind: ClassVar[str] = "uneven"
    temporal = False
    length: int

    def windows(self, lo: int, hi: int) -> tuple[Times, Times]:
        first = lo - self.length + 1  # the earliest start whose window reaches lo
        starts = [np.arange(-(-first // by) * by, hi, by, dtype=np.int64) for by in (7, 10)]
        each = np.unique(np.concatenate(starts))
        return each, each + self.length


@dataclass(frozen=True)
class Filled(DataDrivenWindow):
    """As many events as it takes for the sum of x to reach `most`."""

    kind: ClassVar[str] = "filled"
    initial: ClassVar[Mapping[str, bool | int | float]] = {"so_far": 0}
    most: int

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("x",)

    def cuts(self, events: OrderedEvents, state: Mapping[str, Array]) -> Cuts:
        nowhere, so_far = np.zeros(len(events), np.bool_), state["so_far"].copy()
        ends = nowhere.copy()
        for at, (key, x) in enumerate(zip(events.key, events.values("x"), strict=True)):
            so_far[key] += x or 0
            if so_far[key] >= self.most:
                ends[at], so_far[key] = True, 0
        return Cuts(events.before(ends, ~state["open"]), ends, nowhere, {"so_far": so_far})
