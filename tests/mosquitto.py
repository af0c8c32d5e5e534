"""A real broker: Debian's Mosquitto, on a port that the system chooses, with its state in a directory.

`Mosquitto(folder)` starts one; `stop` ends it as its service does, so that it writes down its state; `start` begins it
again on the same port; `kill` gives it no time for anything.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Self

PATIENCE = 30  # seconds


def binary() -> str | None:
    return shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


class Mosquitto:
    def __init__(self, folder: Path, *more: str, anonymous: bool = True) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder = folder
        lines = [
            f"listener {self.port} 127.0.0.1",
            f"allow_anonymous {str(anonymous).lower()}",
            "persistence true",
            f"persistence_location {folder}/",
            "max_queued_messages 0",
            f"user {'root' if os.geteuid() == 0 else ''}".rstrip(),
            *more,
        ]
        (folder / "mosquitto.conf").write_text("\n".join(line for line in lines if line != "user") + "\n")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = binary()
        assert command is not None
        log = (self.folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen([command, "-c", self.folder / "mosquitto.conf"], stdout=log, stderr=log)
        until = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < until, "Mosquitto does not answer"
            time.sleep(0.01)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def save(self) -> None:
        """Have it write down its state, as it does by itself from time to time."""
        assert self._process is not None
        self._process.send_signal(signal.SIGUSR1)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(PATIENCE)
            self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Cable:
    """What lies between a client and the broker: `cut` breaks every connection through it."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        with self._lock:
            ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._to), 1)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._ends += [near, far]
            for one, other in ((near, far), (far, near)):
                thread = threading.Thread(target=self._carry, args=(one, other), daemon=True)
                self._threads.append(thread)
                thread.start()

    @staticmethod
    def _carry(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
