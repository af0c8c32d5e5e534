"""Streaming queries on Spark: for every window that the final watermark has passed, what the oracle says.

A stream is a folder of files, each a micro-batch. Its events are never late, so in whatever batches they come the
results are those of one batch that holds them all.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import windrow as wr
from spark_cases import Source, closed, run
from windrow.testing import differences
from windrow.testing.strategies import KINDS, NAMES, Row, batches, queries
from windrow.testing.strategies import frame as table_of

pytestmark = pytest.mark.spark

_numbers = itertools.count()
LATENESS = 5


@st.composite
def many_queries(draw: st.DrawFn) -> tuple[wr.Query, ...]:
    """One query with each kind of window, in one list."""
    asked = [draw(queries(f"{NAMES[n % 3]}{n}", kinds=[kind])) for n, kind in enumerate(KINDS)]
    return tuple(
        wr.Query(one.name, one.window, one.aggregates, by=one.by, where=one.where) for one in asked
    )  # without distinct_on, which a stream on Spark refuses


@given(
    rows=batches({"t": LATENESS}, most=60).map(lambda parts: [row for part in parts for row in part]),
    asked=many_queries(),
    order_by=st.sampled_from(((), ("x",))),
    cuts=st.lists(st.floats(0, 1), min_size=1, max_size=4),
)
@settings(max_examples=3, phases=[Phase.explicit, Phase.generate])  # to shrink what fails would take an hour
def test_random_streams(
    spark: Any,
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[Row],
    asked: tuple[wr.Query, ...],
    order_by: tuple[str, ...],
    cuts: list[float],
) -> None:
    places = [0, *sorted(int(cut * len(rows)) for cut in cuts), len(rows)]
    parts = [table_of(rows[a:b]) for a, b in itertools.pairwise(places)]
    name = f"stream{next(_numbers)}"
    source = Source(tmp_path_factory.mktemp(name) / "in", parts)
    options: dict[str, Any] = {"lateness": LATENESS, "order_by": order_by}
    found = run(wr.windows(source.read(spark), asked, "t", **options), name)
    assert differences(found, closed(rows, asked, **options), asked) == []
