"""How much a text may be: all limits of texts, in one place, and the words in which they are refused.

They lie well below what the parts behind them survive. Beyond 50 brackets around one another the SQL reader runs out
of Python's stack; Polars and Spark's SQL reader take some hundred levels, and Polars ends the process where a rule
writes its operands down several times and does so at every level (`a % b % c % …`, `greatest(x, greatest(x, …))`).
"""

from __future__ import annotations

import re
from collections.abc import Collection

from sqlglot import TokenType

CHARACTERS = 2_000_000  # of a text: 10,000 queries of usual length
QUERIES = 10_000  # of a text, and of a tree
COLUMNS = 5_000  # that one query asks for
LENGTH = 200_000  # characters of an expression, an aggregate or a window
KEPT = 2_000  # characters of one that is kept once it has been read
TOKENS = 20_000  # of an expression, an aggregate or a window; of a list of literals, half as many
DEPTH = 40  # brackets and CASEs around one another; levels of a YAML text
LEVELS = 200  # of an expression: `a + b + c` has two, however long AND, OR and || are
SIZE = 50_000  # terms of what an expression becomes, where one that is needed several times counts several times
VALUES = 500_000  # of a YAML text, where an alias counts like what it stands for
STEPS = 100_000  # of a cumulating window
DIGITS = 400  # of a number, and characters of a duration

OPENS = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE}
CLOSES = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END}


def too_long(text: str, most: int = CHARACTERS) -> str | None:
    """Why a text is too long to be read, or None."""
    return beyond("characters", len(text), most) if len(text) > most else None


def beyond(what: str, found: int, most: int) -> str:
    """The refusal of so many."""
    return f"{found:,} {what}, and the limit is {most:,}"


def too_deep(kinds: Collection[TokenType]) -> tuple[int, int] | None:
    """The index of the first token that lies too deep, and how deep it goes; None if it goes no deeper than DEPTH."""
    depth = deepest = 0
    first: int | None = None
    for index, kind in enumerate(kinds):
        if kind in OPENS:
            depth += 1
            deepest = max(deepest, depth)
            if depth > DEPTH and first is None:
                first = index
        elif kind in CLOSES and depth:
            depth -= 1
    return None if first is None else (first, deepest)


def whole_number(text: str) -> int:
    """A whole number as it is written, of no more digits than a number may have."""
    if len(text) > DIGITS:
        raise ValueError(f"a number has {beyond('digits', len(text), DIGITS)}")
    return int(text)


_LONE = re.compile("[\ud800-\udfff]")


def not_text(text: str) -> int | None:
    """Where a text has half of a character (a lone surrogate), which nothing can write down; None if nowhere."""
    lone = None if text.isascii() else _LONE.search(text)
    return lone.start() if lone else None


LONGEST = 1_000  # characters of an error that are shown


def shown(text: str) -> str:
    """The words of an error on one line that hides nothing: unprintable characters escaped, a long middle left out."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}"
    return text if text.isprintable() else "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(character: str) -> str:
    return " " if character.isspace() and character in "\n\r\t" else ascii(character)[1:-1]
