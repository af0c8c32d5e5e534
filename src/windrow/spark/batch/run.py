"""Batch: all windows of a whole DataFrame, as a DataFrame.

    events ── slice, in the JVM or by the Polars kernel ──▶ payloads ── shuffled by bucket ──▶ assembled
    events ── shuffled by key, sorted ──▶ put through the state of their group, for what needs the order

Queries are parted by how their events become slices, because each way is a scan of its own; results are one union.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from windrow.core.arrays.dataframes import in_parts
from windrow.core.assemble.results import too_large
from windrow.core.operators.base import Multiset
from windrow.core.operators.collect import Collect
from windrow.core.plan.groups import Entry, Group, partials_of
from windrow.core.slices.binding import no_time, quoted
from windrow.core.slices.kernel import filter_name, key_name, time_name
from windrow.core.stream import deduplicate
from windrow.core.stream.group_states import GroupStates
from windrow.core.stream.job import Job, time_names
from windrow.core.stream.job_slicer import SLICES_AT_ONCE, Gathered, Slicer
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.core.windows.ordered import Counting
from windrow.io import EVENTS_AT_ONCE
from windrow.io.tables import unpack
from windrow.spark import payloads
from windrow.spark.batch import positions, quantiles
from windrow.spark.batch.jvm_operators import lift
from windrow.spark.batch.jvm_slicing import Batches, Cut, cut_of, prepared
from windrow.spark.pickling import mapped
from windrow.spark.settings import shuffle_partitions
from windrow.spark.slice_rows import check
from windrow.spark.types import from_arrow, mapped_to_frames, struct

_IN_ORDER = "events are shuffled by key and put in order, which its windows depend on"


class Way(NamedTuple):
    """How a query is answered, why, and what else tells it apart from others that are answered so."""

    how: Callable[[DataFrame, Job, bool], DataFrame]
    why: str
    apart: Any = ()


def parts_of(job: Job) -> list[tuple[Job, Way]]:
    """Choose a way for each query, and put queries with the same way together.

    Whether the JVM can cut depends on all windows of a group together, so such queries are tried as a part first, and
    take the kernel or the order if they cannot be cut.
    """
    groups = _groups(job)
    ways = {entry.query.name: _way(entry, job, groups[entry.query.name]) for entry in job.entries}
    for part, way in _parted(job, ways):
        if way.how is by_position:
            cut = positions.cut_in_positions(positions.in_positions(part))
            if isinstance(cut, str):
                ways |= {entry.query.name: Way(in_order, f"{_IN_ORDER}: {cut}") for entry in part.entries}
        elif way.how is by_catalyst:
            for group in part.compiled.plan.groups:
                cut = _cut_of(group.parent or group)
                if isinstance(cut, str):
                    kernel = Way(by_kernel, f"sliced by the Polars kernel: {cut}")
                    ways |= {part.entries[number].query.name: kernel for number in _numbers(group)}
    return sorted(_parted(job, ways), key=lambda part: part[1].how is by_catalyst)


def _parted(job: Job, ways: Mapping[str, Way]) -> list[tuple[Job, Way]]:
    parts: dict[Any, list[Entry]] = {}
    for entry in job.entries:
        way = ways[entry.query.name]
        parts.setdefault((way.how, way.apart), []).append(entry)
    return [(replace(job, entries=tuple(entries)), ways[entries[0].query.name]) for entries in parts.values()]


def _way(entry: Entry, job: Job, group: Group) -> Way:
    query = entry.query
    repeats_of = (query.distinct_on, query.time or job.time) if query.distinct_on else ()
    if query.needs_order:
        return _by_position(entry, job) or Way(in_order, _IN_ORDER, repeats_of)
    if query.distinct_on:
        return Way(by_kernel, "repeats are dropped first, by the Polars kernel", repeats_of)
    schema = job.compiled.by_name[group.name].schema
    partials = dict.fromkeys(
        partial for aggregate in query.computed for partial in partials_of(aggregate, query.filter_inside)
    )
    plain = [partial for partial in partials if not isinstance(partial.operator, Multiset)]
    for partial in plain:
        made = lift(partial, schema)
        if isinstance(made, str):
            return Way(by_kernel, f"sliced by the Polars kernel: {made}")
    if len(plain) < len(partials):
        why = "sliced by Spark's own aggregates, values counted by (key, slice, value)"
        return Way(by_catalyst, why, (query.by, query.time, query.filter_first))
    return Way(by_catalyst, "sliced by Spark's own aggregates")


def _by_position(entry: Entry, job: Job) -> Way | None:
    """For counting windows over all events, unless their functions depend on the order."""
    query = entry.query
    if not isinstance(query.window, Counting) or query.by or query.distinct_on:
        return None
    if entry.since != INT64_MIN or entry.until != INT64_MAX:
        return None
    alone = positions.in_positions(replace(job, entries=(entry,)))
    if any(renamed.query.needs_order for renamed in alone.entries):
        return None
    (group,) = alone.compiled.plan.groups
    schema = alone.compiled.by_name[group.name].shared_schema
    why = "counted by cells of time; events are put in order only in the cells that hold a cut"
    if any(isinstance(lift(partial, schema), str) for partial in group.partials):
        return Way(by_number, f"{why}; then answered by position", (query.time, query.filter_first))
    return Way(by_position, why, (query.time, query.filter_first))


def _groups(job: Job) -> dict[str, Group]:
    """The group of each query, by name."""
    groups = job.compiled.plan.groups
    return {job.entries[number].query.name: group for group in groups for number in _numbers(group)}


def _numbers(group: Group) -> Iterator[int]:
    """The numbers of a group's queries."""
    return chain.from_iterable(group.members.values())


