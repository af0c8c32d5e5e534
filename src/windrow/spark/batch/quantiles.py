"""Multisets on Spark: exact quantiles, mode and distinct, without a row that holds all values of a window.

Mode and distinct need every value once: `groupBy(key, slice, value).count()`, and multisets are made of what is left.
Quantiles need the values around their ranks alone. A first pass counts the values in each **range**, which shows in
which range a rank lies; only the values in that one are counted one by one, in a second pass:

    ranges of a window       ├──────┼────┼───────┼──┼────┤
    first pass                  12    7     40     3   9      71 values, so that the median is the 36th: in the third
    second pass                          │││││││              each value of that range with its count
    multiset                    12    7  │││││││   3   9      of another range, one value with the count of all

The first pass makes the slices of all other operators too:

    events ── aggregate by (key, slice, range) ──▶ slices
                              └──▶ ranges that hold a wanted rank of some window ──┐
    events ── count by (key, slice, value), in those ranges alone ◀────────────────┤
       └──▶ multisets in which every wanted rank is exact ◀── the other ranges ────┘

Unlike the blocks of `nodes.quantiles`, ranges are the same for all slices and do not overlap. So their numbers stand
for the values in them, and `MultisetRanges.around` finds the numbers that a rank lies at.

The number of a range is a monotone function of the value: the logarithm of its size, in `PER_OCTAVE` parts for each
power of two. Values closer together than that lie in one range and are then counted one by one, which is as exact and
takes longer. The first pass is shuffled once and read several times; nothing runs before an action does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from windrow.core.arrays.dataframes import in_parts
from windrow.core.arrays.range_queries import Ints
from windrow.core.assemble.due import Rows
from windrow.core.assemble.group_state import CompiledGroup
from windrow.core.operators.base import Multiset
from windrow.core.operators.multiset import Doubles, MultisetRanges
from windrow.core.plan.groups import Group, Partial, reads_of
from windrow.core.slices.binding import quoted
from windrow.core.slices.kernel import filter_name, input_name, time_name
from windrow.core.slices.table import SliceSchema, merge
from windrow.core.stream.job import Job
from windrow.core.stream.job_slicer import SLICES_AT_ONCE, Slicer
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.io.tables import unpack
from windrow.spark import payloads
from windrow.spark.batch.jvm_slicing import (
    Batches,
    Cut,
    Packing,
    aggregates,
    by_slice,
    placed,
    run_times,
    slices,
)
from windrow.spark.pickling import mapped
from windrow.spark.types import from_arrow, mapped_to_frames

PER_OCTAVE = 128  # ranges of values between two powers of two
_OUTSIDE = 1 << 20  # beyond the range of every number
_RANGES = {"ranges": True}  # the header of payloads with ranges
_BOUNDS = {"slice_start": pl.Int64(), "range": pl.Int64(), "low": pl.Float64(), "high": pl.Float64()}


def quantiles_of(group: Group, multiset: Partial) -> tuple[float, ...] | None:
    """The quantiles that a group's aggregates read of a multiset; None if they read more."""
    read = [q for signature in group.signatures for partial, q in reads_of(signature) if partial == multiset]
    quantiles = {q for q in read if q is not None}
    return None if None in read else tuple(sorted(quantiles))


def sliced(events: DataFrame, job: Job, group: Group, cut: Cut, buckets: int) -> list[DataFrame]:
    """Payloads of a group's slices and of those that are rolled up from it, with the multisets that they need."""
    partials = group.needs(shared=True)[1]
    schema = job.compiled.by_name[group.name].shared_schema
    plain = tuple(partial for partial in partials if not isinstance(partial.operator, Multiset))
    rows: list[DataFrame] = []
    is_made = False  # whether a first pass has made the slices of all other operators
    for partial in partials:
        if isinstance(partial.operator, Multiset):
            quantiles = quantiles_of(group, partial)
            is_numeric = schema.input_types(partial)[0].is_numeric()
            if quantiles is None or group.children or schema.has_runs or not is_numeric:
                rows.append(_in_one_pass(events, cut, _Values(job, group.name, partial, buckets)))
            else:
                values = _Values(job, group.name, partial, buckets, quantiles)
                rows += _in_two_passes(events, cut, values, () if is_made else plain)
                is_made = True
    return rows if is_made else [slices(events, job, group, cut, plain, buckets), *rows]


