"""A tree of processes over Flight: whatever is killed while events flow, the root says what one process says."""

from __future__ import annotations

import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
import yaml

from windrow.cli import main, trees
from windrow.cli.failures import Interrupted, Refused
from windrow.io.query_files import of_yaml
from windrow.nodes.process.lock import holder, locked
from windrow.nodes.process.result_sink import read_results
from windrow.nodes.process.tree import Member, Tree, read
from windrow.nodes.sources import source_of
from windrow.nodes.transport.client import ask
from windrow.nodes.transport.security import Address
from windrow.testing import differences, recompute

PATIENCE = 30.0  # seconds until a test that waits has failed
ASKED = """
queries:
- {name: tumbling, window: tumbling(1 second), aggregates: [count(), sum(value), median(value)], by: key}
- {name: sliding, window: "sliding(5 seconds, 2 seconds)", aggregates: [mean(value), last(value)]}
- {name: session, window: session(200 ms), aggregates: [count(), max(value)], by: key}
- {name: counting, window: counting(50), aggregates: sum(value)}
- {name: frames, window: frames(value > 30), aggregates: count(), by: key}
"""
QUERIES = of_yaml(ASKED, "queries").queries
AT_NODES = """
queries:
- {name: each, window: "counting(40, scope=node)", aggregates: [sum(value), median(value)]}
- {name: busy, window: "frames(value > 30, scope=overlap)", aggregates: [count(), last(value)], by: key}
- {name: nth, window: "punctuated(end=value > 40, scope=position)", aggregates: [count(), max(value)]}
"""  # found where the events are, with push_down

COUNTING = """
queries:
- {name: refined, window: counting(120), aggregates: [sum(value), last(value), median(value)]}
- {name: ahead, window: "counting(60, 20)", aggregates: [count(), max(value)], by: key}
"""  # whose ends nodes agree on


def until(holds: Callable[[], Any], what: str) -> None:
    """Wait for a condition."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"{what} has not come within {PATIENCE:.0f} seconds"
        time.sleep(0.01)


class Processes:
    """The nodes of a tree, each of which can be killed and started again."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._members = {member.name: member for member in tree}

    def start(self, *names: str) -> None:
        for name in names:
            self.begin(name)
        for name in names:
            until(lambda name=name: self.is_there(name), f"the start of {name}")

    def begin(self, name: str, elsewhere: str | None = None, python: Sequence[str] = ("-m", "windrow")) -> None:
        """Start a node below its parent, or elsewhere."""
        member = self._members[name]
        parent = self._members[elsewhere] if elsewhere else self.tree.parent(member)
        member.write(parent.status["address"] if parent else None, member.status.get("address"))
        command = [sys.executable, *python, "node", member.role, "--config", str(member.config)]
        with (member.folder / "log").open("ab") as log:
            environment = {**os.environ, "POLARS_MAX_THREADS": "1"}
            self.running[name] = subprocess.Popen(command, stderr=log, env=environment)

    def is_there(self, name: str) -> bool:
        process, said = self.running[name], self._members[name].status
        assert process.poll() is None or said.get("state") == "ended", self.log(name)
        return said.get("pid") == process.pid

    def kill(self, name: str) -> None:
        self.running[name].send_signal(signal.SIGKILL)
        assert self.running[name].wait() == -signal.SIGKILL

    def log(self, name: str) -> str:
        return (self._members[name].folder / "log").read_text()

    def status(self, name: str) -> dict[str, Any]:
        return self._members[name].status

    @property
    def accepted(self) -> int:
        """How many events the root has."""
        return sum(sum(child["events"].values()) for child in self.status("root").get("children", {}).values())

    def wait(self) -> None:
        """Until all have ended by themselves."""
        for name, process in self.running.items():
            assert process.wait(PATIENCE) == 0, self.log(name)

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait()


@pytest.fixture
def started() -> Iterator[Callable[[Tree], Processes]]:
    made: list[Processes] = []

    def make(tree: Tree) -> Processes:
        made.append(Processes(tree))
        return made[-1]

    yield make
    for one in made:
        one.end()


