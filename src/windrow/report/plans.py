"""The plan as a picture: queries on the left, the slice groups that they share, and what a slice of each holds.

    speed ──╮   ┌ by (car) on ts ──────┐     ┌──────────────────────┐
    slow  ──┼───│ only slices travel   │─────│ count() 3   sum(v) 2 │
    trip  ──╯   └──────────┬───────────┘     └──────────────────────┘
                           ▼ rolled up
    all   ──────┌ by () on ts ─────────┐─────

The number in a state is how many queries read it: what is greater than one is shared.
"""

from __future__ import annotations

from collections import Counter
from textwrap import wrap
from typing import Any

from windrow.core.plan.groups import ROWS, Group, Partial
from windrow.core.plan.plan import Plan
from windrow.report.markup import Markup, joined, tag
from windrow.report.words import count, cut

_MOST_QUERIES, _MOST_STATES = 8, 14
_WIDTH, _ROW, _LINE, _PAD = 1040, 48, 17, 12
_QUERY, _GROUP, _STATE = (0, 270), (330, 310), (700, 340)  # where a column stands and how wide it is
_LETTER = 6.5  # about how wide a letter is, in pixels
_UNITS = (("minute", 60), ("hour", 3600), ("day", 86400))


def picture(plan: Plan) -> Markup:
    """The plan in SVG."""
    described = plan.to_dict()["groups"]
    drawn: list[Markup] = []
    bounds: dict[int, tuple[float, float]] = {}  # of the boxes of groups
    top = 30.0
    for place, group in enumerate(plan.groups):
        marks, height, inner = _row(plan, group, described[place], top, f"c{place % 6}")
        drawn += marks
        middle = top + height / 2
        bounds[id(group)] = middle - inner / 2, middle + inner / 2
        top += height + 30
    lanes: dict[int, int] = {}  # arrows from one group go together, those from others beside them
    for place, group in enumerate(plan.groups):
        if group.parent:
            next_below = plan.groups[place - 1] is group.parent
            lane = None if next_below else lanes.setdefault(id(group.parent), len(lanes) % 4)
            drawn.append(_rolled(bounds[id(group.parent)][1], bounds[id(group)][0], lane))
    queries, groups = count(len(plan.entries), "query"), count(len(plan.groups), "slice group")
    heads = ((queries, _QUERY), (groups, _GROUP), ("what a slice holds, and for how many queries", _STATE))
    title = f"The plan: {queries} in {groups}"
    svg = tag(
        "svg",
        tag("title", title),
        *(tag("text", head, x=x, y="12", class_="head") for head, (x, _) in heads),
        *drawn,
        role="img",
        aria_label=title,
        viewBox=f"-1 0 {_WIDTH + 2} {top - 20:.0f}",
        class_="plan",
    )
    return tag("div", svg, class_="scroll", tabindex="0", role="region", aria_label="The plan as a picture")


def _row(
    plan: Plan, group: Group, described: dict[str, Any], top: float, colour: str
) -> tuple[list[Markup], float, float]:
    """A group with its queries and its states; the height of it all, and of the group's own box."""
    queries, facts = _queries(plan, group), _facts(group, described)
    room = len(queries) * _ROW
    chips, taken = _chips(_states(group))
    inner = max(2 * _PAD + _LINE * (len(facts) + 1) - 4, taken + 2 * _PAD)
    height = max(room - 6, inner)
    middle = top + height / 2
    drawn: list[Markup] = []
    for row, (name, window) in enumerate(queries):
        y = top + (height - room + 6) / 2 + row * _ROW
        drawn.append(_curve(_QUERY, y + (_ROW - 6) / 2, _GROUP, middle, colour))
        drawn.append(_box(_QUERY, y, _ROW - 6, [name, window], colour))
    drawn.append(_curve(_GROUP, middle, _STATE, middle, colour))
    drawn.append(_box(_GROUP, middle - inner / 2, inner, [group.name, *facts], colour))
    drawn.append(_box(_STATE, middle - inner / 2, inner, [], colour))
    drawn.append(tag("g", *chips, transform=f"translate({_STATE[0] + _PAD},{middle - taken / 2:.0f})"))
    return drawn, height, inner


def _queries(plan: Plan, group: Group) -> list[tuple[str, str]]:
    numbers = sorted(number for several in group.members.values() for number in several)
    shown = [(plan.entries[one].query.name, str(plan.entries[one].query.window)) for one in numbers]
    if len(shown) > _MOST_QUERIES:
        shown[_MOST_QUERIES - 1 :] = [(f"and {count(len(shown) - _MOST_QUERIES + 1, 'more query')}", "")]
    return shown


