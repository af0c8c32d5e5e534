"""Engine and oracle on random queries, streams, batches and disorder: the same results, step by step, in one order.

The oracle recomputes every window from all events at every step; results are compared as the semantics say
(`windrow.testing.compare`). What once failed is kept at the end, each as a small stream of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow as wr
from windrow.core.assemble import group_state as state_module
from windrow.core.assemble import results as results_module
from windrow.core.assemble.group_state import CompiledGroup
from windrow.core.operators import base
from windrow.core.ordered import state as ordered_state
from windrow.core.ordered.slicing import Ordering
from windrow.testing import Oracle, differences, recompute
from windrow.testing.own import Filled
from windrow.testing.strategies import AGGREGATES, ORDERED, SCHEMA, Row, Stream, frame, query_sets, streams, tables
from windrow.testing.transcripts import Step, run_step

FINISH = Step("finish", True, {})


class Running:
    """An engine that takes and gives rows, as a transcript's runtime does; restored from its snapshot at some steps."""

    def __init__(self, queries: Any, restored_at: Sequence[int] = (), **options: Any) -> None:
        self.engine = wr.Engine(queries, **options)
        self._restored_at, self._step = set(restored_at), 0

    def _next(self) -> wr.Engine:
        if self._step in self._restored_at:
            self.engine = wr.Engine.restore(self.engine.snapshot())
        self._step += 1
        return self.engine

    def push(self, rows: list[Row], /) -> Any:
        return self._next().push(frame(rows)).to_dicts()

    def advance(self, watermark: Any, /, time: str | None = None) -> Any:
        return self._next().advance(watermark, time).to_dicts()

    def finish(self, partial: bool = False) -> Any:
        return self._next().finish(**({"partial": True} if partial else {})).to_dicts()

    def add(self, query: wr.Query, /, since: Any = None) -> Any:
        return self._next().add(query, since)

    def remove(self, name: str, /, when: Any = "now") -> None:
        self._next().remove(name, when)

    def __getattr__(self, name: str) -> int:
        return int(getattr(self.engine.metrics, name))


def disagreements(stream: Stream, **options: Any) -> list[str]:
    """What an engine does otherwise than the oracle, up to the first step that goes wrong."""
    oracle = Oracle(stream.queries, **stream.options)
    runtime = Running(stream.queries, **stream.options, **options)
    counted = ["late", "dropped", "overflows"]
    if any(step.details.get("when") == "windows_closed" for step in stream.steps):
        counted.remove("dropped")  # a query that is leaving counts drops for as long as it is there
    for number, step in enumerate(stream.steps):
        told, found = run_step(oracle, step), run_step(runtime, step)
        if step.action == "add":
            wrong = [] if found in (told, None) else [f"begins at {found}, not {told}"]
        elif step.action == "remove":
            wrong = []
        else:
            wrong = differences(found, told, stream.all_queries, ordered=True)
        for name in counted:
            if getattr(runtime, name) != getattr(oracle, name):
                wrong.append(f"{name} is {getattr(runtime, name)}, not {getattr(oracle, name)}")
        if wrong:
            return [f"step {number} ({step.action}): {line}" for line in wrong]
    late = runtime.engine.late_events()
    aside = late.sort(late.columns).to_dicts() if late.width else []
    want = frame(oracle.late_rows)
    if "dropped" in counted and str(aside) != str(want.sort(want.columns).to_dicts()):
        return [f"the late events are {aside}, not {oracle.late_rows}"]
    return []


def results(stream: Stream, **options: Any) -> list[Row]:
    """All results of a run."""
    runtime = Running(stream.queries, **stream.options, **options)
    found: list[Row] = []
    for step in stream.steps:
        rows = run_step(runtime, step)
        found += rows if step.action not in ("add", "remove") else []
    return found


# --- engine and oracle ------------------------------------------------------------------------------------------------


@given(stream=streams())
@settings(max_examples=20)
def test_the_engine_gives_what_the_oracle_gives(stream: Stream) -> None:
    assert disagreements(stream) == []


@given(stream=streams(watermarks=True, beyond=True))
@settings(max_examples=18)
def test_events_beyond_the_lateness_are_left_out_of_what_was_emitted_and_of_nothing_else(stream: Stream) -> None:
    assert disagreements(stream) == []


@given(stream=streams(updates=True, beyond=True))
@settings(max_examples=18)
def test_late_events_within_updates_revise_and_retract(stream: Stream) -> None:
    assert disagreements(stream) == []


