"""Rolling features for a model: what each user did in the last hour, two hours, … three days and a half, in one pass.

    payments ── 24 sliding windows × 4 aggregates, by user ──▶ 96 features ── joined back ──▶ a table to train on

Every window has the same slide, so all of them are put together from the same slices of 15 minutes: 24 windows cost
little more than one. A payment gets the windows that ended at the last quarter of an hour before it, so that no feature
knows of the payment itself or of what came after; training and serving see the same.

    python examples/rolling_features.py
"""

import numpy as np
import polars as pl

import windrow as wr

SLIDE = "15 minutes"
HOURS = [*range(1, 13), *range(18, 90, 6)]  # 24 lengths, from 1 to 84 hours
ASKED = {"count": wr.count(), "sum": wr.sum("amount"), "max": wr.max("amount"), "spread": wr.stddev("amount")}

QUERIES = [
    wr.Query(f"{hours}h", wr.sliding(f"{hours} hours", SLIDE), [one.alias(name) for name, one in ASKED.items()], "user")
    for hours in HOURS
]


def payments(users: int = 40, days: int = 14, seed: int = 3) -> pl.DataFrame:
    """Two a day and user; and ten cards are stolen, after which there are many small ones within two hours."""
    draw = np.random.default_rng(seed)
    usual = pl.DataFrame(
        {
            "minute": draw.integers(0, days * 1440, users * days * 2),
            "user": draw.integers(0, users, users * days * 2),
            "amount": draw.lognormal(3, 1, users * days * 2).round(2),
            "fraud": 0,
        }
    )
    begin = np.repeat(draw.integers(2880, days * 1440 - 120, 10), 20)
    stolen = pl.DataFrame(
        {
            "minute": begin + draw.integers(0, 120, 200),
            "user": np.repeat(np.arange(10), 20),
            "amount": draw.lognormal(1, 0.5, 200).round(2),
            "fraud": 1,
        }
    )
    ts = (pl.datetime(2026, 1, 1, time_zone="UTC") + pl.duration(minutes="minute")).alias("ts")
    return pl.concat([usual, stolen]).sort("minute", "user", "amount").select(ts, "user", "amount", "fraud")


def features(events: pl.DataFrame) -> pl.DataFrame:
    """The events with a column for every window and aggregate; nothing paid in a window is null."""
    results = wr.windows(events, QUERIES, time="ts")
    wide = results.pivot("query", index=["user", "window_end"], values=list(ASKED))
    last_edge = pl.col("ts").dt.truncate("15m").alias("window_end")
    return events.with_columns(last_edge).join(wide, on=["user", "window_end"], how="left", maintain_order="left")


def main() -> None:
    table = features(payments())
    names = [f"{asked}_{hours}h" for asked in ASKED for hours in HOURS]
    print(f"{table.height} payments with {len(names)} features each; those that tell most of a fraud:")
    told = {name: table.select(pl.corr(pl.col(name).fill_null(0), "fraud")).item() for name in names}
    for name in sorted(told, key=lambda one: -abs(told[one]))[:5]:
        print(f"  {name:<10} correlation {told[name]:+.2f}")


if __name__ == "__main__":
    main()
