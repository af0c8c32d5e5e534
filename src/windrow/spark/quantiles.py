"""Bags on Spark: exact quantiles, mode and distinct, without a row that holds all values of a window.

Mode and distinct need every value once: `groupBy(key, slice, value).count()`, and bags are made of what is left.
Quantiles need the values around their ranks alone, which two passes find:

    events ── count by (key, slice, range of values) ──▶ ranges that hold a wanted rank of some window
    events ── count by (key, slice, value), in those ranges ──┐
    the other ranges, each as its least value with its count ─┴──▶ bags in which every wanted rank is exact

A range is a stretch of a monotone function of the value: the logarithm of its size, in `PER_OCTAVE` parts for each
power of two. Values closer together than that lie in one range and are then counted one by one, which is as exact and
takes longer. The first pass is shuffled once and read twice; nothing runs before an action does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_
from typing import Any

import numpy as np
import polars as pl
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from windrow.bags import BagRanges, flat, lists
from windrow.binding import quoted
from windrow.frames import in_parts
from windrow.groups import Group, Held
from windrow.jobs import Job
from windrow.slicers import Slicer, Tables
from windrow.slices import SliceSchema, merge, unpack
from windrow.slicing import filter_column, input_column, time_column
from windrow.spark import payloads
from windrow.spark.shipping import mapped
from windrow.spark.slicing import SLICES, Batches, Cut, by_slice, group_of, placed
from windrow.spark.types import arrow_schema, from_arrow, struct, to_arrow
from windrow.state import GroupState
from windrow.windows import INT64_MAX, INT64_MIN

PER_OCTAVE = 128  # ranges of values between two powers of two
_OUTSIDE = 1 << 20  # beyond the range of every number


@dataclass
class Asked:
    """Stands in for a combined bag, and notes what an aggregate asks of it."""

    qs: set[float] = field(default_factory=set)
    everything: bool = False

    def quantiles(self, qs: Mapping[str, float]) -> pl.DataFrame:
        self.qs |= set(qs.values())
        return pl.DataFrame(schema=dict.fromkeys(qs, pl.Float64))

    def mode(self) -> pl.Series:
        self.everything = True
        return pl.Series([], dtype=pl.Float64)

    def distinct(self) -> pl.Series:
        self.everything = True
        return pl.Series([], dtype=pl.Int64)


def ranks_of(group: Group, schema: SliceSchema, one: Held) -> list[float] | None:
    """The quantiles that a group asks of a bag; None if it asks for more."""
    nothing, empty, asked = np.empty(0, np.int64), schema.empty(), Asked()
    for signature in group.signatures:
        for aggregate in signature.asked:
            reads = signature.held_by(aggregate)
            if one in reads:
                states: list[Any] = [
                    asked if held == one else held.operator.combine(schema.state(empty, held), nothing, nothing)
                    for held in reads
                ]
                aggregate.lower(states)
    return None if asked.everything else sorted(asked.qs)


def bags(events: DataFrame, job: Job, group: Group, cut: Cut, one: Held, buckets: int) -> DataFrame:
    """Payloads with the bags of an operator, of a group and of those that are rolled up from it."""
    schema = job.bound.binding.schema(group, shared=True)
    time = quoted(time_column(group.source.measure))
    value = quoted(input_column(one.operator.inputs[0].text))
    frame = placed(events, job, group, cut).where(f"slice_start IS NOT NULL AND {value} IS NOT NULL")
    if one.where is not None:
        frame = frame.where(quoted(filter_column(one.where.text)))
    times = [F.expr(time).alias("time")] if schema.has_runs else []
    frame = frame.select(*by_slice(schema, cut), F.expr(value).alias("value"), *times)
    ranks = ranks_of(group, schema, one)
    if ranks is None or group.children or schema.has_runs or not schema.input_types(one)[0].is_numeric():
        ends = [F.min("time").alias("first"), F.max("time").alias("last")] if schema.has_runs else []
        counted = frame.groupBy(*by_slice(schema, cut), "value").agg(F.expr("COUNT(1)").alias("count"), *ends)
    else:
        counted = _refined(frame, job, group, schema, one, tuple(ranks), buckets)
    return mapped(counted, _packer(job, group.name, one, buckets), payloads.ROW)


def _packer(job: Job, name: str, one: Held, buckets: int) -> Callable[[Batches], Batches]:
    """Turns rows (key, slice, value, count) into payloads with bags, each of a bounded number of values."""

    def pack(batches: Batches) -> Batches:
        slicer = Slicer(job)
        group = group_of(job, name)
        schema = slicer.shared_schema(group)
        types = {**schema.keys, "value": schema.input_types(one)[0]}
        for several in in_parts(batches, SLICES):
            tables = slicer.spread(group, bagged(from_arrow(several, types), schema, one))
            yield from payloads.rows(payloads.split(tables, job.bound, buckets), {})

    return pack


def bagged(counts: pl.DataFrame, schema: SliceSchema, one: Held) -> pl.DataFrame:
    """A slice table with one operator's bags, of rows (key, slice, value, count)."""
    by = [*schema.keys, "slice_start", *(["cell"] if "cell" in counts.columns else [])]
    names = schema.names[one]
    runs = [pl.col("first").min(), pl.col("last").max()] if schema.has_runs else []
    made = counts.sort(*by, "value").group_by(by, maintain_order=True)
    table = made.agg(pl.col("value").alias(names["values"]), pl.col("count").alias(names["counts"]), *runs)
    table = schema.conform(table.drop("cell") if "cell" in by else table)
    return merge([table], schema) if schema.has_runs else table


