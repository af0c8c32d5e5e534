"""A local node's side of counting windows that nodes agree on: final events by key, and segments of them.

    events ── not too late ──▶ buffer ── the node's watermark passes ──▶ logs, in order ── cut ──▶ segments
                                                                          kept until a boundary lies after them

An event is too late here if it is more than the lateness older than the newest before it in the node's source: that
depends on nothing but the source, so that a later life of the node finds the same events at the same ranks.

What was sent and lies after the last boundary is kept in memory, and read again from the source after a crash. A batch
says from where on, and how many events of each key came before that (`Counted.saved`). Where a source cannot be read
again, all final events are sent as they are, and a batch has with it those that are buffered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl

from windrow.core.arrays.range_queries import Ints, Mask
from windrow.core.ordered.event_buffer import EventBuffer
from windrow.core.slices.kernel import time_name
from windrow.core.stream.job import Job
from windrow.core.stream.job_slicer import Tables, seen_by
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.io.tables import from_text, to_text
from windrow.nodes.counting.schemes import SCHEMES, Cut, Directive, Kind, sub_slice
from windrow.nodes.counting.tables import (
    ANEW,
    NODE_COLUMN,
    Form,
    Key,
    forms_of,
)
from windrow.nodes.occasion import Occasion
from windrow.nodes.quantiles.local import Identity, Multisets, SortedValues
from windrow.nodes.quantiles.protocol import multiset_of

AT_ONCE = 1024  # events that are sent as they are when they are requested; of more, sub-slices first


class OrderedLog:
    """The final events of a key that lie after the last boundary, in order; ranks count from the key's first event."""

    def __init__(self, start: int, covered: int, directive: Directive, events: pl.DataFrame) -> None:
        """`events` are none, with their columns."""
        self.start = start  # the rank of the first that is here
        self.covered = covered  # the rank up to which they were sent
        self.directive, self.events = directive, events
        self.answered: set[tuple[int, int, str]] = set()  # requests whose answers are on their way

    @property
    def size(self) -> int:
        return self.events.height

    @property
    def top(self) -> int:
        """The rank after the last one."""
        return self.start + self.size

    def add(self, events: pl.DataFrame) -> None:
        self.events = self.events.vstack(events)

    def between(self, lo: int, hi: int) -> pl.DataFrame:
        """The events with ranks from `lo` to `hi`."""
        return self.events.slice(lo - self.start, hi - lo)

    def forget(self, rank: int) -> None:
        """Drop the events before a rank."""
        rank = min(rank, self.top)
        if rank > self.start:
            self.events, self.start = self.events.slice(rank - self.start), rank

    def time_at(self, rank: int, time: str) -> int:
        """The time of the event at a rank."""
        return int(self.events[time][rank - self.start])


RankRange = tuple[int | None, int | None]  # of segments that are at the root
NEW = (None, None)  # of none: it follows on what was sent


class Outgoing(NamedTuple):
    """A segment that is to be sent, and the rank range of which it is the content."""

    key: Key
    cut: Cut
    of: RankRange = NEW


