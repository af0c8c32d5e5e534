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
from windrow.core.windows.fixed import FixedWindow, Session
from windrow.core.windows.ordered import OrderedWindow
from windrow.nodes.protocol.node import Node
from windrow.nodes.queries import QuerySet
from windrow.nodes.requests import AGAIN
from windrow.testing import differences, recompute
from windrow.testing.tree_simulation import Faults, Life, Simulation, Tree

COLUMNS = {"t": pl.Int64(), "k": pl.String(), "x": pl.Int64()}
LATENESS = 3
QUERIES = [
    wr.Query("tumbling", wr.tumbling(10), ["count()", "sum(x)", "median(x)"], by={"key": "k"}),
    wr.Query("sliding", wr.sliding(20, 5), ["mean(x)", "last(x)"]),
    wr.Query("session", wr.session(6), ["count()", "max(x)"], by="k", having="count() > 1"),
    wr.Query("sessions", wr.session(9), ["sum(x)"]),
    wr.Query("counting", wr.counting(5), ["sum(x)"], names={"nth": "position", "begin": "window_start"}),
    wr.Query("frames", wr.frames(when="x > 3"), ["collect(x)"], by="k"),
    wr.Query("cumulating", wr.cumulating(20, 5), ["sum(x)"], where="x <> 2"),
    wr.Query("latest", wr.latest(3, every=7), ["sum(x)"], by="k"),
]
COUNTED = wr.Query("counted", wr.tumbling(10), ["count()"])
FINER = [wr.Query("finer", wr.tumbling(4), ["count()"]), wr.Query("keyed", wr.sliding(6, 3), ["count()"], by="k")]
AT_NODES = [
    wr.Query("mine", wr.frames("x > 2"), ["collect(x)"], by=["k", "node"], names={"begin": "window_start"}),
    wr.Query("count", wr.counting(3, 2, "node"), ["sum(x)"]),
    wr.Query("bounds", wr.punctuated(end="x > 4", scope="bounds"), ["count()"], names={"until": "window_end"}),
    wr.Query("overlap", wr.frames("x > 2", "overlap"), ["count()", "max(x)"]),
    wr.Query("position", wr.counting(3, 2, "position"), ["sum(x)"], by={"key": "k"}),
]


@dataclass(frozen=True)
class Scenario:
    """A tree with its queries and what happens to it; `exact` if no event can come too late."""

    queries: list[wr.Query]
    changes: list[wr.Query | str] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)
    settings: dict[str, Any] = field(default_factory=dict)
    own_lateness: bool = False
    most: int = 20  # events of a node
    joins: bool = False  # whether some nodes come later
    push_down: bool = False
    exact: bool = True


def scenario_of(dice: random.Random) -> Scenario:
    kind = dice.random()
    settings = {"log": dice.choice([1, 3, 16]), "eager": dice.random() < 0.2}
    most, faults = dice.choice([3, 6, 10]), Faults(move=0.03 if dice.random() < 0.2 else 0.0)
    if kind < 0.003:
        return Scenario(QUERIES, faults=faults, settings=settings)
    if kind < 0.14:
        queries = dice.sample(QUERIES, 3)
        return Scenario(queries[:1], changes_of(dice, queries, 1), faults, settings, most=most)
    if kind < 0.34:
        rest = dice.choice([{"timeout": dice.randint(2, 20) * AGAIN}, {"idle": dice.randint(1, 5) * AGAIN}, {}])
        joins = dice.random() < 0.3
        faults = replace(faults, leave=0.03 if dice.random() < 0.5 or not (rest or joins) else 0.0)
        changes = changes_of(dice, [COUNTED, *FINER], 1) if dice.random() < 0.5 else []
        return Scenario([COUNTED], changes, faults, {**settings, **rest}, most=most, joins=joins, exact=False)
    if kind < 0.345:
        queries = dice.sample([*AT_NODES, QUERIES[0]], 3)
        return Scenario(queries[:2], changes_of(dice, queries, 2), faults, settings, most=most, push_down=True)
    own_lateness = dice.random() < 0.2
    return Scenario(dice.sample(QUERIES, 1), faults=faults, settings=settings, own_lateness=own_lateness, most=most)


def changes_of(dice: random.Random, queries: list[wr.Query], first: int) -> list[wr.Query | str]:
    """Queries come and go, if the first ones are there; one that has gone may come again, and be another one."""
    present, changes = queries[:first], list[wr.Query | str]()
    for _ in range(dice.choice([1, 2, 2, 4])):
        absent = [query for query in queries if query.name not in [one.name for one in present]]
        if present and (not absent or dice.random() < 0.4):
            changes.append(present.pop(dice.randrange(len(present))).name)
            continue
        came = dice.choice(absent)
        if came.name in changes and dice.random() < 0.3:
            came = wr.Query(came.name, wr.tumbling(dice.choice([4, 5])), ["count()"], by=came.by)
        present.append(came)
        changes.append(came)
    return changes


