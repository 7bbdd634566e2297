"""Runs that end before their tables start: their reports, what continuous runs print, and what `status` shows."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cdc_lake.cli.app import app
from cdc_lake.cli.flags import RunOptions
from cdc_lake.cli.run import _run_continuously
from cdc_lake.config import Config, LakeConfig, MetricsConfig, RunConfig
from cdc_lake.errors import CdcLakeError, ConfigError, DataLossError, InfrastructureError, UnknownTableError
from cdc_lake.operations import status as status_module
from cdc_lake.operations.status import status
from cdc_lake.runs.context import Run
from cdc_lake.runs.report import Report, ReportedError, RunLayer, TableReport
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.storage.files import LocalFiles

pytestmark = pytest.mark.core

DOWN = InfrastructureError("Registry at r", "it does not respond", "start it, then run again")
SETTINGS = "lake: {root: lake}\nkafka: {bootstrap_servers: 'localhost:1', timeout_seconds: 1}\n"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    metrics = MetricsConfig(prometheus_folder=str(tmp_path / "metrics"))
    return Config(lake=LakeConfig(root=str(tmp_path / "lake")), run=RunConfig(metrics=metrics))


def failing(error: CdcLakeError) -> Callable[[], Sequence[Report]]:
    def run() -> Sequence[Report]:
        raise error

    return run


def written(root: Path) -> list[Report]:
    return [Report.model_validate_json(file.read_text()) for file in sorted((root / "_runs").glob("*.json"))]


def test_failed_start_leaves_a_report_and_a_metric(config: Config, tmp_path: Path) -> None:
    (report,) = TableScheduler().attempt(config, "silver", failing(DOWN))

    assert (report.exit_code, report.tables) == (10, [])
    assert written(tmp_path / "lake") == [report]
    assert report.error == ReportedError.of(DOWN) and report.ended_at
    assert 'cdc_lake_run_failed{layer="silver"} 1.0' in (tmp_path / "metrics" / "cdc_lake_silver.prom").read_text()


def test_unwritable_lake_keeps_the_exit_code_of_the_run(config: Config, tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("not a folder")

    (report,) = TableScheduler().attempt(config, "silver", failing(DOWN))

    assert report.exit_code == 10
    assert report.unwritten and "_runs" in report.unwritten.message


def test_retried_start_leaves_one_report(config: Config, tmp_path: Path) -> None:
    tries = list[int]()

    def run() -> Sequence[Report]:
        tries.append(1)
        raise DOWN

    scheduler = TableScheduler(retry_seconds=3600)
    scheduler._pause = lambda seconds: scheduler.stop() if len(tries) == 3 else None  # type: ignore[method-assign]
    scheduler.attempt(config, "bronze", run)

    assert len(tries) == 4 and len(written(tmp_path / "lake")) == 1


def test_unknown_table_exits_2_with_the_report_as_json(tmp_path: Path) -> None:
    (tmp_path / "conf.yml").write_text(SETTINGS)
    (tmp_path / "lake" / "bronze" / "shop" / "_delta_log").mkdir(parents=True)
    file = tmp_path / "report.json"
    flags = ["--table", "shops", "--config", str(tmp_path / "conf.yml"), "--json", "--json-file", str(file)]

    ended = CliRunner().invoke(app, ["run", "silver", *flags])

    (report,) = written(tmp_path / "lake")
    assert ended.exit_code == 2 and report.error and report.error.code == UnknownTableError.code
    assert "similar names: shop" in ended.stderr and f"error {report.error.code}" in ended.stderr
    assert Report.model_validate_json(ended.stdout.splitlines()[-1]) == report
    assert Report.model_validate_json(file.read_text()) == report


def test_next_layer_does_not_run_after_a_failed_start(tmp_path: Path) -> None:
    (tmp_path / "conf.yml").write_text(SETTINGS)

    ended = CliRunner().invoke(
        app, ["run", "bronze", "silver", "gold", "--table", "t", "--config", str(tmp_path / "conf.yml")]
    )

    (report,) = written(tmp_path / "lake")
    assert (ended.exit_code, report.layer) == (10, "bronze")


class Rounds:
    """Rounds of a continuous run, which end with these reports; after the last one, the run is stopped."""

    def __init__(self, scheduler: TableScheduler, config: Config, reports: Sequence[Report | CdcLakeError]) -> None:
        self._reports = list(reports)
        self._scheduler = scheduler
        self._config = config
        scheduler.wait = lambda seconds: not self._reports  # type: ignore[method-assign]

    def __call__(self) -> Sequence[Report]:
        outcome = self._reports.pop(0)
        if isinstance(outcome, CdcLakeError):
            return self._scheduler.attempt(self._config, "bronze", failing(outcome))
        outcome.end()
        return [outcome]


def landed(number: int, *, warning: str | None = None) -> Report:
    done = TableReport(table="shop.orders", status="ok", batches=1, rows={"read": number})
    if warning:
        done.warn(warning)
    return Report(layer="bronze", tables=[done, TableReport(table="shop.items")])


def test_continuous_run_prints_a_line_a_round(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    scheduler = TableScheduler(is_continuous=True)
    reports = [landed(1, warning="a column is wider"), landed(2, warning="a column is wider"), landed(3)]

    code = _run_continuously([Rounds(scheduler, config, reports)], scheduler, RunOptions())

    said = capsys.readouterr()
    assert code == 0
    assert [line.split("Z ")[1].rpartition(";")[0] for line in said.out.splitlines()] == [
        f"bronze: 1 ok (shop.orders), 1 unchanged; {number} read" for number in (1, 2, 3)
    ]
    assert said.err.splitlines() == ["warning shop.orders: a column is wider"]


def test_continuous_run_reports_a_lasting_failure_once(
    config: Config, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    scheduler = TableScheduler(is_continuous=True)
    rounds = Rounds(scheduler, config, [DOWN, DOWN, DOWN])

    assert _run_continuously([rounds], scheduler, RunOptions()) == 10

    said = capsys.readouterr()
    assert said.err.splitlines() == [f"error CDC-300 {DOWN}"]
    assert len(said.out.splitlines()) == len(written(tmp_path / "lake")) == 1


def test_continuous_run_ends_with_an_error_that_stays(config: Config) -> None:
    scheduler = TableScheduler(is_continuous=True)
    rounds = Rounds(scheduler, config, [ConfigError("--table", "no such topic", "correct it"), landed(1)])

    assert _run_continuously([rounds], scheduler, RunOptions()) == 2


def write(config: Config, hours_ago: float, layer: RunLayer, *tables: TableReport, failed: bool = False) -> Report:
    """Write a report of a run."""
    at = datetime.now(UTC) - timedelta(hours=hours_ago)
    error = ReportedError.of(DOWN) if failed else None
    report = Report(layer=layer, started_at=at, ended_at=at, tables=list(tables), error=error)
    folder = Path(config.lake.root) / "_runs"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / report.file_name).write_text(report.model_dump_json())
    return report


@pytest.fixture
def without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lake has no table, so Hadoop's configuration would decide where its folder is."""
    monkeypatch.setattr(status_module, "files_of", lambda lake, spark: LocalFiles())


