"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from windrow.io.atomic import replacing


@pytest.mark.parametrize("contended", [False, True])
def test_the_old_file_is_there_until_the_new_one_is_whole(tmp_path: Path, contended: bool) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path, contended=contended) as draft:
        draft.write(b"new")
        draft.flush()
        assert path.read_text() == "old"
        assert all(name == "file" or name.startswith(".file") for name in os.listdir(tmp_path))
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]


def test_what_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(TypeError), replacing(path) as draft:
        draft.writelines([b"ne", "w"])  # type: ignore[list-item]  # after the first of them
    assert path.read_text() == "old"
    with replacing(path) as draft:
        draft.write(b"x")
    assert (path.read_text(), os.listdir(tmp_path)) == ("x", ["file"])


def test_two_at_once_have_a_draft_each(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path, contended=True) as first, replacing(path, contended=True) as second:
        first.write(b"first")
        second.write(b"second, longer")
    assert path.read_text() == "first"


def test_the_disk_is_waited_for_only_where_that_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    with replacing(tmp_path / "file", durable=False) as draft:
        draft.write(b"x")
    assert not flushed
    with replacing(tmp_path / "file") as draft:
        draft.write(b"x")
    assert len(flushed) == 2  # the file, then its folder
