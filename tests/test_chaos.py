"""Storms over real processes (see `chaos.py`), and that what judges them can say no."""

from __future__ import annotations

import random
import shutil
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import polars as pl
import pytest
import yaml

import chaos
import chaos_queries
from chaos_queries import Asked, Verdict
from chaos_sources import events_of
from proxy import Proxy
from windrow.io.query_files import of_yaml
from windrow.testing import recompute

SECONDS = 6.0  # of a storm, without its start and its end
PATIENCE = 20.0


def test_a_tree_bears_a_storm_and_nobody_would_overlook_what_it_loses(tmp_path: Path, seed: int) -> None:
    storm = chaos.Storm(tmp_path / "storm", seed, SECONDS)
    verdict = storm.run()
    print(storm.done, f"seed {seed}", sep="\n")
    assert verdict.is_good, verdict.text
    assert verdict.windows > 50
    assert storm.done.total() > 0

    files = sorted((tmp_path / "storm/results").glob("*.parquet"))
    file, hidden = files[len(files) // 2], tmp_path / "hidden"
    names = set(pl.read_parquet(file)["query"])
    if names - storm.removed:  # the last windows of a query that was removed may be missing
        file.rename(hidden)
        assert storm.verdict().lost
        hidden.rename(file)
    shutil.copyfile(file, file.with_stem("9" * 20))
    assert len(storm.verdict().twice) >= pl.read_parquet(file).height
    file.with_stem("9" * 20).unlink()
    with_lines = next((tmp_path / "storm/events").glob("*/*.jsonl"), None)
    if with_lines is not None:
        with with_lines.open("r+b") as lines:
            first = lines.readline()
            lines.seek(0, 2)
            lines.write(first)
        assert not storm.verdict().is_good
    else:
        whole = next((tmp_path / "storm/events").glob("*/*.parquet"))
        shutil.copyfile(whole, whole.with_stem("999999"))
        assert not storm.verdict().is_good


def test_a_run_ends_with_1_at_the_first_storm_that_was_not_borne_and_says_how_to_repeat_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "7/results"
    results.mkdir(parents=True)
    pl.DataFrame({"query": ["of another tree"]}).write_parquet(results / "1.parquet")
    assert chaos.main(["--storms", "3", "--seed", "7", "--seconds", "1", "--folder", str(tmp_path)]) == 1
    text = capsys.readouterr().out
    assert "root has ended with 2, and nobody wanted it to" in text
    assert "If these are of another tree, name another directory" in text
    assert f"again: python tests/chaos.py --storms 1 --seed 7 --seconds 1 --faults {','.join(chaos.FAULTS)}\n" in text
    assert text.splitlines()[-1].split()[:3] == ["refused", "by", "name"]
    assert (tmp_path / "7/storm.log").exists()


def test_duckdb_and_the_oracle_mean_the_same_windows(seed: int) -> None:
    """Two definitions that know nothing of each other; storms are judged by DuckDB's."""
    dice = random.Random(seed)
    rows = [
        {**row, "node": node} for node in ("a", "b", "c") for row in events_of(dice, 200, dice.choice([10**6, 10**7]))
    ]
    makers = dict.fromkeys((*chaos_queries.ALWAYS, *chaos_queries.SOMETIMES, *chaos_queries.OF_NODES))
    queries = [make(dice, make.__name__) for make in makers]
    described = of_yaml(yaml.safe_dump({"queries": [query.described for query in queries]}), "queries").queries
    rows.sort(key=lambda row: (row["ts"], row["node"], row["place"]))
    times = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=row["ts"]) for row in rows]
    answers = recompute(
        [{**row, "ts": ts} for row, ts in zip(rows, times, strict=True)], described, time="ts", order_by=("node",)
    )
    results = pl.DataFrame(answers, infer_schema_length=None)
    with duckdb.connect() as database:
        database.register("events", pl.DataFrame(rows, schema_overrides=chaos_queries.EVENTS).to_arrow())
        verdicts = [
            chaos_queries.judge(query, chaos_queries.expected(database, query), chaos_queries.found_in(results, query))
            for query in queries
        ]
    assert all(verdict.windows for verdict in verdicts)
    whole = chaos_queries.merged(verdicts)
    assert whole.is_good, whole.text


# --- what the comparison tolerates ----------------------------------------------------------------------------------

QUERY = Asked("q", "tumbling(1 ms)", "", ("sum(value)",), ("key",))
WANTED = [
    {"key": 0, "start": 1000, "end": 2000, "position": None, "sum(value)": 5},
    {"key": 0, "start": 2000, "end": 3000, "position": None, "sum(value)": 6},
    {"key": 1, "start": 1000, "end": 2000, "position": None, "sum(value)": 7},
]


def numbers(verdict: Verdict) -> tuple[int, int, int]:
    return len(verdict.lost), len(verdict.twice), len(verdict.wrong)


def test_every_window_is_there_once_and_as_it_should_be() -> None:
    first, second, other = WANTED
    for got, found in (
        (WANTED, (0, 0, 0)),
        ([first, other], (1, 0, 0)),
        ([*WANTED, first], (0, 1, 0)),
        ([first, second, {**other, "sum(value)": 8}], (0, 0, 1)),
        ([first, second, {**other, "sum(value)": None}], (0, 0, 1)),
        ([*WANTED, {**first, "key": 2}], (0, 0, 1)),
        ([], (3, 0, 0)),
    ):
        assert numbers(chaos_queries.judge(QUERY, WANTED, got)) == found


def test_of_a_query_that_was_removed_the_last_windows_of_each_key_may_be_missing() -> None:
    first, second, other = WANTED
    assert numbers(chaos_queries.judge(QUERY, WANTED, [first, other], was_removed=True)) == (0, 0, 0)
    assert numbers(chaos_queries.judge(QUERY, WANTED, [second, other], was_removed=True)) == (1, 0, 0)
    assert numbers(chaos_queries.judge(QUERY, WANTED, [first, first], was_removed=True)) == (0, 1, 0)


# --- the proxy ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("swallow", [False, True])
def test_a_half_open_connection_says_nothing_and_a_new_one_passes(swallow: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as parent, Proxy(lambda: parent.getsockname()[1]) as proxy:
        parent.settimeout(PATIENCE)
        child = connected(proxy)
        far, _ = parent.accept()
        passes(child, far)
        passes(far, child)
        assert proxy.half_open(("up",), swallow) == 1
        child.sendall(b"up")
        passes(far, child)
        far.settimeout(0.2)
        with pytest.raises(TimeoutError):
            far.recv(1)
        child.close()
        with pytest.raises(TimeoutError):  # not even that
            far.recv(1)
        again = connected(proxy)
        second, _ = parent.accept()
        passes(again, second)
        proxy.cut()
        assert again.recv(1) == b""
        with pytest.raises(TimeoutError):
            far.recv(1)
        for end in (far, again, second):
            end.close()


def test_a_connection_to_nobody_ends_at_once() -> None:
    nobody: Callable[[], int | None] = lambda: None  # noqa: E731
    with Proxy(nobody) as proxy, connected(proxy) as child:
        assert child.recv(1) == b""


def connected(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), PATIENCE)


def passes(source: socket.socket, to: socket.socket) -> None:
    source.sendall(b"x")
    to.settimeout(PATIENCE)
    assert to.recv(1) == b"x"
