"""Bags on Spark: exact quantiles, mode and distinct, without a row that holds all values of a window.

Mode and distinct need every value once: `groupBy(key, slice, value).count()`, and bags are made of what is left.
Quantiles need the values around their ranks alone, which two passes find, of which the first makes the slices too:

    events ── aggregate by (key, slice, range of values) ──▶ slices
                                  └──▶ ranges that hold a wanted rank of some window ──┐
    events ── count by (key, slice, value), in those ranges alone ◀────────────────────┤
       └──▶ bags in which every wanted rank is exact ◀── the other ranges, each as its least value with its count

A range is a stretch of a monotone function of the value: the logarithm of its size, in `PER_OCTAVE` parts for each
power of two. Values closer together than that lie in one range and are then counted one by one, which is as exact and
takes longer. What the first pass finds is shuffled once and read several times; nothing runs before an action does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
import polars as pl
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from windrow.core.arrays.dataframes import in_parts
from windrow.core.arrays.range_queries import Ints
from windrow.core.assemble.due import Rows
from windrow.core.assemble.group_state import CompiledGroup
from windrow.core.operators.base import Multiset
from windrow.core.operators.multiset import Doubles, MultisetRanges
from windrow.core.plan.groups import Group, Held
from windrow.core.slices.binding import quoted
from windrow.core.slices.kernel import filter_name, input_name, time_name
from windrow.core.slices.table import SliceSchema, merge, unpack
from windrow.core.stream.job import Job
from windrow.core.stream.job_slicer import Slicer
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.spark import payloads
from windrow.spark.batch.jvm_slicing import (
    SLICES,
    Batches,
    Cut,
    Packing,
    aggregates,
    by_slice,
    group_of,
    placed,
    slices,
)
from windrow.spark.pickling import mapped
from windrow.spark.types import arrow_schema, from_arrow, struct, to_arrow

PER_OCTAVE = 128  # ranges of values between two powers of two
_OUTSIDE = 1 << 20  # beyond the range of every number
_RANGES = {"ranges": True}  # the header of payloads with ranges


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


def sliced(events: DataFrame, job: Job, group: Group, cut: Cut, buckets: int) -> list[DataFrame]:
    """Payloads of a group's slices and of those that are rolled up from it, with bags where they are asked for."""
    held = group.needs(shared=True)[1]
    schema = job.bound.binding.schema(group, shared=True)
    plain: list[Held] | None = [one for one in held if not isinstance(one.operator, Multiset)]
    rows: list[DataFrame] = []
    for one in held:
        if isinstance(one.operator, Multiset):
            ranks = ranks_of(group, schema, one)
            numeric = schema.input_types(one)[0].is_numeric()
            if ranks is None or group.children or schema.has_runs or not numeric:
                rows.append(_counted(events, job, group, cut, one, buckets))
            else:
                rows += _refined(events, job, group, cut, one, tuple(ranks), plain, buckets)
                plain = None
    return rows if plain is None else [slices(events, job, group, cut, plain, buckets), *rows]


def _count() -> Column:
    return F.expr("COUNT(1)").alias("events")


def _values(events: DataFrame, job: Job, group: Group, cut: Cut, one: Held) -> tuple[DataFrame, str]:
    """Events in their slices with the `value` that a bag takes of each, and a condition: whether it takes it."""
    frame = placed(events, job, group, cut).withColumn("value", F.expr(quoted(input_name(one.operator.inputs[0].text))))
    taken = f"{quoted(time_name(group.source.time))} IS NOT NULL AND value IS NOT NULL"
    return frame, taken if one.where is None else f"{taken} AND {quoted(filter_name(one.where.text))}"


def _counted(events: DataFrame, job: Job, group: Group, cut: Cut, one: Held, buckets: int) -> DataFrame:
    """Payloads with bags of all values."""
    schema = job.bound.binding.schema(group, shared=True)
    frame, taken = _values(events, job, group, cut, one)
    time = quoted(time_name(group.source.time))
    ends = [F.expr(f"MIN({time})").alias("first"), F.expr(f"MAX({time})").alias("last")] if schema.has_runs else []
    by = [*by_slice(schema, cut), F.col("value")]
    counted = frame.where(f"slice_start IS NOT NULL AND {taken}").groupBy(*by).agg(_count(), *ends)
    return mapped(counted, _packer(job, group.name, one, buckets), payloads.ROW)


