"""A whole tree on one machine: `tree.yaml`, and the file of every node that follows from it.

    queries: queries.sql                   # the root's own fields, as in its node.yaml
    time: ts
    columns: ts TIMESTAMP, key STRING, value DOUBLE
    nodes:
      plant: {}                            # others name it as their parent: an intermediate node
      north: {parent: plant, source: {files: north/}}
      south: {source: {files: south/}}     # its parent is the root

The tree's directory (`spool`) has one for every node, with its `node.yaml`, log store, log and `status.json`.
Everything is on the loopback interface, on ports that the system chooses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from windrow.io.atomic import replacing
from windrow.io.private import Secret, make_folder
from windrow.io.yaml_files import Fields, Wrong, is_text, must, placed
from windrow.nodes.process.config import QUERY_SET, ConfigError, Role, fields_of, node_of, source_from
from windrow.nodes.transport.security import NAMES, OPERATOR

ROOT = "root"
_ROOT = (*QUERY_SET, "results", "feeds")
_SHARED = ("timeout", "max_ahead", "limits")
_OWN = ("source", "lateness", "idle", "timeout")
_NODE = ("parent", *_OWN)
PASSWORD = "WINDROW_PASSWORD"  # in the environment of a node: the password of its source


@dataclass(frozen=True)
class Member:
    """A node of the tree: what its file says but for its parent's address, which is known once that is there."""

    name: str
    role: Role
    parent: str | None
    folder: Path
    described: Mapping[str, Any] = field(default_factory=dict)
    password: Secret | None = None  # of its source, as tree.yaml has it: the node gets it as PASSWORD, not in its file

    @property
    def config(self) -> Path:
        return self.folder / "node.yaml"

    def write(self, parent: str | None, listen: str | None = None) -> None:
        """Write its file, with the address of its parent, and its own once that is known."""
        make_folder(self.folder)
        addresses = {"parent": parent, "listen": listen and listen.partition("://")[2]}
        described = {"name": self.name, **self.described, **{word: text for word, text in addresses.items() if text}}
        text = yaml.safe_dump(described, sort_keys=False, allow_unicode=True)
        with replacing(self.config, durable=False) as file:
            file.write(text.encode())

    @property
    def environment(self) -> dict[str, str]:
        """What its process has to have in its environment."""
        return {} if self.password is None else {PASSWORD: self.password}

    @property
    def status(self) -> dict[str, Any]:
        """The status that it has written last; nothing if there is none."""
        try:
            status = json.loads((self.folder / "status.json").read_text())
        except (OSError, ValueError):
            return {}
        return status if isinstance(status, dict) else {}


@dataclass(frozen=True)
class Tree:
    """The nodes, parents before their children."""

    path: Path
    members: tuple[Member, ...]

    @property
    def root(self) -> Member:
        return self.members[0]

    def parent(self, member: Member) -> Member | None:
        return next((other for other in self.members if other.name == member.parent), None)

    @property
    def levels(self) -> list[list[Member]]:
        """The root, its children, theirs, and so on."""
        levels = [[self.root]]
        while levels[-1]:
            above = {member.name for member in levels[-1]}
            levels.append([member for member in self.members if member.parent in above])
        return levels[:-1]

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members)


def read(path: Path) -> Tree:
    """Read a tree's file, and check every node's part of it."""
    given = fields_of(path, "windrow tree", path.parent.absolute())
    with placed(str(path), ConfigError):
        return Tree(path, tuple(_members(given)))


def _members(given: Fields) -> Iterator[Member]:
    given.allow((*_ROOT, *_SHARED, "spool", "nodes"))
    nodes = given.get("nodes")
    if not isinstance(nodes, Fields) or not nodes:
        raise Wrong("it has no nodes; write nodes: and a line for each, north: {source: …}", given.lines.get("nodes"))
    spool = given.read("spool", must("be a directory, not {!r}", is_text), "spool")
    parents = {name: _parent(name, described, nodes) for name, described in nodes.items()}
    piped: list[str] = []  # nodes that read this process's standard input
    for name in _from_the_top(parents):
        children = [child for child, parent in parents.items() if parent == name]
        role: Role = ROOT if name == ROOT else "intermediate" if children else "local"  # type: ignore[assignment]
        described = _root(given) if name == ROOT else _node(nodes[name], given)
        described |= {} if role == "local" else {"listen": "127.0.0.1:0", "children": children}
        member = Member(name, role, parents.get(name), given.folder / spool / name, described)
        _check(member, described)
        if role == "local":
            source, password = _without_password(described["source"])
            member = replace(member, described={**described, "source": source}, password=password)
        if role == "local" and _is_piped(described["source"]):
            piped.append(name)
            if len(piped) > 1:
                both = " and ".join(piped)
                raise nodes.wrong(f"{both} read the same standard input; only one node can", name)
        yield member


def _root(given: Fields) -> Fields:
    described = given.only((*_SHARED, *_ROOT)).over({"spool": ".", "results": "results"})
    if is_text(described["results"]) and described["results"] != "-":
        described["results"] = str(given.folder / described["results"])
    if is_text(described.get("queries")) and (given.folder / described["queries"]).is_file():
        described["queries"] = str(given.folder / described["queries"])
    return described


def _node(given: Fields, shared: Fields) -> Fields:
    described = given.only(_OWN).over(shared.only(_SHARED)).over({"spool": ".", "at_stop": "stay"})
    if isinstance(described.get("source"), Fields):
        with described.blaming("source"):
            described["source"] = source_from(described["source"])
    return described


def _without_password(source: Any) -> tuple[Any, Secret | None]:
    """A source that names its password instead of having it, and the password."""
    if not isinstance(source, Mapping):
        return source, None
    password: Secret | None = None
    named: dict[str, Any] = {}
    for word, value in source.items():
        if isinstance(value, Secret):
            password, named["password_env"] = value, PASSWORD
        else:
            named[word], inner = _without_password(value)
            password = inner or password
    return named, password


def _parent(name: Any, described: Any, nodes: Fields) -> str:
    if not isinstance(name, str) or not NAMES.fullmatch(name) or name in (ROOT, OPERATOR):
        taken = f"not {ROOT} or {OPERATOR}"
        raise nodes.wrong(f"a node cannot be called {name!r}; take letters, digits, _ . and -, {taken}", name)
    if not isinstance(described, Fields):
        raise nodes.wrong(f"node {name!r} must have fields: {', '.join(_NODE)}", name)
    described.allow(_NODE)
    parent = described.get("parent", ROOT)
    if parent != ROOT and parent not in nodes:
        raise described.wrong(f"node {name!r}: there is no node {parent!r} to be its parent", "parent")
    return str(parent)


def _from_the_top(parents: Mapping[str, str]) -> list[str]:
    names = [ROOT]
    for name in names:
        names += [child for child, parent in parents.items() if parent == name]
    lost = sorted(set(parents) - set(names))
    if lost:
        raise Wrong(f"the nodes {', '.join(lost)} are parents of each other, and have no way to the root")
    return names


def _check(member: Member, described: Fields) -> None:
    """Read what will be the node's file, so that a mistake is found before anything starts, with its line."""
    parent = {"parent": "grpc://127.0.0.1:1"} if member.parent else {}
    try:
        node_of(described.over({"name": member.name, **parent}), member.role)
    except Wrong as error:
        raise Wrong(f"node {member.name!r}: {error}", error.line) from error


def _is_piped(source: Mapping[str, Any] | str) -> bool:
    return source == "stdin" or (not isinstance(source, str) and ("stdin" in source or source.get("kind") == "stdin"))
