"""The page: facts of the run, what crossed the network, the plan, and for each query its words, chart and first rows.

Everything is in one file: the style, the marks, and a script that shows the window under the pointer. A content
security policy allows that script, by its digest, and nothing else: no request leaves the page.
"""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime
from importlib.resources import files
from typing import Any

import polars as pl

from windrow.core.plan.plan import plan
from windrow.report import charts, words
from windrow.report.answers import Answer, answer
from windrow.report.markup import Markup, joined, tag
from windrow.report.plans import picture
from windrow.report.runs import Figure, Run, names_of
from windrow.report.series import drawing

MOST_QUERIES = 40  # that are drawn; the others are listed
FIRST_ROWS, ONLY_ROWS = 5, 12  # in the table below a chart, and of one that stands alone


def html(results: pl.DataFrame, run: Run, title: str) -> str:
    """The page of a run's results."""
    queries = {query.name: query for query in run.queries}
    names = names_of(results, run.queries)
    sections = []
    for place, name in enumerate(names[:MOST_QUERIES]):
        sections.append(_query(answer(results, name, queries.get(name)), f"q{place}", run))
    body = [
        _header(results, run, title, len(names)),
        _cost(run),
        _plan(run),
        _results(results, names, sections),
        tag("footer", tag("p", "Made by windrow. Times are UTC unless the events had no zone.")),
    ]
    return _document(f"windrow: {title}", joined(body))