@pytest.mark.usefixtures("without_java")
def test_status_shows_the_failed_run_until_another_starts(config: Config) -> None:
    write(config, 5, "silver", failed=True)
    failed = write(config, 4, "bronze", failed=True)
    write(config, 3, "silver")

    found = status(config, ["*"])

    assert [(run.layer, run.run_id, run.code) for run in found.failed_runs] == [("bronze", failed.run_id, "CDC-300")]
    assert found.tables == [] and found.broker_error


@pytest.mark.usefixtures("without_java")
def test_status_shows_a_table_that_failed_before_it_existed(config: Config) -> None:
    refused = TableReport(table="shop.orders")
    refused.fail(ConfigError("shop.orders", "its folder is in another table", "use another lake.root"))
    write(config, 2, "bronze", refused, TableReport(table="shop.items", status="ok"))

    (found,) = status(config, ["shop.*"]).tables

    assert (found.layer, found.table, found.commit, found.is_failed) == ("bronze", "shop.orders", None, True)
    assert found.last_run and found.last_run.code == "CDC-200"


def test_skipped_table_stays_failed_in_later_reports(config: Config) -> None:
    scheduler = TableScheduler(is_continuous=True)
    broken = ReportedError.of(DataLossError("shop.items", "records are gone", "load it again"))
    scheduler.skipped["bronze"]["shop.items"] = broken
    reports = [Report(layer="bronze", tables=[TableReport(table="shop.orders")]) for _ in range(2)]

    for report in reports:
        scheduler.end(Run.begin(config, report), LocalFiles())

    assert [{done.table: done.status for done in report.tables} for report in reports] == [
        {"shop.orders": "unchanged", "shop.items": "failed"}
    ] * 2
    assert [(report.is_news, report.exit_code) for report in reports] == [(True, 20), (False, 20)]