@given(stream=streams(updates=True, beyond=True, kinds=ORDERED))
@settings(max_examples=18)
def test_late_events_within_updates_shift_and_split_ordered_windows(stream: Stream) -> None:
    assert disagreements(stream) == []


@given(stream=streams(changes=True))
@settings(max_examples=16)
def test_queries_come_and_go(stream: Stream) -> None:
    assert disagreements(stream) == []


@given(stream=streams(changes=True, beyond=True, updates=True, most=12), at=st.lists(st.integers(0, 12), max_size=4))
@settings(max_examples=15)
def test_a_restored_engine_goes_on_as_if_nothing_had_happened(stream: Stream, at: list[int]) -> None:
    assert disagreements(stream, restored_at=at) == []


@given(
    rows=tables(),
    queries=query_sets(time_columns=(None, None, "o")),
    order_by=st.sampled_from(((), (), ("x",), ("s", "y"))),
)
@settings(max_examples=18)
def test_whole_tables(rows: list[Row], queries: tuple[wr.Query, ...], order_by: tuple[str, ...]) -> None:
    try:
        want: list[Any] = recompute(rows, queries, lateness={"t": 5, "o": 5}, order_by=order_by)
    except OverflowError:
        with pytest.raises(OverflowError):
            wr.windows(frame(rows), queries, "t", lateness={"t": 5, "o": 5}, order_by=order_by)
        return
    found = wr.windows(frame(rows), queries, "t", lateness={"t": 5, "o": 5}, order_by=order_by).to_dicts()
    assert differences(found, want, queries, ordered=True) == []


# --- what must not matter ---------------------------------------------------------------------------------------------


@given(stream=streams(changes=True, most=16))
@settings(max_examples=14)
def test_other_queries_never_change_a_query_s_results(stream: Stream) -> None:
    stays = stream.queries[0]
    alone = [step for step in stream.steps if step.action != "add" and step.action != "remove"]
    away = next((n for n, s in enumerate(stream.steps) if s.action == "remove" and s.value == stays.name), None)
    if away is not None:  # it is the others that come and go
        stream = replace(stream, steps=(*stream.steps[:away], *stream.steps[away + 1 :]))
    lateness = stream.options["lateness"]
    if stays.time is None and isinstance(lateness, dict):
        lateness = lateness["t"]
    by_itself = Stream((stays,), {**stream.options, "lateness": lateness}, tuple(alone))
    found = [row for row in results(stream) if row["query"] == stays.name]
    assert differences(found, results(by_itself), [stays], ordered=True) == []


@given(stream=streams(updates=True, beyond=True, most=16))
@settings(max_examples=14)
def test_a_query_gets_the_same_revisions_alone_and_beside_others(stream: Stream) -> None:
    stays = stream.queries[0]
    found = [row for row in results(stream) if row["query"] == stays.name]
    assert differences(found, results(replace(stream, queries=(stays,))), [stays], ordered=True) == []


@given(stream=streams(updates=True, beyond=True), kinds=st.booleans())
@settings(max_examples=12)
def test_what_is_forgotten_and_joined_early_is_missed_by_nobody(stream: Stream, kinds: bool) -> None:
    """Slices are pruned at every step and joined whenever there are two, not only once they are many."""
    plain = replace(stream, options={**stream.options, "updates": None} if kinds else stream.options)
    with (
        patch.object(state_module, "JOIN_FROM", 0),
        patch.object(ordered_state, "JOIN_FROM", 0),
        patch.object(ordered_state, "PRUNE_FROM", -(10**9)),
        patch.object(ordered_state, "FORGET_FROM", -(10**9)),
    ):
        assert disagreements(plain) == []


@given(stream=streams(beyond=True, most=16))
@settings(max_examples=12)
def test_rolling_up_or_not_gives_the_same(stream: Stream) -> None:
    keys = {"k": 4.0, "j": 3.0, "g": 4.0}
    dense, sparse = wr.Rates(1e12, keys), wr.Rates(1e-12, keys)  # slices are few beside the events, or many
    assert disagreements(stream, rates=dense) == []
    assert disagreements(stream, rates=sparse) == []


def test_rates_decide_what_is_rolled_up() -> None:
    queries = [
        wr.Query("fine", wr.tumbling(3), "count()", by=("k", "j")),
        wr.Query("coarse", wr.tumbling(5), "sum(x)", by="k"),
    ]
    keys = {"k": 4.0, "j": 3.0}
    assert "rolled up from" in wr.plan(queries, "t", wr.Rates(1e12, keys)).explain()
    assert "not rolled up" in wr.plan(queries, "t", wr.Rates(1e-12, keys)).explain()


