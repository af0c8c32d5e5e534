"""The benchmarks run, at a tiny size, their systems give the right results, and they say so when something is wrong."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import windrow as wr

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # bench is beside the package, and in no wheel

from bench import checking, pages, recording, running, showing, trees  # noqa: E402
from bench.baselines import MODULES, approx, is_there, on_flink, system  # noqa: E402
from bench.baselines.common import System, together  # noqa: E402
from bench.cases import SIZES, Case, Mark, Work, all_cases, smaller  # noqa: E402
from bench.data import SECOND, Stream  # noqa: E402
from bench.measuring import parts_of  # noqa: E402


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)


# --- bench/core.py --------------------------------------------------------------------------------------------------


def core(*arguments: str, json_path: Path) -> subprocess.CompletedProcess[str]:
    return run("bench/core.py", "--runs", "1", "--json", str(json_path), *arguments)


def test_every_workload_of_the_core_runs_and_is_written_down(tmp_path: Path) -> None:
    done = core("--scale", "0.001", json_path=tmp_path / "core.json")
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "core.json").read_text())
    assert {"commit", "command", "polars", "cores"} <= written["machine"].keys()
    assert len(written["lines"]) == 14
    assert all(line["value"] > 0 for line in written["lines"])


def test_check_fails_when_a_line_falls_short(tmp_path: Path) -> None:
    # a thousandth of the events leaves nothing but overhead, which no line reaches its mark with
    done = core("--scale", "0.001", "--only", "slicing", "--check", json_path=tmp_path / "core.json")
    assert done.returncode == 1
    assert "short of the mark" in done.stdout


# --- the systems that windrow is measured beside --------------------------------------------------------------------

X = "value"
ASKED = {
    "tumbling": [wr.Query(f"t{n}", wr.tumbling(f"{700 * n} ms"), [wr.sum(X), wr.mean(X)], "key") for n in (1, 2, 5)],
    "sliding": [wr.Query("s", wr.sliding("2500 ms", "1 s"), [wr.max(X), wr.count()], "key")],
    "holistic": [wr.Query("h", wr.sliding("3 s", "1 s"), [wr.median(X), wr.stddev(X), wr.quantile(X, 0.3)], "key")],
    "quantiles": [wr.Query("n", wr.tumbling("3 s"), [wr.median(X), wr.quantile(X, 0.9), wr.mean(X)])],
    "sessions": [wr.Query("z", wr.session("1 s"), [wr.max(X)], "key"), wr.Query("y", wr.session("1 s"), [wr.min(X)])],
    "counting": [wr.Query("c", wr.counting(17), [wr.sum(X), wr.median(X)])],
    "user-defined": [wr.Query("u", wr.punctuated(end="mark"), [wr.sum(X), wr.count()])],
}
STREAMS = {
    "in order": Stream(400, 30, keys=3, gaps=10, marks=1),
    "out of order": Stream(400, 30, keys=3, gaps=10, marks=1, late=0.3, values="distance"),
}
SYSTEMS = [pytest.param(name, marks=[pytest.mark.spark] if name in ("spark", "flink") else []) for name in MODULES]
CLAIMED = {
    "windrow": set(ASKED),
    "buffer": set(ASKED),
    "buckets": set(ASKED),
    "per_function": set(ASKED),
    "polars": {"tumbling", "sliding", "holistic", "quantiles"},
    "duckdb": set(ASKED) - {"user-defined"},
    "spark": {"tumbling", "sliding", "holistic", "quantiles", "sessions"},
    "bytewax": {"tumbling", "sliding", "sessions"},
    "flink": {"tumbling", "sliding", "quantiles"},
}


def answers(name: str, queries: list[wr.Query], stream: Stream) -> pl.DataFrame:
    at_work = system(name).start(queries, stream.lateness)
    found = [at_work.push(part) for part in parts_of(stream.frame(), min(5, system(name).batches))]
    return together([*found, at_work.finish()])


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_gives_the_oracles_results_for_all_that_it_claims(name: str, stream: Stream) -> None:
    if not is_there(name):
        pytest.skip(f"{name} is not installed")
    claimed = {kind for kind, queries in ASKED.items() if system(name).claims(queries)}
    assert claimed == CLAIMED[name]
    for kind in claimed:
        found = answers(name, ASKED[kind], stream)
        assert found.height > 3, kind
        assert checking.by_oracle(found, stream.frame(), ASKED[kind]) == [], kind


def test_flink_is_asked_in_one_statement() -> None:
    queries = [*ASKED["sliding"], wr.Query("t", wr.tumbling("90 s"), [wr.quantile(X, 0.3)])]
    assert (
        on_flink.statement(queries)
        == """\
