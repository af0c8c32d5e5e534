"""Tokens of SQL text that know where they stand, so that whatever is refused is refused with line and column.

    tokenize("SELECT avg(x)\\nFROM events")  ──▶  a Phrase: SELECT · avg · ( · x · ) · FROM · events

A `Phrase` is tokens that belong together, a `Call` a phrase such as `f(a, b => c)`. Aggregates and windows as text, SQL
statements and GROUP BY are all read from them: readers part a phrase at words and commas, take tokens out and put
others in, and in the end its text is read as an expression. Tokens are those of sqlglot's Spark dialect; each keeps the
offset in the whole text at which it was written.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import ClassVar, NoReturn

from sqlglot import TokenType
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError

from windrow.core.expressions.errors import SqlError, TextError
from windrow.core.expressions.limits import (
    CHARACTERS,
    DEPTH,
    KEPT,
    LENGTH,
    TOKENS,
    beyond,
    not_text,
    too_deep,
    too_long,
)
from windrow.core.expressions.parse import Expression, ExpressionError, parse, unknown


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
class Phrase:
    """Tokens that belong together, of a text."""

    source: str
    tokens: tuple[Token, ...]
    at: int  # where it stands in the text, also if it is empty
    is_statement: bool  # whether the text is of statements, and not of one aggregate or window

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Token:
        return self.tokens[index]

    def part(self, first: int, last: int | None = None) -> Phrase:
        """The tokens from one index up to before another."""
        end = self.tokens[-1].start + len(self.tokens[-1].text) if self.tokens else self.at
        after = self.tokens[first].start if first < len(self.tokens) else end
        return Phrase(self.source, self.tokens[first:last], after, self.is_statement)

    def word(self, index: int) -> str:
        return self.tokens[index].word if 0 <= index < len(self.tokens) else ""

    @property
    def text(self) -> str:
        """As it is written, without comments, with one blank where there was space."""
        return "".join(self._laid_out())

    def _laid_out(self) -> Iterator[str]:
        for index, token in enumerate(self.tokens):
            yield (" " if token.spaced and index else "") + token.text

    def depths(self) -> Iterator[tuple[int, int]]:
        """Each index with the number of brackets around it; a bracket itself counts as outside."""
        depth = 0
        for index, token in enumerate(self.tokens):
            depth -= token.kind == TokenType.R_PAREN
            yield index, depth
            depth += token.kind == TokenType.L_PAREN

    def closing(self, opening: int) -> int:
        """The index of the bracket that closes the one at an index."""
        depth = 0
        for index in range(opening, len(self)):
            kind = self.tokens[index].kind
            depth += (kind == TokenType.L_PAREN) - (kind == TokenType.R_PAREN)
            if not depth:
                return index
        self.refuse("a bracket is not closed", opening)

    def check_brackets(self) -> None:
        """Refuse the first bracket that is not closed, or that closes nothing."""
        opened, extra = [], []
        for index, token in enumerate(self.tokens):
            if token.kind == TokenType.L_PAREN:
                opened.append(index)
            elif token.kind == TokenType.R_PAREN and opened:
                opened.pop()
            elif token.kind == TokenType.R_PAREN:
                extra.append(index)
        if opened:
            self.refuse("a bracket is not closed", opened[0])
        if extra:
            self.refuse("this bracket closes nothing", extra[0])
        if deep := too_deep([token.kind for token in self.tokens]):
            self.refuse(f"it is nested too deeply: {beyond('levels', deep[1], DEPTH)}", deep[0])

    def check_length(self) -> None:
        """Refuse more tokens than anything but a text of several statements may have."""
        if len(self) > TOKENS:
            self.refuse(beyond("words and signs", len(self), TOKENS), TOKENS)

    def split(self) -> list[Phrase]:
        """The phrases between commas that are not within brackets."""
        commas = [index for index, depth in self.depths() if not depth and self[index].kind == TokenType.COMMA]
        if not self.tokens:
            return []
        return [self.part(a + 1, b) for a, b in zip([-1, *commas], [*commas, len(self)], strict=True)]

    def is_call(self, index: int) -> bool:
        """Whether a name with a bracket behind it stands at an index."""
        opens = index + 1 < len(self) and self[index + 1].kind == TokenType.L_PAREN
        return opens and self[index].is_name and self.word(index) not in _NO_FUNCTIONS

    def call(self, index: int) -> tuple[Call, int]:
        """The call at an index, and the index behind it."""
        end = self.closing(index + 1) + 1
        return Call(self.part(index, end), self.part(index + 2, end - 1).split()), end

    def refuse(self, reason: str, index: int = 0) -> NoReturn:
        """Refuse what stands at an index."""
        at = self[index].start if index < len(self) else self.at
        raise refusal(self.source, at, reason, self.is_statement)

    def expression(self, what: str = "an expression", shown: str = "", also: Collection[str] = ()) -> Expression:
        """The phrase read as an expression over columns; what is refused is shown as it is written, or so.

        also:  names of aggregates, where they may be called: then the expression is over results
        """
        if not self.tokens:
            self.refuse(f"{what} is missing here")
        self.check_length()
        try:
            return parse(self.text)
        except ExpressionError as error:
            otherwise = "compute it from the results" if also else "make it a column of the events first"
            if error.unread is not None:
                ends = accumulate(map(len, self._laid_out()))
                index = next((number for number, end in enumerate(ends) if end >= error.unread), 0)
                is_stand_in = self[index].text.endswith(" ")  # for a call, of which nobody has written this text
                reason = re.sub(r" at .*$" if is_stand_in else r", column \d+$", "", error.reason)
            elif error.reason.endswith(" is not supported"):
                index, reason = 0, f"it is not supported here; {otherwise}"
            else:
                index, reason = self._culprit(error.reason, also, otherwise)
            shown = shown or self.text
            self.refuse(f"{shown if self.is_statement else f'expression {shown!r}'}: {reason}", index)

    def _culprit(self, reason: str, also: Collection[str], otherwise: str) -> tuple[int, str]:
        """The call that a refusal is about, or else the beginning, and the refusal with the name as it is written."""
        if re.match(r"there is no function|\w+ is an aggregate function", reason):
            for index in reversed(range(len(self))):  # the innermost comes last
                if not self.is_call(index):
                    continue
                try:
                    parse(self.part(index, self.closing(index + 1) + 1).text)
                except ExpressionError as error:
                    if error.reason == reason:
                        is_aggregate = self.word(index) == reason.split()[0]  # and its reason says so
                        return index, reason if is_aggregate else unknown(self[index].text, also, otherwise)
        return 0, reason


_NO_FUNCTIONS = {"AND", "OR", "NOT", "IN", "WHEN", "THEN", "ELSE", "CASE", "BETWEEN", "LIKE", "AS", "BY", "WHERE", "IS"}


@dataclass
class Call:
    """A call as it is written: all of it, and its arguments."""

    phrase: Phrase
    arguments: list[Phrase]

    @property
    def name(self) -> str:
        """What is called, in small letters."""
        return self.phrase[0].name.lower()

    def refuse(self, reason: str) -> NoReturn:
        self.phrase.refuse(f"{self.name}: {reason}")

    def parted(self, names: Collection[str], sign: str, first: int = 0) -> tuple[list[Phrase], dict[str, Phrase]]:
        """The arguments without a name, and those with one of these names.

        sign:   what stands behind a name: `=>` behind nothing else; `=` also in an equality, if the name is another
        first:  the first argument that may have a name
        """
        positional: list[Phrase] = []
        named: dict[str, Phrase] = {}
        for number, argument in enumerate(self.arguments):
            name = argument[0].text if number >= first and len(argument) > 1 and argument[1].text == sign else ""
            if name and sign == "=>" and name not in names:
                name = name.lower()
                if name not in names:
                    argument.refuse(f"{self.name} has no argument {name}; there are {', '.join(names)}")
            if name not in names:
                positional.append(argument)
            elif name in named:
                argument.refuse(f"{self.name}: {name} is given twice")
            else:
                named[name] = argument.part(2)
        return positional, named


# --- from a text ----------------------------------------------------------------------------------------------------


def refusal(source: str, at: int, reason: str, is_statement: bool = True) -> SqlError:
    """The error for an offset in a text."""
    line, column = line_of(source, at), at - source.rfind("\n", 0, at)
    return SqlError(reason, line, column) if is_statement else TextError(reason, line, column, source)


def line_of(source: str, at: int) -> int:
    return source.count("\n", 0, at) + 1


class _Tokenizer(Spark.Tokenizer):
    COMMANDS: ClassVar[set[TokenType]] = set()  # an aggregate may be called `show`


def phrase_of(text: str) -> Phrase:
    """The tokens of one aggregate, or one window."""
    return _kept_phrase(text) if len(text) <= KEPT else _phrase_of(text)


def _phrase_of(text: str) -> Phrase:
    phrase = tokenize(text, is_statement=False)
    phrase.check_length()
    phrase.check_brackets()
    return phrase


_kept_phrase = lru_cache(maxsize=4096)(_phrase_of)


def tokenize(source: str, is_statement: bool = True) -> Phrase:
    """All tokens of a text."""
    if reason := too_long(source, CHARACTERS if is_statement else LENGTH):
        raise refusal(source, 0, f"the text has {reason}", is_statement)
    if (at := not_text(source)) is not None:
        raise refusal(source, at, f"half of a character stands here, {source[at]!r}", is_statement)
    try:
        raw = _Tokenizer(dialect=Spark()).tokenize(source)
    except SqlglotError:
        opening = _unclosed(source)
        raise refusal(source, opening, f"what begins with {source[opening]} is never closed", is_statement) from None
    tokens: list[Token] = []
    end = 0
    for token in raw:
        if tokens and token.start == tokens[-1].start:
            continue  # `1.5D` is three tokens of sqlglot's, written as one
        text = source[token.start : token.end + 1]
        tokens.append(Token(token.token_type, text, token.text, token.start, token.start > end))
        end = token.end + 1
    return Phrase(source, tuple(tokens), 0, is_statement)


_CLOSED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|/\*.*?\*/|--[^\n]*|[^'\"`]", re.DOTALL)


def _unclosed(source: str) -> int:
    """Where the quote, or the comment, stands that is never closed."""
    at = 0
    while at < len(source) and (match := _CLOSED.match(source, at)):
        if source.startswith("/*", at) and not match[0].startswith("/*"):
            return at
        at = match.end()
    return min(at, len(source) - 1)
