"""The API reference, from docstrings and signatures: `make docs` writes docs/api.md.

    __all__ of windrow and windrow.spark ──▶ groups by concept ──▶ signature, docstring, members

A public name that stands in no group is put under "More", so that nothing is left out. With `--check` nothing is
written, and the exit code says whether the file is what it should be.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

FILE = Path(__file__).with_suffix(".md")
WIDTH = 100  # of a signature on one line

INTRO = """\
# API reference

Made from the docstrings by `make docs`. `Duration` is text such as "10 minutes" or "1 hour 30 minutes", a `timedelta`,
or an integer where time is an integer; `Lengths` is one of those, None, or a mapping from time columns to them.
Expressions and predicates are SQL text. What windows and aggregates mean, to the letter, is in
[semantics.md](semantics.md).
"""

GROUPS: dict[str, Sequence[str]] = {
    "Asking": ("windows", "Query", "sql", "results_of"),
    "Kinds of window": (
        "tumbling",
        "sliding",
        "cumulating",
        "session",
        "counting",
        "punctuated",
        "frames",
        "latest",
        "window",
    ),
    "Aggregates": (
        *("count", "sum", "min", "max", "mean", "product", "geometric_mean", "variance", "variance_pop", "stddev"),
        *("stddev_pop", "range", "first", "last", "collect", "arg_min", "arg_max", "m4", "median", "quantile", "mode"),
        *("distinct", "approx_quantile", "approx_distinct", "top_k", "formula", "aggregate", "Aggregate"),
    ),
    "A process that runs on": ("Engine", "Metrics"),
    "Plans": ("plan", "Plan", "Rates"),
    "Your own": ("Monoid", "ContextFreeWindow", "DataDrivenWindow", "OrderedEvents", "Cuts"),
    "Errors": ("QueryError", "SqlError", "InputError", "ExpressionError"),
    "Streams on Spark": ("QueryBook",),
}

# Of these classes other members are public for windrow's own modules; what is not here has all of its members shown.
MEMBERS: Mapping[str, Sequence[str]] = {
    "Query": ("to_dict", "from_dict"),
    "Aggregate": ("alias", "text", "to_dict", "from_dict"),
    "Plan": ("explain", "to_dict", "fingerprint"),
    "Rates": (),
    "ContextFreeWindow": ("windows", "edges"),
    "DataDrivenWindow": ("cuts",),
    "QueryBook": ("add", "remove", "queries", "version"),
    "Generator": ("to_json", "from_json"),
    "Root": (),
}


def render(modules: Mapping[str, ModuleType]) -> str:
    """The whole page; the first module's names are grouped, those of the others stand under its name."""
    sections = [section for name, module in modules.items() for section in _sections(name, module)]
    seen: Counter[str] = Counter()
    index, body = [], []
    for title, found in sections:
        seen[_anchor(title)] += 1
        body.append(f"## {title}\n")
        links = []
        for label, thing in found:
            links.append(f"[{label}](#{_anchor(label)}{f'-{seen[_anchor(label)]}' if seen[_anchor(label)] else ''})")
            seen[_anchor(label)] += 1
            body.append(_entry(label, thing))
        index.append(f"- **{title}**: {', '.join(links)}")
    return "\n".join([INTRO, "\n".join(index) + "\n", *body])


def _sections(name: str, module: ModuleType) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """The public names of a module, by concept."""
    rest = sorted(module.__all__, key=str.lower)
    if name != "windrow":
        yield f"`{name}`", [(f"{name.removeprefix('windrow.')}.{one}", getattr(module, one)) for one in rest]
        return
    for title, names in GROUPS.items():
        found = [one for one in names if one in rest]
        rest = [one for one in rest if one not in found]
        yield title, [(one, getattr(module, one)) for one in found]
    if rest:
        yield "More", [(one, getattr(module, one)) for one in rest]


def _anchor(label: str) -> str:
    """As GitHub makes it of a heading, but for the number that tells equal ones apart."""
    return re.sub(r"[^\w -]", "", label.lower()).replace(" ", "-")


