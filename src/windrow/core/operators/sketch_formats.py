"""Sketches: states of bounded size behind `approx_quantile`, `approx_distinct` and `top_k`.

A state is the serialized form of an Apache DataSketches sketch, one `bytes` per slice, which Spark
(`kll_*_double`, `hll_*`, `approx_top_k_*`) and the DataSketches of other languages read and write:

    values, offsets ──lift──▶ a state per slice ──merge──▶ one state ──quantiles | estimate | top──▶ result

Slice i is the non-null values[offsets[i] : offsets[i + 1]], and has no state where it is empty.

| sketch                           | answers         | error                                      |
| -------------------------------- | --------------- | ------------------------------------------ |
| `Kll(k=200)`                     | quantiles       | 1.3 % of the rank, in 99 of 100 sketches   |
| `Hll(lg_k=12)`                   | distinct values | 3.3 % relative, at two standard deviations |
| `Frequent(dtype, lg_max_map=10)` | frequent values | 0.13 % of the number of events, always     |

lift and merge write that form themselves, with NumPy and Polars: the library takes arrays for KLL only, and windrow
runs no Python per event; its KLL tosses coins that cannot be seeded, and its HLL and frequent items depend on the order
of arrival, so that a replay would give another answer. Here a state depends on a slice's values and a merge on the
states, never on their order, and an HLL state is the same for every tree of merges. Only results, and HLL
states with 4 or 6 bits a register, need the library itself.
Karnin et al. 2016 (KLL); Flajolet et al. 2007 (HLL); Misra, Gries 1982 and Agarwal et al. 2012 (frequent).
"""

import importlib
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from windrow.core.arrays.checks import MOST

Array = np.ndarray[Any, np.dtype[Any]]
_TEXT = (pl.String, pl.Binary, pl.Categorical, pl.Enum, pl.Decimal, pl.Int128, pl.UInt128)  # kept as text
_SEED, _C1, _C2 = np.uint64(9001), np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)  # MurmurHash3
_UNLIKE = "windrow writes no such sketch"
_LOW_BYTES = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)


def _library() -> Any:
    try:
        return importlib.import_module("datasketches")
    except ImportError as error:
        raise ImportError("sketches need Apache DataSketches: pip install 'windrow[sketches]'") from error


def _slice_ids(values: pl.Series, offsets: Array) -> Array:
    """For every value the number of its slice."""
    lengths = np.diff(offsets)
    if offsets[0] != 0 or offsets[-1] != len(values) or (lengths < 0).any():
        raise ValueError(f"offsets must rise from 0 to the number of values, {len(values)}")
    return np.repeat(np.arange(len(lengths), dtype=np.uint64), lengths)


def _ranges(ids: Array, offsets: Array) -> Iterator[tuple[int, int]]:
    """For every slice where it begins and ends in the sorted ids."""
    return pairwise(np.searchsorted(ids, np.arange(len(offsets), dtype=np.uint64)).tolist())


def _check(state: bytes, family: int, name: str, made: int, wanted: int) -> None:
    if state[2] != family or made != wanted:
        raise ValueError(f"not the serialized form of a DataSketches sketch with {name}={wanted}")


def _doubles(values: pl.Series) -> Array:
    if not (values.dtype.is_numeric() or values.dtype.is_temporal() or values.dtype in (pl.Boolean, pl.Null)):
        raise TypeError(f"quantiles need numbers or times, not {values.dtype}")
    number = values.to_physical() if values.dtype.is_temporal() else values
    return number.cast(pl.Float64).to_numpy() + 0.0  # which makes -0.0 and 0.0 one value