# --- refining -------------------------------------------------------------------------------------------------------


def _range(value: str) -> str:
    """The number of the range that a value lies in: not less for a greater value; NaN lies above all."""
    x = f"CAST({value} AS DOUBLE)"
    size = f"FLOOR(LEAST(LN(ABS({x})) / LN(2D), 1100D) * {PER_OCTAVE}D) + {_OUTSIDE // 2}L"
    signed = f"CASE WHEN {x} < 0 THEN -({size}) ELSE {size} END"
    return f"CASE WHEN ISNAN({x}) THEN {_OUTSIDE}L WHEN {x} = 0 THEN 0L ELSE {signed} END"


def _refined(
    frame: DataFrame, job: Job, group: Group, schema: SliceSchema, one: Held, qs: tuple[float, ...], buckets: int
) -> DataFrame:
    """Values with their counts, those in ranges without a wanted rank as one of them."""
    by = [*schema.keys, "slice_start"]
    ranged = frame.select("*", F.expr(_range("value")).alias("range"))
    several = "IF(MIN(value) < MAX(value), 1L, 0L)"  # a range with one value is exact as it is
    counts = ranged.groupBy(*(F.col(quoted(name)) for name in by), "range").agg(
        F.expr("COUNT(1)").alias("count"), F.min("value").alias("least"), F.expr(several).alias("several")
    )
    packed = mapped(counts, _range_packer(job, group.name, one, buckets), payloads.ROW)
    found = {**schema.keys, "slice_start": pl.Int64(), "range": pl.Int64()}
    together = packed.repartition(F.col("bucket")).sortWithinPartitions("bucket")
    wanted = mapped(together, _finder(job, group.name, one, qs), struct(found))
    wanted = F.broadcast(wanted.toDF(*(f"wanted {place}" for place in range(len(found)))))

    def same() -> Column:
        pairs = [(quoted(name), f"`wanted {place}`") for place, name in enumerate(found)]
        return reduce(and_, [F.expr(f"{name} <=> {other}") for name, other in pairs])

    keys = [F.col(quoted(name)) for name in by]
    exact = ranged.join(wanted, same(), "left_semi").groupBy(*keys, "value").agg(F.expr("COUNT(1)").alias("count"))
    # the counts are shuffled once if nothing is pushed below them, as an anti join would be, and no column is left out
    unwanted = counts.join(wanted, same(), "left_outer").where(f"`wanted {len(found) - 1}` IS NULL AND several < 2")
    others = unwanted.select(*keys, F.col("least").alias("value"), "count")
    return exact.union(others)


def _in_ranges(schema: SliceSchema, one: Held) -> SliceSchema:
    """The schema with ranges for values: twice the number of a range, and one more if it holds several values."""
    return replace(schema, inputs={**schema.inputs, one.operator.inputs[0].text: pl.Int64()}, held=(one,))


def _range_packer(job: Job, name: str, one: Held, buckets: int) -> Callable[[Batches], Batches]:
    def pack(batches: Batches) -> Batches:
        group = group_of(job, name)
        schema = _in_ranges(job.bound.binding.schema(group, shared=True), one)
        for several in in_parts(batches, SLICES):
            counts = from_arrow(several, schema.keys)
            marked = (pl.col("range") * 2 + pl.col("several")).alias("value")
            counts = counts.select(*schema.keys, "slice_start", "count", marked)
            tables: Tables = {name: bagged(counts, schema, one)}
            yield from payloads.rows(payloads.split(tables, job.bound, buckets), {})

    return pack


def _finder(job: Job, name: str, one: Held, qs: tuple[float, ...]) -> Callable[[Batches], Batches]:
    """Finds the ranges that hold wanted ranks, bucket by bucket."""

    def find(batches: Batches) -> Batches:
        group = group_of(job, name)
        schema = _in_ranges(job.bound.binding.schema(group, shared=True), one)
        columns = arrow_schema(struct({**schema.keys, "slice_start": pl.Int64(), "range": pl.Int64()}))
        several: list[pl.DataFrame] = []
        last = None
        for bucket, payload in payloads.read_rows(batches):
            if bucket != last and several:
                yield from to_arrow(_wanted(several, group, schema, one, qs), columns)
                several = []
            last = bucket
            several += unpack(payload)[1].values()
        if several:
            yield from to_arrow(_wanted(several, group, schema, one, qs), columns)

    return find


def _wanted(
    tables: Iterable[pl.DataFrame], group: Group, schema: SliceSchema, one: Held, qs: Iterable[float]
) -> pl.DataFrame:
    """The (key, slice, range) that hold a wanted rank of some window."""
    state = GroupState(group, schema, schema)
    for table in tables:
        state.absorb(table)
    rows = state.rows
    windows = state.assembler.due(rows, INT64_MIN, INT64_MAX)
    bag = schema.state(rows.table, one)
    marked, sizes = flat(bag["values"])
    ranges = lists(marked // 2, sizes)
    around = BagRanges(ranges, bag["counts"], windows.lo, windows.hi).around(qs)
    around &= (marked % 2 == 1).to_numpy()
    owner = np.repeat(np.arange(len(sizes)), sizes)[around]
    chosen = rows.table.select(*schema.keys, "slice_start")[owner]
    return chosen.with_columns(range=marked.filter(pl.Series(around)) // 2)
