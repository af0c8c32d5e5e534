"""The state of one group: its live slices, and what of its windows was emitted.

    slices of a batch ── absorb ──▶ table ── step(watermark step) ──▶ emitted windows
                                          ── prune ──▶ the slices that a window that is not final can still need

Batches are kept as they come and merged when an answer needs them, so that a push costs what it brings. A window is
emitted in the step that passes its end. With `updates` it is final only later: until then a late event emits it again
(`Change`), one revision higher (`Revisions`). A session may also grow, or join another, and is then taken back.

What depends on the plan alone is in `CompiledGroup`, which all states of a group share. A state is tables, and the
exclusion sets to which their rows refer by number; `tables` and `header` give all of it, `load` and `restore` take it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import polars as pl

from windrow.core.arrays.dataframes import join_keys, key_numbers
from windrow.core.arrays.range_queries import Ints, Mask
from windrow.core.assemble.answers import NAMELESS, Answers
from windrow.core.assemble.due import Assembler, Keys, Rows, Windows, session_windows
from windrow.core.assemble.emitted import Emitted, Revisions
from windrow.core.assemble.sessions import Sessions, gap_of, needed, sessions
from windrow.core.expressions.parse import Expression
from windrow.core.plan.groups import Group, Timeline
from windrow.core.plan.watermark import WatermarkStep
from windrow.core.slices.custom_edges import last_end
from windrow.core.slices.kernel import Edges, roll_up, slice
from windrow.core.slices.table import SliceBuffer, SliceSchema, merge
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN, ContextFreeWindow, Session, Tumbling

# by timeline, and whether for all aggregates or for those that do, or do not, need the order
ClosedSessions = Mapping[tuple[Timeline, bool | None], pl.DataFrame]
JOIN_FROM = 256  # so many slices that only sessions need are joined
ExclusionSet = frozenset[tuple[int, int]]  # the sessions, as (gap, since), that leave an event out


class CompiledGroup:
    """All that follows from a group of the plan and the types of its columns: what its slices look like, where they
    are cut, how windows are found and answered. It never changes."""

    def __init__(self, group: Group, schema: SliceSchema, shared_schema: SliceSchema) -> None:
        """With the schemas of its own slices, and of those that it shares with the groups rolled up from it."""
        self.group, self.schema, self.shared_schema = group, schema, shared_schema
        self.edges = Edges.of(group.timelines)
        self.shared_edges = Edges.of(group.needs(shared=True)[0]) if group.children else self.edges
        self.assembler = Assembler(group, self.edges.irregular)
        self.session_timelines = [line for line in group.timelines if isinstance(line.window, Session)]

    def state(self) -> GroupState:
        return GroupState(self)

    @cached_property
    def _edges_at_gaps(self) -> tuple[Edges, Edges]:
        """Its own edges and those that it shares, with every multiple of its sessions' gaps."""
        own, shared = (_with_gaps(self.group.needs(shared)[0]) for shared in (False, True))
        return Edges.of(own), Edges.of(shared)

    def slice(self, events: pl.DataFrame) -> pl.DataFrame:
        """Its own slices of prepared events."""
        return slice(events, self.group.source.time, self.edges, self.schema)

    def slice_shared(self, events: pl.DataFrame, at_gaps: bool = False) -> pl.DataFrame:
        """The slices of prepared events that it shares with the groups that are rolled up from it.

        With `at_gaps` they end at every multiple of a session's gap too, where sessions can come to be cut.
        """
        edges = self._edges_at_gaps[1] if at_gaps else self.shared_edges
        return slice(events, self.group.source.time, edges, self.shared_schema)

    def roll_up(self, shared: pl.DataFrame, at_gaps: bool = False) -> pl.DataFrame:
        """Its own slices, of those that it shares or is rolled up from."""
        return roll_up(shared, self._edges_at_gaps[0] if at_gaps else self.edges, self.schema)

    @property
    def travels(self) -> Mapping[str, pl.DataType]:
        """The columns of what travels from where the events are: slices, or the events themselves."""
        return self.schema.columns

    def conform(self, table: pl.DataFrame) -> pl.DataFrame:
        """A table that was made by an older plan, with the columns of this one."""
        return self.schema.conform(table)

    def wrong_with(self, table: pl.DataFrame, times: tuple[int, int]) -> str | None:
        """Why a table of the right types cannot be what travels, as part of a sentence; None if it can."""
        return self.schema.wrong_with(table, times)

    def answered(self, rows: Rows, windows: Windows) -> Iterator[Emitted]:
        """Answer all of these windows, which are emitted for the first time."""
        for answers in self.assembler.answers(rows, windows, {None: np.ones(len(windows.lo), np.bool_)}):
            yield Emitted(rows, windows, answers, np.zeros(len(windows.lo), np.int64))


