"""Which engine answers a run: this process wherever the events surely fit it, else Spark, and why.

This process reads files once or twice and has no start-up, so that it is first as long as memory lasts. How much the
events take is estimated by the size of the files; queries that need the events themselves, and not only partial states,
may hold all of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from windrow.cli.failures import Refused
from windrow.core.operators.base import Multiset
from windrow.core.operators.collect import Collect
from windrow.core.query.query import Query
from windrow.io.event_files import EventFiles
from windrow.report.words import size

Engine = Literal["spark", "local"]

IN_MEMORY = {"parquet": 10, "arrow": 2, "csv": 3, "json": 3}  # bytes in memory of a byte on disk, at most
COMPRESSED = 10  # of gzip, and more is rare
KEPT = 3  # times the events, where queries keep them: the events, their slices and what is made of them
SHARE = 0.5  # of the memory of this machine, which is used at most


def installed(given: str | None) -> bool:
    """Whether PySpark is there, which `--engine spark` needs."""
    if find_spec("pyspark") is not None:
        return True
    if given == "spark":
        raise Refused("PySpark is not installed: pip install 'windrow[spark]', or say --engine local")
    return False


def engine_of(
    given: Engine | None, files: EventFiles | None, queries: Sequence[Query], stream: bool, master: str | None
) -> tuple[Engine, str]:
    """The engine, and why it is this one where nobody has said it."""
    there = installed(given)
    if given is not None:
        return given, ""
    if not there:
        return "local", "in this process: PySpark is not installed"
    if stream or master is not None:  # which only Spark has
        return "spark", ""
    if files is None:
        return "spark", "on Spark: the events are not files of this machine"
    keeping = [query.name for query in queries if keeps_events(query)]
    needed = in_memory(files) * (KEPT if keeping else 1)
    limit = int(memory() * SHARE)
    kept = f", all of which query {keeping[0]!r} may keep" if keeping else ""
    if needed <= limit:
        return "local", f"in this process: {size(files.size)} of events fit it (--engine spark for Spark)"
    reason = f"{size(files.size)} of events{kept}, may take more than the {size(limit)} that this process should"
    return "spark", f"on Spark: {reason} (--engine local for this process)"


def keeps_events(query: Query) -> bool:
    """Whether a query's states grow with the events, instead of with windows and keys."""
    operators = [operator for aggregate in query.computed for operator in aggregate.operators]
    kept = any(isinstance(operator, Multiset | Collect) for operator in operators)
    return kept or bool(query.distinct_on) or query.needs_order


def in_memory(files: EventFiles) -> int:
    """Bytes that all events take at most."""
    return sum(
        os.path.getsize(path) * (COMPRESSED if path.endswith(".gz") else 1) * IN_MEMORY[files.form]
        for path in files.paths
    )


def memory() -> int:
    """Bytes of memory that this process may use."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(limit).read_text()))
        except (OSError, ValueError):  # there is no such group, or no limit
            continue
    return total
