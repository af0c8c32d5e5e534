"""windrow: many window queries over event streams, answered in one pass."""

from typing import TYPE_CHECKING, Any

from windrow.aggregates import (
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
from windrow.aggregates import (
    range_ as range,
)
from windrow.binding import InputError
from windrow.engine import Engine, Metrics
from windrow.expressions import ExpressionError
from windrow.formulas import aggregate, formula
from windrow.groups import Rates
from windrow.monoids import Monoid
from windrow.ordered import Cuts, DataDrivenWindow, OrderedEvents, counting, frames, latest, punctuated
from windrow.plan import Plan, plan
from windrow.query import Query, QueryError
from windrow.sql import sql
from windrow.tables import results_of, windows
from windrow.texts import window
from windrow.tokens import SqlError
from windrow.windows import ContextFreeWindow, cumulating, session, sliding, tumbling

if TYPE_CHECKING:
    from windrow.spark.book import QueryBook

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
        from windrow.spark.book import QueryBook

        return QueryBook
    raise AttributeError(f"module 'windrow' has no attribute {name!r}")
