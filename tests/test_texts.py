"""Windows and aggregates as text: what is read, where what is not read stands, and that nothing is evaluated."""

from __future__ import annotations

import contextlib
import json
import pickle
import random
import re
from collections.abc import Callable
from itertools import product
from typing import Any

import polars as pl
import pytest

import windrow as wr
from windrow.core.expressions.functions import COPIES, RULES, least
from windrow.core.expressions.parse import ExpressionError, parse
from windrow.core.expressions.terms import Refusal, Term
from windrow.core.windows.parse import MAKERS, window


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("sliding(10, 5)", wr.sliding(10, 5)),
        ("tumbling('1 hour', offset='5 minutes')", wr.tumbling("1 hour", "5 minutes")),
        ("tumbling( 1 hour , offset = 5 minutes )", wr.tumbling("1 hour", "5 minutes")),
        ("counting(1_000, step=10)", wr.counting(1000, 10)),
        ("punctuated(start='x > 1', end='y')", wr.punctuated("x > 1", "y")),
        ("punctuated(end=x = 1)", wr.punctuated(end="x = 1")),
        ("punctuated(end=x = 1, scope=position)", wr.punctuated(end="x = 1", scope="position")),
        ("frames(speed > 0 AND car IN ('a', 'b)'))", wr.frames("speed > 0 AND car IN ('a', 'b)')")),
        ("latest(50, every='1 day')", wr.latest(50, "1 day")),
    ],
)
def test_what_is_written_is_what_is_meant(text: str, meant: object) -> None:
    assert window(text) == meant


@pytest.mark.parametrize(
    "made",
    [
        wr.tumbling("90 minutes", "5 minutes"),
        wr.sliding(10, 5),
        wr.cumulating("1 day", "1 hour"),
        wr.session("10 minutes"),
        wr.counting(10, 3),
        wr.punctuated("x > 1", "y = 'a'"),
        wr.frames("x > 1"),
        wr.counting(10, scope="node"),
        wr.punctuated(end="x > 1", scope="bounds"),
        wr.frames("x > 1", scope="overlap"),
        wr.latest(5, every="1 hour"),
    ],
    ids=str,
)
def test_what_is_shown_can_be_written(made: wr.Query) -> None:
    assert window(str(made)) == made


def test_every_window_is_shown_above() -> None:
    assert set(MAKERS) == {"tumbling", "sliding", "cumulating", "session", "counting", "punctuated", "frames", "latest"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tumbling(__import__('os'))", 'length "__import__'),
        ("eval('1')", "there is no 'eval'; there are tumbling, sliding"),
        ("tumbing('1 hour')", "did you mean 'tumbling'"),
        ("tumbling", "write it like tumbling"),
        ("tumbling(10", "a bracket is not closed"),
        ("tumbling(10) + 1", "write it like"),
        ("session()", "gap"),
        ("session(10, scope=node)", "session has no scope: only counting, punctuated and frames have one"),
        ("counting(10, scope=nodes)", "scope is one of 'global', 'node', 'bounds', 'position', 'overlap', not 'nodes'"),
        ("tumbling(10, 20, 30)", "3 were given"),
        ("", "write it like"),
    ],
)
def test_nothing_else_is_a_window(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match="is not a window") as caught:
        window(text)
    assert reason in str(caught.value)


def test_a_query_reads_its_window_and_names_its_aggregates() -> None:
    query = wr.Query("q", "tumbling(1 hour)", {"total": "sum(x)", "n": wr.count()})
    assert query == wr.Query("q", wr.tumbling("1 hour"), [wr.sum("x").alias("total"), wr.count().alias("n")])
    with pytest.raises(wr.QueryError, match=r"query 'q': 'tumbing\(1\)' is not a window: .* did you mean 'tumbling'"):
        wr.Query("q", "tumbing(1)", "count()")
    with pytest.raises(wr.QueryError, match="query 'q': 5 is not an aggregate"):
        wr.Query("q", "tumbling(1)", {"n": 5})  # type: ignore[dict-item]


