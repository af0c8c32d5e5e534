"""What travels instead of bags: which queries need only some values of them, and the tables in which these are named.

A bag's values in order are cut into **units**, of so many (`step`) different values each:

    values    1 2 2 3 │ 5 6 8 8 9 │ 11 12 …
    unit      first 1, last 3, count 4   …

    <group>|units <bag>    node, send, row: which bag; key, from when to when its events are; its units
    <group>|values <bag>   which bag, and from which place in it on; the values of a unit from there, none if the node
                           does not have the bag any more
    refining               the node, and whether nothing may be asked of it any more

and down, in a request:

    <group>|wanted <bag>   which bags, and from which place to which
    <group>|settled        bags of these and earlier sends, of events before a time, will not be asked for
    refining               that was all
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from windrow.aggregates import Aggregate
from windrow.bound import state_of
from windrow.groups import Group, Held, Signature, held_by
from windrow.jobs import Job
from windrow.nodes.forms import GOING, GONE
from windrow.operators import Bag
from windrow.ordered import Mask
from windrow.query import Query
from windrow.ranges import Ints
from windrow.slicers import edges_of
from windrow.windows import FixedWindow, Session

REFINING = "refining"
BAG = ("node", "send", "row")  # which bag: that of a row of what a node has sent at a time
ASKED = {"start": pl.Int64(), "end": pl.Int64(), "lo": pl.Int64(), "hi": pl.Int64()}
NODES: dict[str, pl.DataType] = {"node": pl.String(), "over": pl.Boolean()}
SETTLED: dict[str, pl.DataType] = {"send": pl.Int64(), "start": pl.Int64()}
OVER: dict[str, pl.DataType] = {"over": pl.Boolean()}
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
    """Whether quantiles are all that a query asks of bags, in windows that are made of slices."""
    if query.needs_order or not isinstance(query.window, FixedWindow | Session):
        return False
    of_bags = [
        quantile_of(leaf)
        for asked in query.asked
        for leaf in leaves(asked)
        if any(isinstance(operator, Bag) for operator in leaf.operators)
    ]
    return bool(of_bags) and None not in of_bags


def quantiles_of(signature: Signature) -> Iterator[tuple[Held, float]]:
    """The bags that a signature reads, and which quantiles of them."""
    for asked in signature.asked:
        for leaf in leaves(asked):
            q = quantile_of(leaf)
            if q is not None:
                yield held_by(leaf, signature.where)[0], q


class BagForm:
    """What the tables of a refined group look like; prepared once per plan."""

    def __init__(self, group: Group, job: Job) -> None:
        self.group, self.name = group, group.name
        self.schema = state_of(group, job.bound.binding, job.measures).schema
        self.keys = dict(self.schema.keys)
        self._edges = edges_of(group, False, False)
        self.bags: dict[str, Held] = {}
        self.qs: dict[tuple[str, int], set[float]] = {}  # of a bag, in the windows of a timeline
        signatures = list(group.signatures)
        for timeline, number in group.members:
            for held, q in quantiles_of(signatures[number]):
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

    def units(self, bag: str) -> dict[str, pl.DataType]:
        value = pl.List(self.value_type(bag))
        lists = {"first": value, "last": value, "count": pl.List(pl.Int64())}
        place = {"start": pl.Int64(), "end": pl.Int64(), "step": pl.Int64(), "entries": pl.Int64()}
        return {"node": pl.String(), "send": pl.Int64(), "row": pl.Int64(), **self.keys, **place, **lists}

    def values(self, bag: str) -> dict[str, pl.DataType]:
        place = {"node": pl.String(), "send": pl.Int64(), "row": pl.Int64(), "lo": pl.Int64()}
        return {**place, "values": pl.List(self.value_type(bag)), "counts": pl.List(pl.Int64())}

    @property
    def wanted(self) -> dict[str, pl.DataType]:
        return {"send": pl.Int64(), "row": pl.Int64(), **self.keys, **ASKED}

    def times(self, table: pl.DataFrame) -> tuple[Ints, Ints]:
        """From when to when the events of slices are."""
        if self.schema.has_runs:
            return table["first"].to_numpy(), table["last"].to_numpy() + 1
        start = table["slice_start"].to_numpy()
        end = np.full(len(start), np.iinfo(np.int64).max)
        for period, phase in zip(self._edges.period, self._edges.phase, strict=True):
            np.minimum(end, phase + ((start - phase) // period + 1) * period, out=end)
        return start, end


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


def forms_of(job: Job) -> dict[str, BagForm]:
    return {group.name: BagForm(group, job) for group in job.bound.plan.groups if group.refined}


def tables_of(job: Job) -> tuple[set[str], set[str]]:
    """The names of the tables that go with the slices of refined groups, and of those that the root waits for."""
    units = {f"{form.name}|units {bag}" for form in forms_of(job).values() for bag in form.bags}
    names = set(schemas_of(job))
    return names, names - units


def schemas_of(job: Job) -> dict[str, dict[str, pl.DataType]]:
    """The tables that go with the slices of refined groups, and their columns."""
    found: dict[str, dict[str, pl.DataType]] = {}
    for form in forms_of(job).values():
        for bag in form.bags:
            found[f"{form.name}|units {bag}"], found[f"{form.name}|values {bag}"] = form.units(bag), form.values(bag)
    return found | {REFINING: NODES, GONE: GOING} if found else {}
