"""bytewax as people use it: a keyed dataflow with a `fold_window` for each query, event by event in Python.

Its windows are those of event time, with the lateness as `wait_for_system_duration`; what is folded are the same
partial aggregates as elsewhere, as plain numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import bytewax.operators as op
import bytewax.operators.windowing as windowing
import polars as pl
from bytewax.dataflow import Dataflow
from bytewax.testing import TestingSink, TestingSource, run_main

import windrow as wr
from bench.baselines.common import END, START, System, Whole, is_known, results, together
from windrow.core.windows.fixed import Session, Sliding, Tumbling

MOST_QUERIES = 10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
Event = tuple[datetime, int, float]
State = tuple[int, float, float, float]  # count, sum, min, max
LOWER: dict[str, Callable[[State], float]] = {
    "count": lambda state: state[0],
    "sum": lambda state: state[1],
    "min": lambda state: state[2],
    "max": lambda state: state[3],
    "mean": lambda state: state[1] / state[0],
}


def _fold(state: State, event: Event) -> State:
    value = event[2]
    return state[0] + 1, state[1] + value, min(state[2], value), max(state[3], value)


def _merge(one: State, other: State) -> State:
    return one[0] + other[0], one[1] + other[1], min(one[2], other[2]), max(one[3], other[3])


class Bytewax(Whole):
    def __init__(self, queries: Sequence[wr.Query], lateness: int) -> None:
        super().__init__()
        self._queries, self._lateness = queries, lateness

    def answer(self, events: pl.DataFrame) -> pl.DataFrame:
        rows = events.select(pl.col("ts").dt.replace_time_zone("UTC"), "key", "value").rows()
        return together(self._one(query, rows) for query in self._queries)

    def _one(self, query: wr.Query, rows: Iterable[Event]) -> pl.DataFrame:
        by = bool(query.by)
        flow = Dataflow("bench")
        stream = op.input("in", flow, TestingSource(rows, batch_size=1000))
        keyed = op.key_on("key", stream, (lambda event: str(event[1])) if by else (lambda event: ""))
        wait = timedelta(microseconds=self._lateness)
        clock: Any = windowing.EventClock(lambda event: event[0], wait, now_getter=_now, to_system_utc=lambda ts: None)
        folded = windowing.fold_window(
            "fold", keyed, clock, _windower(query), lambda: (0, 0.0, float("inf"), float("-inf")), _fold, _merge
        )
        found: list[tuple[str, tuple[int, State]]] = []
        bounds: list[tuple[str, tuple[int, Any]]] = []
        op.output("out", folded.down, TestingSink(found))
        op.output("meta", folded.meta, TestingSink(bounds))
        run_main(flow)
        opened = {(key, number): about for key, (number, about) in bounds}
        return results(query, _table(query, found, opened))


def _now() -> datetime:
    return _EPOCH  # only event time counts


def _windower(query: wr.Query) -> Any:
    window: Any = query.window
    if isinstance(window, Session):
        return windowing.SessionWindower(gap=window.gap * _MICROSECOND)
    if isinstance(window, Sliding):
        return windowing.SlidingWindower(
            length=window.length * _MICROSECOND, offset=window.slide * _MICROSECOND, align_to=_EPOCH
        )
    return windowing.TumblingWindower(length=window.length * _MICROSECOND, align_to=_EPOCH)


def _table(query: wr.Query, found: list[tuple[str, tuple[int, State]]], opened: dict[Any, Any]) -> pl.DataFrame:
    window: Any = query.window
    more = window.gap if isinstance(window, Session) else 0
    rows = []
    for key, (number, state) in found:
        about = opened[key, number]
        start, end = ((moment - _EPOCH) // _MICROSECOND for moment in (about.open_time, about.close_time))
        asked = (LOWER[one.function](state) for one in query.aggregates)
        rows.append((*([int(key)] if query.by else []), start, end + more, *asked))
    return pl.DataFrame(rows, schema=[*query.by, START, END, *(one.name for one in query.aggregates)], orient="row")


def _claims(queries: Sequence[wr.Query]) -> bool:
    return len(queries) <= MOST_QUERIES and all(
        is_known(query, Tumbling, Sliding, Session)
        and query.by in ((), ("key",))
        and all(one.function in LOWER and [e.text for e in one.inputs] in ([], ["value"]) for one in query.aggregates)
        for query in queries
    )


SYSTEM = System("bytewax", _claims, Bytewax, batches=1, most_events=20_000)
