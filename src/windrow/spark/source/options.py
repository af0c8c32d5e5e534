"""The options of a source of slices, as `spark.readStream.format("windrow")` takes them, read and checked."""

from __future__ import annotations

import difflib
import importlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import polars as pl
from pyspark.sql import types as t
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
)

from windrow.core.expressions.errors import QueryError
from windrow.core.expressions.types import types_of
from windrow.core.plan.options import StreamOptions
from windrow.core.query.query import Query
from windrow.core.slices.binding import ARRIVAL
from windrow.core.stream.job import own_classes
from windrow.core.windows.fixed import duration
from windrow.core.windows.ordered import NODE
from windrow.io.generator import Generator
from windrow.spark.slice_rows import Limit, Origin, fingerprint, origin_of, text_of
from windrow.spark.source.files import Files
from windrow.spark.source.generated import Generated
from windrow.spark.source.tree_root import KEEP, Root
from windrow.spark.types import polars_columns

BUCKETS = 16

OPTIONS = (  # what each says is in docs/spark-nodes.md
    *("path", "format", "columns", "generator", "root", "keep", "queries", "imports", "time", "lateness", "order_by"),
    *("time_format", "bad_events", "node_column", "buckets", "idle", "maxFilesPerTrigger", "maxRowsPerTrigger"),
)
NEEDED = {"queries": "a JSON list of what Query.to_dict() gives", "time": "the time column"}
OF_A_ROOT = ("root", "keep", "queries", "time", "imports", "buckets", "maxFilesPerTrigger", "maxRowsPerTrigger")


@dataclass(frozen=True)
class Settings:
    """The options of a source, read and checked."""

    source: Files | Generated | Root
    queries: tuple[Query, ...]
    options: StreamOptions
    node_column: str = NODE
    buckets: int = BUCKETS
    idle: int | None = None  # milliseconds
    files: int | None = None
    rows: int | None = None
    columns: Mapping[str, pl.DataType] | None = None

    @staticmethod
    def of(options: Mapping[str, str]) -> Settings:
        names = {name.lower(): name for name in OPTIONS}
        for name in options:
            if name.lower() not in names:
                near = difflib.get_close_matches(name.lower(), names, 1)
                hint = f"did you mean {names[near[0]]}?" if near else f"there are {', '.join(OPTIONS)}"
                raise QueryError(f"windrow has no option {name!r}; {hint}")
        given = {names[name.lower()]: value for name, value in options.items()}
        if sum(name in given for name in ("path", "generator", "root")) != 1:
            raise QueryError("give a path, with a directory for each node, or a generator, or the root of a tree")
        for module in _list(given.get("imports", "")):
            try:
                importlib.import_module(module)
            except ImportError as error:
                raise QueryError(f"the module {module!r} cannot be imported where the source runs: {error}") from error
        if "root" in given:
            return _of_root(given)
        if "keep" in given:
            raise QueryError("the option keep is for the root of a tree; what else is read stays where it is")
        source: Files | Generated
        if "generator" in given:
            source = Generated(**asdict(Generator.from_json(given["generator"])))
        else:
            source = Files(given["path"], given.get("format"), given.get("time_format"))
        for name, meaning in NEEDED.items():
            if not given.get(name):
                raise QueryError(f"the option {name} is missing: {meaning}")
        if given["time"] == ARRIVAL:
            raise QueryError("nodes have no arrival times; name a time column")
        if isinstance(source, Generated) and given["time"] != "ts":
            raise QueryError(f"the generator's time is 'ts', not {given['time']!r}")
        if given.get("bad_events", "raise") not in ("raise", "drop"):
            raise QueryError(f"option bad_events must be raise or drop, not {given['bad_events']!r}")
        return Settings(
            source,
            _queries(given["queries"]),
            StreamOptions(
                given["time"],
                _maybe_json(given.get("lateness", "0")),
                order_by=_list(given.get("order_by", "")),
                bad_events=given.get("bad_events", "raise"),
            ),
            given.get("node_column", NODE),
            _whole(given, "buckets") or BUCKETS,
            _milliseconds(given.get("idle")),
            _whole(given, "maxFilesPerTrigger"),
            _whole(given, "maxRowsPerTrigger"),
            _columns(given["columns"]) if "columns" in given else None,
        )

    @property
    def origin(self) -> Origin:
        """What is said of its slices; reads the columns of the first file."""
        columns = dict(self.source.columns if self.columns is None else self.columns)
        if self.node_column in columns:
            raise QueryError(
                f"the events have a column {self.node_column!r} of their own; set the option node_column "
                "to what the node is to be called"
            )
        columns[self.node_column] = pl.String()
        time, options = self.options.time, replace(self.options, order_by=(self.node_column, *self.options.order_by))
        names = tuple(query.name for query in self.queries)
        draft = Origin(columns, options, self.buckets, "", names, "")
        job = draft.job(self.queries)
        for query in self.queries:
            if query.distinct_on:
                raise QueryError(
                    f"query {query.name!r}: distinct_on drops repeats among the events of all nodes, which no node "
                    "sees; read the events with Spark and give them to windows"
                )
            if query.time == ARRIVAL:
                raise QueryError(f"query {query.name!r}: nodes have no arrival times; name a time column")
        if time not in job.compiled.binding.time_columns:
            raise QueryError(f"no query is measured on {time!r}, which the watermark of nodes follows")
        return replace(draft, plan=fingerprint(job), described=text_of([query.to_dict() for query in self.queries]))

    # --- how much is read -------------------------------------------------------------------------------------------

    @property
    def read_limit(self) -> ReadLimit:
        if self.rows is not None:
            return ReadMaxRows(self.rows)
        return ReadAllAvailable() if self.files is None else ReadMaxFiles(self.files)

    def limit(self, limit: ReadLimit, is_last: bool) -> Limit:
        """What Spark allows a micro-batch, within what the options do."""
        if isinstance(limit, ReadAllAvailable):
            return Limit()
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self.rows
        files = limit.max_files if isinstance(limit, ReadMaxFiles) else self.files
        least = limit.min_rows if isinstance(limit, ReadMinRows) and not is_last else None
        return Limit(rows, files, limit.max_bytes if isinstance(limit, ReadMaxBytes) else None, least)


