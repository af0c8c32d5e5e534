"""Push-down: windows in the order of events are found at the local nodes, so that no event travels.

    local   events ── in the node's own order ──▶ closed windows ──▶ rows of results, or partials of windows
    root    rows of results ────────────────────────────────────▶ passed on, among the others
            partials ── merged with those of other nodes, once no window can join them any more ──▶ results

A query that needs the order of events is pushed down if the order at one node is enough: all events of a key are at one
node, because the node is among its keys, or a key that lives at one node (`local_keys`); or its scope joins the windows
that each node has found for itself (`core.ordered.node_windows`).

The windows that are open at a node follow from all of its events, and a restarted node does not read all of them again.
So `Pushed` is kept in the node's log store with every batch, and a later life goes on from the last batch that the
parent has.

A batch has three kinds of tables: `<group>`, windows that have closed; `<group>|opened`, where others must wait for
them, windows that have opened, or are open no more; `nodes`, which nodes there are, whether one has gone, and how many
of its events came too late.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import polars as pl

from windrow.core.arrays.checks import MOST, lacking, wrong_counts, wrong_numbers
from windrow.core.arrays.dataframes import join_keys
from windrow.core.assemble.emitted import Emitted
from windrow.core.assemble.group_state import Change, CompiledGroup, GroupState
from windrow.core.ordered.node_windows import NODE_KEY, CompiledJoinedGroup, JoinedState, JoinedWindows
from windrow.core.ordered.state import CompiledOrderedGroup, OrderedState
from windrow.core.plan.groups import Group, Placement
from windrow.core.plan.watermark import WatermarkStep
from windrow.core.stream.group_states import GroupStates
from windrow.core.stream.job import Job
from windrow.core.stream.job_slicer import Tables, named_tables, parts_of, seen_by
from windrow.core.windows.fixed import INT64_MAX
from windrow.io.tables import pack, unpack
from windrow.nodes.occasion import Occasion
from windrow.nodes.tables import differs, impossible

PUSHED = Placement(" (at nodes)", "windows, no events", is_apart=True)
NODES = "nodes"
_NODES = {"node": pl.String(), "gone": pl.Boolean(), "late": pl.Int64()}


def nodes_table(names: Iterable[str], gone: bool, late: int = 0) -> pl.DataFrame:
    """A table that says of nodes that they are there, or have gone."""
    return pl.DataFrame([{"node": name, "gone": gone, "late": late} for name in names], schema=_NODES)


def tables_of(job: Job) -> set[str]:
    """The names of the tables that a job's pushed groups can have in a batch."""
    names = {group.name for group in _groups(job)}
    return {*names, *(f"{name}|opened" for name in names), NODES} if names else set()


def _groups(job: Job) -> list[Group]:
    return [group for group in job.compiled.plan.groups if group.placement == PUSHED]


def wrong_with(job: Job, tables: Mapping[str, pl.DataFrame], times: tuple[int, int]) -> str | None:
    """Why the tables of pushed groups cannot be taken; None if they can."""
    groups = _groups(job)
    if groups and NODES in tables:
        reason = differs(NODES, tables[NODES], _NODES, _NODES)
        if reason is None and tables[NODES].columns != list(_NODES):
            reason = f"{NODES} has other columns in its batch than it should"
        reason = reason or impossible(NODES, lacking(_columns(tables[NODES], _NODES)))
        if reason := reason or impossible(NODES, wrong_counts({"late": tables[NODES]["late"]})):
            return reason
    for group in groups:
        compiled = job.compiled.by_name[group.name]
        if isinstance(compiled, CompiledJoinedGroup):
            reason = _wrong_windows(compiled, tables, times)
        else:
            reason = _wrong_rows(group.name, job, tables, times)
        if reason is not None:
            return reason
    return None


def _columns(table: pl.DataFrame, names: Iterable[str]) -> dict[str, pl.Series]:
    return {name: table[name] for name in names if name in table.columns}


