"""What a window is: its bounds, its edges, and the traits that the plan reads.

A window is a small frozen description; nothing here touches data. Windows with fixed bounds are unions of **lattices**:
all windows `[phase + k·period, phase + k·period + length)` for every integer k.

    tumbling(10)        one lattice   |---------|---------|---------|
    sliding(10, 4)      one lattice   |---------|
                                          |---------|
    cumulating(10, 5)   two lattices  |----|    |     |----|
                                      |---------|     |---------|

A lattice has at most two **grids** of edges, its starts and its ends; the edges of all windows of a group together
cut the stream into slices. A session has no fixed edges: its bounds come from the events. Windows that need the order
of events stand in `ordered`.

A window of your own with fixed bounds is a subclass of `ContextFreeWindow`.

Lengths are whole microseconds when they were written as a duration ("10 minutes", a timedelta), and plain units of the
time column when they were written as an integer (`time="odometer"`); one window does not mix the two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt

from windrow.core.expressions.border import border
from windrow.core.expressions.limits import DIGITS, STEPS, beyond

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
FURTHEST = 2**62  # times and bounds stay within ±FURTHEST, so that differences of two never wrap around

Duration = str | timedelta | int
Times = npt.NDArray[np.int64]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_UNITS = {
    "microsecond": 1,
    "us": 1,
    "millisecond": 1_000,
    "ms": 1_000,
    "second": 1_000_000,
    "sec": 1_000_000,
    "s": 1_000_000,
    "minute": 60_000_000,
    "min": 60_000_000,
    "m": 60_000_000,
    "hour": 3_600_000_000,
    "h": 3_600_000_000,
    "day": 86_400_000_000,
    "d": 86_400_000_000,
    "week": 604_800_000_000,
    "w": 604_800_000_000,
}
_PART = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([a-zµ]+)\s*,?\s*", re.IGNORECASE)


class Length(NamedTuple):
    """A length on a time column: `units` of it, or microseconds when `temporal`."""

    units: int
    temporal: bool


def duration(value: Duration, what: str = "length") -> Length:
    """Read a length as people write it: "90 seconds", "1 hour 30 minutes", a timedelta, or a plain integer."""
    if isinstance(value, bool) or not isinstance(value, str | timedelta | int):
        raise TypeError(f"{what} must be a duration such as '90 seconds', a timedelta or an integer, not {value!r}")
    if isinstance(value, timedelta):
        length = Length(value // timedelta(microseconds=1), True)
    else:
        length = Length(value, False) if isinstance(value, int) else Length(_micros(value, what), True)
    if abs(length.units) > FURTHEST:
        given = repr(value) if not isinstance(value, int) or value.bit_length() < 1000 else "with so many digits"
        raise ValueError(f"{what} {given} is longer than any time column: at most {FURTHEST} units")
    return length


def _micros(given: str, what: str) -> int:
    text, at, total = given.strip(), 0, Fraction()
    if not text:
        raise ValueError(f"{what} is empty: write it like '90 seconds'")
    if len(text) > DIGITS:
        raise ValueError(f"{what} has {beyond('characters', len(text), DIGITS)}: write it like '90 seconds'")
    while at < len(text):
        part = _PART.match(text, at)
        unit = part[2].lower() if part else ""
        scale = _UNITS.get(unit) or _UNITS.get(unit.removesuffix("s"))
        if not part or not scale:
            raise ValueError(f"{what} {given!r} is not a duration: write it like '90 seconds' or '1 hour 30 minutes'")
        total, at = total + Fraction(part[1]) * scale, part.end()
    if total.denominator > 1:
        raise ValueError(f"{what} {given!r} is not a whole number of microseconds")
    return int(total)


def since_1970(moment: datetime) -> int:
    """A moment as windows count it, in microseconds; UTC where it has no zone."""
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH) // timedelta(microseconds=1)


def duration_text(units: int, temporal: bool) -> str:
    """The shortest exact way to write a length: 5400000000 µs is "1 hour 30 minutes"."""
    if not temporal:
        return str(units)
    parts, rest = [], abs(units)
    for name in ("day", "hour", "minute", "second", "millisecond", "microsecond"):
        count, rest = divmod(rest, _UNITS[name])
        if count:
            parts.append(f"{count} {name}{'s' if count > 1 else ''}")
    return ("-" if units < 0 else "") + (" ".join(parts) or "0 seconds")


def duration_repr(units: int, temporal: bool) -> str:
    """A length as it is written in Python."""
    text = duration_text(units, temporal)
    return f'"{text}"' if temporal else text


class Lattice(NamedTuple):
    """The windows [phase + k·period, phase + k·period + length), for every integer k."""

    period: int
    phase: int
    length: int


class Grid(NamedTuple):
    """The times phase + k·period, for every integer k.

    Period, phase and the times that a method takes are integers or arrays: arrays of periods and phases are as many
    grids, and NumPy's broadcasting says which time meets which grid. All arithmetic on grids is here, and rounds down.
    """

    period: int | Times
    phase: int | Times

    def number(self, time: int | Times) -> Times:
        """The k of the last grid time at or before a time."""
        number: Times = np.floor_divide(np.subtract(time, self.phase), self.period)
        return number

    def number_from(self, time: int | Times) -> Times:
        """The k of the first grid time at or after a time: by -⌊-x⌋ = ⌈x⌉, as `time - 1` could leave the 64 bits."""
        number: Times = np.negative(np.floor_divide(np.subtract(self.phase, time), self.period))
        return number

    def time(self, number: int | Times) -> Times:
        """The grid time of a k."""
        time: Times = np.add(self.phase, np.multiply(number, self.period))
        return time

    def at_or_before(self, time: int | Times) -> Times:
        """The last grid time at or before a time."""
        return self.time(self.number(time))

    def at_or_after(self, time: int | Times) -> Times:
        """The first grid time at or after a time."""
        return self.time(self.number_from(time))

    def after(self, time: int | Times) -> Times:
        """The first grid time after a time."""
        return self.time(self.number(time) + 1)


WINDOWS: dict[str, type[Window]] = {}  # every kind of window by its name


@dataclass(frozen=True)
class Window:
    """The common part of all windows; `kind` is the name by which a window is known where it runs."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "kind" not in cls.__dict__:
            cls.kind = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        other = WINDOWS.get(cls.kind)
        if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"there is already a window called {cls.kind!r}: {other.__module__}.{other.__qualname__}")
        WINDOWS[cls.kind] = cls

    @property
    def refusal(self) -> str | None:
        """Why no query can have it, or None."""
        return None

    @property
    def reach(self) -> int:
        """How far a window that holds an event can lie from it, to either side, as far as that is known."""
        return 0

    @property
    def is_temporal(self) -> bool | None:
        """Whether its lengths are durations; None where no length says which kind of time column it needs."""
        return getattr(self, "temporal", None)

    def to_dict(self) -> dict[str, Any]:
        """A description in plain data, from which `window_from_dict` makes the same window."""
        return {"kind": self.kind} | {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class ContextFreeWindow(Window):
    """A window whose bounds are known before any event is seen: the base class of your own.

    Give `windows`, and `edges` where they can be found faster than from all windows. Both take and return times as
    int64, microseconds since 1970 UTC or plain units of the time column. The same question must always have the same
    answer. Windows may overlap, leave gaps, and be of any lengths; bounds lie within ±2^62. Questions are asked about
    times around the events: however few events, answer for all windows there at once, with arrays.

    Make it a frozen dataclass whose fields are plain data (numbers, text, tuples of them); `temporal` says whether it
    is for timestamps (the default) or for plain numbers. Where queries run it is known by its `kind`, by default the
    name of the class: it must be imported there. See `examples/calendar_months.py`.
    """

    temporal = True
    edges_per_unit: ClassVar[float] = 0.0  # about how many there are, for the planner; 0 where they are few

    @property
    def reach(self) -> int:
        """How far a window that holds an event can lie from it; not known of one of your own."""
        return 1

    @property
    def refusal(self) -> str | None:
        """Why no query can have it, or None."""
        lacks = type(self).windows is ContextFreeWindow.windows and not isinstance(self, FixedWindow)
        return f"{type(self).__name__} must define windows(lo, hi)" if lacks else None

    def windows(self, lo: int, hi: int) -> tuple[Times, Times]:
        """The starts and the ends of all windows that hold a time t with lo ≤ t < hi."""
        raise NotImplementedError

    def edges(self, lo: int, hi: int) -> Times:
        """All times t with lo ≤ t < hi at which a window starts or ends, sorted, each once."""
        starts, ends = self.windows(lo - 1, hi)
        both = np.unique(np.concatenate((starts, ends)))
        return both[(both >= lo) & (both < hi)]


@dataclass(frozen=True, repr=False)
class FixedWindow(ContextFreeWindow):
    """A window whose bounds lie on lattices."""

    def lattices(self) -> Iterator[Lattice]:
        raise NotImplementedError

    def grids(self) -> set[Grid]:
        """The edges of all its windows."""
        grids = set()
        for period, phase, length in self.lattices():
            grids.add(Grid(period, phase % period))
            grids.add(Grid(period, (phase + length) % period))
        return grids

    @property
    def reach(self) -> int:
        return max(lattice.length + lattice.period for lattice in self.lattices())

    def __str__(self) -> str:
        return self._written(duration_text)

    def __repr__(self) -> str:
        return self._written(duration_repr)

    def _written(self, length_as: Callable[[int, bool], str]) -> str:
        lengths = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "temporal"}
        offset = lengths.pop("offset")
        shown = [length_as(length, self.temporal) for length in lengths.values()]
        shown += [f"offset={length_as(offset, self.temporal)}"] if offset else []
        return f"{self.kind}({', '.join(shown)})"


