"""The slice table: its schema, and how two become one. It is the one contract between the stages of windrow.

A row is one slice of one key: the events between two neighbouring edges. Where sessions are asked for, it is one
**run** of them: neighbouring events that are connected under the group's smallest gap.

    key:car … │ slice_start │ [excluded │ first │ last] │ count().count │ sum(speed).sum │ …

- `slice_start` is the edge at or before the slice's events, INT64_MIN where there is none. The next edge ends it.
- `first` and `last` are the times of a run's first and last event.
- `excluded` is the number of an exclusion set, 0 for the empty one: the final sessions that leave these late events
  out. Such events form slices of their own, so that every other window still has them.
- A column for each field of each partial, `<operator>[<filter>].<field>`.
- An ordered group (`core.ordered`) has more: the `position` of a slice's first event among those of its key, -1 for
  slices that stand outside of the order; `fresh`, whether an edge begins it, so that it never joins the slice before
  it; for each data-driven window twice the number of the window that it lies in, and one more where that begins, -1
  for none; and with `updates` a `digest` of its events.
- The lists that the placement of a group adds (`plan.groups`), which merging concatenates.

`merge` is associative and commutative: it brings rows with the same (keys, slice_start, excluded) together, and joins
runs that are at most a gap apart, or that no edge parts. So any tree of merges gives the same table, and it does not
matter who has sliced which events, nor when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from windrow.core.arrays.checks import lacking, wrong_numbers
from windrow.core.arrays.dataframes import empty_frame, run_numbers
from windrow.core.arrays.range_queries import run_begins, running_max
from windrow.core.operators.base import Fields, Operator
from windrow.core.operators.choose import Choices, Selection
from windrow.core.plan.groups import Partial
from windrow.core.windows.fixed import INT64_MIN

MOST_PENDING = 64  # tables that wait to be merged, at most


@dataclass(frozen=True)
class SliceSchema:
    """The columns of a group's slice table; follows from the group and the types of its inputs."""

    keys: Mapping[str, pl.DataType]
    partials: tuple[Partial, ...]
    inputs: Mapping[str, pl.DataType]  # the type of every expression, by its text
    place: Mapping[str, pl.DataType]  # the order's columns, for states that carry their place
    gap: int | None  # the smallest session gap; None without sessions
    lines: tuple[str, ...] | None = None  # the data-driven windows of an ordered group; None for any other
    digests: bool = False  # an ordered group whose events may still change
    lists: Mapping[str, pl.DataType] = field(default_factory=dict)  # columns of the group's placement

    @cached_property
    def names(self) -> dict[Partial, dict[str, str]]:
        """The columns of every partial's state, by field."""
        return {
            partial: {name: f"{partial.text}.{name}" for name in self.state_types(partial)} for partial in self.partials
        }

    def input_types(self, partial: Partial) -> list[pl.DataType]:
        return [self.inputs[expression.text] for expression in partial.operator.inputs]

    def state_types(self, partial: Partial) -> dict[str, pl.DataType]:
        return partial.operator.fields(self.input_types(partial), self.place)

    @cached_property
    def identity(self) -> list[str]:
        return [*self.keys, "slice_start", *(["excluded"] if self.has_runs else [])]

    @property
    def has_runs(self) -> bool:
        """Whether slices are runs of events, with the time of the first and the last."""
        return self.gap is not None or self.lines is not None

    @cached_property
    def order(self) -> list[str]:
        """The columns that the table is sorted by."""
        ordered = ["position"] if self.lines is not None else []
        return [*self.identity, *ordered, *(["first"] if self.has_runs else [])]

    @cached_property
    def unordered(self) -> dict[str, Any]:
        """The columns of an ordered group, with the values of slices that stand outside of the order."""
        if self.lines is None:
            return {}
        digest = {"digest": 0} if self.digests else {}
        return {"position": -1, "fresh": False, **dict.fromkeys(self.lines, -1), **digest}

    @cached_property
    def columns(self) -> dict[str, pl.DataType]:
        columns: dict[str, pl.DataType] = {**self.keys, "slice_start": pl.Int64()}
        if self.has_runs:
            columns |= {"excluded": pl.Int32(), "first": pl.Int64(), "last": pl.Int64()}
        columns |= {name: pl.Boolean() if name == "fresh" else pl.Int64() for name in self.unordered}
        columns |= self.lists
        for partial in self.partials:
            columns |= {self.names[partial][name]: dtype for name, dtype in self.state_types(partial).items()}
        return columns

    def empty(self) -> pl.DataFrame:
        return empty_frame(self.columns)

    def conform(self, table: pl.DataFrame) -> pl.DataFrame:
        """A table of an earlier plan in this schema. A partial that it lacks is null, which is neutral in a merge."""
        if table.columns == list(self.columns):
            return table
        there = set(table.columns)
        defaults = {"excluded": pl.lit(0), "first": pl.col("slice_start"), "last": pl.col("slice_start")}
        defaults |= {name: pl.lit(True if name == "fresh" else value) for name, value in self.unordered.items()}
        missing = [
            defaults.get(name, pl.lit(None)).cast(dtype).alias(name)
            for name, dtype in self.columns.items()
            if name not in there
        ]
        return table.with_columns(missing).select(*self.columns)

    def wrong_with(self, table: pl.DataFrame, times: tuple[int, int]) -> str | None:
        """Why a table of the right types that a stranger sends cannot be one of slices, as part of a sentence.

        None if it can. Rows may come in any order, and a slice may come again: `merge` is for that.

        times:  the least and the greatest time around which windows can be written
        """
        names = ["slice_start", *(["excluded", "first", "last"] if self.has_runs else [])]
        there = {name: table[name] for name in names if name in table.columns}
        if reason := lacking(there):
            return reason
        start = there["slice_start"]
        if start.min() == INT64_MIN:
            start = start.filter(start > INT64_MIN)
        bounds = {name: there[name] for name in ("first", "last") if name in there}
        if self.has_runs and len(bounds) < 2 and (bounds or len(start) < table.height):
            return "a run has no first or no last event"  # `conform` takes the slice's start for both
        if reason := wrong_numbers({"slice_start": start} | bounds, *times):
            return reason
        if "excluded" in there and (there["excluded"] != 0).any():
            return "'excluded' is not 0, and only a state has exclusion sets"
        if len(bounds) == 2 and not ((bounds["first"] <= bounds["last"]).all()):
            return "a run ends before it begins"
        return self.wrong_states(table)

    def wrong_states(self, table: pl.DataFrame) -> str | None:
        """Why the states in a table cannot be; of an operator that was not there when it was made there are none."""
        there = set(table.columns)
        for text, operator, names, types in self._checked:
            if there.isdisjoint(names.values()):
                continue
            if missing := [name for name in names.values() if name not in there]:
                return f"{missing[0]!r} is missing"
            state = Fields({name: table[column] for name, column in names.items()})
            state.types = types
            if reason := operator.wrong_with(state):
                return f"of {text} {reason}"
        return None

    @cached_property
    def _checked(self) -> list[tuple[str, Operator, dict[str, str], list[pl.DataType]]]:
        """The partials whose operators have something to say of states, with the columns and the types of each."""
        return [
            (one.text, one.operator, self.names[one], self.input_types(one))
            for one in self.partials
            if one.operator.counts or type(one.operator).wrong_with is not Operator.wrong_with
        ]

    def selections(self, state: Callable[[Partial], Fields]) -> dict[str, tuple[Selection, Fields]]:
        """The selections among its operators, by their text, with the states to choose from."""
        return {
            partial.text: (partial.operator, state(partial))
            for partial in self.partials
            if isinstance(partial.operator, Selection)
        }

    def state(self, table: pl.DataFrame, partial: Partial) -> Fields:
        """The columns of one operator's state."""
        state = Fields({name: table[column] for name, column in self.names[partial].items()})
        state.types = self.input_types(partial)
        return state


