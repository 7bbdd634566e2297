"""Names of tables in a catalog, their entries, and messages about entries that differ."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from cdc_lake.catalogs.catalog import (
    Entry,
    HiveColumn,
    check_is_ours,
    colliding,
    delta_listing,
    differences,
    hudi_listings,
    plain_location,
)
from cdc_lake.config import CatalogConfig, Config, StackConfig, endpoints_file
from cdc_lake.decode.schema_texts import column_comments
from cdc_lake.errors import ConfigError, ForeignEntryError

pytestmark = pytest.mark.core

SCHEMA = StructType(
    [
        StructField("Id", IntegerType(), metadata={"comment": "the key"}),
        StructField("paid", DecimalType(5, 2)),
        StructField("at", TimestampType()),
        StructField("local", TimestampNTZType()),
        StructField("tags", ArrayType(StructType([StructField("n", LongType())]))),
        StructField("partition_at_month", StringType()),
    ]
)
FILM = Entry("shop.public.film", "silver", "shop_silver", "film", "delta", "/lake/silver/shop/public/film", SCHEMA)
HUDI = replace(FILM, kind="hudi_mor", partition_by=("partition_at_month",))


def settings(**more: Any) -> CatalogConfig:
    return CatalogConfig(**{"type": "glue", **more})


@pytest.mark.parametrize(
    ("layer", "table", "wanted"),
    [
        ("silver", "pagila.public.film", ("pagila_silver", "public_film")),
        ("bronze", "pagila.public.film", ("pagila_bronze", "public_film")),
        ("silver", "pagila.public.film@hudi_mor", ("pagila_silver_hudi_mor", "public_film")),
        ("silver", "My-Shop.Sales.Order-Line", ("my_shop_silver", "sales_order_line")),
        ("silver", "server.db.dbo.film", ("server_silver", "db_dbo_film")),
        ("bronze", "film", ("film_bronze", "film")),
        ("gold", "Film_Revenue", ("gold", "film_revenue")),
    ],
)
def test_table_has_a_valid_hive_and_athena_name(layer: str, table: str, wanted: tuple[str, str]) -> None:
    assert settings().name_of(layer, table) == wanted


def test_templates_define_the_catalog_names() -> None:
    chosen = settings(database="lake", table="{layer}_{prefix}_{schema}_{table}", gold_database="marts")

    assert chosen.name_of("silver", "s.db.dbo.film") == ("lake", "silver_s_db_dbo_film")
    assert chosen.name_of("gold", "revenue") == ("marts", "revenue")


@pytest.mark.parametrize(
    "wrong",
    [
        {"table": "{tabel}"},
        {"database": "{table}"},
        {"table": "{"},
        {"type": "hive", "uri": "http://metastore:9083"},
        {"uri": "thrift://metastore:9083"},
        {"type": "hive", "region": "eu-central-1"},
    ],
)
def test_conflicting_settings_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        settings(**wrong)


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        (("shop.public.film", "delta"), ("shop.other.film", "delta"), "shop_silver.film"),
        (("shop.public.a-b", "delta"), ("shop.public.a_b", "delta"), "shop_silver.a_b"),
        (("shop.public.film", "hudi_mor"), ("shop.public.film_rt", "hudi_cow"), "shop_silver.film_rt"),
    ],
)
def test_only_tables_of_one_name_collide(one: Any, other: Any, name: str) -> None:
    tables = dict([one, other, ("shop.public.actor", "delta")])

    found = colliding(settings(table="{table}"), "silver", tables)

    assert found == {one[0]: {other[0]: name}, other[0]: {one[0]: name}}
    assert colliding(settings(table="{table}", layers=["bronze"]), "silver", tables) == {}
    assert colliding(CatalogConfig(table="{table}"), "silver", tables) == {}


def test_default_names_distinguish_schemas() -> None:
    assert colliding(settings(), "silver", {"shop.public.film": "delta", "shop.other.film": "delta"}) == {}


@pytest.mark.parametrize(
    ("addresses", "cure"), [(None, "cdc-lake stack up"), ({"kafka": "127.0.0.1:1"}, "cdc-lake stack up --metastore")]
)
def test_missing_embedded_metastore_names_the_fix(tmp_path: Path, addresses: dict[str, str] | None, cure: str) -> None:
    stack = StackConfig(folder=str(tmp_path))
    catalog = Config(catalog=settings(type="hive", uri="embedded"), stack=stack).catalog
    if addresses is not None:
        endpoints_file(tmp_path).write_text(json.dumps(addresses))

    with pytest.raises(ConfigError, match=cure):
        _ = catalog.address
    endpoints_file(tmp_path).write_text(json.dumps({"metastore": "thrift://127.0.0.1:9083"}))
    assert catalog.address == "thrift://127.0.0.1:9083"
    assert settings(type="hive").address is None


def test_delta_table_is_listed_with_all_or_one_generic_column() -> None:
    listing = delta_listing(FILM)

    assert listing.columns == (
        HiveColumn("id", "int", "the key"),
        HiveColumn("paid", "decimal(5,2)"),
        HiveColumn("at", "timestamp"),
        HiveColumn("local", "timestamp"),
        HiveColumn("tags", "array<struct<n:bigint>>"),
        HiveColumn("partition_at_month", "string"),
    )
    assert delta_listing(FILM, with_columns=False).columns == (HiveColumn("col", "array<string>"),)
    assert listing.parameters["spark.sql.sources.provider"] == "delta"
    assert listing.serde == {"path": FILM.path, "serialization.format": "1"}


def test_merge_on_read_table_has_three_entries() -> None:
    listings = {one.name: one for one in hudi_listings(HUDI)}

    is_realtime = {name: "Realtime" in one.input_format for name, one in listings.items()}
    assert is_realtime == {"film": True, "film_ro": False, "film_rt": True}
    assert [one.serde["hoodie.query.as.ro.table"] for one in listings.values()] == ["false", "true", "false"]
    assert listings["film"].partition_by == (HiveColumn("partition_at_month", "string"),)
    assert "partition_at_month" not in [column.name for column in listings["film"].columns]


def test_schema_longer_than_a_parameter_is_split() -> None:
    wide = StructType([StructField(f"column_{number}", StringType()) for number in range(200)])
    (listing,) = hudi_listings(replace(HUDI, kind="hudi_cow", schema=wide, partition_by=()))

    count = int(listing.parameters["spark.sql.sources.schema.numParts"])
    parts = [listing.parameters[f"spark.sql.sources.schema.part.{number}"] for number in range(count)]
    assert count > 1 and max(map(len, parts)) <= 4000
    assert StructType.fromJson(json.loads("".join(parts))) == wide


def test_each_difference_of_an_entry_is_reported() -> None:
    wanted = delta_listing(FILM)
    first, second, *others = wanted.columns

    def said(**changed: Any) -> list[str]:
        return differences(wanted, replace(wanted, **changed))

    assert said() == []
    assert said(location="file:/lake/silver/shop/public/film/") == []
    assert differences(wanted, None) == ["missing"]
    assert said(location="/elsewhere") == ["location is /elsewhere"]
    assert said(columns=(first, *others)) == ["missing columns: paid"]
    assert said(columns=(*wanted.columns, HiveColumn("x", "int"))) == ["extra columns: x"]
    assert said(columns=(first, replace(second, type="string"), *others)) == ["paid is string"]
    assert said(columns=(replace(first, comment=""), second, *others)) == ["id has a different comment"]
    assert said(columns=(second, first, *others)) == ["different order of columns"]
    assert said(parameters={"spark.sql.sources.provider": "hudi"}) == [f"format is hudi {wanted.input_format}"]


def test_foreign_entry_is_refused_and_own_moved_entry_is_not() -> None:
    ours = delta_listing(FILM)

    check_is_ours(FILM, {"film": replace(ours, location="/elsewhere")})
    check_is_ours(FILM, {"film": replace(ours, parameters={})})
    with pytest.raises(ForeignEntryError, match=r"shop_silver\.film: the catalog lists /elsewhere"):
        check_is_ours(FILM, {"film": replace(ours, location="/elsewhere", parameters={})})
    other_lake = delta_listing(replace(FILM, path="/other/silver/shop/public/film"))
    with pytest.raises(ForeignEntryError):
        check_is_ours(FILM, {"film": other_lake})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/a/b", "file:/a/b"),
        ("file:///a/b/", "file:/a/b"),
        ("s3a://bucket/a", "s3://bucket/a"),
        ("hdfs:/a", "hdfs:///a"),
    ],
)
def test_equivalent_locations_are_equal(one: str, other: str) -> None:
    assert plain_location(one) == plain_location(other)
    assert plain_location(one) != plain_location(f"{other}b")


def described(name: str, kind: str, **more: str) -> dict[str, Any]:
    return {"name": name, "type": ["null", {"type": kind, **more}], "default": None}


def test_comments_are_read_from_the_value_schema() -> None:
    row = {
        "type": "record",
        "name": "Value",
        "fields": [
            {"name": "id", "type": "int"},
            {"name": "name", "type": "string", "doc": "what it is called"},
            described("length", "int", **{"connect.doc": "minutes"}),
            described("rate", "bytes", **{"connect.parameters": {"__debezium.source.column.type": "NUMERIC"}}),  # type: ignore[arg-type]
            described("at", "long", **{"connect.parameters": {"__debezium.source.column.comment": "when"}}),  # type: ignore[arg-type]
        ],
    }
    envelope = {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop.public.film",
        "fields": [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "op", "type": "string", "doc": "not a column"},
        ],
    }
    wanted = {"name": "what it is called", "length": "minutes", "rate": "NUMERIC", "at": "when"}

    assert column_comments(json.dumps(envelope)) == wanted
    assert column_comments(json.dumps(row)) == wanted
    assert column_comments(json.dumps({"format": "connect", "schema": "{}"})) == {}
