"""What `make soak` does: it repeats what draws, with fresh seeds, and stops at what fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SOAK = Path(__file__).parent / "soak.py"
PLANTED = """
from hypothesis import given, strategies as st

def test_draws_nothing():
    assert False

def test_is_wrong_for_some_seeds(seed):
    assert seed % 20 != 7

@given(st.integers(0, 2**62))
def test_is_right(number):
    pass
"""


@pytest.fixture
def soak(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    path, settings = tmp_path / "test_planted.py", tmp_path / "pytest.ini"
    path.write_text(PLANTED)
    settings.write_text("[pytest]\nmarkers = soak:\nfilterwarnings = error\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, SOAK, "-p", "conftest", "-c", settings, path, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return run


def test_it_stops_at_a_planted_error_and_says_how_to_repeat_it(soak: Any) -> None:
    done = soak("--minutes", "1")
    assert done.returncode == 1, done.stdout + done.stderr
    again = re.search(r"again: WINDROW_SEED=(\d+) python -m pytest 'test_planted.py::test_is_wrong_for", done.stdout)
    assert again is not None, done.stdout
    assert int(again[1]) % 20 == 7
    assert set(re.findall(r"\d+  test_planted.py::(\w+)", done.stdout)) <= {
        "test_is_wrong_for_some_seeds",
        "test_is_right",
    }


def test_it_ends_when_the_time_is_up(soak: Any) -> None:
    done = soak("--minutes", "0.02", "-k", "right")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+  test_planted.py::test_is_right", done.stdout)
