"""Events behind the watermark: which windows leave them out, and how the rest still get them.

An event older than the watermark (minus `updates`) is left out of the windows that are frozen, and only of those: it
goes into its slice like any other, where every window that is still open finds it. Frozen fixed windows are never
assembled again, so nothing needs to be done for them. A frozen session must not grow or fuse through it, so it goes
into a slice of its own that is barred from the sessions that leave it out. What needs the order of events leaves it
out altogether: in an ordered group its slice stands outside of the order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from windrow.core.arrays.dataframes import join_keys
from windrow.core.arrays.range_queries import Ints
from windrow.core.assemble.due import Lattices
from windrow.core.assemble.group_state import GroupState
from windrow.core.assemble.sessions import left_out
from windrow.core.expressions.parse import Expression
from windrow.core.plan.groups import ROWS, Held
from windrow.core.slices.custom_edges import Irregular
from windrow.core.slices.kernel import filter_name, slice, time_name
from windrow.core.windows.fixed import INT64_MIN, Session
from windrow.core.windows.ordered import Mask, OrderedWindow

OUT_OF_ORDER = (-1, 0)  # bars events from everything that needs the order


def slice_behind(state: GroupState, events: pl.DataFrame, behind: Mask, final_before: int) -> tuple[pl.DataFrame, Mask]:
    """The slices of the events behind the watermark, and which events some window has left out."""
    group = state.group
    time = events[time_name(group.source.time)].to_numpy()
    late = behind & (time < final_before)
    dropped = np.zeros(len(time), np.bool_)
    wanted = behind & ~late
    at = np.flatnonzero(late)
    exclusion = np.zeros(len(time), np.int32)
    if len(at):
        starts, place = np.unique(state.compiled.edges.floor(time[at]), return_inverse=True)
        for where, (lattices, irregular) in _asked(state).items():
            kept = np.ones(len(at), np.bool_) if where is None else events[filter_name(where.text)].to_numpy()[at]
            out, in_ = _fixed(starts, lattices, final_before)
            if irregular:
                outside, inside = irregular.touches(starts, final_before)
                out, in_ = out | outside, in_ | inside
            dropped[at] |= kept & out[place]
            wanted[at] |= in_[place]
        dropped[at] |= _out_of_order(state, events, time)[at]
        masks, _ = _sessions(state, events, time, time, final_before)
        for timeline, out_of in masks.items():
            dropped[at] |= out_of[at]
            wanted[at] |= ~out_of[at] & (time[at] >= timeline[1])
        exclusion = _exclusions(state, masks, at, len(time))
    chosen = events.filter(pl.Series(wanted))
    if state.schema.has_runs:
        chosen = chosen.with_columns(pl.Series("excluded", exclusion[wanted], dtype=pl.Int32))
    return slice(chosen, group.source.time, state.compiled.edges, state.schema), dropped


def slices_behind(state: GroupState, table: pl.DataFrame, final_before: int) -> tuple[pl.DataFrame, int]:
    """The same for slices that were made without knowing the watermark: those that some window still takes, and of
    how many events some window has left out.

    A run that holds both late and timely events is taken whole, and begins after the sessions that are frozen.
    """
    start = table["slice_start"].to_numpy()
    runs = state.schema.has_runs
    first = table["first"].to_numpy() if runs else start
    behind = first < final_before
    if not behind.any():
        return table, 0
    last = table["last"].to_numpy() if runs else start
    at = np.flatnonzero(behind)
    wanted, left = ~behind, np.zeros(table.height, np.int64)
    starts, place = np.unique(start[at], return_inverse=True)
    for where, (lattices, irregular) in _asked(state).items():
        out, in_ = _fixed(starts, lattices, final_before)
        if irregular:
            outside, inside = irregular.touches(starts, final_before)
            out, in_ = out | outside, in_ | inside
        count = table[state.schema.names[Held(ROWS, where)]["count"]].fill_null(0).to_numpy()[at]
        left[at] = np.maximum(left[at], np.where(out[place], count, 0))
        wanted[at] |= in_[place]
    masks, reach = _sessions(state, table, first, last, final_before)
    if masks:
        count = table[state.schema.names[Held(ROWS, None)]["count"]].to_numpy()
        for timeline, out in masks.items():
            left = np.where(out, np.maximum(left, count), left)
            wanted |= ~out & (first >= timeline[1])
        exclusion = _exclusions(state, masks, at, table.height)
        begin = np.where(behind & (last >= final_before), np.maximum(first, reach + 1), first)
        table = table.with_columns(pl.Series("excluded", exclusion, dtype=pl.Int32), pl.Series("first", begin))
    return (table if wanted.all() else table.filter(pl.Series(wanted))), int(left.sum())


def _asked(state: GroupState) -> dict[Expression | None, tuple[Lattices, Irregular]]:
    """For each filter, what queries with it ask for: lattices and irregular windows; not those that need order."""
    lattices, signatures = state.assembler.lattices, list(state.group.signatures)
    timelines: dict[Expression | None, set[int]] = {}
    for timeline, signature in state.group.members:
        if not signatures[signature].needs_order:
            timelines.setdefault(signatures[signature].where, set()).add(timeline)
    return {
        where: (
            lattices.take(np.isin(lattices.timeline, list(places))),
            Irregular(state.assembler.timelines, places),
        )
        for where, places in timelines.items()
    }


def _out_of_order(state: GroupState, events: pl.DataFrame, time: Ints) -> Mask:
    """The events that some query sees that needs the order."""
    out = np.zeros(len(time), np.bool_)
    if not state.group.ordered:
        return out
    timelines, signatures = list(state.group.timelines), list(state.group.signatures)
    for place, number in state.group.members:
        timeline, signature = timelines[place], signatures[number]
        if isinstance(timeline.window, OrderedWindow) or signature.needs_order:
            kept = True if signature.where is None else events[filter_name(signature.where.text)].to_numpy()
            out |= (time >= timeline.since) & kept
    return out


def _fixed(starts: Ints, lattices: Lattices, final_before: int) -> tuple[Mask, Mask]:
    """For each slice: does a frozen window hold it, does one that is not?"""
    out, in_ = np.zeros(len(starts), np.bool_), np.zeros(len(starts), np.bool_)
    known = np.flatnonzero(starts > INT64_MIN)
    x = starts[known][:, None]
    step = max(1, 4_000_000 // max(1, len(known)))
    for begin in range(0, len(lattices.period), step):
        part = lattices.take(np.arange(begin, min(begin + step, len(lattices.period))))
        latest = part.phase + (x - part.phase) // part.period * part.period
        earliest = part.phase + ((x - part.length - part.phase) // part.period + 1) * part.period
        waits = part.phase - (part.phase - np.maximum(part.since, x - part.length)) // part.period * part.period
        earliest = np.maximum(earliest, waits)
        asked = (earliest <= latest) & (earliest < part.until)
        ends = np.minimum(
            latest, part.phase + (np.minimum(part.until, x + 1) - 1 - part.phase) // part.period * part.period
        )
        out[known] |= (asked & (earliest + part.length <= final_before)).any(axis=1)
        in_[known] |= (asked & (ends + part.length > final_before)).any(axis=1)
    return out, in_


def _sessions(
    state: GroupState, events: pl.DataFrame, first: Ints, last: Ints, final_before: int
) -> tuple[dict[tuple[int, int], Mask], Ints]:
    """For each session timeline, as (gap, since), which events of the batch it leaves out; events may be runs.

    The second is for each of them up to when frozen sessions of its key reach, whichever reaches furthest.
    """
    masks: dict[tuple[int, int], Mask] = {}
    furthest = np.full(len(first), INT64_MIN)
    timelines = [
        timeline for timeline in state.compiled.session_timelines if state.assembler.asked_out_of_order(timeline)
    ]
    if not timelines:
        return masks, furthest
    keys = list(state.schema.keys)
    rows = state.rows
    if keys:
        named = events.select(keys)
        late = named.filter(pl.Series(first < final_before)).unique().with_row_index("_number")
        numbered = join_keys(named.with_row_index("_event"), late, keys, "inner")
        at, key = numbered["_event"].to_numpy(), numbered["_number"].cast(pl.Int64).to_numpy()
    else:
        at, key = np.arange(len(first)), np.zeros(len(first), np.int64)
    views = {timeline: view for view, several in state.session_views(rows) for timeline in several}
    for timeline in timelines:
        assert isinstance(timeline.window, Session)
        view = views.get(timeline, rows)
        runs = view.runs
        if keys:
            table = join_keys(view.keys, late, keys, "left")
            code = table["_number"].cast(pl.Int64).fill_null(-1).to_numpy()[runs.key] if len(runs.key) else runs.key
        else:
            code = runs.key
        chosen = np.flatnonzero(code >= 0)
        order = chosen[np.lexsort((runs.last[chosen], runs.first[chosen], code[chosen]))]
        near = type(runs)(code[order], runs.slice_start[order], runs.first[order], runs.last[order])
        mask = np.zeros(len(first), np.bool_)
        mask[at], reach = left_out(near, timeline, final_before, key, first[at], last[at])
        masks[timeline.window.gap, timeline.since] = mask
        furthest[at] = np.maximum(furthest[at], reach)
    return masks, furthest


def _exclusions(state: GroupState, masks: dict[tuple[int, int], Mask], at: Ints, size: int) -> npt.NDArray[np.int32]:
    """A number for each event's set of sessions that leave it out, known to the state."""
    exclusion = np.zeros(size, np.int32)
    if not masks and not state.group.ordered:
        return exclusion
    matrix = np.stack([np.ones(len(at), np.bool_), *(mask[at] for mask in masks.values())], axis=1)
    for row in np.unique(matrix, axis=0):
        members = frozenset(name for name, out in zip(masks, row[1:], strict=True) if out)
        members |= {OUT_OF_ORDER} if state.group.ordered else frozenset()
        if members not in state.exclusions:
            state.exclusions.append(members)
        exclusion[at[(matrix == row).all(axis=1)]] = state.exclusions.index(members)
    return exclusion
