"""Traffic of a connection: bytes and messages, up and down, counted where they leave and arrive.

On Linux the bytes are the kernel's own count for the connection (TCP_INFO): everything that gRPC, HTTP/2 and TLS put on
it, and for each segment, empty acknowledgements included, the headers of IP and TCP. Where the kernel has no
count, or the connection is gone before it was read, they follow from the framing: a message, its field in Flight's
protobuf, gRPC's prefix, HTTP/2's frame headers. The greater one counts.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_TCP_INFO = getattr(socket, "TCP_INFO", 11)
_SIZE, _RECEIVED, _SEGMENTS, _SENT = 232, 128, 136, 200  # of Linux's struct tcp_info, and places in it
_TCP, _IPV4, _IPV6 = 32, 20, 40  # bytes of headers; TCP's with its timestamps
_FRAME = 16_384  # bytes of an HTTP/2 frame

Ends = tuple[tuple[str, int], tuple[str, int]]  # here and there


@dataclass(frozen=True)
class Traffic:
    """What went over a link, as its child sees it: up to the parent, and down from it."""

    bytes_up: int = 0
    bytes_down: int = 0
    messages_up: int = 0
    messages_down: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    @property
    def turned(self) -> Traffic:
        """The same from the other end."""
        return Traffic(self.bytes_down, self.bytes_up, self.messages_down, self.messages_up)


def framed(size: int) -> int:
    """The bytes on the wire of a message of so many, without TCP, IP and TLS."""
    varint = max(1, -(-size.bit_length() // 7))
    body = size + 2 + varint + 5  # the field's tag and length, gRPC's prefix
    return body + 9 * -(-body // _FRAME)


class Meter:
    """Counts one connection. What is sent and received is from the view of whoever has the meter."""

    def __init__(self) -> None:
        self._ends: Ends | None = None
        self._sent = self._received = 0  # as it was framed
        self._by_kernel = (0, 0)  # bytes, as the kernel counts them
        self._messages = [0, 0]

    def watch(self, ends: Ends | None) -> None:
        self._ends = ends

    def sent(self, size: int) -> None:
        self._sent += framed(size)
        self._messages[0] += size > 0

    def received(self, size: int) -> None:
        self._received += framed(size)
        self._messages[1] += size > 0

    def read(self, counted: Mapping[Ends, tuple[int, int]]) -> Traffic:
        """What was counted so far, with what the kernel says of all `connections`: sent is up, received is down."""
        if self._ends is not None and self._ends in counted:
            self._by_kernel = counted[self._ends]
        sent, received = max(self._sent, self._by_kernel[0]), max(self._received, self._by_kernel[1])
        return Traffic(sent, received, *self._messages)


# --- connections of this process ------------------------------------------------------------------------------------


def connections() -> dict[Ends, tuple[int, int]]:
    """The TCP connections of this process, with the bytes sent and received; none where the kernel does not count."""
    counted = {}
    for ends, info in _sockets():
        if len(info) >= _SENT + 8:
            (sent,), (received,) = struct.unpack_from("<Q", info, _SENT), struct.unpack_from("<Q", info, _RECEIVED)
            out, arrived = struct.unpack_from("<II", info, _SEGMENTS)
            headers = _TCP + (_IPV6 if ":" in ends[1][0] else _IPV4)
            counted[ends] = sent + out * headers, received + arrived * headers
    return counted


def _sockets() -> Iterator[tuple[Ends, bytes]]:
    """Every connected TCP socket of this process, gRPC's too, with what the kernel knows of it."""
    try:
        numbers = os.listdir("/proc/self/fd")
    except OSError:
        return
    for number in numbers:
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(number))) as copy:  # a copy, so that closing it closes nothing else
                if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
                    ends = _address(copy.getsockname()), _address(copy.getpeername())
                    yield ends, copy.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _SIZE)


def _address(address: tuple[str, int]) -> tuple[str, int]:
    return address[0].removeprefix("::ffff:"), address[1]
