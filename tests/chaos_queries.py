"""Queries of a storm: each as windrow reads it, and as DuckDB's SQL over the events that were written.

The SQL is the definition of `docs/semantics.md`, carried out from first principles: which events a window has, then
plain aggregates over them. Nothing here comes from windrow.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import polars as pl

ORDER = "ts, node, place"  # the order over all nodes: time, node, position in the node's stream
EVENTS = {"ts": pl.Int64, "node": pl.String, "place": pl.Int64, "key": pl.Int64, "value": pl.Int64}
AGGREGATES = {
    "count()": "count(*)",
    "sum(value)": "sum(value)::BIGINT",
    "min(value)": "min(value)",
    "max(value)": "max(value)",
    "mean(value)": "avg(value)",
    "first(value)": f"first(value ORDER BY {ORDER})",
    "last(value)": f"last(value ORDER BY {ORDER})",
    "median(value)": "quantile_cont(value, 0.5)",
    "quantile(value, 0.9)": "quantile_cont(value, 0.9)",
}
PLAIN = ("count()", "sum(value)", "min(value)", "max(value)", "mean(value)", "first(value)", "last(value)")
EXACT = ("median(value)", "quantile(value, 0.9)")
MILLISECOND = 1000

# From the events `given`, the events of windows: `number` is the windows' own, `part` stands for the keys.
_TUMBLING = """
    SELECT *, ts - ts % {length} AS start, ts - ts % {length} + {length} AS "end", NULL AS position, 0 AS number
    FROM given
