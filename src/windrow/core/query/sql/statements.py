"""Windowed Spark SQL as queries: `sql(text)` reads one or many statements.

    -- name: slow
    SELECT car, avg(speed) AS v FROM events WHERE moving
    GROUP BY car, window(ts, '1 hour', '5 minutes') HAVING count(*) > 10

is `Query("slow", sliding("1 hour", "5 minutes"), mean("speed").alias("v"), by="car", where="moving", time="ts",
having="count() > 10")`. A statement is parted into its clauses token by token, so that whatever is not read is refused
with its line and column; what is left are expressions (`expressions`), calls of aggregates (`calls`) and GROUP BY
(`group_by`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NoReturn

from sqlglot import TokenType

from windrow.core.aggregates.functions import Aggregate
from windrow.core.aggregates.reader import OVER, as_formula
from windrow.core.expressions.border import border
from windrow.core.expressions.errors import QueryError
from windrow.core.expressions.limits import QUERIES, TOKENS, beyond
from windrow.core.expressions.tokens import Phrase, Token, line_of, refusal, tokenize
from windrow.core.query.query import Query
from windrow.core.query.sql.calls import READER
from windrow.core.query.sql.group_by import Grouping, Item, grouping, window


@border
def sql(text: str) -> list[Query]:
    """Read windowed Spark SQL as queries.

    text:  statements with `;` between them, such as
           "SELECT car, avg(speed) FROM events WHERE moving GROUP BY car, window(ts, '1 hour', '5 minutes')"

    A line `-- name: x` before a statement names it; otherwise it is q1, q2, … by its place. What cannot be read is
    refused with line and column (`SqlError`). See docs/sql.md.
    """
    if not isinstance(text, str):
        raise TypeError(f"expected SQL text, not {text!r}")
    return statements(text)


def statements(text: str, first: int = 1) -> list[Query]:
    """The queries of a text; those without a name are numbered from `first` on."""
    queries: dict[str, Query] = {}
    places: dict[str, int] = {}
    table: tuple[str, int] | None = None
    for number, (named, statement) in enumerate(_statements(tokenize(text)), first):
        name, at = named or (f"q{number}", statement[0].start)
        if name in queries:
            line = line_of(text, places[name])
            raise refusal(text, at, f"two statements are called {name!r}, the other on line {line}; rename one")
        clauses = _clauses(statement)
        read, alias = _table(clauses["FROM"])
        if table and table[0] != read.lower():
            line = line_of(text, table[1])
            reason = f"this reads {read!r}, and line {line} {table[0]!r}: statements of one text read one table"
            clauses["FROM"].refuse(f"{reason}; make a text for each")
        table = table or (read.lower(), clauses["FROM"].at)
        clauses = {word: _unqualified(clause, {read.lower().split(".")[-1], alias}) for word, clause in clauses.items()}
        queries[name], places[name] = _query(name, statement, clauses), at
        if len(queries) > QUERIES:
            raise refusal(text, at, f"more than {QUERIES:,} statements, which is the limit of a text; make several")
    if not queries:
        raise refusal(text, 0, "there is no statement; write SELECT … FROM … GROUP BY window(…)")
    return list(queries.values())


# --- statements -----------------------------------------------------------------------------------------------------

_NAME = re.compile(r"^[ \t]*--[ \t]*name[ \t]*:[ \t]*(.*?)[ \t\r]*$", re.MULTILINE | re.IGNORECASE)


def _statements(whole: Phrase) -> Iterator[tuple[tuple[str, int] | None, Phrase]]:
    """The statements of a text, with the name that a line before them gives, and where that stands."""
    ends = [index for index, token in enumerate(whole.tokens) if token.kind == TokenType.SEMICOLON]
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
    for match in _NAME.finditer(between):
        if begin and not match.start():
            continue  # behind the statement before, on its line
        at = begin + match.start() + match[0].index("--")
        if before:
            raise refusal(source, at, f"the statement is already called {before[0]!r}; leave one name out")
        if not match[1]:
            raise refusal(source, at, "the name is missing; write -- name: trips")
        before = match[1], at
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


def _clauses(statement: Phrase) -> dict[str, Phrase]:
    """The clauses of a statement by their words, in their order."""
    if statement.word(0) == "WITH":
        statement.refuse(f"WITH is not read: {_VIEW}")
    if statement.word(0) != "SELECT":
        statement.refuse(f"a statement begins with SELECT, not with {statement[0].text}")
    statement.check_brackets()
    marks: list[tuple[int, str]] = []
    for index, depth in statement.depths():
        word = statement.word(index)
        if word == "SELECT" and index:
            statement.refuse(
                f"subqueries are not read: {_VIEW}" if depth else "a ; is missing before this SELECT", index
            )
        if depth or word not in {*_ORDER, *_REFUSED}:
            continue
        if word in _REFUSED:
            statement.refuse(_REFUSED[word], index)
        if marks and _ORDER.index(word) <= _ORDER.index(marks[-1][1]):
            statement.refuse(f"{word} does not belong behind {marks[-1][1]}", index)
        marks.append((index, word))
    clauses = {}
    for (index, word), (end, _) in zip(marks, [*marks[1:], (len(statement), "")], strict=True):
        clauses[word] = statement.part(index + 1, end)
        if not clauses[word].tokens:
            statement.refuse(f"nothing follows {word}", index)
    if "FROM" not in clauses:
        statement.refuse("FROM is missing; name the table of the events")
    if "GROUP BY" not in clauses:
        over = next((index for index in range(len(statement)) if statement.word(index) == "OVER"), None)
        if over is not None:
            statement.refuse(OVER, over)
        statement.refuse("GROUP BY is missing; add GROUP BY window(ts, '10 minutes') or another window")
    if clauses["SELECT"][0].kind == TokenType.HINT and len(clauses["SELECT"]) > 1:  # it changes how, not what
        clauses["SELECT"] = clauses["SELECT"].part(1)
    if clauses["SELECT"].word(0) == "DISTINCT":
        clauses["SELECT"].refuse("SELECT DISTINCT is not read: rows already differ by key and window; leave it out")
    return clauses


def _table(clause: Phrase) -> tuple[str, str]:
    """The table's name, and its alias or the name again, in small letters."""
    for index, depth in clause.depths():
        if clause.word(index) in _JOINS:
            clause.refuse(f"{clause.word(index)} is not read: {_VIEW}", index)
        if not depth and clause[index].kind == TokenType.COMMA:
            clause.refuse(f"several tables are not read: {_VIEW}", index)
    if not clause[0].is_name:
        clause.refuse(f"FROM takes the name of a table, not {clause[0].text}: {_VIEW}")
    end = 1
    while clause.word(end) == "." and end + 1 < len(clause) and clause[end + 1].is_name:
        end += 2
    name = ".".join(token.name for token in clause.tokens[:end:2])
    alias = clause.part(end + (clause.word(end) == "AS"))
    named = bool(alias.tokens) and alias[0].kind in (TokenType.VAR, TokenType.IDENTIFIER)
    if len(alias) > named:
        alias.refuse(f"FROM takes the name of a table and an alias; {alias.part(named).text} is not read", int(named))
    return name, (alias[0].name if alias.tokens else clause[end - 1].name).lower()


