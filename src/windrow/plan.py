"""The plan: queries become slice groups.

Queries over the same keys and the same events share one **group**, whatever their window type, function or filter:

    events ──▶ group by (car)      edges of all its windows, each operator once
                 └──▶ group by ()  rolled up from the slices of (car), not from the events

A group has **timelines** (a window together with the stretch of event time for which its query was there), and
**signatures** (a list of aggregates with a filter); a query is one of each. So a million queries over ten thousand
windows cost ten thousand windows. Planning is pure: the same entries give the same plan.

A query's `where` is applied inside the operators, so queries with different predicates share slices; sessions, whose
bounds depend on which events exist, are filtered first and so get a group per predicate, as do queries with
`distinct_on`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd
from typing import Any, NamedTuple

from windrow.aggregates import Aggregate
from windrow.expressions import Expression, both
from windrow.operators import Count, Operator
from windrow.ordered import Counting, DataDrivenWindow, Latest, OrderedWindow
from windrow.query import Query, QueryError, time_of
from windrow.windows import (
    INT64_MAX,
    INT64_MIN,
    ContextFreeWindow,
    FixedWindow,
    Grid,
    Session,
    Window,
    duration_text,
)

ROWS = Count(())  # the number of events: every filter of every group keeps it
SHARING_LIMIT = 0.1  # slices per event beyond which sharing no longer pays


class Entry(NamedTuple):
    """A query with the event times between which it is there; a `closing` one still emits windows that have begun."""

    query: Query
    since: int = INT64_MIN
    until: int = INT64_MAX
    closing: bool = False


class Source(NamedTuple):
    """Which events a group sees, on which measure."""

    measure: str
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
    def asked(self) -> tuple[Aggregate, ...]:
        return (*self.aggregates, self.having) if self.having else self.aggregates

    @property
    def needs_order(self) -> bool:
        return any(asked.needs_order for asked in self.asked)

    @property
    def held(self) -> list[Held]:
        """What its aggregates read, each once; equal operators are the same object."""
        found = {}
        for asked in self.asked:
            for operator, where in zip(asked.operators, asked.filters, strict=True):
                found[id(operator), where] = operator
        return [Held(operator, both(self.where, where)) for (_, where), operator in found.items()]

    def held_by(self, asked: Aggregate) -> list[Held]:
        """What one of its aggregates reads, in the order of its operators."""
        return held_by(asked, self.where)


def held_by(asked: Aggregate, where: Expression | None) -> list[Held]:
    """What an aggregate reads, over events that satisfy a filter: that filter and its own."""
    return [Held(one, both(where, own)) for one, own in zip(asked.operators, asked.filters, strict=True)]


class Held(NamedTuple):
    """An operator over the events that satisfy a filter: one state per slice."""

    operator: Operator
    where: Expression | None

    @property
    def text(self) -> str:
        return self.operator.text + (f"[{self.where.text}]" if self.where else "")


class Rates(NamedTuple):
    """What is known of a stream: events per unit of its measure, and distinct values per key column."""

    events: float
    keys: Mapping[str, float]

    def distinct(self, keys: Sequence[str]) -> float:
        product = 1.0
        for key in keys:
            product *= max(1.0, self.keys.get(key, 1.0))
        return product


@dataclass
class Group:
    """Everything that is asked about the same events by the same keys."""

    source: Source
    keys: tuple[str, ...]
    sessions_apart: bool = False
    order_apart: bool = False
    ordered: bool = False  # some query needs the final order of events, so that all slices are made in it
    timelines: dict[Timeline, int] = field(default_factory=dict)
    signatures: dict[Signature, int] = field(default_factory=dict)
    members: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # (timeline, signature) → queries
    held: dict[Held, None] = field(default_factory=dict)
    parent: Group | None = None
    children: list[Group] = field(default_factory=list)
    why: str = ""

    @property
    def identity(self) -> tuple[Source, tuple[str, ...], bool, bool]:
        return self.source, self.keys, self.sessions_apart, self.order_apart

    @property
    def name(self) -> str:
        return self.shared_name + (" (sessions)" if self.sessions_apart else " (in order)" if self.order_apart else "")

    @property
    def shared_name(self) -> str:
        shown = f"by ({', '.join(self.keys)}) on {self.source.measure}"
        if self.source.where:
            shown += f" where {self.source.where.text}"
        if self.source.distinct_on:
            shown += f" distinct on ({', '.join(self.source.distinct_on)})"
            shown += f" since {self.source.since}" if self.source.since > INT64_MIN else ""
        return shown

    def needs(self, shared: bool) -> tuple[list[Timeline], tuple[Held, ...], int | None]:
        """What cuts its slices, what they hold, and the smallest session gap, which connects the events of one.

        What it keeps is for itself alone; what is made of the events is `shared` with the groups that are rolled up.
        """
        groups = (self, *self.children) if shared else (self,)
        timelines = [timeline for group in groups for timeline in group.timelines]
        held = tuple(dict.fromkeys(one for group in groups for one in group.held))
        gaps = [timeline.window.gap for timeline in timelines if isinstance(timeline.window, Session)]
        return timelines, held, min(gaps, default=None)

    @property
    def asked_by(self) -> dict[int, int]:
        """For each signature, a query that has it."""
        found: dict[int, int] = {}
        for (_, signature), numbers in self.members.items():
            found.setdefault(signature, numbers[0])
        return found

    @property
    def has_sessions(self) -> bool:
        return any(isinstance(timeline.window, Session) for timeline in self.timelines)

    @property
    def lines(self) -> dict[str, Timeline]:
        """The data-driven windows, each since a time."""
        return {one.line: one for one in self.timelines if isinstance(one.window, DataDrivenWindow)}

    @property
    def filters(self) -> list[Expression | None]:
        """The filters of its own queries."""
        return list(dict.fromkeys(signature.where for signature in self.signatures))

    def add(self, entry: Entry, number: int) -> None:
        query = entry.query
        timeline = Timeline(query.window, entry.since, entry.until, entry.closing)
        signature = Signature(query.aggregates, query.filter_inside, query.having)
        place = self.timelines.setdefault(timeline, len(self.timelines))
        self.ordered |= isinstance(query.window, OrderedWindow)
        if signature not in self.signatures:
            self.ordered |= signature.needs_order
            self.signatures[signature] = len(self.signatures)
            self.held |= dict.fromkeys([Held(ROWS, signature.where), *signature.held])
        self.members.setdefault((place, self.signatures[signature]), []).append(number)


def _grids(window: Window) -> set[Grid]:
    if isinstance(window, FixedWindow):
        return window.grids()
    if isinstance(window, Session):
        return {Grid(window.gap, 0)}
    return {Grid(window.every, 0)} if isinstance(window, Latest) else set()


def _edges_per_unit(*groups: Group) -> float:
    """How often a slice ends that these groups share, at most: as all their grids do, or their common divisor."""
    windows = {timeline.window for group in groups for timeline in group.timelines}
    own = sum(window.edges_per_unit for window in windows if isinstance(window, ContextFreeWindow))
    grids = {grid for window in windows for grid in _grids(window)}
    if not grids:
        return own
    common = gcd(*(period for period, _ in grids), *(phase for _, phase in grids))
    return own + min(sum(1 / period for period, _ in grids), 1 / common)


@dataclass
class Plan:
    entries: Sequence[Entry]
    groups: list[Group]
    measures: list[str]

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data."""
        return {
            "queries": len(self.entries),
            "measures": self.measures,
            "groups": [_group_to_dict(group) for group in self.groups],
        }

    def explain(self) -> str:
        """The plan as text: groups, operators, edges, placement, and why."""
        described = self.to_dict()
        lines = [f"{_several(described['queries'], 'query')} in {_several(len(self.groups), 'slice group')}"]
        for group in described["groups"]:
            lines.append(f"group {group['name']}")
            windows = f"{_several(group['windows'], 'window')}: {_some(group['shows'])}"
            lines.append(f"  queries    {group['queries']:,} over {windows}")
            lines.append(f"  edges      {group['edges']}")
            lines.append(f"  operators  {len(group['operators'])}: {_some(group['operators'])}")
            lines.append(f"  sliced     {group['sliced']}")
            lines.append(f"  placement  {group['placement']}")
            lines.append(f"  travels    {group['travels']}")
        return "\n".join(lines)

    @property
    def depends_on_rates(self) -> bool:
        """Whether there is anything to share or to keep apart."""
        if len(self.groups) > 1:
            return True
        kinds = {isinstance(timeline.window, Session) for group in self.groups for timeline in group.timelines}
        return len(kinds) > 1

    @property
    def apart(self) -> frozenset[str]:
        """The groups whose sessions are kept apart, by the name that they have in common."""
        return frozenset(group.shared_name for group in self.groups if group.sessions_apart)

    @cached_property
    def furthest(self) -> dict[str, Query]:
        """For each measure, the query whose windows reach furthest from an event."""
        found: dict[str, tuple[int, Query]] = {}
        for group in self.groups:
            timelines = list(group.timelines)
            for (place, _), numbers in group.members.items():
                reach = timelines[place].window.reach
                if reach > found.get(group.source.measure, (-1, None))[0]:
                    found[group.source.measure] = reach, self.entries[numbers[0]].query
        return {measure: query for measure, (_, query) in found.items()}

    @property
    def fingerprint(self) -> str:
        """The same for two plans whose slice tables can be merged."""
        parts = [
            [group.name, group.ordered, sorted(one.text + one.operator.form for one in group.held)]
            for group in self.groups
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def plan(
    queries: Iterable[Query | Entry],
    time: str | None = None,
    rates: Rates | None = None,
    apart: frozenset[str] | None = None,
    order_apart: bool = False,
) -> Plan:
    """Group queries so that everything that can be shared is computed once.

    `apart` repeats an earlier plan's decision which groups have their sessions apart, because state depends on it.
    With `order_apart`, queries that need the order of events get groups of their own, so that for all others slices
    travel and not events.
    """
    entries = [one if isinstance(one, Entry) else Entry(one) for one in queries]
    time = time_of((entry.query for entry in entries), time)
    groups: dict[Any, Group] = {}
    names: set[str] = set()
    for number, entry in enumerate(entries):
        query = entry.query
        if not isinstance(query, Query):
            raise QueryError(f"expected a Query, not {query!r}")
        if query.name in names:
            raise QueryError(f"two queries are called {query.name!r}")
        names.add(query.name)
        since = entry.since if query.distinct_on else INT64_MIN
        source = Source(query.time or time, query.distinct_on, query.filter_first, since)
        ordered = order_apart and query.needs_order
        group = groups.get((source, query.by, ordered))
        if group is None:
            group = groups[source, query.by, ordered] = Group(source, query.by, order_apart=ordered)
        group.add(entry, number)
    _part_sessions(groups, entries, rates, apart)
    several = sorted(groups.values(), key=lambda group: (-len(group.keys), group.name))
    _roll_up(several, rates)
    measures = list(dict.fromkeys([time, *(group.source.measure for group in several)]))
    return Plan(entries, several, measures)


def _part_sessions(
    groups: dict[Any, Group], entries: Sequence[Entry], rates: Rates | None, apart: frozenset[str] | None
) -> None:
    """A gap so small that its slices are no longer few beside the events gets a group of its own."""
    for key, group in list(groups.items()):
        if apart is None:
            both = (
                not group.ordered
                and group.has_sessions
                and any(isinstance(line.window, ContextFreeWindow) for line in group.timelines)
            )
            part = both and rates and _too_many(_edges_per_unit(group) * rates.distinct(group.keys), rates)
        else:
            part = group.name in apart
        if not part:
            continue
        fixed, sessions = Group(group.source, group.keys), Group(group.source, group.keys, sessions_apart=True)
        timelines = list(group.timelines)
        for (place, _), numbers in group.members.items():
            for number in numbers:
                (sessions if isinstance(timelines[place].window, Session) else fixed).add(entries[number], number)
        sessions.why = f"kept apart: shared slices would be more than {SHARING_LIMIT:.0%} of the events"
        del groups[key]
        groups |= {(key, one.sessions_apart): one for one in (fixed, sessions) if one.members}


def _too_many(slices: float, rates: Rates) -> bool:
    return slices > SHARING_LIMIT * rates.events


def _roll_up(ordered: list[Group], rates: Rates | None) -> None:
    """Let a group take its slices from the smallest finer group over the same events, where that pays."""
    for group in ordered:
        finer = [
            one
            for one in ordered
            if set(group.keys) < set(one.keys) and one.source == group.source and one.parent is None
            if not (group.ordered or one.ordered)
        ]
        for one in sorted(finer, key=lambda one: len(one.keys)):
            if rates and _too_many(_edges_per_unit(one, group) * rates.distinct(one.keys), rates):
                group.why = f"not rolled up: slices of {one.name} would be more than {SHARING_LIMIT:.0%} of the events"
                continue
            group.parent, group.why = one, ""
            one.children.append(group)
            break


def _group_to_dict(group: Group) -> dict[str, Any]:
    windows = list(dict.fromkeys(str(timeline.window) for timeline in group.timelines))
    temporal = any(timeline.window.is_temporal for timeline in group.timelines)
    per_second = _edges_per_unit(group) * (1_000_000 if temporal else 1)
    gaps = [timeline.window.gap for timeline in group.timelines if isinstance(timeline.window, Session)]
    edges = [f"{per_second:.6g} per {'second' if temporal else 'unit'}"] if per_second else []
    if own := {str(window): window for window, *_ in group.timelines if _is_irregular(window)}:
        edges.append(f"those of {_some(list(own))} as they say")
    if gaps:
        edges.append(f"sessions from runs connected under {duration_text(min(gaps), temporal)}")
    kinds = [timeline.window for timeline in group.timelines]
    if counted := {window for window in kinds if isinstance(window, Counting)}:
        edges.append(f"at the positions of {_several(len(counted), 'counting window')}")
    if driven := {window for window in kinds if isinstance(window, DataDrivenWindow)}:
        edges.append(f"at the events that bound {_several(len(driven), 'data-driven window')}")
    return {
        "name": group.name,
        "keys": list(group.keys),
        "queries": sum(len(numbers) for numbers in group.members.values()),
        "windows": len(group.timelines),
        "shows": windows,
        "edges": ", ".join(edges),
        "edges_per_second": per_second,
        "operators": [one.text for one in group.held],
        "ordered": group.ordered,
        "sliced": f"rolled up from the slices {group.parent.name}" if group.parent else _sliced(group),
        "placement": _placement(group),
        "travels": "events, to where they are put in order" if group.ordered else "slices, no events",
    }


def _is_irregular(window: Window) -> bool:
    return isinstance(window, ContextFreeWindow) and not isinstance(window, FixedWindow)


def _sliced(group: Group) -> str:
    shown = "from the events" + (", once their order is final" if group.ordered else "")
    return shown + (f"; {group.why}" if group.why else "")


def _placement(group: Group) -> str:
    if not group.ordered:
        return "sliceable anywhere: slices merge in any order" + ("" if group.keys else ", one key")
    needed = [str(timeline.window) for timeline in group.timelines if isinstance(timeline.window, OrderedWindow)]
    needed += [one.operator.text for one in group.held if one.operator.needs_order]
    where = "sliceable where its key lives" if group.keys else "needs the global order"
    return f"{where}: {_some(needed, 3)} depend{'s' if len(needed) == 1 else ''} on the order of events"


def _several(count: int, what: str) -> str:
    if count == 1:
        return f"1 {what}"
    return f"{count:,} {what.removesuffix('y')}ies" if what.endswith("y") else f"{count:,} {what}s"


def _some(shown: Sequence[str], most: int = 6) -> str:
    return ", ".join(shown[:most]) + (f", and {len(shown) - most:,} more" if len(shown) > most else "")
