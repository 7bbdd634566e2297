"""A changed primary key: the run stops and names a command, which rebuilds silver with the new key."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from conformance.by_lake import table_rows
from pyspark.sql import SparkSession
from support.events import OPTIONAL_STRING, START_MS, Record, Topic
from support.fakes import FakeBroker
from support.terminal import Terminal

from cdc_lake.bronze.run import run_bronze
from cdc_lake.cli.app import execute
from cdc_lake.config import TABLE_TYPES, Config, LakeConfig, TableConfig
from cdc_lake.errors import TimeTravelError
from cdc_lake.operations.plan import plan
from cdc_lake.operations.rebuild import RebuildOptions, run_rebuild
from cdc_lake.operations.story import story
from cdc_lake.operations.time_travel import read
from cdc_lake.points import Offset
from cdc_lake.runs.context import lake_of
from cdc_lake.runs.report import TableReport
from cdc_lake.silver.run import run_silver

REGION = {"id": "int", "region": "string"}


class KeyChangeLake:
    """A lake whose table changes its primary key from `id` to `id` and `region`. Two partitions."""

    def __init__(self, spark: SparkSession, root: Path, **settings: Any) -> None:
        self._spark, self.broker, self._lsn = spark, FakeBroker(), 0
        self.by_id = Topic({"region": OPTIONAL_STRING, "text": OPTIONAL_STRING})
        self.by_region = Topic({"text": OPTIONAL_STRING}, keys=REGION, registry=self.by_id.registry)
        self.config = Config(lake=LakeConfig(root=str(root)), defaults=TableConfig(**settings))
        self.targets = lake_of(self.config).silver(self.by_id.table)
        self.position = {0: 0, 1: 0}

    def send(self, op: str, key: int, region: str | None = None, text: str | None = None) -> None:
        """A change with the old key."""
        self.append(self.by_id, op, key, {"region": region, "text": text}, key % 2)

    def send_new(self, op: str, key: int, region: str, text: str | None = None, **more: Any) -> None:
        """A change with the new key."""
        self.append(self.by_region, op, {"id": key, "region": region}, {"text": text}, (key + 1) % 2, **more)

    def append(self, topic: Topic, op: str, key: Any, after: dict[str, Any], partition: int, **more: Any) -> None:
        self._lsn += 1
        at_ms = START_MS + self._lsn
        said = {"lsn": self._lsn, "ts_ms": at_ms, "partition": partition, "offset": self.position[partition]}
        sent: Record = topic.change(op, key, after, timestamp_ms=at_ms, **said, **more)
        self.position[partition] += 1
        self.broker.append(sent)

    def land(self) -> None:
        topic = self.by_id
        report = run_bronze(self.config, [topic.table], self._spark, source=self.broker, registry=topic.registry)
        assert report.exit_code == 0

    def fold(self) -> list[TableReport]:
        self.land()
        return list(run_silver(self.config, [self.by_id.table], self._spark).tables)

    def rows(self) -> list[list[tuple[int, str, str | None, bool]]]:
        """The rows of each of silver's tables, read by other readers."""
        names = ("id", "region", "text", "__deleted")
        return [sorted(tuple(row[name] for name in names) for row in table_rows(one.path)) for one in self.targets]


