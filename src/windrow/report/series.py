"""From results to what is drawn: which rows, in which form, and no more of them than pixels can show.

A query's `Answer` has the last revision of each of its windows. Its **form** follows from its window:

    steps    windows that do not overlap: a level from start to end        ▔▔▁▁▔
    points   windows that do: a value at the end of each                   ╱╲╱
    bars     bounds that the events decide: a bar from start to end        ▬ ▬▬ ▬

Numbers of the same unit and of comparable size share a **block**, which has a panel for each key, or one panel with a line for
each key where they are few. A **trace** is the windows of one key with the numbers to draw. Of long traces the first,
last, least and greatest number in each column of pixels are kept (m4), so that the line looks as all of them would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from windrow.aggregates import Aggregate
from windrow.formulas import aggregate
from windrow.ordered import Counting, DataDrivenWindow, Latest
from windrow.query import RESERVED, Query
from windrow.report.words import count
from windrow.windows import Cumulating, Session, Sliding, Tumbling

Form = Literal["steps", "points", "bars"]
WIDE, SMALL = 300, 120  # columns of pixels of a chart alone and of one among many, for thinning
STEPS_UP_TO = 200  # beyond that many windows, levels are too short to be seen: a line through them is drawn
MOST_PANELS, MOST_LANES, MOST_LINES, MOST_BLOCKS, FEW_KEYS, FEW_WINDOWS = 9, 12, 5, 4, 4, 150
BAR_COLUMNS = 400

_VALUES = {"mean", "median", "quantile", "approx_quantile", "min", "max", "first", "last", "mode", "m4", "stddev"}
_QUANTILES = {"median", "quantile", "approx_quantile"}
_COUNTS = {"count", "distinct", "approx_distinct"}


@dataclass(frozen=True)
class Trace:
    """Windows of one key in their order, with the numbers to draw; NaN where there is none."""

    label: str
    start: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]  # their places before thinning
    values: dict[str, npt.NDArray[np.float64]]
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
    """Panels with one scale: `lines` are columns drawn as lines, `bands` pairs of columns with an area between."""

    title: str
    lines: list[str]
    bands: list[tuple[str, str]]
    panels: list[Panel]
    low: float
    high: float

    @property
    def columns(self) -> list[str]:
        """From the greatest to the least, as far as that is known: as they lie in the picture."""
        return [low for low, _ in self.bands][::-1] + self.lines + [high for _, high in self.bands]


@dataclass(frozen=True)
class Lanes:
    """Bars over time, a lane for each key; `value` is the column that shades them."""

    traces: list[Trace]
    value: str | None


@dataclass
class Answer:
    """What there is to show of one query."""

    name: str
    query: Query | None
    keys: list[str]
    rows: pl.DataFrame  # the last revision of every window, key by key
    superseded: int
    retracted: int
    notes: list[str] = field(default_factory=list)

    @property
    def temporal(self) -> bool:
        return self.rows.schema["window_start"].is_temporal()

    @cached_property
    def span(self) -> tuple[int, int]:
        """From the first start to the last end."""
        return int(self.rows["_start"].min() or 0), int(self.rows["_end"].max() or 0)  # type: ignore[call-overload]

    @cached_property
    def form(self) -> Form:
        window = self.query.window if self.query else None
        match window:
            case Session() | DataDrivenWindow():
                return "bars"
            case Cumulating() | Latest():
                return "points"
            case Sliding(length, slide):
                return "points" if slide < length else "steps"
            case Counting(n, step):
                return "points" if step < n else "steps"
            case Tumbling():
                return "steps"
        within = pl.col("_key") == pl.col("_key").shift(1)
        bounds = self.rows.select(
            overlap=(within & (pl.col("_start") < pl.col("_end").shift(1))).any(),
            lengths=(pl.col("_end") - pl.col("_start")).n_unique(),
        ).row(0)
        counted = "position" in self.rows.columns and self.rows["position"].null_count() < self.rows.height
        return "points" if bounds[0] else "steps" if bounds[1] <= 1 or counted or window else "bars"

    @cached_property
    def cadence(self) -> float:
        """How far apart the ends of two windows are where none is missing between them."""
        match self.query.window if self.query else None:
            case Counting():
                return np.inf
            case Sliding(_, step) | Cumulating(_, step) | Latest(_, step):
                return step
        apart = self.rows.select(pl.col("_end").diff().over("_key").alias("apart")).filter(pl.col("apart") > 0)
        return float(apart["apart"].mode().min() or np.inf) if apart.height else np.inf  # type: ignore[arg-type]

    @cached_property
    def asked(self) -> dict[str, Aggregate | None]:
        """The aggregates by their columns, read from the names where there is no query."""
        if self.query:
            return {one.name: one for one in self.query.aggregates if one.name in self.rows.columns}
        own = [one for one in self.rows.columns if one not in RESERVED and one not in self.keys and one[0] != "_"]
        return {name: _read(name) for name in own}

    @cached_property
    def numbers(self) -> dict[str, pl.Expr]:
        """What can be drawn against an axis, as doubles."""
        found = {}
        for name in self.asked:
            dtype = self.rows.schema[name]
            if dtype.is_numeric():
                found[name] = pl.col(name).cast(pl.Float64)
            elif isinstance(dtype, pl.Duration):
                found[f"{name} in seconds"] = pl.col(name).dt.total_microseconds() / 1e6
            elif isinstance(dtype, pl.Struct) and {"min", "max", "last"} <= set(dtype.to_schema()):
                if all(dtype.to_schema()[one].is_numeric() for one in ("min", "max")):
                    found |= {f"{name} {one}": pl.col(name).struct.field(one).cast(pl.Float64) for one in ("min", "max")}
        return found

    @cached_property
    def whose(self) -> dict[str, Aggregate | None]:
        """For each of the numbers the aggregate that it comes from."""
        parts = {name: self.asked.get(name.removesuffix(" in seconds")) for name in self.numbers}
        return {name: one or self.asked.get(name.rpartition(" ")[0]) for name, one in parts.items()}

    def traces(self, columns: list[str], keys: list[int], wide: bool) -> Iterator[Trace]:
        """The windows of some keys with these numbers, thinned to what pixels can show."""
        low, high = self.span
        width = max(1, -(-(high - low) // max(SMALL, (WIDE if wide else SMALL) // len(columns or [""]))))
        drawn = self.rows.filter(pl.col("_key").is_in(keys)).select(
            *("_key", "_label", "_start", "_end"), **{name: self.numbers[name] for name in columns}
        )
        for part in sorted(drawn.partition_by("_key"), key=lambda one: keys.index(one["_key"][0])):
            part = part.with_row_index("_row")
            kept = part
            if part.height > 4 * (WIDE if wide else SMALL):
                at = ((pl.col("_end") if self.form == "points" else pl.col("_start")) - low) // width
                ends = [
                    one
                    for name in columns
                    for one in (
                        pl.col("_row").sort_by(pl.col(name).fill_nan(None), nulls_last=True).first().alias(f"a{name}"),
                        pl.col("_row").sort_by(pl.col(name).fill_nan(None), nulls_last=False).last().alias(f"z{name}"),
                    )
                ]
                ends += [pl.col("_row").first().alias("first"), pl.col("_row").last().alias("last")]
                chosen = part.group_by(at.alias("_at")).agg(*ends).drop("_at").unpivot()["value"].unique().sort()
                kept = part[chosen.cast(pl.Int64).to_list()]
            numbers = {name: kept[name].fill_null(np.nan).to_numpy().astype(np.float64) for name in columns}
            yield Trace(
                kept["_label"][0],
                kept["_start"].to_numpy(),
                kept["_end"].to_numpy(),
                kept["_row"].cast(pl.Int64).to_numpy(),
                {name: np.where(np.isfinite(column), column, np.nan) for name, column in numbers.items()},
                part.height,
            )

    def runs(self, trace: Trace, there: npt.NDArray[np.bool_]) -> list[npt.NDArray[np.int64]]:
        """The stretches of a trace in which no window is missing: what one stroke may join."""
        at = np.flatnonzero(there)
        if not len(at):
            return []
        start, end = trace.start[at], trace.end[at]
        apart = (start[1:] - end[:-1]) if self.form != "points" else end[1:] - end[:-1]
        limit = 1.5 * self.cadence if self.form == "points" else 0 if np.isfinite(self.cadence) else np.inf
        if trace.size > len(trace):  # a gap of less than a column of pixels is not seen
            limit = max(limit, (self.span[1] - self.span[0]) / SMALL)
            broken = apart > limit
        else:
            broken = (apart > limit) | (np.diff(trace.row[at]) > 1)
        if self.query and isinstance(self.query.window, Cumulating):
            broken |= start[1:] != start[:-1]
        return np.split(at, np.flatnonzero(broken) + 1)

    @cached_property
    def by_size(self) -> list[int]:
        """The keys, those with most windows first."""
        sizes = self.rows.group_by("_key").len().sort(["len", "_key"], descending=[True, False])
        return sizes["_key"].to_list()

    # --- what is drawn ---

    def blocks(self) -> list[Block]:
        """Steps and points."""
        found = []
        shares = list(self._shares())
        most = MOST_BLOCKS if len(self.by_size) > 1 else 2 * MOST_BLOCKS
        if len(shares) > most:
            left = sum(len(columns) for _, columns, _ in shares[most:])
            self.notes.append(f"{count(left, 'more column')} of numbers: not drawn.")
        for lines, columns, bands in shares[:most]:
            if len(lines) > MOST_LINES:
                self.notes.append(f"{count(len(lines) - MOST_LINES, 'line')} beside {lines[0]} left out.")
                columns = [one for one in columns if one not in lines[MOST_LINES:]]
                lines = lines[:MOST_LINES]
            found.append(self._block(lines, columns, bands))
        return found

    def _block(self, lines: list[str], columns: list[str], bands: list[tuple[str, str]]) -> Block:
        few = len(self.by_size) <= FEW_KEYS and len(columns) == 1 and self.rows.height <= FEW_WINDOWS * len(self.by_size)
        keys = sorted(self.by_size[:MOST_PANELS])
        alone = few or len(keys) == 1
        traces = list(self.traces(columns, keys, wide=alone))
        panels = [Panel("", traces)] if few else [Panel(one.label, [one]) for one in traces]
        if (left := len(self.by_size) - len(keys)) > 0:
            self._note_left(len(keys), left)
        self._note_thinned(traces, "first, last, least and greatest of each column of pixels")
        drawn = np.concatenate([one.values[name] for one in traces for name in columns])
        drawn = drawn[np.isfinite(drawn)]
        low, high = (float(drawn.min()), float(drawn.max())) if len(drawn) else (0.0, 1.0)
        return Block(_title(columns, [self.whose[one] for one in columns]), lines, bands, panels, low, high)

    def said(self, low: str, high: str) -> str:
        """What lies between two columns: 5% – 95%."""
        shares = [_share(self.whose[one]) for one in (low, high)]
        return " – ".join(f"{100 * one:g}%" for one in shares if one is not None) or "min – max"

    def lanes(self) -> Lanes:
        """Bars: the first number shades them."""
        value = next(iter(self.numbers), None)
        keys = sorted(self.by_size[:MOST_LANES])
        if (left := len(self.by_size) - len(keys)) > 0:
            self._note_left(len(keys), left)
        low, high = self.span
        column = max(1, -(-(high - low) // BAR_COLUMNS))
        number = self.numbers[value].fill_nan(None) if value else pl.lit(None, pl.Float64)
        drawn = self.rows.filter(pl.col("_key").is_in(keys)).select("_key", "_label", "_start", "_end", value=number)
        traces = []
        for part in sorted(drawn.partition_by("_key"), key=lambda one: keys.index(one["_key"][0])):
            kept = part.with_columns(merged=pl.lit(1))
            if part.height > BAR_COLUMNS:  # bars that start in the same column of pixels are one
                kept = part.group_by((pl.col("_start") - low) // column, maintain_order=True).agg(
                    _from=pl.col("_start").min(), _end=pl.col("_end").max(), value=pl.col("value").max(), merged=pl.len()
                )
                kept = kept.with_columns(_start=pl.col("_from"))
            values = kept["value"].fill_null(np.nan).to_numpy().astype(np.float64)
            traces.append(
                Trace(
                    part["_label"][0],
                    kept["_start"].to_numpy(),
                    kept["_end"].to_numpy(),
                    np.arange(kept.height),
                    {value or "": np.where(np.isfinite(values), values, np.nan)},
                    part.height,
                    kept["merged"].to_list() if kept.height < part.height else None,
                )
            )
        shade = f", with the greatest {value} of them" if value else ""
        self._note_thinned(traces, f"bars that begin in the same column of pixels are one{shade}")
        return Lanes(traces, value)

    def _note_thinned(self, traces: list[Trace], how: str) -> None:
        if any(len(one) < one.size for one in traces):
            self._note(f"{sum(one.size for one in traces):,} windows are thinned to what pixels can show: {how}.")
        gone = sum(int(self.rows.select((~expr.is_finite()).sum()).item() or 0) for expr in self.numbers.values())
        if gone:
            self._note(f"{count(gone, 'value')} not finite: gaps.")

    def _note_left(self, drawn: int, left: int) -> None:
        self._note(f"The {drawn} keys with the most windows are drawn, {left:,} {'is' if left == 1 else 'are'} left out.")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _shares(self) -> Iterator[tuple[list[str], list[str], list[tuple[str, str]]]]:
        """Columns that share an axis: (lines, all columns, bands)."""
        units: dict[Any, list[str]] = {}
        whose = self.whose
        for name, one in whose.items():
            unit: Any = name
            if one and one.function in _VALUES and one.inputs:
                unit = one.inputs[0].text, "value"
            elif one and one.function in _COUNTS:
                unit = "", "count"
            units.setdefault(unit, []).append(name)
        ranges = {name: _range(self.rows.select(expr).to_series()) for name, expr in self.numbers.items()}
        for names in units.values():
            bands = _bands({name: one for name in names if (one := whose[name])})
            banded = [name for pair in bands for name in pair]
            middle = [name for name in names if name not in banded and _share(whose[name]) is not None]
            if bands:
                yield middle, [*banded, *middle], bands
            rest = [name for name in names if name not in banded and not (bands and name in middle)]
            while rest:
                together = rest[:1]
                for name in rest[1:]:
                    if _comparable([ranges[one] for one in [*together, name]]):
                        together.append(name)
                yield together, list(together), []
                rest = [name for name in rest if name not in together]


def _read(name: str) -> Aggregate | None:
    try:
        return aggregate(name)
    except (ValueError, TypeError):
        return None


def _share(asked: Aggregate | None) -> float | None:
    """The share that a quantile asks for."""
    if asked is None or asked.function not in _QUANTILES:
        return None
    return 0.5 if asked.function == "median" else float(asked.param("q"))


def _bands(asked: dict[str, Aggregate]) -> list[tuple[str, str]]:
    """Pairs of quantiles that leave out as much below as above, the widest first; and the bounds of an m4."""
    shares = {name: share for name, one in asked.items() if (share := _share(one)) is not None}
    pairs = [
        (low, high)
        for low, at in sorted(shares.items(), key=lambda one: one[1])
        for high, other in shares.items()
        if at < 0.5 and abs(at + other - 1) < 1e-9 and asked[low].function == asked[high].function
    ]
    return pairs + [
        (name, name[: -len("min")] + "max")
        for name, one in asked.items()
        if one.function == "m4" and name.endswith(" min")
    ]


def _range(column: pl.Series) -> tuple[float, float]:
    finite = column.filter(column.is_finite().fill_null(False))
    return (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)  # type: ignore[arg-type]


def _comparable(ranges: list[tuple[float, float]]) -> bool:
    """Whether no line would be flat beside the others."""
    whole = max(high for _, high in ranges) - min(low for low, _ in ranges)
    return all(8 * (high - low) >= whole for low, high in ranges)


def _title(columns: list[str], whose: list[Aggregate | None]) -> str:
    """What the columns of a block have in common."""
    if len(columns) == 1 or any(one is None for one in whose):
        return ", ".join(columns)
    inputs = {one.inputs[0].text for one in whose if one and one.inputs}
    functions = {one.function for one in whose if one}
    if functions == {"m4"}:
        return columns[0].removesuffix(" min")
    if functions <= _COUNTS:
        return ", ".join(columns)
    return ("quantiles of " if functions <= _QUANTILES else "") + " and ".join(sorted(inputs))


# --- from the table of results ------------------------------------------------------------------------------


def answer(results: pl.DataFrame, name: str, query: Query | None) -> Answer:
    """What there is to show of one query, from the results of all."""
    rows = results.filter(pl.col("query").cast(pl.String) == name)
    if query:
        own = [*query.by, *(one.name for one in query.aggregates)]
        own = [one for one in dict.fromkeys(own) if one in rows.columns]
        keys = [one for one in query.by if one in rows.columns]
    else:
        own = [one for one in rows.columns if one not in RESERVED and rows[one].null_count() < rows.height]
        place = rows.columns.index("window_start")
        keys = [one for one in own if rows.columns.index(one) < place]
    marks = [one for one in ("position", "revision", "retracted") if one in rows.columns]
    rows = rows.select(*keys, "window_start", "window_end", *marks, *(one for one in own if one not in keys))
    before, retracted = rows.height, 0
    window = query.window if query else None
    same = [*keys, "window_start", "window_end"]
    if isinstance(window, Session | DataDrivenWindow):
        same = [*keys, "window_start"]
    elif isinstance(window, Latest):
        same = [*keys, "window_end"]
    elif "position" in marks and (isinstance(window, Counting) or rows["position"].null_count() < rows.height):
        same = [*keys, "position"]
    if "revision" in marks:  # windows of the same start, of tied events, may be several: all of the last revision stay
        rows = rows.filter(pl.col("revision") == (pl.col("revision").max().over(same) if same else pl.col("revision").max()))
    superseded = before - rows.height
    if "retracted" in marks:
        gone = pl.col("retracted").fill_null(False).cast(pl.Boolean)
        retracted = int(rows.select(gone.sum()).item())
        rows = rows.filter(~gone)
    label = pl.concat_str([pl.col(one).cast(pl.String).fill_null("null") for one in keys], separator=" · ")
    rows = rows.sort([*keys, "window_start", "window_end"], maintain_order=True).with_columns(
        _start=pl.col("window_start").cast(pl.Int64),
        _end=pl.col("window_end").cast(pl.Int64),
        _label=label if keys else pl.lit(""),
        _key=pl.struct(keys).rle_id().cast(pl.Int64) if keys else pl.lit(0, pl.Int64),
    )
    return Answer(name, query, keys, rows, superseded, retracted)
