"""Windows that local nodes find themselves: the root says what one process says that has all events, whatever breaks."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest

import windrow as wr
from windrow.nodes.asked import Asked
from windrow.nodes.machine import Machine
from windrow.nodes.simulation import Faults, Simulation, Tree
from windrow.ordered import scope_of
from windrow.testing import differences, own, recompute

assert own  # defines chained
COLUMNS = {"t": pl.Int64(), "k": pl.String(), "x": pl.Int64(), "home": pl.String()}
LATENESS = 3
QUERIES = [
    wr.Query("tumbling", wr.tumbling(10), ["count()", "sum(x)"], by="k"),
    wr.Query("global", wr.counting(4), ["sum(x)"]),
    wr.Query("count", wr.counting(3, 2, "node"), ["sum(x)", "median(x)"]),
    wr.Query("mine", wr.frames("x > 2"), ["collect(x)"], by=["k", "node"], having="count() > 1"),
    wr.Query("home", wr.latest(3, every=10), ["last(x)"], by="home"),
    wr.Query("chain", wr.tumbling(10), ["chained(x)"], by="home", where="x <> 1"),
    wr.Query("bounds", wr.punctuated(end="x > 4", scope="bounds"), ["count()", "collect(x)"], by="k"),
    wr.Query("started", wr.punctuated(start="x > 3", scope="bounds"), ["count()", "first(x)"]),
    wr.Query("position", wr.punctuated(end="x > 4", scope="position"), ["count()", "last(x)"]),
    wr.Query("counted", wr.counting(3, 2, "position"), ["sum(x)", "arg_max(t, of=x)"], by="k"),
    wr.Query("overlap", wr.frames("x > 2", "overlap"), ["count()", "mean(x)"], where="x <> 4"),
    wr.Query("busy", wr.counting(2, scope="overlap"), ["count()", "max(x)"], by="k", having="count() > 2"),
]


def events_of(dice: random.Random, name: str, most: int = 24) -> pl.DataFrame:
    """Events of one node, out of order by as much as the lateness allows."""
    time, rows = dice.randint(0, 30), []
    for _ in range(dice.randint(0, most)):
        time += dice.choice((0, 0, 1, 2, 9))
        row = {"t": time - dice.randint(0, LATENESS), "k": dice.choice("ab"), "x": dice.randint(0, 6)}
        rows.append({**row, "home": f"{name} {dice.randint(0, 1)}"})
    return pl.DataFrame(rows, schema=COLUMNS)


def simulated(seed: int, faults: Faults | None = None, machine: type[Machine] = Machine, **options: Any) -> Simulation:
    dice = random.Random(seed)
    tree = Tree.random(dice.randint(3, 9), dice)
    events = {name: events_of(dice, name) for name in tree.leaves}
    queries = options.pop("queries", QUERIES)
    asked = Asked.of(
        queries, "t", COLUMNS, lateness=LATENESS, push_down=options.pop("push_down", True), local_keys=("home",)
    )
    run = Simulation(tree, asked, events, faults or Faults(), dice, machine, **options)
    run.run()
    return run


def wrong_with(run: Simulation) -> list[str]:
    """What the root says otherwise than one process, and what is not accounted for."""
    rows = [{**row, "node": name} for name, events in sorted(run.events.items()) for row in events.to_dicts()]
    rows.sort(key=lambda row: (row["t"], row["node"]))
    queries = run.asked.queries
    told = recompute(rows, queries, time="t", order_by=("node",))
    found = differences(run.results.to_dicts(), told, queries)
    children = run.machines["root"].status()["children"].values()
    accepted = sum(sum(child["events"].values()) for child in children)
    if accepted != len(rows):
        found.append(f"{len(rows)} events were produced, and {accepted} accepted")
    return found


@pytest.mark.parametrize("part", range(3))
def test_any_tree_gives_what_one_process_gives_whatever_breaks(part: int, seed: int) -> None:
    for number in range(seed * 1000 + part * 8, seed * 1000 + (part + 1) * 8):
        assert (number, wrong_with(simulated(number))) == (number, [])


def test_without_faults() -> None:
    assert wrong_with(simulated(3, faults=Faults.none())) == []


def test_nodes_that_send_events_give_the_same() -> None:
    """At a position it is otherwise: there the root has not seen a node before its first event is final."""
    queries = [query for query in QUERIES if scope_of(query.window) != "position"]
    for number in range(6):
        assert (number, wrong_with(simulated(number, push_down=False, queries=queries))) == (number, [])
