"""What a node is told: `node.yaml`, read for the role that the command says.

    name: north                        # every node
    parent: grpc+tls://plant:8815      # local and intermediate; with token_file, tls: {ca: …}
    source: {files: events/}           # local
    listen: 0.0.0.0:8815               # intermediate and root; with tokens, tls: {cert: …, key: …}
    queries: queries.sql               # root; with time, columns, lateness, results

A path in, a `NodeConfig` out. Paths in a file are relative to it. Whatever is wrong is said with file, line and field;
a field that the role does not have is refused, so that none is silently left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import polars as pl

from windrow.core.expressions.types import type_of, types_of
from windrow.core.query.query import Query
from windrow.core.windows.fixed import duration
from windrow.io import query_files
from windrow.io.yaml_files import Fields, Wrong, load, placed
from windrow.nodes.protocol.messages import LARGEST
from windrow.nodes.protocol.node import AHEAD
from windrow.nodes.queries import Asked
from windrow.nodes.sources import source_of
from windrow.nodes.transport.security import (
    NAMES,
    OPERATOR,
    AccessError,
    Address,
    Files,
    Tokens,
    check_listen,
    check_parent,
    token_of,
)
from windrow.nodes.transport.server import Limits

T = TypeVar("T")
_FILES = ("files", "path", "password_file", "ca", "certificate", "key")  # of a source
Role = Literal["local", "intermediate", "root"]
ROLES: tuple[Role, ...] = ("local", "intermediate", "root")

_EVERY = ("name", "spool", "tls", "timeout", "max_ahead", "limits")
_CHILD = ("parent", "token", "token_file", "at_stop")
_PARENT = ("listen", "tokens", "children", "joins")
_TRAVELS = ("push_down", "local_keys", "counting", "quantiles")
ASKED = ("queries", "time", "columns", "lateness", "order_by", "bad_events", *_TRAVELS)
FIELDS: dict[Role, tuple[str, ...]] = {
    "local": (*_EVERY, *_CHILD, "source", "lateness", "idle"),
    "intermediate": (*_EVERY, *_CHILD, *_PARENT),
    "root": (*_EVERY, *_PARENT, *ASKED, "results", "feeds"),
}


class ConfigError(ValueError):
    """A file that does not say what it has to: where, and what to write."""


@dataclass(frozen=True)
class NodeConfig:
    """Everything that a node's process has to know."""

    name: str
    role: Role
    parent: Address | None = None
    token: str | None = None
    listen: Address | None = None
    tokens: Path | None = None
    tls: Files = field(default_factory=Files)
    children: tuple[str, ...] = ()
    joins: bool = False
    spool: Path | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    lateness: int | None = None
    idle: int | None = None  # microseconds, like all lengths of time here
    timeout: int | None = None
    max_ahead: int | None = AHEAD
    limits: Limits = field(default_factory=Limits)
    at_stop: Literal["leave", "stay"] = "leave"
    asked: Asked | None = None
    results: str = "results"
    feeds: Literal["results", "slices"] = "results"


def read(path: Path, role: Role) -> NodeConfig:
    """Read a node's file."""
    given = fields_of(path, "windrow node")
    with placed(str(path), ConfigError):
        return node_of(given, role, path.parent)


def fields_of(path: Path, command: str) -> Fields:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no file {str(path)!r}; see {command} --help") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    with placed(str(path), ConfigError):
        given = load(text)
        if not isinstance(given, Fields):
            raise Wrong("it must have fields, like name: north")
    return given


def node_of(given: Fields, role: Role, folder: Path) -> NodeConfig:
    """A node from its fields; what is wrong with them is `Wrong`."""
    for other in ROLES:
        elsewhere = [word for word in given if word in FIELDS[other] and word not in FIELDS[role]]
        if elsewhere:
            raise Wrong(f"{elsewhere[0]!r} is for a node that is {other}, not {role}", given.lines[elsewhere[0]])
    given.check(FIELDS[role])
    at = _Reading(given, folder)
    name = at.text("name", needed="every node has one, by which its parent knows it")
    if not NAMES.fullmatch(name) or name == OPERATOR:
        raise Wrong(f"name {name!r}: take letters, digits, _ . and -, not {OPERATOR}", given.lines["name"])
    config = NodeConfig(
        name,
        role,
        parent=at.made("parent", Address.of) if role != "root" else None,
        token=_token(at),
        listen=at.made("listen", Address.of) if role != "local" else None,
        tokens=at.path("tokens"),
        tls=_tls(at),
        children=at.names("children"),
        joins=at.choice("joins", (True, False), not at.names("children")) if role != "local" else False,
        spool=at.path("spool"),
        source=at.source(name) if role == "local" else {},
        lateness=at.length("lateness") if role == "local" else None,
        idle=at.time("idle"),
        timeout=at.time("timeout"),
        max_ahead=None if given.get("max_ahead") in ("never", False) else at.time("max_ahead", AHEAD),
        limits=_limits(at),
        at_stop=at.choice("at_stop", ("leave", "stay"), "leave" if role == "local" else "stay"),
        asked=asked_of(given, folder) if role == "root" else None,
        results=at.results(),
        feeds=at.choice("feeds", ("results", "slices"), "results"),
    )
    _check(config, at)
    return config


