"""Custom bounds: what data-driven windows find in a batch of ordered events.

A window marks the events that it begins with, ends with, or has ended before. From those marks alone, few beside the
events, follow the cuts and the number of the window that any event is in: how many have begun up to it, if one is open
there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from windrow.core.arrays.range_queries import Array, Ints, Mask, run_begins
from windrow.core.slices.kernel import window_columns
from windrow.core.windows.fixed import INT64_MIN
from windrow.core.windows.ordered import CARRIED, Cuts, DataDrivenWindow, OrderedEvents


@dataclass(frozen=True)
class CustomWindow:
    """A data-driven window since a time, and its name in the slice table and the carry."""

    name: str
    window: DataDrivenWindow
    since: int

    @property
    def carried(self) -> dict[str, Any]:
        """A key's carry before its first event: the window of the last one, how many have begun, whether one is open,
        and what the window itself carries."""
        return dict(zip(CARRIED, (-1, 0, False), strict=True)) | dict(self.window.initial)

    @property
    def initial(self) -> dict[str, Any]:
        """The same, by column."""
        return {f"{self.name}.{name}": value for name, value in self.carried.items()}


@dataclass(frozen=True)
class CustomBounds:
    """The marks of a window among events that lie key by key, as indices of events, ascending."""

    window: CustomWindow
    first: Ints  # where each key's events begin
    carry: Mapping[str, Array]  # of the window, for each key, before the events
    starts: Ints
    ends: Ints
    breaks: Ints
    state: Mapping[str, Array]  # what the window itself carries on after all events

    @staticmethod
    def of(
        custom: CustomWindow, part: tuple[pl.DataFrame, Ints, Ints], first: Ints, carry: Mapping[str, Array]
    ) -> CustomBounds:
        """Ask a window about a part of a batch: events, their times and keys; and where each key's events begin."""
        events, time, key = part
        window, nothing = custom.window, np.empty(0, np.int64)
        carry = {name: carry[f"{custom.name}.{name}"] for name in custom.carried}
        state = {name: carry[name].copy() for name in window.initial}
        seen = None  # where a query came later, the events that it sees
        if custom.since > INT64_MIN and (time < custom.since).any():
            seen = np.flatnonzero(time >= custom.since)
            key = key[seen]
        if not len(key):
            return CustomBounds(custom, first, carry, nothing, nothing, nothing, state)
        begins = run_begins(key)
        present = key[begins]
        if len(present) <= int(key[-1]):  # some keys have no event here, and the window gets numbers without gaps
            key = np.cumsum(begins) - 1
        columns = {text: events[column] for text, column in window_columns(window).items()}
        if seen is not None:
            columns = {text: column.gather(seen) for text, column in columns.items()}
        ordered = OrderedEvents(key, columns)
        before = {name: carry[name][present] for name in ("open", *window.initial)}
        cuts = checked(window, window.cuts(ordered, before), ordered, before)
        for name in state:
            state[name][present] = cuts.state[name]
        marks = [np.flatnonzero(mask) for mask in (cuts.starts, cuts.ends, cuts.breaks)]
        starts, ends, breaks = marks if seen is None else (seen[mark] for mark in marks)
        return CustomBounds(custom, first, carry, starts, ends, breaks, state)

    def cut(self, cuts: Mask) -> None:
        """Mark in `cuts` the events that a bound separates from the event before them."""
        after = self.ends + 1
        for at in (self.starts, self.breaks, after[after < len(cuts)]):
            cuts[at] = True

    def number(self, at: Ints, key: Ints) -> Ints:
        """The number of the window that the events at these indices are in, -1 for none."""
        started, is_open = self._at(at, key)
        return np.where(is_open == 1, started - 1, -1)

    def mark(self, at: Ints, key: Ints) -> Ints:
        """For the slice table: twice the number, and one more where the window begins; -1 for none.

        The bit tells a window whose slices are all here from the end of one whose beginning was dropped.
        """
        number = self.number(at, key)
        begins = np.searchsorted(self.starts, at, "right") > np.searchsorted(self.starts, at)
        return np.where(number < 0, -1, 2 * number + begins)

    def after(self, counts: Ints) -> dict[str, Array]:
        """The carry of the window after the first so many events of each key."""
        some = np.flatnonzero(counts)
        last = self.first[some] + counts[some] - 1
        started, is_open = self._at(last, some)
        carry = {name: self.carry[name].copy() for name in CARRIED}
        carry["number"][some], carry["started"][some] = np.where(is_open == 1, started - 1, -1), started
        # the window of the last event holds it, and is closed if it ends with it
        is_open -= np.searchsorted(self.ends, last, "right") - np.searchsorted(self.ends, last, "left")
        self._check(is_open)
        carry["open"][some] = is_open == 1
        return {f"{self.window.name}.{name}": values for name, values in (carry | dict(self.state)).items()}

    def _at(self, at: Ints, key: Ints) -> tuple[Ints, Ints]:
        """How many windows have begun up to these events, and how many hold them, 0 or 1.

        A window that begins or breaks with an event does so before it, and one that ends with it does so after it.
        """
        first = self.first[key]
        begun = np.searchsorted(self.starts, at, "right") - np.searchsorted(self.starts, first)
        over = np.searchsorted(self.breaks, at, "right") - np.searchsorted(self.breaks, first)
        over += np.searchsorted(self.ends, at) - np.searchsorted(self.ends, first)
        is_open = self.carry["open"][key] + begun - over
        self._check(is_open)
        return self.carry["started"][key] + begun, is_open

    def _check(self, is_open: Ints) -> None:
        if ((is_open < 0) | (is_open > 1)).any():
            what = "ends where none is open" if (is_open < 0).any() else "begins where one is open"
            raise ValueError(f"{self.window.window}: cuts: a window {what}")


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
