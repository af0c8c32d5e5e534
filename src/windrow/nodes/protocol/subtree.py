"""What a node with children holds of the tree below it: the children, and their slices merged or assembled.

    batch of a child ── take ──▶ children, and the open slices (intermediate) or the state of all groups (root)
                        the least watermark of the children moves ──▶ report: closed slices, or results of windows

**State is a fold.** All this follows from the accepted batches in their order, and so do the reports to the node's own
parent. What does not follow from batches (a child is silent, leaves or comes; the query set changes) has a method here,
after which `parent.py` makes a checkpoint. Who gets which number, and what is on disk, is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import polars as pl

from windrow.core.arrays.checks import laid_out
from windrow.core.expressions.errors import QueryError
from windrow.core.ordered.node_windows import NODE_KEY
from windrow.core.query.query import Query
from windrow.core.stream.job_slicer import Tables
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.core.windows.ordered import NODE
from windrow.nodes.counting.tables import NODE_COLUMN, groups_of, names_in
from windrow.nodes.protocol.children import Child, Children, after, cut_since
from windrow.nodes.protocol.homes import Homes
from windrow.nodes.protocol.intermediate import Merger
from windrow.nodes.protocol.messages import Announced, Batch, Notes, Out, Report, Request
from windrow.nodes.protocol.root import RootState
from windrow.nodes.pushdown import NODES, nodes_table
from windrow.nodes.quantiles.protocol import REMOTE
from windrow.nodes.queries import QuerySet
from windrow.nodes.tables import GONE, PROGRESS, gone_table

_COLUMNS = "columns"  # in a checkpoint, an empty table of events
_OF_NODES = {NODE, NODE_COLUMN, NODE_KEY}  # the columns that say whose a row is


def _nodes_in(batch: Batch) -> set[str]:
    """The nodes whose rows a batch has."""
    names: set[str] = set()
    for table in batch.tables.values():
        columns = [table[column] for column in _OF_NODES.intersection(table.columns)]
        if REMOTE in table.columns:
            columns.append(laid_out(table[REMOTE])[0].struct.field("node"))
        for column in columns:
            if column.dtype == pl.String():
                ends = pl.Series([column.min(), column.max()], dtype=pl.String)  # the same in rows of a local node
                names |= set(ends if ends[0] == ends[1] else column.unique())
    return names - {None}


class Planned(NamedTuple):
    """A query set that was made of another one."""

    before: QuerySet
    query_set: QuerySet


class Subtree:
    """The tree below a node; a root either assembles windows or `for_spark` with slices."""

    def __init__(
        self, children: Children, homes: Homes, epoch: int, is_root: bool, for_spark: bool, notes: Notes
    ) -> None:
        self.children, self.homes, self.notes = children, homes, notes
        self.query_set: QuerySet | None = None
        self.watermark = INT64_MIN
        self.assembly: RootState | None = None
        self.merger: Merger | None = None
        self.for_spark = is_root and for_spark
        self._epoch, self.is_root = epoch, is_root
        self._announced = Announced()
        self._added: dict[str, int] = {}  # queries that came at run time, and the version that they came with

    @property
    def is_needed(self) -> bool:
        query_set = self.query_set
        if query_set is None:
            return False
        requests = bool(query_set.refined or groups_of(query_set.job))
        # once no window needs requests any more, nodes that do not know of it have to learn it before they may end
        return any(
            child.answers and (requests or child.announced.version < query_set.version)
            for child in self.children.awaited
        )

    # --- the query set ------------------------------------------------------------------------------------------------

    def begin(self, query_set: QuerySet) -> None:
        if query_set.pushed and self.for_spark:
            raise QueryError("a root that feeds Spark passes slices and events on; leave push_down out")
        self.query_set = query_set
        if self.is_root and not self.for_spark:
            self.assembly = RootState(query_set.job, self._epoch)
        else:
            self.merger = Merger(query_set.job)

    def planned(self, queries: Sequence[Query]) -> Planned:
        """Plan more queries; nothing changes here, so that any thread may ask for it while the node goes on.

        If the watermark has moved by the time the plan is put in, it is still right: until a query begins, which is
        behind the watermark of that moment, its windows are dropped.
        """
        if self.for_spark:
            raise QueryError(
                "a root that feeds Spark asks what it began with; to ask more, take a new spool and checkpoint"
            )
        before = self.query_set
        assert before is not None
        return Planned(before, before.added(queries, after(self.watermark)))

    def put_in(self, planned: Planned) -> list[Report] | None:
        """Go on with a plan; None, and nothing has changed, if its query set is not that of the node any more."""
        if planned.before is not self.query_set:
            return None
        new = planned.query_set
        self._added |= {name: version for name, version in new.pending if version == new.version}
        return self.switch(new)

    def remove(self, name: str) -> list[Report]:
        assert self.query_set is not None
        query_set = self.query_set.removed(name)
        self._added.pop(name, None)
        return self.switch(query_set)

    def switch(self, query_set: QuerySet) -> list[Report]:
        """Go on with another query set; slices that were cut by the one before are reported first."""
        reports: list[Report] = []
        if self.merger is not None:
            tables = self.merger.switch(query_set.job, self.watermark)
            reports += [self._report(tables)] if tables else []
        elif self.assembly is not None:
            self.assembly = self.assembly.switched(query_set.job)
        else:
            self.begin(query_set)
        self.query_set = query_set
        return reports + self.advance()  # a node without children to wait for knows at once that all cut by it

    def _begin_queries(self) -> None:
        """Begin the pending queries by which all awaited children cut, after everything that was cut without them."""
        assert self.query_set is not None
        version = self.children.version(self.query_set.version)
        names = [name for name, pending in self.query_set.pending if pending <= version]
        if names and self.assembly is not None:
            since = max(after(self.watermark), self.children.since(version))
            self.query_set = self.query_set.begun(names, since)
            self.assembly = self.assembly.switched(self.query_set.job)

    def _begin_again(self, child: Child, batch: Batch) -> None:
        """Make queries pending again if a child was not awaited when they began, and has cut events without them.

        Such slices cannot be split at the edges of the query, so it begins again after them.
        """
        if self.query_set is None or self.assembly is None:
            return
        begun, pending = dict(self.query_set.since), dict(self.query_set.pending)
        for name, version in self._added.items():
            is_behind = min(child.announced.version, batch.version) < version
            if name not in pending and is_behind and cut_since(version, batch.announced, batch.newest) > begun[name]:
                self.query_set = replace(self.query_set, pending=(*self.query_set.pending, (name, version)))
                self.notes.append(f"{name} begins again: {batch.node} comes with events that were cut without it")

    # --- batches ------------------------------------------------------------------------------------------------------

    def wrong_with(self, batch: Batch) -> str | None:
        """Why a batch cannot be taken; None if it can."""
        assert self.query_set is not None
        reason = self.children[batch.node].wrong_with(batch) or self.query_set.wrong_with(batch.tables)
        reason = reason or self._wrong_names(batch)
        if reason is None and self.assembly is not None:
            reason = self.assembly.wrong_with(batch.tables)
            if reason is not None and not batch.position:  # no node between can have seen it: `absorb` passes over it
                self.notes.once(reason, f"passed over, of what {batch.node} has passed on: {reason}")
                reason = None
        return reason

    def _wrong_names(self, batch: Batch) -> str | None:
        """Check for which local nodes a batch speaks.

        Those are the child itself, if it is a local node, and those that have their home below it. Of counted groups,
        each must have announced itself before.
        """
        assert self.query_set is not None
        forms, tables = self.query_set.forms, batch.tables
        gone = tables[NODES]["node"] if self.query_set.pushed and NODES in tables else ()
        for name in (*batch.events, *gone, *names_in(forms, tables), *_nodes_in(batch)):
            above = self.homes.above(name)
            if above != batch.node:
                where = "another node" if above in (None, name) else f"below {above}"
                return f"it counts for {name!r}, which is {where}"
        if not forms:
            return None
        announced = {*self.children[batch.node].answering, *(tables[PROGRESS]["node"] if PROGRESS in tables else ())}
        for name in names_in(forms, {part: table for part, table in tables.items() if part != GONE}):
            if name not in announced:
                return f"it counts for {name!r}, which has not said a word"
        return None

    def take(self, batch: Batch, now: int) -> list[Report]:
        """Fold a batch into what the node holds."""
        child, is_late = self.children[batch.node], batch.watermark <= self.watermark
        self._begin_again(child, batch)
        child.take(batch, self.query_set is not None and bool(self.query_set.pushed))
        child.count_late(self._absorb(batch.tables, now, batch.events))
        return self.advance(is_late)

    def _absorb(
        self, tables: Mapping[str, pl.DataFrame], now: int = 0, events: Mapping[str, int] | None = None
    ) -> Mapping[str, int]:
        """Take tables in; returns how many events each group leaves out, which only the root can know."""
        if self.assembly is not None:
            return self.assembly.absorb(tables, now)
        if self.merger is not None:
            self.merger.absorb(tables, events or {})
        return {}

    def suspend(self, child: Child, state: Literal["silent", "left"]) -> list[Report]:
        child.state = state
        self._set_reachable(child, False)
        return self.advance()

    def resume(self, name: str, child: Child) -> list[Report]:
        """Wait for a child from now on; what it has sent before may be all that the other children waited for."""
        if not child.is_awaited:
            child.finished = [node for node in child.finished if node != name]
            self._set_reachable(child, True)
        child.state = "live"
        return self.advance()

    def _set_reachable(self, child: Child, is_reachable: bool) -> None:
        """Tell the root that the local nodes below `child` are unreachable (or back), so that windows of other nodes
        stop (or resume) waiting for them.

        Nodes that announced that they are leaving are skipped: nobody waits for those anyway.
        """
        tables: Tables = {}
        if child.reachable:
            tables[GONE] = gone_table(child.reachable, not is_reachable)
        names = [name for name in child.events if name not in child.finished]
        if names and self.query_set is not None and self.query_set.pushed:
            tables[NODES] = nodes_table(names, not is_reachable)
        if tables:
            self._absorb(tables)

    # --- reports ------------------------------------------------------------------------------------------------------

    def advance(self, is_late: bool = False) -> list[Report]:
        """Move the watermark to the least of the awaited children's, and report what is due."""
        if self.query_set is None:
            return []
        self._begin_queries()
        least = max(self.watermark, min(self.children.active_watermarks, default=self.watermark))
        has_moved, self.watermark = least > self.watermark, least
        if self.assembly is not None:
            return self._results(self.assembly)
        return self._slices(self.merger, has_moved, is_late) if self.merger is not None else []

    def _results(self, assembly: RootState) -> list[Report]:
        """The windows that are due; those of pending queries are dropped, because they are not complete."""
        assert self.query_set is not None
        results = assembly.advance(self.watermark)
        late = {group: of_nodes for group, of_nodes in assembly.late() if of_nodes}
        if late:
            child_of = self.children.by_local_node()
            for group, of_nodes in late.items():
                for node, events in of_nodes.items():
                    self.children[child_of[node]].count_late({group: events})
        if self.query_set.pending:
            results = results.filter(~pl.col("query").is_in([name for name, _ in self.query_set.pending]))
        return [self._report({"results": results})] if results.height else []

    def _slices(self, merger: Merger, has_moved: bool, is_late: bool) -> list[Report]:
        """The slices that no awaited child adds to, and what this node announces of how all below it cut."""
        assert self.query_set is not None
        version = self.children.version(self.query_set.version)
        announced = Announced(version, self.children.since(version), int(self.children.all_idle))
        falls_idle = announced.idle > self._announced.idle
        is_due = has_moved or is_late or falls_idle or merger.is_urgent
        has_ended = self.watermark == INT64_MAX
        tables = merger.due(self.watermark, everything=has_ended or falls_idle) if is_due else None
        if self.for_spark and not (tables or (has_moved and tables is not None)):
            return []  # Spark, which takes the slices of a root, need not know how nodes cut
        if tables is None and announced == self._announced:
            return []
        return [self._report(tables or {}, announced)]

    def leave(self) -> list[Report]:
        """All slices, however open; the assembled windows of a root stay where they are."""
        tables = self.merger.due(self.watermark, everything=True) if self.merger is not None else None
        return [] if tables is None else [self._report(tables)]

    def _report(self, tables: Tables, announced: Announced | None = None) -> Report:
        self._announced = announced or self._announced
        events = dict(self.merger.events) if self.merger is not None else {}
        return Report(self.watermark, self._announced, events, self.children.newest, tables, {})

    # --- requests -----------------------------------------------------------------------------------------------------

    def requests(self, now: int) -> Out:
        """At the root: directives for local nodes and what it needs from them, by way of its children."""
        if self.assembly is None:
            return []
        requests = list(self.assembly.requests(now))
        child_of = self.children.by_local_node() if requests else {}
        return [
            (child_of[node], Request(self.children[child_of[node]].life, node, number, int(is_over), tables))
            for node, number, is_over, tables in requests
            if node in child_of
        ]

    def pass_on(self, request: Request) -> Out:
        """A request of the root goes to every child that has the local node below it."""
        return [
            (name, replace(request, life=child.life))
            for name, child in self.children.items()
            if request.node in child.answering
        ]

    # --- state --------------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Plain data of the root's windows, and of queries that have come later from which event time on they hold."""
        if self.assembly is None or self.query_set is None:
            return {}
        pending = dict(self.query_set.pending)
        since = {name: None if name in pending else time for name, time in self.query_set.since}
        return {"overflows": self.assembly.overflows, "since": since, **self.assembly.status()}

    @property
    def _state(self) -> RootState | Merger:
        state = self.assembly or self.merger
        assert state is not None
        return state

    def saved(self) -> tuple[dict[str, Any], Tables]:
        """Everything as plain data and tables; `restore` goes on with them."""
        assert self.query_set is not None
        state, tables = self._state.saved()
        header = {
            "watermark": self.watermark,
            "announced": self._announced,
            "children": self.children.saved(),
            "homes": dict(self.homes),
            "query_set": self.query_set.to_dict(),
            "added": self._added,
            "state": state,
        }
        return header, {**tables, _COLUMNS: self.query_set.table}

    def restore(self, header: Mapping[str, Any], tables: Mapping[str, pl.DataFrame]) -> None:
        tables = dict(tables)
        self.begin(QuerySet.from_dict(header["query_set"], tables.pop(_COLUMNS)))
        self.children.restore(header["children"])
        self.homes.update(header["homes"])
        self.watermark, self._announced = header["watermark"], Announced(*header["announced"])
        self._added = header["added"]
        self._state.restore(header["state"], tables)
