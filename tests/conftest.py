"""How randomness is kept in hand: the same examples on every run, unless a seed is asked for.

WINDROW_SEED unset    Hypothesis derives its examples from the test itself; the `seed` fixture is 0
WINDROW_SEED=random   a fresh seed, printed in the header
WINDROW_SEED=<n>      that seed again
"""

import gc
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # a thread for each worker, before Polars is imported
# Spark's short jobs are over before a second compiler, parallel collectors and the verification of its own jars have
# paid for themselves: without, they take less than half the processor time, also in processes that tests start
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
)

import warnings

import pytest
from hypothesis import is_hypothesis_test, settings

_VARIABLE = "WINDROW_SEED"


def _asked_seed() -> int | None:
    """The seed of the environment; a fresh one is written back, so that xdist's workers share it."""
    text = os.environ.get(_VARIABLE, "")
    if text == "random":
        text = os.environ[_VARIABLE] = str(secrets.randbelow(2**32))
    if not text:
        return None
    if not text.isdecimal():
        raise pytest.UsageError(f"{_VARIABLE} is a whole number or 'random', not {text!r}")
    return int(text)


SEED = _asked_seed()

settings.register_profile("windrow", derandomize=SEED is None, print_blob=True, deadline=None)
settings.load_profile("windrow")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if SEED is not None and config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(SEED)  # Hypothesis reads it when its own plugin is configured


NODES = (
    "test_nodes",
    "test_homes",
    "test_wire",
    "test_counting",
    "test_quantiles_tree",
    "test_pushed",
    "test_chaos",
    "test_flight",
    "test_tree",
    "test_sources",
    "test_outlet",
    "test_node_config",
)


LONG = (
    "test_bench",
    "test_chaos",
    "test_demo",
    "test_examples",
    "test_spark_cli",
    "test_spark_kill",
    "test_spark_sql",
    "test_spark_streaming",
    "test_spark_tables",
    "test_tree",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks that follow from what a test is; what takes long comes first, so that nobody waits for it."""
    for item in items:
        if item.path.stem in NODES or "docs/nodes.md" in item.name:
            item.add_marker("nodes")
        if isinstance(item, pytest.Function) and ("seed" in item.fixturenames or is_hypothesis_test(item.obj)):
            item.add_marker("soak")
    items.sort(key=lambda item: item.path.stem not in LONG)


def pytest_collection_finish() -> None:
    """All modules and tests stay until the end: the garbage collector need not look at them again and again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


def pytest_report_header() -> str:
    if SEED is None:
        return f"seed: fixed ({_VARIABLE}=random for other examples)"
    return f"seed: {SEED} (repeat with {_VARIABLE}={SEED})"


@pytest.fixture(scope="module")
def seed() -> int:
    """For tests that draw random numbers without Hypothesis; `soak.py` changes it as it goes."""
    return _asked_seed() or 0


# A few rows are computed sooner than a plan is compiled, or modules are imported in each of Spark's workers. Sessions
# that tests start in processes of their own, as the command line does, compile and import as those of users do.
SPARK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.python.daemon.module": "spark_daemon",
    # the usual one starts processes, `chmod` and `readlink`, for every file of a checkpoint
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One session for all tests of a worker, made where the first one asks for it."""
    pytest.importorskip("pyspark.sql")
    from windrow.spark import session

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)  # for the daemon
        made = session("local[2]", **SPARK)
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()


@pytest.fixture
def compiled(spark: Any) -> Iterator[None]:
    """Plans are compiled after all: for tests with so many rows that it pays, and to see that both give the same."""
    names = [name for name in SPARK if ".codegen." in name]
    for name in names:
        spark.conf.unset(name)
    yield
    for name in names:
        spark.conf.set(name, SPARK[name])


@pytest.fixture(autouse=True)
def _streams_end(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test starts, it ends: a stream that went on would take the time of all others."""
    yield
    if request.node.get_closest_marker("spark") is None or "pyspark.sql" not in sys.modules:
        return
    session = sys.modules["pyspark.sql"].SparkSession.getActiveSession()
    left = [] if session is None else session.streams.active
    for query in left:
        query.stop()
    assert not left, "the test has left streams running"


@pytest.fixture
def far_away(spark: Any) -> Iterator[Any]:
    """Spark in another time zone, which must not matter."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", zone)
