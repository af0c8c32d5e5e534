"""Homes: the events of a node come in by one way, wherever in the tree it, or another one of its name, appears."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from scenarios import COLUMNS, COUNTED
from windrow.nodes.protocol.homes import Homes
from windrow.nodes.protocol.journal import MemoryStore
from windrow.nodes.protocol.messages import Ack, Batch, Claim, Claimed, Message, Out, Refused
from windrow.nodes.protocol.node import SINK, Node
from windrow.nodes.queries import QuerySet
from windrow.nodes.requests import AGAIN


class Tree:
    """Below the root east and west, far below east, each with a node; others may come, and messages arrive at once."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.counts: dict[int, list[int]] = {}  # of each batch of the root, the events in the windows that it has
        self._disks = {name: MemoryStore() for name in ("root", "east", "west", "far")}
        self._lives, self._now = 0, 0
        self.begin("root", None)
        for name, parent in (("east", "root"), ("west", "root"), ("far", "east"), ("one", "west"), ("two", "far")):
            self.begin(name, parent)

    def begin(self, name: str, parent: str | None) -> Node:
        """Start a node (again), below some parent."""
        disk, self._lives = self._disks.get(name), self._lives + 1
        asked = QuerySet.of([COUNTED], "t", COLUMNS) if parent is None else None
        self.nodes[name] = Node(name, parent, (), self._lives, disk, asked, joins=disk is not None)
        self.carry(name, self.nodes[name].start(self._now))
        return self.nodes[name]

    def carry(self, sender: str, out: Out, but: type[Message] | None = None) -> None:
        """Let messages arrive, and what is answered, except those of one kind, which are lost."""
        way = [(sender, *sent) for sent in out]
        while way:
            name, to, message = way.pop(0)
            if but is not None and isinstance(message, but):
                continue
            if to == SINK:
                assert isinstance(message, Batch)
                self.counts[message.number] = message.tables["results"]["count()"].to_list()
                to, message = name, Ack(message.life, message.number)
            if to in self.nodes:
                way += [(to, *sent) for sent in self.nodes[to].receive(name, message, self._now)]

    def read(self, name: str, *times: int, last: bool = False) -> None:
        node = self.nodes[name]
        assert node.mark is not None
        end = node.mark.get("at", 0) + len(times)
        table = pl.DataFrame({"t": list(times), "k": ["a"] * len(times), "x": [1] * len(times)}, schema=COLUMNS)
        self.carry(name, node.read(table, {"at": end}, self._now, last))

    def tick(self, names: Iterable[str]) -> None:
        self._now += 100 * AGAIN
        for name in names:
            self.carry(name, self.nodes[name].tick(self._now))

    def ended(self) -> list[int]:
        """How many events the windows have that the root has emitted, once all sources have ended."""
        for name in ("one", "two"):
            self.read(name, last=True)
        return [count for counts in self.counts.values() for count in counts]


def belongs(name: str, home: str) -> str:
    return (
        f"'{name}' belongs below '{home}', which it came to first, and what '{home}' had from it would count twice: "
        "let it go back there, or give it another name if its events are others"
    )


WAYS = [("east", "west"), ("east", "root"), ("root", "east"), ("east", "far"), ("far", "east"), ("far", "west")]


@pytest.mark.parametrize(("home", "other"), [*WAYS, ("far", "root"), ("root", "far")])
@pytest.mark.parametrize("how", ["killed", "left", "runs"])
def test_a_local_node_that_comes_elsewhere_is_refused_and_goes_on_at_home(home: str, other: str, how: str) -> None:
    tree = Tree()
    north = tree.begin("north", home)
    tree.read("north", 1, 12)
    if how == "left":
        tree.carry("north", north.leave(0))
        assert north.left
    moved = tree.begin("north", other)
    assert moved.refused == belongs("north", home)
    assert moved.mark is None
    again = tree.begin("north", home)
    assert again.refused is None
    rest = (1, 12, 25, 31) if again.mark == {} else (25, 31)
    tree.read("north", *rest, last=True)
    assert tree.ended() == [1, 1, 1, 1]


def test_nothing_else_is_hurt_by_a_node_that_comes_elsewhere() -> None:
    tree = Tree()
    for name, parent in (("north", "east"), ("south", "west")):
        tree.begin(name, parent)
        tree.read(name, 1, 12)
    tree.begin("north", "west")
    assert "north" not in tree.nodes["west"].status()["children"]  # nobody waits for it there
    assert tree.nodes["west"].notes == [f"refused north: {belongs('north', 'east')}"]
    tree.begin("north", "east")
    tree.read("south", 25, last=True)
    tree.read("north", 1, 12, 25, last=True)
    assert tree.ended() == [2, 2, 2]
    assert [tree.nodes[name].refused for name in ("east", "west", "far", "south")] == [None] * 4


