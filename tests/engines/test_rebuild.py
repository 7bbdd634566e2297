"""`cdc-lake rebuild`: silver from bronze, compared with the table and replaced in one commit."""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from support import wire
from support.converters import TABLE, AnyIdRegistry, Lake, event, life, row
from support.copies import copied
from support.schema_changes import text_of
from support.setting_groups import patched
from support.terminal import Terminal

from cdc_lake.cli.app import execute
from cdc_lake.columns import BATCH
from cdc_lake.config import Config, LakeConfig, TableConfig
from cdc_lake.failpoints import VARIABLE
from cdc_lake.lake.side import SideTable
from cdc_lake.operations.rebuild import RebuildOptions, run_rebuild
from cdc_lake.operations.replay import replay_quarantined
from cdc_lake.points import Offset
from cdc_lake.runs.report import TableReport
from cdc_lake.silver.run import run_silver

FOLDER = TABLE.name.replace(".", "/")
TEXT, NUMBER = (
    wire.Table(TABLE.name, {"id": wire.INT32, "n": wire.optional(kind)}, ["id"]) for kind in (wire.STRING, wire.INT32)
)
TABLES = {20: TABLE, 21: TEXT, 22: NUMBER}


class RebuildLake:
    """A lake of one table, whose columns have two kinds in turn."""

    def __init__(self, spark: SparkSession, root: Path, **settings: Any) -> None:
        self.spark, self.root, self._settings = spark, root, settings
        self.registry = AnyIdRegistry()
        self.texts = {number: text_of(wire.envelope(table)) for number, table in TABLES.items()}
        self.registry.put("contentId:10", text_of(TABLE.key))
        self.lake = Lake(spark, root, self.registry, **settings)

    def knows(self, *ids: int) -> None:
        """Register these value schemas."""
        for number in ids:
            self.registry.put(f"contentId:{number}", self.texts[number])

    def send(self, key: int, value: Any, value_id: int = 20) -> None:
        schema = wire.envelope(TABLES[value_id])
        body = wire.avro(self.texts[value_id], wire.filled(schema, value)) if value else None
        self.lake.send_numbered(key, body, value_id, key_id=10)

    def config(self, **more: Any) -> Config:
        return Config(lake=LakeConfig(root=str(self.root)), defaults=TableConfig(**patched(self._settings, more)))

    def fold(self, **more: Any) -> None:
        """Land and fold the new records."""
        self.lake.land()
        (report,) = run_silver(self.config(**more), [TABLE.name], self.spark).tables
        assert report.error is None, report.error

    def rebuild(self, asked: RebuildOptions | None = None, **more: Any) -> TableReport:
        (report,) = run_rebuild(self.config(**more), [TABLE.name], self.spark, options=asked).tables
        return report

    def rows(self) -> dict[int, dict[str, Any]]:
        """Silver without the commit numbers, read by delta-rs."""
        found = DeltaTable(f"{self.root}/silver/{FOLDER}").to_pyarrow_table().to_pylist()
        return {one["id"]: {name: value for name, value in one.items() if name != BATCH} for one in found}

    def remembered(self) -> set[Any]:
        """The side table's entries at the pin of silver's newest commit."""
        progress = self.lake.table("silver").progress()
        assert progress is not None
        entries = SideTable(self.spark, f"{self.root}/side/{FOLDER}").read(progress.side).drop(BATCH, "at_ms")
        return {str(entry) for entry in entries.collect()}


