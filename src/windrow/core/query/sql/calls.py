"""Calls of aggregates as Spark SQL writes them, and expressions over them, as aggregates of ours.

    avg(speed) * 3.6 > 50   ──▶   p0 * 3.6 > 50   with p0 = mean(speed)

`FUNCTIONS` of `aggregates` are known by their own names; `SPARK` says what Spark's names mean, where they are others or
mean something else: Spark's `first` respects nulls, ours skips them. Behind a call may stand IGNORE NULLS, RESPECT
NULLS, WITHIN GROUP (ORDER BY …) and FILTER (WHERE …).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from sqlglot import TokenType

from windrow.core.aggregates.formula import SYNONYMS, call
from windrow.core.aggregates.functions import FUNCTIONS, Aggregate
from windrow.core.expressions.parse import Expression, parse
from windrow.core.query.sql.tokens import Piece, SqlError, Token


@dataclass
class Call:
    """A call as it is written: its name, its arguments, and what stands behind it."""

    name: str
    piece: Piece  # all of it
    arguments: list[Piece]
    distinct: bool = False
    nulls: str = ""  # IGNORE or RESPECT
    ordered: Piece | None = None  # of WITHIN GROUP
    where: Expression | None = None
    used: set[str] = field(default_factory=set)  # which of the three above the function has looked at

    def refuse(self, reason: str) -> NoReturn:
        self.piece.refuse(f"{self.name}: {reason}")

    def expects(self, least: int, most: int) -> None:
        """Refuse more arguments, or fewer."""
        if not least <= len(self.arguments) <= most:
            wanted = f"{least}" if least == most else f"{least} to {most}"
            self.refuse(f"takes {wanted} argument{'' if most == 1 else 's'}, not {len(self.arguments)}")

    def value(self, place: int) -> str:
        """An argument as an expression."""
        return self.arguments[place].expression().text

    def values(self, least: int, most: int) -> list[str]:
        """The arguments as expressions, if they are so many."""
        self.expects(least, most)
        return [self.value(place) for place in range(len(self.arguments))]

    def number(self, place: int) -> float:
        """An argument that is a number."""
        text = self.arguments[place].text
        if re.match(r"array\b|\[", text, re.IGNORECASE):
            self.arguments[place].refuse(f"{self.name}: one share in each column; write {self.name} once for each")
        try:
            return float(re.sub(r"(?<=\d)(BD|[DFL])$", "", text, flags=re.IGNORECASE))
        except ValueError:
            self.arguments[place].refuse(f"{self.name}: {text} is not a number; it must be written out")

    def flag(self, place: int) -> bool:
        """An argument that is TRUE or FALSE, FALSE where it is left out."""
        if place >= len(self.arguments):
            return False
        piece = self.arguments[place]
        if piece.text.upper() not in ("TRUE", "FALSE"):
            piece.refuse(f"{self.name}: {piece.text} is not TRUE or FALSE")
        return piece.text.upper() == "TRUE"


Translation = Callable[[Call], Aggregate]
SPARK: dict[str, Translation] = {}


def spark(*names: str) -> Callable[[Translation], Translation]:
    """Declare what names of Spark's mean."""

    def declare(translation: Translation) -> Translation:
        SPARK.update(dict.fromkeys(names, translation))
        return translation

    return declare


@spark("count")
def _count(given: Call) -> Aggregate:
    if given.distinct:
        if len(given.arguments) > 1:
            joined = ", '/', ".join(argument.text for argument in given.arguments)
            given.refuse(f"DISTINCT of several columns is not read; write count(DISTINCT concat({joined})) of strings")
        return call("distinct", *given.values(1, 1))
    if len(given.arguments) == 1 and (given.arguments[0].text == "*" or not parse(*given.values(1, 1)).columns):
        return call("count")  # every event has a constant
    values = given.values(0, 99)
    if len(values) < 2:
        return call("count", *values)
    return call("count").filter(" AND ".join(f"{_whole(value)} IS NOT NULL" for value in values))


@spark("count_if")
def _count_if(given: Call) -> Aggregate:
    return call("count").filter(*given.values(1, 1))


def _of_one(name: str) -> Translation:
    return lambda given: call(name, *given.values(1, 1))


spark("avg")(_of_one("mean"))
spark("stddev_samp", "std")(_of_one("stddev"))
spark("var_samp")(_of_one("variance"))
spark("var_pop")(_of_one("variance_pop"))
spark("collect_list", "array_agg")(_of_one("collect"))


