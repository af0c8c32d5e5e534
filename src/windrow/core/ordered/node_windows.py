"""The windows of several nodes become one.

    node a   │. . p│. p│ . . .        each node's own windows, found in its own order, by key and node
    node b   │. p│  . . p│. .
              └─┬─┘                   a closed one waits as the partials of its operators, a row of a slice table …
             joined ──▶ result        … that is merged with those of other nodes, and answered once it is final

Which windows are one follows from their **scope**: equal `bounds`; the same `position` among those of their node; or
`overlap`, a moment that they share, directly or through others. A row that waits is identified by its key, its window
since a time (`line`), and where it is `at`: its end, its number, or nothing; `first` and `last` are its bounds. So
`merge` of slice tables does all the work: with a gap of 0 it joins runs that share a moment, and with an endless gap
all rows with the same identity.

A joined window is **final** when nothing can join it any more:
- `bounds`, `overlap`: the watermark is greater than its end, and no node has an open window that has these bounds so
  far, or that began at its end or before;
- `position`: every node that was seen has closed its window of this number; in a whole table, all nodes have come.
At the end of the stream all are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from windrow.core.arrays.dataframes import join_keys
from windrow.core.arrays.range_queries import ramp
from windrow.core.assemble.due import Rows, Windows
from windrow.core.assemble.emitted import Emitted
from windrow.core.ordered.state import CompiledOrderedGroup, OrderedState, rows_in_order
from windrow.core.ordered.windows import OrderedRows, Progress, WindowsInOrder
from windrow.core.plan.groups import Group
from windrow.core.plan.watermark import WatermarkStep
from windrow.core.slices.kernel import key_name
from windrow.core.slices.table import SliceSchema, merge
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.core.windows.ordered import NODE, Counting, scope_of

NODE_KEY = key_name(NODE)


class CompiledJoinedGroup(CompiledOrderedGroup):
    """A group whose windows are found node by node: also how those of several nodes are joined."""

    def __init__(self, group: Group, schema: SliceSchema, shared_schema: SliceSchema) -> None:
        super().__init__(group, schema, shared_schema)
        self.scopes = {timeline.line: scope_of(timeline.window) for timeline in group.timelines}
        self.by = {name: dtype for name, dtype in schema.keys.items() if name != NODE_KEY}
        identity = {**self.by, "line": pl.String(), "at": pl.Int64()}
        self.joined_schema = replace(schema, keys=identity, gap=0, lines=None, digests=False)
        self._numbered = replace(self.joined_schema, gap=INT64_MAX)
        self._answered = replace(self.joined_schema, keys=self.by)

    def state(self) -> JoinedState:
        return JoinedState(self)

    def lines(self, scope: str) -> list[str]:
        """The windows of a scope."""
        return [line for line, its_scope in self.scopes.items() if its_scope == scope]

    def described(self, rows: OrderedRows, part: WindowsInOrder) -> pl.DataFrame:
        """The identity and the bounds of windows of nodes: their rows without the states."""
        windows = part.windows
        scope = np.array([scope_of(timeline.window) for timeline in self.group.timelines])[windows.timeline]
        columns = {
            "at": np.select([scope == "bounds", scope == "position"], [windows.end, part.number]),
            "slice_start": np.where(scope == "bounds", windows.start, INT64_MIN),
            "excluded": np.zeros(len(scope), np.int32),
            "first": windows.start,
            "last": windows.end,
        }
        return pl.DataFrame([*rows.keys_at(windows.key), windows.lines(self.group), *pl.DataFrame(columns)])

    def closed(self, rows: OrderedRows, part: WindowsInOrder) -> pl.DataFrame:
        """Windows of nodes as rows with states, one for each of their slices, to be merged."""
        sizes = part.windows.hi - part.windows.lo
        index = np.repeat(part.windows.lo, sizes) + ramp(sizes)
        windows = self.described(rows, part)[np.repeat(np.arange(len(sizes)), sizes)]
        columns = self.joined_schema.columns
        states = [rows.table[name].gather(index) for name in columns if name not in windows.columns]
        return windows.hstack(states).select(*columns)

    def merged(self, tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """One row for all windows that are one."""
        table = pl.concat(tables)
        numbered = table["line"].is_in(self.lines("position"))
        parts = [(table.filter(numbered), self._numbered), (table.filter(~numbered), self.joined_schema)]
        return pl.concat([merge([part], schema) for part, schema in parts])

    def is_final(self, table: pl.DataFrame, watermark: int, opened: pl.DataFrame, closed: pl.DataFrame) -> pl.Series:
        """Which windows nothing can join any more, as the module says.

        opened:  the open windows of all nodes, as `described`
        closed:  for each key and line how many windows every node has closed
        """
        if watermark == INT64_MAX:
            return pl.Series([True]).new_from_index(0, table.height)
        by_line = [*self.by, "line"]
        since = opened.group_by(by_line).agg(pl.col("first").min().alias("_open"))
        numbered = table.select(*by_line, "first", "last", "at").with_row_index("_row")
        limits = join_keys(join_keys(numbered, since, by_line, "left"), closed, by_line, "left")
        same = join_keys(numbered, opened, [*by_line, "first", "last"], "semi")["_row"]
        passed = pl.col("last") < watermark
        return limits.select(
            pl.when(pl.col("line").is_in(self.lines("position")))
            .then(pl.col("at") < pl.col("closed").fill_null(0))
            .when(pl.col("line").is_in(self.lines("overlap")))
            .then(passed & (pl.col("_open").fill_null(INT64_MAX) > pl.col("last")))
            .otherwise(passed & ~pl.col("_row").is_in(same.implode()))
        ).to_series()

    def windows(self, table: pl.DataFrame) -> tuple[Rows, Windows]:
        """Joined windows, for every timeline that asks for them."""
        rows = Rows(table.sort(*self.by, "first", "at"), self._answered)
        first, last, at = (rows.table[name].to_numpy() for name in ("first", "last", "at"))
        parts = []
        for number, timeline in enumerate(self.group.timelines):
            index = np.flatnonzero((rows.table["line"] == timeline.line).to_numpy() & (first < timeline.until))
            position = None
            if scope_of(timeline.window) == "position":
                position = at[index] * (timeline.window.step if isinstance(timeline.window, Counting) else 1)
            start, end, key = first[index], last[index], rows.key[index]
            parts.append(Windows(np.full(len(index), number), key, start, end, index, index + 1, index + 1, position))
        return rows, Windows.join(parts)


class JoinedWindows:
    """Closed windows of nodes, as rows with states, until no window of another node can join them."""

    def __init__(self, compiled: CompiledJoinedGroup) -> None:
        self.compiled, self.table = compiled, compiled.joined_schema.empty()

    def __len__(self) -> int:
        return self.table.height

    def add(self, closed: Iterable[pl.DataFrame]) -> None:
        """Take in windows that nodes have closed."""
        if tables := list(closed):
            self.table = self.compiled.merged([self.table, *tables])

    def taken(self) -> pl.DataFrame:
        """Take all windows out, to be joined elsewhere."""
        windows, self.table = self.table, self.table.clear()
        return windows

    def finals(self, now: int, opened: pl.DataFrame, closed: pl.DataFrame) -> Iterator[Emitted]:
        """Emit the windows that are final at a watermark, and forget them; the others as in `is_final`."""
        is_final = self.compiled.is_final(self.table, now, opened, closed)
        if is_final.any():
            rows, windows = self.compiled.windows(self.table.filter(is_final))
            self.table = self.table.filter(~is_final)
            yield from self.compiled.answered(rows, windows)

    def load(self, table: pl.DataFrame) -> None:
        """Go on with the windows of an earlier plan, as far as a query of this one asks for them."""
        has_query = pl.col("line").is_in(list(self.compiled.scopes))
        self.table = self.compiled.joined_schema.conform(table.filter(has_query))


class JoinedState(OrderedState):
    """The state of a group whose windows are found node by node and joined."""

    compiled: CompiledJoinedGroup

    def __init__(self, compiled: CompiledJoinedGroup) -> None:
        super().__init__(compiled)
        self.joined = JoinedWindows(compiled)

    def tables(self) -> dict[str, pl.DataFrame]:
        return super().tables() | {"joined": self.joined.table}

    def load(self, tables: Mapping[str, pl.DataFrame]) -> None:
        super().load(tables)
        if "joined" in tables:
            self.joined.load(tables["joined"])

    def may_be_due(self, step: WatermarkStep) -> bool:
        return (step.now != step.before and len(self.joined) > 0) or super().may_be_due(step)

    def step(self, step: WatermarkStep, change: Any = None, partial: bool = False) -> Iterator[Emitted]:
        """Close windows of nodes, which are kept and not emitted, and emit joined ones that are final."""
        yield from super().step(step, change, partial)
        yield from self.emit_joined(step)

    def emit_in_order(
        self, rows: OrderedRows, progress: Progress, step: WatermarkStep, partial: bool
    ) -> Iterator[Emitted]:
        """Take the windows of nodes in that a step has closed, and emit nothing."""
        parts = [part for part in self.finder.windows(rows, progress, step, partial) if not part.is_open]
        self.joined.add(self.compiled.closed(rows, part) for part in parts if len(part.windows.lo))
        return iter(())

    def emit_joined(self, step: WatermarkStep) -> Iterator[Emitted]:
        """Emit joined windows that are final; to be overridden where they are joined elsewhere."""
        if len(self.joined):
            closed = self.closed()
            yield from self.joined.finals(step.now, self.opened(), closed.clear() if step.whole else closed)

    def opened(self) -> pl.DataFrame:
        """The open windows of all nodes."""
        rows = rows_in_order(self.rows)
        opened = self.finder.open(rows, self._carry(rows.keys))
        return pl.concat([self.compiled.described(rows, part) for part in opened])

    def closed(self) -> pl.DataFrame:
        """For each key and line whose windows are numbered, how many windows every node has closed that was seen.

        A key that some node has no events of yet has no row: that node's windows of it are still to come.
        """
        table = self.now.table
        by_line = [*self.compiled.by, "line"]
        parts = [pl.DataFrame(schema={**self.compiled.by, "line": pl.String(), "closed": pl.Int64()})]
        carry = {name: table[name].to_numpy() for name in self.now.initial}
        for timeline, complete in self.finder.complete(carry):
            if scope_of(timeline.window) == "position":
                counted = table.select(*self.schema.keys, "last").with_columns(pl.Series("closed", complete))
                seen = counted.filter(pl.col("last") >= timeline.since).with_columns(line=pl.lit(timeline.line))
                nodes = seen[NODE_KEY].n_unique()
                least = seen.group_by(by_line).agg(pl.len().alias("_nodes"), pl.col("closed").min())
                parts.append(least.filter(pl.col("_nodes") == nodes).drop("_nodes"))
        return pl.concat(parts)

    def _forget_keys(self) -> None:
        if not self.compiled.lines("position"):  # their numbers stand in the carry
            super()._forget_keys()

    def is_over(self, number: int, final_before: int) -> bool:
        timeline = self.assembler.timelines[number]
        table = self.joined.table
        is_kept = (table["line"] == timeline.line) & (table["first"] < timeline.until)
        return not is_kept.any() and super().is_over(number, final_before)
