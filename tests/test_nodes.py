"""Nodes: what the root of a tree says, whatever happens on the way, is what one process says that has all events.

What a seed makes of a tree is in `scenarios.py`, which also tries more seeds than these, or one of them again.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping
from typing import Any

import polars as pl
import pytest

import windrow as wr
from scenarios import COLUMNS, COUNTED, QUERIES, Scenario, simulated, wrong_with
from windrow.core.arrays.dataframes import InputError
from windrow.core.expressions.errors import QueryError
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.io.tables import pack
from windrow.nodes.protocol.children import Child
from windrow.nodes.protocol.homes import Homes
from windrow.nodes.protocol.journal import MemoryStore
from windrow.nodes.protocol.local import Mark, Reader
from windrow.nodes.protocol.messages import (
    Ack,
    Alive,
    Batch,
    Claim,
    Claimed,
    Hello,
    Leave,
    Left,
    Message,
    MessageError,
    Offer,
    Out,
    Queries,
    Refused,
    Request,
    Welcome,
    from_bytes,
    to_bytes,
)
from windrow.nodes.protocol.node import SINK, Node
from windrow.nodes.protocol.send_window import AGAIN, WINDOW
from windrow.nodes.protocol.subtree import Subtree
from windrow.nodes.queries import QuerySet
from windrow.testing.tree_simulation import Faults

PARTS, TREES = 8, 50  # make soak goes on


def added(root: Node, query: wr.Query) -> Out:
    """What a root sends when a query comes."""
    return root.add(root.planned([query]), 0) or []


@pytest.mark.parametrize("part", range(PARTS))
def test_400_trees_give_what_one_process_gives_whatever_breaks(part: int, seed: int) -> None:
    begin = (seed * PARTS + part) * TREES
    for number in range(begin, begin + TREES):
        try:
            found = wrong_with(simulated(number))
        except Exception as error:
            raise AssertionError(f"seed {number}") from error
        assert (number, found) == (number, [])


@pytest.mark.parametrize("number", range(4))
def test_trees_of_200_machines(number: int, seed: int) -> None:
    query = QUERIES[(4 * seed + number) % len(QUERIES)]
    run = simulated(4 * seed + number, size=200, scenario=Scenario([query], faults=Faults(crash=0.01), most=4))
    assert len(run.machines) >= 200
    assert run.crashes > 0
    assert wrong_with(run) == []


def test_without_faults() -> None:
    run = simulated(3, scenario=Scenario(QUERIES, faults=Faults.none()))
    assert run.crashes == 0
    assert wrong_with(run) == []


def test_the_same_seed_gives_the_same_run() -> None:
    one, other = simulated(11), simulated(11)
    assert (one.messages, one.bytes, one.now, one.trace) == (other.messages, other.bytes, other.now, other.trace)
    assert one.results.equals(other.results)


# --- planted errors -------------------------------------------------------------------------------------------------


def takes_twice(child: Child, batch: Batch) -> bool:
    return child.accepted <= batch.number <= child.accepted + 1


def takes_of_an_old_life(child: Child, message: Batch | Alive | Leave) -> bool:
    return True


def leaves_gaps(child: Child, batch: Batch) -> bool:
    return batch.number > child.accepted


def forgets_open_slices(reader: Reader) -> tuple[int, Mark]:
    """Says that it goes on from where it has read to, and not from where its open slices begin."""
    return reader.count, reader.mark


def begins_too_soon(subtree: Subtree) -> None:
    """Answers a new query from the watermark on, before all nodes cut by it."""
    assert subtree.query_set is not None
    if subtree.query_set.pending and subtree.assembly is not None:
        pending = [name for name, _ in subtree.query_set.pending]
        subtree.query_set = subtree.query_set.settled(pending, subtree.watermark + 1)
        subtree.assembly = subtree.assembly.switched(subtree.query_set.job)


def knows_no_home(homes: Homes, node: str, parent: str) -> str:
    """Takes a node wherever it comes."""
    return ""


PLANTED = [
    (Child, "is_next", takes_twice),
    (Child, "is_of_this_life", takes_of_an_old_life),
    (Child, "is_next", leaves_gaps),
    (Reader, "safe", property(forgets_open_slices)),
    (Subtree, "_begin_queries", begins_too_soon),
    (Homes, "refusal", knows_no_home),
]


@pytest.mark.parametrize(("part", "name", "planted"), PLANTED)
def test_a_planted_error_is_found_within_200_seeds(
    monkeypatch: pytest.MonkeyPatch, part: type[Any], name: str, planted: Any
) -> None:
    monkeypatch.setattr(part, name, planted)

    def fails(number: int) -> bool:
        try:
            return bool(wrong_with(simulated(number, steps=5000)))
        except Exception:  # it may also break, or never come to its end
            return True

    assert any(fails(number) for number in range(200))


# --- messages -------------------------------------------------------------------------------------------------------

TABLE = pl.DataFrame({"slice_start": [0, 10], "count().count": [3, 4]})
MESSAGES: list[Message] = [
    Hello("a", 3, 2),
    Claim("middle", 3, "a", "middle"),
    Batch("a", 3, 8, {"mark": {"at": 80}}, 75, 1, -5, 0, {"a": 80}, {"by () on t": TABLE}),
    Alive("a", 3, 1),
    Leave("a", 3),
    Offer(3, 2),
    Claimed(3, "a", "middle", ""),
    Welcome(3, 7, {"mark": {"at": 70}}, {"queries": []}, {"columns": TABLE.clear()}),
    Queries(3, {"queries": []}, {"columns": TABLE.clear()}),
    Ack(3, 8),
    Left(3),
    Refused(3, "no"),
    Request(3, "a", 7, 0, {"by () on t": TABLE}),
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
        (pack({"message": "Nak", "fields": {"life": 1, "number": 2}}, {}), "there is no message 'Nak'"),
        (pack({"message": "Ack", "fields": {"life": 1, "number": "2"}}, {}), r"Ack\.number is '2'"),
        (
            pack({"message": "Ack", "fields": {"life": 1, "figure": 2}}, {}),
            r"Ack has life, number, not \['life', 'figure'\]",
        ),
    ],
)
def test_what_is_wrong_with_a_message_is_said(data: bytes, reason: str) -> None:
    with pytest.raises(MessageError, match=reason):
        from_bytes(data)


# --- one machine at a time ------------------------------------------------------------------------------------------


def root_of(*children: str, **more: Any) -> Node:
    asked = QuerySet.of([COUNTED], "t", COLUMNS, lateness=0)
    return Node("root", None, children, 1, MemoryStore(), asked, **more)


def events(*times: int) -> pl.DataFrame:
    return pl.DataFrame({"t": list(times), "k": ["a"] * len(times), "x": [1] * len(times)}, schema=COLUMNS)


def welcomed(machine: Node, parent: Node, *above: Node, now: int = 0) -> Node:
    """A machine whose Hello was answered, perhaps by those above; what it has to say then, it has said."""
    nodes = {node.name: node for node in (machine, parent, *above)}
    way = [(machine.name, *sent) for sent in machine.start(now)]
    while way:
        sender, to, message = way.pop(0)
        if to in nodes:
            way += [(to, *sent) for sent in nodes[to].receive(sender, message, now)]
    return machine


def talk(machine: Node, parent: Node, out: Out, now: int = 0) -> list[Message]:
    """Carry messages to the parent and its answers back; returns what the outlet got."""
    told: list[Message] = []
    for _, message in out:
        for to, answer in parent.receive(machine.name, message, now):
            if to == SINK:
                told.append(answer)
            elif to == machine.name:
                machine.receive(parent.name, answer, now)
    return told


def counts(told: list[Message]) -> list[int]:
    return [n for batch in told if isinstance(batch, Batch) for n in batch.tables["results"]["count()"].to_list()]


def test_a_slice_is_sent_once_it_is_over() -> None:
    root = root_of("a")
    local = welcomed(Node("a", "root"), root)
    talk(local, root, local.read(events(1, 2, 9), {"at": 3}, 0))  # that it has come
    assert local.read(events(5), {"at": 4}, 0) == []
    ((to, batch),) = local.read(events(12, 3), {"at": 6}, 0)
    assert to == "root"
    assert isinstance(batch, Batch)
    (table,) = batch.tables.values()
    assert table["slice_start"].to_list() == [0]
    assert batch.position["mark"] == {"at": 4}  # 12 and 3 came together, and 12 is in an open slice
    assert counts(talk(local, root, [(to, batch)])) == [5]


def test_a_node_that_has_lost_everything_reads_again_what_was_in_open_slices() -> None:
    root = root_of("a")
    local = welcomed(Node("a", "root", life=1), root)
    talk(local, root, local.read(events(1, 12), {"at": 2}, 0))
    again = welcomed(Node("a", "root", life=2), root)
    assert again.mark == {}  # the one at 12 is in no batch
    assert counts(talk(again, root, again.read(events(1, 12), {"at": 2}, 0))) == []
    assert counts(talk(again, root, again.read(events(25), {"at": 3}, 0))) == [1]


def test_an_eager_node_has_no_open_slices() -> None:
    root = root_of("a")
    local = welcomed(Node("a", "root", eager=True), root)
    talk(local, root, local.read(events(1, 12), {"at": 2}, 0))
    assert local.confirmed == {"at": 2}


def test_a_node_reads_no_more_once_too_much_is_not_acknowledged() -> None:
    root = root_of("a")
    local = welcomed(Node("a", "root"), root)
    sent: Out = []
    for number in range(WINDOW):
        assert local.mark is not None
        sent += local.read(events(10 * number), {"at": number + 1}, 0)
    assert local.mark is None
    talk(local, root, sent)
    assert local.mark == {"at": WINDOW}


def test_an_acknowledgement_that_overtakes_the_welcome_is_not_taken_for_a_loss() -> None:
    root, disk = root_of("middle"), MemoryStore()
    middle = welcomed(Node("middle", "root", ("a",), 1, disk), root)
    local = welcomed(Node("a", "middle"), middle, root)
    made = middle.receive("a", local.read(events(1, 12), {"at": 2}, 0)[0][1], 0)  # and lost on the way to the root
    assert any(to == "root" for to, _ in made)
    middle = Node("middle", "root", ("a",), 2, disk)
    ((_, hello),) = middle.start(0)
    ((_, offer),) = root.receive("middle", hello, 0)
    ((_, hello),) = middle.receive("root", offer, 0)
    ((_, welcome),) = root.receive("middle", hello, 0)
    out = middle.receive("a", local.read(events(25), {"at": 3}, 0)[0][1], 0)
    for batch in [*middle._window.unacknowledged]:
        talk(middle, root, [("root", batch)])
    assert [to for to, _ in out] == ["a", "root"]
    middle.receive("root", welcome, 0)
    assert middle.refused is None


def test_what_is_not_answered_is_said_again_less_and_less_often() -> None:
    root = root_of("a")
    local = welcomed(Node("a", "root"), root)
    local.read(events(1, 12), {"at": 2}, 0)
    said = [now // AGAIN for now in range(0, 100 * AGAIN, AGAIN) if local.tick(now)]
    assert said == [1, 3, 7, 15, 31, 61, 91]


def test_a_silent_child_is_reported_and_holds_nothing_back() -> None:
    root = root_of("a", "b", timeout=5 * AGAIN)
    local = welcomed(Node("a", "root"), root)
    welcomed(Node("b", "root"), root)
    assert counts(talk(local, root, local.read(events(1, 12), {"at": 2}, 0))) == []
    told: Out = []
    for now in range(0, 10 * AGAIN, AGAIN):
        talk(local, root, local.tick(now), now)
        told += root.tick(now)
    assert counts([message for to, message in told if to == SINK][:1]) == [1]
    assert root.notes == ["b is silent; the watermark does not wait for it"]
    assert root.status()["children"]["b"]["state"] == "silent"
    root.receive("b", Alive("b", 0, 1), 11 * AGAIN)
    assert root.notes[1:] == ["b is back"]


def test_an_idle_node_says_so_and_holds_nothing_back() -> None:
    root = root_of("a", "b")
    local, quiet = welcomed(Node("a", "root"), root), welcomed(Node("b", "root", idle=3 * AGAIN), root)
    talk(local, root, local.read(events(1, 12), {"at": 2}, 0))
    assert counts(talk(quiet, root, quiet.tick(0))) == []
    assert counts(talk(quiet, root, quiet.tick(3 * AGAIN))) == [1]
    assert root.status()["children"]["b"]["state"] == "idle"
    talk(quiet, root, quiet.read(events(13), {"at": 1}, 0))
    assert root.status()["children"]["b"]["state"] == "live"


def test_the_watermark_does_not_go_to_its_end_while_an_idle_node_may_go_on() -> None:
    root = root_of("a", "b")
    local, quiet = welcomed(Node("a", "root"), root), welcomed(Node("b", "root", idle=3 * AGAIN), root)
    talk(quiet, root, quiet.tick(0))
    talk(quiet, root, quiet.tick(3 * AGAIN))
    talk(local, root, local.read(events(1, 12), {"at": 2}, 0, last=True))
    assert root.watermark < INT64_MAX
    assert counts(talk(quiet, root, quiet.read(events(13), {"at": 1}, 0, last=True))) == [1, 2]
    assert root.watermark == INT64_MAX


def test_a_node_leaves_with_everything_that_it_had() -> None:
    root = root_of("a", "b")
    local, other = welcomed(Node("a", "root"), root), welcomed(Node("b", "root"), root)
    talk(local, root, local.read(events(3, 4), {"at": 2}, 0))
    talk(other, root, other.read(events(25), {"at": 1}, 0))
    talk(local, root, local.leave(0))
    told = talk(local, root, local.tick(AGAIN))
    assert local.left
    assert counts(told) == [2]
    assert root.status()["children"]["a"] == {
        "state": "left",
        "watermark": 4,
        "batches": 2,
        "late": 0,
        "events": {"a": 2},
    }


def test_what_a_silent_node_has_sent_counts_when_it_is_back() -> None:
    root = root_of("a", "b", timeout=5 * AGAIN)
    a, b = welcomed(Node("a", "root"), root), welcomed(Node("b", "root"), root)
    talk(a, root, a.read(events(1, 12), {"at": 2}, 0))
    root.tick(0)
    root.tick(9 * AGAIN)  # nobody is heard any more
    root.receive("a", Alive("a", 0, 1), 10 * AGAIN)
    assert root.watermark == 12
    talk(b, root, b.tick(10 * AGAIN), 10 * AGAIN)
    assert root.status()["children"]["b"]["state"] == "live"


def test_a_node_may_join_where_others_may_come() -> None:
    root = root_of("a", joins=True)
    talk(local := welcomed(Node("a", "root"), root), root, local.read(events(12), {"at": 1}, 0))
    new = welcomed(Node("new", "root"), root)
    talk(local, root, local.read(events(40), {"at": 2}, 0))
    assert root.watermark == 12  # it is waited for
    assert counts(talk(new, root, new.read(events(15, 31), {"at": 2}, 0))) == [2]


def test_a_node_that_the_parent_does_not_know_is_refused_and_noted_once() -> None:
    root = root_of("a")
    for _ in range(3):
        ((to, answer),) = root.receive("stranger", Hello("stranger", 1), 0)
        assert to == "stranger"
        assert answer == Refused(1, "root has no child 'stranger'")
    assert root.notes == ["refused stranger: root has no child 'stranger'"]


def test_events_far_ahead_of_the_clock_are_refused_where_they_are_and_by_the_parent() -> None:
    columns = {"t": pl.Datetime("us")}
    asked = QuerySet.of([wr.Query("q", wr.tumbling("1 minute"), ["count()"])], "t", columns)
    root = Node("root", None, ("a",), 1, MemoryStore(), asked)
    local = welcomed(Node("a", "root"), root)
    ahead = pl.DataFrame({"t": [3 * 86_400_000_000]}, schema=columns)
    with pytest.raises(ValueError, match="has the t 1970-01-04 00:00:00, further ahead of the clock than 1970-01-02"):
        local.read(ahead, {"at": 1}, 0)
    trusting = welcomed(Node("a", "root", life=2, ahead=None), root)
    talk(trusting, root, trusting.read(ahead, {"at": 1}, 0))
    assert trusting.refused == "its clock is 259,200 seconds ahead; mend it, or raise max_ahead"
    assert trusting.mark is None
    assert root.watermark == INT64_MIN
    assert root.status()["children"]["a"]["state"] == "silent"


def test_a_batch_that_is_not_what_was_asked_for_is_refused() -> None:
    root = root_of("a")
    welcomed(Node("a", "root"), root)
    for table, reason in (
        (pl.DataFrame({"slice_start": ["0"]}), "'slice_start' of by () on t is String in its batch, not Int64"),
        (pl.DataFrame({"count().count": [1]}, schema={"count().count": pl.Int64}), "has no 'slice_start' in its batch"),
    ):
        batch = Batch("a", 0, 1, {}, 5, 1, 0, 0, {}, {"by () on t": table})
        ((_, answer),) = root.receive("a", batch, 0)
        assert isinstance(answer, Refused)
        assert reason in answer.reason


def test_random_messages_disturb_no_parent(seed: int) -> None:
    dice = random.Random(seed)
    root = root_of("a", "b")
    local = welcomed(Node("a", "root"), root)
    fixed: dict[str, Any] = {"node": "b", "position": {}, "events": {}, "tables": {}, "asked": {}, "reason": ""}
    for at in range(300):
        kind = dice.choice([Hello, Batch, Alive, Leave, Ack, Left, Refused, Request])
        given = {name: fixed.get(name, dice.randint(-2, 3)) for name in kind.__dataclass_fields__}
        if kind is Leave:
            given["life"] = -7  # else it goes, as it may
        root.receive(dice.choice(["a", "b", "c"]), kind(**given), at)
    talk(local, root, local.read(events(1, 12), {"at": 2}, 0))
    assert root.status()["children"]["a"]["batches"] == 1


# --- what is asked --------------------------------------------------------------------------------------------------


def test_a_query_that_comes_begins_after_everything_that_was_cut_without_it() -> None:
    root = root_of("a", "b")
    a, b = welcomed(Node("a", "root"), root), welcomed(Node("b", "root"), root)
    talk(a, root, a.read(events(1, 23), {"at": 2}, 0))
    talk(b, root, b.read(events(2), {"at": 1}, 0))
    plans = dict(added(root, wr.Query("more", wr.tumbling(4), ["sum(x)"])))
    assert root.query_set is not None
    assert root.query_set.pending == (("more", 2),)
    for machine in (a, b):
        talk(machine, root, machine.receive("root", plans[machine.name], 0))
    assert root.query_set.pending == ()
    assert dict(root.query_set.since) == {"more": 24}
    told = talk(a, root, a.read(events(24, 25, 50), {"at": 5}, 0)) + talk(b, root, b.read(events(27, 60), {"at": 3}, 0))
    said = pl.concat([batch.tables["results"] for batch in told if isinstance(batch, Batch)], how="diagonal")
    more = said.filter(pl.col("query") == "more")
    assert more.select("window_start", "sum(x)").rows() == [(24, 3)]


def test_a_query_that_goes_is_answered_no_more() -> None:
    root = root_of("a")
    local = welcomed(Node("a", "root"), root)
    talk(local, root, local.read(events(1), {"at": 1}, 0))
    root.remove("counted", 0)
    assert talk(local, root, local.read(events(30), {"at": 2}, 0)) == []
    with pytest.raises(QueryError, match="there is no query called 'counted'; there are none"):
        root.remove("counted", 0)


def test_a_root_that_is_started_with_other_queries_changes_them_as_at_run_time() -> None:
    disk = MemoryStore()
    asked = QuerySet.of([COUNTED], "t", COLUMNS)
    root = Node("root", None, ("a",), 1, disk, asked)
    local = welcomed(Node("a", "root"), root)
    talk(local, root, local.read(events(1, 12), {"at": 2}, 0))
    other = QuerySet.of([wr.Query("more", wr.tumbling(4), ["sum(x)"])], "t", COLUMNS)
    root = Node("root", None, ("a",), 2, disk, other)
    assert root.query_set is not None
    assert [query.name for query in root.query_set.queries] == ["more"]
    assert root.query_set.version == 3
    with pytest.raises(QueryError, match="this spool belongs to a tree whose lateness is 0, not 5"):
        Node("root", None, ("a",), 3, disk, QuerySet.of([COUNTED], "t", COLUMNS, lateness=5))


def test_a_query_begins_after_what_a_node_left_that_has_gone_without_it() -> None:
    """Its slices are cut by the edges of before, and would be put into windows where their events are not."""
    root = root_of("a", "b", timeout=5 * AGAIN)
    a, b = welcomed(Node("a", "root"), root), welcomed(Node("b", "root"), root)
    talk(b, root, b.read(events(2), {"at": 1}, 0))
    talk(a, root, a.read(events(1, 37, 38), {"at": 3}, 0))
    talk(a, root, a.leave(0))
    talk(a, root, a.tick(AGAIN))
    assert a.left
    talk(b, root, b.receive("root", dict(added(root, wr.Query("more", wr.tumbling(4), ["count()"])))["b"], 0))
    assert root.query_set is not None
    assert root.query_set.pending == ()
    assert dict(root.query_set.since) == {"more": 39}


def silenced(*windows: wr.Query) -> tuple[Node, Node, Node]:
    """A root that has begun queries without a child, which has read on by the plan of before."""
    root = root_of("a", "b", timeout=5 * AGAIN)
    a, b = welcomed(Node("a", "root"), root), welcomed(Node("b", "root"), root)
    talk(b, root, b.read(events(2), {"at": 1}, 0))
    talk(a, root, a.read(events(1), {"at": 1}, 0))
    for now in range(0, 10 * AGAIN, AGAIN):
        talk(a, root, a.tick(now), now)
        root.tick(now)
    assert root.status()["children"]["b"]["state"] == "silent"
    for query in windows:
        plan = dict(added(root, query))["a"]
        talk(a, root, a.receive("root", plan, 0))
    return root, a, b


def test_a_query_begins_again_if_a_node_comes_back_that_has_gone_on_without_it() -> None:
    root, a, b = silenced(wr.Query("more", wr.tumbling(4), ["count()"]))
    assert root.query_set is not None
    assert (dict(root.query_set.since), root.query_set.pending) == ({"more": 3}, ())
    told = talk(a, root, a.read(events(5, 9), {"at": 3}, 0))  # the window from 4 is said
    out = b.read(events(12, 21, 38), {"at": 4}, 0)  # by tens, as it was asked
    told += talk(b, root, out, 11 * AGAIN)
    assert root.notes[-1] == "more begins again: b comes with events that were cut without it"
    talk(b, root, b.tick(12 * AGAIN), 12 * AGAIN)  # and hears the plan
    talk(b, root, b.tick(14 * AGAIN), 14 * AGAIN)
    assert (dict(root.query_set.since), root.query_set.pending) == ({"more": 39}, ())
    told += talk(a, root, a.read(events(39, 40, 80), {"at": 6}, 0))
    told += talk(b, root, b.read(events(41, 80), {"at": 6}, 0))
    more = [row for batch in told for row in batch.tables["results"].to_dicts() if row["query"] == "more"]  # type: ignore[union-attr]
    assert [(row["window_start"], row["count()"]) for row in more] == [(4, 1), (40, 2)]


def test_a_query_does_not_begin_again_because_of_nodes_that_come_to_others() -> None:
    root = root_of("middle", joins=True)
    middle = welcomed(Node("middle", "root", ("a", "late"), 1, MemoryStore(), joins=True), root)
    a = welcomed(Node("a", "middle", life=1), middle, root)

    def pass_on(name: str, out: Out) -> None:
        for _, message in out:
            for to, answer in middle.receive(name, message, 0):
                if to == "root":
                    talk(middle, root, [(to, answer)])

    pass_on("a", a.read(events(1, 12), {"at": 2}, 0))
    plan = dict(added(root, wr.Query("more", wr.tumbling(4), ["count()"])))["middle"]
    plans = middle.receive("root", plan, 0)
    talk(middle, root, [one for one in plans if one[0] == "root"])
    pass_on("a", a.receive("middle", dict(plans)["a"], 0))
    assert root.query_set is not None
    assert (root.query_set.pending, dict(root.query_set.since)) == ((), {"more": 13})
    pass_on("a", a.read(events(25), {"at": 3}, 0))
    again = welcomed(Node("a", "middle", life=2), middle, root)
    pass_on("a", again.read(events(12, 25, 26), {"at": 4}, 0))
    for name in ("late", "new"):
        new = welcomed(Node(name, "middle"), middle, root)
        pass_on(name, new.read(events(30), {"at": 1}, 0))
    welcomed(direct := Node("direct", "root"), root)
    talk(direct, root, direct.read(events(30), {"at": 1}, 0))
    assert (root.query_set.pending, dict(root.query_set.since)) == ((), {"more": 13})


def test_an_intermediate_node_whose_children_have_left_holds_no_query_and_no_watermark_back() -> None:
    root = root_of("middle", "b")
    middle = welcomed(Node("middle", "root", ("a",), 1, MemoryStore()), root)
    a, b = welcomed(Node("a", "middle"), middle, root), welcomed(Node("b", "root"), root)
    sent = [one for _, batch in a.read(events(1, 12), {"at": 2}, 0) for one in middle.receive("a", batch, 0)]
    a.receive("middle", sent[0][1], 0)
    talk(middle, root, sent[1:])
    out = [one for _, batch in a.leave(0) for one in middle.receive("a", batch, 0)]
    out += [one for one in middle.receive("a", Leave("a", 0), 0) if one[0] == "root"]
    talk(middle, root, [one for one in out if one[0] == "root"])
    assert root.status()["children"]["middle"]["state"] == "idle"
    assert counts(talk(b, root, b.read(events(30), {"at": 1}, 0))) == [1, 1]
    plans = dict(added(root, wr.Query("more", wr.tumbling(4), ["sum(x)"])))
    for machine in (middle, b):
        talk(machine, root, machine.receive("root", plans[machine.name], 0))
    assert root.query_set is not None
    assert root.query_set.pending == ()


def test_a_root_that_crashes_among_its_changes_makes_them_all() -> None:
    asked, other = (QuerySet.of([query], "t", COLUMNS) for query in (COUNTED, QUERIES[0]))

    class Breaks(MemoryStore):
        left = 99

        def commit(self, put: dict[str, bytes], delete: Any) -> None:
            self.left -= 1
            if self.left < 0:
                raise OSError("power is off")
            super().commit(put, delete)

    disk = Breaks()
    welcomed(Node("a", "root"), Node("root", None, ("a",), 1, disk, asked))
    for left in range(5):
        disk.left = left
        with contextlib.suppress(OSError):
            Node("root", None, ("a",), 2, disk, other)
    disk.left = 99
    root = Node("root", None, ("a",), 3, disk, other)
    assert root.query_set is not None
    assert root.query_set.queries == other.queries


# --- what is bounded ------------------------------------------------------------------------------------------------


def test_a_parent_that_is_slow_slows_its_grandchildren_down() -> None:
    root = root_of("middle")
    middle = welcomed(Node("middle", "root", ("a",), 1, MemoryStore()), root)
    local = welcomed(Node("a", "middle"), middle, root)
    made: Out = []
    at = 0
    while local.mark is not None:
        at += 1
        for _, batch in local.read(events(10 * at), {"at": at}, 0):
            for to, message in middle.receive("a", batch, 0):
                if to == "a":
                    local.receive("middle", message, 0)
                else:
                    made.append((to, message))
        assert at < 4 * WINDOW
    acks: Out = []
    for to, batch in made:
        for _, answer in root.receive("middle", batch, 0):
            acks += [one for one in middle.receive("root", answer, 0) if one[0] == "a"] if to == "root" else []
    for _, ack in acks:
        local.receive("middle", ack, 0)
    assert local.mark == {"at": at}


def test_a_long_slice_of_many_reads_needs_no_more_room_than_a_short_one() -> None:
    root = root_of("a")
    local = welcomed(Node("a", "root"), root)
    for at in range(1000):
        talk(local, root, local.read(events(at // 200), {"at": at + 1}, 0))
    assert local.as_local.reader is not None
    assert len(local.as_local.reader._chunks) == 1
    talk(local, root, local.read(events(12), {"at": 1001}, 0))
    assert local.confirmed == {"at": 1000}
    assert len(local._window.deletable) <= 1


# --- what cannot be -------------------------------------------------------------------------------------------------


def test_a_process_that_another_one_of_its_name_has_overtaken_is_told_so() -> None:
    """What it has read meanwhile has the numbers of the other's batches, and would be taken for theirs."""
    root = root_of("a")
    first = welcomed(Node("a", "root", life=5), root)
    second = welcomed(Node("a", "root", life=9), root)
    talk(second, root, second.read(events(1, 12), {"at": 2}, 0))
    first.read(events(3, 13), {"at": 2}, 0)
    welcomed(first, root)  # its connection is opened again
    assert first.refused == "another process called 'a' has come since; give one of them another name"
    talk(second, root, second.read(events(25), {"at": 3}, 0))
    assert root.status()["children"]["a"]["batches"] == 2


