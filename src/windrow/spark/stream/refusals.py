"""What a stream on Spark cannot do, said before it is started, or when a query is added to its book."""

from __future__ import annotations

from collections.abc import Iterable

from windrow.core.query.query import Query, QueryError


def check(queries: Iterable[Query], time: str) -> None:
    """Refuse what a stream along this time cannot do."""
    for query in queries:
        if query.distinct_on:
            raise QueryError(
                f"query {query.name!r}: distinct_on needs all events with the same values in one place, which a stream "
                "on Spark does not bring together; use df.dropDuplicatesWithinWatermark(…) before"
            )
        if (query.time or time) != time:
            raise QueryError(
                f"query {query.name!r}: Spark has one watermark for a query, so all windows must be on {time!r}, "
                f"not on {query.time!r}; make a second streaming query for it"
            )
