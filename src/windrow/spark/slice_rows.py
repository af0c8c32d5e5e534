"""Slices as rows of a DataFrame, and their origin: what it says of the events that they were made of.

    bucket INT, payload BINARY, watermark TIMESTAMP, node STRING, events BIGINT

A row holds the slices of one bucket of keys, of one node and micro-batch. The origin stands in the metadata of the
column `payload`, and its fingerprint in the header of every payload, so that `windows(slices, queries)` needs nothing
else, and refuses slices that were cut for other queries.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from windrow.core.arrays.dataframes import InputError
from windrow.core.expressions.errors import QueryError
from windrow.core.plan.options import StreamOptions
from windrow.core.plan.plan import fingerprint_of
from windrow.core.plan.watermark import Lengths
from windrow.core.query.query import Query
from windrow.core.stream.job import Job, job_of
from windrow.core.windows.fixed import INT64_MAX
from windrow.io import tables
from windrow.spark.types import END_MS, SHIFT_MS

META = "windrow"  # the key of the metadata
VERSION = 4

Marks = dict[str, dict[str, Any]]
"""How far each node has been read, as it stands in an offset.

place:  up to where, in the source's own terms
rows:   how many events lie before it
seen:   the greatest time among them, None if there is none
new:    what the micro-batch that ends here reads, only where there is something
at:     when it was noticed that something is new, in milliseconds of the driver's clock

Of files also: how many were read (`files`), the size of the last one, the names of the `recent` ones among those that
are read and still there, and how many are there `before` them.
"""


class Limit(NamedTuple):
    """How much one micro-batch may read, and how much there must be."""

    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    least: int | None = None


@dataclass(frozen=True)
class Origin:
    """The events of slices, and how they were cut."""

    columns: Mapping[str, pl.DataType]
    options: StreamOptions
    buckets: int
    plan: str  # the fingerprint
    queries: tuple[str, ...]  # their names
    described: str  # the queries themselves, as `text_of` writes them

    def to_json(self) -> str:
        types = tables.to_text(pl.DataFrame(schema=self.columns))
        fields = {"version": VERSION, "columns": types, "options": self.options.to_dict(), "buckets": self.buckets}
        return json.dumps(fields | {"plan": self.plan, "queries": self.queries, "described": self.described})

    @staticmethod
    def from_json(text: str) -> Origin:
        fields = json.loads(text)
        if fields.pop("version") != VERSION:
            raise QueryError("these slices were made by another version of windrow")
        columns = tables.from_text(fields.pop("columns")).schema
        fields |= {"options": StreamOptions.from_dict(fields["options"]), "queries": tuple(fields["queries"])}
        return Origin(dict(columns), **fields)

    @property
    def cut_for(self) -> list[Query]:
        """The queries that the slices were cut for."""
        return [Query.from_dict(query) for query in from_text(self.described)]

    def job(self, queries: Iterable[Query], lateness: Lengths = 0, updates: Lengths = None) -> Job:
        """A job over its events."""
        options = replace(self.options, lateness=lateness or self.options.lateness, updates=updates)
        return job_of(queries, options, self.columns, ties=False)


def text_of(described: Sequence[dict[str, Any]]) -> str:
    """Descriptions of queries as a text, compressed, because there may be thousands."""
    return base64.b64encode(zlib.compress(json.dumps(described).encode())).decode()


def from_text(text: str) -> list[dict[str, Any]]:
    """The descriptions that `text_of` wrote."""
    return json.loads(zlib.decompress(base64.b64decode(text)))  # type: ignore[no-any-return]


def fingerprint(job: Job) -> str:
    """The same for two jobs that cut the same events into the same slices."""
    groups = sorted(job.compiled.plan.groups, key=lambda group: group.name)
    windows = [sorted(f"{line.line} {line.until} {line.closing}" for line in group.timelines) for group in groups]
    types = sorted((name, str(dtype)) for name, dtype in job.compiled.binding.needed.items())
    return fingerprint_of(groups, windows, types, job.options.order_by)


def row_schema(origin: Origin) -> t.StructType:
    """The columns of slices."""
    return t.StructType(
        [
            t.StructField("bucket", t.IntegerType()),
            t.StructField("payload", t.BinaryType(), metadata={META: origin.to_json()}),
            t.StructField("watermark", t.TimestampType()),
            t.StructField("node", t.StringType()),
            t.StructField("events", t.LongType()),
        ]
    )


def origin_of(schema: t.StructType) -> Origin | None:
    """What a schema says of slices; None if it has none."""
    if not {"bucket", "payload"} <= set(schema.names):
        return None
    text = schema["payload"].metadata.get(META)
    return None if text is None else Origin.from_json(text)


def is_slices(df: DataFrame) -> bool:
    """Whether a DataFrame holds slices instead of events."""
    return "payload" in df.columns and META in df.schema["payload"].metadata


def origin_of_slices(df: DataFrame) -> Origin:
    """What slices say of themselves; refuses those that do not any more."""
    origin = origin_of(df.schema)
    if origin is None:
        raise QueryError("these slices have lost their bucket; keep the columns bucket and payload")
    return origin


def job_of_slices(df: DataFrame, queries: Sequence[Query], options: StreamOptions) -> Job:
    """The job that goes on from slices; refuses those that were cut for other queries."""
    origin = origin_of_slices(df)
    cut_by = origin.options
    if options.time != cut_by.time:
        raise QueryError(f"these slices were cut along {cut_by.time!r}, not along {options.time!r}")
    if options.order_by and options.order_by != cut_by.order_by[1:]:
        raise QueryError(f"these slices are ordered by {list(cut_by.order_by)}; give order_by where they are made")
    job = origin.job(queries, options.lateness, options.updates)
    if fingerprint(job) != origin.plan:
        raise QueryError(
            f"these slices were cut for {', '.join(map(repr, origin.queries))}, and the queries here need others; "
            "give the same queries here as where they are made"
        )
    return job


def watermarked(df: DataFrame, job: Job) -> DataFrame:
    """The buckets and payloads of streaming slices, with Spark's watermark on them."""
    return df.withWatermark("watermark", f"{delay_of(job)} milliseconds").select("bucket", "payload")


def delay_of(job: Job) -> int:
    """The milliseconds by which Spark's watermark lies behind the times that it sees."""
    late = job.time_columns[job.time].lateness or 0
    return late if job.is_integer else -(-late // 1000)


def spark_time(units: int, job: Job) -> int:
    """A time on the time column as microseconds of Spark's watermark."""
    if not job.is_integer:
        return units
    if abs(units) >= SHIFT_MS:
        raise InputError(f"{job.time!r} is {units}, further out than Spark's watermark reaches, which is 2**52")
    return (units + SHIFT_MS) * 1000


def time_before(watermark: int, job: Job) -> int:
    """The time, as microseconds of Spark's watermark, from which Spark comes to exactly this watermark."""
    reached = END_MS * 1000 if watermark == INT64_MAX else spark_time(watermark, job)
    return reached + delay_of(job) * 1000


def check(header: Mapping[str, Any], plan: str) -> None:
    """Refuse a payload of another plan."""
    if header.get("plan", plan) != plan:
        raise ValueError("there are slices among these that were cut for other queries; make them again")
