"""Results: one row per (query, key, window), in one order on every run.

    query │ keys … │ window_start │ window_end │ [position] │ revision │ [retracted] │ a column for every aggregate

A query's row is null in the columns of aggregates that it does not have, and in keys that are not its own;
`results_of` gives one query's own columns. What a query calls a key or a bound (`Query.names`) is a column beside the
aggregates, so that the columns that queries share are called the same whoever comes or goes. Here HAVING is carried
out: a row that does not satisfy it is not written, and one with a revision, which replaces a row that may have been, is
taken back.

What is emitted comes in **chunks**, each with the answers of a projection: an answer is a window, a query, and a row of
the projection's columns, which many queries share. The answers of all chunks are laid end to end, and `order` says
which of them becomes which row of the results.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import polars as pl

from windrow.core.aggregates.functions import Aggregate
from windrow.core.arrays.dataframes import empty_frame, key_numbers
from windrow.core.arrays.range_queries import Ints
from windrow.core.assemble.answers import Answers, lost_column
from windrow.core.assemble.emitted import Emitted
from windrow.core.assemble.group_state import CompiledGroup
from windrow.core.expressions.errors import QueryError
from windrow.core.operators.base import Combined
from windrow.core.plan.groups import Partial, Signature, partials_of
from windrow.core.query.given import Queries, queries_from
from windrow.core.query.query import Query
from windrow.core.slices.kernel import key_name

RESULT_COLUMNS = ("query", "window_start", "window_end", "revision", "retracted")  # that every result may have
Frame = TypeVar("Frame")
Label = Mapping[str, Query | list[str]]
LABEL = "windrow"  # the name under which a table of results says of which queries it is


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
        self.positions = any("position" in query.named_columns for query in self.queries)
        self.rank = self.names.rank("ordinal").cast(pl.Int64).to_numpy()
        self.named: dict[tuple[str, str], list[int]] = {}  # a name and its column: the queries that call it so
        for number, query in enumerate(self.queries):
            for name, column in query.names:
                if name != column:
                    self.named.setdefault((name, column), []).append(number)

    @cached_property
    def empty(self) -> pl.DataFrame:
        """No results, with all columns."""
        marks: dict[str, pl.DataType] = {"revision": pl.Int32()}
        if self.retractions:
            marks["retracted"] = pl.Boolean()
        bounds = {"window_start": self.bound, "window_end": self.bound}
        if self.positions:
            bounds["position"] = pl.Int64()
        return labelled(
            empty_frame({"query": pl.String(), **self.keys, **bounds, **marks, **self.columns}), self.queries
        )

    def learn(self, groups: Iterable[CompiledGroup]) -> None:
        """Find the type of every aggregate's column; one name with two types is refused."""
        nothing = np.empty(0, np.int64)
        for compiled in groups:
            schema, group = compiled.schema, compiled.group
            empty, example_of = schema.empty(), group.example_of
            combined = {
                partial: partial.operator.combine(schema.state(empty, partial), nothing, nothing)
                for partial in schema.partials
            }
            types: dict[Any, pl.DataType] = {}  # thousands of aggregates differ by their name alone
            for signature, number in group.signatures.items():
                query = self.queries[example_of[number]]
                for aggregate in signature.aggregates:
                    alike = (aggregate.function, aggregate.inputs, aggregate.parts, *map(id, aggregate.operators))
                    if alike not in types:
                        dtype = _type_of(signature, aggregate, combined, query)
                        types[alike] = pl.Int64() if dtype == pl.Int128() else dtype
                    self._add_column(aggregate.name, types[alike], query)
                if signature.having:
                    dtype = _type_of(signature, signature.having, combined, query, "having: ")
                    if dtype != pl.Boolean():
                        text = signature.having.text
                        raise QueryError(f"query {query.name!r}: having: {text!r} is {dtype}, not true or false")
        self._add_names()

    def _add_names(self) -> None:
        """Add the columns of keys and bounds under other names, and put all in the order of the queries."""
        shared = {**self.keys, "window_start": self.bound, "window_end": self.bound, "position": pl.Int64()}
        for (name, column), numbers in self.named.items():
            self._add_column(name, shared[column], self.queries[numbers[0]])
        lists = {(query.names, query.aggregates): query for query in self.queries}.values()
        names = dict.fromkeys(name for query in lists for name in query.columns)
        self.columns = {name: self.columns[name] for name in names}

    def _add_column(self, name: str, dtype: pl.DataType, query: Query) -> None:
        if self.columns.setdefault(name, dtype) != dtype:
            raise QueryError(
                f"query {query.name!r}: column {name!r} would be {dtype} here and "
                f"{self.columns[name]} in another query; give one an alias"
            )
        if name in self.keys:
            what = (
                "an aggregate" if name in {one.name for one in query.aggregates} else f"a name in query {query.name!r}"
            )
            raise QueryError(f"column {name!r} is both a key and {what}; give one an alias")

    def build(self, emitted: Iterable[Emitted]) -> tuple[pl.DataFrame, Counter[str]]:
        """The result table, and for each column how many integers did not fit into int64."""
        overflows: Counter[str] = Counter()
        chunks: list[Emitted] = []
        for parts, lost in map(_having, emitted):
            overflows.update(lost)
            chunks += [part for part in parts if len(part.answers.window)]
        if not chunks:
            return self.empty, overflows
        chunks.sort(key=lambda chunk: not chunk.retracted)  # of rows with the same bounds, what is taken back is first
        start = _of_windows(chunks, lambda chunk: chunk.windows.start)
        end = _of_windows(chunks, lambda chunk: chunk.windows.end)
        query = np.concatenate([chunk.answers.query for chunk in chunks])
        position = _of_windows(chunks, _positions) if self.positions else None
        order = _sorted(end, self.rank[query], _key_ranks(chunks), start, position)
        columns: dict[str, pl.Series] = {"query": self.names.gather(query[order])}
        columns |= self._keys(chunks, order)
        columns["window_start"] = _as(pl.Series(start[order]), self.bound)
        columns["window_end"] = _as(pl.Series(end[order]), self.bound)
        if position is not None:
            positions = pl.Series(position[order])
            columns["position"] = positions.set(positions < 0, None)
        revision = _of_windows(chunks, lambda chunk: chunk.revision)
        columns["revision"] = pl.Series(revision[order], dtype=pl.Int32)
        if self.retractions:
            retracted = np.concatenate([np.full(len(chunk.answers.window), chunk.retracted) for chunk in chunks])
            columns["retracted"] = pl.Series(retracted[order])
        answers: list[Answers] = []
        for narrowed, lost in (_narrowed(chunk.answers) for chunk in chunks):
            overflows.update(lost)
            answers.append(narrowed)
        results = pl.concat([pl.DataFrame(columns), *self._values(answers, order)], how="horizontal")
        results = self._with_names(results, query[order])
        in_order = results.columns == self.empty.columns
        return labelled(results if in_order else results.select(self.empty.columns), self.queries), overflows

    def _with_names(self, results: pl.DataFrame, query: Ints) -> pl.DataFrame:
        """The results with the keys and bounds of queries that call them otherwise also under those names."""
        for (name, column), numbers in self.named.items():
            calls_it_so = pl.Series(np.isin(query, numbers))
            results = results.with_columns(results[column].zip_with(calls_it_so, results[name]).alias(name))
        return results

    def _keys(self, chunks: list[Emitted], order: Ints) -> dict[str, pl.Series]:
        if not self.keys:
            return {}
        frames = [chunk.keys.keys_at(chunk.windows.key[chunk.answers.window]) for chunk in chunks]
        columns = {}
        for key, dtype in self.keys.items():
            name, null = key_name(key), pl.Series([None], dtype=dtype)
            parts = [
                frame[name] if name in frame.columns else null.new_from_index(0, len(chunk.answers.window))
                for frame, chunk in zip(frames, chunks, strict=True)
            ]
            columns[key] = pl.concat([part.alias(key) for part in parts]).gather(order)
        return columns

    def _values(self, chunks: Sequence[Answers], order: Ints) -> Iterator[pl.DataFrame]:
        """The columns of the aggregates, in frames: of whole chunks, together where the same chunks have them.

        In a chunk with one signature every answer has every column. In one with several, each answer has the columns
        of its own signature only: they are filled answer by answer, together where they have the same type.
        """
        chunks_with: dict[str, list[int]] = {name: [] for name in self.columns}
        some_have: set[str] = set()  # names that not all answers of a chunk have
        for number, answers in enumerate(chunks):
            for name in answers.names.names:
                chunks_with[name].append(number)
            if answers.names.signatures > 1:
                some_have.update(answers.names.names)
        together: dict[tuple[int, ...], list[str]] = {}
        by_type: dict[pl.DataType, list[str]] = {}
        for name, numbers in chunks_with.items():
            if name in some_have:
                by_type.setdefault(self.columns[name], []).append(name)
            else:
                together.setdefault(tuple(numbers), []).append(name)
        for having_them, names in together.items():
            yield self._of_chunks(chunks, having_them, names, order)
        for dtype, names in by_type.items():
            yield _of_answers(chunks, names, dtype, order)

    def _of_chunks(
        self, chunks: Sequence[Answers], numbers: tuple[int, ...], names: list[str], order: Ints
    ) -> pl.DataFrame:
        """Columns that all answers of some chunks have, and no others: null in the rows of other chunks.

            answer   chunk   row of the chunk    index      columns of chunks 0 and 2, end to end
               0       0             0             0         0   count 3   sum 1.5
               1       0             1             1         1   count 4   sum 2.5
               2       0             1             1         2   count 7   sum 0.5
               3       1             –            -1
               4       2             0             2

        So row i of the results has what is at index[order[i]].
        """
        index = np.full(len(order), -1)
        ends = np.cumsum([len(answers.row) for answers in chunks])
        tables: list[pl.DataFrame] = []
        height = 0
        for number in numbers:
            row, columns = chunks[number].row, chunks[number].columns
            index[ends[number] - len(row) : ends[number]] = row + height
            tables.append(columns if columns.columns == names else columns.select(names))
            height += columns.height
        table = pl.concat(tables) if tables else self.empty.select(names)
        index = index[order]
        if index.min() >= 0:
            return table[index]
        at = pl.Series(index)
        return table.select(pl.all().gather(at.set(at < 0, None)))


