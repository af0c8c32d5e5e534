"""Calls of aggregates as Spark SQL writes them, and expressions over them, as aggregates of ours.

    avg(speed) * 3.6 > 50   ──▶   p0 * 3.6 > 50   with p0 = mean(speed)

Our own aggregates are known by their own names; `SPARK` says what Spark's names mean, where they are others or mean
something else: Spark's `first` respects nulls, ours skips them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import ClassVar

import polars as pl

from windrow.core.aggregates import functions
from windrow.core.aggregates.functions import Aggregate
from windrow.core.aggregates.reader import AggregateCall, Reader, Translation
from windrow.core.expressions.parse import parse
from windrow.core.expressions.tokens import Phrase

# --- arguments ------------------------------------------------------------------------------------------------------


def _expect(call: AggregateCall, least: int, most: int) -> None:
    """Refuse more arguments, or fewer."""
    if not least <= len(call.arguments) <= most:
        wanted = f"{least}" if least == most else f"{least} to {most}"
        call.refuse(f"takes {wanted} argument{'' if most == 1 else 's'}, not {len(call.arguments)}")


def _value(call: AggregateCall, index: int) -> str:
    """An argument as an expression."""
    return call.arguments[index].expression().text


def _values(call: AggregateCall, least: int, most: int) -> list[str]:
    """The arguments as expressions, if they are so many."""
    _expect(call, least, most)
    return [argument.expression().text for argument in call.arguments]


def _number(call: AggregateCall, index: int) -> float:
    """An argument that is a number."""
    argument = call.arguments[index]
    text = argument.text
    if re.match(r"array\b|\[", text, re.IGNORECASE):
        argument.refuse(f"{call.name}: one share in each column; write {call.name} once for each")
    try:
        return float(re.sub(r"(?<=\d)(BD|[DFL])$", "", text, flags=re.IGNORECASE))
    except ValueError:
        argument.refuse(f"{call.name}: {text} is not a number; it must be written out")


def _flag(call: AggregateCall, index: int) -> bool:
    """An argument that is TRUE or FALSE, FALSE where it is left out."""
    if index >= len(call.arguments):
        return False
    argument = call.arguments[index]
    if argument.text.upper() not in ("TRUE", "FALSE"):
        argument.refuse(f"{call.name}: {argument.text} is not TRUE or FALSE")
    return argument.text.upper() == "TRUE"


def _whole(value: str) -> str:
    """An expression that others can stand beside."""
    return value if parse(value).is_column else f"({value})"


# --- what names of Spark's mean -------------------------------------------------------------------------------------

SPARK: dict[str, Translation] = {}


def spark(*names: str) -> Callable[[Translation], Translation]:
    """Declare what names of Spark's mean."""

    def declare(translation: Translation) -> Translation:
        SPARK.update(dict.fromkeys(names, translation))
        return translation

    return declare


@spark("count")
def _count(call: AggregateCall) -> Aggregate:
    if call.distinct:
        if len(call.arguments) > 1:
            joined = ", '/', ".join(argument.text for argument in call.arguments)
            call.refuse(f"DISTINCT of several columns is not read; write count(DISTINCT concat({joined})) of strings")
        return functions.distinct(*_values(call, 1, 1))
    if len(call.arguments) == 1 and call.arguments[0].text == "*":
        return functions.count()
    values = _values(call, 0, 99)
    constants = [value for value in values if not parse(value).columns]
    if any(_is_null(value) for value in constants):
        return functions.count().filter("FALSE")
    if len(values) < 2:
        return functions.count(*(value for value in values if value not in constants))  # every event has a constant
    return functions.count().filter(" AND ".join(f"{_whole(value)} IS NOT NULL" for value in values))


def _is_null(constant: str) -> bool:
    """Whether a value without columns is null."""
    single_row = pl.DataFrame({"row": [0]})
    return bool(single_row.select(parse(f"{_whole(constant)} IS NULL").polars({})).item())


def _by(make: Callable[..., Aggregate], arguments: int = 1) -> Translation:
    return lambda call: make(*_values(call, arguments, arguments))


spark("avg")(_by(functions.mean))
spark("count_if")(_by(functions.count().filter))
spark("stddev_samp", "std")(_by(functions.stddev))
spark("var_samp")(_by(functions.variance))
spark("var_pop")(_by(functions.variance_pop))
spark("collect_list", "array_agg")(_by(functions.collect))
spark("max_by")(_by(functions.arg_max, 2))
spark("min_by")(_by(functions.arg_min, 2))


@spark("first", "first_value", "any_value", "last", "last_value")
def _of_order(call: AggregateCall) -> Aggregate:
    """Spark respects nulls unless IGNORE NULLS or a flag says otherwise."""
    call.used.add("nulls")
    _expect(call, 1, 2)
    ignores = call.nulls == "IGNORE" or _flag(call, 1)
    make = functions.last if call.name.startswith("last") else functions.first
    return make(_value(call, 0), nulls=not ignores)


