"""Counting windows over a tree: what a seed makes of one, and what is wrong with what its root says.

python tests/counting_scenarios.py --seeds 500 --first 100000        # try more; a seed that fails is printed
python tests/counting_scenarios.py --first 4711 --seeds 1 --trace    # again
python tests/counting_scenarios.py --seeds 500 --come-and-go         # with nodes that leave, die, rest, join
python tests/counting_scenarios.py --seeds 500 --quantiles           # with quantiles

Where nodes come and go, which events count depends on what has happened. `Record` notes what the root has taken into
windows, so that every window can be compared with the oracle over exactly those events, and every event be accounted
for.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

import windrow as wr
from scenarios import COLUMNS, wrong_with
from windrow.nodes import queries as asking
from windrow.nodes.counting import local
from windrow.nodes.counting.boundaries import BoundaryResolver
from windrow.nodes.counting.local import OrderedLog, OrderedLogs
from windrow.nodes.counting.runs import Interval
from windrow.nodes.counting.tables import ByScheme
from windrow.nodes.protocol.node import Node
from windrow.nodes.queries import QuerySet
from windrow.nodes.requests import AGAIN
from windrow.testing import differences, recompute
from windrow.testing.tree_simulation import Faults, Simulation, Tree

LATENESS = 3
EXACT = ("central", "monitoring", "sync", "async", "refine", "auto")
PLAIN = wr.Query("plain", wr.counting(9), ["sum(x)", "count()", "last(x)"])
COUNTED = [
    PLAIN,
    wr.Query("sliding", wr.counting(6, 2), ["max(x)", "first(x)", "last(x)"]),
    wr.Query("keyed", wr.counting(4), ["sum(x)", "last(x)"], by="k"),
    wr.Query("some", wr.counting(5, 3), ["mean(x)", "arg_max(t, of=x)", "last(x)"], where="x > 1"),
    wr.Query("large", wr.counting(40), ["variance(x)", "median(x)", "last(x)"]),
    wr.Query("nodes", wr.counting(7), ["count()", "last(x)"], by=["k", "node"]),
]
VALUE = "x * 100 + t"  # so that most are different
QUANTILES = [
    wr.Query("median", wr.counting(80), [f"median({VALUE})", "last(x)"]),
    wr.Query("quantiles", wr.counting(90, 30), [f"quantile({VALUE}, 0.9)", "quantile(x, 0.2)", "last(x)"]),
    wr.Query("medians", wr.counting(40), [f"median({VALUE})", "last(x)"], by="k"),
    wr.Query("sampled", wr.counting(50, 70), [f"median({VALUE}) - min(x)", "last(x)"], where="x > 0"),
    wr.Query("many", wr.counting(100), [*(f"quantile({VALUE}, {n / 10})" for n in range(11)), "last(x)"]),
    wr.Query("mixed", wr.counting(80), ["mode(x)", "median(x)", f"median({VALUE})", "last(x)"]),
]
TIMED = wr.Query("timed", wr.tumbling(10), ["count()"])


@dataclass(frozen=True)
class Course:
    """How a node's events come: their rate changes by up to so much from window to window."""

    change: float = 0.5
    size: int = 80
    ties: float = 0.2  # how likely an event has the time of the one before it
    lateness: int = LATENESS

    def events(self, dice: random.Random) -> pl.DataFrame:
        rows, now = [], float(dice.choice([0, 0, -30, 50]))
        gap = dice.choice([1.0, 2.0, 5.0])
        while len(rows) < self.size:
            factor = 1 + dice.uniform(-self.change, self.change)
            gap = min(30.0, max(0.1, gap * factor))
            if self.change >= 1 and dice.random() < 0.3:
                now += dice.choice([20, 60])  # silent for a while
            for _ in range(dice.randint(3, 20)):
                now += 0 if dice.random() < self.ties else gap
                back = dice.randint(0, self.lateness) if self.lateness else 0
                rows.append({"t": int(now) - back, "k": dice.choice("aab"), "x": dice.randint(0, 6)})
        return pl.DataFrame(rows[: self.size], schema=COLUMNS)


@dataclass(frozen=True)
class Scenario:
    """A tree that counts; `exact` if no event can come too late."""

    queries: list[wr.Query]
    scheme: str
    change: float = 0.5
    most: int = 80  # events of a node
    faults: Faults = field(default_factory=Faults)
    settings: dict[str, Any] = field(default_factory=dict)
    own_lateness: bool = False
    joins: bool = False
    removed: tuple[str, ...] = ()  # queries that go while it runs
    dies: bool = False  # whether a node crashes for good
    exact: bool = True