def test_a_hello_that_comes_after_its_life_is_over_changes_nothing() -> None:
    root = root_of("a")
    first, second = welcomed(Node("a", "root", life=5), root), Node("a", "root", life=9)
    ((_, of_second),) = second.start(0)
    welcomed(second, root)
    hellos = [*(message for _, message in first.start(0)), Hello("a", 7), of_second]
    answers = [answer for hello in hellos for _, answer in root.receive("a", hello, 0)]
    assert answers[:2] == [Offer(5, 3), Offer(7, 3)]
    assert isinstance(answers[2], Welcome)
    talk(second, root, second.read(events(1, 12), {"at": 2}, 0))
    assert root.status()["children"]["a"]["batches"] == 1


def test_two_lives_that_are_offered_the_same_epoch_do_not_both_have_it() -> None:
    root = root_of("a")
    welcomed(Node("a", "root", life=1), root)
    lives = [Node("a", "root", life=life) for life in (2, 3)]
    offers = [root.receive("a", node.start(0)[0][1], 0)[0][1] for node in lives]
    hellos = [node.receive("root", offer, 0)[0][1] for node, offer in zip(lives, offers, strict=True)]
    answers = [root.receive("a", hello, 0)[0][1] for hello in hellos]
    assert (offers, answers[1]) == ([Offer(2, 2), Offer(3, 2)], Offer(3, 3))
    assert isinstance(answers[0], Welcome)


