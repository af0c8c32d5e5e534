"""Queries in files: what is read, and that whatever is wrong is said with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

import windrow as wr
from windrow.io.query_files import of_sql, of_yaml, read

WHOLE = """\
time: ts
lateness: 10 seconds
updates: {ts: 1 hour}
order_by: [seq]
bad_events: drop
queries:
- name: speed
  window: tumbling('1 minute')
  aggregates: [mean(speed), max(speed)]
  by: car
  where: moving
  having: count() > 3
- {window: session(15), aggregates: {total: sum(x)}, by: [a, b], time: odometer, distinct_on: id}
"""


def test_everything_that_can_be_said() -> None:
    found = of_yaml(WHOLE, "q.yaml")
    assert found.queries == (
        wr.Query(
            "speed", wr.tumbling("1 minute"), ["mean(speed)", "max(speed)"], "car", "moving", having="count() > 3"
        ),
        wr.Query("q2", wr.session(15), wr.sum("x").alias("total"), ["a", "b"], time="odometer", distinct_on="id"),
    )
    assert found.options == {
        "time": "ts",
        "lateness": "10 seconds",
        "updates": {"ts": "1 hour"},
        "order_by": ["seq"],
        "bad_events": "drop",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "q.yaml: it has no queries; write queries: and a list of them"),
        ("[1]", "q.yaml: it has no queries; write queries: and a list of them"),
        ("time: ts\nqueries: []", "q.yaml, line 2: queries must be a list: - name: …"),
        ("queries: [", "q.yaml, line 1: this is not YAML: expected the node content"),
        (
            "queries:\n- !!python/name:os.system x",
            "q.yaml, line 2: this is not YAML: could not determine",
        ),
        ("queries:\n- 5", "q.yaml: query 1 must have the fields name, window, aggregates"),
        (WHOLE.replace("lateness", "latenes"), "q.yaml, line 2: there is no field 'latenes'; did you mean 'lateness'?"),
        (WHOLE.replace("10 seconds", "soon"), "q.yaml, line 2: lateness 'soon' is not a duration"),
        (WHOLE.replace("time: ts", "time: 5"), "q.yaml, line 1: time must be the name of a column, not 5"),
        (WHOLE.replace("drop", "keep"), "q.yaml, line 5: bad_events must be 'raise' or 'drop', not 'keep'"),
        (WHOLE.replace("[seq]", "3"), "q.yaml, line 4: order_by must be names of columns, not 3"),
        ("time: a\n" + WHOLE, "q.yaml, line 2: 'time' is there twice"),
        (
            WHOLE.replace("  window", "  windw"),
            "q.yaml, line 8: query 'speed': there is no field 'windw'; ",
        ),
        (
            WHOLE.replace("tumbling", "tumling"),
            "q.yaml, line 8: query 'speed': \"tumling('1 minute')\" is not",
        ),
        (WHOLE.replace("max(", "mx("), "q.yaml, line 9: query 'speed': 'mx(speed)': there is no aggregate 'mx'"),
        (WHOLE.replace("  by: car", "  by: 5"), "q.yaml, line 10: query 'speed': by must be column names, not 5"),
        (WHOLE.replace("moving", "moving >"), "q.yaml, line 11: query 'speed': where: expression 'moving >'"),
        (WHOLE.replace("moving", "yes"), "q.yaml, line 11: query 'speed': where must be text, not True"),
        (WHOLE.replace("count() >", "x >"), "q.yaml, line 12: query 'speed': having: "),
        (WHOLE.replace("window: session(15), ", ""), "q.yaml, line 13: query 'q2': it has no window"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, said: str) -> None:
    with pytest.raises(wr.QueryError) as caught:
        of_yaml(text, "q.yaml")
    assert str(caught.value).startswith(said)


def test_sql_says_its_own_line_behind_the_file(tmp_path: Path) -> None:
    path = tmp_path / "q.sql"
    path.write_text("-- name: a\nSELECT count(*) FROM events GROUP BY window(ts, '1 hour')")
    assert read(path).queries == tuple(wr.sql(path.read_text()))
    path.write_text("SELECT count(*)\nFROM events, others GROUP BY window(ts, '1 hour')")
    with pytest.raises(wr.QueryError, match=r"q\.sql: line 2, column "):
        read(path)
    with pytest.raises(wr.QueryError, match="standard input: line 1, column 1: there is no statement"):
        of_sql("-- nothing", "standard input")


def test_only_what_is_there_and_says_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(wr.QueryError, match=r"there is no file .*q\.yaml"):
        read(tmp_path / "q.yaml")
    (tmp_path / "q.txt").write_text(WHOLE)
    with pytest.raises(wr.QueryError, match=r"q\.txt: queries are SQL or YAML: call the file \.sql or \.yaml"):
        read(tmp_path / "q.txt")
    (tmp_path / "q.yml").write_bytes(b"\xff\xfe")
    with pytest.raises(wr.QueryError, match=r"q\.yml cannot be read: "):
        read(tmp_path / "q.yml")