def is_irregular(window: Window) -> TypeGuard[ContextFreeWindow]:
    """Whether its bounds are fixed, and lie on no lattice."""
    return isinstance(window, ContextFreeWindow) and not isinstance(window, FixedWindow)


@dataclass(frozen=True, repr=False)
class Tumbling(FixedWindow):
    length: int
    offset: int
    temporal: bool

    def lattices(self) -> Iterator[Lattice]:
        yield Lattice(self.length, self.offset, self.length)


@dataclass(frozen=True, repr=False)
class Sliding(FixedWindow):
    length: int
    slide: int
    offset: int
    temporal: bool

    def lattices(self) -> Iterator[Lattice]:
        yield Lattice(self.slide, self.offset, self.length)


@dataclass(frozen=True, repr=False)
class Cumulating(FixedWindow):
    length: int
    step: int
    offset: int
    temporal: bool

    def lattices(self) -> Iterator[Lattice]:
        for part in range(self.step, self.length + 1, self.step):
            yield Lattice(self.length, self.offset, part)

    def grids(self) -> set[Grid]:
        return {Grid(self.step, self.offset % self.step)}

    @property
    def reach(self) -> int:
        return 2 * self.length


@dataclass(frozen=True, repr=False)
class Session(Window):
    """A maximal run of events of one key whose consecutive times differ by at most `gap`."""

    gap: int
    temporal: bool

    @property
    def reach(self) -> int:
        return 2 * self.gap

    def __str__(self) -> str:
        return f"session({duration_text(self.gap, self.temporal)})"

    def __repr__(self) -> str:
        return f"session({duration_repr(self.gap, self.temporal)})"