def tree_of(folder: Path, nodes: dict[str, Any], **more: Any) -> Tree:
    described = {**yaml.safe_load(ASKED), "time": "ts", "columns": "ts TIMESTAMP, key INT, value DOUBLE"}
    path = folder / "tree.yaml"
    path.write_text(yaml.safe_dump({**described, "lateness": "500 ms", "nodes": nodes, **more}))
    return read(path)


def events_of(member: Member, most: float = math.inf) -> list[dict[str, Any]]:
    """What the node's source gives, or as much of it as is wanted, read here."""
    source = source_of({**member.described["source"]["generator"], "kind": "generator", "speed": None}, member.name)
    rows: list[dict[str, Any]] = []
    while True:
        found = source.read(source.columns, 0)
        assert found is not None
        rows += found.events.with_columns(node=pl.lit(member.name)).to_dicts()
        if found.last or len(rows) >= most:
            return rows[: int(min(most, len(rows)))]


def test_whatever_is_killed_the_root_says_what_one_process_says(
    tmp_path: Path, started: Callable[[Tree], Processes], seed: int
) -> None:
    dice = random.Random(seed)
    made = {"rate": 30, "length": "20 seconds", "disorder": "400 ms", "keys": 2, "speed": 4}
    source = {"source": {"generator": made}}
    below = {"parent": "plant", **source}
    asked = yaml.safe_load(ASKED)["queries"] + yaml.safe_load(AT_NODES)["queries"]
    nodes = {"plant": {}, "north": below, "south": below, "west": source}
    tree = tree_of(tmp_path, nodes, queries=asked, push_down=True)
    rows = [row for member in tree if member.role == "local" for row in events_of(member)]
    processes = started(tree)
    processes.start("root")
    processes.start("plant", "west")
    processes.start("north", "south")
    victims = (dice.choice(["north", "south", "west"]), *dice.sample(["plant", "root"], 2))  # one with events first
    for share, name in zip((0.05, 0.15, dice.uniform(0.2, 0.35)), victims, strict=True):
        until(lambda share=share: processes.accepted >= share * len(rows), f"{share:.0%} of the events")
        processes.kill(name)
        assert processes.accepted < len(rows), "it was killed too late to mean anything"
        processes.start(name)
    processes.wait()

    rows.sort(key=lambda row: (row["ts"], row["node"]))
    queries = (*QUERIES, *of_yaml(AT_NODES, "queries").queries)
    told = recompute(rows, queries, time="ts", order_by=("node",))
    assert differences(read_results(tmp_path / "results").to_dicts(), told, queries) == []
    root = processes.status("root")
    assert (root["state"], processes.accepted) == ("ended", len(rows))
    assert [child["late"] for child in root["children"].values()] == [0, 0]
    assert json.loads((tmp_path / "spool/north/status.json").read_text())["events"]["acknowledged"] == len(rows) // 3


def test_whatever_is_killed_while_nodes_agree_on_windows_they_hold_what_they_hold_in_one_process(
    tmp_path: Path, started: Callable[[Tree], Processes], seed: int
) -> None:
    dice = random.Random(seed)
    made = {"rate": 40, "length": "16 seconds", "disorder": "400 ms", "keys": 2, "speed": 4}
    source = {"source": {"generator": made}}
    below = {"parent": "plant", **source}
    asked = yaml.safe_load(COUNTING)["queries"]
    nodes = {"plant": {}, "north": below, "south": below, "west": source}
    tree = tree_of(tmp_path, nodes, queries=asked, counting={"refined": "refine", "ahead": "async"})
    rows = [row for member in tree if member.role == "local" for row in events_of(member)]
    queries = of_yaml(COUNTING, "queries").queries
    rows.sort(key=lambda row: (row["ts"], row["node"]))
    told = recompute(rows, queries, time="ts", order_by=("node",))
    processes = started(tree)

    def agreed() -> int:
        """How many ends of windows nodes and the root have agreed on."""
        return sum(one["boundaries"] for one in processes.status("root").get("counting", {}).values())

    processes.start("root")
    processes.start("plant", "west")
    processes.start("north", "south")
    for count, name in ((4, dice.choice(["north", "south", "west"])), (dice.randint(10, 20), "root")):
        until(lambda count=count: agreed() >= count, f"that {count} ends are agreed on")
        processes.kill(name)
        assert processes.accepted < len(rows), "it was killed too late to mean anything"
        processes.start(name)
    processes.wait()
    assert differences(read_results(tmp_path / "results").to_dicts(), told, queries) == []
    root = processes.status("root")
    assert [child["late"] for child in root["children"].values()] == [0, 0]
    assert {one["scheme"] for one in root["counting"].values()} == {"refine", "async"}
    assert sum(one.get("blocks", 0) for one in root["counting"].values()) > 0


