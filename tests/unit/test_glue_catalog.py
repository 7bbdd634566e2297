"""Entries in AWS Glue, with moto's server, as Athena and Spark on EMR expect them."""

from dataclasses import replace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from cdc_lake.catalogs import open_catalog
from cdc_lake.catalogs.catalog import Entry, differences
from cdc_lake.catalogs.glue import GlueCatalog
from cdc_lake.config import CatalogConfig
from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError, InstallationError

pytestmark = [pytest.mark.core, pytest.mark.usefixtures("aws_of_nobody")]

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


def catalog(aws: str, **more: Any) -> GlueCatalog:
    return GlueCatalog(CatalogConfig(type="glue", region=REGION, endpoint=aws, timeout_seconds=5, **more))


def client(aws: str) -> Any:
    return boto3.client("glue", region_name=REGION, endpoint_url=aws)


def table(aws: str, name: str = "film") -> dict[str, Any]:
    found: dict[str, Any] = client(aws).get_table(DatabaseName="shop_silver", Name=name)["Table"]
    return found


def test_delta_entry_is_readable_by_athena(aws: str) -> None:
    catalog(aws).put(DELTA)

    found = table(aws)
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


def test_delta_table_can_be_listed_without_columns(aws: str) -> None:
    catalog(aws, delta_columns=False).put(DELTA)

    assert table(aws)["StorageDescriptor"]["Columns"] == [{"Name": "col", "Type": "array<string>"}]


@pytest.mark.parametrize(("name", "is_ro"), [("film", False), ("film_ro", True), ("film_rt", False)])
def test_merge_on_read_entries_equal_those_of_hudi_sync(aws: str, name: str, is_ro: bool) -> None:
    catalog(aws).put(HUDI)

    found = table(aws, name)
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
    partitions = client(aws).get_partitions(DatabaseName="shop_silver", TableName=name)["Partitions"]
    wanted = {value: storage | {"Location": f"{IN_S3}/partition_title={value}"} for value in "ab"}
    assert {one["Values"][0]: one["StorageDescriptor"] for one in partitions} == wanted


def test_copy_on_write_table_has_one_entry(aws: str) -> None:
    catalog(aws).put(replace(HUDI, kind="hudi_cow", partition_by=(), partitions=()))

    found = client(aws).get_tables(DatabaseName="shop_silver")["TableList"]
    assert [one["Name"] for one in found] == ["film"]
    assert found[0]["StorageDescriptor"]["InputFormat"] == "org.apache.hudi.hadoop.HoodieParquetInputFormat"


def test_sync_adds_columns_and_partitions_and_keeps_parameters(aws: str) -> None:
    glue = client(aws)
    catalog(aws).put(HUDI)
    own = table(aws, "film_rt")
    kept = {name: own[name] for name in ("Name", "TableType", "PartitionKeys", "StorageDescriptor")}
    glue.update_table(
        DatabaseName="shop_silver", TableInput=kept | {"Parameters": own["Parameters"] | {"owner": "finance"}}
    )
    fields = [*COLUMNS, StructField("length", LongType()), HUDI.schema["partition_title"]]
    later = replace(HUDI, schema=StructType(fields), partitions=("partition_title=b", "partition_title=c"))

    catalog(aws).put(later)

    found = table(aws, "film_rt")
    columns = found["StorageDescriptor"]["Columns"]
    assert columns[-1] == {"Name": "length", "Type": "bigint"}
    assert found["Parameters"]["owner"] == "finance"
    assert '"name":"length"' in found["Parameters"]["spark.sql.sources.schema.part.0"]
    partitions = glue.get_partitions(DatabaseName="shop_silver", TableName="film_rt")["Partitions"]
    assert {one["Values"][0]: one["StorageDescriptor"]["Columns"] == columns for one in partitions} == {
        "b": True,
        "c": True,
    }


def test_unchanged_entry_is_not_written_again(aws: str) -> None:
    catalog(aws).put(DELTA)
    catalog(aws).put(DELTA)

    versions = client(aws).get_table_versions(DatabaseName="shop_silver", TableName="film")["TableVersions"]
    assert len(versions) == 1


def test_listed_entries_are_found_and_dropped(aws: str) -> None:
    glue = catalog(aws)
    assert (glue.found("shop_silver"), glue.found("shop_silver", ["film"])) == ({}, {})
    glue.put(HUDI)

    found = glue.found("shop_silver")
    assert [differences(wanted, found[wanted.name]) for wanted in glue.listings(HUDI)] == [[], [], []]
    assert all(one.is_of(PATH) for one in found.values())
    assert glue.found("shop_silver", ["film_rt", "absent"]).keys() == {"film_rt"}
    glue.drop("shop_silver", "film_rt")
    glue.drop("shop_silver", "film_rt")
    assert glue.found("shop_silver").keys() == {"film", "film_ro"}


def test_partitions_beyond_one_request_are_synced(aws: str) -> None:
    many = replace(HUDI, kind="hudi_cow", partitions=tuple(f"partition_title={number:03}" for number in range(130)))
    glue = catalog(aws)
    glue.put(many)
    glue.put(replace(many, partitions=many.partitions[:70]))

    pages = client(aws).get_paginator("get_partitions").paginate(DatabaseName="shop_silver", TableName="film")
    values = [one["Values"][0] for page in pages for one in page["Partitions"]]
    assert sorted(values) == [f"{number:03}" for number in range(70)]


def test_unresponsive_catalog_is_an_infrastructure_error() -> None:
    with pytest.raises(InfrastructureError, match=r"AWS Glue in eu-central-1: it does not respond"):
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
def test_glue_error_codes_map_to_error_classes(aws: str, code: str, wanted: type[CdcLakeError]) -> None:
    with pytest.raises(CdcLakeError, match="AWS Glue") as caught, catalog(aws)._translated():
        raise ClientError({"Error": {"Code": code, "Message": "because"}}, "Ask")

    assert type(caught.value) is wanted


def test_missing_boto3_names_the_extra(without_boto3: None) -> None:
    with pytest.raises(InstallationError, match=r"cdc-lake\[aws\]"):
        open_catalog(CatalogConfig(type="glue"), None)  # type: ignore[arg-type]