def scenario_of(dice: random.Random, scheme: str | None = None) -> Scenario:
    """Nobody comes or goes, so that the root has to say what one process says."""
    queries = [*dice.sample(COUNTED, dice.choice([1, 1, 2, 3])), *([TIMED] if dice.random() < 0.2 else [])]
    return Scenario(
        queries,
        scheme or dice.choice(EXACT),
        dice.choice([0.0, 0.001, 0.01, 0.1, 0.5, 1.0]),
        dice.choice([10, 30, 60]),
        Faults() if dice.random() < 0.8 else Faults.none(),
        {"log": dice.choice([1, 3, 16]), "eager": dice.random() < 0.2},
        own_lateness=dice.random() < 0.3,
        removed=(queries[0].name,) if dice.random() < 0.05 else (),
    )


def comings_and_goings(dice: random.Random, scheme: str | None = None) -> Scenario:
    """One query that every event counts for, so that the account can be made up."""
    rest = dice.choice([{"timeout": dice.randint(3, 20) * AGAIN}, {"idle": dice.randint(1, 5) * AGAIN}, {}])
    joins = dice.random() < 0.3
    leave = 0.03 if dice.random() < 0.5 or not (rest or joins) else 0.0
    return Scenario(
        [dice.choice([COUNTED[0], COUNTED[1], COUNTED[2], COUNTED[4]])],
        scheme or dice.choice(EXACT),
        dice.choice([0.1, 1.0]),
        dice.choice([10, 30, 60]),
        Faults(leave=leave),
        {"log": dice.choice([1, 3, 16]), "eager": dice.random() < 0.2, **rest},
        own_lateness=dice.random() < 0.3,
        joins=joins,
        dies="timeout" in rest and dice.random() < 0.5,
        exact=False,
    )


def with_quantiles(dice: random.Random, come_and_go: bool = False, scheme: str | None = None) -> Scenario:
    """Windows and streams are longer here, so that nodes have slices between boundaries, and units are small."""
    made = (comings_and_goings if come_and_go else scenario_of)(dice, scheme)
    several = dice.sample(QUANTILES[:3] if come_and_go else QUANTILES, 1 if come_and_go else dice.choice([1, 2]))
    settings = {**made.settings, "eager": dice.random() < 0.1, "block_size": dice.choice([1, 2, 3, 5])}
    gone = (several[0].name,) if len(several) > 1 and dice.random() < 0.2 else ()
    return replace(made, queries=several, most=150, settings=settings, removed=gone)


