"""Scenarios: what a seed makes of a tree, and what is wrong with what its root says.

python tests/scenarios.py --seeds 5000 --first 100000      # try more; a seed that fails is printed with what it did
python tests/scenarios.py --first 4711 --seeds 1 --trace   # again
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

import windrow as wr
from windrow.nodes.asked import Asked
from windrow.nodes.machine import Machine
from windrow.nodes.simulation import Faults, Simulation, Tree
from windrow.nodes.uplink import AGAIN
from windrow.testing import differences, recompute
from windrow.windows import INT64_MIN, FixedWindow

COLUMNS = {"t": pl.Int64(), "k": pl.String(), "x": pl.Int64()}
LATENESS = 3
QUERIES = [
    wr.Query("tumbling", wr.tumbling(10), ["count()", "sum(x)", "median(x)"], by="k"),
    wr.Query("sliding", wr.sliding(20, 5), ["mean(x)", "last(x)"]),
    wr.Query("session", wr.session(6), ["count()", "max(x)"], by="k", having="count() > 1"),
    wr.Query("sessions", wr.session(9), ["sum(x)"]),
    wr.Query("counting", wr.counting(5), ["sum(x)"]),
    wr.Query("frames", wr.frames(when="x > 3"), ["collect(x)"], by="k"),
    wr.Query("cumulating", wr.cumulating(20, 5), ["sum(x)"], where="x <> 2"),
    wr.Query("latest", wr.latest(3, every=7), ["sum(x)"], by="k"),
]
COUNTED = wr.Query("counted", wr.tumbling(10), ["count()"])


@dataclass(frozen=True)
class Scenario:
    """A tree with its queries and what happens to it; `exact` if no event can come too late."""

    queries: list[wr.Query]
    changes: list[wr.Query | str] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)
    settings: dict[str, Any] = field(default_factory=dict)
    own_lateness: bool = False
    most: int = 20  # events of a node
    exact: bool = True


def scenario_of(dice: random.Random) -> Scenario:
    kind = dice.random()
    settings = {"log": dice.choice([1, 3, 16]), "eager": dice.random() < 0.2}
    most = dice.choice([3, 6, 12])
    if kind < 0.01:
        return Scenario(QUERIES, settings=settings)
    queries = dice.sample(QUERIES, 3)
    if kind < 0.2:
        changes: list[wr.Query | str] = [queries[1]]
        changes.append(queries[2] if dice.random() < 0.5 else queries[0].name)
        return Scenario(queries[:1], changes, settings=settings, most=most)
    if kind < 0.4:
        rest = dice.choice([{"timeout": dice.randint(2, 20) * AGAIN}, {"idle": dice.randint(1, 5) * AGAIN}, {}])
        faults = replace(Faults(), leave=0.03 if dice.random() < 0.5 or not rest else 0.0)
        return Scenario([COUNTED], [], faults, {**settings, **rest}, most=most, exact=False)
    return Scenario(queries[:1], settings=settings, own_lateness=dice.random() < 0.2, most=most)


def events_of(dice: random.Random, most: int, lateness: int) -> pl.DataFrame:
    """Events of one node, out of order by as much as the lateness allows."""
    now, rows = 0, []
    for _ in range(dice.randint(0, most)):
        now += dice.randint(0, 4)
        rows.append({"t": now - dice.randint(0, lateness), "k": dice.choice("ab"), "x": dice.randint(0, 6)})
    return pl.DataFrame(rows, schema=COLUMNS)


def simulated(
    seed: int,
    size: int | None = None,
    machine: type[Machine] = Machine,
    scenario: Scenario | None = None,
) -> Simulation:
    dice = random.Random(seed)
    chosen = scenario or scenario_of(dice)
    tree = Tree.random(size or dice.randint(3, 10), dice)
    lateness = {name: dice.randint(0, 8) for name in tree.leaves} if chosen.own_lateness else {}
    events = {name: events_of(dice, chosen.most, lateness.get(name, LATENESS)) for name in tree.leaves}
    asked = Asked.of(chosen.queries, "t", COLUMNS, lateness=LATENESS)
    run = Simulation(
        tree, asked, events, chosen.faults, dice, machine, chosen.changes, chosen.settings, lateness, exact=chosen.exact
    )
    run.run()
    return run


# --- what is wrong --------------------------------------------------------------------------------------------------


def wrong_with(run: Simulation) -> list[str]:
    """What the root says otherwise than one process, and what is not accounted for."""
    root = run.machines["root"]
    rows = [{**row, "node": name} for name, events in sorted(run.events.items()) for row in events.to_dicts()]
    rows.sort(key=lambda row: (row["t"], row["node"]))
    found = _wrong_account(run)
    results = run.results.to_dicts()
    if not run.exact:
        late = sum(child["late"] for child in root.status()["children"].values())
        told = {row["window_start"]: row["count()"] for row in recompute(rows, [COUNTED], time="t")}
        for row in results:
            if row["count()"] > told.get(row["window_start"], 0):
                found.append(f"{row} has more events than there were")
        counted = sum(row["count()"] for row in results)
        if counted + late != len(rows):
            found.append(f"of {len(rows)} events {counted} are in results and {late} are late")
        return found
    assert root.asked is not None
    since = dict(root.asked.since)
    if root.asked.pending:
        found.append(f"{root.asked.pending} have not begun")
    for query in (*run.asked.queries, *(one for one in run.changed if isinstance(one, wr.Query))):
        begin = since.get(query.name, INT64_MIN)
        seen = [row for row in rows if row["t"] >= begin]
        told = recompute(seen, [query], time="t", order_by=("node",))
        said = [row for row in results if row["query"] == query.name]
        if query.name in run.removed:
            end = run.removed[query.name]
            told = [row for row in told if any(_same(row, other) for other in said) or row["window_end"] <= end]
            told = [row for row in told if not (query.name in ("counting", "frames") and not _in(row, said))]
        elif isinstance(query.window, FixedWindow):
            told = [row for row in told if row["window_start"] >= begin]
        found += differences(said, told, [query])
    return found


def _same(row: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(row.get(name) == other.get(name) for name in ("query", "k", "window_start", "window_end"))


def _in(row: dict[str, Any], several: list[dict[str, Any]]) -> bool:
    return any(_same(row, other) for other in several)


def _wrong_account(run: Simulation) -> list[str]:
    """Of each node, events produced = held by the root; nothing is on its way any more."""
    found, held = [], dict[str, int]()
    for child in run.machines["root"].status()["children"].values():
        held |= child["events"]
    for name, events in run.events.items():
        if held.get(name, 0) != events.height:
            found.append(f"{name} has produced {events.height} events, and the root holds {held.get(name, 0)}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--size", type=int, help="machines, instead of 3 to 10")
    parser.add_argument("--trace", action="store_true")
    given = parser.parse_args()
    failed, begin = 0, time.monotonic()
    for number in range(given.first, given.first + given.seeds):
        try:
            run = simulated(number, given.size)
            wrong = wrong_with(run)
        except Exception as error:
            wrong = [f"{type(error).__name__}: {error}"]
        if given.trace:
            print("\n".join(run.trace))
        if wrong:
            failed += 1
            print(f"seed {number}:", *wrong, sep="\n    ")
    print(f"{given.seeds} seeds, {failed} failed, {time.monotonic() - begin:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
