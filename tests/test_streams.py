"""When a stream is lost, and when not, seen at both ends; and how many threads streams cost. Over real sockets, with a
proxy between the ends that passes nothing on any more, and keeps every connection open."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest

from proxy import WAYS, Proxy
from test_flight import BEGIN, LOOPBACK, ROOT, Raw, Running, refuse_all, refused, until
from windrow.nodes.process.result_sink import read_results
from windrow.nodes.protocol.messages import Alive, Batch, Hello, Message, Welcome
from windrow.nodes.transport import server as flight_server
from windrow.nodes.transport.client import Client
from windrow.nodes.transport.security import Address
from windrow.nodes.transport.server import Server
from windrow.nodes.transport.streams import KEPT, TIMING, WATCH, Timing
from windrow.nodes.transport.traffic import connections

QUICK = Timing(beat=0.2, silent=0.75, lost=1.5)
MEGABYTE = pl.DataFrame({"x": random.Random(0).randbytes(500_000).hex()})


def batch(number: int) -> Batch:
    return Batch("a", 1, number, {}, 0, 1, 0, 0, {}, {"t": MEGABYTE})


def welcome(number: int) -> Welcome:
    return Welcome(1, number, {}, {}, {"t": MEGABYTE})


class Ends(contextlib.AbstractContextManager["Ends"]):
    """A parent, a child called `a`, and what lies between them; what each has taken and noted."""

    def __init__(self, timing: Timing = QUICK) -> None:
        self.up: list[Message] = []
        self.down: list[Message] = []
        self.parent_notes: list[str] = []
        self.child_notes: list[str] = []
        self.opened = 0
        self.parent_is_free, self.child_is_free = threading.Event(), threading.Event()
        self.parent_is_free.set()
        self.child_is_free.set()
        self.timing = timing
        self.server = Server(LOOPBACK, self._take_up, refuse_all, self.parent_notes.append, timing=timing)
        self.proxy = Proxy(lambda: self.server.address.port)
        self.address = Address("127.0.0.1", self.proxy.port)
        note = self.child_notes.append
        self.child = Client("a", self.address, self._take_down, self._open, note, note, timing=timing)
        self.child.start()
        until(lambda: self.opened and "a" in self.server.connected, "the stream")

    def _take_up(self, name: str, message: Message) -> None:
        self.parent_is_free.wait()
        self.up.append(message)

    def _take_down(self, message: Message) -> None:
        self.child_is_free.wait()
        self.down.append(message)

    def _open(self) -> None:
        self.opened += 1

    @property
    def lost_at_parent(self) -> str:
        return f"a has sent nothing for {self.timing.lost:g} seconds: its stream is ended"

    @property
    def lost_at_child(self) -> str:
        return f"no stream to {self.address}: it has sent nothing for {self.timing.lost:g} seconds; it is tried again"

    def passes(self) -> None:
        """Whatever is sent now arrives, both ways."""
        self.child.send(Alive("a", 1, 77))
        self.server.send("a", Welcome(1, 77, {}, {}))
        until(lambda: Alive("a", 1, 77) in self.up and Welcome(1, 77, {}, {}) in self.down, "a message each way")

    def __exit__(self, *_: object) -> None:
        self.parent_is_free.set()
        self.child_is_free.set()
        self.child.close()
        self.server.close()
        self.proxy.close()


# --- streams that are lost ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("large", [(), ("up",), ("down",), WAYS], ids=["small", "up", "down", "both"])
def test_a_half_open_stream_is_noticed_at_both_ends_whatever_is_on_the_way(large: tuple[str, ...]) -> None:
    with Ends() as ends:
        ends.passes()
        (parent_side,) = [one for one in connections() if one[0][1] == ends.server.address.port]
        (child_side,) = [one for one in connections() if one[1][1] == ends.proxy.port]
        assert ends.proxy.half_open() == 1
        for number in range(1, 21):  # more than fits between the ends
            if "up" in large:
                ends.child.send(batch(number))
            if "down" in large:
                ends.server.send("a", welcome(number))
        until(lambda: ends.lost_at_child in ends.child_notes, "the child's notice")
        until(lambda: ends.lost_at_parent in ends.parent_notes, "the parent's notice")
        until(lambda: not {parent_side, child_side} & set(connections()), "the end of the connection at both ends")
        until(lambda: ends.opened == 2, "the next stream")
        ends.passes()
        until(lambda: WATCH.threads <= KEPT, "the end of threads that were blocked")
        assert ends.server.connected == {"a"}


@pytest.mark.parametrize("way", WAYS)
def test_one_way_that_is_stuck_ends_the_stream_at_both_ends(way: str) -> None:
    with Ends() as ends:
        ends.proxy.half_open({way})
        until(lambda: ends.opened == 2, "the next stream")
        assert ends.lost_at_parent in ends.parent_notes or ends.lost_at_child in ends.child_notes
        ends.passes()
        assert ends.server.connected == {"a"}


def test_with_the_limits_that_nodes_have_it_is_noticed_within_15_seconds() -> None:
    with Ends(TIMING) as ends:
        ends.passes()
        ends.proxy.half_open()
        begin = time.monotonic()
        for number in range(1, 21):
            ends.child.send(batch(number))
            ends.server.send("a", welcome(number))
        until(lambda: ends.lost_at_child in ends.child_notes, "the child's notice")
        until(lambda: ends.lost_at_parent in ends.parent_notes, "the parent's notice")
        assert 9 < time.monotonic() - begin < 15
        until(lambda: ends.opened == 2, "the next stream")
        ends.passes()


def test_where_connections_cannot_be_found_the_name_is_free_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_server, "shut", lambda ends: False)  # as on other systems than Linux
    with serving_alone() as server, Raw(server.address, "a") as raw:
        raw.say(Hello("a", 1))
        until(lambda: "a" in server.connected, "the stream")
        begin = time.monotonic()
        until(lambda: not server.connected, "its end")
        assert time.monotonic() - begin < 8  # though its HTTP/2 answers our beats by itself, for longer
        with Raw(server.address, "a") as again:
            again.say(Hello("a", 1))
            until(lambda: "a" in server.connected, "the next stream")


@contextlib.contextmanager
def serving_alone(timing: Timing = QUICK, **more: object) -> Iterator[Server]:
    server = Server(LOOPBACK, lambda name, message: None, refuse_all, lambda text: None, timing=timing, **more)  # type: ignore[arg-type]
    try:
        yield server
    finally:
        server.close()


def test_a_parent_that_closes_lets_nobody_wait() -> None:
    with serving_alone(TIMING) as server, Raw(server.address, "a") as raw:
        raw.say(Hello("a", 1))
        until(lambda: "a" in server.connected, "the stream")
        server.close(0.1)
        with contextlib.suppress(StopIteration):
            raw.refusal()
        until(lambda: not any(one[0][1] == server.address.port for one in connections()), "the end of its connections")


def test_all_windows_are_right_though_the_link_was_half_open_with_data_on_it(tmp_path: Path, seed: int) -> None:
    query = "SELECT x, count(*) AS n FROM events GROUP BY x, window(ts, '1 second')"
    text = ROOT.replace("SELECT count(*) AS n FROM events GROUP BY window(ts, '1 second')", query)
    (tmp_path / "events").mkdir()
    dice = random.Random(seed)
    given: list[pl.DataFrame] = []

    def more_events() -> None:
        """Twenty seconds, whose slices are megabytes, because no two keys are the same."""
        times = [BEGIN + timedelta(seconds=20 * len(given), microseconds=100 * row) for row in range(200_000)]
        keys = pl.Series([dice.getrandbits(62) for _ in times], dtype=pl.Int64)
        frame = pl.DataFrame({"ts": pl.Series(times, dtype=pl.Datetime("us", "UTC")), "x": keys})
        given.append(frame)
        frame.write_parquet(tmp_path / "events/.new")
        (tmp_path / "events/.new").rename(tmp_path / f"events/{len(given)}.parquet")

    def answered() -> int:
        with contextlib.suppress(ValueError, FileNotFoundError):
            return read_results(tmp_path / "results").height
        return 0

    with Running(tmp_path / "root.yaml", "root", text, QUICK) as root, Proxy(lambda: root.address.port) as proxy:
        north_text = f"name: north\nparent: grpc://127.0.0.1:{proxy.port}\nsource: {{files: events}}\n"
        with Running(tmp_path / "north.yaml", "local", north_text, QUICK) as north:
            for life in range(1, 3):
                more_events()
                until(lambda life=life: answered() >= (life - 1) * 200_000 + 10_000, "the first windows")
                assert proxy.half_open() == 1
                until(lambda life=life: len([line for line in north.said if "again" in line]) >= 2 * life, "the return")
            more_events()
            until(lambda: answered() >= 590_000, "the last windows")
            until(lambda: len([line for line in root.said if "its stream is ended" in line]) >= 1, "the root's notice")
    found = read_results(tmp_path / "results").select("x", "window_start", "n").sort("window_start", "x")
    expected = (
        pl.concat(given)
        .filter(pl.col("ts") < BEGIN + timedelta(seconds=59))  # the last window is still open
        .group_by("x", pl.col("ts").dt.truncate("1s").alias("window_start"))
        .agg(pl.len().cast(pl.Int64).alias("n"))
        .sort("window_start", "x")
    )
    assert found.equals(expected.select(found.columns))


# --- streams that are not ---------------------------------------------------------------------------------------------


def test_an_end_that_takes_nothing_for_long_is_not_lost_and_loses_nobody() -> None:
    with Ends() as ends:
        ends.parent_is_free.clear()
        ends.child_is_free.clear()
        for number in range(1, 21):  # more than fits between the ends, so that beats of both are behind them
            ends.child.send(batch(number))
            ends.server.send("a", welcome(number))
        busy_until = time.monotonic() + 3 * ends.timing.lost
        until(lambda: time.monotonic() > busy_until, "so long")
        assert ends.child_notes == ends.parent_notes == []
        ends.parent_is_free.set()
        ends.child_is_free.set()
        until(lambda: len(ends.up) == len(ends.down) == 20, "all messages")
        assert (ends.opened, ends.child_notes, ends.parent_notes) == (1, [], [])


@pytest.mark.parametrize("way", WAYS)
def test_a_long_message_over_a_slow_line_is_no_silence(way: str) -> None:
    with Ends() as ends:
        ends.proxy.delay = 0.08  # for 16 kB: 200 kB in a second
        begin = time.monotonic()
        if way == "up":
            ends.child.send(batch(1))
        else:
            ends.server.send("a", welcome(1))
        until(lambda: ends.up or ends.down, "the message")
        assert time.monotonic() - begin > 2 * ends.timing.lost
        assert (ends.opened, ends.child_notes, ends.parent_notes) == (1, [], [])


# --- threads ----------------------------------------------------------------------------------------------------------

CHILDREN = """
import sys, time
from windrow.nodes.transport.client import Client
from windrow.nodes.transport.security import Address

