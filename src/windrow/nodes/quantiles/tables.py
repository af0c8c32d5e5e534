"""The tables in which local nodes and the root exchange the multisets of time windows and sessions.

    <group>|blocks <multiset>   as `protocol` says, with from when to when its events are
    <group>|values <multiset>   likewise
    progress, gone              see `nodes.tables`

and down, in a request:

    <group>|wanted <multiset>   likewise
    <group>|released            multisets of these and earlier sends, of events before a time, will not be requested
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import polars as pl

from windrow.core.stream.job import Job
from windrow.nodes.quantiles.protocol import REFINED, MultisetSchema
from windrow.nodes.tables import GONE, GONE_COLUMNS, PROGRESS, PROGRESS_COLUMNS, lacks

RELEASED: dict[str, pl.DataType] = {"send": pl.Int64(), "start": pl.Int64()}


def schemas_of(job: Job) -> dict[str, MultisetSchema]:
    """The tables of each group of time windows and sessions whose multisets stay at nodes."""
    groups = [compiled for compiled in job.compiled.groups if compiled.group.placement == REFINED]
    return {compiled.group.name: MultisetSchema(compiled) for compiled in groups}


def tables_of(job: Job) -> tuple[set[str], set[str]]:
    """The names of the tables that go with the slices of such groups, and of those that the root waits for."""
    schemas = schemas_of(job).values()
    blocks = {schema.table("blocks", multiset) for schema in schemas for multiset in schema.multisets}
    names = {name for schema in schemas for name in schema.tables} | ({PROGRESS, GONE} if schemas else set())
    return names, names - blocks


def wrong_with(
    schemas: Iterable[MultisetSchema], tables: Mapping[str, pl.DataFrame], times: tuple[int, int]
) -> str | None:
    """Why the tables of such groups cannot be taken; None if they can."""
    schemas = list(schemas)
    for name, columns in ((PROGRESS, PROGRESS_COLUMNS), (GONE, GONE_COLUMNS)) if schemas else ():
        if name in tables and dict(tables[name].schema) != columns:
            return f"{name} has other columns in its batch than it should"
        if name in tables and lacks(tables[name], columns):
            return f"{name} has no value where one is needed in its batch"
    return next((reason for schema in schemas if (reason := schema.wrong_with(tables, times))), None)