def _unqualified(clause: Phrase, tables: set[str]) -> Phrase:
    """The clause without the table's name before columns: `e.speed` is speed."""
    tokens: list[Token] = []
    index = 0
    while index < len(clause):
        token = clause[index]
        if clause.word(index + 1) == "." and token.name.lower() in tables and index + 2 < len(clause):
            if not clause[index + 2].is_name:
                clause.refuse(f"{token.text}.{clause[index + 2].text} is not read: name keys and aggregates", index)
            token, index = replace(clause[index + 2], spaced=token.spaced, start=token.start), index + 2
        tokens.append(token)
        index += 1
    return replace(clause, tokens=tuple(tokens))


# --- a statement ----------------------------------------------------------------------------------------------------


def _query(name: str, statement: Phrase, clauses: Mapping[str, Phrase]) -> Query:
    selected = [_alias(item) for item in clauses["SELECT"].split()]
    by = grouping(clauses["GROUP BY"], selected)
    for word, clause in clauses.items():
        if word != "FROM":
            _check_dots(clause, by)
    columns: dict[str, tuple[Aggregate, Phrase]] = {}
    names: dict[str, str] = {}  # of keys and bounds
    for shown, alias in selected:
        _check_commas(shown)
        own = _own_column(shown, by)
        column = alias.name if alias else own or shown.text
        if own is None and column in by.keys:
            shown.refuse(f"{column} is a key, and so cannot be the name of {shown.text}; give it another alias")
        if column in columns or (column in names and names[column] != own):
            shown.refuse(f"two columns are called {column!r}; give one another alias")
        if own:
            names[column] = own
        elif own is None:
            columns[column] = READER.read(shown, "a column").alias(column), shown
    if not columns:
        clauses["SELECT"].refuse("no aggregate is selected; add one, such as count(*)")
    where = clauses["WHERE"].expression("the condition") if "WHERE" in clauses else None
    having = _having(clauses["HAVING"], columns, names) if "HAVING" in clauses else None
    aggregates = [aggregate for aggregate, _ in columns.values()]
    others = {own for name, own in names.items() if name != own}  # of the rest there is nothing to say
    names = {name: own for name, own in names.items() if own in others}
    try:
        return Query(name, by.window, aggregates, by.keys, where, by.time, having=having, names=names)
    except QueryError as error:
        statement.refuse(str(error))


def _check_dots(clause: Phrase, by: Grouping) -> None:
    """Names with a dot are the bounds of the window; others would be tables that are not there, or parts of structs."""
    for index, token in enumerate(clause.tokens):
        if token.kind == TokenType.DOT and clause[index - 1].name.lower() not in by.called | {")"}:
            before = clause[index - 1]
            if clause.word(index + 1) in _BOUNDS and before.name not in by.keys:
                clause.refuse(f"{before.text}.{clause[index + 1].text} is not known; write {by.name}.start", index - 1)
            reason = f"{before.text}.…: there is no table {before.name!r} here, and fields of structs are not read"
            clause.refuse(f"{reason}; make the field a column of the events", index - 1)


