"""Bound: a plan with the types of real events, the state of each of its groups, and the columns of its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from windrow.core.assemble.group_state import GroupState
from windrow.core.assemble.results import ResultSchema
from windrow.core.ordered.node_windows import JoinedState
from windrow.core.ordered.state import OrderedState
from windrow.core.plan.groups import Group
from windrow.core.plan.plan import Plan
from windrow.core.plan.watermark import TimeColumn
from windrow.core.query.query import QueryError
from windrow.core.slices.binding import Binding


@dataclass
class Bound:
    plan: Plan
    columns: dict[str, pl.DataType]
    binding: Binding
    states: dict[Any, GroupState]
    results: ResultSchema


def bind(
    plan: Plan, columns: Mapping[str, pl.DataType], order_by: Sequence[str], time_columns: Mapping[str, TimeColumn]
) -> Bound:
    """Bind a plan to columns; what does not fit is refused here."""
    binding = Binding(plan, columns, order_by)
    for name, dtype in binding.time_columns.items():
        if name in time_columns:
            time_columns[name].check(name, dtype)
    for group in plan.groups:
        if group.joined and group.source.time in time_columns and time_columns[group.source.time].updates:
            asked = plan.entries[next(iter(group.members.values()))[0]].query
            raise QueryError(
                f"query {asked.name!r}: {asked.window} cannot have updates: a late event at one node could part and "
                "shift the windows of all; leave updates out, or ask with scope='global' or 'node'"
            )
    states = {group.identity: state_of(group, binding, time_columns) for group in plan.groups}
    bounds = {binding.time_columns[group.source.time] for group in plan.groups}
    bound = bounds.pop() if len(bounds) == 1 else pl.Int64()
    retractions = any(time_column.updates for time_column in time_columns.values())
    results = ResultSchema([entry.query for entry in plan.entries], binding.keys, bound, retractions)
    results.learn(states.values())
    return Bound(plan, dict(columns), binding, states, results)


def state_of(group: Group, binding: Binding, time_columns: Mapping[str, TimeColumn]) -> GroupState:
    """A state of a group that has seen nothing."""
    time_column = time_columns.get(group.source.time)
    updates = time_column is not None and time_column.updates > 0
    own, shared = (binding.schema(group, shared, updates) for shared in (False, True))
    kind = JoinedState if group.joined else OrderedState if group.ordered else GroupState
    return kind(group, own, shared)
