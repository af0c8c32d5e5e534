"""Charts in SVG that fit any width: text keeps its size, and only what is drawn stretches.

<svg width="100%" height="200">              no viewBox: a unit is a pixel
  <text x="25%" y="218">Feb</text>           text and grid stand at shares of the width
  <svg viewBox="0 0 1000 200"                the marks: 1000 units wide, whatever that is in pixels;
       preserveAspectRatio="none">           strokes do not scale, and a stroke of no length is a dot
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from windrow.core.arrays.range_queries import Ints
from windrow.core.windows.fixed import duration_text
from windrow.report import scales
from windrow.report.answers import Answer
from windrow.report.markup import Markup, joined, tag
from windrow.report.scales import Scale, Tick
from windrow.report.series import FEW_WINDOWS, Block, Drawing, Floats, Panel, Trace, bounds_of, runs
from windrow.report.words import count, cut, period, short

UNITS = 1000  # of the marks' width
_TALL, _SMALL, _LANE = 200, 96, 22  # heights in pixels
_WIDE, _NARROW = 720, 220  # widths in pixels for which ticks are chosen
_STEPS = 200  # windows beyond which levels are too short to be seen: a line through their middles is drawn
_LABELS = 18  # letters of a label beside its line; longer ones stand in the legend


def chart(answer: Answer, drawing: Drawing) -> Markup | None:
    """The chart of an answer, or None where there is nothing to draw."""
    if drawing.blocks:
        return joined(_block(answer, block) for block in drawing.blocks)
    if len(drawing.lanes) == 1 and drawing.shade:
        return _heights(answer, drawing.lanes[0], drawing.shade)
    return _lanes(answer, drawing.lanes, drawing.shade) if drawing.lanes else None


def bars(figures: Sequence[tuple[str, float, str]], label: str) -> Markup:
    """Amounts one below the other, the first in colour: (what, how much, and that as text)."""
    most = max(value for _, value, _ in figures) or 1
    rows = [
        tag(
            "div",
            tag("dt", what),
            tag("dd", tag("i", style=f"width:{max(100 * value / most, 0.2):.4g}%"), tag("span", text)),
            class_="bar c5" if place else "bar c0",
        )
        for place, (what, value, text) in enumerate(figures)
    ]
    return tag("dl", *rows, class_="bars", aria_label=label)


# --- lines --------------------------------------------------------------------------------------------------


def _block(answer: Answer, block: Block) -> Markup:
    wide = len(block.panels) == 1
    low, high = answer.bounds
    height = _TALL if wide else _SMALL
    y = scales.values(block.low, block.high, 5 if wide else 4)
    x = scales.times(low, high, answer.temporal, _WIDE if wide else _NARROW)
    plane = _Plane(answer, x, y, height)
    panels = [_panel(plane, block, panel) for panel in block.panels]
    title = tag("h4", block.title)
    overlaid = len(block.panels[0].traces) > 1
    names = [one.label for one in block.panels[0].traces] if overlaid else block.lines
    areas = list(block.bands.values())
    legend = _legend(names, areas) if len(names) > 1 or areas else None
    grid = tag("div", *panels, class_="panels wide" if wide else "panels")
    direct = " labelled" if wide and not areas and _beside(names) else ""
    return tag("div", title, legend, grid, class_="block" + direct)


def _legend(names: Sequence[str], areas: Sequence[str]) -> Markup:
    items = [tag("li", tag("i", class_=f"c{place}"), name) for place, name in enumerate(names)]
    items += [tag("li", tag("i", class_=f"area c0 n{place}"), area) for place, area in enumerate(areas)]
    return tag("ul", *items, class_="legend")


def _beside(names: Sequence[str]) -> bool:
    """Whether the lines' names can stand at their ends."""
    return len(names) > 1 and all(len(one) <= _LABELS for one in names)


