"""Folding: the operator behind monoids; states of any type, merged over ranges of slices.

`range_queries.fold` works on arrays. The states of a user's own may be strings, lists or structs: they lie in a
**pool**, a column for each field, and are spoken of by their number in it, -1 for no state. A step merges many pairs
at once and adds the results to the pool; who merges with whom is arithmetic on numbers.

| method | needs | merges for n slices and w windows |
| --- | --- | --- |
| `fold` | associative, in order | n + w log r, r the longest range |
| `unfold` | an inverse as well | 2n, and w inversions |

Between the pool and the class stands `Calls`, which checks what a user's methods return.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import polars as pl

from windrow.core.arrays.range_queries import Arrays, Ints, covered, differences, fold
from windrow.core.operators.base import Fields, Inputs, Operator
from windrow.core.operators.multiset import flat

States = dict[str, pl.Series]  # a column for each field, a row for each state
Merge = Callable[[States, States], States]
MONOIDS: dict[str, type[Any]] = {}  # the classes by name; `aggregates.custom` enters them


class Pool:
    """States by number. What `merge` and `unmerge` get are never missing ones, as many on either side, and not none."""

    def __init__(self, states: Mapping[str, pl.Series], calls: Calls) -> None:
        self._states, self.calls = dict(states), calls

    def take(self, numbers: Ints) -> States:
        """The states of these numbers, null for -1."""
        index = pl.Series(numbers, dtype=pl.Int64)
        if len(numbers) and numbers.min() < 0:
            index = index.set(index < 0, None)
        return {name: column.gather(index) for name, column in self._states.items()}

    def merge(self, a: Ints, b: Ints) -> Ints:
        """The merged states of pairs, by number; a missing one changes nothing."""
        return self._added(self.calls.merge, a, b, np.where(a >= 0, a, b))

    def _added(self, step: Merge, a: Ints, b: Ints, numbers: Ints) -> Ints:
        """Take a step with the pairs of which neither is missing; the others are found."""
        both = np.flatnonzero((a >= 0) & (b >= 0))
        if len(both):
            size = len(next(iter(self._states.values())))
            more = step(self.take(a[both]), self.take(b[both]))
            self._states = {
                name: pl.concat([column, more[name]], rechunk=True) for name, column in self._states.items()
            }
            numbers[both] = np.arange(size, size + len(both))
        return numbers

    def fold(self, leaves: Ints, lo: Ints, hi: Ints) -> Ints:
        """Merge the leaves of each range from left to right."""
        (numbers,) = fold((leaves,), lambda a, b: (self.merge(a[0], b[0]),), (-1,), lo, hi, self._prune)
        return numbers

    def _prune(self, leaves: Arrays, left: Arrays, right: Arrays, needed: npt.NDArray[np.bool_]) -> Iterator[Arrays]:
        """Forget all states but those of pairs that are needed, and of what is merged already."""
        wanted = np.where(np.repeat(needed, 2), leaves[0], -1), left[0], right[0]
        numbers = np.concatenate(wanted)
        there = numbers >= 0
        self._states = self.take(numbers[there])
        numbers = np.where(there, np.cumsum(there) - 1, -1)
        return ((part,) for part in np.split(numbers, np.cumsum([len(part) for part in wanted])[:-1]))

    def unfold(self, leaves: Ints, lo: Ints, hi: Ints) -> Ints:
        """The same by inversion: what lies before a range is taken off what lies up to its end.

        Running states start anew where no range reaches across, so that keys are never merged with each other.
        """
        fresh = ~covered(lo + 1, hi, len(leaves))
        running = self._running(leaves, fresh)
        whole = np.where(differences((leaves >= 0).astype(np.int64), lo, hi) > 0, running[hi - 1], -1)
        before = np.where(fresh[lo], -1, running[lo - 1])
        return self._added(self.calls.unmerge, whole, before, whole.copy())

    def _running(self, leaves: Ints, fresh: npt.NDArray[np.bool_]) -> Ints:
        """Each leaf merged with all before it, back to the last fresh one: pairs first, then what lies between."""
        if len(leaves) < 2:
            return leaves
        even, odd, half = leaves[::2], leaves[1::2], len(leaves) // 2
        pairs = self.merge(np.where(fresh[1::2], -1, even[:half]), odd)
        below = self._running(pairs, fresh[::2][:half] | fresh[1::2])
        running = np.empty(len(leaves), np.int64)
        running[0], running[1::2] = leaves[0], below
        running[2::2] = self.merge(np.where(fresh[2::2], -1, below[: len(even) - 1]), even[1:])
        return running


# --- the operator ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fold(Operator):
    """The states of a monoid, merged as its class says."""

    kind: ClassVar[str] = "fold"
    name: str
    params: tuple[tuple[str, Any], ...] = ()

    @property
    def text(self) -> str:
        shown = [expression.text for expression in self.inputs] + [f"{name}={value!r}" for name, value in self.params]
        return f"{self.name}({', '.join(shown)})"

    @property
    def form(self) -> str:
        return ", ".join(f"{name} {dtype}" for name, dtype in self.calls.fields.items())

    @property
    def calls(self) -> Calls:
        return Calls(MONOIDS[self.name](**dict(self.params)))

    def fields(self, types: Sequence[pl.DataType], place: Mapping[str, pl.DataType]) -> dict[str, pl.DataType]:
        return self.calls.fields

    def lift(self, of: Inputs) -> dict[str, pl.Expr]:
        """The values of each slice as lists, of structs where there are several inputs."""
        values = of.columns[0]
        if len(of.columns) > 1:
            values = pl.struct(column.alias(f"{number}") for number, column in enumerate(of.columns))
        if not of.dense:
            values = values.filter(pl.all_horizontal(column.is_not_null() for column in of.columns))
        return {next(iter(self.calls.fields)): values}

    def finish(self, state: Fields) -> Fields:
        ((values, sizes),) = map(flat, state.values())
        is_struct = len(self.inputs) > 1
        inputs = [values.struct.field(f"{number}") for number in range(len(self.inputs))] if is_struct else [values]
        return Fields(self.calls.lift(inputs, sizes))

    def merge(self, names: Mapping[str, str]) -> dict[str, pl.Expr]:
        """The states of each slice as lists, in the order of the rows."""
        return {field: pl.col(name) for field, name in names.items()}

    def finish_merged(self, state: Fields) -> Fields:
        laid = {name: flat(column) for name, column in state.items()}
        sizes = next(iter(laid.values()))[1]
        ends = np.cumsum(sizes)
        pool, leaves = self._pool({name: column for name, (column, _) in laid.items()})
        return Fields(pool.take(pool.fold(leaves, ends - sizes, ends)))

    def combine(self, state: Fields, lo: Ints, hi: Ints) -> Folded:
        pool, leaves = self._pool(state)
        rows = int(covered(lo, hi, len(leaves)).sum())
        merges_in_tree = rows + float(np.log2(np.maximum(hi - lo, 1)).sum())
        if pool.calls.invertible and 2 * rows + len(lo) < merges_in_tree:
            return Folded(pool, pool.unfold(leaves, lo, hi))
        return Folded(pool, pool.fold(leaves, lo, hi))

    def _pool(self, state: Mapping[str, pl.Series]) -> tuple[Pool, Ints]:
        """The states, and their numbers: -1 for a slice without one."""
        missing = _missing(state).to_numpy()
        numbers = np.where(missing, -1, np.arange(len(missing)))
        return Pool({name: column.alias(name) for name, column in state.items()}, self.calls), numbers


@dataclass(frozen=True)
class OrderedFold(Fold):
    """The states of a monoid that is not commutative."""

    ordered: ClassVar[bool] = True
    needs_order: ClassVar[bool] = True


@dataclass(frozen=True)
class Folded:
    """One state per window, by its number in a pool."""

    pool: Pool
    numbers: Ints

    def take(self, index: Ints) -> Folded:
        return Folded(self.pool, self.numbers[index])

    def lower(self) -> pl.Series:
        there = self.numbers >= 0
        results = self.pool.calls.lower(self.pool.take(self.numbers[there]), int(there.sum()))
        if there.all():
            return results
        return results.gather(pl.Series(np.cumsum(there) - 1).set(pl.Series(~there), None))


def _missing(states: Mapping[str, pl.Series]) -> pl.Series:
    """Where there is no state: no field has a value."""
    return reduce(operator.and_, (column.is_null() for column in states.values()))


# --- calling it -----------------------------------------------------------------------------------------------------


class Calls:
    """The methods of a monoid over columns; what they return is checked, and an error names the method."""

    def __init__(self, monoid: Any) -> None:
        self._monoid = monoid
        self.fields: dict[str, pl.DataType] = monoid.columns
        self.invertible: bool = monoid.invertible
        self._single = not isinstance(monoid.state, Mapping)

    def lift(self, inputs: Sequence[pl.Series], sizes: Ints) -> States:
        """A state for each slice; its values lie end to end in the inputs."""
        columns: dict[str, list[Any]] = {name: [] for name in self.fields}
        ends = np.cumsum(sizes)
        for at, size in zip((ends - sizes).tolist(), sizes.tolist(), strict=True):
            state = self._monoid.lift(*(values.slice(at, size) for values in inputs)) if size else None
            by_field = dict.fromkeys(self.fields) if state is None else self._by_field("lift", state)
            for name, column in columns.items():
                column.append(by_field[name])
        return {name: self._column(name, values) for name, values in columns.items()}

    def _column(self, name: str, values: list[Any]) -> pl.Series:
        try:
            return pl.Series(name, values, dtype=self.fields[name], strict=True)
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
            reason = str(error).splitlines()[0]
            raise self._wrong("lift", f"{self._what(name)} must be {self.fields[name]}: {reason}") from None

    def merge(self, a: States, b: States) -> States:
        return self._states("merge", self._monoid.merge(self._shape(a), self._shape(b)), a)

    def unmerge(self, whole: States, before: States) -> States:
        return self._states("unmerge", self._monoid.unmerge(self._shape(whole), self._shape(before)), whole)

    def lower(self, states: States, size: int) -> pl.Series:
        """A result for each state, of the type that no states at all have."""
        none = {name: column.clear() for name, column in states.items()}
        nothing = self._series("lower", self._monoid.lower(self._shape(none)))
        if any(isinstance(dtype, NO_DATA[:3]) for dtype in types_within(nothing.dtype)):
            reason = f"the result for no states is {nothing.dtype}, and needs a type; give pl.Series a dtype"
            raise self._wrong("lower", reason)
        results = self._series("lower", self._monoid.lower(self._shape(states))) if size else nothing
        return self._fitted("lower", results, nothing.dtype, size, "the result")

    def _shape(self, states: States) -> Any:
        return next(iter(states.values())) if self._single else dict(states)

    def _states(self, method: str, returned: Any, like: States) -> States:
        size = len(next(iter(like.values())))
        states = {
            name: self._fitted(method, self._series(method, given), self.fields[name], size, self._what(name)).alias(
                name
            )
            for name, given in self._by_field(method, returned).items()
        }
        if _missing(states).any():
            raise self._wrong(method, "gave null, and two states make a state")
        return states

    def _by_field(self, method: str, returned: Any) -> dict[str, Any]:
        if self._single:
            return dict.fromkeys(self.fields, returned)
        if not isinstance(returned, Mapping) or set(returned) != set(self.fields):
            gave = f"the fields {list(returned)}" if isinstance(returned, Mapping) else type(returned).__name__
            raise self._wrong(method, f"must give a dict with the fields {list(self.fields)}, not {gave}")
        return {name: returned[name] for name in self.fields}

    def _series(self, method: str, returned: Any) -> pl.Series:
        if isinstance(returned, np.ndarray):
            return pl.Series(returned)
        if not isinstance(returned, pl.Series):
            raise self._wrong(method, f"must give Series, not {type(returned).__name__}")
        return returned

    def _fitted(self, method: str, column: pl.Series, dtype: pl.DataType, size: int, what: str) -> pl.Series:
        if len(column) != size:
            raise self._wrong(method, f"{what} has {len(column)} rows, and should have {size}")
        if column.dtype == dtype:
            return column
        if not _fits(column.dtype, dtype):
            raise self._wrong(method, f"{what} is {column.dtype}, and should be {dtype}")
        return column.cast(dtype)

    def _what(self, name: str) -> str:
        return "the state" if self._single else f"field {name!r}"

    def _wrong(self, method: str, reason: str) -> TypeError:
        return TypeError(f"{self._monoid.name}.{method}: {reason}")


def _fits(given: pl.DataType, declared: pl.DataType) -> bool:
    """Whether one type can be taken for another without losing anything but width."""
    if given == declared or given == pl.Null():
        return True
    if isinstance(given, pl.List) and isinstance(declared, pl.List):
        return _fits(given.inner, declared.inner)  # type: ignore[arg-type]
    return given.is_numeric() and declared.is_numeric() and (given.is_integer() or not declared.is_integer())


NO_DATA = (pl.Object, pl.Unknown, pl.Null, pl.Int128, pl.UInt128)


def types_within(dtype: pl.DataType) -> Iterator[pl.DataType]:
    """A type and all types within it."""
    yield dtype
    inner = [part.dtype for part in dtype.fields] if isinstance(dtype, pl.Struct) else [getattr(dtype, "inner", None)]
    for part in inner:
        if part is not None:
            yield from types_within(part() if isinstance(part, type) else part)