SELECT 0 AS `number`, `key`, window_start, window_end, \
CAST(MAX(`value`) AS DOUBLE) AS a0, CAST(COUNT(*) AS DOUBLE) AS a1
FROM TABLE(HOP(TABLE events, DESCRIPTOR(ts), INTERVAL '1.000' SECOND(10, 3), INTERVAL '2.500' SECOND(10, 3)))
GROUP BY window_start, window_end, `key`
UNION ALL
SELECT 1 AS `number`, CAST(NULL AS BIGINT) AS `key`, window_start, window_end, \
CAST(PERCENTILE(`value`, 0.3) AS DOUBLE) AS a0, CAST(NULL AS DOUBLE) AS a1
FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '90.000' SECOND(10, 3)))
GROUP BY window_start, window_end"""
    )


def test_flink_claims_what_it_does_exactly_whether_or_not_it_is_installed() -> None:
    claims = system("flink").claims
    assert {kind for kind, queries in ASKED.items() if claims(queries)} == CLAIMED["flink"]
    assert not claims([wr.Query("t", wr.tumbling("1500 us"), [wr.sum(X)])])
    assert not claims([wr.Query("t", wr.tumbling("1 s"), [wr.mean("key")])])  # an average of integers is one for Flink
    assert not claims([wr.Query("t", wr.tumbling("1 s"), [wr.sum(X)], where="value > 0")])


def test_flink_is_there_once_its_environment_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_flink, "HOME", tmp_path)
    monkeypatch.setattr(on_flink.shutil, "which", lambda command: command)
    assert not is_there("flink")
    assert on_flink.version() is None
    (tmp_path / ".installed").touch()
    assert is_there("flink")
    monkeypatch.setattr(on_flink.shutil, "which", lambda command: None)
    assert not is_there("flink")


@pytest.mark.parametrize(
    "script", ["echo no memory >&2", """read line; echo '{"error": "no memory"}'; read line"""], ids=["ends", "answers"]
)
def test_what_goes_wrong_in_flink_is_said(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = tmp_path / "bin" / "python"
    stand_in.parent.mkdir()
    stand_in.write_text(f"#!/bin/sh\n{script}\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(on_flink, "HOME", tmp_path)
    worker = on_flink.Worker()
    with pytest.raises(RuntimeError, match="no memory"):
        worker.rows("SELECT 1")
    worker.close()


@pytest.mark.parametrize("name", ["buffer", "buckets", "per_function"])
def test_baselines_say_what_windrow_says_at_a_larger_size(name: str) -> None:
    stream = Stream(20_000, 60, keys=4, gaps=5, marks=1, late=0.2)
    asked = [query for several in ASKED.values() for query in several]
    assert checking.apart(answers(name, asked, stream), answers("windrow", asked, stream)) == []


def test_what_is_calculated_is_counted() -> None:
    queries = [wr.Query(f"q{at}", wr.tumbling("1 s"), [wr.sum(X)]) for at in range(4)]
    counted = {}
    for name in ("windrow", "per_function", "buckets", "buffer"):
        at_work = system(name).start(queries, 0)
        at_work.push(Stream(500, 10).frame())
        at_work.finish()
        counted[name] = at_work.calculations / 500
    assert counted == {"windrow": 2, "per_function": 2, "buckets": 4, "buffer": 4}  # windrow counts events as well


# --- the checks can fail --------------------------------------------------------------------------------------------


def test_a_wrong_result_is_found() -> None:
    stream, asked = STREAMS["in order"], ASKED["tumbling"]
    right = answers("windrow", asked, stream)
    off = right.with_columns(
        pl.when(pl.int_range(pl.len()) == 3).then(pl.col("sum(value)") + 1e-3).otherwise("sum(value)")
    )
    assert checking.apart(off, right) == [f"1 of {right.height} results differ in sum(value)"]
    assert checking.by_oracle(off, stream.frame(), asked) != []
    assert checking.apart(right[1:], right) == [f"{right.height - 1} results, and should be {right.height}"]
    shifted = right.with_columns(pl.col("window_start") + pl.duration(seconds=1))
    assert any("window_start" in line for line in checking.apart(shifted, right))


def lying(true: System) -> System:
    """A system that leaves its last result out."""

    class Liar(type(true.start([ASKED["tumbling"][0]], 0))):  # type: ignore[misc]
        def finish(self) -> pl.DataFrame:
            return super().finish()[:-1]

    return replace(true, start=Liar)


def test_wrong_results_fail_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    case = all_cases()["desis-8a"]
    assert running.run(case, SIZES["tiny"]).good
    monkeypatch.setattr("bench.baselines.buckets.SYSTEM", lying(system("buckets")))
    outcome = running.run(case, SIZES["tiny"])
    assert not outcome.good
    assert any("buckets, by the oracle" in line for line in outcome.wrong)
    assert any("buckets, beside windrow" in line for line in outcome.wrong)


def test_a_missed_mark_fails_a_case() -> None:
    case = replace(all_cases()["desis-8b"], marks=(Mark("windrow", "buckets", least=1000.0),))
    outcome = running.run(case, SIZES["quick"])
    assert [holds for *_, holds in outcome.marks] == [False]
    assert not outcome.good
    assert running.run(replace(case, marks=(Mark("windrow", "buckets", most=1.0),)), SIZES["quick"]).good


# --- trees and count windows ----------------------------------------------------------------------------------------

COUNTED = trees.Load((wr.Query("q", wr.counting(100), [wr.sum(X)]),), nodes=2, rate=500, seconds=4)


@pytest.mark.parametrize("name", trees.EXACT)
def test_count_windows_of_a_tree_are_right_and_the_measure_notices_when_not(name: str) -> None:
    frames = COUNTED.frames()
    grown = trees.SCHEMES[name](COUNTED, frames)
    assert trees.correctness(COUNTED, frames, grown) == 1.0
    wrong = pl.col("sum(value)") + (pl.col("position") == 300)
    grown.said = [part.with_columns(wrong) if part.height else part for part in grown.said]
    assert trees.correctness(COUNTED, frames, grown) == pytest.approx(39 / 40)
    grown.said = []
    assert trees.correctness(COUNTED, frames, grown) == 0.0


def test_approximated_count_windows_are_right_only_while_rates_stay() -> None:
    steady, changing = COUNTED, replace(COUNTED, rate_change=0.5)
    for load, right in ((steady, True), (changing, False)):
        frames = load.frames()
        grown = trees.SCHEMES["approx"](load, frames)
        assert (trees.correctness(load, frames, grown) == 1.0) is right
        exact = trees.SCHEMES["central"](load, frames).results
        sums = grown.results.sort("position")["value"].to_numpy()
        expected = exact.sort("position")["sum(value)"].to_numpy()[: len(sums)]
        assert np.allclose(sums, expected) is right
    assert approx.shares(10, [1, 1, 1]) == [4, 3, 3]


def test_partial_results_save_bytes_on_every_level() -> None:
    load = trees.Load((wr.Query("q", wr.tumbling("1 second"), [wr.max(X)]),), rate=5000, seconds=4, height=4)
    frames = load.frames()
    ours, central = (trees.SCHEMES[name](load, frames) for name in ("windrow", "central"))
    assert set(ours.sent) == set(central.sent) == {"local000", "inner0", "inner1"}
    assert all(ours.sent[name] < 0.2 * central.sent[name] for name in ours.sent)
    assert checking.apart(running.zoneless(ours.results), central.results) == []


# --- data -----------------------------------------------------------------------------------------------------------


def test_a_stream_is_what_its_parameters_say() -> None:
    stream = Stream(50_000, 120, keys=20, skew=1.0, late=0.25, delay=2.0, gaps=5, marks=2, values="distance")
    frame = stream.frame()
    times = frame["ts"].to_physical().to_numpy()
    assert frame.height == 50_000
    assert frame.equals(replace(stream).frame())
    assert not frame.equals(replace(stream, seed=8).frame())
    behind = np.maximum.accumulate(times) - times
    assert 0 < behind.max() <= 2 * SECOND
    assert 0.15 < np.mean(behind > 0) < 0.3
    quiet = np.sum(np.diff(np.sort(times)) > SECOND)
    assert 9 <= quiet <= 10  # five a minute, for two minutes
    assert 180 < frame["mark"].sum() < 300
    by_key = frame["key"].value_counts(sort=True)["count"]
    assert 1.7 < by_key[0] / by_key[1] < 2.3  # Zipf
    assert frame["value"].n_unique() < 250  # distances between airports
    assert stream.thinned(100).height == 100


# --- the suite ------------------------------------------------------------------------------------------------------


def test_every_figure_of_the_papers_has_a_case() -> None:
    cases = all_cases()
    figures = {case.figure for case in cases.values()}
    for paper, numbers in (
        ("Scotty", (13, 14, 15, 16, 17, 18, 19, 21)),
        ("Desis", (6, 8, 9, 10, 11)),
        ("Disco", (26, 27, 28, 29, 30, 31)),
        ("Deco", (8, 9, 10)),
    ):
        for number in numbers:
            assert any(figure.startswith(f"{paper}, Fig. {number}") for figure in figures), (paper, number)
    for case in cases.values():
        assert case.paper_shape.endswith("."), case.name
        assert {mark.system for mark in case.marks} <= set(case.systems), case.name


def test_counting_windows_shrink_with_the_events() -> None:
    work = Work(Stream(1000), (wr.Query("c", wr.counting(100), [wr.sum(X)]), *ASKED["sliding"]))
    counting, sliding = work.of(100).queries
    assert counting.window == wr.counting(10)
    assert sliding == ASKED["sliding"][0]
    assert smaller(ASKED["tumbling"], 0.1) == tuple(ASKED["tumbling"])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything, at a tiny size: trees of nodes too."""
    out = tmp_path_factory.mktemp("bench")
    done = run("-m", "bench", "all", "--tiny", "--out", str(out))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out


