"""Two-phase quantiles: which queries need only some values of a multiset, and how multisets are named and cut.

The sorted values of a multiset are cut into **blocks**, of so many (`size`) different values each:

    values    1 2 2 3 │ 5 6 8 8 9 │ 11 12 …
    block     first 1, last 3, count 4   …

Block summaries travel first, then the values of those blocks that the root requests, in these tables of a group:

    <group>|blocks <multiset>   which multiset; key, where it is; its blocks
    <group>|values <multiset>   which multiset, and from which place in it on; the values of a block from there, none if
                                the node does not have the multiset any more
    <group>|wanted <multiset>   down, in a request: which multisets, and from which place to which

A multiset is identified by its node and two numbers. Of time windows and sessions these are the number of a sending
and the row in it, and block summaries come with the slices. Of counting windows on whose ends nodes agree they are
ranks, that of its first event and the one after its last, which mean something with the key alone; between which ranks
it lies is known once boundaries are, so that the root has to request the summaries (`SUMMARY`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from windrow.core.arrays.checks import MOST, ascends, lacking, laid_out, wrong_counts, wrong_numbers
from windrow.core.arrays.range_queries import Ints, Mask, ramp
from windrow.core.assemble.group_state import CompiledGroup
from windrow.core.operators.base import Multiset
from windrow.core.operators.multiset import counted, lists
from windrow.core.operators.multiset import wrong_with as wrong_multisets
from windrow.core.plan.groups import Partial, Placement, leaves, quantile_of, reads_of
from windrow.core.query.query import Query
from windrow.core.slices.kernel import filter_name, input_name
from windrow.core.windows.fixed import FURTHEST, FixedWindow, Session
from windrow.core.windows.ordered import Counting
from windrow.nodes.tables import impossible, lacks

# which multiset, see above
IDENTITY: dict[str, pl.DataType] = {"node": pl.String(), "send": pl.Int64(), "row": pl.Int64()}
REMOTE = "remote"  # the column of a slice that says which of its multisets stay at their nodes
REFINED = Placement(
    " (refined)",
    "slices with sub-slices of values, and the values around the ranks that are asked for",
    columns=((REMOTE, pl.List(pl.Struct(IDENTITY))),),
)
SUMMARY = -1  # as a place in a multiset: its block summaries are requested
SMALLEST = 64  # multisets of fewer values travel whole
BLOCK = 16  # bytes of a block summary: first and last value; the count is mostly known
VALUE = 8  # bytes of a value
ROW = 100  # bytes of a multiset beside its blocks: an estimate
MESSAGES = 6_000  # bytes of the headers that a request and its answer cost: an estimate


def can_be_refined(query: Query) -> bool:
    """Whether a query asks for quantiles in windows that are made of slices.

    Over time windows it must ask for nothing else of multisets; over counting windows each multiset is judged alone
    (`MultisetSchema`).
    """
    if any(aggregate.needs_order for aggregate in query.computed):
        return False
    reading = [leaf for leaf in leaves(query.computed) if any(isinstance(one, Multiset) for one in leaf.operators)]
    of_multisets = [quantile_of(leaf) for leaf in reading]
    if isinstance(query.window, Counting):
        return any(q is not None for q in of_multisets)
    return isinstance(query.window, FixedWindow | Session) and bool(of_multisets) and None not in of_multisets


class MultisetSchema:
    """The tables of a group whose multisets stay at nodes; made once per plan."""

    def __init__(self, compiled: CompiledGroup) -> None:
        group = compiled.group
        self.compiled, self.group, self.name, self.schema = compiled, group, group.name, compiled.schema
        self.keys = dict(self.schema.keys)
        self.by_rank = group.is_apart  # identified by ranks, with summaries on request; else by sending and row
        self.identity_columns = IDENTITY | (self.keys if self.by_rank else {})
        self.identity = tuple(self.identity_columns)
        self.times: dict[str, pl.DataType] = {} if self.by_rank else {"start": pl.Int64(), "end": pl.Int64()}
        self.multisets: dict[str, Partial] = {}
        self.qs: dict[tuple[str, int], set[float]] = {}  # of a multiset, in the windows of a timeline
        signatures = list(group.signatures)
        reads = [(partial, q, line) for line, number in group.members for partial, q in reads_of(signatures[number])]
        whole = {partial for partial, q, _ in reads if q is None}
        for partial, q, timeline in reads if self.schema.lists else ():
            if partial not in whole and q is not None:
                self.multisets[partial.text] = partial
                self.qs.setdefault((partial.text, timeline), set()).add(q)
        self.released_table = f"{self.name}|released"  # says which multisets will not be requested
        self.wanted: dict[str, pl.DataType] = {"send": pl.Int64(), "row": pl.Int64(), **self.keys, **self.times}
        self.wanted |= dict.fromkeys(("lo", "hi"), pl.Int64())
        # the tables in which the root requests values, and those that nodes send, with their columns
        self.requests = {self.table("wanted", multiset): self.wanted for multiset in self.multisets}
        self.tables = {self.table("blocks", multiset): self.blocks(multiset) for multiset in self.multisets}
        self.tables |= {self.table("values", multiset): self.values(multiset) for multiset in self.multisets}

    def quantile_count(self, multiset: str) -> int:
        """How many quantiles queries ask of a multiset."""
        return len(set[float]().union(*(qs for (text, _), qs in self.qs.items() if text == multiset)))

    def value_type(self, multiset: str) -> pl.DataType:
        return self.schema.input_types(self.multisets[multiset])[0]

    def columns(self, multiset: str) -> tuple[str, str]:
        """The columns of a slice table that have its values and their counts."""
        names = self.schema.names[self.multisets[multiset]]
        return names["values"], names["counts"]

    # --- tables ---------------------------------------------------------------------------------------------------

    def table(self, part: str, multiset: str) -> str:
        """The name of the table with `blocks`, `values` or what is `wanted` of a multiset."""
        return f"{self.name}|{part} {multiset}"

    def blocks(self, multiset: str) -> dict[str, pl.DataType]:
        value = pl.List(self.value_type(multiset))
        lists = {"first": value, "last": value, "count": pl.List(pl.Int64())}
        sizes = {"size": pl.Int64(), "entries": pl.Int64()}
        return {**self.identity_columns, **self.keys, **self.times, **sizes, **lists}

    def values(self, multiset: str) -> dict[str, pl.DataType]:
        lists = {"values": pl.List(self.value_type(multiset)), "counts": pl.List(pl.Int64())}
        return {**self.identity_columns, "lo": pl.Int64(), **lists}

    def values_table(
        self, multiset: str, columns: Mapping[str, pl.Series], values: Sequence[pl.Series], counts: Sequence[pl.Series]
    ) -> pl.DataFrame:
        """The table with the values of blocks; without counts where every value is there once."""
        types, sizes, flat_counts = self.values(multiset), np.array([len(one) for one in values]), pl.concat(counts)
        column = lists(flat_counts, sizes)
        if (flat_counts == 1).all():
            column = pl.Series([None], dtype=types["counts"]).new_from_index(0, len(sizes))
        return pl.DataFrame({**columns, "values": lists(pl.concat(values), sizes), "counts": column}).select(*types)

    # --- what cannot be -------------------------------------------------------------------------------------------

    def wrong_with(self, tables: Mapping[str, pl.DataFrame], times: tuple[int, int]) -> str | None:
        """Why the tables of a batch cannot be taken; None if they can."""
        for name, columns in self.tables.items():
            if name not in tables:
                continue
            table = tables[name]
            if dict(table.schema) != columns:
                return f"{name} has other columns in its batch than it should"
            certain = [column for column in columns if column not in (*self.keys, "count", "counts")]
            if lacks(table, certain):
                return f"{name} has no value where one is needed in its batch"
            bounds = {column: table[column] for column in self.times if column in columns}
            counts = {column: table[column] for column in columns if column in ("send", "row", "lo")}
            reason = wrong_numbers(bounds, *times) or wrong_numbers(counts, 0, FURTHEST)
            reason = reason or (_wrong_values(table) if "values" in columns else _wrong_blocks(table))
            if reason is not None:
                return impossible(name, reason)
        return self._wrong_remote(tables.get(self.name))

    def _wrong_remote(self, slices: pl.DataFrame | None) -> str | None:
        """Why slices cannot have the multisets that they say are at nodes; None if they can."""
        if slices is None or REMOTE not in slices.columns:
            return None
        remote, _ = laid_out(slices[REMOTE])
        fields = {name: remote.struct.field(name) for name in IDENTITY}
        numbers = {name: column for name, column in fields.items() if name != "node"}
        return impossible(self.name, lacking(fields) or wrong_numbers(numbers, 0, FURTHEST))

    def wrong_request(self, tables: Mapping[str, pl.DataFrame]) -> str | None:
        """Why a request cannot be answered; None if it can."""
        for name, columns in self.requests.items():
            table = tables.get(name)
            if table is not None and (dict(table.schema) != columns or lacks(table, ("send", "row", "lo", "hi"))):
                return f"{name} cannot be in a request"
        return None


def _wrong_values(table: pl.DataFrame) -> str | None:
    """Why values of blocks cannot be, as part of a sentence; without counts each is there once."""
    values, counts = table["values"], table["counts"]
    if counts.null_count():
        counts = counts.fill_null(values.list.eval(pl.lit(1, pl.Int64)))
    return wrong_multisets(values, counts)


def _wrong_blocks(table: pl.DataFrame) -> str | None:
    """Why block summaries cannot be, as part of a sentence; without counts every value is there once."""
    size, entries = table["size"], table["entries"]
    if reason := wrong_numbers({"size": size}, 1, MOST) or wrong_counts({"entries": entries}):
        return f"it has blocks whose {reason}"
    wanted = -(-entries.to_numpy() // size.to_numpy())
    first, last, count = (table[name] for name in ("first", "last", "count"))
    (firsts, sizes), (lasts, ends), (counts, known) = laid_out(first), laid_out(last), laid_out(count)
    known = np.where(count.is_null(), wanted, known)
    if not (np.array_equal(sizes, wanted) and np.array_equal(ends, wanted) and np.array_equal(known, wanted)):
        return "it has blocks of other numbers of values than it says"
    if reason := lacking({"first": firsts, "last": lasts, "count": counts}) or wrong_counts({"count": counts}):
        return reason
    starts = np.cumsum(sizes)
    if (counts == 0).any() or not (ascends(firsts, starts) and ascends(lasts, starts) and not (firsts > lasts).any()):
        return "its blocks are not in order"
    return None


def multiset_of(events: pl.DataFrame, partial: Partial) -> tuple[pl.Series, pl.Series]:
    """The values that prepared events have in a multiset, and how often."""
    filtered = events.filter(pl.col(filter_name(partial.where.text))) if partial.where else events
    values = filtered[input_name(partial.operator.inputs[0].text)].drop_nulls().sort()
    distinct, counts = counted(lists(values, np.array([len(values)])))
    return distinct[0], counts[0]


def blocks_of(values: pl.Series, counts: pl.Series, entries: Ints, size: Ints) -> list[pl.Series]:
    """First, last and count of the blocks of multisets that are laid end to end.

    There is no count where every value is there once.
    """
    number = -(-entries // size)
    multiset = np.repeat(np.arange(len(entries)), number)
    begin = (np.cumsum(entries) - entries)[multiset]
    lo = ramp(number) * size[multiset]
    hi = np.minimum(lo + size[multiset], entries[multiset])
    count = np.add.reduceat(counts.to_numpy(), begin + lo) if len(multiset) else np.empty(0, np.int64)
    first, last = values.gather(begin + lo), values.gather(begin + hi - 1)
    column = lists(pl.Series(count), number)
    if (count == hi - lo).all():
        column = pl.Series([None], dtype=pl.List(pl.Int64())).new_from_index(0, len(entries))
    return [lists(first, number).alias("first"), lists(last, number).alias("last"), column.alias("count")]


def block_sizes(entries: Ints, once: Mask, quantiles: int, forced: int | None) -> Ints:
    """How many values a block of each of several multisets has; 0 for those that had better travel whole.

    entries:    different values of the multiset
    once:       whether each is there once
    quantiles:  how many are asked of it; for each about two blocks are opened
    forced:     the size, if it was given
    """
    if forced is not None:
        return np.where(entries > forced, forced, 0)
    more = np.where(once, 0, VALUE)  # for counts
    size = np.sqrt(entries * (BLOCK + more) / ((VALUE + more) * 2 * quantiles)).astype(np.int64)  # `refine.block_size`
    refined = (BLOCK + more) * entries / np.maximum(1, size) + (VALUE + more) * 2 * quantiles * size + ROW
    saved = np.where((entries >= SMALLEST) & (size > 1), (VALUE + more) * entries - refined, 0)
    return np.where(saved > 0, size, 0) if saved.clip(0).sum() > MESSAGES else np.zeros_like(size)
