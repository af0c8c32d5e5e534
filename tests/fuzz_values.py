"""Values that cannot be, in messages that are well formed: what a child with a right token may send on purpose.

    a tree of two children ── every batch of one of them, and its parent's log store before it ──▶ samples
    a sample with other values ──▶ the parent as it was: it refuses with a reason, or takes it and goes on

After a batch that was taken, the parent is started again from its log store and the other child reads to its end: its
windows are to be as if the first child had never been there. `fuzz_bytes` gives both a process with limited memory.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import polars as pl

import windrow as wr
from windrow.nodes.protocol.journal import MemoryStore
from windrow.nodes.protocol.messages import (
    Ack,
    Batch,
    Hello,
    Leave,
    Message,
    Out,
    Refused,
    from_bytes,
    to_bytes,
)
from windrow.nodes.protocol.node import SINK, Node
from windrow.nodes.queries import QuerySet
from windrow.nodes.requests import AGAIN

COLUMNS = {"t": pl.Int64(), "k": pl.String(), "d": pl.Date(), "x": pl.Int64(), "y": pl.Float64()}
COLUMNS |= {"z": pl.Decimal(12, 2)}
TIMES = (0, 1, -1, 7, 2**31, 2**48, 2**61, 2**62, 2**62 + 1, 2**63 - 1, -(2**62), -(2**62) - 1, -(2**63), -(2**63) + 1)
FLOATS = (0.0, -0.0, -1.0, 0.5, 1e308, -1e308, float("nan"), float("inf"), float("-inf"))
OTHER = "somebody"  # whose windows nobody else has a part in
ENDED = 60  # steps of AGAIN after which a tree has come to its end


def every_operator() -> list[wr.Query]:
    basic = ["count()", "count(x)", "sum(x)", "sum(y)", "sum(z)", "min(x)", "max(y)", "min(d)", "max(k)", "product(y)"]
    basic += ["geometric_mean(y)", "variance(x)", "mode(x)", "median(y)", "first(x)", "last(y)", "arg_min(x, y)"]
    basic += ["collect(x)", "distinct(k)"]
    sketched = ["approx_quantile(y, 0.5)", "approx_distinct(x)", "approx_distinct(k)", "top_k(k, 2)"]
    return [
        wr.Query("every", wr.tumbling(10), [*basic, *sketched], by="k"),
        wr.Query("dated", wr.sliding(20, 5), ["count()", "sum(x)"], by=["k", "d"]),
        wr.Query("session", wr.session(6), ["count()", "sum(y)", "last(x)"], by="k"),
        wr.Query("cumulating", wr.cumulating(20, 5), ["mean(x)"], by="node"),
    ]


QUERY_SETS: dict[str, Callable[[], QuerySet]] = {
    "slices": lambda: _asked(every_operator(), quantiles="whole"),
    "events": lambda: _asked(
        [
            wr.Query("frames", wr.frames(when="x > 3"), ["collect(x)", "sum(y)"], by="k"),
            wr.Query("latest", wr.latest(3, every=7), ["sum(x)", "count()"], by="k"),
            wr.Query("central", wr.counting(3), ["sum(x)"], by=["k", "d"]),
        ],
        counting="central",
    ),
    "counting": lambda: _asked(
        [wr.Query("counted", wr.counting(8), ["count()", "sum(x)", "median(x)"], by=["k", "d"])], counting="refine"
    ),
    "quantiles": lambda: _asked([wr.Query("median", wr.tumbling(10), ["median(x)", "quantile(y, 0.9)"], by="k")]),
    "windows": lambda: _asked(
        [
            wr.Query("mine", wr.frames("x > 2"), ["collect(x)"], by=["k", "node"]),
            wr.Query("bounds", wr.punctuated(end="x > 4", scope="bounds"), ["count()", "sum(y)"], by="k"),
            wr.Query("overlap", wr.frames("x > 2", "overlap"), ["count()", "max(x)"], by="k"),
            wr.Query("position", wr.counting(3, 2, "position"), ["sum(x)"], by="k"),
        ],
        push_down=True,
    ),
}


def _asked(queries: list[wr.Query], **more: Any) -> QuerySet:
    return QuerySet.of(queries, "t", COLUMNS, lateness=2, **more)


def events_of(name: str, count: int = 60) -> pl.DataFrame:
    dice = random.Random(name)
    rows = [
        {
            "t": number + dice.randint(0, 2),
            "k": f"{name} {dice.choice('ab')}",
            "d": number % 2,
            "x": dice.randint(0, 6),
            "y": dice.randint(0, 36) / 4,  # sums of which are exact in any order
            "z": None if dice.random() < 0.1 else dice.randint(0, 999),
        }
        for number in range(count)
    ]
    table = pl.DataFrame(rows, schema={**COLUMNS, "d": pl.Int32(), "z": pl.Int64()})
    return table.with_columns(pl.col("d").cast(pl.Date()), pl.col("z").cast(pl.Decimal(12, 2)))


class Tree:
    """A parent with its children, in one process and without faults; an inner one has a root above it."""

    def __init__(self, query_set: QuerySet, inner: bool) -> None:
        self._query_set, self.parent, self.lives = query_set, "inner" if inner else "root", 0
        self.disks = {"root": MemoryStore(), **({"inner": MemoryStore()} if inner else {})}
        self.nodes: dict[str, Node] = {}
        self.events = {name: events_of(name) for name in ("evil", OTHER)}
        self.emitted: dict[int, pl.DataFrame] = {}
        self.now = 0
        self.watch: Callable[[str, Message], None] = lambda *_: None  # sees what comes to the parent
        self.refused: list[tuple[str, str]] = []  # to whom, and why

    def copy(self) -> Tree:
        """The same with its log stores as they are, and no node running."""
        other = copy.copy(self)
        other.disks, other.nodes, other.emitted = copy.deepcopy(self.disks), {}, dict(self.emitted)
        other.watch, other.refused = (lambda *_: None), []
        return other

    def begin(self, *names: str) -> Tree:
        """Start nodes, parents first; one that runs is started again."""
        for name in names:
            self.lives += 1
            above = {"root": None, "inner": "root"}.get(name, self.parent)
            below = {"inner": ("evil", OTHER), "root": ("inner",) if self.parent == "inner" else ("evil", OTHER)}
            disk = self.disks.setdefault(name, MemoryStore()) if self._query_set.push_down or name in below else None
            given = self._query_set if name == "root" else None
            self.nodes[name] = Node(name, above, below.get(name, ()), self.lives, disk, given, block_size=2, log=5)
            self.carry(name, self.nodes[name].start(self.now))
        return self

    def carry(self, sender: str, out: Out) -> None:
        """Bring messages to where they go, and all that follows from them."""
        way = [(sender, to, message) for to, message in out]
        while way:
            sender, to, message = way.pop(0)
            if isinstance(message, Refused):
                self.refused.append((to, message.reason))
            if to == self.parent:
                self.watch(sender, message)
            if to == SINK:
                assert isinstance(message, Batch)
                self.emitted.setdefault(message.number, message.tables["results"])
                self.nodes["root"].receive(SINK, Ack(message.life, message.number), self.now)
            elif to in self.nodes:
                again = self.nodes[to].receive(sender, from_bytes(to_bytes(message)), self.now)
                way += [(to, other, answer) for other, answer in again]

    def leave(self) -> None:
        """Let another life of the child that lied come and go, whatever it had said of where it is in its source."""
        parent, self.lives = self.nodes[self.parent].as_parent, self.lives + 1
        assert parent is not None
        epoch = parent.subtree.children["evil"].epoch + 1
        for message in (Hello("evil", self.lives, epoch), Leave("evil", self.lives)):
            self.carry("evil", [(self.parent, message)])

    def tick(self) -> None:
        self.now += AGAIN
        for name, node in list(self.nodes.items()):
            self.carry(name, node.tick(self.now))

    def run(self, *names: str, step: int = 9, still: bool = False) -> None:
        """Let children read to their end; until nothing happens any more, or `still` for a while."""
        for _ in range(10 if still else ENDED):
            for name in names:
                node, events = self.nodes[name], self.events[name]
                if node.mark is not None:
                    at = node.mark.get("at", 0)
                    part = events[at : at + step]
                    self.carry(name, node.read(part, {"at": at + part.height}, self.now, at + step >= events.height))
            self.tick()
            if all(node.done for node in self.nodes.values()):
                return

    def results(self) -> list[dict[str, Any]]:
        """The windows of the innocent child."""
        tables = [self.emitted[number] for number in sorted(self.emitted)]
        if not tables:
            return []
        rows = pl.concat(tables, how="diagonal_relaxed")
        mine = pl.col("k").str.starts_with(OTHER) if "k" in rows.columns else pl.lit(False)
        if "node" in rows.columns:
            mine = mine.fill_null(False) | (pl.col("node") == OTHER)
        order = [name for name in rows.columns if not rows.schema[name].is_nested()]
        return rows.filter(mine.fill_null(False)).sort(order).to_dicts()


@dataclass(frozen=True)
class Sample:
    """A batch, and the tree before it has come."""

    batch: Batch
    before: Tree


@cache
def _alone(kind: str) -> list[dict[str, Any]]:
    """The windows of the innocent child where the other one has gone before it sent anything."""
    tree = Tree(QUERY_SETS[kind](), inner=False).begin("root", OTHER, "evil")
    tree.carry("evil", tree.nodes["evil"].leave(0))
    del tree.nodes["evil"]
    tree.run(OTHER)
    assert len(tree.results()) > 5
    return tree.results()


class Refusal(Exception):
    """A parent's reason."""


