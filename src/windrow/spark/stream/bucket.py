"""Buckets: the state of a bucket of keys between micro-batches.

    payloads ── absorb ──▶ chunks of slices, or held events ── the watermark moves ──▶ results
    queries  ── change ──▶ entries: since when each is there

Everything that a bucket knows lies in a store of bytes by name: an index, and the tables that it names. A step reads
the index, what the windows that end need, and for ordered groups what they hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from windrow.core.assemble.emitted import Emitted
from windrow.core.assemble.group_state import Change, GroupState
from windrow.core.ordered.state import OrderedState
from windrow.core.plan.groups import Entry, Group, Timeline
from windrow.core.plan.plan import fingerprint_of
from windrow.core.plan.watermark import WatermarkStep
from windrow.core.query.query import Query
from windrow.core.slices.custom_edges import last_end
from windrow.core.slices.table import merge
from windrow.core.stream.compiled import state_of
from windrow.core.stream.ingest import hold
from windrow.core.stream.job import Job
from windrow.core.stream.late import slices_behind
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN, ContextFreeWindow, Session
from windrow.core.windows.ordered import Counting, DataDrivenWindow
from windrow.spark.stream.key_partitions import Drawers, Ordered, closings
from windrow.spark.stream.slice_store import Chunks, Store, chunks_of, from_bytes, needed_from, next_end, to_bytes

VERSION = 2
INDEX = "index"


class StateError(ValueError):
    """A checkpoint that cannot be gone on with: by which version or plan it was written, and what is here."""


@dataclass(frozen=True)
class Asked:
    """A query that is asked for, since when if that was said, and whether it is being removed."""

    query: Query
    since: int | None = None
    closing: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {"query": self.query.to_dict(), "since": self.since, "closing": self.closing}

    @staticmethod
    def from_dict(described: Mapping[str, Any]) -> Asked:
        return Asked(Query.from_dict(described["query"]), described["since"], described["closing"])


@dataclass
class Told:
    """What a step says."""

    results: pl.DataFrame
    dropped: int = 0
    overflows: int = 0
    slices: int = 0
    held_events: int = 0
    since: dict[str, int] = field(default_factory=dict)  # of queries that came later


class Bucket:
    """One bucket, for the length of a micro-batch."""

    def __init__(self, store: Store, job: Job, buckets: int) -> None:
        self._store, self._job, self._buckets = store, job, buckets
        self._job_now = job  # with the queries that are there now
        self._time_column = replace(job.time_columns[job.time])
        saved = store.get(INDEX)
        self.is_new = saved is None
        index = json.loads(saved) if saved else {}
        self._identity = {"buckets": buckets, "time": job.time, "updates": self._time_column.updates > 0}
        if saved:
            self._check(index)
        self._watermark: int = index.get("watermark", INT64_MIN)
        self._arrived: int = index.get("arrived", 0)
        self._lateness: int = max(
            index.get("lateness", 0), self._time_column.lateness or 0
        )  # the largest there ever was
        self._entries = [Entry(Query.from_dict(query), *rest) for query, *rest in index.get("entries", [])]
        self._groups: dict[str, Any] = index.get("groups", {})
        self.timer: int | None = index.get("timer")
        self.next_due = INT64_MAX
        self._over: set[int] = set()  # places of queries that were being removed and have emitted their last window

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
        asked: Sequence[Asked] | None,
        newest: int | None = None,
    ) -> Told:
        """Take the tables of payloads in, move the watermark, and say what is due; queries `asked` for come and go.

        newest:  the greatest time in earlier micro-batches, where the watermark does not tell it
        """
        now = max(watermark, self._watermark)
        gone: set[str] = set()
        if asked is not None:
            gone = self._change(asked, self._first_unseen(now, newest))
        self._job_now = job = replace(self._job, entries=tuple(self._entries))
        bound = job.bound
        self._time_column.watermark = self._watermark
        step = self._time_column.step_to(now)
        self._time_column.watermark = now
        later = {one.query.name: one.since for one in self._entries if one.since > INT64_MIN}
        told = Told(bound.results.empty, since=later)
        emitted: list[Emitted] = []
        names = {group.name for group in bound.plan.groups}
        dropped: dict[tuple[str, ...], int] = {}
        for group in bound.plan.groups:
            told.dropped = 0
            new = [part[group.name] for part in tables if group.name in part]
            if not new and group.name not in self._groups:
                continue
            state = state_of(group, bound.binding, job.time_columns)
            self._check_types(state)
            state.exclusions = [
                frozenset((a, b) for a, b in exclusion) for exclusion in self._saved(group).get("bars", [[]])
            ]
            if isinstance(state, OrderedState):
                emitted += self._in_order(state, new, step, told)
            else:
                emitted += self._sliced(state, new, step, told)
            # windows of several kinds leave out the same events, by and large
            dropped[group.keys] = max(told.dropped, dropped.get(group.keys, 0))
        told.dropped = sum(dropped.values())
        for name in set(self._groups) - names:
            self._forget(name)
        told.results, overflows = bound.results.build(emitted)
        told.overflows = overflows.total()
        self._watermark = now
        self._entries = [
            one for place, one in enumerate(self._entries) if one.query.name not in gone and place not in self._over
        ]
        return told

    def save(self, timer: int | None) -> None:
        self.timer = timer
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

    def _saved(self, group: Group) -> dict[str, Any]:
        found: dict[str, Any] = self._groups.setdefault(group.name, {})
        return found

    def _check_types(self, state: GroupState) -> None:
        """Refuse state whose columns have other types than in this plan."""
        columns = dict(state.schema.columns)
        if isinstance(state, OrderedState):
            columns |= state.ordering.needed
        known: dict[str, str] = self._saved(state.group).get("types", {})
        now = {name: str(dtype) for name, dtype in columns.items()}
        for name, dtype in now.items():
            if known.get(name, dtype) != dtype:
                raise StateError(
                    f"this checkpoint holds {name.partition(':')[2] or name!r} of group {state.group.name} as "
                    f"{known[name]}, and here it is {dtype}: go on with the types as they were, or start with a new "
                    "checkpoint"
                )
        self._saved(state.group)["types"] = now

    # --- slices -------------------------------------------------------------------------------------------------

    def _sliced(self, state: GroupState, new: list[pl.DataFrame], step: WatermarkStep, told: Told) -> list[Emitted]:
        """A group whose slices merge in any order: sessions, or windows whose bounds are known without the events."""
        saved = self._saved(state.group)
        chunks = Chunks.read(state.group.name, self._store, saved.get("chunks"))
        state.revisions.table = revisions = self._table(state.group, "revisions")
        table = merge([state.schema.conform(part) for part in new], state.schema) if new else None
        if state.session_timelines:
            emitted = self._sessions(state, chunks, table, step, told)
        else:
            emitted = self._fixed(state, chunks, table, step, told)
        saved["chunks"] = chunks.saved()
        saved["bars"] = [sorted(exclusion) for exclusion in state.exclusions]
        self._put(state.group, "revisions", state.revisions.table, revisions)
        told.slices += chunks.rows
        self._note_over(state, chunks.oldest, step.final_before)
        if chunks.runs:
            ends = next_end(state, max(step.now, chunks.oldest)) if step.now > INT64_MIN else INT64_MIN
            self.next_due = min(self.next_due, ends, chunks.closes + 1 if chunks.closes < INT64_MAX else INT64_MAX)
        return emitted

    def _fixed(
        self, state: GroupState, chunks: Chunks, table: pl.DataFrame | None, step: WatermarkStep, told: Told
    ) -> list[Emitted]:
        """Windows that end read the chunks that they span; late slices within `updates` everything."""
        emitted: list[Emitted] = []
        whole = False  # whether everything is read
        if step.now > step.before:
            since = needed_from(state, step.before, step.now)
            whole = since < INT64_MAX and bool(state.assembler.irregular)
            if since < INT64_MAX:
                self._load(state, chunks.load(INT64_MIN if whole else since))
                emitted += state.step(step)
            if not whole:
                chunks.forget(state.assembler.lattices.horizon(step.final_before))
        if table is not None:
            change = None
            if (table["slice_start"] < step.now).any():
                if not whole and self._time_column.updates > 0:
                    self._load(state, chunks.load())
                    whole = True
                table, change = self._behind(state, table, step, told)
            if whole:
                state.absorb(table)
            else:
                chunks.add(table, state.schema, *chunks_of(state, table))
            if change is not None:
                emitted += state.step(WatermarkStep(step.now, step.now, step.final_before, step.final_before), change)
        if whole:
            chunks.forget(INT64_MAX)
            chunks.add(state.rows.table, state.schema, *chunks_of(state, state.rows.table))
        return emitted

    def _sessions(
        self, state: GroupState, chunks: Chunks, table: pl.DataFrame | None, step: WatermarkStep, told: Told
    ) -> list[Emitted]:
        """Sessions that may end, and those of keys with late slices, are read with the others of their drawers."""
        saved, schema = self._saved(state.group), state.schema
        drawers = Drawers(self._buckets, saved.get("drawers", 1))
        emitted: list[Emitted] = []
        opened = chunks.closing(step.now) if step.now > step.before else set()
        late = False
        if table is not None:
            behind = table["first"] < step.now
            late = bool(behind.any())
            opened |= set(drawers.of(table.filter(behind)).tolist())
        if opened:
            self._load(state, chunks.load_only(opened))
            if step.now > step.before:
                emitted += state.step(step)
        if table is not None:
            table, change = self._behind(state, table, step, told) if late else (table, None)
            at = drawers.of(table)
            inside = np.isin(at, list(opened))
            state.absorb(table.filter(pl.Series(inside)))
            chunks.add(table.filter(pl.Series(~inside)), schema, at[~inside])
            if change is not None:
                emitted += state.step(WatermarkStep(step.now, step.now, step.final_before, step.final_before), change)
        fitting = drawers.fitting(chunks.rows)
        if fitting is not drawers:
            others = {run.chunk for run in chunks.runs} - opened
            for run in chunks.load_only(others):
                state.absorb(state.schema.conform(run))
            opened |= others
        if opened:
            closes = closings(state, fitting, step.now, self._time_column.updates)
            chunks.replace(opened, state.rows.table, fitting.of(state.rows.table), closes)
        saved["drawers"] = fitting.count
        return emitted

    def _behind(
        self, state: GroupState, table: pl.DataFrame, step: WatermarkStep, told: Told
    ) -> tuple[pl.DataFrame, Change | None]:
        """Slices without those that come too late; and what the late ones change, with `updates`."""
        table, dropped = slices_behind(state, table, step.final_before)
        told.dropped += dropped
        if not self._time_column.updates:
            return table, None
        late = table.filter(table["first" if state.schema.has_runs else "slice_start"] < step.now)
        change = Change(merge([late], state.schema), step.final_before, state.told(step.now)) if late.height else None
        return table, change

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

    def _load(self, state: GroupState, runs: list[pl.DataFrame]) -> None:
        tables = [state.schema.conform(run) for run in runs]
        revisions = state.revisions.table
        state.load({"slices": merge(tables, state.schema) if tables else state.schema.empty()})
        state.revisions.table = revisions

    # --- order --------------------------------------------------------------------------------------------------

    def _in_order(self, state: OrderedState, new: list[pl.DataFrame], step: WatermarkStep, told: Told) -> list[Emitted]:
        """A group that holds events until their order is final: drawers are opened in which one is, or is late."""
        saved, group, time = self._saved(state.group), state.group, state.ordering.time
        held = Ordered(group.name, self._store, self._buckets, saved.get("held"))
        opened: set[int] = set()
        moves = step.now > step.before
        if moves:
            opened = held.numbers if self._concerns_all(state, step, saved) else held.due(step.now)
        late = None
        if new:
            nth = pl.int_range(self._arrived, self._arrived + pl.len(), dtype=pl.Int64)
            events = pl.concat([state.ordering.conform(part) for part in new]).with_columns(nth=nth)
            self._arrived += events.height
            is_late = events[time] < step.now
            late = events.filter(is_late) if is_late.any() else None
            if late is not None:
                opened |= set(held.drawers.of(late).tolist())
                if saved.get("form") != _form(group):
                    opened |= held.numbers  # so that all drawers have the columns of one plan
            held.wait(events.filter(~is_late), time)
        emitted: list[Emitted] = []
        if opened:
            held.load(state, opened, step.now)
            if moves and state.may_be_due(step):
                emitted += state.step(step)
            if late is not None:
                emitted += self._late_in_order(state, late, step, told)
            held.replace(state, opened)
            saved["form"] = _form(group)
        for timeline, place in group.timelines.items():
            if moves and timeline.closing and state.is_over(place, step.final_before):
                self._over |= _queries(state, timeline)
        fitting = held.drawers.fitting(held.slices + held.events)
        if fitting != held.drawers:
            whole = state_of(group, self._job_now.bound.binding, self._job_now.time_columns)
            assert isinstance(whole, OrderedState)
            held.fit(whole, fitting)
        saved["held"], saved["bars"] = held.saved(), [sorted(exclusion) for exclusion in state.exclusions]
        told.slices += held.slices
        told.held_events += held.events
        if self._has_times(state) and held.has_tables:
            self.next_due = min(self.next_due, step.now + 1 if step.now > INT64_MIN else INT64_MIN)
        elif held.first < INT64_MAX:
            self.next_due = min(self.next_due, held.first + 1)
        return emitted

    def _concerns_all(self, state: OrderedState, step: WatermarkStep, saved: Mapping[str, Any]) -> bool:
        """Whether a step may have something to say of any key: times have come, or queries have come or go."""
        ends = state.sequences.ends(step) or state.assembler.any_end(step.before, step.now)
        goes = any(timeline.closing for timeline in state.group.timelines)
        kept = (
            bool(state.session_timelines) or self._time_column.updates > 0
        )  # what ends, or is let go, without an event
        return ends or goes or kept or saved.get("form", "") != _form(state.group)

    @staticmethod
    def _has_times(state: OrderedState) -> bool:
        """Whether some of its windows end at a time, and not at an event."""
        return any(not isinstance(line.window, Counting | DataDrivenWindow) for line in state.group.timelines)

    def _late_in_order(self, state: OrderedState, late: pl.DataFrame, step: WatermarkStep, told: Told) -> list[Emitted]:
        taken = hold(state, late, self._time_column)
        told.dropped += taken.finish()
        change = taken.changes.get(state.group.identity)
        if change is None:
            return []
        return list(state.step(WatermarkStep(step.now, step.now, step.final_before, step.final_before), change))

    # --- queries that come and go -------------------------------------------------------------------------------

    def _change(self, asked: Sequence[Asked], begin: int) -> set[str]:
        """Let new queries in from an event time on; returns those that leave after this step."""
        known = {one.query.name: one for one in self._entries}
        names = {one.query.name for one in asked}
        entries = dict(known)
        for one in asked:
            name = one.query.name
            entry = known.get(name)
            if entry is None or entry.query != one.query:
                since = INT64_MIN if one.since is None else one.since
                if not self.is_new:
                    since = self._aligned(one.query, max(since, begin))
                if not (one.closing and self.is_new):
                    entries[name] = Entry(one.query, since)
                entry = entries.get(name)
            if one.closing and entry is not None and not entry.closing:
                entries[name] = entry._replace(until=self._aligned(one.query, begin), closing=True)
        self._entries = list(entries.values())
        return {name for name, entry in entries.items() if name not in names}

    def _first_unseen(self, watermark: int, newest: int | None) -> int:
        """The first time, in whole milliseconds, later than everything that came before this micro-batch."""
        unit = 1 if self._job.is_integer else 1000
        first = INT64_MIN if newest is None else (newest // unit + 1) * unit
        return first if watermark == INT64_MIN else max(first, watermark + -(-self._lateness // unit) * unit + unit)

    @staticmethod
    def _aligned(query: Query, moment: int) -> int:
        """The next time at which the slices of a session query are cut in any case."""
        if isinstance(query.window, Session) and moment > INT64_MIN:
            return -(-moment // query.window.gap) * query.window.gap
        return moment

    # --- tables -------------------------------------------------------------------------------------------------

    def _table(self, group: Group, name: str) -> pl.DataFrame | None:
        found = self._store.get(f"{group.name}|{name}")
        return None if found is None else from_bytes(found)

    def _put(self, group: Group, name: str, table: pl.DataFrame | None, before: pl.DataFrame | None) -> None:
        if table is before:
            return
        if table is None:
            self._store.delete(f"{group.name}|{name}")
        else:
            self._store.put(f"{group.name}|{name}", to_bytes(table))

    def _forget(self, name: str) -> None:
        """Drop the state of a group that no query asks for any more."""
        saved = self._groups.pop(name)
        Chunks.read(name, self._store, saved.get("chunks")).forget(INT64_MAX)
        Ordered(name, self._store, self._buckets, saved.get("held")).forget()
        if self._store.get(f"{name}|revisions") is not None:
            self._store.delete(f"{name}|revisions")


def _form(group: Group) -> str:
    """What the tables of an ordered group depend on."""
    return fingerprint_of([group], list(map(repr, group.timelines)), [one.text for one in group.held])


def _queries(state: GroupState, timeline: Timeline) -> set[int]:
    """The numbers of the queries that ask for a timeline."""
    return set(state.assembler.queries_of(state.group.timelines[timeline]).tolist())