def test_a_node_that_is_moved_is_refused_by_name_and_goes_on_where_it_was(
    tmp_path: Path, started: Callable[[Tree], Processes]
) -> None:
    source = {"source": {"generator": {"rate": 30, "length": "12 seconds", "disorder": "400 ms", "speed": 4}}}
    below = {name: {"parent": parent, **source} for name, parent in (("a", "plant"), ("b", "plant"), ("c", "hall"))}
    tree = tree_of(tmp_path, {"plant": {}, "hall": {}, **below})
    for member in tree:
        if member.role != "local":
            object.__setattr__(member, "described", {**member.described, "joins": True})
    rows = [row for member in tree if member.role == "local" for row in events_of(member)]
    processes = started(tree)
    for names in (["root"], ["plant", "hall"], ["a"]):  # b and c come in the end, so that nobody ends before
        processes.start(*names)
    until(lambda: processes.status("plant")["children"].get("a", {}).get("events"), "events of a")
    for name, elsewhere, home in (("a", "hall", "plant"), ("plant", "hall", "root")):
        processes.kill(name)
        processes.begin(name, elsewhere)
        assert processes.running[name].wait(PATIENCE) == 2
        last = processes.log(name).splitlines()[-1]
        assert re.search(rf"no going on below .*: '{name}' belongs below '{home}', which it came to first", last)
        processes.start(name)
    processes.start("b", "c")
    processes.wait()
    rows.sort(key=lambda row: (row["ts"], row["node"]))
    told = recompute(rows, QUERIES, time="ts", order_by=("node",))
    assert differences(read_results(tmp_path / "results").to_dicts(), told, QUERIES) == []


def test_a_node_whose_clock_was_wrong_once_goes_on_when_it_is_right(
    tmp_path: Path, started: Callable[[Tree], Processes]
) -> None:
    tree = tree_of(tmp_path, {"north": {"source": {"generator": {"rate": 30, "length": "6 seconds", "speed": 4}}}})
    processes = started(tree)
    processes.start("root")
    wrong = "import time; now = time.time_ns; time.time_ns = lambda: now() + {}; from windrow.cli import main; main()"
    for years in (100, -40):
        processes.begin("north", python=("-c", wrong.format(years * 365 * 86_400 * 10**9)))
        until(lambda: processes.is_there("north") and processes.accepted, "events of the node")
        processes.kill("north")
    processes.start("north")
    processes.wait()
    found = read_results(tmp_path / "results")
    assert differences(found.to_dicts(), recompute(events_of(tree.members[1]), QUERIES, time="ts"), QUERIES) == []


# --- the command line -----------------------------------------------------------------------------------------------


def up(tree: Tree, then: Callable[[], None]) -> None:
    """`windrow tree up`, here, until something was done beside it; then it is told to end."""
    wrong: list[BaseException] = []
    is_up = threading.Event()
    is_up.set()

    def beside() -> None:
        try:
            then()
        except BaseException as error:
            wrong.append(error)
        if is_up.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=beside)
    thread.start()
    try:
        with pytest.raises(Interrupted, match=r"windrow tree up .*tree.yaml goes on from here"):
            trees.run(tree)
    finally:
        is_up.clear()
        thread.join()
    assert wrong == []
    for member in tree:
        with pytest.raises(ProcessLookupError):
            os.kill(member.status["pid"], 0)


