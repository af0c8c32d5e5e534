"""Windowed Spark SQL as queries: `sql(text)` reads one or many statements.

    -- name: slow
    SELECT car, avg(speed) AS v FROM events WHERE moving
    GROUP BY car, window(ts, '1 hour', '5 minutes') HAVING count(*) > 10

is `Query("slow", sliding("1 hour", "5 minutes"), mean("speed").alias("v"), by="car", where="moving", time="ts",
having="count() > 10")`. A statement is parted into its clauses token by token, so that whatever is not read is refused
with its line and column; what is left are expressions (`expressions`) and calls of aggregates (`calls`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from sqlglot import TokenType

from windrow.aggregates import Aggregate
from windrow.calls import formula, is_aggregate
from windrow.expressions import Expression
from windrow.ordered import counting, frames, latest, punctuated
from windrow.query import Query, QueryError
from windrow.tokens import Piece, SqlError, Token, refusal, tokenize
from windrow.windows import Duration, Window, cumulating, duration, session, sliding, tumbling


def sql(text: str) -> list[Query]:
    """Read windowed Spark SQL as queries.

    text:  statements with `;` between them, such as
           "SELECT car, avg(speed) FROM events WHERE moving GROUP BY car, window(ts, '1 hour', '5 minutes')"

    A line `-- name: x` before a statement names it; otherwise it is q1, q2, … by its place. What cannot be read is
    refused with line and column (`SqlError`). See docs/sql.md.
    """
    if not isinstance(text, str):
        raise TypeError(f"expected SQL text, not {text!r}")
    queries: dict[str, Query] = {}
    lines: dict[str, int] = {}
    table: tuple[str, int] | None = None
    for place, (named, piece) in enumerate(_statements(tokenize(text)), 1):
        name, at = named or (f"q{place}", piece[0].start)
        line = refusal(text, at, "").line
        if name in queries:
            raise refusal(text, at, f"two statements are called {name!r}, the other on line {lines[name]}; rename one")
        clauses = _clauses(piece)
        read, alias = _table(clauses["FROM"])
        if table and table[0] != read.lower():
            reason = f"this reads {read!r}, and line {table[1]} {table[0]!r}: statements of one text read one table"
            clauses["FROM"].refuse(f"{reason}; make a text for each")
        table = table or (read.lower(), clauses["FROM"].line)
        clauses = {word: _unqualified(clause, {read.lower().split(".")[-1], alias}) for word, clause in clauses.items()}
        queries[name], lines[name] = _query(name, piece, clauses), line
    if not queries:
        raise refusal(text, 0, "there is no statement; write SELECT … FROM … GROUP BY window(…)")
    return list(queries.values())


# --- statements -----------------------------------------------------------------------------------------------------

_NAME = re.compile(r"^[ \t]*--[ \t]*name[ \t]*:[ \t]*(.*?)[ \t\r]*$", re.MULTILINE | re.IGNORECASE)


def _statements(whole: Piece) -> Iterator[tuple[tuple[str, int] | None, Piece]]:
    """The statements of a text, with the name that a line before them gives, and where that stands."""
    ends = [place for place, token in enumerate(whole.tokens) if token.kind == TokenType.SEMICOLON]
    begin, named = 0, None
    for first, last in zip([0, *(end + 1 for end in ends)], [*ends, len(whole)], strict=True):
        stop = whole[first].start if first < len(whole) else len(whole.source)
        named = _named(whole.source, begin, stop, named)
        if last > first:
            yield named, whole.part(first, last)
            named = None
        begin = whole[last].start + 1 if last < len(whole) else len(whole.source)
    if named:
        raise refusal(whole.source, named[1], f"no statement follows the name {named[0]!r}")


def _named(source: str, begin: int, end: int, before: tuple[str, int] | None) -> tuple[str, int] | None:
    """The name in the comments between two places."""
    between = re.sub(r"/\*.*?\*/", lambda it: re.sub(r"[^\n]", " ", it[0]), source[begin:end], flags=re.DOTALL)
    for found in _NAME.finditer(between):
        if begin and not found.start():
            continue  # behind the statement before, on its line
        at = begin + found.start() + found[0].index("--")
        if before:
            raise refusal(source, at, f"the statement is already called {before[0]!r}; leave one name out")
        if not found[1]:
            raise refusal(source, at, "the name is missing; write -- name: trips")
        before = found[1], at
    return before


# --- clauses --------------------------------------------------------------------------------------------------------

_ORDER = ("SELECT", "FROM", "WHERE", "GROUP BY", "HAVING")
_SORTED = "results are rows of many windows; sort them afterwards"
_APART = "write a statement for each, with ; between them: they still share one pass"
_REFUSED = {
    "ORDER BY": f"ORDER BY is not read: {_SORTED}",
    "SORT BY": f"SORT BY is not read: {_SORTED}",
    "CLUSTER BY": f"CLUSTER BY is not read: {_SORTED}",
    "DISTRIBUTE BY": f"DISTRIBUTE BY is not read: {_SORTED}",
    "LIMIT": "LIMIT is not read: take rows of the results, or write HAVING",
    "OFFSET": "OFFSET is not read: take rows of the results",
    "QUALIFY": "QUALIFY is not read: write HAVING",
    "UNION": f"UNION is not read: {_APART}",
    "INTERSECT": f"INTERSECT is not read: {_APART}",
    "EXCEPT": f"EXCEPT is not read: {_APART}",
    "MINUS": f"MINUS is not read: {_APART}",
}
_VIEW = "make the result a table or a view first, and select from that"
_JOINS = ("JOIN", "INNER", "CROSS", "LEFT", "RIGHT", "FULL", "SEMI", "ANTI", "NATURAL", "LATERAL", "LATERAL VIEW")


def _clauses(piece: Piece) -> dict[str, Piece]:
    """The clauses of a statement by their words, in their order."""
    if piece.word(0) == "WITH":
        piece.refuse(f"WITH is not read: {_VIEW}")
    if piece.word(0) != "SELECT":
        piece.refuse(f"a statement begins with SELECT, not with {piece[0].text}")
    for place, token in enumerate(piece.tokens):
        if token.kind == TokenType.L_PAREN:
            piece.closing(place)
    marks: list[tuple[int, str]] = []
    for place, depth in piece.depths():
        word = piece.word(place)
        if depth < 0:
            piece.refuse("this bracket closes nothing", place)
        if word == "SELECT" and place:
            piece.refuse(f"subqueries are not read: {_VIEW}" if depth else "a ; is missing before this SELECT", place)
        if depth or word not in {*_ORDER, *_REFUSED}:
            continue
        if word in _REFUSED:
            piece.refuse(_REFUSED[word], place)
        if marks and _ORDER.index(word) <= _ORDER.index(marks[-1][1]):
            piece.refuse(f"{word} does not belong behind {marks[-1][1]}", place)
        marks.append((place, word))
    found = {}
    for (place, word), (end, _) in zip(marks, [*marks[1:], (len(piece), "")], strict=True):
        found[word] = piece.part(place + 1, end)
        if not found[word].tokens:
            piece.refuse(f"nothing follows {word}", place)
    if "FROM" not in found:
        piece.refuse("FROM is missing; name the table of the events")
    if "GROUP BY" not in found:
        piece.refuse("GROUP BY is missing; add GROUP BY window(ts, '10 minutes') or another window")
    if found["SELECT"].word(0) == "DISTINCT":
        found["SELECT"].refuse("SELECT DISTINCT is not read: rows already differ by key and window; leave it out")
    return found


def _table(clause: Piece) -> tuple[str, str]:
    """The table's name, and its alias or the name again, in small letters."""
    for place, depth in clause.depths():
        if clause.word(place) in _JOINS:
            clause.refuse(f"{clause.word(place)} is not read: {_VIEW}", place)
        if not depth and clause[place].kind == TokenType.COMMA:
            clause.refuse(f"several tables are not read: {_VIEW}", place)
    if not clause[0].is_name:
        clause.refuse(f"FROM takes the name of a table, not {clause[0].text}: {_VIEW}")
    end = 1
    while clause.word(end) == "." and end + 1 < len(clause) and clause[end + 1].is_name:
        end += 2
    name = ".".join(token.name for token in clause.tokens[:end:2])
    rest = clause.part(end + (clause.word(end) == "AS"))
    named = bool(rest.tokens) and rest[0].kind in (TokenType.VAR, TokenType.IDENTIFIER)
    if len(rest) > named:
        rest.refuse(f"FROM takes the name of a table and an alias; {rest.part(named).text} is not read", int(named))
    return name, (rest[0].name if rest.tokens else clause[end - 1].name).lower()


