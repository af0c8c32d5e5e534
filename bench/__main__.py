"""The papers' experiments on windrow, on baselines and on systems that people would use instead.

    python -m bench list                    what there is
    python -m bench run scotty-13 deco-8    some of it; --quick and --tiny for smaller sizes
    python -m bench all --quick             everything, in under ten minutes on two idle cores
    python -m bench compare A.json B.json   what has changed between two runs
    python -m bench docs RUN.json           docs/benchmarks.md from a run

A run prints a table for each experiment and writes its JSON, and for each experiment a page and a PNG, into
bench/results. It exits with 1 when results are wrong, or a mark is not reached.

Systems that are not installed are left out. All but Flink are in `.venv`; `make flink` installs that beside it.
"""

from __future__ import annotations

import os

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # before Polars is imported

import argparse
import sys
from fnmatch import fnmatch
from pathlib import Path

from bench import charts, pages, recording, showing
from bench.cases import SIZES, Case, Size, all_cases
from bench.running import run

HERE = Path(__file__).parent
ROOT = HERE.parent


def main(arguments: list[str] | None = None) -> int:
    asked = _options().parse_args(arguments)
    if asked.command == "list":
        return _list()
    if asked.command == "compare":
        return _compare(recording.read(asked.before), recording.read(asked.after), asked.least, asked.fail)
    if asked.command == "docs":
        asked.out.write_text(pages.document(recording.read(asked.run)), encoding="utf-8")
        print(f"written: {asked.out}")
        return 0
    cases = all_cases()
    if asked.command == "run":
        names = [name for name in cases if any(fnmatch(name, pattern) for pattern in asked.names)]
        if unknown := [one for one in asked.names if not any(fnmatch(name, one) for name in cases)]:
            print(f"bench: there is no {', '.join(unknown)}; python -m bench list shows what there is", file=sys.stderr)
            return 2
        cases = {name: cases[name] for name in names}
    size = SIZES["tiny" if asked.tiny else "quick" if asked.quick else "full"]
    return _run(cases, size, asked.out)


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        "python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = options.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the experiments, each with the figure that it reproduces")
    for name, said in (("run", "some experiments, by their names or patterns"), ("all", "all experiments")):
        command = commands.add_parser(name, help=said)
        if name == "run":
            command.add_argument("names", nargs="+", metavar="NAME", help="such as scotty-13 or 'deco-*'")
        size = command.add_mutually_exclusive_group()
        size.add_argument("--quick", action="store_true", help="a tenth of the events, fewer points")
        size.add_argument("--tiny", action="store_true", help="to see that it runs, in seconds; marks do not count")
        command.add_argument("--out", type=Path, default=HERE / "results", help="where everything is written")
    command = commands.add_parser("compare", help="two runs, cell by cell")
    command.add_argument("before", type=Path)
    command.add_argument("after", type=Path)
    command.add_argument("--least", type=float, default=0.1, help="changes by less than this share are not shown")
    command.add_argument("--fail", type=float, help="exit with 1 if windrow is below this share of what it was")
    command = commands.add_parser("docs", help="docs/benchmarks.md from a run")
    command.add_argument("run", type=Path)
    command.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks.md")
    return options


def _list() -> int:
    for case in all_cases().values():
        print(f"{case.name:12} {case.figure:28} {case.title}; {case.measure} by {case.varies}")
    return 0


def _run(cases: dict[str, Case], size: Size, out: Path) -> int:
    done: list[recording.Record] = []
    for case in cases.values():
        try:
            record = recording.of_outcome(run(case, size, _progress), size)
        except Exception as error:
            raise RuntimeError(f"{case.name} could not be measured: {error}") from error
        done.append(record)
        _progress("")
        print(showing.text(record) + "\n", flush=True)
        charts.write(record, out)
        whole = recording.of_run(done, size)
        recording.write(
            whole, out / f"{size.name}.json"
        )  # after each, so that a run that is cut short leaves what it has
    (out / "index.html").write_text(charts.page(done, f"windrow bench, {size.name}"), encoding="utf-8")
    wrong = [line for record in done for line in record["wrong"]]
    short = [f"{record['name']}: {one['mark']}" for record in done for one in record["marks"] if not one["holds"]]
    print(f"{len(done)} experiments in {whole['seconds']:.0f} s, written to {out}")
    for line in wrong:
        print(f"wrong: {line}")
    if short:
        print(f"short of the mark: {'; '.join(short)}")
    return 0 if whole["good"] else 1


def _progress(text: str) -> None:
    """On a terminal, what is being measured."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _compare(before: recording.Record, after: recording.Record, least: float, fail: float | None) -> int:
    for name, one in (("before", before), ("after", after)):
        machine = one["machine"]
        print(f"{name:6} {machine['commit']} {machine['when']} {one['size']}, {machine['processor']}")
    if before["size"] != after["size"] or before["machine"]["processor"] != after["machine"]["processor"]:
        print("the two were not measured alike: their sizes or machines differ")
    lines = recording.compared(before, after)
    print(*showing.differences(lines, least), sep="\n")
    print(
        f"{len(lines)} cells in both, how many times as good after as before; changes below {least:.0%} are not shown"
    )
    slower = [key for key, better, *_ in lines if fail is not None and key[2] == "windrow" and better < fail]
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
