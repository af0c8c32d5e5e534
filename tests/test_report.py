"""The report: what stands on the page is what stands in the results.

Most of it is read back from the page with a parser; a real browser then shows it, in light and dark, wide and narrow.
"""

import fcntl
import itertools
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import browser
import windrow as wr
from windrow.report import Figure, Run, answers, charts, scales, words, write
from windrow.report.markup import Markup, tag
from windrow.report.plans import picture
from windrow.report.series import drawing

START = datetime(2026, 6, 1, 8, tzinfo=UTC)
EVIL = "<script>document.title='owned'</script>"


class Page(HTMLParser):
    """The elements of a page, in order: (tag, attributes, text directly inside)."""

    VOID = ("meta", "link", "br")

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.open: list[int] = []
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)
        self.close()
        assert not self.open, "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(len(self.elements))
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag: str) -> None:
        assert self.elements[self.open.pop()][0] == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.elements[self.open[-1]][2].append(data)

    def all(self, tag: str, of: str | None = None) -> list[dict[str, str | None]]:
        return [have for name, have, _ in self.elements if name == tag and (of is None or of in _classes(have))]

    def texts(self, tag: str, of: str | None = None) -> list[str]:
        found = [(have, said) for name, have, said in self.elements if name == tag]
        return ["".join(said) for have, said in found if of is None or of in _classes(have)]

    @property
    def charts(self) -> list[dict[str, Any]]:
        """What each chart shows under the pointer."""
        return [json.loads(have["data-hover"] or "") for have in self.all("svg", "chart")]


def _classes(have: dict[str, str | None]) -> list[str]:
    return (have.get("class") or "").split()


def events(size: int = 4000, seed: int = 7) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    at = np.sort(rng.integers(0, 3600, size))
    return pl.DataFrame(
        {
            "ts": [START + timedelta(seconds=int(one)) for one in at],
            "car": rng.choice(["a", "b", EVIL], size),
            "speed": 50 + 20 * np.sin(at / 500) + rng.normal(0, 5, size),
            "gear": rng.choice(["1", "2"], size),
        }
    )


QUERIES = (
    wr.Query("steps", wr.tumbling("5 minutes"), [wr.mean("speed")], by="car"),
    wr.Query("slides", wr.sliding("10 minutes", "1 minute"), ["max(speed)", "count()"]),
    wr.Query(
        "band",
        wr.tumbling("2 minutes"),
        [wr.quantile("speed", 0.05).alias("low"), "median(speed)", wr.quantile("speed", 0.95).alias("high")],
    ),
    wr.Query("so far", wr.cumulating("30 minutes", "5 minutes"), ["count()"]),
    wr.Query("trip", wr.session("10 seconds"), ["count()"], by="car", where="speed > 60"),
    wr.Query("counted", wr.counting(500), ["stddev(speed)"]),
    wr.Query("stops", wr.punctuated(end="speed < 25"), ["count()"]),
    wr.Query("fast", wr.frames(when="speed > 65"), ["max(speed)"], by="car"),
    wr.Query("recent", wr.latest(10, every="5 minutes"), ["mean(speed)"], by="car"),
    wr.Query("gears", wr.tumbling("10 minutes"), ["mode(gear)", "collect(gear)"]),
    wr.Query(EVIL, wr.tumbling("10 minutes"), ["count()"], where="gear = '<b>'"),
)
RUN = Run(
    QUERIES,
    engine="local",
    time="ts",
    lateness="10 seconds",
    seconds=2.0,
    events=4000,
    late=0,
    network=(Figure("slices", 1000), Figure("events as they are", 1_000_000), Figure("another's", 250)),
    touched=(Figure("windrow", 1.0), Figure("Spark's own plan", 63.0)),
)


@pytest.fixture(scope="module")
def results() -> pl.DataFrame:
    found: pl.DataFrame = wr.windows(events(), QUERIES, time="ts")
    return found


