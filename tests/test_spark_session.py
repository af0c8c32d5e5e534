"""What `session` decides, and what it leaves to others."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyspark

from windrow.spark import session

pytestmark = pytest.mark.spark

PARTITIONS = "spark.sql.shuffle.partitions"
JOB = f"""
from windrow.spark import session

spark = session()
print(spark.sparkContext.master, spark.conf.get("{PARTITIONS}"), spark.conf.get("spark.sql.session.timeZone"))
"""


def test_what_spark_submit_says_stays(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    said = ["--master", "local[1]", "--conf", f"{PARTITIONS}=3", str(tmp_path / "job.py")]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [submit, *said], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout.splitlines() == ["local[1] 3 UTC"], done.stderr[-2000:]


def test_a_session_that_is_there_keeps_its_master_and_gets_a_partition_for_each_core(spark: Any) -> None:
    spark.conf.unset(PARTITIONS)
    found = session()
    assert (found.sparkContext.master, found.conf.get(PARTITIONS)) == ("local[2]", "2")
