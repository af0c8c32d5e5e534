"""Mixed numbers never change: the state of a stream is found by them."""

import numpy as np

from windrow.core.arrays.hashing import GOLDEN, mix


def test_it_is_splitmix64() -> None:
    steps = np.arange(1, 4, dtype=np.uint64) * np.uint64(GOLDEN)
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # of the seed 0
    assert mix(steps.copy()).tolist() == published
    assert mix(steps, np.empty(3, np.uint64)).tolist() == published