def _unqualified(clause: Piece, tables: set[str]) -> Piece:
    """The clause without the table's name before columns: `e.speed` is speed."""
    tokens: list[Token] = []
    place = 0
    while place < len(clause):
        token = clause[place]
        if clause.word(place + 1) == "." and token.name.lower() in tables and place + 2 < len(clause):
            if not clause[place + 2].is_name:
                clause.refuse(f"{token.text}.{clause[place + 2].text} is not read: name keys and aggregates", place)
            token, place = replace(clause[place + 2], spaced=token.spaced, start=token.start), place + 2
        tokens.append(token)
        place += 1
    return clause.put(tuple(tokens))


# --- a statement ----------------------------------------------------------------------------------------------------


class Grouping(NamedTuple):
    """What GROUP BY says: keys, and a window by its name, on a column for its time."""

    keys: tuple[str, ...]
    name: str
    window: Window
    time: str | None


def _query(name: str, piece: Piece, clauses: Mapping[str, Piece]) -> Query:
    for word, clause in clauses.items():
        if word != "FROM":
            _check_dots(clause)
    grouping = _grouping(clauses["GROUP BY"])
    columns: dict[str, tuple[Aggregate, Piece]] = {}
    for item in clauses["SELECT"].split():
        shown, alias = _alias(item)
        if not _is_there(shown, alias, grouping):
            column = alias.name if alias else shown.text
            if column in columns:
                item.refuse(f"two columns are called {column!r}; give one another alias")
            columns[column] = formula(shown, "a column").alias(column), shown
    if not columns:
        clauses["SELECT"].refuse("no aggregate is selected; add one, such as count(*)")
    where = clauses["WHERE"].expression("the condition") if "WHERE" in clauses else None
    having = _having(clauses["HAVING"], columns) if "HAVING" in clauses else None
    asked = [one for one, _ in columns.values()]
    try:
        return Query(name, grouping.window, asked, grouping.keys, where, grouping.time, having=having)
    except QueryError as error:
        piece.refuse(str(error))


