"""Counting windows over a tree of nodes: whatever the scheme and whatever happens, they hold exactly the right events.

What a seed makes of a tree is in `counting_scenarios.py`, which also tries more seeds than these, or one of them again.
"""

from __future__ import annotations

import heapq
import math
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow as wr
from counting_scenarios import COUNTED, EXACT, PLAIN, QUANTILES, Ran, Scenario, simulated, tried, wrong_in
from scenarios import COLUMNS
from test_nodes import talk, welcomed
from windrow.core.stream.job_slicer import Tables
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN, Grid
from windrow.nodes.counting.boundaries import BoundaryResolver
from windrow.nodes.counting.local import OrderedLogs
from windrow.nodes.counting.local import Outgoing as Sent
from windrow.nodes.counting.runs import Segment
from windrow.nodes.counting.schemes import SCHEMES, Boundaries, Directive
from windrow.nodes.counting.state import CountedState
from windrow.nodes.protocol.journal import MemoryStore
from windrow.nodes.protocol.messages import Ack, Batch, Out, Refused, Request
from windrow.nodes.protocol.node import SINK, Node
from windrow.nodes.quantiles import local as quantiles_local
from windrow.nodes.quantiles.protocol import MultisetSchema
from windrow.nodes.queries import QuerySet
from windrow.nodes.refine import bounds, undecided
from windrow.nodes.requests import AGAIN, Notice, Requests
from windrow.nodes.tables import GONE, PROGRESS, NodeProgress, progress_table
from windrow.testing import differences, recompute
from windrow.testing.tree_simulation import Faults, Simulation, Tree

AGAIN_BY = "python tests/counting_scenarios.py --trace --seeds 1 --first"


def nothing_wrong(number: int, scheme: str, come_and_go: bool = False) -> None:
    command = f"{AGAIN_BY} {number} --scheme {scheme}{' --come-and-go' if come_and_go else ''}"
    try:
        found = wrong_in(tried(number, come_and_go, scheme))
    except Exception as error:
        raise AssertionError(command) from error
    assert (command, found) == (command, [])


SEEDS = 3  # of each scheme; make soak goes on


@pytest.mark.parametrize("scheme", EXACT)
def test_windows_are_those_of_one_process_whatever_breaks(scheme: str, seed: int) -> None:
    for number in range(seed * SEEDS, seed * SEEDS + SEEDS):
        nothing_wrong(number, scheme)


@pytest.mark.parametrize("scheme", EXACT)
def test_where_nodes_come_and_go_windows_have_the_events_that_were_in_time_and_all_are_accounted_for(
    scheme: str, seed: int
) -> None:
    for number in range(seed * SEEDS, seed * SEEDS + SEEDS):
        nothing_wrong(number, scheme, come_and_go=True)


@pytest.mark.parametrize(("number", "quantiles"), [(5036, False), (9059, False), (9024, True), (9515, True)])
def test_seeds_that_have_failed(number: int, quantiles: bool) -> None:
    """A query that goes takes columns and multisets with it; a restarted root says the same at the same time."""
    assert wrong_in(tried(number, quantiles=quantiles)) == []


# --- rates ----------------------------------------------------------------------------------------------------------


def run_of(scheme: str, rates: Mapping[str, list[int]], length: int = 100, query: wr.Query = PLAIN) -> Simulation:
    """Nodes without faults, each with so many events in one stretch of time after the other."""
    events = {}
    for place, (name, several) in enumerate(rates.items()):
        times = [
            stretch * 1000 + (number * 1000 + place * 7) // rate
            for stretch, rate in enumerate(several)
            for number in range(rate)
        ]
        rows = [{"t": time, "k": "a", "x": number % 7} for number, time in enumerate(times[:length])]
        events[name] = pl.DataFrame(rows, schema=COLUMNS)
    tree = Tree({"root": None, **dict.fromkeys(rates, "root")})
    asked = QuerySet.of([query], "t", COLUMNS, counting=scheme)
    run = Simulation(tree, asked, events, Faults.none(), random.Random(1), exact=False)
    run.run()
    return run


def is_right(run: Simulation) -> bool:
    rows = [{**row, "node": name} for name, events in sorted(run.events.items()) for row in events.to_dicts()]
    rows.sort(key=lambda row: (row["t"], row["node"]))
    told = recompute(rows, run.query_set.queries, time="t", order_by=("node",))
    return not differences(run.results.to_dicts(), told, list(run.query_set.queries))


def corrections(run: Simulation) -> int:
    (found,) = run.machines["root"].status()["counting"].values()
    assert found["boundaries"] > 5
    return int(found["corrections"])


WIDE = wr.Query("wide", wr.counting(60), ["sum(x)", "count()"])
STEADY = {"a": [20] * 20, "b": [20] * 20, "c": [20] * 20}
JUMPS = {"a": [20, 20, 60, 2, 90, 20, 0, 80] * 4, "b": [20, 20, 3, 70, 0, 20, 90, 1] * 4, "c": [20] * 32}


def test_the_approximation_is_right_while_no_rate_changes_and_wrong_when_one_does() -> None:
    assert is_right(run_of("approximate", STEADY, 400, WIDE))
    assert not is_right(run_of("approximate", JUMPS, 500, WIDE))


def test_a_node_of_which_the_approximation_expects_nothing_is_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OrderedLogs, "room", property(lambda self: 100))
    run = run_of("approximate", {"a": [60] * 8, "b": [0] * 3 + [60] * 5}, 400, WIDE)
    assert run.results.height > 5


