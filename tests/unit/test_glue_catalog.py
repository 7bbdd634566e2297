"""Entries in AWS Glue, by moto's server: exactly what Athena and Spark on EMR look for."""

import builtins
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
import requests
from moto.server import ThreadedMotoServer
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from cdc_lake.catalogs import Entry, differences, open_catalog
from cdc_lake.catalogs.glue import GlueCatalog
from cdc_lake.config import CatalogConfig, Config
from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError, InstallationError

REGION = "eu-central-1"
PATH = "s3a://lake/silver/shop/public/film"
IN_S3 = PATH.replace("s3a", "s3")
COLUMNS = [
    StructField("id", IntegerType(), metadata={"comment": "the key"}),
    StructField("title", StringType()),
]
DELTA = Entry("shop.public.film", "silver", "shop_silver", "film", "delta", PATH, StructType(COLUMNS))
HUDI = replace(
    DELTA,
    kind="hudi_mor",
    schema=StructType([*COLUMNS, StructField("partition_title", StringType())]),
    partition_by=("partition_title",),
    partitions=("partition_title=a", "partition_title=b"),
)
SPARK_SCHEMA = (
    '{"type":"struct","fields":['
    '{"name":"id","type":"integer","nullable":true,"metadata":{"comment":"the key"}},'
    '{"name":"title","type":"string","nullable":true,"metadata":{}},'
    '{"name":"partition_title","type":"string","nullable":true,"metadata":{}}]}'
)


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials of nobody, and none of whoever runs the tests."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    requests.post(f"{url}/moto-api/reset", timeout=10)  # what it holds is the process's
    yield url
    server.stop()


def catalog(endpoint: str, **more: Any) -> GlueCatalog:
    return GlueCatalog(CatalogConfig(type="glue", region=REGION, endpoint=endpoint, timeout_seconds=5, **more))


def client(endpoint: str) -> Any:
    return boto3.client("glue", region_name=REGION, endpoint_url=endpoint)


def table(endpoint: str, name: str = "film") -> dict[str, Any]:
    found: dict[str, Any] = client(endpoint).get_table(DatabaseName="shop_silver", Name=name)["Table"]
    return found


def test_a_delta_table_is_what_athena_takes_for_one(endpoint: str) -> None:
    catalog(endpoint).put(DELTA)

    found = table(endpoint)
    assert found["TableType"] == "EXTERNAL_TABLE"
    assert found["Parameters"] == {"EXTERNAL": "TRUE", "spark.sql.sources.provider": "delta", "cdc_lake.path": IN_S3}
    assert found["PartitionKeys"] == []
    assert found["StorageDescriptor"] == {
        "Columns": [{"Name": "id", "Type": "int", "Comment": "the key"}, {"Name": "title", "Type": "string"}],
        "Location": IN_S3,
        "InputFormat": "org.apache.hadoop.mapred.SequenceFileInputFormat",
        "OutputFormat": "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
        "SerdeInfo": {
            "SerializationLibrary": "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe",
            "Parameters": {"path": IN_S3, "serialization.format": "1"},
        },
    }


def test_a_delta_table_may_be_listed_without_its_columns(endpoint: str) -> None:
    catalog(endpoint, delta_columns=False).put(DELTA)

    assert table(endpoint)["StorageDescriptor"]["Columns"] == [{"Name": "col", "Type": "array<string>"}]


@pytest.mark.parametrize(("name", "is_ro"), [("film", False), ("film_ro", True), ("film_rt", False)])
def test_a_merge_on_read_table_is_what_hudis_sync_makes_of_it(endpoint: str, name: str, is_ro: bool) -> None:
    catalog(endpoint).put(HUDI)

    found = table(endpoint, name)
    assert found["Parameters"] == {
        "EXTERNAL": "TRUE",
        "cdc_lake.path": IN_S3,
        "spark.sql.sources.provider": "hudi",
        "spark.sql.sources.schema.numPartCols": "1",
        "spark.sql.sources.schema.numParts": "1",
        "spark.sql.sources.schema.part.0": SPARK_SCHEMA,
        "spark.sql.sources.schema.partCol.0": "partition_title",
    }
    assert found["PartitionKeys"] == [{"Name": "partition_title", "Type": "string"}]
    storage = found["StorageDescriptor"]
    serde = {"path": IN_S3, "serialization.format": "1", "hoodie.query.as.ro.table": str(is_ro).lower()}
    input_format = "HoodieParquetInputFormat" if is_ro else "realtime.HoodieParquetRealtimeInputFormat"
    assert storage["InputFormat"] == f"org.apache.hudi.hadoop.{input_format}"
    assert storage["OutputFormat"] == "org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat"
    assert storage["SerdeInfo"] == {
        "SerializationLibrary": "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe",
        "Parameters": serde,
    }
    partitions = client(endpoint).get_partitions(DatabaseName="shop_silver", TableName=name)["Partitions"]
    wanted = {value: storage | {"Location": f"{IN_S3}/partition_title={value}"} for value in "ab"}
    assert {one["Values"][0]: one["StorageDescriptor"] for one in partitions} == wanted