@spark("bool_and", "every", "bool_or", "some", "any")
def _of_booleans(call: AggregateCall) -> Aggregate:
    (value,) = _values(call, 1, 1)
    make = functions.min if call.name in ("bool_and", "every") else functions.max
    return make(f"{_whole(value)} AND TRUE")  # what is neither true nor false is refused


@spark("mode")
def _mode(call: AggregateCall) -> Aggregate:
    """Of several modes Spark takes any, or with TRUE the smallest, which ours is in any case."""
    if call.ordered:
        return functions.mode(_within_group(call, call.ordered, 0))
    _expect(call, 1, 2)
    _flag(call, 1)
    return functions.mode(_value(call, 0))


@spark("percentile")
def _percentile(call: AggregateCall) -> Aggregate:
    _expect(call, 2, 2)
    return functions.quantile(_value(call, 0), _number(call, 1))


@spark("percentile_cont")
def _percentile_cont(call: AggregateCall) -> Aggregate:
    if call.ordered is None:
        call.refuse("write percentile_cont(0.5) WITHIN GROUP (ORDER BY x), or percentile(x, 0.5)")
    return functions.quantile(_within_group(call, call.ordered, 1), _number(call, 0))


def _within_group(call: AggregateCall, ordered: Phrase, arguments: int) -> str:
    call.used.add("ordered")
    if len(call.arguments) != arguments:
        call.refuse(f"takes {arguments or 'no'} argument{'s' if arguments > 1 else ''} before WITHIN GROUP")
    if ordered.word(len(ordered) - 1) == "DESC":
        ordered.refuse(f"{call.name}: DESC is not read; with the share 1 - p ascending order gives the same", -1)
    return ordered.expression().text


@spark("approx_percentile", "percentile_approx")
def _approx_percentile(call: AggregateCall) -> Aggregate:
    """Spark's accuracy n allows a rank to be wrong by 1/n: that is a KLL sketch with this k, in 99 of 100 cases."""
    _expect(call, 2, 3)
    accuracy = _number(call, 2) if len(call.arguments) == 3 else 10_000
    k = math.ceil((2.296 * accuracy) ** (1 / 0.9723)) if accuracy > 0 else 0
    if not 8 <= k <= 65_535:
        call.arguments[-1].refuse(f"{call.name}: the accuracy must be between 4 and 20,000, not {accuracy:g}")
    return functions.approx_quantile(_value(call, 0), _number(call, 1), k)


@spark("approx_count_distinct")
def _approx_count_distinct(call: AggregateCall) -> Aggregate:
    """The second argument is the greatest relative standard deviation; that of HLL is 1.04 / 2^(lg_k / 2)."""
    _expect(call, 1, 2)
    if len(call.arguments) < 2:
        return functions.approx_distinct(_value(call, 0))
    deviation = _number(call, 1)
    if not 0.0008 <= deviation <= 1:
        call.arguments[1].refuse(f"{call.name}: the deviation must be between 0.0008 and 1, not {deviation:g}")
    return functions.approx_distinct(_value(call, 0), max(4, math.ceil(2 * math.log2(1.04 / deviation))))


_MONOID = "write a Monoid for it (docs/own.md)"
REFUSED: Mapping[str, str] = {
    "collect_set": "write collect_list and drop repeats, or count(DISTINCT x)",
    "percentile_disc": "write percentile_cont, or approx_percentile, which takes a value that occurred",
    "try_sum": "write sum, which in a stream is null where it does not fit",
    "try_avg": "write avg, which never overflows",
    "grouping": "write a statement for each set of keys",
    "grouping_id": "write a statement for each set of keys",
    **dict.fromkeys(("corr", "covar_pop", "covar_samp", "skewness", "kurtosis"), _MONOID),
    **dict.fromkeys(("bit_and", "bit_or", "bit_xor", "listagg", "string_agg", "histogram_numeric"), _MONOID),
    **dict.fromkeys(("regr_avgx", "regr_avgy", "regr_count", "regr_intercept", "regr_r2", "regr_slope"), _MONOID),
}


class SparkReader(Reader):
    """Reads aggregates by Spark's names and by ours; values of parameters follow `=>`."""

    sign = "=>"
    first_named = 0
    translations = SPARK
    refused: ClassVar[Mapping[str, str]] = REFUSED
    no_distinct = "DISTINCT is for count alone"

    def outside(self, phrase: Phrase, column: str, what: str) -> str:
        instead = f"select it alone if it is a key, or write first({column}) or the like"
        if what == "HAVING":
            instead = "if it is a key, put the condition into WHERE"
        return f"{column} is outside of every aggregate; {instead}"

    def nothing(self, phrase: Phrase) -> str:
        return f"{phrase.text}: there is no aggregate in it; write one, such as count(*)"


READER = SparkReader()
