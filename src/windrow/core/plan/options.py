"""What every runtime knows of a stream beside its queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import polars as pl

from windrow.core.plan.watermark import Lengths, TimeColumn, plain
from windrow.core.query.query import Query, named_time, time_of
from windrow.core.windows.fixed import Length, duration

ONLY_TIMESTAMP = "(the only timestamp)"  # the time column of a stream whose first events will show which it is


@dataclass(frozen=True)
class StreamOptions:
    """On which column time is measured, how far events may be out of order, and what is done about bad ones."""

    time: str
    lateness: Lengths = field(default=0, hash=False)  # a mapping has no hash
    updates: Lengths = field(default=None, hash=False)
    order_by: tuple[str, ...] = ()
    bad_events: str = "raise"

    @staticmethod
    def of(
        queries: Iterable[Query],
        time: str | None,
        lateness: Lengths = 0,
        updates: Lengths = None,
        order_by: str | Sequence[str] = (),
        bad_events: str = "raise",
        columns: Mapping[str, pl.DataType] | None = None,
    ) -> StreamOptions:
        """The options that a user has given, checked.

        The time may be left out where the queries name it, or where it is the only timestamp among the columns; while
        these are not known, it is `ONLY_TIMESTAMP`.
        """
        if bad_events not in ("raise", "drop"):
            raise ValueError(f"bad_events must be 'raise' or 'drop', not {bad_events!r}")
        ties = (order_by,) if isinstance(order_by, str) else tuple(order_by)
        column = named_time(queries, time) if columns is None else time_of(queries, time, columns)
        return StreamOptions(column or ONLY_TIMESTAMP, copy(lateness), copy(updates), ties, bad_events)

    @property
    def whole(self) -> StreamOptions:
        """The same for a whole table, which has no late events."""
        return replace(self, updates=None)

    def time_columns(self, names: Sequence[str]) -> dict[str, TimeColumn]:
        """Time columns at the beginning of the stream, with lengths that were given for all, or for each by name."""
        columns = {}
        for name in names:
            late = self._length("lateness", name)
            keep = self._length("updates", name) or Length(0, False)
            kinds = {length.temporal for length in (late, keep) if length is not None and length.units}
            if len(kinds) > 1:
                raise ValueError("lateness and updates must both be durations or both be plain numbers")
            columns[name] = TimeColumn(late.units if late else None, keep.units, kinds.pop() if kinds else None)
        return columns

    def _length(self, what: Literal["lateness", "updates"], name: str) -> Length | None:
        given = value = getattr(self, what)
        if isinstance(given, Mapping):
            value = given.get(name, 0 if what == "lateness" else None)
        elif given not in (None, 0) and name != self.time:
            example = f"{what}={{{self.time!r}: …, {name!r}: …}}"
            raise ValueError(f"{what} {given!r} is for {self.time!r}; say one for {name!r} too: {example}")
        if value is None:
            return None
        length = duration(value, what)
        if length.units < 0:
            raise ValueError(f"{what} must not be negative, not {value!r}")
        return length

    def to_dict(self) -> dict[str, Any]:
        """The options as plain data, from which `from_dict` makes the same."""
        lengths = {"lateness": plain(self.lateness), "updates": plain(self.updates)}
        return {"time": self.time, **lengths, "order_by": list(self.order_by), "bad_events": self.bad_events}

    @staticmethod
    def from_dict(described: Mapping[str, Any]) -> StreamOptions:
        return StreamOptions(**{**described, "order_by": tuple(described["order_by"])})
