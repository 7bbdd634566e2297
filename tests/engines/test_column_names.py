"""Invalid column names: their records are quarantined, and the table's other records continue."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support import wire
from support.converters import TABLE, AnyIdRegistry, Lake

from cdc_lake.config import StorageConfig

NAMES = ["", "a\0", " ,;{}()\n\t=", "two words", "\ud800", "a=b", "__key", "_hoodie_file_name"]
FORMATS = {"delta": ["a-b", "größe", "a.b", "a`b"], "hudi": ["größe"]}
"""Characters that each format allows in addition to letters, digits and `_`."""


def struct(fields: dict[str, Any], name: str = "thing.Value") -> dict[str, Any]:
    return {"type": "struct", "name": name, "fields": [{"field": key, **kind} for key, kind in fields.items()]}


def record(key: int, **columns: Any) -> bytes:
    """A row with columns of text, and of records with one field."""
    fields, text = {"id": {"type": "int32"}}, {"type": "string", "optional": True}
    for name, value in columns.items():
        fields[name] = struct(dict.fromkeys(value, text), f"Of{key}") if isinstance(value, dict) else text
    return json.dumps({"schema": struct(fields), "payload": {"id": key, **columns}}).encode()


@pytest.mark.parametrize("kind", [pytest.param("delta"), pytest.param("hudi", marks=pytest.mark.hudi)])
def test_unusable_column_names_quarantine_their_records(spark: SparkSession, tmp_path: Path, kind: Any) -> None:
    settings: dict[str, Any] = {
        "schema": {"rename": {"Unit Price": "price", "Old Note": "note"}, "exclude": ["left out"]}
    }
    lake = Lake(spark, tmp_path, AnyIdRegistry(), storage=(StorageConfig(format=kind),), **settings)
    bad = [{name: "x"} for name in NAMES] + [{"inner": {"two words": "x"}}, {"note": "x", "Old Note": "y"}]
    bad += [{name: "x"} for name in FORMATS["delta"] if name not in FORMATS[kind]]
    good = [{"note": "n"}, {"Unit Price": "5", "left out": "x"}, *({name: "x"} for name in FORMATS[kind])]
    sent = [columns for pair in zip(good, bad, strict=False) for columns in pair]
    sent += [columns for columns in good + bad if columns not in sent]
    for key, columns in enumerate(sent):
        lake.send((wire.json_record(TABLE.key, {"id": key}), []), (record(key, **columns), []))

    report = lake.land()

    assert report.error is None
    problems = lake.problems()
    assert {key for key, columns in enumerate(sent) if columns in bad} == problems.keys()
    cures = ("`schema.rename`", "`schema.exclude`", "surrogate")
    assert {key: said for key, said in problems.items() if not any(cure in said for cure in cures)} == {}
    rows = lake.fold()
    assert rows.keys() == set(range(len(sent))) - problems.keys()
    assert rows[sent.index(good[1])]["price"] == "5"
    for name in FORMATS[kind]:
        assert rows[sent.index({name: "x"})][name] == "x"
    assert lake.land().error is None