def _wrong_rows(name: str, job: Job, tables: Mapping[str, pl.DataFrame], times: tuple[int, int]) -> str | None:
    """Why rows of results cannot be taken; None if they can, or there are none."""
    table, results = tables.get(name), job.compiled.results
    if table is None:
        return None
    certain = ["query", "window_start", "window_end", "revision"]
    if reason := differs(name, table, results.empty.schema, certain):
        return reason
    counting = _columns(table, ["position"] if results.positions else [])  # null for windows without one
    bounds = {one: table[one].to_physical() for one in ("window_start", "window_end")}
    reason = lacking(_columns(table, certain)) or wrong_numbers(counting, 0, MOST) or wrong_numbers(bounds, *times)
    if reason is None and (table["window_start"] > table["window_end"]).any():
        reason = "a window ends before it begins"
    return impossible(name, reason)


def _wrong_windows(
    compiled: CompiledJoinedGroup, tables: Mapping[str, pl.DataFrame], times: tuple[int, int]
) -> str | None:
    """Why windows of nodes, or what was said of open ones, cannot be taken; None if they can, or there are none."""
    name, schema, opened = compiled.group.name, compiled.joined_schema, _opened_columns(compiled)
    if (table := tables.get(name)) is not None:
        if reason := differs(name, table, {**schema.columns, NODE_KEY: pl.String()}, [*schema.order, "last", NODE_KEY]):
            return reason
        reason = lacking(_columns(table, ["line", "at", NODE_KEY])) or wrong_numbers({"at": table["at"]}, *times)
        if reason := impossible(name, reason or compiled.joined_schema.wrong_with(table, times)):
            return reason
    name = f"{name}|opened"
    if (table := tables.get(name)) is not None:
        if reason := differs(name, table, opened, opened):
            return reason
        bounds = _columns(table, ["first", "last"])
        reason = lacking(_columns(table, ["line", NODE_KEY])) or wrong_numbers(bounds, *times)
        if reason is None and (table["first"].is_null() != table["last"].is_null()).any():
            reason = "an open window has one bound"
        return impossible(name, reason)
    return None


def _opened_columns(compiled: CompiledJoinedGroup) -> dict[str, pl.DataType]:
    return {**compiled.schema.keys, "line": pl.String(), "first": pl.Int64(), "last": pl.Int64()}


class Pushed:
    """The pushed groups of a local node: their states, and what the root knows of them."""

    def __init__(self, job: Job, node: str) -> None:
        self.job, self._node = job, node
        self.count = 0  # events that were taken
        self._time_column = job.time_columns[job.time]
        self._use(job)
        self._late, self._gone = 0, True  # events that the root has not counted yet; whether it takes the node for gone

    def _use(self, job: Job) -> None:
        self.job, states = job, [_state(job.compiled.by_name[group.name]) for group in _groups(job)]
        self._states = GroupStates(job.compiled, {job.time: self._time_column}, states)

    def __bool__(self) -> bool:
        return bool(self._states.states)

    def take(self, events: pl.DataFrame, count: int) -> None:
        """Take prepared events of the source, up to a position; those that an earlier life has taken are skipped."""
        if self and count > self.count:
            fresh = events.filter(pl.col("nth") >= self.count)
            seen = {name: seen_by(state.group.source, fresh) for name, state in self._states.states.items()}
            late = self._states.absorb({name: table for name, table in seen.items() if table.height})
            self._late += max(late.values(), default=0)  # groups leave out the same events, by and large
        self.count = max(self.count, count)

    def due(self, occasion: Occasion) -> Tables:
        """Move the watermark, and give the tables for the root."""
        watermark, gone = INT64_MAX if occasion.has_ended else occasion.watermark, occasion.is_last
        tables: Tables = {}
        if not self:
            return tables
        if watermark > self._time_column.watermark:
            for name, emitted in self._states.advance({self.job.time: watermark}).items():
                state = self._states.states[name]
                tables |= state.due(self._node) if isinstance(state, NodeState) else self._rows(name, emitted)
        if self._late or gone != self._gone:
            tables[NODES] = nodes_table([self._node], gone, self._late)
            self._late, self._gone = 0, gone
        return tables

    def _rows(self, name: str, emitted: list[Emitted]) -> Tables:
        """Closed windows as rows of results."""
        rows = self._states.results({name: emitted})
        empty = [column for column in rows.columns if rows[column].null_count() == rows.height]
        return {name: rows.drop(empty)} if rows.height else {}

    def switch(self, job: Job) -> None:
        """Go on by another plan."""
        states = self._states
        self._use(job)
        self._states.take_over(states)

    def saved(self) -> bytes:
        """Everything that it knows; `restore` goes on with it."""
        header = {"count": self.count, "watermark": self._time_column.watermark, "late": self._late}
        return pack({**header, "states": self._states.header()}, self._states.tables())

    def restore(self, data: bytes) -> None:
        """Go on from what `saved` has given, and announce the node again."""
        header, tables = unpack(data)
        self.count, self._time_column.watermark, self._late = header["count"], header["watermark"], header["late"]
        self._states.load(header["states"], tables)


