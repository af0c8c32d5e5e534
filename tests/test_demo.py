"""The demonstration: its queries can be read, its comparison can fail, and it runs to its page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import windrow as wr
from windrow.core.windows.fixed import Cumulating, Session, Sliding, Tumbling
from windrow.core.windows.ordered import OrderedWindow
from windrow.demo import flights, main, statements, write_nodes
from windrow.demo.beside import different


def test_it_asks_for_every_kind_of_window() -> None:
    windows = [query.window for query in wr.sql(statements())]
    assert len(windows) >= 12
    for kind in (Tumbling, Sliding, Cumulating, Session):
        assert any(isinstance(window, kind) for window in windows)
    ordered = {window.kind for window in windows if isinstance(window, OrderedWindow)}
    assert ordered == {"counting", "latest", "frames", "punctuated"}


def test_the_flights_are_out_of_order_by_less_than_a_day_and_lie_at_three_nodes(tmp_path: Path) -> None:
    events = flights()
    assert events.height == 336_776
    assert not events["departure"].is_sorted()
    behind = events.select((pl.col("departure").cum_max() - pl.col("departure")).max()).item()
    assert behind.days < 1
    assert write_nodes(events, tmp_path) == 36
    assert sorted(path.name for path in tmp_path.iterdir()) == ["EWR", "JFK", "LGA"]
    assert pl.scan_parquet(tmp_path / "*" / "2013-*.parquet").select(pl.len()).collect().item() == events.height


def test_the_comparison_can_fail() -> None:
    bounds = {"window_start": [1, 2], "window_end": [2, 3]}
    types = {"window_start": pl.Datetime("us", "UTC"), "window_end": pl.Datetime("us", "UTC"), "x": pl.Float64()}
    told = pl.DataFrame({**bounds, "x": [1.0, None]}, schema=types)
    assert different(told, told.with_columns(pl.col("x") * (1 + 1e-12))) == 0
    assert different(told, told.with_columns(pl.col("x") * (1 + 1e-6))) == 2
    assert different(told[:1], told) == 1


@pytest.mark.spark
@pytest.mark.usefixtures("compiled")
def test_it_runs(spark: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(tmp_path, months=1) == 0
    printed = capfd.readouterr().out
    assert "one process: " in printed
    assert "DIFFERENT" not in printed
    run = json.loads((tmp_path / "results" / "_windrow.json").read_text())
    assert run["results"] > 1000
    ours, theirs = (figure["times"] for figure in run["touched"])
    assert theirs > 10 * ours
    page = (tmp_path / "report.html").read_text()
    assert all(query.name in page for query in wr.sql(statements()))
