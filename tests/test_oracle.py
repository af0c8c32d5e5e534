"""The oracle on cases worked out by hand, and the comparer shown to see every kind of error.

Most of what the oracle must do stands in tests/transcripts; here is what a transcript cannot say.
"""

import math
import random
import re
from collections import Counter
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.core.aggregates.formula import aggregate
from windrow.core.query.query import Query
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN, cumulating, session, sliding, tumbling
from windrow.core.windows.ordered import DataDrivenWindow, Punctuated, counting, frames, latest, punctuated
from windrow.testing import Oracle, Result, agrees, differences, recompute, same
from windrow.testing.answers import answer
from windrow.testing.definitions import latest as latest_of
from windrow.testing.definitions import window_ranges, windows_at
from windrow.testing.own import Filled, Uneven
from windrow.testing.standing import needs_order
from windrow.testing.transcripts import Step, read, run_step

COUNT = Query("q", tumbling(10), "count()")


def bounds(results: list[Result]) -> list[tuple[Any, Any]]:
    return [(row["window_start"], row["window_end"]) for row in results]


# --- windows, against their definitions read literally --------------------------------------------------------


@given(st.integers(1, 12), st.integers(1, 12), st.integers(-20, 20), st.integers(-40, 40))
def test_windows_at_is_the_definition(length: int, step: int, offset: int, t: int) -> None:
    ks = range(-200, 200)
    tumblings = [(offset + k * length, offset + (k + 1) * length) for k in ks]
    slidings = [(offset + k * step, offset + k * step + length) for k in ks]
    whole = length * step
    cumulatings = [(offset + k * whole, offset + k * whole + j * step) for k in ks for j in range(1, whole // step + 1)]
    for window, every in [
        (tumbling(length, offset), tumblings),
        (sliding(length, step, offset), slidings),
        (cumulating(whole, step, offset), cumulatings),
    ]:
        assert sorted(windows_at(window, t)) == sorted((a, b) for a, b in every if a <= t < b)


LETTERS = {"o": (False, False), "s": (True, False), "e": (False, True), "b": (True, True)}  # start, end
PATTERNS = {  # what lies in a window, as regular expressions over those letters
    punctuated(end="e"): ("[os]*[eb]", "[os]+$"),
    punctuated(start="s"): ("[sb][oe]*(?=[sb])", "[sb][oe]*$"),
    punctuated(start="s", end="e"): ("b|s[os]*[eb]", "s[os]*$"),
    frames(when="s"): ("[sb]+(?=[oe])", "[sb]+$"),
}


def events_of(letters: str) -> list[dict[str, Any]]:
    return [{"t": 3 * at, "s": LETTERS[one][0], "e": LETTERS[one][1] or None} for at, one in enumerate(letters)]


@pytest.mark.parametrize("window", PATTERNS, ids=str)
@given(letters=st.text("oseb", max_size=25))
def test_ranges_are_what_a_pattern_finds(window: Any, letters: str) -> None:
    closed, still_open = PATTERNS[window]
    whole = re.compile(f"(?P<closed>{closed})|(?P<open>{still_open})")
    expected = [(found.span(), found["open"] is None) for found in whole.finditer(letters)]
    found = list(window_ranges(window, events_of(letters)))
    assert [((one.places.start, one.places.stop), one.completed_by is not None) for one in found] == expected
    own_last = isinstance(window, Punctuated) and window.end is not None
    for one in found:
        if one.completed_by is not None:
            assert one.completed_by == (one.places.stop - 1 if own_last else one.places.stop)


@given(st.integers(0, 40), st.integers(1, 12), st.integers(1, 12))
def test_counting_is_the_definition(events: int, n: int, step: int) -> None:
    every = [range(k * step, k * step + n) for k in range(50)]
    found = list(window_ranges(counting(n, step), [{}] * events))
    assert [one.places for one in found if one.completed_by is not None] == [
        window for window in every if window.stop <= events
    ]
    assert [one.places for one in found if one.completed_by is None] == [
        range(window.start, events) for window in every if window.start < events < window.stop
    ]
    assert all(one.completed_by in (None, one.places.stop - 1) for one in found)


@given(st.lists(st.integers(-30, 30), max_size=25), st.integers(1, 4), st.integers(1, 15))
def test_latest_is_the_definition(times: list[int], n: int, every: int) -> None:
    times.sort()
    expected = [
        (k * every, [t for t in times if t < k * every][-n:])
        for k in range(-40, 40)
        if any((k - 1) * every <= t < k * every for t in times)
    ]
    assert [(end, [times[at] for at in places]) for end, places in latest_of(times, latest(n, every))] == expected


# --- windows of one's own ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Again(DataDrivenWindow):
    """A window of ours, by the cuts that it says itself."""

    window: Any

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.window.inputs)

    def cuts(self, events: Any, state: Any) -> Any:
        return self.window.cuts(events, state)


@given(st.integers(1, 25), st.integers(-40, 40), st.integers(1, 30))
def test_a_fixed_window_of_one_s_own(length: int, lo: int, size: int) -> None:
    every = [(s, s + length) for s in range(-200, 200) if s % 7 == 0 or s % 10 == 0]
    hi = lo + size
    found = [bounds.tolist() for bounds in Uneven(length).windows(lo, hi)]
    assert list(zip(*found, strict=True)) == [(a, b) for a, b in every if a < hi and b > lo]
    for t in range(lo, hi):
        assert list(windows_at(Uneven(length), t)) == [(a, b) for a, b in every if a <= t < b]


def test_a_data_driven_window_of_one_s_own() -> None:
    rows = [{"t": t, "k": k, "x": x} for t, k, x in [(1, "a", 3), (2, "b", 9), (3, "a", 4), (3, "a", 1), (4, "a", 2)]]
    query = Query("q", Filled(7), "sum(x)", by="k")
    found = recompute(rows, [query])
    assert [(row["k"], *bounds([row])[0], row["sum(x)"]) for row in found] == [("b", 2, 2, 9), ("a", 1, 3, 7)]
    (rest,) = (row for row in recompute(rows, [query], partial=True) if row not in found)
    assert (rest["k"], *bounds([rest])[0], rest["sum(x)"]) == ("a", 3, 4, 3)


def test_aggregates_of_one_s_own() -> None:
    rows = [
        {"t": 2, "x": 3, "w": 5},
        {"t": 1, "x": 2, "w": None},
        {"t": 1, "x": None, "w": 1},
        {"t": 3, "x": 4, "w": 1},
    ]
    query = Query("q", tumbling(10), ["chained(x)", "sum_of_products(x, w)", "sum_of_products(w, x * 0) + count()"])
    (row,) = recompute(rows, [query])
    assert [row[asked.name] for asked in query.aggregates] == ["2;3;4;", 19, 4]
    (row,) = recompute(rows[2:3], [query])
    assert [row[asked.name] for asked in query.aggregates] == [None, None, None]


def test_an_aggregate_that_does_not_commute_takes_no_late_event() -> None:
    ordered, plain = (Query(name, tumbling(10), f"{name}(x)") for name in ("chained", "collect"))
    assert (needs_order(ordered), needs_order(plain)) == (True, False)
    oracle = Oracle([ordered, plain])
    oracle.push([{"t": 5, "x": 1}])
    oracle.push([{"t": 4, "x": 2}, {"t": 5, "x": 3}])
    assert [row.get("chained(x)") or row.get("collect(x)") for row in oracle.finish()] == ["1;3;", [2, 1, 3]]
    assert (oracle.late, oracle.dropped) == (1, 1)


@given(letters=st.text("oseb", max_size=25))
def test_our_data_driven_windows_say_the_same_cuts(letters: str) -> None:
    for window in PATTERNS:
        by_definition = [one[:2] for one in window_ranges(window, events_of(letters))]
        assert [one[:2] for one in window_ranges(Again(window), events_of(letters))] == by_definition


# --- what is not a transcript: whole tables, datetimes, refusals ----------------------------------------------


def test_a_whole_table_has_no_late_events() -> None:
    rows = [{"t": t} for t in (100, 5, 55, 6)]
    assert bounds(recompute(rows, [COUNT])) == [(0, 10), (50, 60), (100, 110)]
    assert [row["count()"] for row in recompute(rows, [COUNT])] == [2, 1, 1]


def test_a_whole_table_uses_the_lateness_for_repeats_only() -> None:
    once = Query("q", tumbling(100), "count()", distinct_on="id")
    rows = [{"t": t, "id": 1} for t in (10, 50, 12, 80)]
    assert [row["count()"] for row in recompute(rows, [once])] == [4]
    assert [row["count()"] for row in recompute(rows, [once], lateness=30)] == [2]  # 10 and 50
    assert [row["count()"] for row in recompute(rows, [once], lateness=None)] == [1]


def test_an_integer_sum_beyond_int64_is_refused_in_a_whole_table_and_null_in_a_stream() -> None:
    query = Query("q", tumbling(10), ["sum(x)", aggregate("sum(x) + 1").alias("more")])
    rows = [{"t": 1, "x": INT64_MAX}, {"t": 2, "x": 1}]
    with pytest.raises(OverflowError, match="9223372036854775808"):
        recompute(rows, [query])
    oracle = Oracle([query])
    oracle.push(rows)
    assert [(row["sum(x)"], row["more"]) for row in oracle.finish()] == [(None, None)]
    assert oracle.overflows == 2  # the sum, and the formula over it


@pytest.mark.parametrize("zone", [None, UTC])
def test_datetimes_come_back_as_they_went_in(zone: Any) -> None:
    start = datetime(1969, 12, 31, 23, 59, tzinfo=zone)
    rows = [{"t": start + timedelta(seconds=90)}]
    (row,) = recompute(rows, [Query("q", tumbling("1 minute"), "count()")])
    assert (row["window_start"], row["window_end"]) == (start + timedelta(minutes=1), start + timedelta(minutes=2))


def test_results_carry_their_events_in_order() -> None:
    rows = [{"t": 5, "x": 1}, {"t": 3, "x": 2}, {"t": 15, "x": 3}]
    first, second = recompute(rows, [COUNT])
    assert first.events == (rows[1], rows[0])
    assert second.events == (rows[2],)


def test_late_rows_are_taken_aside() -> None:
    oracle = Oracle([COUNT, Query("s", session(5), "count()")])
    oracle.push([{"t": 1}, {"t": 20}])
    oracle.push([{"t": 2}, {"t": 21}])
    assert (oracle.late, oracle.dropped, oracle.late_rows) == (1, 1, [{"t": 2}])


@pytest.mark.parametrize("time", [None, 1.5, "noon", True])
def test_what_is_no_time_is_refused(time: Any) -> None:
    oracle = Oracle([COUNT])
    with pytest.raises((TypeError, ValueError), match="'t'"):
        oracle.push([{"t": 1}, {"t": time}])
    assert oracle.finish() == []


def test_names_are_unique_and_removals_say_when() -> None:
    oracle = Oracle([COUNT])
    with pytest.raises(ValueError, match="already a query 'q'"):
        oracle.add(COUNT)
    with pytest.raises(ValueError, match="windows_closed"):
        oracle.remove("q", "later")


def test_an_added_query_says_where_it_begins() -> None:
    oracle = Oracle()
    assert oracle.add(COUNT) == INT64_MIN
    oracle.push([{"t": 30}])
    assert oracle.add(Query("r", tumbling(10), "count()"), since=4) == 31
    assert oracle.add(Query("s", tumbling(10), "count()"), since=40) == 40


# --- aggregates -----------------------------------------------------------------------------------------------


def of(text: str, *values: Any) -> Any:
    return answer(aggregate(text), [{"x": value} for value in values])


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("sum(x)", (0.1, 0.2, 0.3, -0.6), 2.0**-55),  # exactly, and rounded once
        ("sum(x)", (1e308, 1e308, -1e308), 1e308),
        ("sum(x)", (1e308, 1e308), math.inf),
        ("sum(x)", (Decimal("1e20"), Decimal("0.01")), Decimal("100000000000000000000.01")),
        ("mean(x)", (INT64_MAX, INT64_MAX - 2), float(INT64_MAX - 1)),
        ("mean(x)", (Decimal("0.1"), Decimal("0.2")), 0.15),
        ("product(x)", (1e-200, 1e-200, 1e200, 1e200), 1.0),
        ("product(x)", (3, -2), -6.0),
        ("geometric_mean(x)", (math.inf, 2.0), math.inf),
        ("variance_pop(x)", (1e16, 1e16 + 2), 1.0),
        ("stddev(x)", (0.1, 0.1, 0.1), 0.0),
        ("range(x)", (datetime(2024, 1, 3), datetime(2024, 1, 1)), timedelta(days=2)),
        ("quantile(x, 0.1)", (3.0, 1.0, 2.0), 1.2),
        ("mode(x)", (2.0, math.nan, math.nan), math.nan),
        ("mode(x)", (True, False), False),
        ("distinct(x)", (0.0, -0.0, math.nan, math.nan, None), 2),
        ("approx_quantile(x, 0.5)", (1, 2, 3, 4), 2.0),
        ("approx_quantile(x, 0.5)", (math.nan,), None),
        ("approx_distinct(x)", ("", "a", "a", "b"), 2),
        ("top_k(x, 1)", (2, 1, 2, 1), [{"value": 1, "count": 2}]),
        ("collect(x)", (2, None, 1), [2, 1]),
        ("collect(x, true)", (2, None, 1), [2, None, 1]),
        ("collect(x)", (None,), []),
    ],
)
def test_aggregates_where_doubles_would_err(text: str, values: tuple[Any, ...], expected: Any) -> None:
    found = of(text, *values)
    assert type(found) is type(expected)
    if isinstance(expected, float):
        expected = pytest.approx(expected, rel=1e-15, nan_ok=True)
    assert found == expected


