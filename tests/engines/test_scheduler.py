"""The scheduler: tables take turns, failures do not affect other tables, idle tables are skipped, and runs stop."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest
from pyspark.sql import SparkSession

from cdc_lake.config import Config, LakeConfig, RunConfig
from cdc_lake.errors import DataLossError, InfrastructureError, TableLockedError
from cdc_lake.runs import scheduler as scheduler_module
from cdc_lake.runs.context import Layer, Leases, NewData, OpenRun, Run, Work, lake_of
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.spark.session import planned_for
from cdc_lake.storage.files import LocalFiles
from cdc_lake.storage.hadoop import HadoopFiles

pytestmark = pytest.mark.core


@dataclass
class Doing(Work):
    """A fake: tables with a number of batches, and whose work the test defines."""

    waiting: dict[str, int]
    act: Callable[[SparkSession, TableReport], None] = lambda spark, table_report: None
    turns: list[str] = field(default_factory=list)

    def process_next(self, spark: SparkSession, table_report: TableReport) -> bool:
        self.turns.append(table_report.table)
        self.act(spark, table_report)
        table_report.status = "ok"
        table_report.batches += 1
        self.waiting[table_report.table] -= 1
        return self.waiting[table_report.table] > 0


@dataclass
class Needing(Layer):
    """A fake: a layer that updates tables of topics."""

    doing: Doing
    news: dict[str, NewData | None]

    def new_data(self, table_report: TableReport) -> NewData | None:
        return self.news[table_report.table]

    def work(self, run: OpenRun) -> Doing:
        return self.doing

    def before_report(self) -> None:
        pass

    def topic(self, table: str) -> str:
        return table.partition("@")[0]


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Callable[..., Report]:
    """A run on the tables of a `Doing`."""

    def over(doing: Doing, scheduler: TableScheduler | None = None) -> Report:
        report = Report(layer="silver")
        config = Config(lake=LakeConfig(root=str(tmp_path)))
        leases = Leases(lake_of(config), config.lake.lease, HadoopFiles(spark), report.run_id, report.layer)
        (scheduler or TableScheduler(spark=spark)).each_table(report, list(doing.waiting), doing, leases=leases)
        return report

    return over


@pytest.fixture
def layer(tmp_path: Path) -> Callable[..., Needing]:
    """A layer with new rows in tables, and by default as many batches."""

    def of(name: Literal["bronze", "silver"], new: Mapping[str, int | None], doing: Doing | None = None) -> Needing:
        begun = Run.begin(Config(lake=LakeConfig(root=str(tmp_path))), Report(layer=name))
        doing = doing or Doing({table: max(rows or 0, 1) for table, rows in new.items()})
        news = {table: None if rows is None else NewData(rows) for table, rows in new.items()}
        return Needing(begun, LocalFiles(), list(news), doing, news)

    return of


def states(report: Report) -> Mapping[str, str]:
    return {table_report.table: table_report.status for table_report in report.tables}


def test_tables_alternate_and_the_largest_backlog_starts(spark: SparkSession, layer: Callable[..., Needing]) -> None:
    doing = Doing({"a": 1, "b": 3, "c": 2})

    TableScheduler(spark=spark).run(layer("silver", {"a": 1, "b": 3, "c": 2}, doing))

    assert doing.turns == ["b", "c", "a", "b", "c", "b"]


def test_table_without_new_records_gets_no_batch_and_no_lease(
    spark: SparkSession, layer: Callable[..., Needing], tmp_path: Path
) -> None:
    silver = layer("silver", {"a": 0, "b": None})

    (report,) = TableScheduler(spark=spark).run(silver)

    assert silver.doing.turns == ["b"]
    assert states(report) == {"a": "unchanged", "b": "ok"}
    assert not (tmp_path / "_leases" / "silver" / "a").exists()


def test_silver_follows_bronze_topic_by_topic(spark: SparkSession, layer: Callable[..., Needing]) -> None:
    turns = list[str]()

    def doing(waiting: dict[str, int], layer: str) -> Doing:
        return Doing(waiting, lambda spark, table_report: turns.append(f"{layer} {table_report.table}"))

    bronze = layer("bronze", {"a": 2, "b": 1, "c": 0}, doing({"a": 2, "b": 1}, "bronze"))
    news = {"a": 0, "a@hudi_cow": 0, "b": 0, "c": 3, "d": 0}
    silver = layer("silver", news, doing({"a": 1, "a@hudi_cow": 1, "b": 2, "c": 1}, "silver"))

    reports = TableScheduler(spark=spark).run(bronze, silver)

    of_a = ["bronze a", "silver a", "silver a@hudi_cow"]
    assert turns == ["silver c", *of_a, "bronze b", "silver b", *of_a, "silver b"]
    assert [states(report) for report in reports] == [
        {"a": "ok", "b": "ok", "c": "unchanged"},
        {"a": "ok", "a@hudi_cow": "ok", "b": "ok", "c": "ok", "d": "unchanged"},
    ]


def test_rolling_run_does_not_wait_for_a_slow_table(
    spark: SparkSession, layer: Callable[..., Needing], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_module, "_POLL_SECONDS", 0.01)
    is_done, batches = threading.Event(), 3

    def act(own: SparkSession, table_report: TableReport) -> None:
        if table_report.table == "slow":
            assert is_done.wait(60)
        elif table_report.batches == batches - 1:
            bronze.news["quick"] = NewData(0)
            is_done.set()

    bronze = layer("bronze", {"slow": 2, "quick": 1}, Doing({"slow": 1, "quick": 1}, act))
    silver = layer("silver", {"slow": 0, "quick": 0}, Doing({"slow": 1, "quick": 1}))
    bronze.look_again = lambda tables: bronze.news.update(slow=NewData(0))  # type: ignore[method-assign]

    landed, merged = TableScheduler(2, spark, is_continuous=True, is_rolling=True).run(bronze, silver)

    assert {table_report.table: table_report.batches for table_report in landed.tables} == {"slow": 1, "quick": batches}
    assert {table_report.table: table_report.batches for table_report in merged.tables} == {"slow": 1, "quick": batches}


def test_rolling_round_ends_if_the_source_does_not_respond(
    spark: SparkSession, layer: Callable[..., Needing], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_module, "_POLL_SECONDS", 0.01)
    has_looked = threading.Event()

    def look_again(tables: Sequence[str]) -> None:
        has_looked.set()
        raise InfrastructureError("Kafka", "the broker does not answer", "wait")

    def act(own: SparkSession, table_report: TableReport) -> None:
        assert table_report.table == "quick" or has_looked.wait(60)

    bronze = layer("bronze", {"slow": 2, "quick": 1}, Doing({"slow": 1, "quick": 1}, act))
    bronze.look_again = look_again  # type: ignore[method-assign]
    scheduler = TableScheduler(2, spark, is_continuous=True, is_rolling=True)

    (report,) = scheduler.run(bronze)

    assert {table_report.table: table_report.batches for table_report in report.tables} == {"slow": 1, "quick": 1}
    assert not scheduler.wait(0)


def test_report_has_waits_and_how_busy_the_threads_were(spark: SparkSession, layer: Callable[..., Needing]) -> None:
    def work(spark: SparkSession, table_report: TableReport) -> None:
        time.sleep(0.2)

    bronze = layer("bronze", {"a": 2, "b": 1}, Doing({"a": 1, "b": 1}, work))
    silver = layer("silver", {"a": 0, "b": 0}, Doing({"a": 1, "b": 1}))

    landed, merged = TableScheduler(spark=spark).run(bronze, silver)

    first, second = landed.tables
    assert first.waited < 0.15 < 0.2 <= second.waited < 1
    assert [table_report.waited for table_report in merged.tables] == [0, 0]  # right after bronze, in its thread
    assert landed.utilization is not None and merged.utilization is not None
    assert merged.utilization < 0.5 < landed.utilization
    assert landed.utilization + merged.utilization <= 1.01


def test_failure_in_bronze_makes_no_silver_due(spark: SparkSession, layer: Callable[..., Needing]) -> None:
    def fail(spark: SparkSession, table_report: TableReport) -> None:
        raise DataLossError(table_report.table, "records are gone", "load it again")

    bronze = layer("bronze", {"a": 1, "b": 1}, Doing({}, fail))
    silver = layer("silver", {"a": 0, "b": 1})
    scheduler = TableScheduler(spark=spark, is_continuous=True)

    landed, merged = scheduler.run(bronze, silver)

    assert silver.doing.turns == ["b"]
    assert (landed.exit_code, merged.exit_code) == (20, 0)
    assert {name: set(tables) for name, tables in scheduler.skipped.items()} == {"bronze": {"a", "b"}, "silver": set()}


def test_failing_tables_do_not_stop_the_others(run: Callable[..., Report]) -> None:
    def act(spark: SparkSession, table_report: TableReport) -> None:
        if table_report.table == "b":
            raise DataLossError("b", "records are gone", "load it again")
        if table_report.table == "c":
            raise KeyError("surprise")
        if table_report.table == "d":
            spark.sql("SELECT raise_error('of a task') FROM range(1)").collect()

    report = run(Doing({"a": 1, "b": 1, "c": 1, "d": 1, "e": 2}, act))

    assert states(report) == {"a": "ok", "b": "failed", "c": "failed", "d": "failed", "e": "ok"}
    said = {table_report.table: table_report.error.message for table_report in report.tables if table_report.error}
    assert "unexpected: KeyError" in said["c"] and "please report it" in said["c"]
    assert "of a task" in said["d"] and "An error occurred while calling" not in said["d"]
    assert report.exit_code == 20


def test_failure_is_logged_once_when_it_happens(
    run: Callable[..., Report], spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def act(own: SparkSession, done: TableReport) -> None:
        if done.table == "a":
            raise InfrastructureError("a", "no answer", "wait")
        errors.append([record.getMessage() for record in caplog.records if record.levelname == "ERROR"])

    errors, scheduler = list[list[str]](), TableScheduler(1, spark, is_continuous=True)
    for _ in range(2):
        report = run(Doing({"a": 1, "b": 1}, act), scheduler)
        scheduler.end(Run.begin(Config(lake=LakeConfig(root=str(tmp_path))), report), LocalFiles())

    assert errors == [["silver: a failed: CDC-300 a: no answer; wait"]] * 2


def test_parallel_workers_have_isolated_session_settings(run: Callable[..., Report], spark: SparkSession) -> None:
    together = threading.Barrier(2, timeout=60)
    seen: dict[str, tuple[str | None, str | None, str | None]] = {}

    def act(own: SparkSession, table_report: TableReport) -> None:
        own.conf.set("spark.databricks.delta.commitInfo.userMetadata", table_report.table)
        together.wait()
        conf = own.range(1).selectExpr(f"'{table_report.table}' AS t").sparkSession.conf
        seen[table_report.table] = (
            conf.get("spark.databricks.delta.commitInfo.userMetadata"),
            conf.get("spark.sql.session.timeZone"),
            conf.get("spark.sql.shuffle.partitions"),
        )
        together.wait()
        own.conf.unset("spark.databricks.delta.commitInfo.userMetadata")

    scheduler = TableScheduler(2, spark)
    report = run(Doing({"a": 1, "b": 1}, act), scheduler)

    assert states(report) == {"a": "ok", "b": "ok"}
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    assert seen == {"a": ("a", "UTC", partitions), "b": ("b", "UTC", partitions)}


def test_stop_ends_the_run_after_the_running_batches(run: Callable[..., Report], spark: SparkSession) -> None:
    scheduler = TableScheduler(1, spark)
    doing = Doing({"a": 5, "b": 2}, lambda spark, table_report: scheduler.stop())

    report = run(doing, scheduler)

    assert doing.turns == ["a"]
    assert states(report) == {"a": "ok", "b": "waiting"}
    assert scheduler.wait(60)


def test_canceled_batch_is_not_a_failure(run: Callable[..., Report], spark: SparkSession) -> None:
    def act(own: SparkSession, table_report: TableReport) -> None:
        threading.Timer(1, scheduler.cancel).start()
        # Our sessions do not know `java_method`.
        own.newSession().range(1).selectExpr("java_method('java.lang.Thread', 'sleep', 5000 + id)").collect()

    scheduler = TableScheduler(1, spark)
    report = run(Doing({"a": 1}, act), scheduler)

    assert states(report) == {"a": "unchanged"}
    assert report.tables[0].warnings == ["the run was stopped during a batch; the batch was not committed"]
    assert report.exit_code == 0


def test_continuous_run_skips_tables_that_failed_permanently(run: Callable[..., Report], spark: SparkSession) -> None:
    def act(own: SparkSession, table_report: TableReport) -> None:
        if table_report.table == "a":
            raise DataLossError("a", "records are gone", "load it again")
        if table_report.table == "b":
            raise InfrastructureError("b", "no answer", "wait")

    scheduler = TableScheduler(1, spark, is_continuous=True)
    first, second = (run(Doing({"a": 1, "b": 1, "c": 1}, act), scheduler) for _ in range(2))

    assert states(first) == {"a": "failed", "b": "failed", "c": "ok"}
    assert states(second) == {"b": "failed", "c": "ok"}
    assert set(scheduler.skipped["silver"]) == {"a"}


@pytest.mark.parametrize(("patience", "turns", "ends"), [(60, 2, "ok"), (0, 1, "failed")])
def test_batch_is_retried_until_retry_seconds_pass(
    run: Callable[..., Report],
    spark: SparkSession,
    caplog: pytest.LogCaptureFixture,
    patience: float,
    turns: int,
    ends: str,
) -> None:
    def act(own: SparkSession, table_report: TableReport) -> None:
        if doing.turns.count("a") == 1:
            raise InfrastructureError("a", "no answer", "wait")

    doing = Doing({"a": 1}, act)
    report = run(doing, TableScheduler(1, spark, retry_seconds=patience))

    assert (len(doing.turns), report.tables[0].status) == (turns, ends)
    told = [record.getMessage() for record in caplog.records if record.name == "cdc_lake.runs.scheduler"]
    retries = [line for line in told if "retrying" in line]
    assert len(retries) == turns - 1
    assert all(line.startswith("a: no answer; wait; retrying in ") for line in retries)


def test_permanent_errors_and_stopped_runs_are_not_retried(run: Callable[..., Report], spark: SparkSession) -> None:
    def act(own: SparkSession, table_report: TableReport) -> None:
        if table_report.table == "a":
            raise DataLossError("a", "records are gone", "load it again")
        threading.Timer(0.2, scheduler.stop).start()
        raise InfrastructureError("b", "no answer", "wait")

    scheduler = TableScheduler(1, spark, retry_seconds=3600)
    doing = Doing({"a": 2, "b": 1}, act)
    report = run(doing, scheduler)

    assert doing.turns[0] == "a" and doing.turns.count("a") == 1
    assert doing.turns.count("b") == 2  # the wait was ended, and so the tries
    assert states(report) == {"a": "failed", "b": "failed"}


def test_refused_store_access_exits_2_and_is_not_retried(run: Callable[..., Report], spark: SparkSession) -> None:
    def act(own: SparkSession, table_report: TableReport) -> None:
        own.sql("SELECT raise_error('java.nio.file.AccessDeniedException: s3a://lake/x: 403 Forbidden')").collect()

    doing = Doing({"a": 1}, act)
    (table_report,) = run(doing, TableScheduler(1, spark, retry_seconds=60)).tables

    assert table_report.error is not None and (table_report.error.exit_code, len(doing.turns)) == (2, 1)
    assert "the store denied access" in table_report.error.message


def test_full_disk_exits_10_and_the_other_tables_continue(
    run: Callable[..., Report], spark: SparkSession, tmp_path: Path
) -> None:
    def act(own: SparkSession, table_report: TableReport) -> None:
        if table_report.table == "a":
            own._jvm.java.io.FileOutputStream("/dev/full").write(1)
        if table_report.table == "b":
            Path("/dev/full").write_text("text")

    scheduler = TableScheduler(spark=spark)
    scheduler.open_files(Run.begin(Config(lake=LakeConfig(root=str(tmp_path))), Report(layer="silver")))
    report = run(Doing({"a": 1, "b": 1, "c": 1}, act), scheduler)

    assert states(report) == {"a": "failed", "b": "failed", "c": "ok"}
    assert report.exit_code == 10
    for table_report in report.tables[:2]:
        assert table_report.error is not None
        assert f"{table_report.table}: No space left on device: /" in table_report.error.message
        assert str(tmp_path) in table_report.error.message and "/tmp" in table_report.error.message


@pytest.mark.parametrize(("error", "exit_code"), [(DataLossError("a", "records are gone", "seek"), 20), (None, 10)])
def test_report_on_a_full_disk_is_logged_and_keeps_the_exit_code(
    full_disk: None, caplog: pytest.LogCaptureFixture, tmp_path: Path, error: DataLossError | None, exit_code: int
) -> None:
    report = Report(layer="silver", tables=[TableReport(table="a", status="ok")])
    if error:
        report.tables[0].fail(error)

    TableScheduler().end(Run.begin(Config(lake=LakeConfig(root=str(tmp_path))), report), LocalFiles())

    assert report.exit_code == exit_code
    assert report.unwritten and f"{report.file_name}: No space left on device: " in report.unwritten.message
    assert report.model_dump_json() in caplog.messages[-1]
    assert list((tmp_path / "_runs").iterdir()) == []


def test_spark_failure_after_losing_the_lease_exits_40(
    run: Callable[..., Report], spark: SparkSession, tmp_path: Path
) -> None:
    def act(own: SparkSession, table_report: TableReport) -> None:
        if table_report.table == "a":
            (file,) = (tmp_path / "_leases" / "silver" / "a").glob("*.json")
            file.with_name(f"{int(file.stem) + 1:012d}.json").write_text(file.read_text())
        own.sql("SELECT raise_error('inflight does not exist')").collect()

    report = run(Doing({"a": 1, "b": 1}, act), TableScheduler(spark=spark))

    assert {
        table_report.table: table_report.error.exit_code for table_report in report.tables if table_report.error
    } == {"a": 40, "b": 1}


def test_standby_writes_a_report_only_when_its_state_changes(
    layer: Callable[..., Needing], spark: SparkSession, tmp_path: Path
) -> None:
    scheduler = TableScheduler(1, spark, is_continuous=True)
    states = ["locked", "locked", "locked", "idle", "idle", "lost", "left out", "left out"]
    told = []
    for state in states:

        def act(own: SparkSession, table_report: TableReport, state: str = state) -> None:
            if state == "locked":
                raise TableLockedError("a", "another run has it", "wait")
            if state == "lost":
                raise DataLossError("a", "records are gone", "load it again")

        (report,) = scheduler.run(layer("silver", {"a": 0 if state == "idle" else 1}, Doing({"a": 1}, act)))
        told.append(report.is_news)

    assert told == [True, False, False, True, False, True, False, False]
    assert len(list((tmp_path / "_runs").glob("*.json"))) == 3


def test_expired_reports_are_removed_once_a_day(spark: SparkSession, tmp_path: Path) -> None:
    config, files = Config(lake=LakeConfig(root=str(tmp_path)), run=RunConfig(report_days=2)), HadoopFiles(spark)
    ages = {days: Report(layer="silver", started_at=datetime.now(UTC) - timedelta(days=days)) for days in (3, 1)}
    for report in ages.values():
        TableScheduler().end(Run.begin(config, report), LocalFiles())

    drafts = {age: tmp_path / "_runs" / f"{ages[1].file_name}.{age}.tmp" for age in ("01d", "0ff")}
    for draft in drafts.values():
        draft.touch()
    os.utime(drafts["01d"], (1, 1))

    scheduler, newest = TableScheduler(1, spark), Report(layer="silver")
    scheduler.end(Run.begin(config, newest), files)

    kept = {file.name for file in (tmp_path / "_runs").iterdir()}
    assert kept == {ages[1].file_name, newest.file_name, drafts["0ff"].name}  # which another run may be writing
    TableScheduler().end(Run.begin(config, ages[3]), LocalFiles())
    scheduler.end(Run.begin(config, newest), files)
    assert (tmp_path / "_runs" / ages[3].file_name).exists()


def test_sessions_without_user_sql_have_no_hudi_extension(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.extensions") == "io.delta.sql.DeltaSparkSessionExtension"


@pytest.mark.parametrize(
    ("rows", "stored_bytes", "is_small"), [(100, 0, True), (10**6, 0, False), (100, 1 << 40, False), (None, 0, False)]
)
def test_small_batches_use_one_shuffle_partition(
    spark: SparkSession, rows: int | None, stored_bytes: int, is_small: bool
) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")

    with planned_for(spark, rows=rows, stored_bytes=stored_bytes):
        meanwhile = spark.conf.get("spark.sql.shuffle.partitions")

    assert meanwhile == ("1" if is_small else before)
    assert spark.conf.get("spark.sql.shuffle.partitions") == before
