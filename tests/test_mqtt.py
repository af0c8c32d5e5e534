"""MQTT with a real broker: every message once and in order, whatever breaks."""

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import windrow as wr
from mosquitto import Cable, Mosquitto, binary
from small_tree import SmallTree, rows_of
from windrow.core.arrays.dataframes import InputError
from windrow.nodes.sources import Source, SourceError, mqtt, source_of

pytestmark = pytest.mark.mqtt
paho = pytest.importorskip("paho.mqtt.client")

NEEDED: dict[str, pl.DataType] = {"k": pl.Int64()}
PATIENCE = 30.0


@pytest.fixture(scope="module")
def installed() -> None:
    """Debian's Mosquitto; root gets it by itself, once however many workers there are."""
    with (Path(tempfile.gettempdir()) / "windrow-mosquitto.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if binary() is None and os.geteuid() == 0:
            install = "apt-get update -qq && apt-get install -y -qq --no-install-recommends mosquitto"
            quietly = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(["sh", "-c", install], env=quietly, capture_output=True, check=False)
    if binary() is None:
        pytest.skip("left out: there is no Mosquitto here (apt-get install mosquitto)")


@pytest.fixture
def broker(installed: None, tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path) as made:
        yield made


def source(broker: Mosquitto | Cable, node: str = "north", **options: Any) -> Source:
    described = {"kind": "mqtt", "topic": "plant/#", "host": "127.0.0.1", "port": broker.port}
    return source_of({**described, **options}, node)


def begun(broker: Mosquitto | Cable, mark: dict[str, Any] | None = None, node: str = "north", **options: Any) -> Any:
    """A source whose session is there."""
    made: Any = source(broker, node, **options)
    made.resume(mark or {})
    assert made._client.subscribed.wait(PATIENCE), (made._client.failure, made.notes)
    return made


class Publisher:
    def __init__(self, broker: Mosquitto) -> None:
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, "publisher", protocol=paho.MQTTv5)
        self._client.max_inflight_messages_set(1000)
        self._client.reconnect_delay_set(0.1, 1)
        self._there = threading.Event()
        self._client.on_connect = lambda *_: self._there.set()
        self._client.on_disconnect = lambda *_: self._there.clear()
        self._client.connect("127.0.0.1", broker.port)
        self._client.loop_start()

    def __call__(self, *payloads: Any, topic: str = "plant/a", retain: bool = False) -> None:
        assert self._there.wait(PATIENCE)
        several = [one if isinstance(one, bytes) else json.dumps(one) for one in payloads]
        for info in [self._client.publish(topic, one, qos=1, retain=retain) for one in several]:
            info.wait_for_publish(PATIENCE)

    def numbers(self, begin: int, end: int) -> None:
        self(*({"k": number} for number in range(begin, end)))

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def publish(broker: Mosquitto) -> Iterator[Publisher]:
    made = Publisher(broker)
    yield made
    made.close()


def numbers_of(made: Source, enough: Callable[[list[int]], bool]) -> tuple[list[int], dict[str, Any]]:
    found: list[int] = []
    mark: dict[str, Any] = {}
    until = time.monotonic() + PATIENCE
    while not enough(found):
        read = made.read(NEEDED, 0.2)
        if read is not None:
            found += read.events["k"].to_list()
            mark = read.mark
        assert time.monotonic() < until, (found[-5:], made.notes)
    return found, mark


def test_messages_come_in_their_order_with_topic_and_arrival(broker: Mosquitto, publish: Publisher) -> None:
    publish({"k": 0}, topic="plant/old", retain=True)  # which happened before
    made = begun(broker, topic_column="where", arrival_column="at", topic=["plant/+", "shed"])
    publish({"k": 1}, [{"k": 2}, {"k": 3}], b'{"k": 4}\n{"k": 5}\n', b"")
    publish({"k": 6}, topic="shed")
    publish({"k": 7}, topic="elsewhere")
    publish({"k": 8}, topic="plant/b", retain=True)
    needed: dict[str, pl.DataType] = {
        "at": pl.Datetime("us", "UTC"),
        **NEEDED,
        "where": pl.String(),
        "node": pl.String(),
    }
    frames: list[pl.DataFrame] = []
    while sum(frame.height for frame in frames) < 7:
        read = made.read(needed, PATIENCE)
        frames.append(read.events)
    found = pl.concat(frames)
    assert found["k"].to_list() == [1, 2, 3, 4, 5, 6, 8]
    assert found["where"].to_list() == [*["plant/a"] * 5, "shed", "plant/b"]
    assert abs((found["at"][0] - datetime.now(UTC)).total_seconds()) < 60
    assert not made.replayable  # further than the broker remembers
    made.close()