@dataclass(frozen=True)
class _Values:
    """The values of which a group makes a multiset, as they are described to Spark's workers."""

    job: Job
    name: str  # of the group, which a worker plans anew
    partial: Partial
    buckets: int
    quantiles: tuple[float, ...] = ()  # that are read of it

    @property
    def group(self) -> Group:
        return self.job.compiled.by_name[self.name].group

    @property
    def schema(self) -> SliceSchema:
        return self.job.compiled.by_name[self.name].shared_schema

    @property
    def dtype(self) -> pl.DataType:
        return self.schema.input_types(self.partial)[0]

    def of(self, events: DataFrame, cut: Cut) -> tuple[DataFrame, str]:
        """Events in their slices with their `value`, and a condition: whether the multiset takes it."""
        text = quoted(input_name(self.partial.operator.inputs[0].text))
        values = placed(events, self.job, self.group, cut).withColumn("value", F.expr(text))
        taken = f"{quoted(time_name(self.group.source.time))} IS NOT NULL AND value IS NOT NULL"
        where = self.partial.where
        return values, taken if where is None else f"{taken} AND {quoted(filter_name(where.text))}"

    def pack(self, batches: Batches) -> Batches:
        """Turn rows (key, slice, value, events) into payloads with multisets, each of a bounded number of values."""
        slicer, types = Slicer(self.job.compiled), {**self.schema.keys, "value": self.dtype}
        for part in in_parts(batches, SLICES_AT_ONCE):
            yield from self.packed(from_arrow(part, types), slicer)

    def packed(self, counts: pl.DataFrame, slicer: Slicer) -> Batches:
        """The same of a table; payloads have the slices of the groups that are rolled up as well."""
        group = self.group
        tables = slicer.spread(group, multisets_of(counts, self.schema, self.partial))
        yield from payloads.packed(tables, self.job.compiled, self.buckets)


def multisets_of(counts: pl.DataFrame, schema: SliceSchema, partial: Partial) -> pl.DataFrame:
    """A slice table with the multisets of one operator, of rows (key, slice, value, events)."""
    by = [*schema.keys, "slice_start", *(["cell"] if "cell" in counts.columns else [])]
    names = schema.names[partial]
    runs = [pl.col("first").min(), pl.col("last").max()] if schema.has_runs else []
    grouped = counts.sort(*by, "value").group_by(by, maintain_order=True)
    table = grouped.agg(pl.col("value").alias(names["values"]), pl.col("events").alias(names["counts"]), *runs)
    table = schema.conform(table)
    return merge([table], schema) if schema.has_runs else table


def _in_one_pass(events: DataFrame, cut: Cut, values: _Values) -> DataFrame:
    """Payloads with multisets of all values."""
    frame, taken = values.of(events, cut)
    ends = run_times(values.schema, time_name(values.group.source.time))
    by = [*by_slice(values.schema, cut), F.col("value")]
    counted = frame.where(f"slice_start IS NOT NULL AND {taken}").groupBy(*by).agg(F.count("*").alias("events"), *ends)
    return mapped(counted, values.pack, payloads.COLUMNS)


# --- two passes -----------------------------------------------------------------------------------------------------


def range_of(value: str) -> str:
    """The number of the range that a value lies in: not less for a greater value; NaN lies above all."""
    x = f"CAST({value} AS DOUBLE)"
    size = f"FLOOR(LEAST(LN(ABS({x})) / LN(2D), 1100D) * {PER_OCTAVE}D) + {_OUTSIDE // 2}L"
    signed = f"CASE WHEN {x} < 0 THEN -({size}) ELSE {size} END"
    return f"CASE WHEN ISNAN({x}) THEN {_OUTSIDE}L WHEN {x} = 0 THEN 0L ELSE {signed} END"


def _in_two_passes(events: DataFrame, cut: Cut, values: _Values, plain: tuple[Partial, ...]) -> list[DataFrame]:
    """Payloads with multisets that have the values around ranks, and of other ranges one value; and plain slices."""
    frame, taken = values.of(events, cut)
    frame = frame.withColumn("range", F.expr(f"CASE WHEN {taken} THEN {range_of('value')} END"))
    ranges = _FirstPass(values, plain, cut.exact)
    counted = _counted_by_range(frame, cut, ranges)
    wanted = mapped_to_frames(counted, ranges.wanted, {**values.schema.keys, **_BOUNDS})
    near = _within(frame.where(taken), wanted, list(values.schema.keys))
    exact = near.groupBy(*by_slice(values.schema, cut), "value").agg(F.count("*").alias("events"))
    return [mapped(counted, ranges.unwanted, payloads.COLUMNS), mapped(exact, values.pack, payloads.COLUMNS)]


def _counted_by_range(frame: DataFrame, cut: Cut, ranges: _FirstPass) -> DataFrame:
    """Payloads of slices and of ranges, each bucket in one place."""
    values = ranges.values
    has_several = F.expr("MIN(value) < MAX(value)").alias("several")  # a range with one value is exact as it is
    states = aggregates(values.job, values.group, ranges.plain)
    by = [*by_slice(values.schema, cut), F.col("range")]
    counts = frame.groupBy(*by).agg(*states, F.min("value").alias("least"), has_several)
    return mapped(counts, ranges.pack, payloads.COLUMNS).repartition(F.col("bucket")).sortWithinPartitions("bucket")