@given(stream=streams(most=16), cuts=st.lists(st.integers(0, 16), max_size=5))
@settings(max_examples=16)
def test_batches_do_not_matter(stream: Stream, cuts: list[int]) -> None:
    """Without late events, once the watermark is past everything; what is a repeat does depend on the watermark."""
    queries = tuple(query for query in stream.queries if not query.distinct_on)
    rows, places = stream.rows, sorted(cuts)
    batches = [rows[a:b] for a, b in zip([0, *places], [*places, len(rows)], strict=True)]
    again = replace(stream, queries=queries, steps=(*(Step("input", batch, {}) for batch in batches), stream.steps[-1]))
    once = replace(stream, queries=queries)
    assert differences(results(again), results(once), queries) == []


# --- the check itself -------------------------------------------------------------------------------------------------

_ROWS: list[Row] = [
    {**dict.fromkeys(SCHEMA), "t": t, "o": 0, "k": "a", "x": x, "y": float(x), "s": str(x % 3), "b": x > 2, "z": x}
    for t, x in enumerate((3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8))
]


def _every_aggregate(window: Any) -> Stream:
    queries = tuple(wr.Query(f"q{n}", window, one) for n, one in enumerate(AGGREGATES))
    return Stream(queries, {"time": "t", "lateness": 0}, (*(Step("input", [row], {}) for row in _ROWS), FINISH))


_PLAIN = _every_aggregate(wr.sliding(6, 2))


@pytest.mark.parametrize("window", [wr.sliding(6, 2), wr.counting(4, 3), wr.latest(4, every=3)], ids=str)
def test_the_check_passes_on_every_aggregate(window: Any) -> None:
    assert disagreements(_every_aggregate(window)) == []


def test_the_check_catches_a_wrong_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base.Sum, "merge", lambda self, names: {"sum": pl.col(names["sum"]).first()})
    rows = [{**row, "t": 0} for row in _ROWS]
    one_slice = Stream(
        (wr.Query("total", wr.tumbling(5), "sum(x)"),),
        {"time": "t"},
        (*(Step("input", [row], {}) for row in rows), FINISH),
    )
    assert disagreements(one_slice) == ["step 12 (finish): total [0, 5]: sum(x) is 3, not 52"]


def test_the_check_catches_a_lost_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = pl.col("slice_start") != 4
    whole, ordered = CompiledGroup.slice_shared, Ordering.lifted
    monkeypatch.setattr(CompiledGroup, "slice_shared", lambda *given: whole(*given).filter(lost))
    unordered = replace(_PLAIN, queries=tuple(query for query in _PLAIN.queries if not query.needs_order))
    assert any("count() is 4, not 6" in line for line in disagreements(unordered))
    monkeypatch.setattr(Ordering, "lifted", lambda *given: _emptied(ordered(*given), lost))
    assert any("count() is 4, not 6" in line for line in disagreements(_PLAIN))


def _emptied(table: pl.DataFrame, keep: pl.Expr) -> pl.DataFrame:
    """Slices that have lost what they count."""
    return table.with_columns(pl.when(keep).then(pl.col("count().count")).otherwise(0))


def test_the_check_catches_a_wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_module, "_sorted", lambda end, rank, *rest: rank.argsort(kind="stable")[::-1])
    assert any("row 0 is" in line for line in disagreements(_PLAIN))


def test_sessions_that_fuse_are_revised_and_retracted() -> None:
    """Rare among random streams, so here for certain."""
    stream = _stream([wr.Query("m", wr.session(5), "count()")], *([{"t": t}] for t in (0, 8, 30, 4)), updates=100)
    assert disagreements(stream) == []
    told = [(row["window_start"], row["revision"], row["retracted"], row["count()"]) for row in results(stream)]
    assert told == [(0, 0, False, 1), (8, 0, False, 1), (0, 1, False, 3), (8, 1, True, None), (30, 0, False, 1)]


# --- what once failed -------------------------------------------------------------------------------------------------

_NAN = float("nan")


def _stream(queries: Sequence[wr.Query], *batches: Sequence[dict[str, Any]], **options: Any) -> Stream:
    empty = dict.fromkeys(SCHEMA) | {"o": 0}
    steps = [Step("input", [{**empty, **row} for row in batch], {}) for batch in batches]
    return Stream(tuple(queries), {"time": "t", **options}, (*steps, FINISH))


