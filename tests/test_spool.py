"""A spool: a commit is there wholly or not at all, whenever the process ends."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import pytest

from windrow.nodes.process import log_store
from windrow.nodes.process.log_store import LogFile, LogStoreError


def kept(one: LogFile) -> dict[str, bytes | None]:
    return {name: one.get(name) for name in one.names()}


def kept_at(path: Path) -> dict[str, bytes | None]:
    with closing(LogFile(path)) as one:
        return kept(one)


def test_what_is_committed_is_there_again(tmp_path: Path) -> None:
    one = LogFile(tmp_path / "deep" / "spool")
    one.commit({"a": b"1", "b": b"\n\x00"}, [])
    one.commit({"a": b"2"}, ["b", "never"])
    one.close()
    again = LogFile(tmp_path / "deep" / "spool")
    assert kept(again) == {"a": b"2"}
    again.commit({"c": b""}, [])
    again.close()
    assert kept_at(tmp_path / "deep" / "spool") == {"a": b"2", "c": b""}


def test_a_file_that_ends_anywhere_holds_the_commits_before(tmp_path: Path, seed: int) -> None:
    dice, path = random.Random(seed), tmp_path / "spool"
    one = LogFile(path)
    states: list[tuple[int, dict[str, bytes | None]]] = [(path.stat().st_size, {})]
    for number in range(8):
        one.commit({f"n{dice.randrange(4)}": dice.randbytes(dice.randrange(30))}, [f"n{number % 4}"])
        states.append((path.stat().st_size, kept(one)))
    one.close()
    data = path.read_bytes()
    for end in range(len(data) + 1):
        cut = tmp_path / "cut"
        cut.write_bytes(data[:end])
        found = LogFile(cut)
        assert kept(found) == max((state for state in states if state[0] <= end), default=(0, {}))[1]
        found.commit({"after": b"x"}, [])  # and it goes on from there
        found.close()
        assert kept_at(cut)["after"] == b"x"


def test_a_garbled_commit_and_those_after_it_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    one = LogFile(path)
    one.commit({"a": b"first"}, [])
    end = path.stat().st_size
    one.commit({"a": b"second"}, [])
    one.close()
    data = bytearray(path.read_bytes())
    data[end + 14] ^= 255
    path.write_bytes(data)
    assert kept_at(path) == {"a": b"first"}


def test_the_file_does_not_grow_with_what_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_store, "SMALL", 1000)
    path = tmp_path / "spool"
    one = LogFile(path)
    for number in range(200):
        one.commit({"a": bytes([number]) * 100}, [])
        assert path.stat().st_size < 1500
    one.commit({"b": b"2"}, [])
    one.close()
    assert kept_at(path) == {"a": bytes([199]) * 100, "b": b"2"}


def test_another_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    path.write_bytes(b"somebody's letter\n" * 10)
    with pytest.raises(LogStoreError, match="is not a spool of this version of windrow"):
        LogFile(path)
    assert path.read_bytes() == b"somebody's letter\n" * 10
