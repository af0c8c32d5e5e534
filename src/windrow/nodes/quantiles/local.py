"""A local node's side of two-phase quantiles: multisets stay here until the root has released them.

    slices that are sent ── a multiset of many values ──▶ kept here, its block summaries are sent ──▶ values on request
                         ── any other ──▶ travels whole

What is kept is kept in memory. After a crash it is made again from the source, event by event: each event was sent at
the first **send** that had read it, and whose slices reached past it. So that a later life knows which, a batch says
of each send how many events had been read, and before which time slices were sent.

          sends       1          2              3
    ──────────────────┼──────────┼──────────────┼─────▶ position in the source
                       an event here, of a slice that was still open at 2, was sent with 3

The multisets of counting windows (`counting.local`) follow from the final events, which are kept as long.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from windrow.core.arrays.range_queries import Ints
from windrow.core.operators.multiset import flat, lists
from windrow.core.slices.kernel import filter_name, time_name
from windrow.core.stream.job import Job
from windrow.core.stream.job_slicer import Tables
from windrow.core.windows.fixed import INT64_MAX, Grid
from windrow.nodes.occasion import Occasion
from windrow.nodes.quantiles.protocol import REMOTE, SUMMARY, MultisetSchema, block_sizes, blocks_of, multiset_of
from windrow.nodes.quantiles.tables import schemas_of

MOST = 8_000_000  # values that are kept; beyond, multisets travel whole
MOST_SENDS = 4096  # that a batch tells of; beyond, too


class Identity(NamedTuple):
    """Which multiset of a node: the key is there where `send` and `row` are ranks (see `protocol`)."""

    operator: str
    key: tuple[Any, ...]
    send: int
    row: int


class SortedValues(NamedTuple):
    """Sorted values and their counts, all of a multiset or those of some blocks."""

    values: pl.Series
    counts: pl.Series
    start: int = 0  # of a time window, none of its events is older
    size: int = 1  # of its blocks


class Multisets:
    """The multisets of one group that stay at a node, and what is to be sent of them.

    `make` makes one that is requested and not kept; None if the request is to be passed over. Each part of a multiset
    is sent once: whatever was sent is on its way until the root has it.
    """

    def __init__(
        self,
        schema: MultisetSchema,
        node: str,
        make: Callable[[Identity, Mapping[str, Any]], SortedValues | None],
        forced: int | None = None,
        key_types: Mapping[str, pl.DataType] | None = None,
    ) -> None:
        self.schema, self.node, self._make, self._forced = schema, node, make, forced
        self._key_types = dict(key_types or {})  # as which they are in an identity
        self.kept: dict[Identity, SortedValues] = {}
        self._answered: set[tuple[Identity, int]] = set()
        self._answers: dict[str, list[tuple[Identity, int, SortedValues]]] = {}

    def request(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """Answer what the root wants."""
        for operator in self.schema.multisets:
            wanted = tables.get(self.schema.table("wanted", operator))
            for row in wanted.iter_rows(named=True) if wanted is not None else ():
                key = tuple(row[name] for name in self._key_types)
                self.answer(Identity(operator, key, row["send"], row["row"]), row["lo"], row["hi"], row)

    def answer(self, identity: Identity, lo: int, hi: int, wanted: Mapping[str, Any]) -> None:
        """Send the values from one place in a multiset to another, or its block summaries."""
        if (identity, lo) in self._answered:
            return
        multiset = self.kept.get(identity) or self._make(identity, wanted)
        if multiset is None:
            return
        if len(multiset.values):
            self.kept[identity] = multiset
        self._answered.add((identity, lo))
        if lo != SUMMARY:
            multiset = SortedValues(multiset.values[lo:hi], multiset.counts[lo:hi])
        self._answers.setdefault(identity.operator, []).append((identity, lo, multiset))

    def forget(self, is_released: Callable[[Identity, SortedValues], bool]) -> None:
        released = [identity for identity, multiset in self.kept.items() if is_released(identity, multiset)]
        for identity in released:
            del self.kept[identity]
        if released:
            self._answered = {part for part in self._answered if part[0] in self.kept}

    def take_over(self, other: Multisets) -> None:
        """Go on with what the same group of another plan has."""
        self.kept, self._answered, self._answers = other.kept, other._answered, other._answers

    def tables(self) -> Tables:
        """The answers that are to be sent."""
        tables = Tables()
        for operator, answers in self._answers.items():
            summaries = {identity: multiset for identity, lo, multiset in answers if lo == SUMMARY}
            if summaries:
                counts = pl.concat([multiset.counts for multiset in summaries.values()])
                size = self.block_sizes(operator, np.array([len(one.values) for one in summaries.values()]), counts)
                # multisets that had better travel whole have blocks of one value
                tables |= self.summaries(operator, summaries, np.maximum(1, size))
            parts = [answer for answer in answers if answer[1] != SUMMARY]
            if parts:
                identities, places, values = zip(*parts, strict=True)
                columns = {**self._columns(identities), "lo": pl.Series(places, dtype=pl.Int64)}
                multisets = [one.values for one in values], [one.counts for one in values]
                tables[self.schema.table("values", operator)] = self.schema.values_table(operator, columns, *multisets)
        self._answers = {}
        return tables

    def _columns(self, identities: Sequence[Identity]) -> dict[str, pl.Series]:
        """The columns that identify multisets."""
        rows = [(self.node, identity.send, identity.row, *identity.key) for identity in identities]
        types = {"node": pl.String(), "send": pl.Int64(), "row": pl.Int64(), **self._key_types}
        table = pl.DataFrame(rows, schema=types, orient="row")
        return {name: table[name].cast(dtype) for name, dtype in self.schema.identity_columns.items()}

    def summaries(
        self,
        operator: str,
        multisets: Mapping[Identity, SortedValues],
        size: Ints,
        more: Mapping[str, Any] | None = None,
    ) -> Tables:
        """The table with the block summaries of multisets; `more` columns are those of their slices."""
        values, counts = (pl.concat(parts) for parts in list(zip(*multisets.values(), strict=True))[:2])
        entries = np.array([len(one.values) for one in multisets.values()])
        columns = {**(more or {}), **self._columns(list(multisets)), "size": size, "entries": entries}
        blocks = pl.DataFrame(columns).with_columns(blocks_of(values, counts, entries, size))
        return {self.schema.table("blocks", operator): blocks.select(*self.schema.blocks(operator))}

    def block_sizes(self, operator: str, entries: Ints, counts: pl.Series) -> Ints:
        """How many values a block of each multiset has, of those laid end to end; 0 if it had better travel whole."""
        totals = np.add.reduceat(np.append(counts.to_numpy(), 0), np.cumsum(entries) - entries)
        quantiles = self.schema.quantile_count(operator)
        return block_sizes(entries, totals == entries, quantiles, self._forced)


class Send(NamedTuple):
    """Slices that were sent together."""

    number: int
    read: int  # events that had been read
    bound: int  # slices that begin before this were sent
    keeps: int  # 1 if multisets of it were kept


@dataclass
class SentSlices:
    """One group of time windows or sessions at a local node: its sends, and the multisets of their slices."""

    schema: MultisetSchema
    node: str
    forced: int | None
    sends: list[Send] = field(default_factory=list)
    number: int = 0  # of the last send
    again: dict[int, list[pl.DataFrame]] = field(default_factory=dict)  # events of sends of an earlier life

    def __post_init__(self) -> None:
        self.multisets = Multisets(self.schema, self.node, self._made_again, self.forced)
        self._time = time_name(self.schema.group.source.time)

    # --- what is sent ---------------------------------------------------------------------------------------------

    def refined(self, table: pl.DataFrame, count: int, bound: int, whole: bool) -> Tables:
        """Keep the large multisets of slices that are sent, and give the slices without them, with block summaries.

        count:  events read so far
        bound:  slices that begin before this have been sent now
        whole:  keep nothing, because the node goes or the root is done
        """
        schema, tables, rows = self.schema, Tables(), np.zeros(table.height, np.bool_)
        self.number += 1
        start, end = self._times(table)
        for operator in () if whole or len(self.sends) >= MOST_SENDS or self.size > MOST else schema.multisets:
            columns = schema.columns(operator)
            values, entries = flat(table[columns[0]])
            counts = flat(table[columns[1]])[0]
            size = self.multisets.block_sizes(operator, entries, counts)
            stays = size > 0
            if not stays.any():
                continue
            rows |= stays
            multisets = {
                Identity(operator, (), self.number, row): SortedValues(
                    table[columns[0]][row], table[columns[1]][row], int(start[row]), int(size[row])
                )
                for row in np.flatnonzero(stays).tolist()
            }
            self.multisets.kept |= multisets
            keys = table.filter(pl.Series(stays)).select(*schema.keys).to_dict()
            more = {**keys, "start": start[stays], "end": end[stays]}
            tables |= self.multisets.summaries(operator, multisets, size[stays], more)
            inside = pl.Series(np.repeat(stays, entries))
            table = table.with_columns(
                lists(column.filter(~inside), np.where(stays, 0, entries)).alias(name)
                for name, column in zip(columns, (values, counts), strict=True)
            )
        self._note(Send(self.number, count, bound, int(rows.any())))
        table = table.with_columns(self._identities(rows)) if rows.any() else table.drop(REMOTE)
        return {schema.name: table, **tables}

    def _times(self, table: pl.DataFrame) -> tuple[Ints, Ints]:
        """From when to when the events of slices are."""
        if self.schema.schema.has_runs:
            return table["first"].to_numpy(), table["last"].to_numpy() + 1
        start = table["slice_start"].to_numpy()
        end = np.full(len(start), INT64_MAX)
        edges = self.schema.compiled.edges
        for period, phase in zip(edges.period, edges.phase, strict=True):
            np.minimum(end, Grid(period, phase).after(start), out=end)
        return start, end

    def _identities(self, rows: Any) -> pl.Series:
        """The column that says of slices which of their multisets stay here."""
        at = np.flatnonzero(rows)
        identities = pl.DataFrame({"row": at}).select(
            node=pl.lit(self.node), send=pl.lit(self.number, pl.Int64()), row=pl.col("row").cast(pl.Int64)
        )
        return lists(identities.to_struct(REMOTE), rows.astype(np.int64)).alias(REMOTE)

    def _note(self, send: Send) -> None:
        """Of sends that keep nothing, the last of several that follow each other stands for all."""
        if self.sends and not (self.sends[-1].keeps or send.keeps):
            self.sends.pop()
        self.sends.append(send)

    # --- what is requested ----------------------------------------------------------------------------------------

    def request(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """Answer what the root wants, and forget what it will not request any more."""
        self.multisets.request(tables)
        released = tables.get(self.schema.released_table)
        for send, start in released.iter_rows() if released is not None else ():
            self.forget(send, start)

    def _made_again(self, identity: Identity, wanted: Mapping[str, Any]) -> SortedValues:
        """A multiset of an earlier life, from its events; nothing if it was released, or the node had gone since."""
        partial, time = self.schema.multisets[identity.operator], pl.col(self._time)
        if identity.send not in self.again:
            nothing = pl.Series([], dtype=self.schema.value_type(identity.operator)), pl.Series([], dtype=pl.Int64())
            return SortedValues(*nothing)
        conditions = [(time >= wanted["start"]) & (time < wanted["end"])]
        conditions += [pl.col(name).eq_missing(pl.lit(wanted[name], dtype)) for name, dtype in self.schema.keys.items()]
        where = self.schema.group.source.where
        conditions += [pl.col(filter_name(where.text))] if where else []
        events = pl.concat(self.again[identity.send]).filter(*conditions)
        return SortedValues(*multiset_of(events, partial), wanted["start"], wanted["hi"] - wanted["lo"])

    def forget(self, send: int, start: int) -> None:
        """Nothing is requested of these and earlier sends, of events before a time."""
        self.multisets.forget(lambda identity, multiset: identity.send <= send and multiset.start < start)
        for number in [number for number in self.again if number <= send]:
            frames = [frame.filter(pl.col(self._time) >= start) for frame in self.again.pop(number)]
            if any(frame.height for frame in frames):
                self.again[number] = [frame for frame in frames if frame.height]

    def give_all(self) -> None:
        """Send all that might be requested, but for what an earlier life has sent blocks of: the node goes."""
        for identity, multiset in self.multisets.kept.copy().items():
            for lo in range(0, len(multiset.values), multiset.size):
                self.multisets.answer(identity, lo, lo + multiset.size, {})
        self.multisets.kept.clear()
        self.again.clear()

    # --- what is kept ---------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """How many values are kept."""
        return sum(len(multiset.values) for multiset in self.multisets.kept.values())

    @property
    def oldest(self) -> int:
        """No event that is kept is older."""
        times = [multiset.start for multiset in self.multisets.kept.values()]
        times += [
            int(frame[self._time].min())  # type: ignore[arg-type]
            for frames in self.again.values()
            for frame in frames
        ]
        return min(times, default=INT64_MAX)

    def take_again(self, events: pl.DataFrame) -> None:
        """Note events that an earlier life had read, and may have sent."""
        time, nth = events[self._time].to_numpy(), events["nth"].to_numpy()
        unsent = np.ones(len(time), np.bool_)
        for number, read, bound, keeps in self.sends:
            inside = unsent & (nth < read) & (time < bound)
            unsent &= ~inside
            if keeps and inside.any():
                self.again.setdefault(number, []).append(events.filter(pl.Series(inside)))

    def take_over(self, other: SentSlices) -> None:
        """Go on with what the same group of another plan has."""
        self.sends, self.number, self.again = other.sends, other.number, other.again
        self.multisets.take_over(other.multisets)

    def saved(self, count: int) -> tuple[int, str]:
        """What a later life has to know that reads again from an event on: the sends since then."""
        self.sends = [send for send in self.sends if send.read > count]
        table = np.array(self.sends, np.int64).reshape(-1, 4)
        steps = np.diff(table, axis=0, prepend=np.zeros((1, 4), np.int64))
        return self.number, base64.b64encode(zlib.compress(steps.T.tobytes())).decode()

    def restore(self, saved: Any) -> None:
        self.number, text = saved
        steps = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.int64).reshape(4, -1).T
        self.sends = [Send(*row) for row in np.cumsum(steps, axis=0).tolist()]


class LocalQuantiles:
    """The time windows and sessions of a local node whose multisets stay here.

    An eager node keeps nothing, because its source cannot be read again.
    """

    def __init__(self, job: Job, node: str, eager: bool, forced: int | None) -> None:
        self._node, self._eager, self._forced = node, eager, forced
        self._groups = self._new_groups(job)
        self.has_kept = False  # so that the root has to know of it

    def _new_groups(self, job: Job) -> dict[str, SentSlices]:
        schemas = {} if self._eager else schemas_of(job)
        return {name: SentSlices(schema, self._node, self._forced) for name, schema in schemas.items()}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def __contains__(self, name: str) -> bool:
        return name in self._groups

    @property
    def oldest(self) -> int:
        """No event of a multiset that is kept is older."""
        return min((group.oldest for group in self._groups.values()), default=INT64_MAX)

    def refined(self, name: str, table: pl.DataFrame, count: int, bound: int, whole: bool) -> Tables:
        """Slices of a group that are to be sent, and the blocks of their multisets."""
        return self._groups[name].refined(table, count, bound, whole)

    def take_again(self, events: pl.DataFrame) -> None:
        for group in self._groups.values():
            group.take_again(events)

    def due(self, occasion: Occasion) -> Tables:
        """The answers that are to be sent."""
        tables: Tables = {}
        for group in self._groups.values():
            if occasion.leaves:
                group.give_all()
            tables |= group.multisets.tables()
        self.has_kept |= self.oldest < INT64_MAX
        return tables

    def request(self, tables: Mapping[str, pl.DataFrame]) -> None:
        """Take a request of the root."""
        for group in self._groups.values():
            group.request(tables)

    def forget(self) -> None:
        """Nothing is needed any more."""
        for group in self._groups.values():
            group.forget(group.number, INT64_MAX)

    def switch(self, job: Job) -> None:
        """Go on with another plan; multisets of groups that it has, too, may still be requested."""
        before, self._groups = self._groups, self._new_groups(job)
        for name, group in self._groups.items():
            if name in before:
                group.take_over(before[name])

    def saved(self, count: int) -> dict[str, Any]:
        return {"kept": self.has_kept, "groups": {name: group.saved(count) for name, group in self._groups.items()}}

    def restore(self, saved: Mapping[str, Any]) -> None:
        self.has_kept = saved["kept"]
        for name, group in saved["groups"].items():
            if name in self._groups:
                self._groups[name].restore(group)
