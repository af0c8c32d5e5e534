"""The harmonic mean as an aggregate of one's own: the average speed over legs of equal length.

python examples/harmonic_mean.py
"""

from typing import Any

import polars as pl

import windrow as wr


class HarmonicMean(wr.Monoid):
    """n / (1/x₁ + … + 1/xₙ); in SQL text `harmonic_mean(x)`."""

    state = {"n": pl.Int64, "inverse": pl.Float64}  # noqa: RUF012

    def lift(self, x: pl.Series) -> dict[str, Any]:
        """The values of one slice become a state."""
        return {"n": len(x), "inverse": (1 / x).sum()}

    def merge(self, a: dict[str, pl.Series], b: dict[str, pl.Series]) -> dict[str, pl.Series]:
        """Pairs of states become states, all pairs at once."""
        return {name: a[name] + b[name] for name in a}

    def lower(self, state: dict[str, pl.Series]) -> pl.Series:
        """States become results."""
        return state["n"] / state["inverse"]


def main() -> pl.DataFrame:
    """A car drives legs of one kilometre each, at 60 and at 20 km/h in turn: 30 km/h on average, and not 40."""
    legs = pl.DataFrame({"minute": [0, 1, 4, 5, 8, 9, 12], "car": ["a"] * 7, "speed": [60, 20] * 3 + [60]})
    engine = wr.Engine(
        [
            wr.Query("hop", wr.sliding(8, 4), [HarmonicMean.of("speed").alias("average"), "mean(speed)"], by="car"),
            wr.Query("ratio", wr.tumbling(16), wr.aggregate("mean(speed) / harmonic_mean(speed)").alias("ratio")),
        ],
        time="minute",
    )
    results = pl.concat([engine.push(legs), engine.finish()])
    return results.select("query", "window_start", "window_end", "average", "mean(speed)", "ratio")


if __name__ == "__main__":
    print(main())
