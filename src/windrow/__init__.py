"""Many window queries over event streams, answered in one pass, with exact results.

    import windrow as wr

    queries = [
        wr.Query("speed", wr.tumbling("1 minute"), [wr.mean("speed"), wr.max("speed")], by="car"),
        wr.Query("trip", wr.session("10 minutes"), [wr.count()], by="car", where="speed > 0"),
    ]
    queries += wr.sql("SELECT car, median(speed) AS m FROM events GROUP BY car, window(ts, '1 hour', '5 minutes')")
    results = wr.windows(events, queries, time="ts")      # Polars, Arrow, pandas or Spark, and the same comes back
    trips = wr.results_of(results, "trip")

windows     tumbling sliding cumulating session · counting punctuated frames latest
aggregates  count sum min max mean … quantile median mode distinct · approx_quantile … · formula · Monoid
streams     Engine: push, advance, finish, add, remove, snapshot, restore
on Spark    windows(df, …), and windrow.spark: session, nodes, explain; QueryBook
errors      QueryError: a query that cannot be; SqlError, with line and column; InputError: events that do not fit
"""

from typing import TYPE_CHECKING, Any

from windrow.api import results_of, windows
from windrow.core.aggregates.custom import Monoid
from windrow.core.aggregates.formula import aggregate, formula
from windrow.core.aggregates.functions import (
    Aggregate,
    approx_distinct,
    approx_quantile,
    arg_max,
    arg_min,
    collect,
    count,
    distinct,
    first,
    geometric_mean,
    last,
    m4,
    max,
    mean,
    median,
    min,
    mode,
    product,
    quantile,
    stddev,
    stddev_pop,
    sum,
    top_k,
    variance,
    variance_pop,
)
from windrow.core.aggregates.functions import (
    range_ as range,
)
from windrow.core.arrays.dataframes import InputError
from windrow.core.expressions.errors import QueryError, SqlError
from windrow.core.expressions.parse import ExpressionError
from windrow.core.plan.groups import Rates
from windrow.core.plan.plan import Plan, plan
from windrow.core.query.query import Query
from windrow.core.query.sql.statements import sql
from windrow.core.stream.live import Metrics
from windrow.core.windows.fixed import ContextFreeWindow, cumulating, session, sliding, tumbling
from windrow.core.windows.ordered import Cuts, DataDrivenWindow, OrderedEvents, counting, frames, latest, punctuated
from windrow.core.windows.parse import window
from windrow.engine import Engine

if TYPE_CHECKING:
    from windrow.spark.stream.query_book import QueryBook

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "aggregate",
    "approx_distinct",
    "approx_quantile",
    "arg_max",
    "arg_min",
    "collect",
    "count",
    "distinct",
    "first",
    "formula",
    "geometric_mean",
    "last",
    "m4",
    "max",
    "mean",
    "median",
    "min",
    "mode",
    "product",
    "quantile",
    "range",
    "stddev",
    "stddev_pop",
    "sum",
    "top_k",
    "variance",
    "variance_pop",
    "Monoid",
    "InputError",
    "Engine",
    "Metrics",
    "ExpressionError",
    "Plan",
    "Rates",
    "plan",
    "Query",
    "QueryBook",
    "QueryError",
    "SqlError",
    "sql",
    "results_of",
    "windows",
    "ContextFreeWindow",
    "Cuts",
    "DataDrivenWindow",
    "OrderedEvents",
    "counting",
    "cumulating",
    "frames",
    "latest",
    "punctuated",
    "session",
    "sliding",
    "tumbling",
    "window",
]


def __getattr__(name: str) -> Any:
    """What needs Spark, once it is asked for."""
    if name == "QueryBook":
        from windrow.spark.stream.query_book import QueryBook

        return QueryBook
    raise AttributeError(f"module 'windrow' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, and not the modules that they come from."""
    return [*__all__, "__version__"]
