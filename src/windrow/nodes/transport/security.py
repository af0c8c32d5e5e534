"""Who may speak to a node: TLS on the way, and a token for every name.

    node.yaml of a parent   tokens: tokens.yaml          a file of names and tokens, read again when it has changed
    node.yaml of a child    token_file: north.token      its own
    both                    tls: {cert: …, key: …} / {ca: …}

Both may be left out on the loopback interface alone: whoever can reach that is on this machine already. Anywhere else a
node does not start without them.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from windrow.io.private import Secret, read_secret

OPERATOR = "operator"  # the name whose token may ask for the status and change queries
NAMES = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")  # of nodes: they are headers, and names of files


class AccessError(ValueError):
    """A node that would be open to strangers, or has files that cannot be used: what to set."""


@dataclass(frozen=True)
class Address:
    """A host and a port, with or without TLS: `grpc+tls://host:port`."""

    host: str
    port: int
    tls: bool = False

    @staticmethod
    def of(text: str) -> Address:
        match = re.fullmatch(
            r"(?:(grpc|grpc\+tcp|grpc\+tls)://)?(\[[0-9A-Fa-f:.]+\]|[^:/\s\[\]]+):(\d{1,5})", text.strip()
        )
        if match is None or int(match[3]) > 65535:
            raise AccessError(f"{text!r} is no address; write it like grpc://host:8815 or grpc+tls://host:8815")
        return Address(match[2].strip("[]"), int(match[3]), match[1] == "grpc+tls")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"grpc{'+tls' if self.tls else ''}://{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True)
class Files:
    """Of TLS: a server has a certificate and its key, a client the authority that it trusts."""

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None


NO_TLS = Files()


class Tokens:
    """Names and their tokens, in a file that may grow while it is used, so that nodes can join."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.unread: str | None = None  # why what the file holds now is not known
        self._read: tuple[int, int] = (0, 0)
        self._by_name: dict[str, str] = {}
        self._refresh()

    def allows(self, name: str, token: str) -> bool:
        """Whether this is the token of the name. It takes as long for a wrong one as for a right one."""
        try:
            self._refresh()
            self.unread = None
        except AccessError as error:
            self.unread = str(error)  # it may be half written: until it is whole, what it held before is good
        expected = self._by_name.get(name)
        same = hmac.compare_digest((expected or "\0").encode(), token.encode())
        return same and expected is not None

    def _refresh(self) -> None:
        try:
            stat = self._path.stat()
            if (stat.st_ctime_ns, stat.st_size) == self._read:
                return
            given = yaml.safe_load(read_secret(self._path).decode()) or {}
        except FileNotFoundError:
            raise AccessError(f"there is no file {str(self._path)!r} of tokens") from None
        except yaml.YAMLError as error:  # whose own words show the line, and with it the token
            line = f" of line {mark.line + 1}" if (mark := getattr(error, "problem_mark", None)) else ""
            raise AccessError(f"{self._path} cannot be read as names and tokens{line}: it is not YAML") from None
        except (OSError, ValueError) as error:
            raise AccessError(f"{self._path} cannot be read as names and tokens: {error}") from error
        self._by_name = _names_and_tokens(given, self._path)
        self._read = stat.st_ctime_ns, stat.st_size


def _names_and_tokens(given: object, path: Path) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise AccessError(f"{path} must have a line for every node: its name, a colon, its token")
    for name, token in given.items():
        if not isinstance(name, str) or not isinstance(token, str) or len(token) < 8:
            raise AccessError(f"{path}: the token of {name!r} must be text of 8 characters or more")
    return dict(given)


def token_of(path: Path) -> Secret:
    try:
        return Secret(read_secret(path).decode().strip())
    except (OSError, ValueError) as error:
        raise AccessError(f"the token file {str(path)!r} cannot be read: {error}") from error


def check_listen(listen: Address, tls: Files, tokens: Tokens | None) -> None:
    """Refuse to listen where strangers could come."""
    if (tls.cert is None) != (tls.key is None):
        raise AccessError("tls of a node that listens needs both cert and key")
    missing = [
        *(["tls: {cert: …, key: …}"] if tls.cert is None else []),
        *(["tokens: FILE"] if tokens is None else []),
    ]
    if missing and not listen.is_loopback:
        raise AccessError(
            f"listen: {listen.host}:{listen.port} can be reached from other machines: set {' and '.join(missing)}, "
            "or listen on 127.0.0.1; windrow tree certs makes certificates"
        )


def check_parent(parent: Address, token: str | None) -> None:
    """Refuse to send events in the clear, or without saying who it is."""
    if parent.is_loopback:
        return
    if not parent.tls:
        raise AccessError(
            f"parent: {parent} is another machine: write grpc+tls://{parent.host}:{parent.port}, and tls: {{ca: …}}"
        )
    if token is None:
        raise AccessError(f"parent: {parent} is another machine: set token_file (or token)")


def pem(path: Path | None, what: str) -> bytes | None:
    if path is None:
        return None
    try:
        content = read_secret(path) if what == "key" else path.read_bytes()
    except OSError as error:
        raise AccessError(f"tls: {what}: {str(path)!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise AccessError(f"tls: {what}: {error}") from error
    if b"-----BEGIN " not in content:
        raise AccessError(f"tls: {what}: {str(path)!r} is not PEM")
    return content
