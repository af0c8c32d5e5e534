"""Assembly: slices and a watermark become results.

Rows of the slice table are sorted by (key, slice); a window of a key is an index range [lo, hi) of them. First all
due windows of all queries are listed as such ranges, then each operator combines its ranges (see `ranges`), then each
signature turns states into columns, and only at the end are rows written out per query. Everything is one array
operation over all keys and windows at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import numpy.typing as npt
import polars as pl

from windrow.core.arrays.dataframes import run_numbers
from windrow.core.arrays.range_queries import Ints, ramp, run_begins
from windrow.core.assemble.answers import Answers, SharedProjection, projections_of
from windrow.core.assemble.sessions import Runs, Sessions
from windrow.core.expressions.parse import Expression
from windrow.core.operators.base import Combined
from windrow.core.plan.groups import ROWS, Group, Partial, Timeline
from windrow.core.slices.custom_edges import Irregular
from windrow.core.slices.table import SliceSchema
from windrow.core.windows.fixed import FURTHEST, INT64_MAX, INT64_MIN, FixedWindow, Grid

PAIRS = 2**16  # of a lattice and a row that are looked at together, if one lattice has no more


class Keys:
    """Keys by their number."""

    def __init__(self, keys: pl.DataFrame) -> None:
        self.keys = keys

    def keys_at(self, key: Ints) -> pl.DataFrame:
        """The key columns for key numbers; without keys, a frame without columns."""
        return self.keys[key] if self.keys.width else self.keys


class Rows(Keys):
    """A slice table sorted by (key, slice), and where each key's rows are."""

    def __init__(self, table: pl.DataFrame, schema: SliceSchema) -> None:
        self.table, self.schema = table, schema
        self.start = table["slice_start"].to_numpy()
        self.key, self.keys, self.key_count = _numbered(table, list(schema.keys))

    def __len__(self) -> int:
        return len(self.start)

    @cached_property
    def ranks(self) -> tuple[Ints, Ints | None]:
        """The distinct slice starts, and (key, rank of start) of each row as one number; None if no row is missing."""
        distinct = np.unique(self.start)
        if len(distinct) * self.key_count == len(self) and self.key_count == 1:
            return distinct, None
        numbers = self.key * (len(distinct) + 1) + np.searchsorted(distinct, self.start)
        full = len(distinct) * self.key_count == len(self) and bool((numbers[1:] > numbers[:-1]).all())
        return distinct, None if full else numbers

    def first_at(self, key: Ints, time: Ints) -> Ints:
        """The first row of each key whose slice starts at or after a time."""
        distinct, numbers = self.ranks
        rank = np.searchsorted(distinct, time, "left")
        if numbers is None:
            return key * len(distinct) + rank
        return np.searchsorted(numbers, key * (len(distinct) + 1) + rank, "left")

    @cached_property
    def runs(self) -> Runs:
        first, last = (self.table[name].to_numpy() for name in ("first", "last"))
        return Runs(self.key, self.start, first, last)

    def first_order(self) -> Ints:
        """The rows by (key, first): late runs, and runs cut under other plans, can lie within others."""
        position = [] if self.schema.lines is None else ["position"]
        return self.table.select(pl.arg_sort_by(*self.schema.keys, "first", "last", *position)).to_series().to_numpy()

    def by_first(self) -> Rows:
        return Rows(self.table[self.first_order()], self.schema)


def _numbered(table: pl.DataFrame, keys: list[str]) -> tuple[Ints, pl.DataFrame, int]:
    """The number of each row's key, from 0 in the order of the sorted table; the keys; how many they are."""
    if not keys:
        return np.zeros(table.height, np.int64), pl.DataFrame(), min(1, table.height)
    number = run_numbers(table, keys)
    firsts = np.flatnonzero(run_begins(number))
    return number, table.select(keys)[firsts], len(firsts)


