"""One table's change events in the format of any converter, and the lake that reads them."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from conformance.by_lake import table_rows
from pyspark.sql import SparkSession

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import Config, LakeConfig, TableConfig
from cdc_lake.registries.registry import RegisteredSchema
from cdc_lake.runs.context import lake_of
from cdc_lake.runs.report import TableReport
from cdc_lake.silver.run import run_silver
from cdc_lake.tables.delta import DeltaLakeTable
from support import wire
from support.events import Record
from support.fakes import FakeBroker
from support.lake import by_offset

TABLE = wire.Table(
    "pagila.public.thing",
    {
        "id": wire.INT32,
        "name": wire.optional(wire.STRING),
        "rate": wire.optional(wire.decimal(4, 2)),
        "picture": wire.optional(wire.BYTES),
    },
    ["id"],
)
ENVELOPE = wire.envelope(TABLE)
KEY_TEXT, VALUE_TEXT = (wire.json_text(wire.avro_schema(schema)).decode() for schema in (TABLE.key, ENVELOPE))
TEXTS = {"key": KEY_TEXT, "value": VALUE_TEXT}


class AnyIdRegistry:
    """A fake: a registry that responds for every kind of id."""

    name = "registry"

    def __init__(self) -> None:
        self.namespaces: tuple[str, ...] = ("contentId", "globalId")
        self.texts: dict[tuple[str, str], str | RegisteredSchema] = {}

    def schema(self, kind: str, schema_id: str) -> RegisteredSchema | None:
        """See `Registry`."""
        text = self.texts.get((kind, schema_id))
        return RegisteredSchema(text) if isinstance(text, str) else text

    def wipe(self) -> None:
        """Delete all content."""
        self.texts.clear()

    def put(self, reference: str, text: str | RegisteredSchema) -> str:
        """Respond with this text for a reference."""
        kind, _, schema_id = reference.partition(":")
        self.texts[kind, schema_id] = text
        return reference


def numbered_registry() -> AnyIdRegistry:
    """A registry with the key's schema as id 1, and the value's as id 2."""
    registry = AnyIdRegistry()
    registry.put("contentId:1", KEY_TEXT)
    registry.put("contentId:2", VALUE_TEXT)
    return registry


def event(op: str, row: dict[str, Any] | None, lsn: int) -> dict[str, Any]:
    source = {**wire.postgres_values(TABLE.name), "ts_ms": 1_700_000_000_000 + lsn, "lsn": lsn, "txId": lsn}
    before, after = (row, None) if op == "d" else (None, row)
    return wire.whole_event(op, before, after, source, 1)


def row(key: int, name: str) -> dict[str, Any]:
    return {"id": key, "name": name, "rate": wire.unscaled(499), "picture": b"\0\x01\xff"}


def life(start: int) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Five keys: read, created, updated, deleted, and deleted by an unpaired tombstone. Each record's key and event."""
    for number, ops in enumerate(("r", "c", "cu", "cd", "c-")):
        for step, op in enumerate(ops):
            key = start + number
            yield key, None if op == "-" else event(op, row(key, f"{op}{step}"), key * 10 + step + 1)


class Lake:
    """A lake with a fake broker and a fake registry, and one topic."""

    def __init__(
        self, spark: SparkSession, root: Path, registry: Any, *, topic: str = TABLE.name, **settings: Any
    ) -> None:
        self._topic = topic
        self._spark, self.registry, self.broker = spark, registry, FakeBroker()
        self._root, self._settings, self.offset = root, TableConfig(**settings), 0

    @property
    def config(self) -> Config:
        return Config(lake=LakeConfig(root=str(self._root)), defaults=self._settings)

    def send(self, key: tuple[bytes | None, wire.Headers], value: tuple[bytes | None, wire.Headers]) -> None:
        """Append a record."""
        at = datetime.fromtimestamp(1_700_000_000 + self.offset, UTC)
        self.broker.append(Record(key[0], value[0], self._topic, 0, self.offset, at, [*key[1], *value[1]]))
        self.offset += 1

    def send_numbered(self, key: int, avro: bytes | None, value_id: int, *, key_id: int = 1) -> None:
        """Append a record of Avro whose schemas are named by numbers of four bytes; without a value, a tombstone."""
        self.send(
            wire.framed("id4", f"id:{key_id}", wire.avro(KEY_TEXT, {"id": key}), "key"),
            wire.framed("id4", f"id:{value_id}", avro, "value") if avro else (None, []),
        )

    def land(self, **flags: bool) -> TableReport:
        """One run of bronze."""
        (report,) = run_bronze(
            self.config, [self._topic], self._spark, source=self.broker, registry=self.registry, **flags
        ).tables
        return report

    def fold(self) -> dict[int, Any]:
        """One run of silver; its rows by key."""
        (report,) = run_silver(self.config, [self._topic], self._spark).tables
        assert report.error is None, report.error
        (silver,) = lake_of(self.config).silver(self._topic)
        return {one["id"]: one for one in silver.open(self._spark).read().collect()}

    def table(self, layer: str) -> DeltaLakeTable:
        return DeltaLakeTable(self._spark, f"{self._root}/{layer}/{self._topic.replace('.', '/')}")

    def bronze(self) -> list[Any]:
        return by_offset(self.table("bronze").read())

    def problems(self) -> dict[int, str]:
        """By offset: the reason of quarantine."""
        rows = sorted(table_rows(self.table("bronze").path), key=lambda row: int(row["offset"]))
        return {row["offset"]: row["error"]["message"] for row in rows if row["status"] == "quarantined"}


def check_life(rows: dict[int, Any], start: int) -> None:
    """Check the rows of the five keys."""
    found = [
        (rows[key]["__op"], rows[key]["__deleted"], rows[key]["name"], str(rows[key]["rate"]), rows[key]["picture"])
        for key in range(start, start + 5)
    ]
    picture = bytearray(b"\0\x01\xff")
    assert found == [
        ("r", False, "r0", "4.99", picture),
        ("c", False, "c0", "4.99", picture),
        ("u", False, "u1", "4.99", picture),
        ("d", True, "c0", "4.99", picture),
        ("tombstone", True, "c0", "4.99", picture),
    ]
