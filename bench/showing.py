"""What is said of a run: tables in text and Markdown, and our shape in a sentence.

All of it is made of the record (`bench/recording.py`); no sentence says what was not measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Record = dict[str, Any]
OURS = "windrow"


def number(value: float, unit: str) -> str:
    """A value as people read it: 12.3M, 4.56 ms, 1.2 MB."""
    if unit == "bytes":
        for scale, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
            if value >= scale:
                return f"{value / scale:.3g} {name}"
        return f"{value:.0f} B"
    if unit == "ms":
        return f"{value:.3g} ms"
    if unit.startswith("%"):
        return f"{value:.4g} %"
    for scale, name in ((1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.3g}{name}"
    return f"{value:.3g}"


def cell_of(case: Record, point: Any, system: str) -> Record | None:
    return next((one for one in case["cells"] if (one["point"], one["system"]) == (point, system)), None)


def ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def rows(case: Record) -> list[list[str]]:
    """The table of a case: a row for each point, and for each system its best, its median, and the ratio to ours."""
    head = [case["varies"], *case["systems"]]
    found = [head]
    for point in case["points"]:
        row = [f"{point:,}" if isinstance(point, int) else str(point)]
        for system in case["systems"]:
            cell = cell_of(case, point, system)
            row.append("–" if cell is None else _said(cell, case))
        found.append(row)
    return found


def _said(cell: Record, case: Record) -> str:
    said = number(cell["best"], case["unit"])
    if not case["once"]:
        said += f" ({number(cell['median'], case['unit'])})"
    if cell["system"] != OURS and cell["ratio"] is not None:
        said += f" {ratio(cell['ratio'])}×"
    return said


def text(case: Record) -> str:
    """The table as text, with what failed below it."""
    table = rows(case)
    widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
    lines = [f"{case['name']}  {case['figure']}: {case['title']} [{case['unit']}]"]
    lines += ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    lines += [f"  {'ok   ' if one['holds'] else 'SHORT'} {one['mark']}: {ratio(one['value'])}" for one in case["marks"]]
    lines += [f"  WRONG {line}" for line in case["wrong"]]
    lines += [f"  {line}" for line in case["left_out"]]
    return "\n".join(
        [*lines, f"  {case['checks']} checks, {case['seconds']:.1f} s, {case['cpu']:.1f} s of the processor"]
    )


def markdown(case: Record) -> str:
    """The table as Markdown."""
    table = rows(case)
    lines = ["| " + " | ".join(row) + " |" for row in table]
    lines.insert(1, "| --- |" + " ---: |" * (len(table[0]) - 1))
    return "\n".join(lines)


def our_shape(case: Record) -> str:
    """What we found, in a sentence: windrow along the points, and beside each other system at the last common one."""
    parts = [_along(case)] if _along(case) else []
    beside = [said for system in case["systems"] if system != OURS and (said := _beside(case, system))]
    if beside:
        parts.append("; ".join(beside))
    return ". ".join(part[0].upper() + part[1:] if part[0] != "w" else part for part in parts) + "." if parts else ""


def _ends(case: Record, system: str) -> list[Record]:
    return [cell for point in case["points"] if (cell := cell_of(case, point, system)) is not None]


def _along(case: Record) -> str:
    ours = _ends(case, OURS)
    if not ours:
        return ""
    unit, first, last = case["unit"], ours[0], ours[-1]
    if len(ours) == 1:
        return f"windrow has {number(first['best'], unit)}" + (f" {unit}" if unit not in ("bytes", "ms") else "")
    if any(isinstance(point, str) for point in case["points"]):
        order = sorted(ours, key=lambda cell: float(cell["best"]))
        low, high = order[0], order[-1]
        least, most = (f"{number(one['best'], unit)} ({one['point']})" for one in (low, high))
        return f"windrow is between {least} and {most}"
    change = f" (×{ratio(last['best'] / first['best'])})" if first["best"] else ""
    return (
        f"windrow goes from {number(first['best'], unit)} at {_at(first)} to "
        f"{number(last['best'], unit)} at {_at(last)}{change}"
    )


def _at(cell: Record) -> str:
    point = cell["point"]
    return f"{point:,}" if isinstance(point, int) else str(point)


def _beside(case: Record, system: str) -> str:
    theirs = [cell for cell in _ends(case, system) if cell["ratio"]]
    if not theirs:
        return ""
    last = theirs[-1]
    return f"{ratio(last['ratio'])} times as good as {system} at {_at(last)}"


def worse(case: Record) -> list[str]:
    """Where another system did better by more than a tenth, with the factor."""
    found = []
    for system in case["systems"]:
        better = [cell for cell in _ends(case, system) if system != OURS and cell["ratio"] and cell["ratio"] < 0.9]
        if better:
            said = ", ".join(f"{ratio(1 / cell['ratio'])}× at {_at(cell)}" for cell in better)
            found.append(f"{system} {said}")
    return found


def differences(lines: Iterable[tuple[tuple[str, str, str], float, Record, Record]], least: float) -> list[str]:
    """The lines of a comparison that changed by more than a share."""
    found = []
    for (case, point, system), better, was, now in lines:
        if better < 1 - least or better > 1 / (1 - least):
            unit = was["unit"]
            change = f"{number(was['best'], unit)} → {number(now['best'], unit)}"
            found.append(f"{better:8.2f}×  {case:12} {point:>10}  {system:12} {change}")
    return found
