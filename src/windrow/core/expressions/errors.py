"""Errors of queries and of the texts that they are written in; `ExpressionError` is beside `parse`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from windrow.core.expressions.limits import shown


class QueryError(ValueError):
    """A query that cannot be answered: which one, which column, and why."""

    def __str__(self) -> str:
        return shown(super().__str__())


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
        return f"line {self.line}, column {self.column}: {shown(self.reason)}"


class TextError(SqlError):
    """An aggregate or a window as text that cannot be read: the reason first, and where, unless it is the beginning.

    text:  the whole text, where the reason does not show it
    """

    def __init__(self, reason: str, line: int, column: int, text: str = "") -> None:
        super().__init__(reason, line, column)
        self.args, self.text = (reason, line, column, text), text

    def __str__(self) -> str:
        if (self.line, self.column) == (1, 1):
            return shown(self.reason)
        of = f" of {shown(repr(self.text))}" if self.text else ""
        return f"{shown(self.reason)} (line {self.line}, column {self.column}{of})"


def hint(word: str, words: Iterable[str]) -> str:
    """What a word may have been meant to be: the same in another case, or else one that is close."""
    listed = list(words)
    near = [one for one in listed if one.lower() == word.lower()]
    near = near or difflib.get_close_matches(word[:100], listed, 1)  # which takes the square of their length
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(listed) or 'none'}"
