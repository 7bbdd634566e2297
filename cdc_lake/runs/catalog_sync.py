"""The catalog kept in step with the tables: told at the end of each run, and looked at, mended and emptied by command.

A table's commit never waits for the catalog. One that is down, or refuses, is a warning in the table's report and a
mark in the lake (`<root>/_catalog/<layer>/<table>`); the next run tells it again.
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
from cdc_lake.catalogs.naming import former_name, names_of
from cdc_lake.config import Config, SilverTable
from cdc_lake.decode.declared import column_comments
from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError
from cdc_lake.lake.open import TABLE_FOLDERS, gold_table
from cdc_lake.lake.readers import FilesReader, Reader, SparkReader, without_spark
from cdc_lake.models import model_names, read_model
from cdc_lake.partitioning import joint_name
from cdc_lake.runs.context import PARALLEL_READS, lake_of, needs_hadoop, select, silver_targets
from cdc_lake.runs.report import Failure, Report
from cdc_lake.spark.session import build_session, hadoop, is_alive, lake_files
from cdc_lake.storage.files import LocalFiles, Storage
from cdc_lake.tables.contract import Table
from cdc_lake.tables.delta import DeltaLakeTable

logger = logging.getLogger(__name__)


class EntryReport(BaseModel):
    """What became of a table's entries, or what they are like.

    Attributes:
        entry: database and name.
        differences: what the catalog says otherwise, or said before it was mended; none if nothing.
        error: why it could not be mended.
    """

    layer: str
    table: str
    entry: str
    differences: list[str] = []
    error: Failure | None = None


class CatalogReport(BaseModel):
    """What a catalog says of the tables."""

    entries: list[EntryReport] = []

    @property
    def drifted(self) -> list[EntryReport]:
        """The entries that say otherwise."""
        return [one for one in self.entries if one.differences]


def sync_catalog_after_run(config: Config, report: Report, spark: SparkSession, *, layer: str | None = None) -> None:
    """Tell the catalog of the tables that a run committed to, and of those that it could not be told of before.

    Args:
        layer: whose tables they are; the report's, if nothing is said.

    Whatever happens here, it is a warning in the table's report: `catalog: behind: …`.
    """
    layer = layer or report.layer
    if config.catalog.type == "none" or layer not in config.catalog.layers:
        return
    with report.phase("catalog"):
        _sync_after_run(config, report, spark, layer)


def _sync_after_run(config: Config, report: Report, spark: SparkSession, layer: str) -> None:
    if not is_alive(spark):
        for done in report.tables:
            if done.status == "ok":
                done.warn("catalog: behind: the driver's JVM has ended; run `cdc-lake catalog sync`")
        return
    storage = Storage(spark)
    behind = set(storage.names(_mark_path(config, layer)))
    writer = _CatalogWriter(config, spark)
    for done in report.tables:
        if done.status != "ok" and done.table not in behind:
            continue
        with done.phase("catalog"):
            mark, error = _mark_path(config, layer, done.table), writer.write(layer, done.table)
        if error is not None:
            done.warn(f"catalog: behind: {error}")
            storage.write_once(mark, str(error))
        elif done.table in behind:
            storage.remove(mark)


def is_catalog_current(config: Config, files: LocalFiles | Storage, layer: str) -> bool:
    """Whether the catalog knows the newest state of all tables of a layer, or there is none."""
    return config.catalog.type == "none" or not files.names(_mark_path(config, layer))


def check_catalog(
    config: Config, tables: Sequence[str], layers: Collection[str] = (), spark: SparkSession | None = None
) -> CatalogReport:
    """Compare the catalog with the tables; nothing is changed.

    Args:
        tables: topic names or globs; of gold the models'.
        layers: whose tables; those of the settings, if none are given.

    Raises:
        UnknownTableError: a name or glob fits no table.
        ConfigError: there is no catalog.
        InfrastructureError: it does not answer.
    """
    comparison = _CatalogComparison(config, tables, layers, spark)
    return CatalogReport(entries=[*comparison.compared(), *comparison.surplus()])


def sync_catalog(
    config: Config, tables: Sequence[str], layers: Collection[str] = (), spark: SparkSession | None = None
) -> CatalogReport:
    """Make the catalog say what the tables are: entries are made and mended, and surplus ones are taken out.

    Args, Raises: see `check_catalog`. An entry that cannot be mended has its error; the others are mended.
    """
    spark = spark or _session(config)
    comparison = _CatalogComparison(config, tables, layers, spark)
    report = CatalogReport(entries=[*comparison.compared(), *comparison.surplus()])
    for entry in comparison.entries:
        try:
            _put(comparison.catalog, entry)
            Storage(spark).remove(_mark_path(config, entry.layer, entry.table))
        except InfrastructureError:
            raise
        except CdcLakeError as error:
            for one in report.entries:
                if (one.layer, one.table) == (entry.layer, entry.table):
                    one.error = Failure.of(error)
    for one in comparison.surplus():
        comparison.catalog.drop(*one.entry.split("."))
    return report


def drop_from_catalog(
    config: Config, tables: Sequence[str], layers: Collection[str] = (), spark: SparkSession | None = None
) -> CatalogReport:
    """Take the entries of tables out of the catalog, and surplus ones; files stay.

    Args, Raises: see `check_catalog`.

    Raises:
        ForeignEntryError: an entry is of something else; nothing was taken out.
    """
    comparison = _CatalogComparison(config, tables, layers, spark or _session(config))
    for entry in comparison.entries:
        check_is_ours(entry, comparison.found[entry.database])
    there = [
        (entry, name)
        for entry in comparison.entries
        for name in entry.names
        if name in comparison.found[entry.database]
    ]
    report = CatalogReport(entries=[*(_entry_report(entry, name, []) for entry, name in there), *comparison.surplus()])
    for one in report.entries:
        comparison.catalog.drop(*one.entry.split("."))
    return report


@dataclass(frozen=True)
class _LakeTable:
    """A table of the lake, which may not be there yet."""

    layer: str
    table: str
    path: str
    stored_in: SilverTable
    open: Callable[[SparkSession], Table[Any]]

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns that readers are told of."""
        fields = self.stored_in.partitions
        return (joint_name(fields),) if fields and self.stored_in.format == "hudi" else ()


