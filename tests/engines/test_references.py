"""Ids with another meaning: the wrong kind of id, a registry that was rebuilt, another table's schema."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support import wire
from support.apicurio_server import ApicurioRegistry, ApicurioServer
from support.converters import ENVELOPE, KEY_TEXT, TABLE, VALUE_TEXT, AnyIdRegistry, Lake, event, row

from cdc_lake.storage.hadoop import HadoopFiles

OTHER = wire.Table("pagila.public.other", {"other_id": wire.INT32, "word": wire.optional(wire.STRING)}, ["other_id"])
OTHER_KEY, OTHER_VALUE = (
    wire.json_text(wire.avro_schema(schema)).decode() for schema in (OTHER.key, wire.envelope(OTHER))
)
WIDER = wire.Table(TABLE.name, {**TABLE.columns, "note": wire.optional(wire.STRING)}, ["id"])
WIDER_VALUE = wire.json_text(wire.avro_schema(wire.envelope(WIDER))).decode()
RENAMED = wire.Table(TABLE.name, {("label" if n == "name" else n): kind for n, kind in TABLE.columns.items()}, ["id"])
RENAMED_VALUE = wire.json_text(wire.avro_schema(wire.envelope(RENAMED))).decode()


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path, AnyIdRegistry())


def send(lake: Lake, key: int, key_id: int, value_id: int, text: str = VALUE_TEXT, **more: Any) -> None:
    """A created row whose schemas are named by numbers."""
    change = event("c", row(key, f"row {key}") | more, key)
    schema = {VALUE_TEXT: ENVELOPE, WIDER_VALUE: wire.envelope(WIDER)}[text]
    lake.send_numbered(key, wire.avro(text, wire.filled(schema, change)), value_id, key_id=key_id)


@pytest.mark.core
def test_schema_names_in_headers_open_no_other_file(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []
    for of_path in (HadoopFiles._fs, HadoopFiles._local):
        monkeypatch.setattr(
            HadoopFiles, of_path.__name__, lambda self, path, do=of_path: (asked.append(path), do(self, path))[1]
        )
    secret = tmp_path.parent / "secret.avsc"
    secret.write_text(VALUE_TEXT)
    lake.registry.put("contentId:1", KEY_TEXT)
    lake.registry.put("contentId:2", VALUE_TEXT)
    hostile = [
        "..",
        ".",
        "",
        "../../secret",
        str(secret.with_suffix("")),
        "%2e%2e",
        "a" * 300,
        "a\0b",
        hashlib.sha256(b"").hexdigest(),
    ]
    headers = [
        (name, text.encode()) for text in hostile for name in ("cdc_lake.value.schema", "apicurio.value.contentHash")
    ]
    headers += [("apicurio.value.artifactId", text.encode()) for text in hostile]
    for number, header in enumerate(headers):
        send(lake, 100 + number, 1, 2)
        body = wire.avro(VALUE_TEXT, wire.filled(ENVELOPE, event("c", row(number, "x"), number + 1)))
        # Apicurio's headers would count before ours.
        version = [("apicurio.value.version", b"1")] if header[0].startswith("apicurio") else []
        lake.send(wire.framed("id4", "id:1", wire.avro(KEY_TEXT, {"id": number}), "key"), (body, [header, *version]))

    report = lake.land()

    assert report.error is None
    assert report.rows == {"read": 2 * len(headers), "ok": len(headers), "quarantined": len(headers), "control": 0}
    assert [path for path in asked if not path.startswith(str(tmp_path)) or "/../" in path or path.endswith("..")] == []
    assert lake.fold().keys() == {100 + number for number in range(len(headers))}


@pytest.mark.parametrize("kind", ["contentId", "globalId"])
def test_id_kind_is_resolved_from_samples_and_kept(lake: Lake, kind: str) -> None:
    other = {"contentId": "globalId", "globalId": "contentId"}[kind]
    lake.registry.put(f"{kind}:1", KEY_TEXT)
    lake.registry.put(f"{kind}:2", VALUE_TEXT)
    lake.registry.put(f"{other}:1", OTHER_KEY)  # reads an int key to its last byte anyway
    lake.registry.put(f"{other}:2", OTHER_VALUE)
    send(lake, 1, 1, 2)

    assert lake.land().rows["quarantined"] == 0
    progress = lake.table("bronze").progress()
    assert progress is not None
    assert progress.kinds == {"key.id4": kind, "value.id4": kind}

    lake.registry.put(f"{kind}:3", WIDER_VALUE)
    lake.registry.put(f"{other}:3", OTHER_VALUE)
    send(lake, 2, 1, 3, WIDER_VALUE, note="new")
    assert lake.land().rows["quarantined"] == 0
    assert {key: (r["name"], r["note"]) for key, r in lake.fold().items()} == {1: ("row 1", None), 2: ("row 2", "new")}


def test_id_of_own_schemas_in_both_kinds_is_resolved_by_bytes(lake: Lake) -> None:
    lake.registry.put("contentId:1", KEY_TEXT)
    lake.registry.put("globalId:1", KEY_TEXT)
    lake.registry.put("contentId:2", WIDER_VALUE)
    lake.registry.put("globalId:2", VALUE_TEXT)
    send(lake, 1, 1, 2)

    assert lake.land().rows["quarantined"] == 0
    assert lake.table("bronze").progress().kinds == {"value.id4": "globalId"}  # type: ignore[union-attr]
    assert lake.fold()[1]["name"] == "row 1"


def test_id_with_ambiguous_columns_is_quarantined(lake: Lake) -> None:
    lake.registry.put("contentId:1", KEY_TEXT)
    lake.registry.put("contentId:2", VALUE_TEXT)
    lake.registry.put("globalId:2", RENAMED_VALUE)
    send(lake, 1, 1, 2)

    lake.land()

    assert lake.problems() == {
        0: "value: schema id 2 is a schema of this topic as contentId and as globalId: set `registry.ids`"
    }


Changed = tuple[dict[int, str], dict[int, Any]]


@pytest.fixture(scope="module")
def changed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Changed:
    """The reasons of quarantine, and silver's rows, of a lake whose ids changed their meaning."""
    lake = Lake(spark, tmp_path_factory.mktemp("changed"), AnyIdRegistry())
    lake.registry.put("contentId:1", KEY_TEXT)
    for number in (2, 3, 4):
        lake.registry.put(f"contentId:{number}", VALUE_TEXT)
        send(lake, number, 1, number)
    assert lake.land().rows["quarantined"] == 0
    lake.registry.put("contentId:2", RENAMED_VALUE)
    send(lake, 5, 1, 2)  # 3
    lake.registry.put("contentId:3", VALUE_TEXT.replace('"type":"record"', '"doc":"x","type":"record"', 1))
    send(lake, 6, 1, 3)  # 4
    lake.registry.put("contentId:9", OTHER_KEY)
    lake.registry.put("globalId:9", KEY_TEXT)
    send(lake, 7, 9, 4)  # 5
    assert lake.land().error is None
    return lake.problems(), lake.fold()


