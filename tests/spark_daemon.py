"""The process that forks Spark's Python workers, with all that they import already there: a worker starts at once."""

import gc
from contextlib import suppress
from importlib import import_module

from pyspark.daemon import manager

NEEDED = (
    "pandas",
    "pyarrow",
    "pyspark.worker",
    "pyspark.sql.streaming.stateful_processor_api_client",
    "windrow.spark.source.reader",
    "windrow.spark.stream.query",
)

if __name__ == "__main__":
    with suppress(ImportError):  # a Python without windrow says so where it works, in its own words
        for name in NEEDED:
            import_module(name)
    gc.freeze()  # what is shared with the workers stays so
    manager()
