"""A connection to an MQTT broker, with a session that outlives it (paho-mqtt, protocol 5, quality of service 1).

Messages go out as they come, in a thread of paho's own, and `acknowledge` acknowledges them. A connection that
breaks is made again; what can only fail again, such as a wrong password, ends it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from windrow.core.windows.fixed import duration
from windrow.io.private import check_private, read_secret, secret
from windrow.io.yaml_files import must, whole
from windrow.nodes.sources.base import FLAG, Source, SourceError

TAKEN_OVER = 0x8E
SHORT_CONNECTION = 2.0  # seconds
MOST_SHORT_ONES = 4  # in a row: they are no accident
FINAL_REASONS = {0x81, 0x82, 0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, TAKEN_OVER, 0x95}  # another try does not change them


class Message(NamedTuple):
    """A message: its packet number, whether the broker says that it sends it again, and when it came."""

    packet: int
    topic: str
    payload: bytes
    again: bool
    arrived: int  # microseconds since 1970


def _file(value: Any, word: str) -> Any:
    if not Path(_text(value, word)).is_file():
        raise ValueError(f"{word}: there is no file {value!r}")
    return value


def _secret_file(value: Any, word: str) -> Any:
    check_private(Path(_file(value, word)))
    return value


_text = must("be text, not {!r}", lambda value: isinstance(value, str) and value != "")
_short = whole(65535)
_topics = must(
    "be a topic such as 'plant/+/speed', or a list, not {!r}",
    lambda given: given and all(isinstance(topic, str) and topic for topic in _listed(given)),
)


def _listed(topic: str | Sequence[str]) -> tuple[str, ...]:
    return (topic,) if isinstance(topic, str) else tuple(topic)


@dataclass
class BrokerSource(Source):
    """Where a broker is, who comes to it, and for what."""

    node: str
    topic: Annotated[str | Sequence[str], _topics]
    host: Annotated[str, _text] = "localhost"
    port: Annotated[int | None, _short] = None
    client: Annotated[str | None, _text] = None
    username: Annotated[str | None, _text] = None
    password: Annotated[str | None, secret] = field(default=None, repr=False)
    password_file: Annotated[str | None, _secret_file] = None
    password_env: Annotated[str | None, _text] = None
    tls: Annotated[bool, FLAG] = False
    ca: Annotated[str | None, _file] = None
    certificate: Annotated[str | None, _file] = None
    key: Annotated[str | None, _secret_file] = None
    keepalive: Annotated[int, _short] = 60
    unconfirmed: Annotated[int, _short] = 10_000
    session: str = "7 days"

    def __post_init__(self) -> None:
        self.client = self.client or f"windrow-{self.node}"
        passwords = [word for word in ("password", "password_file", "password_env") if getattr(self, word)]
        if len(passwords) > 1:
            raise SourceError(f"mqtt: give a {' or a '.join(passwords)}, not both")
        if passwords and not self.username:
            raise SourceError("mqtt: a password needs a username")
        if self.key and not self.certificate:
            raise SourceError("mqtt: a key needs a certificate")
        _ = self.expiry  # refuses what cannot be read

    @property
    def topics(self) -> tuple[str, ...]:
        return _listed(self.topic)

    @property
    def is_encrypted(self) -> bool:
        return self.tls or self.ca is not None or self.certificate is not None

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port or (8883 if self.is_encrypted else 1883)

    @property
    def name(self) -> str:
        return f"broker {self.address[0]}:{self.address[1]}"

    @property
    def secret(self) -> str | None:
        """The password, from where it is; a file or a variable is looked at whenever a connection is begun."""
        if self.password_file is not None:
            try:
                return read_secret(Path(self.password_file)).decode().strip()
            except (OSError, ValueError) as error:
                raise SourceError(f"mqtt: password_file: {error}") from error
        if self.password_env is not None and not (password := os.environ.get(self.password_env)):
            raise SourceError(f"mqtt: password_env: the environment has no {self.password_env}; set it to the password")
        return self.password if self.password_env is None else password

    @property
    def expiry(self) -> int:
        """Seconds for which the broker keeps the session of a node that is away."""
        try:
            seconds = duration(self.session, "session").units // 1_000_000
        except (TypeError, ValueError) as error:
            raise SourceError(f"mqtt: {error}") from error
        if not 1 <= seconds < 2**32:
            raise SourceError(f"mqtt: session must be from 1 second to 136 years, not {self.session!r}")
        return seconds


class Client:
    """A connection to a broker that is kept up.

    connected:  is called when the connection is there, with whether the broker has kept the session
    receive:    gets every message
    note:       gets what is to be logged
    gone:       topics of the session that are no longer wanted
    """

    def __init__(
        self,
        broker: BrokerSource,
        connected: Callable[[bool], None],
        receive: Callable[[Message], None],
        note: Callable[[str], None],
        gone: Sequence[str] = (),
    ) -> None:
        try:
            from paho.mqtt.client import Client as Paho
            from paho.mqtt.client import MQTTv5
            from paho.mqtt.enums import CallbackAPIVersion
            from paho.mqtt.packettypes import PacketTypes
            from paho.mqtt.properties import Properties
            from paho.mqtt.subscribeoptions import SubscribeOptions
        except ModuleNotFoundError as error:
            raise SourceError("mqtt: paho-mqtt is not installed: pip install 'windrow[nodes]'") from error
        self._broker, self._connected, self._note, self._gone = broker, connected, note, list(gone)
        self._is_up, self._complained = False, ""
        self._since, self._short = 0.0, 0  # when the connection was made, and how many in a row were short ones
        self.failure: str | None = None  # why it is not tried again
        self.subscribed = threading.Event()  # from then on the broker keeps what is published
        self._client = Paho(CallbackAPIVersion.VERSION2, broker.client, protocol=MQTTv5, manual_ack=True)
        # old messages that the broker retains are not events that happen now
        self._options = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
        if broker.username:
            self._client.username_pw_set(broker.username, broker.secret)
        if broker.is_encrypted:
            try:
                self._client.tls_set(broker.ca, broker.certificate, broker.key)
            except (OSError, ValueError) as error:
                raise SourceError(f"mqtt: the certificates cannot be used: {error}") from error

        def message(_: Any, __: Any, got: Any) -> None:
            receive(Message(got.mid, got.topic, got.payload, got.dup, time.time_ns() // 1000))

        self._client.on_message = message
        self._client.on_connect = self._on_connect
        self._client.on_connect_fail = self._on_connect_fail
        self._client.on_disconnect = self._on_disconnect
        self._client.on_subscribe = self._on_subscribe
        self._client.reconnect_delay_set(0.1, 10)  # type: ignore[arg-type]  # seconds, doubled each time
        session: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        session.SessionExpiryInterval = broker.expiry
        session.ReceiveMaximum = broker.unconfirmed
        self._client.connect_async(*broker.address, broker.keepalive, clean_start=False, properties=session)

    def start(self) -> None:
        """Connect, and pass on what comes from now on."""
        self._client.loop_start()

    def acknowledge(self, packet: int) -> None:
        """Tell the broker that a message need not be sent again; while it is not there it sends it again anyway."""
        if self._is_up:
            self._client.ack(packet, 1)

    def close(self) -> None:
        self._client.on_disconnect = None
        self._client.disconnect()
        self._client.loop_stop()

    def _on_connect(self, _: Any, __: Any, flags: Any, reason: Any, ___: Any) -> None:
        if reason.is_failure:
            self._refused("refuses this node", reason)
            return
        self._is_up, self._since = True, time.monotonic()
        if self._complained and self._short < MOST_SHORT_ONES:
            self._note(f"{self._broker.name} is back")
            self._complained = ""
        self._connected(bool(flags.session_present))
        if self._gone:
            self._client.unsubscribe(self._gone)
            self._gone = []
        self._client.subscribe([(topic, self._options) for topic in self._broker.topics])

    def _on_subscribe(self, _: Any, __: Any, ___: int, reasons: Sequence[Any], ____: Any) -> None:
        for topic, reason in zip(self._broker.topics, reasons, strict=False):
            if reason.is_failure:
                self._end(f"{self._broker.name} does not let {self._broker.client!r} read {topic!r}: {reason}")
                return
        self.subscribed.set()

    def _on_connect_fail(self, _: Any, __: Any) -> None:
        error = sys.exc_info()[1]
        self._complain(f"{self._broker.name} cannot be reached ({error}); it is tried again")

    def _on_disconnect(self, _: Any, __: Any, ___: Any, reason: Any, ____: Any) -> None:
        self._is_up = False
        if reason.value == TAKEN_OVER:
            self._end(
                f"another client has come to {self._broker.name} as {self._broker.client!r}: give every node a name of "
                "its own, or the option client"
            )
        elif reason.value in FINAL_REASONS:
            self._refused("has closed the connection", reason)
        else:
            self._short = self._short + 1 if time.monotonic() - self._since < SHORT_CONNECTION else 0
            if self._short == MOST_SHORT_ONES:
                self._note(
                    f"{self._broker.name} closes every connection at once; another client may have come as "
                    f"{self._broker.client!r}: give every node a name of its own, or the option client"
                )
                self._client.reconnect_delay_set(10, 10)
            self._complain(f"the connection to {self._broker.name} is lost ({reason}); it is tried again")

    def _refused(self, what: str, reason: Any) -> None:
        problem = f"{self._broker.name} {what}: {reason}"
        if reason.value in FINAL_REASONS:
            self._end(problem)
        else:
            self._complain(f"{problem}; it is tried again")

    def _complain(self, text: str) -> None:
        """Once, until the connection is there again."""
        if not self._complained:
            self._complained = text
            self._note(text)

    def _end(self, why: str) -> None:
        self.failure = why
        self._client.disconnect()
