"""Monoids: aggregates of one's own, which behave like any other.

lift    the values of one slice → a state         merge   pairs of states → states
lower   states → results                          unmerge (invertible) takes off what came before
"""

import importlib
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow as wr
from windrow.core.operators.base import Fields, Inputs
from windrow.core.operators.custom import MONOIDS, Fold

# --- monoids of every sort ------------------------------------------------------------------------------------------


class Total(wr.Monoid):
    """One field, invertible."""

    state = pl.Int64
    invertible = True
    merged, unmerged = 0, 0  # rows

    def lift(self, x: pl.Series) -> Any:
        return x.sum()

    def merge(self, a: pl.Series, b: pl.Series) -> pl.Series:
        Total.merged += len(a)
        return a + b

    def unmerge(self, whole: pl.Series, before: pl.Series) -> pl.Series:
        Total.unmerged += len(whole)
        return whole - before

    def lower(self, state: pl.Series) -> pl.Series:
        return state


class WeightedMean(wr.Monoid):
    """Two inputs, two fields, a parameter."""

    state = {"total": pl.Float64, "weight": pl.Float64}  # noqa: RUF012

    def __init__(self, at_least: float = 0.0) -> None:
        self.at_least = at_least

    def lift(self, x: pl.Series, w: pl.Series) -> Any:
        return {"total": (x * w).sum(), "weight": w.sum()}

    def merge(self, a: dict[str, pl.Series], b: dict[str, pl.Series]) -> Any:
        return {name: a[name] + b[name] for name in a}

    def lower(self, state: dict[str, pl.Series]) -> pl.Series:
        found = pl.DataFrame(state).select(
            pl.when(pl.col("weight") >= self.at_least).then(pl.col("total") / pl.col("weight"))
        )
        return found.to_series()


class Joined(wr.Monoid):
    """Strings end to end: not commutative, and yet what came before can be taken off."""

    state = pl.String
    commutative = False
    invertible = True

    def lift(self, x: pl.Series) -> Any:
        return x.cast(pl.String).str.join("")[0]

    def merge(self, a: pl.Series, b: pl.Series) -> pl.Series:
        return a + b

    def unmerge(self, whole: pl.Series, before: pl.Series) -> pl.Series:
        return whole.str.slice(before.str.len_chars())

    def lower(self, state: pl.Series) -> pl.Series:
        return state


class Path2x2(wr.Monoid):
    """A product of 2×2 matrices, one for each value."""

    name = "matrix_product"
    state = dict.fromkeys("abcd", pl.Int64)
    commutative = False

    def lift(self, x: pl.Series) -> Any:
        a, b, c, d = reduce(matrix_product, ((1, value, value, value + 1) for value in x.to_list()))
        return {"a": a, "b": b, "c": c, "d": d}

    def merge(self, a: Any, b: Any) -> Any:
        return dict(zip("abcd", matrix_product(tuple(a.values()), tuple(b.values())), strict=True))

    def lower(self, state: dict[str, pl.Series]) -> pl.Series:
        return pl.DataFrame(state).to_struct()


def matrix_product(m: tuple[Any, ...], n: tuple[Any, ...]) -> tuple[Any, ...]:
    (a, b, c, d), (e, f, g, h) = m, n
    return (a * e + b * g) % 97, (a * f + b * h) % 97, (c * e + d * g) % 97, (c * f + d * h) % 97


@dataclass
class Tail(wr.Monoid):
    """The last n values, in a list."""

    state = pl.List(pl.Int64)
    commutative = False
    n: int = 3

    def lift(self, x: pl.Series) -> Any:
        return x.tail(self.n)

    def merge(self, a: pl.Series, b: pl.Series) -> pl.Series:
        return a.list.concat(b).list.tail(self.n)

    def lower(self, state: pl.Series) -> pl.Series:
        return state


