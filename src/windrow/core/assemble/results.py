"""Results: one row per (query, key, window), in one order on every run.

    query │ keys … │ window_start │ window_end │ [position] │ revision │ [retracted] │ a column for every aggregate

A query's row is null in the columns of aggregates that it does not have, and in keys that are not its own;
`results_of` gives one query's own columns. Here HAVING is carried out: a row that does not satisfy it is not written,
and one with a revision, which replaces a row that may have been, is taken back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from windrow.core.aggregates.functions import Aggregate
from windrow.core.arrays.dataframes import empty_frame, join_keys
from windrow.core.assemble.answers import Answers, lost_column
from windrow.core.assemble.emitted import Emitted
from windrow.core.assemble.group_state import CompiledGroup
from windrow.core.plan.groups import Signature
from windrow.core.query.query import Query, QueryError
from windrow.core.slices.kernel import key_name
from windrow.core.windows.fixed import Window
from windrow.core.windows.ordered import OrderedWindow

RESULT_COLUMNS = ("query", "window_start", "window_end", "revision", "retracted")  # that are never left out


@dataclass
class ResultSchema:
    """The columns of the results, for the queries of a plan."""

    queries: Sequence[Query]
    keys: Mapping[str, pl.DataType]
    bound: pl.DataType  # of window_start and window_end
    retractions: bool
    columns: dict[str, pl.DataType] = field(default_factory=dict)

    def __post_init__(self) -> None:
        keys = dict.fromkeys(key for by in dict.fromkeys(query.by for query in self.queries) for key in by)
        self.keys = {key: self.keys[key] for key in keys}
        self.names = pl.Series("query", [query.name for query in self.queries], dtype=pl.String)
        windows = dict.fromkeys(query.window for query in self.queries)
        self.positions = any(_has_position(window) for window in windows)
        self.rank = self.names.rank("ordinal").cast(pl.Int64).to_numpy()

    @cached_property
    def empty(self) -> pl.DataFrame:
        """No results, with all columns."""
        marks: dict[str, pl.DataType] = {"revision": pl.Int32()}
        if self.retractions:
            marks["retracted"] = pl.Boolean()
        bounds = {"window_start": self.bound, "window_end": self.bound}
        if self.positions:
            bounds["position"] = pl.Int64()
        return empty_frame({"query": pl.String(), **self.keys, **bounds, **marks, **self.columns})

    def learn(self, groups: Iterable[CompiledGroup]) -> None:
        """Find the type of every aggregate's column; one name with two types is refused."""
        nothing = np.empty(0, np.int64)
        for compiled in groups:
            empty = compiled.schema.empty()
            combined = {
                one: one.operator.combine(compiled.schema.state(empty, one), nothing, nothing)
                for one in compiled.schema.held
            }
            known: dict[Any, pl.DataType] = {}
            for signature, place in compiled.group.signatures.items():
                for asked in signature.aggregates:
                    alike = (asked.function, asked.inputs, asked.parts, tuple(map(id, asked.operators)))
                    if alike not in known:
                        dtype = _type_of(signature, asked, combined, self.queries[compiled.group.asked_by[place]])
                        known[alike] = pl.Int64() if dtype == pl.Int128() else dtype
                    dtype = known[alike]
                    if self.columns.setdefault(asked.name, dtype) != dtype:
                        whose = self.queries[compiled.group.asked_by[place]]
                        raise QueryError(
                            f"query {whose.name!r}: column {asked.name!r} would be {dtype} here and "
                            f"{self.columns[asked.name]} in another query; give one an alias"
                        )
                    if asked.name in self.keys:
                        raise QueryError(f"column {asked.name!r} is both a key and an aggregate; give one an alias")
                if signature.having:
                    asked, query = signature.having, self.queries[compiled.group.asked_by[place]]
                    dtype = _type_of(signature, asked, combined, query, "having: ")
                    if dtype != pl.Boolean():
                        raise QueryError(f"query {query.name!r}: having: {asked.text!r} is {dtype}, not true or false")
        lists = dict.fromkeys(query.aggregates for query in self.queries)  # columns stand in the order of the queries
        names = dict.fromkeys(asked.name for several in lists for asked in several)
        self.columns = {name: self.columns[name] for name in names}

    def build(self, emitted: Iterable[Emitted]) -> tuple[pl.DataFrame, Counter[str]]:
        """The result table, and for each column how many integers did not fit into int64."""
        overflows: Counter[str] = Counter()
        chunks = [one for one in _having(emitted, overflows) if len(one.answers.window)]
        if not chunks:
            return self.empty, overflows
        chunks.sort(key=lambda one: not one.retracted)  # of rows in the same place, what is taken back comes first
        window = [one.answers.window for one in chunks]
        start = np.concatenate([one.windows.start[at] for one, at in zip(chunks, window, strict=True)])
        end = np.concatenate([one.windows.end[at] for one, at in zip(chunks, window, strict=True)])
        ranks = _ranks(chunks)
        key = np.concatenate([ranks[n][one.windows.key[window[n]]] for n, one in enumerate(chunks)])
        query = np.concatenate([one.answers.query for one in chunks])
        revision = np.concatenate([one.revision[at] for one, at in zip(chunks, window, strict=True)])
        position = None
        if self.positions:
            position = np.concatenate([_positions(one)[at] for one, at in zip(chunks, window, strict=True)])
        order = _sorted(end, self.rank[query], key, start, position)
        columns: dict[str, pl.Series] = {"query": self.names.gather(query[order])}
        columns |= self._keys(chunks, order)
        columns["window_start"] = _as(pl.Series(start[order]), self.bound)
        columns["window_end"] = _as(pl.Series(end[order]), self.bound)
        if position is not None:
            places = pl.Series(position[order])
            columns["position"] = places.set(places < 0, None)
        columns["revision"] = pl.Series(revision[order], dtype=pl.Int32)
        if self.retractions:
            taken_back = np.concatenate([np.full(len(one.answers.window), one.retracted) for one in chunks])
            columns["retracted"] = pl.Series(taken_back[order])
        values, lost = self._values(chunks, order)
        results = pl.concat([pl.DataFrame(columns), *values], how="horizontal")
        return results if len(values) < 2 else results.select(self.empty.columns), overflows + lost

    def _keys(self, chunks: list[Emitted], order: Any) -> dict[str, pl.Series]:
        if not self.keys:
            return {}
        frames = [one.keys.keys_at(one.windows.key[one.answers.window]) for one in chunks]
        sizes = [len(one.answers.window) for one in chunks]
        found = {}
        for key, dtype in self.keys.items():
            name = key_name(key)
            nothing = pl.Series([None], dtype=dtype)
            parts = [
                frame[name] if name in frame.columns else nothing.new_from_index(0, size)
                for frame, size in zip(frames, sizes, strict=True)
            ]
            found[key] = pl.concat([part.alias(key) for part in parts]).gather(order)
        return found

    def _values(self, chunks: list[Emitted], order: Any) -> tuple[list[pl.DataFrame], Counter[str]]:
        """The columns of the aggregates, in frames of columns that the same chunks have."""
        users: dict[str, list[int]] = {name: [] for name in self.columns}
        apart: set[str] = set()  # names that not all answers of a chunk have
        for place, one in enumerate(chunks):
            for name in one.answers.names.names:
                users[name].append(place)
            if one.answers.names.signatures > 1:
                apart.update(one.answers.names.names)
        together: dict[tuple[int, ...], list[str]] = {}
        for name, places in users.items():
            if name not in apart:
                together.setdefault(tuple(places), []).append(name)
        ends = np.cumsum([len(one.answers.window) for one in chunks])
        frames: list[pl.DataFrame] = []
        overflows: Counter[str] = Counter()
        if apart:
            frame, overflows = self._spread([one.answers for one in chunks], [*apart], order)
            frames.append(frame)
        for chosen, names in together.items():
            parts: list[pl.DataFrame] = []
            base = 0
            index = np.full(len(order), -1)  # every row that no chunk has points at nothing
            for place in chosen:
                answers = chunks[place].answers
                part, gone = _narrowed(answers.columns, names)
                lost = +Counter({name: int(rows.gather(answers.row).sum()) for name, rows in gone.items()})
                index[ends[place] - len(answers.row) : ends[place]] = answers.row + base
                parts.append(part)
                base, overflows = base + part.height, overflows + lost
            whole = pl.concat(parts) if parts else self.empty.select(names)
            index = index[order]
            if index.min() >= 0:
                frames.append(whole[index])
            else:
                at = pl.Series(index)
                frames.append(whole.select(pl.all().gather(at.set(at < 0, None))))
        return frames, overflows

    def _spread(self, several: list[Answers], names: list[str], order: Any) -> tuple[pl.DataFrame, Counter[str]]:
        """Columns that only some answers have; all of a type are filled at once, laid end to end."""
        rank = np.argsort(order, kind="stable")  # where each answer stands
        number = {name: place for place, name in enumerate(names)}
        sources: list[pl.Series] = []
        overflows: Counter[str] = Counter()
        parts = []
        begin = 0
        for answers in several:
            answer, name, column = answers.names.cells(answers.signature)
            name = np.array([number.get(one, -1) for one in answers.names.names], np.int64)[name]
            row = answers.row[answer]
            narrow, gone = _narrowed(answers.columns, answers.names.columns)
            for lost, rows in gone.items():
                mine = (column == answers.names.columns.index(lost)) & (name >= 0)
                counts = np.bincount(name[mine], rows.to_numpy()[row[mine]], len(names)).astype(np.int64)
                overflows += Counter({names[at]: int(counts[at]) for at in np.flatnonzero(counts)})
            parts.append(np.stack((name, rank[begin + answer], column + len(sources), row))[:, name >= 0])
            sources += narrow.get_columns()
            begin += len(answers.row)
        name, to, source, row = np.concatenate(parts, axis=1)
        columns: list[pl.Series] = []
        for dtype in dict.fromkeys(self.columns[one] for one in names):
            alike = [one for one in names if self.columns[one] == dtype]
            values = [one for one in sources if one.dtype == dtype]
            starts = np.cumsum([0, *(len(one) if one.dtype == dtype else 0 for one in sources)])
            line = np.full(len(names), -1)
            line[[number[one] for one in alike]] = np.arange(len(alike))
            cell = slice(None) if len(alike) == len(names) else np.flatnonzero(line[name] >= 0)
            index = np.full(len(alike) * len(order), starts[-1], np.uint32)  # every other one points at nothing
            index[line[name[cell]] * len(order) + to[cell]] = starts[source[cell]] + row[cell]
            whole = pl.concat([*values, pl.Series([None], dtype=dtype)], rechunk=True)[index]
            columns += [whole.slice(at * len(order), len(order)).alias(one) for at, one in enumerate(alike)]
        return pl.DataFrame(columns), overflows


