"""Windows of several nodes: each node's own, and the three ways in which those of all nodes become one.

Engine and oracle on random streams, as in `test_properties`; and what is refused.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, get_args
from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow as wr
from test_properties import disagreements, results
from windrow.api import Table
from windrow.core.ordered import state as ordered_state
from windrow.core.ordered.node_windows import JoinedState
from windrow.core.plan.options import StreamOptions
from windrow.core.windows.ordered import Scope, scope_of
from windrow.testing import differences, recompute
from windrow.testing.strategies import SCHEMA, Row, Stream, frame, query_sets, streams, tables
from windrow.testing.transcripts import Step

JOINED = ("joined", "joined", "joined", "of each node", "counting", "tumbling")


@given(stream=streams(kinds=JOINED, beyond=True, watermarks=True))
@settings(max_examples=20)
def test_the_engine_gives_what_the_oracle_gives(stream: Stream) -> None:
    assert disagreements(stream) == []


@given(stream=streams(kinds=JOINED, changes=True), at=st.lists(st.integers(0, 12), max_size=4))
@settings(max_examples=16)
def test_queries_come_and_go_and_engines_are_restored(stream: Stream, at: list[int]) -> None:
    assert disagreements(stream, restored_at=at) == []


@given(stream=streams(kinds=JOINED))
@settings(max_examples=20)
def test_what_is_forgotten_early_is_missed_by_nobody(stream: Stream) -> None:
    with (
        patch.object(ordered_state, "JOIN_FROM", 0),
        patch.object(ordered_state, "PRUNE_FROM", -(10**9)),
        patch.object(ordered_state, "FORGET_FROM", -(10**9)),
    ):
        assert disagreements(stream) == []


@given(rows=tables(), queries=query_sets(kinds=JOINED), order_by=st.sampled_from(((), (), ("node", "x"), ("s", "y"))))
@settings(max_examples=12)
def test_whole_tables(rows: list[Row], queries: tuple[wr.Query, ...], order_by: tuple[str, ...]) -> None:
    try:
        want: list[Any] = recompute(rows, queries, order_by=order_by, partial=True)
    except OverflowError:
        with pytest.raises(OverflowError):
            wr.windows(frame(rows), queries, "t", order_by=order_by, partial=True)
        return
    found = wr.windows(frame(rows), queries, "t", order_by=order_by, partial=True).to_dicts()
    assert differences(found, want, queries, ordered=True) == []


@given(stream=streams(kinds=("joined",), time_columns=False))
@settings(max_examples=20)
def test_a_stream_says_what_its_whole_table_says(stream: Stream) -> None:
    """Without late events: nothing joins a window that was told. At a position, once every node has come."""
    queries = tuple(query for query in stream.queries if not query.distinct_on)
    queries = tuple(query for query in queries if scope_of(query.window) != "position")
    at_once = (Step("input", stream.rows, {}), stream.steps[-1])
    whole = replace(stream, queries=queries, options={**stream.options, "lateness": None}, steps=at_once)
    assert differences(results(replace(stream, queries=queries)), results(whole), queries) == []


@given(rows=tables(), queries=query_sets(kinds=("joined",)), cuts=st.lists(st.integers(0, 40), max_size=4))
@settings(max_examples=20)
def test_a_table_that_comes_in_parts(rows: list[Row], queries: tuple[wr.Query, ...], cuts: list[int]) -> None:
    """At a position nothing is told before the end: a node may come with the last part."""
    queries = tuple(wr.Query(one.name, one.window, "count()", one.by, one.where) for one in queries)
    ordered = sorted(rows, key=lambda row: row["t"])
    parts = [ordered[a:b] for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), len(rows)], strict=True)]
    table = Table(queries, StreamOptions("t"))
    found = []
    for number, part in enumerate(parts):
        rest = [row["t"] for later in parts[number + 1 :] for row in later]
        found += table.push(frame(part), {"t": min(rest)} if rest else {}).to_dicts()
    found += table.finish().to_dicts()
    assert differences(found, recompute(ordered, queries), queries) == []


# --- what it is, and what is refused ----------------------------------------------------------------------------------

_EVENTS = pl.DataFrame({"t": [1, 2, 3], "node": ["a", "b", "a"], "x": [1, 2, 3]})


@pytest.mark.parametrize("window", [wr.counting(2), wr.punctuated(end="x > 1"), wr.frames("x > 1")], ids=str)
def test_the_scope_node_is_the_query_with_the_node_among_its_keys(window: Any) -> None:
    scoped = wr.Query("q", replace(window, scope="node"), "sum(x)")
    assert scoped.by == ("node",)
    plain = wr.windows(_EVENTS, wr.Query("q", window, "sum(x)", by="node"), "t")
    assert wr.windows(_EVENTS, scoped, "t").equals(plain)
    assert plain.height > 0


@pytest.mark.parametrize("scope", get_args(Scope))
def test_a_query_is_the_same_after_it_was_plain_data(scope: Any) -> None:
    for window in (wr.counting(2, scope=scope), wr.punctuated("x > 1", scope=scope), wr.frames("x > 1", scope)):
        query = wr.Query("q", window, "sum(x)", by="k")
        assert wr.Query.from_dict(json.loads(json.dumps(query.to_dict()))) == query


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (lambda: wr.counting(2, scope="all"), "counting: scope is one of 'global', 'node', 'bounds', 'position',"),  # type: ignore[arg-type]
        (lambda: wr.Query("q", wr.counting(2, scope="bounds"), "sum(x)", by="node"), "which parts them; leave one out"),
        (lambda: wr.Query("q", wr.counting(3, 2, "overlap"), "sum(x)"), "joined by overlap an event would count twice"),
        (lambda: wr.Query("q", wr.frames("x > 1", "bounds"), "chained(x)"), "ask for it with scope='global' or 'node'"),
        (
            lambda: wr.windows(_EVENTS.drop("node"), wr.Query("q", wr.counting(2, scope="node"), "sum(x)"), "t"),
            "query 'q': counting(2, scope='node'): there is no column 'node' in the events",
        ),
        (
            lambda: wr.Engine(wr.Query("q", wr.counting(2, scope="position"), "sum(x)"), "t", updates=5).push(_EVENTS),
            "query 'q': counting(2, scope='position') cannot have updates",
        ),
    ],
)
def test_what_has_no_answer_is_refused(asked: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        asked()


@pytest.mark.parametrize("scope", ["bounds", "overlap"])
def test_a_joined_window_is_forgotten_once_it_is_told(scope: Any) -> None:
    engine = wr.Engine(wr.Query("q", wr.counting(1, scope=scope), "count()", by="k"), "t")
    most = 0
    for at in range(0, 4000, 100):
        t = pl.Series("t", range(at, at + 100))
        engine.push(pl.DataFrame([t, (t // 4 % 5).alias("k"), (t % 3).cast(pl.String).alias("node"), t.alias("x")]))
        most = max(most, engine.metrics.state_bytes)
    assert engine.metrics.results > 300
    assert most < 50_000


def test_a_removed_query_waits_for_windows_of_nodes_that_overlap() -> None:
    """What once failed: of counting windows that overlap, an open one was not seen."""
    steps = [Step("input", [_row(t=1, node="a")], {}), Step("remove", "q", {"when": "windows_closed"})]
    steps += [Step("input", [_row(t=2, node="b"), _row(t=3, node="a")], {}), Step("finish", True, {})]
    stream = Stream((wr.Query("q", wr.counting(2, 1, "position"), "count()"),), {"time": "t"}, tuple(steps))
    assert disagreements(stream) == []
    assert [row["count()"] for row in results(stream)] == [2]


def _row(**given: Any) -> Row:
    return {**dict.fromkeys(SCHEMA), "o": 0, **given}


def test_the_check_catches_a_window_that_is_told_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"t": 1, "node": "b", "x": 2}, {"t": 2, "node": "a", "x": 2}, {"t": 3, "node": "a"}, {"t": 5, "node": "c"}]
    steps = [Step("input", [_row(**row)], {}) for row in rows]
    query = wr.Query("q", wr.frames("x > 1", "overlap"), "count()")
    stream = Stream((query,), {"time": "t"}, (*steps, Step("finish", True, {})))
    assert disagreements(stream) == []
    opened = JoinedState.opened
    monkeypatch.setattr(JoinedState, "opened", lambda state: opened(state).clear())
    assert any("is not expected" in line for line in disagreements(stream))
