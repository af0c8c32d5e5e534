"""Regular expressions with one meaning in Java and in Rust, which Spark and Polars use.

    "^car-\\d+$"   ──▶   "\\Acar\\-[0-9]+\\z"

What the two read alike is written in signs that they read alike; all else, such as looking ahead, is refused. Classes
are those of ASCII, as in Java; `.` is everything but the ends of lines, and `$` is the end of the text alone.
"""

from __future__ import annotations

import re

from windrow.core.expressions.limits import beyond
from windrow.core.expressions.terms import refuse

_LENGTH = 1000
_SETS = {"d": "0-9", "w": "0-9A-Z_a-z", "s": r" \t\n\x0B\f\r"}
_SIGNS = {".": r"[^\n\r\x{85}\x{2028}\x{2029}]", "^": r"\A", "$": r"\z", "(": "(?:", "(?:": "(?:", ")": ")", "|": "|"}
_CHARACTER = r"\\[ntrf]|\\[!-/:-@\[-`{-~]|[^\\\[\]]"
_ITEM = re.compile(rf"\\(?P<set>[dws])|(?P<first>{_CHARACTER})(?:-(?P<last>{_CHARACTER}))?", re.DOTALL)
_TOKEN = re.compile(
    r"(?P<sign>\(\?:|[.^$|)]|\((?!\?))"
    r"|(?P<times>(?:[*+?]|\{\d{1,3}(?:,\d{0,3})?\})\??)"
    rf"|(?P<set>\\[dwsDWS])|\[(?P<not>\^?)(?P<class>(?:\\[dws]|{_CHARACTER})+)\]|(?P<one>(?![{{}}()])(?:{_CHARACTER}))",
    re.DOTALL,
)


def regular_expression(text: str) -> str:
    """The same regular expression in signs that mean the same everywhere."""
    if len(text) > _LENGTH:
        refuse(f"RLIKE: the pattern has {beyond('characters', len(text), _LENGTH)}")
    written, at, can_repeat = [], 0, False
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or (token["times"] and not can_repeat):
            refuse(f"RLIKE: {text[at : at + 5]!r} in {text!r} is not read the same everywhere; {_READ}")
        written.append(_written(token))
        at, can_repeat = token.end(), token[0] == ")" or not (token["times"] or (token["sign"] or ".") != ".")
    return "".join(written)


_READ = "there are . [a-z] \\d \\w \\s ^ $ ( | ) * + ? {2,3}, and \\ before other signs"


def _written(token: re.Match[str]) -> str:
    if token["sign"]:
        return _SIGNS[token["sign"]]
    if token["times"]:
        return token["times"]
    if token["set"]:
        name = token["set"][1]
        return f"[{'^' if name.isupper() else ''}{_SETS[name.lower()]}]"
    if token["one"]:
        return _plain(token["one"])
    if "&&" in token["class"]:  # what both have, in Java
        refuse(f"RLIKE: && in {token[0]!r} is not read the same everywhere; {_READ}")
    return f"[{token['not']}{''.join(map(_item, _ITEM.finditer(token['class'])))}]"


def _item(item: re.Match[str]) -> str:
    """A class of characters, a range or one character, within brackets."""
    if item["set"]:
        return _SETS[item["set"]]
    return "-".join(map(_plain, filter(None, (item["first"], item["last"]))))


def _plain(character: str) -> str:
    """A character as itself."""
    if character in ("\\n", "\\t", "\\r", "\\f"):
        return character
    return re.sub(r"([\\.+*?()|\[\]{}^$&~#-])", r"\\\1", character[-1])
