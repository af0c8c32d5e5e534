"""`windrow explain` and `windrow functions`: what would be done, and what can be request."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from windrow.cli.engines import installed
from windrow.cli.failures import Refused
from windrow.cli.options import Request
from windrow.cli.results import Output
from windrow.cli.run_command import Where, checked
from windrow.core.aggregates.functions import FUNCTIONS
from windrow.core.operators.custom import MONOIDS
from windrow.core.plan.options import StreamOptions
from windrow.core.plan.plan import plan
from windrow.core.query.sql.calls import SPARK
from windrow.core.query.sql.group_by import WINDOWS
from windrow.core.windows.parse import MAKERS
from windrow.engine import Engine
from windrow.io.event_files import EventFiles


def explained(request: Request, where: Where | None, engine: str | None) -> None:
    """Print the plan, for events if they are given."""
    on_spark = engine != "local" and installed(engine)
    if where is None:
        time = request.time or next((query.time for query in request.queries if query.time), None) or "time"
        _print(plan(request.queries, time).explain())
        return
    files = where.files(request)
    if files is None:
        raise Refused(f"explain looks at files of this machine, not at {where.events!r}; leave --events out")
    stream_options, _ = checked(request, files)
    _print(_planned(request, stream_options, files))
    if on_spark:
        from windrow.core.stream.job import job_of
        from windrow.spark.batch.run import describe

        _print("\non Spark, as a batch")
        _print(describe(job_of(request.queries, stream_options.whole, files.columns)))


def _planned(request: Request, options: StreamOptions, files: EventFiles) -> str:
    """The plan for the rates that the first events show."""
    engine = Engine(request.queries, options.time, lateness=None, order_by=options.order_by, bad_events="drop")
    for part in files.frames(files.paths[0], files.columns):
        engine.push(part)
        break
    return engine.explain()


_LABEL = re.compile(r"^  \w+ {2,}")


def _print(text: str) -> None:
    console = Output(soft_wrap=True)
    for line in text.splitlines():
        shown = Text(line)
        if label := _LABEL.match(line):
            shown.stylize("dim", 0, label.end())
        elif not line.startswith(" "):
            shown.stylize("bold")
        console.print(shown)


def functions() -> None:
    """Print windows and aggregates."""
    known = {name: one.make for name, one in FUNCTIONS.items() if name not in MONOIDS}
    console = Output()
    for title, makers in (("windows", MAKERS), ("aggregates", known)):
        table = Table(title=Text(title), title_justify="left", box=box.SIMPLE, show_header=False)
        for name, make in makers.items():
            table.add_row(Text(_call(name, make), style="bold"), Text(_first_line(make)))
        console.print(table)
    sql = f"SQL knows these aggregates too: {', '.join(name for name in sorted(SPARK) if name not in known)}."
    console.print(Text(f"{sql} Its windows: {', '.join(f'{name}(…)' for name in WINDOWS)}."))


def _call(name: str, make: Callable[..., Any]) -> str:
    shown = []
    for parameter in inspect.signature(make).parameters.values():
        given = parameter.default
        shown.append(parameter.name if given in (inspect.Parameter.empty, None) else f"{parameter.name}={given}")
    return f"{name}({', '.join(shown)})"


def _first_line(make: Callable[..., Any]) -> str:
    return (inspect.getdoc(make) or "").split("\n")[0].replace("`", "")
