"""Which runs are so short that they get a JVM with fewer compilers, and continuous runs whose JVM has exited."""

from pathlib import Path

import pytest

from cdc_lake.config import CHECKOUT, Config, LakeConfig
from cdc_lake.errors import ConfigError, DriverDiedError
from cdc_lake.runs import scheduler as turns
from cdc_lake.runs.context import Run
from cdc_lake.runs.report import Failure, Report
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.runs.work import NewData
from cdc_lake.spark.java import SHORT_JVM
from cdc_lake.storage.local import LocalFiles

pytestmark = pytest.mark.core

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
    monkeypatch.setattr(turns, "build_session", lambda *_, is_short, **__: asked.append(is_short))
    config = Config(lake=LakeConfig(root=str(tmp_path)))
    scheduler, names = TableScheduler(is_continuous=is_continuous), [str(number) for number in range(len(found))]
    by_name = dict(zip(names, found, strict=True))

    run = Run.begin(config, Report(layer="silver"))
    assert not scheduler.finds_nothing_new(run, LocalFiles(), names, lambda done: by_name[done.table])
    scheduler.spark(config, "a run")

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
    scheduler.for_another_layer().spark(Config(), "another layer")

    assert asked == [expected]


def test_layers_stop_together_and_skip_tables_of_their_own() -> None:
    bronze = TableScheduler(is_continuous=True)
    silver = bronze.for_another_layer()

    bronze.skipped["a table"] = Failure(code="CDC-000", message="", exit_code=1, retryable=False)
    bronze.stop()

    assert silver.skipped == {}
    assert silver.wait(0)


def test_failed_check_without_spark_leaves_the_error_to_spark(tmp_path: Path) -> None:
    def look(done: object) -> NewData:
        raise OSError("the folder cannot be read")

    run = Run.begin(Config(lake=LakeConfig(root=str(tmp_path))), Report(layer="silver"))

    assert not TableScheduler().finds_nothing_new(run, LocalFiles(), ["one"], look)


def test_continuous_run_ends_once_its_jvm_has_exited(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = TableScheduler(spark=object(), is_continuous=True)  # type: ignore[arg-type]
    monkeypatch.setattr(turns, "is_alive", lambda spark: True)
    scheduler.check_jvm()
    monkeypatch.setattr(turns, "is_alive", lambda spark: False)

    with pytest.raises(DriverDiedError, match="the driver's JVM has exited"):
        scheduler.check_jvm()

    scheduler.stop()
    scheduler.check_jvm()  # the JVM may end first


def test_page_recommends_the_same_options_for_spark_submit() -> None:
    page = (CHECKOUT / "docs" / "how-to" / "run-jobs.md").read_text(encoding="utf-8")

    assert f'SPARK_SUBMIT_OPTS="{SHORT_JVM}"' in page


def test_unwritable_local_lake_is_refused_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "build_session", None)
    (tmp_path / "file").touch()
    run = Run.begin(Config(lake=LakeConfig(root=str(tmp_path / "file" / "lake"))), Report(layer="bronze"))

    with pytest.raises(ConfigError, match=r"lake\.root: .*/file/lake: a file there cannot be written: .*another root"):
        TableScheduler().open_storage(run)
