"""Markup in which text cannot become markup: whatever is put into a tag is escaped, unless it was made by one.

>>> tag("b", "<script>", class_="name")
'<b class="name">&lt;script&gt;</b>'
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_VOID = {"meta", "link", "br"}


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element; attributes that are None are left out, and `class_`, `aria_label` lose what Python needs of them."""
    named = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    opening = name + "".join(f' {key}="{escape(str(value))}"' for key, value in named.items())
    return Markup(f"<{opening}>" if name in _VOID else f"<{opening}>{joined(children)}</{name}>")


def joined(parts: Iterable[object]) -> Markup:
    """Parts one after the other; those that are None are left out."""
    return Markup("".join(one if isinstance(one, Markup) else escape(str(one)) for one in parts if one is not None))
