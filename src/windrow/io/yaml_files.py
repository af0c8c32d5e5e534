"""YAML in plain values that knows its lines, and the one way in which fields of a file are read and checked.

text ── load ──▶ `Fields` and lists ── read: a field, its check, a default ──▶ values
                                    └─ `Wrong` with a line ── placed ──▶ an error that names file and line

A check takes a value and the name of its field, and gives what the value means, None or "" where it means nothing. It
raises ValueError or TypeError for what cannot be; `read` adds the field, unless the error begins with it, and the line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from windrow.core.expressions.errors import hint
from windrow.core.expressions.limits import DEPTH, VALUES, not_text, shown, too_long

Check = Callable[[Any, str], Any]


class Wrong(ValueError):
    """What is wrong, and in which line."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line


class Fields(dict[Any, Any]):
    """A mapping of the file, with its line and those of its fields, and the folder that paths are relative to."""

    def __init__(self, values: Mapping[Any, Any], line: int, lines: Mapping[Any, int], folder: Path) -> None:
        super().__init__(values)
        self.line, self.lines, self.folder = line, lines, folder

    def allow(self, words: Collection[str]) -> None:
        """Refuse a field that is none of these, so that none is silently left out."""
        for word in self:
            if word not in words:
                raise self.wrong(f"there is no field {word!r}; {hint(str(word), words)}", word)

    def read(self, word: str, check: Check, default: Any = None) -> Any:
        """What a field means; the default where it is not there, or means nothing."""
        if word not in self:
            return default
        with self.blaming(word):
            value = check(self[word], word)
        value = default if value in (None, "") else value
        return self.folder / value if isinstance(value, Path) else value

    @contextmanager
    def blaming(self, word: str) -> Iterator[None]:
        """Errors name a field, with its line."""
        try:
            yield
        except Wrong:
            raise
        except (ValueError, TypeError) as error:
            reason = str(error) if str(error).startswith(word) else f"{word}: {error}"
            raise self.wrong(reason, word) from error

    def wrong(self, reason: str, word: str | None = None) -> Wrong:
        """An error in the line of a field, or where the mapping begins."""
        return Wrong(reason, self.lines.get(word, self.line))

    def over(self, others: Mapping[str, Any]) -> Fields:
        """These fields, and others that come from elsewhere, where these do not have them."""
        return Fields({**others, **self}, self.line, {**getattr(others, "lines", {}), **self.lines}, self.folder)

    def only(self, words: Collection[str]) -> Fields:
        """Those of these fields, with their lines."""
        return Fields({word: self[word] for word in words if word in self}, self.line, self.lines, self.folder)


def must(be: str, fits: Callable[[Any], bool]) -> Check:
    """A value for which something holds; `{!r}` in the words is the value."""

    def check(value: Any, word: str) -> Any:
        if not fits(value):
            raise ValueError(f"{word} must {be.format(value)}")
        return value

    return check


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def one_of(*choices: Any) -> Check:
    return must(f"be {' or '.join(str(choice).lower() for choice in choices)}, not {{!r}}", choices.__contains__)


def whole(most: int) -> Check:
    return must(
        f"be a whole number from 1 to {most:,}, not {{!r}}", lambda value: type(value) is int and 0 < value <= most
    )


text = must("be text, not {!r}", is_text)


def made(make: Callable[[str], Any]) -> Check:
    """What a text means."""
    return lambda value, word: make(value) if text(value, word) else None


def section(make: Callable[..., Any], shown: str, **checks: Check) -> Check:
    """What is made of the fields of a mapping."""

    def check(value: Any, word: str) -> Any:
        if not isinstance(value, Fields):
            raise ValueError(f"{word} must have fields: {shown}")
        value.allow(tuple(checks))
        read = {name: value.read(name, inner) for name, inner in checks.items()}
        return make(**{name: inner for name, inner in read.items() if inner is not None})

    return check


def text_of(path: Path, kind: type[Exception], more: str) -> str:
    """The text of a file; `more` goes into the error where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise kind(f"there is no file {str(path)!r}{more}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise kind(f"{path} cannot be read: {error}") from error


def load(text: str, folder: Path = Path()) -> Any:
    """Read a text; nothing in it is evaluated."""
    if reason := too_long(text):
        raise Wrong(f"it has {reason}")
    loader = _Loader(text)
    loader.folder = folder
    return loader.get_single_data()


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
    """YAML in plain values, of so many levels and values, where an alias counts like what it stands for."""

    folder: Path

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._level = self._values = 0
        self._sizes: dict[int, int] = {}  # of the nodes that there are

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event, before = self.peek_event(), self._values  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        self._level += 1
        if self._level > DEPTH:
            raise Wrong(f"it is nested too deeply, and the limit is {DEPTH} levels", line)
        node = super().compose_node(parent, index)
        self._level -= 1
        if isinstance(event, yaml.AliasEvent):
            self._values += self._sizes.get(id(node), 0)
        else:
            self._values += 1
            self._sizes[id(node)] = self._values - before
        if self._values > VALUES:
            raise Wrong(f"it has more than {VALUES:,} values, which is the limit", line)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        line = node.start_mark.line + 1
        try:
            value = super().construct_object(node, deep)
        except (Wrong, yaml.YAMLError):
            raise
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            raise Wrong(f"{shown(repr(node.value))} is no {node.tag.rpartition(':')[2]}", line) from error
        if isinstance(value, int) and value.bit_length() > 64:
            raise Wrong("a number is out of range: at most 64 bits", line)
        if isinstance(value, str) and not_text(value) is not None:
            raise Wrong(f"{shown(repr(value))} has half of a character", line)
        return value


def _mapping(loader: _Loader, node: yaml.MappingNode) -> Fields:
    loader.flatten_mapping(node)
    values, lines = dict[Any, Any](), dict[Any, int]()
    for key_node, value_node in node.value:
        key, line = loader.construct_object(key_node, deep=True), key_node.start_mark.line + 1
        if not isinstance(key, str | int | float | bool | None):
            raise Wrong("a field must have a name", line)
        if key in values:
            raise Wrong(f"{key!r} is there twice", line)
        values[key], lines[key] = loader.construct_object(value_node, deep=True), line
    return Fields(values, node.start_mark.line + 1, lines, loader.folder)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
yaml.SafeDumper.add_representer(Fields, yaml.SafeDumper.represent_dict)
