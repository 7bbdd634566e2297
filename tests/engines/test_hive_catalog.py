"""A real Hive metastore is updated, and a second Spark session that knows only the metastore reads equal rows."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType
from support.cataloged_lake import DATABASES, SILVER, CatalogedLake, entries
from support.one_server import started
from support.reading_by_name import Reader, reading
from typer.testing import CliRunner

from cdc_lake.catalogs.catalog import differences
from cdc_lake.catalogs.glue import GlueCatalog
from cdc_lake.catalogs.hive import HiveCatalog
from cdc_lake.cli.app import app
from cdc_lake.config import CatalogConfig
from cdc_lake.demo.servers.jvm_servers import Metastore
from cdc_lake.demo.servers.server import Site, choose_ports
from cdc_lake.errors import CatalogDriftError, ForeignEntryError, InfrastructureError
from cdc_lake.lake import readers as readers_module
from cdc_lake.lake.readers import FilesReader, SparkReader
from cdc_lake.runs import catalog_sync as catalog_module
from cdc_lake.runs.catalog_sync import _latest_value_schema, check_catalog, drop_from_catalog, sync_catalog
from cdc_lake.runs.context import lake_of
from cdc_lake.spark.java import find_java
from cdc_lake.spark.session import hadoop
from cdc_lake.storage.files import LocalFiles

pytestmark = pytest.mark.hudi


class Server:
    """A metastore in a separate process, which a test may stop and start again."""

    def __init__(self, folder: Path) -> None:
        self._metastore = Metastore(Site(folder, choose_ports(folder), find_java(), (), folder))
        self.address = self._metastore.address

    def start(self) -> None:
        self._process = started(self._metastore)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("metastore"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def reader(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    with reading(server.address, tmp_path_factory.mktemp("reader")) as reader:
        yield reader


@pytest.fixture(scope="module")
def lake(spark: SparkSession, server: Server, tmp_path_factory: pytest.TempPathFactory) -> CatalogedLake:
    """A lake with two rows, which the runs registered in the catalog."""
    catalog = CatalogConfig(type="hive", uri=server.address, table="{table}")
    lake = CatalogedLake(spark, tmp_path_factory.mktemp("cataloged"), catalog)
    lake.send(1, n=1, kind="a")
    lake.send(2, n=2, kind="b")
    lake.run()
    return lake


@pytest.fixture
def catalog(spark: SparkSession, lake: CatalogedLake) -> HiveCatalog:
    """The lake's catalog; each test leaves it up to date."""
    return HiveCatalog(*hadoop(spark), lake.config.catalog)


