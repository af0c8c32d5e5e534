"""Texts as people mistype them, and as somebody writes them who wants a node to end: `texts` of `fuzz_bytes`.

A sample is the kind of a text, a line feed, and the text. It is changed word by word and character by character, and
some parts are repeated until they are too long or too deep. Whatever is read is bound to columns and planned as well,
as a root does.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

import windrow as wr
from windrow.core.expressions.parse import ExpressionError, parse
from windrow.core.expressions.types import types_of
from windrow.core.query.sql.statements import sql
from windrow.core.windows.fixed import duration
from windrow.core.windows.parse import window
from windrow.io import query_files
from windrow.io.yaml_files import Fields, load, placed
from windrow.nodes.process.config import ConfigError, node_of
from windrow.nodes.queries import QuerySet

SECOND = 1.0  # of processor time that a text may take
COLUMNS = {
    "ts": pl.Datetime("us", "UTC"),
    "car": pl.String(),
    "speed": pl.Float64(),
    "lane": pl.Int64(),
    "moving": pl.Boolean(),
    "fare": pl.Decimal(20, 2),
    "day": pl.Date(),
}
EVENTS = pl.DataFrame(schema=COLUMNS)


class Refusal(Exception):
    """A text was refused, with the error of its kind."""


# --- the kinds of texts -----------------------------------------------------------------------------------------------


def _planned(queries: Any) -> None:
    """Plan queries as a root does."""
    plannable = [query for query in queries if not query.distinct_on]
    if plannable:
        QuerySet.from_dict(QuerySet.of(plannable, "ts", COLUMNS).to_dict(), EVENTS).check()


def _expression(text: str) -> None:
    expression = parse(text)
    expression.spark(COLUMNS)
    EVENTS.select(expression.polars(COLUMNS))


def _node(text: str) -> None:
    with placed("node.yaml", ConfigError):
        given = load(text, Path("/nowhere"))
        if isinstance(given, Fields):
            node_of(given, "root")


KINDS: dict[str, tuple[Callable[[str], Any], tuple[type[Exception], ...]]] = {
    "sql": (lambda text: _planned(sql(text)), (wr.QueryError, ExpressionError)),
    "aggregate": (
        lambda text: _planned([wr.Query("q", wr.tumbling("1 minute"), text)]),
        (wr.QueryError, ExpressionError),
    ),
    "formula": (wr.formula, (wr.SqlError,)),
    "having": (lambda text: wr.Query("q", wr.tumbling(1), "count()", having=text), (wr.QueryError,)),
    "where": (_expression, (ExpressionError,)),
    "window": (lambda text: _planned([wr.Query("q", window(text), "count()")]), (wr.QueryError, ExpressionError)),
    "duration": (duration, (ValueError,)),
    "types": (types_of, (ValueError,)),
    "yaml": (
        lambda text: _planned(query_files.of_yaml(text, "a.yaml").queries),
        (wr.QueryError, ExpressionError),
    ),
    "node": (_node, (ConfigError,)),
}

WRITTEN: dict[str, list[str]] = {
    "sql": [
        """-- name: slow
SELECT car, avg(speed * 3.6) AS v FROM events WHERE moving AND lane IN (1, 2, 3)
GROUP BY car, window(ts, '1 hour', '5 minutes') HAVING count(*) > 10 AND v < 50;
SELECT count(DISTINCT car) n, percentile_cont(0.5) WITHIN GROUP (ORDER BY speed) FROM events e
GROUP BY session_window(e.ts, INTERVAL 5 MINUTES)""",
        """/* all */ SELECT lane, first(speed) IGNORE NULLS f, sum(fare) FILTER (WHERE speed > 1e3), window.start
FROM events GROUP BY lane, count_window(100, step => 10)""",
        "SELECT car, window(ts, '1 day'), max_by(car, speed) FROM `my events` GROUP BY 1, window(ts, '1 day')",
        """SELECT car AS vehicle, window.start hour, window.end AS until, round(avg(speed), 2) v FROM e
