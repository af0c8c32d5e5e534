"""Combining ranges of a sorted array, for all windows at once.

A window is an index range [lo, hi) over the sorted slices, never empty. Three ways to combine one, each vectorised over
all ranges, none with a cost of slices × windows:

| method | needs of the operator | time for n slices and w windows |
| --- | --- | --- |
| `differences` | exact inverse (integers) | n + w |
| `smallest` | idempotent (min, max, first, last by rank) | n log r + w, r the longest range |
| `fold` | associative, in order | n + w log r |

`smallest` is a sparse table built and answered level by level; `fold` is a bottom-up segment tree, also level by
level, so that neither keeps more than one level in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]
Arrays = tuple[Array, ...]

CHUNK = 4_000_000  # entries that are worked on at a time
NOTHING = np.int64(2**63 - 1)  # the code that is greater than every other: an empty slice in `smallest`


def run_begins(*columns: Ints) -> Mask:
    """Mark where a run of equal rows begins: the first row, and each that differs from the one before it."""
    first, *others = columns
    begins = np.ones(len(first), np.bool_)
    np.not_equal(first[1:], first[:-1], out=begins[1:])
    for column in others:
        begins[1:] |= column[1:] != column[:-1]
    return begins


def differences(values: npt.NDArray[np.int64], lo: Ints, hi: Ints) -> Ints:
    """Sums of integers over each range, from prefix sums; exact, modulo 2**64."""
    prefix = np.empty(len(values) + 1, np.int64)
    prefix[0] = 0
    np.cumsum(values, out=prefix[1:])
    return prefix[hi] - prefix[lo]


def smallest(codes: Ints, lo: Ints, hi: Ints) -> Ints:
    """The smallest code of each range."""
    width = hi - lo
    level = np.frexp(width.astype(np.float64))[1] - 1  # floor(log2(width)), exact below 2**53
    least = np.empty(len(lo), np.int64)
    for depth in range(int(level.max(initial=-1)) + 1):
        here = np.flatnonzero(level == depth)
        if len(here):
            least[here] = np.minimum(codes[lo[here]], codes[hi[here] - (1 << depth)])
        step = 1 << depth
        if step < len(codes):
            codes = np.minimum(codes[:-step], codes[step:])
    return least


def fold(
    leaves: Arrays,
    merge: Callable[[Arrays, Arrays], Arrays],
    identity: tuple[float | None, ...],
    lo: Ints,
    hi: Ints,
    prune: Callable[[Arrays, Arrays, Arrays, npt.NDArray[np.bool_]], Iterable[Arrays]] | None = None,
) -> Arrays:
    """Merge the leaves of each range from left to right, in O(log) steps; a leaf is one entry of every array.

    prune:  where merging is dear, forgets pairs of leaves that are not needed, before those of a level are merged
    """
    size = len(lo)
    left = tuple(np.full(size, unit, leaf.dtype) for leaf, unit in zip(leaves, identity, strict=True))
    right = tuple(array.copy() for array in left)
    open_ = np.flatnonzero(lo < hi)
    if len(open_) < size:
        lo, hi = lo[open_], hi[open_]
    while len(open_):
        _absorb(left, leaves, open_, lo, (lo & 1) == 1, merge, from_left=True)
        _absorb(right, leaves, open_, hi - 1, (hi & 1) == 1, merge, from_left=False)
        lo, hi = (lo + 1) >> 1, hi >> 1
        still = lo < hi
        open_, lo, hi = open_[still], lo[still], hi[still]
        if len(leaves[0]) % 2:
            leaves = tuple(
                np.append(leaf, np.asarray([unit], leaf.dtype)) for leaf, unit in zip(leaves, identity, strict=True)
            )
        if prune:
            leaves, left, right = prune(leaves, left, right, covered(lo, hi, len(leaves[0]) // 2))
        leaves = merge(tuple(leaf[::2] for leaf in leaves), tuple(leaf[1::2] for leaf in leaves))
    return merge(left, right)


def _absorb(
    into: Arrays,
    leaves: Arrays,
    open_: Ints,
    at: Ints,
    odd: npt.NDArray[np.bool_],
    merge: Callable[[Arrays, Arrays], Arrays],
    *,
    from_left: bool,
) -> None:
    """Take the block at an odd end of each open range into its running result."""
    chosen = np.flatnonzero(odd)
    if not len(chosen):
        return
    target, block = open_[chosen], at[chosen]
    taken = tuple(leaf[block] for leaf in leaves)
    before = tuple(array[target] for array in into)
    for array, merged in zip(into, merge(before, taken) if from_left else merge(taken, before), strict=True):
        array[target] = merged


def covered(lo: Ints, hi: Ints, size: int) -> npt.NDArray[np.bool_]:
    """Which of so many places lie within some range; ranges may be empty, lo = hi."""
    opened = np.bincount(lo, minlength=size + 1)[: size + 1] - np.bincount(hi, minlength=size + 1)
    return np.cumsum(opened)[:size] > 0


def running_max(values: Ints, segment: Ints) -> Ints:
    """The greatest value so far within each segment; segments are numbered in order."""
    if bool(((segment[1:] != segment[:-1]) | (values[1:] >= values[:-1])).all()):
        return values
    table = pl.DataFrame({"segment": segment, "value": values})
    return table.select(pl.col("value").cum_max().over("segment")).to_series().to_numpy()


def sorted_places(values: Ints) -> tuple[Ints, Ints]:
    """The places of values in their order, equal ones as they stand, and the values in it.

    Of values that are nearly in order those that nothing greater stands before are sorted already. The rest is sorted
    by itself and put between them: after all equal ones, because it stands behind something greater.
    """
    ahead = values >= np.maximum.accumulate(values)
    rest = np.flatnonzero(~ahead)
    if 2 * len(rest) > len(values):
        places = _counting_sort(values)
        return places, values.take(places)
    main = np.flatnonzero(ahead)
    sorted_main = values.take(main)
    rest = rest.take(_counting_sort(values.take(rest)))
    sorted_rest = values.take(rest)
    at = np.searchsorted(sorted_main, sorted_rest, "right") + np.arange(len(rest))
    others = np.ones(len(values), np.bool_)
    others[at] = False
    places, ordered = np.empty_like(values), np.empty_like(values)
    places[at], ordered[at] = rest, sorted_rest
    between = np.flatnonzero(others)
    places[between], ordered[between] = main, sorted_main
    return places, ordered


def _counting_sort(values: Ints) -> Ints:
    """The places of values in their order. NumPy sorts 16 bits by counting, so two rounds do for a span of 2**32."""
    if not len(values):
        return np.empty(0, np.int64)
    least = int(values.min())
    if int(values.max()) - least >= 2**32:
        return np.argsort(values, kind="stable")
    apart = (values - least).astype(np.uint32)
    by_low = np.argsort(apart.astype(np.uint16), kind="stable")
    high = (apart >> np.uint32(16)).astype(np.uint16)
    return by_low.take(np.argsort(high.take(by_low), kind="stable"))


def ramp(counts: Ints) -> Ints:
    """0 … c-1 for each count c, one after the other."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