@pytest.mark.parametrize("scheme", ["sync", "async"])
def test_predictions_are_corrected_when_rates_jump_and_only_then(scheme: str) -> None:
    steady, jumping = run_of(scheme, STEADY, 400, WIDE), run_of(scheme, JUMPS, 500, WIDE)
    assert corrections(steady) == 0
    assert corrections(jumping) > 0
    assert is_right(steady)
    assert is_right(jumping)


@pytest.mark.parametrize("change", [0.001, 0.1, 1.0])
@pytest.mark.parametrize("scheme", [*EXACT, "approximate"])
def test_an_exact_scheme_is_so_however_much_rates_change(scheme: str, change: float, seed: int) -> None:
    dice = random.Random(f"{scheme} {change} {seed}")
    rates = {name: [max(0, round(40 * (1 + change * dice.uniform(-1, 1)))) for _ in range(8)] for name in "abc"}
    run = run_of(scheme, rates, 200, WIDE)
    assert scheme == "approximate" or is_right(run)


# --- planted errors -------------------------------------------------------------------------------------------------


def always(*_: Any) -> bool:
    return True


def one_too_few(self: Segment, rank: int, time: str) -> Segment:
    assert self.events is not None
    rest = self.events.slice(max(0, rank - self.lo - 1))
    return replace(self, lo=rank, first=int(rest[time][0]), events=rest)


def answered_twice(self: OrderedLogs, *asked: Any) -> None:
    before = list(self._segments)
    ANSWER(self, *asked)
    self._segments += [piece for piece in self._segments if piece not in before]


def whole_slices(self: OrderedLogs, *asked: Any) -> None:
    """Says of a slice that is asked for what is in the first half of it."""
    before = len(self._segments)
    ANSWER(self, *asked)
    for place, (key, cut, of) in enumerate(self._segments[before:], before):
        if cut.kind == "events" and of[1] is not None and cut.hi - cut.lo > 1:
            self._segments[place] = Sent(key, cut._replace(hi=cut.hi - 1), of)


ANSWER = OrderedLogs._answer


@pytest.mark.parametrize(
    ("place", "name", "planted"),
    [
        (BoundaryResolver, "_is_complete", always),
        (Segment, "after", one_too_few),
        (OrderedLogs, "_answer", answered_twice),
        (OrderedLogs, "_answer", whole_slices),
    ],
)
def test_a_planted_error_is_found_within_200_seeds(
    place: type, name: str, planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, name, planted)

    def fails(number: int) -> bool:
        scenario = Scenario([COUNTED[number % 2]], "refine", most=40)
        try:
            return bool(wrong_in(simulated(number, scenario, steps=3000)))
        except Exception:  # it may also break, or never come to its end
            return True

    assert any(fails(number) for number in range(200))


# --- properties -----------------------------------------------------------------------------------------------------


@st.composite
def units(draw: st.DrawFn) -> tuple[list[int], list[list[int]]]:
    """Numbers that differ, each at one of several nodes, and there in units of numbers that follow each other."""
    whole = draw(st.lists(st.integers(0, 60), min_size=1, max_size=30, unique=True))
    nodes: dict[int, list[int]] = {}
    for number in sorted(whole):
        nodes.setdefault(draw(st.integers(0, 3)), []).append(number)
    found = []
    for several in nodes.values():
        while several:
            size = draw(st.integers(1, 6))
            found.append(several[:size])
            several = several[size:]
    return sorted(whole), found


@given(units())
@settings(max_examples=300)
def test_the_nth_lies_between_its_bounds_and_in_no_unit_that_is_decided(
    made: tuple[list[int], list[list[int]]],
) -> None:
    whole, several = made
    first, last = (np.array([unit[place] for unit in several]) for place in (0, -1))
    found = bounds(first, last, np.array([len(unit) for unit in several]), np.arange(1, len(whole) + 1))
    for value, lower, upper, sure, possible in zip(whole, *found, strict=True):
        assert lower <= value <= upper
        assert sure == sum(len(unit) for unit in several if unit[-1] <= upper)
        assert possible == sum(len(unit) for unit in several if unit[0] <= upper)
    open_ = [(lower, upper) for lower, upper in zip(found.lower, found.upper, strict=True) if lower < upper]
    expected = [
        unit[0] < unit[-1] and any(unit[0] <= upper and lower <= unit[-1] for lower, upper in open_) for unit in several
    ]
    assert undecided(first, last, found).tolist() == expected


TOLD = st.builds(
    Directive,
    scheme=st.just("async"),
    cut=st.integers(0, 50),
    position=st.integers(0, 200),
    share=st.one_of(st.just(0.0), st.floats(0.01, 5.0)),
    margin=st.floats(0, 3),
    sub_slice=st.integers(1, 20),
    patience=st.integers(0, 100),
)
GRIDS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=3)


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
@given(TOLD, GRIDS, st.integers(0, 60), st.integers(0, 200), st.booleans())
def test_segments_tile_the_ranks(
    scheme: Any, told: Directive, grids: list[tuple[int, int]], ahead: int, more: int, flush: bool
) -> None:
    boundaries = Boundaries(Grid(*np.array(grids).T))
    covered = told.cut + ahead
    top, at = covered + more, covered
    for lo, hi, kind in scheme.cuts(told, boundaries, covered, top, flush):
        assert (lo, kind in ("events", "slice", "count")) == (at, True)
        assert lo < hi <= top
        at = hi
    if scheme.name == "central" or (flush and scheme.name in ("monitoring", "refine", "async")):
        assert at == top