def merge(tables: Sequence[pl.DataFrame], schema: SliceSchema) -> pl.DataFrame:
    """One table with each slice once, sorted by key (nulls first), slice and run.

    Rows that are alone stay as they are: only those that share a slice with another are grouped.
    """
    table = pl.concat(tables) if len(tables) > 1 else tables[0]
    if table.height < 2:
        return table
    table = table.sort(schema.order)
    numbers = run_numbers(table, schema.identity)
    fresh = run_begins(numbers)
    if schema.gap is not None:
        reached = running_max(table["last"].to_numpy(), numbers)
        fresh[1:] |= table["first"].to_numpy()[1:] - reached[:-1] > schema.gap
    if schema.lines is not None:
        fresh |= table["fresh"].to_numpy()
    if fresh.all():
        return table
    shared = ~fresh
    shared[:-1] |= ~fresh[1:]
    run = np.cumsum(fresh)
    sharing = table if shared.all() else table.filter(pl.Series(shared))
    runs = [pl.col("first").min(), pl.col("last").max()] if schema.has_runs else []
    runs += [pl.col(name).sum() if name == "digest" else pl.col(name).first() for name in schema.unordered]
    runs += [pl.col(name).list.explode().drop_nulls() for name in schema.lists]
    choices = Choices(schema.selections(lambda partial: schema.state(sharing, partial)), sharing.height)
    states = [
        merged.alias(schema.names[partial][name])
        for partial in schema.partials
        if not isinstance(partial.operator, Selection)
        for name, merged in partial.operator.merge(schema.names[partial]).items()
    ]
    numbered = sharing.with_columns(pl.Series("_run", run[shared]).set_sorted(), *choices.columns)
    first = [pl.col(column).first() for column in schema.identity]
    grouped = numbered.group_by("_run", maintain_order=True).agg(*first, *runs, *states, *choices.lifts())
    merged_rows = finish(grouped, schema, choices)
    if shared.all():
        return merged_rows
    places = np.argsort(np.concatenate((run[~shared], grouped["_run"].to_numpy())), kind="stable")
    return pl.concat([table.filter(pl.Series(~shared)), merged_rows])[places]


