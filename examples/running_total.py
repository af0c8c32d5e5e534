"""A window of your own whose bounds the events decide: a new one each time a budget is spent.

    budget 100   │ 30  50 │ 40  10 │ 70  90 │ 20 …
    total          30  80  120 130  200 290  310

A window begins with the event with which the running total of its key reaches another multiple of the budget, and ends
before the next such event; the first event of a key begins its first window. What has to be known of the past is one
number for each key, the total so far. It is carried from batch to batch, so that it does not matter where batches end.

    python examples/running_total.py
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import polars as pl

import windrow as wr


@dataclass(frozen=True)
class Budget(wr.DataDrivenWindow):
    """A window for each `budget` units of the total of `amount`, an SQL expression that gives whole numbers ≥ 0."""

    amount: str
    budget: int

    initial: ClassVar = {"total": 0}

    @property
    def inputs(self):
        return (self.amount,)

    def cuts(self, events, state):
        amounts = events.values(self.amount).cast(pl.Int64).fill_null(0).to_numpy()
        total = events.total(amounts, state["total"])
        spent = total // self.budget  # how often, after each event
        starts = spent > events.before(spent, state["total"] // self.budget)
        starts[events.first] |= ~state["open"]
        breaks = starts & events.before(np.ones(len(events), np.bool_), state["open"])
        return wr.Cuts(starts, np.zeros(len(events), np.bool_), breaks, {"total": total[events.last]})


def main():
    payments = pl.DataFrame(
        {
            "second": [0, 1, 2, 3, 4, 5, 6, 7, 8],
            "who": ["ann", "ann", "bob", "ann", "ann", "ann", "bob", "ann", "ann"],
            "amount": [30, 50, 100, 40, 10, 70, 5, 90, 20],
        }
    )
    query = wr.Query("spent", Budget("amount", 100), ["count()", "sum(amount)"], by="who")
    engine = wr.Engine(query, "second", lateness=2)
    results = pl.concat([engine.push(payments[:5]), engine.push(payments[5:]), engine.finish(partial=True)])
    for row in results.to_dicts():
        seconds = f"{row['window_start']} to {row['window_end']}"
        print(f"{row['who']}  seconds {seconds}: {row['count()']} payments, {row['sum(amount)']}")


if __name__ == "__main__":
    main()
