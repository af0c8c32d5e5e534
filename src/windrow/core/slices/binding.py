"""Binding: a plan meets the columns of real events.

    plan, types of columns ──▶ Binding ──▶ refusals, with query and column
    batch ── checked ── prepare ─────────▶ `time:` `key:` `input:` `filter:` `order:` `distinct:` columns, `nth`

Everything that can be wrong between queries and events is found here, before any state is touched: a column that is
not there, a type that an aggregate cannot take, a window in seconds over a time column of kilometres. Prepared batches
are all that kernels read: times in whole units, keys, inputs of operators and filters, each computed once for all
groups. `sql` has the same columns as Spark SQL, for those that the JVM prepares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from windrow.core.aggregates.functions import FUNCTIONS, Aggregate
from windrow.core.arrays.dataframes import ChangedType, InputError, fitted
from windrow.core.expressions.errors import QueryError, hint
from windrow.core.expressions.parse import Expression, parse
from windrow.core.expressions.terms import Overflow, literal
from windrow.core.plan.groups import Group, Signature
from windrow.core.plan.plan import Plan
from windrow.core.query.query import Query
from windrow.core.slices.kernel import filter_name, input_name, key_name, time_name
from windrow.core.slices.table import SliceSchema
from windrow.core.windows.fixed import FURTHEST, Window
from windrow.core.windows.ordered import NODE, DataDrivenWindow, Frames, Punctuated, scope_of

ARRIVAL = "arrival"  # the time column that stands for processing time


_Under = tuple[Expression, ...]  # predicates that an event satisfies


@dataclass
class _Checked:
    """An expression whose integers may leave 64 bits, and for which events it is needed: whoever needs it says by which
    predicates, () for all. An event that nobody keeps for it may be whatever it is.
    """

    expression: Expression
    overflow: Overflow
    whose: str
    under: list[_Under] = field(default_factory=list)

    def beyond(self, columns: Mapping[str, pl.DataType]) -> pl.Expr:
        """For which events it is needed and leaves 64 bits."""
        if () in self.under:
            return self.overflow.does
        needed = [pl.all_horizontal([where.polars(columns) for where in under]) for under in self.under]
        return self.overflow.does & pl.any_horizontal(needed).fill_null(False)

    def spark(self, columns: Mapping[str, pl.DataType]) -> str:
        """The same for Spark."""
        if () in self.under:
            return self.overflow.spark
        needed = (" AND ".join(f"({where.spark(columns)})" for where in under) for under in self.under)
        return f"(COALESCE({' OR '.join(f'({one})' for one in needed)}, FALSE) AND {self.overflow.spark})"

    def refusal(self, how_often: str) -> str:
        return f"{self.whose}: {self.expression.text} does not fit into 64 bits{how_often}, such as that with "

    @property
    def advice(self) -> str:
        return f"; CAST({self.expression.columns[0]} AS DOUBLE) makes it a double, bad_events='drop' leaves them out"


class Binding:
    """The columns that a plan reads of events with given types, and how they are computed."""

    def __init__(self, plan: Plan, columns: Mapping[str, pl.DataType], order_by: Sequence[str]) -> None:
        self._columns, self._order_by = dict(columns), order_by
        self.inputs: dict[str, pl.DataType] = {}
        self.keys: dict[str, pl.DataType] = {}
        self.time_columns: dict[str, pl.DataType] = {}
        self.needed: dict[str, pl.DataType] = {}
        self.prepared: dict[str, pl.DataType] = {}  # the columns that kernels read, …
        self._expressions: dict[str, pl.Expr] = {}  # … how they are computed, …
        self.sql: dict[str, str] = {}  # … and how Spark computes them
        self._checked: dict[str, _Checked] = {}  # by the column that they prepare
        self._scales: dict[str, int] = {}  # microseconds in a unit of a time column, where it is not one
        partials = (partial for group in plan.groups for partial in group.partials)
        self._ordered = any(group.ordered for group in plan.groups) or any(
            partial.operator.ordered for partial in partials
        )
        for column in order_by:
            self._column(column, "order_by")
        for group in plan.groups:
            self._bind(group, plan)
        if not plan.groups:  # the stream goes on: a query that is added later begins after what was seen
            self.time_columns = {name: self._time_column(name, "time") for name in plan.time_columns}
        self.place: dict[str, pl.DataType] = {"at": pl.Int64()}
        self.place |= {f"{number}": columns[column] for number, column in enumerate(order_by)}
        self.place["nth"] = pl.Int64()
        # where events have no arrival, their order says which of two repeats is the first
        if self._ordered or any(group.source.distinct_on for group in plan.groups):
            for number, column in enumerate(order_by):
                self._prepare_column(f"order:{number}", column)
        self.bad_sql = [checked.spark(columns) for checked in self._checked.values()]
        for name, checked in self._checked.items():
            self.sql[name] = f"CASE WHEN {checked.spark(columns)} THEN {_raising(checked)} ELSE {self.sql[name]} END"

    def _prepare(self, name: str, dtype: pl.DataType, value: pl.Expr, sql: str) -> None:
        self.prepared[name], self._expressions[name], self.sql[name] = dtype, value, sql

    def _prepare_column(self, name: str, column: str) -> None:
        self._prepare(name, self._columns[column], pl.col(column), quoted(column))

    def _bind(self, group: Group, plan: Plan) -> None:
        """The columns and expressions of a group; what does not fit is refused for one of its queries."""
        queries = {number: plan.entries[number].query for numbers in group.members.values() for number in numbers[:1]}
        query = next(iter(queries.values()))
        seen = _under(group.source.where)
        time_column = group.source.time
        if time_column not in self.time_columns:
            self.time_columns[time_column] = self._time_column(time_column, f"query {query.name!r}: time")
        for member in queries.values():
            self._check_lengths(member, time_column)
        for key in group.keys:
            self._key(key, query)
        for timeline in group.lines.values():
            number = group.timelines[timeline]
            example = next(numbers[0] for (line, _), numbers in group.members.items() if line == number)
            self._line(timeline.window, queries[example], seen)
        for column in group.source.distinct_on:
            self._column(column, f"query {query.name!r}: distinct_on")
            self._prepare_column(f"distinct:{column}", column)
        if group.source.where:
            self._filter(group.source.where, query)
        example_of = group.example_of
        for signature, number in group.signatures.items():
            self._signature(signature, plan.entries[example_of[number]].query, seen)

    def _check_lengths(self, query: Query, time_column: str) -> None:
        """Refuse a window of durations over numbers, or one of numbers over timestamps."""
        temporal = not self.time_columns[time_column].is_integer()
        if query.window.is_temporal not in (None, temporal):
            kind = "a timestamp: write a duration such as '10 seconds'" if temporal else "a number: write plain numbers"
            raise QueryError(f"query {query.name!r}: {query.window} does not fit {time_column!r}, which is {kind}")

    def _key(self, key: str, query: Query) -> None:
        scoped = key == NODE and scope_of(query.window) != "global"
        dtype = self._column(key, f"query {query.name!r}: {query.window if scoped else 'by'}")
        if dtype.is_nested():
            raise QueryError(f"query {query.name!r}: by: column {key!r} is {dtype}, which cannot be a key")
        self.keys[key] = dtype
        self._prepare_column(key_name(key), key)

    def _signature(self, signature: Signature, query: Query, under: _Under) -> None:
        if signature.where:
            self._filter(signature.where, query, under=under)
        under += _under(signature.where)
        for partial in signature.partials:
            text = next(aggregate.text for aggregate in signature.computed if partial.operator in aggregate.operators)
            kept = under + _under(partial.where)
            types = [self._input(expression, query, text, kept) for expression in partial.operator.inputs]
            if reason := partial.operator.refusal(types):
                raise QueryError(f"query {query.name!r}: {text}: {reason}")
            if partial.where:
                self._filter(partial.where, query, text, under)
        for aggregate in signature.computed:
            self._needs(aggregate, query)

    def _line(self, window: Window, query: Query, under: _Under) -> None:
        """Bind the expressions of a data-driven window."""
        assert isinstance(window, DataDrivenWindow)
        for text in window.inputs:
            if isinstance(window, Punctuated | Frames):
                self._filter(parse(text), query, window.kind, under)
            else:
                self._input(parse(text), query, str(window), under)

    def _needs(self, aggregate: Aggregate, query: Query) -> None:
        """Refuse an aggregate whose function cannot take its input."""
        for part in aggregate.parts:
            self._needs(part, query)
        if aggregate.inputs and not aggregate.parts:
            dtype = self.inputs[aggregate.inputs[0].text]
            if wanted := FUNCTIONS[aggregate.function].needs(dtype):
                raise QueryError(
                    f"query {query.name!r}: {aggregate.text} needs {wanted}, and {aggregate.inputs[0].text} is {dtype}"
                )

    def _column(self, name: str, whose: str) -> pl.DataType:
        if name not in self._columns:
            raise QueryError(f"{whose}: there is no column {name!r} in the events; {hint(name, self._columns)}")
        self.needed[name] = self._columns[name]
        return self._columns[name]

    def _time_column(self, name: str, whose: str) -> pl.DataType:
        if name == ARRIVAL:
            now = pl.lit(None, pl.Int64)  # only a batch knows its arrival
            self._prepare(time_name(name), pl.Int64(), now, "UNIX_MICROS(CURRENT_TIMESTAMP())")
            return pl.Datetime("us", "UTC")
        dtype = self._column(name, whose)
        if not isinstance(dtype, pl.Datetime | pl.Date) and not dtype.is_integer():
            raise QueryError(f"{whose}: column {name!r} is {dtype}; a time must be a timestamp, a date or an integer")
        units, zone = pl.col(name), None
        if isinstance(dtype, pl.Datetime | pl.Date):
            unit, zone = (dtype.time_unit, dtype.time_zone) if isinstance(dtype, pl.Datetime) else ("day", None)
            units, scale = units.to_physical(), {"us": 1, "ns": 1, "ms": 1000, "day": 86_400_000_000}[unit]
            if unit == "ns":
                units = units // 1000
            elif scale > 1:
                self._scales[name], units = scale, units.cast(pl.Int64) * scale
        self._prepare(time_name(name), pl.Int64(), units.cast(pl.Int64), _units(name, dtype))
        return pl.Int64() if dtype.is_integer() else pl.Datetime("us", zone)

    def _check(self, column: str, expression: Expression, whose: str) -> None:
        """Let events be refused for which an expression is needed, and its integers leave 64 bits."""
        if overflow := expression.overflow(self._columns):
            if not expression.columns and pl.select(overflow.does).item():
                raise QueryError(f"{whose}: {expression.text} does not fit into 64 bits")
            self._checked[column] = _Checked(expression, overflow, whose)

    def _need(self, column: str, under: _Under) -> None:
        """Note for which events a column is needed."""
        checked = self._checked.get(column)
        if checked and under not in checked.under:
            checked.under.append(under)

    def _input(self, expression: Expression, query: Query, text: str, under: _Under) -> pl.DataType:
        if expression.text not in self.inputs:
            for column in expression.columns:
                self._column(column, f"query {query.name!r}: {text}")
            try:
                dtype = expression.dtype(self._columns)
                value = expression.polars(self._columns)
            except ValueError as error:
                raise QueryError(f"query {query.name!r}: {text}: {error}") from error
            if dtype in (pl.Int128(), pl.UInt128()):
                raise QueryError(
                    f"query {query.name!r}: {text}: {expression.text} is {dtype}; cast it to 64 bits or a decimal"
                )
            if isinstance(dtype, pl.Categorical | pl.Enum):  # text has one order everywhere, categories have several
                dtype, value = pl.String(), value.cast(pl.String)
            self.inputs[expression.text] = dtype
            self._prepare(input_name(expression.text), dtype, value, expression.spark(self._columns))
            self._check(input_name(expression.text), expression, f"query {query.name!r}: {text}")
        self._need(input_name(expression.text), under)
        return self.inputs[expression.text]

    def _filter(self, where: Expression, query: Query, what: str = "where", under: _Under = ()) -> None:
        name = filter_name(where.text)
        if name not in self.prepared:
            self._prepare_filter(name, where, f"query {query.name!r}: {what}")
        self._need(name, under)

    def _prepare_filter(self, name: str, where: Expression, whose: str) -> None:
        for column in where.columns:
            self._column(column, whose)
        try:
            dtype = where.dtype(self._columns)
            kept = where.polars(self._columns).fill_null(False)
        except ValueError as error:
            raise QueryError(f"{whose}: {error}") from error
        if dtype not in (pl.Boolean(), pl.Null()):
            raise QueryError(f"{whose}: {where.text!r} is {dtype}, not true or false")
        sql = f"COALESCE({where.spark(self._columns)}, FALSE)"
        self._prepare(name, pl.Boolean(), kept.cast(pl.Boolean), sql)
        self._check(name, where, whose)

    def schema(self, group: Group, shared: bool, updates: bool = False) -> SliceSchema:
        """The schema of a group's own slices, or of those that it makes of events and shares (`Group.needs`).

        With `updates`, ordered slices have a digest of their events, which shows whether a window has changed.
        """
        _, partials, gap = group.needs(shared)
        keys = {key_name(key): self.keys[key] for key in group.keys}
        lines = tuple(group.lines) if group.ordered else None
        lists = dict(group.placement.columns) if group.placement else {}
        return SliceSchema(keys, partials, self.inputs, self.place, gap, lines, updates and group.ordered, lists)

    def checked(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The batch in the types that were bound, if these hold all of its values; else an `InputError`."""
        changed = []
        for name, dtype in self.needed.items():
            if name not in frame.columns:
                raise InputError(
                    f"column {name!r} is missing from this batch; it has {', '.join(map(repr, frame.columns))}"
                )
            if frame.schema[name] != dtype:
                column = fitted(frame[name], dtype)
                if column is None:
                    raise ChangedType(f"column {name!r} is {frame.schema[name]} in this batch, and was {dtype} before")
                changed.append(column)
        frame = frame.with_columns(changed) if changed else frame
        for name, scale in self._scales.items():
            units = frame[name].to_physical()
            if len(units) > units.null_count():
                furthest = max(abs(int(units.min())), abs(int(units.max())))  # type: ignore[arg-type]
                if furthest > FURTHEST // scale:
                    raise InputError(f"{name!r} holds times so far out that they cannot be written in microseconds")
        return frame

    def prepare(
        self, frame: pl.DataFrame, arrived: int | pl.Series, clock: Callable[[], int] | None, numbered: bool = False
    ) -> pl.DataFrame:
        """The columns that the kernels read, for a checked batch whose times are there.

        The events arrived with these numbers, or with those from this one on; they keep them where their order counts,
        or all are to be `numbered`.
        """
        columns = dict(self._expressions)
        if ARRIVAL in self.time_columns:
            assert clock is not None, "only a place that puts events in order has arrival times"
            columns[time_name(ARRIVAL)] = pl.lit(clock(), pl.Int64)
        if self._ordered or numbered:
            from_here = isinstance(arrived, int)
            columns["nth"] = pl.int_range(arrived, arrived + pl.len(), dtype=pl.Int64) if from_here else pl.lit(arrived)
        return _computed(frame, columns, any(time_column != ARRIVAL for time_column in self.time_columns))

    def times(self, frame: pl.DataFrame, time_column: str) -> pl.Series:
        """The times of a batch on a time column, in whole units."""
        try:
            return frame.select(self._expressions[time_name(time_column)]).to_series()
        except pl.exceptions.PolarsError as error:
            raise InputError(f"{time_column!r} cannot be read: {str(error).splitlines()[0]}") from error

    def beyond(self, frame: pl.DataFrame) -> tuple[pl.Series, InputError] | None:
        """The events for which some expression leaves 64 bits, and their refusal; None if there are none.

        The extremes of a batch nearly always show that there are none.
        """
        if not self._checked:
            return None
        may = _computed(frame, {name: checked.overflow.may for name, checked in self._checked.items()}).row(0)
        beyond: pl.Series | None = None
        refusal: InputError | None = None
        for checked in (checked for checked, it_may in zip(self._checked.values(), may, strict=True) if it_may):
            where = _computed(frame, {"where": checked.beyond(self._columns)})["where"]
            if len(where) != frame.height:  # of a constant
                where = where.new_from_index(0, frame.height)
            if not where.any():
                continue
            example = frame.select(checked.expression.columns).filter(where).row(0, named=True)
            shown = ", ".join(f"{name} = {value}" for name, value in example.items())
            often = f" in {where.sum()} of {frame.height} events"
            refusal = refusal or InputError(f"{checked.refusal(often)}{shown}{checked.advice}")
            beyond = where if beyond is None else beyond | where
        return None if beyond is None or refusal is None else (beyond, refusal)

    def without_time(self, frame: pl.DataFrame) -> pl.Series | None:
        """Which events have no time on some time column; None when all have."""
        columns = [name for name in self.time_columns if name != ARRIVAL and frame[name].null_count()]
        if not columns:
            return None
        return frame.select(pl.any_horizontal(pl.col(column).is_null() for column in columns)).to_series()


