"""Tables that are put back from a file backup: their numbers then mean other commits, and each reader notices."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from events import OPTIONAL_INT, Topic
from fakes import FakeBroker
from pyspark.sql import SparkSession

from cdc_lake.config import Config, GoldConfig, LakeConfig, SilverTable, TableConfig
from cdc_lake.layers.bronze import run_bronze
from cdc_lake.layers.gold import run_gold
from cdc_lake.layers.run import open_gold, silver_targets
from cdc_lake.layers.silver import run_silver
from cdc_lake.layers.turns import Workers
from cdc_lake.metrics.report import Report, TableReport
from cdc_lake.tables.delta import DeltaLakeTable

DELTA, HUDI = SilverTable(), SilverTable(format="hudi", type="mor")
MODEL = """\
-- name: per_half
-- keys: [half]
-- sources: {{thing: {table}}}
-- refresh: incremental
-- touched: {{thing: SELECT id % 2 AS half FROM thing}}
SELECT id % 2 AS half, count(*) AS things, sum(n) AS n FROM thing GROUP BY 1
"""


class Lake:
    """A topic in all three layers, and its source: the newest `n` of each key."""

    def __init__(self, spark: SparkSession, root: Path, *silver: SilverTable) -> None:
        self.spark, self.root = spark, root / "lake"
        self.topic, self.broker, self.source = Topic({"n": OPTIONAL_INT}), FakeBroker(), dict[int, int]()
        (root / "models").mkdir()
        (root / "models" / "per_half.sql").write_text(MODEL.format(table=self.topic.table))
        self.config = Config(
            lake=LakeConfig(root=str(self.root)),
            gold=GoldConfig(models=str(root / "models")),
            defaults=TableConfig(silver=silver),
        )
        self.targets = silver_targets(self.config, self.topic.table)
        self._lsn = 0

    def change(self, *keys: int) -> None:
        """Let the source set `n` of each key, and Kafka have it."""
        for key in keys:
            self._lsn += 1
            op = "u" if key in self.source else "c"
            self.source[key] = self._lsn
            self.broker.append(self.topic.change(op, key, {"n": self._lsn}, lsn=self._lsn))

    def land(self) -> None:
        (done,) = run_bronze(self.config, ["*"], self.spark, source=self.broker, registry=self.topic.registry).tables
        assert done.error is None, done.error

    def fold(self) -> list[TableReport]:
        return succeeded(run_silver(self.config, ["*"], self.spark))

    def refresh(self) -> TableReport:
        (done,) = succeeded(run_gold(self.config, ["*"], self.spark))
        return done

    def take(self, *keys: int) -> None:
        self.change(*keys)
        self.land()
        self.fold()
        self.refresh()

    def check(self) -> None:
        """See that silver and gold are as the source is."""
        for target in self.targets:
            rows = target.open(self.spark).read().select("id", "n").collect()
            assert sorted(map(tuple, rows)) == sorted(self.source.items()), target.name
        halves = [(half, [n for key, n in self.source.items() if key % 2 == half]) for half in (0, 1)]
        found = open_gold(self.config, "per_half", self.spark).read().select("half", "things", "n").collect()
        assert sorted(map(tuple, found)) == [(half, len(those), sum(those)) for half, those in halves]

    def back_up(self, *layers: str) -> Callable[[], None]:
        """Copy the folders of layers; what is returned puts the copies back."""
        kept = self.root.parent / f"backup {'-'.join(layers)} {self._lsn}"
        for layer in layers:
            shutil.copytree(self.root / layer, kept / layer)

        def put_back() -> None:
            for layer in layers:
                shutil.rmtree(self.root / layer)
                shutil.copytree(kept / layer, self.root / layer)

        return put_back


def succeeded(report: Report) -> list[TableReport]:
    assert [done.error for done in report.tables if done.error] == []
    return report.tables


def is_told(done: TableReport) -> bool:
    return any("history" in warning and "another" in warning for warning in done.warnings)


@pytest.fixture(params=[(DELTA, HUDI), pytest.param((HUDI,), marks=pytest.mark.deep)], ids=["delta", "hudi"])
def lake(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Lake:
    lake = Lake(spark, tmp_path, *request.param)
    lake.take(1, 2, 3)
    return lake


def test_bronze_put_back_is_compared_and_no_row_is_missing(lake: Lake) -> None:
    put_back = lake.back_up("bronze")
    for keys in ((1, 4), (5,)):
        lake.take(*keys)
    put_back()

    lake.change(6)  # one batch now brings what were two, and one event more
    lake.land()
    lake.change(7)
    lake.land()
    done = lake.fold()
    lake.refresh()

    # Bronze has as many commits as silver had consumed.
    bronze = DeltaLakeTable(lake.spark, f"{lake.root}/bronze/{lake.topic.table.replace('.', '/')}").progress()
    assert bronze is not None and bronze.commit == 3
    assert [is_told(one) for one in done] == [True] * len(lake.targets)
    lake.check()
    assert {one.status for one in lake.fold()} == {"unchanged"}
    lake.take(1, 8)
    lake.check()


def test_silver_put_back_is_caught_up_and_gold_is_made_anew(lake: Lake) -> None:
    put_back = lake.back_up(*(folder.name for folder in lake.root.glob("silver*")))
    lake.take(1, 4)
    lake.change(2)
    lake.land()
    put_back()

    first = lake.fold()[0]
    done = lake.refresh()

    assert not is_told(first) and is_told(done)  # both batches in one commit, whose number gold had already
    lake.check()
    put_back = lake.back_up("gold")
    lake.take(3)
    put_back()
    assert not is_told(lake.refresh())
    lake.check()


def test_look_without_spark_sees_another_history(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    put_back = lake.back_up("bronze")
    lake.take(4)
    put_back()
    lake.change(5)
    lake.land()
    found: list[bool] = []
    finds = Workers.finds_nothing_new

    def note(self: Workers, *arguments: object) -> bool:
        found.append(finds(self, *arguments))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(Workers, "finds_nothing_new", note)
    for run in (lake.fold, lake.refresh, lake.fold, lake.refresh):
        run()

    assert found == [False, False, True, True]
    lake.check()
