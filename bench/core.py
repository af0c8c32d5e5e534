"""How fast the core is, as ratios measured in one run on one Polars thread.

    make bench-core                       all workloads, printed and written to bench/results/core.json
    make bench-core ARGS="--check"        exits 1 when a line falls short of what it must reach
    make bench-core ARGS="--scale 0.01"   a hundredth of the size, to see that it runs

A line is `value` (must reach `least`, or stay at or below `most`) with the seconds behind it, each the best of five.
What is compared runs alternately, so that a noisy machine disturbs both.
"""

from __future__ import annotations

import os

os.environ["POLARS_MAX_THREADS"] = "1"  # before Polars is imported

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl

import windrow as wr

AGGREGATES = (wr.count(), wr.sum("x"), wr.min("x"), wr.max("x"))
SECOND = 1_000_000


@dataclass
class Line:
    name: str
    value: float
    least: float | None = None
    most: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def good(self) -> bool:
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)

    def __str__(self) -> str:
        limit = f"≥ {self.least:g}" if self.least is not None else f"≤ {self.most:g}"
        times = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in self.seconds.items())
        return f"{'ok  ' if self.good else 'SHORT'} {self.name:58} {self.value:12,.3f} ({limit})  {times} {self.note}"


def best(runs: int, **timed: Callable[[], object]) -> dict[str, float]:
    """The best time of each, run in turns."""
    found = {name: float("inf") for name in timed}
    for _ in range(runs):
        for name, call in timed.items():
            begin = time.perf_counter()
            call()
            found[name] = min(found[name], time.perf_counter() - begin)
    return found


