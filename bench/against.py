"""Whether a change made something slower: a benchmark of this tree beside the same one of another commit.

    make bench-against ARGS="core 4d54c1c"                        every line of bench/core.py
    make bench-against ARGS="spark HEAD~3 --only stream --rounds 6"
    make bench-against ARGS="core main --check"                   exits 1 when a line is more than 5% slower

Both run alternately, each time in processes of their own, and of each line the best time counts. A single round says
little: on a shared machine the same tree differs by a fifth from one to the next.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SLOWER = 1.05  # from here on a line counts as slower

Times = dict[tuple[str, str], float]  # of a line and of what is timed in it, the best seconds


def run(tree: Path, name: str, options: list[str], times: Times) -> None:
    """Run a benchmark of a tree, and keep what was faster than before."""
    with tempfile.NamedTemporaryFile(suffix=".json") as written:
        command = [sys.executable, f"bench/{name}.py", "--json", written.name, *options]
        environment = os.environ | {"PYTHONPATH": str(tree / "src")}
        subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, check=True)
        lines = json.load(written)["lines"]
    for line in lines:
        for part, seconds in line["seconds"].items():
            at = line["name"], part
            times[at] = min(seconds, times.get(at, seconds))


def shown(before: Times, after: Times) -> list[str]:
    """A row for each time that both have; returns the names of those that are slower."""
    slower = []
    for at in [at for at in before if at in after]:
        ratio = after[at] / before[at]
        print(f"{at[0][:60]:60} {at[1]:14} {before[at]:9.3f} s {after[at]:9.3f} s  {ratio:6.3f}")
        slower += [f"{at[0]}: {at[1]}"] if ratio > SLOWER else []
    return slower


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=("core", "spark", "nodes"))
    parser.add_argument("commit", help="what this tree is compared with")
    parser.add_argument("--rounds", type=int, default=4, help="how often both run")
    parser.add_argument("--check", action="store_true", help="exit 1 when a line is slower by more than 5%%")
    given, options = parser.parse_known_args()
    before: Times = {}
    after: Times = {}
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "tree"
        subprocess.run(
            ["git", "worktree", "add", "--quiet", "--detach", str(other), given.commit], cwd=ROOT, check=True
        )
        try:
            for number in range(given.rounds):
                both = [(other, before), (ROOT, after)]
                for tree, times in both if number % 2 == 0 else both[::-1]:
                    run(tree, given.name, options, times)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(other)], cwd=ROOT, check=True)
    slower = shown(before, after)
    if slower:
        print(f"slower: {'; '.join(slower)}")
    return 1 if given.check and slower else 0


if __name__ == "__main__":
    sys.exit(main())