GROUP BY vehicle, window(ts, '1 hour') HAVING v > 1""",
        "SELECT max(CASE WHEN moving THEN speed ELSE -1 END) m FROM t GROUP BY frames('speed > 3'), car",
    ],
    "aggregate": [
        "quantile(speed, q=0.5) / sum(lane + 1) FILTER (WHERE car = ')')",
        "arg_max(car, of=speed)",
        "first(`car`, nulls=true)",
        "formula(sum(speed) / count(*))",
        "approx_quantile(speed, 0.9, k=200)",
    ],
    "formula": ["sum(speed) / nullif(count(*), 0) + 1", "greatest(max(speed), 2 * mean(lane))"],
    "having": ["count() > 10 AND mean(speed) BETWEEN 1 AND 2", "max(car) LIKE 'a%'"],
    "where": [
        "speed * 3.6 > 50 AND NOT moving OR car IN ('a', 'b', NULL)",
        "CASE lane WHEN 1 THEN 'a' WHEN 2 THEN 'b' ELSE car || 'x' END = substring(car, 1, 2)",
        "lane % 3 + abs(-lane) / 2 - power(speed, 2) >= greatest(1, lane, 2)",
        "CAST(car AS DOUBLE) IS NULL OR ts < TIMESTAMP '2024-05-31 12:00:00Z' AND hour(ts) = 3",
        "fare * 2 + 1 < 3 AND fare IN (1, 2) AND day = DATE '2024-05-31' AND isnan(speed) <=> true",
        r"car RLIKE '^[a-z_]+(\\d{2}|x\\.y)?$' AND round(speed / 3, 2) <= round(fare, 1) AND left(car, 2) = 'ab'",
        "date_trunc('hour', ts) = ts AND year(ts) = 2024 AND EXTRACT(WEEK FROM day) < 5 AND CAST(ts AS DATE) = day",
        "nvl2(car, ltrim(replace(car, 'a', 'b')), trim(BOTH FROM car)) <> 'x'",
        r"concat(lower(car), trim(car)) LIKE '%a\\_b%' AND coalesce(speed, lane, 1) <> floor(speed)",
    ],
    "window": [
        "sliding('1 hour', '5 minutes', offset='1 minute')",
        "cumulating(1 day, 1 hour)",
        "session(10 minutes)",
        "counting(1_000, step=10, scope=node)",
        "punctuated(start='speed > 1', end=lane = 2)",
        "frames(speed > 0 AND car IN ('a', 'b)'))",
        "latest(50, every='1 day')",
    ],
    "duration": ["1 hour 30 minutes", "2.5 days", "-90 s, 3us", "1 week"],
    "types": ["ts TIMESTAMP, car STRING, fare DECIMAL(10, 2), lane INT", "a BOOLEAN COMMENT 'x', b VARCHAR(3)"],
    "yaml": [
        """time: ts
lateness: 10 seconds
queries:
- {name: speed, window: tumbling(1 minute), aggregates: [mean(speed), max(speed)], by: car, where: moving}
- window: "session(10 minutes)"
  aggregates: {n: count()}
  having: count() > 10
""",
        """queries: [{window: 'counting(5)', aggregates: &a count()}, {name: b, window: 'latest(3, every=1 day)',
  aggregates: *a, distinct_on: [car, ts]}]
bad_events: drop
updates: 1_000
order_by: lane
""",
        """queries:
- {name: q, window: tumbling(1 hour), aggregates: {v: count()}, by: {vehicle: car}, names: {hour: window_start}}
time: ts
""",
    ],
    "node": [
        """name: root
listen: 127.0.0.1:0
spool: spool
time: ts
columns: ts TIMESTAMP, car STRING, speed DOUBLE
lateness: 5 seconds
timeout: 30 seconds
limits: {message: 1000000, rate: 10}
children: [a, b]
queries: |
  SELECT car, avg(speed) FROM e GROUP BY car, window(ts, '1 minute')