PLAIN = {  # each from its definition, over all values at once
    Total.of("x"): sum,
    Joined.of("x"): lambda values: "".join(map(str, values)),
    Path2x2.of("x"): lambda values: dict(
        zip("abcd", reduce(matrix_product, ((1, one, one, one + 1) for one in values)), strict=True)
    ),
    Tail.of("x", n=2): lambda values: values[-2:],
}
EVENTS = pl.DataFrame(
    {
        "t": [0, 1, 2, 11, 12, 25, 26, 40],
        "k": ["a", "a", "b", "b", "a", "a", "a", "b"],
        "x": [1.0, 2.0, 4.0, None, 5.0, 2.0, 8.0, 1.0],
        "w": [1, 1, 2, 3, None, 1, 3, 1],
    }
)


# --- an aggregate like any other ------------------------------------------------------------------------------------


def test_it_is_an_aggregate_in_python_and_in_text() -> None:
    asked = WeightedMean.of("x + 1", "w", at_least=2)
    assert asked.text == asked.name == "weighted_mean(x + 1, w=w, at_least=2.0)"
    assert wr.aggregate("weighted_mean(x + 1, w, 2)") == asked
    assert wr.aggregate(asked.text) == wr.Aggregate.from_dict(asked.to_dict()) == asked
    assert asked.alias("m").name == "m"
    assert [one.text for one in asked.operators] == ["weighted_mean(x + 1, w, at_least=2.0)"]
    assert [part.text for part in wr.aggregate("total(x) / mean(x)").parts] == ["total(x)", "mean(x)"]
    assert MONOIDS["weighted_mean"] is WeightedMean


def test_a_string_parameter_is_quoted_in_text() -> None:
    class Labelled(wr.Monoid):
        state = pl.String

        def __init__(self, label: str = "", loud: bool = False) -> None:
            self.label = label

        lift = merge = lower = lambda self, x: x

    asked = Labelled.of("x", "it's, (a) \\ b", loud=True)
    assert asked.text == r"labelled(x, 'it\'s, (a) \\ b', True)"
    assert wr.aggregate(asked.text) == asked
    assert wr.aggregate("labelled(x, loud=true, label=plain)") == Labelled.of("x", "plain", True)


@pytest.mark.parametrize("name", ["show", "call", "fetch", "refresh"])
def test_it_may_be_called_as_a_command_of_sql_is(name: str) -> None:
    assert define(name=name).of("x + 1") == wr.aggregate(f"{name}(x + 1) / 2").parts[0]


def test_order_is_needed_where_merging_does_not_commute() -> None:
    assert Joined.of("x").needs_order
    assert wr.formula("matrix_product(x) is not null and count() > 1").needs_order
    assert not Total.of("x").needs_order
    assert not wr.last("x").needs_order


def test_whole_tables() -> None:
    queries = [
        wr.Query("w", wr.sliding(20, 10), ["weighted_mean(x, w)", "total(x + w)"], by="k"),
        wr.Query("s", wr.session(5), "weighted_mean(x, w, at_least=4)"),
        wr.Query("f", wr.tumbling(50), [wr.aggregate("total(w) / count(w)").alias("mean")], where="k = 'a'"),
    ]
    events = EVENTS.with_columns(pl.col("x").cast(pl.Int64))
    found = wr.windows(events, queries, "t")
    sessions = found.filter(pl.col("query") == "s")["weighted_mean(x, w=w, at_least=4.0)"]
    assert sessions.to_list() == [11 / 4, None, 26 / 4, None]
    assert found.filter(pl.col("query") == "f")["mean"].to_list() == [6 / 4]
    rows = found.filter((pl.col("query") == "w") & (pl.col("k") == "a"))
    assert rows.select("window_start", "weighted_mean(x, w=w)", "total(x + w)").rows() == [
        (-10, 1.5, 5),
        (0, 1.5, 5),
        (10, 26 / 4, 14),
        (20, 26 / 4, 14),
    ]