def test_a_copy_on_write_table_has_one_entry(endpoint: str) -> None:
    catalog(endpoint).put(replace(HUDI, kind="hudi_cow", partition_by=(), partitions=()))

    found = client(endpoint).get_tables(DatabaseName="shop_silver")["TableList"]
    assert [one["Name"] for one in found] == ["film"]
    assert found[0]["StorageDescriptor"]["InputFormat"] == "org.apache.hudi.hadoop.HoodieParquetInputFormat"


def test_an_added_column_and_other_partitions_are_told_and_what_others_say_stays(endpoint: str) -> None:
    glue = client(endpoint)
    catalog(endpoint).put(HUDI)
    own = table(endpoint, "film_rt")
    kept = {name: own[name] for name in ("Name", "TableType", "PartitionKeys", "StorageDescriptor")}
    glue.update_table(
        DatabaseName="shop_silver", TableInput=kept | {"Parameters": own["Parameters"] | {"owner": "finance"}}
    )
    fields = [*COLUMNS, StructField("length", LongType()), HUDI.schema["partition_title"]]
    later = replace(HUDI, schema=StructType(fields), partitions=("partition_title=b", "partition_title=c"))

    catalog(endpoint).put(later)

    found = table(endpoint, "film_rt")
    columns = found["StorageDescriptor"]["Columns"]
    assert columns[-1] == {"Name": "length", "Type": "bigint"}
    assert found["Parameters"]["owner"] == "finance"
    assert '"name":"length"' in found["Parameters"]["spark.sql.sources.schema.part.0"]
    partitions = glue.get_partitions(DatabaseName="shop_silver", TableName="film_rt")["Partitions"]
    assert {one["Values"][0]: one["StorageDescriptor"]["Columns"] == columns for one in partitions} == {
        "b": True,
        "c": True,
    }


def test_what_is_as_it_should_be_is_not_written_again(endpoint: str) -> None:
    catalog(endpoint).put(DELTA)
    catalog(endpoint).put(DELTA)

    versions = client(endpoint).get_table_versions(DatabaseName="shop_silver", TableName="film")["TableVersions"]
    assert len(versions) == 1


def test_what_is_listed_is_found_as_it_was_put_and_dropped_for_good(endpoint: str) -> None:
    glue = catalog(endpoint)
    assert (glue.found("shop_silver"), glue.found("shop_silver", ["film"])) == ({}, {})
    glue.put(HUDI)

    found = glue.found("shop_silver")
    assert [differences(wanted, found[wanted.name]) for wanted in glue.listings(HUDI)] == [[], [], []]
    assert all(one.is_of(PATH) for one in found.values())
    assert glue.found("shop_silver", ["film_rt", "absent"]).keys() == {"film_rt"}
    glue.drop("shop_silver", "film_rt")
    glue.drop("shop_silver", "film_rt")
    assert glue.found("shop_silver").keys() == {"film", "film_ro"}


def test_more_partitions_than_a_question_takes(endpoint: str) -> None:
    many = replace(HUDI, kind="hudi_cow", partitions=tuple(f"partition_title={number:03}" for number in range(130)))
    glue = catalog(endpoint)
    glue.put(many)
    glue.put(replace(many, partitions=many.partitions[:70]))

    pages = client(endpoint).get_paginator("get_partitions").paginate(DatabaseName="shop_silver", TableName="film")
    values = [one["Values"][0] for page in pages for one in page["Partitions"]]
    assert sorted(values) == [f"{number:03}" for number in range(70)]


def test_a_catalog_that_does_not_answer_is_infrastructure() -> None:
    with pytest.raises(InfrastructureError, match=r"AWS Glue in eu-central-1: it does not answer"):
        catalog("http://127.0.0.1:9").found("shop_silver")


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("AccessDeniedException", ConfigError),
        ("UnrecognizedClientException", ConfigError),
        ("ThrottlingException", InfrastructureError),
        ("ValidationException", CdcLakeError),
    ],
)
def test_what_glue_refuses_is_told_in_words(endpoint: str, code: str, wanted: type[CdcLakeError]) -> None:
    error = catalog(endpoint)._failed(code, "because")

    assert type(error) is wanted
    assert "AWS Glue" in str(error)


def test_without_boto3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **more: Any) -> Any:
        if name == "boto3":
            raise ModuleNotFoundError("No module named 'boto3'", name="boto3")
        return real(name, *args, **more)

    monkeypatch.delitem(sys.modules, "cdc_lake.catalogs.glue")
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(InstallationError, match=r"cdc-lake\[aws\]"):
        open_catalog(Config(catalog=CatalogConfig(type="glue")), None)  # type: ignore[arg-type]
