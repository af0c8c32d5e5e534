"""Groups: the queries over the same events by the same keys, whatever their windows, aggregates and filters.

    query = timeline × signature        timeline    a window, and the event times between which it is asked for
                                        signature   a list of aggregates, over a filter
    signature ──▶ partials              each operator once for each filter, in every slice of the group

Queries with the same timeline share windows, those with the same signature share answers: a million queries over ten
thousand windows cost ten thousand windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd, prod
from typing import NamedTuple

import polars as pl

from windrow.core.aggregates.functions import Aggregate
from windrow.core.expressions.parse import Expression, both
from windrow.core.operators.base import Count, Multiset, Operator
from windrow.core.query.query import Query
from windrow.core.windows.fixed import (
    INT64_MAX,
    INT64_MIN,
    ContextFreeWindow,
    FixedWindow,
    Grid,
    Session,
    Window,
)
from windrow.core.windows.ordered import DataDrivenWindow, Latest, OrderedWindow

ROWS = Count(())  # the number of events: every filter of every group keeps it


class Entry(NamedTuple):
    """A query with the event times between which it is there; a `closing` one still emits windows that have begun."""

    query: Query
    since: int = INT64_MIN
    until: int = INT64_MAX
    closing: bool = False


class Source(NamedTuple):
    """Which events a group sees, on which time column."""

    time: str
    distinct_on: tuple[str, ...] = ()
    where: Expression | None = None
    since: int = INT64_MIN  # with distinct_on: an event that the query does not see makes no other one a repeat


class Timeline(NamedTuple):
    """A window and the event times between which some query asked for it."""

    window: Window
    since: int
    until: int
    closing: bool

    @property
    def line(self) -> str:
        """The window and since when: what it has in common with a timeline that ends at another time."""
        return f"{self.window.kind} {self.window!r} {self.since}"


class Signature(NamedTuple):
    """What is asked about a window: aggregates over the events that satisfy a filter, and what they must satisfy."""

    aggregates: tuple[Aggregate, ...]
    where: Expression | None
    having: Aggregate | None = None

    @property
    def computed(self) -> tuple[Aggregate, ...]:
        """Its aggregates, with the one that they must satisfy."""
        return (*self.aggregates, self.having) if self.having else self.aggregates

    @property
    def needs_order(self) -> bool:
        return any(aggregate.needs_order for aggregate in self.computed)

    @property
    def partials(self) -> list[Partial]:
        """What its aggregates read, each once; equal operators are the same object."""
        operators = {}
        for aggregate in self.computed:
            for operator, where in zip(aggregate.operators, aggregate.filters, strict=True):
                operators[id(operator), where] = operator
        return [Partial(operator, both(self.where, where)) for (_, where), operator in operators.items()]


def partials_of(aggregate: Aggregate, where: Expression | None) -> list[Partial]:
    """What an aggregate reads, in the order of its operators, over events that satisfy a filter: that and its own."""
    return [
        Partial(operator, both(where, own))
        for operator, own in zip(aggregate.operators, aggregate.filters, strict=True)
    ]


def leaves(aggregates: Iterable[Aggregate]) -> Iterator[Aggregate]:
    """Give aggregates, or those that formulas are made of."""
    for aggregate in aggregates:
        yield from leaves(aggregate.parts) if aggregate.parts else (aggregate,)


def quantile_of(leaf: Aggregate) -> float | None:
    """Which quantile an aggregate is; None if it is none."""
    if leaf.function == "median":
        return 0.5
    return float(leaf.param("q")) if leaf.function == "quantile" else None


def reads_of(signature: Signature) -> Iterator[tuple[Partial, float | None]]:
    """Give the multisets that a signature reads, and which quantiles of them; None for something else."""
    for leaf in leaves(signature.computed):
        for partial in partials_of(leaf, signature.where):
            if isinstance(partial.operator, Multiset):
                yield partial, quantile_of(leaf)


class Partial(NamedTuple):
    """An operator over the events that satisfy a filter: one state per slice."""

    operator: Operator
    where: Expression | None

    @property
    def text(self) -> str:
        return self.operator.text + (f"[{self.where.text}]" if self.where else "")


def cut_from(query: Query, moment: int) -> int:
    """The first time, at or after a moment, at which a query's slices are cut in any case, so that it can begin there.

    Those of sessions are cut at multiples of their gap, those of other windows where a query comes or goes.
    """
    if isinstance(query.window, Session) and INT64_MIN < moment < INT64_MAX:
        return -(-moment // query.window.gap) * query.window.gap
    return moment


class Rates(NamedTuple):
    """What is known of a stream, by which the plan decides whether sharing pays.

    events:  how many per unit of the time column: per microsecond for timestamps, per unit for an integer
    keys:    how many different values each key column has; 1 where it is not named
    """

    events: float
    keys: Mapping[str, float]

    def distinct(self, keys: Sequence[str]) -> float:
        """How many different keys there are at most, over these columns."""
        return prod(max(1.0, self.keys.get(key, 1.0)) for key in keys)


@dataclass(frozen=True)
class Placement:
    """Where a runtime does the work of some queries, whose groups are their own for it.

    label:     what the names of such groups end in
    travels:   what travels for them, as `explain` says it
    is_apart:  neither slices nor events of them travel as those of other groups do
    columns:   lists that their slices have as well; those of slices that merge are concatenated
    """

    label: str
    travels: str
    is_apart: bool = False
    columns: tuple[tuple[str, pl.DataType], ...] = ()


class GroupIdentity(NamedTuple):
    """What the queries of a group have in common."""

    source: Source
    keys: tuple[str, ...]
    kind: str = ""  # "sessions", "in order" or "joined", where such queries have groups of their own
    placement: Placement | None = None


@dataclass
class Group:
    """Everything that is asked about the same events by the same keys."""

    identity: GroupIdentity
    ordered: bool = False  # some query needs the final order of events, so that all slices are made in it
    timelines: dict[Timeline, int] = field(default_factory=dict)
    signatures: dict[Signature, int] = field(default_factory=dict)
    members: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # (timeline, signature) → queries
    partials: dict[Partial, None] = field(default_factory=dict)
    parent: Group | None = None
    children: list[Group] = field(default_factory=list)
    why: str = ""

    def __post_init__(self) -> None:
        self.source, self.keys, self.kind, self.placement = self.identity

    @property
    def name(self) -> str:
        kind = f" ({self.kind})" if self.kind else ""
        return self.shared_name + kind + (self.placement.label if self.placement else "")

    @property
    def is_apart(self) -> bool:
        """Whether neither its slices nor its events travel as those of other groups do."""
        return self.placement is not None and self.placement.is_apart

    @property
    def shared_name(self) -> str:
        shown = f"by ({', '.join(self.keys)}) on {self.source.time}"
        if self.source.where:
            shown += f" where {self.source.where.text}"
        if self.source.distinct_on:
            shown += f" distinct on ({', '.join(self.source.distinct_on)})"
            shown += f" since {self.source.since}" if self.source.since > INT64_MIN else ""
        return shown

    def needs(self, shared: bool) -> tuple[list[Timeline], tuple[Partial, ...], int | None]:
        """What cuts its slices, what they hold, and the smallest session gap, which connects the events of one.

        What it keeps is for itself alone; what is made of the events is `shared` with the groups that are rolled up.
        """
        groups = (self, *self.children) if shared else (self,)
        timelines = [timeline for group in groups for timeline in group.timelines]
        partials = tuple(dict.fromkeys(partial for group in groups for partial in group.partials))
        gaps = [timeline.window.gap for timeline in timelines if isinstance(timeline.window, Session)]
        return timelines, partials, min(gaps, default=None)

    @property
    def example_of(self) -> dict[int, int]:
        """For each signature, a query that has it."""
        examples: dict[int, int] = {}
        for (_, signature), numbers in self.members.items():
            examples.setdefault(signature, numbers[0])
        return examples

    @property
    def has_sessions(self) -> bool:
        return any(isinstance(timeline.window, Session) for timeline in self.timelines)

    @property
    def lines(self) -> dict[str, Timeline]:
        """The data-driven windows, each since a time."""
        return {timeline.line: timeline for timeline in self.timelines if isinstance(timeline.window, DataDrivenWindow)}

    @property
    def filters(self) -> list[Expression | None]:
        """The filters of its own queries."""
        return list(dict.fromkeys(signature.where for signature in self.signatures))

    def add(self, entry: Entry, number: int) -> None:
        query = entry.query
        timeline = Timeline(query.window, entry.since, entry.until, entry.closing)
        signature = Signature(query.aggregates, query.filter_inside, query.having)
        line = self.timelines.setdefault(timeline, len(self.timelines))
        self.ordered |= isinstance(query.window, OrderedWindow)
        if signature not in self.signatures:
            self.ordered |= signature.needs_order
            self.signatures[signature] = len(self.signatures)
            self.partials |= dict.fromkeys([Partial(ROWS, signature.where), *signature.partials])
        self.members.setdefault((line, self.signatures[signature]), []).append(number)


def _grids(window: Window) -> set[Grid]:
    if isinstance(window, FixedWindow):
        return window.grids()
    if isinstance(window, Session):
        return {Grid(window.gap, 0)}
    return {Grid(window.every, 0)} if isinstance(window, Latest) else set()


def edges_per_unit(*groups: Group) -> float:
    """How often a slice ends that these groups share, at most: as all their grids do, or their common divisor."""
    windows = {timeline.window for group in groups for timeline in group.timelines}
    own = sum(window.edges_per_unit for window in windows if isinstance(window, ContextFreeWindow))
    grids = {grid for window in windows for grid in _grids(window)}
    if not grids:
        return own
    common = gcd(*(period for period, _ in grids), *(phase for _, phase in grids))
    return own + min(sum(1 / int(period) for period, _ in grids), 1 / common)
