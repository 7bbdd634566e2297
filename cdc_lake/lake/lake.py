"""The lake: its tables, and all paths in it."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from cdc_lake.columns import BATCH, BRONZE_STATISTICS
from cdc_lake.config import CatalogConfig, Format, IcebergConfig, StorageConfig
from cdc_lake.errors import ConfigError, InstallationError
from cdc_lake.lake.lease import Lease
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.lake.side import SideTable
from cdc_lake.registries.registry import Registry
from cdc_lake.spark.versions import has_hudi, has_iceberg
from cdc_lake.storage.files import Files
from cdc_lake.storage.hadoop import HadoopFiles
from cdc_lake.tables.contract import P, Table
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.hudi import HudiTable
from cdc_lake.tables.hudi_folder import METADATA_FOLDER
from cdc_lake.tables.iceberg import IcebergTable
from cdc_lake.tables.iceberg_catalog import IcebergName
from cdc_lake.tables.iceberg_metadata import ICEBERG_FOLDER
from cdc_lake.tables.newest import LOG_FOLDER, Newest, commit_ms_after, newest_commit
from cdc_lake.tables.progress import BronzeProgress, GoldProgress, SilverProgress

BronzeTable = DeltaLakeTable[BronzeProgress]
_SEGMENT = re.compile(r"[a-zA-Z0-9_-]+")
_TOPIC = re.compile(rf"{_SEGMENT.pattern}(\.{_SEGMENT.pattern})*")
_MAX_TOPIC = 249
"""Kafka's limit for the length of a topic name."""
_MARKS: dict[Format, str] = {"delta": LOG_FOLDER, "hudi": METADATA_FOLDER, "iceberg": ICEBERG_FOLDER}
TABLE_FOLDERS = tuple(_MARKS.values())
"""Folders that mark a table's folder; each has one of them."""


def is_table_name(topic: str) -> bool:
    """Whether a topic can have tables: other names would lead out of the lake."""
    return len(topic) <= _MAX_TOPIC and _TOPIC.fullmatch(topic) is not None


def topic_of(table: str) -> str:
    """The topic of a table, see `SilverTarget`; of a gold table its own name."""
    return table.partition("@")[0]


@dataclass(frozen=True)
class SilverTarget:
    """One of the silver tables of a topic.

    Attributes:
        name: the topic's name; all tables but the first append their storage, `<topic>@hudi_mor`.
        path, side: the folders of the table and of its side table.
        in_catalog: its name, if it is an Iceberg table.
    """

    name: str
    topic: str
    storage: StorageConfig
    path: str
    side: str
    in_catalog: IcebergName

    def open(self, spark: SparkSession) -> Table[SilverProgress]:
        return silver_table(spark, self.path, self.storage, self.in_catalog)

    def open_side(self, spark: SparkSession) -> SideTable:
        return SideTable(spark, self.side)

    def newest(self, files: Files) -> Newest[SilverProgress] | None:
        return newest_commit(files, self.path, self.storage.format, SilverProgress, self.in_catalog)

    def commit_ms_after(self, files: Files, version: int) -> int | None:
        return commit_ms_after(files, self.path, self.storage.format, version, self.in_catalog)