def window_from_dict(described: dict[str, Any]) -> Window:
    rest = dict(described)
    kind = rest.pop("kind")
    if kind not in WINDOWS:
        raise ValueError(f"there is no window called {kind!r} here: import the module that defines it")
    return WINDOWS[kind](**{name: _plain(value) for name, value in rest.items()})


def _plain(value: Any) -> Any:
    """Plain data as a window holds it: JSON makes lists of tuples."""
    return tuple(map(_plain, value)) if isinstance(value, list) else value


def lengths_of(kind: str, offset: Duration | None = None, period: str = "", **lengths: Duration) -> dict[str, Any]:
    """Read the arguments of one window: all positive, and all durations or all plain integers.

    period:  the length after which windows begin anew; an offset is less than that
    """
    read = {name: duration(value, f"{kind}: {name}") for name, value in lengths.items()}
    for name, length in read.items():
        if length.units <= 0:
            raise ValueError(f"{kind}: {name} must be greater than zero, not {lengths[name]!r}")
    if offset is not None and offset != 0:
        read["offset"] = duration(offset, f"{kind}: offset")
    if len({length.temporal for length in read.values()}) > 1:
        raise ValueError(f"{kind}: {', '.join(read)} must all be durations or all be plain integers")
    units = {name: length.units for name, length in read.items()}
    if period:
        units["offset"] = units.get("offset", 0) % units[period]
    return {**units, "temporal": next(iter(read.values())).temporal}


@border
def tumbling(length: Duration, offset: Duration | None = None) -> Tumbling:
    """Windows [o + kL, o + (k+1)L): one after the other, without gaps.

    length:  a duration for timestamps ("10 minutes", a timedelta), a plain integer for an integer column
    offset:  where windows begin, counted from 1970-01-01 UTC or from 0; by default there
    """
    return Tumbling(**lengths_of("tumbling", offset, "length", length=length))


@border
def sliding(length: Duration, slide: Duration, offset: Duration | None = None) -> Sliding:
    """Windows [o + ks, o + ks + L): one every `slide`, so that they overlap.

    length:  a duration for timestamps ("1 hour", a timedelta), a plain integer for an integer column
    slide:   of the same kind; longer than the length it leaves gaps, which samples the stream
    offset:  where windows begin, counted from 1970-01-01 UTC or from 0; by default there
    """
    return Sliding(**lengths_of("sliding", offset, "slide", length=length, slide=slide))


@border
def cumulating(length: Duration, step: Duration, offset: Duration | None = None) -> Cumulating:
    """Windows [o + kL, o + kL + j·step), j = 1 … L/step: what there was so far, emitted every step, anew every length.

    length:  a duration for timestamps ("1 day", a timedelta), a plain integer for an integer column
    step:    of the same kind; it must divide the length
    offset:  where windows begin, counted from 1970-01-01 UTC or from 0; by default there
    """
    read = lengths_of("cumulating", offset, "length", length=length, step=step)
    if read["length"] % read["step"]:
        raise ValueError(f"cumulating: step {step!r} must divide length {length!r}")
    if (steps := read["length"] // read["step"]) > STEPS:
        raise ValueError(f"cumulating: length {length!r} has {beyond('steps', steps, STEPS)}; take a longer step")
    return Cumulating(**read)


@border
def session(gap: Duration) -> Session:
    """Runs of a key's events whose consecutive times differ by at most `gap`, with the bounds [first, last + gap).

    gap:  a duration for timestamps ("10 minutes", a timedelta), a plain integer for an integer column

    A session is closed once the watermark is greater than last + gap, as Spark's `session_window`.
    """
    return Session(**lengths_of("session", gap=gap))
