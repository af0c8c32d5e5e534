"""The border between users and the code: a refusal crosses it with its sentence, and without the way that it took.

    user's line ──▶ border ──▶ … ──▶ raise QueryError(…)
    user's line ◀── border: the same error, whose traceback begins here

So what a user sees is the user's own line and our sentence. Only what windrow itself has raised is cut: an error of a
library, or of an aggregate of the user's own, shows where it was. `WINDROW_TRACEBACK=full` cuts nothing.
"""

from __future__ import annotations

import dis
import os
from collections.abc import Callable
from functools import wraps
from inspect import isfunction
from pathlib import Path
from typing import Any, TypeVar

Public = TypeVar("Public", bound=Callable[..., Any])

VARIABLE = "WINDROW_TRACEBACK"
_PACKAGE = f"{Path(__file__).parents[2]}{os.sep}"
_RAISE = dis.opmap["RAISE_VARARGS"]


def border(public: Public) -> Public:
    """A public function, or a class with its public methods, whose refusals have short tracebacks."""
    if not isinstance(public, type):
        return _cut(public)
    for name, member in list(vars(public).items()):
        if name == "__init__" or not name.startswith("_"):
            if isfunction(member):
                setattr(public, name, _cut(member))
            elif isinstance(member, staticmethod):
                setattr(public, name, staticmethod(_cut(member.__func__)))
    return public


def _cut(function: Public) -> Public:
    @wraps(function)
    def at_border(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except Exception as error:
            if os.environ.get(VARIABLE) == "full" or not _is_refusal(error):
                raise
            refusal = error.with_traceback(None)
        raise refusal from None

    return at_border  # type: ignore[return-value]


def _is_refusal(error: Exception) -> bool:
    """Whether a `raise` of windrow's own has made it, which says what was wrong with what windrow was given."""
    at = error.__traceback__
    if at is None or isinstance(error, AssertionError | NotImplementedError):
        return False
    while at.tb_next is not None:
        at = at.tb_next
    code = at.tb_frame.f_code
    return code.co_filename.startswith(_PACKAGE) and code.co_code[at.tb_lasti] == _RAISE
