"""One silver table's run: its tables and settings, and how its columns follow the source's."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cdc_lake.columns import BRONZE, META, SILVER_META, quoted, type_text
from cdc_lake.config import StorageConfig, TableConfig
from cdc_lake.decode.column_mapping import ColumnMapping
from cdc_lake.errors import BronzeBehindError, ConfigError
from cdc_lake.lake.lake import BronzeTable, Lake, SilverTarget
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.lake.side import SideTable
from cdc_lake.runs.report import TableReport
from cdc_lake.silver.evolution import Layout
from cdc_lake.storage.hadoop import Storage
from cdc_lake.tables.contract import Table, progress_of
from cdc_lake.tables.progress import BronzeProgress, KeyFrom, SilverProgress

_PARTITIONS = 5
"""Partitions in a message."""


@dataclass(frozen=True)
class SilverRun:
    """One table's run.

    Attributes:
        bronze: all rows, pinned to one version.
        landed: bronze's progress at that version.
        silver: the table to merge into.
        storage: its format, type and partitions.
        side: its side table.
        is_comparison: silver was folded from another bronze table, which may have known more of a key than this one.
        check_lease: raises if another run has taken the table's lease.
        known: the columns of the table whose layout to follow; none if that is silver itself.
    """

    spark: SparkSession
    schemas: SchemaFiles
    bronze: DataFrame
    landed: BronzeProgress
    silver: Table[SilverProgress]
    storage: StorageConfig
    side: SideTable
    settings: TableConfig
    run_id: str
    done: TableReport
    is_comparison: bool
    check_lease: Callable[[], None]
    known: Layout | None = None

    @property
    def column_mapping(self) -> ColumnMapping:
        """Which silver column takes each source column."""
        return column_mapping(self.settings, self.silver)

    @property
    def partitions(self) -> int:
        """Number of partitions of the topic."""
        return len(self.landed.position)

    def with_current_key(self, key_from: KeyFrom | None) -> "SilverRun":
        """The same run on the bronze rows with the current primary key; see `has_former_key`."""
        return replace(self, bronze=self.bronze.where(~has_former_key(self.landed, key_from)))

    @property
    def truncates(self) -> Literal["soft", "hard"]:
        """How a truncate deletes rows."""
        chosen = self.settings.deletes.truncates
        return chosen if chosen in ("soft", "hard") else self.settings.deletes.mode


def read_only_run(
    lake: Lake,
    target: SilverTarget,
    spark: SparkSession,
    *,
    bronze: BronzeTable,
    settings: TableConfig,
    version: int | None = None,
) -> tuple[SilverRun, SilverProgress | None]:
    """A run that writes nothing, for commands that show how bronze's rows fold, and silver's progress.

    Args:
        target: the silver table.
        bronze: the table to read.
        version: the version of bronze (default: the newest).

    Raises:
        UnknownTableError: bronze has no commit.
    """
    landed, silver = progress_of(bronze, version), target.open(spark)
    progress = silver.progress()
    run = SilverRun(
        spark=spark,
        schemas=lake.schema_files(Storage(spark)),
        bronze=bronze.read(as_of=bronze.version() if version is None else version).select(*BRONZE),
        landed=landed,
        silver=silver,
        storage=target.storage,
        side=target.open_side(spark),
        settings=settings,
        run_id="",
        done=TableReport(table=target.name),
        is_comparison=False,
        check_lease=lambda: None,
        known=layout_of(silver.read().schema, progress, added=added_columns(settings)) if progress else None,
    )
    return run, progress


def check_columns(run: SilverRun) -> None:
    """Check that no other program removed or renamed silver's columns, unless the settings do the same.

    Raises:
        ConfigError: one did. A run would add the columns again, without values in the rows that it does not change.
    """
    settings, table, path = run.settings, run.done.table, run.silver.path
    for name, now in run.silver.lost_columns().items():
        if name in settings.schema_.rename or name in settings.schema_.exclude:
            continue
        if now is None:
            todo = f"to restore it, run `cdc-lake rebuild --table {table}`; the run wrote nothing"
            raise ConfigError(f"{table}.{name}", "another program removed the column from silver", todo)
        raise ConfigError(
            f"{table}.{name}",
            f"another program renamed the column to `{now}` in silver",
            f"rename it back: ALTER TABLE delta.{quoted(path)} RENAME COLUMN {quoted(now)} TO "
            f"{quoted(name)}; or set `schema.rename: {{{name}: {now}}}` for this table",
        )


def missing_records(run: SilverRun, progress: SilverProgress) -> str | None:
    """Describe the records that silver has merged and bronze, after it was restored or replaced, has not read again."""
    behind = sorted(progress.ahead_of(run.landed).items())
    if not behind:
        return None
    ends = ", ".join(f"partition {p}: {reached} of {end}" for p, (reached, end) in behind[:_PARTITIONS])
    return f"bronze was restored or replaced, and lacks records that silver has merged (next offsets: {ends})"


def check_not_behind(run: SilverRun, progress: SilverProgress) -> None:
    """Check that bronze, after it was restored or replaced, has read again what silver has merged.

    Appended rows never change, so they do not need the check.

    Raises:
        BronzeBehindError: it has not. Rows would return to older ones, and deleted rows would come back.
    """
    what = missing_records(run, progress)
    if what is None or run.settings.merge.mode == "append":
        return
    raise BronzeBehindError(
        run.done.table,
        what,
        "run the bronze job until it has read them again, then silver; to return silver to bronze's older rows, run "
        f"`cdc-lake run silver --table {run.done.table.partition('@')[0]} --accept-loss`",
    )


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