@given(st.lists(st.integers(-(2**40), 2**40), min_size=2, max_size=20))
def test_variance_is_the_mean_of_squared_differences_of_all_pairs(values: list[int]) -> None:
    pairs = sum((a - b) ** 2 for a in values for b in values)
    assert of("variance_pop(x)", *values) == float(Fraction(pairs, 2 * len(values) ** 2))


# --- streams and whole tables agree ---------------------------------------------------------------------------

QUERIES = [
    Query("hop", sliding(7, 3), ["count()", "sum(x)", "first(x)"], by="k"),
    Query("run", session(4), ["count()", "sum(x)", "last(x)"], by="k"),
    Query("sum", cumulating(12, 4), ["count()", "sum(x)"], where="x > 0"),
    Query("ten", counting(3, 2), ["sum(x)", "first(x)"], by="k"),
    Query("two", counting(2), ["sum(x)"], where="x > 0"),
    Query("new", latest(2, every=7), ["sum(x)", "last(x)"], by="k"),
]
CUT = [
    Query("end", punctuated(end="x > 1"), ["sum(x)"], by="k"),
    Query("start", punctuated(start="x > 1"), ["sum(x)"]),
    Query("both", punctuated(start="x > 0", end="x < 0 OR x = 1"), ["sum(x)"]),
    Query("frame", frames(when="x > 0"), ["sum(x)"], by="k", where="x <> 0"),
]
rows_of = st.builds(
    lambda t, k, x: {"t": t, "k": k, "x": x},
    st.integers(-30, 30),
    st.sampled_from(["a", "b", None]),
    st.integers(-3, 3),
)


