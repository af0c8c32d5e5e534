"""The command line: `windrow run`, `explain`, `report`, `functions`, `node`, `tree`, `demo`, `version`.

Results go to standard output or into a directory, everything else to standard error; errors are one sentence. What a
command needs is imported when it runs, so that `--help` does not wait for Spark.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from windrow import __version__
from windrow.cli.failures import INTERRUPTED, Refused, guarded
from windrow.cli.nodes import node_app, tree_app

app = typer.Typer(
    name="windrow",
    help="""Many window queries over event streams, answered in one pass: in this process or on Spark.

    `windrow run queries.sql --events events.csv`

    Queries are SQL or YAML. Each command's --help has examples.

    Exit codes: 0 fine, 1 failed, 2 wrong usage or a query or events that cannot be taken, 130 interrupted.""",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(node_app, name="node")
app.add_typer(tree_app, name="tree")

_EVENTS, _RESULTS, _SPARK, _OTHER = "Queries and events", "Results", "Spark", "Other"


def _option(text: str, panel: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


def _flag(text: str, panel: str, *names: str) -> Any:
    return _option(text, panel, *names, metavar="")


Queries = Annotated[str, typer.Argument(help="a .sql or .yaml file; - for SQL on standard input", metavar="QUERIES")]
Events = Annotated[str, _option("a file, a directory or a quoted pattern", _EVENTS, metavar="PATH")]
Only = Annotated[list[str] | None, _option("only the query of this name; repeatable", _EVENTS, metavar="NAME")]
Time = Annotated[str | None, _option("the time, where neither SQL nor the events say it", _EVENTS, metavar="COLUMN")]
Lateness = Annotated[str | None, _option("how far a stream may be out of order", _EVENTS, metavar="LENGTH")]
Updates = Annotated[str | None, _option("how long late events change a stream's results", _EVENTS, metavar="LENGTH")]
OrderBy = Annotated[list[str] | None, _option("orders events of the same time; repeatable", _EVENTS, metavar="COLUMN")]
BadEvents = Annotated[Literal["raise", "drop"] | None, _option("for events without a time, or beyond 64 bits", _EVENTS)]
Partial = Annotated[bool, _flag("also windows that are not whole at the end", _EVENTS, "--partial")]
EventsFormat = Annotated[Literal["parquet", "arrow", "csv", "json"] | None, _option("if names do not say it", _EVENTS)]
Separator = Annotated[str | None, _option("of CSV, if its first line does not show it", _EVENTS, metavar="SIGN")]
Header = Annotated[str | None, _option("of CSV without one: 'ts, car, speed'", _EVENTS, metavar="NAMES")]
TimeFormat = Annotated[
    str | None, _option("of times: '%d/%m/%Y %H:%M', or s, ms, us, ns since 1970", _EVENTS, metavar="FORMAT")
]
Types = Annotated[str | None, _option("of CSV and JSON: 'id STRING, x DOUBLE'", _EVENTS, metavar="TYPES")]
Out = Annotated[Path | None, _option("a directory to write into", _RESULTS, metavar="PATH")]
Format = Annotated[
    Literal["parquet", "csv", "json", "console"] | None,
    _option("parquet with --out, else tables, in a pipe CSV", _RESULTS, "--format"),
]
Rows = Annotated[int | None, _option("how many to show of each query (10 in tables)", _RESULTS, min=0, metavar="N")]
Overwrite = Annotated[bool, _flag("replace results that are there", _RESULTS, "--overwrite")]
Engine = Annotated[Literal["spark", "local"] | None, _option("by default this process where the events fit it", _SPARK)]
Master = Annotated[str | None, _option("where Spark runs (local[*])", _SPARK, metavar="URL")]
Stream = Annotated[bool, _flag("read a directory as a stream of files", _SPARK, "--stream")]
Follow = Annotated[bool, _flag("a stream that goes on until Ctrl-C", _SPARK, "--follow")]
FilesPerBatch = Annotated[int | None, _option("files that a stream takes at a time", _SPARK, min=1, metavar="N")]
Checkpoint = Annotated[Path | None, _option("of a stream, by default OUT/_checkpoint", _SPARK, metavar="PATH")]
Quiet = Annotated[bool, _flag("no progress, no last line", _OTHER, "--quiet", "-q")]
Debug = Annotated[bool, _flag("stack traces, and what Spark logs", _OTHER, "--debug")]


@app.command()
def run(
    queries: Queries,
    events: Events,
    time: Time = None,
    lateness: Lateness = None,
    updates: Updates = None,
    order_by: OrderBy = None,
    bad_events: BadEvents = None,
    partial: Partial = False,
    only: Only = None,
    events_format: EventsFormat = None,
    separator: Separator = None,
    header: Header = None,
    time_format: TimeFormat = None,
    types: Types = None,
    out: Out = None,
    form: Format = None,
    rows: Rows = None,
    overwrite: Overwrite = False,
    engine: Engine = None,
    master: Master = None,
    stream: Stream = False,
    follow: Follow = False,
    files_per_batch: FilesPerBatch = None,
    checkpoint: Checkpoint = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Answer queries over files of events: Parquet, Arrow, CSV or JSON lines.

    `windrow run queries.sql --events events.csv`

    `windrow run queries.yaml --events 'data/*.parquet' --out results`

    `windrow run queries.sql --events incoming --follow --lateness '1 minute' --out results`
    """
    from windrow.cli import engines, options, run_command
    from windrow.cli.progress import Shown

    given = {"time": time, "lateness": lateness, "updates": updates, "order_by": order_by, "bad_events": bad_events}
    request = options.read(queries, only or (), partial=partial, time_format=time_format, **given)
    stream = stream or follow
    if stream and (engine == "local" or not engines.installed(engine)):
        raise Refused("a stream runs on Spark: take --engine spark, or leave --stream and --follow out")
    if updates is not None and not stream:
        raise Refused("--updates is for a stream: a whole table has no late events; say --stream, or leave it out")
    if partial and stream:
        raise Refused("partial is for a whole table: a stream has no end; leave --partial or --stream out")
    for value, name in ((checkpoint, "--checkpoint"), (files_per_batch, "--files-per-batch")):
        if value is not None and not stream:
            raise Refused(f"{name} is for a stream: say --stream, or leave it out")
    place = (out, form, overwrite, rows)
    of_text = run_command.of_text(separator, header)
    where = run_command.Where(events, events_format, types, of_text, *place, checkpoint, follow, files_per_batch)
    shown = Shown(quiet)
    files = where.checked(request, stream)
    chosen, why = engines.engine_of(engine, files, request.queries, stream, master)
    on_spark = (master or "local[*]", why, shown, debug)
    if chosen == "local":
        run_command.run_local(files, request, where, why, shown)
    elif stream:
        run_command.run_stream(files, request, where, *on_spark)
    else:
        run_command.run_spark(files, request, where, *on_spark)


