"""Which runs get a JVM with fewer compilers; pauses of continuous runs, and what they do when their JVM exits."""

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from cdc_lake.cli.run import _pause
from cdc_lake.config import CHECKOUT, Config, LakeConfig
from cdc_lake.errors import CdcLakeError, ConfigError, DataLossError, DriverDiedError, InfrastructureError
from cdc_lake.runs import scheduler as turns
from cdc_lake.runs.context import Layer, NewData, OpenRun, Run, Work
from cdc_lake.runs.report import Report, TableReport
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.spark.java import SHORT_JVM, find_java
from cdc_lake.storage.files import LocalFiles

pytestmark = pytest.mark.core


@dataclass
class Fake(Layer):
    """A fake: a layer that only looks at its tables."""

    look: Callable[[TableReport], NewData | None]

    def new_data(self, done: TableReport) -> NewData | None:
        return self.look(done)

    def before_report(self) -> None:
        pass

    def work(self, run: OpenRun) -> Work:
        raise AssertionError("the tests end before")


class Started(Exception):
    """A session would start."""


LITTLE, MUCH, OF_A_LARGE_TABLE = NewData(20_000, 64 << 20), NewData(20_001), NewData(1, (64 << 20) + 1)


@pytest.mark.parametrize(
    ("found", "is_continuous", "is_short"),
    [
        ([LITTLE], False, True),
        ([LITTLE] * 8 + [NewData(0)] * 100, False, True),
        ([LITTLE] * 9, False, False),
        ([LITTLE, MUCH], False, False),
        ([LITTLE, OF_A_LARGE_TABLE], False, False),
        ([LITTLE, None], False, False),
        ([LITTLE], True, False),
    ],
)
def test_session_is_short_if_little_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: list[NewData | None], is_continuous: bool, is_short: bool
) -> None:
    asked: list[bool] = []

    def start(*_: object, is_short: bool, **__: object) -> None:
        asked.append(is_short)
        raise Started

    monkeypatch.setattr(turns, "build_session", start)
    by_name = {str(number): new for number, new in enumerate(found)}
    run = Run.begin(Config(lake=LakeConfig(root=str(tmp_path))), Report(layer="silver"))

    with pytest.raises(Started):
        TableScheduler(is_continuous=is_continuous).run(
            Fake(run, LocalFiles(), list(by_name), lambda done: by_name[done.table])
        )

    assert asked == [is_short]


@pytest.mark.parametrize(
    ("layer", "with_gold", "expected"), [("silver", False, False), ("gold", False, True), ("bronze", True, True)]
)
def test_only_sessions_that_gold_uses_have_user_sql(
    monkeypatch: pytest.MonkeyPatch, layer: str, with_gold: bool, expected: bool
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(turns, "build_session", lambda *_, has_user_sql, **__: asked.append(has_user_sql))
    scheduler = TableScheduler(has_user_sql=with_gold)

    scheduler.spark(Config(), layer)
    scheduler.spark(Config(), "another layer")

    assert asked == [expected]


def test_failed_check_without_spark_leaves_the_error_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object, **__: object) -> None:
        raise Started

    def look(done: object) -> NewData:
        raise OSError("the folder cannot be read")

    run = Run.begin(Config(lake=LakeConfig(root=str(tmp_path))), Report(layer="silver"))

    monkeypatch.setattr(turns, "build_session", start)
    with pytest.raises(Started):
        TableScheduler().run(Fake(run, LocalFiles(), ["one"], look))


def test_continuous_run_ends_once_its_jvm_has_exited(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = TableScheduler(spark=object(), is_continuous=True)  # type: ignore[arg-type]
    monkeypatch.setattr(turns, "is_alive", lambda spark: True)
    scheduler.check_jvm()
    monkeypatch.setattr(turns, "is_alive", lambda spark: False)

    with pytest.raises(DriverDiedError, match="the driver's JVM has exited"):
        scheduler.check_jvm()

    scheduler.stop()
    scheduler.check_jvm()  # the JVM may end first


@pytest.mark.parametrize(
    ("interval", "took", "error", "batches", "pause"),
    [
        (60.0, 12.0, None, 1, 48.0),
        (60.0, 70.0, None, 0, 0.0),
        (None, 5.0, None, 1, 0.0),
        (None, 0.01, None, 0, 0.5),
        (None, 0.3, None, 0, 2.7),
        (None, 5.0, None, 0, 10.0),
        (None, 0.01, InfrastructureError, 1, 10.0),
        (None, 0.01, DataLossError, 1, 0.0),
    ],
)
def test_continuous_run_pauses_if_there_is_no_news(
    interval: float | None, took: float, error: type[CdcLakeError] | None, batches: int, pause: float
) -> None:
    done = TableReport(table="t", status="ok" if batches else "unchanged", batches=batches)
    failed = TableReport(table="u")
    if error:
        failed.fail(error("u", "what is wrong", "what to do"))

    found = _pause(interval, took, [Report(layer="silver", tables=[done, failed])])

    assert found == pytest.approx(pause)


def test_page_recommends_the_same_options_for_spark_submit() -> None:
    page = (CHECKOUT / "docs" / "how-to" / "run-jobs.md").read_text(encoding="utf-8")

    assert f'SPARK_SUBMIT_OPTS="{SHORT_JVM}"' in page


def test_unwritable_local_lake_is_refused_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "build_session", None)
    (tmp_path / "file").touch()
    run = Run.begin(Config(lake=LakeConfig(root=str(tmp_path / "file" / "lake"))), Report(layer="bronze"))

    with pytest.raises(ConfigError, match=r"lake\.root: .*/file/lake: a file there cannot be written: .*another root"):
        TableScheduler().open_storage(run)


@pytest.mark.parametrize(
    ("chosen", "collector"), [("", "UseSerialGC"), ("-XX:+UseG1GC", "UseG1GC"), ("-XX:+UseParallelGC", "UseParallelGC")]
)
def test_short_jvm_starts_with_the_users_collector(chosen: str, collector: str) -> None:
    command = [find_java(), *SHORT_JVM.split(), *chosen.split(), "-XX:+PrintFlagsFinal", "-version"]

    flags = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert re.findall(r"\b(Use(?:Serial|G1|Parallel)GC) +:?= +true", flags) == [collector]