def stream(size: int, seconds: float, keys: int, seed: int = 7) -> pl.DataFrame:
    """Events in order, evenly spread, with a float and an integer."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(0, int(seconds * SECOND), size))
    return pl.DataFrame(
        {"ts": pl.Series(times).cast(pl.Datetime("us")), "key": rng.integers(0, keys, size), "x": rng.random(size)}
    )


def shuffled(events: pl.DataFrame, share: float, upto: int, seed: int = 8) -> pl.DataFrame:
    """A share of the events arrives up to so many microseconds late."""
    rng = np.random.default_rng(seed)
    late = rng.random(events.height) < share
    arrival = events["ts"].to_physical().to_numpy() + np.where(late, rng.integers(0, upto, events.height), 0)
    return events[np.argsort(arrival, kind="stable")]


def batches(events: pl.DataFrame, count: int = 8) -> list[pl.DataFrame]:
    size = -(-events.height // count)
    return [events[at : at + size] for at in range(0, events.height, size)]


def run(parts: list[pl.DataFrame], queries: list[wr.Query], lateness: str = "0 seconds") -> wr.Engine:
    engine = wr.Engine(queries, "ts", lateness=lateness)
    for part in parts:
        engine.push(part)
    engine.finish()
    return engine


def one_window() -> list[wr.Query]:
    return [wr.Query("one", wr.tumbling("1 second"), AGGREGATES, by="key")]


def many_windows(count: int) -> list[wr.Query]:
    """Tumbling windows of 1 to 20 seconds, none a multiple of another by design."""
    lengths = np.linspace(1000, 20_000, count).astype(int)
    return [wr.Query(f"q{at}", wr.tumbling(f"{length} ms"), AGGREGATES, by="key") for at, length in enumerate(lengths)]


def slicing(scale: float, runs: int) -> Iterator[Line]:
    """Lines 1 to 3: events per second, the same eight batches for everyone."""
    events = stream(int(10_000_000 * scale), 10, 10)
    parts = batches(events)
    ready = [part.with_columns(slice=part["ts"].to_physical() // SECOND) for part in parts]
    x = pl.col("x")

    def bare() -> None:
        for part in ready:
            part.group_by("key", "slice").agg(pl.len(), x.sum().alias("s"), x.min().alias("a"), x.max().alias("b"))

    late = batches(shuffled(events, 0.2, 2 * SECOND))
    mixed = [wr.Query(f"q{n}", wr.tumbling(f"{n} seconds"), AGGREGATES, by="key") for n in range(1, 21)]
    mixed.append(wr.Query("session", wr.session("1 second"), AGGREGATES, by="key"))
    thousand = many_windows(1000)
    found = best(
        runs,
        bare=bare,
        one=lambda: run(parts, one_window()),
        thousand=lambda: run(parts, thousand),
        late=lambda: run(late, mixed, "2 seconds"),
    )
    rate = f"{events.height / found['one'] / 1e6:.1f}M events/s"
    yield Line(
        "one window / bare group_by", found["bare"] / found["one"], 0.7, seconds=_only(found, "bare", "one"), note=rate
    )
    yield Line("1,000 windows / one", found["one"] / found["thousand"], 0.7, seconds=_only(found, "one", "thousand"))
    yield Line(
        "20% late, 20 windows and a session / one",
        found["one"] / found["late"],
        0.5,
        seconds=_only(found, "one", "late"),
    )


def assembly(scale: float, runs: int) -> Iterator[Line]:
    """Line 4: results per second, from slices that are ready."""
    seconds = int(2000 * scale)
    events = stream(seconds * 1000, seconds, 1).drop("key")
    lengths = np.linspace(1000, 20_000, 1000).astype(int)
    queries = [wr.Query(f"q{at}", wr.tumbling(f"{length} ms"), AGGREGATES) for at, length in enumerate(lengths)]
    engine = wr.Engine(queries, "ts", lateness=None)
    engine.push(events)
    sliced = engine.snapshot()
    times, rows = [], 0
    for _ in range(runs):
        ready = wr.Engine.restore(sliced)
        begin = time.perf_counter()
        rows = ready.finish().height
        times.append(time.perf_counter() - begin)
    note = f"{rows:,} results from {engine.metrics.slices:,} slices"
    yield Line(
        "results per second, 1,000 windows", rows / min(times), 1_000_000, seconds={"assembly": min(times)}, note=note
    )


def sliding(scale: float, runs: int) -> Iterator[Line]:
    """Line 5: a sliding window that grows tenfold, over the same slices."""
    seconds = max(600, int(7200 * scale))
    keys = 100
    rng = np.random.default_rng(3)
    times = np.repeat(np.arange(seconds), keys) * SECOND
    events = pl.DataFrame(
        {
            "ts": pl.Series(times).cast(pl.Datetime("us")),
            "key": np.tile(np.arange(keys), seconds),
            "x": rng.random(seconds * keys),
        }
    )
    ready = {}
    for name, length in (("short", max(30, int(360 * scale))), ("long", max(300, int(3600 * scale)))):
        engine = wr.Engine([wr.Query("q", wr.sliding(f"{length} s", "1 s"), AGGREGATES, by="key")], "ts", lateness=None)
        engine.push(events)
        ready[name] = engine.snapshot()
    found = {name: float("inf") for name in ready}
    for _ in range(runs):
        for name, data in ready.items():
            engine = wr.Engine.restore(data)
            begin = time.perf_counter()
            engine.advance(seconds * SECOND)  # the same number of windows for both
            found[name] = min(found[name], time.perf_counter() - begin)
    yield Line(
        "sliding 1 hour / 6 minutes, every second, 100 keys", found["long"] / found["short"], most=1.5, seconds=found
    )


def quantiles(scale: float, runs: int) -> Iterator[Line]:
    """Lines 6 and 7: exact quantiles against sorting by group."""
    events = stream(int(1_000_000 * scale), 1, 1).drop("key")
    ready = events.with_columns(slice=pl.lit(0, pl.Int64))
    one = [wr.Query("m", wr.tumbling("1 second"), [wr.median("x")])]
    many = [wr.Query("m", wr.tumbling("1 second"), [wr.quantile("x", at / 1000) for at in range(1000)])]
    found = best(
        runs,
        sort=lambda: ready.group_by("slice").agg(pl.col("x").sort()),
        median=lambda: run([events], one),
        thousand=lambda: run([events], many),
    )
    yield Line("median / sort by group", found["sort"] / found["median"], 0.7, seconds=_only(found, "sort", "median"))
    yield Line(
        "1,000 quantiles / median", found["median"] / found["thousand"], 0.8, seconds=_only(found, "median", "thousand")
    )


def state(scale: float, runs: int) -> Iterator[Line]:
    """Line 8: a snapshot depends on slices, not on events."""
    sizes = {}
    for name, size in (("1M", int(1_000_000 * scale)), ("10M", int(10_000_000 * scale))):
        engine = wr.Engine(many_windows(100), "ts", lateness=None)
        for part in batches(stream(size, 10, 10)):
            engine.push(part)
        sizes[name] = len(engine.snapshot())
    note = f"{sizes['1M']:,} and {sizes['10M']:,} bytes"
    yield Line("snapshot after 10M events / after 1M", sizes["10M"] / sizes["1M"], 0.99, 1.01, note=note)


def ordering(scale: float, runs: int) -> Iterator[Line]:
    """Lines 9 to 14: windows that need the order of events, against time windows over the same events."""
    size = int(10_000_000 * scale)
    parts = batches(stream(size, 10, 10))
    rng = np.random.default_rng(5)
    marked = [part.with_columns(cut=pl.Series(rng.random(part.height) < 0.001)) for part in parts]
    alone = [part.drop("key") for part in parts]
    slow = stream(size, 100, 1).drop("key")
    in_order, late = batches(slow), batches(shuffled(slow, 0.2, 2 * SECOND))
    n = max(10, int(10_000 * scale))
    found = best(
        runs,
        time=lambda: run(parts, one_window()),
        large=lambda: run(alone, counted(100 * n)),
        small=lambda: run(alone, counted(n)),
        thousand=lambda: run(alone, counted(*(n * k for k in range(1, 1001)))),
        punctuated=lambda: run(marked, [wr.Query("p", wr.punctuated(end="cut"), AGGREGATES, by="key")]),
        latest=lambda: run(parts, [wr.Query("l", wr.latest(100, every="1 second"), AGGREGATES, by="key")]),
        in_order=lambda: run(in_order, counted(n)),
        late=lambda: run(late, counted(n), "2 seconds"),
    )
    for what, name, against, least in (
        ("counting 1M / time window", "large", "time", 0.6),
        ("counting 10k / time window", "small", "time", 0.6),
        ("counting 10k, 20% out of order within 2 s / in order", "late", "in_order", 0.2),
        ("1,000 counting windows / one", "thousand", "small", 0.6),
        ("punctuated, a cut every 1,000 events / time window", "punctuated", "time", 0.3),
        ("latest(100, every 1 s) / time window", "latest", "time", 0.3),
    ):
        yield Line(what, found[against] / found[name], least, seconds=_only(found, against, name))


def counted(*lengths: int) -> list[wr.Query]:
    return [wr.Query(f"c{n}", wr.counting(n), AGGREGATES) for n in lengths]


def _only(found: dict[str, float], *names: str) -> dict[str, float]:
    return {name: found[name] for name in names}


WORKLOADS = {work.__name__: work for work in (slicing, assembly, sliding, quantiles, state, ordering)}


def machine() -> dict[str, str | int | None]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "commit": commit.stdout.strip(),
        "command": " ".join(sys.argv),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "polars": pl.__version__,
        "processor": platform.machine(),
        "cores": os.cpu_count(),
    }


Work = Callable[[float, int], Iterator[Line]]


def main(workloads: dict[str, Work], name: str, description: str | None) -> int:
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--check", action="store_true", help="exit 1 when a line falls short")
    options.add_argument("--scale", type=float, default=1.0, help="size of the workloads, 1 for the full size")
    options.add_argument("--runs", type=int, default=5, help="take the best of so many")
    options.add_argument("--only", choices=workloads, action="append", help="just this workload; may be given again")
    options.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / f"{name}.json")
    asked = options.parse_args()
    lines = []
    for work in asked.only or workloads:
        for line in workloads[work](asked.scale, asked.runs):
            print(line, flush=True)
            lines.append(line)
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    described = {
        "machine": machine(),
        "scale": asked.scale,
        "lines": [asdict(line) | {"good": line.good} for line in lines],
    }
    asked.json.write_text(json.dumps(described, indent=1) + "\n")
    short = [line.name for line in lines if not line.good]
    if short:
        print(f"short of the mark: {'; '.join(short)}")
    return 1 if asked.check and short else 0


if __name__ == "__main__":
    sys.exit(main(WORKLOADS, "core", __doc__))
