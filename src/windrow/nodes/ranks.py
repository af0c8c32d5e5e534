"""The root's side of quantiles: which units of the bags at nodes can hold a rank, and windows once all ranks are known.

    slices, units ──▶ windows that are due ── a rank may lie in several units ──▶ what the root has to ask for
                                           └─ else: bags that have what is asked ──▶ answers, as ever

**Bags that have what is asked.** Units that were answered are there as their values, and all others as their last value
so many times. The n-th of that is the upper bound of the n-th of all values (`refine.bounds`), and where the lower one
is the same, it is the n-th. So windows are answered from such bags exactly as from whole ones.

The group has a watermark of its own, which waits for the answers while other groups go on. What a node that is silent
would have to tell is left out of its bags; the events count as late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from windrow.assembly import Rows, Windows, session_windows
from windrow.bags import flat, lists
from windrow.groups import Group
from windrow.measures import Measure, Span
from windrow.nodes.bagforms import BAG, BagForm
from windrow.nodes.refine import bounds, undecided
from windrow.ordered import Mask
from windrow.ranges import Ints, covered, ramp
from windrow.revisions import Emitted
from windrow.sessions import sessions
from windrow.slices import BAGS
from windrow.state import Change, GroupState
from windrow.windows import INT64_MAX, INT64_MIN

_PLACE = "_place"  # of a slice, in the table of all


class Store:
    """The units of one kind of bag, and the values that have come of them."""

    def __init__(self, form: BagForm, bag: str) -> None:
        self.form, self.bag = form, bag
        self.units = pl.DataFrame(schema=form.units(bag) | {"seen": pl.Boolean()})
        self.values = pl.DataFrame(schema=form.values(bag))

    def add(self, units: pl.DataFrame | None, values: pl.DataFrame | None) -> None:
        """Units and values that have come; a node that was started again may say values twice."""
        if units is not None:
            made = units.select(*self.form.units(self.bag)).with_columns(_counts(units), seen=pl.lit(False))
            self.units = pl.concat([self.units, made])
        if values is not None:
            values = (
                values.filter(pl.col("values").list.len() > 0)
                .select(*self.form.values(self.bag))
                .join(self.units, on=BAG, how="semi", maintain_order="left")
            )
            ones = pl.col("values").list.eval(pl.lit(1, pl.Int64))
            both = pl.concat([self.values, values.with_columns(pl.coalesce("counts", ones))])
            self.values = both.unique([*BAG, "lo"], keep="first", maintain_order=True)

    def see(self, names: pl.DataFrame) -> None:
        """The slices of these bags have come."""
        came = names.with_columns(_came=pl.lit(True))
        found = self.units.select(BAG).join(came, on=BAG, how="left", maintain_order="left")["_came"].fill_null(False)
        self.units = self.units.with_columns(seen=pl.col("seen") | found)

    def forget(self, names: pl.DataFrame) -> None:
        """Only bags that slices speak of, or that come with slices that have not come, can be asked for."""
        waiting = pl.concat([names, self.units.filter(~pl.col("seen")).select(BAG)])
        self.units = self.units.join(waiting, on=BAG, how="semi", maintain_order="left")
        self.values = self.values.join(waiting, on=BAG, how="semi", maintain_order="left")

    def entries(self, names: pl.DataFrame) -> Entries:
        """What is known of the bags of slices: units, and values where they have come."""
        bags = names.join(self.units, on=BAG, how="inner", maintain_order="left")
        first, sizes = flat(bags["first"])
        last, count = flat(bags["last"])[0], flat(bags["count"])[0].to_numpy()
        bag = np.repeat(np.arange(bags.height), sizes)
        lo = ramp(sizes) * bags["step"].to_numpy()[bag]
        came = bags.select(*BAG, "step", _PLACE, _begin=pl.Series(np.cumsum(sizes) - sizes)).join(
            self.values, on=BAG, how="inner", maintain_order="left"
        )
        known = np.zeros(len(lo), np.bool_)
        known[(came["_begin"] + came["lo"] // came["step"]).to_numpy()] = True
        value, each = flat(came["values"])
        rest, place = pl.Series(~known), bags[_PLACE].to_numpy()[bag]
        return Entries(
            np.concatenate((place[~known], np.repeat(came[_PLACE].to_numpy(), each))),
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
        place = np.repeat(table[_PLACE].to_numpy(), sizes)
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


class RefinedState(GroupState):
    """The state of a refined group: slices whose bags are at nodes, and what is known of these."""

    def __init__(self, group: Group, form: BagForm, measure: Measure) -> None:
        self.form, self.measure = form, measure
        self.stores = {bag: Store(form, bag) for bag in form.bags}
        self.asks: dict[str, pl.DataFrame] = {}  # of each kind of bag, the units that the root waits for
        self.sends: dict[str, int] = {}  # of each node, the last of which units have come
        self.settled: dict[str, tuple[int, int]] = {}  # what nodes need not keep
        self.lost: set[tuple[str, int, int]] = set()  # bags that are left out
        self.late: Counter[str] = Counter()  # their events, by node, until somebody asks
        self.counts = {"units": 0, "asked": 0}
        self._checked = INT64_MIN  # up to here it is known what has to be asked
        self._must_check = True
        self._next_found = INT64_MAX  # when the first session closes after what was looked at last
        super().__init__(group, form.schema, form.schema)

    # --- what comes in --------------------------------------------------------------------------------------------

    def hear(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """Units and values of a batch."""
        for bag, store in self.stores.items():
            units, values = (tables.get(f"{self.form.name}|{what} {bag}") for what in ("units", "values"))
            if units is None and values is None:
                continue
            store.add(units, values)
            if values is not None:
                self._lose(values.filter(pl.col("values").list.len() == 0).join(store.units, on=BAG, how="semi"))
            if units is not None:
                self.counts["units"] += int(units["first"].list.len().sum())
                for node, send in units.group_by("node").agg(pl.col("send").max()).iter_rows():
                    self.sends[node] = max(self.sends.get(node, 0), send)
            if values is not None and bag in self.asks:
                left = self.asks[bag].join(values, on=[*BAG, "lo"], how="anti", maintain_order="left")
                self.asks = (
                    {**self.asks, bag: left} if left.height else {k: v for k, v in self.asks.items() if k != bag}
                )
                self._must_check |= not self.asks

    def see(self, table: pl.DataFrame) -> None:
        """Slices have come."""
        names = _names(table)
        for store in self.stores.values() if names.height else ():
            store.see(names)
        first = table["first" if self.schema.has_runs else "slice_start"].min()
        self._must_check |= first is not None and int(first) < self._checked  # type: ignore[arg-type]

    def check_again(self) -> None:
        """Nodes have come or gone."""
        self._must_check = True

    # --- windows --------------------------------------------------------------------------------------------------

    def settle(self, watermark: int, gone: set[str]) -> Iterator[Emitted]:
        """The windows before a watermark whose ranks are known; `asks` is what is missing of the others."""
        before = self.measure.watermark
        if watermark <= before:
            return
        since = max(self._checked, before)
        is_due = self.may_be_due(Span(since, watermark, since, watermark)) or watermark == INT64_MAX > since
        if not (is_due or self._must_check):
            if not self.asks:
                self.measure.watermark = watermark
            return
        self._must_check, self._checked = False, watermark
        first_open = self._find(self.measure.span(watermark), gone)
        next_close = self._next_found
        upto = watermark if first_open is None else first_open - 1
        if upto > before:
            span = self.measure.span(upto)
            self.measure.watermark = upto
            yield from list(self.step(span))
        if self.asks:
            self._next_close = next_close  # of sessions that are not waiting

    def _find(self, span: Span, gone: set[str]) -> int | None:
        """Find what is to be asked; returns when the first window ends that has to wait, None if none has to."""
        due = self._due(self.rows, span)
        while True:
            asks, first_open = self._undecided(due)
            lost = [table.filter(pl.col("node").is_in(list(gone))) for table in asks.values()] if gone else []
            if not any(table.height for table in lost):
                break
            for table in lost:
                self._lose(table)
        fresh = sum(
            table.join(self.asks[bag], on=[*BAG, "lo"], how="anti").height if bag in self.asks else table.height
            for bag, table in asks.items()
        )
        self.counts["asked"] += fresh
        self.asks = asks
        return first_open

    def _lose(self, asks: pl.DataFrame) -> None:
        """Leave bags out of which nobody can tell more."""
        for name in asks.select(BAG).unique(maintain_order=True).iter_rows():
            if name in self.lost:
                continue
            self._must_check = True
            self.lost.add(name)
            node, send, row = name
            of = (pl.col("node") == node) & (pl.col("send") == send) & (pl.col("row") == row)
            sizes = [int(store.units.filter(of)["count"].explode().sum()) for store in self.stores.values()]
            self.late[node] += max(sizes)

    def _due(self, rows: Rows, span: Span) -> list[Due]:
        """What a step would tell."""
        self._next_found = INT64_MAX
        rows = Rows(rows.table.with_row_index(_PLACE).with_columns(pl.col(_PLACE).cast(pl.Int64)), self.schema)
        found = [Due(rows, self.assembler.due(rows, span.before, span.now))]
        for view, timelines in self.session_views(rows):
            for one in sessions(view.runs, timelines):
                ends = one.last + one.gap
                self._next_found = min(self._next_found, int(ends[ends >= span.now].min(initial=INT64_MAX)))
                closes = one.take((ends >= span.before) & (ends < span.now))
                found.append(Due(view, session_windows(self.group.timelines[one.timeline], closes)))
        return [one for one in found if len(one.windows.lo)]

    def _entries(self, bag: str, table: pl.DataFrame) -> Entries:
        names = _names(table)
        if self.lost:
            out = pl.DataFrame(list(self.lost), schema=names.select(BAG).schema, orient="row")
            names = names.join(out, on=BAG, how="anti", maintain_order="left")
        return self.stores[bag].entries(names).add(table, self.form.columns(bag))

    def _undecided(self, due: list[Due]) -> tuple[dict[str, pl.DataFrame], int | None]:
        """The units that ranks of windows may lie in, and when the first such window ends."""
        asks: dict[str, pl.DataFrame] = {}
        first_open: int | None = None
        for bag in self.form.bags:
            found = []
            for rows, windows in due:
                used = covered(windows.lo, windows.hi, len(rows))
                entries = self._entries(bag, rows.table.filter(pl.Series(used)))
                open_, ends = self._of_windows(bag, rows, windows, entries)
                if len(ends):
                    first_open = min(int(ends.min()), first_open if first_open is not None else INT64_MAX)
                    found.append(self._asked(entries, open_))
            if found:
                asks[bag] = pl.concat(found).unique([*BAG, "lo"], keep="first", maintain_order=True)
        return asks, first_open

    def _asked(self, entries: Entries, open_: Mask) -> pl.DataFrame:
        bags = entries.bags.select(*BAG, *self.form.keys, "start", "end", "step", "entries")[entries.bag[open_]]
        lo = pl.Series("lo", entries.lo[open_])
        bags = bags.with_columns(lo, hi=pl.min_horizontal(lo + bags["step"], "entries"))
        return bags.select("node", *self.form.wanted)

    def _of_windows(self, bag: str, rows: Rows, windows: Windows, entries: Entries) -> tuple[Mask, Ints]:
        """Which entries have to be opened, and the ends of the windows for which they are."""
        first, last = entries.codes()
        is_unit = entries.bag >= 0
        open_ = np.zeros(len(first), np.bool_)
        place = rows.table[_PLACE].to_numpy()
        order = np.argsort(entries.place, kind="stable")
        sorted_ = entries.place[order]
        begin, stop = np.searchsorted(sorted_, place, "left"), np.searchsorted(sorted_, place, "right")
        at = order[np.repeat(begin, stop - begin) + ramp(stop - begin)]  # the entries in the order of the rows
        offset = np.append(0, np.cumsum(stop - begin))
        doubtful = np.append(0, np.cumsum((is_unit & (first < last))[at]))
        ends = []
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
                open_[mine[here]] = True
                ends.append(windows.end[number])
        return open_, np.array(ends, np.int64)

    def _measured(
        self, rows: Rows, span: Span, change: Change | None, ordered: bool | None = None
    ) -> Iterator[Emitted]:
        yield from super()._measured(self._filled(rows, span), span, change, ordered)

    def _filled(self, rows: Rows, span: Span) -> Rows:
        """The slices with bags that have what is asked, where windows are due."""
        due = self._due(rows, span)
        if not due:
            return rows
        used = np.zeros(len(rows), np.bool_)
        for one in due:
            used[one.rows.table[_PLACE].to_numpy()[covered(one.windows.lo, one.windows.hi, len(one.rows))]] = True
        table = rows.table.with_row_index(_PLACE).with_columns(pl.col(_PLACE).cast(pl.Int64))
        chosen = table.filter(pl.Series(used))
        for bag in self.form.bags if chosen[BAGS].list.len().sum() else ():
            entries, names = self._entries(bag, chosen), self.form.columns(bag)
            made = (
                pl.DataFrame({"place": entries.place, "value": entries.last, "count": entries.weight})
                .group_by("place", "value")
                .agg(pl.col("count").sum())
                .sort("place", "value")
            )
            sizes = np.bincount(made["place"].to_numpy(), minlength=len(rows)).astype(np.int64)
            table = table.with_columns(
                lists(made["value"], sizes).alias(names[0]), lists(made["count"], sizes).alias(names[1])
            )
        return Rows(table.drop(_PLACE), self.schema)

    def prune(self, frozen: int) -> None:
        super().prune(frozen)
        names = _names(self.rows.table).select(BAG)
        for store in self.stores.values():
            store.forget(names)
        held = pl.concat([store.units.select("node", "start") for store in self.stores.values()])
        starts = dict(held.group_by("node").agg(pl.col("start").min()).iter_rows())
        self.settled = {node: (send, starts.get(node, INT64_MAX)) for node, send in self.sends.items()}
        self.lost &= set(names.iter_rows()) if self.lost else set()

    # --- what is kept ---------------------------------------------------------------------------------------------

    def take_over(self, other: GroupState) -> None:
        super().take_over(other)
        assert isinstance(other, RefinedState)
        self.measure.watermark = other.measure.watermark
        self.sends, self.settled, self.lost, self.late = other.sends, other.settled, other.lost, other.late
        self.counts = other.counts
        for bag, store in self.stores.items():
            if bag in other.stores:
                store.units, store.values = other.stores[bag].units, other.stores[bag].values

    def tables(self) -> dict[str, pl.DataFrame]:
        found = super().tables()
        for number, store in enumerate(self.stores.values()):
            found |= {f"units{number}": store.units, f"values{number}": store.values}
        return found

    def load(self, tables: Mapping[str, pl.DataFrame]) -> None:
        super().load(tables)
        for number, store in enumerate(self.stores.values()):
            store.units = tables.get(f"units{number}", store.units)
            store.values = tables.get(f"values{number}", store.values)

    def header(self) -> dict[str, Any]:
        """What it knows beside its tables."""
        known = {"watermark": self.measure.watermark, "sends": self.sends, "settled": self.settled}
        return {**known, "lost": sorted(self.lost), "counts": self.counts}

    def restore(self, header: Mapping[str, Any]) -> None:
        self.measure.watermark = header["watermark"]
        self.sends, self.counts = dict(header["sends"]), dict(header["counts"])
        self.settled = {node: (send, start) for node, (send, start) in header["settled"].items()}
        self.lost = {(node, send, row) for node, send, row in header["lost"]}


def ranks(qs: set[float], total: int) -> Ints:
    """The places, from 0, of the values that quantiles of so many are made of: those around q·(n-1)."""
    if not total:
        return np.empty(0, np.int64)
    exact = np.array(sorted(qs)) * (total - 1)
    below = np.floor(exact).astype(np.int64)
    return np.unique(np.concatenate((below, np.minimum(below + (exact > below), total - 1))))


def _names(table: pl.DataFrame) -> pl.DataFrame:
    """Of which slice, in their order, which bags are at nodes."""
    place = [_PLACE] if _PLACE in table.columns else []
    return table.select(*place, BAGS).explode(BAGS).drop_nulls(BAGS).unnest(BAGS)


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
