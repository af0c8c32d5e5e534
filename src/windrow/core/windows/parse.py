"""Windows as text: `sliding('1 hour', '5 minutes')`, as programs write them, as files do, and as `str` shows them.

A known name, and between its brackets literals or plain words, of which none is evaluated: `tumbling(1 hour)` and
`frames(speed > 0)` need no quotes.
"""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Callable
from itertools import chain, repeat
from typing import Any

from windrow.core.expressions.border import border
from windrow.core.expressions.errors import SqlError, TextError, hint
from windrow.core.expressions.tokens import Phrase, phrase_of
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


@border
def window(text: str) -> Window:
    """Read a window as it is written.

    text:  such as `tumbling('1 minute')`, `counting(100, step=10)`, `session(10 minutes)`
    """
    try:
        return _window(phrase_of(text))
    except SqlError as error:
        raise TextError(f"{text!r} is not a window: {error.reason}", error.line, error.column) from None
    except (TypeError, ValueError) as error:
        raise TextError(f"{text!r} is not a window: {error}", 1, 1) from error


def _window(phrase: Phrase) -> Window:
    call, behind = phrase.call(0) if phrase.is_call(0) else (None, 0)
    if call is None or behind < len(phrase):
        phrase.refuse("write it like tumbling('1 minute')", behind)
    name = phrase[0].name
    make = _maker(name)
    parameters = inspect.signature(make).parameters
    positional, named = call.parted({*parameters, "scope"}, "=")
    if "scope" in named and "scope" not in parameters:
        raise ValueError(f"{name} has no scope: only counting, punctuated and frames have one")
    # of the user's own windows we don't know what text means
    predicates = {key for key in parameters if name in MAKERS and str(parameters[key].annotation).startswith("str")}
    keys = chain(parameters, repeat(""))
    values = [_value(argument, key in predicates) for key, argument in zip(keys, positional, strict=False)]
    return make(*values, **{key: _value(argument, key in predicates) for key, argument in named.items()})


def _maker(name: str) -> Callable[..., Window]:
    if name in MAKERS:
        return MAKERS[name]
    if name in WINDOWS and not WINDOWS[name].__module__.startswith(f"{__package__}."):  # one of the user's own
        return WINDOWS[name]
    raise ValueError(f"there is no {name!r}; {hint(name, MAKERS)}")


def _value(argument: Phrase, is_predicate: bool) -> Any:
    """A literal as Python writes it, a predicate, or the words themselves."""
    try:
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):  # of `1or 2`
            return ast.literal_eval(argument.text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return argument.expression("a predicate").text if is_predicate else argument.text