class Values:
    """The samples of a tree, and what is to come out of them."""

    def __init__(self, kind: str, inner: bool) -> None:
        self.name = f"{kind}, {'inner' if inner else 'root'}"
        self._above = ("root", "inner") if inner else ("root",)
        self.right = _alone(kind)
        self.samples: list[Sample] = []
        tree = Tree(QUERY_SETS[kind](), inner).begin(*self._above, OTHER, "evil")
        tree.watch = lambda sender, message: self._note(tree, sender, message)
        tree.run("evil", OTHER)
        assert tree.refused == []
        assert tree.results() == self.right, self.name
        self._parents: dict[int, Tree] = {}  # of samples, with the nodes that run

    def _note(self, tree: Tree, sender: str, message: Message) -> None:
        if sender == "evil" and isinstance(message, Batch) and message.tables:
            self.samples.append(Sample(message, tree.copy()))

    def give(self, sample: Sample, batch: Batch, to_the_end: bool) -> None:
        """Give the parent a batch instead of a sample: it raises a `Refusal`, or takes it and nobody else notices."""
        tree = self._parents.pop(id(sample), None) or sample.before.copy().begin(*self._above)
        tree.refused.clear()
        tree.now += 1
        tree.carry("evil", [(tree.parent, batch)])
        self._nobody_else(tree)
        if tree.refused:
            self._parents[id(sample)] = tree  # which is as it was before
            raise Refusal(tree.refused[0][1])
        tree.tick()
        if not to_the_end:
            return
        tree.begin(*self._above, OTHER).run(OTHER, still=True)
        tree.leave()
        tree.run(OTHER)
        self._nobody_else(tree)
        found = tree.results()
        if found != self.right:
            lacks, more = ([row for row in one if row not in other] for one, other in _both_ways(self.right, found))
            raise AssertionError(f"windows of an innocent child: lacks {lacks[:3]}, has {more[:3]}")

    def _nobody_else(self, tree: Tree) -> None:
        others = [(to, reason) for to, reason in tree.refused if to != "evil"]
        if others:
            raise AssertionError(f"refused for what another has sent: {others}")


