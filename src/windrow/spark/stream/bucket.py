"""Buckets: the state of a stream on Spark, for the keys of one bucket, from micro-batch to micro-batch.

    index ──▶ queries, watermark ── plan ──▶ groups, each with its part of the state (`stored_groups`) ──▶ results
    index ◀── what each group has saved ─────

A state store is bytes by name: an index, and the tables that it names.

Queries come and go with the query set of a payload (`RequestedQuery`): each becomes an `Entry`, with the event time
from which it is there, which no event of an earlier micro-batch has reached.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from windrow.core.assemble.group_state import CompiledGroup
from windrow.core.plan.groups import Entry, cut_from
from windrow.core.plan.watermark import WatermarkStep
from windrow.core.query.query import Query
from windrow.core.stream.compiled import CompiledPlan
from windrow.core.stream.group_states import GroupStates
from windrow.core.stream.job import Job
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN, Grid
from windrow.spark.stream.slice_store import StateError, Store, StoredTables, Summed
from windrow.spark.stream.stored_groups import StoredGroup, forget, kind_of

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
    dropped: int
    overflows: int
    slices: int
    held_events: int
    since: dict[str, int]  # of queries that came later


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
        # the largest that there ever was: events may be that far ahead of the watermark
        self._lateness: int = max(index.get("lateness", 0), self._time_column.lateness or 0)
        self._entries = [Entry(Query.from_dict(query), *rest) for query, *rest in index.get("entries", [])]
        self._groups: dict[str, Any] = index.get("groups", {})
        self.timer: int | None = index.get("timer")
        self.next_due = INT64_MAX

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
        gone = set[str]() if requested is None else self._change(requested, self._first_unseen(now, newest))
        plan = replace(self._job, entries=tuple(self._entries)).compiled
        step = replace(self._time_column, watermark=self._watermark).step_to(now)
        groups: list[StoredGroup] = []
        for compiled in plan.groups:
            name = compiled.group.name
            new = [part[name] for part in tables if name in part]
            if new or name in self._groups:
                group = self._stored(plan, compiled, step)
                group.take(new)
                self._groups[name] = group.saved()
                groups.append(group)
        for name in set(self._groups) - set(plan.by_name):
            forget(StoredTables(name, self._store), self._buckets, self._groups.pop(name))
        self._watermark = now
        self.next_due = min((group.next_due for group in groups), default=INT64_MAX)
        later = {entry.query.name: entry.since for entry in self._entries if entry.since > INT64_MIN}
        over = set[int]().union(*(group.over for group in groups))
        entries = enumerate(self._entries)
        self._entries = [entry for number, entry in entries if number not in over and entry.query.name not in gone]
        return _output(plan, groups, later)

    def _stored(self, plan: CompiledPlan, compiled: CompiledGroup, step: WatermarkStep) -> StoredGroup:
        """A group with what is saved of it."""
        name, state = compiled.group.name, compiled.state()
        states = GroupStates(plan, {self._job.time: replace(self._time_column, watermark=step.before)}, [state])
        tables = StoredTables(name, self._store)
        return kind_of(state)(states, step, tables, self._buckets, self._groups.get(name, {}))

    def save(self, timer: int | None) -> None:
        index = {
            "windrow": VERSION,
            **self._identity,
            "watermark": self._watermark,
            "lateness": self._lateness,
            "entries": [[entry.query.to_dict(), *entry[1:]] for entry in self._entries],
            "groups": self._groups,
            "timer": timer,
        }
        self._store.put(INDEX, json.dumps(index).encode())

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
        grid = Grid(unit, 0)
        first = INT64_MIN if newest is None else int(grid.after(newest))
        ahead = int(grid.at_or_after(self._lateness)) + unit
        return first if watermark == INT64_MIN else max(first, watermark + ahead)


def _output(plan: CompiledPlan, groups: Sequence[StoredGroup], since: dict[str, int]) -> StepOutput:
    """What groups emit in a step, and the figures of the bucket after it."""
    results, overflows = plan.results.build([emitted for group in groups for emitted in group.emitted])
    dropped: dict[tuple[str, ...], int] = {}
    for group in groups:  # windows of several kinds leave out the same events, by and large
        keys = group.state.group.keys
        dropped[keys] = max(group.dropped, dropped.get(keys, 0))
    slices, held_events = sum(group.slices for group in groups), sum(group.held_events for group in groups)
    return StepOutput(results, sum(dropped.values()), overflows.total(), slices, held_events, since)
