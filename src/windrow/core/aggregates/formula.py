"""Aggregates as text, and formulas: SQL expressions over aggregates.

`aggregate("quantile(speed, 0.95)")` reads one call; anything else that holds calls is a formula. A formula is calls,
each an aggregate like any other and so shared with everybody else, and an expression over their results:

    sum(fare) / sum(distance)   ──▶   p0 / p1   with p0 = sum(fare), p1 = sum(distance)
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import polars as pl

from windrow.core.aggregates.functions import FUNCTIONS, Aggregate, States, function
from windrow.core.expressions.parse import ExpressionError, parse
from windrow.core.operators.base import Operator


def exact_to_int64(total: pl.Series) -> pl.Series:
    """128-bit sums as int64, null where they do not fit."""
    return total.cast(pl.Int64, strict=False) if total.dtype == pl.Int128() else total


def _formula_operators(asked: Aggregate) -> tuple[Operator, ...]:
    return tuple(operator for part in asked.parts for operator in part.operators)


def overflowed(asked: Aggregate, states: States) -> pl.Series | None:
    """Where a part of a formula is an integer that does not fit int64; None if nowhere."""
    lost, at = None, 0
    for part in asked.parts:
        size = len(part.operators)
        column = part.lower(states[at : at + size])
        at += size
        if column.dtype == pl.Int128():
            gone = exact_to_int64(column).is_null() & column.is_not_null()
            if gone.any():
                lost = gone if lost is None else lost | gone
    return lost


def _lower_formula(asked: Aggregate, states: States) -> pl.Series:
    columns, at = {}, 0
    for number, part in enumerate(asked.parts):
        size = len(part.operators)
        columns[f"p{number}"] = exact_to_int64(part.lower(states[at : at + size]))
        at += size
    frame = pl.DataFrame(columns)
    (expression,) = asked.inputs
    try:
        return frame.select(expression.polars(frame.schema)).to_series()
    except ExpressionError as error:  # which knows the parts as p0, p1, …
        reason = re.sub(r"`p(\d+)`", lambda it: asked.parts[int(it[1])].text, error.reason)
        raise ExpressionError(asked.text, reason) from None


_CALL = re.compile(r"(`[^`]*`|'(?:[^'\\]|\\.|'')*'|\"[^\"]*\")|\b([A-Za-z_]\w*)\s*\(")


@function(_formula_operators, _lower_formula)
def formula(text: str) -> Aggregate:
    """Any SQL expression over aggregates, such as `sum(fare) / sum(distance)`; it shares the operators that it names.

    text:  SQL; every column stands inside an aggregate
    """
    parts: list[Aggregate] = []
    rest, without, at = "", "", 0
    while found := _CALL.search(text, at):
        name = SYNONYMS.get((found[2] or "").lower(), (found[2] or "").lower())
        end = found.end()
        if name not in FUNCTIONS:
            rest, without, at = rest + text[at:end], without + text[at:end], end
            continue
        part, end = _filtered_call(name, text, found.end())
        if part not in parts:
            parts.append(part)
        before = text[at : found.start()]
        rest, without, at = rest + before + f"p{parts.index(part)}", without + before + "0", end
    expression, stray = parse(rest + text[at:]), parse(without + text[at:]).columns
    if not parts or stray:
        reason = f"{stray[0]} is outside of every aggregate" if stray else "it names no aggregate"
        raise ValueError(f"formula {text!r}: {reason}")
    return Aggregate("formula", (expression,), (), tuple(parts))


SYNONYMS = {"avg": "mean", "std": "stddev", "percentile": "quantile", "collect_list": "collect"}


def aggregate(text: str) -> Aggregate:
    """Read an aggregate as it is written in SQL: `mean(speed)`, `quantile(speed, 0.95)`, `sum(a) / sum(b)`.

    text:  a call of an aggregate, also of one of your own, or a formula; a query takes the text as it is
    """
    text = text.strip()
    found = _CALL.match(text)
    name = SYNONYMS.get((found[2] or "").lower(), (found[2] or "").lower()) if found else ""
    if found and name in FUNCTIONS:
        made, end = _filtered_call(name, text, found.end())
        return made if end == len(text) else formula(text)
    whole = bool(found and name and closing(text, found.end()) == len(text) - 1)
    near = difflib.get_close_matches(name, FUNCTIONS, 1)
    if whole and near and not any(f"{known}(" in text for known in FUNCTIONS):
        raise ValueError(f"{text!r}: there is no aggregate {name!r}; did you mean {near[0]!r}?")
    return formula(text)


def _outside(text: str, at: int) -> Iterator[tuple[int, str]]:
    """The letters that are not within quotes, with their places."""
    while at < len(text):
        letter = text[at]
        if letter in "'\"`":
            at += 1
            while at < len(text) and text[at] != letter:
                at += 2 if text[at] == "\\" and letter != "`" else 1
        else:
            yield at, letter
        at += 1


def closing(text: str, at: int) -> int:
    """The place of the bracket that closes the one before `at`."""
    depth = 1
    for place, letter in _outside(text, at):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return place
    raise ValueError(f"{text!r}: a bracket is not closed")


def arguments_of(text: str) -> list[str]:
    """The text between brackets, parted at the commas that are not within further brackets or quotes."""
    cuts, depth = [-1], 0
    for place, letter in _outside(text, 0):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            cuts.append(place)
    parts = [text[a + 1 : b].strip() for a, b in pairwise([*cuts, len(text)])]
    return [] if parts == [""] else parts


_FILTER = re.compile(r"\s*\bFILTER\s*\(\s*WHERE\b", re.IGNORECASE)


def _filtered_call(name: str, text: str, at: int) -> tuple[Aggregate, int]:
    """The aggregate whose arguments begin at `at`, with its FILTER (WHERE …) if it has one, and the place behind it."""
    end = closing(text, at)
    made, filtered = call(name, *arguments_of(text[at:end])), _FILTER.match(text, end + 1)
    if filtered is None:
        return made, end + 1
    end = closing(text, filtered.end())
    return made.filter(text[filtered.end() : end].strip()), end + 1


def call(name: str, *arguments: str) -> Aggregate:
    """Make an aggregate from its arguments as text; those after the first may be named."""
    whole = f"{name}({', '.join(arguments)})"
    make = FUNCTIONS[name].make
    kinds = {key: str(parameter.annotation) for key, parameter in inspect.signature(make).parameters.items()}
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for number, text in enumerate(arguments):
        keyword = re.match(r"(\w+)\s*=\s*(?!=)(.*)", text) if number else None
        key, value = (keyword[1], keyword[2]) if keyword and keyword[1] in kinds else (None, text)
        if key is None and number >= len(kinds):
            raise ValueError(f"{whole} has too many arguments")
        wanted = key or list(kinds)[number]
        try:
            read = _READERS.get(kinds[wanted], str)(value)
        except ValueError:
            raise ValueError(f"{whole}: {wanted} must be a number, not {value!r}") from None
        if key:
            named[key] = read
        else:
            positional.append(read)
    try:
        return make(*positional, **named)
    except TypeError as error:
        raise ValueError(f"{whole}: {error}") from None


def _unquoted(text: str) -> str:
    """A string as it is written in SQL; a bare word stands for itself."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)
    return text


_READERS: dict[str, Callable[[str], Any]] = {
    "float": float,
    "int": int,
    "bool": lambda text: text.lower() == "true",
    "text": _unquoted,
}
