"""What went wrong, in one sentence and an exit code.

0  fine    1  it failed    2  wrong usage, or a query or events that cannot be taken    130  interrupted
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable

import polars as pl

from windrow.core.arrays.dataframes import InputError
from windrow.core.expressions.border import VARIABLE
from windrow.core.expressions.errors import QueryError

FAILED, REFUSED, INTERRUPTED = 1, 2, 130
# how our own errors stand in what a worker of Spark raised, the last of which is the one that counts
_OURS = re.compile(
    r"(?:^\s*(?:pyspark\.errors\.\S+: )?|\[USER_RAISED_EXCEPTION\] )"
    r"windrow\.(?:\w+\.)*(?:InputError|QueryError|ExpressionError): (.+)$"
    r"|^\s*(?:builtins\.)?OverflowError: (.+)$",
    re.MULTILINE,
)
_NO_MODULE = re.compile(r"^.*which cannot import windrow: install windrow there.*$", re.MULTILINE)
_CAUSE = re.compile(r"^(?:Caused by: |: )(?:[\w$]+\.)*([\w$]+(?:Exception|Error)): (.+)", re.MULTILINE)
_CLASS = re.compile(r"\[[A-Z][A-Z0-9_.]+\] ")


class Refused(Exception):
    """Wrong usage: what, and what to do about it."""


class Failed(Exception):
    """Nothing is wrong with the command, and yet it cannot be done here."""


class Interrupted(Exception):
    """Ctrl-C, and what it means for the work that was done."""


def guarded(action: Callable[[], object], debug: bool, name: str = "windrow") -> int:
    """Run it, and return the exit code; what goes wrong stands on stderr, after a name."""
    if debug:
        os.environ[VARIABLE] = "full"
    try:
        action()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads the results has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # which typer makes an exit of
            return 0
        return error.code if isinstance(error.code, int) else FAILED
    except BaseException as error:
        code, text = reported(error)
        if debug and code not in (0, INTERRUPTED):
            traceback.print_exc()
        if text:
            print(f"{name}: {text}", file=sys.stderr)
        return code
    return 0


def _was_interrupted(error: BaseException) -> bool:
    """Whether it is Ctrl-C, or what came of it."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def reported(error: BaseException) -> tuple[int, str]:
    """The exit code and the sentence."""
    if isinstance(error, Interrupted):
        return INTERRUPTED, f"interrupted; {error}"
    if _was_interrupted(error):
        return INTERRUPTED, "interrupted"
    if type(error).__name__ == "Exit":  # typer's own
        return int(getattr(error, "exit_code", 0)), ""
    if hasattr(error, "format_message"):  # of the command line itself
        return REFUSED, _usage(error)
    if isinstance(error, Refused | QueryError | InputError | OverflowError):
        return REFUSED, str(error).replace("bad_events='drop'", "--bad-events drop")
    if isinstance(error, Failed):
        return FAILED, str(error)
    module = type(error).__module__
    if module.startswith(("pyspark.", "py4j.")):
        return spark(f"{error}\n{getattr(error, '_stackTrace', None) or ''}")
    if isinstance(error, ValueError | TypeError) and _from_windrow(error):
        return REFUSED, str(error)
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return FAILED, f"{where}{error.strerror}"
    if isinstance(error, ImportError) and (error.name or "").split(".")[0] in ("pyspark", "pandas", "google"):
        return FAILED, f"{error}: pip install 'windrow[spark]', or say --engine local"
    if isinstance(error, pl.exceptions.PolarsError):
        return FAILED, str(error).splitlines()[0]
    return FAILED, f"{type(error).__name__}: {error}; --debug shows where"


def _usage(error: BaseException) -> str:
    """Wrong usage in the words of typer, and where to find what is right; nothing where it has shown the help."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return ""
    message = error.format_message().rstrip(".").replace("Value error, ", "")  # type: ignore[attr-defined]
    if "unexpected extra argument" in message:
        message += "; a pattern must be quoted: --events 'data/*.csv'"
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "windrow"
    return f"{message[:1].lower()}{message[1:]}{' ' if message.endswith('?') else '; '}see {path} --help"


def _from_windrow(error: BaseException) -> bool:
    """Whether windrow itself raised it, to say what was wrong with what it was given."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and "windrow" in frames[-1].filename.replace("\\", "/").split("/")[-4:]


def spark(text: str) -> tuple[int, str]:
    """The exit code and the sentence for an error of Spark, without its trace: our own sentence in it, or Spark's."""
    if "BrokenPipeError" in text:  # whoever reads the results of a stream has seen enough
        return 0, ""
    if no_module := _NO_MODULE.search(text):
        return FAILED, no_module[0].strip().split(": ", 1)[-1]
    if ours := [match[1] or match[2] for match in _OURS.finditer(text)]:
        return REFUSED, ours[-1].split(" SQLSTATE")[0].strip().replace("bad_events='drop'", "--bad-events drop")
    causes = _CAUSE.findall(text)
    if causes:  # the last one is the first that happened
        kind, line = causes[-1]
        line = line if _CLASS.match(line) else f"{kind}: {line}"
    else:
        line = next((words for words in text.splitlines() if words.strip()), "it failed")
    line = _CLASS.sub("", line).split(" SQLSTATE")[0].strip().rstrip(".")
    where = re.search(r"while reading file (?:file://)?(\S+?)\.?\s", text)
    return FAILED, f"Spark: {f'file {where[1]!r}: ' if where and where[1] not in line else ''}{line}; --debug shows all"
