"""The command line."""

from __future__ import annotations


def main() -> None:
    """windrow: run, explain, demo, report."""
    raise SystemExit("windrow: not yet")
