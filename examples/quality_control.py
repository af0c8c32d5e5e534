"""Quality control by counts: every 50 parts of a machine are a sample, and a control chart watches the samples.

    parts of m2     ····· 50 ·····│····· 50 ·····│····· 50 ·····│ …
    sample mean        10.00         10.01          10.06 ▲ beyond the limit

Samples are of parts, not of minutes: machines run at different speeds and stand still, and a mean over 50 parts is
always as exact as the one before. Measurements come over a network that mixes them up, so that the counting must wait
until the order is final: `lateness` says how long.

    python examples/quality_control.py
"""

import numpy as np
import polars as pl

import windrow as wr

SAMPLE = 50
BASELINE = 20  # samples of a machine while it runs well, from which the limits come; fewer make false alarms

QUERIES = [
    wr.Query(
        "sample",
        wr.counting(SAMPLE),
        [
            wr.mean("mm").alias("mean"),
            wr.stddev("mm").alias("spread"),
            wr.mean("CASE WHEN ABS(mm - 10) > 0.1 THEN 1 ELSE 0 END").alias("rejects"),
        ],
        by="machine",
    ),
    wr.Query("hour", wr.tumbling("1 hour"), [wr.count().alias("parts")], by="machine"),  # from the same slices
]


def measurements(seed: int = 0) -> pl.DataFrame:
    """Two machines; one is half as fast, and its tool wears after 1,000 parts. All come up to a minute too late."""
    draw = np.random.default_rng(seed)
    frames = []
    for machine, seconds, wear in (("m1", 5, 0.0), ("m2", 10, 0.0002)):
        part = np.arange(14_400 // seconds)
        mm = 10 + wear * np.maximum(part - 1000, 0) + draw.normal(0, 0.04, len(part))
        frames.append(pl.DataFrame({"ts": part * seconds * 1_000_000, "machine": machine, "mm": mm}))
    events = pl.concat(frames).with_columns(pl.col("ts").cast(pl.Datetime("us", "UTC")))
    arrival = events["ts"].cast(pl.Int64).to_numpy() + draw.integers(0, 60_000_000, events.height)
    return events[np.argsort(arrival)]


def main() -> None:
    engine = wr.Engine(QUERIES, time="ts", lateness="1 minute")
    emitted = [engine.push(batch) for batch in measurements().iter_slices(500)]
    results = pl.concat([*emitted, engine.finish()])
    samples = wr.results_of(results, "sample", QUERIES)

    # the limits of a Shewhart chart: the mean of a sample lies within 3 standard errors, unless something has changed
    limits = (
        samples.filter(pl.col("position") < BASELINE * SAMPLE)
        .group_by("machine")
        .agg(center=pl.col("mean").mean(), margin=3 * pl.col("spread").mean() / SAMPLE**0.5)
    )
    charted = samples.join(limits, on="machine", maintain_order="left")
    beyond = charted.filter((pl.col("mean") - pl.col("center")).abs() > pl.col("margin"))
    print(f"{samples.height} samples of {SAMPLE} parts, {beyond.height} beyond the limits; the first ones:")
    for row in beyond.head(5).to_dicts():
        parts = f"parts {row['position']} to {row['position'] + SAMPLE - 1}, until {row['window_end']:%H:%M}"
        print(f"  {row['machine']}  {parts}: {row['mean']:.3f} mm, {row['rejects']:.0%} rejects")
    fewest = wr.results_of(results, "hour", QUERIES).group_by("machine", maintain_order=True).agg(pl.col("parts").min())
    print("parts an hour, at least:", ", ".join(f"{machine} {parts}" for machine, parts in fewest.rows()))


if __name__ == "__main__":
    main()
