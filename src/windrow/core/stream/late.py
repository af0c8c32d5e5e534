"""Events behind the watermark: which windows leave them out, and how the others still get them.

An event older than the watermark (minus `updates`) is left out of the windows that are final, and only of those: it
goes into its slice like any other, where every window that is still open finds it. Final fixed windows are never
assembled again, so nothing needs to be done for them. A final session must not grow or fuse through it, so it goes
into a slice of its own, with the number of an exclusion set: the sessions that leave it out. What needs the order of
events leaves it out altogether: in an ordered group its slice stands outside of the order.

Nothing here changes a state. New exclusion sets are returned with the slices that refer to them by number, and the
caller takes both in, or neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from windrow.core.arrays.dataframes import key_numbers
from windrow.core.arrays.range_queries import CHUNK, Ints, Mask
from windrow.core.assemble.due import Lattices
from windrow.core.assemble.group_state import ExclusionSet, GroupState
from windrow.core.assemble.sessions import Runs, gap_of, left_out
from windrow.core.expressions.parse import Expression
from windrow.core.plan.groups import ROWS, Partial
from windrow.core.slices.custom_edges import Irregular
from windrow.core.slices.kernel import filter_name, time_name
from windrow.core.windows.fixed import INT64_MIN
from windrow.core.windows.ordered import OrderedWindow

THE_ORDER = (-1, 0)  # in an exclusion set: everything that needs the order


class Behind(NamedTuple):
    """What a group makes of events behind the watermark."""

    table: pl.DataFrame  # the slices that some window still takes
    left_out: Ints  # of each event or slice that came: how many events some final window leaves out
    exclusions: list[ExclusionSet]  # those of the state and new ones; to become the state's, with the slices


class _Items(NamedTuple):
    """Events, or runs of events that were sliced elsewhere; some of them begin before everything is final."""

    table: pl.DataFrame  # with their keys
    first: Ints
    last: Ints
    late: Ints  # the indices of those that begin behind
    start: Ints  # of the late ones: the edge before them
    counts: Callable[[Expression | None], Ints]  # of the late ones: how many events satisfy a filter


class _Judged(NamedTuple):
    """What becomes of each item; nothing happens to those that are not late."""

    wanted: Mask  # whether some window that is not final takes it
    left_out: Ints
    excluded: pl.Series  # the number of its exclusion set
    reach: Ints  # up to when final sessions of its key reach, whichever reaches furthest
    exclusions: list[ExclusionSet]


def slice_behind(state: GroupState, events: pl.DataFrame, behind: Mask, final_before: int) -> Behind:
    """Slice the events behind the watermark; those that are not yet final are in all of their windows."""
    time = events[time_name(state.group.source.time)].to_numpy()
    at = np.flatnonzero(behind & (time < final_before))

    def counts(where: Expression | None) -> Ints:
        kept = np.ones(len(at), np.int64)
        return kept if where is None else events[filter_name(where.text)].to_numpy()[at].astype(np.int64)

    start = state.compiled.edges.floor(time[at])
    judged = _judge(state, _Items(events, time, time, at, start, counts), final_before)
    if state.schema.has_runs:
        events = events.with_columns(judged.excluded)
    chosen = events.filter(pl.Series(behind & judged.wanted))
    return Behind(state.compiled.slice(chosen), judged.left_out, judged.exclusions)


def slices_behind(state: GroupState, table: pl.DataFrame, final_before: int) -> Behind:
    """The same for slices that were made without knowing the watermark: drop those that no window takes any more.

    A run that holds both late and timely events is taken whole, and begins after the sessions that are final.
    """
    start, runs = table["slice_start"].to_numpy(), state.schema.has_runs
    first, last = (table[name].to_numpy() for name in ("first", "last")) if runs else (start, start)
    at = np.flatnonzero(first < final_before)

    def counts(where: Expression | None) -> Ints:
        column: Ints = table[state.schema.names[Partial(ROWS, where)]["count"]].fill_null(0).to_numpy()
        return column[at]

    judged = _judge(state, _Items(table, first, last, at, start[at], counts), final_before)
    if runs and len(at):
        begin = np.where(last >= final_before, np.maximum(first, judged.reach + 1), first)
        table = table.with_columns(judged.excluded, pl.Series("first", begin))
    table = table if judged.wanted.all() else table.filter(pl.Series(judged.wanted))
    return Behind(table, judged.left_out, judged.exclusions)


def _judge(state: GroupState, items: _Items, final_before: int) -> _Judged:
    """Ask every window whether it holds a late item, and whether it is final."""
    at, size = items.late, len(items.first)
    judged = _Judged(
        np.ones(size, np.bool_),
        np.zeros(size, np.int64),
        pl.zeros(size, pl.Int32, eager=True).alias("excluded"),
        np.full(size, INT64_MIN),
        state.exclusions,
    )
    if not len(at):
        return judged
    wanted, left = np.zeros(len(at), np.bool_), _out_of_order(state, items)
    starts, slice_of = np.unique(items.start, return_inverse=True)
    for where, (lattices, irregular) in _fixed_windows(state).items():
        out, in_ = _fixed(starts, lattices, irregular, final_before)
        left = np.maximum(left, np.where(out[slice_of], items.counts(where), 0))
        wanted |= in_[slice_of]
    masks, reach = _sessions(state, items, final_before)
    for (_, since), mask in masks.items():
        left = np.maximum(left, np.where(mask, items.counts(None), 0))
        wanted |= ~mask & (items.first[at] >= since)
    excluded, exclusions = _exclusions(state, masks, len(at))
    judged.wanted[at], judged.left_out[at], judged.reach[at] = wanted, left, reach
    return judged._replace(excluded=judged.excluded.scatter(at, excluded), exclusions=exclusions)


def _fixed_windows(state: GroupState) -> dict[Expression | None, tuple[Lattices, Irregular]]:
    """The lattices and the irregular windows of queries that do not need the order, by their filter."""
    lattices, signatures = state.assembler.lattices, list(state.group.signatures)
    timelines: dict[Expression | None, set[int]] = {}
    for timeline, signature in state.group.members:
        if not signatures[signature].needs_order:
            timelines.setdefault(signatures[signature].where, set()).add(timeline)
    return {
        where: (
            lattices.take(np.isin(lattices.timeline, list(numbers))),
            Irregular(state.assembler.timelines, numbers),
        )
        for where, numbers in timelines.items()
    }


def _fixed(starts: Ints, lattices: Lattices, irregular: Irregular, final_before: int) -> tuple[Mask, Mask]:
    """For each slice, by the edge it begins at: does a final window hold it, and does one that is not final?

    No window's edge lies inside a slice, so that a window holds all of it if it holds the time where it begins. The
    windows of a lattice end in the order in which they start. So some window that holds the time is final if the
    earliest of them is, and some is not if the latest is not; those between need no look.
    """
    out, in_ = np.zeros(len(starts), np.bool_), np.zeros(len(starts), np.bool_)
    after_edge = np.flatnonzero(starts > INT64_MIN)  # before the first edge there is no window
    times = starts[after_edge][:, None]
    step = max(1, CHUNK // max(1, len(after_edge)))
    for begin in range(0, len(lattices), step):
        part = lattices.take(np.arange(begin, min(begin + step, len(lattices))))
        earliest, latest = part.around(times)
        is_held = earliest <= latest
        out[after_edge] |= (is_held & (earliest + part.length <= final_before)).any(axis=1)
        in_[after_edge] |= (is_held & (latest + part.length > final_before)).any(axis=1)
    if irregular:
        outside, inside = irregular.touches(starts, final_before)
        out, in_ = out | outside, in_ | inside
    return out, in_


def _out_of_order(state: GroupState, items: _Items) -> Ints:
    """The late events that some query sees that needs the order: 1 or 0 for each."""
    time = items.first[items.late]
    out = np.zeros(len(time), np.int64)
    timelines, signatures = list(state.group.timelines), list(state.group.signatures)
    for line, number in state.group.members if state.group.ordered else ():
        timeline, signature = timelines[line], signatures[number]
        if isinstance(timeline.window, OrderedWindow) or signature.needs_order:
            out |= (time >= timeline.since) * items.counts(signature.where)
    return out


def _sessions(state: GroupState, items: _Items, final_before: int) -> tuple[dict[tuple[int, int], Mask], Ints]:
    """For each session timeline, as (gap, since), mark the late items that it leaves out, and give up to when final
    sessions of their keys reach.

    All items of a key with a late one are judged together, because a timely event can connect a late one to an open
    session.
    """
    masks: dict[tuple[int, int], Mask] = {}
    reach = np.full(len(items.first), INT64_MIN)
    numbers, queries_of = state.group.timelines, state.assembler.queries_of
    timelines = [line for line in state.compiled.session_timelines if len(queries_of(numbers[line], ordered=False))]
    if not timelines:
        return masks, reach[items.late]
    rows = state.rows
    names = list(state.schema.keys)
    keys = items.table[names][items.late].unique() if names else pl.DataFrame()  # that have late items
    key = key_numbers(items.table, keys)
    at = np.flatnonzero(key >= 0)
    views = {timeline: view for view, seen in state.session_views(rows) for timeline in seen}
    for timeline in timelines:
        view = views.get(timeline, rows)
        runs = _of_keys(view.runs, key_numbers(view.keys, keys)[view.runs.key])
        mask = np.zeros(len(reach), np.bool_)
        mask[at], final_until = left_out(runs, timeline, final_before, key[at], items.first[at], items.last[at])
        masks[gap_of(timeline), timeline.since] = mask[items.late]
        reach[at] = np.maximum(reach[at], final_until)
    return masks, reach[items.late]


def _of_keys(runs: Runs, number: Ints) -> Runs:
    """The runs of some keys by number and time, given each run's number, -1 where its key is none of them."""
    chosen = np.flatnonzero(number >= 0)
    order = chosen[np.lexsort((runs.last[chosen], runs.first[chosen], number[chosen]))]
    return Runs(number[order], runs.slice_start[order], runs.first[order], runs.last[order])


def _exclusions(
    state: GroupState, masks: Mapping[tuple[int, int], Mask], size: int
) -> tuple[npt.NDArray[np.int32], list[ExclusionSet]]:
    """The number of each late item's exclusion set, and all sets: those of the state, and new ones after them."""
    numbers, exclusions, is_ordered = np.zeros(size, np.int32), list(state.exclusions), state.group.ordered
    if not masks and not is_ordered:
        return numbers, exclusions
    matrix = np.stack([np.ones(size, np.bool_), *masks.values()], axis=1)
    for row in np.unique(matrix, axis=0):
        members = frozenset(name for name, out in zip(masks, row[1:], strict=True) if out)
        members |= {THE_ORDER} if is_ordered else frozenset()
        if members not in exclusions:
            exclusions.append(members)
        numbers[(matrix == row).all(axis=1)] = exclusions.index(members)
    return numbers, exclusions