def _within(events: DataFrame, wanted: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The events whose value lies in a wanted range of their key and slice."""
    names = {name: quoted(f"wanted {name}") for name in wanted.columns}
    renamed = wanted.toDF(*(f"wanted {name}" for name in wanted.columns))
    # a comparison with the bounds of all ranges leaves out most events of a stream that stays about the same
    x = F.expr("CAST(value AS DOUBLE)")
    low = renamed.agg(F.expr(f"MIN({names['low']})")).scalar()
    high = renamed.agg(F.expr(f"MAX({names['high']})")).scalar()
    pairs = [f"{quoted(key)} <=> {names[key]}" for key in keys]
    pairs += [f"{name} = {names[name]}" for name in ("slice_start", "range")]
    return events.where((x >= low) & (x <= high)).join(F.broadcast(renamed), F.expr(" AND ".join(pairs)), "left_semi")


@dataclass(frozen=True)
class _FirstPass:
    """What workers do with the counts of ranges: pack them, and once a bucket is in one place, find those wanted."""

    values: _Values
    plain: tuple[Partial, ...]  # the operators of the slices that are made too
    exact: bool

    def pack(self, batches: Batches) -> Batches:
        """Turn rows of the JVM, a range of a slice each, into payloads: some of slices, and some of ranges."""
        values = self.values
        packing = Packing(values.job, values.name, self.plain, self.exact)
        keys, types = list(values.schema.keys), {**values.schema.keys, "least": values.dtype}
        for part in in_parts(batches, SLICES_AT_ONCE):
            packing.add(part, parts=True)
            ranges = from_arrow(part, types).filter(pl.col("range").is_not_null())
            table = ranges.select(*keys, "slice_start", "range", "events", "least", "several")
            yield from payloads.packed({values.name: table}, values.job.compiled, values.buckets, _RANGES)
        yield from packing.rows(values.buckets)

    def unwanted(self, batches: Batches) -> Batches:
        """Keep payloads of slices, and turn ranges without a wanted rank into multisets with one value for each."""
        slicer = Slicer(self.values.job.compiled)
        for bucket, tables, others in _bucket_by_bucket(batches):
            yield from (payloads.row(bucket, payload) for payload in others)
            if tables:
                ranges = self._searched(tables).filter(~pl.col("wanted"))
                yield from self.values.packed(ranges.with_columns(value="least"), slicer)

    def wanted(self, batches: Batches) -> Iterator[pl.DataFrame]:
        """Find the ranges that hold wanted ranks, each with bounds of its values."""
        for _, tables, _ in _bucket_by_bucket(batches):
            if tables:
                ranges = self._searched(tables).filter("wanted")
                low, high = bounds_of(ranges["range"].to_numpy())
                yield ranges.with_columns(low=low, high=high)

    def _searched(self, tables: Iterable[pl.DataFrame]) -> pl.DataFrame:
        """The ranges of a bucket, and of each whether it is `wanted`: it has several values, and a window's rank.

        The numbers of ranges are put into multisets as if they were values.
        """
        values, group, shared = self.values, self.values.group, self.values.schema
        inputs = {**shared.inputs, values.partial.operator.inputs[0].text: pl.Int64()}
        schema = replace(shared, inputs=inputs, partials=(values.partial,))
        ranges = pl.concat(tables).sort(*schema.keys, "slice_start", "range")
        rows = Rows(multisets_of(ranges.with_columns(value="range"), schema, values.partial), schema)
        windows = CompiledGroup(group, schema, schema).assembler.due(rows, INT64_MIN, INT64_MAX)
        numbers = schema.state(rows.table, values.partial)
        around = MultisetRanges(numbers["values"], numbers["counts"], windows.lo, windows.hi).around(values.quantiles)
        return ranges.with_columns(wanted=pl.Series(around) & ranges["several"])


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


def bounds_of(ranges: Ints) -> tuple[Doubles, Doubles]:
    """Two numbers between which all values of each range lie, with room for how a logarithm is rounded."""
    size = np.abs(ranges) - _OUTSIDE // 2
    with np.errstate(over="ignore", under="ignore"):
        near, far = np.exp2((size - 1) / PER_OCTAVE), np.exp2((size + 2) / PER_OCTAVE)
    low, high = np.where(ranges < 0, -far, near), np.where(ranges < 0, -near, far)
    for bound in (low, high):
        bound[ranges == 0], bound[ranges == _OUTSIDE] = 0.0, np.nan
    return low, high