def _lake_table(config: Config, layer: str, name: str) -> _LakeTable:
    if layer == "silver":
        target = next(one for one in silver_targets(config, name.partition("@")[0]) if one.name == name)
        return _LakeTable(layer, name, target.path, target.held_in, target.open)
    path = lake_of(config).path(layer, name)
    if layer == "gold":
        storage = read_model(Path(config.gold.models) / f"{name}.sql").header.table
        return _LakeTable(layer, name, path, storage, lambda spark: gold_table(spark, path, storage))
    return _LakeTable(layer, name, path, SilverTable(), lambda spark: DeltaLakeTable(spark, path))


def check_catalog_name(config: Config, storage: Storage, layer: str, table: str, others: Mapping[str, str]) -> None:
    """Check that a table that is not in the lake yet does not take another one's name in the catalog.

    Tables of the lake come first; of new ones, the first by name.

    Args:
        storage: of the lake.
        others: the tables of the same name, and the name; see `colliding`.

    Raises:
        ConfigError: it does.
    """
    for other, name in others.items():
        if other < table or storage.holds(_lake_table(config, layer, other).path, *TABLE_FOLDERS):
            raise ConfigError(
                table,
                f"it would be `{name}` in the catalog, as {other} is",
                "set `catalog.table` to something like `{prefix}_{schema}_{table}`, or leave it out of --table",
            )


class _CatalogWriter:
    """Tells the catalog of one table after the other; once it does not answer, it is not asked again."""

    def __init__(self, config: Config, spark: SparkSession) -> None:
        self._config = config
        self._spark = spark
        self._catalog: Catalog | None = None
        self._down: InfrastructureError | None = None

    def write(self, layer: str, table: str) -> Exception | None:
        """Tell it of a table; what hindered it."""
        if self._down is not None:
            return self._down
        try:
            self._catalog = self._catalog or open_catalog(self._config, partial(hadoop, self._spark))
            lake = lake_of(self._config)
            reader, storage = SparkReader(lake, self._spark), Storage(self._spark)
            entry = _entry(self._config, reader, storage, _lake_table(self._config, layer, table))
            if entry is not None:
                _put(self._catalog, entry)
        except Exception as error:
            logger.debug("%s", table, exc_info=True)
            self._down = error if isinstance(error, InfrastructureError) else None
            return error
        return None


def _put(catalog: Catalog, entry: Entry) -> None:
    """List a table as it is now, unless something else is listed by its names."""
    found = catalog.found(entry.database, entry.all_names)
    entry = entry.as_listed(found)
    check_is_ours(entry, found)
    catalog.put(entry)


