"""The configuration of a node: `node.yaml`, read for the role that the command says.

    name: north                        # every node
    parent: grpc+tls://plant:8815      # local and intermediate; with token_file, tls: {ca: …}
    source: {files: events/}           # local
    listen: 0.0.0.0:8815               # intermediate and root; with tokens, tls: {cert: …, key: …}
    queries: queries.sql               # root; with time, columns, lateness, results

A path in, a `NodeConfig` out. Paths in a file are relative to it. Errors name file, line and field; a field that the
role does not have is refused, so that none is silently left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import polars as pl

from windrow.core.expressions.limits import shown
from windrow.core.expressions.types import type_of, types_of
from windrow.core.query.query import Query
from windrow.core.windows.fixed import duration
from windrow.io import query_files
from windrow.io.private import Secret, secret
from windrow.io.yaml_files import (
    Check,
    Fields,
    Wrong,
    is_text,
    load,
    made,
    must,
    one_of,
    placed,
    section,
    text,
    text_of,
    whole,
)
from windrow.nodes.protocol.messages import LARGEST
from windrow.nodes.protocol.node import MAX_AHEAD
from windrow.nodes.queries import QuerySet
from windrow.nodes.sources import source_of
from windrow.nodes.transport.security import (
    NAMES,
    NO_TLS,
    OPERATOR,
    AccessError,
    Address,
    Files,
    Tokens,
    check_listen,
    check_parent,
    token_of,
)
from windrow.nodes.transport.server import LIMITS, Limits

_FILES = ("files", "path", "password_file", "ca", "certificate", "key")  # of a source
_PASSWORD = "password"
Role = Literal["local", "intermediate", "root"]
ROLES: tuple[Role, ...] = ("local", "intermediate", "root")
_CHILD, _PARENT = ROLES[:2], ROLES[1:]
QUERY_SET = (
    *("queries", "time", "columns", "lateness", "order_by", "bad_events"),
    *("push_down", "local_keys", "counting", "quantiles"),
)
_CHECKED_TOGETHER = ("lateness", "order_by", "local_keys", "counting")  # with the queries


class ConfigError(ValueError):
    """A file that does not say what it has to: where, and what to write."""

    def __str__(self) -> str:
        return shown(super().__str__())


def _name(value: Any, word: str) -> Any:
    if value and is_text(value) and (value == OPERATOR or not NAMES.fullmatch(value)):
        raise ValueError(f"{word} {value!r}: take letters, digits, _ . and -, not {OPERATOR}")
    return must("be text, not {!r}", lambda name: is_text(name) and name)(value, word)


def _names(value: Any, word: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(is_text(name) and NAMES.fullmatch(name) for name in value):
        raise ValueError(f"{word} must be a list of names, like [a, b]")
    if OPERATOR in value:
        raise ValueError(f"{word}: no node is called {OPERATOR}, which is the name of who may ask; take another")
    return tuple(dict.fromkeys(value))


def _source(value: Any, word: str) -> Mapping[str, Any]:
    if not isinstance(value, str | Fields):
        raise ValueError(f"{word} must have fields, not be {value!r}")
    source = {"kind": value} if isinstance(value, str) else source_from(value)
    source_of(source, "node").close()  # refuses what cannot be
    return source


def source_from(described: Fields) -> Fields:
    """A source with its files found from the folder, and a password that is not shown."""
    source = described.over({})
    for word, value in described.items():
        if isinstance(value, Fields):
            source[word] = source_from(value)
        elif word in _FILES and isinstance(value, str):
            source[word] = str(described.folder / value)
        elif word == _PASSWORD and value is not None:
            source[word] = secret(value, word)
    return source


_address, _path = made(Address.of), made(Path)
_order_by = must(
    "be a column or a list of columns",
    lambda columns: is_text(columns) or (isinstance(columns, list) and all(map(is_text, columns))),
)
_schemes = must(
    "be a scheme, or one for each query: {{query: scheme}}",
    lambda given: all(map(is_text, [*given, *given.values()] if isinstance(given, dict) else [given])),
)


def _length(value: Any, word: str) -> int | None:
    return None if value is None else duration(value, word).units


def _time(value: Any, word: str) -> int | None:
    if value is not None and ((length := duration(value, word)).units <= 0 or not length.temporal):
        raise ValueError(f"{word} must be a time such as 30 seconds, not {value!r}")
    return _length(value, word)


def _time_or_never(value: Any, word: str) -> int | None:
    return 0 if value in ("never", False) else _time(value, word)


def _columns(value: Any, word: str) -> dict[str, pl.DataType]:
    """Columns as text, or each with its type."""
    if isinstance(value, str):
        return types_of(value)
    if isinstance(value, Mapping) and value and all(map(is_text, value.values())):
        return {str(name): type_of(described) for name, described in value.items()}
    raise ValueError(f"{word} must be like ts TIMESTAMP, key STRING, value DOUBLE")


_tls = section(
    Files, "cert and key of a node that listens, ca of one that has a parent", cert=_path, key=_path, ca=_path
)
_limits = section(
    Limits, "message (bytes) and rate (messages in a second)", message=whole(LARGEST), rate=whole(1_000_000)
)


@dataclass(frozen=True)
class NodeConfig:
    """Everything that a node's process has to know; lengths of time are in microseconds.

    Beside each type stands the check by which it is read, and the roles that have it.
    """

    role: Role
    name: Annotated[str, _name, ROLES]
    spool: Annotated[Path | None, _path, ROLES] = None
    tls: Annotated[Files, _tls, ROLES] = NO_TLS
    timeout: Annotated[int | None, _time, ROLES] = None
    max_ahead: Annotated[int | None, _time_or_never, ROLES] = MAX_AHEAD
    limits: Annotated[Limits, _limits, ROLES] = LIMITS
    parent: Annotated[Address | None, _address, _CHILD] = None
    token: Annotated[Secret | None, secret, _CHILD] = None
    token_file: Annotated[Path | None, _path, _CHILD] = None
    at_stop: Annotated[Literal["leave", "stay"], one_of("leave", "stay"), _CHILD] = "stay"
    listen: Annotated[Address | None, _address, _PARENT] = None
    tokens: Annotated[Path | None, _path, _PARENT] = None
    children: Annotated[tuple[str, ...], _names, _PARENT] = ()
    joins: Annotated[bool, one_of(True, False), _PARENT] = False
    source: Annotated[Mapping[str, Any], _source, ("local",)] = field(default_factory=dict)
    lateness: Annotated[int | None, _length, ("local",)] = None
    idle: Annotated[int | None, _time, ("local",)] = None
    query_set: QuerySet | None = None
    results: Annotated[str, text, ("root",)] = "results"
    feeds: Annotated[Literal["results", "slices"], one_of("results", "slices"), ("root",)] = "results"


_TYPES = get_type_hints(NodeConfig, include_extras=True).items()
_CHECKS: dict[Role, dict[str, Check]] = {
    role: {name: one.__metadata__[0] for name, one in _TYPES if role in getattr(one, "__metadata__", ((), ()))[1]}
    for role in ROLES
}
FIELDS = {role: [*checks] for role, checks in _CHECKS.items()}
FIELDS["root"][-2:-2] = QUERY_SET


def read(path: Path, role: Role) -> NodeConfig:
    given = fields_of(path, "windrow node")
    with placed(str(path), ConfigError):
        return node_of(given, role)


def fields_of(path: Path, command: str, folder: Path | None = None) -> Fields:
    """The fields of a file; `command` is what its users call, and `folder` what paths in it are relative to."""
    content = text_of(path, ConfigError, f"; see {command} --help")
    with placed(str(path), ConfigError):
        given = load(content, folder or path.parent)
        if not isinstance(given, Fields):
            raise Wrong("it must have fields, like name: north")
    return given


def node_of(given: Fields, role: Role) -> NodeConfig:
    """A node from its fields; what is wrong with them is `Wrong`."""
    for other in ROLES:
        elsewhere = [word for word in given if word in FIELDS[other] and word not in FIELDS[role]]
        if elsewhere:
            raise given.wrong(f"{elsewhere[0]!r} is for a node that is {other}, not {role}", elsewhere[0])
    given.allow(FIELDS[role])
    if "name" not in given:
        raise given.wrong("it has no name: every node has one, by which its parent knows it")
    if role == "local" and given.get("source") is None:
        raise given.wrong("it has no source; write source: and where its events come from")
    described = given.over({"at_stop": "leave"} if role == "local" else {"joins": not given.get("children")})
    checks = _CHECKS[role].items()
    values = {word: described.read(word, check, getattr(NodeConfig, word, None)) for word, check in checks}
    if role == "root":
        values |= {"query_set": query_set_of(given), "results": _results(given)}
    if values.get("token_file"):
        values["token"] = _token(given, values["token_file"])
    config = NodeConfig(role, **values | {"max_ahead": values["max_ahead"] or None})
    _check(config, given)
    return config


def _check(config: NodeConfig, given: Fields) -> None:
    if config.role != "root" and config.parent is None:
        raise given.wrong("it has no parent; write parent: grpc://host:port")
    if config.role != "local" and config.listen is None:
        raise given.wrong("it has no listen; write listen: host:port, 127.0.0.1:0 for any free port")
    if config.role != "local" and config.spool is None:
        raise given.wrong("it has no spool; write spool: and a directory for what must not be lost")
    if config.name in config.children:
        raise given.wrong(f"children: {config.name!r} is this node itself; take another name", "children")
    blamed = "listen"
    try:
        if config.listen is not None:
            check_listen(config.listen, config.tls, Tokens(config.tokens) if config.tokens else None)
        if config.parent is not None:
            blamed = "parent"
            check_parent(config.parent, config.token)
    except AccessError as error:
        raise Wrong(str(error), given.lines.get(blamed)) from error


def _token(given: Fields, token_file: Path) -> Secret:
    if "token" in given:
        raise given.wrong("token and token_file are both there; leave one of them out", "token")
    with given.blaming("token_file"):
        return token_of(token_file)


def _results(given: Fields) -> str:
    results: str = given.read("results", text, "results")
    if (given.folder / results).is_file():
        raise Wrong(f"results {results!r} is a file; name a directory, or '-'", given.lines.get("results"))
    return results if results == "-" else str(given.folder / results)


def query_set_of(given: Fields) -> QuerySet:
    """The queries of a root, from a file or in place, and how events are to be taken."""
    if "queries" not in given:
        raise given.wrong("it has no queries; write queries: and a file, .sql or .yaml, or the queries themselves")
    with given.blaming("queries"):
        queries, options = _queries(given)
    given = given.over(options)
    if "columns" not in given:
        raise given.wrong("it has no columns; write columns: ts TIMESTAMP, key STRING, value DOUBLE")
    columns = given.read("columns", _columns)
    times = list(dict.fromkeys(query.time for query in queries if query.time))
    time = given.get("time") or (times[0] if len(times) == 1 else None)
    if not isinstance(time, str):
        raise given.wrong("it has no time; write time: and the column that windows are measured on")
    if time not in columns:
        raise given.wrong(f"time {time!r} is none of the columns {', '.join(columns)}", "time")
    given.read("lateness", duration)
    order_by = given.read("order_by", _order_by, ())
    try:
        return QuerySet.of(
            queries,
            time,
            columns,
            given.get("lateness", 0),
            [order_by] if is_text(order_by) else order_by,
            given.read("bad_events", one_of("raise", "drop"), "raise"),
            given.read("push_down", one_of(True, False), False),
            given.read("local_keys", _names, ()),
            given.read("counting", _schemes, "auto"),
            given.read("quantiles", one_of("refine", "whole"), "refine"),
        )
    except Wrong:
        raise
    except ValueError as error:
        reason = str(error)
        blamed = next((word for word in _CHECKED_TOGETHER if reason.startswith(word)), "queries")
        raise given.wrong(f"queries: {reason}" if blamed == "queries" else reason, blamed) from error


def _queries(given: Fields) -> tuple[tuple[Query, ...], Mapping[str, Any]]:
    described = given["queries"]
    if isinstance(described, list):
        return query_files.queries_in(given), {}
    if not isinstance(described, str):
        raise given.wrong("queries must be a file, SQL, or a list of queries", "queries")
    if "\n" in described.strip() or described.strip().upper().startswith("SELECT"):
        return query_files.of_sql(described, "queries").queries, {}
    file = query_files.read(given.folder / described)
    if "updates" in file.options:
        raise given.wrong(f"{described}: a tree has no updates; leave them out", "queries")
    if "time_format" in file.options:
        raise given.wrong(f"{described}: each source of a tree has a time_format of its own; set it there", "queries")
    return file.queries, file.options
