"""windrow on Spark."""

from windrow.spark.session import session

__all__ = ["session"]
