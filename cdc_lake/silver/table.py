"""A silver table and what it is folded from: its bronze rows and settings, and how its columns follow the source's."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import or_
from typing import Any, Literal, Self

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cdc_lake.columns import BRONZE, META, SILVER_META, quoted, type_text
from cdc_lake.config import StorageConfig, TableConfig
from cdc_lake.decode.column_mapping import ColumnMapping
from cdc_lake.decode.envelope import TRUNCATE, is_snapshot_edge
from cdc_lake.decode.key import key_fields, key_tree_from_row
from cdc_lake.errors import BronzeBehindError, ConfigError
from cdc_lake.fold.rules import Order
from cdc_lake.fold.table_events import KafkaPosition, SnapshotMarker, Truncate
from cdc_lake.lake.lake import BronzeTable, Lake, SilverTarget
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.lake.side import SideTable
from cdc_lake.silver.batch_schemas import BatchSchemas, schemas_and_frames
from cdc_lake.silver.events import kafka_position, sent_columns
from cdc_lake.silver.evolution import Layout, evolve_layout
from cdc_lake.spark.expressions import of_batch
from cdc_lake.storage.hadoop import HadoopFiles
from cdc_lake.tables.contract import Table, progress_of
from cdc_lake.tables.partitions import check_partitions
from cdc_lake.tables.progress import BronzeProgress, KeyFrom, SilverProgress

_PARTITIONS = 5
"""Partitions in a message."""


@dataclass(frozen=True)
class SilverTable:
    """A silver table and the bronze table that it is folded from, at one version.

    Attributes:
        name: silver's name, see `SilverTarget`.
        version: its version.
        landed: its progress at the version.
        bronze_rows: its rows at the version.
        known: the columns of the table whose layout to follow; none if that is silver itself.
    """

    spark: SparkSession
    name: str
    settings: TableConfig
    schemas: SchemaFiles
    bronze: BronzeTable
    version: int
    landed: BronzeProgress
    bronze_rows: DataFrame
    silver: Table[SilverProgress]
    storage: StorageConfig
    side: SideTable
    known: Layout | None = None

    @classmethod
    def open(
        cls, lake: Lake, target: SilverTarget, spark: SparkSession, settings: TableConfig, version: int | None = None
    ) -> Self:
        """Open the tables.

        Args:
            settings: the topic's.
            version: the version of bronze (default: the newest).

        Raises:
            UnknownTableError: bronze has no commit.
        """
        bronze = lake.bronze(spark, target.topic)
        version = bronze.version() if version is None else version  # another run may commit meanwhile
        landed = progress_of(bronze, version)
        return cls(
            spark=spark,
            name=target.name,
            settings=settings,
            schemas=lake.schema_files(HadoopFiles(spark)),
            bronze=bronze,
            landed=landed,
            version=version,
            bronze_rows=bronze.read(as_of=version).select(*BRONZE),
            silver=target.open(spark),
            storage=target.storage,
            side=target.open_side(spark),
        )

    @classmethod
    def open_to_refold(
        cls, lake: Lake, target: SilverTarget, spark: SparkSession, settings: TableConfig, version: int | None = None
    ) -> tuple[Self, SilverProgress | None]:
        """Open the tables to fold bronze from its start, with the columns that silver has; and silver's progress.

        See `open`.
        """
        table = cls.open(lake, target, spark, settings, version)
        progress = table.silver.progress()
        if progress is None:
            return table, None
        stored = layout_of(table.stored_rows.schema, progress, added=added_columns(settings))
        return replace(table, known=stored), progress

    @cached_property
    def stored_rows(self) -> DataFrame:
        """Silver's rows before any of bronze's is folded."""
        return self.silver.read()

    @property
    def column_mapping(self) -> ColumnMapping:
        """Which silver column takes each source column."""
        return column_mapping(self.settings, self.silver)

    @property
    def partitions(self) -> int:
        return len(self.landed.position)

    @property
    def truncates(self) -> Literal["soft", "hard"]:
        """How a truncate deletes rows."""
        chosen = self.settings.deletes.truncates
        return chosen if chosen in ("soft", "hard") else self.settings.deletes.mode

    def with_current_key(self, key_from: KeyFrom | None) -> Self:
        """The same table with the bronze rows that have the current primary key; see `has_former_key`."""
        return replace(self, bronze_rows=self.bronze_rows.where(~has_former_key(self.landed, key_from)))

    def rows_between(self, first: int, last: int, key_from: KeyFrom | None) -> DataFrame:
        """The rows of bronze's batches with the current primary key; those of the newest batch from its own files, if
        bronze has not changed since.
        """
        added = self.bronze.added_by(last, self.bronze_rows) if first == last == self.landed.commit else None
        if added is None:
            return self.bronze_rows.where(F.col("batch").between(first, last))
        is_of_batch = F.col("batch") == of_batch(last, F.col("partition"))
        return added.where(~has_former_key(self.landed, key_from) & is_of_batch)

    def progress_of_batch(self, batch: int) -> BronzeProgress | None:
        """Bronze's progress after a batch; none if its log no longer has it."""
        return self.landed if batch == self.landed.commit else self.bronze.progress_of_commit(batch)

    def consumed(self, last: int) -> dict[str, Any]:
        """What silver's progress has of bronze after the batches up to this one are merged."""
        progress, source = self.progress_of_batch(last), self.bronze.id()
        nonce = progress.nonce if progress else self.bronze.nonce_of(last)
        return {
            "sources": {source: last},
            "nonces": {source: nonce} if nonce else {},
            "offsets": progress.offsets if progress else {},
        }

    def schemas_in(
        self, rows: DataFrame, progress: SilverProgress | None = None, writers: Mapping[str, Any] | None = None
    ) -> BatchSchemas | None:
        """The schemas of bronze rows; none if no event among them has a key, so that the table is still unknown.

        Args:
            progress: silver's, whose columns stay; none to fold from bronze's start.
            writers: the result of `schemas_and_frames`, if it is known already.
        """
        writers = writers or rows.agg(schemas_and_frames()).collect()[0][0].asDict()
        has_key = writers["keys" if self.settings.key_of_rows == () else "values"]
        return self.schemas_of(rows, progress, writers) if has_key else None

    def schemas_of(self, rows: DataFrame, progress: SilverProgress | None, writers: Mapping[str, Any]) -> BatchSchemas:
        """Read schemas, and determine the columns that they need; see `schemas_in`."""
        key_schemas = writers["keys"] if self.settings.key_of_rows == () else ()
        first_came, newest = _in_order(rows, "value_schema", writers["values"])
        key_names, newest_key = _in_order(rows, "key_schema", key_schemas)
        keys = [self.schemas.by_fingerprint(name) for name in _newest_last(key_names, newest_key)]
        values = {name: self.schemas.by_fingerprint(name).of_table(self.settings) for name in first_came}
        columns = self.settings.merge.keys
        trees = [schema.tree for schema in keys]
        if columns:
            trees = [key_tree_from_row(values[name].tree, columns) for name in _newest_last(first_came, newest)]
        key_columns = [
            target for tree in trees for name in key_fields(tree) if (target := self.column_mapping.target(name))
        ]
        stored = None
        if progress is not None:
            stored = layout_of(self.stored_rows.schema, progress, key_columns, added_columns(self.settings))
        layout_change = evolve_layout(
            self.name,
            sent_columns(trees, values.values(), values[newest] if newest else None),
            stored=stored,
            retired=progress.retired if progress else (),
            known=self.known,
            column_mapping=self.column_mapping,
            is_keyless=self.settings.key_of_rows is None,
        )
        if layout_change.layout.keys:  # otherwise the table may be partitioned by a derived column
            check_partitions(self.name, self.storage, layout_change.layout.columns, layout_change.layout.keys)
        return BatchSchemas(
            self.name, self.settings, keys, trees, list(values.values()), writers["frames"], layout_change
        )

    def truncates_and_markers(self, rows: DataFrame) -> tuple[list[Truncate], list[SnapshotMarker]]:
        """The truncates among bronze's rows, and the snapshot markers, if the settings use them."""
        settings = self.settings
        is_truncate = F.col("op") == TRUNCATE
        is_wanted = is_truncate | (is_snapshot_edge(F.col("snapshot")) & F.lit(settings.deletes.missing_after_snapshot))
        order = F.struct("source_position", "position_domain", "source_ts_ms")
        events = (
            rows.where(is_wanted)
            .select(kafka_position().alias("kafka_position"), "snapshot", order.alias("o"), "op")
            .collect()
        )
        truncates = [
            Truncate(KafkaPosition(*r["kafka_position"]), None if settings.is_in_log_order else Order(*r["o"]))
            for r in events
            if r["op"] == TRUNCATE
        ]
        markers = [
            SnapshotMarker(KafkaPosition(*r["kafka_position"]), r["snapshot"]) for r in events if r["op"] != TRUNCATE
        ]
        return truncates, markers

    def check_columns(self) -> None:
        """Check that no other program removed or renamed silver's columns, unless the settings do the same.

        Raises:
            ConfigError: one did. A run would add the columns again, without values in the rows that it does not change.
        """
        for name, now in self.silver.lost_columns().items():
            if name in self.settings.schema_.rename or name in self.settings.schema_.exclude:
                continue
            if now is None:
                cure = f"to restore it, run `cdc-lake rebuild --table {self.name}`; the run wrote nothing"
                raise ConfigError(f"{self.name}.{name}", "another program removed the column from silver", cure)
            raise ConfigError(
                f"{self.name}.{name}",
                f"another program renamed the column to `{now}` in silver",
                f"rename it back: ALTER TABLE {self.silver.sql_name} RENAME COLUMN {quoted(now)} TO "
                f"{quoted(name)}; or set `schema.rename: {{{name}: {now}}}` for this table",
            )

    def missing_records(self, progress: SilverProgress) -> str | None:
        """Describe the records that silver has merged and bronze, after it was restored or replaced, has not read
        again.
        """
        behind = sorted(progress.ahead_of(self.landed).items())
        if not behind:
            return None
        ends = ", ".join(f"partition {p}: {reached} of {end}" for p, (reached, end) in behind[:_PARTITIONS])
        return f"bronze was restored or replaced, and lacks records that silver has merged (next offsets: {ends})"

    def check_not_behind(self, progress: SilverProgress) -> None:
        """Check that bronze, after it was restored or replaced, has read again what silver has merged.

        Appended rows never change, so they do not need the check.

        Raises:
            BronzeBehindError: it has not. Rows would return to older ones, and deleted rows would come back.
        """
        what = self.missing_records(progress)
        if what is None or self.settings.merge.mode == "append":
            return
        raise BronzeBehindError(
            self.name,
            what,
            "run the bronze job until it has read them again, then silver; to return silver to bronze's older rows, "
            f"run `cdc-lake run silver --table {self.name.partition('@')[0]} --accept-loss`",
        )


