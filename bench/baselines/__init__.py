"""What windrow is measured beside, behind one interface.

    system.start(queries, lateness) ──▶ run;   run.push(events) ──▶ results that are final;   run.finish() ──▶ the rest

| system | how it answers | in the papers |
| --- | --- | --- |
| `windrow` | slices that all queries share | Desis |
| `buffer` | keeps events, and computes every window from its events when it ends | CeBuffer, Central |
| `buckets` | a partial aggregate for each window of each query, to which every event is added | Flink, DeBucket |
| `per_function` | slices that only queries with the same functions and measure share | Scotty, DeSW |
| `duckdb`, `polars`, `spark`, `bytewax`, `flink` | as they would be used for the same | |

Approximated count windows, which need several nodes, stand in `approx`. A system says which queries it `claims` to
answer exactly; what it does not claim is not measured.
"""

from __future__ import annotations

import importlib
import importlib.util

from bench.baselines import on_flink
from bench.baselines.common import System

# the module of each, and what must be installed for it
MODULES = {
    "windrow": ("ours", None),
    "buffer": ("buffer", None),
    "buckets": ("buckets", None),
    "per_function": ("per_function", None),
    "polars": ("dynamic", None),
    "duckdb": ("duck", "duckdb"),
    "spark": ("on_spark", "pyspark"),
    "bytewax": ("on_bytewax", "bytewax"),
    "flink": ("on_flink", None),  # in an environment of its own
}


def is_there(name: str) -> bool:
    """Whether what a system needs is installed."""
    if name == "flink":
        return on_flink.is_there()
    needed = MODULES[name][1]
    return needed is None or importlib.util.find_spec(needed) is not None


def system(name: str) -> System:
    """A system by its name."""
    found: System = importlib.import_module(f"bench.baselines.{MODULES[name][0]}").SYSTEM
    return found