def _type_of(
    signature: Signature, asked: Aggregate, combined: Mapping[Any, Any], query: Query, what: str = ""
) -> pl.DataType:
    """The type of an aggregate's results; a formula over types that do not fit is refused."""
    try:
        return asked.lower([combined[one] for one in signature.held_by(asked)]).dtype
    except ValueError as error:
        raise QueryError(f"query {query.name!r}: {what}{error}") from error


def _having(emitted: Iterable[Emitted], overflows: Counter[str]) -> Iterator[Emitted]:
    """The answers that satisfy their HAVING, and those that do not but may have been told before: as taken back."""
    for one in emitted:
        answers = one.answers
        if answers.having is None:
            yield one
            continue
        holds, *lost = answers.having.get_columns()
        for column in lost:
            overflows += Counter({holds.name: int(column.gather(answers.row).sum())})
        kept = holds.fill_null(False).to_numpy()[answers.row]
        yield replace(one, answers=answers.take(np.flatnonzero(kept)))
        gone = answers.take(np.flatnonzero(~kept & (one.revision[answers.window] > 0)))
        yield replace(one, answers=gone.without_results(), retracted=True)


def _narrowed(columns: pl.DataFrame, names: list[str]) -> tuple[pl.DataFrame, dict[str, pl.Series]]:
    """128-bit integers as int64, null where they do not fit; and of each column in which rows something did not."""
    chosen = columns if columns.columns == names else columns.select(names)
    if wide := [name for name, dtype in chosen.schema.items() if isinstance(dtype, pl.Int128)]:
        chosen = chosen.with_columns(pl.col(wide).cast(pl.Int64, strict=False))
    gone = {name: chosen[name].is_null() & columns[name].is_not_null() for name in wide}
    if columns.width > len(chosen.columns):  # there is more than results: what was lost
        there = set(columns.columns)
        gone |= {name: columns[lost_column(name)] for name in names if lost_column(name) in there}
    return chosen, {name: rows for name, rows in gone.items() if rows.any()}