def _check(config: NodeConfig, at: _Reading) -> None:
    """Refuse what does not go together."""
    if config.role != "root" and config.parent is None:
        raise Wrong("it has no parent; write parent: grpc://host:port", at.given.line)
    if config.role != "local" and config.listen is None:
        raise Wrong("it has no listen; write listen: host:port, 127.0.0.1:0 for any free port", at.given.line)
    if config.role != "local" and config.spool is None:
        raise Wrong("it has no spool; write spool: and a directory for what must not be lost", at.given.line)
    blamed = "listen"
    try:
        if config.listen is not None:
            check_listen(config.listen, config.tls, Tokens(config.tokens) if config.tokens else None)
        if config.parent is not None:
            blamed = "parent"
            check_parent(config.parent, config.token)
    except AccessError as error:
        raise Wrong(str(error), at.given.lines.get(blamed)) from error


def _token(at: _Reading) -> str | None:
    path = at.path("token_file")
    if path is not None and "token" in at.given:
        raise Wrong("token and token_file are both there; leave one of them out", at.given.lines["token"])
    if path is not None:
        return at.blame("token_file", lambda: token_of(path))
    return at.text("token") or None


def _tls(at: _Reading) -> Files:
    given = at.given.get("tls", Fields())
    if not isinstance(given, Fields):
        raise Wrong(
            "tls must have fields: cert and key of a node that listens, ca of one that has a parent",
            at.given.lines["tls"],
        )
    given.check(("cert", "key", "ca"))
    inner = _Reading(given, at.folder)
    return Files(inner.path("cert"), inner.path("key"), inner.path("ca"))


def _limits(at: _Reading) -> Limits:
    given = at.given.get("limits", Fields())
    if not isinstance(given, Fields):
        raise Wrong(
            "limits must have fields: message (bytes) and rate (messages in a second)", at.given.lines["limits"]
        )
    given.check(("message", "rate"))
    inner = _Reading(given, at.folder)
    return Limits(inner.number("message", LARGEST, LARGEST), inner.number("rate", 1000, 1_000_000))


# --- what is asked --------------------------------------------------------------------------------------------------


def asked_of(given: Fields, folder: Path) -> Asked:
    """What the root is asked: queries from a file or in place, and how events are to be taken."""
    at = _Reading(given, folder)
    if "queries" not in given:
        raise Wrong(
            "it has no queries; write queries: and a file, .sql or .yaml, or the queries themselves", given.line
        )
    queries, options = at.blame("queries", lambda: _queries(given, folder))
    said = {**options, **{word: given[word] for word in ASKED[1:] if word in given}}
    if "columns" not in said:
        raise Wrong("it has no columns; write columns: ts TIMESTAMP, key STRING, value DOUBLE", given.line)
    columns = at.blame("columns", lambda: columns_of(said["columns"]))
    times = list(dict.fromkeys(query.time for query in queries if query.time))
    time = said.get("time") or (times[0] if len(times) == 1 else None)
    if not isinstance(time, str):
        raise Wrong("it has no time; write time: and the column that windows are measured on", given.line)
    if time not in columns:
        raise Wrong(f"time {time!r} is none of the columns {', '.join(columns)}", given.lines.get("time", given.line))
    lateness = said.get("lateness", 0)
    at.blame("lateness", lambda: duration(lateness, "lateness"))
    order_by = [said["order_by"]] if isinstance(said.get("order_by"), str) else said.get("order_by", [])
    if not isinstance(order_by, list) or not all(isinstance(one, str) for one in order_by):
        raise Wrong("order_by must be a column or a list of columns", given.lines.get("order_by"))
    bad = said.get("bad_events", "raise")
    if bad not in ("raise", "drop"):
        raise Wrong(f"bad_events must be raise or drop, not {bad!r}", given.lines.get("bad_events"))
    push_down, local_keys = at.choice("push_down", (True, False), False), at.names("local_keys")
    counting = said.get("counting", "auto")
    schemes = [*counting, *counting.values()] if isinstance(counting, dict) else [counting]
    if not all(isinstance(one, str) for one in schemes):
        line = given.lines.get("counting", given.line)
        raise Wrong("counting must be a scheme, or one for each query: {query: scheme}", line)
    quantiles = at.choice("quantiles", ("refine", "whole"), "refine")
    try:
        return Asked.of(queries, time, columns, lateness, order_by, bad, push_down, local_keys, counting, quantiles)
    except ValueError as error:
        told = str(error)
        words = ("lateness", "order_by", "local_keys", "counting")
        word = next((one for one in words if told.startswith(one)), "queries")
        reason = f"queries: {told}" if word == "queries" else told
        raise Wrong(reason, given.lines.get(word, given.line)) from error