@dataclass(frozen=True)
class _Plane:
    """Where the marks of a panel lie: times from left to right, values from the top down."""

    answer: Answer
    x: Scale
    y: Scale
    height: int

    def across(self, at: Any) -> Any:
        return np.round(self.x.part(at) * UNITS, 1)

    def up(self, value: Any) -> Any:
        return np.round(self.height * (1 - self.y.part(value)), 1)

    def sides(self, trace: Trace) -> tuple[Any, Any, Any]:
        """Where windows begin and end, and where their values stand on a line without levels."""
        left, right = self.across(trace.start), self.across(trace.end)
        return left, right, right if self.answer.form == "points" else (left + right) / 2


def _panel(plane: _Plane, block: Block, panel: Panel) -> Markup:
    marks, ends = [], []
    overlaid = len(panel.traces) > 1
    for place, trace in enumerate(panel.traces):
        for depth, (low, high) in enumerate(block.bands):
            marks.append(_area(plane, trace, trace.values[low], trace.values[high], depth))
        for line, name in enumerate(block.lines):
            values, colour = trace.values[name], place if overlaid else line
            marks += _line(plane, trace, values, colour)
            there = np.flatnonzero(np.isfinite(values))
            if len(there):
                ends.append((float(plane.up(values[there[-1]])), colour, trace.label if overlaid else name))
    labels = ends if plane.height == _TALL and not block.bands and _beside([label for *_, label in ends]) else []
    what = f"{panel.title}: {block.title}" if panel.title else block.title
    ruler = _ruler(plane, panel.traces) if plane.height == _TALL else []
    above = [*_labels(labels, plane.height), *ruler]
    room = max((len(label) for *_, label in labels), default=0)
    return _plot(plane, panel.traces, block.columns, what, _values(plane), marks, above, panel.title, room)


def _ruler(plane: _Plane, traces: Sequence[Trace]) -> list[Markup]:
    """How long a window is, where all are as long and a value stands at its end."""
    lengths = {int(one) for trace in traces for one in trace.end - trace.start}
    share = min(lengths) / (plane.x.high - plane.x.low)
    if plane.answer.form != "points" or len(lengths) > 1 or not 0.004 < share < 0.7:
        return []
    end = f"{100 * share:.3f}%"
    line = tag("line", x1="0", x2=end, y1="-10", y2="-10", class_="ruler")
    ends = [tag("line", x1=at, x2=at, y1="-14", y2="-6", class_="ruler") for at in ("0", end)]
    text = f"one window: {duration_text(min(lengths), plane.answer.temporal)}, its value at its end"
    return [line, *ends, tag("text", text, x="0", y="-24", class_="said")]


def _is_stepped(plane: _Plane, trace: Trace) -> bool:
    """Whether each window is drawn as a level as long as it is."""
    return plane.answer.form == "steps" and len(trace) <= _STEPS


def _line(plane: _Plane, trace: Trace, values: Floats, colour: int) -> list[Markup]:
    (left, right, at), level = plane.sides(trace), plane.up(values)
    path = []
    for run in runs(plane.answer, trace, np.isfinite(values)):
        if _is_stepped(plane, trace):
            path += [f"{'L' if n else 'M'}{left[i]:g},{level[i]:g}H{right[i]:g}" for n, i in enumerate(run)]
        else:
            path.append("M" + "L".join(f"{at[i]:g},{level[i]:g}" for i in run) + ("h0" if len(run) == 1 else ""))
    dense = " dense" if len(trace) > FEW_WINDOWS else ""
    line = tag("path", d="".join(path), class_=f"line c{colour}{dense}")
    if plane.answer.form != "points" or len(trace) > 40:
        return [line]
    there = np.flatnonzero(np.isfinite(values))  # few enough to show each: a dot, and how far its window reaches
    reach = "".join(f"M{left[i]:g},{level[i]:g}H{right[i]:g}" for i in there)
    dots = "".join(f"M{right[i]:g},{level[i]:g}h0" for i in there)
    return [tag("path", d=reach, class_=f"reach c{colour}"), line, tag("path", d=dots, class_=f"dots c{colour}")]


