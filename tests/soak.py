"""What is drawn at random, drawn again with fresh seeds until the time is up: `make soak ARGS="--minutes 30"`.

Every test that draws carries the mark `soak` (see `conftest.py`): simulated trees, properties of the core and of Spark,
streams and processes that are killed. The suite runs each with one seed; here those come first that have had the least
time, so that what takes milliseconds is tried a thousand times beside a stream that is killed a few times.

    python tests/soak.py --minutes 30                                    all of them
    python tests/soak.py --minutes 5 tests/test_counting.py -k quantiles   some; what pytest takes is passed on

It stops at the first test that fails, prints the seed and the command that repeats it, and how often each has run.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import sys
import time
from collections import Counter

import pytest

SEED = "WINDROW_SEED"


class Soak:
    """A plugin that runs tests again and again, in place of pytest's own loop."""

    def __init__(self, minutes: float) -> None:
        self._until = time.monotonic() + 60 * minutes
        self._spent = Counter[pytest.Item]()  # seconds
        self._runs = Counter[str]()
        self._failed: tuple[str, int] | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        others = [item for item in items if item.get_closest_marker("soak") is None]
        items[:] = [item for item in items if item.get_closest_marker("soak")]
        random.shuffle(items)  # a budget that ends early leaves out others each time
        config.hook.pytest_deselected(items=others)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        from hypothesis import core  # only now: pytest rewrites its assertions first

        self._spent.update(dict.fromkeys(session.items, 0))
        while self._spent and time.monotonic() < self._until:
            item = min(session.items, key=self._spent.__getitem__)
            begin, number = time.monotonic(), secrets.randbelow(2**32)
            os.environ[SEED] = str(number)
            core.global_force_seed = number  # as --hypothesis-seed does
            # all fixtures but those of the session are made anew, since they may depend on the seed
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=session)
            self._spent[item] += max(1e-3, time.monotonic() - begin)
            self._runs[item.nodeid.partition("[")[0]] += 1
            if session.testsfailed:
                self._failed = item.nodeid, number
                break
        return True

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("runs, each with a seed of its own")
        for name, count in sorted(self._runs.items()):
            terminalreporter.write_line(f"{count:7,}  {name}")
        if self._failed:
            name, number = self._failed
            terminalreporter.write_line(f"again: {SEED}={number} python -m pytest '{name}'")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    given, others = parser.parse_known_args()
    os.environ[SEED] = "0"  # before hypothesis is set up: examples are drawn, and not derived from the tests
    return pytest.main(["-q", "-p", "no:cacheprovider", *others], [Soak(given.minutes)])


if __name__ == "__main__":
    sys.exit(main())
