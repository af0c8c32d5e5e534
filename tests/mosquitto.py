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
