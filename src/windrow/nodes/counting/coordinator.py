"""What the root knows of counting windows that nodes agree on: a boundary resolver for each key, and its requests.

    tables of a batch ── absorb ──▶ resolvers ── advance ──▶ slices of all nodes ──▶ windows
                                             └── requests ──▶ nodes: where boundaries are, what to expect, what is asked

Directives are notices of the root's requests (`nodes.requests`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import polars as pl

from windrow.core.plan.watermark import WatermarkStep
from windrow.core.stream.job import Job
from windrow.core.stream.job_slicer import Tables, named_tables, parts_of
from windrow.core.windows.fixed import INT64_MAX
from windrow.nodes.counting.boundaries import BoundaryResolver, Reached, from_tables, to_tables
from windrow.nodes.counting.runs import Interval, Line, Segment
from windrow.nodes.counting.schemes import NOTHING_KNOWN, SCHEMES, Choice
from windrow.nodes.counting.state import CountedState
from windrow.nodes.counting.tables import ANEW, Form, Key, groups_of
from windrow.nodes.requests import Notice, Requests, drained
from windrow.nodes.tables import NodeProgress


class CountingCoordinator:
    """All counted groups of a root."""

    def __init__(self, job: Job, requests: Requests) -> None:
        self.job = job
        self._forms = {group.name: Form(group, job) for group in groups_of(job)}
        self.states = {name: CountedState(form) for name, form in self._forms.items()}
        self._resolvers: dict[str, dict[Key, BoundaryResolver]] = {name: {} for name in self._forms}
        self._requests = requests
        self.notices = {name: form.directive for name, form in self._forms.items()}
        self._rewinds: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._forms)

    def _all_resolvers(self) -> Iterator[tuple[str, Key, BoundaryResolver]]:
        for name, resolvers in self._resolvers.items():
            for key, resolver in resolvers.items():
                yield name, key, resolver

    @property
    def size(self) -> int:
        """How many segments and events it holds, beside the slices of its states."""
        lines = [line for _, _, resolver in self._all_resolvers() for line in resolver.lines.values()]
        segments = [segment for line in lines for segment in line.segments]
        held = sum(1 if segment.events is None else segment.hi - segment.lo for segment in segments)
        return held + sum(state.undecided.height for state in self.states.values())

    # --- what comes in --------------------------------------------------------------------------------------------

    def absorb(self, tables: Mapping[str, pl.DataFrame], reported: Iterable[NodeProgress]) -> Counter[str]:
        """Take the tables of a batch in, and what nodes have reported with it; returns how many events came too late
        for each group."""
        for name, form in self._forms.items():
            if f"{name}|segments" in tables:
                self._absorb_segments(form, tables)
            reach = tables.get(f"{name}|reach")
            for *key, node, next_ in reach.select(*form.reach).iter_rows() if reach is not None else ():
                self._resolver(form, tuple(key)).lines.setdefault(node, Line()).next = next_
            self.states[name].multisets.absorb(tables)
        late = 0
        for progress in reported:
            late += progress.late
            for _, _, resolver in self._all_resolvers():
                line = resolver.lines.get(progress.node)
                if line is not None and line.rewind <= progress.rewound:
                    line.rewind = 0
        return Counter(dict.fromkeys(self._forms, late) if late else {})

    def _absorb_segments(self, form: Form, tables: Mapping[str, pl.DataFrame]) -> None:
        """Take in segments that follow on what is here; others, of a node that cannot be believed, are passed over."""
        strays = self._strays(form.name, tables)
        segments = _segments(form, tables[f"{form.name}|segments"], tables.get(f"{form.name}|events"))
        for (key, node), of_node in segments.items():
            if (key, node) in strays:
                continue
            resolver = self._resolver(form, key)
            cut = resolver.lines[node].cut if node in resolver.lines else 0
            for segment, *_ in of_node:
                if segment.events is not None and segment.lo < cut:
                    self.states[form.name].take_events(key, node, segment.lo, segment.hi, segment.events)
            resolver.absorb(node, of_node)

    def wrong_with(self, tables: Mapping[str, pl.DataFrame]) -> str | None:
        """Why segments do not follow on what is here; None if they do."""
        return next((reason for name in self._forms for reason in self._strays(name, tables).values()), None)

    def _strays(self, name: str, tables: Mapping[str, pl.DataFrame]) -> dict[tuple[Key, str], str]:
        """Of which keys and nodes a group's segments do not follow on what is here, and why."""
        covered: dict[tuple[Key, str], int] = {}
        before: dict[tuple[Key, str], tuple[tuple[int | None, int | None], int]] = {}
        strays: dict[tuple[Key, str], str] = {}
        form, table = self._forms[name], tables.get(f"{name}|segments")
        columns = [*form.keys, "node", "lo", "hi", "of_lo", "of_hi"]
        for *key, node, lo, hi, of_lo, of_hi in table.select(columns).iter_rows() if table is not None else ():
            whose = tuple(key), node
            if whose not in covered:
                resolver = self._resolvers[name].get(tuple(key))
                covered[whose] = resolver.lines[node].covered if resolver and node in resolver.lines else 0
            of, end = before.get(whose, ((0, 0), 0))
            is_next = lo == end if of_lo is not None and of == (of_lo, of_hi) else lo <= covered[whose]
            is_next &= lo == covered[whose] if of_lo is None else of_hi == ANEW or hi <= covered[whose]
            if not is_next and whose not in strays:
                strays[whose] = f"{name}|segments: {lo:,} to {hi:,} of {node!r} does not follow on {covered[whose]:,}"
            covered[whose] = hi if of_hi in (None, ANEW) else covered[whose]
            before[whose] = (of_lo, of_hi), hi
        return strays

    def _resolver(self, form: Form, key: Key) -> BoundaryResolver:
        resolvers = self._resolvers[form.name]
        if key not in resolvers:
            resolvers[key] = BoundaryResolver(form, key)
        return resolvers[key]

    # --- windows --------------------------------------------------------------------------------------------------

    def prepare(self, step: WatermarkStep) -> None:
        """Before a step: find the boundaries that can be found, and give the states what lies between them."""
        if not self:
            return
        lost = self._requests.lost
        finals = {
            node: INT64_MAX if progress.idle else progress.final
            for node, progress in self._requests.progress.items()
            if node not in lost
        }
        reached = Reached(step.now, finals, lost)
        for name, form in self._forms.items():
            fresh: list[Interval] = []
            for key, resolver in self._resolvers[name].items():
                intervals = resolver.finish(reached)
                if intervals:
                    resolver.plan(form.scheme, self._requests.trip, not self.job.is_integer, self._rewinds)
                    self._note(name, key, resolver)
                    fresh += intervals
            self.states[name].finish(fresh, lost, step)

    def conclude(self, stepped: Collection[str]) -> None:
        """After a step of some groups: note which events nodes need keep no longer."""
        for name in self.states.keys() & stepped:
            self._let_go(name)

    @property
    def awaits_events(self) -> bool:
        """Whether nodes hold events back that they will send."""
        lost = self._requests.lost
        return any(
            line.next is not None or line.rewind
            for name, _, resolver in self._all_resolvers()
            if self._forms[name].scheme != "approximate"
            for node, line in resolver.lines.items()
            if node not in lost
        )

    def _let_go(self, name: str) -> None:
        """Let nodes know of which events no values will be requested any more."""
        needed = self.states[name].needed()
        if needed is None:
            return
        for key, resolver in self._resolvers[name].items():
            if resolver.let_go(needed.get(key, {})):
                self._note(name, key, resolver)

    def late(self) -> Iterator[tuple[str, Counter[str]]]:
        """For each group, the events of each node that have come too late since this was called last."""
        for name, resolvers in self._resolvers.items():
            yield name, drained(resolver.late for resolver in resolvers.values())

    # --- requests -------------------------------------------------------------------------------------------------

    def _note(self, name: str, key: Key, resolver: BoundaryResolver) -> None:
        """Note the directives of a key."""
        notice = Notice(name, key)
        for node, directive in resolver.directives.items():
            self._requests.note(node, notice, directive)

    @property
    def wanted(self) -> Tables:
        """What is requested of nodes, as tables of a request for all of them."""
        asks: Tables = {}
        for name, form in self._forms.items():
            rows = [
                (node, *key, *ask)
                for key, resolver in self._resolvers[name].items()
                for node, of_node in resolver.asks.items()
                for ask in of_node
            ]
            if rows:
                asks[f"{name}|ask"] = pl.DataFrame(rows, schema={"node": pl.String(), **form.ask}, orient="row")
            asks |= self.states[name].multisets.requests
        return asks

    def status(self) -> dict[str, Any]:
        """Of each group: the scheme, why, and how often it was wrong."""
        groups: dict[str, Any] = {}
        for name, of_keys in self._resolvers.items():
            resolvers = list(of_keys.values())
            last = max(resolvers, key=lambda resolver: resolver.boundaries, default=None)
            choice = Choice(self._forms[name].scheme, "as it was asked for")
            if choice.scheme == "auto":
                choice = NOTHING_KNOWN if last is None else last.choice
            groups[name] = {
                "scheme": choice.scheme,
                "why": choice.why,
                "exact": SCHEMES[choice.scheme].is_exact,
                "boundaries": sum(resolver.boundaries for resolver in resolvers),
                "corrections": sum(resolver.corrections for resolver in resolvers),
                "keys": len(resolvers),
                **(self.states[name].multisets.counts if self._forms[name].schema.lists else {}),
            }
        return groups

    # --- what is kept ---------------------------------------------------------------------------------------------

    def take_over(self, other: CountingCoordinator) -> None:
        """Go on where that of an earlier plan stands, but for its states: what this plan does not know is dropped."""
        self.restore(*other.saved())

    def saved(self) -> tuple[dict[str, Any], Tables]:
        resolvers = {f"boundaries {name}": to_tables(form, self._resolvers[name]) for name, form in self._forms.items()}
        return {"rewinds": self._rewinds}, named_tables(resolvers)

    def restore(self, header: Mapping[str, Any], tables: Mapping[str, pl.DataFrame]) -> None:
        self._rewinds = dict(header["rewinds"])
        for name, form in self._forms.items():
            if parts := parts_of(f"boundaries {name}", tables):
                self._resolvers[name] = from_tables(form, parts)
            for key, resolver in self._resolvers[name].items():
                self._note(name, key, resolver)


def _segments(
    form: Form, table: pl.DataFrame, events: pl.DataFrame | None
) -> dict[tuple[Key, str], list[tuple[Segment, int | None, int | None]]]:
    """The segments in a table by key and node, each with the rank range of which it is the content."""
    missing = [pl.lit(None, dtype).alias(name) for name, dtype in form.states.items() if name not in table.columns]
    table = table.with_columns(missing).select(*form.segments)
    segments: dict[tuple[Key, str], list[tuple[Segment, int | None, int | None]]] = {}
    at = 0  # in the events, which are of one segment after the other
    for row, (*key, node, lo, hi, first, last, kind, of_lo, of_hi) in enumerate(table.select(*form.plain).iter_rows()):
        inside = None
        if kind == "events":
            assert events is not None
            inside, at = events.slice(at, hi - lo), at + hi - lo
        segment = Segment(lo, hi, first, last, kind, row, table if kind == "slice" else None, inside)
        segments.setdefault((tuple(key), node), []).append((segment, of_lo, of_hi))
    return segments
