"""When a local node looks at what it has to send, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Why = Literal["running", "flushing", "resting", "leaving", "switching"]


@dataclass(frozen=True)
class Occasion:
    """Why a local node looks at what it has to send, and how far it is in its source."""

    why: Why
    watermark: int
    read: int  # events
    has_ended: bool  # the source has come to its end

    @property
    def flushes(self) -> bool:
        """Nothing has come for a while: what is held back for larger batches is sent."""
        return self.why == "flushing"

    @property
    def rests(self) -> bool:
        """Nothing may come for long."""
        return self.why == "resting"

    @property
    def leaves(self) -> bool:
        return self.why == "leaving"

    @property
    def is_last(self) -> bool:
        """No more events come."""
        return self.has_ended or self.leaves

    @property
    def sends_open(self) -> bool:
        """Open slices are sent, too."""
        return self.has_ended or self.why in ("resting", "leaving", "switching")
