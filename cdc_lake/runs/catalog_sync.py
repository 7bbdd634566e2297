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
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pydantic import BaseModel
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from cdc_lake.catalogs import open_catalog
from cdc_lake.catalogs.catalog import PATH, Catalog, Entry, check_is_ours, differences, is_below
from cdc_lake.catalogs.naming import former_name, names_of
from cdc_lake.config import Config, StorageConfig
from cdc_lake.config.gold_models import model_names, read_model
from cdc_lake.decode.declared import column_comments
from cdc_lake.errors import CdcLakeError, ConfigError, InfrastructureError
from cdc_lake.lake.open import TABLE_FOLDERS, gold_table
from cdc_lake.partitioning import joint_name
from cdc_lake.runs.context import LOOKS, is_elsewhere, lake_of, select, silver_targets
from cdc_lake.runs.report import Failure, Report
from cdc_lake.spark.session import build_session, hadoop, is_alive, lake_files
from cdc_lake.storage.files import LocalFiles, Storage
from cdc_lake.tables.contract import Table, progress_of
from cdc_lake.tables.delta import DeltaLakeTable
from cdc_lake.tables.newest import newest_rows, newest_schema, rows_where

logger = logging.getLogger(__name__)

_LOG_ORDER = ("batch", "log_ts", "partition", "offset")
_NEAR_BATCHES = 16
"""The newest schema of a topic's values is looked for in so many of bronze's newest batches first."""


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


def keep_in_step(config: Config, report: Report, spark: SparkSession, *, layer: str | None = None) -> None:
    """Tell the catalog of the tables that a run committed to, and of those that it could not be told of before.

    Args:
        layer: whose tables they are; the report's, if nothing is said.

    Whatever happens here, it is a warning in the table's report: `catalog: behind: …`.
    """
    layer = layer or report.layer
    if config.catalog.type == "none" or layer not in config.catalog.layers:
        return
    with report.phase("catalog"):
        _keep_in_step(config, report, spark, layer)


def _keep_in_step(config: Config, report: Report, spark: SparkSession, layer: str) -> None:
    if not is_alive(spark):
        for done in report.tables:
            if done.status == "ok":
                done.warn("catalog: behind: the driver's JVM has ended; run `cdc-lake catalog sync`")
        return
    storage = Storage(spark)
    behind = set(storage.names(_mark(config, layer)))
    told = _Told(config, spark)
    for done in report.tables:
        if done.status != "ok" and done.table not in behind:
            continue
        with done.phase("catalog"):
            mark, error = _mark(config, layer, done.table), told.of(layer, done.table)
        if error is not None:
            done.warn(f"catalog: behind: {error}")
            storage.write_once(mark, str(error))
        elif done.table in behind:
            storage.remove(mark)


def is_told(config: Config, files: LocalFiles | Storage, layer: str) -> bool:
    """Whether the catalog knows the newest state of all tables of a layer, or there is none."""
    return config.catalog.type == "none" or not files.names(_mark(config, layer))


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
    look = _Look(config, tables, layers, spark)
    return CatalogReport(entries=[*look.compared(), *look.surplus()])


def sync_catalog(
    config: Config, tables: Sequence[str], layers: Collection[str] = (), spark: SparkSession | None = None
) -> CatalogReport:
    """Make the catalog say what the tables are: entries are made and mended, and surplus ones are taken out.

    Args, Raises: see `check_catalog`. An entry that cannot be mended has its error; the others are mended.
    """
    spark = spark or _session(config)
    look = _Look(config, tables, layers, spark)
    report = CatalogReport(entries=[*look.compared(), *look.surplus()])
    for entry in look.entries:
        try:
            _put(look.catalog, entry)
            Storage(spark).remove(_mark(config, entry.layer, entry.table))
        except InfrastructureError:
            raise
        except CdcLakeError as error:
            for one in report.entries:
                if (one.layer, one.table) == (entry.layer, entry.table):
                    one.error = Failure.of(error)
    for one in look.surplus():
        look.catalog.drop(*one.entry.split("."))
    return report


def drop_from_catalog(
    config: Config, tables: Sequence[str], layers: Collection[str] = (), spark: SparkSession | None = None
) -> CatalogReport:
    """Take the entries of tables out of the catalog, and surplus ones; files stay.

    Args, Raises: see `check_catalog`.

    Raises:
        ForeignEntryError: an entry is of something else; nothing was taken out.
    """
    look = _Look(config, tables, layers, spark or _session(config))
    for entry in look.entries:
        check_is_ours(entry, look.found[entry.database])
    there = [(entry, name) for entry in look.entries for name in entry.names if name in look.found[entry.database]]
    report = CatalogReport(entries=[*(_said(entry, name, []) for entry, name in there), *look.surplus()])
    for one in report.entries:
        look.catalog.drop(*one.entry.split("."))
    return report


