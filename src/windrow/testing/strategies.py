"""What properties are checked on: random events, queries, and ways of feeding them in.

A `transcripts.Stream` is a whole run, which any runtime takes.

    times     a walk from a base: many steps of 0 (or mostly those), small ones, pauses longer than every window, and
              steps back
    batches   every event says how many batches end after it: mostly none, sometimes one, sometimes two (an empty batch)
    values    few keys, null among them; nulls; integers near the ends of int64; now and then NaN and infinities

Steps back are at most the lateness, unless `beyond` asks for events that come too late. Everything is small, so that
what fails is readable: every draw shrinks to fewer events in one batch with small times and plain values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from hypothesis import strategies as st

from windrow.core.aggregates.formula import aggregate
from windrow.core.aggregates.functions import Aggregate
from windrow.core.query.query import Query
from windrow.core.windows.fixed import Window, cumulating, session, sliding, tumbling
from windrow.core.windows.ordered import JOINED, counting, frames, latest, punctuated, scope_of
from windrow.testing.own import Filled, Uneven
from windrow.testing.standing import Row
from windrow.testing.transcripts import Step, Stream

SCHEMA: dict[str, pl.DataType] = {
    "t": pl.Int64(),  # the time column of the engine
    "o": pl.Int64(),  # another time column
    "k": pl.String(),  # keys …
    "j": pl.Int64(),
    "g": pl.Float64(),
    "x": pl.Int64(),  # … and values
    "y": pl.Float64(),
    "z": pl.Int64(),
    "s": pl.String(),
    "b": pl.Boolean(),
    "node": pl.String(),  # where it came in
}

LENGTHS = (10, 1, 2, 3, 5, 7, 12, 25)  # most do not divide each other
PAUSE = 1000  # longer than every window, gap, lateness and update
BASES = (0, -37, 10**15, -(10**15) - 3)  # where a stream begins
MOVES = (1, 0, 0, 2, 3, 5, 7, 11, 30, PAUSE)  # from the newest event to the next
CROWDED_MOVES = (0, 0, 0, 1, 0, 0, 2, 0, 7, PAUSE)

AGGREGATES: tuple[Aggregate, ...] = tuple(
    map(
        aggregate,
        (
            *("count()", "count(x)", "count(s)", "sum(x)", "sum(y)", "sum(z)", "sum(x * 2)", "sum(x + y)"),
            *("mean(x)", "mean(y)", "mean(z)", "product(x)", "product(y)", "geometric_mean(x)", "geometric_mean(y)"),
            *("min(x)", "min(y)", "min(z)", "min(s)", "min(b)", "max(x)", "max(y)", "max(z)", "max(s)", "max(b)"),
            *("variance(x)", "variance(y)", "variance_pop(z)", "stddev(y)", "stddev_pop(x)", "stddev_pop(y)"),
            *(
                "range(x)",
                "range(y)",
                "range(z)",
                "first(x)",
                "last(x)",
                "first(s, true)",
                "last(y, true)",
                "first(b)",
                "last(s)",
                "collect(x)",
                "collect(s, true)",
            ),
            *("arg_min(s, of=x)", "arg_min(x, of=y)", "arg_max(s, of=x)", "arg_max(t, of=y)", "arg_max(x, of=s)"),
            *("m4(x)", "m4(y)", "median(x)", "median(y)", "median(z)", "quantile(x, 0.25)", "quantile(y, 0.9)"),
            *("quantile(y, 0)", "quantile(x, 1)", "mode(x)", "mode(y)", "mode(s)", "mode(b)"),
            *("distinct(x)", "distinct(y)", "distinct(s)", "distinct(b)", "distinct(z)"),
            *("sum(x) / count(y)", "max(x) - min(x) + 1", "mean(y) + stddev_pop(y)", "sum(z) / count()"),
            *("collect(y)", "collect(b)", "chained(x)", "chained(s)", "sum_of_products(x, j)"),
        ),
    )
)
FILTERS = ("x > 1", "y < 1", "s = 'a'", "b", "k = 'a' OR j IS NULL", "x IS NOT NULL AND NOT b", "x > 1000")
HAVINGS = (
    "count() > 1",
    "max(x) > 1",
    "count(s) = 1 OR mean(y) < 0.123",
    "sum(z) > 0",
    "max(b)",
    "sum(x) FILTER (WHERE b) > 1",
    "first(x) = 1",
    "median(x) > 1.5",
    "chained(x) <> '1;'",
)
PREDICATES = (
    "x > 1",
    "b",
    "x <= 2",
    "s = 'a'",
    "y < 1",
    "x IS NULL",
    "x > 1 OR b",
    "x > 1000",
)  # where windows begin and end
KEYS = ((), ("k",), (), ("k",), ("k", "j"), ("j", "k"), ("j",), ("g",))
DISTINCT_ON = (("x",), ("k", "s"), ("g",))
NAMES = ("m", "c", "x", "a", "q10", "q9")  # not in the order of the alphabet: emission is

# Columns of different lengths, laid side by side: one number draws a row, and 0 is the plainest.
_NAN, _INF = math.nan, math.inf
_X = (1, 2, None, 0, -7, 3, 2, 5, None, 1, 100)
_Y = (1.5, None, -2.25, 0.1, 0.0, 0.3, 1e6, -0.0, 7.75, 1.5, None, 1e-3, 2.0)
_WILD_Y = (*_Y, _NAN, _INF, -_INF, _NAN)
_Z = (1, 2**63 - 1, None, -(2**63), 2**62, 7, -(2**61))
_NODES = ("a", "b", "c", "b")
_S = (("a", True), ("b", False), (None, None), ("", True), ("ä", None))
_K = (
    ("a", 1, 1.5),
    ("b", 1, 0.0),
    (None, None, None),
    ("a", 2, -0.0),
    ("b", None, _NAN),
    ("c", 2, 1.5),
    (None, 1, _NAN),
)
_SKEWED_K = (*(_K[0],) * 12, *_K)
_CLOSE_K = (*(_K[0],) * 4, *_K[1:3])


def frame(rows: Sequence[Row]) -> pl.DataFrame:
    """Rows as a batch."""
    return pl.DataFrame({name: [row[name] for row in rows] for name in SCHEMA}, schema=SCHEMA)


# --- queries --------------------------------------------------------------------------------------------------------

lengths = st.sampled_from(LENGTHS)
offsets = st.sampled_from((None, None, 1, 4, -3, 40))


@st.composite
def _cumulating(draw: st.DrawFn) -> Window:
    step = draw(st.sampled_from((5, 1, 2, 3, 7)))
    return cumulating(step * draw(st.integers(1, 4)), step, draw(offsets))


predicates = st.sampled_from(PREDICATES)
WINDOWS: dict[str, st.SearchStrategy[Window]] = {
    "tumbling": st.builds(tumbling, lengths, offsets),
    "sliding": st.builds(sliding, lengths, lengths, offsets),
    "session": st.builds(session, lengths),
    "cumulating": _cumulating(),
    "counting": st.builds(counting, st.integers(1, 7), st.one_of(st.none(), st.integers(1, 9))),
    "punctuated": st.one_of(
        st.builds(punctuated, end=predicates),
        st.builds(punctuated, start=predicates),
        st.builds(punctuated, start=predicates, end=predicates),
    ),
    "frames": st.builds(frames, predicates),
    "latest": st.builds(latest, st.integers(1, 5), lengths),
    "uneven": st.builds(Uneven, st.integers(1, 13)),
    "filled": st.builds(Filled, st.integers(1, 9)),
}
KINDS = tuple(WINDOWS)
ORDERED = ("counting", "punctuated", "frames", "latest", "filled")
_counts = st.integers(1, 4)
WINDOWS["joined"] = st.one_of(  # of several nodes; not every runtime has them
    st.builds(lambda n, more, scope: counting(n, n + more, scope), _counts, st.integers(0, 2), st.sampled_from(JOINED)),
    st.builds(lambda n, step: counting(n, step, "position"), _counts, st.one_of(st.none(), st.integers(1, 4))),
    st.builds(punctuated, start=predicates, scope=st.sampled_from(JOINED)),
    st.builds(punctuated, end=predicates, scope=st.sampled_from(JOINED)),
    st.builds(punctuated, start=predicates, end=predicates, scope=st.sampled_from(JOINED)),
    st.builds(frames, predicates, scope=st.sampled_from(JOINED)),
)
WINDOWS["of each node"] = st.one_of(
    st.builds(counting, _counts, st.one_of(st.none(), st.integers(1, 4)), st.just("node")),
    st.builds(punctuated, end=predicates, scope=st.just("node")),
    st.builds(frames, predicates, scope=st.just("node")),
)


def windows(kinds: Sequence[str] = KINDS) -> st.SearchStrategy[Window]:
    """Windows of these kinds; slides longer than the window, and steps, gaps and offsets that fit nothing."""
    return st.one_of(*(WINDOWS[kind] for kind in kinds))


@st.composite
def _aggregates(draw: st.DrawFn) -> list[Aggregate]:
    """Some, of which now and then one sees fewer events."""
    found = draw(st.lists(st.sampled_from(AGGREGATES), min_size=1, max_size=3, unique=True))
    if draw(st.integers(0, 3)) == 3:
        found[-1] = found[-1].filter(draw(st.sampled_from(FILTERS)))
    return found


@st.composite
def queries(
    draw: st.DrawFn, name: str, time_columns: Sequence[str | None] = (None,), kinds: Sequence[str] = KINDS
) -> Query:
    """One query; `time_columns` to choose its own from."""
    rare = st.integers(0, 7)
    window = draw(windows(kinds))
    aggregates, havings = draw(_aggregates()), list(HAVINGS)
    if scope_of(window) in JOINED:
        aggregates, havings = [one for one in aggregates if not one.needs_order] or [aggregate("count()")], havings[:-1]
    return Query(
        name,
        window,
        aggregates,
        by=draw(st.sampled_from(KEYS)),
        where=draw(st.sampled_from(FILTERS)) if draw(st.integers(0, 2)) == 2 else None,
        time=draw(st.sampled_from(time_columns)),
        distinct_on=draw(st.sampled_from(DISTINCT_ON)) if draw(rare) == 7 else (),
        having=draw(st.sampled_from(havings)) if draw(st.integers(0, 4)) == 4 else None,
    )


@st.composite
def query_sets(
    draw: st.DrawFn, most: int = 4, time_columns: Sequence[str | None] = (None,), kinds: Sequence[str] = KINDS
) -> tuple[Query, ...]:
    count = draw(st.integers(1, most))
    return tuple(draw(queries(name, time_columns, kinds)) for name in NAMES[:count])


# --- events ---------------------------------------------------------------------------------------------------------


def _moves(back: int, close: bool, crowded: bool) -> st.SearchStrategy[int]:
    """Steps on a time column, in one of four cases back by at most so much; ahead only where there is no back."""
    moves = CROWDED_MOVES if crowded else MOVES
    ahead = st.sampled_from(moves[:-2] if close else moves)
    return st.one_of(ahead, ahead, ahead, st.integers(-back, 0)) if back else ahead


@st.composite
def batches(draw: st.DrawFn, backs: Mapping[str, int], most: int = 24, close: bool = False) -> list[list[Row]]:
    """Events in the order in which they come, at most `backs` of each time column behind the newest, in batches.

    close: without pauses, with fewer keys, in smaller batches, so that late events meet what was emitted
    """
    newest = {time_column: draw(st.sampled_from(BASES)) for time_column in backs}
    ys = draw(st.sampled_from((_Y, _Y, _Y, _WILD_Y)))
    crowded = draw(st.booleans())
    moves = st.tuples(*(_moves(back, close, crowded) for back in backs.values()))
    keys = st.sampled_from(_CLOSE_K if close else draw(st.sampled_from((_K, _K, _K[:2], _SKEWED_K))))
    values = st.integers(0, len(_X) * len(ys) * len(_Z) * len(_S) - 1)
    ends = st.sampled_from((0, 0, 1, 1) if close else (0, 0, 0, 0, 0, 1, 1, 2))
    fewest = draw(st.sampled_from((0, most // 2, most // 2, most // 2) if close else (0, 0, most // 3, most // 2)))
    events = draw(st.lists(st.tuples(moves, keys, values, ends), min_size=fewest, max_size=most))
    found: list[list[Row]] = [[]]
    for move, key, n, ended in events:
        times = {time_column: newest[time_column] + by for time_column, by in zip(backs, move, strict=True)}
        newest = {time_column: max(newest[time_column], times[time_column]) for time_column in backs}
        found[-1].append({"t": 0, "o": 0, **times, **dict(zip("kjg", key, strict=True)), **_values(n, ys)})
        found += [[] for _ in range(ended)]
    return found


def _values(n: int, ys: Sequence[float | None]) -> Row:
    """The nth of all rows of values."""
    s, b = _S[n % len(_S)]
    x, y, z = _X[n % len(_X)], ys[n % len(ys)], _Z[n % len(_Z)]
    return {"x": x, "y": y, "z": z, "s": s, "b": b, "node": _NODES[n % len(_NODES)]}


def tables(most: int = 40) -> st.SearchStrategy[list[Row]]:
    """The events of a whole table, in no order."""
    return batches({"t": 200, "o": 50}, most).map(lambda parts: [row for part in parts for row in part])


# --- whole runs -----------------------------------------------------------------------------------------------------


@st.composite
def streams(
    draw: st.DrawFn,
    *,
    beyond: bool = False,
    updates: bool = False,
    changes: bool = False,
    watermarks: bool = False,
    time_columns: bool = True,
    most: int = 24,
    kinds: Sequence[str] = KINDS,
) -> Stream:
    """A run of an engine.

    beyond:      some events come later than the lateness allows
    updates:     emitted windows can change
    changes:     queries come and go
    watermarks:  they are also moved from outside, and may be moved by nothing else
    time_columns:    queries may have a time column of their own
    kinds:       the kinds of their windows
    """
    several = time_columns and not updates and draw(st.integers(0, 3)) == 3
    names = ("t", "o") if several else ("t",)
    if updates and "session" in kinds:
        kinds = (*kinds, "session")  # of all time windows they change the most
    query_set = draw(query_sets(time_columns=(None, "o") if several else (None,), kinds=kinds))
    close = updates and draw(st.integers(0, 3)) < 3
    lags = st.sampled_from((0, 3, 5) if close else (0, 3, 5, 12, 30))
    lateness: dict[str, int | None] = {name: draw(lags) for name in names}
    if watermarks and draw(st.booleans()):
        lateness["t"] = None
    kept = draw(st.sampled_from((20, 1, 6, 50, 100))) if updates else 0
    behind = st.sampled_from((kept, kept + 10, kept + 40) if updates else (10, 40, 200))
    backs = {name: (late or 0) + (draw(behind) if beyond else 0) for name, late in lateness.items()}
    if lateness["t"] is None:
        backs["t"] += 30
    options: dict[str, Any] = {"time": "t", "lateness": lateness if several else lateness["t"]}
    if updates:
        options["updates"] = kept
    if draw(st.integers(0, 3)) == 3:
        options["order_by"] = draw(st.sampled_from((("x",), ("s", "x"), ("y",))))
    steps = [Step("input", batch, {}) for batch in draw(batches(backs, most, close))]
    if watermarks:
        steps = draw(_with_watermarks(steps))
    if changes:
        steps = draw(_with_changes(steps, query_set, (None, "o") if several else (None,), kinds))
    return Stream(query_set, options, (*steps, Step("finish", draw(st.sampled_from((True, True, "partial"))), {})))


@st.composite
def _with_watermarks(draw: st.DrawFn, steps: Sequence[Step]) -> list[Step]:
    """Watermarks after some steps, near the newest event, before and after it."""
    found: list[Step] = []
    newest: int | None = None
    for step in steps:
        found.append(step)
        newest = max([*([] if newest is None else [newest]), *(row["t"] for row in step.value)], default=None)
        if newest is not None and draw(st.booleans()):
            found.append(Step("watermark", newest + draw(st.integers(-30, 30)), {}))
    return found


@st.composite
def _with_changes(
    draw: st.DrawFn,
    steps: Sequence[Step],
    query_set: Sequence[Query],
    time_columns: Sequence[str | None],
    kinds: Sequence[str],
) -> list[Step]:
    """Queries added and removed between the steps."""
    there, spare = list(query_set), list(NAMES[len(query_set) :])
    newest = 0
    found: list[Step] = []
    for step in steps:
        what = draw(st.sampled_from(("", "", "add", "remove", "close")))
        # of several time columns each keeps a query: what is known of one without queries is not defined
        leaving = [one for one in there if len(time_columns) == 1 or sum(one.time == other.time for other in there) > 1]
        if what == "add" and spare:
            query = draw(queries(spare.pop(0), time_columns, kinds))
            since = draw(st.sampled_from((None, None, newest + 3, newest + 20, newest - 5)))
            found.append(Step("add", query, {"since": since}))
            there.append(query)
        elif what in ("remove", "close") and leaving:
            query = draw(st.sampled_from(leaving))
            there.remove(query)
            found.append(Step("remove", query.name, {"when": "now" if what == "remove" else "windows_closed"}))
        if step.action == "input":
            newest = max([newest, *(row["t"] for row in step.value)])
        found.append(step)
    return found
