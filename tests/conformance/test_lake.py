"""A quick part of the kit: the logs that share a table, in one batch. `make conformance` runs all of it.

tests/rules tests effects between batches, in every cut.
"""

from pathlib import Path
from typing import get_args

import pytest
from pyspark.sql import SparkSession

from cdc_lake.config import TableType
from cdc_lake.spark import arrow_stage

from .by_lake import results_by_lake
from .cut import Split
from .log import Deletes, Shape, load


@pytest.mark.parametrize(
    ("table_type", "deletes", "shape"),
    [
        pytest.param("delta", "hard", "flat", marks=pytest.mark.core),
        pytest.param("hudi-cow", "soft", "flat", marks=pytest.mark.core),
        ("iceberg-mor", "hard", "envelope"),
        pytest.param("iceberg-cow", "soft", "flat", marks=pytest.mark.deep),
        pytest.param("delta-vectors", "soft", "envelope", marks=pytest.mark.deep),
        pytest.param("hudi-mor", "hard", "envelope", marks=pytest.mark.deep),
    ],
)
def test_logs_sharing_a_table_match_the_reference(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    table_type: str,
    deletes: Deletes,
    shape: Shape,
) -> None:
    if deletes == "hard":  # as large batches are: in Spark's workers
        monkeypatch.setattr(arrow_stage, "DRIVER_BYTES", -1)
    logs = [log for log in load() if not log.has_own_table]

    results = dict(
        results_by_lake(spark, tmp_path, logs, table_type=table_type, split="none", deletes=deletes, shape=shape)
    )

    assert {name: lines for name, lines in results.items() if lines} == {}
    assert len(results) > 100


OF_BROKEN_RULES = {
    "T4-key-change",
    "T4-insert-before-delete",
    "T4-chain-read-backwards",
    "late-update",
    "blocking-snapshot-contains-a-key-change-of-a-row-never-seen",
    "O2-change-behind-incremental-row",
    "O8-replay-behind-a-delete",
    "O12-kafka-time-steps-back",
}
"""Logs that share a table, and that tests/mutations names for rules on what silver remembers between batches."""
WITH_OWN_TABLES = {"late-end-after-the-next-beginning"}
"""Such logs that do not share a table."""
SHORT, LONG = {"K8-another-primary-key", "missing-row-and-a-replay"}, {"T4-replay-that-closes-a-second-life"}


@pytest.mark.parametrize(
    ("table_type", "names"),
    [
        pytest.param("delta", OF_BROKEN_RULES, marks=pytest.mark.core, id="delta-broken-rules"),
        pytest.param("delta", WITH_OWN_TABLES, id="delta-own-tables"),
        *(
            pytest.param(table_type, names, marks=pytest.mark.deep, id=f"{table_type}-{kind}")
            for table_type in get_args(TableType)
            for kind, names in (("short", SHORT), ("long", LONG))
        ),
    ],
)
def test_logs_cut_into_one_event_batches_match_the_reference(
    spark: SparkSession, tmp_path: Path, table_type: TableType, names: set[str]
) -> None:
    logs = [log for log in load() if log.log in names]

    results = dict(
        results_by_lake(spark, tmp_path, logs, table_type=table_type, split="each", deletes="hard", shape="envelope")
    )

    assert len(results) == len(names)
    assert {name: lines for name, lines in results.items() if lines} == {}


@pytest.mark.deep
@pytest.mark.parametrize(
    ("table_type", "deletes", "split"),
    [
        ("delta", "hard", "each"),
        ("delta", "soft", "each"),
        ("hudi-cow", "soft", "halves"),
        ("hudi-mor", "hard", "halves"),
        ("iceberg-mor", "hard", "halves"),
    ],
)
def test_rebuild_equals_incremental_batches(
    spark: SparkSession, tmp_path: Path, table_type: TableType, deletes: Deletes, split: Split
) -> None:
    results = dict(
        results_by_lake(
            spark,
            tmp_path,
            load(),
            table_type=table_type,
            split=split,
            deletes=deletes,
            shape="envelope",
            is_rebuilt=True,
        )
    )

    assert {name: lines for name, lines in results.items() if lines} == {}
    assert len([name for name in results if name.endswith("rebuilt")]) > 20