@dataclass(frozen=True)
class Lattices:
    """Every lattice of a group's fixed windows, as arrays; its windows start from `since` on and before `until`."""

    period: Ints
    phase: Ints
    length: Ints
    since: Ints  # INT64_MIN for all
    until: Ints  # INT64_MAX for all
    timeline: Ints

    @staticmethod
    def of(group: Group) -> Lattices:
        rows = [
            (*lattice, timeline.since, timeline.until, number)
            for timeline, number in group.timelines.items()
            if isinstance(timeline.window, FixedWindow)
            for lattice in timeline.window.lattices()
        ]
        return Lattices(*np.array(rows, np.int64).reshape(-1, 6).T)

    def __len__(self) -> int:
        return len(self.period)

    def take(self, chosen: npt.NDArray[np.generic]) -> Lattices:
        return Lattices(*(getattr(self, name)[chosen] for name in Lattices.__dataclass_fields__))

    @property
    def starts(self) -> Grid:
        """Where windows start; the k of a start is the number of its window."""
        return Grid(self.period, self.phase)

    @property
    def ends(self) -> Grid:
        """Where windows end; the window of number k ends at the grid time of k."""
        return Grid(self.period, self.phase + self.length)

    def any_end(self, after: int, upto: int) -> bool:
        """Whether a window ends after one time and at or before another."""
        if after == INT64_MIN or upto == INT64_MAX:
            return bool(len(self))
        return bool((self.ends.number(upto) > self.ends.number(after)).any())

    def horizon(self, final_before: int) -> int:
        """The start of the earliest window that is not final; no slice before it is needed."""
        if not len(self):
            return INT64_MAX
        after = np.maximum(final_before, -2 * FURTHEST + self.length + self.phase)  # differences stay in 64 bits
        starts = self.starts.after(after - self.length)
        first = self.starts.at_or_after(np.maximum(self.since, -FURTHEST))
        starts = np.where(self.since > INT64_MIN, np.maximum(starts, first), starts)
        return int(np.where(starts < self.until, starts, INT64_MAX).min())

    def around(self, times: Ints) -> tuple[Ints, Ints]:
        """The starts of the earliest and the latest window that holds a time: earliest > latest where none does.

        A window holds it if time - length < start ≤ time. `times` has a row for each time, the answers a column more
        for each lattice.
        """
        earliest = np.maximum(
            self.starts.after(times - self.length), self.starts.at_or_after(np.maximum(self.since, times - self.length))
        )
        return earliest, self.starts.at_or_before(np.minimum(times, self.until - 1))

    def numbers(self, low: int, high: int, after: int, upto: int) -> tuple[Ints, Ints]:
        """The first and the last number of the windows that are due and may hold one of the times from low to high.

        Window k is the range [start, end) with the k-th grid times of `starts` and `ends`. It is due if after < end ≤
        upto, it lives if since ≤ start < until, and it may hold such a time if low < end and start ≤ high. All are
        bounds of start or end, and both rise with k, so that each bounds k on one side: the greatest lower and the
        least upper bound are the answer.
        """
        since = np.maximum(self.since, low - self.length - self.period)  # earlier windows end before `low`
        first = np.maximum(self.starts.number_from(since), self.ends.number(max(after, low)) + 1)
        last = self.starts.number(np.minimum(self.until, high + 1) - 1)
        return first, np.minimum(last, self.ends.number(np.minimum(upto, high + self.length)))  # in 64 bits


@dataclass(frozen=True)
class Windows:
    """Windows of keys as ranges of rows; a column for each."""

    timeline: Ints
    key: Ints
    start: Ints
    end: Ints
    lo: Ints
    hi: Ints
    lead: Ints  # up to this row lie the events that a query that is being removed still has to answer
    position: Ints | None = None  # of the first event of a counting window, -1 for any other; None if all are others

    def take(self, chosen: npt.NDArray[np.generic]) -> Windows:
        bounds = {name: getattr(self, name)[chosen] for name in _COLUMNS}
        return Windows(**bounds, position=None if self.position is None else self.position[chosen])

    def lines(self, group: Group) -> pl.Series:
        lines = pl.Series("line", [timeline.line for timeline in group.timelines], dtype=pl.String)
        return lines.gather(self.timeline)

    @staticmethod
    def join(parts: Iterable[Windows]) -> Windows:
        chunks = list(parts)
        if len(chunks) == 1:
            return chunks[0]
        nothing = np.empty(0, np.int64)
        bounds = {name: np.concatenate([nothing, *(getattr(part, name) for part in chunks)]) for name in _COLUMNS}
        if all(part.position is None for part in chunks):
            return Windows(**bounds)
        places = [np.full(len(part.lo), -1) if part.position is None else part.position for part in chunks]
        return Windows(**bounds, position=np.concatenate(places))


_COLUMNS = ("timeline", "key", "start", "end", "lo", "hi", "lead")


