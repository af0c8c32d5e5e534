"""Mixing numbers: the finalizer of splitmix64, after which neighbouring numbers have nothing in common.

Keys are put into buckets by it, arrival numbers become hashes whose sums differ for different sets of events, and
made-up events are drawn with it: the same on every machine and in every version, because state is kept by what it
gives.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

UInts = npt.NDArray[np.uint64]
GOLDEN = 0x9E3779B97F4A7C15  # 2**64 by the golden ratio: the step from one number to the next
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def mix(z: UInts, scratch: UInts | None = None) -> UInts:
    """Mix every number, in place; `scratch`, as long as they are, saves making it again for the next ones."""
    scratch = np.empty_like(z) if scratch is None else scratch
    for shift, factor in _ROUNDS:
        np.right_shift(z, np.uint64(shift), out=scratch)
        np.bitwise_xor(z, scratch, out=z)
        np.multiply(z, np.uint64(factor), out=z)
    np.right_shift(z, np.uint64(31), out=scratch)
    return np.bitwise_xor(z, scratch, out=z)