def _cut_of(group: Group) -> Cut | str:
    timelines, _, gap = group.needs(shared=True)
    return cut_of(timelines, gap, time_name(group.source.time))


def windows(df: DataFrame, job: Job, partial: bool) -> DataFrame:
    """All results, in the columns of the whole job."""
    types = struct(job.compiled.results.empty.schema)
    answers = [way.how(df, part, partial) for part, way in parts_of(job)]
    aligned = [
        results.select(
            *(
                F.col(quoted(name)) if name in results.columns else F.lit(None).cast(types[name].dataType).alias(name)
                for name in types.names
            )
        )
        for results in answers
    ]
    return reduce(DataFrame.union, aligned) if aligned else df.sparkSession.createDataFrame([], types)


def describe(job: Job) -> str:
    """How each query is answered, why so, and what is shuffled."""
    lines = []
    for part, way in parts_of(job):
        names = [entry.query.name for entry in part.entries]
        shown = ", ".join(names[:6]) + (f", and {len(names) - 6:,} more" if len(names) > 6 else "")
        lines += [f"queries {shown}", f"  how        {way.why}"]
        for group in part.compiled.plan.groups:
            if group.parent is not None:
                lines.append(f"  group      {group.name}: rolled up from the shuffled slices {group.parent.name}")
            else:
                cut = _cut_of(group) if way.how is by_catalyst else None
                lines.append(f"  group      {group.name}" + (f": cut at {cut.why}" if isinstance(cut, Cut) else ""))
        lines.append(f"  shuffled   {_SHUFFLED[way.how]}")
        if way.how is by_number:
            lines += [f"  {line}" for line in describe(positions.in_positions(part)).splitlines()]
    return "\n".join(lines)


# --- events ---------------------------------------------------------------------------------------------------------


def events_of(batches: Iterable[pa.RecordBatch], job: Job) -> Iterator[pl.DataFrame]:
    """Prepared events as frames of about so many rows; refuses those without a time."""
    arrived = 0
    for part in in_parts(batches, EVENTS_AT_ONCE):
        events = from_arrow(part, job.compiled.binding.prepared)
        for name in time_names(job):
            if missing := events[name].null_count():
                raise no_time(missing, events.height, name.removeprefix("time:"))
        yield events.with_columns(nth=pl.int_range(arrived, arrived + pl.len(), dtype=pl.Int64))
        arrived += events.height


def _sorted_by(df: DataFrame, job: Job, by: Sequence[str], time: str) -> DataFrame:
    """Events with the same values in some columns together in a partition, each partition in order."""
    together = df.repartition(*(F.col(quoted(name)) for name in by)) if by else df.repartition(1)
    order = [name for name in job.compiled.binding.sql if name.startswith("order:")]
    return together.sortWithinPartitions(*(F.col(quoted(name)).asc_nulls_first() for name in (time, *order)))


def without_repeats(events: DataFrame, job: Job) -> DataFrame:
    """Events without repeats, for a job whose queries all have the same `distinct_on` and time column."""
    source = job.compiled.plan.groups[0].source
    if not source.distinct_on:
        return events

    def drop(batches: Batches) -> Iterator[pl.DataFrame]:
        time_column, kept = job.time_columns[source.time], None
        for frame in events_of(batches, job):
            fresh, kept = deduplicate.fresh(frame, deduplicate.repeats_of(source), time_column, kept)
            time_column.watermark = int(frame[time_name(source.time)].max())  # type: ignore[arg-type]
            yield frame.filter(fresh)

    by = [f"distinct:{name}" for name in source.distinct_on]
    return mapped_to_frames(_sorted_by(events, job, by, time_name(source.time)), drop, job.compiled.binding.prepared)


# --- slices ---------------------------------------------------------------------------------------------------------


def by_catalyst(df: DataFrame, job: Job, partial: bool) -> DataFrame:
    """Slices by the JVM, in a `groupBy` for each group that is not rolled up from another."""
    events, buckets = prepared(df, job), buckets_of(df)
    rows: list[DataFrame] = []
    for group in job.compiled.plan.groups:
        if group.parent is None:
            cut = _cut_of(group)
            assert isinstance(cut, Cut)
            rows += quantiles.sliced(events, job, group, cut, buckets)
    return assembled(reduce(DataFrame.union, rows), job)