def test_a_node_with_children_that_comes_elsewhere_is_refused_with_all_that_it_has() -> None:
    tree = Tree()
    tree.begin("north", "far")
    tree.read("north", 1, 12)
    far = tree.begin("far", "west")
    assert far.refused == belongs("far", "east")
    assert far.mark is None
    assert tree.begin("far", "east").refused is None
    tree.begin("north", "far")
    tree.read("north", 1, 12, 25, last=True)
    assert tree.ended() == [1, 1, 1]


@pytest.mark.parametrize(("name", "home"), [("far", "east"), ("two", "far"), ("east", "root")])
def test_a_name_that_another_node_has_is_refused_wherever_it_comes(name: str, home: str) -> None:
    assert Tree().begin(name, "west").refused == belongs(name, home)


def test_no_node_has_the_name_of_one_above_it() -> None:
    tree = Tree()
    assert answer_to(tree, "east", "root", "far") == Claimed(
        tree.nodes["east"].life, "root", "far", "a node above it is called 'root', too: give it another name"
    )


def answer_to(tree: Tree, sender: str, child: str, parent: str) -> Any:
    """What the root answers to a claim that comes from one of its children."""
    claim = Claim(sender, tree.nodes[sender].life, child, parent)
    ((to, answer),) = tree.nodes["root"].receive(sender, claim, 0)
    assert to == sender
    return answer


def test_of_two_parents_that_ask_at_once_one_gets_the_node() -> None:
    tree = Tree()
    for _ in range(2):  # also after a crash of the root, and however often they ask
        for _ in range(2):
            assert answer_to(tree, "west", "north", "west").refusal == ""
            assert answer_to(tree, "east", "north", "far").refusal == belongs("north", "west")
        tree.begin("root", None)
    assert tree.begin("north", "far").refused == belongs("north", "west")
    assert tree.begin("north", "west").refused is None


@pytest.mark.parametrize("lost", [Claim, Claimed])
def test_a_claim_that_is_lost_is_made_again(lost: type[Message]) -> None:
    tree = Tree()
    north = Node("north", "far", life=99)
    tree.nodes["north"] = north
    tree.carry("north", north.start(0), but=lost)
    assert north.mark is None
    tree.tick(["north"])
    assert north.mark == {}


def test_a_parent_that_comes_to_know_its_own_asks_again_for_those_that_wait() -> None:
    tree = Tree()
    north = tree.nodes["north"] = Node("north", "far", life=99)
    tree.carry("north", north.start(0), but=Claim)
    tree.carry("far", tree.nodes["far"].start(0))  # its connection is opened again
    assert north.mark == {}


def test_where_a_node_belongs_outlives_a_crash_of_all_that_know_it() -> None:
    tree = Tree()
    tree.begin("north", "far")
    for name, parent in (("root", None), ("east", "root"), ("far", "east"), ("west", "root")):
        tree.begin(name, parent)
    root = tree.nodes.pop("root")
    assert tree.begin("north", "far").mark == {}  # nobody is asked
    tree.nodes["root"] = root
    assert tree.begin("north", "west").refused == belongs("north", "far")


def test_a_node_that_comes_while_the_root_is_away_waits() -> None:
    tree = Tree()
    tree.begin("north", "east")
    del tree.nodes["root"]
    moved = tree.begin("north", "west")
    assert (moved.mark, moved.refused) == (None, None)
    tree.begin("root", None)
    tree.tick(["west", "north"])
    assert moved.refused == belongs("north", "east")


# --- who lies -------------------------------------------------------------------------------------------------------


def test_a_child_claims_nodes_for_itself_and_those_below_it_only() -> None:
    tree = Tree()
    tree.begin("north", "west")
    answer = answer_to(tree, "east", "new", "west")
    assert answer == Refused(tree.nodes["east"].life, "it claims nodes for 'west', which is not below it")
    assert isinstance(answer_to(tree, "east", "new", "far"), Claimed)


def test_a_batch_that_speaks_for_nodes_elsewhere_is_refused_and_hurts_nobody_else() -> None:
    tree = Tree()
    for name, parent in (("north", "far"), ("south", "west"), ("liar", "root")):
        tree.begin(name, parent)
    root, liar = tree.nodes["root"], tree.nodes["liar"]
    batch = Batch("liar", liar.life, 1, {}, 5, 1, 0, 0, {"north": 3})
    for events, where in (({"north": 3}, "below east"), ({"west": 1}, "another node"), ({"nobody": 1}, "another node")):
        (name,) = events
        (answer, *_) = root.receive("liar", replace(batch, events=events), 0)
        assert answer == ("liar", Refused(liar.life, f"it counts for '{name}', which is {where}"))
    del tree.nodes["liar"]
    tree.read("north", 1, 12, last=True)
    tree.read("south", 1, 12, last=True)
    assert tree.ended() == [2, 2]


def test_what_a_tree_knows_of_its_nodes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windrow.nodes.protocol.homes.MOST", 2)
    homes = Homes("root")
    homes |= {"a": "root", "b": "a"}
    assert homes.refusal("c", "root") == "the tree has 2 nodes, and takes no more"
    assert homes.refusal("b", "a") == ""
    assert homes.refusal("c" * 101, "root") == "a name has 100 characters at most"