def run_command(error: str, config: Config, tmp_path: Path, *flags: str) -> int:
    """Run the command that an error names, on a terminal, and confirm it."""
    (command,) = re.findall(r"`cdc-lake (.*?)`", error)
    settings = tmp_path / "lake.yml"
    settings.write_text(config.model_dump_json(include={"lake", "defaults"}))
    with pytest.MonkeyPatch.context() as patched, pytest.raises(SystemExit) as ended:
        patched.setattr(sys, "stdin", Terminal("y"))
        execute(*shlex.split(command), *flags, "--config", str(settings))
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.hudi
def test_key_change_error_names_the_command_that_rebuilds(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = KeyChangeLake(spark, tmp_path / "lake", storage=(TABLE_TYPES["delta"], TABLE_TYPES["hudi-mor"]))
    for key in (1, 2, 3, 4):
        place.send("c", key, "north", f"old {key}")
    assert [table_report.error for table_report in place.fold()] == [None] * 2
    place.send("d", 3, "north")
    place.send_new("u", 1, "north", "new 1")
    failed = place.fold()
    assert {
        table_report.error and (table_report.error.code, table_report.error.exit_code) for table_report in failed
    } == {("CDC-203", 2)}
    errors = [table_report.error.message for table_report in failed if table_report.error]
    assert "its primary key was id int and now is id int, region string" in errors[0]
    assert f"`cdc-lake rebuild --table {place.by_id.table} --key-from id,region`" in errors[0]
    (refused, *_) = [one.refused for one in plan(place.config, ["*"], spark, source=place.broker).tables if one.refused]
    assert "--key-from id,region`" in refused[0]
    before = place.rows()
    capsys.readouterr()

    # Without the snapshot, no event has the new key of 2 and 4.
    assert run_command(errors[0], place.config, tmp_path) == 20
    said = "bronze has no complete event with the new key for 3 silver rows, such as "
    assert f'{said}{{"id":1}}, {{"id":2}}, {{"id":4}}' in capsys.readouterr().err
    assert run_command(errors[0], place.config, tmp_path, "--dry-run", "--json") == 0
    (shown,) = json.loads(capsys.readouterr().out.splitlines()[-1])["tables"]
    assert shown["rows"] == {"same": 0, "changed": 1, "only_before": 3, "only_after": 0, "without_event": 3}
    assert place.rows() == before

    for key in (1, 2, 4):
        place.send_new("r", key, "north", f"snapshot {key}", snapshot="incremental")
    place.send_new("c", 1, "south", "another 1")
    place.land()
    assert [run_command(error, place.config, tmp_path) for error in errors] == [0, 0]
    whole = [(1, "north", "snapshot 1", False), (1, "south", "another 1", False)]
    whole += [(key, "north", f"snapshot {key}", False) for key in (2, 4)]
    assert place.rows() == [whole] * 2

    # Later runs use it: a change, and a rebuild.
    place.send_new("d", 1, "south")
    assert [table_report.error for table_report in place.fold()] == [None] * 2
    whole[1] = (1, "south", "another 1", True)
    assert place.rows() == [whole] * 2
    report = run_rebuild(place.config, [place.by_id.table], spark)
    assert [table_report.rows for table_report in report.tables] == [
        {"same": 4, "changed": 0, "only_before": 0, "only_after": 0}
    ]
    events = story(place.config, place.by_id.table, "id=1,region=north", spark).events
    assert [(one.op, one.verdict) for one in events] == [("u", "counts"), ("r", "decides")]

    # A point before the change has the old key; points at which only a part has the new key are rejected.
    by_id = read(place.config, place.by_id.table, spark, as_of=Offset({0: 2, 1: 2})).collect()
    assert sorted((row["id"], row["text"]) for row in by_id) == [(key, f"old {key}") for key in (1, 2, 3, 4)]
    with pytest.raises(
        TimeTravelError, match=r"its primary key changed, and [0-9]+ events of its rows with the new key are after "
    ):
        read(place.config, place.by_id.table, spark, as_of=Offset({0: 4, 1: 3}))
    assert read(place.config, place.by_id.table, spark, as_of=Offset(place.position)).count() == 4


def test_key_change_before_silver_creates_table_with_new_key(spark: SparkSession, tmp_path: Path) -> None:
    place = KeyChangeLake(spark, tmp_path / "lake")
    place.send("c", 1, "north", "old")
    place.send_new("r", 1, "north", "by region")
    place.send("u", 1, "north", "by id again")
    (failed,) = place.fold()
    assert failed.error
    assert "its primary key was id int, region string and now is id int;" in failed.error.message

    assert run_command(failed.error.message, place.config, tmp_path) == 0

    assert place.rows() == [[(1, "north", "by id again", False)]]
    wrong = run_rebuild(place.config, ["*"], spark, options=RebuildOptions(key=("id", "region"))).tables[0]
    assert wrong.error
    assert (
        "--key-from id,region: the newest key of pagila.public.thing is id; name these columns" in wrong.error.message
    )


def test_new_key_missing_in_silver_is_found_by_the_old_key(spark: SparkSession, tmp_path: Path) -> None:
    place = KeyChangeLake(spark, tmp_path / "lake", deletes={"mode": "hard"})
    uid = Topic({"id": "int", "text": OPTIONAL_STRING}, keys={"uid": "string"}, registry=place.by_id.registry)
    for key in (1, 2):
        place.send("c", key, "north", "old")
    place.fold()
    place.append(uid, "r", {"uid": "a"}, {"id": 1, "text": "new"}, 0)
    place.land()
    asked = RebuildOptions(key=("uid",))

    refused = run_rebuild(place.config, ["*"], spark, options=asked).tables[0]
    options = RebuildOptions(key=("uid",), accepts_loss=True)
    left_out = run_rebuild(place.config, ["*"], spark, options=options).tables[0]

    assert refused.error
    assert 'bronze has no complete event with the new key for 1 silver rows, such as {"id":2};' in (
        refused.error.message
    )
    assert (left_out.error, left_out.rows["without_event"], left_out.examples["without_event"]) == (
        None,
        1,
        ['{"id":2}'],
    )
    assert [(row["uid"], row["id"], row["text"]) for row in table_rows(place.targets[0].path)] == [("a", 1, "new")]
    place.append(uid, "u", {"uid": "a"}, {"id": 1, "text": "later"}, 0)
    assert [report.error for report in place.fold()] == [None]
    assert [(row["uid"], row["text"]) for row in table_rows(place.targets[0].path)] == [("a", "later")]

    # The column of the old key, by which Delta skipped files, is dropped.
    code = Topic({"text": OPTIONAL_STRING}, keys={"code": "boolean"}, registry=place.by_id.registry)
    place.append(code, "r", {"code": True}, {"text": "by code"}, 0)
    place.land()
    (report,) = run_rebuild(place.config, ["*"], spark, options=RebuildOptions(key=("code",), accepts_loss=True)).tables
    assert (report.error, report.examples["without_event"]) == (None, ['{"uid":"a"}'])
    assert [(row["code"], row["text"]) for row in table_rows(place.targets[0].path)] == [(True, "by code")]
