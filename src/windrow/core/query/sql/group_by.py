"""GROUP BY of a statement: keys, and the call of a window.

    GROUP BY car, window(ts, '1 hour', '5 minutes')   ──▶   keys ("car",), sliding("1 hour", "5 minutes"), time "ts"

Items may also be numbers of columns of SELECT, the alias that the window has there, or ALL, as in Spark.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from sqlglot import TokenType

from windrow.core.expressions.parse import Expression
from windrow.core.query.sql.calls import is_aggregate
from windrow.core.query.sql.tokens import Piece, SqlError, Token, tokenize
from windrow.core.windows.fixed import Duration, Window, cumulating, duration, session, sliding, tumbling
from windrow.core.windows.ordered import NODE, counting, frames, latest, punctuated, scope_of

Item = tuple[Piece, Token | None]  # of SELECT: what is selected, and its alias


class Grouping(NamedTuple):
    """What GROUP BY says: keys, and a window by its name, on a column for its time."""

    keys: tuple[str, ...]
    name: str
    window: Window
    time: str | None
    called: frozenset[str]  # the names by which SELECT may speak of the window, in small letters


def _tumbling_or_sliding(length: Duration, slide: Duration | None = None, offset: Duration | None = None) -> Window:
    """Spark's own: without a slide, or with one of the same length, windows do not overlap."""
    return tumbling(length, offset) if slide is None or slide == length else sliding(length, slide, offset)


WINDOWS: dict[str, Callable[..., Window]] = {
    "window": _tumbling_or_sliding,
    "session_window": session,
    "cumulate": cumulating,
    "count_window": counting,
    "punctuated": punctuated,
    "frames": frames,
    "latest": latest,
}
_TIMED = ("window", "session_window", "cumulate")  # whose first argument is the time


def grouping(clause: Piece, selected: Sequence[Item]) -> Grouping:
    """What GROUP BY says, of a statement that selects this."""
    keys: list[tuple[str, Piece]] = []
    found: tuple[str, Window, str | None] | None = None
    for item in _everything(clause, selected):
        word = item.word(0)
        if word in ("GROUPING SETS", "GROUPING", "CUBE", "ROLLUP") and len(item) > 1:
            item.refuse(f"{word} is not read: write a statement for each set of keys, they share slices")
        for place in range(len(item)):
            if item.word(place) in ("WITH CUBE", "WITH ROLLUP", "WITH", "GROUPING SETS") and place:
                item.refuse(f"{item.word(place)} is not read: write a statement for each set of keys", place)
        if is_window(item):
            if found:
                item.refuse("a statement has one window; write another statement, they share one pass")
            found = (item[0].name.lower(), *window(item))
        elif len(item) == 1 and item[0].is_name:
            keys.append((item[0].name, item))
        else:
            item.refuse(f"GROUP BY takes columns and a window; {_instead(item)}")
    if found is None:
        clause.refuse(
            "GROUP BY has no window; add window(ts, '10 minutes'), session_window(ts, '5 minutes') or another"
        )
    names = [name for name, _ in keys]
    for at, (name, item) in enumerate(keys):
        if name in names[:at]:
            item.refuse(f"{name} is a key twice; leave one out")
    if scope_of(found[1]) == "node" and NODE not in names:
        names.append(NODE)
    aliases = [alias.name.lower() for shown, alias in selected if alias and is_window(shown)]
    return Grouping(tuple(names), *found, frozenset(("window", found[0], *aliases)))


def is_window(item: Piece) -> bool:
    """Whether it is the call of a window, and nothing else."""
    return item.is_call(0) and item[0].name.lower() in WINDOWS and item.closing(1) == len(item) - 1


def _everything(clause: Piece, selected: Sequence[Item]) -> Iterator[Piece]:
    """The items of GROUP BY, with what ALL, a number or the alias of a window stand for in SELECT."""
    plain = [shown for shown, _ in selected if not any(is_aggregate(shown, place) for place in range(len(shown)))]
    if clause.word(0) == "ALL" and len(clause) == 1:
        if not any(map(is_window, plain)):
            clause.refuse("GROUP BY ALL takes the window from SELECT; select window(ts, '10 minutes') or another")
        yield from plain
        return
    for item in clause.split():
        if not item.tokens:
            item.refuse("a key is missing here")
        called = [shown for shown, alias in selected if alias and alias.name == item.text and is_window(shown)]
        if item.text.isdigit():
            place = int(item.text)
            if not 1 <= place <= len(selected):
                item.refuse(f"SELECT has {len(selected)} columns, and so there is no column {place}")
            shown = selected[place - 1][0]
            if shown not in plain:
                item.refuse(f"column {place} is {shown.text}, an aggregate; GROUP BY takes keys and a window")
            yield shown
        else:
            yield called[0] if called else item