def test_what_the_parent_holds_does_not_come_again_and_what_it_does_not_hold_does(
    broker: Mosquitto, publish: Publisher
) -> None:
    made = begun(broker)
    publish.numbers(0, 5)
    _, mark = numbers_of(made, lambda found: len(found) == 5)
    publish.numbers(5, 8)
    numbers_of(made, lambda found: len(found) == 3)
    made.close()
    publish.numbers(8, 10)  # while it is away
    made = begun(broker, mark)
    assert numbers_of(made, lambda found: 9 in found)[0] == [5, 6, 7, 8, 9]
    assert made.notes == []
    made.close()


def test_a_node_holds_a_bounded_number_of_messages(broker: Mosquitto, publish: Publisher) -> None:
    made = begun(broker, unconfirmed=5)
    publish.numbers(0, 200)
    found: list[int] = []
    until = time.monotonic() + PATIENCE
    while len(found) < 200:
        read = made.read(NEEDED, 0.2)
        assert time.monotonic() < until
        if read is not None:
            assert read.events.height <= 10
            found += read.events["k"].to_list()
            made.confirm(read.mark)
    assert found == list(range(200))
    made.close()


def test_every_message_once_whatever_breaks(broker: Mosquitto, publish: Publisher, seed: int) -> None:
    """A node that crashes at any moment, over a cable that breaks, with a parent that has taken some of its batches."""
    dice = random.Random(seed)
    held: list[int] = []
    mark: dict[str, Any] = {}
    published = step = 0
    with Cable(broker.port) as cable:
        made = begun(cable, unconfirmed=50)
        sent: list[Any] = []  # batches that the parent has not taken
        until = time.monotonic() + 2 * PATIENCE
        while len(held) < 1000:
            assert time.monotonic() < until, (len(held), made.notes)
            if published < 1000:
                publish.numbers(published, published + 20)
                published += 20
            read = made.read(NEEDED, 0.02 if published < 1000 else 0.2)
            sent += [] if read is None else [read]
            for _ in range(dice.randint(0, len(sent)) if published < 1000 else len(sent)):
                taken = sent.pop(0)
                held += taken.events["k"].to_list()
                mark = json.loads(json.dumps(taken.mark))
            if dice.random() < 0.7 or len(sent) > 1:
                made.confirm(mark)
            step += 1
            if step % 7 == 3:
                cable.cut()
            if step % 5 == 4 and published < 1000:
                if dice.random() < 0.5:
                    cable.cut()  # what it would still say does not arrive
                made.close()
                sent = []
                made = begun(cable, mark, unconfirmed=50)
        made.close()
    assert held == list(range(1000))
    assert step > 20


def test_a_tree_over_mqtt_says_what_one_process_says_whatever_dies(broker: Mosquitto, publish: Publisher) -> None:
    """Windows stay open for much longer than the broker waits for an acknowledgement."""
    columns: dict[str, pl.DataType] = {"ts": pl.Datetime("us", "UTC"), "k": pl.Int64()}
    queries = [
        wr.Query("a", wr.tumbling("1 second"), ["count()", "sum(k)"]),
        wr.Query("b", wr.session("9 ms"), "count()"),
    ]
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    times = [begin + timedelta(milliseconds=7 * number + 5 * (number % 3)) for number in range(400)]
    events = pl.DataFrame({"ts": times, "k": range(400)}, schema=columns)
    tree = SmallTree(queries, columns, lambda: source(broker, unconfirmed=20), lateness="10 ms")
    tree.step(0.0)
    made: Any = tree.source
    assert made._client.subscribed.wait(PATIENCE)  # from then on the broker has a session
    publish(*(line.encode() for line in events.write_ndjson().splitlines()))
    publish({"ts": "2027-01-01T00:00:00Z", "k": -1})  # which closes all others
    until, step = time.monotonic() + PATIENCE, 0
    while tree.local.watermark < 1_798_000_000_000_000:
        assert time.monotonic() < until
        step += 1
        tree.step(0.1, lost=step % 5 == 4)
        if step % 5 == 4:
            tree.kill()
    tree.source.close()
    assert step > 10
    assert rows_of(tree.results) == rows_of(wr.windows(events, queries, time="ts"))


