"""A chart for each case: a page that needs nothing but itself, and a PNG where Matplotlib is installed.

Both axes are logarithmic where the numbers are; functions stand beside each other. A line is a system, windrow's the
thick one, and a dot is the best of its runs with a bar down to the median.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

from bench.showing import OURS, cell_of, markdown, number, our_shape, rows, worse
from windrow.report.markup import Markup, tag

Record = dict[str, Any]
COLOURS = ("#0b6e4f", "#c8553d", "#4a6fa5", "#9a7b0a", "#7d4e9e", "#3a7d8c", "#8c8c8c", "#b23a7f")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 320, 76, 150, 14, 46
STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 860px; padding: 0 1rem }
h1 { font-size: 1.3rem }
table { border-collapse: collapse; font-size: 13px }
td, th { padding: .2rem .7rem; border-bottom: 1px solid #8884; text-align: right }
td:first-child, th:first-child { text-align: left }
svg { width: 100%; height: auto }
text { font: 12px system-ui, sans-serif; fill: currentColor }
.grid { stroke: #8884 }
.dim { opacity: .7 }
.bad { color: #c02020 }
"""


def page(cases: list[Record], title: str) -> str:
    """A page with these cases: words, chart and table of each."""
    style = tag("style", Markup(STYLE))
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        style,
    )
    body = tag("body", tag("h1", title), *(section(case) for case in cases))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def section(case: Record) -> Markup:
    said = [tag("p", "The paper: ", case["paper_shape"]), tag("p", "Here: ", our_shape(case))]
    if found := worse(case):
        said.append(tag("p", "Better than windrow: ", "; ".join(found), "."))
    said += [tag("p", line, class_="bad") for line in case["wrong"]]
    return tag(
        "section",
        tag("h2", f"{case['figure']}: {case['title']}", id=case["name"]),
        chart(case),
        *said,
        tag("p", case["note"], class_="dim") if case["note"] else None,
        _table(case),
    )


def _table(case: Record) -> Markup:
    head, *body = rows(case)
    return tag(
        "table",
        tag("thead", tag("tr", *(tag("th", one) for one in head))),
        tag("tbody", *(tag("tr", *(tag("td", one) for one in row)) for row in body)),
    )


# --- in SVG ---------------------------------------------------------------------------------------------------------


def _is_log(case: Record) -> bool:
    """Whether points are numbers that grow by factors."""
    points = case["points"]
    return all(isinstance(one, int | float) and one > 0 for one in points) and points[-1] / points[0] >= 8


def places(case: Record) -> list[float]:
    """Where each point stands, from 0 to 1."""
    points = case["points"]
    if len(points) == 1:
        return [0.5]
    if any(isinstance(one, str) for one in points):
        return [at / (len(points) - 1) for at in range(len(points))]
    scaled = [math.log10(one) if _is_log(case) else float(one) for one in points]
    return [(one - scaled[0]) / (scaled[-1] - scaled[0]) for one in scaled]


def bounds(case: Record) -> tuple[float, float]:
    """Powers of ten that all values lie between, as exponents."""
    values = [cell["best"] for cell in case["cells"]] + [cell["median"] for cell in case["cells"]]
    values = [one for one in values if one > 0] or [1.0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return float(low), float(max(high, low + 1))


def chart(case: Record) -> Markup:
    low, high = bounds(case)

    def up(value: float) -> float:
        share = (math.log10(max(value, 10**low)) - low) / (high - low)
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (1 - share), 1)

    across = [round(LEFT + (WIDTH - LEFT - RIGHT) * place, 1) for place in places(case)]
    drawn = []
    for power in range(int(low), int(high) + 1):
        at = up(10.0**power)
        drawn.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid"))
        drawn.append(tag("text", number(10.0**power, case["unit"]), x=LEFT - 8, y=at + 4, text_anchor="end"))
    for point, at in zip(case["points"], across, strict=True):
        said = f"{point:,}" if isinstance(point, int) else str(point)
        drawn.append(tag("text", said, x=at, y=HEIGHT - BOTTOM + 18, text_anchor="middle"))
    drawn.append(tag("text", case["varies"], x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 8, text_anchor="middle"))
    drawn += _lines(case, across, up)
    label = f"{case['figure']}: {case['title']}, {case['unit']} by {case['varies']}"
    return tag("svg", tag("title", label), *drawn, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=label)


def _lines(case: Record, across: list[float], up: Any) -> list[Markup]:
    found, ends = [], []
    for colour, system in zip(COLOURS, case["systems"], strict=False):
        dots = []
        for point, at in zip(case["points"], across, strict=True):
            cell = cell_of(case, point, system)
            if cell is not None:
                dots.append((at, up(cell["best"]), up(cell["median"])))
        path = " ".join(f"{at},{best}" for at, best, _ in dots)
        wide = 3 if system == OURS else 1.5
        found.append(tag("polyline", points=path, fill="none", stroke=colour, stroke_width=wide))
        for at, best, median in dots:
            found.append(tag("line", x1=at, x2=at, y1=best, y2=median, stroke=colour, stroke_width=4, opacity=0.4))
            found.append(tag("circle", cx=at, cy=best, r=3, fill=colour))
        if dots:
            ends.append((dots[-1][1], colour, system))
    level = -1e9
    for best, colour, system in sorted(ends):
        level = max(best, level + 15)
        found.append(tag("text", system, x=WIDTH - RIGHT + 10, y=level + 4, style=f"fill:{colour}"))
    return found


# --- files ----------------------------------------------------------------------------------------------------------


def has_png() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def png(case: Record, path: Path) -> None:
    """The chart as a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 3.6), dpi=110)
    at = places(case)
    for colour, system in zip(COLOURS, case["systems"], strict=False):
        found = [
            (x, cell) for x, point in zip(at, case["points"], strict=True) if (cell := cell_of(case, point, system))
        ]
        wide = 2.6 if system == OURS else 1.3
        axes.plot([x for x, _ in found], [cell["best"] for _, cell in found], "o-", color=colour, lw=wide, label=system)
    axes.set_yscale("log")
    axes.set_xticks(at, [f"{one:,}" if isinstance(one, int) else str(one) for one in case["points"]], fontsize=8)
    if any(isinstance(one, str) for one in case["points"]):
        axes.tick_params(axis="x", labelrotation=30)
    axes.set_xlabel(case["varies"])
    axes.set_ylabel(case["unit"])
    axes.set_title(f"{case['figure']}: {case['title']}", fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def write(case: Record, folder: Path) -> None:
    """The files of a case: page, chart, table."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{case['name']}.html").write_text(page([case], f"{case['figure']}: {case['title']}"), encoding="utf-8")
    (folder / f"{case['name']}.md").write_text(markdown(case) + "\n", encoding="utf-8")
    if has_png():
        png(case, folder / f"{case['name']}.png")