def _of_answers(chunks: Sequence[Answers], names: Sequence[str], dtype: pl.DataType, order: Ints) -> pl.DataFrame:
    """Columns of one type that some answers have and others have not, all filled by one gather.

        cells     row 0   row 1   row 2          values: the chunks' columns of the type, end to end behind a null
        p50(x)      1       0       2               0      1      2      3
        p90(x)      0       3       0              null   4.5    5.5    9.0

    A cell is where a name and a row of the results meet, and says at which value it points: at the null, unless an
    answer has a result of that name. The cells of all names are read as one long column, which is then cut by name.
    """
    cells = np.zeros((len(names), len(order)), np.uint32)
    number = {name: at for at, name in enumerate(names)}
    to_row = np.empty(len(order), np.int64)  # where each answer stands in the results
    to_row[order] = np.arange(len(order))
    values, height = [pl.Series([None], dtype=dtype)], 1
    for answers in chunks:
        row, to_row = to_row[: len(answers.row)], to_row[len(answers.row) :]
        columns = [answers.columns[name] for name in answers.names.columns]
        first = np.cumsum([height, *(len(column) if column.dtype == dtype else 0 for column in columns)])
        answer, name_at, column_at = answers.names.cells(answers.signature)
        line = np.array([number.get(name, -1) for name in answers.names.names], np.int64)[name_at]
        chosen = line >= 0
        answer, line, column_at = answer[chosen], line[chosen], column_at[chosen]
        cells[line, row[answer]] = first[column_at] + answers.row[answer]
        values += [column for column in columns if column.dtype == dtype]
        height = int(first[-1])
    filled = pl.concat(values, rechunk=True)[cells.ravel()]
    return pl.DataFrame([filled.slice(at * len(order), len(order)).alias(name) for name, at in number.items()])


