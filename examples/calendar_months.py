"""A window of your own with fixed bounds: calendar months in UTC, which no length in seconds can express.

    January             February          March
    |-------------------|-----------------|-------------------|

`windows(lo, hi)` says which months hold a time between lo and hi. It is asked about stretches of time, never about one
event, and answers with arrays: here the count of months since 1970 is a number, and numpy knows where each begins.

    python examples/calendar_months.py
"""

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import polars as pl

import windrow as wr


@dataclass(frozen=True)
class CalendarMonths(wr.ContextFreeWindow):
    """Every `months` calendar months, counted from January: 1 is each month, 3 each quarter, 12 each year."""

    months: int = 1

    def windows(self, lo, hi):
        first, last = (self._number(time) // self.months for time in (lo, hi - 1))
        bounds = self._begin(np.arange(first, last + 2) * self.months)
        return bounds[:-1], bounds[1:]

    def edges(self, lo, hi):
        """Optional: without it the edges are the bounds of `windows`. It pays where many windows overlap."""
        first, last = (self._number(time) // self.months for time in (lo - 1, hi - 1))
        return self._begin(np.arange(first + 1, last + 1) * self.months)

    @staticmethod
    def _number(time):
        """The month that holds a time in microseconds, counted from January 1970."""
        return int(np.datetime64(time, "us").astype("datetime64[M]").astype(np.int64))

    @staticmethod
    def _begin(number):
        """When months begin, in microseconds."""
        return number.astype("datetime64[M]").astype("datetime64[us]").astype(np.int64)


def main():
    sales = pl.DataFrame(
        {
            "at": [datetime(2024, *date, tzinfo=UTC) for date in ((1, 31, 23), (2, 1), (2, 29, 12), (3, 1), (5, 5))],
            "shop": ["north", "north", "south", "south", "north"],
            "amount": [20, 5, 7, 1, 9],
        }
    )
    queries = [
        wr.Query("monthly", CalendarMonths(), ["count()", "sum(amount)"]),
        wr.Query("quarterly", CalendarMonths(months=3), ["count()", "sum(amount)"]),
        wr.Query("by shop", CalendarMonths(months=12), ["count()", "sum(amount)"], by="shop"),
    ]
    engine = wr.Engine(queries, "at", lateness="1 hour")
    results = pl.concat([engine.push(sales), engine.finish()], how="diagonal")
    for row in results.to_dicts():
        months = f"{row['window_start']:%Y-%m} to {row['window_end']:%Y-%m}"
        print(f"{row['query']:<10} {months}  {row['shop'] or '':<6} {row['count()']} sales, {row['sum(amount)']}")


if __name__ == "__main__":
    main()
