"""windrow: many window queries over event streams, answered in one pass."""

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
from windrow.monoids import Monoid
from windrow.ordered import Cuts, DataDrivenWindow, OrderedEvents, counting, frames, latest, punctuated
from windrow.plan import Plan, Rates, plan
from windrow.query import Query, QueryError
from windrow.results import results_of
from windrow.tables import windows
from windrow.windows import ContextFreeWindow, cumulating, session, sliding, tumbling

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
    "QueryError",
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
]
