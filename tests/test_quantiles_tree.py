"""Exact quantiles on a tree: multisets stay at the nodes, and the root says what one process says that has all events.

Blocks of multisets are forced to be small here, so that a few events are enough for the root to have to ask.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

import windrow as wr
from scenarios import changes_of, wrong_with
from windrow.core.expressions.errors import QueryError
from windrow.nodes.protocol.journal import MemoryStore
from windrow.nodes.protocol.messages import Ack, Batch, Out, Request, from_bytes, to_bytes
from windrow.nodes.protocol.node import SINK, Node
from windrow.nodes.quantiles import local
from windrow.nodes.queries import QuerySet
from windrow.nodes.requests import AGAIN
from windrow.testing import differences, recompute
from windrow.testing.tree_simulation import Faults, Simulation, Tree

COLUMNS = {"t": pl.Int64(), "k": pl.String(), "x": pl.Float64(), "y": pl.Int64()}
LATENESS = 3
MANY = {f"q{n}": wr.quantile("x", n / 20) for n in range(21)}
QUERIES = [
    wr.Query("median", wr.tumbling(10), ["median(x)", "count()"]),
    wr.Query("sliding", wr.sliding(20, 5), ["quantile(x, 0.25)", "quantile(x, 0.9)"]),
    wr.Query("keyed", wr.tumbling(15), ["median(x)", "median(y)"], by="k"),
    wr.Query("filtered", wr.tumbling(20), ["quantile(x, 0.99)", "sum(y)"], where="y > 20"),
    wr.Query("cumulating", wr.cumulating(20, 5), ["median(x) - mean(x)"], having="median(y) > 20"),
    wr.Query("session", wr.session(3), ["median(x)"], by="k"),
    wr.Query("sessions", wr.session(2), ["quantile(y, 0.3)", "max(x)"], where="y < 50"),
    wr.Query("many", wr.tumbling(1000), MANY),
    wr.Query("whole", wr.tumbling(10), ["mode(y)", "median(y)"]),
]


def value_of(dice: random.Random) -> float | None:
    """Ties, NaN and nulls among others."""
    return dice.choice([100 * dice.random(), float(dice.randint(0, 5)), math.nan if dice.random() < 0.2 else 1.0, None])


def events_of(dice: random.Random, most: int) -> pl.DataFrame:
    """Events of one node, many at a time, out of order by as much as the lateness allows."""
    now, rows = dice.choice([0, 0, -30]), []
    smooth = dice.random() < 0.5
    for _ in range(dice.choice([0, 1, most, most])):
        now += dice.choice([0, 0, 0, 1, 1, 9 if dice.random() < 0.2 else 2])
        x = dice.gauss(0, 1) if smooth else value_of(dice)
        rows.append({"t": now - dice.randint(0, LATENESS), "k": dice.choice("ab"), "x": x, "y": dice.randint(0, 60)})
    return pl.DataFrame(rows, schema=COLUMNS)


class Gulps(Simulation):
    """Nodes read many events at a time, so that slices that are sent at once have multisets of many values, too."""

    def _read(self, name: str, waits: bool) -> None:
        machine, events = self.machines[name], self.events[name]
        assert machine.mark is not None
        begin = machine.mark.get("at", 0)
        end = min(events.height, begin + self.dice.randint(1, 30))
        last = end == events.height and not waits
        self._post(name, machine.read(events[begin:end], {"at": end}, self.now, last))


def simulated(
    seed: int,
    queries: list[wr.Query] | None = None,
    faults: Faults | None = None,
    changes: bool = False,
    **settings: Any,
) -> Simulation:
    dice = random.Random(seed)
    chosen = queries or dice.sample(QUERIES, 3)
    tree = Tree.random(dice.randint(3, 7), dice)
    events = {name: events_of(dice, 70) for name in tree.leaves}
    asked = QuerySet.of(chosen[:2], "t", COLUMNS, lateness=LATENESS)
    settings = {
        "log": dice.choice([1, 3, 16]),
        "eager": dice.random() < 0.1,
        "block_size": dice.choice([1, 2, 3, 5]),
        **settings,
    }
    coming = changes_of(dice, chosen, 2) if changes else []
    run = Gulps(tree, asked, events, faults or Faults(), dice, changes=coming, settings=settings)
    run.run()
    return run


def counted(run: Simulation, what: str) -> int:
    return sum(one[what] for one in run.machines["root"].status().get("quantiles", {}).values())


@pytest.mark.parametrize("part", range(2))
def test_trees_give_what_one_process_gives_whatever_breaks(part: int, seed: int) -> None:
    asked, begin = 0, (seed * 2 + part) * 6  # make soak goes on
    for number in range(begin, begin + 6):
        run = simulated(number)
        assert (number, wrong_with(run)) == (number, [])
        asked += counted(run, "requested")
    assert asked > 50 or seed  # with other seeds few values may be large enough


@pytest.mark.parametrize("query", QUERIES[:8], ids=lambda query: query.name)
def test_every_kind_of_window_is_asked_for_values(query: wr.Query) -> None:
    run = simulated(5, [query], Faults.none(), eager=False)
    assert wrong_with(run) == []
    assert 0 < counted(run, "requested") <= counted(run, "blocks")
    assert counted(run, "awaited") == 0


@pytest.mark.parametrize("number", range(3))
def test_queries_come_and_go(number: int, seed: int) -> None:
    assert wrong_with(simulated(seed * 3 + number, changes=True)) == []


@pytest.mark.parametrize("number", [14, 413])
def test_seeds_that_have_failed(number: int) -> None:
    """A query goes while one of its windows, which the root's watermark has passed, waits for values of a node.

    What another query of its group waits for counts as requested once.
    """
    run = simulated(number, changes=True)
    assert wrong_with(run) == []
    assert 0 < counted(run, "requested") <= counted(run, "blocks")


@pytest.mark.parametrize(
    ("faults", "settings"),
    [(replace(Faults(), leave=0.03), {}), (Faults(), {"timeout": 4 * AGAIN}), (Faults(), {"idle": 2 * AGAIN})],
    ids=["leave", "silent", "idle"],
)
def test_nodes_that_go_hold_nobody_up_and_what_is_lost_is_counted(faults: Faults, settings: dict[str, Any]) -> None:
    exact = 0
    for number in range(6):
        run = simulated(number, faults=faults, **settings)
        if not any(child["late"] for child in run.machines["root"].status()["children"].values()):
            exact += 1
            assert (number, wrong_with(run)) == (number, [])
    assert exact


# --- planted errors -------------------------------------------------------------------------------------------------


def fails(number: int) -> bool:
    try:
        return bool(wrong_with(simulated(number, QUERIES[:3])))
    except Exception:  # it may also break, or never come to its end
        return True


@pytest.mark.parametrize("planted", ["bounds", "answers", "rebuilt"])
def test_a_planted_error_is_found(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, answer, again = local.blocks_of, local.Multisets.answer, local.SentSlices.take_again

    def off_by_one(values: pl.Series, *rest: Any) -> list[pl.Series]:
        """A block ends with the value before its last."""
        first, last, count = made(values, *rest)
        return [first, made(values.shift(1), *rest)[1].fill_null(last), count]

    def one_later(self: local.Multisets, *rest: Any) -> None:
        """The values of a block are those from the place after its first on."""
        answer(self, *rest)
        for several in self._answers.values():
            identity, lo, part = several[-1]
            several[-1] = identity, lo, part._replace(values=part.values.shift(-1, fill_value=part.values[-1]))

    def forgets(self: local.SentSlices, events: pl.DataFrame) -> None:
        """Of what an earlier life had sent, the first event is not read again."""
        again(self, events[1:])

    if planted == "bounds":
        monkeypatch.setattr(local, "blocks_of", off_by_one)
    elif planted == "answers":
        monkeypatch.setattr(local.Multisets, "answer", one_later)
    else:
        monkeypatch.setattr(local.SentSlices, "take_again", forgets)
    assert any(fails(number) for number in range(40))


# --- one thing at a time --------------------------------------------------------------------------------------------


class Flat:
    """A root and local nodes in one process; every message is written and read again."""

    def __init__(self, queries: list[wr.Query], nodes: int, quantiles: str = "refine", **settings: Any) -> None:
        self.names = tuple(f"n{number}" for number in range(nodes))
        asked = QuerySet.of(queries, "t", COLUMNS, quantiles=quantiles)
        self.settings = {"block_size": 3, **settings}
        self.root = Node("root", None, self.names, 1, MemoryStore(), asked, timeout=settings.pop("timeout", None))
        self.machines = {"root": self.root}
        self.now, self.up, self.rows, self.requests = 1, 0, list[pl.DataFrame](), list[Request]()
        self.deaf: set[str] = set()
        for name in self.names:
            self.begin(name, 1)

    def begin(self, name: str, epoch: int) -> None:
        more = {"block_size": self.settings["block_size"], "eager": name in self.settings.get("eager", ())}
        self.machines[name] = Node(name, "root", life=epoch, **more)
        self.post(name, self.machines[name].start(self.now))

    def post(self, sender: str, out: Out) -> None:
        waiting = [(sender, *one) for one in out]
        while waiting:
            whose, to, message = waiting.pop(0)
            if isinstance(message, Request):
                self.requests.append(message)
            if to == SINK:
                assert isinstance(message, Batch)
                self.rows.append(message.tables["results"])
                more = self.root.receive(SINK, Ack(message.life, message.number), self.now)
                waiting += [("root", *one) for one in more]
            elif to not in self.deaf and whose not in self.deaf:
                data = to_bytes(message)
                self.up += len(data) if to == "root" else 0
                waiting += [(to, *one) for one in self.machines[to].receive(whose, from_bytes(data), self.now)]

    def read(self, name: str, events: pl.DataFrame, at: int, last: bool = True) -> None:
        self.post(name, self.machines[name].read(events, {"at": at}, self.now, last=last))

    def tick(self) -> None:
        self.now += AGAIN
        for name, machine in self.machines.items():
            if name not in self.deaf:
                self.post(name, machine.tick(self.now))

    @property
    def said(self) -> list[dict[str, Any]]:
        return pl.concat(self.rows, how="diagonal_relaxed").to_dicts() if self.rows else []


def answered(values: list[list[Any]], queries: list[wr.Query], **more: Any) -> Flat:
    """Every node reads its values, all at one time, and the root is right."""
    tree, rows = Flat(queries, len(values), **more), []
    for name, several in zip(tree.names, values, strict=True):
        mine = [{"t": 5, "k": "a", "x": x, "y": place} for place, x in enumerate(several)]
        tree.read(name, pl.DataFrame(mine, schema=COLUMNS), len(mine))
        rows += [{**row, "node": name} for row in mine]
    for _ in range(5):
        tree.tick()
    assert differences(tree.said, recompute(rows, queries, time="t"), queries) == []
    assert all(machine.done for machine in tree.machines.values())
    return tree


@pytest.mark.parametrize(
    ("values", "asks"),
    [
        ([[float(n) for n in range(20)], [n + 0.5 for n in range(20)]], True),
        ([[1.0] * 20, [1.0] * 10], False),
        ([[float(n % 2) for n in range(20)], [0.0, 1.0, 2.0, 3.0, 4.0]], None),
        ([[math.nan] * 3 + [float(n) for n in range(9)], [math.nan, -math.inf, math.inf, 2.0]], None),
        ([[None] * 5, [None, 3.0]], False),
        ([[float(n) for n in range(10)], []], True),
        ([[7.0], []], False),
        ([[], []], False),
    ],
    ids=["apart", "one value", "ties", "NaN", "nulls", "an empty node", "one event", "nothing"],
)
def test_values_of_every_kind(values: list[list[Any]], asks: bool | None) -> None:
    queries = [wr.Query("m", wr.tumbling(10), ["median(x)", "quantile(x, 0.9)", "count(x)"]), *QUERIES[7:8]]
    tree = answered(values, queries)
    if asks is not None:
        assert any("wanted" in name for one in tree.requests for name in one.tables) == asks


def test_only_the_blocks_around_the_ranks_are_asked_for() -> None:
    apart = [[float(n) for n in range(300)], [1000.0 + n for n in range(300)], [500.0 + n for n in range(300)]]
    tree = answered(apart, [QUERIES[0]])
    assert tree.root.status()["quantiles"]["by () on t (refined)"] == {
        "blocks": 300,
        "requested": 2,
        "left_out": 0,
        "awaited": 0,
    }
    (request,) = [one for one in tree.requests if any("wanted" in name for name in one.tables)]
    assert request.node == "n2"


def test_fewer_bytes_travel_than_whole_multisets_have_and_small_ones_travel_whole() -> None:
    dice = random.Random(1)
    values = [[dice.random() for _ in range(5_000)] for _ in range(3)]
    refined, whole = (answered(values, [QUERIES[0]], quantiles=how, block_size=None) for how in ("refine", "whole"))
    assert refined.up < 0.2 * whole.up
    small = answered([several[:60] for several in values], [QUERIES[0]], block_size=None)
    assert small.root.status()["quantiles"]["by () on t (refined)"]["blocks"] == 0
    crowded = [[dice.random() for _ in range(100)] for _ in range(3)]  # as many quantiles as values
    assert (
        answered(crowded, [QUERIES[7]], block_size=None).root.status()["quantiles"]["by () on t (refined)"]["blocks"]
        == 0
    )


def test_nodes_that_cannot_read_again_send_everything() -> None:
    values = [[float(n) for n in range(30)], [n + 0.5 for n in range(30)]]
    tree = answered(values, [QUERIES[0]], eager=("n0",))
    assert {one.node for one in tree.requests} == {"n1"}


def test_a_node_that_was_started_again_makes_its_multisets_again() -> None:
    tree = Flat([QUERIES[0]], 2)
    one, other = ([{"t": 5, "k": "a", "x": n + more, "y": 0} for n in range(20)] for more in (0.0, 0.5))
    after = [{"t": 25, "k": "a", "x": 0.0, "y": 0}]
    frames = [pl.DataFrame([*rows, *after], schema=COLUMNS) for rows in (one, other)]
    tree.read("n0", frames[0], 21, last=False)  # its slice is closed, and nothing can be asked yet
    tree.begin("n0", 2)
    assert tree.machines["n0"].mark == {}  # it reads all of it again
    tree.read("n0", frames[0], 21)
    tree.read("n1", frames[1], 21)
    rows = [{**row, "node": "n"} for row in (*one, *other, *after, *after)]
    for _ in range(3):
        tree.tick()
    assert differences(tree.said, recompute(rows, [QUERIES[0]], time="t"), [QUERIES[0]]) == []


def test_a_node_keeps_a_multiset_until_no_window_needs_it() -> None:
    tree = Flat([wr.Query("s", wr.sliding(20, 10), ["median(x)"])], 1)
    reader = tree.machines["n0"].as_local.reader
    assert reader is not None
    for second in range(6):
        rows = [{"t": 10 * second, "k": "a", "x": n + second / 7, "y": 0} for n in range(20)]
        tree.read("n0", pl.DataFrame(rows, schema=COLUMNS), 20 * second + 20, last=False)
        assert reader.quantiles._groups["by () on t (refined)"].size <= 40
    assert reader.position["count"] == 80  # the last slice is open, the one before may be asked for


def test_what_a_silent_node_cannot_tell_is_left_out_and_counted() -> None:
    tree = Flat([QUERIES[0]], 2, timeout=3 * AGAIN)
    frames = [
        pl.DataFrame([{"t": 5, "k": "a", "x": n + more, "y": 0} for n in range(20)], schema=COLUMNS)
        for more in (0.0, 0.5)
    ]
    tree.read("n0", frames[0], 20)
    tree.deaf.add("n0")
    tree.read("n1", frames[1], 20)
    assert tree.said == []
    for _ in range(6):
        tree.tick()
    (row,) = tree.said
    assert row["median(x)"] == 10.0  # that of the other node alone
    assert tree.root.status()["children"]["n0"]["late"] == 20


def test_other_queries_do_not_wait() -> None:
    tree = Flat([QUERIES[0], wr.Query("count", wr.tumbling(10), ["count()"])], 2)
    rows = [{"t": 5, "k": "a", "x": float(n), "y": 0} for n in range(20)]
    tree.read("n0", pl.DataFrame(rows, schema=COLUMNS), 20)
    tree.deaf.add("n0")
    tree.read("n1", pl.DataFrame(rows, schema=COLUMNS), 20)
    assert [row["query"] for row in tree.said] == ["count"]
    tree.deaf.clear()
    tree.tick()
    assert sorted(row["query"] for row in tree.said) == ["count", "median"]


# --- what is refined ------------------------------------------------------------------------------------------------


def test_what_is_refined_and_what_is_not() -> None:
    more = [wr.Query("counting", wr.counting(9), ["median(x)"]), wr.Query("frames", wr.frames("x > 1"), ["median(x)"])]
    asked = QuerySet.of([*QUERIES, *more], "t", COLUMNS)
    assert asked.refined == tuple(query.name for query in QUERIES[:8])
    assert QuerySet.of(QUERIES, "t", COLUMNS, quantiles="whole").refined == ()
    assert asked.added([wr.Query("later", wr.tumbling(5), ["median(x)"])], 0).refined == asked.refined
    assert QuerySet.from_dict(asked.to_dict(), asked.table) == asked
    fed = Node("root", None, ("n",), 1, MemoryStore(), asked, feeds="slices")
    assert fed.query_set is not None
    assert fed.query_set.refined == ()
    with pytest.raises(QueryError, match="there are 'refine' and 'whole', not 'half'"):
        QuerySet.of(QUERIES, "t", COLUMNS, quantiles="half")


def test_what_travels_is_explained() -> None:
    asked = QuerySet.of([QUERIES[0], QUERIES[7]], "t", COLUMNS)
    one, many = asked.explain().splitlines()
    assert "for median(x) sub-slices of the sorted values, and the values of those that the root asks for" in one
    assert "and 18 more sub-slices" in many


def test_blocks_that_are_not_what_was_asked_for_are_refused() -> None:
    asked = QuerySet.of([QUERIES[0]], "t", COLUMNS)
    reason = asked.wrong_with({"by () on t (refined)|blocks bag(x)": pl.DataFrame({"node": ["n"]})})
    assert reason is not None
    assert "other columns" in reason
