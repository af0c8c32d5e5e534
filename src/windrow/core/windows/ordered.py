"""Windows that need the order of events: bounds at positions, and bounds that the events themselves decide.

    counting(4)             │. . . .│. . . .│. .         every four events
    punctuated(end=p)       │. . p│. p│. . . p│.         an event that satisfies p is the last of its window
    punctuated(start=p)      . .│p .│p . . .│p .          … or the first
    frames(when=p)           . .│p p│. .│p p p│.          runs of events that satisfy p
    latest(3, every=10)      the last three events, at each multiple of 10 before which something came

All are per key, or over the whole stream where a query has no key. They are answered when the watermark has made the
order of events final. A window of your own whose bounds the events decide is a subclass of `DataDrivenWindow`.

Over events of several nodes the first four have a **scope**: the order over all nodes, each node's own windows, or one
of three ways to make one window of those of all nodes (see `core/ordered/node_windows.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from windrow.core.arrays.range_queries import Array, Mask, run_begins
from windrow.core.expressions.border import border
from windrow.core.expressions.parse import parse
from windrow.core.windows.fixed import FURTHEST, Duration, Window, duration_repr, duration_text, lengths_of

NODE = "node"  # the column that says which node an event entered at
Scope = Literal["global", "node", "bounds", "position", "overlap"]
JOINED = ("bounds", "position", "overlap")  # the scopes that make one window of those of several nodes

CARRIED = ("number", "started", "open")  # of each data-driven window, beside its own state


@dataclass(frozen=True)
class OrderedWindow(Window):
    """A window over the ordered events of a key."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The SQL expressions over events that decide its bounds."""
        return ()

    @property
    def has_position(self) -> bool:
        """Whether its results have a position."""
        return False


@dataclass(frozen=True)
class Scoped(OrderedWindow):
    """A window over the events of all nodes in one order, of each node, or joined from those of each node."""

    scope: Scope = field(default="global", kw_only=True)

    @property
    def has_position(self) -> bool:
        return self.scope == "position"

    def to_dict(self) -> dict[str, Any]:
        described = super().to_dict()
        if self.scope == "global":
            del described["scope"]
        return described

    def _shown(self, *arguments: str) -> str:
        return ", ".join(arguments if self.scope == "global" else (*arguments, f"scope={self.scope!r}"))


def scope_of(window: Window) -> Scope:
    """Over which events a window goes where there are several nodes."""
    return window.scope if isinstance(window, Scoped) else "global"


@dataclass(frozen=True, repr=False)
class Counting(Scoped):
    n: int
    step: int

    @property
    def refusal(self) -> str | None:
        if self.scope in ("bounds", "overlap") and self.step < self.n:
            return f"{self}: windows of one node overlap, and joined by {self.scope} an event would count twice"
        return None

    @property
    def has_position(self) -> bool:
        return self.scope not in ("bounds", "overlap")

    def __str__(self) -> str:
        return f"counting({self._shown(*map(str, (self.n,) if self.step == self.n else (self.n, self.step)))})"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class Latest(OrderedWindow):
    n: int
    every: int
    temporal: bool

    @property
    def reach(self) -> int:
        return 2 * self.every

    def __str__(self) -> str:
        return f"latest({self.n}, every={duration_text(self.every, self.temporal)})"

    def __repr__(self) -> str:
        return f"latest({self.n}, every={duration_repr(self.every, self.temporal)})"


