"""Refine: which few of many can matter, found from a synopsis.

Sorted things (events in their order, values of a slice) are cut into **units** of which only the first, the last and
the count are known. Of the unit in which the n-th of all lies there are two bounds:

    the n-th is no less than    the first x such that so many *may* be at or before it: units that begin there or before
    the n-th is no more than    the first x such that so many *are* at or before it: units that end there or before

Only units that reach between the two can hold it, and only of those is it asked what is in them. The same for the
boundary of a counting window, where the order of events is what is sorted, and for the rank of a quantile.
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
    """The bounds of the n-th, from 1, of all that is in units, for several n that are not more than there are."""
    by_first, by_last = np.argsort(first, kind="stable"), np.argsort(last, kind="stable")
    begun, ended = np.cumsum(count[by_first]), np.cumsum(count[by_last])
    lower = first[by_first][np.searchsorted(begun, nth, "left")]
    upper = last[by_last][np.searchsorted(ended, nth, "left")]
    sure = np.append(0, ended)[np.searchsorted(last[by_last], upper, "right")]
    possible = np.append(0, begun)[np.searchsorted(first[by_first], upper, "right")]
    return Bounds(lower, upper, sure, possible)


def undecided(first: Ints, last: Ints, found: Bounds) -> Mask:
    """The units that may hold one of several, as their bounds say, which have to be in ascending order.

    Where the bounds of one are the same, it is known, whatever is in the units.
    """
    open_ = found.lower < found.upper
    lower, upper = found.lower[open_], found.upper[open_]
    if not len(lower):
        return np.zeros(len(first), np.bool_)
    at = np.searchsorted(upper, first, "left")
    near = lower[np.minimum(at, len(lower) - 1)] <= last
    return near & (at < len(lower)) & (first < last)


def unit_size(count: int, unit_bytes: float, one_bytes: float, asked: int = 1) -> int:
    """How large units are to be, so that those that are sent and what is asked of them are the fewest bytes together.

    Of `count` things count / r units are sent, and for each of what is asked about one unit is opened at a node, of r
    things: the sum is least where both are the same.
    """
    return max(1, isqrt(int(count * unit_bytes / (one_bytes * max(1, asked)))))