def _packer(job: Job, name: str, one: Held, buckets: int) -> Callable[[Batches], Batches]:
    """Turns rows (key, slice, value, events) into payloads with bags, each of a bounded number of values."""

    def pack(batches: Batches) -> Batches:
        slicer = Slicer(job.bound)
        group = group_of(job, name)
        schema = slicer.shared_schema(group)
        types = {**schema.keys, "value": schema.input_types(one)[0]}
        for several in in_parts(batches, SLICES):
            tables = slicer.spread(group, bagged(from_arrow(several, types), schema, one))
            yield from payloads.rows(payloads.split(tables, job.bound, buckets), {})

    return pack


def bagged(counts: pl.DataFrame, schema: SliceSchema, one: Held) -> pl.DataFrame:
    """A slice table with one operator's bags, of rows (key, slice, value, events)."""
    by = [*schema.keys, "slice_start", *(["cell"] if "cell" in counts.columns else [])]
    names = schema.names[one]
    runs = [pl.col("first").min(), pl.col("last").max()] if schema.has_runs else []
    made = counts.sort(*by, "value").group_by(by, maintain_order=True)
    table = made.agg(pl.col("value").alias(names["values"]), pl.col("events").alias(names["counts"]), *runs)
    table = schema.conform(table.drop("cell") if "cell" in by else table)
    return merge([table], schema) if schema.has_runs else table


# --- refining -------------------------------------------------------------------------------------------------------


def range_of(value: str) -> str:
    """The number of the range that a value lies in: not less for a greater value; NaN lies above all."""
    x = f"CAST({value} AS DOUBLE)"
    size = f"FLOOR(LEAST(LN(ABS({x})) / LN(2D), 1100D) * {PER_OCTAVE}D) + {_OUTSIDE // 2}L"
    signed = f"CASE WHEN {x} < 0 THEN -({size}) ELSE {size} END"
    return f"CASE WHEN ISNAN({x}) THEN {_OUTSIDE}L WHEN {x} = 0 THEN 0L ELSE {signed} END"


def _refined(
    events: DataFrame,
    job: Job,
    group: Group,
    cut: Cut,
    one: Held,
    qs: tuple[float, ...],
    plain: Sequence[Held] | None,
    buckets: int,
) -> list[DataFrame]:
    """Payloads with bags that have the values around ranks, and of other ranges one value; and slices, if asked for."""
    schema = job.bound.binding.schema(group, shared=True)
    frame, taken = _values(events, job, group, cut, one)
    ranged = frame.withColumn("range", F.expr(f"CASE WHEN {taken} THEN {range_of('value')} END"))
    by = [F.col(quoted(name)) for name in (*schema.keys, "slice_start")]
    several = F.expr("MIN(value) < MAX(value)").alias("several")  # a range with one value is exact as it is
    states = [_count()] if plain is None else aggregates(job, group, plain)
    counts = ranged.groupBy(*by, "range").agg(*states, F.min("value").alias("least"), several)
    packed = mapped(counts, _range_packer(job, group.name, one, plain, cut.exact, buckets), payloads.ROW)
    together = packed.repartition(F.col("bucket")).sortWithinPartitions("bucket")
    others = mapped(together, _keeper(job, group.name, one, qs, buckets), payloads.ROW)
    found = {**schema.keys, "slice_start": pl.Int64(), "range": pl.Int64(), "low": pl.Float64(), "high": pl.Float64()}
    wanted = mapped(together, _finder(job, group.name, one, qs, struct(found)), struct(found))
    wanted = wanted.toDF(*(f"wanted {place}" for place in range(len(found))))
    low, high = (f"`wanted {place}`" for place in range(len(found) - 2, len(found)))
    # a comparison with the bounds of all ranges leaves out most events of a stream that stays about the same
    x = F.expr("CAST(value AS DOUBLE)")
    within = (x >= wanted.agg(F.expr(f"MIN({low})")).scalar()) & (x <= wanted.agg(F.expr(f"MAX({high})")).scalar())
    pairs = [
        f"{quoted(name)} {'<=>' if name in schema.keys else '='} `wanted {place}`" for place, name in enumerate(found)
    ]
    same = F.expr(" AND ".join(pairs[:-2]))
    near = ranged.where(taken).where(within).join(F.broadcast(wanted), same, "left_semi")
    exact = near.groupBy(*by, "value").agg(_count())
    return [others, mapped(exact, _packer(job, group.name, one, buckets), payloads.ROW)]


def _in_ranges(job: Job, group: Group, one: Held) -> SliceSchema:
    """The schema of slices with bags of ranges."""
    schema = job.bound.binding.schema(group, shared=True)
    return replace(schema, inputs={**schema.inputs, one.operator.inputs[0].text: pl.Int64()}, held=(one,))


