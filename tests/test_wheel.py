"""What is built is what is tested: the wheel holds the package byte by byte, and works away from the sources.

sources ── hatchling ──▶ wheel    src/windrow, and metadata
                    └──▶ sdist    what the tests need ──▶ the same wheel
"""

import os
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import windrow as wr

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "windrow"
KINDS = {".py", ".typed", ".html", ".css", ".js", ".sql"}  # of a package's files; any other has strayed into it
FOLDERS = ("src", "tests", "bench", "docs", "examples")


def build(target: str, folder: Path, root: Path = ROOT) -> Path:
    """The one file that hatchling builds, without a network and without a trace in the sources."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.iterdir()
    return built


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def files_in(folder: Path) -> dict[str, bytes]:
    """The files of a folder by their path within it, without what Python and the tests leave behind."""
    found = (path for path in folder.rglob("*") if path.is_file() and not _left_behind(path.relative_to(folder)))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def _left_behind(path: Path) -> bool:
    return any(part == "__pycache__" or part.startswith(".") or part == "results" for part in path.parts)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    held = contents(wheel)
    package = {name.removeprefix("windrow/"): data for name, data in held.items() if name.startswith("windrow/")}
    assert package == files_in(PACKAGE)  # the very bytes that the tests import
    assert {Path(name).suffix or Path(name).name for name in package} - KINDS == set()
    assert "py.typed" in package
    about = f"windrow-{wr.__version__}.dist-info"
    rest = {f"{about}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")}
    assert held.keys() - {f"windrow/{name}" for name in package} == rest


def test_the_tests_import_what_is_built() -> None:
    assert wr.__file__ is not None
    assert Path(wr.__file__).parent == PACKAGE


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    held = contents(wheel)
    about = f"windrow-{wr.__version__}.dist-info"
    said = Parser().parsestr(held[f"{about}/METADATA"].decode())
    assert (said["Name"], said["Version"]) == ("windrow", wr.__version__)
    assert (said["License-Expression"], said["Requires-Python"]) == ("Apache-2.0", ">=3.11")
    assert "Typing :: Typed" in said.get_all("Classifier", [])
    assert said.get_payload() == (ROOT / "README.md").read_text(encoding="utf-8")
    assert held[f"{about}/entry_points.txt"].decode() == "[console_scripts]\nwindrow = windrow.cli:main\n"
    assert held[f"{about}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()


ELSEWHERE = """
import importlib.metadata
import polars as pl
import windrow as wr

print(wr.__file__)
print(importlib.metadata.version("windrow"), wr.__version__)
events = pl.DataFrame({"second": [1, 2, 12], "speed": [40, 60, 80]})
print(wr.windows(events, wr.Query("q", wr.tumbling(10), "mean(speed)"), time="second")["mean(speed)"].to_list())
"""


def test_the_wheel_answers_a_query_where_there_is_nothing_else(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "PYTHONWARNINGS": "error", "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    where, versions, answer = done.stdout.splitlines()
    assert Path(where) == tmp_path / "site" / "windrow" / "__init__.py"
    assert versions == f"{wr.__version__} {wr.__version__}"
    assert answer == "[50.0, 80.0]"


def test_the_sdist_has_what_the_tests_need_and_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tmp_path / "built")) as archive:
        archive.extractall(tmp_path / "sources", filter="data")
    sources = tmp_path / "sources" / f"windrow-{wr.__version__}"
    for folder in FOLDERS:
        assert files_in(sources / folder) == files_in(ROOT / folder), folder
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        assert (sources / name).read_bytes() == (ROOT / name).read_bytes()
    again = contents(build("wheel", tmp_path / "again", sources))
    assert again == contents(wheel)
