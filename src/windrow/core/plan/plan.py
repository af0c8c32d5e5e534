"""The plan: queries become slice groups, which decides who shares what.

Queries over the same keys and the same events share one **group**, whatever their windows, aggregates and filters:

    events ──▶ group by (car)      edges of all its windows, each operator once
                 └──▶ group by ()  rolled up from the slices of (car), not from the events

Planning is pure: the same entries give the same plan.

A query's `where` is applied inside the operators, so queries with different predicates share slices; sessions, whose
bounds depend on which events exist, are filtered first and so get a group per predicate, as do queries with
`distinct_on`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from windrow.core.expressions.border import border
from windrow.core.expressions.errors import QueryError
from windrow.core.plan.groups import Entry, Group, GroupIdentity, Placement, Rates, Source, edges_per_unit
from windrow.core.query.given import Queries, queries_from
from windrow.core.query.query import Query, time_of
from windrow.core.windows.fixed import (
    INT64_MIN,
    ContextFreeWindow,
    Session,
    duration_text,
    is_irregular,
)
from windrow.core.windows.ordered import JOINED, NODE, Counting, DataDrivenWindow, OrderedWindow, scope_of

SHARING_LIMIT = 0.1  # slices per event beyond which sharing no longer pays


@dataclass(repr=False)
class Plan:
    """What a set of queries has become: groups that share slices, on their time columns. Made by `plan`.

    entries:   the queries, each with the event times between which it is there
    groups:    what is sliced together, finer keys first
    time_columns:  the columns that windows are measured on
    """

    entries: Sequence[Entry]
    groups: list[Group]
    time_columns: list[str]

    def __repr__(self) -> str:
        return f"Plan({self._summary})"

    @property
    def _summary(self) -> str:
        return f"{_several(len(self.entries), 'query')} in {_several(len(self.groups), 'slice group')}"

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data."""
        return {
            "queries": len(self.entries),
            "time_columns": self.time_columns,
            "groups": [_group_to_dict(group) for group in self.groups],
        }

    def explain(self) -> str:
        """The plan as text: groups, operators, edges, placement, and why."""
        described = self.to_dict()
        lines = [self._summary]
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
        return frozenset(group.shared_name for group in self.groups if group.kind == "sessions")

    @cached_property
    def furthest(self) -> dict[str, Query]:
        """For each time column, the query whose windows reach furthest from an event."""
        furthest: dict[str, tuple[int, Query]] = {}
        for group in self.groups:
            timelines = list(group.timelines)
            for (number, _), numbers in group.members.items():
                reach = timelines[number].window.reach
                if reach > furthest.get(group.source.time, (-1, None))[0]:
                    furthest[group.source.time] = reach, self.entries[numbers[0]].query
        return {time_column: query for time_column, (_, query) in furthest.items()}

    @property
    def fingerprint(self) -> str:
        """The same for two plans whose slice tables can be merged."""
        return fingerprint_of(self.groups)


def fingerprint_of(groups: Iterable[Group], *others: object) -> str:
    """The same for groups whose slice tables can be merged, if the others, which JSON can write, are the same too."""
    tables = [
        [group.name, group.ordered, sorted(partial.text + partial.operator.form for partial in group.partials)]
        for group in groups
    ]
    return hashlib.sha256(json.dumps([*tables, *others]).encode()).hexdigest()[:16]


@border
def plan(
    queries: Queries | Iterable[Entry],
    time: str | None = None,
    rates: Rates | None = None,
    apart: frozenset[str] | None = None,
    kinds_apart: bool = False,
    placements: Mapping[str, Placement] | None = None,
) -> Plan:
    """Group queries so that everything that can be shared is computed once; `plan(…).explain()` shows how.

    queries:      one or several, with names that differ; also as the text of `sql`
    time:         the column that windows are measured on
    rates:        what is known of the stream; without them everything is shared
    apart:        an earlier plan's decision which groups have their sessions apart, because state depends on it
    kinds_apart:  for state on disk: queries that need the order get groups of their own, so that for all others slices
                  travel and not events; and so do sessions, from the same slices, because their state is looked up by
                  key and that of windows with fixed bounds by time
    placements:   of queries, by name, whose work is done elsewhere; those of each placement have groups of their own
    """
    entries = _entries(queries)
    time = time_of((entry.query for entry in entries), time)
    groups: dict[GroupIdentity, Group] = {}
    names: set[str] = set()
    for number, entry in enumerate(entries):
        query = entry.query
        if query.name in names:
            raise QueryError(f"two queries are called {query.name!r}")
        names.add(query.name)
        since = entry.since if query.distinct_on else INT64_MIN
        source = Source(query.time or time, query.distinct_on, query.filter_first, since)
        placement = (placements or {}).get(query.name)
        kind = _kind(query, kinds_apart and not (placement and placement.is_apart))
        keys = (*query.by, NODE) if kind == "joined" else query.by
        identity = GroupIdentity(source, keys, kind, placement)
        group = groups.get(identity)
        if group is None:
            group = groups[identity] = Group(identity)
        group.add(entry, number)
    if not kinds_apart:
        groups = _with_sessions_apart(groups, entries, rates, apart)
    ordered = sorted(groups.values(), key=lambda group: (-len(group.keys), group.name))
    _roll_up(ordered, rates, kinds_apart)
    time_columns = list(dict.fromkeys([time, *(group.source.time for group in ordered)]))
    return Plan(entries, ordered, time_columns)


def _kind(query: Query, kinds_apart: bool) -> str:
    """What tells a query's group from others over the same events; windows of nodes are always joined by themselves."""
    if scope_of(query.window) in JOINED:
        return "joined"
    if not kinds_apart:
        return ""
    return "in order" if query.needs_order else "sessions" if isinstance(query.window, Session) else ""


