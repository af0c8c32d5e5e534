"""The shape of the code: what `import windrow` leaves alone, which way imports point, what may be called what.

Packages stand in ORDER, from the bottom to the top. A module imports from its own package and from those before it,
whether at the top, inside a function or for type checking only.
"""

import ast
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import TypeGuard

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "windrow"

# From the bottom to the top; docs/architecture.md has a sentence for each. A module belongs to the longest name here
# that its own begins with. `__init__` is the public interface: only the applications import it.
ORDER = [
    "core.arrays",
    "core.expressions",
    "core.windows",
    "core.operators",
    "core.aggregates",
    "core.query",
    "core.plan",
    "core.slices",
    "core.assemble",
    "core.ordered",
    "core.stream",
    "io",
    "engine",
    "nodes.refine",
    "nodes.tables",
    "nodes.requests",
    "nodes.occasion",
    "nodes.quantiles",
    "nodes.counting",
    "nodes.pushdown",
    "nodes.explain",
    "nodes.queries",
    "nodes.protocol",
    "nodes.transport",
    "nodes.sources",
    "nodes.process",
    "nodes",
    "spark.pickling",
    "spark.types",
    "spark.payloads",
    "spark.slice_rows",
    "spark.source",
    "spark.settings",
    "spark.batch",
    "spark.stream",
    "spark.api",
    "spark",
    "api",
    "__init__",
    "report",
    "cli.failures",
    "cli.session",
    "demo",
    "cli",
    "__main__",
]
# The oracle must not share what it judges, and nothing that ships may lean on it.
TESTING = {"core.arrays", "core.expressions", "core.windows", "core.operators", "core.aggregates", "core.query"}
TESTING_MAY_IMPORT = {
    "testing": TESTING | {"testing"},
    "testing.tree_simulation": {*ORDER, "testing"},  # runs real nodes, without sockets and clocks
}

KEPT_OUT = ["pyspark", "pyarrow.flight", "datasketches", "pandas"]
PUBLIC = ["windrow", "windrow.spark", "windrow.nodes", "windrow.testing"]

# Words that once named many things; docs/glossary.md has those that took their place.
OLD_WORDS = {
    *(
        "told",
        "tell",
        "tells",
        "telling",
        "retelling",
        "said",
        "heard",
        "hear",
        "asked",
        "asking",
        "measure",
        "measures",
    ),
    *("measured", "frozen", "held", "holding", "waiting", "bag", "bags", "synopsis", "synopses", "thinned", "thin"),
    *("lowering", "settle", "settles", "settled", "settling", "strand", "strands", "piece", "pieces", "stretch"),
    *("stretches", "tally", "tallies", "drawer", "drawers", "bar", "barred", "ledger", "ledgers", "driving", "driven"),
    *("sequences", "joining", "refining", "mixing", "texts", "outlet", "outlets", "feed", "feeds", "link", "links"),
    *("uplink", "spool", "hush", "span", "spans", "unit"),
}
# Those that stay, and why.
STILL_SAID = {
    "DataDrivenWindow": "public: a window whose bounds the data drive",
    "held_events": "public: a metric",
    "spool": "public: a field of node.yaml and tree.yaml",
    "feeds": "public: a field of node.yaml",
    "link": "public: a key of a node's status",
    "edges_per_unit": "public: of windows of one's own; units are those of a time column",
    "unit": "of a time column, or of what a chart shows",
    "_bar": "of a progress display",
}
# Locals that name nothing: in how many functions of a package one of them is bound. The numbers may only fall.
VAGUE = {"one", "found", "known", "place", "several"}
MOST_VAGUE = {"cli": 10, "demo": 3, "io": 3, "nodes": 5, "report": 18, "testing": 25}

MOST_LINES, MOST_LOCALS = 50, 20  # of a function, without its docstring
LONG_FUNCTIONS = {
    "cli:run": "one parameter for each option of the command",
}


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


def package_of(name: str) -> str | None:
    """The longest name of ORDER or TESTING_MAY_IMPORT that a module's name begins with."""
    fitting = [one for one in (*ORDER, *TESTING_MAY_IMPORT) if name == one or name.startswith(f"{one}.")]
    return max(fitting, key=len, default=None)


def may_import(package: str) -> set[str]:
    return TESTING_MAY_IMPORT.get(package) or set(ORDER[: ORDER.index(package) + 1])


