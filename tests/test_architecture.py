"""docs/architecture.md names what exists, all of it, and docs/README.md lists every page.

In the page a place in the code is `core/slices/kernel.py` or `core/slices/kernel.py:slice`, relative to src/windrow
or to the repository; a method is `engine.py:Engine.push`.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "windrow"
PAGE = ROOT / "docs" / "architecture.md"
PLACE = re.compile(r"`([\w/.-]+\.py)(?::([\w.]+))?`")


def _names(body: list[ast.stmt], prefix: str = "") -> set[str]:
    """The classes, functions, methods and constants that these statements define, with dots."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                names |= _names(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign):
            names |= {prefix + target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(prefix + node.target.id)
    return names


def missing(text: str) -> list[str]:
    """The places that a text names and that are not there."""
    found = []
    for path, name in PLACE.findall(text):
        file = next((base / path for base in (PACKAGE, ROOT) if (base / path).is_file()), None)
        if file is None:
            found.append(path)
        elif name and name not in _names(ast.parse(file.read_text(encoding="utf-8")).body):
            found.append(f"{path}:{name}")
    return found


def test_every_place_that_the_page_names_is_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(PLACE.findall(text)) > 50
    assert missing(text) == []


def test_the_check_can_fail() -> None:
    text = "`engine.py:Engine.push` `engine.py:Engine.pull` `core/widgets.py` `tests/test_architecture.py:PAGE`"
    assert missing(text) == ["engine.py:Engine.pull", "core/widgets.py"]


def test_every_package_has_its_sentence() -> None:
    text = PAGE.read_text(encoding="utf-8")
    packages = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("__init__.py")} - {"."}
    assert {name for name in packages if f"`{name}/`" not in text} == set()


@pytest.mark.parametrize("page", sorted(path.name for path in (ROOT / "docs").glob("*.md") if path.name != "README.md"))
def test_the_index_lists_every_page(page: str) -> None:
    assert f"]({page})" in (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