@dataclass(frozen=True)
class Lake:
    """A lake. Only this class builds paths in it.

    Attributes:
        root: a folder or a URL.
        storage_of: returns a topic's silver storage: one entry per table, in the order of the settings.
        catalog: how tables are named in catalogs.
        iceberg: the catalog of Iceberg tables.
    """

    root: str
    storage_of: Callable[[str], Sequence[StorageConfig]]
    catalog: CatalogConfig
    iceberg: IcebergConfig

    def path(self, layer: str, table: str) -> str:
        """The folder of a table: `<root>/<layer>/<prefix>/<schema>/<table>`, or `<root>/<layer>_<kind>/…` for a table
        named `<topic>@<kind>`.

        Raises:
            ConfigError: the name would lead out of the lake.
        """
        topic, _, kind = table.partition("@")
        layer = f"{layer}_{kind}" if kind else layer
        if not is_table_name(topic):
            raise ConfigError(
                topic,
                "this is not a topic name: parts of letters, digits, `_` and `-`, separated by dots",
                "see --table",
            )
        return f"{self.folder(layer)}/{topic.replace('.', '/')}"

    def folder(self, layer: str) -> str:
        return f"{self.root}/{layer}"

    @property
    def reports(self) -> str:
        return f"{self.root}/_runs"

    def catalog_mark(self, layer: str, table: str = "") -> str:
        """The file that marks a table's catalog entry as not up to date; without a table, the folder of these files."""
        return f"{self.root}/_catalog/{layer}/{table}".rstrip("/")

    def bronze(self, spark: SparkSession, topic: str) -> BronzeTable:
        """A topic's bronze table, which may not exist yet."""
        path = self.path("bronze", topic)
        return DeltaLakeTable(spark, path, partition_by=("ingest_date",), statistics=BRONZE_STATISTICS)

    def newest_bronze(self, files: Files, topic: str) -> Newest[BronzeProgress] | None:
        return newest_commit(files, self.path("bronze", topic), "delta", BronzeProgress)

    def silver(self, topic: str) -> list[SilverTarget]:
        """The silver tables of a topic, in the order of the settings."""
        targets = []
        for number, storage in enumerate(self.storage_of(topic)):
            name = f"{topic}@{storage.kind}" if number else topic
            path, side = self.path("silver", name), self.path("side", name)
            targets.append(SilverTarget(name, topic, storage, path, side, self._in_catalog("silver", name)))
        return targets

    def _in_catalog(self, layer: str, table: str) -> IcebergName:
        return IcebergName(self.iceberg, self.root, *self.catalog.name_of(layer, table))

    def silver_tables(self, topics: Iterable[str]) -> dict[str, SilverTarget]:
        """The tables of several topics, by name; see `silver`."""
        return {target.name: target for topic in topics for target in self.silver(topic)}

    def gold(self, spark: SparkSession, model: str, stored_in: StorageConfig) -> Table[GoldProgress]:
        """A model's table, which may not exist yet; see `silver_table`."""
        cure = "restore the model's `table` setting, or move the folder away: the gold job then rebuilds the table"
        return _table(spark, self.path("gold", model), stored_in, cure, self._in_catalog("gold", model))

    def newest_gold(self, files: Files, model: str, stored_in: StorageConfig) -> Newest[GoldProgress] | None:
        in_catalog = self._in_catalog("gold", model)
        return newest_commit(files, self.path("gold", model), stored_in.format, GoldProgress, in_catalog)

    def schema_files(self, files: Files, registry: Registry | None = None) -> SchemaFiles:
        """The schemas in the lake; with a registry, also the registry's."""
        return SchemaFiles(files, self.root, registry)

    def lease(self, files: HadoopFiles, layer: str, table: str, run_id: str, seconds: float) -> Lease:
        return Lease(files, self._lease_folder(layer, table), table, run_id, seconds)

    def was_leased(self, files: Files, layer: str, table: str) -> bool:
        """Whether a run has taken the lease of a table, which may be over."""
        return files.exists(self._lease_folder(layer, table))

    def _lease_folder(self, layer: str, table: str) -> str:
        return self.path(f"_leases/{layer}", table)

    def names(self, files: Files, layer: str = "bronze") -> list[str]:
        """The topics with a table of a layer; for gold the models."""
        return [folder.replace("/", ".") for folder in files.folders(self.folder(layer), *TABLE_FOLDERS)]

    def holds(self, files: Files, layer: str, table: str) -> bool:
        return files.holds(self.path(layer, table), *TABLE_FOLDERS)

    def check_is_in_no_table(self, files: Files, layer: str, table: str) -> None:
        """Check that a table's folder is not inside another table's folder; call this before opening the table.

        VACUUM removes files inside a table that its log does not name, and `names` does not look for tables there.
        Names of gold's models have no dots, so their folders cannot nest.

        Raises:
            ConfigError: it is, or a segment of the name is the name of a table's log folder.
        """
        path = self.path(layer, table)
        segments = table.partition("@")[0].split(".")
        if reserved := set(segments).intersection(TABLE_FOLDERS):
            raise ConfigError(
                table, f"`{min(reserved)}` is the name of a table's log folder", "remove the topic from --table"
            )
        for depth in range(1, len(segments)):
            outer = ".".join(segments[:depth])
            if files.holds("/".join(path.split("/")[: depth - len(segments)]), *TABLE_FOLDERS):
                raise _nested(table, f"its folder {path} is inside the table of `{outer}`")


def missing_rows(bronze: BronzeTable, landed: BronzeProgress, version: int) -> str | None:
    """Describe how many rows bronze landed and no longer has; None if it has all, or the number is unknown."""
    gone = 0 if landed.total_rows is None else landed.total_rows - bronze.read(as_of=version).count()
    if gone <= 0:
        return None
    return (
        f"another program deleted {gone} of the {landed.total_rows} rows that bronze landed; a rebuild cannot apply "
        "them: restore bronze, or backfill the table (docs/how-to/backfill.md)"
    )