def _having(clause: Phrase, columns: Mapping[str, tuple[Aggregate, Phrase]], names: Mapping[str, str]) -> Aggregate:
    """The predicate, with what aliases stand for; those of keys and bounds have no place in it."""
    tokens: list[Token] = []
    depth, inside = 0, 0  # a name within an aggregate, or in its FILTER, is a column of the events
    for index, token in enumerate(clause.tokens):
        if token.name in columns and token.is_name and not clause.is_call(index) and not inside:
            aggregate, shown = columns[token.name]
            written = [replace(shown[0], spaced=token.spaced), *shown.tokens[1:]]
            if aggregate.parts:
                opening, closing = (TokenType.L_PAREN, "(", "("), (TokenType.R_PAREN, ")", ")")
                written = [Token(*opening, 0, token.spaced), *written, Token(*closing, 0, False)]
            tokens += [replace(part, start=token.start) for part in written]
            if len(tokens) > TOKENS:
                clause.refuse(f"with what its names stand for it has {beyond('words', len(tokens), TOKENS)}", index)
            continue
        if token.is_name and not clause.is_call(index) and not inside:
            if token.name in names:
                _refuse_key(clause, index, names[token.name])
            alike = [name for name in columns if token.kind in _NAMES and name.lower() == token.name.lower()]
            if alike:
                clause.refuse(f"there is no column {token.name!r}; did you mean {alike[0]!r}?", index)
        tokens.append(token)
        if token.kind == TokenType.L_PAREN:
            depth += 1
            over_events = index and (READER.is_aggregate(clause, index - 1) or clause.word(index - 1) in _BEHIND_CALLS)
            if over_events and not inside:
                inside = depth
        elif token.kind == TokenType.R_PAREN:
            inside = 0 if inside == depth else inside
            depth -= 1
    for index, token in enumerate(clause.tokens):
        if token.kind == TokenType.DOT and clause.word(index + 1) in _BOUNDS:
            _refuse_key(clause, index - 1, _BOUNDS[clause.word(index + 1)])
    return as_formula(READER.read(replace(clause, tokens=tuple(tokens)), "HAVING"))


def _refuse_key(clause: Phrase, index: int, column: str) -> NoReturn:
    instead = "choose rows of the results by their bounds"
    if column not in _BOUNDS.values():
        instead = f"put the condition on the key {column} into WHERE"
    clause.refuse(f"HAVING sees aggregates alone; {instead}", index)


_BEHIND_CALLS = ("FILTER", "GROUP", "WITHIN GROUP")


def _alias(item: Phrase) -> Item:
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


def _check_commas(shown: Phrase) -> None:
    """Refuse a column that begins where no sign or word has ended the one before."""
    for index, depth in list(shown.depths())[1:]:
        begins = shown[index].kind in _NAMES or READER.is_aggregate(shown, index)
        if not depth and begins and shown[index - 1].kind in _BEFORE_COMMA and shown.word(index) not in _BEHIND_VALUES:
            shown.refuse(f"a comma is missing before {shown[index].text}", index)


_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)
_BEFORE_COMMA = {TokenType.R_PAREN, *_NAMES}
_BEHIND_VALUES = ("OVER", "FILTER", "IGNORE", "RESPECT", "NULLS", "WITHIN", "GROUP", "WITHIN GROUP")


def _own_column(shown: Phrase, by: Grouping) -> str | None:
    """The key or the bound that an item is; "" for the window as a whole, which has two, None for anything else."""
    if shown.word(0) == "*":
        shown.refuse("* is not read: name keys and aggregates")
    if len(shown) == 1 and shown[0].is_name:
        own = shown[0].name
        if own.lower() in by.called:
            return ""
        if own.lower() in _BOUNDS.values():
            return own.lower()
        if own not in by.keys:
            near = [key for key in by.keys if key.lower() == own.lower()]
            hint = f"did you mean {near[0]}?" if near else f"add it to GROUP BY, or write first({own}) or the like"
            shown.refuse(f"{own} is neither a key nor inside an aggregate; {hint}")
        return own
    if shown.is_call(0) and shown[0].name.lower() == by.name:
        end = shown.closing(1)
        if window(shown.part(0, end + 1)) != (by.window, by.time):
            shown.refuse(f"this is not the window of GROUP BY; write {by.name}")
        return _bound(shown, end + 1)
    return _bound(shown, 1) if shown[0].name.lower() in by.called and shown.word(1) == "." else None


def _bound(shown: Phrase, index: int) -> str:
    """The column of `.start` or `.end` at an index; none for the window as a whole, which has both."""
    if index == len(shown) or (shown.word(index + 1) == "*" and index + 2 == len(shown)):
        return ""
    if shown.word(index) != "." or shown.word(index + 1) not in _BOUNDS or index + 2 != len(shown):
        shown.refuse("of a window there are start and end", index)
    return _BOUNDS[shown.word(index + 1)]
