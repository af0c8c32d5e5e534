"""Deco: Fast and Accurate Decentralized Aggregation of Count-based Windows in Large-scale IoT Applications, section 5.

A tumbling count window with a sum over the events of all nodes. `buffer` is the paper's Central, `central` its Scotty,
`approx` its Approx, which is not exact; `monitoring`, `sync` and `async` are its schemes as windrow has them, `refine`
is windrow's own, and `windrow` is what it does unless it is told otherwise.
"""

from __future__ import annotations

import windrow as wr
from bench.cases import Case, Mark
from bench.trees import Load

SCHEMES = ("windrow", "monitoring", "sync", "async", "refine")
EXACT = (*SCHEMES, "central", "buffer")
ALL = (*EXACT, "approx")
TIMED = ("windrow", "async", "central", "buffer", "approx")
CHANGES = (0.1, 1, 10, 50, 100)  # percent
QUICK_CHANGES = (0.1, 10, 100)


def _load(nodes: int = 2, window: int = 100_000, percent: float = 1.0, seconds: int = 5) -> Load:
    query = wr.Query("q", wr.counting(window), [wr.sum("value")])
    return Load((query,), nodes=nodes, rate=200_000, seconds=seconds, rate_change=percent / 100)


_RIGHT = (
    "Of the exact ones the results are looked at: a window whose position, bounds or sum is not that "
    "of all events sorted "
    "is wrong with all of its events."
)

CASES = (
    Case(
        "deco-8",
        "Deco, Fig. 8a, 8b",
        "Bytes of a count window by local nodes",
        "local nodes",
        "tree_bytes",
        ALL,
        lambda nodes: _load(nodes, 100_000 * nodes),
        (1, 2, 4, 8),
        (1, 2, 8),
        "Deco saves 99% of the bytes with one local node; with two they rise at once, then linearly "
        "with the nodes, and "
        "stay far below those of centralised approaches.",
        marks=(Mark("windrow", "central", most=1.0),),
    ),
    Case(
        "deco-9a",
        "Deco, Fig. 9a",
        "Throughput of a count window by local nodes",
        "local nodes",
        "tree_throughput",
        TIMED,
        lambda nodes: _load(nodes, 100_000 * nodes, seconds=3),
        (1, 2, 4, 8, 16, 32),
        (1, 2, 8),
        "Deco scales linearly, slightly less so towards 32 nodes; centralised approaches stay as they are.",
    ),
    Case(
        "deco-9b",
        "Deco, Fig. 9b",
        "Latency of a count window by local nodes",
        "local nodes",
        "tree_latency",
        TIMED,
        lambda nodes: _load(nodes, 100_000 * nodes, seconds=3),
        (1, 2, 4, 8, 16, 32),
        (1, 2, 8),
        "Deco's latency grows very slowly with the nodes; that of centralised approaches is constant.",
        note="A second of events is read at a time, so that what ends a window comes with a second's events.",
    ),
    Case(
        "deco-10a",
        "Deco, Fig. 10a",
        "Throughput by rate change, two local nodes",
        "rate change in %",
        "tree_throughput",
        ("windrow", "monitoring", "sync", "async", "central", "approx"),
        lambda percent: _load(percent=percent, seconds=3),
        CHANGES,
        QUICK_CHANGES,
        "Approx is the optimum; Deco's asynchronous scheme matches it below 1% and falls below the "
        "synchronous one when "
        "rates change much.",
    ),
    Case(
        "deco-10b",
        "Deco, Fig. 10b",
        "Bytes by rate change, two local nodes",
        "rate change in %",
        "tree_bytes",
        ALL,
        lambda percent: _load(percent=percent),
        CHANGES,
        QUICK_CHANGES,
        "Monitoring is close to Approx; bytes of the synchronous and asynchronous schemes grow "
        "linearly with the change.",
    ),
    Case(
        "deco-10c",
        "Deco, Fig. 10c",
        "Corrections in 100 count windows by rate change, two local nodes",
        "rate change in %",
        "corrections",
        ("windrow", "sync", "async"),
        lambda percent: _load(window=200_000, percent=percent, seconds=20),
        CHANGES,
        QUICK_CHANGES,
        "The asynchronous scheme corrects more often than the synchronous one, and both nearly always "
        "when rates change much.",
        note="windrow sends four times the mean change around a predicted end, the paper one time.",
    ),
    Case(
        "deco-10d",
        "Deco, Fig. 10d",
        "Events in their right window by rate change",
        "rate change in %",
        "correctness",
        ALL,
        lambda percent: _load(percent=percent),
        CHANGES,
        QUICK_CHANGES,
        "All of Deco's schemes are always right; Approx is wrong about ever more events as rates change more.",
        marks=(Mark("windrow", least=100.0, absolute=True),),
        note=_RIGHT,
    ),
    Case(
        "deco-10e",
        "Deco, Fig. 10e",
        "Throughput by window size",
        "events in a window",
        "tree_throughput",
        TIMED,
        lambda window: _load(window=window, seconds=3),
        (1000, 10_000, 100_000, 500_000),
        (1000, 100_000),
        "Deco gains with larger windows, its asynchronous scheme soonest; small windows are no "
        "better than centralised.",
        tiny=(100_000,),
    ),
    Case(
        "deco-10f",
        "Deco, Fig. 10f",
        "Events in their right window by window size, rates change by 50%",
        "events in a window",
        "correctness",
        ALL,
        lambda window: _load(window=window, percent=50, seconds=1 if window < 10_000 else 5),
        (1000, 10_000, 100_000, 500_000),
        (1000, 10_000, 100_000),
        "All of Deco's schemes are always right at any size.",
        marks=(Mark("windrow", least=100.0, absolute=True),),
        note=_RIGHT,
        tiny=(100_000,),
    ),
)
