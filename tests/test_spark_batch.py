"""Whole DataFrames on Spark: the transcripts and random queries over random tables, against the oracle."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import polars as pl
import pytest
from spark_cases import results, told
from test_transcripts import TRANSCRIPTS

import windrow as wr
from windrow.testing import differences
from windrow.testing.transcripts import Transcript, read

pytestmark = pytest.mark.spark


# --- transcripts ------------------------------------------------------------------------------------------------------


def is_for_tables(transcript: Transcript) -> bool:
    """Whether it makes sense for a whole table: queries stay, times are columns, nothing is refused."""
    refused = any("error" in step.details for step in transcript.steps)
    arrival = any((query.time or transcript.options["time"]) == "arrival" for query in transcript.queries)
    return not (transcript.needs & {"add", "remove"}) and not refused and not arrival


FOR_TABLES = [one for one in map(read, TRANSCRIPTS) if is_for_tables(one)]


def wrong_with(spark: Any, transcript: Transcript) -> list[str]:
    rows = [row for step in transcript.steps if step.action == "input" for row in step.value]
    options = {name: value for name, value in transcript.options.items() if name != "updates"}
    partial = "partial" in transcript.needs
    frame = spark.createDataFrame(pl.DataFrame(rows, schema=transcript.schema).to_arrow())
    try:
        want = told(rows, transcript.queries, partial=partial, **options)
    except OverflowError:
        with pytest.raises(Exception, match="does not fit into 64 bits"):
            wr.windows(frame, transcript.queries, partial=partial, **options).toArrow()
        return []
    found = results(wr.windows(frame, transcript.queries, partial=partial, **options))
    return [f"{transcript.name}: {line}" for line in differences(found, want, transcript.queries)]


@pytest.mark.parametrize("part", range(4))
def test_transcripts(spark: Any, part: int) -> None:
    """All that make sense for whole tables, several at a time: a small job is mostly waiting."""
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda one: wrong_with(spark, one), FOR_TABLES[part::4]))
    assert "\n".join(line for lines in found for line in lines) == ""


def test_most_transcripts_are_run() -> None:
    assert len(FOR_TABLES) > 0.8 * len(TRANSCRIPTS)
