"""One run at a time writes a table; a run whose lease was taken over notices it."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc_lake.config import Config, GoldConfig, LakeConfig, LeaseConfig, StorageConfig, TableConfig
from cdc_lake.errors import ConfigError, InfrastructureError, TableLockedError
from cdc_lake.gold.run import run_gold
from cdc_lake.lake.lease import Holder, Lease
from cdc_lake.operations.maintain import run_maintain
from cdc_lake.operations.rebuild import run_rebuild
from cdc_lake.runs.context import Leases, Work, lake_of
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.silver.run import run_silver
from cdc_lake.storage.files import LocalFiles
from cdc_lake.storage.hadoop import HadoopFiles

pytestmark = pytest.mark.core

TABLE = "pagila.public.film"
HOUR_MS = 3_600_000


@pytest.fixture
def files(spark: SparkSession) -> HadoopFiles:
    return HadoopFiles(spark)


@pytest.fixture
def elsewhere(spark: SparkSession, tmp_path: Path) -> str:
    """A folder whose scheme is not local."""
    spark._jsc.hadoopConfiguration().set(f"fs.viewfs.mounttable.{tmp_path.name}.link./lake", tmp_path.as_uri())
    return f"viewfs://{tmp_path.name}/lake/lease"


@pytest.fixture(params=["local", "elsewhere"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A lease's folder, on each kind of store."""
    return str(tmp_path / "lease") if request.param == "local" else request.getfixturevalue("elsewhere")


def lease(files: HadoopFiles, folder: str | Path, run_id: str = "mine", seconds: float = 60) -> Lease:
    return Lease(files, str(folder), TABLE, run_id, seconds)


def held(until_ms: int | None = None, host: str = "elsewhere", pid: int = 1, pid_space: str = "") -> str:
    """The content of another run's lease."""
    now_ms = time.time_ns() // 1_000_000
    until_ms = now_ms + HOUR_MS if until_ms is None else until_ms
    return Holder(
        run_id="theirs", host=host, pid=pid, pid_space=pid_space, since_ms=now_ms, until_ms=until_ms
    ).model_dump_json()


