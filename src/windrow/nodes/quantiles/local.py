"""A local node's side of quantiles: bags stay here, a synopsis of them travels, and the values that the root asks for.

    slices that are sent ── a bag of many values ──▶ kept here, its units are sent    ──▶ until the root has settled it
                         ── any other ──▶ travels whole

What is kept is kept in memory. After a crash it is made again from the source, event by event: each event was sent at
the first **send** that had read it, and whose slices reached past it. So that a later life knows which, a batch says
of each send how many events had been read, and before which time slices were sent.

          sends       1          2              3
    ──────────────────┼──────────┼──────────────┼─────▶ position in the source
                       an event here, of a slice that was still open at 2, was sent with 3
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from windrow.core.arrays.range_queries import Ints
from windrow.core.operators.multiset import flat, lists
from windrow.core.slices.kernel import filter_name, time_name
from windrow.core.slices.table import BAGS
from windrow.core.stream.job import Job
from windrow.core.stream.job_slicer import Tables
from windrow.core.windows.fixed import INT64_MAX
from windrow.nodes.quantiles.protocol import bag_of, steps_of, units_of
from windrow.nodes.quantiles.tables import NODES, REFINING, TimeForm, forms_of

MOST = 8_000_000  # values that are kept; beyond, bags travel whole
SELDOM = 32  # so often a node is silent that has ended, and waits to be let go, before it says so
MANY = 4096  # sends that a batch tells of; beyond, too


class Send(NamedTuple):
    """Slices that were sent together."""

    number: int
    read: int  # events that had been read
    bound: int  # slices that begin before this were sent
    keeps: int  # 1 if bags of it were kept


class Kept(NamedTuple):
    """A bag that the root may ask for."""

    start: int  # none of its events is older
    values: pl.Series
    counts: pl.Series
    step: int


@dataclass
class Synopses:
    """One refined group at a local node."""

    form: TimeForm
    node: str
    unit: int | None
    sends: list[Send] = field(default_factory=list)
    number: int = 0  # of the last send
    kept: dict[tuple[str, int, int], Kept] = field(default_factory=dict)  # by bag, send and row
    again: dict[int, list[pl.DataFrame]] = field(default_factory=dict)  # events of sends of an earlier life
    answered: set[tuple[str, int, int, int]] = field(default_factory=set)
    out: dict[str, list[tuple[int, int, int, pl.Series, pl.Series]]] = field(default_factory=dict)

    # --- what is sent ---------------------------------------------------------------------------------------------

    def thinned(self, table: pl.DataFrame, count: int, bound: int, whole: bool) -> Tables:
        """Slices that are to be sent, and the units of bags that stay here."""
        form, found, rows = self.form, Tables(), np.zeros(table.height, np.bool_)
        self.number += 1
        start, end = form.times(table)
        for bag in () if whole or len(self.sends) >= MANY or self.size > MOST else form.bags:
            names = form.columns(bag)
            values, sizes = flat(table[names[0]])
            counts = flat(table[names[1]])[0]
            step = self._steps(bag, sizes, counts.to_numpy())
            thin = step > 0
            if not thin.any():
                continue
            rows |= thin
            inside = pl.Series(np.repeat(thin, sizes))
            for row in np.flatnonzero(thin).tolist():
                one = Kept(int(start[row]), table[names[0]][row], table[names[1]][row], int(step[row]))
                self.kept[bag, self.number, row] = one
            units = units_of(values.filter(inside), counts.filter(inside), sizes[thin], step[thin])
            place = {"row": np.arange(table.height), "start": start, "end": end, "step": step, "entries": sizes}
            chosen = table.select(*form.keys, **{name: pl.Series(column) for name, column in place.items()})
            chosen = chosen.filter(pl.Series(thin)).with_columns(
                units, node=pl.lit(self.node), send=pl.lit(self.number, pl.Int64())
            )
            found[f"{form.name}|units {bag}"] = chosen.select(*form.units(bag))
            left = np.where(thin, 0, sizes)
            table = table.with_columns(
                lists(values.filter(~inside), left).alias(names[0]), lists(counts.filter(~inside), left).alias(names[1])
            )
        self._note(Send(self.number, count, bound, int(rows.any())))
        table = table.with_columns(self._named(rows)) if rows.any() else table.drop(BAGS)
        return {form.name: table, **found}

    def _steps(self, bag: str, sizes: Ints, counts: Ints) -> Ints:
        """The size of the units of each bag, 0 for those that travel whole."""
        asked = self.form.asked(bag)
        once = np.add.reduceat(np.append(counts, 0), np.cumsum(sizes) - sizes) == sizes
        return steps_of(sizes, once, asked, self.unit)

    def _named(self, rows: Any) -> pl.Series:
        """The column that says of slices which of their bags are here."""
        at = np.flatnonzero(rows)
        names = pl.DataFrame({"row": at}).select(
            node=pl.lit(self.node), send=pl.lit(self.number, pl.Int64()), row=pl.col("row").cast(pl.Int64)
        )
        return lists(names.to_struct(BAGS), rows.astype(np.int64)).alias(BAGS)

    def _note(self, send: Send) -> None:
        """Of sends that keep nothing, the last of several that follow each other stands for all."""
        if self.sends and not (self.sends[-1].keeps or send.keeps):
            self.sends.pop()
        self.sends.append(send)

    # --- what is asked --------------------------------------------------------------------------------------------

    def hear(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """The root asks, and says what it will not ask for any more."""
        form = self.form
        for bag in form.bags:
            wanted = tables.get(f"{form.name}|wanted {bag}")
            for send, row, *key, start, end, lo, hi in (
                wanted.select(*form.wanted).iter_rows() if wanted is not None else ()
            ):
                self._answer(bag, send, row, tuple(key), start, end, lo, hi)
        settled = tables.get(f"{form.name}|settled")
        for send, start in settled.iter_rows() if settled is not None else ():
            self.forget(send, start)

    def _answer(
        self, bag: str, send: int, row: int, key: tuple[Any, ...], start: int, end: int, lo: int, hi: int
    ) -> None:
        if (bag, send, row, lo) in self.answered:
            return  # it is on its way
        self.answered.add((bag, send, row, lo))
        if (bag, send, row) not in self.kept and send in self.again:
            self.kept[bag, send, row] = self._remade(bag, send, key, start, end, hi - lo)
        one = self.kept.get((bag, send, row), self._nothing(bag))  # it was settled, or this node had gone since
        self.out.setdefault(bag, []).append((send, row, lo, one.values[lo:hi], one.counts[lo:hi]))

    def _nothing(self, bag: str) -> Kept:
        return Kept(INT64_MAX, pl.Series([], dtype=self.form.value_type(bag)), pl.Series([], dtype=pl.Int64()), 1)

    def _remade(self, bag: str, send: int, key: tuple[Any, ...], start: int, end: int, step: int) -> Kept:
        """A bag of an earlier life, from its events."""
        held, time = self.form.bags[bag], pl.col(time_name(self.form.group.source.time))
        chosen = [(time >= start) & (time < end)]
        chosen += [
            pl.col(name).eq_missing(pl.lit(value, dtype))
            for (name, dtype), value in zip(self.form.keys.items(), key, strict=True)
        ]
        where = self.form.group.source.where
        chosen += [pl.col(filter_name(where.text))] if where else []
        return Kept(start, *bag_of(pl.concat(self.again[send]).filter(*chosen), held), step)

    def forget(self, send: int, start: int) -> None:
        gone = [name for name, one in self.kept.items() if name[1] <= send and one.start < start]
        for name in gone:
            del self.kept[name]
        if gone:
            self.answered = {one for one in self.answered if one[:3] in self.kept}
        time = time_name(self.form.group.source.time)
        for number in [number for number in self.again if number <= send]:
            frames = [frame.filter(pl.col(time) >= start) for frame in self.again.pop(number)]
            if any(frame.height for frame in frames):
                self.again[number] = [frame for frame in frames if frame.height]

    def give_all(self) -> None:
        """The node goes: send all that might be asked for, but for what an earlier life has sent units of."""
        for (bag, send, row), one in self.kept.items():
            for lo in range(0, len(one.values), one.step):
                self._answer(bag, send, row, (), 0, 0, lo, lo + one.step)
        self.kept.clear()
        self.again.clear()

    def tables(self) -> Tables:
        """The answers that are to be sent."""
        found = Tables()
        for bag, several in self.out.items():
            *place, values, counts = zip(*several, strict=True)
            named = {"node": pl.Series([self.node]).new_from_index(0, len(several))}
            named |= {
                name: pl.Series(column, dtype=pl.Int64)
                for name, column in zip(("send", "row", "lo"), place, strict=True)
            }
            found[f"{self.form.name}|values {bag}"] = self.form.answer(bag, named, values, counts)
        self.out = {}
        return found

    # --- what is kept ---------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Values that are kept."""
        return sum(len(one.values) for one in self.kept.values())

    @property
    def oldest(self) -> int:
        """No event that is kept is older."""
        time = time_name(self.form.group.source.time)
        times = [one.start for one in self.kept.values()]
        times += [int(frame[time].min()) for frames in self.again.values() for frame in frames]  # type: ignore[arg-type]
        return min(times, default=INT64_MAX)

    def take_again(self, events: pl.DataFrame) -> None:
        """Events that an earlier life had read, and may have sent."""
        time, nth = events[time_name(self.form.group.source.time)].to_numpy(), events["nth"].to_numpy()
        left = np.ones(len(time), np.bool_)
        for number, read, bound, keeps in self.sends:
            mine = left & (nth < read) & (time < bound)
            left &= ~mine
            if keeps and mine.any():
                self.again.setdefault(number, []).append(events.filter(pl.Series(mine)))

    def saved(self, count: int) -> tuple[int, str]:
        """What a later life has to know that reads again from an event on: the sends since then."""
        self.sends = [send for send in self.sends if send.read > count]
        table = np.array(self.sends, np.int64).reshape(-1, 4)
        steps = np.diff(table, axis=0, prepend=np.zeros((1, 4), np.int64))
        return self.number, base64.b64encode(zlib.compress(steps.T.tobytes())).decode()

    def restore(self, saved: Any) -> None:
        self.number, text = saved
        steps = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.int64).reshape(4, -1).T
        self.sends = [Send(*row) for row in np.cumsum(steps, axis=0).tolist()]
        self.kept, self.again, self.answered, self.out = {}, {}, set(), {}


