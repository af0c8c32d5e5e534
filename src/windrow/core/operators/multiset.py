"""Multisets: every value of a slice with its count, sorted; the state behind exact quantiles, mode and distinct.

A multiset is two list columns, `values` (sorted, each once; NaN last and equal to itself) and `counts`. Three things
can be done with multisets: count a sorted list of values (`counted`), bring several that were laid end to end into the
canonical form (`merged`), and find ranks, modes and numbers of values in many ranges of them (`MultisetRanges`).

Ranges that hold one multiset are read off directly. For others a few values part all into **buckets**, and how much
lies in each before every end of a range says in which bucket of a range a quantile is; only what the range has in that
one is sorted. Where ranges have too many ends for that, those that overlap little are laid out and sorted once, and for
those that overlap much, ranks come from a **wavelet matrix** over the values' ranks: one level per bit, each a stable
partition with prefix weights, so that a rank in a range costs one step per level however many multisets the range
holds. A mode has no such structure: it is counted per range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

from windrow.core.arrays.checks import ascends, laid_out, wrong_counts
from windrow.core.arrays.range_queries import CHUNK, Ints, ramp, run_begins

Doubles = npt.NDArray[np.float64]
LAYOUT_LIMIT = 8  # lay ranges out while that takes at most so many times the entries there are
FEWEST_BUCKETS, MOST_BUCKETS = 16, 4096  # fewer do not pay


def lists(flat: pl.Series, sizes: Ints) -> pl.Series:
    """A list column whose rows are consecutive parts of `flat`."""
    import pyarrow as pa  # Arrow's own constructor takes offsets; Polars has none

    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    inner = flat.to_arrow()
    buffers = [None, pa.py_buffer(offsets)]
    array = pa.Array.from_buffers(pa.large_list(inner.type), len(sizes), buffers, children=[inner])
    return pl.Series(flat.name, array).cast(pl.List(flat.dtype))


def flat(column: pl.Series) -> tuple[pl.Series, Ints]:
    """The values of a list column end to end, and the size of each list (0 for null and empty)."""
    sizes = column.list.len().fill_null(0).to_numpy().astype(np.int64)
    return column.filter(pl.Series(sizes) > 0).explode(), sizes


def _runs(values: pl.Series, sizes: Ints) -> Ints:
    """Where a new value or a new list begins, in lists that are sorted and laid end to end."""
    ends = np.cumsum(sizes)
    has_values = sizes > 0
    starts = np.empty(len(values), np.bool_)
    if (values.dtype.is_integer() or values.dtype.is_float()) and not _ends_in_nan(values, ends[has_values]):
        flat_values = values.to_numpy()
        np.not_equal(flat_values[1:], flat_values[:-1], out=starts[1:])
    else:
        starts[:] = (values != values.shift(1)).fill_null(True).to_numpy()
    starts[(ends - sizes)[has_values]] = True
    return np.flatnonzero(starts)


def _ends_in_nan(values: pl.Series, ends: Ints) -> bool:
    """Whether a sorted list holds NaN, which then is its last value."""
    return values.dtype.is_float() and bool(values.gather(ends - 1).is_nan().any())


def wrong_with(values: pl.Series, counts: pl.Series) -> str | None:
    """Why multisets that a stranger sends cannot be, as part of a sentence; None if they can."""
    (entries, sizes), (weights, others) = laid_out(values), laid_out(counts)
    if not np.array_equal(sizes, others):
        return "'values' and 'counts' are not as many"
    if entries.null_count() or weights.null_count():
        return "a value or a count is missing"
    if reason := wrong_counts({"counts": weights}):
        return reason
    if not weights.to_numpy().all():
        return "'counts' is 0"
    return None if ascends(entries, np.cumsum(sizes)) else "'values' are not in order, each once"


def counted(column: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Sorted lists of values → (values, counts)."""
    values, sizes = flat(column)
    starts = _runs(values, sizes)
    if len(starts) < len(values):
        owner = np.repeat(np.arange(len(sizes)), sizes)[starts]
        counts = np.diff(np.append(starts, len(values)))
        values, sizes = values.gather(starts), np.bincount(owner, minlength=len(sizes)).astype(np.int64)
    else:
        counts = np.ones(len(values), np.int64)
    return lists(values, sizes), lists(pl.Series(counts, dtype=pl.Int64), sizes)


