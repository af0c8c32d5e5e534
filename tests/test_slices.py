"""The slice table: merged in any tree, cut in any split, rolled up or sliced by the coarser keys, it is the same table.

Sums of floats may differ in their last digits; everything else is equal.
"""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import windrow as wr
from windrow.core.ordered.slicing import Carry, Ordering
from windrow.core.plan.groups import Group
from windrow.core.plan.plan import Plan, plan
from windrow.core.plan.watermark import WatermarkStep
from windrow.core.slices.binding import Binding
from windrow.core.slices.kernel import Edges, roll_up, slice
from windrow.core.slices.table import SliceSchema, merge
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN, Session
from windrow.io.tables import pack, unpack
from windrow.testing.strategies import (
    AGGREGATES,
    FILTERS,
    KEYS,
    KINDS,
    ORDERED,
    SCHEMA,
    Row,
    frame,
    tables,
    windows,
)

UNORDERED = tuple(kind for kind in KINDS if kind not in ORDERED)
MERGEABLE = tuple(one for one in AGGREGATES if not one.needs_order)


@st.composite
def query_sets(draw: st.DrawFn, keys: tuple[tuple[str, ...], ...]) -> list[wr.Query]:
    """A query or two for each key set, all over the same events."""
    asked: list[wr.Query] = []
    for by in keys:
        for _ in range(draw(st.integers(1, 2))):
            window = draw(windows(UNORDERED))
            inside = draw(st.sampled_from((None, *FILTERS))) if not isinstance(window, Session) else None
            several = draw(st.lists(st.sampled_from(MERGEABLE), min_size=1, max_size=4, unique=True))
            asked.append(wr.Query(f"q{len(asked)}", window, several, by=by, where=inside))
    return asked


class Sliced:
    """One plan over the columns of the strategies, and how its groups slice events."""

    def __init__(self, queries: list[wr.Query]) -> None:
        self.plan: Plan = plan(queries, "t")
        self.binding = Binding(self.plan, SCHEMA, ())

    def group(self, by: tuple[str, ...]) -> Group:
        return next(group for group in self.plan.groups if group.keys == by)

    def schema(self, group: Group, shared: bool = False) -> SliceSchema:
        return self.binding.schema(group, shared=shared)

    def prepared(self, rows: list[Row]) -> pl.DataFrame:
        return self.binding.prepare(frame(rows), 0, lambda: 0)

    def slice(self, batch: pl.DataFrame, group: Group, shared: bool = False) -> pl.DataFrame:
        edges = Edges.of(group.needs(shared)[0])
        return slice(batch, "t", edges, self.schema(group, shared))


def assert_same(left: pl.DataFrame, right: pl.DataFrame) -> None:
    assert_frame_equal(left, right, check_exact=False, rel_tol=1e-9, abs_tol=1e-6)


def split(batch: pl.DataFrame, cuts: list[int]) -> list[pl.DataFrame]:
    places = [0, *sorted(cut % (batch.height + 1) for cut in cuts), batch.height]
    return [batch[a:b] for a, b in pairwise(places)]


Cuts = st.lists(st.integers(0, 40), max_size=6)
OneGroup = st.sampled_from(KEYS).flatmap(lambda by: query_sets((by,)))


@given(queries=OneGroup, rows=tables(), cuts=Cuts, barred=st.booleans(), data=st.data())
@settings(max_examples=30)
def test_any_tree_of_merges_gives_the_same_table(
    queries: list[wr.Query], rows: list[Row], cuts: list[int], barred: bool, data: Any
) -> None:
    sliced = Sliced(queries)
    (group,) = sliced.plan.groups
    schema = sliced.schema(group)
    batch = sliced.prepared(rows)
    if barred and schema.gap is not None:  # late events that some session has left out
        batch = batch.with_columns(barred=(pl.int_range(pl.len()) % 3 == 1).cast(pl.Int32))
    parts = [sliced.slice(part, group) for part in split(batch, cuts)]
    whole = merge(parts, schema)
    tree = list(parts)
    while len(tree) > 1:
        one = tree.pop(data.draw(st.integers(0, len(tree) - 1)))
        other = tree.pop(data.draw(st.integers(0, len(tree) - 1)))
        tree.append(merge([one, other], schema))
    assert_same(merge(tree, schema), whole)
    assert_same(merge([whole], schema), whole)
    assert_same(merge([whole, schema.empty()], schema), whole)
    assert_same(whole, merge([sliced.slice(batch, group)], schema))  # split and merged, or sliced at once
    assert whole.schema == schema.columns


