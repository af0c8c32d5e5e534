"""A root and a local node that reads a real source, in one process; the node can be killed and started again."""

from collections.abc import Callable, Sequence

import polars as pl

import windrow as wr
from windrow.nodes.protocol.journal import MemoryStore
from windrow.nodes.protocol.messages import Ack, Batch, Message
from windrow.nodes.protocol.node import SINK, Node
from windrow.nodes.queries import QuerySet
from windrow.nodes.sources import Source


class SmallTree:
    def __init__(
        self,
        queries: Sequence[wr.Query],
        columns: dict[str, pl.DataType],
        make: Callable[[], Source],
        lateness: str | int = 0,
    ) -> None:
        self._make, self._epoch, self._now = make, 0, 0
        self._results: list[pl.DataFrame] = []
        asked = QuerySet.of(queries, "ts", columns, lateness)
        self.root = Node("root", None, ("n",), 1, MemoryStore(), asked, ahead=None)
        self.begin()

    def begin(self) -> None:
        """Start the local node."""
        self._epoch += 1
        self.source = self._make()
        self.local = Node("n", "root", life=self._epoch, eager=not self.source.replayable, ahead=None)
        self._is_begun = False
        self._carry("n", self.local.start(self._now))

    def kill(self) -> None:
        """End the local node, and start it again."""
        self.source.close()
        self.begin()

    def step(self, wait: float, lost: bool = False) -> int:
        """Read once, and say how many events; what the node then says may be lost on its way."""
        self._now += 2_000_000
        mark = self.local.mark
        if mark is None:
            self._carry("n", self.local.tick(self._now))
            return 0
        if not self._is_begun:
            self.source.resume(mark)
            self._is_begun = True
        needed = dict(self.local.query_set.columns) if self.local.query_set else {}
        found = self.source.read(needed, wait)
        if found is not None:
            out = self.local.read(found.events, found.mark, self._now, found.last)
            if not lost:
                self._carry("n", out)
        if self.local.confirmed is not None:
            self.source.confirm(self.local.confirmed)
        return 0 if found is None else found.events.height

    @property
    def results(self) -> pl.DataFrame:
        return pl.concat(self._results, how="diagonal")

    def _carry(self, sender: str, out: Sequence[tuple[str, Message]]) -> None:
        for to, message in out:
            if to == SINK and sender == "root":
                assert isinstance(message, Batch)
                self._results += [message.tables["results"]] if "results" in message.tables else []
                answer = self.root.receive(SINK, Ack(self.root.life, message.number), self._now)
                self._carry("root", answer)
            else:
                machine = self.root if to == "root" else self.local
                self._carry(to, machine.receive(sender, message, self._now))


def rows_of(results: pl.DataFrame) -> list[str]:
    """What is said of each window, in one order."""
    names = sorted(set(results.columns) - {"revision"})
    return sorted(map(str, results.select(names).iter_rows()))
