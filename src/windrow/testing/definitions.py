"""Which windows there are: each kind read straight from its definition.

Fixed windows are found from a time (`windows_at`), sessions from the times of a key's events (`sessions`), and the
windows that need order from all events of a key in their order. Each of those is a **range** of
consecutive events, and says which event completes it:

    counting(3)           . . .│. . .│. .     the last one of its own
    punctuated(end=p)     . . p│. p│. .       the last one of its own
    punctuated(start=p)    . .│p .│p .        the next start
    frames(when=p)         . .│p p│. .│p      the first that does not satisfy p

Nothing here knows of watermarks, lateness or batches. Windows of users are what they say they are: fixed ones for the
windows of one instant, data-driven ones for the cuts of all events at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from windrow.core.expressions.parse import parse
from windrow.core.windows.fixed import ContextFreeWindow, Cumulating, Sliding, Tumbling, Window
from windrow.core.windows.ordered import (
    Counting,
    DataDrivenWindow,
    Frames,
    Latest,
    OrderedEvents,
    OrderedWindow,
    Punctuated,
)
from windrow.testing.expressions import evaluate

Row = Mapping[str, Any]


# --- by time --------------------------------------------------------------------------------------------------------


def windows_at(window: Window, t: int) -> Iterator[tuple[int, int]]:
    """The bounds of all fixed windows that hold the time t."""
    if isinstance(window, Tumbling | Sliding):
        slide = window.slide if isinstance(window, Sliding) else window.length
        start = window.offset + (t - window.offset) // slide * slide  # the last one to start by t
        while start + window.length > t:
            yield start, start + window.length
            start -= slide
    elif isinstance(window, Cumulating):
        start = window.offset + (t - window.offset) // window.length * window.length
        for end in range(start + window.step, start + window.length + 1, window.step):
            if t < end:
                yield start, end
    elif isinstance(window, ContextFreeWindow):
        starts, ends = window.windows(t, t + 1)
        yield from ((int(start), int(end)) for start, end in zip(starts, ends, strict=True))
    else:
        raise TypeError(f"{window} has no fixed bounds")


def sessions(times: Sequence[int], gap: int) -> list[range]:
    """Maximal runs of ordered times that differ by at most the gap from one to the next, as places."""
    cuts = [at for at in range(1, len(times)) if times[at] - times[at - 1] > gap]
    return [range(a, b) for a, b in zip([0, *cuts], [*cuts, len(times)], strict=True) if a < b]


def boundary(window: Latest, t: int) -> int:
    """The first multiple of `every` after the time t."""
    return (t // window.every + 1) * window.every


def latest(times: Sequence[int], window: Latest) -> Iterator[tuple[int, range]]:
    """For each boundary before which something came since the one before it: the places of the last n events."""
    for end in sorted({boundary(window, t) for t in times}):
        before = sum(t < end for t in times)
        yield end, range(max(0, before - window.n), before)


# --- by the order of events -----------------------------------------------------------------------------------------


class WindowRange(NamedTuple):
    """A window of consecutive events."""

    places: range
    completed_by: int | None  # the place of the event that completes it; None: open


def window_ranges(window: OrderedWindow, rows: Sequence[Row]) -> Iterator[WindowRange]:
    """The windows over all events of a key in their order, the open one too."""
    if isinstance(window, Counting):
        return _counting(len(rows), window.n, window.step)
    if isinstance(window, Frames):
        inside = _satisfying(window.when, rows)
        return _cut(inside, breaks=[not holds for holds in inside])
    if isinstance(window, Punctuated):
        starts = _satisfying(window.start, rows) if window.start else [True] * len(rows)
        if window.end is None:
            return _cut(starts, breaks=starts)
        return _cut(starts, ends=_satisfying(window.end, rows))
    if isinstance(window, DataDrivenWindow):
        return _own(window, rows)
    raise TypeError(f"{window} has no ranges of events")


def _satisfying(predicate: str, rows: Sequence[Row]) -> list[bool]:
    """Which events satisfy a predicate; null is false."""
    expression = parse(predicate)
    return [evaluate(expression, row) is True for row in rows]


def _counting(events: int, n: int, step: int) -> Iterator[WindowRange]:
    for first in range(0, events, step):
        end = first + n
        yield WindowRange(range(first, min(end, events)), end - 1 if end <= events else None)


def _cut(
    starts: Sequence[bool], *, breaks: Sequence[bool] | None = None, ends: Sequence[bool] | None = None
) -> Iterator[WindowRange]:
    """A window goes from a start to the last event before a break, or to an end; a start within it is none."""
    never = [False] * len(starts)
    first = None
    for at, (is_start, is_break, is_end) in enumerate(zip(starts, breaks or never, ends or never, strict=True)):
        if first is not None and is_break:
            yield WindowRange(range(first, at), at)
            first = None
        if first is None and is_start:
            first = at
        if first is not None and is_end:
            yield WindowRange(range(first, at + 1), at)
            first = None
    if first is not None:
        yield WindowRange(range(first, len(starts)), None)


def _own(window: DataDrivenWindow, rows: Sequence[Row]) -> Iterator[WindowRange]:
    """Where a user's window cuts all events of a key, taken as one batch after the initial state."""
    events = OrderedEvents(np.zeros(len(rows), np.int64), {text: _column(text, rows) for text in window.inputs})
    carried = {name: np.array([value]) for name, value in {**window.initial, "open": False}.items()}
    cuts = window.cuts(events, carried)
    return _cut(cuts.starts.tolist(), breaks=(cuts.breaks | cuts.starts).tolist(), ends=cuts.ends.tolist())


def _column(text: str, rows: Sequence[Row]) -> pl.Series:
    expression = parse(text)
    values = [evaluate(expression, row) for row in rows]
    truths = all(value is None or isinstance(value, bool) for value in values)
    return pl.Series(text, values, dtype=pl.Boolean() if truths else None)
