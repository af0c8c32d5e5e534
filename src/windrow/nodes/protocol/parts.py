"""The tables of several groups in one mapping: `<group>|<part>`."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from windrow.core.stream.job_slicer import Tables


def joined(groups: Mapping[str, Mapping[str, pl.DataFrame]]) -> Tables:
    """The tables of groups, by group and part."""
    return {f"{name}|{part}": table for name, tables in groups.items() for part, table in tables.items()}


def parts_of(name: str, tables: Mapping[str, pl.DataFrame]) -> Tables:
    """Those of one group, by their part."""
    named = ((key.rpartition("|"), table) for key, table in tables.items())
    return {part: table for (group, _, part), table in named if group == name}
