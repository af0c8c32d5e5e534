"""The sources of a local node: files, standard input, MQTT, made-up events.

    source:                       source: {files: /var/log/turbine/*.jsonl, growing: true}
      kind: mqtt
      topic: turbine/#

`source_of` makes one from what a file says of it, and refuses what it does not know.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import Any, get_type_hints

from windrow.core.expressions.errors import hint
from windrow.io.yaml_files import Check
from windrow.nodes.sources.base import FLAG, Mark, Read, Source, SourceError, Types
from windrow.nodes.sources.complete_files import WholeFiles
from windrow.nodes.sources.generated import Made
from windrow.nodes.sources.mqtt import Mqtt
from windrow.nodes.sources.stdin import Pipe
from windrow.nodes.sources.tail_files import GrowingFiles

__all__ = ["Mark", "Read", "Source", "SourceError", "Types", "source_of"]

KINDS: Mapping[str, type[Any]] = {"files": WholeFiles, "stdin": Pipe, "mqtt": Mqtt, "generator": Made}
MAIN = {"files": "path", "stdin": "format", "mqtt": "topic", "generator": "rate"}  # what a short form gives


def source_of(described: Mapping[str, Any] | str, node: str) -> Source:
    """The source that is described: by its `kind` and options, or in short, as `files: path` with the other options."""
    given: Any = {"kind": described} if isinstance(described, str) else described
    if not isinstance(given, Mapping):
        raise SourceError(f"source: it must have a kind and its options, and is {described!r}")
    kind, options = _kind(given)
    make = KINDS[kind]
    if kind == "files":
        make = GrowingFiles if _checked("files", FLAG, options.pop("growing", False), "growing") else WholeFiles
    parameters = inspect.signature(make).parameters
    names = [name for name in parameters if name != "node"] + ["growing"] * (kind == "files")
    for name in options:
        if name not in names:
            if make is WholeFiles and name in inspect.signature(GrowingFiles).parameters:
                raise SourceError(f"source: {name} goes with growing: true")
            raise SourceError(f"source: {kind} has no option {name!r}; {hint(str(name), names)}")
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name != "node" and name not in options:
            raise SourceError(f"source: {kind} needs a {name}")
    types = get_type_hints(make, include_extras=True)
    for name, value in options.items():
        for check in getattr(types[name], "__metadata__", ()):
            if value is not None or parameters[name].default is not None:
                _checked("standard input" if kind == "stdin" else kind, check, value, name)
    return make(**options, **({"node": node} if "node" in parameters else {}))  # type: ignore[no-any-return]


def _checked(what: str, check: Check, value: Any, name: str) -> Any:
    try:
        return check(value, name)
    except ValueError as error:
        raise SourceError(f"{what}: {error}") from error


def _kind(described: Mapping[Any, Any]) -> tuple[str, dict[Any, Any]]:
    given = dict(described)
    if "kind" in given:
        kind = given.pop("kind")
        if not isinstance(kind, str) or kind not in KINDS:
            raise SourceError(f"source: there is no kind {kind!r}; {hint(str(kind), KINDS)}")
        return kind, given
    kinds = [name for name in given if name in KINDS]
    if len(kinds) != 1:
        near = [hint(str(name), KINDS) for name in given if difflib.get_close_matches(str(name), KINDS, 1)]
        raise SourceError(f"source: say of which one kind it is; {(*near, hint('', KINDS))[0]}")
    kind = kinds[0]
    main = given.pop(kind)
    inner = main if isinstance(main, Mapping) else {} if main is None else {MAIN[kind]: main}
    for name in inner:
        if name in given:
            raise SourceError(f"source: {name} is given twice")
    return kind, {**inner, **given}
