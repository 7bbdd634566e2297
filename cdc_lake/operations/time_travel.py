"""Time travel: a table at an earlier point, and the changes between two points.

Versions and commit times are read from the table. Source times and offsets need not match any version, so silver is
folded from bronze up to them, with silver's own fold.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import MapType, StructField, StructType

from cdc_lake.columns import BATCH, DELETED, KAFKA_TYPE, KEY, SILVER_META
from cdc_lake.config import Config, TableConfig
from cdc_lake.config.gold_models import model_names
from cdc_lake.decode.envelope import TRUNCATE
from cdc_lake.errors import ConfigError, ExpiredError, TimeTravelError, UnknownTableError
from cdc_lake.fold.table_events import SNAPSHOT_ENDS
from cdc_lake.lake.lake import BronzeTable, Lake, SilverTarget
from cdc_lake.points import Offset, Point, SourceTime, iso, milliseconds
from cdc_lake.runs.context import lake_of, model_header, only_one, select, select_landed
from cdc_lake.runs.report import TableReport
from cdc_lake.silver.batch import Batch
from cdc_lake.silver.events import kafka_position
from cdc_lake.silver.merge import fold_events
from cdc_lake.silver.table import SilverTable, has_former_key, is_before
from cdc_lake.storage.hadoop import HadoopFiles
from cdc_lake.tables.contract import Table
from cdc_lake.tables.joins import as_columns_of
from cdc_lake.tables.progress import BronzeProgress, GoldProgress, KeyFrom

Layer = Literal["bronze", "silver", "gold"]
CHANGE_TYPE = "_change_type"
"""Column of `changes`; name and values as in Delta's change data feed."""
_CURE = "name one of these versions"
_CURE_OF_SILVER = f"{_CURE}, or a SourceTime or an Offset, which are read from bronze"


def read(
    config: Config, table: str, spark: SparkSession, *, layer: Layer = "silver", as_of: Point | None = None
) -> DataFrame:
    """See `cdc_lake.read`."""
    if layer == "silver":
        return _Silver.of(config, table, spark).at(as_of).rows
    if isinstance(as_of, SourceTime | Offset):
        cure = "name a version or a time, or read silver"
        raise ConfigError(table, f"{layer} cannot be read as of a {type(as_of).__name__}", cure)
    lake = lake_of(config)
    stored = _bronze(lake, table, spark) if layer == "bronze" else _gold(lake, config.gold.models, table, spark)
    return stored.read(_version(stored, table, as_of))


def changes(config: Config, table: str, spark: SparkSession, *, since: Point, until: Point | None = None) -> DataFrame:
    """See `cdc_lake.changes`."""
    return _differences(*_Silver.of(config, table, spark).between(since, until))


def _bronze(lake: Lake, table: str, spark: SparkSession) -> BronzeTable:
    topic = only_one(select_landed(lake, HadoopFiles(spark), [table]), table)
    return lake.bronze(spark, topic)


def _gold(lake: Lake, models: str, table: str, spark: SparkSession) -> Table[GoldProgress]:
    names, cure = model_names(Path(models)), "see `gold.models` in the settings"
    name = only_one(select([table], names, f"model in {Path(models)}", cure), table)
    gold = lake.gold(spark, name, model_header(models, name).table)
    if not gold.exists():
        raise UnknownTableError(name, "the gold table does not exist yet", "run the gold job first")
    return gold


@dataclass(frozen=True)
class _State:
    """A silver table at a point; it may omit rows that are equal at another point."""

    rows: DataFrame
    keys: Sequence[str]