def _entry(label: str, thing: Any) -> str:
    name = label.rpartition(".")[2]
    lines = [f"### {label}\n"]
    shown = f"class {name}" if inspect.isclass(thing) else f"{name}"
    if not (inspect.isclass(thing) and issubclass(thing, Exception)):
        lines.append(f"```py\n{signature(shown, thing)}\n```\n")
    lines.append(markdown(inspect.getdoc(thing) or ""))
    if inspect.isclass(thing) and (members := _members(name, thing)):
        lines += ["Members:\n", "\n".join(members) + "\n"]
    return "\n".join(lines)


def _members(name: str, cls: type) -> list[str]:
    chosen = MEMBERS.get(name)
    found = {one: value for one, value in public_members(cls) if chosen is None or one in chosen}
    order = found if chosen is None else [one for one in chosen if one in found]
    return [_member(one, found[one]) for one in order]


def public_members(cls: type) -> Iterator[tuple[str, Callable[..., Any] | property]]:
    """The methods and properties that a class itself defines, by name; those of a property are that of its getter."""
    for name, value in vars(cls).items():
        if name.startswith("_"):
            continue
        if isinstance(value, staticmethod | classmethod):
            yield name, value.__func__
        elif isinstance(value, cached_property):
            yield name, property(value.func)
        elif isinstance(value, property) or inspect.isfunction(value):
            yield name, value


def _member(name: str, value: Any) -> str:
    shown = f"`.{name}`" if isinstance(value, property) else f"`.{signature(name, value)}`"
    first, *others = markdown(inspect.getdoc(value) or "").splitlines()
    text = "\n".join([first, *("  " + line if line else "" for line in others)]).rstrip()
    return f"- {' '.join(shown.split())}: {text}"


def signature(name: str, thing: Any) -> str:
    """A call with names, types and defaults, on one line where it fits."""
    try:
        found = inspect.signature(thing)
    except ValueError:
        return f"{name}()"
    given = [one for one in found.parameters.values() if one.name not in ("self", "cls")]
    parts, starred = [], False
    for one in given:
        if one.kind is one.KEYWORD_ONLY and not starred:
            parts.append("*")
        starred = starred or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        parts.append(_parameter(one))
    back = "" if inspect.isclass(thing) or found.return_annotation is found.empty else _type(found.return_annotation)
    end = f") -> {back}" if back else ")"
    line = f"{name}({', '.join(parts)}{end}"
    return line if len(line) <= WIDTH else "\n".join([f"{name}(", *(f"    {part}," for part in parts), end])


def _parameter(one: inspect.Parameter) -> str:
    star = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
    shown = star + one.name + (f": {_type(one.annotation)}" if one.annotation is not one.empty else "")
    if one.default is one.empty:
        return shown
    plain = isinstance(one.default, str | int | float | bool | tuple | None)
    return f"{shown} = {one.default!r}" if plain else f"{shown} = …"


def _type(annotation: Any) -> str:
    text = getattr(annotation, "__forward_arg__", annotation)  # those of a NamedTuple are references
    return text if isinstance(text, str) else str(getattr(text, "__name__", text))


def markdown(doc: str) -> str:
    """A docstring as Markdown: `name:  what it is` becomes a list, what is aligned by blanks stays as it is."""
    return "\n".join(_paragraph(lines) + "\n" for lines in (part.splitlines() for part in doc.split("\n\n")))


def _paragraph(lines: list[str]) -> str:
    if re.match(r"\w+: +\S", lines[0]):
        joined: list[str] = []
        for line in lines:
            if found := re.match(r"(\w+): +(.*)", line):
                joined.append(f"- `{found[1]}`: {found[2]}")
            else:
                joined[-1] += " " + line.strip()
        return "\n".join(joined)
    if any(re.search(r"\S {3,}\S", line) for line in lines) or lines[0].startswith("    "):
        return "\n".join(["```", *lines, "```"])
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    import windrow
    import windrow.spark

    text = render({"windrow": windrow, "windrow.spark": windrow.spark})
    if "--check" not in arguments:
        FILE.write_text(text, encoding="utf-8")
        return 0
    if FILE.exists() and FILE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{FILE.name} is not what the docstrings say: run make docs", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