# --- keys -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (pl.Float64(), [1.5, math.nan, 0.0, -0.0, None]),
        (pl.Float32(), [0.1, math.nan, math.inf]),
        (pl.Datetime("ns"), [1, 2, 3000]),
        (pl.Datetime("us", "Europe/Paris"), [1, 2, None]),
        (pl.Duration("ns"), [1, 2, 3000]),
        (pl.Time(), [1, 2, 3000]),
        (pl.Date(), [date(2020, 1, 1), None]),
        (pl.Boolean(), [True, False, None]),
        (pl.Binary(), [b"a", b""]),
    ],
    ids=str,
)
def test_keys_of_any_type(dtype: pl.DataType, values: list[Any]) -> None:
    dice, query = random.Random(1), wr.Query("q", wr.counting(3), ["sum(x)", "last(x)"], by="k")
    columns = {"t": pl.Int64(), "k": dtype, "x": pl.Int64()}
    events = {}
    for name in "ab":
        keys = pl.Series([dice.choice(values) for _ in range(60)], dtype=None if dtype != pl.Float32 else dtype)
        times = sorted(dice.randint(0, 90) for _ in range(60))
        events[name] = pl.DataFrame({"t": times, "k": keys, "x": range(60)}).cast(columns)  # type: ignore[arg-type]
    said = {}
    for scheme in ("refine", "central"):
        asked = QuerySet.of([query], "t", columns, counting=scheme)
        run = Simulation(Tree({"root": None, "a": "root", "b": "root"}), asked, events, Faults.none(), random.Random(2))
        run.run()
        said[scheme] = run.results.sort("k", "position")
    assert said["refine"].height > 30
    assert said["refine"].equals(said["central"])


# --- one machine at a time ------------------------------------------------------------------------------------------

REFINED = QuerySet.of([wr.Query("q", wr.counting(4), ["sum(x)"])], "t", COLUMNS, counting="refine")
KEYED = QuerySet.of([wr.Query("q", wr.counting(4), ["sum(x)"], by="k")], "t", COLUMNS, counting="refine")
NAME = "by () on t (counted, refine)"


def events(*times: int) -> pl.DataFrame:
    return pl.DataFrame({"t": list(times), "k": ["a"] * len(times), "x": [1] * len(times)}, schema=COLUMNS)


def windows(told: list[Any]) -> list[int]:
    return [n for batch in told if isinstance(batch, Batch) for n in batch.tables["results"]["position"].to_list()]


def settled(out: Out, machines: Mapping[str, Node], sender: str, now: int = 0) -> list[int]:
    """Carry messages until nobody says anything; the positions of windows that the outlet got."""
    found, waiting = [], [(sender, *one) for one in out]
    while waiting:
        sender, to, message = waiting.pop(0)
        if to == SINK:
            found += windows([message])
            waiting.append((SINK, "root", Ack(message.life, message.number)))  # type: ignore[union-attr]
        else:
            waiting += [(to, *one) for one in machines[to].receive(sender, message, now)]
    return found


def test_a_node_below_another_that_dies_holds_no_counting_window_back() -> None:
    root = Node("root", None, ("middle",), 1, MemoryStore(), REFINED, timeout=50 * AGAIN)
    middle = welcomed(Node("middle", "root", ("a", "b"), 1, MemoryStore(), timeout=5 * AGAIN), root)
    a, b = (welcomed(Node(name, "middle"), middle, root) for name in "ab")
    machines = {"root": root, "middle": middle, "a": a, "b": b}
    found = settled(b.read(events(2, 3), {"at": 2}, 0), machines, "b")
    found += settled(a.read(events(*range(9)), {"at": 9}, 0), machines, "a")
    assert found == []
    for now in range(0, 9 * AGAIN, AGAIN):
        for name in ("a", "middle", "root"):
            found += settled(machines[name].tick(now), machines, name, now)
    assert middle.status()["children"]["b"]["state"] == "silent"
    assert found == [0, 4]  # of 2 events of b, and those of a before its watermark
    machines["b"] = Node("b", "middle", life=2)
    settled(machines["b"].start(9 * AGAIN), machines, "b", 9 * AGAIN)
    assert root.as_parent.subtree.assembly is not None
    assert "b" not in root.as_parent.subtree.assembly._requests.lost


def test_an_idle_node_is_not_waited_for_however_often_it_is_asked() -> None:
    root = Node("root", None, ("a", "b"), 1, MemoryStore(), REFINED)
    a, b = welcomed(Node("a", "root"), root), welcomed(Node("b", "root", idle=3 * AGAIN), root)
    machines = {"root": root, "a": a, "b": b}
    settled(b.read(events(1), {"at": 1}, 0), machines, "b")
    found = []
    for now in range(0, 9 * AGAIN, AGAIN):
        found += settled(b.tick(now), machines, "b", now)
    found += settled(a.read(events(*range(10)), {"at": 10}, 0), machines, "a")
    assert found == [0, 4]


def test_a_node_that_leaves_after_its_end_gives_what_the_root_has_not_settled() -> None:
    root = Node("root", None, ("a", "b"), 1, MemoryStore(), REFINED)
    a, b = welcomed(Node("a", "root"), root), welcomed(Node("b", "root"), root)
    machines = {"root": root, "a": a, "b": b}
    settled(b.read(events(*range(10)), {"at": 10}, 0, last=True), machines, "b")
    settled(b.leave(0), machines, "b")
    assert b.left
    found = settled(a.read(events(*range(10)), {"at": 10}, 0, last=True), machines, "a")
    assert found == [0, 4, 8, 12, 16]
    assert root.status()["children"]["b"]["late"] == 0


def test_a_tree_whose_only_counting_query_goes_comes_to_its_end() -> None:
    run = simulated(1, Scenario([COUNTED[2]], "refine", removed=("keyed",), most=10)).run
    assert all(machine.done for machine in run.machines.values())


