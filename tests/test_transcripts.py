"""Every transcript on every runtime. Another runtime is one more entry in RUNTIMES."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from windrow.core.aggregates.functions import FUNCTIONS
from windrow.core.operators.custom import MONOIDS
from windrow.core.query.query import Query
from windrow.core.windows.parse import MAKERS
from windrow.engine import Engine
from windrow.testing.oracle import Oracle
from windrow.testing.transcripts import Runtime, Transcript, read

FOLDER = Path(__file__).parent / "transcripts"
TRANSCRIPTS = sorted(FOLDER.glob("*.yaml"))


class EngineRuntime:
    """The engine as a runtime: rows in a DataFrame with the transcript's types, results as rows."""

    def __init__(self, transcript: Transcript) -> None:
        self._schema = transcript.schema
        self.engine = Engine(transcript.queries, **transcript.options)

    def push(self, rows: list[Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.engine.push(pl.DataFrame(rows, schema=self._schema)).to_dicts()
        return found

    def advance(self, watermark: Any, time: str | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.engine.advance(watermark, **({"time": time} if time else {})).to_dicts()
        return found

    def finish(self, partial: bool = False) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.engine.finish(**({"partial": True} if partial else {})).to_dicts()
        return found

    def add(self, query: Query, since: Any = None) -> Any:
        return self.engine.add(query, **({} if since is None else {"since": since}))

    def remove(self, name: str, when: str = "now") -> Any:
        return self.engine.remove(name, when=when)

    def __getattr__(self, name: str) -> Any:
        """late, dropped, bad: the engine's metrics."""
        metrics = self.__dict__["engine"].metrics
        return metrics[name] if isinstance(metrics, dict) else getattr(metrics, name)


RUNTIMES: dict[str, Callable[[Transcript], Runtime]] = {
    "oracle": lambda transcript: Oracle(transcript.queries, **transcript.options),
    "engine": EngineRuntime,
}


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, runtime: str) -> None:
    transcript = read(path)
    assert "\n".join(transcript.check(RUNTIMES[runtime](transcript))) == ""


def test_every_window_and_every_aggregate_has_a_transcript() -> None:
    queries = [query for path in TRANSCRIPTS for query in read(path).all_queries]
    assert {query.window.kind for query in queries} == set(MAKERS)
    asked = [one for query in queries for whole in query.aggregates for one in (whole, *whole.parts)]
    own = FUNCTIONS.keys() - MONOIDS.keys()
    assert own - {one.function for one in asked} == set()
