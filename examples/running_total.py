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
    """Where the payments of two people are cut, those of each in their order."""
    window = Budget("amount", 100)
    amounts = {"ann": [30, 50, 40, 10, 70, 90, 20], "bob": [100, 5]}
    key = np.repeat(np.arange(2), [7, 2])
    events = wr.OrderedEvents(key, {"amount": pl.Series([one for paid in amounts.values() for one in paid])})
    cuts = window.cuts(events, {"total": np.zeros(2, np.int64), "open": np.zeros(2, np.bool_)})
    for number, name in enumerate(amounts):
        shown = "".join(
            f"{' |' if start else ''} {amount}"
            for start, amount in zip(cuts.starts[key == number], amounts[name], strict=True)
        )
        print(f"{name}{shown}, {cuts.state['total'][number]} in all")


if __name__ == "__main__":
    main()
