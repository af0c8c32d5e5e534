"""Scotty: General and Efficient Open-Source Window Aggregation for Stream Processing Systems, section 10.

Streams have 5 gaps a minute; concurrent windows are tumbling ones with lengths from 1 to 20 seconds. Where the paper
has 20% of its events out of order, they are up to 2 seconds late.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import windrow as wr
from bench.cases import Case, Mark, Work
from bench.data import SECOND, Stream

EVENTS, SECONDS = 5_000_000, 60.0
IN_ORDER = Stream(EVENTS, SECONDS, gaps=5, values="arr_delay")
LATE = replace(IN_ORDER, late=0.2, delay=2.0)
TECHNIQUES = ("windrow", "buckets", "buffer")
SESSION = wr.Query("session", wr.session("1 second"), [wr.sum("value")])


def tumbling(count: int, asked: wr.Aggregate, longest: float = 20.0, by: str | tuple[str, ...] = ()) -> list[wr.Query]:
    """Tumbling windows with lengths from a second up, evenly."""
    lengths = np.linspace(1000, 1000 * longest, count).astype(int) if count > 1 else [1000]
    return [wr.Query(f"q{at}", wr.tumbling(f"{length} ms"), [asked], by) for at, length in enumerate(lengths)]


def counting(count: int, asked: wr.Aggregate, events: int = EVENTS, seconds: float = SECONDS) -> list[wr.Query]:
    """Count windows as large as tumbling ones of 1 to 20 seconds."""
    a_second = events / seconds
    sizes = np.linspace(a_second, 20 * a_second, count).astype(int) if count > 1 else [int(a_second)]
    return [wr.Query(f"q{at}", wr.counting(int(size)), [asked]) for at, size in enumerate(sizes)]


def _with_session(stream: Stream, count: int) -> Work:
    return Work(stream, (*tumbling(count, wr.sum("value")), SESSION))


def _memory(tuples: int, slices: int, counted: bool) -> Work:
    """All within the lateness, so that nothing is answered."""
    seconds = 60.0
    stream = Stream(tuples, seconds, late=0.2, delay=2.0)
    window = wr.counting(max(1, tuples // slices)) if counted else wr.tumbling(f"{int(seconds * SECOND / slices)} us")
    return Work(stream, (wr.Query("q", window, [wr.sum("value")]),), lateness=int(2 * seconds * SECOND))


def _latency(entries: int, asked: wr.Aggregate) -> Work:
    """A long window over as many slices as there are short ones, of a few events each."""
    seconds = entries // 100
    stream = Stream(3 * entries, seconds - 0.5)
    queries = (
        wr.Query("long", wr.tumbling(f"{seconds} s"), [asked]),
        wr.Query("short", wr.tumbling("10 ms"), [asked]),
    )
    return Work(stream, queries)


FUNCTIONS = {
    "count": wr.count(),
    "sum": wr.sum("value"),
    "min": wr.min("value"),
    "max": wr.max("value"),
    "mean": wr.mean("value"),
    "stddev": wr.stddev("value"),
    "geometric mean": wr.geometric_mean("value"),
    "arg_max": wr.arg_max("value", "key"),
    "m4": wr.m4("value"),
    "median": wr.median("value"),
    "90th percentile": wr.quantile("value", 0.9),
}
_MIXED = replace(LATE, values="random", keys=1000)

CASES = (
    Case(
        "scotty-13",
        "Scotty, Fig. 13",
        "Concurrent tumbling windows, events in order",
        "concurrent windows",
        "throughput",
        (*TECHNIQUES, "duckdb", "polars", "spark", "bytewax", "flink"),
        lambda count: Work(IN_ORDER, tuple(tumbling(count, wr.sum("value")))),
        (1, 10, 100, 1000),
        (1, 10, 1000),
        "Slicing stays at millions of events a second up to 1,000 windows; buckets and tuple buffers fall by orders of "
        "magnitude, because each window touches each of its events.",
        marks=(Mark("windrow", least=0.2), Mark("windrow", "buckets", least=10), Mark("windrow", "buffer", least=2)),
        note="Spark and Flink take seconds to begin a job or a statement, whatever is in it: in a quick run, with few "
        "events, that is most of what is measured of them.",
    ),
    Case(
        "scotty-14",
        "Scotty, Fig. 14",
        "Concurrent windows and a session, 20% of the events out of order",
        "concurrent windows",
        "throughput",
        (*TECHNIQUES, "duckdb"),
        lambda count: _with_session(LATE, count),
        (1, 10, 100, 1000),
        (1, 1000),
        "Slicing is an order of magnitude faster than what does not slice, and almost constant up to 1,000 windows; "
        "tuple buffers lose more than in order, by inserting out of order.",
        marks=(Mark("windrow", least=0.15), Mark("windrow", "buckets", least=8), Mark("windrow", "buffer", least=2)),
        tiny=(20,),
    ),
    Case(
        "scotty-15a",
        "Scotty, Fig. 15a",
        "Memory, time windows, 50,000 events within the lateness",
        "slices within the lateness",
        "memory",
        TECHNIQUES,
        lambda slices: _memory(50_000, slices, counted=False),
        (10, 100, 1000, 10_000),
        (10, 1000, 10_000),
        "Memory of slicing and buckets grows linearly with the slices; that of tuple buffers does not depend on them.",
    ),
    Case(
        "scotty-15b",
        "Scotty, Fig. 15b",
        "Memory, time windows, 500 slices within the lateness",
        "events within the lateness",
        "memory",
        TECHNIQUES,
        lambda tuples: _memory(tuples, 500, counted=False),
        (1000, 10_000, 100_000, 1_000_000),
        (1000, 10_000, 100_000),
        "Memory of slicing and buckets does not depend on the number of events; that of tuple buffers grows linearly.",
        marks=(Mark("windrow", most=3),),
    ),
    Case(
        "scotty-15c",
        "Scotty, Fig. 15c",
        "Memory, count windows, 50,000 events within the lateness",
        "slices within the lateness",
        "memory",
        TECHNIQUES,
        lambda slices: _memory(50_000, slices, counted=True),
        (10, 100, 1000, 10_000),
        (10, 1000, 10_000),
        "All techniques must keep the events, which dominate; buckets keep them again for every window that overlaps.",
    ),
    Case(
        "scotty-15d",
        "Scotty, Fig. 15d",
        "Memory, count windows, 500 slices within the lateness",
        "events within the lateness",
        "memory",
        TECHNIQUES,
        lambda tuples: _memory(tuples, 500, counted=True),
        (1000, 10_000, 100_000, 1_000_000),
        (1000, 10_000, 100_000),
        "Memory of all techniques grows linearly with the events once there are more than about a thousand.",
    ),
    Case(
        "scotty-16a",
        "Scotty, Fig. 16a",
        "Latency of a sum",
        "slices in the window",
        "latency",
        TECHNIQUES,
        lambda entries: _latency(entries, wr.sum("value")),
        (100, 1000, 10_000, 100_000),
        (100, 10_000),
        "Lazy slicing and tuple buffers take up to 1 ms for 100,000 entries, eager slicing below 5 "
        "µs, buckets below 30 ns.",
        note="A batch of one event costs a Python process milliseconds, whatever is computed.",
        tiny=(100,),
    ),
    Case(
        "scotty-16c",
        "Scotty, Fig. 16c",
        "Latency of a median",
        "slices in the window",
        "latency",
        TECHNIQUES,
        lambda entries: _latency(entries, wr.median("value")),
        (100, 1000, 10_000, 100_000),
        (100, 10_000),
        "As for the sum, only that combining slices takes longer, so that slicing has a higher latency than buckets.",
        tiny=(100,),
    ),
    Case(
        "scotty-17a",
        "Scotty, Fig. 17a",
        "20 windows and a session, a growing share of events out of order",
        "% out of order",
        "throughput",
        TECHNIQUES,
        lambda percent: _with_session(replace(LATE, late=max(percent, 0.001) / 100), 20),
        (0, 20, 40, 60, 80, 100),
        (0, 20, 100),
        "Slicing and buckets take events out of order as fast as in order; tuple buffers get slower "
        "the more there are.",
        marks=(Mark("windrow", least=0.4),),
    ),
    Case(
        "scotty-17b",
        "Scotty, Fig. 17b",
        "20 windows and a session, 20% out of order by a growing delay",
        "greatest delay in seconds",
        "throughput",
        TECHNIQUES,
        lambda delay: _with_session(replace(LATE, delay=float(delay)), 20),
        (0.1, 0.5, 2, 8, 32),
        (0.1, 2, 32),
        "All but tuple buffers are robust against the delay; those get slower with it.",
        marks=(Mark("windrow", least=0.4),),
    ),
    Case(
        "scotty-18a",
        "Scotty, Fig. 18 (time)",
        "Functions over 20 time windows, 20% out of order",
        "function",
        "throughput",
        ("windrow", "buckets"),
        lambda name: Work(_MIXED, tuple(tumbling(20, FUNCTIONS[name]))),
        tuple(FUNCTIONS),
        ("sum", "max", "stddev", "m4", "median"),
        "All algebraic and distributive functions are about as fast; median and percentile are much slower.",
    ),
    Case(
        "scotty-18b",
        "Scotty, Fig. 18 (count)",
        "Functions over 20 count windows, 20% out of order",
        "function",
        "throughput",
        ("windrow", "buckets"),
        lambda name: Work(_MIXED, tuple(counting(20, FUNCTIONS[name]))),
        tuple(FUNCTIONS),
        ("sum", "max", "stddev", "m4", "median"),
        "Slower than over time, since a late event shifts all later ones; functions that cannot be inverted lose most.",
        note="windrow orders events before it slices them, so no function has to be inverted.",
    ),
    Case(
        "scotty-19a",
        "Scotty, Fig. 19 (many values)",
        "Median over concurrent windows, 20% out of order, values that hardly repeat",
        "concurrent windows",
        "throughput",
        (*TECHNIQUES, "duckdb"),
        lambda count: Work(replace(LATE, values="random"), tuple(tumbling(count, wr.median("value")))),
        (1, 10, 50, 100),
        (1, 10, 50),
        "Slicing beats buckets and tuple buffers also for the median, because values are sorted once in a slice.",
        marks=(Mark("windrow", "buckets", least=2),),
    ),
    Case(
        "scotty-19b",
        "Scotty, Fig. 19 (few values)",
        "Median over concurrent windows, 20% out of order, 20 different values",
        "concurrent windows",
        "throughput",
        (*TECHNIQUES, "duckdb"),
        lambda count: Work(replace(LATE, values="hour"), tuple(tumbling(count, wr.median("value")))),
        (1, 10, 50, 100),
        (1, 10, 50),
        "With few different values slicing is faster still, since equal values are kept as one with its count.",
        marks=(Mark("windrow", "buckets", least=2),),
    ),
    Case(
        "scotty-21a",
        "Scotty, Fig. 21 (time)",
        "Time windows, 20% out of order",
        "concurrent windows",
        "throughput",
        ("windrow", "buffer"),
        lambda count: Work(LATE, tuple(tumbling(count, wr.sum("value")))),
        (1, 40, 200, 1000),
        (1, 40, 1000),
        "The throughput of time windows does not depend on how many there are.",
        marks=(Mark("windrow", least=0.2),),
    ),
    Case(
        "scotty-21b",
        "Scotty, Fig. 21 (count)",
        "Count windows, 20% out of order",
        "concurrent windows",
        "throughput",
        ("windrow", "buffer"),
        lambda count: Work(LATE, tuple(counting(count, wr.sum("value")))),
        (1, 40, 200, 1000),
        (1, 40, 1000),
        "Count windows are as fast up to 40 of them and slow down linearly beyond; at 1,000 slicing "
        "is still an order of "
        "magnitude faster than a tuple buffer.",
        marks=(Mark("windrow", "buffer", least=2),),
    ),
)
