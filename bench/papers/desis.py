"""Desis: Efficient Window Aggregation in Decentralized Networks, section 6.

Windows have lengths from 1 to 10 seconds. CeBuffer is `buffer` here, DeBucket `buckets`, DeSW and Scotty
`per_function`; in a tree Scotty is `central`.
"""

from __future__ import annotations

import windrow as wr
from bench.cases import Case, Mark, Work
from bench.data import Stream
from bench.papers.scotty import tumbling
from bench.trees import Load

EVENTS, SECONDS = 5_000_000, 60.0
STREAM = Stream(EVENTS, SECONDS, values="arr_delay")
KEYED = Stream(EVENTS, SECONDS, keys=10, values="arr_delay")
MARKED = Stream(EVENTS, SECONDS, marks=1.0, values="arr_delay")
ALL = ("windrow", "per_function", "buckets", "buffer")
MEAN, SUM, MAX = wr.mean("value"), wr.sum("value"), wr.max("value")


def _windows(count: int) -> tuple[wr.Query, ...]:
    return tuple(tumbling(count, MEAN, 10.0))


def _half_marked(count: int) -> tuple[wr.Query, ...]:
    """Half of the windows end at user-defined events."""
    marked = [wr.Query(f"u{at}", wr.punctuated(end="mark"), [MEAN]) for at in range(count // 2)]
    return (*_windows(count - count // 2), *marked)


def _second(asked: list[list[wr.Aggregate]]) -> tuple[wr.Query, ...]:
    """A tumbling window of a second for each list of functions."""
    return tuple(wr.Query(f"q{at}", wr.tumbling("1 second"), several) for at, several in enumerate(asked))


def _quantiles(count: int, *more: wr.Aggregate) -> tuple[wr.Query, ...]:
    return _second([[wr.quantile("value", (at + 1) / (count + 1)), *more] for at in range(count)])


def _measures(count: int) -> tuple[wr.Query, ...]:
    """Windows of a second, and of a million events, in turns."""
    counted = [wr.Query(f"c{at}", wr.counting(1_000_000), [MEAN]) for at in range(count // 2)]
    return (*_second([[MEAN]] * (count - count // 2)), *counted)


def _sliced(slices: int, each: int, most: int = 5_000_000) -> Work:
    """A count window of so many slices of so many events, which a shorter count window makes."""
    size = slices * each
    events = min(max(2 * size + 1, 200_000), 4 * most)
    queries = (wr.Query("long", wr.counting(size), [SUM]), wr.Query("short", wr.counting(each), [SUM]))
    return Work(Stream(events, 60.0), queries)


def _ended(slices: int, each: int) -> Work:
    """The same, with all events of the long window taken in and none after them."""
    queries = (wr.Query("long", wr.counting(slices * each), [SUM]), wr.Query("short", wr.counting(each), [SUM]))
    return Work(Stream(slices * each, 60.0), queries)


def _seconds(count: int) -> list[wr.Query]:
    """Windows of 1 to 10 whole seconds, as many as are asked for."""
    return [wr.Query(f"q{at}", wr.tumbling(f"{1 + at % 10} s"), [MEAN]) for at in range(count)]


def _half_seconds(count: int) -> list[wr.Query]:
    marked = [wr.Query(f"u{at}", wr.punctuated(end="mark"), [MEAN]) for at in range(count // 2)]
    return [*_seconds(count - count // 2), *marked]


_DAY = wr.Query("day", wr.tumbling("1 day"), [MEAN])


def _network(asked: wr.Aggregate, keys: int = 1, windows: int = 1) -> Load:
    queries = tuple(tumbling(windows, asked, 10.0, by="key" if keys > 1 else ()))
    return Load(queries, nodes=1, rate=100_000, seconds=20, keys=keys, height=3)


CASES = (
    Case(
        "desis-6a",
        "Desis, Fig. 6a",
        "Latency of one tumbling window, 10 keys",
        "events in the window",
        "latency",
        ALL,
        lambda events: Work(Stream(events, 0.9, keys=10), tuple(tumbling(1, MEAN, by="key"))),
        (10_000, 100_000, 1_000_000),
        (10_000, 100_000),
        "CeBuffer has the highest latency, as it goes over all events at the end of a window; Desis the lowest.",
    ),
    Case(
        "desis-6b",
        "Desis, Fig. 6b",
        "Concurrent tumbling windows, 10 keys",
        "concurrent windows",
        "throughput",
        (*ALL, "duckdb", "polars"),
        lambda count: Work(KEYED, tuple(tumbling(count, MEAN, 10.0, by="key"))),
        (1, 10, 100, 1000),
        (1, 100),
        "Desis stays at 28 million events/s and Scotty at 5 million up to 1,000 windows; CeBuffer drops sharply.",
        marks=(Mark("windrow", least=0.1), Mark("windrow", "buffer", least=2)),
        tiny=(10,),
    ),
    Case(
        "desis-8a",
        "Desis, Fig. 8a",
        "Tumbling windows",
        "concurrent windows",
        "throughput",
        ALL,
        lambda count: Work(STREAM, _windows(count)),
        (1, 10, 100, 1000),
        (1, 10, 100),
        "Desis and DeSW do not slow down with the number of windows; DeBucket and CeBuffer do.",
        marks=(Mark("windrow", "buckets", least=5),),
    ),
    Case(
        "desis-8b",
        "Desis, Fig. 8b",
        "Slices of tumbling windows in a minute",
        "concurrent windows",
        "slices",
        ("windrow", "per_function", "buckets"),
        lambda count: Work(Stream(20_000, 60.0), (*_seconds(count), _DAY)),
        (1, 10, 100, 1000),
        (1, 10, 100),
        "Desis and DeSW make 61 slices a minute however many windows there are; DeBucket and "
        "CeBuffer one for each window.",
        marks=(Mark("windrow", most=1.1),),
        note="Window lengths are whole seconds here, as 61 slices a minute say that they were.",
    ),
    Case(
        "desis-8c",
        "Desis, Fig. 8c",
        "Half of the windows tumbling, half user-defined",
        "concurrent windows",
        "throughput",
        ALL,
        lambda count: Work(MARKED, _half_marked(count)),
        (2, 10, 100, 1000),
        (2, 10, 100),
        "All systems are slightly slower than with tumbling windows alone, for there are more slices.",
        marks=(Mark("windrow", "buckets", least=3),),
    ),
    Case(
        "desis-8d",
        "Desis, Fig. 8d",
        "Slices in a minute, half of the windows user-defined",
        "concurrent windows",
        "slices",
        ("windrow", "per_function", "buckets"),
        lambda count: Work(Stream(20_000, 60.0, marks=1.0), (*_half_seconds(count), _DAY)),
        (2, 10, 100, 1000),
        (2, 10, 100),
        "More slices than with tumbling windows alone, below 400 a minute for Desis and DeSW at any number of windows.",
        marks=(Mark("windrow", most=3.0),),
        note="One more window, of a day, makes windrow keep its slices, so that they can be counted.",
    ),
    Case(
        "desis-9a",
        "Desis, Fig. 9a",
        "Windows of a second with an average or a sum",
        "concurrent windows",
        "throughput",
        ALL,
        lambda count: Work(STREAM, _second([[MEAN] if at % 2 else [SUM] for at in range(count)])),
        (2, 10, 100, 1000),
        (2, 10, 100),
        "Desis computes sum and count once; DeSW has a group for each function; DeBucket and "
        "CeBuffer do each query alone.",
        marks=(Mark("windrow", "buckets", least=10),),
    ),
    Case(
        "desis-9b",
        "Desis, Fig. 9b",
        "Calculations of averages and sums",
        "concurrent windows",
        "calculations",
        ALL,
        lambda count: Work(Stream(100_000, 10.0), _second([[MEAN] if at % 2 else [SUM] for at in range(count)])),
        (2, 10, 100, 1000),
        (2, 10, 100),
        "Desis performs two calculations for an event, DeSW three, the others as many as there are queries.",
        marks=(Mark("windrow", most=1.0),),
        note="windrow counts events as well as values, so that it has three.",
    ),
    Case(
        "desis-9c",
        "Desis, Fig. 9c",
        "Windows of a second, each with another quantile",
        "concurrent windows",
        "throughput",
        ALL,
        lambda count: Work(STREAM, _quantiles(count)),
        (1, 10, 100, 1000),
        (1, 10, 100),
        "Desis stays at 7 million events/s with 1,000 quantiles; all others drop sharply, since they "
        "repeat the sorting.",
        marks=(Mark("windrow", "per_function", least=5), Mark("windrow", least=0.5)),
    ),
    Case(
        "desis-9d",
        "Desis, Fig. 9d",
        "Calculations of quantiles",
        "concurrent windows",
        "calculations",
        ALL,
        lambda count: Work(Stream(20_000, 10.0), _quantiles(count)),
        (1, 10, 100, 1000),
        (1, 10, 100),
        "Desis sorts once for all queries; the others once for each.",
        marks=(Mark("windrow", most=1.0),),
    ),
    Case(
        "desis-9e",
        "Desis, Fig. 9e, 9f",
        "Windows of a second, each with an average and another quantile",
        "concurrent windows",
        "throughput",
        ALL,
        lambda count: Work(STREAM, _quantiles(count, MEAN)),
        (1, 10, 100, 1000),
        (1, 100),
        "Desis needs sum, count and a sort, which is slightly slower than the sort alone; the others drop as before.",
        tiny=(10,),
        marks=(Mark("windrow", "per_function", least=5),),
    ),
    Case(
        "desis-9g",
        "Desis, Fig. 9g",
        "Windows of a second, each with a maximum and another quantile",
        "concurrent windows",
        "throughput",
        ALL,
        lambda count: Work(STREAM, _quantiles(count, MAX)),
        (1, 10, 100, 1000),
        (1, 100),
        "As fast as quantiles alone, since Desis takes the maximum from the sorted values; DeSW computes twice.",
        tiny=(10,),
        marks=(Mark("windrow", "per_function", least=5),),
    ),
    Case(
        "desis-9h",
        "Desis, Fig. 9h",
        "Windows of a second and of a million events",
        "concurrent windows",
        "throughput",
        ALL,
        lambda count: Work(STREAM, _measures(count)),
        (2, 10, 100, 1000),
        (2, 10, 100),
        "Desis is faster than DeSW, which puts count and time windows into groups of their own.",
    ),
    Case(
        "desis-10a",
        "Desis, Fig. 10a",
        "Throughput, slices of 10,000 events",
        "slices in a window",
        "throughput",
        ("windrow", "buckets", "buffer"),
        lambda slices: _sliced(slices, 10_000),
        (1, 10, 100, 1000),
        (1, 10, 100),
        "Desis and DeSW get slower with more slices in a window, CeBuffer too; DeBucket does not, "
        "and gains beyond 1,000.",
    ),
    Case(
        "desis-10b",
        "Desis, Fig. 10b",
        "Latency, slices of 100 events",
        "slices in a window",
        "latency",
        ("windrow", "buckets", "buffer"),
        lambda slices: _ended(slices, 100),
        (10, 100, 1000, 10_000),
        (10, 100, 1000),
        "Latency of Desis and DeSW grows with the slices in a window, that of CeBuffer with its "
        "events; DeBucket's does not.",
        note="Slices are a hundredth of the paper's, so that the longest window fits into memory twice.",
    ),
    Case(
        "desis-10c",
        "Desis, Fig. 10c",
        "Throughput, 1,000 slices in a window",
        "events in a slice",
        "throughput",
        ("windrow", "buckets", "buffer"),
        lambda each: _sliced(1000, each),
        (10, 100, 1000, 10_000),
        (50, 200, 1000),
        "Desis and DeSW are slow with small slices, and get faster as slices grow.",
    ),
    Case(
        "desis-10d",
        "Desis, Fig. 10d",
        "Latency, 1,000 slices in a window",
        "events in a slice",
        "latency",
        ("windrow", "buckets", "buffer"),
        lambda each: _ended(1000, each),
        (10, 100, 1000),
        (10, 100, 1000),
        "All but CeBuffer have a constant latency, since there is as much to do at the end of a window.",
    ),
    Case(
        "desis-11a",
        "Desis, Fig. 11a",
        "Bytes of an average, three levels",
        "concurrent windows",
        "tree_bytes",
        ("windrow", "central"),
        lambda count: _network(MEAN, windows=count),
        (1,),
        (1,),
        "Sending partial results saves 99% of the bytes of sending all events.",
        marks=(Mark("windrow", "central", most=0.05),),
    ),
    Case(
        "desis-11b",
        "Desis, Fig. 11b",
        "Bytes of a median, three levels",
        "concurrent windows",
        "tree_bytes",
        ("windrow", "central"),
        lambda count: _network(wr.median("value"), windows=count),
        (1,),
        (1,),
        "All systems must send their events, about as many bytes each.",
        marks=(Mark("windrow", "central", most=1.1),),
    ),
    Case(
        "desis-11c",
        "Desis, Fig. 11c",
        "Bytes by the number of keys",
        "keys",
        "tree_bytes",
        ("windrow", "central"),
        lambda keys: _network(MEAN, keys=keys),
        (1, 10, 100, 1000),
        (1, 10, 100),
        "Bytes of Desis grow linearly with the keys; those of centralised systems do not change.",
    ),
    Case(
        "desis-11d",
        "Desis, Fig. 11d",
        "Bytes by the number of windows",
        "concurrent windows",
        "tree_bytes",
        ("windrow", "central"),
        lambda count: Load(tuple(_seconds(count)), nodes=1, rate=100_000, seconds=20, height=3),
        (1, 10, 100, 1000),
        (1, 10, 100),
        "With one key the bytes of Desis do not depend on the number of windows, because slices are sent, each once.",
        marks=(Mark("windrow", most=2.0),),
    ),
)