def both(kind: str) -> list[Values]:
    """With the root as the parent, and with an intermediate node."""
    return [Values(kind, inner) for inner in (False, True)]


def _both_ways(one: Any, other: Any) -> list[tuple[Any, Any]]:
    return [(one, other), (other, one)]


# --- other values -----------------------------------------------------------------------------------------------------


def changed(batch: Batch, dice: random.Random) -> Batch:
    """A batch with a few other values."""
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        if dice.random() < 0.15:
            batch = _other_head(batch, dice)
        else:
            tables = dict(batch.tables)
            name = dice.choice(sorted(tables)) if tables else ""
            tables |= {name: _other_table(tables[name], dice)} if tables else {}
            if dice.random() < 0.05 and tables:
                other = dice.choice(sorted(tables))
                tables[other] = tables[name]
            batch = replace(batch, tables=tables)
    return batch


def _other_head(batch: Batch, dice: random.Random) -> Batch:
    name = dice.choice(("watermark", "newest", "since", "version", "idle", "events", "position"))
    number = dice.choice(TIMES)
    if name == "events":
        return replace(batch, events={dice.choice((batch.node, OTHER, "new", "")): abs(number) % 2**62})
    if name == "position":
        return replace(batch, position=dice.choice(({}, {"mark": {}}, dict(batch.position) | {"count": 0})))
    if name in ("version", "idle"):
        number = dice.choice((0, 1, 2, 2**40))
    return replace(batch, **{name: number})  # type: ignore[arg-type]


