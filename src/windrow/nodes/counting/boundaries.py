"""The root's side of counting windows that nodes agree on: pieces of all nodes, and the boundaries that they decide.

    pieces ──▶ a line for each node and key ── a boundary that no slice reaches across ──▶ a slice of all nodes
                                            └─ else: what the root has to ask for

**When a boundary is right.** Between two boundaries there are as many events as positions. The next one is found among
the pieces of all nodes after the last one: it lies after the event that is the n-th of them in the order (time, node,
rank). It is right if every slice ends at that event or before, or begins after it, and if nothing that is not here can
come before it: what a node has not sent is no older than the first event that it holds back, or than the time up to
which it is final. This is judged by the order of events alone. Which scheme cut the pieces does not matter.

**What is asked.** Slices that may hold the boundary (`refine.bounds`) are asked for what is in them: first sub-slices,
then events. Counts before it are asked for their states. What is asked follows from the pieces that are here, so that
a root that was restarted asks again.

A node that is not waited for any more, because it is silent, loses what cannot be decided without it: the events of
slices that reach across a boundary. They count as late. What it brings later and lies before a boundary is late, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.core.windows.ordered import Mask
from windrow.nodes.counting.runs import Line, Piece, Stretch, Units
from windrow.nodes.counting.schemes import CERTAIN, NOTHING_KNOWN, SCHEMES, History, Scheme, Told, choose, sub_slice
from windrow.nodes.counting.tables import ANEW, Form, Key
from windrow.nodes.refine import Bounds, bounds, undecided

AHEAD = 64  # boundaries for which it is asked at once
Ask = tuple[int, int, str]  # ranks, and what is asked of them


@dataclass(frozen=True)
class Reached:
    """How far nodes have come."""

    watermark: int  # of the tree
    finals: Mapping[str, int]  # of each node: nothing that it will read is older; an idle one is not waited for
    lost: set[str]  # nodes that are not there to be waited for or asked, or have been told that all is over


class Tally:
    """One key of a counted group, over all nodes."""

    def __init__(self, form: Form, key: Key) -> None:
        self.form, self.key = form, key
        self.position = 0
        self.floor: tuple[int, str] | None = None  # time and node of the last event before the last boundary
        self.length = 0  # how much time there was between the last two boundaries
        self.lines: dict[str, Line] = {}
        self.history = History()
        self.choice = NOTHING_KNOWN
        self.asks: dict[str, list[Ask]] = {}
        self.told: dict[str, tuple[Told, int]] = {}  # and the number of the rewinding
        self.corrected = False  # the boundary that comes next has needed a correction
        self.boundaries = self.corrections = 0
        self.late: Counter[str] = Counter()  # events of each node that came too late, until somebody asks

    # --- pieces in ------------------------------------------------------------------------------------------------

    def absorb(self, node: str, pieces: list[tuple[Piece, int | None, int | None]]) -> None:
        """Pieces of a node, in order; some are the content of one that is here, or take the place of several."""
        line = self.lines.setdefault(node, Line())
        for number, (piece, of_lo, of_hi) in enumerate(pieces):
            if of_hi == ANEW:
                since = max(of_lo or 0, line.gone)
                if number == 0 or pieces[number - 1][1:] != (of_lo, of_hi):
                    line.pieces = [one for one in line.pieces if one.hi <= since]
                line.covered = piece.hi
                line.pieces += [piece] if piece.hi > since else []
            elif of_lo is None or of_hi is None:
                line.covered = piece.hi
                line.pieces.append(piece)
            elif number == 0 or pieces[number - 1][1:] != (of_lo, of_hi):
                content = [one for one, *of in pieces[number:] if of == [of_lo, of_hi]]
                self._open(line, of_lo, of_hi, content)
        line.pieces = [one for one in (self._trimmed(line, one) for one in line.pieces) if one is not None]
        if self.floor is not None:
            self._leave_out_late(node, line)

    @staticmethod
    def _open(line: Line, lo: int, hi: int, content: list[Piece]) -> None:
        """Put the content of pieces in their place, if they are still here as they were asked for."""
        inside = [place for place, one in enumerate(line.pieces) if lo <= one.lo and one.hi <= hi]
        if not inside or any(line.pieces[place].kind == "events" for place in inside):
            return
        if line.pieces[inside[0]].lo == lo and line.pieces[inside[-1]].hi == hi:
            is_known = lo < line.gone < hi  # a part of it was left out
            line.pieces[inside[0] : inside[-1] + 1] = [one for one in content if not is_known or one.hi > line.gone]

    def _trimmed(self, line: Line, piece: Piece) -> Piece | None:
        """What of a piece comes after the last boundary; a slice that reaches across it is left to be asked for."""
        if piece.hi <= line.cut:
            return None
        since = line.since(piece.lo, piece.hi)
        return piece.after(since, self.form.time) if piece.lo < since and piece.kind == "events" else piece

    def _leave_out_late(self, node: str, line: Line) -> None:
        """Events before the last boundary come too late; where a slice has some, it is left to be asked for."""
        assert self.floor is not None
        kept, cut = [], line.cut
        for piece in line.pieces:
            if piece.lo < cut or not self._is_late(node, piece.first):
                kept.append(piece)
                continue
            if piece.kind == "events" and piece.events is not None:
                late = int((piece.events[self.form.time] < self._from(node)).sum())
                self.late[node] += late
                line.cut = piece.lo + late
                if late < piece.hi - piece.lo:
                    kept.append(piece.after(piece.lo + late, self.form.time))
            elif self._is_late(node, piece.last):
                self.late[node] += piece.hi - piece.lo
                line.cut = piece.hi
            else:
                kept.append(piece)
        line.pieces = kept

    def _from(self, node: str) -> int:
        """The first time at which an event of a node may come after the last boundary."""
        assert self.floor is not None
        time, other = self.floor
        return time if node >= other else time + 1

    def _is_late(self, node: str, time: int) -> bool:
        return self.floor is not None and time < self._from(node)

    # --- boundaries -----------------------------------------------------------------------------------------------

    def finish(self, known: Reached) -> list[Stretch]:
        """Find the boundaries that can be found: what lies between them."""
        found: list[Stretch] = []
        self.asks = {}
        chosen = SCHEMES[next((told.scheme for told, _ in self.told.values()), "refine")]
        while True:
            size = self.form.boundaries.after(self.position) - self.position
            if chosen.is_exact:
                cuts = self._exact(size, chosen, known)
            else:
                cuts = self._expected(size, known)
            if cuts is None:
                return found
            found.append(self._take(cuts, size))

    def _expected(self, size: int, known: Reached) -> dict[str, int] | None:
        """Where the boundary is taken to be, if everyone has come so far."""
        cuts = {}
        for node, (told, _) in self.told.items():
            expected, _ = told.predicted(self.position + size)
            line = self.lines[node]
            if line.covered < expected and known.finals.get(node, INT64_MIN) < INT64_MAX:
                return None
            cuts[node] = min(expected, max(line.covered, line.cut))
        return cuts if any(cut > self.lines[node].cut for node, cut in cuts.items()) else None

    def _exact(self, size: int, scheme: Scheme, known: Reached) -> dict[str, int] | None:
        """The ranks at which the next boundary cuts, or None while that is not known; `asks` is what would help."""
        if sum(line.size for line in self.lines.values()) < size:
            self._ask_for_more(scheme, None, known)
            return None
        units = Units.of(self.lines, self.form.time, size)
        (lower, upper, sure, possible) = (int(one[0]) for one in bounds(*units.keys, units.count, np.array([size])))
        time, node = units.at(upper)
        torn = units.is_slice & ((units.lo < units.cut) | self._is_partly_late(units))
        open_ = torn | (units.is_slice & (units.first <= upper) & (units.last > lower))
        if sure == possible == size and not torn.any():
            open_ = torn
        if not self._reaches(time, node, known):
            self._ask_for_more(scheme, time, known)
            return None
        untold = open_ | ((units.kind == "count") & (units.first <= upper))
        if known.lost and self._drop_lost(units, untold, known.lost):
            return self._exact(size, scheme, known)
        states = ~open_ & (units.kind == "count") & (units.last <= lower)
        if not open_.any():
            states = (units.kind == "count") & (units.last <= upper)
        self._ask(units, open_, states)
        if open_.any() or states.any():
            self.corrected |= scheme.corrects
            if not (scheme.corrects or torn.any()):  # what a wrong prediction has cut will be cut again
                self._ask_ahead(self.position + size, known)
            return None
        inside = units.last <= upper
        cuts = {name: line.cut for name, line in self.lines.items()}
        for place, name in enumerate(units.names):
            mine = inside & (units.node == place)
            if mine.any():
                cuts[name] = int(units.hi[mine].max())
        self.length = time - self.floor[0] if self.floor is not None else 0
        self.floor = time, node
        return cuts

    def _ask_ahead(self, position: int, known: Reached) -> None:
        """Ask at once for what the boundaries after a position will need, as far as pieces reach."""
        size, nth = sum(line.size for line in self.lines.values()), list[int]()
        while len(nth) < AHEAD and (position := self.form.boundaries.after(position)) - self.position <= size:
            nth.append(position - self.position)
        if not nth:
            return
        units = Units.of(self.lines, self.form.time, nth[-1])
        found = bounds(*units.keys, units.count, np.array(nth))
        reached = np.array([self._reaches(*units.at(int(upper)), known) for upper in found.upper])
        found = Bounds(*(one[reached] for one in found))
        here = np.isin(units.node, [place for place, name in enumerate(units.names) if name not in known.lost])
        open_ = here & undecided(*units.keys, found) & units.is_slice
        asked = {(name, lo, hi) for name, asks in self.asks.items() for lo, hi, _ in asks}
        for place in np.flatnonzero(open_):
            open_[place] = (units.names[units.node[place]], units.lo[place], units.hi[place]) not in asked
        nothing = np.zeros_like(open_)
        self._ask(units, open_, nothing)
        counts = here & ~open_ & (units.kind == "count")
        for since, upto in zip(found.upper[:-1], found.lower[1:], strict=True) if counts.any() else ():
            self._ask(units, nothing, counts & (units.first > since) & (units.last <= upto))

    def _is_partly_late(self, units: Units) -> Mask:
        """Pieces of which some events come too late."""
        since = np.array([self._from(name) if self.floor else INT64_MIN for name in units.names], np.int64)
        return np.asarray(units.first_time < since[units.node])

    def _reaches(self, time: int, node: str, known: Reached) -> bool:
        """Whether nothing that is not here can come before an event of a node."""
        if time >= known.watermark:
            return False
        for name in {*known.finals, *self.lines} - known.lost:
            line = self.lines.get(name)
            if line is not None and line.rewind:
                return False
            least = self._reach(name, known)
            if name != node and (least < time or (least == time and name < node)):
                return False
        return True

    def _reach(self, name: str, known: Reached) -> int:
        """What a node has not sent is not older than this."""
        line = self.lines.get(name)
        return known.finals.get(name, INT64_MIN) if line is None or line.next is None else line.next

    def _drop_lost(self, units: Units, untold: Mask, gone: Collection[str]) -> bool:
        """What only a node could tell that is not there any more counts as late."""
        lost = [place for place in np.flatnonzero(untold) if units.names[units.node[place]] in gone]
        for place in lost:
            name = units.names[units.node[place]]
            line, lo, hi = self.lines[name], int(units.lo[place]), int(units.hi[place])
            line.pieces = [one for one in line.pieces if (one.lo, one.hi) != (lo, hi)]
            self.late[name] += hi - max(lo, line.since(lo, hi))
            line.gone = max(line.gone, hi)
        return bool(lost)

    def _ask_for_more(self, scheme: Scheme, time: int | None, known: Reached) -> None:
        """Where nodes wait to be asked: for what they hold back, once all others have come as far."""
        if not scheme.waits:
            return
        boundary = self.form.boundaries.after(self.position)
        for name, line in self.lines.items():
            told = self.told.get(name, (Told(), 0))[0]
            expected, margin = told.predicted(boundary)
            is_told = told.scheme == scheme.name and told.position == self.position
            if line.next is None or name in known.lost or not is_told or line.covered < expected + margin:
                continue
            others = (self._reach(other, known) for other in {*known.finals, *self.lines} - known.lost - {name})
            if line.next <= min([known.watermark if time is None else time, *others]):
                self.asks.setdefault(name, []).append((line.covered, line.covered, "more"))
                self.corrected |= scheme.corrects

    def _ask(self, units: Units, open_: Mask, states: Mask) -> None:
        for place in np.flatnonzero(open_):
            name = units.names[units.node[place]]
            self.asks.setdefault(name, []).append((int(units.lo[place]), int(units.hi[place]), "events"))
        for number, name in enumerate(units.names):  # counts that follow each other are one slice
            mine = np.flatnonzero(states & (units.node == number))
            runs = np.split(mine, np.flatnonzero(units.lo[mine][1:] != units.hi[mine][:-1]) + 1)
            for run in runs if len(mine) else []:
                self.asks.setdefault(name, []).append((int(units.lo[run[0]]), int(units.hi[run[-1]]), "slice"))

    def _take(self, cuts: dict[str, int], size: int) -> Stretch:
        """Everything before a boundary."""
        found, of_nodes = Stretch(self.key, self.position), {}
        for name, line in self.lines.items():
            cut = cuts.get(name, line.cut)
            rest = []
            for piece in line.pieces:
                if piece.lo < cut:
                    found.add(name, piece, cut, self.form.time)
                if piece.hi > cut:
                    rest.append(piece if piece.lo >= cut else piece.after(cut, self.form.time))
            of_nodes[name] = cut - line.cut
            line.pieces, line.cut = rest, cut
        self.position += size
        self.history.add(size, of_nodes)
        self.boundaries += 1
        self.corrections += int(self.corrected)
        return found

    # --- what nodes are told --------------------------------------------------------------------------------------

    def plan(self, scheme: str, trip: int, temporal: bool, rewinds: dict[str, int]) -> None:
        """After boundaries were settled: what nodes are to expect."""
        name = scheme
        if scheme == "auto" and self.history.is_enough:
            form = self.form
            length = self.length if temporal else 0
            self.choice = choose(self.history, form.event_bytes, len(form.pieces), length, trip)
            name = self.choice.scheme
        is_approximate = name in SCHEMES and not SCHEMES[name].is_exact
        for node, line in self.lines.items():
            if is_approximate and node in self.told and self.told[node][0].scheme == name:
                continue  # what it was told once it goes on with
            kept = (self.told[node][0].kept if node in self.told else 0) if self.form.multisets else line.cut
            told = self.form.first._replace(settled=line.cut, kept=kept, position=self.position, patience=self.length)
            if self.history.is_enough:
                size = self.history.stretches[-1][0]
                share = self.history.share(node)
                unit = sub_slice(int(share * size), self.form.event_bytes, len(self.form.pieces))
                margin = CERTAIN * self.history.change(node)
                told = told._replace(scheme=name, share=share, margin=margin, unit=unit)
            if self.corrected and name == "async" and any(piece.kind == "slice" for piece in line.pieces):
                rewinds[node] = line.rewind = rewinds.get(node, 0) + 1
            self.told[node] = told, max(line.rewind, self.told.get(node, (told, 0))[1])
        self.corrected = False

    def let_go(self, needed: Mapping[str, int]) -> bool:
        """Nodes need keep nothing before these ranks, or else the last boundary; returns whether that is news."""
        before = dict(self.told)
        for node, (told, rewind) in before.items():
            self.told[node] = told._replace(kept=needed.get(node, told.settled)), rewind
        return self.told != before
