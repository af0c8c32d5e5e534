"""The tables in which local nodes and the root exchange the multisets of time windows and sessions.

    <group>|blocks <multiset>   as `protocol` says, with from when to when its events are
    <group>|values <multiset>   likewise
    quantiles                   the node, and whether nothing may be requested of it any more

and down, in a request:

    <group>|wanted <multiset>   likewise
    <group>|released            multisets of these and earlier sends, of events before a time, will not be requested
    quantiles                   nothing will be requested any more
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import polars as pl

from windrow.core.stream.job import Job
from windrow.nodes.quantiles.protocol import REFINED, MultisetSchema
from windrow.nodes.tables import GONE, GONE_COLUMNS

QUANTILES = "quantiles"
NODES: dict[str, pl.DataType] = {"node": pl.String(), "over": pl.Boolean()}
RELEASED: dict[str, pl.DataType] = {"send": pl.Int64(), "start": pl.Int64()}
OVER: dict[str, pl.DataType] = {"over": pl.Boolean()}


def schemas_of(job: Job) -> dict[str, MultisetSchema]:
    """The tables of each group of time windows and sessions whose multisets stay at nodes."""
    groups = [compiled for compiled in job.compiled.groups if compiled.group.placement == REFINED]
    return {compiled.group.name: MultisetSchema(compiled) for compiled in groups}


def tables_of(job: Job) -> tuple[set[str], set[str]]:
    """The names of the tables that go with the slices of such groups, and of those that the root waits for."""
    schemas = schemas_of(job).values()
    blocks = {schema.table("blocks", multiset) for schema in schemas for multiset in schema.multisets}
    names = {name for schema in schemas for name in schema.tables} | ({QUANTILES, GONE} if schemas else set())
    return names, names - blocks


def wrong_with(schemas: Iterable[MultisetSchema], tables: Mapping[str, pl.DataFrame]) -> str | None:
    """Why the tables of such groups cannot be taken; None if they can."""
    schemas = list(schemas)
    for name, columns in ((QUANTILES, NODES), (GONE, GONE_COLUMNS)) if schemas else ():
        if name in tables and dict(tables[name].schema) != columns:
            return f"{name} has other columns in its batch than it should"
    return next((reason for schema in schemas if (reason := schema.wrong_with(tables))), None)
