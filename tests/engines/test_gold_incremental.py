"""Gold's incremental refresh gives the same result as a full one, after any change of silver."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from deltalake import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession
from support.silver_writer import Change, SilverWriter

from cdc_lake.columns import SILVER_META
from cdc_lake.config import TABLE_TYPES, Config, GoldConfig, LakeConfig, StorageConfig, TableConfig, TableType
from cdc_lake.config.gold_models import read_model
from cdc_lake.gold import run as gold_run
from cdc_lake.gold.run import run_gold
from cdc_lake.runs.context import lake_of
from cdc_lake.runs.report import TableReport

SALE, STORE = "shop.public.sale", "shop.public.store"
COLUMNS = {
    SALE: "id int, store_id int, sold_at timestamp, amount decimal(9,2)",
    STORE: "store_id int, region string",
}
START = datetime(2026, 10, 25, tzinfo=UTC)

SOURCES = f"""\
-- sources:
--   sale: {SALE}
--   store: {STORE}
"""
MODELS = {
    "per_store": """\
-- keys: [store_id]
-- touched:
--   sale: SELECT store_id FROM sale
--   store: SELECT store_id FROM store
SELECT store.store_id, store.region, count(sale.id) AS sales, coalesce(sum(sale.amount), 0) AS amount
FROM store LEFT JOIN sale ON sale.store_id = store.store_id
GROUP BY store.store_id, store.region
""",
    "sliding": """\
-- keys: [region, window_start]
-- touched:
--   sale: |
--     SELECT coalesce(region, 'Unassigned') AS region, window(sold_at, '10 minutes', '5 minutes').start AS window_start
--     FROM sale LEFT JOIN store ON store.store_id = sale.store_id
--   store: |
--     SELECT region, window(sold_at, '10 minutes', '5 minutes').start AS window_start
--     FROM sale JOIN store ON store.store_id = sale.store_id
--     UNION ALL
--     SELECT 'Unassigned', window(sold_at, '10 minutes', '5 minutes').start
--     FROM sale JOIN store ON store.store_id = sale.store_id
-- window: {source: sale, time: sold_at, start: window_start, length: 10 minutes, lateness: 20 minutes}
SELECT region, window.start AS window_start, window.end AS window_end, sum(amount) AS amount, count(*) AS sales,
  window.end <= (SELECT at FROM watermark) AS is_final
FROM (
  SELECT coalesce(region, 'Unassigned') AS region, window(sold_at, '10 minutes', '5 minutes') AS window, amount
  FROM sale LEFT JOIN store ON store.store_id = sale.store_id
)
GROUP BY region, window
""",
    "best_of_region": """\
-- keys: [id]
-- groups: [region]
-- touched:
--   sale: SELECT region FROM sale JOIN store ON store.store_id = sale.store_id
--   store: SELECT region FROM store
SELECT id, region, amount FROM (
  SELECT sale.id, region, amount, row_number() OVER (PARTITION BY region ORDER BY amount DESC, id) AS place
  FROM sale JOIN store ON store.store_id = sale.store_id
) WHERE place <= 2
""",
    "unsold": """\
-- keys: [store_id]
-- touched:
--   sale: SELECT store_id FROM sale
--   store: SELECT store_id FROM store
SELECT store_id, region FROM store WHERE NOT EXISTS (SELECT 1 FROM sale WHERE sale.store_id = store.store_id)
""",
    "per_day": """\
