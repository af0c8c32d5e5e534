"""GROUP BY of a statement: keys, and the call of a window.

    GROUP BY car, window(ts, '1 hour', '5 minutes')   ──▶   keys ("car",), sliding("1 hour", "5 minutes"), time "ts"

Items may also be numbers of columns of SELECT, the alias that a column or the window has there, or ALL, as in Spark.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from sqlglot import TokenType

from windrow.core.expressions.errors import SqlError
from windrow.core.expressions.limits import whole_number
from windrow.core.expressions.tokens import Phrase, Token, tokenize
from windrow.core.query.sql.calls import READER
from windrow.core.windows.fixed import Duration, Window, cumulating, duration, session, sliding, tumbling
from windrow.core.windows.ordered import NODE, counting, frames, latest, punctuated, scope_of

Item = tuple[Phrase, Token | None]  # of SELECT: what is selected, and its alias


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


def grouping(clause: Phrase, selected: Sequence[Item]) -> Grouping:
    """What GROUP BY says, of a statement that selects this."""
    keys: list[str] = []
    call: tuple[str, Window, str | None] | None = None
    for item in _everything(clause, selected):
        _refuse_sets(item)
        if is_window(item):
            if call:
                item.refuse("a statement has one window; write another statement, they share one pass")
            call = (item[0].name.lower(), *window(item))
        elif not _is_column(item):
            item.refuse(f"GROUP BY takes columns and a window; {_instead(item)}")
        elif item[0].name in keys:
            item.refuse(f"{item[0].name} is a key twice; leave one out")
        else:
            keys.append(item[0].name)
    if call is None:
        clause.refuse(
            "GROUP BY has no window; add window(ts, '10 minutes'), session_window(ts, '5 minutes') or another"
        )
    if scope_of(call[1]) == "node" and NODE not in keys:
        keys.append(NODE)
    aliases = [alias.name.lower() for shown, alias in selected if alias and is_window(shown)]
    return Grouping(tuple(keys), *call, frozenset(("window", call[0], *aliases)))


def _refuse_sets(item: Phrase) -> None:
    """Refuse several sets of keys."""
    word = item.word(0)
    if word in ("GROUPING SETS", "GROUPING", "CUBE", "ROLLUP") and len(item) > 1:
        item.refuse(f"{word} is not read: write a statement for each set of keys, they share slices")
    for index in range(1, len(item)):
        if item.word(index) in ("WITH CUBE", "WITH ROLLUP", "WITH", "GROUPING SETS"):
            item.refuse(f"{item.word(index)} is not read: write a statement for each set of keys", index)


def is_window(item: Phrase) -> bool:
    """Whether it is the call of a window, and nothing else."""
    return item.is_call(0) and item[0].name.lower() in WINDOWS and item.closing(1) == len(item) - 1


def _everything(clause: Phrase, selected: Sequence[Item]) -> Iterator[Phrase]:
    """The items of GROUP BY, with what ALL, a number or the alias of a window stand for in SELECT."""
    plain = [shown for shown, _ in selected if not any(map(partial(READER.is_aggregate, shown), range(len(shown))))]
    if clause.word(0) == "ALL" and len(clause) == 1:
        if not any(map(is_window, plain)):
            clause.refuse("GROUP BY ALL takes the window from SELECT; select window(ts, '10 minutes') or another")
        yield from plain
        return
    items = clause.split()
    written = {item.text for item in items}  # what is grouped by itself has its alias besides: that is another column
    for item in items:
        if not item.tokens:
            item.refuse("a key is missing here")
        named = [shown for shown, alias in selected if alias and len(item) == 1 and alias.name == item[0].name]
        named = [shown for shown in named if is_window(shown) or (_is_column(shown) and shown.text not in written)]
        if item.text.isdecimal():
            number = int(item.text) if len(item.text) < 9 else 0
            if not 1 <= number <= len(selected):
                item.refuse(f"SELECT has {len(selected)} columns, and so there is no column {item.text}")
            shown = selected[number - 1][0]
            if shown not in plain:
                item.refuse(f"column {number} is {shown.text}, an aggregate; GROUP BY takes keys and a window")
            yield shown
        else:
            yield named[0] if named else item


def _is_column(item: Phrase) -> bool:
    return len(item) == 1 and item[0].is_name


def _instead(item: Phrase) -> str:
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


def window(item: Phrase) -> tuple[Window, str | None]:
    """The window of a call, and the column of its time."""
    call, _ = item.call(0)
    name = call.name
    make = WINDOWS[name]
    signature = inspect.signature(make)
    positional, named = call.parted((*signature.parameters, "time"), "=>")
    timed = named.pop("time", None)
    may_be_time = bool(positional and positional[0].tokens and positional[0][0].is_name)
    if timed is None and name in _TIMED and positional and (name != "cumulate" or may_be_time):
        timed = positional.pop(0)
    if timed is not None and not (len(timed) == 1 and timed[0].is_name):
        timed.refuse(f"{name}: the time is a column, not {timed.text}; make it a column of the events first")
    if timed is None and name in _TIMED and name != "cumulate":
        call.refuse(f"the time column is missing; write {name}(ts, …)")
    try:
        arguments = signature.bind(*positional, **named).arguments
        values = {
            key: _value(argument, str(signature.parameters[key].annotation), name)
            for key, argument in arguments.items()
        }
        return make(**values), timed[0].name if timed else None
    except SqlError:
        raise
    except (TypeError, ValueError) as error:
        call.refuse(re.sub(r"^[a-z]+: ", "", str(error)))


def _value(argument: Phrase, kind: str, name: str) -> Any:
    """An argument of a window: a length, a whole number, or a predicate."""
    if not argument.tokens:
        argument.refuse(f"{name}: an argument is missing here")
    first, text = argument[0], argument.text
    is_string = len(argument) == 1 and first.kind == TokenType.STRING
    if kind == "Scope":
        return first.name.lower() if len(argument) == 1 else text
    if kind.startswith("str"):
        return _quoted(argument) if is_string else argument.expression("a predicate").text
    if re.fullmatch(r"[+-]?\s*\d+", text):
        return whole_number(text.replace(" ", ""))
    if kind.startswith("Duration"):
        if is_string or first.word == "INTERVAL":
            length = re.sub(r"^\s*INTERVAL\b", "", re.sub(r"['\"]", "", text), flags=re.IGNORECASE).strip()
            try:
                duration(length)
            except ValueError as error:
                argument.refuse(f"{name}: {error}")
            return length
        argument.refuse(f"{name}: {text} is not a length; write '10 minutes', or a whole number where time is a number")
    hint = f"; write the time as time => {text}" if len(argument) == 1 and first.is_name else ""
    argument.refuse(f"{name}: {text} is not a whole number{hint}")


def _quoted(argument: Phrase) -> str:
    """A predicate that is written as a string."""
    try:
        return tokenize(argument[0].name).expression("a predicate").text
    except SqlError as error:
        argument.refuse(error.reason)