class OrderedEvents:
    """A batch of final events, key by key, those of a key in their order.

    key:    for each event the number of its key, from 0, never decreasing
    first:  where each key's events begin
    last:   where each key's last event is
    inputs: the values of the window's expressions, which `values` and `holds` give

    What is carried has a value for each key: `state["total"][events.key]` spreads it over the events, and
    `values[events.last]` is what to carry on of a value that each event has.
    """

    def __init__(self, key: npt.NDArray[np.int64], inputs: Mapping[str, pl.Series]) -> None:
        self.key, self._inputs = key, inputs
        self.first = np.flatnonzero(run_begins(key))
        self.last = np.append(self.first[1:], len(key))[: len(self.first)] - 1

    def __len__(self) -> int:
        return len(self.key)

    def values(self, expression: str) -> pl.Series:
        """The values of one of the window's `inputs`."""
        if expression not in self._inputs:
            raise KeyError(f"{expression!r} is none of the window's inputs: {', '.join(map(repr, self._inputs))}")
        return self._inputs[expression]

    def holds(self, predicate: str) -> Mask:
        """Which events satisfy a predicate among the window's `inputs`; null is false."""
        return self.values(predicate).fill_null(False).to_numpy()

    def before(self, values: Array, carried: Array) -> Array:
        """For each event the value of the event before it of the same key, or what was carried for the key."""
        shifted = np.empty_like(values)
        shifted[1:] = values[:-1]
        shifted[self.first] = carried
        return shifted

    def total(self, values: Array, carried: Array | int = 0) -> Array:
        """Running totals, event by event, within each key, from what was carried on; exact for whole numbers."""
        sums = np.cumsum(values)
        sums += (carried - (sums - values)[self.first])[self.key]
        return sums


class Cuts(NamedTuple):
    """Where windows begin and end in a batch, a mark for each event, and what to carry on for each key.

    starts:  a window begins with this event
    ends:    the open window ends with this event, which is its last
    breaks:  the open window has ended before this event
    state:   what to carry on, an array with a value per key for each name of the window's `initial`
    """

    starts: Mask
    ends: Mask
    breaks: Mask
    state: Mapping[str, Array]


@dataclass(frozen=True)
class DataDrivenWindow(OrderedWindow):
    """A window whose bounds the events decide, one after the other per key: the base class of your own.

    Give `inputs`, the SQL expressions that it reads, `initial`, what a key carries before its first event,
    and `cuts`. Make it a frozen dataclass whose fields are plain data; it is known by its `kind` where queries run.
    See `examples/running_total.py`.
    """

    initial: ClassVar[Mapping[str, bool | int | float]] = {}
    closes_at_end: ClassVar[bool] = False  # the end of the stream completes an open window, without partial=True

    @property
    def refusal(self) -> str | None:
        """Why no query can have it, or None."""
        name = type(self).__name__
        if type(self).cuts is DataDrivenWindow.cuts:
            return f"{name} must define cuts(events, state)"
        given: object = self.inputs
        if not isinstance(given, tuple | list) or not all(isinstance(text, str) for text in given):
            return f"the inputs of {name} must be a tuple of SQL expressions, not {given!r}"
        for key, value in self.initial.items():
            if key in CARRIED:
                return f"{name}: initial: {key!r} is what windrow itself carries; choose another name"
            if type(value) not in (bool, int, float):
                return f"{name}: initial: {key!r} must be true or false, an integer or a float, not {value!r}"
        return None

    def cuts(self, events: OrderedEvents, state: Mapping[str, Array]) -> Cuts:
        """Where windows begin and end among these events.

        `state` has for each name of `initial` an array with a value per key of the batch, as the last batch with events
        of that key left it, and `open`, whether the key has an open window. The state of the cuts has the names of
        `initial`; whether a window is open is known from the cuts. How the stream is parted into batches must not
        matter.
        """
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class Punctuated(DataDrivenWindow, Scoped):
    start: str | None
    end: str | None

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        return tuple(text for text in (self.start, self.end) if text is not None)

    def cuts(self, events: OrderedEvents, state: Mapping[str, Array]) -> Cuts:
        nowhere = np.zeros(len(events), np.bool_)
        ends = events.holds(self.end) if self.end is not None else nowhere
        if self.start is None:
            return Cuts(events.before(ends, ~state["open"]), ends, nowhere, {})
        begins = events.holds(self.start)
        is_open = events.before(_since(events, begins & ~ends, ends, state["open"]), state["open"])
        if self.end is None:
            return Cuts(begins, nowhere, begins & is_open, {})
        starts = begins & ~is_open
        return Cuts(starts, ends & (is_open | starts), nowhere, {})

    def __str__(self) -> str:
        shown = [f"{name}={text!r}" for name, text in (("start", self.start), ("end", self.end)) if text is not None]
        return f"punctuated({self._shown(*shown)})"

    __repr__ = __str__


