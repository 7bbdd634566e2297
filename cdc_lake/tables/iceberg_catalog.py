"""The catalog of a lake's Iceberg tables: their names, the newest metadata of each, and Spark's use of it."""

import os
import re
import sqlite3
import uuid
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdc_lake.columns import quoted
from cdc_lake.config import IcebergConfig, is_reference
from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError
from cdc_lake.spark.session import active_session

CATALOG = "cdc_lake"
"""The catalog's name in Spark's sessions, and in a JDBC catalog's tables."""
_SPARK_NAME = f"spark.sql.catalog.{CATALOG}"
_SPARK_CLASS = "org.apache.iceberg.spark.SparkCatalog"
_OPENED = "spark.cdc_lake.iceberg"
"""A session's setting with the lake whose catalog it has, and that catalog's settings without secrets."""
_UNREACHABLE = re.compile(
    r"iceberg\.exceptions\.(RESTException: Error occurred while processing|Service(Failure|Unavailable)Exception)"
    "|Failed to connect to Hive Metastore|TTransportException"
)
_REFUSED = re.compile(r"iceberg\.exceptions\.(NotAuthorized|Forbidden)Exception")
"""Other clients, such as AWS', have exceptions of these names, too."""
_CREATE_CATALOG = """
CREATE TABLE iceberg_tables (
    catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL, table_name VARCHAR(255) NOT NULL,
    metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000), iceberg_type VARCHAR(5),
    PRIMARY KEY (catalog_name, table_namespace, table_name)
);
CREATE TABLE iceberg_namespace_properties (
    catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL, property_key VARCHAR(255),
    property_value VARCHAR(1000), PRIMARY KEY (catalog_name, namespace, property_key)
);
"""
"""The tables of Iceberg's JDBC catalog. Source: `JdbcUtil` of Iceberg 1.10, schema version V1."""


@dataclass(frozen=True)
class IcebergName:
    """The name of a table in the catalog of a lake.

    Attributes:
        root: the lake's.
    """

    config: IcebergConfig
    root: str
    database: str
    table: str

    def create_catalog(self) -> None:
        """Create the SQLite file, complete, if that is the catalog. Two sessions of Iceberg that create it fail."""
        file = self.config.sqlite_file(self.root)
        if file is None or Path(file).is_file():
            return
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        draft = f"{file}.{uuid.uuid4().hex}.tmp"
        with closing(sqlite3.connect(draft)) as catalog:
            # With a write-ahead log, readers do not lock out a commit.
            catalog.executescript(f"PRAGMA journal_mode = WAL; {_CREATE_CATALOG}")
        with suppress(FileExistsError):
            os.link(draft, file)
        os.unlink(draft)

    def metadata_file(self) -> str | None:
        """The table's newest metadata file, looked up without Spark; None if there is no table.

        Raises:
            LookupError: only Iceberg can ask this catalog.
        """
        file = self.config.sqlite_file(self.root)
        if file is None:
            raise LookupError(self.config.catalog)
        if not Path(file).is_file():
            return None
        with closing(sqlite3.connect(f"file:{quote(file)}?mode=ro", uri=True, timeout=10)) as catalog:
            found = catalog.execute(
                "SELECT metadata_location FROM iceberg_tables "
                "WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?",
                (CATALOG, self.database, self.table),
            ).fetchone()
        return None if found is None else str(found[0]).removeprefix("file:")


def use_catalog(spark: SparkSession, name: IcebergName) -> None:
    """Set the catalog of a lake in a session, unless the session has it."""
    wanted, stored = f"{name.root} {name.config.model_dump_json()}", spark.conf.get(_OPENED, None)
    if stored == wanted:
        return
    name.create_catalog()
    spark.conf.set(_SPARK_NAME, _SPARK_CLASS)
    for key, value in name.config.catalog_properties(name.root).items():
        spark.conf.set(f"{_SPARK_NAME}.{key}", value)
    manager = spark._jsparkSession.sessionState().catalogManager()
    if stored is not None:  # the session has opened the catalog of another lake
        manager.reset()
    try:
        with active_session(spark):  # Spark opens a catalog with the active session's settings
            manager.catalog(CATALOG)
    except (PySparkException, Py4JError) as exc:
        if (error := catalog_error(exc)) is not None:
            raise error from exc
        raise
    finally:
        for key, value in {"uri": name.config.uri or "", **name.config.properties}.items():
            if is_reference(value):  # Spark's event log has the session's settings
                spark.conf.unset(f"{_SPARK_NAME}.{key}")
    spark.conf.set(_OPENED, wanted)


def catalog_error(error: Exception) -> CdcLakeError | None:
    """The error of a catalog that does not respond, or that refuses the login; None for other errors."""
    text = str(error)
    if _REFUSED.search(text):
        return ConfigError(
            "lake.iceberg",
            "the catalog refuses the login, or denies access",
            "check the login in `lake.iceberg.properties`, and what the catalog allows it",
        )
    if _UNREACHABLE.search(text):
        return InfrastructureError(
            "lake.iceberg",
            "the catalog does not respond",
            "check that it runs and that `lake.iceberg.uri` is its address, then run again",
        )
    return None


def close_catalog(spark: SparkSession) -> None:
    """Close the catalog's connections, if a session that is no longer needed has opened it."""
    if spark.conf.get(_OPENED, None) is not None:
        spark._jsparkSession.sessionState().catalogManager().catalog(CATALOG).icebergCatalog().close()


def use_namespace(spark: SparkSession, name: IcebergName) -> None:
    """Create the database of a table, unless it exists."""
    try:
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{quoted(name.database)}").collect()
    except (PySparkException, Py4JJavaError):
        # A database refuses the second of two sessions that create it at the same moment.
        if spark.sql(f"SHOW NAMESPACES IN {CATALOG} LIKE '{name.database}'").isEmpty():
            raise