def _instead(item: Piece) -> str:
    """What to write for an expression; it may be meant as a window."""
    otherwise = f"make {item.text} a column of the events first"
    if not item.is_call(0):
        return otherwise
    name = item[0].name.lower()
    near = difflib.get_close_matches(name, WINDOWS, n=1)
    meant = ELSEWHERE.get(name) or (f"{near[0]}(…)" if near else "")
    return f"write {meant}, or {otherwise}" if meant else otherwise


ELSEWHERE = {  # what windows are called in other languages, and in Python
    **dict.fromkeys(("tumble", "tumbling", "date_trunc", "trunc"), "window(ts, '1 hour')"),
    **dict.fromkeys(("hop", "sliding"), "window(ts, '1 hour', '5 minutes')"),
    "session": "session_window(ts, '5 minutes')",
    "counting": "count_window(100)",
    "cumulating": "cumulate(ts, '1 day', '1 hour')",
}


def window(item: Piece) -> tuple[Window, str | None]:
    """The window of a call, and the column of its time."""
    name = item[0].name.lower()
    make = WINDOWS[name]
    signature = inspect.signature(make)
    positional: list[Piece] = []
    named: dict[str, Piece] = {}
    for argument in item.part(2, len(item) - 1).split():
        if len(argument) > 1 and argument[1].kind == TokenType.FARROW:
            key = argument[0].name.lower()
            if key not in signature.parameters and key != "time":
                argument.refuse(f"{name} has no argument {key}; there are {', '.join((*signature.parameters, 'time'))}")
            if key in named:
                argument.refuse(f"{name}: {key} is given twice")
            named[key] = argument.part(2)
        else:
            positional.append(argument)
    timed = named.pop("time", None)
    if timed is None and name in _TIMED and positional and (name != "cumulate" or positional[0][0].is_name):
        timed = positional.pop(0)
    if timed is not None and not (len(timed) == 1 and timed[0].is_name):
        timed.refuse(f"{name}: the time is a column, not {timed.text}; make it a column of the events first")
    if timed is None and name in _TIMED and name != "cumulate":
        item.refuse(f"{name}: the time column is missing; write {name}(ts, …)")
    try:
        given = signature.bind(*positional, **named).arguments
        values = {key: _value(piece, str(signature.parameters[key].annotation), name) for key, piece in given.items()}
        return make(**values), timed[0].name if timed else None
    except SqlError:
        raise
    except (TypeError, ValueError) as error:
        item.refuse(f"{name}: {re.sub(r'^[a-z]+: ', '', str(error))}")


def _value(piece: Piece, kind: str, name: str) -> Any:
    """An argument of a window: a length, a whole number, or a predicate."""
    if not piece.tokens:
        piece.refuse(f"{name}: an argument is missing here")
    first, text = piece[0], piece.text
    if kind == "Scope":
        return first.name.lower() if len(piece) == 1 else text
    if kind.startswith("str"):
        if len(piece) == 1 and first.kind == TokenType.STRING:
            return _quoted(piece).text
        return piece.expression("a predicate").text
    if re.fullmatch(r"[+-]?\s*\d+", text):
        return int(text.replace(" ", ""))
    if kind.startswith("Duration"):
        if piece.word(0) == "INTERVAL" or (len(piece) == 1 and first.kind == TokenType.STRING):
            length = re.sub(r"^\s*INTERVAL\b", "", re.sub(r"['\"]", "", text), flags=re.IGNORECASE).strip()
            try:
                duration(length)
            except ValueError as error:
                piece.refuse(f"{name}: {error}")
            return length
        piece.refuse(f"{name}: {text} is not a length; write '10 minutes', or a whole number where time is a number")
    hint = f"; write the time as time => {text}" if len(piece) == 1 and first.is_name else ""
    piece.refuse(f"{name}: {text} is not a whole number{hint}")


def _quoted(piece: Piece) -> Expression:
    """A predicate that is written as a string."""
    try:
        return tokenize(piece[0].name).expression("a predicate")
    except SqlError as error:
        piece.refuse(error.reason)