def test_streams_roll_up_revise_and_restore(seed: int) -> None:
    """total(x) is sum(x), whatever becomes of the stream."""
    rng = np.random.default_rng(seed)
    size = 400
    events = pl.DataFrame(
        {
            "t": np.arange(size) - rng.integers(0, 30, size),
            "k": rng.integers(0, 4, size),
            "x": pl.Series(rng.integers(-9, 9, size)).set(pl.Series(rng.random(size) < 0.1), None),
        }
    )
    asked = ["total(x)", "sum(x)", "count()"]
    queries = [
        wr.Query("each", wr.sliding(35, 10), asked, by="k"),
        wr.Query("all", wr.sliding(50, 10), asked, where="x > -3"),
        wr.Query("runs", wr.session(4), asked, by="k"),
        wr.Query("total", wr.cumulating(60, 15), asked),
    ]
    engine = wr.Engine(queries, "t", lateness=10, updates=40)
    steps = []
    for at in range(0, size, 40):
        steps.append(engine.push(events[at : at + 40]))
        engine = wr.Engine.restore(engine.snapshot())
    found = pl.concat([*steps, engine.finish()])
    assert found.height > 200
    assert (found["revision"] > 0).any()
    assert found["total(x)"].equals(found["sum(x)"].rename("total(x)"), null_equal=True)


def test_another_process_needs_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "import polars as pl, windrow as wr\n"
        "class Longest(wr.Monoid):\n"
        "    state = pl.Int64\n"
        "    def lift(self, x): return x.str.len_chars().max()\n"
        "    def merge(self, a, b): return pl.select(pl.max_horizontal(a, b)).to_series()\n"
        "    def lower(self, state): return state\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("mine")
    engine = wr.Engine([wr.Query("q", wr.tumbling(10), "longest(s)")], "t")
    engine.push(pl.DataFrame({"t": [1, 2], "s": ["a", "abc"]}))
    (tmp_path / "snapshot").write_bytes(engine.snapshot())
    read = (
        "import windrow as wr\n"
        "data = open('snapshot', 'rb').read()\n"
        "try: wr.Engine.restore(data)\n"
        "except ValueError as error: print(error)\n"
        "import mine\n"
        "print(wr.Engine.restore(data).finish()['longest(s)'].to_list())"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(wr.__file__).parents[1])}
    command = [sys.executable, "-c", read]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "query 'q' cannot be read: there is no aggregate called 'longest' here: import the module that defines it",
        "[3]",
    ]


# --- its states -----------------------------------------------------------------------------------------------------

slices = st.lists(st.lists(st.none() | st.integers(0, 9), max_size=4), min_size=1, max_size=12)


def lifted(asked: wr.Aggregate, values: list[list[Any]]) -> tuple[Fold, Fields]:
    """The states of slices; one without values holds a null."""
    (fold,) = asked.operators
    assert isinstance(fold, Fold)
    table = pl.DataFrame({"x": [one or [None] for one in values]}, schema={"x": pl.List(pl.Int64)}).with_row_index("n")
    grouped = table.explode("x").group_by("n", maintain_order=True)
    lifts = fold.lift(Inputs([pl.col("x")], [pl.Int64()], dense=False, place={}))
    found = grouped.agg(**lifts)
    return fold, fold.finish(Fields({name: found[name] for name in lifts}))


def merged(fold: Fold, state: Fields, sizes: list[int]) -> Fields:
    """So many neighbouring rows at a time become one."""
    names = {name: name for name in state}
    table = pl.DataFrame({**state}).with_columns(pl.Series("n", np.repeat(np.arange(len(sizes)), sizes)))
    grouped = table.group_by("n", maintain_order=True).agg(**fold.merge(names))
    return fold.finish_merged(Fields({name: grouped[name] for name in state}))


def results(fold: Fold, state: Fields, lo: Any, hi: Any) -> list[Any]:
    return fold.combine(state, np.array(lo, np.int64), np.array(hi, np.int64)).lower().to_list()


def expected(asked: wr.Aggregate, values: list[list[Any]]) -> Any:
    held = [value for one in values for value in one if value is not None]
    return PLAIN[asked](held) if held else None