def _of_windows(chunks: Sequence[Emitted], column: Callable[[Emitted], Ints]) -> Ints:
    """What a column of the windows says for every answer of all chunks."""
    return np.concatenate([column(chunk)[chunk.answers.window] for chunk in chunks])


def _type_of(
    signature: Signature, aggregate: Aggregate, combined: Mapping[Partial, Combined], query: Query, what: str = ""
) -> pl.DataType:
    """The type of an aggregate's results; a formula over types that do not fit is refused."""
    try:
        return aggregate.lower([combined[partial] for partial in partials_of(aggregate, signature.where)]).dtype
    except ValueError as error:
        raise QueryError(f"query {query.name!r}: {what}{error}") from error


def _having(chunk: Emitted) -> tuple[list[Emitted], Counter[str]]:
    """The answers that satisfy their HAVING, and those that do not but may have been emitted before: as taken back.

    With how often HAVING could not be computed, by its name.
    """
    answers = chunk.answers
    if answers.having is None:
        return [chunk], Counter()
    holds, *marks = answers.having.get_columns()
    kept = holds.fill_null(False).to_numpy()[answers.row]
    gone = answers.take(np.flatnonzero(~kept & (chunk.revision[answers.window] > 0)))
    parts = [
        replace(chunk, answers=answers.take(np.flatnonzero(kept))),
        replace(chunk, answers=gone.without_results(), retracted=True),
    ]
    lost = sum(int(mark.gather(answers.row).sum()) for mark in marks)
    return parts, Counter({holds.name: lost} if lost else {})


