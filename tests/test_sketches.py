"""Sketches keep to their bounds in every tree of merges; DataSketches and Spark read and write them."""

import datetime as dt
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pytest

from windrow.core.operators.sketch_formats import Array, Frequent, Hll, Kll

ds: Any = pytest.importorskip("datasketches")

Merge = Callable[[Sequence[bytes]], bytes]
Sketch = Kll | Hll | Frequent


def error_of(sketch: Sketch, deviations: int = 2) -> float:
    """The error that a result keeps to, after any number of merges, as the module says it."""
    if isinstance(sketch, Kll):
        return float(ds.kll_doubles_sketch.get_normalized_rank_error(sketch.k, False))
    if isinstance(sketch, Frequent):
        return 1 / (sketch.capacity + 1)
    bound = ds.hll_sketch.get_rel_err
    return float(max(abs(bound(upper, True, sketch.lg_k, deviations)) for upper in (False, True)))


def whole(values: pl.Series) -> Array:
    return np.array([0, len(values)])


def state_of(sketch: Sketch, values: pl.Series) -> bytes:
    [state] = sketch.lift(values, whole(values))
    assert state is not None
    return state


def lifted(sketch: Sketch, values: pl.Series, slices: int) -> list[bytes]:
    """States of slices of very different lengths, none of them empty."""
    offsets = (np.linspace(0, 1, slices + 1) ** 3 * len(values)).astype(np.int64)
    states = sketch.lift(values, np.unique(offsets))
    return [state for state in states if state is not None]


def chain(merge: Merge, states: Sequence[bytes]) -> bytes:
    done = states[0]
    for state in states[1:]:
        done = merge([done, state])
    return done


def pairs(merge: Merge, states: Sequence[bytes]) -> bytes:
    while len(states) > 1:
        states = [merge(states[i : i + 2]) for i in range(0, len(states), 2)]
    return states[0]


def at_once(merge: Merge, states: Sequence[bytes]) -> bytes:
    return merge(states)


TREES = [at_once, chain, pairs]
trees = pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.__name__)


def rank_error(values: Array, answers: Sequence[float | None], qs: Sequence[float]) -> float:
    """The greatest distance between q and the ranks that its answer has, as a share of all values."""
    values = np.sort(values)
    below = np.searchsorted(values, np.array(answers, float), "left") / len(values)
    up_to = np.searchsorted(values, np.array(answers, float), "right") / len(values)
    return float(np.max(np.maximum(0, np.maximum(below - qs, qs - up_to))))