@dataclass(frozen=True)
class _Held:
    """A table of the lake, which may not be there yet."""

    layer: str
    table: str
    path: str
    held_in: StorageConfig
    open: Callable[[SparkSession], Table[Any]]

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns that readers are told of."""
        fields = self.held_in.partitions
        return (joint_name(fields),) if fields and self.held_in.format == "hudi" else ()


def _held(config: Config, layer: str, name: str) -> _Held:
    if layer == "silver":
        target = next(one for one in silver_targets(config, name.partition("@")[0]) if one.name == name)
        return _Held(layer, name, target.path, target.held_in, target.open)
    path = lake_of(config).path(layer, name)
    if layer == "gold":
        wanted = read_model(Path(config.gold.models) / f"{name}.sql").header.table
        return _Held(layer, name, path, wanted, lambda spark: gold_table(spark, path, wanted))
    return _Held(layer, name, path, StorageConfig(), lambda spark: DeltaLakeTable(spark, path))


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
        if other < table or storage.holds(_held(config, layer, other).path, *TABLE_FOLDERS):
            raise ConfigError(
                table,
                f"it would be `{name}` in the catalog, as {other} is",
                "set `catalog.table` to something like `{prefix}_{schema}_{table}`, or leave it out of --table",
            )


class _Told:
    """Tells the catalog of one table after the other; once it does not answer, it is not asked again."""

    def __init__(self, config: Config, spark: SparkSession) -> None:
        self._config = config
        self._spark = spark
        self._catalog: Catalog | None = None
        self._down: InfrastructureError | None = None

    def of(self, layer: str, table: str) -> Exception | None:
        """Tell it of a table; what hindered it."""
        if self._down is not None:
            return self._down
        try:
            self._catalog = self._catalog or open_catalog(self._config, partial(hadoop, self._spark))
            held, reader = _held(self._config, layer, table), _Spark(self._config, self._spark)
            entry = _entry(self._config, reader, Storage(self._spark), held)
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


class _Described(NamedTuple):
    """A table's columns, and its partitions by the names of their folders."""

    schema: StructType
    partitions: Sequence[str]


class _Reader(Protocol):
    """Reads the columns and comments of tables for a catalog."""

    def described(self, held: _Held) -> _Described | None:
        """A table; none where there is none yet."""

    def newest_value_schema(self, topic: str) -> str | None:
        """The fingerprint of the newest one in bronze."""


class _NotPlainError(Exception):
    """Only Spark can tell."""


class _Files:
    """Reads it without Spark."""

    def __init__(self, config: Config, files: LocalFiles | Storage) -> None:
        self._config = config
        self._files = files

    def described(self, held: _Held) -> _Described | None:
        """See `_Reader`. A Hudi table's columns are Avro's in its commits, and Spark says what these are to it."""
        schema = newest_schema(self._files, held.path) if held.held_in.format == "delta" else None
        if schema is None and self._files.holds(held.path, *TABLE_FOLDERS):
            raise _NotPlainError
        return _Described(schema, ()) if schema else None

    def newest_value_schema(self, topic: str) -> str | None:
        """See `_Reader`."""
        found = newest_rows(self._files, lake_of(self._config).path("bronze", topic))
        if found is None:
            raise _NotPlainError
        newest, rows = found
        columns = ["status", "value_schema", *_LOG_ORDER]
        for since in (newest.progress.commit - _NEAR_BATCHES, 0):
            is_of_row = (pc.field("status") == "ok") & pc.field("value_schema").is_valid() & (pc.field("batch") > since)
            last = rows_where(self._files, rows, is_of_row, columns, least={"batch": since + 1})
            if last:
                by_place = last.sort_by([(name, "descending") for name in _LOG_ORDER])
                fingerprint: str = by_place["value_schema"][0].as_py()
                return fingerprint
        return None


