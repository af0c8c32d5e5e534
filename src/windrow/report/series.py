"""From an answer to what is drawn, and no more of it than pixels can show.

Numbers of the same unit and of comparable size share a **block**, which has a panel for each key, or one panel with a
line for each key where they are few. A **trace** is the windows of one key with the numbers to draw. Of a long trace
the first, last, least and greatest number in each column of pixels are kept (m4), so that the line looks as all of
them would; of bars that begin in the same column of pixels one is made. What is left out or sampled stands in notes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from windrow.core.aggregates.functions import Aggregate
from windrow.core.windows.fixed import Cumulating
from windrow.report.answers import FROM, KEY, LABEL, TO, Answer, Number
from windrow.report.words import count

WIDE, SMALL, BARS = 300, 120, 400  # columns of pixels: of a chart alone, of one among many, of bars
MOST_PANELS, MOST_LANES, MOST_LINES, MOST_BLOCKS = 9, 12, 5, 4
FEW_KEYS, FEW_WINDOWS = 4, 150  # up to which keys share a panel

_QUANTILES = {"median", "quantile", "approx_quantile"}
_VALUES = {*_QUANTILES, "mean", "min", "max", "first", "last", "mode", "m4", "stddev", "stddev_pop", "geometric_mean"}
_COUNTS = {"count", "distinct", "approx_distinct"}

_ROW, _AT, _MERGED = "windrow row", "windrow column", "windrow merged"  # columns of their own, beside the numbers

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Trace:
    """Windows of one key in their order, with the numbers to draw; NaN where there is none."""

    label: str
    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    values: dict[str, Floats]
    size: int  # how many windows there were
    merged: list[int] | None = None  # how many of them each bar is

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Panel:
    title: str
    traces: list[Trace]


@dataclass(frozen=True)
class Block:
    """Panels with one scale; a band is the area between two columns, with what lies between them in words."""

    title: str
    lines: list[str]
    bands: dict[tuple[str, str], str]
    panels: list[Panel]
    low: float
    high: float

    @property
    def columns(self) -> list[str]:
        """As they lie in the picture, from the greatest to the least where that is known."""
        return [high for _, high in self.bands] + self.lines + [low for low, _ in self.bands][::-1]


@dataclass(frozen=True)
class Drawing:
    """What is drawn of an answer: blocks of lines, or lanes of bars shaded by a column."""

    blocks: list[Block] = field(default_factory=list)
    lanes: list[Trace] = field(default_factory=list)
    shade: str | None = None
    notes: list[str] = field(default_factory=list)


def drawing(answer: Answer) -> Drawing:
    """What to draw, with notes on what is left out."""
    if not answer.rows.height:
        return Drawing()
    notes: dict[str, None] = {}
    if not_finite := sum(answer.rows.select((~one.column.is_finite()).sum()).item() for one in answer.numbers.values()):
        notes[f"NaN and infinity, {count(not_finite, 'time')}, leave gaps."] = None
    if answer.form == "bars":
        lanes, shade = _lanes(answer, notes)
        return Drawing(lanes=lanes, shade=shade, notes=list(notes))
    shares = list(_shares(answer))
    most = MOST_BLOCKS if len(answer.by_size) > 1 else 2 * MOST_BLOCKS
    if left := sum(len(lines) + 2 * len(bands) for lines, bands in shares[most:]):
        notes[f"{count(left, 'more column')} of numbers not drawn."] = None
    blocks = [_block(answer, lines, bands, notes) for lines, bands in shares[:most]]
    return Drawing(blocks, notes=list(notes))


def runs(answer: Answer, trace: Trace, there: npt.NDArray[np.bool_]) -> list[npt.NDArray[np.int64]]:
    """The parts of a trace in which no window is missing: what one stroke may join."""
    at = np.flatnonzero(there)
    if not len(at):
        return []
    start, end = trace.start[at], trace.end[at]
    points = answer.form == "points"
    apart = end[1:] - end[:-1] if points else start[1:] - end[:-1]
    limit = 1.5 * answer.cadence if points or np.isinf(answer.cadence) else 0.0
    if trace.size > len(trace):  # a gap of less than a column of pixels is not seen
        broken = apart > max(limit, (answer.bounds[1] - answer.bounds[0]) / SMALL)
    else:
        broken = (apart > limit) | (np.diff(at) > 1)
        if isinstance(answer.window, Cumulating):  # it starts again; many starts are an area
            broken |= start[1:] != start[:-1]
    return np.split(at, np.flatnonzero(broken) + 1)


# --- lines --------------------------------------------------------------------------------------------------


def _block(answer: Answer, lines: list[str], bands: dict[tuple[str, str], str], notes: dict[str, None]) -> Block:
    if len(lines) > MOST_LINES:
        notes[f"{count(len(lines) - MOST_LINES, 'line')} beside {lines[0]} not drawn."] = None
        lines = lines[:MOST_LINES]
    columns = [*(name for band in bands for name in band), *lines]
    size = len(answer.by_size)
    together = size <= FEW_KEYS and len(columns) == 1 and answer.rows.height <= FEW_WINDOWS * size
    keys = _chosen(answer, MOST_PANELS, notes)
    traces = [
        _sampled(answer, part, columns, WIDE if together or len(keys) == 1 else SMALL)
        for part in _by_key(answer, keys, columns)
    ]
    _note_if_sampled(traces, "first, last, least and greatest of each column of pixels", notes)
    panels = [Panel("", traces)] if together else [Panel(one.label, [one]) for one in traces]
    drawn = [one.values[name] for one in traces for name in columns]
    return Block(_title(answer, columns), lines, bands, panels, *bounds_of(drawn))


def _chosen(answer: Answer, most: int, notes: dict[str, None]) -> list[int]:
    """The keys to draw, in their order."""
    if left := len(answer.by_size[most:]):
        verb = "is" if left == 1 else "are"
        notes[f"The {most} keys with the most windows are drawn, {left:,} {verb} left out."] = None
    return sorted(answer.by_size[:most])


def _by_key(answer: Answer, keys: list[int], columns: Sequence[str]) -> list[pl.DataFrame]:
    chosen = answer.rows.filter(pl.col(KEY).is_in(keys))
    numbers = {name: answer.numbers[name].column for name in columns}
    drawn = chosen.select(KEY, LABEL, FROM, TO, **numbers)
    return drawn.partition_by(KEY, maintain_order=True)


def _sampled(answer: Answer, part: pl.DataFrame, columns: Sequence[str], width: int) -> Trace:
    low, high = answer.bounds
    kept = part = part.with_row_index(_ROW)
    if part.height > 4 * width:
        column = max(1, -(-(high - low) * max(1, len(columns) - 1) // width))
        at = (pl.col(TO if answer.form == "points" else FROM) - low) // column
        places = [pl.col(_ROW).first().alias("first"), pl.col(_ROW).last().alias("last")]
        for name in columns:
            known = pl.col(name).fill_nan(None)
            places.append(pl.col(_ROW).gather(known.arg_min()).first().alias(f"least {name}"))
            places.append(pl.col(_ROW).gather(known.arg_max()).first().alias(f"greatest {name}"))
        chosen = part.group_by(at.alias(_AT)).agg(places).drop(_AT).unpivot()["value"]
        kept = part[chosen.drop_nulls().unique().sort()]
    return _trace(kept, columns, part)


def _trace(kept: pl.DataFrame, columns: Sequence[str], part: pl.DataFrame, merged: list[int] | None = None) -> Trace:
    """The trace of what is kept of a key's windows."""
    values = {name: _finite(kept[name]) for name in columns}
    return Trace(part[LABEL][0], kept[FROM].to_numpy(), kept[TO].to_numpy(), values, part.height, merged)