# --- where it is ----------------------------------------------------------------------------------------------------

MISWRITTEN = {  # ^ marks the place
    "sum^(x": "a bracket is not closed",
    "sum(x)\n/\ncount(^'x)": "what begins with ' is never closed",
    "sum(x)^)": "this bracket closes nothing",
    "mean(speed ^+)": "expression 'speed +': it is not a complete SQL expression at '+'",
    "mean(x) ^mean(y)": "expression 'mean(x) mean(y)': it is not a complete SQL expression",
    "count()^oops n": "expression 'count()oops n': it is not a complete SQL expression at 'oops'",
    "sum(x)\n + ^speed": "speed is outside of every aggregate",
    "sum(x) / ^nope(y)": "there is no function nope; compute it from the results",
    "sum(x) / sum(^nope(y))": "there is no function nope; make it a column of the events first",
    "sum(x) + ^meen(y)": "there is no function meen; did you mean mean?",
    "sum(x) / ^quantile(y, 2)": "quantile: q must be between 0 and 1, not 2.0",
    "quantile(x, ^much)": "quantile(x, much): q must be a number, not 'much'",
    "sum(x) + ^quantile(x)": "quantile(x): quantile() missing 1 required positional argument: 'q'",
    "sum(x) + ^sum(x, y)": "sum(x, y) has too many arguments",
    "quantile(x, q=0.1, ^q=0.2)": "q is given twice",
    "sum(x) FILTER (WHERE y > ^)": "expression 'y >': it is not a complete SQL expression",
    "sum(x) ^FILTER (y)": "FILTER is followed by (WHERE …)",
    "1 + ^count(DISTINCT x)": "write distinct(x)",
    "1 + ^first(x) IGNORE NULLS": "does not go with it",
    "sum(x) ^OVER (ORDER BY y)": "group by a window instead",
    "^speed": "formula 'speed': speed is outside of every aggregate",
    "tumbling^(10": "a bracket is not closed",
    "tumbling(10) ^+ 1": "write it like tumbling('1 minute')",
    "tumbling(^'1 hour)": "what begins with ' is never closed",
    "counting(10, step=5, ^step=6)": "step is given twice",
    "frames(speed > 0 AND ^nope(x))": "there is no function nope",
    "punctuated(start=x > 1,\n end=y ^>)": "expression 'y >': it is not a complete SQL expression",
}


@pytest.mark.parametrize("marked", MISWRITTEN)
def test_what_is_not_read_is_refused_with_line_and_column(marked: str) -> None:
    marked = marked.replace("> ^)", "^>)")
    text, at = marked.replace("^", ""), marked.find("^")
    with pytest.raises(wr.SqlError) as raised:
        (window if text.split("(")[0] in MAKERS else wr.aggregate)(text)
    line, column = marked.count("\n", 0, at) + 1, at - marked.rfind("\n", 0, at)
    assert (raised.value.line, raised.value.column) == (line, column), str(raised.value)
    assert (f"(line {line}, column {column}" in str(raised.value)) is (at > 0)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


WRITTEN = [
    "quantile(x, q=0.5) / sum(y + 1) FILTER (WHERE s = ')')",
    "arg_max(x, of=y) - 1",
    "first(`a b`, nulls=true)",
    "formula(sum(x) / count(*))",
    "punctuated(end=x = 1, scope=position)",
    "frames(speed > 0 AND car IN ('a', 'b)'))",
    "tumbling('1 hour', offset='5 minutes')",
]


