"""Progress: how far long work is, on stderr: a bar in a terminal, plain lines at intervals elsewhere.

    1,200,000 events, 410,000/s, watermark 2024-05-01 08:12:30, 3,120 results, 2 left out

What is counted comes from whoever does the work, by `at(…)`; the clock is given.
"""

from __future__ import annotations

import sys
import time as clocks
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from windrow.report.words import count

LINE_EVERY = 5.0  # seconds between plain lines


@dataclass(frozen=True)
class Counts:
    """How far it is; None where it is not known."""

    events: int | None = None
    results: int | None = None
    late: int | None = None
    dropped: int | None = None
    watermark: int | datetime | str | None = None
    done: float | None = None  # of 1
    doing: str | None = None  # where nothing is counted yet

    def text(self, seconds: float) -> str:
        parts = []
        if self.events is not None:
            parts.append(count(self.events, "event"))
            if self.events and seconds > 0:
                parts.append(f"{round(self.events / seconds):,}/s")
        if self.doing:
            parts.append(self.doing)
        if self.watermark is not None:
            parts.append(f"watermark {_shown(self.watermark)}")
        if self.results is not None:
            parts.append(count(self.results, "result"))
        if self.dropped is not None:
            parts.append(f"{self.dropped:,} left out")
        return ", ".join(parts)


def _shown(watermark: int | datetime | str) -> str:
    if isinstance(watermark, datetime):
        return f"{watermark:%Y-%m-%d %H:%M:%S}"
    return f"{watermark:,}" if isinstance(watermark, int) else watermark


class Shown:
    """Progress of one piece of work, shown while it is open; the last of its lines is the last state."""

    def __init__(
        self,
        quiet: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = clocks.monotonic,
    ) -> None:
        self.counts = Counts()
        self._clock, self._began = clock, clock()
        self._stream = stream or sys.stderr
        self._quiet, self._printed = quiet, self._began
        self._shown: Counts | None = None  # by the last plain line
        self._bar: Progress | None = None
        if not quiet and self._stream.isatty():
            columns = (SpinnerColumn(), BarColumn(30), TextColumn("{task.description}"), TimeElapsedColumn())
            self._bar = Progress(*columns, console=Console(file=self._stream), transient=True)
            self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Shown:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()
        elif self._shown and self.counts.text(0) != self._shown.text(0):
            self._line()

    @property
    def seconds(self) -> float:
        return self._clock() - self._began

    def at(self, **counts: Any) -> None:
        """It is so far; what is not named stays as it was."""
        self.counts = replace(self.counts, **counts)
        text = self.counts.text(self.seconds)
        if self._bar:
            done = self.counts.done
            self._bar.update(self._task, description=text, total=None if done is None else 1.0, completed=done or 0)
        elif not self._quiet and text and self._clock() - self._printed >= LINE_EVERY:
            self._line()

    def _line(self) -> None:
        self._shown = self.counts
        self.say(self.counts.text(self.seconds))

    def say(self, text: str) -> None:
        """A line of its own, unless it is to be quiet."""
        if self._quiet or not text:
            return
        self._printed = self._clock()
        if self._bar and self._bar.live.is_started:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, file=self._stream, flush=True)