class SliceBuffer:
    """Slices that come in tables: they are merged when they are asked for, or when they have become many.

    So taking a table in costs what it brings, and what is kept does not grow with repeats of the same slices.
    """

    def __init__(self, schema: SliceSchema, most: int = 65_536) -> None:
        self.schema, self._most = schema, most
        self.table = schema.empty()  # merged
        self.pending: list[pl.DataFrame] = []

    def __len__(self) -> int:
        """How many slices there are, those that are not merged yet as often as they came."""
        return self.table.height + sum(table.height for table in self.pending)

    def copy(self) -> SliceBuffer:
        other = copy(self)
        other.pending = list(self.pending)
        return other

    def add(self, table: pl.DataFrame) -> None:
        self.pending.append(table)
        if len(self) - self.table.height > max(self.table.height, self._most):
            self.merged()
        elif len(self.pending) > MOST_PENDING:
            self.pending = [merge(self.pending, self.schema)]

    def replace(self, table: pl.DataFrame) -> None:
        """Go on with these slices in the place of those that are merged."""
        self.table = table

    def merged(self) -> pl.DataFrame:
        """All slices in one table."""
        if self.pending:
            tables = [self.table, *self.pending] if self.table.height else self.pending
            self.table, self.pending = merge(tables, self.schema), []
        return self.table


def finish(
    table: pl.DataFrame,
    schema: SliceSchema,
    choices: Choices,
    columns: Mapping[str, pl.Series] | None = None,
    lifted: bool = False,
) -> pl.DataFrame:
    """Make a slice table of a `group_by`: each operator finishes its columns, and all get their declared types.

    The `columns` that the caller has are taken as they are; `lifted`: rows are new slices, not merged ones.
    """
    chosen = choices.chosen(table)
    ready = dict(columns or {})
    made = set(table.columns)
    for partial in schema.partials:
        names = schema.names[partial]
        state = Fields({name: table[column] for name, column in names.items() if column in made})
        state.types = schema.input_types(partial)
        done = partial.operator.finish(state) if lifted else partial.operator.finish_merged(state)
        ready |= {names[name]: column for name, column in chosen.get(partial.text, done).items()}
    ordered = [ready[name] if name in ready else table[name] for name in schema.columns]
    return pl.DataFrame(
        [
            (column if column.dtype == dtype else column.cast(dtype)).alias(name)
            for column, (name, dtype) in zip(ordered, schema.columns.items(), strict=True)
        ]
    )