@pytest.fixture(scope="module")
def written(results: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    results.write_parquet(folder / "part-0.parquet")
    RUN.write(folder)
    return write(folder)


def report(tmp_path: Path, queries: list[wr.Query], results: pl.DataFrame) -> Page:
    tmp_path.mkdir(exist_ok=True)
    results.write_parquet(tmp_path / "part-0.parquet")
    Run(tuple(queries), time="t").write(tmp_path)
    return Page(write(tmp_path))


# --- the page -----------------------------------------------------------------------------------------------


def test_every_query_has_its_section_and_those_with_numbers_a_chart(written: Path) -> None:
    page = Page(written)
    assert written.name == "report.html"
    assert len(page.all("section", "query")) == len(QUERIES)
    assert page.texts("h3")[-len(QUERIES) :] == [query.name for query in QUERIES]
    sections = page.text.split('<section class="card query">')[1:]
    kinds = {query.name: section.count('class="chart"') for query, section in zip(QUERIES, sections, strict=True)}
    # one panel with a line for each key; two numbers of other units; lanes; a bar chart; nothing to draw
    assert kinds == {
        "steps": 1,
        "slides": 2,
        "band": 1,
        "so far": 1,
        "trip": 1,
        "counted": 1,
        "stops": 1,
        "fast": 1,
        "recent": 1,
        "gears": 0,
        EVIL: 0,
    }


def test_the_numbers_in_a_chart_are_those_of_the_results(written: Path, results: pl.DataFrame) -> None:
    (chart,) = [one for one in Page(written).charts if "low" in one["traces"][0]["v"]]
    trace, unit, low = chart["traces"][0], int(chart["unit"]), int(chart["low"])
    own = wr.results_of(results, QUERIES[2])
    assert [low + unit * n for n in trace["s"]] == own["window_start"].cast(pl.Int64).to_list()
    assert [low + unit * n for n in trace["e"]] == own["window_end"].cast(pl.Int64).to_list()
    for name in ("low", "median(speed)", "high"):
        assert trace["v"][name] == pytest.approx(own[name].to_list(), rel=1e-5)


def test_a_line_for_each_key_stands_where_its_windows_do(results: pl.DataFrame) -> None:
    answer = answers.answer(results, "steps", QUERIES[0])
    (block,) = drawing(answer).blocks
    for trace in block.panels[0].traces:
        own = wr.results_of(results, QUERIES[0]).filter(pl.col("car") == trace.label)
        assert trace.values["mean(speed)"].tolist() == own["mean(speed)"].to_list()
        assert trace.end.tolist() == own["window_end"].cast(pl.Int64).to_list()


def test_text_of_users_never_becomes_markup(written: Path) -> None:
    page = Page(written)
    assert len(page.all("script")) == 1
    assert EVIL not in page.text
    assert EVIL in page.texts("h3")
    assert EVIL in page.texts("td")
    assert EVIL in {trace["name"] for chart in page.charts for trace in chart["traces"]}


def test_a_tag_escapes_what_is_not_markup() -> None:
    made = tag("b", "<i>", tag("i", "&"), None, 1, class_='"', data_x=None)
    assert made == '<b class="&quot;">&lt;i&gt;<i>&amp;</i>1</b>'
    assert isinstance(made, Markup)


def test_nothing_is_loaded_and_everything_has_a_name(written: Path) -> None:
    page = Page(written)
    for name, have, _ in page.elements:
        assert "src" not in have, name
        assert (have.get("href") or "#").startswith(("#", "data:")), have
    assert "url(" not in page.text
    assert "@import" not in page.text
    drawn = [*page.all("svg", "chart"), *page.all("svg", "plan")]
    assert all(have.get("role") == "img" and have.get("aria-label") for have in drawn)
    assert page.all("th")
    assert all(have.get("scope") == "col" for have in page.all("th"))


def test_the_run_is_told(written: Path) -> None:
    page = Page(written)
    facts = dict(zip(page.texts("dt"), page.texts("dd"), strict=True))
    assert facts["events"] == "4,000"
    assert facts["took"] == "2 s"
    assert facts["events per second"] == "2,000"
    said = page.texts("figcaption")
    assert said == [
        "1,000 times fewer bytes than events as they are, and 4 times more bytes than another's.",
        "63 times fewer touches than Spark's own plan.",
    ]
    in_colour = [have["class"] for have in page.all("div") if "bar" in (have.get("class") or "").split()]
    assert in_colour == ["bar c0", "bar c5", "bar c5", "bar c0", "bar c5"]  # what this run did


def test_the_plan_is_drawn_with_what_is_shared(written: Path) -> None:
    page = Page(written)
    plan = wr.plan(QUERIES, "ts")
    names = [text for text in page.texts("text", "name") if text.startswith("by (")]
    assert names == [group.name for group in plan.groups]
    assert plan.explain() in page.texts("pre")
    car = plan.groups[0]
    assert [one.text for one in car.partials][:2] == ["count()", "sum(speed)"]
    badges = page.texts("tspan", "badge")
    # `steps`, `recent` and `fast` are one group: all count events, two of them keep a sum
    assert badges[:2] == ["3", "2"]


def test_the_plan_of_a_run_on_spark_is_that_of_spark(tmp_path: Path, results: pl.DataFrame) -> None:
    results.write_parquet(tmp_path / "part-0.parquet")
    replace(RUN, engine="spark").write(tmp_path)
    page = Page(write(tmp_path))
    assert wr.plan(QUERIES, "ts", kinds_apart=True).explain() in page.texts("pre")


def test_arrows_from_two_groups_do_not_lie_on_each_other() -> None:
    keys = (("a", "b"), ("c", "d"), "a", "c")  # the third is rolled up from the first, the fourth from the second
    asked = [wr.Query(f"q{n}", wr.tumbling(10), "count()", by=by) for n, by in enumerate(keys)]
    plan = wr.plan(asked, "ts")
    assert [group.parent and group.parent.name for group in plan.groups] == [
        None,
        None,
        "by (a, b) on ts",
        "by (c, d) on ts",
    ]
    sides = re.findall(r'd="M[\d.]+,[\d.]+H(\d+)V', picture(plan))
    assert len(sides) == len(set(sides)) == 2


def test_a_query_is_said_in_words() -> None:
    said = [words.window(query.window) for query in QUERIES]
    assert said[:9] == [
        "every 5 minutes, one window after the other",
        "10 minutes long, a new one every minute",
        "every 2 minutes, one window after the other",
        "so far, at every 5 minutes, starting again every 30 minutes",
        "runs of events at most 10 seconds apart",
        "every 500 events",
        "up to each event with speed < 25",
        "runs of events with speed > 65",
        "the last 10 events, at every 5 minutes",
    ]


# --- what is drawn ------------------------------------------------------------------------------------------


def table(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
    frame = pl.DataFrame(rows, infer_schema_length=None)
    return frame.select(pl.lit(name).alias("query"), pl.all())


def test_nulls_and_what_is_not_finite_leave_gaps(tmp_path: Path) -> None:
    values = [1.0, 2.0, None, 4.0, float("nan"), 6.0, float("inf"), 8.0, 9.0]
    rows = [{"window_start": n, "window_end": n + 1, "revision": 0, "x": one} for n, one in enumerate(values)]
    query = wr.Query("q", wr.tumbling(1), [wr.max("v").alias("x")])
    page = report(tmp_path, [query], table("q", rows))
    (line,) = page.all("path", "line")
    assert (line["d"] or "").count("M") == 4
    assert page.charts[0]["traces"][0]["v"]["x"] == [1, 2, None, 4, None, 6, None, 8, 9]
    assert "NaN and infinity, 2 times, leave gaps." in page.texts("li")


def test_a_missing_window_leaves_a_gap(tmp_path: Path) -> None:
    rows = [{"window_start": n, "window_end": n + 10, "revision": 0, "count()": 1} for n in (0, 10, 30, 40)]
    page = report(tmp_path, [wr.Query("q", wr.tumbling(10), "count()")], table("q", rows))
    (line,) = page.all("path", "line")
    assert (line["d"] or "").count("M") == 2


def test_only_the_last_revision_is_drawn(tmp_path: Path) -> None:
    query = wr.Query("q", wr.session(5), ["sum(v)"], by="k")
    rows = [  # two sessions fuse: the second is taken back, the first grows
        {"k": "a", "window_start": 0, "window_end": 9, "revision": 0, "retracted": False, "sum(v)": 1},
        {"k": "a", "window_start": 20, "window_end": 25, "revision": 0, "retracted": False, "sum(v)": 2},
        {"k": "a", "window_start": 20, "window_end": 25, "revision": 1, "retracted": True, "sum(v)": None},
        {"k": "a", "window_start": 0, "window_end": 25, "revision": 1, "retracted": False, "sum(v)": 7},
        {"k": "b", "window_start": 0, "window_end": 7, "revision": 0, "retracted": False, "sum(v)": 3},
    ]
    answer = answers.answer(table("q", rows), "q", query)
    assert answer.rows.select("k", "window_end", "sum(v)").rows() == [("a", 25, 7), ("b", 7, 3)]
    assert (answer.superseded, answer.retracted) == (2, 1)
    page = report(tmp_path, [query], table("q", rows))
    assert [trace["v"]["sum(v)"] for trace in page.charts[0]["traces"]] == [[7], [3]]


def test_windows_of_tied_events_all_stay() -> None:
    rows = [{"window_start": 1, "window_end": 1, "revision": 0, "count()": n} for n in (1, 2)]
    answer = answers.answer(table("q", rows), "q", wr.Query("q", wr.frames(when="v > 0"), "count()"))
    assert answer.rows["count()"].to_list() == [1, 2]


def test_many_windows_are_thinned_to_their_outline(tmp_path: Path) -> None:
    size = 50_000
    value = np.random.default_rng(1).normal(0, 1, size)
    rows = pl.DataFrame({"window_start": np.arange(size), "window_end": np.arange(1, size + 1), "x": value})
    results = rows.select(pl.lit("q").alias("query"), pl.all(), pl.lit(0).alias("revision"))
    page = report(tmp_path, [wr.Query("q", wr.tumbling(1), [wr.max("v").alias("x")])], results)
    (trace,) = page.charts[0]["traces"]
    assert 600 < len(trace["s"]) <= 4 * 301
    assert (min(trace["v"]["x"]), max(trace["v"]["x"])) == pytest.approx((value.min(), value.max()), rel=1e-5)
    assert (trace["s"][0], trace["s"][-1]) == (0, size - 1)
    column = -(-size // 300)
    kept = {start // column: [] for start in trace["s"]}
    for start, one in zip(trace["s"], trace["v"]["x"], strict=True):
        kept[start // column].append(one)
    for place, several in kept.items():  # in every column of pixels the outline is that of all windows
        whole = value[place * column : (place + 1) * column]
        assert (min(several), max(several)) == pytest.approx((whole.min(), whole.max()), rel=1e-5)
    assert any("50,000 windows are thinned" in text for text in page.texts("li"))
    assert len(page.text) < 120_000


def test_many_starts_of_cumulating_windows_are_one_outline(tmp_path: Path) -> None:
    end = np.arange(1, 24_001)
    value = (end - 1) % 24 + 1
    rows = pl.DataFrame({"window_start": end - value, "window_end": end, "x": value})
    results = rows.select(pl.lit("q").alias("query"), pl.all(), pl.lit(0).alias("revision"))
    asked = [wr.Query("q", wr.cumulating(24, 1), [wr.count().alias("x")])]
    few, many = report(tmp_path / "few", asked, results[:48]), report(tmp_path / "many", asked, results)
    strokes = [have["d"].count("M") for page in (few, many) for have in page.all("path", "line")]
    assert strokes == [2, 1]


def test_many_bars_become_one_where_they_begin_together(tmp_path: Path) -> None:
    start = np.arange(0, 100_000, 10)
    rows = pl.DataFrame({"window_start": start, "window_end": start + 5, "count()": start % 70})
    results = rows.select(pl.lit("q").alias("query"), pl.all(), pl.lit(0).alias("revision"))
    page = report(tmp_path, [wr.Query("q", wr.session(3), "count()")], results)
    (trace,) = page.charts[0]["traces"]
    assert len(trace["s"]) <= 401
    assert sum(trace["n"]) == len(start)
    assert max(trace["v"]["count()"]) == 60


def test_keys_left_out_are_counted(tmp_path: Path) -> None:
    rows = [
        {"k": f"k{key:02}", "window_start": n, "window_end": n + 1, "revision": 0, "count()": n}
        for key in range(15)
        for n in range(key + 2)
    ]
    page = report(tmp_path, [wr.Query("q", wr.tumbling(1), "count()", by="k")], table("q", rows))
    assert page.texts("h5") == [f"k{key:02}" for key in range(6, 15)]
    assert "The 9 keys with the most windows are drawn, 6 are left out." in page.texts("li")


def test_queries_left_out_are_listed(tmp_path: Path) -> None:
    queries = [wr.Query(f"q{n}", wr.tumbling(10 + n), "count()") for n in range(50)]
    page = report(tmp_path, queries, wr.windows(pl.DataFrame({"t": [1, 2]}), queries, time="t"))
    assert len(page.all("section", "query")) == 40
    assert "10 more queries not drawn" in page.texts("summary")
    assert {"q40", "q49"} <= set(page.texts("td"))
    assert any("and 43 more queries" in text for text in page.texts("text"))


def test_no_results_are_said(tmp_path: Path) -> None:
    query = wr.Query("q", wr.tumbling("1 minute"), ["count()"])
    nothing = wr.windows(events().head(0), [query], time="ts")
    page = report(tmp_path, [query], nothing)
    assert page.texts("p", "empty") == ["There are no results."]
    assert page.charts == []
    assert "No window had a result." in page.texts("li")


@pytest.mark.parametrize("name", ["part-0.csv", "part-0.json", "_SUCCESS"])
def test_a_run_that_found_nothing_may_have_written_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    Run((wr.Query("q", wr.tumbling(5), "count()"),), time="t").write(tmp_path)
    assert Page(write(tmp_path)).texts("p", "empty") == ["There are no results."]


def test_one_window_and_one_number_are_enough(tmp_path: Path) -> None:
    for number in (0.0, -3.0, 1e300, 1e-300, 5.0):
        rows = [{"window_start": 5, "window_end": 5, "revision": 0, "x": number}]
        for window in (wr.tumbling(5), wr.session(5), wr.counting(2, 1), wr.sliding(10, 5)):
            page = report(tmp_path, [wr.Query("q", window, [wr.max("v").alias("x")])], table("q", rows))
            assert len(page.charts) == 1
            assert "nan" not in " ".join(have["d"] or "" for have in page.all("path"))


def test_extremes_of_time_are_drawn_as_numbers(tmp_path: Path) -> None:
    rows = [{"window_start": low, "window_end": low + 2**60, "revision": 0, "x": 1.0} for low in (-(2**61), 2**60)]
    page = report(tmp_path, [wr.Query("q", wr.tumbling(2**60), [wr.max("v").alias("x")])], table("q", rows))
    (chart,) = page.charts
    bounds = [int(chart["low"]) + int(chart["unit"]) * n for n in chart["traces"][0]["s"]]
    assert bounds == [-(2**61), 2**60]


def test_counting_windows_at_one_time_are_drawn_over_their_positions(tmp_path: Path) -> None:
    query = wr.Query("q", wr.counting(2), ["sum(v)"])
    results = wr.windows(pl.DataFrame({"t": [5] * 6, "v": [1, 2, 3, 4, 5, 6]}), [query], time="t")
    (chart,) = report(tmp_path, [query], results).charts
    assert (chart["traces"][0]["s"], chart["traces"][0]["e"]) == ([0, 1, 2], [1, 2, 3])
    assert (chart["low"], chart["unit"], chart["temporal"]) == ("0", "2", False)


def test_columns_may_be_called_anything(tmp_path: Path) -> None:
    start = np.arange(0, 10_000, 10)
    for name in ("start", "end", "first", "merged", "_key", "label", "value", "len"):
        rows = pl.DataFrame({"_start": start % 2, "window_start": start, "window_end": start + 5, name: start})
        results = rows.select(pl.lit("q").alias("query"), pl.all())
        for window in (wr.session(3), wr.tumbling(5)):
            page = report(tmp_path, [wr.Query("q", window, [wr.max("v").alias(name)], by="_start")], results)
            assert {one for chart in page.charts for one in chart["traces"][0]["v"]} == {name}


def test_times_of_any_zone_are_shown_in_utc(tmp_path: Path) -> None:
    start = pl.Series([datetime(2026, 6, 1, 8)], dtype=pl.Datetime("ns")).dt.replace_time_zone("America/New_York")
    rows = pl.DataFrame({"query": ["q"], "window_start": start, "window_end": start, "revision": [0], "count()": [1]})
    page = report(tmp_path, [wr.Query("q", wr.tumbling("1 day"), "count()")], rows)
    assert "2026-06-01 12:00:00" in page.texts("td")
    assert int(page.charts[0]["low"]) == 1_780_315_200_000_000


# --- ticks --------------------------------------------------------------------------------------------------


def test_ticks_are_round_and_lie_on_the_axis() -> None:
    rng = np.random.default_rng(5)
    for _ in range(500):
        low, high = np.sort(rng.normal(0, 10.0 ** rng.integers(-6, 12), 2))
        scale = scales.values(float(low), float(high))
        assert scale.low <= low
        assert scale.high >= high
        assert 2 <= len(scale.ticks) <= 8
        assert len({tick.label for tick in scale.ticks}) == len(scale.ticks)
        assert all(scale.low - 1e-9 <= tick.at <= scale.high for tick in scale.ticks)


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_any_two_numbers_have_a_scale(one: float, other: float) -> None:
    scale = scales.values(min(one, other), max(one, other))
    assert scale.low < scale.high < float("inf")
    assert 1 <= len(scale.ticks) <= 9
    assert all(np.isfinite(tick.at) and tick.label for tick in scale.ticks)


def test_times_never_lie_on_each_other() -> None:
    rng = np.random.default_rng(6)
    year = 365 * 86_400 * 10**6
    for width, temporal in itertools.product((720, 220), (True, False)):
        for length in (10 ** rng.uniform(0.5, 16, 200)).astype(np.int64):
            low = int(rng.integers(-10 * year, 60 * year))
            scale = scales.times(low, low + int(length), temporal, width)
            assert scale.ticks
            assert all(low <= tick.at <= low + length for tick in scale.ticks)
            for left, right in itertools.pairwise(scale.ticks):
                room = (scale.part(right.at) - scale.part(left.at)) * width
                assert room > 7 * (len(left.label) + len(right.label)) / 2


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        ("2013-01-01 05:00", "2014-01-01 00:00", ["Mar 2013", "May", "Jul", "Sep", "Nov", "Jan 2014"]),
        ("2013-01-01", "2013-01-03", ["00:00 1 Jan 2013", "06:00", "12:00", "18:00", "00:00 2 Jan 2013"]),
        ("2013-01-30", "2013-02-20", ["4 Feb 2013", "11 Feb", "18 Feb"]),
        ("2013-01-01 10:00:00", "2013-01-01 10:00:08", ["10:00:00 1 Jan 2013", "10:00:01", "10:00:02"]),
    ],
)
def test_ticks_of_time_are_those_of_the_calendar(low: str, high: str, labels: list[str]) -> None:
    micros = [int(datetime.fromisoformat(one).replace(tzinfo=UTC).timestamp() * 1e6) for one in (low, high)]
    scale = scales.times(*micros, True, 720)
    said = [f"{tick.label} {tick.context}".strip() for tick in scale.ticks]
    assert said[: len(labels)] == labels


@pytest.mark.parametrize(
    ("value", "step", "said"),
    [
        (0, 0.5, "0.0"), (2.5, 2.5, "2.5"), (1000, 500, "1,000"), (20_000, 10_000, "20k"), (1.5e6, 5e5, "1.5M"),
        (-40, 20, "−40"), (1e-7, 1e-7, "1e−07"), (3e18, 1e18, "3e+18"),
    ],
)  # fmt: skip
def test_an_axis_says_numbers_shortly(value: float, step: float, said: str) -> None:
    assert words.short(value, step) == said


# --- what is read -------------------------------------------------------------------------------------------


def test_a_run_is_what_was_written(tmp_path: Path) -> None:
    RUN.write(tmp_path)
    assert Run.read(tmp_path) == RUN
    assert json.loads((tmp_path / "_windrow.json").read_text())["network"][0] == {
        "what": "slices",
        "bytes": 1000,
    }
    assert Run.read(tmp_path / "nowhere") == Run(windrow=None)


def test_all_but_the_queries_is_optional() -> None:
    run = Run.from_json('{"queries": []}')
    assert (run.queries, run.events, run.network, run.windrow) == ((), None, (), None)


def test_a_query_that_is_not_known_here_is_drawn_by_its_results(tmp_path: Path) -> None:
    rows = [{"window_start": n, "window_end": n + 7, "revision": 0, "count()": n} for n in range(0, 70, 7)]
    table("moon", rows).write_parquet(tmp_path / "part-0.parquet")
    described = {"name": "moon", "window": {"kind": "lunar"}, "aggregates": []}
    (tmp_path / "_windrow.json").write_text(json.dumps({"queries": [described]}))
    page = Page(write(tmp_path))
    assert len(page.charts) == 1
    assert any("there is no window called 'lunar' here" in text for text in page.texts("li"))


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_a_file_alone_is_enough(tmp_path: Path, results: pl.DataFrame, kind: str) -> None:
    path = tmp_path / f"results.{kind}"
    own = results.filter(~pl.col("query").is_in(["gears"])).drop("collect(gear)", "mode(gear)")
    {"csv": own.write_csv, "json": own.write_ndjson, "parquet": own.write_parquet}[kind](path)
    page = Page(write(path, tmp_path / "out" / "page.html"))
    whole = Page(write(path.parent / path.name, tmp_path / "out"))
    assert (tmp_path / "out" / "report.html").exists()
    assert page.text == whole.text
    titles = set(page.texts("h4"))
    assert {"mean(speed)", "max(speed)", "count()", "stddev(speed)"} <= titles
    steps = next(one for one in page.charts if one["traces"][0]["name"] == EVIL or len(one["traces"]) == 3)
    assert steps["temporal"]
    forms = {name: answers.answer(own, name, None).form for name in own["query"].unique()}
    assert forms["steps"] == forms["band"] == forms["counted"] == "steps"
    assert forms["slides"] == forms["so far"] == "points"
    assert forms["trip"] == forms["stops"] == "bars"


@pytest.mark.parametrize(
    "text", ["2026-06-01T08:00:00.000Z", "2026-06-01 08:00:00", "2026-06-01T10:00:00.000+02:00", "2026-06-01T08:00:00"]
)
@pytest.mark.parametrize("kind", ["csv", "json"])
def test_times_as_text_are_read(tmp_path: Path, kind: str, text: str) -> None:
    row = {"query": "q", "k": "01", "window_start": text, "window_end": text, "revision": 0, "count()": 1}
    path = tmp_path / f"part-0.{kind}"
    path.write_text(f"{','.join(row)}\n{','.join(map(str, row.values()))}\n" if kind == "csv" else json.dumps(row))
    assert int(Page(write(tmp_path)).charts[0]["low"]) == int(START.timestamp() * 1e6)


def test_only_what_a_stream_committed_is_read(tmp_path: Path) -> None:
    row = {"window_start": 0, "window_end": 1, "revision": 0, "count()": 1}
    for name in ("part-a.parquet", "part-b.parquet", "_temporary.parquet"):
        table(name, [row]).write_parquet(tmp_path / name)
    assert set(Page(write(tmp_path)).texts("h3")) == {"part-a.parquet", "part-b.parquet"}
    (tmp_path / "_spark_metadata").mkdir()
    added = {"path": f"file://{tmp_path}/part-b.parquet", "action": "add"}
    (tmp_path / "_spark_metadata" / "0").write_text("v1\n" + json.dumps(added))
    assert Page(write(tmp_path)).texts("h3") == ["part-b.parquet"]


def test_results_parted_by_query_are_read(tmp_path: Path) -> None:
    (tmp_path / "query=a%20b").mkdir()
    rows = pl.DataFrame({"window_start": [0], "window_end": [1], "revision": [0], "count()": [1]})
    rows.write_parquet(tmp_path / "query=a%20b" / "part-0.parquet")
    assert Page(write(tmp_path)).texts("h3") == ["a b"]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("x.txt", "hello", "holds no results: there is no file ending in .parquet, .csv"),
        ("x.csv", "a,b\n1,2\n", "has no column 'query': report on what a run of windrow wrote"),
        ("_windrow.json", "{", "_windrow.json is not what a run writes"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, name: str, content: str, complaint: str) -> None:
    if name.startswith("_"):
        rows = [{"window_start": 0, "window_end": 1, "revision": 0, "count()": 1}]
        table("q", rows).write_parquet(tmp_path / "part-0.parquet")
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=complaint):
        write(tmp_path)
    with pytest.raises(FileNotFoundError, match="there are no results at"):
        write(tmp_path / "nowhere")


def test_charts_of_nothing_are_none(results: pl.DataFrame) -> None:
    answer = answers.answer(results, EVIL, QUERIES[-1])
    assert charts.chart(answer, drawing(answer)) is None


# --- colours ------------------------------------------------------------------------------------------------

# Machado, Oliveira and Fernandes (2009): what linear RGB becomes for those who lack one kind of cone.
CONES = {
    "all": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "no long": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no medium": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "no short": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB, in which distances are what the eye sees."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb.clip(0, 1)
    x, y, z = np.cbrt(xyz / np.array([0.9505, 1, 1.089]))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("cones", CONES)
def test_colours_are_told_apart_by_everybody(scheme: int, cones: str) -> None:
    style = (Path(charts.__file__).parent / "page.css").read_text(encoding="utf-8")
    found = [re.findall(rf"--c{n}: #(\w{{6}})", style)[scheme] for n in range(5)]
    colours = [np.array([int(one[at : at + 2], 16) / 255 for at in (0, 2, 4)]) for one in found]
    seen = [lab(np.array(CONES[cones]) @ ((one + 0.055) / 1.055) ** 2.4) for one in colours]
    assert min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2)) > 20


# --- in a browser -------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def chromium() -> Iterator[browser.Chromium]:
    """Debian's Chromium; root gets it by itself, once however many workers there are."""
    with (Path(tempfile.gettempdir()) / "windrow-chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if browser.binary() is None and os.geteuid() == 0:
            install = "apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium"
            quietly = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(["sh", "-c", install], env=quietly, capture_output=True, check=False)
    if browser.binary() is None:
        pytest.skip("left out: there is no Chromium here (apt-get install chromium)")
    with browser.Chromium() as made:
        yield made


CONTRAST = """(() => {
  const channel = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = (rgb) => { const [r, g, b] = rgb.map(channel); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const c = parse(getComputedStyle(at).backgroundColor);
      if (c.length === 3 || c[3] > 0) return c.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const one of document.querySelectorAll("h1,h2,h3,h4,h5,p,dt,dd,td,th,li,a,summary,figcaption,svg text,pre")) {
    if (!one.textContent.trim() || !one.getClientRects().length) continue;
    const style = getComputedStyle(one);
    const ink = light(parse(one.closest("svg") ? style.fill : style.color).slice(0, 3));
    const page = light(behind(one));
    found.push([(Math.max(ink, page) + 0.05) / (Math.min(ink, page) + 0.05), one.outerHTML.slice(0, 99)]);
  }
  return found.sort((a, b) => a[0] - b[0])[0];
})()"""
OVERLAPS = """(() => {
  const found = [];
  for (const chart of document.querySelectorAll("svg.chart")) {
    const boxes = [...chart.querySelectorAll("text")].map((one) => [one.textContent, one.getBoundingClientRect()]);
    const shown = boxes.filter(([, box]) => box.width);
    shown.forEach(([text, a], i) => shown.slice(i + 1).forEach(([other, b]) => {
      const beside = a.left >= b.right || b.left >= a.right || a.top + 2 >= b.bottom || b.top + 2 >= a.bottom;
      if (!beside) found.push([text, other]);
    }));
  }
  return found;
})()"""


@pytest.mark.browser
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (400, False)])
def test_in_chromium(chromium: browser.Chromium, written: Path, width: int, dark: bool) -> None:
    chromium.open(written, width, dark)
    assert chromium.errors == []
    assert chromium.requests == [written.resolve().as_uri()]
    sizes = chromium.evaluate(
        "[...document.querySelectorAll('svg.chart .marks')].map(it => it.getBBox()).map(it => [it.width, it.height])"
    )
    assert len(sizes) == len(Page(written).charts)
    assert all(wide > 0 and high >= 0 for wide, high in sizes)
    boxes = "[...document.querySelectorAll('svg.chart, svg.plan')].map(it => it.getBoundingClientRect())"
    assert chromium.evaluate(f"Math.min(...{boxes}.map(it => Math.min(it.width, it.height)))") > 40
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    contrast, where = chromium.evaluate(CONTRAST)
    assert contrast >= 4.5, where
    assert chromium.evaluate(OVERLAPS) == []
    assert chromium.evaluate("document.title") == f"windrow: {written.parent.name}"