@given(st.lists(st.lists(rows_of, max_size=5), max_size=6), st.integers(60, 70), st.booleans())
def test_a_stream_within_its_lateness_gives_the_whole_table(
    batches: list[list[dict[str, Any]]], lateness: int, partial: bool
) -> None:
    queries = [*QUERIES, *CUT]
    oracle = Oracle(queries, lateness=lateness)
    found = [row for batch in batches for row in oracle.push(batch)] + oracle.finish(partial)
    whole = recompute([row for batch in batches for row in batch], queries, partial=partial)
    assert differences(found, whole, queries) == []
    assert oracle.dropped == 0


def identity_of(row: Result) -> tuple[Any, ...]:
    """Of windows that do not start at the same time."""
    by = {"ten": ["position"], "two": ["position"], "new": ["window_end"], "hop": ["window_start", "window_end"]}
    by["sum"] = by["hop"]
    return (row["query"], row.get("k"), *(row[column] for column in by.get(row["query"], ["window_start"])))


@pytest.mark.parametrize(("queries", "ties"), [(QUERIES, True), (CUT, False)], ids=["counted or timed", "cut"])
@given(batches=st.lists(st.lists(rows_of, max_size=4), max_size=6))
def test_with_endless_updates_the_last_revisions_give_the_whole_table(
    queries: list[Query], ties: bool, batches: list[list[dict[str, Any]]]
) -> None:
    rows = [row for batch in batches for row in batch]
    if not ties:
        alone = {t for t, count in Counter(row["t"] for row in rows).items() if count == 1}
        batches = [[row for row in batch if row["t"] in alone] for batch in batches]
    oracle = Oracle(queries, updates=1000)
    said: dict[Any, Any] = {}
    for row in [row for batch in batches for row in oracle.push(batch)] + oracle.finish():
        identity = identity_of(row)
        assert row["revision"] == (said[identity]["revision"] + 1 if identity in said else 0)
        said[identity] = row
    last = [row for row in said.values() if not row["retracted"]]
    whole = recompute([row for batch in batches for row in batch], queries)
    assert differences([{**row, "revision": 0} for row in last], whole, queries) == []
    assert oracle.dropped == 0