class _Spark:
    """Reads it by Spark."""

    def __init__(self, config: Config, spark: SparkSession) -> None:
        self._config = config
        self._spark = spark

    def described(self, held: _Held) -> _Described | None:
        """See `_Reader`."""
        table = held.open(self._spark)
        return _Described(table.schema(), table.partition_folders()) if table.exists() else None

    def newest_value_schema(self, topic: str) -> str | None:
        """See `_Reader`."""
        bronze = lake_of(self._config).bronze(self._spark, topic)
        progress = progress_of(bronze)
        written = bronze.read().where((F.col("status") == "ok") & F.col("value_schema").isNotNull())
        newest = F.max_by("value_schema", F.struct(*_LOG_ORDER))
        for since in (progress.commit - _NEAR_BATCHES, 0):
            found: str | None = written.where(F.col("batch") > since).agg(newest).collect()[0][0]
            if found is not None:
                return found
        return None


def _entry_without_spark(config: Config, files: LocalFiles | Storage, held: _Held) -> tuple[Entry | None] | None:
    """The entry, which is nothing where there is no table yet; nothing at all where only Spark can tell."""
    try:
        return (_entry(config, _Files(config, files), files, held),)
    except (_NotPlainError, OSError, pa.ArrowInvalid, Py4JJavaError):
        return None  # Spark says what is wrong


def _entry(config: Config, reader: _Reader, files: LocalFiles | Storage, held: _Held) -> Entry | None:
    """What the catalog is to be told of a table; nothing where there is none yet."""
    found = reader.described(held)
    if found is None:
        return None
    database, name = names_of(config.catalog, held.layer, held.table)
    comments = dict[str, str]()
    if held.layer == "silver" and (fingerprint := reader.newest_value_schema(held.table.partition("@")[0])):
        comments = column_comments(lake_of(config).schema_files(files).by_fingerprint(fingerprint).text)
    return Entry(
        table=held.table,
        layer=held.layer,
        database=database,
        name=name,
        kind=held.held_in.kind,
        path=held.path,
        schema=_commented(found.schema, comments),
        partition_by=held.partition_by,
        partitions=tuple(found.partitions),
        former=former_name(config.catalog, held.layer, held.table),
    )


def _commented(schema: StructType, comments: Mapping[str, str]) -> StructType:
    """The columns with their comments, and without what else an engine notes of them."""

    def commented(field: StructField) -> StructField:
        comment = comments.get(field.name) or field.metadata.get("comment")
        return StructField(field.name, field.dataType, metadata={"comment": comment} if comment else {})

    return StructType([commented(field) for field in schema])


class _Look:
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
        if is_elsewhere(config, files):
            files = Storage(session())
        self.catalog = open_catalog(config, partial(hadoop, spark))
        there = {layer: _there(config, files, layer) for layer in layers}
        topics = list(dict.fromkeys(name.partition("@")[0] for names in there.values() for name in names))
        asked = set(select(tables, topics, f"table in {config.lake.root}", "run the bronze job first"))
        wanted = [
            _held(config, layer, name)
            for layer, names in there.items()
            for name in names
            if name.partition("@")[0] in asked
        ]
        with ThreadPoolExecutor(LOOKS) as pool:
            found = list(pool.map(partial(_entry_without_spark, config, files), wanted))
        told = (
            one[0] if one else _entry(config, _Spark(config, session()), files, held)
            for held, one in zip(wanted, found, strict=True)
        )
        entries = [entry for entry in told if entry is not None]
        self.found = {database: self.catalog.found(database) for database in {one.database for one in entries}}
        self.entries = [entry.as_listed(self.found[entry.database]) for entry in entries]
        self._root = config.lake.root
        self._is_all = asked == set(topics) and set(layers) >= set(config.catalog.layers)

    def compared(self) -> list[EntryReport]:
        """Each entry, and what the catalog says otherwise."""
        return [
            _said(entry, wanted.name, differences(wanted, self.found[entry.database].get(wanted.name)))
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


def _there(config: Config, storage: Storage | LocalFiles, layer: str) -> list[str]:
    """The tables of a layer by their names in reports; of silver and gold some may not be there yet."""
    if layer == "gold":
        return model_names(Path(config.gold.models))
    topics = lake_of(config).names(storage)
    if layer == "bronze":
        return topics
    return [target.name for topic in topics for target in silver_targets(config, topic)]


def _said(entry: Entry, name: str, said: list[str]) -> EntryReport:
    return EntryReport(layer=entry.layer, table=entry.table, entry=f"{entry.database}.{name}", differences=said)


def _mark(config: Config, layer: str, table: str = "") -> str:
    """Where it is noted that the catalog is behind: for a table, or the folder of all of a layer."""
    return lake_of(config).catalog_mark(layer, table)