def _newest_last(fingerprints: Sequence[str], newest: str | None) -> list[str]:
    """The schemas in the same order, except that the newest is the last."""
    return sorted(fingerprints, key=lambda name: name == newest)


def _in_order(rows: DataFrame, column: str, fingerprints: Sequence[str]) -> tuple[Sequence[str], str | None]:
    """The schemas of a column in order of first use, and the one used last."""
    if len(fingerprints) < 2:
        return fingerprints, next(iter(fingerprints), None)
    came = F.min(kafka_position()).alias("first"), F.max(F.when(~F.col("late"), kafka_position())).alias("last")
    writers = rows.where(F.col(column).isNotNull()).groupBy(column).agg(*came)
    uses = {row[column]: row for row in writers.collect()}
    on_time = [name for name, row in uses.items() if row["last"] is not None]
    newest = max(on_time, key=lambda name: uses[name]["last"], default=None)
    return sorted(fingerprints, key=lambda name: (name not in uses, name in uses and uses[name]["first"])), newest


def has_former_key(landed: BronzeProgress, key_from: KeyFrom | None) -> Column:
    """Whether a bronze row is older than the current primary key.

    Args:
        key_from: silver's.
    """
    topics = list(landed.offsets)
    if key_from is None or key_from.topic_id not in topics:
        return F.lit(False)
    return is_before(key_from.start, topics.index(key_from.topic_id))