def _check_dots(clause: Piece) -> None:
    """Names with a dot are the bounds of the window; others would be tables that are not there, or parts of structs."""
    for place, token in enumerate(clause.tokens):
        if token.kind == TokenType.DOT and clause.word(place - 1) not in (*map(str.upper, WINDOWS), ")"):
            before = clause[place - 1]
            reason = f"{before.text}.…: there is no table {before.name!r} here, and fields of structs are not read"
            clause.refuse(f"{reason}; make the field a column of the events", place - 1)


def _having(clause: Piece, columns: Mapping[str, tuple[Aggregate, Piece]]) -> Aggregate:
    """The predicate, with what aliases stand for."""
    tokens: list[Token] = []
    depth, inside = 0, 0  # a name within an aggregate, or in its FILTER, is a column of the events
    for place, token in enumerate(clause.tokens):
        if token.name in columns and token.is_name and not clause.is_call(place) and not inside:
            made, shown = columns[token.name]
            meant = [replace(shown[0], spaced=token.spaced), *shown.tokens[1:]]
            if made.parts:
                opening, closing = (TokenType.L_PAREN, "(", "("), (TokenType.R_PAREN, ")", ")")
                meant = [Token(*opening, 0, token.spaced), *meant, Token(*closing, 0, False)]
            tokens += [replace(one, start=token.start) for one in meant]
            continue
        tokens.append(token)
        if token.kind == TokenType.L_PAREN:
            depth += 1
            over_events = place and (is_aggregate(clause, place - 1) or clause.word(place - 1) in _BEHIND_CALLS)
            if over_events and not inside:
                inside = depth
        elif token.kind == TokenType.R_PAREN:
            inside = 0 if inside == depth else inside
            depth -= 1
    made = formula(clause.put(tuple(tokens)), "HAVING")
    if made.parts:
        return made
    return Aggregate("formula", (_ONE,), (), (made,))


_ONE = tokenize("p0").expression()
_BEHIND_CALLS = ("FILTER", "GROUP", "WITHIN GROUP")


def _alias(item: Piece) -> tuple[Piece, Token | None]:
    """An item without its alias, and the alias."""
    last = len(item) - 1
    if not item.tokens:
        item.refuse("a column is missing here")
    if item.word(last - 1) == "AS" and last > 1 and not dict(item.depths())[last]:
        if not item[last].is_name:
            item.refuse(f"{item[last].text} is not a name for a column", last)
        return item.part(0, last - 1), item[last]
    named = item[last].kind in (TokenType.VAR, TokenType.IDENTIFIER) and item.word(last) != "NULLS"
    if last and named and item[last - 1].kind in _BEFORE_ALIAS:
        return item.part(0, last), item[last]
    return item, None


