"""Files of a node are its user's alone, secrets are shown nowhere, and a full disk is named with the file that it lacks
room for."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from windrow.cli import results, trees
from windrow.cli.failures import reported
from windrow.io.atomic import replacing
from windrow.io.private import Secret, make_folder, read_secret
from windrow.nodes.process import config, tree
from windrow.nodes.process.log_store import LogFile
from windrow.nodes.process.result_sink import ResultFiles, read_results
from windrow.nodes.protocol.messages import Batch
from windrow.nodes.sources import SourceError, source_of
from windrow.nodes.transport.security import AccessError, Tokens, pem, token_of

PASSWORD = "who-knows-it"
TREE = {
    "queries": "SELECT key, count(*) AS n, sum(value) AS v FROM events GROUP BY key, window(ts, '1 second')",
    "time": "ts",
    "columns": "ts TIMESTAMP, key INT, value DOUBLE",
}
MADE = {"generator": {"rate": 200, "length": "5 seconds", "start": "2026-01-01"}}


def command(folder: Path, *arguments: str, **more: Any) -> subprocess.Popen[str]:
    """`windrow` with these arguments, as a user starts it whose umask leaves everything open."""
    environment = {**os.environ, "POLARS_MAX_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "windrow", *arguments],
        **{"cwd": folder, "env": environment, "umask": 0, "text": True, "stdout": -1, "stderr": -2, **more},
    )


def mode(path: Path) -> str:
    return f"{path.stat().st_mode & 0o777:o}"


# --- what a node writes -----------------------------------------------------------------------------------------------


def test_all_that_a_tree_writes_is_its_user_s_alone_but_results_in_a_folder_that_others_may_read(
    tmp_path: Path,
) -> None:
    (tmp_path / "results").mkdir(mode=0o755)
    (tmp_path / "results").chmod(0o750)
    nodes = {"plant": {}, "north": {"parent": "plant", "source": MADE}}
    (tmp_path / "tree.yaml").write_text(yaml.safe_dump({**TREE, "nodes": nodes}))
    ended = command(tmp_path, "tree", "up")
    shown = ended.communicate(timeout=60)[0]
    assert ended.returncode == 0, shown
    written = list((tmp_path / "spool").rglob("*"))
    assert {path.name for path in written} >= {"root", "node.yaml", "status.json", "log", "lock", "spool"}
    for path in (tmp_path / "spool", *written):
        assert mode(path) == ("700" if path.is_dir() else "600"), path
    found = list((tmp_path / "results").iterdir())
    assert found
    assert {mode(path) for path in found} == {"640"}
    assert mode(tmp_path / "results") == "750"


def test_what_is_shared_is_as_open_as_its_folder_and_no_more_than_the_umask_lets(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    assert (mode(tmp_path / "a"), mode(tmp_path / "a" / "b")) == ("700", "700")
    before = os.umask(0)
    try:
        for folder, umask, shared, then in [
            (0o755, 0, True, "644"),
            (0o755, 0o077, True, "600"),
            (0o770, 0o002, True, "640"),
            (0o700, 0, True, "600"),
            (0o777, 0, False, "600"),
        ]:
            (tmp_path / "a").chmod(folder)
            os.umask(umask)
            with replacing(tmp_path / "a" / "file", shared=shared) as file:
                file.write(b"x")
            assert mode(tmp_path / "a" / "file") == then
    finally:
        os.umask(before)


def test_a_draft_that_somebody_has_put_there_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / ".file").symlink_to(tmp_path / "theirs")
    with replacing(tmp_path / "file") as file:
        file.write(b"ours")
    assert ((tmp_path / "theirs").read_text(), (tmp_path / "file").read_text()) == ("theirs", "ours")


def test_keys_that_are_made_again_are_as_closed_as_new_ones(tmp_path: Path) -> None:
    certificates = pytest.importorskip("windrow.nodes.transport.certificates")
    (tmp_path / "localhost.key").write_text("an old one")
    (tmp_path / "localhost.key").chmod(0o644)
    certificates.write(tmp_path, ["localhost"])
    assert {mode(path) for path in tmp_path.glob("*.key")} == {"600"}


# --- secrets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [0o644, 0o640, 0o620, 0o602])
def test_a_secret_that_others_can_read_or_write_is_refused(tmp_path: Path, bits: int) -> None:
    path = tmp_path / "secret"
    path.write_text(f"north: {PASSWORD}\n-----BEGIN ")
    reads: list[Callable[[], object]] = [
        lambda: Tokens(path),
        lambda: token_of(path),
        lambda: pem(path, "key"),
        lambda: source_of({"mqtt": "a", "username": "b", "password_file": str(path)}, "n"),
        lambda: source_of({"mqtt": "a", "certificate": str(path), "key": str(path)}, "n"),
    ]
    path.chmod(bits)
    for read in reads:
        with pytest.raises((AccessError, SourceError)) as refused:
            read()
        assert f"others can read or write it (mode {bits:o}): chmod 600 {path}" in str(refused.value)
        assert PASSWORD not in str(refused.value)
    path.chmod(0o600)
    for read in reads[1:]:
        read()


def test_root_may_give_a_secret_to_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.write_text(PASSWORD)
    path.chmod(0o640)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert read_secret(path) == PASSWORD.encode()


def test_tokens_that_cannot_be_read_are_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.touch(0o600)
    for text in (f"north: {PASSWORD}: {PASSWORD}", f"north: [{PASSWORD}", f"north: {{{PASSWORD}: 1}}"):
        path.write_text(text)
        with pytest.raises(AccessError) as refused:
            Tokens(path)
        assert PASSWORD not in str(refused.value)


def test_tokens_that_are_opened_while_they_are_used_are_named(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(f"north: {PASSWORD}")
    tokens = Tokens(path)
    path.write_text(f"north: {PASSWORD}\nsouth: {PASSWORD}")
    path.chmod(0o644)
    assert not tokens.allows("south", PASSWORD)
    assert f"chmod 600 {path}" in str(tokens.unread)
    assert tokens.allows("north", PASSWORD)
    path.chmod(0o600)
    assert tokens.allows("south", PASSWORD)
    assert tokens.unread is None
    path.write_text(f"south: {PASSWORD}")
    assert not tokens.allows("north", PASSWORD), "a token that was taken out is good no more"


@pytest.mark.parametrize(
    "text",
    [
        "source: {mqtt: {topic: a, username: b, password: 1234567}}",
        "source: {kind: mqtt, topic: a, username: b, password: [1234567]}",
        "source: stdin\ntoken: 1234567",
    ],
)
def test_a_secret_that_is_no_text_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(f"name: a\nparent: 127.0.0.1:1\n{text}\n")
    with pytest.raises(config.ConfigError, match="must be text; write it in quotation marks") as refused:
        config.read(path, "local")
    assert "1234567" not in str(refused.value)


@pytest.mark.parametrize("nested", [True, False])
def test_a_password_is_handed_to_a_node_and_written_nowhere(
    tmp_path: Path, nested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"topic": "a", "username": "north", "password": PASSWORD}
    source = {"mqtt": options} if nested else {"kind": "mqtt", **options}
    (tmp_path / "tree.yaml").write_text(yaml.safe_dump({**TREE, "nodes": {"north": {"source": source}}}))
    found = tree.read(tmp_path / "tree.yaml")
    north = next(one for one in found if one.name == "north")
    north.write("grpc://127.0.0.1:7")
    made = config.read(north.config, "local")
    shown = [north.config.read_text(), repr(found), repr(made), repr(source_of(made.source, "north"))]
    assert PASSWORD not in "".join(shown)
    assert north.environment == {"WINDROW_PASSWORD": PASSWORD}
    one: Any = source_of(made.source, "north")
    with pytest.raises(SourceError, match="the environment has no WINDROW_PASSWORD; set it to the password"):
        _ = one.secret
    monkeypatch.setenv("WINDROW_PASSWORD", PASSWORD)
    assert one.secret == PASSWORD


def test_a_tree_that_runs_has_its_password_in_no_file_and_in_no_list_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("paho.mqtt.client")
    source = {"mqtt": {"topic": "a", "port": 1, "username": "north", "password": PASSWORD}}
    (tmp_path / "tree.yaml").write_text(yaml.safe_dump({**TREE, "nodes": {"north": {"source": source}}}))
    found = tree.read(tmp_path / "tree.yaml")
    processes = trees._Processes(found)
    said: list[str] = []
    monkeypatch.setattr(processes, "say", said.append)
    try:
        assert processes.start()
        while not any("cannot be reached" in line for line in said):  # by then it has been given to the client
            assert processes._are_running(), said
        shown = [Path(f"/proc/{one.pid}/cmdline").read_text() for one in processes._running.values()]
        environment = Path(f"/proc/{processes._running['north'].pid}/environ").read_text()
        assert f"WINDROW_PASSWORD={PASSWORD}" in environment
        assert PASSWORD not in Path(f"/proc/{processes._running['root'].pid}/environ").read_text()
    finally:
        processes.end()
    files = [path for path in (tmp_path / "spool").rglob("*") if path.is_file()]
    assert PASSWORD.encode() not in b"".join(path.read_bytes() for path in files)
    assert PASSWORD not in "".join((*shown, *said, repr(trees.statuses(found))))


def test_yaml_does_not_write_a_secret() -> None:
    with pytest.raises(yaml.YAMLError) as refused:
        yaml.safe_dump({"password": Secret(PASSWORD)})
    assert PASSWORD not in str(refused.value)


# --- no room ----------------------------------------------------------------------------------------------------------


@contextmanager
def no_room_beyond(size: int) -> Iterator[None]:
    """No file may be larger: the system refuses to write more, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