def check_holds_no_tables(files: Files, path: str, table: str) -> None:
    """Check that the folder of a table does not contain other tables; see `Lake.check_is_in_no_table`.

    Raises:
        ConfigError: it does.
    """
    if inner := next(_tables_below(files, path), None):
        raise _nested(table, f"its folder {path} contains the table of `{table.partition('@')[0]}.{inner}`")


def _tables_below(files: Files, path: str) -> Iterator[str]:
    """The names of the tables below a folder, relative to it. Names that a topic's segment cannot have are skipped, so
    that data files and partitions are not listed.
    """
    for name in files.names(path):
        if not _SEGMENT.fullmatch(name) or name in TABLE_FOLDERS:
            continue
        if files.holds(f"{path}/{name}", *TABLE_FOLDERS):
            yield name
        else:
            yield from (f"{name}.{below}" for below in _tables_below(files, f"{path}/{name}"))


def _nested(table: str, what: str) -> ConfigError:
    return ConfigError(
        table,
        what,
        "use another lake.root for one of the two topics (docs/how-to/run-jobs.md#topics-whose-folders-nest)",
    )


def silver_table(
    spark: SparkSession, path: str, wanted: StorageConfig, in_catalog: IcebergName | None = None
) -> Table[SilverProgress]:
    """Open a silver table.

    Args:
        in_catalog: its name, for Iceberg.

    Raises:
        ConfigError: the folder has a table of another format, type or program, or with other partitions.
        InstallationError: this Spark does not have the table's format.
        UnsupportedError: a newer Hudi release wrote it.
    """
    cure = (
        "restore the table's `storage` setting, or move the folder and its side table away: the silver job then "
        "rebuilds the table from bronze"
    )
    return _table(spark, path, wanted, cure, in_catalog, statistics=(BATCH, "__source_ts_ms"))


def _table(
    spark: SparkSession,
    path: str,
    wanted: StorageConfig,
    cure: str,
    in_catalog: IcebergName | None,
    *,
    statistics: Sequence[str] = (),
) -> Table[P]:
    files = HadoopFiles(spark)
    for format, mark in _MARKS.items():
        if format != wanted.format and files.exists(f"{path}/{mark}"):
            raise _mismatch(path, f"a {format} table", wanted, cure)
    if wanted.format == "delta":
        delta: DeltaLakeTable[P] = DeltaLakeTable(
            spark,
            path,
            partitions=wanted.partitions,
            statistics=statistics,
            deletion_vectors=wanted.deletion_vectors,
            properties=wanted.properties,
        )
        partitions = delta.partitioned_by()
        if partitions is not None and partitions != tuple(field.name for field in wanted.partitions):
            raise _mismatch(path, f"a delta table with the partitions ({', '.join(partitions)})", wanted, cure)
        return delta
    has_format = has_hudi() if wanted.format == "hudi" else has_iceberg()
    if not has_format:
        name = wanted.format.capitalize()
        cure = f"use a profile with {name}, or store it in Delta"
        raise InstallationError(path, f"it is stored in {name}, but this Spark has no {name}", cure)
    if wanted.format == "iceberg":
        assert in_catalog is not None, "a table of a lake has a name"
        iceberg: IcebergTable[P] = IcebergTable(
            spark,
            path,
            in_catalog,
            table_type=wanted.type or "cow",
            partitions=wanted.partitions,
            properties=wanted.properties,
        )
        if (differing := iceberg.differing_settings()) is not None:
            raise _mismatch(path, f"an iceberg table whose {differing}", wanted, cure)
        return iceberg
    hudi: HudiTable[P] = HudiTable(
        spark,
        path,
        table_type=wanted.type or "cow",
        partitions=wanted.partitions,
        buckets=wanted.buckets,
        table_version=wanted.table_version,
        properties=wanted.properties,
    )
    if (differing := hudi.differing_settings()) is not None:
        raise _mismatch(path, f"a hudi table whose {differing}", wanted, cure)
    return hudi


def _mismatch(path: str, existing: str, wanted: StorageConfig, cure: str) -> ConfigError:
    by = f"partitioned by ({', '.join(wanted.partition_by)})" if wanted.partition_by else None
    name = " ".join(filter(None, (wanted.format, wanted.type, by)))
    return ConfigError(path, f"the folder has {existing}, but the settings ask for {name}", cure)