def events_of(dice: random.Random, most: int, lateness: int) -> pl.DataFrame:
    """Events of one node, out of order by as much as the lateness allows."""
    now, rows = dice.choice([0, 0, -30]), []
    for _ in range(dice.randint(0, most)):
        now += dice.randint(0, 4)
        now += -now % 5 if dice.random() < 0.1 else 0  # at an edge
        rows.append({"t": now - dice.randint(0, lateness), "k": dice.choice("ab"), "x": dice.randint(0, 6)})
    return pl.DataFrame(rows, schema=COLUMNS)


def simulated(
    seed: int,
    size: int | None = None,
    machine: type[Node] = Node,
    scenario: Scenario | None = None,
    steps: int = 100_000,
) -> Simulation:
    dice = random.Random(seed)
    chosen = scenario or scenario_of(dice)
    tree = Tree.random(size or dice.randint(3, 10), dice)
    lateness = {name: dice.randint(0, 8) for name in tree.leaves} if chosen.own_lateness else {}
    events = {name: events_of(dice, chosen.most, lateness.get(name, LATENESS)) for name in tree.leaves}
    below = [name for name, parent in tree.parents.items() if parent is not None]
    late = dice.sample(below, dice.randint(1, len(below))) if chosen.joins else []
    run = Simulation(
        tree,
        QuerySet.of(chosen.queries, "t", COLUMNS, lateness=LATENESS, push_down=chosen.push_down),
        events,
        chosen.faults,
        dice,
        machine,
        chosen.changes,
        chosen.settings,
        lateness,
        {name: dice.randrange(30 * AGAIN) for name in late},
        chosen.exact,
    )
    run.run(steps)
    return run


# --- what is wrong --------------------------------------------------------------------------------------------------


def wrong_with(run: Simulation) -> list[str]:
    """What the root says otherwise than one process, and what is not accounted for."""
    root = run.machines["root"]
    rows = [{**row, "node": name} for name, events in sorted(run.events.items()) for row in events.to_dicts()]
    rows.sort(key=lambda row: (row["t"], row["node"]))
    found = _wrong_account(run)
    late = sum(child["late"] for child in root.status()["children"].values())
    for life in run.lives:
        said = run.results_between(life.after, life.until).filter(pl.col("query") == life.query.name).to_dicts()
        if life.since is None:
            found += [f"{row} is said before the query begins" for row in said]
            continue
        begin = life.since
        told = recompute([row for row in rows if row["t"] >= begin], [life.query], time="t", order_by=("node",))
        if isinstance(life.query.window, FixedWindow):
            told = [row for row in told if row["window_start"] >= begin]
        if life.until is not None:
            told = [row for row in told if _in(row, said) or _is_due(life, row)]
        if run.exact:
            found += differences(said, told, [life.query])
        else:
            found += _miscounted(life, said, told, rows, late, bool(run.changes))
    return found


def _is_due(life: Life, row: dict[str, Any]) -> bool:
    """Whether a window was to be said before its query went."""
    if isinstance(life.query.window, OrderedWindow) and life.query.name != "latest":
        return False  # it depends on the events that come after it
    closed = row["window_end"] < life.watermark
    return closed or (row["window_end"] == life.watermark and not isinstance(life.query.window, Session))


def _miscounted(
    life: Life, said: list[Any], told: list[Any], rows: list[Any], late: int, has_changed: bool
) -> list[str]:
    """What cannot be although some events come too late: they are counted, and no window has events of another."""
    found = []
    best = recompute(rows, [life.query], time="t")  # it may have begun more than once
    for row in said:
        if row["count()"] > sum(other["count()"] for other in best if _same(row, other)):
            found.append(f"{row} has more events than there were")
    fewer = sum(row["count()"] for row in told) - sum(row["count()"] for row in said if _in(row, told))
    most = late * (2 if life.query.name == "keyed" else 1)  # an event is in two of its windows
    is_lost = fewer > most and life.until is None  # else what comes too late is not asked for any more
    if fewer < 0 or is_lost or (fewer < late and not has_changed):
        found.append(f"{life.query.name} lacks {fewer} events and {late} are late")
    return found


def _same(row: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(row.get(name) == other.get(name) for name in ("query", "k", "node", "window_start", "window_end"))


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