def test_a_source_can_go_on_in_the_same_life(broker: Mosquitto, publish: Publisher) -> None:
    made = begun(broker)
    publish.numbers(0, 3)
    _, mark = numbers_of(made, lambda found: 2 in found)
    publish.numbers(3, 6)
    numbers_of(made, lambda found: 5 in found)
    made.resume(mark)  # as far as the node is; the parent has nothing yet
    assert numbers_of(made, lambda found: 5 in found)[0] == [3, 4, 5]
    made.close()
    made = begun(broker)
    assert numbers_of(made, lambda found: 5 in found)[0] == list(range(6))
    made.close()


def test_the_check_of_once_can_fail(broker: Mosquitto, publish: Publisher) -> None:
    made = begun(broker)
    publish.numbers(0, 5)
    held, _ = numbers_of(made, lambda found: len(found) == 5)
    made.close()
    made = begun(broker)  # as if nothing were held
    assert held + numbers_of(made, lambda found: len(found) == 5)[0] != list(range(5))
    made.close()


NODE = """
import json, os, sys
import polars as pl
from windrow.nodes.sources import source_of

port, path = sys.argv[1:]
with open(path, "a+b") as file:
    file.seek(0)
    held = file.read()
    file.truncate(held.rfind(b"\\n") + 1)  # what a kill has cut short is not held
    lines = held[: held.rfind(b"\\n") + 1].splitlines()
    made = source_of({"mqtt": "plant/#", "host": "127.0.0.1", "port": int(port), "unconfirmed": 100}, "north")
    made.resume(json.loads(lines[-1])["mark"] if lines else {})
    while True:
        read = made.read({"k": pl.Int64()}, 1.0)
        if read is not None:
            file.write(json.dumps({"k": read.events["k"].to_list(), "mark": read.mark}).encode() + b"\\n")
            file.flush()
            made.confirm(read.mark)
"""


def test_a_node_that_is_killed_goes_on_where_its_parent_is(
    broker: Mosquitto, publish: Publisher, tmp_path: Path
) -> None:
    path = tmp_path / "held"
    begun(broker, unconfirmed=100).close()

    def held() -> list[int]:
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [number for line in lines for number in json.loads(line)["k"]]

    for life, enough in enumerate((70, 270, 600)):
        publish.numbers(200 * life, 200 * (life + 1))
        process = subprocess.Popen([sys.executable, "-c", NODE, str(broker.port), str(path)])
        until = time.monotonic() + 2 * PATIENCE
        while len(held()) < enough:
            assert time.monotonic() < until
            with suppress(subprocess.TimeoutExpired):
                pytest.fail(f"the node has ended with {process.wait(0.05)}")
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert held() == list(range(600))


def test_a_broker_that_is_restarted_keeps_what_it_has(broker: Mosquitto, publish: Publisher) -> None:
    made = begun(broker)
    publish.numbers(0, 5)
    held, mark = numbers_of(made, lambda found: len(found) == 5)
    made.confirm(mark)
    publish.numbers(5, 8)
    _, later = numbers_of(made, lambda found: len(found) == 3)  # read, and not held
    broker.stop()
    broker.start()
    publish.numbers(8, 10)
    assert numbers_of(made, lambda found: 9 in found)[0] == [8, 9]
    assert [note.split(" (")[0] for note in made.notes] == [
        f"the connection to broker 127.0.0.1:{broker.port} is lost",
        f"broker 127.0.0.1:{broker.port} is back",
    ]
    made.close()
    broker.stop()
    broker.start()
    made = begun(broker, mark)  # 5 to 7 were lost with the node
    assert held + numbers_of(made, lambda found: 9 in found)[0] == list(range(10))
    made.confirm(later)
    made.close()


def test_a_broker_that_has_forgotten_the_session_is_noted(broker: Mosquitto, publish: Publisher) -> None:
    made = begun(broker)
    publish.numbers(0, 5)
    _, mark = numbers_of(made, lambda found: len(found) == 5)
    broker.kill()  # before it has written anything down
    made._client.subscribed.clear()
    broker.start()
    assert made._client.subscribed.wait(PATIENCE)
    made.confirm(mark)  # of which the broker knows nothing
    publish.numbers(5, 8)
    found, later = numbers_of(made, lambda found: 7 in found)
    assert found == [5, 6, 7]
    assert later["messages"] == 8
    lost = f"broker 127.0.0.1:{broker.port} has kept no session for 'windrow-north': what was published while"
    assert [note for note in made.notes if note.startswith(lost)]
    made.close()


