"""What is asked of a tree: queries over events with these columns, plain enough to be sent to every node.

Events have a column more, the node that they come from. Their order is (time, node, `order_by`, position in the node's
stream), so that it is the same in whatever order they travel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from windrow.jobs import Job, job_of
from windrow.ordered import NODE
from windrow.query import Query


@dataclass(frozen=True)
class Asked:
    """Queries, the time that they are measured on, how far each node's events may be out of order, and the columns."""

    queries: tuple[Query, ...]
    time: str
    columns: tuple[tuple[str, pl.DataType], ...]
    lateness: str | int = 0
    order_by: tuple[str, ...] = ()

    @staticmethod
    def of(
        queries: Iterable[Query],
        time: str,
        columns: Mapping[str, pl.DataType],
        lateness: str | int = 0,
        order_by: Sequence[str] = (),
    ) -> Asked:
        return Asked(tuple(queries), time, tuple(columns.items()), lateness, tuple(order_by))

    def job(self) -> Job:
        """The job that every node binds for itself."""
        columns = {**dict(self.columns), NODE: pl.String()}
        options: dict[str, Any] = {"lateness": self.lateness, "order_by": (NODE, *self.order_by)}
        return job_of(self.queries, self.time, columns, **options, ties=False, joins=True)

    @property
    def fingerprint(self) -> str:
        return self.job().bound.plan.fingerprint

    def to_dict(self) -> dict[str, Any]:
        return {
            "queries": [query.to_dict() for query in self.queries],
            "time": self.time,
            "lateness": self.lateness,
            "order_by": list(self.order_by),
        }

    @property
    def table(self) -> pl.DataFrame:
        """No events, with all columns: it says their types to the letter."""
        return pl.DataFrame(schema=dict(self.columns))

    @staticmethod
    def from_dict(described: Mapping[str, Any], table: pl.DataFrame) -> Asked:
        queries = [Query.from_dict(query) for query in described["queries"]]
        return Asked.of(queries, described["time"], table.schema, described["lateness"], described["order_by"])
