"""Scales: where the ticks of an axis stand, and what they say."""

from __future__ import annotations

import math
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from windrow.core.windows.fixed import since_1970
from windrow.report.words import DAY, MONTHS, as_date, short

_SECOND, _HOUR = 1_000_000, 3_600_000_000
_STEPS = (
    *(base * 10**power for power in range(6) for base in (1, 2, 5)),
    *(_SECOND * n for n in (1, 2, 5, 10, 15, 30)),
    *(60 * _SECOND * n for n in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * n for n in (1, 2, 3, 6, 12)),
    *(DAY * n for n in (1, 2, 7, 14)),
)
_LARGEST = 1e300  # beyond it, or closer together than its inverse, numbers count as equal
_MONTHS = (1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 6000, 12000)


class Tick(NamedTuple):
    """A mark on an axis; `context` is the day or the year that it is the first of."""

    at: float
    label: str
    context: str = ""


class Scale(NamedTuple):
    low: float
    high: float
    ticks: tuple[Tick, ...]

    def part(self, at: float) -> float:
        """How far along the axis a value stands, from 0 to 1."""
        return (at - self.low) / (self.high - self.low)


def values(low: float, high: float, most: int = 5, zero: bool = False) -> Scale:
    """A scale for values: from zero where it is `zero`, or where they are not far from it."""
    low, high = (max(-_LARGEST, min(_LARGEST, one)) for one in (low, high))
    alike = high - low <= 1e-12 * max(abs(low), abs(high))
    if zero or alike or 0 <= low <= high / 2:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low < 1 / _LARGEST:
        high = low + 1.0
    step = _round(high / most - low / most)
    room = (high - low) / 24  # so that no line runs along the frame
    low, high = low - (room if low else 0), high + (room if high else 0)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Scale(low, high, tuple(Tick(n * step, short(n * step, step)) for n in range(first, last + 1)))


def _round(least: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is not less."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * n for n in (1, 2, 2.5, 5, 10) if power * n >= least * (1 - 1e-9))


def times(low: int, high: int, temporal: bool, width: int) -> Scale:
    """A scale for times, microseconds or plain units, that ends where they end; its ticks fit a width in pixels."""
    high = max(high, low + 1)
    dated = temporal and as_date(low) is not None and as_date(high) is not None
    for most in range(9, 1, -1):
        ticks = _calendar(low, high, most) if dated else _plain(low, high, most)
        scale = Scale(low, high, tuple(ticks))
        contexts = [(tick.at, tick.context) for tick in ticks if tick.context]
        if _fits(scale, width, [(tick.at, tick.label) for tick in ticks]) and _fits(scale, width, contexts):
            return scale
    return Scale(low, high, tuple(ticks[:1]))


def _fits(scale: Scale, width: int, labels: list[tuple[float, str]]) -> bool:
    """Whether no two labels lie on each other."""
    return all(
        (scale.part(right) - scale.part(left)) * width >= 7 * (len(one) + len(other)) / 2 + 10
        for (left, one), (right, other) in pairwise(labels)
    )


def _plain(low: int, high: int, most: int) -> list[Tick]:
    step = max(1, int(_round((high - low) / most)))
    return [Tick(at, f"{at:,}".replace("-", "−")) for at in _multiples(low, high, step)]


def _multiples(low: int, high: int, step: int, phase: int = 0) -> range:
    return range(low + (phase - low) % step, high + 1, step)


def _calendar(low: int, high: int, most: int) -> list[Tick]:
    step = next((one for one in _STEPS if (high - low) // one < most), 0)
    if step:
        monday = 4 * DAY if step % (7 * DAY) == 0 else 0  # 1 January 1970 was a Thursday
        ticks = [(at, *_labels(at, step)) for at in _multiples(low, high, step, monday)]
    else:
        ticks = _months(low, high, most)
    found, before = [], ""
    for at, label, context in ticks:
        found.append(Tick(at, label, context if context != before else ""))
        before = context
    return found


def _labels(at: int, step: int) -> tuple[str, str]:
    """A tick's label, and the day, year or minute that it lies in."""
    date = as_date(at)
    assert date is not None
    day = f"{date.day} {MONTHS[date.month - 1]}"
    if step >= DAY:
        return day, str(date.year)
    if step >= 60 * _SECOND:
        return f"{date:%H:%M}", f"{day} {date.year}"
    if step >= _SECOND:
        return f"{date:%H:%M:%S}", f"{day} {date.year}"
    digits = 6 - int(math.log10(step))
    return f"{date:%S}.{at % _SECOND:06}"[: 3 + digits], f"{day} {date.year} {date:%H:%M}"


def _months(low: int, high: int, most: int) -> list[tuple[int, str, str]]:
    """Ticks at the beginnings of months or years, with their labels and the years that months lie in."""
    first, last = as_date(low), as_date(high)
    assert first is not None
    assert last is not None
    lowest, highest = first.year * 12 + first.month - 1, last.year * 12 + last.month - 1
    months = next((one for one in _MONTHS if (highest - lowest) // one < most), _MONTHS[-1])
    found = []
    for month in _multiples(lowest, highest, months):
        year = month // 12
        if 1 <= year <= 9999 and (at := since_1970(datetime(year, month % 12 + 1, 1))) >= low:
            label, context = (str(year), "") if months >= 12 else (MONTHS[month % 12], str(year))
            found.append((at, label, context))
    return found