@pytest.mark.nodes
def test_all_experiments_run_are_checked_and_are_written_down(tiny: Path) -> None:
    record = recording.read(tiny / "tiny.json")
    assert {"commit", "command", "when", "python", "processor", "cores", "memory_gib"} <= record["machine"].keys()
    assert {"polars", "numpy", "pyarrow"} <= record["versions"].keys()
    assert [case["name"] for case in record["cases"]] == list(all_cases())
    for case in record["cases"]:
        assert case["checks"] > 0, case["name"]
        assert case["wrong"] == [], case["name"]
        assert {cell["system"] for cell in case["cells"]} == set(case["systems"])
        assert "windrow" in case["systems"]
        page = (tiny / f"{case['name']}.html").read_text(encoding="utf-8")
        assert "<svg" in page
        assert "http" not in page.replace("http-equiv", "")  # no request leaves it


@pytest.mark.nodes
def test_the_page_has_every_figure_with_the_papers_shape_and_ours(tiny: Path, tmp_path: Path) -> None:
    done = run("-m", "bench", "docs", str(tiny / "tiny.json"), "--out", str(tmp_path / "page.md"))
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    record = recording.read(tiny / "tiny.json")
    assert text == pages.document(record)
    for case in record["cases"]:
        assert f"### {case['figure']}: {case['title']}" in text
        assert f"**Paper:** {case['paper_shape']}" in text
        assert f"**Here:** {showing.our_shape(case)}" in text
    assert "## Where windrow is worse" in text