# --- the comparer sees every kind of error --------------------------------------------------------------------


def example() -> tuple[list[Query], list[Result]]:
    queries = [
        Query("hop", sliding(10, 5), ["count()", "sum(x)", "mean(f)", "m4(f)"], by="k"),
        Query("run", session(3), ["median(f)"]),
        Query("ten", counting(4, 2), ["sum(x)"]),
        Query("new", latest(3, every=10), ["sum(x)"]),
        Query("up", frames(when="f > 0"), ["sum(x)"]),
    ]
    numbers = random.Random(7)
    rows = [{"t": t, "k": "ab"[t % 2], "x": t, "f": numbers.gauss(0, 1)} for t in range(0, 40, 3)]
    return queries, recompute(rows, queries[:2], updates=0) + recompute(rows, queries[2:], updates=0)


def _wrong_value(rows: list[Result]) -> None:
    rows[3]["sum(x)"] += 1


def _slightly_wrong_value(rows: list[Result]) -> None:
    rows[3]["mean(f)"] *= 1 + 1e-8


def _wrong_inside(rows: list[Result]) -> None:
    rows[3]["m4(f)"] = rows[3]["m4(f)"] | {"last": 0.0}


def _null(rows: list[Result]) -> None:
    rows[3]["mean(f)"] = None


