"""What a parent knows of its children."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import polars as pl

from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.nodes.protocol.messages import Batch, Position


@dataclass
class Child:
    """The last that was accepted of it, and whether it is waited for."""

    epoch: int = -1
    accepted: int = 0
    position: Position = field(default_factory=dict)
    watermark: int = INT64_MIN
    plan: int = 0
    since: int = INT64_MIN
    newest: int = INT64_MIN  # the time of no event that was accepted is greater
    idle: int = 0
    events: dict[str, int] = field(default_factory=dict)  # of each local node below, how many are wholly here
    gone: list[str] = field(default_factory=list)  # of these, those that have said that nothing more comes
    holding: dict[str, bool] = field(default_factory=dict)  # local nodes below that count, whether they may be asked
    away: list[str] = field(default_factory=list)  # of these, those for which nobody waits that is between
    keeping: dict[str, bool] = field(default_factory=dict)  # likewise, local nodes below that keep multisets
    late: int = 0  # events that came too late for some window; the root knows
    state: Literal["expected", "live", "silent", "left"] = "expected"

    @property
    def counts(self) -> bool:
        """Whether it is waited for."""
        return self.state in ("expected", "live")

    def take(self, batch: Batch) -> None:
        self.accepted, self.position = batch.number, batch.position
        self.plan, self.since, self.idle = batch.plan, batch.since, batch.idle
        self.watermark, self.newest = max(self.watermark, batch.watermark), max(self.newest, batch.newest)
        self.events |= batch.events

    def begin(self, epoch: int, version: int) -> None:
        """It has come, and hears by which version to cut; an intermediate one may still have slices of another."""
        is_new = bool(self.position) or not self.accepted
        if is_new and self.plan < version:
            self.plan, self.since = version, after(self.newest)
        self.epoch = epoch

    def hold(self, nodes: pl.DataFrame) -> None:
        """Local nodes below have spoken of what they count (`forms.NODES`)."""
        self.holding |= {name: not over for name, over in nodes.select("node", "over").rows()}

    def miss(self, nodes: pl.DataFrame) -> None:
        """Nodes below have been heard no more, or again (`tables.GONE`)."""
        for name, gone in nodes.select("node", "gone").rows():
            self.away = [*(one for one in self.away if one != name), *([name] if gone else [])]

    @property
    def is_held(self) -> bool:
        """Whether a node below may be asked."""
        return any(held for name, held in self.holding.items() if name not in self.away)

    @property
    def is_kept(self) -> bool:
        """The same of a node that keeps multisets."""
        return any(kept for name, kept in self.keeping.items() if name not in self.away)

    def keep(self, nodes: pl.DataFrame) -> None:
        """Local nodes below have spoken of the multisets that they keep (`quantiles.tables.NODES`)."""
        self.keeping |= {name: not over for name, over in nodes.select("node", "over").rows()}

    def hear_of(self, nodes: pl.DataFrame) -> None:
        """Local nodes below have come or gone (`pushed.nodes_table`)."""
        for name, gone in nodes.select("node", "gone").rows():
            self.gone = [*(one for one in self.gone if one != name), *([name] if gone else [])]


def cut_from(version: int, known: Child | Batch) -> int:
    """From which time on no event is cut without a version of the plan, as far as was heard."""
    return known.since if known.plan >= version else after(known.newest)


def after(time: int) -> int:
    """The first time after one."""
    return time if time in (INT64_MIN, INT64_MAX) else time + 1


class Children(dict[str, Child]):
    """All of them, by name."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__((name, Child()) for name in names)
        self.heard: dict[str, int] = {}  # when, of those that were
        self.planned: dict[str, int] = {}  # when they were told the plan again

    @property
    def counted(self) -> list[Child]:
        return [child for child in self.values() if child.counts]

    @property
    def busy(self) -> list[int]:
        """The watermarks of those that hold it back; it does not go to its end while an idle one may go on."""
        going_on = [child for child in self.counted if child.watermark < INT64_MAX]
        return [child.watermark for child in going_on or self.counted if not child.idle or not going_on]

    def plan(self, version: int) -> int:
        """By which version all cut that are waited for; one that has not come will cut by this one."""
        return min((child.plan for child in self.counted if child.state != "expected"), default=version)

    def since(self, version: int) -> int:
        """From which event time on nothing that is here is cut without a version, not even of those that have left."""
        return max((cut_from(version, child) for child in self.values()), default=INT64_MIN)

    @property
    def all_idle(self) -> bool:
        """Whether nobody holds the watermark back, of all that have come."""
        return bool(self) and not self.busy

    def unheard(self, now: int, timeout: int) -> list[str]:
        """Those that are waited for and have not said a word for so long, or since they were first asked about."""
        return [name for name, one in self.items() if one.counts and now - self.heard.setdefault(name, now) > timeout]

    def saved(self) -> dict[str, Any]:
        return {name: dict(vars(child)) for name, child in self.items()}

    def restore(self, saved: dict[str, Any]) -> None:
        self.update({name: Child(**child) for name, child in saved.items()})

    def status(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for name, child in self.items():
            state = "ended" if child.watermark == INT64_MAX else "idle" if child.idle else "live"
            found[name] = {"state": state if child.state == "live" else child.state, "watermark": child.watermark}
            found[name] |= {"batches": child.accepted, "late": child.late, "events": dict(child.events)}
        return found