@pytest.fixture(scope="module")
def lived(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> RebuildLake:
    """Two lifetimes of five keys each, folded one after the other; hard deletes."""
    place = RebuildLake(spark, tmp_path_factory.mktemp("lived"), deletes={"mode": "hard"})
    place.knows(20)
    for start in (0, 100):
        for key, value in life(start):
            place.send(key, value)
        place.fold()
    return place


@pytest.fixture
def place(lived: RebuildLake, tmp_path: Path) -> RebuildLake:
    return copied(lived, tmp_path / "lake")


def test_rebuild_keeps_correct_rows_and_repairs_wrong_ones(place: RebuildLake) -> None:
    rows, remembered = place.rows(), place.remembered()
    assert rows and remembered
    path = f"{place.root}/silver/{FOLDER}"
    table = DeltaTable(path)
    table.delete("id = 1")
    table.update(predicate="id = 2", new_values={"name": "'wrong'"})
    stored = DeltaTable(path).to_pyarrow_table()
    strange = stored.slice(0, 1).to_pylist()[0] | {"id": 77}
    write_deltalake(path, pa.Table.from_pylist([strange], schema=stored.schema), mode="append")
    versions = DeltaTable(path).version()

    shown = place.rebuild(RebuildOptions(is_dry=True))

    assert shown.rows == {"same": len(rows) - 2, "changed": 1, "only_before": 1, "only_after": 1}
    assert shown.examples == {"changed": ['{"id":2}'], "only_before": ['{"id":77}'], "only_after": ['{"id":1}']}
    assert shown.version_before == shown.version_after == DeltaTable(path).version() == versions

    rebuilt = place.rebuild()

    assert (rebuilt.status, rebuilt.rows, rebuilt.examples) == ("ok", shown.rows, shown.examples)
    assert (place.rows(), place.remembered()) == (rows, remembered)
    assert DeltaTable(path).version() == versions + 1
    assert 77 in [one["id"] for one in DeltaTable(path, version=versions).to_pyarrow_table().to_pylist()]
    place.send(2, event("u", row(2, "later"), 9_000))
    place.fold()
    assert place.rows()[2]["name"] == "later"


def command(place: RebuildLake, *flags: str) -> int:
    """`cdc-lake rebuild`; its exit code."""
    settings = place.root.parent / "lake.yml"
    settings.write_text(place.config().model_dump_json(include={"lake", "defaults"}))
    with pytest.raises(SystemExit) as ended:
        execute("rebuild", "--table", TABLE.name, "--config", str(settings), *flags)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def damaged(place: RebuildLake) -> DeltaTable:
    """Change silver to a value that bronze does not have."""
    silver = DeltaTable(f"{place.root}/silver/{FOLDER}")
    silver.update(predicate="id = 2", new_values={"name": "'wrong'"})
    return silver


@pytest.mark.core
def test_rebuild_asks_and_writes_what_it_showed(
    place: RebuildLake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, wrong = place.rows(), damaged(place)
    refused = Terminal("n")
    monkeypatch.setattr(sys, "stdin", refused)

    assert (command(place), refused.is_asked) == (0, True)
    said = capsys.readouterr().out
    assert "1 changed" in said and 'changed: {"id":2}' in said
    assert said.index("1 changed") < said.index("Replace this table? [y/N]")
    assert DeltaTable(wrong.table_uri).version() == wrong.version()

    # Records that land while the command asks were not shown, so the rebuilt table does not have them.
    place.send(101, event("u", row(101, "later"), 9_000))
    monkeypatch.setattr(sys, "stdin", Terminal("y", place.lake.land))
    assert command(place, "--json") == 0
    out, err = capsys.readouterr()
    assert "1 changed" in err and "Replace this table?" in err
    (report,) = json.loads(out)["tables"]
    assert (report["status"], report["rows"]["changed"], report["version_before"]) == ("ok", 1, wrong.version())
    assert place.rows() == rows
    place.fold()
    assert place.rows()[101]["name"] == "later"


def test_without_terminal_rebuild_shows_and_needs_yes(
    place: RebuildLake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, wrong = place.rows(), damaged(place)
    never_asked = Terminal("n")
    never_asked.isatty = lambda: False  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", never_asked)

    assert command(place) == 2
    out, err = capsys.readouterr()
    assert "1 changed" in out
    assert "--yes: nothing was changed, because there is no terminal to confirm on" in err
    assert command(place, "--dry-run") == 0
    assert DeltaTable(wrong.table_uri).version() == wrong.version()

    assert command(place, "--yes") == 0
    assert (place.rows(), never_asked.is_asked) == (rows, False)
    assert command(place, "--yes", "--dry-run") == 2
    capsys.readouterr()
    assert command(place, "--json") == 0
    out, err = capsys.readouterr()
    assert "No row differs, so nothing was changed" in err and not json.loads(out)["tables"][0]["batches"]


def test_silver_changed_since_shown_is_not_rebuilt(
    place: RebuildLake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    silver = damaged(place)
    monkeypatch.setattr(sys, "stdin", Terminal("y", lambda: damaged(place)))

    assert command(place) == 40

    assert "silver has changed since the differences were shown; nothing was written" in capsys.readouterr().err
    assert DeltaTable(silver.table_uri).version() == silver.version() + 1, "only the other program has written"


@pytest.mark.parametrize(
    "point",
    [
        "after_side",
        *(pytest.param(one, marks=pytest.mark.deep) for one in ("after_compare", "after_overwrite", "before_report")),
    ],
)
def test_rebuild_that_fails_anywhere_leaves_a_usable_table(
    place: RebuildLake, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    rows = place.rows()
    DeltaTable(f"{place.root}/silver/{FOLDER}").update(predicate="id = 2", new_values={"name": "'wrong'"})
    wrong = place.rows()
    monkeypatch.setenv(VARIABLE, f"rebuild.{point}:raise")

    if point == "before_report":
        with pytest.raises(Exception, match="before_report"):
            place.rebuild()
    else:
        assert place.rebuild().error is not None

    monkeypatch.delenv(VARIABLE)
    assert place.rows() == (wrong if point in ("after_compare", "after_side") else rows)
    place.send(101, event("u", row(101, "later"), 9_000))
    place.fold()
    again = place.rebuild()
    assert (again.error, again.rows["only_before"], again.rows["only_after"]) == (None, 0, 0)
    assert place.rows() == {**rows, 101: place.rows()[101]}
    assert place.rows()[101]["name"] == "later"


@pytest.mark.deep
def test_rebuild_until_an_offset_continues_from_there(place: RebuildLake) -> None:
    rows, remembered = place.rows(), place.remembered()

    report = place.rebuild(RebuildOptions(until=Offset({0: 8})))

    assert report.error is None
    assert report.rows["only_before"] == len([key for key in rows if key >= 100])
    assert place.rows() == {key: one for key, one in rows.items() if key < 100}
    place.fold()
    assert (place.rows(), place.remembered()) == (rows, remembered)


@pytest.mark.core
def test_rebuild_without_full_history_is_refused_unless_seeded(place: RebuildLake, spark: SparkSession) -> None:
    rows = place.rows()
    spark.sql(f"DELETE FROM delta.`{place.root}/bronze/{FOLDER}` WHERE batch = 1").collect()
    place.send(1, event("u", row(1, "later"), 9_000))
    place.fold()

    refused = place.rebuild()

    assert refused.error is not None
    assert (refused.error.code, refused.error.exit_code) == ("CDC-400", 20)
    number = len([key for key in rows if key < 100])
    assert f"the complete history of {number} silver rows" in refused.error.message
    before = place.rows()
    seeded = place.rebuild(RebuildOptions(is_seeded=True))
    assert (seeded.error, seeded.rows["changed"], seeded.rows["only_before"]) == (None, 0, 0)
    assert place.rows() == before
    assert before[1]["name"] == "later"


@pytest.mark.deep
def test_columns_keep_their_names_in_any_order_of_first_use(spark: SparkSession, tmp_path: Path) -> None:
    place = RebuildLake(spark, tmp_path)
    place.knows(22)
    place.send(1, event("c", {"id": 1, "n": "text"}, 1), 21)
    place.send(2, event("c", {"id": 2, "n": 7}, 2), 22)
    place.fold()
    place.knows(21)
    replay_quarantined(place.config(), [TABLE.name], spark, registry=place.registry)
    place.fold()
    rows = place.rows()
    assert [(one["n"], one["n__string"]) for one in (rows[1], rows[2])] == [(None, "text"), (7, None)]

    report = place.rebuild()

    assert report.rows == {"same": 2, "changed": 0, "only_before": 0, "only_after": 0}
    assert place.rows() == rows
    left_out = place.rebuild(schema={"exclude": ["n"]})
    assert left_out.rows["changed"] == 2
    assert not {"n", "n__string"} & place.rows()[1].keys()
