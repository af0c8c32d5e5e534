"""The files of a query book.

    path/HEAD                    the name of the newest version, which Spark reads once for every micro-batch
    path/versions/…7-3f9a….json  all queries of a version, under a name that is never used again; never changed
    path/lock                    held by who changes the book

A change is written as a version of its own first; then HEAD is moved to it, which is when it happens. A process that is
killed in between leaves a file that nobody reads. On a local file system, or one that is mounted, HEAD is replaced in
one step, and changes wait for each other; the lock of a process that dies goes with it. Object stores replace HEAD in
one step too, but have no locks: of two changes in the same moment one may be lost, unless it finds HEAD moved, and is
refused. HDFS as Arrow writes it is for a moment without a HEAD: a micro-batch that begins just then fails, and says so.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.fs as fs

from windrow.io.atomic import replacing
from windrow.spark.stream.bucket import RequestedQuery

FORMAT = 3
NAME = re.compile(r"(\d{20})-[0-9a-f]{16}")  # always as long: Spark keeps the length that HEAD has when a stream starts
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
SYSTEMS = ("file", "s3a", "gs", "abfss", "hdfs")  # of Spark, that Arrow has too
OF_ARROW = {"s3a": "s3", "s3n": "s3"}  # what Arrow calls otherwise


@dataclass(frozen=True)
class Version:
    """One version of a book."""

    number: int
    columns: Mapping[str, str]
    keys: Sequence[str]
    requested: Sequence[RequestedQuery]
    events: Mapping[str, Any] | None = None  # what is known of the stream that it is used by


def head(path: str) -> str:
    """The name of the newest version."""
    system, root = located(path)
    try:
        with system.open_input_stream(f"{root}/HEAD") as file:
            return str(file.read().decode().strip())
    except FileNotFoundError as error:
        raise ValueError(f"there is no query book at {path!r}: {error}") from error


def number_of(path: str, name: str | None) -> int:
    parts = NAME.fullmatch(name or "")
    if parts is None:
        raise ValueError(
            f"the HEAD of the query book at {path!r} names no version, but {name!r}: it was read while it was written, "
            "which is over by now, or it is not ours"
        )
    return int(parts[1])


@lru_cache(maxsize=256)
def read(path: str, name: str | None) -> Version:
    """A version by its name, which never means another."""
    number = number_of(path, name)
    system, root = located(path)
    try:
        with system.open_input_stream(f"{root}/versions/{name}.json") as file:
            data = file.read()
    except FileNotFoundError as error:
        raise ValueError(f"the HEAD of the query book at {path!r} names {name}, which is not there") from error
    try:
        fields = json.loads(data)
        written, content = fields["windrow"], fields.get("version")
        if written == FORMAT and fields["crc32"] == _sum_of(name, content):
            requested = [RequestedQuery.from_dict(query) for query in content["queries"]]
            return Version(number, content["columns"], content["keys"], requested, content["events"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"version {number} of the query book at {path!r} is damaged: {error}") from error
    if written != FORMAT:
        raise ValueError(f"the query book at {path!r} has format {written}; this windrow reads {FORMAT}")
    raise ValueError(
        f"version {number} of the query book at {path!r} is damaged: its checksum is not that of its content"
    )


def _sum_of(name: str | None, content: Any) -> int:
    """The checksum of a version and its name."""
    return zlib.crc32(f"{name} {json.dumps(content)}".encode())


def exists(path: str) -> bool:
    system, root = located(path)
    return bool(system.get_file_info(f"{root}/HEAD").type == fs.FileType.File)


@contextmanager
def changing(path: str) -> Iterator[None]:
    """Keep other changes away, where the file system can."""
    system, root = located(path)
    system.create_dir(f"{root}/versions", recursive=True)
    if not isinstance(system, fs.LocalFileSystem):
        yield
        return
    with open(f"{root}/lock", "wb") as file:
        _lock(file, "LOCK_EX")
        try:
            yield
        finally:
            _lock(file, "LOCK_UN")  # also for a process that was forked meanwhile


def _lock(file: BinaryIO, how: str) -> None:
    """A system, or a mounted file system, without locks is as an object store."""
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(file, getattr(fcntl, how))


def write(path: str, version: Version) -> None:
    """A new version, while nobody else is `changing` the book; refused if somebody has nevertheless."""
    system, root = located(path)
    name = f"{version.number:020d}-{secrets.token_hex(8)}"
    content = {
        "columns": dict(version.columns),
        "keys": list(version.keys),
        "queries": [query.to_dict() for query in version.requested],
        "events": version.events,
    }
    described = {"windrow": FORMAT, "crc32": _sum_of(name, content), "version": content}
    _put(system, f"{root}/versions/{name}.json", json.dumps(described))
    before = number_of(path, head(path)) if exists(path) else -1
    if before != version.number - 1:
        raise ValueError(f"somebody else has just changed the query book at {path!r}; try again")
    _put(system, f"{root}/HEAD", f"{name}\n")


def _put(system: Any, path: str, text: str) -> None:
    """Write a file whole: readers see what was there before, or all of it."""
    if not isinstance(system, fs.LocalFileSystem):
        with system.open_output_stream(path) as file:
            file.write(text.encode())
        return
    with replacing(Path(path), contended=True, shared=True) as local:
        local.write(text.encode())


# --- paths ----------------------------------------------------------------------------------------------------------


def absolute(path: str | os.PathLike[str]) -> str:
    """A path as workers know it, who may stand elsewhere; a local one is without a scheme."""
    text = os.fspath(path)
    scheme, rest = _parted(text)
    if scheme not in ("", "file"):
        return text.rstrip("/")
    if scheme and rest.startswith("//"):
        host, slash, rest = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise ValueError(f"{text!r} names the machine {host!r}; a local path has none: file:///{rest}")
        rest = slash + rest
    return os.path.abspath(rest)


def for_spark(path: str) -> str:
    """An `absolute` path as Spark takes it, to which one without a scheme may be on HDFS."""
    return path if _parted(path)[0] else f"file:{path}"


def arrow_uri(path: str) -> str:
    """An `absolute` path that has a scheme as Arrow takes it."""
    scheme, rest = _parted(path)
    return f"{OF_ARROW.get(scheme, scheme)}:{rest}"


def located(path: str) -> tuple[Any, str]:
    """The file system of Arrow on which an `absolute` path is, and where on it."""
    scheme, _ = _parted(path)
    if not scheme:
        return fs.LocalFileSystem(), path
    try:
        system, root = fs.FileSystem.from_uri(arrow_uri(path))
    except pa.ArrowInvalid as error:
        reason = str(error)
        if "Unrecognized filesystem type" in reason:
            reason = f"Arrow, which reads and writes it, has no file system for {scheme!r}; it has {', '.join(SYSTEMS)}"
        raise ValueError(f"there can be no query book at {path!r}: {reason}") from error
    return system, root.rstrip("/")


def _parted(path: str) -> tuple[str, str]:
    """The scheme of a path, if it has one, and the rest."""
    scheme = SCHEME.match(path)
    return (scheme[1].lower(), path[scheme.end() :]) if scheme else ("", path)
