"""Tables that users change by hand: silver runs stop with exit 2 and name the fix, and bronze's lost rows are named."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from support.events import OPTIONAL_INT, OPTIONAL_STRING, START_MS, Topic
from support.lake import Lake

from cdc_lake.config import Config, LakeConfig
from cdc_lake.operations.plan import plan
from cdc_lake.operations.rebuild import RebuildOptions, run_rebuild
from cdc_lake.operations.reconcile import run_reconcile
from cdc_lake.runs.report import ReportedError
from cdc_lake.silver.run import run_silver


class EditedLake:
    """A lake of one table with two rows."""

    def __init__(self, spark: SparkSession, root: Path, **columns: Any) -> None:
        self.spark, self.config, self._lsn = spark, Config(lake=LakeConfig(root=str(root))), 2
        self.topic = Topic(columns)
        self.lake = Lake(spark, root, self.topic)
        self.lake.take([self.topic.change("c", key, {}, lsn=1) for key in (1, 2)])

    def sql(self, what: str) -> None:
        self.spark.sql(f"ALTER TABLE delta.`{self.lake.silver.path}` {what}").collect()

    def change(self, **row: Any) -> None:
        """Land a change of row 1."""
        self._lsn += 1
        self.lake.land([self.topic.change("u", 1, row, lsn=self._lsn, ts_ms=START_MS + self._lsn)])

    def row(self) -> Row:
        """Row 1, read by Spark, because delta-rs does not read tables with column mapping."""
        (found,) = self.lake.silver.read().where("id = 1").collect()
        return found

    def refused(self) -> ReportedError:
        """The exit of a silver run."""
        (report,) = run_silver(self.config, [self.topic.table], self.spark).tables
        assert report.error is not None
        return report.error


@pytest.fixture(scope="module")
def edited(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> EditedLake:
    return EditedLake(spark, tmp_path_factory.mktemp("by_hand"), n=OPTIONAL_INT, text=OPTIONAL_STRING)


@pytest.mark.parametrize(
    ("by_hand", "said", "row"),
    [
        ("SET TBLPROPERTIES ('delta.appendOnly' = 'true')", "the table property `delta.appendOnly`", {"n": 1}),
        ("ADD CONSTRAINT few CHECK (n IS NULL OR n < 1000000)", "the CHECK constraint `few`", {"n": 1_234_567}),
    ],
)
def test_property_or_constraint_stops_run_until_removed(
    edited: EditedLake, by_hand: str, said: str, row: dict[str, Any]
) -> None:
    edited.sql(by_hand)
    edited.change(**row)

    error = edited.refused()

    assert (error.code, error.exit_code) == ("CDC-200", 2)
    assert f"{said} rejects the source's rows; the batch was not committed" in error.message
    assert "1234567" not in error.message
    edited.spark.sql(error.message.partition("to remove it, run ")[2]).collect()
    edited.lake.fold()
    assert edited.row()["n"] == row["n"]


def test_column_renamed_by_hand_stops_run_until_renamed_back(edited: EditedLake) -> None:
    edited.sql("SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    edited.sql("RENAME COLUMN text TO other")
    edited.sql("RENAME COLUMN other TO label")
    edited.change(text="later")

    error = edited.refused()

    assert (error.code, error.exit_code) == ("CDC-200", 2)
    assert "thing.text: another program renamed the column to `label` in silver; rename it back: " in error.message
    edited.spark.sql(error.message.partition("rename it back: ")[2].partition(";")[0]).collect()
    edited.lake.fold()
    assert edited.row()["text"] == "later"
    assert "label" not in edited.lake.silver.read().columns


def test_column_removed_by_hand_stops_run_until_rebuilt(edited: EditedLake) -> None:
    edited.sql("RENAME COLUMN n TO number")
    edited.change(n=7)
    assert "renamed the column to `number`" in edited.refused().message
    edited.sql("RENAME COLUMN number TO n")
    edited.sql("DROP COLUMN n")

    error = edited.refused()

    assert error.exit_code == 2
    assert (
        "thing.n: another program removed the column from silver; to restore it, run `cdc-lake rebuild" in error.message
    )
    assert "`cdc-lake rebuild --table pagila.public.thing`" in error.message
    (report,) = run_rebuild(edited.config, [edited.topic.table], edited.spark).tables
    assert report.error is None
    assert edited.row()["n"] == 7
    edited.change(n=8)
    edited.lake.fold()
    assert edited.row()["n"] == 8


@pytest.mark.core
def test_rows_deleted_from_bronze_are_counted_by_each_command(spark: SparkSession, tmp_path: Path) -> None:
    here = EditedLake(spark, tmp_path, n=OPTIONAL_INT)
    here.change(n=3)
    config, tables = here.config, [here.topic.table]

    def warnings() -> list[list[str]]:
        (rebuilt,) = run_rebuild(config, tables, spark, options=RebuildOptions(is_dry=True)).tables
        (compared,) = run_reconcile(config, tables, spark).tables  # there is no database
        return [plan(config, tables, spark, source=here.lake.broker).warnings, rebuilt.warnings, compared.warnings]

    assert warnings() == [[], [], []]
    spark.sql(f"DELETE FROM delta.`{here.lake.bronze.path}` WHERE batch = 2").collect()

    assert [
        ["another program deleted 1 of the 3 rows that bronze landed" in one for one in said] for said in warnings()
    ] == [[True]] * 3
