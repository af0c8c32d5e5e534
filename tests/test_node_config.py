"""node.yaml and tree.yaml: what they mean, and what is said of what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from windrow.cli import main
from windrow.core.plan.options import StreamOptions
from windrow.nodes.process import config, tree
from windrow.nodes.process.config import ConfigError
from windrow.nodes.transport.security import AccessError, Address

LOCAL = """
name: north
parent: grpc://127.0.0.1:8815
source: {files: events, growing: true}
"""
INNER = """
name: plant
parent: grpc://127.0.0.1:8815
listen: 127.0.0.1:0
spool: spool
"""
ROOT = """
name: root
listen: localhost:8815
spool: spool
queries: SELECT key, avg(value) AS mean FROM events GROUP BY key, window(ts, '1 second')
time: ts
columns: ts TIMESTAMP, key STRING, value DOUBLE
"""
TREE = """
queries: SELECT count(*) AS n FROM events GROUP BY window(ts, '1 second')
time: ts
columns: ts TIMESTAMP
nodes:
  plant: {}
  north: {parent: plant, source: {files: north}}
  south: {source: {files: south}}
"""


def read(folder: Path, role: Any, text: str) -> config.NodeConfig:
    (folder / "node.yaml").write_text(text)
    return config.read(folder / "node.yaml", role)


def test_a_local_node(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-secret\n")
    (tmp_path / "token").chmod(0o600)
    more = "token_file: token\nlateness: 2 seconds\nidle: 1 minute\nspool: here\nmax_ahead: never\nat_stop: stay\n"
    found = read(tmp_path, "local", LOCAL + more)
    assert (found.name, found.role, str(found.parent)) == ("north", "local", "grpc://127.0.0.1:8815")
    assert found.source == {"files": str(tmp_path / "events"), "growing": True}
    assert (found.token, found.lateness, found.idle, found.max_ahead) == ("a-secret", 2_000_000, 60_000_000, None)
    assert (found.spool, found.at_stop) == (tmp_path / "here", "stay")


def test_an_intermediate_node(tmp_path: Path) -> None:
    found = read(tmp_path, "intermediate", INNER)
    assert (found.children, found.joins, found.at_stop) == ((), True, "stay")
    found = read(tmp_path, "intermediate", f"{INNER}children: [a, b]\ntimeout: 30 seconds\nlimits: {{rate: 50}}\n")
    assert (found.children, found.joins, found.timeout) == (("a", "b"), False, 30_000_000)
    assert (found.limits.rate, found.limits.message) == (50, 256 << 20)


def test_the_root(tmp_path: Path) -> None:
    more = "lateness: 5 seconds\norder_by: key\npush_down: true\nlocal_keys: [key]\n"
    found = read(tmp_path, "root", ROOT + more)
    assert found.query_set is not None
    assert [query.name for query in found.query_set.queries] == ["q1"]
    assert found.query_set.columns == (("ts", pl.Datetime("us", "UTC")), ("key", pl.String()), ("value", pl.Float64()))
    assert (found.query_set.options.lateness, found.query_set.options.order_by) == ("5 seconds", ("key",))
    assert (found.query_set.push_down, found.query_set.local_keys) == (True, ("key",))
    assert (found.results, found.feeds) == (str(tmp_path / "results"), "results")


def test_queries_may_be_a_file_with_options_of_its_own(tmp_path: Path) -> None:
    text = "time: ts\nlateness: 3 seconds\nqueries: [{name: n, window: tumbling(1 second), aggregates: count()}]\n"
    (tmp_path / "asked.yaml").write_text(text)
    lines = [line for line in ROOT.splitlines() if not line.startswith(("queries", "time"))]
    found = read(tmp_path, "root", "\n".join([*lines, "queries: asked.yaml", "results: '-'"]))
    assert found.query_set is not None
    assert (found.query_set.options, found.results) == (StreamOptions("ts", "3 seconds"), "-")


@pytest.mark.parametrize(
    ("role", "text", "reason"),
    [
        ("local", "", "it must have fields, like name: north"),
        ("local", "name: [", "this is not YAML"),
        ("local", "name: a", "line 1: it has no source; write source: and where its events come from"),
        ("local", "name: a\nsource: stdin", "line 1: it has no parent; write parent: grpc://host:port"),
        ("local", "source: stdin", "line 1: it has no name: every node has one"),
        ("local", "name: a/b\nsource: stdin", "line 1: name 'a/b': take letters, digits"),
        (
            "local",
            LOCAL.replace("growing", "groing"),
            "line 4: source: files has no option 'groing'; did you mean 'growing'",
        ),
        (
            "local",
            LOCAL.replace("files: events", "file: x"),
            "line 4: source: say of which one kind it is; did you mean",
        ),
        ("local", LOCAL + "listen: 127.0.0.1:1", "line 5: 'listen' is for a node that is intermediate, not local"),
        ("local", LOCAL + "nmae: x", "line 5: there is no field 'nmae'; did you mean 'name'?"),
        ("local", LOCAL + "idle: 5", "line 5: idle must be a time such as 30 seconds, not 5"),
        ("local", LOCAL + "idle: soon", "line 5: idle 'soon' is not a duration"),
        ("local", LOCAL + "at_stop: dance", "line 5: at_stop must be leave or stay, not 'dance'"),
        ("local", LOCAL + "token: a\ntoken_file: b", "line 5: token and token_file are both there"),
        ("local", LOCAL + "token_file: b", "line 5: token_file: the token file .* cannot be read"),
        (
            "local",
            "name: a\nsource: stdin\nparent: here",
            "line 3: parent: 'here' is no address; write it like grpc://",
        ),
        (
            "intermediate",
            INNER + "limits: {message: 0}",
            "line 6: message must be a whole number from 1 to 268,435,456",
        ),
        ("intermediate", INNER + "limits: 5", "line 6: limits must have fields: message"),
        ("intermediate", INNER + "tls: {pem: x}", "line 6: there is no field 'pem'"),
        ("intermediate", INNER + "children: a", r"line 6: children must be a list of names, like \[a, b\]"),
        ("intermediate", INNER + "children: [a, operator]", "line 6: children: no node is called operator"),
        ("root", ROOT + "children: [root]", "line 8: children: 'root' is this node itself; take another name"),
        ("intermediate", INNER + "tokens: none", "there is no file '.*none' of tokens"),
        ("intermediate", INNER.replace("spool: spool", ""), "line 2: it has no spool; write spool: and a directory"),
        ("intermediate", INNER + "queries: x", "line 6: 'queries' is for a node that is root, not intermediate"),
        ("root", ROOT.replace("time: ts", "time: at"), "line 6: time 'at' is none of the columns ts, key, value"),
        ("root", ROOT.replace("key STRING", "key WORD"), "line 7: columns: .*WORD"),
        ("root", ROOT.replace("avg(value)", "avg(price)"), "line 5: queries: .*price"),
        ("root", ROOT.replace("SELECT", "SELEKT"), "line 5: queries: "),
        ("root", ROOT + "lateness: soon", "line 8: lateness 'soon' is not a duration"),
        ("root", ROOT + "lateness: -1 second", "line 8: lateness must not be negative"),
        ("root", ROOT + "order_by: 5", "line 8: order_by must be a column or a list of columns"),
        ("root", ROOT + "order_by: car", "line 8: order_by: there is no column 'car'"),
        ("root", ROOT + "bad_events: eat", "line 8: bad_events must be raise or drop, not 'eat'"),
        ("root", ROOT + "results: node.yaml", "line 8: results 'node.yaml' is a file; name a directory"),
        ("root", ROOT.replace("name: root", "name: operator"), "line 2: name 'operator': take .*, not operator"),
        ("root", ROOT + "local_keys: [car]", "line 8: local_keys: .*'car'"),
        ("root", ROOT + "feeds: cats", "line 8: feeds must be results or slices, not 'cats'"),
        ("root", ROOT + "parent: grpc://a:1", "line 8: 'parent' is for a node that is local, not root"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, role: Any, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        read(tmp_path, role, text)
    assert str(caught.value).startswith(str(tmp_path / "node.yaml"))


@pytest.mark.parametrize("text", ["host", "host:99999", "http://host:1", "grpc://[::1:5", "a b:1", ""])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(AccessError, match="is no address"):
        Address.of(text)


@pytest.mark.parametrize(
    ("text", "is_loopback"),
    [("localhost:1", True), ("127.8.8.8:1", True), ("grpc://[::1]:1", True), ("0.0.0.0:1", False), ("plant:1", False)],
)
def test_what_loopback_is(text: str, is_loopback: bool) -> None:
    assert Address.of(text).is_loopback == is_loopback
    assert Address.of(str(Address.of(text))) == Address.of(text)


# --- trees ----------------------------------------------------------------------------------------------------------


def read_tree(folder: Path, text: str) -> tree.Tree:
    (folder / "tree.yaml").write_text(text)
    return tree.read(folder / "tree.yaml")


def test_a_tree_makes_the_file_of_every_node(tmp_path: Path) -> None:
    found = read_tree(tmp_path, TREE + "timeout: 30 seconds\n")
    assert [(one.name, one.role, one.parent) for one in found] == [
        ("root", "root", None),
        ("plant", "intermediate", "root"),
        ("south", "local", "root"),
        ("north", "local", "plant"),
    ]
    assert [[one.name for one in level] for level in found.levels] == [["root"], ["plant", "south"], ["north"]]
    for one in found:
        one.write(
            None if one.parent is None else "grpc://127.0.0.1:7", "grpc://127.0.0.1:9" if one.role != "local" else None
        )
        node = config.read(one.config, one.role)
        assert (node.name, node.spool, node.timeout) == (one.name, one.folder, 30_000_000)
        if one.role == "local":
            assert node.source == {"files": str(tmp_path / one.name)}
            assert node.at_stop == "stay"
    assert config.read(found.root.config, "root").children == ("plant", "south")
    assert yaml.safe_load(found.root.config.read_text())["listen"] == "127.0.0.1:9"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TREE.partition("nodes")[0], "it has no nodes; write nodes:"),
        (
            TREE + "  west: {parent: moon, source: stdin}",
            "line 9: node 'west': there is no node 'moon' to be its parent",
        ),
        (TREE + "  west: {sauce: stdin}", "line 9: there is no field 'sauce'; did you mean 'source'?"),
        (TREE + "  west: {lateness: x, source: stdin}", "line 9: node 'west': lateness 'x' is not a duration"),
        (TREE + "  west: {source: {generator: {rate: -1}}}", "line 9: node 'west': source: .*rate"),
        (TREE + "  west: {}", "line 9: node 'west': it has no source"),
        (TREE + "  root: {source: stdin}", "line 9: a node cannot be called 'root'"),
        (TREE + "  operator: {source: stdin}", "line 9: a node cannot be called 'operator'"),
        (TREE + "results: 5", "line 9: node 'root': results must be text, not 5"),
        (TREE + "  west: {source: stdin}\n  east: {source: {kind: stdin}}", "line 10: west and east read the same"),
        (TREE + "  a: {parent: b}\n  b: {parent: a}", "the nodes a, b are parents of each other"),
        (TREE.replace("time: ts", "time: at"), "line 3: node 'root': time 'at' is none of the columns ts"),
        (TREE + "colour: red", "line 9: there is no field 'colour'"),
    ],
)
def test_what_is_wrong_with_a_tree_is_said_before_anything_starts(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_tree(tmp_path, text)
    assert not (tmp_path / "spool").exists()


def test_what_travels_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = """
queries: |
  -- name: busy
  SELECT key, count(*) AS n FROM events GROUP BY key, window(ts, '10 seconds');
  -- name: every
  SELECT avg(value) AS mean FROM events GROUP BY count_window(100)
time: ts
columns: ts TIMESTAMP, key INT, value DOUBLE
nodes: {north: {source: stdin}}
"""
    (tmp_path / "tree.yaml").write_text(asked)
    with pytest.raises(SystemExit) as ended:
        main(["tree", "explain", str(tmp_path / "tree.yaml")])
    assert ended.value.code == 0
    busy, every = capsys.readouterr().out.splitlines()
    assert busy.split(maxsplit=2) == ["busy", "slices", "merged on the way, of by (key) on ts"]
    assert every.startswith("every  events: ts, node, value")
