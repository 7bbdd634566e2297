"""Files of a sink connector as a source: the lake equals one that was read from Kafka."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from support.events import OPTIONAL_INT, OPTIONAL_STRING, Record, Topic
from support.fakes import FakeBroker
from support.sink_files import container, write_files

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import Config, FilesConfig, LakeConfig, TableConfig
from cdc_lake.errors import ConfigError
from cdc_lake.operations.plan import plan
from cdc_lake.operations.replay import replay_quarantined
from cdc_lake.operations.seek import offset_changes
from cdc_lake.operations.status import status
from cdc_lake.runs.report import TableReport
from cdc_lake.silver.run import run_silver
from cdc_lake.sources.files import TopicFiles

COLUMNS = {"n": OPTIONAL_INT, "text": OPTIONAL_STRING}
AS_JSON = {"value": {"wire_format": "json", "columns": {"id": "int", "n": "int", "text": "string"}}}


class Landing:
    """A folder of files, and the lake that reads them."""

    def __init__(self, spark: SparkSession, root: Path, topic: Topic, **settings: Any) -> None:
        self.spark = spark
        self.topic = topic
        self.files = root / "landing"
        self.lake = root / "lake"
        (self.files / topic.table).mkdir(parents=True)
        self.config = Config(
            lake=LakeConfig(root=str(self.lake)),
            files=FilesConfig(root=str(self.files)),
            defaults=TableConfig(**settings),
        )

    def source(self) -> TopicFiles:
        return TopicFiles(str(self.files), str(self.lake), lambda: self.spark, lambda topic: self.topic.key_text)

    def write(self, *records: Record, **how: Any) -> list[Path]:
        return write_files(self.files, records, self.topic.registry, **how)

    def land(self, **flags: Any) -> TableReport:
        (report,) = run_bronze(self.config, [self.topic.table], self.spark, source=self.source(), **flags).tables
        return report

    def take(self) -> TableReport:
        landed = self.land()
        assert landed.error is None, landed.error
        (folded,) = run_silver(self.config, [self.topic.table], self.spark).tables
        assert folded.error is None, folded.error
        return landed

    def read(self, layer: str) -> list[dict[str, Any]]:
        folder = self.topic.table.replace(".", "/")
        found: list[dict[str, Any]] = DeltaTable(f"{self.lake}/{layer}/{folder}").to_pyarrow_table().to_pylist()
        return found

    def rows(self) -> set[tuple[Any, ...]]:
        """Silver without columns about Kafka."""
        names = ("id", "n", "text", "__op", "__deleted", "__source_ts_ms", "__source_position")
        return {tuple(str(row[name]) for name in names) for row in self.read("silver")}


@pytest.fixture
def landing(spark: SparkSession, tmp_path: Path) -> Landing:
    return Landing(spark, tmp_path, Topic(COLUMNS))


def history(topic: Topic, seed: int, number: int) -> list[Record]:
    """Random changes of twelve keys, each in its own partition, with tombstones after deletes."""
    rng = random.Random(seed)
    records = []
    for lsn in range(number):
        key = rng.randrange(12)
        op = rng.choice("cuuud")
        row = {"n": lsn, "text": rng.choice([None, "a", "ü\n\x01", "x" * 50])}
        records.append(topic.change(op, key, None if op == "d" else row, lsn=lsn, ts_ms=lsn, partition=key % 2))
        if op == "d":
            records.append(topic.tombstone(key, partition=key % 2))
    return records


@pytest.mark.parametrize(
    ("ending", "flat"),
    [
        *(("avro", False), ("json", True)),
        *(
            pytest.param(*one, marks=pytest.mark.deep)
            for one in (("avro", True), ("json", False), ("json.gz", True), ("parquet", False), ("parquet", True))
        ),
    ],
)
def test_records_from_files_equal_records_from_kafka(
    spark: SparkSession, tmp_path: Path, ending: str, flat: bool
) -> None:
    topic = Topic(COLUMNS, flat=flat)
    records = history(topic, 1, 60)
    more = AS_JSON if ending.startswith("json") else {}
    here = Landing(spark, tmp_path, topic, deletes={"mode": "soft"}, **more)
    here.write(*records, ending=ending)
    landed = here.take()

    broker, kafka = FakeBroker(), Landing(spark, tmp_path / "kafka", topic, deletes={"mode": "soft"})
    for record in records:
        broker.append(record)
    assert run_bronze(kafka.config, ["*"], spark, source=broker, registry=topic.registry).exit_code == 0
    assert run_silver(kafka.config, ["*"], spark).exit_code == 0
    assert here.rows() == kafka.rows()
    assert landed.rows["ok"] == landed.rows["read"]
    assert any("`in_no_file`" in warning for warning in landed.warnings)
    assert len(here.read("bronze")) == sum(record.value is not None for record in records)
    if ending in ("avro", "parquet"):
        bodies = {record.value[5:] for record in records if record.value}
        assert {row["raw_value"] for row in here.read("bronze")} == bodies
    keys = {record.key[5:] for record in records if record.key}
    assert {row["raw_key"] for row in here.read("bronze")} <= keys


def test_row_offset_is_its_number_in_a_file_split_into_pieces(spark: SparkSession, landing: Landing) -> None:
    values = [landing.topic.change("c", number, {"n": number}) for number in range(300)]
    (file,) = landing.write(*values, flush=300, name="{}+{}+{:d}.{}")
    before = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", "2000")
    try:
        assert spark.read.format("avro").load(str(file)).rdd.getNumPartitions() > 2
        landing.land()
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", before)

    places = {row["key"]: row["offset"] for row in landing.read("bronze")}
    assert places == {f'{{"id":{number}}}': number for number in range(300)}


def test_no_new_files_is_unchanged_and_new_files_continue(landing: Landing) -> None:
    topic = landing.topic
    landing.write(*(topic.change("c", number, {"n": 1}) for number in range(4)))
    first, idle = landing.take(), landing.land()
    landing.write(topic.change("u", 1, {"n": 2}, lsn=200, offset=7))
    landing.write(topic.change("c", 9, {"n": 9}, partition=3))

    second = landing.take()

    assert first.rows == {"read": 4, "ok": 4, "quarantined": 0, "control": 0}
    assert (idle.status, idle.rows) == ("unchanged", {})
    assert second.consumed_from == {"0": 4, "3": 0}
    assert second.consumed_to == {"0": 8, "3": 1}
    assert second.rows["in_no_file"] == 3  # 4, 5 and 6
    assert {row["id"]: row["n"] for row in landing.read("silver")} == {0: 1, 1: 2, 2: 1, 3: 1, 9: 9}


def test_file_names_may_contain_last_offset_in_any_folder(landing: Landing) -> None:
    topic = landing.topic
    landing.write(topic.change("c", 1), folder="year=2026/month=11", name="{0}-{1}-{2:d}-4.{3}")
    landing.write(topic.change("c", 2, offset=5), folder="")
    (landing.files / topic.table / "notes.txt").write_text("no records")
    (landing.files / topic.table / "_SUCCESS").write_text("")
    (landing.files / topic.table / "_temporary").mkdir()
    (landing.files / topic.table / "_temporary" / "part.avro").write_text("")

    landed = landing.land()

    assert landed.consumed_to == {"0": 6}
    (of_files,) = (warning for warning in landed.warnings if "files are not read" in warning)
    assert "1 files" in of_files and "notes.txt" in of_files and "_SUCCESS" not in of_files
    assert {row["key"] for row in landing.read("bronze")} == {'{"id":1}', '{"id":2}'}


def test_batches_end_at_file_boundaries(spark: SparkSession, tmp_path: Path) -> None:
    here = Landing(spark, tmp_path, Topic(COLUMNS), read={"max_records_per_batch": 15})
    here.write(*(here.topic.change("c", number) for number in range(24)), flush=6)
    here.write(*(here.topic.change("c", number) for number in range(24, 54)), flush=100)

    landed = here.land()

    rows = {row["offset"]: row["batch"] for row in here.read("bronze")}
    assert [sum(batch == number for batch in rows.values()) for number in (1, 2, 3)] == [12, 12, 30]
    assert landed.batches == 3


def test_overlapping_or_equal_first_offsets_are_refused(landing: Landing) -> None:
    topic = landing.topic
    records = [topic.change("c", number) for number in range(5)]
    (file,) = landing.write(*records)
    shutil.copy(file, file.with_name(f"{topic.table}+0+3.avro"))

    overlapping = landing.land()
    file.with_name(f"{topic.table}+0+3.avro").rename(file.with_name(f"{topic.table}+0+0.avro"))
    alike = landing.land()

    assert overlapping.error and overlapping.error.exit_code == 2
    assert f"{topic.table}+0+0000000000.avro" in overlapping.error.message
    assert "beyond the first offset of the next file" in overlapping.error.message
    assert alike.error and alike.error.exit_code == 2
    assert "begins at the same offset" in alike.error.message
    assert not (landing.lake / "bronze").exists()


def test_truncated_file_exits_10_and_is_never_half_read(landing: Landing) -> None:
    (file,) = landing.write(*(landing.topic.change("c", number) for number in range(5)))
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])

    broken = landing.land()
    behind = landing.write(landing.topic.change("c", 5))
    in_the_middle = landing.land()
    file.write_bytes(whole)
    landing.land()

    for report in (broken, in_the_middle):
        assert report.error and report.error.exit_code == 10
        assert file.name in report.error.message and "cannot be read completely" in report.error.message
    assert behind
    assert [row["offset"] for row in landing.read("bronze")] == list(range(6))


def test_schema_can_change_between_files(spark: SparkSession, tmp_path: Path) -> None:
    before = Topic(COLUMNS)
    here = Landing(spark, tmp_path, before)
    after = Topic({**COLUMNS, "more": OPTIONAL_STRING}, registry=before.registry)
    here.write(*(before.change("c", number, {"n": 1}) for number in range(5)))
    here.write(*(after.change("u", number, {"n": 2, "more": "m"}, lsn=200, offset=5 + number) for number in range(2)))

    here.take()

    rows = {row["id"]: (row["n"], row["more"]) for row in here.read("silver")}
    assert rows == {0: (2, "m"), 1: (2, "m"), 2: (1, None), 3: (1, None), 4: (1, None)}


def test_parquet_without_avro_schema_keeps_its_columns(landing: Landing) -> None:
    topic = landing.topic
    changes = (topic.change("c", 1, {"n": 1}), topic.change("u", 1, {"n": 3}, lsn=200), topic.change("d", 2))
    landing.write(*changes, ending="parquet", folder="plain")

    landing.take()

    assert {row["id"]: (row["n"], row["__op"]) for row in landing.read("silver")} == {1: (3, "u"), 2: (None, "d")}


def test_unlistable_folder_is_a_config_error(landing: Landing) -> None:
    source = TopicFiles("s4://nowhere/at/all", str(landing.lake), lambda: landing.spark)

    with pytest.raises(ConfigError, match=r"files\.root: s4://nowhere/at/all: it cannot be listed"):
        source.topics()


def test_keys_from_settings_need_no_registry(spark: SparkSession, tmp_path: Path) -> None:
    topic = Topic(COLUMNS)
    here = Landing(spark, tmp_path, topic, merge={"keys": ["id"]})
    here.write(topic.change("c", 1, {"n": 1}), topic.change("d", 2))

    report = run_bronze(here.config, ["*"], spark)

    assert report.exit_code == 0
    assert [row["key"] for row in here.read("bronze")] == ['{"id":1}', '{"id":2}']
    assert [row["raw_key"] for row in here.read("bronze")] == [None, None]


def test_rows_without_the_key_columns_exit_2(landing: Landing, tmp_path: Path) -> None:
    folder = landing.files / landing.topic.table
    schema = '{"type":"record","name":"Value","fields":[{"name":"other","type":"int"}]}'
    container(folder / f"{landing.topic.table}+0+0.avro", [{"other": 1}], schema)

    report = landing.land()

    assert report.error and report.error.exit_code == 2
    assert "has the column id, which the files' rows lack" in report.error.message


def test_invalid_json_line_is_quarantined(spark: SparkSession, tmp_path: Path) -> None:
    here = Landing(spark, tmp_path, Topic(COLUMNS), **AS_JSON)
    folder = here.files / here.topic.table
    (folder / f"{here.topic.table}+0+10.json").write_text('{"id": 1, "n": 1, "text": "a"}\n{"id": 2, "n"\n{"n": 3}\n')

    landed = here.land()

    assert (landed.rows["ok"], landed.rows["quarantined"]) == (1, 2)
    assert {row["offset"]: row["status"] for row in here.read("bronze")} == {
        10: "ok",
        11: "quarantined",
        12: "quarantined",
    }
    (again,) = replay_quarantined(here.config, ["*"], spark).tables
    assert again.error is None and again.rows == {"replayed": 0, "still_quarantined": 2}


def test_status_plan_and_seek_work_and_removed_files_exit_20(landing: Landing) -> None:
    topic, spark = landing.topic, landing.spark
    files = landing.write(*(topic.change("c", number) for number in range(10)))
    landing.take()
    landing.write(topic.change("c", 99))

    (bronze, _) = status(landing.config, ["*"], spark, source=landing.source()).tables
    planned = plan(landing.config, ["*"], spark, source=landing.source(), subjects=None).tables[0]
    (back,) = offset_changes(landing.config, ["*"], {0: 3}, spark, source=landing.source())
    for file in files:
        file.unlink()
    (landing.files / topic.table / "partition=0" / f"{topic.table}+0+0000000010.avro").rename(
        landing.files / topic.table / f"{topic.table}+0+15.avro"
    )
    lost = landing.land()

    assert (bronze.behind_records, planned.records) == (1, 1)
    assert bronze.behind_seconds is not None and bronze.behind_seconds < 300
    assert (back.offset, back.new_offset, back.landed) == (10, 3, 7)
    assert lost.error and lost.error.exit_code == 20
    assert "Kafka deleted offsets 10 to 14 before bronze read them" in lost.error.message