def test_a_root_counts_its_lives_so_that_no_two_have_a_request_in_common() -> None:
    disk, asked = MemoryStore(), QuerySet.of([COUNTED], "t", COLUMNS)
    assert [Node("root", None, ("a",), 7, disk, asked).epoch for _ in range(3)] == [1, 2, 3]


def test_a_child_that_its_parent_is_not_configured_with_any_more_holds_nothing_back() -> None:
    disk, asked = MemoryStore(), QuerySet.of([COUNTED], "t", COLUMNS)
    root = Node("root", None, ("a", "b"), 1, disk, asked)
    a = welcomed(Node("a", "root"), root)
    b = welcomed(Node("b", "root"), root)
    talk(a, root, a.read(events(1, 12), {"at": 2}, 0))
    root = Node("root", None, ("a",), 2, disk, asked)
    assert root.status()["children"]["b"]["state"] == "left"
    assert counts([message for _, message in root.start(0)]) == [1]
    welcomed(b, root)
    assert b.refused == "root has no child 'b'"


def test_events_without_a_time_are_counted_once_though_they_are_read_again() -> None:
    asked = QuerySet.of([COUNTED], "t", COLUMNS, bad_events="drop")
    root = Node("root", None, ("a",), 1, MemoryStore(), asked)
    several = pl.DataFrame({"t": [1, 12, None], "k": ["a"] * 3, "x": [1] * 3}, schema=COLUMNS)
    local = welcomed(Node("a", "root", life=1), root)
    talk(local, root, local.read(several, {"at": 3}, 0))
    again = welcomed(Node("a", "root", life=2), root)
    again.read(several, {"at": 3}, 0)
    assert again.status()["events"]["left_out"] == 1


