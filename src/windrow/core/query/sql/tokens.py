"""Tokens of SQL text that know where they stand, so that whatever is refused is refused with line and column.

    tokenize("SELECT avg(x)\\nFROM events")  ──▶  a Piece: SELECT · avg · ( · x · ) · FROM · events

A `Piece` is a stretch of tokens. The readers of statements (`sql`) and of calls (`calls`) part it at words and commas,
take tokens out and put others in, and in the end its text is read as an expression. Tokens are those of sqlglot's Spark
dialect; each keeps the place in the whole text at which it was written.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

from sqlglot import TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, SqlglotError

from windrow.core.expressions.parse import Expression, ExpressionError, parse, unknown
from windrow.core.query.query import QueryError


class SqlError(QueryError):
    """SQL that cannot be read, and where.

    reason:  what is wrong, and what to write instead
    line:    counted from 1
    column:  counted from 1
    """

    def __init__(self, reason: str, line: int, column: int) -> None:
        super().__init__(reason, line, column)
        self.reason, self.line, self.column = reason, line, column

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.reason}"


@dataclass(frozen=True)
class Token:
    kind: TokenType
    text: str  # as it is written
    name: str  # a column without its backticks, a string without its quotes
    start: int  # in the whole text
    spaced: bool  # whether something stands between it and the token before

    @property
    def word(self) -> str:
        """A word of SQL in capitals; a name in backticks and a string are none."""
        quoted = self.kind in (TokenType.IDENTIFIER, TokenType.STRING)
        return "" if quoted else " ".join(self.text.upper().split())

    @property
    def is_name(self) -> bool:
        """Whether it can be the name of a column, a function or an alias."""
        if self.kind == TokenType.IDENTIFIER:
            return True
        return self.kind != TokenType.STRING and bool(re.fullmatch(r"[^\W\d]\w*", self.text))


@dataclass(frozen=True)
class Piece:
    """Tokens that belong together, of a text."""

    source: str
    tokens: tuple[Token, ...]
    at: int  # where it stands in the text, also if it is empty

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, place: int) -> Token:
        return self.tokens[place]

    def part(self, first: int, last: int | None = None) -> Piece:
        """The tokens from one place up to before another."""
        tokens = self.tokens[first:last]
        end = self.tokens[-1].start + len(self.tokens[-1].text) if self.tokens else self.at
        after = self.tokens[first].start if first < len(self.tokens) else end
        return Piece(self.source, tokens, after)

    @property
    def line(self) -> int:
        return refusal(self.source, self.at, "").line

    def put(self, tokens: tuple[Token, ...]) -> Piece:
        """The same piece of other tokens."""
        return replace(self, tokens=tokens)

    def word(self, place: int) -> str:
        return self.tokens[place].word if 0 <= place < len(self.tokens) else ""

    @property
    def text(self) -> str:
        """As it is written, without comments, with one blank where there was space."""
        return "".join(text for _, text in self._laid_out())

    def _laid_out(self) -> Iterator[tuple[Token, str]]:
        for place, token in enumerate(self.tokens):
            yield token, (" " if token.spaced and place else "") + token.text

    def depths(self) -> Iterator[tuple[int, int]]:
        """Each place with the number of brackets around it; a bracket itself counts as outside."""
        depth = 0
        for place, token in enumerate(self.tokens):
            depth -= token.kind == TokenType.R_PAREN
            yield place, depth
            depth += token.kind == TokenType.L_PAREN

    def closing(self, opening: int) -> int:
        """The place of the bracket that closes the one at a place."""
        for place, depth in self.part(opening).depths():
            if place and not depth:
                return opening + place
        self.refuse("a bracket is not closed", opening)

    def split(self) -> list[Piece]:
        """The pieces between commas that are not within brackets."""
        commas = [place for place, depth in self.depths() if not depth and self[place].kind == TokenType.COMMA]
        if not self.tokens:
            return []
        return [self.part(a + 1, b) for a, b in zip([-1, *commas], [*commas, len(self)], strict=True)]

    def is_call(self, place: int) -> bool:
        """Whether a name with a bracket behind it stands at a place."""
        opens = place + 1 < len(self) and self[place + 1].kind == TokenType.L_PAREN
        return opens and self[place].is_name and self.word(place) not in _NO_FUNCTIONS

    def refuse(self, reason: str, place: int = 0) -> NoReturn:
        """Refuse what stands at a place."""
        raise refusal(self.source, self[place].start if place < len(self) else self.at, reason)

    def expression(self, what: str = "an expression", shown: str = "", also: Collection[str] = ()) -> Expression:
        """The piece read as an expression over columns; what is refused is shown as it is written, or so.

        also:  names of aggregates, where they may be called: then the expression is over results
        """
        if not self.tokens:
            self.refuse(f"{what} is missing here")
        try:
            return parse(self.text)
        except ExpressionError as error:
            otherwise = "compute it from the results" if also else "make it a column of the events first"
            if "complete SQL expression" in error.reason:
                place, reason = self._unreadable(), re.sub(r", column \d+$", "", error.reason)
            elif error.reason.endswith(" is not supported"):
                place, reason = 0, f"it is not supported here; {otherwise}"
            else:
                place, reason = self._culprit(error.reason, also, otherwise)
            self.refuse(f"{shown or self.text}: {reason}", place)

    def _unreadable(self) -> int:
        """Where sqlglot no longer understands the piece."""
        dialect = Spark()
        try:
            dialect.parser().parse_into(exp.Condition, dialect.tokenize(self.text), self.text)
        except ParseError as error:
            end = (error.errors or [{}])[0].get("col") or 0  # of the token
            laid = 0
            for place, (_, text) in enumerate(self._laid_out()):
                laid += len(text)
                if laid >= end:
                    return place
        except SqlglotError:
            pass
        return 0

    def _culprit(self, reason: str, also: Collection[str], otherwise: str) -> tuple[int, str]:
        """The call that a refusal is about, or else the beginning, and the refusal with the name as it is written."""
        if re.match(r"there is no function|\w+ is an aggregate function", reason):
            for place in reversed(range(len(self))):  # the innermost comes last
                if not self.is_call(place):
                    continue
                try:
                    parse(self.part(place, self.closing(place + 1) + 1).text)
                except ExpressionError as error:
                    if error.reason == reason:
                        known = self.word(place) == reason.split()[0]  # of an aggregate it is said what it is
                        return place, reason if known else unknown(self[place].text, also, otherwise)
        return 0, reason


_NO_FUNCTIONS = {"AND", "OR", "NOT", "IN", "WHEN", "THEN", "ELSE", "CASE", "BETWEEN", "LIKE", "AS", "BY", "WHERE", "IS"}


def refusal(source: str, at: int, reason: str) -> SqlError:
    """What is said of a place in a text."""
    return SqlError(reason, source.count("\n", 0, at) + 1, at - source.rfind("\n", 0, at))


def tokenize(source: str) -> Piece:
    """All tokens of a text."""
    try:
        found = Spark().tokenize(source)
    except SqlglotError:
        opening = _unclosed(source)
        raise refusal(source, opening, f"what begins with {source[opening]} is never closed") from None
    tokens: list[Token] = []
    end = 0
    for one in found:
        if tokens and one.start == tokens[-1].start:
            continue  # `1.5D` is three tokens of sqlglot's, written as one
        text = source[one.start : one.end + 1]
        tokens.append(Token(one.token_type, text, one.text, one.start, one.start > end))
        end = one.end + 1
    return Piece(source, tuple(tokens), 0)


_CLOSED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|/\*.*?\*/|--[^\n]*|[^'\"`]", re.DOTALL)


def _unclosed(source: str) -> int:
    """Where the quote, or the comment, stands that is never closed."""
    at = 0
    while at < len(source) and (found := _CLOSED.match(source, at)):
        if source.startswith("/*", at) and not found[0].startswith("/*"):
            return at
        at = found.end()
    return min(at, len(source) - 1)
