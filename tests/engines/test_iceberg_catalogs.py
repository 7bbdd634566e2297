"""Iceberg tables in a REST catalog and in a Hive metastore, both real; pyiceberg finds them in the REST catalog."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.catalog.rest import RestCatalog
from pyspark.sql import SparkSession
from support.iceberg_rest import TOKEN_PATH, Proxy, proxy, rest_catalog
from support.lake import one_winner, step
from support.one_server import running, serving
from support.registry_server import FakeServer
from support.three_layers import Lake

from cdc_lake.config import Config, IcebergConfig, LakeConfig, StorageConfig
from cdc_lake.demo.servers.jvm_servers import Metastore
from cdc_lake.demo.servers.server import Site, choose_ports
from cdc_lake.errors import ConfigError, InfrastructureError, TableLockedError
from cdc_lake.operations.status import status
from cdc_lake.runs.errors import translate_error
from cdc_lake.runs.report import Report
from cdc_lake.runs.scheduler import TableScheduler
from cdc_lake.silver.run import run_silver
from cdc_lake.spark.java import find_java
from cdc_lake.spark.session import sibling
from cdc_lake.tables.contract import Changes
from cdc_lake.tables.iceberg import IcebergTable
from cdc_lake.tables.iceberg_catalog import IcebergName, catalog_error
from cdc_lake.tables.iceberg_metadata import Snapshot
from cdc_lake.tables.iceberg_write import IcebergType
from cdc_lake.tables.progress import SilverProgress

ON_MOR = pytest.mark.parametrize("table_type", ["mor"], indirect=True)
STAGED, PUBLISHED = '"add-snapshot"', '"ref-name":"main"'
"""Parts of Iceberg's requests, by which the proxy recognizes them."""
CHANGE = "id int, n int, __key string, __keep array<string>, __delete boolean"


def merge(spark: SparkSession, table: IcebergTable, progress: SilverProgress, **rows: int | None) -> None:
    """Merge `n` by key, `k1=10`; None deletes a row."""
    changes = [(int(key[1:]), n, key, list[str](), n is None) for key, n in rows.items()]
    table.merge(Changes(spark.createDataFrame(changes, CHANGE), ["id"]), progress)


def newest(table: IcebergTable) -> SilverProgress:
    progress = table.progress()
    assert isinstance(progress, SilverProgress)
    return progress


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rest_catalog(tmp_path_factory.mktemp("rest")) as address:
        yield address


@contextmanager
def metastore(folder: Path) -> Iterator[str]:
    """The address of a running metastore."""
    folder.mkdir(exist_ok=True)
    server = Metastore(Site(folder, choose_ports(folder), find_java(), (), folder))
    with running(server):
        yield server.address


@pytest.fixture(scope="module")
def hive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with metastore(tmp_path_factory.mktemp("hive")) as address:
        yield address


@pytest.fixture
def proxied(rest: str) -> Iterator[Proxy]:
    with proxy(rest) as server:
        yield server


@pytest.fixture(params=["rest", "hive"])
def catalog(request: pytest.FixtureRequest) -> IcebergConfig:
    return IcebergConfig(catalog=request.param, uri=request.getfixturevalue(request.param))


@pytest.fixture(params=["cow", "mor"])
def table_type(request: pytest.FixtureRequest) -> IcebergType:
    found: IcebergType = request.param
    return found


@pytest.fixture
def opened(spark: SparkSession, tmp_path: Path, table_type: IcebergType) -> Callable[..., IcebergTable]:
    """Open a table as another run does."""

    def open_table(catalog: IcebergConfig, session: SparkSession = spark) -> IcebergTable:
        database = "".join(filter(str.isalnum, tmp_path.name))
        name = IcebergName(catalog, str(tmp_path), database, "public_film")
        return IcebergTable(session, str(tmp_path / "silver" / "film"), name, table_type=table_type)

    return open_table


def rows(table: IcebergTable) -> dict[int, int | None]:
    return {row["id"]: row["n"] for row in table.read().collect()}


def rows_of_pyiceberg(rest: str, name: tuple[str, str]) -> list[dict[str, Any]]:
    """A table's live rows, found by its name in the REST catalog."""
    found = RestCatalog("rest", uri=rest).load_table(name).scan().to_arrow().to_pylist()
    return [row for row in found if not row.get("__deleted")]


def test_second_driver_is_locked(
    spark: SparkSession, catalog: IcebergConfig, opened: Callable[..., IcebergTable]
) -> None:
    table = opened(catalog)
    merge(spark, table, step(1), k1=10, k2=20)
    merge(spark, table, newest(table).next("a run"), k1=11, k2=None, k3=30)
    progress, session = newest(table), sibling(spark)
    merge(session, opened(catalog, session), progress.next("another run"), k4=40)

    with pytest.raises(TableLockedError, match="run another run committed before batch 3"):
        merge(spark, table, progress.next("late"), k5=50)

    assert rows(table) == rows(opened(catalog, session)) == {1: 11, 3: 30, 4: 40}
    assert [(one.version, one.progress and one.progress.commit) for one in table.history()] == [(3, 3), (2, 2), (1, 1)]