def test_a_node_refuses_events_beyond_64_bits_or_counts_them_and_goes_on() -> None:
    product = wr.Query("q", wr.tumbling(10), "sum(x * x)")
    large = pl.DataFrame({"t": [1, 2, 12], "k": ["a"] * 3, "x": [3, 4_000_000_000, 1]}, schema=COLUMNS)
    for bad_events in ("raise", "drop"):
        asked = QuerySet.of([product], "t", COLUMNS, bad_events=bad_events)
        root = Node("root", None, ("a",), 1, MemoryStore(), asked)
        local = welcomed(Node("a", "root"), root)
        if bad_events == "raise":
            with pytest.raises(
                InputError, match=r"'q': sum\(x \* x\): x \* x does not fit into 64 bits in 1 of 3 events"
            ):
                local.read(large, {"at": 3}, 0)
        else:
            talk(local, root, local.read(large, {"at": 3}, 0))
            assert local.status()["events"]["left_out"] == 1


def test_a_source_that_has_lost_events_is_an_error() -> None:
    root = root_of("a")
    local = welcomed(Node("a", "root", life=1), root)
    talk(local, root, local.read(events(1, 12, 13), {"at": 3}, 0))
    again = welcomed(Node("a", "root", life=2), root)
    with pytest.raises(InputError, match="ends before what it had"):
        again.read(events(1, 12), {"at": 2}, 0, last=True)


