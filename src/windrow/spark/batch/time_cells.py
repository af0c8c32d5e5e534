"""Cells of time around an origin, the wider the further out, so that no pass has to find where events begin and end.

    0 … 16,383: a unit each │ 8,192 cells of two units │ 8,192 of four │ 8,192 of eight │ …     and the same before it

That is how floating-point numbers lie around 0: of the distance from the origin the leading 14 bits are kept. Wherever
the events end, their last octave has 8,192 cells, and one event far out adds one cell. Cells are numbered in the order
of time, by a few operations on bits that Spark compiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

from windrow.core.slices.binding import quoted
from windrow.core.windows.fixed import FURTHEST

BITS = 14
NOWHERE = 2**62  # in place of the number of a cell; no cell has it


@dataclass(frozen=True)
class Cells:
    """Cells around a time; the narrowest are 2**unit wide."""

    origin: int
    unit: int

    def placed(self, events: DataFrame, time: str, cell: str) -> DataFrame:
        """The events with the number of their cell, NOWHERE if they have no time.

        It is never null: the optimizer would write out `IS NOT NULL` of it in terms of the time, all steps repeated.
        """
        t, distance, sign, out, level = (quoted(name) for name in (time, *(f"{cell} {n}" for n in range(4))))
        kept = t if self.unit else f"GREATEST(-{FURTHEST}L, LEAST({FURTHEST}L, {t}))"  # else `-` might overflow
        steps = {
            distance: f"SHIFTRIGHT({kept} - ({self.origin}L), {self.unit})",
            sign: f"SHIFTRIGHT({distance}, 63)",
            out: f"{distance} ^ {sign}",
        }
        bits = f"SHIFTRIGHT({out}, {BITS})"  # all below the highest one are set, so that they can be counted
        for n, by in enumerate((1, 2, 4, 8, 16, 32), 4):
            steps[quoted(f"{cell} {n}")] = f"{bits} | SHIFTRIGHT({bits}, {by})"
            bits = quoted(f"{cell} {n}")
        steps[level] = f"BIT_COUNT({bits})"
        number = f"({level} * {2 ** (BITS - 1)}L + SHIFTRIGHT({out}, {level})) ^ {sign}"
        steps[quoted(cell)] = f"COALESCE({number}, {NOWHERE}L)"
        return events.selectExpr("*", *(f"{text} AS {name}" for name, text in steps.items()))

    def bounds(self, cell: int) -> tuple[int, int]:
        """The first time that lies in a cell, and the first after it."""
        number = cell if cell >= 0 else ~cell
        level = max(0, number // 2 ** (BITS - 1) - 1)
        begin = (number - level * 2 ** (BITS - 1)) << level
        end = begin + (1 << level)
        if cell < 0:
            begin, end = -end, -begin
        ends = (self.origin + (at << self.unit) for at in (begin, end))
        first, after = (max(-FURTHEST, min(at, FURTHEST)) for at in ends)
        return first, after
