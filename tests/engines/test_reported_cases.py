"""Inputs after public bug reports and documentation of connectors and tools: do they end as the right rows?

A case is a file in tests/fixtures/reported/:

- `why`: the source of its shape. The values are invented.
- `topic`, `registry`: "kind:id" -> an Avro schema, or {"$json_schema": ...}.
- `schemas`: name -> a Connect schema. {"$schema": name, "payload": ...} in a record stands for the two together.
- `batches`: a list of records for each run of bronze and silver. A record has `key` and `value`: null, JSON,
  {"$text": "..."}, {"$hex": "..."} or {"$avro": "kind:id", "data": ...}, which is framed with four bytes of id.
- `tries`: what comes out with some `settings`, each on a new lake: `live`, all rows that are not deleted, with some of
  their columns ("a.b" is a field of a struct); `quarantined`, "partition@offset" -> a part of the reason; `warning`, a
  part of one. With a `cure`, these settings are added after the last batch, and the quarantined records are replayed
  and merged; the others are what comes out then.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from conformance.by_lake import table_rows
from pyspark.sql import SparkSession
from support import CHECKOUT, wire
from support.events import START_MS, Record
from support.fakes import FakeBroker
from support.setting_groups import patched

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import Config, LakeConfig, TableConfig
from cdc_lake.operations.replay import replay_quarantined
from cdc_lake.registries.registry import RegisteredSchema
from cdc_lake.runs.report import Report
from cdc_lake.silver.run import run_silver

CASES = {path.stem: path for path in sorted((CHECKOUT / "tests" / "fixtures" / "reported").glob("*.json"))}
TRIES = [
    pytest.param(path, number, id=f"{name}-{number}" if number else name)
    for name, path in CASES.items()
    for number in range(len(json.loads(path.read_text(encoding="utf-8"))["tries"]))
]


class CaseRegistry:
    """A fake: the registry of a case."""

    name = "the case's registry"

    def __init__(self, texts: dict[str, Any]) -> None:
        self._texts = texts
        self.namespaces = tuple(sorted({reference.partition(":")[0] for reference in texts})) or ("contentId",)

    def schema(self, kind: str, schema_id: str) -> RegisteredSchema | None:
        found = self._texts.get(f"{kind}:{schema_id}")
        if isinstance(found, dict) and "$json_schema" in found:
            return RegisteredSchema(json.dumps(found["$json_schema"]), "JSON")
        return None if found is None else RegisteredSchema(json.dumps(found))

    def check(self) -> None:
        """It always answers."""


class Try:
    """A case in a lake of its own."""

    def __init__(self, spark: SparkSession, root: Path, case: dict[str, Any], settings: dict[str, Any]) -> None:
        self._spark, self._root, self._case, self._topic = spark, root, case, case["topic"]
        self._broker, self._registry = FakeBroker(), CaseRegistry(case.get("registry", {}))
        self._offsets: dict[int, int] = {}
        self._settings = patched({"quality": {"on_unusable_records": "warn"}}, settings)
        self._ms = START_MS
        self.warnings: list[str] = []

    @property
    def _config(self) -> Config:
        return Config(lake=LakeConfig(root=str(self._root)), defaults=TableConfig(**self._settings))

    def take(self, records: list[dict[str, Any]]) -> None:
        """Land the records and merge them."""
        for record in records:
            self._send(record)
        self._check(run_bronze(self._config, [self._topic], self._spark, source=self._broker, registry=self._registry))
        self._check(run_silver(self._config, [self._topic], self._spark))

    def cure(self, settings: dict[str, Any]) -> None:
        """Change settings, replay the quarantined records, and merge them."""
        self._settings = patched(self._settings, settings)
        self._check(replay_quarantined(self._config, [self._topic], self._spark, registry=self._registry))
        self._check(run_silver(self._config, [self._topic], self._spark))

    def _check(self, report: Report) -> None:
        (table,) = report.tables
        assert table.error is None, table.error
        self.warnings += table.warnings

    def _send(self, record: dict[str, Any]) -> None:
        partition = record.get("partition", 0)
        offset = record.get("offset", self._offsets.get(partition, 0))
        self._offsets[partition] = offset + 1
        self._ms += 1
        at = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=record.get("timestamp_ms", self._ms))
        headers = [(name, value.encode()) for name, value in record.get("headers", [])]
        key, value = (self._sent(record.get(side)) for side in ("key", "value"))
        self._broker.append(Record(key, value, self._topic, partition, offset, at, headers))

    def _sent(self, content: Any) -> bytes | None:
        if content is None:
            return None
        if isinstance(content, dict):
            if "$text" in content:
                return str(content["$text"]).encode()
            if "$hex" in content:
                return bytes.fromhex(content["$hex"])
            if "$avro" in content:
                schema = json.dumps(self._case["registry"][content["$avro"]])
                schema_id = int(content["$avro"].partition(":")[2]).to_bytes(4, "big")
                return b"\0" + schema_id + wire.avro(schema, content["data"])
            if "$schema" in content:
                content = {"schema": self._case["schemas"][content["$schema"]], "payload": content["payload"]}
        return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()

    def live(self, expected: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Silver's rows that are not deleted, with the expected rows' columns."""
        names = sorted({name for row in expected for name in row})
        rows = [row for row in self._rows("silver") if not row["__deleted"]]
        return _sorted([{name: _plain(_field(row, name)) for name in names} for row in rows])

    def quarantined(self) -> dict[str, str]:
        """The reasons of bronze's quarantined records."""
        return {
            f"{row['partition']}@{row['offset']}": row["error"]["message"]
            for row in self._rows("bronze")
            if row["status"] == "quarantined"
        }

    def _rows(self, layer: str) -> list[dict[str, Any]]:
        folder = self._root / layer / self._topic.replace(".", "/")
        return table_rows(str(folder)) if folder.exists() else []


@pytest.mark.parametrize(("path", "number"), TRIES)
def test_reported_case_ends_as_the_right_rows(spark: SparkSession, tmp_path: Path, path: Path, number: int) -> None:
    case = json.loads(path.read_text(encoding="utf-8"))
    expected = case["tries"][number]
    a_try = Try(spark, tmp_path, case, expected["settings"])

    for records in case["batches"]:
        a_try.take(records)
    if "cure" in expected:
        a_try.cure(expected["cure"])

    reasons = expected.get("quarantined", {})
    quarantined = a_try.quarantined()
    assert {
        at: reasons[at] if at in reasons and reasons[at] in why else why for at, why in quarantined.items()
    } == reasons
    assert a_try.live(expected["live"]) == _sorted(expected["live"])
    assert "warning" not in expected or any(expected["warning"] in warning for warning in a_try.warnings)


def _field(row: dict[str, Any], name: str) -> Any:
    if name in row or "." not in name:
        return row[name]
    struct, _, field = name.partition(".")
    return (row[struct] or {}).get(field)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(field) for name, field in value.items()}
    return value if value is None or isinstance(value, int | float | list) else str(value)


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))
