"""If two tables have the same name in the catalog, only the later one fails."""

from pathlib import Path

from pyspark.sql import SparkSession
from support.events import OPTIONAL_STRING, START_MS, FakeRegistry, Topic
from support.fakes import FakeBroker

from cdc_lake.bronze.run import run_bronze
from cdc_lake.catalogs.glue import GlueCatalog
from cdc_lake.config import CatalogConfig, Config, LakeConfig
from cdc_lake.silver.run import run_silver


def test_only_the_later_of_two_tables_with_one_name_fails(spark: SparkSession, tmp_path: Path, aws: str) -> None:
    broker, registry = FakeBroker(), FakeRegistry()
    glue = {"type": "glue", "region": "eu-central-1", "endpoint": aws}

    def config(**catalog: object) -> Config:
        return Config(lake=LakeConfig(root=str(tmp_path)), catalog=CatalogConfig(**glue, **catalog))

    def failed(layer: str, settings: Config) -> dict[str, str]:
        if layer == "bronze":
            report = run_bronze(settings, ["*"], spark, source=broker, registry=registry)
        else:
            report = run_silver(settings, ["*"], spark)
        assert not [one.warnings for one in report.tables if one.warnings]
        return {one.table: one.error.message for one in report.tables if one.error}

    def write(name: str) -> None:
        topic = Topic({"text": OPTIONAL_STRING}, registry=registry, table=name, flat=True)
        broker.append(topic.change("c", 1, {"text": name}, lsn=1, ts_ms=START_MS))

    write("named.public.film")
    for layer in ("bronze", "silver"):
        assert failed(layer, config(table="{table}")) == {}
    for name in ("named.evil.film", "named.public.actor", "named.one.city", "named.two.city", "named..film"):
        write(name)

    of_bronze = failed("bronze", config(table="{table}", layers=["bronze"]))

    assert of_bronze.keys() == {"named.evil.film", "named.two.city", "named..film"}
    assert "`named_bronze.film`, which is the name of named.public.film" in of_bronze["named.evil.film"]
    assert "`named_bronze.city`, which is the name of named.one.city" in of_bronze["named.two.city"]
    assert failed("bronze", config(layers=[])).keys() == {"named..film"}
    of_silver = failed("silver", config(table="{table}", layers=["silver"]))
    assert of_silver.keys() == {"named.evil.film", "named.two.city"}

    assert failed("silver", config()) == {}
    listed = GlueCatalog(config().catalog).found("named_silver")
    assert listed.keys() == {"film", "evil_film", "actor", "city", "two_city"}
    assert listed["film"].location.endswith("/silver/named/public/film")