def _nan(rows: list[Result]) -> None:
    rows[3]["mean(f)"] = math.nan


def _missing_row(rows: list[Result]) -> None:
    del rows[3]


def _extra_row(rows: list[Result]) -> None:
    rows.append(copy(rows[3]))
    rows[-1]["window_start"] += 1000
    rows[-1]["window_end"] += 1000


def _duplicate(rows: list[Result]) -> None:
    rows.insert(4, rows[3])


def _wrong_revision(rows: list[Result]) -> None:
    rows[3]["revision"] = 1


def _retracted(rows: list[Result]) -> None:
    rows[3]["retracted"] = True


def _wrong_end(rows: list[Result]) -> None:
    rows[-1]["window_end"] += 1


def of_query(rows: list[Result], name: str) -> Result:
    return [row for row in rows if row["query"] == name][-1]


def _wrong_position(rows: list[Result]) -> None:
    of_query(rows, "ten")["position"] += 1


def _no_position(rows: list[Result]) -> None:
    of_query(rows, "ten")["position"] = None


def _position_of_nothing(rows: list[Result]) -> None:
    of_query(rows, "new")["position"] = 0


def _wrong_end_of_count(rows: list[Result]) -> None:
    of_query(rows, "ten")["window_end"] += 1


def _wrong_start_of_latest(rows: list[Result]) -> None:
    of_query(rows, "new")["window_start"] += 1


def _wrong_end_of_frame(rows: list[Result]) -> None:
    of_query(rows, "up")["window_end"] += 1


def _wrong_key(rows: list[Result]) -> None:
    rows[3]["k"] = None


def _unknown_query(rows: list[Result]) -> None:
    rows[3]["query"] = "hup"


def _missing_column(rows: list[Result]) -> None:
    del rows[3]["sum(x)"]