def _ranks(chunks: list[Emitted]) -> list[Any]:
    """For each chunk the rank of its keys: their number, unless what is taken back numbers them in another way."""
    if not any(one.retracted for one in chunks):
        return [np.arange(one.windows.key.max(initial=-1) + 1) for one in chunks]
    names = {tuple(one.keys.keys.columns) for one in chunks}
    known = {}
    for columns in names:
        if columns:
            every = pl.concat([one.keys.keys for one in chunks if tuple(one.keys.keys.columns) == columns])
            known[columns] = every.unique().sort(columns).with_row_index("_rank")
    ranks = []
    for one in chunks:
        columns = tuple(one.keys.keys.columns)
        if columns:
            found = join_keys(one.keys.keys, known[columns], columns, "left")
            ranks.append(found["_rank"].cast(pl.Int64).to_numpy())
        else:
            ranks.append(np.zeros(int(one.windows.key.max(initial=-1)) + 1, np.int64))
    return ranks


def _positions(one: Emitted) -> Any:
    """The position of each window, -1 where it has none."""
    found = one.windows.position
    return np.full(len(one.windows.lo), -1) if found is None else found


def _sorted(end: Any, rank: Any, key: Any, start: Any, position: Any = None) -> Any:
    """The order of emission: end, query, key, start, position."""
    if len(end) > 1:
        step = [int(column.max()) - int(column.min()) + 1 for column in (end, rank, key)]
        if step[0] * step[1] * step[2] < 2**62:  # one number sorts faster than four
            packed = ((end - end.min()) * step[1] + (rank - rank.min())) * step[2] + (key - key.min())
            order = np.argsort(packed, kind="stable")
            tied = np.flatnonzero(packed[order][1:] == packed[order][:-1])
            if not len(tied):
                return order
    return np.lexsort((start, key, rank, end) if position is None else (position, start, key, rank, end))


def _as(bound: pl.Series, dtype: pl.DataType) -> pl.Series:
    return bound.cast(dtype) if dtype != pl.Int64() else bound


def _has_position(window: Window) -> bool:
    return isinstance(window, OrderedWindow) and window.has_position


def too_large(overflows: Counter[str]) -> OverflowError:
    """What is said of a whole table whose integers do not fit."""
    name, lost = overflows.most_common(1)[0]
    return OverflowError(f"{name} does not fit into 64 bits in {lost} windows; cast its input to a double or a decimal")


def own_columns(query: Query, columns: Sequence[str]) -> list[str]:
    """The columns of a query's own results, among those of all."""
    own = ["query", *query.by, "window_start", "window_end", "revision"]
    own += [column for column in ("retracted",) if column in columns]
    if _has_position(query.window):
        own.insert(own.index("revision"), "position")
    return own + [asked.name for asked in query.aggregates]