def _with_sessions_apart(
    groups: Mapping[GroupIdentity, Group], entries: Sequence[Entry], rates: Rates | None, apart: frozenset[str] | None
) -> dict[GroupIdentity, Group]:
    """The groups, where gaps so small that their slices are no longer few beside the events have one of their own."""
    parted = dict(groups)
    for identity, group in groups.items():
        if apart is None:
            both = (
                not group.ordered
                and group.has_sessions
                and any(isinstance(line.window, ContextFreeWindow) for line in group.timelines)
            )
            part = both and rates and _too_many(edges_per_unit(group) * rates.distinct(group.keys), rates)
        else:
            part = group.name in apart
        if not part:
            continue
        fixed, sessions = (Group(group.identity._replace(kind=kind)) for kind in ("", "sessions"))
        timelines = list(group.timelines)
        for (line, _), numbers in group.members.items():
            for number in numbers:
                (sessions if isinstance(timelines[line].window, Session) else fixed).add(entries[number], number)
        sessions.why = f"kept apart: shared slices would be more than {SHARING_LIMIT:.0%} of the events"
        del parted[identity]
        parted |= {part.identity: part for part in (fixed, sessions) if part.members}
    return parted


def _entries(given: Queries | Iterable[Entry]) -> list[Entry]:
    """Queries as users give them, or with the event times between which they are there."""
    if isinstance(given, Query | str):
        return [Entry(query) for query in queries_from(given)]
    listed = list(given)
    entries = [part for part in listed if isinstance(part, Entry)]
    return entries if len(entries) == len(listed) else [Entry(query) for query in queries_from(listed)]  # type: ignore[arg-type]


def _too_many(slices: float, rates: Rates) -> bool:
    return slices > SHARING_LIMIT * rates.events


def _roll_up(ordered: list[Group], rates: Rates | None, kinds_apart: bool) -> None:
    """Let a group take its slices from the smallest finer group over the same events, where that pays.

    With `kinds_apart` sessions take theirs from the other windows by the same keys, too.
    """
    for group in ordered:
        finer = [
            other
            for other in ordered
            if set(group.keys) < set(other.keys)
            or (kinds_apart and group.keys == other.keys and group.kind == "sessions" and other.kind != "sessions")
            if other.source == group.source and other.parent is None
            if not (group.ordered or other.ordered)
        ]
        for other in sorted(finer, key=lambda other: len(other.keys)):
            if rates and _too_many(edges_per_unit(other, group) * rates.distinct(other.keys), rates):
                group.why = (
                    f"not rolled up: slices of {other.name} would be more than {SHARING_LIMIT:.0%} of the events"
                )
                continue
            group.parent, group.why = other, ""
            other.children.append(group)
            break


def _group_to_dict(group: Group) -> dict[str, Any]:
    windows = list(dict.fromkeys(str(timeline.window) for timeline in group.timelines))
    temporal = any(timeline.window.is_temporal for timeline in group.timelines)
    per_second = edges_per_unit(group) * (1_000_000 if temporal else 1)
    gaps = [timeline.window.gap for timeline in group.timelines if isinstance(timeline.window, Session)]
    edges = [f"{per_second:.6g} per {'second' if temporal else 'unit'}"] if per_second else []
    if own := {str(window): window for window, *_ in group.timelines if is_irregular(window)}:
        edges.append(f"those of {_some(list(own))} as they say")
    if gaps:
        edges.append(f"sessions from runs connected under {duration_text(min(gaps), temporal)}")
    kinds = [timeline.window for timeline in group.timelines]
    if counted := {window for window in kinds if isinstance(window, Counting)}:
        edges.append(f"at the positions of {_several(len(counted), 'counting window')}")
    if data_driven := {window for window in kinds if isinstance(window, DataDrivenWindow)}:
        edges.append(f"at the events that bound {_several(len(data_driven), 'data-driven window')}")
    return {
        "name": group.name,
        "keys": list(group.keys),
        "queries": sum(len(numbers) for numbers in group.members.values()),
        "windows": len(group.timelines),
        "shows": windows,
        "edges": ", ".join(edges),
        "edges_per_second": per_second,
        "operators": [partial.text for partial in group.partials],
        "ordered": group.ordered,
        "sliced": f"rolled up from the slices {group.parent.name}" if group.parent else _sliced(group),
        "placement": _placement(group),
        "travels": _travels(group),
    }


def _travels(group: Group) -> str:
    if group.placement:
        return group.placement.travels
    return "events, to where they are put in order" if group.ordered else "slices, no events"


def _sliced(group: Group) -> str:
    shown = "from the events" + (", once their order is final" if group.ordered else "")
    return shown + (f"; {group.why}" if group.why else "")


def _placement(group: Group) -> str:
    if not group.ordered:
        return "sliceable anywhere: slices merge in any order" + ("" if group.keys else ", one key")
    needed = [str(timeline.window) for timeline in group.timelines if isinstance(timeline.window, OrderedWindow)]
    needed += [partial.operator.text for partial in group.partials if partial.operator.needs_order]
    if group.kind == "joined":
        return f"sliceable at each node, and joined after that: {_some(needed, 3)}"
    where = "sliceable where its key lives" if group.keys else "needs the global order"
    return f"{where}: {_some(needed, 3)} depend{'s' if len(needed) == 1 else ''} on the order of events"


def _several(count: int, what: str) -> str:
    if count == 1:
        return f"1 {what}"
    return f"{count:,} {what.removesuffix('y')}ies" if what.endswith("y") else f"{count:,} {what}s"


def _some(shown: Sequence[str], most: int = 6) -> str:
    return ", ".join(shown[:most]) + (f", and {len(shown) - most:,} more" if len(shown) > most else "")
