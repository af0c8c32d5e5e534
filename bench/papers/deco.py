"""Deco: Fast and Accurate Decentralized Aggregation of Count-based Windows in Large-scale IoT Applications, section 5.

A tumbling count window with a sum over the events of all nodes. `buffer` is the paper's Central, `central` its Scotty,
`approx` its Approx, which is not exact; `windrow` is what windrow's nodes do for such a window. `SCHEMES` are the ways
in which windrow can be asked to do it.
"""

from __future__ import annotations

import windrow as wr
from bench.cases import Case, Mark
from bench.trees import Load

SCHEMES = ("windrow",)
EXACT = (*SCHEMES, "central", "buffer")
ALL = (*EXACT, "approx")
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
        ALL,
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
        ALL,
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
        ALL,
        lambda percent: _load(percent=percent),
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
        ALL,
        lambda window: _load(window=window),
        (1000, 10_000, 100_000, 500_000),
        (1000, 10_000, 100_000),
        "Deco gains with larger windows, its asynchronous scheme soonest; small windows are no "
        "better than centralised.",
    ),
    Case(
        "deco-10f",
        "Deco, Fig. 10f",
        "Events in their right window by window size, rates change by 50%",
        "events in a window",
        "correctness",
        ALL,
        lambda window: _load(window=window, percent=50),
        (1000, 10_000, 100_000, 500_000),
        (1000, 10_000, 100_000),
        "All of Deco's schemes are always right at any size.",
        marks=(Mark("windrow", least=100.0, absolute=True),),
        note=_RIGHT,
    ),
)