@dataclass(frozen=True)
class _Silver:
    """A silver table that can be read at a point.

    Attributes:
        name: as the caller gave it.
    """

    spark: SparkSession
    lake: Lake
    name: str
    target: SilverTarget
    settings: TableConfig

    @classmethod
    def of(cls, config: Config, name: str, spark: SparkSession) -> "_Silver":
        topic = name.partition("@")[0]
        lake = lake_of(config)
        targets = lake.silver_tables([topic])
        if name not in targets:
            what = f"its silver tables in the settings are {', '.join(targets)}"
            raise UnknownTableError(name, what, "name one of these tables")
        return cls(spark, lake, name, targets[name], config.table(topic))

    def at(self, point: Point | None) -> _State:
        """The table at a point (default: now)."""
        if isinstance(point, SourceTime | Offset):
            return self._folded(point)
        silver, keys = self._table()
        return _State(silver.read(_version(silver, self.name, point, _CURE_OF_SILVER)), keys)

    def between(self, since: Point, until: Point | None) -> tuple[_State, _State]:
        """The table at two points. If both are versions, rows in files that both versions share may be missing."""
        self.settings.check_has_keys(self.target.topic, "read the table at each point instead")
        if isinstance(since, SourceTime | Offset) or isinstance(until, SourceTime | Offset):
            return self.at(since), self.at(until)
        silver, keys = self._table()
        start, end = (_version(silver, self.name, point, _CURE_OF_SILVER) for point in (since, until))
        states = [_State(rows, keys) for rows in silver.differing(min(start, end), max(start, end))]
        return (states[0], states[1]) if start <= end else (states[1], states[0])

    def _table(self) -> tuple[Table[Any], Sequence[str]]:
        silver = self.target.open(self.spark)
        progress = silver.progress()
        if progress is None:
            _bronze(
                self.lake, self.target.topic, self.spark
            )  # its error names similar tables, if bronze has no such table either
            raise UnknownTableError(self.name, "the silver table does not exist yet", "run the silver job first")
        return silver, progress.keys

    def _folded(self, point: SourceTime | Offset) -> _State:
        """The table, folded from bronze's events up to a point."""
        self.settings.check_has_keys(self.target.topic, "name a version or a commit time")
        topic = self.target.topic
        _bronze(self.lake, topic, self.spark)
        table, progress = SilverTable.open_to_refold(self.lake, self.target, self.spark, self.settings)
        landed, rows = table.landed, table.bronze_rows.where(F.col("status") == "ok")
        rows = _of_one_key(rows, point, landed, progress.key_from if progress else None, topic)
        rows = rows_until(rows, point, landed, topic)
        batch = Batch.of(replace(table, bronze_rows=rows), (1, landed.commit), None, rows)
        batch.find_table_events()
        if batch.find_schemas() is None:
            raise TimeTravelError(topic, f"bronze has no row event up to {point}", "name a later point")
        batch.check_expectations(TableReport(table=topic))
        changes = fold_events(batch).changes(landed.commit)
        upserts = changes.upserts().drop(KEY)
        # The rows are not from a commit of silver.
        return _State(upserts.withColumn(BATCH, F.lit(None).cast("bigint")), changes.keys)


def _version(table: Table[Any], name: str, as_of: int | datetime | str | None, cure: str = _CURE) -> int:
    """The version at a point.

    Args:
        cure: what to do if the version has expired, for the error.
    """
    if as_of is None:
        return table.version()
    if isinstance(as_of, int):
        version, what = as_of, f"version {as_of} does not exist or has expired"
    else:
        latest = table.version_at(milliseconds(as_of))
        version = -1 if latest is None else latest
        what = f"the version at {as_of} does not exist or has expired"
    if version < 0 or not table.has(version):
        # Oldest first, so expired versions come first.
        known = table.history()[::-1]
        readable = known[bisect_left(known, True, key=lambda commit: table.has(commit.version)) :]
        first, last = (f"{commit.version} ({iso(commit.at_ms)})" for commit in (readable[0], readable[-1]))
        raise ExpiredError(name, f"{what}; the table has versions {first} to {last}", cure)
    return version


def _of_one_key(
    rows: DataFrame, point: SourceTime | Offset, landed: BronzeProgress, key_from: KeyFrom | None, topic: str
) -> DataFrame:
    """Bronze's rows with the table's primary key at a point."""
    if key_from is None or key_from.topic_id not in landed.offsets:
        return rows
    is_former, is_until = has_former_key(landed, key_from), _is_until(point, landed, topic)
    generation = list(landed.offsets).index(key_from.topic_id)
    is_needed = ~is_former & is_before(key_from.whole, generation)
    ((of_today, missing),) = rows.agg(
        F.count(F.when(~is_former & is_until, 1)), F.count(F.when(is_needed & ~is_until, 1))
    ).collect()
    if not of_today:
        return rows.where(is_former)
    if missing:
        what = f"its primary key changed, and {missing} events of its rows with the new key are after {point}"
        raise TimeTravelError(topic, what, "name a later point, or one before the change")
    return rows.where(~is_former)


def rows_until(rows: DataFrame, point: SourceTime | Offset | None, landed: BronzeProgress, topic: str) -> DataFrame:
    """Bronze's rows up to a point (default: all).

    Raises:
        TimeTravelError: bronze does not have the complete table at that point.
    """
    if point is None:
        return rows
    if isinstance(point, SourceTime):
        _check_snapshot_has_ended(rows, point, topic)
    return rows.where(_is_until(point, landed, topic))