class OrderedLogs:
    """One counted group at a local node."""

    def __init__(self, form: Form, node: str, block_size: int | None = None) -> None:
        self.form, self.node = form, node
        self.multisets = Multisets(form.multisets, node, self._multiset, block_size, form.keys)
        self.by_key: dict[Key, OrderedLog] = {}
        self.buffer = EventBuffer(form.time)  # events that are not final
        self.base: dict[Key, int] = {}  # events of each key before the position from where the node would read again
        self.reported_reach: dict[Key, int | None] = {}
        self._segments: list[Outgoing] = []
        self._no_events = pl.DataFrame(schema=form.events)

    def _multiset(self, identity: Identity, _: Mapping[str, Any]) -> SortedValues | None:
        """The values of the events between two ranks; None if they are not here (any more)."""
        log = self.by_key.get(identity.key)
        if log is None or not log.start <= identity.send < identity.row <= log.top:
            return None
        partial = self.form.multisets.multisets[identity.operator]
        return SortedValues(*multiset_of(log.between(identity.send, identity.row), partial))

    def _forget_multisets(self, key: Key, rank: int) -> None:
        """Nothing is requested of events of a key before a rank any more."""
        if self.multisets.kept:
            self.multisets.forget(lambda identity, _: identity.key == key and identity.row <= rank)

    # --- events in ------------------------------------------------------------------------------------------------

    def take(self, events: pl.DataFrame) -> pl.DataFrame:
        """Events that are not too late; returns how many of each key."""
        seen = self.form.with_plain_keys(seen_by(self.form.group.source, events).select(*self.columns))
        self.buffer = self.buffer.with_more(seen)
        if not self.form.keys:
            return pl.DataFrame({"count": [seen.height]}, schema={"count": pl.Int64()})
        return seen.group_by(list(self.form.keys)).agg(count=pl.len().cast(pl.Int64))

    @property
    def columns(self) -> list[str]:
        """Of buffered events."""
        return list(dict.fromkeys([*self.form.keys, *self.form.ordering.needed, "nth"]))

    def go_on(self, other: OrderedLogs) -> None:
        """With what another plan has, which may have read more of each event."""
        self.by_key, self.base, self.reported_reach = other.by_key, other.base, other.reported_reach
        self.restore_buffer(other.buffer.frame())
        for log in self.by_key.values():
            log.events = log.events.select(*self.form.events)

    def restore_buffer(self, events: pl.DataFrame | None) -> None:
        """Buffer events of an earlier life, or another plan; None for none."""
        if events is not None:
            self.buffer = self.buffer.with_more(events.select(*self.columns))

    def finish(self, final: int) -> None:
        """Put the events in order that are older than a time."""
        finals, _, self.buffer = self.buffer.older(final, INT64_MIN)
        if finals is None:
            return
        time = self.form.time
        order = [time, *(name for name in finals.columns if name.startswith("order:") and name != NODE_COLUMN), "nth"]
        if len(order) > 2 or not finals[time].is_sorted():
            finals = finals.sort(order)
        read = list(self.form.events)
        keys = list(self.form.keys)
        parts = finals.partition_by(keys, as_dict=True, maintain_order=True) if keys else {(): finals}
        for key, events in parts.items():
            log = self._log_of(key)
            log.add(events.select(read))
            log.forget(log.directive.kept)  # of what is read again some may not be needed any more

    def _log_of(self, key: Key) -> OrderedLog:
        if key not in self.by_key:
            begin = self.base.setdefault(key, 0)
            directive = self.form.first._replace(cut=begin, kept=begin)
            self.by_key[key] = OrderedLog(begin, begin, directive, self._no_events)
        return self.by_key[key]

    # --- segments out -----------------------------------------------------------------------------------------------

    def cut(self, final: int, flush: bool, central: bool) -> None:
        """Cut what is to be sent by now; `central`: as events, whatever the directive says."""
        for key, log in self.by_key.items():
            if log.covered == log.top:
                continue
            age = final - log.time_at(log.covered, self.form.time)
            is_due = flush or final == INT64_MAX or age >= log.directive.patience
            self._cut(key, log, "central" if central else log.directive.scheme, is_due)

    def _cut(self, key: Key, log: OrderedLog, scheme: str, flush: bool, of: RankRange = NEW) -> None:
        for cut in SCHEMES[scheme].cuts(log.directive, self.form.boundaries, log.covered, log.top, flush):
            self._segments.append(Outgoing(key, cut, of))
            log.covered = cut.hi

    def request(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """Take what the root requests: directives, the content of segments, or values."""
        directive, asks = (tables.get(name) for name in (self.form.name, f"{self.form.name}|ask"))
        size = len(self.form.keys)
        for row in directive.select(*self.form.directive).iter_rows() if directive is not None else ():
            key, fresh = row[:size], Directive(*row[size:])
            log = self._log_of(key)
            before = log.directive
            if (fresh.position, fresh.kept) < (before.position, before.kept):
                continue  # it has been overtaken
            log.directive = fresh
            log.forget(fresh.kept)
            self._forget_multisets(key, fresh.kept)
            log.answered = {one for one in log.answered if one[0] >= fresh.cut}
            if fresh.rewind > before.rewind and log.covered > fresh.cut:
                self._again(key, log, max(fresh.cut, log.start))
        for row in asks.select(*self.form.ask).iter_rows() if asks is not None else ():
            self._answer(row[:size], *row[size:])
        wanted = [name for name in self.multisets.schema.requests if name in tables]
        self.multisets.request({name: self.form.with_plain_keys(tables[name]) for name in wanted})

    def forget(self) -> None:
        """Nothing is needed any more."""
        self._segments = []
        for key, log in self.by_key.items():
            log.covered = log.top
            log.forget(log.top)
            self._forget_multisets(key, log.top)

    def _again(self, key: Key, log: OrderedLog, rank: int) -> None:
        """Cut everything from a rank on again."""
        self._segments = [one for one in self._segments if one.key != key]
        log.answered.clear()
        log.covered = rank
        self._cut(key, log, log.directive.scheme, True, (rank, ANEW))

    def _answer(self, key: Key, lo: int, hi: int, what: Literal["events", "slice", "more"]) -> None:
        """Cut the answer to a request about the ranks from lo to hi: its events; or one slice; or, of `more`, what is
        held back, as sub-slices.

        Many events are answered by sub-slices, of which the root then requests the few that matter. What lies before
        the last boundary is left out, and a request is answered once: the answer is on its way until the boundary
        moves past it. `of` keeps the ranks as they were requested, by which the root finds what is replaced.
        """
        log = self.by_key.get(key)
        since = 0 if log is None else max(log.start, log.directive.cut)
        if log is None or hi < since or (lo, hi, what) in log.answered:
            return
        log.answered.add((lo, hi, what))
        of: RankRange = lo, hi
        kind: Kind = "slice"
        lo, size = max(lo, since), hi - lo
        if what == "more":  # what it holds back
            lo, hi, of, size = log.covered, log.top, NEW, log.directive.sub_slice
            log.covered = log.top
        elif hi > log.covered or lo >= hi:
            return
        elif what == "events" and hi - lo > AT_ONCE:
            size = min(AT_ONCE, sub_slice(hi - lo, self.form.event_bytes, len(self.form.segments)))
        else:
            kind = what
        for begin in range(lo, hi, size):
            self._segments.append(Outgoing(key, Cut(begin, min(begin + size, hi), kind), of))

    def give_all(self) -> None:
        """The node goes: send all events after the last boundary, so that nothing is left to be requested."""
        for key, log in self.by_key.items():
            if log.size:
                self._segments = [one for one in self._segments if one.key != key]
                self._segments.append(Outgoing(key, Cut(log.start, log.top, "events"), (log.start, ANEW)))
                log.covered = log.top

    def tables(self) -> Tables:
        """What is to be sent."""
        form = self.form
        tables = self._made() | self.multisets.tables()
        for log in self.by_key.values():
            if not SCHEMES[log.directive.scheme].is_exact:  # nothing is asked of it, and of some nodes nothing expected
                log.covered = log.covered if log.directive.share > 0 else log.top
                log.forget(log.covered)
        reach = {}
        for key, log in self.by_key.items():
            next_ = log.time_at(log.covered, form.time) if log.covered < log.top else None
            if self.reported_reach.get(key, INT64_MIN) != next_:
                reach[key] = self.reported_reach[key] = next_
        if reach:
            rows = [(*key, self.node, next_) for key, next_ in reach.items()]
            tables[f"{form.name}|reach"] = pl.DataFrame(rows, schema=form.reach, orient="row")
        return tables

    def _made(self) -> Tables:
        """The segments, and the events of those that are sent as they are."""
        form, rows = self.form, []
        events: dict[str, list[pl.DataFrame]] = {"events": [], "slice": [], "count": []}
        for key, cut, of in self._segments:
            inside = self.by_key[key].between(cut.lo, cut.hi)
            time = inside[form.time]
            rows.append((*key, self.node, cut.lo, cut.hi, int(time[0]), int(time[-1]), cut.kind, *of))
            events[cut.kind].append(inside)
        if not rows:
            return {}
        self._segments = []
        table = pl.DataFrame(rows, schema=form.plain, orient="row")
        if events["slice"]:
            sizes = np.array([inside.height for inside in events["slice"]])
            states = form.sliced(pl.concat(events["slice"]), np.cumsum(sizes) - sizes)
            is_slice = table["kind"] == "slice"
            row = pl.when(is_slice).then(is_slice.cum_sum() - 1)  # of its states
            table = table.with_columns(states.select(pl.all().gather(table.select(row).to_series())))
        raw = {f"{form.name}|events": pl.concat(events["events"]).select(*form.sent)} if events["events"] else {}
        return {f"{form.name}|segments": table, **raw}

    # --- what is kept ---------------------------------------------------------------------------------------------

    @property
    def kept(self) -> int:
        """Final events that are kept."""
        return sum(log.size for log in self.by_key.values())

    @property
    def room(self) -> int:
        """So many may be kept: the events of two windows are enough for the root to settle one."""
        return (2 * self.form.boundaries.widest + self.form.lasting + 100_000) * max(1, len(self.by_key))

    @property
    def oldest(self) -> int:
        """Events older than this are not needed any more."""
        times = (log.time_at(log.start, self.form.time) for log in self.by_key.values() if log.size)
        return min([self.buffer.oldest, *times])

    def saved(self, lasting: bool) -> Any:
        """How far each key is; unless the source is `lasting`, none of its events comes again."""
        rows = [(*key, *self._place(key, base, lasting)) for key, base in self.base.items()]
        if not self.form.keys:
            return rows
        names = {**self.form.keys, **dict.fromkeys(("base", "covered", "cut", "kept"), pl.Int64())}
        return to_text(pl.DataFrame(rows, schema=names, orient="row"))

    def _place(self, key: Key, base: int, lasting: bool) -> tuple[int, int, int, int]:
        log = self.by_key.get(key)
        if log is None:
            return (base,) * 4
        if not lasting:
            return (log.covered,) * 4
        return base, log.covered, max(log.start, min(log.directive.cut, log.top)), log.start

    def restore(self, saved: Any) -> None:
        """Go on where a batch has left off; the events come again."""
        for *key, base, covered, cut, kept in saved if not self.form.keys else from_text(saved).iter_rows():
            self.base[tuple(key)] = base
            directive = self.form.first._replace(cut=cut, kept=kept)
            self.by_key[tuple(key)] = OrderedLog(base, covered, directive, self._no_events)


class Counted:
    """All counted groups of a local node."""

    def __init__(self, job: Job, node: str, lateness: int, eager: bool, block_size: int | None = None) -> None:
        self._node, self._lateness, self._eager, self._block_size = node, lateness, eager, block_size
        self._groups = self._logs_of(job)
        self._time = time_name(job.time)
        self.newest = INT64_MIN  # of what was taken
        self._floors: list[tuple[int, int]] = []  # from the n-th event on, none older than a time is taken
        self.late = 0  # events that were too late, and that the root has not counted yet
        self.is_idle = False
        self.final = INT64_MIN  # what was not sent is not older

    def _logs_of(self, job: Job) -> dict[str, OrderedLogs]:
        return {form.name: OrderedLogs(form, self._node, self._block_size) for form in forms_of(job)}

    def __bool__(self) -> bool:
        return bool(self._groups)

    @property
    def is_full(self) -> bool:
        """Whether it has to wait for the root."""
        return any(logs.kept > logs.room for logs in self._groups.values())

    @property
    def oldest(self) -> int:
        """Events that are older need not be read again."""
        if self._eager:
            return INT64_MAX
        return min((logs.oldest for logs in self._groups.values()), default=INT64_MAX)

    def take(self, events: pl.DataFrame, again: int) -> dict[str, pl.DataFrame]:
        """Prepared events of the source, those before the position `again` once more; returns how many are counted."""
        time, nth = events[self._time].to_numpy(), events["nth"].to_numpy()
        keep = self._in_time(time, nth)
        self.late += int((~keep & (nth >= again)).sum())
        self.newest, self.is_idle = max(self.newest, int(time.max())), False
        chosen = events if keep.all() else events.filter(pl.Series(keep))
        return {name: logs.take(chosen) for name, logs in self._groups.items()}

    def _in_time(self, time: Ints, nth: Ints) -> Mask:
        before = np.maximum.accumulate(np.append(self.newest, time[:-1]))
        floor = np.where(before > INT64_MIN + self._lateness, before - self._lateness, INT64_MIN)
        for since, least in self._floors:
            floor = np.where(nth >= since, np.maximum(floor, least), floor)
        return np.asarray(time >= floor)

    def due(self, occasion: Occasion) -> Tables:
        """The segments that are to be sent; a node that rests, leaves or has ended has everything in order."""
        if not self._groups:
            return {}
        rests, leaves = occasion.rests, occasion.leaves
        if (rests or leaves) and self.newest > INT64_MIN:
            self._floors.append((occasion.read, self.newest + 1))
            self.final = max(self.final, self.newest + 1)
        self.final = INT64_MAX if occasion.has_ended else max(self.final, occasion.watermark)
        self.is_idle |= rests
        tables: Tables = {}
        for logs in self._groups.values():
            logs.finish(self.final)
            if leaves:
                logs.give_all()
            else:
                logs.cut(self.final, occasion.flushes or rests, self._eager)
            tables |= logs.tables()
        return tables

    @property
    def _directives(self) -> Iterator[Directive]:
        return (log.directive for logs in self._groups.values() for log in logs.by_key.values())

    @property
    def rewound(self) -> int:
        """The last rewind that was followed."""
        return max((directive.rewind for directive in self._directives), default=0)

    @property
    def patience(self) -> int:
        """How far `final` may be ahead of what the root knows of it."""
        return max((directive.patience for directive in self._directives), default=0)

    def request(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """Take a request of the root."""
        for logs in self._groups.values():
            logs.request(tables)

    def forget(self) -> None:
        """Nothing is needed any more."""
        for logs in self._groups.values():
            logs.forget()

    def switch(self, job: Job) -> None:
        """Go on with another plan."""
        before = self._groups
        self._groups = self._logs_of(job)
        for name, logs in self._groups.items():
            if name in before:
                logs.go_on(before[name])

    # --- where it is in the source --------------------------------------------------------------------------------

    def passed(self, counts: Mapping[str, pl.DataFrame]) -> None:
        """So many events of each key, at the beginning of what would be read again, are not needed any more."""
        for name, table in counts.items():
            if name in self._groups and not self._eager:
                base = self._groups[name].base
                for *key, count in table.iter_rows():
                    base[tuple(key)] = base.get(tuple(key), 0) + count

    def saved(self, newest: int, count: int) -> dict[str, Any]:
        """For the position of a batch: what a later life has to know that reads from an event on."""
        older = [one for one in self._floors if one[0] <= count]
        self._floors = [*older[-1:], *(one for one in self._floors if one[0] > count)]
        buffered = {name: logs.buffer.frame() for name, logs in self._groups.items() if self._eager}
        return {
            "newest": newest,
            "floors": self._floors,
            "logs": {name: logs.saved(not self._eager) for name, logs in self._groups.items()},
            "final": self.final,
            "buffered": {name: to_text(events) for name, events in buffered.items() if events is not None},
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        self.newest, self.final = saved["newest"], saved["final"]
        self._floors = [(since, least) for since, least in saved["floors"]]
        for name, logs in self._groups.items():
            if name in saved["logs"]:
                logs.restore(saved["logs"][name])
            if name in saved["buffered"]:
                logs.restore_buffer(from_text(saved["buffered"][name]))
