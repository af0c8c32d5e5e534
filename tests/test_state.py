"""What a group keeps: no more than open windows need, and the same answers however it is kept."""

import numpy as np
import polars as pl
import pytest

import windrow as wr
from windrow.core.assemble import group_state

QUERIES = [
    wr.Query("w", wr.sliding(50, 7), ["count()", "median(x)"], by="k"),
    wr.Query("s", wr.session(3), ["count()", "last(x)", "median(x)", "sum(x)"], by="k"),
    wr.Query("wide", wr.session(11), ["count()", "mode(x)"], by="k"),
]


def test_a_session_that_never_ends_keeps_a_bounded_number_of_slices() -> None:
    engine, most = wr.Engine(QUERIES[:2], "t"), 0
    for part in range(40):
        time = np.repeat(np.arange(part * 100, part * 100 + 100), 2)
        engine.push(pl.DataFrame({"t": time, "k": np.tile([0, 1], 100), "x": time}))
        most = max(most, engine.metrics.slices)
    assert most < group_state.JOIN_FROM + 100
    found = engine.finish().filter(pl.col("query") == "s")
    assert found.select("k", "count()", "last(x)", "median(x)").rows() == [
        (0, 4000, 3999, 1999.5),
        (1, 4000, 3999, 1999.5),
    ]


@pytest.mark.parametrize("updates", [None, 40])
def test_joining_old_slices_changes_no_result(updates: int | None, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = np.random.default_rng(seed)
    time = np.cumsum(rng.choice([0, 1, 2, 5, 20], 200, p=[0.3, 0.4, 0.2, 0.07, 0.03])) - rng.integers(0, 30, 200)
    events = pl.DataFrame({"t": time, "k": rng.integers(0, 3, 200), "x": rng.integers(0, 9, 200)})
    told = []
    for join_from in (-1, 10**9):
        monkeypatch.setattr(group_state, "JOIN_FROM", join_from)
        engine = wr.Engine(QUERIES, "t", lateness=10, updates=updates)
        steps = [engine.push(events[at : at + 7]) for at in range(0, 200, 7)]
        told.append((pl.concat([*steps, engine.finish()]), engine.metrics.dropped))
    assert told[0][0].equals(told[1][0])
    assert told[0][1] == told[1][1]