def _items(values: pl.Series) -> pl.Series:
    """Integers, times and Booleans as int64; floats as the int64 bits of a double; the rest as text."""
    dtype = values.dtype
    if dtype in _TEXT:
        return values if dtype == pl.Binary else values.cast(pl.String)
    if dtype.is_float():
        doubles = _doubles(values)
        return pl.Series(np.where(np.isnan(doubles), np.nan, doubles).view(np.int64))  # one NaN
    if dtype.is_integer() or dtype.is_temporal() or dtype in (pl.Boolean, pl.Null):
        return pl.Series(values.to_physical().to_numpy().astype(np.int64))  # uint64: the same bits
    raise TypeError(f"cannot count values of type {dtype}, only numbers, times, text and binary")


def _octets(items: pl.Series) -> tuple[Array, Array]:
    """The bytes of text items one after another, and the length of each."""
    if items.dtype == pl.Binary:
        joined, lengths = bytes.fromhex(items.bin.encode("hex").str.join("").item()), items.bin.size()
    else:
        joined, lengths = items.str.join("").item().encode(), items.str.len_bytes()
    return np.frombuffer(joined, np.uint8), lengths.to_numpy().astype(np.int64)


@lru_cache(maxsize=1024)
def _capacities(k: int, levels: int) -> tuple[int, ...]:
    """What each level of a KLL sketch may hold, lowest first: k at the top, then 2/3 of the one above."""
    return tuple(max(8, ((2 * k << depth) // 3**depth + 1) >> 1) for depth in reversed(range(levels)))


@dataclass(frozen=True)
class Kll:
    """Quantiles of values as doubles (integers beyond 2^53 are rounded; times are their integers).

    NaN is left out: windrow puts it above every number, KLL has no such place, and Spark's KLL leaves it out. An item
    on level h stands for 2^h values. From a full level every second item goes up, the odd or the even by the toss of a
    coin, so that errors cancel. The coin is a hash of the items: whoever chooses the values could foresee it.
    """

    k: int = 200

    def __post_init__(self) -> None:
        if not 8 <= self.k <= 65535:
            raise ValueError(f"k must be from 8 to 65535, not {self.k}")

    def lift(self, values: pl.Series, offsets: Array) -> list[bytes | None]:
        ids, doubles = _slice_ids(values, offsets), _doubles(values)
        ids, doubles = ids[number := ~np.isnan(doubles)], doubles[number]
        slices = (doubles[a:b] for a, b in _ranges(ids, offsets))
        return [self._write(len(x), x.min(), x.max(), [x]) if len(x) else None for x in slices]

    def merge(self, states: Sequence[bytes]) -> bytes:
        counts, lows, highs, stacks = zip(*map(self._read, states), strict=True)
        height = max(map(len, stacks))
        levels = [np.concatenate([stack[h] for stack in stacks if h < len(stack)]) for h in range(height)]
        return self._write(sum(counts), min(lows), max(highs), levels)

    def _write(self, n: int, low: float, high: float, levels: list[Array]) -> bytes:
        if n < 2:
            return struct.pack(f"<4BH2B{n}d", 2, n + 1, 15, 4 if n else 1, self.k, 8, 0, *[low] * n)
        k, levels = self.k, self._compress(levels)
        sizes = [len(level) for level in levels]
        places = np.cumsum([sum(_capacities(k, len(levels))) - sum(sizes), *sizes[:-1]]).astype(np.uint32)
        head = struct.pack("<4BH2BQH2B", 5, 1, 15, 2, k, 8, 0, n, k, len(levels), 0) + places.tobytes()
        return head + struct.pack("<2d", low, high) + b"".join(level.tobytes() for level in levels)

    def _compress(self, levels: list[Array]) -> list[Array]:
        """Halve levels that are too full, lowest first, until the whole fits; leave none empty; sort all."""
        kept, total = list[Array](), sum(map(len, levels))
        for height, level in enumerate(levels):  # which may grow at its end while it is walked
            level, capacities = np.sort(level), _capacities(self.k, len(levels))
            if total > sum(capacities) and len(level) > capacities[height]:
                rest, coin = 2 - len(level) % 2, (zlib.crc32(level.data, height) * 0x9E3779B1 >> 31) & 1
                half = level[rest + coin :: 2]
                levels[height + 1 : height + 2] = [np.concatenate([*levels[height + 1 : height + 2], half])]
                level, total = level[:rest], total - len(half)
            kept.append(level)
        return kept

    def _read(self, state: bytes) -> tuple[int, float, float, list[Array]]:
        short = state[3] & 5  # empty, or a single item
        _check(state, 15, "k", struct.unpack_from("<H", state, 4 if short else 16)[0], self.k)
        if short:
            items = np.frombuffer(state[8:], np.float64)
            return len(items), items.min(initial=np.inf), items.max(initial=-np.inf), [items]
        n, height = struct.unpack_from("<Q2xB", state, 8)
        places = np.frombuffer(state, np.uint32, height, 20).astype(np.int64)
        low, high = struct.unpack_from("<2d", state, 20 + 4 * height)
        items = np.frombuffer(state[36 + 4 * height :], np.float64)
        if len(items) != sum(_capacities(self.k, height)) - places[0]:
            raise ValueError("not the compact form of a KLL sketch of doubles")
        return n, low, high, np.split(items, places[1:] - places[0])

    def check(self, state: bytes) -> None:
        """Refuse bytes that `lift` and `merge` cannot have given; a ValueError, an IndexError or a struct.error."""
        n, low, high, levels = self._read(state)
        items = np.concatenate(levels)
        weight = sum(len(level) << height for height, level in enumerate(levels))
        is_inside = bool(len(items)) and low <= items.min() and items.max() <= high  # not so with NaN
        if not (is_inside and weight == n <= MOST and self.merge([state]) == state):
            raise ValueError(_UNLIKE)

    def quantiles(self, state: bytes, qs: Sequence[float]) -> list[float | None]:
        """For each q the smallest kept value v with at least the share q of all values ≤ v; None if empty.

        As in Spark's `percentile_approx` never an interpolated value; q=0 and q=1 are the exact extremes.
        """
        sketch = _library().kll_doubles_sketch.deserialize(state)
        if sketch.is_empty():
            return [None] * len(qs)
        ends: dict[float, Any] = {0: sketch.get_min_value(), 1: sketch.get_max_value()}
        return [ends.get(q, v) for q, v in zip(qs, sketch.get_quantiles(list(qs), True), strict=True)]


def _rotate(x: Array, bits: int) -> Array:
    return np.asarray((x << np.uint64(bits)) | (x >> np.uint64(64 - bits)))


def _coupons(h1: Array, h2: Array, lengths: Any) -> Array:
    """The end of MurmurHash3, and what HLL keeps of it: 26 bits of address under 1 + the leading zeros."""
    h1, h2 = h1 ^ lengths, h2 ^ lengths
    h = np.stack([h1 + h2, h1 + h2 + h2])
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h = (h ^ (h >> np.uint64(33))) * np.uint64(factor)
    h ^= h >> np.uint64(33)
    h1, h2 = h[0] + h[1], h[0] + h[1] + h[1]
    for shift in (1, 2, 4, 8, 16, 32):
        h2 |= h2 >> np.uint64(shift)
    rank = np.minimum(64 - np.bitwise_count(h2), 62).astype(np.uint32) + np.uint32(1)
    return np.asarray((rank << np.uint32(26)) | (h1 & np.uint64(0x3FFFFFF)).astype(np.uint32))


def _hash_numbers(items: pl.Series) -> Array:
    """MurmurHash3 x64 128, seed 9001, of each 8-byte value, as in every DataSketches library."""
    words = items.to_numpy().view(np.uint64)
    return _coupons(_SEED ^ (_rotate(words * _C1, 31) * _C2), np.full(len(words), _SEED), np.uint64(8))


def _hash_text(items: pl.Series) -> Array:
    """The same hash of byte strings: a step per 16 bytes of the longest, over all that reach so far."""
    octets, lengths = _octets(items)
    padded = np.concatenate([octets, np.zeros(16, np.uint8)])
    words: Array = np.ndarray((len(padded) - 7,), np.uint64, padded, strides=(1,))  # a word at every byte
    starts, blocks, alive = np.cumsum(lengths) - lengths, lengths >> 4, np.arange(len(lengths))
    h1, h2 = np.full(len(lengths), _SEED), np.full(len(lengths), _SEED)
    for block in range(int(blocks.max())):
        alive = alive[blocks[alive] > block]
        at, a, b = starts[alive] + 16 * block, h1[alive], h2[alive]
        a = (_rotate(a ^ (_rotate(words[at] * _C1, 31) * _C2), 27) + b) * np.uint64(5) + np.uint64(0x52DCE729)
        b = _rotate(b ^ (_rotate(words[at + 8] * _C2, 33) * _C1), 31) + a
        h1[alive], h2[alive] = a, b * np.uint64(5) + np.uint64(0x38495AB5)
    at, rest = starts + 16 * blocks, lengths & 15
    h1 ^= _rotate((words[at] & _LOW_BYTES[np.minimum(rest, 8)]) * _C1, 31) * _C2
    h2 ^= _rotate((words[at + 8] & _LOW_BYTES[np.maximum(rest - 8, 0)]) * _C2, 33) * _C1
    return _coupons(h1, h2, lengths.view(np.uint64))


@dataclass(frozen=True)
class Hll:
    """Distinct values: integers as int64, floats as doubles (NaN is one value, -0.0 is 0.0), text as UTF-8.

    As Spark's `hll_sketch_agg` for int, bigint, string, binary; it takes no others. Times are integers: units must
    agree (in Spark `unix_micros`); decimals, categories, 128-bit integers are text. Empty strings do not count, as in
    DataSketches and Spark. An estimate depends on the values, not on the order they came in.
    """

    lg_k: int = 12

    def __post_init__(self) -> None:
        if not 4 <= self.lg_k <= 21:
            raise ValueError(f"lg_k must be from 4 to 21, not {self.lg_k}")

    def lift(self, values: pl.Series, offsets: Array) -> list[bytes | None]:
        events = pl.DataFrame({"slice": _slice_ids(values, offsets), "item": _items(values)})
        if text := values.dtype in _TEXT:
            events = events.unique().filter(pl.col("item").cast(pl.Binary) != b"")
        parts = (x["item"] for x in events.iter_slices(1 << 15) if len(x))  # small enough for the cache
        hashed = [_hash_text(part) if text else _hash_numbers(part) for part in parts]
        keys = events["slice"].to_numpy() << np.uint64(32) | np.concatenate([np.empty(0, np.uint32), *hashed])
        keys = pl.Series(keys).unique().sort().to_numpy()
        ranges, coupons = _ranges(keys >> np.uint64(32), offsets), keys.astype(np.uint32)
        return [self._write(coupons[a:b], None) if b > a else None for a, b in ranges]

    def merge(self, states: Sequence[bytes]) -> bytes:
        coupons, filled = zip(*map(self._read, states), strict=True)
        registers = [x for x in filled if x is not None]
        return self._write(np.unique(np.concatenate(coupons)), np.maximum.reduce(registers) if registers else None)

    def _write(self, coupons: Array, registers: Array | None) -> bytes:
        """The compact form of distinct, sorted coupons: a list, a set, or registers flagged as merged."""
        lg_k, count = self.lg_k, len(coupons)
        if registers is None and count <= (3 << lg_k >> 5 if lg_k >= 8 else 7):
            if count < 8:
                return bytes([2, 1, 7, lg_k, 3, 8 if count else 12, count, 8]) + coupons.tobytes()
            lg_size = next(lg for lg in range(5, lg_k) if count * 4 <= 3 << lg)
            return struct.pack("<8BI", 3, 1, 7, lg_k, lg_size, 8, 0, 9, count) + coupons.tobytes()
        registers = np.zeros(1 << lg_k, np.uint8) if registers is None else registers
        at, ranks = coupons & np.uint32((1 << lg_k) - 1), (coupons >> np.uint32(26)).astype(np.uint8)
        np.maximum.at(registers, at, ranks)
        counts = np.bincount(registers, minlength=64)
        low, high = (counts * np.exp2(-np.arange(64.0))).reshape(2, 32).sum(1)  # sums of powers of two: exact
        head = struct.pack("<8B3d2I", 10, 1, 7, lg_k, 0, 24, 0, 10, 0.0, low, high, counts[0], 0)
        return head + registers.tobytes()

    def _read(self, state: bytes) -> tuple[Array, Array | None]:
        _check(state, 7, "lg_k", state[3], self.lg_k)
        if state[7] & 3 < 2:
            coupons = np.frombuffer(state[4 * state[0] :], np.uint32)
            return coupons[coupons != 0], None
        if state[7] >> 2 & 3 != 2:  # four or six bits a register
            union = (library := _library()).hll_union(self.lg_k)
            union.update(library.hll_sketch.deserialize(state))
            state = union.get_result(library.tgt_hll_type.HLL_8).serialize_compact()
        return np.empty(0, np.uint32), np.frombuffer(state, np.uint8, 1 << self.lg_k, 40)

    def check(self, state: bytes) -> None:
        """Refuse bytes that `lift` and `merge` cannot have given; a ValueError, an IndexError or a struct.error."""
        if state[7] >> 2 & 3 != 2 or self.merge([state]) != state:  # 4 and 6 bits a register are not ours
            raise ValueError(_UNLIKE)

    def estimate(self, state: bytes) -> int:
        """The number of distinct values; of a state from elsewhere, too, it depends on the values alone."""
        return int(_library().hll_sketch.deserialize(self.merge([state])).get_estimate() + 0.5)


@dataclass(frozen=True)
class Frequent:
    """The most frequent values of a column of type `dtype`, in that type.

    A state keeps at most `capacity` items. If there are more, the largest count beyond is taken off all, and what stays
    positive is kept. All ever taken off is the state's offset; offset · (capacity + 1) ≤ events in every tree of merges
    (the library's bound: 3.5 / 2^lg_max_map). lift has no Python per item; merge and top have, per kept item. Items are
    UTF-8 (`frequent_strings_sketch`) or 8 bytes (`frequent_items_sketch` with `PyLongsSerDe` or `PyDoublesSerDe`). So
    are Spark's `approx_top_k_accumulate(x, capacity)` for string, bigint, double; 8 bytes of null count follow.
    """

    dtype: pl.DataType
    lg_max_map: int = 10

    def __post_init__(self) -> None:
        if not 3 <= self.lg_max_map <= 21:
            raise ValueError(f"lg_max_map must be from 3 to 21, not {self.lg_max_map}")
        _items(pl.Series([], dtype=self.dtype))  # refuses what cannot be counted

    @property
    def capacity(self) -> int:
        return 3 << self.lg_max_map >> 2

    def lift(self, values: pl.Series, offsets: Array) -> list[bytes | None]:
        events = pl.DataFrame({"slice": _slice_ids(values, offsets), "item": _items(values.cast(self.dtype))})
        counts = events.group_by("slice", "item").agg(pl.len().cast(pl.UInt64).alias("weight"))
        counts = counts.sort("slice", "weight", "item", descending=[False, True, False])
        weights, (octets, places) = counts["weight"].to_numpy(), self._encode(counts["item"])
        return [
            self._write(weights[a:b], octets, places[a:], 0, int(weights[a:b].sum())) if b > a else None
            for a, b in _ranges(counts["slice"].to_numpy(), offsets)
        ]

    def merge(self, states: Sequence[bytes]) -> bytes:
        sums, offset, total = dict[Any, int](), 0, 0
        for items, weights, taken, events in map(self._read, states):
            offset, total = offset + taken, total + events
            for item, weight in zip(items, weights, strict=True):
                sums[item] = sums.get(item, 0) + weight
        order = sorted(sums, key=lambda item: (-sums[item], item))
        encoded = self._encode(pl.Series(order, dtype=pl.Binary if self.dtype in _TEXT else pl.Int64))
        return self._write(np.array([sums[item] for item in order], np.uint64), *encoded, offset, total)

    def _encode(self, items: pl.Series) -> tuple[Array, Array]:
        """The items' serialized bytes one after another, where each begins, and where the last ends."""
        if self.dtype not in _TEXT:
            return items.to_numpy().view(np.uint8), np.arange(len(items) + 1) * 8
        octets, lengths = _octets(items)
        starts, prefixes = np.cumsum(lengths) - lengths, lengths.astype(np.uint32).view(np.uint8)
        return np.insert(octets, np.repeat(starts, 4), prefixes), np.append(0, np.cumsum(lengths + 4))

    def _write(self, weights: Array, octets: Array, places: Array, offset: int, total: int) -> bytes:
        """The form of items sorted from the largest weight down, shrunk to the capacity."""
        if len(weights) > self.capacity:
            over = weights[self.capacity]
            weights, offset = weights[weights > over] - over, offset + int(over)
        count = len(weights)
        lg_size = next(lg for lg in range(3, 22) if count * 4 <= 3 << lg)
        if not total:
            return bytes([1, 1, 10, self.lg_max_map, lg_size, 5, 0, 0])
        head = struct.pack("<6BHIIQQ", 4, 1, 10, self.lg_max_map, lg_size, 0, 0, count, 0, total, offset)
        return head + weights.tobytes() + octets[places[0] : places[count]].tobytes()

    def _read(self, state: bytes) -> tuple[list[Any], list[int], int, int]:
        """The items kept, their weights, the offset and the number of events."""
        _check(state, 10, "lg_max_map", state[3], self.lg_max_map)
        if state[5] & 5:
            return [], [], 0, 0
        count, total, offset = struct.unpack_from("<I4xQQ", state, 8)
        weights, at = np.frombuffer(state, np.int64, count, 32).tolist(), 32 + 8 * count
        if self.dtype not in _TEXT:
            return np.frombuffer(state, np.int64, count, at).tolist(), weights, offset, total
        items = []
        for _ in weights:
            start, at = at + 4, at + 4 + int.from_bytes(state[at : at + 4], "little")
            items.append(state[start:at])
        return items, weights, offset, total

    def check(self, state: bytes) -> None:
        """Refuse bytes that `lift` and `merge` cannot have given; a ValueError, an IndexError or a struct.error."""
        items, weights, offset, total = self._read(state)
        is_possible = 0 < len(items) <= self.capacity and min(weights) > 0 and sum(weights) <= total <= MOST
        if not (is_possible and offset * (self.capacity + 1) <= total and self.merge([state]) == state):
            raise ValueError(_UNLIKE)
        if self.dtype not in (pl.Binary(), pl.Int64(), pl.Float64()):
            try:
                self.top(state, 1)
            except pl.exceptions.PolarsError as error:
                raise ValueError(f"it holds what is no {self.dtype}") from error

    def top(self, state: bytes, k: int) -> pl.DataFrame:
        """At most k items of highest count: `value`, `count` (never too low), `lower` (never too high).

        Ties are in the order of items. Every item with more than events / (capacity + 1) is there.
        """
        items, weights, offset, _ = self._read(state)
        if self.dtype in _TEXT:
            text = pl.Series(items, dtype=pl.Binary)
            values = text if self.dtype == pl.Binary else text.cast(pl.String).cast(self.dtype)
        else:
            kind = np.float64 if self.dtype.is_float() else np.uint64 if self.dtype == pl.UInt64 else np.int64
            values = pl.Series(np.array(items, np.int64).view(kind)).cast(self.dtype)
        lower = pl.Series(weights, dtype=pl.Int64)
        table = pl.DataFrame({"value": values, "count": lower + offset, "lower": lower})
        return table.sort("count", "value", descending=[True, False]).head(k)
