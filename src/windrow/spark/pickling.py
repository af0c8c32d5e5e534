"""Pickling: functions and sources on their way to Spark's workers, which may be a Python without windrow.

This module is itself sent by value, so that it runs on any worker and says what is wrong where windrow is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def opened(data: bytes) -> Any:
    """What was shipped."""
    import importlib
    import pickle
    import sys

    try:
        importlib.import_module("windrow")
    except ImportError as error:
        raise RuntimeError(
            f"Spark's workers run {sys.executable}, which cannot import windrow: install windrow there, or set "
            "PYSPARK_PYTHON to a Python that has it before the session is made (windrow.spark.session() does)"
        ) from error
    return pickle.loads(data)


def mapped(df: DataFrame, function: Callable[[Iterator[Any]], Iterator[Any]], schema: StructType | str) -> DataFrame:
    """`mapInArrow` for columns of any name: it looks them up as text, and takes a dot for a field."""
    names = df.columns

    def call(batches: Iterator[Any]) -> Iterator[Any]:
        return function(batch.rename_columns(names) for batch in batches)

    return df.toDF(*(f"_{place}" for place in range(len(names)))).mapInArrow(_shipped(call), schema)


def _shipped(function: Callable[[Iterator[Any]], Iterator[Any]]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    data = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        return opened(data)(batches)  # type: ignore[no-any-return]

    return run


class Shipped(StatefulProcessor):
    """A processor for `transformWithState`."""

    def __init__(self, processor: StatefulProcessor) -> None:
        self._data = cloudpickle.dumps(processor)  # type: ignore[no-untyped-call]
        self._processor: Any = None

    def init(self, handle: Any) -> None:
        self._processor = opened(self._data)
        self._processor.init(handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        return self._processor.handleInputRows(key, rows, timerValues)  # type: ignore[no-any-return]

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        return self._processor.handleExpiredTimer(key, timerValues, expiredTimerInfo)  # type: ignore[no-any-return]

    def close(self) -> None:
        self._processor.close()


def source(kind: type[DataSource]) -> type[DataSource]:
    """A data source as it can be registered: Spark plans what it reads in a worker, too."""
    data, called = cloudpickle.dumps(kind), kind.name()  # type: ignore[no-untyped-call]

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return called

        def schema(self) -> StructType | str:
            return opened(data)(self.options).schema()  # type: ignore[no-any-return]

        def reader(self, schema: StructType) -> DataSourceReader:
            return opened(data)(self.options).reader(schema)  # type: ignore[no-any-return]

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return opened(data)(self.options).streamReader(schema)  # type: ignore[no-any-return]

    return Source


class Travels:
    """A reader, which goes from where Spark plans to where it reads."""

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return arrived, (cloudpickle.dumps((type(self), vars(self))),)  # type: ignore[no-untyped-call]


def arrived(data: bytes) -> Any:
    """A reader where it reads."""
    kind, state = opened(data)
    reader = kind.__new__(kind)
    vars(reader).update(state)
    return reader
