"""What is asked of a tree: queries over events with these columns, plain enough to be sent to every node.

Events have a column more, the node that they come from. Their order is (time, node, `order_by`, position in the node's
stream), so that it is the same in whatever order they travel.

What is asked has a version, which grows with every query that comes or goes. A query that has come is `pending` until
every node cuts its events by it; the root then knows the event time from which on it can be answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import polars as pl

from windrow.core.expressions.errors import QueryError, hint
from windrow.core.expressions.limits import QUERIES, beyond
from windrow.core.expressions.types import spark_type
from windrow.core.plan.groups import Entry, Placement, cut_from
from windrow.core.plan.options import StreamOptions
from windrow.core.query.query import NOT_DESCRIBED, Query
from windrow.core.slices.binding import ARRIVAL
from windrow.core.slices.kernel import time_name
from windrow.core.stream.ingest import room_of
from windrow.core.stream.job import Job, job_of
from windrow.core.windows.fixed import FURTHEST, INT64_MIN
from windrow.core.windows.ordered import JOINED, NODE, Counting, scope_of
from windrow.nodes.counting.schemes import NAMES, SMALL
from windrow.nodes.counting.tables import ByScheme, Form, forms_of
from windrow.nodes.counting.tables import wrong_with as wrong_counting
from windrow.nodes.explain import explain
from windrow.nodes.pushdown import PUSHED, wrong_with
from windrow.nodes.quantiles import tables as quantile_tables
from windrow.nodes.quantiles.protocol import REFINED, MultisetSchema, can_be_refined
from windrow.nodes.tables import differs, impossible


@dataclass(frozen=True)
class QuerySet:
    """Queries, the time that they are measured on, how far each node's events may be out of order, and the columns."""

    queries: tuple[Query, ...]
    options: StreamOptions
    columns: tuple[tuple[str, pl.DataType], ...]
    push_down: bool = False  # whether local nodes find windows themselves where they can; they need a spool then
    local_keys: tuple[str, ...] = ()  # columns whose every value comes in at one node only
    counting: tuple[tuple[str, str], ...] = (("", "auto"),)  # by which scheme: of queries by name, and of all others
    quantiles: str = "refine"  # or "whole": whether all values travel of which quantiles are asked
    version: int = 1
    since: tuple[tuple[str, int], ...] = ()  # of queries that have come later, from which event time on
    pending: tuple[tuple[str, int], ...] = ()  # of queries for which that is not known yet, the version that has them

    @staticmethod
    def of(
        queries: Iterable[Query],
        time: str,
        columns: Mapping[str, pl.DataType],
        lateness: str | int = 0,
        order_by: Sequence[str] = (),
        bad_events: str = "raise",
        push_down: bool = False,
        local_keys: Sequence[str] = (),
        counting: str | Mapping[str, str] = "auto",
        quantiles: str = "refine",
    ) -> QuerySet:
        options = StreamOptions(time, lateness, order_by=tuple(order_by), bad_events=bad_events)
        schemes = {"": counting} if isinstance(counting, str) else {"": "auto", **counting}
        given = tuple(queries), options, tuple(columns.items()), push_down, tuple(local_keys)
        query_set = QuerySet(*given, tuple(schemes.items()), quantiles)
        if quantiles not in ("refine", "whole"):
            raise QueryError(f"quantiles: there are 'refine' and 'whole', not {quantiles!r}")
        known = ["", *(query.name for query in query_set.queries)]
        for name, scheme in schemes.items():
            if scheme not in NAMES:
                raise QueryError(f"counting: there is no scheme {scheme!r}; there are {', '.join(NAMES)}")
            if name not in known:
                raise QueryError(f"counting: there is no query {name!r}; there are {', '.join(map(repr, known[1:]))}")
        for column in local_keys:
            if column not in columns:
                raise QueryError(f"local_keys: there is no column {column!r} in the events; {hint(column, columns)}")
        if NODE in columns:
            raise QueryError(f"the column {NODE!r} says which node an event came to; call the events' own otherwise")
        query_set.check()
        return query_set

    def check(self) -> None:
        """Refuse what a tree cannot do."""
        if len(self.queries) > QUERIES:
            raise QueryError(f"a tree has {beyond('queries', len(self.queries), QUERIES)}")
        for query in self.queries:
            if query.distinct_on:
                raise QueryError(f"query {query.name!r}: no node sees the repeats of all, so distinct_on is refused")
            if query.time not in (None, self.options.time) or self.options.time == ARRIVAL:
                raise QueryError(
                    f"query {query.name!r} is on {query.time or 'arrival'!r}; a tree has one time, a column of the "
                    f"events, and that is {self.options.time!r}"
                )
        _ = self.job.compiled

    @cached_property
    def job(self) -> Job:
        """The job that every node compiles for itself."""
        since = dict(self.since)
        columns = {**dict(self.columns), NODE: pl.String()}
        return job_of(
            [Entry(query, since.get(query.name, INT64_MIN)) for query in self.queries],
            replace(self.options, order_by=(NODE, *self.options.order_by)),
            columns,
            ties=False,
            joins=True,
            placements=self.placements,
        )

    @cached_property
    def forms(self) -> list[Form]:
        """What the tables of the groups look like on whose windows nodes agree."""
        return forms_of(self.job)

    @property
    def _placed(self) -> list[Query]:
        """The queries that may have a placement; not those of run time, which begin when all have heard them."""
        later = dict(self.since)
        return [query for query in self.queries if query.name not in later]

    @property
    def pushed(self) -> tuple[str, ...]:
        """The queries whose windows local nodes find."""
        return tuple(query.name for query in self._placed if self.push_down and self._can_be_pushed(query))

    def as_events(self) -> QuerySet:
        """The same for a root that passes on what it gets: nobody there agrees on anything with nodes."""
        return replace(self, counting=(("", "central"),), quantiles="whole")

    @property
    def counted(self) -> dict[Query, str]:
        """The queries on the ends of whose windows nodes agree, and by which scheme."""
        schemes = {query: self.scheme(query) for query in self._placed if query.name not in self.pushed}
        return {query: scheme for query, scheme in schemes.items() if scheme != "central"}

    @property
    def refined(self) -> tuple[str, ...]:
        """The queries of whose multisets nodes send block summaries first."""
        agreed = [query for query, scheme in self.counted.items() if scheme != "approximate"]
        others = [query for query in self._placed if not isinstance(query.window, Counting)]
        refined = {query.name for query in (*agreed, *others) if self.quantiles == "refine" and can_be_refined(query)}
        return tuple(query.name for query in self.queries if query.name in refined)

    @property
    def placements(self) -> dict[str, Placement]:
        """Where the work of queries is done, if not as that of all others, by their names.

        Counting queries over the same events by the same keys share a group, which is one that keeps multisets at
        nodes as soon as one of them asks for quantiles.
        """
        counted = self.counted
        shared = {query: (scheme, query.by, query.filter_first) for query, scheme in counted.items()}
        refined = {shared.get(query) for query in self.queries if query.name in self.refined}
        by_scheme = {query.name: ByScheme.of(scheme, shared[query] in refined) for query, scheme in counted.items()}
        return dict.fromkeys(self.refined, REFINED) | by_scheme | dict.fromkeys(self.pushed, PUSHED)

    def scheme(self, query: Query) -> str:
        """By which scheme the events of a query travel that counts over all nodes."""
        window, schemes = query.window, dict(self.counting)
        if (
            not isinstance(window, Counting)
            or window.scope != "global"
            or any(one.needs_order for one in query.computed)
        ):
            return "central"
        scheme = schemes.get(query.name, schemes[""])
        return "central" if scheme == "auto" and min(window.n, window.step) < SMALL else scheme

    def _can_be_pushed(self, query: Query) -> bool:
        """Whether each node can find its windows alone."""
        at_one_node = NODE in query.by or not set(self.local_keys).isdisjoint(query.by)
        return query.needs_order and (at_one_node or scope_of(query.window) in JOINED)

    # --- queries that come and go ---------------------------------------------------------------------------------

    def added(self, queries: Sequence[Query], since: int) -> QuerySet:
        """With more queries, which are there from an event time on that is not before this one."""
        names = {query.name for query in self.queries}
        for query in queries:
            if query.name in names:
                raise QueryError(f"there already is a query called {query.name!r}; remove it first, or choose a name")
            names.add(query.name)
        version = self.version + 1
        query_set = replace(
            self,
            queries=(*self.queries, *queries),
            version=version,
            since=(*self.since, *((query.name, since) for query in queries)),
            pending=(*self.pending, *((query.name, version) for query in queries)),
        )
        query_set.check()
        return query_set

    def removed(self, name: str) -> QuerySet:
        names = [query.name for query in self.queries]
        if name not in names:
            raise QueryError(f"there is no query called {name!r}; there are {', '.join(map(repr, names)) or 'none'}")
        return replace(
            self,
            queries=tuple(query for query in self.queries if query.name != name),
            version=self.version + 1,
            since=tuple(one for one in self.since if one[0] != name),
            pending=tuple(one for one in self.pending if one[0] != name),
        )

    def begun(self, names: Iterable[str], since: int) -> QuerySet:
        """Queries that were pending are there from an event time on; sessions from the next multiple of their gap."""
        known, done = dict(self.since), set(names)
        for query in self.queries:
            if query.name in done:
                known[query.name] = max(known[query.name], cut_from(query, since))
        pending = tuple(one for one in self.pending if one[0] not in done)
        return replace(self, since=tuple(known.items()), pending=pending)

    def differs(self, given: QuerySet, before: Sequence[Query]) -> tuple[list[Query], list[Query]]:
        """Which of its queries are to go and which to come, if others are given now than before."""
        both = [{**vars(query_set.options), **vars(query_set)} for query_set in (self, given)]
        options = ("time", "columns", "lateness", "order_by", "bad_events")
        for name in (*options, "push_down", "local_keys", "counting", "quantiles"):
            old, new = (fields[name] for fields in both)
            if old != new:
                if name == "columns":
                    old, new = (
                        ", ".join(f"{column} {spark_type(dtype)}" for column, dtype in fields) for fields in (old, new)
                    )
                raise QueryError(
                    f"this spool belongs to a tree whose {name} is {old!r}, not {new!r}; leave it as it was, or take "
                    "another spool"
                )
        gone = [query for query in before if query not in given.queries and query in self.queries]
        come = [query for query in given.queries if query not in before and query not in self.queries]
        return gone, come

    def wrong_with(self, tables: Mapping[str, pl.DataFrame]) -> str | None:
        """Why tables of a node cannot be what was asked for; None if they can."""
        bound = self.job.compiled
        for group in bound.plan.groups:
            table, compiled = tables.get(group.name), bound.by_name[group.name]
            if table is None or group.is_apart:
                continue
            time = time_name(self.options.time) if group.ordered else "slice_start"
            reason = differs(group.name, table, compiled.travels, [*compiled.schema.keys, time])
            if reason := reason or impossible(group.name, compiled.wrong_with(table, self.times)):
                return reason
        reason = quantile_tables.wrong_with(self._multiset_schemas, tables, self.times)
        reason = reason or wrong_with(self.job, tables, self.times)
        return reason or wrong_counting(self.forms, tables, self.times)

    @cached_property
    def times(self) -> tuple[int, int]:
        """The least and the greatest time of slices and events, so that every window around them can be written."""
        furthest = self.job.compiled.plan.furthest.get(self.options.time)
        return -FURTHEST, FURTHEST if furthest is None else room_of(furthest, self.job.time_columns[self.job.time])

    @cached_property
    def _multiset_schemas(self) -> list[MultisetSchema]:
        return list(quantile_tables.schemas_of(self.job).values())

    def explain(self) -> str:
        """What travels for each query, and why."""
        pushed = {one.name for one in self.queries if self._can_be_pushed(one)}
        return explain(self.job, pushed, self.push_down, dict(self.counting)[""])

    # --- how it is written ----------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        return {
            "queries": [query.to_dict() for query in self.queries],
            "options": self.options.to_dict(),
            "push_down": self.push_down,
            "local_keys": list(self.local_keys),
            "counting": dict(self.counting),
            "quantiles": self.quantiles,
            "version": self.version,
            "since": dict(self.since),
            "pending": dict(self.pending),
        }

    @cached_property
    def table(self) -> pl.DataFrame:
        """No events, with all columns: it says their types to the letter."""
        return pl.DataFrame(schema=dict(self.columns))

    @staticmethod
    def from_dict(described: Mapping[str, Any], table: pl.DataFrame | None) -> QuerySet:
        """The way back, with the table that says the types of columns; a `QueryError` if these are no queries."""
        try:
            query_set = QuerySet(
                tuple(Query.from_dict(query) for query in described["queries"]),
                StreamOptions.from_dict(described["options"]),
                tuple(table.schema.items()),  # type: ignore[union-attr]  # without one it is refused like all else
                described["push_down"],
                tuple(described["local_keys"]),
                tuple(described["counting"].items()),
                described["quantiles"],
                described["version"],
                tuple(described["since"].items()),
                tuple(described["pending"].items()),
            )
            query_set.check()
        except QueryError:
            raise
        except NOT_DESCRIBED as error:
            raise QueryError(f"this does not describe a query set: {type(error).__name__}: {error}") from error
        return query_set
