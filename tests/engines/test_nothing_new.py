"""Runs without new records end without Spark, but only if cdc_lake wrote the newest commit of each table."""

import shutil
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from support.events import OPTIONAL_INT, Topic
from support.fakes import FakeBroker

from cdc_lake.bronze.run import run_bronze
from cdc_lake.config import CatalogConfig, Config, GoldConfig, LakeConfig, StorageConfig, TableConfig
from cdc_lake.gold.run import run_gold
from cdc_lake.lake import lake as lake_module
from cdc_lake.lake import readers as readers_module
from cdc_lake.operations import status as status_module
from cdc_lake.operations.status import status
from cdc_lake.runs import scheduler as turns
from cdc_lake.runs.context import lake_of
from cdc_lake.runs.report import Report
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.silver.run import run_silver
from cdc_lake.spark.session import lake_files
from cdc_lake.storage.files import LocalFiles
from cdc_lake.storage.hadoop import HadoopFiles
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.newest import commit_ms_after, newest_commit
from cdc_lake.tables.progress import BronzeProgress, SilverProgress

MODEL = """\
-- name: total
-- keys: [one]
-- sources: {{thing: {table}, twin: {table}}}
SELECT 1 AS one, (SELECT sum(n) FROM thing) + (SELECT count(*) FROM twin) AS n
"""
FORMATS = (
    StorageConfig(properties={"delta.checkpointInterval": "2"}),
    StorageConfig(format="hudi", type="cow", table_version=6),
    StorageConfig(format="hudi", type="mor", properties={"hoodie.compact.inline.max.delta.commits": "1"}),
)
LAYERS = ("bronze", "silver", "gold")