@pytest.mark.parametrize("asked", PLAIN, ids=lambda asked: asked.function)
@given(values=slices, data=st.data())
@settings(max_examples=20)
def test_ranges_are_folded_in_order(asked: wr.Aggregate, values: list[list[Any]], data: st.DataObject) -> None:
    fold, state = lifted(asked, values)
    many = data.draw(st.booleans())  # with many ranges, what can be inverted is
    pairs = data.draw(
        st.lists(st.tuples(st.integers(0, len(values) - 1), st.integers(1, 12)), max_size=60 if many else 5)
    )
    if many:
        pairs = [(a, len(values)) for a in range(len(values)) for _ in range(5)] + pairs
    lo = [a for a, _ in pairs]
    hi = [min(a + size, len(values)) for a, size in pairs]
    assert results(fold, state, lo, hi) == [expected(asked, values[a:b]) for a, b in zip(lo, hi, strict=True)]


@pytest.mark.parametrize("asked", PLAIN, ids=lambda asked: asked.function)
@given(values=slices, data=st.data())
@settings(max_examples=20)
def test_any_tree_of_merges_gives_the_same(asked: wr.Aggregate, values: list[list[Any]], data: st.DataObject) -> None:
    fold, state = lifted(asked, values)
    rows = len(values)
    while rows > 1:
        cuts = data.draw(st.sets(st.integers(1, rows - 1), max_size=rows - 2))
        sizes = np.diff([0, *sorted(cuts), rows]).tolist()
        state, rows = merged(fold, state, sizes), len(sizes)
    assert results(fold, state, [0], [1]) == [expected(asked, values)]


def test_windows_over_no_slices_at_all() -> None:
    fold, state = lifted(Joined.of("x"), [[1]])
    nothing = Fields({name: column[:0] for name, column in state.items()})
    assert fold.combine(nothing, np.empty(0, np.int64), np.empty(0, np.int64)).lower().dtype == pl.String()


def test_a_chosen_few_windows() -> None:
    fold, state = lifted(Tail.of("x"), [[1, 2], [], [3, 4]])
    folded = fold.combine(state, np.array([0, 1, 2]), np.array([3, 2, 3]))
    assert folded.take(np.array([2, 1])).lower().to_list() == [[3, 4], None]


# --- what it costs --------------------------------------------------------------------------------------------------


def test_an_inverse_is_used_where_it_saves_merges() -> None:
    rng = np.random.default_rng(0)
    fold, state = lifted(Total.of("x"), [[value] for value in rng.integers(0, 9, 1000).tolist()])
    lo = rng.integers(0, 500, 5000)
    hi = lo + rng.integers(100, 500, 5000)
    costs = {}
    try:
        for invertible in (True, False):
            Total.invertible, Total.merged, Total.unmerged = invertible, 0, 0
            found = results(fold, state, lo, hi)
            assert found == [int(state["state"][a:b].sum()) for a, b in zip(lo, hi, strict=True)]
            costs[invertible] = Total.merged, Total.unmerged
    finally:
        Total.invertible = True
    assert costs[False][0] > 20_000
    assert costs[False][1] == 0
    assert costs[True][0] < 2_000
    assert 4_000 < costs[True][1] <= 5_000


def test_an_inverse_is_not_used_where_windows_are_few() -> None:
    fold, state = lifted(Total.of("x"), [[1]] * 1000)
    Total.merged, Total.unmerged = 0, 0
    assert results(fold, state, [0, 500], [500, 1000]) == [500, 500]
    assert (Total.merged < 1_000, Total.unmerged) == (True, 0)


def test_states_that_no_window_holds_together_are_never_merged() -> None:
    """As with keys, whose slices lie next to each other."""
    fold, state = lifted(Total.of("x"), [[1]] * 64)
    Total.merged = 0
    assert results(fold, state, range(64), range(1, 65)) == [1] * 64
    assert results(fold, state, range(0, 64, 2), range(2, 66, 2)) == [2] * 32
    assert Total.merged == 32


# --- what is refused ------------------------------------------------------------------------------------------------


def define(**body: Any) -> type[wr.Monoid]:
    """A monoid of one number that counts, but for what is given; an attribute that is None is left out."""
    plain: dict[str, Any] = {
        "state": pl.Int64,
        "lift": lambda self, x: len(x),
        "merge": lambda self, a, b: a + b,
        "lower": lambda self, state: state,
        "__qualname__": "Tally",
        "__module__": __name__,
    }
    return type("Tally", (wr.Monoid,), {name: one for name, one in (plain | body).items() if one is not None})