def wrong_imports(package: Path) -> list[str]:
    """One line for each module without a package and for each import that points the wrong way."""
    modules = modules_of(package)
    wrong = []
    for name, path in modules.items():
        mine = package_of(name)
        if mine is None:
            if path.name != "__init__.py":
                wrong.append(f"{name}: place it in a package, in ORDER of tests/test_layout.py")
            continue
        for target, line in imports_of(name, modules).items():
            other = package_of(target)
            if other is None:
                wrong.append(f"{name}: imports {target}, which has no package (line {line})")
            elif other not in may_import(mine):
                where = path.relative_to(package)
                wrong.append(f"{where}:{line}: {mine} imports {target} ({other})")
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
        (
            "core.windows.fixed",
            "from windrow.core.plan.plan import plan",
            "core.windows imports core.plan.plan (core.plan)",
        ),
        ("core.windows.fixed", "import windrow.engine", "core.windows imports engine (engine)"),
        ("core.windows.fixed", "from windrow import Query", "core.windows imports __init__ (__init__)"),
        (
            "core.plan.plan",
            "def f():\n  from ..slices.table import x",
            "core.plan imports core.slices.table (core.slices)",
        ),
        (
            "core.slices.table",
            "from windrow.spark.batch import run",
            "core.slices imports spark.batch.run (spark.batch)",
        ),
        (
            "nodes.counting.tables",
            "from ..protocol import node",
            "nodes.counting imports nodes.protocol (nodes.protocol)",
        ),
        ("engine", "from windrow import testing", "engine imports testing (testing)"),
        ("testing.oracle", "from ..core.plan.plan import x", "testing imports core.plan.plan (core.plan)"),
    ],
    ids=lambda text: text.split("\n")[-1].strip() or "nothing",
)
def test_the_order_check_can_fail(tmp_path: Path, importer: str, source: str, complaint: str) -> None:
    others = {"core.plan.plan": "", "core.slices.table": "", "spark.batch.run": "", "testing.__init__": ""}
    package = write_package(tmp_path, others | {importer: source})
    path, line = importer.replace(".", "/") + ".py", source.count("\n") + 1
    assert wrong_imports(package) == [f"{path}:{line}: {complaint}"]


@pytest.mark.parametrize(
    ("importer", "source", "complaint"),
    [
        ("engine", "from windrow.widgets import x", "engine: imports widgets, which has no package (line 1)"),
        ("widgets", "", "widgets: place it in a package, in ORDER of tests/test_layout.py"),
        ("core.widgets.wheel", "", "core.widgets.wheel: place it in a package, in ORDER of tests/test_layout.py"),
    ],
)
def test_a_module_without_a_place_is_found(tmp_path: Path, importer: str, source: str, complaint: str) -> None:
    assert wrong_imports(write_package(tmp_path, {importer: source})) == [complaint]


def test_the_order_check_lets_right_imports_pass(tmp_path: Path) -> None:
    sources = {
        "core.__init__": "",
        "core.windows.fixed": "from __future__ import annotations\nimport numpy as np",
        "core.query.query": "from windrow.core.windows.fixed import tumbling",
        "core.plan.plan": "from windrow.core.query import query",
        "spark.__init__": "from .api import windows",
        "spark.api": "from ..engine import Engine\nfrom windrow.spark.batch import run",
        "spark.batch.run": "def f():\n    from windrow.core.plan.plan import plan",
        "engine": "",
        "cli": "import windrow as wr",
        "testing.oracle": "from windrow.core.query.query import Query",
        "testing.tree_simulation": "from windrow.nodes.protocol.node import Node",
        "nodes.protocol.node": "",
    }
    package = write_package(tmp_path, sources)
    assert wrong_imports(package) == []
    assert cycle(package) == []


def test_the_cycle_check_can_fail(tmp_path: Path) -> None:
    sources = {"windows": "from windrow.query import Query", "query": "from windrow.windows import sliding"}
    package = write_package(tmp_path, sources)
    assert set(cycle(package)) == {"windows", "query"}


# --- what may be called what --------------------------------------------------------------------------------


def shadowed(package: str) -> set[str]:
    """The public names of a package that one of its modules has too: an import could mean either."""
    module = import_module(package)
    modules = {info.name for info in pkgutil.iter_modules(module.__path__)}
    return modules & set(getattr(module, "__all__", []))


@pytest.mark.parametrize("package", PUBLIC)
def test_no_public_name_is_also_a_module(package: str) -> None:
    if package == "windrow.spark":
        pytest.importorskip("pyspark")
    assert shadowed(package) == set()


