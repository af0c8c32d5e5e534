"""windrow on Spark."""

from windrow.generator import Generator
from windrow.spark.frames import explain
from windrow.spark.session import session
from windrow.spark.source import nodes, register

__all__ = ["Generator", "explain", "nodes", "register", "session"]
