"""The tables in which local nodes and the root speak of the bags of time windows and sessions.

    <group>|units <bag>    as `quantiles` says, with from when to when its events are
    <group>|values <bag>   likewise
    refining               the node, and whether nothing may be asked of it any more

and down, in a request:

    <group>|wanted <bag>   likewise
    <group>|settled        bags of these and earlier sends, of events before a time, will not be asked for
    refining               that was all
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from windrow.core.arrays.range_queries import Ints
from windrow.core.plan.groups import Group
from windrow.core.stream.job import Job
from windrow.core.windows.fixed import Grid
from windrow.nodes.counting.tables import GOING, GONE
from windrow.nodes.quantiles.protocol import BagForm

REFINING = "refining"
NODES: dict[str, pl.DataType] = {"node": pl.String(), "over": pl.Boolean()}
SETTLED: dict[str, pl.DataType] = {"send": pl.Int64(), "start": pl.Int64()}
OVER: dict[str, pl.DataType] = {"over": pl.Boolean()}


class TimeForm(BagForm):
    """Of time windows and sessions."""

    place: Mapping[str, pl.DataType] = {"start": pl.Int64(), "end": pl.Int64()}

    def __init__(self, group: Group, job: Job) -> None:
        super().__init__(group, job.bound.by_name[group.name].schema)
        self._edges = job.bound.by_name[group.name].edges

    def times(self, table: pl.DataFrame) -> tuple[Ints, Ints]:
        """From when to when the events of slices are."""
        if self.schema.has_runs:
            return table["first"].to_numpy(), table["last"].to_numpy() + 1
        start = table["slice_start"].to_numpy()
        end = np.full(len(start), np.iinfo(np.int64).max)
        for period, phase in zip(self._edges.period, self._edges.phase, strict=True):
            np.minimum(end, Grid(period, phase).after(start), out=end)
        return start, end


def forms_of(job: Job) -> dict[str, TimeForm]:
    groups = [group for group in job.bound.plan.groups if group.refined and not group.counted]
    return {group.name: TimeForm(group, job) for group in groups}


def tables_of(job: Job) -> tuple[set[str], set[str]]:
    """The names of the tables that go with the slices of refined groups, and of those that the root waits for."""
    forms = forms_of(job).values()
    units = {f"{form.name}|units {bag}" for form in forms for bag in form.bags}
    names = {name for form in forms for name in form.tables} | ({REFINING, GONE} if forms else set())
    return names, names - units


def wrong_with(forms: Sequence[TimeForm], tables: Mapping[str, pl.DataFrame]) -> str | None:
    """Why the tables of refined groups cannot be taken; None if they can."""
    for name, columns in ((REFINING, NODES), (GONE, GOING)) if forms else ():
        if name in tables and dict(tables[name].schema) != columns:
            return f"{name} has other columns in its batch than it should"
    return next((reason for form in forms if (reason := form.wrong_with(tables))), None)
