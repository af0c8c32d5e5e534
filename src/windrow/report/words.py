"""How a report says things: numbers, bytes, times, and what a window is."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any

from windrow.core.windows.fixed import EPOCH, Cumulating, Session, Sliding, Tumbling, Window, duration_text
from windrow.core.windows.ordered import Counting, Frames, Latest, Punctuated, scope_of

DAY = 86_400_000_000
_EARLIEST, _LATEST = -62_135_596_800_000_000, 253_402_300_799_999_999  # the years 1 to 9999
_POWERS = ((1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))  # from, divided by, called
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def count(size: int, what: str) -> str:
    """1 row, 2,000 rows, 3 queries."""
    if size == 1:
        return f"1 {what}"
    return f"{size:,} {what[:-1]}ies" if what.endswith("ry") else f"{size:,} {what}s"


def cut(text: str, most: int) -> str:
    """At most so many letters of it."""
    return text if len(text) <= most else text[: most - 1] + "…"


def listed(parts: list[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def number(value: Any) -> str:
    """A value as a table shows it: whole numbers whole, others with six digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}".replace("-", "−")
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    return f"{value:,.6g}".replace("-", "−")


def short(value: float, step: float = 0.0) -> str:
    """A number as an axis shows it, with the digits that tell neighbours `step` apart from each other."""
    largest = max(abs(value), step)
    if largest and not 1e-4 <= largest < 1e15:
        return f"{value:.3g}".replace("-", "−")
    _, power, suffix = next((one for one in _POWERS if largest >= one[0]), (0, 1, ""))
    value, step = value / power, step / power
    digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step else (0 if value == int(value) else 1)
    if step and round(step * 10**digits, 6) % 1:  # a step of 2.5
        digits += 1
    return f"{value:,.{min(digits, 9)}f}{suffix if value else ''}".replace("-", "−")


def size(value: float) -> str:
    """Bytes as people read them."""
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if value >= 10**power:
            return f"{value / 10**power:.3g} {unit}"
    return f"{value:,.0f} bytes"


def times(ratio: float) -> str:
    """How many times: 63, 1,500, or 2.4."""
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}".removesuffix(".0")


def as_date(at: int) -> datetime | None:
    """A time in microseconds as a date, where the calendar has one."""
    return EPOCH + timedelta(microseconds=at) if _EARLIEST <= at <= _LATEST else None


def moment(at: int, temporal: bool) -> str:
    """A time to the precision that it has: 3 Jan 2013 05:00."""
    date = as_date(at) if temporal else None
    if date is None:
        return f"{at:,}".replace("-", "−")
    shown = f"{date.day} {MONTHS[date.month - 1]} {date.year} {date:%H:%M}"
    if at % 60_000_000:
        shown += f":{date:%S}"
    return shown + (f".{at % 1_000_000:06}".rstrip("0") if at % 1_000_000 else "")


def period(low: int, high: int, temporal: bool) -> str:
    """From when to when."""
    return f"{moment(low, temporal)} – {moment(high, temporal)}"


_SCOPES = {
    "global": "",
    "node": ", of each node",
    "bounds": ", of all nodes with the same bounds",
    "position": ", of all nodes by position",
    "overlap": ", of all nodes as they overlap",
}


def window(given: Window) -> str:
    """What a window is, in a sentence without a verb."""
    return _window(given) + _SCOPES[scope_of(given)]


def _window(given: Window) -> str:

    def length(units: int, temporal: bool) -> str:
        return duration_text(units, temporal).removeprefix("1 ") if temporal else f"{units:,}"

    match given:
        case Tumbling(units, offset, temporal):
            shown = f"every {length(units, temporal)}, one window after the other"
        case Sliding(units, slide, offset, temporal):
            shown = f"{duration_text(units, temporal)} long, a new one every {length(slide, temporal)}"
        case Cumulating(units, step, offset, temporal):
            shown = f"so far, at every {length(step, temporal)}, starting again every {length(units, temporal)}"
        case Session(gap, temporal):
            return f"runs of events at most {duration_text(gap, temporal)} apart"
        case Counting(n, step):
            return f"every {n:,} events" if n == step else f"{n:,} events, a new window every {step:,}"
        case Latest(n, every, temporal):
            return f"the last {n:,} events, at every {length(every, temporal)}"
        case Punctuated(start, None):
            return f"from each event with {start} to the next"
        case Punctuated(None, end):
            return f"up to each event with {end}"
        case Punctuated(start, end):
            return f"from an event with {start} to the next with {end}"
        case Frames(when):
            return f"runs of events with {when}"
        case _:
            return str(given)
    return shown + (f", offset by {duration_text(offset, temporal)}" if offset else "")