def _narrowed(answers: Answers) -> tuple[Answers, Counter[str]]:
    """The answers with 128-bit integers as int64, null where they do not fit; and how many of each result were lost."""
    overflows: Counter[str] = Counter()
    wide = [name for name, dtype in answers.columns.schema.items() if isinstance(dtype, pl.Int128)]
    if not wide and answers.columns.width == len(answers.names.columns):
        return answers, overflows
    columns = answers.columns.with_columns(pl.col(wide).cast(pl.Int64, strict=False)) if wide else answers.columns
    lost = {name: columns[name].is_null() & answers.columns[name].is_not_null() for name in wide}
    there = set(columns.columns)
    lost |= {name: columns[lost_column(name)] for name in answers.names.columns if lost_column(name) in there}
    lost = {name: rows for name, rows in lost.items() if rows.any()}
    if lost:
        answer, name, column = answers.names.cells(answers.signature)
        for column_name, rows in lost.items():
            chosen = column == answers.names.columns.index(column_name)
            counts = np.bincount(name[chosen], rows.to_numpy()[answers.row[answer[chosen]]], len(answers.names.names))
            overflows.update({answers.names.names[at]: int(counts[at]) for at in np.flatnonzero(counts)})
    return replace(answers, columns=columns), overflows


def _key_ranks(chunks: Sequence[Emitted]) -> Ints:
    """The rank of every answer's key: its number, unless chunks that are taken back number keys in another way."""
    keys = _of_windows(chunks, lambda chunk: chunk.windows.key)
    if not any(chunk.retracted for chunk in chunks):
        return keys
    tables: dict[tuple[str, ...], list[pl.DataFrame]] = {}
    for chunk in chunks:
        tables.setdefault(tuple(chunk.keys.keys.columns), []).append(chunk.keys.keys)
    ranked = {columns: pl.concat(keys_of).unique().sort(columns) for columns, keys_of in tables.items() if columns}

    def ranks(chunk: Emitted) -> Ints:
        columns = tuple(chunk.keys.keys.columns)
        if not columns:
            return np.zeros_like(chunk.windows.key)
        return key_numbers(chunk.keys.keys, ranked[columns])[chunk.windows.key]

    return _of_windows(chunks, ranks)