def test_requests_of_a_root_that_was_restarted_are_new_to_every_node() -> None:
    table = progress_table(NodeProgress("a", INT64_MAX))
    numbers = []
    for epoch in (1, 2):
        requests = Requests(epoch)
        requests.absorb({PROGRESS: table}, 0)
        numbers += [number for _, number, _, _ in requests.due({}, {}, True, 0)]
    assert numbers[1] - numbers[0] >= 2**20


def test_a_notice_is_repeated_until_the_node_has_received_the_request_that_it_was_in() -> None:
    requests, columns = Requests(), {"table": {"key": pl.String(), "value": pl.Int64()}}
    notice = Notice("table", ("a",))

    def reported(received: int, now: int) -> list[tuple[str, int, list[Any]]]:
        progress = NodeProgress("n", 5, received=received)
        requests.absorb({PROGRESS: progress_table(progress)}, now)
        due = requests.due({}, columns, False, now)
        return [(node, number, tables["table"].rows()) for node, number, _, tables in due]

    assert reported(0, 0) == []
    requests.note("n", notice, (1,))
    assert reported(0, 0) == [("n", 1, [("a", 1)])]
    assert reported(0, 1) == []  # it may be on its way
    assert reported(0, AGAIN) == [("n", 2, [("a", 1)])]
    assert reported(2, 3 * AGAIN) == []
    requests.note("n", notice, (1,))
    assert reported(2, 5 * AGAIN) == []  # it knows
    assert reported(0, 5 * AGAIN) == [("n", 3, [("a", 1)])]  # another life of it does not


def test_a_root_that_was_restarted_asks_again() -> None:
    disk = MemoryStore()
    root = Node("root", None, ("a", "b"), 1, disk, REFINED, log=1)
    for name in ("a", "b"):
        local = welcomed(Node(name, "root"), root)
        talk(local, root, local.read(events(*range(10)), {"at": 10}, 0, last=True))  # what it is asked then is lost
    again = Node("root", None, ("a", "b"), 2, disk, REFINED, log=1)
    asks = {to for to, one in again.tick(AGAIN) if isinstance(one, Request) and f"{NAME}|ask" in one.tables}
    assert asks == {"a", "b"}


def test_what_waits_at_a_node_that_cannot_read_again_outlives_it() -> None:
    asked = replace(REFINED, options=replace(REFINED.options, lateness=5))
    root = Node("root", None, ("a",), 1, MemoryStore(), asked)
    local = welcomed(Node("a", "root", eager=True), root)
    talk(local, root, local.read(events(*range(10)), {"at": 10}, 0))  # 5 to 9 wait
    again = welcomed(Node("a", "root", life=2, eager=True), root)
    assert again.mark == {"at": 10}
    told = talk(again, root, again.read(events(30), {"at": 11}, 0))
    assert windows(told) == [4]
    assert told[0].tables["results"]["sum(x)"].to_list() == [4]  # type: ignore[union-attr]


# --- what is bounded ------------------------------------------------------------------------------------------------


def test_a_node_keeps_events_until_they_are_settled_and_reads_no_more_while_the_root_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(OrderedLogs, "room", property(lambda self: 40))
    root = Node("root", None, ("a", "b"), 1, MemoryStore(), REFINED)
    a, b = welcomed(Node("a", "root"), root), welcomed(Node("b", "root"), root)
    machines, at = {"root": root, "a": a, "b": b}, 0
    assert a.as_local.reader is not None
    (strands,) = a.as_local.reader.counted._groups.values()
    while a.mark is not None:  # the root waits for b, and can settle nothing
        settled(a.read(events(*range(at, at + 8)), {"at": at + 8}, 0), machines, "a")
        at += 8
        assert at < 100
    assert 40 < strands.kept <= 48
    found = settled(b.read(events(90), {"at": 1}, 0), machines, "b")
    assert found == list(range(0, at - 4, 4))
    assert strands.kept <= 4
    assert a.mark == {"at": at}
    assert a.confirmed is not None
    settled(a.read(events(95), {"at": at + 1}, 0), machines, "a")
    assert a.confirmed["at"] >= at - 8  # what is settled is not read again


# --- what cannot be -------------------------------------------------------------------------------------------------


def sent_by(asked: QuerySet = REFINED) -> tuple[Node, Node, Batch]:
    """A root with a node and another one, and a batch of that: a slice of 8 events and 4 events."""
    root = Node("root", None, ("a", "b"), 1, MemoryStore(), asked)
    local, other = welcomed(Node("a", "root"), root), welcomed(Node("b", "root"), root)
    ((_, batch),) = other.read(events(*range(13)), {"at": 13}, 0)
    assert isinstance(batch, Batch)
    return root, local, batch


def edited(part: str, **columns: Any) -> Callable[[Tables], Tables]:
    """A table with other columns; None for one that is not there."""

    def made(tables: Tables) -> Tables:
        name = part if part in (PROGRESS, GONE) else next(name for name in tables if name.endswith(part))
        table = tables[name].drop([column for column, value in columns.items() if value is None])
        return {
            **tables,
            name: table.with_columns(**{one: value for one, value in columns.items() if value is not None}),
        }

    return made


def without(part: str) -> Callable[[Tables], Tables]:
    return lambda tables: {name: table for name, table in tables.items() if not name.endswith(part)}


def doubled(tables: Tables) -> Tables:
    sent = tables[f"{NAME}|segments"]
    answer = sent.filter(pl.col("kind") == "events").with_columns(of_lo=pl.col("lo"), of_hi=pl.col("hi"))
    segments = pl.concat([sent, answer, answer])
    return {**tables, f"{NAME}|segments": segments, f"{NAME}|events": pl.concat([tables[f"{NAME}|events"]] * 3)}


