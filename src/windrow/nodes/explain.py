"""What travels up a tree for each query, and why: the text of `windrow tree explain`.

tumbling   slices               merged on the way: count(), sum(x)
each       results              found at the local nodes, because node is among its keys
joined     states of windows    found at the local nodes, and joined at the root by equal bounds
median     slices, some values  sub-slices of the sorted values, and the values of those that the root asks for
counting   slices, some events  nodes and the root agree on where windows end, by the scheme async
every      events: t, node, x   its windows need the order over all nodes
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from windrow.core.plan.groups import Group, leaves, quantile_of
from windrow.core.query.query import Query
from windrow.core.stream.job import Job
from windrow.core.windows.ordered import NODE, Counting, OrderedWindow, scope_of
from windrow.nodes.counting.schemes import SCHEMES, SMALL
from windrow.nodes.counting.tables import ByScheme
from windrow.nodes.pushdown import PUSHED
from windrow.nodes.quantiles.protocol import REFINED, can_be_refined


def explain(job: Job, can_be_pushed: Container[str], push_down: bool, scheme: str) -> str:
    """A line for each query, in their order."""
    bound = job.compiled
    lines: dict[int, tuple[str, str, str]] = {}
    for group in bound.plan.groups:
        for numbers in group.members.values():
            for number in numbers:
                query = bound.plan.entries[number].query
                placement = group.placement
                if placement == PUSHED:
                    what, why = _windows(group, query)
                elif isinstance(placement, ByScheme):
                    what, why = "slices, some events", _agreed(placement.scheme, query)
                    if placement.columns and can_be_refined(query):
                        what, why = f"{what} and values", f"{why}; {_refined(query)}"
                elif group.ordered:
                    what = f"events: {', '.join(_columns(job, bound.by_name[group.name].travels))}"
                    why = _raw(query, query.name in can_be_pushed, push_down, scheme)
                elif placement == REFINED:
                    what, why = "slices, some values", f"merged on the way, of {group.name}; {_refined(query)}"
                else:
                    what, why = "slices", f"merged on the way, of {group.name}"
                lines[number] = query.name, what, why
    names, kinds = (max((len(line[column]) for line in lines.values()), default=0) for column in (0, 1))
    return "\n".join(f"{name:{names}}  {what:{kinds}}  {why}" for _, (name, what, why) in sorted(lines.items()))


def _windows(group: Group, query: Query) -> tuple[str, str]:
    if group.kind == "joined":
        by = {"bounds": "equal bounds", "position": "their position", "overlap": "overlap"}[scope_of(query.window)]
        return "states of windows", f"found at the local nodes, and joined at the root by {by}"
    reason = f"{NODE!r} is among its keys" if NODE in query.by else "each of its keys lives at one"
    return "results", f"found at the local nodes, because {reason}"


def _agreed(scheme: str, query: Query) -> str:
    """How nodes and the root agree on where windows end."""
    if scheme == "auto":
        return f"{query.window}: the root chooses a scheme from what it measures, and its status says which"
    exact = "" if SCHEMES[scheme].is_exact else ", whose windows are not exact"
    return f"{query.window}: nodes and the root agree on where windows end, by the scheme {scheme}{exact}"


def _refined(query: Query) -> str:
    """What travels instead of all values."""
    quantiles = [formula.text for formula in leaves(query.computed) if quantile_of(formula) is not None]
    shown = ", ".join(quantiles[:3]) + (f" and {len(quantiles) - 3:,} more" if len(quantiles) > 3 else "")
    return f"for {shown} sub-slices of the sorted values, and the values of those that the root asks for"


def _raw(query: Query, can_be_pushed: bool, push_down: bool, scheme: str) -> str:
    """Why a query needs its events at the root."""
    ordered = next((aggregate.text for aggregate in query.computed if aggregate.needs_order), "")
    needs = query.window if isinstance(query.window, OrderedWindow) else ordered
    if can_be_pushed and push_down:
        return f"{needs} came at run time, and a local node does not know in time when it begins"
    if can_be_pushed:
        return f"{needs} could be found at the local nodes: set push_down, which needs a spool at each"
    if isinstance(query.window, Counting) and not ordered and scheme == "auto":
        is_small = min(query.window.n, query.window.step) < SMALL
        why = "agreeing on its ends would be more than its events" if is_small else "it came at run time"
        return f"{needs} depends on the order over all nodes, and {why}"
    if query.by:
        return f"{needs} depends on the order over all nodes; if a key lives at one node, name it in local_keys"
    return f"{needs} depends on the order over all nodes; scope='node' and the scopes that join would not"


def _columns(job: Job, travels: Iterable[str]) -> list[str]:
    """What of each event a group needs: columns, and expressions over them."""
    columns: dict[str, None] = {}  # in order, each once
    for name in travels:
        kind, _, content = name.partition(":")
        if kind == "order":
            columns[job.options.order_by[int(content)]] = None
        elif name != "nth":  # the event's position in the node's stream, which is no column
            columns[content] = None
    return list(columns)