def _is_until(point: SourceTime | Offset, landed: BronzeProgress, topic: str) -> Column:
    """Whether a bronze row is at or before a point. Offsets are those of the topic's latest generation."""
    if isinstance(point, SourceTime):
        return _event_time_ms() <= point.ms
    reached = landed.position
    beyond = [number for number, offset in point.positions.items() if offset > reached.get(number, -1)]
    if beyond or point.positions.keys() != reached.keys():
        raise TimeTravelError(
            topic,
            f"{point} does not name an offset up to bronze's in each partition: {dict(sorted(reached.items()))}",
            "name the next offset of every partition, or run the bronze job first",
        )
    return is_before(point.positions, len(landed.offsets) - 1)


def _event_time_ms() -> Column:
    """Source time of an event; Kafka's time for events without one, such as unpaired tombstones."""
    return F.coalesce("source_ts_ms", "log_ts")


def _check_snapshot_has_ended(rows: DataFrame, point: SourceTime, topic: str) -> None:
    """Check that the table's first snapshot had ended at a time: before its end, bronze has only some of the rows.

    Without an end marker, the snapshot ended before the first event that is not one of its rows. Without a snapshot,
    the table is known from its first event on.
    """
    is_row = (F.col("op") == "r") & ~F.col("snapshot").eqNullSafe("incremental")
    first_end = F.min(F.when(F.col("snapshot").isin(*SNAPSHOT_ENDS), kafka_position()))
    first_other = F.min(F.when(~is_row, kafka_position()))
    of_rows = rows.where(F.col("tombstone_of").isNull() & (F.col("key").isNotNull() | (F.col("op") == TRUNCATE)))
    summary = of_rows.agg(
        F.coalesce(first_end, first_other).alias("end"),
        F.max(is_row & F.col("snapshot").isNotNull()).alias("is_marked"),
        F.min(_event_time_ms()).alias("first_ms"),
    )
    ((end, is_marked, first_ms),) = summary.collect()
    if end is None and is_marked:
        raise TimeTravelError(topic, "bronze does not have all of its first snapshot", "run the bronze job first")
    of_snapshot = rows.where(is_row)
    if end is not None:
        at_end = F.struct(*(F.lit(value).alias(name) for name, value in end.asDict().items())).cast(KAFKA_TYPE)
        of_snapshot = of_snapshot.where(kafka_position() <= at_end)
    ((ended_ms,),) = of_snapshot.agg(F.max(_event_time_ms())).collect()
    known_ms = first_ms if ended_ms is None else ended_ms
    if known_ms is None or point.ms < known_ms:
        since = "it has no event" if known_ms is None else f"it is complete from {iso(known_ms)} on"
        raise TimeTravelError(
            topic, f"bronze does not have the complete table as of {point.at}: {since}", "name a later time"
        )


def _differences(before: _State, after: _State) -> DataFrame:
    """The row changes that turn one state into another."""
    live = (state.rows.where(~F.col(DELETED).eqNullSafe(True)) for state in (before, after))
    columns, was, is_now = as_structs(*live)
    same_key = is_same(StructType([columns[name] for name in after.keys]))
    old, new = F.col("was"), F.col("is_now")
    of_source = StructType([field for field in columns if field.name not in SILVER_META])
    row_changes = (
        F.when(old.isNull(), F.array(_change("insert", new)))
        .when(new.isNull(), F.array(_change("delete", old)))
        .when(~is_same(of_source), F.array(_change("update_preimage", old), _change("update_postimage", new)))
    )
    changed = was.join(is_now, same_key, "full").select(F.explode(row_changes).alias("change"))
    return changed.select("change.row.*", F.col("change.type").alias(CHANGE_TYPE))


def as_structs(was: DataFrame, is_now: DataFrame) -> tuple[StructType, DataFrame, DataFrame]:
    """The columns of two states, and their rows as structs `was` and `is_now` of these; missing columns are null."""
    columns = StructType([*is_now.schema, *(field for field in was.schema if field.name not in is_now.columns)])
    before, after = (as_columns_of(columns, rows) for rows in (was, is_now))
    return columns, before.select(F.struct("*").alias("was")), after.select(F.struct("*").alias("is_now"))


def is_same(fields: StructType) -> Column:
    """Whether `was` and `is_now` are equal in these fields. Spark cannot compare maps, so it compares their entries."""

    def value(struct: str, field: StructField) -> Column:
        column = F.col(struct)[field.name]
        return F.array_sort(F.map_entries(column)) if isinstance(field.dataType, MapType) else column

    return reduce(and_, (value("was", field).eqNullSafe(value("is_now", field)) for field in fields))


def _change(kind: str, row: Column) -> Column:
    return F.struct(F.lit(kind).alias("type"), row.alias("row"))