def _of_root(given: Mapping[str, str]) -> Settings:
    """The root of a tree says most of it itself."""
    for name in given:
        if name not in OF_A_ROOT:
            raise QueryError(
                f"the option {name} is not for the root of a tree, which knows what it was asked; leave it out"
            )
    root = Root(given["root"], given.get("keep", KEEP[0]))
    query_set = root.sink.query_set
    options = query_set.options
    if given.get("time", options.time) != options.time:
        raise QueryError(f"the slices of this root are cut along {options.time!r}, not along {given['time']!r}")
    settings = Settings(
        root,
        query_set.queries,
        options,
        buckets=_whole(given, "buckets") or BUCKETS,
        files=_whole(given, "maxFilesPerTrigger"),
        rows=_whole(given, "maxRowsPerTrigger"),
    )
    if not given.get("queries"):
        return settings
    narrowed = replace(settings, queries=_queries(given["queries"]))
    if narrowed.origin.plan != settings.origin.plan:
        raise QueryError(
            f"the root was asked {', '.join(repr(query.name) for query in query_set.queries)}, and these queries need "
            "other slices; leave them out, or ask the root"
        )
    return narrowed


def origin_in(schema: t.StructType) -> Origin:
    """What the schema of a source says; Spark gives it back to the reader."""
    origin = origin_of(schema)
    if origin is None:
        raise QueryError("a source of windrow has columns of its own; leave schema() out, and set the option columns")
    return origin


def options_of(
    source: str | os.PathLike[str] | Generator | Root, queries: Sequence[Query], time: str, **others: Any
) -> dict[str, str]:
    """The options that say the same as these arguments."""
    options = {"queries": json.dumps([query.to_dict() for query in queries]), "time": time}
    modules = {kind.__module__: kind for kind in own_classes(queries)}
    if "__main__" in modules:
        raise QueryError(
            f"{modules['__main__'].__name__} stands in the program itself, where Spark's workers do not find it; "
            "put it into a module that they can import"
        )
    if modules:
        options["imports"] = json.dumps(sorted(modules))
    if isinstance(source, Generator):
        options["generator"] = source.to_json()
    elif isinstance(source, Root):
        options |= {"root": _absolute(source.path), "keep": source.keep}
    else:
        options["path"] = _absolute(source)
    return options | {name: str(value) for name, value in others.items() if value is not None}


def _absolute(path: str | os.PathLike[str]) -> str:
    """A path as workers know it, who may stand elsewhere."""
    text = os.fspath(path)
    return text if ":" in text else os.path.abspath(text)


def _queries(text: str) -> tuple[Query, ...]:
    try:
        described = json.loads(text)
    except ValueError as error:
        raise QueryError(f"option queries is not JSON: {error}") from error
    queries = [described] if isinstance(described, dict) else described
    if not isinstance(queries, list) or not queries or not all(isinstance(query, dict) for query in queries):
        raise QueryError("option queries must be a JSON list of what Query.to_dict() gives")
    try:
        return tuple(map(Query.from_dict, queries))
    except QueryError as error:
        raise QueryError(f"option queries: {error}") from error


def _columns(text: str) -> dict[str, pl.DataType]:
    """Columns from a schema's JSON or DDL; only the driver has a JVM that reads DDL, and this runs without."""
    if text.lstrip().startswith("{"):
        try:
            return polars_columns(t.StructType.fromJson(json.loads(text)))
        except (ValueError, KeyError, TypeError) as error:
            raise QueryError(f"option columns is not a schema: {error}") from error
    try:
        return types_of(text)
    except ValueError as error:
        raise QueryError(f"option columns: {error}") from error


def _list(text: str) -> tuple[str, ...]:
    if text.lstrip().startswith("["):
        return tuple(map(str, json.loads(text)))
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _maybe_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _whole(given: Mapping[str, str], name: str) -> int | None:
    if name not in given:
        return None
    if not given[name].strip().isdecimal() or int(given[name]) < 1:
        raise QueryError(f"option {name} must be a whole number from 1, not {given[name]!r}")
    return int(given[name])


def _milliseconds(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        length = duration(text, "idle")
    except (TypeError, ValueError) as error:
        raise QueryError(f"option idle: {error}") from error
    if length.units < 1:
        raise QueryError(f"option idle must be longer than nothing, not {text!r}")
    return -(-length.units // 1000)
