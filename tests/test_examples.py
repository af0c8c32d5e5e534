"""Every example runs and says what it should.

Those in one process run as scripts, as a reader would run them; those on Spark in the session of all tests. Kafka is
not here: its example runs from one end to the other over a directory of texts in place of the topic.
"""

import importlib.util
import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

import windrow as wr
from windrow.nodes.sources import source_of

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
ON_SPARK = [path for path in EXAMPLES if "pyspark" in path.read_text(encoding="utf-8")]


def run(name: str) -> str:
    """What an example prints."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "error", "POLARS_FMT_MAX_ROWS": "50"}
    path = ROOT / "examples" / f"{name}.py"
    done = subprocess.run([sys.executable, path], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def load(name: str) -> Any:
    """An example as a module, once: a kind of window has one class."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def test_every_example_has_a_line_in_the_readme() -> None:
    text = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES if f"[{path.name}]({path.name})" not in text] == []
    assert len([line for line in text.splitlines() if line.startswith("- [")]) == len(EXAMPLES)


# --- in one process -----------------------------------------------------------------------------------------


PRINTED = {
    "calendar_months": """\
monthly    2024-01 to 2024-02         1 sales, 20
monthly    2024-02 to 2024-03         2 sales, 12
monthly    2024-03 to 2024-04         1 sales, 1
quarterly  2024-01 to 2024-04         4 sales, 33
monthly    2024-05 to 2024-06         1 sales, 9
quarterly  2024-04 to 2024-07         1 sales, 9
by shop    2024-01 to 2025-01  north  3 sales, 34
by shop    2024-01 to 2025-01  south  2 sales, 8
""",
    "running_total": """\
ann  seconds 0 to 1: 2 payments, 80
ann  seconds 3 to 4: 2 payments, 50
bob  seconds 2 to 6: 2 payments, 105
ann  seconds 5 to 7: 2 payments, 160
ann  seconds 8 to 8: 1 payments, 20
""",
    "rolling_features": "count_1h   correlation +0.8",
}
SAYS_MORE = {"harmonic_mean", "quality_control"}  # and has a test of its own for it


@pytest.mark.parametrize(
    "name", [path.stem for path in EXAMPLES if path not in ON_SPARK and path.stem not in SAYS_MORE]
)
def test_example_prints(name: str) -> None:
    assert PRINTED[name] in run(name)


def test_harmonic_mean() -> None:
    hops = [line.split("┆") for line in run("harmonic_mean").splitlines() if line.startswith("│ hop")]
    assert [[cell.strip(" │") for cell in row[1:5]] for row in hops] == [
        ["-4", "4", "30.0", "40.0"],
        ["0", "8", "30.0", "40.0"],
        ["4", "12", "30.0", "40.0"],
        ["8", "16", "36.0", "46.666667"],
        ["12", "20", "60.0", "60.0"],
    ]


def test_quality_control_finds_the_machine_that_wears() -> None:
    first, *found, last = run("quality_control").splitlines()
    assert first == "85 samples of 50 parts, 6 beyond the limits; the first ones:"
    assert all(line.startswith("  m2  parts 1") for line in found)  # its first thousand are good
    assert last == "parts an hour, at least: m1 720, m2 360"


