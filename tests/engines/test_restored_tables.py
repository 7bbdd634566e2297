"""Tables that are restored from a backup: their numbers then name other commits, and each reader notices it."""

from pathlib import Path
from typing import Any

import pytest
from conformance.by_lake import table_rows
from pyspark.sql import SparkSession
from support.copies import copied
from support.three_layers import Lake

from cdc_lake.config import StorageConfig
from cdc_lake.lake.lake import SilverTarget
from cdc_lake.operations.plan import plan
from cdc_lake.operations.rebuild import RebuildOptions, run_rebuild
from cdc_lake.runs.report import TableReport
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.silver.run import run_silver
from cdc_lake.tables.delta import DeltaLakeTable

DELTA, HUDI = StorageConfig(), StorageConfig(format="hudi", type="mor")


def warns_of_other_history(report: TableReport) -> bool:
    return any("history" in warning and "differs" in warning for warning in report.warnings)


@pytest.fixture(
    scope="module", params=[(DELTA, HUDI), pytest.param((HUDI,), marks=pytest.mark.deep)], ids=["delta", "hudi"]
)
def taken(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Three rows in all layers."""
    lake = Lake(spark, tmp_path_factory.mktemp("taken"), *request.param)
    lake.take(1, 2, 3)
    return lake


@pytest.fixture
def lake(taken: Lake, tmp_path: Path) -> Lake:
    return copied(taken, tmp_path / "lake")


def test_bronze_restored_from_backup_is_compared_without_loss(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    put_back = lake.back_up("bronze")
    for keys in ((1, 4), (5,)):
        lake.change(*keys)
        lake.land()
        lake.fold()
    put_back()
    is_unchanged: list[bool] = []
    finds = TableScheduler.finds_nothing_new

    def note(*arguments: Any) -> bool:
        is_unchanged.append(finds(*arguments))
        return is_unchanged[-1]

    lake.change(6)  # one batch now has the rows of two, and one event more
    lake.land()
    lake.change(7)
    lake.land()
    monkeypatch.setattr(TableScheduler, "finds_nothing_new", staticmethod(note))
    reports = lake.fold()
    lake.refresh()

    # Bronze has as many commits as silver had consumed; the check without Spark notices that they are others.
    bronze = DeltaLakeTable(lake.spark, f"{lake.root}/bronze/{lake.topic.table.replace('.', '/')}").progress()
    assert bronze is not None and bronze.commit == 3
    assert [warns_of_other_history(one) for one in reports] == [True] * len(lake.targets)
    lake.check()
    assert {one.status for one in (*lake.fold(), lake.refresh())} == {"unchanged"}
    assert is_unchanged == [False, False, True, True]
    lake.take(1, 8)
    lake.check()


def test_silver_stops_until_restored_bronze_has_caught_up(lake: Lake) -> None:
    def live(target: SilverTarget) -> dict[int, int]:
        return {row["id"]: row["n"] for row in table_rows(target.path) if not row["__deleted"]}

    def check() -> None:
        assert [live(target) for target in lake.targets] == [lake.source] * len(lake.targets)

    put_back = lake.back_up("bronze")
    lake.change(1, 4)
    lake.delete(2)
    lake.land()
    lake.fold()
    put_back()

    stopped = lake.run_silver()
    planned = plan(lake.config, ["*"], lake.spark, source=lake.broker)

    (rebuilt, *_) = run_rebuild(lake.config, ["*"], lake.spark, options=RebuildOptions(is_dry=True)).tables

    assert stopped.exit_code == 20
    errors = [report.error for report in stopped.tables if report.error]
    assert [(error.code, error.retryable) for error in errors] == [("CDC-404", True)] * len(lake.targets)
    assert "partition 0: 3 of 6" in errors[0].message and "run silver --table" in errors[0].message
    assert [reason for reason in planned.refused if "lacks records that silver has merged" in reason]
    assert [warning for warning in rebuilt.warnings if "lacks records that silver has merged" in warning]
    check()
    accepted = run_silver(lake.config, ["*"], lake.spark, accept_loss=True)
    assert accepted.exit_code == 0 and 2 in live(lake.targets[0])
    lake.change(5)
    lake.land()
    lake.fold()
    check()


def test_silver_from_backup_catches_up_and_gold_is_refreshed(lake: Lake) -> None:
    put_back = lake.back_up(*(folder.name for folder in lake.root.glob("silver*")))
    lake.take(1, 4)
    lake.change(2)
    lake.land()
    put_back()

    first = lake.fold()[0]
    report = lake.refresh()

    # Both batches are in one commit, whose number gold had read already.
    assert not warns_of_other_history(first) and warns_of_other_history(report)
    lake.check()
    put_back = lake.back_up("gold")
    lake.take(3)
    put_back()
    assert not warns_of_other_history(lake.refresh())
    lake.check()
