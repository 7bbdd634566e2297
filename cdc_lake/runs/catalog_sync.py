"""Keeps the catalog in sync with the tables: after each run, and by the commands `cdc-lake catalog sync, check, drop`.

Commits never wait for the catalog. If it does not respond, or refuses an entry, the table's report has a warning, and a
mark in the lake (`<root>/_catalog/<layer>/<table>`) makes the next run update the entry.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from cdc_lake.catalogs import open_catalog
from cdc_lake.catalogs.catalog import PATH, Catalog, Entry, check_is_ours, differences, is_below
from cdc_lake.config import CatalogConfig, Config, StorageConfig, joint_name
from cdc_lake.config.gold_models import model_names
from cdc_lake.decode.schema_texts import column_comments
from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError
from cdc_lake.lake.lake import Lake
from cdc_lake.lake.readers import FilesReader, Reader, SparkReader, without_spark
from cdc_lake.runs.context import PARALLEL_READS, OpenRun, Run, lake_of, model_header, needs_hadoop, select
from cdc_lake.runs.report import ReportedError
from cdc_lake.spark.session import build_session, hadoop, is_alive, lake_files
from cdc_lake.storage.files import Files
from cdc_lake.storage.hadoop import HadoopFiles
from cdc_lake.tables.contract import Table

logger = logging.getLogger(__name__)


class EntryReport(BaseModel):
    """An entry of a table in the catalog.

    Attributes:
        entry: database and name.
        differences: how the entry differs from the table, or did before it was updated.
        error: why it could not be updated.
    """

    layer: str
    table: str
    entry: str
    differences: list[str] = []
    error: ReportedError | None = None


class CatalogReport(BaseModel):
    entries: list[EntryReport] = []

    @property
    def drifted(self) -> list[EntryReport]:
        return [one for one in self.entries if one.differences]


def sync_catalog_after_run(run: OpenRun) -> None:
    """Update the entries of the tables that a run committed to, and those that are marked as not up to date.

    Problems become warnings in the table's report: `catalog: behind: …`.
    """
    if run.config.catalog.type == "none" or run.layer not in run.config.catalog.layers:
        return
    with run.report.phase("catalog"):
        _sync_after_run(run)


def _sync_after_run(run: OpenRun) -> None:
    if not is_alive(run.spark):
        for table_report in run.report.tables:
            if table_report.status == "ok":
                table_report.warn("catalog: behind: the driver's JVM has exited; run `cdc-lake catalog sync`")
        return
    files, layer = run.files, run.layer
    behind = set(files.names(run.lake.catalog_mark(layer)))
    writer = _CatalogWriter(run)
    for table_report in run.report.tables:
        if table_report.status != "ok" and table_report.table not in behind:
            continue
        with table_report.phase("catalog"):
            mark, error = run.lake.catalog_mark(layer, table_report.table), writer.write(layer, table_report.table)
        if error is not None:
            table_report.warn(f"catalog: behind: {error}")
            files.write_once(mark, str(error))
        elif table_report.table in behind:
            files.remove(mark)


def is_catalog_current(run: Run, files: Files) -> bool:
    """Whether the catalog is up to date for all tables of the run's layer, or no catalog is set."""
    return run.config.catalog.type == "none" or not files.names(run.lake.catalog_mark(run.report.layer))


def check_catalog(
    config: Config, tables: Sequence[str], layers: Collection[str] = (), spark: SparkSession | None = None
) -> CatalogReport:
    """Compare the catalog with the tables. Changes nothing.

    Args:
        tables: topic names or globs; for gold, names of models.
        layers: the layers of the tables (default: `catalog.layers`).

    Raises:
        UnknownTableError: a name or glob matches no table.
        ConfigError: no catalog is set.
        InfrastructureError: the catalog does not respond.
    """
    comparison = _CatalogComparison(config, tables, layers, spark)
    return CatalogReport(entries=[*comparison.compared(), *comparison.surplus()])


def sync_catalog(
    config: Config, tables: Sequence[str], layers: Collection[str] = (), spark: SparkSession | None = None
) -> CatalogReport:
    """Update the catalog to match the tables: create and update entries, and remove surplus ones.

    Args, Raises: see `check_catalog`. An entry that cannot be updated has an error; the others are updated.
    """
    spark = spark or _session(config)
    comparison = _CatalogComparison(config, tables, layers, spark)
    report = CatalogReport(entries=[*comparison.compared(), *comparison.surplus()])
    for entry in comparison.entries:
        try:
            _put(comparison.catalog, entry)
            HadoopFiles(spark).remove(comparison.lake.catalog_mark(entry.layer, entry.table))
        except InfrastructureError:
            raise
        except CdcLakeError as error:
            for entry_report in report.entries:
                if (entry_report.layer, entry_report.table) == (entry.layer, entry.table):
                    entry_report.error = ReportedError.of(error)
    for entry_report in comparison.surplus():
        comparison.catalog.drop(*entry_report.entry.split("."))
    return report