def _states(group: Group) -> list[tuple[str, int]]:
    """What a slice keeps, and for how many queries."""
    used: Counter[Partial] = Counter()
    signatures = list(group.signatures)
    for (_, place), numbers in group.members.items():
        for one in dict.fromkeys([Partial(ROWS, signatures[place].where), *signatures[place].partials]):
            used[one] += len(numbers)
    return [(one.text, used[one]) for one in group.partials]


def _facts(group: Group, described: dict[str, Any]) -> list[str]:
    """Where its slices are cut, what of, and what travels."""
    rate, edges = described["edges_per_second"], described["edges"].split(", ")
    if rate:
        unit = edges[0].rpartition(" per ")[2]
        if unit == "second" and rate < 0.2:
            unit, seconds = next(one for one in _UNITS if rate * one[1] >= 1 or one is _UNITS[-1])
            rate *= seconds
        shown = f"{rate:,.3g}" if rate < 1000 else f"{rate:,.0f}"
        edges[0] = f"{shown} {'edge' if shown == '1' else 'edges'} per {unit}"
    if group.parent:
        last = f"rolled up from the slices {group.parent.name}"
    else:
        last = "sliced in order: events travel" if group.ordered else "sliced anywhere: only slices travel"
    room = int((_GROUP[1] - 2 * _PAD) / _LETTER)
    return [line for fact in (*edges, last) for line in wrap(fact, room)]


def _chips(states: list[tuple[str, int]]) -> tuple[list[Markup], float]:
    """States in rows, and how high they are."""
    found: list[Markup] = []
    x, y, room = 0.0, 0.0, _STATE[1] - 2 * _PAD
    for place, (text, queries) in enumerate(states):
        last = place == _MOST_STATES - 1 and len(states) > _MOST_STATES
        label = f"and {len(states) - place:,} more" if last else text
        badge = "" if last else f"{queries:,}"
        shown = cut(label, int((room - 40) / _LETTER))
        chip = "chip shared" if queries > 1 else "chip"
        width = _LETTER * (len(shown) + len(badge)) + (30 if badge else 20)
        if x and x + width > room:
            x, y = 0.0, y + 28
        found.append(
            tag(
                "g",
                tag("title", f"{label}: read by {count(queries, 'query')}") if badge else None,
                tag("rect", width=f"{width:.0f}", height="22", rx="11", class_=chip),
                tag("text", shown, tag("tspan", badge, dx="7", class_="badge"), x=f"{width / 2:.1f}", y="15"),
                transform=f"translate({x:.0f},{y:.0f})",
            )
        )
        x += width + 6
        if last:
            break
    return found, y + 22


def _box(column: tuple[int, int], y: float, height: float, lines: list[str], colour: str) -> Markup:
    """A box with a name and dimmer lines below it."""
    x, width = column
    lines = [one for one in lines if one]
    first = y + height / 2 - _LINE * (len(lines) - 1) / 2 + 4.5
    texts = [
        tag(
            "text",
            cut(line, int((width - 2 * _PAD) * (1 if place else 0.87) / _LETTER)),  # a name is bold, and wider
            x=x + _PAD,
            y=f"{first + _LINE * place:.1f}",
            class_="dim" if place else "name",
        )
        for place, line in enumerate(lines)
    ]
    box = tag("rect", x=x, y=f"{y:.1f}", width=width, height=f"{height:.1f}", rx="6", class_=f"box {colour}")
    return joined([tag("g", tag("title", "\n".join(lines)) if lines else None, box, *texts)])


def _curve(left: tuple[int, int], y: float, right: tuple[int, int], to: float, colour: str) -> Markup:
    x, end = left[0] + left[1], right[0]
    bend = (x + end) / 2
    return tag("path", d=f"M{x},{y:.1f}C{bend},{y:.1f} {bend},{to:.1f} {end},{to:.1f}", class_=f"link {colour}")


def _rolled(bottom: float, top: float, lane: int | None) -> Markup:
    """An arrow from the group whose slices are used down to the one that uses them, in a lane beside those between."""
    if lane is None:
        x = _GROUP[0] + _GROUP[1] / 2
        return joined([tag("path", d=f"M{x},{bottom:.1f}V{top - 6:.1f}", class_="rolled"), _head(x, top, "l-4,-7h8z")])
    x, side = _GROUP[0] + _GROUP[1], _GROUP[0] + _GROUP[1] + 14 + 10 * lane
    path = tag("path", d=f"M{x},{bottom - 12:.1f}H{side}V{top + 12:.1f}H{x + 6}", class_="rolled")
    return joined([path, _head(x, top + 12, "l7,-4v8z")])


def _head(x: float, y: float, shape: str) -> Markup:
    return tag("path", d=f"M{x:.1f},{y:.1f}{shape}", class_="arrow")
