"""Driving: data-driven windows meet a batch of ordered events.

A window says for each event whether one begins with it, ends with it, or has ended before it. From those marks alone,
few beside the events, follow the cuts and the number of the window that any event is in: how many have begun up to it,
if one is open there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from windrow.core.arrays.range_queries import Ints
from windrow.core.plan.groups import Timeline
from windrow.core.slices.kernel import window_columns
from windrow.core.windows.fixed import INT64_MIN
from windrow.core.windows.ordered import CARRIED, Array, Cuts, DataDrivenWindow, Mask, OrderedEvents


@dataclass(frozen=True)
class Line:
    """A data-driven window since a time, and its name in the slice table and the ledger."""

    name: str
    window: DataDrivenWindow
    since: int

    @staticmethod
    def of(timeline: Timeline) -> Line:
        assert isinstance(timeline.window, DataDrivenWindow)
        return Line(timeline.line, timeline.window, timeline.since)

    @property
    def carried(self) -> dict[str, Any]:
        """What the ledger has of it: the window of the last event, how many have begun, whether one is open."""
        return dict(zip(CARRIED, (-1, 0, False), strict=True)) | dict(self.window.initial)


@dataclass(frozen=True)
class Driven:
    """The marks of a window among events that lie key by key, as places in order."""

    line: Line
    first: Ints  # where each key's events begin
    known: Mapping[str, Array]  # what was carried for each key
    starts: Ints
    ends: Ints
    breaks: Ints
    state: Mapping[str, Array]  # what is carried on after all events

    @staticmethod
    def of(line: Line, events: pl.DataFrame, time: Ints, first: Ints, key: Ints, carry: Mapping[str, Array]) -> Driven:
        known = {name: carry[f"{line.name}.{name}"] for name in line.carried}
        state = {name: known[name].copy() for name in line.window.initial}
        seen = None
        if line.since > INT64_MIN and (time < line.since).any():
            seen = np.flatnonzero(time >= line.since)
            key = key[seen]
        nothing = np.empty(0, np.int64)
        if not len(key):
            return Driven(line, first, known, nothing, nothing, nothing, state)
        begins = np.append(True, key[1:] != key[:-1])
        present = key[begins]
        if len(present) <= int(key[-1]):  # some keys have no event here
            key = np.cumsum(begins) - 1
        columns = {text: events[column] for text, column in window_columns(line.window).items()}
        if seen is not None:
            columns = {text: column.gather(seen) for text, column in columns.items()}
        batch = OrderedEvents(key, columns)
        carried = {name: known[name][present] for name in ("open", *line.window.initial)}
        cuts = checked(line.window, line.window.cuts(batch, carried), batch, carried)
        for name in state:
            state[name][present] = cuts.state[name]
        marks = [np.flatnonzero(one) for one in (cuts.starts, cuts.ends, cuts.breaks)]
        starts, ends, breaks = marks if seen is None else (seen[one] for one in marks)
        return Driven(line, first, known, starts, ends, breaks, state)

    def cut(self, cuts: Mask) -> None:
        """Mark the events between which and the one before lies a bound."""
        after = self.ends + 1
        for places in (self.starts, self.breaks, after[after < len(cuts)]):
            cuts[places] = True

    def number(self, at: Ints, key: Ints) -> Ints:
        """The number of the window that the events at these places are in, -1 for none."""
        started, is_open = self._at(at, key)
        return np.where(is_open == 1, started - 1, -1)

    def mark(self, at: Ints, key: Ints) -> Ints:
        """For the slice table: twice the number, and one more where the window begins; -1 for none.

        So a window can be told from the end of one whose beginning was forgotten.
        """
        number = self.number(at, key)
        begins = np.searchsorted(self.starts, at, "right") > np.searchsorted(self.starts, at)
        return np.where(number < 0, -1, 2 * number + begins)

    def after(self, counts: Ints) -> dict[str, Array]:
        """What the ledger has of it after so many events of each key."""
        some = np.flatnonzero(counts)
        last = self.first[some] + counts[some] - 1
        started, is_open = self._at(last, some)
        found = {name: self.known[name].copy() for name in CARRIED}
        found["number"][some], found["started"][some] = np.where(is_open == 1, started - 1, -1), started
        is_open -= np.searchsorted(self.ends, last, "right") - np.searchsorted(self.ends, last, "left")
        self._check(is_open)
        found["open"][some] = is_open == 1
        return {f"{self.line.name}.{name}": values for name, values in (found | dict(self.state)).items()}

    def _at(self, at: Ints, key: Ints) -> tuple[Ints, Ints]:
        """How many windows have begun up to these events, and how many are open there, 0 or 1."""
        first = self.first[key]
        begun = np.searchsorted(self.starts, at, "right") - np.searchsorted(self.starts, first)
        over = np.searchsorted(self.breaks, at, "right") - np.searchsorted(self.breaks, first)
        over += np.searchsorted(self.ends, at) - np.searchsorted(self.ends, first)
        is_open = self.known["open"][key] + begun - over
        self._check(is_open)
        return self.known["started"][key] + begun, is_open

    def _check(self, is_open: Ints) -> None:
        if ((is_open < 0) | (is_open > 1)).any():
            what = "ends where none is open" if (is_open < 0).any() else "begins where one is open"
            raise ValueError(f"{self.line.window}: cuts: a window {what}")


def checked(window: DataDrivenWindow, cuts: Cuts, events: OrderedEvents, carried: Mapping[str, Array]) -> Cuts:
    """The cuts that a window found, if they are what they should be."""
    if not isinstance(cuts, Cuts):
        raise TypeError(f"{window}: cuts must return Cuts(starts, ends, breaks, state), not {type(cuts).__name__}")
    for name in ("starts", "ends", "breaks"):
        mark = getattr(cuts, name)
        if not isinstance(mark, np.ndarray) or mark.dtype != np.bool_ or mark.shape != (len(events),):
            given = f"{mark.dtype} of shape {mark.shape}" if isinstance(mark, np.ndarray) else type(mark).__name__
            raise TypeError(
                f"{window}: cuts: {name} must be a NumPy array of true or false for each of {len(events)} events, "
                f"not {given}"
            )
    for name in window.initial:
        if name not in cuts.state or np.shape(cuts.state[name]) != (len(events.first),):
            raise TypeError(
                f"{window}: cuts: state must have {name!r} with a value for each of {len(events.first)} keys"
            )
        if not np.can_cast(np.asarray(cuts.state[name]).dtype, carried[name].dtype, "same_kind"):
            raise TypeError(
                f"{window}: cuts: state: {name!r} is {np.asarray(cuts.state[name]).dtype}, and {carried[name].dtype} "
                f"in initial"
            )
    return cuts
