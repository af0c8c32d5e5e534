"""Flight between nodes: who is let in, what is refused and why, and that nobody else notices. All over real sockets."""

from __future__ import annotations

import contextlib
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from windrow.cli.trees import seen, table
from windrow.nodes.process.config import ConfigError, read
from windrow.nodes.process.process import NodeProcess, NodeRefused
from windrow.nodes.process.result_sink import read_results
from windrow.nodes.process.slice_sink import SliceSink
from windrow.nodes.protocol.messages import Ack, Alive, Batch, Hello, Leave, Message, Offer, Refused, Welcome, to_bytes
from windrow.nodes.queries import QuerySet
from windrow.nodes.transport import client
from windrow.nodes.transport import server as flight_server
from windrow.nodes.transport.client import Client, ask
from windrow.nodes.transport.queues import ROOM, Outgoing
from windrow.nodes.transport.security import AccessError, Address, Files, Tokens
from windrow.nodes.transport.server import PROTOCOL, Limits, Server
from windrow.nodes.transport.streams import TIMING, Timing
from windrow.nodes.transport.traffic import Traffic
from windrow.nodes.transport.wire import BEAT, Reader

PATIENCE = 20.0
LOOPBACK = Address("127.0.0.1", 0)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
ROOT = """
name: root
listen: 127.0.0.1:0
spool: root
children: [north]
joins: true
queries: SELECT count(*) AS n FROM events GROUP BY window(ts, '1 second')
time: ts
columns: ts TIMESTAMP, x BIGINT
"""


