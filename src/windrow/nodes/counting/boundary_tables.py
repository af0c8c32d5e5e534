"""Tallies as tables, in which a root keeps them in its spool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from windrow.core.stream.job_slicer import Tables
from windrow.nodes.counting.boundaries import Tally
from windrow.nodes.counting.runs import Line, Piece
from windrow.nodes.counting.schemes import Choice, Told
from windrow.nodes.counting.tables import Form, Key

_TALLY = ("position", "length", "corrected", "boundaries", "corrections")
_LINE = ("cut", "covered", "next", "rewind", "gone")
_PIECE = ("lo", "hi", "first", "last", "kind")


def to_tables(form: Form, tallies: Mapping[Key, Tally]) -> Tables:
    """Everything that is known of the keys of a group."""
    rows: dict[str, list[Any]] = {name: [] for name in ("keys", "lines", "told", "history", "pieces")}
    events, states = [], []
    for key, tally in tallies.items():
        floor = tally.floor or (None, None)
        rows["keys"].append((*key, *(getattr(tally, name) for name in _TALLY), *floor, *tally.choice))
        for number, (size, of_nodes) in enumerate(tally.history.stretches):
            rows["history"] += [(*key, number, size, node, own) for node, own in of_nodes.items()]
        for node, (told, rewind) in tally.told.items():
            rows["told"].append((*key, node, *told, rewind))
        for node, line in tally.lines.items():
            rows["lines"].append((*key, node, *(getattr(line, name) for name in _LINE)))
            for piece in line.pieces:
                rows["pieces"].append((*key, node, *(getattr(piece, name) for name in _PIECE)))
                if piece.events is not None:
                    events.append(piece.events.select(*form.sent))
                if piece.table is not None:
                    states.append(piece.table[piece.row : piece.row + 1].select(*form.states))
    found = {name: pl.DataFrame(rows[name], schema=schema, orient="row") for name, schema in _schemas(form).items()}
    found["events"] = pl.concat(events) if events else pl.DataFrame(schema=form.sent)
    found["states"] = pl.concat(states) if states else pl.DataFrame(schema=form.states)
    return found


def _schemas(form: Form) -> dict[str, dict[str, pl.DataType]]:
    number, text = pl.Int64(), pl.String()
    of_told = {name: dtype for name, dtype in form.told.items() if name not in form.keys}
    tally = {name: pl.Boolean() if name == "corrected" else number for name in _TALLY}
    return {
        "keys": {**form.keys, **tally, "floor_time": number, "floor_node": text, "scheme": text, "why": text},
        "lines": {**form.keys, "node": text, **dict.fromkeys(_LINE, number)},
        "told": {**form.keys, "node": text, **of_told},
        "history": {**form.keys, "number": number, "size": number, "node": text, "own": number},
        "pieces": {**form.keys, "node": text, **{name: text if name == "kind" else number for name in _PIECE}},
    }


def from_tables(form: Form, tables: Mapping[str, pl.DataFrame]) -> dict[Key, Tally]:
    """The way back."""
    found: dict[Key, Tally] = {}
    size = len(form.keys)
    for row in tables["keys"].iter_rows():
        tally = found[row[:size]] = Tally(form, row[:size])
        *values, floor_time, floor_node, scheme, why = row[size:]
        for name, value in zip(_TALLY, values, strict=True):
            setattr(tally, name, value)
        tally.floor = None if floor_node is None else (floor_time, floor_node)
        tally.choice = Choice(scheme, why)
    for *key, _number, whole, node, own in tables["history"].iter_rows():
        stretches = found[tuple(key)].history.stretches
        if len(stretches) <= _number:
            stretches.append((whole, {}))
        stretches[_number][1][node] = own
    for *key, node, cut, covered, next_, rewind, gone in tables["lines"].iter_rows():
        found[tuple(key)].lines[node] = Line(cut, covered, next_, [], rewind, gone)
    for row in tables["told"].iter_rows():
        found[row[:size]].told[row[size]] = Told(*row[size + 1 : -1]), row[-1]
    at = row_ = 0
    for *key, node, lo, hi, first, last, kind in tables["pieces"].iter_rows():
        piece = Piece(lo, hi, first, last, kind)
        if kind == "events":
            piece, at = replace(piece, events=tables["events"].slice(at, hi - lo)), at + hi - lo
        elif kind == "slice":
            piece, row_ = replace(piece, row=row_, table=tables["states"]), row_ + 1
        found[tuple(key)].lines[node].pieces.append(piece)
    return found
