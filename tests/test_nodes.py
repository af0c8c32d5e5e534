"""Nodes: what the root of a tree says, whatever happens on the way, is what one process says that has all events."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest

import windrow as wr
from windrow.nodes.asked import Asked
from windrow.nodes.machine import Child, Machine
from windrow.nodes.messages import (
    Ack,
    Alive,
    Batch,
    Hello,
    Leave,
    Left,
    Message,
    MessageError,
    Plan,
    Refused,
    Welcome,
    from_bytes,
    to_bytes,
)
from windrow.nodes.simulation import Faults, Simulation, Tree
from windrow.testing import differences, recompute

COLUMNS = {"t": pl.Int64(), "k": pl.String(), "x": pl.Int64()}
LATENESS = 3
QUERIES = [
    wr.Query("tumbling", wr.tumbling(10), ["count()", "sum(x)", "median(x)"], by="k"),
    wr.Query("sliding", wr.sliding(20, 5), ["mean(x)", "last(x)"]),
    wr.Query("session", wr.session(6), ["count()", "max(x)"], by="k", having="count() > 1"),
    wr.Query("counting", wr.counting(5), ["sum(x)"]),
    wr.Query("frames", wr.frames(when="x > 3"), ["collect(x)"], by="k"),
    wr.Query("cumulating", wr.cumulating(20, 5), ["sum(x)"], where="x <> 2"),
]


def events_of(dice: random.Random, most: int = 20) -> pl.DataFrame:
    """Events of one node, out of order by as much as the lateness allows."""
    time, rows = 0, []
    for _ in range(dice.randint(0, most)):
        time += dice.randint(0, 4)
        rows.append({"t": time - dice.randint(0, LATENESS), "k": dice.choice("ab"), "x": dice.randint(0, 6)})
    return pl.DataFrame(rows, schema=COLUMNS)


def simulated(
    seed: int, size: int | None = None, machine: type[Machine] = Machine, faults: Faults | None = None
) -> Any:
    dice = random.Random(seed)
    tree = Tree.random(size or dice.randint(3, 10), dice)
    events = {name: events_of(dice) for name in tree.leaves}
    asked = Asked.of(QUERIES, "t", COLUMNS, lateness=LATENESS)
    run = Simulation(tree, asked, events, faults or Faults(), dice, machine)
    run.run()
    return run


def wrong_with(run: Simulation) -> list[str]:
    """What the root says otherwise than one process, and what is not accounted for."""
    root = run.machines["root"]
    rows = [{**row, "node": name} for name, events in sorted(run.events.items()) for row in events.to_dicts()]
    rows.sort(key=lambda row: (row["t"], row["node"]))
    told = recompute(rows, QUERIES, time="t", order_by=("node",))
    found = differences(run.results.to_dicts(), told, QUERIES)
    accepted = sum(sum(child["events"].values()) for child in root.status()["children"].values())
    if accepted != len(rows):
        found.append(f"{len(rows)} events were produced, and {accepted} accepted")
    return found


@pytest.mark.parametrize("part", range(3))
def test_any_tree_gives_what_one_process_gives_whatever_breaks(part: int, seed: int) -> None:
    for number in range(seed * 1000 + part * 8, seed * 1000 + (part + 1) * 8):
        assert (number, wrong_with(simulated(number))) == (number, [])


def test_a_large_tree() -> None:
    run = simulated(7, size=30)
    assert len(run.machines) >= 30
    assert run.crashes > 0
    assert wrong_with(run) == []


def test_without_faults() -> None:
    run = simulated(3, faults=Faults.none())
    assert run.crashes == 0
    assert wrong_with(run) == []


def test_the_same_seed_gives_the_same_run() -> None:
    one, other = simulated(11), simulated(11)
    assert (one.messages, one.bytes, one.now, one.trace) == (other.messages, other.bytes, other.now, other.trace)
    assert one.results.equals(other.results)


# --- planted errors -------------------------------------------------------------------------------------------------


class TakesTwice(Machine):
    @staticmethod
    def _is_next(child: Child, batch: Batch) -> bool:
        return child.accepted <= batch.number <= child.accepted + 1


class TakesOfAnOldLife(Machine):
    @staticmethod
    def _is_of_this_life(child: Child, message: Batch | Alive | Leave) -> bool:
        return True


class LeavesGaps(Machine):
    @staticmethod
    def _is_next(child: Child, batch: Batch) -> bool:
        return batch.number > child.accepted


@pytest.mark.parametrize("planted", [TakesTwice, TakesOfAnOldLife, LeavesGaps])
def test_a_planted_error_is_found_within_200_seeds(planted: type[Machine]) -> None:
    def fails(number: int) -> bool:
        return bool(wrong_with(simulated(number, machine=planted, faults=Faults(crash=0.1))))

    assert any(fails(number) for number in range(200))


# --- messages -------------------------------------------------------------------------------------------------------

TABLE = pl.DataFrame({"slice_start": [0, 10], "count().count": [3, 4]})
MESSAGES: list[Message] = [
    Hello("a", 3),
    Batch("a", 3, 8, {"mark": {"at": 80}}, 75, 1, -5, 0, {"a": 80}, {"by () on t": TABLE}),
    Alive("a", 3, 1),
    Leave("a", 3),
    Welcome(3, 7, {"mark": {"at": 70}}, {"queries": []}, {"columns": TABLE.clear()}),
    Plan(3, {"queries": []}, {"columns": TABLE.clear()}),
    Ack(3, 8),
    Left(3),
    Refused(3, "no"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_from_its_bytes(message: Message) -> None:
    again = from_bytes(to_bytes(message))
    assert again == message
    for name, table in getattr(message, "tables", {}).items():
        assert again.tables[name].equals(table)  # type: ignore[union-attr]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_garbled_bytes_are_refused_and_nothing_else_happens(message: Message, seed: int) -> None:
    dice, data = random.Random(seed), to_bytes(message)
    for _ in range(200):
        garbled = bytearray(data)
        for _ in range(dice.randint(1, 4)):
            kind, place = dice.randrange(3), dice.randrange(len(garbled))
            if kind == 0:
                garbled[place] = dice.randrange(256)
            elif kind == 1:
                del garbled[place : place + dice.randint(1, 20)]
            else:
                garbled[place:place] = dice.randbytes(dice.randint(1, 20))
            if not garbled:
                break
        try:
            found = from_bytes(bytes(garbled))
        except MessageError:
            continue
        assert isinstance(found, Message)  # a header with another number in it is still a message


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "cannot be read"),
        (b"GET / HTTP/1.1", "cannot be read"),
        (to_bytes(Ack(1, 2)).replace(b'"Ack"', b'"Nak"'), "there is no message 'Nak'"),
        (to_bytes(Ack(1, 2)).replace(b'"number": 2', b'"number": "2"'), r"Ack\.number is '2'"),
        (to_bytes(Ack(1, 2)).replace(b'"number"', b'"figure"'), "Ack has epoch, number, not epoch, figure"),
    ],
)
def test_what_is_wrong_with_a_message_is_said(data: bytes, reason: str) -> None:
    with pytest.raises(MessageError, match=reason):
        from_bytes(data)


def test_a_node_that_the_parent_does_not_know_is_refused() -> None:
    root = simulated(3, faults=Faults.none()).machines["root"]
    ((to, answer),) = root.receive("stranger", Hello("stranger", 1), 0)
    assert to == "stranger"
    assert isinstance(answer, Refused)
    assert "has no child 'stranger'" in answer.reason