@pytest.mark.browser
def test_light_and_dark_differ(chromium: browser.Chromium, written: Path) -> None:
    found = []
    for dark in (False, True):
        chromium.open(written, dark=dark)
        found.append(chromium.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
    assert found == ["rgb(246, 247, 248)", "rgb(14, 17, 22)"]


@pytest.mark.browser
def test_the_window_under_the_pointer_is_shown(
    chromium: browser.Chromium, written: Path, results: pl.DataFrame
) -> None:
    chromium.open(written)
    chart = "[...document.querySelectorAll('svg.chart')].find(it => it.dataset.hover.includes('median'))"
    chromium.evaluate(f"{chart}.scrollIntoView({{block: 'center'}})")
    box = chromium.evaluate(f"{chart}.getBoundingClientRect().toJSON()")
    assert chromium.evaluate("document.getElementById('tip').hidden")
    chromium.point(box["left"] + 0.02 * box["width"], box["top"] + 50)
    assert not chromium.evaluate("document.getElementById('tip').hidden")
    first = wr.results_of(results, QUERIES[2]).row(0, named=True)
    shown = chromium.evaluate("document.getElementById('tip').innerText").split("\n")
    assert shown[0] == f"{first['window_start']:%Y-%m-%d %H:%M} – {first['window_end']:%Y-%m-%d %H:%M}"
    assert shown[1:3] == ["high", f"{first['high']:.6g}"]
    assert chromium.evaluate(f"{chart}.querySelector('.under').getBBox().width") > 0
    chromium.evaluate(f"{chart}.focus()")
    chromium.press("ArrowRight")
    second = chromium.evaluate("document.getElementById('tip').innerText").split("\n")[0]
    assert second.startswith(f"{first['window_end']:%Y-%m-%d %H:%M}")
    chromium.point(2, 2)
    assert chromium.evaluate("document.getElementById('tip').hidden")


@pytest.mark.browser
def test_the_browser_notices_errors_and_requests(chromium: browser.Chromium, tmp_path: Path) -> None:
    page = tmp_path / "wrong.html"
    page.write_text("<script>throw new Error('oh')</script><img src='beside.png'>")
    chromium.open(page)
    assert any("oh" in one for one in chromium.errors)
    assert any(one.endswith("beside.png") for one in chromium.requests)
