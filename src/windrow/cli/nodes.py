"""`windrow node` and `windrow tree`: nodes as processes, a whole tree on one machine, its status and its queries."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from windrow.cli.failures import Failed, Interrupted, Refused, guarded

Role = Literal["local", "intermediate", "root"]
UP = "WINDROW_TREE_UP"  # in the environment of a node: the process of the tree that started it

node_app = typer.Typer(
    help="""Run one node of a tree: local nodes slice, intermediate nodes merge, the root answers.

    `windrow node local --config north.yaml`""",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
tree_app = typer.Typer(
    help="""A tree of nodes: start a whole one on this machine, look at one that runs, change its queries.

    `windrow tree up tree.yaml`""",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
query_app = typer.Typer(
    help="Add and remove queries while a tree runs.", no_args_is_help=True, rich_markup_mode="markdown"
)
tree_app.add_typer(query_app, name="query")

Config = Annotated[Path, typer.Option("--config", help="the node's file, node.yaml", metavar="PATH")]
Debug = Annotated[bool, typer.Option("--debug", help="stack traces", metavar="")]
TreeFile = Annotated[Path, typer.Argument(help="the tree's file", metavar="TREE")]
InTree = Annotated[Path, typer.Option("--tree", help="the file of a tree on this machine", metavar="TREE")]
At = Annotated[str | None, typer.Option("--at", help="a root elsewhere: grpc+tls://host:port", metavar="ADDRESS")]
TokenFile = Annotated[Path | None, typer.Option(help="the operator's token", metavar="PATH")]
Ca = Annotated[Path | None, typer.Option(help="the authority of the root's certificate", metavar="PATH")]
Json = Annotated[bool, typer.Option("--json", help="as JSON", metavar="")]


def _node_command(role: Role, text: str) -> None:
    @node_app.command(role, help=text)
    def command(config: Config, debug: Debug = False) -> None:
        run_node(role, config, debug)


_node_command("local", "A node that reads events, slices them and sends the slices to its parent.")
_node_command("intermediate", "A node that merges what its children send, and sends it to its parent.")
_node_command("root", "The node that answers: it writes results, or leaves slices for Spark.")


def _quiet_grpc() -> None:
    """gRPC would log every attempt of every stranger, in its own words; nodes log what matters."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def _end_with(pid: int, stop: Callable[[], None]) -> None:
    """Stop once the process that started this one is gone, whatever has ended it."""
    while os.getppid() == pid:
        time.sleep(1)
    stop()


def run_node(role: Role, path: Path, debug: bool) -> None:
    """Be a node until it is done, or a signal ends it; then end the process, whoever still holds a stream."""
    _quiet_grpc()
    from windrow.core.arrays.dataframes import InputError
    from windrow.nodes.process.config import read
    from windrow.nodes.process.process import NodeProcess, NodeRefused

    node = NodeProcess(read(path, role))
    received: list[int] = []

    def stop(number: int, _: Any) -> None:
        received.append(number)
        node.stop()

    def work() -> None:
        try:
            node.run()
        except (NodeRefused, InputError) as error:
            raise Refused(str(error).replace("bad_events='drop'", "bad_events: drop at the root")) from error
        if signal.SIGINT in received:
            kept = "what it holds is in its spool" if node.config.spool else "its parent holds what it has acknowledged"
            raise Interrupted(f"{kept}; the same command goes on")

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if UP in os.environ:
        threading.Thread(target=_end_with, args=(int(os.environ[UP]), node.stop), daemon=True).start()
    code = guarded(work, debug, f"windrow {node.config.name}")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@tree_app.command()
def up(tree: TreeFile = Path("tree.yaml"), debug: Debug = False) -> None:
    """Start a whole tree on this machine, show how far every node is, and end it with Ctrl-C.

    It ends by itself once all sources have come to their end. Started again, it goes on where it was.
    """
    from windrow.cli.trees import run

    raise typer.Exit(run(_tree(tree)))


