"""A real Hive metastore is kept in step, and a second Spark session that knows only it reads equal rows."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from catalogued import DATABASES, CataloguedLake
from pyspark.sql import SparkSession
from reading_by_name import Reader, reading
from typer.testing import CliRunner

from cdc_lake.catalogs import Listing
from cdc_lake.catalogs.hive import HiveCatalog
from cdc_lake.cli.app import app
from cdc_lake.config import CatalogConfig
from cdc_lake.embedded.metastore import Metastore
from cdc_lake.embedded.ports import choose_ports
from cdc_lake.embedded.server import Site
from cdc_lake.errors import CatalogDriftError, ForeignEntryError, InfrastructureError
from cdc_lake.java import find_java
from cdc_lake.layers.catalog import check_catalog, drop_from_catalog, sync_catalog

META = ("_hoodie_", "partition_", "__key")


class Server:
    """A metastore in a process of its own, which a test may stop and start again."""

    def __init__(self, folder: Path) -> None:
        (folder / "logs").mkdir(parents=True)
        self._metastore = Metastore(Site(folder, choose_ports(folder), find_java(), (), folder))
        self._log = folder / "logs" / "metastore.log"
        self.address = self._metastore.address

    def start(self) -> None:
        self._metastore.prepare()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._metastore.command(), stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while not self._metastore.is_ready():
            assert self._process.poll() is None and time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.2)

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


@pytest.fixture
def settings(server: Server, request: pytest.FixtureRequest) -> CatalogConfig:
    """A catalog with databases of this test's own."""
    own = request.node.name.removeprefix("test_")[:20]
    return CatalogConfig(type="hive", uri=server.address, database=f"{own}_{{layer}}", gold_database=f"{own}_gold")


def source_columns(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith(META) and not name.startswith("__")}


def listed(spark: SparkSession, lake: CataloguedLake, database: str) -> dict[str, Listing]:
    return HiveCatalog(spark, lake.config.catalog, lake.config.catalog.uri).found(database)