"""
    ],
}


def samples() -> list[bytes]:
    return [f"{kind}\n{text}".encode() for kind, written in WRITTEN.items() for text in written]


def read(data: bytes) -> None:
    """Read a text of a kind; raises Refusal for what is refused as it should be."""
    kind, _, written = data.partition(b"\n")
    reader, errors = KINDS[kind.decode()]
    text, begin = written.decode("utf-8", "surrogatepass"), time.process_time()
    try:
        reader(text)
    except errors as error:
        words = str(error)
        if isinstance(error, UnicodeError) or "integer string conversion" in words:
            raise AssertionError("an error of Python's own has come out") from error
        assert words.isprintable() or kind in (b"types", b"duration"), words  # a sentence of the file's is around them
        assert len(words) < 5000, len(words)
        raise Refusal(words) from error
    finally:
        spent = time.process_time() - begin
        assert spent < SECOND, f"{spent:.1f} seconds of processor time for {len(text):,} characters"


# --- how they are changed ---------------------------------------------------------------------------------------------

_WORD = re.compile(r"'[^']*'|\w+|\s+|.", re.DOTALL)
WORDS = [
    *"()[]{}<>.,;:'`\"\\\n\t#@$%&*|!?~^=+-/0",
    *("--", "/*", "*/", "/*+", "=>", "->", "::", "||", "<=>", "${", "{{", "''", "0x", "1e", "&a ", "*a", "<<: "),
    *("SELECT ", "FROM ", "GROUP BY ", "HAVING ", "CASE ", "WHEN ", "THEN ", "ELSE ", "END ", "NOT ", "AND ", "OR "),
    *("BETWEEN ", "IN ", "LIKE ", "IS ", "NULL", "INTERVAL ", "CAST(", " AS ", "DISTINCT ", "ALL ", "OVER "),
    *("sum(", "count(*)", "abs(", "greatest(", "concat(", "formula(", "window(ts, ", "coalesce(", "hour(", "FILTER "),
    *("speed", "car", "lane", "moving", "ts", "fare", "day", "nope", "p0", "tumbling(", "cumulating(", "frames("),
    *("9" * 30, "9" * 5000, "1e999", "-1", "0", "0.5", "1.", "9223372036854775807", "9223372036854775808", ".inf"),
    *("\0", "\u202e", "\ufeff", "\u2028", "\x1b[31m", "\ud800", "\udfff", "\u00b2", "\u0663", "\U0001f600", "e\u0301"),
    *("2024-02-30", "1:2:3", "~", "null", "true", "? a", "- ", "|\n ", "%YAML 9\n", "--- \n", "!!int ", "!!set "),
]
ROUND = [("(", ")"), ("abs(", ")"), ("[", "]"), ("{a: ", "}"), ("CASE WHEN ", " END"), ("CAST(", " AS INT)")]
ROUND += [
    ("- ", ""),
    ("NOT ", ""),
    ("formula(", ")"),
    ("greatest(1, ", ")"),
    ("array<", ">"),
    ("(lane % ", ")"),
    ("round(", ", 2)"),
    ("date_trunc('day', ", ")"),
]


def change(data: bytes, dice: random.Random) -> bytes:
    """The text with a few changes."""
    kind, _, written = data.partition(b"\n")
    words = _WORD.findall(written.decode())
    for _ in range(dice.choice((1, 1, 2, 3, 8))):
        at, end = sorted(dice.choices(range(len(words) + 1), k=2))
        match dice.randrange(8):
            case 0:
                words[at : at + dice.randint(1, 3)] = []
            case 1 | 2:
                words[at : at + dice.randint(0, 1)] = dice.choices(WORDS, k=dice.randint(1, 3))
            case 3:
                words[at:at] = words[end : end + dice.randint(1, 5)]
            case 4 if at < len(words):
                place = dice.randrange(len(words[at]) + 1)
                words[at] = words[at][:place] + dice.choice(WORDS)[:1] + words[at][place + dice.randint(0, 1) :]
            case 5 if dice.random() < 0.1:
                words[at:at] = ["".join(words[at : at + dice.randint(1, 6)] or ["a "]) * _many(dice)]
            case 6 if dice.random() < 0.2:
                (before, behind), times = dice.choice(ROUND), _many(dice)
                words[end:end] = [behind * times]
                words[at:at] = [before * times]
            case 7 if dice.random() < 0.1:
                words = words[at:end]
            case _:
                words[at:at] = [dice.choice(WORDS)]
    return kind + b"\n" + "".join(words)[:100_000].encode("utf-8", "surrogatepass")


def _many(dice: random.Random) -> int:
    return int(10 ** dice.uniform(0.3, 4.3))
