"""Compiling a plan: with the types of real events, all that follows from it, once for every state of its groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from windrow.core.assemble.group_state import CompiledGroup
from windrow.core.assemble.results import ResultSchema
from windrow.core.expressions.errors import QueryError
from windrow.core.ordered.node_windows import CompiledJoinedGroup
from windrow.core.ordered.state import CompiledOrderedGroup
from windrow.core.plan.groups import Group
from windrow.core.plan.plan import Plan
from windrow.core.plan.watermark import TimeColumn
from windrow.core.slices.binding import Binding


@dataclass(frozen=True)
class CompiledPlan:
    """A plan over events with some columns; it never changes, and states of its groups are made from it."""

    plan: Plan
    binding: Binding
    groups: Sequence[CompiledGroup]
    results: ResultSchema

    @cached_property
    def by_name(self) -> dict[str, CompiledGroup]:
        return {compiled.group.name: compiled for compiled in self.groups}

    @cached_property
    def sliced(self) -> dict[str, CompiledGroup]:
        """The groups whose slices are made wherever the events are: all that are not ordered."""
        return {name: compiled for name, compiled in self.by_name.items() if not compiled.group.ordered}


def compile_plan(
    plan: Plan, columns: Mapping[str, pl.DataType], order_by: Sequence[str], time_columns: Mapping[str, TimeColumn]
) -> CompiledPlan:
    """Compile a plan for columns; what does not fit is refused here."""
    binding = Binding(plan, columns, order_by)
    for name, dtype in binding.time_columns.items():
        if name in time_columns:
            time_columns[name].check(name, dtype)
    updates = {name for name, time_column in time_columns.items() if time_column.updates}
    groups = [_compile_group(group, plan, binding, group.source.time in updates) for group in plan.groups]
    bounds = {binding.time_columns[group.source.time] for group in plan.groups}
    bound = bounds.pop() if len(bounds) == 1 else pl.Int64()
    results = ResultSchema([entry.query for entry in plan.entries], binding.keys, bound, bool(updates))
    results.learn(groups)
    return CompiledPlan(plan, binding, groups, results)


def _compile_group(group: Group, plan: Plan, binding: Binding, updates: bool) -> CompiledGroup:
    is_joined = group.kind == "joined"
    if is_joined and updates:
        query = plan.entries[next(iter(group.members.values()))[0]].query
        raise QueryError(
            f"query {query.name!r}: {query.window} cannot have updates: a late event at one node could part and "
            "shift the windows of all; leave updates out, or ask with scope='global' or 'node'"
        )
    own, shared = (binding.schema(group, shared, updates) for shared in (False, True))
    kind = CompiledJoinedGroup if is_joined else CompiledOrderedGroup if group.ordered else CompiledGroup
    return kind(group, own, shared)
