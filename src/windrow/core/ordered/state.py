"""The state of an ordered group: events until their order is final, then slices.

    events ── buffer ──▶ buffered ── the watermark passes ──▶ sorted, sliced ──▶ windows in the order, and all others

An event older than the watermark minus `updates` comes too late to be put in order: it goes into a slice outside of
the order, which only queries that do not depend on the order see.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import polars as pl

from windrow.core.arrays.dataframes import join_keys, key_numbers
from windrow.core.arrays.range_queries import Array, Mask
from windrow.core.assemble.due import Rows, Windows
from windrow.core.assemble.emitted import Emitted
from windrow.core.assemble.group_state import JOIN_FROM, Change, CompiledGroup, GroupState
from windrow.core.ordered.emitted import OrderedRevisions
from windrow.core.ordered.event_buffer import EventBuffer, joined
from windrow.core.ordered.slicing import Carry, Ordering, Sliced
from windrow.core.ordered.windows import OrderedRows, OrderedWindowFinder, Progress
from windrow.core.plan.groups import Group
from windrow.core.plan.watermark import WatermarkStep
from windrow.core.slices.table import SliceSchema, merge
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.core.windows.ordered import OrderedWindow

_ALL_FINAL = WatermarkStep(INT64_MIN, INT64_MAX, INT64_MIN, INT64_MAX)
_NONE_FINAL = WatermarkStep(INT64_MIN, INT64_MAX, INT64_MIN, INT64_MIN)
PRUNE_FROM = 512  # so many slices more than after the last time
FORGET_FROM = 1024  # so many keys more than there are live slices and events


@dataclass(frozen=True)
class _Recent:
    """Final events that may have to be sliced again, their slices, and the carry of their keys after them."""

    events: pl.DataFrame
    slices: pl.DataFrame
    keys: pl.DataFrame
    carry: dict[str, Array]
    first: int
    last: int

    @staticmethod
    def of(
        events: pl.DataFrame, time: str, slices: pl.DataFrame, keys: pl.DataFrame, carry: dict[str, Array]
    ) -> _Recent:
        return _Recent(events, slices, keys, carry, int(events[time].min()), int(events[time].max()))  # type: ignore[arg-type]


class CompiledOrderedGroup(CompiledGroup):
    """A group whose slices are made in the final order of its events: also what cuts them, and the windows in it."""

    def __init__(self, group: Group, schema: SliceSchema, shared_schema: SliceSchema) -> None:
        super().__init__(group, schema, shared_schema)
        self.ordering = Ordering(group, schema, self.edges)
        self.finder = OrderedWindowFinder(group)
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

    def wrong_with(self, table: pl.DataFrame, times: tuple[int, int]) -> str | None:
        return self.ordering.wrong_with(table, times)


class OrderedState(GroupState):
    """Events until their order is final, and then slices in that order.

    Final events are kept as they came, beside their slices, as long as these may change (`recent`):

    - With `updates` a late event shifts all of its key after it, so everything within `updates` is kept. Nothing about
      it changes while no late event comes: each step **appends** its own events and slices, and what has become too
      old to change is released from the front, slice by slice. A late event slices all that is kept again.
    - A `latest` window begins n events before its end, where no slice need begin. So each key's last n events are kept,
      and sliced **again** with every step that brings events of the key, or in which windows end.

    Of the slices that these two make of the same events, those that cannot change any more are the same.
    """

    compiled: CompiledOrderedGroup

    def __init__(self, compiled: CompiledOrderedGroup) -> None:
        super().__init__(compiled)
        self.ordering, self.finder = compiled.ordering, compiled.finder
        self.recent: list[_Recent] = []
        self._final = self.schema.empty()  # slices of this step that cannot change; they join the others at its end
        self._pruned = 0  # slices there were when it was last pruned
        initial = self.ordering.initial
        self.base, self.now = (Carry(self.schema.keys, initial) for _ in range(2))  # before and after recent events
        self.buffered = EventBuffer(self.ordering.time)
        self.emitted = OrderedRevisions(list(self.schema.keys))

    # --- what it holds ------------------------------------------------------------------------------------------

    def buffer(self, events: pl.DataFrame) -> None:
        """Take events in until the watermark has passed them."""
        self.buffered = self.buffered.with_more(events[list(self.ordering.needed)])

    def buffered_events(self) -> pl.DataFrame | None:
        return self.buffered.frame()

    @property
    def held_events(self) -> int:
        return len(self.buffered) + sum(recent.events.height for recent in self.recent)

    def _recent_events(self) -> pl.DataFrame | None:
        """The final events that may have to be sliced again; None if there are none."""
        return joined([recent.events for recent in self.recent])

    def _recent_slices(self) -> pl.DataFrame:
        """The slices of recent events, and those of this step that cannot change."""
        return pl.concat([*(recent.slices for recent in self.recent), self._final])

    def _whole(self) -> pl.DataFrame:
        recent = self._recent_slices()
        return pl.concat([self._slices.table, recent]).sort(self.schema.order) if recent.height else self._slices.table

    def tables(self) -> dict[str, pl.DataFrame]:
        tables = super().tables()  # after which nothing is pending
        tables |= {"slices": self._slices.table, "recent_slices": self._recent_slices(), "base": self.base.table}
        events, buffered = self._recent_events(), self.buffered.frame()
        tables |= {} if events is None else {"now": self.now.table, "recent_events": events}
        tables |= {} if buffered is None else {"buffered": buffered}
        return tables if self.emitted.table is None else tables | {"emitted": self.emitted.table}

    def load(self, tables: Mapping[str, pl.DataFrame]) -> None:
        super().load(tables)
        if "recent_slices" not in tables:  # slices of a group that was not ordered
            return
        self.base.load(tables["base"])
        self.now.load(tables.get("now", tables["base"]))
        if "buffered" in tables:
            self.buffered = EventBuffer(self.ordering.time).with_more(self.ordering.conform(tables["buffered"]))
        self.emitted.table = tables.get("emitted")
        self.recent = []
        if "recent_events" in tables and tables["recent_events"].height:
            events, names = self.ordering.conform(tables["recent_events"]), list(self.schema.keys)
            keys = events.select(names).unique(maintain_order=True) if names else pl.DataFrame()
            slices = self.schema.conform(tables["recent_slices"])
            self.recent = [_Recent.of(events, self.ordering.time, slices, keys, self.now.at(keys))]

    def copy(self) -> Self:
        other = super().copy()
        other.base, other.now, other.recent = copy(self.base), copy(self.now), list(self.recent)
        other.emitted = copy(self.emitted)
        return other

    def take_over(self, other: GroupState) -> None:
        if not isinstance(other, OrderedState):
            super().take_over(other)
            return
        self.exclusions, self.revisions = other.exclusions, other.revisions
        self.load(other.tables())

    # --- events become slices -----------------------------------------------------------------------------------

    def may_be_due(self, step: WatermarkStep) -> bool:
        if step.now == step.before:
            return False
        return bool(self.buffered) or bool(self.recent) or step.now == INT64_MAX or super().may_be_due(step)

    @property
    def _appends(self) -> bool:
        """Whether recent events are kept for late events alone, so that a step without one only adds to them."""
        return self.schema.digests and not self.ordering.most

    def slice_final(self, step: WatermarkStep) -> Sliced | None:
        """Put the events in order that the watermark passes, and slice them; to be overridden.

        None if nothing changes by it.
        """
        final, late, self.buffered = self.buffered.older(step.now, step.before)
        if self._appends and late is None:
            return None if final is None else self._append(final, step)
        return self._slice_again(final, late, step)

    def _append(self, final: pl.DataFrame, step: WatermarkStep) -> Sliced:
        """Slice events that follow all recent ones; all of their slices may change, until they are released."""
        sliced = self.ordering.slice(final, None, self.now, replace(step, final_before=INT64_MIN))
        self.now.set(sliced.keys, sliced.now)
        self.recent.append(_Recent.of(final, self.ordering.time, sliced.table, sliced.keys, sliced.now))
        self._rows = None
        return sliced

    def _slice_again(self, final: pl.DataFrame | None, late: Mask | None, step: WatermarkStep) -> Sliced | None:
        """Slice recent events and those that the step makes final together, from the carry before all of them.

        Where recent events are there for `latest` alone and no window ends in the step, keys without new events are
        left as they are.
        """
        recent, slices = self._recent_events(), self._recent_slices()
        is_for_later = not self.schema.digests and not self.finder.ends(step)
        if final is None and (recent is None or is_for_later):
            return None
        untouched: list[pl.DataFrame] = []
        untouched_slices = slices.clear()
        if final is not None and recent is not None and self.schema.keys and is_for_later:
            keys = final.select(*self.schema.keys).unique()
            untouched = [join_keys(recent, keys, keys.columns, "anti")]
            untouched_slices = join_keys(slices, keys, keys.columns, "anti")
            recent = join_keys(recent, keys, keys.columns, "semi")
        events = joined([part for part in (recent, final) if part is not None])
        assert events is not None
        if late is not None:  # of the new events, which stand after the recent ones
            late = np.append(np.zeros(events.height - len(late), np.bool_), late)
        sliced = self.ordering.slice(events, late, self.base, step)
        self.base.set(sliced.keys, sliced.done)
        kept = joined([*untouched, *([] if sliced.recent is None else [sliced.recent])])
        is_done = pl.Series(sliced.is_done)
        self.add_final(sliced.table.filter(is_done))
        changeable = sliced.table.filter(~is_done)
        self.recent = []
        if kept is None or not kept.height:
            self.now = copy(self.base)
        else:
            self.now.set(sliced.keys, sliced.now)
            slices = pl.concat([untouched_slices, changeable])
            self.recent = [_Recent.of(kept, self.ordering.time, slices, sliced.keys, sliced.now)]
        return sliced

    def add_final(self, slices: pl.DataFrame) -> None:
        """Take slices of this step that cannot change, which stay apart until its end."""
        self._final, self._rows = slices, None

    def _finish(self, final_before: int) -> None:
        """Let slices that cannot change any more join the others."""
        if self._final.height:
            self.absorb(self._final)
            self.add_final(self._final.clear())
        if self._appends and self.recent:
            self._release(final_before)

    def _release(self, final_before: int) -> None:
        """Let go of recent events that no late event can come before any more.

        Of a step's events that lie on both sides of that time, each side is sliced again by itself, so that its slices
        can be told apart.
        """
        released = [recent for recent in self.recent if recent.last < final_before]
        self.recent = self.recent[len(released) :]
        for recent in released:
            self.absorb(recent.slices)
            self.base.set(recent.keys, recent.carry)
        edge = self.recent[0] if self.recent else None
        if edge is not None and edge.first < final_before:
            time = self.ordering.time
            is_old = edge.events[time] < final_before
            old, new = edge.events.filter(is_old), edge.events.filter(~is_old)
            sliced = self.ordering.slice(old, None, self.base, _ALL_FINAL)
            self.absorb(sliced.table)
            self.base.set(sliced.keys, sliced.now)
            sliced = self.ordering.slice(new, None, self.base, _NONE_FINAL)
            self.recent[0] = _Recent.of(new, time, sliced.table, sliced.keys, sliced.now)
        elif not released:
            return
        self._rows = None
        if not self.recent:
            self.now = copy(self.base)

    # --- a step -------------------------------------------------------------------------------------------------

    def step(self, step: WatermarkStep, change: Change | None = None, partial: bool = False) -> Iterator[Emitted]:
        """Put the events in order that the step makes final, slice them, and emit what is due.

        A window can end in a key without new events only at a time, or through a late event: then all keys are looked
        at. In any other step only counting and data-driven windows can end, and they end with an event, so that the
        sliced keys suffice.
        """
        before, had_recent = copy(self.now), bool(self.recent)
        sliced = self.slice_final(step)
        if sliced is not None:
            self._may_close(sliced.table)
        if change is not None or super().may_be_due(step) or self.finder.ends(step):
            yield from self._all_keys(sliced, before, step, change, partial)
            self._finish(step.final_before)
            self.prune(step.final_before)
            return
        if sliced is not None:
            progress = Progress(before.at(sliced.keys) if had_recent else sliced.before, sliced.now, sliced.changed)
            if self.finder.any_complete(progress):
                rows = self._rows_of(sliced)
                progress = progress.take(np.argsort(key_numbers(sliced.keys, rows.keys)))
                yield from self.emit_in_order(rows, progress, step, partial)
        if sliced is not None or self.recent:
            self._finish(step.final_before)
            if len(self._slices) > 2 * self._pruned + PRUNE_FROM:
                self.prune(step.final_before)

    def _all_keys(
        self, sliced: Sliced | None, before: Carry, step: WatermarkStep, change: Change | None, partial: bool
    ) -> Iterator[Emitted]:
        """Emit what is due of all keys, because the step passes a time at which windows end, or brings late events."""
        self.next_close = INT64_MAX
        rows = self.rows
        in_order = rows_in_order(rows)
        for ordered in self.compiled.rounds:
            seen = change
            if change is not None and ordered:  # not the late events that came too late for the order
                seen = replace(change, table=change.table.filter(pl.col("excluded") == 0))
            yield from self.emit_by_time(in_order if ordered else rows, step, seen, ordered)
        if self.finder and len(in_order):
            changed = np.full(in_order.key_count, INT64_MAX)
            if change is not None and sliced is not None:
                changed[key_numbers(sliced.keys, in_order.keys)] = sliced.changed
            progress = Progress(before.at(in_order.keys), self._carry(in_order.keys), changed)
            yield from self.emit_in_order(in_order, progress, step, partial)

    def _rows_of(self, sliced: Sliced) -> OrderedRows:
        """Collect the slices of the keys that the step has sliced, in their order.

        Slices of other keys are looked at by the join, but not sorted.
        """
        keys = list(self.schema.keys)
        if not keys:
            return rows_in_order(self.rows)
        # one chunk, because Polars is slow with many small ones
        slices = pl.concat([self._slices.table, *self._slices.pending], rechunk=True)
        mine = join_keys(slices, sliced.keys, keys, "semi")
        older = merge([mine.filter(pl.col("position") >= 0)], self.schema)
        recent = join_keys(self._recent_slices(), sliced.keys, keys, "semi")
        return OrderedRows(pl.concat([older, recent], rechunk=True).sort(self.schema.order), self.schema)

    def emit_in_order(
        self, rows: OrderedRows, progress: Progress, step: WatermarkStep, partial: bool
    ) -> Iterator[Emitted]:
        """Emit the windows that lie in the order, complete for the first time or changed; to be overridden."""
        parts = list(self.finder.windows(rows, progress, step, partial))
        if not self.schema.digests:
            yield from self.compiled.answered(rows, Windows.join(part.windows for part in parts if not part.is_open))
            return
        self.emitted.forget_boundaries([timeline.line for timeline, _ in self.finder.latest], step.was_final_before)
        gone, fresh, revision = self.emitted.note(rows, parts, self.group, progress.changed)
        for number, timeline in enumerate(self.assembler.timelines):
            if gone is None:
                break
            mine = gone.filter((pl.col("line") == timeline.line) & (pl.col("start") < timeline.until))
            if mine.height:
                yield self._retracted(number, mine.rename({"end": "upto"}), mine["revision"].to_numpy())
        windows = Windows.join(part.windows for part in parts)
        for answers in self.assembler.answers(rows, windows, {None: fresh.to_numpy()}):
            yield Emitted(rows, windows, answers, revision)

    def _rounds(self) -> Iterator[tuple[Rows, bool | None]]:
        return ((rows_in_order(self.rows) if ordered else self.rows, ordered) for ordered in self.compiled.rounds)

    # --- forgetting -----------------------------------------------------------------------------------------------

    def prune(self, final_before: int) -> None:
        rows = self.rows  # those of recent events are judged too: they may be the end of what others begin
        if self._slices.table.height:
            needed = rows.start >= self.assembler.horizon(rows, final_before)
            loose = self._in_sessions(rows, final_before)
            position = rows.table["position"].to_numpy()
            inside = position >= 0
            if self.finder and not needed.all() and inside.any():
                in_order = rows_in_order(rows)
                carry = self._carry(in_order.keys)
                needed[inside] |= self.finder.counting_needs(in_order, carry, self.schema.digests)
                loose[inside] |= self.finder.custom_needs(in_order, carry, self.schema.digests)
            self._keep(rows, needed, needed | loose, position < self.base.at(rows.keys)["count"][rows.key])
        self._pruned = self._slices.table.height
        self._forget_keys()
        self._forget(final_before)
        if self.emitted.table is not None:
            self.emitted.forget_ended(self._carry(self.emitted.table[list(self.schema.keys)])["final"], final_before)

    def _carry(self, keys: pl.DataFrame) -> dict[str, Array]:
        """Give the carry of these keys after all events; `final` counts those that no late event can come before."""
        carry = self.now.at(keys)
        if not self.ordering.most:
            carry["final"] = self.base.at(keys)["count"]
        return carry

    def _keep(self, rows: Rows, needed: Mask, keep: Mask, done: Mask) -> None:
        """Drop the slices that no open window needs.

        `needed` marks those that a window with edges needs, `keep` also those that only data-driven windows or sessions
        need, `done` those whose events cannot change. Nothing will be cut again at the borders of slices that only the
        latter need. Once they are many, neighbours in the same data-driven windows are merged, so that a long-open
        window does not keep thousands of slices.
        """
        table, keep = rows.table, keep & done
        loose = keep & ~needed & (table["position"].to_numpy() >= 0)
        # a slice that is no longer fresh joins the one before it in `merge`, if both begin at the same `slice_start`
        joins = loose & table["fresh"].to_numpy()
        for line in self.schema.lines or ():
            number = table[line].to_numpy() >> 1
            joins[1:] &= number[1:] == number[:-1]
        many = int(joins.sum()) > max(JOIN_FROM, len(rows) // 4)
        if many:
            points = np.append(INT64_MIN, self.compiled.edges.points)
            start = np.where(loose, points[np.searchsorted(points, rows.start, "right") - 1], rows.start)
            table = table.with_columns(pl.Series("slice_start", start), pl.col("fresh") & ~pl.Series(joins))
        if many or int(keep.sum()) < self._slices.table.height:
            table = table.filter(pl.Series(keep))
            self._replace(merge([table], self.schema) if many else table)

    def _forget_keys(self) -> None:
        """Forget keys of which nothing is left, where no window counts or carries anything for them."""
        live = self._slices.table.height + self.held_events
        if self.ordering.grids or not self.schema.keys or self.now.table.height < 2 * live + FORGET_FROM:
            return
        parts = [part for part in (self._slices.table, self._recent_events(), self.emitted.table) if part is not None]
        keys = pl.concat([part.select(*self.schema.keys) for part in parts]).unique()
        for carry in (self.base, self.now):
            carry.forget(self.ordering.at_rest, keys)

    def is_over(self, number: int, final_before: int) -> bool:
        timeline = self.assembler.timelines[number]
        if not isinstance(timeline.window, OrderedWindow):
            return super().is_over(number, final_before)
        if final_before < timeline.until:
            return False
        rows = rows_in_order(self.rows)
        return not len(rows) or not self.finder.is_open(rows, self._carry(rows.keys), timeline, number, final_before)


def rows_in_order(rows: Rows) -> OrderedRows:
    """The rows that stand in the order."""
    inside = rows.table["position"] >= 0
    return OrderedRows(rows.table if inside.all() else rows.table.filter(inside), rows.schema)