def of_the_source(rows: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Rows by key, with the source's columns that are not null, as JSON."""
    return {
        key: {name: row[name] for name in ("id", "n", "kind", "later") if row.get(name) is not None}
        for key, row in rows.items()
    }


def drift(lake: CatalogedLake, spark: SparkSession) -> dict[str, list[str]]:
    return {one.entry: one.differences for one in check_catalog(lake.config, ["*"], (), spark).drifted}


def by_hand(spark: SparkSession, catalog: HiveCatalog, database: str, name: str, **changed: Any) -> str:
    """Change an entry with a client of the metastore; the former name of its last column."""
    conf = catalog._conf
    client = spark._jvm.org.apache.hadoop.hive.metastore.HiveMetaStoreClient(conf)  # type: ignore[union-attr]
    try:
        table = client.getTable(database, name)
        storage = table.getSd()
        if "location" in changed:
            storage.setLocation(changed["location"])
        last = storage.getCols()[len(storage.getCols()) - 1]
        if "without_last" in changed:
            storage.getCols().remove(last)
        if "parameters" in changed:
            table.setParameters(changed["parameters"])
        client.alter_table(database, name, table)
        return str(last.getName())
    finally:
        client.close()


def test_metastore_only_session_reads_equal_rows(lake: CatalogedLake, reader: Reader, spark: SparkSession) -> None:
    def seen() -> dict[str, dict[int, dict[str, Any]]]:
        found = {kind: of_the_source(reader.rows(f"{database}.thing")) for kind, database in DATABASES.items()}
        assert of_the_source(reader.rows("pagila_silver_hudi_mor.thing_rt")) == found["hudi_mor"]
        return found

    def wanted() -> dict[str, dict[int, dict[str, Any]]]:
        return {kind: of_the_source(lake.rows(kind)) for kind in DATABASES}

    assert seen() == wanted()
    assert len(seen()["delta"]) == 2
    lake.add_column("later")
    lake.send(1, n=10, kind="a")
    lake.send(3, n=3, kind="a partition of its own")
    lake.send(4, n=4, kind="b", later=40)
    lake.run()

    assert seen() == wanted()
    # Read-optimized rows do not have changes that are not compacted yet.
    assert of_the_source(reader.rows("pagila_silver_hudi_mor.thing_ro"))[1]["n"] == 1
    assert seen()["hudi_cow"][4] == {"id": 4, "n": 4, "kind": "b", "later": 40}
    assert {row["kind"]: row["things"] for row in reader.ask("SELECT * FROM gold.per_kind")} == {
        "a": 1,
        "b": 2,
        "a partition of its own": 1,
    }
    assert reader.ask("SELECT count(*) AS n FROM pagila_bronze.thing") == [{"n": 5}]
    partitions = reader.ask("SHOW PARTITIONS pagila_silver_hudi_mor.thing_rt")
    assert len(partitions) == 3
    assert drift(lake, spark) == {}


def test_glue_entries_equal_metastore_entries(
    spark: SparkSession, lake: CatalogedLake, catalog: HiveCatalog, aws: str
) -> None:
    settings = CatalogConfig(type="glue", region="eu-central-1", endpoint=aws, table="{table}")
    in_glue = lake.config.model_copy(update={"catalog": settings})
    assert {one.differences[0] for one in sync_catalog(in_glue, ["*"], (), spark).entries} == {"missing"}
    assert check_catalog(in_glue, ["*"], (), spark).drifted == []

    glue = GlueCatalog(settings)
    for database in (*DATABASES.values(), "pagila_bronze", "gold"):
        ours, theirs = glue.found(database), catalog.found(database)
        assert ours.keys() == theirs.keys()
        for name, listing in ours.items():
            assert differences(theirs[name], listing) == []
            assert listing.serde == theirs[name].serde
            assert without_times(listing.parameters) == without_times(theirs[name].parameters)
    client = boto3.client("glue", region_name="eu-central-1", endpoint_url=aws)
    listed = client.get_partitions(DatabaseName="pagila_silver_hudi_mor", TableName="thing_rt")["Partitions"]
    values = {f"partition_kind={one['Values'][0]}" for one in listed}
    assert values == set(next(one for one in entries(spark, lake) if one.kind == "hudi_mor").partitions)


@pytest.mark.deep
def test_gold_table_with_changed_columns_is_listed_with_new_ones(
    lake: CatalogedLake, catalog: HiveCatalog, reader: Reader
) -> None:
    lake.model("SELECT max(n) AS most, kind FROM thing GROUP BY kind")
    (report,) = lake.run("gold").values()

    assert report.warnings == []
    assert [column.name for column in catalog.found("gold")["per_kind"].columns] == ["most", "kind"]
    reader.ask("REFRESH TABLE gold.per_kind")
    assert {row["kind"] for row in reader.ask("SELECT most, kind FROM gold.per_kind")} >= {"a", "b"}


def test_columns_have_the_source_comments(catalog: HiveCatalog) -> None:
    for database in DATABASES.values():
        for listing in catalog.found(database).values():
            comments = {column.name: column.comment for column in listing.columns if column.comment}
            assert comments == {"kind": "what it is"}, listing.full_name


def test_delta_entry_equals_sparks_own(lake: CatalogedLake, catalog: HiveCatalog, reader: Reader) -> None:
    ours = catalog.found("pagila_silver", ["thing"])["thing"]
    reader.ask(f"CREATE TABLE default.by_spark USING delta LOCATION '{ours.location}'")
    by_spark = catalog.found("default", ["by_spark"])["by_spark"]

    for what in ("input_format", "output_format", "serialization_library", "partition_by"):
        assert getattr(ours, what) == getattr(by_spark, what)
    assert {name: value.removeprefix("file:") for name, value in by_spark.serde.items()} == ours.serde
    assert by_spark.parameters.items() >= {"EXTERNAL": "TRUE", "spark.sql.sources.provider": "delta"}.items()


@pytest.mark.parametrize("kind", [pytest.param("hudi_cow", marks=pytest.mark.deep), "hudi_mor"])
def test_hudi_entry_equals_hudi_sync(spark: SparkSession, lake: CatalogedLake, catalog: HiveCatalog, kind: str) -> None:
    """Glue's entries come from the same listings, without that sync."""
    entry = next(one for one in entries(spark, lake) if one.kind == kind)
    plain = StructType([StructField(field.name, field.dataType) for field in entry.schema])
    entry = replace(entry, schema=plain, database=f"by_{kind}")
    catalog.drop(entry.database, entry.name)

    catalog.put(entry)  # without comments there is nothing to add to the sync's entries

    found = catalog.found(entry.database)
    assert set(found) == set(entry.names)
    for wanted in catalog.listings(entry):
        there = found[wanted.name]
        assert (there.columns, there.partition_by) == (wanted.columns, wanted.partition_by)
        assert (there.serde, there.input_format) == (wanted.serde, wanted.input_format)
        assert (there.output_format, there.serialization_library) == (
            wanted.output_format,
            wanted.serialization_library,
        )
        assert without_times(there.parameters) == without_times(wanted.parameters)


def without_times(parameters: Mapping[str, str]) -> dict[str, Any]:
    """A table's parameters without times, with JSON parsed."""
    parts = sorted((name for name in parameters if ".schema.part." in name), key=lambda name: int(name.split(".")[-1]))
    kept = {name: value for name, value in parameters.items() if name.startswith(("spark.", "cdc_lake.", "EXTERNAL"))}
    text = "".join(kept.pop(name) for name in parts)
    return {**kept, "schema": json.loads(text or "null")}


@pytest.mark.parametrize(
    "kind", ["delta", *(pytest.param(f"hudi_{kind}", marks=pytest.mark.deep) for kind in ("cow", "mor"))]
)
def test_manual_drift_is_found_and_repaired(
    spark: SparkSession, lake: CatalogedLake, catalog: HiveCatalog, reader: Reader, kind: str
) -> None:
    database = DATABASES[kind]
    names = ["thing", "thing_rt"] if kind == "hudi_mor" else ["thing"]
    listed = [f"{database}.{name}" for name in names]
    rows = of_the_source(reader.rows(listed[0]))
    elsewhere = f"file:{lake.root}/silver"
    lost = [by_hand(spark, catalog, database, one, location=elsewhere, without_last=True) for one in names]
    catalog.drop(DATABASES["hudi_mor"], "thing_ro")
    assert drift(lake, spark) == {
        f"{DATABASES['hudi_mor']}.thing_ro": ["missing"],
        **{
            entry: [f"location is {elsewhere}", f"missing columns: {column}"]
            for entry, column in zip(listed, lost, strict=True)
        },
    }

    sync_catalog(lake.config, ["*"], (), spark)

    assert drift(lake, spark) == {}
    assert [of_the_source(reader.rows(entry)) for entry in listed] == [rows] * len(listed)


def test_foreign_entry_is_left_unchanged(spark: SparkSession, lake: CatalogedLake, catalog: HiveCatalog) -> None:
    before = catalog.found("pagila_silver", ["thing"])["thing"]
    by_hand(spark, catalog, "pagila_silver", "thing", location="file:/somebody/elses", parameters={"EXTERNAL": "TRUE"})

    report = sync_catalog(lake.config, ["*"], ["silver"], spark)
    with pytest.raises(ForeignEntryError):
        drop_from_catalog(lake.config, ["*"], ["silver"], spark)

    assert [one.error.code for one in report.entries if one.error] == [ForeignEntryError.code]
    assert catalog.found("pagila_silver", ["thing"])["thing"].location == "file:/somebody/elses"
    assert set(catalog.found("pagila_silver_hudi_mor")) == {"thing", "thing_ro", "thing_rt"}
    by_hand(spark, catalog, "pagila_silver", "thing", location=before.location, parameters=dict(before.parameters))


def test_drop_removes_only_the_catalog_entry(
    spark: SparkSession, lake: CatalogedLake, catalog: HiveCatalog, reader: Reader
) -> None:
    rows = {kind: lake.rows(kind) for kind in DATABASES}

    report = drop_from_catalog(lake.config, [lake.topic], ["silver"], spark)

    assert len(report.entries) == 5
    assert [catalog.found(database) for database in DATABASES.values()] == [{}, {}, {}]
    assert catalog.found("pagila_bronze").keys() == {"thing"}
    assert {kind: lake.rows(kind) for kind in DATABASES} == rows
    assert drift(lake, spark) == {one.entry: ["missing"] for one in report.entries}
    sync_catalog(lake.config, ["*"], (), spark)


@pytest.mark.deep
def test_surplus_entry_is_reported_and_removed(spark: SparkSession, lake: CatalogedLake, catalog: HiveCatalog) -> None:
    gone = next(one for one in entries(spark, lake) if one.layer == "bronze")
    catalog.put(replace(gone, name="gone", path=f"{gone.path}_gone"))
    reader_s = replace(gone, name="of_another_lake", path="/another/lake/bronze/thing")
    catalog.put(reader_s)

    assert drift(lake, spark) == {"pagila_bronze.gone": ["no such table"]}
    sync_catalog(lake.config, ["*"], (), spark)

    assert catalog.found("pagila_bronze").keys() == {"thing", "of_another_lake"}
    catalog.drop("pagila_bronze", "of_another_lake")


def test_metastore_outage_only_warns_and_next_run_catches_up(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    here = CatalogConfig(type="hive", uri=server.address, database="mended_{layer}")
    down = here.model_copy(update={"uri": "thrift://127.0.0.1:9"})
    lake = CatalogedLake(spark, tmp_path, down)
    lake.send(1, n=1, kind="a")

    (report,) = lake.run("bronze").values()

    assert report.status == "ok"
    assert [warning for warning in report.warnings if warning.startswith("catalog: behind: thrift://127.0.0.1:9")]
    with pytest.raises(InfrastructureError):
        check_catalog(lake.config, ["*"], (), spark)
    lake.config = lake.config.model_copy(update={"catalog": here})
    (idle,) = lake.run("bronze").values()

    assert (idle.status, idle.warnings) == ("unchanged", [])
    catalog = HiveCatalog(*hadoop(spark), here)
    assert catalog.found("mended_bronze").keys() == {"public_thing"}
    catalog.drop("mended_bronze", "public_thing")
    lake.run("bronze")
    assert catalog.found("mended_bronze") == {}  # no new commits and no marks: no catalog is asked


def test_catalog_check_exits_30_on_drift(
    lake: CatalogedLake, catalog: HiveCatalog, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "cdc-lake.yml"
    file.write_text(
        f"lake: {{root: {lake.root}}}\ngold: {{models: {lake.config.gold.models}}}\n"
        f"catalog: {{type: hive, uri: '{server.address}', table: '{{table}}'}}\ndefaults:\n  storage:\n"
        "    - {format: delta, partition_by: [kind]}\n    - {format: hudi, type: cow}\n"
        "    - {format: hudi, type: mor, partition_by: [kind]}\n"
    )
    monkeypatch.setenv("CDC_LAKE_CONFIG", str(file))

    def run(*words: str) -> tuple[Any, str]:
        done = CliRunner().invoke(app, ["catalog", *words])
        return done.exception, done.stdout

    assert run("check")[0] is None
    catalog.drop("gold", "per_kind")
    error, said = run("check", "--json")
    assert isinstance(error, CatalogDriftError) and error.exit_code == 30
    assert [one["entry"] for one in json.loads(said)["entries"] if one["differences"]] == ["gold.per_kind"]
    assert run("sync", "--layer", "gold")[0] is None
    assert run("check")[0] is None
    assert run("drop", "--table", "per_kind")[0] is None
    assert catalog.found("gold") == {}
    assert run("sync", "--layer", "gold")[0] is None


def test_check_of_delta_tables_starts_no_session(
    lake: CatalogedLake, spark: SparkSession, catalog: HiveCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("a session is made")

    monkeypatch.setattr(catalog_module, "build_session", refuse)
    silver = lake.config.defaults.model_copy(update={"storage": (SILVER["delta"],)})
    config = lake.config.model_copy(update={"defaults": silver})
    lake.add_column("newest")
    lake.send(1, n=1, newest=1)
    lake.run("bronze")
    changed = by_hand(spark, catalog, DATABASES["delta"], "thing", without_last=True)

    found, report = entries(None, lake, config), check_catalog(config, ["*"])

    differing = {one.entry: one.differences for one in report.drifted if one.layer}
    assert differing == {f"{DATABASES['delta']}.thing": [f"missing columns: {changed}"]}
    with monkeypatch.context() as patch:
        patch.setattr(readers_module, "newest_schema", lambda files, path: None)
        patch.setattr(readers_module, "newest_rows", lambda files, path: None)
        assert found == entries(spark, lake, config)
        assert report == check_catalog(config, ["*"], (), spark)
    assert [one.layer for one in found] == ["bronze", "silver", "gold"]
    tables = lake_of(config)
    readers = FilesReader(tables, LocalFiles()), SparkReader(tables, spark)
    (schema,) = {_latest_value_schema(reader, lake.topic) for reader in readers}
    assert schema is not None
    assert {one.metadata["comment"] for one in found[1].schema if one.metadata} == {"what it is"}
    with pytest.raises(AssertionError, match="a session is made"):
        check_catalog(lake.config, ["*"])  # has Hudi tables
