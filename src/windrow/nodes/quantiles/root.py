"""The root's side of two-phase quantiles: which blocks of the multisets at nodes can hold a rank, and what is known.

    slices, blocks ──▶ windows that are due ── a rank may lie in several blocks ──▶ what the root has to request
                                            └─ else: multisets that have what is asked ──▶ answers, as ever

**Multisets that have what is asked.** Blocks whose values came are there as these, and all others as their last value
so many times. The n-th of that is the upper bound of the n-th of all values (`refine.bounds`), and where the lower one
is the same, it is the n-th. So windows are answered from such multisets exactly as from whole ones.

What a silent node would have to send is left out of its multisets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import numpy as np
import polars as pl

from windrow.core.arrays.dataframes import join_keys
from windrow.core.arrays.range_queries import Ints, Mask, covered, ramp
from windrow.core.assemble.due import Rows, Windows
from windrow.core.operators.multiset import lists
from windrow.core.stream.job_slicer import Tables
from windrow.nodes.quantiles.protocol import REMOTE, SUMMARY, MultisetSchema
from windrow.nodes.refine import bounds, undecided

PLACE = "_place"  # a column: of a slice, its place in the table of all


class Due(NamedTuple):
    """Windows that are due, over slices in an order of their own."""

    rows: Rows
    windows: Windows


class KnownBlocks:
    """The blocks of one operator's multisets, and the values that have come of them."""

    def __init__(self, schema: MultisetSchema, operator: str) -> None:
        self.schema, self.operator = schema, operator
        self.blocks = pl.DataFrame(schema=schema.blocks(operator) | {"seen": pl.Boolean()})
        self.values = pl.DataFrame(schema=schema.values(operator))

    def add(self, blocks: pl.DataFrame | None, values: pl.DataFrame | None) -> None:
        """Take in what has come; a node that was started again may send twice what it was requested."""
        if blocks is not None:
            fresh = blocks.select(*self.schema.blocks(self.operator))
            fresh = fresh.with_columns(_counts(blocks), seen=pl.lit(self.schema.by_rank))
            self.blocks = pl.concat([self.blocks, fresh])
            if self.schema.by_rank:
                self.blocks = self.blocks.unique(self.schema.identity, keep="first", maintain_order=True)
        if values is not None:
            values = values.filter(pl.col("values").list.len() > 0).select(*self.schema.values(self.operator))
            values = self.known(values)
            ones = pl.col("values").list.eval(pl.lit(1, pl.Int64))
            both = pl.concat([self.values, values.with_columns(pl.coalesce("counts", ones))])
            self.values = both.unique([*self.schema.identity, "lo"], keep="first", maintain_order=True)

    def see(self, names: pl.DataFrame) -> None:
        """Note that the slices of these multisets have come."""
        came = names.unique(self.schema.identity).with_columns(_came=pl.lit(True))
        seen = join_keys(self.blocks.select(self.schema.identity), came, self.schema.identity, "left")["_came"]
        self.blocks = self.blocks.with_columns(seen=pl.col("seen") | seen.fill_null(False))

    def forget(self, names: pl.DataFrame) -> None:
        """Keep only multisets that slices name, or whose slices have not come: no others can be requested."""
        names = names.select(self.schema.identity)
        self.keep(pl.concat([names, self.blocks.filter(~pl.col("seen")).select(names.columns)]), "semi")

    def keep(self, names: pl.DataFrame, how: Literal["semi", "anti"]) -> None:
        """Keep only these multisets, or all others."""
        self.blocks, self.values = (
            join_keys(table, names, self.schema.identity, how) for table in (self.blocks, self.values)
        )

    def known(self, names: pl.DataFrame, how: Literal["semi", "anti"] = "semi") -> pl.DataFrame:
        """Those of which blocks have come, or all others."""
        return join_keys(names, self.blocks, self.schema.identity, how)

    def entries(self, names: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
        """What is known of the multisets of slices: those that these names are of, and those that came whole.

        Each entry is at the place of its slice, and has `first`, `last` and `count`. Of values, both are the same; a
        block of which only the summary is known has its row in `blocks`, and where in its multiset it begins.
        """
        identity = self.schema.identity
        multisets = join_keys(names, self.blocks.with_row_index("block"), identity, "inner")
        number = multisets["first"].list.len().to_numpy().astype(np.int64)
        lo = ramp(number) * np.repeat(multisets["size"].to_numpy(), number)
        blocks = _exploded(multisets.select(PLACE, "block", "first", "last", "count"))
        answers = join_keys(multisets.select(PLACE, "block", *identity), self.values, identity, "inner")
        blocks = blocks.with_columns(pl.Series("lo", lo)).join(
            answers, on=["block", "lo"], how="anti", maintain_order="left"
        )
        values, counts = self.schema.columns(self.operator)
        parts = answers.select(PLACE, first="values", count="counts"), table.select(PLACE, first=values, count=counts)
        return pl.concat(
            [blocks, *(_exploded(part).with_columns(last="first") for part in parts)], how="diagonal", rechunk=True
        )


def _exploded(table: pl.DataFrame) -> pl.DataFrame:
    """A row for each of what is in lists."""
    names = [name for name, dtype in table.schema.items() if isinstance(dtype, pl.List)]
    return table.filter(pl.col(names[0]).list.len() > 0).explode(names)


class RemoteMultisets:
    """The multisets of a group that stay at nodes, and what is to be requested of them."""

    def __init__(self, schema: MultisetSchema) -> None:
        self.schema = schema
        self.stores = {operator: KnownBlocks(schema, operator) for operator in schema.multisets}
        self.wanted: dict[str, pl.DataFrame] = {}  # of each operator, the blocks that the root waits for
        self.left_out = pl.DataFrame(schema=schema.identity_columns)
        self.gone: set[str] = set()  # nodes that nothing can be requested of
        self.counts = {"blocks": 0, "requested": 0, "left_out": 0}
        self.is_news = True  # whether ranks may be known that were not

    # --- what comes in --------------------------------------------------------------------------------------------

    def absorb(self, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        """Take in blocks and values; returns the multisets that their nodes do not have any more."""
        missing = []
        for operator, store in self.stores.items():
            blocks, values = (tables.get(self.schema.table(part, operator)) for part in ("blocks", "values"))
            if blocks is None and values is None:
                continue
            store.add(blocks, values)
            answered = []
            if blocks is not None:
                self.counts["blocks"] += int(blocks["first"].list.len().sum())
                answered.append(blocks.select(*self.schema.identity, lo=pl.lit(SUMMARY, pl.Int64)))
            if values is not None:
                empty = values.filter(pl.col("values").list.len() == 0)
                missing.append(store.known(empty).select(self.schema.identity))
                answered.append(values.select(*self.schema.identity, "lo"))
            self._answer(operator, pl.concat(answered), "lo")
        return pl.concat(missing) if missing else self.left_out[:0]

    def replace(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """Take in blocks of multisets instead of what is known of them; all their values are among them."""
        for operator, store in self.stores.items():
            blocks = tables.get(self.schema.table("blocks", operator))
            if blocks is None:
                continue
            store.keep(blocks, "anti")
            store.add(blocks, None)
            self._answer(operator, blocks)

    def _answer(self, operator: str, answered: pl.DataFrame, *part: str) -> None:
        """Wait no more for these multisets, or for one `part` of each."""
        if operator not in self.wanted:
            return
        self.wanted[operator] = join_keys(self.wanted[operator], answered, [*self.schema.identity, *part], "anti")
        self.wanted = {name: table for name, table in self.wanted.items() if table.height}
        self.is_news |= not self.wanted

    @property
    def requests(self) -> Tables:
        """What is wanted, as tables of a request for all nodes."""
        return {self.schema.table("wanted", operator): table for operator, table in self.wanted.items()}

    def see(self, table: pl.DataFrame) -> None:
        """Note that slices have come."""
        names = self.names(table)
        for store in self.stores.values() if names.height else ():
            store.see(names)

    def wait_without(self, gone: set[str]) -> None:
        """From now on nothing can be requested of these nodes, but of all others."""
        self.is_news |= gone != self.gone
        self.gone = set(gone)

    def leave_out(self, names: pl.DataFrame) -> pl.DataFrame:
        """Leave multisets out of which nobody can send more; returns those that were not yet."""
        fresh = self._remaining(names.select(*self.schema.identity_columns).unique(maintain_order=True))
        if fresh.height:
            self.left_out, self.is_news = pl.concat([self.left_out, fresh]), True
            self.counts["left_out"] += fresh.height
        return fresh

    def _remaining(self, names: pl.DataFrame) -> pl.DataFrame:
        """Those that are not left out."""
        return join_keys(names, self.left_out, self.schema.identity, "anti") if self.left_out.height else names

    # --- ranks ----------------------------------------------------------------------------------------------------

    def _all_names(self, table: pl.DataFrame) -> pl.DataFrame:
        """Of which slice, in their order, which multisets are at nodes."""
        more = [name for name in (PLACE, *self.schema.identity) if name in table.columns]
        return table.select(*more, REMOTE).explode(REMOTE).drop_nulls(REMOTE).unnest(REMOTE)

    def names(self, table: pl.DataFrame) -> pl.DataFrame:
        """The same, but for those that are left out."""
        return self._remaining(self._all_names(table))

    def search(self, due: Sequence[Due]) -> tuple[list[Mask], pl.DataFrame]:
        """Find what is to be requested: which windows have to wait for it, and the multisets that are left out from
        now on, because they are at nodes that are gone."""
        left_out = []
        while True:
            wanted, waits = self._undecided(due)
            lost = [table.filter(pl.col("node").is_in(list(self.gone))) for table in wanted.values() if self.gone]
            if not any(table.height for table in lost):
                break
            left_out += [self.leave_out(table) for table in lost]
        for operator, table in wanted.items():
            before = self.wanted.get(operator, table[:0])
            fresh = join_keys(table, before, [*self.schema.identity, "lo"], "anti")
            self.counts["requested"] += fresh.filter(pl.col("lo") != SUMMARY).height
        self.wanted, self.is_news = wanted, False
        return waits, pl.concat(left_out) if left_out else self.left_out[:0]

    def _undecided(self, due: Sequence[Due]) -> tuple[dict[str, pl.DataFrame], list[Mask]]:
        """The blocks that ranks of windows may lie in, and which windows these are."""
        wanted: dict[str, pl.DataFrame] = {}
        waits = [np.zeros(len(windows.lo), np.bool_) for _, windows in due]
        for operator, store in self.stores.items():
            parts = []
            for (rows, windows), waiting in zip(due, waits, strict=True):
                if self.schema.by_rank:
                    missing = store.known(self.names(rows.table), "anti")
                    parts.append(self.summaries_of(missing))
                    lacks = np.append(0, np.cumsum(np.isin(rows.table[PLACE].to_numpy(), missing[PLACE].to_numpy())))
                    waiting |= lacks[windows.hi] > lacks[windows.lo]
                table = rows.table.filter(pl.Series(covered(windows.lo, windows.hi, len(rows))))
                names = self.names(table)
                if not names.height:
                    continue  # all values are here
                entries = store.entries(names, table)
                opened, undecided_windows = self._search(operator, Due(rows, windows), entries)
                parts.append(self._values_of(store, entries.filter(pl.Series(opened))))
                waiting |= undecided_windows
            table = pl.concat(parts) if parts else pl.DataFrame()
            if table.height:
                wanted[operator] = table.unique([*self.schema.identity, "lo"], keep="first", maintain_order=True)
        return wanted, waits

    def summaries_of(self, names: pl.DataFrame) -> pl.DataFrame:
        """A request for the block summaries of multisets."""
        summary = pl.lit(SUMMARY, pl.Int64)
        return names.with_columns(lo=summary, hi=summary).select("node", *self.schema.wanted)

    def _values_of(self, store: KnownBlocks, blocks: pl.DataFrame) -> pl.DataFrame:
        """A request for the values of blocks."""
        multisets, lo = store.blocks.drop("first", "last", "count")[blocks["block"]], blocks["lo"]
        wanted = multisets.with_columns(lo, hi=pl.min_horizontal(lo + multisets["size"], "entries"))
        return wanted.select("node", *self.schema.wanted)

    def _search(self, operator: str, due: Due, entries: pl.DataFrame) -> tuple[Mask, Mask]:
        """Which entries are blocks that have to be opened, and the windows for which they are.

        A window that has no block with different values needs no search: all of its values are known.
        """
        first, last = _codes(entries)
        at, begins = _in_order(entries[PLACE].to_numpy(), due.rows.table[PLACE].to_numpy())
        doubtful = np.append(0, np.cumsum((first < last)[at]))
        lo, hi = begins[due.windows.lo], begins[due.windows.hi]
        opened, waits, counts = np.zeros(len(first), np.bool_), np.zeros(len(lo), np.bool_), entries["count"].to_numpy()
        for window in np.flatnonzero(doubtful[hi] > doubtful[lo]).tolist():
            qs = self.schema.qs.get((operator, int(due.windows.timeline[window])))
            if qs is None:
                continue
            inside = at[lo[window] : hi[window]]
            count = counts[inside]
            limits = bounds(first[inside], last[inside], count, ranks(qs, int(count.sum())) + 1)
            open_here = inside[undecided(first[inside], last[inside], limits)]
            opened[open_here] = True
            waits[window] = bool(len(open_here))
        return opened, waits

    def filled(self, table: pl.DataFrame, due: Iterable[Due]) -> pl.DataFrame:
        """Give the slices of due windows multisets that hold what quantiles need.

        They hold the values that came, and for every other block its last value as often as the block has values.
        Windows whose ranks are known are answered from these exactly as from whole multisets (see above).
        """
        used = np.zeros(table.height, np.bool_)
        for rows, windows in due:
            used[rows.table[PLACE].to_numpy()[covered(windows.lo, windows.hi, len(rows))]] = True
        table = placed(table)
        of_windows = table.filter(pl.Series(used))
        for operator, store in self.stores.items() if of_windows[REMOTE].list.len().sum() else ():
            columns = self.schema.columns(operator)
            entries = store.entries(self.names(of_windows), of_windows)
            merged = entries.group_by(PLACE, "last").agg(pl.col("count").sum()).sort(PLACE, "last")
            sizes = np.bincount(merged[PLACE].to_numpy(), minlength=table.height).astype(np.int64)
            table = table.with_columns(
                lists(merged["last"], sizes).alias(columns[0]), lists(merged["count"], sizes).alias(columns[1])
            )
        return table.drop(PLACE)

    def forget(self, table: pl.DataFrame) -> None:
        """Only multisets that these slices name will be requested."""
        names = self._all_names(table)
        remaining = self._remaining(names).select(*self.schema.identity_columns)
        for store in self.stores.values():
            store.forget(remaining)
        if self.left_out.height:
            self.left_out = join_keys(self.left_out, names, self.schema.identity, "semi")

    # --- what is kept ---------------------------------------------------------------------------------------------

    def take_over(self, other: RemoteMultisets) -> None:
        """Go on where those of an earlier plan stand."""
        self.counts = other.counts
        self.load(other.tables())

    def tables(self) -> dict[str, pl.DataFrame]:
        tables = {"left_out": self.left_out}
        for operator, store in self.stores.items():
            tables |= {f"blocks {quote(operator)}": store.blocks, f"values {quote(operator)}": store.values}
        return tables | {f"wanted {quote(operator)}": table for operator, table in self.wanted.items()}

    def load(self, tables: Mapping[str, pl.DataFrame]) -> None:
        self.left_out = tables.get("left_out", self.left_out)
        for operator, store in self.stores.items():
            store.blocks = tables.get(f"blocks {quote(operator)}", store.blocks)
            store.values = tables.get(f"values {quote(operator)}", store.values)
        wanted = {operator: tables.get(f"wanted {quote(operator)}") for operator in self.stores}
        self.wanted = {operator: table for operator, table in wanted.items() if table is not None}

    def header(self) -> dict[str, Any]:
        """What it knows beside its tables: with both, the same batches lead to the same windows at the same time."""
        return {"counts": self.counts, "news": self.is_news, "gone": sorted(self.gone)}

    def restore(self, header: Mapping[str, Any]) -> None:
        self.counts, self.is_news, self.gone = dict(header["counts"]), header["news"], set(header["gone"])


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


def _codes(entries: pl.DataFrame) -> Ints:
    """First and last of entries as numbers in the order of the values."""
    values = pl.concat([entries["first"], entries["last"]])
    return values.rank("dense").cast(pl.Int64).to_numpy().reshape(2, -1)


def _in_order(place: Ints, places: Ints) -> tuple[Ints, Ints]:
    """The entries, given their places, in the order of the slices at `places`, and where those of each slice begin."""
    order = np.argsort(place, kind="stable")
    begin, stop = (np.searchsorted(place[order], places, side) for side in ("left", "right"))
    return order[np.repeat(begin, stop - begin) + ramp(stop - begin)], np.append(0, np.cumsum(stop - begin))


def _counts(blocks: pl.DataFrame) -> pl.Series:
    """The count of each block, also where every value is there once and none was sent."""
    given = blocks["count"]
    if not given.null_count():
        return given
    number = blocks["first"].list.len().to_numpy().astype(np.int64)
    multiset = np.repeat(np.arange(blocks.height), number)
    size = blocks["size"].to_numpy()[multiset]
    counts = np.minimum(size, blocks["entries"].to_numpy()[multiset] - ramp(number) * size)
    return given.fill_null(lists(pl.Series(counts), number)).alias("count")