def is_before(offsets: Mapping[int, int], generation: int) -> Column:
    """Whether a bronze row precedes a position in a generation of its topic.

    Args:
        offsets: partition -> the first offset at or after that position.
    """
    before = ((F.col("partition") == number) & (F.col("offset") < to) for number, to in offsets.items())
    is_in_it = (F.col("generation") == generation) & reduce(or_, before, F.lit(False))
    return (F.col("generation") < generation) | is_in_it


def column_mapping(settings: TableConfig, silver: Table[SilverProgress]) -> ColumnMapping:
    """Which column of a table takes each source column."""
    return ColumnMapping(settings.schema_.exclude, settings.schema_.rename, settings.schema_.cast, silver.stored_type)


def added_columns(settings: TableConfig) -> tuple[str, ...]:
    """Silver columns that neither come from the source nor exist in every silver table."""
    return (META, *settings.merge.derive) if settings.merge.mode == "append" else ()


def layout_of(
    silver: StructType, progress: SilverProgress, keys: Collection[str] = (), added: Collection[str] = ()
) -> Layout:
    """The source's columns as silver stores them.

    Args:
        silver: its columns.
        keys: the primary key's columns, if the progress no longer has them.
        added: columns that do not come from the source.
    """
    ours = {*SILVER_META, *added}
    columns = {field.name: type_text(field.dataType) for field in silver if field.name not in ours}
    own = progress.keys or [name for name in keys if name in columns]
    return Layout({name: columns[name] for name in own if name in columns}, columns, progress.variants)
