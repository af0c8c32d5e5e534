"""How little goes up for exact quantiles: local nodes and a root in this process, bytes as they are written.

`bench/nodes.py` runs it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import polars as pl
from core import Line

import windrow as wr
from windrow.core.windows.fixed import INT64_MAX
from windrow.nodes.protocol.journal import MemoryStore
from windrow.nodes.protocol.messages import Ack, Batch, Out
from windrow.nodes.protocol.node import SINK, Node
from windrow.nodes.queries import QuerySet
from windrow.nodes.transport.wire import Reader, Writer

NODES = 8
SECOND = 1_000_000
BASE = 1_700_000_000 * SECOND
COLUMNS = {"ts": pl.Datetime("us"), "key": pl.Int32(), "value": pl.Float64()}


def events(seed: int, rate: int, seconds: int, keys: int) -> pl.DataFrame:
    """Events of one node, in order."""
    dice = np.random.default_rng(seed)
    size = rate * seconds
    times = np.sort(dice.integers(0, seconds * SECOND, size)) + BASE
    columns = {"ts": times, "key": dice.integers(0, keys, size), "value": dice.normal(20, 5, size)}
    return pl.DataFrame(columns).with_columns(pl.col(name).cast(dtype) for name, dtype in COLUMNS.items())


class Links:
    """A root with local nodes; every message is written and read again."""

    def __init__(self, queries: list[wr.Query], quantiles: str) -> None:
        asked = QuerySet.of(queries, "ts", COLUMNS, quantiles=quantiles)
        names = tuple(f"n{number}" for number in range(NODES))
        self.machines = {"root": Node("root", None, names, 1, MemoryStore(), asked, ahead=None)}
        self.machines |= {name: Node(name, "root", life=1, ahead=None) for name in names}
        self.up, self.down, self.now = 0, 0, 1
        self.rows: list[pl.DataFrame] = []
        self._ends: dict[tuple[str, str], tuple[Writer, Reader]] = defaultdict(lambda: (Writer(), Reader()))
        for name, machine in self.machines.items():
            self.post(name, machine.start(self.now))

    def post(self, sender: str, out: Out) -> None:
        waiting = [(sender, *one) for one in out]
        while waiting:
            whose, to, message = waiting.pop(0)
            self.now += 1
            if to == SINK:
                assert isinstance(message, Batch)
                self.rows.append(message.tables["results"])
                more = self.machines["root"].receive(SINK, Ack(message.life, message.number), self.now)
                waiting += [("root", *one) for one in more]
                continue
            writer, reader = self._ends[whose, to]
            data = writer.write(message)
            self.up, self.down = self.up + (to == "root") * len(data), self.down + (to != "root") * len(data)
            waiting += [(to, *one) for one in self.machines[to].receive(whose, reader.read(data), self.now)]

    def run(self, frames: list[pl.DataFrame], step: int) -> pl.DataFrame:
        """All events, so many at a time, by turns."""
        longest = max(frame.height for frame in frames)
        for at in range(0, longest, step):
            for number, frame in enumerate(frames):
                part, end = frame[at : at + step], at + step >= longest
                out = self.machines[f"n{number}"].read(part, {"at": at + part.height}, self.now, last=end)
                self.post(f"n{number}", out)
        for _ in range(1000):
            if all(machine.done for machine in self.machines.values()):
                assert self.machines["root"].watermark == INT64_MAX
                return pl.concat(self.rows)
            self.now += SECOND
            for name, machine in self.machines.items():
                self.post(name, machine.tick(self.now))
        raise RuntimeError("the root waits for ever")


def quantiles(scale: float, runs: int) -> Iterator[Line]:
    """Bytes over all links, beside those of the events themselves, in Arrow."""
    rate, seconds = max(1000, int(125_000 * scale)), 3
    shares = [number / 999 for number in range(1000)]
    median = wr.Query("median", wr.tumbling("1 second"), ["median(value)"])
    many = wr.Query("many", wr.tumbling("1 second"), {f"q{n}": wr.quantile("value", q) for n, q in enumerate(shares)})
    keyed = wr.Query("keyed", wr.tumbling("1 second"), ["median(value)"], by="key")
    sliding = wr.Query("sliding", wr.sliding("3 seconds", "1 second"), ["median(value)"])
    session = wr.Query("session", wr.session("1 second"), ["median(value)"])
    for what, query, most in (
        ("exact median over 1 s", median, 0.03),
        ("1,000 quantiles at once", many, 0.4),
        ("exact median over 1 s by 100 keys", keyed, 1.05),
        ("exact median over 3 s by 1 s", sliding, 1.05),
        ("exact median of a session", session, 1.05),
    ):
        frames = [events(number, rate, seconds, 100) for number in range(NODES)]
        raw = sum(len(one.to_arrow().combine_chunks().to_batches()[0].serialize()) for one in frames)
        sent, answers, spent = {}, {}, {}
        for how in ("refine", "whole"):
            links, begin = Links([query], how), time.perf_counter()
            answers[how] = links.run(frames, max(1, rate // 4)).sort("window_start", *query.by)
            sent[how], spent[how] = links.up, time.perf_counter() - begin
        if not answers["refine"].equals(answers["whole"]):
            raise AssertionError(f"{what}: the answers differ")
        note = f"{sent['refine']:,} of {raw:,} bytes; whole bags {sent['whole']:,}"
        yield Line(f"bytes up, {what} / raw Arrow", sent["refine"] / raw, most=most, seconds=spent, note=note)
