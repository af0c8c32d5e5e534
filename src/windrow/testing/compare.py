"""How results are compared: the last section of the semantics, as code.

    differences(actual, expected, queries)   one line for each thing that is wrong, none if nothing is
    same(actual, expected, queries)          whether there are none

Results are rows (dicts) from any runtime. Rows are brought together by the identity of their window, (query, key,
start, end) or what the semantics say for its kind; revisions of one window are compared one by one. Windows of one key
that the events decide may start at the same time: they are brought together as they come. Of each row only the
columns of its own query count. Bounds, revisions, keys, integers and everything that selects a value are compared
exactly; NaN equals NaN.

How exact a float must be depends on the events: a sum is as good as the sum of the absolute values allows. The
oracle's rows carry their events (`Result.events`), on either side. Where neither side has them, a float must agree
to nine digits, and a sketch must give the very answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from statistics import fmean, pstdev
from typing import Any

from windrow.core.aggregates.functions import Aggregate
from windrow.core.query.query import Query
from windrow.core.windows.fixed import Session
from windrow.core.windows.ordered import DataDrivenWindow, Latest, OrderedWindow, scope_of
from windrow.testing.answers import answer, canonical, counts, is_nan, monoid_of, neighbours, numbers_of, values_of
from windrow.testing.expressions import evaluate
from windrow.testing.oracle import microseconds

Row = Mapping[str, Any]
Events = Sequence[Row]

_FREQUENT_ITEMS = 768  # that a state of `top_k` keeps; with no more values than that it is exact


def same(actual: Iterable[Row], expected: Iterable[Row], queries: Iterable[Query], *, ordered: bool = False) -> bool:
    return not differences(actual, expected, queries, ordered=ordered)


def differences(
    actual: Iterable[Row], expected: Iterable[Row], queries: Iterable[Query], *, ordered: bool = False
) -> list[str]:
    """What is wrong with the actual results, in words; `ordered`: rows must also come in the same order."""
    known = {query.name: query for query in queries}
    actual, expected = list(actual), list(expected)
    got, want = _by_window(actual, known), _by_window(expected, known)
    found = []
    for identity in sorted(got.keys() | want.keys(), key=str):
        have, need = got.get(identity, []), want.get(identity, [])
        name, query = f"{identity[0]} {list(identity[1:])}", known.get(identity[0])
        if query is None:
            found.append(f"{name}: there is no such query")
        elif len(have) != len(need):
            what = f"{len(have)} rows, and should be {len(need)}" if have and need else "is not expected"
            found.append(f"{name}: {what if have else 'is missing'}: {_shown(have or need)}")
        else:
            for one, other in zip(have, need, strict=True):
                found += [f"{name}: {line}" for line in _row_differences(one, other, query)]
    return found if found or not ordered else _order_differences(actual, expected, known)


def _by_window(rows: Iterable[Row], queries: Mapping[str, Query]) -> dict[tuple[Any, ...], list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(_identity(row, queries), []).append(row)
    for several in found.values():
        several.sort(key=lambda row: (row.get("revision") or 0, _plain(row.get("window_end"))))
    return found


def _identity(row: Row, queries: Mapping[str, Query]) -> tuple[Any, ...]:
    query = queries.get(row["query"])
    keys = [canonical(_plain(row.get(column))) for column in query.by] if query else []
    return (row["query"], *keys, *(_plain(row.get(column)) for column in _identifying(query)))


def _identifying(query: Query | None) -> tuple[str, ...]:
    """The columns that tell the windows of a query and key apart."""
    window = query.window if query else None
    if isinstance(window, OrderedWindow) and window.has_position:
        return ("position",)
    if isinstance(window, Latest):
        return ("window_end",)
    begins = isinstance(window, Session | DataDrivenWindow) and scope_of(window) != "bounds"
    return ("window_start",) if begins else ("window_start", "window_end")


def _shown(rows: Iterable[Row]) -> str:
    return "; ".join(str(dict(row)) for row in rows)


def _order_differences(actual: list[Row], expected: list[Row], queries: Mapping[str, Query]) -> list[str]:
    for place, (one, other) in enumerate(zip(actual, expected, strict=True)):
        here = (*_identity(one, queries), one.get("revision"))
        there = (*_identity(other, queries), other.get("revision"))
        if here != there:
            return [f"row {place} is {here}, and should be {there}"]
    return []


def _row_differences(actual: Row, expected: Row, query: Query) -> list[str]:
    found = []
    counted = ("position",) if isinstance(query.window, OrderedWindow) and query.window.has_position else ()
    if not counted and actual.get("position") is not None:
        found.append(f"position is {actual['position']!r}, and nothing is counted")
    for column in ("window_start", "window_end", *counted, "revision", *query.by, *dict(query.names)):
        if column not in actual:
            found.append(f"has no column {column!r}")
        elif not _equal(actual[column], expected.get(column)):
            found.append(f"{column} is {actual[column]!r}, not {expected.get(column)!r}")
    if bool(actual.get("retracted")) != bool(expected.get("retracted")):
        found.append(f"retracted is {actual.get('retracted')!r}, not {expected.get('retracted')!r}")
    events = getattr(expected, "events", ()) or getattr(actual, "events", ())
    for aggregate in query.aggregates:
        if aggregate.name not in actual or aggregate.name not in expected:
            side = "actual" if aggregate.name not in actual else "expected"
            found.append(f"the {side} row has no column {aggregate.name!r}")
        elif not agrees(aggregate, actual[aggregate.name], expected[aggregate.name], events):
            found.append(f"{aggregate.name} is {actual[aggregate.name]!r}, not {expected[aggregate.name]!r}")
    return found


# --- values ---------------------------------------------------------------------------------------------------------


def agrees(aggregate: Aggregate, actual: Any, expected: Any, events: Events = ()) -> bool:
    """Whether a value is right for an aggregate, given the events of its window."""
    if _equal(actual, expected):
        return True
    if actual is None or expected is None:
        return False
    if aggregate.function in _SKETCHES:
        return _SKETCHES[aggregate.function](aggregate, actual, expected, events)
    if not (_is_number(actual) and _is_number(expected)) or is_nan(actual) or is_nan(expected):
        return False
    if math.isinf(expected):
        return False
    allowed = allowance(aggregate, expected, events)
    return abs(float(actual) - float(expected)) <= allowed if allowed else False


def allowance(aggregate: Aggregate, expected: Any, events: Events = ()) -> float:
    """How far a number may be from the expected one; 0 where it must be equal."""
    if aggregate.parts:
        return _formula_allowance(aggregate, expected, events)
    if monoid_of(aggregate) is not None:
        return _relative_rule(aggregate, abs(float(expected)), events) if isinstance(expected, float) else 0.0
    rule = _RULES.get(aggregate.function)
    if rule is None or (aggregate.function == "sum" and not isinstance(expected, float)):
        return 0.0
    return rule(aggregate, abs(float(expected)), events)


def _plain(value: Any) -> Any:
    return microseconds(value) if isinstance(value, datetime) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _equal(actual: Any, expected: Any) -> bool:
    if isinstance(actual, Mapping) and isinstance(expected, Mapping):
        return actual.keys() == expected.keys() and all(_equal(actual[name], expected[name]) for name in actual)
    if isinstance(actual, list) and isinstance(expected, list):
        return len(actual) == len(expected) and all(map(_equal, actual, expected))
    if isinstance(actual, bool) != isinstance(expected, bool):
        return False
    return (is_nan(actual) and is_nan(expected)) or bool(_plain(actual) == _plain(expected))


def _magnitude(aggregate: Aggregate, events: Events, otherwise: float) -> float:
    """Σ|x|."""
    if not events:
        return otherwise
    return sum(abs(float(value)) for value in values_of(aggregate, events) if math.isfinite(value))


def _sum_rule(aggregate: Aggregate, result: float, events: Events) -> float:
    return 1e-9 * result + 1e-12 * _magnitude(aggregate, events, result)


def _relative_rule(aggregate: Aggregate, result: float, events: Events) -> float:
    return 1e-9 * result


def _spread(aggregate: Aggregate, events: Events) -> tuple[float, float]:
    """What rounding the values may add to a standard deviation, and the deviation itself."""
    values = [float(value) for value in values_of(aggregate, events)]
    if not values or not all(map(math.isfinite, values)):
        return 0.0, 0.0
    return 1e-15 * abs(fmean(values)), pstdev(values)


def _variance_rule(aggregate: Aggregate, result: float, events: Events) -> float:
    """Relative 1e-9 + 1e-15·|mean|/stddev, in a form that also says what a deviation of 0 allows."""
    rounding, deviation = _spread(aggregate, events)
    return 1e-9 * result + rounding * max(deviation, math.sqrt(result)) + rounding**2


def _stddev_rule(aggregate: Aggregate, result: float, events: Events) -> float:
    return 1e-9 * result + _spread(aggregate, events)[0]


def _quantile_rule(aggregate: Aggregate, result: float, events: Events) -> float:
    values = values_of(aggregate, events)
    q = 0.5 if aggregate.function == "median" else aggregate.param("q")
    around = neighbours(values, q)[:2] if values else (result,)
    return 1e-12 * max((abs(value) for value in around if math.isfinite(value)), default=0.0)


_RULES: dict[str, Callable[[Aggregate, float, Events], float]] = {
    "sum": _sum_rule,
    "mean": _sum_rule,
    "product": _relative_rule,
    "geometric_mean": _relative_rule,
    "variance": _variance_rule,
    "variance_pop": _variance_rule,
    "stddev": _stddev_rule,
    "stddev_pop": _stddev_rule,
    "median": _quantile_rule,
    "quantile": _quantile_rule,
}


def _formula_allowance(aggregate: Aggregate, expected: Any, events: Events) -> float:
    """The rule of its worst operand: for the result itself, or carried through the formula where that is more."""
    if not _is_number(expected) or isinstance(expected, int):
        return 0.0
    size = abs(float(expected))
    if not events:
        return 1e-9 * size
    worst = 1e-15 * size  # two libraries may round a function's last digit differently
    parts = {f"p{number}": answer(part, events) for number, part in enumerate(aggregate.parts)}
    for part, (name, value) in zip(aggregate.parts, parts.items(), strict=True):
        allowed = allowance(part, value, events) if _is_number(value) and math.isfinite(value) else 0.0
        if not allowed:
            continue
        worst = max(worst, allowance(part, float(expected), events))
        for moved in (value - allowed, value + allowed):
            result = evaluate(aggregate.inputs[0], parts | {name: moved})
            if _is_number(result) and math.isfinite(result):
                worst = max(worst, abs(float(result) - float(expected)))
    return worst


# --- sketches: within their bound -----------------------------------------------------------------------------------


def _near_quantile(aggregate: Aggregate, actual: Any, expected: Any, events: Events) -> bool:
    """A value that occurred, whose rank is at most the error of KLL away from q."""
    values = numbers_of(values_of(aggregate, events))
    if not _is_number(actual) or float(actual) not in values:
        return False
    error, q = 2.296 / aggregate.param("k") ** 0.9723, aggregate.param("q")  # DataSketches: in 99 of 100 sketches
    below = sum(value < actual for value in values) / len(values)
    up_to = sum(value <= actual for value in values) / len(values)
    return bool(below - error <= q <= up_to + error)


def _near_distinct(aggregate: Aggregate, actual: Any, expected: Any, events: Events) -> bool:
    """Three standard deviations of HLL, and its rounding."""
    deviation = 1.04 / math.sqrt(2 ** aggregate.param("lg_k"))
    return _is_number(actual) and bool(abs(actual - expected) <= 3 * deviation * expected + 0.5)


def _near_top(aggregate: Aggregate, actual: Any, expected: Any, events: Events) -> bool:
    """Counts are never too low, too high by no more than the error, and nothing beyond that is missing."""
    exact = dict(counts(values_of(aggregate, events)))
    if len(exact) <= _FREQUENT_ITEMS or not isinstance(actual, list):
        return False  # then it must be equal, and is not
    error = sum(exact.values()) / (_FREQUENT_ITEMS + 1)
    listed = {canonical(one["value"]): one["count"] for one in actual}
    if len(listed) < len(actual) or len(actual) > aggregate.param("k") or not listed.keys() <= exact.keys():
        return False
    if [one["count"] for one in actual] != sorted(listed.values(), reverse=True):
        return False
    rest = max((count for value, count in exact.items() if value not in listed), default=0)
    least = min(listed.values(), default=0) if len(actual) == aggregate.param("k") else 0
    return all(exact[value] <= count <= exact[value] + error for value, count in listed.items()) and (
        rest <= least + error
    )


_SKETCHES: dict[str, Callable[[Aggregate, Any, Any, Events], bool]] = {
    "approx_quantile": _near_quantile,
    "approx_distinct": _near_distinct,
    "top_k": _near_top,
}