@pytest.mark.nodes
def test_two_runs_are_compared(tiny: Path, tmp_path: Path) -> None:
    record = recording.read(tiny / "tiny.json")
    (cell,) = [one for one in record["cases"][0]["cells"] if one["system"] == "windrow"]
    cell["best"] /= 4
    recording.write(record, tmp_path / "slower.json")
    again = run("-m", "bench", "compare", str(tiny / "tiny.json"), str(tiny / "tiny.json"), "--fail", "0.9")
    assert again.returncode == 0, again.stderr
    slower = run("-m", "bench", "compare", str(tiny / "tiny.json"), str(tmp_path / "slower.json"), "--fail", "0.9")
    assert slower.returncode == 1
    assert "0.25×  scotty-13" in slower.stdout


def test_an_experiment_that_does_not_exist_is_refused() -> None:
    done = run("-m", "bench", "run", "scotty-99")
    assert done.returncode == 2
    assert "there is no scotty-99" in done.stderr


def cases_of(best: dict[str, float]) -> dict[str, object]:
    cells = [{"point": 1, "system": name, "best": value, "median": value} for name, value in best.items()]
    for cell in cells:
        cell["ratio"] = best["windrow"] / best[str(cell["system"])]
    told = {"unit": "events/s", "once": False, "points": [1], "varies": "windows", "systems": list(best)}
    return {**told, "cells": cells}


def test_what_is_worse_is_said() -> None:
    assert showing.worse(cases_of({"windrow": 1e6, "buffer": 5e5, "duckdb": 3e6})) == ["duckdb 3× at 1"]
    assert showing.our_shape(cases_of({"windrow": 1e6, "buffer": 5e5})).startswith("windrow has 1M events/s")


def test_a_case_has_its_own_sizes() -> None:
    case: Case = all_cases()["scotty-13"]
    assert case.points_of(SIZES["full"]) == (1, 10, 100, 1000)
    assert len(case.points_of(SIZES["tiny"])) == 1
