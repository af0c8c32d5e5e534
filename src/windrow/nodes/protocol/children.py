"""What a parent knows of its children: the last batch of each, and whether anybody waits for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import polars as pl

from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.nodes.protocol.messages import Announced, Batch, Hello, Position, Up
from windrow.nodes.pushdown import NODES
from windrow.nodes.tables import GONE, PROGRESS


@dataclass
class Child:
    """A child, as its last accepted batch leaves it."""

    life: int = -1  # the last one that was welcomed; no life is so called
    epoch: int = 0  # how many lives were welcomed
    accepted: int = 0  # number of the last accepted batch
    sent_in: int = 0  # the life of the child in which it was sent
    position: Position = field(default_factory=dict)
    watermark: int = INT64_MIN
    announced: Announced = field(default_factory=Announced)
    newest: int = INT64_MIN  # no accepted event is later
    events: dict[str, int] = field(default_factory=dict)  # of each local node below, how many were accepted completely
    finished: list[str] = field(default_factory=list)  # local nodes below whose own windows are complete (push-down)
    answering: dict[str, bool] = field(default_factory=dict)  # local nodes below: whether they answer requests
    unreachable: list[str] = field(default_factory=list)  # of these, those that a node on the way does not wait for
    left_out: dict[str, int] = field(
        default_factory=dict
    )  # of each group, events too late for some window; at the root
    state: Literal["expected", "live", "silent", "left"] = "expected"

    @property
    def is_awaited(self) -> bool:
        """Whether the watermark waits for it; for an `expected` child it does so before the first Hello."""
        return self.state in ("expected", "live")

    def is_of_this_life(self, message: Up) -> bool:
        return message.life == self.life

    def is_next(self, batch: Batch) -> bool:
        """Whether a batch follows on the last accepted one: numbers have no gap, and none is taken twice."""
        return batch.number == self.accepted + 1

    def wrong_with(self, batch: Batch) -> str | None:
        """Why a batch cannot follow on the last accepted one; None if it can."""
        for name, count in batch.events.items():
            if count < self.events.get(name, 0):
                return f"the events of {name!r} go back from {self.events[name]:,} to {count:,}"
        return None

    def may_begin(self, hello: Hello) -> bool:
        """Whether a Hello is of the last life, or takes the epoch that was offered to it.

        A Hello that was on its way for long does neither: its epoch was offered before the last life began. So one of a
        life that is over gets an offer that nobody takes.
        """
        return self.is_of_this_life(hello) or hello.epoch == self.epoch + 1

    def begin(self, life: int, version: int) -> None:
        """Begin another life of the child, or go on with one, which cuts by the version that its Welcome has.

        An intermediate node (it has no position) may still hold slices that were cut by an older version.
        """
        is_new = bool(self.position) or not self.accepted
        if is_new and self.announced.version < version:
            self.announced = self.announced._replace(version=version, since=after(self.newest))
        if life != self.life:
            self.life, self.epoch = life, self.epoch + 1

    def take(self, batch: Batch, has_push_down: bool) -> None:
        """Accept a batch: note how far the child and the local nodes below it have come."""
        self.accepted, self.sent_in, self.position = batch.number, batch.life, batch.position
        self.announced = batch.announced
        self.watermark, self.newest = max(self.watermark, batch.watermark), max(self.newest, batch.newest)
        self.events |= batch.events
        tables = batch.tables
        if has_push_down and NODES in tables:
            self.finished = _with_gone(self.finished, tables[NODES])
        if GONE in tables:
            self.unreachable = _with_gone(self.unreachable, tables[GONE])
        if PROGRESS in tables:
            self.answering |= {node: not over for node, over in tables[PROGRESS].select("node", "over").rows()}

    @property
    def late(self) -> int:
        """Events that some window leaves out: each once, although several groups leave it out.

        A slice does not say which events it has. Where groups leave out different ones, it is as many as that one
        leaves out which leaves out most.
        """
        return max(self.left_out.values(), default=0)

    def count_late(self, left_out: Mapping[str, int]) -> None:
        for group, events in left_out.items():
            if events:
                self.left_out[group] = self.left_out.get(group, 0) + events

    @property
    def answers(self) -> bool:
        """Whether the root can still request something from a node below."""
        return any(answers for name, answers in self.answering.items() if name not in self.unreachable)

    @property
    def reachable(self) -> list[str]:
        """The nodes below that the root may request something from, and that nobody between has given up."""
        return [name for name in self.answering if name not in self.unreachable]


def _with_gone(names: list[str], nodes: pl.DataFrame) -> list[str]:
    """Add the nodes that are gone to a list of names, and take the others out of it."""
    flags = dict(nodes.select("node", "gone").rows())
    return [*(name for name in names if name not in flags), *(name for name, flag in flags.items() if flag)]


def cut_since(version: int, announced: Announced, newest: int) -> int:
    """From which time on all events of a node are cut by a version or a later one, as far as it has announced."""
    return announced.since if announced.version >= version else after(newest)


def after(time: int) -> int:
    return time if time in (INT64_MIN, INT64_MAX) else time + 1


class Children(dict[str, Child]):
    """All children of a node, by name: those that are `expected` from the beginning, and others if it `is_open`."""

    def __init__(self, expected: Sequence[str], is_open: bool) -> None:
        super().__init__((name, Child()) for name in expected)
        self._expected, self._is_open = expected, is_open
        self.last_contact: dict[str, int] = {}  # when a message of the child came in
        self.last_queries: dict[str, int] = {}  # when the query set was sent to it again

    def may_come(self, name: str) -> bool:
        return self._is_open or name in self._expected

    @property
    def awaited(self) -> list[Child]:
        return [child for child in self.values() if child.is_awaited]

    @property
    def active_watermarks(self) -> list[int]:
        """The watermarks whose minimum is the node's own: those of awaited children that are not idle.

        While an idle child may go on, those that have ended do not count either, so that the watermark does not go to
        its end before all sources have.
        """
        unfinished = [child for child in self.awaited if child.watermark < INT64_MAX]
        active = [child for child in unfinished or self.awaited if not (unfinished and child.announced.idle)]
        return [child.watermark for child in active]

    @property
    def all_idle(self) -> bool:
        """Whether no child holds the watermark back, although some have come."""
        return bool(self) and not self.active_watermarks

    def version(self, newest: int) -> int:
        """The version by which all awaited children cut; one that has not come yet will cut by the newest."""
        return min((child.announced.version for child in self.awaited if child.state != "expected"), default=newest)

    def since(self, version: int) -> int:
        """From which time on all accepted events are cut by a version, even those of children that have left."""
        return max((cut_since(version, child.announced, child.newest) for child in self.values()), default=INT64_MIN)

    @property
    def newest(self) -> int:
        return max((child.newest for child in self.values()), default=INT64_MIN)

    def unheard(self, now: int, timeout: int) -> list[str]:
        """The awaited children without a message for so long; the first call for a child starts its clock."""
        return [
            name
            for name, child in self.items()
            if child.is_awaited and now - self.last_contact.setdefault(name, now) > timeout
        ]

    def by_local_node(self) -> dict[str, str]:
        """For each local node that the root may send requests, the child through which it is reached."""
        return {node: name for name, child in self.items() for node in child.answering}

    def saved(self) -> dict[str, Any]:
        return {name: dict(vars(child)) for name, child in self.items()}

    def restore(self, saved: dict[str, Any]) -> None:
        for name, fields in saved.items():
            self[name] = Child(**{**fields, "announced": Announced(*fields["announced"])})

    def status(self) -> dict[str, dict[str, Any]]:
        status: dict[str, dict[str, Any]] = {}
        for name, child in self.items():
            state = "ended" if child.watermark == INT64_MAX else "idle" if child.announced.idle else "live"
            status[name] = {"state": state if child.state == "live" else child.state, "watermark": child.watermark}
            status[name] |= {"batches": child.accepted, "late": child.late, "events": dict(child.events)}
        return status