def _of_order(given: Call) -> Aggregate:
    """Spark respects nulls unless it is told not to."""
    given.used.add("nulls")
    given.expects(1, 2)
    skips = [] if given.nulls == "IGNORE" or given.flag(1) else ["nulls=true"]
    return call("last" if given.name.startswith("last") else "first", given.value(0), *skips)


spark("first", "first_value", "any_value", "last", "last_value")(_of_order)


def _by_other(given: Call) -> Aggregate:
    value, of = given.values(2, 2)
    return call("arg_max" if given.name == "max_by" else "arg_min", value, f"of={of}")


spark("max_by", "min_by")(_by_other)


def _of_booleans(given: Call) -> Aggregate:
    (value,) = given.values(1, 1)
    truth = f"{_whole(value)} AND TRUE"  # what is neither true nor false is refused
    return call("min" if given.name in ("bool_and", "every") else "max", truth)


def _whole(value: str) -> str:
    """An expression that others can stand beside."""
    return value if parse(value).is_column else f"({value})"


spark("bool_and", "every", "bool_or", "some", "any")(_of_booleans)


@spark("mode")
def _mode(given: Call) -> Aggregate:
    """Of several modes Spark takes any, or with TRUE the smallest, which ours is in any case."""
    if given.ordered:
        return call("mode", _within_group(given, 0))
    given.expects(1, 2)
    given.flag(1)
    return call("mode", given.value(0))


@spark("percentile")
def _percentile(given: Call) -> Aggregate:
    given.expects(2, 2)
    return call("quantile", given.value(0), f"{given.number(1)}")


@spark("percentile_cont")
def _percentile_cont(given: Call) -> Aggregate:
    if given.ordered is None:
        given.refuse("write percentile_cont(0.5) WITHIN GROUP (ORDER BY x), or percentile(x, 0.5)")
    return call("quantile", _within_group(given, 1), f"{given.number(0)}")


def _within_group(given: Call, arguments: int) -> str:
    given.used.add("ordered")
    ordered = given.ordered
    assert ordered is not None
    if len(given.arguments) != arguments:
        given.refuse(f"takes {arguments or 'no'} argument{'s' if arguments > 1 else ''} before WITHIN GROUP")
    if ordered.word(len(ordered) - 1) == "DESC":
        ordered.refuse(f"{given.name}: DESC is not read; with the share 1 - p ascending order gives the same", -1)
    return ordered.expression().text


@spark("approx_percentile", "percentile_approx")
def _approx_percentile(given: Call) -> Aggregate:
    """Spark's accuracy n allows a rank to be wrong by 1/n: that is a KLL sketch with this k, in 99 of 100 cases."""
    given.expects(2, 3)
    accuracy = given.number(2) if len(given.arguments) == 3 else 10_000
    k = math.ceil((2.296 * accuracy) ** (1 / 0.9723)) if accuracy > 0 else 0
    if not 8 <= k <= 65_535:
        given.arguments[-1].refuse(f"{given.name}: the accuracy must be between 4 and 20,000, not {accuracy:g}")
    return call("approx_quantile", given.value(0), f"{given.number(1)}", f"k={k}")


@spark("approx_count_distinct")
def _approx_count_distinct(given: Call) -> Aggregate:
    """The second argument is the greatest relative standard deviation; that of HLL is 1.04 / 2^(lg_k / 2)."""
    given.expects(1, 2)
    if len(given.arguments) < 2:
        return call("approx_distinct", given.value(0))
    deviation = given.number(1)
    if not 0.0008 <= deviation <= 1:
        given.arguments[1].refuse(f"{given.name}: the deviation must be between 0.0008 and 1, not {deviation:g}")
    return call("approx_distinct", given.value(0), f"lg_k={max(4, math.ceil(2 * math.log2(1.04 / deviation)))}")


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


