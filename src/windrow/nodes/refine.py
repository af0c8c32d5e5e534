"""Refine: which few of many can matter, found from summaries of blocks.

Sorted things (events in their order, values of a slice) are cut into **blocks** of which only the first, the last
and the count are known. Of the block in which the n-th of all lies there are two bounds:

    the n-th is no less than    the first x that so many *may* be at or before: blocks that begin there or before
    the n-th is no more than    the first x that so many *are* at or before: blocks that end there or before

Only blocks that reach between the two can hold it, and only of those is requested what is in them. This finds the
boundary of a counting window, where the order of events is what is sorted, as well as the rank of a quantile.
"""

from __future__ import annotations

from math import isqrt
from typing import NamedTuple

import numpy as np

from windrow.core.arrays.range_queries import Ints, Mask


class Bounds(NamedTuple):
    """Between which two the n-th lies, and how many are surely, and how many may be, at or before the upper one."""

    lower: Ints
    upper: Ints
    sure: Ints
    possible: Ints


def bounds(first: Ints, last: Ints, count: Ints, nth: Ints) -> Bounds:
    """The bounds of the n-th, from 1, of all that is in blocks, for several n that are not more than there are."""
    by_first, by_last = np.argsort(first, kind="stable"), np.argsort(last, kind="stable")
    begun, ended = np.cumsum(count[by_first]), np.cumsum(count[by_last])
    lower = first[by_first][np.searchsorted(begun, nth, "left")]
    upper = last[by_last][np.searchsorted(ended, nth, "left")]
    sure = np.append(0, ended)[np.searchsorted(last[by_last], upper, "right")]
    possible = np.append(0, begun)[np.searchsorted(first[by_first], upper, "right")]
    return Bounds(lower, upper, sure, possible)


def undecided(first: Ints, last: Ints, found: Bounds) -> Mask:
    """Find the blocks that may hold one of several n-th, by the bounds of these in ascending order.

    Where both bounds of an n-th are the same, it is known, whatever is in the blocks.
    """
    open_ = found.lower < found.upper
    lower, upper = found.lower[open_], found.upper[open_]
    if not len(lower):
        return np.zeros(len(first), np.bool_)
    at = np.searchsorted(upper, first, "left")
    near = lower[np.minimum(at, len(lower) - 1)] <= last
    return near & (at < len(lower)) & (first < last)


def block_size(count: int, summary_bytes: float, each_bytes: float, ranks: int = 1) -> int:
    """How large blocks are to be, so that summaries and what is requested are the fewest bytes together.

    Of `count` things count / r summaries are sent, and for each rank that is searched about one block is opened at a
    node, of r things: the sum is least where both are the same.
    """
    return max(1, isqrt(int(count * summary_bytes / (each_bytes * max(1, ranks)))))