def test_a_broker_that_has_lost_only_the_last_messages_is_noted(
    broker: Mosquitto, publish: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt, "AGAIN_WITHIN", 0.1)
    made = begun(broker)
    publish.numbers(0, 3)
    held, mark = numbers_of(made, lambda found: 2 in found)
    made.close()
    other = {**mark, "packet": mark["packet"] + 10}  # of a message that the broker does not have
    made = begun(broker, other)
    assert numbers_of(made, lambda found: 2 in found)[0] == held  # at least once
    assert "has not sent again the last message" in made.notes[0]
    made.close()


def test_topics_that_are_no_longer_wanted_are_left(broker: Mosquitto, publish: Publisher) -> None:
    made = begun(broker, topic=["plant/a", "plant/b"])
    publish.numbers(0, 2)
    _, mark = numbers_of(made, lambda found: 1 in found)
    made.close()
    made = begun(broker, mark, topic=["plant/b"])
    publish.numbers(2, 4)
    publish({"k": 4}, topic="plant/b")
    assert numbers_of(made, lambda found: 4 in found)[0] == [4]
    made.close()


def test_a_bad_message_is_refused_or_counted(broker: Mosquitto, publish: Publisher) -> None:
    made, other = begun(broker), begun(broker, node="south", bad_messages="drop")
    publish({"k": 1}, b"nonsense", {"k": 2})
    with pytest.raises(InputError, match=r"a message of topic 'plant/a' cannot be read: .*'nonsense'; bad_m"):
        numbers_of(made, lambda found: 2 in found)
    assert numbers_of(other, lambda found: 2 in found)[0] == [1, 2]
    assert other.dropped == 1
    made.close()
    other.close()


def test_two_nodes_of_one_name_are_noted(broker: Mosquitto) -> None:
    first, second = begun(broker), begun(broker)
    until = time.monotonic() + PATIENCE
    while not any("another client may have come as 'windrow-north'" in note for note in first.notes + second.notes):
        assert time.monotonic() < until, first.notes
        assert first.read(NEEDED, 0.05) is None
    first.close()
    second.close()


def test_a_broker_that_is_not_there_is_tried_again(installed: None, tmp_path: Path) -> None:
    with Mosquitto(tmp_path) as broker:
        broker.stop()
        made: Any = source(broker)
        made.resume({})
        until = time.monotonic() + PATIENCE
        while not made.notes and time.monotonic() < until:
            assert made.read(NEEDED, 0.05) is None
        (note,) = made.notes
        assert note.startswith(f"broker 127.0.0.1:{broker.port} cannot be reached")
        broker.start()
        assert made._client.subscribed.wait(PATIENCE)
        made.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # paho leaves a socket to the collector
def test_passwords_and_certificates(installed: None, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    hashed = subprocess.run(["mosquitto_passwd", "-c", "-b", tmp_path / "users", "north", "secret"], check=False)
    assert hashed.returncode == 0
    more = [f"password_file {tmp_path / 'users'}", f"cafile {certificate}", f"certfile {certificate}", f"keyfile {key}"]
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / "secret").chmod(0o600)
    with Mosquitto(tmp_path, *more, anonymous=False) as broker:
        known = {"username": "north", "password_file": str(tmp_path / "secret"), "ca": str(certificate)}
        made = begun(broker, **known)
        assert made.read(NEEDED, 0.0) is None
        made.close()
        wrong: Any = source(broker, **{**known, "password_file": None, "password": "wrong"})
        wrong.resume({})
        with pytest.raises(SourceError, match=r"broker .* refuses this node: Not authorized"):
            numbers_of(wrong, lambda found: False)
        wrong.close()
        unknown: Any = source(broker, **{**known, "ca": None, "tls": True})
        unknown.resume({})
        until = time.monotonic() + PATIENCE
        while not unknown.notes and time.monotonic() < until:
            unknown.read(NEEDED, 0.05)
        assert "certificate verify failed" in unknown.notes[0]
        unknown.close()


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key."""
    x509 = pytest.importorskip("cryptography.x509")
    import ipaddress
    from datetime import timedelta

    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    data = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    (folder / "key.pem").write_bytes(data)
    return folder / "certificate.pem", folder / "key.pem"