def test_a_node_that_had_ended_reads_again_for_a_parent_that_has_lost_everything() -> None:
    local = welcomed(Node("a", "root"), root := root_of("a"))
    talk(local, root, local.read(events(1), {"at": 1}, 0, last=True))
    assert local.done
    welcomed(local, root := root_of("a"))
    assert local.mark == {}
    assert counts(talk(local, root, local.read(events(1), {"at": 1}, 0, last=True))) == [1]


def test_a_refusal_outlives_a_crash_of_the_parent() -> None:
    """What the others' watermark has said meanwhile would else be said under the same number, and otherwise."""
    disk, asked = MemoryStore(), QuerySet.of([COUNTED], "t", COLUMNS)
    root = Node("root", None, ("a", "b"), 1, disk, asked)
    a = welcomed(Node("a", "root"), root)
    welcomed(Node("b", "root"), root)
    talk(a, root, a.read(events(1, 12), {"at": 2}, 0))
    bad = Batch("b", 0, 1, {}, 5, 1, 0, 0, {}, {"by () on t": pl.DataFrame({"slice_start": ["0"]})})
    assert counts([message for to, message in root.receive("b", bad, 0) if to == SINK]) == [1]
    again = Node("root", None, ("a", "b"), 2, disk, asked)
    assert counts([message for _, message in again.start(0)]) == [1]


