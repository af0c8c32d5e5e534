"""Bytes that are not what was written are refused at every border, with one kind of error: `fuzz_bytes` says which."""

from __future__ import annotations

from pathlib import Path

import pytest

import fuzz_bytes
from windrow.io import tables


@pytest.mark.parametrize("border", list(fuzz_bytes.BORDERS))
def test_a_border_refuses_what_was_changed_and_survives_it(border: str, seed: int) -> None:
    few = {"checkpoints": 200, "texts": 2000, "values": 200}  # of which one takes milliseconds
    assert fuzz_bytes.tried(border, seed, few.get(border, 3000)) is None


def test_the_check_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without sums a changed snapshot is taken, or breaks something."""
    monkeypatch.setattr(tables.zlib, "crc32", lambda data: 0)
    (tmp_path / "progress").write_bytes(bytes(8))
    monkeypatch.setattr(fuzz_bytes.resource, "setrlimit", lambda *_: None)
    with pytest.raises(BaseException):  # noqa: B017, PT011 - which one depends on the seed
        fuzz_bytes.attempt("snapshots", 0, 0, 500, tmp_path / "progress")
