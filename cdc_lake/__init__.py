"""Debezium change events from Kafka into lakehouse tables: the Python API for notebooks and programs.

    import cdc_lake

    films = cdc_lake.read(spark, "pagila.public.film", as_of="2026-11-23T12:00:00Z")

docs/how-to/time-travel.md has more. Spark is imported when a function is called.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cdc_lake.config import Config
    from cdc_lake.operations.story import Story
    from cdc_lake.points import Offset, Point, SourceTime

__all__ = ["Offset", "SourceTime", "changes", "load_config", "read", "story"]


def __getattr__(name: str) -> Any:
    if name not in ("Offset", "SourceTime"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cdc_lake import points

    return getattr(points, name)


def load_config(path: str | Path | None = None) -> "Config":
    """Read the settings.

    Args:
        path: the YAML file (default: `CDC_LAKE_CONFIG`, then `cdc-lake.yml`).

    Raises:
        ConfigError: the file does not exist, or a setting is wrong.
    """
    from cdc_lake.config import load_config

    return load_config(path)


def read(
    spark: "SparkSession",
    table: str,
    *,
    layer: Literal["bronze", "silver", "gold"] = "silver",
    as_of: "Point | None" = None,
    config: "Config | None" = None,
) -> "DataFrame":
    """Read a table as it is, or as it was.

    Args:
        table: the topic; for gold, the model. If a topic has several silver tables, the topic alone names the first,
            and `<topic>@hudi_mor`, for example, another.
        layer: `bronze` (the stored records), `silver` or `gold`.
        as_of: a number: this version of the table (Hudi: this instant). A datetime with a zone, or ISO text with one:
            the newest version committed by then. For silver also `SourceTime`, the merge of all events that had
            happened by then, and `Offset`, the merge of all records before these offsets. Default: the newest version.
        config: the settings (default: `load_config()`).

    Returns:
        The table's columns. Silver has the source's columns and its own (`__op`, `__deleted`, …), and includes
        soft-deleted rows. With `SourceTime` or `Offset`, `__batch` is null, because no silver commit wrote the rows.

    Raises:
        UnknownTableError: the table does not exist; the message names the nearest one.
        ConfigError: `as_of` is something else, or a time without a zone.
        ExpiredError: the table does not have this version, or no longer; the message names those that it has.
        TimeTravelError: bronze does not have the records for this point; the message names points that work.
    """
    from cdc_lake.operations import time_travel as travel

    return travel.read(config or load_config(), table, spark, layer=layer, as_of=as_of)


def changes(
    spark: "SparkSession", table: str, *, since: "Point", until: "Point | None" = None, config: "Config | None" = None
) -> "DataFrame":
    """Compare a silver table at two points.

    Args:
        table: as in `read`.
        since: the earlier point, in the forms of `as_of`.
        until: the later point (default: now).
        config: the settings (default: `load_config()`).

    Returns:
        Silver's columns and `_change_type`: `insert`, `delete` with the old row, or `update_preimage` and
        `update_postimage`, two rows of one key. Each key has at most one change, however often it changed in between.
        Rows whose source columns are equal are left out. A soft-deleted row counts as deleted.

    Raises:
        UnknownTableError, ConfigError, ExpiredError, TimeTravelError: as in `read`.
    """
    from cdc_lake.operations import time_travel as travel

    return travel.changes(config or load_config(), table, spark, since=since, until=until)


def story(spark: "SparkSession", table: str, key: str, *, config: "Config | None" = None) -> "Story":
    """Explain one row: every event of its key, what it changed, and why it won, lost or was rejected.

    Args:
        table: the topic.
        key: the key's value, `column=value` pairs separated by commas, or a JSON object of its columns.
        config: the settings (default: `load_config()`).

    Raises:
        UnknownTableError: the topic has no bronze table.
        ConfigError: bronze has no event of this key.
    """
    from cdc_lake.operations.story import story

    return story(config or load_config(), table, key, spark)