BAD: list[tuple[Callable[[Tables], Tables], str]] = [
    (edited("|segments", lo=None), "has no 'lo' in its batch"),
    (edited("|segments", lo=pl.col("lo").cast(pl.String)), "'lo' of .* is String in its batch, not Int64"),
    (edited("|segments", kind=pl.lit("other")), "a segment that cannot be in its batch: kind 'other'"),
    (edited("|segments", lo=pl.col("hi"), hi=pl.col("lo")), "a segment that cannot be in its batch"),
    (edited("|segments", lo=pl.lit(-1, pl.Int64)), "a segment that cannot be in its batch"),
    (edited("|segments", kind=pl.lit("count"), hi=pl.lit(2**62)), "a segment that cannot be in its batch"),
    (edited("|segments", first=pl.col("last") + 1), "a segment that cannot be in its batch"),
    (edited("|segments", first=pl.lit(None, pl.Int64)), "no value where one is needed"),
    (edited("|segments", of_lo=pl.lit(0, pl.Int64)), "no value where one is needed"),
    (edited("|segments", lo=pl.col("lo") + 1, hi=pl.col("hi") + 1), "1 to 9 of 'b' does not follow on 0"),
    (edited("|segments", lo=pl.lit(0, pl.Int64), hi=pl.col("hi") - pl.col("lo")), "0 to 4 of 'b' does not follow on 8"),
    (edited("|segments", **{"sum(x).sum": None}), r"has no 'sum\(x\).sum' in its batch"),
    (edited("|segments", **{"count().count": pl.lit(3, pl.Int64)}), "slices of other events than it says"),
    (edited("|segments", kind=pl.lit("events")), "says 12 events, and there are 4"),
    (edited("|segments", node=pl.lit("a")), "it counts for 'a', which is another node"),
    (edited("|segments", node=pl.lit(None, pl.String)), "no value where one is needed"),
    (without("|events"), "says 4 events, and there are 0"),
    (edited("|events", **{"time:t": pl.col("time:t").reverse()}), "out of order in its batch"),
    (edited("|events", **{"time:t": pl.col("time:t") + 1}), "not those of the segments"),
    (edited("|events", **{"input:x": pl.lit(0.5)}), "'input:x' of .* is Float64 in its batch, not Int64"),
    (edited("|reach", next=pl.lit("now")), "'next' of .* is String in its batch, not Int64"),
    (edited("|reach", node=pl.lit("c")), "it counts for 'c', which is another node"),
    (edited(PROGRESS, final=None), "progress has no 'final' in its batch"),
    (edited(PROGRESS, received=pl.lit(None, pl.Int64)), "progress has no value where one is needed"),
    (edited(PROGRESS, node=pl.lit("a")), "it counts for 'a', which is another node"),
    (without(PROGRESS), "it counts for 'b', which has not said a word"),
    (lambda tables: {**tables, GONE: pl.DataFrame({"node": ["a"], "gone": [1]})}, "'gone' of gone is Int64"),
    (lambda tables: {**tables, GONE: pl.DataFrame({"node": ["a"], "gone": [True]})}, "it counts for 'a'"),
    (doubled, "8 to 12 of 'b' does not follow on 12"),
]


@pytest.mark.parametrize(
    ("garbled", "reason"), BAD, ids=[f"{number} {reason}" for number, (_, reason) in enumerate(BAD)]
)
def test_a_batch_that_cannot_be_is_refused_and_disturbs_nobody(garbled: Any, reason: str) -> None:
    root, local, batch = sent_by()
    out = root.receive("b", replace(batch, tables=garbled(dict(batch.tables))), 0)
    (refused,) = [message for to, message in out if to == "b"]
    assert isinstance(refused, Refused)
    (note,) = root.notes[:1]
    assert re.search(reason, note), note
    machines = {"root": root, "a": local, "b": Node("b", "root")}
    assert settled(local.read(events(*range(10)), {"at": 10}, 0), machines, "a") == [0, 4]


def test_a_key_of_another_type_is_refused() -> None:
    root, _, batch = sent_by(KEYED)
    tables = dict(batch.tables)
    pieces = next(name for name in tables if name.endswith("|segments"))
    tables[pieces] = tables[pieces].with_columns(pl.lit(7).alias("key:k"))
    root.receive("b", replace(batch, tables=tables), 0)
    assert "'key:k' of by (k) on t (counted, refine)|segments is Int32 in its batch, not String" in root.notes[0]


def test_a_node_below_another_child_is_not_spoken_for() -> None:
    root = Node("root", None, ("middle", "b"), 1, MemoryStore(), REFINED)
    middle = welcomed(Node("middle", "root", ("a",), 1, MemoryStore()), root)
    a, b = welcomed(Node("a", "middle"), middle, root), welcomed(Node("b", "root"), root)
    settled(a.read(events(1, 2), {"at": 2}, 0), {"root": root, "middle": middle, "a": a}, "a")
    ((_, batch),) = b.read(events(1), {"at": 1}, 0)
    assert isinstance(batch, Batch)
    tables = {
        name: table.with_columns(node=pl.lit("a")) if "node" in table.columns else table
        for name, table in batch.tables.items()
    }
    root.receive("b", replace(batch, tables=tables, position={}), 0)
    assert root.notes == ["refused b: it counts for 'a', which is below middle"]


