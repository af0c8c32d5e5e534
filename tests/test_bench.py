"""The benchmarks run, at a tiny size, and say so when a line falls short."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def bench(*arguments: str, json_path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "bench/core.py", "--runs", "1", "--json", str(json_path), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_workload_runs_and_is_written_down(tmp_path: Path) -> None:
    done = bench("--scale", "0.001", json_path=tmp_path / "core.json")
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "core.json").read_text())
    assert {"commit", "command", "polars", "cores"} <= written["machine"].keys()
    assert len(written["lines"]) == 14
    assert all(line["value"] > 0 for line in written["lines"])


def test_check_fails_when_a_line_falls_short(tmp_path: Path) -> None:
    # a thousandth of the events leaves nothing but overhead, which no line reaches its mark with
    done = bench("--scale", "0.001", "--only", "slicing", "--check", json_path=tmp_path / "core.json")
    assert done.returncode == 1
    assert "short of the mark" in done.stdout