def _area(plane: _Plane, trace: Trace, low: Floats, high: Floats, depth: int) -> Markup:
    left, right, at = plane.sides(trace)
    path = []
    for run in runs(plane.answer, trace, np.isfinite(low) & np.isfinite(high)):
        sides = []
        for values, way, begin, end in ((high, run, left, right), (low, run[::-1], right, left)):
            level = plane.up(values)
            if _is_stepped(plane, trace):
                sides += [f"{begin[i]:g},{level[i]:g}H{end[i]:g}" for i in way]
            else:
                sides += [f"{at[i]:g},{level[i]:g}" for i in way]
        path.append("M" + "L".join(sides) + "Z")
    return tag("path", d="".join(path), class_=f"area c0 n{depth}")


# --- bars over time -----------------------------------------------------------------------------------------


def _heights(answer: Answer, trace: Trace, name: str) -> Markup:
    """One lane alone: the height of a bar is its number."""
    values = np.nan_to_num(trace.values[name])
    y = scales.values(float(values.min()), float(values.max()), zero=True)
    x = scales.times(*answer.bounds, answer.temporal, _WIDE)
    plane = _Plane(answer, x, y, _TALL)
    base, left, right, top = plane.up(0), plane.across(trace.start), plane.across(trace.end), plane.up(values)
    sides = zip(left, right, top, strict=True)
    path = "".join(f"M{start:g},{base:g}V{level:g}H{end:g}V{base:g}" for start, end, level in sides)
    marks = [tag("path", d=path, class_="bars heights c0")]
    plot = _plot(plane, [trace], [name], name, _values(plane), marks)
    return tag("div", tag("h4", name), tag("div", plot, class_="panels wide"), class_="block")


def _lanes(answer: Answer, traces: Sequence[Trace], name: str | None) -> Markup:
    """A lane for each key, from the top down: the shade of a bar is its number."""
    labels = tuple(Tick(place + 0.5, cut(trace.label, 16)) for place, trace in enumerate(traces))
    x = scales.times(*answer.bounds, answer.temporal, _WIDE)
    plane = _Plane(answer, x, Scale(len(traces), 0, labels), _LANE * len(traces))
    low, high = bounds_of([trace.values[name] for trace in traces] if name else [])
    marks: list[Markup] = []
    for place, trace in enumerate(traces):
        shades = np.full(len(trace), 4)
        if name and high > low:
            shades = np.minimum(4, 5 * np.nan_to_num((trace.values[name] - low) / (high - low))).astype(int)
        marks += _shaded(plane, trace, shades, place * _LANE)
    borders = range(0, plane.height + 1, _LANE)
    grid = [tag("line", x1="0", x2="100%", y1=border, y2=border, class_="grid") for border in borders]
    grid += [tag("text", tick.label, x="0", y=plane.up(tick.at), dx="-8", class_="lane") for tick in labels]
    what = f"{answer.name}: a lane for each of {count(len(traces), 'key')}"
    plot = _plot(plane, traces, [name] if name else [], what, grid, marks, lanes=True)
    legend = None
    if name and high > low:
        scale = [tag("i", class_=f"c0 s{shade}") for shade in range(5)]
        legend = tag("p", f"{name}: ", short(low), " ", *scale, " ", short(high), class_="shades")
    return tag("div", legend, tag("div", plot, class_="panels wide"), class_="block")


def _shaded(plane: _Plane, trace: Trace, shades: Ints, top: int) -> Iterator[Markup]:
    """The bars of a lane, those of a shade in one path."""
    left, right = plane.across(trace.start), plane.across(trace.end)
    for shade in np.unique(shades):
        sides = zip(left[shades == shade], right[shades == shade], strict=True)
        path = "".join(f"M{start:g},{top + 4}v{_LANE - 8}H{end:g}v{8 - _LANE}Z" for start, end in sides)
        yield tag("path", d=path, class_=f"bars c0 s{shade}")


# --- what every chart has -----------------------------------------------------------------------------------


def _values(plane: _Plane) -> list[Markup]:
    """The grid of an axis of values."""
    found = []
    for tick in plane.y.ticks:
        at = plane.up(tick.at)
        found.append(tag("line", x1="0", x2="100%", y1=at, y2=at, class_="grid" if tick.at else "grid zero"))
        found.append(tag("text", tick.label, x="0", y=at, dx="-8", class_="y"))
    return found