def nothing(*_): pass

children = [Client(f"c{number}", Address.of(sys.argv[1]), nothing, nothing, nothing, nothing) for number in range(60)]
for child in children:
    child.start()
sys.stdin.read()
for child in children:
    child.close()
"""


def test_a_stream_costs_its_parent_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving_alone(TIMING) as server:
        before = len(os.listdir("/proc/self/task"))
        command = [sys.executable, "-c", CHILDREN, str(server.address)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as children:
            try:
                until(lambda: len(server.connected) == 60, "all children")
                assert len(os.listdir("/proc/self/task")) - before < 60 + 20
            finally:
                children.communicate()
        until(lambda: not server.connected, "the end of all streams")


def test_streams_that_are_blocked_hold_nobody_else_back() -> None:
    free = threading.Event()
    got: list[Message] = []
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731

    def child(name: str, take: Callable[[Message], None]) -> Client:
        one = Client(name, server.address, take, nothing, nothing, nothing)
        one.start()
        return one

    with serving_alone(TIMING) as server:
        blocked = [child(f"blocked{number}", lambda message: (free.wait(), None)[1]) for number in range(3 * KEPT)]
        other = child("other", got.append)
        try:
            until(lambda: len(server.connected) == 3 * KEPT + 1, "all streams")
            for number in range(20):
                for name in server.connected - {"other"}:
                    server.send(name, welcome(number))
            until(lambda: WATCH.threads > 3 * KEPT, "threads for all that are blocked")
            server.send("other", welcome(1))
            until(lambda: got, "the message of one that is not blocked")
            free.set()
            until(lambda: WATCH.threads <= KEPT + 1, "the end of threads that nobody needs")
        finally:
            free.set()
            for one in (*blocked, other):
                one.close()


# --- names ------------------------------------------------------------------------------------------------------------


def test_nobody_comes_in_by_the_name_of_the_operator_or_of_the_node_itself(tmp_path: Path) -> None:
    (tmp_path / "tokens.yaml").write_text("operator: operator-secret\nroot: root-secret\n")
    (tmp_path / "tokens.yaml").chmod(0o600)
    with Running(tmp_path / "root.yaml", "root", f"{ROOT}tokens: tokens.yaml\n") as root:
        for name, whose in (("operator", "of who may ask"), ("root", "of its parent itself")):
            reason = refused(root.address, Hello(name, 1), name=name, token=f"{name}-secret")
            assert f"{name} has the name {whose}, which no child has: give it another" in reason
        assert list(root.node.status()["children"]) == ["north"]