def test_the_top_of_the_package_has_what_users_call() -> None:
    modules = {info.name for info in pkgutil.iter_modules([str(PACKAGE)])}
    packages = {"core", "io", "spark", "nodes", "cli", "report", "demo", "testing"}
    assert modules == {"api", "engine", "__main__", *packages}


def words_of(name: str) -> set[str]:
    """The words that a name is made of: `SliceTable`, `slice_table` → slice, table."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}


def _is_text(node: ast.expr | None) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _names_in(tree: ast.AST) -> Iterator[str]:
    """What a module names for others: classes, functions, parameters, fields, attributes, and keys and columns."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            yield node.name
            fields = (line.target for line in node.body if isinstance(line, ast.AnnAssign))
            yield from (field.id for field in fields if isinstance(field, ast.Name))
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Dict):
            yield from (key.value for key in node.keys if _is_text(key))
        elif isinstance(node, ast.Subscript) and _is_text(node.slice):
            yield node.slice.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("col", "alias"):
            yield from (text.value for text in node.args if _is_text(text))


def old_words(package: Path) -> dict[str, set[str]]:
    """For each module the names with an old word in them: its own, those that it gives to others, and its keys."""
    found: dict[str, set[str]] = {}
    for name, path in modules_of(package).items():
        given = {name.rpartition(".")[2], *_names_in(ast.parse(path.read_text(encoding="utf-8")))}
        if old := {one for one in given - STILL_SAID.keys() if words_of(one) & OLD_WORDS}:
            found[name] = old
    return found


def test_no_old_word_has_come_back() -> None:
    assert old_words(PACKAGE) == {}


def test_the_word_check_can_fail(tmp_path: Path) -> None:
    source = """
class DataDrivenWindow:
    bag: int
    held_events: int
    def _is_told(self, unit, asked): self.frozen = {"pieces": 1}
class BagRanges: ...
def foretold(row): return row["held"], pl.col("settled")
"""
    write_package(tmp_path, {"core.spool": source, "core.tables": "spool = 1"})
    words = {"bag", "_is_told", "asked", "frozen", "pieces", "BagRanges", "held", "settled"}
    assert old_words(tmp_path) == {"core.spool": words}


def vague_locals(package: Path) -> Counter[str]:
    """In how many functions of each package a local says nothing about what it is."""
    counts: Counter[str] = Counter()
    for name, path in modules_of(package).items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _locals_of(node) & VAGUE:
                counts[name.partition(".")[0]] += 1
    return counts


def test_locals_say_what_they_are() -> None:
    counts = vague_locals(PACKAGE)
    assert {name: count for name, count in counts.items() if count > MOST_VAGUE.get(name, 0)} == {}, "name the local"


# --- how long a function is ---------------------------------------------------------------------------------


def _locals_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """The names that a function binds itself: no arguments, nothing of functions and comprehensions inside it."""
    inner = ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    names: set[str] = set()
    nodes: list[ast.AST] = list(function.body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif not isinstance(node, inner):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            nodes.extend(ast.iter_child_nodes(node))
    return names - {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}


def long_functions(package: Path) -> dict[str, str]:
    """The functions over a limit, as `module:function`, with what is too much."""
    found = {}
    for name, path in modules_of(package).items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                documented = ast.get_docstring(node, clean=False) or ""
                lines = (node.end_lineno or 0) - node.lineno + 1 - len(documented.splitlines())
                bound = len(_locals_of(node))
                if lines > MOST_LINES or bound > MOST_LOCALS:
                    found[f"{name}:{node.name}"] = f"{lines} lines, {bound} locals"
    return found


def test_functions_stay_short() -> None:
    found = long_functions(PACKAGE)
    assert {name: size for name, size in found.items() if name not in LONG_FUNCTIONS} == {}
    assert LONG_FUNCTIONS.keys() <= found.keys(), "an exception that is none any more"


def test_the_length_check_can_fail(tmp_path: Path) -> None:
    short = "def short(a):\n" + "    a = 1\n" * (MOST_LINES - 1)
    many = "def many(a):\n" + "".join(f"    b{number} = a\n" for number in range(MOST_LOCALS + 1))
    long = 'def long(a):\n    """A line."""\n' + "    a = 1\n" * MOST_LINES
    write_package(tmp_path, {"windows": short, "core.plan": long + many})
    assert long_functions(tmp_path) == {
        "core.plan:long": f"{MOST_LINES + 1} lines, 0 locals",
        "core.plan:many": f"{MOST_LOCALS + 2} lines, {MOST_LOCALS + 1} locals",
    }