def _document(title: str, body: Markup) -> str:
    script, style = _file("page.js"), _file("page.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    whole = tag("html", head, tag("body", tag("main", body), tag("script", Markup(script))), lang="en")
    return f"<!doctype html>\n{whole}\n"


def _file(name: str) -> str:
    return files("windrow.report").joinpath(name).read_text(encoding="utf-8")


# --- the run ------------------------------------------------------------------------------------------------


def _header(results: pl.DataFrame, run: Run, title: str, queries: int) -> Markup:
    facts: list[tuple[str, str]] = [("queries", f"{queries:,}"), ("results", f"{results.height:,}")]
    if run.events is not None:
        facts.insert(0, ("events", f"{run.events:,}"))
    if run.seconds:
        facts.append(("took", f"{run.seconds:,.3g} s" if run.seconds < 120 else f"{run.seconds / 60:,.3g} min"))
        if run.events:
            facts.append(("events per second", words.short(float(f"{run.events / run.seconds:.3g}"))))
    if run.late is not None:
        facts.append(("late events", f"{run.late:,}"))
    if run.dropped is not None:
        facts.append(("left out", f"{run.dropped:,}"))
    about = (("on", run.engine), ("time", run.time), ("lateness", run.lateness), ("windrow", run.windrow))
    line = " · ".join(f"{word} {value}" for word, value in about if value)
    tiles = [tag("div", tag("dt", what), tag("dd", value)) for what, value in facts]
    return tag(
        "header",
        tag("p", "windrow report", class_="eyebrow"),
        tag("h1", title),
        tag("p", line, class_="dim") if line else None,
        tag("dl", *tiles, class_="facts"),
    )


def _cost(run: Run) -> Markup | None:
    """What crossed the network and how often events were touched, as bars with the ratios in words."""
    sizes = [(one.what, one.value, words.size(one.value)) for one in run.network]
    touches = [(one.what, one.value, f"{words.times(one.value)} ×") for one in run.touched]
    parts = [
        tag("figure", tag("h3", title), charts.bars(shown, title), _ratios(figures, unit))
        for title, shown, figures, unit in (
            ("Bytes on the network", sizes, run.network, "bytes"),
            ("Touches per event", touches, run.touched, "touches"),
        )
        if figures
    ]
    if not parts:
        return None
    return tag("section", tag("h2", "What it cost"), tag("div", *parts, class_="cost"), class_="card")


def _ratios(figures: tuple[Figure, ...], unit: str) -> Markup | None:
    """The first figure, which is what this run did, beside each of the others."""
    done, ratios = figures[0].value, []
    for other in figures[1:]:
        least, most = sorted((done, other.value))
        if 0 < least < most:
            less = "fewer" if done == least else "more"
            ratios.append(f"{words.times(most / least)} times {less} {unit} than {other.what}")
    return tag("figcaption", f"{', and '.join(ratios)}.") if ratios else None


def _plan(run: Run) -> Markup | None:
    if not run.queries:
        return None
    made = plan(run.queries, run.time or "time", kinds_apart=run.engine == "spark")
    text = tag("details", tag("summary", "The plan in words"), tag("pre", made.explain()))
    about = "Queries over the same keys share slices; each state in a slice is kept once, however many queries read it."
    return tag("section", tag("h2", "Plan"), tag("p", about, class_="dim"), picture(made), text, class_="card")


# --- the queries --------------------------------------------------------------------------------------------


def _results(results: pl.DataFrame, names: list[str], sections: list[Markup]) -> Markup:
    if not names:
        return tag("section", tag("h2", "Queries"), tag("p", "There are no results.", class_="empty"), class_="card")
    nothing = None if results.height else tag("p", "There are no results.", class_="empty")
    links = [tag("li", tag("a", name, href=f"#q{place}")) for place, name in enumerate(names[:MOST_QUERIES])]
    left = names[MOST_QUERIES:]
    more = None
    if left:
        sizes = dict(results.group_by("query").len().iter_rows())
        shown = [[name, f"{sizes.get(name, 0):,}"] for name in left]
        summary = f"{words.count(len(left), 'more query')} not drawn"
        more = tag(
            "section", tag("details", tag("summary", summary), _table(["query", "rows"], shown, [1])), class_="card"
        )
    listed = tag("nav", tag("ul", *links), aria_label="Queries") if len(links) > 3 else None
    return joined([tag("h2", "Queries"), nothing, listed, *sections, more])


def _query(shown: Answer, anchor: str, run: Run) -> Markup:
    picked = drawing(shown)
    drawn, rows, notes = charts.chart(shown, picked), shown.rows, list(picked.notes)
    if shown.superseded:
        notes.append(f"{words.count(shown.superseded, 'row')} superseded by a later revision and not shown.")
    if shown.retracted:
        notes.append(f"{words.count(shown.retracted, 'window')} taken back and not shown.")
    if unread := run.unread.get(shown.name):
        notes.append(f"Its definition cannot be read here ({unread}), so it is drawn by its results alone.")
    if not rows.height:
        notes.append("No window had a result.")
    elif drawn is None:
        notes.append("It has no numbers to draw against time: the table shows what it found.")
    most = FIRST_ROWS if drawn is not None else ONLY_ROWS
    return tag(
        "section",
        tag("h3", shown.name, id=anchor),
        _definition(shown, run.time),
        tag("figure", drawn) if drawn is not None else None,
        tag("ul", *(tag("li", note) for note in notes), class_="notes") if notes else None,
        _first_rows(shown, most, drawn is None) if rows.height else None,
        class_="card query",
    )


def _definition(shown: Answer, time: str | None) -> Markup:
    query, facts = shown.query, []
    if query:
        facts.append(("window", words.window(query.window)))
        aggregates = [one.name if one.name == one.text else f"{one.name} = {one.text}" for one in query.aggregates]
        facts.append(("aggregates", words.listed(aggregates)))
        if query.by:
            facts.append(("by", words.listed(list(query.by))))
        if query.where:
            facts.append(("where", query.where.text))
        if query.time:
            facts.append(("time", query.time))
        if query.distinct_on:
            facts.append(("distinct on", words.listed(list(query.distinct_on))))
    elif shown.keys:
        facts.append(("by", words.listed(shown.keys)))
    rows = words.count(shown.rows.height, "row")
    if shown.keys and shown.rows.height:
        rows += f" of {words.count(len(shown.by_size), 'key')}"
    if shown.rows.height:
        axis = "position" if shown.counted else (query and query.time) or time
        unit = f"{axis} " if axis and not shown.temporal else ""
        rows += f", {unit}{words.period(*shown.bounds, shown.temporal)}"
    facts.append(("results", rows))
    return tag("dl", *(tag("div", tag("dt", what), tag("dd", text)) for what, text in facts), class_="words")


def _first_rows(shown: Answer, most: int, alone: bool) -> Markup:
    first = shown.table.head(most)
    numeric = [place for place, dtype in enumerate(first.dtypes) if dtype.is_numeric()]
    rows = [[_cell(value) for value in row] for row in first.iter_rows()]
    size = shown.rows.height
    summary = f"First {len(rows)} of {size:,} rows" if len(rows) < size else words.count(size, "row")
    return tag("details", tag("summary", summary), _table(first.columns, rows, numeric), open="" if alone else None)


def _cell(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}" + (f".{value.microsecond:06}".rstrip("0") if value.microsecond else "")
    if isinstance(value, list):
        shown = ", ".join(_cell(one) for one in value[:8])
        return f"[{shown}{', …' if len(value) > 8 else ''}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_cell(one)}" for name, one in value.items()) + "}"
    return words.cut(words.number(value), 120)


def _table(columns: list[str], rows: list[list[str]], numeric: list[int]) -> Markup:
    def row(kind: str, cells: list[str]) -> Markup:
        scope = {"scope": "col"} if kind == "th" else {}
        places = enumerate(cells)
        return tag("tr", *(tag(kind, one, class_="n" if at in numeric else None, **scope) for at, one in places))

    table = tag("table", tag("thead", row("th", columns)), tag("tbody", *(row("td", one) for one in rows)))
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label="Rows")
