"""What a run leaves behind: its results, and beside them `_windrow.json`, which says how they came about.

    results/part-0.parquet   rows in the result format: query, keys, window_start, window_end, …
    results/_windrow.json    the queries, how many events, what crossed the network; Spark skips such names

Everything but the results is optional.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl

import windrow
from windrow.core.query.query import Query
from windrow.io.event_files import below
from windrow.io.private import naming

FILE = "_windrow.json"
_KINDS = (".parquet", ".csv", ".json", ".jsonl", ".ndjson")


@dataclass(frozen=True)
class Figure:
    """A measured number and what it is of: bytes on the network, or times that an event was touched."""

    what: str
    value: float


@dataclass(frozen=True)
class Run:
    """What is known of a run.

    network:  bytes that crossed it: first those of this run, then what they are compared with
    touched:  how many times each event was read or written, likewise
    unread:   for each query that cannot be understood here (a window of somebody's own), the reason
    """

    queries: tuple[Query, ...] = ()
    windrow: str | None = windrow.__version__
    engine: str | None = None
    time: str | None = None
    lateness: str | int | None = None
    seconds: float | None = None
    events: int | None = None
    results: int | None = None
    late: int | None = None
    dropped: int | None = None
    network: tuple[Figure, ...] = ()
    touched: tuple[Figure, ...] = ()
    unread: dict[str, str] = field(default_factory=dict, compare=False)

    def to_json(self) -> str:
        plain = {one: getattr(self, one) for one in _PLAIN if getattr(self, one) is not None}
        plain["queries"] = [query.to_dict() for query in self.queries]
        for name, unit in _MEASURED.items():
            if figures := getattr(self, name):
                plain[name] = [{"what": one.what, unit: one.value} for one in figures]
        return json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @staticmethod
    def from_json(text: str) -> Run:
        read = json.loads(text)
        if not isinstance(read, dict) or not isinstance(read.get("queries", []), list):
            raise ValueError("expected an object with a list of queries")
        queries, unread = [], {}
        for described in read.get("queries", []):
            try:
                queries.append(Query.from_dict(described))
            except (ValueError, TypeError, KeyError) as error:
                unread[str(described.get("name")) if isinstance(described, dict) else "?"] = str(error)
        measured: dict[str, Any] = {name: _figures(read.get(name), name, unit) for name, unit in _MEASURED.items()}
        known: dict[str, Any] = {"windrow": None} | {one: read[one] for one in _PLAIN if one in read}
        return Run(queries=tuple(queries), unread=unread, **measured, **known)

    @staticmethod
    def read(results: str | Path) -> Run:
        """What stands beside results; nothing for a single file, or where nothing stands."""
        path = Path(results) / FILE
        if not path.is_file():
            return Run(windrow=None)
        try:
            return Run.from_json(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is not what a run writes: {error}; remove it to report without it") from error

    def write(self, results: str | Path) -> Path:
        """Put it beside results."""
        path = Path(results) / FILE
        with naming(path):
            path.write_text(self.to_json(), encoding="utf-8")
        return path


_MEASURED = {"network": "bytes", "touched": "times"}
_PLAIN = [one.name for one in fields(Run) if one.name not in ("queries", "unread", *_MEASURED)]


def _figures(given: Any, name: str, unit: str) -> tuple[Figure, ...]:
    try:
        return tuple(Figure(str(one["what"]), float(one[unit])) for one in given or ())
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f'{name} must be a list of {{"what": …, "{unit}": …}}') from error


# --- results ------------------------------------------------------------------------------------------------


def read_results(path: Path) -> pl.DataFrame:
    """All results of a directory or a file, as one table with times in microseconds or plain units."""
    if not path.exists():
        raise FileNotFoundError(f"there are no results at {path}; give the directory or file that a run wrote")
    files = _files(path) if path.is_dir() else [path]
    if not files and not (path / FILE).is_file():
        raise ValueError(f"{path} holds no results: there is no file ending in {', '.join(_KINDS)}")
    frame = pl.concat([pl.DataFrame(), *(_read(one, path) for one in files)], how="diagonal_relaxed")
    if not frame.width:  # a run that found nothing
        return pl.DataFrame(schema={"query": pl.String, "window_start": pl.Int64, "window_end": pl.Int64})
    lacking = [one for one in ("query", "window_start", "window_end") if one not in frame.columns]
    if lacking:
        raise ValueError(f"{path} has no column {lacking[0]!r}: report on what a run of windrow wrote")
    return frame.with_columns(_bound(frame[name]) for name in ("window_start", "window_end"))


def _files(folder: Path) -> list[Path]:
    committed = _committed(folder / "_spark_metadata")
    found = [path for path in map(Path, below(str(folder))) if path.suffix in _KINDS]
    return [path for path in found if committed is None or path.name in committed]


def _committed(log: Path) -> set[str] | None:
    """The files that a stream of Spark has committed; others that lie beside them belong to no batch."""
    if not log.is_dir():
        return None
    lines = [line for path in log.glob("[0-9]*") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return {unquote(json.loads(line)["path"]).rsplit("/", 1)[-1] for line in lines}


def _read(path: Path, root: Path) -> pl.DataFrame:
    if path.suffix == ".parquet":
        frame = pl.read_parquet(path, hive_partitioning=False)
    elif path.suffix == ".csv":
        frame = pl.read_csv(path, try_parse_dates=True, infer_schema_length=None, raise_if_empty=False)
    elif path.suffix in _KINDS:
        frame = pl.read_ndjson(path, infer_schema_length=None) if path.stat().st_size else pl.DataFrame()
    else:
        raise ValueError(f"{path} is no file of results: it must end in {', '.join(_KINDS)}")
    parted = [part.split("=", 1) for part in path.relative_to(root).parts[:-1] if "=" in part]  # partitionBy("query")
    return frame.with_columns(pl.lit(unquote(value)).alias(key) for key, value in parted if key not in frame.columns)


def _bound(bound: pl.Series) -> pl.Series:
    """A bound as a timestamp in microseconds or as an integer."""
    if bound.dtype == pl.String:
        text = bound.str.replace("Z$", "+00:00").str.replace(" ", "T", literal=True)
        bound = text.str.to_datetime("%+", time_unit="us", time_zone="UTC", strict=False)
        if bound.null_count() > text.null_count():
            bound = text.str.to_datetime(time_unit="us", strict=False)
    if isinstance(bound.dtype, pl.Datetime):
        zoned = bound.dt.convert_time_zone("UTC") if bound.dtype.time_zone else bound
        return zoned.dt.cast_time_unit("us")
    if bound.dtype == pl.Date:
        return bound.cast(pl.Datetime("us"))
    if bound.dtype.is_integer() or bound.dtype == pl.Null:
        return bound.cast(pl.Int64)
    raise ValueError(f"{bound.name} is {bound.dtype}, and must be a timestamp or a whole number")


def names_of(results: pl.DataFrame, queries: Sequence[Query]) -> list[str]:
    """The queries to report on: those of the run in their order, then whatever else has results."""
    found = results["query"].drop_nulls().unique(maintain_order=True).to_list()
    return list(dict.fromkeys([*(query.name for query in queries), *map(str, found)]))