def test_whatever_is_written_is_read_or_refused_with_a_place_in_the_text(seed: int) -> None:
    draw = random.Random(seed)
    parted = [re.findall(r"'[^']*'|\w+|\s+|\S", text) for text in WRITTEN]
    every = [*(word for words in parted for word in words), *"[]{}.;'`\n", "--", "/*", "=>"]
    refused = 0
    for number in range(1000):
        words = list(parted[number % len(parted)])
        for _ in range(draw.randint(1, 2)):
            at = draw.randrange(len(words)) if words else 0
            words[at : at + draw.randint(0, 2)] = draw.choices(every, k=draw.randint(0, 1))
        text = "".join(words)
        for read in (wr.aggregate, wr.formula, window):
            error = refusal_of(read, text)
            if error:
                refused += 1
                lines = text.strip().split("\n") if read is wr.aggregate else text.split("\n")
                assert 1 <= error.line <= len(lines), text
                assert 1 <= error.column <= len(lines[error.line - 1]) + 1, text
    assert 1000 < refused < 3000


def refusal_of(read: Callable[[str], object], text: str) -> wr.SqlError | None:
    """How a text is refused, None if it is read; whatever else it raises is raised."""
    try:
        read(text)
    except wr.SqlError as error:
        return error
    return None


@pytest.mark.parametrize("depth", [60, 1000])
@pytest.mark.parametrize("around", ["(*)", "abs(*)", "- *", "not *", "[*", "formula(*)", "case when x then * end"])
def test_however_deep_it_is_read_or_refused(around: str, depth: int) -> None:
    before, behind = around.split("*")
    inner = before * depth + "x" + behind * depth
    for text in (f"sum({inner})", inner.replace("x", "sum(x)"), f"frames({inner})", f"counting({inner})"):
        refusal_of(window if text.split("(")[0] in MAKERS else wr.aggregate, text)


# --- limits ---------------------------------------------------------------------------------------------------------


def statement(selected: str, where: str = "true", having: str = "true") -> str:
    return f"SELECT {selected}\nFROM e WHERE {where} GROUP BY k, window(ts, '1 hour') HAVING count(*) > 0 AND {having}"


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        (statement(f"sum({'(' * 41}x{')' * 41})"), (1, 51), "it is nested too deeply: 42 levels, and the limit is 40"),
        (statement("count(*) n", "CASE WHEN " * 45 + "x" + " END" * 45), (2, 414), "45 levels, and the limit is 40"),
        (statement("count(*) n", "NOT " * 600 + "x"), (2, 14), "it is nested too deeply"),
        (statement("sum(" + " + ".join("x" * 202) + ") n"), (1, 12), "203 levels, and the limit is 200"),
        (statement("count(*) n", f"x IN ({'1, ' * 10_000}1)"), (2, 30015), "20,005 words and signs, and the limit is"),
        (statement("max(s) || 'x' n", having=" || ".join(["n"] * 5000)), (2, 11181), "words, and the limit is 20,000"),
        (statement("count(*) n") + " " * 2_000_001, (1, 1), "characters, and the limit is 2,000,000"),
        (statement("count(*) \ud800"), (1, 17), r"half of a character stands here, '\ud800'"),
        (statement("quantile(x, " + "9" * 5000 + ")"), (1, 8), "q must be between 0 and 1"),
        (statement("sum(21e)"), (1, 12), "'21e' is not a number"),
    ],
)
def test_what_is_too_much_is_refused_with_the_limit_the_number_and_its_place(
    text: str, place: tuple[int, int], reason: str
) -> None:
    with pytest.raises(wr.SqlError) as raised:
        wr.sql(text)
    assert reason in str(raised.value)
    assert (raised.value.line, raised.value.column) == place
    assert len(str(raised.value)) < 1500
    assert str(raised.value).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        " AND ".join(f"x > {number}" for number in range(3000)),
        " || ".join(["s"] * 5000) + " = 'a'",
        f"x IN ({', '.join(map(str, range(9000)))})",
        "CASE " + "".join(f"WHEN x = {number} THEN {number} " for number in range(1500)) + "END = 5",
        "(" * 38 + "x > 1" + ")" * 38,
        " + ".join("x" * 190) + " > 5",
    ],
    ids=["AND", "||", "IN", "CASE", "brackets", "+"],
)
def test_what_is_long_and_within_the_limits_is_read_and_computed(text: str) -> None:
    frame = pl.DataFrame({"x": [5, None], "s": ["a", "b"]})
    expression = parse(text)
    assert frame.select(expression.polars(frame.schema)).height == 2
    assert expression.spark(frame.schema)