def _with_gaps(timelines: Sequence[Timeline]) -> list[Timeline]:
    gaps = {timeline.window.gap for timeline in timelines if isinstance(timeline.window, Session)}
    return [*timelines, *(Timeline(Tumbling(gap, 0, True), INT64_MIN, INT64_MAX, False) for gap in gaps)]


class GroupState:
    """What one group has seen: its live slices, and the revisions of its windows."""

    def __init__(self, compiled: CompiledGroup) -> None:
        self.compiled, self.group, self.schema = compiled, compiled.group, compiled.schema
        self.assembler = compiled.assembler
        self.exclusions: list[ExclusionSet] = [frozenset()]
        self.revisions = Revisions()
        self.behind: int | None = None  # its watermark, while that is less than its time column's (see `reachable`)
        self._slices = SliceBuffer(self.schema)
        self._rows: Rows | None = None
        self.next_close = INT64_MAX  # no session closes before it

    def take_over(self, other: GroupState) -> None:
        """Go on from the state of an earlier plan; what this plan does not need is dropped."""
        self.exclusions, self.revisions = other.exclusions, other.revisions
        self.load({"slices": other.rows.table})
        events = other.buffered_events()
        if events is not None:
            self.absorb(self.compiled.slice(events))

    def copy(self) -> Self:
        """The same state, of which one may change without the other; tables are shared, because they never change."""
        other = copy(self)
        other._slices, other.exclusions = self._slices.copy(), list(self.exclusions)
        other.revisions = replace(self.revisions)
        return other

    def buffered_events(self) -> pl.DataFrame | None:
        """Events that are in no slice yet; None if there are none."""
        return None

    def header(self) -> dict[str, Any]:
        """What it knows beside its tables, as plain data; `restore` takes it back."""
        return {"exclusions": [sorted(exclusion) for exclusion in self.exclusions]}

    def restore(self, header: Mapping[str, Any]) -> None:
        self.exclusions = [frozenset((gap, since) for gap, since in sessions) for sessions in header["exclusions"]]

    def tables(self) -> dict[str, pl.DataFrame]:
        """Everything else that it knows, as tables by name; `load` takes them back."""
        revisions = {} if self.revisions.table is None else {"revisions": self.revisions.table}
        return {"slices": self.rows.table, **revisions}

    def load(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """Go on with what `tables` has given; slices may have the columns of an earlier plan."""
        self._replace(self.schema.conform(tables["slices"]))
        self.next_close = INT64_MIN
        self.revisions.table = tables.get("revisions", self.revisions.table)

    @property
    def rows(self) -> Rows:
        """All live slices, merged."""
        if self._slices.pending:
            self._replace(self._slices.merged())
        if self._rows is None:
            self._rows = Rows(self._whole(), self.schema)
        return self._rows

    def _whole(self) -> pl.DataFrame:
        """All slices, once those that were pending are merged."""
        return self._slices.table

    def absorb(self, table: pl.DataFrame) -> None:
        """Take slices in; they are merged when an answer needs them, or once they are many."""
        if not table.height:
            return
        self._slices.add(table)
        self._may_close(table)
        if not self._slices.pending:  # they have become many
            self._rows = None

    def _replace(self, table: pl.DataFrame) -> None:
        """Go on with these slices in the place of those that are merged."""
        self._slices.replace(table)
        self._rows = None

    def _may_close(self, table: pl.DataFrame) -> None:
        """Note when the first session of these slices might close."""
        if self.schema.gap is not None and table.height:
            earliest = int(table["last"].min()) + self.schema.gap  # type: ignore[arg-type]
            self.next_close = min(self.next_close, earliest)

    @property
    def held_events(self) -> int:
        return 0

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return sum(int(table.estimated_size()) for table in self.tables().values())

    def session_views(self, rows: Rows) -> Iterator[tuple[Rows, list[Timeline]]]:
        """Give the rows that sessions see: all of them at once, or for each timeline those that it has not left out."""
        timelines = self.compiled.session_timelines
        if not timelines or not len(rows):
            return
        if not (rows.table["excluded"] != 0).any():
            yield rows if rows.runs.in_order else rows.by_first(), timelines
            return
        ordered = rows.by_first()
        for timeline in timelines:
            session = gap_of(timeline), timeline.since
            left_out = [number for number, exclusion in enumerate(self.exclusions) if session in exclusion]
            yield Rows(ordered.table.filter(~pl.col("excluded").is_in(left_out)), self.schema), [timeline]

    def all_sessions(self, rows: Rows) -> Iterator[tuple[Rows, Sessions]]:
        """Find the sessions of each timeline, as ranges of the rows that it sees."""
        for view, timelines in self.session_views(rows):
            for of_gap in sessions(view.runs, timelines):
                yield view, of_gap

    def reachable(self, step: WatermarkStep) -> int:
        """The watermark up to which a step can go: all the way, as long as windows wait for nothing but time.

        To be overridden: a state whose windows wait for answers of nodes goes on by itself once these have come.
        """
        return step.now

    def may_be_due(self, step: WatermarkStep) -> bool:
        """Whether any window can end in a step, without merging slices: where not, `step` need not be called."""
        if step.now == step.before:
            return False
        closes = bool(self.compiled.session_timelines) and step.now > self.next_close
        return closes or self.assembler.any_end(step.before, step.now)

    def step(self, step: WatermarkStep, change: Change | None = None, partial: bool = False) -> Iterator[Emitted]:
        """Emit the windows that end in a step, and those that late events within `updates` have changed before it."""
        self.next_close = INT64_MAX
        yield from self.emit_by_time(self.rows, step, change)
        self.prune(step.final_before)

    def emit_by_time(
        self, rows: Rows, step: WatermarkStep, change: Change | None, ordered: bool | None = None
    ) -> Iterator[Emitted]:
        """Emit the windows with fixed bounds and the sessions of some rows; to be overridden.

        Where aggregates that need the order leave out more late events, the two kinds see different rows: `ordered`
        says for which of them these rows are, None for both.
        """
        if change is not None:
            yield from self._revised(rows, change, step.before, ordered)
        yield from self._emit(rows, self.assembler.due(rows, step.before, step.now), ordered)
        before = Revisions(self.revisions.table)
        for view, of_gap in self.all_sessions(rows):
            self.next_close = min(self.next_close, of_gap.next_end(step.now))
            if change is None:
                number = self.group.timelines[of_gap.timeline]
                yield from self._emit(view, session_windows(number, of_gap.closing(step.before, step.now)), ordered)
            else:
                yield from self._changed_sessions(view, of_gap, change, before, step.now, ordered)

    def _emit(self, rows: Rows, windows: Windows, ordered: bool | None) -> Iterator[Emitted]:
        """Emit windows that are due. Their revision is 0, unless a late event has opened them again."""
        revisions: dict[Expression | None, Ints] = {}
        for answers in self.assembler.answers(rows, windows, ordered=ordered):
            if answers.where not in revisions:
                revisions[answers.where] = self._next_revision(rows, windows, answers.where, ordered)
            yield Emitted(rows, windows, answers, revisions[answers.where])

    def _next_revision(self, rows: Rows, windows: Windows, where: Expression | None, ordered: bool | None) -> Ints:
        """The revision of each window that is emitted now, noted for those that were emitted before."""
        if self.revisions.table is None:
            return np.zeros(len(windows.lo), np.int64)
        ids = self.revisions.ids(rows, windows, self.group, where, ordered)
        revision = self.revisions.of(ids) + 1
        self.revisions.set(ids.filter(pl.Series(revision > 0)), revision[revision > 0])
        return revision

    def _revised(self, rows: Rows, change: Change, watermark: int, ordered: bool | None) -> Iterator[Emitted]:
        """Emit again the fixed windows that late events have changed: due in an earlier step, and not final.

        Which these are follows from the late slices alone, as if they were all there is; the answers come from all
        slices. A window without an event of its filter before has not been emitted yet, and gets revision 0.
        """
        gained = Rows(change.table, self.schema)
        touched = self.assembler.due(gained, change.final_before, watermark)
        if not len(touched.lo):
            return
        key = key_numbers(gained.keys, rows.keys)[touched.key]
        lo, hi = rows.first_at(key, touched.start), rows.first_at(key, touched.end)
        until = np.array([timeline.until for timeline in self.assembler.timelines])[touched.timeline]
        lead = rows.first_at(key, np.minimum(until, touched.end))
        windows = Windows(touched.timeline, key, touched.start, touched.end, lo, hi, lead)
        keep, had = {}, {}
        for where in self.group.filters:
            more = self.assembler.counts(gained, touched, where)
            # a query that is being removed emits windows that have an event from before it was
            keep[where] = (more > 0) & (self.assembler.counts(rows, windows, where, lead) > 0)
            had[where] = self.assembler.counts(rows, windows, where) > more
        revisions: dict[Expression | None, Ints] = {}
        for answers in self.assembler.answers(rows, windows, keep, ordered):
            if answers.where not in revisions:
                ids = self.revisions.ids(rows, windows, self.group, answers.where, ordered)
                last = np.maximum(self.revisions.of(ids), 0)  # a window that is not noted was emitted once, as 0
                revision = np.where(had[answers.where], last + 1, 0)
                kept = keep[answers.where]
                self.revisions.set(ids.filter(pl.Series(kept)), revision[kept])
                revisions[answers.where] = revision
            yield Emitted(rows, windows, answers, revisions[answers.where])

    def _changed_sessions(
        self, view: Rows, sessions: Sessions, change: Change, revisions: Revisions, now: int, ordered: bool | None
    ) -> Iterator[Emitted]:
        """Emit the sessions of one timeline that are closed and not as they were emitted, after late events.

        Late events can extend a session, fuse several, or open one again. What was emitted is known from the slices
        before the late events came (`change`), and of sessions that were opened earlier from their revisions. A session
        is identified by its start: one of these that no session begins at any more is retracted.

        `revisions` are those before the step; timelines that differ in their end alone share them.
        """
        timeline = self.group.timelines[sessions.timeline]
        windows = session_windows(timeline, sessions)
        ids = self.revisions.ids(view, windows, self.group, None, ordered)
        emitted = self._emitted_before(ids, sessions.timeline, change, revisions, ordered)
        gone = join_keys(emitted, ids, ids.columns, "anti")
        if gone.height:
            revision = gone["revision"].to_numpy() + 1
            self.revisions.set(gone.select(ids.columns), revision)
            yield self._retracted(timeline, gone, revision, ordered)
        before = join_keys(ids, emitted, ids.columns, "left")
        is_open = pl.Series(windows.end >= now)
        reopened = before.filter(before["revision"].is_not_null() & is_open)
        if reopened.height:  # it is emitted when it closes again, and retracted if it is gone by then
            self.revisions.set(reopened.select(ids.columns), reopened["revision"].to_numpy(), reopened["upto"])
        counts = pl.Series(self.assembler.counts(view, windows, None))
        is_same = ((before["rows"] == counts) & (before["upto"] == pl.Series(windows.end))).fill_null(False)
        is_changed = ~is_open & ~is_same
        if not is_changed.any():
            return
        revision = before["revision"].fill_null(pl.Series(revisions.of(ids))).to_numpy() + 1
        self.revisions.set(ids.filter(is_changed), revision[is_changed.to_numpy()])
        for answers in self.assembler.answers(view, windows, {None: is_changed.to_numpy()}, ordered):
            yield Emitted(view, windows, answers, revision)

    @staticmethod
    def _emitted_before(
        ids: pl.DataFrame, timeline: Timeline, change: Change, revisions: Revisions, ordered: bool | None
    ) -> pl.DataFrame:
        """The sessions of a timeline that were emitted: how many events (`rows`), up to when, and their revision.

        Of those that were opened again since, the number of events is not known; none is equal to -1.
        """
        emitted = change.sessions.get((timeline, ordered))
        if emitted is None:
            emitted = ids.clear().with_columns(rows=pl.lit(0, pl.Int64), upto=pl.lit(0, pl.Int64))
        reopened = revisions.reopened(timeline, ordered)
        if reopened is not None:
            reopened = join_keys(reopened, emitted, ids.columns, "anti").with_columns(rows=pl.lit(-1, pl.Int64))
            emitted = pl.concat([emitted, reopened.select(emitted.columns)])
        revision = np.maximum(revisions.of(emitted.select(ids.columns)), 0)
        return emitted.with_columns(pl.Series("revision", revision))

    def _retracted(self, timeline: int, gone: pl.DataFrame, revision: Ints, ordered: bool | None = None) -> Emitted:
        """Take windows back that were emitted and are no more, for every query that got them."""
        queries = self.assembler.queries_of(timeline, ordered)
        key = np.arange(gone.height)
        start, end = gone["start"].to_numpy(), gone["upto"].to_numpy()
        windows = Windows(np.full(gone.height, timeline), key, start, end, key, key, key)
        index = np.repeat(key, len(queries))
        nothing = np.zeros_like(index)
        answers = Answers(None, index, np.tile(queries, gone.height), pl.DataFrame(), index, NAMELESS, nothing)
        return Emitted(Keys(gone.select(*self.schema.keys)), windows, answers, revision, retracted=True)

    def _rounds(self) -> Iterator[tuple[Rows, bool | None]]:
        """The rows that windows by time see; whether only aggregates that need the order do, or only the others."""
        yield self.rows, None

    def closed_sessions(self, watermark: int) -> ClosedSessions:
        """The sessions that were emitted: what identifies them, how many events, up to when."""
        closed = {}
        for rows, ordered in self._rounds():
            for view, of_gap in self.all_sessions(rows):
                windows = session_windows(self.group.timelines[of_gap.timeline], of_gap.take(of_gap.end < watermark))
                ids = self.revisions.ids(view, windows, self.group, None, ordered)
                counts = pl.Series("rows", self.assembler.counts(view, windows, None))
                closed[of_gap.timeline, ordered] = ids.with_columns(counts, pl.Series("upto", windows.end))
        return closed

    def prune(self, final_before: int) -> None:
        """Drop the slices that no window that is not final can need, and what was noted of final ones."""
        rows = self.rows
        if not len(rows):
            return
        horizon = self.assembler.horizon(rows, final_before)
        keep = rows.start >= horizon
        if not keep.all():
            keep |= self._in_sessions(rows, final_before)
        if not keep.all():
            self._replace(rows.table.filter(pl.Series(keep)))
        self._join_old(horizon)
        self._forget(final_before)

    def _in_sessions(self, rows: Rows, final_before: int) -> Mask:
        """Which rows a session may still need."""
        if not self.compiled.session_timelines:
            return np.zeros(len(rows), np.bool_)
        if rows.runs.in_order:
            return needed(rows.runs, self.compiled.session_timelines, final_before)
        keep = np.zeros(len(rows), np.bool_)
        keep[rows.first_order()] = needed(rows.by_first().runs, self.compiled.session_timelines, final_before)
        return keep

    def _forget(self, final_before: int) -> None:
        """Drop exclusion sets without slices, and the revisions of windows that are final.

        A session is identified by its start, so revisions are kept from the earliest run on.
        """
        self._forget_exclusions()
        if self.compiled.session_timelines:
            first = self._slices.table["first"].min()
            final_before = min(final_before, final_before if first is None else int(first)) - 1  # type: ignore[arg-type]
        self.revisions.forget(final_before)

    def _forget_exclusions(self) -> None:
        """Number the exclusion sets anew once no slice refers to most of them."""
        if not self.schema.has_runs:
            self.exclusions = [frozenset()]
        if len(self.exclusions) == 1:
            return
        table = self._slices.table
        used = table["excluded"].unique().sort().to_numpy()
        if len(self.exclusions) > 2 * len(used) + 2:
            used = np.union1d([0], used)
            numbers = pl.Series("excluded", np.searchsorted(used, table["excluded"].to_numpy()), dtype=pl.Int32)
            self._replace(table.with_columns(numbers))
            self.exclusions = [self.exclusions[number] for number in used]

    def _join_old(self, horizon: int) -> None:
        """Join the slices that only open sessions still need, once they are many.

        Every other edge before the horizon has served, so that a long-open session does not keep thousands of slices.
        They stay cut where a query came or went: its sessions begin or end there.
        """
        if not self.compiled.session_timelines or not self._slices.table.height:
            return
        start = self._slices.table["slice_start"].to_numpy()
        points = np.append(INT64_MIN, self.compiled.edges.points)
        joined = points[np.searchsorted(points, start, "right") - 1]
        old = (start < horizon) & (start != joined)
        if int(old.sum()) > max(JOIN_FROM, len(start) // 4):
            starts = pl.Series("slice_start", np.where(old, joined, start))
            self._replace(merge([self._slices.table.with_columns(starts)], self.schema))

    def is_over(self, number: int, final_before: int) -> bool:
        """Whether a timeline that is being removed, given by its number, has emitted its last window."""
        timeline = self.assembler.timelines[number]
        if isinstance(timeline.window, ContextFreeWindow):
            return final_before > last_end(timeline.window, timeline.until)
        if final_before <= timeline.until + timeline.window.reach:
            return False
        every = self.all_sessions(self.rows)
        return not any((of_gap.end >= final_before).any() for _, of_gap in every if of_gap.timeline == timeline)


@dataclass(frozen=True)
class Change:
    """What late events within `updates` have brought: their slices, and the sessions that were emitted before."""

    table: pl.DataFrame
    final_before: int
    sessions: ClosedSessions