class NodeState(JoinedState):
    """The state at a node of a group whose windows are joined at the root: closed ones wait to be sent."""

    def __init__(self, compiled: CompiledJoinedGroup) -> None:
        super().__init__(compiled)
        self._reported = pl.DataFrame(schema=_opened_columns(compiled))  # open windows, as the root knows them

    def emit_joined(self, step: WatermarkStep) -> Iterator[Emitted]:
        return iter(())

    def _waited_for(self) -> pl.DataFrame:
        """The open windows for which those of other nodes wait, and of their bounds what these have to know.

        By position, windows wait for numbers and not for bounds. By overlap, only the start matters, so that a window
        that grows is not sent again and again.
        """
        by_start, by_position = (pl.col("line").is_in(self.compiled.lines(scope)) for scope in ("overlap", "position"))
        last = pl.when(by_start).then("first").otherwise("last")
        return self.opened().select(*self._reported.columns).with_columns(last=last).filter(~by_position)

    def due(self, node: str) -> Tables:
        """Closed windows for the root to join, and the differences to the open ones that it knows."""
        before, now = self._reported, self._waited_for()
        changed = join_keys(now, before, now.columns, "anti")
        ended = join_keys(before, now, _identity(self), "anti").with_columns(first=None, last=None)
        self._reported = now
        tables = {
            self.group.name: self.joined.taken().with_columns(pl.lit(node).alias(NODE_KEY)),
            f"{self.group.name}|opened": pl.concat([changed, ended.cast(dict(changed.schema))]),  # type: ignore[arg-type]
        }
        return {part: table for part, table in tables.items() if table.height}

    def tables(self) -> Tables:
        return super().tables() | {"opened": self._reported}

    def load(self, tables: Mapping[str, pl.DataFrame]) -> None:
        super().load(tables)
        self._reported = tables.get("opened", self._reported)


def _state(compiled: CompiledGroup) -> OrderedState:
    assert isinstance(compiled, CompiledOrderedGroup)
    return NodeState(compiled) if isinstance(compiled, CompiledJoinedGroup) else compiled.state()


def _identity(state: JoinedState | ReportedState) -> list[str]:
    """The columns that identify an open window: a node has one at most for each key and data-driven window."""
    return [*state.schema.keys, "line"]


# --- at the root ------------------------------------------------------------------------------------------------------


class ReportedState(GroupState):
    """Windows that nodes have found, until no other node can join them; and how far each node has come."""

    compiled: CompiledJoinedGroup

    def __init__(self, compiled: CompiledJoinedGroup) -> None:
        super().__init__(compiled)
        self.joined = JoinedWindows(compiled)
        self.nodes = nodes_table([], gone=False)
        self._open = pl.DataFrame(schema=_opened_columns(compiled))
        self._closed = pl.DataFrame(schema={**self.schema.keys, "line": pl.String(), "closed": pl.Int64()})

    def report(self, windows: pl.DataFrame | None, opened: pl.DataFrame | None) -> None:
        """Take in windows of nodes that have closed, and those that have opened or are open no more."""
        identity = _identity(self)
        if windows is not None:
            windows = windows.filter(pl.col("line").is_in(list(self.compiled.scopes)))
            self.joined.add([self.compiled.joined_schema.conform(windows)])
            numbered = windows.filter(pl.col("line").is_in(self.compiled.lines("position")))
            closed = numbered.select(*identity, closed=pl.col("at") + 1)
            self._closed = pl.concat([self._closed, closed]).group_by(identity).agg(pl.col("closed").max())
        if opened is not None:
            newest = opened.select(self._open.columns).unique(identity, keep="last", maintain_order=True)
            others = join_keys(self._open, newest, identity, "anti")
            self._open = pl.concat([others, newest.filter(pl.col("first").is_not_null())])

    def may_be_due(self, step: WatermarkStep) -> bool:
        has_moved = step.now != step.before or step.now == INT64_MAX  # after the end a node may come back with windows
        return has_moved and len(self.joined) > 0

    def step(self, step: WatermarkStep, change: Change | None = None, partial: bool = False) -> Iterator[Emitted]:
        yield from self.joined.finals(step.now, self._open, self._closed_by_all())

    def _closed_by_all(self) -> pl.DataFrame:
        """How many windows of a key all nodes have closed that are there; only keys of which each has closed some."""
        live = self.nodes.filter(~pl.col("gone")).select(pl.col("node").alias(NODE_KEY))
        of_live = join_keys(self._closed, live, [NODE_KEY], "semi")
        least = of_live.group_by(*self.compiled.by, "line").agg(pl.len().alias("_nodes"), pl.col("closed").min())
        return least.filter(pl.col("_nodes") == live.height).drop("_nodes")

    def take_over(self, other: GroupState) -> None:
        self.load(other.tables())

    def tables(self) -> Tables:
        return {"joined": self.joined.table, "open": self._open, "closed": self._closed}

    def load(self, tables: Mapping[str, pl.DataFrame]) -> None:
        self.joined.load(tables["joined"])
        has_query = pl.col("line").is_in(list(self.compiled.scopes))
        self._open, self._closed = tables["open"].filter(has_query), tables["closed"].filter(has_query)


