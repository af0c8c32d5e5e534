"""Engine and oracle on random queries, streams, batches and disorder: the same results, step by step, in the same order.

The oracle recomputes every window from all events at every step; results are compared as the semantics say
(`windrow.testing.compare`). A failing case is kept here as an `@example` or as a small test of its own.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings

import windrow as wr
from windrow.testing import Oracle, differences
from windrow.testing.strategies import Row, Stream, frame, streams
from windrow.testing.transcripts import run_step


class Running:
    """An engine that takes and gives rows, as a transcript's runtime does."""

    def __init__(self, queries: Any, rates: wr.Rates | None = None, **options: Any) -> None:
        self.engine = wr.Engine(queries, rates=rates, **options)

    def push(self, rows: list[Row], /) -> list[Row]:
        return self.engine.push(frame(rows)).to_dicts()

    def advance(self, watermark: Any, /, time: str | None = None) -> list[Row]:
        return self.engine.advance(watermark, time).to_dicts()

    def finish(self) -> list[Row]:
        return self.engine.finish().to_dicts()

    def add(self, query: wr.Query, /, since: Any = None) -> Any:
        return self.engine.add(query, since)

    def remove(self, name: str, /, when: Any = "now") -> None:
        self.engine.remove(name, when)

    @property
    def counts(self) -> dict[str, int]:
        metrics = self.engine.metrics
        return {name: getattr(metrics, name) for name in ("late", "dropped", "overflows")}


def run(runtime: Any, stream: Stream) -> list[list[Row]]:
    """The results of every step that has any."""
    return [found for step in stream.steps if (found := run_step(runtime, step)) and step.action not in ("add", "remove")]


def disagreements(stream: Stream, runtime: Any = None) -> list[str]:
    """What an engine does otherwise than the oracle, up to the first step that goes wrong."""
    oracle = Oracle(stream.queries, **stream.options)
    runtime = runtime or Running(stream.queries, **stream.options)
    for number, step in enumerate(stream.steps):
        told, found = run_step(oracle, step), run_step(runtime, step)
        if step.action == "add":
            wrong = [] if found in (told, None) else [f"begins at {found}, not {told}"]
        elif step.action == "remove":
            wrong = []
        else:
            wrong = differences(found, told, stream.all_queries, ordered=True)
        for name, count in runtime.counts.items():
            if count != getattr(oracle, name):
                wrong.append(f"{name} is {count}, not {getattr(oracle, name)}")
        if wrong:
            return [f"step {number} ({step.action}): {line}" for line in wrong]
    return []


@given(stream=streams())
@settings(max_examples=100)
def test_the_engine_gives_what_the_oracle_gives(stream: Stream) -> None:
    assert disagreements(stream) == []