def _positions(chunk: Emitted) -> Ints:
    """The position of each window, -1 where it has none."""
    position = chunk.windows.position
    return np.full(len(chunk.windows.lo), -1) if position is None else position


def _sorted(end: Ints, rank: Ints, key: Ints, start: Ints, position: Ints | None = None) -> Ints:
    """The order of emission: end, query, key, start, position."""
    if len(end) > 1:
        step = [int(column.max()) - int(column.min()) + 1 for column in (end, rank, key)]
        if step[0] * step[1] * step[2] < 2**62:  # one number sorts faster than four
            packed = ((end - end.min()) * step[1] + (rank - rank.min())) * step[2] + (key - key.min())
            order = np.argsort(packed, kind="stable")
            packed = packed[order]
            if not (packed[1:] == packed[:-1]).any():
                return order
    return np.lexsort((start, key, rank, end) if position is None else (position, start, key, rank, end))


def _as(bound: pl.Series, dtype: pl.DataType) -> pl.Series:
    return bound.cast(dtype) if dtype != pl.Int64() else bound


def too_large(overflows: Counter[str]) -> OverflowError:
    """The refusal of a whole table whose integers do not fit."""
    name, lost = overflows.most_common(1)[0]
    return OverflowError(f"{name} does not fit into 64 bits in {lost} windows; cast its input to a double or a decimal")


def labelled(results: Frame, queries: Sequence[Query]) -> Frame:
    """Results that say of which queries they are.

    Arrow has metadata for it, and pandas `attrs`. Polars has neither, so that there it is an attribute of the frame
    itself, which whatever is made of the frame does not have.
    """
    if isinstance(results, pl.DataFrame | pl.LazyFrame):
        vars(results)[LABEL] = queries
        return results
    table: Any = results
    if hasattr(table, "replace_schema_metadata"):
        text = json.dumps({query.name: own_columns(query, table.column_names) for query in queries})
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), LABEL: text})
    else:
        table.attrs[LABEL] = {query.name: own_columns(query, list(table.columns)) for query in queries}
    return table  # type: ignore[no-any-return]


def label_of(results: Any) -> Label | None:
    """The queries that results are of, by name, or the own columns of each; None where the results do not say it."""
    if isinstance(results, pl.DataFrame | pl.LazyFrame):
        queries = vars(results).get(LABEL)
        return None if queries is None else {query.name: query for query in queries}
    if hasattr(results, "replace_schema_metadata"):
        text = (results.schema.metadata or {}).get(LABEL.encode())
        return None if text is None else dict(json.loads(text))
    return getattr(results, "attrs", {}).get(LABEL)


def own_columns(query: Query, columns: Sequence[str]) -> list[str]:
    """The columns of a query's own results, among those of all: keys and bounds as the query calls them."""
    names: dict[str, list[str]] = {}
    for name, column in query.names:
        names.setdefault(column, []).append(name)
    own = ["query", *query.named_columns, "revision"]
    own += [column for column in ("retracted",) if column in columns]
    own = [name for column in own for name in names.get(column, [column])]
    return own + [aggregate.name for aggregate in query.aggregates]


def own_columns_of(
    query: str | Query, queries: Queries | None, columns: Sequence[str], label: Label | None
) -> list[str]:
    """The columns of a query's own results, by the query, or by its name among queries or what the results say."""
    if isinstance(query, Query):
        return own_columns(query, columns)
    if queries is not None:
        label = {other.name: other for other in queries_from(queries)}
    if label is None:
        raise QueryError(
            f"these results do not say which columns {query!r} has, as a frame that was made of others; "
            f"name the queries: results_of(results, {query!r}, queries)"
        )
    if query not in label:
        raise KeyError(f"there are no results of a query called {query!r}; there are {', '.join(map(repr, label))}")
    own = label[query]
    return own_columns(own, columns) if isinstance(own, Query) else own
