"""Expressions on Spark at the edges of every type: the same values as in Polars and as the evaluator's.

`test_expressions` runs the specification and random expressions over ordinary rows; here rows hold what is extreme, and
columns have the types that Spark brings. All expressions of a test are the columns of one select.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import polars as pl
import pytest

from test_expressions import Row, compare, grow, in_polars, overflows, same
from test_first_hour_numbers import BIG, grown
from windrow.core.expressions.instead import INSTEAD
from windrow.core.expressions.parse import FUNCTIONS, Expression, parse
from windrow.core.query.sql.calls import REFUSED, SPARK

pytestmark = pytest.mark.spark

NAN, INF = math.nan, math.inf
NAIVE = datetime(1583, 1, 1, 0, 0, 0, 1), datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(1970, 1, 1)
MOMENTS = *NAIVE, datetime(2024, 2, 29, 12, 34, 56, 789_012), datetime(9998, 12, 31, 23, 59, 59, 999_999)
WORDS = (
    "",
    " ",
    "a",
    "A",
    "it's",
    'say "a"',
    "back\\slash",
    "\\",
    "%",
    "_",
    "100%",
    "a_b",
    "ß",
    "ﬀ",
    "é",
    "e\u0301",
    "İ",
)
ODD = (
    "😀",
    "～",
    "\n",
    "\t a",
    "\0",
    "\u00a0",
    "12",
    " +12 ",
    "-9223372036854775808",
    "9223372036854775808",
    "1e5",
    ".5",
)
NUMERALS = (
    "1.",
    ".",
    "+",
    "1e",
    "NaN",
    "Infinity",
    "1d",
    "0x10",
    "１２",
    "1_000",
    "1,5",
    "1e400",
    "-1e-400",
    "true",
    "12\u00a0",
)
VALUES: dict[str, tuple[pl.DataType, Sequence[Any]]] = {
    "tiny": (pl.Int8(), (-128, -1, 0, 1, 127)),
    "small": (pl.Int16(), (-32768, 0, 7, 32767)),
    "j": (pl.Int32(), (-(2**31), -7, 0, 3, 2**31 - 1)),
    "i": (pl.Int64(), (-(2**63), -(2**53) - 1, -7, 0, 1, 3, 2**31, 2**53 + 1, 2**63 - 1)),
    "h": (
        pl.Float32(),
        (0.0, -0.0, 0.5, -1.25, 0.10000000149011612, 16777216.0, 3.4028234663852886e38, NAN, INF, -INF),
    ),
    "f": (
        pl.Float64(),
        (0.0, -0.0, 1.0, -2.5, 0.1, 5e-324, 1e300, -1e300, 2.0**31, 2.0**53, 2.0**63, -(2.0**63), NAN, INF, -INF),
    ),
    "g": (pl.Float64(), (0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 2.0**63, NAN, INF, -INF)),
    "d": (pl.Decimal(10, 2), tuple(map(Decimal, ("0.00", "-0.01", "1.50", "19.99", "99999999.99", "-99999999.99")))),
    "e": (
        pl.Decimal(38, 6),
        tuple(map(Decimal, ("0", "-1.500000", "19.990000", "9" * 32 + ".999999", "-" + "9" * 32))),
    ),
    "s": (pl.String(), (*WORDS, *ODD, *NUMERALS)),
    "t": (pl.String(), (*WORDS, *ODD)),
    "b": (pl.Boolean(), (True, False)),
    "c": (pl.Boolean(), (True, False)),
    "ts": (pl.Datetime("us", "UTC"), tuple(one.replace(tzinfo=UTC) for one in MOMENTS)),
    "tz": (pl.Datetime("us", "UTC"), tuple(one.replace(tzinfo=UTC) for one in MOMENTS)),
    "n": (pl.Datetime("us"), MOMENTS),
    "day": (pl.Date(), tuple(one.date() for one in MOMENTS)),
    "load %": (pl.Float64(), (0.5, NAN)),
}
SCHEMA = {name: dtype for name, (dtype, _) in VALUES.items()}

TEXTS = """
tiny | small | j | i | h | f | d | e | s | b | ts | n | day | tiny + small | tiny * small | -tiny | abs(small)
tiny / small | tiny % 7 | small % tiny | j + tiny * 2 | tiny = small | tiny < j | small >= i | i = f | i < f
i <=> j | tiny = 1.5 | j IN (3, -7, NULL) | i IN (9223372036854775807) | i = 9223372036854775807
i > -9223372036854775807 | i BETWEEN -7 AND 9223372036854775807 | i <> 2147483648 | tiny > 1000 | i % 3 | i % -3
i % 9223372036854775807 | i % j | j % tiny | i / 3 | i / j | i / f | f / i | nullif(i, j) | coalesce(i, j, tiny)
greatest(i, j, small) | least(i, tiny) | greatest(i, f) | least(h, i) | greatest(f, g, h) | least(f, g)
if(b, i, tiny) | CAST(i AS INT) | CAST(i AS FLOAT) | CAST(i AS DOUBLE) | CAST(i AS STRING)
CAST(tiny AS STRING) | CAST(i AS BOOLEAN) | CAST(f AS BIGINT) | CAST(f AS INT) | CAST(f AS FLOAT)
CAST(h AS DOUBLE) | CAST(h AS BIGINT) | CAST(h AS INT) | CAST(f AS BOOLEAN) | CAST(d AS BIGINT) | CAST(d AS INT)
CAST(e AS BIGINT) | CAST(e AS INT) | CAST(e AS DOUBLE) | CAST(d AS FLOAT) | CAST(d AS BOOLEAN)
CAST(s AS BIGINT) | CAST(s AS INT) | CAST(s AS DOUBLE) | CAST(s AS FLOAT) | CAST(b AS STRING)
CAST(b AS BIGINT) | CAST(b AS FLOAT) | floor(f) | ceil(f) | floor(h) | ceil(d) | floor(d) | ceil(e) | floor(i)
ceil(tiny) | floor(f / g) | ceil(f * g) | f + g | f - g | f * g | f / g | -f | abs(f) | h * h | h + f | h = f
f = g | f < g | f <=> g | f <> g | f >= g | nullif(f, g) | f IN (0, 1.0, NULL) | f NOT IN (2.5)
f BETWEEN g AND h | isnan(f) | isnan(h) | isnan(f - g) | CASE f WHEN g THEN 1 ELSE 2 END | sqrt(f) | exp(f)
ln(f) | ln(h) | log10(f) | log2(f) | log(3, f) | log(0.5, f) | power(f, g) | power(f, 2) | power(f, 0.5)
power(f, -1) | power(2, g) | power(-1, g) | power(1, g) | power(f, 0) | power(0, g) | power(h, i)
sin(f / 1e300) | sin(g) | cos(g) | tan(g) | asin(g) | acos(g) | atan(f) | radians(f) | degrees(f) | degrees(g)
d + d | d - 1 | d * d | d * tiny | d / 3 | d + f | d = e | d < e | d <> 19.99 | d = 19.99 | d IN (1.5, 19.99)
d IN (0, 1) | -d | abs(d) | d > i | e >= i | e = j | d BETWEEN -1 AND e | coalesce(d, e) | greatest(d, e)
least(d, 0) | nullif(d, 0) | if(b, d, 0) | e / d | -e | d * 9223372036854775807 | d + i | d * i
CASE WHEN b THEN d WHEN c THEN tiny ELSE e END | d = NULL | d <=> NULL | s = t | s < t | s >= t | s <=> t
s <> 'it\\'s' | s = 'back\\\\slash' | s = 'say "a"' | s = '😀' | s < '～' | s IN ('', 'İ', '\\\\', NULL)
lower(t) | upper(s) = 'A' | length(s) | trim(s) | concat(s, '\\'', t) | s || '\\\\' || t | startswith(s, t)
endswith(s, t) | contains(s, t) | substring(s, 1) | substring(s, 0) | substring(s, 2, 2) | substring(s, -1)
substring(s, -2, 1) | substring(s, -30, 29) | substring(s, 100) | substring(s, 2147483647)
substring(s, -2147483648, 5) | substring(s, 1, 0) | substring(s, 1, 2147483647) | s LIKE '%' | s LIKE '_'
s LIKE '%\\\\%%' | s LIKE '\\\\_' | s LIKE 'a\\\\_b' | s LIKE '%\\\\\\\\%' | s LIKE '%😀' | s LIKE ''
s LIKE '%.%' | s LIKE '.' | s LIKE '[a]' | s LIKE '%\\n%' | s LIKE '%it\\'s%' | s NOT LIKE 'A' | s LIKE '%_a'
coalesce(s, 'x\\ty') | nullif(s, t) | greatest(s, t, 'm') | least(s, t) | if(b, s, NULL)
CASE s WHEN 'a' THEN t WHEN '' THEN 'none' END | b = c | b < c | b <=> c | b IS TRUE | b IS NOT TRUE
b IS FALSE | NOT b | b AND c | b OR c | b IN (TRUE) | b AND NULL | b OR NULL | b = NULL | ts = tz | ts < tz
ts >= DATE '1970-01-01' | n < DATE '2024-02-29' | day >= '2024-02-29' | day = DATE '1970-01-01' | day <> NULL
day IN ('1970-01-01', DATE '2024-02-29', NULL) | day BETWEEN '1583-01-01' AND DATE '2024-12-31' | day < day
coalesce(day, DATE '2024-01-01') | greatest(day, DATE '2000-01-01') | nullif(day, '1970-01-01') | if(b, day, NULL)
ts <=> tz | ts >= '1970-01-01' | ts > '1969-12-31 23:59:59.999998' | ts = '2024-02-29T12:34:56.789012Z'
ts < '9998-12-31 23:59:59.999999' | ts IN (TIMESTAMP '1970-01-01 00:00:00') | ts BETWEEN '1583-01-01' AND tz
ts > '2024-02-29 12:34+02:00' | greatest(ts, tz) | least(ts, TIMESTAMP '1970-01-01') | coalesce(ts, tz)
nullif(ts, tz) | if(b, ts, tz) | ts IS NULL | hour(ts) | minute(ts) | dayofweek(ts) | hour(n) | minute(n)
dayofweek(n) | n = '1970-01-01' | n < '2024-02-29 12:34:56.789012' | n > '1583-01-01 00:00:00' | greatest(n, n)
coalesce(n, n) | n IS NOT NULL | n BETWEEN '1969-12-31' AND '1970-01-01' | n <=> n | day = day | day <=> day
coalesce(day, day) | greatest(day, day) | day IS NULL | NULL <=> i | coalesce(NULL, f) | if(NULL, i, j)
round(f) | round(f, 1) | round(f, 2) | round(f, 15) | round(h, 3) | round(f / 1e300, 4) | round(g / 3, 5) | round(i, 2)
round(tiny) | round(d, 1) | round(d) | round(e, 5) | round(e, 0) | round(d, 9) | sign(f) | signum(i) | atan2(f, g)
atan2(g, f) | pi() * f | mod(i, 3) | nvl2(s, i, j) | nvl2(f, 'x', t) | ltrim(s) | rtrim(s) | trim(BOTH FROM s)
replace(s, '\\\\', '/') | replace(s, '😀', '') | replace(s, 'a', 'aa') | left(s, 1) | right(s, 2)
right(s, 0) | left(s, 0) | right(s, 2147483647) | s RLIKE '^a' | s RLIKE '^.$' | s RLIKE '.' | s RLIKE '\\\\\\\\'
s RLIKE '^\\\\w+$' | s RLIKE '\\\\s' | s RLIKE '^[^\\\\d]+$' | s RLIKE '(a|A)+' | s RLIKE '^-?\\\\d{1,19}$'
s RLIKE '[\\\\]%_]' | s RLIKE 'it\\'s' | s RLIKE '^\\\\W$' | s RLIKE '\\\\S' | s RLIKE '^😀?$' | s RLIKE '[e-é]'
second(ts) | second(n) | day(ts) | day(n) | day(day) | dayofmonth(ts) | month(ts) | month(n) | month(day)
quarter(ts) | quarter(n) | quarter(day) | year(ts) | year(n) | year(day) | dayofyear(ts) | dayofyear(n)
dayofyear(day) | weekofyear(ts) | weekofyear(n) | weekofyear(day) | dayofweek(day) | EXTRACT(WEEK FROM day)
EXTRACT(hour FROM n) | date_trunc('second', ts) | date_trunc('minute', ts) | date_trunc('hour', ts)
date_trunc('day', ts) | date_trunc('week', ts) | date_trunc('month', ts) | date_trunc('quarter', ts)
date_trunc('year', ts) | date_trunc('second', n) | date_trunc('minute', n) | date_trunc('hour', n)
date_trunc('day', n) | date_trunc('week', n) | date_trunc('month', n) | date_trunc('quarter', n)
date_trunc('year', n) | CAST(ts AS DATE) | CAST(n AS DATE) | date(ts) < day | date_trunc('day', ts) = tz
CASE WHEN NULL THEN 1 ELSE i END | TRUE AND b | 1 = 1 | 'a' < 'b' | 0.1 + 0.2 | -5 % 3
"""


def texts() -> Iterator[str]:
    for line in TEXTS.strip().splitlines():
        yield from line.split(" | ")


def rows(draw: random.Random, count: int) -> list[Row]:
    """Rows in which every value occurs at least once, beside others at random, null among them."""
    found = []
    for place in range(count):
        row = {}
        for name, (_, values) in VALUES.items():
            row[name] = values[place] if place < len(values) else draw.choice((None, *values))
        found.append(row)
    return found


def on_spark(spark: Any, expressions: Sequence[Expression], rows: list[Row]) -> list[pl.Series]:
    from windrow.spark.types import struct

    frame = spark.createDataFrame(pl.DataFrame(rows, schema=SCHEMA).to_arrow(), struct(SCHEMA))
    texts = [f"{expression.spark(SCHEMA)} AS v{place}" for place, expression in enumerate(expressions)]
    return pl.DataFrame(pl.from_arrow(frame.selectExpr(*texts).toArrow())).get_columns()


def check(spark: Any, expressions: list[Expression], extreme: list[Row]) -> None:
    for expression, found in zip(expressions, on_spark(spark, expressions, extreme), strict=True):
        for row, one, other in zip(extreme, found, in_polars(expression, extreme, SCHEMA), strict=True):
            given = {name: row[name] for name in expression.columns}
            assert same(one, other), f"{expression.text} of {given}: {one!r} on Spark, {other!r} in Polars"
        dtype = expression.dtype(SCHEMA)
        if not isinstance(dtype, pl.Datetime):  # which comes back in the session's time zone
            assert found.dtype == dtype, expression.text


def test_extreme_values(far_away: Any, seed: int) -> None:
    extreme = rows(random.Random(seed), 80)
    expressions = [parse(text) for text in texts()]
    assert [one.text for one in expressions if overflows(one, extreme)] == []
    for expression in expressions:
        compare(expression, extreme, in_polars(expression, extreme, SCHEMA))
    check(far_away, expressions, extreme)


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_integers_leave_64_bits_in_the_same_rows(spark: Any, seed: int, ansi: str) -> None:
    """Whatever the session thinks of overflow; there Spark gives null, and elsewhere the same number."""
    draw = random.Random(seed)
    edges = [None, 0, 1, -1, BIG, 2**62, 2**63 - 1, -(2**63)]
    frame = pl.DataFrame({"i": edges * 8, "j": [edge for edge in edges for _ in edges]})
    expressions = [parse(grown(draw, "nb"[number % 2], 1 + number % 3)) for number in range(60)]
    checked = [(one, overflow) for one in expressions if (overflow := one.overflow(frame.schema))]
    columns = [f"{one.spark(frame.schema)} AS v{place}" for place, (one, _) in enumerate(checked)]
    columns += [f"{overflow.spark} AS o{place}" for place, (_, overflow) in enumerate(checked)]
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        found = pl.DataFrame(pl.from_arrow(spark.createDataFrame(frame.to_arrow()).selectExpr(*columns).toArrow()))
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
    for place, (expression, overflow) in enumerate(checked):
        does = frame.select("i", does=overflow.does)["does"]
        assert found[f"o{place}"].to_list() == does.to_list(), expression.text
        values = frame.select("i", x=expression.polars(frame.schema))["x"]
        assert found[f"v{place}"].filter(~does).to_list() == values.filter(~does).to_list(), expression.text


def test_random_expressions(far_away: Any, seed: int) -> None:
    """Those of the ordinary grammar; what leaves 64 bits in some row is left out, because Spark gives null there."""
    draw = random.Random(seed)
    extreme = rows(draw, 80)
    grown = [parse(grow(draw, kind, 2)) for _ in range(120) for kind in "nsb"]
    expressions = [one for one in dict.fromkeys(grown) if not overflows(one, extreme)]
    assert len(expressions) > 150
    check(far_away, expressions, extreme)


ATOMS = (
    "a",
    "A",
    "é",
    "😀",
    "\\\\.",
    "\\\\n",
    "\\\\\\\\",
    "%",
    "-",
    "_",
    ".",
    "\\\\d",
    "\\\\w",
    "\\\\s",
    "\\\\D",
    "\\\\W",
    "\\\\S",
)
ATOMS += ("[a-f]", "[^a]", "[\\\\d_-]", "[%\\\\s]", "[^\\\\w]", "(?:a|b)", "(1|2|.5)", "(\\\\w\\\\W?)")


def pattern(draw: random.Random) -> str:
    """A regular expression, as it is written in a string of SQL."""
    times = ("", "", "", "*", "+", "?", "*?", "{1,2}", "{2}", "{0,}")
    atoms = "".join(draw.choice(ATOMS) + draw.choice(times) for _ in range(draw.randint(1, 3)))
    return draw.choice(("", "^")) + atoms + draw.choice(("", "$", f"|{draw.choice(ATOMS)}"))


def test_random_patterns(far_away: Any, seed: int) -> None:
    draw = random.Random(seed)
    extreme = rows(draw, 80)
    expressions = [parse(f"s RLIKE '{one}'") for one in {pattern(draw) for _ in range(150)}]
    for expression in expressions:
        compare(expression, extreme, in_polars(expression, extreme, SCHEMA))
    check(far_away, expressions, extreme)


BY_ITS_PARSER = {"charindex", "timestampadd", "timestampdiff"}  # and so in no catalogue of functions


def test_functions_of_the_table_are_spark_s(spark: Any) -> None:
    known = {row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()} | BY_ITS_PARSER
    assert {*INSTEAD, *REFUSED, *SPARK, *map(str.lower, FUNCTIONS)} - known == set()


def test_a_minus_before_a_long_decimal_keeps_its_digits(spark: Any) -> None:
    """Spark's own rounds to 34 digits, or raises."""
    value = Decimal("9" * 32 + ".999999")
    expressions = [parse("-e"), parse("abs(e)"), parse("abs(-e)")]
    found = on_spark(spark, expressions, [rows(random.Random(0), 1)[0] | {"e": value}])
    assert [one[0] for one in found] == [value.copy_negate(), value, value]