def _queries(given: Fields, folder: Path) -> tuple[tuple[Query, ...], dict[str, Any]]:
    said = given["queries"]
    if isinstance(said, list):
        return query_files.listed(given), {}
    if not isinstance(said, str):
        raise Wrong("queries must be a file, SQL, or a list of queries", given.lines["queries"])
    if "\n" in said.strip() or said.strip().upper().startswith("SELECT"):
        return query_files.of_sql(said, "queries").queries, {}
    found = query_files.read(folder / said)
    if "updates" in found.options:
        raise Wrong(f"{said}: a tree has no updates; leave them out", given.lines["queries"])
    return found.queries, dict(found.options)


def columns_of(said: object) -> dict[str, pl.DataType]:
    """Columns as text, or each with its type."""
    if isinstance(said, str):
        return types_of(said)
    if isinstance(said, Mapping) and said and all(isinstance(one, str) for one in said.values()):
        return {str(name): type_of(text) for name, text in said.items()}
    raise ValueError("columns must be like ts TIMESTAMP, key STRING, value DOUBLE")


def source_from(given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A source as it is described, with its files found from the folder."""
    found: dict[str, Any] = {}
    for word, value in given.items():
        if isinstance(value, Mapping):
            found[word] = source_from(value, folder)
        else:
            found[word] = str(folder / value) if word in _FILES and isinstance(value, str) else value
    return found


# --- values of fields -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reading:
    """The fields of a mapping, each as it has to be."""

    given: Fields
    folder: Path

    def blame(self, word: str, make: Callable[[], T]) -> T:
        """Make something of a field; what is wrong is said with the field's line."""
        try:
            return make()
        except Wrong:
            raise
        except (ValueError, TypeError) as error:
            reason = str(error) if str(error).startswith(word) else f"{word}: {error}"
            raise Wrong(reason, self.given.lines.get(word, self.given.line)) from error

    def text(self, word: str, needed: str = "") -> str:
        value = self.given.get(word, "")
        if not isinstance(value, str) or (needed and not value):
            why = f"it has no {word}: {needed}" if word not in self.given else f"{word} must be text, not {value!r}"
            raise Wrong(why, self.given.lines.get(word, self.given.line))
        return value

    def path(self, word: str) -> Path | None:
        value = self.text(word)
        return self.folder / value if value else None

    def made(self, word: str, make: Callable[[str], T]) -> T | None:
        value = self.text(word)
        return self.blame(word, lambda: make(value)) if value else None

    def names(self, word: str) -> tuple[str, ...]:
        value = self.given.get(word, [])
        if not isinstance(value, list) or not all(isinstance(one, str) and NAMES.fullmatch(one) for one in value):
            raise Wrong(f"{word} must be a list of names, like [a, b]", self.given.lines[word])
        return tuple(dict.fromkeys(value))

    def time(self, word: str, default: int | None = None) -> int | None:
        value = self.given.get(word)
        if value is None:
            return default
        length = self.blame(word, lambda: duration(value, word))
        if not length.temporal or length.units <= 0:
            raise Wrong(f"{word} must be a time such as 30 seconds, not {value!r}", self.given.lines[word])
        return length.units

    def length(self, word: str) -> int | None:
        value = self.given.get(word)
        return None if value is None else self.blame(word, lambda: duration(value, word)).units

    def number(self, word: str, default: int, most: int) -> int:
        value = self.given.get(word, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise Wrong(f"{word} must be a whole number from 1 to {most:,}, not {value!r}", self.given.lines[word])
        return value

    def choice(self, word: str, choices: Sequence[Any], default: Any) -> Any:
        value = self.given.get(word, default)
        if value not in choices:
            told = " or ".join(str(one).lower() for one in choices)
            raise Wrong(f"{word} must be {told}, not {value!r}", self.given.lines[word])
        return value

    def source(self, node: str) -> Mapping[str, Any]:
        value = self.given.get("source")
        if value is None:
            raise Wrong("it has no source; write source: and where its events come from", self.given.line)
        if not isinstance(value, str | Fields):
            raise Wrong(f"source must have fields, not be {value!r}", self.given.lines["source"])
        found = {"kind": value} if isinstance(value, str) else source_from(value, self.folder)
        self.blame("source", lambda: source_of(found, node).close())  # refuses what cannot be
        return found

    def results(self) -> str:
        value = self.text("results") or "results"
        if (self.folder / value).is_file():
            raise Wrong(f"results {value!r} is a file; name a directory, or '-'", self.given.lines.get("results"))
        return value if value == "-" else str(self.folder / value)
