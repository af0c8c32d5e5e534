"""Quantiles without whole bags: which queries need only some values of them, and how bags are named and cut.

A bag's values in order are cut into **units**, of so many (`step`) different values each:

    values    1 2 2 3 │ 5 6 8 8 9 │ 11 12 …
    unit      first 1, last 3, count 4   …

Units travel first, then the values of those that the root asks for, in these tables of a group:

    <group>|units <bag>    which bag; key, where it is; its units
    <group>|values <bag>   which bag, and from which place in it on; the values of a unit from there, none if the node
                           does not have the bag any more
    <group>|wanted <bag>   down, in a request: which bags, and from which place to which

Which bag it is, is said by its node and two numbers. Of time windows and sessions (`bagforms`) these are the number of
a sending and the row in it, and the units come with the slices. Of counting windows on whose ends nodes agree
(`RankForm`) they are ranks, that of its first event and the one after its last, which mean something with the key
alone; between which ranks it lies is known once boundaries are, so that the root has to ask for the units (`UNITS`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from windrow.core.aggregates.functions import Aggregate
from windrow.core.arrays.range_queries import Ints, ramp
from windrow.core.operators.base import Multiset
from windrow.core.operators.multiset import counted, lists
from windrow.core.plan.groups import Group, Held, Signature, held_by
from windrow.core.query.query import Query
from windrow.core.slices.kernel import filter_name, input_name
from windrow.core.slices.table import SliceSchema
from windrow.core.windows.fixed import FixedWindow, Session
from windrow.core.windows.ordered import Counting, Mask

BAG = ("node", "send", "row")  # which bag, see above
UNITS = -1  # a place in a bag: what is asked for are its units
SMALLEST = 64  # bags of fewer values travel whole
UNIT = 16  # bytes of a unit: its first and last value; its count is mostly known
VALUE = 8  # bytes of a value
ROW = 100  # bytes of a bag beside its units: an estimate
MESSAGES = 6_000  # bytes of the headers that a question and its answer cost: an estimate


def leaves(asked: Aggregate) -> Iterator[Aggregate]:
    """An aggregate, or those that a formula is made of."""
    if asked.parts:
        for part in asked.parts:
            yield from leaves(part)
    else:
        yield asked


def quantile_of(leaf: Aggregate) -> float | None:
    """Which quantile an aggregate is; None if it is none."""
    if leaf.function == "median":
        return 0.5
    return float(leaf.param("q")) if leaf.function == "quantile" else None


def can_be_refined(query: Query) -> bool:
    """Whether a query asks for quantiles in windows that are made of slices, and of time windows for nothing else of
    bags; of counting windows each bag is looked at for itself (`BagForm`)."""
    if any(one.needs_order for one in query.asked):
        return False
    of_bags = [
        quantile_of(leaf)
        for asked in query.asked
        for leaf in leaves(asked)
        if any(isinstance(operator, Multiset) for operator in leaf.operators)
    ]
    if isinstance(query.window, Counting):
        return any(q is not None for q in of_bags)
    return isinstance(query.window, FixedWindow | Session) and bool(of_bags) and None not in of_bags


def _reads(signature: Signature) -> Iterator[tuple[Held, float | None]]:
    """The bags that a signature reads, and which quantiles of them; None for something else."""
    for asked in signature.asked:
        for leaf in leaves(asked):
            for held in held_by(leaf, signature.where):
                if isinstance(held.operator, Multiset):
                    yield held, quantile_of(leaf)


class BagForm:
    """What the tables of a group look like whose bags stay at nodes; prepared once per plan."""

    place: Mapping[str, pl.DataType] = {}  # what is said of a bag beside which it is
    on_demand = False  # whether units are asked for

    def __init__(self, group: Group, schema: SliceSchema) -> None:
        self.group, self.name, self.schema = group, group.name, schema
        self.keys = dict(schema.keys)
        self.identity: tuple[str, ...] = BAG
        self.bags: dict[str, Held] = {}
        self.qs: dict[tuple[str, int], set[float]] = {}  # of a bag, in the windows of a timeline
        signatures = list(group.signatures)
        reads = [(held, q, line) for line, number in group.members for held, q in _reads(signatures[number])]
        whole = {held for held, q, _ in reads if q is None}
        for held, q, timeline in reads:
            if held not in whole and q is not None:
                self.bags[held.text] = held
                self.qs.setdefault((held.text, timeline), set()).add(q)

    def asked(self, bag: str) -> int:
        """How many quantiles are asked of a bag."""
        return len(set[float]().union(*(qs for (text, _), qs in self.qs.items() if text == bag)))

    def value_type(self, bag: str) -> pl.DataType:
        return self.schema.input_types(self.bags[bag])[0]

    def columns(self, bag: str) -> tuple[str, str]:
        """Those of a slice table in which it is."""
        names = self.schema.names[self.bags[bag]]
        return names["values"], names["counts"]

    @property
    def named(self) -> dict[str, pl.DataType]:
        """The columns that say which bag it is."""
        return {"node": pl.String(), "send": pl.Int64(), "row": pl.Int64()} | {
            name: dtype for name, dtype in self.keys.items() if name in self.identity
        }

    def units(self, bag: str) -> dict[str, pl.DataType]:
        value = pl.List(self.value_type(bag))
        lists = {"first": value, "last": value, "count": pl.List(pl.Int64())}
        sizes = {"step": pl.Int64(), "entries": pl.Int64()}
        return {**self.named, **self.keys, **self.place, **sizes, **lists}

    def values(self, bag: str) -> dict[str, pl.DataType]:
        lists = {"values": pl.List(self.value_type(bag)), "counts": pl.List(pl.Int64())}
        return {**self.named, "lo": pl.Int64(), **lists}

    def answer(
        self, bag: str, named: Mapping[str, pl.Series], values: Sequence[pl.Series], counts: Sequence[pl.Series]
    ) -> pl.DataFrame:
        """The values of units, in their table; no counts where every value is there once."""
        columns, sizes, weights = self.values(bag), np.array([len(one) for one in values]), pl.concat(counts)
        known = lists(weights, sizes)
        if (weights == 1).all():
            known = pl.Series([None], dtype=columns["counts"]).new_from_index(0, len(sizes))
        return pl.DataFrame({**named, "values": lists(pl.concat(values), sizes), "counts": known}).select(*columns)

    @property
    def wanted(self) -> dict[str, pl.DataType]:
        place = {"lo": pl.Int64(), "hi": pl.Int64()}
        return {"send": pl.Int64(), "row": pl.Int64(), **self.keys, **self.place, **place}

    @property
    def tables(self) -> dict[str, dict[str, pl.DataType]]:
        """The tables that are sent, and their columns."""
        units = {f"{self.name}|units {bag}": self.units(bag) for bag in self.bags}
        return units | {f"{self.name}|values {bag}": self.values(bag) for bag in self.bags}

    def wrong_with(self, tables: Mapping[str, pl.DataFrame]) -> str | None:
        """Why the tables of a batch cannot be taken; None if they can."""
        for name, columns in self.tables.items():
            table = tables.get(name)
            if table is None:
                continue
            if dict(table.schema) != columns:
                return f"{name} has other columns in its batch than it should"
            certain = [one for one in columns if one not in (*self.keys, "count", "counts")]
            if any(table[one].null_count() for one in certain):
                return f"{name} has no value where one is needed in its batch"
            if not table.select(_is_whole(table).all()).item():
                return f"{name} has units that cannot be in its batch"
        return None

    def wrong_request(self, tables: Mapping[str, pl.DataFrame]) -> str | None:
        """Why a request cannot be heard; None if it can."""
        for bag in self.bags:
            name = f"{self.name}|wanted {bag}"
            table = tables.get(name)
            if table is None:
                continue
            if dict(table.schema) != self.wanted or any(table[one].null_count() for one in ("send", "row", "lo", "hi")):
                return f"{name} cannot be in a request"
        return None


def _is_whole(table: pl.DataFrame) -> pl.Expr:
    """Of units or values: whether lists are as long as they have to be."""
    if "values" in table.columns:
        return (pl.col("lo") >= 0) & (
            pl.col("counts").list.len().fill_null(size := pl.col("values").list.len()) == size
        )
    sizes = -(-pl.col("entries") // pl.col("step"))
    is_sized = (pl.col("step") >= 1) & (pl.col("entries") >= 0)
    for name in ("first", "last", "count"):
        is_sized &= pl.col(name).list.len().cast(pl.Int64).fill_null(sizes) == sizes
    return is_sized.fill_null(False)


class RankForm(BagForm):
    """Of counting windows on whose ends nodes agree."""

    on_demand = True

    def __init__(self, group: Group, schema: SliceSchema) -> None:
        super().__init__(group, schema)
        self.identity = (*BAG, *self.keys)


def bag_of(events: pl.DataFrame, held: Held) -> tuple[pl.Series, pl.Series]:
    """The values that prepared events have in a bag, and how often."""
    chosen = events.filter(pl.col(filter_name(held.where.text))) if held.where else events
    values = chosen[input_name(held.operator.inputs[0].text)].drop_nulls().sort()
    made, counts = counted(lists(values, np.array([len(values)])))
    return made[0], counts[0]


def units_of(values: pl.Series, counts: pl.Series, sizes: Ints, step: Ints) -> list[pl.Series]:
    """First, last and count of the units of bags that are laid end to end; no count where every value is there once."""
    number = -(-sizes // step)
    bag = np.repeat(np.arange(len(sizes)), number)
    begin = (np.cumsum(sizes) - sizes)[bag]
    lo = ramp(number) * step[bag]
    hi = np.minimum(lo + step[bag], sizes[bag])
    count = np.add.reduceat(counts.to_numpy(), begin + lo) if len(bag) else np.empty(0, np.int64)
    first, last = values.gather(begin + lo), values.gather(begin + hi - 1)
    known = lists(pl.Series(count), number)
    if (count == hi - lo).all():
        known = pl.Series([None], dtype=pl.List(pl.Int64())).new_from_index(0, len(sizes))
    return [lists(first, number).alias("first"), lists(last, number).alias("last"), known.alias("count")]


def steps_of(entries: Ints, once: Mask, asked: int, forced: int | None) -> Ints:
    """How many values a unit of each of several bags has; 0 for those that had better travel whole.

    entries:  different values of the bag
    once:     whether each is there once
    asked:    how many quantiles are asked of it; for each about two units are opened
    forced:   the size, if it was given
    """
    if forced is not None:
        return np.where(entries > forced, forced, 0)
    more = np.where(once, 0, VALUE)  # for counts
    size = np.sqrt(entries * (UNIT + more) / ((VALUE + more) * 2 * asked)).astype(np.int64)  # as `refine.unit_size`
    units = (UNIT + more) * entries / np.maximum(1, size) + (VALUE + more) * 2 * asked * size + ROW
    saved = np.where((entries >= SMALLEST) & (size > 1), (VALUE + more) * entries - units, 0)
    return np.where(saved > 0, size, 0) if saved.clip(0).sum() > MESSAGES else np.zeros_like(size)