@app.command()
def explain(
    queries: Queries,
    events: Annotated[
        str | None, _option("files, whose types and rates are then known", _EVENTS, metavar="PATH")
    ] = None,
    time: Time = None,
    only: Only = None,
    events_format: EventsFormat = None,
    separator: Separator = None,
    header: Header = None,
    time_format: TimeFormat = None,
    types: Types = None,
    engine: Engine = None,
    debug: Debug = False,
) -> None:
    """Show the plan: what is shared and what would travel; with events, also how Spark would do it.

    `windrow explain queries.sql --events events.csv`
    """
    from windrow.cli import options, run_command
    from windrow.cli.explain_command import explained

    request = options.read(queries, only or (), time=time, time_format=time_format)
    of_text = run_command.of_text(separator, header)
    explained(request, run_command.Where(events, events_format, types, of_text) if events else None, engine)


@app.command()
def report(
    results: Annotated[Path, typer.Argument(help="what `windrow run --out` has written", metavar="RESULTS")],
    out: Annotated[Path | None, _option("the page, by default report.html in RESULTS", _OTHER, metavar="PATH")] = None,
    open_it: Annotated[bool, _flag("open it in the browser", _OTHER, "--open")] = False,
    debug: Debug = False,
) -> None:
    """Write a page with charts, the plan and the figures of a run, which needs no network.

    `windrow report results --open`
    """
    from windrow import report as reports

    if not results.exists():
        raise Refused(f"there are no results at {str(results)!r}; windrow run … --out {results} writes some")
    path = reports.write(results, out)
    print(path)
    if open_it:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


@app.command()
def functions() -> None:
    """List windows and aggregates, with a line on each."""
    from windrow.cli.explain_command import functions as listed

    listed()


@app.command()
def demo(
    folder: Annotated[
        Path, typer.Argument(help="where its events, its results and its page go", metavar="FOLDER")
    ] = Path("demo"),
    months: Annotated[
        int, _option("how many months of the year are replayed", _OTHER, "--months", min=1, max=12, metavar="N")
    ] = 12,
    debug: Debug = False,
) -> None:
    """See it work: a year of real flights from three local nodes, fourteen queries, one pass on Spark.

    `windrow demo`
    """
    from windrow import demo as demonstration

    raise typer.Exit(demonstration.main(folder, months, debug))


@app.command()
def version() -> None:
    """Print the version."""
    print(f"windrow {__version__}")


def _show_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def common(
    _: Annotated[
        bool, typer.Option("--version", help="print the version", metavar="", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """What is before the command."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command, and end with its exit code."""
    given: list[str] = sys.argv[1:] if arguments is None else arguments

    def command() -> None:
        done = app(given, prog_name="windrow", standalone_mode=False)
        if done == INTERRUPTED:
            raise KeyboardInterrupt
        if isinstance(done, int) and done:
            raise SystemExit(done)

    sys.exit(guarded(command, "--debug" in given))