OF_FIELDS = {
    "state": {"n": pl.Int64},
    "lift": lambda self, x: {"n": len(x)},
    "lower": lambda self, state: state["n"],
}


class Unplain:
    def __init__(self, option: list[int]) -> None: ...


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"merge": None}, "Tally is a Monoid without 'merge'"),
        ({"state": None}, "Tally is a Monoid without 'state'"),
        ({"invertible": True}, "Tally is a Monoid without 'unmerge'"),
        ({"state": pl.Object}, "Tally.state: a state is data of an Arrow type"),
        ({"state": pl.List(pl.Object)}, "Tally.state: a state is data of an Arrow type"),
        ({"state": {"n": pl.Struct({"a": pl.Object})}}, "Tally.n: a state is data of an Arrow type"),
        ({"state": pl.Int128}, "Tally.state: a state is data of an Arrow type"),
        ({"state": pl.List}, "Tally.state: .* is not a whole type"),
        ({"state": int}, "Tally.state: a state is data of an Arrow type"),
        ({"state": {}}, "state must be a type, or a dict of names and types"),
        ({"lift": lambda self: 1}, r"Tally.lift must name its inputs, as in lift\(self, x\)"),
        ({"lift": lambda self, *x: 1}, "Tally.lift must name its inputs"),
        ({"__init__": Unplain.__init__}, "parameter 'option' must be annotated as float, int, bool or str"),
        ({"name": "sum"}, "the name 'sum' is taken by windrow itself"),
        ({"name": "avg"}, "the name 'avg' is taken by windrow itself"),
        ({"name": "bag"}, "the name 'bag' is taken by windrow itself"),
        ({"name": "total"}, "the name 'total' is taken by .*test_monoids.Total; set another `name`"),
        ({"name": "abs"}, "'abs' is a word of SQL"),
        ({"name": "Two words"}, "is not a name in lower case"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_definition_that_cannot_work_is_refused(body: dict[str, Any], reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        define(**body)


def test_the_same_class_may_be_defined_again() -> None:
    """As a notebook's cell is run again."""
    first, second = define(), define(lower=lambda self, state: -state)
    assert MONOIDS["tally"] is second is not first
    assert wr.windows(EVENTS, [wr.Query("q", wr.tumbling(100), "tally(x)")], "t")["tally(x)"].to_list() == [-7]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"lift": lambda self, x: "three"}, "tally.lift: the state must be Int64: .*String"),
        ({"lift": lambda self, x: 1.5}, "tally.lift: the state must be Int64: .*Float64"),
        ({"lift": lambda self, x: x}, "tally.lift: the state must be Int64"),
        ({"merge": lambda self, a, b: a[:0]}, "tally.merge: the state has 0 rows, and should have 1"),
        ({"merge": lambda self, a, b: a / b}, "tally.merge: the state is Float64, and should be Int64"),
        ({"merge": lambda self, a, b: a.cast(pl.String)}, "tally.merge: the state is String, and should be Int64"),
        ({"merge": lambda self, a, b: 3}, "tally.merge: must give Series, not int"),
        ({"merge": lambda self, a, b: a.clear(len(a))}, "tally.merge: gave null, and two states make a state"),
        ({"lower": lambda self, state: 1}, "tally.lower: must give Series, not int"),
        ({"lower": lambda self, state: state[:1]}, "tally.lower: the result has 1 rows, and should have 7"),
        ({"lower": lambda self, state: pl.Series(state.to_list())}, "tally.lower: .* give pl.Series a dtype"),
        (
            {**OF_FIELDS, "lift": lambda self, x: {"m": 1}},
            r"tally.lift: must give a dict with the fields \['n'\], not the fields \['m'\]",
        ),
        (
            {**OF_FIELDS, "merge": lambda self, a, b: a["n"]},
            r"tally.merge: must give a dict with the fields \['n'\], not Series",
        ),
    ],
    ids=lambda value: value.split(":")[0] if isinstance(value, str) else "",
)
def test_what_a_method_returns_is_checked(body: dict[str, Any], reason: str) -> None:
    define(**body)
    query = wr.Query("q", wr.sliding(40, 20), "tally(x)", by="k")
    with pytest.raises(TypeError, match=reason):
        wr.windows(EVENTS, [query, wr.Query("r", wr.tumbling(10), "count()", by="k")], "t")


