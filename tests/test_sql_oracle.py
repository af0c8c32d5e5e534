"""A second oracle, that nobody here wrote: DuckDB answers the same windows in SQL over a few ten thousand events.

Tumbling windows are a `GROUP BY` of a floor, sliding ones a join with the list of their starts, sessions the textbook
`lag` and running sum (over a RANGE: whichever of several events of the same time is marked, all are in its session).
Count windows are a `row_number` in the order of time and arrival, divided, or joined with the list of their starts;
punctuated ones and frames are running counts. Both the whole table and a stream in disordered batches must agree.
"""

from __future__ import annotations

import math

import duckdb
import numpy as np
import polars as pl
import pytest

import windrow as wr

EVENTS = 30_000
LATENESS = 400
LENGTH, SLIDE, OFFSET, GAP = 700, 300, 13, 25
N, STEP = 97, 40

AGGREGATES = {
    "n": ("count()", "count(*)"),
    "xs": ("count(x)", "count(x)"),
    "total": ("sum(i)", "sum(i)::BIGINT"),
    "sum_x": ("sum(x)", "sum(x)"),
    "low": ("min(x)", "min(x)"),
    "high": ("max(x)", "max(x)"),
    "avg_x": ("mean(x)", "avg(x)"),
    "mid": ("median(x)", "median(x)"),
    "p90": ("quantile(x, 0.9)", "quantile_cont(x, 0.9)"),
    "dev": ("stddev(x)", "stddev_samp(x)"),
    "dev_pop": ("stddev_pop(i)", "stddev_pop(i)"),
    "values": ("distinct(i)", "count(DISTINCT i)"),
    "smallest": ("min(s)", "min(s)"),
}
SELECTED = ", ".join(f'{sql} AS "{name}"' for name, (_, sql) in AGGREGATES.items())


@pytest.fixture(scope="module")
def events(seed: int) -> pl.DataFrame:
    """In order of time, with pauses, many keys of different density, nulls, and values far from zero."""
    random = np.random.default_rng(seed)
    steps = random.choice([0, 0, 0, 1, 2, 5, 40, 3000], EVENTS, p=[0.2, 0.2, 0.2, 0.2, 0.1, 0.05, 0.049, 0.001])
    x = np.round(random.normal(1e5, 30, EVENTS), 3)
    i = random.integers(-50, 50, EVENTS)
    frame = pl.DataFrame(
        {
            "t": np.cumsum(steps) - 20_000,
            "k": random.choice(["a", "b", "c", "d"], EVENTS, p=[0.6, 0.3, 0.09, 0.01]),
            "x": x,
            "i": i,
            "s": random.choice(["u", "v", "w"], EVENTS),
        }
    )
    holes = pl.Series(random.random(EVENTS))
    return frame.with_columns(
        k=pl.when(holes < 0.97).then("k"), x=pl.when(holes > 0.05).then("x"), i=pl.when(holes > 0.02).then("i")
    )


TUMBLING = f"""
    SELECT k, start AS window_start, start + {LENGTH} AS window_end, {SELECTED}
    FROM (SELECT *, floor((t - {OFFSET}) / {LENGTH})::BIGINT * {LENGTH} + {OFFSET} AS start FROM events)
    GROUP BY k, start
"""
SLIDING = f"""
    WITH starts AS (
        SELECT unnest(range((SELECT floor((min(t) - {LENGTH}) / {SLIDE})::BIGINT * {SLIDE} FROM events),
                            (SELECT max(t) + 1 FROM events), {SLIDE})) AS start
    )
    SELECT k, start AS window_start, start + {LENGTH} AS window_end, {SELECTED}
    FROM starts JOIN events ON t >= start AND t < start + {LENGTH}
    WHERE i > -40
    GROUP BY k, start
"""
SESSION = f"""
    WITH marked AS (
        SELECT *, CASE WHEN t - lag(t) OVER w <= {GAP} THEN 0 ELSE 1 END AS fresh
        FROM events WINDOW w AS (PARTITION BY k ORDER BY t)
    ), numbered AS (
        SELECT *, sum(fresh) OVER (PARTITION BY k ORDER BY t RANGE UNBOUNDED PRECEDING) AS session FROM marked
    )
    SELECT k, min(t) AS window_start, max(t) + {GAP} AS window_end, {SELECTED}
    FROM numbered GROUP BY k, session
"""
PLACED = """
    WITH placed AS (
        SELECT *, row_number() OVER (PARTITION BY k ORDER BY t, arrival) - 1 AS place FROM events WHERE {where}
    )
"""
COUNTING = f"""
    {PLACED.format(where="true")}
    SELECT k, min(t) AS window_start, max(t) AS window_end, place // {N} * {N} AS position, {SELECTED}
    FROM placed GROUP BY k, place // {N} HAVING count(*) = {N}
"""
SLIDING_COUNTING = f"""
    {PLACED.format(where="i > -40")}
    SELECT k, min(t) AS window_start, max(t) AS window_end, position, {SELECTED}
    FROM (SELECT unnest(range(0, (SELECT max(place) + 1 FROM placed), {STEP})) AS position)
    JOIN placed ON place >= position AND place < position + {N}
    GROUP BY k, position HAVING count(*) = {N}
"""
PUNCTUATED = f"""
    WITH marked AS (
        SELECT *, CASE WHEN i > 45 THEN 1 ELSE 0 END AS ends FROM events
    ), numbered AS (
        SELECT *, sum(ends) OVER (PARTITION BY k ORDER BY t, arrival ROWS UNBOUNDED PRECEDING) - ends AS number
        FROM marked
    )
    SELECT k, min(t) AS window_start, max(t) AS window_end, {SELECTED}
    FROM numbered GROUP BY k, number HAVING max(ends) = 1
"""
FRAMES = f"""
    WITH marked AS (
        SELECT *, CASE WHEN i > 0 THEN 0 ELSE 1 END AS breaks FROM events
    ), numbered AS (
        SELECT *, sum(breaks) OVER (PARTITION BY k ORDER BY t, arrival ROWS UNBOUNDED PRECEDING) AS number FROM marked
    )
    SELECT k, min(t) AS window_start, max(t) AS window_end, {SELECTED}
    FROM numbered WHERE breaks = 0 GROUP BY k, number
"""
CASES = {
    "tumbling": (wr.tumbling(LENGTH, OFFSET), None, TUMBLING),
    "sliding": (wr.sliding(LENGTH, SLIDE), "i > -40", SLIDING),
    "session": (wr.session(GAP), None, SESSION),
    "counting": (wr.counting(N), None, COUNTING),
    "sliding counting": (wr.counting(N, STEP), "i > -40", SLIDING_COUNTING),
    "punctuated": (wr.punctuated(end="i > 45"), None, PUNCTUATED),
    "frames": (wr.frames(when="i > 0"), None, FRAMES),
}


