"""Joining: the windows of several nodes become one.

    node a   │. . p│. p│ . . .        each node's own windows, found in its own order (`ordered_state`, by key and node)
    node b   │. p│  . . p│. .
              └─┬─┘                   a closed one waits as the states of its operators, a row of a slice table …
             joined ──▶ result        … with which those of other nodes are merged, and is lowered once it is final

What windows are one follows from their **scope**: equal `bounds`; the same `position` among those of their node; or
`overlap`, a moment that they share, directly or through others. A row that waits is known by its key, its window since
a time (`line`), and where it is `at`: its end, its number, or nothing; `first` and `last` are its bounds. The rest is
`slices.merge`: with a gap of 0 it joins runs that share a moment, with an endless one all that are known by the same.

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
from windrow.core.ordered.windows import Found, OrderedRows, Progress
from windrow.core.plan.groups import Group, Timeline
from windrow.core.plan.watermark import WatermarkStep
from windrow.core.slices.kernel import key_name
from windrow.core.slices.table import SliceSchema, merge
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.core.windows.ordered import NODE, Counting, scope_of

NODE_KEY = key_name(NODE)


class Joining:
    """What joins the windows of a group's nodes; prepared once per plan."""

    def __init__(self, group: Group, schema: SliceSchema) -> None:
        self.timelines: Sequence[Timeline] = list(group.timelines)
        self.scopes = {one.line: scope_of(one.window) for one in self.timelines}
        self.by = {name: dtype for name, dtype in schema.keys.items() if name != NODE_KEY}
        known_by = {**self.by, "line": pl.String(), "at": pl.Int64()}
        self.schema = replace(schema, keys=known_by, gap=0, lines=None, digests=False)
        self._numbered = replace(self.schema, gap=INT64_MAX)
        self._lowered = replace(self.schema, keys=self.by)

    def lines(self, *scopes: str) -> list[str]:
        return [line for line, scope in self.scopes.items() if scope in scopes]

    def described(self, rows: OrderedRows, found: Found) -> pl.DataFrame:
        """What windows of nodes are known by: a column for each, without the states."""
        windows = found.windows
        at = np.zeros(len(windows.lo), np.int64)
        start = np.full(len(windows.lo), INT64_MIN)
        for place in np.unique(windows.timeline):
            mine, scope = windows.timeline == place, scope_of(self.timelines[place].window)
            if scope == "bounds":
                at[mine], start[mine] = windows.end[mine], windows.start[mine]
            elif scope == "position":
                at[mine] = found.number[mine]
        lines = pl.Series("line", [one.line for one in self.timelines], dtype=pl.String)
        keys = [rows.keys[name].gather(windows.key) for name in rows.keys.columns]
        return pl.DataFrame(
            [
                *keys,
                lines.gather(windows.timeline),
                pl.Series("at", at),
                pl.Series("slice_start", start),
                pl.zeros(len(at), pl.Int32, eager=True).alias("excluded"),
                pl.Series("first", windows.start),
                pl.Series("last", windows.end),
            ]
        )

    def closed(self, rows: OrderedRows, found: Found) -> pl.DataFrame:
        """Windows of nodes as rows of states, which are still to be merged."""
        sizes = found.windows.hi - found.windows.lo
        index = np.repeat(found.windows.lo, sizes) + ramp(sizes)
        known = self.described(rows, found)[np.repeat(np.arange(len(sizes)), sizes)]
        states = [rows.table[name].gather(index) for name in self.schema.columns if name not in known.columns]
        return known.hstack(states).select(*self.schema.columns)

    def merged(self, tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """One row for all windows that are one."""
        table = pl.concat(tables)
        numbered = table["line"].is_in(self.lines("position"))
        if numbered.all():
            return merge([table], self._numbered)
        rest = merge([table.filter(~numbered)], self.schema)
        return pl.concat([merge([table.filter(numbered)], self._numbered), rest]) if numbered.any() else rest

    def is_final(self, table: pl.DataFrame, watermark: int, opened: pl.DataFrame, closed: pl.DataFrame) -> pl.Series:
        """Which of the windows that wait nothing can join any more.

        opened:  the open windows of all nodes, as `described`
        closed:  for each key and line how many windows every node has closed
        """
        if watermark == INT64_MAX:
            return pl.Series([True]).new_from_index(0, table.height)
        known_by = [*self.by, "line"]
        since = opened.group_by(known_by).agg(pl.col("first").min().alias("_open"))
        numbered = table.select(*known_by, "first", "last", "at").with_row_index("_row")
        limits = join_keys(join_keys(numbered, since, known_by, "left"), closed, known_by, "left")
        same = join_keys(numbered, opened, [*known_by, "first", "last"], "semi")["_row"]
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
        rows = Rows(table.sort(*self.by, "first", "at"), self._lowered)
        first, last, at = (rows.table[name].to_numpy() for name in ("first", "last", "at"))
        parts = []
        for place, one in enumerate(self.timelines):
            index = np.flatnonzero((rows.table["line"] == one.line).to_numpy() & (first < one.until))
            position = None
            if scope_of(one.window) == "position":
                position = at[index] * (one.window.step if isinstance(one.window, Counting) else 1)
            start, end, key = first[index], last[index], rows.key[index]
            parts.append(Windows(np.full(len(index), place), key, start, end, index, index + 1, index + 1, position))
        return rows, Windows.join(parts)


class CompiledJoinedGroup(CompiledOrderedGroup):
    """A group whose windows are found node by node: also how those of several nodes are joined."""

    def __init__(self, group: Group, schema: SliceSchema, shared_schema: SliceSchema) -> None:
        super().__init__(group, schema, shared_schema)
        self.joining = Joining(group, schema)

    def state(self) -> JoinedState:
        return JoinedState(self)


class JoinedState(OrderedState):
    """The state of a group whose windows are found node by node and joined."""

    compiled: CompiledJoinedGroup

    def __init__(self, compiled: CompiledJoinedGroup) -> None:
        super().__init__(compiled)
        self.joining = compiled.joining
        self.joined = self.joining.schema.empty()

    def tables(self) -> dict[str, pl.DataFrame]:
        return super().tables() | {"joined": self.joined}

    def load(self, tables: Mapping[str, pl.DataFrame]) -> None:
        super().load(tables)
        if "joined" in tables:
            asked = pl.col("line").is_in(list(self.joining.scopes))
            self.joined = self.joining.schema.conform(tables["joined"].filter(asked))

    def may_be_due(self, step: WatermarkStep) -> bool:
        return self.joined.height > 0 or super().may_be_due(step)

    def step(self, step: WatermarkStep, change: Any = None, partial: bool = False) -> Iterator[Emitted]:
        yield from super().step(step, change, partial)  # which says nothing
        if self.joined.height:
            yield from self._tell(step)

    def _in_sequence(
        self, rows: OrderedRows, progress: Progress, step: WatermarkStep, partial: bool
    ) -> Iterator[Emitted]:
        """Windows of nodes that a step has closed; nothing is said of them until they are joined."""
        found = [one for one in self.sequences.found(rows, progress, step, partial) if not one.is_open]
        self.wait(self.joining.closed(rows, one) for one in found if len(one.windows.lo))
        return iter(())

    def taken(self) -> pl.DataFrame:
        """The windows that wait, to be joined elsewhere."""
        found, self.joined = self.joined, self.joined.clear()
        return found

    def wait(self, closed: Iterable[pl.DataFrame]) -> None:
        """Take windows of nodes in."""
        if several := list(closed):
            self.joined = self.joining.merged([self.joined, *several])

    def _tell(self, step: WatermarkStep) -> Iterator[Emitted]:
        """What is final is lowered and forgotten."""
        closed = self.closed().clear() if step.whole else self.closed()
        is_final = self.joining.is_final(self.joined, step.now, self.opened(), closed)
        if not is_final.any():
            return
        rows, windows = self.joining.windows(self.joined.filter(is_final))
        self.joined = self.joined.filter(~is_final)
        revision = np.zeros(len(windows.lo), np.int64)
        for answers in self.assembler.answers(rows, windows, {None: np.ones(len(windows.lo), np.bool_)}):
            yield Emitted(rows, windows, answers, revision)

    def opened(self) -> pl.DataFrame:
        """The open windows of all nodes."""
        rows = rows_in_order(self.rows)
        parts = [self.joining.described(rows, one) for one in self.sequences.open(rows, self._known(rows.keys))]
        return pl.concat(parts)

    def closed(self) -> pl.DataFrame:
        """For each key and line whose windows are numbered, how many every node has closed that was seen."""
        table = self.now.table
        known_by = [*self.joining.by, "line"]
        parts = [pl.DataFrame(schema={**self.joining.by, "line": pl.String(), "closed": pl.Int64()})]
        carry = {name: table[name].to_numpy() for name in self.now.initial}
        for one, complete in self.sequences.complete(carry):
            if scope_of(one.window) == "position":
                counted = table.select(*self.schema.keys, "last").with_columns(pl.Series("closed", complete))
                seen = counted.filter(pl.col("last") >= one.since).with_columns(line=pl.lit(one.line))
                nodes = seen[NODE_KEY].n_unique()
                least = seen.group_by(known_by).agg(pl.len().alias("_nodes"), pl.col("closed").min())
                parts.append(least.filter(pl.col("_nodes") == nodes).drop("_nodes"))
        return pl.concat(parts)

    def _forget_keys(self) -> None:
        if not self.joining.lines("position"):  # their numbers stand in the ledger
            super()._forget_keys()

    def is_over(self, place: int, final_before: int) -> bool:
        timeline = self.assembler.timelines[place]
        waits = (self.joined["line"] == timeline.line) & (self.joined["first"] < timeline.until)
        return not waits.any() and super().is_over(place, final_before)
