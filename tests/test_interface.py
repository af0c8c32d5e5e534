"""The public interface: what there is, that it says what it is, and that the reference says the same.

Adding a name to `__all__` is a decision: write it down here, give it a docstring and hints, and run `make docs`.
"""

import importlib.util
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import windrow as wr

ROOT = Path(__file__).parents[1]

PUBLIC = [
    "Aggregate",
    "ContextFreeWindow",
    "Cuts",
    "DataDrivenWindow",
    "Engine",
    "ExpressionError",
    "InputError",
    "Metrics",
    "Monoid",
    "OrderedEvents",
    "Plan",
    "Query",
    "QueryBook",
    "QueryError",
    "Rates",
    "SqlError",
    "aggregate",
    "approx_distinct",
    "approx_quantile",
    "arg_max",
    "arg_min",
    "collect",
    "count",
    "counting",
    "cumulating",
    "distinct",
    "first",
    "formula",
    "frames",
    "geometric_mean",
    "last",
    "latest",
    "m4",
    "max",
    "mean",
    "median",
    "min",
    "mode",
    "plan",
    "product",
    "punctuated",
    "quantile",
    "range",
    "results_of",
    "session",
    "sliding",
    "sql",
    "stddev",
    "stddev_pop",
    "sum",
    "top_k",
    "tumbling",
    "variance",
    "variance_pop",
    "window",
    "windows",
]
ON_SPARK = ["Generator", "Root", "explain", "nodes", "register", "session"]


def test_the_public_names_are_these() -> None:
    assert sorted(wr.__all__) == PUBLIC
    assert dir(wr) == sorted([*PUBLIC, "__version__"])  # and no modules
    assert all(hasattr(wr, name) for name in PUBLIC if name != "QueryBook")  # which comes when it is asked for


def test_the_public_names_on_spark_are_these(on_spark: ModuleType) -> None:
    assert sorted(on_spark.__all__) == ON_SPARK


# --- everything public has a docstring and hints ------------------------------------------------------------


@pytest.fixture(scope="module")
def on_spark() -> ModuleType:
    pytest.importorskip("pyspark.sql")
    import windrow.spark

    return windrow.spark


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """docs/api.py, which is a script."""
    spec = importlib.util.spec_from_file_location("windrow_reference", ROOT / "docs" / "api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lacks(name: str, thing: Any, reference: ModuleType) -> Iterator[str]:
    """What a public thing does not say about itself, one line each."""
    own = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    doc = inspect.cleandoc(own or "")
    if not doc or doc.startswith(f"{name}("):  # a dataclass gets its signature for want of better
        yield f"{name}: no docstring"
    if inspect.isclass(thing):
        for member, value in reference.public_members(thing):
            code = value.fget if isinstance(value, property) else value
            if not code.__doc__:
                yield f"{name}.{member}: no docstring"
            yield from (f"{name}.{member}: {line}" for line in _unhinted(code))
    if inspect.isclass(thing) and "__init__" not in vars(thing) and "__new__" not in vars(thing):
        return
    code = vars(thing).get("__init__", thing) if inspect.isclass(thing) else thing
    yield from (f"{name}: {line}" for line in _unhinted(code))
    named = set(re.findall(r"\w+", doc))
    for parameter in _parameters(code):
        if parameter not in named:
            yield f"{name}: the docstring does not name {parameter!r}"


def _parameters(code: Any) -> list[str]:
    return [one for one in inspect.signature(code).parameters if one not in ("self", "cls")]


def _unhinted(code: Any) -> Iterator[str]:
    found = inspect.signature(code)
    yield from (f"no hint for {one!r}" for one in _parameters(code) if found.parameters[one].annotation is found.empty)
    if found.return_annotation is found.empty and not inspect.isclass(code):
        yield "no hint for what it returns"


def test_everything_public_says_what_it_is(reference: ModuleType, on_spark: ModuleType) -> None:
    public = [(module, name) for module in (wr, on_spark) for name in module.__all__]
    said = [line for module, name in public for line in lacks(name, getattr(module, name), reference)]
    assert "\n".join(said) == ""


def test_the_check_finds_what_is_missing(reference: ModuleType) -> None:
    class Thing:
        def __init__(self, size, weight: int = 0) -> None:  # type: ignore[no-untyped-def]
            """Its size is not hinted."""

        def grow(self, by: int):  # type: ignore[no-untyped-def]
            return by

        @property
        def age(self) -> int:
            return 0

    assert list(lacks("Thing", Thing, reference)) == [
        "Thing: no docstring",
        "Thing.grow: no docstring",
        "Thing.grow: no hint for what it returns",
        "Thing.age: no docstring",
        "Thing: no hint for 'size'",
        "Thing: the docstring does not name 'size'",
        "Thing: the docstring does not name 'weight'",
    ]


# --- the reference ------------------------------------------------------------------------------------------


def test_the_reference_is_what_the_docstrings_say(on_spark: ModuleType) -> None:
    command = [sys.executable, "docs/api.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_reference_has_every_public_name(reference: ModuleType, on_spark: ModuleType) -> None:
    text = reference.render({"windrow": wr, "windrow.spark": on_spark})
    headings = re.findall(r"^### (\S+)$", text, re.MULTILINE)
    assert sorted(headings) == sorted([*PUBLIC, *(f"spark.{name}" for name in ON_SPARK)])
    assert "## More" not in text, "give a new name its place in GROUPS of docs/api.py"


def test_the_reference_follows_the_docstrings(reference: ModuleType) -> None:
    def tumble(length: int, offset: int = 0) -> str:
        """Rolls.

        length:  how far
        offset:  from where,
                 if not from 0
        """
        raise NotImplementedError

    module = ModuleType("windrow")
    module.__all__ = ["tumble"]  # type: ignore[attr-defined]
    module.tumble = tumble  # type: ignore[attr-defined]
    text = reference.render({"windrow": module})
    assert "## More\n\n### tumble\n\n```py\ntumble(length: int, offset: int = 0) -> str\n```\n\nRolls.\n\n" in text
    assert text.endswith("\n- `length`: how far\n- `offset`: from where, if not from 0\n")


# --- one version --------------------------------------------------------------------------------------------


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in project["project"]
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"] == {"path": "src/windrow/__init__.py"}
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+|\.dev\d+)?", wr.__version__)


def test_the_changelog_knows_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(\S+)\]", text, re.MULTILINE)
    assert wr.__version__ in versions[:2]  # after what is unreleased, if there is such
