"""Windows where the events are: pushed down to the local nodes.

    local   events ── ordered by key, in the node's own order ──▶ closed windows ──▶ rows of results, or states to join
    root    rows of results are passed on; states are joined with those of other nodes (`joining`) and then told

A query that needs the order of events is pushed down where all events of a key are at one node: the node is among its
keys, or a key that is known to live at one node; or where each node's windows are joined. Then no raw event travels.

What a node has windowed cannot be made again from a part of its source, so `Pushed` is kept in the node's spool with
every batch: a later life goes on with what it was after the last batch that the parent holds.

In a batch, a pushed group's table has its closed windows. Beside it `<group>|opened` says which windows have come to be
open or are no more, where the others must wait for them, and `nodes` which nodes there are, whether one has gone, and
how many of its events came too late.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import polars as pl

from windrow.core.arrays.dataframes import join_keys
from windrow.core.assemble.emitted import Emitted
from windrow.core.assemble.group_state import CompiledGroup
from windrow.core.ordered.node_windows import NODE_KEY, CompiledJoinedGroup, JoinedState
from windrow.core.ordered.state import CompiledOrderedGroup, OrderedState
from windrow.core.plan.groups import Group
from windrow.core.plan.watermark import WatermarkStep
from windrow.core.stream.group_states import GroupStates
from windrow.core.stream.job import Job
from windrow.core.stream.job_slicer import Tables, named_tables, parts_of, seen_by
from windrow.io.tables import pack, unpack
from windrow.nodes.tables import differs

NODES = "nodes"
_NODES = {"node": pl.String(), "gone": pl.Boolean(), "late": pl.Int64()}


def nodes_table(names: Iterable[str], gone: bool, late: int = 0) -> pl.DataFrame:
    """That these nodes are there, or are not any more."""
    return pl.DataFrame([{"node": name, "gone": gone, "late": late} for name in names], schema=_NODES)


def tables_of(job: Job) -> set[str]:
    """The names of the tables that pushed groups have in a batch."""
    names = {group.name for group in _groups(job)}
    return {*names, *(f"{name}|opened" for name in names), NODES} if names else set()


def _groups(job: Job) -> list[Group]:
    return [group for group in job.compiled.plan.groups if group.pushed]


def wrong_with(job: Job, tables: Mapping[str, pl.DataFrame]) -> str | None:
    """Why the tables of pushed groups cannot be taken; None if they can."""
    for group in _groups(job):
        compiled, results = job.compiled.by_name[group.name], job.compiled.results.empty.schema
        wanted: dict[str, Mapping[str, pl.DataType]] = {group.name: results}
        needed: dict[str, Iterable[str]] = {group.name: ("query", "window_start", "window_end", "revision")}
        if isinstance(compiled, CompiledJoinedGroup):
            columns = {**compiled.joining.schema.columns, NODE_KEY: pl.String()}
            wanted = {group.name: columns, f"{group.name}|opened": _opened_columns(compiled)}
            needed = {group.name: [*compiled.joining.schema.order, "last", NODE_KEY]}
            needed |= {f"{group.name}|opened": _opened_columns(compiled)}
        for name, types in wanted.items():
            if name in tables and (reason := differs(name, tables[name], types, needed[name])):
                return reason
    return differs(NODES, tables[NODES], _NODES, _NODES) if NODES in tables and _groups(job) else None


def _opened_columns(compiled: CompiledJoinedGroup) -> dict[str, pl.DataType]:
    return {**compiled.schema.keys, "line": pl.String(), "first": pl.Int64(), "last": pl.Int64()}


class Pushed:
    """The pushed groups of a local node: events that wait for their order, and open windows."""

    def __init__(self, job: Job, node: str) -> None:
        self.job, self._node = job, node
        self.count = 0  # events that were taken
        self._time_column = job.time_columns[job.time]
        self._use(job)
        self._late, self._gone = 0, True  # what the root does not know yet of this node

    def _use(self, job: Job) -> None:
        self.job, states = job, [_state(job.compiled.by_name[group.name]) for group in _groups(job)]
        self._states = GroupStates(job.compiled, {job.time: self._time_column}, states)
        self._opened = {state.group.name: _opened(state) for state in states}

    def __bool__(self) -> bool:
        return bool(self._states.states)

    def take(self, events: pl.DataFrame, count: int) -> None:
        """Prepared events of the source, up to a position; what an earlier life has taken is passed over."""
        if self and count > self.count:
            fresh = events.filter(pl.col("nth") >= self.count)
            seen = {name: seen_by(state.group.source, fresh) for name, state in self._states.states.items()}
            self._late += self._states.absorb({name: table for name, table in seen.items() if table.height})
        self.count = max(self.count, count)

    def due(self, watermark: int, gone: bool = False) -> Tables:
        """The windows that a watermark closes, and what else the root has to know; `gone`: nothing more comes."""
        tables: Tables = {}
        if not self:
            return tables
        if watermark > self._time_column.watermark:
            for name, emitted in self._states.advance({self.job.time: watermark}).items():
                state = self._states.states[name]
                tables |= self._waiting(name, state) if isinstance(state, NodeState) else self._rows(name, emitted)
        if self._late or gone != self._gone:
            tables[NODES] = nodes_table([self._node], gone, self._late)
            self._late, self._gone = 0, gone
        return tables

    def _rows(self, name: str, emitted: list[Emitted]) -> Tables:
        """Closed windows as rows of results."""
        rows = self._states.results({name: emitted})
        empty = [column for column in rows.columns if rows[column].null_count() == rows.height]
        return {name: rows.drop(empty)} if rows.height else {}

    def _waiting(self, name: str, state: NodeState) -> Tables:
        """Closed windows that are to be joined at the root, and which open ones have changed."""
        before, now = self._opened[name], _opened(state)
        known_by = [*state.schema.keys, "line"]
        changed = join_keys(now, before, now.columns, "anti")
        ended = join_keys(before, now, known_by, "anti").with_columns(first=None, last=None)
        self._opened[name] = now
        tables = {
            name: state.taken().with_columns(pl.lit(self._node).alias(NODE_KEY)),
            f"{name}|opened": pl.concat([changed, ended.cast(dict(changed.schema))]),  # type: ignore[arg-type]
        }
        return {name: table for name, table in tables.items() if table.height}

    def switch(self, job: Job) -> None:
        """Go on with another plan."""
        states, opened = self._states, self._opened
        self._use(job)
        self._states.take_over(states)
        self._opened |= {name: table for name, table in opened.items() if name in self._opened}

    def saved(self) -> bytes:
        """Everything that it knows; `restore` goes on with it."""
        header = {"count": self.count, "watermark": self._time_column.watermark, "late": self._late}
        opened = {f"{name}|opened": table for name, table in self._opened.items()}
        return pack({**header, "states": self._states.header()}, self._states.tables() | opened)

    def restore(self, data: bytes) -> None:
        """Be as it was, and say again that it is there."""
        header, tables = unpack(data)
        self.count, self._time_column.watermark, self._late = header["count"], header["watermark"], header["late"]
        self._states.load(header["states"], tables)
        self._opened |= {name: tables[f"{name}|opened"] for name in self._opened if name in header["states"]}


class NodeState(JoinedState):
    """The state of a group at one of its nodes: windows that are closed wait to be joined elsewhere."""

    def step(self, step: WatermarkStep, change: Any = None, partial: bool = False) -> Iterator[Emitted]:
        return OrderedState.step(self, step, change, partial)  # emits nothing: its windows are only put aside


def _state(compiled: CompiledGroup) -> OrderedState:
    if isinstance(compiled, CompiledJoinedGroup):
        return NodeState(compiled)
    assert isinstance(compiled, CompiledOrderedGroup)
    return compiled.state()


def _opened(state: OrderedState) -> pl.DataFrame:
    """The open windows for which others wait, as much as these need to know of them."""
    if not isinstance(state, JoinedState):
        return pl.DataFrame()
    opened = state.opened().select(*_opened_columns(state.compiled))
    begun = pl.col("line").is_in(state.joining.lines("overlap"))
    opened = opened.with_columns(last=pl.when(begun).then("first").otherwise("last"))
    return opened.filter(~pl.col("line").is_in(state.joining.lines("position")))


# --- at the root ------------------------------------------------------------------------------------------------------


class ReportedState(JoinedState):
    """Windows of nodes that were found there, as they wait for those of others."""

    def __init__(self, compiled: CompiledJoinedGroup) -> None:
        super().__init__(compiled)
        self.nodes = nodes_table([], gone=False)
        self.told_open = pl.DataFrame(schema=_opened_columns(compiled))
        self.told_closed = pl.DataFrame(schema={**self.schema.keys, "line": pl.String(), "closed": pl.Int64()})

    def report(self, windows: pl.DataFrame | None, opened: pl.DataFrame | None) -> None:
        """Closed windows of nodes, and which have come to be open or are no more."""
        known_by = [*self.schema.keys, "line"]
        if windows is not None:
            windows = windows.filter(pl.col("line").is_in(list(self.joining.scopes)))
            self.wait([self.joining.schema.conform(windows)])
            numbered = windows.filter(pl.col("line").is_in(self.joining.lines("position")))
            fresh = numbered.select(*known_by, closed=pl.col("at") + 1)
            self.told_closed = pl.concat([self.told_closed, fresh]).group_by(known_by).agg(pl.col("closed").max())
        if opened is not None:
            last = opened.select(self.told_open.columns).unique(known_by, keep="last", maintain_order=True)
            rest = join_keys(self.told_open, last, known_by, "anti")
            self.told_open = pl.concat([rest, last.filter(pl.col("first").is_not_null())])

    def step(self, step: WatermarkStep, change: Any = None, partial: bool = False) -> Iterator[Emitted]:
        if self.joined.height:
            yield from self._finals(step)

    def opened(self) -> pl.DataFrame:
        return self.told_open

    def closed(self) -> pl.DataFrame:
        live = self.nodes.filter(~pl.col("gone")).select(pl.col("node").alias(NODE_KEY))
        known_by = [*self.joining.by, "line"]
        mine = join_keys(self.told_closed, live, [NODE_KEY], "semi")
        least = mine.group_by(known_by).agg(pl.len().alias("_nodes"), pl.col("closed").min())
        return least.filter(pl.col("_nodes") == live.height).drop("_nodes")

    def tables(self) -> Tables:
        return {"joined": self.joined, "open": self.told_open, "closed": self.told_closed}

    def load(self, tables: Mapping[str, pl.DataFrame]) -> None:
        asked = pl.col("line").is_in(list(self.joining.scopes))
        self.joined = self.joining.schema.conform(tables["joined"].filter(asked))
        self.told_open, self.told_closed = tables["open"].filter(asked), tables["closed"].filter(asked)


class Reported:
    """The pushed groups of a root: what nodes have sent, until it is told."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._rows: list[pl.DataFrame] = []  # of results
        self._groups = _groups(job)
        self._names = {group.name for group in self._groups}
        self._joins: dict[str, ReportedState] = {}
        self._nodes = nodes_table([], gone=False)
        for group in self._groups:
            if group.joined:
                compiled = job.compiled.by_name[group.name]
                assert isinstance(compiled, CompiledJoinedGroup)
                self._joins[group.name] = ReportedState(compiled)

    @property
    def size(self) -> int:
        """How many windows wait."""
        return sum(rows.height for rows in self._rows) + sum(state.joined.height for state in self._joins.values())

    def absorb(self, tables: Mapping[str, pl.DataFrame]) -> int:
        """Take the tables of a batch in; returns how many events came too late."""
        late = 0
        if NODES in tables:
            late = int(tables[NODES]["late"].sum())
            known = pl.concat([self._nodes, tables[NODES]]).unique("node", keep="last", maintain_order=True)
            self._nodes = known.with_columns(late=pl.lit(0, pl.Int64))
        for name in self._names:
            if name in self._joins:
                self._joins[name].report(tables.get(name), tables.get(f"{name}|opened"))
            elif name in tables:
                self._rows.append(tables[name])
        return late

    def step(self, step: WatermarkStep) -> Iterator[Emitted]:
        """What is final of the windows that are joined."""
        for state in self._joins.values():
            state.nodes = self._nodes
            yield from state.step(step)

    def told(self, found: pl.DataFrame) -> pl.DataFrame:
        """Results, and with them the rows that nodes have sent, in the order of emission."""
        if not self._rows:
            return found
        results = self.job.compiled.results
        rows = pl.concat([results.empty, *self._rows], how="diagonal_relaxed").select(results.empty.columns)
        self._rows = []
        rows = rows.filter(pl.col("query").is_in(list(self.job.pushed)))
        place = ["position"] if results.positions else []
        order = ["window_end", "query", *results.keys, "window_start", *place]
        return pl.concat([found, rows]).sort(order, maintain_order=True)

    def switched(self, job: Job) -> Reported:
        """The same with another plan: what that does not know is dropped."""
        other = Reported(job)
        other._rows, other._nodes = self._rows, self._nodes
        for name, state in other._joins.items():
            if name in self._joins:
                state.load(self._joins[name].tables())
        return other

    def saved(self) -> Tables:
        reported = {f"rows{number}": table for number, table in enumerate(self._rows)} | {NODES: self._nodes}
        return named_tables({name: state.tables() for name, state in self._joins.items()} | {"reported": reported})

    def restore(self, tables: Mapping[str, pl.DataFrame]) -> None:
        for name, state in self._joins.items():
            if mine := parts_of(name, tables):
                state.load(mine)
        mine = parts_of("reported", tables)
        self._nodes = mine.pop(NODES, self._nodes)
        self._rows = [mine[f"rows{number}"] for number in range(len(mine))]