def formula(piece: Piece, what: str) -> Aggregate:
    """A piece as one aggregate: a call alone, or an expression over calls; columns stand in calls alone."""
    parts: list[Aggregate] = []
    rest: list[Token] = []
    without: list[Token] = []
    place = 0
    while place < len(piece):
        token = piece[place]
        if piece.is_call(place) and (reason := REFUSED.get(token.name.lower())):
            piece.refuse(f"{token.name} is not known here; {reason}", place)
        if not is_aggregate(piece, place):
            rest.append(token)
            without.append(token)
            place += 1
            continue
        part, behind = _called(piece, place)
        if part not in parts:
            parts.append(part)
        rest.append(Token(TokenType.VAR, f"p{parts.index(part)}", "", token.start, token.spaced))
        without.append(Token(TokenType.NUMBER, "0", "", token.start, token.spaced))
        place = behind
    stray = piece.put(tuple(without)).expression(what, piece.text, {*SPARK, *FUNCTIONS, *SYNONYMS}).columns
    if stray:
        at = next(at for at, token in enumerate(without) if token.name == stray[0])
        piece.put(tuple(without)).refuse(f"{stray[0]} is outside of every aggregate; {_instead(stray[0], what)}", at)
    if not parts:
        piece.refuse(f"{piece.text}: there is no aggregate in it; write one, such as count(*)")
    if len(rest) == 1:
        return parts[0]
    return Aggregate("formula", (piece.put(tuple(rest)).expression(what, piece.text),), (), tuple(parts))


def is_aggregate(piece: Piece, place: int) -> bool:
    """Whether a call of an aggregate stands at a place."""
    name = piece[place].name.lower()
    return piece.is_call(place) and (name in SPARK or name in FUNCTIONS or name in SYNONYMS)


def _instead(column: str, what: str) -> str:
    if what == "HAVING":
        return "if it is a key, put the condition into WHERE"
    return f"select it alone if it is a key, or write first({column}) or the like"


def _called(piece: Piece, place: int) -> tuple[Aggregate, int]:
    """The aggregate of the call at a place, and the place behind it."""
    opening = place + 1
    end = piece.closing(opening)
    inner = piece.part(opening + 1, end)
    name = piece[place].name.lower()
    distinct = inner.word(0) == "DISTINCT" and name != "distinct"
    if inner.word(0) in ("DISTINCT", "ALL") and len(inner) > 1:
        inner = inner.part(1)
    given = Call(name, piece.part(place), inner.split(), distinct)
    behind = _modifiers(given, piece, end + 1)
    if distinct and name != "count":
        given.refuse("DISTINCT is for count alone")
    try:
        made = SPARK[name](given) if name in SPARK else _own(given)
    except SqlError:
        raise
    except ValueError as error:
        given.refuse(str(error).removeprefix(f"{name}: "))
    for what, asked in (("IGNORE NULLS and RESPECT NULLS", "nulls"), ("WITHIN GROUP", "ordered")):
        if getattr(given, asked) and asked not in given.used:
            given.refuse(f"{what} does not go with it")
    return (made.filter(given.where) if given.where else made), behind


def _own(given: Call) -> Aggregate:
    """One of our own aggregates, or a user's, as it is called in Python; arguments may be named with =>."""
    written = []
    for argument in given.arguments:
        named = len(argument) > 1 and argument[1].kind == TokenType.FARROW
        value = argument.part(2) if named else argument
        text = value.text
        if value.tokens and value[0].kind not in (TokenType.STRING, TokenType.NUMBER, TokenType.DASH):
            text = text if text.upper() in ("TRUE", "FALSE") else value.expression().text
        written.append(f"{argument[0].name}={text}" if named else f"({text})" if _NAMED.match(text) else text)
    return call(SYNONYMS.get(given.name, given.name), *written)


_NAMED = re.compile(r"\w+\s*=")


def _modifiers(given: Call, piece: Piece, place: int) -> int:
    """Read what stands behind a call; returns the place behind that."""
    while True:
        word = piece.word(place)
        if word in ("IGNORE", "RESPECT") and piece.word(place + 1) == "NULLS":
            given.nulls = word
            place += 2
        elif word == "WITHIN GROUP" or (word == "WITHIN" and piece.word(place + 1) == "GROUP"):
            opening = place + 1 if word == "WITHIN GROUP" else place + 2
            end = _bracketed(piece, opening, ("ORDER BY",))
            given.ordered = piece.part(opening + 2, end)
            place = end + 1
        elif word == "FILTER":
            end = _bracketed(piece, place + 1, ("WHERE",))
            given.where = piece.part(place + 3, end).expression("the condition")
            place = end + 1
        elif word == "OVER":
            piece.refuse("functions OVER a window of rows are not read; group by a window instead", place)
        else:
            return place


def _bracketed(piece: Piece, opening: int, begins: tuple[str, ...]) -> int:
    """The place of the closing bracket of `(WHERE …)`."""
    if piece.word(opening) != "(" or piece.word(opening + 1) not in begins:
        piece.refuse(f"{piece.word(opening - 1)} is followed by ({begins[0]} …)", opening - 1)
    return piece.closing(opening)