def due(rows: Rows, lattices: Lattices, after: int, upto: int) -> Windows:
    """The windows with a row in them that end after one time and at or before another.

    Each lattice has two ways to list its windows: of every key all that are due (`_by_range`), or for every row those
    that it is the first row of (`_by_row`). The first looks at keys × windows, the second at rows, and the cheaper one
    is taken: at most a step per row and lattice, and no look at the empty windows of a pause. Only rows count from the
    earliest window that is due on: lattices are grouped by how far that one reaches back, in powers of two, so that
    long windows do not make short ones look at old rows, and rows are not looked through once per lattice.
    """
    times = rows.start[rows.start > INT64_MIN]
    if not len(times) or not len(lattices):
        return Windows.join([])
    low, high = int(times.min()), int(times.max())
    first, last = lattices.numbers(low, high, after, upto)
    count = np.maximum(last - first + 1, 0)
    earliest = lattices.starts.time(first)
    reach = np.frexp((high - earliest + 1).astype(np.float64))[1]  # about log2 of how far a lattice reaches back
    parts = []
    for magnitude in np.unique(reach[count > 0]):
        chosen = np.flatnonzero((count > 0) & (reach == magnitude))
        recent = np.flatnonzero(rows.start >= earliest[chosen].min())
        keys = rows.key[recent]
        keys = keys[run_begins(keys)]
        by_range = count[chosen] * len(keys) <= max(len(recent), 64)
        parts.append(_by_range(rows, lattices, chosen[by_range], first, count, keys))
        rest, most = chosen[~by_range], max(1, PAIRS // len(recent))
        parts += [
            _by_row(rows, lattices, rest[part : part + most], first, last, recent) for part in range(0, len(rest), most)
        ]
    return Windows.join(parts)


def _by_range(rows: Rows, lattices: Lattices, chosen: Ints, first: Ints, count: Ints, keys: Ints) -> Windows:
    """All windows between two times, for every key that has rows there; empty ones fall out at the end."""
    of = np.repeat(chosen, count[chosen])
    start = Grid(lattices.period[of], lattices.phase[of]).time(first[of] + ramp(count[chosen]))
    key = np.tile(keys, len(of))
    return _ranged(rows, lattices, np.repeat(of, len(keys)), key, np.repeat(start, len(keys)))


def _by_row(rows: Rows, lattices: Lattices, chosen: Ints, first: Ints, last: Ints, recent: Ints) -> Windows:
    """For each row the windows of some lattices that it is the first row of.

    Those are the windows that hold it, start - length < window start ≤ start, and not the row before it of its key,
    which starts before the window does. What is computed has a line for each lattice and a column for each row.
    """
    at = chosen[:, None]
    starts, length = Grid(lattices.period[at], lattices.phase[at]), lattices.length[at]
    nothing = -FURTHEST - length - 1  # before every window
    start = np.maximum(rows.start[recent], nothing)
    before = np.where(run_begins(rows.key[recent]), nothing, np.roll(start, 1, axis=1))
    from_ = np.maximum(starts.number(np.maximum(before, start - length)) + 1, first[at])
    count = np.maximum(np.minimum(starts.number(start), last[at]) - from_ + 1, 0).ravel()
    pair = np.repeat(np.arange(len(count)), count)
    of, row = chosen[pair // len(recent)], recent[pair % len(recent)]
    begin = Grid(lattices.period[of], lattices.phase[of]).time(from_.ravel()[pair] + ramp(count))
    return _ranged(rows, lattices, of, rows.key[row], begin, row)


def _ranged(rows: Rows, lattices: Lattices, of: Ints, key: Ints, start: Ints, lo: Ints | None = None) -> Windows:
    """Windows of lattices, by key and start, as ranges of rows; those without a row are left out."""
    end = start + lattices.length[of]
    lo = rows.first_at(key, start) if lo is None else lo
    hi = lead = rows.first_at(key, end)
    until = lattices.until[of]
    if (until < end).any():
        lead = rows.first_at(key, np.minimum(until, end))
    windows = Windows(lattices.timeline[of], key, start, end, lo, hi, lead)
    empty = hi <= lo
    return windows.take(~empty) if empty.any() else windows


def due_irregular(rows: Rows, irregular: Irregular, after: int, upto: int) -> Windows:
    """The same for windows whose bounds lie on no lattice."""
    timeline, row, start, end, until = irregular.due(rows.ranks[0], (rows.key, rows.start), after, upto)
    key = rows.key[row]
    lead = rows.first_at(key, np.minimum(until, end))
    return Windows(timeline, key, start, end, row, rows.first_at(key, end), lead)


class Assembler:
    """Lowers windows of a group to answers. Prepared once per plan."""

    def __init__(self, group: Group, irregular: Irregular) -> None:
        self.group = group
        self.timelines: Sequence[Timeline] = list(group.timelines)
        self.lattices, self.irregular = Lattices.of(group), irregular
        self._projections = projections_of(group)
        self._users: dict[Partial, list[SharedProjection]] = {}
        for projection in self._projections:
            for of in projection.partials:
                self._users.setdefault(of, []).append(projection)

    def due(self, rows: Rows, after: int, upto: int) -> Windows:
        """The windows with a row in them that end after one time and at or before another."""
        windows = due(rows, self.lattices, after, upto)
        return Windows.join([windows, due_irregular(rows, self.irregular, after, upto)]) if self.irregular else windows

    def any_end(self, after: int, upto: int) -> bool:
        """Whether a window may end after one time and at or before another."""
        return self.lattices.any_end(after, upto) or self.irregular.any_end(after, upto)

    def horizon(self, rows: Rows, final_before: int) -> int:
        """The start of the earliest window that is not final; no row before it is needed."""
        return min(self.lattices.horizon(final_before), self.irregular.horizon(rows.start, final_before))

    def queries_of(self, timeline: int, ordered: bool | None = None) -> Ints:
        """All queries that ask for a timeline, or only those whose aggregates do or do not need the order."""
        chosen = (part for part in self._projections if ordered in (None, part.needs_order))
        return np.concatenate([np.empty(0, np.int64), *(part.queries_of(timeline) for part in chosen)])

    def counts(self, rows: Rows, windows: Windows, where: Expression | None, upto: Ints | None = None) -> Ints:
        """How many events that satisfy a filter each window holds."""
        rows_of = Partial(ROWS, where)
        state = rows.schema.state(rows.table, rows_of)
        combined = rows_of.operator.combine(state, windows.lo, windows.hi if upto is None else upto)
        return combined["count"].to_numpy()  # type: ignore[index,no-any-return]

    def answers(
        self,
        rows: Rows,
        windows: Windows,
        keep: Mapping[Expression | None, npt.NDArray[np.bool_]] | None = None,
        ordered: bool | None = None,
    ) -> Iterator[Answers]:
        """Answer windows for every query that asks for them.

        `keep` says for each filter which windows to answer; by default those with an event that satisfies it before
        `lead`, because a query that is being removed only answers windows with an event from before its removal. With
        `ordered`, only aggregates that do (or do not) need the order are answered.
        """
        if not len(windows.lo):
            return
        full = keep
        if full is None:
            full = {where: self.counts(rows, windows, where, windows.lead) > 0 for where in self.group.filters}
        combined: dict[Partial, tuple[Combined, Ints]] = {}
        for projection in self._projections:
            if ordered not in (None, projection.needs_order) or projection.where not in full:
                continue
            chosen = full[projection.where]
            if not projection.wanted.all():
                chosen = chosen & projection.wanted[windows.timeline]
            index = np.flatnonzero(chosen)
            if len(index):
                state = partial(self._state, rows, windows, full, combined, index)
                yield projection.answers(index, windows.timeline[index], state)

    def _state(
        self,
        rows: Rows,
        windows: Windows,
        full: Mapping[Expression | None, npt.NDArray[np.bool_]],
        combined: dict[Partial, tuple[Combined, Ints]],
        index: Ints,
        of: Partial,
    ) -> Combined:
        """An operator's states for some windows, combined once for all whose queries need it: `combined` keeps them."""
        if of not in combined:
            wanted = np.zeros(len(windows.lo), np.bool_)
            for where in full.keys() & {projection.where for projection in self._users[of]}:
                timelines = np.logical_or.reduce(
                    [projection.wanted for projection in self._users[of] if projection.where == where]
                )
                wanted |= full[where] if timelines.all() else full[where] & timelines[windows.timeline]
            lo, hi = (windows.lo, windows.hi) if wanted.all() else (windows.lo[wanted], windows.hi[wanted])
            combined[of] = of.operator.combine(rows.schema.state(rows.table, of), lo, hi), np.cumsum(wanted)
        state, counts = combined[of]  # how many states there are up to each window
        return state if len(index) == counts[-1] else state.take(counts[index] - 1)


def session_windows(timeline: int, of_gap: Sessions) -> Windows:
    """The sessions of one timeline, given by its number, as windows."""
    timelines = np.full(len(of_gap.lo), timeline)
    return Windows(timelines, of_gap.key, of_gap.first, of_gap.end, of_gap.lo, of_gap.hi, of_gap.hi)
