"""Windows as text: `sliding('1 hour', '5 minutes')`, as programs write them, as files do, and as `str` shows them.

A known name, and between its brackets literals or plain words, of which none is evaluated: `tumbling(1 hour)` and
`frames(speed > 0)` need no quotes. Aggregates as text are in `formulas`.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import re
from collections.abc import Callable
from typing import Any

from windrow.core.aggregates.formula import arguments_of, closing
from windrow.core.windows.fixed import WINDOWS, Window, cumulating, session, sliding, tumbling
from windrow.core.windows.ordered import counting, frames, latest, punctuated

MAKERS: dict[str, Callable[..., Window]] = {
    "tumbling": tumbling,
    "sliding": sliding,
    "cumulating": cumulating,
    "session": session,
    "counting": counting,
    "punctuated": punctuated,
    "frames": frames,
    "latest": latest,
}


def window(text: str) -> Window:
    """Read a window as it is written.

    text:  such as `tumbling('1 minute')`, `counting(100, step=10)`, `session(10 minutes)`
    """
    found = re.match(r"\s*(\w+)\s*\(", text)
    try:
        if not found or closing(text, found.end()) != len(text.rstrip()) - 1:
            raise ValueError("write it like tumbling('1 minute')")
        make = _maker(found[1])
        names = list(inspect.signature(make).parameters)
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for argument in arguments_of(text[found.end() : text.rindex(")")]):
            keyword = re.match(r"(\w+)\s*=\s*(?!=)(.*)", argument, re.DOTALL)
            if keyword and keyword[1] in names:
                named[keyword[1]] = _value(keyword[2])
            elif keyword and keyword[1] == "scope":
                raise ValueError(f"{found[1]} has no scope: only counting, punctuated and frames have one")
            else:
                positional.append(_value(argument))
        return make(*positional, **named)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{text!r} is not a window: {error}") from error


def _maker(name: str) -> Callable[..., Window]:
    if name in MAKERS:
        return MAKERS[name]
    if name in WINDOWS and not WINDOWS[name].__module__.startswith(f"{__package__}."):  # one of the user's own
        return WINDOWS[name]
    near = difflib.get_close_matches(name, MAKERS, 1)
    raise ValueError(
        f"there is no {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"there are {', '.join(MAKERS)}")
    )


def _value(text: str) -> Any:
    """A literal as Python writes it, or the words themselves."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
