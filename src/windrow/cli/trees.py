"""A tree as processes of this machine: started from the root down, shown while they run, and ended together.

On a terminal the table of all nodes is drawn anew as they go on; elsewhere a line is printed for each node that has.
None is started again by itself. A node that fails ends the tree with its reason; one that is killed is named, with the
command that starts it again, and the others go on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from windrow.cli.failures import FAILED, Failed, Interrupted, Refused
from windrow.cli.nodes import UP
from windrow.core.windows.fixed import INT64_MAX, INT64_MIN
from windrow.io.private import naming, open_private
from windrow.nodes.process.lock import holder
from windrow.nodes.process.tree import Member, Tree

LOOK_EVERY = 0.2  # seconds between two looks at the nodes
PRINT_EVERY = 2.0  # seconds between two plain lines of a node
STARTING = 60.0  # seconds that a node may take to start
ENDING = 10.0  # seconds that it may take to end
_HEAD = ("node", "state", "watermark", "events", "acknowledged", "late", "up", "down")


def run(tree: Tree) -> int:
    """Start every node, and be there until all have ended; returns the exit code."""
    processes = _Processes(tree)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        if processes.start():
            processes.watch()
    except KeyboardInterrupt as error:
        raise Interrupted(f"windrow tree up {tree.path} goes on from here") from error
    finally:
        processes.end()
        signal.signal(signal.SIGTERM, before)
    return processes.code


class _Processes:
    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.code = 0
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._lost: list[Member] = []  # ended by a signal; who wants to starts them again by hand
        self._listening: dict[str, threading.Thread] = {}
        self._last: dict[str, str] = {}  # the last line of each
        self._printed: dict[str, tuple[float, tuple[str, ...]]] = {}
        self._console = Console(stderr=True)

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def start(self) -> bool:
        """Start those that have something to do; whether any have."""
        ended = self._ended()
        if self.tree.root in ended:
            again = "to begin anew, name another spool and other results"
            self.say(f"all sources of {self.tree.path} have ended before; {again}")
            return False
        for member in ended:
            self.say(f"{member.name}: all its events have come before")
        for level in self.tree.levels:
            level = [member for member in level if member not in ended]
            parents = [self.tree.parent(member) for member in level]
            above = [parent.status["address"] if parent else None for parent in parents]
            for member, parent in zip(level, above, strict=True):
                member.write(parent)
                command = [sys.executable, "-m", "windrow", "node", member.role, "--config", str(member.config)]
                environment = {**os.environ, **member.environment, UP: str(os.getpid())}
                # of a group of its own: Ctrl-C is for this process, which ends the others in order
                process = subprocess.Popen(
                    command, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment
                )
                self._running[member.name] = process
                self._listening[member.name] = threading.Thread(
                    target=self._listen, args=(member, process), daemon=True
                )
                self._listening[member.name].start()
            for member, parent in zip(level, above, strict=True):
                self._wait_for(member, self._running[member.name])
                member.write(parent, member.status.get("address"))  # where it is when it is started again
        return True

    def _ended(self) -> list[Member]:
        """Nodes that are not started again: parents that have ended with all below them."""
        over = [
            member for member in self.tree if (status := member.status).get("state") == "ended" and status.get("done")
        ]
        for member in reversed(self.tree.members):  # children before their parents
            if member not in over and (parent := self.tree.parent(member)) in over:
                over.remove(parent)
        return [member for member in over if member.role != "local" or self.tree.parent(member) in over]

    def _wait_for(self, member: Member, process: subprocess.Popen[str]) -> None:
        """Until its status is that of the new process, and its address is known."""
        until = time.monotonic() + STARTING
        while (status := member.status).get("pid") != process.pid or status.get("state") in ("starting", "failed"):
            if process.poll() is not None:
                self._listening[member.name].join(1)  # for its last words
                raise Refused(self._last.get(member.name, f"{member.name} has ended at once"))
            if time.monotonic() > until:
                raise Failed(f"{member.name} has not started within {STARTING:.0f} seconds")
            time.sleep(0.02)

    def _listen(self, member: Member, process: subprocess.Popen[str]) -> None:
        """Keep and show what a node logs."""
        assert process.stderr is not None
        path, is_kept = member.folder / "log", True
        with process.stderr as lines:
            for line in lines:
                self._last[member.name] = line.strip().removeprefix("windrow ")
                self.say(line.rstrip().removeprefix("windrow "))
                try:
                    with naming(path), open_private(path, "ab") as log:
                        log.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {line}".encode())
                    is_kept = True
                except OSError as error:  # what it logs is shown nevertheless, and it does not wait for a reader
                    if is_kept:
                        self.say(f"{member.name}: its log is not kept: {error.filename}: {error.strerror}")
                    is_kept = False

    def watch(self) -> None:
        if not self._console.is_terminal:
            while self._are_running():
                self._print()
                time.sleep(LOOK_EVERY)
            self._print(last=True)
            return
        with Live(console=self._console, get_renderable=self._drawn, auto_refresh=False) as live:
            while self._are_running():
                live.refresh()
                time.sleep(LOOK_EVERY)

    def _drawn(self) -> Text:
        drawn = Text(table(statuses(self.tree)), no_wrap=True, overflow="ellipsis")
        drawn.stylize("bold", 0, drawn.plain.find("\n"))
        return drawn

    def _are_running(self) -> bool:
        for member in self.tree:
            process = self._running.get(member.name)
            code = None if process is None else process.poll()
            if code is not None:
                del self._running[member.name]
                if code < 0:
                    again = f"windrow node {member.role} --config {member.config}"
                    again += "".join(f", with its password in {name}" for name in member.environment)
                    self.say(f"{member.name} was ended by signal {-code}; to start it again: {again}")
                    self.code = FAILED
                    self._lost.append(member)
                elif code:
                    self.code = code
                    return False
        return bool(self._running) or any(holder(member.folder) for member in self._lost)

    def _print(self, last: bool = False) -> None:
        now = time.monotonic()
        for status in statuses(self.tree):
            row = _row(status)
            before, shown = self._printed.get(status["name"], (0.0, ()))
            if row[:-2] != shown and (last or now - before >= PRINT_EVERY):  # bytes go up even while it does nothing
                self._printed[status["name"]] = now, row[:-2]
                line = ", ".join(f"{head} {cell}" for head, cell in zip(_HEAD[1:], row[1:], strict=True) if cell)
                self.say(f"{status['name']}: {line}")

    def end(self) -> None:
        """End those that still run, children before their parents, also those that were started again by hand."""
        for member in reversed(self.tree.members):
            process = self._running.get(member.name)
            if process is not None and process.poll() is None:
                process.terminate()
            elif member in self._lost:
                _signal(member, signal.SIGTERM)
        until = time.monotonic() + ENDING
        for process in self._running.values():
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for member in self._lost:
            while holder(member.folder) and time.monotonic() < until:
                time.sleep(LOOK_EVERY)
            _signal(member, signal.SIGKILL)
        for thread in self._listening.values():
            thread.join(1)
        self._running.clear()


def _signal(member: Member, number: int) -> None:
    """Send a signal to the process that is this node now, whoever has started it."""
    if pid := holder(member.folder):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


# --- what is shown --------------------------------------------------------------------------------------------------


def statuses(tree: Tree) -> list[dict[str, Any]]:
    """The status of every node, with what its parent knows of it."""
    found = []
    reported = {member.name: member.status for member in tree}
    for member in tree:
        status = {"name": member.name, "role": member.role, **reported[member.name]}
        if status.get("state") in ("running", "starting") and not _is_alive(status.get("pid")):
            status["state"] = "gone"
        status.setdefault("state", "not started")
        if member.parent:
            status["seen"] = reported[member.parent].get("children", {}).get(member.name, {})
        found.append(status)
    return found


def seen(status: dict[str, Any]) -> list[dict[str, Any]]:
    """The status of a node elsewhere, and what it knows of its children."""
    found = [status]
    for name, child in status.get("children", {}).items():
        is_off = child["state"] in ("live", "idle") and not child["connected"]
        link = {"connected": child["connected"], **child["link"]} if "link" in child else None
        events = {"acknowledged": sum(child["events"].values())}
        state = "not connected" if is_off else child["state"]
        found.append({**child, "name": name, "state": state, "events": events, "link": link})
    return found


def table(nodes: Iterable[Mapping[str, Any]]) -> str:
    """The table as text."""
    rows = [_HEAD, *map(_row, nodes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def agreed(nodes: Iterable[Mapping[str, Any]]) -> list[str]:
    """How nodes agree on counting windows, from the status of the root."""
    found = []
    for status in nodes:
        for name, group in status.get("counting", {}).items():
            boundaries = f"{group['boundaries']:,} boundaries, {group['corrections']:,} of them corrected"
            exact = "" if group["exact"] else "; not exact"
            found.append(f"{name}: {group['scheme']}, {group['why']}; {boundaries}{exact}")
    return found


def _row(status: Mapping[str, Any]) -> tuple[str, ...]:
    """A node in a line."""
    events, link, children = status.get("events", {}), status.get("link"), status.get("children", {})
    state = status["state"]
    if state == "running":
        if link is not None and not link["connected"]:
            state = "not connected"
        elif status.get("seen", {}).get("state") in ("silent", "idle"):
            state = status["seen"]["state"]
    below = {name: count for child in children.values() for name, count in child["events"].items()}
    taken = events.get("read", sum(below.values()) if children else None)
    late = sum(child["late"] for child in children.values()) if status.get("role") == "root" else None
    return (
        status["name"],
        state,
        _moment(status.get("watermark")),
        _count(taken),
        _count(events.get("acknowledged")),
        _count(late),
        _size(link["bytes_up"]) if link else "",
        _size(link["bytes_down"]) if link else "",
    )


def _moment(watermark: int | None) -> str:
    if watermark in (None, INT64_MIN):
        return ""
    if watermark == INT64_MAX:
        return "the end"
    assert watermark is not None
    if watermark < 10**14:  # an integer time column, or before 1973
        return f"{watermark:,}"
    return f"{datetime.fromtimestamp(watermark / 1e6, UTC):%Y-%m-%d %H:%M:%S}"


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.1f} GB"


def _is_alive(pid: int | None) -> bool:
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
