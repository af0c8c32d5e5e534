"""windrow on Spark."""

from windrow.io.generator import Generator
from windrow.spark.api import explain
from windrow.spark.settings import session
from windrow.spark.source.reader import nodes, register
from windrow.spark.source.tree_root import Root

__all__ = ["Generator", "Root", "explain", "nodes", "register", "session"]
