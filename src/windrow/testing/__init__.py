"""For tests: an oracle, and the way results are compared with it."""

from windrow.testing.compare import agrees, differences, same
from windrow.testing.oracle import Oracle, Result, recompute

__all__ = ["Oracle", "Result", "recompute", "agrees", "differences", "same"]
