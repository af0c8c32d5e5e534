"""The shape of the code: what `import windrow` leaves alone, which way imports point, how long a module is.

A module of src/windrow stands in exactly one layer, and imports from its own layer and the layers before it,
whether at the top, inside a function or for type checking only. Modules of a package (`spark`, `nodes`) count
as the package.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "windrow"

# From the bottom to the top. `__init__` is the public interface: only the applications import it.
LAYERS = {
    "arrays": {"ranges", "bags", "frames", "mixing"},
    "model": {
        *("windows", "ordered", "sqltypes", "terms", "rules", "expressions", "operators", "selections", "sketches"),
        *("sketching", "collecting", "aggregates", "formulas", "folding", "monoids", "texts", "query", "tokens"),
        *("calls", "sql", "groupby", "yamlfile", "queryfile"),
    },
    "plan": {"groups", "plan"},
    "kernels": {
        *("slices", "slicing", "irregular", "sessions", "lowering", "assembly", "revisions", "state"),
        *(
            "late",
            "repeats",
            "binding",
            "bound",
            "measures",
            "intake",
            "results",
            "driving",
            "waiting",
            "retelling",
            "ordering",
        ),
        *("ordered_state", "sequences", "joining"),
    },
    "runtimes": {"engine", "snapshots", "tables", "eventfiles", "generator", "jobs", "slicers", "spark", "nodes"},
    "interface": {"__init__"},
    "applications": {"cli", "demo", "report", "__main__"},
    "testing": {"testing"},
}
# The oracle must not share what it judges, and nothing that ships may lean on it.
MAY_IMPORT = {
    layer: {"arrays", "model", "testing"} if layer == "testing" else set(list(LAYERS)[: place + 1])
    for place, layer in enumerate(LAYERS)
}

KEPT_OUT = ["pyspark", "pyarrow.flight", "datasketches", "pandas"]
LONGEST_MODULE = 450


# --- what is imported ---------------------------------------------------------------------------------------


def imported_by(statement: str, watched: list[str]) -> list[str]:
    """Those of the watched modules that are loaded once a fresh interpreter has run the statement."""
    code = f"{statement}\nimport sys\nprint(*(name for name in {watched!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_import_windrow_leaves_heavy_modules_alone() -> None:
    # Without an __init__ there would be nothing to import, and nothing to find.
    assert imported_by("import windrow; assert windrow.__file__", KEPT_OUT) == []


def test_the_import_check_can_fail() -> None:
    assert imported_by("import pandas, pyarrow.flight", KEPT_OUT) == ["pyarrow.flight", "pandas"]


# --- which way imports point --------------------------------------------------------------------------------


def modules_of(package: Path) -> dict[str, Path]:
    """Dotted names relative to the package: `plan`, `spark.batch`; a package's own `__init__` is `spark`."""
    names = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        names[".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)] = path
    return names


def _runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when the module is imported: no function bodies, nothing under TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from (inner for part in node.orelse for inner in [part, *_runtime_nodes(part)])
            continue
        yield node
        yield from _runtime_nodes(node)


def imports_of(name: str, modules: dict[str, Path], *, at_import: bool = False) -> dict[str, int]:
    """The package's modules that one module imports, each with its first line."""
    path = modules[name]
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    here = ["windrow", *name.split(".")] if name != "__init__" else ["windrow"]
    if path.name != "__init__.py":
        here = here[:-1]
    found: dict[str, int] = {}

    def note(dotted: str, line: int) -> None:
        parts = dotted.split(".")
        if parts[0] == "windrow":
            inner = ".".join(parts[1:]) or "__init__"
            found.setdefault(inner, line)

    for node in _runtime_nodes(tree) if at_import else ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                note(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            source = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            for alias in node.names:
                whole = f"{source}.{alias.name}"
                note(whole if whole.removeprefix("windrow.") in modules else source, node.lineno)
    found.pop(name, None)
    return found


def layer_of(name: str) -> str | None:
    first = name.split(".")[0]
    return next((layer for layer, members in LAYERS.items() if first in members), None)


def wrong_imports(package: Path) -> list[str]:
    """One line for each module without a layer and for each import that points the wrong way."""
    modules = modules_of(package)
    wrong = []
    for name, path in modules.items():
        layer = layer_of(name)
        if layer is None:
            wrong.append(f"{name}: place it in a layer, in LAYERS of tests/test_layout.py")
            continue
        for target, line in imports_of(name, modules).items():
            other = layer_of(target)
            if other is None:
                wrong.append(f"{name}: imports {target}, which has no layer (line {line})")
            elif other not in MAY_IMPORT[layer]:
                where = path.relative_to(package)
                wrong.append(f"{where}:{line}: {layer} imports {target} ({other})")
    return wrong


def cycle(package: Path) -> list[str]:
    """A cycle of imports that happen at import time, or nothing."""
    modules = modules_of(package)
    graph = {name: set(imports_of(name, modules, at_import=True)) & set(modules) for name in modules}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def write_package(folder: Path, sources: dict[str, str]) -> Path:
    for name, source in sources.items():
        path = folder.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return folder


def test_imports_point_one_way() -> None:
    assert "\n".join(wrong_imports(PACKAGE)) == ""


def test_imports_have_no_cycle() -> None:
    assert cycle(PACKAGE) == []


@pytest.mark.parametrize(
    ("importer", "source", "complaint"),
    [
        ("windows", "from windrow.core.plan.plan import plan", "windows.py:1: model imports plan (plan)"),
        ("windows", "import windrow.engine", "windows.py:1: model imports engine (runtimes)"),
        ("windows", "from windrow import Query", "windows.py:1: model imports __init__ (interface)"),
        ("windows", "from . import plan", "windows.py:1: model imports plan (plan)"),
        ("plan", "def f():\n  from .slices import x", "plan.py:2: plan imports slices (kernels)"),
        ("slices", "from .spark.batch import x", "slices.py:1: kernels imports spark.batch (runtimes)"),
        ("engine", "from windrow import testing", "engine.py:1: runtimes imports testing (testing)"),
        ("testing.oracle", "from ..plan import x", "testing/oracle.py:1: testing imports plan (plan)"),
        ("windows", "from windrow.widgets import x", "windows: imports widgets, which has no layer (line 1)"),
        ("widgets", "", "widgets: place it in a layer, in LAYERS of tests/test_layout.py"),
    ],
    ids=lambda text: text.split("\n")[-1].strip() or "nothing",
)
def test_the_layer_check_can_fail(tmp_path: Path, importer: str, source: str, complaint: str) -> None:
    others = {"plan": "", "slices": "", "spark.batch": "", "testing.__init__": ""}
    package = write_package(tmp_path, others | {importer: source})
    assert wrong_imports(package) == [complaint]


def test_the_layer_check_lets_right_imports_pass(tmp_path: Path) -> None:
    sources = {
        "windows": "from __future__ import annotations\nimport numpy as np",
        "query": "from windrow.core.windows.fixed import tumbling\nfrom .windows import sliding",
        "plan": "from . import query",
        "spark.__init__": "from .batch import windows",
        "spark.batch": "from ..plan import plan\nfrom ..engine import Engine\nfrom . import source",
        "spark.source": "def f():\n    from .batch import windows",
        "cli": "import windrow as wr",
        "testing.oracle": "from windrow.core.query.query import Query",
    }
    package = write_package(tmp_path, sources)
    assert wrong_imports(package) == []
    assert cycle(package) == []


def test_the_cycle_check_can_fail(tmp_path: Path) -> None:
    sources = {
        "windows": "from windrow.core.query.query import Query",
        "query": "from windrow.core.windows.fixed import sliding",
    }
    package = write_package(tmp_path, sources)
    assert set(cycle(package)) == {"windows", "query"}


# --- how long a module is -----------------------------------------------------------------------------------


def long_modules(package: Path) -> dict[str, int]:
    lengths = {
        str(path.relative_to(package)): len(path.read_text(encoding="utf-8").splitlines())
        for path in package.rglob("*.py")
    }
    return {name: length for name, length in lengths.items() if length > LONGEST_MODULE}


def test_modules_stay_short() -> None:
    assert long_modules(PACKAGE) == {}


def test_the_length_check_can_fail(tmp_path: Path) -> None:
    write_package(tmp_path, {"windows": "x = 1\n" * LONGEST_MODULE, "plan": "x = 1\n" * (LONGEST_MODULE + 1)})
    assert long_modules(tmp_path) == {"plan.py": LONGEST_MODULE + 1}
