"""A query's answer: the last revision of each of its windows, and what follows from them for a picture.

Its **form** follows from the query's window, or, where there is no query, from how the windows lie:

    steps    windows that do not overlap: a level from start to end        ▔▔▁▁▔
    points   windows that do: a value at the end of each                   ╱╲╱
    bars     bounds that the events decide: a bar from start to end        ▬ ▬▬ ▬
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import polars as pl

from windrow.core.aggregates.formula import aggregate
from windrow.core.aggregates.functions import Aggregate
from windrow.core.query.query import RESERVED, Query
from windrow.core.windows.fixed import Cumulating, Session, Sliding, Tumbling
from windrow.core.windows.ordered import Counting, DataDrivenWindow, Latest

Form = Literal["steps", "points", "bars"]

# What is added to the rows, under names that no user's column has: bounds as integers, keys as numbers and as text.
FROM, TO, KEY, LABEL = OWN = ("windrow from", "windrow to", "windrow key", "windrow label")


@dataclass(frozen=True)
class Answer:
    """What there is to show of one query."""

    name: str
    query: Query | None
    keys: list[str]
    rows: pl.DataFrame  # key by key, each in the order of its windows
    superseded: int  # rows that a later revision replaced
    retracted: int  # windows that were taken back
    counted: bool = False  # bounds are positions, not times

    @property
    def table(self) -> pl.DataFrame:
        """The rows as they are, in the order of emission, without marks that say nothing here."""
        marks = [one for one in ("position", "revision", "retracted") if one in self.rows.columns]
        idle = [one for one in marks if not self.rows[one].cast(pl.Boolean, strict=False).any()]
        return self.rows.sort(["window_end", KEY, "window_start"], maintain_order=True).drop(*OWN, *idle)

    @property
    def window(self) -> Any:
        return self.query.window if self.query else None

    @property
    def temporal(self) -> bool:
        return self.rows.schema["window_start"].is_temporal() and not self.counted

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """From the first start to the last end."""
        low, high = self.rows.select(pl.col(FROM).min(), pl.col(TO).max()).row(0)
        return int(low or 0), int(high or 0)

    @cached_property
    def by_size(self) -> list[int]:
        """The keys, those with most windows first."""
        sizes = self.rows.group_by(KEY).len().sort(["len", KEY], descending=[True, False])
        return sizes[KEY].to_list()

    @cached_property
    def form(self) -> Form:
        match self.window:
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
        follows = pl.col(KEY) == pl.col(KEY).shift(1)
        overlap, lengths = self.rows.select(
            (follows & (pl.col(FROM) < pl.col(TO).shift(1))).any().alias("overlap"),
            (pl.col(TO) - pl.col(FROM)).n_unique().alias("lengths"),
        ).row(0)
        counted = "position" in self.rows.columns and self.rows["position"].null_count() < self.rows.height
        return "points" if overlap else "steps" if lengths <= 1 or counted or self.window else "bars"

    @cached_property
    def cadence(self) -> float:
        """How far apart the ends of two windows are where none is missing between them; infinite where nothing says."""
        match self.window:
            case Counting():
                return np.inf
            case Sliding(_, step) | Cumulating(_, step) | Latest(_, step):
                return float(step)
        apart = self.rows.select(apart=pl.col(TO).diff().over(KEY)).filter(pl.col("apart") > 0)
        return float(apart.select(pl.col("apart").mode().min()).item()) if apart.height else np.inf

    @cached_property
    def aggregates(self) -> dict[str, Aggregate | None]:
        """The aggregates by their columns, read from the names where there is no query."""
        if self.query:
            return {one.name: one for one in self.query.aggregates if one.name in self.rows.columns}
        own = [one for one in self.rows.columns if one not in (*RESERVED, *OWN, *self.keys)]
        return {name: _read(name) for name in own}

    @cached_property
    def numbers(self) -> dict[str, Number]:
        """What can be drawn against an axis."""
        found = {}
        for name, origin in self.aggregates.items():
            dtype, column = self.rows.schema[name], pl.col(name)
            if dtype.is_numeric():
                found[name] = Number(column.cast(pl.Float64), origin)
            elif isinstance(dtype, pl.Duration):
                found[f"{name} in seconds"] = Number(column.dt.total_microseconds() / 1e6, origin)
            elif origin and origin.function == "m4" and _is_numeric(dtype, "min"):
                parts = {one: column.struct.field(one).cast(pl.Float64) for one in ("min", "max")}
                found |= {f"{name} {one}": Number(part, origin) for one, part in parts.items()}
        return found


@dataclass(frozen=True)
class Number:
    """A column of doubles, and the aggregate that it comes from, where that is known."""

    column: pl.Expr
    aggregate: Aggregate | None


def _is_numeric(dtype: pl.DataType, part: str) -> bool:
    return isinstance(dtype, pl.Struct) and any(one.name == part and one.dtype.is_numeric() for one in dtype.fields)


def _read(name: str) -> Aggregate | None:
    try:
        return aggregate(name)
    except (ValueError, TypeError):
        return None


# --- from the table of results ------------------------------------------------------------------------------


def answer(results: pl.DataFrame, name: str, query: Query | None) -> Answer:
    """What there is to show of one query, from the results of all."""
    rows = results.filter(pl.col("query").cast(pl.String) == name)
    columns = rows.columns
    if query:
        keys = [one for one in query.by if one in columns]
        values = [one.name for one in query.aggregates if one.name in columns]
    else:  # keys stand before the bounds, aggregates behind them
        own = [one for one in columns if one not in RESERVED and rows[one].null_count() < rows.height]
        keys = [one for one in own if columns.index(one) < columns.index("window_start")]
        values = [one for one in own if one not in keys]
    marks = [one for one in ("position", "revision", "retracted") if one in columns]
    rows = rows.select(*keys, "window_start", "window_end", *marks, *values)
    before, retracted = rows.height, 0
    if "revision" in columns:  # windows of tied events can have the same bounds: all rows of the last revision stay
        last = pl.col("revision").max().over(_identity(query, keys, rows))
        rows = rows.filter(pl.col("revision") == last)
    superseded = before - rows.height
    if "retracted" in columns:
        gone = rows["retracted"].cast(pl.Boolean).fill_null(False)
        rows, retracted = rows.filter(~gone), int(gone.sum())
    texts = [pl.col(one).cast(pl.String).fill_null("null") for one in keys]
    order = [*keys, "window_start", "window_end", *(one for one in marks if one == "position")]
    rows = rows.sort(order, maintain_order=True).with_columns(
        pl.col("window_start").cast(pl.Int64).alias(FROM),
        pl.col("window_end").cast(pl.Int64).alias(TO),
        (pl.struct(keys).rle_id().cast(pl.Int64) if keys else pl.lit(0, pl.Int64)).alias(KEY),
        (pl.concat_str(texts, separator=" · ") if keys else pl.lit("")).alias(LABEL),
    )
    found = Answer(name, query, keys, rows, superseded, retracted)
    if query and isinstance(query.window, Counting) and rows.height > 1 and found.bounds[0] == found.bounds[1]:
        place = pl.col("position")  # all at the same time: they are drawn over their positions
        found = replace(
            found, rows=rows.with_columns(place.alias(FROM), (place + query.window.n).alias(TO)), counted=True
        )
    return found


def _identity(query: Query | None, keys: list[str], rows: pl.DataFrame) -> list[str]:
    """By what a window is known from one revision to the next."""
    window: Any = query.window if query else None
    match window:
        case Session() | DataDrivenWindow():
            return [*keys, "window_start"]
        case Latest():
            return [*keys, "window_end"]
    if "position" in rows.columns and (isinstance(window, Counting) or rows["position"].null_count() < rows.height):
        return [*keys, "position"]
    return [*keys, "window_start", "window_end"]
