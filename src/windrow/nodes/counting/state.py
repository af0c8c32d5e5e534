"""The root's state of counting windows that nodes agree on: intervals of the order between boundaries, of all nodes.

    boundaries ──▶ an interval, with the multisets at nodes ── blocks, then some values are requested ──▶ windows

An interval waits until all ranks are known of the windows that end with it (`RemoteMultisets`); those of a key go on in
their order. Without quantiles there is nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import polars as pl

from windrow.core.arrays.range_queries import Ints, run_begins
from windrow.core.assemble.due import Windows
from windrow.core.assemble.emitted import Emitted
from windrow.core.assemble.group_state import GroupState
from windrow.core.ordered.slicing import Sliced
from windrow.core.ordered.state import OrderedState, rows_in_order
from windrow.core.ordered.windows import OrderedRows, Progress
from windrow.core.plan.groups import ROWS, Partial
from windrow.core.plan.watermark import WatermarkStep
from windrow.core.slices.table import merge
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.nodes.counting.runs import Interval
from windrow.nodes.counting.tables import NODE_COLUMN, Form, Key
from windrow.nodes.quantiles.local import Identity, Multisets, SortedValues
from windrow.nodes.quantiles.protocol import IDENTITY, REMOTE, multiset_of
from windrow.nodes.quantiles.root import PLACE, Due, RemoteMultisets, placed

_INTERVAL = "_interval"  # a column: the number of an interval


def slices_of(form: Form, intervals: Sequence[Interval]) -> pl.DataFrame:
    """A slice for each interval."""
    parts = [*_of_events(form, intervals), *_of_slices(form, intervals)]
    if not parts:
        return form.schema.empty()
    states = pl.concat(parts, how="diagonal")
    number: Ints = states[_INTERVAL].to_numpy()
    # a slice may begin anywhere here, so that those of one interval, and no others, become one
    numbers = {"slice_start": [one.position for one in intervals], "position": [one.position for one in intervals]}
    numbers |= {"first": [one.first for one in intervals], "last": [one.last for one in intervals]}
    columns = [pl.Series(name, values, dtype=pl.Int64).gather(number) for name, values in numbers.items()]
    columns += [column.gather(number) for column in form.typed_keys([one.key for one in intervals]).get_columns()]
    if form.schema.lists:
        columns.append(_at_nodes(form, intervals, number))
    constants = {**form.schema.unordered, "excluded": 0, "fresh": False}
    constants = {name: value for name, value in constants.items() if name not in numbers}
    table = states.drop(_INTERVAL).with_columns(
        *columns, *(pl.lit(value, form.schema.columns[name]).alias(name) for name, value in constants.items())
    )
    table = merge([form.schema.conform(table)], form.schema)
    return table.with_columns(slice_start=pl.lit(INT64_MIN, pl.Int64), fresh=pl.lit(True))


def _of_events(form: Form, intervals: Sequence[Interval]) -> Iterator[pl.DataFrame]:
    """The states of intervals that have come as events, in the order of all nodes."""
    parts = [(number, *part) for number, interval in enumerate(intervals) for part in interval.raw]
    if not parts:
        return
    sizes = [events.height for *_, events in parts]
    numbers = pl.Series(_INTERVAL, np.repeat([number for number, *_ in parts], sizes))
    nodes = pl.Series(NODE_COLUMN, [node for _, node, _ in parts]).gather(np.repeat(np.arange(len(sizes)), sizes))
    events = pl.concat([events.select(*form.sent) for *_, events in parts]).with_columns(numbers, nodes)
    events = events.sort(_INTERVAL, form.time, NODE_COLUMN, maintain_order=True)
    begins = np.flatnonzero(run_begins(events[_INTERVAL].to_numpy()))
    yield form.lifted(events.select(*form.events), begins).with_columns(events[_INTERVAL].gather(begins))


def _of_slices(form: Form, intervals: Sequence[Interval]) -> Iterator[pl.DataFrame]:
    """The states of intervals that have come as slices; rows of one table are taken at once."""
    tables: dict[int, tuple[pl.DataFrame, list[int], list[int]]] = {}
    for number, interval in enumerate(intervals):
        for table, row in interval.slices:
            _, rows, numbers = tables.setdefault(id(table), (table, [], []))
            rows.append(row)
            numbers.append(number)
    for table, rows, numbers in tables.values():
        yield table[rows].select(*form.states).with_columns(pl.Series(_INTERVAL, numbers))


def _at_nodes(form: Form, intervals: Sequence[Interval], number: Ints) -> pl.Series:
    """The multisets of intervals that are at nodes, with the first part of each; none if no window has the interval."""
    first = np.zeros(len(number), np.bool_)
    first[np.unique(number, return_index=True)[1]] = True
    identities = [
        [dict(zip(IDENTITY, identity, strict=True)) for identity in intervals[of].multisets]
        if is_first and form.is_in_window(intervals[of].position)
        else None
        for of, is_first in zip(number.tolist(), first.tolist(), strict=True)
    ]
    return pl.Series(REMOTE, identities, dtype=form.schema.columns[REMOTE])


class CountedState(OrderedState):
    """The windows of a counted group, from slices that lie between boundaries."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.multisets = RemoteMultisets(form.multisets)
        self.ready: list[pl.DataFrame] = []  # intervals that go on into windows
        self.undecided = form.schema.empty()  # and those that wait
        super().__init__(form.compiled)

    def take_events(self, key: Key, node: str, lo: int, hi: int, events: pl.DataFrame) -> None:
        """Events of a node that may be in intervals: it goes, and nothing can be requested of it any more."""
        if not self.schema.lists:
            return
        names = self.multisets.names(self._live())
        names = names.filter((pl.col("node") == node) & (pl.col("send") >= lo) & (pl.col("row") <= hi))
        plain = self.form.with_plain_keys(names)
        names = names.filter([tuple(row) == key for row in plain.select(*self.form.keys).iter_rows()] if key else True)
        schema = self.multisets.schema

        def values_of(identity: Identity, _: Mapping[str, Any]) -> SortedValues:
            inside = events[identity.send - lo : identity.row - lo]
            return SortedValues(*multiset_of(inside, schema.multisets[identity.operator]))

        local = Multisets(schema, node, values_of, forced=1, key_types=self.form.keys)  # so that all values are known
        wanted = self.form.with_plain_keys(self.multisets.summaries_of(names))
        local.request(dict.fromkeys(schema.requests, wanted))
        self.multisets.replace(local.tables())

    # --- windows --------------------------------------------------------------------------------------------------

    def finish(self, intervals: Sequence[Interval], gone: set[str], step: WatermarkStep) -> None:
        """Segments that follow on what is here; those go on into windows of which all ranks are known."""
        fresh = [slices_of(self.form, intervals)] if intervals else []
        if not self.schema.lists:
            self.ready += fresh
            return
        self.multisets.wait_without(gone)
        self.undecided = pl.concat([self.undecided, *fresh])
        if not (fresh or self.multisets.is_news) or not self.undecided.height:
            return
        rows = OrderedRows(placed(self._live().sort(self.schema.order)), self.schema)
        before = self.base.at(rows.keys)
        now = {**before, "count": np.maximum.reduceat(rows.stop, np.flatnonzero(run_begins(rows.key)))}
        windows = self._complete(rows, Progress(before, now, np.full(rows.key_count, INT64_MAX)), step)
        (waits,), _ = self.multisets.search([Due(rows, windows)])
        first = np.full(rows.key_count, INT64_MAX)  # where the first window ends that waits
        np.minimum.at(first, windows.key[waits], rows.stop[windows.hi[waits] - 1])
        is_new = rows.position >= before["count"][rows.key]
        goes_on = is_new & (rows.stop < first[rows.key])
        table = rows.table.drop(PLACE)
        self.ready.append(table.filter(pl.Series(goes_on)))
        self.undecided = table.filter(pl.Series(is_new & ~goes_on))

    def _live(self) -> pl.DataFrame:
        """The slices of windows that are not complete, and the intervals that wait."""
        rows = rows_in_order(self.rows)
        needed = self.finder.counting_needs(rows, self._carry(rows.keys), keep_emitted=False)
        return pl.concat([rows.table.filter(pl.Series(needed)), self.undecided])

    def _complete(self, rows: OrderedRows, progress: Progress, step: WatermarkStep) -> Windows:
        """The windows that a step completes."""
        return Windows.join(part.windows for part in self.finder.windows(rows, progress, step, partial=False))

    def may_be_due(self, step: WatermarkStep) -> bool:
        return any(table.height for table in self.ready)

    def slice_final(self, step: WatermarkStep) -> Sliced | None:
        if not self.may_be_due(step):
            return None
        table = pl.concat(self.ready).sort(self.schema.order)
        self.ready = []
        names = list(self.schema.keys)
        keys = table.select(names).unique(maintain_order=True) if names else pl.DataFrame()
        before = self.base.at(keys)
        last = table.group_by(names, maintain_order=True).last() if names else table[-1:]
        stop = (last["position"] + last[self.schema.names[Partial(ROWS, None)]["count"]]).to_numpy()
        now = {**before, "count": stop, "last": last["last"].to_numpy(), "final": stop}
        self.base.set(keys, now)
        self.now = copy(self.base)
        self.add_final(table)
        every = np.ones(table.height, np.bool_)
        changed = np.full(max(1, keys.height), INT64_MAX)
        return Sliced(table, every, None, keys, before, now, now, changed)

    def emit_in_order(
        self, rows: OrderedRows, progress: Progress, step: WatermarkStep, partial: bool
    ) -> Iterator[Emitted]:
        if self.schema.lists:
            due = Due(OrderedRows(placed(rows.table), self.schema), self._complete(rows, progress, step))
            rows = OrderedRows(self.multisets.filled(rows.table, [due]), self.schema)
        yield from super().emit_in_order(rows, progress, step, partial)

    def needed(self) -> dict[Key, dict[str, int]] | None:
        """Of each key and node the first rank of which values may be requested; None if no multisets are at nodes."""
        if not self.schema.lists:
            return None
        live = self._live()
        self.multisets.forget(live)
        first = self.multisets.names(live).group_by("node", *self.form.keys).agg(pl.col("send").min())
        ranks: dict[Key, dict[str, int]] = {}
        for node, send, *key in self.form.with_plain_keys(first).select("node", "send", *self.form.keys).iter_rows():
            ranks.setdefault(tuple(key), {})[node] = send
        return ranks

    # --- what is kept ---------------------------------------------------------------------------------------------

    def tables(self) -> dict[str, pl.DataFrame]:
        intervals = {"intervals": pl.concat([*self.ready, self.undecided])}
        return super().tables() | intervals | self.multisets.tables()

    def take_over(self, other: GroupState) -> None:
        super().take_over(other)
        assert isinstance(other, CountedState)
        self.multisets.take_over(other.multisets)

    def header(self) -> dict[str, Any]:
        return super().header() | {"multisets": self.multisets.header()}

    def restore(self, header: Mapping[str, Any]) -> None:
        super().restore(header)
        self.multisets.restore(header["multisets"])

    def load(self, tables: Mapping[str, pl.DataFrame]) -> None:
        super().load(tables)
        intervals = self.schema.conform(tables["intervals"])
        self.multisets.load(tables)
        if self.schema.lists:
            self.undecided = intervals
        else:  # whatever they waited for, nobody asks for it any more
            self.ready = [intervals]
