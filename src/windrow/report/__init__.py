"""The report: one HTML page of a run's results, whole in itself.

    results/*.parquet      ─┬─▶ runs ─┬─▶ answers ──▶ series ──▶ charts ─┬─▶ page ──▶ report.html
    results/_windrow.json  ─┘         └─▶ plans ─────────────────────────┘

`runs` reads what a run left behind, `answers` takes one query's windows out of it, `series` chooses what of them is
drawn, `charts` and `plans` draw in SVG, `page` puts it together. The page asks for nothing over the network and
needs no script: the one it has shows the window under the pointer.
"""

from __future__ import annotations

from pathlib import Path

from windrow.io.private import naming
from windrow.report import page, runs
from windrow.report.runs import Figure, Run

__all__ = ["Figure", "Run", "write"]


def write(results_path: str | Path, out_path: str | Path | None = None) -> Path:
    """Report on results, a directory or a file, and return where the page is.

    Without `out_path` the page is `report.html` beside the results: in their directory, or next to their file.
    """
    results = Path(results_path)
    frame, run = runs.read_results(results), Run.read(results)
    out = Path(out_path) if out_path is not None else (results if results.is_dir() else results.parent) / "report.html"
    if out.is_dir():
        out = out / "report.html"
    out.parent.mkdir(parents=True, exist_ok=True)
    with naming(out):
        out.write_text(page.html(frame, run, results.resolve().name), encoding="utf-8")
    return out
