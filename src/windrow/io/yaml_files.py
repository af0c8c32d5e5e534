"""YAML in plain values that knows its lines, so that whatever is wrong with a file is said with its place.

text ── load ──▶ `Fields` and lists; `Wrong` with a line ── placed ──▶ an error that names file and line
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import yaml


class Wrong(ValueError):
    """What is wrong, and in which line."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line


class Fields(dict[Any, Any]):
    """A mapping of the file, with its line and those of its fields."""

    line: int
    lines: dict[Any, int]

    def check(self, words: Collection[str]) -> None:
        """Refuse a field that is none of these, so that none is silently left out."""
        for word in self:
            if word not in words:
                near = difflib.get_close_matches(str(word), words, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(words)}"
                raise Wrong(f"there is no field {word!r}; {hint}", self.lines[word])


def load(text: str) -> Any:
    """Read a text; nothing in it is evaluated."""
    return yaml.load(text, _Loader)


@contextmanager
def placed(name: str, kind: type[Exception]) -> Iterator[None]:
    """Errors in reading a file name it, and the line."""
    try:
        yield
    except Wrong as error:
        raise kind(f"{name}, line {error.line}: {error}" if error.line else f"{name}: {error}") from error
    except yaml.MarkedYAMLError as error:
        mark, problem = error.problem_mark, error.problem or error.context or "it is not YAML"
        place = f"{name}, line {mark.line + 1}" if mark else name
        raise kind(f"{place}: this is not YAML: {problem}") from error
    except yaml.YAMLError as error:
        raise kind(f"{name}: this is not YAML: {' '.join(str(error).split())}") from error


class _Loader(yaml.SafeLoader):
    """YAML in plain values."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> Fields:
    loader.flatten_mapping(node)
    found = Fields()
    found.line, found.lines = node.start_mark.line + 1, {}
    for key_node, value_node in node.value:
        key, line = loader.construct_object(key_node, deep=True), key_node.start_mark.line + 1
        if not isinstance(key, str | int | float | bool | None):
            raise Wrong("a field must have a name", line)
        if key in found:
            raise Wrong(f"{key!r} is there twice", line)
        found[key], found.lines[key] = loader.construct_object(value_node, deep=True), line
    return found


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
