"""Values that a child cannot have are refused before anything is kept: each kind by name, and why.

`fuzz_values` draws such values at random; a batch here is one that an honest child has sent, with one thing changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import polars as pl
import pytest

import windrow as wr
from fuzz_values import QUERY_SETS, Values
from windrow.core.expressions.errors import QueryError
from windrow.core.slices.binding import InputError
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.nodes.protocol.messages import Batch, Queries, Welcome
from windrow.nodes.protocol.node import Node
from windrow.nodes.queries import QuerySet

SLICES, EVENTS, ROWS = "by (k) on t", "by (k) on t (in order)", "by (k, node) on t (at nodes)"
SESSIONS = "by (k) on t (sessions)"


@cache
def honest(kind: str) -> Values:
    return Values(kind, inner=False)


def reason_for(kind: str, table: str, change: Callable[[pl.DataFrame], pl.DataFrame]) -> str | None:
    """Why the root refuses the first batch with such a table and rows in it, once that is changed."""
    sample = next(one for one in honest(kind).samples if any(name.endswith(table) for name in one.batch.tables))
    name = next(name for name in sample.batch.tables if name.endswith(table))
    tables = {**sample.batch.tables, name: change(sample.batch.tables[name])}
    root = sample.before.copy().begin("root").nodes["root"]
    assert root.as_parent is not None
    assert root.as_parent.subtree.wrong_with(sample.batch) is None
    return root.as_parent.subtree.wrong_with(replace(sample.batch, tables=tables))


def with_(column: str, value: object) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """One value everywhere in a column."""
    return lambda table: table.with_columns(pl.lit(value, table.schema[column]).alias(column))


def lists(column: str, of: Callable[[pl.Expr], pl.Expr]) -> Callable[[pl.DataFrame], pl.DataFrame]:
    return lambda table: table.with_columns(of(pl.col(column).list))  # type: ignore[arg-type]


CASES = [
    ("slices", SLICES, with_("slice_start", INT64_MAX), "'slice_start' is 9,223,372,036,854,775,807"),
    ("slices", SLICES, with_("slice_start", -(2**63) + 1), "'slice_start' is -9,223,372,036,854,775,807"),
    ("slices", SLICES, with_("slice_start", 2**62), "'slice_start' is 4,611,686,018,427,387,904"),
    ("slices", SLICES, with_("slice_start", None), "'slice_start' has no value"),
    ("slices", SLICES, with_("count().count", -1), "of count() 'count' is -1"),
    ("slices", SLICES, with_("count().count", INT64_MAX), "of count() 'count' is 9,223,372,036,854,775,807"),
    ("slices", SLICES, with_("count().count", 2**48), "'count' is"),
    ("slices", SLICES, with_("moments(x).n", float("nan")), "'n' is nan"),
    ("slices", SLICES, with_("logs(y).zeros", -5), "'zeros' is -5"),
    ("slices", SLICES, with_("sum(x).sum", 10**37), "of sum(x) 'sum' is"),
    ("slices", SLICES, with_("sum(z).size", -1.0), "'size' is less than the sum"),
    ("slices", SLICES, lists("bag(y).values", lambda one: one.reverse()), "'values' are not in order"),
    ("slices", SLICES, lists("bag(y).values", lambda one: one.head(1)), "'values' and 'counts' are not as many"),
    ("slices", SLICES, lists("bag(y).counts", lambda one: one.eval(pl.element() * 0)), "'counts' is 0"),
    ("slices", SLICES, lists("bag(y).counts", lambda one: one.eval(-pl.element())), "'counts' is -"),
    ("slices", SLICES, lists("collect(x).nth", lambda one: one.head(1)), "not as long as those beside them"),
    ("slices", SLICES, with_("kll(y, 200).sketch", b"no sketch"), "'sketch' is no kll sketch"),
    ("slices", SLICES, with_("hll(x, 12).sketch", b""), "'sketch' is no hll sketch"),
    ("slices", SESSIONS, with_("first", INT64_MAX), "'first' is 9,223,372,036,854,775,807"),
    ("slices", SESSIONS, with_("last", -1_000), "a run ends before it begins"),
    ("slices", SESSIONS, lambda table: table.drop("last"), "a run has no first or no last event"),
    ("slices", SESSIONS, with_("excluded", 7), "only a state has exclusion sets"),
    ("slices", "by (node) on t", with_("key:node", "somebody"), "it counts for 'somebody', which is another node"),
    ("events", EVENTS, with_("time:t", INT64_MIN), "'time:t' is -9,223,372,036,854,775,808"),
    ("events", EVENTS, with_("time:t", None), "'time:t' has no value"),
    ("counting", "|segments", with_("last", INT64_MAX), "'last' is 9,223,372,036,854,775,807"),
    ("counting", "progress", with_("received", -1), "'received' is -1"),
    ("quantiles", "|blocks bag(x)", with_("size", 0), "it has blocks whose 'size' is 0"),
    ("quantiles", "|blocks bag(x)", with_("end", INT64_MAX), "'end' is 9,223,372,036,854,775,807"),
    ("quantiles", "|blocks bag(x)", lists("first", lambda one: one.reverse()), "its blocks are not in order"),
    ("windows", "nodes", with_("late", -1), "'late' is -1"),
    ("windows", ROWS, with_("window_end", INT64_MIN), "'window_end' is -9,223,372,036,854,775,808"),
    ("windows", ROWS, with_("revision", None), "'revision' has no value"),
]


@pytest.mark.parametrize(("kind", "table", "change", "reason"), CASES, ids=[case[3] for case in CASES])
def test_values_that_cannot_be(
    kind: str, table: str, change: Callable[[pl.DataFrame], pl.DataFrame], reason: str
) -> None:
    found = reason_for(kind, table, change)
    assert found is not None
    assert reason in found


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"events": {"evil": 0}}, "the events of 'evil' go back from"),
        ({"events": {"somebody": 5}}, "it counts for 'somebody', which is another node"),
    ],
)
def test_numbers_of_events_that_cannot_be(change: dict[str, dict[str, int]], reason: str) -> None:
    sample = honest("slices").samples[-1]
    root = sample.before.copy().begin("root").nodes["root"]
    assert root.as_parent is not None
    assert reason in str(root.as_parent.subtree.wrong_with(replace(sample.batch, **change)))  # type: ignore[arg-type]


@pytest.mark.parametrize("time", [INT64_MAX, INT64_MIN, 2**62, -(2**62)])
@pytest.mark.parametrize("bad_events", ["raise", "drop"])
def test_an_engine_refuses_times_around_which_no_window_can_be_written(time: int, bad_events: str) -> None:
    engine = wr.Engine([wr.Query("q", wr.tumbling(10), "count()")], time="t", lateness=0, bad_events=bad_events)
    with pytest.raises(InputError, match="so far out that tumbling"):
        engine.push(pl.DataFrame({"t": [time]}))
    assert engine.push(pl.DataFrame({"t": [1, 12]}))["count()"].to_list() == [1]


@pytest.mark.parametrize(
    "change",
    [
        {"queries": [{}]},
        {"queries": 7},
        {"options": {"time": "nothing"}},
        {"local_keys": None},
        {"since": [1]},
        {"version": "new", "queries": [{"name": "q", "window": "tumbling(0)"}]},
    ],
    ids=str,
)
def test_queries_that_are_none_are_refused_by_a_child_with_a_sentence(change: dict[str, object]) -> None:
    query_set = QUERY_SETS["slices"]()
    described = query_set.to_dict() | change
    with pytest.raises(QueryError, match=r"this does not describe a query|cannot be read: "):
        QuerySet.from_dict(described, query_set.table)
    for message in (
        Welcome(1, 0, {}, described, {"columns": query_set.table}),
        Welcome(1, 0, {}, query_set.to_dict(), {}),
        Queries(1, described, {"columns": query_set.table}),
    ):
        child = Node("child", "root", life=1)
        assert child.receive("root", message, 0) == []
        assert child.refused is not None
        assert re.match(
            "it cannot read what root asks: (this does not describe a query|.* cannot be read: )", child.refused
        )
        assert "\n" not in child.refused


@pytest.mark.parametrize(("kind", "table"), [("slices", SLICES), ("events", EVENTS), ("windows", ROWS)])
def test_columns_that_no_query_reads_may_be_anything(kind: str, table: str) -> None:
    """They are those of queries that have gone, which a node may not have heard yet."""
    odd = {name: pl.lit([[1, 2]]) for name in ("nth", "first", "excluded", "odd")}
    assert reason_for(kind, table, lambda rows: rows.with_columns(**{**odd, **{c: c for c in rows.columns}})) is None


def test_a_batch_is_what_is_changed() -> None:
    """Without a change nothing is refused, so that each case above fails for its own reason."""
    for kind in QUERY_SETS:
        assert all(isinstance(sample.batch, Batch) for sample in honest(kind).samples)
        assert reason_for(kind, "", lambda table: table.reverse()) is None or kind == "counting"
