"""Windows as text: what is read, and that nothing is evaluated."""

from __future__ import annotations

import pytest

import windrow as wr
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
