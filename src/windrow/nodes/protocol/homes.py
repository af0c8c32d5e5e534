"""Homes: which parent each node of a tree belongs to, so that no event comes in by two ways.

A node's home is the parent that it came to first. The root alone gives homes, one claim after the other, so that two
parents that ask at once cannot both get a node; every parent on the way knows the homes of those below it. A home is
never given to another parent: what the first one has accepted stays counted, whether or not the node has left.
"""

from __future__ import annotations

MOST = 100_000  # nodes of a tree
LONGEST = 100  # characters of a name


class Homes(dict[str, str]):
    """The home of every node below one, which is called `top`."""

    def __init__(self, top: str) -> None:
        super().__init__()
        self._top = top

    def refusal(self, node: str, parent: str) -> str:
        """Why a parent cannot be the home of a node; nothing if it can."""
        home = self.get(node)
        if node == self._top:
            return f"a node above it is called {node!r}, too: give it another name"
        if len(node) > LONGEST:
            return f"a name has {LONGEST} characters at most"
        if home is None and len(self) >= MOST:
            return f"the tree has {MOST:,} nodes, and takes no more"
        if home in (None, parent):
            return ""
        return (
            f"{node!r} belongs below {home!r}, which it came to first, and what {home!r} had from it would count "
            "twice: let it go back there, or give it another name if its events are others"
        )

    def above(self, node: str) -> str | None:
        """The child of `top` that a node is or has its home below; None if it is not known here."""
        while (home := self.get(node)) is not None:
            if home == self._top:
                return node
            node = home
        return None
