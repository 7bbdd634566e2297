"""`cdc-lake schemas` with both kinds of registry: Apicurio's own API, and its implementation of Confluent's."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from cdc_lake.cli.app import app
from cdc_lake.demo.servers.stack import Stack
from cdc_lake.errors import CdcLakeError, ConfigError, IncompatibleSchemaError, UnknownTableError

MODEL = """-- name: things
-- description: What there is.
-- keys: [id]
-- sources: {thing: shop.public.thing}
-- topic: {topic: TOPIC}
SELECT id, kind FROM thing
"""


class Desk:
    """A separate configuration file, and the command with it.

    Attributes:
        topic: a unique name.
    """

    def __init__(self, stack: Stack, kind: str, folder: Path) -> None:
        path = "/apis/ccompat/v7" if kind == "ccompat" else ""
        self.folder, self.topic = folder, f"sent-{uuid4().hex[:8]}"
        for name in ("schemas", "gold"):
            (folder / name).mkdir()
        self._file = folder / "cdc-lake.yml"
        url = f"{stack.endpoints['registry']}{path}"
        self._file.write_text(yaml.safe_dump({"registry": {"type": kind, "url": url}, "lake": {"root": "lake"}}))

    def write(self, side: str, *fields: tuple[str, Any]) -> None:
        content = {"type": "record", "name": f"x.{side}", "fields": [{"name": n, "type": t} for n, t in fields]}
        (self.folder / "schemas" / f"{self.topic}-{side}.avsc").write_text(json.dumps(content))

    def says(self, *command: str) -> str:
        result = CliRunner().invoke(app, ["schemas", *command, "--config", str(self._file)])
        if result.exception:
            raise result.exception
        return result.stdout

    def fails(self, kind: type[CdcLakeError], *command: str) -> str:
        with pytest.raises(kind) as caught:
            self.says(*command)
        return str(caught.value)


@pytest.fixture(params=["apicurio", "ccompat"])
def desk(request: pytest.FixtureRequest, stack: Stack, tmp_path: Path) -> Desk:
    return Desk(stack, request.param, tmp_path)


@pytest.mark.core
def test_hand_written_schemas_register_once_compatible(desk: Desk) -> None:
    key, value = f"{desk.topic}-key", f"{desk.topic}-value"
    desk.write("key", ("id", "int"))
    desk.write("value", ("id", "int"), ("kind", ["null", "string"]))

    assert "no such subject" in desk.says("diff")
    assert desk.says("check").count("compatible") == 2
    assert desk.says("register", value, "--level", "full").startswith(f"{value}: version 1, ")
    assert [row["version"] for row in json.loads(desk.says("register", "--json"))] == ["1", "1"]
    assert "no difference" in desk.says("diff", value)

    desk.write("value", ("id", "int"), ("kind", ["null", "int"]), ("more", "int"))
    assert json.loads(desk.says("diff", value, "--json"))[0]["changes"] == [
        "`kind` was string and is int now",
        "`more` is new, int",
    ]
    assert "`kind` was string and is int now" in desk.fails(IncompatibleSchemaError, "check", value)
    desk.fails(IncompatibleSchemaError, "register")
    desk.write("key", ("id", ["null", "int"]))
    assert "equal keys would get other bytes" in desk.fails(IncompatibleSchemaError, "check", key)

    (desk.folder / "schemas" / "wrong-value.avsc").write_text('{"type": "nothing"}')
    assert "wrong-value: the schema does not define the type" in desk.fails(
        IncompatibleSchemaError, "register", "wrong-*"
    )

    listed = {row["subject"]: row for row in json.loads(desk.says("list", "--json"))}
    assert (listed[value]["version"], listed[value]["compatibility"]) == ("1", "FULL")
    assert listed[key]["compatibility"] == "NONE"
    lines = desk.says("list").splitlines()
    assert any(line.startswith(f"{value} ") and line.split()[-1] == "FULL" for line in lines)
    assert max(map(len, lines)) <= 80
    assert json.loads(desk.says("show", value))["name"] == "x.value"
    assert json.loads(desk.says("show", value, "--version", "1", "--json"))["id"] == listed[value]["id"]
    assert "does not have version 7" in desk.fails(UnknownTableError, "show", value, "--version", "7")
    assert "set one of backward" in desk.fails(ConfigError, "register", "--level", "up")
    assert f"similar names: {key}" in desk.fails(UnknownTableError, "check", f"{desk.topic}-kye")


def test_schemas_of_a_gold_topic_follow_its_table(desk: Desk, spark: SparkSession) -> None:
    (desk.folder / "gold" / "things.sql").write_text(MODEL.replace("TOPIC", desk.topic))
    desk.fails(UnknownTableError, "check")
    write_deltalake(desk.folder / "lake" / "gold" / "things", pa.table({"id": [1], "kind": ["a"]}))

    desk.says("register")

    value = json.loads(desk.says("show", f"{desk.topic}-value"))
    assert value["doc"] == "What there is."
    assert value["fields"] == [
        {"name": "id", "type": "long"},
        {"name": "kind", "type": ["null", "string"], "default": None},
    ]
    assert [field["name"] for field in json.loads(desk.says("show", f"{desk.topic}-key"))["fields"]] == ["id"]
