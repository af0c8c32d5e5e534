"""A whole tree on one machine: `tree.yaml`, and the file of every node that follows from it.

    queries: queries.sql                   # the root's own fields, as in its node.yaml
    time: ts
    columns: ts TIMESTAMP, key STRING, value DOUBLE
    nodes:
      plant: {}                            # others name it as their parent: an intermediate node
      north: {parent: plant, source: {files: north/}}
      south: {source: {files: south/}}     # its parent is the root

The tree's directory (`spool`) has one for every node, with its `node.yaml`, its spool, its log and its `status.json`.
Everything is on the loopback interface, on ports that the system chooses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from windrow.io.yaml_files import Fields, Wrong, placed
from windrow.nodes.process.config import ASKED, ConfigError, Role, fields_of, node_of, source_from
from windrow.nodes.transport.security import NAMES, OPERATOR

ROOT = "root"
_ROOT = (*ASKED, "results", "feeds")
_SHARED = ("timeout", "max_ahead", "limits")
_NODE = ("parent", "source", "lateness", "idle", "timeout")


@dataclass(frozen=True)
class Member:
    """A node of the tree: what its file says but for its parent's address, which is known once that is there."""

    name: str
    role: Role
    parent: str | None
    folder: Path
    described: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.folder / "node.yaml"

    def write(self, parent: str | None, listen: str | None = None) -> None:
        """Write its file, with the address of its parent, and its own once that is known."""
        self.folder.mkdir(parents=True, exist_ok=True)
        places = {"parent": parent, "listen": listen and listen.partition("://")[2]}
        described = {"name": self.name, **self.described, **{word: place for word, place in places.items() if place}}
        text = yaml.safe_dump(described, sort_keys=False, allow_unicode=True)
        self.config.write_text(text, encoding="utf-8")

    @property
    def status(self) -> dict[str, Any]:
        """What it has last said of itself; nothing if it never has."""
        try:
            found = json.loads((self.folder / "status.json").read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Tree:
    """The nodes, parents before their children."""

    path: Path
    members: tuple[Member, ...]

    @property
    def root(self) -> Member:
        return self.members[0]

    def parent(self, member: Member) -> Member | None:
        return next((one for one in self.members if one.name == member.parent), None)

    @property
    def levels(self) -> list[list[Member]]:
        """The root, its children, theirs, and so on."""
        found = [[self.root]]
        while found[-1]:
            above = {member.name for member in found[-1]}
            found.append([member for member in self.members if member.parent in above])
        return found[:-1]

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members)


def read(path: Path) -> Tree:
    """Read a tree's file, and check every node's part of it."""
    given = fields_of(path, "windrow tree")
    with placed(str(path), ConfigError):
        return Tree(path, tuple(_members(given, path.parent.absolute())))


def _members(given: Fields, folder: Path) -> Iterator[Member]:
    given.check((*_ROOT, *_SHARED, "spool", "nodes"))
    nodes = given.get("nodes")
    if not isinstance(nodes, Fields) or not nodes:
        raise Wrong("it has no nodes; write nodes: and a line for each, north: {source: …}", given.lines.get("nodes"))
    spool = given.get("spool", "spool")
    if not isinstance(spool, str):
        raise Wrong(f"spool must be a directory, not {spool!r}", given.lines["spool"])
    parents = {name: _parent(name, one, nodes) for name, one in nodes.items()}
    shared = {word: _plain(given[word]) for word in _SHARED if word in given}
    listens = {"listen": "127.0.0.1:0"}

    def described(name: str) -> dict[str, Any]:
        children = [child for child, parent in parents.items() if parent == name]
        mine: dict[str, Any] = {"spool": ".", **shared}
        if name == ROOT:
            results = {"results": given.get("results", "results")}
            if isinstance(results["results"], str) and results["results"] != "-":
                results["results"] = str(folder / results["results"])
            asked = {word: _plain(given[word]) for word in _ROOT if word in given}
            if isinstance(asked.get("queries"), str) and (folder / asked["queries"]).is_file():
                asked["queries"] = str(folder / asked["queries"])
            return {**mine, **listens, "children": children, **asked, **results}
        own = {word: _plain(value) for word, value in nodes[name].items() if word != "parent"}
        if isinstance(own.get("source"), dict):
            own["source"] = source_from(own["source"], folder)
        return {**mine, "at_stop": "stay", **({**listens, "children": children} if children else {}), **own}

    piped: list[str] = []  # nodes that read this process's standard input
    for name in _from_the_top(parents):
        role: Role = ROOT if name == ROOT else "intermediate" if name in parents.values() else "local"  # type: ignore[assignment]
        member = Member(name, role, parents.get(name), folder / spool / name, described(name))
        _check(member, nodes.get(name, given), given, folder)
        if role == "local" and _is_piped(member.described["source"]):
            piped.append(name)
            if len(piped) > 1:
                both = " and ".join(piped)
                raise Wrong(f"{both} read the same standard input; only one node can", nodes.lines[name])
        yield member


def _parent(name: Any, one: Any, nodes: Fields) -> str:
    if not isinstance(name, str) or not NAMES.fullmatch(name) or name in (ROOT, OPERATOR):
        kept = f"not {ROOT} or {OPERATOR}"
        raise Wrong(f"a node cannot be called {name!r}; take letters, digits, _ . and -, {kept}", nodes.lines[name])
    if not isinstance(one, Fields):
        raise Wrong(f"node {name!r} must have fields: {', '.join(_NODE)}", nodes.lines[name])
    one.check(_NODE)
    parent = one.get("parent", ROOT)
    if parent != ROOT and parent not in nodes:
        raise Wrong(f"node {name!r}: there is no node {parent!r} to be its parent", one.lines["parent"])
    return str(parent)


def _from_the_top(parents: Mapping[str, str]) -> list[str]:
    found = [ROOT]
    for name in found:
        found += [child for child, parent in parents.items() if parent == name]
    lost = sorted(set(parents) - set(found))
    if lost:
        raise Wrong(f"the nodes {', '.join(lost)} are parents of each other, and have no way to the root")
    return found


def _check(member: Member, at: Fields, given: Fields, folder: Path) -> None:
    """Read what will be the node's file, so that a mistake is told before anything starts, and where it stands."""
    fields = Fields(
        {"name": member.name, **({"parent": "grpc://127.0.0.1:1"} if member.parent else {}), **member.described}
    )
    fields.line = at.line
    fields.lines = dict.fromkeys(fields, at.line) | {
        word: line for source in (given, at) for word, line in source.lines.items() if word in fields
    }
    if isinstance(fields.get("queries"), list):
        fields["queries"] = given["queries"]  # with the lines of what is in them
    for word in ("limits", "source"):
        if isinstance(at.get(word), Fields):
            fields[word] = at[word]
    try:
        node_of(fields, member.role, folder)
    except Wrong as error:
        raise Wrong(f"node {member.name!r}: {error}", error.line) from error


def _is_piped(source: Mapping[str, Any] | str) -> bool:
    return source == "stdin" or (not isinstance(source, str) and ("stdin" in source or source.get("kind") == "stdin"))


def _plain(value: Any) -> Any:
    """As YAML can write it."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value
