"""The tables in which nodes and the root speak of counting windows.

    counting           the node: up to which time it is final, what it has heard, how many events were too late
    counting|gone      from nodes between it and the root: it is waited for no more, or again
    <group>|pieces     key, node, ranks, first and last time, kind, states of slices; `of` which piece it is the content
    <group>|events     the events of pieces that are sent as they are, one after the other
    <group>|reach      key, node, and the time of the first event that no piece has; null if there is none

and down, in a request:

    <group>            key, what is settled and what to expect (`counting.Told`)
    <group>|ask        key, ranks, and what is asked of them: the events, their slice, or more of what comes after them
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from typing import Any

import polars as pl

from windrow.bound import state_of
from windrow.groups import Group
from windrow.jobs import Job
from windrow.nodes.counting import Boundaries, Told, sub_slice
from windrow.ordered_state import OrderedState
from windrow.ordering import Ordering
from windrow.ranges import Ints
from windrow.windows import INT64_MIN

COUNTING, GONE = "counting", "counting|gone"
NODE_COLUMN = "order:0"  # of events: the node, which in a batch stands in the pieces instead
ANEW = -1  # of a piece: it and those after it take the place of all that were sent from there on
Key = tuple[Any, ...]


def groups_of(job: Job) -> list[Group]:
    return [group for group in job.bound.plan.groups if group.counted]


class Form:
    """What the tables of a counted group look like; prepared once per plan."""

    def __init__(self, group: Group, job: Job) -> None:
        state = state_of(group, job.bound.binding, job.measures)
        assert isinstance(state, OrderedState)
        self.group, self.state, self.schema = group, state, state.schema
        self.ordering: Ordering = state.ordering
        self.time = self.ordering.time
        self.keys = dict(self.schema.keys)
        self.boundaries = Boundaries(self.ordering.grids[INT64_MIN])
        self.events = {name: dtype for name, dtype in self.ordering.needed.items() if name in self.ordering.read}
        self.sent = {name: dtype for name, dtype in self.events.items() if name != NODE_COLUMN}
        self.states = {
            name: dtype for name, dtype in self.schema.columns.items() if "." in name and name not in self.keys
        }
        place = {"node": pl.String(), "lo": pl.Int64(), "hi": pl.Int64(), "first": pl.Int64(), "last": pl.Int64()}
        of = {"kind": pl.String(), "of_lo": pl.Int64(), "of_hi": pl.Int64()}
        self.pieces: dict[str, pl.DataType] = {**self.keys, **place, **of, **self.states}
        self.reach = {**self.keys, "node": pl.String(), "next": pl.Int64()}
        self.event_bytes = 8.0 * len(self.sent)

    @property
    def first(self) -> Told:
        """How a node begins, of which nothing is known: it may be the only one that has events."""
        unit = sub_slice(self.boundaries.widest, self.event_bytes, len(self.pieces))
        return Told("refine", unit=unit)

    @property
    def name(self) -> str:
        return self.group.name

    @property
    def told(self) -> dict[str, pl.DataType]:
        """The columns of what the root tells a node."""
        numbers = {"share": pl.Float64(), "margin": pl.Float64(), "scheme": pl.String()}
        return {**self.keys, **{name: numbers.get(name, pl.Int64()) for name in Told._fields}, "rewind": pl.Int64()}

    @property
    def ask(self) -> dict[str, pl.DataType]:
        """The columns of what the root asks a node."""
        return {**self.keys, "lo": pl.Int64(), "hi": pl.Int64(), "what": pl.String()}

    def lifted(self, events: pl.DataFrame, at: Ints) -> pl.DataFrame:
        """The states of runs of events in order that begin at these places."""
        size = len(at)
        columns = {name: pl.Series([None] * size, dtype=dtype) for name, dtype in self.keys.items()}
        known: dict[str, Any] = {"slice_start": INT64_MIN, "barred": 0, "first": 0, "last": 0}
        known |= self.schema.unordered
        columns |= {name: pl.Series([value] * size) for name, value in known.items()}
        return self.ordering.lifted(events, at, columns)


NODES: dict[str, pl.DataType] = {
    "node": pl.String(),
    "final": pl.Int64(),
    "idle": pl.Boolean(),
    "heard": pl.Int64(),
    "over": pl.Boolean(),
    "rewound": pl.Int64(),
    "late": pl.Int64(),
}
GOING: dict[str, pl.DataType] = {"node": pl.String(), "gone": pl.Boolean()}


def gone_table(names: Iterable[str], gone: bool) -> pl.DataFrame:
    """That nobody waits for these nodes, or everybody again."""
    return pl.DataFrame([(name, gone) for name in names], schema=GOING, orient="row")


def tables_of(job: Job) -> set[str]:
    """The names of the tables that counted groups have in a batch."""
    names = [group.name for group in groups_of(job)]
    parts = ("pieces", "events", "reach")
    return {COUNTING, GONE, *(f"{name}|{part}" for name in names for part in parts)} if names else set()


def to_text(table: pl.DataFrame) -> str:
    """A table as text, for headers."""
    buffer = io.BytesIO()
    table.write_ipc_stream(buffer, compression="uncompressed")
    return base64.b64encode(buffer.getvalue()).decode()


def from_text(text: str) -> pl.DataFrame:
    return pl.read_ipc_stream(io.BytesIO(base64.b64decode(text)))
