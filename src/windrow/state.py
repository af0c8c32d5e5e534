"""The state of one group: its slices, and what has been said about them.

    slices of a batch ── absorb ──▶ table ── step(watermark) ──▶ windows and answers ── prune ──▶ what can still matter

Batches are kept as they come and merged when an answer needs them, so that a push costs what it brings. With `updates`, late
events change windows that were already emitted: `Revisions` remembers how often each was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from windrow.assembly import Answers, Assembler, Rows, Windows, due, session_windows
from windrow.expressions import Expression
from windrow.plan import Group, Timeline
from windrow.ranges import Ints
from windrow.sessions import Sessions, needed, sessions
from windrow.slices import SliceSchema, merge
from windrow.slicing import Edges
from windrow.windows import Session

Bar = frozenset[tuple[int, int]]  # the sessions, as (gap, since), that leave an event out


@dataclass(frozen=True)
class Emitted:
    """Windows with their answers, a revision for each window, and whether they are taken back."""

    rows: Rows
    windows: Windows
    answers: Answers
    revision: Ints
    retracted: bool = False


@dataclass
class Revisions:
    """The last revision of each window that was emitted more than once, or may be."""

    table: pl.DataFrame | None = None

    def ids(
        self, rows: Rows, windows: Windows, timelines: Sequence[Timeline], where: Expression | None
    ) -> pl.DataFrame:
        """What identifies windows: timeline, filter, key, start, and the end where it is fixed."""
        fixed = np.array([not isinstance(timeline.window, Session) for timeline in timelines])[windows.timeline]
        lines = pl.Series("line", [f"{timeline.window} {timeline.since}" for timeline in timelines])
        texts = pl.Series("where", [where.text if where else ""]).new_from_index(0, len(windows.lo))
        bounds = [pl.Series("start", windows.start), pl.Series("end", np.where(fixed, windows.end, 0))]
        return pl.DataFrame([*rows.keys_at(windows.key), lines.gather(windows.timeline), texts, *bounds])

    def of(self, ids: pl.DataFrame) -> Ints:
        """The last revision of each, -1 where none is known."""
        if self.table is None or not self.table.height:
            return np.full(ids.height, -1)
        found = ids.join(self.table, on=ids.columns, how="left", nulls_equal=True, maintain_order="left")
        return found["revision"].fill_null(-1).to_numpy()

    def set(self, ids: pl.DataFrame, revision: Ints) -> None:
        fresh = ids.with_columns(pl.Series("revision", revision, dtype=pl.Int64))
        if self.table is not None:
            rest = self.table.join(ids, on=ids.columns, how="anti", nulls_equal=True)
            fresh = pl.concat([rest.select(fresh.columns), fresh])
        self.table = fresh

    def forget(self, before: int) -> None:
        if self.table is not None:
            self.table = self.table.filter(pl.max_horizontal("start", "end") > before)


@dataclass
class GroupState:
    group: Group
    schema: SliceSchema
    bars: list[Bar] = field(default_factory=lambda: [frozenset()])
    revisions: Revisions = field(default_factory=Revisions)

    def __post_init__(self) -> None:
        self._table, self._pending = self.schema.empty(), [self.schema.empty()][:0]
        self._rows: Rows | None = None
        self.prepare()

    def prepare(self) -> None:
        self.edges = Edges.of(self.group.cutting)
        self.own_edges = Edges.of(self.group.timelines)
        self.assembler = Assembler(self.group)

    def rebind(self, group: Group, schema: SliceSchema) -> None:
        """Go on under another plan: states that it does not know are dropped, new ones begin empty."""
        table = self.rows.table
        self.group, self.schema = group, schema
        self._table, self._rows = schema.conform(table), None
        self.prepare()

    def load(self, table: pl.DataFrame) -> None:
        self._table, self._rows = self.schema.conform(table), None

    @property
    def rows(self) -> Rows:
        """All live slices, merged."""
        if self._pending:
            self._table, self._pending = merge([self._table, *self._pending], self.schema), []
            self._rows = None
        if self._rows is None:
            self._rows = Rows(self._table, self.schema)
        return self._rows

    def absorb(self, table: pl.DataFrame) -> None:
        if table.height:
            self._pending.append(table)
            if sum(part.height for part in self._pending) > max(self._table.height, 65536):
                self._table, self._pending, self._rows = merge([self._table, *self._pending], self.schema), [], None

    @property
    def height(self) -> int:
        return self._table.height + sum(part.height for part in self._pending)

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return int(self._table.estimated_size() + sum(part.estimated_size() for part in self._pending))

    @property
    def session_timelines(self) -> list[Timeline]:
        return [timeline for timeline in self.group.timelines if isinstance(timeline.window, Session)]

    def session_views(self, rows: Rows) -> Iterator[tuple[Rows, list[Timeline]]]:
        """The rows that sessions see: all of them, but for late ones that a session has left out."""
        timelines = self.session_timelines
        if not timelines or not len(rows):
            return
        barred = rows.table["barred"].to_numpy()
        if not barred.any():
            yield rows, timelines
            return
        table = rows.table.sort(*rows.schema.keys, "first", "last")
        for timeline in timelines:
            out = [number for number, bar in enumerate(self.bars) if (_gap(timeline), timeline.since) in bar]
            yield Rows(table.filter(~pl.col("barred").is_in(out)), self.schema), [timeline]

    def may_be_due(self, before: int, now: int) -> bool:
        """Whether any window can end between two watermarks; cheap, before slices are merged."""
        return bool(self.session_timelines) or self.assembler.lattices.any_end(before, now)

    def step(self, before: int, now: int, change: Change | None) -> Iterator[Emitted]:
        """Everything to say when the watermark moves from `before` to `now`, after a change within `updates`."""
        rows = self.rows
        if change is not None:
            yield from self._revised(rows, change, before)
        yield from self._emit(rows, due(rows, self.assembler.lattices, before, now))
        for view, timelines in self.session_views(rows):
            for found in sessions(view.runs, timelines):
                place = self.group.timelines[found.timeline]
                ends = found.last + found.gap
                if change is None:
                    yield from self._emit(view, session_windows(place, found.take((ends >= before) & (ends < now))))
                else:
                    yield from self._changed_sessions(
                        view, place, found, change.sessions.get(found.timeline), before, now
                    )
        for timeline, earlier in (change.sessions if change and not len(rows) else {}).items():
            yield from self._changed_sessions(rows, self.group.timelines[timeline], None, earlier, before, now)

    def _emit(self, rows: Rows, windows: Windows) -> Iterator[Emitted]:
        """Windows that are due: new, unless a late event opened them again."""
        for answers in self.assembler.answers(rows, windows):
            revision = np.zeros(len(windows.lo), np.int64)
            if self.revisions.table is not None:
                ids = self.revisions.ids(rows, windows, self.assembler.timelines, answers.where)
                revision = self.revisions.of(ids) + 1
                self.revisions.set(ids.filter(pl.Series(revision > 0)), revision[revision > 0])
            yield Emitted(rows, windows, answers, revision)

    def _revised(self, rows: Rows, change: Change, watermark: int) -> Iterator[Emitted]:
        """Fixed windows that were due before and have gained events."""
        gained = Rows(change.table, self.schema)
        touched = due(gained, self.assembler.lattices, change.frozen, watermark)
        if not len(touched.lo):
            return
        key = _codes(gained.keys, rows)[touched.key]
        lo, hi = rows.first_at(key, touched.start), rows.first_at(key, touched.end)
        until = np.array([timeline.until for timeline in self.assembler.timelines])[touched.timeline]
        lead = rows.first_at(key, np.minimum(until, touched.end))
        windows = Windows(touched.timeline, key, touched.start, touched.end, lo, hi, lead)
        keep, had = {}, {}
        for where in self.group.filters:
            more = self.assembler.counts(gained, touched, where)
            keep[where] = (more > 0) & (self.assembler.counts(rows, windows, where, lead) > 0)
            had[where] = self.assembler.counts(rows, windows, where) > more
        revisions: dict[Expression | None, Ints] = {}
        for answers in self.assembler.answers(rows, windows, keep):
            if answers.where not in revisions:
                ids = self.revisions.ids(rows, windows, self.assembler.timelines, answers.where)
                known = self.revisions.of(ids)
                revision = np.where(had[answers.where], np.maximum(known, 0) + 1, 0)
                kept = keep[answers.where]
                self.revisions.set(ids.filter(pl.Series(kept)), revision[kept])
                revisions[answers.where] = revision
            yield Emitted(rows, windows, answers, revisions[answers.where])

    def _changed_sessions(
        self, view: Rows, place: int, found: Sessions | None, earlier: Earlier | None, before: int, now: int
    ) -> Iterator[Emitted]:
        """Sessions that are closed and not as they were said before; and those said before that are no more."""
        windows = session_windows(place, found) if found is not None else Windows.join([])
        timelines = self.assembler.timelines
        ids = self.revisions.ids(view, windows, timelines, None) if len(windows.lo) else None
        closed = windows.end < now
        if earlier is not None and len(earlier.windows.lo):
            was = self.revisions.ids(earlier.rows, earlier.windows, timelines, None)
            known = np.maximum(self.revisions.of(was), 0)
            self.revisions.set(was, known)
            if ids is None:
                gone, same = np.ones(was.height, np.bool_), closed
            else:
                gone = was.join(
                    ids, on=ids.columns, how="left", nulls_equal=True, maintain_order="left", coalesce=False
                )
                gone = gone[f"{ids.columns[-2]}_right"].is_null().to_numpy()
                counts = self.assembler.counts(view, windows, None)
                facts = {"rows": earlier.counts, "upto": earlier.windows.end}
                told = was.with_columns(pl.Series(name, values) for name, values in facts.items())
                both = ids.join(told, on=ids.columns, how="left", nulls_equal=True, maintain_order="left")
                same = ((both["rows"] == pl.Series(counts)) & (both["upto"] == pl.Series(windows.end))).fill_null(False)
                same = same.to_numpy()
            closed = closed & ~same
            if gone.any():
                self.revisions.set(was.filter(pl.Series(gone)), known[gone] + 1)
                yield from self._retract(earlier, place, gone, known + 1)
        if ids is not None and closed.any():
            keep = {None: closed}
            revision = self.revisions.of(ids) + 1
            self.revisions.set(ids.filter(pl.Series(closed)), revision[closed])
            for answers in self.assembler.answers(view, windows, keep):
                yield Emitted(view, windows, answers, revision)

    def _retract(self, earlier: Earlier, place: int, gone: npt.NDArray[np.bool_], revision: Ints) -> Iterator[Emitted]:
        queries = self.assembler.queries_of(place)
        index = np.repeat(np.flatnonzero(gone), len(queries))
        answers = Answers(None, index, np.tile(queries, int(gone.sum())), {}, np.zeros(len(index), np.int64))
        yield Emitted(earlier.rows, earlier.windows, answers, revision, retracted=True)

    def earlier(self, watermark: int) -> dict[Timeline, Earlier]:
        """The sessions that have been emitted so far, as they were said."""
        told = {}
        for view, timelines in self.session_views(self.rows):
            for found in sessions(view.runs, timelines):
                windows = session_windows(
                    self.group.timelines[found.timeline], found.take(found.last + found.gap < watermark)
                )
                told[found.timeline] = Earlier(view, windows, self.assembler.counts(view, windows, None))
        return told

    def prune(self, frozen: int) -> None:
        """Forget what no window that is not frozen can need."""
        rows = self.rows
        if not len(rows):
            return
        keep = rows.start >= self.assembler.lattices.horizon(frozen)
        if not keep.all() and self.session_timelines:
            wanted = [timeline for timeline in self.session_timelines]
            if rows.table["barred"].to_numpy().any():
                order = rows.table.select(pl.arg_sort_by(*self.schema.keys, "first", "last")).to_series().to_numpy()
                keep[order] |= needed(rows.choose(order).runs, wanted, frozen)
            else:
                keep |= needed(rows.runs, wanted, frozen)
        if not keep.all():
            self._table, self._rows = rows.table.filter(pl.Series(keep)), None
        if self.revisions.table is not None:
            self.revisions.forget(frozen if not self.session_timelines else int(self._oldest(frozen)))

    def _oldest(self, frozen: int) -> int:
        firsts = self._table["first"]
        return min(frozen, int(firsts.min()) if len(firsts) else frozen) - 1  # type: ignore[arg-type]


@dataclass(frozen=True)
class Earlier:
    """Sessions as they were when they were last emitted."""

    rows: Rows
    windows: Windows
    counts: Ints


@dataclass(frozen=True)
class Change:
    """What late events within `updates` have brought: their slices, and what had been said of sessions before."""

    table: pl.DataFrame
    frozen: int
    sessions: Mapping[Timeline, Earlier]


def _codes(keys: pl.DataFrame, rows: Rows) -> Ints:
    """The numbers that other rows give to keys."""
    if not keys.width:
        return np.zeros(1, np.int64)
    numbered = rows.keys.with_row_index("_number")
    found = keys.join(numbered, on=keys.columns, how="left", nulls_equal=True, maintain_order="left")
    return found["_number"].cast(pl.Int64).to_numpy()


def _gap(timeline: Timeline) -> int:
    assert isinstance(timeline.window, Session)
    return timeline.window.gap
