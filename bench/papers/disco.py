"""Disco: decentralised window aggregation (its author's thesis), section 5.2.

All events of a child node come from one generator. `central` sends all events to the root, as the paper's centralised
approach does. On this machine nodes are not machines of their own: throughput is that of the busiest node, by its
processor time (see `bench/trees.py`).
"""

from __future__ import annotations

import windrow as wr
from bench.cases import Case, Mark
from bench.papers.scotty import tumbling
from bench.trees import Load

BOTH = ("windrow", "central")
MAX, MEAN, MEDIAN = wr.max("value"), wr.mean("value"), wr.median("value")


def _second(asked: wr.Aggregate, by: str | tuple[str, ...] = ()) -> tuple[wr.Query, ...]:
    return (wr.Query("q", wr.tumbling("1 second"), [asked], by),)


def _nodes(asked: wr.Aggregate, nodes: int) -> Load:
    return Load(_second(asked), nodes=nodes, rate=500_000, seconds=5)


def _chain(asked: wr.Aggregate, height: int) -> Load:
    return Load(_second(asked), nodes=1, rate=500_000, seconds=10, height=height)


def _concurrent(asked: wr.Aggregate, count: int) -> Load:
    return Load(tuple(tumbling(count, asked)), nodes=2, rate=100_000, seconds=20)


def _keyed(asked: wr.Aggregate, keys: int) -> Load:
    return Load(_second(asked, "key"), nodes=2, rate=500_000, seconds=5, keys=keys)


NODES, QUICK_NODES = (1, 2, 4, 8), (1, 2, 8)
HEIGHTS, QUICK_HEIGHTS = (2, 3, 4, 5), (2, 3, 5)
KEYS, QUICK_KEYS = (1, 10, 100, 1000, 10_000, 100_000), (1, 100, 10_000)

CASES = (
    Case(
        "disco-26a",
        "Disco, Fig. 26a",
        "Throughput of a maximum by child nodes",
        "child nodes",
        "tree_throughput",
        BOTH,
        lambda nodes: _nodes(MAX, nodes),
        NODES,
        QUICK_NODES,
        "Disco scales almost linearly, from 1 to 7.5 million events/s at eight nodes; the "
        "centralised approach does not.",
        marks=(Mark("windrow", least=2.5), Mark("windrow", "central", least=2, full_only=True)),
    ),
    Case(
        "disco-26b",
        "Disco, Fig. 26b",
        "Throughput of an average by child nodes",
        "child nodes",
        "tree_throughput",
        BOTH,
        lambda nodes: _nodes(MEAN, nodes),
        NODES,
        QUICK_NODES,
        "The same as the maximum, slightly slower.",
        marks=(Mark("windrow", least=2.5), Mark("windrow", "central", least=2, full_only=True)),
    ),
    Case(
        "disco-26c",
        "Disco, Fig. 26c",
        "Throughput of a median by child nodes",
        "child nodes",
        "tree_throughput",
        BOTH,
        lambda nodes: _nodes(MEDIAN, nodes),
        NODES,
        QUICK_NODES,
        "Far slower than decomposable functions, and still almost linear up to eight nodes.",
    ),
    Case(
        "disco-27",
        "Disco, Fig. 27",
        "Count window of 10,000 events by streams",
        "streams",
        "tree_throughput",
        (*BOTH, "buffer"),
        lambda nodes: Load((wr.Query("q", wr.counting(10_000), [MAX]),), nodes=nodes, rate=100_000, seconds=5),
        NODES,
        QUICK_NODES,
        "Throughput falls with more streams, as more events are out of order; Disco is on a par with the centralised "
        "approach.",
    ),
    *(
        Case(
            f"disco-28{letter}",
            f"Disco, Fig. 28{letter}",
            f"Bytes of {what} by the height of the tree",
            "levels",
            "tree_bytes",
            BOTH,
            lambda height, asked=asked: _chain(asked, height),
            HEIGHTS,
            QUICK_HEIGHTS,
            shape,
            marks=marks,
            note="Events are made inside the child node, so that the link from sensor to child is not counted.",
        )
        for letter, what, asked, shape, marks in (
            (
                "a",
                "a maximum",
                MAX,
                (
                    "Disco sends 2.416 GB at two levels and 2.419 GB at five, the centralised approach "
                    "one more copy of all "
                    "events for each level."
                ),
                (Mark("windrow", "central", most=0.02),),
            ),
            (
                "b",
                "an average",
                MEAN,
                "The very same as the maximum.",
                (Mark("windrow", "central", most=0.02),),
            ),
            (
                "c",
                "a median",
                MEDIAN,
                "Events must travel too, in slices, which saves half of the centralised bytes on every level.",
                (Mark("windrow", "central", most=1.1),),
            ),
        )
    ),
    Case(
        "disco-29a",
        "Disco, Fig. 29a",
        "Concurrent windows with a maximum",
        "concurrent windows",
        "tree_throughput",
        BOTH,
        lambda count: _concurrent(MAX, count),
        (1, 5, 10, 50, 100, 1000),
        (1, 10, 100),
        "The number of concurrent windows has no effect, neither distributed nor centralised.",
    ),
    Case(
        "disco-29b",
        "Disco, Fig. 29b",
        "Concurrent windows with a median",
        "concurrent windows",
        "tree_throughput",
        BOTH,
        lambda count: _concurrent(MEDIAN, count),
        (1, 5, 10, 50, 100),
        (1, 50),
        "Throughput grows with the windows up to about 50, because slices get smaller, and falls beyond.",
    ),
    Case(
        "disco-30a",
        "Disco, Fig. 30 (max)",
        "Keys, maximum",
        "keys",
        "tree_throughput",
        BOTH,
        lambda keys: _keyed(MAX, keys),
        KEYS,
        QUICK_KEYS,
        "Throughput falls with the keys: by 20% at 1,000, by half at 10,000, to 7,000 events/s at 100,000.",
    ),
    Case(
        "disco-30b",
        "Disco, Fig. 30 (median)",
        "Keys, median",
        "keys",
        "tree_throughput",
        BOTH,
        lambda keys: _keyed(MEDIAN, keys),
        KEYS,
        QUICK_KEYS,
        "Throughput rises with the keys up to 10,000, where it is close to the maximum's, and then drops.",
    ),
    Case(
        "disco-31",
        "Disco, Fig. 31",
        "Latency of a maximum by child nodes",
        "child nodes",
        "tree_latency",
        BOTH,
        lambda nodes: Load(_second(MAX), nodes=nodes, rate=100_000, seconds=5, chunks=20),
        NODES,
        QUICK_NODES,
        "Below 10 ms up to three quarters of the load; the centralised approach is 2 to 5 ms faster.",
        note="Processor time on the way up, from the chunk of 50 ms that ends a window, without the network.",
    ),
)
