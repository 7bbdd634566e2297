"""Changes of the source's columns: every cell of docs/reference/evolution.md, on each table type."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from conformance.by_lake import table_rows
from pyspark.sql import SparkSession
from support import wire
from support.converters import AnyIdRegistry, Lake, event
from support.schema_changes import CHANGES, POLICIES, TABLE, Change, outcome, steps_of, tables, text_of, value_schemas

from cdc_lake import failpoints
from cdc_lake.config import TABLE_TYPES, Config, LakeConfig, TableConfig
from cdc_lake.demo.comparer import iceberg_table
from cdc_lake.runs.context import lake_of
from cdc_lake.runs.report import TableReport
from cdc_lake.silver.run import run_silver

TOGETHER = [change for change in CHANGES if change.is_combinable]


class EvolvingLake:
    """A lake whose table changes, with silver in one or several table types."""

    def __init__(self, spark: SparkSession, root: Path, changes: Sequence[Change], *types: str, **more: Any) -> None:
        self._spark, self._root, self._types = spark, root, types
        self._silver = tuple(TABLE_TYPES[name] for name in types)  # type: ignore[index]
        self._tables, schemas = tables(changes), value_schemas(changes)
        registry = AnyIdRegistry()
        self._texts = [text_of(schema) for schema in schemas]
        self._key_texts = [text_of(table.key) for table in self._tables]
        for number, (key, value) in enumerate(zip(self._key_texts, self._texts, strict=True)):
            registry.put(f"contentId:{10 + number}", key)
            registry.put(f"contentId:{20 + number}", value)
        self._schemas = schemas
        self.lake = Lake(spark, root, registry, **more)
        self._lsn = 0

    def send(self, after: bool, key: int, row: Mapping[str, Any], op: str = "c") -> None:
        """A row written with the schema before or after the changes."""
        self._lsn += 1
        body = wire.avro(
            self._texts[after], wire.filled(self._schemas[after], event(op, {**row, "id": key}, self._lsn))
        )
        keys = {"id": key, **{name: row[name] for name in self._tables[after].keys if name != "id"}}
        self.lake.send(
            wire.framed("id4", f"id:{10 + after}", wire.avro(self._key_texts[after], keys), "key"),
            wire.framed("id4", f"id:{20 + after}", body, "value"),
        )

    def fold(self, **settings: Any) -> list[TableReport]:
        """One run of silver, as in a new process."""
        assert self.lake.land().rows.get("quarantined", 0) == 0, self.lake.problems()
        held = {"storage": self._silver, **settings}
        config = Config(lake=LakeConfig(root=str(self._root)), defaults=TableConfig(**held))
        return run_silver(config, [TABLE], self._spark).tables

    def rows(self) -> Iterator[dict[int, dict[str, Any]]]:
        """Each table's rows by key, read by other readers."""
        for path in self._paths():
            yield {row["id"]: row for row in table_rows(path)}

    def fields(self) -> Iterator[dict[str, tuple[int, str]]]:
        """Field id and type of each column and nested field of each Iceberg table, by path, read by pyiceberg."""
        for path in self._paths():
            schema = iceberg_table(path).schema()
            found = map(schema.find_field, schema.column_names)
            yield {
                name: (field.field_id, str(field.field_type))
                for name, field in zip(schema.column_names, found, strict=True)
            }

    def _paths(self) -> Iterator[str]:
        for number, table in enumerate(self._silver):
            folder = f"silver_{table.kind}" if number else "silver"
            yield str(self._root / folder / TABLE.replace(".", "/"))


def played(place: EvolvingLake, changes: Sequence[Change]) -> dict[int, dict[str, Any]]:
    """Send rows before the changes, fold, then both kinds mixed; the expected rows of silver, by key."""
    old = {name: value for change in changes for name, value in change.old.items()}
    new = {name: value for change in changes for name, value in change.new.items()}
    was = {name: value for change in changes for name, value in change.shown[0].items()}
    is_now = {name: value for change in changes for name, value in change.shown[1].items()}
    place.send(False, 1, old)
    place.send(False, 2, old)
    assert [report.error for report in place.fold()] == [None] * len(place._types)
    place.send(True, 3, new)
    place.send(False, 4, old)  # a task that still has the old schema
    place.send(True, 2, new, "u")
    return {1: was, 2: is_now, 3: is_now, 4: was}