def test_random_cells_in_batches_disturb_no_root(seed: int) -> None:
    dice, refused = random.Random(seed), 0
    values = [None, -1, 0, 5, 2**62, INT64_MIN, INT64_MAX, "b", "events", True]
    for _ in range(60):
        root, local, batch = sent_by()
        tables = dict(batch.tables)
        name = dice.choice(sorted(tables))
        table = tables[name]
        column = dice.choice(table.columns)
        cells, place, value = table[column].to_list(), dice.randrange(table.height), dice.choice(values)
        cells[place] = value
        try:
            tables[name] = table.with_columns(pl.Series(column, cells, dtype=table.schema[column], strict=True))
        except (TypeError, OverflowError, pl.exceptions.PolarsError):
            tables[name] = table.with_columns(pl.lit(str(value)).alias(column))
        root.receive("b", replace(batch, tables=tables), 0)
        refused += bool(root.notes)
        settled(local.read(events(*range(10)), {"at": 10}, 0), {"root": root, "a": local, "b": Node("b", "root")}, "a")
        root.tick(AGAIN)
        assert root.status()["children"]["a"]["batches"] > 0
    assert 10 < refused < 60


@pytest.mark.parametrize(
    "tables",
    [
        {NAME: pl.DataFrame({"cut": [3]})},
        {f"{NAME}|ask": pl.DataFrame({"lo": [0], "hi": [8]})},
        {f"{NAME}|ask": pl.DataFrame({"lo": [0], "hi": [8], "what": ["all"]})},
        {f"{NAME}|ask": pl.DataFrame({"lo": [8], "hi": [0], "what": ["events"]})},
        {f"{NAME}|ask": pl.DataFrame({"lo": ["0"], "hi": [8], "what": ["events"]})},
        {f"{NAME}|ask": pl.DataFrame({"lo": [None], "hi": [8], "what": ["events"]}, schema_overrides={"lo": pl.Int64})},
    ],
)
def test_a_request_that_cannot_be_is_not_heard(tables: Tables) -> None:
    root = Node("root", None, ("a",), 1, MemoryStore(), REFINED)
    local = welcomed(Node("a", "root"), root)
    local.read(events(*range(10)), {"at": 10}, 0)
    assert local.receive("root", Request(0, "a", 7, 0, tables), 0) == []
    assert local.receive("root", Request(0, "a", 8, 0, tables), 0) == []
    (note,) = local.notes
    assert note.startswith("not heard: ")
    asked = {f"{NAME}|ask": pl.DataFrame({"lo": [0, 40], "hi": [8, 48], "what": ["events", "events"]})}
    ((_, answer),) = local.receive("root", Request(0, "a", 9, 0, asked), 0)
    assert isinstance(answer, Batch)
    assert answer.tables[f"{NAME}|events"].height == 8


# --- quantiles ------------------------------------------------------------------------------------------------------


def bags(run: Simulation, what: str) -> int:
    return sum(one.get(what, 0) for one in run.machines["root"].status().get("counting", {}).values())


@pytest.mark.parametrize("come_and_go", [False, True])
def test_quantiles_are_exact_and_nodes_are_asked_for_few_values(come_and_go: bool, seed: int) -> None:
    units = asked = exact = 0
    for number in range(seed * 4, seed * 4 + 4):
        ran = tried(number, come_and_go, quantiles=True)
        command = f"{AGAIN_BY} {number} --quantiles{' --come-and-go' if come_and_go else ''}"
        assert (command, wrong_in(ran)) == (command, [])
        units, asked = units + bags(ran.run, "blocks"), asked + bags(ran.run, "requested")
        exact += not bags(ran.run, "left_out")
    assert 0 < asked < units
    assert exact >= 2


@pytest.mark.parametrize(
    ("query", "scheme"),
    [*((QUANTILES[0], scheme) for scheme in EXACT), *((query, "refine") for query in QUANTILES[1:])],
    ids=lambda one: getattr(one, "name", one),
)
def test_quantiles_by_every_scheme_and_of_every_kind(query: wr.Query, scheme: str) -> None:
    scenario = Scenario([query], scheme, most=150, faults=Faults.none(), settings={"block_size": 2, "eager": False})
    ran = simulated(7, scenario)
    assert wrong_in(ran) == []
    assert ran.run.results.height > 0
    assert (bags(ran.run, "blocks") > 0) == (scheme != "central")


def test_a_count_query_and_a_quantile_agree_once() -> None:
    several = [PLAIN, wr.Query("median", wr.counting(9), ["median(x)"]), wr.Query("mode", wr.counting(9), ["mode(x)"])]
    asked = QuerySet.of(several, "t", COLUMNS, counting="refine")
    (form,) = asked.forms
    assert form.multisets is not None
    assert list(form.multisets.multisets) == []  # the mode needs all values, so that they travel once for both
    (form,) = QuerySet.of(several[:2], "t", COLUMNS, counting="refine").forms
    assert form.multisets is not None
    assert list(form.multisets.multisets) == ["bag(x)"]
    assert not any(name.startswith("bag") for name in form.states)


MEDIAN = QuerySet.of([wr.Query("q", wr.counting(20), ["median(x)", "count()"])], "t", COLUMNS, counting="refine")
BAGS = NAME


