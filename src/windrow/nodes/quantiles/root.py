"""The root's side of quantiles: which units of the bags at nodes can hold a rank, and bags that have what is asked.

    slices, units ──▶ windows that are due ── a rank may lie in several units ──▶ what the root has to ask for
                                           └─ else: bags that have what is asked ──▶ answers, as ever

**Bags that have what is asked.** Units that were answered are there as their values, and all others as their last value
so many times. The n-th of that is the upper bound of the n-th of all values (`refine.bounds`), and where the lower one
is the same, it is the n-th. So windows are answered from such bags exactly as from whole ones.

What a node that is silent would have to tell is left out of its bags.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import numpy as np
import polars as pl

from windrow.core.arrays.range_queries import Ints, covered, ramp
from windrow.core.assemble.due import Rows, Windows
from windrow.core.operators.multiset import flat, lists
from windrow.core.slices.table import BAGS
from windrow.core.windows.ordered import Mask
from windrow.nodes.quantiles.protocol import UNITS, BagForm
from windrow.nodes.refine import bounds, undecided

PLACE = "_place"  # a column: of a slice, its place in the table of all


class Store:
    """The units of one kind of bag, and the values that have come of them."""

    def __init__(self, form: BagForm, bag: str) -> None:
        self.form, self.bag = form, bag
        self.units = pl.DataFrame(schema=form.units(bag) | {"seen": pl.Boolean()})
        self.values = pl.DataFrame(schema=form.values(bag))

    def add(self, units: pl.DataFrame | None, values: pl.DataFrame | None) -> None:
        """Units and values that have come; a node that was started again may say twice what it was asked."""
        if units is not None:
            made = units.select(*self.form.units(self.bag))
            made = made.with_columns(_counts(units), seen=pl.lit(self.form.on_demand))
            self.units = pl.concat([self.units, made])
            if self.form.on_demand:
                self.units = self.units.unique(self.form.identity, keep="first", maintain_order=True)
        if values is not None:
            values = values.filter(pl.col("values").list.len() > 0).select(*self.form.values(self.bag))
            values = self.known(values)
            ones = pl.col("values").list.eval(pl.lit(1, pl.Int64))
            both = pl.concat([self.values, values.with_columns(pl.coalesce("counts", ones))])
            self.values = both.unique([*self.form.identity, "lo"], keep="first", maintain_order=True)

    def see(self, names: pl.DataFrame) -> None:
        """The slices of these bags have come."""
        came = names.with_columns(_came=pl.lit(True))
        found = self._joined(self.units.select(self.form.identity), came, "left")["_came"].fill_null(False)
        self.units = self.units.with_columns(seen=pl.col("seen") | found)

    def forget(self, names: pl.DataFrame) -> None:
        """Only bags that slices speak of, or that come with slices that have not come, can be asked for."""
        names = names.select(self.form.identity)
        waiting = pl.concat([names, self.units.filter(~pl.col("seen")).select(names.columns)])
        self.units, self.values = (self._joined(table, waiting, "semi") for table in (self.units, self.values))

    def _joined(
        self, left: pl.DataFrame, right: pl.DataFrame, how: Literal["semi", "anti", "inner", "left"]
    ) -> pl.DataFrame:
        """Tables by the bag that they speak of."""
        return left.join(right, on=self.form.identity, how=how, nulls_equal=True, maintain_order="left")

    def drop(self, names: pl.DataFrame) -> None:
        """Forget these bags."""
        self.units, self.values = (self._joined(table, names, "anti") for table in (self.units, self.values))

    def known(self, names: pl.DataFrame) -> pl.DataFrame:
        """Those of which units have come."""
        return self._joined(names, self.units, "semi")

    def missing(self, names: pl.DataFrame) -> pl.DataFrame:
        """The bags of which no units have come."""
        return self._joined(names, self.units, "anti")

    def entries(self, names: pl.DataFrame) -> Entries:
        """What is known of the bags of slices: units, and values where they have come."""
        units = self.units.select(
            name for name in self.units.columns if name in self.form.identity or name not in names.columns
        )
        bags = self._joined(names, units, "inner")
        first, sizes = flat(bags["first"])
        last, count = flat(bags["last"])[0], flat(bags["count"])[0].to_numpy()
        bag = np.repeat(np.arange(bags.height), sizes)
        lo = ramp(sizes) * bags["step"].to_numpy()[bag]
        begins = bags.select(*self.form.identity, "step", PLACE, _begin=pl.Series(np.cumsum(sizes) - sizes))
        came = self._joined(begins, self.values, "inner")
        known = np.zeros(len(lo), np.bool_)
        known[(came["_begin"] + came["lo"] // came["step"]).to_numpy()] = True
        value, each = flat(came["values"])
        rest, place = pl.Series(~known), bags[PLACE].to_numpy()[bag]
        return Entries(
            np.concatenate((place[~known], np.repeat(came[PLACE].to_numpy(), each))),
            pl.concat([first.filter(rest), value]),
            pl.concat([last.filter(rest), value]),
            np.concatenate((count[~known], flat(came["counts"])[0].to_numpy())),
            np.concatenate((bag[~known], np.full(len(value), -1))),
            np.concatenate((lo[~known], np.zeros(len(value), np.int64))),
            bags,
        )


class Entries(NamedTuple):
    """Units and values of bags: of which slice, between which values, how many; and which unit it is."""

    place: Ints
    first: pl.Series
    last: pl.Series
    weight: Ints
    bag: Ints  # -1 for values
    lo: Ints
    bags: pl.DataFrame

    def add(self, table: pl.DataFrame, names: tuple[str, str]) -> Entries:
        """With the bags that have come whole."""
        values, sizes = flat(table[names[0]])
        place = np.repeat(table[PLACE].to_numpy(), sizes)
        return self._replace(
            place=np.concatenate((self.place, place)),
            first=pl.concat([self.first, values]),
            last=pl.concat([self.last, values]),
            weight=np.concatenate((self.weight, flat(table[names[1]])[0].to_numpy())),
            bag=np.concatenate((self.bag, np.full(len(values), -1))),
            lo=np.concatenate((self.lo, np.zeros(len(values), np.int64))),
        )

    def codes(self) -> tuple[Ints, Ints]:
        """First and last as numbers in the order of the values."""
        ranks = pl.concat([self.first, self.last]).rank("dense").cast(pl.Int64).to_numpy()
        return ranks[: len(self.first)], ranks[len(self.first) :]


class Due(NamedTuple):
    """Windows that are due, over slices in an order of their own."""

    rows: Rows
    windows: Windows


class Ranks:
    """The bags of a group that nodes keep, and what is to be asked of them."""

    def __init__(self, form: BagForm) -> None:
        self.form = form
        self.stores = {bag: Store(form, bag) for bag in form.bags}
        self.asks: dict[str, pl.DataFrame] = {}  # of each kind of bag, the units that the root waits for
        self.lost = pl.DataFrame(schema=form.named)  # bags that are left out
        self.counts = {"units": 0, "asked": 0, "left_out": 0}
        self.is_news = True  # whether ranks may be known that were not

    # --- what comes in --------------------------------------------------------------------------------------------

    def hear(self, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        """Units and values of a batch; returns the bags that their nodes do not have any more."""
        gone = []
        for bag, store in self.stores.items():
            units, values = (tables.get(f"{self.form.name}|{what} {bag}") for what in ("units", "values"))
            if units is None and values is None:
                continue
            store.add(units, values)
            answered = []
            if units is not None:
                self.counts["units"] += int(units["first"].list.len().sum())
                answered.append(units.select(*self.form.identity, lo=pl.lit(UNITS, pl.Int64)))
            if values is not None:
                empty = values.filter(pl.col("values").list.len() == 0)
                gone.append(store.known(empty).select(self.form.identity))
                answered.append(values.select(*self.form.identity, "lo"))
            if bag in self.asks:
                self._answer(bag, pl.concat(answered))
        return pl.concat(gone) if gone else self.lost[:0]

    def know(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """Units of bags that take the place of what is known of them; all their values are among them."""
        for bag, store in self.stores.items():
            units = tables.get(f"{self.form.name}|units {bag}")
            if units is None:
                continue
            store.drop(units)
            store.add(units, None)
            if bag in self.asks:
                self._answer(bag, self.asks[bag].join(units, on=self.form.identity, how="semi", nulls_equal=True))

    def _answer(self, bag: str, answered: pl.DataFrame) -> None:
        left = self._unasked(self.asks[bag], answered)
        self.asks = {**self.asks, bag: left} if left.height else {k: v for k, v in self.asks.items() if k != bag}
        self.is_news |= not self.asks

    def _unasked(self, asks: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
        """Those that are not among the others."""
        return asks.join(others, on=[*self.form.identity, "lo"], how="anti", nulls_equal=True, maintain_order="left")

    def see(self, table: pl.DataFrame) -> None:
        """Slices have come."""
        names = self.names(table)
        for store in self.stores.values() if names.height else ():
            store.see(names)

    def lose(self, bags: pl.DataFrame) -> pl.DataFrame:
        """Leave bags out of which nobody can tell more; returns those that were not yet."""
        fresh = bags.select(*self.form.named).unique(maintain_order=True)
        fresh = fresh.join(self.lost, on=self.form.identity, how="anti", nulls_equal=True, maintain_order="left")
        if fresh.height:
            self.lost, self.is_news = pl.concat([self.lost, fresh]), True
            self.counts["left_out"] += fresh.height
        return fresh

    # --- ranks ----------------------------------------------------------------------------------------------------

    def names(self, table: pl.DataFrame) -> pl.DataFrame:
        """Of which slice, in their order, which bags are at nodes, but for those that are left out."""
        more = [name for name in (PLACE, *self.form.identity) if name in table.columns]
        found = table.select(*more, BAGS).explode(BAGS).drop_nulls(BAGS).unnest(BAGS)
        if self.lost.height:
            found = found.join(self.lost, on=self.form.identity, how="anti", nulls_equal=True, maintain_order="left")
        return found

    def find(self, due: Sequence[Due], gone: set[str]) -> tuple[list[Mask], pl.DataFrame]:
        """Find what is to be asked: which windows have to wait for it, and the bags that are left out from now on,
        because they are at nodes that have gone."""
        left_out = []
        while True:
            asks, waits = self._undecided(due)
            lost = [table.filter(pl.col("node").is_in(list(gone))) for table in asks.values()] if gone else []
            if not any(table.height for table in lost):
                break
            left_out += [self.lose(table) for table in lost]
        for bag, table in asks.items():
            fresh = self._unasked(table, self.asks[bag]) if bag in self.asks else table
            self.counts["asked"] += fresh.filter(pl.col("lo") != UNITS).height
        self.asks, self.is_news = asks, False
        return waits, pl.concat(left_out) if left_out else self.lost[:0]

    def _undecided(self, due: Sequence[Due]) -> tuple[dict[str, pl.DataFrame], list[Mask]]:
        """The units that ranks of windows may lie in, and which windows these are."""
        asks: dict[str, pl.DataFrame] = {}
        waits = [np.zeros(len(windows.lo), np.bool_) for _, windows in due]
        for bag, store in self.stores.items():
            found = []
            for (rows, windows), waiting in zip(due, waits, strict=True):
                used = covered(windows.lo, windows.hi, len(rows))
                if self.form.on_demand:
                    missing = store.missing(self.names(rows.table))
                    found.append(self.units_of(missing))
                    lacks = np.append(0, np.cumsum(np.isin(rows.table[PLACE].to_numpy(), missing[PLACE].to_numpy())))
                    waiting |= lacks[windows.hi] > lacks[windows.lo]
                table = rows.table.filter(pl.Series(used))
                names = self.names(table)
                if not names.height:
                    continue  # all values are here
                entries = store.entries(names).add(table, self.form.columns(bag))
                open_, here = self._of_windows(bag, rows, windows, entries)
                found.append(self._values_of(entries, open_))
                waiting |= here
            asked = pl.concat(found) if found else pl.DataFrame()
            if asked.height:
                asks[bag] = asked.unique([*self.form.identity, "lo"], keep="first", maintain_order=True)
        return asks, waits

    def units_of(self, names: pl.DataFrame) -> pl.DataFrame:
        """Bags whose units are asked for."""
        place = pl.lit(UNITS, pl.Int64)
        return names.with_columns(lo=place, hi=place).select("node", *self.form.wanted)

    def _values_of(self, entries: Entries, open_: Mask) -> pl.DataFrame:
        """Units whose values are asked for."""
        named = dict.fromkeys([*self.form.named, *self.form.keys, *self.form.place, "step", "entries"])
        bags = entries.bags.select(*named)[entries.bag[open_]]
        lo = pl.Series("lo", entries.lo[open_])
        bags = bags.with_columns(lo, hi=pl.min_horizontal(lo + bags["step"], "entries"))
        return bags.select("node", *self.form.wanted)

    def _of_windows(self, bag: str, rows: Rows, windows: Windows, entries: Entries) -> tuple[Mask, Mask]:
        """Which entries have to be opened, and the windows for which they are."""
        first, last = entries.codes()
        is_unit = entries.bag >= 0
        open_ = np.zeros(len(first), np.bool_)
        waits = np.zeros(len(windows.lo), np.bool_)
        place = rows.table[PLACE].to_numpy()
        order = np.argsort(entries.place, kind="stable")
        sorted_ = entries.place[order]
        begin, stop = np.searchsorted(sorted_, place, "left"), np.searchsorted(sorted_, place, "right")
        at = order[np.repeat(begin, stop - begin) + ramp(stop - begin)]  # the entries in the order of the rows
        offset = np.append(0, np.cumsum(stop - begin))
        doubtful = np.append(0, np.cumsum((is_unit & (first < last))[at]))
        for number, (timeline, lo, hi) in enumerate(
            zip(windows.timeline.tolist(), offset[windows.lo].tolist(), offset[windows.hi].tolist(), strict=True)
        ):
            qs = self.form.qs.get((bag, timeline))
            if qs is None or doubtful[hi] == doubtful[lo]:
                continue
            mine = at[lo:hi]
            weight = entries.weight[mine]
            found = bounds(first[mine], last[mine], weight, ranks(qs, int(weight.sum())) + 1)
            here = undecided(first[mine], last[mine], found)
            if here.any():
                open_[mine[here]] = waits[number] = True
        return open_, waits

    def filled(self, table: pl.DataFrame, due: Iterable[Due]) -> pl.DataFrame:
        """Slices with bags that have what is asked, where windows are due; these know the places of their slices."""
        used = np.zeros(table.height, np.bool_)
        for rows, windows in due:
            used[rows.table[PLACE].to_numpy()[covered(windows.lo, windows.hi, len(rows))]] = True
        table = placed(table)
        chosen = table.filter(pl.Series(used))
        for bag, store in self.stores.items() if chosen[BAGS].list.len().sum() else ():
            columns = self.form.columns(bag)
            entries = store.entries(self.names(chosen)).add(chosen, columns)
            made = (
                pl.DataFrame({"place": entries.place, "value": entries.last, "count": entries.weight})
                .group_by("place", "value")
                .agg(pl.col("count").sum())
                .sort("place", "value")
            )
            sizes = np.bincount(made["place"].to_numpy(), minlength=table.height).astype(np.int64)
            table = table.with_columns(
                lists(made["value"], sizes).alias(columns[0]), lists(made["count"], sizes).alias(columns[1])
            )
        return table.drop(PLACE)

    def forget(self, table: pl.DataFrame) -> None:
        """Only bags that these slices speak of will be asked for."""
        names = self.names(table).select(*self.form.named)
        for store in self.stores.values():
            store.forget(names)
        if self.lost.height:
            held = table.select(*(name for name in self.form.keys if name in self.form.identity), BAGS)
            held = held.explode(BAGS).drop_nulls(BAGS).unnest(BAGS)
            self.lost = self.lost.join(held, on=self.form.identity, how="semi", nulls_equal=True, maintain_order="left")

    # --- what is kept ---------------------------------------------------------------------------------------------

    def take_over(self, other: Ranks) -> None:
        """Go on where those of an earlier plan stand."""
        self.lost, self.counts = other.lost, other.counts
        for bag, store in self.stores.items():
            if bag in other.stores:
                store.units, store.values = other.stores[bag].units, other.stores[bag].values

    def tables(self) -> dict[str, pl.DataFrame]:
        found = {"lost": self.lost}
        for bag, store in self.stores.items():
            found |= {f"units {quote(bag)}": store.units, f"values {quote(bag)}": store.values}
        return found | {f"asks {quote(bag)}": table for bag, table in self.asks.items()}

    def load(self, tables: Mapping[str, pl.DataFrame]) -> None:
        self.lost = tables.get("lost", self.lost)
        for bag, store in self.stores.items():
            store.units = tables.get(f"units {quote(bag)}", store.units)
            store.values = tables.get(f"values {quote(bag)}", store.values)
        asks = {bag: tables.get(f"asks {quote(bag)}") for bag in self.stores}
        self.asks = {bag: table for bag, table in asks.items() if table is not None}

    def header(self) -> dict[str, Any]:
        """What it knows beside its tables: with both, the same batches lead to the same windows at the same time."""
        return {"counts": self.counts, "news": self.is_news}

    def restore(self, header: Mapping[str, Any]) -> None:
        self.counts, self.is_news = dict(header["counts"]), header["news"]


def placed(table: pl.DataFrame) -> pl.DataFrame:
    """Slices with their places."""
    return table.with_row_index(PLACE).with_columns(pl.col(PLACE).cast(pl.Int64))


def ranks(qs: set[float], total: int) -> Ints:
    """The places, from 0, of the values that quantiles of so many are made of: those around q·(n-1)."""
    if not total:
        return np.empty(0, np.int64)
    exact = np.array(sorted(qs)) * (total - 1)
    below = np.floor(exact).astype(np.int64)
    return np.unique(np.concatenate((below, np.minimum(below + (exact > below), total - 1))))


def _counts(units: pl.DataFrame) -> pl.Series:
    """The count of each unit, also where every value is there once and nothing was said."""
    given = units["count"]
    if not given.null_count():
        return given
    sizes = units["first"].list.len().to_numpy().astype(np.int64)
    bag = np.repeat(np.arange(units.height), sizes)
    step = units["step"].to_numpy()[bag]
    known = np.minimum(step, units["entries"].to_numpy()[bag] - ramp(sizes) * step)
    return given.fill_null(lists(pl.Series(known), sizes)).alias("count")
