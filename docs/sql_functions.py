"""The table of Spark's functions in docs/sql.md, from the code: `make docs` writes it between its two marks.

With `--check` nothing is written, and the exit code says whether the table is what it should be.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from windrow.core.aggregates.functions import FUNCTIONS as AGGREGATES
from windrow.core.expressions.instead import COLUMN, INSTEAD
from windrow.core.expressions.parse import FUNCTIONS
from windrow.core.query.sql.calls import REFUSED, SPARK

FILE = Path(__file__).with_name("sql.md")
BEGIN, END = "<!-- functions: made by make docs -->\n", "<!-- end of functions -->\n"
ALIKE = ("max", "median", "min", "stddev", "stddev_pop", "sum", "variance")  # Spark's names that are also ours


def rows() -> Iterator[tuple[str, str]]:
    """Names, and what they do here: those that work first, those for which there is nothing last."""
    assert all(name in AGGREGATES for name in ALIKE)
    yield listed([*ALIKE, *SPARK, "mean"]), "work, as [above](#functions)"
    yield listed(map(str.lower, FUNCTIONS)), "work, as [above](#expressions)"
    meant: dict[str, list[str]] = {}
    for name, instead in {**INSTEAD, **REFUSED}.items():
        meant.setdefault(instead, []).append(name)
    columns = meant.pop(COLUMN)
    for instead, names in sorted(meant.items(), key=lambda pair: min(pair[1])):
        yield listed(names), instead
    yield listed(columns), COLUMN


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(set(names)))


def main() -> int:
    page = FILE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    table = "".join(f"| {names} | {what.replace('|', chr(92) + '|')} |\n" for names, what in rows())
    made = f"{before}{BEGIN}\n| Spark | here |\n| --- | --- |\n{table}\n{END}{after}"
    if "--check" not in sys.argv:
        FILE.write_text(made, encoding="utf-8")
        return 0
    if made != page:
        print("the table of functions in sql.md is not what the code says: run make docs", file=sys.stderr)
    return int(made != page)


if __name__ == "__main__":
    sys.exit(main())
