"""The root's state of counting windows that nodes agree on: stretches between boundaries, of all nodes.

    boundaries ──▶ a stretch, with the bags that are at nodes ── asks for their units, then for some values ──▶ windows

A stretch waits until all ranks are known of the windows that end with it (`ranks`); those of a key go on in their
order. Without quantiles there is nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from windrow.core.arrays.range_queries import Ints
from windrow.core.assemble.due import Windows
from windrow.core.assemble.emitted import Emitted
from windrow.core.ordered.slicing import Sliced
from windrow.core.ordered.state import OrderedState, rows_in_order
from windrow.core.ordered.windows import OrderedRows, Progress
from windrow.core.plan.groups import ROWS, Held
from windrow.core.plan.watermark import WatermarkStep
from windrow.core.slices.table import BAGS, merge
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.core.windows.ordered import Mask
from windrow.nodes.counting.ordered_log import Strand
from windrow.nodes.counting.runs import Stretch
from windrow.nodes.counting.tables import NODE_COLUMN, Form, Key
from windrow.nodes.quantiles.protocol import BAG
from windrow.nodes.quantiles.rank_local import RankBags
from windrow.nodes.quantiles.root import PLACE, Due, Ranks, placed

_STRETCH = "_stretch"  # a column: the number of a stretch


def slices_of(form: Form, several: Sequence[Stretch]) -> pl.DataFrame:
    """A slice for each stretch."""
    parts: list[pl.DataFrame] = []
    frames = [(place, *part) for place, one in enumerate(several) for part in one.raw]
    if frames:
        sizes = [events.height for *_, events in frames]
        numbers = pl.Series(_STRETCH, np.repeat([place for place, *_ in frames], sizes))
        nodes = pl.Series(NODE_COLUMN, [node for _, node, _ in frames]).gather(np.repeat(np.arange(len(sizes)), sizes))
        events = pl.concat([events.select(*form.sent) for *_, events in frames]).with_columns(numbers, nodes)
        events = events.sort(_STRETCH, form.time, NODE_COLUMN, maintain_order=True)
        at = np.flatnonzero(_begins(events[_STRETCH].to_numpy()))
        parts.append(form.lifted(events.select(*form.events), at).with_columns(events[_STRETCH].gather(at)))
    tables: dict[int, tuple[pl.DataFrame, list[int], list[int]]] = {}
    for place, one in enumerate(several):
        for table, row in one.slices:
            _, rows, of = tables.setdefault(id(table), (table, [], []))
            rows.append(row)
            of.append(place)
    parts += [
        table[rows].select(*form.states).with_columns(pl.Series(_STRETCH, of)) for table, rows, of in tables.values()
    ]
    if not parts:
        return form.schema.empty()
    states = pl.concat(parts, how="diagonal")
    number: Ints = states[_STRETCH].to_numpy()
    # a slice may begin anywhere here, so that those of one stretch, and no others, become one
    known = {"slice_start": [one.position for one in several], "position": [one.position for one in several]}
    known |= {"first": [one.first for one in several], "last": [one.last for one in several]}
    columns = [pl.Series(name, values, dtype=pl.Int64).gather(number) for name, values in known.items()]
    columns += [column.gather(number) for column in form.typed_keys([one.key for one in several]).get_columns()]
    if form.bags:
        columns.append(_at_nodes(form, several, number))
    rest = {**form.schema.unordered, "excluded": 0, "fresh": False}
    rest = {name: value for name, value in rest.items() if name not in known}
    table = states.drop(_STRETCH).with_columns(
        *columns, *(pl.lit(value, form.schema.columns[name]).alias(name) for name, value in rest.items())
    )
    table = merge([form.schema.conform(table)], form.schema)
    return table.with_columns(slice_start=pl.lit(INT64_MIN, pl.Int64), fresh=pl.lit(True))


def _at_nodes(form: Form, several: Sequence[Stretch], number: Ints) -> pl.Series:
    """The bags of stretches that are at nodes, with the first part of each; of those that no window has, none."""
    first = np.zeros(len(number), np.bool_)
    first[np.unique(number, return_index=True)[1]] = True
    named = [
        [dict(zip(BAG, bag, strict=True)) for bag in several[of].bags]
        if is_first and form.is_in_window(several[of].position)
        else None
        for of, is_first in zip(number.tolist(), first.tolist(), strict=True)
    ]
    return pl.Series(BAGS, named, dtype=form.schema.columns[BAGS])


class CountedState(OrderedState):
    """The windows of a counted group, from slices that lie between boundaries."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.ranks = Ranks(form.bags) if form.bags else None
        self.found: list[pl.DataFrame] = []
        self.stretches = form.schema.empty()  # that wait
        self._gone: set[str] = set()
        super().__init__(form.compiled)

    @property
    def asks(self) -> dict[str, pl.DataFrame]:
        """Of each kind of bag, what the root has to ask for: node, and as `quantiles` says."""
        return self.ranks.asks if self.ranks else {}

    @property
    def waiting_rows(self) -> int:
        return self.stretches.height

    def status(self) -> dict[str, Any]:
        """How many units have come, how many of them were asked for, and how many bags are left out."""
        return self.ranks.counts if self.ranks else {}

    # --- what comes in --------------------------------------------------------------------------------------------

    def hear(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """Units and values of a batch."""
        if self.ranks:
            self.ranks.hear(tables)

    def check_again(self) -> None:
        """Other quantiles may be asked for."""
        if self.ranks:
            self.ranks.is_news = True

    def take_events(self, key: Key, node: str, lo: int, hi: int, events: pl.DataFrame) -> None:
        """Events of a node that may be in stretches: it goes, and cannot be asked for their values any more."""
        if self.ranks is None:
            return
        names = self.ranks.names(self._live())
        names = names.filter((pl.col("node") == node) & (pl.col("send") >= lo) & (pl.col("row") <= hi))
        plain = self.form.with_plain_keys(names)
        mine = [tuple(row) == key for row in plain.select(*self.form.keys).iter_rows()] if key else True
        names = names.filter(mine)
        strand = Strand(lo, hi, self.form.first)
        strand.add(events)
        bags = RankBags(self.form, node, unit=1)  # so that all values are known
        wanted = self.ranks.units_of(names)
        bags.hear({f"{self.form.name}|wanted {bag}": wanted for bag in self.ranks.stores}, {key: strand})
        self.ranks.know(bags.tables())

    # --- windows --------------------------------------------------------------------------------------------------

    def finish(self, several: Sequence[Stretch], gone: set[str], step: WatermarkStep) -> None:
        """Stretches that follow on what is here; those go on into windows of which all ranks are known."""
        fresh = [slices_of(self.form, several)] if several else []
        if self.ranks is None:
            self.found += fresh
            return
        is_news = bool(fresh) or self.ranks.is_news or gone != self._gone
        self.stretches, self._gone = pl.concat([self.stretches, *fresh]), set(gone)
        if not is_news or not self.stretches.height:
            return
        rows = self._with_places(self._live().sort(self.schema.order))
        before = self.base.at(rows.keys)
        now = {**before, "count": np.maximum.reduceat(rows.stop, np.flatnonzero(_begins(rows.key)))}
        windows = self._complete(rows, Progress(before, now, np.full(rows.key_count, INT64_MAX)), step)
        (waits,), _ = self.ranks.find([Due(rows, windows)], gone)
        first = np.full(rows.key_count, INT64_MAX)  # where the first window ends that waits
        np.minimum.at(first, windows.key[waits], rows.stop[windows.hi[waits] - 1])
        is_new = rows.position >= before["count"][rows.key]
        goes_on = is_new & (rows.stop < first[rows.key])
        table = rows.table.drop(PLACE)
        self.found.append(table.filter(pl.Series(goes_on)))
        self.stretches = table.filter(pl.Series(is_new & ~goes_on))

    def _live(self) -> pl.DataFrame:
        """The slices of windows that are not complete, and the stretches that wait."""
        rows = rows_in_order(self.rows)
        needed = self.sequences.counting_needs(rows, self._known(rows.keys), keep_emitted=False)
        return pl.concat([rows.table.filter(pl.Series(needed)), self.stretches])

    def _with_places(self, table: pl.DataFrame) -> OrderedRows:
        return OrderedRows(placed(table), self.schema)

    def _complete(self, rows: OrderedRows, progress: Progress, step: WatermarkStep) -> Windows:
        """The windows that a step completes."""
        return Windows.join(one.windows for one in self.sequences.found(rows, progress, step, partial=False))

    def may_be_due(self, step: WatermarkStep) -> bool:
        return any(table.height for table in self.found)

    def _slice(self, step: WatermarkStep) -> Sliced | None:
        if not self.may_be_due(step):
            return None
        table = pl.concat(self.found).sort(self.schema.order)
        self.found = []
        names = list(self.schema.keys)
        keys = table.select(names).unique(maintain_order=True) if names else pl.DataFrame()
        known = self.base.at(keys)
        last = table.group_by(names, maintain_order=True).last() if names else table[-1:]
        stop = (last["position"] + last[self.schema.names[Held(ROWS, None)]["count"]]).to_numpy()
        now = {**known, "count": stop, "last": last["last"].to_numpy(), "frozen": stop}
        self.base.set(keys, now)
        self.now.table = self.base.table
        self._recent, self._rows = table, None
        every = np.ones(table.height, np.bool_)
        changed = np.full(max(1, keys.height), INT64_MAX)
        return Sliced(table, every, None, keys, known, now, now, changed)

    def _in_sequence(
        self, rows: OrderedRows, progress: Progress, step: WatermarkStep, partial: bool
    ) -> Iterator[Emitted]:
        if self.ranks:
            due = Due(self._with_places(rows.table), self._complete(rows, progress, step))
            rows = OrderedRows(self.ranks.filled(rows.table, [due]), self.schema)
        yield from super()._in_sequence(rows, progress, step, partial)

    def needed(self) -> dict[Key, dict[str, int]] | None:
        """Of each key and node the first rank of which values may be asked; None if no bags are at nodes."""
        if self.ranks is None:
            return None
        live = self._live()
        self.ranks.forget(live)
        first = self.ranks.names(live).group_by("node", *self.form.keys).agg(pl.col("send").min())
        found: dict[Key, dict[str, int]] = {}
        for node, send, *key in self.form.with_plain_keys(first).select("node", "send", *self.form.keys).iter_rows():
            found.setdefault(tuple(key), {})[node] = send
        return found

    # --- what is kept ---------------------------------------------------------------------------------------------

    def tables(self) -> dict[str, pl.DataFrame]:
        waiting = {"stretches": pl.concat([*self.found, self.stretches])}
        return super().tables() | waiting | (self.ranks.tables() if self.ranks else {})

    def header(self) -> dict[str, Any]:
        """What it knows beside its tables."""
        return {"gone": sorted(self._gone), "ranks": self.ranks.header()} if self.ranks else {}

    def restore(self, header: Mapping[str, Any]) -> None:
        if self.ranks and header:
            self._gone = set(header["gone"])
            self.ranks.restore(header["ranks"])

    def load(self, tables: Mapping[str, pl.DataFrame]) -> None:
        super().load(tables)
        waiting = self.schema.conform(tables["stretches"])
        if self.ranks:
            self.stretches = waiting
            self.ranks.load(tables)
        else:  # whatever they waited for, nobody asks for it any more
            self.found = [waiting]


def _begins(number: Ints) -> Mask:
    """Where another number begins."""
    return np.append(True, number[1:] != number[:-1])