class Flat:
    """A root and two nodes in one process; what one of them says or hears may be lost."""

    def __init__(self, asked: QuerySet = MEDIAN, **settings: Any) -> None:
        self.root = Node("root", None, ("a", "b"), 1, MemoryStore(), asked, **settings)
        self.machines = {"root": self.root}
        self.deaf: set[str] = set()
        self.rows: list[pl.DataFrame] = []
        self.requests: list[Request] = []
        self.now = 0
        for name in ("a", "b"):
            self.begin(name, 1)

    def begin(self, name: str, epoch: int) -> None:
        self.machines[name] = Node(name, "root", life=epoch, block_size=2)
        self.post(name, self.machines[name].start(self.now))

    def post(self, sender: str, out: Out) -> None:
        waiting = [(sender, *one) for one in out]
        while waiting:
            whose, to, message = waiting.pop(0)
            if to == SINK:
                assert isinstance(message, Batch)
                self.rows.append(message.tables["results"])
                waiting += [
                    ("root", *one) for one in self.root.receive(SINK, Ack(message.life, message.number), self.now)
                ]
            elif not {to, whose} & self.deaf:
                self.requests += [message] if isinstance(message, Request) else []
                waiting += [(to, *one) for one in self.machines[to].receive(whose, message, self.now)]

    def read(self, name: str, first: int, last: int, ends: bool = False) -> None:
        """Events at 2n or 2n + 1, whose values are their times."""
        times = [2 * n + (name == "b") for n in range(first, last)]
        events = pl.DataFrame({"t": times, "k": ["a"] * len(times), "x": times}, schema=COLUMNS)
        self.post(name, self.machines[name].read(events, {"at": last}, self.now, last=ends))

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += AGAIN
            for name, machine in self.machines.items():
                if name not in self.deaf:
                    self.post(name, machine.tick(self.now))

    @property
    def medians(self) -> list[tuple[int, float, int]]:
        told = pl.concat(self.rows) if self.rows else pl.DataFrame(schema=["position", "median(x)", "count()"])
        return told.select("position", "median(x)", "count()").rows()

    def asked_for(self, place: int) -> list[str]:
        """The nodes that were asked for a multiset's blocks (place -1) or for its values."""
        name = f"{BAGS}|wanted bag(x)"
        rows = [(one.node, one.tables[name]) for one in self.requests if name in one.tables]
        return [node for node, table in rows if ((table["lo"] == -1) == (place == -1)).any()]


RIGHT = [(0, 9.5, 20), (20, 29.5, 20), (40, 49.5, 20)]


def test_the_root_asks_for_units_once_ends_are_known_and_then_for_values() -> None:
    tree = Flat()
    tree.read("a", 0, 35)
    assert tree.asked_for(-1) == []
    tree.read("b", 0, 35)
    tree.tick(3)
    assert {"a", "b"} <= set(tree.asked_for(-1))
    assert {"a", "b"} <= set(tree.asked_for(0))
    assert tree.medians == RIGHT


def test_a_node_that_was_started_again_answers_as_it_would_have() -> None:
    tree = Flat()
    tree.read("a", 0, 35)
    tree.deaf.add("a")  # what it is asked is lost
    tree.read("b", 0, 35)
    tree.deaf.clear()
    assert tree.medians == []
    tree.begin("a", 2)
    assert tree.machines["a"].mark == {}
    tree.read("a", 0, 35)
    tree.tick(3)
    assert tree.medians == RIGHT


def test_a_root_that_was_restarted_asks_for_values_again() -> None:
    tree = Flat(log=1)
    tree.read("a", 0, 35)
    tree.deaf = {"a"}
    tree.read("b", 0, 35)
    assert tree.medians == []
    tree.root = tree.machines["root"] = Node("root", None, ("a", "b"), 2, tree.root.store, MEDIAN, log=1)
    tree.deaf.clear()
    for name in ("a", "b"):
        tree.post(name, tree.machines[name].start(tree.now))
    tree.tick(4)
    assert tree.medians == RIGHT


def test_a_node_that_leaves_gives_the_values_that_may_be_asked_for() -> None:
    tree = Flat()
    tree.read("a", 0, 35)
    tree.deaf.add("a")
    tree.read("b", 0, 35)  # the root has its windows, and has asked in vain
    tree.deaf.clear()
    tree.post("a", tree.machines["a"].leave(tree.now))
    tree.tick(3)
    assert tree.machines["a"].left
    assert tree.medians[:3] == RIGHT
    assert bags(tree, "left_out") == 0  # type: ignore[arg-type]


def test_of_a_silent_node_values_are_left_out_and_counted() -> None:
    tree = Flat(timeout=3 * AGAIN)
    tree.read("a", 0, 35)
    tree.deaf.add("a")
    tree.read("b", 0, 35)
    assert tree.medians == []
    tree.tick(6)
    assert tree.medians[0][::2] == (0, 20)  # it is in the count
    assert tree.medians[0][1] != 9.5
    assert tree.root.status()["counting"][BAGS]["left_out"] > 0


def test_a_node_keeps_events_as_long_as_they_may_be_asked_for() -> None:
    sliding = [wr.Query("q", wr.counting(40, 10), ["median(x)"])]
    tree = Flat(QuerySet.of(sliding, "t", COLUMNS, counting="refine"))
    reader = tree.machines["a"].as_local.reader
    assert reader is not None
    (strands,) = reader.counted._groups.values()
    held = []
    for at in range(0, 400, 20):
        tree.read("a", at, at + 20)
        tree.read("b", at, at + 20)
        tree.tick()
        held.append(strands.kept)
    assert max(held[10:]) <= 20 + 20 + 20  # half of a window, what was read at last, and what waits for its end
    assert strands.multisets is not None
    assert len(strands.multisets.kept) <= 12
    assert tree.machines["a"].confirmed is not None


