"""Streaming queries on Spark: for every window that the final watermark has passed, what the oracle says.

A stream is a folder of files, each a micro-batch. Its events are never late, so in whatever batches they come the
results are those of one batch that holds them all.
"""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import windrow as wr
from spark_cases import Source, closed, reads, run
from test_spark_buckets import streamed
from test_transcripts import TRANSCRIPTS
from windrow.testing import Oracle, differences
from windrow.testing.compare import _identity
from windrow.testing.strategies import KINDS, NAMES, SCHEMA, Row, batches, queries
from windrow.testing.strategies import frame as table_of
from windrow.testing.transcripts import Transcript, read

pytestmark = pytest.mark.spark

_numbers = itertools.count()
LATENESS = 5


@st.composite
def many_queries(draw: st.DrawFn) -> tuple[wr.Query, ...]:
    """One query with each kind of window, in one list."""
    asked = [draw(queries(f"{NAMES[n % 3]}{n}", kinds=[kind])) for n, kind in enumerate(KINDS)]
    return tuple(
        wr.Query(one.name, one.window, one.aggregates, by=one.by, where=one.where, having=one.having) for one in asked
    )  # without distinct_on, which a stream on Spark refuses


@given(
    rows=batches({"t": LATENESS}, most=60)
    .map(lambda parts: [row for part in parts for row in part])
    .filter(lambda rows: len(rows) > 20),
    asked=many_queries(),
    cuts=st.lists(st.floats(0, 1), min_size=1, max_size=3),
)
@settings(
    max_examples=2, phases=[Phase.explicit, Phase.generate], suppress_health_check=[HealthCheck.filter_too_much]
)  # to shrink what fails would take an hour
def test_random_streams(
    spark: Any,
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[Row],
    asked: tuple[wr.Query, ...],
    cuts: list[float],
) -> None:
    places = [0, *sorted(int(cut * len(rows)) for cut in cuts), len(rows)]
    parts = [table_of(rows[a:b]) for a, b in itertools.pairwise(places)]
    name = f"stream{next(_numbers)}"
    source = Source(tmp_path_factory.mktemp(name) / "in", parts)
    order_by = [column for column in reads(asked, "t") if column != "t"]  # a hash breaks ties that are left
    options: dict[str, Any] = {"lateness": LATENESS, "order_by": order_by}
    found = run(wr.windows(source.read(spark), asked, "t", **options), name)
    assert differences(found, closed(rows, asked, **options), asked) == []


# --- updates ----------------------------------------------------------------------------------------------------------

UPDATES = 100


def last_said(rows: list[dict[str, Any]], asked: tuple[wr.Query, ...]) -> list[dict[str, Any]]:
    """What stands in the end; the revisions of every window are 0, 1, 2 and so on."""
    known = {query.name: query for query in asked}
    windows: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        windows.setdefault(_identity(row, known), []).append(row)
    found = []
    for identity, several in windows.items():
        several.sort(key=lambda row: row["revision"])
        assert [row["revision"] for row in several] == list(range(len(several))), identity
        if not several[-1]["retracted"]:
            found.append(several[-1] | {"revision": 0})
    return found


def test_updates(spark: Any, tmp_path: Path, seed: int) -> None:
    """Late events within `updates` change what was said until it is what one batch of all events gives."""
    draw = random.Random(seed)
    rows, newest = [], 1000
    for _ in range(60):
        newest += draw.choice((0, 1, 1, 2, 5, 9))
        back = draw.randrange(UPDATES) if draw.random() < 0.3 else 0
        x, k = draw.choice((1, 2, 3, None)), draw.choice("aab")
        rows.append(dict.fromkeys(SCHEMA) | {"t": newest - back, "k": k, "x": x, "b": draw.random() < 0.3})
    asked = (
        wr.Query("tumbling", wr.tumbling(10), ["count()", "sum(x)"], by="k"),
        wr.Query("all", wr.sliding(12, 5), ["max(x)"]),
        wr.Query("session", wr.session(4), ["count()", "collect(x)"], by="k"),
        wr.Query("counting", wr.counting(4), ["sum(x)"], by="k"),
        wr.Query("frames", wr.frames("x > 1"), ["count()"], by="k"),
        wr.Query("latest", wr.latest(3, 10), ["sum(x)"], by="k"),
    )
    source = Source(tmp_path / "in", [table_of(rows[n : n + 15]) for n in range(0, 60, 15)])
    frame = wr.windows(source.read(spark), asked, "t", lateness=0, updates=UPDATES, order_by="x")
    found = run(frame, "updates", "update")
    assert any(row["revision"] for row in found)
    assert any(row["retracted"] for row in found)
    assert differences(last_said(found, asked), closed(rows, asked, order_by="x"), asked) == []


# --- late events, idle keys -------------------------------------------------------------------------------------------