def pid_space() -> str:
    """The host, boot and PID namespace in which this process's PID is valid."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_released_lease_can_be_taken_at_once(files: HadoopFiles, folder: str) -> None:
    for run_id in ("first", "second", "third"):
        with lease(files, folder, run_id) as mine:
            mine.check()

    assert files.names(folder) == ["000000000003.json"]


def test_second_run_is_refused_and_names_lease_owner_and_expiry(files: HadoopFiles, folder: str) -> None:
    with lease(files, folder, "theirs"):
        with pytest.raises(TableLockedError) as raised, lease(files, folder):
            pass

        who = f"run theirs (process {os.getpid()} on {socket.gethostname()}), since "
        assert f"{TABLE}: it is being written by {who}" in str(raised.value)
        assert "its lease lasts until " in str(raised.value)
        assert raised.value.exit_code == 40


def test_refused_run_leaves_the_lease_unchanged(files: HadoopFiles, folder: str) -> None:
    with lease(files, folder, "theirs") as theirs:
        with pytest.raises(TableLockedError), lease(files, folder):
            pass

        theirs.check()
        assert files.names(folder) == ["000000000001.json"]


def test_failed_run_releases_its_lease(files: HadoopFiles, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lease(files, tmp_path):
        raise ZeroDivisionError

    with lease(files, tmp_path) as mine:
        mine.check()


def test_concurrent_exclusive_creates_have_one_winner(files: HadoopFiles, tmp_path: Path) -> None:
    start = threading.Barrier(8)

    def create(writer: int) -> bool:
        start.wait()
        return files.create_exclusively(str(tmp_path / "file"), f"by {writer}")

    with ThreadPoolExecutor(8) as writers:
        got_it = list(writers.map(create, range(8)))

    assert got_it.count(True) == 1
    assert (tmp_path / "file").read_text() == f"by {got_it.index(True)}"
    assert os.listdir(tmp_path) == ["file"]


def test_existing_file_is_not_created_again(files: HadoopFiles, folder: str) -> None:
    created = [files.create_exclusively(f"{folder}/file", text) for text in ("old", "new")]

    assert created == [True, False]
    assert files.read_text(f"{folder}/file") == "old"


def test_replace_leaves_only_the_new_text(files: HadoopFiles, folder: str) -> None:
    for text in ("old", "new"):
        files.replace(f"{folder}/file", text)

    assert files.read_text(f"{folder}/file") == "new"
    assert files.names(folder) == ["file"]


def test_expired_lease_is_taken_over(files: HadoopFiles, tmp_path: Path) -> None:
    files.replace(f"{tmp_path}/000000000007.json", held(until_ms=1))

    with lease(files, tmp_path) as mine:
        mine.check()

        assert os.listdir(tmp_path) == ["000000000008.json"]


def test_lease_of_a_dead_process_on_this_host_is_taken_over(files: HadoopFiles, tmp_path: Path) -> None:
    theirs = held(host=socket.gethostname(), pid=ended_process(), pid_space=pid_space())
    files.replace(f"{tmp_path}/000000000001.json", theirs)

    with lease(files, tmp_path) as mine:
        mine.check()


OTHER_SPACES = {
    "another PID namespace": lambda: f"{pid_space().split()[0]} pid:[1]",
    "another boot": lambda: f"00000000-0000-0000-0000-000000000000 {pid_space().split()[1]}",
    "not told": lambda: "",
}


@pytest.mark.parametrize("name", OTHER_SPACES)
def test_process_in_another_pid_space_is_assumed_alive(files: HadoopFiles, tmp_path: Path, name: str) -> None:
    theirs = held(host=socket.gethostname(), pid=ended_process(), pid_space=OTHER_SPACES[name]())
    files.replace(f"{tmp_path}/000000000001.json", theirs)

    with pytest.raises(TableLockedError, match=f"on {socket.gethostname()}"), lease(files, tmp_path):
        pass


def test_lease_of_a_version_without_pid_space_is_read(files: HadoopFiles, tmp_path: Path) -> None:
    before = json.loads(held())
    del before["pid_space"]
    files.replace(f"{tmp_path}/000000000001.json", json.dumps(before))

    with pytest.raises(TableLockedError, match="by run theirs "), lease(files, tmp_path):
        pass


def test_process_of_another_host_is_not_checked_on_this_host(files: HadoopFiles, tmp_path: Path) -> None:
    files.replace(f"{tmp_path}/000000000001.json", held(host="elsewhere", pid=ended_process()))

    with pytest.raises(TableLockedError, match="on elsewhere"), lease(files, tmp_path):
        pass


def test_lease_is_renewed_while_the_run_lasts(files: HadoopFiles, folder: str) -> None:
    with lease(files, folder, "theirs", seconds=1) as theirs:
        time.sleep(2)

        # Its name may be missing for a moment: on other stores, a renewed file is empty first.
        with pytest.raises(TableLockedError, match="it is being written by"), lease(files, folder):
            pass
        theirs.check()


def test_run_that_lost_its_lease_fails_before_commit(files: HadoopFiles, tmp_path: Path) -> None:
    with lease(files, tmp_path) as mine:
        mine.check()
        files.replace(f"{tmp_path}/000000000002.json", held())

        with pytest.raises(TableLockedError, match=r"run theirs .* has taken over the table"):
            mine.check()


def test_run_that_lost_its_lease_neither_renews_nor_releases_it(files: HadoopFiles, tmp_path: Path) -> None:
    theirs = held()

    with lease(files, tmp_path, seconds=0.3):
        files.replace(f"{tmp_path}/000000000002.json", theirs)
        (tmp_path / "000000000001.json").unlink()
        time.sleep(0.5)

    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"000000000002.json": theirs}


def test_stale_listing_does_not_win_a_skipped_lease_number(spark: SparkSession, tmp_path: Path) -> None:
    class LookedLongAgo(HadoopFiles):
        looks = 0

        def names_with_drafts(self, folder: str) -> list[str]:
            self.looks += 1
            return ["000000000001.json"] if self.looks == 1 else super().names_with_drafts(folder)

    HadoopFiles(spark).replace(f"{tmp_path}/000000000001.json", held(until_ms=0))
    HadoopFiles(spark).replace(f"{tmp_path}/000000000003.json", held())

    with pytest.raises(TableLockedError, match="run theirs"), lease(LookedLongAgo(spark), tmp_path):
        pass

    assert "000000000002.json" in os.listdir(tmp_path)  # it was created, but is not the newest


def test_empty_lease_file_counts_from_its_modification_time(files: HadoopFiles, tmp_path: Path) -> None:
    file = tmp_path / "000000000001.json"
    file.touch()

    with pytest.raises(TableLockedError, match="another run, since"), lease(files, tmp_path):
        pass
    os.utime(file, (1, 1))
    with lease(files, tmp_path) as mine:
        mine.check()


def test_unwritable_lease_is_an_error_naming_its_folder(files: HadoopFiles, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(InfrastructureError, match=r"cannot take its lease: .*file/lease can be read"):
        lease(files, tmp_path / "file" / "lease").__enter__()


def test_lease_is_released_if_earlier_files_cannot_be_removed(
    files: HadoopFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with lease(files, tmp_path):
        pass

    def refused(_self: HadoopFiles, path: str) -> None:
        raise OSError(f"the store does not remove {path}")

    monkeypatch.setattr(HadoopFiles, "remove", refused)

    with lease(files, tmp_path):
        assert "cannot remove its earlier leases (the store does not remove" in caplog.text

    with lease(files, tmp_path, "theirs"):
        pass


def test_lease_on_a_full_disk_is_renewed_and_released(
    files: HadoopFiles, full_disk: None, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with lease(files, tmp_path, seconds=0.3) as mine:
        time.sleep(0.5)
        mine.check()
        assert mine.holder() is not None
    with lease(files, tmp_path, "theirs") as theirs:
        theirs.check()

    assert os.listdir(tmp_path) == ["000000000002.json"]
    assert caplog.messages == []


def test_drafts_are_not_listed(files: HadoopFiles, tmp_path: Path) -> None:
    for name in ("whole", "whole.0a1b.tmp", "orders.tmp"):
        (tmp_path / name).touch()

    for each in (files, LocalFiles()):
        assert each.names(str(tmp_path)) == ["orders.tmp", "whole"]


def test_leftover_drafts_are_removed(files: HadoopFiles, tmp_path: Path) -> None:
    files.replace(f"{tmp_path}/000000000001.json", held(until_ms=0))
    (tmp_path / "000000000001.json.0a1b.tmp").touch()
    (tmp_path / "0012").mkdir()  # of a table whose name begins with this one's

    with lease(files, tmp_path):
        assert sorted(os.listdir(tmp_path)) == ["000000000002.json", "0012"]


@dataclass(frozen=True)
class Doing(Work):
    """A fake: a layer whose work the test defines."""

    work: Callable[[TableReport, Leases], None]
    leases: Leases

    def process_next(self, spark: SparkSession, report: TableReport) -> bool:
        self.work(report, self.leases)
        return False


def run_over(
    files: HadoopFiles, root: Path, work: Callable[[TableReport, Leases], None], *, enabled: bool = True
) -> Report:
    """A run of silver on two tables, the second's name beginning with the first's."""
    config = Config(lake=LakeConfig(root=str(root), lease=LeaseConfig(enabled=enabled)))
    report = Report(layer="silver")
    leases = Leases(lake_of(config), config.lake.lease, files, report.run_id, report.layer)
    TableScheduler(spark=SparkSession.active()).each_table(report, ["a.b", "a.b.c"], Doing(work, leases), leases=leases)
    return report


def test_run_skips_a_locked_table_and_continues_with_the_next(files: HadoopFiles, tmp_path: Path) -> None:
    files.replace(f"{tmp_path}/_leases/silver/a/b/000000000001.json", held())
    worked_on = []

    report = run_over(files, tmp_path, lambda table_report, _: worked_on.append(table_report.table))

    assert worked_on == ["a.b.c"]
    assert [(table_report.table, table_report.status) for table_report in report.tables] == [
        ("a.b", "failed"),
        ("a.b.c", "unchanged"),
    ]
    assert report.exit_code == 40


def test_run_locks_each_table_only_while_processing_it(files: HadoopFiles, tmp_path: Path) -> None:
    def work(report: TableReport, leases: Leases) -> None:
        other = run_over(files, tmp_path, lambda *_: None)
        locked.append([one.table for one in other.tables if one.error and one.error.exit_code == 40])

    locked: list[list[str]] = []

    run_over(files, tmp_path, work)

    assert locked == [["a.b"], ["a.b.c"]]


def test_check_detects_a_lease_taken_over_during_the_run(files: HadoopFiles, tmp_path: Path) -> None:
    def work(table_report: TableReport, leases: Leases) -> None:
        leases.check(table_report.table)
        if table_report.table == "a.b":
            files.replace(f"{tmp_path}/_leases/silver/a/b/000000000002.json", held())
        leases.check(table_report.table)
        table_report.status = "ok"

    report = run_over(files, tmp_path, work)

    assert [(table_report.table, table_report.status) for table_report in report.tables] == [
        ("a.b", "failed"),
        ("a.b.c", "ok"),
    ]


def test_disabled_leases_are_neither_taken_nor_checked(files: HadoopFiles, tmp_path: Path) -> None:
    files.replace(f"{tmp_path}/_leases/silver/a/b/000000000001.json", held())

    report = run_over(files, tmp_path, lambda table_report, leases: leases.check(table_report.table), enabled=False)

    assert report.exit_code == 0
    assert os.listdir(tmp_path / "_leases" / "silver" / "a" / "b") == ["000000000001.json"]


@pytest.fixture
def without_leases(tmp_path: Path) -> Config:
    """A lake without leases, with damaged logs in place of its tables, so that reading one fails otherwise."""
    for folder in ("bronze/pagila/public/film/_delta_log", "gold/per_film/.hoodie"):
        (tmp_path / "lake" / folder).mkdir(parents=True)
    (tmp_path / "per_film.sql").write_text(
        f"-- name: per_film\n-- keys: [id]\n-- sources: {{film: {TABLE}}}\n-- table: {{format: hudi}}\n"
        "SELECT id FROM film\n"
    )
    return Config(
        lake=LakeConfig(root=str(tmp_path / "lake"), lease=LeaseConfig(enabled=False)),
        defaults=TableConfig(storage=(StorageConfig(), StorageConfig(format="hudi", type="mor"))),
        gold=GoldConfig(models=str(tmp_path)),
    )


WITHOUT_LEASE = (
    "{}: lake.lease.enabled: false: the table is stored in Hudi, where concurrent runs can undo each other's commits; "
    "remove the setting, or store the table in Delta"
)


@pytest.mark.parametrize("run", [run_silver, run_rebuild, run_maintain])
def test_silver_in_hudi_without_leases_is_refused(
    spark: SparkSession, without_leases: Config, run: Callable[..., Report]
) -> None:
    with pytest.raises(ConfigError) as error:
        run(without_leases, [f"{TABLE}*"], spark)

    assert (error.value.exit_code, str(error.value)) == (2, WITHOUT_LEASE.format(f"{TABLE}@hudi_mor"))


def test_gold_in_hudi_without_leases_is_refused(spark: SparkSession, without_leases: Config) -> None:
    with pytest.raises(ConfigError) as error:
        run_gold(without_leases, ["per_film"], spark)
    (maintained,) = run_maintain(without_leases, ["per_film"], spark, layer="gold").tables

    assert str(error.value) == WITHOUT_LEASE.format("per_film")
    assert maintained.error is not None
    assert (maintained.error.exit_code, maintained.error.message) == (2, str(error.value))


def test_bronze_needs_no_leases(spark: SparkSession, without_leases: Config) -> None:
    (maintained,) = run_maintain(without_leases, [TABLE], spark, layer="bronze").tables

    assert maintained.error is None