QS = np.linspace(0, 1, 101).tolist()
STREAMS: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "rising": lambda rng, n: np.arange(n) * 1.0,
    "falling": lambda rng, n: np.arange(n)[::-1] * 1.0,
    "few": lambda rng, n: rng.integers(0, 5, n) * 1.0,
    "heavy tail": lambda rng, n: rng.pareto(0.5, n),
    "periodic": lambda rng, n: np.tile(rng.normal(size=n // 50), 50),
}


class TestKll:
    @trees
    @pytest.mark.parametrize("stream", STREAMS)
    def test_rank_error(self, stream: str, tree: Callable[[Merge, Sequence[bytes]], bytes]) -> None:
        values = STREAMS[stream](np.random.default_rng(1), 50_000)
        for slices in (1, 60):
            state = tree(Kll().merge, lifted(Kll(), pl.Series(values), slices))
            answers = Kll().quantiles(state, QS)
            assert rank_error(values, answers, QS) <= error_of(Kll())
            assert (answers[0], answers[-1]) == (values.min(), values.max())
            assert ds.kll_doubles_sketch.deserialize(state).n == len(values)
            assert len(state) < 36 + 8 * (3 * 200 + 3 * 61)

    def test_the_check_can_fail(self) -> None:
        values = np.arange(1000.0)
        assert rank_error(values, [520.0], [0.5]) > error_of(Kll()) > rank_error(values, [505.0], [0.5])

    def test_the_bound_holds_in_99_of_100(self) -> None:
        """The error is for the worst q of one sketch in 99 of 100; the library's own coins do no better."""
        ours, theirs = list[float](), list[float]()
        for seed in range(100):
            values = np.random.default_rng(seed).random(8_000)
            ours.append(
                rank_error(values, Kll().quantiles(pairs(Kll().merge, lifted(Kll(), pl.Series(values), 16)), QS), QS)
            )
            sketch = ds.kll_doubles_sketch(200)
            sketch.update(values)
            theirs.append(rank_error(values, sketch.get_quantiles(QS, True), QS))
        assert np.mean(np.array(ours) > error_of(Kll())) <= 0.01
        assert np.mean(ours) <= 1.1 * np.mean(theirs)

    def test_coins_are_fair(self) -> None:
        """Over many slices the errors at the median cancel: no side is preferred."""
        values = np.random.default_rng(2).random((400, 999))
        states = Kll(8).lift(pl.Series(values.ravel()), np.arange(401) * 999)
        ranks = [ds.kll_doubles_sketch.deserialize(state).get_rank(0.5) for state in states]
        errors = np.array(ranks) - (values < 0.5).mean(1)
        assert abs(errors.mean()) < 4 * errors.std() / 20

    @pytest.mark.parametrize("n", [1, 2, 3, 199, 200])
    def test_exact_while_small(self, n: int) -> None:
        values = np.random.default_rng(n).normal(size=n)
        expected = np.quantile(values, QS, method="inverted_cdf").tolist()
        assert Kll().quantiles(state_of(Kll(), pl.Series(values)), QS) == expected

    @pytest.mark.parametrize("k", [8, 20, 200, 4000])
    def test_the_library_goes_on_with_a_state(self, k: int) -> None:
        rng = np.random.default_rng(k)
        for n in (1, 2, k, k + 1, 3 * k, 17 * k + 3, 100_000):
            values = rng.normal(size=n)
            sketch = ds.kll_doubles_sketch.deserialize(state_of(Kll(k), pl.Series(values)))
            assert sketch.serialize() == state_of(Kll(k), pl.Series(values))
            assert (sketch.n, sum(weight for _, weight in sketch)) == (n, n)
            more = rng.normal(size=3 * k)
            sketch.update(more)
            sketch.merge(ds.kll_doubles_sketch.deserialize(state_of(Kll(k), pl.Series(values))))
            merged = Kll(k).merge([sketch.serialize(), state_of(Kll(k), pl.Series(more))])
            seen = np.concatenate([values, more, values, more])
            assert ds.kll_doubles_sketch.deserialize(merged).n == len(seen)
            assert rank_error(seen, Kll(k).quantiles(merged, QS), QS) <= error_of(Kll(k))

    def test_nan_and_zero(self) -> None:
        nan = float("nan")
        values = pl.Series([nan, 1.0, nan, 3.0, -0.0, nan])
        states = Kll().lift(values, np.array([0, 3, 5, 5, 6]))
        assert [state and Kll().quantiles(state, [0, 0.5, 1]) for state in states] == [
            [1, 1, 1],
            [0, 0, 3],
            None,
            None,
        ]
        assert states[1] == state_of(Kll(), pl.Series([3.0, 0.0]))
        infinite = state_of(Kll(), pl.Series([float("inf"), 1.0, float("-inf")]))
        assert Kll().quantiles(infinite, [0, 0.5, 1]) == [float("-inf"), 1, float("inf")]

    def test_types(self) -> None:
        day = dt.datetime(2024, 5, 1)
        for values, expected in [
            (pl.Series([1, 2, 3], dtype=pl.UInt8), 2.0),
            (pl.Series([Decimal("1.5"), Decimal("2.5"), Decimal("3.5")]), 2.5),
            (
                pl.Series([day, day, day], dtype=pl.Datetime("us")),
                day.replace(tzinfo=dt.UTC).timestamp() * 1e6,
            ),
        ]:
            assert Kll().quantiles(state_of(Kll(), values), [0.5]) == [expected]
        with pytest.raises(TypeError, match="numbers or times, not String"):
            Kll().lift(pl.Series(["1"]), np.array([0, 1]))

    def test_refusals(self) -> None:
        state = state_of(Kll(), pl.Series(np.arange(1000.0)))
        with pytest.raises(ValueError, match="k=100"):
            Kll(100).merge([state])
        floats = ds.kll_floats_sketch(200)
        floats.update(np.arange(1000, dtype=np.float32))
        with pytest.raises(ValueError, match=r"KLL sketch of doubles|buffer size"):
            Kll().merge([floats.serialize()])
        with pytest.raises(ValueError, match="rank"):
            Kll().quantiles(state, [1.1])
        with pytest.raises(ValueError, match="k must be"):
            Kll(4)
        empty = Kll().merge([ds.kll_doubles_sketch(200).serialize()])
        assert empty == ds.kll_doubles_sketch(200).serialize()
        assert Kll().quantiles(empty, [0.5, 1]) == [None, None]
        assert Kll().quantiles(Kll().merge([empty, state]), [1]) == [999]


def one_by_one(values: pl.Series, lg_k: int = 12, bits: str = "HLL_8") -> Any:
    sketch = ds.hll_sketch(lg_k, getattr(ds.tgt_hll_type, bits))
    for value in values.to_list():
        sketch.update(value)
    return sketch


def texts(n: int) -> list[str]:
    """Strings of 1 to 90 bytes, of one to four bytes a character."""
    return ["aé中🌾"[i % 4] * (i % 23) + str(i) for i in range(n)]


SIZES = [1, 7, 8, 9, 24, 25, 48, 96, 97, 383, 384, 385, 3000]


class TestHll:
    @pytest.mark.parametrize("lg_k", [4, 7, 8, 12])
    @pytest.mark.parametrize("kind", ["int", "float", "text"])
    def test_equals_the_library_fed_one_by_one(self, kind: str, lg_k: int) -> None:
        rng = np.random.default_rng(lg_k)
        for n in SIZES:
            numbers = rng.integers(-(2**63), 2**63 - 1, n)
            values = {
                "int": pl.Series(numbers),
                "float": pl.Series(rng.normal(size=n)),
                "text": pl.Series(texts(n)),
            }[kind]
            theirs, ours = one_by_one(values, lg_k), state_of(Hll(lg_k), values)
            assert Hll(lg_k).merge([theirs.serialize_compact()]) == ours
            assert Hll(lg_k).merge([theirs.serialize_updatable()]) == ours
            read = ds.hll_sketch.deserialize(ours)
            assert ours[7] == theirs.serialize_compact()[7], "list, set or registers, as the library would choose"
            if ours[7] & 3 < 2:
                assert read.get_estimate() == theirs.get_estimate()
            else:
                assert ours[40:] == theirs.serialize_compact()[40:], "the registers"
                merged = bytearray(theirs.serialize_compact())
                merged[5] |= 16
                assert read.get_estimate() == ds.hll_sketch.deserialize(bytes(merged)).get_estimate()

    @pytest.mark.parametrize("n", [5, 100, 5000])
    def test_reads_every_form_of_the_library(self, n: int) -> None:
        values = pl.Series(np.arange(n))
        for bits in ("HLL_4", "HLL_6", "HLL_8"):
            sketch = one_by_one(values, 12, bits)
            for state in (sketch.serialize_compact(), sketch.serialize_updatable()):
                assert Hll().merge([state]) == state_of(Hll(), values)
                assert Hll().estimate(state) == Hll().estimate(state_of(Hll(), values))

    @trees
    @pytest.mark.parametrize("distinct", [10, 300, 2_000, 60_000])
    def test_one_state_whatever_the_tree_and_the_order(
        self, distinct: int, tree: Callable[[Merge, Sequence[bytes]], bytes]
    ) -> None:
        rng = np.random.default_rng(3)
        values = pl.Series(np.concatenate([np.arange(distinct), rng.integers(0, distinct, 20_000)]))
        expected = state_of(Hll(), values)
        states = lifted(Hll(), values.sample(fraction=1, shuffle=True, seed=1), 40)
        assert tree(Hll().merge, states) == tree(Hll().merge, states[::-1]) == expected
        union = ds.hll_union(12)
        for state in states:
            union.update(ds.hll_sketch.deserialize(state))
        assert union.get_estimate() == pytest.approx(Hll().estimate(expected), abs=0.5 + 1e-9 * distinct)

    def test_relative_error(self) -> None:
        errors = []
        for seed in range(60):
            values = pl.Series(np.random.default_rng(seed).integers(0, 2**62, 4_000 + 300 * seed))
            estimate = Hll().estimate(Hll().merge(lifted(Hll(), values, 5)))
            errors.append(abs(estimate / len(values) - 1))
        assert np.mean(np.array(errors) > error_of(Hll())) <= 0.1
        assert max(errors) <= 1.2 * error_of(Hll(), 3)
        assert error_of(Hll(), 1) < error_of(Hll()) < error_of(Hll(), 3)
        assert error_of(Hll()) == pytest.approx(0.0325, abs=0.002)

    def test_slices(self) -> None:
        states = Hll().lift(pl.Series(["a", "b", "a", "", ""]), np.array([0, 0, 3, 3, 5]))
        assert [state and Hll().estimate(state) for state in states] == [None, 2, None, None]

    def test_values_that_are_one(self) -> None:
        nan = np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
        floats = pl.Series([0.0, -0.0, 1.0, *nan])
        assert Hll().estimate(state_of(Hll(), floats)) == 3
        assert state_of(Hll(), floats) == Hll().merge([one_by_one(floats).serialize_compact()])
        same = [pl.Series([3, 200], dtype=kind) for kind in (pl.Int16, pl.UInt8, pl.Int64, pl.UInt64)]
        assert len({state_of(Hll(), values) for values in same}) == 1
        assert state_of(Hll(), pl.Series([0.5, 2.0], dtype=pl.Float32)) == state_of(Hll(), pl.Series([0.5, 2.0]))
        text = pl.Series(["x", "yy"])
        for kind in (pl.Binary(), pl.Categorical(), pl.Enum(["x", "yy"])):
            assert state_of(Hll(), text.cast(kind)) == state_of(Hll(), text)
        with pytest.raises(TypeError, match="List"):
            Hll().lift(pl.Series([[1]]), np.array([0, 1]))

    def test_long_strings(self) -> None:
        values = pl.Series(["x" * n for n in range(1, 200)] + ["long" * 5000])
        assert state_of(Hll(), values) == Hll().merge([one_by_one(values).serialize_compact()])

    def test_refusals(self) -> None:
        with pytest.raises(ValueError, match="lg_k=11"):
            Hll(11).merge([state_of(Hll(), pl.Series([1]))])
        with pytest.raises(ValueError, match="lg_k=12"):
            Hll().merge([state_of(Kll(), pl.Series([1.0]))])
        with pytest.raises(ValueError, match="from 4 to 21"):
            Hll(3)
        with pytest.raises(ValueError, match="offsets"):
            Hll().lift(pl.Series([1, 2]), np.array([0, 1]))
        empty = Hll().merge([ds.hll_sketch(12).serialize_compact()])
        assert (Hll().estimate(empty), ds.hll_sketch.deserialize(empty).is_empty()) == (0, True)


def zipf(n: int, seed: int = 5) -> Array:
    return np.random.default_rng(seed).zipf(1.3, n) % 100_000


class TestFrequent:
    @trees
    @pytest.mark.parametrize("lg_max_map", [3, 6, 10])
    def test_bounds(self, lg_max_map: int, tree: Callable[[Merge, Sequence[bytes]], bytes]) -> None:
        values = zipf(30_000)
        counts = Counter(values.tolist())
        sketch = Frequent(pl.Int64(), lg_max_map)
        for slices in (1, 25):
            state = tree(sketch.merge, lifted(sketch, pl.Series(values), slices))
            top = sketch.top(state, sketch.capacity)
            assert len(top) <= sketch.capacity
            for item, count, lower in top.iter_rows():
                assert lower <= counts[item] <= count <= lower + error_of(sketch) * len(values)
            heavy = {item for item, count in counts.items() if count > error_of(sketch) * len(values)}
            assert heavy, "the data must have something to find"
            assert heavy <= set(top["value"])

    def test_nothing_stands_out(self) -> None:
        """The worst case of every bound: all values differ, twice as many as fit."""
        sketch = Frequent(pl.Int64(), 5)
        states = lifted(sketch, pl.Series(np.arange(10_000)), 30)
        top = sketch.top(pairs(sketch.merge, states), 5)
        assert (top["count"] <= error_of(sketch) * 10_000).all()
        assert ds.frequent_items_sketch.deserialize(sketch.merge(states), ds.PyLongsSerDe()).num_active_items <= 24

    @trees
    def test_exact_while_small(self, tree: Callable[[Merge, Sequence[bytes]], bytes]) -> None:
        values = pl.Series(["wheat", "rye", "", "wheat", "オート麦", "rye"] * 50)
        sketch = Frequent(pl.String())
        state = tree(sketch.merge, lifted(sketch, values.sample(fraction=1, shuffle=True, seed=2), 20))
        assert state == state_of(sketch, values), "one state, whatever the tree"
        assert sketch.top(state, 3).rows() == [("rye", 100, 100), ("wheat", 100, 100), ("", 50, 50)]

    @pytest.mark.parametrize(
        "values",
        [
            pl.Series([3, -1, 3], dtype=pl.Int8),
            pl.Series([2**64 - 1, 1, 2**64 - 1], dtype=pl.UInt64),
            pl.Series([2**100, 1, 2**100], dtype=pl.Int128),
            pl.Series([1.5, -0.0, 1.5], dtype=pl.Float32),
            pl.Series([float("nan"), 1.0, float("nan")]),
            pl.Series([True, False, True]),
            pl.Series(["é", "b", "é"]),
            pl.Series(["é", "b", "é"], dtype=pl.Categorical),
            pl.Series(["é", "b", "é"], dtype=pl.Enum(["b", "é"])),
            pl.Series([b"\xff\x00", b"", b"\xff\x00"]),
            pl.Series([Decimal("1.50"), Decimal("2.25"), Decimal("1.50")]),
            pl.Series([dt.date(1960, 1, 2), dt.date(2024, 1, 1), dt.date(1960, 1, 2)]),
            pl.Series([dt.time(1), dt.time(2), dt.time(1)]),
            pl.Series([dt.timedelta(1), dt.timedelta(2), dt.timedelta(1)]),
            pl.Series([dt.datetime(1960, 1, 2, 3), dt.datetime(2024, 1, 1), dt.datetime(1960, 1, 2, 3)]),
            pl.Series([1, 2, 1]).cast(pl.Datetime("ns", "UTC")),
        ],
        ids=lambda values: str(values.dtype),
    )
    def test_items_come_back_in_their_type(self, values: pl.Series) -> None:
        sketch = Frequent(values.dtype)
        top = sketch.top(sketch.merge(lifted(sketch, values, 2)), 10)
        assert top["value"].dtype == values.dtype
        assert top["value"].equals(values[:2].alias("value"))
        assert top["count"].to_list() == [2, 1]

    def test_the_library_reads_and_writes_states(self) -> None:
        values = zipf(20_000)
        counts = Counter(map(str, values.tolist()))
        ours = Frequent(pl.String())
        sketch = ds.frequent_strings_sketch.deserialize(state_of(ours, pl.Series(values).cast(pl.String)))
        assert sketch.total_weight == 20_000
        for item in ("1", "2", "77"):
            assert sketch.get_lower_bound(item) <= counts[item] <= sketch.get_upper_bound(item)
        other = ds.frequent_strings_sketch(10)
        for value in values[:5000].tolist():
            other.update(str(value))
        sketch.merge(other)
        counts.update(map(str, values[:5000].tolist()))
        for item, count, lower in ours.top(ours.merge([sketch.serialize()]), 50).iter_rows():
            assert lower <= counts[item] <= count <= lower + sketch.epsilon * 25_000

        kinds: list[tuple[pl.DataType, Any, Any]] = [
            (pl.Int64(), 7, ds.PyLongsSerDe()),
            (pl.Float64(), 7.0, ds.PyDoublesSerDe()),
        ]
        for dtype, seven, serde in kinds:
            state = state_of(Frequent(dtype), pl.Series([7, 7, -2], dtype=dtype))
            items = ds.frequent_items_sketch.deserialize(state, serde)
            assert (items.get_estimate(seven), items.total_weight) == (2, 3)
            assert Frequent(dtype).merge([items.serialize(serde)]) == state

    def test_slices_and_refusals(self) -> None:
        sketch = Frequent(pl.Int64())
        states = sketch.lift(pl.Series([1, 1, 2]), np.array([0, 2, 2, 3]))
        assert [state and sketch.top(state, 1).row(0) for state in states] == [(1, 2, 2), None, (2, 1, 1)]
        with pytest.raises(ValueError, match="lg_max_map=4"):
            Frequent(pl.Int64(), 4).merge([state for state in states if state])
        with pytest.raises(ValueError, match="from 3 to 21"):
            Frequent(pl.Int64(), 2)
        with pytest.raises(TypeError, match="List"):
            Frequent(pl.List(pl.Int64()))
        empty = ds.frequent_strings_sketch(10).serialize()
        assert Frequent(pl.String()).merge([empty]) == empty
        assert Frequent(pl.String()).top(empty, 3).is_empty()
        assert {Frequent(pl.String()), Frequent(pl.String())} == {Frequent(pl.String())}


@pytest.mark.parametrize("sketch", [Kll(), Hll(), Frequent(pl.Int64(), 6)], ids=lambda sketch: type(sketch).__name__)
def test_replay_gives_the_same_state(sketch: Sketch) -> None:
    """Neither the order of events, nor that of states, nor the process changes a state."""
    values = pl.Series(zipf(20_000))
    states = lifted(sketch, values, 30)
    assert states == lifted(sketch, values, 30)
    assert sketch.merge(states) == sketch.merge(states[::-1])
    assert state_of(sketch, values) == state_of(sketch, values.sample(fraction=1, shuffle=True, seed=4))
    code = (
        "import sys, numpy as np, polars as pl; from windrow.core.operators.sketch_formats import *;"
        f"states = {sketch!r}.lift(pl.Series(np.arange(5000) % 1500), np.array([0, 3000, 5000]));"
        f"assert 'datasketches' not in sys.modules; print({sketch!r}.merge(states).hex())"
    ).replace("dtype=Int64", "dtype=pl.Int64()")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = sketch.lift(pl.Series(np.arange(5000) % 1500), np.array([0, 3000, 5000]))
    assert run.stdout.strip() == sketch.merge([state for state in here if state]).hex()


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    state = state_of(Hll(), pl.Series([1, 2]))
    with pytest.raises(ImportError, match=r"pip install 'windrow\[sketches\]'"):
        Hll().estimate(state)


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning")
class TestSpark:
    """Spark's sketches and ours of the same values are one sketch, and each reads the other's."""

    def test_hll(self, spark: Any) -> None:
        for n in (5, 300, 20_000):
            frame = (
                spark.range(n)
                .selectExpr(
                    "id * 7919 - 1000 AS b",
                    "CAST(id AS INT) AS i",
                    "concat(repeat('é', CAST(id % 30 AS INT)), id) AS t",
                )
                .selectExpr("*", "CAST(t AS BINARY) AS x")
            )
            sketches = [f"hll_sketch_agg({c}, 12)" for c in ("b", "i", "t", "x")]
            theirs = [bytes(state) for state in frame.selectExpr(*sketches).first()]
            ids = range(n)
            text = pl.Series(["é" * (i % 30) + str(i) for i in ids])
            columns = [
                pl.Series([i * 7919 - 1000 for i in ids]),
                pl.Series(ids, dtype=pl.Int32),
                text,
                text.cast(pl.Binary),
            ]
            ours = [state_of(Hll(), column) for column in columns]
            assert [Hll().merge([state]) for state in theirs] == ours
            more = state_of(Hll(), pl.Series(range(-n, 0)))
            both = Hll().merge([ours[0], more])
            rows = spark.createDataFrame([(state,) for state in (theirs[0], ours[0], more)], "s BINARY")
            union = rows.selectExpr("hll_union_agg(s) AS s").selectExpr("s", "hll_sketch_estimate(s)").first()
            assert Hll().merge([bytes(union[0])]) == both
            assert union[1] == pytest.approx(2 * n, rel=error_of(Hll(), 3))
            read = spark.createDataFrame([(both,)], "s BINARY").selectExpr("hll_sketch_estimate(s)").first()
            assert read[0] == Hll().estimate(both)

    def test_kll(self, spark: Any) -> None:
        values = np.random.default_rng(7).normal(size=20_000)
        parts = [values[:1], values[1:150], values[150:9000], values[9000:]]
        states = [(state_of(Kll(), pl.Series(part)),) for part in parts]
        merged = spark.createDataFrame(states, "s BINARY").selectExpr("kll_merge_agg_double(s) AS s")
        quantiles = ", ".join(map(str, QS))
        row = merged.selectExpr(
            "kll_sketch_get_n_double(s)", f"kll_sketch_get_quantile_double(s, array({quantiles}))", "s"
        ).first()
        assert row[0] == len(values)
        assert rank_error(values, row[1], QS) <= error_of(Kll())
        assert Kll().quantiles(bytes(row[2]), QS) == row[1], "the same meaning of q"
        doubles = spark.createDataFrame([(float(x),) for x in values[:5000]] + [(float("nan"),)], "x DOUBLE")
        theirs = bytes(doubles.selectExpr("kll_sketch_agg_double(x)").first()[0])
        state = Kll().merge([theirs, state_of(Kll(), pl.Series(values[5000:]))])
        assert rank_error(values, Kll().quantiles(state, QS), QS) <= error_of(Kll())
        assert ds.kll_doubles_sketch.deserialize(state).n == len(values), "Spark leaves NaN out, too"

    def test_frequent(self, spark: Any) -> None:
        values = zipf(5000)
        frame = spark.createDataFrame([(int(x), str(x), float(x)) for x in values], "b BIGINT, t STRING, d DOUBLE")
        for column, dtype in (("b", pl.Int64()), ("t", pl.String()), ("d", pl.Float64())):
            sketch = Frequent(dtype)
            ours = state_of(sketch, pl.Series(values).cast(dtype))
            accumulated = frame.selectExpr(f"approx_top_k_accumulate({column}, {sketch.capacity}) AS s")
            theirs = bytes(accumulated.first()[0]["sketch"])
            counts = Counter(pl.Series(values).cast(dtype).to_list())
            for item, count, lower in sketch.top(sketch.merge([theirs, ours]), 20).iter_rows():
                assert lower <= 2 * counts[item] <= count
            schema = accumulated.schema
            row = accumulated.first()[0].asDict() | {"sketch": ours + bytes(8)}  # Spark adds the number of nulls
            read = spark.createDataFrame([(row,)], schema).selectExpr("approx_top_k_estimate(s, 5)").first()[0]
            assert [tuple(pair) for pair in read] == sketch.top(ours, 5).select("value", "count").rows()