_BEFORE_ALIAS = {*(TokenType.R_PAREN, TokenType.VAR, TokenType.IDENTIFIER, TokenType.NUMBER, TokenType.STRING)}
_BEFORE_ALIAS |= {TokenType.END, TokenType.WINDOW}
_BOUNDS = {"START": "window_start", "END": "window_end"}


def _is_there(shown: Piece, alias: Token | None, grouping: Grouping) -> bool:
    """Whether an item is a key or the window, which every result has under its own name."""
    if shown.word(0) == "*":
        shown.refuse("* is not read: name keys and aggregates")
    own = ""
    if len(shown) == 1 and shown[0].is_name:
        own = shown[0].name
        if own.lower() in ("window_start", "window_end") or own.lower() in ("window", grouping.name):
            own = own.lower()
        elif own not in grouping.keys:
            near = [key for key in grouping.keys if key.lower() == own.lower()]
            hint = f"did you mean {near[0]}?" if near else f"add it to GROUP BY, or write first({own}) or the like"
            shown.refuse(f"{own} is neither a key nor inside an aggregate; {hint}")
    elif shown.is_call(0) and shown[0].name.lower() == grouping.name:
        end = shown.closing(1)
        if _window(shown.part(0, end + 1)) != (grouping.window, grouping.time):
            shown.refuse(f"this is not the window of GROUP BY; write {grouping.name}")
        own = _bound(shown, end + 1) or grouping.name
    elif shown[0].name.lower() in ("window", grouping.name) and shown.word(1) == ".":
        own = _bound(shown, 1) or ""
    if own and alias and alias.name != own:
        reason = "a key keeps the name that it has in the events" if own in grouping.keys else "that is its name"
        shown.refuse(f"{shown.text} is called {own} in the results, not {alias.name}: {reason}; leave the alias out")
    return bool(own)


def _bound(shown: Piece, place: int) -> str | None:
    """The column of `.start` or `.end` at a place."""
    if place == len(shown):
        return None
    if shown.word(place) != "." or shown.word(place + 1) not in _BOUNDS or place + 2 != len(shown):
        shown.refuse("of a window there are start and end", place)
    return _BOUNDS[shown.word(place + 1)]


# --- windows --------------------------------------------------------------------------------------------------------


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


def _grouping(clause: Piece) -> Grouping:
    keys: list[str] = []
    found: tuple[str, Window, str | None] | None = None
    for item in clause.split():
        if not item.tokens:
            item.refuse("a key is missing here")
        word = item.word(0)
        if word in ("GROUPING SETS", "GROUPING", "CUBE", "ROLLUP") and len(item) > 1:
            item.refuse(f"{word} is not read: write a statement for each set of keys, they share slices")
        if word == "ALL" and len(clause) == 1:
            item.refuse("GROUP BY ALL is not read: name the keys and the window")
        for place in range(len(item)):
            if item.word(place) in ("WITH CUBE", "WITH ROLLUP", "WITH", "GROUPING SETS") and place:
                item.refuse(f"{item.word(place)} is not read: write a statement for each set of keys", place)
        if item.is_call(0) and item[0].name.lower() in WINDOWS and item.closing(1) == len(item) - 1:
            if found:
                item.refuse("a statement has one window; write another statement, they share one pass")
            found = (item[0].name.lower(), *_window(item))
        elif len(item) == 1 and item[0].is_name:
            keys.append(item[0].name)
        else:
            item.refuse(f"GROUP BY takes columns and a window; make {item.text} a column of the events first")
    if found is None:
        clause.refuse(
            "GROUP BY has no window; add window(ts, '10 minutes'), session_window(ts, '5 minutes') or another"
        )
    twice = next((at for at, key in enumerate(keys) if key in keys[:at]), None)
    if twice is not None:
        place = [at for at, token in enumerate(clause.tokens) if token.name == keys[twice]][1]
        clause.refuse(f"{keys[twice]} is a key twice; leave one out", place)
    return Grouping(tuple(keys), *found)


def _window(item: Piece) -> tuple[Window, str | None]:
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
    piece.refuse(f"{name}: {text} is not a whole number")


def _quoted(piece: Piece) -> Expression:
    """A predicate that is written as a string."""
    try:
        return tokenize(piece[0].name).expression("a predicate")
    except SqlError as error:
        piece.refuse(error.reason)
