"""Which slice an event falls into: every way to find it agrees with the definition, the last edge before its time."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow as wr
from windrow.core.plan.groups import Timeline
from windrow.core.slices import kernel
from windrow.core.slices.kernel import Edges
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN, FixedWindow

lengths = st.integers(1, 30)
windows = st.one_of(
    st.builds(wr.tumbling, lengths, st.integers(-40, 40)),
    st.builds(wr.sliding, lengths, lengths, st.integers(-40, 40)),
    st.builds(lambda step, parts: wr.cumulating(step * parts, step), st.integers(1, 9), st.integers(1, 5)),
    st.builds(wr.session, lengths),
)
timelines = st.builds(
    Timeline,
    windows,
    st.just(INT64_MIN) | st.integers(-50, 50),
    st.just(INT64_MAX) | st.integers(-20, 80),
    st.just(False),
)


def last_edge(time: int, lines: list[Timeline]) -> int:
    """The definition, edge by edge."""
    edges = [INT64_MIN]
    for line in lines:
        edges += [point for point in (line.since, line.until) if INT64_MIN < point <= time]
        if isinstance(line.window, FixedWindow):
            stop = INT64_MAX if line.until == INT64_MAX else line.until + line.window.reach
            for period, phase in line.window.grids():
                edge = min(time, stop)
                edge -= (edge - phase) % period
                edges += [edge] if edge >= line.since else []
    return max(edges)


@given(
    lines=st.lists(timelines, max_size=4),
    times=st.lists(st.integers(-120, 120), min_size=1, max_size=60),
    in_order=st.booleans(),
    cell=st.none() | st.integers(1, 9),
    table_limit=st.sampled_from([0, kernel.TABLE_LIMIT]),
)
def test_every_lookup_finds_the_last_edge(
    lines: list[Timeline], times: list[int], in_order: bool, cell: int | None, table_limit: int
) -> None:
    edges = Edges.of(lines)
    asked = np.array(sorted(times) if in_order else times, np.int64)
    expected = [last_edge(int(time), lines) for time in asked]
    assert edges.floor(asked).tolist() == expected
    assert edges._floor_by_grid(asked).tolist() == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "TABLE_LIMIT", table_limit)
        ways = [edges.index(asked, in_order, cell), edges._index_by_grid(asked, cell)]
    for numbers, before in ways:
        assert before[numbers].tolist() == expected
        if cell:  # events of one stretch are never a cell apart
            for number in np.unique(numbers):
                assert np.ptp(asked[numbers == number]) < cell


@pytest.mark.parametrize("dtype", [pl.Int8, pl.Int16, pl.Int64, pl.UInt8, pl.UInt32, pl.UInt64, pl.String])
@pytest.mark.parametrize("window", [wr.tumbling(37), wr.session(9)])
def test_integer_keys_out_of_order(dtype: Any, window: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    low = -100 if dtype in (pl.Int8, pl.Int16, pl.Int64, pl.String) else 0
    events = pl.DataFrame(
        {
            "t": rng.integers(-500, 500, 3000),
            "k": pl.Series(rng.integers(low, low + 100, 3000)).cast(dtype),
            "x": rng.integers(0, 9, 3000),
        }
    )
    query = wr.Query("q", window, ["sum(x)", "count()", "max(x)"], by="k")
    shuffled, sorted_ = wr.windows(events, query, "t"), wr.windows(events.sort("t"), query, "t")
    assert shuffled.equals(sorted_)
    assert shuffled.schema["k"] == dtype
    assert shuffled["count()"].sum() == events.height


def test_a_year_of_milliseconds_costs_what_its_events_cost() -> None:
    """Edges are never listed where there are more of them than events."""
    year = 365 * 86_400_000_000
    events = pl.DataFrame({"ts": pl.Series([0, year // 2, year]).cast(pl.Datetime("us")), "x": [1, 2, 3]})
    queries = [
        wr.Query("fine", wr.tumbling("1 ms"), ["sum(x)"]),
        wr.Query("finer", wr.sliding("1 ms", "1 us"), ["count()"]),
        wr.Query("run", wr.session("1 ms"), ["sum(x)"]),
    ]
    found = wr.windows(events, queries, "ts")
    assert found["query"].value_counts().sort("query")["count"].to_list() == [3, 3000, 3]