def check(place: EvolvingLake, wanted: Mapping[int, Mapping[str, Any]]) -> None:
    for rows in place.rows():
        shown = {
            key: {name: str(row[name]) if isinstance(row[name], date) else row[name] for name in wanted[key]}
            for key, row in rows.items()
        }
        assert shown == wanted


def check_stopped(reports: Sequence[TableReport], policy: str) -> None:
    refused = [step.words for step in steps_of(TOGETHER) if policy == "freeze" or step.kind in ("widen", "variant")]
    for stopped in reports:
        assert stopped.error is not None
        assert (stopped.error.code, stopped.error.exit_code) == ("CDC-210", 2)
        assert "; ".join(refused) in stopped.error.message


@pytest.mark.core
@pytest.mark.hudi
def test_all_changes_together_stop_if_frozen_and_else_apply(spark: SparkSession, tmp_path: Path) -> None:
    place = EvolvingLake(spark, tmp_path, TOGETHER, *TABLE_TYPES)
    wanted = played(place, TOGETHER)
    before = list(place.rows())

    check_stopped(place.fold(schema={"evolution": "freeze"}), "freeze")
    assert list(place.rows()) == before
    reports = place.fold()

    assert [report.error for report in reports] == [None] * len(TABLE_TYPES)
    words = [step.words for step in steps_of(TOGETHER)]
    for report in reports:
        *steps, of_nulls = report.warnings
        assert steps == words
        assert of_nulls.startswith(
            "a null in `defaulted`, `filled` arrives as the column's default: set value.converter."
        )
    check(place, wanted)
    assert [report.warnings for report in place.fold()] == [[]] * len(TABLE_TYPES), "said once"
    check(place, wanted)


def test_iceberg_keeps_field_ids_through_all_changes(spark: SparkSession, tmp_path: Path) -> None:
    place = EvolvingLake(spark, tmp_path, TOGETHER, "iceberg-cow", "iceberg-mor")
    renamed = {"schema": {"rename": {"new_name": "old_name"}}}
    played(place, TOGETHER)
    before = list(place.fields())

    assert [report.error for report in place.fold(**renamed)] == [None, None]

    for was, is_now in zip(before, place.fields(), strict=True):
        assert {path: is_now[path][0] for path in was} == {path: number for path, (number, _) in was.items()}
        changed = {path for path in was if is_now[path][1] != was[path][1]}
        assert changed == {"whole", "floating", "digits"}
        added = is_now.keys() - was.keys()
        assert added == {"added", "filled", "to_number__int", "to_text__string", "twin__string", "other__date", "right"}
        assert min(is_now[path][0] for path in added) > max(number for number, _ in was.values())
    for rows in place.rows():
        assert {key: rows[key]["old_name"] for key in (1, 2, 3)} == {1: "x", 2: "y", 3: "y"}


def test_iceberg_run_failing_after_new_columns_is_resumed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [change for change in CHANGES if change.name == "a column is added"]
    place = EvolvingLake(spark, tmp_path, changes, "iceberg-cow", "iceberg-mor")
    wanted = played(place, changes)
    before = list(place.rows())
    monkeypatch.setenv(failpoints.VARIABLE, "iceberg.after_stage:raise")

    failed = [report.error for report in place.fold()]

    assert all(error is not None and "iceberg.after_stage" in error.message for error in failed), failed
    assert list(place.rows()) == [{key: row | {"added": None} for key, row in rows.items()} for rows in before]
    monkeypatch.delenv(failpoints.VARIABLE)
    assert [report.error for report in place.fold()] == [None, None]
    check(place, wanted)


def test_iceberg_column_renamed_by_hand_stops_silver(spark: SparkSession, tmp_path: Path) -> None:
    changes = [change for change in CHANGES if change.name == "a column is added"]
    place = EvolvingLake(spark, tmp_path, changes, "iceberg-mor")
    played(place, changes)
    assert place.fold()[0].error is None
    config = Config(lake=LakeConfig(root=str(tmp_path)), defaults=TableConfig(storage=(TABLE_TYPES["iceberg-mor"],)))
    table = lake_of(config).silver(TABLE)[0].open(spark)
    spark.sql(f"ALTER TABLE {table.sql_name} RENAME COLUMN added TO more")
    before = list(place.rows())
    place.send(True, 5, {"added": 9})

    (report,) = place.fold()

    assert report.error is not None
    assert (report.error.exit_code, list(place.rows())) == (2, before)
    assert "another program renamed the column to `more` in silver" in report.error.message