def drop_from_catalog(
    config: Config, tables: Sequence[str], layers: Collection[str] = (), spark: SparkSession | None = None
) -> CatalogReport:
    """Remove the entries of tables from the catalog, and surplus ones. Files are kept.

    Args, Raises: see `check_catalog`.

    Raises:
        ForeignEntryError: an entry does not belong to cdc_lake; nothing was removed.
    """
    comparison = _CatalogComparison(config, tables, layers, spark or _session(config))
    for entry in comparison.entries:
        check_is_ours(entry, comparison.found[entry.database])
    pairs = [
        (entry, name)
        for entry in comparison.entries
        for name in entry.names
        if name in comparison.found[entry.database]
    ]
    report = CatalogReport(entries=[*(_entry_report(entry, name, []) for entry, name in pairs), *comparison.surplus()])
    for entry_report in report.entries:
        comparison.catalog.drop(*entry_report.entry.split("."))
    return report


@dataclass(frozen=True)
class _LakeTable:
    """A table of the lake, which may not exist yet."""

    layer: str
    table: str
    path: str
    stored_in: StorageConfig
    open: Callable[[SparkSession], Table[Any]]


def _lake_table(lake: Lake, models: str, layer: str, name: str) -> _LakeTable:
    """A table by its layer and its name in reports. `models` is the folder of the models."""
    if layer == "silver":
        target = lake.silver_tables([name.partition("@")[0]])[name]
        return _LakeTable(layer, name, target.path, target.storage, target.open)
    path = lake.path(layer, name)
    if layer == "gold":
        storage = model_header(models, name).table
        return _LakeTable(layer, name, path, storage, lambda spark: lake.gold(spark, name, storage))
    return _LakeTable(layer, name, path, StorageConfig(), lambda spark: lake.bronze(spark, name))


def check_catalog_name(lake: Lake, files: HadoopFiles, layer: str, table: str, collisions: Mapping[str, str]) -> None:
    """Check that a new table does not take the catalog name of another table.

    Existing tables keep their names; of several new tables, the first by name gets it.

    Args:
        collisions: the tables with the same catalog name, and the name; see `colliding`.

    Raises:
        ConfigError: another table has the name.
    """
    for other, name in collisions.items():
        if other < table or lake.holds(files, layer, other):
            raise ConfigError(
                table,
                f"its catalog name would be `{name}`, which is the name of {other}",
                "set `catalog.table`, for example to `{prefix}_{schema}_{table}`, or remove the topic from --table",
            )


class _CatalogWriter:
    """Updates the entries of one table after the other. If the catalog does not respond, it is not called again."""

    def __init__(self, run: OpenRun) -> None:
        self._run = run
        self._catalog: Catalog | None = None
        self._down: InfrastructureError | None = None

    def write(self, layer: str, table: str) -> Exception | None:
        """Update the entries of a table. Returns the error, if there was one."""
        if self._down is not None:
            return self._down
        try:
            config, lake, spark = self._run.config, self._run.lake, self._run.spark
            self._catalog = self._catalog or open_catalog(config.catalog, partial(hadoop, spark))
            lake_table = _lake_table(lake, config.gold.models, layer, table)
            entry = _entry(config.catalog, lake, SparkReader(lake, spark), self._run.files, lake_table)
            if entry is not None:
                _put(self._catalog, entry)
        except Exception as error:
            logger.debug("%s", table, exc_info=True)
            self._down = error if isinstance(error, InfrastructureError) else None
            return error
        return None


def _put(catalog: Catalog, entry: Entry) -> None:
    """Write the entry of a table, unless its name belongs to something else."""
    check_is_ours(entry, catalog.found(entry.database, entry.names))
    catalog.put(entry)