-- keys: [day]
-- touched:
--   sale: SELECT to_date(sold_at) AS day FROM sale
--   store: everything
-- window: {source: sale, time: sold_at, start: day, length: 1 day}
-- expectations:
--   - {name: some, holds: sales > 1, on_fail: reject}
SELECT to_date(sold_at) AS day, count(*) AS sales, map('most', max(amount)) AS best
FROM sale LEFT JOIN store ON store.store_id = sale.store_id GROUP BY 1
""",
}
"""Models of every kind: outer and inner joins, sliding windows, ranks, missing rows, days, a map, rejected rows."""


class Lake:
    """A lake whose silver tables change by the product's own merges, and incremental models."""

    def __init__(self, spark: SparkSession, root: Path, table_type: TableType, models: Sequence[str]) -> None:
        held_in = TABLE_TYPES[table_type]
        self.models = root / "gold"
        self.models.mkdir()
        kind = f", type: {held_in.type}" if held_in.type else ""
        for name in models:
            header = (
                f"-- name: {name}\n-- refresh: incremental\n-- table: {{format: {held_in.format}{kind}}}\n{SOURCES}"
            )
            (self.models / f"{name}.sql").write_text(header + MODELS[name])
        self._spark = spark
        self.config = Config(
            lake=LakeConfig(root=str(root / "lake")),
            gold=GoldConfig(models=str(self.models)),
            defaults=TableConfig(storage=(held_in,)),
        )

    def change(self, topic: str, rows: Change, *, soft: bool = False) -> None:
        SilverWriter(self._spark, self.config, COLUMNS).change(topic, rows, soft=soft)

    def merge(self, topic: str, rows: DataFrame) -> None:
        SilverWriter(self._spark, self.config, COLUMNS).merge(topic, rows)

    def refresh(self) -> dict[str, TableReport]:
        report = run_gold(self.config, ["*"], self._spark)
        assert report.exit_code == 0, report
        return {table_report.table: table_report for table_report in report.tables}

    def check(self, name: str) -> None:
        """Check that gold equals the model's query on all of silver."""
        assert_df_equality(self._gold(name), self._expected(name), ignore_nullable=True, ignore_metadata=True)

    def rows(self, name: str) -> list[Row]:
        """Gold's keys, in order."""
        return self._gold(name).collect()

    def _gold(self, name: str) -> DataFrame:
        stored_in = self.config.defaults.storage[0]
        return self._in_order(name, lake_of(self.config).gold(self._spark, name, stored_in).read())

    def _expected(self, name: str) -> DataFrame:
        session = self._spark.newSession()
        for alias, topic in {"sale": SALE, "store": STORE}.items():
            silver = lake_of(self.config).silver(topic)[0].open(session).read()
            silver.where("NOT __deleted").drop(*SILVER_META).createOrReplaceTempView(alias)
        session.sql("SELECT max(sold_at) - INTERVAL 20 MINUTES AS at FROM sale").createOrReplaceTempView("watermark")
        header = MODELS[name].rpartition("-- ")[2].partition("\n")[0]
        rows = session.sql(MODELS[name].rpartition("-- ")[2].partition("\n")[2])
        return self._in_order(name, rows.where("sales > 1" if "sales > 1" in header else "true"))

    def _in_order(self, name: str, rows: DataFrame) -> DataFrame:
        """In one partition: sorting several would need one more Spark job."""
        return rows.coalesce(1).sortWithinPartitions(*read_model(self.models / f"{name}.sql").header.keys)


def sale(rng: random.Random, number: int) -> tuple[Any, ...]:
    moment = START + timedelta(minutes=rng.choice((0, 3, 5, 11, 1439, 1500, 4000)))
    return number, rng.choice((1, 2, 3, 4, 9, None)), moment, Decimal(rng.randrange(1, 400)) / 4


def batch(rng: random.Random, topic: str, size: int) -> Change:
    if topic == SALE:
        return {n: sale(rng, n) if rng.random() < 0.8 else None for n in rng.sample(range(40), size)}
    return {
        n: (n, rng.choice(("north", "south", None))) if rng.random() < 0.8 else None
        for n in rng.sample(range(1, 5), size)
    }


def check(
    spark: SparkSession, root: Path, table_type: TableType, seed: int, models: Sequence[str], *, times: int
) -> None:
    """Change silver at random and refresh, until each model was refreshed incrementally this many times."""
    rng = random.Random(seed)
    lake = Lake(spark, root, table_type, models)
    lake.change(SALE, {n: sale(rng, n) for n in range(30)})
    lake.change(STORE, {n: (n, "north") for n in range(1, 4)})
    partly = dict.fromkeys(models, 0)
    while min(partly.values()) < times:
        reports = lake.refresh()
        for name in models:
            lake.check(name)
            partly[name] += "groups" in reports[name].rows
        for topic in rng.choice(((SALE,), (SALE, STORE), (SALE, SALE))):
            lake.change(topic, batch(rng, topic, rng.randrange(1, 4)), soft=rng.random() < 0.5)


@pytest.mark.parametrize(("table_type", "model"), [("delta", "sliding"), ("hudi-mor", "best_of_region")])
def test_incremental_refresh_equals_full_refresh(
    spark: SparkSession, tmp_path: Path, table_type: TableType, model: str
) -> None:
    check(spark, tmp_path, table_type, seed=1, models=[model], times=1)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("table_type", TABLE_TYPES)
def test_incremental_refresh_of_all_models_equals_full_refresh(
    spark: SparkSession, tmp_path: Path, table_type: TableType, seed: int
) -> None:
    check(spark, tmp_path, table_type, seed, list(MODELS), times=3)


