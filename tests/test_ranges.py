"""Combining ranges: each method against a loop over the range, and bags against the values that went into them."""

from collections import Counter
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.core.arrays import range_queries
from windrow.core.operators import multiset

Ranges = tuple[list[int], list[int], list[int]]


@st.composite
def ranged(draw: st.DrawFn, most: int = 40) -> Ranges:
    """Values, and the bounds of ranges over them, none empty."""
    values = draw(st.lists(st.integers(-50, 50), min_size=1, max_size=most))
    pairs = draw(st.lists(st.tuples(st.integers(0, len(values) - 1), st.integers(1, len(values))), max_size=20))
    lo = [a for a, size in pairs]
    return values, lo, [min(a + size, len(values)) for a, size in pairs]


@given(ranged())
def test_differences_and_smallest(case: Ranges) -> None:
    values, lo, hi = (np.array(part, np.int64) for part in case)
    assert range_queries.differences(values, lo, hi).tolist() == [sum(values[a:b]) for a, b in zip(lo, hi, strict=True)]
    assert range_queries.smallest(values, lo, hi).tolist() == [min(values[a:b]) for a, b in zip(lo, hi, strict=True)]


@given(ranged())
def test_fold_keeps_the_order(case: Ranges) -> None:
    """Affine maps do not commute: a fold that swaps two of them shows."""
    values, lo, hi = (np.array(part, np.int64) for part in case)

    def then(first: range_queries.Arrays, second: range_queries.Arrays) -> Any:
        return first[0] * second[0] % 97, (first[1] * second[0] + second[1]) % 97  # type: ignore[operator]

    found = range_queries.fold((values % 5 + 1, values % 97), then, (1, 0), lo, hi)
    for place, (a, b) in enumerate(zip(lo, hi, strict=True)):
        slope, shift = 1, 0
        for value in values[a:b].tolist():
            slope, shift = slope * (value % 5 + 1) % 97, (shift * (value % 5 + 1) + value) % 97
        assert (found[0][place], found[1][place]) == (slope, shift)


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=30), st.integers(1, 5))
def test_running_max(values: list[int], width: int) -> None:
    segment = np.arange(len(values)) // width
    expected = [max(values[at // width * width : at + 1]) for at in range(len(values))]
    assert range_queries.running_max(np.array(values), segment).tolist() == expected


floats = st.sampled_from([0.0, -0.0, 1.5, 1.5, 2.25, -3.0, float("nan"), float("inf")])
slices_of_values = st.lists(st.lists(floats, max_size=8), min_size=1, max_size=12)


WAYS = {
    "wavelet": {"LAYOUT_LIMIT": 0},
    "layout": {"FEWEST_BUCKETS": 2**62},
    "buckets": {"FEWEST_BUCKETS": 1, "LAYOUT_LIMIT": 2**62},
    "few buckets": {"FEWEST_BUCKETS": 1, "LAYOUT_LIMIT": 2**62, "MOST_BUCKETS": 2},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@given(slices=slices_of_values, data=st.data())
def test_bags_answer_like_their_values(way: dict[str, int], slices: list[list[float]], data: st.DataObject) -> None:
    lists = pl.Series([pl.Series(one, dtype=pl.Float64).sort() for one in slices], dtype=pl.List(pl.Float64))
    values, counts = multiset.counted(lists)
    lo = np.array(data.draw(st.lists(st.integers(0, len(slices) - 1), min_size=1, max_size=8)), np.int64)
    hi = np.minimum(lo + data.draw(st.integers(1, len(slices))), len(slices))
    q = data.draw(st.sampled_from([0.0, 0.3, 0.5, 0.99, 1.0]))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in way.items():
            patch.setattr(multiset, name, value)
        found = multiset.MultisetRanges(values, counts, lo, hi)
        quantiles = found.quantiles({"q": q})["q"].to_list()
    for place, (a, b) in enumerate(zip(lo, hi, strict=True)):
        held = sorted((x for one in slices[a:b] for x in one), key=lambda x: (x != x, x))
        tally = Counter("nan" if x != x else x + 0.0 for x in held)
        assert found.distinct()[place] == len(tally)
        if not held:
            assert quantiles[place] is None
            assert found.mode()[place] is None
            continue
        at = q * (len(held) - 1)
        low, high, share = held[int(at)], held[min(int(at) + 1, len(held) - 1)], at - int(at)
        expected = low if share == 0 or low == high else low * (1 - share) + high * share
        assert quantiles[place] == pytest.approx(expected, nan_ok=True)
        most = max(tally.values())
        smallest = next(x for x in held if tally["nan" if x != x else x + 0.0] == most)
        assert found.mode()[place] == pytest.approx(smallest, nan_ok=True)


@pytest.mark.parametrize("dtype", [pl.Float64, pl.Int64, pl.Decimal(20, 2)])
@pytest.mark.parametrize("spread", [5, 1000, 10**9])
def test_buckets_say_what_numpy_says(dtype: pl.DataType, spread: int) -> None:
    dice = np.random.default_rng(1)
    slices = [np.sort(dice.integers(-spread, spread, size)) for size in dice.integers(0, 200, 60)]
    lists = pl.Series([pl.Series(one) for one in slices], dtype=pl.List(pl.Int64)).cast(pl.List(dtype))
    lo = dice.integers(0, 50, 40)
    hi = lo + dice.integers(2, 11, 40)
    qs = {str(q): q for q in np.linspace(0, 1, 11)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiset.MultisetRanges, "_select", None)  # none of the other ways is taken
        found = multiset.MultisetRanges(*multiset.counted(lists), lo, hi).quantiles(qs)
    expected = [np.quantile(np.concatenate(slices[a:b]), list(qs.values())) for a, b in zip(lo, hi, strict=True)]
    np.testing.assert_allclose(found.to_numpy(), expected, rtol=1e-14)


@given(slices=slices_of_values, halves=st.integers(0, 8))
def test_merged_bags_are_the_bag_of_all(slices: list[list[float]], halves: int) -> None:
    parts = [[one[:halves], one[halves:]] for one in slices]
    whole = pl.Series([pl.Series(one, dtype=pl.Float64).sort() for one in slices], dtype=pl.List(pl.Float64))
    flat = [pl.Series(part, dtype=pl.Float64).sort() for both in parts for part in both]
    values, counts = multiset.counted(pl.Series(flat, dtype=pl.List(pl.Float64)))
    table = pl.DataFrame({"row": np.arange(len(flat)) // 2, "values": values, "counts": counts})
    ends = table.group_by("row", maintain_order=True).agg(pl.col("values", "counts").list.explode())
    found, expected = multiset.merged(ends["values"], ends["counts"]), multiset.counted(whole)
    assert found[0].equals(expected[0])
    assert found[1].equals(expected[1])


@given(
    values=st.lists(st.integers(-(2**40), 2**40) | st.integers(0, 10) | st.integers(0, 2**17), min_size=1),
    near=st.booleans(),
)
def test_sorted_places_are_those_of_a_stable_sort(values: list[int], near: bool) -> None:
    values = [value % 7 + place // 4 for place, value in enumerate(values)] if near else values
    places, found = range_queries.sorted_places(np.array(values))
    assert places.tolist() == sorted(range(len(values)), key=values.__getitem__)
    assert found.tolist() == sorted(values)