@given(
    keys=st.sampled_from(((("k", "j"), ("k",)), (("j", "k"), ("j",)), (("g",), ()), (("k", "j"), ()))).flatmap(
        lambda keys: st.tuples(st.just(keys), query_sets(keys))
    ),
    rows=tables(),
)
@settings(max_examples=25)
def test_rolling_up_is_slicing_by_the_coarser_keys(keys: Any, rows: list[Row]) -> None:
    (fine, coarse), queries = keys
    sliced = Sliced(queries)
    finer, coarser = sliced.group(fine), sliced.group(coarse)
    assert coarser.parent is finer
    batch, schema = sliced.prepared(rows), sliced.schema(coarser)
    shared = sliced.slice(batch, finer, shared=True)
    direct = merge([sliced.slice(batch, coarser)], schema)
    assert_same(roll_up(shared, Edges.of(coarser.timelines), schema), direct)
    own = merge([sliced.slice(batch, finer)], sliced.schema(finer))
    assert_same(roll_up(shared, Edges.of(finer.timelines), sliced.schema(finer)), own)


@given(queries=OneGroup, rows=tables())
@settings(max_examples=20)
def test_a_table_survives_the_wire(queries: list[wr.Query], rows: list[Row]) -> None:
    sliced = Sliced(queries)
    (group,) = sliced.plan.groups
    table = merge([sliced.slice(sliced.prepared(rows), group)], sliced.schema(group))
    header, found = unpack(pack({"node": "a\n", "n": 1}, {"slices": table, "none": table.clear()}))
    assert (header["node"], header["n"]) == ("a\n", 1)
    assert_frame_equal(found["slices"], table)
    assert_frame_equal(found["none"], table.clear())


@given(by=st.sampled_from(KEYS), rows=tables(), marks=st.lists(st.integers(-40, 400), max_size=4), data=st.data())
@settings(max_examples=25)
def test_ordered_slices_do_not_depend_on_when_the_order_became_final(
    by: tuple[str, ...], rows: list[Row], marks: list[int], data: Any
) -> None:
    # latest has events sliced again that are held for it
    kinds = data.draw(st.lists(windows([kind for kind in KINDS if kind != "latest"]), min_size=1, max_size=3))
    queries = [wr.Query(f"q{n}", window, ["count()", "collect(x)"], by=by) for n, window in enumerate(kinds)]
    sliced = Sliced([*queries, wr.Query("ordered", wr.counting(2), "last(s)", by=by)])
    (group,) = sliced.plan.groups
    ordering = Ordering(group, sliced.schema(group), Edges.of(group.timelines))
    events = sliced.prepared(rows)

    def at_steps(marks: list[int]) -> pl.DataFrame:
        carry, tables, before = Carry(ordering.schema.keys, ordering.initial), [], INT64_MIN
        for mark in [*sorted(marks), INT64_MAX]:
            part = events.filter((pl.col("time:t") >= before) & (pl.col("time:t") < mark))
            if part.height:
                found = ordering.slice(part, None, carry, WatermarkStep(before, mark, before, mark))
                carry.set(found.keys, found.done)
                tables.append(found.table)
            before = mark
        return merge(tables, ordering.schema) if tables else ordering.schema.empty()

    assert_same(at_steps(marks), at_steps([]))


def test_the_comparison_can_fail() -> None:
    sliced = Sliced([wr.Query("q", wr.session(2), "sum(x)")])
    (group,) = sliced.plan.groups
    rows: list[Row] = [{**dict.fromkeys(SCHEMA), "t": t, "o": 0, "x": t} for t in (1, 2, 9)]
    batch = sliced.prepared(rows)
    with pytest.raises(AssertionError):
        assert_same(sliced.slice(batch, group), sliced.slice(batch[:2], group))


def test_threads_may_pack_the_same_table_at_once() -> None:
    # Polars locks a table while it is written, and needs Python's lock meanwhile: who waits for the one holds the other
    code = """
import threading
import polars as pl
from windrow.io.tables import pack

table = pl.DataFrame({"a": range(20_000)})
threads = [threading.Thread(target=lambda: [pack({}, {"t": table}) for _ in range(100)]) for _ in range(3)]
for one in threads:
    one.start()
for one in threads:
    one.join()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
