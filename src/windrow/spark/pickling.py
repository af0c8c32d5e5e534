"""Pickling: functions and sources on their way to Spark's workers, which may be a Python without windrow.

This module is itself sent by value, so that it runs on any worker and says what is wrong where windrow is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
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


class Travels:
    """What goes from where Spark plans to where it works: a function, a reader or a processor."""

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return arrived, (cloudpickle.dumps((type(self), vars(self))),)  # type: ignore[no-untyped-call]


def arrived(data: bytes) -> Any:
    """What has travelled, where it works."""
    kind, state = opened(data)
    made = kind.__new__(kind)
    vars(made).update(state)
    return made


class _Mapping(Travels):
    """A function on batches, whose columns get back the names that they had."""

    def __init__(self, function: Callable[[Iterator[Any]], Iterator[Any]], names: Sequence[str]) -> None:
        self._function, self._names = function, names

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        return self._function(batch.rename_columns(self._names) for batch in batches)


def mapped(df: DataFrame, function: Callable[[Iterator[Any]], Iterator[Any]], schema: StructType | str) -> DataFrame:
    """`mapInArrow` for columns of any name: it looks them up as text, and takes a dot for a field."""
    numbered = df.toDF(*(f"_{number}" for number in range(len(df.columns))))
    return numbered.mapInArrow(_Mapping(function, df.columns), schema)


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