def _entry(config: Config, reader: Reader, files: LocalFiles | Storage, table: _LakeTable) -> Entry | None:
    """What the catalog is to be told of a table; nothing where there is none yet."""
    found = reader.columns(table.path, table.stored_in.format, table.open)
    if found is None:
        return None
    database, name = names_of(config.catalog, table.layer, table.table)
    comments = dict[str, str]()
    if table.layer == "silver" and (fingerprint := _latest_value_schema(reader, table.table.partition("@")[0])):
        comments = column_comments(lake_of(config).schema_files(files).by_fingerprint(fingerprint).text)
    return Entry(
        table=table.table,
        layer=table.layer,
        database=database,
        name=name,
        kind=table.stored_in.kind,
        path=table.path,
        schema=_commented(found.schema, comments),
        partition_by=table.partition_by,
        partitions=tuple(found.partitions),
        former=former_name(config.catalog, table.layer, table.table),
    )


def _latest_value_schema(reader: Reader, topic: str) -> str | None:
    bronze = reader.bronze(topic)
    return bronze.rows.latest_value_schema(bronze.progress.commit)


def _commented(schema: StructType, comments: Mapping[str, str]) -> StructType:
    """The columns with their comments, and without what else an engine notes of them."""

    def commented(field: StructField) -> StructField:
        comment = comments.get(field.name) or field.metadata.get("comment")
        return StructField(field.name, field.dataType, metadata={"comment": comment} if comment else {})

    return StructType([commented(field) for field in schema])


class _CatalogComparison:
    """The tables asked for beside what the catalog says.

    Attributes:
        entries: what it should say, of the tables that there are.
        found: everything that is listed in their databases.
    """

    def __init__(
        self, config: Config, tables: Sequence[str], layers: Collection[str], spark: SparkSession | None
    ) -> None:
        layers = layers or config.catalog.layers
        files = lake_files(config.lake.root, spark)
        session = cache(lambda: spark or _session(config))
        if needs_hadoop(config, files):
            files = Storage(session())
        self.catalog = open_catalog(config, partial(hadoop, spark))
        there = {layer: _table_names(config, files, layer) for layer in layers}
        topics = list(dict.fromkeys(name.partition("@")[0] for names in there.values() for name in names))
        asked = set(select(tables, topics, f"table in {config.lake.root}", "run the bronze job first"))
        selected = [
            _lake_table(config, layer, name)
            for layer, names in there.items()
            for name in names
            if name.partition("@")[0] in asked
        ]
        plain = FilesReader(lake_of(config), files)
        with ThreadPoolExecutor(PARALLEL_READS) as pool:
            read = list(pool.map(lambda one: without_spark(partial(_entry, config, plain, files, one)), selected))
        found = (
            known[0] if known else _entry(config, SparkReader(lake_of(config), session()), files, one)
            for one, known in zip(selected, read, strict=True)
        )
        entries = [entry for entry in found if entry is not None]
        self.found = {database: self.catalog.found(database) for database in {one.database for one in entries}}
        self.entries = [entry.as_listed(self.found[entry.database]) for entry in entries]
        self._root = config.lake.root
        self._is_all = asked == set(topics) and set(layers) >= set(config.catalog.layers)

    def compared(self) -> list[EntryReport]:
        """Each entry, and what the catalog says otherwise."""
        return [
            _entry_report(entry, wanted.name, differences(wanted, self.found[entry.database].get(wanted.name)))
            for entry in self.entries
            for wanted in self.catalog.listings(entry)
        ]

    def surplus(self) -> list[EntryReport]:
        """Entries of ours that are of no table any more; only told when all tables were asked for."""
        if not self._is_all:
            return []
        wanted = {(entry.database, name) for entry in self.entries for name in entry.names}
        return [
            EntryReport(
                layer="", table=listing.parameters[PATH], entry=listing.full_name, differences=["no such table"]
            )
            for listings in self.found.values()
            for listing in listings.values()
            if is_below(listing.parameters.get(PATH, ""), self._root) and (listing.database, listing.name) not in wanted
        ]


def _session(config: Config) -> SparkSession:
    return build_session("cdc_lake catalog", config.max_record_bytes)


def _table_names(config: Config, storage: Storage | LocalFiles, layer: str) -> list[str]:
    """The tables of a layer by their names in reports; of silver and gold some may not be there yet."""
    if layer == "gold":
        return model_names(Path(config.gold.models))
    topics = lake_of(config).names(storage)
    if layer == "bronze":
        return topics
    return [target.name for topic in topics for target in silver_targets(config, topic)]


def _entry_report(entry: Entry, name: str, said: list[str]) -> EntryReport:
    return EntryReport(layer=entry.layer, table=entry.table, entry=f"{entry.database}.{name}", differences=said)


def _mark_path(config: Config, layer: str, table: str = "") -> str:
    """Where it is noted that the catalog is behind: for a table, or the folder of all of a layer."""
    return lake_of(config).catalog_mark(layer, table)
