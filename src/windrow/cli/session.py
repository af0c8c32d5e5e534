"""A session of Spark for a command. What Spark logs goes to a file, and is thrown away with it when all went well."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from windrow.cli.failures import Failed, Refused
from windrow.spark import session
from windrow.spark.settings import stages

_MASTER = re.compile(r"local(\[[^\]]+\])?|local-cluster\[[^\]]+\]|yarn|(spark|k8s)://.+")


@contextmanager
def started(master: str, debug: bool) -> Iterator[SparkSession]:
    """A session whose noise is kept out of the way."""
    if not _MASTER.fullmatch(master):
        raise Refused(
            f"--master {master!r} is no place for Spark; write 'local[2]', spark://host:7077, yarn or k8s://…"
        )
    if SparkSession.getActiveSession() is not None:  # somebody else's, who has made and will stop it
        yield _made(master)
        return
    with tempfile.TemporaryFile(prefix="windrow-spark-") as log:
        kept = os.dup(2)
        sys.stderr.flush()
        try:
            if not debug:
                os.dup2(log.fileno(), 2)  # the JVM inherits it
            spark = _made(master)
        except PySparkException as error:
            if "JAVA" not in str(error.getCondition()):
                raise
            raise Failed("Spark needs Java 17 or newer: install it, set JAVA_HOME, or say --engine local") from error
        except Py4JJavaError as error:
            if "stopped SparkContext" not in str(error):
                raise
            raise Failed(f"no Spark takes work at {master!r}; check --master, or say --master 'local[*]'") from error
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        try:
            yield spark
        finally:
            spark.stop()


def _made(master: str) -> SparkSession:
    return session(master, spark__sql__parquet__outputTimestampType="TIMESTAMP_MICROS")  # as everybody reads them


def shuffled(spark: SparkSession) -> int:
    """Bytes that were shuffled in this session."""
    return sum(int(stage.shuffleWriteBytes()) for stage in stages(spark))
