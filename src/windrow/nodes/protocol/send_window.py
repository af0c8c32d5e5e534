"""A node's link to its parent: batches are numbered, and kept until they are acknowledged.

The window of what may be on its way is bounded, in batches and in bytes: beyond it a node reads no more, which is all
the back-pressure that a slow parent needs.
"""

from __future__ import annotations

from windrow.nodes.protocol.messages import Batch, Position
from windrow.nodes.requests import AGAIN as AGAIN

SELDOM = 30 * AGAIN  # and at most
WINDOW = 32  # batches that may be on their way without an acknowledgement
WEIGHT = 64 << 20  # and bytes of their tables


class Uplink:
    def __init__(self) -> None:
        self.number = 0  # of the last batch that was made
        self.acknowledged = 0
        self.confirmed: Position = {}  # of the last batch that the parent holds
        self.sent: list[Batch] = []  # and not acknowledged
        self.gone: list[int] = []  # acknowledged, and perhaps still kept somewhere
        self._weights: dict[int, int] = {}
        self._said, self._wait = 0, AGAIN

    @property
    def is_full(self) -> bool:
        return len(self.sent) >= WINDOW or sum(self._weights.values()) >= WEIGHT

    def add(self, batch: Batch, now: int) -> None:
        """A batch has been made."""
        self.sent.append(batch)
        self._weights[batch.number] = sum(int(table.estimated_size()) for table in batch.tables.values())
        self.number, self._said = batch.number, now

    def forget(self, number: int, now: int) -> None:
        """Batches up to this one are held by the parent."""
        done = [batch for batch in self.sent if batch.number <= number]
        if done:
            self.sent = [batch for batch in self.sent if batch.number > number]
            for batch in done:
                self._weights.pop(batch.number, None)
            self.gone += [batch.number for batch in done]
            self.acknowledged, self.confirmed = done[-1].number, done[-1].position
            self._said, self._wait = now, AGAIN

    def restart(self, accepted: int, position: Position) -> None:
        """Go on after the last batch that the parent holds, whatever was made since."""
        self.sent, self._weights = [], {}
        self.number, self.acknowledged, self.confirmed = accepted, accepted, position

    def is_due(self, now: int, answered: bool) -> bool:
        """Whether it is time to say something again; less and less often as long as no answer comes."""
        if now - self._said < self._wait:
            return False
        self._said = now
        self._wait = AGAIN if answered else min(2 * self._wait, SELDOM)
        return True

    def spoke(self, now: int) -> None:
        self._said, self._wait = now, AGAIN