def _since(events: OrderedEvents, on: Mask, off: Mask, carried: Mask) -> Mask:
    """After each event: was the last event that says anything one that turns on?"""
    speaks, value = on | off, on.copy()
    quiet = ~speaks[events.first]
    value[events.first[quiet]] = carried[quiet]  # a key's first event says what was carried
    speaks[events.first] = True
    return value[np.maximum.accumulate(np.where(speaks, np.arange(len(on)), 0))]


@dataclass(frozen=True, repr=False)
class Frames(DataDrivenWindow, Scoped):
    closes_at_end: ClassVar[bool] = True
    when: str

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        return (self.when,)

    def cuts(self, events: OrderedEvents, state: Mapping[str, Array]) -> Cuts:
        inside = events.holds(self.when)
        before = events.before(inside, state["open"])
        return Cuts(inside & ~before, np.zeros(len(inside), np.bool_), before & ~inside, {})

    def __str__(self) -> str:
        return f"frames({self._shown(f'when={self.when!r}')})"

    __repr__ = __str__


def _whole(kind: str, name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 < value <= FURTHEST:
        raise ValueError(f"{kind}: {name} must be a whole number from 1 to 2**62, not {value!r}")
    return int(value)


def _scope(kind: str, scope: Scope) -> Scope:
    if scope not in get_args(Scope):
        raise ValueError(f"{kind}: scope is one of {', '.join(map(repr, get_args(Scope)))}, not {scope!r}")
    return scope


@border
def counting(n: int, step: int | None = None, scope: Scope = "global") -> Counting:
    """Windows of n events each, at the positions [k·step, k·step + n) of a key's events in their order.

    n:     how many events a window has
    step:  a new window every so many events; by default n, so that they follow each other
    scope: over several nodes: "global", the order over all; "node", each node's own windows; or these joined where
           they are at the same "position", have equal "bounds" or "overlap"; events then have a column `node`

    Without keys positions count all events. A window is emitted once its last event is final.
    """
    count = _whole("counting", "n", n)
    every = count if step is None else _whole("counting", "step", step)
    return Counting(count, every, scope=_scope("counting", scope))


@border
def punctuated(start: str | None = None, end: str | None = None, scope: Scope = "global") -> Punctuated:
    """Windows between events of a key that satisfy predicates; an event with null for a predicate does not.

    start:  SQL predicate of an event that is the first of its window; alone, the next start ends the window
    end:    SQL predicate of an event that is the last of its window; alone, the next event begins another
    scope:  over several nodes, as of `counting`

    With both, a window goes from a start to the next end, and events outside belong to none. One of them is needed.
    """
    if start is None and end is None:
        raise ValueError("punctuated: give start, end or both, as SQL predicates")
    first, last = _predicate("punctuated: start", start), _predicate("punctuated: end", end)
    return Punctuated(first, last, scope=_scope("punctuated", scope))


@border
def frames(when: str, scope: Scope = "global") -> Frames:
    """Maximal runs of consecutive events of a key that satisfy a predicate; the first that does not closes the run.

    when:   SQL predicate
    scope:  over several nodes, as of `counting`
    """
    if when is None:
        raise ValueError("frames: give when, as an SQL predicate")
    return Frames(_predicate("frames: when", when) or "", scope=_scope("frames", scope))


@border
def latest(n: int, every: Duration) -> Latest:
    """The last n events of a key before each multiple of `every`, where it had an event since the multiple before.

    n:      at most how many events a window has, however old they are
    every:  a duration for timestamps ("1 hour", a timedelta), a plain integer for an integer column
    """
    return Latest(_whole("latest", "n", n), **lengths_of("latest", every=every))


def _predicate(what: str, text: str | None) -> str | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise TypeError(f"{what} must be an SQL predicate, not {text!r}")
    try:
        return parse(text).text
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error
