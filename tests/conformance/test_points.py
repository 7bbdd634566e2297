"""At every commit, every offset and every source time, time travel equals the reference's fold of the events up to
there.
"""

from pathlib import Path
from typing import get_args

import pytest
from pyspark.sql import SparkSession

from cdc_lake.config import TableType

from .by_travel import Told, snapshot_of
from .log import Deletes, Log, Shape, load

FEW = {"T3-value-of-the-insert", "O5-clock-steps-back", "late-update", "O8-replay-that-breaks-off", "T4-key-change"}
WAYS = [("delta", "soft", "envelope"), ("hudi-cow", "hard", "flat"), ("hudi-mor", "hard", "envelope")]


def shared() -> list[Log]:
    logs = [log for log in load() if not log.has_own_table]
    return [*(snapshot_of(connector) for connector in dict.fromkeys(log.connector for log in logs)), *logs]


@pytest.mark.deep
def test_selected_logs_match_reference_at_each_offset(spark: SparkSession, tmp_path: Path) -> None:
    logs = [log for log in load() if log.log in FEW]
    told = Told(spark, tmp_path, logs, table_type="delta", deletes="hard", shape="envelope")

    results = dict(told.offsets())

    assert {name: lines for name, lines in results.items() if lines} == {}
    assert len(results) > len(FEW)


@pytest.mark.deep
@pytest.mark.parametrize(("table_type", "deletes", "shape"), WAYS)
def test_all_logs_sharing_a_table_match_reference_at_each_point(
    spark: SparkSession, tmp_path: Path, table_type: TableType, deletes: Deletes, shape: Shape
) -> None:
    told = Told(spark, tmp_path, shared(), table_type=table_type, deletes=deletes, shape=shape, is_each=True)

    results = dict(told.points())

    assert {name: lines for name, lines in results.items() if lines} == {}
    assert len(results) > 2000


@pytest.mark.deep
@pytest.mark.parametrize("deletes", get_args(Deletes))
def test_all_logs_with_own_tables_match_reference_at_each_point(
    spark: SparkSession, tmp_path: Path, deletes: Deletes
) -> None:
    logs = [log for log in load() if log.has_own_table]
    told = Told(spark, tmp_path, logs, table_type="delta", deletes=deletes, shape="envelope")

    results = dict(told.points())

    assert {name: lines for name, lines in results.items() if lines} == {}
    assert len(results) > 300
