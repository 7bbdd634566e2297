"""New schema ids without changes of columns, and invalid names: the cases N8, N9 and N13."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support import wire
from support.converters import KEY_TEXT, TABLE, AnyIdRegistry, Lake, event


def table(**columns: wire.Schema) -> wire.Table:
    return wire.Table(TABLE.name, {"id": wire.INT32, **columns}, ["id"])


def text_of(of: wire.Table) -> str:
    return wire.json_text(wire.avro_schema(wire.envelope(of))).decode()


def send(lake: Lake, value_id: int, of: wire.Table, row: Mapping[str, Any], text: str | None = None) -> None:
    """A created row, written with a table's schema or with another text of the same layout."""
    schema = wire.envelope(of)
    body = wire.avro(text_of(of), wire.filled(schema, event("c", dict(row), row["id"])))
    lake.registry.put(f"contentId:{value_id}", text or text_of(of))
    lake.send_numbered(row["id"], body, value_id)


def registry() -> AnyIdRegistry:
    found = AnyIdRegistry()
    found.put("contentId:1", KEY_TEXT)
    return found


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path, registry())


def silver(lake: Lake) -> tuple[dict[int, Any], Any]:
    """Rows by key, and the columns."""
    assert lake.land().rows["quarantined"] == 0, lake.problems()
    return lake.fold(), lake.table("silver").read().schema


ADJUSTED = ("Order_Date", "Order_u002dDate")
"""Names in `field.name.adjustment.mode` avro, and avro_unicode."""


def test_new_enum_value_is_text_and_names_stay_as_sent(lake: Lake) -> None:
    """Cases N8 and N13."""
    named = dict.fromkeys(ADJUSTED, wire.optional(wire.STRING))
    few, more = (
        table(mood=wire.optional(wire.enum(*moods)), **named) for moods in (("sad", "ok"), ("sad", "ok", "happy"))
    )
    send(lake, 2, few, {"id": 1, "mood": "ok", **dict.fromkeys(ADJUSTED, "x")})
    before, columns = silver(lake)
    send(lake, 3, more, {"id": 2, "mood": "happy"})
    send(lake, 2, few, {"id": 3, "mood": "sad"})  # a task that still has the old schema

    rows, after = silver(lake)

    assert {key: row["mood"] for key, row in rows.items()} == {1: "ok", 2: "happy", 3: "sad"}
    assert [before[1][name] for name in ADJUSTED] == ["x", "x"]
    assert after == columns
    assert after["mood"].dataType.simpleString() == "string"


def test_n9_column_comment_is_a_new_id_and_changes_no_table(lake: Lake) -> None:
    of = table(name=wire.optional(wire.STRING))
    commented = text_of(of).replace('"name":"name"', '"doc":"what it is called","name":"name"')
    assert commented != text_of(of)
    send(lake, 2, of, {"id": 1, "name": "before"})
    _, columns = silver(lake)
    version = lake.table("silver").version()
    send(lake, 3, of, {"id": 2, "name": "after"}, commented)

    rows, after = silver(lake)

    assert {key: row["name"] for key, row in rows.items()} == {1: "before", 2: "after"}
    assert after == columns
    assert lake.table("silver").version() == version + 1
    assert len({row["value_schema"] for row in lake.bronze()}) == 2


BAD_NAMES = ("Order-Date", "1st")
"""Names with `field.name.adjustment.mode=none`."""


Misnamed = tuple[dict[int, str], dict[int, Any]]


@pytest.fixture(scope="module")
def misnamed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Misnamed:
    """By offset: the reason of quarantine; and silver's rows, for a record with each bad name, one whose names differ
    only in case, one whose name has letters outside ASCII, and a good one.
    """
    lake = Lake(spark, tmp_path_factory.mktemp("misnamed"), registry())
    of = table(Order_Date=wire.optional(wire.STRING))
    for place, name in enumerate(BAD_NAMES):
        send(lake, 10 + place, of, {"id": 1, "Order_Date": "x"}, text_of(of).replace("Order_Date", name))
    twins = table(Order_Date=wire.optional(wire.STRING), order_date=wire.optional(wire.STRING))
    send(lake, 20, twins, {"id": 1, "Order_Date": "x", "order_date": "y"})
    send(lake, 21, of, {"id": 2, "Order_Date": "y"})
    send(lake, 22, of, {"id": 3, "Order_Date": "z"}, text_of(of).replace("Order_Date", "größe"))
    assert lake.land().rows["quarantined"] == len(BAD_NAMES) + 1
    return lake.problems(), lake.fold()


@pytest.mark.parametrize("name", BAD_NAMES)
def test_n13_invalid_avro_name_quarantines_and_is_named(misnamed: Misnamed, name: str) -> None:
    problems, _ = misnamed

    said = f"`{name}` is not a valid Avro name; set field.name.adjustment.mode=avro"
    assert said in problems[BAD_NAMES.index(name)]


def test_n13_names_differing_only_in_case_quarantine_records(misnamed: Misnamed) -> None:
    problems, _ = misnamed

    assert "`order_date` differs from `Order_Date` in upper and lower case only" in problems[len(BAD_NAMES)]


def test_n13_records_with_valid_names_land(misnamed: Misnamed) -> None:
    _, rows = misnamed

    assert {key: (row["Order_Date"], row["größe"]) for key, row in rows.items()} == {2: ("y", None), 3: (None, "z")}