@pytest.mark.parametrize(
    "stream",
    [
        _stream([wr.Query("m", wr.tumbling(10), "count()", distinct_on="x")], [{"t": 1, "x": 1}]),
        _stream([wr.Query("m", wr.tumbling(10), "count()", time="o")], [{"t": 1, "o": 1}, {"t": 2, "o": 2}]),
        _stream([wr.Query("m", wr.tumbling(2), "count()")], [{"t": 0}], [{"t": 6}], [{"t": 1}, {"t": 3}], updates=6),
        _stream(
            [wr.Query("m", wr.session(10), "count()", by="g")],
            [{"t": 2, "g": 1.5}],
            [{"t": -29, "g": _NAN}],
            updates=20,
        ),
        _stream(
            [wr.Query("m", wr.tumbling(10), "count()", where="x > 1", distinct_on="g")],
            [{"t": -9, "g": 0.0, "x": 1}, {"t": 3, "g": -0.0, "x": 1}, {"t": 4, "g": 0.0, "x": 2}],
            lateness=12,
        ),
    ],
    ids=[
        "distinct_on",
        "no query on the own time column",
        "updates without keys",
        "NaN keys in joins",
        "-0.0 repeats 0.0",
    ],
)
def test_what_once_failed(stream: Stream) -> None:
    assert disagreements(stream) == []


def test_sessions_beside_latest_keep_their_beginning() -> None:
    queries = [wr.Query("m", wr.session(3), "count()"), wr.Query("c", wr.latest(10, every=100), "count()")]
    stream = _stream(queries, *([{"t": t} for t in range(at, at + 4)] for at in range(0, 40, 4)))
    assert disagreements(stream) == []


def test_the_rest_of_a_forgotten_window_is_no_window() -> None:
    queries = [
        wr.Query("m", wr.frames("x % 7 > 1"), "count()", by="j"),
        wr.Query("c", wr.punctuated(end="x % 17 = 0"), "last(x)", by="j"),
    ]
    batches: list[list[tuple[int, int, int]]] = [
        [(2376, 4, 197), (2381, 4, 731), (2381, 4, 1), (2432, 2, 1)],
        [(2392, 1, 11), (2530, 4, 731), (2563, 4, 765)],
        [(2524, 4, 18)],
    ]
    rows = ([{"t": t, "j": j, "x": x} for t, j, x in batch] for batch in batches)
    assert disagreements(_stream(queries, *rows, lateness=30, updates=60)) == []


def test_a_window_that_a_late_event_opens_again_goes_on_with_its_revisions() -> None:
    rows = [{"t": t, "x": 1} for t in range(1, 18)]
    stream = _stream([wr.Query("m", Filled(7), "count()")], rows, [{"t": 6, "x": -7}], lateness=3, updates=20)
    assert disagreements(stream) == []
    assert [row["revision"] for row in results(stream)] == [0, 1]


def test_an_event_too_late_for_the_order_revises_only_what_needs_no_order() -> None:
    queries = [wr.Query("m", wr.tumbling(200), "sum(x)"), wr.Query("c", wr.tumbling(200), "chained(x)")]
    stream = _stream(queries, [{"t": 221, "x": 1}, {"t": 180, "x": 2}], [{"t": 172, "x": 3}], updates=30)
    assert disagreements(stream) == []
    assert [row["revision"] for row in results(stream) if row["window_start"] == 0] == [0, 0, 1]


def test_a_query_added_to_an_engine_without_queries_begins_after_the_greatest_time_seen() -> None:
    engine = wr.Engine(wr.Query("m", wr.tumbling(10), "count()"), "t")
    engine.push(pl.DataFrame({"t": [1]}))
    engine.remove("m")
    engine.push(pl.DataFrame({"t": [21]}))
    assert engine.add(wr.Query("c", wr.tumbling(10), "count()")) == 22


def test_an_added_query_judges_repeats_among_the_events_that_it_sees() -> None:
    queries = [wr.Query(name, wr.tumbling(10), "count()", distinct_on="x") for name in ("m", "c")]
    plain = _stream(queries[:1], [{"t": 19, "x": 1}], [{"t": t, "x": 1} for t in (20, 21, 24)], lateness=3)
    before, *rest = plain.steps
    stream = replace(plain, steps=(before, Step("add", queries[1], {}), *rest))
    assert disagreements(stream) == []
    assert [row["count()"] for row in results(stream) if row["query"] == "c"] == [2]