MUCH = pl.DataFrame({"x": list(range(20_000))})
BATCH = Batch("root", 1, 1, {}, 0, 1, 0, 0, {}, {"results": MUCH})


def _append(folder: Path) -> None:
    log = LogFile(folder / "file")
    try:
        log.commit({"a": bytes(50_000)}, [])
    finally:
        log.close()


def _parts(form: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        parts = results.Parts(folder / "out", form)
        parts.write(MUCH)
        parts.close()

    return write


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (_append, "file"),
        (lambda folder: ResultFiles(folder).put(BATCH), f"{1:020}.parquet"),
        (_parts("parquet"), "out/part-00000.parquet"),
        (_parts("csv"), "out/part-00000.csv"),
    ],
)
def test_no_room_is_said_with_the_file(tmp_path: Path, write: Callable[[Path], None], name: str) -> None:
    with no_room_beyond(10_000), pytest.raises(OSError, match="too large") as error:
        write(tmp_path)
    assert reported(error.value) == (1, f"{tmp_path / name}: File too large")


def test_a_node_without_room_ends_with_the_file_and_goes_on_once_there_is_some(tmp_path: Path) -> None:
    nodes = {"north": {"source": MADE}}
    (tmp_path / "tree.yaml").write_text(yaml.safe_dump({**TREE, "nodes": nodes}))
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))  # noqa: E731
    refused = command(tmp_path, "tree", "up", preexec_fn=limit)
    shown = refused.communicate(timeout=60)[0]
    assert refused.returncode == 1, shown
    assert f"root: {tmp_path / 'spool' / 'root'}" in shown
    assert "File too large" in shown
    assert "Traceback" not in shown
    assert command(tmp_path, "tree", "up", stdout=None, stderr=None).wait(60) == 0
    found = read_results(tmp_path / "results")
    made: Any = source_of({**MADE["generator"], "kind": "generator"}, "north")
    made.resume({})
    events = made.read(made.columns, 0).events
    assert (found["n"].sum(), found["v"].sum()) == pytest.approx((events.height, events["value"].sum()))