def _range_packer(
    job: Job, name: str, one: Held, plain: Sequence[Held] | None, exact: bool, buckets: int
) -> Callable[[Batches], Batches]:
    """Turns rows of the JVM, a range of a slice each, into payloads: some of slices, and some of ranges."""

    def pack(batches: Batches) -> Batches:
        schema = job.bound.binding.schema(group_of(job, name), shared=True)
        packing = None if plain is None else Packing(job, name, tuple(plain), exact)
        types = {**schema.keys, "least": schema.input_types(one)[0]}
        for several in in_parts(batches, SLICES):
            if packing is not None:
                packing.add(several, parts=True)
            ranges = from_arrow(several, types).filter(pl.col("range").is_not_null())
            table = ranges.select(*schema.keys, "slice_start", "range", "events", "least", "several")
            yield from payloads.rows(payloads.split({name: table}, job.bound, buckets), _RANGES)
        if packing is not None:
            yield from packing.rows(buckets)

    return pack


def _bucket_by_bucket(batches: Batches) -> Iterator[tuple[int, list[pl.DataFrame], list[bytes]]]:
    """Each bucket with its tables of ranges, and the payloads of slices as they are."""
    for bucket, rows in groupby(payloads.read_rows(batches), key=lambda row: row[0]):
        ranges: list[pl.DataFrame] = []
        others: list[bytes] = []
        for _, payload in rows:
            header, tables = unpack(payload)
            if "ranges" in header:
                ranges += tables.values()
            else:
                others.append(payload)
        yield bucket, ranges, others


def _keeper(job: Job, name: str, one: Held, qs: tuple[float, ...], buckets: int) -> Callable[[Batches], Batches]:
    """Keeps payloads of slices, and turns ranges without a wanted rank into bags with one value for each."""

    def keep(batches: Batches) -> Batches:
        slicer, group = Slicer(job.bound), group_of(job, name)
        schema = slicer.shared_schema(group)
        for bucket, ranges, others in _bucket_by_bucket(batches):
            yield from (payloads.row(bucket, payload) for payload in others)
            if ranges:
                found = _searched(ranges, group, _in_ranges(job, group, one), one, qs).filter(~pl.col("wanted"))
                bags = bagged(found.with_columns(value="least"), schema, one)
                yield from payloads.rows(payloads.split(slicer.spread(group, bags), job.bound, buckets), {})

    return keep


def _finder(job: Job, name: str, one: Held, qs: tuple[float, ...], columns: StructType) -> Callable[[Batches], Batches]:
    """Finds the ranges that hold wanted ranks, each with bounds of its values, bucket by bucket."""

    def find(batches: Batches) -> Batches:
        group = group_of(job, name)
        for _, ranges, _ in _bucket_by_bucket(batches):
            if ranges:
                found = _searched(ranges, group, _in_ranges(job, group, one), one, qs).filter("wanted")
                low, high = bounds_of(found["range"].to_numpy())
                yield from to_arrow(found.with_columns(low=low, high=high), arrow_schema(columns))

    return find


def _searched(
    tables: Iterable[pl.DataFrame], group: Group, schema: SliceSchema, one: Held, qs: Iterable[float]
) -> pl.DataFrame:
    """The ranges of a bucket, and of each whether it is `wanted`: it holds several values, and the rank of a window."""
    ranges = pl.concat(tables).sort(*schema.keys, "slice_start", "range")
    rows = Rows(bagged(ranges.with_columns(value="range"), schema, one), schema)
    windows = CompiledGroup(group, schema, schema).assembler.due(rows, INT64_MIN, INT64_MAX)
    bag = schema.state(rows.table, one)
    around = MultisetRanges(bag["values"], bag["counts"], windows.lo, windows.hi).around(qs)
    return ranges.with_columns(wanted=pl.Series(around) & ranges["several"])


def bounds_of(ranges: Ints) -> tuple[Doubles, Doubles]:
    """Two numbers between which all values of each range lie, with room for how a logarithm is rounded."""
    size = np.abs(ranges) - _OUTSIDE // 2
    with np.errstate(over="ignore", under="ignore"):
        near, far = np.exp2((size - 1) / PER_OCTAVE), np.exp2((size + 2) / PER_OCTAVE)
    low, high = np.where(ranges < 0, -far, near), np.where(ranges < 0, -near, far)
    for bound in (low, high):
        bound[ranges == 0], bound[ranges == _OUTSIDE] = 0.0, np.nan
    return low, high