@pytest.mark.parametrize(
    "text", [" % ".join("x" * 20), "greatest(y, " * 20 + "y" + ")" * 20, "(" * 20 + "b" + " <=> b)" * 20]
)
def test_what_grows_with_each_level_is_refused_where_it_is_bound(text: str) -> None:
    schema = {"x": pl.Int64(), "y": pl.Float64(), "b": pl.Boolean()}
    with pytest.raises(ExpressionError, match="terms, and the limit is 50,000"):
        parse(text).polars(schema)


def test_rules_write_their_operands_down_as_often_as_is_said() -> None:
    """What `COPIES` says of each rule is the most that it does with any types, in Polars and in Spark's SQL."""
    types = [pl.Int64(), pl.Float64(), pl.String(), pl.Boolean(), pl.Datetime("us", "UTC"), pl.Decimal(36, 0)]
    for kind, (form, rule) in RULES.items():
        said = COPIES.get(kind, (1,))
        sizes = (2, 3) if "expressions" in form else range(least(rule) or 1, len(form.split()) + 1)
        for dtypes in (dtypes for size in sizes for dtypes in product(types, repeat=size)):
            try:
                term = rule(*(Term(dtype, pl.col(f"c{at}"), f"c{at}") for at, dtype in enumerate(dtypes)))
            except (Refusal, TypeError):
                continue
            for at in range(len(dtypes)):
                polars = term.polars.meta.root_names().count(f"c{at}")
                spark = len(re.findall(rf"\bc{at}\b", term.spark))
                assert max(polars, spark) <= said[min(at, len(said) - 1)], (kind, dtypes, at)


def test_what_stands_in_an_error_is_shown_escaped_and_cut() -> None:
    with pytest.raises(wr.QueryError) as raised:
        wr.Query("q", "tumbling(1)", "count()", where="\u202e" + "nope\0" * 1000 + "(x)")
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 1500
    for name in ("\ud800", "a\udfff"):
        with pytest.raises(wr.QueryError, match="half of a character"):
            wr.Query(name, "tumbling(1)", "count()")
        with pytest.raises(wr.QueryError, match="half of a character"):
            wr.Query("q", "tumbling(1)", "count()", by=name)


@pytest.mark.parametrize(
    "length", ["0 seconds", 0, "9" * 5000 + " days", 10**5000, "1e9 days", "300000000 weeks"], ids=list("abcdef")
)
def test_lengths_that_cannot_be_are_refused(length: str | int) -> None:
    with pytest.raises(ValueError, match=r"greater than zero|is longer than|characters, and|is not a duration"):
        wr.tumbling(length)


def test_what_does_not_describe_a_query_is_refused_in_one_way(seed: int) -> None:
    dice = random.Random(seed)
    query = wr.Query(
        "q", wr.sliding(10, 5), ["sum(x) / count()", "quantile(x, 0.5)"], "k", "x > 1", having="count() > 1"
    )
    for _ in range(500):
        described = json.loads(json.dumps(query.to_dict()))
        inside: Any = described
        outside, key = inside, "window"
        while isinstance(inside, dict | list) and inside and dice.random() < 0.8:
            keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
            key, outside = dice.choice(keys), inside
            inside = inside[key]
        if dice.random() < 0.3:
            del outside[key]
        else:
            outside[key] = dice.choice([None, 5, -1.5, "x", "", [], {}, [[]], {"a": 1}, 10**30, "\ud800", True])
        with contextlib.suppress(wr.QueryError):
            wr.Query.from_dict(described)
