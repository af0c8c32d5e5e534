"""A demonstration on generated data: an hour of the speeds of cars, and a thousand and four questions in one pass."""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime

import numpy as np
import polars as pl

import windrow as wr

START = datetime(2026, 6, 1, 8, tzinfo=UTC)


def events(size: int, seed: int) -> pl.DataFrame:
    """An hour of speeds of 20 cars, most of them in order, some up to five seconds late."""
    rng = np.random.default_rng(seed)
    at = np.sort(rng.integers(0, 3_600_000_000, size))
    car = rng.integers(0, 20, size)
    speed = np.abs(rng.normal(50 + 20 * np.sin(at / 6e8) + car, 12)).round(1)
    stands = rng.random(size) < 0.1
    arrival = at + np.where(rng.random(size) < 0.2, rng.integers(0, 5_000_000, size), 0)
    table = pl.DataFrame(
        {
            "ts": pl.Series(at + int(START.timestamp() * 1e6)).cast(pl.Datetime("us", "UTC")),
            "car": pl.Series(car).cast(pl.String).str.zfill(2),
            "speed": np.where(stands, 0.0, speed),
        }
    )
    return table[np.argsort(arrival, kind="stable")]


def questions(more: int) -> list[wr.Query]:
    """Four questions that people ask, and `more` windows of other lengths to show that they cost next to nothing."""
    asked = [
        wr.Query("per minute", wr.tumbling("1 minute"), [wr.mean("speed"), wr.max("speed")], by="car"),
        wr.Query(
            "slow", wr.sliding("15 minutes", "5 minutes"), [wr.quantile("speed", 0.05)], by="car", where="speed > 0"
        ),
        wr.Query("so far", wr.cumulating("1 hour", "15 minutes"), [wr.count(), wr.stddev("speed")]),
        wr.Query("km", wr.session("2 minutes"), [wr.formula("sum(speed) / count()").alias("pace")], where="speed > 90"),
    ]
    lengths = np.linspace(10, 900, more).astype(int)
    mean = [wr.mean("speed")]
    return asked + [wr.Query(f"{n} s #{at}", wr.tumbling(f"{n} seconds"), mean) for at, n in enumerate(lengths)]


def main(arguments: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(prog="windrow.demo", description=__doc__)
    options.add_argument("--events", type=int, default=2_000_000, help="how many (2,000,000)")
    options.add_argument("--more", type=int, default=1000, help="windows beside the four questions (1,000)")
    options.add_argument("--seed", type=int, default=1)
    asked = options.parse_args(arguments)
    if asked.events < 1 or asked.more < 0:
        options.error("--events must be at least 1, and --more at least 0")
    print(f"making {asked.events:,} events of 20 cars, a fifth of them up to 5 seconds late")
    table = events(asked.events, asked.seed)
    engine = wr.Engine(questions(asked.more), "ts", lateness="5 seconds")
    results, began, size = [], time.perf_counter(), max(1, asked.events // 20)
    for at in range(0, table.height, size):
        results.append(engine.push(table[at : at + size]))
        if sys.stderr.isatty():
            done = min(at + size, table.height)
            print(f"\r{done:,} events, watermark {engine.watermark:%H:%M:%S}", end="", file=sys.stderr)
    results.append(engine.finish())
    took = time.perf_counter() - began
    if sys.stderr.isatty():
        print(file=sys.stderr)
    found = pl.concat(results)
    print(engine.explain())
    with pl.Config(tbl_rows=5, tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True, float_precision=2):
        for query in engine.queries[:4]:
            print(f"\n{query.name}: {', '.join(one.name for one in query.aggregates)} over {query.window}")
            print(wr.results_of(found, query).drop("query", "revision").tail(5))
    metrics = engine.metrics
    print(
        f"\n{metrics.events:,} events, {len(engine.queries):,} queries, {metrics.results:,} results in {took:.2f} s: "
        f"{metrics.events / took / 1e6:.1f} million events per second; {metrics.dropped} left out"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