@pytest.mark.deep
def test_add_only_stops_the_table_and_lists_all_refused_changes(spark: SparkSession, tmp_path: Path) -> None:
    place = EvolvingLake(spark, tmp_path, TOGETHER, "delta")
    wanted = played(place, TOGETHER)
    (before,) = place.rows()

    check_stopped(place.fold(schema={"evolution": "add_only"}), "add_only")

    assert next(place.rows()) == before
    assert place.fold()[0].error is None
    check(place, wanted)


@pytest.mark.deep
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("table_type", TABLE_TYPES)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_each_change_has_the_documented_outcome(
    spark: SparkSession, tmp_path: Path, change: Change, table_type: str, policy: Any
) -> None:
    place = EvolvingLake(spark, tmp_path, [change], table_type)
    wanted = played(place, [change])
    (before,) = place.rows()

    (report,) = place.fold(schema={"evolution": policy})

    said = outcome(change, policy)
    if said.startswith("stops"):
        assert report.error is not None
        assert f"stops, {report.error.code}" == said
        assert next(place.rows()) == before
    else:
        assert report.error is None
        steps = [warning for warning in report.warnings if not warning.startswith("a null in ")]
        assert ("; ".join(steps) or "nothing changes") == said
        check(place, wanted)
        assert place.fold()[0].warnings == []


def test_except_columns_rename_and_cast_are_applied(spark: SparkSession, tmp_path: Path) -> None:
    changes = [change for change in CHANGES if change.name in ("a column is renamed", "integer to text")]
    settings = {"schema": {"exclude": ["old_name"], "rename": {"new_name": "label"}, "cast": {"to_text": "string"}}}
    place = EvolvingLake(spark, tmp_path, changes, "delta")
    place.send(False, 1, {"old_name": "x", "to_text": 7})
    place.send(True, 2, {"new_name": "y", "to_text": "z"})

    (report,) = place.fold(**settings)

    assert report.error is None
    (rows,) = place.rows()
    assert {key: {name: value for name, value in row.items() if name[:2] != "__"} for key, row in rows.items()} == {
        1: {"id": 1, "label": None, "to_text": "7"},
        2: {"id": 2, "label": "y", "to_text": "z"},
    }


def test_value_that_does_not_fit_its_cast_exits_30(spark: SparkSession, tmp_path: Path) -> None:
    changes = [change for change in CHANGES if change.name == "text to integer"]
    place = EvolvingLake(spark, tmp_path, changes, "delta")
    place.send(False, 1, {"to_number": "12"})
    place.send(False, 2, {"to_number": "twelve"})

    (report,) = place.fold(schema={"cast": {"to_number": "int"}})

    assert report.error is not None
    assert report.error.exit_code == 30
    assert "`schema.cast` cannot store 1 values of `to_number` as int" in report.error.message
    assert not list(tmp_path.glob("silver/**/_delta_log"))


def test_widened_key_type_keeps_the_same_key(spark: SparkSession, tmp_path: Path) -> None:
    columns = {"name": wire.optional(wire.STRING)}
    narrow, wide = (wire.Table(TABLE, {"id": kind, **columns}, ["id"]) for kind in (wire.INT32, wire.INT64))
    registry = AnyIdRegistry()
    lake = Lake(spark, tmp_path, registry)
    for number, table in enumerate((narrow, wide)):
        registry.put(f"contentId:{10 + number}", text_of(table.key))
        registry.put(f"contentId:{20 + number}", text_of(wire.envelope(table)))

    def send(number: int, table: wire.Table, key: int, name: str, lsn: int) -> None:
        schema = wire.envelope(table)
        body = wire.avro(text_of(schema), wire.filled(schema, event("c", {"id": key, "name": name}, lsn)))
        lake.send(
            wire.framed("id4", f"id:{10 + number}", wire.avro(text_of(table.key), {"id": key}), "key"),
            wire.framed("id4", f"id:{20 + number}", body, "value"),
        )

    send(0, narrow, 1, "old", 1)
    lake.land()
    lake.fold()
    send(1, wide, 1, "new", 2)
    send(1, wide, 1 << 40, "large", 3)
    lake.land()

    rows = lake.fold()

    assert {key: row["name"] for key, row in rows.items()} == {1: "new", 1 << 40: "large"}