def test_rolling_features_know_what_was_and_not_what_comes() -> None:
    example = load("rolling_features")
    events = example.payments()
    table = example.features(events)
    assert table.height == events.height
    for row in table.gather_every(97).to_dicts():
        edge = row["ts"].replace(minute=row["ts"].minute // 15 * 15)
        for hours in (1, 12, 84):
            seen = events.filter(
                pl.col("user") == row["user"], pl.col("ts") < edge, pl.col("ts") >= edge - timedelta(hours=hours)
            )
            assert (row[f"count_{hours}h"] or 0) == seen.height
            assert row[f"max_{hours}h"] == seen["amount"].max()


# --- on Spark -----------------------------------------------------------------------------------------------


def same(found: Any, wanted: pl.DataFrame, columns: list[str]) -> None:
    """Compare rows of a DataFrame with those of one process."""
    rows = pl.from_arrow(found.select(*columns).toArrow())
    assert isinstance(rows, pl.DataFrame)
    by = columns[:-1]
    left, right = (one.select(columns).sort(by) for one in (rows, wanted))
    assert left.select(by).rows() == right.select(by).rows()
    assert left[columns[-1]].to_list() == pytest.approx(right[columns[-1]].to_list(), rel=1e-9)


@pytest.mark.spark
def test_growing_files_go_on_from_the_checkpoint(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load("growing_files")
    example.main(spark, tmp_path)
    printed = capsys.readouterr().out
    assert printed.index("10 files more") < printed.index("14 files more")
    found = spark.read.parquet(str(tmp_path / "windows"))
    events = pl.read_parquet(tmp_path / "events" / "*.parquet")
    whole = wr.windows(events, example.QUERIES, time="ts")
    passed = pl.col("window_end") <= events["ts"].max() - timedelta(minutes=10)  # type: ignore[operator]
    columns = ["query", "sensor", "window_start", "window_end", "n"]
    timed = whole.filter(passed, pl.col("query") == "hour")
    same(found.where("query = 'hour'"), timed, columns)  # each once, also the hour that was open between two runs
    assert timed.height == 4 * 23 - 2
    assert [tuple(row) for row in found.where("query = 'up'").select("sensor", "n").collect()] == [("c", 420)]


@pytest.mark.spark
def test_edge_to_spark_gives_what_one_process_gives(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load("edge_to_spark")
    example.main(spark, tmp_path)
    assert "500,000 events of 24 bytes are 12 rows of slices, 0.8% of the bytes" in capsys.readouterr().out
    paths = (tmp_path / "events").glob("*/*.parquet")
    events = pl.concat(pl.read_parquet(path).with_columns(node=pl.lit(path.parent.name)) for path in paths)
    whole = wr.windows(events, example.QUERIES, time="ts")
    found = spark.read.parquet(str(tmp_path / "windows")).where("query = 'load'")
    last = found.agg({"window_end": "max"}).first()[0]
    wanted = whole.filter(pl.col("query") == "load", pl.col("window_end").dt.replace_time_zone(None) <= last)
    assert wanted.height == 4 * 9
    same(found, wanted, ["line", "window_start", "n", "watts"])


@pytest.mark.spark
def test_tree_to_spark_gives_what_one_process_gives(spark: Any, tmp_path: Path) -> None:
    example = load("tree_to_spark")
    example.main(spark, tmp_path)
    described = yaml.safe_load(example.TREE)
    sources = [source_of(one["source"], node) for node, one in described["nodes"].items() if "source" in one]
    events = []
    for source in sources:
        is_last = False
        while not is_last:
            found, _, is_last = source.read(source.columns, 0)
            events.append(found)
    whole = wr.windows(pl.concat(events), wr.sql(described["queries"]), time="ts")
    results = spark.read.parquet(str(tmp_path / "windows"))
    for query, columns in {"load": ["key", "window_start", "n", "value"], "busy": ["key", "window_start", "n"]}.items():
        same(results.where(f"query = '{query}'"), whole.filter(pl.col("query") == query), columns)


def test_kafka_to_windows_has_queries_that_share() -> None:
    pytest.importorskip("pyspark.sql")
    shown = wr.plan(load("kafka_to_windows").QUERIES, time="ts").explain()
    assert "rolled up from the slices by (car) on ts" in shown


@pytest.mark.spark
def test_kafka_to_windows_from_texts_to_texts(spark: Any, tmp_path: Path) -> None:
    example = load("kafka_to_windows")
    (tmp_path / "topic").mkdir()
    records = [{"ts": f"2026-01-01T00:{at:02}:30Z", "car": "a", "speed": 10.0 * at} for at in (1, 1, 2, 20)]
    texts = [json.dumps(one) for one in records] + ["not a record"]
    (tmp_path / "topic" / "1.txt").write_text("\n".join(texts), encoding="utf-8")
    raw = spark.readStream.format("text").load(str(tmp_path / "topic"))
    sink = example.write(example.answer(example.read(raw))).writeStream.format("memory").queryName("kafka_to_windows")
    query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).outputMode("update")
    query.trigger(availableNow=True).start().awaitTermination()
    sent = {row["key"]: json.loads(row["value"]) for row in spark.table("kafka_to_windows").collect()}
    assert sent["speed/a/2026-01-01 00:01:00"]["mean"] == 10.0
    assert sent["fleet/2026-01-01 00:01:00"]["n"] == 2
    assert sent["trip/a/2026-01-01 00:01:30"]["n"] == 3
