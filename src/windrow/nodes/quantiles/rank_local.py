"""A local node's side of quantiles of counting windows: the bags between boundaries, and what the root asks of them.

    the root ── which ranks lie between two boundaries ──▶ the bag of their events, its units ──▶
             ── which units may hold a rank ──▶ their values ──▶

Everything follows from the events of a strand, which are kept as long as something may be asked of them
(`counting.Told.kept`), so that a node that was started again answers the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from windrow.core.stream.job_slicer import Tables
from windrow.nodes.counting.ordered_log import Strand
from windrow.nodes.counting.tables import Form, Key
from windrow.nodes.quantiles.protocol import UNITS, bag_of, steps_of, units_of


class Which(NamedTuple):
    """A bag: the key, and the ranks between which its events lie."""

    bag: str
    key: Key
    lo: int
    hi: int


class RankBags:
    """The bags of one counted group at a local node."""

    def __init__(self, form: Form, node: str, unit: int | None) -> None:
        self.form, self.node, self.unit = form, node, unit
        self._made: dict[Which, tuple[pl.Series, pl.Series]] = {}
        self._answered: set[tuple[Which, int]] = set()
        self._out: list[tuple[Which, int, int]] = []  # of which bag, from which place to which

    def hear(self, tables: Mapping[str, pl.DataFrame], strands: Mapping[Key, Strand]) -> None:
        """The root asks; what was answered is on its way."""
        assert self.form.bags is not None
        size = len(self.form.keys)
        for bag in self.form.bags.bags:
            wanted = tables.get(f"{self.form.name}|wanted {bag}")
            if wanted is None:
                continue
            columns = ["send", "row", *self.form.keys, "lo", "hi"]
            for send, row, *rest in self.form.with_plain_keys(wanted).select(columns).iter_rows():
                which = Which(bag, tuple(rest[:size]), send, row)
                strand, (lo, hi) = strands.get(which.key), rest[size:]
                if strand is None or not strand.start <= send < row <= strand.top or (which, lo) in self._answered:
                    continue
                self._answered.add((which, lo))
                if which not in self._made:
                    self._made[which] = bag_of(strand.between(send, row), self.form.bags.bags[bag])
                self._out.append((which, lo, hi))

    def forget(self, key: Key, rank: int) -> None:
        """Nothing is asked of events of a key before a rank any more."""
        self._made = {one: made for one, made in self._made.items() if one.key != key or one.hi > rank}
        self._answered = {one for one in self._answered if one[0].key != key or one[0].hi > rank}

    def tables(self) -> Tables:
        """The answers that are to be sent."""
        found = Tables()
        for bag in dict.fromkeys(which.bag for which, *_ in self._out):
            mine = [one for one in self._out if one[0].bag == bag]
            units = [which for which, lo, _ in mine if lo == UNITS]
            values = [one for one in mine if one[1] != UNITS]
            if units:
                found[f"{self.form.name}|units {bag}"] = self._units(bag, units)
            if values:
                found[f"{self.form.name}|values {bag}"] = self._values(bag, values)
        self._out = []
        return found

    def _named(self, several: list[Which]) -> dict[str, pl.Series]:
        """Which bags these are."""
        assert self.form.bags is not None
        rows = [(self.node, which.lo, which.hi, *which.key) for which in several]
        types = {"node": pl.String(), "send": pl.Int64(), "row": pl.Int64(), **self.form.keys}
        named = pl.DataFrame(rows, schema=types, orient="row")
        return {name: named[name].cast(dtype) for name, dtype in self.form.bags.named.items()}

    def _units(self, bag: str, several: list[Which]) -> pl.DataFrame:
        form = self.form.bags
        assert form is not None
        values, counts = zip(*(self._made[which] for which in several), strict=True)
        sizes = np.array([len(one) for one in values])
        once = np.array([len(one) == int(one.sum()) for one in counts])
        # bags that had better travel whole have units of one value
        step = np.maximum(1, steps_of(sizes, once, form.asked(bag), self.unit))
        units = units_of(pl.concat(values), pl.concat(counts), sizes, step)
        columns: dict[str, Any] = {**self._named(several), "step": step, "entries": sizes}
        return pl.DataFrame(columns).with_columns(units).select(*form.units(bag))

    def _values(self, bag: str, several: list[tuple[Which, int, int]]) -> pl.DataFrame:
        form = self.form.bags
        assert form is not None
        parts = [[part[lo:hi] for part in self._made[which]] for which, lo, hi in several]
        values, counts = zip(*parts, strict=True)
        named = {**self._named([which for which, *_ in several]), "lo": pl.Series([lo for _, lo, _ in several])}
        return form.answer(bag, named, values, counts)
