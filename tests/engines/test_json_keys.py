"""JSON keys, whose columns each record defines: a few records with another key do not stop their table."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support import wire
from support.converters import ENVELOPE, TABLE, AnyIdRegistry, Lake, event, row

from cdc_lake.bronze.schema_resolution import MIN_RECORDS
from cdc_lake.operations.quarantine import OffsetRange, Selection
from cdc_lake.operations.rebuild import RebuildOptions, run_rebuild
from cdc_lake.operations.replay import replay_quarantined
from cdc_lake.silver.run import run_silver

PLAIN = {"key": {"wire_format": "json"}, "value": {"columns": {"id": "int"}}}
OTHERS: dict[str, tuple[wire.Schema, dict[str, Any]]] = {
    "other columns": (wire.Table(TABLE.name, {"name": wire.STRING}, ["name"]).key, {"name": "x"}),
    "one more column": (
        wire.Table(TABLE.name, {"id": wire.INT32, "name": wire.STRING}, ["id", "name"]).key,
        {"id": 1, "name": "x"},
    ),
    "another type": (wire.Table(TABLE.name, {"id": wire.STRING}, ["id"]).key, {"id": "x"}),
}


class Keyed(Lake):
    """A lake of JSON records, with or without key schemas."""

    def __init__(self, spark: SparkSession, root: Path, **settings: Any) -> None:
        super().__init__(spark, root, AnyIdRegistry(), **settings)
        self._is_plain = "key" in settings

    def append(
        self, name: str, schema: wire.Schema = TABLE.key, key: dict[str, Any] | None = None, number: int | None = None
    ) -> None:
        number = self.offset if number is None else number
        key = {"id": number} if key is None else key
        sent = wire.json_text(key) if self._is_plain else wire.json_record(schema, key)
        value = wire.json_record(ENVELOPE, event("c", row(number, name), self.offset + 1))
        self.send((sent, []), (value, []))

    def rebuild(self, *key: str) -> None:
        (report,) = run_rebuild(self.config, [self._topic], self._spark, options=RebuildOptions(key=key)).tables
        assert report.error is None, report.error

    def silver_error(self) -> str:
        (report,) = run_silver(self.config, [self._topic], self._spark).tables
        assert report.error is not None
        return report.error.code

    def replay(self, **selection: Any) -> dict[str, int]:
        (report,) = replay_quarantined(
            self.config, [self._topic], self._spark, registry=self.registry, selection=Selection(**selection)
        ).tables
        return report.rows


@pytest.mark.parametrize("settings", [pytest.param({}, id="connect"), pytest.param(PLAIN, id="plain")])
def test_other_json_key_is_quarantined_until_many_have_it(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any]
) -> None:
    lake = Keyed(spark, tmp_path, **settings)
    lake.append("first")
    lake.append("second")
    others = [one for name, one in OTHERS.items() if not settings or name != "another type"]
    for schema, key in others:
        lake.append("hostile", schema, key)
    lake.append("third")

    assert lake.land().error is None

    problems = lake.problems()
    assert list(problems) == list(range(2, 2 + len(others)))
    assert all("has other columns or types than the table's (id int)" in problem for problem in problems.values())
    assert [one["name"] for one in lake.fold().values()] == ["first", "second", "third"]

    # Also alone in a batch.
    lake.append("hostile", *OTHERS["other columns"])
    assert lake.land().rows["quarantined"] == 1
    assert len(lake.fold()) == 3

    for number in range(MIN_RECORDS):
        lake.append("really another key", OTHERS["other columns"][0], {"name": str(number)})
    assert lake.land().rows["ok"] == MIN_RECORDS
    assert lake.silver_error() == "CDC-203"


def test_rebuild_by_real_key_recovers_from_forged_keys(spark: SparkSession, tmp_path: Path) -> None:
    """What docs/explanation/security.md advises."""
    lake = Keyed(spark, tmp_path)
    lake.append("first", number=0)
    lake.append("first", number=1)
    lake.land()
    lake.fold()
    for number in range(MIN_RECORDS):
        lake.append("forged", OTHERS["other columns"][0], {"name": str(number)})
    lake.land()
    assert lake.silver_error() == "CDC-203"
    lake.append("second", number=1)
    assert lake.land().rows["quarantined"] == 1  # too few have the real key

    for number in range(MIN_RECORDS + 1):
        lake.append("snapshot", number=number)
    assert lake.land().rows["ok"] == MIN_RECORDS + 1
    lake.rebuild("id")
    assert lake.replay() == {"replayed": 1, "still_quarantined": 0}
    lake.append("last", number=0)
    lake.land()

    names = {key: one["name"] for key, one in lake.fold().items()}
    assert names == {0: "last"} | dict.fromkeys(range(1, MIN_RECORDS + 1), "snapshot")


def test_replay_by_offset_lands_another_json_key(spark: SparkSession, tmp_path: Path) -> None:
    lake = Keyed(spark, tmp_path)
    lake.append("first")
    lake.append("another key", *OTHERS["other columns"])
    lake.land()
    lake.fold()

    assert lake.replay() == {"replayed": 0, "still_quarantined": 1}
    assert len(lake.fold()) == 1

    assert lake.replay(offsets=[OffsetRange(0, 0, 1, 1)]) == {"replayed": 1, "still_quarantined": 0}
    assert lake.silver_error() == "CDC-203"
    lake.append("another key", *OTHERS["other columns"])
    assert lake.land().rows["ok"] == 1


def test_key_of_row_with_another_type_is_quarantined(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, AnyIdRegistry(), merge={"keys": ("id",)})
    other = wire.envelope(wire.Table(TABLE.name, {**TABLE.columns, "id": wire.STRING}, ["id"]))
    for number, schema in enumerate((ENVELOPE, other, ENVELOPE)):
        sent = event("c", row(number if schema is ENVELOPE else "x", "name"), number + 1)  # type: ignore[arg-type]
        lake.send((None, []), (wire.json_record(schema, sent), []))

    assert lake.land().error is None

    assert list(lake.problems()) == [1]
    assert sorted(lake.fold()) == [0, 2]