"""
_SLIDING = """
    SELECT given.*, k * {slide} AS start, k * {slide} + {length} AS "end", NULL AS position, 0 AS number
    FROM given, unnest(range((ts - {length}) // {slide} + 1, ts // {slide} + 1)) AS one(k)
"""
_SESSION = """
    SELECT *, min(ts) OVER run AS start, max(ts) OVER run + {gap} AS "end", NULL AS position
    FROM (SELECT *, sum(is_first) OVER (PARTITION BY {part} ORDER BY {order}) AS number
          FROM (SELECT *, coalesce(ts - lag(ts) OVER before > {gap}, true)::INT AS is_first
                FROM given WINDOW before AS (PARTITION BY {part} ORDER BY {order})))
    WINDOW run AS (PARTITION BY {part}, number)
"""
_COUNTING = """
    SELECT *, min(ts) OVER one AS start, max(ts) OVER one AS "end"
    FROM (SELECT *, k * {step} AS position, k AS number
          FROM (SELECT *, row_number() OVER (PARTITION BY {part} ORDER BY {order}) - 1 AS rank FROM given),
               unnest(range(greatest(0, (rank - {n}) // {step} - 1), rank // {step} + 1)) AS windows(k)
          WHERE rank >= k * {step} AND rank < k * {step} + {n})
    WINDOW one AS (PARTITION BY {part}, number)
    QUALIFY count(*) OVER one = {n}
"""
_FRAMES = """
    SELECT *, min(ts) OVER run AS start, max(ts) OVER run AS "end", NULL AS position
    FROM (SELECT *, row_number() OVER (PARTITION BY {part} ORDER BY {order})
                    - row_number() OVER (PARTITION BY {part}, ({when}) ORDER BY {order}) AS number
          FROM given)
    WHERE {when}
    WINDOW run AS (PARTITION BY {part}, number)
"""
_PUNCTUATED = """
    SELECT *, min(ts) OVER one AS start, max(ts) OVER one AS "end", NULL AS position
    FROM (SELECT *, coalesce(sum(({end})::INT) OVER before, 0) AS number
          FROM given WINDOW before AS (PARTITION BY {part} ORDER BY {order}
                                       ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))
    WINDOW one AS (PARTITION BY {part}, number)
    QUALIFY bool_or({end}) OVER one
"""
# Windows of nodes that share a moment, directly or through others, are one.
_OVERLAP = """
    SELECT part.* REPLACE (min(start) OVER one AS start, max("end") OVER one AS "end", joined AS number)
    FROM (SELECT *, sum(is_first) OVER (PARTITION BY {keys} ORDER BY start, "end", {order}) AS joined
          FROM (SELECT *, coalesce(start > max("end") OVER (PARTITION BY {keys} ORDER BY start, "end", {order}
                                                             ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING),
                                   true)::INT AS is_first
                FROM ({rows}))) AS part
    WINDOW one AS (PARTITION BY {keys}, joined)
"""


@dataclass(frozen=True)
class Asked:
    """A query: `window` for windrow, `rows` for DuckDB."""

    name: str
    window: str
    rows: str
    aggregates: tuple[str, ...]
    keys: tuple[str, ...] = ()  # columns of the results, `node` among them where each node has windows of its own
    where: str | None = None
    scheme: str | None = None  # of a counting window: how nodes agree on its ends

    @property
    def described(self) -> dict[str, Any]:
        by = [key for key in self.keys if key != "node"]
        more = {"by": by} if by else {}
        more |= {"where": self.where} if self.where else {}
        return {"name": self.name, "window": self.window, "aggregates": list(self.aggregates), **more}

    @property
    def is_by_time(self) -> bool:
        return self.window.startswith(("tumbling", "sliding"))

    def sql(self, since: int | None = None) -> str:
        """The results over the table `events`; a query that came later sees events from `since` on, and none of the
        windows by time that begin before."""
        part = ", ".join((*self.keys, "true"))
        rows = self.rows.format(part=part, keys=part, order=ORDER)
        aggregates = ", ".join(f'{AGGREGATES[name]} AS "{name}"' for name in self.aggregates)
        keys = "".join(f"{key}, " for key in self.keys)
        begins = "" if since is None else f"AND ts >= {since}"
        starts = f"WHERE start >= {since}" if since is not None and self.is_by_time else ""
        return f"""
            WITH given AS (SELECT * FROM events WHERE ({self.where or "true"}) {begins})
            SELECT {keys}start, "end", position, {aggregates} FROM ({rows}) {starts}
            GROUP BY {keys}start, "end", position, number
        """


# --- drawn from a seed ----------------------------------------------------------------------------------------------


def _text(milliseconds: int) -> str:
    return f"{milliseconds} ms"


def _some(dice: random.Random, names: Iterable[str], most: int = 3) -> tuple[str, ...]:
    names = list(names)
    return tuple(dice.sample(names, dice.randint(1, min(most, len(names)))))


def _keys(dice: random.Random) -> tuple[str, ...]:
    return dice.choice([(), ("key",)])


def _where(dice: random.Random) -> str | None:
    return dice.choice([None, None, "value >= 10", "key <> 1"])


def tumbling(dice: random.Random, name: str) -> Asked:
    length = dice.choice([400, 1000, 1500])
    rows = _TUMBLING.format(length=length * MILLISECOND)
    return Asked(name, f"tumbling({_text(length)})", rows, _some(dice, PLAIN), _keys(dice), _where(dice))


def sliding(dice: random.Random, name: str) -> Asked:
    length, slide = dice.choice([(3000, 1000), (2000, 700), (500, 800)])
    rows = _SLIDING.format(length=length * MILLISECOND, slide=slide * MILLISECOND)
    window = f"sliding({_text(length)}, {_text(slide)})"
    return Asked(name, window, rows, _some(dice, PLAIN), _keys(dice), _where(dice))


def session(dice: random.Random, name: str) -> Asked:
    gap = dice.choice([20, 60, 200])
    rows = _SESSION.replace("{gap}", str(gap * MILLISECOND))
    return Asked(name, f"session({_text(gap)})", rows, _some(dice, PLAIN), ("key",), _where(dice))


def quantiles(dice: random.Random, name: str) -> Asked:
    """Exact quantiles over time, of which nodes send block summaries first."""
    query = dice.choice([tumbling, sliding, session])(dice, name)
    return replace(query, aggregates=_some(dice, EXACT))


def counting(dice: random.Random, name: str) -> Asked:
    n, step = dice.choice([(50, 50), (90, 30), (120, 120), (40, 60)])
    rows = _COUNTING.replace("{n}", str(n)).replace("{step}", str(step))
    window = f"counting({n}, {step})"
    aggregates = _some(dice, PLAIN + EXACT[: dice.randint(0, 1)])
    scheme = dice.choice(["refine", "async", "sync", "monitoring", "central", "auto"])
    return Asked(name, window, rows, aggregates, _keys(dice), _where(dice), scheme)


def punctuated(dice: random.Random, name: str) -> Asked:
    least = dice.choice([45, 55])
    rows = _PUNCTUATED.replace("{end}", f"value > {least}")
    return Asked(name, f"punctuated(end=value > {least})", rows, _some(dice, PLAIN), _keys(dice))


def frames_of_nodes(dice: random.Random, name: str) -> Asked:
    """Runs at each node, which it finds itself where there is `push_down`."""
    least = dice.choice([20, 40])
    rows = _FRAMES.replace("{when}", f"value > {least}")
    keys = (*_keys(dice), "node")
    return Asked(name, f"frames(value > {least}, scope=node)", rows, _some(dice, PLAIN), keys)


def counting_of_nodes(dice: random.Random, name: str) -> Asked:
    n = dice.choice([25, 40])
    rows = _COUNTING.replace("{n}", str(n)).replace("{step}", str(n))
    return Asked(name, f"counting({n}, scope=node)", rows, _some(dice, PLAIN + EXACT), (*_keys(dice), "node"))


def frames_that_overlap(dice: random.Random, name: str) -> Asked:
    least = dice.choice([50, 57])
    at_nodes = _FRAMES.replace("{when}", f"value > {least}").replace("{part}", "{keys}, node")
    rows = _OVERLAP.replace("{rows}", at_nodes)
    return Asked(name, f"frames(value > {least}, scope=overlap)", rows, _some(dice, PLAIN), _keys(dice))


ALWAYS = (tumbling, sliding, session, quantiles, counting)
SOMETIMES = (tumbling, counting, counting, quantiles, punctuated)
OF_NODES = (frames_of_nodes, counting_of_nodes, frames_that_overlap)  # refused, or not answered, where Spark answers
LATER = (tumbling, sliding, session, quantiles, counting)  # that come while the tree runs


def drawn(dice: random.Random, of_nodes: bool = True) -> list[Asked]:
    """The queries that a tree begins with: one of every kind, and some more."""
    makers = [*ALWAYS, *dice.sample(SOMETIMES, 2), *(dice.sample(OF_NODES, 2) if of_nodes else ())]
    return [make(dice, f"{make.__name__}{number}") for number, make in enumerate(makers)]


# --- compared -------------------------------------------------------------------------------------------------------


@dataclass
class Verdict:
    """What is wrong with the results of a storm, each as a sentence; nothing of it is tolerated."""

    windows: int
    lost: list[str]
    twice: list[str]
    wrong: list[str]

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.twice or self.wrong)

    @property
    def text(self) -> str:
        found = [f"{kind}: {text}" for kind in ("lost", "twice", "wrong") for text in getattr(self, kind)]
        more = [f"… and {len(found) - 20:,} more"] if len(found) > 20 else []
        return "\n".join((*found[:20], *more))


def expected(events: duckdb.DuckDBPyConnection, query: Asked, since: int | None = None) -> list[dict[str, Any]]:
    """The windows of a query, over the table `events`."""
    cursor = events.execute(query.sql(since))
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


_BOUNDS = ("start", "end")


def found_in(results: pl.DataFrame, query: Asked) -> list[dict[str, Any]]:
    """The windows of a query in the results of a tree, with bounds in microseconds."""
    rows = results.filter(pl.col("query") == query.name)
    bounds = [pl.col(f"window_{name}").cast(pl.Datetime("us", "UTC")).to_physical().alias(name) for name in _BOUNDS]
    position = pl.col("position") if "position" in rows.columns else pl.lit(None, pl.Int64).alias("position")
    others = [  # a column may be missing if there are no results of the query
        pl.col(name) if name in rows.columns else pl.lit(None).alias(name) for name in (*query.keys, *query.aggregates)
    ]
    return rows.select(*bounds, position, *others).to_dicts()


def judge(query: Asked, want: list[dict[str, Any]], got: list[dict[str, Any]], was_removed: bool = False) -> Verdict:
    """Compare the windows of one query; of one that was removed, the last of each key may be missing."""
    verdict = Verdict(len(want), [], [], [])
    wanted, given = _by_window(query, want), _by_window(query, got)
    last = Counter[tuple[Any, ...]]()
    for window in got:
        key = tuple(window[name] for name in query.keys)
        last[key] = max(last[key], window["end"])
    for identity, windows in wanted.items():
        missing = len(windows) - len(given.get(identity, ()))
        if missing > 0 and not (was_removed and windows[0]["end"] >= last[tuple(windows[0][k] for k in query.keys)]):
            verdict.lost.append(f"{query.name}: {windows[0]}")
    for identity, windows in given.items():
        should = wanted.get(identity, [])
        if should and len(windows) > len(should):
            verdict.twice.append(f"{query.name}: {windows[0]}, {len(windows)} times")
        elif not should:
            verdict.wrong.append(f"{query.name}: {windows[0]}, which is none of its windows")
        elif len(windows) == len(should):
            wrong = [pair for pair in zip(windows, should, strict=True) if not _is_same(query, *pair)]
            verdict.wrong += [f"{query.name}: {window}, which should be {other}" for window, other in wrong]
    return verdict


def _by_window(query: Asked, windows: list[dict[str, Any]]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Windows by what identifies them; frames of a key that begin and end at one time are several."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for window in windows:
        found.setdefault(tuple(window[name] for name in (*query.keys, *_BOUNDS, "position")), []).append(window)
    for several in found.values():
        several.sort(key=lambda window: [-1.0 if window[name] is None else window[name] for name in query.aggregates])
    return found


def _is_same(query: Asked, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(
        one[name] is not None and abs(one[name] - other[name]) <= 1e-9 * max(1.0, abs(other[name]))
        for name in query.aggregates
    )


def merged(verdicts: Iterable[Verdict]) -> Verdict:
    whole = Verdict(0, [], [], [])
    for one in verdicts:
        whole.windows += one.windows
        whole.lost += one.lost
        whole.twice += one.twice
        whole.wrong += one.wrong
    return whole
