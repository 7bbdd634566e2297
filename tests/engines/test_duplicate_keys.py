"""A duplicate key in silver, written by another program: the run stops and names it; a rebuild repairs it."""

from pathlib import Path
from typing import Any

import pytest
from conformance.by_lake import table_rows
from pyspark.sql import SparkSession
from support.events import OPTIONAL_STRING, START_MS, Topic
from support.fakes import FakeBroker

from cdc_lake.bronze.run import run_bronze
from cdc_lake.columns import HUDI_PREFIX
from cdc_lake.config import TABLE_TYPES, Config, LakeConfig, TableConfig
from cdc_lake.errors import DuplicateKeyError
from cdc_lake.lake.lake import SilverTarget
from cdc_lake.operations.rebuild import run_rebuild
from cdc_lake.runs.context import lake_of
from cdc_lake.silver.run import run_silver


def repeat_row(spark: SparkSession, target: SilverTarget, key: int) -> None:
    """Append a copy of a row, like a program that does not know cdc_lake."""
    kind = target.storage.format
    if kind == "iceberg":
        table = target.open(spark)
        table.read().where(f"id = {key}").writeTo(table.sql_name).append()
        return
    rows = spark.read.format(kind).load(target.path).where(f"id = {key}")
    options: dict[str, Any] = {}
    if kind == "hudi":
        rows = rows.drop(*(name for name in rows.columns if name.startswith(HUDI_PREFIX) and "deleted" not in name))
        lines = (Path(target.path) / ".hoodie" / "hoodie.properties").read_text().splitlines()
        settings = dict(line.split("=", 1) for line in lines if "=" in line)
        options = {
            "hoodie.table.name": settings["hoodie.table.name"],
            "hoodie.datasource.write.operation": "bulk_insert",
            "hoodie.datasource.write.recordkey.field": settings["hoodie.table.recordkey.fields"],
            "hoodie.metadata.enable": "false",
        }
    rows.write.format(kind).mode("append").options(**options).save(target.path)


@pytest.mark.hudi
def test_duplicate_key_stops_silver_until_rebuilt(spark: SparkSession, tmp_path: Path) -> None:
    topic, broker = Topic({"text": OPTIONAL_STRING}), FakeBroker()
    config = Config(
        lake=LakeConfig(root=str(tmp_path)),
        defaults=TableConfig(storage=tuple(TABLE_TYPES.values()), deletes={"mode": "hard"}),
    )
    targets = lake_of(config).silver(topic.table)

    def fold(*changes: tuple[str, int, int]) -> dict[str, Any]:
        for op, key, lsn in changes:
            broker.append(topic.change(op, key, {"text": f"{lsn}"}, lsn=lsn, ts_ms=START_MS + lsn))
        assert run_bronze(config, [topic.table], spark, source=broker, registry=topic.registry).exit_code == 0
        return {report.table: report for report in run_silver(config, [topic.table], spark).tables}

    def rows() -> list[list[tuple[int, str]]]:
        return [sorted((row["id"], row["text"]) for row in table_rows(target.path)) for target in targets]

    fold(("c", 1, 1), ("c", 2, 2))
    for target in targets:
        repeat_row(spark, target, 1)
    repeated = [(1, "1"), (1, "1"), (2, "2")]
    assert rows() == [repeated] * 5

    reports = fold(("u", 1, 3))

    assert [reports[target.name].error.code for target in targets] == [DuplicateKeyError.code] * 5
    assert all("1" in reports[target.name].error.message for target in targets)
    assert rows() == [repeated] * 5

    assert run_rebuild(config, ["*"], spark).exit_code == 0
    assert rows() == [[(1, "3"), (2, "2")]] * 5
    assert all(one.error is None for one in fold(("d", 1, 4)).values())
    assert rows() == [[(2, "2")]] * 5