def _under(where: Expression | None) -> _Under:
    return () if where is None else (where,)


def _computed(frame: pl.DataFrame, columns: Mapping[str, pl.Expr], alone: bool = True) -> pl.DataFrame:
    """Columns of a batch: `alone`, or as long as the batch, where they may all be constants."""
    try:
        return frame.select(**columns) if alone else frame.with_columns(**columns).select(*columns)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"this batch cannot be read: {str(error).splitlines()[0]}") from error


def _raising(checked: _Checked) -> str:
    """The refusal of an event by Spark."""
    shown: list[str] = []
    for name in checked.expression.columns:
        shown += [
            literal(f"{', ' if shown else ''}{name} = ").spark,
            f"COALESCE(CAST({quoted(name)} AS STRING), 'null')",
        ]
    parts = [literal(checked.refusal(" in an event")).spark, *shown, literal(checked.advice).spark]
    return f"RAISE_ERROR(CONCAT('windrow.InputError: ', {', '.join(parts)}))"


def no_time(missing: int, of: int, *time_columns: str) -> InputError:
    """The refusal of events that have no time on some time column."""
    named = " or ".join(map(repr, time_columns))
    return InputError(f"{missing} of {of} events have no time in {named}; bad_events='drop' leaves them out")


def quoted(name: str) -> str:
    """A column's name in Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


def _units(name: str, dtype: pl.DataType) -> str:
    """A time in whole units, in Spark's SQL, whatever the time zone of the session."""
    column = quoted(name)
    if isinstance(dtype, pl.Datetime) and dtype.time_zone:
        return f"UNIX_MICROS({column})"
    if isinstance(dtype, pl.Datetime | pl.Date):
        days = f"DATEDIFF({column}, DATE'1970-01-01') * 86400000000L"
        if isinstance(dtype, pl.Date):
            return days
        hours = f"HOUR({column}) * 3600000000L + MINUTE({column}) * 60000000L"
        return f"{days} + {hours} + CAST(EXTRACT(SECOND FROM {column}) * 1000000 AS BIGINT)"
    return f"CAST({column} AS BIGINT)"
