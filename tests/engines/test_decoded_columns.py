"""`value.decoded: true`: bronze's typed rows, and what a run does about records that cannot be decoded."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from support import wire
from support.converters import ENVELOPE, TABLE, AnyIdRegistry, Lake, event, numbered_registry, row

from cdc_lake.bronze import land
from cdc_lake.bronze.typed_rows import SOURCE_COLUMN
from cdc_lake.config import TableConfig
from cdc_lake.errors import QualityGateError
from cdc_lake.runs.report import TableReport

FLAT = wire.Unwrap(("op", "source.ts_ms", "lsn"))
WIDER = wire.Table(TABLE.name, {**TABLE.columns, "rate": wire.optional(wire.decimal(6, 3))}, ["id"])


@pytest.fixture
def registry() -> AnyIdRegistry:
    registry = numbered_registry()
    registry.put("contentId:3", wire.json_text(wire.avro_schema(wire.envelope(WIDER))).decode())
    registry.put("contentId:4", wire.json_text(wire.avro_schema(FLAT.schema(ENVELOPE))).decode())
    return registry


def send(lake: Lake, schema_id: int, value: dict[str, Any], schema: wire.Schema = ENVELOPE) -> None:
    lake.send_numbered(1, wire.avro(wire.avro_schema(schema), wire.filled(schema, value)), schema_id)


def test_decoded_bronze_has_variant_columns_for_changed_types(
    spark: SparkSession, tmp_path: Path, registry: AnyIdRegistry
) -> None:
    lake = Lake(spark, tmp_path, registry, value={"decoded": True})
    send(lake, 2, event("c", row(1, "one"), 1))
    lake.land()
    send(lake, 3, event("u", row(1, "two") | {"rate": wire.unscaled(1250)}, 2), wire.envelope(WIDER))
    send(lake, 2, event("d", row(1, "two"), 3))
    for value in FLAT.values(ENVELOPE, event("d", row(1, "flat"), 4)):
        send(lake, 4, value or {}, FLAT.schema(ENVELOPE))
    assert lake.land().rows["quarantined"] == 0

    table = DeltaTable(str(tmp_path / "bronze" / "pagila" / "public" / "thing"))
    after, before = (
        [one and {n: str(v) for n, v in one.items() if n != "picture"} for one in rows]
        for name in ("after", "before")
        for rows in [table.to_pyarrow_table().sort_by("offset")[name].to_pylist()]
    )
    assert after == [
        {"id": "1", "name": "one", "rate": "4.99", "rate__decimal_6_3": "None"},
        {"id": "1", "name": "two", "rate": "None", "rate__decimal_6_3": "1.250"},
        None,
        None,
    ]
    assert [one and one["name"] for one in before] == [None, None, "two", "flat"]
    struct = next(field for field in table.schema().fields if field.name == "after")
    assert {f.name: f.metadata[SOURCE_COLUMN] for f in struct.type.fields} == {
        **{name: name for name in TABLE.columns},
        "rate__decimal_6_3": "rate",
    }


def test_decoded_columns_do_not_affect_silver_and_are_optional(
    spark: SparkSession, tmp_path: Path, registry: AnyIdRegistry
) -> None:
    lake = Lake(spark, tmp_path, registry, value={"decoded": True})
    send(lake, 2, event("c", row(1, "one"), 1))
    lake.land()
    assert lake.fold()[1]["name"] == "one"
    plain = Lake(spark, tmp_path, registry)
    plain.broker, plain.offset = lake.broker, lake.offset
    send(plain, 2, event("u", row(1, "two"), 2))

    assert plain.land().error is None
    assert plain.fold()[1]["name"] == "two"
    assert [one["after"] and one["after"]["name"] for one in plain.bronze()] == ["one", None]


def test_on_error_stop_exits_30_without_a_commit(spark: SparkSession, tmp_path: Path, registry: AnyIdRegistry) -> None:
    lake = Lake(spark, tmp_path, registry, quality={"on_error": "stop"})
    send(lake, 2, event("c", row(1, "one"), 1))
    send(lake, 9, event("c", row(1, "one"), 1))

    done = lake.land()

    assert done.error is not None
    assert done.error.exit_code == 30
    assert done.error.message.startswith("pagila.public.thing[0]@1: value: schema id 9 is not in the registry (1 such")
    assert "the batch was not committed (`quality.on_error: stop`)" in done.error.message
    assert not lake.table("bronze").exists()


@pytest.mark.core
def test_max_quarantined_exits_30_after_commit(spark: SparkSession, tmp_path: Path, registry: AnyIdRegistry) -> None:
    lake = Lake(spark, tmp_path, registry, quality={"max_quarantined": "0"})
    send(lake, 2, event("c", row(1, "one"), 1))
    send(lake, 9, event("c", row(1, "one"), 1))

    done = lake.land()

    assert done.error is not None and done.error.exit_code == 30
    assert len(lake.bronze()) == 2


@pytest.mark.parametrize(("limit", "fails"), [("0", True), ("1", False), ("49%", True), ("50%", False)])
def test_max_quarantined_is_a_number_or_a_share(limit: str, fails: bool) -> None:
    done = TableReport(table=TABLE.name, status="ok", rows={"read": 2, "ok": 1, "quarantined": 1})

    with pytest.raises(QualityGateError) if fails else nullcontext():
        land._check_quarantine_limit(done, TableConfig(quality={"max_quarantined": limit}))


def test_unknown_ids_exit_10_unless_quarantine_unknown_ids(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, AnyIdRegistry(), quality={"on_unusable_records": "warn"})
    send(lake, 9, event("c", row(1, "one"), 1))

    done = lake.land()
    told = lake.land(quarantine_unknown_ids=True)

    assert done.error is not None
    assert (done.error.exit_code, told.error) == (10, None)
    assert "--quarantine-unknown-ids" in done.error.message
    assert told.rows == {"read": 1, "ok": 0, "quarantined": 1, "control": 0}