@tree_app.command()
def status(
    tree: TreeFile = Path("tree.yaml"),
    at: At = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show every node: its state, watermark and events, and the bytes on its link.

    `windrow tree status`

    `windrow tree status --at grpc+tls://plant:8815 --token-file operator.token --ca ca.pem`
    """
    import json

    from windrow.cli.trees import agreed, seen, statuses, table

    found = [_ask(tree, at, token_file, ca, "status", {})] if at else statuses(_tree(tree))
    nodes = seen(found[0]) if at else found
    print(json.dumps(found, indent=2) if as_json else "\n".join([table(nodes), *agreed(nodes)]))


@tree_app.command()
def explain(tree: TreeFile = Path("tree.yaml"), debug: Debug = False) -> None:
    """Say for every query what travels from the local nodes to the root, and why.

    Of a tree that was started also by which scheme nodes agree on counting windows, as the root has chosen it last.
    """
    from windrow.cli.trees import agreed, statuses
    from windrow.io.yaml_files import placed
    from windrow.nodes.process.config import ConfigError, fields_of, query_set_of

    given = fields_of(tree, "windrow tree")
    with placed(str(tree), ConfigError):
        queries = query_set_of(given)
    print("\n".join([queries.explain(), *(agreed(statuses(_tree(tree))) if "nodes" in given else [])]))


@query_app.command()
def add(
    queries: Annotated[Path, typer.Argument(help="a .sql or .yaml file", metavar="QUERIES")],
    tree: InTree = Path("tree.yaml"),
    at: At = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    debug: Debug = False,
) -> None:
    """Ask more queries of a tree that runs; each is answered from an event time on that no node has passed."""
    from windrow.io import query_files

    query_files.read(queries)  # what is wrong is refused here
    body = {"text": queries.read_text(encoding="utf-8"), "name": queries.name}
    body["format"] = "sql" if queries.suffix.lower() == ".sql" else "yaml"
    added = _ask(tree, at, token_file, ca, "add", body)["added"]
    print(f"added {', '.join(added)}")


@query_app.command()
def remove(
    name: Annotated[str, typer.Argument(help="of a query", metavar="NAME")],
    tree: InTree = Path("tree.yaml"),
    at: At = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    debug: Debug = False,
) -> None:
    """Answer a query no more."""
    print(f"removed {_ask(tree, at, token_file, ca, 'remove', {'text': name})['removed']}")


@tree_app.command()
def certs(
    folder: Annotated[Path, typer.Argument(help="where they go", metavar="DIR")],
    hosts: Annotated[
        list[str], typer.Option("--hosts", help="a name or address of a node; repeatable", metavar="HOST")
    ],
    days: Annotated[int, typer.Option(help="how long they hold", min=1, metavar="N")] = 365,
    debug: Debug = False,
) -> None:
    """Make an authority, and a certificate for every host that listens, so that TLS is quick to set up.

    `windrow tree certs certs --hosts plant.example --hosts 10.0.0.7`
    """
    try:
        from windrow.nodes.transport.certificates import write
    except ImportError as error:
        raise Failed(f"{error}: pip install 'windrow[nodes]'") from error

    for path in write(folder, hosts, days):
        print(path)


def _tree(path: Path) -> Any:
    from windrow.nodes.process.tree import read

    return read(path)


def _ask(tree: Path, at: str | None, token_file: Path | None, ca: Path | None, kind: str, body: dict[str, Any]) -> Any:
    """Ask a root: the one at an address, or that of a tree on this machine."""
    _quiet_grpc()
    from windrow.nodes.transport.client import ask
    from windrow.nodes.transport.security import Address, check_parent, pem, token_of

    where = at or _tree(tree).root.status.get("address")
    if where is None:
        raise Refused(f"the tree of {tree} has not been started: windrow tree up {tree}")
    address = Address.of(where)
    token = token_of(token_file) if token_file else None
    check_parent(address, token)
    try:
        return ask(address, kind, body, pem(ca, "ca"), token)
    except OSError as error:
        raise Failed(str(error)) from error
