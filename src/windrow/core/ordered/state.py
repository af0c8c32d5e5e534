"""The state of an ordered group: events until their order is final, then slices.

    events ── hold ──▶ waiting ── the watermark passes ──▶ sorted, sliced (see `ordering`) ──▶ windows (see `sequences`)

Events newer than the watermark wait; with `updates`, events newer than the watermark minus `updates` are held on, so
that a late event can be put in its place and the slices after it made again; and for `latest` each key's last n
events are held. All others are in slices, from which the time windows and sessions of the group are answered too.

An event older than that comes too late to be put in order: it goes into a slice outside of the order, which only
queries that do not depend on the order see.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import polars as pl

from windrow.core.arrays.dataframes import join_keys
from windrow.core.assemble.due import Rows, Windows
from windrow.core.assemble.emitted import Emitted
from windrow.core.assemble.group_state import JOIN_FROM, Change, CompiledGroup, GroupState, Told, codes
from windrow.core.ordered.emitted import Retelling
from windrow.core.ordered.event_buffer import EventBuffer
from windrow.core.ordered.slicing import Carry, Ordering, Sliced
from windrow.core.ordered.windows import OrderedRows, OrderedWindowFinder, Progress
from windrow.core.plan.groups import Group, Timeline
from windrow.core.plan.watermark import WatermarkStep
from windrow.core.slices.table import SliceSchema, merge
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.core.windows.ordered import Array, Mask, OrderedWindow

PRUNE_FROM = 512  # so many slices more than after the last time
FORGET_FROM = 1024  # so many keys more than there are live slices and events


@dataclass(frozen=True)
class _Part:
    """Events that became final in one step and are held on, their slices, and the ledger of their keys after them."""

    events: pl.DataFrame
    table: pl.DataFrame
    keys: pl.DataFrame
    now: dict[str, Array]
    first: int
    last: int

    @staticmethod
    def of(events: pl.DataFrame, time: str, sliced: Sliced) -> _Part:
        first, last = events[time].min(), events[time].max()
        return _Part(events, sliced.table, sliced.keys, sliced.now, first, last)  # type: ignore[arg-type]


class CompiledOrderedGroup(CompiledGroup):
    """A group whose slices are made in the final order of its events: also what cuts them, and the windows in it."""

    def __init__(self, group: Group, schema: SliceSchema, shared_schema: SliceSchema) -> None:
        super().__init__(group, schema, shared_schema)
        self.ordering = Ordering(group, schema, self.edges)
        self.sequences = OrderedWindowFinder(group)
        signatures = [signature.needs_order for signature in group.signatures]
        timed = any(not isinstance(line.window, OrderedWindow) for line in group.timelines)
        # time windows are answered in two rounds where some aggregates need the order and so see fewer late events
        self.rounds: Sequence[bool | None] = [None] if not timed or not any(signatures) else sorted(set(signatures))

    def state(self) -> OrderedState:
        return OrderedState(self)

    @property
    def travels(self) -> Mapping[str, pl.DataType]:
        return self.ordering.needed

    def conform(self, table: pl.DataFrame) -> pl.DataFrame:
        return self.ordering.conform(table)


class OrderedState(GroupState):
    compiled: CompiledOrderedGroup

    def __init__(self, compiled: CompiledOrderedGroup) -> None:
        super().__init__(compiled)
        self.ordering, self.sequences = compiled.ordering, compiled.sequences
        self.held: pl.DataFrame | None = None  # final, but not done with; or …
        self._parts: list[_Part] = []  # … step by step, where no late event has come in between
        self._pruned = 0  # slices there were when it was last pruned
        self._recent = self.schema.empty()  # the slices of events that are held, and those that this step has made
        self._untouched = self.schema.empty()  # those of them whose keys this step has not touched
        initial = self.ordering.initial
        self.base, self.now = (Carry(self.schema.keys, initial) for _ in range(2))  # up to the held events; after all
        self.waiting = EventBuffer(self.ordering.time)
        self.retelling = Retelling(list(self.schema.keys))

    # --- what it holds ------------------------------------------------------------------------------------------

    def hold(self, events: pl.DataFrame) -> None:
        """Take events in until the watermark has passed them."""
        self.waiting = self.waiting.with_more(events[list(self.ordering.needed)])

    def events_waiting(self) -> pl.DataFrame | None:
        return self.waiting.frame()

    @property
    def held_events(self) -> int:
        held = [*([] if self.held is None else [self.held]), *(part.events for part in self._parts)]
        return len(self.waiting) + sum(part.height for part in held)

    def _all_held(self) -> pl.DataFrame | None:
        """The events that are final, but not done with."""
        parts = [*([] if self.held is None else [self.held]), *(part.events for part in self._parts)]
        return pl.concat([part[parts[0].columns] for part in parts]) if parts else None

    def _whole(self) -> pl.DataFrame:
        if not self._recent.height:
            return self._table
        return pl.concat([self._table, self._recent]).sort(self.schema.order)

    def tables(self) -> dict[str, pl.DataFrame]:
        _ = self.rows  # nothing is pending
        found = super().tables() | {"slices": self._table, "recent": self._recent}
        held = self._all_held()
        found |= {"base": self.base.table} | ({} if held is None else {"now": self.now.table, "held": held})
        waiting = self.waiting.frame()
        if waiting is not None:
            found["waiting"] = waiting
        return found if self.retelling.table is None else found | {"told": self.retelling.table}

    def load(self, tables: Mapping[str, pl.DataFrame]) -> None:
        super().load(tables)
        if "recent" not in tables:  # slices of a group that was not ordered
            return
        self._recent = self.schema.conform(tables["recent"])
        self.base.load(tables["base"])
        self.now.load(tables.get("now", tables["base"]))
        if "waiting" in tables:
            self.waiting = EventBuffer(self.ordering.time).with_more(self.ordering.conform(tables["waiting"]))
        self.held = self.ordering.conform(tables["held"]) if "held" in tables else None
        self.retelling.table = tables.get("told")

    def copy(self) -> Self:
        other = super().copy()
        other.base, other.now, other._parts = self.base.copy(), self.now.copy(), list(self._parts)
        other.retelling = replace(self.retelling)
        return other

    def take_over(self, other: GroupState) -> None:
        if not isinstance(other, OrderedState):
            super().take_over(other)
            return
        self.exclusions, self.revisions = other.exclusions, other.revisions
        self.load(other.tables())

    # --- a step -------------------------------------------------------------------------------------------------

    def may_be_due(self, step: WatermarkStep) -> bool:
        holds = len(self.waiting) > 0 or self.held is not None or bool(self._parts)
        return holds or step.now == INT64_MAX or super().may_be_due(step)

    def _slice(self, step: WatermarkStep) -> Sliced | None:
        """Put the events in order that the watermark passes, and slice them."""
        final, late, self.waiting = self.waiting.older(step.now, step.before)
        if self._in_parts and late is None and self.held is None:
            return None if final is None else self._slice_part(final, step)
        self.held, self._parts = self._all_held(), []
        waits = not self.schema.digests and not self.sequences.ends(step)  # held events are only for `latest`, later
        if final is None and (self.held is None or waits):
            return None
        untouched = None
        self._untouched = self._untouched.clear() if self._untouched.height else self._untouched
        if final is not None and self.held is not None and self.schema.keys and waits:
            keys = final.select(*self.schema.keys).unique()
            untouched = join_keys(self.held, keys, keys.columns, "anti")
            self._untouched = join_keys(self._recent, keys, keys.columns, "anti")
            self.held = join_keys(self.held, keys, keys.columns, "semi")
        parts = [part for part in (self.held, final) if part is not None]
        events = pl.concat([part[parts[0].columns] for part in parts]) if len(parts) > 1 else parts[0]
        if late is not None:
            late = np.append(np.zeros(events.height - len(late), np.bool_), late)
        sliced = self.ordering.slice(events, late, self.base, step)
        self._recent, self._rows = pl.concat([self._untouched, sliced.table]), None
        held = [part for part in (untouched, sliced.held) if part is not None]
        self.held = pl.concat(held) if held else None
        self.base.set(sliced.keys, sliced.settled)
        if self.held is None:
            self.now.table = self.base.table
        else:
            self.now.set(sliced.keys, sliced.now)
        return sliced

    @property
    def _in_parts(self) -> bool:
        """Whether what is held is held for late events alone: then a step need not look at it while none comes."""
        return self.schema.digests and not self.ordering.most

    def _slice_part(self, final: pl.DataFrame, step: WatermarkStep) -> Sliced:
        """Slice events that follow all that are held."""
        sliced = self.ordering.slice(final, None, self.now, replace(step, final_before=INT64_MIN))
        self._parts.append(_Part.of(final, self.ordering.time, sliced))
        self.now.set(sliced.keys, sliced.now)
        self._recent, self._rows = pl.concat([self._recent, sliced.table]), None
        return sliced

    def _release(self, final_before: int) -> None:
        """Let go of the parts that no late event can come before any more, and of the first half of one at the edge."""
        released = [part for part in self._parts if part.last < final_before]
        self._parts = self._parts[len(released) :]
        for part in released:
            self.absorb(part.table)
            self.base.set(part.keys, part.now)
        edge = self._parts[0] if self._parts else None
        if edge is not None and edge.first < final_before:
            is_old = edge.events[self.ordering.time] < final_before
            old, new = edge.events.filter(is_old), edge.events.filter(~is_old)
            done = self.ordering.slice(old, None, self.base, WatermarkStep(INT64_MIN, INT64_MAX, INT64_MIN, INT64_MAX))
            self.absorb(done.table)
            self.base.set(done.keys, done.now)
            held = self.ordering.slice(new, None, self.base, WatermarkStep(INT64_MIN, INT64_MAX, INT64_MIN, INT64_MIN))
            self._parts[0] = _Part.of(new, self.ordering.time, held)
        elif not released:
            return
        tables = [part.table for part in self._parts]
        self._recent, self._rows = pl.concat(tables) if tables else self.schema.empty(), None
        if not self._parts:
            self.now.table = self.base.table

    def step(self, step: WatermarkStep, change: Change | None = None, partial: bool = False) -> Iterator[Emitted]:
        before, was_held = self.now.copy(), self.held is not None or bool(self._parts)
        sliced = self._slice(step)
        if sliced is not None:
            self._may_close(sliced.table)
        if change is not None or super().may_be_due(step) or self.sequences.ends(step):
            yield from self._all_keys(sliced, before, step, change, partial)
            self._finish(sliced, step.final_before)
            self.prune(step.final_before)
            return
        if sliced is not None:
            known = before.at(sliced.keys) if was_held else sliced.known
            progress = Progress(known, sliced.now, sliced.changed)
            if self.sequences.any_complete(progress):
                rows = self._rows_of(sliced)
                progress = progress.take(np.argsort(codes(sliced.keys, rows)))
                yield from self._in_sequence(rows, progress, step, partial)
        if sliced is not None or self._parts:
            self._finish(sliced, step.final_before)
            if self._table.height + self._waiting > 2 * self._pruned + PRUNE_FROM:
                self.prune(step.final_before)

    def _all_keys(
        self, sliced: Sliced | None, before: Carry, step: WatermarkStep, change: Change | None, partial: bool
    ) -> Iterator[Emitted]:
        """A step in which a time may have come, or late events: windows of any key may have something to say."""
        self._next_close = INT64_MAX
        rows = self.rows
        in_order = rows_in_order(rows)
        for ordered in self.compiled.rounds:
            yield from self._measured(in_order if ordered else rows, step, self._seen(change, ordered), ordered)
        if self.sequences and len(in_order):
            changed = np.full(in_order.key_count, INT64_MAX)
            if change is not None and sliced is not None:
                changed[codes(sliced.keys, in_order)] = sliced.changed
            progress = Progress(before.at(in_order.keys), self._known(in_order.keys), changed)
            yield from self._in_sequence(in_order, progress, step, partial)

    def _seen(self, change: Change | None, ordered: bool | None) -> Change | None:
        """What late events have brought to aggregates that need the order: not those that came too late for it."""
        if change is None or not ordered:
            return change
        return replace(change, table=change.table.filter(pl.col("excluded") == 0))

    def _rows_of(self, sliced: Sliced) -> OrderedRows:
        """The slices in the order of the keys that a step has touched; it costs a look at the others, not a sort."""
        keys = list(self.schema.keys)
        if not keys:
            return rows_in_order(self.rows)
        settled = pl.concat([self._table, *self._pending], rechunk=True)  # Polars is slow with many small chunks
        mine = join_keys(settled, sliced.keys, keys, "semi")
        older = merge([mine.filter(pl.col("position") >= 0)], self.schema)
        recent = join_keys(self._recent, sliced.keys, keys, "semi")
        return OrderedRows(pl.concat([older, recent], rechunk=True).sort(self.schema.order), self.schema)

    def _finish(self, sliced: Sliced | None, final_before: int) -> None:
        """Let slices whose events are done with join the others."""
        if self._parts:
            self._release(final_before)
            return
        if sliced is None:
            return
        held = sliced.table.filter(pl.Series(~sliced.is_done))
        self._recent, self._rows = pl.concat([self._untouched, held]), None
        self.absorb(sliced.table if not held.height else sliced.table.filter(pl.Series(sliced.is_done)))
        if self._in_parts and self.held is not None:
            self._parts = [_Part.of(self.held, self.ordering.time, replace(sliced, table=held))]
            self.held = None

    def _in_sequence(
        self, rows: OrderedRows, progress: Progress, step: WatermarkStep, partial: bool
    ) -> Iterator[Emitted]:
        """The windows that lie in the order, complete for the first time or changed."""
        found = list(self.sequences.found(rows, progress, step, partial))
        if not self.schema.digests:
            windows = Windows.join(one.windows for one in found if not one.is_open)
            revision = np.zeros(len(windows.lo), np.int64)
            for answers in self.assembler.answers(rows, windows, {None: np.ones(len(windows.lo), np.bool_)}):
                yield Emitted(rows, windows, answers, revision)
            return
        self.retelling.forget_boundaries(
            [timeline.line for timeline, _ in self.sequences.latest], step.was_final_before
        )
        windows, timelines = Windows.join(one.windows for one in found), self.assembler.timelines
        gone, fresh, revisions = self.retelling.tell(rows, found, timelines, progress.changed)
        for place, timeline in enumerate(timelines):
            if gone is None:
                break
            mine = gone.filter((pl.col("line") == timeline.line) & (pl.col("start") < timeline.until))
            if mine.height:
                yield self._retracted(place, mine.rename({"end": "upto"}), mine["revision"].to_numpy())
        if fresh.any():
            for answers in self.assembler.answers(rows, windows, {None: fresh.to_numpy()}):
                yield Emitted(rows, windows, answers, revisions)

    def told(self, watermark: int) -> Told:
        found: dict[tuple[Timeline, bool | None], pl.DataFrame] = {}
        for ordered in self.compiled.rounds:
            found |= self._told(rows_in_order(self.rows) if ordered else self.rows, watermark, ordered)
        return found

    # --- forgetting -----------------------------------------------------------------------------------------------

    def prune(self, final_before: int) -> None:
        rows = self.rows  # those of events that are held are judged too: they may be the end of what others begin
        if self._table.height:
            needed = rows.start >= self.assembler.horizon(rows, final_before)
            loose = self._in_sessions(rows, final_before)
            position = rows.table["position"].to_numpy()
            inside = position >= 0
            if self.sequences and not needed.all() and inside.any():
                in_order = rows_in_order(rows)
                known = self._known(in_order.keys)
                needed[inside] |= self.sequences.counting_needs(in_order, known, self.schema.digests)
                loose[inside] |= self.sequences.custom_needs(in_order, known, self.schema.digests)
            self._keep(rows, needed, needed | loose, position < self.base.at(rows.keys)["count"][rows.key])
        self._pruned = self._table.height
        self._forget_keys()
        self._forget(final_before)
        if self.retelling.table is not None:
            self.retelling.forget(self._known(self.retelling.table[list(self.schema.keys)])["frozen"], final_before)

    def _known(self, keys: pl.DataFrame) -> dict[str, Array]:
        """The ledger after all events; `frozen` are those that no late one comes before."""
        known = self.now.at(keys)
        if not self.ordering.most:
            known["frozen"] = self.base.at(keys)["count"]
        return known

    def _keep(self, rows: Rows, needed: Mask, keep: Mask, settled: Mask) -> None:
        """Keep some settled slices; those that only open windows without edges need are joined once they are many."""
        table, keep = rows.table, keep & settled
        loose = keep & ~needed & (table["position"].to_numpy() >= 0)
        joined = loose & table["fresh"].to_numpy()
        for line in self.schema.lines or ():
            number = table[line].to_numpy() >> 1
            joined[1:] &= number[1:] == number[:-1]
        join = int(joined.sum()) > max(JOIN_FROM, len(rows) // 4)
        if join:
            points = np.append(INT64_MIN, self.compiled.edges.points)
            start = np.where(loose, points[np.searchsorted(points, rows.start, "right") - 1], rows.start)
            table = table.with_columns(pl.Series("slice_start", start), pl.col("fresh") & ~pl.Series(joined))
        if join or int(keep.sum()) < self._table.height:
            table = table.filter(pl.Series(keep))
            self._table, self._rows = merge([table], self.schema) if join else table, None

    def _forget_keys(self) -> None:
        """Forget keys of which nothing is left, where no window counts or carries anything for them."""
        live = self._table.height + self.held_events
        if self.ordering.grids or not self.schema.keys or self.now.table.height < 2 * live + FORGET_FROM:
            return
        parts = [part for part in (self._table, self._all_held(), self.retelling.table) if part is not None]
        keys = pl.concat([part.select(*self.schema.keys) for part in parts]).unique()
        for carry in (self.base, self.now):
            carries = carry.table.filter(~self.ordering.at_rest)
            rest = join_keys(carry.table.filter(self.ordering.at_rest), keys, list(self.schema.keys), "semi")
            carry.table = pl.concat([carries, rest])

    def is_over(self, place: int, final_before: int) -> bool:
        timeline = self.assembler.timelines[place]
        if not isinstance(timeline.window, OrderedWindow):
            return super().is_over(place, final_before)
        if final_before < timeline.until:
            return False
        rows = rows_in_order(self.rows)
        known = self._known(rows.keys)
        return not len(rows) or not self.sequences.is_open(rows, known, timeline, place, final_before)


def rows_in_order(rows: Rows) -> OrderedRows:
    """The rows that stand in the order."""
    inside = rows.table["position"] >= 0
    return OrderedRows(rows.table if inside.all() else rows.table.filter(inside), rows.schema)
