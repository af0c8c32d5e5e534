"""Windows that local nodes find themselves: the root says what one process says that has all events."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest

import windrow as wr
from test_nodes import welcomed
from windrow.core.windows.ordered import scope_of
from windrow.nodes.protocol.journal import MemoryStore
from windrow.nodes.protocol.local import LocalRole
from windrow.nodes.protocol.messages import Alive, Batch, Out, Refused, to_bytes
from windrow.nodes.protocol.node import SINK, Node
from windrow.nodes.pushdown import Reported
from windrow.nodes.queries import QuerySet
from windrow.testing import differences, own, recompute
from windrow.testing.tree_simulation import Faults, Simulation, Tree

assert own  # defines chained
COLUMNS = {"t": pl.Int64(), "k": pl.String(), "x": pl.Int64(), "home": pl.String()}
LATENESS = 3
QUERIES = [
    wr.Query("tumbling", wr.tumbling(10), ["count()", "sum(x)"], by="k"),
    wr.Query("global", wr.counting(4), ["sum(x)"]),
    wr.Query("count", wr.counting(3, 2, "node"), ["sum(x)", "median(x)"]),
    wr.Query(
        "mine", wr.frames("x > 2"), ["collect(x)"], by=["k", "node"], having="count() > 1", names={"at": "window_start"}
    ),
    wr.Query("home", wr.latest(3, every=10), ["last(x)"], by="home"),
    wr.Query("chain", wr.tumbling(10), ["chained(x)"], by="home", where="x <> 1"),
    wr.Query("bounds", wr.punctuated(end="x > 4", scope="bounds"), ["count()", "collect(x)"], by={"key": "k"}),
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


def simulated(seed: int, faults: Faults | None = None, machine: type[Node] = Node, **options: Any) -> Simulation:
    dice = random.Random(seed)
    tree = Tree.random(dice.randint(3, 9), dice)
    events = {name: events_of(dice, name) for name in tree.leaves}
    queries = dice.sample(options.pop("queries", QUERIES), 4)
    asked = QuerySet.of(
        queries, "t", COLUMNS, lateness=LATENESS, push_down=options.pop("push_down", True), local_keys=("home",)
    )
    run = Simulation(tree, asked, events, faults or Faults(), dice, machine, **options)
    run.run()
    return run


def wrong_with(run: Simulation) -> list[str]:
    """What the root says otherwise than one process, and what is not accounted for."""
    rows = [{**row, "node": name} for name, events in sorted(run.events.items()) for row in events.to_dicts()]
    rows.sort(key=lambda row: (row["t"], row["node"]))
    queries = run.query_set.queries
    told = recompute(rows, queries, time="t", order_by=("node",))
    found = differences(run.results.to_dicts(), told, queries)
    if accepted(run) != len(rows):
        found.append(f"{len(rows)} events were produced, and {accepted(run)} accepted")
    return found


def accepted(run: Simulation) -> int:
    """How many events the root has heard of."""
    children = run.machines["root"].status()["children"].values()
    return sum(sum(child["events"].values()) for child in children)


@pytest.mark.parametrize("part", range(2))
def test_any_tree_gives_what_one_process_gives_whatever_breaks(part: int, seed: int) -> None:
    for number in range(seed * 1000 + part * 3, seed * 1000 + (part + 1) * 3):
        assert (number, wrong_with(simulated(number))) == (number, [])


def test_without_faults() -> None:
    assert wrong_with(simulated(3, faults=Faults.none())) == []


def test_nodes_that_send_events_give_the_same() -> None:
    """At a position it is otherwise: there the root has not seen a node before its first event is final."""
    queries = [query for query in QUERIES if scope_of(query.window) != "position"]
    for number in range(3):
        assert (number, wrong_with(simulated(number, push_down=False, queries=queries))) == (number, [])


# --- queries and nodes that come and go -------------------------------------------------------------------------------


def told_by_one_process(run: Simulation, queries: list[wr.Query], since: int = -100) -> list[Any]:
    rows = [{**row, "node": name} for name, events in run.events.items() for row in events.to_dicts()]
    rows.sort(key=lambda row: (row["t"], row["node"]))
    return recompute([row for row in rows if row["t"] >= since], queries, time="t", order_by=("node",))


def said_of(run: Simulation, queries: list[wr.Query]) -> list[Any]:
    return run.results.filter(pl.col("query").is_in([query.name for query in queries])).to_dicts()


def test_queries_come_and_go_beside_windows_of_nodes() -> None:
    """One that comes at run time is answered from events, because nodes do not know in time when it begins."""
    stays = [query for query in QUERIES if query.name in ("mine", "overlap")]
    goes = wr.Query("goes", wr.counting(2, scope="node"), ["sum(x)"])
    comes = wr.Query("comes", wr.frames("x > 2", "overlap"), ["count()"])
    settled = 0
    for number in range(3):
        run = simulated(number, queries=[*stays, goes, QUERIES[0]], changes=[comes, "goes"])
        assert (number, differences(said_of(run, stays), told_by_one_process(run, stays), stays)) == (number, [])
        asked = run.machines["root"].query_set
        assert asked is not None
        if "comes" in dict(asked.since) and not asked.pending:
            settled += 1
            want = told_by_one_process(run, [comes], dict(asked.since)["comes"])
            assert (number, differences(said_of(run, [comes]), want, [comes])) == (number, [])
    assert settled > 0


def test_a_node_that_leaves_comes_back_with_its_windows() -> None:
    """Its own are as they would have been; what was to be joined with others comes too late, and is told by itself."""
    own = [query for query in QUERIES if query.name in ("count", "mine", "home", "chain")]
    joined = [query for query in QUERIES if query.name in ("bounds", "started", "position", "overlap")]
    compared = 0
    for number in range(4):
        run = simulated(number, faults=Faults(leave=0.03), queries=[*own[:2], *joined[:2]] if number % 2 else own)
        if accepted(run) < sum(events.height for events in run.events.values()):
            continue  # one is still away
        compared += 1
        asked = list(run.query_set.queries)
        mine = [query for query in asked if query in own]
        assert (number, differences(said_of(run, mine), told_by_one_process(run, mine), mine)) == (number, [])
        others = [query for query in asked if query in joined]
        want = sum(row["count()"] for row in told_by_one_process(run, others))
        assert sum(row["count()"] for row in said_of(run, others)) == want
    assert compared > 1


# --- one node ---------------------------------------------------------------------------------------------------------


def tree_of(
    queries: list[wr.Query], events: dict[str, list[tuple[int, int]]], push_down: bool = True, **options: Any
) -> Simulation:
    """A root with these nodes below it, which read (t, x)."""
    tree = Tree({"root": None, **dict.fromkeys(events, "root")})
    frames = {
        name: pl.DataFrame([{"t": t, "k": "a", "x": x, "home": name} for t, x in rows], schema=COLUMNS)
        for name, rows in events.items()
    }
    asked = QuerySet.of(queries, "t", COLUMNS, push_down=push_down)
    return Simulation(tree, asked, frames, Faults.none(), random.Random(1), **options)


@pytest.mark.parametrize("scope", ["node", "bounds", "position", "overlap"])
def test_no_event_travels_that_is_windowed_where_it_is(scope: Any) -> None:
    query = wr.Query("q", wr.counting(500, scope=scope), ["sum(x)"])
    dice = random.Random(1)
    events = [(10 * t + dice.randrange(10), dice.randrange(1_000_000)) for t in range(16_000)]
    sent = {}
    for push_down in (True, False):
        run = tree_of([query], {"a": events}, push_down)
        while run.machines["a"].mark is None:
            run._deliver()
        local, size = run.machines["a"], 0
        for at in range(0, 16_000, 4000):
            out = local.read(run.events["a"][at : at + 4000], {"at": at + 4000}, 0, last=at == 12_000)
            size += sum(len(to_bytes(message)) for _, message in out)
            run._post("a", out)
        while run._way:
            run._deliver()
        assert wrong_with(run) == []
        sent[push_down] = size
    assert sent[True] < sent[False] / 5


def test_a_node_without_a_spool_is_refused() -> None:
    run = tree_of([wr.Query("q", wr.counting(2, scope="node"), "sum(x)")], {"a": [(1, 1)]})
    local = run.machine("a", "root", (), 9)
    ((_, hello),) = local.start(0)
    ((_, welcome),) = run.machines["root"].receive("a", hello, 0)
    local.receive("root", welcome, 0)
    assert local.refused == "windows are found at the local nodes of this tree (push_down), and this one has no spool"


def test_a_root_that_feeds_spark_refuses_windows_of_nodes() -> None:
    asked = QuerySet.of([wr.Query("q", wr.counting(2, scope="node"), "sum(x)")], "t", COLUMNS, push_down=True)
    with pytest.raises(wr.QueryError, match="leave push_down out"):
        Node("root", children=("a",), store=MemoryStore(), initial=asked, feeds="slices")


def test_a_planted_error_is_found_within_40_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    # a node that begins again knows nothing of its windows
    monkeypatch.setattr(LocalRole, "_restore_windows", lambda *_: None)
    faults = Faults(crash=0.1)
    assert any(wrong_with(simulated(number, faults)) for number in range(40))


def test_a_silent_node_holds_nobody_s_windows_back() -> None:
    query = wr.Query("q", wr.counting(1, scope="position"), ["sum(x)"])
    run = tree_of([query], {"a": [(1, 1), (9, 2)], "b": [(2, 4)]}, settings={"timeout": 5_000_000})
    root, a = run.machines["root"], run.machines["a"]
    for _ in range(20):  # everybody is welcome, and b says that it is there
        run._deliver() if run._way else [run._post(name, one.tick(0)) for name, one in run.machines.items()]
    run._post("a", a.read(run.events["a"], {"at": 2}, 0))
    while run._way:
        run._deliver()
    assert not run.emitted
    for now in range(0, 10_000_000, 1_000_000):
        root.receive("a", Alive("a", a.life, 1), now)
        run._post("root", root.tick(now))
    assert any("b is silent" in note for note in root.notes)
    assert run.results.select("position", "sum(x)").rows() == [(0, 1)]


def test_what_travels_is_explained() -> None:
    queries = [query for query in QUERIES if query.name in ("tumbling", "global", "mine", "chain", "overlap")]
    local = QuerySet.of(queries, "t", COLUMNS, push_down=True, local_keys=("home",))
    needs = "counting(4) depends on the order over all nodes, and agreeing on its ends would be more than its events"
    assert local.explain().splitlines() == [
        "tumbling  slices              merged on the way, of by (k) on t",
        f"global    events: t, node, x  {needs}",
        "mine      results             found at the local nodes, because 'node' is among its keys",
        "chain     results             found at the local nodes, because each of its keys lives at one",
        "overlap   states of windows   found at the local nodes, and joined at the root by overlap",
    ]
    raw = QuerySet.of(queries, "t", COLUMNS).explain().splitlines()
    assert "events: k, node, t, x, x > 2" in raw[2]
    assert "could be found at the local nodes: set push_down" in raw[2]
    assert "chained(x) depends on the order over all nodes; if a key lives at one node, name it in local_keys" in raw[3]
    later = local.added([wr.Query("later", wr.counting(2, scope="node"), "sum(x)")], 10)
    assert "came at run time" in later.explain().splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "table", "reason"),
    [
        ("by (node) on t (at nodes)", {"query": ["q"]}, "by (node) on t (at nodes) has no 'window_start' in its batch"),
        ("by (node) on t (at nodes)", {"query": [1]}, "'query' of by (node) on t (at nodes) is Int64 in its batch"),
        ("by (node) on t (joined) (at nodes)", {"at": ["x"]}, "is String in its batch, not Int64"),
        ("by (node) on t (joined) (at nodes)|opened", {"first": [1]}, "has no 'key:node' in its batch"),
        ("nodes", {"node": ["a"]}, "nodes has no 'gone' in its batch"),
    ],
)
def test_windows_that_cannot_be_are_refused(name: str, table: dict[str, list[Any]], reason: str) -> None:
    queries = [wr.Query(f"q {scope}", wr.counting(2, scope=scope), "sum(x)") for scope in ("node", "bounds")]  # type: ignore[arg-type]
    run = tree_of(queries, {"a": [(1, 1)]})
    while run.machines["a"].mark is None:
        run._deliver()
    bad = Batch("a", run.machines["a"].life, 1, {}, 5, 1, 0, 0, {"a": 1}, {name: pl.DataFrame(table)})
    ((_, answer),) = [one for one in run.machines["root"].receive("a", bad, 0) if isinstance(one[1], Refused)]
    assert isinstance(answer, Refused)
    assert reason in answer.reason


# --- names that come again, lives that follow -------------------------------------------------------------------------


def test_a_name_that_comes_again_is_not_answered_by_windows_of_before() -> None:
    """A node that has not heard of it still sends rows of the query that was called so."""
    queries = [wr.Query(name, wr.counting(size, scope="node"), "sum(x)") for name, size in (("p", 2), ("q", 3))]
    asked = QuerySet.of(queries, "t", COLUMNS, push_down=True)
    rows = pl.DataFrame({"query": ["p", "q"], "window_start": [1, 1], "window_end": [2, 3], "revision": [0, 0]})
    reported = Reported(asked.removed("q").added([queries[1]], 5).job)
    reported.absorb({"by (node) on t (at nodes)": rows.cast({"revision": pl.Int32})})
    assert reported.joined_to(asked.job.compiled.results.empty)["query"].to_list() == ["p"]


def test_a_node_goes_on_from_where_it_was_and_its_spool_keeps_no_windows_of_earlier_lives() -> None:
    run = tree_of([wr.Query("q", wr.counting(2, scope="node"), "sum(x)")], {"a": [(at, 1) for at in range(40)]})
    root, disk = run.machines["root"], MemoryStore()
    for life in range(1, 6):
        local = welcomed(Node("a", "root", (), 10 * life, disk), root)
        for _ in range(6):
            assert local.mark is not None
            at = local.mark.get("at", 0)
            for _, message in local.read(run.events["a"][at : at + 1], {"at": at + 1}, 0):
                root.receive("a", message, 0)  # and the answer is lost with the node
        assert local.mark is not None
        assert local.mark["at"] > 5 * life  # the last one may have been in no batch
        assert len(list(disk.names())) <= 7


def test_a_node_that_has_ended_is_not_waited_for_again_when_its_parent_comes_back() -> None:
    query = wr.Query("q", wr.counting(1, scope="position"), ["sum(x)"])
    asked = QuerySet.of([query], "t", COLUMNS, push_down=True)
    root, spool = Node("root", None, ("middle",), 1, MemoryStore(), asked), MemoryStore()
    middle = Node("middle", "root", ("a", "b"), 1, spool)
    a, b = (Node(name, "middle", (), 1, MemoryStore()) for name in "ab")
    machines = {"root": root, "middle": middle, "a": a, "b": b}
    told: list[Any] = []

    def deliver(sender: str, out: Out) -> None:
        for to, message in out:
            if to == SINK:
                told.extend(message.tables["results"]["sum(x)"].to_list())  # type: ignore[union-attr]
            else:
                deliver(to, machines[to].receive(sender, message, 0))

    def read(name: str, *events: tuple[int, int], last: bool = False) -> None:
        rows = pl.DataFrame([{"t": t, "k": "a", "x": x, "home": name} for t, x in events], schema=COLUMNS)
        deliver(name, machines[name].read(rows, {"at": len(events)}, 0, last))

    for name in ("middle", "a", "b"):
        deliver(name, machines[name].start(0))
    read("a", (1, 1), last=True)
    read("b", (2, 10), (5, 20))
    machines["middle"] = Node("middle", "root", ("a", "b"), 2, spool)
    deliver("middle", machines["middle"].start(0))
    read("b", (7, 30), (9, 40))
    assert told == [11, 20, 30]