PLANTED = {
    _wrong_value: "sum(x) is",
    _slightly_wrong_value: "mean(f) is",
    _wrong_inside: "m4(f) is",
    _null: "mean(f) is None",
    _nan: "mean(f) is nan",
    _missing_row: "is missing",
    _extra_row: "is not expected",
    _duplicate: "2 rows, and should be 1",
    _wrong_revision: "revision is 1, not 0",
    _retracted: "retracted is True",
    _wrong_end: "",
    _wrong_position: "is missing",
    _no_position: "is missing",
    _position_of_nothing: "position is 0, and nothing is counted",
    _wrong_end_of_count: "window_end is",
    _wrong_start_of_latest: "window_start is",
    _wrong_end_of_frame: "window_end is",
    _wrong_key: "is missing",
    _unknown_query: "there is no such query",
    _missing_column: "has no column 'sum(x)'",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_the_comparer_sees(plant: Any) -> None:
    queries, expected = example()
    actual = [copy(row) for row in expected]
    assert differences(actual, expected, queries, ordered=True) == []
    plant(actual)
    found = differences(actual, expected, queries)
    assert found
    assert PLANTED[plant] in "\n".join(found)
    assert not same(actual, expected, queries)


def test_the_comparer_sees_a_wrong_order_if_asked() -> None:
    queries, expected = example()
    actual = [expected[1], expected[0], *expected[2:]]
    assert same(actual, expected, queries)
    assert differences(actual, expected, queries, ordered=True)[0].startswith("row 0 is")


def test_the_comparer_takes_the_order_of_revisions_into_account() -> None:
    oracle = Oracle([COUNT], updates=100)
    said = oracle.push([{"t": 1}, {"t": 10}]) + oracle.push([{"t": 2}])
    assert [row["revision"] for row in said] == [0, 1]
    assert same(said[::-1], said, [COUNT])
    assert not same(said[::-1], said, [COUNT], ordered=True)
    assert not same([said[0], said[0]], said, [COUNT])


def test_windows_that_start_at_the_same_time_are_compared_as_they_come() -> None:
    query = Query("q", punctuated(end="x > 1"), "sum(x)")
    rows = [{"t": 1, "x": x} for x in (2, 1, 3, 5)]
    expected = recompute(rows, [query])
    assert [row["sum(x)"] for row in expected] == [2, 4, 5]
    assert same(expected, expected, [query], ordered=True)
    assert not same([expected[1], expected[0], expected[2]], expected, [query])
    assert not same(expected[1:], expected, [query])
    ignored = [{**row, "position": None} for row in expected]
    assert same(ignored, expected, [query])


def test_other_columns_do_not_matter_and_times_may_be_datetimes() -> None:
    moment = datetime(1970, 1, 1)
    expected = [{"query": "q", "window_start": 0, "window_end": 10, "revision": 0, "count()": 1}]
    other = {"window_start": moment, "window_end": moment + timedelta(microseconds=10), "other": None}
    assert same([expected[0] | other], expected, [COUNT])


@pytest.mark.parametrize(
    ("text", "values", "right", "wrong"),
    [
        # a sum may be wrong by what its terms lose, even where they cancel out
        ("sum(x)", [1e9, -1e9, 1.0], [1.0 + 1e-3], [1.0 + 1e-2]),
        ("sum(x)", [1, 2], [3, 3.0], [3.0000000001, 4]),
        ("sum(x)", [Decimal("0.1"), Decimal("0.2")], [Decimal("0.30")], [Decimal("0.3000000000001"), 0.3]),
        ("mean(x)", [1.0, 2.0], [1.5 + 1e-9], [1.5 + 1e-8, None]),
        ("product(x)", [1e-300, 1e-5], [1e-305 * (1 + 1e-10)], [1.1e-305, 0.0]),
        ("variance(x)", [1e9, 1e9 + 1], [0.5 * (1 + 1e-7)], [0.5 * (1 + 1e-5)]),
        ("variance_pop(x)", [0.1, 0.1, 0.1], [0.0, 1e-33], [1e-20]),
        ("stddev_pop(x)", [0.1, 0.1, 0.1], [0.0, 1e-17], [1e-12]),
        ("median(x)", [1e6, -1e6], [1e-7], [1e-5]),
        ("min(x)", [0.1, 0.2], [0.1], [0.1 + 1e-16]),
        ("max(x)", [math.nan, 1.0], [math.nan], [1.0, None]),
        ("last(x)", [True], [True], [1, None]),
        ("sum(x)", [math.inf, 1.0], [math.inf], [-math.inf, math.nan, 1e308]),
        ("sum(x) / count()", [1e9, -1e9, 1.0], [(1.0 + 1e-3) / 3], [(1.0 + 1e-2) / 3]),
        ("1000 * sum(x)", [1e9, -1e9, 1.0], [1001.0], [1010.0]),
        ("max(x) - min(x)", [1.0, 4.0], [3.0], [3.0 + 1e-9]),
        ("count() > 1", [1, 2], [True], [False, None]),
        ("approx_quantile(x, 0.5)", list(range(1000)), [499.0, 510.0, 490.0], [530.0, 499.5, None]),
        ("approx_distinct(x)", list(range(1000)), [1000, 1030, 970], [1100, 0]),
        ("top_k(x, 1)", [1, 1, 2], [[{"value": 1, "count": 2}]], [[{"value": 1, "count": 3}], [], None]),
    ],
)
def test_how_exact_a_value_must_be(text: str, values: list[Any], right: list[Any], wrong: list[Any]) -> None:
    asked, rows = aggregate(text), [{"x": value} for value in values]
    expected = answer(asked, rows)
    assert [agrees(asked, value, expected, rows) for value in right] == [True] * len(right)
    assert [agrees(asked, value, expected, rows) for value in wrong] == [False] * len(wrong)


def test_frequent_values_beyond_what_the_sketch_keeps() -> None:
    values = [number for number in range(1000) for _ in range(1 if number > 2 else 50)]
    asked, rows = aggregate("top_k(x, 3)"), [{"x": value} for value in values]
    exact = answer(asked, rows)
    assert [one["value"] for one in exact] == [0, 1, 2]
    assert agrees(asked, [{"value": 1, "count": 51}, exact[0], exact[2]], exact, rows)  # the error is 1.49
    assert not agrees(asked, [{"value": 1, "count": 52}, exact[0], exact[2]], exact, rows)
    assert not agrees(asked, [exact[0], {"value": 1, "count": 49}, exact[2]], exact, rows)
    assert not agrees(asked, [exact[0], exact[1], {"value": 7, "count": 1}], exact, rows)
    assert not agrees(asked, [exact[1], exact[1], exact[2]], exact, rows)


# --- transcripts are read with care ---------------------------------------------------------------------------


TRANSCRIPT = """
queries:
- {name: q, window: tumbling(10), aggregates: {n: count()}}
steps:
- input: [{t: 1}, {t: 12}]
  expect: [{query: q, window_start: 0, window_end: 10, n: 1}]
  counted: {late: 0}
"""


def checked(folder: Path, text: str, runtime: Any = None) -> list[str]:
    (folder / "example.yaml").write_text(text)
    transcript = read(folder / "example.yaml")
    return list(transcript.check(runtime or Oracle(transcript.queries, **transcript.options)))


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("n: 1", "n: 2", "the file and the oracle disagree"),
        ("window_end: 10", "window_end: 11", "disagree: q [0, 10]: is not expected"),
        ("[{query: q, window_start: 0, window_end: 10, n: 1}]", "[]", "is not expected"),
        ("late: 0", "late: 1", "late is 0, not 1"),
        ("counted: {late: 0}", "error: no", "does not fail"),
        ("{t: 12}", "{t: null}\n  ]\n- input: [{t: 3}", "null time"),
    ],
)
def test_the_transcript_check_can_fail(tmp_path: Path, before: str, after: str, complaint: str) -> None:
    assert checked(tmp_path, TRANSCRIPT) == []
    assert before in TRANSCRIPT
    try:
        found = checked(tmp_path, TRANSCRIPT.replace(before, after))
    except ValueError as error:
        found = [str(error)]
    assert found
    assert complaint in found[0]