@pytest.mark.core
def test_emptied_groups_and_closed_windows_are_refreshed(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, "delta", ["sliding"])
    lake.change(SALE, {1: (1, 1, START, Decimal(5)), 2: (2, 2, START, Decimal(7))})
    lake.change(STORE, {1: (1, "north"), 2: (2, "south")})
    lake.refresh()
    assert {row["region"] for row in lake.rows("sliding")} == {"north", "south"}

    # Only the old versions of both sources show that the sale was in the north.
    lake.change(SALE, {1: (1, 2, START, Decimal(5))})
    lake.change(STORE, {1: (1, "east")})
    assert "groups" in lake.refresh()["sliding"].rows
    lake.check("sliding")
    before = lake.rows("sliding")
    assert {row["region"] for row in before} == {"south"}

    # No row of the windows changes: a much later sale closes them.
    assert not any(row["is_final"] for row in before)
    lake.change(SALE, {3: (3, 2, START + timedelta(days=2), Decimal(9))})
    assert lake.refresh()["sliding"].rows["groups"] == 4
    lake.check("sliding")
    assert [row["is_final"] for row in lake.rows("sliding")] == [True, True, False, False]


def test_vacuumed_silver_version_forces_full_refresh(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, "delta", ["per_store"])
    lake.change(SALE, {n: sale(random.Random(n), n) for n in range(9)})
    lake.change(STORE, {n: (n, "north") for n in range(1, 5)})
    lake.refresh()
    lake.change(SALE, {1: None})
    silver = DeltaTable(f"{lake.config.lake.root}/silver/{SALE.replace('.', '/')}")
    assert silver.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)

    report = lake.refresh()["per_store"]

    assert (report.status, "groups" in report.rows) == ("ok", False)
    assert "full refresh" in report.warnings[0] and "were vacuumed" in report.warnings[0]
    lake.check("per_store")


@contextmanager
def counted(spark: SparkSession) -> Iterator[dict[str, int]]:
    """The bytes and rows that Spark's tasks read and write in the meantime."""

    def stages() -> list[Any]:
        nothing = spark.sparkContext._gateway.new_array(spark._jvm.double, 0)
        spark._jsc.sc().listenerBus().waitUntilEmpty()
        listed = spark._jsc.sc().statusStore().stageList(None, False, False, nothing, None)
        return [listed.apply(number) for number in range(listed.size())]

    found: dict[str, int] = {}
    # By stage number: Spark forgets the oldest stages of a long session, so sums over all of them can decrease.
    last = max((stage.stageId() for stage in stages()), default=-1)
    yield found
    run = [stage for stage in stages() if stage.stageId() > last]
    found["rows read"] = sum(stage.inputRecords() for stage in run)
    found["bytes written"] = sum(stage.outputBytes() for stage in run)


def test_refresh_reads_and_writes_in_proportion_to_the_change(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path, "delta", ["per_day"])
    model = lake.models / "per_day.sql"
    model.write_text(model.read_text().replace("{format: delta}", "{partition_by: [month(day)]}"))
    by_month = TableConfig(storage=(StorageConfig(partition_by=("month(sold_at)",)),))
    lake.config = lake.config.model_copy(update={"defaults": by_month})
    every_36_minutes = (
        "CAST(id AS int) AS id",
        "CAST(id % 5 AS int) AS store_id",
        f"timestamp'{START:%Y-%m-%d}' + make_dt_interval(0, 0, CAST(id * 36 AS int)) AS sold_at",
        "CAST(1 AS decimal(9,2)) AS amount",
    )
    lake.merge(SALE, spark.range(60_000).selectExpr(*every_36_minutes))
    lake.change(STORE, {number: (number, "north") for number in range(4)})

    with counted(spark) as full:
        lake.refresh()
    lake.merge(
        SALE, spark.range(59_900, 60_000).selectExpr(*every_36_minutes[:-1], "CAST(2 AS decimal(9,2)) AS amount")
    )
    with counted(spark) as again:
        report = lake.refresh()["per_day"]

    assert report.rows == {"groups": 3, "written": 3, "removed": 0}
    assert again["rows read"] * 10 < full["rows read"], (again, full)
    assert again["bytes written"] * 10 < full["bytes written"], (again, full)


def test_refresh_of_few_long_rows_is_interpreted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(spark, tmp_path, "delta", ["per_store"])
    lake.change(SALE, {n: sale(random.Random(n), n) for n in range(9)})
    long = random.Random(1).randbytes(1_500_000).hex()  # 3 MB, compressed to half
    lake.change(STORE, {n: (n, f"{n}{long}") for n in range(1, 3)})
    compiled, refresh = [], gold_run.refresh

    def noted(model_run: Any, inputs: Any) -> Any:
        compiled.append(model_run.session.conf.get("spark.sql.codegen.wholeStage"))
        return refresh(model_run, inputs)

    monkeypatch.setattr(gold_run, "refresh", noted)
    assert lake.refresh()["per_store"].status == "ok"

    assert compiled == ["false"]