def _finite(column: pl.Series) -> Floats:
    values = column.cast(pl.Float64).fill_null(np.nan).to_numpy()
    return np.where(np.isfinite(values), values, np.nan)


def bounds_of(columns: Sequence[Floats]) -> tuple[float, float]:
    """The least and the greatest number."""
    numbers = np.concatenate([np.empty(0), *columns])
    numbers = numbers[np.isfinite(numbers)]
    return (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 0.0)


def _note_if_sampled(traces: list[Trace], how: str, notes: dict[str, None]) -> None:
    if any(len(one) < one.size for one in traces):
        size = sum(one.size for one in traces)
        notes[f"{size:,} windows are thinned to what pixels can show: {how}."] = None


# --- bars ---------------------------------------------------------------------------------------------------


def _lanes(answer: Answer, notes: dict[str, None]) -> tuple[list[Trace], str | None]:
    """A lane for each key, and the first number, which shades the bars."""
    shade = next(iter(answer.numbers), None)
    columns = [shade] if shade else []
    low, high = answer.bounds
    column = max(1, -(-(high - low) // BARS))
    traces = []
    for part in _by_key(answer, _chosen(answer, MOST_LANES, notes), columns):
        kept, merged = part, None
        if part.height > BARS:
            bounds = [pl.col(FROM).min().alias(_ROW), pl.col(TO).max(), pl.len().alias(_MERGED)]
            greatest = [pl.col(name).fill_nan(None).max() for name in columns]
            column_of = ((pl.col(FROM) - low) // column).alias(_AT)
            kept = part.group_by(column_of, maintain_order=True).agg(*bounds, *greatest).rename({_ROW: FROM})
            merged = kept[_MERGED].to_list()
        traces.append(_trace(kept, columns, part, merged))
    with_greatest = f", with the greatest {shade}" if shade else ""
    _note_if_sampled(traces, f"those that begin in the same column of pixels are one bar{with_greatest}", notes)
    return traces, shade


# --- which numbers share an axis ----------------------------------------------------------------------------


def _shares(answer: Answer) -> Iterator[tuple[list[str], dict[tuple[str, str], str]]]:
    """Numbers that share an axis: lines and bands."""
    units: dict[Any, dict[str, Number]] = {}
    for name, number in answer.numbers.items():
        unit: Any = name
        if number.aggregate and number.aggregate.function in _COUNTS:
            unit = ("count",)
        elif number.aggregate and number.aggregate.function in _VALUES:
            unit = ("value", number.aggregate.inputs[0].text)
        units.setdefault(unit, {})[name] = number
    for numbers in units.values():
        bands = _bands(numbers)
        rest = [name for name in numbers if not any(name in band for band in bands)]
        if bands:
            middle = [name for name in rest if _share(numbers[name].aggregate) is not None]
            rest = [name for name in rest if name not in middle]
            yield middle, bands
        ranges = {name: bounds_of([_finite(answer.rows.select(numbers[name].column).to_series())]) for name in rest}
        while rest:
            together: list[str] = []
            for name in rest:
                if _comparable([ranges[one] for one in (*together, name)]):
                    together.append(name)
            yield together, {}
            rest = [name for name in rest if name not in together]


def _share(aggregate: Aggregate | None) -> float | None:
    """The share of values below a quantile."""
    if aggregate is None or aggregate.function not in _QUANTILES:
        return None
    return 0.5 if aggregate.function == "median" else float(aggregate.param("q"))


def _bands(numbers: dict[str, Number]) -> dict[tuple[str, str], str]:
    """Pairs of quantiles that leave out as much below as above, the widest first; and the bounds of an m4."""
    shares = {name: share for name, one in numbers.items() if (share := _share(one.aggregate)) is not None}
    pairs = {}
    for low, at in sorted(shares.items(), key=lambda one: one[1]):
        high = next((name for name, other in shares.items() if at < 0.5 and abs(at + other - 1) < 1e-9), None)
        if high:
            pairs[low, high] = f"{100 * at:g}% – {100 * shares[high]:g}%"
    for name, one in numbers.items():
        if one.aggregate and one.aggregate.function == "m4" and name.endswith(" min"):
            pairs[name, name.removesuffix("min") + "max"] = "min – max"
    return pairs


def _comparable(ranges: list[tuple[float, float]]) -> bool:
    """Whether no line would be flat beside the others."""
    whole = max(high for _, high in ranges) - min(low for low, _ in ranges)
    return len(ranges) == 1 or all(8 * (high - low) >= whole for low, high in ranges)


def _title(answer: Answer, columns: list[str]) -> str:
    """What the columns of a block have in common."""
    aggregates = [answer.numbers[name].aggregate for name in columns]
    functions = {one.function for one in aggregates if one}
    if functions == {"m4"}:
        return columns[0].removesuffix(" min")
    if len(columns) == 1 or None in aggregates or functions <= _COUNTS:
        return ", ".join(columns)
    inputs = sorted({one.inputs[0].text for one in aggregates if one})
    return ("quantiles of " if functions <= _QUANTILES else "") + ", ".join(inputs)
