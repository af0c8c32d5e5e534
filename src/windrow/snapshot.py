"""Snapshots: an engine's whole state as bytes that outlive the process.

A JSON header (queries with their times, options, watermarks, counts, the plan's fingerprint) and the slice tables as
Arrow IPC. A snapshot depends on slices, not on events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import polars as pl

from windrow.core.plan.groups import Entry, Rates
from windrow.core.plan.plan import plan
from windrow.core.plan.watermark import TimeColumn, plain
from windrow.core.query.query import Query
from windrow.core.stream.compiled import bind
from windrow.io.tables import pack, unpack

if TYPE_CHECKING:
    from windrow.engine import Engine


def write(engine: Engine) -> bytes:
    states = list(engine._bound.states.values()) if engine._bound else []
    tables: dict[str, pl.DataFrame] = {}
    if engine._bound:
        tables["columns"] = pl.DataFrame(schema=engine._bound.columns)
    for number, state in enumerate(states):
        tables |= {f"{number} {name}": table for name, table in state.tables().items()}
    kept = list(engine._kept.items())
    for number, (_, table) in enumerate(kept):
        tables[f"kept {number}"] = table
    if engine._late:
        tables["late"] = engine._left_out()
    header = {
        "plan": engine._plan.fingerprint,
        "entries": [[entry.query.to_dict(), entry.since, entry.until, entry.closing] for entry in engine._entries],
        "time": engine._time,
        "lateness": plain(engine._lateness),
        "updates": plain(engine._updates),
        "order_by": engine._order_by,
        "bad_events": engine._bad_events,
        "rates": [engine._rates.events, dict(engine._rates.keys)] if engine._rates else None,
        "apart": sorted(engine._bound.plan.apart) if engine._bound else None,
        "keep_late": engine._keep_late,
        "measures": {name: asdict(time_column) for name, time_column in engine._time_columns.items()},
        "counts": {name: value for name, value in asdict(engine._counts).items() if isinstance(value, int)},
        "arrived": engine._arrived,
        "finished": engine._finished,
        "bars": [[sorted(exclusion) for exclusion in state.exclusions] for state in states],
        "kept": [name for name, _ in kept],
    }
    return pack(header, tables)


def read(data: bytes, clock: Callable[[], int] | None) -> Engine:
    """The engine of a snapshot, or an error that says what is wrong with it."""
    header, tables = unpack(data)
    try:
        return _engine(header, tables, clock)
    except (KeyError, TypeError, pl.exceptions.PolarsError) as error:
        raise ValueError(f"this snapshot is damaged: {type(error).__name__}: {error}") from error


def _engine(header: dict[str, Any], tables: dict[str, pl.DataFrame], clock: Callable[[], int] | None) -> Engine:
    from windrow.engine import Engine, Metrics

    entries = [Entry(Query.from_dict(query), *rest) for query, *rest in header["entries"]]
    options: dict[str, Any] = {"clock": clock} if clock else {}
    engine = Engine(
        [],
        header["time"],
        lateness=header["lateness"],
        updates=header["updates"],
        order_by=header["order_by"],
        bad_events=header["bad_events"],
        keep_late=header["keep_late"],
        **options,
    )
    engine._entries, engine._closing = entries, [entry for entry in entries if entry.closing]
    engine._rates = Rates(*header["rates"]) if header["rates"] else None
    apart = None if header["apart"] is None else frozenset(header["apart"])
    engine._plan = plan(entries, header["time"], engine._rates, apart)
    if engine._plan.fingerprint != header["plan"]:
        raise ValueError("this snapshot was taken under another plan than its queries have here")
    engine._arrived, engine._finished = header["arrived"], header["finished"]
    engine._time_columns = {name: TimeColumn(**time_column) for name, time_column in header["measures"].items()}
    engine._counts = Metrics(**header["counts"])
    engine._kept = {
        (name, tuple(on), since): tables[f"kept {number}"] for number, (name, on, since) in enumerate(header["kept"])
    }
    engine._late = [tables["late"]] if "late" in tables else []
    if "columns" in tables:
        engine._bound = bind(engine._plan, tables["columns"].schema, engine._order_by, engine._time_columns)
        for number, state in enumerate(engine._bound.states.values()):
            mine = {name.partition(" ")[2]: table for name, table in tables.items() if name.startswith(f"{number} ")}
            state.load(mine)
            state.exclusions = [
                frozenset((gap, since) for gap, since in exclusion) for exclusion in header["bars"][number]
            ]
    return engine