def _other_table(table: pl.DataFrame, dice: random.Random) -> pl.DataFrame:
    if not table.width:
        return table
    name = dice.choice(table.columns)
    column = table[name]
    match dice.randrange(12):
        case 0:
            return table.with_columns(column.shuffle(dice.randrange(100)))
        case 1:
            alike = [other for other in table.columns if table.schema[other] == column.dtype]
            other = dice.choice(alike)
            return table.with_columns(table[other].alias(name)).with_columns(column.alias(other))
        case 2:
            return table.drop(name)
        case 3:
            return pl.concat([table, table[dice.randrange(table.height + 1) :]])
        case 4:
            return table[: dice.randrange(table.height + 1)]
        case 5:
            odd = dice.choice((pl.lit(1), pl.lit("x"), pl.lit(None), pl.lit(0.5), pl.lit([[1, 2]])))
            return table.with_columns(odd.alias(dice.choice((name, "odd", f"{name}.odd"))))
        case 6:
            return table.reverse()
        case _:
            return table.with_columns(_other_column(column, dice))


def _other_column(column: pl.Series, dice: random.Random) -> pl.Series:
    if not len(column):
        return column
    cells = column.to_list() if column.dtype not in (pl.Date(),) else column.to_physical().to_list()
    dtype = column.dtype if column.dtype != pl.Date() else pl.Int32()
    places = range(len(cells)) if dice.random() < 0.3 else [dice.randrange(len(cells))]
    for place in places:
        cells[place] = _other_value(cells[place], column.dtype, dice)
    try:
        made = pl.Series(column.name, cells, dtype=dtype, strict=True)
    except (TypeError, OverflowError, ValueError, pl.exceptions.PolarsError):
        return column
    return made.cast(column.dtype) if dtype != column.dtype else made


def _other_value(value: Any, dtype: pl.DataType, dice: random.Random) -> Any:
    if dice.random() < 0.15:
        return None
    if dtype == pl.Date():
        return dice.choice((-(2**31), 2**31 - 1, 0, -800_000, 3_000_000))
    if dtype.is_integer():
        low, high = (-(2**31), 2**31 - 1) if dtype == pl.Int32() else (-(2**63), 2**63 - 1)
        near = [] if value is None else [value - 1, value + 1, -value, 2 * value]
        return max(low, min(high, dice.choice((*TIMES, *near))))
    if dtype.is_float():
        return dice.choice(FLOATS)
    if dtype.is_decimal():
        return dice.choice((0, -1, 10**12 - 1, 10**30, -(10**30)))
    match dtype:
        case pl.String():
            return dice.choice(("", "\x00", "evil c", "events", "slice", "count", "new", "evil"))
        case pl.Boolean():
            return not value
        case pl.Binary():
            return _other_bytes(value or b"", dice)
        case pl.List():
            return _other_list(list(value or ()), dtype.inner, dice)
        case pl.Struct():
            field = dice.choice(dtype.fields)
            return {**(value or {}), field.name: _other_value((value or {}).get(field.name), field.dtype, dice)}
    return value


def _other_list(values: list[Any], inner: Any, dice: random.Random) -> list[Any]:
    match dice.randrange(6):
        case 0:
            return values[:-1]
        case 1:
            return values[::-1]
        case 2:
            return [*values, *values[-1:]]
        case 3:
            return []
        case _:
            place = dice.randrange(len(values) + 1)
            return [
                *values[:place],
                _other_value(values[place] if place < len(values) else None, inner, dice),
                *values[place + 1 :],
            ]


def _other_bytes(data: bytes, dice: random.Random) -> bytes:
    from fuzz_bytes import changed as changed_bytes

    return dice.choice((b"", b"\x00", dice.randbytes(40), changed_bytes(data, dice), changed_bytes(data, dice)))