@pytest.mark.parametrize(
    ("query", "columns", "reason"),
    [
        (wr.Query("q", wr.tumbling(4), ["count()"], distinct_on="x"), COLUMNS, "no node sees the repeats of all"),
        (wr.Query("q", wr.tumbling(4), ["count()"], time="x"), COLUMNS, "a tree has one time, a column of the events"),
        (wr.Query("q", wr.tumbling(4), ["sum(y)"]), COLUMNS, "y"),
        (COUNTED, {**COLUMNS, "node": pl.String()}, "the column 'node' says which node an event came to"),
    ],
)
def test_what_a_tree_cannot_do_is_refused(query: wr.Query, columns: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(QueryError, match=reason):
        QuerySet.of([query], "t", columns)


def test_an_event_that_several_groups_leave_out_is_late_once() -> None:
    queries = [
        wr.Query("each", wr.tumbling(10), ["count()"], by="k"),
        wr.Query("all", wr.tumbling(20), ["count()"]),
        wr.Query("runs", wr.session(3), ["count()"], by="k"),
    ]
    root = Node("root", None, ("a",), 1, MemoryStore(), QuerySet.of(queries, "t", COLUMNS, lateness=0), joins=True)
    first = welcomed(Node("a", "root"), root)
    rows = {"k": "x", "x": 1.0, "y": 0}
    talk(first, root, first.read(pl.DataFrame([{"t": 100, **rows}], schema=COLUMNS), {"count": 1}, 0))
    second = welcomed(Node("b", "root"), root)
    late = pl.DataFrame([{"t": time, **rows} for time in (1, 2, 3, 42, 43)], schema=COLUMNS)
    talk(second, root, second.read(late, {"count": 5}, 0, True))
    assert {name: child["late"] for name, child in root.status()["children"].items()} == {"a": 0, "b": 5}
