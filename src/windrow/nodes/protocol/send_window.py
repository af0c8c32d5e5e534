"""The send window: a node numbers its batches, and keeps each until its parent has acknowledged it.

The window is bounded, in batches and in bytes. While it is full a node reads no more, which is all the back-pressure
that a slow parent needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from windrow.nodes.protocol.messages import Batch, Out, Position, Report
from windrow.nodes.requests import AGAIN

SELDOM = 30 * AGAIN  # and at most
WINDOW = 32  # batches without an acknowledgement
WEIGHT = 64 << 20  # and bytes of their tables


class SendWindow:
    """The batches of `node` in its life `life` that `receiver` has not acknowledged."""

    def __init__(self, node: str, life: int, receiver: str) -> None:
        self.receiver, self.life = receiver, life
        self.number = 0  # of the newest batch
        self.acknowledged = 0
        self.confirmed: Position = {}  # the position of the last batch that is acknowledged
        self.unacknowledged: list[Batch] = []
        self.deletable: list[int] = []  # batches that were acknowledged, and may still be in the log store
        self._node = node
        self._sent_at, self._pause = 0, AGAIN

    @property
    def is_full(self) -> bool:
        tables = (table for batch in self.unacknowledged for table in batch.tables.values())
        return len(self.unacknowledged) >= WINDOW or sum(table.estimated_size() for table in tables) >= WEIGHT

    def send(self, report: Report, now: int) -> Out:
        """Number what the node has for its parent, and keep it."""
        contents = report.events, report.tables, report.newest
        head = self._node, self.life, self.number + 1, report.position, report.watermark
        batch = Batch(*head, *report.announced, *contents)
        self.unacknowledged.append(batch)
        self.number, self._sent_at = batch.number, now
        return [(self.receiver, batch)]

    def send_again(self) -> Out:
        """All that the receiver has not acknowledged; it takes each number once."""
        return [(self.receiver, batch) for batch in self.unacknowledged]

    def forget(self, number: int, now: int) -> None:
        """Drop the batches up to this number: the receiver has them."""
        done = [batch for batch in self.unacknowledged if batch.number <= number]
        if done:
            self.unacknowledged = [batch for batch in self.unacknowledged if batch.number > number]
            self.deletable += [batch.number for batch in done]
            self.acknowledged, self.confirmed = done[-1].number, done[-1].position
            self.reset_pause(now)

    def has(self, number: int, position: Position) -> bool:
        """Whether what follows on this batch is here: it is the last one that was acknowledged, or one after it.

        A receiver that went on from an older copy of its log store may have another batch of that number, which says
        another position.
        """
        positions = {
            self.acknowledged: self.confirmed,
            **{batch.number: batch.position for batch in self.unacknowledged},
        }
        return number in positions and json.dumps(positions[number]) == json.dumps(position)

    def restart(self, accepted: int, position: Position) -> None:
        """Go on after the last batch that the receiver has, and drop whatever was made since."""
        self.unacknowledged = []
        self.number, self.acknowledged, self.confirmed = accepted, accepted, position

    def restore(self, batches: Iterable[Batch], number: int) -> None:
        """Go on with batches of an earlier life; the receiver takes them as those of this one."""
        self.unacknowledged = [replace(batch, life=self.life) for batch in batches]
        self.number, self.acknowledged = number, number - len(self.unacknowledged)

    def is_due(self, now: int, answered: bool) -> bool:
        """Whether to send something again now; the pause doubles as long as no answer comes."""
        if now - self._sent_at < self._pause:
            return False
        self._sent_at = now
        self._pause = AGAIN if answered else min(2 * self._pause, SELDOM)
        return True

    def reset_pause(self, now: int) -> None:
        """Begin with short pauses again: the receiver answers, or a connection was opened."""
        self._sent_at, self._pause = now, AGAIN