class Keeping:
    """All refined groups of a local node; an eager one keeps nothing, because its source cannot be read again."""

    def __init__(self, job: Job, node: str, eager: bool, unit: int | None) -> None:
        self._node, self._eager, self._unit = node, eager, unit
        self._groups = {name: Synopses(form, node, unit) for name, form in forms_of(job).items()}
        self._speaks = False  # whether it has ever kept something, so that the root has to know of it
        self._told: bool | None = None  # what the root knows
        self._waited = 0  # how often it was asked in vain what is to be sent, at the end of its source
        self._is_over = False  # nothing is needed of it any more

    def __bool__(self) -> bool:
        return bool(self._groups) and not self._eager

    def __contains__(self, name: str) -> bool:
        return name in self._groups and not self._eager

    @property
    def is_over(self) -> bool:
        """Whether the root will not ask anything."""
        return self._is_over or not self

    @property
    def oldest(self) -> int:
        return min((one.oldest for one in self._groups.values()), default=INT64_MAX)

    def thinned(self, name: str, table: pl.DataFrame, count: int, bound: int, whole: bool) -> Tables:
        """Slices of a group that are to be sent, and units of its bags."""
        return self._groups[name].thinned(table, count, bound, whole or self._is_over)

    def take_again(self, events: pl.DataFrame) -> None:
        for one in self._groups.values():
            one.take_again(events)

    def due(self, leaves: bool = False, ended: bool = False, flush: bool = False) -> Tables:
        """What is to be sent: answers, and whether something may be asked.

        A node that has ended and still keeps something says so now and then, in case it was told that it need not.
        """
        if not self:
            return {}
        found: Tables = {}
        for one in self._groups.values():
            if leaves:
                one.give_all()
            found |= one.tables()
        self._is_over |= leaves or (ended and self.oldest == INT64_MAX)
        self._waited += flush and ended
        reminds = flush and ended and (self._waited & (self._waited - 1) == 0 or self._waited % SELDOM == 0)
        self._speaks |= self.oldest < INT64_MAX
        if self._speaks and (self._told != self.is_over or (reminds and not self.is_over)):
            self._told = self.is_over
            found[REFINING] = pl.DataFrame([(self._node, self.is_over)], schema=NODES, orient="row")
        return found

    def hear(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """A request of the root."""
        for one in self._groups.values():
            one.hear(tables)
            if REFINING in tables:
                one.forget(one.number, INT64_MAX)
        self._is_over |= REFINING in tables

    def switch(self, job: Job) -> None:
        """Go on with another plan; bags of groups that it has, too, may still be asked for."""
        before = self._groups
        self._groups = {name: Synopses(form, self._node, self._unit) for name, form in forms_of(job).items()}
        for name, one in self._groups.items():
            if name in before:
                old = before[name]
                one.sends, one.number, one.kept, one.again = old.sends, old.number, old.kept, old.again
                one.answered, one.out = old.answered, old.out

    def saved(self, count: int) -> dict[str, Any]:
        return {"speaks": self._speaks, "groups": {name: one.saved(count) for name, one in self._groups.items()}}

    def restore(self, saved: Mapping[str, Any]) -> None:
        self._speaks = saved["speaks"]
        for name, one in saved["groups"].items():
            if name in self._groups:
                self._groups[name].restore(one)