def test_late_events_are_counted_and_idle_keys_closed(spark: Any, tmp_path: Path) -> None:
    def events(*given: tuple[str, int]) -> pl.DataFrame:
        return pl.DataFrame([{"t": t, "k": k} for k, t in given], schema={"t": pl.Int64(), "k": pl.String()})

    query = wr.Query("q", wr.tumbling(10), "count()", by="k")
    other = wr.Query("n", wr.counting(1), "count()", by="k")
    source = Source(
        tmp_path / "in",
        [
            events(("a", 0), ("a", 3), ("b", 50)),
            events(("b", 100)),
            events(("a", 2), ("a", 4), ("b", 97)),  # the window of the first two is out, and so is that order
            events(("c", 1000)),
        ],
    )
    progress: list[Any] = []
    frame = wr.windows(source.read(spark), [query, other], "t", lateness=5, metrics="seen")
    found = run(frame, "late", progress=progress)
    counted = [one.observedMetrics["seen"] for one in progress if "seen" in one.observedMetrics]
    assert sum(one["dropped"] for one in counted) == 2  # each of two events once, though both queries miss it
    rows = [{"t": t, "k": k} for k, t in (("a", 0), ("a", 3), ("b", 50), ("b", 100), ("b", 97), ("c", 1000))]
    assert differences(found, closed(rows, [query, other], lateness=5), [query, other]) == []


# --- Spark's own ------------------------------------------------------------------------------------------------------


def test_spark_s_own_windows(spark: Any, tmp_path: Path, seed: int) -> None:
    from pyspark.sql import functions as F

    draw = random.Random(seed)
    at, rows = datetime(2024, 5, 31, 12, tzinfo=UTC), []
    for _ in range(300):
        at += timedelta(milliseconds=draw.choice((0, 100, 999, 1000, 2000, 2001, 4500)))
        rows.append(
            {"ts": at - timedelta(seconds=draw.choice((0, 0, 1, 4))), "k": draw.choice("ab"), "x": draw.random()}
        )
    table = pl.DataFrame(rows, schema={"ts": pl.Datetime("us", "UTC"), "k": pl.String(), "x": pl.Float64()})
    source = Source(tmp_path / "in", [table[:150], table[150:]])
    asked = [
        wr.Query("sliding", wr.sliding("10 seconds", "3 seconds"), ["count()", "sum(x)"], by="k"),
        wr.Query("session", wr.session("2 seconds"), ["count()", "sum(x)"], by="k"),
    ]
    found = run(wr.windows(source.read(spark), asked, "ts", lateness="5 seconds"), "ours")
    theirs = []
    for name, window in (
        ("sliding", F.window("ts", "10 seconds", "3 seconds")),
        ("session", F.session_window("ts", "2 seconds")),
    ):
        grouped = source.read(spark).withWatermark("ts", "5 seconds").groupBy("k", window.alias("w"))
        whole = grouped.agg(F.count("*").alias("count()"), F.sum("x").alias("sum(x)"))
        bounds = F.col("w.start").alias("window_start"), F.col("w.end").alias("window_end")
        theirs += run(
            whole.select("k", *bounds, "count()", "sum(x)", F.lit(name).alias("query"), F.lit(0).alias("revision")),
            f"own_{name}",
        )
    assert {row["query"] for row in found} == {"sliding", "session"}
    assert differences(found, theirs, asked) == []


# --- transcripts ------------------------------------------------------------------------------------------------------


def moves_by_itself(transcript: Transcript) -> bool:
    """Whether its events move the watermark, as those of a stream on Spark do."""
    inputs = [step for step in transcript.steps if step.action == "input" and step.value]
    return streamed(transcript) and transcript.options.get("lateness") is not None and len(inputs) > 1


@pytest.mark.parametrize("place", range(2))
def test_transcripts_as_streams(spark: Any, tmp_path: Path, seed: int, place: int) -> None:
    """Some that the seed chooses, a micro-batch for each input; `test_spark_buckets` runs all of them without a JVM."""
    chosen = random.Random(seed).sample([path for path in TRANSCRIPTS if moves_by_itself(read(path))], 2)[place]
    transcript = read(chosen)
    asked, options = transcript.queries, dict(transcript.options)
    given = options.pop("order_by", ())
    ties = [column for column in reads(asked, options["time"]) if column != options["time"]]
    options["order_by"] = [*((given,) if isinstance(given, str) else given), *ties]
    inputs = [step.value for step in transcript.steps if step.action == "input" and step.value]
    oracle = Oracle(asked, **options)
    told = [row for rows in inputs for row in oracle.push(rows)]
    source = Source(tmp_path / "in", [pl.DataFrame(rows, schema=transcript.schema) for rows in inputs])
    frame = wr.windows(source.read(spark), asked, **options)
    found = run(frame, f"transcript{next(_numbers)}", "update" if options.get("updates") else "append")
    assert (chosen.stem, differences(found, told, asked)) == (chosen.stem, [])