def by_kernel(df: DataFrame, job: Job, partial: bool) -> DataFrame:
    """Slices by the Polars kernel, in `mapInArrow`; no row holds all values of a large window."""
    buckets = buckets_of(df)
    partials = (partial for group in job.compiled.plan.groups for partial in group.partials)
    keeps_values = any(isinstance(partial.operator, Multiset | Collect) for partial in partials)

    def pack(batches: Batches) -> Batches:
        slicer = Slicer(job.compiled)
        gathered = Gathered(job.compiled)
        for frame in events_of(batches, job):
            gathered.add(slicer.slice(frame))
            if keeps_values:
                yield from payloads.packed(gathered.tables(), job.compiled, buckets)
                gathered = Gathered(job.compiled)
        yield from payloads.packed(gathered.tables(), job.compiled, buckets)

    events = without_repeats(prepared(df, job), job)
    return assembled(mapped(events, pack, payloads.COLUMNS), job)


def buckets_of(df: DataFrame) -> int:
    """Into how many buckets keys are put: enough for every core, and so that one bucket fits into memory."""
    return max(64, 2 * shuffle_partitions(df.sparkSession))


def assembled(rows: DataFrame, job: Job, partial: bool = False, plan: str | None = None) -> DataFrame:
    """The results of payloads; with a plan, refuses payloads of another one."""

    def assemble(batches: Batches) -> Iterator[pl.DataFrame]:
        by_group: dict[str, list[pl.DataFrame]] = {}
        size, last = 0, None
        for bucket, payload in payloads.read_rows(batches):
            if bucket != last and size > SLICES_AT_ONCE:
                yield results_of(by_group, job, partial)
                by_group, size = {}, 0
            last = bucket
            header, tables = unpack(payload)
            if plan is not None:
                check(header, plan)
            for name, table in tables.items():
                by_group.setdefault(name, []).append(table)
                size += table.height
        if by_group:
            yield results_of(by_group, job, partial)

    shuffled = rows.repartition(F.col("bucket")).sortWithinPartitions("bucket")
    return mapped_to_frames(shuffled, assemble, job.compiled.results.empty.schema)


def results_of(tables: dict[str, list[pl.DataFrame]], job: Job, partial: bool = False) -> pl.DataFrame:
    """All windows of these slices, and of the events of groups that need the order."""
    groups = [compiled for compiled in job.compiled.groups if compiled.group.name in tables]
    states = GroupStates(job.compiled, job.time_columns, [compiled.state() for compiled in groups])
    for compiled in groups:
        parts = tables[compiled.group.name]
        if compiled.group.ordered:
            parts = [pl.concat(parts).sort("nth")]  # each node's events as it had them
        for table in parts:
            states.absorb({compiled.group.name: table})
    return emitted_at(INT64_MAX, states, partial)


def emitted_at(watermark: int, states: GroupStates, partial: bool = False) -> pl.DataFrame:
    """The results of states once a watermark has come; what does not fit into 64 bits is refused."""
    results = states.results(states.advance(dict.fromkeys(states.time_columns, watermark), partial))
    if states.overflowed:
        raise too_large(states.overflowed)
    return results


def by_position(df: DataFrame, job: Job, partial: bool) -> DataFrame:
    """Counting windows over all events, sliced by the JVM between positions."""
    rows, inner = positions.counted(df, job, buckets_of(df))
    return positions.with_bounds(assembled(rows, inner), job, partial)


def by_number(df: DataFrame, job: Job, partial: bool) -> DataFrame:
    """Counting windows over all events, whose functions the JVM cannot compute: windows on their positions."""
    events, inner = positions.numbered(df, job)
    return positions.with_bounds(windows(events, inner, False), job, partial)


# --- order ----------------------------------------------------------------------------------------------------------


def in_order(df: DataFrame, job: Job, partial: bool) -> DataFrame:
    """Events shuffled by key and sorted, each group in a pass of its own."""
    events = without_repeats(prepared(df, job), job)
    parts = [_through_state(events, job, group, partial) for group in job.compiled.plan.groups]
    return reduce(DataFrame.union, parts)


def _through_state(events: DataFrame, job: Job, group: Group, partial: bool) -> DataFrame:
    time, where, name = time_name(group.source.time), group.source.where, group.name

    def answer(batches: Batches) -> Iterator[pl.DataFrame]:
        states = GroupStates(job.compiled, job.time_columns, [job.compiled.by_name[name].state()])
        for frame in events_of(batches, job):
            states.absorb({name: frame})
            newest = int(frame[time].max())  # type: ignore[arg-type]
            yield emitted_at(newest, states)  # nothing comes before it: events are in order
        yield emitted_at(INT64_MAX, states, partial)

    if where is not None:
        events = events.where(F.col(quoted(filter_name(where.text))))
    ordered = _sorted_by(events, job, [key_name(key) for key in group.keys], time)
    return mapped_to_frames(ordered, answer, job.compiled.results.empty.schema)


_SHUFFLED: dict[Callable[..., DataFrame], str] = {
    by_catalyst: "slices by (key, slice), then packed by bucket of keys; no events",
    by_kernel: "slices, packed by bucket of keys; no events unless repeats are dropped, which brings them together",
    by_position: "counts of cells, slices, and the events of the cells that hold a cut",
    by_number: "counts of cells, what its slices need, and the events of the cells that hold a cut",
    in_order: "events, by key",
}