def until(holds: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"{what} has not come within {PATIENCE:.0f} seconds"
        time.sleep(0.005)


class Running(contextlib.AbstractContextManager["Running"]):
    """A node in threads of this process."""

    def __init__(self, path: Path, role: Any, text: str, timing: Timing = TIMING) -> None:
        path.write_text(text)
        self.said: list[str] = []
        self.error: BaseException | None = None
        self.node = NodeProcess(read(path, role), self.said.append, timing)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        until(lambda: self.node.is_running or not self._thread.is_alive(), "the node's start")

    def _run(self) -> None:
        try:
            self.node.run()
        except Exception as error:
            self.error = error

    @property
    def address(self) -> Address:
        found = self.node.address
        assert found is not None
        return found

    def join(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def __exit__(self, *_: object) -> None:
        self.node.stop()
        self.join()


class Raw(contextlib.AbstractContextManager["Raw"]):
    """A stream that says what it likes."""

    def __init__(self, to: Address, name: str = "stranger", token: str = "", protocol: int = PROTOCOL) -> None:
        said = {"windrow-node": name, "windrow-protocol": str(protocol), "authorization": f"Bearer {token}"}
        self.client = fl.FlightClient(str(to), generic_options=[("grpc.use_local_subchannel_pool", 1)])
        options = fl.FlightCallOptions(headers=[(key.encode(), value.encode()) for key, value in said.items()])
        self.writer, self.reader = self.client.do_exchange(fl.FlightDescriptor.for_command(b"windrow"), options)
        self.wire = Reader()

    def say(self, what: bytes | Message) -> None:
        self.writer.write_metadata(what if isinstance(what, bytes) else to_bytes(what))

    def hear(self) -> Message:
        while (data := self.reader.read_chunk().app_metadata.to_pybytes()) == BEAT:
            pass
        return self.wire.read(data)

    def refusal(self) -> str:
        """Why the stream is ended by the other side."""
        try:
            while True:
                self.reader.read_chunk()
        except pa.ArrowException as error:
            return str(error)

    def __exit__(self, *_: object) -> None:
        self.reader.cancel()
        with contextlib.suppress(pa.ArrowException):
            self.writer.close()
        self.client.close()


def refused(to: Address, what: bytes | Message, **who: Any) -> str:
    """Why somebody is not let in, or is not heard."""
    try:
        with Raw(to, **who) as raw:
            with contextlib.suppress(pa.ArrowException):  # it may be over already
                raw.say(what)
            return raw.refusal()
    except pa.ArrowException as error:
        return str(error)


class North:
    """A good child, to whom events can be given at any time."""

    def __init__(self, folder: Path, root: Running, more: str = "") -> None:
        self._events, self._results = folder / "events", folder / "results"
        self._events.mkdir()
        self._given = 0
        self._folder = folder
        self._text = f"name: north\nparent: {root.address}\nsource: {{files: events}}\n{more}"
        self.running = Running(folder / "north.yaml", "local", self._text)

    def goes_on(self) -> None:
        """Ten more seconds of events arrive, and are answered."""
        times = [BEGIN + timedelta(seconds=self._given + second / 4) for second in range(40)]
        frame = pl.DataFrame({"ts": times, "x": range(40)}, schema={"ts": pl.Datetime("us", "UTC"), "x": pl.Int64})
        hidden = self._events / ".new"
        frame.write_parquet(hidden)
        hidden.rename(self._events / f"{self._given:06}.parquet")
        self._given += 10
        until(lambda: self._answered() == [4] * (self._given - 1), "the answer to new events")

    def comes_back(self) -> None:
        """Start it again, and let it go on."""
        with Running(self._folder / "north.yaml", "local", self._text):
            self.goes_on()

    def _answered(self) -> list[int]:
        with contextlib.suppress(ValueError, FileNotFoundError):
            return read_results(self._results)["n"].to_list()
        return []


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Running]:
    with Running(tmp_path / "root.yaml", "root", ROOT) as one:
        yield one


@pytest.fixture
def north(tmp_path: Path, root: Running) -> Iterator[North]:
    one = North(tmp_path, root)
    with one.running:
        one.goes_on()
        yield one


# --- bad input ------------------------------------------------------------------------------------------------------

BATCH = Batch("stranger", 1, 1, {}, 0, 1, 0, 0, {})


@pytest.mark.parametrize(
    ("what", "who", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", {}, "stranger sends what is no message: these bytes cannot be read"),
        (to_bytes(BATCH)[:-9], {}, "stranger sends what is no message"),
        (Ack(1, 1), {}, "stranger sends Ack, which only a parent says"),
        (Hello("north", 9), {}, "stranger speaks for 'north', whose token it did not show"),
        (
            Hello("stranger", 9),
            {"protocol": 7},
            f"speaks version 7 of the protocol, not {PROTOCOL}: install the same windrow",
        ),
        (Hello("north", 9**20), {"name": "north"}, "north is connected already: two nodes have this name"),
        (Hello("../etc", 9), {"name": "../etc"}, "somebody does not have the token of that name"),
    ],
)
def test_what_is_wrong_is_refused_with_the_reason_and_logged_once(
    root: Running, north: North, what: bytes | Message, who: dict[str, Any], reason: str
) -> None:
    for _ in range(3):
        assert reason in refused(root.address, what, **who)
    north.goes_on()
    assert len([line for line in root.said if line.startswith("refused")]) == 1
    assert north.running.said == []


def test_a_message_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with Running(tmp_path / "root.yaml", "root", f"{ROOT}limits: {{message: 5000}}\n") as root:
        one = North(tmp_path, root)
        with one.running:
            reason = refused(root.address, bytes(5001))
            assert "stranger sends a message of 5,001 bytes, more than 5,000; see limits: message" in reason
            one.goes_on()


def test_a_clock_far_in_the_future_is_refused(root: Running, north: North) -> None:
    ahead = time.time_ns() // 1000 + 2 * 86_400_000_000
    with Raw(root.address) as raw:
        raw.say(Hello("stranger", 1))
        assert isinstance(raw.hear(), Welcome)
        raw.say(Batch("stranger", 1, 1, {}, ahead, 1, 0, 0, {}))
        answer = raw.hear()
        assert isinstance(answer, Refused)
        assert re.search(r"its clock is 172,\d{3} seconds ahead; mend it, or raise max_ahead", answer.reason)
        raw.say(Leave("stranger", 1))
        raw.hear()
        north.goes_on()


def give_a_time_at_the_end_of_time(root: Running) -> str:
    """Why a well-formed batch with a slice that begins there is refused, each time that it comes."""
    with Raw(root.address) as raw:
        raw.say(Hello("stranger", 1))
        assert isinstance(raw.hear(), Welcome)
        table = pl.DataFrame({"slice_start": [2**63 - 1], "count().count": [1]})  # a window that ends nowhere
        for _ in range(2):
            raw.say(Batch("stranger", 1, 1, {}, 0, 1, 0, 0, {}, {"by () on ts": table}))
            answer = raw.hear()
            assert isinstance(answer, Refused)
        raw.say(Leave("stranger", 1))
        raw.hear()
    return answer.reason


def test_a_time_at_the_end_of_time_is_refused_and_no_other_child_notices(root: Running, north: North) -> None:
    reason = give_a_time_at_the_end_of_time(root)
    assert reason == "by () on ts cannot be in a batch: 'slice_start' is 9,223,372,036,854,775,807"
    north.goes_on()
    assert [line for line in root.said if reason in line] == [f"refused stranger: {reason}"]


def test_a_time_at_the_end_of_time_is_in_no_spool(tmp_path: Path) -> None:
    for _ in range(2):
        with Running(tmp_path / "root.yaml", "root", ROOT.replace("[north]", "[]")) as root:
            give_a_time_at_the_end_of_time(root)
    with Running(tmp_path / "root.yaml", "root", ROOT.replace("[north]", "[]")) as root:
        north = North(tmp_path, root)
        with north.running:
            north.goes_on()
        assert not any("refused" in line for line in root.said)


def test_what_a_machine_cannot_bear_is_refused_and_the_node_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no check has found is held against the child whose message it was."""
    monkeypatch.setattr(QuerySet, "wrong_with", lambda *_: None)
    with Running(tmp_path / "root.yaml", "root", ROOT.replace("[north]", "[]")) as root:
        with Raw(root.address) as raw:
            raw.say(Hello("stranger", 1))
            assert isinstance(raw.hear(), Welcome)
            table = pl.DataFrame({"slice_start": [2**63 - 1], "count().count": [1]})  # a window that ends nowhere
            raw.say(Batch("stranger", 1, 1, {}, 0, 1, 0, 0, {}, {"by () on ts": table}))
            answer = raw.hear()
            assert isinstance(answer, Refused)
            assert "its Batch cannot be taken: OverflowError" in answer.reason
            raw.say(Hello("stranger", 2))
            assert raw.hear() == Refused(2, answer.reason)
        north = North(tmp_path, root)
        with north.running:
            north.goes_on()
        assert root.said[0] == f"refused stranger: {answer.reason}"


def test_data_where_messages_belong_is_refused(root: Running, north: North) -> None:
    with Raw(root.address) as raw:
        raw.writer.begin(pa.schema([("x", pa.int64())]))
        raw.writer.write_batch(pa.record_batch({"x": [1]}))
        assert "stranger sends what is no message" in raw.refusal()
    north.goes_on()


def test_bytes_that_are_not_even_grpc_disturb_nobody(root: Running, north: North, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(20):
        with contextlib.suppress(OSError), socket.create_connection((root.address.host, root.address.port)) as one:
            one.sendall(dice.randbytes(dice.randint(1, 3000)))
    north.goes_on()


def test_random_and_mutated_messages_disturb_nobody(root: Running, north: North, seed: int) -> None:
    dice = random.Random(seed)
    table = pl.DataFrame({"slice_start": [0, 10], "count().count": [3, 4]})
    good = [
        to_bytes(Hello("stranger", 1)),
        to_bytes(Alive("stranger", 1, 1)),
        to_bytes(Batch("stranger", 1, 1, {"mark": {}}, 0, 1, 0, 0, {"stranger": 2}, {"by () on ts": table})),
        to_bytes(Leave("stranger", 1)),
    ]
    for number in range(60):
        with Raw(root.address, f"stranger{number}") as raw, contextlib.suppress(pa.ArrowException, StopIteration):
            raw.say(to_bytes(Hello(f"stranger{number}", 1)))
            for _ in range(5):
                raw.say(mutated(dice.choice(good).replace(b"stranger", f"stranger{number}".encode()), dice))
            raw.say(to_bytes(Leave(f"stranger{number}", 1)))
            raw.writer.done_writing()
            while True:
                raw.reader.read_chunk()
        if number % 20 == 19:
            leave_all(root, north)


def leave_all(root: Running, north: North) -> None:
    """Strangers who were let in hold the watermark back, as any child does; they go."""
    for name, child in ask(root.address, "status", {})["children"].items():
        if name != "north" and child["state"] != "left":
            with Raw(root.address, name) as raw:
                raw.say(Hello(name, 2))
                offer = raw.hear()
                if isinstance(offer, Offer):
                    raw.say(Hello(name, 2, offer.epoch))
                    raw.hear()
                raw.say(Leave(name, 2))
                raw.hear()
    north.goes_on()


def mutated(data: bytes, dice: random.Random) -> bytes:
    garbled = bytearray(data)
    for _ in range(dice.randint(0, 3)):
        place = dice.randrange(len(garbled))
        if dice.random() < 0.5:
            garbled[place] = dice.randrange(256)
        elif dice.random() < 0.5:
            del garbled[place : place + dice.randint(1, 30)]
        else:
            garbled[place:place] = dice.randbytes(dice.randint(1, 30))
        if not garbled:
            return dice.randbytes(9)
    return bytes(garbled)


def test_a_name_that_has_not_been_heard_for_long_is_free_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_server, "FLOOD", 10_000)  # it tries again and again
    timing = Timing(silent=1.0)
    with Running(tmp_path / "root.yaml", "root", ROOT, timing) as root, Raw(root.address) as first:
        first.say(Hello("stranger", 1))
        assert isinstance(first.hear(), Welcome)
        assert "stranger is connected already" in refused(root.address, Hello("stranger", 2))
        until(lambda: "sends Ack" in refused(root.address, Ack(1, 1), name="stranger"), "a free name")
        with Raw(root.address) as second:
            second.say(Hello("stranger", 2, 2))
            assert isinstance(second.hear(), Welcome)
            second.say(Leave("stranger", 2))
            second.hear()
            first.say(Hello("stranger", 3))
            assert "stranger has another stream by now" in first.refusal()


def test_streams_that_are_opened_too_often_are_refused(
    root: Running, north: North, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_server, "FLOOD", 3)  # which a busy machine reaches, too
    attempts = (refused(root.address, b"x") for _ in range(200))
    assert any("opens more than 3 streams in a second" in reason for reason in attempts)
    north.goes_on()


# --- tokens and TLS -------------------------------------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Running]:
    (tmp_path / "tokens.yaml").write_text("north: north-secret\noperator: operator-secret\n")
    (tmp_path / "tokens.yaml").chmod(0o600)
    with Running(tmp_path / "root.yaml", "root", f"{ROOT}tokens: tokens.yaml\n") as one:
        yield one


def test_a_token_is_the_name_s_own(tmp_path: Path, guarded: Running) -> None:
    north = North(tmp_path, guarded, "token: north-secret\n")
    with north.running:
        north.goes_on()
        for who in (
            {"name": "north"},
            {"name": "north", "token": "north-secre"},
            {"token": "north-secret"},
            {"name": "b", "token": "b"},
        ):
            assert "does not have the token of that name" in refused(guarded.address, b"x", **who)
        north.goes_on()
        (tmp_path / "tokens.yaml").write_text("north: north-secret\nsouth: south-secret\n")
        with Raw(guarded.address, "south", "south-secret") as joined:  # without a restart
            joined.say(Hello("south", 1))
            assert isinstance(joined.hear(), Welcome)
            joined.say(Leave("south", 1))
            joined.hear()


def test_a_node_that_is_never_let_in_says_why_and_ends(tmp_path: Path, guarded: Running) -> None:
    (tmp_path / "events").mkdir()
    text = f"name: north\nparent: {guarded.address}\nsource: {{files: events}}\ntoken: wrong-one\n"
    with Running(tmp_path / "north.yaml", "local", text) as north:
        north.join()
        assert isinstance(north.error, NodeRefused)
        assert "refuses 'north': north does not have the token of that name" in str(north.error)


def test_tls_carries_the_same_and_trusts_its_own_authority_only(tmp_path: Path) -> None:
    certificates = pytest.importorskip("windrow.nodes.transport.certificates")
    certificates.write(tmp_path / "certs", ["localhost"])
    certificates.write(tmp_path / "other", ["localhost"])
    secure = ROOT.replace("127.0.0.1:0", "localhost:0") + "tls: {cert: certs/localhost.pem, key: certs/localhost.key}\n"
    with Running(tmp_path / "root.yaml", "root", secure) as root:
        assert root.address.tls
        north = North(tmp_path, root, "tls: {ca: certs/ca.pem}\n")
        with north.running:
            north.goes_on()
            with pytest.raises(OSError, match="cannot be reached"):
                ask(root.address, "status", {}, (tmp_path / "other/ca.pem").read_bytes())
            with pytest.raises(OSError, match="localhost"):
                ask(Address("localhost", root.address.port), "status", {})  # in the clear
            north.goes_on()
            said = ask(root.address, "status", {}, (tmp_path / "certs/ca.pem").read_bytes())
            assert said["children"]["north"]["connected"]


@pytest.mark.parametrize(
    ("role", "text", "reason"),
    [
        (
            "root",
            ROOT.replace("127.0.0.1", "0.0.0.0"),
            r"line 3: listen: 0\.0\.0\.0:0 can be reached from other machines: set tls: .* and tokens: FILE, or listen",
        ),
        (
            "local",
            "name: a\nsource: stdin\nparent: grpc://plant:8815\n",
            r"line 3: parent: grpc://plant:8815 is another machine: write grpc\+tls://plant:8815, and tls: \{ca: …\}",
        ),
        (
            "local",
            "name: a\nsource: stdin\nparent: grpc+tls://plant:8815\n",
            r"line 3: parent: .* is another machine: set token_file",
        ),
    ],
)
def test_only_loopback_may_go_without_tls_and_tokens(tmp_path: Path, role: Any, text: str, reason: str) -> None:
    (tmp_path / "node.yaml").write_text(text)
    with pytest.raises(ConfigError, match=reason):
        read(tmp_path / "node.yaml", role)


@pytest.mark.parametrize("text", ["[a, b]", "a: short", "a: [1]", ": :"])
def test_a_file_of_tokens_is_names_and_tokens(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokens").write_text(text)
    (tmp_path / "tokens").chmod(0o600)
    with pytest.raises(AccessError, match=r"tokens"):
        Tokens(tmp_path / "tokens")


# --- an operator ----------------------------------------------------------------------------------------------------


def test_an_operator_sees_the_status_and_changes_queries(tmp_path: Path, root: Running, north: North) -> None:
    said = ask(root.address, "status", {})
    assert (said["name"], said["role"], said["queries"]) == ("root", "root", ["q1"])
    assert said["children"]["north"]["state"] == "live"
    assert [line.split()[:2] for line in table(seen(said)).splitlines()[1:]] == [["root", "running"], ["north", "live"]]
    sql = "-- name: most\nSELECT max(x) AS most FROM events GROUP BY window(ts, '2 seconds')"
    assert ask(root.address, "add", {"text": sql}) == {"added": ["most"]}
    with pytest.raises(ValueError, match="there already is a query called 'most'"):
        ask(root.address, "add", {"text": sql})
    until(lambda: north.running.node.status()["plan"] == 2, "the plan at the node")
    newest = int((BEGIN + timedelta(seconds=9.75)).timestamp() * 1e6)
    until(lambda: ask(root.address, "status", {})["since"] == {"most": newest + 1}, "from when on it is answered")
    assert ask(root.address, "remove", {"text": "most"}) == {"removed": "most"}
    assert ask(root.address, "status", {})["since"] == {}
    with pytest.raises(ValueError, match="there is no query called 'most'"):
        ask(root.address, "remove", {"text": "most"})
    with pytest.raises(ValueError, match="nobody can be asked for 'dance'"):
        ask(root.address, "dance", {})
    north.goes_on()


def test_only_the_operator_s_token_may_ask(guarded: Running) -> None:
    assert ask(guarded.address, "status", {}, token="operator-secret")["name"] == "root"
    for token in (None, "north-secret"):
        with pytest.raises(ValueError, match="operator does not have the token"):
            ask(guarded.address, "status", {}, token=token)


def test_a_spool_is_used_by_one_process(tmp_path: Path, root: Running) -> None:
    with Running(tmp_path / "again.yaml", "root", ROOT) as again:
        again.join()
        assert isinstance(again.error, ConfigError)
        assert "already uses" in str(again.error)
    assert root.error is None


def test_a_node_that_is_stopped_leaves_and_one_that_stays_is_waited_for(tmp_path: Path, root: Running) -> None:
    north = North(tmp_path, root)
    with north.running:
        north.goes_on()
    until(lambda: "north has left" in root.said, "the leave")
    assert root.node.status()["children"]["north"]["events"] == {"north": 40}  # the open slice, too
    with Running(tmp_path / "north.yaml", "local", (tmp_path / "north.yaml").read_text() + "at_stop: stay\n"):
        until(lambda: "north is back" in root.said, "its return")
    assert root.node.status()["children"]["north"]["state"] == "live"


def test_a_child_that_a_root_is_started_without_is_not_waited_for(tmp_path: Path) -> None:
    text = ROOT.replace("joins: true\n", "")
    with Running(tmp_path / "root.yaml", "root", text) as root, Raw(root.address, "north") as north:
        north.say(Hello("north", 1))
        north.hear()
    with Running(tmp_path / "root.yaml", "root", text.replace("[north]", "[south]")) as root:
        assert root.said == ["north is none of its children any more; the watermark does not wait for it"]
        assert root.node.status()["children"]["north"]["state"] == "left"


def test_a_root_that_feeds_slices_leaves_them_in_its_spool(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    times = [BEGIN + timedelta(seconds=second) for second in range(10)]
    frame = pl.DataFrame({"ts": times, "x": range(10)}, schema={"ts": pl.Datetime("us", "UTC"), "x": pl.Int64})
    frame.write_parquet(tmp_path / "events/0.parquet")
    with Running(tmp_path / "root.yaml", "root", f"{ROOT}feeds: slices\n") as root:
        text = f"name: north\nparent: {root.address}\nsource: {{files: events, until_end: true}}\n"
        with Running(tmp_path / "north.yaml", "local", text) as north:
            north.join()
            root.join()  # all sources have ended
        assert (north.error, root.error) == (None, None)
    outlet = SliceSink(tmp_path / "root")
    batches = [outlet.read(number) for number in outlet.numbers]
    assert sum(batch.tables["by () on ts"]["count().count"].sum() for batch in batches if batch.tables) == 10
    assert (batches[-1].events, batches[-1].watermark) == ({"north": 10}, 2**63 - 1)


# --- links ----------------------------------------------------------------------------------------------------------


def refuse_all(kind: str, given: Any) -> dict[str, Any]:
    raise AssertionError(kind)


@contextlib.contextmanager
def serving(take: Callable[[str, Message], None], listen: Address = LOOPBACK, **more: Any) -> Iterator[Server]:
    server = Server(listen, take, refuse_all, lambda text: None, **more)
    try:
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def linked(to: Address, heard: list[Message] | None = None, notes: list[str] | None = None) -> Iterator[Client]:
    opened = threading.Event()
    taken: list[Message] = [] if heard is None else heard
    noted: list[str] = [] if notes is None else notes
    one = Client("a", to, taken.append, opened.set, noted.append, noted.append)
    one.start()
    assert opened.wait(PATIENCE)
    try:
        yield one
    finally:
        one.close()


class Proxy(contextlib.AbstractContextManager["Proxy"]):
    """Passes bytes on between a child and its parent, counts them, and can be cut."""

    def __init__(self, to: Address) -> None:
        self.up = self.down = 0
        self._to = to
        self._ends: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._server.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                child, _ = self._server.accept()
                parent = socket.create_connection((self._to.host, self._to.port))
                self._ends += [child, parent]
                for ends in ((child, parent, "up"), (parent, child, "down")):
                    self._threads.append(threading.Thread(target=self._pass, args=ends))
                    self._threads[-1].start()

    def _pass(self, source: socket.socket, to: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                setattr(self, way, getattr(self, way) + len(data))
                to.sendall(data)
        with contextlib.suppress(OSError):
            to.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        for one in self._ends:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()
        for thread in self._threads:
            thread.join()
        for one in self._ends:
            one.close()


def test_what_waits_at_the_end_still_arrives() -> None:
    taken: list[Message] = []
    with serving(lambda name, message: taken.append(message)) as server, linked(server.address) as one:
        for number in range(100):
            one.send(Alive("a", number, 0))
    assert taken == [Alive("a", number, 0) for number in range(100)]


def test_a_link_that_is_cut_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LONGEST_DELAY", 0.1)
    taken: list[Message] = []
    notes: list[str] = []
    with (
        serving(lambda name, message: taken.append(message)) as server,
        Proxy(server.address) as proxy,
        linked(proxy.address, notes=notes) as one,
    ):
        for number in range(1, 4):
            one.send(Alive("a", number, 0))
            until(lambda number=number: Alive("a", number, 0) in taken, "the message")
            proxy.cut()
            again = f"connected to {proxy.address} again"
            until(lambda number=number, again=again: notes.count(again) == number, "the next stream")
    assert notes[0].startswith(f"no stream to {proxy.address}: ")
    assert server.traffic()["a"].messages_up == 3  # of all streams


def test_a_parent_that_says_nothing_is_given_up() -> None:
    opened: list[int] = []
    notes: list[str] = []
    with serving(lambda name, message: None, timing=Timing(beat=60.0)) as server:
        one = Client(
            "a",
            server.address,
            lambda message: None,
            lambda: opened.append(1),
            notes.append,
            notes.append,
            timing=Timing(beat=0.1, lost=0.5),
        )
        one.start()
        until(lambda: len(opened) >= 2, "another stream")
        one.close()
    assert notes[0] == f"no stream to {server.address}: it has sent nothing for 0.5 seconds; it is tried again"


def test_a_child_is_read_no_faster_than_its_rate() -> None:
    times: list[float] = []
    take: Callable[[str, Message], None] = lambda name, message: times.append(time.monotonic())  # noqa: E731
    with serving(take, limits=Limits(rate=200)) as server, linked(server.address) as one:
        for number in range(250):
            one.send(Alive("a", number, 0))
        until(lambda: len(times) == 250, "all messages")
    assert times[-1] - times[0] >= 0.2  # 200 at once, the others one by one


def test_a_slow_parent_holds_its_child_back_and_nothing_grows() -> None:
    free = threading.Semaphore(0)
    taken: list[Message] = []

    def take(name: str, message: Message) -> None:
        free.acquire()
        taken.append(message)

    table = pl.DataFrame({"x": random.Random(0).randbytes(200_000).hex()})
    with serving(take) as server, linked(server.address) as one:
        for number in range(1, 3 * ROOM):
            one.send(Batch("a", 1, number, {}, 0, 1, 0, 0, {}, {"t": table}))  # 400 kB each, and never blocks
        moved = 0
        while moved != (moved := one.traffic().bytes_up):  # until the wire stands still
            time.sleep(0.2)
        assert moved < 20_000_000
        for _ in range(3 * ROOM):
            free.release()
        until(lambda: len(taken) >= ROOM, "what had room")
    numbers = [one.number for one in taken if isinstance(one, Batch)]
    assert numbers == sorted(numbers)
    assert numbers[:ROOM] == list(range(1, ROOM + 1))


def test_a_queue_keeps_what_says_most_and_no_more_than_it_has_room_for() -> None:
    waiting = Outgoing(room=3)
    for message in (Ack(1, 1), Ack(1, 2), BATCH, BATCH, Ack(1, 3), Hello("a", 1), Hello("b", 1)):
        waiting.put(message)
    assert [waiting.take() for _ in range(4)] == [Ack(1, 2), BATCH, Ack(1, 3), None]


# --- bytes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [True, False], ids=["as the kernel counts", "as it is framed"])
def test_bytes_are_those_on_the_wire(kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernel:
        monkeypatch.setattr(flight_server, "connections", dict)
        monkeypatch.setattr(client, "connections", dict)
    taken: list[Message] = []
    heard: list[Message] = []
    table = pl.DataFrame({"x": random.Random(0).randbytes(50_000).hex()})
    with (
        serving(lambda name, message: taken.append(message)) as server,
        Proxy(server.address) as proxy,
        linked(proxy.address, heard) as one,
    ):
        for number in range(1, 101):
            one.send(Batch("a", 1, number, {}, 0, 1, 0, 0, {}, {"t": table}))
            server.send("a", Welcome(1, number, {}, {"some": "text" * 100}))
        until(lambda: len(taken) == 100 and len(heard) == 100, "all messages")
        at_child, at_parent = one.traffic(), server.traffic()["a"]
    for counted in (at_child, at_parent):
        assert isinstance(counted, Traffic)
        assert (counted.messages_up, counted.messages_down) == (100, 100)
        assert 0.97 * proxy.up <= counted.bytes_up <= 1.05 * proxy.up
        if kernel:  # and the headers of TCP and IP of every segment, many of which are empty
            assert proxy.down <= counted.bytes_down
        else:
            assert 0.5 * proxy.down <= counted.bytes_down <= proxy.down


def test_files_of_tls_must_be_there_and_be_pem(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("no")
    for files, reason in (
        (Files(cert=tmp_path / "none"), "cannot be read"),
        (Files(cert=tmp_path / "x"), "is not PEM"),
    ):
        with pytest.raises(AccessError, match=reason):
            Server(LOOPBACK, lambda name, message: None, refuse_all, lambda text: None, tls=files)


def test_where_it_cannot_listen_it_says_why(tmp_path: Path, root: Running) -> None:
    certificates = pytest.importorskip("windrow.nodes.transport.certificates")
    certificates.write(tmp_path, ["localhost", "127.0.0.1"])
    mixed = Files(cert=tmp_path / "localhost.pem", key=tmp_path / "127.0.0.1.key")
    for where, tls, reason in (
        (root.address, Files(), "Address already in use"),
        (LOOPBACK, mixed, "its certificate and key do not fit each other"),
    ):
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:.*: {reason}"):
            Server(where, lambda name, message: None, refuse_all, lambda text: None, tls=tls)