class Reported:
    """The pushed groups of a root: rows of results until they are given out, windows until they are final."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._rows: list[pl.DataFrame] = []  # of results, since the last step
        self._nodes = nodes_table([], gone=False)
        groups = {group.name: job.compiled.by_name[group.name] for group in _groups(job)}
        joined = {name: group for name, group in groups.items() if isinstance(group, CompiledJoinedGroup)}
        self.states = {name: ReportedState(group) for name, group in joined.items()}
        self._names = groups.keys()

    @property
    def size(self) -> int:
        """How many windows it keeps."""
        return sum(rows.height for rows in self._rows) + sum(len(state.joined) for state in self.states.values())

    def absorb(self, tables: Mapping[str, pl.DataFrame]) -> int:
        """Take in the tables of a batch; returns how many events came too late at their nodes."""
        late = 0
        if NODES in tables:
            late = int(tables[NODES]["late"].sum())
            newest = pl.concat([self._nodes, tables[NODES]]).unique("node", keep="last", maintain_order=True)
            self._use(newest.with_columns(late=pl.lit(0, pl.Int64)))
        for name in self._names:
            if name in self.states:
                self.states[name].report(tables.get(name), tables.get(f"{name}|opened"))
            elif name in tables:
                self._rows.append(tables[name])
        return late

    def _use(self, nodes: pl.DataFrame) -> None:
        self._nodes = nodes
        for state in self.states.values():
            state.nodes = nodes

    def joined_to(self, assembled: pl.DataFrame) -> pl.DataFrame:
        """The results that the root has assembled together with those of nodes, in the order of results."""
        if not self._rows:
            return assembled
        results = self.job.compiled.results
        known = [rows.select(*_columns(rows, results.empty.columns)) for rows in self._rows]
        rows = pl.concat([results.empty, *known], how="diagonal_relaxed").select(results.empty.columns)
        self._rows = []
        pushed = [name for name, placement in self.job.placements if placement == PUSHED]
        rows = rows.filter(pl.col("query").is_in(pushed))
        position = ["position"] if results.positions else []
        order = ["window_end", "query", *results.keys, "window_start", *position]
        return pl.concat([assembled, rows]).sort(order, maintain_order=True)

    def take_over(self, other: Reported) -> None:
        """Go on where those of an earlier plan stand, but for their states."""
        self._rows = other._rows
        self._use(other._nodes)

    def saved(self) -> Tables:
        """What it knows beside its states."""
        reported = {f"rows{number}": table for number, table in enumerate(self._rows)} | {NODES: self._nodes}
        return named_tables({"reported": reported})

    def restore(self, tables: Mapping[str, pl.DataFrame]) -> None:
        reported = parts_of("reported", tables)
        self._use(reported.pop(NODES, self._nodes))
        self._rows = [reported[f"rows{number}"] for number in range(len(reported))]