def _entry(catalog: CatalogConfig, lake: Lake, reader: Reader, files: Files, table: _LakeTable) -> Entry | None:
    """The catalog entry of a table; None if it does not exist, or is in Iceberg's own catalog."""
    if table.stored_in.format == "iceberg":
        return None
    columns = reader.columns(table.path, table.stored_in.format, table.open)
    if columns is None:
        return None
    database, name = catalog.name_of(table.layer, table.table)
    fields = table.stored_in.partitions
    comments = dict[str, str]()
    if table.layer == "silver" and (fingerprint := _latest_value_schema(reader, table.table.partition("@")[0])):
        comments = column_comments(lake.schema_files(files).by_fingerprint(fingerprint).text)
    return Entry(
        table=table.table,
        layer=table.layer,
        database=database,
        name=name,
        kind=table.stored_in.kind,
        path=table.path,
        schema=_with_comments(columns.schema, comments),
        partition_by=(joint_name(fields),) if fields and table.stored_in.format == "hudi" else (),
        partitions=tuple(columns.partitions),
    )


def _latest_value_schema(reader: Reader, topic: str) -> str | None:
    bronze = reader.bronze(topic)
    return bronze.rows.latest_value_schema(bronze.progress.commit)


def _with_comments(schema: StructType, comments: Mapping[str, str]) -> StructType:
    """The columns with their comments, without the engine's other metadata."""

    def commented(field: StructField) -> StructField:
        comment = comments.get(field.name) or field.metadata.get("comment")
        return StructField(field.name, field.dataType, metadata={"comment": comment} if comment else {})

    return StructType([commented(field) for field in schema])


class _CatalogComparison:
    """Compares tables with the catalog.

    Attributes:
        entries: the correct entries of the tables that exist.
        found: all entries in their databases.
    """

    def __init__(
        self, config: Config, tables: Sequence[str], layers: Collection[str], spark: SparkSession | None
    ) -> None:
        layers, models = layers or config.catalog.layers, config.gold.models
        self.lake = lake = lake_of(config)
        files = lake_files(lake.root, spark)
        session = cache(lambda: spark or _session(config))
        if needs_hadoop(lake, files):
            files = HadoopFiles(session())
        self.catalog = open_catalog(config.catalog, partial(hadoop, spark))
        layer_names = {layer: _table_names(lake, models, files, layer) for layer in layers}
        topics = list(dict.fromkeys(name.partition("@")[0] for names in layer_names.values() for name in names))
        asked = set(select(tables, topics, f"table in {lake.root}", "run the bronze job first"))
        selected = [
            _lake_table(lake, models, layer, name)
            for layer, names in layer_names.items()
            for name in names
            if name.partition("@")[0] in asked
        ]
        plain, entry_by = FilesReader(lake, files), partial(_entry, config.catalog, lake)
        with ThreadPoolExecutor(PARALLEL_READS) as pool:
            read = list(pool.map(lambda table: without_spark(partial(entry_by, plain, files, table)), selected))
        candidates = (
            known[0] if known else entry_by(SparkReader(lake, session()), files, table)
            for table, known in zip(selected, read, strict=True)
        )
        entries = [entry for entry in candidates if entry is not None]
        self.found = {database: self.catalog.found(database) for database in {entry.database for entry in entries}}
        self.entries = entries
        self._is_all = asked == set(topics) and set(layers) >= set(config.catalog.layers)

    def compared(self) -> list[EntryReport]:
        """Each entry, and how the catalog differs."""
        return [
            _entry_report(entry, wanted.name, differences(wanted, self.found[entry.database].get(wanted.name)))
            for entry in self.entries
            for wanted in self.catalog.listings(entry)
        ]

    def surplus(self) -> list[EntryReport]:
        """Entries of cdc_lake whose table no longer exists; only searched if all tables were selected."""
        if not self._is_all:
            return []
        wanted = {(entry.database, name) for entry in self.entries for name in entry.names}
        return [
            EntryReport(
                layer="", table=listing.parameters[PATH], entry=listing.full_name, differences=["no such table"]
            )
            for listings in self.found.values()
            for listing in listings.values()
            if is_below(listing.parameters.get(PATH, ""), self.lake.root)
            and (listing.database, listing.name) not in wanted
        ]


def _session(config: Config) -> SparkSession:
    return build_session("cdc_lake catalog", config.max_record_bytes)


def _table_names(lake: Lake, models: str, files: Files, layer: str) -> list[str]:
    """The tables of a layer by their names in reports; those of silver and gold may not exist yet."""
    if layer == "gold":
        return model_names(Path(models))
    topics = lake.names(files)
    if layer == "bronze":
        return topics
    return list(lake.silver_tables(topics))


def _entry_report(entry: Entry, name: str, drift: list[str]) -> EntryReport:
    return EntryReport(layer=entry.layer, table=entry.table, entry=f"{entry.database}.{name}", differences=drift)