def test_an_engine_goes_on_after_a_method_that_failed() -> None:
    define(lift=lambda self, x: len(x) if x.max() < 9 else "many")
    engine = wr.Engine([wr.Query("q", wr.tumbling(10), "tally(x)")], "t")
    engine.push(EVENTS[:2])
    with pytest.raises(TypeError, match=r"tally\.lift"):
        engine.push(EVENTS.with_columns(x=9.0))
    engine.push(EVENTS[2:3])
    assert engine.finish()["tally(x)"].to_list() == [3]


def test_numbers_are_widened_and_arrow_types_translated() -> None:
    define(
        state={"n": pa.float64(), "seen": pa.list_(pa.int64())},
        lift=lambda self, x: {"n": 1, "seen": np.arange(2)},
        merge=lambda self, a, b: {"n": (a["n"] + b["n"]).cast(pl.Int32), "seen": b["seen"].cast(pl.List(pl.Int8))},
        lower=lambda self, state: state["n"].to_numpy() * 2,
    )
    found = wr.windows(EVENTS, [wr.Query("q", wr.sliding(40, 20), "tally(x)")], "t")
    assert found["tally(x)"].to_list() == [2.0, 4.0, 4.0, 2.0]


def test_a_lift_may_find_no_state() -> None:
    define(lift=lambda self, x: len(x) if x.max() > 4 else None)
    found = wr.windows(EVENTS, [wr.Query("q", wr.sliding(40, 20), "tally(x)")], "t")
    assert found["tally(x)"].to_list() == [4, 6, 2, None]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: WeightedMean.of("x"), "WeightedMean.of: missing a required argument: 'w'"),
        (lambda: WeightedMean.of("x", "w", 1.0, 2), "WeightedMean.of: too many positional arguments"),
        (lambda: WeightedMean.of("x", "w", at_least="1"), "weighted_mean: at_least must be float, not '1'"),
        (lambda: WeightedMean.of("x", "w", at_least=True), "weighted_mean: at_least must be float, not True"),
        (lambda: WeightedMean.of("x", 1), "weighted_mean: w must be SQL text, not 1"),
        (lambda: wr.aggregate("weighted_mean(x, w, much)"), "at_least must be a number, not 'much'"),
        (lambda: wr.aggregate("weighted_mean(x)"), "missing a required argument: 'w'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_call_is_refused(call: Any, reason: str) -> None:
    with pytest.raises((TypeError, ValueError), match=reason):
        call()


def test_a_description_of_what_is_not_known_here_is_refused() -> None:
    described = Total.of("x").to_dict() | {"function": "ema"}
    with pytest.raises(ValueError, match="there is no aggregate called 'ema' here: import the module that defines it"):
        wr.Aggregate.from_dict(described)


def test_a_snapshot_of_other_fields_is_refused() -> None:
    class HowMany(wr.Monoid):
        state: ClassVar[Any] = {"n": pl.Int64}

        def lift(self, x: pl.Series) -> dict[str, int]:
            return {"n": len(x)}

        def merge(self, a: Any, b: Any) -> Any:
            return {"n": a["n"] + b["n"]}

        def lower(self, state: Any) -> pl.Series:
            return pl.Series(state["n"])

    engine = wr.Engine(wr.Query("q", wr.tumbling(10), HowMany.of("x")), "t")
    engine.push(pl.DataFrame({"t": [1], "x": [2]}))
    saved = engine.snapshot()
    HowMany.columns = {"n": pl.Float64()}  # as a later version of the class might say
    with pytest.raises(ValueError, match="another plan"):
        wr.Engine.restore(saved)
