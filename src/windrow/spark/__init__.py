"""windrow on Spark."""

from windrow.generator import Generator
from windrow.spark.frames import explain
from windrow.spark.roots import Root
from windrow.spark.session import session
from windrow.spark.source import nodes, register

__all__ = ["Generator", "Root", "explain", "nodes", "register", "session"]
