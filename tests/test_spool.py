"""A spool: a commit is there wholly or not at all, whenever the process ends; and damage is refused."""

from __future__ import annotations

import random
from contextlib import closing
from itertools import pairwise
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


def written(path: Path, seed: int) -> list[tuple[bytes, dict[str, bytes | None]]]:
    """The file before and after each of a few commits, and what it holds then."""
    dice, states = random.Random(seed), []
    with closing(LogFile(path)) as one:
        states.append((path.read_bytes(), kept(one)))
        for number in range(8):
            one.commit({f"n{dice.randrange(4)}": dice.randbytes(dice.randrange(30))}, [f"n{number % 4}"])
            states.append((path.read_bytes(), kept(one)))
    return states


def test_a_last_write_that_was_cut_short_is_undone_and_counted(tmp_path: Path, seed: int) -> None:
    states, cut = written(tmp_path / "spool", seed), tmp_path / "cut"
    for (before, held), (after, held_after) in pairwise(states):
        for end in (len(before), *range(len(before) + seed % 3 + 1, len(after), 7), len(after)):
            cut.write_bytes(before + after[len(before) : end])  # a crash comes before the end is noted
            with closing(LogFile(cut)) as found:
                is_whole = end == len(after)
                assert kept(found) == (held_after if is_whole else held)
                assert found.torn == (0 if is_whole else end - len(before))
                found.commit({"after": b"x"}, [])  # and it goes on from there
            assert kept_at(cut) == {**(held_after if is_whole else held), "after": b"x"}
        cut.write_bytes(before + bytes(100))  # a loss of power: it is longer, and the rest has not come to the disk
        assert kept_at(cut) == held


def test_a_file_that_is_shorter_than_it_was_is_refused(tmp_path: Path, seed: int) -> None:
    data = written(tmp_path / "spool", seed)[-1][0]
    for end in range(len(data)):
        (tmp_path / "cut").write_bytes(data[:end])
        with pytest.raises(LogStoreError, match=r"the spool '.*/cut' is damaged: .*put back what it was"):
            LogFile(tmp_path / "cut")
        assert (tmp_path / "cut").read_bytes() == data[:end]


def test_every_changed_bit_is_refused_wherever_it_is(tmp_path: Path, seed: int) -> None:
    data, changed = written(tmp_path / "spool", seed)[-1][0], tmp_path / "changed"
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << (at + seed) % 8
        changed.write_bytes(flipped)
        with pytest.raises(LogStoreError, match=r"the spool '.*/changed' (is damaged: |has version )"):
            LogFile(changed)
        assert changed.read_bytes() == flipped


def test_a_length_that_reaches_beyond_the_file_is_no_last_write(tmp_path: Path) -> None:
    """A huge length in the middle looks like a write that was cut short, unless it has a sum of its own."""
    states = written(tmp_path / "spool", 0)
    data, at = bytearray(states[-1][0]), len(states[3][0])
    data[at : at + 8] = (2**40).to_bytes(8, "little")
    (tmp_path / "spool").write_bytes(data)
    with pytest.raises(LogStoreError, match=f"what was written at byte {at:,} is not there any more as it was"):
        LogFile(tmp_path / "spool")


def test_a_spool_of_another_version_is_refused_by_its_number(tmp_path: Path) -> None:
    (tmp_path / "spool").write_bytes(b"windrow spool 2\n" + bytes(100))
    reads = f"has version 2; this windrow reads version {log_store.VERSION}: name another spool"
    with pytest.raises(LogStoreError, match=reads):
        LogFile(tmp_path / "spool")


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
    with pytest.raises(LogStoreError, match="does not begin as one; or another program has written it"):
        LogFile(path)
    assert path.read_bytes() == b"somebody's letter\n" * 10
