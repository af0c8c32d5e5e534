"""Calls of aggregates, and expressions over them, read from tokens.

    sum(fare) / sum(distance)   ──▶   p0 / p1   with p0 = sum(fare), p1 = sum(distance)

A phrase in, an `Aggregate` out: that of the call if it is one call, or else a formula. A `Reader` reads aggregates as
programs and files write them; a language with other names and more of them (`query.sql.calls`) is a subclass.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar

from sqlglot import TokenType

from windrow.core.aggregates.functions import FUNCTIONS, Aggregate
from windrow.core.expressions.errors import SqlError
from windrow.core.expressions.parse import Expression, parse
from windrow.core.expressions.tokens import Call, Phrase, Token

OVER = "functions OVER a window of rows are not read; group by a window instead, such as window(ts, '1 hour')"
SYNONYMS = {"avg": "mean", "std": "stddev", "percentile": "quantile", "collect_list": "collect"}
_P0 = parse("p0")


@dataclass
class AggregateCall(Call):
    """A call with what stands behind it."""

    distinct: bool = False
    nulls: str = ""  # IGNORE or RESPECT
    ordered: Phrase | None = None  # of WITHIN GROUP
    where: Expression | None = None
    used: set[str] = field(default_factory=set)  # which of `nulls` and `ordered` the aggregate depends on

    def read_modifiers(self, phrase: Phrase, index: int) -> int:
        """Take in what stands behind the call; returns the index behind that."""
        while True:
            word = phrase.word(index)
            if word in ("IGNORE", "RESPECT") and phrase.word(index + 1) == "NULLS":
                self.nulls = word
                index += 2
            elif word == "WITHIN GROUP" or (word == "WITHIN" and phrase.word(index + 1) == "GROUP"):
                opening = index + 1 if word == "WITHIN GROUP" else index + 2
                end = _bracketed(phrase, opening, "ORDER BY")
                self.ordered = phrase.part(opening + 2, end)
                index = end + 1
            elif word == "FILTER":
                if self.where:
                    phrase.refuse("FILTER is given twice; write one, with AND", index)
                end = _bracketed(phrase, index + 1, "WHERE")
                self.where = phrase.part(index + 3, end).expression("the condition")
                index = end + 1
            elif word == "OVER":
                phrase.refuse(OVER, index)
            else:
                return index


Translation = Callable[[AggregateCall], Aggregate]


def as_formula(aggregate: Aggregate) -> Aggregate:
    """The same as a formula."""
    return aggregate if aggregate.parts else Aggregate("formula", (_P0,), (), (aggregate,))


class Reader:
    """Reads aggregates by their own names; values of parameters follow `=`."""

    sign: ClassVar[str] = "="
    first_named: ClassVar[int] = 1  # argument, because `count(x = 1)` counts an equality
    translations: ClassVar[Mapping[str, Translation]] = {}  # names that are others, or mean something else
    refused: ClassVar[Mapping[str, str]] = {}  # with what to write instead
    no_distinct: ClassVar[str] = "DISTINCT is not read; write distinct(x)"

    def outside(self, phrase: Phrase, column: str, what: str) -> str:
        """Why a column cannot stand outside of every aggregate."""
        return f"formula {phrase.source!r}: {column} is outside of every aggregate"

    def nothing(self, phrase: Phrase) -> str:
        """Why a phrase must name an aggregate."""
        return f"formula {phrase.source!r}: it names no aggregate"

    def is_aggregate(self, phrase: Phrase, index: int) -> bool:
        """Whether a call of an aggregate stands at an index."""
        name = phrase[index].name.lower()
        return phrase.is_call(index) and (name in self.translations or name in FUNCTIONS or name in SYNONYMS)

    def read(self, phrase: Phrase, what: str) -> Aggregate:
        """A phrase as one aggregate: a call alone, or an expression over calls; columns stand in calls alone."""
        parts: dict[Aggregate, int] = {}
        over_parts: list[Token] = []
        index = 0
        while index < len(phrase):
            token = phrase[index]
            if phrase.is_call(index) and (reason := self.refused.get(token.name.lower())):
                phrase.refuse(f"{token.name} is not known here; {reason}", index)
            if not self.is_aggregate(phrase, index):
                over_parts.append(token)
                index += 1
                continue
            part, index = self._part(phrase, index)
            number = parts.setdefault(part, len(parts))
            # with a blank, because what may follow a bracket may not follow a name
            over_parts.append(replace(token, kind=TokenType.VAR, text=f"p{number} ", name=""))
        if parts and len(over_parts) == 1:
            return next(iter(parts))
        rest = replace(phrase, tokens=tuple(over_parts))
        expression = rest.expression(what, phrase.text, {*self.translations, *FUNCTIONS, *SYNONYMS})
        columns = set(expression.columns)
        for index, token in enumerate(over_parts):
            if token.is_name and token.name in columns:
                rest.refuse(self.outside(phrase, token.name, what), index)
        if not parts:
            phrase.refuse(self.nothing(phrase))
        return Aggregate("formula", (expression,), (), tuple(parts))

    def _part(self, phrase: Phrase, index: int) -> tuple[Aggregate, int]:
        """The aggregate of the call at an index, and the index behind it."""
        plain, behind = phrase.call(index)
        call = AggregateCall(plain.phrase, plain.arguments)
        if call.arguments and len(call.arguments[0]) > 1 and call.arguments[0].word(0) in ("DISTINCT", "ALL"):
            call.distinct = call.arguments[0].word(0) == "DISTINCT"
            call.arguments[0] = call.arguments[0].part(1)
        behind = call.read_modifiers(phrase, behind)
        if call.distinct and (call.name != "count" or "count" not in self.translations):
            call.refuse(self.no_distinct)
        try:
            aggregate = self.translations.get(call.name, self._own)(call)
        except SqlError:
            raise
        except ValueError as error:
            call.refuse(str(error).removeprefix(f"{call.name}: "))
        for what, modifier in (("IGNORE NULLS and RESPECT NULLS", "nulls"), ("WITHIN GROUP", "ordered")):
            if getattr(call, modifier) and modifier not in call.used:
                call.refuse(f"{what} does not go with it")
        return (aggregate.filter(call.where) if call.where else aggregate), behind

    def _own(self, call: AggregateCall) -> Aggregate:
        """One of our own aggregates, or a user's, called as in Python."""
        if call.name == "formula" and len(call.arguments) == 1:
            return as_formula(self.read(call.arguments[0], "a formula"))
        make = FUNCTIONS[SYNONYMS.get(call.name, call.name)].make
        kinds = _kinds(make)
        positional, named = call.parted(kinds, self.sign, self.first_named)
        if len(positional) > len(kinds):
            call.phrase.refuse(f"{call.phrase.text} has too many arguments")

        def value(name: str, argument: Phrase) -> Any:
            text = argument.text
            if kinds[name] not in _READERS:
                return text if text == "*" else argument.expression().text
            try:
                return _READERS[kinds[name]](text)
            except ValueError:
                argument.refuse(f"{call.phrase.text}: {name} must be a number, not {text!r}")

        values = [value(name, argument) for name, argument in zip(kinds, positional, strict=False)]
        try:
            return make(*values, **{name: value(name, argument) for name, argument in named.items()})
        except TypeError as error:
            call.phrase.refuse(f"{call.phrase.text}: {error}")


@lru_cache(maxsize=1024)
def _kinds(make: Callable[..., Aggregate]) -> dict[str, str]:
    """How each argument is read."""
    return {name: str(parameter.annotation) for name, parameter in inspect.signature(make).parameters.items()}


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


def _bracketed(phrase: Phrase, opening: int, begin: str) -> int:
    """The index of the closing bracket of `(WHERE …)`."""
    if phrase.word(opening) != "(" or phrase.word(opening + 1) != begin:
        phrase.refuse(f"{phrase.word(opening - 1)} is followed by ({begin} …)", opening - 1)
    return phrase.closing(opening)