def test_other_tables_schema_is_quarantined_even_if_it_decodes(
    changed: Changed,
) -> None:
    problems, rows = changed

    assert problems[5].startswith(
        "key: schema id 9 is the schema `pagila.public.other.Key`, which belongs to another topic"
    )
    assert 7 not in rows


@pytest.mark.core
def test_id_with_two_fitting_meanings_is_quarantined(changed: Changed) -> None:
    problems, rows = changed

    assert problems[3] == "value: the reference has had several schemas, and not exactly one of them fits the bytes"
    assert 5 not in rows


def test_id_changed_only_in_docs_is_read_after_registry_rebuild(changed: Changed) -> None:
    problems, rows = changed

    assert problems.keys() == {3, 5}
    assert rows.keys() == {2, 3, 4, 6}


def test_topic_without_own_schema_name_adopts_its_first_names(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, AnyIdRegistry(), envelope={"record_names": ("pagila.public.thi*",)})
    lake.registry.put("contentId:1", KEY_TEXT.replace("public.thing", "routed.from"))
    lake.registry.put("contentId:2", VALUE_TEXT.replace("public.thing", "routed.from"))
    lake.registry.put("contentId:3", KEY_TEXT.replace("public.thing", "routed.later"))
    lake.registry.put("contentId:4", KEY_TEXT.replace("public.thing", "public.thief"))
    send(lake, 1, 1, 2)
    assert lake.land().rows["quarantined"] == 0
    progress = lake.table("bronze").progress()
    assert progress is not None
    assert progress.owners == dict.fromkeys(("key", "value"), ("pagila.routed.from",))

    send(lake, 2, 3, 2)
    send(lake, 3, 4, 2)

    assert lake.land().rows["quarantined"] == 1
    assert "`pagila.routed.later.Key`, which belongs to another topic" in lake.problems()[1]
    assert set(lake.fold()) == {1, 3}


@pytest.fixture(params=[AnyIdRegistry, pytest.param(ApicurioRegistry, marks=pytest.mark.deep)])
def wiped(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    """A lake with the fake registry, and one with a separate Apicurio."""
    if request.param is AnyIdRegistry:
        yield Lake(spark, tmp_path, AnyIdRegistry())
        return
    folder = tmp_path / "apicurio"
    folder.mkdir()
    with ApicurioServer(folder) as server:
        yield Lake(spark, tmp_path / "lake", ApicurioRegistry(server))


def test_wiped_and_refilled_registry_is_detected_not_misread(wiped: Lake) -> None:
    """Ids are used again: old and new records are in one batch, and one id is looked up for the first time."""
    wiped.registry.put("contentId:1", KEY_TEXT)
    wiped.registry.put("contentId:2", VALUE_TEXT)
    send(wiped, 1, 1, 2)
    wiped.land()

    send(wiped, 2, 1, 2)
    wiped.registry.wipe()
    wiped.registry.put("contentId:1", OTHER_KEY)
    wiped.registry.put("contentId:2", WIDER_VALUE)
    wiped.registry.put("contentId:3", KEY_TEXT)
    wiped.registry.put("contentId:4", OTHER_VALUE)
    send(wiped, 3, 3, 2, WIDER_VALUE, note="new")
    send(wiped, 4, 1, 4)  # an old id that was never looked up, and is now another table's

    wiped.land()

    assert set(wiped.problems()) == {3}
    assert "`pagila.public.other.Envelope`, which belongs to another topic" in wiped.problems()[3]
    assert {(r["id"], r["name"], r["note"]) for r in wiped.fold().values()} == {
        (1, "row 1", None),
        (2, "row 2", None),
        (3, "row 3", "new"),
    }