def answered(folder: Path, query: str) -> int:
    """How many results there are of a query."""
    try:
        return read_results(folder).filter(pl.col("query") == query).height
    except (ValueError, FileNotFoundError):
        return 0


def test_a_tree_goes_up_is_asked_more_is_stopped_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def windrow(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main([*arguments])
        printed = capsys.readouterr()
        assert ended.value.code == 0, printed.err
        return printed.out

    made = {"rate": 50, "keys": 2, "speed": 5}
    tree = tree_of(tmp_path, {"north": {"source": {"generator": made}}})
    (tmp_path / "more.sql").write_text(
        "-- name: more\nSELECT count(*) AS n FROM events GROUP BY window(ts, '1 second')"
    )
    at, results = str(tmp_path / "tree.yaml"), tmp_path / "results"

    def ask_more() -> None:
        until(lambda: answered(results, "counting"), "results")
        assert windrow("tree", "query", "add", str(tmp_path / "more.sql"), "--tree", at) == "added more\n"
        until(lambda: answered(results, "more"), "results of the new query")
        root, north = json.loads(windrow("tree", "status", at, "--json"))
        assert root["queries"] == [*(query.name for query in QUERIES), "more"]
        assert (root["state"], north["state"], north["seen"]["state"]) == ("running", "running", "live")
        assert north["link"]["bytes_up"] > 1000
        assert windrow("tree", "query", "remove", "more", "--tree", at) == "removed more\n"

    up(tree, ask_more)
    files = str(results / "*.parquet")  # as every reader takes them by itself
    assert pl.read_parquet(files).filter(pl.col("query") == "more")["n"].min() is not None
    assert duckdb.sql(f"SELECT count(*) FROM '{files}' WHERE query = 'more' AND n > 0").fetchall()[0][0] > 0
    assert pq.read_table(results).num_rows == read_results(results).height
    assert windrow("tree", "status", at).splitlines()[1].split()[:2] == ["root", "stopped"]
    before = answered(results, "counting")
    up(tree, lambda: until(lambda: answered(results, "counting") > before, "more results"))
    rows = events_of(tree.members[1], 50 * answered(results, "counting"))
    told = recompute(rows, [QUERIES[3]], time="ts", order_by=("node",))
    found = read_results(results).filter(pl.col("query") == "counting")
    assert differences(found.to_dicts(), told, QUERIES) == []


def test_a_node_that_was_started_again_by_hand_is_stopped_with_its_tree(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, {"north": {"source": {"generator": {"rate": 20, "speed": 1}}}})
    north = tree.members[1]
    command = [sys.executable, "-m", "windrow", "node", "local", "--config", str(north.config)]

    def start_again() -> None:
        until(lambda: north.status.get("state") == "running", "the node")
        os.kill(north.status["pid"], signal.SIGKILL)
        until(lambda: holder(north.folder) is None, "its end")
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        threading.Thread(target=process.wait, daemon=True).start()
        until(lambda: north.status["pid"] == process.pid and north.status["state"] == "running", "it again")
        other = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (other.returncode, other.stdout) == (2, "")
        assert f"process {process.pid} already uses " in other.stderr

    up(tree, start_again)
    assert north.status["state"] == "stopped"


def test_a_tree_whose_node_cannot_start_ends_with_the_reason(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, {"north": {"source": "stdin"}})
    refused = rf"root: process {os.getpid()} already uses '.*/spool/root'; end it"
    with locked(tree.root.folder), pytest.raises(Refused, match=refused):
        trees.run(tree)


def test_what_has_ended_is_not_started_again_and_nothing_waits_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short, long = {"rate": 20, "length": "1 second"}, {"rate": 20, "speed": 1}
    nodes = {"plant": {}, "north": {"parent": "plant", "source": {"generator": short}}}
    tree = tree_of(tmp_path, {**nodes, "west": {"source": {"generator": long}}})
    plant, west = (next(member for member in tree if member.name == name) for name in ("plant", "west"))
    up(tree, lambda: until(lambda: plant.status.get("state") == "ended", "the end of the plant"))
    capsys.readouterr()
    before = west.status["pid"]
    up(tree, lambda: until(lambda: west.status["pid"] != before and west.status["link"]["connected"], "the west"))
    said = capsys.readouterr().err
    assert "north: all its events have come before" in said
    assert "north is back" not in said


def test_a_tree_that_has_ended_says_so_and_results_of_another_are_not_taken_for_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tree_of(tmp_path, {"north": {"source": {"generator": {"rate": 20, "length": "1 second"}}}})
    assert trees.run(tree) == 0
    assert trees.run(tree) == 0
    assert "tree.yaml have ended before; to begin anew, name another spool" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "spool")
    with pytest.raises(Refused, match=r"root: the spool of 'root' is behind results: '.*/results', which"):
        trees.run(tree)