@pytest.mark.parametrize("planted", ["blocks", "values", "kept"])
def test_a_planted_error_in_quantiles_is_found(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks, values, needed = quantiles_local.blocks_of, MultisetSchema.values_table, CountedState.needed

    def off_by_one(several: pl.Series, *rest: Any) -> list[pl.Series]:
        """A block ends with the value before its last."""
        first, last, count = blocks(several, *rest)
        return [first, blocks(several.shift(1), *rest)[1].fill_null(last), count]

    def one_later(self: MultisetSchema, multiset: str, named: Any, several: Any, counts: Any) -> pl.DataFrame:
        """The values of a block are those from the place after its first on."""
        later = [one.shift(-1, fill_value=one[-1]) if len(one) else one for one in several]
        return values(self, multiset, named, later, counts)

    def too_little(self: CountedState) -> Any:
        """Nodes need not keep what windows to come have in common with those that are told."""
        found = needed(self)
        return found and {key: {} for key in found}

    if planted == "blocks":
        monkeypatch.setattr(quantiles_local, "blocks_of", off_by_one)
    elif planted == "values":
        monkeypatch.setattr(MultisetSchema, "values_table", one_later)
    else:
        monkeypatch.setattr(CountedState, "needed", too_little)

    def fails(number: int) -> bool:
        scenario = Scenario([QUANTILES[number % 3]], "refine", most=150, settings={"block_size": 2, "eager": False})
        try:
            return bool(wrong_in(simulated(number, scenario, steps=3000)))
        except Exception:  # it may also break, or never come to its end
            return True

    assert any(fails(number) for number in range(40))


def blocks_sent() -> tuple[Node, Batch]:
    """A root, and the blocks that a node answers with."""
    tree = Flat()
    tree.read("a", 0, 35)
    kept: list[Batch] = []
    hear = tree.root.receive

    def heard(sender: str, message: Any, now: int) -> Out:
        if isinstance(message, Batch) and any("|blocks" in name for name in message.tables):
            kept.append(message)
            return []
        return hear(sender, message, now)

    tree.root.receive = heard  # type: ignore[method-assign]
    tree.read("b", 0, 35)
    tree.tick()
    tree.root.receive = hear  # type: ignore[method-assign]
    return tree.root, kept[0]


BLOCKS = f"{BAGS}|blocks bag(x)"


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (pl.lit("1").alias("send"), "has other columns in its batch than it should"),
        (pl.lit(None, pl.Int64).alias("row"), "has no value where one is needed in its batch"),
        (pl.lit(0, pl.Int64).alias("size"), "cannot be in a batch: it has blocks"),
        (pl.col("entries") + 9, "cannot be in a batch: it has blocks"),
        (pl.col("last").list.head(1), "cannot be in a batch: it has blocks"),
        (pl.lit("c").alias("node"), "it counts for 'c', which is another node"),
    ],
)
def test_blocks_that_cannot_be_are_refused(column: pl.Expr, reason: str) -> None:
    root, batch = blocks_sent()
    tables = {**batch.tables, BLOCKS: batch.tables[BLOCKS].with_columns(column)}
    out = root.receive(batch.node, replace(batch, tables=tables), 0)
    assert any(isinstance(message, Refused) for _, message in out)
    assert reason in root.notes[-1]


def test_a_request_for_values_that_cannot_be_is_not_heard() -> None:
    tree = Flat()
    tree.read("a", 0, 35)
    local = tree.machines["a"]
    good = pl.DataFrame({"send": [0], "row": [10], "lo": [-1], "hi": [-1]})
    for bad in (good.drop("row"), good.with_columns(lo=pl.lit("0")), good.with_columns(lo=pl.lit(None, pl.Int64))):
        assert local.receive("root", Request(1, "a", 1 << 30, 0, {f"{BAGS}|wanted bag(x)": bad}), 0) == []
    assert local.notes[0].startswith("not heard: ")
    far = good.with_columns(row=pl.lit(10_000, pl.Int64))
    assert local.receive("root", Request(1, "a", 1 << 30, 0, {f"{BAGS}|wanted bag(x)": far}), 0) == []
    ((_, answer),) = local.receive("root", Request(1, "a", (1 << 30) + 1, 0, {f"{BAGS}|wanted bag(x)": good}), 0)
    assert isinstance(answer, Batch)
    assert answer.tables[BLOCKS]["entries"].to_list() == [10]


def test_a_run_is_the_same_again() -> None:
    one, other = (simulated(5, Scenario([PLAIN], "async", most=20)) for _ in range(2))
    assert isinstance(one, Ran)
    assert one.run.results.equals(other.run.results)
    assert one.run.messages == other.run.messages


@pytest.mark.parametrize("scheme", ["monitoring", "refine"])
def test_many_small_windows_are_agreed_on_in_few_messages(scheme: str, seed: int) -> None:
    names, size, each = ("a", "b", "c"), 60, 8_000
    query = wr.Query("q", wr.counting(size), ["count()", "sum(x)"])
    root = Node("root", None, names, 1, MemoryStore(), QuerySet.of([query], "t", COLUMNS, counting=scheme))
    nodes = {name: welcomed(Node(name, "root"), root) for name in names}
    way: list[tuple[float, int, str, str, Any]] = []
    dice, now, sent = random.Random(seed), 0, 0

    def post(sender: str, out: Out) -> None:  # each message takes a while of its own, and none overtakes another
        nonlocal sent
        for to, message in out:
            sent += 1
            before = max((at for at, _, *ends, _ in way if ends == [sender, to]), default=now)
            heapq.heappush(way, (before + dice.random(), sent, sender, to, message))

    for number, (name, node) in enumerate(nodes.items()):
        rows = [{"t": time, "k": "k", "x": 1} for time in range(number, 3 * each, 3)]
        for at in range(0, each, 100):
            events = pl.DataFrame(rows[at : at + 100], schema=COLUMNS)
            post(name, node.read(events, {}, 0, at + 100 == each))
    batches = windows = 0
    while not root.done:
        if not way:
            now += AGAIN
            post("root", root.tick(now))
            continue
        at, _, sender, to, message = heapq.heappop(way)
        now = max(now, int(at))
        if to == SINK:
            windows += message.tables["results"].height
            post("root", root.receive(SINK, Ack(1, message.number), now))
            continue
        batches += isinstance(message, Batch) and to == "root"
        post(to, (root if to == "root" else nodes[to]).receive(sender, message, now))
    assert windows == 3 * each // size
    reads = len(names) * each // 100
    assert batches - reads < windows / 3