def _across(x: Scale, height: int) -> list[Markup]:
    found = [tag("line", x1="0", x2="100%", y1=height, y2=height, class_="tick")]
    for place, tick in enumerate(x.ticks):
        at = f"{100 * x.part(tick.at):.3f}%"
        minor = " minor" if place % 2 else ""  # is left out where a chart alone is narrow
        found.append(tag("line", x1=at, x2=at, y1=height, y2=height + 5, class_="tick"))
        found.append(tag("text", tick.label, x=at, y=height + 18, class_="x" + minor))
        if tick.context:
            found.append(tag("text", tick.context, x=at, y=height + 33, class_="x context" + minor))
    return found


def _labels(ends: list[tuple[float, int, str]], height: int) -> list[Markup]:
    """Names at the ends of lines, pushed apart where they would lie on each other."""
    room, at, places = 14.0, -1e9, []
    for level, colour, label in sorted(ends):
        at = max(level, at + room)
        places.append((at, colour, label))
    over = max(0.0, places[-1][0] - height) if places else 0.0
    return [
        tag("text", label, x="100%", y=round(level - over, 1), dx="8", class_=f"end c{colour}")
        for level, colour, label in places
    ]


def _plot(
    plane: _Plane,
    traces: Sequence[Trace],
    columns: Sequence[str],
    what: str,
    grid: Sequence[Markup],
    marks: Sequence[Markup],
    above: Sequence[Markup] = (),
    heading: str = "",
    room: int = 0,
    lanes: bool = False,
) -> Markup:
    """A chart: the grid, the marks, and what stands above them, with room for so many letters on the right."""
    title, box = f"{what}, {period(*plane.answer.bounds, plane.answer.temporal)}", f"0 0 {UNITS} {plane.height}"
    size = {"width": "100%", "height": plane.height}
    svg = tag(
        "svg",
        tag("title", title),
        *_across(plane.x, plane.height),
        *grid,
        tag("svg", *marks, viewBox=box, preserveAspectRatio="none", **size, class_="marks"),
        *above,
        tag("rect", x="0", y="0", width="0", height=plane.height, class_="under"),
        tag("rect", x="0", y="0", **size, class_="catch"),
        role="img",
        aria_label=title,
        **size,
        tabindex="0",
        data_hover=_hover(plane, traces, columns, lanes),
        class_="chart",
    )
    letters = max(len(tick.label) for tick in plane.y.ticks)
    foot = 40 if any(tick.context for tick in plane.x.ticks) else 26
    style = f"--labels:{7 * room}px;--names:{max(36, 7 * letters + 12)}px;--foot:{foot}px"
    plot = tag("div", svg, class_="plot")
    return tag("div", tag("h5", heading) if heading else None, plot, class_="panel", style=style)


def _hover(plane: _Plane, traces: Sequence[Trace], columns: Sequence[str], lanes: bool) -> str:
    """What the pointer shows: windows as multiples of a unit, and their numbers."""
    low = int(plane.x.low)
    unit = gcd(*(int(one) for trace in traces for bounds in (trace.start, trace.end) for one in bounds - low)) or 1
    shown: list[dict[str, Any]] = []
    for place, trace in enumerate(traces):
        values = {
            name: [None if math.isnan(value) else float(f"{value:.6g}") for value in trace.values[name]]
            for name in columns
        }
        start, end = ((bounds - low) // unit for bounds in (trace.start, trace.end))
        one: dict[str, Any] = {"name": trace.label, "s": start.tolist(), "e": end.tolist(), "v": values}
        if trace.merged:
            one["n"] = trace.merged
        if lanes:
            one["y"] = [place * _LANE, (place + 1) * _LANE]
        shown.append(one)
    described = {
        "low": str(low),
        "unit": str(unit),
        "high": (int(plane.x.high) - low) / unit,
        "temporal": plane.answer.temporal,
        "at": 1 if plane.answer.form == "points" else 0.5,
        "lanes": lanes,
        "traces": shown,
    }
    return json.dumps(described, separators=(",", ":"), ensure_ascii=False)
