"""Buckets: the state of a stream on Spark, for the keys of one bucket, from micro-batch to micro-batch.

    state store ── what this step needs ──▶ states of groups ── advance ──▶ windows that the watermark passes
    payloads ── new slices, new events ───▶                  ── advance ──▶ windows that late events change
    state store ◀── what it now holds ─────

A state store is bytes by name: an index, and the tables that it names. A step reads as little of it as it can: of
slices the chunks that ending windows span (`slice_store`), of sessions and ordered groups the keys in which something
may end or be late (`key_partitions`). So a micro-batch costs what it brings and what ends in it, not what is held.

**Why a step advances twice.** The watermark of a micro-batch is that of the events before it. So windows that end at or
before it are complete with what is stored: they are emitted first, without the new slices. Events of the micro-batch
that are behind the watermark are late for these windows, as they would be in an engine that had moved its watermark
after the last batch. Then the new slices are taken in, and a second `advance`, to the same watermark, emits what they
change within `updates`. Other windows wait for a later step.

Queries come and go with the query set of a payload (`RequestedQuery`): each becomes an `Entry`, with the event time
from which it is there, which no event of an earlier micro-batch has reached.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from windrow.core.assemble.emitted import Emitted
from windrow.core.assemble.group_state import CompiledGroup, GroupState
from windrow.core.ordered.state import OrderedState
from windrow.core.plan.groups import Entry, Group, Timeline, cut_from
from windrow.core.plan.plan import fingerprint_of
from windrow.core.plan.watermark import WatermarkStep
from windrow.core.query.query import Query
from windrow.core.slices.custom_edges import last_end
from windrow.core.slices.table import merge
from windrow.core.stream.compiled import CompiledPlan
from windrow.core.stream.group_states import GroupStates
from windrow.core.stream.job import Job
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN, ContextFreeWindow
from windrow.core.windows.ordered import Counting, DataDrivenWindow
from windrow.spark.stream.key_partitions import KeyPartitions, PartitionedState, closings
from windrow.spark.stream.slice_store import (
    Chunks,
    StateError,
    Store,
    StoredTables,
    Summed,
    chunks_of,
    needed_from,
    next_end,
)

VERSION = 5
INDEX = "index"


@dataclass(frozen=True)
class RequestedQuery:
    """A query of the query set: since when it is wanted, if that was given, and whether it is being removed."""

    query: Query
    since: int | None = None
    closing: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {"query": self.query.to_dict(), "since": self.since, "closing": self.closing}

    @staticmethod
    def from_dict(described: Mapping[str, Any]) -> RequestedQuery:
        return RequestedQuery(Query.from_dict(described["query"]), described["since"], described["closing"])


@dataclass
class StepOutput:
    """What a step emits, and the figures of the bucket after it."""

    results: pl.DataFrame
    dropped: int = 0
    overflows: int = 0
    slices: int = 0
    held_events: int = 0
    since: dict[str, int] = field(default_factory=dict)  # of queries that came later


class Bucket:
    """One bucket, for the length of a micro-batch: `step` once, then `save`."""

    def __init__(self, store: Store, job: Job, buckets: int) -> None:
        self._store, self._job, self._buckets = Summed(store), job, buckets
        self._time_column = job.time_columns[job.time]
        saved = self._store.get(INDEX)
        self.is_new = saved is None
        index = json.loads(saved) if saved else {}
        self._identity = {"buckets": buckets, "time": job.time, "updates": self._time_column.updates > 0}
        if saved:
            self._check(index)
        self._watermark: int = index.get("watermark", INT64_MIN)
        self._arrived: int = index.get("arrived", 0)
        # the largest that there ever was: events may be that far ahead of the watermark
        self._lateness: int = max(index.get("lateness", 0), self._time_column.lateness or 0)
        self._entries = [Entry(Query.from_dict(query), *rest) for query, *rest in index.get("entries", [])]
        self._groups: dict[str, Any] = index.get("groups", {})
        self.timer: int | None = index.get("timer")
        self.next_due = INT64_MAX
        self._over: set[int] = set()  # numbers of queries that were being removed and have emitted their last window

    def _check(self, index: Mapping[str, Any]) -> None:
        if index.get("windrow") != VERSION:
            raise StateError(
                f"this checkpoint was written by another version of windrow, whose state is {index.get('windrow')}; "
                f"here it is {VERSION}: start with a new checkpoint"
            )
        for name, value in self._identity.items():
            if index[name] != value:
                raise StateError(
                    f"this checkpoint was written with {name}={index[name]!r} and this query has {name}={value!r}: "
                    "go on as it was, or start with a new checkpoint"
                )

    # --- a micro-batch ------------------------------------------------------------------------------------------

    def step(
        self,
        tables: Sequence[Mapping[str, pl.DataFrame]],
        watermark: int,
        requested: Sequence[RequestedQuery] | None,
        newest: int | None = None,
    ) -> StepOutput:
        """Take in the tables of payloads, move the watermark, and emit what is due.

        requested:  the query set of the payloads; None if there are none, and the one before goes on
        newest:     the greatest time in earlier micro-batches, if the watermark does not show it
        """
        now = max(watermark, self._watermark)
        gone: set[str] = set()
        if requested is not None:
            gone = self._change(requested, self._first_unseen(now, newest))
        plan = replace(self._job, entries=tuple(self._entries)).compiled
        step = replace(self._time_column, watermark=self._watermark).step_to(now)
        later = {entry.query.name: entry.since for entry in self._entries if entry.since > INT64_MIN}
        output = StepOutput(plan.results.empty, since=later)
        emitted: list[Emitted] = []
        dropped: dict[tuple[str, ...], int] = {}
        for compiled in plan.groups:
            name = compiled.group.name
            new = [part[name] for part in tables if name in part]
            if new or name in self._groups:
                several, left_out = self._step_group(plan, compiled, new, step, output)
                emitted += several
                # windows of several kinds leave out the same events, by and large
                keys = compiled.group.keys
                dropped[keys] = max(left_out, dropped.get(keys, 0))
        output.dropped = sum(dropped.values())
        for name in set(self._groups) - set(plan.by_name):
            self._forget(name)
        output.results, overflows = plan.results.build(emitted)
        output.overflows = overflows.total()
        self._watermark = now
        entries = enumerate(self._entries)
        self._entries = [one for number, one in entries if number not in self._over and one.query.name not in gone]
        return output

    def _step_group(
        self,
        plan: CompiledPlan,
        compiled: CompiledGroup,
        new: list[pl.DataFrame],
        step: WatermarkStep,
        output: StepOutput,
    ) -> tuple[list[Emitted], int]:
        """Step one group; returns what it emits, and how many events some of its windows leave out."""
        saved: dict[str, Any] = self._groups.setdefault(compiled.group.name, {})
        self._check_types(compiled, saved)
        state, time_column = compiled.state(), replace(self._time_column, watermark=self._watermark)
        if "exclusions" in saved:
            state.restore(saved)
        group = _Group(state, saved, GroupStates(plan, {self._job.time: time_column}, [state]))
        if isinstance(state, OrderedState):
            self._in_order(group, state, new, step, output)
        else:
            self._sliced(group, new, step, output)
        saved |= state.header()
        return group.emitted, group.dropped

    def save(self, timer: int | None) -> None:
        index = {
            "windrow": VERSION,
            **self._identity,
            "watermark": self._watermark,
            "arrived": self._arrived,
            "lateness": self._lateness,
            "entries": [[one.query.to_dict(), one.since, one.until, one.closing] for one in self._entries],
            "groups": self._groups,
            "timer": timer,
        }
        self._store.put(INDEX, json.dumps(index).encode())

    @staticmethod
    def _check_types(compiled: CompiledGroup, saved: dict[str, Any]) -> None:
        """Refuse state whose columns have other types than in this plan, and note the types."""
        known: dict[str, str] = saved.get("types", {})
        now = {name: str(dtype) for name, dtype in {**compiled.schema.columns, **compiled.travels}.items()}
        for name, dtype in now.items():
            if known.get(name, dtype) != dtype:
                raise StateError(
                    f"this checkpoint holds {name.partition(':')[2] or name!r} of group {compiled.group.name} as "
                    f"{known[name]}, and here it is {dtype}: go on with the types as they were, or start with a new "
                    "checkpoint"
                )
        saved["types"] = now

    # --- slices -------------------------------------------------------------------------------------------------

    def _sliced(self, group: _Group, new: list[pl.DataFrame], step: WatermarkStep, output: StepOutput) -> None:
        """Step a group whose slices merge in any order: of sessions, or of windows with fixed bounds."""
        state, tables = group.state, StoredTables(group.state.group.name, self._store)
        chunks = Chunks.read(tables, group.saved.get("chunks"))
        state.revisions.table = revisions = tables.find("revisions")
        table = merge([state.schema.conform(part) for part in new], state.schema) if new else None
        if state.compiled.session_timelines:
            self._sessions(group, chunks, table, step)
        else:
            self._fixed(group, chunks, table, step)
        group.saved["chunks"] = chunks.saved()
        if state.revisions.table is not None and state.revisions.table is not revisions:
            tables.put("revisions", state.revisions.table)
        output.slices += chunks.rows
        self._note_over(state, chunks.oldest, step.final_before)
        if chunks.runs:
            ends = next_end(state, max(step.now, chunks.oldest)) if step.now > INT64_MIN else INT64_MIN
            self.next_due = min(self.next_due, ends, min(chunks.closes, INT64_MAX - 1) + 1)

    def _fixed(self, group: _Group, chunks: Chunks, table: pl.DataFrame | None, step: WatermarkStep) -> None:
        """Step windows with fixed bounds: those that end need the chunks that they span.

        Everything is read where late slices may change any emitted window, and for windows of one's own that end, of
        which nobody knows how far back they begin.
        """
        state = group.state
        whole = False  # whether everything is read
        if step.now > step.before:
            whole = bool(state.assembler.irregular)
            since = needed_from(state, step.before, step.now)
            if since < INT64_MAX:
                _load(state, chunks.load(since))
            group.advance(step.now)
            if not whole:
                chunks.forget(state.assembler.lattices.horizon(step.final_before))
        if table is not None:
            if (table["slice_start"] < step.now).any():
                if not whole and self._time_column.updates > 0:
                    _load(state, chunks.load())
                    whole = True
                table = group.without_late(table)
            if whole:
                state.absorb(table)
            else:
                chunks.add(table, state.schema, *chunks_of(state, table))
            group.advance(step.now)
        if whole:
            chunks.forget(INT64_MAX)
            chunks.add(state.rows.table, state.schema, *chunks_of(state, state.rows.table))

    def _sessions(self, group: _Group, chunks: Chunks, table: pl.DataFrame | None, step: WatermarkStep) -> None:
        """Step sessions: read the key partitions in which one may end, or for which a slice is late.

        The slices of all other keys are put away unread: they can only extend open sessions or begin new ones.
        """
        state, schema = group.state, group.state.schema
        partitions = KeyPartitions(self._buckets, group.saved.get("partitions", 1))
        opened = chunks.closing(step.now) if step.now > step.before else set()
        late = False
        if table is not None:
            behind = table["first"] < step.now
            late = bool(behind.any())
            opened |= set(partitions.of(table.filter(behind)).tolist())
        if opened:
            _load(state, chunks.load_only(opened))
        group.advance(step.now)
        if table is not None:
            table = group.without_late(table) if late else table
            at = partitions.of(table)
            inside = np.isin(at, list(opened))
            state.absorb(table.filter(pl.Series(inside)))
            chunks.add(table.filter(pl.Series(~inside)), schema, at[~inside])
            group.advance(step.now)
        fitting = partitions.fitting(chunks.rows)
        if fitting is not partitions:
            others = {run.chunk for run in chunks.runs} - opened
            for run in chunks.load_only(others):
                state.absorb(state.schema.conform(run))
            opened |= others
        if opened:
            closes = closings(state, fitting, step.now, self._time_column.updates)
            chunks.replace(opened, state.rows.table, fitting.of(state.rows.table), closes)
        group.saved["partitions"] = fitting.count

    def _note_over(self, state: GroupState, oldest: int, final_before: int) -> None:
        """Note the queries that were being removed and have emitted their last window."""
        for timeline in state.group.timelines:
            if not timeline.closing or final_before <= timeline.until:
                continue
            window = timeline.window
            if isinstance(window, ContextFreeWindow):
                is_over = final_before > last_end(window, timeline.until)
            else:
                is_over = oldest >= timeline.until
            if is_over:
                self._over |= _queries(state, timeline)

    # --- order --------------------------------------------------------------------------------------------------

    def _in_order(
        self, group: _Group, state: OrderedState, new: list[pl.DataFrame], step: WatermarkStep, output: StepOutput
    ) -> None:
        """Step a group that buffers events until their order is final: read the key partitions in which one becomes
        final or is late, and all of them when windows may end at a time."""
        saved, time, moves = group.saved, state.ordering.time, step.now > step.before
        tables = StoredTables(state.group.name, self._store)
        partitioned = PartitionedState(tables, self._buckets, saved.get("partitioned"))
        opened: set[int] = set()
        if moves:
            opened = partitioned.numbers if self._concerns_all(state, step, saved) else partitioned.due(step.now)
        late = None
        if new:
            nth = pl.int_range(self._arrived, self._arrived + pl.len(), dtype=pl.Int64)
            events = pl.concat([state.ordering.conform(part) for part in new]).with_columns(nth=nth)
            self._arrived += events.height
            is_late = events[time] < step.now
            late = events.filter(is_late) if is_late.any() else None
            if late is not None:
                opened |= set(partitioned.partitions.of(late).tolist())
                if saved.get("form") != _form(state.group):
                    opened |= partitioned.numbers  # so that all partitions have the columns of one plan
            partitioned.buffer(events.filter(~is_late), time)
        if opened:
            partitioned.load(state, opened, step.now)
            group.advance(step.now)
            if late is not None:
                group.absorb(late)
                group.advance(step.now)
            partitioned.replace(state, opened)
            saved["form"] = _form(state.group)
        for timeline, place in state.group.timelines.items():
            if moves and timeline.closing and state.is_over(place, step.final_before):
                self._over |= _queries(state, timeline)
        fitting = partitioned.partitions.fitting(partitioned.slices + partitioned.events)
        if fitting != partitioned.partitions:
            partitioned.split_anew(state.compiled.state(), fitting)
        saved["partitioned"] = partitioned.saved()
        output.slices += partitioned.slices
        output.held_events += partitioned.events
        ends_at_times = any(not isinstance(line.window, Counting | DataDrivenWindow) for line in state.group.timelines)
        if ends_at_times and partitioned.has_tables:
            self.next_due = min(self.next_due, step.now + 1 if step.now > INT64_MIN else INT64_MIN)
        elif partitioned.first < INT64_MAX:
            self.next_due = min(self.next_due, partitioned.first + 1)

    def _concerns_all(self, state: OrderedState, step: WatermarkStep, saved: Mapping[str, Any]) -> bool:
        """Whether windows of any key may end in a step: a time has come, or the queries have changed."""
        ends = state.finder.ends(step) or state.assembler.any_end(step.before, step.now)
        goes = any(timeline.closing for timeline in state.group.timelines)
        # sessions end, and what `updates` keeps is let go, without an event of their key
        without_event = bool(state.compiled.session_timelines) or self._time_column.updates > 0
        return ends or goes or without_event or saved.get("form", "") != _form(state.group)

    # --- queries that come and go -------------------------------------------------------------------------------

    def _change(self, requested: Sequence[RequestedQuery], begin: int) -> set[str]:
        """Let new queries in from an event time on; returns the names of those that leave after this step."""
        before = {entry.query.name: entry for entry in self._entries}
        entries = dict(before)
        for wanted in requested:
            name = wanted.query.name
            entry = before.get(name)
            if entry is None or entry.query != wanted.query:
                since = INT64_MIN if wanted.since is None else wanted.since
                if not self.is_new:
                    since = cut_from(wanted.query, max(since, begin))
                if not (wanted.closing and self.is_new):
                    entries[name] = Entry(wanted.query, since)
                entry = entries.get(name)
            if wanted.closing and entry is not None and not entry.closing:
                entries[name] = entry._replace(until=cut_from(wanted.query, begin), closing=True)
        self._entries = list(entries.values())
        return entries.keys() - {wanted.query.name for wanted in requested}

    def _first_unseen(self, watermark: int, newest: int | None) -> int:
        """The first time, in Spark's milliseconds, that is later than every event of earlier micro-batches.

        Without `newest` it follows from the watermark, which lies behind the greatest time by the lateness at most.
        """
        unit = 1 if self._job.is_integer else 1000
        first = INT64_MIN if newest is None else (newest // unit + 1) * unit
        return first if watermark == INT64_MIN else max(first, watermark + -(-self._lateness // unit) * unit + unit)

    def _forget(self, name: str) -> None:
        """Drop the state of a group that has no query any more."""
        saved = self._groups.pop(name)
        tables = StoredTables(name, self._store)
        Chunks.read(tables, saved.get("chunks")).forget(INT64_MAX)
        PartitionedState(tables, self._buckets, saved.get("partitioned")).forget()
        if tables.find("revisions") is not None:
            tables.delete("revisions")


@dataclass
class _Group:
    """A group in a step: its state, what the index says of it, and what it emits and leaves out."""

    state: GroupState
    saved: dict[str, Any]
    states: GroupStates
    emitted: list[Emitted] = field(default_factory=list)
    dropped: int = 0

    def advance(self, watermark: int) -> None:
        """Emit what is due at a watermark, and what late slices have changed since the last time."""
        for emitted in self.states.advance(dict.fromkeys(self.states.time_columns, watermark)).values():
            self.emitted += emitted

    def without_late(self, table: pl.DataFrame) -> pl.DataFrame:
        """Slices that some window still takes, of those that are behind the watermark."""
        table, dropped = self.states.admit_slices(self.state, table)
        self.dropped += dropped
        return table

    def absorb(self, table: pl.DataFrame) -> None:
        self.dropped += self.states.absorb({self.state.group.name: table}).total()


def _load(state: GroupState, runs: list[pl.DataFrame]) -> None:
    """Fill a state with slices that were stored; it keeps its revisions."""
    tables = [state.schema.conform(run) for run in runs]
    state.load({"slices": merge(tables, state.schema) if tables else state.schema.empty()})


def _form(group: Group) -> str:
    """A fingerprint of what the tables of an ordered group depend on."""
    return fingerprint_of([group], list(map(repr, group.timelines)), [one.text for one in group.partials])


def _queries(state: GroupState, timeline: Timeline) -> set[int]:
    """The numbers of the queries that ask for a timeline."""
    return set(state.assembler.queries_of(state.group.timelines[timeline]).tolist())