class Lake:
    """A topic's tables in all formats, a gold model of them, and runs of each layer."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.root = root
        self.topic = Topic({"n": OPTIONAL_INT})
        self.broker = FakeBroker()
        (root / "models").mkdir()
        (root / "models" / "total.sql").write_text(MODEL.format(table=self.topic.table))
        self.config = Config(
            lake=LakeConfig(root=str(root / "lake")),
            gold=GoldConfig(models=str(root / "models")),
            defaults=TableConfig(storage=FORMATS),
        )
        self._spark = spark

    def run(self, layer: str, config: Config | None = None, *, spark: bool = True) -> Report:
        """One run; without an existing session it would have to create one."""
        config, session = config or self.config, self._spark if spark else None
        if layer == "gold":
            return run_gold(config, ["*"], scheduler=TableScheduler(spark=session))
        if layer == "silver":
            return run_silver(config, ["*"], scheduler=TableScheduler(spark=session))
        more: dict[str, Any] = {"source": self.broker, "registry": self.topic.registry}
        return run_bronze(config, ["*"], scheduler=TableScheduler(spark=session), **more)


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(spark, tmp_path_factory.mktemp("lake"))
    for number in range(3):
        for key in range(2):
            lake.broker.append(lake.topic.change("u", key, {"n": number}, lsn=number))
        for layer in LAYERS:
            assert lake.run(layer).exit_code == 0
    return lake


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **more: Any) -> None:
        raise AssertionError("a session is made")

    for module in (turns, status_module):
        monkeypatch.setattr(module, "build_session", refuse)


def without_times(report: Report) -> list[dict[str, Any]]:
    versions = {"version_before", "version_after"}  # not known if the table was not opened
    return [table_report.model_dump(exclude={"seconds", "waited", *versions}) for table_report in report.tables]


@pytest.mark.parametrize("layer", LAYERS)
def test_run_with_nothing_new_starts_no_session(
    lake: Lake, no_spark: None, monkeypatch: pytest.MonkeyPatch, layer: str
) -> None:
    report = lake.run(layer, spark=False)

    assert {table_report.status for table_report in report.tables} == {"unchanged"}
    assert len(report.tables) == (3 if layer == "silver" else 1)
    written = Path(lake.config.lake.root, "_runs", report.file_name)
    assert Report.model_validate_json(written.read_text()) == report
    monkeypatch.setattr(turns, "_new_data", lambda layer, tables: [None] * len(tables))
    assert without_times(lake.run(layer)) == without_times(report)  # as the JVM reports it


def test_first_runs_of_small_tables_are_short(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_spark: None
) -> None:
    asked: list[bool] = []

    def ask(*arguments: Any, is_short: bool, **others: Any) -> None:
        asked.append(is_short)
        raise AssertionError("a session is made")

    monkeypatch.setattr(turns, "build_session", ask)
    config = lake.config.model_copy(update={"lake": LakeConfig(root=str(tmp_path / "lake"))})
    with pytest.raises(AssertionError, match="a session is made"):
        lake.run("bronze", config, spark=False)
    shutil.copytree(Path(lake.config.lake.root, "bronze"), tmp_path / "lake" / "bronze")
    for later in (2, 1):
        with pytest.raises(AssertionError, match="a session is made"):
            lake.run("silver", config, spark=False)
        for file in (tmp_path / "lake" / "bronze").rglob(f"_delta_log/*{later}.*"):
            file.unlink()
    with pytest.raises(AssertionError, match="a session is made"):
        lake.run("silver", config, spark=False)

    assert asked == [True, False, False, True]


def test_catalog_that_lags_starts_a_session(lake: Lake, no_spark: None) -> None:
    behind = lake.config.model_copy(update={"catalog": CatalogConfig(type="hive", uri="embedded")})
    lake.run("bronze", behind, spark=False)
    mark = Path(lake.config.lake.root, "_catalog", "bronze", lake.topic.table)
    mark.parent.mkdir(parents=True)
    mark.touch()
    try:
        with pytest.raises(AssertionError, match="a session is made"):
            lake.run("bronze", behind, spark=False)
    finally:
        shutil.rmtree(mark.parents[1])


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("variable", ["HADOOP_CONF_DIR", "YARN_CONF_DIR"])
def test_path_that_hadoop_config_may_redirect_is_left_to_hadoop(
    lake: Lake, no_spark: None, monkeypatch: pytest.MonkeyPatch, layer: str, variable: str
) -> None:
    monkeypatch.setenv(variable, "/etc/hadoop/conf")
    at = f"file://{lake.config.lake.root}"

    assert isinstance(lake_files(lake.config.lake.root, None), HadoopFiles)
    assert isinstance(lake_files(at, None), LocalFiles)

    for root in (lake.config.lake.root, at):
        report = lake.run(layer, lake.config.model_copy(update={"lake": LakeConfig(root=root)}), spark=False)
        assert {table_report.status for table_report in report.tables} == {"unchanged"}


def test_newest_commits_equal_those_spark_reads(spark: SparkSession, lake: Lake) -> None:
    files = LocalFiles()
    for target in lake_of(lake.config).silver(lake.topic.table):
        table = target.open(spark)
        found = target.newest(files)
        assert found == (table.progress(), table.id(), table.version(), table.size()), target.name
    bronze = DeltaLakeTable(spark, lake_of(lake.config).path("bronze", lake.topic.table))
    found = newest_commit(files, bronze.path, "delta", BronzeProgress)
    assert found == (bronze.progress(), bronze.id(), bronze.version(), bronze.size())


@pytest.mark.parametrize("by", ["local files", "Hadoop's files"])
def test_status_without_spark_equals_status_with_spark(
    spark: SparkSession, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_spark: None, by: str
) -> None:
    root = shutil.copytree(lake.config.lake.root, tmp_path / "lake")
    config = lake.config.model_copy(update={"lake": LakeConfig(root=str(root))})
    broker, topic = deepcopy(lake.broker), lake.topic
    for record in (topic.change("u", 1, {"n": 9}, lsn=9), topic.record(topic.key(2), b"no frame")):
        broker.append(record)
    assert run_bronze(config, ["*"], spark, source=broker, registry=topic.registry).exit_code == 0
    broker.append(topic.tombstone(1))
    shutil.rmtree(root / "silver_hudi_cow")

    opened, read = [], LocalFiles if by == "local files" else HadoopFiles
    monkeypatch.setattr(read, "open", lambda files, path, do=read.open: (opened.append(path), do(files, path))[1])
    if read is HadoopFiles:
        monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop/conf")

    found = status(config, ["*"], source=broker).tables

    assert len(opened) == 1 + 1 + 4 + 1  # by table: those of the four files that may have rows to count
    assert [(one.commit, one.behind_records) for one in found] == [(4, 1), (3, 1), (None, 7), (3, 1), (3, None)]
    assert [one.quarantined for one in found] == [1, 0, None, 0, None]
    gold = found[-1]
    assert (gold.layer, gold.table, gold.behind_seconds, gold.lag_seconds) == ("gold", "total", 0, found[1].lag_seconds)
    with monkeypatch.context() as patch:
        patch.setattr(readers_module, "newest_rows", lambda files, path: None)
        patch.setattr(lake_module.Lake, "newest_gold", lambda *arguments: None)
        by_spark = status(config, ["*"], spark, source=broker).tables
    ages = {"behind_seconds", "lag_seconds"}
    assert [one.model_dump(exclude=ages) for one in found] == [one.model_dump(exclude=ages) for one in by_spark]
    assert [one.behind_seconds for one in found] == pytest.approx([one.behind_seconds for one in by_spark], abs=60)
    for file in (root / "bronze").rglob("*.parquet"):
        if "_delta_log" not in file.parts:
            file.write_bytes(b"")
    with pytest.raises(AssertionError, match="a session is made"):
        status(config, ["*"], source=broker)


def test_status_shows_since_when_gold_is_behind(lake: Lake, tmp_path: Path) -> None:
    root = shutil.copytree(lake.config.lake.root, tmp_path / "lake")
    config = lake.config.model_copy(update={"lake": LakeConfig(root=str(root))})
    began = time.time()
    lake.broker.append(lake.topic.change("u", 1, {"n": 9}, lsn=9))
    for layer in ("bronze", "silver"):
        assert lake.run(layer, config).exit_code == 0

    (behind,) = status(config, ["total"], source=lake.broker).tables
    assert lake.run("gold", config).exit_code == 0
    (current,) = status(config, ["total"], source=lake.broker).tables

    assert behind.behind_seconds and 0 < behind.behind_seconds <= time.time() - began + 0.1
    assert (behind.lag_seconds, behind.is_late(0)) == (behind.behind_seconds, True)
    assert (current.behind_seconds, current.lag_seconds, current.is_late(0)) == (0, 0, False)
    assert current.last_run and current.last_run.status == "ok"


def test_time_of_the_next_commit_is_that_of_its_file(lake: Lake) -> None:
    for target in lake_of(lake.config).silver(lake.topic.table):
        newest = target.newest(LocalFiles())
        assert newest is not None
        path, format = target.path, target.storage.format
        first_ms = commit_ms_after(LocalFiles(), path, format, -1)

        assert first_ms and 0 <= time.time() - first_ms / 1000 < 3600
        assert commit_ms_after(LocalFiles(), path, format, newest.version) is None


def newest_file(path: Path) -> Path:
    """The newest commit of a Delta log, or the newest complete one of a Hudi timeline."""
    if (path / "_delta_log").is_dir():
        return max((path / "_delta_log").glob("*[0-9].json"))
    timeline = path / ".hoodie" / "timeline"
    folder = timeline if timeline.is_dir() else path / ".hoodie"
    return max(file for file in folder.glob("[0-9]*commit") if file.name.count(".") == 1)


def cut_short(path: Path) -> None:
    file = newest_file(path)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def emptied(path: Path) -> None:
    newest_file(path).write_bytes(b"")


def of_another_version(path: Path) -> None:
    for file in newest_file(path).parent.glob("[0-9]*"):  # the newest may be of a compaction, which has no progress
        if file.is_file():  # in Avro the length of a text must stay the same
            said = file.read_bytes().replace(b'"run_id', b'"run__d').replace(b'\\"run_id', b'\\"run__d')
            file.write_bytes(said)


def without_settings(path: Path) -> None:
    (path / ".hoodie" / "hoodie.properties").write_text("")


def restored(path: Path) -> None:
    file = newest_file(path)
    later = int(file.name.partition("_")[0].partition(".")[0]) + 1000
    file.with_name(f"{later}{'_' + str(later) if '_' in file.name else ''}.restore").write_bytes(b"")


def with_a_gap(path: Path) -> None:
    sorted((path / "_delta_log").glob("*[0-9].json"))[-1].rename(path / "_delta_log" / f"{99:020d}.json")


def by_another_program(path: Path) -> None:
    version = DeltaTable(path).version()
    DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "false"})
    assert DeltaTable(path).version() == version + 1


def of_a_catalog(path: Path) -> None:
    file = newest_file(path)
    file.rename(file.parent / "_commits" / f"{file.stem}.uuid.json")


OF_ANY, OF_DELTA, OF_HUDI = (
    (cut_short, emptied, of_another_version),
    (with_a_gap, by_another_program, of_a_catalog),
    (without_settings, restored),
)


@pytest.mark.parametrize(
    ("number", "damage"),
    [
        *((number, damage) for number in range(3) for damage in OF_ANY),
        *((0, damage) for damage in OF_DELTA),
        *((number, damage) for number in (1, 2) for damage in OF_HUDI),
    ],
)
def test_unusual_log_is_left_to_spark(lake: Lake, tmp_path: Path, number: int, damage: Callable[[Path], None]) -> None:
    target = lake_of(lake.config).silver(lake.topic.table)[number]
    path = Path(shutil.copytree(target.path, tmp_path / "table"))
    assert newest_commit(LocalFiles(), str(path), target.storage.format, SilverProgress) is not None

    damage(path)

    assert newest_commit(LocalFiles(), str(path), target.storage.format, SilverProgress) is None