def queries() -> list[wr.Query]:
    """All at once, so that they share slices, and coarser ones beside them."""
    asked = [wr.aggregate(text).alias(name) for name, (text, _) in AGGREGATES.items()]
    several = [wr.Query(name, window, asked, by="k", where=where) for name, (window, where, _) in CASES.items()]
    return [
        *several,
        wr.Query("all", wr.tumbling(LENGTH), "count()"),
        wr.Query("gaps", wr.session(4 * GAP), "count()", by="k"),
    ]


def disordered(events: pl.DataFrame, seed: int) -> pl.DataFrame:
    """The events as they come: up to the lateness out of order, and those of one time in any order."""
    random = np.random.default_rng(seed + 1)
    return events.sort(events["t"] + pl.Series(random.integers(0, LATENESS, events.height)), maintain_order=True)


def streamed(mixed: pl.DataFrame, seed: int) -> pl.DataFrame:
    """The results of a stream of these events, in batches of several sizes."""
    random = np.random.default_rng(seed + 2)
    engine = wr.Engine(queries(), "t", lateness=LATENESS)
    found, at = [], 0
    while at < mixed.height:
        size = int(random.choice([1, 500, 4000]))
        found.append(engine.push(mixed[at : at + size]))
        at += size
    found.append(engine.finish())
    assert engine.metrics.dropped == 0
    return pl.concat(found)


def told(events: pl.DataFrame, sql: str) -> pl.DataFrame:
    with duckdb.connect() as connection:
        connection.register("events", events.with_row_index("arrival").to_arrow())
        found = pl.from_arrow(connection.sql(sql).arrow())
    assert isinstance(found, pl.DataFrame)
    return found


def check(found: pl.DataFrame, name: str, want: pl.DataFrame) -> None:
    order = ["window_start", "window_end", "k", *(["position"] if "position" in want.columns else [])]
    alike = ["n", "total", "low", "high"]  # windows that the events decide may have the same bounds
    have = found.filter(pl.col("query") == name).sort([*order, *alike])
    want = want.sort([*order, *alike])
    assert have.height == want.height > 50
    assert have.select(order).equals(want.select(order))
    for column in AGGREGATES:
        pairs = zip(have[column].to_list(), want[column].to_list(), strict=True)
        wrong = [
            (a, b)
            for a, b in pairs
            if a != b
            and not (isinstance(a, float) and b is not None and math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9))
        ]
        assert wrong == [], (name, column)


@pytest.mark.parametrize("name", CASES)
def test_whole_tables_agree_with_duckdb(events: pl.DataFrame, name: str) -> None:
    check(wr.windows(events, queries(), "t"), name, told(events, CASES[name][2]))


def test_streams_agree_with_duckdb(events: pl.DataFrame, seed: int) -> None:
    mixed = disordered(events, seed)
    found = streamed(mixed, seed)
    for name, (_, _, sql) in CASES.items():
        check(found, name, told(mixed, sql))


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [("session", f"<= {GAP}", f"< {GAP}"), ("counting", "ORDER BY t, arrival", "ORDER BY t, x")],
)
def test_the_check_can_fail(events: pl.DataFrame, name: str, right: str, wrong: str) -> None:
    sql = CASES[name][2]
    assert right in sql
    with pytest.raises(AssertionError):
        check(wr.windows(events, queries(), "t"), name, told(events, sql.replace(right, wrong)))
