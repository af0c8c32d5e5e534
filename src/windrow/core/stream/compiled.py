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
from windrow.core.plan.watermark import Measure
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
    plan: Plan, columns: Mapping[str, pl.DataType], order_by: Sequence[str], measures: Mapping[str, Measure]
) -> Bound:
    """Bind a plan to columns; what does not fit is refused here."""
    binding = Binding(plan, columns, order_by)
    for name, dtype in binding.measures.items():
        if name in measures:
            measures[name].check(name, dtype)
    for group in plan.groups:
        if group.joined and group.source.measure in measures and measures[group.source.measure].updates:
            asked = plan.entries[next(iter(group.members.values()))[0]].query
            raise QueryError(
                f"query {asked.name!r}: {asked.window} cannot have updates: a late event at one node could part and "
                "shift the windows of all; leave updates out, or ask with scope='global' or 'node'"
            )
    states = {group.identity: state_of(group, binding, measures) for group in plan.groups}
    bounds = {binding.measures[group.source.measure] for group in plan.groups}
    bound = bounds.pop() if len(bounds) == 1 else pl.Int64()
    retractions = any(measure.updates for measure in measures.values())
    results = ResultSchema([entry.query for entry in plan.entries], binding.keys, bound, retractions)
    results.learn(states.values())
    return Bound(plan, dict(columns), binding, states, results)


def state_of(group: Group, binding: Binding, measures: Mapping[str, Measure]) -> GroupState:
    """A state of a group that has seen nothing."""
    measure = measures.get(group.source.measure)
    updates = measure is not None and measure.updates > 0
    own, shared = (binding.schema(group, shared, updates) for shared in (False, True))
    kind = JoinedState if group.joined else OrderedState if group.ordered else GroupState
    return kind(group, own, shared)
