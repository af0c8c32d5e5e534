"""Whether results are right: against the oracle on few events, and against windrow's on many.

The oracle recomputes every window from its definition, and is slow. A few hundred events of the stream, spread over all
of it, and some of the queries are enough for it to see every kind of window that an experiment has; all the others are
compared between systems, at the size that is measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

import windrow as wr
from bench.baselines.common import TIME
from windrow.testing import differences, recompute

FEW_EVENTS, FEW_QUERIES = 300, 12
_NOT_COMPARED = ("revision", "retracted")


def few(queries: Sequence[wr.Query]) -> list[wr.Query]:
    """Queries from the first to the last."""
    step = max(1, -(-len(queries) // FEW_QUERIES))
    return [*queries[::step], *queries[-1:]] if (len(queries) - 1) % step else list(queries[::step])


def by_oracle(found: pl.DataFrame, events: pl.DataFrame, queries: Sequence[wr.Query]) -> list[str]:
    """What is wrong with results, in words."""
    if "revision" not in found.columns:
        found = found.with_columns(revision=pl.lit(0))  # a baseline says nothing twice
    return differences(
        found.iter_rows(named=True), recompute(events.iter_rows(named=True), queries, time=TIME), queries
    )


def _is_empty(name: str, found: pl.DataFrame, expected: pl.DataFrame) -> bool:
    """Whether a column is that of queries without results, which not every system has then."""
    return name not in found.columns and expected[name].null_count() == expected.height


def apart(found: pl.DataFrame, expected: pl.DataFrame) -> list[str]:
    """Where two systems differ; floats may in the ninth digit."""
    if not found.height and not expected.height:
        return []
    if found.height != expected.height:
        return [f"{found.height:,} results, and should be {expected.height:,}"]
    columns = [name for name in expected.columns if name not in _NOT_COMPARED]
    found = found.with_columns(
        expected[name].clear(found.height) for name in columns if _is_empty(name, found, expected)
    )
    if missing := [name for name in columns if name not in found.columns]:
        return [f"no columns {', '.join(missing)}"]
    identity = [name for name in columns if "(" not in name]
    one, other = (frame.select(columns).sort(identity, nulls_last=False) for frame in (found, expected))
    wrong = []
    for name in columns:
        left, right = one[name], other[name]
        if left.dtype.is_float() or right.dtype.is_float():
            tolerance = 1e-9 * pl.max_horizontal(pl.col("a").abs(), pl.col("b").abs(), pl.lit(1e-9))
            pair = pl.DataFrame({"a": left.cast(pl.Float64), "b": right.cast(pl.Float64)})
            same = ((pl.col("a") - pl.col("b")).abs() <= tolerance) | (pl.col("a").eq_missing(pl.col("b")))
            bad = int((~pair.select(same.fill_null(False)).to_series()).sum())
        else:
            bad = int(left.cast(right.dtype).ne_missing(right).sum())
        if bad:
            wrong.append(f"{bad:,} of {found.height:,} results differ in {name}")
    return wrong