@ON_MOR
def test_concurrent_drivers_have_one_winner(
    spark: SparkSession, catalog: IcebergConfig, opened: Callable[..., IcebergTable]
) -> None:
    table = opened(catalog)
    merge(spark, table, step(1), k1=10)
    progress = newest(table)

    def commit(number: int) -> None:
        session = sibling(spark)
        merge(session, opened(catalog, session), progress.next(f"run {number}"), **{f"k{number}": number})

    winner = one_winner(commit, (2, 3))

    assert (rows(table), newest(table).commit) == ({1: 10, winner: winner}, 2)


@ON_MOR
def test_rest_commit_between_stage_and_publish_is_noticed(
    spark: SparkSession, rest: str, opened: Callable[..., IcebergTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = IcebergConfig(catalog="rest", uri=rest)
    table, other, publish = opened(catalog), opened(catalog), IcebergTable._publish
    merge(spark, table, step(1), k1=10)
    progress = newest(table)

    def late(self: IcebergTable, *staged: Any, **more: Any) -> None:
        monkeypatch.setattr(IcebergTable, "_publish", publish)
        merge(spark, other, progress.next("another run"), k2=20)
        publish(self, *staged, **more)

    monkeypatch.setattr(IcebergTable, "_publish", late)
    with pytest.raises(TableLockedError, match="another run committed before batch 2"):
        merge(spark, table, progress.next("late"), k3=30)

    assert rows(table) == {1: 10, 2: 20}


@ON_MOR
@pytest.mark.parametrize("status", [504, None])
def test_lost_answer_of_a_rest_catalog_is_looked_up(
    spark: SparkSession, proxied: Proxy, opened: Callable[..., IcebergTable], status: int | None
) -> None:
    table = opened(IcebergConfig(catalog="rest", uri=proxied.url))
    merge(spark, table, step(1), k1=10)
    proxied.status = status
    proxied.loses = PUBLISHED

    merge(spark, table, newest(table).next("a run"), k2=20)

    assert proxied.loses is None, "no answer was lost"
    assert (rows(table), newest(table).commit) == ({1: 10, 2: 20}, 2)

    proxied.loses = STAGED
    if status == 504 and spark.version >= "4":  # Iceberg 1.11 looks the snapshot up itself
        merge(spark, table, newest(table).next("a run"), k3=30)
        assert (rows(table), newest(table).commit) == ({1: 10, 2: 20, 3: 30}, 3)
        return
    with pytest.raises(InfrastructureError, match="the catalog's answer was lost"):
        merge(spark, table, newest(table).next("a run"), k3=30)
    assert (rows(table), newest(table).commit) == ({1: 10, 2: 20}, 2)


@ON_MOR
def test_lost_answer_to_a_change_of_the_table_is_retried(
    spark: SparkSession, proxied: Proxy, opened: Callable[..., IcebergTable]
) -> None:
    table = opened(IcebergConfig(catalog="rest", uri=proxied.url))
    merge(spark, table, step(1), k1=10)
    proxied.loses = '"set-properties"'

    with pytest.raises(Py4JJavaError) as caught:
        table._load().updateProperties().set("a", "b").commit()

    assert isinstance(translate_error("film", caught.value, [table.path]), InfrastructureError)


@ON_MOR
@pytest.mark.parametrize("uri", ["http://127.0.0.1:1", "thrift://127.0.0.1:1"])
def test_unreachable_catalog_is_named(opened: Callable[..., IcebergTable], uri: str) -> None:
    catalog = "rest" if uri.startswith("http") else "hive"

    with pytest.raises(InfrastructureError, match=r"lake\.iceberg: the catalog does not respond"):
        opened(IcebergConfig(catalog=catalog, uri=uri)).exists()


@ON_MOR
def test_metastore_without_lock_tables_is_named(
    spark: SparkSession, opened: Callable[..., IcebergTable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Metastore, "_create_lock_tables", lambda server: None)
    quickly = {"hadoop.iceberg.hive.lock-creation-timeout-ms": "100"}
    with metastore(tmp_path / "hive") as address:
        table = opened(IcebergConfig(catalog="hive", uri=address, properties=quickly))
        with pytest.raises(ConfigError, match="the Hive metastore does not lock tables, and batch 1 was not committed"):
            merge(spark, table, step(1), k1=10)
        assert not table.exists()


@ON_MOR
def test_metastore_outage_during_a_commit_is_named(
    spark: SparkSession, opened: Callable[..., IcebergTable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as server:
        address = server.enter_context(metastore(tmp_path / "hive"))
        table = opened(IcebergConfig(catalog="hive", uri=address))
        merge(spark, table, step(1), k1=10)

        def fail(self: IcebergTable, change: Any, snapshot: Snapshot) -> Any:
            server.close()
            return change

        monkeypatch.setattr(IcebergTable, "_tagged", fail)
        with pytest.raises(InfrastructureError, match=r"lake\.iceberg: the catalog does not respond"):
            merge(spark, table, newest(table).next("a run"), k2=20)


@ON_MOR
def test_oauth_login_is_sent_and_kept_out_of_settings(
    spark: SparkSession, proxied: Proxy, opened: Callable[..., IcebergTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATALOG_CREDENTIAL", "lake:canary-1")
    login = {"credential": "env:CATALOG_CREDENTIAL", "scope": "writer"}

    assert not opened(IcebergConfig(catalog="rest", uri=proxied.url, properties=login)).exists()

    token, *others = proxied.requests
    assert (token.method, token.path) == ("POST", TOKEN_PATH)
    form = {"client_id": ["lake"], "client_secret": ["canary-1"], "scope": ["writer"]}
    assert parse_qs(token.body) == {"grant_type": ["client_credentials"], **form}
    assert {request.headers["Authorization"].partition(" ")[0] for request in others} == {"Bearer"}
    assert "canary-1" not in str(spark._jsparkSession.sessionState().conf().getAllConfs().toString())


@ON_MOR
def test_refused_login_exits_2_without_the_secret(
    opened: Callable[..., IcebergTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATALOG_CREDENTIAL", "lake:canary-1")
    with serving(FakeServer()) as server:
        server.answer(TOKEN_PATH, (401, {"error": "invalid_client"}))
        login = {"credential": "env:CATALOG_CREDENTIAL", "oauth2-server-uri": f"{server.url}{TOKEN_PATH}"}
        with pytest.raises(ConfigError, match="the catalog refuses the login") as caught:
            opened(IcebergConfig(catalog="rest", uri=server.url, properties=login))

    assert "canary-1" in server.sent[0][1]
    assert "canary-1" not in str(caught.value) + str(caught.value.__cause__)


def test_only_icebergs_own_errors_are_the_catalogs() -> None:
    own, other = (
        Exception(f"{package}.ForbiddenException: no") for package in ("org.apache.iceberg.exceptions", "aws")
    )

    assert isinstance(catalog_error(own), ConfigError)
    assert catalog_error(other) is None


class RestLake(Lake):
    """A topic in all three layers; silver and gold are Iceberg tables in a REST catalog."""

    def __init__(self, spark: SparkSession, root: Path, uri: str) -> None:
        super().__init__(spark, root, *(StorageConfig(format="iceberg", type=kind) for kind in ("cow", "mor")))
        (model,) = self._models.iterdir()
        model.write_text(model.read_text().replace("-- keys", "-- table: {format: iceberg, type: mor}\n-- keys", 1))
        self._uri = uri

    @property
    def config(self) -> Config:
        iceberg = IcebergConfig(catalog="rest", uri=self._uri)
        return super().config.model_copy(update={"lake": LakeConfig(root=str(self.root), iceberg=iceberg)})

    def run_silver(self) -> Report:
        """A run with a session for each table."""
        scheduler = TableScheduler(2, self.spark, retry_seconds=30)
        return run_silver(self.config, ["*"], self.spark, scheduler=scheduler)


def test_all_layers_use_a_rest_catalog(spark: SparkSession, tmp_path: Path, rest: str, proxied: Proxy) -> None:
    lake = RestLake(spark, tmp_path, proxied.url)
    lake.take(1, 2, 3)
    lake.delete(2)
    proxied.loses = STAGED  # the batch is not committed, and tried again
    lake.take(1, 4)
    assert proxied.loses is None, "no answer was lost"

    for database in ("pagila_silver", "pagila_silver_iceberg_mor"):
        found = rows_of_pyiceberg(rest, (database, "public_thing"))
        assert sorted((row["id"], row["n"]) for row in found) == sorted(lake.source.items()), database
    halves = {half: [n for key, n in lake.source.items() if key % 2 == half] for half in (0, 1)}
    gold = rows_of_pyiceberg(rest, ("gold", "per_half"))
    assert {row["half"]: (row["things"], row["n"]) for row in gold} == {
        half: (len(values), sum(values)) for half, values in halves.items()
    }

    again = [*lake.fold(), lake.refresh()]
    assert {report.status for report in again} == {"unchanged"}
    tables = status(lake.config, ["*"], spark, source=lake.broker).tables
    assert [table.behind_records for table in tables if table.layer == "silver"] == [0, 0]
