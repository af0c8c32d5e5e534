"""What the root knows of counting windows that nodes agree on: a tally for each key, and what it asks which node.

    tables of a batch ── absorb ──▶ tallies ── settle ──▶ slices of all nodes ──▶ windows
                                           └── requests ──▶ nodes: what is settled, what to expect, what is asked

A request has a number, and a node says which it has heard: what has changed since then is said again. A root that was
restarted does not know how many it had made, so that its epoch is in the number: no two lives have one in common.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import polars as pl

from windrow.core.assemble.emitted import Emitted
from windrow.core.plan.watermark import WatermarkStep
from windrow.core.stream.group_states import named_tables, parts_of
from windrow.core.stream.job import Job
from windrow.core.stream.job_slicer import Tables
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.nodes.counting.boundaries import Reached, Tally, from_tables, to_tables
from windrow.nodes.counting.runs import Line, Piece, Stretch
from windrow.nodes.counting.schemes import NOTHING_KNOWN, SCHEMES, Choice
from windrow.nodes.counting.state import CountedState
from windrow.nodes.counting.tables import ANEW, COUNTING, GONE, NODES, Form, Key, groups_of
from windrow.nodes.protocol.send_window import AGAIN

LIFE = 20  # bits of the number of a request, before which the epoch stands


@dataclass
class Known:
    """What is known of a local node."""

    final: int = INT64_MIN  # what it has not sent is not older
    idle: bool = False
    over: bool = False  # nothing is to be asked of it any more
    heard: int = 0
    gone: bool = False  # nobody waits for it


@dataclass
class Sent:
    """The last request to a node: it is said again if nothing is heard."""

    number: int
    at: int = -AGAIN
    content: set[Any] = field(default_factory=set)  # of it, and of those shortly before it


class Agreement:
    """All counted groups of a root."""

    def __init__(self, job: Job, epoch: int = 0) -> None:
        self.job, self._epoch = job, epoch
        self._forms = {group.name: Form(group, job) for group in groups_of(job)}
        self._states = {name: CountedState(form) for name, form in self._forms.items()}
        self._tallies: dict[str, dict[Key, Tally]] = {name: {} for name in self._forms}
        self._nodes: dict[str, Known] = {}
        self._rewinds: dict[str, int] = {}
        self._changed: dict[str, dict[tuple[str, Key], tuple[int, Any]]] = {}  # of a node: told, since which request
        self._sent: dict[str, Sent] = {}
        self._trip = 0  # microseconds from a request to its answer
        self._is_over = False

    def __bool__(self) -> bool:
        return bool(self._forms)

    @property
    def size(self) -> int:
        """How many pieces, events and slices it holds."""
        tallies = [tally for several in self._tallies.values() for tally in several.values()]
        lines = [line for tally in tallies for line in tally.lines.values()]
        held = sum(1 if piece.events is None else piece.hi - piece.lo for line in lines for piece in line.pieces)
        return held + sum(len(state.rows) + state.waiting_rows for state in self._states.values())

    # --- what comes in --------------------------------------------------------------------------------------------

    def absorb(self, tables: Mapping[str, pl.DataFrame], now: int = 0) -> int:
        """Take the tables of a batch in; returns how many events came too late."""
        late = 0
        for name, form in self._forms.items():
            pieces = tables.get(f"{name}|pieces")
            if pieces is not None:
                self._absorb(form, pieces, tables.get(f"{name}|events"))
            reach = tables.get(f"{name}|reach")
            for *key, node, next_ in reach.select(*form.reach).iter_rows() if reach is not None else ():
                self._tally(form, tuple(key)).lines.setdefault(node, Line()).next = next_
            self._states[name].hear(tables)
        said, going = tables.get(COUNTING), tables.get(GONE)
        for node, final, idle, heard, over, rewound, lost in (
            said.select(*NODES).iter_rows() if said is not None else ()
        ):
            known = self._nodes.setdefault(node, Known())
            known.final, known.idle, known.over = max(known.final, final), idle, over
            if heard < known.heard:  # another life of the node, which has heard nothing
                self._tell_again(node)
            self._hear(node, heard, now)
            known.heard = heard
            late += lost
            for tallies in self._tallies.values():
                for tally in tallies.values():
                    line = tally.lines.get(node)
                    if line is not None and line.rewind <= rewound:
                        line.rewind = 0
        for node, gone in going.select("node", "gone").iter_rows() if going is not None else ():
            self.has_gone([node], gone)
        return late

    def wrong_with(self, tables: Mapping[str, pl.DataFrame]) -> str | None:
        """Why pieces do not follow on what is here; None if they do."""
        for name, form in self._forms.items():
            covered: dict[tuple[Key, str], int] = {}
            before: dict[tuple[Key, str], tuple[tuple[int | None, int | None], int]] = {}
            columns = [*form.keys, "node", "lo", "hi", "of_lo", "of_hi"]
            table = tables.get(f"{name}|pieces")
            for *key, node, lo, hi, of_lo, of_hi in table.select(columns).iter_rows() if table is not None else ():
                place = tuple(key), node
                if place not in covered:
                    tally = self._tallies[name].get(tuple(key))
                    covered[place] = tally.lines[node].covered if tally and node in tally.lines else 0
                of, end = before.get(place, ((0, 0), 0))
                is_next = lo == end if of_lo is not None and of == (of_lo, of_hi) else lo <= covered[place]
                is_next &= lo == covered[place] if of_lo is None else of_hi == ANEW or hi <= covered[place]
                if not is_next:
                    return f"{name}|pieces: {lo:,} to {hi:,} of {node!r} does not follow on {covered[place]:,}"
                covered[place] = hi if of_hi in (None, ANEW) else covered[place]
                before[place] = (of_lo, of_hi), hi
        return None

    def _tell_again(self, node: str) -> None:
        for name, tallies in self._tallies.items():
            for key, tally in tallies.items():
                self._note(name, key, tally)
        if node in self._sent:
            self._sent[node].content = set()

    def _hear(self, node: str, heard: int, now: int) -> None:
        """A node has heard requests up to a number."""
        sent = self._sent.get(node)
        if sent is not None and sent.number == heard > self._nodes[node].heard and now > sent.at > 0:
            self._trip = now - sent.at if not self._trip else (3 * self._trip + now - sent.at) // 4
        changed = self._changed.get(node, {})
        self._changed[node] = {key: one for key, one in changed.items() if one[0] > heard}

    def _absorb(self, form: Form, table: pl.DataFrame, events: pl.DataFrame | None) -> None:
        missing = [pl.lit(None, dtype).alias(name) for name, dtype in form.states.items() if name not in table.columns]
        table = table.with_columns(missing).select(*form.pieces)
        plain = [name for name in form.pieces if name not in form.states]
        at = 0
        found: dict[tuple[Key, str], list[Any]] = {}
        for place, (*of, node, lo, hi, first, last, kind, of_lo, of_hi) in enumerate(table.select(plain).iter_rows()):
            mine = None
            if kind == "events":
                assert events is not None
                mine, at = events.slice(at, hi - lo), at + hi - lo
            piece = Piece(lo, hi, first, last, kind, place, table if kind == "slice" else None, mine)
            found.setdefault((tuple(of), node), []).append((piece, of_lo, of_hi))
        for (key, node), pieces in found.items():
            tally = self._tally(form, key)
            settled = tally.lines[node].cut if node in tally.lines else 0
            for piece, *_ in pieces:
                if piece.events is not None and piece.lo < settled:
                    self._states[form.name].take_events(key, node, piece.lo, piece.hi, piece.events)
            tally.absorb(node, pieces)

    def _tally(self, form: Form, key: Key) -> Tally:
        tallies = self._tallies[form.name]
        if key not in tallies:
            tallies[key] = Tally(form, key)
        return tallies[key]

    def has_gone(self, names: list[str], gone: bool) -> None:
        """Nodes are waited for no more, or again."""
        for name in names:
            if name in self._nodes:
                self._nodes[name].gone = gone

    # --- what is found --------------------------------------------------------------------------------------------

    def advance(self, watermark: int, step: WatermarkStep) -> Iterator[Emitted]:
        """Settle what can be, and say the windows that are complete by that."""
        lost = {name for name, one in self._nodes.items() if one.gone or one.over}
        waited = {name: one for name, one in self._nodes.items() if name not in lost}
        finals = {name: INT64_MAX if one.idle else one.final for name, one in waited.items()}
        known = Reached(watermark, finals, lost)
        for name, form in self._forms.items():
            state, scheme = self._states[name], form.group.counted
            fresh: list[Stretch] = []
            for key, tally in self._tallies[name].items():
                found = tally.finish(known)
                if found:
                    tally.plan(scheme, self._trip, not self.job.is_integer, self._rewinds)
                    self._note(name, key, tally)
                    fresh += found
            state.finish(fresh, lost, step)
            if state.may_be_due(step):
                yield from state.step(step)
                self._let_go(name)
        self._is_over = watermark == INT64_MAX and not any(self._asks()) and not self._holds_back(known)

    def _holds_back(self, known: Reached) -> bool:
        """Whether a node has events that it will send."""
        for name, tallies in self._tallies.items():
            exact = self._forms[name].group.counted != "approximate"
            for tally in tallies.values() if exact else ():
                lines = [line for node, line in tally.lines.items() if node not in known.lost]
                if any(line.next is not None or line.rewind for line in lines):
                    return True
        return False

    def _let_go(self, name: str) -> None:
        """Tell nodes which events will not be asked for their values any more."""
        needed = self._states[name].needed()
        if needed is None:
            return
        for key, tally in self._tallies[name].items():
            if tally.let_go(needed.get(key, {})):
                self._note(name, key, tally)

    def _note(self, name: str, key: Key, tally: Tally) -> None:
        """What nodes are to be told of a key."""
        for node, told in tally.told.items():
            number = self._last(node).number + 1
            changed = self._changed.setdefault(node, {})
            if changed.get((name, key), (0, None))[1] != told:
                changed[name, key] = number, told

    def _last(self, node: str) -> Sent:
        return self._sent.setdefault(node, Sent(self._epoch << LIFE))

    def late(self) -> Counter[str]:
        """The events of each node that have come too late since this was asked last."""
        found: Counter[str] = Counter()
        for tallies in self._tallies.values():
            for tally in tallies.values():
                found += tally.late
                tally.late.clear()
        return found

    def _asks(self) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
        """What is asked of which node, and in which table of a request."""
        for name, tallies in self._tallies.items():
            for key, tally in tallies.items():
                for node, asks in tally.asks.items():
                    for ask in asks:
                        yield node, f"{name}|ask", (*key, *ask)
        for name, state in self._states.items():
            for bag, table in state.asks.items():
                for node, *wanted in table.iter_rows():
                    yield node, f"{name}|wanted {bag}", tuple(wanted)

    def requests(self, now: int) -> Iterator[tuple[str, int, bool, Tables]]:
        """What nodes are to be told and asked now: node, number, whether that was all, and the tables."""
        asks: dict[str, dict[str, list[Any]]] = {}
        for node, table, ask in self._asks():
            asks.setdefault(node, {}).setdefault(table, []).append(ask)
        for node, known in self._nodes.items():
            if known.gone or known.over:
                continue
            changed, asked = self._changed.get(node, {}), asks.get(node, {})
            sent = self._last(node)
            content: set[Any] = {(name, one) for name, several in asked.items() for one in several}
            content |= {(key, number) for key, (number, _) in changed.items()}
            is_over = self._is_over and known.final == INT64_MAX  # one that has come again may have more
            content |= {("over", 1)} if is_over else set()
            if content <= sent.content and (not content or now - sent.at < AGAIN):
                continue
            self._sent[node] = Sent(sent.number + 1, now, content | (sent.content if now - sent.at < AGAIN else set()))
            tables: Tables = {}
            for name, form in self._forms.items():
                rows = [(*key, *told, rewind) for (of, key), (_, (told, rewind)) in changed.items() if of == name]
                if rows:
                    tables[name] = pl.DataFrame(rows, schema=form.told, orient="row")
                for table, columns in form.requests.items():
                    if table in asked:
                        tables[table] = pl.DataFrame(asked[table], schema=columns, orient="row")
            yield node, sent.number + 1, is_over, tables

    def status(self) -> dict[str, Any]:
        """Of each group: the scheme, why, and how often it was wrong."""
        found: dict[str, Any] = {}
        for name, tallies in self._tallies.items():
            several = list(tallies.values())
            settled, corrected = (sum(getattr(one, what) for one in several) for what in ("boundaries", "corrections"))
            last = max(several, key=lambda one: one.boundaries, default=None)
            choice = Choice(self._forms[name].group.counted, "as it was asked for")
            if choice.scheme == "auto":
                choice = NOTHING_KNOWN if last is None else last.choice
            found[name] = {"scheme": choice.scheme, "why": choice.why, "exact": SCHEMES[choice.scheme].is_exact}
            found[name] |= {"boundaries": settled, "corrections": corrected, "keys": len(several)}
            found[name] |= self._states[name].status()
        return found

    # --- what is kept ---------------------------------------------------------------------------------------------

    def switched(self, job: Job) -> Agreement:
        """The same with another plan: what that does not know is dropped."""
        other = Agreement(job, self._epoch)
        header, tables = self.saved()
        other.restore(header, tables)
        for state in other._states.values():
            state.check_again()
        other._changed, other._sent, other._trip = self._changed, self._sent, self._trip
        return other

    def saved(self) -> tuple[dict[str, Any], Tables]:
        header = {"nodes": {name: asdict(one) for name, one in self._nodes.items()}, "rewinds": self._rewinds}
        header["states"] = {name: state.header() for name, state in self._states.items()}
        states = {name: state.tables() for name, state in self._states.items()}
        tallies = {f"tally {name}": to_tables(form, self._tallies[name]) for name, form in self._forms.items()}
        return header, named_tables(states | tallies)

    def restore(self, header: Mapping[str, Any], tables: Mapping[str, pl.DataFrame]) -> None:
        self._nodes = {name: Known(**one) for name, one in header["nodes"].items()}
        self._rewinds = dict(header["rewinds"])
        for name, form in self._forms.items():
            if mine := parts_of(name, tables):
                self._states[name].load(mine)
                self._states[name].restore(header["states"][name])
            if mine := parts_of(f"tally {name}", tables):
                self._tallies[name] = from_tables(form, mine)
            for key, tally in self._tallies[name].items():
                self._note(name, key, tally)
