"""A run in this process: files are read part by part and put through a table, in memory that does not grow with them.

The first pass reads only the times, so that it is known after each part how far back the rest still reaches. So
files may overlap and events be mixed up as they like: no event is late, and the answers are those of the whole table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice

import polars as pl

from windrow.api import Table
from windrow.cli.options import Request
from windrow.cli.progress import Shown
from windrow.core.plan.options import StreamOptions
from windrow.core.slices.binding import Binding
from windrow.io.event_files import EventFiles, named


def run(
    files: EventFiles, request: Request, options: StreamOptions, write: Callable[[pl.DataFrame], None], shown: Shown
) -> None:
    """Answer queries over files; results are written as they come."""
    table = Table(request.queries, options.whole)
    binding = table.binding(files.columns)
    parts = _parts(files, binding.needed)
    first = list(islice(parts, 2))
    whole = len(first) < 2
    if any(query.distinct_on for query in request.queries) and not whole:  # which of two repeats is left out needs both
        first, parts, whole = [_all(chain(first, parts))], iter(()), True
    rest = _Rest([]) if whole else _Rest(list(_times(files, binding, shown)))
    total = rest.total or sum(part.height for _, part in first)
    seen = 0
    for path, part in chain(first, parts):
        seen += part.height
        with named(path):
            results = table.push(part, rest.after(seen))
        if results.height:
            write(results)
        metrics = table.metrics
        watermark = None if whole else metrics.watermarks[options.time]
        done = seen / max(total, 1)
        shown.at(events=metrics.events, results=metrics.results, watermark=watermark, done=done, doing=None)
    if not first:
        table.push(pl.DataFrame(schema=dict(binding.needed)))
    write(table.finish(request.partial))
    metrics = table.metrics
    last = {"events": metrics.events, "results": metrics.results, "late": metrics.late, "dropped": metrics.dropped}
    shown.at(**last, watermark=None, done=1.0)


def _parts(files: EventFiles, needed: Mapping[str, pl.DataType]) -> Iterator[tuple[str, pl.DataFrame]]:
    for path in files.paths:
        for part in files.frames(path, needed):
            if part.height:
                yield path, part


def _all(parts: Iterator[tuple[str, pl.DataFrame]]) -> tuple[str, pl.DataFrame]:
    several = list(parts)
    return several[0][0], pl.concat([part for _, part in several])


class _Rest:
    """What is still to come after so many events: the least time of each time column."""

    def __init__(self, parts: list[tuple[int, dict[str, int]]]) -> None:
        self.total = sum(rows for rows, _ in parts)
        self._ends: list[tuple[int, dict[str, int]]] = []  # from the last part to the first
        least: dict[str, int] = {}
        end = self.total
        for rows, times in reversed(parts):
            least = {name: min(times.get(name, known), known) for name, known in (times | least).items()}
            self._ends.append((end, least))
            end -= rows

    def after(self, seen: int) -> dict[str, int] | None:
        while self._ends and self._ends[-1][0] <= seen:
            self._ends.pop()
        return self._ends[-1][1] if self._ends else None


def _times(files: EventFiles, binding: Binding, shown: Shown) -> Iterator[tuple[int, dict[str, int]]]:
    """The number of events and the least times of one part after the other."""
    wanted = {name: binding.needed[name] for name in binding.time_columns}
    rows = 0
    for _, part in _parts(files, wanted):
        rows += part.height
        fits = [name for name, dtype in wanted.items() if part.schema.get(name) == dtype]  # else it is refused later
        least = {name: binding.times(part, name).min() for name in fits}
        yield part.height, {name: int(value) for name, value in least.items() if value is not None}  # type: ignore[arg-type]
        shown.at(doing=f"looking at the times of {rows:,} events")
