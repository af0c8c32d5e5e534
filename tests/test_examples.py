"""Every example runs as a script, and says what it should."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(path: Path) -> str:
    """What an example prints."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "error", "POLARS_FMT_MAX_ROWS": "50"}
    done = subprocess.run([sys.executable, path], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_prints_something(path: Path) -> None:
    assert run(path).strip()


def test_harmonic_mean() -> None:
    printed = run(ROOT / "examples" / "harmonic_mean.py")
    hops = [line.split("┆") for line in printed.splitlines() if line.startswith("│ hop")]
    assert [[cell.strip(" │") for cell in row[1:5]] for row in hops] == [
        ["-4", "4", "30.0", "40.0"],
        ["0", "8", "30.0", "40.0"],
        ["4", "12", "30.0", "40.0"],
        ["8", "16", "36.0", "46.666667"],
        ["12", "20", "60.0", "60.0"],
    ]