def test_the_transcript_check_sees_a_wrong_runtime(tmp_path: Path) -> None:
    class Forgetful(Oracle):
        def push(self, rows: Any) -> list[Result]:
            return super().push(list(rows)[1:])

    found = checked(tmp_path, TRANSCRIPT, Forgetful([Query("q", tumbling(10), aggregate("count()").alias("n"))]))
    assert found == ["example, step 1 (input): q [0, 10]: is missing: " + found[0].split(": ", 3)[3]]


def test_a_finish_is_whole_or_partial(tmp_path: Path) -> None:
    assert checked(tmp_path, TRANSCRIPT + "- finish: partial\n") == []
    with pytest.raises(ValueError, match="finish is true or partial"):
        checked(tmp_path, TRANSCRIPT + "- finish: no\n")


@pytest.mark.parametrize("word", ["expects", "watermarks"])
def test_an_unknown_word_in_a_transcript_is_refused(tmp_path: Path, word: str) -> None:
    with pytest.raises(ValueError, match=f"{word!r} is none of"):
        checked(tmp_path, TRANSCRIPT.replace("counted", word))


def test_a_step_of_every_kind_runs() -> None:
    oracle = Oracle([COUNT], lateness=None)
    steps = [
        Step("input", [{"t": 3}], {}),
        Step("add", Query("r", tumbling(5), "count()"), {"since": 3}),
        Step("watermark", 10, {}),
        Step("remove", "r", {"when": "windows_closed"}),
        Step("finish", True, {}),
    ]
    found = [run_step(oracle, step) for step in steps]
    assert found[1] == 4
    assert [len(rows) for rows in (found[0], found[2], found[4])] == [0, 1, 0]