def test_no_node_outlives_the_command_that_started_it(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, {"north": {"source": {"generator": {"rate": 20, "speed": 1}}}})
    command = [sys.executable, "-m", "windrow", "tree", "up", str(tree.path)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as running:
        until(lambda: all(member.status.get("state") == "running" for member in tree), "the tree")
        running.kill()
    until(lambda: all(member.status["state"] == "stopped" for member in tree), "the end of all")


# --- what an operator asks ------------------------------------------------------------------------------------------

WRONG = {  # texts, each with a part of the sentence that refuses it
    "SELECT key, count(*)oops n FROM events GROUP BY key, window(ts, '1 second')": "a comma is missing before oops",
    f"SELECT max({'(' * 5000}value{')' * 5000}) FROM events GROUP BY window(ts, '1 second')": "nested too deeply",
    f"SELECT max({' % '.join(['value'] * 500)}) FROM events GROUP BY window(ts, '1 second')": "nested too deeply",
    f"SELECT max({' % '.join(['key'] * 20)}) FROM events GROUP BY window(ts, '1 second')": "terms, and the limit is",
    "SELECT count(*) FROM events GROUP BY window(ts, '1 second')\ud800": "half of a character",
    "SELECT count(*) FROM events" + " " * 3_000_000: "characters, and the limit is 2,000,000",
    "queries: " + "[" * 5000: "nested too deeply",
    "queries: !!int x": "'x' is no int",
}


def test_an_operator_ends_no_root_and_children_are_served_while_it_plans(
    tmp_path: Path, started: Callable[[Tree], Processes]
) -> None:
    made = {"rate": 50, "keys": 2, "speed": 10}
    processes = started(tree_of(tmp_path, {"north": {"source": {"generator": made}}}))
    processes.start("root")
    processes.start("north")
    until(lambda: processes.accepted, "the first batch")
    address = Address.of(processes.status("root")["address"])

    for text, reason in WRONG.items():
        form = "yaml" if text.startswith("queries") else "sql"
        with pytest.raises(ValueError, match=reason):
            ask(address, "add", {"text": text, "format": form, "name": "more"})

    many = [
        f"SELECT avg(value + {number}) FROM events WHERE value > {number} GROUP BY window(ts, '{number} minutes')"
        for number in range(1, 301)
    ]
    asking = threading.Thread(target=ask, args=(address, "add", {"text": ";\n".join(many), "name": "many"}))
    asking.start()
    accepted, moved, longest = processes.accepted, time.monotonic(), 0.0
    while asking.is_alive():
        asking.join(0.01)
        if processes.accepted != accepted:
            accepted, moved = processes.accepted, time.monotonic()
        longest = max(longest, time.monotonic() - moved)
    until(lambda: len(processes.status("root")["queries"]) == len(QUERIES) + len(many), "the queries")
    until(lambda: processes.accepted > accepted, "another batch")
    assert longest < 5, "batches waited"