class Going(Simulation):
    """A simulation in which some nodes crash and never come again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.dying: dict[str, int] = {}  # and when

    @property
    def dead(self) -> list[str]:
        return [name for name, moment in self.dying.items() if moment < self.now]

    def _begin(self, name: str) -> None:
        if name not in getattr(self, "dying", {}) or self.now <= self.dying[name]:
            super()._begin(name)

    def _step(self) -> None:
        for name in self.dead:
            if name in self.machines:
                self.trace.append(f"{self.now}: {name} dies")
                del self.machines[name]
                self._away.pop(name, None)
        super()._step()

    def run(self, steps: int = 100_000) -> None:
        for _ in range(steps):
            root = self.machines["root"]
            assert root.query_set is not None
            alive = [name for name in self.tree.parents if name not in self.dead]
            waits = root.query_set.pending or any(name not in self.machines for name in alive)
            if root.done and not waits and all(machine.done for machine in self.machines.values()):
                return
            self._step()
        raise RuntimeError(f"not done after {steps:,} steps")


Place = tuple[str, tuple[Any, ...]]  # a group and a key


@dataclass
class Record:
    """Which events of nodes have which rank, and which ranks the root has taken into windows."""

    ranks: dict[tuple[Place, str], dict[int, int]] = field(default_factory=dict)  # to the place in the source
    taken: dict[Place, dict[int, dict[str, list[int]]]] = field(default_factory=dict)  # by position, of nodes
    wrong: list[str] = field(default_factory=list)

    def note(self, place: Place, node: str, strand: OrderedLog, events: pl.DataFrame) -> None:
        known = self.ranks.setdefault((place, node), {})
        for rank, nth in enumerate(events["nth"].to_list(), strand.top):
            if rank >= strand.covered:  # an earlier life may have had another there, if nobody knows of it
                known[rank] = nth
            elif known[rank] != nth and rank >= strand.directive.cut:
                self.wrong.append(f"{node} has {nth} at rank {rank} of {place}, where {known[rank]} was")

    def take(self, place: Place, tally: BoundaryResolver, cuts: Mapping[str, int]) -> None:
        found = {}
        for name, line in tally.lines.items():
            cut = cuts.get(name, line.cut)
            ranks = [rank for piece in line.segments for rank in range(piece.lo, min(piece.hi, cut))]
            found[name] = ranks
        known = self.taken.setdefault(place, {}).setdefault(tally.position, found)
        if {name: one for name, one in known.items() if one} != {name: one for name, one in found.items() if one}:
            self.wrong.append(f"{place} at {tally.position} is settled as {found}, before as {known}")


@contextmanager
def recorded() -> Iterator[Record]:
    record = Record()
    add, finish, take = OrderedLog.add, OrderedLogs.finish, BoundaryResolver._take
    current: list[OrderedLogs] = []

    def noted_finish(self: OrderedLogs, final: int) -> None:
        current.append(self)
        finish(self, final)
        current.pop()

    def noted_add(self: OrderedLog, events: pl.DataFrame) -> None:
        for here in current[-1:]:
            (key,) = [key for key, strand in here.by_key.items() if strand is self]
            record.note((here.form.name, key), here.node, self, events)
        add(self, events)

    def noted_take(self: BoundaryResolver, cuts: dict[str, int], size: int) -> Interval:
        record.take((self.form.name, self.key), self, cuts)
        return take(self, cuts, size)

    OrderedLog.add, OrderedLogs.finish, BoundaryResolver._take = noted_add, noted_finish, noted_take  # type: ignore[method-assign]
    try:
        yield record
    finally:
        OrderedLog.add, OrderedLogs.finish, BoundaryResolver._take = add, finish, take  # type: ignore[method-assign]


@dataclass
class Ran:
    run: Going
    record: Record


def simulated(seed: int, scenario: Scenario | None = None, machine: type[Node] = Node, steps: int = 60_000) -> Ran:
    dice = random.Random(seed)
    chosen = scenario or scenario_of(dice)
    tree = Tree.random(dice.randint(3, 8), dice)
    lateness = {name: dice.randint(0, 8) for name in tree.leaves} if chosen.own_lateness else {}
    events = {}
    for name in tree.leaves:
        size = 0 if dice.random() < 0.1 else dice.randint(1, chosen.most)
        events[name] = Course(chosen.change, size, dice.choice([0.0, 0.2, 0.9]), lateness.get(name, LATENESS)).events(
            dice
        )
    below = [name for name, parent in tree.parents.items() if parent is not None]
    late = dice.sample(below, dice.randint(1, len(below))) if chosen.joins else []
    before = asking.SMALL, local.AT_ONCE
    asking.SMALL, local.AT_ONCE = 1, dice.choice([1024, 4])  # so that small streams do what large ones do
    try:
        with recorded() as record:
            run = Going(
                tree,
                QuerySet.of(chosen.queries, "t", COLUMNS, lateness=LATENESS, counting=chosen.scheme),
                events,
                chosen.faults,
                dice,
                machine,
                list(chosen.removed),
                chosen.settings,
                lateness,
                {name: dice.randrange(30 * AGAIN) for name in late},
                chosen.exact,
            )
            if chosen.dies:
                parents = [tree.parents[name] for name in tree.leaves]  # each has another one below that lives
                mortal = [name for name in tree.leaves if parents.count(tree.parents[name]) > 1]
                run.dying = {name: dice.randrange(40 * AGAIN) for name in mortal[:1]}
            run.run(steps)
    finally:
        asking.SMALL, local.AT_ONCE = before
    return Ran(run, record)


# --- what is wrong --------------------------------------------------------------------------------------------------


def wrong_in(ran: Ran) -> list[str]:
    """What is wrong, of windows and of the account; where nobody comes and goes, it is also what one process says."""
    found = [*ran.record.wrong, *_wrong_windows(ran)]
    return [*found, *(wrong_with(ran.run) if ran.run.exact else _wrong_account(ran))]


def _wrong_windows(ran: Ran) -> list[str]:
    """Windows are those of the events that were taken, which are in order."""
    run, found = ran.run, list[str]()
    status = run.machines["root"].status().get("counting", {})
    accepted: dict[str, list[dict[str, Any]]] = {}
    for (group, key), boundaries in ran.record.taken.items():
        before, position = None, 0
        for at, of_nodes in sorted(boundaries.items()):
            found += [f"{group} {key}: {at} follows on {position}"] if at != position else []
            rows = []
            for node, ranks in of_nodes.items():
                for rank in ranks:
                    nth = ran.record.ranks[(group, key), node][rank]
                    rows.append(((run.events[node]["t"][nth], node, rank), run.events[node].row(nth, named=True)))
            rows.sort(key=lambda one: one[0])
            if before is not None and rows and rows[0][0] < before:
                found.append(f"{group} {key}: {rows[0][0]} comes after {before}, in the stretch from {at}")
            before, position = rows[-1][0], at + len(rows)
            accepted.setdefault(group, []).extend({**row, "node": place[1]} for place, row in rows)
    for number, query in enumerate(run.query_set.queries):
        groups = run.query_set.job.compiled.plan.groups
        (group,) = [one for one in groups if any(number in several for several in one.members.values())]
        if not isinstance(group.placement, ByScheme) or run.changes:
            continue
        if status.get(group.name, {}).get("left_out"):
            continue  # quantiles are those of the values that nodes could still tell
        rows = sorted(accepted.get(group.name, []), key=lambda row: (row["t"], row["node"]))
        said = run.results.filter(pl.col("query") == query.name).to_dicts()
        found += differences(said, recompute(rows, [query], time="t", order_by=("node",)), [query])
    return found


def _wrong_account(ran: Ran) -> list[str]:
    """Of the nodes below each child of the root: events = in windows, or open, or late.

    Of the dead it is what the root holds at least; what waits at one that cannot read again waits for its next life.
    """
    run, found = ran.run, list[str]()
    root = run.machines["root"]
    assert root.as_parent.subtree.assembly is not None
    agreement = root.as_parent.subtree.assembly.counting
    for child, known in root.as_parent.subtree.children.items():
        leaves = [name for name in run.tree.leaves if _is_below(run.tree, name, child)]
        taken = sum(
            len(of_nodes.get(name, []))
            for boundaries in ran.record.taken.values()
            for of_nodes in boundaries.values()
            for name in leaves
        )
        open_ = sum(
            line.size
            for tallies in agreement._resolvers.values()
            for tally in tallies.values()
            for name, line in tally.lines.items()
            if name in leaves
        )
        made = sum(run.events[name].height for name in leaves)
        lost = any(name == child or name in leaves or _is_below(run.tree, name, child) for name in run.dead)
        least = made if not lost else 0 if run.settings["eager"] else sum(known.events.get(one, 0) for one in leaves)
        if agreement and not least <= taken + open_ + known.late <= made:
            found.append(f"{child}: of {made} events {taken} are in windows, {open_} open, {known.late} late")
    return found


def _is_below(tree: Tree, name: str, other: str) -> bool:
    above: str | None = name
    while above is not None and above != other:
        above = tree.parents[above]
    return above == other


def tried(seed: int, come_and_go: bool = False, scheme: str | None = None, quantiles: bool = False) -> Ran:
    """What a seed makes."""
    dice = random.Random(f"{seed} {scheme}")
    if quantiles:
        return simulated(seed, with_quantiles(dice, come_and_go, scheme))
    return simulated(seed, (comings_and_goings if come_and_go else scenario_of)(dice, scheme))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--scheme", choices=EXACT)
    parser.add_argument("--come-and-go", action="store_true")
    parser.add_argument("--quantiles", action="store_true")
    parser.add_argument("--trace", action="store_true")
    given = parser.parse_args()
    failed, begin = 0, time.monotonic()
    for number in range(given.first, given.first + given.seeds):
        try:
            wrong = wrong_in(tried(number, given.come_and_go, given.scheme, given.quantiles))
        except Exception as error:
            if given.trace:
                raise
            wrong = [f"{type(error).__name__}: {error}"]
        if wrong:
            failed += 1
            print(f"seed {number}:", *wrong[:6], sep="\n    ", flush=True)
    print(f"{given.seeds} seeds, {failed} failed, {time.monotonic() - begin:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