def merged(values: pl.Series, counts: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Multisets laid end to end within each row → one multiset per row."""
    entries, sizes = flat(values)
    weights, _ = flat(counts)
    if entries.null_count():  # what an empty multiset leaves when it is laid end to end with others
        has_values = entries.is_not_null()
        owner = np.repeat(np.arange(len(sizes)), sizes)[has_values.to_numpy()]
        sizes = np.bincount(owner, minlength=len(sizes)).astype(np.int64)
        entries, weights = entries.filter(has_values), weights.filter(has_values)
    if int(weights.sum()) == len(weights):  # sorting a list that is made of sorted ones is cheap
        return counted(lists(entries, sizes).list.sort())
    owners = pl.Series("owner", np.repeat(np.arange(len(sizes)), sizes))
    table = pl.DataFrame({"owner": owners, "value": entries, "count": weights}).sort("owner", "value")
    starts = _runs(table["value"], sizes)
    sizes = np.bincount(table["owner"].to_numpy()[starts], minlength=len(sizes)).astype(np.int64)
    totals = np.add.reduceat(table["count"].to_numpy(), starts)
    return lists(table["value"].gather(starts), sizes), lists(pl.Series(totals, dtype=pl.Int64), sizes)


class _Multisets:
    """A column of multisets laid end to end, and what is computed once for all ranges of them."""

    def __init__(self, values: pl.Series, counts: pl.Series, separate: bool) -> None:
        """With `separate`, entries of one multiset are compared with nothing else."""
        self.values, sizes = flat(values)
        self.weights = flat(counts)[0].to_numpy()
        self.offsets = np.append(0, np.cumsum(sizes))
        self.separate = separate

    @cached_property
    def all_once(self) -> bool:
        """Whether every value of every multiset has the count 1."""
        return int(self.weights.sum()) == len(self.weights)

    @cached_property
    def reached(self) -> Ints:
        """The weight before each entry, and before the end."""
        reached = np.zeros(len(self.weights) + 1, np.int64)
        np.cumsum(self.weights, out=reached[1:])
        return reached

    @cached_property
    def doubles(self) -> Doubles:
        """The entries as doubles, for interpolation; no two change places."""
        return self.values.cast(pl.Float64).to_numpy()

    @cached_property
    def ranked(self) -> tuple[pl.Series, Ints]:
        """Every distinct value once, sorted, and the rank of each entry."""
        if self.separate:
            return self.values, np.arange(len(self.values))
        order = self.values.arg_sort().to_numpy()
        ordered = self.values.gather(order)
        starts = _runs(ordered, np.array([len(ordered)]))
        rank = np.empty(len(order), np.int64)
        rank[order] = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(order))))
        return ordered.gather(starts), rank

    @cached_property
    def lifted(self) -> Doubles:
        """The distinct values as doubles."""
        return self.ranked[0].cast(pl.Float64).to_numpy()

    @cached_property
    def wavelet(self) -> _Wavelet:
        distinct, rank = self.ranked
        return _Wavelet(rank, self.weights, max(1, int(len(distinct) - 1).bit_length()))


class MultisetRanges:
    """Ranges [lo, hi) over a column of multisets: their ranks, modes and numbers of values."""

    def __init__(self, values: pl.Series, counts: pl.Series, lo: Ints, hi: Ints) -> None:
        self._data = data = _Multisets(values, counts, separate=bool((hi - lo == 1).all()))
        self._lo, self._hi = data.offsets[lo], data.offsets[hi]
        self.total = self._hi - self._lo if data.all_once else data.reached[self._hi] - data.reached[self._lo]

    def take(self, index: Ints) -> MultisetRanges:
        """The same multisets, a choice of the ranges."""
        other = object.__new__(MultisetRanges)
        other._data, other._lo, other._hi = self._data, self._lo[index], self._hi[index]
        other.total = self.total[index]
        return other

    @cached_property
    def _layout(self) -> tuple[Ints, Ints, Ints]:
        """The ranks of all ranges, sorted within each; the weight up to and including each; and before each range."""
        sizes = self._hi - self._lo
        at = np.repeat(self._lo, sizes) + ramp(sizes)
        rank, weight = self._data.ranked[1][at], self._data.weights[at]
        if not self._data.separate:  # range and rank in one number: runs that are sorted, one for each multiset
            base = np.repeat(np.arange(len(sizes)) * len(self._data.ranked[0]), sizes)
            code = base + rank
            if self._data.all_once:
                code.sort(kind="stable")
            else:
                order = np.argsort(code, kind="stable")
                code, weight = code[order], weight[order]
            rank = code - base
        reached = np.cumsum(weight)
        return rank, reached, np.append(0, reached)[np.cumsum(sizes) - sizes]

    def _select(self, nth: Ints) -> Ints:
        """The rank of the nth value (from 0, repeats counted) of each range; a column per range, none empty."""
        if self._data.separate:
            if self._data.all_once:
                at = self._lo + nth
            else:
                at = np.searchsorted(self._data.reached[1:], self._data.reached[self._lo] + nth, "right")
            ranks: Ints = self._data.ranked[1][at]
            return ranks
        if "_layout" in self.__dict__ or int((self._hi - self._lo).sum()) <= LAYOUT_LIMIT * len(self._data.values):
            rank, reached, before = self._layout
            return rank[np.searchsorted(reached, before + nth, "right")]
        lo, hi = (np.broadcast_to(bound, nth.shape).ravel() for bound in (self._lo, self._hi))
        return self._data.wavelet.select(lo, hi, nth.ravel()).reshape(nth.shape)

    def quantiles(self, qs: Mapping[str, float]) -> pl.DataFrame:
        """A column for each q: linear interpolation between the values around q·(n-1), as Spark's `percentile`."""
        some = np.flatnonzero(self.total > 0)
        if not len(some):
            return pl.DataFrame(schema=dict.fromkeys(qs, pl.Float64)).clear(len(self.total))
        chosen = self if len(some) == len(self.total) else self.take(some)
        values = np.full((len(self.total), len(qs)), np.nan)
        wanted = np.array(list(qs.values()), np.float64)
        step = max(1, CHUNK // max(1, len(some)))
        for begin in range(0, len(qs), step):
            values[some, begin : begin + step] = chosen._interpolate(wanted[begin : begin + step]).T
        if len(qs) == 1:
            columns = pl.DataFrame(dict.fromkeys(qs, values[:, 0]))
        else:  # one array column that is taken apart, instead of a column at a time
            columns = pl.Series(values).arr.to_struct(fields=list(qs)).struct.unnest()
        if len(some) < len(self.total):
            columns = columns.with_columns(pl.when(pl.Series(self.total > 0)).then(pl.all()))
        return columns

    def _interpolate(self, qs: Doubles) -> Doubles:
        exact = qs[:, None] * (self.total - 1)
        below = np.floor(exact).astype(np.int64)
        share = exact - below
        low, high = self._doubles_at(np.stack((below, np.minimum(below + 1, self.total - 1))))
        with np.errstate(invalid="ignore"):
            values: Doubles = np.where((share == 0) | (low == high), low, low * (1 - share) + high * share)
        return values

    def _doubles_at(self, nth: Ints) -> Doubles:
        """The nth value (from 0, repeats counted) of each range as a double; a column per range, none empty."""
        if not self._data.separate:
            ends = np.unique((self._lo, self._hi))
            entries, size = int((self._hi - self._lo).sum()), len(self._data.values)
            looked_at = entries * nth.size // len(self.total)  # if it were one bucket
            buckets = min(int((4 * looked_at / len(ends)) ** 0.5), 4 * size // len(ends), MOST_BUCKETS)
            if buckets >= FEWEST_BUCKETS and min(looked_at // buckets, entries) <= LAYOUT_LIMIT * size:
                return _Buckets(self._data.doubles, self._data.weights, ends, buckets).select(self._lo, self._hi, nth)
        values: Doubles = self._data.lifted[self._select(nth)]
        return values

    def around(self, qs: Iterable[float]) -> npt.NDArray[np.bool_]:
        """Which entries of the multisets, laid end to end, hold a value that one of these quantiles is made of."""
        size = len(self._data.values)
        marks = np.zeros(size + 1, np.int64)
        some = np.flatnonzero(self.total > 0)
        if not len(some):
            return marks[:-1] > 0
        chosen = self.take(some)
        rank = self._data.ranked[1]
        order = np.lexsort((np.arange(size), rank))
        codes = rank[order] * (size + 1) + order  # sorted: by value, then by place
        for q in qs:
            below = np.floor(q * (chosen.total - 1)).astype(np.int64)
            for nth in (below, np.minimum(below + 1, chosen.total - 1)):
                value = chosen._select(nth) * (size + 1)
                np.add.at(marks, np.searchsorted(codes, value + chosen._lo, "left"), 1)
                np.add.at(marks, np.searchsorted(codes, value + chosen._hi, "left"), -1)
        wanted = np.empty(size, np.bool_)
        wanted[order] = np.cumsum(marks[:-1]) > 0
        return wanted

    def distinct(self) -> pl.Series:
        """How many different values each range holds."""
        counts = np.zeros(len(self.total), np.int64)
        for begin, owner, _, _ in self._chunks():
            counts[begin : begin + int(owner[-1]) + 1] += np.bincount(owner)
        return pl.Series(counts)

    def mode(self) -> pl.Series:
        """The most frequent value, the smallest of them where several are; null without values."""
        values, _ = self._data.ranked
        chosen = np.full(len(self.total), -1)
        for begin, owner, rank, weight in self._chunks():
            order = np.lexsort((rank, -weight, owner))
            firsts = order[np.unique(owner[order], return_index=True)[1]]
            chosen[begin + owner[firsts]] = rank[firsts]
        index = pl.Series(chosen, dtype=pl.Int64)
        return values.gather(index.set(index < 0, None))

    def _chunks(self, limit: int = CHUNK) -> Iterator[tuple[int, Ints, Ints, Ints]]:
        """(first range, owner from 0, rank, weight), each rank of a range once, a bounded number at a time."""
        rank_of = self._data.ranked[1]
        sizes = self._hi - self._lo
        cuts = np.searchsorted(np.cumsum(sizes), np.arange(limit, int(sizes.sum()) + limit, limit), "left") + 1
        begin = 0
        for end in np.minimum(np.unique(cuts), len(sizes)):
            part = sizes[begin:end]
            at = np.repeat(self._lo[begin:end], part) + ramp(part)
            owner = np.repeat(np.arange(len(part)), part)
            rank, weight = rank_of[at], self._data.weights[at]
            if not self._data.separate and len(at):
                order = np.lexsort((rank, owner))
                owner, rank, weight = owner[order], rank[order], weight[order]
                new = run_begins(owner, rank)
                weight = np.add.reduceat(weight, np.flatnonzero(new))
                owner, rank = owner[new], rank[new]
            if len(at):
                yield begin, owner, rank, weight
            begin = int(end)


class _Buckets:
    """Entries parted by a few of their values, and the weight of each part before every end of a range."""

    def __init__(self, values: Doubles, weights: Ints, ends: Ints, most: int) -> None:
        sample = np.sort(values[:: max(1, len(values) // (8 * most))])
        parting = sample[:: max(1, len(sample) // most)][:most]
        self._values, self._weights, self._ends = values, weights, ends
        bucket = np.searchsorted(parting, values, "right")
        self._count = len(parting) + 1
        self._order = np.argsort(bucket.astype(np.uint16), kind="stable")  # by bucket, then by place
        self._codes = bucket[self._order] * (len(values) + 1) + self._order
        between = np.repeat(np.arange(len(ends) + 1), np.diff(ends, prepend=0, append=len(values)))
        inside = np.bincount(between * self._count + bucket, weights, (len(ends) + 1) * self._count)
        inside = inside.reshape(-1, self._count)[: len(ends)].astype(np.int64)
        self._below = np.zeros((len(ends), self._count + 1), np.int64)  # the weight up to an end, below a bucket
        np.cumsum(np.cumsum(inside, axis=0), axis=1, out=self._below[:, 1:])

    def select(self, lo: Ints, hi: Ints, nth: Ints) -> Doubles:
        """The nth value of each range [lo, hi) of entries; a column per range."""
        start, end = np.searchsorted(self._ends, lo), np.searchsorted(self._ends, hi)
        bucket = np.zeros(nth.shape, np.int64)  # the last that at most nth lie below
        step = 1 << self._count.bit_length()
        while step := step >> 1:
            further = np.minimum(bucket + step, self._count)
            bucket = np.where(self._below[end, further] - self._below[start, further] <= nth, further, bucket)
        rest = nth - (self._below[end, bucket] - self._below[start, bucket])
        pairs, pair = np.unique(bucket + np.arange(len(lo)) * self._count, return_inverse=True)
        of, bucket = np.divmod(pairs, self._count)
        first, last = (np.searchsorted(self._codes, bucket * (len(self._values) + 1) + bound[of]) for bound in (lo, hi))
        sizes = last - first
        at = self._order[np.repeat(first, sizes) + ramp(sizes)]
        at = at[np.lexsort((self._values[at], np.repeat(np.arange(len(pairs)), sizes)))]
        reached = np.append(0, np.cumsum(self._weights[at]))
        before = reached[np.cumsum(sizes) - sizes][pair].reshape(nth.shape)
        values: Doubles = self._values[at[np.searchsorted(reached[1:], before + rest, "right")]]
        return values


class _Wavelet:
    """A wavelet matrix over ranks with weights: the rank at a given weight within any range, one step per bit."""

    def __init__(self, rank: Ints, weight: Ints, bits: int) -> None:
        self._levels: list[tuple[int, Ints, Ints, int]] = []
        for bit in range(bits - 1, -1, -1):
            zero = (rank >> bit) & 1 == 0
            zeros = np.append(0, np.cumsum(zero))
            weights = np.append(0, np.cumsum(np.where(zero, weight, 0)))
            self._levels.append((bit, zeros, weights, int(zeros[-1])))
            order = np.concatenate((np.flatnonzero(zero), np.flatnonzero(~zero)))
            rank, weight = rank[order], weight[order]

    def select(self, lo: Ints, hi: Ints, nth: Ints) -> Ints:
        ranks = np.zeros(len(lo), np.int64)
        lo, hi, nth = lo.copy(), hi.copy(), nth.copy()
        for bit, zeros, weights, ones_from in self._levels:
            below = weights[hi] - weights[lo]
            is_one = nth >= below
            ranks |= is_one.astype(np.int64) << bit
            nth -= np.where(is_one, below, 0)
            lo = np.where(is_one, ones_from + lo - zeros[lo], zeros[lo])
            hi = np.where(is_one, ones_from + hi - zeros[hi], zeros[hi])
        return ranks
